"""Offered loads: read from CSV files, or synthetic, from shape parameters and a seed.

A load is a list of rates, one for each step of the plant. Named loads are synthetic (`SYNTHETIC`), or parts of recorded
traces (`RECORDED`). These traces are third-party research data, read from a directory that the user names.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random

from autoscaler.simulation.plant import STEP, work

HEADER = ("t_seconds", "value")
"""The first line of a file with a load."""

PEAK_WORKERS = 16
"""This many workers at 100 % process the maximum of a load."""

HOUR = 3600.0
DAY = 24.0

MOST_SECONDS = 366 * DAY * HOUR
"""The length of the longest load, in seconds."""

Point = tuple[float, float]


class LoadError(ValueError):
    """A load cannot be read or made; the message has the place and the expected value."""


@dataclass(frozen=True, slots=True)
class Load:
    """An offered rate over time.

    Attributes:
        name: its name in tables and files.
        rates: records/s, the mean of each step of `STEP` seconds.
        changes: seconds from the beginning at which the rate jumps, ascending and within the load: the time to converge
            begins at each of them.
        rate_per_worker: records/s that one worker processes, above 0; None: `PEAK_WORKERS` of them process the peak.
    """

    name: str
    rates: tuple[float, ...]
    changes: tuple[float, ...] = ()
    rate_per_worker: float | None = None

    def __post_init__(self) -> None:
        if self.rate_per_worker is not None and not (math.isfinite(self.rate_per_worker) and self.rate_per_worker > 0):
            raise LoadError(f"{self.name}: the rate per worker is {self.rate_per_worker}/s, expected above 0")
        if not self.rates:
            raise LoadError(f"{self.name}: has no step, expected at least {STEP:g} s")
        for step, rate in enumerate(self.rates):
            if not (math.isfinite(rate) and rate >= 0):
                raise LoadError(f"{self.name}: step {step} is {rate}, expected a rate of 0 or more")
        for before, change in pairwise([0.0, *self.changes, self.seconds]):
            if not before < change:
                raise LoadError(f"{self.name}: jumps at {self.changes}, expected in order within {self.seconds:g} s")

    @property
    def peak(self) -> float:
        """The greatest rate of a step, records/s."""
        return max(self.rates)

    @property
    def seconds(self) -> float:
        """The length of the load in seconds."""
        return len(self.rates) * STEP

    def scaled(self, peak: float) -> Load:
        """The same shape with another peak."""
        if not (math.isfinite(peak) and peak > 0):
            raise LoadError(f"{self.name}: the peak is {peak}, expected above 0")
        now = self.peak
        if not now:
            raise LoadError(f"{self.name}: is 0 throughout and cannot be scaled to a peak")
        return replace(self, rates=tuple([rate / now * peak for rate in self.rates]))

    def per_worker(self, exponent: float) -> float:
        """Records/s of one worker; n of them do n^exponent times as much."""
        if self.rate_per_worker is not None:
            return self.rate_per_worker
        if not self.peak:
            raise LoadError(f"{self.name}: is 0 throughout: set the rate per worker")
        return self.peak / work(PEAK_WORKERS, exponent)


# Reading


def read_points(path: Path) -> list[Point]:
    """The points of a CSV file with the header `t_seconds,value`: seconds, strictly increasing, and a rate or count.

    Raises:
        LoadError: as `file:line: message`.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _points(path, csv.reader(file))
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise LoadError(f"{path}: is not UTF-8: {error.reason} at byte {error.start}") from error
    except csv.Error as error:
        raise LoadError(f"{path}: is not a CSV file: {error}") from error


