"""The series of a cluster, for charts: figures per interval in bounded memory, and changes of size."""

from __future__ import annotations

import math
from array import array
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autoscaler.core.model import (
    ClusterState,
    Decision,
    EngineStatus,
    JobState,
    Observation,
    Reading,
    Reason,
    Recommendation,
)
from autoscaler.daemon import http_requests
from autoscaler.daemon.series import KEYS, RESOLUTIONS, Points, Series, sample, series_document
from autoscaler.ports import Record, StoreError
from autoscaler.testing.virtual_time import run

from .conftest import World, spec
from .test_http_control import House, running

NOW = datetime(2026, 1, 31, 17, tzinfo=UTC)
T = NOW.timestamp()
NAN = math.nan
DAY, WEEK = 86400.0, 7 * 86400.0


def figures(load: float = NAN, lag: float = NAN) -> tuple[float, ...]:
    return (load, NAN, lag, NAN, 4.0, 4.0, 4.0, NAN)


def record(
    at: float, current: int = 4, desired: int = 4, notes: tuple[Reason, ...] = (), *, dry_run: bool = False, **load: Any
) -> Record:
    time = datetime.fromtimestamp(at, UTC)
    readings = {name: Reading(value, time) for name, value in load.items()}
    asked = Recommendation(desired, Reason.ABOVE, {}, f"{desired} are needed", "main")
    decision = Decision(
        cluster="a",
        at=time,
        current=current,
        proposed=desired,
        desired=desired,
        reason=Reason.ABOVE,
        recommendations=(asked,),
        notes=tuple((reason, "") for reason in notes),
    )
    return Record(Observation(at=time, desired=current, ready=current, metrics=readings), decision, dry_run=dry_run)


def of(*records: Record) -> Series:
    found = Series()
    for each in records:
        found.add(spec("a"), ClusterState(), each)
    return found


# Figures


def test_a_period_has_the_mean_of_its_readings_and_the_maximum_of_lag() -> None:
    points = Points(60.0)
    for at, values in (
        (0.0, figures(10.0, 5.0)),
        (15.0, figures(20.0, 50.0)),
        (30.0, figures()),
        (45.0, figures(60.0)),
    ):
        points.add(T + at, values)
    [(at, found)] = points.rows(T, T + 60)
    assert (at, found[0], found[2]) == (T, 30.0, 50.0)
    assert math.isnan(found[1])


def test_the_first_readings_in_the_middle_of_a_period_count_from_there() -> None:
    points = Points(60.0)
    points.add(T, figures())
    points.add(T + 15, figures(8.0))
    points.add(T + 30, figures(10.0))
    [(_, values)] = points.rows(T, T)
    assert values[0] == 9.0


def test_a_time_before_the_last_period_is_ignored() -> None:
    points = Points(60.0)
    points.add(T, figures(1.0))
    points.add(T - 60, figures(2.0))
    assert [(at, values[0]) for at, values in points.rows(0, T)] == [(T, 1.0)]


def test_a_cluster_that_ticks_each_second_for_weeks_takes_less_than_100_kb() -> None:
    found = [Points(*resolution) for resolution in RESOLUTIONS]
    for points in found:
        at = 0.0
        while at < 3 * WEEK:  # once in each interval is enough
            points.add(at, figures(1.0, 1.0))
            at += points.width
        assert points.at[0] <= 3 * WEEK - points.width - points.keep
    assert sum(each.at.itemsize * len(each.at) + each.values.itemsize * len(each.values) for each in found) < 100_000


def test_an_hour_is_finer_than_a_day_and_a_day_finer_than_a_week() -> None:
    found = of(*(record(T - WEEK + number * 60.0, load=1.0) for number in range(int(WEEK / 60))))
    numbers = [len(found.points(T - span, T, T)[0]) for span in (3600.0, DAY, WEEK)]
    assert 59 <= numbers[0] <= 61
    assert 718 <= numbers[1] <= 722
    assert 671 <= numbers[2] <= 673


def test_missing_readings_and_gaps_are_null() -> None:
    rows = [(T, array("f", figures(1.0))), (T + 60, array("f", figures())), (T + 600, array("f", figures(math.inf)))]
    document = series_document(rows, T, T + 900, 15, 60.0, {})
    assert document["at"] == [T, T + 60, T + 120, T + 600]
    assert document["load"] == [1.0, None, None, None]
    assert document["desired"] == [4.0, 4.0, None, 4.0]
    assert set(KEYS) < document.keys()


def test_there_are_no_more_points_than_requested() -> None:
    rows = [(T + 10.0 * number, array("f", figures(float(number)))) for number in range(360)]
    document = series_document(rows, T, T + 3600, 36, 10.0, {})
    assert len(document["at"]) == 36
    assert document["load"][0] == pytest.approx(4.5)


def test_workers_in_use_are_those_whose_slots_the_job_uses() -> None:
    status = EngineStatus(job=JobState.RUNNING, parallelism=7)
    seen = record(T, load=100.0)
    observation = Observation(at=NOW, desired=5, ready=4, engine=status)
    values = sample(spec("a", slots_per_replica=2), ClusterState(), Record(observation, seen.decision))
    assert dict(zip(KEYS, values, strict=True))["used"] == 4.0
    assert values[4:7] == (4.0, 4.0, 5.0)


