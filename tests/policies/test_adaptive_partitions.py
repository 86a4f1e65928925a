"""The default policy if the number of partitions limits the benefit of more replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler_policies.adaptive.policy import Adaptive
from tests.policies.conftest import make


@pytest.mark.parametrize(("current", "enough"), [(1, 3), (2, 3), (3, 3)])
def test_replicas_without_a_partition_to_read_are_not_requested(current: int, enough: int) -> None:
    # 6 partitions: a fourth and a fifth replica would wait for the others
    view = make(
        {"lag": 5000.0, "arrivals": 100.0, "throughput": 20.0 * current},
        current=current,
        maximum=5,
        per_replica=20,
        partitions=6,
    )
    said = "3 replicas (60/s) are too few, but the most that have partitions to read"
    policy = Adaptive()
    found = policy.evaluate(view)
    assert found.replicas == enough
    assert found.detail.endswith(", the most that have partitions to read" if current < enough else said)
    assert policy.evaluate(replace(view, limits=replace(view.limits, maximum=6))).replicas == 6


def test_a_size_at_the_maximum_is_reported_as_such() -> None:
    view = make({"lag": 5000.0, "arrivals": 100.0, "throughput": 20.0}, maximum=3, per_replica=20, partitions=6)
    assert "1 replica (20/s) is too few, and so are 3 (60/s), the maximum" in Adaptive().evaluate(view).detail
