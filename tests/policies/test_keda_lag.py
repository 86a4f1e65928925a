from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.config import load
from autoscaler.core.expression import Expression
from autoscaler.core.model import (
    AMOUNT,
    MOST_LEARNED,
    ClusterSpec,
    ClusterState,
    Limits,
    NamedPolicy,
    Observation,
    Reading,
    Reason,
    View,
)
from autoscaler.core.step import step
from autoscaler.testing import PolicyContract
from autoscaler_policies.keda.policy import Fallback, KedaLag, Trigger
from autoscaler_policies.keda.rules import (
    Behaviour,
    Reset,
    factors,
    hpa_average_size,
    milli,
    next_factor,
    safe_fallback_size,
    safe_partition_lag,
    safe_size,
)
from tests.policies.reference_keda import exported_lag

Make = Callable[..., View]
Inputs = Mapping[str, Any]
CASES = json.loads((Path(__file__).parent / "data" / "keda.json").read_text())
FORMULA_KEYS = {"formula", "target", "fallback_replicas"}

# Deliberate differences from KEDA, case by case: the result of the policy, and the reason.
DIFFERENCES: Mapping[str, tuple[object, str]] = {
    "invalid offset, earliest, partition missing": (None, "what is missing is not zero"),
    "valid offset, partition missing from latest": (None, "what is missing is not zero"),
    "the log ends before the offset": (None, "lag below zero would hide the lag of other partitions"),
    "off by one: integer division lets one consumer too many through": (5, "a sixth consumer of 5 partitions idles"),
    "tolerance stops one short of the cap": (64, "the lag asks for 149 replicas, so 63 are not about right"),
    "static ignores current 15": (15, "nothing is lowered while nothing is known"),
    "currentReplicasIfLower lowers 15 to 10": (15, "nothing is lowered while nothing is known"),
    "an error with a fallback of 0: 10 -> 0": (10, "nothing is lowered while nothing is known"),
}


def cap(i: Inputs) -> float:
    return exported_lag(
        i["total_lag"],
        i["lag_threshold"],
        i["partitions"],
        with_lag=i.get("partitions_with_lag"),
        allow_idle=i.get("allow_idle_consumers", False),
        only_with_lag=i.get("limit_to_partitions_with_lag", False),
        even=i.get("ensure_even_distribution", False),
    )


def run(kind: str, i: Inputs) -> object:
    match kind:
        case "kafka_factors":
            return list(factors(i["partitions"]))
        case "kafka_even_distribution":
            return next_factor(i["lag"], i["partitions"], i["lag_threshold"])
        case "kafka_cap_then_hpa":
            size = hpa_average_size(cap(i), i["lag_threshold"], i["current_replicas"])
            return {"exported_lag": cap(i), "replicas": size}
        case "scaling_modifier":
            values = {name: value for name, value in i.items() if name not in FORMULA_KEYS}
            found = Expression(i["formula"]).compute(values)
            return i.get("fallback_replicas", 0) * i.get("target", 1) if found is None else milli(found)
    raise AssertionError(kind)


RULES = [case for case in CASES if case["kind"] not in ("kafka_partition_lag", "fallback", "activation")]


@pytest.mark.parametrize("case", RULES, ids=[f"{case['kind']}: {case['name']}" for case in RULES])
def test_the_rules_give_the_results_of_keda(case: Mapping[str, Any]) -> None:
    assert run(case["kind"], case["inputs"]) == pytest.approx(case["expected"], abs=1e-12)


def ours(view: Make, kind: str, i: Inputs) -> object:
    """The result of the policy for a case."""
    if kind == "kafka_partition_lag":
        reset = Reset(i["offset_reset_policy"])
        zero = i["scale_to_zero_on_invalid_offset"]
        return safe_partition_lag(i["committed_offset"], i["latest_offset"], reset, zero_on_invalid=zero)
    if kind == "kafka_cap_then_hpa":
        trigger = Trigger(
            lag_threshold=i["lag_threshold"],
            allow_idle_consumers=i.get("allow_idle_consumers", False),
            ensure_even_distribution_of_partitions=i.get("ensure_even_distribution", False),
        )
        seen = view({"lag": float(i["total_lag"])}, current=i["current_replicas"], minimum=0, maximum=1000)
        seen = replace(seen, metrics={"lag": replace(seen.metrics["lag"], partitions=i["partitions"])})
        return KedaLag(triggers=(trigger,)).evaluate(seen).replicas
    if kind == "fallback":
        return safe_fallback_size(Behaviour(i["behavior"]), i["current_replicas"], i["fallback_replicas"])
    seen = view({}, current=i["current_replicas"], minimum=0, maximum=1000)
    return KedaLag(triggers=(Trigger(),)).evaluate(seen).replicas or i["current_replicas"]


