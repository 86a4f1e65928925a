"""`ReactiveJob` in a local session: the results of `build`, the ends of a job, and its reports."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoscaler.injob import JobFailedError, ReactiveJob, report
from autoscaler.injob.reactive import OptionsError
from autoscaler.injob.reactive.cluster import Executors
from autoscaler.injob.reactive.job import _share, _takes
from autoscaler.injob.reactive.restart_choice import Choice
from autoscaler.injob.reactive.scheduler import Failed
from autoscaler.injob.reactive.snapshot import Commit, Executor, Query, Snapshot, State
from autoscaler.schedulers.slots import Bounds
from tests.e2e.test_local_target import until
from tests.injob.local_spark import local_spark


def executor(name: str, done: int) -> Executor:
    return Executor(id=name, address=f"{name}:1", slots=1, done=done)


def test_the_share_of_new_executors_counts_tasks_since_their_start() -> None:
    old, new = executor("0", 110), executor("1", 5)
    assert _share([old, new], [new], {"0": 100}) == pytest.approx(1 / 3)
    assert _share([old, new], [new], {"0": 110, "1": 5}) == 0


@pytest.mark.parametrize(
    ("build", "number"),
    [
        (lambda spark: spark, 1),
        (lambda spark, parallelism: (spark, parallelism), 2),
        (lambda spark, parallelism=1: (spark, parallelism), 2),
        (lambda spark, parallelism, maxima=None: (spark, parallelism, maxima), 3),
        (lambda *arguments: arguments, 3),
    ],
)
def test_build_receives_the_parallelism_and_the_maxima_if_it_accepts_them(
    build: Callable[..., Any], number: int
) -> None:
    assert _takes(build, maxima=True) == number
    assert _takes(build) == min(number, 2)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: None, "build takes \\(\\), expected the session"),
        (
            lambda a, b, c: (a, b, c),
            "build takes \\(a, b, c\\), expected the session and, if it needs it, the parallelism$",
        ),
        ("query", "build is 'query', expected a function"),
    ],
)
def test_a_build_that_cannot_be_called_with_a_session_is_refused(build: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        _takes(build)


def test_the_error_for_a_build_with_too_many_parameters_mentions_the_maxima() -> None:
    with pytest.raises(TypeError, match=r"if it needs it, the parallelism and the maxima$"):
        _takes(lambda a, b, c, d: (a, b, c, d), maxima=True)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with local_spark(tmp_path_factory.mktemp("spark"), 2) as session:
        yield session


def rate(spark: Any) -> Any:
    """A writer of the rate source."""
    return spark.readStream.format("rate").option("rowsPerSecond", 100).load().writeStream.format("noop")


def counting(directory: Path, **options: Any) -> Callable[[Any], Any]:
    """A build of one query with that checkpoint and trigger."""

    def build(spark: Any) -> Any:
        return rate(spark).option("checkpointLocation", str(directory)).trigger(**options).start()

    return build


def run_two_batches(job: ReactiveJob, end: Callable[[], object]) -> None:
    """Run a job in a thread until it has committed two batches, and stop it."""
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        until(lambda: job.snapshot().committed >= 2)
    finally:
        end()
        thread.join(60)


@pytest.mark.e2e
def test_the_report_shows_a_batch_that_works_only_in_the_driver(spark: Any, tmp_path: Path) -> None:
    reporter = report(spark, port=0)
    go_on = threading.Event()
    writer = rate(spark).foreachBatch(lambda *_: go_on.wait(60)).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(processingTime="1 hour").start()

    def working() -> list[Any]:
        return [one["working"] for one in json.loads(reporter.body())["queries"]]

    try:
        until(lambda: working() == [True])
        go_on.set()
        until(lambda: working() == [False])
    finally:
        go_on.set()
        query.stop()
        reporter.stop()


QUICK = {"restart-strategy.exponential-delay.initial-backoff": "10 ms"}


@pytest.mark.e2e
def test_a_job_whose_queries_have_read_everything_is_finished(spark: Any, tmp_path: Path) -> None:
    job = ReactiveJob(spark, counting(tmp_path / "checkpoint", availableNow=True))
    assert job.run() is State.FINISHED
    assert [step.state for step in job.snapshot().timeline] == [
        State.WAITING_FOR_RESOURCES, State.CREATING, State.EXECUTING, State.STOPPING, State.FINISHED,
    ]  # fmt: skip


@pytest.mark.e2e
@pytest.mark.parametrize(("ask", "state"), [("request_stop", State.FINISHED), ("cancel", State.CANCELED)])
def test_a_job_ends_as_requested(spark: Any, tmp_path: Path, ask: str, state: State) -> None:
    job = ReactiveJob(spark, counting(tmp_path / "checkpoint", processingTime="0 seconds"))
    ended: list[State] = []
    thread = threading.Thread(target=lambda: ended.append(job.run()))
    thread.start()
    try:
        until(lambda: job.snapshot().committed >= 2)
        trigger = getattr(job, ask)()
    finally:
        thread.join(60)
    assert ended == [state]
    assert spark.streams.active == []
    snapshot = job.snapshot()
    assert [one.parallelism for one in snapshot.queries] == [0]
    assert snapshot.commits[-1].number == snapshot.committed
    if ask == "request_stop":
        assert job.stopped(trigger)
    assert job.stopped("nobody's") is None


@pytest.mark.e2e
def test_a_stop_lets_the_running_batch_commit_and_no_other_begin(spark: Any, tmp_path: Path) -> None:
    def work(found: Any, _: int) -> None:
        found.sparkSession.sparkContext.parallelize([0.5], 1).foreach(time.sleep)

    def build(spark: Any) -> Any:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        return rows.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(work).start()

    job = ReactiveJob(spark, build)
    run_two_batches(job, job.stop)
    begun, committed = (
        max(int(one.name) for one in (tmp_path / log).iterdir() if one.name.isdigit()) for log in ("offsets", "commits")
    )
    assert begun == committed >= 2


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda _: None, "it returned nothing, expected the query that"),
        (lambda _: [], "it returned nothing"),
        (lambda _: "query", "it returned str, expected"),
        (lambda spark: spark.range(3), "it returned DataFrame, expected"),
        (lambda spark: spark.table("nowhere"), "AnalysisException: .*TABLE_OR_VIEW_NOT_FOUND"),
        (
            lambda spark: rate(spark).start(),
            "has no checkpoint of its own, so a restart would lose or repeat records: set",
        ),
    ],
)
def test_a_build_without_a_query_fails_the_job_and_says_what_was_expected(
    spark: Any, build: Callable[..., Any], says: str
) -> None:
    with pytest.raises(JobFailedError, match=says):
        ReactiveJob(spark, build).run()
    assert spark.streams.active == []


@pytest.mark.e2e
def test_a_query_that_build_starts_and_does_not_return_fails_the_job(spark: Any, tmp_path: Path) -> None:
    def build(spark: Any) -> Any:
        counting(tmp_path / "side", processingTime="1 hour")(spark)
        return counting(tmp_path / "main", processingTime="1 hour")(spark)

    with pytest.raises(JobFailedError, match="it started 2 queries and returned 1: return all of them, in a list"):
        ReactiveJob(spark, build).run()
    assert spark.streams.active == []


@pytest.mark.e2e
def test_a_query_without_a_name_below_a_common_checkpoint_directory_is_refused(spark: Any, tmp_path: Path) -> None:
    key = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(key, str(tmp_path))
    try:
        with pytest.raises(JobFailedError, match="has no checkpoint of its own"):
            ReactiveJob(spark, lambda spark: rate(spark).start()).run()
    finally:
        spark.conf.unset(key)


@pytest.mark.e2e
def test_a_checkpoint_that_changes_between_starts_fails_the_job(spark: Any, tmp_path: Path) -> None:
    starts: list[int] = []

    def build(spark: Any) -> Any:
        starts.append(1)
        return counting(tmp_path / str(len(starts)), processingTime="1 hour")(spark)

    job = ReactiveJob(spark, build, conf=QUICK)

    def run() -> None:
        with pytest.raises(JobFailedError):
            job.run()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: job.snapshot().state is State.EXECUTING)
        job._events.put(Failed(time.monotonic(), "something"))
    finally:
        thread.join(60)
    assert job.snapshot().state is State.FAILED
    assert "starts from another checkpoint than before" in job.snapshot().failures[-1].text


@pytest.mark.e2e
def test_a_stop_requested_over_rest_is_observed_as_completed(spark: Any, tmp_path: Path) -> None:
    job = ReactiveJob(spark, counting(tmp_path, processingTime="0 seconds"), rest="127.0.0.1:0")
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        until(lambda: job.snapshot().committed)
        trigger = job.request_stop()
        until(lambda: job.stopped(trigger))
    finally:
        job.cancel()
        thread.join(60)
    assert job.snapshot().state is State.FINISHED


@pytest.mark.e2e
def test_two_queries_with_one_name_fail_and_leave_none_behind(spark: Any, tmp_path: Path) -> None:
    calls: list[int] = []

    def build(spark: Any) -> Any:
        calls.append(1)
        if len(calls) > 2:
            return counting(tmp_path / "c", availableNow=True)(spark)
        source = spark.readStream.format("rate").load().writeStream.format("noop").queryName("same")
        return [source.option("checkpointLocation", str(tmp_path / name)).start() for name in "ab"]

    job = ReactiveJob(spark, build, conf=QUICK)
    assert job.run() is State.FINISHED
    assert len(calls) == 3
    assert [failure.error for failure in job.snapshot().failures] == ["IllegalArgumentException"] * 2
    assert spark.streams.active == []


@pytest.mark.e2e
def test_the_progress_of_a_batch_is_not_fetched_number_by_number(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.streaming.listener import QueryProgressEvent  # noqa: PLC0415 - an extra

    fetched: list[object] = []
    monkeypatch.setattr(QueryProgressEvent, "fromJObject", fetched.append)
    job = ReactiveJob(spark, counting(tmp_path / "checkpoint", processingTime="0 seconds"))
    run_two_batches(job, job.cancel)
    assert fetched == []


@pytest.mark.e2e
def test_a_job_with_a_resource_timeout_fails_without_the_required_slots(spark: Any, tmp_path: Path) -> None:
    job = ReactiveJob(
        spark,
        counting(tmp_path),
        min_slots=3,
        conf={"jobmanager.adaptive-scheduler.submission.resource-wait-timeout": "1 s"},
    )
    with pytest.raises(JobFailedError, match="at least 3 slots are needed, and there were 2 for too long"):
        job.run()


@pytest.mark.e2e
def test_all_contradicting_options_are_named(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionsError) as raised:
        ReactiveJob(spark, counting(tmp_path), min_slots=4, preferred_slots=2, conf={"restart-strategy.typ": "none"})
    assert len(raised.value.problems) == 2


@pytest.mark.e2e
def test_a_policy_of_the_job_may_forbid_a_restart(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Snapshot, int, Choice]] = []

    def policy(*arguments: Any) -> bool:
        asked.append(arguments)
        return False

    job = ReactiveJob(spark, counting(tmp_path), policy=policy)
    monkeypatch.setattr("autoscaler.injob.reactive.job.choose", lambda _: Choice(True, "it pays"))
    choice = job._choose(5)
    assert choice == Choice(False, "the job's own policy forbids a restart, although it pays")
    assert asked[0][1:] == (5, Choice(True, "it pays"))


@pytest.mark.e2e
def test_a_failing_policy_of_the_job_forbids_a_restart_and_has_no_other_effect(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def policy(*_: Any) -> bool:
        raise ValueError("a bug")

    job = ReactiveJob(spark, counting(tmp_path), policy=policy)
    monkeypatch.setattr("autoscaler.injob.reactive.job.choose", lambda _: Choice(True, "it pays"))
    assert job._choose(5).restart is False
    assert "the job's own policy failed" in caplog.text


@pytest.mark.e2e
def test_a_small_gain_waits_for_a_greater_one_or_for_the_maximum_interval(spark: Any, tmp_path: Path) -> None:
    def why(slots: int, **options: Any) -> str:
        job = ReactiveJob(spark, counting(tmp_path), min_parallelism_increase=3, **options)
        job._scheduler = replace(job._scheduler, since=time.monotonic())
        choice = job._choose(slots)
        assert choice.restart is None
        return choice.why

    assert why(2) == "2 slots are fewer than 3: min_parallelism_increase"
    assert why(3) == why(2, cooldown=0, scaling_interval_max=0) == "0 of 2 batches have run since executors were added"


@pytest.mark.e2e
def test_a_late_commit_of_the_queries_before_a_restart_neither_ends_it_nor_counts_for_the_new_ones(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ReactiveJob(spark, counting(tmp_path))
    query = Query(id="a" * 32, name="a", bounds=Bounds(1, 8))
    job._runs = {"old": query.id, "new": query.id}
    job._running = ((query, SimpleNamespace(runId="new")),)
    job._restart_began = 100.0

    def commit(run: str, began: float) -> None:
        job._committed(Commit(number=0, query=run, batch=0, began=began, took=1.0, rows=1))

    commit("old", 101.0)  # while the queries are stopped
    job._scheduler = replace(job._scheduler, state=State.EXECUTING)
    commit("old", 99.0)
    assert (job._restart_began, job._restart_took) == (100.0, None)
    job._batches = {"old": 1}
    for _ in range(2):
        commit("new", 102.0)
    assert job._restart_took is not None
    monkeypatch.setattr("autoscaler.injob.reactive.job.choose", lambda measured: Choice(None, str(measured.batches)))
    assert job._choose(5).why == "2"


@pytest.mark.e2e
def test_an_application_that_spark_has_stopped_fails_the_job(spark: Any, tmp_path: Path) -> None:
    job = ReactiveJob(spark, counting(tmp_path, processingTime="1 hour"), min_slots=3)
    job._executors.stopped = lambda: True  # type: ignore[method-assign]
    with pytest.raises(JobFailedError, match="Spark has stopped the application"):
        job.run()


@pytest.mark.e2e
def test_the_number_of_executors_is_constant_while_none_comes_or_goes(spark: Any) -> None:
    executors = Executors(spark)
    assert [executors.changed() for _ in range(3)] == [True, False, False]


@pytest.mark.e2e
def test_the_end_of_a_query_is_noticed_between_two_full_polls(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ReactiveJob(spark, counting(tmp_path, processingTime="1 hour"))
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        until(lambda: job.snapshot().committed >= 1)
        monkeypatch.setattr("autoscaler.injob.reactive.job.CLOSE", 3600.0)
        job._looked_closely, job._close_until = time.monotonic(), 0.0
        (query,) = spark.streams.active
        query.stop()
        thread.join(30)
        assert not thread.is_alive()
    finally:
        job.cancel()
        thread.join(60)
    assert job.snapshot().state is State.FINISHED


@pytest.mark.e2e
def test_a_failed_read_of_the_executors_is_repeated(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = ReactiveJob(spark, counting(tmp_path, availableNow=True))
    seen, looks = job._executors.seen, []

    def look() -> tuple[Executor, ...]:
        looks.append(1)
        if 1 < len(looks) < 4:  # the first is that of the preflight check
            raise RuntimeError("busy")
        return seen()

    job._executors.seen = look  # type: ignore[method-assign]
    assert job.run() is State.FINISHED
    assert caplog.text.count("the executors could not be read: RuntimeError: busy; trying again") == 1


@pytest.mark.e2e
def test_executors_that_stay_unreadable_for_long_fail_the_job(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoscaler.injob.reactive.job.MAX_UNKNOWN", 0.0)
    job = ReactiveJob(spark, counting(tmp_path, availableNow=True))

    def look() -> tuple[Executor, ...]:
        raise RuntimeError("broken")

    job._executors.seen = look  # type: ignore[method-assign]
    with pytest.raises(JobFailedError, match="could not be read: RuntimeError: broken, for more than 0 s"):
        job.run()


@pytest.mark.e2e
def test_restarts_of_a_query_that_calls_python_leave_no_thread_behind(spark: Any, tmp_path: Path) -> None:
    threads: list[int] = []

    def fail_often(_: Any, number: int) -> None:
        threads.append(threading.active_count())
        if len(threads) < 8:
            raise RuntimeError(f"batch {number} fails")

    def build(spark: Any) -> Any:
        source = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
        writer = source.writeStream.foreachBatch(fail_often).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path)).start()

    job = ReactiveJob(spark, build, conf={**QUICK, "restart-strategy.exponential-delay.max-backoff": "10 ms"})
    assert job.run() is State.FINISHED
    assert len(threads) >= 8
    assert threads[-1] <= threads[2] + 2


@pytest.mark.e2e
@pytest.mark.parametrize("by", [-3600.0, 3600.0])
def test_adjusting_the_clock_neither_delays_a_restart_nor_uses_up_its_delay(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: float
) -> None:
    clock = [0.0]
    times = SimpleNamespace(time=lambda: time.time() + clock[0], monotonic=time.monotonic)
    monkeypatch.setattr("autoscaler.injob.reactive.job.time", times)
    calls: list[float] = []

    def build(spark: Any) -> Any:
        calls.append(time.monotonic())
        if len(calls) == 1:
            clock[0] = by
            raise RuntimeError("not yet")
        return counting(tmp_path, availableNow=True)(spark)

    job = ReactiveJob(spark, build, initial_backoff=1.0, jitter_factor=0.0)
    assert job.run() is State.FINISHED
    assert calls[1] - calls[0] >= 1.0
    (restarting,) = (step for step in job.snapshot().timeline if step.state is State.RESTARTING)
    executing = next(step for step in job.snapshot().timeline if step.state is State.EXECUTING)
    assert executing.at - time.time() == pytest.approx(by, abs=60), "it is shown by the clock"
    assert all(0 <= step.took < 60 for step in job.snapshot().timeline)
    assert job.snapshot().entered[State.RESTARTING] == restarting.at
    assert job.snapshot().failures[0].at == pytest.approx(restarting.at, abs=1e-3)
