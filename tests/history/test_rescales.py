"""Rescales are found with their true times, from observations every 15 seconds."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from autoscaler.core.model import Direction
from autoscaler.history.cluster_profile import rescale_times
from autoscaler.history.minutes import Rescaled
from autoscaler.history.rescales import find, find_local
from autoscaler.history.schema import DECISIONS, OBSERVATIONS
from tests.history.fleet import Fleet, frame

BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
Row = Mapping[str, Any]


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def seen(
    second: float, desired: int, ready: int, since: float | None, lag: float = 0.0, used: int | None = None
) -> dict[str, Any]:
    """An observation of a job with two slots per replica that uses all or so many; `since` None: it restarts."""
    running = since is not None
    return {
        "cluster": "orders",
        "at": at(second),
        "desired": desired,
        "ready": ready,
        "lag": float(lag),
        "throughput": 100.0,
        "metrics": {},
        "engine": {
            "job": "running" if running else "restarting",
            "slots": 2 * ready,
            "parallelism": (2 * ready if used is None else used) if running else 0,
            "running_since": None if since is None else at(since),
        },
    }


def decided(second: float, current: int, desired: int, **more: object) -> dict[str, Any]:
    asked = {"policy": "p", "replicas": desired, "reason": "above", "inputs": {}, "detail": "so much comes"}
    return {
        "cluster": "orders",
        "at": at(second),
        "current": current,
        "proposed": desired,
        "desired": desired,
        "reason": "above",
        "recommendations": [asked],
        "dry_run": False,
        **more,
    }


@pytest.fixture
def found(spark: SparkSession, tmp_path: Path) -> Callable[[Sequence[Row], Sequence[Row]], list[Any]]:
    """The result of Spark's workers, which equals the result in files without them."""

    def rescales(observations: Sequence[Row], decisions: Sequence[Row]) -> list[Any]:
        def rows(of: Sequence[Row], schema: Any) -> DataFrame:
            return spark.createDataFrame([tuple(row.get(name) for name in schema.names) for row in of], schema)

        def files(of: DataFrame) -> list[Path]:
            place = tmp_path / str(next(number))
            of.write.parquet(str(place))
            return list(place.glob("*.parquet"))

        number = itertools.count()
        both = rows(observations, OBSERVATIONS), rows(decisions, DECISIONS)
        by_workers = find(*both)
        here = sorted(find_local(files(both[0]), files(both[1])).to_pylist(), key=lambda row: row["at"])
        assert repr(here) == repr(sorted(by_workers.toArrow().to_pylist(), key=lambda row: row["at"]))
        return sorted(by_workers.collect(), key=lambda row: row.at)

    return rescales


def times(row: Any) -> tuple[float | None, ...]:
    return row.ready_s, row.absorbed_s, row.stall_s, row.caught_up_s


def utc(when: datetime) -> datetime:
    # collect() gives the machine's own time.
    return when.astimezone(UTC)


def test_a_request_is_followed_from_its_decision_until_the_backlog_is_gone(found: Any) -> None:
    polls = [
        seen(0, 2, 2, -3600),
        seen(15, 2, 2, -3600),
        seen(30, 4, 2, -3600),
        seen(45, 4, 4, -3600, used=4),
        seen(60, 4, 4, None, 2000),
        seen(75, 4, 4, 72, 3000),
        seen(90, 4, 4, 72, 500),
    ]
    (one,) = found(polls, [decided(15, 2, 4)])
    assert (utc(one.at), one.before, one.after, one.direction) == (at(15), 2, 4, "up")
    assert (one.cause, one.reason, one.detail, one.outcome) == ("request", "above", "so much comes", "settled")
    # Ready between 30 and 45, running since 72; it stopped between 45 and 60; caught up between 75 and 90.
    assert times(one) == (22.5, 57.0, 19.5, 67.5)
    assert one.lag_peak == 3000


def test_a_change_without_a_request_is_external_and_a_lost_replica_is_a_loss(found: Any) -> None:
    polls = [
        seen(0, 4, 4, -3600),
        seen(15, 2, 2, None),
        seen(30, 2, 2, 20),
        seen(45, 2, 2, 20),
        seen(60, 2, 1, None),
        seen(75, 2, 2, None),
        seen(90, 2, 2, 85),
    ]
    external, loss = found(polls, [decided(0, 4, 2, dry_run=True)])
    assert (external.cause, utc(external.at), external.before, external.after) == ("external", at(7.5), 4, 2)
    assert (external.reason, external.direction, external.outcome) == (None, "down", "settled")
    assert (loss.cause, utc(loss.at), loss.before, loss.after) == ("loss", at(52.5), 1, 2)
    assert times(loss)[:3] == (15.0, 32.5, 32.5)


