"""Of arrivals that have long swung around a line the default policy lets a peak pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from autoscaler.core.model import Reading, Reason
from autoscaler_policies.adaptive.policy import Adaptive
from tests.policies.conftest import NOW
from tests.policies.test_adaptive import asked, shown

Memory = Mapping[str, float]
T = NOW.timestamp()

# arrivals have swung around 340/s by 10 % for two hours; what is above fades to 37 % within 60 s
SETTLED: Memory = {
    "line.seen_at": T,
    "line.since_at": T - 7200,
    "line.now": 340.0,
    "line.spread": 0.1,
    "line.lasts": 60.0,
}


def test_a_peak_like_those_before_it_is_left_to_pass() -> None:
    # 460/s are 60/s more than 4 do, but 120/s above the line, as 400/s are 60/s: until it is down to those
    # 60 (120 - 60 - 60 ln 2) = 1105 records fall behind. Bearable: 0.4 * 60 * 400 = 9600, and what could be worked
    # off while more came, (60 + 15 + 10) * 60 = 5100.
    found = asked(shown(460, memory=SETTLED))
    assert (found.replicas, found.reason) == (4, Reason.STEADY)
    assert found.detail == "460/s arriving, lag 0; that is a peak like those before it, which is expected to pass"
    assert asked(shown(460, 13594, memory=SETTLED)).replicas == 4
    assert asked(shown(460, 13596, memory=SETTLED)).reason is Reason.ABOVE
    assert asked(shown(390, 3000, memory=SETTLED)).replicas == 4


@pytest.mark.parametrize(
    "memory",
    [
        {"line.now": 401.0},  # it does not come back to what 4 can do
        {"line.lasts": 401.0},
        {"line.since_at": T - 1799},
    ],
)
def test_what_is_no_peak_or_none_that_passes_is_not_waited_for(memory: Memory) -> None:
    assert asked(shown(460, memory={**SETTLED, **memory})).reason is Reason.ABOVE


def test_more_at_a_peak_is_no_more_than_what_would_be_kept_after_it() -> None:
    # 520/s are far above what 4 can do, the line is not: 60 (125 - 5 - 5 ln 25) = 6234 records fall behind, 4000 wait,
    # and 0.4 * 60 * 400 + 85 * 5 = 10025 were bearable. 395 (1 + 1.2 * 0.1) (1.05 + 10 / 1200) = 468/s: 5. 520 need 6.
    found = asked(shown(520, 4000, memory={**SETTLED, "line.now": 395.0}))
    assert found.replicas == 5
    assert found.detail == (
        "520/s arriving, lag 4,000; 4 replicas (400/s) are short, 5 (500/s) do for what arrivals swing around, 395/s"
    )
    assert asked(shown(520, 4000)).replicas == 6


def test_a_rise_that_the_profile_expects_is_no_peak() -> None:
    view = shown(460, memory=SETTLED)
    given = {"given": Reading(460.0, NOW)}
    assert asked(replace(view, metrics={**view.metrics, **given}), forecast="given").reason is Reason.ABOVE


def test_fewer_must_do_for_the_line_and_what_arrivals_swing_around_it() -> None:
    # A swing of 3.6 * 0.1 of 340/s is 122/s above the line, of which 400/s leave 60 (122 - 60 - 60 ln 2.04) = 1177
    # records waiting, within 0.05 * 60 * 400 = 1200. Of one of 0.2 it is 6026, of which 500/s leave 1005: enough.
    line = {"line.seen_at": T - 15, "line.since_at": T - 7200, "line.minute_at": T}
    sums = {"line.weight": 3600.0, "line.t": 0.0, "line.tt": 1e9, "line.x": 3600 * 340.0, "line.tx": 0.0}
    view = shown(300, current=8, memory={**SETTLED, **line, **sums}, throughput=300.0)

    def enough(**memory: float) -> float:
        return Adaptive().learn(replace(view, memory={**view.memory, **memory}))["spare.enough"]

    assert enough() == 4
    assert enough(**{"line.spread": 0.2}) == 5
    assert enough(**{"line.spread": 0.2, "line.lasts": 401.0}) == 4  # what lasts is no swing
    assert enough(**{"line.x": 3600 * 401.0}) == 5
