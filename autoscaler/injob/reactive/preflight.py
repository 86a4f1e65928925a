"""The preflight check: Spark settings and properties of queries that prevent a reactive job from being elastic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autoscaler.core.wording import agree, count_of
from autoscaler.injob.reactive import proportions
from autoscaler.injob.reactive.cluster import widest_stage
from autoscaler.injob.reactive.conf import ROCKSDB
from autoscaler.injob.reactive.master import Master
from autoscaler.injob.reactive.options import Options
from autoscaler.ports import Severity
from autoscaler.schedulers.flink_durations import seconds

TEMPORARY = "temporary-"
"""The prefix of the temporary checkpoint directory that Spark creates for a query without a checkpoint."""

_EXECUTOR_TIMEOUTS = ("spark.storage.blockManagerHeartbeatTimeoutMs", "spark.storage.blockManagerSlaveTimeoutMs")
"""Both take precedence over spark.network.timeout."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that prevents a job from being elastic.

    Attributes:
        severity: ERROR: the job should not run, because it would lose or repeat records, or never start; WARNING: the
            job runs, but does not use added slots, or notices lost ones late; INFO: it is not known whether there is a
            problem.
        name: the setting or the subject.
        what: the problem and its consequence, with the numbers.
        advice: what to do.
    """

    severity: Severity
    name: str
    what: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFacts:
    """What is known of a query of the job.

    Attributes:
        name: the name that messages use.
        has_checkpoint: whether the query has a checkpoint of its own; None: unknown.
        source_partitions: the tasks of its first stage; None: unknown, for example before the first batch.
        state_partitions: the partitions of its state, fixed by its first batch; None: unknown, or the query is
            stateless.
        widest: the tasks of the widest stage of its last batches; 0: unknown.
        real_time: whether the query runs in real-time mode.
    """

    name: str
    has_checkpoint: bool | None = None
    source_partitions: int | None = None
    state_partitions: int | None = None
    widest: int = 0
    real_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The input of the checks.

    Attributes:
        conf: the application's Spark settings; a missing setting has Spark's default.
        master: the URL of the Master, such as `spark://host:7077` or `local[2]`.
        slots: the tasks that the executors can run at a time now.
        queries: the running queries.
        cluster: the Master's settings; if they are not known, they are not checked.
        repartitions: whether this Spark version can repartition state.
    """

    conf: Mapping[str, str]
    master: str
    slots: int
    queries: tuple[QueryFacts, ...] = ()
    cluster: Master = Master()  # noqa: RUF009 - it is frozen
    repartitions: bool = True

    @property
    def local(self) -> bool:
        """Whether the driver is the only executor."""
        return self.master.split("[")[0] == "local"

    @property
    def cluster_settings(self) -> Mapping[str, str] | None:
        """The Master's settings. A Master that the application starts itself has the application's settings."""
        return self.conf if self.master.startswith("local-cluster") else self.cluster.settings

    def is_true(self, key: str) -> bool:
        """Whether a setting that is false by default is true."""
        return self.conf.get(key, "false").strip().lower() == "true"

    def time(self, key: str, default: float, unit: str = "ms") -> float:
        """A setting as seconds; an unreadable value, which Spark refuses, counts as the default."""
        found = seconds(self.conf[key], unit) if key in self.conf else None
        return default if found is None else found


def _warning(name: str, what: str, advice: str) -> Finding:
    return Finding(Severity.WARNING, name, what, advice)


def _checkpoints(facts: Facts, _: Options) -> Iterator[Finding]:
    for query in facts.queries:
        if query.has_checkpoint is False:
            yield Finding(
                Severity.ERROR,
                "checkpoint",
                f"{query.name} has no checkpoint of its own: each restart would lose or repeat records",
                'start it with .option("checkpointLocation", ...), on storage that driver and executors share',
            )


def _local_master(facts: Facts, options: Options) -> Iterator[Finding]:
    if facts.local:
        short = facts.slots < options.min_slots
        yield Finding(
            Severity.ERROR if short else Severity.WARNING,
            "spark.master",
            f"{facts.master} has {count_of(facts.slots, 'slot')}, and never gets others"
            + (f", fewer than min_slots, which is {options.min_slots}: the job would never start" if short else ""),
            "start the job on a cluster" + (f", or with min_slots={facts.slots} or fewer" if short else ""),
        )


