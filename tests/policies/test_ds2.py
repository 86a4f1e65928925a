from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.dataflow import Graph
from autoscaler.core.model import (
    Behaviour,
    Cause,
    ClusterSpec,
    EngineStatus,
    JobState,
    Limits,
    NamedPolicy,
    Phase,
    Reading,
    Reason,
    Recommendation,
    Rescale,
    SettleSpec,
    View,
)
from autoscaler.ports import Record
from autoscaler.simulation.loads import Load, constant
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import PlantSpec
from autoscaler.testing import contracts
from autoscaler_policies.research.ds2 import Ds2, Operator, instances, level, optimal, true_rate

Make = Callable[..., View]
CHAIN = Graph(("source", "1", "2"), (("source", "1"), ("1", "2")))
JOIN = Graph(("a", "b", "1", "2"), (("a", "1"), ("b", "1"), ("1", "2")))
NOW = Ds2(warm_up=0)
DUE = {"from_at": 1767268800.0 - 60}  # a minute before the time of the view


def decided(policy: Ds2, seen: View, known: Mapping[str, float] = DUE) -> View:
    """The view with the learned memory of the policy, as a step shows it."""
    return replace(seen, memory=policy.learn(replace(seen, memory=known)))


def ask(policy: Ds2, seen: View) -> Recommendation:
    return policy.evaluate(decided(policy, seen))


def load(view: Make, arrivals: float, throughput: float, utilization: float, **more: Any) -> View:
    return view({"arrivals": arrivals, "throughput": throughput, "utilization": utilization}, **more)


class Logged(NamedTuple):
    """One operator as DS2 logs it, with its true output rate; the whole output goes along each of its edges."""

    instances: int
    processing: float
    output: float = 0.0


def by_log(
    graph: Graph,
    logged: Mapping[str, Logged],
    sources: Mapping[str, float],
    ratios: Mapping[tuple[str, str], float] | None = None,
) -> dict[str, float]:
    given = {name: one.output / one.processing if one.processing > 0 else math.nan for name, one in logged.items()}
    given |= dict.fromkeys(sources, 1.0)
    ratios = ratios or {(start, end): given.get(start, math.nan) for start, end in graph.edges}
    operators = {name: Operator(one.instances, one.processing) for name, one in logged.items()}
    return optimal(graph, operators, sources, ratios)


def rounded(graph: Graph, operators: Mapping[str, Logged], sources: Mapping[str, float]) -> dict[str, int]:
    return {name: level(needed, 0.0) for name, needed in by_log(graph, operators, sources).items()}


# the model


@pytest.mark.parametrize(
    ("source", "first", "second", "expected"),
    [
        # the cases of controller/tests/scaling_policy_test.rs: (true processing, true output) of one instance each
        (100.0, (50.0, 400.0), (100.0, 200.0), (2, 8)),
        (200.0, (40.0, 700.0), (99.0, 200.0), (5, 36)),
        (200.0, (10.0, 700.0), (201.0, 200.0), (20, 70)),
    ],
)
def test_gives_the_instances_of_the_published_code(
    source: float, first: tuple[float, float], second: tuple[float, float], expected: tuple[int, int]
) -> None:
    operators = {"1": Logged(1, *first), "2": Logged(1, *second)}
    assert rounded(CHAIN, operators, {"source": source}) == {"1": expected[0], "2": expected[1]}


@pytest.mark.parametrize(
    ("source", "first", "second", "expected"),
    [
        (100.0, (50.0, 400.0), (100.0, 200.0), (4, 16)),
        (200.0, (40.0, 700.0), (99.0, 200.0), (10, 71)),
        (200.0, (10.0, 700.0), (201.0, 200.0), (40, 140)),
    ],
)
def test_adds_up_the_outputs_of_two_sources(
    source: float, first: tuple[float, float], second: tuple[float, float], expected: tuple[int, int]
) -> None:
    operators = {"1": Logged(1, *first), "2": Logged(1, *second)}
    assert rounded(JOIN, operators, {"a": source, "b": source}) == {"1": expected[0], "2": expected[1]}


