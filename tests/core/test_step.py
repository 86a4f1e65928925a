"""Whole steps of the decision machine in short scenarios."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from autoscaler.core.explain import explain
from autoscaler.core.model import (
    AMOUNT,
    ANY,
    DOWN,
    SHARE,
    Behaviour,
    CapacitySpec,
    Cause,
    ClusterSpec,
    ClusterState,
    Decision,
    EngineStatus,
    JobState,
    Limits,
    Observation,
    Phase,
    Range,
    Rate,
    RateKind,
    Reading,
    Reason,
    Recommendation,
    SettleSpec,
    View,
)
from autoscaler.core.state import call_failed, call_withheld, rebase
from autoscaler.core.step import step
from autoscaler.core.trust import trusted
from tests.core.build import T0, Asks, Fixed, asks, at, running, seconds, seen, spec


def decide(s: ClusterSpec, *observations: Observation) -> tuple[ClusterState, Decision]:
    state = ClusterState()
    for observation in observations[:-1]:
        state, _ = step(s, state, observation)
    return step(s, state, observations[-1])


def test_the_greatest_size_asked_for_is_proposed() -> None:
    _, decision = decide(spec(Fixed(3), Fixed(5), Fixed(4)), seen(0, 2))
    assert (decision.proposed, decision.desired, decision.reason) == (5, 5, Reason.ABOVE)
    assert [r.policy for r in decision.recommendations] == ["p0", "p1", "p2"]


def test_when_no_policy_asks_nothing_changes() -> None:
    _, decision = decide(spec(Fixed(Recommendation(None, Reason.ABSTAINED))), seen(0, 2))
    assert (decision.desired, decision.reason) == (2, Reason.ABSTAINED)
    assert not decision.rescale


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([asks(2, 2)], Reason.STEADY),
        ([Recommendation(None, Reason.LEARNING)], Reason.LEARNING),
        ([Recommendation(None, Reason.MISSING)], Reason.MISSING),
        ([ValueError("x")], Reason.FAILED),
        ([Recommendation(2, Reason.ABOVE)], Reason.STEADY),
    ],
)
def test_a_decision_without_a_change_has_a_reason_too(answers: list[Any], reason: Reason) -> None:
    _, decision = decide(spec(*map(Fixed, answers)), seen(0, 2))
    assert decision.reason is reason


def test_an_endless_iterable_of_inputs_is_cut_to_the_first_thousand() -> None:
    inputs = {f"n{number}": float(number) for number in range(5000)}
    _, decision = decide(spec(Fixed(Recommendation(3, Reason.ABOVE, inputs))), seen(0, 2))
    assert decision.recommendations[0].inputs == {f"n{number}": float(number) for number in range(1000)}
    assert decision.proposed == 3


def test_the_sum_of_a_policys_inputs_may_exceed_the_largest_float() -> None:
    inputs = {"lag": 1.7e308, "arrivals": 1.7e308}
    _, decision = decide(spec(Fixed(Recommendation(3, Reason.ABOVE, inputs))), seen(0, 2))
    assert (decision.proposed, decision.recommendations[0].inputs) == (3, inputs)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (ValueError("no luck"), "raised ValueError: no luck"),
        ("five", "returned str, expected a Recommendation"),
        (Recommendation(5, "high"), "gave the reason 'high', expected a Reason"),  # type: ignore[arg-type]
        (Recommendation(None, Reason.ABOVE), "gave the reason above without a size"),
        (Recommendation(-1, Reason.BELOW), "asked for -1 replicas"),
        (Recommendation(True, Reason.BELOW), "asked for True replicas"),
        (Recommendation(2.0, Reason.BELOW), "asked for 2.0 replicas"),  # type: ignore[arg-type]
        (Recommendation(10**300, Reason.ABOVE), "expected a whole number from 0 to 1000000"),
        (Recommendation(1, Reason.BELOW, {"lag": math.inf}), "used the input lag = inf"),
        (Recommendation(1, Reason.BELOW, {}, None), "gave a detail of type NoneType"),  # type: ignore[arg-type]
    ],
)
def test_a_failing_policy_is_reported_and_blocks_scaling_down(answer: Any, says: str) -> None:
    _, decision = decide(spec(Fixed(answer), Fixed(1)), seen(0, 4))
    assert decision.recommendations[0].reason is Reason.FAILED
    assert says in decision.recommendations[0].detail
    assert (decision.desired, decision.reason) == (4, Reason.MISSING)


def test_a_failing_policy_does_not_block_scaling_up() -> None:
    _, decision = decide(spec(Fixed(ValueError("x")), Fixed(6)), seen(0, 4))
    assert decision.desired == 6


@pytest.mark.parametrize(
    ("reading", "says"),
    [
        (Reading(math.nan, T0), "not a finite number: nan"),
        (Reading(math.inf, T0), "not a finite number: inf"),
        (Reading((), T0), "not a finite number"),
        (Reading((1.0, math.nan), T0), "not a finite number"),
        (Reading(1.0, T0 - seconds(61)), "stale: 61 s old, 60 s allowed"),
        (Reading(1.0, T0 + seconds(6)), "from the future: 6 s ahead"),
        (Reading(10**400, T0), "not a reading: int too large"),
        (Reading("12", T0), "not a reading: must be real number, not str"),  # type: ignore[arg-type]
        (Reading(1.0, T0.replace(tzinfo=None)), "not a reading: can't compare offset-naive and offset-aware"),
        (Reading(math.nan, T0.replace(tzinfo=None)), "not a finite number: nan"),
    ],
)
def test_an_untrusted_reading_counts_as_missing_and_never_lowers_the_size(reading: Reading, says: str) -> None:
    observation = Observation(at=T0, desired=4, ready=4, metrics={"ask": reading})
    state, decision = step(spec(metrics=("ask",)), ClusterState(), observation)
    assert decision.desired == 4
    assert says in state.past[-1].missing["ask"]
    assert state.past[-1].metrics == {}


@dataclass(frozen=True)
class Ranged(Asks):
    """A policy that declares the ranges of its metrics."""

    @property
    def ranges(self) -> Mapping[str, Range]:
        return {"ask": AMOUNT, "busy": SHARE, "lag": Range(0.0, 10.0, "at most 10"), "throughput": ANY}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ask", -500.0, "-500, expected 0 to below 2^63"),
        ("ask", (1.0, -500.0, 2.0), "-500, expected 0 to below 2^63"),
        ("ask", 1e308, "1e+308, expected 0 to below 2^63"),
        ("ask", -1.0, "-1, expected 0 to below 2^63"),
        ("ask", (-1.0, -1.0), "-1, expected 0 to below 2^63"),  # no partition has a committed offset: unknown
        ("ask", (-2.0, 1.0), "-2, expected 0 to below 2^63"),
        ("ask", (math.nan, -1.0, 3.0), "not a finite number: (nan, -1.0, 3.0)"),
        ("busy", (0.5, -0.1), "-0.1, expected a share from 0 to 1"),
        ("lag", -1.0, "-1, expected at most 10"),  # by `settle`, and more narrowly by the policy
        ("throughput", -1.0, "-1, expected 0 to below 2^63"),  # a policy cannot widen a range
        ("trend", -1e19, "-1e+19, expected a number of less than 2^63"),  # a metric without a declared range
        ("trend", 2.0**63, "9.22337e+18, expected a number of less than 2^63"),  # Java's greatest number: no value
    ],
)
def test_a_reading_outside_the_range_of_the_metric_is_missing(
    name: str, value: float | tuple[float, ...], says: str
) -> None:
    observation = Observation(at=T0, desired=4, ready=4, metrics={"ask": Reading(1.0, T0), name: Reading(value, T0)})
    state, decision = step(spec(Ranged(), metrics=("ask",)), ClusterState(), observation)
    assert decision.desired == 4
    assert state.past[-1].missing == {name: says}
    assert name not in state.past[-1].metrics


@pytest.mark.parametrize(
    ("numbers", "mean", "says"),
    [
        ((0.5, 1.0), 0.75, None),
        ((0.5,), 0.75, None),  # from fewer workers than replicas, or from more
        ((0.5,) * 9, 0.75, None),
        ((0.5, 1.0), -0.5, "-0.5, expected a share from 0 to 1"),
        ((0.5, 1.0), math.nan, "not a finite number: (0.5, 1.0)"),
        (0.5, math.nan, "not a finite number: 0.5"),
        ((0.5, -0.1), 0.75, "-0.1, expected a share from 0 to 1"),
    ],
)
def test_values_per_worker_and_their_mean_are_trusted_together_or_not_at_all(
    numbers: float | tuple[float, ...], mean: float, says: str | None
) -> None:
    reading = Reading(numbers, T0, mean=mean)
    observation = Observation(at=T0, desired=4, ready=4, metrics={"ask": Reading(1.0, T0), "busy": reading})
    state, _ = step(spec(Ranged(), metrics=("ask",)), ClusterState(), observation)
    assert state.past[-1].missing == ({} if says is None else {"busy": says})
    assert state.past[-1].metrics.get("busy") == (reading if says is None else None)


@pytest.mark.parametrize(
    ("value", "counted"),
    [
        ((5.0, -1.0, 9.0), (5.0, 0.0, 9.0)),  # exporters show -1 for a partition without a committed offset
        ((0.0, -1.0, 0.0, -1.0), (0.0, 0.0, 0.0, 0.0)),
        ((5.0, -3.0, 9.0), (5.0, 0.0, 9.0)),  # committed after the end offset was read
        (-0.5, 0.0),  # two clocks, or a difference
        ((-0.5, -0.1), (0.0, 0.0)),
    ],
)
def test_a_meaningless_negative_number_counts_as_zero(
    value: float | tuple[float, ...], counted: float | tuple[float, ...]
) -> None:
    observation = seen(0, 4, metrics={"ask": value})
    state, decision = step(spec(Ranged(), metrics=("ask",)), ClusterState(), observation)
    assert state.past[-1].metrics == {"ask": Reading(counted, T0)}
    assert state.past[-1].missing == {}
    assert decision.reason is not Reason.MISSING


@dataclass(frozen=True)
class Overloaded(Asks):
    """Asks for the size of `busy`, declares no range, and keeps the views that it receives."""

    metric: str = "busy"
    views: list[View] = field(default_factory=list, compare=False)

    def learn(self, view: View) -> Mapping[str, float]:
        self.views.append(view)
        return {}


@dataclass(frozen=True)
class Strict(Overloaded):
    """The same policy, but it declares that `busy` is a share."""

    @property
    def ranges(self) -> Mapping[str, Range]:
        return {"busy": SHARE}


def test_a_share_above_1_is_missing_for_a_policy_that_declares_it_and_lowers_nothing_for_others() -> None:
    loose, strict = Overloaded(), Strict()
    s = spec(loose, strict, metrics=("busy",))
    state, before = decide(s, seen(0, 1, metrics={"busy": 1.0}), seen(15, 1, metrics={"busy": 2.5}))
    assert before.desired == 2
    after, decision = step(s, state, seen(30, 2, metrics={"busy": 8.0, "other": 1.0}))
    assert decision.desired == 8
    assert [asked.replicas for asked in decision.recommendations] == [8, None]
    assert after.past[-1].missing == {"busy": "8, expected a share from 0 to 1"}
    assert [[view.number("busy") for view in policy.views] for policy in (loose, strict)] == [
        [1.0, 2.5, 8.0],
        [1.0, None, None],
    ]
    assert ["busy" in one.metrics for one in strict.views[-1].past] == [True, False, False]
    assert ["busy" in one.metrics for one in loose.views[-1].past] == [True, True, True]
    # Replaying the recorded observation gives the same decision.
    assert step(s, state, after.past[-1])[1] == decision
    assert "busy may raise the size, never lower it: 8, expected a share from 0 to 1." in explain(
        after.past[-1], decision
    )
    _, lower = step(s, after, seen(45, 8, metrics={"busy": 3.0}))
    assert (lower.desired, lower.verdicts[0].reason) == (8, Reason.MISSING)
    # No policy uses a reading that the source itself reports as missing.
    _, decision = step(s, state, seen(30, 2, metrics={"busy": 8.0}, missing={"busy": "half an answer"}))
    assert decision.desired == 2


def test_capacity_is_not_learned_from_a_saturation_outside_0_to_1() -> None:
    s = spec(Asks("saturation"), capacity=CapacitySpec(warmup=seconds(0), sustained=seconds(0)))
    state, decision = decide(s, seen(0, 4, metrics={"saturation": 9.0, "throughput": 100.0}))
    assert decision.desired == 9
    assert state.learned.capacity == {}


def test_the_range_of_a_metric_is_the_intersection_of_all_declared_ranges() -> None:
    class Knows(Asks):
        def __init__(self, known: Range) -> None:
            object.__setattr__(self, "metric", "ask")
            object.__setattr__(self, "ranges", {"ask": known})

    s = spec(Knows(Range(0.0, 10.0, "0 to 10")), Knows(Range(5.0, 1000.0, "5 to 1000")))
    assert s.ranges["ask"] == Range(5.0, 10.0, "0 to 10")


@pytest.mark.parametrize(
    ("name", "value"),
    [("ask", 0.0), ("ask", 9e18), ("busy", 1.3), ("busy", (0.0, 1.0)), ("trend", -500.0), ("cores", 3.7)],
)
def test_a_reading_within_the_range_of_the_metric_is_used(name: str, value: float | tuple[float, ...]) -> None:
    reading = Reading(value, T0, parts={"a": {"offset": -1.0}})
    state, _ = step(spec(Ranged()), ClusterState(), Observation(at=T0, desired=4, ready=4, metrics={name: reading}))
    assert state.past[-1].metrics == {name: reading}


def test_an_infinite_part_makes_the_reading_missing() -> None:
    reading = Reading(1.0, T0, parts={"map": {"records_in": 1e308}})
    state, _ = step(spec(Ranged()), ClusterState(), Observation(at=T0, desired=4, ready=4, metrics={"ask": reading}))
    assert state.past[-1].missing == {"ask": "a part of it is not a number of less than 2^63"}


def test_a_metric_that_was_not_delivered_never_lowers_the_size() -> None:
    _, decision = decide(spec(Fixed(1), metrics=("lag",)), seen(0, 4))
    assert (decision.desired, decision.reason) == (4, Reason.MISSING)
    assert decision.verdicts[0].detail == "lag: not delivered"


def test_a_reading_that_the_source_itself_reports_missing_is_not_used() -> None:
    good, doubts = trusted(spec(), seen(0, 4, 1, missing={"ask": "half an answer"}))
    assert good == {}
    assert doubts == {"ask": "half an answer"}


@pytest.mark.parametrize("engine", [None, EngineStatus(job=JobState.UNKNOWN)])
def test_an_unknown_engine_never_lowers_the_size(engine: EngineStatus | None) -> None:
    _, decision = decide(spec(Fixed(1), engine=True), seen(0, 4, engine=engine))
    assert decision.desired == 4
    assert "engine" in decision.verdicts[0].detail


def test_the_reason_for_a_missing_engine_is_quoted() -> None:
    _, decision = decide(spec(Fixed(1), engine=True), seen(0, 4, missing={"engine": "refused"}))
    assert decision.verdicts[0].detail == "engine: refused"


@pytest.mark.parametrize("observation", [seen(15, None), seen(15, -3), seen(15, 10**400), seen(15, 4, ready=-7)])
def test_an_unknown_size_is_not_changed(observation: Observation) -> None:
    state, decision = decide(spec(Fixed(9)), seen(0, 9), observation)
    assert (decision.current, decision.proposed, decision.desired) == (9, 9, 9)
    assert decision.reason is Reason.MISSING
    assert state.past[-1] == observation
    fresh, decision = decide(spec(Fixed(9), limits=Limits(2, 9)), seen(15, None, missing={"target": "refused"}))
    assert (decision.current, decision.desired, fresh.desired) == (2, 2, None)
    assert decision.verdicts[0].detail == "the target's size is unknown: refused"


def test_a_request_is_remembered_until_the_target_shows_it() -> None:
    s = spec(Fixed(5))
    state, first = decide(s, seen(0, 2))
    assert first.rescale
    assert state.rescale is not None
    assert state.rescale.cause is Cause.REQUEST
    # The target does not show the new size yet: the requested size counts, and it is not requested again.
    state, second = step(s, state, seen(15, 2))
    assert (second.current, second.desired) == (5, 5)
    state, third = step(s, state, seen(30, 5))
    assert third.notes[-1][0] is Reason.SETTLED
    assert state.rescale is None


def test_a_failed_request_is_repeated_at_the_next_tick_and_counts_once() -> None:
    s = spec(Fixed(5))
    state, _ = decide(s, seen(0, 2))
    state = call_failed(state, "503")
    state, decision = step(s, state, seen(15, 2))
    assert decision.notes[0] == (Reason.UNCONFIRMED, "the target did not accept the change from 2 to 5: 503")
    assert decision.desired == 5
    assert decision.rescale
    assert [(event.at, event.change) for event in state.events] == [(at(15), 3)]


def test_a_failure_is_recorded_only_for_an_unconfirmed_request() -> None:
    assert call_failed(ClusterState(), "x") == ClusterState()
    state, _ = decide(spec(Fixed(5)), seen(0, 2), seen(15, 5, ready=3))
    assert call_failed(state, "x") == state


def test_a_withheld_request_leaves_no_trace() -> None:
    state, _ = decide(spec(Fixed(5)), seen(0, 2))
    state = call_withheld(state)
    assert state.rescale is None
    assert state.events == ()
    assert call_withheld(state) == state


def test_a_larger_request_replaces_a_rescale_that_is_clearly_short() -> None:
    s = spec(Asks(), limits=Limits(1, 20))
    _, decision = decide(s, seen(0, 2, 4), seen(15, 4, 9, ready=2))
    assert decision.desired == 9
    assert decision.notes == ((Reason.SUPERSEDED, "the change from 2 to 4 that was requested is replaced by one to 9"),)


def test_an_external_change_of_size_is_followed_like_our_own() -> None:
    s = spec(Asks(), limits=Limits(1, 20))
    state, decision = decide(s, seen(0, 4, 4), seen(15, 8, 4, ready=4))
    assert (decision.current, decision.desired) == (8, 8)
    assert decision.notes[0] == (Reason.SUPERSEDED, "the size was changed from outside: 4 to 8")
    assert state.rescale is not None
    assert state.rescale.cause is Cause.EXTERNAL
    _, decision = step(s, state, seen(30, 8, 4))
    assert decision.desired == 4


def test_while_no_replica_is_ready_no_more_are_requested() -> None:
    s = spec(limits=Limits(1, 20), settle=SettleSpec(ready=seconds(60)))
    state, _ = decide(s, seen(0, 5, 5), seen(15, 5, 5))
    # All five replicas crash.
    for n in range(2, 7):
        crashed = replace(seen(15.0 * n, 5, 20, ready=0), remarks=("5 pods are in CrashLoopBackOff",))
        state, decision = step(s, state, crashed)
        assert (decision.desired, decision.reason) == (5, Reason.SETTLING)
        assert decision.verdicts[1].detail == (
            "none of 5 replicas is up (5 pods are in CrashLoopBackOff): a step up waits until one is"
        )
    _, fewer = step(s, state, seen(105, 5, 2, ready=0))
    assert fewer.desired == 2
    _, decision = step(s, state, seen(105, 5, 20, ready=1))
    assert decision.desired == 20


def test_if_no_replica_ever_gets_ready_one_step_up_is_tried_per_pause() -> None:
    """The replicas may be too few to get ready under the load."""
    s = spec(limits=Limits(1, 100), up=Behaviour(rates=(Rate(RateKind.PERCENT, 100, seconds(15)),)))
    s = replace(s, settle=SettleSpec(ready=seconds(60)))
    state, _ = decide(s, seen(0, 4, 4), seen(15, 4, 4))
    size, requested, details = 4, {}, {}
    for n in range(2, 29):
        state, decision = step(s, state, seen(15.0 * n, size, 64, ready=0))
        details[15 * n] = decision.verdicts[1].detail
        if decision.rescale:
            requested[15 * n] = size = decision.desired
    # The replacement is given up at 105 s; the step of 165 s at 240 s.
    assert requested == {165: 8, 300: 16}
    assert details[150] == "none of 4 replicas is up: the next step up waits until one is, or for 60 s; 45 s passed"
    _, lower = step(s, state, seen(435, 16, 2, ready=0))
    assert lower.desired == 2


def test_a_cluster_first_observed_without_ready_replicas_waits_for_the_first_one() -> None:
    state, decision = decide(spec(), seen(0, 2, 8, ready=0))
    assert decision.desired == 2
    _, decision = step(spec(), state, seen(15, 2, 8, ready=1))
    assert decision.desired == 8


def test_a_start_from_zero_may_be_corrected_before_its_first_replica_is_ready() -> None:
    state, first = decide(spec(limits=Limits(0, 20)), seen(0, 0, 1))
    state, second = step(spec(limits=Limits(0, 20)), state, seen(15, 1, 4, ready=0))
    _, third = step(spec(limits=Limits(0, 20)), state, seen(30, 4, 9, ready=0))
    assert (first.desired, second.desired, third.desired) == (1, 4, 4)


def test_after_a_step_up_without_a_new_ready_replica_the_next_one_waits_as_long_again() -> None:
    s = spec(limits=Limits(1, 20), settle=SettleSpec(ready=seconds(60)))
    state, decision = decide(s, seen(0, 5, 5), seen(15, 5, 8))
    assert decision.desired == 8
    sizes = {}
    for second in range(30, 151, 15):
        state, decision = step(s, state, seen(second, 8, 8 if second < 100 else 9, ready=5))
        sizes[second] = decision.desired
    # Not ready by 75 s, given up at 90 s: the next step is tried 60 s later, as these replicas may never come.
    assert sizes == {**dict.fromkeys(range(30, 136, 15), 8), 150: 9}
    state, _ = decide(s, seen(0, 5, 5), seen(15, 5, 8), *[seen(15.0 * n, 8, 8, ready=5) for n in range(2, 8)])
    _, waits = step(s, state, seen(120, 8, 9, ready=5))
    assert waits.verdicts[1].detail == (
        "nothing of the rescale from 5 to 8 came up: the next step up waits until something does, or for 60 s; "
        "30 s passed"
    )
    _, decision = step(s, state, seen(120, 8, 9, ready=6))
    assert decision.desired == 9  # a part of the step is ready
    _, decision = step(s, state, seen(120, 8, 2, ready=5))
    assert decision.desired == 2


@pytest.mark.parametrize(
    ("given_up", "then"),
    [
        # A scale-down that is complete except for a replica that was lost meanwhile.
        ([seen(0, 8, 4), seen(15, 4, 4, ready=4, engine=running(8))], seen(105, 4, 6, ready=3, engine=running(8))),
        # Ready, but not registered.
        ([seen(0, 4, 8), seen(15, 8, 8, ready=8, engine=running(4))], seen(105, 8, 12, ready=4, engine=running(4))),
    ],
    ids=["down", "registered"],
)
def test_only_a_step_up_without_a_new_ready_replica_delays_the_next_one(
    given_up: list[Observation], then: Observation
) -> None:
    s = spec(limits=Limits(1, 20), engine=True, settle=SettleSpec(ready=seconds(60), registered=seconds(60)))
    late = replace(given_up[-1], ready=then.ready)
    state, _ = decide(s, *given_up, *[replace(late, at=at(15.0 * n)) for n in range(2, 7)])
    assert state.last_missed is not None
    _, decision = step(s, state, then)
    assert decision.desired == then.metrics["ask"].value


def test_the_new_ready_replicas_of_a_step_are_counted_from_its_request() -> None:
    s = spec(limits=Limits(1, 40), settle=SettleSpec(ready=seconds(60)))
    ticks = [seen(0, 4, 8), seen(15, 8, 16, ready=4), *[seen(15.0 * n, 16, 16, ready=7) for n in range(2, 7)]]
    state, given_up = decide(s, *ticks)
    assert given_up.notes[0][0] is Reason.DEADLINE
    _, decision = step(s, state, seen(105, 16, 24, ready=7))
    assert decision.desired == 24  # three are ready


def grow(s: ClusterSpec, ups: Mapping[int, int]) -> dict[int, int]:
    """The requested sizes if each tick asks for twice the size; `ups`: the ready replicas from each second on."""
    state, requested, size, ready = ClusterState(), {}, 5, 0
    for second in range(0, 300, 15):
        ready = ups.get(second, ready)
        state, decision = step(s, state, seen(second, size, 1.5 * size, ready=min(ready, size)))
        if decision.rescale:
            requested[second] = size = decision.desired
    return requested


def test_consecutive_steps_without_new_ready_replicas_stop_at_the_deadline_of_the_first() -> None:
    s = spec(limits=Limits(1, 10**6), settle=SettleSpec(ready=seconds(60)))
    requested = grow(s, {0: 5, 15: 3})
    # The last step is given up at 135 s; another is tried 60 s later, and a new series begins.
    assert list(requested) == [0, 15, 30, 45, 60, 195, 210, 225, 240, 255]
    # While new replicas get ready, the steps continue.
    ups = {second: 5 + second // 45 for second in range(0, 300, 45)}
    assert list(grow(s, ups)) == list(range(0, 300, 15))
    state = ClusterState()
    for second, size, ask in ((0, 5, 8), (15, 8, 12), (60, 12, 18), (75, 18, 27)):
        state, held = step(s, state, seen(second, size, ask, ready=5))
    assert held.verdicts[1].detail == (
        "no replica has come up for 75 s: the next step up waits until one does or the rescale from 12 to 18 is "
        "given up"
    )


def test_a_request_that_the_target_shows_late_is_not_reported_as_an_external_change() -> None:
    s = spec(limits=Limits(1, 20))
    state, first = decide(s, seen(0, 3, 5))
    state, second = step(s, state, seen(15, 3, 8))  # the target still shows the size from before the first request
    assert (first.desired, second.desired) == (5, 8)
    # It shows the first request, then the second; meanwhile the third is refused.
    state, late = step(s, state, seen(30, 5, 8, ready=3))
    assert late.notes == ()
    assert late.desired == 8
    state, third = step(s, state, seen(45, 5, 12, ready=3))
    assert third.desired == 12
    state, refused = step(s, call_failed(state, "no"), seen(60, 8, 8, ready=3))
    assert [reason for reason, _ in refused.notes] == [Reason.UNCONFIRMED]
    assert (refused.current, refused.desired, state.override_times) == (8, 8, ())
    # A size that this daemon never requested is an external change.
    state, _ = decide(s, seen(0, 3, 5), seen(15, 3, 8))
    _, foreign = step(s, state, seen(30, 4, 8, ready=3))
    assert foreign.notes[0] == (Reason.SUPERSEDED, "the size that was requested, 8, was changed to 4 from outside")


def test_an_earlier_request_is_still_followed_when_a_later_one_is_refused() -> None:
    s = spec(limits=Limits(1, 20))
    state, first = decide(s, seen(0, 4, 6))
    state, second = step(s, state, seen(15, 4, 10))
    state, third = step(s, call_failed(state, "503"), seen(30, 4, 10))
    assert (first.desired, second.desired, third.desired) == (6, 10, 10)
    # At last the target shows the first request.
    state, late = step(s, state, seen(45, 6, 10, ready=4))
    assert late.notes == ()
    assert (late.desired, state.override_times) == (10, ())
    # Without a third request the daemon waits for the first one.
    state, _ = decide(s, seen(0, 4, 6), seen(15, 4, 10))
    state, less = step(s, call_failed(state, "503"), seen(30, 4, 5))
    assert (less.current, less.desired) == (6, 6)


def test_only_a_few_replaced_requests_are_remembered() -> None:
    s = spec(limits=Limits(1, 1000), settle=SettleSpec(short=0.0))
    state, _ = decide(s, *[seen(float(n), 4, 5 + n) for n in range(200)])
    depth, rescale = 0, state.rescale
    while rescale is not None:
        depth, rescale = depth + 1, rescale.replaced
    assert depth <= 9


def test_scale_events_survive_a_restart_and_count_for_the_rate_limit() -> None:
    up = Behaviour(rates=(Rate(RateKind.REPLICAS, 3, seconds(60)),))
    s = spec(Fixed(10), up=up)
    state, first = decide(s, seen(0, 2))
    state, second = step(s, state, seen(15, 5))
    state, third = step(s, state, seen(60, 5))
    assert (first.desired, second.desired, third.desired) == (5, 5, 8)
    assert [event.at for event in state.events] == [at(60)]


def test_a_gap_in_the_observations_restarts_the_window() -> None:
    s = spec(Fixed(2), down=Behaviour(window=seconds(100)))
    ticks = [seen(15.0 * n, 4) for n in range(7)]
    _, before = decide(s, *ticks)
    assert (before.desired, before.reason) == (4, Reason.LEARNING)
    _, seamless = decide(s, *ticks, seen(105, 4))
    assert seamless.desired == 2
    _, gap = decide(s, *ticks, seen(150, 4))
    assert (gap.desired, gap.reason) == (4, Reason.LEARNING)


@pytest.mark.parametrize("bad", [seen(0, 4, missing={"lag": "refused"}), seen(0, None, missing={"target": "refused"})])
def test_ticks_without_any_trusted_input_do_not_count_as_observed_time(bad: Observation) -> None:
    s = spec(Fixed(2), down=Behaviour(window=seconds(100)))
    blind = [replace(bad, at=at(15.0 * n)) for n in range(20)]
    _, at_first = decide(s, *blind, seen(300, 4))
    assert (at_first.desired, at_first.reason) == (4, Reason.LEARNING)
    before = [seen(15.0 * n, 4) for n in range(-20, 0)]
    _, after_an_outage = decide(s, *before, *blind, seen(300, 4))
    assert (after_an_outage.desired, after_an_outage.reason) == (4, Reason.LEARNING)
    _, watched = decide(s, *before, *blind, *[seen(300 + 15.0 * n, 4) for n in range(8)])
    assert watched.desired == 2
    # A tick without a reading does not hide anything.
    _, seamless = decide(s, *before, *blind[:1], seen(15, 4))
    assert seamless.desired == 2


def test_a_window_with_an_unobserved_half_does_not_count_as_observed() -> None:
    s = spec(Fixed(2), down=Behaviour(window=seconds(300)))
    before = [seen(15.0 * n, 4) for n in range(20)]
    for second in (300, 322):
        _, seamless = decide(s, *before, seen(second, 4))
        assert seamless.desired == 2
    _, after = decide(s, *before, seen(323, 4))
    assert (after.desired, after.reason) == (4, Reason.LEARNING)
    later = [seen(323 + 15.0 * n, 4) for n in range(21)]
    sizes = [decide(s, *before, *later[: n + 1])[1].desired for n in range(21)]
    assert sizes == [4] * 20 + [2]


@pytest.mark.parametrize(("window", "hiccup"), [(300, 30), (60, 6)])
def test_a_pause_that_no_reading_is_too_old_for_is_not_a_gap_however_short_the_interval(
    window: int, hiccup: int
) -> None:
    s = spec(Fixed(2), interval=seconds(1), down=Behaviour(window=seconds(window)))
    ticks = [seen(float(n), 4) for n in range(window - hiccup + 1)]
    _, after = decide(s, *ticks, seen(window, 4))
    assert after.desired == 2
    _, later = decide(s, *ticks[:-1], seen(window, 4))
    assert (later.desired, later.reason) == (4, Reason.LEARNING)


def test_ticks_slower_than_a_short_window_still_allow_a_scale_down() -> None:
    s = spec(Fixed(2), down=Behaviour(window=seconds(10)))
    _, decision = decide(s, seen(0, 4), seen(15, 4))
    assert decision.desired == 2


def test_a_clock_that_goes_back_lowers_nothing_and_preserves_every_age() -> None:
    s = spec(Asks(), down=Behaviour(window=seconds(30)))
    ticks = [seen(1000 + 15.0 * n, 4, 4) for n in range(3)]
    state, decision = decide(s, *ticks, seen(0, 4, 2))
    assert decision.desired == 4
    assert decision.notes[0] == (Reason.CLOCK, "the clock went back by 1030 s")
    assert [p.at for p in state.proposals] == [at(-30), at(-15), at(0)]
    assert state.watched_since == at(-30)
    _, later = step(s, state, seen(31, 4, 2))
    assert later.desired == 2


def test_rebase_moves_every_time_of_the_state() -> None:
    s = spec(
        Fixed(5), capacity=CapacitySpec(warmup=seconds(0), sustained=seconds(0)), metrics=("throughput", "saturation")
    )
    full = {"throughput": 10.0, "saturation": 1.0}
    state, _ = decide(s, seen(0, 2, metrics=full), seen(15, 5, ready=2, metrics=full))
    state = replace(state, last_missed=state.rescale, cooldown_from=at(1), disturbance_ended_at=at(2))
    there = rebase(rebase(state, timedelta(hours=-1)), timedelta(hours=1))
    assert there == state
    assert rebase(ClusterState(), seconds(5)) == ClusterState()


@pytest.mark.parametrize(
    ("job", "size"), [(JobState.IDLE, 0), (JobState.RUNNING, 0), (JobState.STOPPED, 3), (JobState.UNKNOWN, 3)]
)
def test_a_cluster_without_a_job_may_go_to_0_but_not_while_its_job_is_down(job: JobState, size: int) -> None:
    idle = EngineStatus(job=job)
    state, decision = decide(spec(Fixed(0), limits=Limits(0, 5), engine=True), seen(0, 3, engine=idle))
    assert decision.desired == size
    assert state.rescale is None or size == 0


@pytest.mark.parametrize(
    ("observation", "learns"),
    [
        (seen(0, 2, metrics={"throughput": 90.0, "saturation": 1.0}), True),
        (seen(0, 2, metrics={"throughput": 90.0, "saturation": 0.5}), False),
        (seen(0, 2, metrics={"throughput": 90.0}), False),
        (seen(0, 2, metrics={"saturation": 1.0}), False),
        (seen(0, 2, metrics={"throughput": (45.0, 45.0), "saturation": 1.0}), False),
        (seen(0, 2, metrics={"throughput": 90.0, "saturation": (1.0, 1.0)}), False),
        (seen(0, 2, ready=1, metrics={"throughput": 90.0, "saturation": 1.0}), False),
        (seen(0, 2, metrics={"throughput": 90.0, "saturation": 1.0}, missing={"engine": "x"}), False),
        (
            seen(
                0,
                2,
                metrics={"throughput": 90.0, "saturation": 1.0},
                engine=EngineStatus(job=JobState.RESTARTING),
            ),
            False,
        ),
        (
            seen(0, 2, metrics={"throughput": 90.0, "saturation": 1.0}, engine=EngineStatus(job=JobState.UNKNOWN)),
            False,
        ),
        (seen(0, 2, metrics={"throughput": 90.0, "saturation": 1.0}, engine=running(2)), True),
    ],
)
def test_capacity_is_learned_only_while_the_job_is_saturated_complete_and_known(
    observation: Observation, learns: bool
) -> None:
    state, _ = decide(spec(Fixed(2), capacity=CapacitySpec(sustained=seconds(0))), observation)
    assert bool(state.learned.capacity) is learns


@pytest.mark.parametrize(("mean", "learns"), [(0.97, True), (0.5, False)])
def test_saturation_is_judged_by_the_mean_of_the_workers_if_it_is_known(mean: float, learns: bool) -> None:
    busy = {"throughput": Reading(90.0, T0), "saturation": Reading((1.0, 0.9), T0, mean=mean)}
    observation = replace(seen(0, 2), metrics=busy)
    state, _ = decide(spec(Fixed(2), capacity=CapacitySpec(sustained=seconds(0))), observation)
    assert bool(state.learned.capacity) is learns


def test_capacity_is_learned_only_after_a_period_of_saturation() -> None:
    def tick(second: float, saturation: float) -> Observation:
        return seen(second, 2, metrics={"throughput": 90.0, "saturation": saturation})

    s = spec(Fixed(2), capacity=CapacitySpec(sustained=seconds(30)))
    rising = [tick(0, 0.5), tick(15, 1.0), tick(30, 1.0)]
    assert decide(s, *rising)[0].learned.capacity == {}
    assert decide(s, *rising[1:])[0].learned.capacity == {}
    assert decide(s, *rising, tick(45, 1.0))[0].learned.capacity[2].rate == 90


def test_capacity_is_not_learned_from_a_transient_nor_before_the_job_has_warmed_up() -> None:
    full = {"throughput": 90.0, "saturation": 1.0, "lag": 5000.0}
    s = spec(
        Fixed(3),
        metrics=("lag", "throughput", "saturation"),
        engine=True,
        capacity=CapacitySpec(warmup=seconds(30), sustained=seconds(0)),
    )
    two, three = running(2), running(3)
    coming = [
        seen(0, 2, metrics={**full, "saturation": 0.1}, engine=two),
        seen(15, 3, metrics=full, engine=two),
    ]
    state, _ = decide(s, *coming)
    assert state.learned.capacity == {}
    catching_up = [*coming, seen(30, 3, metrics=full, engine=three)]
    state, _ = decide(s, *catching_up)
    assert state.disturbance_ended_at == at(30)
    assert state.learned.capacity == {}
    state, _ = decide(s, *catching_up, seen(60, 3, metrics=full, engine=three))
    assert state.learned.capacity[3].rate == 90
    # The end of catching up is not a new disturbance.
    state, _ = decide(s, *catching_up, seen(60, 3, metrics={**full, "lag": 0.0}, engine=three))
    assert state.rescale is None
    assert state.disturbance_ended_at == at(30)


def test_policies_see_the_trusted_past_and_the_mean_number_of_replicas() -> None:
    views: list[View] = []

    class Watcher:
        def evaluate(self, view: View) -> Recommendation:
            views.append(view)
            return asks(2, view.current)

    s = spec(Watcher(), lookback=seconds(30))
    decide(s, *[seen(15.0 * n, 2, metrics={"cpu": (0.2, 0.6)}) for n in range(5)])
    last = views[-1]
    assert [observation.at for observation in last.past] == [at(30), at(45), at(60)]
    assert last.number("cpu") == pytest.approx(0.4)
    assert last.number("lag") is None
    assert (last.now, last.current, last.ready) == (at(60), 2, 2)


def test_past_readings_that_no_policy_needs_are_dropped_but_their_partitions_are_kept() -> None:
    @dataclass(frozen=True)
    class Present(Asks):
        lookback: ClassVar[timedelta] = seconds(0)

    def tick(number: int) -> Observation:
        metrics = {"lag": Reading(5.0, at(15 * number), 8), "saturation": Reading(0.5, at(15 * number))}
        return replace(seen(15 * number, 2), metrics=metrics, missing={"cpu": "gone"} if number == 1 else {})

    ticks = [tick(number) for number in range(6)]
    kept = decide(spec(Present()), *ticks)[0].past
    assert [observation.at for observation in kept] == [observation.at for observation in ticks]
    assert [(observation.desired, observation.missing) for observation in kept] == [
        (2, observation.missing) for observation in ticks
    ]
    # Capacity is learned from the last 30 s.
    assert [set(observation.metrics) for observation in kept] == [{"lag"}] * 3 + [{"lag", "saturation"}] * 3
    # One policy that may look back keeps all of them; a state of that time loses them at the next step.
    whole, _ = decide(spec(Present(), Asks()), *ticks[:5])
    assert whole.past == tuple(ticks[:5])
    assert step(spec(Present()), whole, ticks[5])[0].past == kept


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"slots_per_replica": 0}, "slots_per_replica"),
        ({"partitions": 0}, "partitions"),
        ({"interval": seconds(0)}, "interval"),
        ({"max_age": seconds(0)}, "max_age"),
        ({"max_ahead": seconds(-1)}, "max_ahead"),
        ({"lookback": seconds(-1)}, "lookback"),
    ],
)
def test_an_invalid_spec_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        spec(**changes)


@dataclass(frozen=True, slots=True)
class Stabilizes(Asks):
    """A policy that evaluates the past itself."""

    stabilizes: ClassVar[bool] = True


def test_the_default_down_window_is_zero_only_if_all_policies_stabilize_themselves() -> None:
    assert spec(Asks(), Stabilizes(), down=DOWN).down.window == seconds(300)
    assert spec(Stabilizes(), Stabilizes(), down=DOWN).down.window == seconds(0)
    assert spec(Stabilizes(), down=Behaviour(window=seconds(300))).down.window == seconds(300)


def test_a_spec_with_other_limits_is_otherwise_unchanged() -> None:
    s = spec(Ranged(), slots_per_replica=2)
    other = s.with_limits(Limits(2, 3))
    assert other == replace(s, limits=Limits(2, 3))
    assert other.ranges == s.ranges
    assert s.limits == Limits(1, 10)


@pytest.mark.parametrize("name", ["sustained", "warmup"])
def test_capacity_spec_refuses_negative_spans(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        CapacitySpec(**{name: seconds(-1)})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["slots", "parallelism", "max_parallelism", "partitions", "restarts"])
def test_an_engine_status_refuses_negative_numbers(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: must be 0 or more, not -1"):
        EngineStatus(job=JobState.RUNNING, **{name: -1})  # type: ignore[arg-type]


def test_there_are_at_most_25_reason_codes() -> None:
    assert len(Reason) <= 25


def test_repeated_external_changes_of_the_size_make_the_daemon_back_off() -> None:
    """Another controller sets 2 again whenever we ask for 6."""
    s = spec(Fixed(6))
    state, second, requests, notes = ClusterState(), 0, [], []
    while second < 3600:
        state, decision = step(s, state, seen(second, 2))
        notes += [text for reason, text in decision.notes if reason is Reason.SUPERSEDED]
        if decision.rescale:
            requests.append(second)
            state, _ = step(s, state, seen(second + 5, 6))
        second += 15
    # Three attempts, then one per pause, as long as the conflict lasts.
    assert requests == [0, 15, 30, 945, 1860, 2775]
    assert "changed from outside: 6 to 2" in notes[0]
    assert len(state.override_times) == 3


def test_a_controller_that_reverts_us_between_two_polls_makes_the_daemon_back_off_too() -> None:
    """It sets 2 again before we ever observe our 6."""
    s = spec(Fixed(6), settle=SettleSpec(ready=seconds(60)))
    state, second, requests, notes = ClusterState(), 0, [], []
    while second < 3600:
        state, decision = step(s, state, seen(second, 2))
        notes += [text for _, text in decision.notes]
        if decision.rescale:
            requests.append(second)
        second += 15
    assert requests == [0, 75, 150, 1125, 2100, 3075]
    assert notes[0].endswith(
        "is no longer waited for: 60 s were not enough until the target has the new number of replicas ready "
        "(the target still shows 2)"
    )


def test_bounds_that_another_controller_reverts_are_not_requested_at_every_tick() -> None:
    s = spec(Fixed(2), limits=Limits(2, 6))
    state, requests = ClusterState(), []
    for second in range(0, 900, 15):
        state, decision = step(s, state, seen(second, 1))
        if decision.rescale:
            requests.append(second)
            state, _ = step(s, state, seen(second + 5, 2))
    assert requests == [0, 15, 30]


def test_a_refused_request_is_not_one_that_another_controller_reverted() -> None:
    s = spec(Fixed(6))
    state = ClusterState()
    for second in range(0, 600, 15):
        # Another actor changes the size again and again; none of our requests has ever taken effect.
        state, decision = step(s, state, seen(second, 2 + second // 30 % 2))
        if decision.rescale:
            state = call_failed(state, "not allowed")
    assert state.override_times == ()


def test_a_rescale_in_flight_is_still_followed_when_a_larger_request_is_refused() -> None:
    """Otherwise the size might be lowered while the job absorbs the change."""
    s = spec(Asks(), limits=Limits(1, 40), engine=True, metrics=("ask",))
    state = ClusterState()
    state, _ = step(s, state, seen(0, 4, 8, engine=running(4)))
    state, _ = step(s, state, seen(15, 8, 8, engine=running(4)))
    assert state.rescale is not None
    assert state.rescale.phase is Phase.READY
    under_way = state.rescale
    state, decision = step(s, state, seen(30, 8, 16, engine=running(4)))
    assert decision.desired == 16
    # Adjusting the clock does not lose the rescale either.
    assert state.rescale is not None
    assert state.rescale.replaced == under_way
    moved = rebase(state, seconds(5)).rescale
    assert moved is not None
    assert moved.replaced == replace(under_way, at=under_way.at + seconds(5), since=under_way.since + seconds(5))
    state, decision = step(s, call_failed(state, "no quota"), seen(60, 8, 2, engine=running(4)))
    assert decision.desired == 8
    assert (
        decision.verdicts[1].detail
        == "the rescale from 4 to 8 is in progress: waiting until the engine has registered their slots"
    )
    assert state.rescale == under_way
    state, decision = step(s, state, seen(75, 8, 2, engine=running(8)))
    assert decision.desired == 2
    assert (Reason.SETTLED, "the rescale from 4 to 8 has settled after 75 s") in decision.notes


def test_in_a_dry_run_an_external_change_is_followed_although_more_is_proposed() -> None:
    s = spec(Fixed(12), limits=Limits(1, 20))
    state, notes = ClusterState(), []
    for observation in [seen(0, 4), *(seen(15 * tick, 8, ready=4) for tick in range(1, 8)), seen(120, 8)]:
        state, decision = step(s, state, observation)
        state = call_withheld(state)
        notes += [text for reason, text in decision.notes if reason is not Reason.SUPERSEDED]
    assert notes[-1] == "the rescale from outside from 4 to 8 has settled after 105 s"
    assert not any("are gone" in text for text in notes)


def test_changes_by_people_never_make_the_daemon_back_off() -> None:
    s = spec(Fixed(6), limits=Limits(1, 6))
    state, _ = step(s, ClusterState(), seen(0, 6))
    for number, size in enumerate((2, 3, 4, 5, 2)):
        state, decision = step(spec(Fixed(size)), state, seen(15 * number + 15, size))
        assert not decision.rescale
    assert state.override_times == ()
    state, decision = step(s, state, seen(100, 2))
    assert decision.rescale
    assert state.requested == at(100)
    assert call_withheld(state).requested is None


def test_the_caps_use_the_partitions_of_the_log_that_a_metric_was_read_from() -> None:
    s = spec(Fixed(10), limits=Limits(1, 20), metrics=("lag",))
    first = replace(seen(0, 2), metrics={"lag": Reading(5.0, at(0), 4)})
    _, decision = decide(s, first)
    assert decision.desired == 4
    # They are still known while the lag is briefly unreadable.
    _, decision = decide(s, first, replace(seen(15, 2), missing={"lag": "no broker"}))
    assert decision.desired == 4


def test_a_reading_without_a_partition_is_missing() -> None:
    _, decision = decide(spec(Fixed(1), metrics=("lag",)), replace(seen(0, 2), metrics={"lag": Reading(5.0, at(0), 0)}))
    assert decision.desired == 2
    assert "not a reading: 0 partitions" in decision.verdicts[0].detail


def test_the_metric_ranges_of_a_policy_must_be_a_mapping_of_names_to_ranges() -> None:
    class Odd(Asks):
        ranges = ("lag",)

    with pytest.raises(TypeError, match=r"its attribute ranges is \('lag',\), expected a Range by name"):
        spec(Odd())
