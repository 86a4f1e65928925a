"""Faults of a simulation: readings that are missing or wrong, scale calls that fail, workers that do, restarts of us.

What is drawn for them has dice of its own: without faults of its workers a plant does the same as ever, until a
decision is another one.
"""

from __future__ import annotations

import math
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
from autoscaler.simulation.plant import START, Plant, PlantSpec

HOUR = 3600.0
"""Readings are wrong once in so many seconds."""

TARGET, ENGINE = "target", "engine"
"""What can be missing besides metrics: the sizes that the target shows, and all that the engine does."""

MISSING = "not answered (a fault of the simulation)"
REFUSED = "refused (a fault of the simulation)"
UNANSWERED = "done without an answer (a fault of the simulation)"
HALF = "half done (a fault of the simulation)"
RESTARTED = "the daemon was restarted before it saw the scale call confirmed"


class FaultError(ValueError):
    """A fault is unknown or makes no sense; the message says what there is."""


class Wrong(StrEnum):
    """What is wrong with a reading."""

    MISSING = "missing"  # it cannot be read
    STALE = "stale"  # it stays as it was, and its time with it
    FROZEN = "frozen"  # its value stays as it was, and nothing tells
    NAN = "nan"  # it is not a number
    DOUBLED = "doubled"  # it is twice of what it should be


