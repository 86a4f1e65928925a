"""Following directories of this machine: each file once, whatever stops or fails, and Spark only for odd files."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from autoscaler import cli
from autoscaler.history import ingest_follow, ingest_records
from autoscaler.history.dataset import Dataset, open_dataset
from autoscaler.history.ingest_follow import Batch, Follower, FollowError, FollowOptions
from autoscaler.history.ingest_follow_local import FILE, LocalFollower, can_follow_local
from autoscaler.history.ingest_local import add_local
from autoscaler.history.ingest_records import Imported
from autoscaler.ports import AutoscalerError
from tests.history.test_follow import HOUR, NOON, expected, packed


def no_spark() -> SparkSession:
    raise AssertionError("Spark was started")


@dataclass
class Fleet:
    """Daemons' directories, and the dataset that receives their files."""

    root: Path
    batches: list[Batch] = field(default_factory=list)
    start: Any = no_spark

    @property
    def dataset(self) -> Dataset:
        return open_dataset(self.root / "dataset", make=True)

    @property
    def checkpoint(self) -> Path:
        return self.root / "dataset" / "_follow"

    def follower(self, *, dataset: Dataset | None = None, report: Any = None, **changes: Any) -> LocalFollower:
        options = FollowOptions(**{"places": [f"{self.root}/*/history"], "checkpoint": str(self.checkpoint), **changes})
        assert can_follow_local(options)
        return LocalFollower(
            dataset=dataset or self.dataset, options=options, report=report or self.batches.append, start=self.start
        )

    def follow(self, **changes: Any) -> list[Batch]:
        """Process the available files; returns the batches."""
        self.batches = []
        self.follower(**changes).run()
        return self.batches

    def rows(self, table: str = "observations") -> list[tuple[str, datetime]]:
        """Cluster and time of all rows."""
        names = [name for some in self.dataset.files(table).values() for name in some]
        read = [pq.ParquetFile(Path(self.dataset.path, name)).read(["cluster", "at"]).to_pylist() for name in names]
        return sorted((row["cluster"], row["at"]) for some in read for row in some)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_each_file_is_processed_once_without_spark(fleet: Fleet) -> None:
    for name in ("a", "b"):
        packed(fleet.root / name / "history", NOON)
    (fleet.root / "a" / "history" / "2026-01-31T13.jsonl").write_bytes(b"it still grows")
    (fleet.root / "a" / "history" / ".2026-01-31T14.jsonl.gz").write_bytes(b"it is hidden")
    (fleet.root / "a" / "history" / "_old").mkdir()
    (fleet.root / "a" / "history" / "_old" / "2026-01-31T14.jsonl.gz").write_bytes(b"so is this")
    (batch,) = fleet.follow()
    assert (batch.number, batch.files, batch.late, batch.gone, batch.waiting) == (0, 2, 0, 0, None)
    assert fleet.rows() == fleet.rows("decisions") == expected(("a", NOON), ("b", NOON))
    assert fleet.follow() == []
    # Subdirectories are searched too, and processed files may be deleted.
    packed(fleet.root / "a" / "history" / "below" / "c", NOON + HOUR).rename(
        fleet.root / "a" / "history" / "2026-01-31T13.jsonl.gz"
    )
    (fleet.root / "b" / "history" / "2026-01-31T12.jsonl.gz").unlink()
    packed(fleet.root / "d" / "history", NOON - 30 * HOUR)
    first, second = fleet.follow(files=1)
    assert [(batch.number, batch.files) for batch in (first, second)] == [(1, 1), (2, 1)]
    assert len(fleet.rows()) == 12


def test_a_file_is_late_when_a_newer_hour_was_read_in_an_earlier_batch(fleet: Fleet) -> None:
    for number, hours in enumerate((0, -1, -2)):
        file = packed(fleet.root / "a" / "history", NOON + hours * HOUR)
        os.utime(file, (number, number))
    assert [batch.late for batch in fleet.follow(files=1)] == [0, 0, 1]


def test_uncompressed_files_are_processed_if_requested(fleet: Fleet) -> None:
    packed_file = packed(fleet.root / "a" / "history", NOON)
    packed_file.with_suffix("").write_bytes(gzip.decompress(packed_file.read_bytes()))
    packed_file.unlink()
    assert fleet.follow() == []
    assert [batch.files for batch in fleet.follow(plain=True)] == [1]


