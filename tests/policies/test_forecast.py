"""Present and future arrivals: the level, a trend that stands out of the noise, and the part of the load that lasts."""

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
from autoscaler_policies.adaptive.forecast import Arrivals, Lasting, Swings
from autoscaler_policies.adaptive.state import State
from autoscaler_policies.adaptive.tuning import TUNING

Points = list[tuple[float, float]]
Rate = Callable[[float], float]
STEP = 15.0


def dice(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - noise that is the same each time, not a secret


class Known(NamedTuple):
    """The memory learned from the arrivals."""

    arrivals: Arrivals
    lasting: Lasting

    @property
    def level(self) -> float:
        assert self.arrivals.level is not None
        return self.arrivals.level

    def rise(self, ahead: float) -> float:
        return max(self.arrivals.rise(ahead), self.lasting.rise(self.level, ahead))

    def foreseen(self, ahead: float) -> float:
        """The rate that the policy forecasts so far ahead."""
        return self.lasting.rate(self.level) + self.rise(ahead)


def play(rate: Rate, seconds: float) -> Iterator[tuple[float, Known]]:
    """Feed a rate every 15 s; yields the memory after each reading."""
    found = Known(Arrivals(), Lasting())
    seen: Points = []
    stride = round(forecast.MINUTE_S / STEP)
    for number in range(1, round(seconds / STEP) + 1):
        at = number * STEP
        seen.append((at, max(rate(at), 0.0)))
        found.arrivals.follow(seen[-1][1], at)
        found.lasting.learn(seen[::-stride][: TUNING.points][::-1])
        yield at, found


def after(rate: Rate, seconds: float) -> Known:
    *_, (_, found) = play(rate, seconds)
    return found


# the level


def test_the_level_equals_the_arrivals() -> None:
    levels = [found.level for _, found in play(lambda at: 100 if at <= 600 else 250, 660)]
    assert levels[39:41] == [100, 250]


def test_an_unconfirmed_jump_counts_at_its_second_reading() -> None:
    arrivals = after(lambda _: 100.0, 600).arrivals
    usual = TUNING.significance * arrivals.noise
    arrivals.follow(250.0, 615, confirmed=100.0)
    assert arrivals.level == pytest.approx(100 / (1 - usual))
    assert usual < 0.05
    arrivals.follow(250.0, 630, confirmed=100.0)
    assert arrivals.level == 250


def test_a_single_doubtful_jump_is_forgotten() -> None:
    arrivals = after(lambda _: 100.0, 600).arrivals
    arrivals.follow(250.0, 615, confirmed=100.0)
    arrivals.follow(100.0, 630, confirmed=100.0)
    usual = TUNING.significance * arrivals.noise
    arrivals.follow(250.0, 645, confirmed=100.0)
    assert arrivals.level == pytest.approx(100 / (1 - usual), rel=0.01)
    assert usual < 0.06


@pytest.mark.parametrize("confirmed", [100.0, 130.0, 180.0])
def test_the_level_after_a_jump_never_falls_with_a_greater_reading(confirmed: float) -> None:
    chance = dice(1)
    before = after(lambda _: chance.gauss(100, 4), 1800).arrivals
    levels = []
    for value in range(90, 300):
        arrivals = replace(before)
        arrivals.follow(value, 1815, confirmed=confirmed)
        levels.append(arrivals.level or 0.0)
    assert levels == sorted(levels)
    assert levels[-1] == pytest.approx(max(confirmed, 114), rel=0.05)


def test_a_fall_counts_at_once_without_confirmation() -> None:
    arrivals = after(lambda _: 100.0, 600).arrivals
    arrivals.follow(20.0, 615, confirmed=100.0)
    assert arrivals.level == 20


def test_the_same_reading_twice_changes_nothing() -> None:
    arrivals = after(lambda at: 100 + at / 100, 600).arrivals
    before = replace(arrivals)
    arrivals.follow(999.0, 600)
    arrivals.follow(999.0, 300)
    assert arrivals == before


def test_after_a_gap_the_level_starts_anew_and_the_noise_is_kept() -> None:
    chance = dice(1)
    arrivals = after(lambda _: chance.gauss(100, 20), 1800).arrivals
    noise = arrivals.noise
    assert noise > TUNING.noise
    arrivals.follow(120.0, 1800 + TUNING.stale_s + 1)
    assert (arrivals.level, arrivals.slope, arrivals.trend) == (120, 0, 0)
    assert arrivals.noise == noise


def test_without_a_stored_level_learning_starts_anew() -> None:
    arrivals = Arrivals(seen_at=0.0, slope=5.0)
    arrivals.follow(120.0, 15.0)
    assert (arrivals.level, arrivals.slope) == (120, 0)
    assert arrivals.noise == TUNING.noise


def test_zero_arrivals_add_no_noise() -> None:
    found = after(lambda _: 0.0, 600)
    assert found.level == 0
    assert found.arrivals.noise == TUNING.noise
    assert found.rise(60.0) == 0


# trends


def autocorrelated(chance: Random, share: float, lasts: float) -> Rate:
    """100/s with noise of this standard deviation, whose autocorrelation decays to 37 % in this time."""
    kept = math.exp(-STEP / lasts)
    state = [chance.gauss(0, share)]

    def rate(_: float) -> float:
        state[0] = kept * state[0] + math.sqrt(1 - kept * kept) * chance.gauss(0, share)
        return 100 * (1 + state[0])

    return rate


@pytest.mark.parametrize("share", [0.03, 0.1])
def test_white_noise_is_hardly_ever_taken_for_a_trend(share: float) -> None:
    found = shown = 0
    for seed in range(8):
        chance = dice(seed)
        for at, seen in play(lambda _, chance=chance: 100 * (1 + chance.gauss(0, share)), 2 * 3600):  # type: ignore[misc]
            if at > 1800:
                shown += 1
                found += seen.rise(60.0) > 0
    assert shown == 8 * 360
    assert found < 0.02 * shown


def test_noise_that_lasts_a_minute_is_seldom_taken_for_a_trend() -> None:
    found = shown = 0
    for seed in range(8):
        for at, seen in play(autocorrelated(dice(seed), 0.05, 60), 2 * 3600):
            if at > 1800:
                shown += 1
                found += seen.rise(60.0) > 0
    assert found < 0.04 * shown


def test_a_ramp_is_found_within_minutes_and_extrapolated_linearly() -> None:
    # 100/s, from 30 min on 4 % more each minute, with 2 % of noise
    begin, slope = 1800.0, 4.0 / 60
    expected = []
    for seed in range(8):
        chance = dice(seed)
        first = None
        for at, found in play(
            lambda at, chance=chance: (100 + slope * max(at - begin, 0)) * (1 + chance.gauss(0, 0.02)),  # type: ignore[misc]
            begin + forecast.MEAN_S,
        ):
            if at > begin and found.rise(60.0) > 0:
                first = first or at
        expected.append(found.lasting.rise(found.level, 600.0))
        assert first is not None
        assert first - begin <= 450
    assert median(expected) == pytest.approx(slope * 630, rel=0.2)


def test_a_fall_gives_no_trend() -> None:
    found = after(lambda at: 200 - at / 15, 1500)
    assert found.arrivals.trend == 0
    assert found.rise(60.0) == 0


def test_the_noise_estimate_has_a_half_life_of_six_minutes() -> None:
    quiet, noisy = (Arrivals(noise=noise) for noise in (0.1, 0.2))
    learned = []
    for number in range(100):
        for each in (quiet, noisy):
            each.follow(100.0 + number % 2, number * STEP)
        learned.append(noisy.noise - quiet.noise)
    (half,) = [number for number in range(1, 100) if learned[number] <= 0.05 < learned[number - 1]]
    assert 330 <= half * STEP <= 390


def test_a_trend_is_extrapolated_for_a_limited_time_and_never_downwards() -> None:
    found = Arrivals(trend=0.1)
    assert found.rise(60.0) == pytest.approx(0.1 * (60 + forecast.READING_AGE_S))
    assert found.rise(1e6) == pytest.approx(0.1 * (TUNING.warm_up_s + forecast.READING_AGE_S))
    assert Arrivals(trend=-1.0).rise(60.0) == 0


def means(rate: Callable[[float], float], until: int, every: int = 15) -> list[tuple[float, float]]:
    """Means over a minute of the arrivals, by the second."""
    return [(float(at), sum(rate(second) for second in range(at - 60, at)) / 60) for at in range(0, until + 1, every)]


@pytest.mark.parametrize("every", [5, 10, 15, 20, 30])
def test_the_latest_rate_shows_a_whole_jump_half_a_window_after_it(every: int) -> None:
    points = means(lambda second: 400.0 if second >= 300 else 100.0, 360, every)
    known = [at for at, _ in points if forecast.latest_rate([each for each in points if each[0] <= at], 60.0) >= 399]
    assert known[0] - 300 <= 30 + every
    assert known[-1] == points[-1][0]
    assert forecast.latest_rate(points, 60.0) == pytest.approx(400)


def test_the_latest_rate_of_a_linear_rise_is_the_last_mean() -> None:
    points = means(lambda second: 100.0 + second, 600)
    assert forecast.latest_rate(points, 60.0) == pytest.approx(points[-1][1])


def test_the_latest_rate_is_unknown_at_first() -> None:
    assert forecast.latest_rate([(0.0, 100.0)], 60.0) == 0
    assert forecast.latest_rate(means(lambda _: 100.0, 60), 60.0) == 0
    assert forecast.latest_rate(means(lambda _: 100.0, 75), 60.0) == pytest.approx(100)


def test_the_latest_rate_is_never_negative() -> None:
    fall = [(0.0, 100.0), (15.0, 100.0), (30.0, 100.0), (45.0, 100.0), (60.0, 100.0), (75.0, 10.0)]
    assert forecast.latest_rate(fall, 60.0) == 0
    noisy = Arrivals(noise=0.5)
    for at, value in fall:
        noisy.follow(value, at, latest=forecast.latest_rate(fall, 60.0))
    assert noisy.level == 10


def test_a_gap_does_not_distort_the_latest_rate() -> None:
    points = means(lambda second: 400.0 if second >= 300 else 100.0, 360)
    gap = [each for each in points if not 300 < each[0] < 360]
    assert forecast.latest_rate(gap, 60.0) == pytest.approx(400)


@pytest.mark.parametrize(("share", "found"), [(0.95, False), (1.15, True)])
def test_the_rise_of_the_last_minute_must_stand_out_of_the_noise(share: float, found: bool) -> None:
    # of 5 % of 100 within a quarter of a minute, twice that within a minute, so many times
    slope = share * TUNING.significance * 2 * 0.05 * 100 / forecast.MINUTE_S
    arrivals = Arrivals(seen_at=0.0, level=100.0, slope=slope, noise=0.05)
    arrivals.follow(100.0 + slope * STEP, STEP)
    assert arrivals.trend == (pytest.approx(slope) if found else 0.0)


def test_a_greater_reading_does_not_hide_the_rise_that_it_is_part_of() -> None:
    slope = 1.15 * TUNING.significance * 2 * 0.05 * 100 / forecast.MINUTE_S
    arrivals = Arrivals(seen_at=0.0, level=100.0, slope=slope, noise=0.05)
    arrivals.follow(300.0, STEP)
    assert arrivals.trend > slope


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
def test_a_greater_reading_never_lowers_the_forecast(noise: float, share: float) -> None:
    for seed in range(300):
        chance = dice(seed)
        slope = chance.uniform(0, 0.05)
        past = [(60.0 * n, 100 * (1 + slope * n) * (1 + share * noise * chance.uniform(-1, 1))) for n in range(1, 15)]
        usual = 100 * (1 + slope * 15)
        value = usual * chance.uniform(0.9, 1.3)
        sums = {"weight": 60.0, "total": 6000.0, "square": 60 * noise**2, "both": 60 * noise**2 * chance.uniform(0, 2)}
        found = []
        for reading in (value, value + usual * chance.choice((0.02, 0.1, 0.3))):
            seen = Known(
                Arrivals(seen_at=885.0, level=usual, slope=slope * 100 / 60, noise=noise),
                Lasting(seen_at=885.0, mean=usual, recent=usual, **sums),
            )
            seen.arrivals.follow(reading, 900.0)
            seen.lasting.learn([*past, (900.0, reading)])
            found.append(seen)
        low, high = found
        for ahead in (30.0, 60.0, 130.0, 510.0):
            assert high.foreseen(ahead) >= low.foreseen(ahead) * (1 - 1e-9), (seed, ahead)


def test_the_noise_of_the_readings_is_learned_within_hours() -> None:
    chance = dice(3)
    calm = after(lambda _: 100 * (1 + chance.gauss(0, 0.01)), 4 * 3600)
    wild = after(lambda _: 100 * (1 + chance.gauss(0, 0.1)), 4 * 3600)
    assert calm.arrivals.noise < 0.02 < TUNING.noise < 0.1 < wild.arrivals.noise < 0.2


def test_after_days_without_noise_it_is_learned_again_within_an_hour() -> None:
    arrivals = Arrivals()
    for number in range(4 * 5760):
        arrivals.follow(100.0, number * STEP)
    for number in range(4 * 5760, 4 * 5760 + 240):
        arrivals.follow(100.0 + number % 2, number * STEP)
    assert arrivals.trend == 0
    assert arrivals.noise > 0.005


def test_a_jump_does_not_count_as_noise() -> None:
    found = after(lambda at: 100 if at <= 1800 else 200, 1815)
    assert found.arrivals.noise < 1.5 * TUNING.noise


# the lasting part


def lasting_after(rate: Rate, seconds: float) -> Lasting:
    """What is learned from a reading every 15 s; those a minute apart are used."""
    return after(rate, seconds).lasting


def test_a_deviation_from_the_mean_counts_as_lasting_until_the_opposite_was_observed() -> None:
    assert Lasting().rate(150.0) == 150
    chance = dice(1)
    assert lasting_after(lambda _: 100 * (1 + chance.gauss(0, 0.1)), 540).rate(150.0) == 150


def test_of_pure_noise_almost_nothing_lasts_in_either_direction() -> None:
    chance = dice(1)
    found = lasting_after(lambda _: 100 * (1 + chance.gauss(0, 0.3)), 2 * 3600)
    assert found.mean is not None
    assert found.mean == pytest.approx(100, rel=0.2)
    for level in (40.0, 160.0):
        assert found.rate(level) == pytest.approx(found.mean + 0.1 * (level - found.mean), rel=0.15)


def test_deviations_between_lasting_levels_last() -> None:
    found = lasting_after(lambda at: 100 if at // 1800 % 2 else 200, 4 * 3600)
    assert found.rate(150.0) == pytest.approx(150, rel=0.1)


def test_a_deviation_beyond_the_usual_range_lasts() -> None:
    chance = dice(1)
    found = lasting_after(lambda _: 100 * (1 + chance.gauss(0, 0.05)), 2 * 3600)
    assert 380 < found.rate(400.0) < 400


def test_old_observations_are_forgotten_within_hours() -> None:
    chance = dice(1)

    def rate(at: float) -> float:
        return 100 * (1 + chance.gauss(0, 0.3)) if at < 3600 else 100 + 50 * (at // 1800 % 2)

    assert lasting_after(rate, 3600).rate(150.0) < 115
    assert lasting_after(rate, 10 * 3600).rate(150.0) > 135


def test_zero_arrivals_do_not_change_the_lasting_part() -> None:
    found = lasting_after(lambda _: 0.0, 3600)
    assert found.rate(10.0) == 10
    assert found.swings() is None


def test_a_repeated_reading_counts_once() -> None:
    points = [(60.0 * minute, 100.0 + minute % 3) for minute in range(TUNING.points)]
    found = Lasting()
    found.learn(points)
    found.learn([(at + 60, rate) for at, rate in points])
    before = replace(found)
    assert before.weight == 1
    found.learn([(at + 60, rate) for at, rate in points])
    assert found == before


def test_partial_memory_lowers_no_rate() -> None:
    for part in (Lasting(square=1.0), Lasting(weight=1.0), Lasting(mean=1.0, both=5.0), Lasting(mean=1.0, square=5.0)):
        assert part.rate(10.0) == 10
        assert part.swings() is None


# arrivals that swing around a level


EARLIEST = 2 * TUNING.points * forecast.MINUTE_S + 2 * forecast.AHEAD_S
"""Nothing is recognised before so long: the first deviation is compared after twice `AHEAD_S`."""


def swings_after(rate: Rate, seconds: float) -> Swings | None:
    return lasting_after(rate, seconds).swings()


@pytest.mark.parametrize("lasts", [60.0, 120.0])
def test_noise_that_lasts_a_minute_or_two_is_recognised_within_an_hour(lasts: float) -> None:
    found = []
    for seed in range(8):
        first = None
        for at, seen in play(autocorrelated(dice(seed), 0.1, lasts), 3600):
            swings = seen.lasting.swings()
            first = at if first is None and swings is not None else first
        assert first is None or first > EARLIEST
        found.append(swings)
    kept = [swings for swings in found if swings is not None]
    assert len(kept) >= 7  # within an hour noise may happen to last longer
    for swings in kept:
        assert swings.middle == pytest.approx(100, rel=0.1)
        assert swings.spread == pytest.approx(0.1, rel=0.25)


@pytest.mark.parametrize(("share", "lasts"), [(0.03, 60.0), (0.1, 40.0), (0.1, 60.0), (0.1, 120.0)])
def test_the_level_width_and_duration_of_swings_are_learned(share: float, lasts: float) -> None:
    found = [swings_after(autocorrelated(dice(seed), share, lasts), 3 * 3600) for seed in range(8)]
    kept = [swings for swings in found if swings is not None]
    assert len(kept) == len(found)
    for swings in kept:
        assert swings.middle == pytest.approx(100, rel=0.1)
        assert swings.spread == pytest.approx(share, rel=0.25)
        assert swings.lasts < 2 * lasts
    assert lasts / 1.5 < median(swings.lasts for swings in kept) < 1.5 * lasts


def test_long_swings_are_seldom_taken_for_passing_ones() -> None:
    taken = shown = 0
    for seed in range(8):
        for _, found in play(autocorrelated(dice(seed), 0.1, 1800.0), 5 * 3600):
            shown += 1
            taken += found.lasting.swings() is not None
        assert found.lasting.swings() is None
    assert taken < 0.02 * shown


def ramp(share: float) -> Rate:
    """100/s at first, growing by so much each quarter of an hour."""
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
def test_a_rise_or_fall_beyond_the_noise_is_not_a_swing(rate: Rate, noise: float) -> None:
    chance = dice(1)
    for _, found in play(lambda at: rate(at) * (1 + chance.gauss(0, noise)), 3 * 3600):
        assert found.lasting.swings() is None


@pytest.mark.parametrize("factor", [0.3, 1.2, 3.0])
def test_a_single_jump_is_not_a_swing(factor: float) -> None:
    for _, found in play(lambda at: 100 if at < 4000 else 100 * factor, 3 * 3600):
        assert found.lasting.swings() is None


@pytest.mark.parametrize("factor", [0.1, 2.0, 3.0])
def test_a_level_that_arrivals_have_left_no_longer_counts(factor: float) -> None:
    begin = 4 * 3600.0
    usual = autocorrelated(dice(1), 0.05, 60.0)
    for at, found in play(lambda at: usual(at) * (factor if at > begin else 1), begin + 3600):
        swings = found.lasting.swings()
        if at == begin:
            assert swings is not None
        if at > begin + 2 * forecast.AHEAD_S:
            assert swings is None


@pytest.mark.parametrize("factor", [2 / 3, 4 / 3])
def test_after_a_small_jump_the_learned_level_is_accurate(factor: float) -> None:
    begin = 4 * 3600.0
    usual = autocorrelated(dice(1), 0.1, 60.0)
    followed = 0
    for at, found in play(lambda at: usual(at) * (factor if at > begin else 1), begin + 3600):
        swings, mean = found.lasting.swings(), found.lasting.mean
        if at > begin + forecast.MEAN_S and swings is not None and mean is not None:
            followed += 1
            assert mean == pytest.approx(100 * factor, rel=0.1)
            error = swings.spread * math.sqrt(2 * swings.lasts / forecast.MEAN_S)
            assert abs(swings.middle / mean - 1) <= TUNING.significance * error * (1 + 1e-9)
            assert (swings.middle - mean) * (factor - 1) < 0  # towards the level of the previous hours
    assert followed > 0


def test_a_jump_from_almost_zero_does_not_hide_a_later_one() -> None:
    # one record a second every five minutes for two hours, then 300/s for one
    _, found = list(play(lambda at: (at % 300 < 15) if at < 7200 else 300.0, 3 * 3600))[-1]
    assert found.lasting.both < -found.lasting.square
    assert found.lasting.rate(450.0) == 450
    assert found.lasting.swings() is None


ENOUGH = 2.02 * TUNING.points


def test_width_and_duration_of_swings_follow_from_deviations_and_their_autocorrelation() -> None:
    sums = {"weight": ENOUGH, "total": 100.0 * ENOUGH, "square": 2.0, "absolute": 0.1 * ENOUGH}
    found = Lasting(mean=100.0, **sums, both=1.98 * TUNING.brief_s / forecast.AHEAD_S).swings()
    assert found == pytest.approx((100.0, math.sqrt(math.pi / 2) * 0.1, 0.99 * TUNING.brief_s))


@pytest.mark.parametrize(
    "known",
    [
        Lasting(mean=None, weight=ENOUGH, square=1.0),
        Lasting(mean=0.0, weight=ENOUGH, square=1.0),
        Lasting(mean=100.0, weight=1.98 * TUNING.points, square=1.0),
        Lasting(mean=100.0, weight=ENOUGH),
        Lasting(mean=100.0, weight=ENOUGH, square=1.0, both=1.01 * TUNING.brief_s / forecast.AHEAD_S),
    ],
    ids=["no mean", "nothing", "not long", "no swings", "lasts long"],
)
def test_swings_need_enough_observations_and_a_short_duration(known: Lasting) -> None:
    assert known.swings() is None


def test_a_single_burst_is_not_a_usual_swing_an_hour_later() -> None:
    dice = Random(1)  # noqa: S311 - noise that is the same each time, not a secret
    lasting, before = Lasting(), None
    rates: list[tuple[float, float]] = []
    for minute in range(300):
        rates.append((60.0 * minute, (2000.0 if 180 <= minute < 182 else 400.0) * dice.gauss(1.0, 0.03)))
        lasting.learn(rates[-TUNING.points :])
        if minute == 179:
            before = lasting.swings()
    after = lasting.swings()
    assert before is not None
    assert after is not None
    assert before.spread < after.spread < 0.1


def test_a_deviation_that_reverses_at_once_still_has_a_minimal_duration() -> None:
    found = Lasting(mean=100.0, weight=ENOUGH, square=1.0, both=-0.5).swings()
    assert found is not None
    assert found.lasts == forecast.READING_S


def test_the_backlog_after_a_peak_is_the_area_above_the_throughput() -> None:
    swings = Swings(middle=340.0, spread=0.1, lasts=60.0)
    # 120/s above the level fade to 60/s, the spare throughput, within 60 ln 2 s
    by_hand = sum(max(120 * math.exp(-at / 100 / 60) - 60, 0.0) / 100 for at in range(100 * 300))
    assert swings.backlog(120.0, 400.0) == pytest.approx(by_hand, rel=0.001)
    assert swings.backlog(60.0, 400.0) == swings.backlog(-100.0, 400.0) == 0
    assert swings.backlog(1.0, 340.0) == swings.backlog(1.0, 100.0) == math.inf


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
        state.arrivals.follow(value, at)
        state.lasting.learn(seen[-TUNING.points :])
        state = State.load(state.dump())  # the stored values are finite numbers
        level = state.arrivals.level or 0.0
        assert level >= 0
        assert state.arrivals.rise(60.0) >= 0
        assert state.lasting.rise(level, 60.0) >= 0
        assert state.lasting.rate(level) >= 0
        swings = state.lasting.swings()
        assert swings is None or (swings.spread >= 0 and swings.lasts > 0)
