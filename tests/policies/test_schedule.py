from __future__ import annotations

import pickle
import zoneinfo
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model import (
    Allowance,
    ClusterSpec,
    ClusterState,
    Limits,
    NamedPolicy,
    Observation,
    Reading,
    Reason,
    View,
)
from autoscaler.core.parameters import ParameterError
from autoscaler.core.step import step
from autoscaler.testing import PolicyContract
from autoscaler_policies.rules.target_tracking import TargetTracking
from autoscaler_policies.schedule import policy as module
from autoscaler_policies.schedule.policy import Exclusion, Schedule, Window

Make = Callable[..., View]
HOUR = timedelta(hours=1)
OFFICE = Window(name="office hours", start="0 8 * * 1-5", end="0 18 * * 1-5", min=4)
NIGHT = Window(name="night", start="0 22 * * *", end="0 6 * * *", min=0, max=2)
SALE = Window(name="sale", start="0 6 27 11 *", duration=18 * HOUR, min=10, max=40)
DEPLOY = Exclusion("deploy", "30 9 * * 2", duration=timedelta(minutes=20))
CLUSTER = Limits(1, 12)


def berlin(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo("Europe/Berlin")).astimezone(UTC)


def held(text: str, *windows: Window | Exclusion, cluster: Limits = CLUSTER) -> tuple[int, int]:
    """The bounds at a local time in Berlin."""
    limits = made(*windows).allow(berlin(text), cluster).limits
    return limits.minimum, limits.maximum


def made(*windows: Window | Exclusion) -> Schedule:
    return Schedule(
        tuple(window for window in windows if isinstance(window, Window)),
        tuple(window for window in windows if isinstance(window, Exclusion)),
        "Europe/Berlin",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-05 07:59:59", (1, 12)),
        ("2026-01-05 08:00:00", (4, 12)),  # a Monday
        ("2026-01-05 17:59:59", (4, 12)),
        ("2026-01-05 18:00:00", (1, 12)),
        ("2026-01-10 12:00:00", (1, 12)),  # a Saturday
        ("2026-07-06 08:00:00", (4, 12)),  # the same local time in summer
        ("2026-07-06 07:59:59", (1, 12)),
    ],
)
def test_the_bounds_of_an_open_window_replace_those_of_the_cluster(text: str, expected: tuple[int, int]) -> None:
    assert held(text, OFFICE) == expected


def test_bounds_may_be_lowered_too() -> None:
    assert held("2026-01-05 23:00", NIGHT) == (0, 2)
    assert held("2026-01-06 05:59", NIGHT) == (0, 2)
    assert held("2026-01-06 06:00", NIGHT) == (1, 12)


def test_of_several_open_windows_the_greatest_bounds_count() -> None:
    friday = "2026-11-27 12:00"
    assert held(friday, OFFICE, SALE) == (10, 40)
    assert held(friday, replace(OFFICE, min=14), SALE) == (14, 40)
    assert held(friday, OFFICE, Window(name="most", start="@daily", duration=24 * HOUR, max=50), SALE) == (10, 50)


def test_a_window_without_a_bound_keeps_that_of_the_cluster() -> None:
    assert held("2026-01-05 12:00", replace(OFFICE, min=None, max=30)) == (1, 30)
    assert held("2026-01-05 12:00", replace(OFFICE, min=3, max=3)) == (3, 3)


def test_a_minimum_above_the_maximum_raises_it_and_the_detail_says_so(view: Make) -> None:
    assert held("2026-01-05 12:00", replace(OFFICE, min=20)) == (20, 20)
    # the cluster's minimum is 5, and the maximum at night is 2
    night = replace(NIGHT, min=None)
    assert held("2026-01-05 23:00", night, cluster=Limits(5, 12)) == (5, 5)
    seen = replace(view(minimum=5, maximum=5), now=berlin("2026-01-05 23:00"))
    answer = made(night).evaluate(seen)
    assert answer.detail == (
        "night is open until 2026-01-06 06:00 CET; 5 to 5 is allowed, as a minimum above the maximum raises it"
    )


