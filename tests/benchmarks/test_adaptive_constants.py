"""The value of each constant of `adaptive`: J on drawn loads with half and with twice of it.

Two loads of each of the eight families of `autoscaler benchmark --generalize`; equal seeds give equal figures.
AUTOSCALER_BENCH_LOADS_EACH sets another number of loads, AUTOSCALER_BENCH_CONSTANTS the names of some constants.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest

from autoscaler_policies.adaptive.tuning import TUNING, Tuning

pytestmark = pytest.mark.benchmark

LOADS = os.environ.get("AUTOSCALER_BENCH_LOADS_EACH", "2")
CHOSEN = os.environ.get("AUTOSCALER_BENCH_CONSTANTS", ",".join(each.name for each in fields(Tuning))).split(",")

RUN = """
import json, sys
from autoscaler_policies.adaptive.tuning import TUNING
name, value, loads = sys.argv[1:]
# Before the modules are loaded that derive others of it.
object.__setattr__(TUNING, name, type(getattr(TUNING, name))(float(value)))
from autoscaler.cli.benchmark_generalize import Job, work
from autoscaler.simulation.baselines import BASELINES
from autoscaler.simulation.families import FAMILIES
jobs = [
    Job(family=family, number=n, kept=False, seed=3, hours=6.0, policies=(("adaptive", BASELINES["adaptive"]),))
    for family in FAMILIES
    for n in range(int(loads))
]
scores = [row.rest for job in jobs for row in work(job).rows]
print(json.dumps([sum(score.j for score in scores) / len(scores), sum(s.violation for s in scores) / len(scores)]))
"""


def measured(change: tuple[str, float]) -> tuple[float, float]:
    """J and violation with one constant changed."""
    name, value = change
    done = subprocess.run(
        [sys.executable, "-c", RUN, name, str(value), LOADS], check=True, capture_output=True, text=True
    )
    j, violation = map(float, done.stdout.strip("[]\n").split(","))
    return j, violation


def changes() -> Iterator[tuple[str, float]]:
    for name in CHOSEN:
        value = getattr(TUNING, name)
        yield name, value / 2
        yield name, value * 2


def test_the_effect_of_half_and_twice_of_each_constant() -> None:
    name = CHOSEN[0]
    asked = [(name, getattr(TUNING, name)), *changes()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        (j, violation), *found = pool.map(measured, asked)
    head = "| constant | value | half: J | too late | twice: J | too late |\n|---|---|---|---|---|---|"
    lines = [f"\nas it is: J {j:.3f}, too late {violation:.2%}\n", head]
    for name, half, twice in zip(CHOSEN, found[::2], found[1::2], strict=True):
        cells = [f"{each[0] - j:+.3f} | {100 * (each[1] - violation):+.2f}" for each in (half, twice)]
        lines.append(f"| `{name}` | {getattr(TUNING, name):g} | {' | '.join(cells)} |")
    print(*lines, sep="\n")  # noqa: T201 - a benchmark's result is what it prints
    assert j < 2  # this measures the policy, not an error
