"""What arrives and what will arrive: the level, and trends that stand out of the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler_policies.adaptive import forecast
from autoscaler_policies.adaptive.forecast import (
    find_trends,
    follow,
    judge_forecast,
    lasting_rate,
    learn_outlasting,
    line,
    trend_trust,
    trends,
)

Memory = dict[str, float]
Points = list[tuple[float, float]]
STEP = 15.0
DAY = 86400.0


def dice(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - noise that is the same each time, not a secret


def play(
    rate: Callable[[float], float],
    seconds: float,
    *,
    memory: Memory | None = None,
    step: float = STEP,
) -> Iterator[tuple[float, Memory]]:
    """Show a rate every 15 s, and after each reading what is known."""
    memory = {} if memory is None else memory
    seen: Points = []
    stride = round(60 / step)
    for number in range(1, round(seconds / step) + 1):
        at = number * step
        seen.append((at, max(rate(at), 0.0)))
        follow(memory, seen[-1][1], at)
        find_trends(memory, seen[::-stride][:15][::-1])
        judge_forecast(memory, at)
        yield at, memory


def after(rate: Callable[[float], float], seconds: float, **given: object) -> Memory:
    memory: Memory = {}
    for _ in play(rate, seconds, memory=memory, **given):  # type: ignore[arg-type]
        pass
    return memory


# the line


def test_a_line_of_worked_numbers() -> None:
    # t -3 -2 -1 0, v 1 3 2 4: mean t -1.5, mean v 2.5, sum (t-mt)^2 = 5, sum (t-mt)(v-mv) = 4: slope 0.8
    # residuals -0.3 0.9 -0.9 0.3: squares 1.8, noise sqrt(1.8 / 2), error noise / sqrt(5); at t = 0: 2.5 + 0.8 * 1.5
    found = line([(97.0, 1.0), (98.0, 3.0), (99.0, 2.0), (100.0, 4.0)])
    assert found.slope == pytest.approx(0.8)
    assert found.now == pytest.approx(3.7)
    assert found.noise == pytest.approx(math.sqrt(0.9))
    assert found.error == pytest.approx(math.sqrt(0.9 / 5))
    assert found.span == 3


@pytest.mark.parametrize("points", [[(1.0, 5.0)], [(1.0, 5.0), (2.0, 6.0), (3.0, 7.0)], [(1.0, 7.0)] * 6])
def test_too_few_points_or_one_moment_make_no_line(points: Points) -> None:
    assert line(points) == forecast.Line(points[-1][1], 0.0, math.inf, 0.0, 0.0)


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
    assert found.now == pytest.approx(now - slope * ago[0], rel=1e-4, abs=0.1)
    assert found.noise <= 0.1


# the level


def test_the_level_follows_what_arrives() -> None:
    # 5 %, less than a jump: 40 % of what is missing at first, and nearly all after a minute and a half
    levels = [memory["arrivals.level"] for at, memory in play(lambda at: 100 if at <= 600 else 105, 700)]
    assert levels[39] == pytest.approx(100)
    assert levels[40] == pytest.approx(102)
    assert levels[45] == pytest.approx(105, abs=1)
    assert max(levels) < 107


def test_a_jump_is_the_level_at_once() -> None:
    levels = [memory["arrivals.level"] for at, memory in play(lambda at: 100 if at <= 600 else 250, 660)]
    assert levels[39:41] == [pytest.approx(100), 250]


def test_a_jump_that_nothing_bears_out_counts_when_it_is_read_twice() -> None:
    memory = after(lambda _: 100.0, 600)
    follow(memory, 250.0, 615, doubtful=True)
    assert memory["arrivals.level"] == pytest.approx(100)
    follow(memory, 250.0, 630, doubtful=True)
    assert memory["arrivals.level"] == 250


def test_a_single_doubtful_jump_is_forgotten() -> None:
    memory = after(lambda _: 100.0, 600)
    follow(memory, 250.0, 615, doubtful=True)
    follow(memory, 100.0, 630, doubtful=True)
    follow(memory, 250.0, 645, doubtful=True)
    assert memory["arrivals.level"] == pytest.approx(100, rel=0.01)


def test_fewer_are_believed_at_once_however_doubtful() -> None:
    memory = after(lambda _: 100.0, 600)
    follow(memory, 20.0, 615, doubtful=True)
    assert memory["arrivals.level"] == 20


def test_the_same_reading_twice_says_nothing() -> None:
    memory = after(lambda at: 100 + at / 100, 600)
    before = dict(memory)
    follow(memory, 999.0, 600)
    follow(memory, 999.0, 300)
    assert memory == before


def test_after_a_gap_the_level_begins_anew_and_the_noise_is_still_known() -> None:
    chance = dice(1)
    memory = after(lambda _: chance.gauss(100, 20), 1800)
    noise = memory["arrivals.noise"]
    assert noise > forecast.NOISE
    follow(memory, 120.0, 1800 + forecast.STALE_S + 1)
    assert (memory["arrivals.level"], memory["arrivals.slope"]) == (120, 0)
    assert memory["arrivals.noise"] == noise


def test_of_a_memory_without_its_level_it_begins_anew() -> None:
    memory: Memory = {"arrivals.seen_at": 0.0, "arrivals.slope": 5.0}
    follow(memory, 120.0, 15.0)
    assert memory["arrivals.level"] == 120
    assert memory["arrivals.noise"] == forecast.NOISE


def test_nothing_arriving_is_no_noise() -> None:
    memory = after(lambda _: 0.0, 600)
    assert memory["arrivals.level"] == 0
    assert memory["arrivals.noise"] == forecast.NOISE
    assert not trends(memory)


# trends


def autocorrelated(chance: Random, share: float, lasts: float) -> Callable[[float], float]:
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
        for at, memory in play(lambda _, chance=chance: 100 * (1 + chance.gauss(0, share)), 2 * 3600):  # type: ignore[misc]
            if at > 1800:
                shown += 1
                found += bool(trends(memory))
    assert shown == 8 * 360
    assert found < 0.02 * shown


def test_noise_that_holds_on_for_a_minute_seldom_is_taken_for_a_trend() -> None:
    found = shown = 0
    for seed in range(8):
        for at, memory in play(autocorrelated(dice(seed), 0.05, 60), 2 * 3600):
            if at > 1800:
                shown += 1
                found += bool(trends(memory))
    assert found < 0.04 * shown


@pytest.mark.parametrize("seed", range(4))
def test_a_ramp_is_found_within_minutes_and_its_slope_is_right(seed: int) -> None:
    # 100/s, from 30 min on 4 % more each minute, with 2 % of noise
    chance = dice(seed)
    begin, slope = 1800.0, 4.0 / 60

    def rate(at: float) -> float:
        return (100 + slope * max(at - begin, 0)) * (1 + chance.gauss(0, 0.02))

    first = None
    for at, memory in play(rate, begin + 900):
        if at > begin and trends(memory):
            first = first or at
        if at == begin + 600:
            assert memory["trend.minutes"] == pytest.approx(slope, rel=0.35)
            assert memory["trend.quarter"] > 0
    assert first is not None
    assert first - begin <= 300


def test_a_fall_is_no_trend_to_prepare_for() -> None:
    memory = after(lambda at: 200 - at / 15, 1500)
    assert (memory["trend.minutes"], memory["trend.quarter"]) == (0, 0)
    assert not trends(memory)


def test_trends_are_given_with_the_time_they_were_seen_for_as_far_as_trusted() -> None:
    memory: Memory = {"arrivals.level": 100.0, "trend.minutes": 2.0, "trend.quarter": 1.0}
    assert trends(memory) == ((2.0, 360.0), (1.0, 900.0))
    # its errors were twice those of expecting no change: a quarter is left
    memory |= {"error.trend": 0.2, "error.trend_unchanged": 0.1}
    assert trends(memory) == ((0.5, 360.0), (0.25, 900.0))
    # that of the last minute has no errors of its own
    assert trends({**memory, "trend.minute": 0.151})[2] == (0.151, 60.0)


@pytest.mark.parametrize(("slope", "expected"), [(0.149, 0.0), (0.151, 0.151)])
def test_the_trend_of_the_last_minute_must_stand_out(slope: float, expected: float) -> None:
    # 3 times 3 % of 100 within a minute
    memory: Memory = {"arrivals.level": 100.0, "arrivals.slope": slope, "arrivals.swing": 0.03}
    find_trends(memory, [(60.0 * minute, 100.0) for minute in range(15)])
    assert memory["trend.minute"] == expected


def foretold(memory: Memory, ahead: float) -> float:
    """What the policy takes for arriving so far ahead."""
    rises = [slope * (min(ahead, 3 * seen) + 30) for slope, seen in trends(memory)]
    return memory["arrivals.level"] + max(rises, default=0.0)


@pytest.mark.parametrize("swing", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
def test_a_greater_reading_never_predicts_less(swing: float, share: float) -> None:
    for seed in range(300):
        dice = Random(seed)  # noqa: S311 - the same loads each time, nothing secret
        slope = dice.uniform(0, 0.05)
        past = [(60.0 * n, 100 * (1 + slope * n) * (1 + share * swing * dice.uniform(-1, 1))) for n in range(14)]
        usual = 100 * (1 + slope * 14)
        before: Memory = {
            "arrivals.seen_at": 825.0,
            "arrivals.level": usual,
            "arrivals.slope": slope * 100 / 60,
            "arrivals.noise": 0.03,
            "arrivals.swing": swing,
        }
        value = usual * dice.uniform(0.9, 1.3)
        found = []
        for reading in (value, value + usual * dice.choice((0.02, 0.1, 0.3))):
            memory = dict(before)
            follow(memory, reading, 840.0)
            find_trends(memory, [*past, (840.0, reading)])
            found.append(memory)
        low, high = found
        for ahead in (30.0, 60.0, 130.0, 510.0):
            assert foretold(high, ahead) >= foretold(low, ahead) * (1 - 1e-9), (seed, ahead)


def test_a_reading_far_above_a_trend_does_not_hide_it() -> None:
    def seen(last: float) -> Memory:
        memory: Memory = {"arrivals.level": 200.0, "arrivals.swing": 0.01}
        find_trends(memory, [*[(60.0 * n, 100.0 + 7 * n + n % 2) for n in range(14)], (840.0, last)])
        return memory

    assert seen(200.0)["trend.quarter"] == pytest.approx(7 / 60, rel=0.05)
    assert seen(1000.0)["trend.quarter"] > seen(200.0)["trend.quarter"]


def test_what_arrivals_swing_by_is_learned_within_hours() -> None:
    chance = dice(3)
    calm = after(lambda _: 100 * (1 + chance.gauss(0, 0.01)), 4 * 3600)
    wild = after(lambda _: 100 * (1 + chance.gauss(0, 0.15)), 4 * 3600)
    assert calm["arrivals.swing"] < forecast.SWING < 0.1 < wild["arrivals.swing"] < 0.18


def test_a_jump_is_no_swing() -> None:
    memory = after(lambda at: 100 if at <= 1800 else 200, 1800 + 120)
    assert memory["arrivals.swing"] < 1.5 * forecast.SWING


# what lasts


def lasting_after(rate: Callable[[float], float], seconds: int) -> Memory:
    """What is learned from a reading every 15 s, of which those a minute apart are shown."""
    memory: Memory = {}
    points: list[tuple[float, float]] = []
    for at in range(0, seconds, 15):
        points.append((float(at), rate(float(at))))
        learn_outlasting(memory, points[-1:-61:-4][::-1])
    return memory


def test_what_is_off_from_the_mean_lasts_until_it_was_seen_not_to() -> None:
    assert lasting_rate({}, 150.0) == 150
    chance = dice(1)
    assert lasting_rate(lasting_after(lambda _: 100 * (1 + chance.gauss(0, 0.1)), 540), 150.0) == 150


def test_of_what_only_swings_hardly_anything_lasts_up_or_down() -> None:
    chance = dice(1)
    memory = lasting_after(lambda _: 100 * (1 + chance.gauss(0, 0.3)), 2 * 3600)
    mean = memory["outlast.mean"]
    assert mean == pytest.approx(100, rel=0.2)
    for level in (40.0, 160.0):
        assert lasting_rate(memory, level) == pytest.approx(mean + 0.1 * (level - mean), rel=0.15)


def test_of_levels_that_hold_all_lasts() -> None:
    memory = lasting_after(lambda at: 100 if at // 1800 % 2 else 200, 4 * 3600)
    assert lasting_rate(memory, 150.0) == pytest.approx(150, rel=0.1)


def test_what_is_beyond_all_that_is_usual_lasts() -> None:
    chance = dice(1)
    memory = lasting_after(lambda _: 100 * (1 + chance.gauss(0, 0.05)), 2 * 3600)
    assert 380 < lasting_rate(memory, 400.0) < 400


def test_it_is_forgotten_within_hours() -> None:
    chance = dice(1)

    def rate(at: float) -> float:
        return 100 * (1 + chance.gauss(0, 0.3)) if at < 3600 else 100 + 50 * (at // 1800 % 2)

    short, long = lasting_after(rate, 3600), lasting_after(rate, 10 * 3600)
    assert lasting_rate(short, 150.0) < 115
    assert lasting_rate(long, 150.0) > 135


def test_nothing_arriving_teaches_nothing_of_what_lasts() -> None:
    memory = lasting_after(lambda _: 0.0, 3600)
    assert lasting_rate(memory, 10.0) == 10


def test_a_part_of_what_is_known_lowers_nothing() -> None:
    for part in ({"outlast.square": 1.0}, {"outlast.weight": 1.0}, {"outlast.mean": 1.0, "outlast.both": 5.0}):
        assert lasting_rate(part, 10.0) == 10


# judging


def test_a_trend_that_was_right_is_trusted() -> None:
    memory = after(lambda at: 100 + at / 30, 7200)
    assert memory["error.trend"] < memory["error.trend_unchanged"]
    assert trend_trust(memory) == 1


def test_a_trend_that_never_goes_on_is_trusted_less() -> None:
    # up by 40 % in ten minutes, and back for ten: what rises for five minutes has nearly done so
    memory = after(lambda at: 100 + 40 * abs((at / 600) % 2 - 1), 6 * 3600)
    assert memory["error.trend"] > memory["error.trend_unchanged"]
    assert trend_trust(memory) < 0.7


def test_forecasts_are_judged_when_they_are_due_and_not_before() -> None:
    memory: Memory = {"arrivals.level": 100.0, "trend.minutes": 1 / 6}
    judge_forecast(memory, 1000.0)
    assert memory["forecast.due_at"] == 1000 + forecast.FORECAST_AHEAD_S
    memory["arrivals.level"] = 120.0
    judge_forecast(memory, 1299.0)
    assert "error.trend" not in memory
    judge_forecast(memory, 1300.0)
    # 150 were foreseen and 120 came: off by 25 %; no change would have been off by 1/6
    assert memory["error.trend"] == pytest.approx(0.25)
    assert memory["error.trend_unchanged"] == pytest.approx(1 / 6)
    assert trend_trust(memory) == pytest.approx((4 / 6) ** 2)
    memory["arrivals.level"] = 170.0
    judge_forecast(memory, 1600.0)
    # 170 were foreseen and came: an error of 0 with a weight of 1/5
    assert memory["error.trend"] == pytest.approx(0.2)


@pytest.mark.parametrize("late", [forecast.FORECAST_AHEAD_S + 61, -400.0])
def test_a_forecast_that_was_not_polled_when_it_was_due_is_not_judged(late: float) -> None:
    # -400: the clock was set, and it would be due too far ahead
    memory: Memory = {"arrivals.level": 100.0, "trend.minutes": 1.0}
    judge_forecast(memory, 1000.0)
    judge_forecast(memory, 1000.0 + late)
    assert "error.trend" not in memory
    assert memory["forecast.due_at"] == 1000 + late + forecast.FORECAST_AHEAD_S


def test_nothing_is_judged_while_nothing_arrives() -> None:
    memory: Memory = {"arrivals.level": 100.0, "trend.minutes": 1.0}
    judge_forecast(memory, 1000.0)
    memory["arrivals.level"] = 0.0
    judge_forecast(memory, 1300.0)
    assert "error.trend" not in memory


def test_trends_count_as_much_as_nothing_better_is_known() -> None:
    memory: Memory = {"trend.minutes": 1.0, "trend.minute": 2.0}
    assert trends(memory) == ((1.0, 360.0), (2.0, 60.0))
    assert trends(memory, 0.5) == ((0.5, 360.0), (1.0, 60.0))
    assert trends(memory, 0.0) == ()


finite = st.floats(0, 1.7976931348623157e308)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(-100, 1e6), finite), min_size=1, max_size=30))
def test_whatever_arrives_no_level_or_trend_is_below_nothing(readings: list[tuple[float, float]]) -> None:
    memory: Memory = {}
    seen: Points = []
    at = 1.7e9
    for later, value in readings:
        at = max(at + later, at)
        seen.append((at, value))
        follow(memory, value, at)
        find_trends(memory, seen[-15:])
        judge_forecast(memory, at)
        memory = {name: number for name, number in memory.items() if math.isfinite(number)}
        assert memory.get("arrivals.level", 0.0) >= 0
        assert all(slope > 0 for slope, _ in trends(memory))
        assert 0 <= trend_trust(memory) <= 1


# what is new in a mean over a longer time


def means(rate: Callable[[float], float], until: float, over: float = 60.0, step: float = 15.0) -> Points:
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


def followed(rate: Callable[[float], float], until: float) -> list[tuple[float, Memory]]:
    points = means(rate, until)
    memory: Memory = {}
    found = []
    for number, (at, value) in enumerate(points, 1):
        latest = forecast.latest_rate(points[max(0, number - 20) : number], 60.0)
        follow(memory, value, at, latest=latest, over=60.0)
        found.append((at, dict(memory)))
    return found


def test_while_there_is_a_jump_in_a_mean_the_latest_rate_is_the_level() -> None:
    levels = {at: memory["arrivals.level"] for at, memory in followed(surge, 720)}
    assert levels[600.0] == pytest.approx(100)
    for at in (615.0, 630.0, 645.0, 660.0, 690.0):
        assert levels[at] == pytest.approx(400, rel=0.05)


def test_a_mean_counts_where_there_is_no_jump_in_it() -> None:
    chance = dice(3)
    noisy = [chance.gauss(100, 10) for _ in range(4000)]
    for at, memory in followed(lambda at: noisy[int(at)] * (1 + 0.05 * math.sin(at / 20.0)), 3600):
        if at >= 300:
            assert memory["arrivals.level"] == pytest.approx(100, rel=0.09)
            assert "arrivals.rose_at" not in memory


def test_a_jump_begins_once_and_may_go_on() -> None:
    memories = dict(followed(lambda at: 100.0 if at < 600 else 300.0 if at < 620 else 900.0, 720))
    assert memories[720.0]["arrivals.rises_at"] == 615
    assert memories[720.0]["arrivals.rose_at"] > 615


def test_nothing_arriving_of_late_is_no_noise() -> None:
    assert "arrivals.latest_noise" not in dict(followed(lambda _: 0.0, 300))[300.0]


@pytest.mark.parametrize("early", [3.0, 8.0, 12.0])
def test_the_level_stays_after_a_jump_between_two_readings(early: float) -> None:
    levels = {at: memory["arrivals.level"] for at, memory in followed(lambda at: surge(at + early), 800)}
    assert min(level for at, level in levels.items() if at >= 615) >= 385


def test_errors_of_a_long_mean_count_only_so_many_times() -> None:
    points = [(15.0 * number, 100.0 + 0.1 * (number % 7)) for number in range(60)]
    points[-1] = (points[-1][0], points[-2][1] + 10.0)
    assert forecast.latest_rate(points, 300.0) < 100 + 10 * 1.1 * forecast.MAX_AMPLIFICATION
