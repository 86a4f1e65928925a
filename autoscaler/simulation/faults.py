"""Faults of a simulation: missing or wrong readings, failing scale calls, failing workers, restarts of the daemon.

Faults have random draws of their own: a plant without faulty workers behaves the same until a decision differs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from enum import StrEnum
from itertools import chain
from random import Random
from typing import Any

from autoscaler.core.durations import format_duration, parse_duration
from autoscaler.core.model import ClusterSpec, ClusterState, Decision, Observation, Reading, Reason
from autoscaler.core.state import call_failed
from autoscaler.plugins import guess
from autoscaler.ports import Record
from autoscaler.simulation.plant import GRID, SHARES, START, Plant, PlantSpec

HOUR = 3600.0
"""Readings are wrong once in this period, in seconds."""

TARGET, ENGINE = "target", "engine"
"""Readings that can be missing besides metrics: the sizes of the target, and the status of the engine."""

MISSING = "not answered (a fault of the simulation)"
REFUSED = "refused (a fault of the simulation)"
UNANSWERED = "done without an answer (a fault of the simulation)"
HALF = "half done (a fault of the simulation)"
RESTARTED = "the daemon was restarted before it saw the scale call confirmed"


class FaultError(ValueError):
    """A fault is unknown or its amount is wrong; the message lists the expected values."""


class FaultKind(StrEnum):
    """How a reading is wrong."""

    MISSING = "missing"  # it cannot be read
    STALE = "stale"  # its value and its time stay the same
    FROZEN = "frozen"  # its value stays the same, but its time advances
    NAN = "nan"  # it is not a number
    DOUBLED = "doubled"  # it is twice what it should be


@dataclass(frozen=True, slots=True)
class ReadingFault:
    """Readings that are wrong once an hour, beginning at a random moment.

    Attributes:
        kind: how the readings are wrong.
        seconds: for how long, at most an hour.
        name: which metric, or `target` or `engine`, which can only be missing; empty: all metrics.
    """

    kind: FaultKind
    seconds: float
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= HOUR:
            raise FaultError(f"{self.kind}: lasts {self.seconds:g} s of every hour, expected above 0s and at most 1h")
        if self.name in (TARGET, ENGINE) and self.kind is not FaultKind.MISSING:
            raise FaultError(f"{self.kind}: of the {self.name}, which can only be missing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong in a simulation. Times are seconds, shares from 0 to 1.

    Attributes:
        readings: readings that are wrong.
        gaps: share of the readings that cannot be read, each metric for itself.
        late: the age of all readings, by their time stamps too; rounded up to polls.
        noise: standard deviation of readings, as a share of each; shares stay at most 1.
        refused: share of the scale calls that fail without effect.
        unanswered: share of the scale calls that fail although they take effect.
        half: share of the scale calls that fail after half of the change, rounded down.
        delayed: the time until a scale call, which is accepted at once, takes effect.
        crash: mean time between two crashes of a worker, 0: the value of the plant.
        slow: share of the new workers that only do `plant.SLOW_WORKER_RATE` of a worker's work.
        never: share of the new workers that are billed and never start.
        restart: the daemon is restarted once in this time, at a random moment between two ticks, 0: never.
    """

    readings: tuple[ReadingFault, ...] = ()
    gaps: float = 0.0
    late: float = 0.0
    noise: float = 0.0
    refused: float = 0.0
    unanswered: float = 0.0
    half: float = 0.0
    delayed: float = 0.0
    crash: float = 0.0
    slow: float = 0.0
    never: float = 0.0
    restart: float = 0.0

    def __post_init__(self) -> None:
        for name in _SHARES:
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise FaultError(f"{name}: is {value:g}, expected a share from 0 to 1")
        for name in ("late", "delayed", "crash", "restart"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise FaultError(f"{name}: is {value:g} s, expected 0 or more")
        calls = self.refused + self.unanswered + self.half
        if calls > 1:
            raise FaultError(
                f"refused, unanswered and half: are {calls:g} of all scale calls together, expected at most 1"
            )

    def applied_to(self, plant: PlantSpec) -> PlantSpec:
        """The plant, with the faults of its workers added."""
        return replace(
            plant,
            crash_every=self.crash or plant.crash_every,
            slow=self.slow or plant.slow,
            never=self.never or plant.never,
        )


_SHARES = ("gaps", "noise", "refused", "unanswered", "half", "slow", "never")

NONE = Faults()
"""Nothing goes wrong."""


# By name


@dataclass(frozen=True, slots=True)
class FaultDescription:
    """A fault by its name.

    Attributes:
        effect: a sentence with `{}` in place of the amount.
        default: the amount, unless another one is given: a duration or a percentage.
    """

    effect: str
    default: str


DESCRIPTIONS: Mapping[str, FaultDescription] = {
    "missing": FaultDescription("metrics (or @target, @engine) cannot be read for {} in every hour", "60s"),
    "stale": FaultDescription("metrics stay as they were, time stamps included, for {} in every hour", "5m"),
    "frozen": FaultDescription("metrics stay as they were, with new time stamps, for {} in every hour", "5m"),
    "nan": FaultDescription("metrics are not a number for {} in every hour", "60s"),
    "doubled": FaultDescription("metrics are twice what they should be for {} in every hour", "60s"),
    "gaps": FaultDescription("{} of the readings are missing, each metric for itself", "5%"),
    "late": FaultDescription("metrics are {} old when they are read", "30s"),
    "noise": FaultDescription("metrics are off by {} (standard deviation)", "5%"),
    "refused": FaultDescription("{} of the scale calls fail", "30%"),
    "unanswered": FaultDescription("{} of the scale calls fail although they are carried out", "30%"),
    "half": FaultDescription("{} of the scale calls fail half way", "30%"),
    "delayed": FaultDescription("scale calls take effect {} later", "60s"),
    "crash": FaultDescription("a worker crashes about every {}", "45m"),
    "slow": FaultDescription("{} of the new workers do 30 % less work than others", "20%"),
    "never": FaultDescription("{} of the new workers never come up", "10%"),
    "restart": FaultDescription("the daemon is restarted once in {}", "1h"),
}
"""The faults by name."""

ALL = "all"
"""Every fault with its default amount."""


def parse(text: str) -> Faults:
    """Read faults like `missing,nan@lag:2m,crash:45m`.

    Each is a name of `DESCRIPTIONS`, or `all`; then optionally `@` and a metric (default: all metrics), and `:` and the
    amount, a duration or a percentage.

    Raises:
        FaultError: all problems, a line each.
    """
    asked = list(
        chain.from_iterable(DESCRIPTIONS if part == ALL else [part] for part in map(str.strip, text.split(",")))
    )
    problems: list[str] = []
    readings: list[ReadingFault] = []
    amounts: dict[str, Any] = {}
    for part in asked:
        try:
            name, metric, amount = _read(part, amounts)
            if name in set(FaultKind):
                readings.append(ReadingFault(FaultKind(name), amount, metric))
            else:
                alone: dict[str, Any] = {name: amount}
                Faults(**alone)
                amounts |= alone
        except FaultError as error:
            problems.append(str(error))
    if problems:
        raise FaultError("\n".join(problems))
    return Faults(readings=tuple(readings), **amounts)


def _read(part: str, before: Container[str]) -> tuple[str, str, float]:
    """The name, the metric and the amount of a fault; `before` are the names that must not be repeated."""
    front, colon, amount = part.partition(":")
    name, at, metric = front.partition("@")
    if name not in DESCRIPTIONS:
        known = ", ".join((*DESCRIPTIONS, ALL))
        raise FaultError(f"{part!r}: {name!r} is not a fault{guess(name, DESCRIPTIONS)}; expected one of {known}")
    if name in before:
        raise FaultError(f"{part!r}: {name} is given twice")
    if at and (name not in set(FaultKind) or not metric):
        raise FaultError(f"{part!r}: expected the name of a metric after @, for one of {', '.join(FaultKind)}")
    default = DESCRIPTIONS[name].default
    try:
        found = _amount(amount if colon else default, share=default.endswith("%"))
    except ValueError as error:
        raise FaultError(f"{part!r}: {error}") from error
    if not found:
        raise FaultError(f"{part!r}: the amount is 0, expected one like {default}")
    return name, metric, found


def _amount(text: str, *, share: bool) -> float:
    if not share:
        return parse_duration(text).total_seconds()
    number, percent, rest = text.partition("%")
    if not (percent and not rest and number.isascii() and number.replace(".", "", 1).isdigit()):
        raise ValueError(f"expected a percentage like 30%, not {text!r}")
    return float(number) / 100


def describe(faults: Faults) -> list[str]:
    """The faults as sentences."""
    sentences = []
    for fault in faults.readings:
        effect = DESCRIPTIONS[fault.kind].effect.replace(" (or @target, @engine)", "")
        if fault.name in (TARGET, ENGINE):
            effect = effect.replace("metrics", f"the {fault.name}")
        elif fault.name:
            effect = f"{fault.name}: {effect}"
        sentences.append(effect.format(_duration(fault.seconds)))
    for item in fields(faults):
        amount = getattr(faults, item.name)
        if item.name != "readings" and amount:
            shown = f"{amount:.0%}" if item.name in _SHARES else _duration(amount)
            sentences.append(DESCRIPTIONS[item.name].effect.format(shown))
    return sentences


def _duration(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))