def test_an_interrupted_batch_is_repeated_and_nothing_is_lost_or_duplicated(fleet: Fleet) -> None:
    for name in ("a", "b"):
        packed(fleet.root / name / "history", NOON)

    def fail(batch: Batch) -> None:
        # The rows are in the dataset, and the checkpoint does not have them: as after a kill between the two.
        raise AutoscalerError(f"killed in batch {batch.number}")

    with pytest.raises(AutoscalerError, match=r"^killed in batch 0$"):
        fleet.follower(report=fail).run()
    (again,) = fleet.follow()
    assert (again.number, again.files) == (0, 2)
    assert (again.imported.merged.added["decisions"], again.imported.merged.known["decisions"]) == (0, 6)
    # A kill in the middle of a line of the checkpoint.
    file = fleet.checkpoint / FILE
    file.write_bytes(file.read_bytes()[:-10])
    assert [batch.number for batch in fleet.follow()] == [0]
    assert fleet.follow() == []
    assert fleet.rows() == expected(("a", NOON), ("b", NOON))


def test_files_that_are_removed_before_they_are_read_stop_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: packed(fleet.root / name / "history", NOON) for name in "abc"}
    real = add_local

    def add(dataset: Dataset, there: Sequence[str], *, now: datetime) -> tuple[Imported, list[str]]:
        files["b"].unlink()
        return real(dataset, there, now=now)

    monkeypatch.setattr(ingest_follow, "add_local", add)
    (batch,) = fleet.follow()
    assert (batch.files, batch.gone) == (3, 1)
    assert fleet.rows() == expected(("a", NOON), ("c", NOON))


