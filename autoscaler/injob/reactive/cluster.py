"""The executors of a Spark application, as its driver sees them: the edge to Spark's own scheduler.

What is asked of the driver's JVM here has no public way in Python: `SparkContext.statusStore` is what Spark's REST API
answers from, and the scheduler's backend is where dynamic allocation adds and removes executors.
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
"""Properties of an executor that `seen` reads."""

LAST_JOBS = 5
"""Spark jobs of a query whose stages are looked at: one batch has one or a few."""

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
        # A standalone Master gives what there is. YARN and Kubernetes make as many executors as are requested.
        standalone = str(self._context.master).startswith(("spark://", "local-cluster"))
        self._most = math.inf if standalone else int(conf.get("spark.executor.instances", "2"))
        self._limit: int | None = None
        self._active = 0
        self._leaving: set[str] = set()

    def seen(self) -> tuple[Executor, ...]:
        """All that are or were there, by Spark's status store; in local mode the driver is the executor."""
        # As JSON, as in Spark's REST API: a call into the JVM for each property of each executor takes far longer.
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
        """Whether one has come or gone since the last call, as far as their number tells: one call into the JVM."""
        before, self._active = self._active, self._summaries.count(self._summary, "active", True)
        return bool(self._active != before)

    def widest_stage(self, run: str) -> int:
        """Tasks of the widest stage among the last Spark jobs of a query's run; 0 if there is none."""
        return widest_stage(self._context.statusTracker(), run)

    def runs_job(self, run: str) -> bool:
        """Whether a Spark job of a query runs: the work of a batch, after its planning."""
        active = self._context.statusTracker().getActiveJobsIds()
        return any(self._store.job(number).jobGroup().contains(run) for number in active)

    def stopped(self) -> bool:
        """Whether Spark has stopped the application, as when its Master has given it up."""
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

        py4j gives each thread that calls Python (`foreachBatch`, a listener) a connection with a thread in Python, and
        keeps both when the thread has ended: one more for each restart of a query. A thread that goes on gets a new
        connection when it needs one.
        """
        from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]  # noqa: PLC0415 - only in a driver

        server = JavaObject("GATEWAY_SERVER", self._context._gateway._gateway_client)  # noqa: SLF001 - as PySpark does
        server.getCallbackClient().periodicCleanup()

    def limit(self, slots: int, executors: Iterable[Executor]) -> bool:
        """Hold executors with so many slots at most: give back those beyond, and take no other ones.

        Returns whether the cluster has taken that; where it has not, or something is raised, the next call tries again.

        An executor that has tasks ends them first, if `spark.decommission.enabled` is true. Where only a part of an
        executor's slots is beyond, it stays. On YARN and Kubernetes it never asks for more than
        `spark.executor.instances`.
        """
        # The newest go first: the old ones have the state.
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
        # The number of executors to hold is set by itself: this must not lower it once more.
        self._jvm_context.schedulerBackend().decommissionExecutor(name, info, False, False)


def widest_stage(tracker: Any, run: str) -> int:  # noqa: ANN401 - a StatusTracker
    """Tasks of the widest stage among the last Spark jobs of a query's run, their group; 0 if there is none."""
    jobs = (tracker.getJobInfo(number) for number in sorted(tracker.getJobIdsForGroup(run))[-LAST_JOBS:])
    stages = (tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds)
    return max((stage.numTasks for stage in stages if stage), default=0)


def _mapper(jvm: Any) -> Any:  # noqa: ANN401 - an ObjectMapper
    """What writes an executor as JSON: of its forty properties, most of them its memory's, only those that are read."""
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
    """Let a query end by itself after the batch whose jobs run: Spark's `stop` interrupts that, or the next one.

    Returns whether this Spark can do that.
    """
    try:
        # In the state that `stop` sets too, before it interrupts, a query begins no other batch. One that is being
        # planned it interrupts itself.
        state = query._jsq.streamingQuery().state()  # noqa: SLF001 - there is no public way
        kind = state.get().getClass()
        state.set(kind.forName(kind.getPackageName() + ".TERMINATED$").getField("MODULE$").get(None))
    except Exception:
        log.debug(
            "this Spark cannot end a query after its batch: it is stopped between batches where possible",
            exc_info=True,
        )
        return False
    return True


POOL = "spark.scheduler.pool"


class Pools:
    """The pools of an application's FAIR scheduler, one for each of the queries of these names."""

    def __init__(self, spark: Any, names: Iterable[str]) -> None:  # noqa: ANN401 - a SparkSession
        self._context = spark.sparkContext
        self._names = frozenset(names)
        self._spark = self._context._jvm.org.apache.spark.scheduler  # noqa: SLF001 - see above
        self._root = self._context._jsc.sc().taskScheduler().rootPool()  # noqa: SLF001 - see above

    def problem(self) -> str | None:
        """Why this application has no pools; None: it can have them."""
        mode = self._root.schedulingMode().toString()
        if mode != "FAIR":
            return (
                f"proportions: need pools, and spark.scheduler.mode is {mode}, expected FAIR; start the session with "
                "reactive_conf(), or set it before it is started"
            )
        if type(self._context._gateway).__name__ != "ClientServer":  # noqa: SLF001 - see above
            return "proportions: need threads that PySpark tells apart; remove PYSPARK_PIN_THREAD=false"
        return None

    def set(self, wanted: Mapping[str, Pool]) -> None:
        """Make the pools, or replace them where they differ: only while their queries do not run.

        A pool's numbers are fixed when it is made, and tasks in one that is replaced would never be started.
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
            # Spark calls it in the query's own thread, before its first batch, and waits for it.
            if name in self._names:
                self._context.setLocalProperty(POOL, _pool(name))

        return query_listener(started=started)


def _pool(query: str) -> str:
    """The pool of a query: of no name that the application's own pools have, among them `default`."""
    return f"query {query}"


def _number(name: str) -> int:
    return int(name) if name.isdigit() else 0
