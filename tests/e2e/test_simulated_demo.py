"""A real Spark cluster beside its own simulation."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

WITHIN = 0.25

BUSY = 4.0
"""Load average for each core from which on the machine mostly does something else: what the cluster shows is that."""


def test_the_simulation_says_what_the_demo_did(spark_demo: dict[str, Any]) -> None:
    load = os.getloadavg()[1] / (os.cpu_count() or 1)
    if load > BUSY:
        pytest.skip(f"the machine does too much else to be measured: a load average of {load:.1f} for each core")
    simulated = spark_demo["simulated"]
    for name in ("peak_lag", "drained_after_s"):
        assert simulated[name] == pytest.approx(spark_demo[name], rel=WITHIN), (name, simulated)
    sizes = [(each["before"], each["to"]) for each in spark_demo["rescales"]]
    assert [(each["before"], each["to"]) for each in simulated["rescales"]] == sizes
