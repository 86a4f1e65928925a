"""Compare the stages of a Spark batch application with the rule of Flink's adaptive batch scheduler.

The stages come from Spark's REST API while the application runs, or from its event log at any time.
"""

from __future__ import annotations

import json
import math
import re
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

from autoscaler.plugins import install_hint
from autoscaler.schedulers.batch import BatchSettings, parallelism

REST_TIMEOUT = 30.0
CHUNK = 1 << 16
COMPRESSED = (".zstd", ".lz4", ".snappy", ".lzf")
"""Suffixes of compressed event logs: `spark.eventLog.compression.codec`."""

ADVISORY = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
PARALLELISM_FIRST = "spark.sql.adaptive.coalescePartitions.parallelismFirst"
MIN_PARTITIONS = "spark.sql.adaptive.coalescePartitions.minPartitionNum"
INITIAL_PARTITIONS = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
SOURCE_PARTITIONS = "spark.sql.files.minPartitionNum"
SETTINGS = (ADVISORY, PARALLELISM_FIRST, MIN_PARTITIONS, INITIAL_PARTITIONS, SHUFFLE_PARTITIONS, SOURCE_PARTITIONS)
"""The settings from which the rule's options are derived."""

SKEWED, SPLITS = "number of skewed partitions", "number of skewed partition splits"
"""Spark's metrics of an adaptive shuffle read."""


INSTEAD = "read the event log: spark.eventLog.enabled=true and, after the job, batch_report(path)"
"""What to do if there is no REST API."""


class BatchReportError(RuntimeError):
    """The stages cannot be read; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """The input of the rule.

    Attributes:
        settings: volume per task, and bounds.
        default_source_parallelism: the number of tasks of a stage that reads files; None: Spark chooses.
    """

    settings: BatchSettings
    default_source_parallelism: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One attempt of a stage. Bytes are as Spark counts them, compressed in shuffles; times are seconds since 1970.

    Attributes:
        number, attempt: the stage's id.
        name: the description of the stage's job, or else the call in the program.
        status: ACTIVE, COMPLETE or FAILED.
        tasks: the number of tasks.
        submitted, ended: None if the stage is not submitted or has not ended.
        input_bytes: read from files and caches.
        shuffle_read_bytes, shuffle_write_bytes: read from other stages, and written for them.
        spilled_bytes: written to disk because memory did not suffice.
        median_bytes, largest_bytes: median and maximum of what each finished task read from shuffles, or from its input
            if the stage reads no shuffle; None: no task has finished.
        streaming: whether the stage belongs to a streaming query.
        task_times: start and end of each task; empty if they were not read.
    """

    number: int
    attempt: int
    name: str
    status: str
    tasks: int
    submitted: float | None
    ended: float | None
    input_bytes: int
    shuffle_read_bytes: int
    shuffle_write_bytes: int
    spilled_bytes: int
    median_bytes: int | None
    largest_bytes: int | None
    streaming: bool
    task_times: tuple[tuple[float, float | None], ...] = ()

    @property
    def label(self) -> str:
        """The stage's number, followed by the attempt unless it is the first."""
        return f"{self.number}.{self.attempt}" if self.attempt else str(self.number)

    @property
    def skew(self) -> float | None:
        """What the largest task reads divided by the median; None: not known."""
        return self.largest_bytes / self.median_bytes if self.median_bytes and self.largest_bytes else None


