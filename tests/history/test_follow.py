"""Following daemons: their compressed files are in the dataset once, whatever stops, fails or comes late."""

from __future__ import annotations

import contextlib
import gzip
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from autoscaler.core.model import Decision, Observation, Reading, Reason
from autoscaler.daemon.compression import compress
from autoscaler.history.dataset import Dataset, open_dataset
from autoscaler.history.ingest_follow import Batch, Follower, FollowError, FollowOptions, join_places, url, waiting_of
from autoscaler.history.ingest_local import add_local as real
from autoscaler.history.ingest_records import Imported
from autoscaler.ports import AutoscalerError, Record
from autoscaler.trace.codec import dump_record

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def lines(cluster: str, hour: datetime, count: int = 3) -> list[bytes]:
    """Records of an hour, each as a line."""
    found = []
    for number in range(count):
        at = hour + timedelta(minutes=number)
        observation = Observation(at=at, desired=3, ready=3, metrics={"lag": Reading(float(number), at)})
        found.append(
            dump_record(
                Record(
                    observation,
                    Decision(cluster=cluster, at=at, current=3, proposed=3, desired=3, reason=Reason.STEADY),
                )
            )
            + b"\n"
        )
    return found


def packed(directory: Path, hour: datetime, *more: bytes) -> Path:
    """A file as a daemon leaves it: one cluster, named like the parent directory."""
    directory.mkdir(parents=True, exist_ok=True)
    plain = directory / f"{hour:%Y-%m-%dT%H}.jsonl"
    plain.write_bytes(b"".join([*lines(directory.parent.name, hour), *more]))
    compress(plain, threading.Event())
    return plain.with_name(f"{plain.name}.gz")


@dataclass
class Fleet:
    """Daemons' directories, and the dataset that receives their files."""

    spark: SparkSession
    root: Path
    batches: list[Batch] = field(default_factory=list)

    @property
    def dataset(self) -> Dataset:
        return open_dataset(self.root / "dataset", make=True)

    def follow(self, **changes: object) -> list[Batch]:
        """Process the available files; returns the batches."""
        self.batches = []
        what: dict[str, Any] = {
            "places": [f"{self.root}/*/history"],
            "checkpoint": str(self.root / "dataset" / "_follow"),
            **changes,
        }
        Follower(
            spark=self.spark, dataset=self.dataset, options=FollowOptions(**what), report=self.batches.append
        ).run()
        return self.batches

    def rows(self, table: str = "observations") -> list[tuple[str, datetime]]:
        """Cluster and time of all rows."""
        found = self.dataset.read(self.spark, table).select("cluster", "at").toArrow().to_pylist()
        return sorted((row["cluster"], row["at"]) for row in found)

    def rejected(self) -> list[tuple[str, str]]:
        found = self.dataset.read(self.spark, "rejected").select("file", "text").collect()
        return sorted((row.file.rsplit("/", 1)[1], row.text) for row in found)


@pytest.fixture
def fleet(spark: SparkSession, tmp_path: Path) -> Fleet:
    return Fleet(spark, tmp_path)


def expected(*hours: tuple[str, datetime]) -> list[tuple[str, datetime]]:
    return sorted((name, hour + timedelta(minutes=number)) for name, hour in hours for number in range(3))


