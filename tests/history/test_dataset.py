"""A dataset only grows by new rows, and a kill at any moment loses nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.testing import assertDataFrameEqual

from autoscaler.history import dataset as package
from autoscaler.history.dataset import BusyError, Dataset, DatasetError, Merged, open_dataset, store
from autoscaler.history.dataset.files import LocalFiles
from autoscaler.history.dataset.hadoop_files import HadoopFiles
from autoscaler.history.dataset.layout import COMMIT, STAGING, Change, Layout
from autoscaler.history.dataset.store import LOCK, MARKER

BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
SCHEMA = "cluster string, at timestamp, desired int, ready int"


def merge(dataset: Dataset, spark: SparkSession, new: Mapping[str, DataFrame]) -> Merged:
    with dataset.writing() as writer:
        return writer.merge(spark, new)


def rows(spark: SparkSession, clusters: int, days: int, *, every: int = 60, size: int = 3) -> DataFrame:
    ticks = days * 1440 // every
    made = [
        (f"c{number}", BEGIN + timedelta(minutes=every * tick), size, size)
        for number in range(clusters)
        for tick in range(ticks)
    ]
    return spark.createDataFrame(made, SCHEMA)


def contents(path: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in path.rglob("*.parquet")
        if file.is_file()
    }


def test_everything_that_the_package_offers_exists() -> None:
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


def test_only_new_rows_are_added_and_only_their_days_are_written(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "with [odd] name"
    dataset = open_dataset(path, make=True)
    first = merge(dataset, spark, {"observations": rows(spark, 3, 2)})
    assert (first.added, first.known) == ({"observations": 144}, {"observations": 0})
    assert dataset.dates() == (date(2026, 1, 5), date(2026, 1, 6))
    before = contents(path)

    again = merge(open_dataset(path), spark, {"observations": rows(spark, 3, 2).union(rows(spark, 1, 1))})
    assert (again.added, again.known) == ({"observations": 0}, {"observations": 168})
    assert contents(path) == before

    # One day gets a row between two others, and an existing row wins over a new one of the same time.
    late = [("c1", BEGIN + timedelta(minutes=30), 7, 7), ("c1", BEGIN, 9, 9), ("c0", BEGIN + timedelta(days=1), 9, 9)]
    merged = merge(dataset, spark, {"observations": spark.createDataFrame(late, SCHEMA)})
    assert (merged.added, merged.known) == ({"observations": 1}, {"observations": 2})
    assert merged.dates == {"observations": (date(2026, 1, 5),)}
    untouched = {name: held for name, held in before.items() if "2026-01-06" in name}
    assert untouched
    assert {name: held for name, held in contents(path).items() if "2026-01-06" in name} == untouched
    day = dataset.read(spark, "observations", until=date(2026, 1, 5)).select("cluster", "at", "desired")
    wanted = (
        rows(spark, 3, 1)
        .select("cluster", "at", "desired")
        .union(spark.createDataFrame(late[:1], SCHEMA).select("cluster", "at", "desired"))
    )
    assertDataFrameEqual(day, wanted)
    some = dataset.read(spark, "observations", since=BEGIN + timedelta(hours=30), clusters=["c2"])
    assert some.count() == 18


@pytest.mark.e2e
def test_a_clusters_day_is_in_one_file_and_sorted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoscaler.history.dataset.merge.ROWS_PER_FILE", 50)
    dataset = open_dataset(tmp_path, make=True)
    merge(dataset, spark, {"observations": rows(spark, 6, 1).orderBy("at", ascending=False)})
    files = sorted(tmp_path.glob("observations/date=*/*.parquet"))
    held = []
    for file in files:
        there = [(row.cluster, row.at) for row in spark.read.parquet(str(file)).select("cluster", "at").collect()]
        assert there == sorted(there)
        held.append({cluster for cluster, _ in there})
    assert 2 <= len(files) <= 3
    assert sorted(cluster for clusters in held for cluster in clusters) == [f"c{number}" for number in range(6)]


@pytest.mark.e2e
def test_of_several_rows_of_one_time_the_same_is_chosen_whatever_their_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    taken = set()
    for number, order in enumerate(([1, 2, 3], [3, 1, 2])):
        dataset = open_dataset(tmp_path / str(number), make=True)
        made = [("c", BEGIN, size, size) for size in order]
        merged = merge(dataset, spark, {"observations": spark.createDataFrame(made, SCHEMA)})
        assert (merged.added, merged.known) == ({"observations": 1}, {"observations": 2})
        taken |= {row.desired for row in dataset.read(spark, "observations").collect()}
    assert len(taken) == 1


class Killed(Exception):  # noqa: N818 - not an error
    pass


def _prepared(path: Path) -> Dataset:
    dataset = open_dataset(path, make=True)
    for name, text in {
        "observations/date=2026-01-05/a.parquet": "old a",
        "observations/date=2026-01-06/b.parquet": "b",
        "_staging/new/observations/date=2026-01-05/c.parquet": "new c",
        "_staging/new/observations/date=2026-01-05/d.parquet": "new d",
        "_staging/new/decisions/date=2026-01-05/e.parquet": "new e",
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return dataset


CHANGE = Change(
    {f"_staging/new/{name}": name for name in (f"observations/date=2026-01-05/{file}.parquet" for file in "cd")}
    | {"_staging/new/decisions/date=2026-01-05/e.parquet": "decisions/date=2026-01-05/e.parquet"},
    ("observations/date=2026-01-05/a.parquet",),
)


def shown(dataset: Dataset) -> list[str]:
    """The rows that a reader finds."""
    names = [*dataset._layout.current("observations")[0], *dataset._layout.current("decisions")[0]]
    return sorted((Path(dataset.path) / name).read_text() for name in names)


def _moments(monkeypatch: pytest.MonkeyPatch, killed_at: int, *, once: bool = False) -> None:
    """Kill the process before that step of a commit; or make only that step raise an error."""
    steps = 0

    def counted(verb: str) -> None:
        real = getattr(LocalFiles, verb)

        def step(self: object, *arguments: object) -> object:
            nonlocal steps
            steps += 1
            if steps == killed_at + 1 or (steps > killed_at and not once):
                raise Killed
            return real(self, *arguments)

        monkeypatch.setattr(LocalFiles, verb, step)

    for verb in ("write", "move", "remove", "sync"):
        counted(verb)


def test_a_kill_at_any_step_of_a_commit_shows_all_or_nothing_and_is_completed_later(tmp_path: Path) -> None:
    old, new = ["b", "old a"], ["b", "new c", "new d", "new e"]
    outcomes = []
    for killed_at in range(20):
        path = tmp_path / str(killed_at)
        dataset = _prepared(path)
        with pytest.MonkeyPatch.context() as patch:
            _moments(patch, killed_at)
            try:
                dataset._layout.commit(CHANGE)
                over = True
            except Killed:
                over = False
        outcomes.append(shown(dataset))
        committed = (path / COMMIT).exists() or over
        assert outcomes[-1] == (new if committed else old)
        with open_dataset(path).writing():
            pass
        assert shown(open_dataset(path)) == outcomes[-1]
        assert not (path / COMMIT).exists()
        assert not (path / STAGING).exists()
        if over:
            break
    assert over
    assert old in outcomes
    assert outcomes.count(new) > 5


def test_an_error_at_any_step_of_a_commit_shows_all_or_nothing_and_is_completed_later(tmp_path: Path) -> None:
    old, new = ["b", "old a"], ["b", "new c", "new d", "new e"]
    over = False
    for failed_at in range(20):
        path = tmp_path / str(failed_at)
        dataset = open_dataset(path, make=True)
        with pytest.MonkeyPatch.context() as patch, suppress(Killed), dataset.writing() as writer:
            _prepared(path)
            _moments(patch, failed_at, once=True)
            writer.layout.commit(CHANGE)
            over = True
            patch.undo()
        outcome = shown(dataset)
        assert outcome == (new if over or (path / COMMIT).exists() else old)
        with open_dataset(path).writing():
            pass
        assert shown(open_dataset(path)) == outcome
        assert not (path / STAGING).exists()
        if over:
            break
    assert failed_at > 5


def test_two_processes_cannot_write_at_once_and_the_lock_of_a_dead_one_does_not_count(tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, make=True)
    busy = pytest.raises(BusyError, match=rf"is being written by process {os.getpid()} on ")
    with dataset.writing(), busy, open_dataset(tmp_path).writing():
        pass
    (tmp_path / LOCK).write_text("process 1 on somewhere\n")
    with dataset.writing():
        pass


def test_another_engine_can_read_while_no_merge_moves_files(tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path, make=True)
    command = ["flock", "--shared", "--nonblock", str(tmp_path / LOCK), "echo", "read"]
    with dataset.writing():
        assert subprocess.run(command, capture_output=True, check=False).returncode == 1
    command[-2:] = ["cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write(b"reading\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == b"reading\n"
        with pytest.raises(BusyError), dataset.writing():
            pass
    with dataset.writing():
        pass


@pytest.mark.e2e
def test_rows_are_appended_to_the_newest_day_which_is_compacted_when_the_next_one_begins(
    spark: SparkSession, tmp_path: Path
) -> None:
    dataset = open_dataset(tmp_path, make=True)
    everything = rows(spark, 2, 2).persist()
    monday = tmp_path / "observations" / "date=2026-01-05"
    before: set[str] = set()
    for hours in ((0, 6), (6, 12), (12, 18)):
        begin, end = (BEGIN + timedelta(hours=hour) for hour in hours)
        with dataset.writing() as writer:
            part = everything.where(F.col("at").between(F.lit(begin), F.lit(end - timedelta(minutes=1)))).coalesce(1)
            merged = writer.merge(spark, {"observations": part}, partitioned=("observations",))
        assert merged.added == {"observations": 12}
        names = {file.name for file in monday.glob("*.parquet")}
        # The existing files are unchanged.
        assert before < names
        before = names
    assert len(before) == 3
    with dataset.writing() as writer:
        rest = everything.where(F.col("at") >= F.lit(BEGIN + timedelta(hours=26))).coalesce(1)
        writer.merge(spark, {"observations": rest}, partitioned=("observations",))
    (file,) = monday.glob("*.parquet")
    assert file.name not in before
    held = [(row.cluster, row.at) for row in spark.read.parquet(str(file)).select("cluster", "at").collect()]
    assert held == sorted(held)
    assert len(held) == 36
    # Existing rows and late ones are added once.
    assert merge(dataset, spark, {"observations": everything}).added == {"observations": 96 - 36 - 44}
    assertDataFrameEqual(
        dataset.read(spark, "observations").select("cluster", "at", "desired"),
        everything.select("cluster", "at", "desired"),
    )
    everything.unpersist()


def test_only_files_that_may_have_rows_of_the_time_are_searched_for_known_ones(tmp_path: Path) -> None:
    begin = datetime(2026, 1, 31, tzinfo=UTC)

    def write(name: str, hour: int, *, statistics: bool = True) -> None:
        times = pa.array([begin + timedelta(hours=hour, minutes=each) for each in (0, 59)], pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"cluster": ["a", "b"], "at": times}), tmp_path / name, write_statistics=statistics)

    write("at 0", 0)
    write("at 1", 1)
    write("at 2", 2)
    write("unknown", 9, statistics=False)
    (tmp_path / "damaged").write_bytes(b"PAR1")
    names = sorted(path.name for path in tmp_path.iterdir())
    layout = Layout(str(tmp_path), LocalFiles(tmp_path))

    found = layout.overlapping(names, begin + timedelta(minutes=59), begin + timedelta(hours=1))
    assert found == ["at 0", "at 1", "damaged", "unknown"]
    assert layout.count(["at 0", "unknown"]) == 4
    assert layout.count(names) is None


def test_a_write_error_is_reported_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    dataset = _prepared(tmp_path)
    (tmp_path / COMMIT).write_text(json.dumps({"come": dict(CHANGE.add), "go": CHANGE.remove}))
    before = shown(dataset)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DatasetError, match=f"^{tmp_path}: cannot be written: No space left on device$"):
            dataset.keep_note("list", "of files")
        with pytest.raises(DatasetError, match="No space left on device"), dataset.writing():
            pass
    assert dataset.note("list") is None
    assert shown(dataset) == before
    with dataset.writing():
        pass
    assert shown(dataset) == before
    # The error of the process that holds the lock is not taken for one of the dataset.
    with pytest.raises(FileNotFoundError), dataset.writing():
        (tmp_path / "missing").read_text()
    (tmp_path / LOCK).unlink()
    (tmp_path / LOCK).mkdir()
    with pytest.raises(DatasetError, match=f"^{tmp_path}/_lock: cannot be written: Is a directory$"), dataset.writing():
        pass


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        (
            {"format": "autoscaler-history", "version": 2},
            "was written by a newer autoscaler (version 2, this one knows",
        ),
        ({"format": "other", "version": 1}, "has format 'other', expected 'autoscaler-history'"),
        ("{", "is damaged, expected a format and a version"),
        (None, "is not a dataset (it has no autoscaler-history.json)"),
    ],
)
def test_a_directory_without_a_dataset_of_a_known_version_is_refused(tmp_path: Path, marker: Any, message: str) -> None:
    if marker is not None:
        (tmp_path / MARKER).write_text(marker if isinstance(marker, str) else json.dumps(marker))
    with pytest.raises(DatasetError) as error:
        open_dataset(tmp_path)
    assert message in str(error.value)


def test_a_directory_with_something_else_in_it_does_not_become_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").touch()
    with pytest.raises(DatasetError, match="contains other files"):
        open_dataset(tmp_path, make=True)


@pytest.fixture
def one_day(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[Dataset, Path]]:
    dataset = open_dataset(tmp_path / "history", make=True)
    merge(dataset, spark, {"observations": rows(spark, 1, 1)})
    (file,) = (tmp_path / "history").glob("observations/date=*/*.parquet")
    yield dataset, file
    shutil.rmtree(tmp_path / "history")


def test_a_damaged_file_is_named(spark: SparkSession, one_day: tuple[Dataset, Path]) -> None:
    dataset, file = one_day
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetError) as error:
        dataset.read(spark, "observations")
    assert f"{file}: cannot be read: it is cut off; put a good copy" in str(error.value)

    # Spark would read it as no rows.
    file.write_bytes(b"")
    with pytest.raises(DatasetError, match=r"cannot be read: it is empty; put a good copy"):
        dataset.read(spark, "observations")

    # Damaged in the middle, which shows only when it is read.
    file.write_bytes(whole[:4] + bytes(len(whole) - 200) + whole[-196:])
    with pytest.raises(DatasetError) as error, dataset.reading():
        dataset.read(spark, "observations").collect()
    assert f"{file.name}: cannot be read: it is damaged" in str(error.value)


@pytest.mark.e2e
def test_another_file_system_than_this_machines_is_used_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    # The only one available here is this machine's, through Hadoop.
    url = f"file://{tmp_path}/far"
    with pytest.raises(DatasetError, match="is not a dataset"):
        store._opened(url, HadoopFiles(url), make=False)
    dataset = store._opened(url, HadoopFiles(url), make=True)
    assert merge(dataset, spark, {"observations": rows(spark, 2, 1)}).added == {"observations": 48}
    far = store._opened(url, HadoopFiles(url), make=False)
    (day,) = (tmp_path / "far" / "observations").iterdir()
    before = {file.name for file in day.glob("*.parquet")}
    assert merge(far, spark, {"observations": rows(spark, 3, 1)}).added == {"observations": 24}
    assert not before & {file.name for file in day.glob("*.parquet")}
    assert far.read(spark, "observations").count() == 72
    assert far.note("x") is None
    for text in ("y", "in its place"):
        far.keep_note("x", text)
        assert far.note("x") == text
    # A copy that was made, but not removed at its old place: readers may still use it.
    (tmp_path / "far" / "old").write_text("same")
    (tmp_path / "far" / "new").write_text("same")
    place = (tmp_path / "far" / "new").stat().st_ino
    far._layout.files.move("old", "new")
    assert not (tmp_path / "far" / "old").exists()
    assert (tmp_path / "far" / "new").stat().st_ino == place

    (tmp_path / "far" / LOCK).write_text("process 1 on elsewhere\n")
    with pytest.raises(BusyError, match=r"being written by process 1 on elsewhere; .* remove file://.*/far/_lock"):
        merge(far, spark, {})
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / "far" / LOCK).write_text(f"process {gone.pid} on {socket.gethostname()}\n")
    with far.writing():
        pass
    # In a restarted container everything is as before, even the process id.
    (tmp_path / "far" / LOCK).write_text(f"process {os.getpid()} on {socket.gethostname()}, 01234567\n")
    with far.writing(), pytest.raises(BusyError, match=rf"being written by process {os.getpid()} on "), far.writing():
        pass
    assert not (tmp_path / "far" / LOCK).exists()


def test_a_file_system_that_spark_lacks_is_reported(spark: SparkSession) -> None:
    assert spark
    with pytest.raises(DatasetError, match=r"^gs://bucket/fleet: its file system cannot be used: Class .* not found; "):
        open_dataset("gs://bucket/fleet")
