"""The laws of the decision machine, each tested against arbitrary specs and arbitrary histories."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import cycle, pairwise
from typing import Any, ClassVar

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from autoscaler.core.capacity import source_partitions
from autoscaler.core.model import (
    ANY,
    Behaviour,
    Bound,
    CapacitySpec,
    Cause,
    ClusterSpec,
    ClusterState,
    Control,
    Decision,
    EngineStatus,
    JobState,
    Limits,
    NamedPolicy,
    Observation,
    Phase,
    Policy,
    Range,
    Rate,
    RateKind,
    Reading,
    Reason,
    Recommendation,
    Select,
    SettleSpec,
    View,
)
from autoscaler.core.state import call_failed
from autoscaler.core.step import step
from autoscaler.trace.verdict_trail import shortened
from tests.core.build import T0, Asks, Fixed, seconds

STATE = TypeAdapter(ClusterState)
SIZES = st.integers(0, 30)
SPANS = st.sampled_from([0, 1, 15, 45, 120, 600]).map(seconds)

behaviours = st.builds(
    Behaviour,
    window=SPANS,
    tolerance=st.sampled_from([0.0, 0.1, 0.5]),
    cooldown=SPANS,
    select=st.sampled_from(Select),
    rates=st.lists(
        st.builds(
            Rate,
            kind=st.sampled_from(RateKind),
            value=st.integers(1, 150).map(float),
            period=st.sampled_from([15, 60, 600]).map(seconds),
        ),
        max_size=2,
    ).map(tuple),
)
limits = st.tuples(SIZES, st.integers(1, 30)).filter(lambda t: t[0] <= t[1]).map(lambda t: Limits(*t))
answers = st.one_of(
    SIZES,
    st.just(ValueError("broken")),
    st.sampled_from(
        [
            None,
            Recommendation(None, Reason.ABSTAINED),
            Recommendation(None, Reason.LEARNING),
            Recommendation(-1, Reason.BELOW),
            Recommendation(3, Reason.BELOW, {"x": math.nan}),
            Recommendation(True, Reason.BELOW),
            Recommendation(2.5, Reason.BELOW),  # type: ignore[arg-type]
        ]
    ),
)
policies = st.lists(st.one_of(st.just(Asks()), answers.map(Fixed)), min_size=1, max_size=3).map(
    lambda drawn: tuple(NamedPolicy(f"p{i}", policy) for i, policy in enumerate(drawn))
)
specs = st.builds(
    ClusterSpec,
    name=st.just("c"),
    limits=limits,
    policies=policies,
    up=behaviours,
    down=behaviours,
    settle=st.builds(
        SettleSpec,
        **dict.fromkeys(
            ["ready", "caught_up"],
            st.sampled_from([30, 300]).map(seconds),
        ),
        **dict.fromkeys(
            ["registered", "absorbed", "running"],
            st.sampled_from([None, seconds(30), seconds(300)]),
        ),
        short=st.sampled_from([0.0, 0.25, 1.0]),
    ),
    metrics=st.sampled_from([("ask",), ("ask", "lag", "throughput")]),
    engine=st.booleans(),
    slots_per_replica=st.integers(1, 4),
    partitions=st.one_of(st.none(), st.integers(1, 40)),
)


def chosen(*kinds: Sequence[Any]) -> st.SearchStrategy[Any]:
    """A value of one of these kinds, all equally likely.

    It takes one draw where `one_of` takes two or three: a history has hundreds of draws, and they take most of the time
    of a law.
    """
    most = math.lcm(*map(len, kinds))
    return st.sampled_from([value for kind in kinds for value in [*kind] * (most // len(kind))])


WHOLE = [float(number) for number in range(41)]
ODD = [math.nan, math.inf, -math.inf, -1.0, 1e300]
EACH = [(1.0, 3.0)]
numbers = chosen(WHOLE, ODD, EACH)
asks = chosen(WHOLE, WHOLE, ODD, EACH)
engines = st.builds(
    EngineStatus,
    job=st.sampled_from(JobState),
    slots=chosen([None], range(61)),
    parallelism=chosen([None], range(61)),
    max_parallelism=chosen([None], range(61)),
    partitions=chosen([None], range(41)),
    restarts=chosen([None], range(4)),
    deadlines=st.sampled_from([{}, {Phase.REGISTERED: seconds(70), Phase.ABSORBED: seconds(20)}]),
)
bounds = chosen([None], [None], [Bound(size, "the group says so") for size in range(21)])


class Moment:
    """The events between two ticks, drawn by hypothesis."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.after = draw(st.sampled_from([15, 15, 15, 15, 1, 0, 200, 4000, -20, -5000]))
        self.ask = draw(asks)
        self.lag = draw(numbers)
        self.throughput = draw(numbers)
        self.age = draw(st.sampled_from([0, 0, 0, 0, 30, 400, -60]))
        self.drop = draw(st.sampled_from(["", "", "", "", "ask", "lag", "target", "engine"]))
        self.engine = draw(engines)
        self.external = draw(st.sampled_from([None, None, None, None, None, 0, 2, 29, -1]))
        self.lost = draw(st.sampled_from([0, 0, 0, 0, 0, 1, 3, 30]))
        self.call = draw(st.sampled_from(["works", "works", "works", "fails", "lost answer", "slow"]))
        self.floor = draw(bounds)
        self.ceiling = draw(bounds)
        self.partitions = draw(st.sampled_from([None, None, 1, 7, 0]))


