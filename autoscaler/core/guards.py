"""Sixth stage, the guards: an ordered list of rules between the proposal and the requested size, each with a verdict.

A guard either changes the wanted size or narrows the range of allowed sizes; the size after it is the wanted one,
limited to the range. So no later guard can undo what an earlier one forbade. Only the bounds can: they come last, since
the user has set them, and even they never lower a size that must not be lowered now.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from autoscaler.core.capacity import source_partitions, usable_slots
from autoscaler.core.combine import Combined
from autoscaler.core.explain import DeferredVerdict
from autoscaler.core.model import (
    ZERO,
    Behaviour,
    Bound,
    ClusterSpec,
    Control,
    ControlKind,
    EngineStatus,
    Fact,
    JobState,
    Observation,
    Proposal,
    Rate,
    RateKind,
    Reason,
    Rescale,
    ScaleEvent,
    Select,
    Verdict,
)
from autoscaler.core.rescale import MAX_OVERRIDES, Settled, futile, next_phase, stands_still
from autoscaler.core.trust import Trusted

_ANY = sys.maxsize

OVERRIDE_WINDOW = timedelta(hours=1)
"""If requested sizes were changed from outside `MAX_OVERRIDES` times within this time, nothing is requested..."""

PAUSE = timedelta(minutes=15)
"""... for this long after the last time."""

_UNSETTLED = frozenset({JobState.STARTING, JobState.RESTARTING, JobState.STOPPED, JobState.FAILED})


@dataclass(slots=True)
class GuardContext:
    """The input of the guards.

    Attributes:
        current: the size that the target was set to.
        proposed: the size that the policies together ask for.
        hold_reason: why the proposal must not lower the size (missing input, failing policy).
        unsettled: the state of a job that is in transition without a rescale of the target.
        rescale: the rescale in progress.
        proposals: trusted proposals, the present one last.
        events: changes of size that were requested.
        cooldown_from: when the last rescale ended.
        watched_since: since when the cluster has been watched without a gap.
        past: observations within the lookback, for what the engine last reported.
        floor, ceiling: the smallest and the largest size that the target itself accepts.
        remarks: what the target reports for users.
        override_times: when requested sizes were changed from outside.
        stands_still: whether a loss of replicas keeps the job from processing.
        controls: the manual controls in force.
        futile: why a step up must wait for an earlier request.
        excluded: why nothing may change now (a policy's exclusion window).
    """

    spec: ClusterSpec
    at: datetime
    current: int
    proposed: int
    hold_reason: str | None
    unsettled: JobState | None
    rescale: Rescale | None
    engine: EngineStatus | None
    proposals: tuple[Proposal, ...]
    events: tuple[ScaleEvent, ...]
    cooldown_from: datetime | None
    watched_since: datetime
    past: tuple[Observation, ...] = ()
    floor: Bound | None = None
    ceiling: Bound | None = None
    remarks: tuple[str, ...] = ()
    override_times: tuple[datetime, ...] = ()
    stands_still: bool = False
    excluded: str | None = None
    futile: Fact | None = None
    controls: tuple[Control, ...] = ()

    @property
    def behaviour(self) -> Behaviour:
        """The settings of the proposed direction."""
        return self.spec.up if self.proposed > self.current else self.spec.down

    @property
    def holds(self) -> bool:
        """Whether nothing may be lowered now, whatever else is configured."""
        return bool(self.hold_reason or self.unsettled or self.rescale)


def guard_context(seen: Trusted, settled: Settled, combined: Combined) -> GuardContext:
    """Gather the input of the guards, with the proposals and events that their windows need."""
    spec, state, observation = seen.spec, settled.state, seen.observation
    at, engine = observation.at, observation.engine
    return GuardContext(
        spec,
        at,
        settled.current,
        combined.proposed,
        combined.hold_reason,
        engine.job if engine is not None and engine.job in _UNSETTLED else None,
        state.rescale,
        engine,
        _proposals(spec, state.proposals, at, combined),
        _events(spec, state.events, at),
        state.cooldown_from,
        seen.watched_since,
        seen.past,
        observation.floor,
        observation.ceiling,
        observation.remarks,
        state.override_times,
        stands_still(spec, state.rescale, observation),
        seen.excluded,
        futile(spec, state, observation),
        observation.controls,
    )


def _proposals(
    spec: ClusterSpec, proposals: tuple[Proposal, ...], at: datetime, combined: Combined
) -> tuple[Proposal, ...]:
    """The proposals that the windows need. A proposal on input that cannot be trusted does not count for them."""
    cutoff = at - max(spec.up.window, spec.down.window)
    start = 0
    while start < len(proposals) and proposals[start].at < cutoff:
        start += 1
    kept = proposals[start:]
    return (*kept, Proposal(at, combined.proposed)) if combined.hold_reason is None else kept


def _events(spec: ClusterSpec, events: tuple[ScaleEvent, ...], at: datetime) -> tuple[ScaleEvent, ...]:
    if not events:
        return events
    longest = max((rate.period for rate in (*spec.up.rates, *spec.down.rates)), default=ZERO)
    cutoff = at - longest
    return tuple([event for event in events if event.at > cutoff])


@dataclass(slots=True)
class Effect:
    """What a guard does: it wants another size, or narrows the range of allowed sizes.

    Attributes:
        wanted: the size it wants instead.
        lowest, highest: the range of allowed sizes.
        fact: why; None if it only narrows the range for later guards.
        reason: the reason of the verdict, if it is not the guard's name.
    """

    wanted: int | None = None
    lowest: int = 0
    highest: int = _ANY
    fact: Fact | str | None = None
    reason: Reason | None = None


def freshness(s: GuardContext, wanted: int) -> Effect | None:
    """Input that is missing or cannot be trusted may raise the size, never lower it."""
    if s.hold_reason is None or wanted >= s.current:
        return None
    return Effect(lowest=s.current, fact=s.hold_reason, reason=Reason.MISSING)


def settling(s: GuardContext, wanted: int) -> Effect | None:
    """While a rescale is in progress, never scale down, and scale up only if its size is clearly too small.

    While a loss keeps the job from processing, do not scale up at all: the stall is not load. The same holds while
    replicas that were requested before do not come up.
    """
    if wanted == s.current:
        return None
    if s.futile is not None and wanted > s.current:
        return Effect(highest=s.current, fact=s.futile)
    why = _in_transition(s)
    if why is None:
        return None
    if wanted < s.current:
        return Effect(lowest=s.current, fact=why)
    if s.stands_still:
        return Effect(highest=s.current, fact=Fact("stands_still", {"why": why}))
    if wanted > s.current * (1 + s.spec.settle.short):
        fact = Fact("clearly_short", {"why": why, "current": s.current})
        return Effect(lowest=s.current, fact=fact, reason=Reason.SHORT)
    return Effect(highest=s.current, fact=why)


def _in_transition(s: GuardContext) -> Fact | None:
    """The rescale or the state of the job that is still to settle."""
    if s.rescale is not None:
        return Fact("in_flight", {"rescale": s.rescale, "phase": next_phase(s.rescale), "remarks": s.remarks})
    return None if s.unsettled is None else Fact("job_unsettled", {"job": s.unsettled})


def tolerance(s: GuardContext, wanted: int) -> Effect | None:
    """A change smaller than the tolerance is not worth a rescale."""
    share = s.behaviour.tolerance
    if wanted == s.current or abs(wanted - s.current) > share * s.current:
        return None
    return Effect(s.current, fact=Fact("tolerance", {"current": s.current, "wanted": wanted, "share": share}))


def stabilization(s: GuardContext, wanted: int) -> Effect | None:
    """Scale up to the smallest, down to the largest proposal of the direction's window (HPA v2 stabilization).

    Scaling down needs a window that was watched in full: a daemon that has just started lacks earlier proposals.
    """
    if wanted == s.current:
        return None
    window = s.behaviour.window
    cutoff = s.at - window
    recent = [p.replicas for p in s.proposals if p.at >= cutoff]
    if wanted > s.current:
        stable = max(s.current, min(recent, default=wanted))
        if stable >= wanted:
            return None
        return Effect(stable, fact=Fact("was_enough", {"stable": stable, "window": window}))
    watched = s.at - s.watched_since
    if watched < window:
        fact = Fact("watched", {"watched": watched, "window": window})
        return Effect(s.current, fact=fact, reason=Reason.LEARNING)
    stable = min(s.current, max(recent, default=wanted))
    if stable <= wanted:
        return None
    return Effect(stable, fact=Fact("was_needed", {"stable": stable, "window": window}))


def rate_limit(s: GuardContext, wanted: int) -> Effect | None:
    """Limit the change per period, in replicas or percent (HPA v2 behaviour policies)."""
    if wanted > s.current:
        top = most(s.current, s.events, s.spec.up, s.at)
        return Effect(highest=top, fact=_rates(s.spec.up, top) if wanted > top else None)
    if wanted < s.current:
        floor = least(s.current, s.events, s.spec.down, s.at)
        return Effect(lowest=floor, fact=_rates(s.spec.down, floor) if wanted < floor else None)
    return None


def _rates(behaviour: Behaviour, allowed: int) -> Fact:
    if behaviour.select is Select.DISABLED:
        return Fact("direction_disabled")
    return Fact("rates", {"behaviour": behaviour, "allowed": allowed})


def cooldown(s: GuardContext, wanted: int) -> Effect | None:
    """No change in a direction during its cooldown after a rescale has ended."""
    if s.cooldown_from is None or wanted == s.current:
        return None
    passed, pause = s.at - s.cooldown_from, s.behaviour.cooldown
    if passed >= pause:
        return None
    return Effect(s.current, fact=Fact("cooldown", {"passed": passed, "pause": pause}))


def cap(s: GuardContext, wanted: int) -> Effect | None:
    """Never more than the job can use (maximum parallelism, source partitions); a last step up ends exactly there.

    This guard shortens a change and never starts one: a wrong partition count must not shrink a cluster by itself.
    """
    usable = None if wanted == s.current else usable_slots(s.spec, s.engine, s.past)
    if usable is None:
        return None
    top = -(-usable // s.spec.slots_per_replica)
    if wanted > s.current:
        top = max(top, s.current)
    return None if wanted <= top else Effect(top, fact=Fact("usable_slots", {"usable": usable}))


def useful_size(s: GuardContext, wanted: int) -> Effect | None:
    """Skip sizes that add no capacity: equal tasks run in ceil(partitions / slots) waves.

    A useless size becomes the next larger useful one, since the load needs more than the smaller one; if that is above
    the maximum, it becomes the smallest size with the same capacity. A step cut by a rate limit may end in between.
    """
    partitions = None if wanted in (s.current, 0) else source_partitions(s.spec, s.engine, s.past)
    if partitions is None:
        return None
    slots, maximum, ceiling = s.spec.slots_per_replica, s.spec.limits.maximum, None
    possible = min(wanted, maximum)
    useful = next_useful(possible, partitions, slots, maximum)
    if s.ceiling is not None and wanted > s.current and s.ceiling.replicas < useful:
        # The size to which the target would reduce it must be useful as well.
        maximum, ceiling = max(1, s.ceiling.replicas), s.ceiling.reason
        possible = min(wanted, maximum)
        useful = next_useful(possible, partitions, slots, maximum)
    useful = max(useful, s.current) if wanted > s.current else min(useful, s.current)
    if useful in (wanted, possible):
        return None
    values = {"partitions": partitions, "possible": possible, "useful": useful, "ceiling": ceiling}
    return Effect(useful, fact=Fact("useful_size", values))


def contention(s: GuardContext, wanted: int) -> Effect | None:
    """Back off while another controller keeps changing the requested size.

    Two controllers that take turns would disturb the job forever. While one backs off, users see why.
    """
    fact = None if wanted == s.current else _contended(s)
    return None if fact is None else Effect(s.current, s.current, s.current, fact)


def _contended(s: GuardContext) -> Fact | None:
    """Why nothing is requested for a while."""
    if len(s.override_times) < MAX_OVERRIDES:
        return None
    recent = [at for at in s.override_times if s.at - at <= OVERRIDE_WINDOW]
    if len(recent) < MAX_OVERRIDES or s.at - recent[-1] >= PAUSE:
        return None
    return Fact("contention", {"times": len(recent), "window": OVERRIDE_WINDOW, "pause": PAUSE})


def target(s: GuardContext, wanted: int) -> Effect | None:
    """Never beyond what the target accepts at present. Like `cap`, it shortens a change and never starts one."""
    if s.ceiling is not None and wanted > s.current and wanted > s.ceiling.replicas:
        return Effect(highest=max(s.ceiling.replicas, s.current), fact=s.ceiling.reason)
    if s.floor is not None and wanted < s.current and wanted < s.floor.replicas:
        return Effect(lowest=min(s.floor.replicas, s.current), fact=s.floor.reason)
    return None


_Guard = Callable[[GuardContext, int], Effect | None]
GUARDS: tuple[tuple[Reason, _Guard], ...] = (
    (Reason.FRESHNESS, freshness),
    (Reason.SETTLING, settling),
    (Reason.TOLERANCE, tolerance),
    (Reason.STABILIZATION, stabilization),
    (Reason.RATE_LIMIT, rate_limit),
    (Reason.COOLDOWN, cooldown),
    (Reason.CAP, cap),
    (Reason.USEFUL_SIZE, useful_size),
    (Reason.CONTENTION, contention),
    (Reason.TARGET, target),
)


def guard(s: GuardContext) -> tuple[Verdict, ...]:
    """Pass the proposal through every guard. The trail starts at the proposal and ends at the decided size."""
    wanted = size = s.proposed
    current, limits = s.current, s.spec.limits
    if size == current and not s.controls and limits.minimum <= size <= limits.maximum:
        return unopposed(size)
    lowest, highest = 0, _ANY
    verdicts: list[Verdict] = []
    for name, rule in GUARDS:
        if wanted == size == current:
            # Guards only object to changes, and often no change is left after a few of them.
            verdicts += unopposed(size)[len(verdicts) : -1]
            break
        effect = rule(s, wanted)
        if effect is None:
            verdicts.append(passed(name, size))
            continue
        before = size
        if effect.wanted is not None:
            wanted = effect.wanted
        lowest, highest = max(lowest, effect.lowest), min(highest, effect.highest)
        size = min(wanted, highest) if wanted > lowest else lowest
        if effect.fact is not None:
            verdicts.append(DeferredVerdict(name, before, size, effect.reason or name, effect.fact))
        else:
            verdicts.append(passed(name, size) if size == before else Verdict(name, before, size, name))
    if s.controls:
        verdicts.append(control(s, size))
        size = verdicts[-1].after
    verdicts.append(bounds(s, size))
    return tuple(verdicts)


@lru_cache(maxsize=4096)
def passed(name: Reason, size: int) -> Verdict:
    """The verdict of a guard that let a size pass. It is cached, as it is the most common object."""
    return Verdict(name, size, size, name)


@lru_cache(maxsize=4096)
def unopposed(size: int) -> tuple[Verdict, ...]:
    """The verdicts of all guards on a size to which none of them objects, as in most steps."""
    return (*[passed(name, size) for name, _ in GUARDS], passed(Reason.BOUNDS, size))


def control(s: GuardContext, size: int) -> Verdict:
    """Apply manual controls: a limit narrows the range, a hold sets the size, a pause leaves it as it is.

    A hold overrides the guards before it: it waits only for a rescale in progress and for a job in transition. A limit
    does not lower a size that must not be lowered now. Neither goes beyond what the target accepts, and neither
    requests anything during a contention.
    """
    controls = newest_controls(s.controls)
    pause, hold, limit = (next((each for each in controls if each.kind is kind), None) for kind in ControlKind)
    after = size
    but: Fact | str | None = None
    if limit is not None:
        after = max(after, limit.minimum or 0)
        after = after if limit.maximum is None else min(after, limit.maximum)
        if after < s.current and s.holds:
            after = s.current
    if hold is not None and hold.replicas is not None:
        after = hold.replicas
        but = None if after == s.current else _in_transition(s)
        if but is not None:
            after = s.current
    if after != s.current:
        contended, reach = _contended(s), target(s, after)
        if contended is not None:
            after, but = s.current, contended
        elif reach is not None:
            after, but = min(max(after, reach.lowest), reach.highest), reach.fact
    if pause is not None and ((pause.up and after > s.current) or (pause.down and after < s.current)):
        after, but = s.current, None
    fact = Fact("controls", {"controls": controls, "but": but})
    return DeferredVerdict(Reason.CONTROL, size, after, Reason.CONTROL, fact)


def newest_controls(controls: Iterable[Control]) -> tuple[Control, ...]:
    """The newest control of each kind, in the order of the kinds. A control of unknown time is older than any other."""
    newest: dict[ControlKind, Control] = {}
    for each in controls:
        known = newest.setdefault(each.kind, each)
        if each.at is not None and (known.at is None or each.at > known.at):
            newest[each.kind] = each
    return tuple([newest[kind] for kind in ControlKind if kind in newest])


def bounds(s: GuardContext, size: int) -> Verdict:
    """Keep the size within the limits. A size above them stays while nothing may be lowered.

    In an exclusion window nothing changes, even if the limits demand it.

    If the target cannot reach the limits, nothing is requested: it would refuse the request each time. Nothing is
    requested during a contention either: both controllers would change the size at every tick.
    """
    limits = s.spec.limits
    if size == s.current and limits.minimum <= size <= limits.maximum:
        return passed(Reason.BOUNDS, size)
    if s.excluded is not None:
        fact = Fact("excluded", {"reason": s.excluded})
        return DeferredVerdict(Reason.BOUNDS, size, s.current, Reason.BOUNDS, fact)
    after = max(limits.minimum, min(size, limits.maximum))
    # A size that is already below the current one comes from a manual hold.
    if after < s.current <= size and s.holds:
        after = s.current
    but = None if after == s.current else _contended(s) or _beyond(s, after)
    if but is not None:
        after = s.current
    elif after == size:
        return passed(Reason.BOUNDS, size)
    fact = Fact("bounds", {"minimum": limits.minimum, "maximum": limits.maximum, "but": but})
    return DeferredVerdict(Reason.BOUNDS, size, after, Reason.BOUNDS, fact)


def _beyond(s: GuardContext, size: int) -> str | None:
    """Why the target would not accept a change from the current size to this one."""
    effect = target(s, size)
    return None if effect is None else str(effect.fact)


def most(current: int, events: tuple[ScaleEvent, ...], behaviour: Behaviour, at: datetime) -> int:
    """The largest size that the rate limits for scaling up allow (HPA v2 scale-up limit)."""
    if behaviour.select is Select.DISABLED:
        return current
    if not behaviour.rates:
        return _ANY
    # A percentage of 0 replicas would never allow a first one.
    tops = [max(1, _top(rate, _at_period_start(current, events, rate, at))) for rate in behaviour.rates]
    return max(current, max(tops) if behaviour.select is Select.MAX else min(tops))


def least(current: int, events: tuple[ScaleEvent, ...], behaviour: Behaviour, at: datetime) -> int:
    """The smallest size that the rate limits for scaling down allow (HPA v2 scale-down limit)."""
    if behaviour.select is Select.DISABLED:
        return current
    if not behaviour.rates:
        return 0
    floors = [_floor(rate, _at_period_start(current, events, rate, at)) for rate in behaviour.rates]
    return min(current, min(floors) if behaviour.select is Select.MAX else max(floors))


def _at_period_start(current: int, events: tuple[ScaleEvent, ...], rate: Rate, at: datetime) -> int:
    cutoff = at - rate.period
    return current - sum(event.change for event in events if event.at > cutoff)


def _top(rate: Rate, start: int) -> int:
    if rate.kind is RateKind.PERCENT:
        # 100 * (1 + 10 / 100) is 110.00000000000001 and would give 111: add the percentages first.
        return math.ceil(min(start * (100 + rate.value) / 100, _ANY))
    return start + int(rate.value)


def _floor(rate: Rate, start: int) -> int:
    if rate.kind is RateKind.PERCENT:
        return int(max(start * (100 - rate.value) / 100, -_ANY))
    return start - int(rate.value)


def next_useful(size: int, partitions: int, slots_per_replica: int, maximum: int) -> int:
    """The useful size (see `useful_size`) at or next above `size`; the next below if that is not within `maximum`."""
    waves = -(-partitions // (size * slots_per_replica))
    smallest = -(-partitions // (waves * slots_per_replica))
    if smallest == size or waves == 1:
        return smallest
    above = -(-partitions // ((waves - 1) * slots_per_replica))
    return above if above <= maximum else smallest
