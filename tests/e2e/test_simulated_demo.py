"""A real Spark cluster beside its own simulation."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.e2e

WITHIN = 0.25

OTHERS = 0.25
"""Share of the machine that other processes may have had: with more, they alone could explain a difference of WITHIN.
The simulation has the workers as they were before there were more of them, and knows nothing of what else ran later."""

INTERVAL = 2.0
"""Seconds between two decisions of the demo's daemon."""


def test_the_simulation_predicts_the_demo(spark_demo: dict[str, Any]) -> None:
    if spark_demo["others"] > OTHERS:
        pytest.skip(f"other processes had {spark_demo['others']:.0%} of the machine while the demo played: too much")
    simulated = spark_demo["simulated"]
    for name in ("peak_lag", "drained_after_s"):
        assert simulated[name] == pytest.approx(spark_demo[name], rel=WITHIN), (name, simulated)
    sizes = [(each["before"], each["to"]) for each in spark_demo["rescales"]]
    assert [(each["before"], each["to"]) for each in simulated["rescales"]] == sizes


def test_the_simulation_decides_at_times_at_which_the_daemon_could(spark_demo: dict[str, Any]) -> None:
    first = spark_demo["rescales"][0]["at"]
    for each in spark_demo["simulated"]["rescales"]:
        after = (each["at"] - first) % INTERVAL
        # The simulation uses steps of a quarter of a second, and the result is rounded to a tenth.
        assert min(after, INTERVAL - after) < 0.25, (first, each)
