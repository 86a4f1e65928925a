"""Profiles of simulated clusters compared with the true values, and of histories with little information."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from autoscaler.core.model import Cause, Direction
from autoscaler.core.workload_profile import Profile, seasonal_value
from autoscaler.history.cluster_profile import ProfileOptions, build_profile
from autoscaler.history.minutes import COLUMNS, Minutes, Rescaled
from autoscaler.ports import Record
from autoscaler.simulation.loads import Load, diurnal, noise
from autoscaler.simulation.loop import Run
from autoscaler.simulation.plant import PLANTS, PlantSpec
from autoscaler.trace.profile_file import dump, load
from tests.history.simulated import followed, minutes

OPTIONS = ProfileOptions(datetime(2026, 2, 1, tzinfo=UTC))
BEGIN = datetime(2026, 1, 5, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def _no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _day(plant: PlantSpec, hours: float = 24, low: float = 0.15) -> tuple[list[Record], Run]:
    load = Load("day", tuple(noise(diurnal(24, low), 0.05, 1)[: round(hours * 720)])).scaled(1600.0)
    return followed(load, plant)


@pytest.fixture(scope="module")
def day() -> tuple[list[Record], Run]:
    return _day(PLANTS["k8s"])


def _kinds(profile: Profile) -> list[str]:
    return [finding.kind for finding in profile.findings]


# accuracy


@pytest.mark.parametrize("utilization", ["utilization", "cpu"])
def test_a_day_gives_the_capacity(day: tuple[list[Record], Run], utilization: str) -> None:
    records, run = day

    curve = build_profile("it", minutes(records, utilization=utilization), [], OPTIONS).capacity

    assert curve is not None
    for size in (3, 8, 16):
        assert curve.rate * size**curve.exponent == pytest.approx(run.rate_per_worker * size**0.9, rel=0.05)
    assert curve.exponent == pytest.approx(0.9, abs=0.05)


@pytest.mark.e2e
@pytest.mark.parametrize("plant", PLANTS)
def test_two_weeks_give_capacity_and_season_on_every_plant(plant: str) -> None:
    day = diurnal(24, 0.15)
    truth = [rate * (0.6 if number % 7 >= 5 else 1.0) for number in range(14) for rate in day]
    load = Load("weeks", tuple(noise(truth, 0.05, 1))).scaled(1600.0)
    unit = load.rates[0] / noise(truth, 0.05, 1)[0]
    records, run = followed(load, PLANTS[plant])

    profile = build_profile("it", minutes(records, objective=PLANTS[plant].slo), [], OPTIONS)

    assert profile.capacity is not None
    assert profile.season is not None
    assert profile.done is not None
    assert profile.capacity.exponent == pytest.approx(0.9, abs=0.05)
    for size in (2, 4, 8, 16):
        assert profile.capacity.rate * size**profile.capacity.exponent == pytest.approx(
            run.rate_per_worker * size**0.9, rel=0.05
        )
    usually = unit * np.array(truth[: 7 * len(day)]).reshape(-1, 12).mean(axis=1)
    season = np.array([seasonal_value(profile.season.usual, BEGIN + 60.0 * minute + 30) for minute in range(7 * 1440)])
    assert np.abs(season - usually).mean() < 0.03 * usually.mean()
    score = run.score()
    assert profile.done.replica_hours == pytest.approx(score.cost, rel=0.02)
    assert profile.done.violation == pytest.approx(score.violation, abs=0.01)


def test_partitions_that_leave_workers_idle_are_accounted_for() -> None:
    records, run = _day(PlantSpec(partitions=24, gamma=0.85))

    profile = build_profile("it", minutes(records), [], OPTIONS)

    assert profile.capacity is not None
    assert profile.capacity.exponent == pytest.approx(0.85, abs=0.05)
    assert profile.capacity.rate * 8**profile.capacity.exponent == pytest.approx(
        run.rate_per_worker * 8**0.85, rel=0.05
    )


def test_without_utilization_the_capacity_shows_while_the_job_falls_behind() -> None:
    load = Load("short", tuple([400.0] * 2000 + [900.0] * 3000), rate_per_worker=100.0)
    records, run = followed(load, PlantSpec(gamma=0.9), target=1.3)

    profile = build_profile("it", minutes(records, utilization=None), [], OPTIONS)

    assert profile.capacity is not None
    for size in (4, 9):
        assert profile.capacity.sizes[size] == pytest.approx(run.rate_per_worker * size**0.9, rel=0.05)
    assert "no_utilization" in _kinds(profile)


def test_paid_needed_and_late_time_equal_those_of_the_simulation(day: tuple[list[Record], Run]) -> None:
    records, run = day
    score = run.score()

    done = build_profile("it", minutes(records), [], OPTIONS).done

    assert done is not None
    assert done.replica_hours == pytest.approx(score.cost, rel=0.02)
    assert done.needed_hours == pytest.approx(score.demand, rel=0.05)
    assert done.violation == pytest.approx(score.violation, abs=0.01)
    assert done.rescales_per_hour == pytest.approx(score.rescales_per_hour, rel=0.1)


def test_paid_and_needed_hours_cover_the_same_time_if_the_size_is_partly_unknown() -> None:
    arrivals, size = np.full(8 * 1440, 300.0), np.full(8 * 1440, 4.0)
    size[:2880] = math.nan  # the target was unreadable for two days
    arrivals[-1440:] = math.nan

    steady = _steady(arrivals=300.0)
    done = build_profile("it", replace(steady, arrivals=arrivals, paid=size, least=size, most=size), [], OPTIONS).done

    assert done is not None
    assert done.replica_hours == pytest.approx(4 * 6 * 24)
    assert done.needed_hours == pytest.approx(4 * 6 * 24)  # 300/s need 4 of 100 n^0.9


def test_the_profile_scales_with_the_records(day: tuple[list[Record], Run]) -> None:
    once = minutes(day[0])
    more = replace(once, **{name: 1000 * getattr(once, name) for name in ("arrivals", "throughput", "lag")})

    one, thousand = build_profile("it", once, [], OPTIONS), build_profile("it", more, [], OPTIONS)

    assert one.capacity is not None
    assert thousand.capacity is not None
    assert thousand.capacity.rate == pytest.approx(1000 * one.capacity.rate)
    assert thousand.done == one.done


# times


def _rescale(number: int, direction: str = "up", **changes: Any) -> Rescaled:
    before, after = (4, 6) if direction == "up" else (6, 4)
    known = {"ready_s": 30.0, "absorbed_s": 52.0, "stall_s": 12.0, "caught_up_s": 100.0} | changes
    return Rescaled(
        at=BEGIN + 7200.0 * number,
        before=before,
        after=after,
        direction=direction,
        cause=known.pop("cause", "request"),
        **known,
    )


def test_times_are_by_direction_each_after_the_previous_one() -> None:
    rescales = [
        *[_rescale(number, ready_s=20.0 + number, absorbed_s=42.0 + number) for number in range(21)],
        _rescale(30, "down", ready_s=0.0, absorbed_s=8.0, stall_s=8.0, caught_up_s=None),
        _rescale(31, "down", cause=Cause.LOSS.value, stall_s=50.0),
    ]

    times = build_profile("it", _steady(), rescales, OPTIONS).times

    up = times[Direction.UP]
    assert (up["start_up"].median, up["start_up"].low, up["start_up"].high, up["start_up"].count) == (30, 22, 38, 21)
    assert up["absorb"].median == 22
    assert up["stall"].median == 12
    assert up["catch_up"].median == 48
    down = times[Direction.DOWN]
    assert down["stall"].median == 8
    assert "catch_up" not in down


# findings


def _steady(days: float = 8, size: float = 4.0, arrivals: Any = 300.0, **changes: Any) -> Minutes:
    count = int(days * 1440)
    minute = np.asarray(BEGIN / 60 + np.arange(count), dtype=np.float64)
    values = {
        "observations": 4.0,
        "first": minute * 60 + 30,
        "last": minute * 60 + 75,
        "least": size,
        "most": size,
        "paid": size,
        "arrivals": arrivals,
        "throughput": arrivals,
        "utilization": arrivals / (100 * max(size, 1.0) ** 0.9),
        "lag": 0.0,
        "late": 0.0,
        "behind": 0.0,
        "stopped": 0.0,
        "running_since": BEGIN - 86400,
        "slots": size,
        "partitions": math.nan,
    } | changes
    return Minutes(
        minute=minute, **{name: np.broadcast_to(value, count).astype(float) for name, value in values.items()}
    )


def _found(kind: str, profile: Profile) -> Any:
    (finding,) = [finding for finding in profile.findings if finding.kind == kind]
    return finding


def test_without_problems_there_are_no_findings() -> None:
    assert build_profile("it", _steady(arrivals=340.0), [], OPTIONS).findings == ()


def test_over_provisioning_is_reported_with_its_cost() -> None:
    finding = _found("over_provisioned", build_profile("it", _steady(size=8.0, arrivals=300.0), [], OPTIONS))

    assert finding.replica_hours == pytest.approx(4 * 168)  # 300/s need 4 of 100 n^0.9
    assert "50 % of the replica-hours paid for" in finding.text


def test_under_provisioning_is_reported_with_its_hours() -> None:
    arrivals = np.full(8 * 1440, 300.0)
    arrivals[:1440] = 600.0

    profile = build_profile("it", _steady(arrivals=arrivals, utilization=0.8616), [], OPTIONS)
    finding = _found("under_provisioned", profile)

    assert "21 h a week" in finding.text


def test_flaps_slow_starts_and_heartbeats_are_reported() -> None:
    flaps = [_rescale(number, way) for number in range(8) for way in ("up", "down")]
    flaps = [replace(each, at=each.at + 600.0 * (each.direction == "down")) for each in flaps]
    slow = [_rescale(20 + number, ready_s=300.0 if number % 4 == 0 else 30.0) for number in range(12)]
    lost = [_rescale(40 + number, "down", cause="loss", stall_s=50.0) for number in range(3)]

    profile = build_profile("it", _steady(arrivals=340.0), [*flaps, *slow, *lost], OPTIONS)

    assert _kinds(profile) == ["slow_starts", "flaps", "heartbeat_stalls"]
    assert "8 times" in _found("flaps", profile).text
    assert "3 times" in _found("heartbeat_stalls", profile).text
    costs = [finding.replica_hours or 0.0 for finding in profile.findings]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == pytest.approx(3 * 50 * 6 / 3600 * 7 / 8)


def test_a_scale_in_that_kills_its_workers_is_reported() -> None:
    rescales = [_rescale(2 * number) for number in range(6)]
    rescales += [_rescale(2 * number + 1, "down", stall_s=58.0) for number in range(6)]

    profile = build_profile("it", _steady(arrivals=340.0), rescales, OPTIONS)

    assert "6 times workers were lost" in _found("heartbeat_stalls", profile).text


def test_replicas_beyond_the_partitions_are_reported() -> None:
    profile = build_profile("it", _steady(size=6.0, arrivals=340.0, partitions=4.0, utilization=0.976), [], OPTIONS)

    assert _found("partition_bound", profile).replica_hours == pytest.approx(2 * 168)


def test_gaps_clock_skew_renames_and_drift_are_reported() -> None:
    whole = _steady(arrivals=300.0, days=21)
    drifting = replace(whole, utilization=whole.utilization * np.linspace(1.0, 1.15, len(whole.minute)))
    kept = (whole.minute < BEGIN / 60 + 3 * 1440) | (whole.minute >= BEGIN / 60 + 4 * 1440)
    gap = Minutes(**{name: getattr(drifting, name)[kept] for name in COLUMNS})

    profile = build_profile("it", gap, [], OPTIONS, {"skew_s": 90.0, "renamed_to": "that", "over_s": None})

    assert _found("gap", profile).text.startswith("nothing is recorded from 2026-01-07 23:59 to 2026-01-09 00:00")
    assert "on average 1 min 30 s older" in _found("clock_skew", profile).text
    assert "--rename it=that" in _found("renamed", profile).text
    assert "shrinks by" in _found("capacity_drift", profile).text


# little information


def _numbers(thing: Any) -> Iterator[float]:
    if isinstance(thing, bool | int | float):
        yield float(thing)
    elif is_dataclass(thing):
        for each in fields(thing):
            yield from _numbers(getattr(thing, each.name))
    elif isinstance(thing, dict):
        yield from _numbers(list(thing.values()))
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from _numbers(value)


def _cut(whole: Minutes, rows: Sequence[int]) -> Minutes:
    return Minutes(**{name: getattr(whole, name)[list(rows)] for name in COLUMNS})


NAN = math.nan
STEADY = _steady()
HISTORIES = {
    "one observation": _cut(STEADY, [0]),
    "two far apart": _cut(STEADY, [0, 9000]),
    "no metrics": _steady(arrivals=NAN, throughput=NAN, utilization=NAN, lag=NAN, late=NAN),
    "no size": _steady(least=NAN, most=NAN, paid=NAN),
    "no engine": _steady(running_since=NAN, slots=NAN),
    "nothing arrives": _steady(arrivals=0.0, throughput=0.0, utilization=0.0),
    "no replicas": _steady(size=0.0, arrivals=0.0, utilization=0.0, throughput=0.0),
    "stopped": _steady(stopped=1.0, running_since=NAN),
    "huge": _steady(arrivals=1e199, throughput=1e199, utilization=0.5, lag=1e199),
    "tiny": _steady(arrivals=1e-200, throughput=1e-200, utilization=0.5),
    "more than a curve can say": _steady(arrivals=1e12, throughput=1.0, utilization=0.9, behind=1.0, lag=1e12),
    "far more than a curve can say": _steady(arrivals=1e190, throughput=1e-190, utilization=0.9, behind=1.0, lag=1e12),
    "many replicas": _steady(size=1e6, utilization=0.5),
    "wild": _steady(
        arrivals=np.geomspace(1e-9, 1e9, 8 * 1440),
        throughput=np.geomspace(1e9, 1e-9, 8 * 1440),
        utilization=np.linspace(-1, 5, 8 * 1440),
        most=np.arange(8 * 1440) % 7,
        least=np.arange(8 * 1440) % 5,
        partitions=7.0,
    ),
    "clocks that differ": _steady(running_since=BEGIN + 86400 * 365),
    "years apart": replace(_cut(STEADY, range(3000)), minute=STEADY.minute[:3000] * np.linspace(1, 1.05, 3000)),
}


@pytest.mark.parametrize("history", HISTORIES)
def test_any_observations_give_a_profile_that_can_be_read_back(history: str) -> None:
    odd = [
        Rescaled(at=BEGIN, before=1, after=1, direction="sideways", cause="?"),
        Rescaled(
            at=BEGIN,
            before=0,
            after=3,
            direction="up",
            cause="request",
            ready_s=NAN,
            absorbed_s=math.inf,
            stall_s=-5.0,
            caught_up_s=None,
        ),
    ]

    profile = build_profile("it", HISTORIES[history], odd, OPTIONS)

    assert all(map(math.isfinite, _numbers(profile)))
    assert load(dump(profile)).cluster == "it"


def test_too_short_a_history_is_reported() -> None:
    assert "little_history" in _kinds(build_profile("it", _cut(STEADY, range(100)), [], OPTIONS))