def _core_limit(facts: Facts, options: Options) -> Iterator[Finding]:
    key, text = "spark.cores.max", facts.conf.get("spark.cores.max", "").strip()
    if not text.isdecimal() or facts.local:
        return
    slots = int(text) // max(1, int(facts.conf.get("spark.task.cpus", "1")))
    wanted = options.preferred_slots
    if slots < options.min_slots:
        cores = f"{count_of(int(text), 'core')} {agree(int(text), 'is', 'are')}"
        what = f"{cores} {count_of(slots, 'slot')}, fewer than min_slots, which is {options.min_slots}: it never starts"
        yield Finding(Severity.ERROR, key, what, f"start the job without {key}; preferred_slots is its bound")
    elif wanted is None or slots < wanted:
        bound = "all that come" if wanted is None else f"{wanted} (preferred_slots)"
        what = f"the job wants {bound} and gets {count_of(slots, 'slot')} at most: further workers get no executor"
        yield _warning(key, what, f"start the job without {key}; preferred_slots is its bound")


def _frozen_partitions(facts: Facts, options: Options) -> Iterator[Finding]:
    if _allows_repartition(options) and facts.repartitions:
        return
    for query in facts.queries:
        most = _most(query, options.most_slots or facts.slots, options)
        if query.state_partitions is not None and query.state_partitions < most and not query.real_time:
            yield _warning(
                "state partitions",
                f"{query.name} has had {query.state_partitions} since its first batch, for up to {most} slots: "
                f"{_idle(most - query.state_partitions, 'work')} on its state",
                f"set preferred_slots={query.state_partitions}, or repartition_state to allowed (Spark 4.2, RocksDB), "
                "or begin with a new checkpoint: that gets as many as spark.sql.shuffle.partitions says, two or three "
                "times the most slots",
            )


def _most(query: QueryFacts, slots: int, options: Options) -> int:
    """How many of the slots a query may use."""
    return proportions.most(options.proportions or {}, slots).get(query.name, slots)


def _idle(slots: int, verb: str) -> str:
    return f"{count_of(slots, 'slot')} never {agree(slots, f'{verb}s', verb)}"


def _repartition(facts: Facts, options: Options) -> Iterator[Finding]:
    key = "spark.sql.streaming.stateStore.providerClass"
    if not _allows_repartition(options):
        return
    if not facts.repartitions:
        yield _warning(
            "repartition_state",
            "it is allowed, but not supported here: repartitioning needs Spark 4.2 or later, without Spark Connect",
            "update Spark, or remove repartition_state",
        )
    elif facts.conf.get(key) != ROCKSDB:
        yield _warning(
            "repartition_state",
            f"it is allowed, but Spark can repartition only state in RocksDB, which {key} does not set",
            "start the session with reactive_conf(stateful=True), and the query with a new checkpoint",
        )


def _allows_repartition(options: Options) -> bool:
    return options.repartition_state == "allowed"


def _source_partitions(facts: Facts, options: Options) -> Iterator[Finding]:
    for query in facts.queries:
        slots = _most(query, min(facts.slots, options.most_slots or facts.slots), options)
        if query.source_partitions is not None and query.source_partitions < slots and not query.real_time:
            yield _warning(
                "source partitions",
                f"{query.name} has {query.source_partitions} for {slots} slots: "
                f"{_idle(slots - query.source_partitions, 'read')}",
                "give the source more partitions (Kafka: minPartitions), two or three times the most slots, or set "
                f"preferred_slots={query.source_partitions}",
            )


def _most_tasks(facts: Facts, options: Options) -> Iterator[Finding]:
    for query in facts.queries:
        most = _most(query, facts.slots, options)
        if most < facts.slots and query.widest > most:
            yield Finding(
                Severity.INFO,
                "proportions",
                f"{query.name} has a stage of {query.widest} tasks, and its max is {most} of {facts.slots} slots: it "
                "uses more while no other query wants them",
                "if it never may, let `build` take the maxima, and end each stage with "
                f'.coalesce(maxima["{query.name}"])',
            )


