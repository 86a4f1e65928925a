"""Rescales are found as they truly were, from observations every 15 seconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from autoscaler.core.model import Direction
from autoscaler.history.cluster_profile import rescale_times
from autoscaler.history.minutes import Rescaled
from autoscaler.history.rescales import find
from autoscaler.history.schema import DECISIONS, OBSERVATIONS
from tests.history.fleet import Fleet, frame

BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
Row = Mapping[str, Any]


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def seen(
    second: float, desired: int, ready: int, since: float | None, lag: float = 0.0, used: int | None = None
) -> dict[str, Any]:
    """An observation of a job with two slots a replica, and uses all or so many; `since` None: it restarts."""
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


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Callable[[Sequence[Row], Sequence[Row]], list[Any]]:
    def rescales(observations: Sequence[Row], decisions: Sequence[Row]) -> list[Any]:
        def rows(of: Sequence[Row], schema: Any) -> DataFrame:
            return spark.createDataFrame([tuple(row.get(name) for name in schema.names) for row in of], schema)

        return sorted(
            find(rows(observations, OBSERVATIONS), rows(decisions, DECISIONS)).collect(), key=lambda row: row.at
        )

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
    # Ready between 30 and 45, running since 72; it stopped between 45 and 60; even between 75 and 90.
    assert times(one) == (22.5, 57.0, 19.5, 67.5)
    assert one.lag_peak == 3000


def test_a_change_without_a_request_is_external_and_a_vanished_replica_is_a_loss(found: Any) -> None:
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
def test_many_rescales_of_a_fleet_have_the_times_that_are_true(spark: SparkSession) -> None:
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


@pytest.mark.e2e
@pytest.mark.parametrize("seed", [1, 2])
def test_times_are_within_a_tenth_of_the_truth_at_half_a_minute_between_observations(
    spark: SparkSession, seed: int
) -> None:
    fleet = Fleet(clusters=4, days=56, interval=30.0, seed=seed)
    names = [field.name for field in fields(Rescaled)]
    rows = find(frame(spark, fleet), frame(spark, fleet, "decisions")).select("cluster", *names).orderBy("at").collect()
    true = frame(spark, fleet, "rescales").collect()
    found = {}
    for cluster in sorted({row.cluster for row in true}):
        mine = [{name: row[name] for name in names} for row in rows if row.cluster == cluster]
        times = rescale_times([Rescaled(**{**row, "at": row["at"].timestamp()}) for row in mine])
        for way in Direction:
            actual = [row for row in true if row.cluster == cluster and row.direction == way]
            for name, column in (("start_up", "ready_s"), ("stall", "stall_s")):
                if (way, name) != (Direction.DOWN, "start_up"):
                    found[f"{cluster} {name} {way}"] = times[way][name].median / median(row[column] for row in actual)
    assert all(0.9 < ratio < 1.1 for ratio in found.values()), json.dumps(found)