def test_the_defaults_are_those_of_keda() -> None:
    assert safe_partition_lag(-1, 150) == 1
    assert exported_lag(5000, 10, 8) == exported_lag(5000, 10, 8, with_lag=2) == 80


def test_a_number_too_large_for_thousandths_is_not_truncated() -> None:
    assert milli(1e308) == 1e308
    assert milli(-2.0009) == -2.0


def test_the_policy_differs_from_keda_only_where_intended(view: Make) -> None:
    left = set(DIFFERENCES)
    for case in CASES:
        kind, inputs, expected = case["kind"], case["inputs"], case["expected"]
        if kind in ("kafka_factors", "kafka_even_distribution", "scaling_modifier"):
            continue
        if inputs.get("limit_to_partitions_with_lag"):
            continue  # needs the lag of each partition
        if kind == "kafka_cap_then_hpa":
            # Without lag no trigger is active, and one replica stays until the end of the cooldown.
            expected = max(expected["replicas"], 1)
        elif kind == "fallback":
            expected = expected["metric_value"] / inputs["target"]
        if case["name"] in DIFFERENCES:
            left.remove(case["name"])
            assert expected != DIFFERENCES[case["name"]][0]
            expected = DIFFERENCES[case["name"]][0]
        assert ours(view, kind, inputs) == expected, case["name"]
    assert not left


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", DIFFERENCES)
def test_every_difference_from_keda_is_on_the_page(name: str) -> None:
    assert f"| {name} |" in (DOCS / "policies" / "hpa-keda.md").read_text()


def test_the_migration_from_keda_on_the_page_is_equivalent(tmp_path: Path) -> None:
    section = (DOCS / "policies" / "hpa-keda.md").read_text().partition("## From KEDA")[2]
    before, after = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)[:2]
    path = tmp_path / "autoscaler.yaml"
    path.write_text(after)
    cluster = load(path, {}).clusters["orders"]
    keda = yaml.safe_load(before)["spec"]
    given_, fallen = keda["triggers"][0]["metadata"], keda["fallback"]
    policy = KedaLag(
        triggers=(
            Trigger(
                metric="lag",
                lag_threshold=float(given_["lagThreshold"]),
                activation_lag_threshold=float(given_["activationLagThreshold"]),
                exclude_persistent_lag=given_["excludePersistentLag"] == "true",
                persistent_after=timedelta(0),
            ),
        ),
        fallback=Fallback(fallen["replicas"], fallen["failureThreshold"], Behaviour(fallen["behavior"])),
        active_minimum=keda["minReplicaCount"],
        # one after the other
        cooldown=timedelta(seconds=keda["cooldownPeriod"]) - cluster.spec.down.window,
    )
    assert cluster.spec.policies == (NamedPolicy("keda", policy),)
    assert cluster.spec.limits == Limits(keda["idleReplicaCount"], keda["maxReplicaCount"])
    assert cluster.interval == timedelta(seconds=keda["pollingInterval"])
    assert idle_after(cluster.spec) == timedelta(seconds=keda["cooldownPeriod"])


def idle_after(spec: ClusterSpec) -> timedelta:
    """The time from the last lag until a cluster goes to its minimum, all guards considered."""
    at, state, size = datetime(2026, 1, 1, tzinfo=UTC), ClusterState(), 2
    last = at + 9 * spec.interval
    while size > spec.limits.minimum and at < last + timedelta(hours=1):
        lag_of = Reading(3000.0 if at <= last else 0.0, at)
        state, decision = step(spec, state, Observation(at=at, desired=size, ready=size, metrics={"lag": lag_of}))
        size, at = decision.desired, at + spec.interval
    return state.past[-1].at - last


