"""How the queries of one job divide its slots."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.injob import JobFailedError, ReactiveJob, reactive_conf
from autoscaler.injob.reactive import Options, OptionsError
from autoscaler.injob.reactive.cluster import Pools
from autoscaler.injob.reactive.proportions import Pool, pools, problems, shares
from autoscaler.injob.reactive.proportions import most as maxima
from autoscaler.injob.reactive.snapshot import State
from tests.e2e.test_local_target import until
from tests.injob.test_reactive_job import rate, spark

__all__ = ["spark"]


@pytest.mark.parametrize(
    ("proportions", "expected"),
    [
        ({"a": (0.0, 0.5, 1.0), "b": (0.0, 0.5, 1.0)}, {"a": 0.5, "b": 0.5}),
        ({"a": (0.0, 0.2, 1.0), "b": (0.0, 0.3, 1.0)}, {"a": 0.4, "b": 0.6}),
        ({"a": (0.0, 0.2, 0.3), "b": (0.0, 0.2, 1.0)}, {"a": 0.3, "b": 0.7}),
        ({"a": (0.0, 0.2, 0.3), "b": (0.0, 0.2, 0.4)}, {"a": 0.3, "b": 0.4}),
        ({"a": (0.0, 0.1, 1.0)}, {"a": 1.0}),
    ],
)
def test_slots_beyond_the_targets_are_divided_up_to_the_maxima(
    proportions: dict[str, tuple[float, float, float]], expected: dict[str, float]
) -> None:
    assert shares(proportions) == pytest.approx(expected)


def test_a_minimum_is_at_least_one_slot_and_is_rounded_down() -> None:
    proportions = {"a": (0.5, 0.6, 1.0), "b": (0.01, 0.3, 0.3), "c": (0.0, 0.1, 0.1)}
    assert pools(proportions, 7) == {"a": Pool(600, 3), "b": Pool(300, 1), "c": Pool(100, 0)}
    assert pools({"a": (0.29, 1.0, 1.0)}, 100) == {"a": Pool(1000, 29)}


def test_a_maximum_is_rounded_down_and_at_least_one_task() -> None:
    proportions = {"a": (0.0, 0.6, 0.6), "b": (0.0, 0.1, 0.1), "c": (0.0, 0.29, 0.29)}
    assert maxima(proportions, 5) == {"a": 3, "b": 1, "c": 1}
    assert maxima(proportions, 100) == {"a": 60, "b": 10, "c": 29}


@pytest.mark.parametrize(
    ("proportions", "says"),
    [
        ({}, ["proportions: is {}, expected shares of the slots by query"]),
        ([1], ["proportions: is \\[1\\], expected"]),
        ({"a": 0.5}, ["of 'a' is 0.5, expected min, target and max"]),
        ({"a": (0.1, 0.5)}, ["of 'a' is \\(0.1, 0.5\\)"]),
        ({"a": (0.1, 0.5, 1.5)}, ["each from 0 to 1"]),
        ({"a": (0.1, math.nan, 1.0)}, ["nan"]),
        ({"a": (0.0, 0.0, 1.0)}, ["the target above 0"]),
        ({"a": (False, 0.5, True)}, ["False"]),
        ({3: (0.1, 0.5, 1.0)}, ["of 3 is"]),
        ({"a": (0.5, 0.4, 0.6)}, ["has min 0.5, target 0.4 and max 0.6, which are not in this order"]),
        (
            {"a": (0.7, 0.6, 0.6), "b": (0.5, 0.6, 0.5)},
            [
                "of 'a' has min 0.7",
                "of 'b' has min 0.5, target 0.6 and max 0.5",
                "the min of all queries is 1.2 together, above 1",
                "the target of all queries is 1.2",
            ],
        ),
    ],
)
def test_all_contradicting_proportions_are_named(proportions: Any, says: list[str]) -> None:
    with pytest.raises(OptionsError) as raised:
        Options(proportions=proportions)
    found = raised.value.problems
    assert len(found) == len(says)
    for text, expected in zip(found, says, strict=True):
        with pytest.raises(OptionsError, match=expected):
            raise OptionsError(text)


def test_proportions_are_shown() -> None:
    options = Options(proportions={"orders": (0.2, 0.5, 0.8), "clicks": (0, 0.5, 1)})
    assert options.shown()["reactive.proportions"] == "orders 0.2/0.5/0.8, clicks 0/0.5/1"


PROPORTION = st.tuples(st.floats(0, 1), st.floats(0.001, 1), st.floats(0, 1)).map(sorted).map(tuple)


@given(st.dictionaries(st.text(min_size=1), PROPORTION, min_size=1, max_size=5), st.integers(1, 100))
def test_shares_are_from_target_to_maximum_and_leave_nothing_that_a_query_may_have(
    proportions: Any, slots: int
) -> None:
    if list(problems(proportions)):
        return
    found = shares(proportions)
    assert sum(found.values()) <= 1 + 1e-6
    for name, (_, target, most) in proportions.items():
        assert target - 1e-6 <= found[name] <= most + 1e-6
    full = all(found[name] >= most - 1e-6 for name, (_, _, most) in proportions.items())
    assert full or sum(found.values()) >= 1 - 1e-6
    assert all(pool.weight >= 1 for pool in pools(proportions, slots).values())


@pytest.mark.e2e
def test_a_session_without_the_fair_scheduler_is_refused_with_the_remedy(spark: Any) -> None:
    with pytest.raises(OptionsError, match=r"spark\.scheduler\.mode is FIFO, expected FAIR; start the session with"):
        ReactiveJob(spark, lambda spark: spark, proportions={"a": (0, 1, 1)})


@pytest.fixture
def fair(spark: Any) -> Any:
    """A session with the FAIR scheduler, in place of the other."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    spark.stop()
    conf = {**reactive_conf(), "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    session = SparkSession.builder.master("local[4]").config(map=conf).getOrCreate()
    yield session
    session.stop()


def busy(spark: Any, name: str, directory: Path) -> Any:
    """A query with 2000 tasks of 100 ms in each batch, without an end."""
    source = (
        spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2000).option("numPartitions", 2000).load()
    )
    slow = source.selectExpr("value", "reflect('java.lang.Thread', 'sleep', bigint(100)) as slept")
    return slow.writeStream.format("noop").queryName(name).option("checkpointLocation", str(directory / name)).start()