# Changes


def test_a_rescale_begins_with_its_decision_and_ends_with_its_outcome() -> None:
    found = of(
        record(T, 4, 6),
        record(T + 15, 6, 6),
        record(T + 30, 6, 6, notes=(Reason.SETTLING, Reason.SETTLED)),
        record(T + 45, 6, 3),
    ).changes(T, T + 60)
    assert [(each["from"], each["to"], each["text"]) for each in found["decisions"]] == [
        (4, 6, "main: 6 are needed"),
        (6, 3, "main: 3 are needed"),
    ]
    first, second = found["rescales"]
    assert (first["ended_at"], first["outcome"]) == ((NOW + timedelta(seconds=30)).isoformat(), "settled")
    assert (second["ended_at"], second["outcome"]) == (None, None)
    assert of(record(T, 4, 6), record(T + 15, 6, 8)).changes(T, T + 60)["rescales"][0]["outcome"] == "superseded"


def test_a_request_that_is_refused_repeatedly_is_one_change() -> None:
    found = of(*(record(T + 15 * number, 4, 6) for number in range(5))).changes(T, T + 60)
    assert (len(found["decisions"]), len(found["rescales"])) == (1, 1)


def test_a_dry_run_decides_but_rescales_nothing() -> None:
    found = of(record(T, 4, 6, dry_run=True)).changes(T, T)
    assert (len(found["decisions"]), len(found["rescales"])) == (1, 0)


def test_only_changes_within_the_requested_time_are_returned() -> None:
    found = of(record(T, 4, 6), record(T + 15, 6, 6, notes=(Reason.SETTLED,)), record(T + 30, 6, 8))
    changes = found.changes(T + 20, T + 25)
    assert changes == {"decisions": [], "rescales": []}


# The endpoint


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with running(tmp_path) as found:
        yield found


async def test_the_series_of_a_cluster_has_its_figures_and_changes(house: House) -> None:
    await house.ask("POST", "/api/v1/clusters/a/decide")
    answer = await house.ask("GET", "/api/v1/clusters/a/series")
    assert (answer["desired"], answer["current"], answer["load"]) == ([3.0], [1.0], [None])
    [change] = answer["decisions"]
    trail = await house.ask("GET", "/api/v1/clusters/a/decisions", params={"limit": 1, "until": change["at"]})
    assert trail["decisions"][0]["decision"]["at"].replace("Z", "+00:00") == change["at"]


async def test_decisions_from_before_the_start_are_filled_in_from_the_state_store(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        await house.ask("POST", "/api/v1/clusters/a/decide")
    async with running(tmp_path) as house:
        await house.ask("POST", "/api/v1/clusters/a/decide")
        answer = await house.ask("GET", "/api/v1/clusters/a/series")
        assert [each["to"] for each in answer["decisions"]] == [3, 3]
        again = await house.ask("GET", "/api/v1/clusters/a/series")
        assert again["decisions"] == answer["decisions"]


async def test_an_unreadable_state_store_leaves_the_known_part(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.ask("POST", "/api/v1/clusters/a/decide")

    def broken(_: object) -> None:
        raise ValueError("torn")

    monkeypatch.setattr(http_requests, "load_record", broken)
    answer = await house.ask("GET", "/api/v1/clusters/a/series")
    assert len(answer["at"]) == 1

    async def unreadable(*_: object) -> AsyncIterator[list[bytes]]:
        raise StoreError("the disk is gone")
        yield []

    monkeypatch.setattr(house.daemon.store, "pages", unreadable)
    assert len((await house.ask("GET", "/api/v1/clusters/a/series"))["at"]) == 1


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ({"from": "yesterday"}, "from is 'yesterday', expected a time"),
        ({"from": "x" * 5000}, "from is 'xxx"),
        ({"from": "0001-01-01T00:00:00+14:00"}, "expected a time of this century"),
        ({"until": "0001-01-01T00:00:00"}, "before until"),
        ({"from": "2026-01-01", "until": "2025-12-31"}, "before until"),
        ({"from": "9999-12-31T23:59:59-14:00"}, "and now"),
        ({"points": "0"}, "points is '0', expected a number from 10 to 2000"),
        ({"points": "1" * 5000}, "points is"),
        ({"points": "ten"}, "points is 'ten'"),
    ],
)
async def test_an_invalid_parameter_is_refused_with_the_expected_form(
    house: House, query: dict[str, str], wrong: str
) -> None:
    answer = await house.ask("GET", "/api/v1/clusters/a/series", status=400, params=query)
    assert wrong in answer["error"]
    assert len(answer["error"]) < 300


async def test_an_unknown_cluster_is_not_found(house: House) -> None:
    await house.ask("GET", "/api/v1/clusters/nobody/series", status=404)


def test_a_reconfigured_cluster_continues_its_series() -> None:
    async def story() -> None:
        world = World("a")
        await world.start()
        await world.until(25)
        before = world.fleet.controllers["a"].series
        world.clusters["a"] = World("a", interval=timedelta(seconds=5)).clusters["a"]
        await world.start()
        assert world.fleet.controllers["a"].series is before
        await world.fleet.stop()

    run(story())