@pytest.mark.e2e
def test_each_file_is_processed_once_and_late_duplicate_or_damaged_ones_do_no_harm(fleet: Fleet) -> None:
    for name in ("a", "b"):
        packed(fleet.root / name / "history", NOON)
    (fleet.root / "a" / "history" / "2026-01-31T13.jsonl").write_bytes(b"it still grows")
    (fleet.root / "a" / "history" / ".2026-01-31T14.jsonl.gz.part").write_bytes(b"it is being packed")
    (batch,) = fleet.follow()
    assert (batch.number, batch.files, batch.late) == (0, 2, 0)
    assert fleet.rows() == fleet.rows("decisions") == expected(("a", NOON), ("b", NOON))
    assert fleet.follow() == []

    late, next_ = NOON - 30 * HOUR, NOON + HOUR
    packed(fleet.root / "a" / "history", late)
    again = packed(fleet.root / "b" / "history", next_, b"nonsense\n", lines("b", NOON)[0])
    shutil.copy(again, again.with_name("2026-01-31T13.1.jsonl.gz"))
    (fleet.root / "c" / "history").mkdir(parents=True)
    torn = gzip.compress(b"".join(lines("c", NOON, 50)))
    (fleet.root / "c" / "history" / "2026-01-31T12.jsonl.gz").write_bytes(torn[: len(torn) // 2])
    (batch,) = fleet.follow()
    assert (batch.files, batch.gone) == (4, 0)
    assert batch.imported.damaged == (str(fleet.root / "c" / "history" / "2026-01-31T12.jsonl.gz"),)
    assert batch.imported.merged.added["decisions"] >= 6
    rows = [row for row in fleet.rows() if row[0] != "c"]
    assert rows == expected(("a", NOON), ("b", NOON), ("a", late), ("b", next_))
    names = {name for name, _ in fleet.rejected()}
    assert {"2026-01-31T13.jsonl.gz", "2026-01-31T12.jsonl.gz"} <= names
    assert ("2026-01-31T13.jsonl.gz", "nonsense") in fleet.rejected()
    before = fleet.rows(), fleet.rejected()
    shutil.rmtree(fleet.root / "dataset" / "_follow")
    fleet.follow()
    assert (fleet.rows(), fleet.rejected()) == before


@pytest.mark.e2e
def test_an_interrupted_batch_is_repeated_and_nothing_is_lost_or_duplicated(fleet: Fleet) -> None:
    for name in ("a", "b"):
        packed(fleet.root / name / "history", NOON)

    def fail(batch: Batch) -> None:
        # The rows are in the dataset, and Spark does not know it: as after a kill between the two.
        raise AutoscalerError(f"killed in batch {batch.number}")

    what = FollowOptions(places=[f"{fleet.root}/*/history"], checkpoint=str(fleet.root / "checkpoint"))
    with pytest.raises(AutoscalerError, match=r"^killed in batch 0$"):
        Follower(spark=fleet.spark, dataset=fleet.dataset, options=what, report=fail).run()
    (again,) = fleet.follow(checkpoint=what.checkpoint)
    assert (again.number, again.files) == (0, 2)
    assert (again.imported.merged.added["decisions"], again.imported.merged.known["decisions"]) == (0, 6)
    assert fleet.rows() == expected(("a", NOON), ("b", NOON))


@pytest.mark.e2e
def test_a_file_that_is_removed_before_it_is_read_stops_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: packed(fleet.root / name / "history", NOON) for name in "abcd"}
    real_work = Follower._work
    asked: list[list[str]] = []

    def add(dataset: Dataset, there: Sequence[str], *, now: datetime) -> tuple[Imported, list[str]]:
        asked.append([Path(file).parents[1].name for file in there])
        if len(asked) == 1:
            raise AutoscalerError("killed")
        if len(asked) == 2:
            files["c"].unlink()  # when it has been counted
        return real(dataset, there, now=now)

    def work(follower: Follower, batch: DataFrame, number: int) -> None:
        if asked:
            files["b"].unlink()  # when Spark has listed it
        real_work(follower, batch, number)

    monkeypatch.setattr("autoscaler.history.ingest_follow.add_local", add)
    monkeypatch.setattr(Follower, "_work", work)
    with pytest.raises(AutoscalerError, match=r"^killed$"):
        fleet.follow()
    files["a"].unlink()  # the repeated batch has it
    (batch,) = fleet.follow()
    assert asked == [["a", "b", "c", "d"], ["c", "d"]]
    assert (batch.number, batch.files, batch.gone) == (0, 2, 1)
    assert fleet.rows() == expected(("d", NOON))


@pytest.mark.e2e
def test_it_waits_while_another_process_writes_and_can_be_stopped_meanwhile(fleet: Fleet) -> None:
    packed(fleet.root / "a" / "history", NOON)
    warned: list[str] = []
    what = FollowOptions(places=[f"{fleet.root}/a/history"], checkpoint=str(fleet.root / "checkpoint"))

    def warn(text: str) -> None:
        warned.append(text)
        follower.stop()

    follower = Follower(spark=fleet.spark, dataset=fleet.dataset, options=what, report=fleet.batches.append, warn=warn)
    with fleet.dataset.writing():
        follower.run()
    assert (fleet.batches, fleet.rows()) == ([], [])
    assert "is being written by process" in warned[0]
    assert [batch.files for batch in fleet.follow(checkpoint=what.checkpoint)] == [1]
    assert fleet.rows() == expected(("a", NOON))


@pytest.mark.e2e
def test_waiting_files_are_counted_even_after_a_restart(fleet: Fleet) -> None:
    for number in range(5):
        packed(fleet.root / "a b,{c}" / "history", NOON + number * HOUR)
    places = [str(fleet.root / "a b,{c}" / "history"), f"{fleet.root}/x*"]
    batches: list[Batch] = []
    what = FollowOptions(places=places, checkpoint=str(fleet.root / "checkpoint"), files=2, count=True)
    busy = contextlib.ExitStack()

    def hold(batch: Batch) -> None:
        batches.append(batch)
        busy.enter_context(fleet.dataset.writing())

    # The second batch cannot write, and is stopped: Spark has recorded the files of the batch, but not its completion.
    first = Follower(spark=fleet.spark, dataset=fleet.dataset, options=what, report=hold, warn=lambda _: first.stop())
    with busy:
        first.run()
    packed(fleet.root / "a b,{c}" / "history", NOON + 5 * HOUR)
    second = Follower(spark=fleet.spark, dataset=fleet.dataset, options=what, report=batches.append)
    second.run()
    assert [(batch.number, batch.files, batch.waiting) for batch in batches] == [(0, 2, 3), (1, 2, 2), (2, 2, 0)]
    assert waiting_of(second)({"batchId": 1}) == 2
    assert waiting_of(second)({"batchId": 7}) is None
    assert len(fleet.rows()) == 18


def _another_source(place: Path) -> None:
    with (place / "offsets" / "0").open("a") as file:
        file.write('\n{"logOffset":0}')


def _without_sources(place: Path) -> None:
    shutil.rmtree(place / "sources")
    (place / "commits" / "0").unlink()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "Failed to read log file": lambda place: (place / "offsets" / "0").write_text(""),
    "its file metadata has no id": lambda place: (place / "metadata").write_text("nonsense"),
    r"There are \[2\] sources": _another_source,
    "batch 0 doesn't exist": _without_sources,
}


