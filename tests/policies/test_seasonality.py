"""Usual arrivals: their level, how far a profile is trusted, and its predictions. Comments have worked numbers."""

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
    """The state after this time, observed once a minute."""
    season = season or Season()
    for minute in range(int(seconds / 60)):
        at = minute * 60.0
        season.compare(comes(at), [predicted(at + 60 * ahead) for ahead in range(31)], at)
    return season


def test_a_profile_is_trusted_while_it_is_no_worse_than_constant_arrivals() -> None:
    assert Season().trusted
    assert lived(day, day, 60).trusted


def test_after_two_days_a_third_of_an_error_remains() -> None:
    season = lived(lambda _: 100.0, lambda _: 100.0, 2 * DAY, Season(wrong=1.0))
    assert season.wrong == pytest.approx(math.exp(-1), rel=0.02)


def test_a_quiet_night_does_not_lower_the_trust_in_a_profile() -> None:
    # 100/s all night, and a predicted jump in the morning
    season = lived(lambda _: 100.0, lambda at: 100.0 if at < 9 * 3600 else 400.0, 8 * 3600)
    assert season.trusted
    assert (season.wrong, season.wrong_unchanged) == (0, 0)


def test_a_correct_profile_is_trusted() -> None:
    season = lived(day, day, DAY)
    assert season.trusted
    assert season.wrong == 0 < season.wrong_unchanged


def test_a_jump_a_minute_early_or_late_is_not_an_error() -> None:
    for late in (-59.0, 59.0):
        season = lived(
            lambda at: 180.0 if (at - 2400) % 3600 < 480 else 100.0,
            lambda at, late=late: 180.0 if (at - 2400 - late) % 3600 < 480 else 100.0,  # type: ignore[misc]
            DAY,
        )
        assert season.wrong == 0 < season.wrong_unchanged


@pytest.mark.parametrize("late", [6 * 3600.0, 12 * 3600.0, -6 * 3600.0])
def test_a_shifted_day_is_soon_not_trusted(late: float) -> None:
    assert not lived(day, lambda at: day(at + late), DAY / 2).trusted


def test_the_prediction_is_scaled_to_the_present_level() -> None:
    # 30 % more than usual, for a day
    season = lived(lambda at: 1.3 * day(at), day, DAY, Season(ratio=1.0))
    assert season.ratio == pytest.approx(1.3, abs=0.01)
    season.trusted = True
    assert season.expected(130.0, (100.0, 200.0)) == pytest.approx((130.0, 260.0), rel=0.01)


def test_the_first_comparison_sets_the_level() -> None:
    season = Season()
    season.compare(130.0, [100.0] * 31, 0.0)
    assert season.ratio == 1.3


def test_predictions_are_numbers() -> None:
    assert Season(ratio=1.1).expected(LARGEST, (LARGEST, 1.0)) == (LARGEST, 1.1)


def test_an_early_jump_hardly_changes_the_level() -> None:
    season = Season(ratio=1.0, seen_at=0.0)
    season.compare(400.0, [100.0] * 31, 120.0)
    # four times the usual arrivals for two minutes count as a quarter more: 0.25 (1 - e^-(120/7200))
    assert season.ratio == pytest.approx(1 + 0.25 * (1 - math.exp(-120 / 7200)))


def test_errors_are_evaluated_when_they_are_due() -> None:
    season = Season()
    season.compare(100.0, [100.0] * (AHEAD_MINUTES - 1) + [150.0] * 12, 0.0)
    assert (season.least, season.most, season.unchanged) == (150.0, 150.0, 100.0)
    season.compare(200.0, [100.0] * 31, AHEAD_S - 1)
    assert (season.wrong, season.wrong_unchanged) == (0, 0)
    season.compare(200.0, [100.0] * 31, AHEAD_S)
    # 150 were predicted and 200 came: off by a quarter. The prediction of no change was off by half, less the possible
    # noise of a reading: 0.45^2 - 0.2^2
    assert season.wrong == 0
    assert season.wrong_unchanged == pytest.approx(0.1625)


def test_an_error_counts_from_the_next_comparison_on() -> None:
    """A reading must not change the prediction that it is compared with."""
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


def test_a_profile_that_ends_early_keeps_predicting_its_last_value() -> None:
    season = Season()
    season.compare(100.0, [100.0, 120.0], 0.0)
    assert (season.least, season.most) == (120, 120)


@pytest.mark.parametrize("late", [AHEAD_S + MINUTE_S + 1, -AHEAD_S - 100])
def test_a_prediction_without_a_poll_when_it_was_due_is_not_evaluated(late: float) -> None:
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


def test_at_a_far_lower_level_a_profile_predicts_nothing() -> None:
    season = Season(ratio=1.0)
    assert season.expected(74.0, (100.0, 200.0)) == ()
    for level in (76.0, 100.0, 300.0):
        assert season.expected(level, (100.0, 200.0)) == (100.0, 200.0)
