"""The state that a job saves for a restarted driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.injob import ReactiveJob
from autoscaler.injob.reactive.saved_state import MAX_BYTES, NAME, Kept, KeptError, KeptFile, decode, encode
from autoscaler.injob.reactive.snapshot import Failure, State, Step
from autoscaler.schedulers.flink import MAX_PARALLELISM
from autoscaler.schedulers.slots import Bounds
from tests.e2e.test_local_target import until
from tests.injob.test_reactive_job import counting, spark

__all__ = ["spark"]

TIMES = st.floats(0, 1e10)
COUNTS = st.integers(0, 1 << 15)
KEPT = st.builds(
    Kept,
    declared=st.just(Bounds(1, 8)),
    bounds=st.dictionaries(st.text(), st.builds(lambda low, more: Bounds(low, low + more), st.integers(1, 9), COUNTS)),
    restarts=COUNTS,
    failures=st.lists(
        st.builds(Failure, at=TIMES, query=st.none() | st.text(), error=st.text(), text=st.text()), max_size=3
    ).map(tuple),
    timeline=st.lists(
        st.builds(
            Step,
            at=TIMES,
            state=st.sampled_from(State),
            why=st.text(),
            slots=COUNTS,
            before=COUNTS,
            after=COUNTS,
            took=TIMES,
        ),
        max_size=3,
    ).map(tuple),
)
STEP = Step(at=100.0, state=State.EXECUTING, why="the queries run on 2 slots", slots=2, before=2, after=2, took=1.0)
ONE = Kept(
    declared=Bounds(1, 8),
    restarts=3,
    timeline=(STEP,),
    failures=(Failure(at=90.0, query=None, error="ValueError", text="bad"),),
)


@given(KEPT.filter(lambda kept: all(one.upper <= 1 << 15 for one in kept.bounds.values())))
def test_saved_state_is_read_back_equal(kept: Kept) -> None:
    assert decode(encode(kept)) == kept


def changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(encode(ONE)) | changes).encode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "it is damaged \\(JSONDecodeError"),
        (b"[]", "it is damaged \\(TypeError"),
        (b"\xff\xfe\x00", "it is damaged"),
        (b"[" * 100_000, "it is damaged \\(RecursionError"),
        (encode(ONE)[:-20], "it is damaged"),
        (changed(format=2), "its format is 2, and this version of autoscaler reads 1"),
        (changed(format="x"), "its format is 'x'"),
        (changed(timeline=[{}]), "it is damaged \\(KeyError: 'at'"),
        (changed(timeline=[json.loads(encode(ONE))["timeline"][0] | {"state": "dancing"}]), "is not a valid State"),
        (changed(timeline=[json.loads(encode(ONE))["timeline"][0] | {"why": 3}]), "3 is no text"),
        (changed(timeline=[json.loads(encode(ONE))["timeline"][0] | {"at": float("nan")}]), "NaN is no number"),
        (encode(ONE).replace(b"100.0", b"1e999"), "inf is no time"),
        (changed(restarts=-1), "-1 is no count"),
        (changed(bounds={"a": [2, 1]}), "are no bounds"),
        (changed(bounds={"a": [1]}), "it is damaged"),
        (changed(bounds=[]), "it is damaged"),
        (changed(declared=[1, 1 << 20]), "are no bounds"),
    ],
)
def test_a_damaged_or_newer_file_is_refused_with_the_reason(text: bytes, says: str) -> None:
    with pytest.raises(KeptError, match=says):
        decode(text)


@pytest.mark.e2e
def test_a_file_is_replaced_atomically_and_a_half_finished_replacement_is_read(spark: Any, tmp_path: Path) -> None:
    file = KeptFile(spark, f"file:{tmp_path}/")
    assert file.read() is None
    for kept in (ONE, Kept(declared=Bounds(1, 2))):
        file.write(kept)
        assert file.read() == kept
    (tmp_path / NAME).rename(tmp_path / f"{NAME}.next")
    (tmp_path / f".{NAME}.crc").rename(tmp_path / f".{NAME}.next.crc")
    assert KeptFile(spark, str(tmp_path)).read() == Kept(declared=Bounds(1, 2))


@pytest.mark.e2e
def test_a_file_of_excessive_size_is_not_read(spark: Any, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(KeptError, match="expected at most 8388608"):
        KeptFile(spark, str(tmp_path)).read()


def finished(spark: Any, directory: Path, **options: Any) -> ReactiveJob:
    """A job that has run on a checkpoint until everything was read."""
    job = ReactiveJob(spark, counting(directory, availableNow=True), **options)
    assert job.run() is State.FINISHED
    return job


@pytest.mark.e2e
def test_the_next_driver_continues_the_timeline_under_the_same_id(spark: Any, tmp_path: Path) -> None:
    first, second = (finished(spark, tmp_path) for _ in range(2))
    assert first.snapshot().id == second.snapshot().id
    before, now = first.snapshot().timeline, second.snapshot().timeline
    assert now[: len(before)] == before
    assert [step.state for step in now[len(before) :]] == [
        State.CREATED, State.WAITING_FOR_RESOURCES, State.CREATING, State.EXECUTING, State.STOPPING, State.FINISHED,
    ]  # fmt: skip
    assert now[len(before)].why == "the driver was started again"


@pytest.mark.e2e
@pytest.mark.parametrize("text", [b"no JSON", encode(ONE).replace(b'"format": 1', b'"format": 2')])
def test_an_unusable_file_costs_only_the_history(
    spark: Any, tmp_path: Path, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).write_bytes(text)
    job = finished(spark, tmp_path)
    assert job.snapshot().timeline[0].state is State.WAITING_FOR_RESOURCES
    assert f"{tmp_path}/{NAME} cannot be used: it" in caplog.text
    assert (tmp_path / f"{NAME}.unreadable").read_bytes() == text
    assert decode((tmp_path / NAME).read_bytes()).timeline == job.snapshot().timeline


@pytest.mark.e2e
def test_a_file_that_cannot_be_written_is_logged_once_and_the_job_continues(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(KeptFile, "write", write)
    finished(spark, tmp_path)
    assert caplog.text.count("cannot be written; the job continues") == 1


@pytest.mark.e2e
@pytest.mark.parametrize(("least", "bounds"), [(1, Bounds(1, 1)), (2, Bounds(2, MAX_PARALLELISM))])
def test_saved_bounds_hold_again_unless_the_job_declares_others(
    spark: Any, tmp_path: Path, least: int, bounds: Bounds
) -> None:
    query = finished(spark, tmp_path).snapshot().queries[0].id
    put = {query: Bounds(1, 1), "gone": Bounds(3, 3)}
    kept = Kept(declared=Bounds(1, MAX_PARALLELISM), bounds=put, timeline=(STEP,), restarts=3)
    KeptFile(spark, str(tmp_path)).write(kept)
    job = ReactiveJob(spark, counting(tmp_path, processingTime="0 seconds"), min_slots=least)
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        until(lambda: job.snapshot().committed >= 2 and job.snapshot().queries[0].bounds == bounds)
    finally:
        job.cancel()
        thread.join(60)
    assert job.snapshot().restarts >= 3
    assert job.snapshot().timeline[1].why == (
        "the driver was started again: the previous one ended while the job was executing"
    )


@contextmanager
def driver(place: Path, number: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running driver that has written its state; at the end it is killed, with its JVM."""
    script = Path(__file__).with_name("killed_driver.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (place / f"{number}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(script), str(place), number],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until(lambda: (place / number).exists() or process.poll() is not None, 300)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def shown(place: Path, number: str) -> dict[str, Any]:
    """The state that a driver wrote before it was killed."""
    with driver(place, number):
        pass
    return dict(json.loads((place / number).read_text()))


@pytest.mark.e2e
@pytest.mark.usefixtures("spark")
def test_a_job_whose_jvm_is_killed_fails_and_reports_it(tmp_path: Path) -> None:
    with driver(tmp_path, "first") as process:
        for child in psutil.Process(process.pid).children(recursive=True):
            if "java" in child.name():
                child.kill()
        assert process.wait(60) == 1
    log = (tmp_path / "first.log").read_text()
    assert "\nautoscaler.injob.reactive.job.JobFailedError: the connection to the driver's JVM is broken (" in log


@pytest.mark.e2e
@pytest.mark.usefixtures("spark")
def test_a_killed_driver_is_visible_in_the_timeline_of_the_next(tmp_path: Path) -> None:
    began = time.time()
    first, second = shown(tmp_path, "first"), shown(tmp_path, "second")
    assert second["id"] == first["id"]
    assert second["timeline"][: len(first["timeline"])] == first["timeline"]
    again = second["timeline"][len(first["timeline"])]
    assert again[1:] == [
        "created",
        "the driver was started again: the previous one ended while the job was executing",
    ]
    assert began < first["timeline"][-1][0] < again[0]