def test_an_unusable_checkpoint_is_reported(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "autoscaler.history.ingest_follow.add_local", lambda *_, **__: (Imported(), [])
    )  # the content does not matter
    packed(fleet.root / "a" / "history", NOON)
    fleet.follow()
    place = fleet.root / "dataset" / "_follow"
    for damage, spoil in DAMAGES.items():
        spoilt = fleet.root / "spoilt"
        shutil.copytree(place, spoilt, ignore=shutil.ignore_patterns(".*.crc"))
        spoil(spoilt)
        with pytest.raises(FollowError, match=rf"spoilt: the checkpoint is damaged \(.*{damage}.*\); move it away"):
            fleet.follow(checkpoint=str(spoilt))
        shutil.rmtree(spoilt)
    other = FollowOptions(places=[f"{fleet.root}/a/history"], checkpoint=str(place))
    dataset = open_dataset(fleet.root / "another", make=True)
    with pytest.raises(FollowError, match=r"_follow: is the checkpoint of another dataset"):
        Follower(spark=fleet.spark, dataset=dataset, options=other, report=fleet.batches.append).run()


def test_directories_that_cannot_be_followed_are_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "daemon" / "history").mkdir(parents=True)
    (tmp_path / "daemon" / "state.sqlite3").touch()
    with pytest.raises(FollowError, match=r"none: there is no such directory; the history of a daemon is in history/"):
        join_places([str(tmp_path / "none")])
    with pytest.raises(FollowError, match=r"file: is not a directory"):
        join_places([str(tmp_path / "file")])
    with pytest.raises(FollowError, match=r"s3a://bucket and file:// are different file systems"):
        join_places(["s3a://bucket/x", str(tmp_path)])
    for place in (tmp_path / "daemon", tmp_path / "daemon" / "history"):
        with pytest.raises(FollowError, match=r"belongs to a daemon, whose uncompressed files still grow"):
            join_places([str(place)], plain=True)


def test_a_directory_has_one_path_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path.resolve()
    (here / "a" / "b").mkdir(parents=True)
    (here / "link").symlink_to("a/b")
    monkeypatch.chdir(here / "link")
    places = {"../x": "a/x", "../../a/b/../x": "a/x", f"{here}/link/../x": "a/x", f"{here}/none/../x": "x"}
    assert {place: url(place) for place in places} == {place: f"file://{here}/{path}" for place, path in places.items()}
    # The target of a link may change: files below it keep their path.
    assert url(f"{here}/link/x/") == f"file://{here}/link/x"
    assert url(f"{here}/a/../*/b") == f"file://{here}/*/b"


def test_several_directories_become_one_pattern(tmp_path: Path) -> None:
    def named(*names: str) -> Sequence[str]:
        for name in names:
            (tmp_path / name).mkdir()
        return [str(tmp_path / name) for name in names]

    one, two, odd = named("one", "two", "o,d{d}")
    assert join_places([one]) == f"file://{one}"
    assert join_places([one, two]) == f"file:///{{{one[1:]},{two[1:]}}}"
    assert join_places([odd]) == f"file://{tmp_path}/o,d\\{{d\\}}"
    assert join_places(["s3a://bucket/a/", "s3a://bucket/b*"]) == "s3a://bucket/{a/,b*}"
    assert join_places([one, odd]).endswith("o\\,d\\\\\\{d\\\\\\}}")
