"""How the default policy treats a jump in readings that are means over a longer time than the interval."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from autoscaler.core.model import ClusterSpec, ClusterState, Decision, Limits, NamedPolicy, Observation, Reading
from autoscaler.core.step import step
from autoscaler_policies.adaptive.policy import Adaptive

START = datetime(2026, 1, 5, tzinfo=UTC)
OVER = timedelta(seconds=60)
EVERY = 15.0
JUMP = 1800.0
SPEC = ClusterSpec(
    name="c",
    limits=Limits(1, 24),
    policies=(NamedPolicy("adaptive", Adaptive()),),
    metrics=("arrivals", "throughput", "lag", "utilization"),
    interval=timedelta(seconds=EVERY),
    lookback=Adaptive().lookback,
)


def seen(at: float, size: int, over: timedelta, jump: float) -> Observation:
    """A job of 100 records/s per replica. 200/s arrive, 800/s from the jump on: unprocessed records wait."""
    now = START + timedelta(seconds=at)
    capacity = 100.0 * size
    came = 200.0 + 600.0 * min(max(at - jump, 0.0), 60.0) / 60.0
    done = min(came, capacity)
    lag = max(0.0, at - jump) * (800.0 - capacity)
    metrics = {"arrivals": came, "throughput": done, "lag": lag, "utilization": done / capacity}
    return Observation(
        at=now,
        desired=size,
        ready=size,
        metrics={name: Reading(value, now, over=over) for name, value in metrics.items()},
        missing={},
    )


def decided(
    over: timedelta,
    until: float,
    jump: float = JUMP,
    missed: Collection[float] = (),
    wrong: Mapping[float, float] | None = None,
) -> dict[float, Decision]:
    """The decision at each poll, while the size stays unchanged."""
    state, found = ClusterState(), {}
    for number in range(1, round(until / EVERY) + 1):
        at = number * EVERY
        observation = seen(at, 4, over, jump)
        if at in missed:
            metrics = {name: reading for name, reading in observation.metrics.items() if name != "arrivals"}
            observation = replace(observation, metrics=metrics, missing={"arrivals": "no answer"})
        if wrong is not None and at in wrong:
            reading = Reading(wrong[at], observation.at, over=over)
            observation = replace(observation, metrics={**observation.metrics, "arrivals": reading})
        after, found[at] = step(SPEC, state, observation)
        state = replace(after, rescale=None)
    return found


def arrivals(found: Mapping[float, Decision]) -> dict[float, float]:
    return {at: decision.recommendations[0].inputs.get("arrivals", 0.0) for at, decision in found.items()}


def test_a_jump_in_a_mean_is_answered_before_the_mean_has_followed_it() -> None:
    known, unknown = (decided(over, JUMP + 30) for over in (OVER, timedelta(0)))
    assert known[JUMP].proposed < 8
    # Half of the minute has passed: the whole jump is known, while the mean shows half of it.
    assert arrivals(known)[JUMP + 30] == pytest.approx(800)
    assert arrivals(unknown)[JUMP + 30] == pytest.approx(500)
    assert known[JUMP + 30].proposed > 8 > unknown[JUMP + 15].proposed


def test_the_estimate_of_a_jump_never_exceeds_the_jump() -> None:
    assert max(arrivals(decided(OVER, JUMP + 120)).values()) == pytest.approx(800)
    assert max(arrivals(decided(OVER, JUMP + 120, JUMP + 10)).values()) == pytest.approx(800)


@pytest.mark.parametrize("missed", [(JUMP - 15,), (JUMP - 60, JUMP - 45), (JUMP + 15,), (JUMP + 30,)])
def test_missed_readings_do_not_enlarge_a_jump(missed: tuple[float, ...]) -> None:
    whole, gaps = decided(OVER, JUMP + 60), decided(OVER, JUMP + 60, missed=missed)
    assert gaps[JUMP + 60].proposed <= whole[JUMP + 60].proposed + 1
    assert max(arrivals(gaps).values()) <= 850


@pytest.mark.parametrize("wrong", [0.0, 100.0, 400.0, 2000.0])
def test_a_single_wrong_reading_is_not_a_jump_later_either(wrong: float) -> None:
    at = JUMP - 300
    found = arrivals(decided(OVER, JUMP - 15, wrong={at: wrong}))
    assert max(rate for time, rate in found.items() if time != at) == pytest.approx(200)
