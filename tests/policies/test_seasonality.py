"""What usually arrives: at which level, how far it is believed, what it foretells. Comments have worked numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from autoscaler_policies.adaptive.forecast import MINUTE_S
from autoscaler_policies.adaptive.seasonality import Season
from autoscaler_policies.adaptive.tuning import TUNING
from autoscaler_policies.shared.recommend import LARGEST

DAY = 86400.0
AHEAD_MINUTES = TUNING.profile_ahead_minutes
AHEAD_S = AHEAD_MINUTES * MINUTE_S


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


def test_a_profile_is_trusted_until_it_was_more_wrong_than_constant_arrivals() -> None:
    assert Season().trusted
    assert lived(day, day, 60).trusted


def test_after_two_days_a_third_of_an_error_is_remembered() -> None:
    season = lived(lambda _: 100.0, lambda _: 100.0, 2 * DAY, Season(wrong=1.0))
    assert season.wrong == pytest.approx(math.exp(-1), rel=0.02)


def test_a_quiet_night_says_nothing_against_a_profile() -> None:
    # 100/s all night, and a jump foretold for the morning
    season = lived(lambda _: 100.0, lambda at: 100.0 if at < 9 * 3600 else 400.0, 8 * 3600)
    assert season.trusted
    assert (season.wrong, season.wrong_unchanged) == (0, 0)


def test_what_is_right_is_trusted() -> None:
    season = lived(day, day, DAY)
    assert season.trusted
    assert season.wrong == 0 < season.wrong_unchanged


def test_a_jump_that_comes_a_minute_early_or_late_is_no_error() -> None:
    for late in (-59.0, 59.0):
        season = lived(
            lambda at: 180.0 if (at - 2400) % 3600 < 480 else 100.0,
            lambda at, late=late: 180.0 if (at - 2400 - late) % 3600 < 480 else 100.0,  # type: ignore[misc]
            DAY,
        )
        assert season.wrong == 0 < season.wrong_unchanged


@pytest.mark.parametrize("late", [6 * 3600.0, 12 * 3600.0, -6 * 3600.0])
def test_a_day_that_is_shifted_is_not_believed_before_long(late: float) -> None:
    assert not lived(day, lambda at: day(at + late), DAY / 2).trusted


def test_what_is_usual_is_taken_at_the_level_of_now() -> None:
    # 30 % more than usual, for a day
    season = lived(lambda at: 1.3 * day(at), day, DAY, Season(ratio=1.0))
    assert season.ratio == pytest.approx(1.3, abs=0.01)
    season.trusted = True
    assert season.expected(130.0, (100.0, 200.0)) == pytest.approx((130.0, 260.0), rel=0.01)


def test_the_first_comparison_gives_the_level() -> None:
    season = Season()
    season.compare(130.0, [100.0] * 31, 0.0)
    assert season.ratio == 1.3


def test_what_is_expected_is_a_number() -> None:
    assert Season(ratio=1.1).expected(LARGEST, (LARGEST, 1.0)) == (LARGEST, 1.1)


def test_a_jump_that_comes_early_hardly_changes_the_level() -> None:
    season = Season(ratio=1.0, seen_at=0.0)
    season.compare(400.0, [100.0] * 31, 120.0)
    # four times the usual for two minutes counts as a quarter more: 0.25 (1 - e^-(120/7200))
    assert season.ratio == pytest.approx(1 + 0.25 * (1 - math.exp(-120 / 7200)))


def test_errors_are_judged_when_they_are_due() -> None:
    season = Season()
    season.compare(100.0, [100.0] * (AHEAD_MINUTES - 1) + [150.0] * 12, 0.0)
    assert (season.least, season.most, season.unchanged) == (150.0, 150.0, 100.0)
    season.compare(200.0, [100.0] * 31, AHEAD_S - 1)
    assert (season.wrong, season.wrong_unchanged) == (0, 0)
    season.compare(200.0, [100.0] * 31, AHEAD_S)
    # 150 were predicted and 200 came: off by a quarter; that it stays as it is was off by half
    # less what may be noise: 0.45^2 - 0.2^2
    assert season.wrong == 0
    assert season.wrong_unchanged == pytest.approx(0.1625)


def test_what_is_found_counts_from_the_next_comparison_on() -> None:
    """A reading must not change what is expected of it."""
    season = Season()
    season.compare(100.0, [400.0] * 31, 0.0)
    season.ratio = 1.0
    season.due_at, season.least, season.most, season.unchanged = 60.0, 400.0, 400.0, 100.0
    season.compare(100.0, [400.0] * 31, 60.0)
    assert season.trusted
    assert season.wrong > season.wrong_unchanged
    season.compare(100.0, [400.0] * 31, 60.0 + AHEAD_S)
    assert not season.trusted
    assert season.expected(100.0, (100.0, 400.0)) == ()


def test_a_profile_that_ends_earlier_predicts_what_it_ends_with() -> None:
    season = Season()
    season.compare(100.0, [100.0, 120.0], 0.0)
    assert (season.least, season.most) == (120, 120)


@pytest.mark.parametrize("late", [AHEAD_S + MINUTE_S + 1, -AHEAD_S - 100])
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
    assert season.expected(level, predicted) == ()


def test_where_far_less_arrives_a_profile_predicts_nothing() -> None:
    season = Season(ratio=1.0)
    assert season.expected(74.0, (100.0, 200.0)) == ()
    for level in (76.0, 100.0, 300.0):
        assert season.expected(level, (100.0, 200.0)) == (100.0, 200.0)
