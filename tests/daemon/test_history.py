"""The history files: a file for each hour, whole lines, nothing kept for too long."""

# ruff: noqa: ASYNC240 - looking at small local files

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoscaler.daemon.history import History, mend
from autoscaler.ports import StoreError
from autoscaler.records import dump_record
from autoscaler.replay.trace import read

from .test_journal import a_record

AT = datetime(2026, 1, 31, 17, 59, 59, tzinfo=UTC)


async def test_each_hour_has_its_file(tmp_path: Path) -> None:
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


async def test_old_files_are_removed_when_an_hour_begins_and_others_are_left(tmp_path: Path) -> None:
    others = ["2020-01-01.jsonl", "notes.txt"]
    for name in (*(f"2026-01-31T{hour:02}.jsonl" for hour in range(17)), *others):
        (tmp_path / name).touch()
    history = History(tmp_path, timedelta(hours=2))
    await history.start()
    await history.write(a_record(AT))
    await history.close()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted([*(f"2026-01-31T{hour}.jsonl" for hour in (15, 16, 17)), *others])


async def test_a_clock_that_jumps_ahead_does_not_take_the_history_away(tmp_path: Path) -> None:
    hours = [AT - timedelta(hours=number) for number in range(24, 0, -1)]
    history = History(tmp_path, timedelta(days=1))
    await history.start()
    for at in hours:
        await history.write(a_record(at))
    await history.write(a_record(AT + timedelta(days=3650)))
    await history.write(a_record(AT))
    await history.close()
    assert len(list(tmp_path.iterdir())) == 26


async def test_a_file_that_cannot_be_removed_costs_no_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("2026-01-01T00.jsonl", "2026-01-31T15.jsonl", "2026-01-31T16.jsonl"):
        (tmp_path / name).touch()
    history = History(tmp_path, timedelta(hours=1))
    await history.start()
    (tmp_path / "2026-01-01T00.jsonl").unlink()
    (tmp_path / "2026-01-01T00.jsonl").mkdir()
    await history.write(a_record(AT))
    await history.close()
    assert len(list(read(tmp_path / "2026-01-31T17.jsonl"))) == 1
    assert [record.message for record in caplog.records] == ["old history cannot be removed"]


@pytest.mark.parametrize("torn", [b'{"observation":{"at"', b"x" * 200_000, b""])
async def test_a_torn_last_line_is_removed_at_the_start(tmp_path: Path, torn: bytes) -> None:
    whole = dump_record(a_record(AT)) + b"\n"
    (tmp_path / "2026-01-31T17.jsonl").write_bytes(whole + torn)
    (tmp_path / "2026-01-31T16.jsonl").write_bytes(torn)
    history = History(tmp_path, timedelta(days=2))
    await history.start()
    await history.write(a_record(AT))
    await history.close()
    assert list(read(tmp_path)) == [a_record(AT)] * 2


def test_mending_tells_how_much_was_lost(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\nthr")
    assert mend(path) == 3
    assert mend(path) == 0
    assert path.read_bytes() == b"one\ntwo\n"


async def test_a_full_disk_leaves_whole_lines_and_it_goes_on_when_there_is_space(tmp_path: Path) -> None:
    history = History(tmp_path, timedelta(days=2))
    await history.start()
    await history.write(a_record(AT))
    size = len(dump_record(a_record(AT))) + 1
    with largest_file(2 * size + 100):
        await history.write(a_record(AT))
        with pytest.raises(StoreError, match="cannot be written"):
            await history.write(a_record(AT))
        assert "cannot be written" in history.failure
    await history.write(a_record(AT))
    assert history.failure == ""
    await history.close()
    assert len(list(read(tmp_path))) == 3


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size`: a full disk without one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


async def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    history = History(tmp_path / "file" / "history", timedelta(days=2))
    with pytest.raises(StoreError, match="cannot be used for history: Not a directory"):
        await history.start()
    await history.close()
