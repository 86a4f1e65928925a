"""Optional hooks of policies: learning, moving the bounds, and being combined by an expression."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.combine import combined_size
from autoscaler.core.evaluate import allowed
from autoscaler.core.explain import explain
from autoscaler.core.learn import learn_policies
from autoscaler.core.model import (
    MAX_REPLICAS,
    MOST_LEARNED,
    Allowance,
    Behaviour,
    Cause,
    ClusterSpec,
    ClusterState,
    Decision,
    Direction,
    EngineStatus,
    JobState,
    Learned,
    Limits,
    NamedPolicy,
    Observation,
    Phase,
    Reading,
    Reason,
    Recommendation,
    SizeCapacity,
    View,
)
from autoscaler.core.rescale import begin
from autoscaler.core.state import rebase
from autoscaler.core.step import step
from autoscaler.trace.codec import dump_state, load_state
from tests.core.build import T0, Asks, Fixed, asks, at, seconds, seen, spec

Answer = Any


@dataclass(frozen=True)
class Learns:
    """Learns the result of `learner` from the view, and reports the learned memory."""

    learner: Callable[[View], Answer]

    def learn(self, view: View) -> Mapping[str, float]:
        return self.learner(view)  # type: ignore[no-any-return]

    def evaluate(self, view: View) -> Recommendation:
        return Recommendation(None, Reason.ABSTAINED, dict(view.memory), "knows")


@dataclass(frozen=True)
class Allows:
    """Allows the bounds that `rule` returns, and abstains."""

    rule: Callable[[datetime, Limits], Answer]

    def allow(self, now: datetime, limits: Limits) -> Allowance:
        return self.rule(now, limits)  # type: ignore[no-any-return]

    def evaluate(self, view: View) -> Recommendation:
        inputs = {"min": float(view.limits.minimum), "max": float(view.limits.maximum)}
        return Recommendation(None, Reason.ABSTAINED, inputs)


@dataclass(frozen=True)
class Combines:
    """Combines the sizes by a function."""

    how: Callable[[Mapping[str, int | None], int], Answer]

    def __str__(self) -> str:
        return "a rule"

    def combine(self, sizes: Mapping[str, int | None], current: int) -> float | None:
        return self.how(sizes, current)  # type: ignore[no-any-return]


def fails(*_: object) -> Answer:
    raise KeyError("broken")


def count(view: View) -> Mapping[str, float]:
    return {"ticks": view.memory.get("ticks", 0.0) + 1, "seen_at": view.now.timestamp()}


def within(minimum: int, maximum: int, excluded: str = "") -> Allows:
    return Allows(lambda _now, _limits: Allowance(Limits(minimum, maximum), excluded))


def named(*policies: Any) -> tuple[NamedPolicy, ...]:
    return tuple(NamedPolicy(f"p{i}", policy) for i, policy in enumerate(policies))


def decide(a_spec: ClusterSpec, observation: Observation, state: ClusterState | None = None) -> Decision:
    return step(a_spec, state or ClusterState(), observation)[1]


def run(a_spec: ClusterSpec, *observations: Observation, state: ClusterState | None = None) -> ClusterState:
    state = state or ClusterState()
    for observation in observations:
        state, _ = step(a_spec, state, observation)
    return state


# moved bounds


def test_a_view_with_other_learned_values_keeps_all_else() -> None:
    learned, memory = Learned(memory={"p0": {"ticks": 1.0}}), {"ticks": 1.0}
    view = View(
        now=T0,
        current=3,
        ready=2,
        metrics={"lag": Reading(1.0, T0)},
        past=(seen(0, 3),),
        limits=Limits(1, 5),
        learned=Learned({3: SizeCapacity(1.0, T0, 1)}),
        spec=spec(),
        engine=EngineStatus(job=JobState.RUNNING),
        rescale=begin(2, 3, T0, Cause.REQUEST),
        disturbance_ended_at=T0,
        memory={"ticks": 0.0},
    )
    assert view.with_learned(learned, memory) == replace(view, learned=learned, memory=memory)
    assert view.knowing(learned, memory) == view.with_learned(learned, memory)
    assert all(getattr(view, item.name) not in (None, {}, ()) for item in fields(View))


def test_a_view_accepts_the_former_keyword_of_disturbance_ended_at() -> None:
    view = View(
        now=T0,
        current=3,
        ready=3,
        metrics={},
        past=(),
        limits=Limits(1, 5),
        learned=Learned(),
        spec=spec(),
        warm_from=T0,
    )  # type: ignore[call-arg]
    assert (view.disturbance_ended_at, view.warm_from) == (T0, T0)
    assert replace(view, warm_from=at(15)) == replace(view, disturbance_ended_at=at(15))  # type: ignore[call-arg]
    assert replace(view, warm_from=None).disturbance_ended_at is None  # type: ignore[call-arg]


def test_an_empty_exclusion_reason_excludes_nothing() -> None:
    assert allowed(named(within(1, 5, "")), T0, Limits(1, 9))[:2] == (Limits(1, 5), None)


def test_policies_move_the_bounds_in_their_order() -> None:
    doubled = Allows(lambda _, limits: Allowance(Limits(limits.minimum * 2, limits.maximum * 2)))
    assert allowed(named(Asks(), within(3, 4), doubled), T0, Limits(1, 10)) == (Limits(6, 8), None, {})


def test_the_first_exclusion_reason_is_explained() -> None:
    policies = named(within(1, 5), within(1, 5, "audit"), within(1, 5, "deploy"))
    assert allowed(policies, T0, Limits(1, 10))[1] == "audit"


def test_unless_a_policy_moves_them_the_bounds_are_those_of_the_cluster() -> None:
    limits = Limits(1, 10)
    assert allowed(named(Asks(), Fixed(3)), T0, limits)[0] is limits


def test_bounds_follow_the_time_of_the_observation() -> None:
    later = Allows(lambda now, limits: Allowance(Limits(5, 9)) if now >= at(15) else Allowance(limits))
    a_spec = spec(Fixed(2), later)
    assert decide(a_spec, seen(0, 2)).desired == 2
    decision = decide(a_spec, seen(15, 2))
    assert (decision.desired, decision.reason) == (5, Reason.BOUNDS)
    assert decision.recommendations[1].inputs == {"min": 5.0, "max": 9.0}


def test_a_size_above_lowered_bounds_is_lowered_at_once() -> None:
    assert decide(spec(within(1, 4)), seen(0, 8)).desired == 4


def test_untrusted_input_lowers_no_size_to_moved_bounds() -> None:
    assert decide(spec(within(1, 4), metrics=("lag",)), seen(0, 8)).desired == 8


def test_policies_see_the_moved_bounds_also_while_the_target_is_unknown() -> None:
    decision = decide(spec(within(3, 4)), seen(0, None))
    assert decision.current == decision.desired == 3
    assert decision.recommendations[0].inputs == {"min": 3.0, "max": 4.0}


@pytest.mark.parametrize(
    ("rule", "detail"),
    [
        (fails, "raised KeyError: 'broken'"),
        (lambda *_: None, "returned NoneType, expected an Allowance"),
        (lambda *_: Limits(1, 2), "returned Limits, expected an Allowance"),
        (lambda *_: Allowance(None), "allowed NoneType, expected Limits"),  # type: ignore[arg-type]
        (lambda *_: Allowance(Limits(1.5, 2)), "allowed 1.5 to 2, expected whole numbers"),  # type: ignore[arg-type]
        (lambda *_: Allowance(Limits(1, math.inf)), "allowed 1 to inf, expected whole"),  # type: ignore[arg-type]
        (lambda *_: Allowance(Limits(MAX_REPLICAS + 1, MAX_REPLICAS + 1)), "the minimum at most 1000000"),
        (lambda *_: Allowance(Limits(1, 2), 5), "gave 5 as the reason to change nothing"),  # type: ignore[arg-type]
    ],
)
def test_a_policy_that_fails_to_move_the_bounds_lowers_nothing_and_stops_no_other_policy(
    rule: Any, detail: str
) -> None:
    a_spec = spec(Allows(rule), Asks(), within(2, 9))
    decision = decide(a_spec, seen(0, 8, 3))
    first, second, third = decision.recommendations
    assert first.reason is Reason.FAILED
    assert detail in first.detail
    assert (second.replicas, third.inputs) == (3, {"min": 2.0, "max": 9.0})
    assert (decision.desired, decision.reason) == (8, Reason.MISSING)
    # raising is not forbidden
    assert decide(a_spec, seen(0, 5, 9)).desired == 9
    # and the policy is not asked for a size either
    assert decide(a_spec, seen(0, None)).recommendations[0].reason is Reason.FAILED


def test_a_size_outside_the_configured_bounds_stays_while_the_moved_bounds_are_unknown() -> None:
    assert decide(spec(Allows(fails), Asks()), seen(0, 25, 25)).desired == 25


# exclusion windows


@pytest.mark.parametrize("ask", [1, 4, 5, 9])
def test_an_exclusion_by_a_policy_prevents_every_change(ask: int) -> None:
    decision = decide(spec(Asks(), within(1, 10, "deploy is open until noon")), seen(0, 5, ask))
    assert decision.desired == 5
    if ask == 5:
        assert (decision.reason, decision.verdicts[-1].detail) == (Reason.STEADY, "")
    else:
        assert decision.reason is Reason.BOUNDS
        assert decision.verdicts[-1].detail == "nothing may change: deploy is open until noon"


@pytest.mark.parametrize(("minimum", "maximum"), [(6, 10), (1, 4)])
def test_an_exclusion_overrides_even_the_bounds_and_the_trail_reports_it(minimum: int, maximum: int) -> None:
    decision = decide(spec(within(minimum, maximum, "deploy")), seen(0, 5))
    assert (decision.desired, decision.reason) == (5, Reason.BOUNDS)
    assert decision.verdicts[-1].detail == "nothing may change: deploy"


def test_a_rescale_in_flight_continues_during_an_exclusion() -> None:
    until = Allows(lambda now, limits: Allowance(limits, "deploy" if now >= at(15) else ""))
    a_spec = spec(Asks(), until)
    state, first = step(a_spec, ClusterState(), seen(0, 2, 6))
    assert first.desired == 6
    state, second = step(a_spec, state, seen(15, 6, 9, ready=4))
    assert second.desired == second.current == 6
    assert state.rescale is not None
    assert state.rescale.to == 6
    assert state.rescale.confirmed


# learning


def test_a_policy_sees_its_memory_when_it_learns_and_when_it_recommends() -> None:
    a_spec = spec(Learns(count))
    state, decision = step(a_spec, ClusterState(), seen(0, 2))
    assert decision.recommendations[0].inputs == {"ticks": 1.0, "seen_at": T0.timestamp()}
    state, decision = step(a_spec, state, seen(15, 2))
    assert decision.recommendations[0].inputs["ticks"] == 2.0
    assert state.learned.memory == {"p0": {"ticks": 2.0, "seen_at": at(15).timestamp()}}


def test_each_policy_has_a_memory_of_its_own() -> None:
    one, two = Learns(lambda view: {"a": view.memory.get("a", 0.0) + 1}), Learns(lambda view: {"b": len(view.memory)})
    state = run(spec(one, Asks(), two), seen(0, 2, 2), seen(15, 2, 2))
    assert state.learned.memory == {"p0": {"a": 2.0}, "p2": {"b": 1.0}}


def test_values_that_a_policy_no_longer_returns_are_forgotten() -> None:
    state = run(spec(Learns(lambda view: {} if view.memory else {"once": 1.0})), seen(0, 2), seen(15, 2))
    assert state.learned.memory == {"p0": {}}


def test_the_memory_of_a_removed_policy_is_dropped() -> None:
    state = run(spec(Learns(count)), seen(0, 2))
    assert run(spec(Asks()), seen(15, 2, 2), state=state).learned.memory == {}


def test_nothing_is_learned_and_nothing_forgotten_while_the_target_is_unknown() -> None:
    a_spec = spec(Learns(count))
    state = run(a_spec, seen(0, 2))
    after, decision = step(a_spec, state, seen(15, None))
    assert after.learned == state.learned
    assert decision.recommendations[0].inputs["ticks"] == 1.0


def test_memory_is_stored_beside_the_values_that_the_core_learns() -> None:
    table = {2: SizeCapacity(100.0, T0, 3)}
    durations = {Direction.UP: {Phase.READY: (4.0,)}}
    state = ClusterState(learned=Learned(table, durations))
    state = run(spec(Learns(count)), seen(0, 2), state=state)
    assert state.learned == Learned(table, durations, {"p0": {"ticks": 1.0, "seen_at": T0.timestamp()}})


@pytest.mark.parametrize(
    ("learner", "detail"),
    [
        (fails, "raised KeyError: 'broken'"),
        (lambda _: None, "returned NoneType, expected numbers by name"),
        (lambda _: [1.0], "returned list, expected numbers by name"),
        (lambda _: {"x": math.nan}, "kept 'x' = nan, expected a name and a finite number"),
        (lambda _: {"x": 1.0, "y": -math.inf}, "kept 'y' = -inf, expected"),
        (lambda _: {3: 1.0}, "kept 3 = 1.0, expected"),
        (lambda _: {"x": "1"}, "raised TypeError"),
        (lambda _: {"x": 10**400}, "raised OverflowError"),
        (lambda _: {f"n{i}": 0.0 for i in range(MOST_LEARNED + 1)}, "kept 1001 numbers, expected at most 1000"),
    ],
)
def test_a_policy_that_fails_to_learn_keeps_its_memory_lowers_nothing_and_stops_no_other_policy(
    learner: Any, detail: str
) -> None:
    before = run(spec(Learns(count)), seen(0, 8))
    a_spec = spec(Learns(learner), Asks(), Learns(count))
    state, decision = step(a_spec, before, seen(15, 8, 3))
    first, second, third = decision.recommendations
    assert first.reason is Reason.FAILED
    assert first.detail.startswith("while learning it ")
    assert detail in first.detail
    assert (second.replicas, third.inputs["ticks"]) == (3, 1.0)
    assert state.learned.memory["p0"] == before.learned.memory["p0"]
    assert (decision.desired, decision.reason) == (8, Reason.MISSING)
    assert decide(a_spec, seen(15, 8, 9), before).desired == 9


def test_memory_holds_up_to_the_allowed_number_of_values() -> None:
    most = {f"n{i}": float(i) for i in range(MOST_LEARNED)}
    assert run(spec(Learns(lambda _: most)), seen(0, 2)).learned.memory == {"p0": most}


@pytest.mark.parametrize(
    "found",
    [
        {"x": Fraction(1, 2), "y": 2, "z": True},
        MappingProxyType({"x": 0.5, "y": 2.0, "z": 1.0}),
        OrderedDict(x=0.5, y=2, z=1),
    ],
)
def test_other_mapping_and_number_types_are_stored_as_dict_and_float(found: Mapping[str, float]) -> None:
    memory = run(spec(Learns(lambda _: found)), seen(0, 2)).learned.memory["p0"]
    assert type(memory) is dict
    assert {name: (type(number), number) for name, number in memory.items()} == {
        "x": (float, 0.5),
        "y": (float, 2.0),
        "z": (float, 1.0),
    }


def test_a_policy_that_fails_in_both_hooks_is_reported_once() -> None:
    @dataclass(frozen=True)
    class Both(Learns):
        def allow(self, now: datetime, limits: Limits) -> Allowance:
            return fails(now, limits)  # type: ignore[no-any-return]

    (answer,) = decide(spec(Both(fails)), seen(0, 2)).recommendations
    assert answer.detail == "while learning it raised KeyError: 'broken'"


def test_an_attribute_that_is_not_a_method_is_not_a_hook() -> None:
    @dataclass(frozen=True)
    class Odd(Fixed):
        learn: float = 0.5
        allow: bool = True

    decision = decide(spec(Odd(4)), seen(0, 2))
    assert (decision.desired, decision.recommendations[0].reason) == (4, Reason.ABOVE)


# memory over time


def test_times_in_the_memory_move_when_the_clock_is_adjusted() -> None:
    state = run(spec(Learns(count)), seen(100, 2))
    moved = rebase(state, seconds(-40))
    assert moved.learned.memory == {"p0": {"ticks": 1.0, "seen_at": at(60).timestamp()}}
    # and they also move in a step whose clock went back
    kept = spec(Learns(lambda view: dict(view.memory)))
    assert run(kept, seen(60, 2), state=state).learned.memory["p0"] == moved.learned.memory["p0"]


def test_memory_survives_a_restart_bit_by_bit() -> None:
    numbers = {
        "tiny": 5e-324,
        "third": 1 / 3,
        "huge": 1.7e308,
        "least": -0.1,
        "zero": -0.0,
        "seen_at": 1767225600.123456,
    }
    state = run(spec(Learns(lambda _: numbers)), seen(0, 2))
    again = load_state(dump_state(state))
    assert again.learned == state.learned
    assert repr(again.learned.memory["p0"]["zero"]) == "-0.0"


def test_a_state_written_before_memory_existed_is_read() -> None:
    text = dump_state(run(spec(Asks()), seen(0, 2, 2))).decode().replace(',"memory":{}', "")
    assert "memory" not in text
    assert load_state(text).learned.memory == {}


names = st.text(st.characters(codec="utf-8"), max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
memories = st.dictionaries(names, numbers, max_size=5)


@given(memory=memories, ticks=st.integers(1, 4))
def test_a_restart_between_any_two_steps_changes_nothing(memory: dict[str, float], ticks: int) -> None:
    def learner(view: View) -> Mapping[str, float]:
        return {**memory, **view.memory, "n": view.memory.get("n", 0.0) + 1}

    a_spec = spec(Learns(learner), Asks())
    through = straight = ClusterState()
    for tick in range(ticks):
        observation = seen(15 * tick, 2, 2)
        straight, expected = step(a_spec, straight, observation)
        through, decision = step(a_spec, replace(load_state(dump_state(through)), past=through.past), observation)
        assert decision == expected
    assert through.learned == straight.learned


@given(memory=memories, shift=st.integers(-10_000, 10_000))
def test_adjusting_the_clock_changes_only_times_in_the_memory(memory: dict[str, float], shift: int) -> None:
    state = ClusterState(learned=Learned(memory={"p": memory}))
    there = rebase(state, seconds(shift))
    changed = {name for name in memory if there.learned.memory["p"][name] != memory[name]}
    assert all(name.endswith("_at") for name in changed)
    assert set(there.learned.memory["p"]) == set(memory)


@given(
    outcomes=st.lists(
        st.one_of(
            memories,
            st.just(ValueError("no")),
            st.sampled_from([None, 3, {"x": math.nan}, {None: 1.0}, {"x": None}, {"x": 10**400}]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_a_policy_learns_the_memory_is_finite_numbers_by_name(outcomes: list[Any]) -> None:
    def learner(view: View) -> Answer:
        outcome = outcomes[int((view.now - T0) / seconds(15))]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    state, a_spec = ClusterState(), spec(Learns(learner), down=Behaviour())
    for tick in range(len(outcomes)):
        state, decision = step(a_spec, state, seen(15 * tick, 5))
        assert decision.desired == 5
        for name, number in state.learned.memory["p0"].items():
            assert isinstance(name, str)
            assert math.isfinite(number)
        load_state(dump_state(state))


def test_learn_returns_the_memory_of_learning_policies_only() -> None:
    view = View(
        now=T0,
        current=2,
        ready=2,
        metrics={},
        past=(),
        limits=Limits(1, 10),
        learned=Learned(memory={"p0": {"old": 1.0}, "gone": {"x": 1.0}}),
        spec=spec(),
    )
    policies = named(Learns(lambda one: {**one.memory, "new": 2.0}), Asks())
    memory, failed = learn_policies(tuple((policy, view) for policy in policies), view.learned)
    assert (memory, failed) == ({"p0": {"old": 1.0, "new": 2.0}}, {})


# combining


def sizes(*replicas: int | None) -> tuple[Recommendation, ...]:
    return tuple(
        Recommendation(None, Reason.ABSTAINED, policy=f"p{i}")
        if size is None
        else replace(asks(size, 4), policy=f"p{i}")
        for i, size in enumerate(replicas)
    )


@pytest.mark.parametrize(
    ("asked", "expected"), [((3, 7, None), 7), ((None, 0), 0), ((None, None), 4), ((), 4), ((2, 2), 2)]
)
def test_without_an_expression_the_greatest_size_counts(asked: tuple[int | None, ...], expected: int) -> None:
    assert combined_size(sizes(*asked), 4) == (expected, None)


@pytest.mark.parametrize(
    ("given_size", "expected"),
    [
        (2, 2),
        (2.1, 3),
        (0, 0),
        (0.2, 1),
        (10 * 1.1, 11),
        (MAX_REPLICAS, MAX_REPLICAS),
        (None, 4),
        (True, 1),
        (3 + 1e-15, 3),
    ],
)
def test_the_result_of_an_expression_is_proposed_rounded_up(given_size: float | None, expected: int) -> None:
    assert combined_size(sizes(3, 7), 4, Combines(lambda *_: given_size)) == (expected, None)


def test_an_expression_receives_every_size_by_name_and_the_current_size() -> None:
    found: list[object] = []
    combined_size(sizes(3, None), 4, Combines(lambda *sizes_asked: found.append(sizes_asked)))
    assert found == [({"p0": 3, "p1": None}, 4)]


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        (fails, "'broken'"),
        (lambda *_: -1, "they give -1, expected 0 to 1000000"),
        (lambda *_: MAX_REPLICAS + 1, "they give 1000001, expected 0 to 1000000"),
        (lambda *_: math.nan, "they give nan, expected"),
        (lambda *_: math.inf, "they give inf, expected"),
        (lambda *_: 10**100, "they give 1" + "0" * 39 + ", expected"),
        (lambda *_: "5", "not supported between"),
        (lambda *_: 1j, "not supported between"),
        (lambda *_: (_ for _ in ()).throw(ZeroDivisionError), "ZeroDivisionError"),
    ],
)
def test_if_an_expression_fails_nothing_is_lowered_and_the_greatest_size_counts(how: Any, problem: str) -> None:
    proposed, why = combined_size(sizes(3, 7, None), 4, Combines(how))
    assert proposed == 7
    assert why is not None
    assert why.startswith("the policies cannot be combined: ")
    assert problem in why
    a_spec = spec(Asks(), Fixed(2), combine=Combines(how))
    lower = decide(a_spec, seen(0, 8, 3))
    assert (lower.desired, lower.reason) == (8, Reason.MISSING)
    assert "the policies cannot be combined" in lower.verdicts[0].detail
    higher = decide(a_spec, seen(0, 4, 6))
    assert higher.desired == 6
    assert "the policies cannot be combined" in explain(seen(0, 4, 6), higher)


def test_a_proposal_of_a_failed_combination_is_not_used_for_stabilization() -> None:
    state = run(spec(Asks(), combine=Combines(fails)), seen(0, 4, 3))
    assert state.proposals == ()


def test_an_expression_may_lower_the_size_and_stays_within_the_bounds() -> None:
    least = Combines(lambda sizes_asked, _: min(size for size in sizes_asked.values() if size is not None))
    a_spec = spec(Asks(), Fixed(6), combine=least)
    lower = decide(a_spec, seen(0, 8, 3))
    assert (lower.proposed, lower.desired, lower.combined) == (3, 3, "a rule")
    beyond = decide(spec(Asks(), combine=Combines(lambda *_: 500)), seen(0, 8, 3))
    assert (beyond.proposed, beyond.desired) == (500, 10)


def test_an_expression_over_a_missing_metric_lowers_nothing() -> None:
    decision = decide(spec(Asks(), Fixed(2), combine=Combines(lambda sizes_asked, _: sizes_asked["p1"])), seen(0, 8))
    assert (decision.proposed, decision.desired, decision.reason) == (2, 8, Reason.MISSING)


def test_the_combination_of_policies_is_explained_also_while_the_target_is_unknown() -> None:
    sizes_asked = decide(spec(Asks(), combine=Combines(lambda *_: 5)), seen(0, None, 3))
    assert (sizes_asked.proposed, sizes_asked.combined) == (5, "a rule")
    assert decide(spec(Asks()), seen(0, 2, 3)).combined == ""


def test_a_reading_with_a_part_that_is_not_a_number_counts_as_missing() -> None:
    def observed(number: float) -> Observation:
        return replace(seen(0, 8), metrics={"ask": Reading(3.0, T0, parts={"map": {"busy": 0.5, "idle": number}})})

    assert decide(spec(Asks()), observed(0.25)).desired == 3
    doubted = decide(spec(Asks()), observed(math.nan))
    assert (doubted.desired, doubted.reason) == (8, Reason.MISSING)


replies = st.one_of(st.none(), st.integers(-5, 2_000_000), st.floats(), st.just(ValueError("no")))
verdicts = st.one_of(
    st.builds(Allowance, st.builds(Limits, st.integers(0, 8), st.integers(8, 30)), st.sampled_from(["", "", "deploy"])),
    st.just(ValueError("no")),
    st.none(),
)


@given(
    reply=replies,
    allowance=verdicts,
    current=st.integers(0, 40),
    ask=st.one_of(st.none(), st.integers(0, 40)),
    unknown=st.booleans(),
)
def test_whatever_the_hooks_do_a_step_stays_within_its_laws(
    reply: Any, allowance: Any, current: int, ask: int | None, *, unknown: bool
) -> None:
    def answer(given_one: Any) -> Any:
        if isinstance(given_one, Exception):
            raise given_one
        return given_one

    a_spec = spec(
        Asks(), Allows(lambda *_: answer(allowance)), combine=Combines(lambda *_: answer(reply)), engine=unknown
    )
    engine = EngineStatus(job=JobState.UNKNOWN) if unknown else None
    state, decision = step(a_spec, ClusterState(), seen(0, current, ask, engine=engine))
    limits = allowance.limits if isinstance(allowance, Allowance) else a_spec.limits
    if decision.rescale:
        assert limits.minimum <= decision.desired <= limits.maximum
        assert not (isinstance(allowance, Allowance) and allowance.excluded)
    broken = isinstance(reply, Exception) or (reply is not None and not 0 <= reply <= MAX_REPLICAS)
    if ask is None or unknown or broken or not isinstance(allowance, Allowance):
        assert decision.desired >= current
    assert decision.verdicts[0].before == decision.proposed
    assert decision.verdicts[-1].after == decision.desired
    assert load_state(dump_state(state)).learned == state.learned


def test_stabilization_windows_use_past_proposals_also_with_moved_bounds() -> None:
    # The night's maximum ends at 30 s: the size rises at once, since `up` has no window here.
    night = Allows(lambda now, _: Allowance(Limits(1, 3 if now < at(30) else 10)))
    a_spec = spec(Asks(), night, down=Behaviour(window=timedelta(minutes=5)))
    state = run(a_spec, seen(0, 3, 8), seen(15, 3, 8))
    assert step(a_spec, state, seen(30, 3, 8))[1].desired == 8
