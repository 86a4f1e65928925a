"""What the profile of a cluster is computed from: its minutes and its rescales.

A minute summarizes the observations of one minute: however often a cluster was observed, it has at most as many rows as
minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

GAP = 3
"""A pause between two observations of this many usual intervals is a gap; nothing is assumed about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minutes:
    """Minutes of one cluster, in order of time: equally long columns, NaN where nothing is known.

    Attributes:
        minute: minutes since 1970. A rate that is a mean over an interval counts for the middle of the interval.
        observations: their number.
        first, last: the times of the first and the last of them, seconds since 1970.
        least, most: the least and greatest size, of desired and ready replicas.
        paid: replicas, mean.
        arrivals, throughput, utilization, lag: means.
        late: share of the observations in which the oldest record was older than the objective.
        behind: share in which the job was saturated and lag grew.
        stopped: share in which the job was not running.
        running_since: when the job last began to run, seconds since 1970.
        slots, partitions: of the engine.
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
        """The hours that each minute stands for: until the next one, but no longer than usual."""
        every = self.every
        if not len(self.minute):
            return self.minute
        until = np.append(np.diff(self.minute), every)
        return np.where(until > GAP * every, every, until) / 60.0

    @property
    def every(self) -> float:
        """The usual distance of two rows, in minutes; at least 1."""
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
