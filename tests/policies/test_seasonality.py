"""What usually arrives: at which level, how far it is believed, what it foretells. Comments have worked numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler_policies.adaptive import seasonality
from autoscaler_policies.adaptive.seasonality import AHEAD_MINUTES, Season, is_far_above, is_far_below, peak_backlog
from autoscaler_policies.shared.recommend import LARGEST

DAY = 86400.0
AHEAD_S = AHEAD_MINUTES * seasonality.MINUTE_S


def day(at: float) -> float:
    return 100 + 60 * math.sin(2 * math.pi * at / DAY)


def lived(
    comes: Callable[[float], float], predicted: Callable[[float], float], seconds: float, season: Season | None = None
) -> Season:
    """What is known after so long, observed once a minute."""
    season = season or Season()
    for minute in range(int(seconds / 60)):
        at = minute * 60.0
        season.compare(comes(at), [predicted(at + 60 * ahead) for ahead in range(31)], at)
    return season


def test_a_profile_is_half_believed_until_it_has_shown_what_it_is_worth() -> None:
    assert Season().trust == 0
    assert lived(day, day, 60).trust == pytest.approx(0.5)


def test_a_quiet_night_says_nothing_against_a_profile() -> None:
    # 100/s all night, and a jump foretold for the morning
    season = lived(lambda _: 100.0, lambda at: 100.0 if at < 9 * 3600 else 400.0, 8 * 3600)
    assert season.trust == pytest.approx(0.5)


def test_what_is_right_is_believed() -> None:
    assert lived(day, day, DAY).trust == 1


@pytest.mark.parametrize("late", [6 * 3600.0, 12 * 3600.0, -6 * 3600.0])
def test_a_day_that_is_shifted_is_not_believed_before_long(late: float) -> None:
    assert lived(day, lambda at: day(at + late), DAY / 2).trust == 0


def test_what_is_usual_is_taken_at_the_level_of_now() -> None:
    # 30 % more than usual, for hours
    season = lived(lambda at: 1.3 * day(at), day, 12 * 3600, Season(ratio=1.0))
    assert season.ratio == pytest.approx(1.3, abs=0.01)
    assert season.expected((100.0, 200.0)) == pytest.approx((130.0, 260.0), rel=0.01)


def test_the_first_comparison_gives_the_level_within_limits() -> None:
    low, high = seasonality.RATIOS
    for level, ratio in ((130.0, 1.3), (1e6, high), (1.0, low)):
        season = Season()
        season.compare(level, [100.0] * 31, 0.0)
        assert season.ratio == ratio


def test_what_is_expected_is_a_number() -> None:
    assert Season(ratio=4.0).expected((LARGEST, 1.0)) == (LARGEST, 4.0)


def test_a_jump_that_comes_early_hardly_changes_the_level() -> None:
    season = Season(ratio=1.0, seen_at=0.0)
    season.compare(400.0, [100.0] * 31, 120.0)
    # four times the usual for two minutes counts as a fifth more: 0.2 (1 - e^-(120/3600))
    assert season.ratio == pytest.approx(1 + 0.2 * (1 - math.exp(-120 / 3600)))


def test_errors_are_judged_when_they_are_due() -> None:
    season = Season()
    season.compare(100.0, [100.0] * AHEAD_MINUTES + [150.0] * 11, 0.0)
    assert (season.predicted, season.unchanged) == (150.0, 100.0)
    season.compare(200.0, [100.0] * 31, AHEAD_S - 1)
    assert (season.wrong, season.wrong_unchanged) == (0, 0)
    season.compare(200.0, [100.0] * 31, AHEAD_S)
    # 150 were foretold and 200 came: off by a quarter; that it stays as it is was off by half
    # less what may be noise: 0.47^2 - 0.22^2
    assert season.wrong == 0
    assert season.wrong_unchanged == pytest.approx(0.1725)
    # ... and that counts from the next time on: a reading must not change what is expected of it
    assert season.trust == pytest.approx(0.5)
    season.compare(100.0, [100.0] * 31, 2 * AHEAD_S)
    assert season.trust == 1


def test_a_profile_that_ends_earlier_predicts_what_it_ends_with() -> None:
    season = Season()
    season.compare(100.0, [100.0, 120.0], 0.0)
    assert season.predicted == 120


@pytest.mark.parametrize("late", [AHEAD_S + seasonality.MAX_DELAY_S + 1, -AHEAD_S - 100])
def test_what_was_not_polled_when_it_was_due_is_not_judged(late: float) -> None:
    season = Season()
    season.compare(100.0, [100.0] * AHEAD_MINUTES + [150.0] * 11, 5000.0)
    season.compare(200.0, [100.0] * 31, 5000.0 + late)
    assert (season.wrong, season.wrong_unchanged) == (0, 0)
    assert season.due_at == 5000.0 + late + AHEAD_S


@pytest.mark.parametrize(("level", "predicted"), [(100.0, ()), (100.0, (0.0, 100.0)), (0.0, (100.0,))])
def test_without_a_profile_nothing_is_learned(level: float, predicted: tuple[float, ...]) -> None:
    season = Season()
    season.compare(level, predicted, 0.0)
    assert season == Season()
    assert season.expected(predicted) == ()


def test_what_is_off_by_more_than_a_quarter_is_nothing_usual() -> None:
    levels = (74.0, 76.0, 100.0, 124.0, 126.0)
    assert [is_far_above(level, (100.0,)) for level in levels] == [False, False, False, False, True]
    assert [is_far_below(level, (100.0,)) for level in levels] == [True, False, False, False, False]


def test_a_bump_comes_back_as_far_as_the_profile_is_trusted() -> None:
    predicted = (100.0,) * 4
    # 20 above the usual; of a size that does 110 each minute adds 60 (20 e^-(m/5) - 10) records
    by_hand, lag = 0.0, 0.0
    for minute in (1, 2, 3):
        lag = max(lag + 60 * (20 * math.exp(-minute / 5) - 10), 0.0)
        by_hand = max(by_hand, lag)
    assert peak_backlog(120.0, predicted, 1.0, 110.0, 0.0) == pytest.approx(by_hand)
    # not believed, it stays as it is: 10 a second for three minutes
    assert peak_backlog(120.0, predicted, 0.0, 110.0, 0.0) == pytest.approx(1800)
    # what waits already is there in any case
    assert peak_backlog(90.0, predicted, 1.0, 1000.0, 500.0) == 500


@settings(deadline=None, max_examples=200)
@given(
    st.floats(1, 1e6),
    st.floats(1, 2),
    st.lists(st.floats(1, 1e6), min_size=1, max_size=31),
    st.floats(0, 1),
    st.floats(1, 1e6),
    st.floats(0, 1e6),
)
def test_the_more_arrives_the_more_piles_up(
    level: float, more: float, predicted: list[float], trusted: float, capacity: float, lag: float
) -> None:
    least = peak_backlog(level, predicted, trusted, capacity, lag)
    assert least >= lag
    assert peak_backlog(level * more, predicted, trusted, capacity, lag) >= least * (1 - 1e-9)