# At work


def restart_daemon(state: ClusterState) -> ClusterState:
    """The state after a restart of the daemon: it is written and read in the format of the state store.

    A scale call that was not confirmed counts as failed: the new process cannot know whether it took effect.
    """
    # Spark's workers simulate without faults, and pydantic is not installed there.
    from autoscaler.trace.codec import dump_record, dump_state, load_record, load_state  # noqa: PLC0415

    any_decision = Decision(cluster="", at=START, current=0, proposed=0, desired=0, reason=Reason.STEADY)
    past = tuple([load_record(dump_record(Record(seen, any_decision))).observation for seen in state.past])
    state = replace(load_state(dump_state(state)), past=past)
    rescale = state.rescale
    if rescale is not None and not rescale.confirmed and not rescale.error:
        state = call_failed(state, RESTARTED)
    return state


@dataclass(slots=True)
class _Occurrences:
    """One occurrence in every period, at a random place in it; it ends within the period. Times are seconds."""

    period: float
    duration: float
    random: Random
    number: int = -1
    begin: float = -math.inf

    def active(self, now: float) -> bool:
        """Whether an occurrence is in progress. The times of successive calls must not decrease."""
        while (self.number + 1) * self.period <= now:
            self.number += 1
            self.begin = self.number * self.period + self.random.random() * (self.period - self.duration)
        return self.begin <= now < self.begin + self.duration


