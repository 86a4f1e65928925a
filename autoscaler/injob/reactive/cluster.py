"""The executors and FAIR pools of a Spark application: the interface to Spark's own scheduler in the driver.

This module calls the driver's JVM, because PySpark has no public API for this. Spark's REST API reads the same
`SparkContext.statusStore`, and dynamic allocation uses the same scheduler backend to add and remove executors.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

from autoscaler.injob.reactive.proportions import Pool
from autoscaler.injob.reactive.snapshot import Executor
from autoscaler.injob.report import query_listener

READ = frozenset({"id", "hostPort", "totalCores", "activeTasks", "completedTasks", "isActive", "addTime", "removeTime"})
"""The properties of an executor that `seen` reads."""

LAST_JOBS = 5
"""How many of a query's last Spark jobs are examined for the widest stage: a batch has one or a few jobs."""

log = logging.getLogger("autoscaler.injob.reactive")


class Executors:
    """The executors of one application."""

    def __init__(self, spark: Any) -> None:  # noqa: ANN401 - a SparkSession
        self._context = spark.sparkContext
        self._jvm_context = self._context._jsc.sc()  # noqa: SLF001 - see above
        self._store = self._jvm_context.statusStore()
        self._jvm = self._context._jvm  # noqa: SLF001 - see above
        self._summaries = self._store.store()
        self._summary = self._jvm.java.lang.Class.forName("org.apache.spark.status.ExecutorSummaryWrapper")
        self._mapper = _mapper(self._jvm)
        conf = self._context.getConf()
        self._cpus = int(conf.get("spark.task.cpus", "1"))
        self._configured = int(conf.get("spark.executor.cores", "0")) // self._cpus
        self._decommissions = conf.get("spark.decommission.enabled", "false").lower() == "true"
        self._local = str(self._context.master).split("[")[0] == "local"
        # A standalone Master assigns the executors that exist. YARN and Kubernetes start as many as are requested.
        standalone = str(self._context.master).startswith(("spark://", "local-cluster"))
        self._most = math.inf if standalone else int(conf.get("spark.executor.instances", "2"))
        self._limit: int | None = None
        self._active = 0
        self._leaving: set[str] = set()

    def seen(self) -> tuple[Executor, ...]:
        """All present and former executors in Spark's status store; in local mode the driver is the executor."""
        # One JSON text, as in Spark's REST API: a JVM call for each property of each executor takes far longer.
        found = json.loads(self._mapper.writeValueAsString(self._store.executorList(False)))
        return tuple(
            Executor(
                id=one["id"],
                address=one["hostPort"],
                slots=one["totalCores"] // self._cpus,
                busy=one["activeTasks"],
                done=one["completedTasks"],
                active=one["isActive"],
                added=one["addTime"] / 1000,
                removed=None if one["removeTime"] is None else one["removeTime"] / 1000,
            )
            for one in found
            if self._local or one["id"] != "driver"
        )

    def changed(self) -> bool:
        """Whether the number of active executors has changed since the last call; this costs one JVM call."""
        before, self._active = self._active, self._summaries.count(self._summary, "active", True)
        return bool(self._active != before)

    def widest_stage(self, run: str) -> int:
        """The tasks of the widest stage among the last Spark jobs of a query's run; 0 if there is none."""
        return widest_stage(self._context.statusTracker(), run)

    def runs_job(self, run: str) -> bool:
        """Whether a Spark job of a query's run is active: a batch runs its jobs after planning."""
        active = self._context.statusTracker().getActiveJobsIds()
        return any(self._store.job(number).jobGroup().contains(run) for number in active)

    def stopped(self) -> bool:
        """Whether Spark has stopped the application, for example because its Master removed it."""
        return bool(self._jvm_context.isStopped())

    def reachable(self) -> bool:
        """Whether the driver's JVM answers."""
        try:
            self._jvm.java.lang.System.nanoTime()
        except Exception:  # noqa: BLE001 - py4j raises whatever its socket does
            return False
        return True

    def close_idle_connections(self) -> None:
        """Close the connections to Python that no thread of the JVM uses at this moment.

        py4j gives each JVM thread that calls Python (`foreachBatch`, a listener) a connection with a thread in Python.
        It keeps both after the JVM thread has ended, so each restart of a query would leave one more. A JVM thread that
        still runs gets a new connection when it needs one.
        """
        from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]  # noqa: PLC0415 - only in a driver

        server = JavaObject("GATEWAY_SERVER", self._context._gateway._gateway_client)  # noqa: SLF001 - as PySpark does
        server.getCallbackClient().periodicCleanup()

    def limit(self, slots: int, executors: Iterable[Executor]) -> bool:
        """Limit the executors to `slots` slots in total: release excess executors, and accept no others.

        Returns whether the cluster manager has accepted the limit. If it has not, or if this method raises, the next
        call tries again.

        If `spark.decommission.enabled` is true, a released executor finishes its tasks first. An executor of which only
        some slots are in excess stays. On YARN and Kubernetes the method never requests more than
        `spark.executor.instances`.
        """
        # Release the newest executors first: the old ones have the state.
        active = sorted((one for one in executors if one.active), key=lambda one: (one.busy, -_number(one.id)))
        each = max((one.slots for one in active), default=self._configured)
        if self._local or not each:
            return True
        most = int(min(self._most, -(-slots // each)))
        kept = [one for one in active if one.id not in self._leaving]
        beyond = kept[: max(0, len(kept) - most)]
        for one in beyond:
            self._release(one.id)
            self._leaving.add(one.id)
            log.info("executor %s is released", one.id)
        if most != self._limit or beyond:
            nothing = self._jvm.PythonUtils.toScalaMap({})
            if not self._jvm_context.requestTotalExecutors(most, 0, nothing):
                return False
            self._limit = most
        return True

    def _release(self, name: str) -> None:
        if not self._decommissions:
            self._jvm_context.killExecutor(name)
            return
        spark, option = self._jvm.org.apache.spark.scheduler, self._jvm.scala.Option
        info = spark.ExecutorDecommissionInfo("beyond the bounds of the reactive job", option.empty())
        # `limit` sets the target number of executors separately: this call must not lower it again.
        self._jvm_context.schedulerBackend().decommissionExecutor(name, info, False, False)


def widest_stage(tracker: Any, run: str) -> int:  # noqa: ANN401 - a StatusTracker
    """The tasks of the widest stage among the last Spark jobs of a query's run; 0 if there is none."""
    # A query's run is the group of its jobs.
    jobs = (tracker.getJobInfo(number) for number in sorted(tracker.getJobIdsForGroup(run))[-LAST_JOBS:])
    stages = (tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds)
    return max((stage.numTasks for stage in stages if stage), default=0)


def _mapper(jvm: Any) -> Any:  # noqa: ANN401 - an ObjectMapper
    """A JSON mapper for executors that writes only READ: most of an executor's forty properties concern its memory."""
    jackson = jvm.com.fasterxml.jackson
    mapper = jackson.databind.ObjectMapper().registerModule(jackson.module.scala.DefaultScalaModule())
    summary = jvm.java.lang.Class.forName("org.apache.spark.status.api.v1.ExecutorSummary")
    ignored = jvm.java.util.HashSet()
    for method in summary.getMethods():
        if method.getName() not in READ:
            ignored.add(method.getName())
    ignorals = jackson.annotation.JsonIgnoreProperties.Value.forIgnoredProperties(ignored)
    mapper.configOverride(summary).setIgnorals(ignorals)
    return mapper


def end_after_batch(query: Any) -> bool:  # noqa: ANN401 - a StreamingQuery
    """Make a query end after the batch whose jobs run now. Spark's own `stop` would interrupt that batch or the next.

    Returns whether this Spark version supports this.
    """
    try:
        # `stop` sets the same state before it interrupts the query. In this state a query begins no further batch, and
        # ends a batch that is still being planned.
        state = query._jsq.streamingQuery().state()  # noqa: SLF001 - there is no public way
        kind = state.get().getClass()
        state.set(kind.forName(kind.getPackageName() + ".TERMINATED$").getField("MODULE$").get(None))
    except Exception:
        log.debug(
            "this Spark version cannot end a query after its batch: the query is stopped between batches if possible",
            exc_info=True,
        )
        return False
    return True


POOL = "spark.scheduler.pool"


class Pools:
    """The pools of an application's FAIR scheduler, one for each query name."""

    def __init__(self, spark: Any, names: Iterable[str]) -> None:  # noqa: ANN401 - a SparkSession
        self._context = spark.sparkContext
        self._names = frozenset(names)
        self._spark = self._context._jvm.org.apache.spark.scheduler  # noqa: SLF001 - see above
        self._root = self._context._jsc.sc().taskScheduler().rootPool()  # noqa: SLF001 - see above

    def problem(self) -> str | None:
        """Why this application cannot have pools; None: it can."""
        mode = self._root.schedulingMode().toString()
        if mode != "FAIR":
            return (
                f"proportions: need pools, and spark.scheduler.mode is {mode}, expected FAIR; start the session with "
                "reactive_conf(), or set spark.scheduler.mode=FAIR before the session starts"
            )
        if type(self._context._gateway).__name__ != "ClientServer":  # noqa: SLF001 - see above
            return "proportions: need a JVM thread for each Python thread; remove PYSPARK_PIN_THREAD=false"
        return None

    def set(self, wanted: Mapping[str, Pool]) -> None:
        """Create the pools, and replace those that differ. Call this only while their queries do not run.

        A pool's weight and minimum are fixed when it is created, and Spark would never start the tasks in a pool that
        was replaced.
        """
        for name, pool in wanted.items():
            before = self._root.getSchedulableByName(_pool(name))
            if before is not None:
                if (before.weight(), before.minShare()) == (pool.weight, pool.least):
                    continue
                self._root.removeSchedulable(before)
            inside = self._spark.SchedulingMode.FIFO()
            self._root.addSchedulable(self._spark.Pool(_pool(name), inside, pool.least, pool.weight))
            log.info("FAIR pool of query %s: weight %d, minShare %d", name, pool.weight, pool.least)

    def listener(self) -> Any:  # noqa: ANN401 - a StreamingQueryListener
        """A listener that puts each of the queries into its pool when it starts."""

        def started(_: str, __: str, name: str | None) -> None:
            # Spark calls this in the query's own thread before the first batch, and waits until it returns.
            if name in self._names:
                self._context.setLocalProperty(POOL, _pool(name))

        return query_listener(started=started)


def _pool(query: str) -> str:
    """The name of a query's pool. It differs from the names of the application's own pools, such as `default`."""
    return f"query {query}"


def _number(name: str) -> int:
    return int(name) if name.isdigit() else 0
