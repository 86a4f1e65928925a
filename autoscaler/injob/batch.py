"""Flink's Adaptive Batch Scheduler for PySpark: its options as settings of Spark's adaptive execution, and a report."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoscaler.injob.batch_stages import (
    ADVISORY,
    INITIAL_PARTITIONS,
    INSTEAD,
    MIN_PARTITIONS,
    PARALLELISM_FIRST,
    SHUFFLE_PARTITIONS,
    SOURCE_PARTITIONS,
    Application,
    BatchOptions,
    BatchReportError,
    read_event_log,
    read_rest,
    table,
)
from autoscaler.schedulers.batch import BatchSettings

__all__ = ["AdaptiveBatch", "BatchReportError", "adaptive_batch", "batch_report"]

MAX_SOURCE_PARTITIONS = "spark.sql.files.maxPartitionNum"

SKEWED_FACTOR = 4
"""A partition is skewed above this many times the median size (Flink's skewed-factor) and this many task volumes."""

LIMITS = (
    "the stages that read files are not adaptive: Spark splits files before it runs anything",
    "sizes are those of compressed shuffle data, which Spark estimates up to 10 % too high",
    "shuffles of RDDs and of repartition(n) keep the number of partitions that the program gives them",
    "the report does not show decisions of the cluster manager: when workers are added, why an executor is missing",
)
"""What Flink's scheduler can do and Spark cannot, whatever the options are."""

log = logging.getLogger("autoscaler.injob.batch")

_SWITCHES = ("spark.sql.adaptive.enabled", "spark.sql.adaptive.coalescePartitions.enabled")


def adaptive_batch(
    spark: Any,  # noqa: ANN401 - a SparkSession; pyspark is not imported for the sake of its type
    avg_data_volume_per_task: str | int = "64m",
    min_parallelism: int = 1,
    max_parallelism: int = 128,
    default_source_parallelism: int | None = None,
) -> AdaptiveBatch:
    """Give each stage of a session's batch queries as many tasks as Flink's Adaptive Batch Scheduler would.

    The function configures Spark's adaptive execution in this session, for queries that are planned from now on. Other
    sessions of the application keep their settings. If a setting prevents this, the function logs a warning and the job
    continues. The options are Flink's `execution.batch.adaptive.auto-parallelism.*`.

    Args:
        spark: the session.
        avg_data_volume_per_task: the volume of shuffle data that a task should read: bytes, or a size in Spark's
            format.
        min_parallelism: the minimum number of tasks of a stage that reads shuffles.
        max_parallelism: the maximum number of tasks of such a stage.
        default_source_parallelism: the number of tasks of a stage that reads files; None: Spark chooses.

    Raises:
        ValueError: an option is wrong; the message names it.
    """
    options = _options(avg_data_volume_per_task, min_parallelism, max_parallelism, default_source_parallelism)
    found = _read_conf(spark)
    warnings = tuple(_warnings(options, found, [query.name or query.id for query in spark.streams.active]))
    before = [MIN_PARTITIONS]
    if spark.conf.get(SOURCE_PARTITIONS, None) == spark.conf.get(MAX_SOURCE_PARTITIONS, None):  # set by an earlier call
        before += SOURCE_PARTITIONS, MAX_SOURCE_PARTITIONS
    for key in before:
        if spark.conf.get(key, None) is not None:
            spark.conf.unset(key)
    for key, value in batch_conf(options).items():
        spark.conf.set(key, value)
    for warning in warnings:
        log.warning("%s", warning)
    log.info("limits of adaptive_batch: %s", "; ".join(LIMITS))
    return AdaptiveBatch(spark, options, warnings)


class AdaptiveBatch:
    """A session that `adaptive_batch` has configured. `adaptive_batch` returns it.

    Attributes:
        options: the input of the rule.
        warnings: what prevents Spark from following the rule.
    """

    def __init__(self, spark: Any, options: BatchOptions, warnings: tuple[str, ...]) -> None:  # noqa: ANN401
        self.options = options
        self.warnings = warnings
        self._spark = spark

    def read(self, *, with_tasks: bool = False) -> Application:
        """Read the application's stages so far from Spark's REST API; `with_tasks` adds the times of each task.

        Raises:
            BatchReportError: the application has no UI, or the UI does not answer.
        """
        try:
            context = self._spark.sparkContext
            ui, app = context.uiWebUrl, context.applicationId
        except Exception as error:
            raise BatchReportError(
                f"the session has no SparkContext: it is stopped, or it is a session of Spark Connect; {INSTEAD}"
            ) from error
        if not ui:
            raise BatchReportError(
                f"Spark's REST API is off (spark.ui.enabled=false): set spark.ui.enabled=true, or {INSTEAD}"
            )
        _await_events(context)
        return read_rest(ui, app, with_tasks=with_tasks)

    def report(self, plot: str | Path | None = None) -> str:
        """Compare, for each stage, the rule's parallelism with Spark's, as a table; `plot` also draws it as PNG.

        Raises:
            BatchReportError: the application has no UI, or the UI does not answer.
            ModuleNotFoundError: `plot` is set and matplotlib (extra plot) is not installed.
            OSError: the picture cannot be written.
        """
        return _report(self.read(with_tasks=plot is not None), self.options, self.warnings, plot)


def batch_report(event_log: str | Path, plot: str | Path | None = None) -> str:
    """Report on an application from its event log. The options are taken from the settings of its last stage.

    The log is a file, or the directory `eventlog_v2_...` of a rolled log. It may be truncated. `plot` is the PNG file
    to draw.

    Raises:
        BatchReportError: the file is not an event log, or its compression is not supported.
        ModuleNotFoundError: `plot` is set and matplotlib (extra plot) is not installed.
        OSError: a file cannot be read or written.
    """
    application = read_event_log(event_log)
    warnings = (
        []
        if application.conf.get(PARALLELISM_FIRST) == "false"
        else ["the application did not run under adaptive_batch: the rule is applied with the settings that it had"]
    )
    return _report(application, _options_of(application.conf), warnings, plot)


def _report(application: Application, options: BatchOptions, warnings: Sequence[str], plot: str | Path | None) -> str:
    if plot is not None:
        from autoscaler.injob.batch_plot import draw  # noqa: PLC0415 - matplotlib is an extra

        draw(application, options, Path(plot))
    return table(application, options, warnings)


def batch_conf(options: BatchOptions) -> dict[str, str]:
    """Spark's settings of a session for the options."""
    rule = options.settings
    volume = rule.avg_data_volume_per_task
    conf = {
        # By default Spark divides the data among all cores, down to 1 MB per task.
        PARALLELISM_FIRST: "false",
        ADVISORY: f"{volume}b",
        # Flink has no minimum size, and Spark's takes precedence over min_parallelism.
        "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1b",
        # Spark only merges partitions, except that it splits skewed ones. So it starts with the maximum.
        INITIAL_PARTITIONS: str(rule.max_parallelism),
        "spark.sql.adaptive.skewJoin.enabled": "true",
        "spark.sql.adaptive.skewJoin.skewedPartitionFactor": str(SKEWED_FACTOR),
        # Flink and Spark use 256 MB for 64 MB per task; other volumes are scaled in proportion.
        "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": f"{SKEWED_FACTOR * volume}b",
    }
    if rule.min_parallelism > 1:  # Spark logs a warning if this setting is set, whatever its value
        conf[MIN_PARTITIONS] = str(rule.min_parallelism)
    if options.default_source_parallelism is not None:
        conf[SOURCE_PARTITIONS] = str(options.default_source_parallelism)
        # Without this setting a task reads at most 128 MB, so larger inputs have more tasks.
        conf[MAX_SOURCE_PARTITIONS] = str(options.default_source_parallelism)
    return conf


def parse_size(name: str, given: object) -> int:
    """Parse a size in Spark's format into bytes: `64m`, `1gb`, `512` (bytes), or a whole number of bytes.

    Raises:
        ValueError: `given` is not a size, or not above 0; the message names the option.
    """
    found = None if isinstance(given, bool) else re.fullmatch(r"(\d+)(?:([kmgtp])b?|b)?", str(given).strip().lower())
    size = int(found[1]) << 10 * " kmgtp".index(found[2] or " ") if found else 0
    # The skew threshold is SKEWED_FACTOR times the size, and Spark reads numbers below 2 ** 63.
    if not 0 < size < (1 << 63) // SKEWED_FACTOR:
        raise ValueError(
            f"{name}: is {given!r}, expected a size above 0 as Spark writes it, such as '64m' or '1g', or bytes"
        )
    return size


def _options(volume: object, least: object, most: object, source: object) -> BatchOptions:
    size = parse_size("avg_data_volume_per_task", volume)
    least, most = _count("min_parallelism", least), _count("max_parallelism", most)
    if least > most:
        raise ValueError(f"min_parallelism: is {least}, expected max_parallelism ({most}) or less")
    settings = BatchSettings(avg_data_volume_per_task=size, min_parallelism=least, max_parallelism=most)
    parallelism = None if source is None else _count("default_source_parallelism", source)
    return BatchOptions(settings=settings, default_source_parallelism=parallelism)


def _count(name: str, given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 0 < given < 1 << 31:
        raise ValueError(f"{name}: is {given!r}, expected a number of tasks of 1 or more")
    return given


def _options_of(conf: Mapping[str, str]) -> BatchOptions:
    """Derive the options from an application's settings; a missing setting has Spark's default."""
    least = int(conf.get(MIN_PARTITIONS, "1"))
    most = int(conf.get(INITIAL_PARTITIONS, conf.get(SHUFFLE_PARTITIONS, "200")))
    source = conf.get(SOURCE_PARTITIONS)
    return _options(conf.get(ADVISORY, "64m"), least, max(least, most), int(source) if source else None)


_READ = (
    *_SWITCHES,
    *("spark.master", "spark.driver.memory", "spark.executor.memory", "spark.executor.cores", "spark.task.cpus"),
    "spark.ui.enabled",
)


def _read_conf(spark: Any) -> dict[str, str]:  # noqa: ANN401 - see adaptive_batch
    return {key: value for key in _READ if (value := spark.conf.get(key, None)) is not None}


def _warnings(options: BatchOptions, conf: Mapping[str, str], queries: Sequence[str]) -> Iterator[str]:
    """List the settings and active streaming queries that prevent Spark from following the options."""
    rule = options.settings
    for key in _SWITCHES:
        if conf.get(key, "true").lower() != "true":
            yield (
                f"{key} is false, so stages keep spark.sql.shuffle.partitions tasks whatever they read; "
                f'spark.conf.set("{key}", "true") lets adaptive_batch work'
            )
    memory = _task_memory(conf)
    if rule.avg_data_volume_per_task > memory:
        yield (
            f"avg_data_volume_per_task is {rule.avg_data_volume_per_task} bytes, compressed, and a task has at most "
            f"{memory} bytes of its executor's memory: expect spilling to disk; choose a smaller volume or more memory"
        )
    if rule.min_parallelism > 1:
        yield (
            f"min_parallelism={rule.min_parallelism} is a hint to Spark (minPartitionNum): a stage can have a few more "
            "tasks, or fewer if its keys fill fewer partitions"
        )
    if queries:
        yield (
            f"the session has streaming queries ({', '.join(map(str, queries))}), and adaptive_batch is for batch: its "
            "settings also apply to queries without state; queries with state run without adaptive execution; start "
            "streaming queries in a session of their own (spark.newSession())"
        )
    if conf.get("spark.ui.enabled", "true").lower() != "true":
        yield "spark.ui.enabled is false, so report() cannot read the stages; batch_report(path) reads the event log"


def _task_memory(conf: Mapping[str, str]) -> int:
    """The bytes of heap that a task has while its executor is full; an unknown number of cores counts as one."""
    local = re.fullmatch(r"local(?:\[(\d+|\*).*\])?", conf.get("spark.master", ""))
    key = "spark.driver.memory" if local else "spark.executor.memory"
    cores = local[1] if local else conf.get("spark.executor.cores")
    tasks = int(cores or "1") // int(conf.get("spark.task.cpus", "1")) if cores != "*" else 1
    memory = conf.get(key, "1g")
    # Spark reads memory without a unit as MiB.
    return parse_size(key, f"{memory}m" if memory.isdecimal() else memory) // max(1, tasks)


def _await_events(context: Any) -> None:  # noqa: ANN401 - a SparkContext
    """Wait until Spark has processed its events, so that the REST API shows the latest stages."""
    try:
        context._jsc.sc().listenerBus().waitUntilEmpty(10_000)  # noqa: SLF001 - no other way
    except Exception:
        log.warning("Spark's events are late: the last stages may be missing in the report", exc_info=True)