class Injector:
    """Injects faults between a plant and the decider. The spec has the metrics and the length of a tick.

    Raises:
        FaultError: a fault is about a metric that the cluster does not have.
    """

    def __init__(self, faults: Faults, seed: int, spec: ClusterSpec) -> None:
        known = (*spec.metrics, TARGET, ENGINE)
        for fault in faults.readings:
            if fault.name and fault.name not in known:
                hint = guess(fault.name, known)
                raise FaultError(
                    f"{fault.kind}@{fault.name}: is not a metric of the cluster{hint}; it has {', '.join(known)}"
                )
        self._faults = faults
        self._calls = _random(seed, "calls")
        self._sources = _random(seed, "sources")
        self._shown: deque[tuple[float, Mapping[str, Reading]]] = deque()  # when metrics are visible, and the metrics
        self._readings = [
            _ActiveFault(fault, _Occurrences(HOUR, fault.seconds, _random(seed, f"{number} {fault.kind} {fault.name}")))
            for number, fault in enumerate(faults.readings)
        ]
        tick = spec.interval.total_seconds()
        every = faults.restart
        self._restarts = _Occurrences(every, min(every, tick), _random(seed, "restarts")) if every else None
        self._pending: list[tuple[float, int]] = []  # when delayed sizes take effect

    def restarts(self, now: float) -> bool:
        """Whether the daemon was restarted since the last tick."""
        return self._restarts is not None and self._restarts.active(now)

    def seen(self, observation: Observation, now: float) -> Observation:
        """The observation with the faults of its readings."""
        if self._faults.late:
            observation = self._late(observation, now)
        if self._faults.gaps or self._faults.noise:
            observation = self._imprecise(observation)
        for fault in self._readings:
            observation = fault.seen(observation, now)
        return observation

    def scale(self, plant: Plant, size: int, now: float) -> str | None:
        """Request a size of a plant. Returns the error of the call, if it failed."""
        faults = self._faults
        error = None
        if faults.refused or faults.unanswered or faults.half:
            drawn = self._calls.random()
            if drawn < faults.refused:
                return REFUSED
            if drawn < faults.refused + faults.unanswered:
                error = UNANSWERED
            elif drawn < faults.refused + faults.unanswered + faults.half:
                error = HALF
                size = plant.desired + math.trunc((size - plant.desired) / 2)
        if faults.delayed:
            self._pending.append((now + faults.delayed, size))
        else:
            plant.scale(size)
        return error

    def _late(self, observation: Observation, now: float) -> Observation:
        """The metrics as they were `late` seconds ago. In the first `late` seconds, they are missing."""
        shown = self._shown
        shown.append((now + self._faults.late, observation.metrics))
        while len(shown) > 1 and shown[1][0] <= now:
            shown.popleft()
        at, metrics = shown[0]
        if at > now:
            metrics = {}
        absent = dict.fromkeys(observation.metrics.keys() - metrics.keys(), MISSING)
        return replace(observation, metrics=metrics, missing={**observation.missing, **absent})

    def _imprecise(self, observation: Observation) -> Observation:
        """The metrics with noise, without those that fall into a gap."""
        gaps, noise, dice = self._faults.gaps, self._faults.noise, self._sources
        metrics: dict[str, Reading] = {}
        missing = dict(observation.missing)
        for name, reading in observation.metrics.items():
            # Always draw both, so that one fault does not change the draws of the other.
            gap, off = dice.random() < gaps, max(0.0, 1.0 + noise * (dice.gauss(0.0, 1.0) + GRID - GRID))
            if gap:
                missing[name] = MISSING
            else:
                metrics[name] = _scaled(reading, off, 1.0 if name in SHARES else math.inf)
        return replace(observation, metrics=metrics, missing=missing)

    def apply_delayed(self, plant: Plant, now: float) -> None:
        """Apply the scale calls whose delay is over."""
        while self._pending and self._pending[0][0] <= now:
            plant.scale(self._pending.pop(0)[1])


