"""How fast a fleet's history becomes profiles, and how that grows with cores, data and skew: printed, not judged.

AUTOSCALER_FLEET=1000 is the full size: a thousand clusters, a week, a look every 15 s, 40 million observations.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CLUSTERS = int(os.environ.get("AUTOSCALER_FLEET", "104"))
DAYS = 7 if CLUSTERS >= 400 else 1
MOST_MEMORY = 2 * 2**30
SKEW = 100


def _run(master: str, what: str, *arguments: str) -> Any:
    answer = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.pipeline_run", master, what, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout.splitlines()[-1])


@pytest.mark.benchmark
def test_profiles_of_a_fleet(tmp_path: Path) -> None:
    half, whole, skewed = (str(tmp_path / name) for name in ("half", "whole", "skewed"))
    # Of the same size, as one of its clusters is as large as a hundred others.
    few = CLUSTERS - SKEW + 1
    written = _run(
        "local[2]",
        "write",
        f"{half}:{CLUSTERS // 2}:{DAYS}:even",
        f"{whole}:{CLUSTERS}:{DAYS}:even",
        f"{skewed}:{few}:{DAYS}:skewed",
    )
    assert written[0] * 2 == written[1] == written[2]
    # The first run is there to warm up.
    two = _run("local[2]", "profile", half, whole, half, skewed)
    one = _run("local[1]", "profile", half, whole)
    seconds = [run["seconds"] for run in two["runs"]]
    print(  # noqa: T201 - a benchmark's result is what it prints
        f"\nprofiles of {written[1]:,} observations of {CLUSTERS} clusters with local[2]: {seconds[1]:.1f} s, "
        f"{written[1] / seconds[1]:,.0f} observations/s; "
        f"{one['runs'][1]['seconds'] / seconds[1]:.2f} times as fast as with local[1]; "
        f"{seconds[1] / seconds[2]:.2f} times as long as for half of it; {seconds[3] / seconds[1]:.2f} times as long "
        f"if one cluster of {few} has {SKEW} times the data; the driver had {two['memory'] / 2**20:,.0f} MB"
    )
    assert [run["profiles"] for run in two["runs"]] == [CLUSTERS // 2, CLUSTERS, CLUSTERS // 2, few]
    # Nothing depends on how the work was split.
    assert [run["digest"] for run in one["runs"]] == [run["digest"] for run in two["runs"][:2]]
    assert two["memory"] < MOST_MEMORY
