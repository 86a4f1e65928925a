"""The decisions of Flink's autoscaler: its own published cases, edge cases, and properties of any vertex."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autoscaler.core.dataflow import (
    Graph,
    Rates,
    TargetRate,
    divided,
    observed_while_catching_up,
    output_ratios,
    rate,
    target_rates,
    true_processing_rate,
)
from autoscaler_policies.flink_operator import excluded_periods
from autoscaler_policies.flink_operator.scaling import (
    MOST,
    Alignment,
    Change,
    Delayed,
    Load,
    Settings,
    Summary,
    Wanted,
    aligned,
    effectiveness,
    exceeds_quota,
    job_changes,
    job_slots,
    outside_band,
    processing_backlog,
    recent,
    restart_time,
    rounded,
    scaled,
    scaling_coefficient,
    vertex_change,
)
from tests.policies.reference_flink import busy_time, input_rate, source_rate

NAN, INF = math.nan, math.inf
CASES = json.loads((Path(__file__).parent / "data" / "flink_scaling.json").read_text())
Inputs = Mapping[str, Any]


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def number(value: Any) -> float:
    """A number of a case. JSON has no NaN and no infinity, so these are strings or missing."""
    return NAN if value is None else float(value)


# the published cases: each kind is a function of its inputs whose result has the form of `expected`


def settings(config: Inputs) -> Settings:
    """The options of a case."""
    return Settings(
        utilization_target=config["util_target"],
        target_utilization_boundary=config["util_boundary"],
        utilization_max=config.get("util_max"),
        utilization_min=config.get("util_min"),
        catch_up_duration=seconds(config["catch_up_s"]),
        scale_down_interval=seconds(config["scale_down_interval_s"]),
        scale_down_max_factor=config["max_scale_down"],
        scale_up_max_factor=config["max_scale_up"],
        vertex_min_parallelism=config["vertex_min"],
        vertex_max_parallelism=config["vertex_max"],
        scaling_parallelism_alignment_mode=Alignment(config["alignment"]),
        scaling_effectiveness_detection_enabled=config["eff_enabled"],
        scaling_effectiveness_threshold=config["eff_threshold"],
        observed_scalability_enabled=config["coef_enabled"],
        observed_scalability_min_observations=config["coef_min_obs"],
        observed_scalability_coefficient_min=config["coef_min"],
    )


def history(inputs: Inputs) -> list[Summary]:
    return [
        Summary(
            at,
            one["parallelism"],
            one.get("new_parallelism", 0),
            number(one["true_processing_rate"]),
            number(one.get("expected_processing_rate")),
        )
        for at, one in enumerate(inputs.get("history_oldest_first", ()))
    ]


def load(inputs: Inputs, **more: Any) -> Load:
    inputs = {**inputs, **more}
    return Load(
        parallelism=inputs["parallelism"],
        target=TargetRate(number(inputs["target_data_rate"]), number(inputs.get("catch_up_rate", 0))),
        true_rate=number(inputs["true_processing_rate"]),
        max_parallelism=inputs.get("max_parallelism", MOST),
        partitions=inputs.get("num_source_partitions", 0),
        keyed=inputs.get("has_hash_input", False),
    )


def decide(inputs: Inputs) -> Change:
    config = inputs["config"]
    return vertex_change(
        load(inputs),
        settings(config),
        seconds(config["restart_s"]),
        history=history(inputs),
        backlog=inputs.get("processing_backlog", False),
    )


def parallelism_scale(inputs: Inputs) -> int:
    return scaled(
        inputs["current_parallelism"],
        number(inputs["scale_factor"]),
        Alignment(inputs["alignment_mode"]),
        max_parallelism=inputs["max_parallelism"],
        partitions=inputs["num_source_partitions"],
        keyed=inputs["has_hash_input"],
        lower=inputs["lower_limit"],
        upper=inputs["upper_limit"],
    )


def alignment(inputs: Inputs) -> dict[str, Any]:
    found = aligned(
        Alignment(inputs["mode"]),
        inputs["current"],
        inputs["target"],
        max_parallelism=inputs["max_parallelism"],
        partitions=inputs["num_source_partitions"],
        keyed=inputs["has_hash_input"],
        lower=inputs["lower_limit"],
        upper=inputs["upper_limit"],
    )
    return {"parallelism": found}


def vertex_decision(inputs: Inputs) -> dict[str, Any]:
    found = decide(inputs)
    return {
        "parallelism": found.parallelism,
        "changed": found.changed,
        "outside_utilization_bound": found.outside,
        "expected_processing_rate": found.expected_rate,
    }


def job_decision(inputs: Inputs) -> list[str]:
    return sorted(job_parallelism(inputs))


def job_parallelism(inputs: Inputs) -> dict[str, int]:
    config = inputs["config"]
    most = inputs["max_parallelism"]
    found = job_changes(
        {name: load({"max_parallelism": most, **vertex}) for name, vertex in inputs["vertices"].items()},
        settings(config),
        seconds(config["restart_s"]),
        excluded=inputs["excluded"],
        backlog=inputs.get("processing_backlog", False),
    )
    return {name: change.parallelism for name, change in found.changed.items()}


def expected_rate(inputs: Inputs) -> dict[str, Any]:
    return vertex_decision(inputs)


def scale_down_window(inputs: Inputs) -> list[dict[str, Any]]:
    delayed: Delayed | None = None
    found = []
    for step in inputs["steps"]:
        config = {**inputs["config"], **step.get("config_override", {})}
        change = vertex_change(
            load(step, max_parallelism=inputs["max_parallelism"]),
            settings(config),
            seconds(config["restart_s"]),
            delayed=delayed,
            now=step["t_s"],
        )
        delayed = change.delayed
        found.append(
            {
                "t_s": step["t_s"],
                "parallelism": change.parallelism,
                "pending_after": delayed is not None,
                "changed": change.changed,
                "outside_utilization_bound": change.outside,
            }
        )
    return found


def sliding_max(inputs: Inputs) -> list[list[int | None]]:
    delayed = Delayed(inputs["pushes"][0][0])
    for at, parallelism in inputs["pushes"]:
        delayed = delayed.push(at, parallelism, outside=True)
    found: list[list[int | None]] = []
    for start in inputs["query_window_starts"]:
        delayed = delayed.within(start)
        found.append([start, delayed.greatest.parallelism if delayed.wanted else None])
    return found


def scaling_effectiveness(inputs: Inputs) -> list[int]:
    past: list[Summary] = []
    found = []
    for at, step in enumerate(inputs["steps"]):
        config = {**inputs["config"], **step["config_override"]}
        vertex = load(step, max_parallelism=inputs["max_parallelism"])
        change = vertex_change(vertex, settings(config), seconds(config["restart_s"]), history=past)
        found.append(change.parallelism)
        if step["recorded_in_history"]:
            past.append(Summary(at, vertex.parallelism, change.parallelism, vertex.true_rate, change.expected_rate))
    return found


def coefficient(inputs: Inputs) -> dict[str, Any]:
    config = inputs["config"]
    return {"value": scaling_coefficient(history(inputs), config["coef_min_obs"], config["coef_min"])}


def backlog_detection(inputs: Inputs) -> bool:
    return processing_backlog(
        number(inputs["lag_records"]), number(inputs["input_rate"]), seconds(inputs["lag_threshold_s"])
    )


def excluded_period(inputs: Inputs) -> list[bool] | bool:
    """Times of a case without a day are on a Thursday; a case without times asks whether the period can be read."""
    expressions = inputs.get("expressions") or [inputs["expression"]]
    try:
        periods = tuple(map(excluded_periods.parse, expressions))
    except ValueError:
        return False
    if "times" not in inputs:
        return True
    days = [time if " " in time or "T" in time else f"2023-12-14 {time}" for time in inputs["times"]]
    return [excluded_periods.excluded(periods, datetime.fromisoformat(day)) for day in days]


def restart(inputs: Inputs) -> float:
    config = inputs.get("config", inputs)
    return restart_time(
        inputs.get("restarts_s", ()),
        seconds(config["restart_s"]),
        tracked=config.get("tracking_enabled", False),
        limit=seconds(config.get("limit_s", 900)),
    ) / seconds(1)


def quota(inputs: Inputs) -> bool:
    return exceeds_quota(
        inputs["slot_group_parallelism_now"],
        inputs["slot_group_parallelism_new"],
        inputs["slots_per_tm"],
        worker_cpu=inputs["tm_cpu"],
        worker_memory=inputs["tm_mem_gib"],
        cpu=inputs.get("quota_cpu"),
        memory=inputs.get("quota_mem"),
    )


def end_to_end(inputs: Inputs) -> list[int] | int | None:
    """Two vertices, `source` and `sink`, with the same input; each window is measured, evaluated and decided."""
    config = inputs["config"]
    if "sample_s" in inputs:
        return _first_change(inputs)
    known = inputs["windows"] if "windows" in inputs else [inputs["window"]]
    found = [_evaluated(config, window) for window in known]
    return found if "windows" in inputs else found[0]


def _first_change(inputs: Inputs) -> list[int] | None:
    """The first change, and its time, of two vertices whose busy times change from period to period."""
    known = inputs["parallelism"]
    busy: dict[str, list[float]] = {"source": [], "sink": []}
    delayed: dict[str, Delayed] = {}
    for sample in range(len(inputs["source_busy_ms_per_s"]) * inputs["samples_per_period"]):
        for name, seen in busy.items():
            seen.append(inputs[f"{name}_busy_ms_per_s"][sample // inputs["samples_per_period"]] / 1000)
        if sample + 1 < inputs["window_samples"]:
            continue
        taken = float(inputs["records_in_per_s"])
        loads = {
            name: Load(
                parallelism=known[name],
                target=TargetRate(taken),
                true_rate=true_processing_rate(busy_time("MAX", seen[-inputs["window_samples"] :]), taken),
                max_parallelism=4000,
            )
            for name, seen in busy.items()
        }
        now = (sample + 1) * inputs["sample_s"]
        job = job_changes(loads, settings(inputs["config"]), delayed=delayed, now=now)
        if job.changed:
            return [now, *(job.changed[name].parallelism if name in job.changed else known[name] for name in busy)]
        delayed = {name: change.delayed for name, change in job.changes.items() if change.delayed is not None}
    return None


def _evaluated(config: Inputs, window: Inputs) -> int:
    graph = Graph(("source", "sink"), (("source", "sink"),))
    counted = [(at * 1000, count) for at, count, _ in window["samples"]]
    lags = [(at * 1000, lag) for at, _, lag in window["samples"]]
    per_second = [window["records_in_per_s_metric"]] * len(counted) if "records_in_per_s_metric" in window else []
    aggregator = config["busy_agg"]
    taken = input_rate(aggregator, counted, per_second)
    busy = busy_time(aggregator, [window["busy_max_ms_per_s"] / 1000] * len(counted))
    threshold = seconds(config["observed_lag_threshold_s"])
    observed = [observed_while_catching_up(taken, lag, 0, threshold=threshold) for _, lag in lags]
    catch_up, stopped = seconds(config["catch_up_s"]), seconds(config["restart_s"])
    flowing = rate(counted)
    ratios = output_ratios(graph, {"source": Rates(flowing, flowing), "sink": Rates(flowing)})
    targets = target_rates(graph, {"source": source_rate(counted, lags, catch_up)}, ratios)
    true_rates = {
        "source": true_processing_rate(
            busy, taken, observed, switch_threshold=config["observed_switch"], minimum=config["observed_min_obs"]
        ),
        "sink": true_processing_rate(busy, taken),
    }
    behind = processing_backlog(lags[-1][1], flowing, seconds(config["lag_threshold_s"]))
    most = {"source": 720 if window["parallelism"] == 1 else 24, "sink": 720}
    loads = {
        name: Load(
            parallelism=window["parallelism"],
            target=targets[name],
            true_rate=true_rates[name],
            max_parallelism=most[name],
        )
        for name in ("source", "sink")
    }
    changed = job_changes(loads, settings(config), stopped, backlog=behind, now=window["at_s"]).changed
    sizes = {changed[name].parallelism if name in changed else vertex.parallelism for name, vertex in loads.items()}
    assert len(sizes) == 1
    return sizes.pop()


RUNNERS: Mapping[str, Callable[[Inputs], Any]] = {
    "parallelism_scale": parallelism_scale,
    "alignment": alignment,
    "vertex_decision": vertex_decision,
    "job_decision": job_decision,
    "expected_rate": expected_rate,
    "scale_down_window": scale_down_window,
    "sliding_max": sliding_max,
    "scaling_effectiveness": scaling_effectiveness,
    "scaling_coefficient": coefficient,
    "backlog_detection": backlog_detection,
    "excluded_period": excluded_period,
    "restart_time": restart,
    "quota": quota,
    "end_to_end": end_to_end,
}


def agrees(found: Any, expected: Any) -> bool:
    """Whether the result has everything that is expected."""
    if isinstance(expected, dict):
        ranged = "range" not in expected or expected["range"][0] <= found["value"] <= expected["range"][1]
        return ranged and all(agrees(found[key], value) for key, value in expected.items() if key != "range")
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(agrees, found, expected))
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, rel=1e-12))
    return bool(found == expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']}: {case['name']}")
def test_published_cases(case: Inputs) -> None:
    found = RUNNERS[case["kind"]](case["inputs"])
    # Cases from before 1.16, where a source may have more subtasks than partitions, also have the present value.
    expected = {"parallelism": case["fixed_value"]} if "fixed_value" in case else case["expected"]
    assert agrees(found, expected), found


@pytest.mark.parametrize("case", [case for case in CASES if "new_parallelism" in case], ids=lambda case: case["name"])
def test_every_vertex_of_a_published_job_gets_the_parallelism_it_needs(case: Inputs) -> None:
    assert job_parallelism(case["inputs"]) == case["new_parallelism"]


# alignment


def searched(mode: Alignment, current: int, target: int, count: int, most: int, lower: int) -> int:
    """The search as in the original, one number after the other."""
    if mode is Alignment.OFF:
        return target
    target = min(target, count)
    if target == current:
        return current
    rises = target > current
    loose = mode in {Alignment.BALANCED, Alignment.LEGACY_MAXIMIZE_UTILISATION}
    for p in range(target, (most if rises else min(current, most)) + 1):
        if count % p == 0 or (loose and count // p < count // target):
            return p
    if mode in {Alignment.BALANCED, Alignment.EVENLY_SPREAD}:
        return target
    p = target
    while p > 0:
        if count // p > count // target:
            if count % p:
                p += 1
            break
        p -= 1
    p = max(p, lower)
    if (rises and p <= current) or (not rises and p >= current):
        return current
    return p


@given(
    st.sampled_from(Alignment),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 200),
    st.integers(0, 200),
    st.integers(1, 60),
    st.integers(1, 200),
)
def test_the_closed_form_finds_what_the_search_finds(
    mode: Alignment, current: int, target: int, most: int, partitions: int, lower: int, upper: int
) -> None:
    upper = max(lower, upper)
    target = min(max(target, lower), most, upper)
    current = min(max(current, lower), upper)
    assume(target != current and target >= lower)
    count = partitions or most
    found = aligned(
        mode,
        current,
        target,
        max_parallelism=most,
        partitions=partitions,
        keyed=True,
        lower=lower,
        upper=upper,
    )
    assert found == searched(mode, current, target, count, min(count, most, upper), lower)


@given(st.sampled_from(Alignment), st.integers(1, 300), st.floats(0, 300), st.integers(1, 64), st.integers(1, 500))
def test_a_capped_source_never_has_an_idle_subtask_where_it_is_aligned(
    mode: Alignment, current: int, factor: float, partitions: int, most: int
) -> None:
    current = min(current, partitions)
    assume(mode is not Alignment.OFF)
    found = scaled(current, factor, mode, partitions=partitions, max_parallelism=max(most, current))
    assert 1 <= found <= partitions


def test_a_vertex_without_partitions_and_keys_is_not_aligned() -> None:
    assert aligned(Alignment.EVENLY_SPREAD, 16, 24, max_parallelism=128) == 24


def test_a_target_equal_to_the_present_parallelism_stays_even_if_it_divides_nothing() -> None:
    for mode in Alignment:
        assert aligned(mode, 7, 7, max_parallelism=720, keyed=True) == 7


def test_a_source_above_its_partitions_is_reduced_to_them() -> None:
    assert scaled(100, 1.0, partitions=15, max_parallelism=180) == 15


def test_a_value_that_no_int_can_hold_is_converted_as_in_java() -> None:
    assert scaled(3, INF, max_parallelism=100) == 100
    assert scaled(3, NAN) == 1
    assert scaled(200, 2.0**40) == MOST


def test_contradicting_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="500"):
        scaled(200, 2.0, lower=500, upper=499)


# the coefficient


def summary(parallelism: int, true_rate: float, new: int = 0, expected: float = NAN, at: float = 0) -> Summary:
    return Summary(at, parallelism, new, true_rate, expected)


def test_of_several_smallest_sizes_the_last_is_the_baseline() -> None:
    assert scaling_coefficient([summary(2, 200), summary(2, 100), summary(4, 160)], 3, 0.0) == 1.0
    assert scaling_coefficient([summary(2, 100), summary(2, 200), summary(4, 160)], 3, 0.0) == 0.52


def test_a_history_without_rates_counts_as_linear() -> None:
    assert scaling_coefficient([], 0) == 1.0
    assert scaling_coefficient([summary(2, NAN)] * 3) == 1.0
    assert scaling_coefficient([summary(2, 80), summary(4, NAN), summary(8, 300)]) == 1.0
    assert scaling_coefficient([summary(2, 0.0), summary(4, 0.0), summary(8, 0.0)]) == 1.0


def test_the_coefficient_stays_between_its_minimum_and_1() -> None:
    steep = [summary(1, 100), summary(2, 101), summary(4, 102)]
    assert scaling_coefficient(steep) == 0.5
    assert scaling_coefficient([summary(1, 10), summary(2, 100), summary(4, 1000)]) == 1.0


# a vertex

PLAIN = Settings(
    utilization_target=1.0,
    catch_up_duration=seconds(0),
    scale_down_interval=seconds(0),
    scale_down_max_factor=1.0,
    scale_up_max_factor=float(MOST),
)


def vertex(
    parallelism: int = 10, target: float = 100, true_rate: float = 100, catch_up: float = 0, **more: Any
) -> Load:
    return Load(parallelism=parallelism, target=TargetRate(target, catch_up), true_rate=true_rate, **more)


def test_an_unknown_vertex_keeps_its_parallelism_and_its_pending_scale_down() -> None:
    waits = Delayed(5).push(5, 3, outside=True)
    for unknown in (vertex(true_rate=NAN), vertex(target=NAN), vertex(catch_up=NAN)):
        found = vertex_change(unknown, PLAIN, delayed=waits)
        assert (found.parallelism, found.changed, found.delayed) == (10, False, waits)
        assert "not known" in (found.why or "")


def test_an_idle_vertex_goes_down_by_the_largest_step() -> None:
    found = vertex_change(vertex(target=0, true_rate=INF), Settings(scale_down_interval=seconds(0)))
    assert (found.parallelism, found.outside) == (4, True)


def test_a_rise_or_an_unchanged_size_cancels_the_wait_for_a_scale_down() -> None:
    waits = Delayed(0).push(0, 3, outside=True)
    waiting = Settings(utilization_target=1.0, catch_up_duration=seconds(0))
    assert vertex_change(vertex(target=100), waiting, delayed=waits, now=9).delayed is None
    assert vertex_change(vertex(target=200), waiting, delayed=waits, now=9).delayed is None


def test_a_scale_down_happens_at_the_very_end_of_the_interval_with_the_flag_of_its_maximum() -> None:
    waiting = replace(PLAIN, scale_down_interval=seconds(60))
    found = vertex_change(vertex(target=90), waiting, now=0)
    assert found.why == "parallelism 9 is enough, scaling down in 60 s at the earliest"
    found = vertex_change(vertex(target=20), waiting, now=60, delayed=found.delayed)
    assert (found.parallelism, found.changed, found.outside, found.expected_rate) == (9, True, False, 90)
    found = vertex_change(vertex(target=20), waiting, now=61, delayed=found.delayed)
    assert (found.parallelism, found.outside) == (2, True)


def test_an_ineffective_scale_up_blocks_further_ones_only_if_configured() -> None:
    past = [summary(5, 50, 10, 100)]
    blocking = Settings(
        utilization_target=1.0, catch_up_duration=seconds(0), scaling_effectiveness_detection_enabled=True
    )
    found = vertex_change(vertex(target=200, true_rate=52), blocking, history=past)
    assert (found.parallelism, found.changed) == (10, False)
    assert found.why == "the last scale up gained 4% of what was expected"
    assert vertex_change(vertex(target=200, true_rate=52), PLAIN, history=past).changed
    assert vertex_change(vertex(target=200, true_rate=55), blocking, history=past).changed
    assert vertex_change(vertex(5, target=200, true_rate=52), blocking, history=past).changed  # scaled manually since
    assert vertex_change(vertex(target=200, true_rate=52), blocking, history=[summary(20, 50, 10, 25)]).changed


def test_a_scale_up_without_an_expected_gain_counts_as_ineffective_as_in_java() -> None:
    assert math.isnan(effectiveness(summary(5, 50, 10, 50), 50))
    assert effectiveness(summary(5, 50, 10, 50), 60) == INF
    blocking = Settings(
        utilization_target=1.0, catch_up_duration=seconds(0), scaling_effectiveness_detection_enabled=True
    )
    assert not vertex_change(vertex(target=200, true_rate=50), blocking, history=[summary(5, 50, 10, 50)]).changed


def test_a_backlog_widens_the_band() -> None:
    busy = Settings(utilization_target=0.8, utilization_max=0.9, utilization_min=0.7, catch_up_duration=seconds(60))
    assert outside_band(vertex(target=10, true_rate=100), busy, seconds(0))
    assert not outside_band(vertex(target=10, true_rate=100), busy, seconds(0), backlog=True)
    assert outside_band(vertex(target=95, true_rate=100), busy, seconds(0))
    assert not outside_band(vertex(target=95, true_rate=100), busy, seconds(0), backlog=True)


@given(
    st.integers(1, 100),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.floats(1, 1e6),
    st.sampled_from([Alignment.BALANCED, Alignment.OFF]),
    st.booleans(),
)
def test_a_higher_load_never_lowers_the_parallelism_of_a_vertex(
    parallelism: int, low: float, more: float, true_rate: float, mode: Alignment, keyed: bool
) -> None:
    given_settings = Settings(scale_down_interval=seconds(0), scaling_parallelism_alignment_mode=mode)
    less, much = (
        vertex_change(
            vertex(parallelism, target, true_rate, max_parallelism=720, keyed=keyed), given_settings, seconds(60)
        ).parallelism
        for target in (low, low + more)
    )
    assert less <= much


@given(st.integers(1, 100), st.floats(allow_nan=True), st.floats(allow_nan=True), st.floats(allow_nan=True))
def test_any_number_gives_a_parallelism_within_the_limits(
    parallelism: int, target: float, true_rate: float, catch_up: float
) -> None:
    found = vertex_change(vertex(parallelism, target, true_rate, catch_up), Settings(), seconds(60))
    assert min(1, parallelism) <= found.parallelism <= max(200, parallelism)


# backlog, slots, quotas


def test_a_source_with_an_unknown_rate_has_no_backlog() -> None:
    assert not processing_backlog(1e9, NAN, seconds(300))
    assert not processing_backlog(NAN, 100, seconds(300))
    assert not processing_backlog(0, 0, seconds(300))
    assert processing_backlog(1, 0, seconds(300))


@pytest.mark.parametrize(
    ("groups", "slots"),
    [
        ([], 0),
        ([(7, 128)], 7),
        ([(4, 128), (1, 128)], 8),
        ([(4, 128), (1, 2)], 6),
        ([(4, 3)], 4),
    ],
)
def test_each_slot_sharing_group_gets_equally_many(groups: list[tuple[int, int]], slots: int) -> None:
    assert job_slots(groups) == slots


def test_a_change_without_more_workers_never_exceeds_the_quota() -> None:
    assert not exceeds_quota([8], [8], 2, worker_cpu=2, cpu=1)
    assert not exceeds_quota([8], [9], 2, worker_cpu=2, cpu=1)  # 4.5 workers count as 4, as in the original
    assert exceeds_quota([8], [10], 2, worker_cpu=2, cpu=1)


# time


CONFIGURED = timedelta(minutes=5)


@pytest.mark.parametrize(
    ("seen", "tracked", "expected"),
    [
        ((), True, 300),
        ((180, 299), False, 300),
        ((180, 899), True, 899),
        ((180, 901), True, 900),
        ((180, None), True, 180),
        ((None,), True, 300),
        ((40.9,), True, 40),
    ],
)
def test_the_longest_observed_restart_counts_up_to_the_limit(
    seen: tuple[float | None, ...], tracked: bool, expected: float
) -> None:
    assert restart_time(seen, CONFIGURED, tracked=tracked) == seconds(expected)


def test_a_configured_restart_time_has_no_limit() -> None:
    assert restart_time((180,), seconds(901), tracked=False) == seconds(901)


def test_the_history_is_trimmed_by_age_and_count() -> None:
    hour = 3600.0
    assert recent((0, hour, 2 * hour), 3 * hour, timedelta(hours=2), 5) == (hour, 2 * hour)
    assert recent((0, hour, 2 * hour), 3 * hour, timedelta(hours=9), 2) == (hour, 2 * hour)
    assert recent((0.0,), 3 * hour, timedelta(hours=2), 2) == ()
    assert recent((0.0,), 3 * hour, timedelta(hours=2), 2, keep_last=True) == (0.0,)
    assert recent((0.0, hour), hour, timedelta(hours=2), 0) == ()


@pytest.mark.parametrize(
    ("dividend", "divisor", "expected"), [(1, 2, 0.5), (1, 0, INF), (-1, 0, -INF), (0, 0, NAN), (NAN, 0, NAN)]
)
def test_divisions_give_the_results_of_java(dividend: float, divisor: float, expected: float) -> None:
    found = divided(dividend, divisor)
    assert found == expected or (math.isnan(found) and math.isnan(expected))


def test_times_without_a_zone_are_local_times() -> None:
    assert excluded_periods.excluded((excluded_periods.parse("12:00-13:00"),), datetime(2026, 1, 1, 12, 30, tzinfo=UTC))


# rounding errors of means


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (102564.10256410255, 102564.103),
        (0.0005, 0.001),
        (1.0005, 1.001),
        (0.0004, 0.0004),
        (0.0, 0.0),
        (2.0**60 / 3, 2.0**60 / 3),
        (INF, INF),
    ],
)
def test_rates_are_in_thousandths_and_never_truncated_to_zero(value: float, expected: float) -> None:
    assert rounded(value) == expected


def test_unknown_rates_stay_unknown_and_small_rates_are_not_rounded() -> None:
    assert math.isnan(rounded(NAN))
    assert rounded(12.34567, 100.0) == 12.34567
    assert rounded(123.4567, 100.0) == 123.457


def test_the_last_digit_of_a_mean_costs_no_subtask() -> None:
    share = sum([0.78] * 10) / 10
    assert share != 0.78
    known = Settings(utilization_target=0.8, catch_up_duration=timedelta(0), scale_down_interval=timedelta(0))
    assert (
        vertex_change(Load(parallelism=200, target=TargetRate(80_000.0), true_rate=80_000 / share), known).parallelism
        == 195
    )


# edge cases


def test_of_two_equal_sizes_the_later_one_counts() -> None:
    delayed = Delayed(0.0).push(0.0, 3, outside=False).push(1.0, 3, outside=True)
    assert delayed.wanted == (Wanted(1.0, 3, outside=True),)


def test_a_rate_at_the_edge_of_its_band_is_within() -> None:
    known = Settings(utilization_target=0.8, utilization_max=0.9, utilization_min=0.5, catch_up_duration=seconds(0))
    target = TargetRate(900.0)
    for true_rate, outside in ((999.999, True), (1000.0, False), (1800.0, False), (1800.001, True)):
        assert outside_band(Load(parallelism=10, target=target, true_rate=true_rate), known, timedelta(0)) is outside