@dataclass(slots=True)
class _ActiveFault:
    """A fault of readings in a simulation; `kept` has the readings at its beginning, by name."""

    fault: ReadingFault
    occurrences: _Occurrences
    kept: Mapping[str, Reading] | None = None

    def seen(self, observation: Observation, now: float) -> Observation:
        """An observation with this fault."""
        if not self.occurrences.active(now):
            self.kept = None
            return observation
        fault = self.fault
        if fault.name == TARGET:
            return replace(observation, desired=None, ready=None, missing={**observation.missing, TARGET: MISSING})
        if fault.name == ENGINE:
            return replace(observation, engine=None, missing={**observation.missing, ENGINE: MISSING})
        if self.kept is None:
            self.kept = observation.metrics
        metrics, missing = dict(observation.metrics), dict(observation.missing)
        for name, reading in observation.metrics.items():
            if fault.name in ("", name):
                shown = _spoiled(fault.kind, reading, self.kept.get(name))
                if shown is None:
                    del metrics[name]
                    missing[name] = MISSING
                else:
                    metrics[name] = shown
        return replace(observation, metrics=metrics, missing=missing)


def _spoiled(kind: FaultKind, reading: Reading, before: Reading | None) -> Reading | None:
    """A reading with a fault; `before` is the reading when the fault began."""
    match kind:
        case FaultKind.MISSING:
            return None
        case FaultKind.NAN:
            return replace(reading, value=math.nan)
        case FaultKind.DOUBLED:
            return _scaled(reading, 2.0)
        case FaultKind.STALE:
            return before
        case _:
            return None if before is None else replace(before, at=reading.at)


def _scaled(reading: Reading, factor: float, most: float = math.inf) -> Reading:
    """A reading times a factor, but not above `most`."""
    value = reading.value
    if isinstance(value, tuple):
        mean = None if reading.mean is None else min(factor * reading.mean, most)
        return replace(reading, value=tuple([min(factor * part, most) for part in value]), mean=mean)
    return replace(reading, value=min(factor * value, most))


def _random(seed: int, what: str) -> Random:
    """A generator for one kind of fault: a string seeds it the same way on every machine."""
    return Random(f"{seed} {what}")  # noqa: S311 - chance of a simulation, nothing secret
