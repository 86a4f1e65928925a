"""What the default policy expects to arrive where readings are seconds apart, as in the demos."""

from __future__ import annotations

import pytest

from autoscaler_policies.adaptive import forecast
from autoscaler_policies.adaptive.forecast import Arrivals, Trend
from autoscaler_policies.adaptive.tuning import TUNING

RISE, FALL = 300.0, 600.0


def offered(seconds: float) -> float:
    """Records offered until then: 10/s, and 46/s from RISE to FALL."""
    return 10.0 * seconds + 36.0 * (min(max(seconds, RISE), FALL) - RISE)


def seen(interval: float, until: float) -> tuple[Trend, float]:
    """What is learned of readings so far apart, each a mean over the time since; and the most that was expected."""
    arrivals, trend = Arrivals(), Trend()
    points: list[tuple[float, float]] = []
    most = 0.0
    for number in range(1, round(until / interval) + 1):
        at = number * interval
        mean = (offered(at) - offered(at - interval)) / interval
        points.append((at, mean))
        stride = max(1, round(60 / interval))
        forecast.follow(arrivals, mean, at)
        forecast.find_trend(trend, arrivals, points[::-stride][:15][::-1])
        most = max(most, (arrivals.level or 0.0) + trend.rise(60.0, TUNING.trend_persistence))
    return trend, most


@pytest.mark.parametrize("interval", [1.0, 2.0, 5.0, 15.0])
def test_a_step_is_expected_to_go_on_equally_far_however_often_it_is_polled(interval: float) -> None:
    _, most = seen(interval, FALL)
    _, usual = seen(15.0, FALL)
    assert 46 < most < 46 + 1.3 * (usual - 46)


def test_what_arrivals_swing_by_is_learned_in_as_long_however_often_it_is_polled() -> None:
    often, _ = seen(1.0, FALL)
    usual, _ = seen(15.0, FALL)
    assert forecast.SWING < often.swing == pytest.approx(usual.swing, rel=0.1)


def test_the_same_reading_seen_again_teaches_no_swing() -> None:
    points = [(60.0 * number, 100.0 + 20.0 * (number % 2)) for number in range(8)]
    arrivals, trend = Arrivals(level=100.0), Trend()
    forecast.find_trend(trend, arrivals, points)
    once = trend.swing
    forecast.find_trend(trend, arrivals, points)
    assert trend.swing == once
