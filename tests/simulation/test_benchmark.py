from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from autoscaler.core.model import (
    ClusterSpec,
    ClusterState,
    Decision,
    Limits,
    NamedPolicy,
    Observation,
    Policy,
    Reading,
    Reason,
    Recommendation,
    View,
)
from autoscaler.core.step import step
from autoscaler.simulation.baselines import (
    ABLATIONS,
    BASELINES,
    FORECAST,
    FORECAST_MINUTES,
    BacklogCpu,
    Baseline,
    with_flat_forecast,
    with_forecast,
    without_guards,
)
from autoscaler.simulation.benchmark import (
    Contender,
    Row,
    cells,
    compare,
    digest,
    gate_figures,
    geometric,
    markdown,
    means,
    outperformed,
    regressions,
    rows_json,
)
from autoscaler.simulation.loads import Load
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import PLANTS, START
from autoscaler.simulation.scoring import Score

K8S = PLANTS["k8s"]
METRICS = ("arrivals", "throughput", "lag", "cpu")
SCORE = Score(
    hours=2.0,
    cost=20.0,
    demand=16.0,
    optimum=10.0,
    violation=0.02,
    p50=1.0,
    p99=50.0,
    worst=70.0,
    rescales=8,
    restarts=8,
    stopped=0.01,
    under=0.1,
    over=0.2,
)


def _spec(policy: Policy, limits: Limits = Limits(1, 24)) -> ClusterSpec:  # noqa: B008 - frozen
    return ClusterSpec(
        name="it",
        limits=limits,
        policies=(NamedPolicy("one", policy),),
        metrics=METRICS,
        engine=True,
        lookback=timedelta(minutes=10),
    )


def _row(policy: str = "a", scenario: str = "s", plant: str = "k8s", seed: int = 1, **score: float | None) -> Row:
    return Row(plant, scenario, policy, seed, replace(SCORE, **score))  # type: ignore[arg-type]


# means


def test_the_mean_cost_is_geometric_and_the_others_are_arithmetic() -> None:
    rows = [_row(cost=10.0, violation=0.0), _row(scenario="t", cost=40.0, violation=0.02, rescales=2)]
    (found,) = means(rows)
    assert found.cost == pytest.approx(2.0)  # of 1 and 4
    assert found.demand == pytest.approx(20 / 16)
    assert (found.violation, found.rescales_per_hour) == pytest.approx((0.01, 2.5))
    assert found.j == pytest.approx(((1 + 0.08) + (4 + 0.2 + 0.02)) / 2)
    assert (found.low, found.of) == (1, 2)
    assert found.converged is None
    assert means([_row(converged=100.0), _row(converged=None), _row(converged=300.0)])[0].converged == 200.0


def test_without_an_optimum_there_is_no_cost_ratio() -> None:
    (found,) = means([_row(), _row(scenario="t", optimum=None)])
    assert found.cost is None
    assert cells(found)[0] == "-"
    assert "| `a` | - | 2.00% | 4.0 |" in markdown([_row(optimum=None)])


def test_violations_count_as_low_if_the_mean_of_all_seeds_is_low() -> None:
    seeds = [_row(violation=0.0), _row(seed=2, violation=0.015)]
    assert (means(seeds)[0].low, means(seeds)[0].of) == (1, 1)
    assert [one.scenario for one in means([*seeds, _row(scenario="t")], each=True)] == ["s", "t"]


def test_rows_and_cells_are_in_order() -> None:
    rows = [_row("a"), _row("b"), _row("a", plant="ec2"), _row("b", plant="ec2", optimum=5.0)]
    assert [(one.plant, one.policy) for one in means(rows)] == [("k8s", "a"), ("k8s", "b"), ("ec2", "a"), ("ec2", "b")]
    assert cells(means(rows)[0]) == (
        "2.000",
        "2.00%",
        "4.00",
        "2.280",
        "50",
        "70",
        "1.00%",
        "0.100",
        "0.20",
        "1.250",
    )
    assert markdown(rows).splitlines() == [
        "`k8s`:",
        "",
        "| policy | cost | too late | rescales/h | J |",
        "|---|---|---|---|---|",
        "| `a` | 2.00 | 2.00% | 4.0 | 2.28 |",
        "| `b` | 2.00 | 2.00% | 4.0 | 2.28 |",
        "",
        "`ec2`:",
        "",
        "| policy | cost | too late | rescales/h | J |",
        "|---|---|---|---|---|",
        "| `a` | 2.00 | 2.00% | 4.0 | 2.28 |",
        "| `b` | 4.00 | 2.00% | 4.0 | 4.28 |",
        "",
        "All of them:",
        "",
        "| policy | J |",
        "|---|---|",
        "| `a` | 2.28 |",
        "| `b` | 3.28 |",
    ]
    assert markdown(rows[:2]).startswith("| policy | cost | too late | rescales/h | J |\n")