def tasks(spark: Any, name: str) -> int:
    """Finished tasks in a query's pool."""
    store = spark.sparkContext._jsc.sc().statusStore()
    tracker = spark.sparkContext.statusTracker()
    (run,) = (live.runId for live in spark.streams.active if live.name == name)
    total = 0
    for job in tracker.getJobIdsForGroup(run):
        for stage in tracker.getJobInfo(job).stageIds:
            info = store.lastStageAttempt(stage)
            if info.numCompleteTasks():  # before the pool runs Spark shows the default pool
                assert info.schedulingPool() == f"query {name}"
            total += info.numCompleteTasks()
    return total


@pytest.mark.e2e
def test_each_query_has_its_share_of_the_slots_while_others_compete(fair: Any, tmp_path: Path) -> None:
    calls: list[int] = []

    def build(spark: Any, slots: int) -> Any:
        calls.append(slots)
        return [busy(spark, name, tmp_path) for name in ("large", "small")]

    def done() -> tuple[int, int]:
        return tasks(fair, "large"), tasks(fair, "small")

    job = ReactiveJob(fair, build, proportions={"large": (0.5, 0.75, 1), "small": (0, 0.25, 0.25)})
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        until(lambda: job.snapshot().state is State.EXECUTING and all(done()))
        before = done()
        until(lambda: done()[0] >= before[0] + 150)
        after = done()
    finally:
        job.cancel()
        thread.join(60)
    assert calls == [4]
    assert after[0] - before[0] > 2 * (after[1] - before[1]) > 0
    root = fair.sparkContext._jsc.sc().taskScheduler().rootPool()
    large = root.getSchedulableByName("query large")
    assert (large.weight(), large.minShare()) == (750, 2)
    assert fair.sparkContext.getLocalProperty("spark.scheduler.pool") is None


@pytest.mark.e2e
def test_names_other_than_those_of_the_queries_fail_the_job(fair: Any, tmp_path: Path) -> None:
    def build(spark: Any) -> Any:
        return [rate(spark).option("checkpointLocation", str(tmp_path)).start(), busy(spark, "a", tmp_path)]

    with pytest.raises(JobFailedError, match="started a, a query without a name, and proportions are given for a, b"):
        ReactiveJob(fair, build, proportions={"a": (0, 0.5, 1), "b": (0, 0.5, 1)}).run()
    assert fair.streams.active == []


@pytest.mark.e2e
def test_a_pool_is_replaced_only_if_it_differs(fair: Any) -> None:
    made = Pools(fair, ["a"])
    root = fair.sparkContext._jsc.sc().taskScheduler().rootPool()
    made.set({"a": Pool(500, 1)})
    first = root.getSchedulableByName("query a")
    made.set({"a": Pool(500, 1)})
    assert root.getSchedulableByName("query a").equals(first)
    made.set({"a": Pool(500, 2)})
    assert root.getSchedulableByName("query a").minShare() == 2
    assert fair.range(10).count() == 10


