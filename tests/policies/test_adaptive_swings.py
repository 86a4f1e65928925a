"""If arrivals swing around a level, the default policy lets a peak pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from autoscaler.core.model import Reading, Reason
from autoscaler_policies.adaptive.policy import Adaptive
from autoscaler_policies.adaptive.state import State
from tests.policies.conftest import NOW, make
from tests.policies.test_adaptive import KNOWN, asked, shown

Memory = Mapping[str, float]

# arrivals have swung around 340/s by 10 % for hours; a fifth of the part above the level remains in the mean of the
# next 5 minutes: it fades to 37 % within 60 s
SETTLED: Memory = {
    "lasting.mean": 340.0,
    "lasting.weight": 100.0,
    "lasting.total": 34000.0,
    "lasting.square": 1.0,
    "lasting.both": 0.2,
}


def swinging(middle: float, spread: float = 0.1, share: float = 0.2) -> Memory:
    square = 100.0 * spread * spread
    sums = {"lasting.total": 100.0 * middle, "lasting.square": square, "lasting.both": share * square}
    return {**SETTLED, "lasting.mean": middle, **sums}


def test_a_usual_peak_is_left_to_pass() -> None:
    # 460/s are 120/s above the level and 400/s 60/s: until they are down to those 60, (120 - 60 - 60 ln 2) * 60 = 1105
    # records pile up. Bearable: 0.4 * 60 * 400 = 9600, and the records that could be processed while more arrived, (60
    # + 15 + 10) * 60 = 5100. Only a trend makes the policy expect more at all.
    rising = {**SETTLED, "arrivals.trend": 0.8}
    found = asked(shown(460, memory=rising))
    assert (found.replicas, found.reason) == (4, Reason.STEADY)
    assert found.detail.endswith("lag 0; this peak is like earlier ones and is expected to pass")
    assert asked(shown(460, 13594, memory=rising)).replicas == 4
    assert asked(shown(460, 13596, memory=rising)).reason is Reason.ABOVE
    assert asked(shown(390, 3000, memory=rising)).replicas == 4


@pytest.mark.parametrize(
    "memory",
    [
        swinging(401.0),  # it does not come back to the capacity of 4
        swinging(340.0, share=0.7),  # a swing that lasts 210 s is not a swing
        {**SETTLED, "lasting.weight": 29.0, "lasting.total": 9860.0, "lasting.square": 0.29, "lasting.both": 0.058},
    ],
)
def test_arrivals_that_are_not_a_passing_peak_are_not_waited_for(memory: Memory) -> None:
    assert asked(shown(460, 6000, memory={**memory, "arrivals.trend": 1.0})).reason is Reason.ABOVE


@pytest.mark.parametrize("total", [34000.0, 32000.0, 28000.0, 36000.0, 50000.0])
def test_the_level_is_the_mean_of_hours_while_chance_explains_the_last_minutes(total: float) -> None:
    # Swings of 10 % that last 60 s make a mean of 840 s vary by 10 % * sqrt(2 * 60 / 840) = 3.78 %: three times that is
    # 38.6/s.
    swings = State.load({**SETTLED, "lasting.total": total}).lasting.swings()
    assert swings is not None
    assert swings.middle == pytest.approx(min(max(total / 100, 340 - 38.55), 340 + 38.55), abs=0.1)


def test_a_rise_that_the_profile_predicts_is_not_a_peak() -> None:
    view = shown(460, 6000, memory=SETTLED)
    given = {"given": Reading(460.0, NOW)}
    assert asked(replace(view, metrics={**view.metrics, **given}), forecast="given").reason is Reason.ABOVE


def test_a_smaller_size_must_suffice_for_the_swings_around_the_level() -> None:
    # A swing of 3 * 0.1 of 340/s is 102/s above the level; 400/s leave 60 (102 - 60 - 60 ln 1.7) = 610 records waiting,
    # within 0.05 * 60 * 400 = 1200. With a swing of 0.2 it is 4234; 500/s leave 308: enough.
    def enough(memory: Memory) -> int | None:
        view = make({"lag": 0.0, "arrivals": 340.0, "throughput": 340.0}, current=8, maximum=20)
        watched = {"spare.size": 8.0, "spare.saved": 1e6, "spare.since_at": NOW.timestamp() - 1000}
        return (
            Adaptive().evaluate(replace(view, memory={**KNOWN, "arrivals.level": 340.0, **watched, **memory})).replicas
        )

    assert enough(swinging(340.0)) == 4
    assert enough(swinging(340.0, spread=0.2)) == 5
    assert enough(swinging(340.0, spread=0.2, share=0.7)) == 4  # too long for a swing
    assert enough(swinging(401.0)) == 5
