"""The line that arrivals swing around, by how much, and for how long."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest

from autoscaler_policies.adaptive.forecast import MIN_LINE_AGE_S, follow, follow_line, steady_line

Memory = dict[str, float]
STEP = 15.0


def settling(
    rate: Callable[[float], float], seconds: float, memory: Memory | None = None, begin: float = 0.0
) -> Memory:
    """What is known of the long line after a rate was shown every 15 s."""
    memory = {} if memory is None else memory
    for number in range(1, round(seconds / STEP) + 1):
        at = begin + number * STEP
        follow(memory, rate(at), at)
        follow_line(memory, rate(at), at)
    return memory


def swinging(share: float, lasts: float, seed: int = 1) -> Callable[[float], float]:
    """300/s with noise of that standard deviation that is forgotten to 37 % within so long."""
    chance = Random(seed)  # noqa: S311 - noise that is the same each time, not a secret
    keeps, off, known = math.exp(-STEP / lasts), 0.0, dict[float, float]()

    def rate(at: float) -> float:
        nonlocal off
        if at not in known:
            off = keeps * off + math.sqrt(1 - keeps * keeps) * chance.gauss(0, 1)
            known[at] = 300 * (1 + share * off)
        return known[at]

    return rate


@pytest.mark.parametrize(("share", "lasts"), [(0.03, 60.0), (0.1, 40.0), (0.1, 120.0)])
def test_what_arrivals_swing_around_by_how_much_and_for_how_long_is_learned(share: float, lasts: float) -> None:
    memory = settling(swinging(share, lasts), 5 * 3600)
    found = steady_line(memory)
    assert found is not None
    middle, spread, seconds = found
    assert middle == pytest.approx(300, rel=0.05)
    assert spread == pytest.approx(share, rel=0.25)
    assert lasts / 2 < seconds < lasts * 2


@pytest.mark.parametrize(("slope", "rests"), [(0.004, True), (1 / 60, False), (-1 / 60, False)])
def test_a_line_that_rises_or_falls_is_followed_and_no_rest(slope: float, rests: bool) -> None:
    # 1 % of noise is the least that is believed: a hundredth of 300/s within 600 s
    memory = settling(lambda at: 300 + slope * at, 3 * 3600)
    assert memory["line.now"] == pytest.approx(300 + slope * 3 * 3600)
    assert (steady_line(memory) is not None) is rests


def test_what_has_not_held_for_long_is_no_line() -> None:
    memory = settling(lambda _: 300.0, MIN_LINE_AGE_S)
    assert steady_line(memory) is None
    assert steady_line(settling(lambda _: 300.0, 600, memory, MIN_LINE_AGE_S)) is not None


def test_swings_that_last_long_are_not_waited_for() -> None:
    assert steady_line(settling(swinging(0.1, 1800.0), 5 * 3600)) is None


@pytest.mark.parametrize(("to", "within"), [(600.0, 15.0), (400.0, 600.0), (200.0, 600.0), (30.0, 60.0)])
def test_a_line_that_arrivals_have_left_begins_anew(to: float, within: float) -> None:
    memory = settling(swinging(0.05, 60.0), 4 * 3600)
    assert steady_line(memory) is not None
    assert steady_line(settling(lambda _: to, within, memory, 4 * 3600.0)) is None
    found = steady_line(settling(lambda _: to, 5400, memory, 4 * 3600.0 + within))
    assert found is not None
    assert found[0] == pytest.approx(to, rel=0.01)


@pytest.mark.parametrize(("spreads", "holds"), [(2.9, True), (3.1, False)])
def test_a_jump_that_ends_among_the_swings_leaves_no_line(spreads: float, holds: bool) -> None:
    memory = settling(swinging(0.1, 60.0), 4 * 3600)
    at = 4 * 3600 + STEP
    memory["arrivals.jumped_at"] = at
    follow_line(memory, memory["line.now"] * (1 + spreads * memory["line.spread"]), at)
    assert (steady_line(memory) is not None) is holds


def test_a_reading_that_is_doubted_or_seen_again_says_nothing_of_the_line() -> None:
    memory = settling(lambda _: 300.0, 3600)
    before = {name: value for name, value in memory.items() if name.startswith("line.")}
    follow_line(memory, 900.0, 3600.0)
    follow(memory, 900.0, 3615.0, doubtful=True)
    follow_line(memory, 900.0, 3615.0)
    assert {name: value for name, value in memory.items() if name.startswith("line.")} == before


def test_after_a_silence_or_a_lost_number_the_line_begins_anew() -> None:
    memory = settling(lambda _: 300.0, 3600)
    assert steady_line(settling(lambda _: 300.0, 60, {**memory}, 4300.0)) is None
    del memory["line.tx"]
    assert steady_line(settling(lambda _: 300.0, 60, memory, 3600.0)) is None


def test_nothing_at_all_arriving_is_a_line_too() -> None:
    found = steady_line(settling(lambda _: 0.0, 3600))
    assert found is not None
    assert found[0] == 0


@pytest.mark.parametrize("rate", [1e-320, 1.7976931348623157e308])
def test_the_line_bears_any_rate(rate: float) -> None:
    steady_line(settling(lambda at: rate * (0.5 + at % 60 / 120), 7200))
