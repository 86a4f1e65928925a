"""`ReactiveJob` when Spark does not answer: with a fake, as a real Spark cannot be made to fail at a given moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from autoscaler.injob.reactive import job as module
from autoscaler.injob.reactive.job import JobFailedError, ReactiveJob
from autoscaler.injob.reactive.repartition import UNFINISHED
from autoscaler.injob.reactive.rest_answers import start_time
from autoscaler.injob.reactive.restart_choice import MAX_CAUSE, cause
from autoscaler.injob.reactive.saved_state import Kept, KeptError
from autoscaler.injob.reactive.scheduler import Slots
from autoscaler.injob.reactive.snapshot import Executor, State, Step
from autoscaler.schedulers.slots import Bounds

OLD = Step(at=1e9, state=State.EXECUTING, why="the queries run", slots=1, before=1, after=1, took=1.0)


class Driver:
    """The part of Spark that a job uses.

    Attributes:
        dead: whether the JVM has ended.
        in_batch: whether the query is in the middle of a batch.
        evicted: whether Spark has forgotten the jobs of that batch.
        error: the failure of the query.
        on_stop: called when the query is stopped.
        refuses: how often the cluster refuses a number of executors; each time it returns False or raises.
        limits: the numbers that it has accepted.
        looks: how often the executors were read.
        others: whether an executor has come or gone, by their number.
    """

    def __init__(self) -> None:
        self.dead = self.in_batch = self.evicted = False
        self.error: Exception | None = None
        self.on_stop: Callable[[], None] = lambda: None
        self.refuses: list[Exception | None] = []
        self.limits: list[int] = []
        self.looks = 0
        self.others = False
        driver = self

        class Query:
            runId, id, name = "run", "query", "words"  # noqa: N815 - as in PySpark

            @property
            def status(self) -> dict[str, bool]:
                driver.ask()
                return {"isTriggerActive": driver.in_batch}

            @property
            def isActive(self) -> bool:  # noqa: N802
                driver.ask()
                return True

            def stop(self) -> None:
                driver.on_stop()
                driver.ask()

            def exception(self) -> Exception | None:
                driver.ask()
                return driver.error

        self.query = Query()

    def ask(self) -> None:
        if self.dead:
            raise ConnectionRefusedError("the JVM is gone")

    # like `Executors`

    def changed(self) -> bool:
        self.ask()
        others, self.others = self.others, False
        return others

    def seen(self) -> tuple[Executor, ...]:
        self.ask()
        self.looks += 1
        return (Executor(id="0", address="a:1", slots=2),)

    def stopped(self) -> bool:
        self.ask()
        return False

    def reachable(self) -> bool:
        return not self.dead

    def close_idle_connections(self) -> None:
        self.ask()

    def runs_job(self, _: str) -> bool:
        self.ask()
        if self.evicted:
            raise LookupError("no such job")
        return False

    def limit(self, slots: int, _: object) -> bool:
        self.ask()
        if self.refuses:
            if (error := self.refuses.pop()) is not None:
                raise error
            return False
        self.limits.append(slots)
        return True


@pytest.fixture
def driver() -> Driver:
    return Driver()


class File:
    """The file beside the checkpoint, like `KeptFile`."""

    name = "_reactive_job.json"

    def __init__(self, *found: Kept | Exception | None) -> None:
        self.found, self.written, self.quarantined = list(found), list[Kept](), 0

    def read(self) -> Kept | None:
        found = self.found.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def write(self, kept: Kept) -> None:
        self.written.append(kept)

    def quarantine(self) -> None:
        self.quarantined += 1


def made(driver: Driver, monkeypatch: pytest.MonkeyPatch, file: File | None = None, **options: Any) -> ReactiveJob:
    """A job that runs its query on two slots."""
    spark = MagicMock()
    spark.streams.active = []
    spark.sparkContext.appName, spark.sparkContext.master = "job", "spark://master"
    monkeypatch.setattr(module, "POLL", 0.01)
    monkeypatch.setattr(module, "Executors", lambda _: driver)
    monkeypatch.setattr(module, "_checkpoint", lambda _: "/checkpoint")
    monkeypatch.setattr(module, "progress_listener", lambda *_: SimpleNamespace())
    monkeypatch.setattr(module, "KeptFile", lambda *_: file or File(None))
    job = ReactiveJob(spark, lambda _: driver.query, **options)
    monkeypatch.setattr(job, "_log_findings", lambda: None)
    return job


def executing(job: ReactiveJob) -> ReactiveJob:
    turns(job, lambda: job.snapshot().state is State.EXECUTING)
    return job


def turns(job: ReactiveJob, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline
        job._turn_or_fail()


@pytest.mark.parametrize(
    ("ask", "last"), [(ReactiveJob.stop, State.FAILED), (ReactiveJob.cancel, State.CANCELED)], ids=["stop", "cancel"]
)
def test_a_job_that_is_stopped_ends_although_the_jvm_is_gone(
    ask: Callable[[ReactiveJob], None], last: State, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = executing(made(driver, monkeypatch))
    ask(job)
    driver.dead = True
    turns(job, lambda: job._scheduler.over)
    assert job.snapshot().state is last


def test_a_jvm_that_ends_during_the_last_commit_fails_the_job(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unknown whether there was a last commit: the supervisor of the driver must start it again."""
    job = executing(made(driver, monkeypatch))
    driver.on_stop = lambda: setattr(driver, "dead", True)
    job.stop()
    with pytest.raises(JobFailedError, match="the connection to the driver's JVM is broken"):
        job.run()
    assert job.snapshot().state is State.FAILED


