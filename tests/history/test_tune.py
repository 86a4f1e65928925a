"""The choice of parameters, whether they are recommended, and the resulting patch."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from autoscaler import cli
from autoscaler.cli import configuration
from autoscaler.cli.trials import apply_settings, combinations, defaults, path_of
from autoscaler.cli.tune import HEADROOMS, Tuned, _grid, patch, recommendation_for, split
from autoscaler.history.backtest_job import Known
from autoscaler.history.tune_search import Objective, best, means, savings
from tests.history import written
from tests.history.test_backtest import CONFIG as CONFIGURED
from tests.history.test_backtest import rows

FIRST = date(2026, 3, 4)
DAYS = tuple(FIRST + timedelta(days=number) for number in range(9))
OBJECTIVE = Objective(0.005, 4.0)

CONFIG = """\
# Mine.
sources: {k: {type: http, url: 'http://127.0.0.1:9'}}
x-policy: &policy {type: adaptive, objective: 60s}
clusters:
  orders:
    target: {type: 'null'}
    max: 12
    metrics: &metrics
      lag: {source: k, path: a}
      arrivals: {source: k, path: b}
      throughput: {source: k, path: c}
    policies: {main: *policy}
  '2': {target: {type: 'null'}, max: 9, metrics: *metrics, policies: {main: *policy}}