def test_sizes_the_published_word_count_from_its_logged_rates() -> None:
    # controller/examples/offline/flink_rates.log, first epoch: two splitters, one count
    splitter = Logged(2, 122512.72886314773 + 122613.65236651529, 1244599.9522210688 + 1246045.8737637822)
    operators = {"1": splitter, "2": Logged(1, 1845391.0738689527)}
    needed = by_log(CHAIN, operators, {"source": 109705.37486387165})
    assert needed == {"1": pytest.approx(0.8951, abs=1e-4), "2": pytest.approx(0.6040, abs=1e-4)}
    # ten times the load: 8.951 splitters and 6.040 counts, in one step
    assert rounded(CHAIN, operators, {"source": 1097053.7486387165}) == {"1": 9, "2": 7}


def test_each_edge_carries_the_whole_output() -> None:
    fork = Graph(("source", "1", "2", "3"), (("source", "1"), ("1", "2"), ("1", "3")))
    operators = {"1": Logged(1, 100.0, 200.0), "2": Logged(1, 100.0), "3": Logged(4, 100.0)}
    assert by_log(fork, operators, {"source": 100.0}) == {"1": 1.0, "2": 2.0, "3": 8.0}
    # unless the rate of each edge is known
    ratios = {("source", "1"): 1.0, ("1", "2"): 0.5, ("1", "3"): 1.5}
    assert by_log(fork, operators, {"source": 100.0}, ratios) == {"1": 1.0, "2": 0.5, "3": 6.0}


def test_after_an_unknown_operator_the_rates_are_unknown() -> None:
    for one in ({}, {"1": Logged(1, 0.0, 0.0)}):
        assert math.isnan(by_log(CHAIN, one | {"2": Logged(1, 100.0)}, {"source": 100.0})["2"])
    assert all(map(math.isnan, by_log(CHAIN, {"1": Logged(1, 1.0, 1.0), "2": Logged(1, 1.0)}, {}).values()))


@pytest.mark.parametrize(
    ("coming", "processing", "count", "expected"),
    [
        (105.0, 100.0, 2, 2.1),
        (0.0, math.nan, 0, 0.0),
        (1e300, 1e-300, 1, 1_000_000),
        (5.0, 0.0, 1, None),
        (-5.0, 5.0, 1, None),
    ],
)
def test_the_number_of_instances_is_the_load_over_the_true_rate_of_one(
    coming: float, processing: float, count: int, expected: float | None
) -> None:
    found = instances(coming, processing, count)
    assert math.isnan(found) if expected is None else found == pytest.approx(expected)
    assert math.isnan(instances(1.0, 1.0, 0))


def test_the_true_rate_is_the_rate_during_useful_time() -> None:
    assert true_rate(100.0, (), (0.5,)) == 200.0
    assert true_rate(100.0, (), (0.4, 0.6)) == 200.0
    # per instance: 50 / 0.25 + 50 / 0.5; the mean share would give 100 / 0.375 = 267
    assert true_rate(100.0, (50.0, 50.0), (0.25, 0.5)) == 300.0
    # an idle instance counts like the others
    assert true_rate(50.0, (50.0, 0.0), (0.5, 0.0)) == 200.0
    assert true_rate(50.0, (50.0, 0.0), (0.5, 0.1)) == 200.0
    assert math.isnan(true_rate(0.0, (0.0, 0.0), (0.0, 0.0)))
    assert math.isnan(true_rate(0.0, (), (0.5,)))
    assert math.isnan(true_rate(10.0, (), (0.0,)))


# the policy


