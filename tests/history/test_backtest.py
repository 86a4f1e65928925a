"""Recorded arrivals simulated again on Spark: days, gaps, trials, sums, and the command."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from autoscaler import cli
from autoscaler.cli.backtest import _fleet_totals
from autoscaler.config.combine import read as expression
from autoscaler.core.model import ClusterSpec, Limits, NamedPolicy
from autoscaler.core.workload_profile import Curve, Profile
from autoscaler.history.backtest_job import RESULTS, TRIALS, Known, arrived, known, results, slots, trials
from autoscaler.plugins import Kind, load
from autoscaler.simulation.plant import PLANTS
from autoscaler.simulation.trial import BEFORE, SLOTS, Case, Variant, day_load, run_trial
from autoscaler.trace import profile_file
from tests.history import written

FIRST = date(2026, 3, 4)
MIDNIGHT = datetime.combine(FIRST, time(), UTC)
MINUTE = timedelta(minutes=1)

CONFIG = """
sources: {k: {type: http, url: 'http://127.0.0.1:9'}}
clusters:
  orders:
    target: {type: 'null'}
    max: 12
    interval: 1m
    metrics:
      lag: {source: k, path: a}
      arrivals: {source: k, path: b}
      throughput: {source: k, path: c}
      busy: {source: k, path: d}
    policies: {main: {type: adaptive, utilization: busy}}