@dataclass(frozen=True, slots=True)
class Executor:
    """A process that runs tasks: when it was added and removed (seconds since 1970; None: not removed), its slots."""

    added: float
    removed: float | None
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An application as read from Spark.

    Attributes:
        id, name: as Spark shows them.
        stages: the submitted stages, ordered by number and attempt.
        executors: the executors that run tasks.
        skewed_partitions, skew_splits: the number of skewed partitions in joins, and of the tasks they were split into.
        conf: the settings from which the rule's options are derived, as the last stage of a batch query has them;
            empty if read over REST.
        warnings: what is missing from the data.
    """

    id: str
    name: str
    stages: tuple[Stage, ...]
    executors: tuple[Executor, ...]
    skewed_partitions: int
    skew_splits: int
    conf: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def parallelism_by_rule(stage: Stage, options: BatchOptions) -> int | None:
    """The number of tasks that the rule gives a stage; None if the rule does not apply.

    The rule does not apply to sources without a configured parallelism, to an attempt that repeats lost tasks, and to
    a stage that has not read all its input yet.
    """
    if stage.attempt:
        return None
    if stage.shuffle_read_bytes:
        return parallelism(options.settings, stage.shuffle_read_bytes) if stage.status == "COMPLETE" else None
    return options.default_source_parallelism if stage.input_bytes else None


def within_one_power_of_two(stage: Stage, options: BatchOptions) -> bool | None:
    """Whether a stage has from half to twice the rule's number of tasks; None: it reads no shuffle, or no rule."""
    rule = parallelism_by_rule(stage, options) if stage.shuffle_read_bytes else None
    return None if rule is None else rule <= 2 * stage.tasks and stage.tasks <= 2 * rule


# REST


def read_rest(ui: str, app: str, *, with_tasks: bool = False) -> Application:
    """Read a running application from its UI's REST API; `with_tasks` adds each task's times, some kilobytes per task.

    Raises:
        BatchReportError: the API does not answer as expected.
    """
    details = "true" if with_tasks else "false"
    found = _get(ui, f"{app}/stages?withSummaries=true&quantiles=0.5,1.0&details={details}")
    stages = _ordered(stage_from_rest(each) for each in found if each["status"] not in {"SKIPPED", "PENDING"})
    nodes = [
        node
        for each in _get(ui, f"{app}/sql?details=true&planDescription=false&length=100000")
        for node in each["nodes"]
    ]
    known = {each["stageId"] for each in found}
    missing = max(known, default=-1) + 1 - len(known)
    dropped = f"stages that Spark no longer knows: {missing} (spark.ui.retainedStages); the event log has all"
    return Application(
        id=app,
        name=_get(ui, app)["name"],
        stages=stages,
        executors=_executors(
            Executor(_time(each["addTime"]) or 0.0, _time(each.get("removeTime")), each["maxTasks"])
            for each in _get(ui, f"{app}/allexecutors")
        ),
        skewed_partitions=_metric(nodes, SKEWED),
        skew_splits=_metric(nodes, SPLITS),
        conf={},
        warnings=(dropped,) if missing else (),
    )


def _get(ui: str, path: str) -> Any:  # noqa: ANN401 - JSON
    url = f"{ui}/api/v1/applications/{path}"
    # Ignore a proxy that the environment sets: the driver is never behind it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=REST_TIMEOUT) as answer:
            return json.load(answer)
    except (OSError, HTTPException, ValueError) as error:
        raise BatchReportError(f"{url}: {error}, expected JSON of Spark's REST API; try again, or {INSTEAD}") from error


def stage_from_rest(found: Mapping[str, Any]) -> Stage:
    """Convert a stage from the response to `/stages?withSummaries=true&quantiles=0.5,1.0`."""
    summary = found.get("taskMetricsDistributions") or {}
    metrics = ("shuffleReadMetrics", "readBytes") if found["shuffleReadBytes"] else ("inputMetrics", "bytesRead")
    median, largest = summary.get(metrics[0], {}).get(metrics[1]) or (None, None)
    return Stage(
        number=found["stageId"],
        attempt=found["attemptId"],
        **_named(found["name"], found.get("description")),
        status=found["status"],
        tasks=found["numTasks"],
        submitted=_time(found.get("submissionTime")),
        ended=_time(found.get("completionTime")),
        input_bytes=found["inputBytes"],
        shuffle_read_bytes=found["shuffleReadBytes"],
        shuffle_write_bytes=found["shuffleWriteBytes"],
        spilled_bytes=found["diskBytesSpilled"],
        median_bytes=None if median is None else int(median),
        largest_bytes=None if largest is None else int(largest),
        task_times=tuple(
            sorted(
                (_task_times(each) for each in (found.get("tasks") or {}).values() if each.get("launchTime")),
                key=lambda times: (times[0], times[1] or math.inf),
            )
        ),
    )