@st.composite
def histories(draw: st.DrawFn) -> list[Moment]:
    return [Moment(draw) for _ in range(draw(st.integers(1, 25)))]


@dataclass(frozen=True)
class RangedAsks(Asks):
    """A policy that knows the range of its metric."""

    @property
    def ranges(self) -> Mapping[str, Range]:
        return {self.metric: Range(0.0, 40.0, "0 to 40")}


def ranged(policy: Policy) -> Policy:
    return RangedAsks(policy.metric) if isinstance(policy, Asks) else policy


Lived = tuple[ClusterState, Observation, ClusterState, Decision]


def live(
    spec: ClusterSpec,
    history: list[Moment],
    start: int,
    *,
    through_json: bool = False,
    ordered: Sequence[tuple[Control, ...]] = ((),),
) -> Iterator[Lived]:
    """Drive `step` through a history; yields state before, observation, state after, decision.

    Manual controls are set and end in turns.
    """
    state = ClusterState()
    desired = start
    waiting: int | None = None
    now = T0
    for moment, controls in zip(history, cycle(ordered), strict=False):
        now += seconds(moment.after)
        if waiting is not None:
            desired, waiting = waiting, None
        if moment.external is not None:
            desired = moment.external
        observation = replace(_observe(spec, moment, now, desired), controls=controls)
        if through_json:
            state = STATE.validate_json(STATE.dump_json(state))
        after, decision = step(spec, state, observation)
        yield state, observation, after, decision
        state = after
        if decision.rescale:
            if moment.call in ("works", "lost answer"):
                desired = decision.desired
            if moment.call in ("fails", "lost answer"):
                state = call_failed(state, "no")
            if moment.call == "slow":
                waiting = decision.desired


def _observe(spec: ClusterSpec, moment: Moment, now: datetime, desired: int) -> Observation:
    stamp = now - seconds(moment.age)
    values = {"ask": moment.ask, "lag": moment.lag, "throughput": moment.throughput}
    metrics = {name: Reading(values[name], stamp, moment.partitions) for name in spec.metrics if name != moment.drop}
    missing = {moment.drop: "gone"} if moment.drop else {}
    known = moment.drop != "target"
    return Observation(
        at=now,
        desired=desired if known else None,
        ready=max(0, desired - moment.lost) if known else None,
        metrics=metrics,
        missing=missing,
        engine=moment.engine if spec.engine and moment.drop != "engine" else None,
        floor=moment.floor if known else None,
        ceiling=moment.ceiling if known else None,
    )


