"""Rescales, found in observations and decisions: when, why, and how long each phase took.

A change between two observations is dated in the middle of them. That is no estimate of when it was, as requests are
made right after an observation: the earliest and latest times are kept for `core.censored`. The time since which a job
runs, where it is reported, is exact.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from autoscaler.core.model import Cause, Direction, JobState, Reason
from autoscaler.history.schema import RESCALES

FOLLOWED_S = 6 * 3600
"""A rescale is followed for this long: later changes have other causes, and only the next day is needed."""

GAP_S = 3600
"""A change in a gap this long is not counted: there may have been several, at any time."""

REQUEST_S = 120
"""A target shows a requested size within this time; a later change was requested by another controller."""

CAUGHT_UP_S = 10.0
"""Caught up: the lag is at most what is processed in this many seconds."""


def find(observations: DataFrame, decisions: DataFrame, tasks: int | None = None) -> DataFrame:
    """The rescales of observations and decisions, as rows of the table `rescales`.

    A rescale begins when the desired size of the target changes: `request` where a decision requested it, from that
    decision on, else `external`; or when replicas are lost (`loss`; `before` is the number left). It is followed until
    the next one begins, for six hours at most.

    Args:
        observations: the table of a dataset, or a part of it.
        decisions: likewise.
        tasks: number of tasks, each of which sorts its clusters in memory; None: chosen by Spark.
    """
    stream = _stream(observations, decisions)
    if tasks is not None:
        stream = stream.repartition(tasks, "cluster")
    return _summarized(_with_phases(_with_events(stream)))


def _stream(observations: DataFrame, decisions: DataFrame) -> DataFrame:
    """Observations, and each request after the observation that led to it."""
    engine = F.col("engine")
    seen = observations.select(
        "cluster",
        "at",
        F.lit(0).alias("kind"),
        F.col("desired").alias("size"),
        "ready",
        "lag",
        "throughput",
        F.coalesce(F.col("metrics")["lag"]["over"], F.lit(0.0)).alias("over"),
        engine["job"].alias("job"),
        F.coalesce(engine["parallelism"], engine["slots"]).alias("used"),
        engine["max_parallelism"].alias("most"),
        engine["running_since"].alias("since"),
    )
    chosen = F.filter("recommendations", lambda one: one["replicas"] == F.col("proposed"))
    asked = decisions.where((F.col("desired") != F.col("current")) & ~F.coalesce("dry_run", F.lit(False))).select(
        "cluster",
        "at",
        F.lit(1).alias("kind"),
        F.struct(
            "at", F.col("desired").alias("size"), "reason", F.get(chosen, F.lit(0))["detail"].alias("detail")
        ).alias("asked"),
    )
    return seen.unionByName(asked, allowMissingColumns=True)


def _rows(begin: int, end: int) -> WindowSpec:
    """Rows of a cluster around a row. Not a constant: a window needs a session."""
    return Window.partitionBy("cluster").orderBy("at", "kind").rowsBetween(begin, end)


def _last(value: Column, when: Column) -> Column:
    return F.last(F.when(when, value), ignorenulls=True).over(_rows(Window.unboundedPreceding, -1))


def _apart(later: Column, earlier: Column) -> Column:
    """Seconds between two times."""
    return (F.unix_micros(later) - F.unix_micros(earlier)) / 1e6


def _middle(one: Column, other: Column) -> Column:
    return F.timestamp_micros(((F.unix_micros(one) + F.unix_micros(other)) / 2).cast("long"))


def _with_events(stream: DataFrame) -> DataFrame:
    """Observations with the number of their rescale, and `event`: its begin."""
    seen = F.col("kind") == 0
    runs = seen & (F.col("job") == JobState.RUNNING.value)
    # Between two observations there is at most one request.
    rows = stream.withColumn("next_at", F.first(F.when(seen, F.col("at")), ignorenulls=True).over(_rows(1, 2)))
    known = rows.select(
        "*",
        _last(F.struct("at", "size", "ready"), seen & F.col("size").isNotNull()).alias("before"),
        _last(F.col("at"), seen).alias("previous_at"),
        _last(F.struct("at", "next_at", "since"), runs & F.col("since").isNotNull()).alias("ran"),
        _last(F.col("used"), (runs | (seen & F.col("job").isNull())) & (F.col("used") > 0)).alias("used_before"),
        _last(F.col("asked"), ~seen).alias("request"),
    ).where(seen)
    at, size, before, request = F.col("at"), F.col("size"), F.col("before"), F.col("request")
    watched = _apart(at, before["at"]) <= GAP_S
    changed = (size != before["size"]) & watched
    lost = (size == before["size"]) & (F.col("ready") < size) & (before["ready"] >= before["size"]) & watched
    ours = changed & (request["size"] == size) & (_apart(before["at"], request["at"]) <= REQUEST_S)
    ours = F.coalesce(ours, F.lit(False))
    cause = (
        F.when(ours, Cause.REQUEST.value).when(changed, Cause.EXTERNAL.value).otherwise(Cause.LOSS.value).alias("cause")
    )
    event = F.struct(
        F.when(ours, request["at"]).otherwise(_middle(before["at"], at)).alias("at"),
        F.when(changed, before["size"]).otherwise(F.col("ready")).alias("before"),
        size.alias("after"),
        cause,
        F.when(ours, request["reason"]).alias("reason"),
        F.when(ours, request["detail"]).alias("detail"),
        before["size"].alias("size"),
        F.col("used_before").alias("used"),
    )
    up_to = _rows(Window.unboundedPreceding, Window.currentRow)
    marked = known.withColumn("event", F.when(changed | lost, event))
    return (
        marked.withColumn("number", F.count("event").over(up_to))
        .withColumn("event", F.last("event", ignorenulls=True).over(up_to))
        .where(F.col("event").isNotNull() & (_apart(at, F.col("event")["at"]) <= FOLLOWED_S))
    )


def _with_phases(rows: DataFrame) -> DataFrame:
    """The phases that each observation shows to be done, and when."""
    event, at, used, since = F.col("event"), F.col("at"), F.col("used"), F.col("since")
    up = event["after"] >= event["before"]
    middle = _middle(F.col("previous_at"), at)
    runs = F.coalesce(F.col("job").isin(JobState.RUNNING.value, JobState.IDLE.value), F.lit(True))
    ready = (F.col("ready") == event["after"]) | (up & (F.col("ready") > event["after"]))
    each = F.try_divide(event["used"], event["size"])  # slots of a replica, where all of them were used
    wanted = F.when((each >= 1) & (each == F.floor(each)), event["after"] * each)
    wanted = F.when(F.col("most").isNotNull(), F.least(wanted, F.col("most"))).otherwise(wanted)
    restarted = since > event["at"]
    reached = F.when(up, used >= wanted).otherwise(used <= wanted)
    # Where it is not known how much the job should use, its restart shows that it has absorbed the change.
    absorbed = runs & (used > 0) & ready & F.coalesce(reached, restarted)
    stood = F.col("ran")["at"], F.col("ran")["next_at"], F.col("ran")["since"]
    restarted_again = runs & (_apart(since, stood[2]) > 1)
    # Replicas that are removed on request stop right after the observation; else at any time between two.
    at_once = (event["cause"] == Cause.REQUEST.value) & ~up & (stood[0] <= event["at"])
    begin = F.when(at_once, event["at"]).otherwise(_middle(stood[0], F.least(stood[1], since)))
    flags = rows.select(
        "*",
        F.when(ready, middle).alias("ready_at"),
        F.when(absorbed, F.when(restarted, since).otherwise(middle)).alias("absorbed_at"),
        F.when(restarted_again, _apart(since, begin)).alias("stall"),
        F.when(
            restarted_again & ~F.coalesce(at_once, F.lit(False)),
            F.struct(stood[0].alias("at"), stood[1].alias("next_at"), since.alias("since")),
        ).alias("stood"),
        # Where the state of the job is not known, it is ready when its replicas are.
        F.coalesce(F.when(used.isNotNull(), absorbed).otherwise(ready), F.lit(False)).alias("taken"),
        (F.col("lag") <= CAUGHT_UP_S * F.col("throughput")).alias("even"),
    )
    earlier = Window.partitionBy("cluster", "number").orderBy("at").rowsBetween(Window.unboundedPreceding, -1)
    taken = F.coalesce(F.max("taken").over(earlier), F.lit(False))
    flags = flags.withColumn("was_taken", taken)
    caught = (F.col("was_taken") | F.col("taken")) & F.col("even")
    # A mean is half its interval old.
    caught_at = F.timestamp_micros((F.unix_micros(middle) - F.col("over") * 5e5).cast("long"))
    flags = flags.withColumn("caught_at", F.when(caught, caught_at))
    return flags.withColumn("was_caught", F.max(F.col("caught_at").isNotNull()).over(earlier))


def _summarized(rows: DataFrame) -> DataFrame:
    running = F.max(F.col("since").isNotNull())
    found = rows.groupBy("cluster", "number").agg(
        F.first("event").alias("event"),
        F.min("ready_at").alias("ready_at"),
        F.min_by("previous_at", "ready_at").alias("ready_after"),
        F.min("absorbed_at").alias("absorbed_at"),
        F.when(running, F.coalesce(F.sum(F.when(~F.col("was_taken"), F.col("stall"))), F.lit(0.0))).alias("stall_s"),
        F.count(F.when(~F.col("was_taken"), F.col("stall"))).alias("stalls"),
        F.max(F.when(~F.col("was_taken"), F.col("stood"))).alias("stood"),
        F.min("caught_at").alias("caught_at"),
        F.max(F.when(~F.coalesce("was_caught", F.lit(False)), F.col("lag"))).alias("lag_peak"),
        F.max(F.col("used").isNotNull()).alias("reports_use"),
    )
    event = F.col("event")
    following = F.lead(event["at"]).over(Window.partitionBy("cluster").orderBy("number"))
    settled = F.col("ready_at").isNotNull() & (F.col("absorbed_at").isNotNull() | ~F.col("reports_use"))
    least = F.greatest("caught_at", "absorbed_at", "ready_at")
    once = settled & (F.col("stalls") == 1)
    columns = {
        "at": event["at"],
        "before": event["before"],
        "after": event["after"],
        "direction": F.when(event["after"] >= event["before"], Direction.UP.value).otherwise(Direction.DOWN.value),
        "cause": event["cause"],
        "reason": event["reason"],
        "detail": event["detail"],
        "ready_s": _apart(F.col("ready_at"), event["at"]),
        "absorbed_s": _apart(F.col("absorbed_at"), event["at"]),
        "stall_s": F.when(settled, F.col("stall_s")),
        "caught_up_s": F.when(F.col("caught_at").isNotNull(), _apart(least, event["at"])),
        "ready_after_s": F.greatest(_apart(F.col("ready_after"), event["at"]), F.lit(0.0)),
        "stopped_after_s": F.when(once, F.greatest(_apart(F.col("stood")["at"], event["at"]), F.lit(0.0))),
        "stopped_before_s": F.when(
            once, _apart(F.least(F.col("stood")["next_at"], F.col("stood")["since"]), event["at"])
        ),
        "lag_peak": F.col("lag_peak"),
        "outcome": F.when(settled, Reason.SETTLED.value)
        .when(_apart(following, event["at"]) <= FOLLOWED_S, Reason.SUPERSEDED.value)
        .otherwise("unfinished"),
    }
    chosen = [column.alias(name) for name, column in columns.items()]
    return found.select("cluster", *chosen).withColumn("date", F.to_date("at")).select(*RESCALES.names)