def _task_times(task: Mapping[str, Any]) -> tuple[float, float | None]:
    start = _time(task["launchTime"]) or 0.0
    ended = task["status"] != "RUNNING" and "duration" in task
    return start, round(start + task["duration"] / 1000, 3) if ended else None


def _time(text: str | None) -> float | None:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fGMT").replace(tzinfo=UTC).timestamp() if text else None


def _metric(nodes: Iterable[Mapping[str, Any]], name: str) -> int:
    metrics = [each for node in nodes for each in node["metrics"] if each["name"] == name]
    return sum(int(each["value"].replace(",", "")) for each in metrics)


def _is_streaming(description: str | None) -> bool:
    return re.search(r"\nrunId = .*\nbatch = ", description or "") is not None


def _named(name: str, description: str | None) -> dict[str, Any]:
    return {
        "name": (description or name).partition("\n")[0],
        "streaming": _is_streaming(description),
    }


def _ordered(stages: Iterable[Stage]) -> tuple[Stage, ...]:
    return tuple(sorted(stages, key=lambda stage: (stage.number, stage.attempt)))


def _executors(found: Iterable[Executor]) -> tuple[Executor, ...]:
    """The executors that have slots, in the order in which they were added."""
    return tuple(sorted((each for each in found if each.slots), key=lambda each: each.added))


# the event log


def read_event_log(path: str | Path) -> Application:
    """Read an application's event log up to its last readable line: a file, or the directory of a rolled log.

    Raises:
        OSError: the log cannot be read.
        BatchReportError: the file is not an event log, or its compression is not supported.
    """
    events, warnings = _Events(), []
    for file in _files(Path(path)):
        try:
            for line in _lines(_chunks(file)):
                events.add(line)
        except OSError as error:
            if not events.read:
                raise
            warnings.append(f"{file.name} is cut off ({error})")
    if not events.read:
        raise BatchReportError(
            f"{path} has no event of Spark, expected an event log: a file or a directory eventlog_v2_... in "
            "spark.eventLog.dir"
        )
    if events.unreadable:
        warnings.append(f"unreadable lines in the event log, such as a truncated last line: {events.unreadable}")
    if not events.ended:
        warnings.append(
            "the event log has no end of the application, which still runs or was killed: later stages are missing"
        )
    return Application(
        id=events.id,
        name=events.name,
        stages=_ordered(_stage_from_events(*stage, events.tasks[key]) for key, stage in events.stages.items()),
        executors=_executors(events.executors.values()),
        skewed_partitions=events.total(SKEWED),
        skew_splits=events.total(SPLITS),
        conf=events.conf,
        warnings=tuple(warnings),
    )


def _files(path: Path) -> list[Path]:
    """The files of a log, oldest events first."""
    if not path.is_dir():
        return [path]
    rolled = {found: each for each in path.iterdir() if (found := re.match(r"events_(\d+)_", each.name))}
    if not rolled:
        names = ", ".join(sorted(each.name for each in path.iterdir())[:5]) or "nothing"
        raise BatchReportError(f"{path} is a directory with {names}, expected the event log of one application")
    return [rolled[found] for found in sorted(rolled, key=lambda found: int(found[1]))]


def _chunks(file: Path) -> Iterator[bytes]:
    codec = next((ending for ending in COMPRESSED if ending in file.suffixes), None)
    if codec is None:
        with file.open("rb") as stream:
            yield from iter(lambda: stream.read(CHUNK), b"")
        return
    if codec != ".zstd":
        raise BatchReportError(
            f"{file} is compressed with {codec[1:]}, expected zstd or none; run the job with "
            "spark.eventLog.compression.codec=zstd, Spark's default"
        )
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise BatchReportError(
            f"{file} is compressed with zstd, which needs pyarrow: {install_hint('spark')}"
        ) from error
    with pa.input_stream(str(file), compression="zstd") as stream:
        yield from iter(lambda: stream.read(CHUNK), b"")


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


@dataclass(frozen=True, slots=True)
class _Task:
    start: float
    end: float
    succeeded: bool
    input_bytes: int
    shuffle_read_bytes: int
    shuffle_write_bytes: int
    spilled_bytes: int


