from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from autoscaler.core.model import ClusterSpec, ClusterState, Decision, Limits, Observation, Reading
from autoscaler.core.step import step
from autoscaler.simulation.benchmark import Contender
from autoscaler.simulation.families import FOLDS, PLANT_FAMILIES, draw
from autoscaler.simulation.generalization import (
    FIRST,
    Judged,
    Spread,
    Table,
    ablation,
    after_first_hour,
    by_place,
    compared,
    cost,
    cross_validation,
    first_hour,
    judge,
    losses,
    markdown,
    overview,
    showing_cpu,
    spread,
    summaries,
)
from autoscaler.simulation.loads import Load
from autoscaler.simulation.plant import START
from autoscaler.simulation.scoring import Score

METRICS = ("arrivals", "throughput", "lag", "utilization", "saturation", "cpu")
SCORE = Score(
    hours=2.0,
    cost=20.0,
    demand=16.0,
    optimum=10.0,
    violation=0.0,
    p50=1.0,
    p99=50.0,
    worst=70.0,
    rescales=0,
    restarts=8,
    stopped=0.01,
    under=0.1,
    over=0.2,
)
FIXED = ClusterSpec(
    name="fixed", limits=Limits(5, 5), policies=(), metrics=METRICS, engine=True, interval=timedelta(seconds=15)
)


def _row(
    policy: str = "adaptive",
    j: float = 2.0,
    *,
    family: str = "trend",
    number: int = 0,
    kept: bool = True,
    plant: str = "pods",
    violation: float = 0.0,
    first: float = 3.0,
) -> Judged:
    return Judged(
        policy=policy,
        family=family,
        number=number,
        kept=kept,
        plant_family=plant,
        first=replace(SCORE, cost=10.0 * first),
        # The violation and its weight are part of j.
        rest=replace(SCORE, cost=10.0 * (j - 10 * violation), violation=violation),
    )


# runs


def test_the_first_hour_and_the_rest_make_up_a_load() -> None:
    load = Load("rises", tuple(float(n) for n in range(1000)), rate_per_worker=7.0)
    first, rest = first_hour(load), after_first_hour(load)
    assert first.seconds == 3600
    assert first.rates + rest.rates == load.rates
    assert first.rate_per_worker == rest.rate_per_worker == 7.0


def test_the_first_hour_has_a_separate_score() -> None:
    sample = draw("shifts", 1, 1, 1.5, kept=True)
    found = judge(Contender("fixed", FIXED, step), sample, (2.5, 5.0))
    assert (found.policy, found.family, found.number, found.kept) == ("fixed", "shifts", 1, True)
    assert found.plant_family == sample.plant_family
    assert (found.first.hours, found.rest.hours) == (1.0, 0.5)
    # five workers all the time
    assert (found.first.cost, found.rest.cost) == (5.0, 2.5)
    assert (found.first.to_optimum, found.rest.to_optimum) == (2.0, 0.5)
    assert FIRST == 720