@pytest.mark.parametrize(
    ("arrivals", "throughput", "utilization", "current", "expected", "reason"),
    [
        # 4 replicas, 100/s at 50 %: 50/s each when saturated
        (100.0, 100.0, 0.5, 4, 2, Reason.BELOW),
        (160.0, 160.0, 0.8, 4, 4, Reason.STEADY),
        (201.0, 200.0, 1.0, 4, 5, Reason.ABOVE),
        # saturated: the arrivals count, in one step
        (450.0, 200.0, 1.0, 4, 9, Reason.ABOVE),
        # one fewer is not worth a rescale
        (140.0, 140.0, 0.7, 4, 4, Reason.STEADY),
        # without arrivals nothing is needed
        (0.0, 0.0, 0.0, 4, 1, Reason.BELOW),
        (1e9, 200.0, 1.0, 4, 10, Reason.ABOVE),
    ],
)
def test_requests_the_arrivals_over_the_true_rate_of_a_replica(
    view: Make,
    *,
    arrivals: float,
    throughput: float,
    utilization: float,
    current: int,
    expected: int,
    reason: Reason,
) -> None:
    answer = ask(NOW, load(view, arrivals, throughput, utilization, current=current))
    assert (answer.replicas, answer.reason) == (expected, reason)


def test_the_detail_explains_the_calculation(view: Make) -> None:
    answer = ask(NOW, load(view, 450.0, 200.0, 1.0, current=4))
    assert answer.detail == "450/s arriving at a true rate of 50/s per slot need 9 slots: 9 replicas"
    assert answer.inputs == {"arrivals": 450.0, "true_rate": 50.0, "slots": 9.0}
    assert ask(NOW, load(view, 140.0, 140.0, 0.7, current=4)).detail.endswith(
        "need 3 slots: 3 replicas, too little of a change from 4"
    )


def test_a_smaller_change_is_made_when_configured(view: Make) -> None:
    seen = load(view, 140.0, 140.0, 0.7, current=4)
    assert ask(replace(NOW, minor=0), seen).replicas == 3
    assert ask(replace(NOW, minor=2), load(view, 100.0, 100.0, 0.5, current=4)).replicas == 4


def test_counts_the_slots_that_the_job_uses(view: Make) -> None:
    seen = load(view, 450.0, 200.0, 1.0, current=4)
    # 8 slots per replica, of which the job uses 4: 9 slots are 2 replicas
    engine = EngineStatus(job=JobState.RUNNING, slots=32, parallelism=4)
    wide = replace(seen, spec=replace(seen.spec, slots_per_replica=8), engine=engine)
    assert ask(NOW, wide).inputs["slots"] == 9.0
    assert ask(replace(NOW, minor=0), wide).replicas == 2
    # if the engine does not report them, all slots of the ready replicas: 200 / 32 = 6.25/s each
    assert ask(NOW, replace(wide, engine=None)).inputs["slots"] == 72.0


def test_over_provisions_by_the_scaling_factor(view: Make) -> None:
    assert ask(replace(NOW, scaling_factor=0.2), load(view, 450.0, 200.0, 1.0, current=4)).inputs["slots"] == 11.0


def test_enlarges_a_size_that_should_suffice_but_does_not(view: Make) -> None:
    # a true rate of 400/s that four replicas never reach: 300/s arrive, throughput is 200/s at 50 %
    seen = load(view, 300.0, 200.0, 0.5, current=4)
    assert ask(NOW, seen).inputs["slots"] == 3.0
    assert ask(replace(NOW, target_rate_ratio=1.2), seen).inputs["slots"] == 5.0  # ceil(3 x 1.5)
    assert ask(replace(NOW, target_rate_ratio=1.5), seen).inputs["slots"] == 3.0  # not above it
    # more is requested already
    assert ask(replace(NOW, target_rate_ratio=1.2), load(view, 500.0, 200.0, 0.5, current=4)).inputs["slots"] == 5.0


# vertex by vertex


