"""Manual controls: pauses, holds and limits as the last guard before the bounds, case by case and as laws."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.explain import describe_control, explain
from autoscaler.core.guards import guard, newest_controls
from autoscaler.core.model import (
    Behaviour,
    Bound,
    Cause,
    ClusterSpec,
    ClusterState,
    Control,
    ControlKind,
    JobState,
    Limits,
    Proposal,
    Reason,
    ScaleEvent,
)
from autoscaler.core.parameters import ParameterError
from autoscaler.core.rescale import begin
from autoscaler.core.step import step
from autoscaler.ports import Record
from autoscaler.trace.codec import dump_record, load_record
from tests.core.build import at, running, seconds, seen, spec
from tests.core.test_guards import changed, situation
from tests.core.test_laws import SIZES, Moment, doubtful, histories, live, specs


def pause(**more: Any) -> Control:
    return Control(kind=ControlKind.PAUSE, **{"by": "alice", "at": at(0), "up": True, "down": True, **more})


def hold(replicas: int, **more: Any) -> Control:
    return Control(kind=ControlKind.HOLD, replicas=replicas, **{"by": "alice", "at": at(0), **more})


def limit(minimum: int | None = None, maximum: int | None = None, **more: Any) -> Control:
    control = {"by": "alice", "at": at(0), **more}
    return Control(kind=ControlKind.LIMIT, minimum=minimum, maximum=maximum, **control)


UP, DOWN = pause(down=False), pause(up=False)
BOTH = pause()
UNDER_WAY = begin(4, 8, at(990), Cause.REQUEST)
LOST = begin(5, 8, at(990), Cause.LOSS)


@pytest.mark.parametrize(
    ("controls", "current", "proposed", "desired"),
    [
        pytest.param([BOTH], 8, 20, 8, id="a pause holds back the way up"),
        pytest.param([BOTH], 8, 2, 8, id="a pause holds back the way down"),
        pytest.param([BOTH], 8, 8, 8, id="a pause leaves alone what is not to change"),
        pytest.param([UP], 8, 20, 8, id="a pause of the way up holds back the way up"),
        pytest.param([UP], 8, 2, 2, id="a pause of the way up leaves the way down alone"),
        pytest.param([DOWN], 8, 2, 8, id="a pause of the way down holds back the way down"),
        pytest.param([DOWN], 8, 20, 20, id="a pause of the way down leaves the way up alone"),
        pytest.param([hold(12)], 8, 20, 12, id="a hold goes up to its size, not to what is asked for"),
        pytest.param([hold(12)], 8, 8, 12, id="a hold goes to its size when nothing else asks for a change"),
        pytest.param([hold(12)], 8, 2, 12, id="a hold goes to its size against what is asked for"),
        pytest.param([hold(3)], 8, 20, 3, id="a hold goes down to its size"),
        pytest.param([hold(8)], 8, 20, 8, id="a hold at the present size keeps it"),
        pytest.param([hold(0)], 8, 20, 0, id="a hold can be at nothing"),
        pytest.param([limit(maximum=10)], 8, 20, 10, id="a limit cuts the way up"),
        pytest.param([limit(minimum=5)], 8, 2, 5, id="a limit cuts the way down"),
        pytest.param([limit(3, 10)], 8, 9, 9, id="a limit leaves alone what is within"),
        pytest.param([limit(12, 20)], 8, 8, 12, id="a limit raises what is below it"),
        pytest.param([limit(1, 5)], 8, 8, 5, id="a limit lowers what is above it"),
        pytest.param([limit(0, 0)], 8, 8, 0, id="a limit can be nothing"),
        pytest.param([BOTH, hold(12)], 8, 20, 8, id="a pause beats a hold"),
        pytest.param([UP, hold(12)], 8, 20, 8, id="a pause of the way up beats a hold above"),
        pytest.param([UP, hold(4)], 8, 20, 4, id="a pause of the way up leaves a hold below alone"),
        pytest.param([BOTH, limit(1, 5)], 8, 8, 8, id="a pause beats a limit"),
        pytest.param([hold(12), limit(1, 5)], 8, 8, 12, id="a hold beats a limit"),
        pytest.param([limit(1, 5), hold(12)], 8, 8, 12, id="whatever their order"),
        pytest.param([hold(12), hold(4, at=at(5))], 8, 8, 4, id="the newest hold counts"),
        pytest.param([hold(4, at=at(5)), hold(12)], 8, 8, 4, id="the newest hold counts, whatever the order"),
        pytest.param([hold(4, at=None), hold(12)], 8, 8, 12, id="an annotation is older than a command"),
        pytest.param([hold(12), hold(4, at=None)], 8, 8, 12, id="an annotation is older, whatever the order"),
    ],
)
def test_controls_are_applied(controls: list[Control], current: int, proposed: int, desired: int) -> None:
    verdicts = guard(situation(current, proposed, controls=tuple(controls)))
    assert verdicts[-1].after == desired
    assert [verdict.guard for verdict in verdicts[-2:]] == [Reason.CONTROL, Reason.BOUNDS]
    assert "by alice" in verdicts[-2].detail or "an annotation" in verdicts[-2].detail


@pytest.mark.parametrize(
    "obstacle",
    [
        pytest.param({"hold_reason": "lag: gone"}, id="missing metrics"),
        pytest.param(
            {"spec": spec(limits=Limits(0, 1000), up=Behaviour(tolerance=0.9), down=Behaviour(tolerance=0.9))}
        ),
        pytest.param({"proposals": (Proposal(at(999), 8), Proposal(at(1000), 8))}, id="stabilization"),
        pytest.param({"watched_since": at(1000)}, id="a window that was not watched yet"),
        pytest.param({"cooldown_from": at(999)}, id="a cooldown"),
        pytest.param({"events": (ScaleEvent(at(999), 1),)}, id="rate limits"),
        pytest.param({"engine": running(16, max_parallelism=10, partitions=10)}, id="what the job can use"),
    ],
)
@pytest.mark.parametrize("size", [2, 12])
def test_a_hold_ignores_tolerances_windows_cooldowns_rate_limits_and_missing_metrics(
    obstacle: dict[str, Any], size: int
) -> None:
    slow = Behaviour(window=seconds(600), cooldown=seconds(600), rates=())
    held = situation(8, 20, controls=(hold(size),), spec=spec(limits=Limits(0, 1000), up=slow, down=slow))
    assert guard(replace(held, **obstacle))[-1].after == size


@pytest.mark.parametrize(
    ("obstacle", "why"),
    [
        pytest.param(
            {"rescale": UNDER_WAY},
            "but the rescale from 4 to 8 is in progress: waiting until the target has the new number of replicas ready",
            id="a rescale in flight",
        ),
        pytest.param({"rescale": LOST}, "but the replacement from 5 to 8 is in progress", id="lost replicas"),
        pytest.param({"unsettled": JobState.RESTARTING}, "but the job is restarting", id="a job in transition"),
        pytest.param(
            {"override_times": (at(800), at(900), at(999))}, "but sizes requested here did not last", id="a contention"
        ),
        pytest.param(
            {"floor": Bound(8, "held"), "ceiling": Bound(8, "the HPA x scales it too")}, "but ", id="another owner"
        ),
    ],
)
@pytest.mark.parametrize("size", [2, 12])
def test_a_hold_waits_for_a_rescale_in_flight_and_stays_within_the_limits_of_the_target(
    obstacle: dict[str, Any], why: str, size: int
) -> None:
    verdicts = guard(situation(8, 20, controls=(hold(size),), **obstacle))
    assert (verdicts[-1].after, verdicts[-2].guard) == (8, Reason.CONTROL)
    assert why in verdicts[-2].detail


def test_a_hold_stops_at_the_limits_of_the_target() -> None:
    reach = {"floor": Bound(4, "the group's minimum is 4"), "ceiling": Bound(10, "the group's maximum is 10")}
    for size, reached, why in ((12, 10, "maximum is 10"), (2, 4, "minimum is 4"), (9, 9, "resumed")):
        verdicts = guard(situation(8, 8, controls=(hold(size),), **reach))
        assert verdicts[-1].after == reached
        assert why in verdicts[-2].detail


def test_a_hold_does_not_enlarge_a_rescale_in_flight_that_is_clearly_too_small() -> None:
    s = situation(8, 100, rescale=UNDER_WAY)
    assert guard(s)[-1].after == 100
    assert guard(replace(s, controls=(hold(9),)))[-1].after == 8


@pytest.mark.parametrize(
    "obstacle", [{"hold_reason": "lag: gone"}, {"rescale": UNDER_WAY}, {"unsettled": JobState.FAILED}]
)
def test_a_limit_does_not_lower_the_size_while_lowering_is_unsafe(obstacle: dict[str, Any]) -> None:
    assert guard(situation(8, 8, controls=(limit(maximum=5),), **obstacle))[-1].after == 8


def test_the_bounds_override_controls_and_an_exclusion_window_overrides_the_bounds() -> None:
    s = situation(8, 8, spec=spec(limits=Limits(4, 10)), controls=(hold(12),))
    assert changed(guard(s)) == [(Reason.CONTROL, 8, 12), (Reason.BOUNDS, 12, 10)]
    assert guard(replace(s, controls=(hold(2),), hold_reason="lag: gone"))[-1].after == 4
    assert guard(replace(s, controls=(limit(20, 30),)))[-1].after == 10
    assert guard(replace(s, excluded="it is Friday"))[-1].after == 8
    # A size outside the bounds moves into them, paused or not.
    assert guard(replace(s, current=12, proposed=12, controls=(BOTH,)))[-1].after == 10


@pytest.mark.parametrize(
    ("control", "text"),
    [
        (BOTH, "scaling up and down is paused by alice until it is resumed"),
        (
            replace(UP, until=at(3600), reason="a release"),
            "scaling up is paused by alice until 2026-01-01 01:00:00 UTC: a release",
        ),
        (replace(DOWN, at=None, by="the annotation x"), "scaling down is paused by the annotation x"),
        (hold(12, until=at(60)), "the size is held at 12 by alice until 2026-01-01 00:01:00 UTC"),
        (limit(3), "the size is limited to at least 3 by alice until it is resumed"),
        (limit(None, 9), "the size is limited to at most 9 by alice until it is resumed"),
        (limit(3, 9), "the size is limited to at least 3 and at most 9 by alice until it is resumed"),
    ],
)
def test_a_verdict_names_the_control_its_author_its_end_and_its_reason(control: Control, text: str) -> None:
    assert describe_control(control) == text
    assert guard(situation(8, 8, controls=(control,)))[-2].detail.removesuffix(text) == ""


def test_a_description_without_the_author_omits_the_reason_too() -> None:
    assert describe_control(hold(12, reason="a test", until=at(60)), by=False) == (
        "the size is held at 12 until 2026-01-01 00:01:00 UTC"
    )


def test_the_explanation_names_the_controls() -> None:
    held = replace(seen(0, 4, 6), controls=(hold(8, reason="a release"), limit(2, 9, by="bob")))
    state, decision = step(spec(), ClusterState(), held)
    assert (decision.desired, decision.reason) == (8, Reason.CONTROL)
    text = explain(state.past[-1], decision)
    assert (
        "cluster c is scaled up from 4 to 8, not to 6 as the policies asked, because of a manual pause, hold or limit: "
        "the size is held at 8 by alice until it is resumed: a release; the size is limited to at least 2 and at most "
        "9 by bob until it is resumed." in text
    )
    _, decision = step(spec(), ClusterState(), replace(seen(0, 4, 4), controls=(BOTH,)))
    assert decision.reason is Reason.STEADY
    assert (
        "A manual pause, hold or limit kept 4: scaling up and down is paused by alice until it is resumed."
        in explain(held, decision)
    )


def test_controls_are_not_evaluated_while_the_size_is_unknown() -> None:
    _, decision = step(spec(), ClusterState(), replace(seen(0, None, 4), controls=(hold(3),)))
    assert [verdict.guard for verdict in decision.verdicts] == [Reason.FRESHNESS]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "pause"}, "up: a pause, and nothing else, has a direction"),
        ({"kind": "hold", "replicas": 3, "up": True}, "up: a pause, and nothing else, has a direction"),
        ({"kind": "hold"}, "replicas: a hold, and nothing else, has a size"),
        ({"kind": "pause", "up": True, "replicas": 3}, "replicas: a hold, and nothing else, has a size"),
        ({"kind": "hold", "replicas": -1}, "replicas: must be 0 to 1000000, not -1"),
        ({"kind": "hold", "replicas": 1_000_001}, "replicas: must be 0 to 1000000, not 1000001"),
        ({"kind": "limit"}, "minimum: a limit, and nothing else, has a minimum, a maximum or both"),
        ({"kind": "hold", "replicas": 3, "maximum": 4}, "minimum: a limit, and nothing else, has a minimum"),
        ({"kind": "limit", "minimum": 5, "maximum": 4}, "minimum: must not be above maximum .4., not 5"),
        ({"kind": "hold", "replicas": 3, "until": datetime(2026, 1, 1)}, "until: must be a time of this or the next"),  # noqa: DTZ001
        ({"kind": "hold", "replicas": 3, "until": datetime(2200, 1, 1, tzinfo=UTC)}, "until: must be a time of this"),
        ({"kind": "hold", "replicas": 3, "at": datetime(1999, 1, 1, tzinfo=UTC)}, "at: must be a time of this"),
    ],
)
def test_a_contradictory_control_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Control(by="alice", **{**wrong, "kind": ControlKind(wrong["kind"])})


times = st.sampled_from([None, at(0), at(1), at(2)])
pauses = st.builds(pause, up=st.booleans(), down=st.just(True), at=times)
holds = st.builds(hold, SIZES, at=times)
limits = st.builds(limit, st.integers(0, 15), st.one_of(st.none(), st.integers(15, 30)), at=times)
orders = st.lists(
    st.lists(st.one_of(pauses, st.just(UP), holds, limits), max_size=3).map(tuple), min_size=1, max_size=4
)
lives = given(specs, histories(), SIZES, orders)
Orders = list[tuple[Control, ...]]


def of_kind(controls: tuple[Control, ...], kind: ControlKind) -> Control | None:
    return next((each for each in newest_controls(controls) if each.kind is kind), None)


@lives
def test_law_whatever_the_controls_a_size_outside_the_bounds_or_beyond_the_target_is_never_requested(
    spec: ClusterSpec, history: list[Moment], start: int, ordered: Orders
) -> None:
    for _, observation, _, decision in live(spec, history, start, ordered=ordered):
        if decision.rescale:
            assert spec.limits.minimum <= decision.desired <= spec.limits.maximum
        if observation.ceiling is not None and decision.desired > decision.current:
            assert decision.desired <= observation.ceiling.replicas
        if observation.floor is not None and decision.desired < decision.current:
            assert decision.desired >= observation.floor.replicas


@lives
def test_law_a_pause_never_lets_the_size_change_in_its_direction_but_into_the_bounds(
    spec: ClusterSpec, history: list[Moment], start: int, ordered: Orders
) -> None:
    for _, observation, _, decision in live(spec, history, start, ordered=ordered):
        paused = of_kind(observation.controls, ControlKind.PAUSE)
        if paused is not None and paused.up:
            assert decision.desired <= max(decision.current, spec.limits.minimum)
        if paused is not None and paused.down:
            assert decision.desired >= min(decision.current, spec.limits.maximum)


@lives
def test_law_a_hold_goes_to_its_size_or_nowhere_and_not_while_a_rescale_is_in_flight(
    spec: ClusterSpec, history: list[Moment], start: int, ordered: Orders
) -> None:
    for _, observation, _, decision in live(spec, history, start, ordered=ordered):
        held = of_kind(observation.controls, ControlKind.HOLD)
        if held is None or not decision.rescale:
            continue
        assert held.replicas is not None
        # As close as the bounds, the target and the other controls allow.
        towards = (
            held.replicas > decision.current
            if decision.desired > decision.current
            else held.replicas < decision.current
        )
        into_bounds = decision.desired in (spec.limits.minimum, spec.limits.maximum)
        assert towards or into_bounds
        gave_way = any(
            reason is Reason.SUPERSEDED and "is replaced by one to" in text for reason, text in decision.notes
        )
        assert not gave_way or into_bounds


@lives
def test_law_bad_input_lowers_the_size_only_to_a_hold(
    spec: ClusterSpec, history: list[Moment], start: int, ordered: Orders
) -> None:
    for _, observation, _, decision in live(spec, history, start, ordered=ordered):
        if doubtful(spec, observation, decision) and decision.desired < decision.current:
            held = of_kind(observation.controls, ControlKind.HOLD)
            assert held is not None
            assert held.replicas is not None
            assert decision.desired >= min(held.replicas, spec.limits.maximum)


@lives
def test_law_the_trail_has_controls_only_while_some_are_in_force(
    spec: ClusterSpec, history: list[Moment], start: int, ordered: Orders
) -> None:
    for _, observation, _, decision in live(spec, history, start, ordered=ordered):
        names = [verdict.guard for verdict in decision.verdicts]
        known = observation.desired is not None and observation.desired >= 0
        assert (Reason.CONTROL in names) is bool(observation.controls and known)
        for first, second in pairwise(decision.verdicts):
            assert first.after == second.before


@lives
def test_law_a_recorded_decision_is_replayed_equal(
    spec: ClusterSpec, history: list[Moment], start: int, ordered: Orders
) -> None:
    for before, _, after, decision in live(spec, history, start, ordered=ordered):
        observation = after.past[-1]
        line = dump_record(Record(observation, decision))
        assert (b'"controls"' in line) is bool(observation.controls)
        recorded = load_record(line)
        assert recorded.observation.controls == observation.controls
        _, again = step(spec, before, recorded.observation)
        assert [verdict.detail for verdict in again.verdicts] == [verdict.detail for verdict in decision.verdicts]
        assert again.desired == recorded.decision.desired == decision.desired
