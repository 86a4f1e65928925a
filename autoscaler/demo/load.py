"""The load: how many records per second are offered, and how many have been offered until a given time.

A load is a step function of time, and the number of records is its integral. Every process that knows when the load
began therefore computes the same number of records.
"""

from __future__ import annotations

import csv
import json
import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

DURATION = 240.0
"""Length of the demo's default load, in seconds."""

CALM, SURGE = 10.0, 46.0
"""The low and high rate of the default load, in records per second."""

# When the surge begins and ends, as fractions of the duration.
_RISE, _FALL = 0.19, 0.60


@dataclass(frozen=True, slots=True)
class Load:
    """A step function of offered rates.

    Attributes:
        steps: pairs of seconds since the beginning, and the rate from then on in records/s; the first is at 0.
        duration: seconds after which no more records are offered.
    """

    steps: tuple[tuple[float, float], ...]
    duration: float

    def __post_init__(self) -> None:
        if not self.steps or self.steps[0][0] != 0:
            raise ValueError("a load begins at 0 seconds")
        if any(after[0] <= before[0] for before, after in pairwise(self.steps)):
            raise ValueError("the times of a load must increase")
        if not all(math.isfinite(rate) and rate >= 0 for _, rate in self.steps):
            raise ValueError("the rates of a load must be 0 or more")
        if not (math.isfinite(self.duration) and self.duration > self.steps[-1][0]):
            raise ValueError(f"the load must last longer than its last step at {self.steps[-1][0]:g} s")

    def rate(self, seconds: float) -> float:
        """Records per second offered at this time."""
        if not 0 <= seconds < self.duration:
            return 0.0
        return self.steps[bisect_right(self.steps, (seconds, math.inf)) - 1][1]

    def offered(self, seconds: float) -> int:
        """Records offered from the beginning until this time."""
        seconds = min(max(seconds, 0.0), self.duration)
        total = 0.0
        for (begin, rate), (end, _) in pairwise((*self.steps, (self.duration, 0.0))):
            total += rate * max(0.0, min(seconds, end) - begin)
        return math.floor(total + 1e-9)

    @property
    def rise(self) -> float | None:
        """When the rate first rises above its initial value; None if it never does."""
        return next((at for at, rate in self.steps if rate > self.steps[0][1]), None)

    @property
    def fall(self) -> float | None:
        """When the rate falls for the last time after it rose; None if it never does."""
        falls = [after[0] for before, after in pairwise(self.steps) if after[1] < before[1]]
        rise = self.rise
        return falls[-1] if rise is not None and falls and falls[-1] > rise else None


def surge(duration: float = DURATION) -> Load:
    """The default load: low, high (it needs three workers), low."""
    return Load(((0.0, CALM), (_RISE * duration, SURGE), (_FALL * duration, CALM)), duration)


def read_load(path: Path, duration: float | None = None) -> Load:
    """Read a load from a CSV file with the columns `t_seconds,value` (records/s from then on).

    Args:
        path: the file; a header line is optional.
        duration: the length of the load; all times are stretched or shortened to fit. Without it, the last value holds
            as long as the previous step.

    Raises:
        ValueError: the file is wrong; the message says what and in which line.
        OSError: the file cannot be read.
    """
    steps: list[tuple[float, float]] = []
    with path.open(newline="") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if not row or (number == 1 and row[0].strip() == "t_seconds"):
                continue
            try:
                at, rate = (float(field) for field in row)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: expected t_seconds,value, not {','.join(row)!r}") from error
            steps.append((at, rate))
    if not steps:
        raise ValueError(f"{path}: is empty, expected lines t_seconds,value")
    last = steps[-1][0]
    length = last + (last - steps[-2][0] if len(steps) > 1 else DURATION)
    try:
        load = Load(tuple(steps), length)
        return load if duration is None else stretch(load, duration)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def stretch(load: Load, duration: float) -> Load:
    """The same load with the same rates over another duration."""
    factor = duration / load.duration
    return Load(tuple((at * factor, rate) for at, rate in load.steps), duration)


class Clock:
    """The load and its start, read from a file that is written once. Before that, no records are offered."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[float, Load] | None = None

    def offered(self) -> int:
        """Records offered until now."""
        if self._known is None:
            try:
                content = json.loads(self._path.read_text())
            except FileNotFoundError:
                return 0
            steps = tuple((at, rate) for at, rate in content["steps"])
            self._known = content["start"], Load(steps, content["duration"])
        start, load = self._known
        return load.offered(time.time() - start)


def start_clock(path: Path, load: Load, start: float) -> None:
    """Write the clock's file: the load begins at `start` (seconds since 1970)."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"start": start, "steps": load.steps, "duration": load.duration}))
    temporary.replace(path)


def split(total: int, partitions: int) -> list[int]:
    """How many of the first `total` records each partition has if they are assigned round-robin."""
    return [(total + partitions - 1 - number) // partitions for number in range(partitions)]


def admit(start: Sequence[int], head: Sequence[int], most: int) -> list[int]:
    """The end position of a batch in each partition: at most `most` records, in proportion to the waiting records.

    Args:
        start: the position up to which each partition was read.
        head: the end of each partition.
        most: the maximum records of a batch, 1 or more.
    """
    waiting = [end - begin for begin, end in zip(start, head, strict=True)]
    total = sum(waiting)
    if total <= most:
        return list(head)
    shares = [count * most // total for count in waiting]
    # Rounding down leaves less than one record per partition: assign them to the partitions with most waiting records.
    left = most - sum(shares)
    for number in sorted(range(len(waiting)), key=lambda number: shares[number] - waiting[number])[:left]:
        shares[number] += 1
    return [begin + share for begin, share in zip(start, shares, strict=True)]


class BatchSizer:
    """Sizes batches so that each takes about the same time, whatever the number of workers.

    If the batch size were fixed and suited three workers, one worker would take so long for a batch that a growing
    backlog would be seen too late.
    """

    def __init__(self, seconds: float, least: int) -> None:
        """Aim at batches of `seconds`. The first batch has `least` records, and no later batch is limited to fewer."""
        self._seconds = seconds
        self._least = least
        self._rows = least
        self._last: tuple[float, int] | None = None

    def rows(self, now: float) -> int:
        """The maximum number of records of the batch that begins now."""
        if self._last is not None:
            began, admitted = self._last
            # A batch that took all waiting records measures no rate, because the job was waiting for records.
            if admitted >= self._rows and now > began:
                self._rows = max(self._least, round(admitted / (now - began) * self._seconds))
        self._last = None
        return self._rows

    def admitted(self, rows: int, now: float) -> None:
        """Note that a batch of `rows` records begins now."""
        self._last = now, rows