def vertices(view: Make, parts: Mapping[str, Mapping[str, float]], arrivals: float = 100.0) -> View:
    seen = load(view, arrivals, 100.0, 0.5, current=4)
    return replace(seen, metrics={**seen.metrics, "vertices": Reading(len(parts), seen.now, parts=parts)})


def vertex(parallelism: float, true: float | None, **edges: float) -> dict[str, float]:
    known = {} if true is None else {"true_rate": true}
    return {"parallelism": parallelism, "group": 0.0, **known, **{f"from:{start}": r for start, r in edges.items()}}


def test_the_vertex_with_the_highest_demand_determines_the_size(view: Make) -> None:
    # from 100/s the splitter makes 1,100/s, at 400/s per instance 2.75, and the filter 200/s, at 50/s 4
    parts = {
        "Source (s)": vertex(4, 1000.0),
        "Splitter (a)": vertex(4, 400.0, s=1.0),
        "Count (b)": vertex(4, 1600.0, a=11.0),
        "Filter (c)": vertex(4, 200.0, a=1.5, s=0.5),
    }
    answer = ask(NOW, vertices(view, parts))
    assert answer.inputs == {"arrivals": 200.0, "true_rate": 50.0, "slots": 4.0}
    # twice the load needs twice everything
    assert ask(NOW, vertices(view, parts, 200.0)).inputs == {"arrivals": 400.0, "true_rate": 50.0, "slots": 8.0}


def test_arrivals_are_divided_among_the_sources_by_their_throughput(view: Make) -> None:
    parts = {
        "s": vertex(4, 1000.0) | {"records_in": 30.0},
        "t": vertex(4, 100.0) | {"records_in": 10.0},
        "a": vertex(4, 80.0, s=1.0, t=8.0),
    }
    # 75 and 25/s: 75 + 8 x 25 = 275 at 20/s per instance
    assert ask(NOW, vertices(view, parts)).inputs == {"arrivals": 275.0, "true_rate": 20.0, "slots": 14.0}


def test_each_slot_sharing_group_needs_its_own_slots(view: Make) -> None:
    parts = {"s": vertex(4, 200.0), "a": vertex(4, 200.0, s=1.0) | {"group": 1.0}, "over": {"group": 2.0}}
    assert ask(NOW, vertices(view, parts)).inputs["slots"] == 6.0


def test_an_unknown_vertex_may_raise_but_never_lowers_the_size(view: Make) -> None:
    source = vertex(4, 400.0)
    assert ask(NOW, vertices(view, {"s": source, "a": vertex(4, 400.0, s=1.0)})).replicas == 1
    idle = vertex(4, None, s=1.0)
    assert ask(NOW, vertices(view, {"s": source, "a": idle})).replicas == 4
    assert ask(NOW, vertices(view, {"s": source, "a": idle, "b": vertex(4, 400.0, s=7.0)})).replicas == 7
    # a vertex without input needs nothing
    assert ask(NOW, vertices(view, {"s": source, "a": vertex(4, None, s=0.0)})).replicas == 1
    assert ask(NOW, vertices(view, {"s": source, "a": vertex(4, None, s=0.0)}, 0.0)).replicas == 1


def test_a_source_without_metrics_keeps_its_parallelism(view: Make) -> None:
    assert ask(NOW, vertices(view, {"s": vertex(4, None), "a": vertex(4, 400.0, s=1.0)})).replicas == 1


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"s": vertex(4, None)},
        {"s": vertex(4, 400.0), "a": vertex(4, 400.0, gone=1.0)},
        {"s": vertex(4, 400.0, a=1.0), "a": vertex(4, 400.0, s=1.0)},
        {"s": vertex(4, 400.0), "t": vertex(4, 400.0)},
    ],
    ids=["none", "nothing known", "an edge from nowhere", "a circle", "two sources that take nothing"],
)
def test_without_a_valid_job_graph_the_whole_job_is_one_vertex(
    view: Make, parts: Mapping[str, Mapping[str, float]]
) -> None:
    assert ask(NOW, vertices(view, parts)).inputs == {"arrivals": 100.0, "true_rate": 50.0, "slots": 2.0}