def test_the_digest_depends_on_every_digit_but_not_on_the_order() -> None:
    rows = [_row("a"), _row("b")]
    assert digest(rows) == digest(rows[::-1])
    assert digest(rows) != digest([_row("a"), _row("b", cost=math.nextafter(20.0, 21.0))])
    assert rows_json(rows)[0]["policy"] == "a"


def test_geometric_means_do_not_depend_on_the_order() -> None:
    assert geometric([1.0, 2.0, 4.0]) == pytest.approx(2.0)


def test_scenarios_in_which_another_policy_is_better_are_reported() -> None:
    rows = [
        _row("a", "s", cost=20.0),
        _row("b", "s", cost=15.0),
        _row("c", "s", cost=12.0),
        _row("a", "t", cost=10.0),
        _row("b", "t", cost=15.0),
        _row("b", "u"),
        _row("a", "v"),
    ]
    assert [(scenario, round(j, 9), rule, round(best, 9)) for scenario, j, rule, best in outperformed(rows, "a")] == [
        ("s", 2.28, "c", 1.48)
    ]
    assert [rule for _, _, rule, _ in outperformed(rows, "a", ["c"])] == ["b"]


# regressions


def test_equal_results_or_differences_below_three_percent_are_no_regression() -> None:
    rows = [_row("a"), _row("b"), _row("a", plant="ec2")]
    before = gate_figures(rows, "a")
    assert regressions(before, rows) == []
    assert regressions(before, [_row("a", cost=20.5, violation=0.0209), _row("a", plant="ec2", rescales=8)]) == []
    # the other policies do not count
    assert regressions(before, [_row("a"), _row("b", cost=90.0), _row("a", plant="ec2")]) == []


@pytest.mark.parametrize(
    ("row", "name"),
    [(_row(cost=20.7), "cost"), (_row(violation=0.0212), "violation"), (_row(rescales=9), "rescales_per_hour")],
)
def test_a_worse_figure_is_named(row: Row, name: str) -> None:
    found = regressions(gate_figures([_row()], "a"), [row])
    assert len(found) == 1
    assert found[0].startswith(f"k8s: {name} is ")


def test_a_tiny_figure_may_grow_slightly() -> None:
    before = gate_figures([_row(violation=0.0, rescales=0)], "a")
    assert regressions(before, [_row(violation=0.0005, rescales=0)]) == []
    assert regressions(before, [_row(violation=0.0006, rescales=0)]) != []
    assert regressions(before, [_row(violation=0.0, rescales=1)]) != []


def test_a_missing_ratio_is_a_regression() -> None:
    assert regressions(gate_figures([_row()], "a"), [_row(optimum=None)]) != []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([_row(scenario="t")], "scenarios: recorded of \\['s'\\], now \\['t'\\]: record it again"),
        ([_row(seed=2)], "seeds: recorded of"),
        ([_row(plant="ec2")], "plants: recorded of \\['k8s'\\], now \\['ec2'\\]: record it again"),
    ],
)
def test_a_record_of_other_scenarios_is_refused(rows: Sequence[Row], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        regressions(gate_figures([_row()], "a"), rows)


def test_a_record_without_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="plants: recorded of None"):
        regressions({**gate_figures([_row()], "a"), "plants": None}, [_row()])
    with pytest.raises(ValueError, match=r"plants.k8s.cost: is None, expected a number"):
        regressions(gate_figures([_row(optimum=None)], "a"), [_row()])


# runs