def counts(spark: Any, name: str, directory: Path, most: int | None) -> Any:
    """A query that counts values in two stages of eight partitions, in so many tasks; the sink is a table."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 40).option("numPartitions", 8).load()
    slow = "reflect('java.lang.Thread', 'sleep', bigint(20)) as slept"
    values = source.selectExpr("value % 10 as key", slow)
    values = values if most is None else values.coalesce(most)
    found = values.groupBy("key").agg({"slept": "count"}).toDF("key", "count").selectExpr("key", "count", slow)
    found = found if most is None else found.coalesce(most)
    writer = found.writeStream.format("memory").queryName(name).outputMode("complete")
    return writer.option("checkpointLocation", str(directory / name)).start()


def beside(spark: Any, directory: Path) -> Any:
    """A query with almost no work."""
    return rate(spark).queryName("other").option("checkpointLocation", str(directory / "other")).start()


def most_tasks(spark: Any, enough: Callable[[], bool]) -> int:
    """The maximum number of tasks of the query `clicks` that were observed at once."""
    pool = spark.sparkContext._jsc.sc().taskScheduler().rootPool().getSchedulableByName("query clicks")
    found, deadline = 0, time.monotonic() + 120
    while not enough():
        assert time.monotonic() < deadline, found
        for _ in range(20):
            found = max(found, pool.runningTasks())
            time.sleep(0.005)
    return found


@pytest.mark.e2e
@pytest.mark.parametrize(("keeps", "busiest"), [(True, 2), (False, 4)])
def test_a_query_with_stages_within_its_maximum_uses_no_idle_slots(
    fair: Any, tmp_path: Path, *, keeps: bool, busiest: int
) -> None:
    fair.conf.set("spark.sql.shuffle.partitions", 8)

    def build(spark: Any, slots: int, maxima: Any) -> Any:
        assert (slots, maxima) == (4, {"clicks": 2, "other": 4})
        return [counts(spark, "clicks", tmp_path, maxima["clicks"] if keeps else None), beside(spark, tmp_path)]

    job = ReactiveJob(fair, build, proportions={"clicks": (0, 0.5, 0.5), "other": (0, 0.5, 1)})
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        until(lambda: job.snapshot().state is State.EXECUTING)
        clicks = job.snapshot().queries[0].id
        found = most_tasks(fair, lambda: sum(one.query == clicks for one in job.snapshot().commits) >= 5)
        said = [one.what for one in job.preflight() if one.name == "proportions"]
    finally:
        job.cancel()
        thread.join(60)
    assert found == busiest
    assert [one.partition(":")[0] for one in said] == [
        f"clicks has a stage of {wide} tasks, and its max is 2 of 4 slots" for wide in ([] if keeps else [8])
    ]


@pytest.mark.e2e
def test_queries_that_keep_to_their_maxima_are_restarted_when_these_change_with_the_slots(
    fair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fair.conf.set("spark.sql.shuffle.partitions", 8)
    given: list[tuple[int, int]] = []

    def build(spark: Any, slots: int, maxima: Any) -> Any:
        given.append((slots, maxima["clicks"]))
        return [counts(spark, "clicks", tmp_path, maxima["clicks"]), beside(spark, tmp_path)]

    def ran(times: int) -> bool:
        return len(given) == times and job.snapshot().state is State.EXECUTING and len(job._batches) == 2

    job = ReactiveJob(
        fair,
        build,
        proportions={"clicks": (0, 0.5, 0.5), "other": (0, 0.5, 1)},
        cooldown=0,
        executing_stabilization=0,
    )
    seen = job._executors.seen
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        until(lambda: ran(1))
        monkeypatch.setattr(job._executors, "seen", lambda: tuple(replace(one, slots=2) for one in seen()))
        job._look_closely()
        until(lambda: ran(2))
        monkeypatch.setattr(job._executors, "seen", seen)
        job._look_closely()
        until(lambda: ran(3))
    finally:
        job.stop()
        thread.join(60)
    assert given == [(4, 2), (2, 1), (4, 2)]
    why = [step.why for step in job.snapshot().timeline if step.state is State.RESTARTING]
    assert why[0] == "clicks may have 1 task at once instead of 2, and other may have 2 tasks at once instead of 4"
    assert why[1].startswith("clicks, other may have more tasks at once: `build` is called with the new maxima")
    rows = fair.table("clicks").collect()
    (count,) = {row["count"] for row in rows}
    assert len(rows) == 10
    batches = [one for one in (tmp_path / "clicks" / "commits").iterdir() if one.name.isdecimal()]
    assert count == 4 * len(batches)
