"""Bad input across the whole pipeline: a clear message, nothing lost, and work can resume."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from autoscaler.history import ingest_records, rescales
from autoscaler.history.dataset import Dataset, DatasetError, open_dataset
from autoscaler.history.profile_job import profiles
from autoscaler.history.schema import RESCALES
from autoscaler.trace.profile_file import load
from tests.history.fleet import Fleet, Part, simulated, trace, write

pytestmark = pytest.mark.e2e

MONDAY = date(2026, 1, 5)
NOW = datetime(2026, 1, 20, tzinfo=UTC)
FLEET = Fleet(clusters=2, days=3, interval=60.0)
OF_A_DAY = 2 * 1440


@pytest.fixture(scope="module")
def good(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days of two clusters, not to be changed."""
    directory = tmp_path_factory.mktemp("good") / "dataset"
    write(spark, FLEET, directory)
    return directory


@pytest.fixture
def dataset(good: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(good, tmp_path / "dataset"))


@pytest.fixture(scope="module")
def hours() -> dict[str, list[str]]:
    """Lines of two clusters: hour -> the lines that a daemon has written in it."""
    part = Part(Fleet(clusters=2, days=1, interval=300.0), 0, 2, 300.0)
    found: dict[str, list[str]] = {}
    for hour, line in trace(part, next(simulated(part))):
        found.setdefault(hour, []).append(line)
    return found


def brought(
    spark: SparkSession, into: Path, *files: Path, rename: dict[str, str] | None = None
) -> ingest_records.Imported:
    opened = open_dataset(into, make=True)
    return ingest_records.add(spark, opened, [str(file) for file in files], now=NOW, rename=rename)


def profiled(spark: SparkSession, directory: Path, **options: Any) -> dict[str, Any]:
    opened = open_dataset(directory)
    with opened.reading():
        rows = profiles(spark, opened, made_at=NOW, **options).collect()
    return {row.cluster: load(row.profile) for row in rows}


def counted(spark: SparkSession, dataset: Dataset, **part: Any) -> int:
    with dataset.reading():
        return int(dataset.read(spark, "observations", **part).count())


def a_file(dataset: Path, day: date) -> Path:
    (found,) = (dataset / "observations" / f"date={day}").glob("*.parquet")
    return found


def halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def scribble(file: Path) -> None:
    """Damage the middle, but not the end of the file, which identifies it."""
    content = bytearray(file.read_bytes())
    middle = slice(1000, len(content) - 20_000)
    content[middle] = b"\x55" * len(content[middle])
    file.write_bytes(content)


def replace(file: Path) -> None:
    file.write_text("this is no Parquet file, but it is long enough to be taken for one\n")


@pytest.mark.parametrize("spoil", [halve, empty, scribble, replace])
def test_a_corrupt_parquet_file_is_named_and_costs_only_its_own_day(
    spark: SparkSession, dataset: Path, spoil: Callable[[Path], None]
) -> None:
    tuesday = MONDAY + timedelta(days=1)
    file = a_file(dataset, tuesday)
    spoil(file)
    with pytest.raises(DatasetError, match=re.escape(file.name) + r".*put a good copy of it there, or remove it"):
        profiled(spark, dataset)
    opened = open_dataset(dataset)
    # The other days are unchanged, to read and to profile...
    assert counted(spark, opened, until=MONDAY) == OF_A_DAY
    assert counted(spark, opened, since=tuesday + timedelta(days=1)) == OF_A_DAY
    assert set(profiled(spark, dataset, until=MONDAY)) == {"job-0000", "job-0001"}
    # ... and the day itself returns with the file, or is a gap without it.
    file.unlink()
    assert counted(spark, open_dataset(dataset)) == 2 * OF_A_DAY


