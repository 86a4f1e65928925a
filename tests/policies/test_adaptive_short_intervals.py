"""What the default policy expects to arrive where readings are seconds apart, as in the demos."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from autoscaler.core.model import View
from autoscaler_policies.adaptive import forecast
from autoscaler_policies.adaptive.policy import Adaptive
from tests.policies.conftest import make

RISE, FALL = 300.0, 600.0


def offered(seconds: float) -> float:
    """Records offered until then: 10/s, and 46/s from RISE to FALL."""
    return 10.0 * seconds + 36.0 * (min(max(seconds, RISE), FALL) - RISE)


def seen(interval: float, until: float) -> tuple[dict[str, float], float]:
    """What is learned of readings so far apart, each a mean over the time since; and the most that was expected."""
    memory: dict[str, float] = {}
    points: list[tuple[float, float]] = []
    most = 0.0
    for number in range(1, round(until / interval) + 1):
        at = number * interval
        mean = (offered(at) - offered(at - interval)) / interval
        points.append((at, mean))
        stride = max(1, round(60 / interval))
        forecast.follow(memory, mean, at)
        forecast.find_trends(memory, points[::-stride][:15][::-1])
        rise = max((slope * min(60.0, lasted) for slope, lasted in forecast.trends(memory)), default=0.0)
        most = max(most, memory["arrivals.level"] + rise)
    return memory, most


@pytest.mark.parametrize("interval", [1.0, 2.0, 5.0, 15.0])
def test_a_step_is_expected_to_go_on_equally_far_however_often_it_is_polled(interval: float) -> None:
    _, most = seen(interval, FALL)
    _, usual = seen(15.0, FALL)
    assert 46 < most < 46 + 1.3 * (usual - 46)


def test_what_arrivals_swing_by_is_learned_in_as_long_however_often_it_is_polled() -> None:
    often, _ = seen(1.0, FALL)
    usual, _ = seen(15.0, FALL)
    assert forecast.SWING < often["arrivals.swing"] == pytest.approx(usual["arrivals.swing"], rel=0.1)


def test_the_same_reading_seen_again_teaches_no_swing() -> None:
    points = [(60.0 * number, 100.0 + 20.0 * (number % 2)) for number in range(8)]
    memory: dict[str, float] = {"arrivals.level": 100.0}
    forecast.find_trends(memory, points)
    once = memory["arrivals.swing"]
    forecast.find_trends(memory, points)
    assert memory["arrivals.swing"] == once


def jumped(ago: float, interval: float, lag: float = 100.0) -> View:
    """40 of what will be 46 records/s for one replica that does 20, seen so many seconds after the last jump."""
    view = make({"lag": lag, "arrivals": 40.0, "throughput": 20.0}, per_replica=20)
    at = view.now.timestamp() - ago
    memory = {"arrivals.level": 40.0, "arrivals.jumped_at": at, "stall.up": 1.0, "stall.down": 1.0}
    return replace(view, memory=memory, spec=replace(view.spec, interval=timedelta(seconds=interval)))


@pytest.mark.parametrize(
    ("ago", "interval", "lag", "asked"),
    [
        (0, 2, 100, 1),
        (3.9, 2, 100, 1),
        (4, 2, 100, 3),
        (-1, 2, 100, 3),  # the clock was set
        (0, 7, 100, 1),
        (0, 7.5, 100, 3),  # the next poll would be too late to wait for
        (0, 15, 100, 3),
        (0, 2, 2000, 5),  # so much waits that every second counts
    ],
)
def test_while_arrivals_jump_more_is_asked_for_only_if_it_is_urgent(
    ago: float, interval: float, lag: float, asked: int
) -> None:
    found = Adaptive().evaluate(jumped(ago, interval, lag))
    assert found.replicas == asked
    assert ("arrivals have just jumped" in found.detail) == (asked == 1)


@pytest.mark.parametrize(("values", "jump"), [((10, 10, 46), True), ((46, 46, 10), False), ((10, 10, 10.5), False)])
def test_only_a_rise_beyond_the_noise_is_a_jump(values: tuple[float, ...], jump: bool) -> None:
    memory: dict[str, float] = {}
    for number, value in enumerate(values):
        forecast.follow(memory, value, 100.0 + 2 * number)
    assert memory.get("arrivals.jumped_at") == (104.0 if jump else None)
