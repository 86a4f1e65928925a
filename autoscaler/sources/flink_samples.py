"""The data that the source `flink` has polled: samples of a job's vertices and subtasks over the window.

For every subtask, Flink counts the milliseconds it was busy, idle and backpressured since it started. Their sum is the
subtask's age on its own machine, at the moment when its other counters were read. All rates here use this age as their
clock. So it does not matter when the JobManager gathered a counter, or whether all TaskManagers answered at the same
time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from autoscaler.clients.flink import Aggregate, Checkpoints, Job, Subtask, Vertex
from autoscaler.core import dataflow
from autoscaler.ports import AnswerError

BUSY, IDLE, BACKPRESSURED = "accumulateBusyTimeMs", "accumulateIdleTimeMs", "accumulateBackPressuredTimeMs"
NOW_BUSY, NOW_IDLE, NOW_BACKPRESSURED = "busyTimeMsPerSecond", "idleTimeMsPerSecond", "backPressuredTimeMsPerSecond"
RECORDS_IN, RECORDS_OUT = "numRecordsIn", "numRecordsOut"
TASK = frozenset({BUSY, IDLE, BACKPRESSURED, NOW_BUSY, NOW_IDLE, NOW_BACKPRESSURED, RECORDS_IN, RECORDS_OUT})
PER_SECOND = "PerSecond"
TASK_RATES = frozenset({RECORDS_IN + PER_SECOND, RECORDS_OUT + PER_SECOND})
PENDING, SOURCE_IDLE, EVENT_LAG = "pendingRecords", "sourceIdleTime", "currentEmitEventTimeLag"
WATERMARKS = ("currentInputWatermark", "currentOutputWatermark")
OPERATOR = frozenset({PENDING, SOURCE_IDLE, EVENT_LAG, WATERMARKS[1]})
KAFKA, PULSAR = ".KafkaSourceReader.topic.", ".PulsarConsumer."

MIN_RATE_SPAN = 1000.0  # ms between two samples that make a rate
COUNT_TOLERANCE = 0.05  # the largest difference between the computed and the expected number of subtasks


@dataclass(frozen=True, slots=True)
class Sample:
    """One vertex at one time.

    Attributes:
        at: when the sample was true, as far as is known, in seconds on the event loop's clock.
        clock: mean age of the subtasks in milliseconds; None if Flink does not measure it (legacy sources).
        count: number of subtasks that reported.
        metrics: their metrics.
        pending: records waiting; None if the vertex does not report them.
    """

    at: float
    clock: float | None
    count: int
    metrics: Mapping[str, Aggregate]
    pending: float | None = None

    def sum(self, name: str) -> float:
        """The sum of a metric over the subtasks; NaN if it is not reported."""
        known = self.metrics.get(name)
        return math.nan if known is None else known.sum


@dataclass(slots=True)
class Track:
    """A vertex over the window.

    Attributes:
        vertex: the vertex as the job shows it now.
        samples: samples of one run, oldest first, whose counters never decrease.
        missing: why the vertex cannot be measured now, or None.
        ended: whether all its subtasks have finished.
        partitions: number of partitions that the vertex reads; 0: none, or not reported.
    """

    vertex: Vertex
    samples: Sequence[Sample] = ()
    missing: str | None = None
    ended: bool = False
    partitions: int = 0

    @property
    def last(self) -> Sample:
        """The newest sample. Raises AnswerError when there is none."""
        if self.missing or not self.samples:
            raise AnswerError(f"vertex {self.vertex.name!r}: {self.missing or 'it has no sample yet'}")
        return self.samples[-1]

    def points(self, value: Callable[[Sample], float | None]) -> list[tuple[float, float | None]]:
        """(milliseconds, value) of each sample."""
        clocked = all(sample.clock is not None for sample in self.samples)
        return [((sample.clock or 0.0) if clocked else sample.at * 1000, value(sample)) for sample in self.samples]

    def grown(self, value: Callable[[Sample], float | None]) -> float:
        """Growth per second over the window; NaN unless two samples are at least a second apart."""
        points = [point for point in self.points(value) if point[1] is not None and not math.isnan(point[1])]
        if len(points) < 2 or points[-1][0] - points[0][0] < MIN_RATE_SPAN:  # noqa: PLR2004 - a rate lies between two
            return math.nan
        return dataflow.rate(points)


class SubtaskId(NamedTuple):
    """One attempt of a subtask. A restart is a new attempt."""

    taskmanager: str
    number: int
    attempt: int


class SubtaskClock(NamedTuple):
    """The busy time and the age of a subtask since it started, in milliseconds."""

    busy: float
    age: float


@dataclass(frozen=True, slots=True)
class SubtasksSample:
    """The running subtasks of one vertex at one time, on the event loop's clock in seconds."""

    at: float
    subtasks: Mapping[SubtaskId, SubtaskClock]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The input from which a job's metrics are computed.

    Attributes:
        job: the job as it is now.
        at: when its metrics were true, on the event loop's clock.
        tracks: vertex -> its samples.
        subtasks: subtask samples of the vertex with the hottest subtask over the window, oldest first, if known.
        workers: metrics over the TaskManagers, if they were requested.
        checkpoints: the job's checkpoints, if they were requested.
    """

    job: Job
    at: float
    tracks: Mapping[str, Track] = field(default_factory=dict)
    subtasks: Sequence[SubtasksSample] = ()
    workers: Mapping[str, Aggregate] = field(default_factory=dict)
    checkpoints: Checkpoints | None = None

    @property
    def sources(self) -> list[Track]:
        """The vertices without upstream vertices that have not ended."""
        found = [self.tracks[vertex.id] for vertex in self.job.sources]
        return [track for track in found if not track.ended]

    @property
    def alive(self) -> list[Track]:
        """All vertices that have not ended."""
        return [track for track in self.tracks.values() if not track.ended]


def useful_names(names: frozenset[str]) -> frozenset[str]:
    """The names that this source uses. Names with a comma are left out, because a request separates names by commas."""
    found = {name for name in names if name in TASK | TASK_RATES or name == WATERMARKS[0]}
    for name in names:
        operator, _, last = name.rpartition(".")
        if "," in name or not operator or ".split." in name:
            continue
        if last in OPERATOR or (
            operator.startswith("Source__") and last.removesuffix(PER_SECOND) in {RECORDS_IN, RECORDS_OUT}
        ):
            found.add(name)
    return frozenset(found)


def partitions(names: Iterable[str]) -> int:
    """The number of partitions that a source reads, counted in the names of its metrics.

    Flink's autoscaler does the same in `updateKafkaPulsarSourceNumPartitions`. Only Flink's connectors for Kafka and
    Pulsar report partitions; for any other source the number is 0.
    """
    found: set[tuple[str, str]] = set()
    for name in names:
        if KAFKA in name and name.endswith(".currentOffset"):
            topic, _, number = name.partition(KAFKA)[2].removesuffix(".currentOffset").rpartition(".partition.")
        elif PULSAR in name and name.endswith(".numMsgsReceived"):
            topic, _, rest = name.partition(PULSAR)[2].rpartition("-partition-")
            number = rest.partition(".")[0]
        else:
            continue
        if topic and number.isdecimal():
            found.add((topic, number))
    return len(found)


def make_sample(metrics: Mapping[str, Aggregate], at: float, expected: int) -> Sample | str:
    """Make a sample of the subtasks' metrics, or return why they cannot be trusted."""
    if not metrics:
        return "its subtasks report no metrics yet"
    parts = [metrics[name] for name in (BUSY, IDLE, BACKPRESSURED) if name in metrics]
    measured = [part for part in parts if math.isfinite(part.sum) and math.isfinite(part.avg)]
    total, mean = sum(part.sum for part in measured), sum(part.avg for part in measured)
    whole = len(measured) == len((BUSY, IDLE, BACKPRESSURED)) and mean > 0
    count = total / mean if whole else float(expected)
    if abs(count - expected) > COUNT_TOLERANCE:
        return f"{count:.0f} of its {expected} running subtasks report metrics"
    pending = [known.sum for name, known in metrics.items() if name.endswith("." + PENDING)]
    return Sample(at, mean if whole else None, expected, metrics, sum(pending) if pending else None)


