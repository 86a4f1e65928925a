"""First stage: find out what of an observation can be used, and add it to the past."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from autoscaler.core.evaluate import allowed
from autoscaler.core.fast_init import creator
from autoscaler.core.model import (
    AMOUNT,
    ANY,
    MAX_REPLICAS,
    MOST,
    ClusterSpec,
    ClusterState,
    Fact,
    Observation,
    Range,
    Reading,
    Reason,
    no_entries,
)
from autoscaler.core.state import rebase

Note = tuple[Reason, Fact]
"""What happened in a step besides the decision."""

_create_observation = creator(Observation)

_NO_ENTRIES = no_entries()

_GAP = 2.5
"""A gap of this many intervals without a trusted observation is always allowed: one tick may be lost."""


@dataclass(slots=True)
class Trusted:
    """The trusted part of an observation, and its context.

    Attributes:
        spec: the configuration, with the present limits.
        state: the state of the last step, its times shifted if the clock went backwards.
        observation: the observation, with only the trusted metrics.
        untrusted: metric (or `target`, `engine`) name -> why it cannot be used.
        past: observations within the lookback, oldest first, this one last.
        watched_since: since when the cluster has been watched without a gap.
        excluded: why nothing may change now, from a policy that moves the bounds.
        policy_errors: policy -> its error when it was asked for the bounds.
        notes: notes for the decision.
    """

    spec: ClusterSpec
    state: ClusterState
    observation: Observation
    untrusted: Mapping[str, str]
    past: tuple[Observation, ...]
    watched_since: datetime
    excluded: str | None
    policy_errors: Mapping[str, str]
    notes: tuple[Note, ...]

    def size_known(self) -> bool:
        """Whether the target's size could be read."""
        desired, ready = self.observation.desired, self.observation.ready
        return desired is not None and 0 <= desired <= MAX_REPLICAS and (ready is None or 0 <= ready <= MAX_REPLICAS)


def trust(spec: ClusterSpec, state: ClusterState, observation: Observation) -> Trusted:
    """Keep the usable readings, and the reasons for dropping others. Only these are kept, recorded and replayed."""
    at = observation.at
    notes: tuple[Note, ...] = ()
    if state.at is not None and at < state.at:
        notes = ((Reason.CLOCK, Fact("clock", {"seconds": (state.at - at).total_seconds()})),)
        state = rebase(state, at - state.at)
    limits, excluded, policy_errors = allowed(spec.policies, at, spec.limits)
    if limits is not spec.limits:
        spec = spec.with_limits(limits)
    metrics, untrusted = trusted(spec, observation)
    if untrusted or metrics != observation.metrics:
        observation = replace(observation, metrics=metrics, missing=untrusted)
    return Trusted(
        spec,
        state,
        observation,
        untrusted,
        _past(spec, state.past, observation),
        _watched_since(spec, state, at),
        excluded,
        policy_errors,
        notes,
    )


def trusted(spec: ClusterSpec, observation: Observation) -> tuple[Mapping[str, Reading], dict[str, str]]:
    """Split an observation into usable readings, and names that cannot be used with the reason for each.

    A reading is usable if it is finite, within the range of the metric (`ClusterSpec.ranges`), at most `max_age` old
    and at most `max_ahead` in the future. A metric of the spec that was not delivered gets a reason too, and so does an
    engine that is to be polled and cannot be read.

    A reading above its range is in both: a policy that does not know the range may raise the size by it (`views_for`).
    """
    at = observation.at
    oldest = at - spec.max_age
    newest = at + spec.max_ahead
    ranges = spec.ranges
    untrusted = dict(observation.missing)
    good: dict[str, Reading] = {}
    for name, reading in observation.metrics.items():
        try:
            least, most, _ = ranges.get(name, ANY)
            value = reading.value
            # Most readings are a plain number; NaN is in no range.
            plain = type(value) is float and reading.mean is None and not reading.parts
            if (
                (least <= value <= most if plain else reading.within(least, most))  # type: ignore[operator]
                and oldest <= reading.at <= newest
                and (reading.partitions is None or reading.partitions >= 1)
            ):
                if name not in untrusted:
                    good[name] = reading
                continue
            usable, problem = _usable_part(spec, name, reading, at)
            if problem is not None:
                untrusted.setdefault(name, problem)
            if usable is not None and untrusted.get(name) == problem:
                good[name] = usable
        except (TypeError, OverflowError) as error:
            # The source returned a string, a time without a zone, or an integer too large for a float.
            untrusted[name] = f"not a reading: {error}"
    for name in spec.metrics:
        if name not in good and name not in untrusted:
            untrusted[name] = "not delivered"
    if spec.engine and observation.engine is None and "engine" not in untrusted:
        untrusted["engine"] = "not delivered"
    return good, untrusted


