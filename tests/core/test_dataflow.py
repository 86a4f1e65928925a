"""The rules of Flink's autoscaler: its own published cases, edge cases, and properties of any job."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autoscaler.core.dataflow import (
    Graph,
    JobRate,
    Rates,
    TargetRate,
    average,
    edge_rate,
    job_true_rate,
    needed_parallelism,
    observed_rate,
    observed_while_catching_up,
    output_ratio,
    output_ratios,
    propagate,
    rate,
    target_capacity,
    target_rates,
    true_processing_rate,
)
from autoscaler_policies.flink_operator.policy import FlinkOperator
from autoscaler_policies.flink_operator.scaling import Settings, thresholds
from tests.policies.reference_flink import busy_time, input_rate, source_rate

NAN, INF = math.nan, math.inf
CASES = json.loads((Path(__file__).parent / "data" / "dataflow.json").read_text())


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def number(value: Any) -> float:
    """A number of a case. JSON has no NaN and no infinity, so these are strings."""
    return float(value)


def close(seen: float, expected: float) -> bool:
    return (math.isnan(seen) and math.isnan(expected)) or seen == pytest.approx(expected, rel=1e-12)


# Flink's cases, by kind


def rate_case(inputs: Mapping[str, Any]) -> Any:
    return rate([(at, value) for at, value in inputs["samples_ms_value"]])


def busy_time_case(inputs: Mapping[str, Any]) -> Any:
    return busy_time(
        inputs["aggregator"],
        load=inputs.get("load_samples", ()),
        accumulated=inputs.get("accumulated_busy_ms", ()),
        parallelism=inputs.get("parallelism", 1),
    )


def observed_case(inputs: Mapping[str, Any]) -> Any:
    return observed_rate(number(inputs["records_in_per_s"]), number(inputs["backpressured_ms_per_s"]))


def true_rate_case(inputs: Mapping[str, Any]) -> Any:
    return true_processing_rate(
        number(inputs["busy_ms_per_s"]),
        number(inputs["input_rate"]),
        [number(sample) for sample in inputs["observed_tpr_samples"]],
        switch_threshold=inputs["config"]["switch_threshold"],
        minimum=inputs["config"]["min_observations"],
    )


def input_rate_case(inputs: Mapping[str, Any]) -> Any:
    return {
        aggregator: input_rate(aggregator, inputs["cumulative"], inputs["per_second"])
        for aggregator in ("MAX", "MIN", "AVG")
    }


def output_ratio_case(inputs: Mapping[str, Any]) -> Any:
    rates = {name: Rates(number(of.get("in", NAN)), number(of.get("out", NAN))) for name, of in inputs["rates"].items()}
    edges = tuple((start, end) for start, end in inputs["edges"])
    ratios = output_ratios(Graph(tuple(rates), edges), rates)
    return [ratios[edge] for edge in edges]


def target_rates_case(inputs: Mapping[str, Any]) -> Any:
    def samples(vertex: int, name: str) -> list[tuple[float, float | None]]:
        return [(sample[0], sample[vertex].get(name)) for sample in inputs["samples"]]

    graph = Graph(("source", "sink"), (("source", "sink"),))
    rates = {name: Rates(rate(samples(at, "in"))) for at, name in ((1, "source"), (2, "sink"))}
    source = source_rate(samples(1, "in"), samples(1, "lag"), seconds(inputs["catch_up_s"]))
    found = target_rates(graph, {"source": source}, output_ratios(graph, rates))
    return {name: {"target_data_rate": at.rate, "catch_up_rate": at.catch_up} for name, at in found.items()}


def thresholds_case(inputs: Mapping[str, Any]) -> Any:
    config = inputs["config"]
    settings = Settings(
        utilization_target=config["util_target"],
        target_utilization_boundary=config["util_boundary"],
        utilization_max=config["util_max"],
        utilization_min=config["util_min"],
        catch_up_duration=seconds(config["catch_up_s"]),
    )
    return list(
        thresholds(
            TargetRate(number(inputs["target_data_rate"]), number(inputs["catch_up_rate"])),
            settings,
            seconds(config["restart_s"]),
            backlog=inputs["processing_backlog"],
        )
    )


KINDS = {
    "rate": rate_case,
    "busy_time": busy_time_case,
    "observed_processing_rate_raw": observed_case,
    "true_processing_rate": true_rate_case,
    "tpr_input_rate": input_rate_case,
    "output_ratio": output_ratio_case,
    "target_rates": target_rates_case,
    "thresholds": thresholds_case,
}


def agree(seen: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return seen.keys() == expected.keys() and all(agree(seen[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(seen) == len(expected) and all(map(agree, seen, expected))
    return close(seen, number(expected))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_flinks_own_cases_give_flinks_results(case: dict[str, Any]) -> None:
    seen = KINDS[case["kind"]](case["inputs"])
    assert agree(seen, case["expected"]), f"{seen} instead of {case['expected']}"


def test_every_kind_has_a_case() -> None:
    assert {case["kind"] for case in CASES} == set(KINDS)


# windows


def test_a_rate_needs_two_samples() -> None:
    assert math.isnan(rate([]))
    assert math.isnan(rate([(0, None), (1000, 5), (2000, NAN)]))


def test_a_rate_spans_missing_samples() -> None:
    assert rate([(0, 10), (1000, None), (2000, NAN), (4000, 50)]) == 10


def test_samples_may_come_in_any_order_and_the_later_of_two_at_one_time_counts() -> None:
    assert rate([(3000, 30), (1000, 5), (1000, 10)]) == 10


def test_a_counter_that_was_reset_gives_a_negative_rate() -> None:
    assert rate([(0, 100), (1000, 40)]) == -60


def test_samples_within_a_millisecond_count_as_a_millisecond_apart() -> None:
    assert rate([(0.2, 0), (0.7, 3)]) == 3000


def test_a_rate_between_infinities_is_unknown() -> None:
    assert math.isnan(rate([(0, INF), (1000, INF)]))


def test_an_average_ignores_values_that_are_not_finite() -> None:
    assert average([1, None, NAN, INF, 3]) == 2


def test_an_average_of_infinities_is_infinite_whatever_the_minimum() -> None:
    assert average([INF, NAN], minimum=5) == INF


def test_an_average_of_too_few_or_no_samples_is_unknown() -> None:
    assert math.isnan(average([1], minimum=2))
    assert math.isnan(average([]))
    assert math.isnan(average([None, NAN]))


def test_numbers_are_summed_in_the_order_in_which_java_sums_them() -> None:
    assert average([0.1] * 10) == 0.9999999999999999 / 10


# true processing rate of a vertex


def test_busy_time_of_the_hottest_subtask_does_not_depend_on_the_parallelism() -> None:
    assert busy_time("MAX", load=[0.2, 0.3, 0.4], parallelism=0) == pytest.approx(300)
    assert busy_time("MIN", load=[0.2, 0.3, 0.4], parallelism=7) == pytest.approx(300)


def test_the_mean_busy_time_is_shared_by_the_subtasks() -> None:
    accumulated = [(1000, 10000), (2000, 10200), (3000, 10400)]
    assert busy_time("AVG", accumulated=accumulated, parallelism=1) == 200
    assert busy_time("AVG", accumulated=accumulated, parallelism=0) == INF
    assert math.isnan(busy_time("AVG", accumulated=[(0, 1), (1000, 1)], parallelism=0))


def test_without_a_measured_rate_the_rate_comes_from_the_counter() -> None:
    counter = [(1000, 0), (2000, 100)]
    assert input_rate("MAX", counter) == 100
    assert input_rate("MAX", counter, [INF]) == 100
    assert input_rate("MAX", counter, [NAN, 40]) == 40


@pytest.mark.parametrize(
    ("records_in", "backpressured", "expected"), [(100, 1000, NAN), (500, 0, 500), (250, 750, 1000)]
)
def test_the_observed_rate_excludes_waiting_time(records_in: float, backpressured: float, expected: float) -> None:
    assert close(observed_rate(records_in, backpressured), expected)


@pytest.mark.parametrize(
    ("records_in", "lag", "backpressured", "expected"),
    [
        (1000, 500, 500, 123),  # half a second of lag is not a backlog
        (1000, 0, 500, 123),
        (1000, None, 500, 123),
        (1000, NAN, 500, 123),
        (900, 10_000_000, 100, 900 / 0.9),
        (1000, 10_000_000, 200, 1000 / 0.8),
        (1000, 30_000, 0, 1000),  # exactly 30 s of lag is a backlog
        (1000, 29_999, 0, 123),
        (1000, 10_000_000, 1000, 123),  # waiting all the time: the rate is unknown
        (1000, 10_000_000, NAN, 123),
        (0, 500, 100, INF),
        (NAN, 10_000_000, 0, NAN),
    ],
)
def test_a_source_is_observed_only_while_it_catches_up(
    records_in: float, lag: float | None, backpressured: float, expected: float
) -> None:
    assert close(observed_while_catching_up(records_in, lag, backpressured, previous=123), expected)


@pytest.mark.parametrize(
    ("busy", "records_in", "observed", "expected"),
    [
        (0, 0, (), INF),  # nothing flows: capacity is unlimited
        (NAN, 0, (), INF),
        (0, 1, (), INF),
        (1, 0, (), INF),
        (NAN, NAN, (), NAN),
        (NAN, 35, (), NAN),
        (500, NAN, (), NAN),
        (500, 100, (), 200),
        (0, 100, (INF, INF), INF),
        (0, 100, (200, 400), 300),  # no busy time although records flow: the observed rate is better
        (0, 0, (200, 400), 300),
        (100, 35, (INF, INF), 350),
        (100, 35, (100,), 350),  # one observation is too few
        (100, 34.5, (200, 400), 345),  # exactly 15 % above
        (100, 34.6, (200, 400), 300),
        (100, 10, (200, 400), 100),  # the busy-time rate is lower: it counts
    ],
)
def test_the_busy_time_rate_counts_unless_it_is_far_above_the_observed_rate(
    busy: float, records_in: float, observed: tuple[float, ...], expected: float
) -> None:
    assert close(true_processing_rate(busy, records_in, observed), expected)


# the job graph


DIAMOND = Graph(("a", "b", "c", "d"), (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")))
CROSSED = Graph(("a", "b", "x", "y"), (("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")))


def test_a_graph_lists_the_upstream_vertices() -> None:
    graph = Graph(("sink", "source"), (("source", "sink"), ("source", "sink")))
    assert graph.order == ("source", "sink")
    assert graph.sources == ("source",)
    assert graph.inputs("sink") == ("source",)
    assert graph.outputs("source") == ("sink",)
    assert graph == Graph(("sink", "source"), (("source", "sink"), ("source", "sink")))


def test_a_graph_refuses_an_edge_to_an_unknown_vertex() -> None:
    with pytest.raises(ValueError, match="a -> b names b, which is no vertex"):
        Graph(("a",), (("a", "b"),))


def test_a_graph_refuses_a_cycle() -> None:
    with pytest.raises(ValueError, match="form a cycle: b, c"):
        Graph(("a", "b", "c"), (("a", "b"), ("b", "c"), ("c", "b")))


def test_an_edge_to_a_vertex_with_other_inputs_carries_the_rest_of_its_input() -> None:
    rates = {"a": Rates(100, 300), "b": Rates(150, 90), "c": Rates(150, 30), "d": Rates(120)}
    assert edge_rate(DIAMOND, rates, "b", "d") == 90
    assert edge_rate(DIAMOND, rates, "c", "d") == 30
    assert output_ratios(DIAMOND, rates) == {("a", "b"): 1.5, ("a", "c"): 1.5, ("b", "d"): 0.6, ("c", "d"): 0.2}


def test_if_the_other_inputs_also_send_elsewhere_an_edge_carries_the_whole_output() -> None:
    rates = {"a": Rates(100, 200), "b": Rates(100, 50)}
    assert output_ratios(CROSSED, rates) == {("a", "x"): 2, ("a", "y"): 2, ("b", "x"): 0.5, ("b", "y"): 0.5}


def test_if_the_output_of_the_other_inputs_is_unknown_an_edge_carries_the_whole_output() -> None:
    rates = {"b": Rates(150, 80), "c": Rates(150), "d": Rates(120)}
    assert edge_rate(DIAMOND, rates, "b", "d") == 80


@pytest.mark.parametrize(("taken", "sent", "expected"), [(0, 50, 0), (NAN, 50, NAN), (100, NAN, NAN), (100, 250, 2.5)])
def test_an_output_ratio_is_zero_without_input_and_unknown_with_an_unknown_input(
    taken: float, sent: float, expected: float
) -> None:
    graph = Graph(("a", "b"), (("a", "b"),))
    assert close(output_ratio(graph, {"a": Rates(taken), "b": Rates(sent)}, "a", "b"), expected)


def test_the_load_of_a_source_is_its_throughput_and_the_growth_of_its_lag() -> None:
    assert source_rate([(0, 0), (1000, 100)], [(0, 950), (1000, 1000)], seconds(2)) == TargetRate(150, 500)


def test_a_lag_that_shrinks_faster_than_records_arrive_gives_no_negative_load() -> None:
    assert source_rate([(0, 0), (1000, 100)], [(0, 1000), (1000, 0)], seconds(2)) == TargetRate(0, 0)


def test_the_load_of_a_source_without_lag_is_its_throughput() -> None:
    assert source_rate([(0, 0), (1000, 100)], [], seconds(2)) == TargetRate(100, 0)


def test_the_load_of_a_source_with_unknown_rates_is_unknown() -> None:
    assert math.isnan(source_rate([(0, 0)], [(0, 5), (1000, 5)], seconds(2)).rate)
    unknown = source_rate([(0, 0), (1000, 100)], [(0, 5), (1000, None)], seconds(2))
    assert math.isnan(unknown.rate)
    assert math.isnan(unknown.catch_up)


def test_rates_add_up_along_the_edges() -> None:
    ratios = {("a", "b"): 1.5, ("a", "c"): 1.5, ("b", "d"): 0.6, ("c", "d"): 0.2}
    assert propagate(DIAMOND, {"a": 200.0}, ratios) == pytest.approx({"a": 200, "b": 300, "c": 300, "d": 240})


def test_a_vertex_downstream_of_an_unknown_source_is_unknown() -> None:
    graph = Graph(("a", "b", "x", "y"), (("a", "x"), ("b", "y")))
    found = propagate(graph, {"a": 10.0}, {("a", "x"): 1, ("b", "y"): 1})
    assert (found["a"], found["x"]) == (10, 10)
    assert math.isnan(found["b"])
    assert math.isnan(found["y"])


# required capacity


def test_required_capacity_covers_the_load_the_backlog_and_restarts() -> None:
    target = TargetRate(700, 350)
    assert target_capacity(target, 0.7, seconds(2), seconds(1)) == 1700
    assert target_capacity(target, 0.7, seconds(2)) == 1350
    assert target_capacity(target, 0.7, seconds(0), seconds(100)) == 1350
    assert target_capacity(target, 7, seconds(2)) == 1050  # at most busy all the time


def test_required_capacity_covers_the_backlog_of_the_restart() -> None:
    # 150/s for 30 s are 4,500 records, in two minutes 37.5/s
    assert target_capacity(TargetRate(150, 8.5), 0.75, seconds(120), seconds(30)) == 246


def test_by_default_vertices_may_be_busy_from_40_percent_to_all_of_the_time() -> None:
    assert thresholds(TargetRate(500), Settings(catch_up_duration=seconds(0)), seconds(0)) == (500, 1250)


def test_durations_count_in_whole_seconds() -> None:
    assert target_capacity(TargetRate(100), 1, seconds(2.9), seconds(1.9)) == 150


@pytest.mark.parametrize(
    ("target", "utilization", "expected"),
    [
        (TargetRate(NAN), 0.5, NAN),
        (TargetRate(1, NAN), 0.5, NAN),
        (TargetRate(NAN), 0, NAN),
        (TargetRate(1), 0, INF),
        (TargetRate(1), -1, INF),
        (TargetRate(0.5), 1, 1),  # rounded half up
        (TargetRate(1.5), 1, 2),
        (TargetRate(2.5), 1, 3),
        (TargetRate(0.49999999999999994), 1, 0),
        (TargetRate(INF), 1, 2.0**63),
        (TargetRate(1e300), 1, 2.0**63),
        (TargetRate(INF, -INF), 1, NAN),
    ],
)
def test_required_capacity_at_the_limits_of_numbers(target: TargetRate, utilization: float, expected: float) -> None:
    assert close(target_capacity(target, utilization, seconds(60)), expected)


def test_while_a_backlog_is_processed_no_capacity_is_too_large() -> None:
    assert thresholds(TargetRate(700), Settings(catch_up_duration=seconds(60)), seconds(60), backlog=True) == (700, INF)


# a whole job


def test_the_vertex_with_the_least_headroom_limits_the_job() -> None:
    targets = {"a": 100.0, "b": 150.0, "c": 150.0, "d": 120.0}
    true_rates = {"a": 400.0, "b": 300.0, "c": INF, "d": 480.0}
    assert job_true_rate(DIAMOND, targets, true_rates) == JobRate(200, "b")


def test_a_job_of_less_than_one_record_a_second_is_measured_too() -> None:
    graph = Graph(("a", "b"), (("a", "b"),))
    assert job_true_rate(graph, {"a": 0.5, "b": 0.25}, {"a": 4, "b": 1}) == JobRate(2, "b")
    assert job_true_rate(graph, {"a": 0.5, "b": 0.25}, {"a": 4}) == JobRate(4, "a", ("b",))


def test_several_sources_keep_their_ratio() -> None:
    graph = Graph(("a", "b", "sink"), (("a", "sink"), ("b", "sink")))
    targets = {"a": 30.0, "b": 10.0, "sink": 40.0}
    assert job_true_rate(graph, targets, {"a": 300, "b": 20, "sink": 400}) == JobRate(80, "b")


def test_a_job_without_records_has_no_limit() -> None:
    graph = Graph(("a", "b"), (("a", "b"),))
    assert job_true_rate(graph, {"a": 0, "b": 0}, {"a": INF, "b": NAN}) == JobRate(INF)
    assert job_true_rate(graph, {"a": 5, "b": 0}, {"a": INF, "b": INF}) == JobRate(INF)


def test_an_unknown_vertex_is_named_in_the_error() -> None:
    graph = Graph(("a", "b"), (("a", "b"),))
    assert job_true_rate(graph, {"a": 10, "b": 10}, {"a": NAN, "b": 30}) == JobRate(30, "b", ("a",))
    assert job_true_rate(graph, {"a": 10, "b": -1}, {"a": 20, "b": 30}) == JobRate(20, "a", ("b",))


def test_a_job_without_a_known_vertex_or_source_has_no_known_rate() -> None:
    graph = Graph(("a", "b"), (("a", "b"),))
    nobody = job_true_rate(graph, {"a": 10, "b": 10}, {})
    assert math.isnan(nobody.rate)
    assert nobody.unknown == ("a", "b")
    no_source = job_true_rate(graph, {"b": 10}, {"a": 10, "b": 10})
    assert math.isnan(no_source.rate)
    assert no_source.limiting is None


@pytest.mark.parametrize(
    ("parallelism", "true_rate", "capacity", "most", "expected"),
    [
        (2, 100, 101, None, 3),
        (2, 100, 100, None, 2),
        (4, 100, 10, None, 1),
        (4, INF, 100, None, 1),  # it receives no records
        (4, NAN, 100, None, 4),  # unknown: it keeps its parallelism
        (4, 100, NAN, None, 4),
        (200, 100, INF, 720, 720),
        (200, 100, INF, None, 2**31 - 1),
        (4, 0, 100, 128, 128),
        (4, 100, 10_000, 128, 128),
    ],
)
def test_parallelism_grows_with_the_required_rate(
    parallelism: int, true_rate: float, capacity: float, most: int | None, expected: int
) -> None:
    assert needed_parallelism(parallelism, true_rate, capacity, most) == expected


# properties of any job

positive = st.floats(0.01, 1e6)


@st.composite
def chains(draw: st.DrawFn) -> tuple[Graph, dict[str, float], dict[str, float], dict[str, int]]:
    """A chain of vertices with their required rates, true rates and parallelism."""
    names = tuple(f"v{n}" for n in range(draw(st.integers(1, 5))))
    graph = Graph(names, tuple(pairwise(names)))
    ratios = {edge: draw(st.floats(0.01, 10)) for edge in graph.edges}
    targets = propagate(graph, {names[0]: draw(positive)}, ratios)
    return graph, targets, {name: draw(positive) for name in names}, {name: draw(st.integers(1, 50)) for name in names}


@given(chains())
def test_a_job_at_its_true_rate_has_exactly_one_vertex_at_its_limit_and_none_beyond(
    job: tuple[Graph, dict[str, float], dict[str, float], dict[str, int]],
) -> None:
    graph, targets, true_rates, _ = job
    found = job_true_rate(graph, targets, true_rates)
    grown = {name: target * found.rate / targets["v0"] for name, target in targets.items()}
    assert found.limiting is not None
    assert grown[found.limiting] == pytest.approx(true_rates[found.limiting])
    assert all(grown[name] <= true_rates[name] * (1 + 1e-9) for name in grown)


@given(chains(), st.sampled_from((0.25, 4.0, 1024.0)))
def test_rates_in_other_units_give_the_same_sizes(
    job: tuple[Graph, dict[str, float], dict[str, float], dict[str, int]], factor: float
) -> None:
    graph, targets, true_rates, widths = job
    other = {name: factor * value for name, value in targets.items()}
    other_rates = {name: factor * value for name, value in true_rates.items()}
    assert job_true_rate(graph, other, other_rates).rate == factor * job_true_rate(graph, targets, true_rates).rate
    for name, width in widths.items():
        assert needed_parallelism(width, other_rates[name], other[name]) == needed_parallelism(
            width, true_rates[name], targets[name]
        )


@given(chains(), st.floats(1, 100))
def test_more_load_never_needs_less(
    job: tuple[Graph, dict[str, float], dict[str, float], dict[str, int]], factor: float
) -> None:
    _, targets, true_rates, widths = job
    for name, width in widths.items():
        now = needed_parallelism(width, true_rates[name], targets[name], 128)
        assert now <= needed_parallelism(width, true_rates[name], targets[name] * factor, 128) <= 128


@given(positive, st.floats(0, 1000), st.lists(st.one_of(st.none(), st.floats(0, 1e6)), max_size=5))
def test_a_true_rate_is_never_below_what_it_does_now_unless_it_was_observed(
    records_in: float, busy: float, observed: list[float | None]
) -> None:
    seen = true_processing_rate(busy, records_in, observed)
    assert seen >= records_in * (1 - 1e-9) or close(seen, average(observed, 2))


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**9)), max_size=20), st.integers(0, 10**9))
def test_a_rate_depends_on_neither_order_nor_start(samples: list[tuple[int, int]], start: int) -> None:
    assume(len({at for at, _ in samples}) == len(samples))
    moved = [(at + start, value) for at, value in reversed(samples)]
    assert close(rate([*samples]), rate([*moved]))


def test_small_required_capacities_may_stay_unrounded() -> None:
    """Flink rounds all of them, so that 0.2 records/s at 50 % need nothing."""
    target = TargetRate(0.2)
    assert target_capacity(target, 0.5, seconds(0)) == 0
    assert target_capacity(target, 0.5, seconds(0), rounded_from=1) == pytest.approx(0.4)
    assert target_capacity(TargetRate(0.7), 0.5, seconds(0), rounded_from=1) == 1
    band: dict[str, Any] = {"utilization_target": 0.5, "catch_up_duration": seconds(0)}
    assert thresholds(target, FlinkOperator(**band), seconds(0)) == pytest.approx((0.25, 1.0))
    assert thresholds(target, Settings(**band), seconds(0)) == (0, 1)