def _points(path: Path, rows: Iterable[Sequence[str]]) -> list[Point]:
    points: list[Point] = []
    line = 0
    for line, row in enumerate(rows, 1):
        if line == 1:
            if tuple(cell.strip() for cell in row) != HEADER:
                raise LoadError(f"{path}:1: is {','.join(row)!r}, expected the header {','.join(HEADER)}")
            continue
        if not row:
            continue
        if len(row) != len(HEADER):
            raise LoadError(f"{path}:{line}: has {len(row)} columns, expected {' and '.join(HEADER)}")
        at, value = (_number(path, line, *cell) for cell in zip(HEADER, row, strict=True))
        if value < 0:
            raise LoadError(f"{path}:{line}: value: is {row[1].strip()}, expected 0 or more")
        if points and at <= points[-1][0]:
            raise LoadError(f"{path}:{line}: t_seconds: is {at:g} after {points[-1][0]:g}, expected to increase")
        points.append((at, value))
    if not line:
        raise LoadError(f"{path}:1: is empty, expected the header {','.join(HEADER)}")
    if not points:
        raise LoadError(f"{path}:{line}: has no line after the header, expected two or more")
    return points


def _number(path: Path, line: int, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise LoadError(f"{path}:{line}: {name}: is {text.strip()!r}, expected a number")
    return number


def resample(points: Sequence[Point], begin: float = 0.0, seconds: float | None = None) -> tuple[float, ...]:
    """The mean of each step of `STEP` seconds, interpolated linearly between the points.

    The mean, not a sample: a trace with a point each second keeps all its records. The points are (seconds, value),
    with strictly increasing seconds. `begin` and `seconds` (None: to the end) select a part of them. An incomplete step
    at the end is dropped.
    """
    until = points[-1][0] if points else begin
    end = until if seconds is None else begin + seconds
    if not points or begin < points[0][0] or end > until or end - begin < STEP:
        have = f"{points[0][0]:g} to {until:g} s" if points else "nothing"
        raise LoadError(f"{begin:g} to {end:g} s were requested, the trace has {have}, and a step takes {STEP:g} s")
    if end - begin > MOST_SECONDS:
        raise LoadError(
            f"{begin:g} to {end:g} s is longer than the {MOST_SECONDS / HOUR / DAY:g} days that can be simulated: "
            "are the times in seconds?"
        )
    steps = int((end - begin) / STEP + 1e-9)
    rates: list[float] = []
    at = 0  # the current piece
    left = begin
    for number in range(1, steps + 1):
        right = min(begin + number * STEP, until)
        area = 0.0
        while left < right:
            while points[at + 1][0] <= left:
                at += 1
            (t0, v0), (t1, v1) = points[at], points[at + 1]
            edge = min(right, t1)
            middle = (left + edge) / 2
            area += (v0 + (v1 - v0) * (middle - t0) / (t1 - t0)) * (edge - left)
            left = edge
        rates.append(area / STEP)
    return tuple(rates)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A part of a recorded trace.

    Attributes:
        file: the name of the file in the folder.
        begin: the hour at which the part begins.
        hours: the length of the part; None: to the end.
        minus: subtracted from every value; a result below 0 becomes 0.
    """

    file: str
    begin: float = 0.0
    hours: float | None = None
    minus: float = 0.0


RECORDED: Mapping[str, Recorded] = {
    "traffic7h": Recorded("daedalus_traffic_1s_7h.csv"),
    "ysb6h": Recorded("daedalus_ysb_ads_1s_6h.csv"),
    "sine6h": Recorded("daedalus_sine_1s_6h.csv"),
    "ads18h": Recorded("demeter_ads_5s_18h.csv"),
    "cars18h": Recorded("demeter_cars_5s_18h.csv"),
    "matchday24h": Recorded("wc98_1min_1d_matchday.csv"),
    "elb24h": Recorded("aws_elb_requests_5min_14d.csv", 3 * DAY, 24),
    "taxi48h": Recorded("nyc_taxi_30min_7mo.csv", 60 * DAY, 48),
    "retail24h": Recorded("retailrocket_clicks_5min_21d.csv", 1 * DAY, 24, 84_000),
    "aapl12h": Recorded("twitter_aapl_5min_55d.csv", 770, 12),
}
"""Scenarios on recorded traces, by name. Files: dos-group/daedalus (dsp_jobs), dos-group/demeter (datasets),
numenta/NAB (nyc_taxi, ec2 and Twitter volumes), dos-group/load-prediction-dsp and nimamahmoudi/worldcup98-dataset on
GitHub, each written as `t_seconds,value`."""


def load_recorded(name: str, folder: Path) -> Load:
    """Read a scenario on a recorded trace from that directory."""
    part = RECORDED[name]
    path = folder / part.file
    points = [(at, max(0.0, value - part.minus)) for at, value in read_points(path)]
    try:
        return Load(name, resample(points, part.begin * HOUR, None if part.hours is None else part.hours * HOUR))
    except LoadError as error:
        raise LoadError(f"{path}: {error}") from error


def from_csv(path: Path) -> Load:
    """The load of a CSV file, from its first point on, named after the file."""
    points = read_points(path)
    try:
        return Load(path.stem, resample(points, points[0][0] if points else 0.0))
    except LoadError as error:
        raise LoadError(f"{path}: {error}") from error


# Shapes, from 0 to 1 of the peak


def _steps(hours: float) -> int:
    return max(1, round(hours * HOUR / STEP))


def noise(rates: Sequence[float], share: float, seed: int, memory: float = 60.0) -> list[float]:
    """Rates times 1 + noise of that standard deviation, never below 0.

    `share` is the standard deviation (0.05 is 5 %), `memory` its time constant in seconds (an AR(1) process); 0: white
    noise.
    """
    if not (math.isfinite(share) and share >= 0 and math.isfinite(memory) and memory >= 0):
        raise LoadError(f"the noise is {share} with a memory of {memory} s, expected 0 or more of both")
    dice = Random(seed)  # noqa: S311 - noise of a simulation, nothing secret
    keeps = math.exp(-STEP / memory) if memory else 0.0
    stirs = math.sqrt(1.0 - keeps * keeps)
    state = dice.gauss(0.0, 1.0)
    found = []
    for rate in rates:
        found.append(rate * max(0.0, 1.0 + share * state))
        state = keeps * state + stirs * dice.gauss(0.0, 1.0)
    return found


def constant(hours: float, level: float = 1.0) -> list[float]:
    """A constant level."""
    return [level] * _steps(hours)


def staircase(stairs: Iterable[tuple[float, float]]) -> tuple[list[float], tuple[float, ...]]:
    """Levels, each for some hours, given as (hours, level); and the seconds at which the level changes."""
    rates: list[float] = []
    changes: list[float] = []
    for hours, level in stairs:
        if rates:
            changes.append(len(rates) * STEP)
        rates += constant(hours, level)
    return rates, tuple(changes)


def sine(hours: float, period: float, low: float) -> list[float]:
    """From `low` to 1 and back in every `period` hours, beginning at the mean."""
    turn = 2 * math.pi * STEP / (period * HOUR)
    middle, height = (1 + low) / 2, (1 - low) / 2
    return [middle + height * math.sin((n + 0.5) * turn) for n in range(_steps(hours))]


def diurnal(hours: float, low: float) -> list[float]:
    """Days with a minimum at 4:00 and a second, lower peak in the evening."""
    rates = []
    for n in range(_steps(hours)):
        hour = (n + 0.5) * STEP / HOUR % DAY
        day = (1 - math.cos(2 * math.pi * (hour - 4) / DAY)) / 2
        late = math.exp(-(((hour - 20.5) / 1.8) ** 2))
        rates.append(day + 0.35 * late)
    top = max(rates)
    return [low + (1 - low) * rate / top for rate in rates]


def spikes(
    base: Sequence[float], count: int, seed: int, height: tuple[float, float], minutes: tuple[float, float]
) -> list[float]:
    """Spikes on top of a base: a quick rise, and an exponential decay.

    Args:
        base: the load without spikes.
        count: the number of spikes; they begin at random times.
        seed: the seed of the random draws.
        height: least and greatest height that is added.
        minutes: shortest and longest time after which a third of a spike is left.
    """
    dice = Random(seed)  # noqa: S311 - the shape of a load, nothing secret
    rates = list(base)
    for _ in range(count):
        begin = dice.randrange(len(rates))
        high = dice.uniform(*height)
        fade = dice.uniform(*minutes) * 60 / STEP
        rise = max(1.0, fade / 10)
        for n in range(begin, min(len(rates), begin + int(6 * fade))):
            since = n - begin
            rates[n] += high * min(1.0, since / rise) * math.exp(-max(0.0, since - rise) / fade)
    return rates


def ramps(hours: float, seed: int, low: float, minutes: tuple[float, float]) -> list[float]:
    """Straight lines of random length between random levels, from `low` to 1."""
    dice = Random(seed)  # noqa: S311 - the shape of a load, nothing secret
    count = _steps(hours)
    rates: list[float] = []
    level = dice.random()
    while len(rates) < count:
        goal = dice.random()
        length = max(1, round(dice.uniform(*minutes) * 60 / STEP))
        rates += [level + (goal - level) * n / length for n in range(length)]
        level = goal
    del rates[count:]
    least, most = min(rates), max(rates)
    spread = (most - least) or 1.0
    return [low + (1 - low) * (rate - least) / spread for rate in rates]


def bursts(hours: float, seed: int, low: float, every: float, lasting: float) -> list[float]:
    """At `low`, with bursts to 1. Pauses and bursts have exponential lengths of mean `every` and `lasting` minutes."""
    dice = Random(seed)  # noqa: S311 - the shape of a load, nothing secret
    count = _steps(hours)
    rates: list[float] = []
    while len(rates) < count:
        for level, mean in ((low, every), (1.0, lasting)):
            rates += [level] * max(1, round(dice.expovariate(1 / (mean * 60)) / STEP))
    return rates[:count]


# Named synthetic loads


STEPS6H = ((1, 0.25), (1, 1.0), (1, 0.25), (0.5, 0.5), (0.5, 0.75), (0.5, 1.0), (0.5, 0.5), (1, 0.1))
"""The step load of the benchmark: (hours, share of the peak)."""


_STEPS6H, _CHANGES = staircase(STEPS6H)

SYNTHETIC: Mapping[str, Callable[[int], list[float]]] = {
    "steps6h": lambda _: _STEPS6H,
    "diurnal24h": lambda seed: noise(diurnal(24, 0.15), 0.05, seed),
    "waves6h": lambda seed: noise(sine(6, 2, 0.08), 0.02, seed),
    "match24h": lambda seed: noise(_match(seed), 0.04, seed + 1),
    "ramps8h": lambda seed: noise(ramps(8, seed, 0.1, (5, 60)), 0.03, seed + 1),
    "bursts12h": lambda seed: noise(bursts(12, seed, 0.3, 60, 15), 0.05, seed + 1),
    "steady12h": lambda seed: noise(constant(12), 0.05, seed),
}
"""The rates of synthetic scenarios by name, each a function of a seed."""


def _match(seed: int) -> list[float]:
    """A day with matches: few visitors most of the time, and crowds within minutes."""
    return spikes([0.25 * rate for rate in diurnal(24, 0.3)], 4, seed, (0.3, 0.8), (15, 50))


SCENARIOS: tuple[str, ...] = (
    *RECORDED,
    *(name for name in SYNTHETIC if name != "waves6h"),  # `sine6h` is such a load already
)
"""The sixteen scenarios of the full benchmark."""


def load_by_name(name: str, seed: int = 0, folder: Path | None = None) -> Load:
    """A scenario by its name.

    Recorded loads need the `folder` of the traces, and do not depend on the seed.
    """
    made = SYNTHETIC.get(name)
    if made is not None:
        # The last digits of sines and powers differ between machines; a load must not.
        rates = tuple([round(rate, 9) for rate in made(seed)])
        return Load(name, rates, _CHANGES if name == "steps6h" else ())
    if name not in RECORDED:
        raise LoadError(f"{name}: is not a load, expected one of {', '.join((*RECORDED, *SYNTHETIC))}")
    if folder is None:
        file = RECORDED[name].file
        raise LoadError(f"{name}: is a recorded trace: use --traces with the directory of {file}")
    return load_recorded(name, folder)