@dataclass(frozen=True, slots=True)
class Spell:
    """Readings that are wrong once an hour, from a moment on that is drawn.

    Attributes:
        wrong: what they are.
        lasting: for how many seconds, at most an hour.
        name: which metric, or `target` or `engine`, which can only be missing; empty: all metrics.
    """

    wrong: Wrong
    lasting: float
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.lasting <= HOUR:
            raise FaultError(f"{self.wrong}: lasts {self.lasting:g} s of every hour, expected above 0s and at most 1h")
        if self.name in (TARGET, ENGINE) and self.wrong is not Wrong.MISSING:
            raise FaultError(f"{self.wrong}: of the {self.name}, which can only be missing")


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong in a simulation. Times are seconds, shares from 0 to 1.

    Attributes:
        spells: readings that are wrong.
        refused: share of the scale calls that fail, and nothing is done.
        unanswered: share of the scale calls that fail although all is done.
        half: share of the scale calls that fail when half of the change is done, rounded to fewer.
        delayed: a scale call is accepted at once and takes effect so much later.
        crash: mean time between two crashes of a worker, 0: as the plant has it.
        slow: share of the new workers that do only `plant.SLOW` of the work of one.
        never: share of the new workers that are billed and never come up.
        restart: the daemon is restarted once in such a time, between two ticks at a moment that is drawn, 0: never.
    """

    spells: tuple[Spell, ...] = ()
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
        for name in ("delayed", "crash", "restart"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise FaultError(f"{name}: is {value:g} s, expected 0 or more")
        calls = self.refused + self.unanswered + self.half
        if calls > 1:
            raise FaultError(
                f"refused, unanswered and half: are {calls:g} of all scale calls together, expected at most 1"
            )

    def worsened(self, plant: PlantSpec) -> PlantSpec:
        """The plant with the faults of its workers."""
        return replace(
            plant,
            crash_every=self.crash or plant.crash_every,
            slow=self.slow or plant.slow,
            never=self.never or plant.never,
        )


_SHARES = ("refused", "unanswered", "half", "slow", "never")

NONE = Faults()
"""Nothing goes wrong."""


# By name


@dataclass(frozen=True, slots=True)
class Named:
    """A fault that has a name.

    Attributes:
        does: what it does, as a sentence for people with `{}` where the amount stands.
        usual: the amount, unless another one is given: a duration or a share in percent.
    """

    does: str
    usual: str


NAMED: Mapping[str, Named] = {
    "missing": Named("metrics (or @target, @engine) cannot be read for {} in every hour", "60s"),
    "stale": Named("metrics stay as they were, time stamps included, for {} in every hour", "5m"),
    "frozen": Named("metrics stay as they were and look fresh for {} in every hour", "5m"),
    "nan": Named("metrics are not a number for {} in every hour", "60s"),
    "doubled": Named("metrics are twice what they should be for {} in every hour", "60s"),
    "refused": Named("{} of the scale calls fail", "30%"),
    "unanswered": Named("{} of the scale calls fail although they are carried out", "30%"),
    "half": Named("{} of the scale calls fail half way", "30%"),
    "delayed": Named("scale calls take effect {} later", "60s"),
    "crash": Named("a worker crashes about every {}", "45m"),
    "slow": Named("{} of the new workers do 30 % less work than others", "20%"),
    "never": Named("{} of the new workers never come up", "10%"),
    "restart": Named("the daemon is restarted once in {}", "1h"),
}
"""The faults that can be asked for, by name."""

ALL = "all"
"""Every one of them, each with its usual amount."""


def parse(text: str) -> Faults:
    """Faults as people write them: `missing,nan@lag:2m,crash:45m`.

    Each is a name of `NAMED`, or `all`; then, where they count, `@` and the metric that it is about (otherwise all
    are), and `:` and the amount, a duration or a percentage.

    Raises:
        FaultError: one of them is unknown or makes no sense. All that is wrong, a line each.
    """
    asked = list(chain.from_iterable(NAMED if part == ALL else [part] for part in map(str.strip, text.split(","))))
    problems: list[str] = []
    spells: list[Spell] = []
    amounts: dict[str, Any] = {}
    for part in asked:
        try:
            name, metric, amount = _read(part, amounts)
            if name in set(Wrong):
                spells.append(Spell(Wrong(name), amount, metric))
            else:
                alone: dict[str, Any] = {name: amount}
                Faults(**alone)
                amounts |= alone
        except FaultError as error:
            problems.append(str(error))
    if problems:
        raise FaultError("\n".join(problems))
    return Faults(tuple(spells), **amounts)


def _read(part: str, before: Container[str]) -> tuple[str, str, float]:
    """The name, the metric and the amount of a fault; `before` are the names that may not come again."""
    front, colon, amount = part.partition(":")
    name, at, metric = front.partition("@")
    if name not in NAMED:
        known = ", ".join((*NAMED, ALL))
        raise FaultError(f"{part!r}: {name!r} is no fault{guess(name, NAMED)}; there are {known}")
    if name in before:
        raise FaultError(f"{part!r}: {name} was given before")
    if at and (name not in set(Wrong) or not metric):
        raise FaultError(f"{part!r}: expected the name of a metric after @, for one of {', '.join(Wrong)}")
    usual = NAMED[name].usual
    try:
        found = _amount(amount if colon else usual, share=usual.endswith("%"))
    except ValueError as error:
        raise FaultError(f"{part!r}: {error}") from error
    if not found:
        raise FaultError(f"{part!r}: the amount is nothing at all, expected one like {usual}")
    return name, metric, found


def _amount(text: str, *, share: bool) -> float:
    if not share:
        return parse_duration(text).total_seconds()
    number, percent, rest = text.partition("%")
    if not (percent and not rest and number.isascii() and number.replace(".", "", 1).isdigit()):
        raise ValueError(f"expected a percentage like 30%, not {text!r}")
    return float(number) / 100


def describe(faults: Faults) -> list[str]:
    """What goes wrong, as sentences for people."""
    told = []
    for spell in faults.spells:
        what = NAMED[spell.wrong].does.replace(" (or @target, @engine)", "")
        if spell.name in (TARGET, ENGINE):
            what = what.replace("metrics", f"the {spell.name}")
        elif spell.name:
            what = f"{spell.name}: {what}"
        told.append(what.format(_duration(spell.lasting)))
    for item in fields(faults):
        amount = getattr(faults, item.name)
        if item.name != "spells" and amount:
            shown = f"{amount:.0%}" if item.name in _SHARES else _duration(amount)
            told.append(NAMED[item.name].does.format(shown))
    return told


def _duration(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))


# At work


def restarted(state: ClusterState) -> ClusterState:
    """The state as a daemon has it that was stopped and started: by way of the texts in which it is kept.

    Whether a scale call that was not seen confirmed has arrived, it cannot know.
    """
    # Where Spark's workers simulate, nothing is installed but what Spark needs, and no daemon restarts.
    from autoscaler.trace.codec import dump_record, dump_state, load_record, load_state  # noqa: PLC0415

    told = Decision(cluster="", at=START, current=0, proposed=0, desired=0, reason=Reason.STEADY)
    past = tuple([load_record(dump_record(Record(seen, told))).observation for seen in state.past])
    state = replace(load_state(dump_state(state)), past=past)
    rescale = state.rescale
    if rescale is not None and not rescale.confirmed and not rescale.error:
        state = call_failed(state, RESTARTED)
    return state


@dataclass(slots=True)
class _Moments:
    """Moments that come once in every period, each at a place in it that is drawn.

    Attributes:
        period: seconds.
        lasting: how long what begins there lasts; it ends within the period.
        dice: what they are drawn with.
        number: of the period that `begin` is in.
        begin: when it begins, seconds.
    """

    period: float
    lasting: float
    dice: Random
    number: int = -1
    begin: float = -math.inf

    def within(self, now: float) -> bool:
        """Whether it lasts now; times must not go back."""
        while (self.number + 1) * self.period <= now:
            self.number += 1
            self.begin = self.number * self.period + self.dice.random() * (self.period - self.lasting)
        return self.begin <= now < self.begin + self.lasting


class Injector:
    """Stands between a plant and what decides, and has the faults happen there.

    Args:
        faults: which.
        seed: of all that is drawn for them.
        spec: the cluster: its metrics, and how long a tick is.

    Raises:
        FaultError: a fault is about a metric that the cluster does not have.
    """

    def __init__(self, faults: Faults, seed: int, spec: ClusterSpec) -> None:
        known = (*spec.metrics, TARGET, ENGINE)
        for spell in faults.spells:
            if spell.name and spell.name not in known:
                hint = guess(spell.name, known)
                raise FaultError(
                    f"{spell.wrong}@{spell.name}: is no metric of the cluster{hint}; it has {', '.join(known)}"
                )
        self._faults = faults
        self._calls = _dice(seed, "calls")
        self._spells = [
            _Spoiled(spell, _Moments(HOUR, spell.lasting, _dice(seed, f"{number} {spell.wrong} {spell.name}")))
            for number, spell in enumerate(faults.spells)
        ]
        tick = spec.interval.total_seconds()
        every = faults.restart
        self._restarts = _Moments(every, min(every, tick), _dice(seed, "restarts")) if every else None
        self._coming: list[tuple[float, int]] = []  # when sizes that were asked for arrive at the target

    def restarts(self, now: float) -> bool:
        """Whether the daemon was restarted since the last tick."""
        return self._restarts is not None and self._restarts.within(now)

    def seen(self, observation: Observation, now: float) -> Observation:
        """What sources show instead of what is."""
        for spoiled in self._spells:
            observation = spoiled.seen(observation, now)
        return observation

    def scale(self, plant: Plant, size: int, now: float) -> str:
        """Ask a plant for a size; returns why the call failed, or the empty text."""
        faults = self._faults
        error = ""
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
            self._coming.append((now + faults.delayed, size))
        else:
            plant.scale(size)
        return error

    def pass_time(self, plant: Plant, now: float) -> None:
        """Have what was delayed until now take effect."""
        while self._coming and self._coming[0][0] <= now:
            plant.scale(self._coming.pop(0)[1])


@dataclass(slots=True)
class _Spoiled:
    """One spell at work.

    Attributes:
        spell: what it does.
        moments: when.
        kept: the readings as it began, by name.
    """

    spell: Spell
    moments: _Moments
    kept: Mapping[str, Reading] | None = None

    def seen(self, observation: Observation, now: float) -> Observation:
        """An observation as it is shown."""
        if not self.moments.within(now):
            self.kept = None
            return observation
        spell = self.spell
        if spell.name == TARGET:
            return replace(observation, desired=None, ready=None, missing={**observation.missing, TARGET: MISSING})
        if spell.name == ENGINE:
            return replace(observation, engine=None, missing={**observation.missing, ENGINE: MISSING})
        if self.kept is None:
            self.kept = observation.metrics
        metrics, missing = dict(observation.metrics), dict(observation.missing)
        for name, reading in observation.metrics.items():
            if spell.name in ("", name):
                shown = _spoiled(spell.wrong, reading, self.kept.get(name))
                if shown is None:
                    del metrics[name]
                    missing[name] = MISSING
                else:
                    metrics[name] = shown
        return replace(observation, metrics=metrics, missing=missing)


def _spoiled(wrong: Wrong, reading: Reading, before: Reading | None) -> Reading | None:
    """A reading as it is shown; `before` is what it was as the spell began."""
    match wrong:
        case Wrong.MISSING:
            return None
        case Wrong.NAN:
            return replace(reading, value=math.nan)
        case Wrong.DOUBLED:
            value = reading.value
            return replace(reading, value=tuple(2.0 * v for v in value) if isinstance(value, tuple) else 2.0 * value)
        case Wrong.STALE:
            return before
        case _:
            return None if before is None else replace(before, at=reading.at)


def _dice(seed: int, what: str) -> Random:
    """Dice of their own: a text seeds them the same way everywhere."""
    return Random(f"{seed} {what}")  # noqa: S311 - chance of a simulation, nothing secret