def series(policy: Ds2, seen: Iterable[View]) -> list[int | None]:
    """The requested size at each poll; memory is carried on."""
    memory: Mapping[str, float] = {}
    sizes = []
    for now in seen:
        memory = policy.learn(replace(now, memory=memory))
        sizes.append(policy.evaluate(replace(now, memory=memory)).replicas)
    return sizes


def later(seen: View, seconds: float, **more: Any) -> View:
    return replace(seen, now=seen.now + timedelta(seconds=seconds), **more)


def test_decides_at_the_end_of_each_policy_interval_and_keeps_the_decision(view: Make) -> None:
    low, high = (load(view, arrivals, 100.0, 1.0, current=2) for arrivals in (100.0, 300.0))
    polls = [later(low if s < 65 or s >= 130 else high, s) for s in range(0, 200, 15)]
    assert series(NOW, polls) == [None] * 4 + [2] * 4 + [6] * 4 + [2] * 2


def test_ignores_the_first_intervals_at_the_start(view: Make) -> None:
    seen = load(view, 300.0, 100.0, 1.0, current=2)
    polls = [later(seen, s) for s in range(0, 200, 30)]
    assert series(Ds2(), polls) == [None] * 4 + [6] * 3
    assert series(Ds2(warm_up=2), polls) == [None] * 6 + [6]


def test_a_poll_that_is_a_little_early_still_decides(view: Make) -> None:
    seen = load(view, 300.0, 100.0, 1.0, current=2)
    assert series(NOW, [seen, later(seen, 59.9), later(seen, 119.8)]) == [None, 6, 6]


def test_starts_again_after_a_rescale_and_after_a_restart(view: Make) -> None:
    seen = load(view, 300.0, 100.0, 1.0, current=2)
    rescale = Rescale(before=2, to=6, at=seen.now, cause=Cause.REQUEST, phase=Phase.REGISTERED, since=seen.now)
    memory = NOW.learn(replace(seen, memory=DUE))
    assert memory["slots"] == 6.0
    moved = NOW.learn(later(seen, 15, rescale=rescale, memory=memory))
    assert moved == {"from_at": seen.now.timestamp() + 15}
    # it runs again: catching up is no reason to wait
    running = replace(rescale, phase=Phase.RUNNING)
    warm = seen.now + timedelta(seconds=30)
    assert NOW.learn(later(seen, 45, rescale=running, disturbance_ended_at=warm, memory=moved)) == {
        "from_at": warm.timestamp()
    }
    assert NOW.learn(later(seen, 90, rescale=running, disturbance_ended_at=warm, memory={"from_at": warm.timestamp()}))[
        "slots"
    ]
    # a restart of the job that was not requested
    assert NOW.learn(later(seen, 45, disturbance_ended_at=warm, memory=memory)) == {"from_at": warm.timestamp()}
    # a daemon that starts long after it
    assert NOW.learn(later(seen, 90, disturbance_ended_at=warm))["slots"] == 6.0


def test_acts_on_as_many_consecutive_decisions_as_configured(view: Make) -> None:
    seen = load(view, 300.0, 100.0, 1.0, current=2)
    policy = Ds2(warm_up=0, activation=2)
    assert series(policy, [later(seen, s) for s in (0, 60, 120, 180)]) == [None, None, 6, 6]
    first = policy.evaluate(decided(policy, seen))
    assert first.reason is Reason.LEARNING
    assert first.detail.endswith("; decision 1 of 2 in a row that it takes (activation)")
    gap = load(view, 300.0, 0.0, 0.0, current=2)
    assert series(policy, [seen, later(seen, 60), later(gap, 120), later(seen, 180)]) == [None] * 4