def trim_sample(known: Sample) -> Sample:
    """Reduce a sample to the metrics that are needed later: the counters and Flink's own shares."""
    kept = {
        name: value
        for name, value in known.metrics.items()
        if name in {BUSY, IDLE, BACKPRESSURED, NOW_BUSY, NOW_IDLE, NOW_BACKPRESSURED}
        or name.endswith((RECORDS_IN, RECORDS_OUT))
    }
    return replace(known, metrics=kept)


def make_subtasks_sample(subtasks: Iterable[Subtask], at: float) -> SubtasksSample | None:
    """Make a sample of the running subtasks; None if the times of one of them are unknown or there are none."""
    found = {}
    for one in subtasks:
        if one.status == "RUNNING":
            age = one.times.busy + one.times.idle + one.times.backpressured
            if not 0 < age < math.inf:
                return None
            found[SubtaskId(one.taskmanager, one.number, one.attempt)] = SubtaskClock(one.times.busy, age)
    return SubtasksSample(at, found) if found else None


def continues(before: Sample, after: Sample) -> bool:
    """Whether no counter has decreased. If one has, subtasks have restarted between the samples."""
    if (before.clock is None) != (after.clock is None) or before.count != after.count:
        return False
    if before.clock is not None and after.clock is not None and after.clock < before.clock:
        return False
    counters = [name for name in after.metrics if name.endswith((RECORDS_IN, RECORDS_OUT))]
    return all(not after.sum(name) < before.sum(name) for name in counters)