def test_a_jvm_that_ends_while_the_job_fails_does_not_prevent_its_end(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = executing(made(driver, monkeypatch))

    def dies() -> bool:
        driver.dead = True
        return True

    monkeypatch.setattr(driver, "stopped", dies)
    turns(job, lambda: job._scheduler.over)
    assert job.snapshot().state is State.FAILED
    assert [step.state for step in job.snapshot().timeline][-2:] == [State.FAILING, State.FAILED]


@pytest.mark.parametrize("refusal", [None, RuntimeError("the Master does not answer")], ids=["refused", "raises"])
def test_bounds_that_the_cluster_refuses_are_requested_again_and_the_job_continues(
    refusal: Exception | None, driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = executing(made(driver, monkeypatch))
    driver.refuses = [refusal] * 3
    (query,) = job.snapshot().queries
    job.require({query.id: Bounds(1, 1)})
    turns(job, lambda: bool(driver.limits))
    assert driver.limits == [1]
    assert job.snapshot().state is State.EXECUTING
    assert len([one for one in caplog.records if "did not accept the limit of 1 slot" in one.message]) == 1
    for _ in range(3):
        job._turn_or_fail()
    assert driver.limits == [1]


def test_one_failed_read_of_the_executors_after_a_long_start_does_not_fail_the_job(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNKNOWN", 0.0)
    job = executing(made(driver, monkeypatch))
    seen, failing = driver.seen, [True]

    def once() -> tuple[Executor, ...]:
        if failing and failing.pop():
            raise RuntimeError("busy")
        return seen()

    monkeypatch.setattr(driver, "seen", once)
    turns(job, lambda: not failing)
    for _ in range(3):
        job._turn_or_fail()
    assert job.snapshot().state is State.EXECUTING


def quiet(job: ReactiveJob, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until no change is expected; then nothing changes by itself for an hour."""
    executing(job)
    turns(job, lambda: driver.looks > 1)
    monkeypatch.setattr(module, "CLOSE", 3600.0)
    job._close_until = 0.0


def looks(job: ReactiveJob, driver: Driver) -> int:
    """The number of times that the executors are read in five polls."""
    before = driver.looks
    for _ in range(5):
        job._looked = -1.0
        job._turn_or_fail()
    return driver.looks - before


def test_executors_are_read_rarely_while_no_change_is_expected(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    job = made(driver, monkeypatch)
    quiet(job, driver, monkeypatch)
    assert looks(job, driver) == 0
    monkeypatch.setattr(module, "CLOSE", 0.0)
    assert looks(job, driver) == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda _, driver: setattr(driver, "others", True),
        lambda job, _: job.snapshot(),
        lambda job, _: job._look_closely(),
        lambda job, _: setattr(job, "_unlimited", True),
        lambda job, _: setattr(job, "_failing_since", time.monotonic()),
        lambda job, _: job._handle(Slots(time.monotonic(), 5)),
        lambda _, driver: setattr(driver, "changed", None),
    ],
    ids=["executor", "question", "query ended", "bounds refused", "look failed", "slots to decide on", "unknown"],
)
def test_executors_are_read_at_each_poll_after_a_change(
    change: Callable[[ReactiveJob, Driver], object], driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = made(driver, monkeypatch)
    quiet(job, driver, monkeypatch)
    change(job, driver)
    assert looks(job, driver) > 0


def kept(**changes: Any) -> Kept:
    return Kept(declared=Bounds(1, 1 << 15), **changes)


def test_a_temporarily_unreadable_file_is_neither_renamed_nor_overwritten(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = File(OSError("connection reset"), kept(restarts=4))
    job = executing(made(driver, monkeypatch, file))
    assert (file.quarantined, file.written) == (0, [])
    monkeypatch.setattr(job, "_resume_at", 0.0)
    turns(job, lambda: not file.found)
    assert job.snapshot().restarts == 4
    job.cancel()
    turns(job, lambda: job._scheduler.over)
    assert file.quarantined == 0
    assert file.written[-1].restarts == 4


def test_an_unusable_file_is_renamed_and_the_job_keeps_its_own(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    file = File(KeptError("it is damaged"))
    executing(made(driver, monkeypatch, file))
    assert file.quarantined == 1
    assert file.written


def test_bounds_set_by_put_are_in_every_file_of_the_next_driver(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = File(None)
    job = executing(made(driver, monkeypatch, first))
    (query,) = job.snapshot().queries
    job.require({query.id: Bounds(1, 2)})
    turns(job, lambda: bool(driver.limits))
    second = File(first.written[-1])
    job = executing(made(driver, monkeypatch, second))
    turns(job, lambda: job.snapshot().queries[0].bounds == Bounds(1, 2))
    assert {one.bounds[query.id] for one in second.written} == {Bounds(1, 2)}


def test_a_stop_by_the_program_itself_does_not_wait_for_a_client_to_read_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = made(driver, monkeypatch, rest="127.0.0.1:0")
    monkeypatch.setattr(job, "_server", MagicMock())
    monkeypatch.setattr(job._answered, "wait", lambda _: pytest.fail("it waits"))
    job.stop()
    assert job.run() is State.FINISHED


def test_the_start_time_of_a_job_is_that_of_this_driver_whatever_an_earlier_one_saved(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = made(driver, monkeypatch, File(kept(timeline=(OLD,))))
    executing(job)
    job.stop()
    job.run()
    assert job.snapshot().timeline[0] == OLD
    assert start_time(job.snapshot()) > 1000 * OLD.at


def test_a_cause_is_short() -> None:
    assert cause("x" * 100_000) == "x" * (MAX_CAUSE - 1) + "…"
    assert cause("x" * MAX_CAUSE) == "x" * MAX_CAUSE


def test_a_query_whose_last_commit_cannot_be_awaited_is_stopped_all_the_same(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = executing(made(driver, monkeypatch))
    stopped: list[bool] = []
    driver.on_stop = lambda: stopped.append(True)
    driver.in_batch = driver.evicted = True
    job.stop()
    turns(job, lambda: job._scheduler.over)
    assert job.snapshot().state is State.FINISHED
    assert stopped == [True]


def test_a_failure_of_the_last_batch_is_among_the_failures(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    job = executing(made(driver, monkeypatch))
    driver.on_stop = lambda: setattr(driver, "error", ValueError("the sink is gone"))
    job.stop()
    turns(job, lambda: job._scheduler.over)
    job._show()
    assert [(one.error, one.text) for one in job.snapshot().failures] == [("ValueError", "the sink is gone")]


def test_an_unfinished_repartitioning_without_permission_to_finish_it_is_permanent_and_says_what_to_do(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = made(driver, monkeypatch)._failed(RuntimeError(f"[{UNFINISHED}] of batch 7"), None)
    assert failed.permanent
    assert failed.why.endswith('repartition_state="allowed" finishes the repartitioning')
    allowed = made(driver, monkeypatch, repartition_state="allowed")
    assert not allowed._failed(RuntimeError(f"[{UNFINISHED}] of batch 7"), None).permanent


@pytest.mark.parametrize(
    ("trigger", "repartitioned"), [("ProcessingTimeTrigger(1000)", True), ("RealTimeTrigger(300000)", False)]
)
def test_state_of_a_real_time_query_is_not_repartitioned(
    trigger: str, repartitioned: bool, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "read_trigger", lambda *_: trigger)
    job = executing(made(driver, monkeypatch, repartition_state="allowed", repartition_after=0.0))
    (query,) = job.snapshot().queries
    job._partitions, job._batches = {query.id: 1}, {"run": 1}
    handled: list[Any] = []
    monkeypatch.setattr(job, "_handle", handled.append)
    job._poll_partitions()
    assert bool(handled) is repartitioned


def test_a_repartitioning_postponed_three_times_in_a_row_is_abandoned_for_that_number(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = executing(made(driver, monkeypatch, repartition_state="allowed"))
    (query,) = job.snapshot().queries
    job._partitions = {query.id: 1}
    interrupted = iter([True, True, False, True, True, True])
    checkpoint = SimpleNamespace(
        unfinished=lambda: None, interrupted=lambda: next(interrupted), repartition=lambda *_: None
    )
    monkeypatch.setattr(module, "Checkpoint", lambda *_: checkpoint)
    said = [job._repartition_query(query, "/checkpoint", 4) for _ in range(5)]
    assert [one.endswith("at a later restart") for one in said] == [True, True, False, True, True]
    assert job._unreached == set()
    assert job._repartition_query(query, "/checkpoint", 4).endswith("interrupted again: its state stays as it is")
    assert job._unreached == {4}