def lag(
    view: Make,
    value: float | tuple[float, ...],
    *,
    partitions: int | None = None,
    parts: Mapping[str, Mapping[str, float]] | None = None,
    memory: Mapping[str, float] | None = None,
    **more: Any,
) -> View:
    seen = view({"lag": value}, **{"current": 2, "maximum": 100, **more})
    reading = replace(seen.metrics["lag"], partitions=partitions, parts=parts or {})
    return replace(seen, metrics={**seen.metrics, "lag": reading}, memory=memory or {})


@pytest.mark.parametrize(
    ("value", "current", "expected", "reason"),
    [
        (500.0, 2, 50, Reason.ABOVE),
        (5.0, 2, 1, Reason.BELOW),
        (21.0, 2, 2, Reason.STEADY),
        (22.0, 2, 2, Reason.STEADY),
        (22.1, 2, 3, Reason.ABOVE),
        ((10.0, 20.0, 0.0), 1, 3, Reason.ABOVE),
        (1e308, 2, 100, Reason.ABOVE),
        (0.0, 2, 1, Reason.BELOW),
    ],
)
def test_requests_a_replica_per_threshold_of_lag(
    view: Make, value: float | tuple[float, ...], current: int, expected: int, reason: Reason
) -> None:
    answer = KedaLag(triggers=(Trigger(),)).evaluate(lag(view, value, current=current))
    assert (answer.replicas, answer.reason) == (expected, reason)


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        (Trigger(), 8),
        (Trigger(allow_idle_consumers=True), 50),
        (Trigger(limit_to_partitions_with_lag=True), 2),
        (Trigger(ensure_even_distribution_of_partitions=True, lag_threshold=100), 8),
        (Trigger(ensure_even_distribution_of_partitions=True, lag_threshold=200), 4),
    ],
)
def test_requests_no_more_replicas_than_the_partitions_can_use(view: Make, trigger: Trigger, expected: int) -> None:
    values = (250.0, 250.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert KedaLag(triggers=(trigger,)).evaluate(lag(view, values)).replicas == expected
    whole = lag(view, 500.0, partitions=8)
    limited = trigger.limit_to_partitions_with_lag
    # the partitions of a sum are unknown
    assert KedaLag(triggers=(trigger,)).evaluate(whole).replicas == (8 if limited else expected)


def test_partitions_of_the_engine_count_if_the_source_reports_none(view: Make) -> None:
    assert KedaLag(triggers=(Trigger(),)).evaluate(lag(view, 500.0, partitions=None)).replicas == 50
    seen = view({"lag": 500.0}, current=2, maximum=100, partitions=6)
    assert KedaLag(triggers=(Trigger(),)).evaluate(seen).replicas == 6


def test_a_size_within_the_tolerance_is_rounded_to_an_even_distribution(view: Make) -> None:
    even = KedaLag(triggers=(Trigger(ensure_even_distribution_of_partitions=True),))
    assert even.evaluate(lag(view, 95.0, partitions=20, current=10)).replicas == 10
    assert even.evaluate(lag(view, 95.0, partitions=20, current=9)).replicas == 10


def test_a_missing_metric_never_lowers_the_size(view: Make) -> None:
    answer = KedaLag(triggers=(Trigger(),)).evaluate(view({}, current=5, missing={"lag": "refused"}))
    assert (answer.replicas, answer.reason) == (None, Reason.MISSING)
    assert answer.detail == "no trusted reading of lag (refused)"


def test_a_partially_known_lag_is_a_lower_bound(view: Make) -> None:
    policy = KedaLag(triggers=(Trigger(),))
    short = lag(view, (100.0, 0.0), partitions=3, current=2)
    assert policy.evaluate(short).replicas == 3
    assert policy.evaluate(replace(short, current=3)).reason is Reason.STEADY
    assert policy.evaluate(replace(short, current=5)).reason is Reason.MISSING
    assert policy.evaluate(lag(view, (100.0, -1.0), current=5)).reason is Reason.MISSING
    assert policy.evaluate(lag(view, -1.0, current=1)).reason is Reason.MISSING


def test_the_largest_size_of_several_triggers_counts(view: Make) -> None:
    policy = KedaLag(triggers=(Trigger(), Trigger(metric="orders", lag_threshold=5)))
    seen = view({"lag": 40.0, "orders": 60.0}, current=2, maximum=100)
    assert policy.metrics == ("lag", "orders")
    assert policy.evaluate(seen).replicas == 12
    assert policy.evaluate(view({"lag": 40.0}, current=2, maximum=100)).replicas == 4
    assert policy.evaluate(view({"lag": 40.0}, current=8, maximum=100)).reason is Reason.MISSING


def offsets(**partitions: Mapping[str, float]) -> dict[str, Mapping[str, float]]:
    return dict(partitions)


def test_computes_the_lag_from_offsets_if_the_source_reports_them(view: Make) -> None:
    policy = KedaLag(triggers=(Trigger(offset_reset_policy=Reset.EARLIEST),))
    parts = offsets(a={"offset": 100, "end": 150}, b={"offset": -1, "end": 30}, c={"lag": 40.0})
    assert policy.evaluate(lag(view, 0.0, parts=parts)).inputs == {"lag": 120.0}
    done = offsets(a={"lag": 0.0}, b={"lag": 50.0})
    assert policy.evaluate(lag(view, 0.0, parts=done, current=9)).replicas == 2
    lost = offsets(a={"offset": 100}, b={"lag": -3.0}, c={"lag": 40.0})
    answer = policy.evaluate(lag(view, 0.0, parts=lost, current=1))
    assert (answer.replicas, answer.inputs) == (3, {"lag": 40.0})
    nothing = offsets(a={"offset": 100})
    assert policy.evaluate(lag(view, 0.0, parts=nothing)).reason is Reason.MISSING
    other = {"vertex": {"busy": 0.5}}
    assert policy.evaluate(lag(view, 50.0, parts=other)).inputs == {"lag": 50.0}


def later(seen: View, memory: Mapping[str, float], seconds: float, reading: Reading | None = None) -> View:
    now = seen.now + timedelta(seconds=seconds)
    metrics = {"lag": reading or replace(seen.metrics["lag"], at=seen.metrics["lag"].at + timedelta(seconds=seconds))}
    return replace(seen, now=now, metrics=metrics, memory=memory)


def test_the_lag_of_a_partition_whose_offset_stands_still_is_ignored_after_a_time(view: Make) -> None:
    policy = KedaLag(triggers=(Trigger(exclude_persistent_lag=True),))
    parts = offsets(a={"offset": 100, "end": 150}, b={"offset": 7, "end": 37}, c={"offset": -1, "end": 9})
    first = lag(view, 0.0, parts=parts)
    memory = policy.learn(first)
    assert policy.evaluate(replace(first, memory=memory)).inputs == {"lag": 81.0}
    moved = offsets(a={"offset": 100, "end": 150}, b={"offset": 8, "end": 38}, c={"offset": -1, "end": 9})
    soon = later(lag(view, 0.0, parts=moved), memory, 60)
    memory = policy.learn(soon)
    assert policy.evaluate(replace(soon, memory=memory)).inputs == {"lag": 81.0}
    late = later(lag(view, 0.0, parts=moved), memory, 300)
    memory = policy.learn(late)
    # a has stood still for 5 minutes, b for 4; a partition without an offset cannot stand still
    assert policy.evaluate(replace(late, memory=memory)).inputs == {"lag": 31.0}
    again = offsets(a={"offset": 101, "end": 150}, b={"offset": 9, "end": 38}, c={"offset": 2, "end": 9})
    back = later(lag(view, 0.0, parts=again), memory, 315)
    assert policy.evaluate(replace(back, memory=policy.learn(back))).inputs == {"lag": 85.0}
    assert policy.evaluate(back).inputs == {"lag": 85.0}


def test_without_a_waiting_time_an_offset_is_compared_with_the_previous_reading_as_in_keda(view: Make) -> None:
    policy = KedaLag(triggers=(Trigger(exclude_persistent_lag=True, persistent_after=timedelta(0)),))
    first = lag(view, 0.0, parts=offsets(a={"offset": 100, "end": 150}))
    memory = policy.learn(first)
    # a repeated reading is not a new one
    same = later(first, memory, 15, first.metrics["lag"])
    memory = policy.learn(same)
    assert policy.evaluate(replace(same, memory=memory)).inputs == {"lag": 50.0}
    second = later(first, memory, 15)
    memory = policy.learn(second)
    answer = policy.evaluate(replace(second, memory=memory))
    # it is still active: there is work, although nobody can do it
    assert (answer.inputs, answer.replicas) == ({"lag": 0.0}, 1)


def test_with_more_partitions_than_memory_allows_none_is_ignored(view: Make) -> None:
    policy = KedaLag(triggers=(Trigger(exclude_persistent_lag=True, persistent_after=timedelta(0)),))
    wide = {str(n): {"offset": 1.0, "end": 2.0} for n in range(500)}
    memory = policy.learn(lag(view, 0.0, parts=wide))
    assert set(memory) == {"lag failures", "active_at"}
    del wide["0"]
    assert len(policy.learn(lag(view, 0.0, parts=wide))) == MOST_LEARNED


def active(view: Make, policy: KedaLag, value: float, since: float | None, **more: Any) -> int | None:
    seen = lag(view, value, **{"minimum": 0, "current": 4, **more})
    memory = {} if since is None else {"active_at": seen.now.timestamp() - since}
    return policy.evaluate(replace(seen, memory=memory)).replicas


def test_goes_to_the_minimum_when_no_trigger_was_active_during_the_cooldown(view: Make) -> None:
    policy = KedaLag(triggers=(Trigger(activation_lag_threshold=50),), active_minimum=3)
    assert active(view, policy, 51.0, 1e6) == 6
    assert active(view, policy, 50.0, 299) == 5
    assert active(view, policy, 10.0, 299) == 3
    assert active(view, policy, 50.0, 300) == 0
    # nothing is known of the past
    assert active(view, policy, 50.0, None) == 5
    assert active(view, policy, 50.0, None, current=0) == 0
    assert active(view, policy, 51.0, None, current=0) == 6
    # the cluster's own minimum is enough
    assert active(view, policy, 10.0, 1e6, minimum=3) == 3
    assert active(view, policy, 50.0, 1e6, minimum=3) == 5


def test_an_unreadable_trigger_counts_as_active(view: Make) -> None:
    policy = KedaLag(triggers=(Trigger(),))
    quiet = view({"lag": 0.0}, minimum=0)
    first = policy.learn(quiet)
    now = quiet.now.timestamp()
    assert first == {"lag failures": 0.0, "active_at": now}
    hour = timedelta(hours=1)
    still = replace(quiet, now=quiet.now + hour, memory=first)
    assert policy.learn(still)["active_at"] == now
    blind = replace(still, metrics={})
    assert policy.learn(blind) == {"lag failures": 1.0, "active_at": now + 3600}


@pytest.mark.parametrize(
    ("behavior", "current", "failures", "expected"),
    [
        (Behaviour.STATIC, 4, 3, None),
        (Behaviour.STATIC, 4, 4, 10),
        (Behaviour.STATIC, 15, 4, 15),
        (Behaviour.CURRENT, 4, 4, 4),
        (Behaviour.IF_HIGHER, 4, 4, 10),
        (Behaviour.IF_LOWER, 15, 4, 15),
    ],
)
def test_falls_back_after_consecutive_failures_and_never_to_fewer(
    view: Make, behavior: Behaviour, current: int, failures: int, expected: int | None
) -> None:
    policy = KedaLag(triggers=(Trigger(),), fallback=Fallback(10, 3, behavior))
    seen = replace(view({}, current=current, maximum=100), memory={"lag failures": float(failures)})
    assert policy.evaluate(seen).replicas == expected


def test_failures_are_counted_until_a_reading_succeeds(view: Make) -> None:
    policy = KedaLag(triggers=(Trigger(),))
    seen = replace(view({}), memory={"lag failures": 7.0})
    assert policy.learn(seen)["lag failures"] == 8
    assert policy.learn(replace(seen, memory={"lag failures": 1e6}))["lag failures"] == 1e6
    assert policy.learn(lag(view, 3.0, memory={"lag failures": 7.0}))["lag failures"] == 0
    assert policy.learn(lag(view, (1.0,), partitions=2, memory={"lag failures": 7.0}))["lag failures"] == 8


BOTH = (Trigger(name="kafka"), Trigger(metric="orders", name="orders"))


def both(view: Make, kafka: float | tuple[float, ...] | None, orders: float | None, **more: Any) -> View:
    values = {"lag": kafka, "orders": orders}
    readings = {name: value for name, value in values.items() if value is not None}
    return view(readings, **{"current": 2, "maximum": 100, **more})


def test_a_formula_combines_all_triggers_into_one_number(view: Make) -> None:
    policy = KedaLag(triggers=BOTH, formula="kafka + orders", target=20)
    answer = policy.evaluate(both(view, 30.0, 100.0))
    assert (answer.replicas, answer.inputs) == (7, {"kafka": 30.0, "orders": 100.0})
    assert answer.detail == "the formula gives 130 at 20 per replica: 7 replicas"
    assert policy.evaluate(both(view, None, 100.0)).reason is Reason.MISSING


def test_the_inputs_of_a_formula_may_be_negative_as_in_keda() -> None:
    policy = KedaLag(triggers=(Trigger(metric="trend", name="trend"),), formula="trend + 100", target=10)
    assert policy.ranges == {}
    assert KedaLag(triggers=(Trigger(),)).ranges == {"lag": AMOUNT}


def test_a_formula_receives_lags_limited_by_the_partitions(view: Make) -> None:
    trigger = Trigger(ensure_even_distribution_of_partitions=True)
    for each, expected in ((Trigger(), 5), (Trigger(allow_idle_consumers=True), 46), (trigger, 5)):
        policy = KedaLag(triggers=(each,), formula="lag", target=10)
        assert policy.evaluate(lag(view, 460.0, partitions=5)).replicas == expected
    assert KedaLag(triggers=(trigger,), formula="lag", target=10).evaluate(lag(view, 25.0, partitions=4)).replicas == 4
    assert KedaLag(triggers=(trigger,), formula="lag", target=10).evaluate(lag(view, 25.0)).replicas == 3


def test_a_failing_trigger_is_nil_in_the_formula_and_lowers_nothing(view: Make) -> None:
    policy = KedaLag(triggers=BOTH, formula="kafka ?? orders", target=10, fallback=Fallback(7, 3, Behaviour.MODIFIERS))
    failing = {"kafka failures": 4.0}
    seen = both(view, None, 60.0)
    assert policy.evaluate(seen).reason is Reason.MISSING
    assert policy.evaluate(replace(seen, memory=failing)).replicas == 6
    assert policy.evaluate(replace(seen, memory=failing, current=9)).reason is Reason.MISSING
    # a partially known lag is not the whole lag
    part = replace(both(view, (20.0, -1.0), 60.0), memory=failing)
    assert policy.evaluate(part).replicas == 6
    blind = replace(both(view, None, None), memory={"kafka failures": 4.0, "orders failures": 4.0})
    assert policy.evaluate(blind).replicas == 2
    none = KedaLag(triggers=BOTH, formula="kafka ?? orders", target=10, fallback=Fallback(7, 3))
    assert none.evaluate(blind).replicas == 7


def test_a_formula_without_a_value_lowers_nothing(view: Make) -> None:
    policy = KedaLag(triggers=BOTH, formula="kafka / orders", target=10)
    answer = policy.evaluate(both(view, 5.0, 0.0))
    assert (answer.replicas, answer.reason) == (None, Reason.MISSING)
    assert answer.detail == "the formula cannot compute '/' at column 1: float division by zero"
    assert policy.learn(replace(both(view, 5.0, 0.0), memory={"active_at": 0.0}))["active_at"] > 0
    nil = KedaLag(triggers=BOTH, formula="kafka > 0 ? nil : orders", target=10)
    assert nil.evaluate(both(view, 5.0, 0.0)).reason is Reason.MISSING
    assert replace(nil, fallback=Fallback(7)).evaluate(both(view, 5.0, 0.0)).replicas == 7


def test_a_formula_determines_activity(view: Make) -> None:
    policy = KedaLag(triggers=BOTH, formula="kafka - orders", target=10, activation_target=5)
    quiet = both(view, 20.0, 15.0, minimum=0)
    old = {"active_at": quiet.now.timestamp() - 1e4}
    assert policy.learn(replace(quiet, memory=old))["active_at"] == old["active_at"]
    assert policy.evaluate(replace(quiet, memory=old)).replicas == 0
    busy = both(view, 20.0, 14.9, minimum=0)
    assert policy.learn(replace(busy, memory=old))["active_at"] == busy.now.timestamp()
    assert policy.evaluate(replace(busy, memory=old)).replicas == 1


def test_the_worked_numbers_of_the_page_hold(view: Make) -> None:
    def size(value: float, partitions: int | None, current: int = 1, *, even: bool = False) -> int | None:
        trigger = Trigger(lag_threshold=500, ensure_even_distribution_of_partitions=even)
        return KedaLag(triggers=(trigger,)).evaluate(lag(view, value, partitions=partitions, current=current)).replicas

    assert size(5000, None) == 10
    assert size(5000, 8) == size(5000, 8, even=True) == 8
    assert size(5000, 12, even=True) == 12
    assert size(4700, None, 9) == 9


def test_the_detail_explains_the_calculation(view: Make) -> None:
    answer = KedaLag(triggers=(Trigger(),)).evaluate(lag(view, 500.0, partitions=8))
    assert answer.detail == "lag 500 at 10 per replica: 8 replicas, at most 8 can be used"
    rest = replace(lag(view, 0.0, minimum=0), memory={"active_at": 0.0})
    assert KedaLag(triggers=(Trigger(),)).evaluate(rest).detail == (
        "lag 0 at 10 per replica: 0 replicas; no trigger is active: 0 replicas"
    )


def test_falls_back_in_a_step_of_the_daemon() -> None:
    policy = KedaLag(triggers=(Trigger(),), fallback=Fallback(6, 2))
    spec = ClusterSpec(name="c", limits=Limits(0, 10), policies=(NamedPolicy("keda", policy),), metrics=("lag",))
    state, at = ClusterState(), datetime(2026, 1, 1, tzinfo=UTC)
    sizes = []
    for tick in range(4):
        state, decision = step(
            spec,
            state,
            Observation(at=at + tick * spec.interval, desired=2, ready=2, metrics={}, missing={"lag": "refused"}),
        )
        sizes.append(decision.desired)
    assert sizes == [2, 2, 6, 6]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Trigger(metric=""), "metric: is empty"),
        (lambda: Trigger(lag_threshold=0), "lag_threshold: is 0, expected"),
        (lambda: Trigger(lag_threshold=math.nan), "lag_threshold: is nan, expected"),
        (lambda: Trigger(activation_lag_threshold=-1), "activation_lag_threshold: is -1, expected"),
        (lambda: Trigger(activation_lag_threshold=math.inf), "activation_lag_threshold: is inf, expected"),
        (
            lambda: Trigger(allow_idle_consumers=True, limit_to_partitions_with_lag=True),
            "allow_idle_consumers: is set together with limit_to_partitions_with_lag",
        ),
        (lambda: Trigger(persistent_after=timedelta(seconds=-1)), "persistent_after: is -1s, expected"),
        (lambda: Fallback(-1), "replicas: is -1, expected"),
        (lambda: Fallback(1, -1), "failure_threshold: is -1, expected"),
        (lambda: KedaLag(triggers=()), "triggers: is empty"),
        (
            lambda: KedaLag(triggers=(Trigger(), Trigger())),
            "triggers: have the names lag, lag, expected different ones",
        ),
        (lambda: KedaLag(triggers=(Trigger(),), formula="lag"), "target: is missing, expected"),
        (lambda: KedaLag(triggers=(Trigger(),), target=1), "target: is 1 without a formula, expected"),
        (lambda: KedaLag(triggers=(Trigger(),), formula="lag", target=0), "target: is 0, expected"),
        (lambda: KedaLag(triggers=(Trigger(),), formula="lag", target=math.inf), "target: is inf, expected"),
        (lambda: KedaLag(triggers=(Trigger(metric="a-b"),), formula="1", target=1), "triggers: have the name 'a-b'"),
        (lambda: KedaLag(triggers=(Trigger(metric="if"),), formula="1", target=1), "triggers: have the name 'if'"),
        (
            lambda: KedaLag(triggers=(Trigger(),), formula="1 + la", target=1),
            "formula: column 5: there is no trigger 'la'; trig",
        ),
        (
            lambda: KedaLag(triggers=(Trigger(),), formula="lag +", target=1),
            "formula: column 6: expected a number, a name",
        ),
        (
            lambda: KedaLag(triggers=(Trigger(),), fallback=Fallback(1, 3, Behaviour.MODIFIERS)),
            "fallback: has the behavior",
        ),
        (lambda: KedaLag(triggers=(Trigger(),), activation_target=math.nan), "activation_target: is nan, expected"),
        (lambda: KedaLag(triggers=(Trigger(),), active_minimum=0), "active_minimum: is 0, expected"),
        (lambda: KedaLag(triggers=(Trigger(),), cooldown=timedelta(seconds=-1)), "cooldown: is -1s, expected"),
        (lambda: KedaLag(triggers=(Trigger(),), tolerance=-0.1), "tolerance: is -0.1, expected"),
        (lambda: KedaLag(triggers=(Trigger(),), tolerance=math.inf), "tolerance: is inf, expected"),
    ],
)
def test_refuses_invalid_parameters(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_accepts_the_limits_of_valid_parameters() -> None:
    trigger = Trigger(activation_lag_threshold=0, persistent_after=timedelta(0))
    assert not trigger.exclude_persistent_lag
    assert KedaLag(triggers=(trigger,), fallback=Fallback(0, 0), cooldown=timedelta(0), tolerance=0).active_minimum == 1


@settings(deadline=None)  # a busy machine is not a failure
@given(
    lags=st.lists(st.floats(0, 1e6), min_size=1, max_size=12),
    more=st.floats(0, 1e6),
    current=st.integers(1, 20),
    even=st.booleans(),
)
def test_more_lag_never_gives_a_smaller_size_and_no_size_is_beyond_the_partitions(
    view: Make, lags: list[float], more: float, current: int, even: bool
) -> None:
    policy = KedaLag(triggers=(Trigger(lag_threshold=100, ensure_even_distribution_of_partitions=even),), tolerance=0)
    low = policy.evaluate(lag(view, tuple(lags), current=current)).replicas
    high = policy.evaluate(lag(view, (lags[0] + more, *lags[1:]), current=current)).replicas
    assert low is not None
    assert high is not None
    assert low <= high <= len(lags)


@settings(deadline=None)  # a busy machine is not a failure
@given(
    lag_=st.integers(0, 10_000), threshold=st.integers(1, 50), partitions=st.integers(1, 40), current=st.integers(1, 60)
)
def test_without_tolerance_it_is_kedas_size_less_the_consumer_too_many(
    lag_: int, threshold: int, partitions: int, current: int
) -> None:
    keda = hpa_average_size(exported_lag(lag_, threshold, partitions), threshold, current, 0)
    assert safe_size(lag_, threshold, current, bound=partitions, tolerance=0) == min(keda, partitions)
    assert keda <= partitions + 1


class TestContract(PolicyContract):
    @pytest.fixture
    def policy(self) -> KedaLag:
        return KedaLag(
            triggers=(Trigger(exclude_persistent_lag=True), Trigger(metric="arrivals")), fallback=Fallback(3)
        )


class TestContractOfAFormula(PolicyContract):
    @pytest.fixture
    def policy(self) -> KedaLag:
        return KedaLag(
            triggers=(Trigger(), Trigger(metric="arrivals")), formula="lag / arrivals", target=2, fallback=Fallback(3)
        )


def test_a_fallback_activates_an_idle_cluster(view: Make) -> None:
    policy = KedaLag(triggers=(Trigger(),), fallback=Fallback(6, 4))
    seen = replace(view({}, current=0, minimum=0), memory={"lag failures": 4.0})
    assert policy.evaluate(seen).replicas is None
    seen = replace(seen, memory=policy.learn(seen))
    assert (policy.evaluate(seen).replicas, policy.evaluate(seen).reason) == (6, Reason.ABOVE)
