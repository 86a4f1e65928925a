"""The history files: one per hour, with whole lines, deleted after their retention."""

# ruff: noqa: ASYNC240 - looking at small local files

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoscaler.daemon.compression import compress
from autoscaler.daemon.history import GRACE, History, remove_incomplete_line
from autoscaler.ports import StoreError
from autoscaler.trace.codec import dump_record
from autoscaler.trace.format import read

from .test_state_store import a_record

AT = datetime(2026, 1, 31, 17, 59, 59, tzinfo=UTC)


async def test_each_hour_has_its_own_file(tmp_path: Path) -> None:
    history = History(tmp_path / "history", timedelta(days=7))
    await history.start()
    records = [a_record(AT + timedelta(seconds=seconds)) for seconds in range(4)]
    await asyncio.gather(*(history.write(record) for record in records))
    await history.close()
    files = sorted(path.name for path in (tmp_path / "history").iterdir())
    assert files == ["2026-01-31T17.jsonl", "2026-01-31T18.jsonl"]
    assert list(read(tmp_path / "history")) == records
    assert list(read(tmp_path / "history" / "2026-01-31T17.jsonl")) == records[:1]


async def test_hours_are_those_of_utc(tmp_path: Path) -> None:
    from datetime import timezone  # noqa: PLC0415

    history = History(tmp_path, timedelta(days=7))
    await history.start()
    await history.write(a_record(AT.astimezone(timezone(timedelta(hours=5, minutes=30)))))
    await history.close()
    assert [path.name for path in tmp_path.iterdir()] == ["2026-01-31T17.jsonl"]


async def test_a_hanging_disk_delays_one_decision_and_the_shutdown_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("autoscaler.daemon.history.WRITE_TIMEOUT", 0.3)
    file = tmp_path / "2026-01-31T17.jsonl"
    history = History(tmp_path, timedelta(days=7), compress=False)
    await history.start()
    os.mkfifo(file)  # opening a pipe for writing blocks until somebody reads it
    async with asyncio.timeout(10):
        at_once = False
        while not at_once:  # otherwise waiting lines would fill the memory
            refused = asyncio.create_task(history.write(a_record(AT)))
            await asyncio.sleep(0)
            at_once = refused.done()
            with pytest.raises(StoreError, match="no answer within"):
                await refused
        assert history.failure is not None
        reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        with suppress(StoreError):  # the first write may still be too early
            await history.write(a_record(AT))
        while history.failure is not None:
            with suppress(StoreError):
                await history.write(a_record(AT))
            await asyncio.sleep(0.01)
        assert [line.message for line in caplog.records] == ["cannot write history", "history is written again"]
        os.close(reader)
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(StoreError, match="no answer within"):
            await history.write(a_record(AT))
        caplog.clear()
        await history.close()
    assert [line.message for line in caplog.records] == ["history is not closed: its disk hangs"]
    os.close(os.open(file, os.O_RDONLY | os.O_NONBLOCK))  # lets the writer thread end


async def test_old_files_are_deleted_when_an_hour_begins_and_other_files_are_kept(tmp_path: Path) -> None:
    others = ["2020-01-01.jsonl", "notes.txt"]
    for name in (*(f"2026-01-31T{hour:02}.jsonl" for hour in range(17)), *others):
        (tmp_path / name).touch()
    history = History(tmp_path, timedelta(hours=2), compress=False)
    await history.start()
    await history.write(a_record(AT))
    await history.close()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted([*(f"2026-01-31T{hour}.jsonl" for hour in (15, 16, 17)), *others])


async def test_a_clock_that_jumps_ahead_deletes_no_history(tmp_path: Path) -> None:
    hours = [AT - timedelta(hours=number) for number in range(24, 0, -1)]
    history = History(tmp_path, timedelta(days=1))
    await history.start()
    for at in hours:
        await history.write(a_record(at))
    await history.write(a_record(AT + timedelta(days=3650)))
    await history.write(a_record(AT))
    await history.close()
    assert len(list(tmp_path.iterdir())) == 26