class _Events:
    """The state of an application, accumulated from the events of its log."""

    def __init__(self) -> None:
        self.read = 0
        self.ended = False
        self.unreadable = 0
        self.id = self.name = "unknown"
        self.conf: dict[str, str] = {}
        self.executors: dict[str, Executor] = {}
        self.stages: dict[tuple[int, int], tuple[Mapping[str, Any], str | None]] = {}
        self.tasks: dict[tuple[int, int], list[_Task]] = defaultdict(list)
        self.metrics: dict[int, str] = {}
        self.values: dict[int, int] = defaultdict(int)
        self._cpus = 1

    def add(self, line: bytes) -> None:
        """Process one line of the log; count the line if it cannot be read."""
        try:
            event = json.loads(line)
            kind = event["Event"].rpartition(".")[2].removeprefix("SparkListener")
            self._take_application(kind, event)
            self._take_work(kind, event)
        except (ValueError, TypeError, KeyError, AttributeError):
            self.unreadable += 1
        else:
            self.read += 1

    def _take_application(self, kind: str, event: Mapping[str, Any]) -> None:
        match kind:
            case "ApplicationStart":
                self.id, self.name = event.get("App ID", self.id), event["App Name"]
            case "ApplicationEnd":
                self.ended = True
            case "EnvironmentUpdate":
                self._cpus = int(event["Spark Properties"].get("spark.task.cpus", "1"))
            case "ExecutorAdded":
                slots = event["Executor Info"]["Total Cores"] // self._cpus
                self.executors[event["Executor ID"]] = Executor(event["Timestamp"] / 1000, None, slots)
            case "ExecutorRemoved":
                known = self.executors.get(event["Executor ID"])
                if known is not None:
                    self.executors[event["Executor ID"]] = replace(known, removed=event["Timestamp"] / 1000)

    def _take_work(self, kind: str, event: Mapping[str, Any]) -> None:
        match kind:
            case "StageSubmitted":
                properties = event.get("Properties") or {}
                description = properties.get("spark.job.description")
                self.stages[_key(event["Stage Info"])] = event["Stage Info"], description
                # Stages of RDDs have no session settings; a streaming query keeps the settings it was started with.
                if not _is_streaming(description):
                    self.conf = {key: properties[key] for key in SETTINGS if key in properties} or self.conf
            case "StageCompleted":
                key = _key(event["Stage Info"])
                self.stages[key] = event["Stage Info"], self.stages.get(key, ({}, None))[1]
            case "TaskEnd":
                self.tasks[_key(event)].append(_task(event))
            case "SQLExecutionStart" | "SQLAdaptiveExecutionUpdate":
                self.metrics |= dict(_skew_metrics(event["sparkPlanInfo"]))
            case "DriverAccumUpdates":
                for number, value in event["accumUpdates"]:
                    self.values[number] += value

    def total(self, name: str) -> int:
        """The sum of one of the driver's metrics."""
        return sum(self.values[number] for number, each in self.metrics.items() if each == name)


def _key(event: Mapping[str, Any]) -> tuple[int, int]:
    return event["Stage ID"], event["Stage Attempt ID"]


def _skew_metrics(node: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """The accumulator ids and names of the skew metrics in a plan."""
    yield from ((each["accumulatorId"], each["name"]) for each in node["metrics"] if each["name"] in {SKEWED, SPLITS})
    for child in node["children"]:
        yield from _skew_metrics(child)


def _task(event: Mapping[str, Any]) -> _Task:
    info, metrics = event["Task Info"], event.get("Task Metrics") or {}
    shuffle = metrics.get("Shuffle Read Metrics", {})
    return _Task(
        start=info["Launch Time"] / 1000,
        end=info["Finish Time"] / 1000,
        succeeded=event["Task End Reason"]["Reason"] == "Success",
        input_bytes=metrics.get("Input Metrics", {}).get("Bytes Read", 0),
        shuffle_read_bytes=shuffle.get("Local Bytes Read", 0) + shuffle.get("Remote Bytes Read", 0),
        shuffle_write_bytes=metrics.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0),
        spilled_bytes=metrics.get("Disk Bytes Spilled", 0),
    )