def test_superseded_and_unfinished_rescales_are_found(found: Any) -> None:
    polls = [seen(0, 2, 2, -3600), seen(15, 4, 2, -3600), seen(30, 4, 2, -3600), seen(45, 6, 3, -3600)]
    first, second = found(polls, [decided(0, 2, 4), decided(30, 4, 6)])
    assert (first.outcome, times(first)) == ("superseded", (None, None, None, None))
    assert (second.outcome, second.before, second.after) == ("unfinished", 4, 6)


def test_a_change_in_a_gap_of_observations_is_not_counted(found: Any) -> None:
    assert found([seen(0, 2, 2, -3600), seen(7200, 4, 4, 3000)], []) == []


@pytest.mark.e2e
def test_many_rescales_of_a_fleet_have_their_true_times(spark: SparkSession) -> None:
    fleet = Fleet(clusters=6, days=2)
    observations, decisions = frame(spark, fleet), frame(spark, fleet, "decisions")
    mine = {(row.cluster, row.at): row for row in find(observations, decisions).collect()}
    true = {(row.cluster, row.at): row for row in frame(spark, fleet, "rescales").collect()}
    assert len(true) > 40
    both = [(mine[key], true[key]) for key in true if key in mine]
    assert len(both) > 0.95 * len(true)
    assert len(mine) < 1.05 * len(true)
    assert {row.cause for row, _ in both} == {"request"}
    ratios = {}
    for direction, names in (("up", ("ready_s", "absorbed_s", "stall_s")), ("down", ("absorbed_s", "stall_s"))):
        pairs = [(row, truth) for row, truth in both if row.direction == direction and row.outcome == "settled"]
        assert len(pairs) > 15
        for name in names:
            found = median(row[name] for row, _ in pairs)
            ratios[f"{direction} {name}"] = found / median(truth[name] for _, truth in pairs)
    assert all(0.9 < ratio < 1.1 for ratio in ratios.values()), json.dumps(ratios)


def history_of(start_up: float, stall: float, seed: int) -> tuple[list[Row], list[Row], dict[str, list[float]]]:
    """Rescales up and down in turn, observed every 30 s, each requested right after an observation; and the truth."""
    dice = Random(seed)  # noqa: S311 - the same every time, not a secret
    polls: list[Row] = []
    decisions: list[Row] = []
    true: dict[str, list[float]] = {"start_up": [], "up": [], "down": []}
    ran = -3600.0
    for number in range(240):
        begin, up = 1800.0 * number, number % 2 == 0
        before, after = (2, 4) if up else (4, 2)
        ready = begin + (start_up * math.exp(dice.gauss(0.0, 0.25)) if up else 0.0)
        stopped = ready + 10.0 if up else begin
        since, ran = ran, stopped + stall * math.exp(dice.gauss(0.0, 0.3))
        decisions.append(decided(begin + 0.001, before, after))
        for poll in range(-1, 11):
            now = begin + 30.0 * poll
            size, there = (before if now <= begin else after), (after if now > begin and now >= ready else before)
            runs = since if now <= stopped else ran if now >= ran else None
            polls.append(seen(now, size, there, runs, used=2 * (before if runs == since else after)))
        true["up" if up else "down"].append(ran - stopped)
        if up:
            true["start_up"].append(ready - begin)
    return polls, decisions, true


@pytest.mark.parametrize(("start_up", "stall"), [(22.0, 24.3), (34.6, 9.5), (63.4, 16.0)])
def test_times_are_within_a_tenth_of_the_truth_at_half_a_minute_between_observations(
    found: Any, start_up: float, stall: float
) -> None:
    polls, decisions, true = history_of(start_up, stall, seed=1)
    rows = found(polls, decisions)
    names = [field.name for field in fields(Rescaled)]
    times = rescale_times([Rescaled(**{name: row[name] for name in names}) for row in rows])
    estimated = {
        "start_up": times[Direction.UP]["start_up"].median,
        "up": times[Direction.UP]["stall"].median,
        "down": times[Direction.DOWN]["stall"].median,
    }
    assert estimated == {name: pytest.approx(median(each), rel=0.1) for name, each in true.items()}