def test_an_exclusion_window_prevents_every_change() -> None:
    policy = made(OFFICE, DEPLOY)
    tuesday = berlin("2026-01-06 09:30")
    assert policy.allow(tuesday - timedelta(seconds=1), CLUSTER).excluded is None
    allowance = policy.allow(tuesday, CLUSTER)
    assert allowance == Allowance(Limits(4, 12), "deploy lasts until 2026-01-06 09:50 CET")
    assert policy.allow(tuesday + timedelta(minutes=20), CLUSTER).excluded is None
    assert made(DEPLOY).allow(tuesday, CLUSTER).limits is CLUSTER
    both = made(DEPLOY, replace(DEPLOY, name="audit", duration=HOUR)).allow(tuesday, CLUSTER).excluded
    assert both == "deploy lasts until 2026-01-06 09:50 CET and audit lasts until 2026-01-06 10:30 CET"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("2026-01-05 07:00", "no window is open; office hours opens at 2026-01-05 08:00 CET"),
        ("2026-01-05 12:00", "office hours is open until 2026-01-05 18:00 CET"),
        ("2026-03-27 20:00", "no window is open; deploy begins at 2026-03-30 09:30 CEST"),
        (
            "2026-01-05 09:40",
            (
                "nothing changes: deploy lasts until 2026-01-05 09:50 CET; "
                "office hours is open until 2026-01-05 18:00 CET"
            ),
        ),
    ],
)
def test_reports_the_open_windows_and_their_ends(view: Make, text: str, detail: str) -> None:
    first = replace(OFFICE, start="0 8 * * 1-4", end="0 18 * * 1-4")
    policy = made(replace(first, start="0 8 * 1 1-4"), replace(DEPLOY, start="30 9 * * 1"))
    answer = policy.evaluate(replace(view(), now=berlin(text)))
    assert (answer.replicas, answer.reason) == (None, Reason.ABSTAINED)
    assert answer.detail == f"{detail}; 1 to 10 is allowed"
    assert answer.inputs == {"min": 1.0, "max": 10.0}


def test_consecutive_windows_are_reported_as_one(view: Make) -> None:
    week = Window(name="workdays", start="0 0 * * 1-5", duration=24 * HOUR, min=2)
    detail = made(week).evaluate(replace(view(), now=berlin("2026-01-06 12:00"))).detail
    assert detail.startswith("workdays is open until 2026-01-10 00:00 CET")
    # always open: the end of the search is reported
    always = replace(week, start="@daily")
    assert made(always).evaluate(replace(view(), now=berlin("2026-01-06 12:00"))).detail.startswith("workdays is open")
    assert held("2026-05-05 05:05", always) == (2, 12)


def test_each_window_may_have_its_own_time_zone() -> None:
    there = replace(OFFICE, timezone="America/New_York")
    assert held("2026-01-05 13:59", there) == (1, 12)
    assert held("2026-01-05 14:00", there) == (4, 12)
    # two weeks in March New York is an hour nearer
    assert held("2026-03-16 13:00", there) == (4, 12)


def test_a_skipped_start_opens_the_window_when_the_clock_goes_forward() -> None:
    early = Window(name="early", start="30 2 * * *", end="0 5 * * *", min=3)
    assert held("2026-03-29 01:59", early) == (1, 12)
    assert held("2026-03-29 03:00", early) == (3, 12)
    assert held("2026-03-29 05:00", early) == (1, 12)


def test_a_skipped_end_closes_the_window_when_the_clock_goes_forward() -> None:
    late = Window(name="late", start="0 1 * * *", end="30 2 * * *", min=3)
    assert held("2026-03-29 01:59", late) == (3, 12)
    assert held("2026-03-29 03:00", late) == (1, 12)


