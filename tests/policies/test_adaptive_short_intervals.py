"""The forecasts of the default policy if readings are seconds apart, as in the demos."""

from __future__ import annotations

import pytest

from autoscaler_policies.adaptive.forecast import Arrivals

RISE, FALL = 300.0, 600.0


def offered(seconds: float) -> float:
    """Records that have arrived until then: 10/s, and 46/s from RISE to FALL."""
    return 10.0 * seconds + 36.0 * (min(max(seconds, RISE), FALL) - RISE)


def seen(interval: float, until: float) -> float:
    """The highest forecast a minute ahead, from readings this far apart, each a mean since the one before."""
    arrivals = Arrivals()
    most = 0.0
    for number in range(1, round(until / interval) + 1):
        at = number * interval
        arrivals.follow((offered(at) - offered(at - interval)) / interval, at)
        most = max(most, (arrivals.level or 0.0) + arrivals.rise(60.0))
    return most


@pytest.mark.parametrize("interval", [1.0, 2.0, 5.0, 15.0])
def test_the_forecast_of_a_step_does_not_depend_on_the_poll_interval(interval: float) -> None:
    most, usual = seen(interval, FALL), seen(15.0, FALL)
    assert 46 < most < 46 + 1.3 * (usual - 46)