def _stage_from_events(info: Mapping[str, Any], description: str | None, tasks: Sequence[_Task]) -> Stage:
    submitted, ended = info.get("Submission Time"), info.get("Completion Time")
    shuffle = sum(task.shuffle_read_bytes for task in tasks)
    sizes = sorted(task.shuffle_read_bytes if shuffle else task.input_bytes for task in tasks if task.succeeded)
    return Stage(
        number=info["Stage ID"],
        attempt=info["Stage Attempt ID"],
        **_named(info["Stage Name"], description),
        status="ACTIVE" if ended is None else "FAILED" if "Failure Reason" in info else "COMPLETE",
        tasks=info["Number of Tasks"],
        submitted=None if submitted is None else submitted / 1000,
        ended=None if ended is None else ended / 1000,
        input_bytes=sum(task.input_bytes for task in tasks),
        shuffle_read_bytes=shuffle,
        shuffle_write_bytes=sum(task.shuffle_write_bytes for task in tasks),
        spilled_bytes=sum(task.spilled_bytes for task in tasks),
        # Spark's REST API computes the median in the same way.
        median_bytes=sizes[len(sizes) // 2] if sizes else None,
        largest_bytes=sizes[-1] if sizes else None,
        task_times=tuple(sorted((task.start, task.end) for task in tasks)),
    )


# the table

_HEAD = ("stage", "of", "at", "took", "tasks", "rule", "input", "shuffle", "largest", "skew", "spilled", "written", "")
WIDTH = 24
"""Maximum number of characters of a stage's name."""
_TEXTS = {1, 12}
"""Columns that are aligned to the left."""


def table(application: Application, options: BatchOptions, warnings: Sequence[str] = ()) -> str:
    """Format the comparison of Spark's stages with the rule as text, followed by warnings."""
    stages = [stage for stage in application.stages if not stage.streaming]
    start = min((stage.submitted for stage in stages if stage.submitted is not None), default=0.0)
    rows = [_HEAD, *(_row(stage, options, start) for stage in stages)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place in _TEXTS else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    rule = options.settings
    judged = [within_one_power_of_two(stage, options) for stage in stages]
    streaming = len(application.stages) - len(stages)
    notes = [*warnings, *application.warnings]
    if streaming:
        notes.append(f"stages of streaming queries are left out ({streaming}): the rule is for batch jobs")
    shuffles = (
        f"Stages that read shuffles: {sum(each is not None for each in judged)}, of which {sum(map(bool, judged))}"
    )
    return "\n".join(
        (
            f"{application.name} ({application.id})",
            f"Rule: {_size(rule.avg_data_volume_per_task)} a task, {rule.min_parallelism} to {rule.max_parallelism}",
            "",
            *lines,
            "",
            f"{shuffles} have from half to twice as many tasks as by the rule.",
            f"Skewed partitions of joins: {application.skewed_partitions}, split into {application.skew_splits} tasks.",
            *(f"Warning: {note}." for note in notes),
        )
    )


def _row(stage: Stage, options: BatchOptions, start: float) -> tuple[str, ...]:
    rule = parallelism_by_rule(stage, options)
    took = None if stage.submitted is None or stage.ended is None else stage.ended - stage.submitted
    notes = [] if stage.status == "COMPLETE" else [stage.status.lower()]
    if within_one_power_of_two(stage, options) is False:
        notes.append("not by the rule")
    return (
        stage.label,
        stage.name if len(stage.name) <= WIDTH else f"{stage.name[: WIDTH - 3]}...",
        "-" if stage.submitted is None else f"{stage.submitted - start:.1f} s",
        "-" if took is None else f"{took:.1f} s",
        str(stage.tasks),
        "-" if rule is None else str(rule),
        _size(stage.input_bytes),
        _size(stage.shuffle_read_bytes),
        _size(stage.largest_bytes or 0),
        "-" if stage.skew is None else f"{stage.skew:.1f}",
        _size(stage.spilled_bytes),
        _size(stage.shuffle_write_bytes),
        ", ".join(notes),
    )


def _size(size: float) -> str:
    if not size:
        return "-"
    power = min((int(size).bit_length() - 1) // 10, 5)
    return f"{size / (1 << 10 * power):.{1 if power else 0}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"
