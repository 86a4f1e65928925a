"""The exact least cost that keeps the delay objective, with all arrivals known in advance.

This is dynamic programming over steps. Cost is a whole number of worker-steps: `backlog[n][c]` is the least backlog
that n workers can have at cost c. Less backlog at the same size and cost is never worse, so nothing is rounded. From i
to j workers the job loses some seconds of work; they are charged at once, even if they are more than a step. Workers
that start are billed before they work. Here workers are requested in time, capacity has no noise, no record is
processed twice, and nothing fails: no policy can be expected to reach this optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.plugins import install_hint
from autoscaler.simulation.loads import Load
from autoscaler.simulation.plant import STEP, PlantSpec

try:
    import numpy as np
    from numpy.lib.stride_tricks import as_strided
except ModuleNotFoundError as error:  # pragma: no cover - tests run with every extra
    raise ModuleNotFoundError(f"the optimum needs numpy: {install_hint('simulate')}", name=error.name) from error

Table = np.ndarray[tuple[int, int], np.dtype[np.float64]]

COARSE = 30.0
"""Default seconds of one step."""

_EXACT = 1e-9
"""A backlog may be too large by this share of all records, because of rounding errors."""


class OptimumError(ValueError):
    """No sequence of sizes keeps the objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An instance of the optimization.

    Attributes:
        arrivals: records that arrive in each step.
        capacity: records that 1, 2, ... workers process in a step.
        lost_up, lost_down: seconds of the new size's work that are lost when workers are added or removed, as a
            share of a step; they may be more than one.
        most: the greatest backlog allowed at the end of each step.
        startup: steps for which a worker is billed before it works.
    """

    arrivals: tuple[float, ...]
    capacity: tuple[float, ...]
    lost_up: float
    lost_down: float
    most: tuple[float, ...]
    startup: int = 0


def problem(load: Load, plant: PlantSpec, largest: int = 24, seconds: float = COARSE) -> Problem:
    """Make the problem of a load on a plant, with median stalls and the reduced capacity after them.

    Incomplete steps at the end, and of a start-up, are dropped. A step has `seconds`, a multiple of the plant's step.
    """
    each = round(seconds / STEP)
    if each < 1 or each * STEP != seconds:
        raise ValueError(f"seconds: is {seconds:g}, expected a multiple of {STEP:g}")
    rate_per_worker = load.per_worker(plant.gamma)
    records = [rate * STEP for rate in load.rates]
    steps = len(records) // each
    arrivals = tuple([sum(records[n * each : (n + 1) * each]) for n in range(steps)])
    cold = (1.0 - plant.cold) * plant.cold_for
    return Problem(
        arrivals=arrivals,
        capacity=tuple([rate_per_worker * size**plant.gamma * seconds for size in range(1, largest + 1)]),
        lost_up=(plant.restart_up + cold) / seconds,
        lost_down=(plant.restart_down + plant.heartbeat + cold) / seconds,
        most=_allowed(records, each, steps, plant.slo),
        startup=int(plant.startup // seconds),
    )


def _allowed(records: Sequence[float], each: int, steps: int, slo: float) -> tuple[float, ...]:
    """Records that arrived within the objective before the end of each step: in a larger backlog some are too old."""
    whole = int(slo // STEP)
    rest = slo / STEP - whole
    found = []
    for number in range(1, steps + 1):
        end = number * each
        begin = max(0, end - whole)
        part = rest * records[begin - 1] if begin else 0.0
        found.append(sum(records[begin:end]) + part)
    return tuple(found)


def optimum(load: Load, plant: PlantSpec, largest: int = 24) -> float:
    """The least cost in worker-hours of the whole load that keeps the plant's objective at every step's end.

    An incomplete step at the end counts with the mean of the others.
    """
    given = problem(load, plant, largest)
    return solve(given) * load.seconds / len(given.arrivals) / 3600


def solve(given: Problem) -> int:
    """The least cost in worker-steps.

    Raises:
        OptimumError: not even the greatest size keeps the objective.
    """
    sizes = len(given.capacity)
    capacity = np.asarray(given.capacity)[:, None]
    lost_up, lost_down = capacity[1:] * given.lost_up, capacity[:-1] * given.lost_down
    slack = _EXACT * max(1.0, sum(given.arrivals))
    # One column for each cost from `base` on. At the beginning any size is possible, and costs nothing.
    base = 0
    backlog = np.zeros((sizes, 1))
    for number, (arrived, most) in enumerate(zip(given.arrivals, given.most, strict=True)):
        best = backlog if not number else _changed(backlog, lost_up, lost_down, given.startup)
        best = np.maximum(best + (arrived - capacity), 0.0)
        best[best > most + slack] = np.inf
        width = best.shape[1]
        # One more worker costs one more: each row is one column further right.
        backlog = np.full((sizes, width + sizes - 1), np.inf)
        _slanted(backlog, width, 1)[:] = best
        backlog, cut = _narrowed(backlog)
        if not backlog.shape[1]:
            raise OptimumError(f"step {number}: not even {sizes} workers keep the objective")
        base += 1 + cut
    return base


def _changed(backlog: Table, lost_up: Table, lost_down: Table, startup: int) -> Table:
    """The least backlog of each size and cost after a change of size or no change, with the work that a change loses.

    Of all smaller sizes before, or all larger ones, only the least backlog counts: the loss is the same for all.
    """
    sizes, width = backlog.shape
    reach = startup * (sizes - 1)
    best = np.full((sizes, width + reach), np.inf)
    best[:, :width] = backlog
    if sizes == 1:
        return best
    # Going from i to j workers costs (j - i) start-ups: slant the rows so that one column has equal costs.
    slanted = np.full((sizes, width + 2 * reach), np.inf)
    _slanted(slanted, width + reach, -startup)[:] = best
    np.minimum.accumulate(slanted, axis=0, out=slanted)
    fewer = _slanted(slanted, width + reach, -startup, down=1)
    np.minimum(best[1:], fewer + lost_up, out=best[1:])
    more = np.minimum.accumulate(backlog[:0:-1], axis=0)[::-1]
    np.minimum(best[:-1, :width], more + lost_down, out=best[:-1, :width])
    return best


def _slanted(table: Table, width: int, by: int, down: int = 0) -> Table:
    """A view with `width` columns, in which each row begins `by` further right than the row above (left, if negative).

    With `down`, row n of the view is row n of the table at the offset of the next row: the result of one size smaller.
    """
    sizes = table.shape[0]
    row, column = table.strides
    first = max(0, -by * (sizes - 1 - down))
    return as_strided(table[:, first:], (sizes - down, width), (row + by * column, column))


def _narrowed(backlog: Table) -> tuple[Table, int]:
    """Drop the first costs, at which no size is possible, and the last ones, at which none is better.

    Returns the rest, and the number of first costs that were dropped. Paying more for the same backlog is never worth
    it, so each size's backlog decreases with cost.
    """
    np.minimum.accumulate(backlog, axis=1, out=backlog)
    possible = np.isfinite(backlog).any(axis=0)
    if not possible.any():
        return backlog[:, :0], 0
    first = int(possible.argmax())
    better = np.flatnonzero((backlog[:, 1:] < backlog[:, :-1]).any(axis=0))
    last = int(better[-1]) + 1 if better.size else 0
    return backlog[:, first : max(first, last) + 1], first