def _locality(facts: Facts, _: Options) -> Iterator[Finding]:
    if facts.local or all(query.state_partitions is None for query in facts.queries):
        return
    general = facts.time("spark.locality.wait", 3.0)
    waits = [facts.time(f"spark.locality.wait.{level}", general) for level in ("process", "node", "rack")]
    if any(waits):
        yield _warning(
            "spark.locality.wait",
            f"tasks wait {max(waits):g} s for the executor that has their state: while batches are short, new "
            "executors get almost nothing, and the loss of one costs 8 to 15 s instead of 3",
            "set spark.locality.wait=0s, or use reactive_conf(stateful=True), which sets it",
        )


def _real_time(facts: Facts, options: Options) -> Iterator[Finding]:
    for query in facts.queries:
        if query.real_time:
            known = query.source_partitions
            need = None if known is None else known + (query.state_partitions or 0)
            many = "one for each task of all its stages" if need is None else str(need)
            short = need is not None and options.most_slots is not None and options.most_slots < need
            yield Finding(
                Severity.ERROR if short else Severity.WARNING,
                "real-time mode",
                f"{query.name} holds its slots all the time ({many}): with fewer slots it fails, and more are useless"
                + (f"; the job takes {options.most_slots} at most" if short else ""),
                f"set min_slots and preferred_slots to {need or 'that number'}, or use a processing-time trigger",
            )


def _decommission(facts: Facts, _: Options) -> Iterator[Finding]:
    key = "spark.decommission.enabled"
    if not facts.local and not facts.is_true(key):
        yield _warning(
            key,
            "it is not true: if a worker is drained, its executor stays idle, and the executor's tasks fail in the end",
            f"set {key}=true for the job, as reactive_conf() does, and for the Master and the Workers",
        )
    settings = facts.cluster.settings
    if settings is not None and settings.get(key, "false").strip().lower() != "true":
        yield _warning(
            key,
            "it is not true for the Master, and perhaps not for its Workers: they cannot be drained, so tasks fail",
            f"start the Master and all Workers with -D{key}=true",
        )


def _heartbeats(facts: Facts, options: Options) -> Iterator[Finding]:
    if facts.local:
        return
    timeout = options.heartbeat_timeout
    advice = f"start the job with reactive_conf(heartbeat_timeout={timeout:g}), and do not set its time-outs elsewhere"
    against = f"contradicts heartbeat_timeout, which is {timeout:g} s"
    own = [key for key in _EXECUTOR_TIMEOUTS if key in facts.conf]
    key = own[0] if own else "spark.network.timeout"
    patience = facts.time(key, 120.0, "ms" if own else "s")
    beat = facts.time("spark.executor.heartbeatInterval", 10.0)
    check = facts.time("spark.network.timeoutInterval", 60.0)
    if beat > timeout / 2:
        what = f"{beat:g} s {against}: an executor that misses one beat would count as hung"
        yield _warning("spark.executor.heartbeatInterval", what, advice)
    if not timeout <= patience <= math.ceil(timeout):
        what = f"{patience:g} s {against}: a hung executor is given up {_late(patience, timeout)}"
        yield _warning(key, what, advice)
    if check > timeout / 2:
        what = (
            f"{check:g} s {against}: the driver checks for missing heartbeats only at this interval, and gives up a "
            "hung executor up to that much later"
        )
        yield _warning("spark.network.timeoutInterval", what, advice)
    key, whole, settings = "spark.worker.timeout", math.ceil(timeout), facts.cluster_settings
    worker = None if settings is None else seconds(settings.get(key, "60"), "s")
    if worker is not None and worker != whole:
        when = _late(worker, timeout)
        what = f"the Master's {worker:g} s {against}: it gives up a hung worker, and frees its cores, {when}"
        yield _warning(key, what, f"start the Master and all Workers with -D{key}={whole}")


def _late(actual: float, wanted: float) -> str:
    return f"{abs(actual - wanted):g} s too {'late' if actual > wanted else 'early'}"