lives = given(specs, histories(), SIZES)


@dataclass(frozen=True)
class AsksForPartitions:
    """A policy that asks for as many replicas as there are partitions."""

    def evaluate(self, view: View) -> Recommendation:
        partitions = source_partitions(view.spec, view.engine, view.past)
        return Recommendation(partitions, Reason.ABSTAINED if partitions is None else Reason.STEADY)


@dataclass(frozen=True)
class Present:
    """A policy that ignores the past."""

    policy: Policy
    lookback: ClassVar[timedelta] = seconds(0)

    def evaluate(self, view: View) -> Recommendation:
        return self.policy.evaluate(view)


@lives
def test_law_1_a_size_outside_the_bounds_is_never_requested(
    spec: ClusterSpec, history: list[Moment], start: int
) -> None:
    for _, _, _, decision in live(spec, history, start):
        if decision.rescale:
            assert spec.limits.minimum <= decision.desired <= spec.limits.maximum


def doubtful(spec: ClusterSpec, observation: Observation, decision: Decision) -> bool:
    bad_metric = any(
        name not in observation.metrics
        or name in observation.missing
        or not observation.metrics[name].within(*spec.ranges.get(name, ANY)[:2])
        or observation.metrics[name].at < observation.at - spec.max_age
        or observation.metrics[name].at > observation.at + spec.max_ahead
        for name in spec.metrics
    )
    bad_policy = any(r.reason in (Reason.FAILED, Reason.MISSING) for r in decision.recommendations)
    engine = observation.engine
    bad_engine = spec.engine and (engine is None or engine.job is JobState.UNKNOWN)
    return bad_metric or bad_policy or bad_engine or observation.desired is None


@lives
def test_law_1_a_size_beyond_what_the_target_allows_is_never_requested(
    spec: ClusterSpec, history: list[Moment], start: int
) -> None:
    for _, observation, _, decision in live(spec, history, start):
        if observation.ceiling is not None and decision.desired > decision.current:
            assert decision.desired <= observation.ceiling.replicas
        if observation.floor is not None and decision.desired < decision.current:
            assert decision.desired >= observation.floor.replicas


@lives
def test_law_2_bad_input_never_lowers_the_size(spec: ClusterSpec, history: list[Moment], start: int) -> None:
    for _, observation, _, decision in live(spec, history, start):
        if doubtful(spec, observation, decision):
            assert decision.desired >= decision.current


@lives
def test_law_2_a_reading_outside_the_range_of_the_metric_counts_as_missing(
    spec: ClusterSpec, history: list[Moment], start: int
) -> None:
    spec = replace(spec, policies=tuple(NamedPolicy(named.name, ranged(named.policy)) for named in spec.policies))
    for before, observation, _, decision in live(spec, history, start):
        lies = {
            name: "impossible"
            for name, reading in observation.metrics.items()
            if not reading.within(*spec.ranges.get(name, ANY)[:2])
        }
        honest = {name: reading for name, reading in observation.metrics.items() if name not in lies}
        missing = {**lies, **observation.missing}
        _, without = step(spec, before, replace(observation, metrics=honest, missing=missing))
        assert (decision.current, decision.desired) == (without.current, without.desired)
        if lies:
            assert decision.desired >= decision.current


@lives
def test_law_3_nothing_is_scaled_down_while_a_rescale_is_in_flight_and_up_only_when_clearly_short(
    spec: ClusterSpec, history: list[Moment], start: int
) -> None:
    for _, observation, _, decision in live(spec, history, start):
        gave_way = any(
            reason is Reason.SUPERSEDED and "is replaced by one to" in text for reason, text in decision.notes
        )
        restarting = observation.engine is not None and observation.engine.job in (
            JobState.RESTARTING,
            JobState.STARTING,
        )
        if (gave_way or restarting) and decision.rescale:
            assert decision.desired > decision.current
            clearly_short = decision.proposed > decision.current * (1 + spec.settle.short)
            assert clearly_short or decision.desired == spec.limits.minimum


