"""What arrives and what will arrive: the level, trends that stand out of the noise, and what lasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from statistics import median
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler_policies.adaptive import forecast
from autoscaler_policies.adaptive.forecast import (
    Arrivals,
    Lasting,
    Swings,
    Trend,
    find_trend,
    follow,
    judge_trend,
    learn_lasting,
    line,
)
from autoscaler_policies.adaptive.state import State

Points = list[tuple[float, float]]
Rate = Callable[[float], float]
STEP = 15.0


def dice(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - noise that is the same each time, not a secret


class Known(NamedTuple):
    """What is learned from the arrivals."""

    arrivals: Arrivals
    trend: Trend
    lasting: Lasting

    @property
    def level(self) -> float:
        assert self.arrivals.level is not None
        return self.arrivals.level

    def rises(self) -> bool:
        return self.trend.rise(60.0, 3.0) > 0

    def foreseen(self, ahead: float) -> float:
        """What the policy takes for arriving so far ahead."""
        return self.level + self.trend.rise(ahead, 3.0)


def known() -> Known:
    return Known(Arrivals(), Trend(), Lasting())


def play(rate: Rate, seconds: float) -> Iterator[tuple[float, Known]]:
    """Show a rate every 15 s, and after each reading what is known."""
    found = known()
    seen: Points = []
    stride = round(forecast.MINUTE_S / STEP)
    for number in range(1, round(seconds / STEP) + 1):
        at = number * STEP
        seen.append((at, max(rate(at), 0.0)))
        minutes = seen[::-stride][: forecast.POINTS][::-1]
        follow(found.arrivals, seen[-1][1], at)
        find_trend(found.trend, found.arrivals, minutes)
        judge_trend(found.trend, found.level, at)
        learn_lasting(found.lasting, minutes)
        yield at, found


def after(rate: Rate, seconds: float) -> Known:
    *_, (_, found) = play(rate, seconds)
    return found


# the line


def test_a_line_of_worked_numbers() -> None:
    # t -3 -2 -1 0, v 1 3 2 4: mean t -1.5, mean v 2.5, sum (t-mt)^2 = 5, sum (t-mt)(v-mv) = 4: slope 0.8
    # residuals -0.3 0.9 -0.9 0.3: squares 1.8, noise sqrt(1.8 / 2), error noise / sqrt(5)
    found = line([(97.0, 1.0), (98.0, 3.0), (99.0, 2.0), (100.0, 4.0)])
    assert found.slope == pytest.approx(0.8)
    assert found.noise == pytest.approx(math.sqrt(0.9))
    assert found.error == pytest.approx(math.sqrt(0.9 / 5))


@pytest.mark.parametrize("points", [[(1.0, 5.0)], [(1.0, 5.0), (2.0, 6.0), (3.0, 7.0)], [(1.0, 7.0)] * 6])
def test_too_few_points_or_one_moment_make_no_line(points: Points) -> None:
    assert line(points) == forecast.Line(0.0, math.inf, 0.0)


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.floats(-100, 100),
    st.floats(-1e4, 1e4),
    st.lists(st.integers(0, 900), min_size=4, max_size=15, unique=True).map(sorted),
    st.floats(1.7e9, 1.8e9),
)
def test_points_on_a_line_give_that_line_at_any_time(slope: float, now: float, ago: list[int], end: float) -> None:
    points = [(end - seconds, now - slope * seconds) for seconds in reversed(ago)]
    found = line(points)
    # seconds since 1970 are known to a quarter of a millionth
    assert found.slope == pytest.approx(slope, rel=1e-4, abs=1e-3)
    assert found.noise <= 0.1


# the level


def test_the_level_follows_what_arrives() -> None:
    # 4 %, less than a jump: 40 % of what is missing at first, and nearly all after a minute and a half
    levels = [found.level for _, found in play(lambda at: 100 if at <= 600 else 104, 700)]
    assert levels[39] == pytest.approx(100)
    assert levels[40] == pytest.approx(100 + 4 * forecast.LEVEL_WEIGHT)
    assert levels[45] == pytest.approx(104, abs=0.8)
    assert max(levels) < 105.6


def test_a_jump_is_the_level_at_once() -> None:
    levels = [found.level for _, found in play(lambda at: 100 if at <= 600 else 250, 660)]
    assert levels[39:41] == [pytest.approx(100), 250]


def test_a_jump_that_nothing_bears_out_counts_when_it_is_read_twice() -> None:
    arrivals = after(lambda _: 100.0, 600).arrivals
    follow(arrivals, 250.0, 615, doubtful=True)
    assert arrivals.level == pytest.approx(100)
    follow(arrivals, 250.0, 630, doubtful=True)
    assert arrivals.level == 250


def test_a_single_doubtful_jump_is_forgotten() -> None:
    arrivals = after(lambda _: 100.0, 600).arrivals
    follow(arrivals, 250.0, 615, doubtful=True)
    follow(arrivals, 100.0, 630, doubtful=True)
    follow(arrivals, 250.0, 645, doubtful=True)
    assert arrivals.level == pytest.approx(100, rel=0.01)


def test_fewer_are_believed_at_once_however_doubtful() -> None:
    arrivals = after(lambda _: 100.0, 600).arrivals
    follow(arrivals, 20.0, 615, doubtful=True)
    assert arrivals.level == 20


def test_the_same_reading_twice_says_nothing() -> None:
    arrivals = after(lambda at: 100 + at / 100, 600).arrivals
    before = replace(arrivals)
    follow(arrivals, 999.0, 600)
    follow(arrivals, 999.0, 300)
    assert arrivals == before


def test_after_a_gap_the_level_begins_anew_and_the_noise_is_still_known() -> None:
    chance = dice(1)
    arrivals = after(lambda _: chance.gauss(100, 20), 1800).arrivals
    noise = arrivals.noise
    assert noise > forecast.NOISE
    follow(arrivals, 120.0, 1800 + forecast.STALE_S + 1)
    assert (arrivals.level, arrivals.foreseen, arrivals.slope) == (120, 120, 0)
    assert arrivals.noise == noise


def test_without_its_level_it_begins_anew() -> None:
    arrivals = Arrivals(seen_at=0.0, slope=5.0)
    follow(arrivals, 120.0, 15.0)
    assert (arrivals.level, arrivals.slope) == (120, 0)
    assert arrivals.noise == forecast.NOISE


def test_nothing_arriving_is_no_noise() -> None:
    found = after(lambda _: 0.0, 600)
    assert found.level == 0
    assert found.arrivals.noise == forecast.NOISE
    assert not found.rises()


# trends


def autocorrelated(chance: Random, share: float, lasts: float) -> Rate:
    """100/s with noise of that standard deviation that is forgotten to 37 % within so long."""
    kept = math.exp(-STEP / lasts)
    state = [chance.gauss(0, share)]

    def rate(_: float) -> float:
        state[0] = kept * state[0] + math.sqrt(1 - kept * kept) * chance.gauss(0, share)
        return 100 * (1 + state[0])

    return rate


@pytest.mark.parametrize("share", [0.03, 0.1])
def test_white_noise_hardly_ever_is_taken_for_a_trend(share: float) -> None:
    found = shown = 0
    for seed in range(8):
        chance = dice(seed)
        for at, seen in play(lambda _, chance=chance: 100 * (1 + chance.gauss(0, share)), 2 * 3600):  # type: ignore[misc]
            if at > 1800:
                shown += 1
                found += seen.rises()
    assert shown == 8 * 360
    assert found < 0.02 * shown


def test_noise_that_holds_on_for_a_minute_seldom_is_taken_for_a_trend() -> None:
    found = shown = 0
    for seed in range(8):
        for at, seen in play(autocorrelated(dice(seed), 0.05, 60), 2 * 3600):
            if at > 1800:
                shown += 1
                found += seen.rises()
    assert found < 0.04 * shown


@pytest.mark.parametrize("seed", range(4))
def test_a_ramp_is_found_within_minutes_and_its_slope_is_right_once_it_has_filled_the_line(seed: int) -> None:
    # 100/s, from 30 min on 4 % more each minute, with 2 % of noise
    chance = dice(seed)
    begin, slope = 1800.0, 4.0 / 60
    first = None
    for at, found in play(
        lambda at: (100 + slope * max(at - begin, 0)) * (1 + chance.gauss(0, 0.02)), begin + forecast.TREND_S
    ):
        if at > begin and found.rises():
            first = first or at
        if at == begin + forecast.TREND_S / 2:
            assert 0 < found.trend.line < slope
        if at == begin + forecast.TREND_S:
            assert found.trend.line == pytest.approx(slope, rel=0.2)
    assert first is not None
    assert first - begin <= 300


def test_a_fall_is_no_trend_to_prepare_for() -> None:
    found = after(lambda at: 200 - at / 15, 1500)
    assert (found.trend.line, found.trend.minute) == (0, 0)
    assert not found.rises()


def test_a_trend_lasts_so_many_times_as_long_as_it_was_seen() -> None:
    now = forecast.READING_AGE_S
    for_long = Trend(line=0.1)
    assert for_long.rise(60.0, 3.0) == pytest.approx(0.1 * (60 + now))
    assert for_long.rise(1e6, 3.0) == pytest.approx(0.1 * (3 * forecast.TREND_S + now))
    assert for_long.rise(1e6, 0.5) == pytest.approx(0.1 * (0.5 * forecast.TREND_S + now))
    short = Trend(minute=0.1)
    assert short.rise(60.0, 3.0) == pytest.approx(0.1 * (60 + now))
    assert short.rise(1e6, 3.0) == pytest.approx(0.1 * (3 * forecast.MINUTE_S + now))


def test_of_two_trends_the_one_that_predicts_more_counts() -> None:
    both, steep, long = Trend(line=0.1, minute=0.3), Trend(minute=0.3), Trend(line=0.1)
    assert both.rise(60.0, 3.0) == steep.rise(60.0, 3.0) > long.rise(60.0, 3.0)
    assert both.rise(1200.0, 3.0) == long.rise(1200.0, 3.0) > steep.rise(1200.0, 3.0)
    assert Trend(line=-1.0, minute=-1.0).rise(60.0, 3.0) == 0


def test_a_trend_counts_as_far_as_trusted_and_that_of_the_last_minute_fully() -> None:
    # its errors were twice those of expecting no change: a quarter is left
    wrong = {"error": 0.2, "unchanged_error": 0.1}
    assert Trend(line=2.0, **wrong).rise(60.0, 3.0) == pytest.approx(Trend(line=0.5).rise(60.0, 3.0))
    assert Trend(minute=2.0, **wrong).rise(60.0, 3.0) == Trend(minute=2.0).rise(60.0, 3.0)


@pytest.mark.parametrize(
    ("error", "unchanged", "trust"),
    [
        (None, None, 1.0),
        (0.0, 0.0, 1.0),
        (0.1, 0.2, 1.0),
        (0.2, 0.2, 1.0),
        (0.2, 0.1, 0.25),
        (0.2, 0.0, 0.0),
        # what cannot be, as a memory may have it
        (0.2, None, 1.0),
        (None, 0.2, 1.0),
        (-0.2, 0.2, 1.0),
        (0.2, -0.2, 0.0),
    ],
)
def test_trust_is_by_what_was_more_wrong(error: float | None, unchanged: float | None, trust: float) -> None:
    assert Trend(error=error, unchanged_error=unchanged).trust == pytest.approx(trust)


@pytest.mark.parametrize(("share", "found"), [(0.99, False), (1.01, True)])
def test_the_trend_of_the_last_minute_must_stand_out(share: float, found: bool) -> None:
    # of 5 % of 100 within a minute, so many times
    slope = share * forecast.SIGNIFICANCE * 0.05 * 100 / forecast.MINUTE_S
    trend, arrivals = Trend(swing=0.05), Arrivals(level=100.0, foreseen=100.0, slope=slope)
    find_trend(trend, arrivals, [(60.0 * minute, 100.0) for minute in range(forecast.POINTS)])
    assert trend.minute == (slope if found else 0.0)


def test_what_the_trend_of_the_last_minute_must_stand_out_of_does_not_depend_on_the_present_reading() -> None:
    slope = 1.01 * forecast.SIGNIFICANCE * 0.05 * 100 / forecast.MINUTE_S
    trend, arrivals = Trend(swing=0.05), Arrivals(level=300.0, foreseen=100.0, slope=slope)
    find_trend(trend, arrivals, [(60.0 * minute, 100.0) for minute in range(forecast.POINTS)])
    assert trend.minute == slope


def test_without_a_level_the_last_reading_is_what_arrives() -> None:
    points = [(60.0 * minute, 100.0 + minute % 2) for minute in range(forecast.POINTS)]
    trend, same = Trend(), Trend()
    find_trend(trend, Arrivals(), points)
    find_trend(same, Arrivals(level=points[-1][1]), points)
    assert trend == same
    assert trend.swing < forecast.SWING


def test_a_single_reading_is_no_trend() -> None:
    trend = Trend()
    find_trend(trend, Arrivals(level=100.0, foreseen=100.0), [(0.0, 100.0)])
    assert trend == Trend(seen_at=0.0)


@pytest.mark.parametrize("swing", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
def test_a_greater_reading_never_predicts_less(swing: float, share: float) -> None:
    for seed in range(300):
        chance = dice(seed)
        slope = chance.uniform(0, 0.05)
        past = [(60.0 * n, 100 * (1 + slope * n) * (1 + share * swing * chance.uniform(-1, 1))) for n in range(15)]
        usual = 100 * (1 + slope * 15)
        value = usual * chance.uniform(0.9, 1.3)
        found = []
        for reading in (value, value + usual * chance.choice((0.02, 0.1, 0.3))):
            seen = Known(
                Arrivals(seen_at=885.0, level=usual, slope=slope * 100 / 60, noise=0.03), Trend(swing=swing), Lasting()
            )
            follow(seen.arrivals, reading, 900.0)
            find_trend(seen.trend, seen.arrivals, [*past, (900.0, reading)])
            found.append(seen)
        low, high = found
        for ahead in (30.0, 60.0, 130.0, 510.0):
            assert high.foreseen(ahead) >= low.foreseen(ahead) * (1 - 1e-9), (seed, ahead)


def test_a_reading_far_above_a_trend_does_not_hide_it() -> None:
    def seen(last: float) -> Trend:
        trend = Trend(swing=0.01)
        past = [(60.0 * n, 100.0 + 7 * n + n % 2) for n in range(15)]
        find_trend(trend, Arrivals(level=200.0, foreseen=200.0), [*past, (900.0, last)])
        return trend

    assert seen(205.0).line == pytest.approx(7 / 60, rel=0.05)
    assert seen(1000.0).line >= seen(205.0).line


def test_what_arrivals_swing_by_is_learned_within_hours() -> None:
    chance = dice(3)
    calm = after(lambda _: 100 * (1 + chance.gauss(0, 0.01)), 4 * 3600)
    wild = after(lambda _: 100 * (1 + chance.gauss(0, 0.15)), 4 * 3600)
    assert calm.trend.swing < forecast.SWING < 0.1 < wild.trend.swing < 0.18


def test_a_jump_is_no_swing() -> None:
    found = after(lambda at: 100 if at <= 1800 else 200, 1800 + forecast.TREND_S)
    assert found.trend.swing < 1.5 * forecast.SWING


# what lasts


def lasting_after(rate: Rate, seconds: float) -> Lasting:
    """What is learned from a reading every 15 s, of which those a minute apart are shown."""
    return after(rate, seconds).lasting


def test_what_is_off_from_the_mean_lasts_until_it_was_seen_not_to() -> None:
    assert Lasting().rate(150.0) == 150
    chance = dice(1)
    assert lasting_after(lambda _: 100 * (1 + chance.gauss(0, 0.1)), 540).rate(150.0) == 150


def test_of_what_only_swings_hardly_anything_lasts_up_or_down() -> None:
    chance = dice(1)
    found = lasting_after(lambda _: 100 * (1 + chance.gauss(0, 0.3)), 2 * 3600)
    assert found.mean is not None
    assert found.mean == pytest.approx(100, rel=0.2)
    for level in (40.0, 160.0):
        assert found.rate(level) == pytest.approx(found.mean + 0.1 * (level - found.mean), rel=0.15)


def test_of_levels_that_hold_all_lasts() -> None:
    found = lasting_after(lambda at: 100 if at // 1800 % 2 else 200, 4 * 3600)
    assert found.rate(150.0) == pytest.approx(150, rel=0.1)


def test_what_is_beyond_all_that_is_usual_lasts() -> None:
    chance = dice(1)
    found = lasting_after(lambda _: 100 * (1 + chance.gauss(0, 0.05)), 2 * 3600)
    assert 380 < found.rate(400.0) < 400


def test_it_is_forgotten_within_hours() -> None:
    chance = dice(1)

    def rate(at: float) -> float:
        return 100 * (1 + chance.gauss(0, 0.3)) if at < 3600 else 100 + 50 * (at // 1800 % 2)

    assert lasting_after(rate, 3600).rate(150.0) < 115
    assert lasting_after(rate, 10 * 3600).rate(150.0) > 135


def test_nothing_arriving_teaches_nothing_of_what_lasts() -> None:
    found = lasting_after(lambda _: 0.0, 3600)
    assert found.rate(10.0) == 10
    assert found.swings() is None


def test_the_same_readings_twice_count_once() -> None:
    points = [(60.0 * minute, 100.0 + minute % 3) for minute in range(forecast.POINTS)]
    found = Lasting()
    learn_lasting(found, points)
    learn_lasting(found, [(at + 60, rate) for at, rate in points])
    before = replace(found)
    assert before.weight == 1
    learn_lasting(found, [(at + 60, rate) for at, rate in points])
    assert found == before


def test_a_part_of_what_is_known_lowers_nothing() -> None:
    for part in (Lasting(square=1.0), Lasting(weight=1.0), Lasting(mean=1.0, both=5.0), Lasting(mean=1.0, square=5.0)):
        assert part.rate(10.0) == 10
        assert part.swings() is None


# arrivals that swing around a level


EARLIEST = forecast.STEADY_MINUTES * forecast.MINUTE_S + 2 * forecast.AHEAD_S
"""Nothing is recognised before so long: the first deviation is compared after twice `AHEAD_S`."""


def swings_after(rate: Rate, seconds: float) -> Swings | None:
    return lasting_after(rate, seconds).swings()


@pytest.mark.parametrize("lasts", [60.0, 120.0])
def test_noise_that_lasts_a_minute_or_two_is_recognised_after_half_an_hour(lasts: float) -> None:
    found = []
    for seed in range(8):
        first = None
        for at, seen in play(autocorrelated(dice(seed), 0.1, lasts), 3600):
            swings = seen.lasting.swings()
            first = at if first is None and swings is not None else first
        assert first is None or first > EARLIEST
        found.append(swings)
    kept = [swings for swings in found if swings is not None]
    assert len(kept) >= 7  # within an hour chance may make one last longer
    for swings in kept:
        assert swings.middle == pytest.approx(100, rel=0.1)
        assert swings.spread == pytest.approx(0.1, rel=0.25)


@pytest.mark.parametrize(("share", "lasts"), [(0.03, 60.0), (0.1, 40.0), (0.1, 60.0), (0.1, 120.0)])
def test_what_arrivals_swing_around_by_how_much_and_for_how_long_is_learned(share: float, lasts: float) -> None:
    found = [swings_after(autocorrelated(dice(seed), share, lasts), 3 * 3600) for seed in range(8)]
    kept = [swings for swings in found if swings is not None]
    assert len(kept) == len(found)
    for swings in kept:
        assert swings.middle == pytest.approx(100, rel=0.1)
        assert swings.spread == pytest.approx(share, rel=0.25)
        assert swings.lasts < 2 * lasts
    assert lasts / 1.5 < median(swings.lasts for swings in kept) < 1.5 * lasts


def test_swings_that_last_long_are_seldom_taken_for_what_passes() -> None:
    taken = shown = 0
    for seed in range(8):
        for _, found in play(autocorrelated(dice(seed), 0.1, 1800.0), 5 * 3600):
            shown += 1
            taken += found.lasting.swings() is not None
        assert found.lasting.swings() is None
    assert taken < 0.02 * shown


def ramp(share: float) -> Rate:
    """100/s at first, and each quarter of an hour so much more."""
    return lambda at: 100 * (1 + share * at / 900)


def sine(period: float, share: float) -> Rate:
    return lambda at: 100 * (1 + share * math.sin(2 * math.pi * at / period))


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize(
    "rate",
    [
        *(ramp(share) for share in (0.1, 0.2, 0.4)),
        *(sine(period, 0.3) for period in (1800.0, 3600.0, 7200.0, 14400.0)),
        lambda at: 100 if at // 1800 % 2 else 200,
    ],
    ids=["ramp 10 %", "ramp 20 %", "ramp 40 %", "sine 30m", "sine 1h", "sine 2h", "sine 4h", "levels"],
)
def test_what_rises_or_falls_by_more_than_its_noise_is_no_swing(rate: Rate, noise: float) -> None:
    chance = dice(1)
    for _, found in play(lambda at: rate(at) * (1 + chance.gauss(0, noise)), 3 * 3600):
        assert found.lasting.swings() is None


@pytest.mark.parametrize("factor", [0.3, 1.2, 3.0])
def test_a_single_jump_is_no_swing(factor: float) -> None:
    for _, found in play(lambda at: 100 if at < 4000 else 100 * factor, 3 * 3600):
        assert found.lasting.swings() is None


@pytest.mark.parametrize("factor", [0.1, 2.0, 3.0])
def test_a_level_that_arrivals_have_left_is_no_more_what_they_swing_around(factor: float) -> None:
    begin = 4 * 3600.0
    usual = autocorrelated(dice(1), 0.05, 60.0)
    for at, found in play(lambda at: usual(at) * (factor if at > begin else 1), begin + 3600):
        swings = found.lasting.swings()
        if at == begin:
            assert swings is not None
        if at > begin + 2 * forecast.AHEAD_S:
            assert swings is None


@pytest.mark.parametrize("factor", [2 / 3, 4 / 3])
def test_after_a_smaller_jump_the_level_is_off_by_no_more_than_chance_explains(factor: float) -> None:
    begin = 4 * 3600.0
    usual = autocorrelated(dice(1), 0.1, 60.0)
    followed = 0
    for at, found in play(lambda at: usual(at) * (factor if at > begin else 1), begin + 3600):
        swings, mean = found.lasting.swings(), found.lasting.mean
        if at > begin + forecast.TREND_S and swings is not None and mean is not None:
            followed += 1
            assert mean == pytest.approx(100 * factor, rel=0.1)
            error = swings.spread * math.sqrt(2 * swings.lasts / forecast.MEAN_S)
            assert abs(swings.middle / mean - 1) <= forecast.CHANCE * error * (1 + 1e-9)
            assert (swings.middle - mean) * (factor - 1) < 0  # towards the level of the hours before
    assert followed > 0


def test_a_jump_out_of_next_to_nothing_hides_no_later_one() -> None:
    # one record a second every five minutes for two hours, then 300/s for one
    _, found = list(play(lambda at: (at % 300 < 15) if at < 7200 else 300.0, 3 * 3600))[-1]
    assert found.lasting.both < -found.lasting.square
    assert found.lasting.rate(450.0) == 450
    assert found.lasting.swings() is None


ENOUGH = 1.01 * forecast.STEADY_MINUTES


def test_how_much_and_how_long_they_swing_is_by_what_was_off_before_and_after() -> None:
    sums = {"weight": ENOUGH, "total": 100.0 * ENOUGH, "square": 2.0}
    found = Lasting(mean=100.0, **sums, both=1.98 * forecast.STEADY_S / forecast.AHEAD_S).swings()
    assert found == pytest.approx((100.0, math.sqrt(2 / ENOUGH), 0.99 * forecast.STEADY_S))


@pytest.mark.parametrize(
    "known",
    [
        Lasting(mean=None, weight=ENOUGH, square=1.0),
        Lasting(mean=0.0, weight=ENOUGH, square=1.0),
        Lasting(mean=100.0, weight=0.99 * forecast.STEADY_MINUTES, square=1.0),
        Lasting(mean=100.0, weight=ENOUGH),
        Lasting(mean=100.0, weight=ENOUGH, square=1.0, both=1.01 * forecast.STEADY_S / forecast.AHEAD_S),
    ],
    ids=["no mean", "nothing", "not long", "no swings", "lasts long"],
)
def test_what_was_not_seen_for_long_or_lasts_too_long_is_no_swing(known: Lasting) -> None:
    assert known.swings() is None


def test_a_deviation_that_turns_round_at_once_still_lasts_a_little() -> None:
    found = Lasting(mean=100.0, weight=ENOUGH, square=1.0, both=-0.5).swings()
    assert found is not None
    assert found.lasts == forecast.MIN_LASTING * forecast.AHEAD_S


def test_the_backlog_after_a_peak_is_the_area_above_what_is_processed() -> None:
    swings = Swings(middle=340.0, spread=0.1, lasts=60.0)
    # 120/s above the level fade to 60/s, which are processed, within 60 ln 2 s
    by_hand = sum(max(120 * math.exp(-at / 100 / 60) - 60, 0.0) / 100 for at in range(100 * 300))
    assert swings.backlog(120.0, 400.0) == pytest.approx(by_hand, rel=0.001)
    assert swings.backlog(60.0, 400.0) == swings.backlog(-100.0, 400.0) == 0
    assert swings.backlog(1.0, 340.0) == swings.backlog(1.0, 100.0) == math.inf


# judging


def test_a_trend_that_was_right_is_trusted() -> None:
    trend = after(lambda at: 100 + at / 30, 7200).trend
    assert trend.error is not None
    assert trend.unchanged_error is not None
    assert trend.error < trend.unchanged_error
    assert trend.trust == 1


def test_a_trend_that_never_goes_on_is_trusted_less() -> None:
    # up by 40 % in ten minutes, and back for ten: what rises for five minutes has nearly done so
    trend = after(lambda at: 100 + 40 * abs((at / 600) % 2 - 1), 6 * 3600).trend
    assert trend.error is not None
    assert trend.unchanged_error is not None
    assert trend.error > trend.unchanged_error
    assert trend.trust < 0.7


def test_forecasts_are_judged_when_they_are_due_and_not_before() -> None:
    ahead = forecast.AHEAD_S
    trend = Trend(line=50 / ahead)
    judge_trend(trend, 100.0, 1000.0)
    assert (trend.due_at, trend.unchanged) == (1000 + ahead, 100)
    assert trend.expected == pytest.approx(150)
    judge_trend(trend, 120.0, 1000 + ahead - 1)
    assert (trend.error, trend.unchanged_error) == (None, None)
    judge_trend(trend, 120.0, 1000 + ahead)
    # 150 were foreseen and 120 came: off by 25 %; no change would have been off by 1/6
    assert trend.error == pytest.approx(0.25)
    assert trend.unchanged_error == pytest.approx(1 / 6)
    assert trend.trust == pytest.approx((4 / 6) ** 2)
    judge_trend(trend, 170.0, 1000 + 2 * ahead)
    # 170 were foreseen and came: an error of 0
    assert trend.error == pytest.approx(0.25 * (1 - forecast.ERROR_WEIGHT))


@pytest.mark.parametrize("late", [forecast.AHEAD_S + forecast.MINUTE_S + 1, -400.0])
def test_a_forecast_that_was_not_polled_when_it_was_due_is_not_judged(late: float) -> None:
    # -400: the clock was set, and it would be due too far ahead
    trend = Trend(line=1.0)
    judge_trend(trend, 100.0, 1000.0)
    judge_trend(trend, 100.0, 1000.0 + late)
    assert trend.error is None
    assert trend.due_at == 1000 + late + forecast.AHEAD_S


def test_nothing_is_judged_while_nothing_arrives() -> None:
    trend = Trend(line=1.0)
    judge_trend(trend, 100.0, 1000.0)
    judge_trend(trend, 0.0, 1000.0 + forecast.AHEAD_S)
    assert trend.error is None


def test_where_there_was_no_trend_there_is_nothing_to_judge() -> None:
    trend = Trend()
    judge_trend(trend, 100.0, 1000.0)
    judge_trend(trend, 200.0, 1000.0 + forecast.AHEAD_S)
    assert trend == Trend(due_at=1000.0 + 2 * forecast.AHEAD_S)


def test_one_forecast_that_was_far_off_counts_for_no_more_than_ten_times_the_arrivals() -> None:
    trend = Trend(line=1.0)
    judge_trend(trend, 1e6, 1000.0)
    judge_trend(trend, 1.0, 1000.0 + forecast.AHEAD_S)
    assert (trend.error, trend.unchanged_error) == (10, 10)


finite = st.floats(0, 1.7976931348623157e308)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(-100, 1e6), finite), min_size=1, max_size=30))
def test_whatever_arrives_no_level_or_trend_is_below_nothing(readings: list[tuple[float, float]]) -> None:
    state = State()
    seen: Points = []
    at = 1.7e9
    for later, value in readings:
        at = max(at + later, at)
        seen.append((at, value))
        follow(state.arrivals, value, at)
        find_trend(state.trend, state.arrivals, seen[-forecast.POINTS :])
        judge_trend(state.trend, state.arrivals.level or 0.0, at)
        learn_lasting(state.lasting, seen[-forecast.POINTS :])
        state = State.load(state.dump())  # what is kept are finite numbers
        level = state.arrivals.level or 0.0
        assert level >= 0
        assert state.trend.rise(60.0, 3.0) >= 0
        assert 0 <= state.trend.trust <= 1
        assert state.lasting.rate(level) >= 0
        swings = state.lasting.swings()
        assert swings is None or (swings.spread >= 0 and swings.lasts > 0)


# what is new in a mean over a longer time


def means(rate: Rate, until: float, over: float = 60.0, step: float = 15.0) -> Points:
    """Readings of a rate per second, each a mean over so many seconds."""
    points = []
    for number in range(1, round(until / step) + 1):
        at = number * step
        points.append((at, sum(rate(at - back - 0.5) for back in range(round(over))) / over))
    return points


def surge(at: float) -> float:
    return 100.0 if at < 600 else 400.0


@pytest.mark.parametrize("over", [30.0, 60.0, 120.0])
@pytest.mark.parametrize("step", [15.0, 7.5, 5.0])
def test_a_jump_is_seen_whole_long_before_the_mean_has_followed_it(over: float, step: float) -> None:
    points = means(surge, 615, over, step)
    assert points[-1][1] < 260
    assert forecast.latest_rate(points, over) == pytest.approx(400, rel=0.01)


def test_of_a_jump_within_the_last_interval_the_part_is_seen_that_came() -> None:
    assert forecast.latest_rate(means(lambda at: surge(at + 5), 600), 60.0) == pytest.approx(200)


def test_the_latest_rate_is_never_below_nothing() -> None:
    assert forecast.latest_rate([*means(lambda _: 100.0, 600), (615.0, 10.0)], 60.0) == 0


@pytest.mark.parametrize(
    "points",
    [
        [(0.0, 7.0)],
        [(0.0, 7.0), (15.0, 7.0)],
        [(0.0, 5.0), (15.0, 7.0)],  # nothing is known of a minute ago
        [(0.0, 5.0), (30.5, 7.0)],  # one reading was missed
        [(0.0, 5.0), (300.0, 5.1), (600.0, 7.0)],
        [(600.0 + number, 5.0 + number) for number in range(3)],
    ],
)
def test_the_latest_rate_is_the_mean_where_nothing_else_is_known(points: Points) -> None:
    assert forecast.latest_rate(points, 60.0) == points[-1][1]


def test_a_reading_that_was_not_measured_anew_is_no_reading() -> None:
    """A server that measures every 15 s, asked every 5 s."""
    points = means(surge, 630)
    stairs = [(at + late, value) for at, value in points for late in (0.0, 5.0, 10.0)]
    assert forecast.latest_rate(stairs, 60.0) == forecast.latest_rate(points, 60.0) == pytest.approx(400)


def test_readings_that_come_a_little_early_or_late_give_nearly_the_same_forecast() -> None:
    chance = dice(7)
    exact = means(surge, 670, step=1.0)
    points = [exact[round(at + chance.uniform(-2, 2)) - 1] for at in range(15, 661, 15)]
    assert forecast.latest_rate(points, 60.0) == pytest.approx(400, rel=0.15)


def followed(rate: Rate, until: float) -> dict[float, Arrivals]:
    """What is known after each reading of a mean over a minute."""
    points = means(rate, until)
    arrivals = Arrivals()
    found = {}
    for number, (at, value) in enumerate(points, 1):
        latest = forecast.latest_rate(points[max(0, number - 20) : number], 60.0)
        follow(arrivals, value, at, latest=latest, over=60.0)
        found[at] = replace(arrivals)
    return found


def test_while_there_is_a_jump_in_a_mean_the_latest_rate_is_the_level() -> None:
    levels = {at: arrivals.level for at, arrivals in followed(surge, 720).items()}
    assert levels[600.0] == pytest.approx(100)
    for at in (615.0, 630.0, 645.0, 660.0, 690.0):
        assert levels[at] == pytest.approx(400, rel=0.05)


def test_a_mean_counts_where_there_is_no_jump_in_it() -> None:
    chance = dice(3)
    noisy = [chance.gauss(100, 10) for _ in range(4000)]
    for at, arrivals in followed(lambda at: noisy[int(at)] * (1 + 0.05 * math.sin(at / 20.0)), 3600).items():
        if at >= 300:
            assert arrivals.level == pytest.approx(100, rel=0.09)
            assert arrivals.rose_at == forecast.NEVER


def test_a_jump_may_go_on() -> None:
    found = followed(lambda at: 100.0 if at < 600 else 300.0 if at < 620 else 900.0, 720)
    assert found[600.0].rose_at == forecast.NEVER
    assert found[615.0].rose_at == 615
    assert found[720.0].rose_at > 615


def test_nothing_arriving_of_late_is_no_noise() -> None:
    assert followed(lambda _: 0.0, 300)[300.0].latest_noise == forecast.LATEST_NOISE


@pytest.mark.parametrize("early", [3.0, 8.0, 12.0])
def test_the_level_stays_after_a_jump_between_two_readings(early: float) -> None:
    found = followed(lambda at: surge(at + early), 800)
    assert min(arrivals.level or 0.0 for at, arrivals in found.items() if at >= 615) >= 385


def test_errors_of_a_long_mean_count_only_so_many_times() -> None:
    points = [(15.0 * number, 100.0 + 0.1 * (number % 7)) for number in range(60)]
    points[-1] = (points[-1][0], points[-2][1] + 10.0)
    assert forecast.latest_rate(points, 300.0) < 100 + 10 * 1.1 * forecast.MAX_AMPLIFICATION