@pytest.mark.parametrize("only_cpu", [False, True])
def test_a_source_with_only_the_cpu_shows_it_as_utilization(only_cpu: bool) -> None:
    seen: list[Observation] = []

    def decide(spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        seen.append(observation)
        return step(spec, state, observation)

    judge(Contender("it", FIXED, decide), replace(draw("trend", 0, 1, 1.1, kept=True), cpu=only_cpu), (None, None))
    both = [(each.metrics["cpu"], each.metrics["utilization"]) for each in seen if len(each.metrics) == 6]
    assert len(both) > 100
    assert all(cpu == utilization for cpu, utilization in both) == only_cpu


def test_if_the_cpu_is_missing_the_shares_derived_from_it_are_missing_too() -> None:
    seen: list[Observation] = []

    def decide(spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        seen.append(observation)
        return step(spec, state, observation)

    metrics = {"utilization": Reading(0.5, START), "lag": Reading(0.0, START)}
    observation = Observation(
        at=START, desired=5, ready=5, metrics=metrics, missing={"cpu": "no answer", "saturation": "other"}
    )
    showing_cpu(decide)(FIXED, ClusterState(), observation)
    assert set(seen[0].metrics) == {"lag"}
    assert seen[0].missing == dict.fromkeys(("utilization", "saturation", "cpu"), "no answer")


# figures


def test_the_worst_tenth_is_the_mean_of_the_greatest_values() -> None:
    values = [float(n) for n in range(1, 21)]
    assert spread(values) == Spread(10.5, 19.5, 20.0)
    assert spread(reversed(values)) == spread(values)
    assert spread(values[:11]) == Spread(6.0, 10.5, 11.0)  # two of eleven
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0)
    assert spread([1.0, 4.0], max) == Spread(4.0, 4.0, 4.0)


def test_without_an_optimum_the_cost_is_relative_to_the_demand() -> None:
    assert cost(SCORE) == 2.0
    assert cost(replace(SCORE, optimum=None)) == 1.25


def test_the_figures_of_a_policy_are_over_all_its_loads() -> None:
    rows = [
        _row(j=1.0, first=1.0),
        _row(j=4.2, violation=0.02, number=1, first=4.0),
        replace(_row(j=4.0, number=2, first=2.0), rest=replace(SCORE, cost=40.0, rescales=10)),
        _row("ds2", j=1.5),
    ]
    found, other = summaries(rows)
    assert (found.policy, found.runs, other.policy, other.runs) == ("adaptive", 3, "ds2", 1)
    assert (found.j.mean, found.j.tenth, found.j.worst) == pytest.approx(((1 + 4.2 + 4.1) / 3, 4.2, 4.2))
    assert found.cost.mean == pytest.approx(16 ** (1 / 3))  # geometric
    assert (found.violation.mean, found.violation.worst) == pytest.approx((0.02 / 3, 0.02))
    assert (found.rescales_per_hour.mean, found.rescales_per_hour.worst) == pytest.approx((5 / 3, 5))
    assert found.first_j == pytest.approx(7 / 3)
    assert found.first_cost == pytest.approx(2.0)
    assert found.first_violation == 0.0


def test_a_policy_is_compared_with_the_best_other_one() -> None:
    rows = [
        *(_row(j=j, number=n) for n, j in enumerate((1.0, 2.0))),
        *(_row("ds2", j, number=n) for n, j in enumerate((1.2, 1.6))),
        *(_row("hpa70", j, number=n) for n, j in enumerate((3.0, 1.5))),
    ]
    (found,) = compared(rows, "adaptive", lambda row: (row.family,)).values()
    assert (found.sample, found.other) == (("trend",), "ds2")
    assert (found.j, found.other_j) == pytest.approx((1.5, 1.4))
    assert found.by == pytest.approx(0.1)


def test_losses_beyond_the_margin_are_listed_greatest_first() -> None:
    pairs = {0: (2.0, 1.9), 1: (2.0, 1.94), 2: (2.0, 1.96), 3: (1.0, 1.5), 4: (3.0, 1.0)}
    rows = [
        row
        for number, (ours, theirs) in pairs.items()
        for row in (_row(j=ours, number=number), _row("ds2", theirs, number=number))
    ]
    assert [one.sample for one in losses(rows, "adaptive")] == [
        ("trend", "pods", "4"),
        ("trend", "pods", "0"),
        ("trend", "pods", "1"),
    ]


# tables


def test_the_overview_has_mean_worst_tenth_and_worst() -> None:
    table = overview([_row(j=1.0), _row(j=2.5, violation=0.015, number=1), _row("ds2", 1.5)])
    assert table.rows[0] == (
        "adaptive",
        "1.75 2.50 2.50",
        "1.53 2.35 2.35",
        "0.75 1.50 1.50",
        "0.0 0.0 0.0",
        "3.00",
        "3.00",
        "0.00",
    )
    assert [len(row) for row in table.rows] == [len(table.head)] * 2


def test_combinations_of_family_and_kind_of_plant_are_listed_in_order() -> None:
    rows = [
        _row(j=2.0),
        _row("ds2", 1.5),
        _row(j=3.0, family="recorded", plant="machines"),
        _row("ds2", 4.0, family="recorded", plant="machines"),
        _row(j=1.0, family="season", plant="machines"),
        _row("ds2", 1.2, family="season", plant="machines"),
    ]
    table = by_place(rows, "adaptive")
    assert table.head == ("family", *PLANT_FAMILIES, "all")
    assert table.rows == (
        ("season", "", "1.00 (1.20)", "", "", "1.00 (1.20)"),
        ("trend", "2.00 (1.50)", "", "", "", "2.00 (1.50)"),
        ("recorded", "", "3.00 (4.00)", "", "", "3.00 (4.00)"),
        ("all", "2.00 (1.50)", "2.00 (2.60)", "", "", "2.00 (2.23)"),
    )


def test_each_split_compares_development_families_with_held_out_ones() -> None:
    rows = [
        row
        for number, family in enumerate(name for kept in FOLDS for name in kept)
        for row in (
            _row(j=1.0 + number, family=family, kept=False),
            _row(j=11.0 + number, family=family, violation=0.01 * number),
            _row("ds2", 50.0, family=family),
        )
    ]
    table = cross_validation(rows, "adaptive")
    assert len(table.rows) == len(FOLDS)
    # held-out families 0 and 1, developed on 2 to 7
    assert table.rows[0] == (f"1: {', '.join(FOLDS[0])}", "5.50", "11.50", "0.00", "0.50")
    assert table.rows[3] == (f"4: {', '.join(FOLDS[3])}", "3.50", "17.50", "0.00", "6.50")


def test_an_ablation_shows_the_change_of_j() -> None:
    rows = [_row("no slack", 2.25), _row(j=2.0), _row("no guards", 1.875), _row("ds2", 1.0)]
    table = ablation(rows, "adaptive", {"no slack": None, "no guards": None})
    assert [row[:2] for row in table.rows] == [("adaptive", ""), ("no slack", "+0.250"), ("no guards", "-0.125")]
    assert [len(row) for row in table.rows] == [len(table.head)] * 3


def test_the_change_of_j_compares_the_same_samples_and_has_a_standard_error() -> None:
    # Differences of 0, 0.25 and 0.5: their standard deviation is 0.25.
    rows = [_row(j=2.0 + number, number=number) for number in range(3)]
    rows += [_row("no slack", 2.0 + 1.25 * number, number=number) for number in reversed(range(3))]
    table = ablation(rows, "adaptive", {"no slack": None})
    assert table.rows[1][1] == "+0.250 +- 0.144"


def test_a_table_for_a_page() -> None:
    assert markdown(Table("Of it", ("a", "b"), (("1", "2"), ("3", "")))) == (
        "Of it:\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 |  |\n"
    )