@lives
def test_law_3_a_scale_down_happens_only_with_every_replica_ready_and_the_last_rescale_over(
    spec: ClusterSpec, history: list[Moment], start: int
) -> None:
    over = {Reason.SETTLED, Reason.DEADLINE, Reason.UNCONFIRMED}
    for before, observation, after, decision in live(spec, history, start):
        if decision.desired < decision.current:
            if before.rescale is not None:
                assert over & {reason for reason, _ in decision.notes}
            assert observation.ready is not None
            # Lost replicas are waited for, until their deadline.
            given_up = before.last_missed is not None or after.last_missed is not None or before.desired is None
            assert observation.ready >= decision.current or given_up


@lives
def test_law_3_while_no_replica_is_ready_and_some_are_waited_for_no_more_are_requested(
    spec: ClusterSpec, history: list[Moment], start: int
) -> None:
    for before, observation, _, decision in live(spec, history, start):
        rescale = before.rescale
        from_nothing = before.desired == 0 or (
            rescale is not None
            and rescale.cause is not Cause.LOSS
            and (0 in (rescale.before, rescale.to) or rescale.replaced is not None)
        )
        # Replicas that missed their deadline may never come: then one step is tried.
        given_up = rescale is None and before.last_missed is not None
        if observation.ready == 0 and observation.desired and not (from_nothing or given_up):
            # Only the user's own minimum may raise the size then.
            assert decision.desired <= max(decision.current, spec.limits.minimum)


@lives
def test_law_4_every_decision_has_its_whole_contiguous_trail(
    spec: ClusterSpec, history: list[Moment], start: int
) -> None:
    for _, observation, _, decision in live(spec, history, start):
        assert decision.verdicts
        assert decision.verdicts[0].before == decision.proposed
        assert decision.verdicts[-1].after == decision.desired
        for first, second in pairwise(decision.verdicts):
            assert first.after == second.before
        assert len(decision.recommendations) == len(spec.policies)
        if observation.desired is not None and observation.desired >= 0:
            assert [verdict.guard for verdict in decision.verdicts] == GUARD_ORDER
        for verdict in decision.verdicts:
            if verdict.before != verdict.after:
                assert verdict.detail, verdict
        names, telling = shortened(decision.verdicts, decision.proposed)
        assert names == tuple(verdict.guard for verdict in decision.verdicts)
        assert all(verdict.detail for verdict in telling)


GUARD_ORDER = [
    Reason.FRESHNESS,
    Reason.SETTLING,
    Reason.TOLERANCE,
    Reason.STABILIZATION,
    Reason.RATE_LIMIT,
    Reason.COOLDOWN,
    Reason.CAP,
    Reason.USEFUL_SIZE,
    Reason.CONTENTION,
    Reason.TARGET,
    Reason.BOUNDS,
]


@lives
def test_law_5_and_6_the_same_input_gives_the_same_decisions_also_over_restarts(
    spec: ClusterSpec, history: list[Moment], start: int
) -> None:
    once = [decision for _, _, _, decision in live(spec, history, start)]
    restarted_at_every_tick = [decision for _, _, _, decision in live(spec, history, start, through_json=True)]
    assert repr(restarted_at_every_tick) == repr(once)


@lives
def test_law_6_a_fresh_daemon_never_scales_down_before_one_window_was_watched(
    spec: ClusterSpec, history: list[Moment], start: int
) -> None:
    watched = timedelta(0)
    before: datetime | None = None
    trusted = False
    for _, observation, _, decision in live(spec, history, start):
        if before is not None and trusted:
            watched += max(timedelta(0), observation.at - before)
        before = observation.at
        # Time counts from the first trusted input.
        trusted = trusted or not doubtful(spec, observation, decision)
        if watched < spec.down.window and decision.desired < decision.current:
            # Only the user's own maximum may lower the size then.
            assert decision.current > spec.limits.maximum
            assert decision.desired == spec.limits.maximum