def test_an_interval_without_records_gives_no_rates(view: Make) -> None:
    for seen in (
        load(view, 300.0, 0.0, 0.0, current=2),
        load(view, 300.0, 100.0, 0.0, current=2),
        load(view, 300.0, 100.0, 1.0, current=2, ready=0),
        view({"arrivals": 300.0, "throughput": 100.0}, current=2),
        view({"throughput": 100.0, "utilization": 1.0}, current=2),
        view({"arrivals": 300.0, "utilization": 1.0}, current=2),
    ):
        assert NOW.learn(replace(seen, memory=DUE)) == {**DUE, "intervals": 1.0}


def test_from_zero_the_first_replica_is_requested_as_soon_as_something_arrives(view: Make) -> None:
    answer = ask(NOW, load(view, 5.0, 0.0, 0.0, current=0, minimum=0))
    assert (answer.replicas, answer.reason) == (1, Reason.ABOVE)
    assert ask(NOW, load(view, 0.0, 0.0, 0.0, current=0, minimum=0)).replicas is None


def test_reports_that_there_is_no_decision_yet(view: Make) -> None:
    answer = NOW.evaluate(load(view, 300.0, 100.0, 1.0, current=2))
    assert (answer.replicas, answer.reason) == (None, Reason.LEARNING)
    assert answer.detail.startswith("no decision yet")


@pytest.mark.parametrize("absent", ["arrivals", "throughput", "utilization"])
def test_a_metric_that_is_missing_never_lowers_the_size(view: Make, absent: str) -> None:
    whole = load(view, 50.0, 50.0, 0.25, current=4)
    assert ask(NOW, whole).replicas == 1
    metrics = {name: reading for name, reading in whole.metrics.items() if name != absent}
    answer = NOW.evaluate(replace(decided(NOW, whole), metrics=metrics))
    assert (answer.replicas, answer.reason) == (None, Reason.MISSING)
    assert absent in answer.detail


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("arrivals", -1.0),
        ("throughput", (-1.0, 5.0, 5.0, 5.0)),
        ("throughput", (5.0, 5.0)),
        ("utilization", 70.0),
        ("utilization", -0.1),
    ],
)
def test_an_impossible_reading_counts_as_missing(view: Make, name: str, value: float | tuple[float, ...]) -> None:
    seen = view({"arrivals": 50.0, "throughput": 50.0, "utilization": 0.25, name: value}, current=4)
    assert ask(NOW, seen).reason is Reason.MISSING


def test_a_share_slightly_above_one_counts_as_one(view: Make) -> None:
    assert ask(NOW, load(view, 450.0, 200.0, 1.04, current=4)).inputs["true_rate"] == 50.0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"interval": timedelta(0)}, "interval: is 0s, expected"),
        ({"warm_up": -1}, "warm_up: is -1, expected 0"),
        ({"activation": 0}, "activation: is 0, expected 1"),
        ({"minor": -1}, "minor: is -1, expected 0"),
        ({"target_rate_ratio": 0.9}, "target_rate_ratio: is 0.9, expected"),
        ({"target_rate_ratio": math.nan}, "target_rate_ratio: is nan, expected"),
        ({"scaling_factor": -0.1}, "scaling_factor: is -0.1, expected"),
        ({"scaling_factor": math.inf}, "scaling_factor: is inf, expected"),
        ({"vertices": ""}, "vertices: is empty"),
    ],
)
def test_refuses_invalid_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ds2(**parameters)


def test_three_steps_are_enough() -> None:
    # n workers process n^0.9 times as much as one, and the load needs sixteen: the first step falls short by that
    sizes: list[int] = []

    def record(made: Record) -> None:
        if made.decision.rescale:
            sizes.append(made.decision.desired)

    spec = ClusterSpec(
        name="c",
        limits=Limits(1, 30),
        policies=(NamedPolicy("ds2", Ds2()),),
        down=Behaviour(),
        settle=SettleSpec(backlog_time=timedelta(days=1)),
        metrics=("arrivals", "throughput", "lag", "utilization"),
        engine=True,
    )
    run(spec, PlantSpec(sigma=0.0), Load("flat", tuple(constant(1.0))), seed=1, size=1, record=record)
    # 16^0.9 = 12.1, then 13 x 12.1 / 13^0.9 = 15.7
    assert sizes == [13, 16]