def test_a_run_has_the_names_of_its_parts() -> None:
    one = Contender("static", replace(_spec(_Wants(4)), policies=(), limits=Limits(4, 4)), step)
    row = compare(one, "k8s", K8S, Load("jump", (10.0,) * 30), 1, None)
    assert (row.plant, row.scenario, row.policy, row.seed) == ("k8s", "jump", "static", 1)


class _Wants:
    """A policy that always requests the same size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def evaluate(self, _view: View) -> Recommendation:
        return Recommendation(self.size, Reason.ABOVE)


class _Swings:
    """Requests more, then fewer, and so on."""

    def evaluate(self, view: View) -> Recommendation:
        return Recommendation(30 if view.current < 24 else 0, Reason.ABOVE)


def test_unguarded_rules_get_the_requested_size_at_once_within_the_limits() -> None:
    load = Load("flat", (100.0,) * 60)
    swinging = run(_spec(_Swings()), K8S, load, 1, decide=without_guards).track
    assert [size for _, size in swinging.requests] == [24, 1] * 10
    assert [at for at, _ in swinging.requests][:3] == [3, 6, 9]
    # with guards it is one rescale, as the second would follow while the first is in flight
    assert len(run(_spec(_Swings()), K8S, load, 1).track.requests) == 1


def test_unguarded_rules_see_their_past_and_their_rescales() -> None:
    seen: list[View] = []

    class Looks:
        def evaluate(self, view: View) -> Recommendation:
            seen.append(view)
            return Recommendation(5, Reason.ABOVE)

        def learn(self, view: View) -> dict[str, float]:
            return {"looks": view.memory.get("looks", 0.0) + 1}

    run(_spec(Looks()), K8S, Load("flat", (100.0,) * 60), 1, size=2, decide=without_guards)
    assert [len(view.past) for view in seen[:3]] == [1, 2, 3]
    assert seen[-1].memory == {"looks": 20.0}
    assert seen[0].rescale is None
    assert seen[1].rescale is not None
    assert seen[1].rescale.to == 5


def test_policies_of_others_run_without_guards_unless_requested() -> None:
    load = Load("flat", (1.0,))
    assert BASELINES["hpa70"].decide(load) is without_guards
    assert BASELINES["hpa70"].decide(load, guarded=True) is step
    assert BASELINES["adaptive"].decide(load) is step
    assert {name for name, baseline in BASELINES.items() if not baseline.bare} == {
        "adaptive",
        "adaptive-oracle",
        "backlog-drain",
    }
    assert len(BASELINES) == 11


def test_an_oracle_sees_the_actual_next_minutes() -> None:
    rates = tuple(float(n) for n in range(12 * 30))
    shown: list[Observation] = []

    def decide(spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        shown.append(observation)
        return step(spec, state, observation)

    foreseen = with_forecast(decide, Load("rises", rates))
    observation = Observation(
        at=START + timedelta(seconds=60), desired=1, ready=1, metrics={"lag": Reading(0.0, START)}
    )
    foreseen(_spec(_Wants(1)), ClusterState(), observation)
    future = shown[0].metrics[FORECAST].value
    assert isinstance(future, tuple)
    assert len(future) == FORECAST_MINUTES
    assert future[:2] == (17.5, 29.5)  # steps 12 to 23, and 24 to 35
    assert "lag" in shown[0].metrics
    # at the end the last value is repeated
    late = replace(observation, at=START + timedelta(seconds=5 * (12 * 30 - 6)))
    foreseen(_spec(_Wants(1)), ClusterState(), late)
    assert shown[1].metrics[FORECAST].value == (356.5,) + (359.0,) * 19
    assert Baseline("", oracle=True).decide(Load("rises", rates)) is not without_guards


def test_a_flat_forecast_says_that_arrivals_do_not_change() -> None:
    shown: list[Observation] = []

    def decide(spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        shown.append(observation)
        return step(spec, state, observation)

    flat = with_flat_forecast(decide)
    arrivals = Reading(7.0, START)
    observation = Observation(at=START, desired=1, ready=1, metrics={"arrivals": arrivals})
    flat(_spec(_Wants(1)), ClusterState(), observation)
    flat(_spec(_Wants(1)), ClusterState(), replace(observation, metrics={}))
    assert [dict(each.metrics) for each in shown] == [{"arrivals": arrivals, FORECAST: arrivals}, {}]
    load = Load("flat", (1.0,))
    assert Baseline("", flat=True).decide(load) is not Baseline("").decide(load) is without_guards


def test_each_ablation_disables_another_rule() -> None:
    default = BASELINES["adaptive"]
    assert default not in ABLATIONS.values()
    assert len(set(ABLATIONS.values())) == len(ABLATIONS)
    assert not set(ABLATIONS) & set(BASELINES)
    assert [name for name, one in ABLATIONS.items() if one.bare] == ["no guards"]
    assert not any(one.oracle for one in ABLATIONS.values())


# Dataflow's rule


def _seen(*, lag: float = 0.0, cpu: float = 0.5, throughput: float = 100.0, arrivals: float = 100.0, **of: int) -> View:
    """A view after three minutes without a change."""
    size = of.get("size", 4)
    numbers = {"arrivals": arrivals, "throughput": throughput, "lag": lag, "cpu": cpu}
    past = []
    for back in range(of.get("polls", 13) - 1, -1, -1):
        at = START - timedelta(seconds=15 * back)
        had = of.get("before", size) if back == 3 else size
        past.append(
            Observation(
                at=at, desired=had, ready=had, metrics={name: Reading(number, at) for name, number in numbers.items()}
            )
        )
    policy = BacklogCpu()
    return View(
        now=START,
        current=size,
        ready=size,
        metrics=past[-1].metrics,
        past=tuple(past),
        limits=Limits(1, 24),
        learned=ClusterState().learned,
        spec=_spec(policy),
    )


@pytest.mark.parametrize(
    ("seen", "size"),
    [
        # 16 s of backlog: 4 x (100 + 1600 / 150) / 100 = 4.43
        (_seen(lag=1600.0, cpu=0.9), 5),
        (_seen(lag=15000.0, cpu=0.9), 8),
        (_seen(lag=1e9, cpu=0.9), 24),
        # 14 s are not a backlog yet, and with idle workers more would not help
        (_seen(lag=1400.0, cpu=0.9), 4),
        (_seen(lag=1600.0, cpu=0.19), 4),
        # no backlog and 30 % CPU: 4 x 0.3 / 0.75 = 1.6
        (_seen(cpu=0.3), 2),
        (_seen(cpu=0.0), 1),
        (_seen(cpu=0.74), 4),
        (_seen(cpu=0.3, lag=1100.0), 4),
        # a stopped job: nothing shows how many it needs
        (_seen(cpu=0.3, throughput=0.0, lag=100.0), 4),
        (_seen(cpu=0.3, throughput=0.0), 2),
        # not at this size for two minutes
        (_seen(lag=1600.0, cpu=0.9, before=5), 4),
    ],
)
def test_dataflow_clears_a_backlog_and_fills_the_cpu(seen: View, size: int) -> None:
    found = BacklogCpu().evaluate(seen)
    assert found.replicas == size
    assert found.reason is (Reason.ABOVE if size > 4 else Reason.BELOW if size < 4 else Reason.STEADY)


def test_dataflow_abstains_until_two_minutes_were_observed() -> None:
    found = BacklogCpu().evaluate(_seen(cpu=0.1, polls=8))
    assert (found.replicas, found.reason) == (None, Reason.LEARNING)


def test_dataflow_adds_up_the_readings_per_replica() -> None:
    seen = _seen(lag=1600.0, cpu=0.9)
    split = tuple(
        replace(one, metrics={**one.metrics, "throughput": Reading((50.0, 50.0), one.at)}) for one in seen.past
    )
    assert BacklogCpu().evaluate(replace(seen, past=split)).replicas == 5


def test_dataflow_skips_missing_past_readings_and_abstains_without_present_ones() -> None:
    seen = _seen(lag=1600.0, cpu=0.9)
    holed = [
        replace(one, metrics={name: reading for name, reading in one.metrics.items() if name != "lag" or back % 3})
        for back, one in enumerate(seen.past, 1)
    ]
    assert BacklogCpu().evaluate(replace(seen, past=tuple(holed))).replicas == 5
    holed[-1] = replace(seen.past[-1], metrics={})
    found = BacklogCpu().evaluate(replace(seen, past=tuple(holed)))
    assert (found.replicas, found.reason) == (None, Reason.MISSING)
