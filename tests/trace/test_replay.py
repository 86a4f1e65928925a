"""Open-loop replay: recorded observations, decided again."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model import (
    Behaviour,
    Cause,
    ClusterSpec,
    ClusterState,
    Decision,
    EngineStatus,
    JobState,
    Limits,
    NamedPolicy,
    Observation,
    Policy,
    Reading,
    Reason,
    Recommendation,
    Verdict,
    View,
)
from autoscaler.core.state import call_failed
from autoscaler.core.step import step
from autoscaler.plugins import Kind, load
from autoscaler.ports import Record
from autoscaler.simulation import faults
from autoscaler.simulation.loads import load_by_name
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import PLANTS
from autoscaler.trace.codec import dump_record, load_record
from autoscaler.trace.replay import Comparison, FirstDifference, Replay, decide_again, first_difference

BEGIN = datetime(2026, 1, 31, 17, tzinfo=UTC)
TICK = timedelta(seconds=15)
METRICS = ("lag", "arrivals", "throughput", "saturation", "utilization", "cpu")


def at(tick: float) -> datetime:
    return BEGIN + TICK * tick


@dataclass(frozen=True, slots=True)
class Wants:
    """Requests a little more than the metric."""

    plus: int = 0

    def evaluate(self, view: View) -> Recommendation:
        size = view.number("wanted")
        if size is None:
            return Recommendation(None, Reason.MISSING)
        return Recommendation(int(size) + self.plus, Reason.STEADY, detail=f"{size:g} and {self.plus}")


def spec(plus: int = 0, **changes: Any) -> ClusterSpec:
    quick = Behaviour()
    fields: dict[str, Any] = {"metrics": ("wanted",), "up": quick, "down": quick, "interval": TICK}
    return ClusterSpec(
        name="x", limits=Limits(1, 20), policies=(NamedPolicy("main", Wants(plus)),), **(fields | changes)
    )


NOBODY = ClusterSpec(name="x", limits=Limits(1, 20), policies=(), metrics=("wanted",), interval=TICK)
"""Asks for nothing."""


def seen(tick: float, desired: int, wanted: float, ready: int | None = None) -> Observation:
    now = at(tick)
    return Observation(
        at=now, desired=desired, ready=desired if ready is None else ready, metrics={"wanted": Reading(wanted, now)}
    )


def recorded(observations: list[Observation], by: ClusterSpec, **changes: Any) -> list[Record]:
    """The records of a daemon that made these decisions on these observations."""
    state = ClusterState()
    found = []
    for observation in observations:
        state, decision = step(by, state, observation)
        found.append(Record(state.past[-1], decision, **changes))
    return found


def replayed(records: list[Record], by: ClusterSpec, **changes: Any) -> tuple[list[Decision], Comparison]:
    replay = Replay(by, **changes)
    decisions = [decision for decision in map(replay.add, records) if decision is not None]
    return decisions, replay.result()


# Equal decisions


POLICIES = ("backlog-drain", "adaptive", "ds2", "daedalus", "target-tracking")


def policy(kind: str) -> Policy:
    fields: dict[str, Any] = {"target-tracking": {"metric": "cpu", "target": 0.7}}
    made: Policy = load(Kind.POLICY, kind)(**fields.get(kind, {}))
    return made


@pytest.mark.parametrize("plant", ["k8s", "ungraceful"])
@pytest.mark.parametrize("kind", POLICIES)
def test_a_recorded_simulation_gives_the_same_decisions(kind: str, plant: str) -> None:
    cluster = ClusterSpec(
        name="x",
        limits=Limits(1, 24),
        policies=(NamedPolicy("main", policy(kind)),),
        metrics=METRICS,
        engine=True,
        lookback=timedelta(minutes=30),
    )
    lines: list[bytes] = []
    wrong = faults.parse(
        "missing:4m,nan@lag,doubled@arrivals,frozen@cpu,refused:45%,unanswered:25%,half:25%,crash:20m,restart:10m"
    )
    hours = replace(load_by_name("steps6h"), rates=load_by_name("steps6h").rates[540:1980], changes=())
    done = run(cluster, PLANTS[plant], hours, 3, record=lambda one: lines.append(dump_record(one)), faults=wrong)
    records = [load_record(line) for line in lines]
    assert any(one.failed for one in records)
    assert any(one.observation.missing for one in records)
    assert sum(one.decision.rescale for one in records) > 2
    replay = Replay(cluster)
    assert [replay.add(one) for one in records] == [one.decision for one in records]
    assert replay.state == done.state
    found = replay.result()
    assert found.equal == found.decisions == len(records)
    assert found.agreed == found.rescales
    assert (found.others, found.differences, found.missing) == (0, (), ())
    assert found.hours == found.recorded_hours


def test_a_dry_run_gives_the_same_decisions() -> None:
    state = ClusterState()
    records = []
    for tick in range(30):
        state, decision = step(spec(), state, seen(tick, 4, 9))
        records.append(Record(state.past[-1], decision, dry_run=True))
        if decision.rescale:
            state = replace(state, rescale=None, requested=None, events=())
    assert sum(one.decision.rescale for one in records) == 30
    decisions, found = replayed(records, spec())
    assert decisions == [one.decision for one in records]
    assert found.equal == 30


# Other decisions than the recorded ones


def test_a_request_that_was_not_recorded_does_not_count_as_made() -> None:
    records = recorded([seen(tick, 4, 4) for tick in range(20)], spec())
    decisions, found = replayed(records, spec(3))
    # It would be repeated at every tick, and none waits for an earlier one.
    assert [decision.desired for decision in decisions] == [7] * 20
    assert all(decision.rescale and not decision.notes for decision in decisions)
    assert (found.rescales, found.agreed, found.others) == (0, 0, 1)


def test_a_recorded_request_counts_as_our_own() -> None:
    up = [seen(0, 4, 4), seen(1, 4, 9), seen(2, 4, 9), seen(3, 9, 9, 4), seen(4, 9, 9), seen(5, 9, 9)]
    records = recorded(up, spec())
    assert [one.decision.desired for one in records] == [4, 9, 9, 9, 9, 9]
    state = ClusterState()
    for one in records[:2]:
        state, decision = decide_again(spec(-6), state, one)
    assert decision.desired == 3
    assert state.rescale is not None
    assert (state.rescale.cause, state.rescale.before, state.rescale.to) == (Cause.REQUEST, 4, 9)
    assert [event.change for event in state.events] == [5]
    assert state.requested == at(1)
    for one in records[2:]:
        state, decision = decide_again(spec(-6), state, one)
    # It has settled, and the durations of its phases were learned.
    assert state.rescale is None
    assert state.learned.durations
    # No change was external.
    assert state.override_times == ()


def test_a_request_in_flight_stays_in_flight_when_another_one_is_not_made() -> None:
    records = recorded([seen(0, 4, 4), seen(1, 4, 9), seen(2, 4, 9), seen(3, 4, 9)], spec())
    state = ClusterState()
    for one in records[:2]:
        state, _ = decide_again(spec(), state, one)
    on_its_way = state.rescale
    assert on_its_way is not None
    assert not on_its_way.confirmed
    after, decision = decide_again(spec(9), state, records[2])
    assert (decision.rescale, decision.desired) == (True, 18)
    assert after.rescale == on_its_way
    assert after.requested == at(1)


@pytest.mark.parametrize("trouble", ["refused", "arrived"])
def test_a_request_in_flight_ends_when_it_failed_or_arrived(trouble: str) -> None:
    records = recorded([seen(0, 4, 4), seen(1, 4, 9)], spec())
    state = ClusterState()
    for one in records:
        state, _ = decide_again(spec(), state, one)
    shown = 4 if trouble == "refused" else 9
    following = recorded([seen(2, shown, shown, 4)], spec())[0]
    if trouble == "refused":
        following = replace(following, failed="no")
    after, decision = decide_again(spec(9), state, following)
    assert decision.rescale
    assert (after.rescale is None) is (trouble == "refused")
    if after.rescale is not None:
        assert (after.rescale.to, after.rescale.confirmed) == (9, True)


def test_a_recorded_request_is_followed_together_with_the_one_it_replaced() -> None:
    ups = [seen(0, 4, 4), seen(1, 4, 9), seen(2, 9, 9, 4), seen(3, 9, 15, 4)]
    records = recorded(ups, spec())
    assert [one.decision.desired for one in records] == [4, 9, 9, 15]
    state = ClusterState()
    for one in records:
        state, decision = decide_again(spec() if one is not records[-1] else spec(1), state, one)
    assert decision.desired == 16
    assert state.rescale is not None
    assert (state.rescale.before, state.rescale.to) == (9, 15)
    assert state.rescale.replaced is not None
    assert state.rescale.replaced.to == 9


def test_a_recorded_request_that_is_shown_late_is_not_an_external_change() -> None:
    sizes = [seen(0, 4, 4), seen(1, 4, 9), seen(2, 4, 15), seen(3, 9, 15, 4)]
    records = recorded(sizes, spec())
    assert [one.decision.desired for one in records] == [4, 9, 15, 15]
    state = ClusterState()
    for one in records:
        state, decision = decide_again(spec(2), state, one)
    assert decision.notes == ()
    assert state.override_times == ()


def test_an_unknown_size_at_a_recorded_request_is_the_size_it_started_from() -> None:
    records = recorded([seen(0, 4, 4), seen(1, 4, 9)], spec())
    blind = replace(records[1], observation=replace(records[1].observation, desired=None, ready=None))
    state, _ = decide_again(spec(), ClusterState(), records[0])
    state, decision = decide_again(spec(), state, blind)
    assert decision.reason is Reason.MISSING
    assert state.rescale is not None
    assert (state.rescale.before, state.rescale.to) == (4, 9)


# The first difference


def decided(**changes: Any) -> Decision:
    fields: dict[str, Any] = {
        "current": 4,
        "proposed": 8,
        "desired": 8,
        "recommendations": (
            Recommendation(3, Reason.BELOW, policy="cpu"),
            Recommendation(8, Reason.ABOVE, detail="too much", policy="main"),
        ),
        "verdicts": (Verdict(Reason.TOLERANCE, 8, 8, Reason.TOLERANCE), Verdict(Reason.BOUNDS, 8, 8, Reason.BOUNDS)),
    }
    return Decision(cluster="x", at=BEGIN, reason=Reason.ABOVE, **(fields | changes))


def asked(main: int | None, cpu: int | None = 3) -> tuple[Recommendation, ...]:
    return (
        Recommendation(cpu, Reason.BELOW, policy="cpu"),
        Recommendation(main, Reason.ABOVE, detail="too much", policy="main"),
    )


CAPPED = (
    Verdict(Reason.TOLERANCE, 8, 8, Reason.TOLERANCE),
    Verdict(Reason.CAP, 8, 6, Reason.CAP, "12 slots"),
    Verdict(Reason.BOUNDS, 6, 6, Reason.BOUNDS),
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"recommendations": ()}, None),  # another detail, but the same size
        ({"current": 5}, FirstDifference("size", "was 4", "was 5")),
        (
            {"proposed": 9, "recommendations": asked(9)},
            FirstDifference("policy main", "asked for 8: too much", "asked for 9: too much"),
        ),
        # Both request something else, and only one of them counts.
        (
            {"proposed": 9, "recommendations": asked(9, 2)},
            FirstDifference("policy main", "asked for 8: too much", "asked for 9: too much"),
        ),
        (
            {"proposed": 3, "recommendations": asked(None)},
            FirstDifference("policy main", "asked for 8: too much", "above: too much"),
        ),
        (
            {"proposed": 3, "recommendations": asked(8)[:1]},
            FirstDifference("policy main", "asked for 8: too much", "absent"),
        ),
        # An expression combines them and ignores both.
        (
            {"proposed": 6, "recommendations": asked(8, 2), "combined": "6"},
            FirstDifference("policy cpu", "asked for 3", "asked for 2"),
        ),
        (
            {"proposed": 3, "combined": "min(main, cpu)"},
            FirstDifference("combine", "the greatest is 8", "min(main, cpu) is 3"),
        ),
        ({"desired": 6, "verdicts": CAPPED}, FirstDifference("cap", "absent", "changed 8 to 6: 12 slots")),
        (
            {"desired": 4, "verdicts": (Verdict(Reason.TOLERANCE, 8, 4, Reason.TOLERANCE),)},
            FirstDifference("tolerance", "kept 8", "changed 8 to 4"),
        ),
    ],
)
def test_the_first_difference_is_reported(changes: dict[str, Any], expected: FirstDifference | None) -> None:
    assert first_difference(decided(), decided(**changes)) == expected


# A whole trace


def test_periods_with_other_decisions_are_reported_with_their_hours() -> None:
    # In the second of four minutes twice as many are requested, and the recorded ones come two ticks late.
    sizes = [4] * 4 + [4, 4, 8, 8] + [8, 8, 4, 4] + [4] * 4
    wanted = [4] * 4 + [8] * 4 + [4] * 8
    records = recorded([seen(tick, size, size) for tick, size in enumerate(sizes)], NOBODY)
    quick = [replace(one, observation=seen(tick, sizes[tick], wanted[tick])) for tick, one in enumerate(records)]
    decisions, found = replayed(quick, spec())
    assert [(one.record.decision.at, one.until) for one in found.differences] == [(at(4), at(6)), (at(8), at(10))]
    more, fewer = found.differences
    assert (more.decisions, more.recorded, more.replayed) == (2, (4, 4), (8, 8))
    assert more.hours == pytest.approx(4 * 30 / 3600)
    assert fewer.hours == pytest.approx(-4 * 30 / 3600)
    assert more.first == FirstDifference("policy main", "was 4", "asked for 8: 8 and 0")
    assert more.decision == decisions[4]
    assert (found.decisions, found.equal) == (16, 12)
    assert (found.first, found.last) == (at(0), at(15))
    assert found.recorded_hours == pytest.approx(sum(sizes) * 15 / 3600)
    assert found.hours == pytest.approx(found.recorded_hours)
    assert (found.rescales, found.agreed, found.others) == (0, 0, 2)


def test_a_period_that_reverses_its_direction_counts_as_two_and_the_last_one_ends_with_its_tick() -> None:
    records = recorded([seen(tick, 4, 4) for tick in range(4)], spec())
    records = [replace(one, observation=seen(tick, 4, 9 if tick < 2 else 2)) for tick, one in enumerate(records)]
    _, found = replayed(records, spec())
    assert [(one.record.decision.at, one.until, one.replayed) for one in found.differences] == [
        (at(0), at(2), (9, 9)),
        (at(2), at(4), (2, 2)),
    ]


def test_only_the_requested_time_is_compared_but_everything_before_it_is_known() -> None:
    records = recorded([seen(tick, 4, 4) for tick in range(20)], spec())
    late = spec(down=Behaviour(window=TICK * 10), lookback=TICK * 10)
    lower = [replace(one, observation=seen(tick, 4, 2)) for tick, one in enumerate(records)]
    decisions, found = replayed(lower, late, since=at(8), until=at(15))
    assert (found.decisions, found.first, found.last) == (8, at(8), at(15))
    assert [decision.at for decision in decisions] == [at(tick) for tick in range(8, 16)]
    # A window that began before the requested time has passed within it.
    assert decisions[0].desired == 4
    assert decisions[-1].desired == 2


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20), st.booleans()), min_size=1, max_size=40),
    st.integers(-6, 6),
)
def test_stretches_account_for_every_decision_and_hour_that_differs(
    ticks: list[tuple[int, int, bool]], plus: int
) -> None:
    # Unexpected sizes one after the other, as when the target is changed externally all the time.
    records = []
    state = ClusterState()
    for tick, (size, wanted, fails) in enumerate(ticks):
        failed = "no" if fails and state.rescale is not None and not state.rescale.confirmed else ""
        if failed:
            state = call_failed(state, failed)
        state, decision = step(spec(), state, seen(tick, size, wanted))
        records.append(Record(state.past[-1], decision, failed=failed))
    same, found = replayed(records, spec())
    assert same == [one.decision for one in records]
    assert (found.equal, found.differences) == (len(records), ())
    decisions, found = replayed(records, spec(plus))
    assert all(1 <= decision.desired <= 20 for decision in decisions)
    assert found.equal + sum(one.decisions for one in found.differences) == found.decisions == len(ticks)
    assert math.fsum(one.hours for one in found.differences) == pytest.approx(found.hours - found.recorded_hours)
    times = [time for one in found.differences for time in (one.record.decision.at, one.until)]
    assert times == sorted(times)
    assert all(one.first is not None for one in found.differences)


def test_hours_without_a_decision_do_not_count() -> None:
    ticks = [0, 1, 2, 400, 401, 300]
    records = recorded([seen(tick, 4, 4) for tick in ticks], spec())
    _, found = replayed(records, spec())
    assert found.hours == pytest.approx(4 * len(ticks) * 15 / 3600)


def test_metrics_missing_from_a_trace_are_reported() -> None:
    records = recorded([seen(tick, 4, 4) for tick in range(3)], spec())
    _, found = replayed(records, spec(metrics=("wanted", "cpu")))
    assert found.missing == ("cpu",)


def test_an_empty_trace_gives_an_empty_comparison() -> None:
    decisions, found = replayed([], spec(metrics=("cpu",)))
    assert decisions == []
    assert found == Comparison(
        cluster="x",
        first=None,
        last=None,
        decisions=0,
        equal=0,
        recorded_hours=0.0,
        hours=0.0,
        rescales=0,
        agreed=0,
        others=0,
        missing=(),
        differences=(),
    )


def test_an_engine_is_followed_as_it_was_recorded() -> None:
    watched = spec(engine=True)
    seens = [
        replace(seen(tick, size, 8), engine=EngineStatus(job=JobState.RUNNING, slots=used, parallelism=used))
        for tick, (size, used) in enumerate([(4, 4), (8, 4), (8, 4), (8, 8), (8, 8)])
    ]
    records = recorded(seens, watched)
    decisions, found = replayed(records, watched)
    assert found.equal == 5
    assert [decision.notes for decision in decisions] == [one.decision.notes for one in records]