async def test_a_file_that_cannot_be_deleted_costs_no_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("2026-01-01T00.jsonl", "2026-01-31T15.jsonl", "2026-01-31T16.jsonl"):
        (tmp_path / name).touch()
    history = History(tmp_path, timedelta(hours=1))
    await history.start()
    (tmp_path / "2026-01-01T00.jsonl").unlink()
    (tmp_path / "2026-01-01T00.jsonl").mkdir()
    await history.write(a_record(AT))
    await history.close()
    assert len(list(read(tmp_path / "2026-01-31T17.jsonl"))) == 1
    assert [record.message for record in caplog.records] == ["cannot remove old history"]


@pytest.mark.parametrize("torn", [b'{"observation":{"at"', b"x" * 200_000, b""])
async def test_an_incomplete_last_line_is_removed_at_the_start(tmp_path: Path, torn: bytes) -> None:
    whole = dump_record(a_record(AT)) + b"\n"
    (tmp_path / "2026-01-31T17.jsonl").write_bytes(whole + torn)
    (tmp_path / "2026-01-31T16.jsonl").write_bytes(torn)
    history = History(tmp_path, timedelta(days=2))
    await history.start()
    await history.write(a_record(AT))
    await history.close()
    assert list(read(tmp_path)) == [a_record(AT)] * 2


def test_removing_a_line_reports_its_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\nthr")
    assert remove_incomplete_line(path) == 3
    assert remove_incomplete_line(path) == 0
    assert path.read_bytes() == b"one\ntwo\n"


async def test_a_full_disk_leaves_whole_lines_and_writing_resumes_when_there_is_space(tmp_path: Path) -> None:
    history = History(tmp_path, timedelta(days=2))
    await history.start()
    await history.write(a_record(AT))
    size = len(dump_record(a_record(AT))) + 1
    with largest_file(2 * size + 100):
        await history.write(a_record(AT))
        with pytest.raises(StoreError, match="cannot be written"):
            await history.write(a_record(AT))
        assert "cannot be written" in str(history.failure)
    await history.write(a_record(AT))
    assert history.failure is None
    await history.close()
    assert len(list(read(tmp_path))) == 3


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size of files of this process: like a full disk, without filling one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


async def test_a_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    history = History(tmp_path / "file" / "history", timedelta(days=2))
    with pytest.raises(StoreError, match="cannot be used for history: Not a directory"):
        await history.start()
    await history.close()


HOUR = timedelta(hours=1)
WHOLE = "2026-01-31T17.jsonl.gz"
LATER = AT + timedelta(seconds=1) + GRACE


