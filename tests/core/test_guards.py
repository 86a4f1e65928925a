"""Each guard by itself, against worked cases and the arithmetic that Kubernetes publishes for HPA v2."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.capacity import source_partitions, usable_slots
from autoscaler.core.guards import GUARDS, GuardContext, guard, least, most, next_useful
from autoscaler.core.model import (
    Behaviour,
    Bound,
    Cause,
    EngineStatus,
    Fact,
    JobState,
    Limits,
    Phase,
    Proposal,
    Rate,
    RateKind,
    Reason,
    Rescale,
    ScaleEvent,
    Select,
    Verdict,
)
from autoscaler.core.rescale import begin
from tests.core.build import T0, at, running, seconds, seen, spec

CASES = json.loads((Path(__file__).parent / "data" / "hpa_guards.json").read_text())


def situation(current: int, proposed: int, **changes: Any) -> GuardContext:
    base = GuardContext(
        spec=spec(limits=Limits(0, 1000)),
        at=at(1000),
        current=current,
        proposed=proposed,
        hold_reason=None,
        unsettled=None,
        rescale=None,
        engine=None,
        proposals=(Proposal(at(1000), proposed),),
        events=(),
        cooldown_from=None,
        watched_since=T0,
    )
    return replace(base, **changes)


def changed(verdicts: tuple[Verdict, ...]) -> list[tuple[Reason, int, int]]:
    return [(v.reason, v.before, v.after) for v in verdicts if v.before != v.after]


def hpa_rules(rules: dict[str, Any] | None) -> Behaviour:
    kinds = {"Pods": RateKind.REPLICAS, "Percent": RateKind.PERCENT}
    assert rules is not None
    return Behaviour(
        window=seconds(0),
        select=Select(rules["select"].lower()),
        rates=tuple(Rate(kinds[p["type"]], float(p["value"]), seconds(p["period_s"])) for p in rules["policies"]),
    )


def hpa_events(inputs: dict[str, Any]) -> tuple[ScaleEvent, ...]:
    ups = [ScaleEvent(at(1000) - seconds(e["age_s"]), e["change"]) for e in inputs["scale_up_events"]]
    downs = [ScaleEvent(at(1000) - seconds(e["age_s"]), -e["change"]) for e in inputs["scale_down_events"]]
    return tuple(ups + downs)


def of_kind(kind: str) -> pytest.MarkDecorator:
    cases = [case for case in CASES if case["kind"] == kind]
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])


@of_kind("rate_limit")
def test_rate_limits_follow_hpa_behaviour_policies(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    s = situation(
        inputs["current_replicas"],
        inputs["desired_replicas"],
        spec=spec(
            limits=Limits(inputs["min_replicas"], inputs["max_replicas"]),
            up=hpa_rules(inputs["scale_up_rules"]),
            down=hpa_rules(inputs["scale_down_rules"]),
        ),
        events=hpa_events(inputs),
    )
    assert guard(s)[-1].after == case["expected"]["replicas"]


@of_kind("scale_up_limit")
def test_the_scale_up_limit_equals_that_of_hpa(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    assert (
        most(inputs["current_replicas"], hpa_events(inputs), hpa_rules(inputs["rules"]), at(1000)) == case["expected"]
    )


@of_kind("scale_down_limit")
def test_the_scale_down_limit_equals_that_of_hpa(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    assert (
        least(inputs["current_replicas"], hpa_events(inputs), hpa_rules(inputs["rules"]), at(1000)) == case["expected"]
    )


@of_kind("stabilization")
def test_stabilization_windows_equal_those_of_hpa(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    past = [Proposal(at(1000) - seconds(r["age_s"]), r["replicas"]) for r in inputs["recommendations"]]
    s = situation(
        inputs["current_replicas"],
        inputs["desired_replicas"],
        spec=spec(
            limits=Limits(0, 1000),
            up=Behaviour(window=seconds(inputs["up_window_s"])),
            down=Behaviour(window=seconds(inputs["down_window_s"])),
        ),
        proposals=(*past, Proposal(at(1000), inputs["desired_replicas"])),
    )
    assert guard(s)[-1].after == case["expected"]["replicas"]


@of_kind("stabilization_down_only")
def test_legacy_downscale_stabilization_equals_that_of_hpa(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    past = [Proposal(at(1000) - seconds(r["age_s"]), r["replicas"]) for r in inputs["recommendations"]]
    s = situation(
        100,
        inputs["desired_replicas"],
        spec=spec(limits=Limits(0, 1000), down=Behaviour(window=seconds(inputs["window_s"]))),
        proposals=(*past, Proposal(at(1000), inputs["desired_replicas"])),
    )
    assert guard(s)[-1].after == case["expected"]["replicas"]


def test_untrusted_input_may_raise_but_not_lower_the_size() -> None:
    assert changed(guard(situation(5, 2, hold_reason="lag: gone"))) == [(Reason.MISSING, 2, 5)]
    assert changed(guard(situation(5, 8, hold_reason="lag: gone"))) == []
    assert guard(situation(5, 8, hold_reason="lag: gone"))[0] == Verdict(Reason.FRESHNESS, 8, 8, Reason.FRESHNESS)


def test_the_maximum_is_not_enforced_downwards_while_input_is_missing() -> None:
    above = situation(20, 2, hold_reason="lag: gone", spec=spec(limits=Limits(1, 10)))
    assert guard(above)[-1].after == 20
    assert guard(replace(above, hold_reason=None))[-1].after == 2


IN_FLIGHT = Rescale(before=2, to=4, at=at(990), cause=Cause.REQUEST, phase=Phase.REQUESTED, since=at(990))


@pytest.mark.parametrize(
    ("proposed", "after", "reason"),
    [(3, 4, Reason.SETTLING), (5, 4, Reason.SETTLING), (6, 6, Reason.SHORT)],
)
def test_during_a_rescale_only_a_clearly_short_size_is_changed(proposed: int, after: int, reason: Reason) -> None:
    verdicts = guard(situation(4, proposed, rescale=IN_FLIGHT))
    assert verdicts[1].reason is reason
    assert verdicts[-1].after == after
    assert "2 to 4 is in progress: waiting until the target has the new number of replicas ready" in verdicts[1].detail


def test_the_size_of_a_restarting_job_does_not_change() -> None:
    assert changed(guard(situation(4, 2, unsettled=JobState.RESTARTING))) == [(Reason.SETTLING, 2, 4)]


def test_a_rescale_in_flight_that_fits_needs_no_explanation() -> None:
    assert guard(situation(4, 4, rescale=IN_FLIGHT))[1].detail == ""


@pytest.mark.parametrize(("proposed", "after"), [(22, 20), (23, 23), (17, 17), (18, 20), (19, 20), (20, 20)])
def test_a_change_within_the_tolerance_is_ignored(proposed: int, after: int) -> None:
    s = spec(limits=Limits(0, 100), up=Behaviour(tolerance=0.1), down=Behaviour(tolerance=0.1))
    assert guard(situation(20, proposed, spec=s))[-1].after == after


def test_a_scale_up_waits_until_every_proposal_of_the_window_asks_for_more() -> None:
    s = spec(limits=Limits(0, 100), up=Behaviour(window=seconds(30)))
    rising = (Proposal(at(980), 2), Proposal(at(990), 6), Proposal(at(1000), 8))
    assert changed(guard(situation(4, 8, spec=s, proposals=rising))) == [(Reason.STABILIZATION, 8, 4)]
    assert guard(situation(4, 8, spec=s, proposals=rising[1:]))[-1].after == 6


def test_a_window_without_the_present_proposal_does_not_limit_it() -> None:
    s = spec(limits=Limits(0, 100), up=Behaviour(window=seconds(30)))
    verdicts = guard(situation(4, 6, spec=s, hold_reason="lag: gone", proposals=(Proposal(at(990), 8),)))
    assert verdicts[3] == Verdict(Reason.STABILIZATION, 6, 6, Reason.STABILIZATION)


def test_guards_that_let_a_size_pass_give_no_detail() -> None:
    both = Behaviour(
        window=seconds(60), tolerance=0.1, cooldown=seconds(30), rates=(Rate(RateKind.REPLICAS, 50, seconds(60)),)
    )
    s = spec(limits=Limits(0, 100), partitions=12, up=both, down=both)
    for current, proposed in ((4, 6), (6, 4), (4, 4)):
        verdicts = guard(situation(current, proposed, spec=s, cooldown_from=T0, engine=running(6, max_parallelism=12)))
        assert [verdict.detail for verdict in verdicts] == [""] * 11
        assert changed(verdicts) == []


_WHEN = st.integers(0, 1000).map(at)
_BEHAVIOURS = st.builds(
    Behaviour,
    window=st.sampled_from([seconds(0), seconds(300)]),
    tolerance=st.sampled_from([0.0, 0.1]),
    cooldown=st.sampled_from([seconds(0), seconds(600)]),
    select=st.sampled_from(Select),
    rates=st.sampled_from(
        [(), (Rate(RateKind.REPLICAS, 1, seconds(600)),), (Rate(RateKind.PERCENT, 10, seconds(60)),)]
    ),
)


@given(
    size=st.integers(0, 30),
    behaviours=st.tuples(_BEHAVIOURS, _BEHAVIOURS),
    changes=st.fixed_dictionaries(
        {
            "hold_reason": st.sampled_from([None, "lag: stale"]),
            "engine": st.sampled_from([None, running(6, max_parallelism=12), running(40, partitions=7)]),
            "proposals": st.lists(st.builds(Proposal, _WHEN, st.integers(0, 30)), max_size=3).map(tuple),
            "events": st.lists(st.builds(ScaleEvent, _WHEN, st.integers(-9, 9)), max_size=3).map(tuple),
            "cooldown_from": st.none() | _WHEN,
            "watched_since": _WHEN,
            "floor": st.none() | st.builds(Bound, st.integers(0, 30), st.just("a floor")),
            "ceiling": st.none() | st.builds(Bound, st.integers(0, 30), st.just("a ceiling")),
            "override_times": st.lists(_WHEN, max_size=4).map(sorted).map(tuple),
            "stands_still": st.booleans(),
            "unsettled": st.sampled_from([None, JobState.RESTARTING]),
            "rescale": st.sampled_from([None, begin(4, 6, at(990), Cause.REQUEST)]),
            "futile": st.sampled_from([None, Fact("none_up", {})]),
        }
    ),
)
def test_no_guard_objects_to_the_present_size(
    size: int, behaviours: tuple[Behaviour, Behaviour], changes: dict[str, Any]
) -> None:
    up, down = behaviours
    s = situation(size, size, spec=spec(limits=Limits(0, 1000), partitions=5, up=up, down=down), **changes)
    for _, rule in GUARDS:
        assert rule(s, size) is None
    # Hence no guard is evaluated.
    assert guard(s) == (
        *(Verdict(name, size, size, name) for name, _ in GUARDS),
        Verdict(Reason.BOUNDS, size, size, Reason.BOUNDS),
    )


def test_a_scale_down_waits_until_a_whole_window_was_observed() -> None:
    s = spec(limits=Limits(0, 100), down=Behaviour(window=seconds(300)))
    verdicts = guard(situation(4, 2, spec=s, watched_since=at(800)))
    assert changed(verdicts) == [(Reason.LEARNING, 2, 4)]
    assert verdicts[3].detail == "watched for 200 s of 300 s"
    assert guard(situation(4, 2, spec=s, watched_since=at(700)))[-1].after == 2


def test_a_disabled_direction_allows_no_change() -> None:
    off = Behaviour(select=Select.DISABLED)
    both = spec(limits=Limits(0, 100), up=off, down=off)
    for proposed in (1, 9):
        verdicts = guard(situation(5, proposed, spec=both))
        assert changed(verdicts) == [(Reason.RATE_LIMIT, proposed, 5)]
        assert verdicts[4].detail == "this direction is disabled"


def test_a_percentage_rate_still_allows_to_leave_zero() -> None:
    up = Behaviour(rates=(Rate(RateKind.PERCENT, 100, seconds(60)),))
    assert guard(situation(0, 5, spec=spec(limits=Limits(0, 100), up=up)))[-1].after == 1


def test_rounding_does_not_turn_ten_percent_of_ten_into_two() -> None:
    assert most(10, (), Behaviour(rates=(Rate(RateKind.PERCENT, 10, seconds(60)),)), T0) == 11


def test_an_infinite_percentage_limits_nothing() -> None:
    huge = Behaviour(rates=(Rate(RateKind.PERCENT, 1e308, seconds(60)),))
    both = spec(limits=Limits(0, 100), up=huge, down=huge)
    assert guard(situation(20, 100, spec=both))[-1].after == 100
    assert guard(situation(20, 0, spec=both))[-1].after == 0


def test_a_rate_limit_reports_the_allowed_size() -> None:
    up = Behaviour(rates=(Rate(RateKind.REPLICAS, 2, seconds(60)), Rate(RateKind.PERCENT, 50, seconds(30))))
    verdicts = guard(situation(8, 20, spec=spec(limits=Limits(0, 100), up=up)))
    assert changed(verdicts) == [(Reason.RATE_LIMIT, 20, 12)]
    assert verdicts[4].detail == "max of 2 replicas in 60 s, 50 % in 30 s allows 12"


@pytest.mark.parametrize(("since_end", "after"), [(29, 5), (30, 8)])
def test_nothing_changes_during_the_cooldown(since_end: float, after: int) -> None:
    s = spec(limits=Limits(0, 100), up=Behaviour(cooldown=seconds(30)))
    verdicts = guard(situation(5, 8, spec=s, cooldown_from=at(1000 - since_end)))
    assert verdicts[-1].after == after


def test_each_direction_has_its_own_cooldown() -> None:
    s = spec(limits=Limits(0, 100), up=Behaviour(cooldown=seconds(30)))
    assert guard(situation(5, 2, spec=s, cooldown_from=at(999)))[-1].after == 2


def test_the_size_never_exceeds_what_the_job_can_use_exactly_on_the_last_step() -> None:
    s = spec(limits=Limits(0, 100), slots_per_replica=4)
    engine = running(16, max_parallelism=10)
    assert changed(guard(situation(2, 9, spec=s, engine=engine))) == [(Reason.CAP, 9, 3)]
    assert guard(situation(2, 3, spec=s, engine=engine))[-1].after == 3


def test_a_cap_causes_no_change_by_itself_and_never_reverses_one() -> None:
    engine = running(8, partitions=2)
    assert guard(situation(5, 5, engine=engine))[-1].after == 5
    assert guard(situation(5, 8, engine=engine))[-1].after == 5
    assert changed(guard(situation(5, 4, engine=engine))) == [(Reason.CAP, 4, 2)]


@pytest.mark.parametrize(
    ("engine", "partitions", "usable"),
    [
        (None, None, None),
        (None, 7, 7),
        (running(1, partitions=5), 7, 5),
        (running(1, max_parallelism=3), None, 3),
        (running(1, max_parallelism=9, partitions=5), None, 5),
        (running(1, partitions=0, max_parallelism=0), 7, 7),
    ],
)
def test_usable_slots_are_the_least_of_the_known_limits(
    engine: EngineStatus | None, partitions: int | None, usable: int | None
) -> None:
    assert usable_slots(spec(partitions=partitions), engine, ()) == usable


@pytest.mark.parametrize("engine", [None, EngineStatus(job=JobState.STARTING, slots=3)])
def test_the_number_of_partitions_is_kept_while_the_engine_reports_none(engine: EngineStatus | None) -> None:
    s = spec(engine=True, partitions=7)
    past = (seen(0, 3, engine=running(3, partitions=4, max_parallelism=2)), seen(15, 3, engine=engine))
    assert source_partitions(s, engine, past) == 4
    assert usable_slots(s, engine, past) == 2
    assert source_partitions(s, engine, past[1:]) == 7
    assert usable_slots(s, running(3), past) == 7
    assert changed(guard(situation(1, 3, spec=s, engine=engine, past=past))) == [(Reason.CAP, 3, 2)]


@pytest.mark.parametrize(
    ("current", "proposed", "maximum", "after"),
    [
        (1, 2, 10, 2),
        (2, 3, 10, 4),  # 3 slots still take two waves of 4 tasks
        (2, 3, 3, 2),  # 4 is not allowed, 3 adds nothing
        (2, 9, 3, 2),  # nor does the maximum itself
        (4, 3, 10, 4),  # 2 would be less than the proposal
        (4, 2, 10, 2),
        (3, 3, 10, 3),  # no change, no correction
        (1, 0, 10, 0),
    ],
)
def test_sizes_without_added_capacity_are_skipped_with_4_partitions(
    current: int, proposed: int, maximum: int, after: int
) -> None:
    s = spec(limits=Limits(0, maximum), partitions=4)
    assert guard(situation(current, proposed, spec=s))[-1].after == after


def test_a_step_cut_by_a_rate_limit_may_stop_at_a_size_without_added_capacity() -> None:
    up = Behaviour(rates=(Rate(RateKind.REPLICAS, 1, seconds(60)),))
    s = spec(limits=Limits(0, 10), partitions=4, up=up)
    assert guard(situation(2, 4, spec=s))[-1].after == 3


@given(st.integers(1, 60), st.integers(1, 200), st.integers(1, 8), st.integers(1, 60))
def test_a_useful_size_is_the_smallest_of_its_waves(size: int, partitions: int, slots: int, maximum: int) -> None:
    def waves(n: int) -> int:
        return -(-partitions // (n * slots))

    useful = next_useful(size, partitions, slots, maximum)
    assert useful == 1 or waves(useful - 1) > waves(useful)
    if useful > size:
        assert useful <= maximum
        assert all(waves(n) == waves(size) for n in range(size, useful))
    else:
        assert waves(useful) == waves(size)


def test_bounds_have_the_last_word() -> None:
    s = spec(limits=Limits(3, 6), up=Behaviour(cooldown=seconds(60)))
    assert guard(situation(5, 9, spec=s))[-1] == Verdict(Reason.BOUNDS, 9, 6, Reason.BOUNDS, "3 to 6 is allowed")
    # A minimum is the user's explicit wish: a cooldown does not delay it.
    assert guard(situation(1, 2, spec=s, cooldown_from=at(999)))[-1].after == 3


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Limits(-1, 3), "min: must be 0 or more"),
        (lambda: Limits(0, 0), "max: must be 1 or more"),
        (lambda: Limits(4, 3), "must not be above max"),
        (lambda: Rate(RateKind.PERCENT, 0, seconds(1)), "value: must be above 0"),
        (lambda: Rate(RateKind.REPLICAS, 1.5, seconds(1)), "whole number"),
        (lambda: Rate(RateKind.PERCENT, 10, seconds(0)), "period: must be above 0s"),
        (lambda: Behaviour(window=seconds(-1)), "window: must not be negative"),
        (lambda: Behaviour(cooldown=seconds(-1)), "cooldown: must not be negative"),
        (lambda: Behaviour(tolerance=1.0), "tolerance: must be from 0 to below 1"),
    ],
)
def test_invalid_settings_are_refused(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_durations_are_explained_in_seconds() -> None:
    s = spec(limits=Limits(0, 9), up=Behaviour(cooldown=timedelta(minutes=2)))
    assert guard(situation(5, 8, spec=s, cooldown_from=at(990)))[5].detail == "10 s of 120 s since the last rescale"


@pytest.mark.parametrize(
    ("current", "proposed", "floor", "ceiling", "after"),
    [
        (3, 8, None, 5, 5),
        (3, 8, None, 3, 3),
        (3, 8, None, 2, 3),  # a ceiling below the current size causes no change
        (3, 8, None, 9, 8),
        (6, 2, 4, None, 4),
        (6, 2, 6, None, 6),
        (6, 2, 7, None, 6),
        (6, 2, 1, None, 2),
        (6, 8, 7, 7, 7),
        (6, 6, 9, 3, 6),
    ],
)
def test_a_change_stops_at_the_limits_of_the_target(
    current: int, proposed: int, floor: int | None, ceiling: int | None, after: int
) -> None:
    verdicts = guard(
        situation(
            current,
            proposed,
            floor=None if floor is None else Bound(floor, "three are protected"),
            ceiling=None if ceiling is None else Bound(ceiling, "the group ends there"),
        )
    )
    assert verdicts[-1].after == after
    if after != proposed:
        assert [v.detail for v in verdicts if v.guard is Reason.TARGET] == [
            "the group ends there" if proposed > current else "three are protected"
        ]


@pytest.mark.parametrize(("current", "limits", "why"), [(3, Limits(5, 9), "ends at 4"), (9, Limits(1, 6), "keeps 8")])
def test_bounds_that_the_target_cannot_reach_are_reported_and_not_requested_in_vain(
    current: int, limits: Limits, why: str
) -> None:
    verdicts = guard(
        situation(
            current,
            current,
            spec=spec(limits=limits),
            ceiling=Bound(4, "the group ends at 4"),
            floor=Bound(8, "the group keeps 8"),
        )
    )
    assert verdicts[-1].after == current
    assert verdicts[-1].detail == f"{limits.minimum} to {limits.maximum} is allowed, but the group {why}"


@pytest.mark.parametrize(
    ("override_times", "after"),
    [((100, 400, 800), 2), ((400, 800), 6), ((100, 200), 6), ((), 6)],
)
def test_repeated_changes_by_another_controller_suspend_ours_for_a_while(
    override_times: tuple[int, ...], after: int
) -> None:
    s = situation(2, 6, override_times=tuple(at(moment) for moment in override_times))
    assert guard(s)[-1].after == after
    verdict = next(v for v in guard(s) if v.guard is Reason.CONTENTION)
    assert ("another controller" in verdict.detail) == (after == 2)
    long_ago = replace(s, at=at(800 + 900))
    assert guard(long_ago)[-1].after == 6
    assert guard(replace(s, proposed=2, proposals=()))[-1].after == 2


@pytest.mark.parametrize(("current", "limits"), [(1, Limits(4, 9)), (12, Limits(4, 9))])
def test_a_controller_that_reverts_the_bounds_suspends_ours_too(current: int, limits: Limits) -> None:
    override_times = tuple(at(moment) for moment in (970, 985, 1000))
    s = situation(current, current, spec=spec(limits=limits), override_times=override_times)
    last = guard(s)[-1]
    assert last.after == current
    assert last.detail.startswith("4 to 9 is allowed, but sizes requested here did not last, 3 times")
    assert limits.minimum <= guard(replace(s, at=at(1900)))[-1].after <= limits.maximum


@pytest.mark.parametrize(
    ("current", "wanted", "ceiling", "after"),
    [
        (4, 8, 6, 4),  # 8 partitions take as many waves on 6 as on 4
        (3, 8, 6, 4),
        (4, 8, 8, 8),
        (4, 8, 20, 8),
        (2, 8, 4, 4),
        (0, 8, 0, 0),
        (8, 9, 6, 8),
    ],
)
def test_a_step_limited_by_the_target_does_not_stop_at_a_size_without_added_capacity(
    current: int, wanted: int, ceiling: int, after: int
) -> None:
    s = spec(limits=Limits(0, 10), partitions=8)
    verdicts = guard(situation(current, wanted, spec=s, ceiling=Bound(ceiling, "the quota is used up")))
    assert verdicts[-1].after == after
    useful = next(v for v in verdicts if v.guard is Reason.USEFUL_SIZE)
    if (current, ceiling) == (4, 6):
        assert useful.detail == (
            "with 8 partitions a size of 6 has no more capacity than a smaller one; 4 is worth its cost "
            "(the quota is used up)"
        )


def test_a_useful_size_that_the_target_would_cut_to_a_useless_one_is_not_requested() -> None:
    s = situation(0, 4, spec=spec(limits=Limits(0, 5), partitions=5), ceiling=Bound(4, "the group ends at 4"))
    verdicts = guard(s)
    # 4 adds nothing to 3, and 5 is out of reach.
    assert verdicts[-1].after == 3
    assert "with 5 partitions a size of 4 has no more capacity" in verdicts[7].detail
    assert "the group ends at 4" in verdicts[7].detail