def test_a_window_within_a_skipped_hour_does_not_open(view: Make) -> None:
    inside = Window(name="inside", start="10 2 * * *", end="50 2 * * *", min=3)
    assert held("2026-03-28 02:30", inside) == (3, 12)
    for minute in range(0, 180, 5):
        assert held(f"2026-03-29 0{3 + minute // 60}:{minute % 60:02}", inside) == (1, 12)
    answer = made(inside).evaluate(replace(view(), now=berlin("2026-03-28 12:00")))
    assert answer.detail.startswith("no window is open; inside opens at 2026-03-30 02:10 CEST")


def test_a_window_in_a_repeated_hour_is_open_the_first_time() -> None:
    inside = made(Window(name="inside", start="10 2 * * *", end="50 2 * * *", min=3))
    first = berlin("2026-10-25 02:00")  # 02:00 in summer time
    opened = [
        minute for minute in range(180) if inside.allow(first + minute * HOUR / 60, CLUSTER) != Allowance(CLUSTER)
    ]
    assert opened == list(range(10, 50))


def test_a_duration_is_elapsed_time_and_not_local_time() -> None:
    night = made(Window(name="night", start="0 0 * * *", duration=6 * HOUR, min=3))
    begin = berlin("2026-03-29 00:00")
    opened = [hour for hour in range(12) if night.allow(begin + hour * HOUR, CLUSTER).limits.minimum == 3]
    assert opened == list(range(6))  # until 07:00 local time


@given(moment=st.datetimes(datetime(2025, 1, 1), datetime(2028, 1, 1)).map(lambda at: at.replace(tzinfo=UTC)))  # noqa: DTZ001
def test_is_open_when_the_clock_on_the_wall_is_within(moment: datetime) -> None:
    there = moment.astimezone(ZoneInfo("Europe/Berlin"))
    least, most = made(OFFICE, NIGHT).allow(moment, CLUSTER).limits.minimum, 12
    office = there.weekday() < 5 and 8 <= there.hour < 18
    night = there.hour >= 22 or there.hour < 6
    if night:
        least, most = 0, 2
    expected = Limits(4, 12) if office else Limits(least, most) if night else CLUSTER
    assert made(OFFICE, NIGHT).allow(moment, CLUSTER).limits == expected


@given(
    moment=st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)).map(lambda at: at.replace(tzinfo=UTC)),  # noqa: DTZ001
    minimum=st.integers(0, 50),
    spread=st.integers(1, 50),
)
def test_the_bounds_are_always_valid_and_cached_ones_equal_computed_ones(
    moment: datetime, minimum: int, spread: int
) -> None:
    policy = made(
        OFFICE, NIGHT, SALE, DEPLOY, Window(name="often", start="*/7 * * * *", duration=timedelta(minutes=3), min=5)
    )
    limits = policy.allow(moment, Limits(minimum, minimum + spread)).limits
    assert 0 <= limits.minimum <= limits.maximum
    computed, _ = module._state_from(policy, moment)
    kept = module._state(policy, moment)
    assert replace(kept, at=0.0) == replace(computed, at=0.0)


