"""Families of loads, plants and sources with random parameters, to judge policies on cases that nobody tuned them for.

Each family is one kind of load. Its parameters are drawn from a seed, within the ranges that its function names. The
families are split into those to develop on and those held out for the verdict. The draws of the two differ: a figure
of the held-out families is never about a load that someone has looked at before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from autoscaler.schedulers.flink import FlinkSettings
from autoscaler.simulation.faults import FaultKind, Faults, ReadingFault
from autoscaler.simulation.loads import DAY, HOUR, Load, LoadError, Point, bursts, noise, resample
from autoscaler.simulation.plant import STEP, WINDOW_STEPS, PlantSpec, work

Shape = Callable[[Random, int], Sequence[float]]
"""Draws the rates of a number of steps, in any unit."""

MINUTE = 60 / STEP
"""Steps in a minute."""

Range = tuple[float, float]


def _between(dice: Random, low: float, high: float) -> float:
    """A draw whose logarithm is uniform: as often from 1 to 2 as from 10 to 20."""
    return math.exp(dice.uniform(math.log(low), math.log(high)))


def _noisy(dice: Random, rates: Sequence[float], shares: Range) -> list[float]:
    """Add noise: its standard deviation is a share in the given range, its memory 10 s to 5 min."""
    return noise(rates, dice.uniform(*shares), dice.getrandbits(32), _between(dice, 10, 300))


def season(dice: Random, steps: int) -> list[float]:
    """Two waves with periods of 1 to 6 h and 1/2 or 1/3 of that; minimum 5 to 60 % of the peak; 2 to 12 % noise."""
    period = _between(dice, 1, 6) * HOUR / STEP
    low, second, faster = dice.uniform(0.05, 0.6), dice.uniform(0.0, 0.5), dice.choice((2, 3))
    phases = dice.uniform(0, 2 * math.pi), dice.uniform(0, 2 * math.pi)
    rates = []
    for n in range(steps):
        turn = 2 * math.pi * n / period
        wave = (1 - second) * math.sin(turn + phases[0]) + second * math.sin(faster * turn + phases[1])
        rates.append(low + (1 - low) * (1 + wave) / 2)
    return _noisy(dice, rates, (0.02, 0.12))


def trend(dice: Random, steps: int) -> list[float]:
    """One bent rise, fall, or rise and fall, between 10 to 50 % of the peak and the peak; 2 to 12 % noise."""
    low, bend = dice.uniform(0.1, 0.5), _between(dice, 0.4, 2.5)
    top = dice.choice((0.0, 1.0, dice.uniform(0.25, 0.75)))
    places = [(n + 0.5) / steps for n in range(steps)]
    heights = [at / top if at < top else (1 - at) / (1 - top) for at in places]
    return _noisy(dice, [low + (1 - low) * height**bend for height in heights], (0.02, 0.12))


def shifts(dice: Random, steps: int) -> list[float]:
    """Levels of 10 to 100 % of the peak, each for at least 2 min and 10 to 60 min on average; 1 to 8 % noise."""
    mean = dice.uniform(10, 60)
    rates: list[float] = []
    while len(rates) < steps:
        rates += [dice.uniform(0.1, 1.0)] * round((2 + dice.expovariate(1 / (mean - 2))) * MINUTE)
    return _noisy(dice, rates[:steps], (0.01, 0.08))


def heavy_bursts(dice: Random, steps: int) -> list[float]:
    """Bursts on a constant base, every 15 to 90 min on average; 2 to 10 % noise.

    Their heights (up to 20 times the base) and their lengths (up to an hour) have heavy tails.
    """
    every = dice.uniform(15, 90)
    height, height_tail = dice.uniform(0.5, 1.5), dice.uniform(1.1, 2.5)
    minutes, length_tail = dice.uniform(0.5, 3), dice.uniform(1.1, 2.0)
    rates = [1.0] * steps
    begin = dice.expovariate(1 / every) * MINUTE
    while begin < steps:
        high = min(height * dice.paretovariate(height_tail), 20.0)
        fade = min(minutes * dice.paretovariate(length_tail), 60.0) * MINUTE
        _add(rates, int(begin), high, fade * dice.uniform(0.05, 0.5), fade, 0.0)
        begin += dice.expovariate(1 / every) * MINUTE
    return _noisy(dice, rates, (0.02, 0.10))


def _add(rates: list[float], begin: int, high: float, rise: float, fade: float, stays: float) -> None:
    """Add a linear rise to `high`, and an exponential decay to the share `stays` of it. Times are in steps."""
    for n in range(begin, len(rates)):
        since = n - begin + 1
        left = stays + (1 - stays) * math.exp(-max(0.0, since - rise) / fade)
        rates[n] += high * min(1.0, since / max(rise, 1.0)) * left


def on_off(dice: Random, steps: int) -> list[float]:
    """At the peak for 2 to 20 min on average, at 0 to 30 % of it for 5 to 40 min on average; 1 to 8 % noise."""
    rates = bursts(
        steps * STEP / HOUR,
        dice.getrandbits(32),
        dice.uniform(0.0, 0.3),
        every=dice.uniform(5, 40),
        lasting=dice.uniform(2, 20),
    )
    return _noisy(dice, rates, (0.01, 0.08))


def launches(dice: Random, steps: int) -> list[float]:
    """One to three launches on a constant base; 2 to 10 % noise.

    Each rises within 30 s to 20 min by 1 to 20 times the base, and fades within 10 to 90 min; up to 60 % of it stays.
    """
    rates = [dice.uniform(0.05, 0.3)] * steps
    for _ in range(dice.randint(1, 3)):
        rise, fade = _between(dice, 0.5, 20) * MINUTE, dice.uniform(10, 90) * MINUTE
        _add(rates, int(dice.uniform(0.05, 0.85) * steps), dice.uniform(0.3, 1.0), rise, fade, dice.uniform(0.0, 0.6))
    return _noisy(dice, rates, (0.02, 0.10))


def requests(dice: Random, steps: int) -> list[float]:
    """Single requests to a language model: 0.5 to 8 requests/s on average, in waves of 2 to 8 h.

    The number of tokens of a request has a heavy tail (its logarithm has a standard deviation of 0.5 to 1.5). Blocks of
    5 to 60 s have many requests or hardly any (a gamma distribution of shape 0.3 to 2).
    """
    rate, period = _between(dice, 0.5, 8), dice.uniform(2, 8) * HOUR
    deviation, bursty = dice.uniform(0.5, 1.5), dice.uniform(0.3, 2.0)
    block, depth, phase = _between(dice, 5, 60), dice.uniform(0.1, 0.7), dice.uniform(0, 2 * math.pi)
    tokens = [0.0] * steps
    begin, end = 0.0, steps * STEP
    while begin < end:
        until = min(begin + block, end)
        level = 1 + depth * math.sin(2 * math.pi * begin / period + phase)
        now = rate * level * dice.gammavariate(bursty, 1 / bursty)
        at = begin + dice.expovariate(now) if now > 0 else end
        while at < until:
            tokens[int(at / STEP)] += dice.lognormvariate(0.0, deviation)
            at += dice.expovariate(now)
        begin = until
    return tokens


def silence(dice: Random, steps: int) -> list[float]:
    """A wave with one or two silences of 10 to 90 min, in which nothing arrives; 2 to 10 % noise.

    After a silence, it returns within 5 min to 60 to 140 % of its former level. Its minimum is 40 to 100 % of its peak.
    """
    period, phase, low = _between(dice, 2, DAY) * HOUR / STEP, dice.uniform(0, 2 * math.pi), dice.uniform(0.4, 1.0)
    rates = [low + (1 - low) * (1 + math.sin(2 * math.pi * n / period + phase)) / 2 for n in range(steps)]
    for _ in range(dice.randint(1, 2)):
        begin = int(dice.uniform(0.1, 0.8) * steps)
        back = begin + int(_between(dice, 10, 90) * MINUTE)
        rise, after = dice.uniform(0, 5) * MINUTE, dice.uniform(0.6, 1.4)
        for n in range(begin, steps):
            rates[n] *= 0.0 if n < back else after * min(1.0, (n - back + 1) / max(rise, 1.0))
    return _noisy(dice, rates, (0.02, 0.10))


def recorded(points: Sequence[Point]) -> Shape:
    """Parts of a recorded trace that begin at a random time; the whole trace if it is shorter."""

    def part(dice: Random, steps: int) -> Sequence[float]:
        first, last = points[0][0], points[-1][0]
        seconds = min(steps * STEP, last - first)
        return resample(points, first + dice.random() * (last - first - seconds), seconds)

    return part


FAMILIES: Mapping[str, Shape] = {
    "season": season,
    "trend": trend,
    "shifts": shifts,
    "bursts": heavy_bursts,
    "on-off": on_off,
    "launches": launches,
    "requests": requests,
    "silence": silence,
}
"""The families by name."""

FOLDS: tuple[tuple[str, ...], ...] = (
    ("trend", "requests"),
    ("season", "bursts"),
    ("silence", "shifts"),
    ("launches", "on-off"),
)
"""The families that each split holds out for the verdict: a slow one and a fast one. Each family occurs once."""


def split(fold: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The families to develop on and the held-out families of a split; splits are numbered from 1."""
    kept = FOLDS[fold - 1]
    return tuple([name for name in FAMILIES if name not in kept]), kept


