"""State with fewer partitions than slots: when it is repartitioned, and the effects on the job."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from autoscaler.injob import ReactiveJob, reactive_conf
from autoscaler.injob.reactive import repartition
from autoscaler.injob.reactive.repartition import (
    UNFINISHED,
    Checkpoint,
    Due,
    RepartitionError,
    _is_of,
    choose_partitions,
)
from autoscaler.injob.reactive.restart_choice import Choice
from autoscaler.injob.reactive.snapshot import State
from tests.e2e.test_local_target import until
from tests.injob.local_spark import local_spark


@pytest.mark.parametrize(
    ("slots", "stable", "state", "most", "failed", "partitions"),
    [
        (4, 600, {"a": 2}, 100, set(), 4),
        (4, 599, {"a": 2}, 100, set(), None),
        (4, 600, {"a": 4}, 100, set(), None),
        (4, 600, {"a": 8}, 100, set(), None),
        (4, 600, {}, 100, set(), None),
        (4, 600, {"a": 8, "b": 3}, 100, set(), 4),
        (4, 600, {"a": 2}, 3, set(), 3),
        (4, 600, {"a": 3}, 3, set(), None),
        (4, 600, {"a": 2}, 100, {4}, None),
        (5, 600, {"a": 2}, 100, {4}, 5),
        (0, 600, {"a": 2}, 100, set(), None),
    ],
)
def test_state_gets_as_many_partitions_as_there_have_been_slots_for_a_long_time(
    slots: int, stable: float, state: dict[str, int], most: int, failed: set[int], partitions: int | None
) -> None:
    due = choose_partitions(slots, stable, state, after=600, most=most, failed=failed)
    assert (due and due.partitions) == partitions


def test_the_reason_for_a_repartitioning_is_reported() -> None:
    due = choose_partitions(4, 700, {"b": 2, "a": 3, "c": 4}, after=600, most=100, failed=set())
    why = "a has 3 partitions of state, b has 2 partitions of state, and there have been 4 slots for 10 min"
    assert due == Due(4, why)


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("state/0/1/8.zip", True),
        ("state/0/1/8.changelog", True),
        ("state/0/1/left-keyToNumValues/8.delta", True),
        ("state/0/1/8_0d3c.zip", True),
        ("state/0/_metadata/v2/7", True),
        ("state/0/1/7.zip", False),
        ("state/0/1/18.zip", False),
        ("state/0/1/7_8.changelog", False),
        ("state/0/_metadata/v2/8", False),
        ("state/0/1/SSTs/000008-0d3c.sst", False),
        ("state/0/1/_metadata/schema", False),
    ],
)
def test_the_files_of_a_batch_are_recognized_by_their_names(path: str, written: bool) -> None:
    assert _is_of(f"file:/checkpoint/{path}", 7) is written


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with local_spark(tmp_path_factory.mktemp("spark"), 4, reactive_conf(stateful=True)) as session:
        yield session


class Words:
    """A query that counts words: each file makes a batch."""

    def __init__(self, place: Path) -> None:
        self.place, self.checkpoint, self.files = place / "in", place / "checkpoint", 0
        self.place.mkdir()
        self.counted: dict[str, int] = {}

    def write(self, files: int = 1) -> None:
        for number in range(self.files, self.files + files):
            part = self.place / f".{number}"
            part.write_text("\n".join(f"word {word}" for word in range(number * 10, number * 10 + 100)))
            part.rename(self.place / f"{number}.txt")
        self.files += files

    def expected(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for number in range(self.files):
            for word in range(number * 10, number * 10 + 100):
                found[f"word {word}"] = found.get(f"word {word}", 0) + 1
        return found

    def build(self, spark: Any, **trigger: Any) -> Any:
        def keep(found: Any, _: int) -> None:
            self.counted = {row["value"]: row["count"] for row in found.collect()}

        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.place))
        writer = lines.groupBy("value").count().writeStream.queryName("words").outputMode("complete")
        writer = writer.option("checkpointLocation", str(self.checkpoint)).foreachBatch(keep)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def read_all(self, spark: Any) -> list[int]:
        """Read all files; returns the number of partitions of the state in each batch."""
        query = self.build(spark, availableNow=True)
        query.awaitTermination()
        return [one.stateOperators[0].numShufflePartitions for one in query.recentProgress if one.numInputRows]

    def batches(self, log: str) -> int:
        return max(int(path.name) for path in (self.checkpoint / log).iterdir() if path.name.isdigit())

    def partitions(self) -> int:
        conf = (self.checkpoint / "offsets" / str(self.batches("offsets"))).read_text().splitlines()[1]
        return int(json.loads(conf)["conf"]["spark.sql.shuffle.partitions"])


@pytest.fixture
def words(tmp_path: Path) -> Words:
    return Words(tmp_path)


class Running:
    """A job that runs in its own thread."""

    def __init__(self, job: ReactiveJob) -> None:
        self.job = job
        self.ended: list[State] = []
        self.thread = threading.Thread(target=lambda: self.ended.append(job.run()))

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.job.cancel()
        self.thread.join(60)

    def whys(self, state: State) -> list[str]:
        """The reasons in the timeline for a state; one empty string if there are none."""
        return [step.why for step in self.job.snapshot().timeline if step.state is state] or [""]


QUICK = {"restart-strategy.exponential-delay.initial-backoff": "10 ms"}
LATER = "the last batch of words was interrupted: its state is repartitioned at a later restart"
DONE = "the state of words has 4 partitions instead of 2: that took "
DUE = "words has 2 partitions of state, and there have been 4 slots for 500 ms"


def allowed(spark: Any, words: Words, **options: Any) -> ReactiveJob:
    wanted: dict[str, Any] = {"repartition_state": "allowed", "repartition_after": 0.5} | options
    return ReactiveJob(spark, words.build, conf=QUICK, **wanted)


def counted(words: Words, files: int = 1) -> None:
    """Wait until the present files and one more are counted."""
    words.write(files)
    until(lambda: words.counted == words.expected())


@pytest.mark.e2e
def test_state_is_repartitioned_for_the_available_slots_and_the_counts_are_exact(spark: Any, words: Words) -> None:
    words.write(15)
    with Running(allowed(spark, words)) as running:
        until(lambda: DONE in running.whys(State.RESTARTING)[-1])
        counted(words)
        snapshot = running.job.snapshot()
        (run,) = (str(query.runId) for query in spark.streams.active)
        assert running.job._executors.widest_stage(run) == 4
    # On a busy machine a batch may be interrupted, and the repartitioning happens at the second restart.
    *before, due, _ = running.whys(State.RESTARTING)
    assert due == DUE
    assert set(before) <= {DUE, LATER}
    partitions = [one.state_partitions for one in snapshot.commits]
    assert (partitions[0], partitions[-1], set(partitions)) == (2, 4, {2, 4})
    assert snapshot.failures == ()
    assert (snapshot.restarts, snapshot.state) == (1 + len(before) // 2, State.EXECUTING)
    assert running.ended == [State.CANCELED]


@pytest.mark.e2e
def test_there_are_no_more_partitions_than_the_maximum_parallelism(spark: Any, words: Words) -> None:
    words.write()
    with Running(allowed(spark, words, max_parallelism=3)) as running:
        until(lambda: "has 3 partitions instead of 2" in running.whys(State.RESTARTING)[-1])
        counted(words)
    assert words.partitions() == 3


@pytest.mark.e2e
def test_state_is_never_repartitioned_unless_that_is_allowed(spark: Any, words: Words) -> None:
    words.write()
    with Running(allowed(spark, words, repartition_state="never", repartition_after=0)) as running:
        for _ in range(3):
            counted(words)
    assert running.whys(State.RESTARTING) == [""]
    assert words.partitions() == 2


@pytest.mark.e2e
def test_a_failed_repartitioning_is_undone_and_not_repeated(spark: Any, words: Words) -> None:
    key = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(key)
    spark.conf.set(key, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    try:
        words.write()
        with Running(allowed(spark, words, repartition_after=0)) as running:
            until(lambda: len(running.whys(State.RESTARTING)) == 2)
            for _ in range(3):
                counted(words)
            snapshot = running.job.snapshot()
    finally:
        spark.conf.set(key, before)
    assert len(running.whys(State.RESTARTING)) == 2
    assert "could not be repartitioned into 4 partitions" in running.whys(State.RESTARTING)[1]
    assert "HDFSBackedStateStoreProvider is not supported" in running.whys(State.RESTARTING)[1]
    assert [one.error for one in snapshot.failures] == ["RepartitionError"]
    assert words.partitions() == 2


@pytest.mark.e2e
def test_a_repartitioning_that_fails_half_way_leaves_the_state_unchanged(spark: Any, words: Words) -> None:
    words.write(3)
    words.read_all(spark)
    (words.checkpoint / "state" / "0" / "3").write_text("in the way of the last partition")
    words.write()
    with Running(allowed(spark, words)) as running:
        until(lambda: "could not be repartitioned into 4 partitions" in running.whys(State.RESTARTING)[-1])
        for _ in range(3):
            counted(words)
    assert words.partitions() == 2
    assert list(words.checkpoint.glob("state/0/2/*.zip")) == []


def interrupt(spark: Any, words: Words) -> None:
    """Leave the checkpoint as a driver does that is killed at the end of a repartitioning."""
    words.write(3)
    assert words.read_all(spark) == [2, 2, 2]
    spark._streamingCheckpointManager.repartition(str(words.checkpoint), 4)
    (words.checkpoint / "commits" / "3").unlink()
    (words.checkpoint / "commits" / ".3.crc").unlink()
    words.write(3)


@pytest.mark.e2e
def test_a_repartitioning_started_by_a_killed_driver_is_finished(spark: Any, words: Words) -> None:
    interrupt(spark, words)
    with Running(allowed(spark, words, max_parallelism=2)) as running:
        counted(words)
        snapshot = running.job.snapshot()
    failed, done = running.whys(State.RESTARTING)
    assert UNFINISHED in failed
    assert done.startswith("the state of words has 4 partitions as was begun before: that took ")
    assert {one.state_partitions for one in snapshot.commits} == {4}


@pytest.mark.e2e
def test_a_started_repartitioning_can_be_undone(spark: Any, words: Words) -> None:
    interrupt(spark, words)
    checkpoint = Checkpoint(spark, str(words.checkpoint))
    assert checkpoint.unfinished() == 4
    checkpoint.undo()
    assert checkpoint.unfinished() is None
    assert words.read_all(spark) == [2, 2, 2]
    assert words.counted == words.expected()
    checkpoint.undo()  # nothing to undo
    words.write()
    assert words.read_all(spark) == [2]
    assert words.counted == words.expected()


@pytest.mark.e2e
def test_state_whose_last_batch_was_interrupted_is_repartitioned_at_a_later_restart(
    spark: Any, words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = iter([True])
    real = Checkpoint.interrupted
    monkeypatch.setattr(Checkpoint, "interrupted", lambda one: next(interrupted, False) or real(one))
    words.write()
    with Running(allowed(spark, words)) as running:
        until(lambda: LATER in running.whys(State.RESTARTING))
        counted(words)
        until(lambda: DONE in running.whys(State.RESTARTING)[-1])
        counted(words)
    assert running.whys(State.RESTARTING)[:3] == [DUE, LATER, DUE]
    assert words.partitions() == 4


@pytest.mark.e2e
def test_a_batch_to_be_repeated_is_not_an_unfinished_repartitioning(spark: Any, words: Words) -> None:
    words.write(2)
    words.read_all(spark)
    checkpoint = Checkpoint(spark, str(words.checkpoint))
    assert not checkpoint.interrupted()
    (words.checkpoint / "commits" / "1").unlink()
    checkpoint = Checkpoint(spark, str(words.checkpoint))
    assert checkpoint.interrupted()
    assert checkpoint.unfinished() is None
    checkpoint.undo()
    assert words.batches("offsets") == 1


@pytest.mark.e2e
def test_the_policy_of_a_job_may_forbid_a_repartitioning(spark: Any, words: Words) -> None:
    asked: list[tuple[int, Choice]] = []

    def policy(_: Any, slots: int, choice: Choice) -> bool:
        asked.append((slots, choice))
        return False

    words.write()
    with Running(allowed(spark, words, policy=policy)) as running:
        until(lambda: len(asked) == 2)
        counted(words)
    assert asked[0] == (4, Choice(True, DUE))
    assert running.whys(State.RESTARTING) == [""]


@pytest.mark.e2e
def test_a_cancellation_during_a_repartitioning_is_handled_after_it(
    spark: Any, words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Checkpoint.repartition

    def repartition(one: Checkpoint, *arguments: Any) -> None:
        running.job.cancel()
        real(one, *arguments)

    monkeypatch.setattr(Checkpoint, "repartition", repartition)
    words.write()
    with Running(allowed(spark, words)) as running:
        running.thread.join(120)
    assert running.ended == [State.CANCELED]
    assert running.whys(State.RESTARTING)[-1].startswith(DONE)
    assert (words.partitions(), words.batches("commits")) == (4, words.batches("offsets"))


def test_files_that_running_tasks_may_still_write_are_not_removed_and_the_next_start_finishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repartition, "TASKS_END", 0.0)
    checkpoint = object.__new__(Checkpoint)
    manager = SimpleNamespace(repartition=lambda *_: (_ for _ in ()).throw(RuntimeError("lost an executor")))
    checkpoint._manager, checkpoint._directory = manager, "/checkpoint"
    monkeypatch.setattr(checkpoint, "undo", lambda: pytest.fail("it is not undone"))
    with pytest.raises(RepartitionError, match="lost an executor; its tasks still run"):
        checkpoint.repartition(4, lambda: False)


@pytest.mark.parametrize("there", [False, True])
def test_a_file_that_cannot_be_removed_is_an_error(there: bool) -> None:
    checkpoint = object.__new__(Checkpoint)
    checkpoint._files = SimpleNamespace(delete=lambda *_: False, exists=lambda _: there)
    path = SimpleNamespace(toString=lambda: "/checkpoint/state/0/0/8.zip")
    if there:
        with pytest.raises(RepartitionError, match=r"8\.zip could not be removed"):
            checkpoint._delete(path)
    else:
        checkpoint._delete(path)