async def until(true: Callable[[], object]) -> None:
    """Wait for the work of another thread."""
    deadline = time.monotonic() + 60  # for a slow machine with a slow disk
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def named(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_a_finished_hour_is_compressed(tmp_path: Path) -> None:
    history = History(tmp_path, timedelta(days=2))
    await history.start()
    records = [a_record(AT - timedelta(minutes=number)) for number in (2, 1, 0)] + [a_record(LATER)]
    for record in records:
        await history.write(record)
    await until(lambda: named(tmp_path) == [WHOLE, "2026-01-31T18.jsonl"])
    await history.close()
    assert (tmp_path / WHOLE).stat().st_mode & 0o777 == 0o600
    assert gzip.decompress((tmp_path / WHOLE).read_bytes()).splitlines() == [dump_record(r) for r in records[:3]]
    assert list(read(tmp_path)) == records


async def test_an_observation_of_the_last_hour_may_be_decided_in_the_next(tmp_path: Path) -> None:
    history = History(tmp_path, timedelta(days=2))
    await history.start()
    early, late = AT, LATER - timedelta(seconds=2)
    for at in (early, late, early, late):
        await history.write(a_record(at))
    assert named(tmp_path) == ["2026-01-31T17.jsonl", "2026-01-31T18.jsonl"]
    await history.write(a_record(LATER))
    await until(lambda: named(tmp_path) == [WHOLE, "2026-01-31T18.jsonl"])
    await history.close()
    assert len(list(read(tmp_path / WHOLE))) == 2


async def test_a_compressed_file_never_changes_when_the_clock_is_set_back(tmp_path: Path) -> None:
    history = History(tmp_path, timedelta(days=2))
    await history.start()
    await history.write(a_record(AT))
    await history.write(a_record(LATER))
    await until((tmp_path / WHOLE).exists)
    packed = (tmp_path / WHOLE).read_bytes()
    again = [a_record(AT - timedelta(minutes=minutes)) for minutes in (20, 10)]
    for record in again:
        await history.write(record)
    await until(lambda: "2026-01-31T18.jsonl.gz" in named(tmp_path))
    await history.write(a_record(LATER))
    await until((tmp_path / "2026-01-31T17.1.jsonl.gz").exists)
    await history.close()
    assert (tmp_path / WHOLE).read_bytes() == packed
    assert list(read(tmp_path / "2026-01-31T17.1.jsonl.gz")) == again
    assert [r.decision.at for r in read(tmp_path)] == [
        at.decision.at for at in (a_record(AT), *again, a_record(LATER), a_record(LATER))
    ]


async def test_files_left_by_a_kill_are_compressed_after_the_next_start(tmp_path: Path) -> None:
    line = dump_record(a_record(AT - 3 * HOUR)) + b"\n"
    (tmp_path / "2026-01-31T14.jsonl").write_bytes(line + b"torn")
    (tmp_path / ".2026-01-31T14.jsonl.gz.part").write_bytes(b"half")
    (tmp_path / "2026-01-31T15.jsonl").write_bytes(line)  # left by a kill before it was removed
    (tmp_path / "2026-01-31T15.jsonl.gz").write_bytes(gzip.compress(line))
    (tmp_path / "2026-01-31T13.jsonl").write_bytes(
        line
    )  # somebody else has written another file under the compressed name
    (tmp_path / "2026-01-31T13.jsonl.gz").write_bytes(b"no gzip")
    (tmp_path / "notes.jsonl").write_bytes(line)
    history = History(tmp_path, timedelta(days=2))
    await history.start()
    await history.write(a_record(AT))
    packed = ("13.1.jsonl.gz", "13.jsonl.gz", "14.jsonl.gz", "15.jsonl.gz")
    expected = [*(f"2026-01-31T{name}" for name in (*packed, "17.jsonl")), "notes.jsonl"]
    await until(lambda: named(tmp_path) == expected)
    await history.close()
    for name in ("13.1", "14", "15"):
        assert gzip.decompress((tmp_path / f"2026-01-31T{name}.jsonl.gz").read_bytes()) == line
    assert (tmp_path / "2026-01-31T13.jsonl.gz").read_bytes() == b"no gzip"


async def test_compression_delays_neither_decisions_nor_a_stop(tmp_path: Path) -> None:
    history = History(tmp_path, timedelta(days=2))
    await history.start()
    slow = tmp_path / "2026-01-31T12.jsonl"
    os.mkfifo(slow)
    waiting = threading.Event()

    def hold() -> None:
        with slow.open("wb") as writing:  # returns once the compressor reads it
            waiting.set()
            history._compressor._ending.wait(60)
            with suppress(BrokenPipeError):
                writing.write(b"x" * 100)

    holder = threading.Thread(target=hold)
    # The history skips pipes, so the test itself passes it to the compressor.
    history._compressor.add(slow)
    holder.start()
    try:
        await until(waiting.is_set)
        for at in (AT, LATER, LATER + HOUR):
            await history.write(a_record(at))
        assert len(list(read(tmp_path / "2026-01-31T19.jsonl"))) == 1
    finally:
        await history.close()
        holder.join()
    assert named(tmp_path) == [f"2026-01-31T{hour}.jsonl" for hour in (12, 17, 18, 19)]


async def test_a_full_disk_keeps_the_uncompressed_file_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for hour in (13, 14, 15):
        (tmp_path / f"2026-01-31T{hour}.jsonl").write_bytes(os.urandom(3_000_000))
    caplog.set_level("INFO")
    history = History(tmp_path, timedelta(days=2))
    with largest_file(1_000_000):
        await history.write(a_record(AT))
        await until(lambda: not any(history._compressor.has(path) for path in tmp_path.glob("*T1[345]*")))
    assert named(tmp_path) == [f"2026-01-31T{hour}.jsonl" for hour in (13, 14, 15, 17)]
    assert [record.message for record in caplog.records] == ["cannot compress history: the plain file is kept"]
    await history.write(a_record(LATER))
    await until(lambda: len(list(tmp_path.glob("*.gz"))) == 4)
    await history.close()
    assert [record.message for record in caplog.records][1:] == ["history is compressed again"]


async def test_compressed_files_expire_like_uncompressed_ones_and_an_hour_counts_once(tmp_path: Path) -> None:
    kept = ["2026-01-31T15.1.jsonl.gz", "2026-01-31T15.jsonl.gz", "2026-01-31T16.jsonl.gz", "2026-01-31T17.jsonl"]
    for name in (*kept[:3], "2026-01-31T14.1.jsonl.gz", "2026-01-31T14.jsonl.gz", "2026-01-31T13.jsonl"):
        (tmp_path / name).touch()
    history = History(tmp_path, timedelta(hours=2))
    await history.write(a_record(AT))
    await until(lambda: named(tmp_path) == kept)
    await history.close()


async def test_compression_can_be_disabled(tmp_path: Path) -> None:
    history = History(tmp_path, timedelta(days=2), compress=False)
    await history.start()
    await history.write(a_record(AT))
    await history.write(a_record(LATER))
    await history.close()
    assert named(tmp_path) == ["2026-01-31T17.jsonl", "2026-01-31T18.jsonl"]


def test_an_aborted_compression_keeps_the_uncompressed_file(tmp_path: Path) -> None:
    path = tmp_path / "2026-01-31T17.jsonl"
    path.write_bytes(b"line\n")
    ending = threading.Event()
    ending.set()
    compress(path, ending)
    assert named(tmp_path) == [path.name]


async def test_a_cluster_that_writes_too_much_is_skipped_until_the_next_hour_and_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin = AT.replace(minute=0, second=0)
    records = [a_record(begin + timedelta(minutes=number)) for number in range(61)]
    quiet = replace(records[5], decision=replace(records[5].decision, cluster="quiet"))
    size = len(dump_record(records[0]) + b"\n")
    monkeypatch.setattr("autoscaler.daemon.history.MAX_HOUR_BYTES", 3 * size)
    history = History(tmp_path, timedelta(days=7), compress=False)
    await history.start()
    for record in (*records[:5], quiet, *records[5:]):
        await history.write(record)
    await history.close()
    assert list(read(tmp_path)) == [*records[:3], quiet, records[60]]
    warnings = [line for line in caplog.records if line.levelname == "WARNING"]
    assert [(line.getMessage(), vars(line)["cluster"]) for line in warnings] == [
        ("history of this hour is full: decisions are not recorded until the next hour", records[0].decision.cluster)
    ]


async def test_a_deleted_directory_is_created_again(tmp_path: Path) -> None:
    directory = tmp_path / "var" / "history"
    history = History(directory, timedelta(days=7))
    await history.start()
    await history.write(a_record(AT))
    shutil.rmtree(directory.parent)
    await history.write(a_record(AT))
    assert history.failure is None
    await history.close()
    (file,) = directory.iterdir()
    assert file.read_bytes().count(b"\n") == 1