def test_removed_or_wrong_rescales_are_found_again_when_their_days_are_imported_again(
    spark: SparkSession, tmp_path: Path, hours: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "all.jsonl"
    file.write_text("".join(line for lines in hours.values() for line in lines))
    directory = tmp_path / "dataset"
    brought(spark, directory, file)
    before = open_dataset(directory).read(spark, "rescales").toArrow().to_pylist()
    assert before
    shutil.rmtree(directory / "rescales")
    done = brought(spark, directory, file)
    assert set(done.merged.added.values()) == {0}
    assert open_dataset(directory).read(spark, "rescales").toArrow().to_pylist() == before
    none = to_arrow_schema(RESCALES, timezone="UTC").empty_table()
    monkeypatch.setattr(rescales, "find_local", lambda *_: none)
    brought(spark, directory, file)
    assert open_dataset(directory).read(spark, "rescales").isEmpty()


def test_truncated_lines_are_rejected_and_added_when_the_file_is_complete(
    spark: SparkSession, tmp_path: Path, hours: dict[str, list[str]]
) -> None:
    hour, lines = next(iter(hours.items()))
    file = tmp_path / f"{hour}.jsonl"
    whole = "".join(lines)
    file.write_text(whole[: -len(lines[-1]) // 2])
    done = brought(spark, tmp_path / "dataset", file)
    assert done.merged.added["observations"] == done.merged.added["decisions"] == len(lines) - 1
    assert list(done.rejected.values()) == [1]
    assert "cut off" in next(iter(done.rejected))
    opened = open_dataset(tmp_path / "dataset")
    (rejected,) = opened.read(spark, "rejected").collect()
    assert (rejected.file, str(rejected.date)) == (str(file), hour[:10])
    assert lines[-1].startswith(rejected.text)
    file.write_text(whole)
    done = brought(spark, tmp_path / "dataset", file)
    assert (done.merged.added["observations"], done.rejected) == (1, {})
    assert counted(spark, opened) == len(lines)


def test_lines_of_a_newer_version_or_a_wrong_clock_are_rejected_with_the_reason(
    spark: SparkSession, tmp_path: Path, hours: dict[str, list[str]]
) -> None:
    hour, lines = next(iter(hours.items()))
    newer, future, past, *rest = lines
    newer = newer.replace('"version":1', '"version":2')
    future = re.sub(r"2026-01-05T", "2027-01-05T", future)
    past = re.sub(r"2026-01-05T", "1970-01-05T", past)
    file = tmp_path / f"{hour}.jsonl"
    # Times that go backwards do no harm: a record is identified by its own time.
    file.write_text("".join([newer, future, past, *reversed(rest)]))
    done = brought(spark, tmp_path / "dataset", file)
    assert done.merged.added["observations"] == len(rest)
    assert sorted(done.rejected) == [
        "its time is before 2000: a clock was wrong",
        "its time is in the future: a clock was wrong",
        "version 2 of the trace format is not known, expected 1",
    ]
    rows = open_dataset(tmp_path / "dataset").read(spark, "observations").orderBy("cluster", "at").collect()
    assert [row.at for row in rows if row.cluster == "job-0000"] == sorted(
        row.at for row in rows if row.cluster == "job-0000"
    )


def test_a_dataset_of_a_newer_version_is_refused_and_not_changed(
    spark: SparkSession, dataset: Path, tmp_path: Path, hours: dict[str, list[str]]
) -> None:
    marker = dataset / "autoscaler-history.json"
    marker.write_text(json.dumps({"format": "autoscaler-history", "version": 2}))
    before = sorted(str(path) for path in dataset.rglob("*"))
    hour, lines = next(iter(hours.items()))
    file = tmp_path / f"{hour}.jsonl"
    file.write_text("".join(lines))
    for work in (lambda: profiled(spark, dataset), lambda: brought(spark, dataset, file)):
        with pytest.raises(DatasetError, match="newer autoscaler \\(version 2, this one knows 1\\); update it"):
            work()
    assert sorted(str(path) for path in dataset.rglob("*")) == before


def test_a_directory_without_a_dataset_is_refused_and_an_empty_dataset_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError, match=r"is not a dataset .*`autoscaler history import` makes one"):
        profiled(spark, tmp_path / "missing")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(DatasetError, match="contains other files"):
        open_dataset(tmp_path / "other", make=True)
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"
    open_dataset(tmp_path / "empty", make=True)
    assert profiled(spark, tmp_path / "empty") == {}


def test_a_gap_of_a_day_counts_neither_as_load_nor_as_cost(spark: SparkSession, good: Path, dataset: Path) -> None:
    whole = profiled(spark, good)
    for table in ("observations", "decisions", "rescales"):
        shutil.rmtree(dataset / table / f"date={MONDAY + timedelta(days=1)}")
    for cluster, profile in profiled(spark, dataset).items():
        complete = whole[cluster]
        assert profile.observations == complete.observations * 2 // 3
        assert profile.begin == complete.begin
        assert profile.end == complete.end
        assert profile.done.replica_hours == pytest.approx(complete.done.replica_hours * 2 / 3, rel=0.05)
        assert profile.capacity.rate == pytest.approx(complete.capacity.rate, rel=0.1)


def test_a_renamed_cluster_is_found_and_joined_on_request(spark: SparkSession, tmp_path: Path) -> None:
    part = Part(Fleet(clusters=1, days=4, interval=300.0), 0, 1, 300.0)
    files = []
    for number, day in enumerate(simulated(part)):
        text = "".join(line for _, line in trace(part, day))
        file = tmp_path / f"2026-01-0{5 + number}T00.jsonl"
        file.write_text(text if number < 2 else text.replace('"cluster":"job-0000"', '"cluster":"billing"'))
        files.append(file)
    brought(spark, tmp_path / "two", *files)
    two = profiled(spark, tmp_path / "two")
    assert set(two) == {"job-0000", "billing"}
    findings = {finding.kind: finding.text for profile in two.values() for finding in profile.findings}
    assert any("renamed" in kind and "billing" in text for kind, text in findings.items()), findings
    one = profiled(spark, tmp_path / "two", renamed={"job-0000": "billing"})
    assert list(one) == ["billing"]
    assert one["billing"].observations == sum(profile.observations for profile in two.values()) == 4 * 288
    done = brought(spark, tmp_path / "one", *files, rename={"job-0000": "billing"})
    assert done.merged.added["observations"] == 4 * 288
    again = profiled(spark, tmp_path / "one")["billing"]
    assert (again.observations, again.begin, again.end) == (4 * 288, one["billing"].begin, one["billing"].end)


def test_a_full_disk_is_named_as_such_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path, hours: dict[str, list[str]]
) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
    try:
        files = []
        for hour, lines in hours.items():
            files.append(tmp_path / f"{hour}.jsonl")
            files[-1].write_text("".join(lines))
        into = place / "dataset"
        assert brought(spark, into, files[0]).merged.added["decisions"] == len(hours[files[0].stem])
        filler = place / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(place).free - 8192))
        with pytest.raises(DatasetError, match=r"the disk is full, .*/small/dataset .*: No space left on device; make"):
            brought(spark, into, *files)
        assert counted(spark, open_dataset(into)) == len(hours[files[0].stem])
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