@lives
def test_law_6_a_restart_does_not_refill_a_rate_limit(spec: ClusterSpec, history: list[Moment], start: int) -> None:
    period = seconds(600)
    limit = 5
    up = replace(spec.up, select=Select.MAX, rates=(Rate(RateKind.REPLICAS, limit, period),))
    spec = replace(spec, up=up, limits=Limits(0, 30))
    steady = [m for m in history if m.after >= 0 and m.external is None and m.call == "works"]
    requested: list[tuple[datetime, int]] = []
    for _, observation, _, decision in live(spec, steady, start, through_json=True):
        if decision.rescale:
            requested.append((observation.at, decision.desired - decision.current))
        if decision.rescale and decision.desired > decision.current:
            within = sum(change for when, change in requested if when > observation.at - period)
            assert within <= limit


@lives
def test_law_7_the_same_size_is_not_requested_again_while_it_is_on_its_way(
    spec: ClusterSpec, history: list[Moment], start: int
) -> None:
    for _, observation, after, decision in live(spec, history, start):
        if decision.rescale and spec.settle.short > 0:
            asked_again = replace(observation, at=observation.at)
            _, second = step(spec, after, asked_again)
            assert second.current == decision.desired
            assert second.desired >= decision.desired
            same_ask = second.proposed <= decision.desired * (1 + spec.settle.short)
            if same_ask:
                assert not second.rescale


@lives
def test_law_8_step_is_total_and_no_policy_can_stop_it(spec: ClusterSpec, history: list[Moment], start: int) -> None:
    broken = NamedPolicy("broken", Fixed(RuntimeError("boom")))
    whole = replace(spec, policies=(broken, *spec.policies))
    decisions = [decision for _, _, _, decision in live(whole, history, start)]
    assert len(decisions) == len(history)
    assert all(decision.recommendations[0].reason is Reason.FAILED for decision in decisions)


@lives
def test_a_useless_size_is_never_paid_for_when_no_rate_limit_cuts_the_step(
    spec: ClusterSpec, history: list[Moment], start: int
) -> None:
    free = replace(spec, up=replace(spec.up, rates=()), down=replace(spec.down, rates=()))
    for _, observation, after, decision in live(free, history, start):
        partitions = source_partitions(free, observation.engine, after.past)
        by_user = decision.desired in (free.limits.minimum, free.limits.maximum)
        # A scale-down to the target's own minimum has no price.
        by_target = observation.floor is not None and decision.desired == observation.floor.replicas
        if decision.rescale and partitions is not None and not (by_user or by_target):
            slots = free.slots_per_replica
            waves = math.ceil(partitions / (decision.desired * slots))
            smaller = math.ceil(partitions / ((decision.desired - 1) * slots)) if decision.desired > 1 else 0
            assert smaller != waves


@given(specs, histories(), SIZES, SPANS)
def test_decisions_are_the_same_if_old_readings_are_dropped(
    spec: ClusterSpec, history: list[Moment], start: int, sustained: timedelta
) -> None:
    capacity = CapacitySpec(sustained=sustained, saturation="ask", saturated_at=0.01, warmup=seconds(0))
    policies = (*spec.policies, NamedPolicy("partitions", AsksForPartitions()))
    whole = replace(spec, policies=policies, capacity=capacity)
    present = tuple(NamedPolicy(named.name, Present(named.policy)) for named in policies)
    kept = live(whole, history, start)
    for (_, _, after, decision), (_, _, other, same) in zip(
        kept, live(replace(whole, policies=present), history, start), strict=True
    ):
        assert decision == same
        assert replace(after, past=()) == replace(other, past=())
