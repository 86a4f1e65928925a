"""Readings of the recent past: rates and times of past observations, for every decision."""

from __future__ import annotations

import math
from datetime import datetime
from functools import lru_cache
from itertools import pairwise

from autoscaler.policy_api import Observation, Reading
from autoscaler_policies.shared.recommend import LARGEST


@lru_cache(maxsize=16384)  # those of two hundred clusters
def seconds(at: datetime) -> float:
    """Seconds since 1970. Cached, as each reading is used at every tick for a quarter of an hour."""
    return at.timestamp()


def rate(seen: Observation, name: str) -> float | None:
    """A rate or a number of records of an observation, 0 or more; None if it has no valid reading."""
    reading = seen.metrics.get(name)
    if reading is None:
        return None
    value = reading.value
    # By far the most common kind, dozens of times per tick.
    if type(value) is float and 0.0 <= value <= LARGEST:
        return value
    return total_of(reading) if reading.finite() else None


def total_of(reading: Reading) -> float:
    """A rate or a number of records as one finite number, 0 or more: the sum if it has one per replica."""
    value = reading.value
    return min(max(sum(value) if isinstance(value, tuple) else value, 0.0), LARGEST)


def points(
    past: tuple[Observation, ...], name: str, stride: int, polls: int | None = None, begin: float = -math.inf
) -> list[tuple[float, float]]:
    """Past values of a metric, in order of time: (seconds since 1970, records/s).

    Args:
        past: observations, the newest last.
        name: name of the metric.
        stride: every how many polls a value is taken, counted back from the last one.
        polls: how many of the last polls are considered; None: all.
        begin: earliest time, seconds since 1970.
    """
    found = []
    for seen in past[-1 : None if polls is None else -1 - polls : -stride]:
        reading = seen.metrics.get(name)
        if reading is None:
            continue
        value = reading.value
        # Nearly all values pass this test: calling functions for each would take dozens of calls per tick.
        if type(value) is not float or not 0.0 <= value <= LARGEST:
            if not reading.finite():
                continue
            value = total_of(reading)
        at = seconds(reading.at)
        if at < begin:
            break
        found.append((at, value))
    found.reverse()
    return found


def largest_backlog(points: list[tuple[float, float]], capacity: float) -> float:
    """The largest backlog, in records, if `capacity` records/s had been processed and no record had waited before.

    The points are (seconds, records/s) in order of time.
    """
    waiting = largest = 0.0
    for (before, _), (at, value) in pairwise(points):
        waiting = max(waiting + (value - capacity) * (at - before), 0.0)
        largest = max(largest, waiting)
    return largest