KILLED = """
import os, signal, sys
from autoscaler.history.dataset.files import LocalFiles
from autoscaler.history.dataset.layout import COMMIT, STAGING
from autoscaler.cli import main

method, count = sys.argv[1], int(sys.argv[2])
known, seen = getattr(LocalFiles, method), []

def call(self, name, *rest):
    if len(seen) == count:
        os.kill(os.getpid(), signal.SIGKILL)
    # A temporary file is removed at any time.
    counted = {"write": name == COMMIT, "remove": not name.startswith(STAGING)}
    if counted.get(method, True):
        seen.append(name)
    return known(self, name, *rest)

setattr(LocalFiles, method, call)
main(sys.argv[3:])
"""


@pytest.mark.parametrize(
    ("method", "count"),
    [
        ("write", 0),  # everything is in temporary files, and nothing refers to them
        ("move", 0),  # added and removed files are named, and none has moved
        ("move", 2),  # some have
        ("remove", 2),  # files with the same names are being removed
    ],
)
def test_an_import_that_is_killed_is_completed_by_the_next_one(
    spark: SparkSession, tmp_path: Path, hours: dict[str, list[str]], method: str, count: int
) -> None:
    (tmp_path / "traces").mkdir()
    first, *rest = hours.items()
    into = tmp_path / "dataset"
    file = tmp_path / "traces" / f"{first[0]}.jsonl"
    file.write_text("".join(first[1]))
    brought(spark, into, file)
    for hour, lines in rest:
        (tmp_path / "traces" / f"{hour}.jsonl").write_text("".join(lines))
    options = ("history", "import", str(tmp_path / "traces"), str(into), "--master", "local[1]")
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, method, str(count), *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,  # on a busy machine it may have almost no CPU time
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    # A reader now sees all of it or none.
    everything = sum(map(len, hours.values()))
    seen = counted(spark, open_dataset(into))
    assert seen == (len(first[1]) if method == "write" else everything)
    done = brought(spark, into, *sorted((tmp_path / "traces").iterdir()))
    assert seen + done.merged.added["observations"] == everything
    opened = open_dataset(into)
    for table in ("observations", "decisions"):
        rows = opened.read(spark, table)
        assert rows.count() == rows.select("cluster", "at").distinct().count() == everything
    assert [path.name for path in into.iterdir() if path.name.startswith("_") and path.name != "_lock"] == []