def _usable_part(spec: ClusterSpec, name: str, reading: Reading, at: datetime) -> tuple[Reading | None, str | None]:
    """The usable form of a reading, and what is wrong with it. A reading above its range has both."""
    known = spec.ranges.get(name, ANY)
    if known == AMOUNT:
        reading = _nonnegative(reading)
    usable = _problem(spec, known._replace(most=MOST), reading, at) is None
    return reading if usable else None, _problem(spec, known, reading, at)


def _nonnegative(reading: Reading) -> Reading:
    """The reading of an amount, with negative numbers replaced by 0 if they mean nothing.

    A number above -1 comes from rounding, or from two clocks. Among several numbers, -1 is what exporters report for a
    partition without a committed offset; and if their sum is 0 or more, one partition was read at another time.
    """
    value = reading.value
    numbers = value if isinstance(value, tuple) else (value,)
    if not reading.finite():
        return reading
    lowest = min(numbers)
    if lowest > -1 or (max(numbers) >= 0 and (lowest == -1 or sum(numbers) >= 0)):
        numbers = tuple([max(number, 0.0) for number in numbers])
        return replace(reading, value=numbers if isinstance(value, tuple) else numbers[0])
    return reading


def _problem(spec: ClusterSpec, known: Range, reading: Reading, at: datetime) -> str | None:
    """Why a reading cannot be used, if `known` is the range of its metric."""
    if not reading.finite():
        return f"not a finite number: {reading.value}"
    least, most, expected = known
    if not reading.within(least, most):
        numbers = reading.value if isinstance(reading.value, tuple) else (reading.value,)
        numbers = numbers if reading.mean is None else (*numbers, reading.mean)
        wrong = [number for number in numbers if not least <= number <= most]
        return f"{wrong[0]:g}, expected {expected}" if wrong else f"a part of it is not {ANY.expected}"
    if reading.at < at - spec.max_age:
        return f"stale: {(at - reading.at).total_seconds():.0f} s old, {spec.max_age.total_seconds():.0f} s allowed"
    if reading.at > at + spec.max_ahead:
        return f"from the future: {(reading.at - at).total_seconds():.0f} s ahead"
    if reading.partitions is not None and reading.partitions < 1:
        return f"not a reading: {reading.partitions} partitions"
    return None


def _past(spec: ClusterSpec, past: tuple[Observation, ...], observation: Observation) -> tuple[Observation, ...]:
    oldest = observation.at - spec.lookback
    start = 0
    while start < len(past) and past[start].at < oldest:
        start += 1
    kept = [*past[start:], observation]
    if not spec.looks_back:
        _drop_values(kept, observation.at - spec.capacity.sustained)
    return tuple(kept)


def _drop_values(kept: list[Observation], begin: datetime) -> None:
    """Drop the readings that nothing uses from old observations: they are most of an observation's memory.

    Capacity is learned from the observations since `begin` and the last one before it, so these keep their readings.
    Older ones only keep readings that have a number of partitions, which counts while the log cannot be read. The loop
    ends at an observation without other readings, as all older ones are without them too.
    """
    index = len(kept) - 2
    while index > 0 and kept[index].at > begin:
        index -= 1
    while index > 0:
        index -= 1
        seen = kept[index]
        if not seen.metrics:
            break
        read = {name: reading for name, reading in seen.metrics.items() if reading.partitions}
        if len(read) == len(seen.metrics):
            break
        kept[index] = _create_observation(  # once in each step: `replace` takes five times as long
            at=seen.at,
            desired=seen.desired,
            ready=seen.ready,
            metrics=read or _NO_ENTRIES,
            missing=seen.missing or _NO_ENTRIES,
            engine=seen.engine,
            floor=seen.floor,
            ceiling=seen.ceiling,
            remarks=seen.remarks,
            controls=seen.controls,
        )


def _watched_since(spec: ClusterSpec, state: ClusterState, at: datetime) -> datetime:
    """Since when the cluster has been watched; after a gap the time starts again.

    A lost tick is not a gap, nor is a time within both `max_age` and a tenth of the window. Steps whose input could not
    be trusted do not count as watched: the gap begins at the last trusted proposal.
    """
    if state.watched_since is None or not state.proposals:
        return at
    gap = at - state.proposals[-1].at
    seen = gap <= spec.interval or gap <= max(spec.interval * _GAP, min(spec.max_age, spec.down.window / 10))
    return state.watched_since if seen else at