def test_a_step_keeps_the_size_within_the_bounds_of_the_window() -> None:
    spec = ClusterSpec(name="c", limits=Limits(1, 12), policies=(NamedPolicy("calendar", made(OFFICE, DEPLOY)),))

    def desired(text: str) -> tuple[int, Reason]:
        _, decision = step(spec, ClusterState(), Observation(at=berlin(text), desired=2, ready=2))
        return decision.desired, decision.reason

    assert desired("2026-01-05 07:59") == (2, Reason.ABSTAINED)
    assert desired("2026-01-05 08:00") == (4, Reason.BOUNDS)
    assert desired("2026-01-06 09:29") == (4, Reason.BOUNDS)
    assert desired("2026-01-06 09:30") == (2, Reason.BOUNDS)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Schedule, "windows: is empty, expected a window, or one under exclude"),
        (lambda: made(OFFICE, OFFICE), "windows: has two with the name 'office hours', expected different names"),
        (lambda: made(DEPLOY, DEPLOY), "exclude: has two with the name 'deploy'"),
        (lambda: replace(OFFICE, name=" "), "name: is empty"),
        (lambda: replace(OFFICE, start="0 8 * * 1-9"), "start: '0 8 * * 1-9': field 5 (day of week) is 9, expected 0"),
        (lambda: replace(OFFICE, end="0 18 * *"), "end: '0 18 * *': expected five fields"),
        (
            lambda: replace(OFFICE, start="0 8 31 2 *"),
            "start: '0 8 31 2 *' is never due: none of these months has such a day",
        ),
        (lambda: replace(OFFICE, end=None), "end: is missing, expected either end or duration"),
        (lambda: replace(OFFICE, duration=HOUR), "end: is set together with duration, expected either end or duration"),
        (lambda: replace(SALE, duration=timedelta(0)), "duration: is 0s, expected above 0s"),
        (lambda: replace(OFFICE, end=" 0 8 * *  1,2,3-5 "), "end: is the same as start, so the window never closes"),
        (lambda: replace(OFFICE, min=None), "min: is missing, expected min, max or both"),
        (lambda: replace(OFFICE, min=-1), "min: is -1, expected 0 to 100,000"),
        (lambda: replace(OFFICE, max=0), "max: is 0, expected 1 to 100,000"),
        (lambda: replace(OFFICE, max=100_001), "max: is 100001, expected 1 to 100,000"),
        (lambda: replace(OFFICE, max=3), "min: is 4, expected at most max (3)"),
        (
            lambda: replace(OFFICE, timezone="Europe/Berln"),
            (
                "timezone: is 'Europe/Berln', expected the name of a time zone, such as Europe/Berlin; "
                "did you mean 'Europe/Berlin'?"
            ),
        ),
        (lambda: replace(DEPLOY, timezone="Europe"), "timezone: is 'Europe', expected the name"),
        (lambda: replace(DEPLOY, timezone="../../etc/passwd"), "timezone: is '../../etc/passwd', expected the name"),
        (lambda: replace(made(OFFICE), timezone=""), "timezone: is '', expected the name of a time zone"),
        (lambda: replace(made(OFFICE), timezone="xyzzy"), "such as Europe/Berlin"),
    ],
)
def test_refuses_invalid_parameters(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ParameterError, match=r"^\w+: ") as caught:
        build()
    assert message in str(caught.value)


def test_without_time_zone_data_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_timezones", set)
    with pytest.raises(ParameterError, match="this machine has no time zones: install the package tzdata"):
        replace(OFFICE, timezone="Mars/Olympus")


def test_time_zones_work_on_a_machine_without_its_own_data() -> None:
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath(to=())
    try:
        assert zoneinfo.ZoneInfo.no_cache("Europe/Berlin").utcoffset(datetime(2026, 7, 1)) == 2 * HOUR  # noqa: DTZ001
    finally:
        zoneinfo.reset_tzpath(to=before)


def test_recommends_no_size_and_says_so() -> None:
    assert made(OFFICE).asks is False


class TestContract(PolicyContract):
    @pytest.fixture
    def policy(self) -> Schedule:
        return made(OFFICE, NIGHT, SALE, DEPLOY)

    @pytest.fixture
    def metrics(self) -> Sequence[str]:
        return ()

    def test_a_pickled_copy_allows_the_same(self, policy: Schedule, views: Sequence[View]) -> None:
        other = pickle.loads(pickle.dumps(policy))  # noqa: S301 - our own
        for one in views:
            assert other.allow(one.now, one.limits) == policy.allow(one.now, one.limits)


def test_the_detail_of_a_policy_says_that_the_bounds_of_a_window_limit_it() -> None:
    spec = ClusterSpec(
        name="c",
        limits=CLUSTER,
        policies=(NamedPolicy("calendar", made(OFFICE)), NamedPolicy("cpu", TargetTracking("cpu", 0.6))),
    )
    at = berlin("2026-01-05 12:00")
    _, decision = step(spec, ClusterState(), Observation(at=at, desired=2, ready=2, metrics={"cpu": Reading(0.6, at)}))
    assert decision.desired == 4
    assert decision.recommendations[1].detail.endswith("2 replicas are kept; 4 to 12 is allowed")