# Plants


@dataclass(frozen=True, slots=True)
class PlantFamily:
    """Ranges of a plant's parameters in seconds; the ranges that all plants share are below."""

    startup: Range
    restart: Range
    flink: bool = False


PLANT_FAMILIES: Mapping[str, PlantFamily] = {
    "pods": PlantFamily((10, 60), (5, 20)),
    "machines": PlantFamily((60, 180), (10, 45)),
    "redeploys": PlantFamily((10, 90), (40, 90)),
    "flink-2": PlantFamily((10, 120), (5, 30), flink=True),  # with its cooldown, stabilization and rescale trigger
}
"""The kinds of plants by name: similar to `k8s`, `ec2`, `redeploy` and `flink-2.3`."""

GAMMA: Range = (0.8, 1.0)
SIGMA: Range = (0.01, 0.08)
TAU: Range = (60, 900)
CHECKPOINT: Range = (5, 120)
MERGE: Range = (0, 60)
IDLE: Range = (0.02, 0.2)
SLO: Range = (0.8, 2.0)
"""The objective as a multiple of the approximate time of a rescale..."""
LEAST_SLO = 60.0
"""... but at least this many seconds."""


def plant(dice: Random, name: str) -> PlantSpec:
    """Draw a plant of a kind. Its objective is such that a rescale leaves a chance to keep it."""
    kind = PLANT_FAMILIES[name]
    startup, restart = round(_between(dice, *kind.startup), 1), round(_between(dice, *kind.restart), 1)
    checkpoint, merge = round(_between(dice, *CHECKPOINT), 1), round(dice.uniform(*MERGE), 1)
    scheduler = FlinkSettings.of("2.3", checkpoint_interval=checkpoint) if kind.flink else None
    waits = merge if scheduler is None else scheduler.stabilization + checkpoint
    takes = startup / 2 + waits + restart + checkpoint
    return PlantSpec(
        startup=startup,
        restart_up=restart,
        restart_down=round(max(restart * dice.uniform(0.6, 1.0), kind.restart[0]), 1),
        checkpoint=checkpoint,
        gamma=round(dice.uniform(*GAMMA), 3),
        sigma=round(dice.uniform(*SIGMA), 4),
        tau=round(_between(dice, *TAU)),
        merge=merge,
        scheduler=scheduler,
        idle=round(dice.uniform(*IDLE), 3),
        slo=round(max(LEAST_SLO, takes * dice.uniform(*SLO))),
    )


