"""How fast a fleet's history becomes profiles, and how that scales with cores, data and skew: printed, not asserted.

AUTOSCALER_FLEET=1000 is the full size: a thousand clusters, a week, a poll every 15 s, 40 million observations. It
takes half an hour.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CLUSTERS = int(os.environ.get("AUTOSCALER_FLEET", "104"))
DAYS = 7 if CLUSTERS >= 400 else 1
MOST_MEMORY = 2 * 2**30
SKEW = 100
STEPS = 30_000_000
TURNS = 3 if CLUSTERS >= 400 else 1


@contextmanager
def _running(master: str, what: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.pipeline_run", master, what, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait() == 0, "it has failed; what it said is in the captured stderr"
        except BaseException:
            process.kill()
            raise


def _next(process: subprocess.Popen[str]) -> Any:
    """The next line of JSON that it prints."""
    assert process.stdout is not None
    # Java may print there too.
    line = next((line for line in process.stdout if line.startswith(("{", "["))), None)
    assert line is not None, f"it has ended with exit code {process.wait()}; what it said is in the captured stderr"
    return json.loads(line)


def _profiled(process: subprocess.Popen[str], dataset: str) -> Any:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended: that is reported next
        process.stdin.write(f"{dataset}\n")
        process.stdin.flush()
    return _next(process)


def _count(steps: int = STEPS) -> float:
    """A computation that uses one core and nothing else; returns its seconds."""
    begin = time.perf_counter()
    for _ in range(steps):
        pass
    return time.perf_counter() - begin


def _cores() -> float:
    """The speed of two cores of this machine now relative to one: less than two if they share something."""
    alone = _count()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(_count, [1, 1], chunksize=1)
        begin = time.perf_counter()
        pool.map(_count, [STEPS] * 2, chunksize=1)
        return 2 * alone / (time.perf_counter() - begin)


def _each(ratios: list[float]) -> str:
    return ", ".join(f"{ratio:.2f}" for ratio in ratios)


@pytest.mark.benchmark
def test_the_speed_of_profiles_of_a_fleet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    half, whole, skewed = (str(tmp_path / name) for name in ("half", "whole", "skewed"))
    # Of the same size, as one of its clusters is as large as a hundred others.
    few = CLUSTERS - SKEW + 1
    fleets = f"{half}:{CLUSTERS // 2}:{DAYS}:even", f"{whole}:{CLUSTERS}:{DAYS}:even", f"{skewed}:{few}:{DAYS}:skewed"
    with _running("local[2]", "write", *fleets) as process:
        written = _next(process)
    assert written[0] * 2 == written[1] == written[2]
    with _running("local[2]", "profile") as two, _running("local[1]", "profile") as one:
        # Java gets fast after many repetitions.
        warm = [_profiled(process, half) for process in (two, one)]
        # The speed of a shared machine varies: the variants alternate repeatedly.
        turns, halves, cores = [], [], []
        for _ in range(TURNS):
            cores.append(_cores())
            turns.append((_profiled(two, whole), _profiled(one, whole)))
            halves.append(_profiled(two, half))
        uneven = _profiled(two, skewed)
    seconds, alone = (median(turn[core]["seconds"] for turn in turns) for core in (0, 1))
    faster = [b["seconds"] / a["seconds"] for a, b in turns]
    doubled = [a["seconds"] / small["seconds"] for (a, _), small in zip(turns, halves, strict=True)]
    memory = max(run["memory"] for run in (uneven, *turns[-1]))
    with capfd.disabled():
        print(  # noqa: T201 - a benchmark's result is what it prints
            f"\nprofiles of {written[1]:,} observations of {CLUSTERS} clusters with local[2]: {seconds:.1f} s, "
            f"{written[1] / seconds:,.0f} observations/s; with local[1] {alone:.1f} s, {median(faster):.2f} times as "
            f"long ({_each(faster)} one after the other, where two plain loops at once did {_each(cores)} times as "
            f"much as one); {median(doubled):.2f} times as long as for half of it ({_each(doubled)}); "
            f"{uneven['seconds'] / seconds:.2f} times as long if one cluster of {few} has {SKEW} times the data; "
            f"the driver had {memory / 2**20:,.0f} MB"
        )
    assert uneven["profiles"] == few
    assert {run["profiles"] for run in halves} == {CLUSTERS // 2}
    assert {run["profiles"] for turn in turns for run in turn} == {CLUSTERS}
    # The result does not depend on how the work was split.
    assert len({run["digest"] for turn in turns for run in turn}) == 1
    assert len({run["digest"] for run in (*warm, *halves)}) == 1
    assert memory < MOST_MEMORY
