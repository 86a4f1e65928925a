"""The guards: an ordered list of verdicts between what policies propose and what is requested.

A guard either changes the size that is wanted or narrows the range of sizes allowed; the size after it is the wanted
one held within the range. So no later guard can undo what an earlier one forbade, except the bounds, which come last
and are the user's own word; and even they never lower a size that must not be lowered now.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from autoscaler.core.capacity import source_partitions, usable_slots
from autoscaler.core.model import (
    Behaviour,
    Bound,
    ClusterSpec,
    EngineStatus,
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
from autoscaler.core.rescale import told, waits_for, why_not

_ANY = sys.maxsize

OVERRULED = 3
"""So often a size we requested was changed from outside before we back off..."""

WITHIN = timedelta(hours=1)
"""... within this time..."""

PAUSE = timedelta(minutes=15)
"""... and for so long after the last time."""


@dataclass(slots=True)
class Situation:
    """What guards look at. Not frozen because one is made for every decision, and never leaves it.

    Attributes:
        current: the size the target has been told to have.
        proposed: what the policies together ask for.
        distrust: why the proposal must not lower the size (missing input, failing policy), or empty.
        unsettled: why the job is in transition without a rescale of the target, or empty.
        rescale: the change on its way, if any.
        proposals: trusted proposals, the present one last.
        events: our changes of size.
        ended: when the last rescale ended.
        since: from when on the cluster has been watched without a gap.
        past: observations within the lookback, for what the engine showed last.
        floor, ceiling: what the target itself does not go beyond.
        remarks: what the target says to people.
        overruled: when sizes that we had requested were changed from outside.
        still: whether a loss keeps the job from working.
        excluded: why nothing may change now (a policy's exclusion window), or empty.
    """

    spec: ClusterSpec
    at: datetime
    current: int
    proposed: int
    distrust: str
    unsettled: str
    rescale: Rescale | None
    engine: EngineStatus | None
    proposals: tuple[Proposal, ...]
    events: tuple[ScaleEvent, ...]
    ended: datetime | None
    since: datetime
    past: tuple[Observation, ...] = ()
    floor: Bound | None = None
    ceiling: Bound | None = None
    remarks: tuple[str, ...] = ()
    overruled: tuple[datetime, ...] = ()
    still: bool = False
    excluded: str = ""

    @property
    def behaviour(self) -> Behaviour:
        """The settings of the direction that is proposed."""
        return self.spec.up if self.proposed > self.current else self.spec.down

    @property
    def holds(self) -> bool:
        """Whether nothing may be lowered now, whatever else is configured."""
        return bool(self.distrust or self.unsettled or self.rescale)


# wanted, lowest, highest, reason, detail
Ruling = tuple[int, int, int, Reason, str]


def freshness(s: Situation, wanted: int, lowest: int, highest: int) -> Ruling:
    """Input that is missing or cannot be trusted may raise the size, never lower it."""
    if s.distrust and wanted < s.current:
        return wanted, max(lowest, s.current), highest, Reason.MISSING, s.distrust
    return wanted, lowest, highest, Reason.FRESHNESS, ""


def settling(s: Situation, wanted: int, lowest: int, highest: int) -> Ruling:
    """While a rescale is in flight: nothing down, and up only when the size on its way is clearly short.

    While a loss keeps the job from working, not even then: the stall is not load.
    """
    if s.rescale is None and not s.unsettled:
        return wanted, lowest, highest, Reason.SETTLING, ""
    if s.rescale is not None:
        why = f"{told(s.rescale)} is on its way, not yet {waits_for(s.rescale)}"
        why += why_not(s.rescale, s.remarks)
    else:
        why = s.unsettled
    if wanted > s.current:
        if s.still:
            return wanted, lowest, min(highest, s.current), Reason.SETTLING, f"{why}; the job stands still meanwhile"
        if wanted > s.current * (1 + s.spec.settle.short):
            return (
                wanted,
                max(lowest, s.current),
                highest,
                Reason.SHORT,
                f"{why}, but {s.current} is clearly short",
            )
        return wanted, lowest, min(highest, s.current), Reason.SETTLING, why
    return wanted, max(lowest, s.current), highest, Reason.SETTLING, why if wanted < s.current else ""


def tolerance(s: Situation, wanted: int, lowest: int, highest: int) -> Ruling:
    """A change smaller than the tolerance is not worth a rescale."""
    if wanted == s.current:
        return wanted, lowest, highest, Reason.TOLERANCE, ""
    share = s.behaviour.tolerance
    if abs(wanted - s.current) <= share * s.current:
        detail = f"{s.current} to {wanted} is within {share:.0%}"
        return s.current, lowest, highest, Reason.TOLERANCE, detail
    return wanted, lowest, highest, Reason.TOLERANCE, ""


def stabilization(s: Situation, wanted: int, lowest: int, highest: int) -> Ruling:
    """Up to the least, down to the greatest proposal of the direction's window (HPA v2 stabilization).

    Down needs the whole window to have been watched: a fresh daemon has not seen what it would forget.
    """
    if wanted == s.current:
        return wanted, lowest, highest, Reason.STABILIZATION, ""
    window = s.behaviour.window
    cutoff = s.at - window
    recent = [p.replicas for p in s.proposals if p.at >= cutoff]
    if wanted > s.current:
        stable = max(s.current, min(recent, default=wanted))
        if stable >= wanted:
            return wanted, lowest, highest, Reason.STABILIZATION, ""
        return stable, lowest, highest, Reason.STABILIZATION, f"{stable} was enough within {_span(window)}"
    if s.at - s.since < window:
        detail = f"watched for {_span(s.at - s.since)} of {_span(window)}"
        return s.current, lowest, highest, Reason.LEARNING, detail
    stable = min(s.current, max(recent, default=wanted))
    if stable <= wanted:
        return wanted, lowest, highest, Reason.STABILIZATION, ""
    return stable, lowest, highest, Reason.STABILIZATION, f"{stable} was needed within {_span(window)}"


def rate_limit(s: Situation, wanted: int, lowest: int, highest: int) -> Ruling:
    """At most so many replicas or percent per period (HPA v2 behaviour policies)."""
    if wanted > s.current:
        top = most(s.current, s.events, s.spec.up, s.at)
        if wanted > top:
            return wanted, lowest, min(highest, top), Reason.RATE_LIMIT, _rates(s.spec.up, top)
        return wanted, lowest, min(highest, top), Reason.RATE_LIMIT, ""
    if wanted < s.current:
        floor = least(s.current, s.events, s.spec.down, s.at)
        if wanted < floor:
            return wanted, max(lowest, floor), highest, Reason.RATE_LIMIT, _rates(s.spec.down, floor)
        return wanted, max(lowest, floor), highest, Reason.RATE_LIMIT, ""
    return wanted, lowest, highest, Reason.RATE_LIMIT, ""


def cooldown(s: Situation, wanted: int, lowest: int, highest: int) -> Ruling:
    """Nothing in a direction for its cooldown after a rescale has ended."""
    if s.ended is None or wanted == s.current:
        return wanted, lowest, highest, Reason.COOLDOWN, ""
    pause = s.behaviour.cooldown
    if s.at - s.ended < pause:
        detail = f"{_span(s.at - s.ended)} of {_span(pause)} since the last rescale"
        return s.current, lowest, highest, Reason.COOLDOWN, detail
    return wanted, lowest, highest, Reason.COOLDOWN, ""


def cap(s: Situation, wanted: int, lowest: int, highest: int) -> Ruling:
    """Never more than the job can use: maximum parallelism and source partitions, exact on the last step.

    It trims a move and starts none: a partition count that is read wrong must not shrink a cluster by itself.
    """
    if wanted == s.current:
        return wanted, lowest, highest, Reason.CAP, ""
    usable = usable_slots(s.spec, s.engine, s.past)
    if usable is None:
        return wanted, lowest, highest, Reason.CAP, ""
    top = -(-usable // s.spec.slots_per_replica)
    if wanted > s.current:
        top = max(top, s.current)
    if wanted <= top:
        return wanted, lowest, highest, Reason.CAP, ""
    return top, lowest, highest, Reason.CAP, f"the job can use {usable} slots"


def useful_size(s: Situation, wanted: int, lowest: int, highest: int) -> Ruling:
    """Skip the sizes that add nothing: equal tasks run in ceil(partitions / slots) waves.

    A useless size is moved up to the next useful one, since the load asked for more than the one below; if that is
    above the maximum, down to the smallest that does as much. A step cut by a rate limit may stop on the way.
    """
    if wanted in (s.current, 0):
        return wanted, lowest, highest, Reason.USEFUL_SIZE, ""
    partitions = source_partitions(s.spec, s.engine, s.past)
    if partitions is None:
        return wanted, lowest, highest, Reason.USEFUL_SIZE, ""
    slots, maximum = s.spec.slots_per_replica, s.spec.limits.maximum
    possible, why = min(wanted, maximum), ""
    useful = next_useful(possible, partitions, slots, maximum)
    if s.ceiling is not None and wanted > s.current and s.ceiling.replicas < useful:
        # What the target would trim it to has to be useful as well.
        maximum = max(1, s.ceiling.replicas)
        possible, why = min(wanted, maximum), f" ({s.ceiling.reason})"
        useful = next_useful(possible, partitions, slots, maximum)
    useful = max(useful, s.current) if wanted > s.current else min(useful, s.current)
    if useful in (wanted, possible):
        return wanted, lowest, highest, Reason.USEFUL_SIZE, ""
    detail = f"{partitions} partitions give {possible} no more capacity than a smaller size"
    return useful, lowest, highest, Reason.USEFUL_SIZE, f"{detail}; {useful} is worth its cost{why}"


def contention(s: Situation, wanted: int, lowest: int, highest: int) -> Ruling:
    """Somebody else keeps changing the size that we request: back off instead of joining in.

    Two controllers that take turns disturb the job for ever; one that stands back for a while is seen and named.
    """
    detail = "" if wanted == s.current else _contended(s)
    if not detail:
        return wanted, lowest, highest, Reason.CONTENTION, ""
    return s.current, s.current, s.current, Reason.CONTENTION, detail


def _contended(s: Situation) -> str:
    """Why nothing is requested for a while, or nothing."""
    if len(s.overruled) < OVERRULED:
        return ""
    recent = [at for at in s.overruled if s.at - at <= WITHIN]
    if len(recent) < OVERRULED or s.at - recent[-1] >= PAUSE:
        return ""
    return (
        f"sizes requested here did not last, {len(recent)} times within {_span(WITHIN)}: is there another controller? "
        f"Nothing is requested until {_span(PAUSE)} after the last time"
    )


def target(s: Situation, wanted: int, lowest: int, highest: int) -> Ruling:
    """Never further than the target goes at present. Like a cap it trims a move and starts none."""
    if s.ceiling is not None and wanted > s.current and wanted > s.ceiling.replicas:
        return wanted, lowest, min(highest, max(s.ceiling.replicas, s.current)), Reason.TARGET, s.ceiling.reason
    if s.floor is not None and wanted < s.current and wanted < s.floor.replicas:
        return wanted, max(lowest, min(s.floor.replicas, s.current)), highest, Reason.TARGET, s.floor.reason
    return wanted, lowest, highest, Reason.TARGET, ""


_Guard = Callable[[Situation, int, int, int], Ruling]
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


def guard(s: Situation) -> tuple[Verdict, ...]:
    """Pass the proposal through every guard. The trail starts at the proposal and ends at what is decided."""
    wanted, lowest, highest = s.proposed, 0, _ANY
    before = s.proposed
    if before == s.current and s.rescale is None and not s.unsettled:
        # Most of the time nothing is to change: what no guard objects to is not asked for one by one.
        return (*_unopposed(before), bounds(s, before))
    verdicts = []
    for name, rule in GUARDS:
        wanted, lowest, highest, reason, detail = rule(s, wanted, lowest, highest)
        after = min(wanted, highest) if wanted > lowest else lowest
        if after == before and not detail:
            verdicts.append(_passed(name, after))
        else:
            verdicts.append(Verdict(name, before, after, reason, detail))
        before = after
    verdicts.append(bounds(s, before))
    return tuple(verdicts)


@lru_cache(maxsize=4096)
def _passed(name: Reason, size: int) -> Verdict:
    """The verdict of a guard that let a size pass: the commonest object there is, hence kept."""
    return Verdict(name, size, size, name)


@lru_cache(maxsize=4096)
def _unopposed(size: int) -> tuple[Verdict, ...]:
    """The verdicts of all guards where the size that there is is proposed and nothing is on its way."""
    return tuple([_passed(name, size) for name, _ in GUARDS])


def shortened(trail: Sequence[Verdict], proposed: int) -> tuple[tuple[Reason, ...], tuple[Verdict, ...]]:
    """A trail in short: the names of all guards, and the verdicts of those that changed something or said something.

    Nearly always that is none of them. Where `restored` could not make the trail of it again, there are no names, and
    all verdicts.
    """
    names = tuple([verdict.guard for verdict in trail])
    telling = tuple([one for one in trail if one.before != one.after or one.detail or one.reason is not one.guard])
    once = len(set(names)) == len(names)
    return (names, telling) if once and restored(names, telling, proposed) == tuple(trail) else ((), tuple(trail))


def restored(names: Sequence[Reason], telling: Sequence[Verdict], proposed: int) -> tuple[Verdict, ...]:
    """The trail that `shortened` has made short: a guard that has no verdict there let the size pass as it found it.

    Raises:
        ValueError: a guard comes twice, or has a verdict and is not named.
    """
    if not names:
        return tuple(telling)
    told_by = {verdict.guard: verdict for verdict in telling}
    named = set(names)
    if len(named) < len(names) or len(told_by) < len(telling) or not told_by.keys() <= named:
        raise ValueError("verdicts: a guard has a verdict and is not among the names in guards, or one comes twice")
    trail, size = [], proposed
    for name in names:
        verdict = told_by.get(name) or _passed(name, size)
        trail.append(verdict)
        size = verdict.after
    return tuple(trail)


def bounds(s: Situation, size: int) -> Verdict:
    """Hold the size within the limits. A size above them stays while nothing may be lowered.

    In an exclusion window nothing changes, also where the limits say so.

    Where the target does not go as far as the limits, nothing is requested: it would be refused again and again. Nor
    is it while we back off: somebody who puts back what the limits ask for would be fought at every tick.
    """
    limits = s.spec.limits
    if s.excluded:
        if size == s.current and limits.minimum <= size <= limits.maximum:
            return _passed(Reason.BOUNDS, size)
        return Verdict(Reason.BOUNDS, size, s.current, Reason.BOUNDS, f"nothing may change: {s.excluded}")
    after = max(limits.minimum, min(size, limits.maximum))
    if after < s.current and s.holds:
        after = s.current
    but = "" if after == s.current else _contended(s) or _beyond(s, after)
    if but:
        after = s.current
    elif after == size:
        return _passed(Reason.BOUNDS, size)
    detail = f"{limits.minimum} to {limits.maximum} is allowed{', but ' if but else ''}{but}"
    return Verdict(Reason.BOUNDS, size, after, Reason.BOUNDS, detail)


def _beyond(s: Situation, size: int) -> str:
    """Why the target would not go from the current size to this one, or nothing."""
    if size > s.current and s.ceiling is not None and size > s.ceiling.replicas:
        return s.ceiling.reason
    if size < s.current and s.floor is not None and size < s.floor.replicas:
        return s.floor.reason
    return ""


def most(current: int, events: tuple[ScaleEvent, ...], behaviour: Behaviour, at: datetime) -> int:
    """The greatest size that the rate limits of the way up allow (HPA v2 scale-up limit)."""
    if behaviour.select is Select.DISABLED:
        return current
    if not behaviour.rates:
        return _ANY
    # A percentage of nothing would forbid to leave zero.
    tops = [max(1, _top(rate, _at_period_start(current, events, rate, at))) for rate in behaviour.rates]
    return max(current, max(tops) if behaviour.select is Select.MAX else min(tops))


def least(current: int, events: tuple[ScaleEvent, ...], behaviour: Behaviour, at: datetime) -> int:
    """The smallest size that the rate limits of the way down allow (HPA v2 scale-down limit)."""
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
        # ceil(3 * (1 + 10 / 100)) would be 4 by one ulp: percent first, then the sum.
        return math.ceil(min(start * (100 + rate.value) / 100, _ANY))
    return start + int(rate.value)


def _floor(rate: Rate, start: int) -> int:
    if rate.kind is RateKind.PERCENT:
        return int(max(start * (100 - rate.value) / 100, -_ANY))
    return start - int(rate.value)


def next_useful(size: int, partitions: int, slots_per_replica: int, maximum: int) -> int:
    """The size nearest to `size` from above that is the smallest of its number of waves; see `useful_size`."""
    waves = -(-partitions // (size * slots_per_replica))
    smallest = -(-partitions // (waves * slots_per_replica))
    if smallest == size or waves == 1:
        return smallest
    above = -(-partitions // ((waves - 1) * slots_per_replica))
    return above if above <= maximum else smallest


def _rates(behaviour: Behaviour, allowed: int) -> str:
    if behaviour.select is Select.DISABLED:
        return "this direction is disabled"
    texts = [
        f"{rate.value:g} {'%' if rate.kind is RateKind.PERCENT else 'replicas'} in {_span(rate.period)}"
        for rate in behaviour.rates
    ]
    return f"{behaviour.select} of {', '.join(texts)} allows {allowed}"


def _span(time: timedelta) -> str:
    return f"{time.total_seconds():g} s"
