"""How fast daemons' histories become a dataset: records and bytes per second, and the cost of twice as many.

AUTOSCALER_BENCH_RECORDS=10000000 is the size of a large fleet's month; it needs 30 GB of disk and some minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from autoscaler import cli
from autoscaler.history.dataset import open_dataset
from autoscaler.history.ingest_records import add
from autoscaler.history.session import session

pytestmark = pytest.mark.benchmark

RECORDS = int(os.environ.get("AUTOSCALER_BENCH_RECORDS", "60000"))
PLACE = os.environ.get("AUTOSCALER_BENCH_DIRECTORY")
"""Where to write what is imported, and the dataset."""

WARM_UP = 30_000
"""Java becomes quick only with what it has done often: so many records are imported first, and not counted."""

FIRST = date(2026, 1, 5)
NOW = datetime(2027, 1, 1, tzinfo=UTC)
CLUSTERS = 100
CONFIG = """
sources:
  prom: {type: prometheus, url: 'http://127.0.0.1:9'}
  flink: &flink {type: flink, url: 'http://127.0.0.1:9'}
clusters:
  orders:
    target: {type: 'null'}
    engine: *flink
    min: 1
    max: 24
    metrics:
      lag: {source: prom, query: lag}
      arrivals: {source: prom, query: arrivals}
      throughput: {source: prom, query: throughput}
      utilization: {source: prom, query: utilization}
      cpu: {source: prom, query: cpu}
    policies: {adaptive: {type: adaptive}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = Path(PLACE) if PLACE else tmp_path_factory.mktemp("import")
    made.mkdir(parents=True, exist_ok=True)
    yield made
    for name in ("day", "in", "dataset"):
        shutil.rmtree(made / name, ignore_errors=True)


@pytest.fixture(scope="module")
def day(place: Path) -> dict[str, list[bytes]]:
    """A simulated day of one cluster: hour -> lines."""
    (place / "config.yaml").write_text(CONFIG)
    trace = place / "day"
    arguments = ["simulate", place / "config.yaml", "--load", "diurnal24h", "--plant", "flink-2.3", "--record", trace]
    assert cli.main(list(map(str, arguments))) == 0
    return {file.name[11:13]: file.read_bytes().splitlines(keepends=True) for file in trace.glob("2026-01-05T*")}


def written(directory: Path, day: dict[str, list[bytes]], records: int) -> int:
    """Write that day for many clusters and as many days as necessary; returns the bytes."""
    directory.mkdir()
    size, left, number = 0, records, 0
    while left > 0:
        today = (FIRST + timedelta(days=number)).isoformat()
        for hour, lines in sorted(day.items()):
            with (directory / f"{today}T{hour}.jsonl").open("wb") as file:
                for line in lines:
                    begin, _, end = line.replace(b"2026-01-05T", f"{today}T".encode()).partition(b'"cluster":"orders"')
                    count = min(CLUSTERS, left)
                    size += file.write(
                        b"".join([begin + b'"cluster":"orders-%03d"' % cluster + end for cluster in range(count)])
                    )
                    left -= count
        number += 1
    return size


def imported(spark: SparkSession, place: Path, day: dict[str, list[bytes]], records: int) -> tuple[float, int]:
    """Import so many records into a new dataset; returns the seconds and the bytes of the records."""
    for name in ("in", "dataset"):
        shutil.rmtree(place / name, ignore_errors=True)
    size = written(place / "in", day, records)
    dataset = open_dataset(place / "dataset", make=True)
    begin = time.perf_counter()
    done = add(spark, dataset, sorted(str(file) for file in (place / "in").iterdir()), now=NOW)
    seconds = time.perf_counter() - begin
    assert done.merged.added["decisions"] == done.merged.added["observations"] == records
    return seconds, size


def peak(*processes: int) -> float:
    """The sum of the maximum memory of each of these processes, in GB."""
    statuses = [Path(f"/proc/{process}/status").read_text() for process in processes]
    return sum(int(re.findall(r"VmHWM:\s+(\d+) kB", text)[0]) for text in statuses) / 1e6


def test_records_are_imported_at_a_steady_rate(
    place: Path, day: dict[str, list[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    with session("benchmark", master="local[2]", settings=settings) as spark:
        java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
        imported(spark, place, day, min(WARM_UP, RECORDS // 2))
        half_s, half_bytes = imported(spark, place, day, RECORDS // 2)
        all_s, all_bytes = imported(spark, place, day, RECORDS)
        memory = peak(os.getpid(), java)
    half = RECORDS // 2
    kept = sum(file.stat().st_size for file in (place / "dataset").rglob("*.parquet"))
    with capsys.disabled():
        print(  # noqa: T201 - a benchmark prints
            f"\nimport of {RECORDS:,} records ({all_bytes / 1e6:,.0f} MB of JSON lines): {all_s:.1f} s on 2 cores, "
            f"{RECORDS / all_s:,.0f} records/s, {all_bytes / all_s / 1e6:.0f} MB/s; the second half of them "
            f"{(RECORDS - half) / (all_s - half_s):,.0f} records/s; the dataset has {kept / all_bytes:.1%} of the "
            f"size; Python and Java had at most {memory:.2f} GB\n"
            f"{all_bytes / half_bytes:.2f} times as much takes {all_s / half_s:.2f} times as long"
        )