@pytest.mark.e2e
def test_spark_is_started_once_and_only_for_odd_files(
    fleet: Fleet, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []
    started: list[int] = []
    real = ingest_records.add

    def add(spark: SparkSession, dataset: Dataset, files: Sequence[str], *, now: datetime) -> Imported:
        asked.append([Path(file).parents[1].name for file in files])
        return real(spark, dataset, files, now=now)

    def start() -> SparkSession:
        started.append(1)
        return spark

    fleet.start = start
    monkeypatch.setattr(ingest_follow, "add", add)
    for hour in range(3):
        packed(fleet.root / "a" / "history", NOON + hour * HOUR)
        packed(fleet.root / "odd" / "history", NOON + hour * HOUR, *([b"nonsense\n"] if hour else []))
        (batch,) = fleet.follow()
        assert batch.imported.merged.added["decisions"] == 6
        assert batch.imported.rejected == ({"it is not a JSON object": 1} if hour else {})
    assert asked == [["odd"], ["odd"]]
    hours = [(name, NOON + hour * HOUR) for name in ("a", "odd") for hour in range(3)]
    assert fleet.rows() == expected(*hours)


@pytest.mark.e2e
def test_it_can_be_stopped_while_spark_works(
    fleet: Fleet, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(spark: SparkSession, *arguments: object, **options: object) -> Imported:
        threading.Timer(1, follower.stop).start()
        del arguments, options
        for _ in range(100):
            spark.range(10**12).selectExpr("max(hash(id))").collect()
        return Imported()

    monkeypatch.setattr(ingest_follow, "add", add)
    fleet.start = lambda: spark
    packed(fleet.root / "a" / "history", NOON, b"nonsense\n")
    follower = fleet.follower()
    follower.run()
    monkeypatch.undo()
    assert fleet.batches == []
    (batch,) = fleet.follow()
    assert (batch.number, batch.imported.merged.added["decisions"]) == (0, 3)


def test_it_searches_repeatedly_until_it_is_stopped(fleet: Fleet) -> None:
    packed(fleet.root / "a" / "history", NOON)

    def report(batch: Batch) -> None:
        fleet.batches.append(batch)
        if len(fleet.batches) == 3:
            follower.stop()
            follower.stop()
        packed(fleet.root / "b" / "history", NOON + len(fleet.batches) * HOUR)

    follower = fleet.follower(report=report, every=timedelta())
    follower.run()
    assert [(batch.number, batch.files) for batch in fleet.batches] == [(0, 1), (1, 1), (2, 1)]
    # The batch in which it was stopped is complete.
    assert [(batch.number, batch.files) for batch in fleet.follow()] == [(3, 1)]


def test_it_waits_while_another_process_writes_and_can_be_stopped_meanwhile(fleet: Fleet) -> None:
    packed(fleet.root / "a" / "history", NOON)
    warned: list[str] = []
    follower = fleet.follower()

    def warn(text: str) -> None:
        warned.append(text)
        threading.Timer(0.1, follower.stop).start()

    follower.warn = warn
    with fleet.dataset.writing():
        follower.run()
    assert (fleet.batches, fleet.rows()) == ([], [])
    assert "is being written by process" in warned[0]
    assert [batch.files for batch in fleet.follow()] == [1]


def test_a_checkpoint_belongs_to_one_dataset_and_to_one_follower_at_a_time(fleet: Fleet) -> None:
    packed(fleet.root / "a" / "history", NOON)

    def second(_: Batch) -> None:
        with pytest.raises(FollowError, match=r"_follow: is used by two queries at a time"):
            fleet.follower().run()

    fleet.follower(report=second).run()
    with pytest.raises(FollowError, match=r"_follow: is the checkpoint of another dataset"):
        fleet.follow(dataset=open_dataset(fleet.root / "another", make=True))
    content = (fleet.checkpoint / FILE).read_bytes()
    for damage in (b"nonsense\n", b"[]\n", b'{"batch": 3}\n', b"\xff\xfe\n"):
        (fleet.checkpoint / FILE).write_bytes(content + damage)
        with pytest.raises(FollowError, match=r"_follow: the checkpoint is damaged \(.*\); move it away"):
            fleet.follow()
    (fleet.checkpoint / FILE).write_bytes(content)
    assert fleet.follow() == []


@pytest.mark.e2e
def test_files_that_spark_has_processed_are_not_read_again(fleet: Fleet, spark: SparkSession) -> None:
    for hour in range(3):
        packed(fleet.root / "a b%20+" / "history", NOON + hour * HOUR)
    options = FollowOptions(places=[f"{fleet.root}/*/history"], checkpoint=str(fleet.checkpoint), files=1)

    def fail_later(batch: Batch) -> None:
        fleet.batches.append(batch)
        if batch.number == 2:
            raise AutoscalerError("killed")

    with pytest.raises(AutoscalerError, match="killed"):
        Follower(spark=spark, dataset=fleet.dataset, options=options, report=fail_later).run()
    other = fleet.root / "copy"
    shutil.copytree(fleet.checkpoint, other)
    # The last batch is not complete.
    (batch,) = fleet.follow()
    assert (batch.number, batch.files, batch.imported.merged.known["decisions"]) == (2, 1, 3)
    assert fleet.follow() == []
    assert fleet.rows() == expected(*(("a b%20+", NOON + hour * HOUR) for hour in range(3)))
    with pytest.raises(FollowError, match=r"copy: is the checkpoint of another dataset"):
        fleet.follow(dataset=open_dataset(fleet.root / "another", make=True), checkpoint=str(other))
    (other / "metadata").write_text("nonsense")
    with pytest.raises(FollowError, match=r"copy: the checkpoint is damaged"):
        fleet.follow(checkpoint=str(other))


def test_paths_that_only_spark_can_search_are_left_to_it(tmp_path: Path) -> None:
    def options(*places: str, **changes: Any) -> FollowOptions:
        return FollowOptions(**{"places": places, "checkpoint": str(tmp_path), **changes})

    assert can_follow_local(options("/srv/*/history", "/srv/a?"))
    assert not can_follow_local(options("/srv/{a,b}/history"))
    assert not can_follow_local(options("s3a://bucket/history"))
    assert not can_follow_local(options("/srv/a", checkpoint="s3a://bucket/checkpoint"))
    assert not can_follow_local(options("/srv/a", count=True))
    (tmp_path / "[a]").mkdir()
    assert can_follow_local(options(str(tmp_path / "[a]")))


def test_the_command_does_not_start_spark(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autoscaler.cli.spark_options.open_session", no_spark)
    packed(fleet.root / "a" / "history", NOON)
    command = ["history", "follow", str(fleet.root / "a" / "history"), str(fleet.root / "dataset"), "--available-now"]
    assert cli.main([*command, "--json"]) == 0
    batch = json.loads(capsys.readouterr().out)
    assert (batch["batch"], batch["files"], batch["new"]) == (0, 1, 3)
    assert cli.main(command) == 0
    assert capsys.readouterr().out.endswith("No new file.\n")
    assert (
        cli.main(["history", "follow", str(fleet.root / "none"), str(fleet.root / "dataset"), "--available-now"]) == 1
    )
    printed = capsys.readouterr()
    assert "none: there is no such directory" in printed.err
    assert printed.out == ""


def test_the_command_ends_after_the_batch_when_requested(fleet: Fleet) -> None:
    packed(fleet.root / "a" / "history", NOON)
    command = ["history", "follow", str(fleet.root / "a" / "history"), str(fleet.root / "dataset"), "--json"]
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        process = subprocess.Popen(
            [sys.executable, "-m", "autoscaler", *command, "--trigger", "1s"], stdout=subprocess.PIPE, text=True
        )
        with process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["files"] == 1
            assert psutil.Process(process.pid).children() == []
            process.send_signal(number)
            assert process.wait(60) == code
        packed(fleet.root / "a" / "history", NOON + HOUR)


def test_an_unreadable_directory_is_named(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    packed(fleet.root / "a" / "history", NOON)
    place = str(fleet.root / "a" / "history")

    def refuse(_: str) -> None:
        raise PermissionError(13, "Permission denied", place)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(FollowError, match=r"a/history: cannot be used: Permission denied"):
        fleet.follow(places=[place])