"""


def row(variant: int, cost: float, violation: float = 0.001, rescales: float = 2.0, **more: Any) -> dict[str, Any]:
    cost, rescales = float(cost), float(rescales)
    usual = {"replica_hours": cost, "to_static": cost / 200, "violation": violation, "rescales_per_hour": rescales}
    return {
        "variant": variant,
        "parameters": {"main.headroom": f"0.{variant}"},
        **usual,
        "p99_s": 1.0,
        "days": 6,
        **more,
    }


# Choosing


def choose(
    spark: SparkSession, seen: list[tuple[str, dict[str, Any]]], objective: Objective = OBJECTIVE
) -> dict[str, Any]:
    schema = (
        "cluster string, variant int, parameters map<string,string>, replica_hours double, to_static double, "
        "violation double, rescales_per_hour double, p99_s double, days double"
    )
    names = ("variant", "parameters", "replica_hours", "to_static", "violation", "rescales_per_hour", "p99_s")
    made = [(cluster, *(one[name] for name in names), float(one["days"])) for cluster, one in seen]
    found = best(means(spark.createDataFrame(made, schema)), objective).collect()
    return {one["cluster"]: one.asDict(recursive=True) for one in found}


def test_the_cheapest_variant_that_meets_the_objective_is_chosen(spark: SparkSession) -> None:
    found = choose(
        spark,
        [
            *(("x", one) for one in (row(0, 100), row(1, 80, violation=0.006), row(2, 85, rescales=5), row(3, 90))),
            *(("y", one) for one in (row(0, 100, violation=0.02), row(1, 120, violation=0.01))),
            *(("z", one) for one in (row(1, 100), row(0, 100))),
            *(("s", one) for one in (row(0, 100), row(1, 80, 0.0), row(1, 90, 0.012))),
        ],
    )
    assert found["x"]["chosen"]["variant"] == 3
    assert found["x"]["configured"]["variant"] == 0
    assert found["y"]["chosen"] is None
    assert found["y"]["nearest"]["variant"] == 1
    assert found["z"]["chosen"]["variant"] == 0, "of two that cost the same, what is configured"
    assert found["s"]["chosen"]["variant"] == 0, "by the mean of its seeds it breaks the objective"


def test_without_a_limit_any_number_of_rescales_is_allowed(spark: SparkSession) -> None:
    found = choose(spark, [("x", row(0, 100)), ("x", row(1, 80, rescales=50))], Objective(0.005))
    assert found["x"]["chosen"]["variant"] == 1


def test_the_last_third_of_the_days_is_held_back() -> None:
    train, held = split(Known("x", DAYS, 1.0, ()))
    assert (train.days, held.days) == (DAYS[:6], DAYS[6:])
    assert [len(half.days) for half in split(Known("x", DAYS[:2], 1.0, ()))] == [1, 1]
    assert split(Known("x", DAYS[:1], 1.0, ()))[0].days == ()


# Judging


def then(variant: int, cost: float, saved: float, noise: float = 0.004, **more: Any) -> dict[str, Any]:
    return {**row(variant, cost, **more), "saved": saved, "noise": noise}


def judged(
    chosen: Mapping[str, Any] | None,
    *others: Mapping[str, Any],
    default: Mapping[str, Any] | None = None,
    **before: Any,
) -> Tuned:
    means_of = {
        "configured": row(0, 100),
        "chosen": chosen,
        "default": default,
        "nearest": row(3, 110, violation=0.01),
    }
    figures = {one["variant"]: one for one in (then(0, 50, 0.0, 0.0, **before), *others)}
    return recommendation_for("orders", DAYS[:6], DAYS[6:], means_of, figures, OBJECTIVE)


def test_parameters_that_meet_the_objective_on_new_days_and_cost_clearly_less_are_recommended() -> None:
    found = judged(row(1, 80), then(1, 45, 0.1, violation=0.003))
    assert found.recommended
    assert found.why == (
        "on the validation days it costs 10.0% less (standard error 0.4%) and meets the objective (too late for 0.30% "
        "of the time, 2.0 rescales/h), with 0.200% of the time more too late"
    )


def test_parameters_that_miss_the_objective_on_unseen_days_are_refused() -> None:
    for after in (then(1, 45, 0.1, violation=0.0051), then(1, 45, 0.1, rescales=4.1)):
        found = judged(row(1, 80), after)
        assert not found.recommended
        assert found.why.startswith("not recommended: on the validation days it misses the objective (too late for 0.")


@pytest.mark.parametrize(("saved", "says"), [(-0.02, "2.0% more"), (0.0, "0.0% less"), (0.019, "1.9% less")])
def test_savings_below_a_fiftieth_are_refused(saved: float, says: str) -> None:
    found = judged(row(1, 80), then(1, 50 * (1 - saved), saved))
    assert not found.recommended
    assert found.why == (
        f"not recommended: on the validation days it costs {says} than the configured parameters, with 0.000% of the "
        "time more too late; expected at least 2% less"
    )


def test_possible_chance_results_are_refused() -> None:
    found = judged(row(1, 80), then(1, 45, 0.1, noise=0.05))
    assert not found.recommended
    assert found.why.endswith("10.0% less than the configured parameters, which may be chance (standard error 5.0%)")


def test_a_cluster_without_cost_is_evaluated_too() -> None:
    assert not judged(row(1, 80), then(1, 0, 0.0, 0.0)).recommended
    assert not judged(row(1, 80), then(1, 1, -1.0, 0.0)).recommended


def test_a_higher_cost_is_recommended_if_the_configuration_misses_the_objective() -> None:
    found = judged(row(1, 80), then(1, 51, -0.02), violation=0.02)
    assert found.recommended
    assert "it costs 2.0% more" in found.why
    assert "1.900% of the time less too late" in found.why
    assert "the configured parameters miss the objective there (too late for 2.00%" in found.why


def test_if_the_default_is_as_good_it_is_recommended_or_nothing() -> None:
    default = row(2, 82)
    better = judged(row(1, 80), then(1, 40, 0.2), then(2, 45, 0.1), default=default)
    assert better.recommended
    assert better.chosen == row(1, 80)
    alike = judged(row(1, 80), then(1, 44.5, 0.11), then(2, 45, 0.1), default=default)
    assert alike.recommended
    assert alike.chosen == default
    assert alike.chosen_then == then(2, 45, 0.1)
    refused = judged(row(1, 80), then(1, 49.5, 0.01), then(2, 49.6, 0.008), default=default)
    assert not refused.recommended
    late = judged(row(1, 80), then(1, 45, 0.1), then(2, 44, 0.12, violation=0.01), default=default)
    assert late.chosen == row(1, 80)


def test_if_nothing_meets_the_objective_the_nearest_is_reported() -> None:
    found = judged(None)
    assert not found.recommended
    assert found.why.startswith("nothing that was tried meets the objective: too late for 1.00% of the time, 2.0 resc")
    assert found.why.endswith("at best, with main.headroom=0.3")


def test_the_configured_values_may_be_best_and_their_figures_on_new_days_are_known() -> None:
    found = judged(row(0, 100))
    assert not found.recommended
    assert found.why == "the configured parameters (the defaults) are the cheapest that meet the objective"
    assert found.configured_then == then(0, 50, 0.0, 0.0)
    assert "the defaults" not in judged(row(0, 100), then(2, 60, -0.2), default=row(2, 120)).why
    missed = judged(row(0, 100), violation=0.02).why
    assert missed.endswith(", but on the validation days they miss it (too late for 2.00% of the time, 2.0 rescales/h)")


def test_savings_are_of_pairs_with_the_same_day_and_seed(spark: SparkSession) -> None:
    day = {number: FIRST + timedelta(days=number) for number in (1, 2)}
    paid = {(1, 1): 100.0, (1, 2): 110.0, (2, 1): 300.0, (2, 2): 310.0}
    tries = [("x", 0, day[number], seed, cost) for (number, seed), cost in paid.items()]
    tries += [("x", 1, day[number], seed, 0.9 * cost) for (number, seed), cost in paid.items()]
    tries += [("x", 2, day[number], seed, cost - (30.0 if seed == 1 else 0.0)) for (number, seed), cost in paid.items()]
    tries += [("free", 0, day[1], 1, 0.0), ("free", 1, day[1], 1, 2.0)]
    schema = "cluster string, variant int, day date, seed int, replica_hours double"
    found = {(one.cluster, one.variant): one for one in savings(spark.createDataFrame(tries, schema)).collect()}
    assert (found["x", 0].saved, found["x", 0].noise) == (0, 0)
    assert found["x", 1].saved == pytest.approx(0.1)
    # 21 on one day and 61 on the other, of 820: the days differ by more than the seeds.
    assert found["x", 1].noise == pytest.approx((2 * 800) ** 0.5 / 820)
    # 30 or nothing on either day: the seeds differ by more than the days.
    assert found["x", 2].noise == pytest.approx((4 * 450) ** 0.5 / 820)
    assert found["free", 1].saved == -1


# The patch


def merged(under: Any, over: Any) -> Any:
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    return {**under, **{key: merged(under.get(key), value) for key, value in over.items()}}


def test_a_configuration_with_the_patch_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    options = argparse.Namespace(dataset="d", config=path)
    chosen = {**row(1, 80), "parameters": {"main.objective": "45s", "main.headroom": "0.1", "down.window": "2m"}}
    good = judged(chosen, then(1, 45, 0.1))
    text = patch(options, {"orders": "orders"}, {"orders": 60.0}, [good, judged(None)], OBJECTIVE)
    assert text is not None
    assert yaml.safe_load(text) == {
        "clusters": {"orders": {"policies": {"main": {"objective": "45s", "headroom": 0.1}}, "down": {"window": "2m"}}}
    }
    assert "# Objective: at most 0.5 % of the time with a record too old and at most 4 rescales an hour." in text
    assert "# Too old is above 60 s. Chosen on 6 days from 2026-03-04 to 2026-03-09,\n" in text
    assert "costs 10.0% less" in text
    path.write_text(yaml.safe_dump(merged(yaml.safe_load(CONFIG), yaml.safe_load(text))))
    assert cli.main(["check", str(path)]) == 0
    assert "is valid" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("in_file", "set_to", "in_patch"),
    [
        ("reserve: 0.3", "headroom", "reserve"),
        ("headroom: 0.3", "reserve", "headroom"),
        ("objective: 60s", "reserve", "headroom"),
    ],
)
def test_the_patch_uses_the_name_of_the_parameter_in_the_file(
    tmp_path: Path, in_file: str, set_to: str, in_patch: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("objective: 60s", in_file))
    options = argparse.Namespace(dataset="d", config=path)
    good = judged({**row(1, 80), "parameters": {f"main.{set_to}": "0.1"}}, then(1, 45, 0.1))
    text = patch(options, {"orders": "orders"}, {"orders": 60.0}, [good], OBJECTIVE)
    assert text is not None
    assert yaml.safe_load(text)["clusters"] == {"orders": {"policies": {"main": {in_patch: 0.1}}}}
    path.write_text(yaml.safe_dump(merged(yaml.safe_load(path.read_text()), yaml.safe_load(text))))
    assert configuration.load(path).clusters["orders"].spec.policies[0].policy.headroom == 0.1  # type: ignore[attr-defined]


def test_without_settings_a_headroom_under_its_former_name_is_tried_too(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("objective: 60s", "objective: 60s, reserve: 0.06"))
    read = configuration.load(path)
    options = argparse.Namespace(config=path, set=[])
    configured, default, *grid = _grid(options, read.clusters["orders"].spec)
    assert (configured, default) == ({}, {"main.headroom": "0.2"})
    assert {changes["main.headroom"] for changes in grid} == set(HEADROOMS)
    for changes in grid:
        policy = apply_settings(options, read, {"orders": changes}).clusters["orders"].spec.policies[0].policy
        assert policy.headroom == float(changes["main.headroom"])  # type: ignore[attr-defined]


def test_a_name_that_could_be_read_as_a_number_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    options = argparse.Namespace(dataset="d", config=path)
    good = judged(row(1, 80), then(1, 45, 0.1))
    text = patch(options, {"orders": "2"}, {"orders": 60.0}, [good], OBJECTIVE)
    assert text is not None
    assert yaml.safe_load(text)["clusters"] == {"2": {"policies": {"main": {"headroom": 0.1}}}}


def test_without_a_recommendation_there_is_no_patch() -> None:
    assert patch(argparse.Namespace(), {}, {}, [judged(None)], OBJECTIVE) is None


# Settings


def test_a_key_belongs_to_a_policy_or_otherwise_to_the_cluster() -> None:
    names = ("main", "main.b")
    assert path_of("main.objective", "x", names) == ("clusters", "x", "policies", "main", "objective")
    assert path_of("main.b.objective", "x", names) == ("clusters", "x", "policies", "main.b", "objective")
    assert path_of("down.window", "x", names) == ("clusters", "x", "down", "window")
    assert path_of("max", "x", names) == ("clusters", "x", "max")


@pytest.mark.parametrize(("written", "set_to"), [("reserve", "headroom"), ("headroom", "reserve")])
def test_a_setting_replaces_a_parameter_under_its_former_name_too(tmp_path: Path, written: str, set_to: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("objective: 60s", f"{written}: 0.06"))
    read = configuration.load(path)
    found = apply_settings(argparse.Namespace(config=path), read, {"orders": {f"main.{set_to}": "0.1"}})
    headrooms = {name: cluster.spec.policies[0].policy.headroom for name, cluster in found.clusters.items()}  # type: ignore[attr-defined]
    assert headrooms == {"orders": 0.1, "2": 0.06}


def test_defaults_cover_the_changed_parameters_except_the_objective(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("objective: 60s", "objective: 90s, reserve: 0.06, calm: 5m, profile: p, waiting: 3"))
    policies = configuration.load(path).clusters["orders"].spec.policies
    keys = ("main.objective", "main.reserve", "main.scale_down_window", "main.profile", "max", "other.waiting")
    assert defaults(policies, keys) == {
        "main.headroom": "0.2",
        "main.scale_down_window": "3m",
        "main.profile": "null",
    }


def test_of_two_names_of_a_parameter_the_later_setting_counts(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    changes = {"main.reserve": "0.1", "main.headroom": "0.2"}
    found = apply_settings(argparse.Namespace(config=path), configuration.load(path), {"orders": changes})
    assert found.clusters["orders"].spec.policies[0].policy.headroom == 0.2  # type: ignore[attr-defined]


def test_every_combination_is_tried_and_the_configured_one_first() -> None:
    found = combinations([("a", ("1", "2")), ("b", ("x", "y"))])
    assert found[0] == {}
    assert found[1:] == [{"a": a, "b": b} for a in "12" for b in "xy"]


def test_unreadable_settings_are_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in [
        (("--violation", "half"), "'half' is not a share like 0.5% or 0.005"),
        (("--violation", "101%"), "'101%' is not a share"),
        (("--rescales", "-1"), "'-1' is not a number, 0 or more"),
        (("--seeds", "2"), "--seeds 2: expected at least 3"),
    ]:
        assert cli.main(["tune", "x", "y", *arguments]) == 2
        assert message in capsys.readouterr().err


# All of it


@pytest.mark.e2e
@pytest.mark.usefixtures("spark")
def test_variants_are_tried_chosen_evaluated_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "dataset"
    place.mkdir()
    (place / "autoscaler-history.json").write_text('{"format": "autoscaler-history", "version": 1}')
    written.write(place, "observations", rows(range(0, 3 * 1440, 10)))
    config = tmp_path / "config.yaml"
    # So much headroom that less of it must be better.
    config.write_text(CONFIGURED.replace("type: adaptive", "type: adaptive, headroom: 0.5, down_headroom: 0.4"))
    given = ("--metric", "busy=utilization", "--set", "main.headroom=0.2", "--set", "main.down_headroom=0.05")
    found = tmp_path / "patch.yaml"
    arguments = (place, config, *given, "--violation", "5%", "--out", found, "--json")
    assert cli.main(["tune", *map(str, arguments)]) == 0
    report = json.loads(capsys.readouterr().out)
    (one,) = report["clusters"]
    assert one["recommended"]
    assert one["trained"] == ["2026-03-04", "2026-03-05"]
    assert one["validated"] == ["2026-03-06", "2026-03-06"]
    assert one["chosen"]["replica_hours"] < one["configured"]["replica_hours"]
    assert one["chosen_then"]["replica_hours"] < one["configured_then"]["replica_hours"]
    assert report["patch"] == found.read_text()
    changed = {"policies": {"main": {"headroom": 0.2, "down_headroom": 0.05}}}
    assert yaml.safe_load(found.read_text()) == {"clusters": {"orders": changed}}
    better = tmp_path / "better.yaml"
    better.write_text(yaml.safe_dump(merged(yaml.safe_load(config.read_text()), yaml.safe_load(found.read_text()))))
    assert cli.main(["check", str(better)]) == 0
    capsys.readouterr()
    # The recommendation is now configured: nothing is better.
    assert cli.main(["tune", str(place), str(better), *given, "--violation", "5%"]) == 0
    assert (
        "orders: the configured parameters (the defaults) are the cheapest that meet the objective."
        in capsys.readouterr().out
    )
