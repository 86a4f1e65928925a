from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.model import Reason, View
from autoscaler_policies.rules.target_tracking import Mode, TargetTracking

Make = Callable[..., View]
Value = float | tuple[float, ...]
CASES = json.loads((Path(__file__).parent / "data" / "hpa_cases.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_sizes_are_those_of_the_kubernetes_controller(view: Make, case: dict[str, Any]) -> None:
    policy = TargetTracking(
        metric="m",
        target=case["target"],
        mode=Mode.TOTAL if case["kind"] == "per_pod_value" else Mode.AVERAGE,
        tolerance_up=case["tolerance_up"],
        tolerance_down=case["tolerance_down"],
    )
    value = tuple(case["values"]) if "values" in case else float(case["value"])
    seen = view({"m": value}, current=case["current"], ready=case["ready"], minimum=0, maximum=2**31 - 1)
    assert policy.evaluate(seen).replicas == case["expected"]


@pytest.mark.parametrize(
    ("mode", "value", "current", "ready", "expected", "reason"),
    [
        (Mode.AVERAGE, 0.9, 4, 4, 6, Reason.ABOVE),
        (Mode.AVERAGE, 0.66, 4, 4, 4, Reason.STEADY),
        (Mode.AVERAGE, 0.3, 4, 4, 2, Reason.BELOW),
        (Mode.AVERAGE, 0.0, 4, 4, 1, Reason.BELOW),
        (Mode.TOTAL, 3.0, 4, 2, 5, Reason.ABOVE),
        (Mode.TOTAL, 2.4, 4, 2, 4, Reason.STEADY),
        (Mode.TOTAL, 0.5, 4, 2, 1, Reason.BELOW),
        # a value per replica is averaged in either mode
        (Mode.TOTAL, (0.9, 0.9, 0.9, 0.9), 4, 4, 6, Reason.ABOVE),
        # a single number above the target never lowers the size, one below never raises it
        (Mode.AVERAGE, 0.9, 4, 2, 4, Reason.STEADY),
        (Mode.AVERAGE, 0.5, 4, 6, 4, Reason.STEADY),
        # replicas that are being removed may still report: their load has to move to others
        (Mode.AVERAGE, (0.9, 0.9, 0.9), 2, 2, 5, Reason.ABOVE),
        (Mode.AVERAGE, (0.3, 0.3, 0.3), 2, 2, 1, Reason.BELOW),
        # from zero: as many as the number requires
        (Mode.AVERAGE, 0.6, 0, 0, 1, Reason.ABOVE),
        (Mode.TOTAL, 1.5, 0, 0, 3, Reason.ABOVE),
        (Mode.AVERAGE, (0.3,), 0, 0, 1, Reason.ABOVE),
        # beyond all limits
        (Mode.AVERAGE, 1.7e308, 4, 4, 10, Reason.ABOVE),
        (Mode.AVERAGE, (1.7e308, 1.7e308), 2, 2, 10, Reason.ABOVE),
        (Mode.AVERAGE, -1.7e308, 4, 4, 1, Reason.BELOW),
    ],
)
def test_brings_the_metric_to_its_target(
    view: Make, *, mode: Mode, value: Value, current: int, ready: int, expected: int, reason: Reason
) -> None:
    answer = TargetTracking("cpu", 0.6, mode).evaluate(view({"cpu": value}, current=current, ready=ready))
    assert (answer.replicas, answer.reason) == (expected, reason)
    assert all(map(math.isfinite, answer.inputs.values()))


def test_a_rounding_error_of_floats_does_not_cost_a_replica(view: Make) -> None:
    assert 2.1 / 0.3 > 7
    assert TargetTracking("cpu", 0.3).evaluate(view({"cpu": 2.1})).replicas == 7


def test_abstains_without_a_trusted_reading_and_gives_the_reason(view: Make) -> None:
    answer = TargetTracking("cpu", 0.6).evaluate(view(missing={"cpu": "connection refused"}))
    assert (answer.replicas, answer.reason) == (None, Reason.MISSING)
    assert answer.detail == "no trusted reading of cpu (connection refused)"
    assert TargetTracking("cpu", 0.6).evaluate(view(past=())).detail == "no trusted reading of cpu"


def test_abstains_without_a_ready_replica_to_average(view: Make) -> None:
    answer = TargetTracking("cpu", 0.6).evaluate(view({"cpu": 0.0}, current=3, ready=0))
    assert (answer.replicas, answer.reason) == (None, Reason.ABSTAINED)


def test_the_detail_explains_the_calculation(view: Make) -> None:
    answer = TargetTracking("cpu", 0.6).evaluate(view({"cpu": 0.9}, current=4))
    assert answer.detail == "cpu 0.9 at target 0.6: ceil(4 x 1.500) = 6 replicas"
    assert answer.inputs == {"cpu": 0.9, "target": 0.6, "replicas": 4.0, "ratio": pytest.approx(1.5)}
    assert TargetTracking("cpu", 0.6).metrics == ("cpu",)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"metric": ""}, "metric: is empty"),
        ({"target": 0}, "target: is 0, expected"),
        ({"target": -1.0}, "target: is -1.0, expected"),
        ({"target": math.nan}, "target: is nan, expected"),
        ({"target": math.inf}, "target: is inf, expected"),
        ({"tolerance_up": -0.1}, "tolerance_up: is -0.1, expected"),
        ({"tolerance_down": math.nan}, "tolerance_down: is nan, expected"),
    ],
)
def test_refuses_invalid_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TargetTracking(**{"metric": "cpu", "target": 0.6, **parameters})


numbers = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)  # a busy machine is not a failure
@given(
    value=numbers | st.lists(numbers, min_size=1, max_size=6).map(tuple),
    target=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    mode=st.sampled_from(Mode),
    current=st.integers(0, 12),
    ready=st.integers(0, 12),
)
def test_never_leaves_the_limits_and_never_reverses_the_direction(
    view: Make, *, value: Value, target: float, mode: Mode, current: int, ready: int
) -> None:
    seen = view({"m": value}, current=current, ready=ready, minimum=1, maximum=10)
    answer = TargetTracking("m", target, mode).evaluate(seen)
    assert all(map(math.isfinite, answer.inputs.values()))
    if answer.replicas is None:
        assert answer.reason is Reason.ABSTAINED
        return
    assert 1 <= answer.replicas <= 10
    if 1 <= current <= 10:
        ratio = answer.inputs["ratio"]
        assert (answer.replicas - current) * (ratio - 1) >= 0


@settings(deadline=None)  # a busy machine is not a failure
@given(value=st.floats(0, 1e6), more=st.floats(0, 1e6), mode=st.sampled_from(Mode), current=st.integers(1, 10))
def test_a_higher_number_never_gives_a_smaller_size(
    view: Make, value: float, more: float, mode: Mode, current: int
) -> None:
    policy = TargetTracking("m", 100.0, mode)
    low, high = (policy.evaluate(view({"m": v}, current=current)).replicas for v in (value, value + more))
    assert low is not None
    assert high is not None
    assert low <= high


def test_its_level_is_the_target_of_an_average_but_not_of_a_sum() -> None:
    assert TargetTracking("cpu", 0.6).levels == (("cpu", 0.6),)
    assert TargetTracking("cpu", 2.5, Mode.TOTAL).levels == ()