def _dynamic_allocation(facts: Facts, _: Options) -> Iterator[Finding]:
    key = "spark.dynamicAllocation.enabled"
    if facts.is_true(key):
        yield _warning(
            key,
            "Spark adds and removes executors by idle time, but a streaming query's executors are never or always idle",
            f"set {key}=false, as reactive_conf() does",
        )


def _retries(facts: Facts, _: Options) -> Iterator[Finding]:
    key = "spark.deploy.maxExecutorRetries"
    limit = "-1" if facts.cluster_settings is None else facts.cluster_settings.get(key, "10").strip()
    if not limit.startswith("-"):
        yield _warning(
            key,
            f"the Master ends the application after {limit} lost executor{'' if limit == '1' else 's'} while none runs",
            f"start the Master with -D{key}=-1",
        )


def _unread_master(facts: Facts, options: Options) -> Iterator[Finding]:
    if facts.cluster.problem:
        wanted = {
            "spark.worker.timeout": math.ceil(options.heartbeat_timeout),
            "spark.decommission.enabled": "true",
            "spark.deploy.maxExecutorRetries": -1,
        }
        yield Finding(
            Severity.INFO,
            "Master",
            f"its settings could not be read, so they are not examined ({facts.cluster.problem})",
            "check that it was started with " + " ".join(f"-D{key}={value}" for key, value in wanted.items()) + ", "
            "which its web UI shows under /environment/; the Workers need the first two as well",
        )


_CHECKS = (
    _checkpoints,
    _local_master,
    _core_limit,
    _frozen_partitions,
    _repartition,
    _source_partitions,
    _most_tasks,
    _locality,
    _real_time,
    _decommission,
    _heartbeats,
    _dynamic_allocation,
    _retries,
    _unread_master,
)


def findings(facts: Facts, options: Options) -> tuple[Finding, ...]:
    """All problems that prevent a job from being elastic, errors first."""
    found = [finding for check in _CHECKS for finding in check(facts, options)]
    return tuple(sorted(found, key=lambda finding: list(Severity).index(finding.severity)))


def read_facts(spark: Any, *, slots: int | None = None, cluster: Master = Master()) -> Facts:  # noqa: ANN401, B008 - untyped, frozen
    """Read the facts of a live session (not Spark Connect) and of its running queries.

    Args:
        spark: the SparkSession.
        slots: the slots of the active executors; None: Spark's default parallelism, which lags behind.
        cluster: the Master as `read_master` returns it.
    """
    context = spark.sparkContext
    conf = dict(context.getConf().getAll())
    return Facts(
        conf=conf,
        master=context.master,
        slots=context.defaultParallelism // int(conf.get("spark.task.cpus", "1")) if slots is None else slots,
        queries=tuple(_read_query(context, query) for query in spark.streams.active),
        cluster=cluster,
        repartitions=hasattr(spark, "_streamingCheckpointManager"),
    )


def _read_query(context: Any, query: Any) -> QueryFacts:  # noqa: ANN401 - untyped
    progress = query.lastProgress
    state = [one.numShufflePartitions for one in progress.stateOperators] if progress else []
    execution = query._jsq.streamingQuery()  # noqa: SLF001 - checkpoint and trigger have no public way
    return QueryFacts(
        name=query.name or f"query {query.id}",
        has_checkpoint=not execution.resolvedCheckpointRoot().rsplit("/", 1)[-1].startswith(TEMPORARY),
        source_partitions=_first_stage(context.statusTracker(), str(query.runId)),
        state_partitions=min(state, default=None),
        widest=widest_stage(context.statusTracker(), str(query.runId)),
        real_time=execution.trigger().toString().startswith("RealTimeTrigger"),
    )


def _first_stage(tracker: Any, run: str) -> int | None:  # noqa: ANN401 - untyped
    """The tasks of the first stage of a query's last Spark job: the stage that reads the source."""
    for job in sorted(tracker.getJobIdsForGroup(run), reverse=True)[:1]:
        stages = sorted(info.stageIds) if (info := tracker.getJobInfo(job)) else ()
        for stage in stages[:1]:
            return found.numTasks or None if (found := tracker.getStageInfo(stage)) else None
    return None