def sources(dice: Random) -> Faults:
    """Draw the faults of the sources.

    Up to 3 % of the readings are missing; for one plant in three, all readings are missing for 1 to 5 min of every
    hour. Readings are up to 30 s old, and have noise of up to 5 %.
    """
    gaps, late, off = round(dice.uniform(0, 0.03), 4), dice.choice((0.0, 15.0, 30.0)), round(dice.uniform(0, 0.05), 4)
    outage = ReadingFault(FaultKind.MISSING, round(dice.uniform(60, 300)))
    return Faults(gaps=gaps, late=late, noise=off, readings=(outage,) if dice.random() < 1 / 3 else ())


# Samples

WORKERS = (4, 16)
"""The range of the number of workers that process the busiest minute of a load at 100 %."""

RATE: Range = (10, 100_000)
"""The rate of that minute, records/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A load of a family, the plant that processes it, and the faults of the readings.

    Attributes:
        family: the family of the load.
        number: the number of the load in its family, from 0.
        kept: whether it is held out for the verdict.
        plant_family: the kind of the plant.
        load: the offered load.
        plant: how the cluster behaves.
        faults: the faults of the readings.
        cpu: whether `utilization` shows the CPU, which is also busy without records.
        seed: the seed of the simulation.
    """

    family: str
    number: int
    kept: bool
    plant_family: str
    load: Load
    plant: PlantSpec
    faults: Faults
    cpu: bool
    seed: int


def draw(family: str, number: int, seed: int, hours: float, *, kept: bool, shape: Shape | None = None) -> Sample:
    """The sample with a number. Equal arguments give equal samples.

    The kinds of plants take turns, so that any four consecutive loads of a family have all of them.

    Args:
        family: its name; with a `shape`, it may be missing in `FAMILIES`.
        number: the number of the load, from 0.
        seed: the seed of all draws.
        hours: the length of the load.
        kept: whether it is held out for the verdict, which has other draws.
        shape: draws the rates; None: the shape of the family.

    Raises:
        LoadError: nothing arrives.
    """
    dice = Random(f"{seed} {'kept' if kept else 'develop'} {family} {number}")  # noqa: S311 - nothing secret
    rates = (shape or FAMILIES[family])(dice, round(hours * HOUR / STEP))
    busiest = busiest_minute(rates)
    if not busiest:
        raise LoadError(f"{family} {number}: nothing arrives in it")
    kinds = tuple(PLANT_FAMILIES)
    turn = [*FAMILIES, family].index(family)
    name = kinds[(number + turn) % len(kinds)]
    spec = plant(dice, name)
    peak = float(round(_between(dice, *RATE)))
    load = Load(
        f"{family} {number}",
        # The last digits of sines and powers differ between machines; a load must not.
        tuple([round(rate / busiest, 9) * peak for rate in rates]),
        rate_per_worker=peak / work(dice.randint(*WORKERS), spec.gamma),
    )
    return Sample(
        family=family,
        number=number,
        kept=kept,
        plant_family=name,
        load=load,
        plant=spec,
        faults=sources(dice),
        cpu=dice.random() < 0.5,  # noqa: PLR2004 - every second one
        seed=dice.getrandbits(32),
    )


def busiest_minute(rates: Sequence[float]) -> float:
    """The highest mean rate of a minute."""
    width = min(WINDOW_STEPS, len(rates))
    until = list(accumulate(rates, initial=0.0))
    return max(after - before for before, after in zip(until, until[width:], strict=False)) / width
