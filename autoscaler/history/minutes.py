"""The input of a cluster's profile: its minutes and its rescales.

A row of `Minutes` summarizes the observations of one minute. A cluster therefore has at most one row per minute,
however often it was observed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

GAP = 3
"""A pause longer than this many usual intervals between observations is a gap. Nothing is assumed about gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minutes:
    """The minutes of one cluster in order of time, as columns of equal length; NaN means unknown.

    Attributes:
        minute: minutes since 1970. A rate that is a mean over an interval counts for the middle of the interval.
        observations: the number of observations.
        first, last: the times of the first and the last observation, seconds since 1970.
        least, most: the minimum and maximum of desired and ready replicas.
        paid: the mean of the replicas paid for.
        arrivals, throughput, utilization, lag: means.
        late: the share of the observations in which the oldest record was older than the objective.
        behind: the share of the observations in which the job was saturated and fell behind.
        stopped: the share of the observations in which the job was not running.
        running_since: when the job last began to run, seconds since 1970.
        slots, partitions: the slots and partitions that the engine reports.
    """

    minute: Numbers
    observations: Numbers
    first: Numbers
    last: Numbers
    least: Numbers
    most: Numbers
    paid: Numbers
    arrivals: Numbers
    throughput: Numbers
    utilization: Numbers
    lag: Numbers
    late: Numbers
    behind: Numbers
    stopped: Numbers
    running_since: Numbers
    slots: Numbers
    partitions: Numbers

    @property
    def hours(self) -> Numbers:
        """The hours that each row stands for: until the next row, or the usual distance if a gap follows."""
        every = self.every
        if not len(self.minute):
            return self.minute
        until = np.append(np.diff(self.minute), every)
        return np.where(until > GAP * every, every, until) / 60.0

    @property
    def every(self) -> float:
        """The usual distance between two rows, in minutes; at least 1."""
        apart = np.diff(self.minute)
        return max(float(np.median(apart)), 1.0) if len(apart) else 1.0


COLUMNS = tuple(column.name for column in fields(Minutes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaled:
    """A row of the table `rescales`; times in seconds."""

    at: float
    before: int
    after: int
    direction: str
    cause: str
    ready_s: float | None = None
    absorbed_s: float | None = None
    stall_s: float | None = None
    caught_up_s: float | None = None
    outcome: str | None = None
    ready_after_s: float | None = None
    stopped_after_s: float | None = None
    stopped_before_s: float | None = None
