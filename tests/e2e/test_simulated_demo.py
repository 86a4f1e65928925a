"""A real Spark cluster beside its own simulation."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.e2e

WITHIN = 0.25


def test_the_simulation_says_what_the_demo_did(spark_demo: dict[str, Any]) -> None:
    simulated = spark_demo["simulated"]
    for name in ("peak_lag", "drained_after_s"):
        assert simulated[name] == pytest.approx(spark_demo[name], rel=WITHIN), (name, simulated)
    sizes = [(each["before"], each["to"]) for each in spark_demo["rescales"]]
    assert [(each["before"], each["to"]) for each in simulated["rescales"]] == sizes