"""


def rate(minutes: float) -> float:
    return round(500 + 400 * math.sin(minutes / 1440 * 2 * math.pi), 3)


def rows(minutes: Iterable[int], cluster: str = "orders") -> list[dict[str, Any]]:
    return [
        {"cluster": cluster, "at": MIDNIGHT + minute * MINUTE, "arrivals": rate(minute), "metrics": {}, "missing": {}}
        for minute in minutes
    ]


def frame(spark: SparkSession, found: Iterable[Mapping[str, Any]]) -> DataFrame:
    return spark.createDataFrame(
        [(row["cluster"], row["at"], row["arrivals"]) for row in found], "cluster string, at timestamp, arrivals double"
    )


# Days


def test_a_day_has_its_own_slots_and_those_of_the_evening_before(spark: SparkSession) -> None:
    days = {row["day"]: row for row in arrived(spark, frame(spark, rows(range(0, 2880, 10)))).collect()}
    assert set(days) == {FIRST, FIRST + timedelta(days=1)}
    first, second = days[FIRST], days[FIRST + timedelta(days=1)]
    assert first["slots"] == list(range(0, SLOTS, 40))
    assert second["slots"] == [*range(-BEFORE, 0, 40), *range(0, SLOTS, 40)]
    assert first["rates"][:2] == [rate(0), rate(10)]
    assert second["rates"][:2] == [rate(1320), rate(1330)]
    assert first["missing"] == 39 * 15
    assert first["peak"] == max(first["rates"])


def test_observations_more_frequent_than_slots_are_averaged(spark: SparkSession) -> None:
    seen = [
        {"cluster": "x", "at": MIDNIGHT + timedelta(seconds=5 * number), "arrivals": float(number)}
        for number in range(6)
    ]
    (row,) = arrived(spark, frame(spark, seen)).collect()
    assert (row["slots"], row["rates"]) == ([0, 1], [1.0, 4.0])


def test_invalid_rates_are_ignored(spark: SparkSession) -> None:
    bad = [math.nan, math.inf, -1.0, None]
    seen = [{"cluster": "x", "at": MIDNIGHT, "arrivals": value} for value in [*bad, 7.0]]
    (row,) = arrived(spark, frame(spark, seen)).collect()
    assert row["rates"] == [7.0]


def test_a_day_with_a_long_gap_is_skipped_and_reported(spark: SparkSession) -> None:
    minutes = [*range(0, 1440, 10), *range(1440, 1451), *range(1465, 2880, 10), *range(2880, 3600, 10)]
    (found,) = known(arrived(spark, frame(spark, rows(minutes))))
    # Gaps below 15 minutes are filled; half a day is too long.
    assert found.days == (FIRST, FIRST + timedelta(days=1))
    assert found.left_out == ((FIRST + timedelta(days=2), 43200.0 + 585.0),)
    assert found.peak == rate(360)


def test_days_before_the_first_requested_day_are_skipped(spark: SparkSession) -> None:
    seen = [*rows(range(0, 2880, 10)), *rows(range(0, 1440, 10), "other")]
    later = FIRST + timedelta(days=1)
    found = known(arrived(spark, frame(spark, seen), {"orders": later}))
    assert [(one.cluster, one.days) for one in found] == [("orders", (later,)), ("other", (FIRST,))]


# Trials


def case() -> Case:
    adaptive, drain = (load(Kind.POLICY, kind) for kind in ("adaptive", "backlog-drain"))
    spec = ClusterSpec(
        name="x",
        limits=Limits(1, 12),
        policies=(NamedPolicy("a", adaptive()), NamedPolicy("b", drain())),
        metrics=("lag", "arrivals", "throughput"),
        engine=True,
        interval=timedelta(minutes=5),
        max_age=timedelta(minutes=5),
        combine=expression("max(a, b)", ("a", "b")),
    )
    other = replace(spec, policies=spec.policies[:1], combine=None)
    return Case(
        PLANTS["k8s"],
        80.0,
        12,
        (Variant(policy="both", spec=spec), Variant(policy="one", spec=other, parameters={"a.headroom": "0.05"})),
    )


def test_spark_and_this_process_simulate_the_same_bit_for_bit(spark: SparkSession) -> None:
    arrivals = arrived(spark, frame(spark, rows(range(0, 2880, 10)))).persist()
    found = known(arrivals)
    rows_there = trials(spark, arrivals, {"orders": case()}, found, (1, 2)).collect()
    days = {row["day"]: row for row in arrivals.collect()}
    arrivals.unpersist()
    assert len(rows_there) == 2 * 2 * 2
    for row in rows_there:
        day = days[row["day"]]
        load_here = day_load("x", day["slots"], day["rates"], 80.0)
        midnight = datetime.combine(row["day"], time(), UTC)
        here = run_trial(case(), case().variants[row["variant"]], load_here, midnight, row["seed"])
        assert row["digest"] == here.digest
        score = here.score
        there = (row["replica_hours"], row["demand_hours"], row["p99_s"], row["worst_s"], row["rescales"])
        assert there == (score.cost, score.demand, score.p99, score.worst, score.rescales)
        assert row["late_hours"] == score.violation * 24
        assert row["static_hours"] == 12 * 24
        assert row["parameters"] == ({"a.headroom": "0.05"} if row["variant"] else {})
    assert len({row["digest"] for row in rows_there}) > 4


def test_work_is_divided_into_more_tasks_than_cores(spark: SparkSession) -> None:
    arrivals = frame(spark, rows(range(0, 1440, 10)))
    ready = arrived(spark, arrivals)
    work = trials(spark, ready, {"orders": case()}, [Known("orders", (FIRST,), 900.0, ())], range(1, 5))
    assert slots(spark) == 2
    plan = work._jdf.queryExecution().executedPlan().toString()
    assert "REPARTITION_BY_NUM" in plan, "Spark must not make one task of rows that are small, and work that is not"
    assert " 8), REPARTITION_BY_NUM" in plan


def test_without_complete_days_nothing_is_simulated(spark: SparkSession) -> None:
    ready = arrived(spark, frame(spark, rows(range(10))))
    assert trials(spark, ready, {"orders": case()}, known(ready), (1,)).collect() == []


# Results


def trial(cluster: str, variant: int, seed: int, day: int, **fields: Any) -> dict[str, Any]:
    usual = {"hours": 24.0, "replica_hours": 100.0, "demand_hours": 80.0, "static_hours": 200.0, "late_hours": 0.24}
    more = {"p50_s": 0.0, "p99_s": 10.0, "worst_s": 20.0, "rescales": 48, "digest": f"{cluster}{variant}{seed}{day}"}
    names = {"cluster": cluster, "variant": variant, "seed": seed, "day": FIRST + timedelta(days=day)}
    return {"policy": f"p{variant}", "parameters": {}, **names, **usual, **more, **fields}


def added(spark: SparkSession, tries: list[dict[str, Any]]) -> DataFrame:
    return results(spark.createDataFrame([tuple(one[name] for name in TRIALS.names) for one in tries], TRIALS))


def test_days_are_added_up(spark: SparkSession) -> None:
    found = added(spark, [trial("x", 0, 1, 0), trial("x", 0, 1, 1, replica_hours=300.0, late_hours=0.72, p99_s=90.0)])
    assert tuple(found.columns) == RESULTS
    (row,) = found.collect()
    assert (row["days"], row["replica_hours"], row["to_static"], row["to_demand"]) == (2, 400.0, 1.0, 2.5)
    assert row["violation"] == pytest.approx(0.02)
    assert (row["p99_s"], row["rescales_per_hour"]) == (90.0, 2.0)
    assert row["j"] == pytest.approx(2.5 + 0.2 + 0.04)
    other = added(spark, [trial("x", 0, 1, 1, replica_hours=300.0), trial("x", 0, 1, 0)]).collect()[0]
    assert other["digest"] == row["digest"], "in whatever order they come"


def test_a_cluster_without_cost_counts_among_the_others(spark: SparkSession) -> None:
    found = added(spark, [trial("x", 0, 1, 0), trial("idle", 0, 1, 0, replica_hours=0.0)])
    (row,) = _fleet_totals(found)
    assert (row["clusters"], row["replica_hours"], row["to_static"], row["to_demand"]) == (2, 100.0, 0.25, 0.625)


def test_a_dominated_variant_is_not_on_the_front(spark: SparkSession) -> None:
    tries = [
        trial("x", 0, 1, 0),
        trial("x", 1, 1, 0, replica_hours=90.0, late_hours=0.5),  # cheaper, but later
        trial("x", 2, 1, 0, replica_hours=100.0, late_hours=0.3),  # as expensive as the first, and later
        trial("x", 3, 1, 0, rescales=0, replica_hours=500.0),  # expensive, and without changes
        trial("x", 4, 1, 0),  # the same as the first
        trial("y", 0, 1, 0, replica_hours=1e6),  # of another cluster
    ]
    front = added(spark, tries).select("cluster", "variant", "pareto")
    wanted = [("x", 0, True), ("x", 1, True), ("x", 2, False), ("x", 3, True), ("x", 4, True), ("y", 0, True)]
    assertDataFrameEqual(front, spark.createDataFrame(wanted, front.schema))


def test_a_variant_is_placed_on_the_front_by_the_means_of_its_seeds(spark: SparkSession) -> None:
    tries = [
        *(trial("x", 0, seed, 0, replica_hours=cost) for seed, cost in ((1, 80.0), (2, 120.0))),
        *(trial("x", 1, seed, 0, replica_hours=cost) for seed, cost in ((1, 90.0), (2, 90.0))),
    ]
    found = {(row["variant"], row["seed"]): row["pareto"] for row in added(spark, tries).collect()}
    assert found == {(0, 1): False, (0, 2): False, (1, 1): True, (1, 2): True}


# The command


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("history") / "dataset"
    place.mkdir()
    (place / "autoscaler-history.json").write_text(json.dumps({"format": "autoscaler-history", "version": 1}))
    seen = [*rows([*range(0, 2880, 10), *range(2880, 3600, 10)]), *rows(range(60), "short")]
    written.write(place, "observations", seen)
    return place


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


GIVEN = ("--metric", "busy=utilization")


def run_backtest(*arguments: object) -> int:
    return cli.main(["backtest", *map(str, arguments)])


@pytest.mark.e2e
@pytest.mark.usefixtures("spark")
def test_it_shows_the_figures_of_policies_and_parameters(
    history: Path, config: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = tmp_path / "found"
    chosen = ("--set", "main.down_headroom=0.3", "--policy", "static", "--policy", "hpa70", "--out", place)
    assert run_backtest(history, config, *GIVEN, *chosen, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    by = {(row["policy"], tuple(row["parameters"].items())): row for row in shown["results"]}
    usual, more = ("configured", ()), ("configured", (("main.down_headroom", "0.3"),))
    assert list(by) == [usual, more, ("static", ()), ("hpa70", ())]
    assert {row["days"] for row in by.values()} == {2}
    assert by["static", ()]["to_static"] == 1.0
    assert by[usual]["to_static"] < 0.9
    assert by[usual]["replica_hours"] < by[more]["replica_hours"]
    assert any(row["pareto"] for row in by.values())
    (left_out,) = shown["left_out"]
    assert left_out["day"] == "2026-03-06"
    session = SparkSession.active()
    assert session.read.parquet(str(place)).count() == 4


@pytest.mark.usefixtures("spark")
def test_missing_data_is_reported(history: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = config.with_name("many.yaml")
    many.write_text(CONFIG + CONFIG.split("clusters:\n")[1].replace("orders", "absent"))
    cases = [
        ((config, "--cluster", "absent"), "has no arrivals of absent; it has those of orders, short"),
        ((config, "--cluster", "short"), "has no whole day of short: short 2026-03-04: nothing recorded for 23 h"),
        ((config, "--from", "2026-04-01"), "has no arrivals of orders in this time; it has some from 2026-03-04 to"),
        ((many, "--cluster", "order"), "'order' is not a cluster of"),
        (
            (config, "--set", "main.headroom=much"),
            "policies.main.headroom: expected a number, not a string",
        ),
        (
            (config, "--set", "main.headroo=1"),
            "policies.main.headroo: unknown key; did you mean 'headroom'",
        ),
        ((config, "--set", "max.x=1"), "max of"),
        ((config, "--policy", "threshold"), "give its parameters like --policy 'threshold={type: ...}'"),
        (
            (config, "--rate-per-worker", "1e-9"),
            "processes 1e-09/s: the two rates have different units (orders; --rate-per-worker)",
        ),
        ((config, "--profiles", "nowhere"), "--profiles nowhere: is not a directory"),
        ((config, "--from", "2026-03-05", "--to", "2026-03-05"), "--to must be after --from"),
    ]
    for arguments, message in cases:
        assert run_backtest(history, *arguments, *GIVEN) == 2
        assert message in capsys.readouterr().err
    assert run_backtest(history, config) == 2
    assert "metric busy of orders: the simulated cluster has" in capsys.readouterr().err
    assert run_backtest(history / "nothing", config, *GIVEN) == 1
    assert "is not a dataset" in capsys.readouterr().err


def test_unreadable_settings_are_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in [
        (("--policy", "hpa71"), "'hpa71' is not a policy; did you mean 'hpa70'"),
        (("--set", "headroom"), "'headroom' is not like main.objective=30s,60s"),
        (("--from", "monday"), "'monday' is not a day like 2026-01-31"),
        (("--slo", "0s"), "expected above 0s"),
    ]:
        assert run_backtest("x", "y", *arguments) == 2
        assert message in capsys.readouterr().err


def test_results_overwrite_only_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "orders.json").touch()
    assert run_backtest("x", "y", "--out", tmp_path / "profiles") == 2
    assert "profiles: exists and is not a table of an earlier run" in capsys.readouterr().err
    assert (tmp_path / "profiles" / "orders.json").exists()


@pytest.mark.e2e
@pytest.mark.usefixtures("spark")
def test_a_profile_makes_the_cluster_and_is_tried_on_later_days(
    history: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end = MIDNIGHT + timedelta(days=1) - MINUTE
    profile = Profile(
        cluster="orders",
        made_at=end,
        begin=MIDNIGHT,
        end=end,
        observations=1000,
        capacity=Curve(rate=150.0, exponent=0.8, rate_error=0.01, exponent_error=0.01),
    )
    (tmp_path / profile_file.file_name("orders")).write_text(profile_file.dump(profile))
    assert run_backtest(history, config, *GIVEN, "--profiles", tmp_path) == 0
    shown = capsys.readouterr().out
    assert "1 day from 2026-03-05 to 2026-03-05; a worker processes 150 records/s (its profile)" in shown
    assert "n^0.8 times" in shown
    late = replace(profile, end=end + timedelta(days=2))
    (tmp_path / profile_file.file_name("orders")).write_text(profile_file.dump(late))
    assert run_backtest(history, config, *GIVEN, "--profiles", tmp_path) == 2
    assert "a profile is tried on days after those it was computed from" in capsys.readouterr().err