# properties for any readings

rates = st.floats(0, 1e9)
shares = st.floats(0.01, 1)


@settings(deadline=None)  # a busy machine is not a failure
@given(arrivals=rates, more=rates, throughput=rates, utilization=shares, current=st.integers(1, 12))
def test_more_arrivals_never_give_a_smaller_size(
    view: Make, *, arrivals: float, more: float, throughput: float, utilization: float, current: int
) -> None:
    low, high = (
        ask(NOW, load(view, offered, throughput, utilization, current=current)).replicas
        for offered in (arrivals, arrivals + more)
    )
    if low is not None and high is not None:
        assert low <= high


@settings(deadline=None)
@given(
    # Smaller numbers cannot be halved exactly.
    arrivals=rates.filter(lambda rate: not 0 < rate < 1e-290),
    throughput=rates.filter(lambda rate: not 0 < rate < 1e-290),
    utilization=shares,
    current=st.integers(1, 12),
    power=st.integers(-20, 20),
)
def test_the_size_does_not_depend_on_the_unit_of_records(
    view: Make, *, arrivals: float, throughput: float, utilization: float, current: int, power: int
) -> None:
    unit = 2.0**power
    one, other = (
        ask(NOW, load(view, arrivals * u, throughput * u, utilization, current=current)).replicas for u in (1.0, unit)
    )
    assert one == other


numbers = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(
    arrivals=numbers,
    throughput=numbers | st.lists(numbers, min_size=1, max_size=4).map(tuple),
    utilization=numbers | st.lists(st.floats(0, 1), min_size=1, max_size=4).map(tuple),
    parts=st.dictionaries(
        st.sampled_from(("s", "a", "b")),
        st.dictionaries(st.sampled_from(("parallelism", "true_rate", "records_in", "from:s", "from:a")), numbers),
    ),
    current=st.integers(0, 12),
    policy=st.sampled_from((NOW, Ds2(warm_up=0, target_rate_ratio=1.1, scaling_factor=0.5))),
)
def test_never_leaves_the_limits_and_keeps_only_finite_numbers(
    view: Make,
    *,
    arrivals: float,
    throughput: float | tuple[float, ...],
    utilization: float | tuple[float, ...],
    parts: dict[str, dict[str, float]],
    current: int,
    policy: Ds2,
) -> None:
    seen = view({"arrivals": arrivals, "throughput": throughput, "utilization": utilization}, current=current)
    seen = replace(seen, metrics={**seen.metrics, "vertices": Reading(0.0, seen.now, parts=parts)})
    memory = policy.learn(replace(seen, memory=DUE))
    assert all(map(math.isfinite, memory.values()))
    answer = policy.evaluate(replace(seen, memory=memory))
    assert all(map(math.isfinite, answer.inputs.values()))
    assert answer.replicas is None or 1 <= answer.replicas <= 10


class TestContract(contracts.PolicyContract):
    @pytest.fixture
    def policy(self) -> Ds2:
        return NOW

    @pytest.fixture
    def views(self, metrics: Sequence[str]) -> Sequence[View]:
        """Views as a step shows them: with the learned memory of the policy."""
        seen = contracts.views(metrics)
        return [decided(NOW, one, {"from_at": one.now.timestamp() - 60}) for one in seen] + seen[:20]

    def test_some_of_these_views_lead_to_a_decision(self, views: Sequence[View]) -> None:
        assert sum(NOW.evaluate(seen).replicas is not None for seen in views) > 10
