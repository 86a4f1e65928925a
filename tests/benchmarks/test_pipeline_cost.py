"""The cost of import, follow, profile and back-test beside bare PySpark, at several sizes: printed, not asserted.

AUTOSCALER_BENCH_CLUSTERS=1,10,50 are three sizes, of two days each; it takes five minutes.

The figure is the processor time of a whole command, including its Java, as other processes change it little. A bare
program starts Spark; another one reads and aggregates the same rows. Elapsed time is measured too if a user waits for
it: for a small back-test, and until a terminal shows the first sign of work.
"""

from __future__ import annotations

import gzip
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autoscaler import cli
from tests.benchmarks.test_pipeline_import import CONFIG

pytestmark = pytest.mark.benchmark

SIZES = [int(clusters) for clusters in os.environ.get("AUTOSCALER_BENCH_CLUSTERS", "1").split(",")]
DAYS = 2
"""A record every 15 s."""

BARE = """
import sys
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
if len(sys.argv) == 1:
    spark.range(10).count()
elif sys.argv[1] == "json":
    rows = spark.read.schema("decision struct<cluster:string,desired:int>").json(sys.argv[2])
    rows.groupBy("decision.cluster").agg(F.count("*"), F.avg("decision.desired")).collect()
else:
    rows = spark.read.parquet(sys.argv[2])
    rows.groupBy("cluster").agg(F.count("*"), F.avg("arrivals"), F.max("lag")).collect()
spark.stop()
"""


COUNTED = """
import ctypes, os, resource, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: Java ends after the command that has started it
code = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
try:
    while os.wait():
        pass
except ChildProcessError:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime)
sys.exit(code)
"""


def seconds(*command: object) -> float:
    """The processor time of a command and its children."""
    counted = [sys.executable, "-c", COUNTED, sys.executable, *map(str, command)]
    done = subprocess.run(counted, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated day of one cluster, and a configuration."""
    made = tmp_path_factory.mktemp("cost")
    (made / "config.yaml").write_text(CONFIG)
    (made / "bare.py").write_text(BARE)
    arguments = ("simulate", made / "config.yaml", "--load", "diurnal24h", "--plant", "flink-2.3")
    assert cli.main([*map(str, arguments), "--record", str(made / "day")]) == 0
    return made


def elapsed(*command: object) -> float:
    """The elapsed time of a command."""
    begin = time.perf_counter()
    seconds(*command)
    return time.perf_counter() - begin


def first_sign(*command: object) -> float:
    """The elapsed time until a command writes something to a terminal."""
    terminal, its = pty.openpty()
    begin = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "autoscaler", *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=its,
    ) as started:
        os.close(its)
        os.read(terminal, 1)
        seen = time.perf_counter() - begin
        started.terminate()
        while True:
            try:
                if not os.read(terminal, 4096):
                    break
            except OSError:  # the other end is closed
                break
    os.close(terminal)
    return seen


def written(place: Path, clusters: int) -> tuple[Path, int]:
    """That day for many clusters and days, as their daemon has compressed it; and the number of records."""
    directory, count = place / str(clusters), 0
    directory.mkdir()
    for day in range(DAYS):
        today = f"2026-01-{5 + day:02}T"
        for hour in sorted((place / "day").glob("2026-01-05T*")):
            lines = hour.read_text().replace("2026-01-05T", today).splitlines(keepends=True)
            with gzip.open(directory / f"{today}{hour.name[11:13]}.jsonl.gz", "wt") as file:
                for line in lines:
                    begin, _, end = line.partition('"cluster":"orders"')
                    file.writelines(f'{begin}"cluster":"orders-{cluster:03}"{end}' for cluster in range(clusters))
            count += len(lines) * clusters
    return directory, count


def test_the_cost_of_commands_beside_bare_pyspark(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ours(*command: object) -> float:
        return seconds("-m", "autoscaler", *command, "--master", "local[2]")

    start = seconds(place / "bare.py")
    lines = [f"bare Spark: starts and ends in {start:.1f} s of processor time; without that:"]
    for clusters in SIZES:
        traces, count = written(place, clusters)
        dataset, config = place / f"dataset-{clusters}", place / f"{clusters}.yaml"
        read = seconds(place / "bare.py", "json", traces) - start
        # Without Spark, which is started for a file with a line that is not a record.
        added = ours("history", "import", traces, dataset)
        lines.append(f"{count:,} records: import {added:.1f} s in all ({1e6 * added / count:.0f} a million)")
        (place / "damaged.jsonl").write_text("not a record\n")
        judged = ours("history", "import", traces, place / "damaged.jsonl", place / f"judged-{clusters}") - start
        lines.append(
            f"{count:,} records and a line that is none: import {judged:.1f} s ({1e6 * judged / count:.0f} a million), "
            f"bare {read:.1f} s"
        )
        # As many files per batch as days: 24 batches.
        batches = ("--available-now", "--files", DAYS)
        hourly = ours("history", "follow", traces, place / f"hourly-{clusters}", *batches)
        lines.append(f"{count:,} records: 24 batches {hourly:.1f} s in all, {hourly / added:.2f} times an import")
        scanned = seconds(place / "bare.py", "parquet", dataset / "observations") - start
        profiled = ours("profile", dataset, "--out", place / f"profiles-{clusters}") - start
        lines.append(
            f"{count:,} records: profile {profiled:.1f} s, {profiled / scanned:.2f} times the {scanned:.1f} s of bare"
        )
        config.write_text(CONFIG.replace("  orders:", "  orders-000:"))
        test = ("backtest", dataset, config, "--to", "2026-01-06", "--master", "local[2]")
        tried = elapsed("-m", "autoscaler", *test)
        lines.append(f"{count:,} records: one day's back-test {tried:.1f} s from start to end, by the clock")
        shown = {
            "import": first_sign("history", "import", traces, place / "unused", "--master", "local[2]"),
            "profile": first_sign("profile", dataset, "--out", place / "unused-profiles", "--master", "local[2]"),
            "backtest": first_sign(*test),
        }
        signs = ", ".join(f"{name} after {seen:.1f} s" for name, seen in shown.items())
        lines.append(f"{count:,} records: a terminal shows what is being done: {signs}")
    with capsys.disabled():
        print("", *lines, sep="\n")  # noqa: T201 - a benchmark prints
