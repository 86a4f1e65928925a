"""The picture of the benchmark: cost against violation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Imported first, because it reports how to install matplotlib.
from autoscaler.plot_style import BLUE, GREEN, PURPLE, grid, save  # isort: skip
from matplotlib import pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from autoscaler.simulation.baselines import BASELINES
from autoscaler.simulation.benchmark import LOW_VIOLATION, Means
from autoscaler.simulation.plant import PLANTS

GOOD_COST = 1.25
GOOD_VIOLATION = 0.005
"""A policy in this corner is good."""

_POINTS = 72
_HIGH, _WIDE = 9.0, 5.0
"""The height of a label, and the width of a letter, in points."""
_RISES = (-4.0, 5.0, -13.0, 14.0, -22.0, 23.0)
"""The offsets of a label above its point that are tried, the best one first."""

Box = tuple[float, float, float, float]
"""Left, right, bottom, top, in points."""

_LINEAR = 0.001
"""Up to this violation the scale is linear, so that it includes 0."""


def costs(found: Sequence[Means], path: Path) -> None:
    """Draw cost against violation, a panel for each plant and a point for each policy, into a PNG file.

    The means are over all scenarios. Means without an optimum are left out.

    Raises:
        OSError: the file cannot be written.
    """
    plants = list(dict.fromkeys(one.plant for one in found))
    columns = min(len(plants), 2)
    rows = -(-len(plants) // columns)
    figure, table = plt.subplots(
        rows, columns, figsize=(6.6 * columns, 4.9 * rows), squeeze=False, layout="constrained", sharey=True
    )
    panels = list(table.flat)
    most = max([one.violation for one in found] + [10 * LOW_VIOLATION])
    here = [[one for one in found if one.plant == plant and one.cost is not None] for plant in plants]
    for axes, plant, some in zip(panels, plants, here, strict=False):
        _panel(axes, plant, some, most)
    for axes in panels[len(plants) :]:
        axes.set_visible(False)
    scenarios = max(one.of for one in found)
    title = f"Cost against violation, {scenarios} loads: lower left is better (rescales/h beside the name)"
    figure.suptitle(title, fontsize=12, fontweight="bold")
    figure.canvas.draw()  # this computes the positions
    for axes, some in zip(panels, here, strict=False):
        _labels(axes, some)
    save(figure, path, title, dpi=100)


def _panel(axes: Any, plant: str, found: Sequence[Means], most: float) -> None:  # noqa: ANN401 - matplotlib has no types
    axes.set_title(f"{plant}: oldest record at most {PLANTS[plant].slo:g} s", fontsize=11)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=_LINEAR, linscale=0.6)
    axes.set_xlim(0.98, max([one.cost or 0.0 for one in found] + [2.0]) * 1.35)
    axes.set_ylim(-0.0004, most * 1.6)
    ticks = [tick for tick in (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if tick <= axes.get_xlim()[1]]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_locator(FixedLocator([0, 0.001, 0.005, 0.02, 0.1, 0.5]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g} %"))
    axes.yaxis.set_tick_params(labelleft=True)
    grid([axes])
    axes.fill_between([axes.get_xlim()[0], GOOD_COST], -0.0004, GOOD_VIOLATION, color=GREEN, alpha=0.12, linewidth=0)
    axes.set_xlabel("cost / optimum")
    axes.set_ylabel("time beyond the objective")
    for one in found:
        axes.plot(one.cost, one.violation, _marker(one.policy), color=_color(one.policy), markersize=7)


def _labels(axes: Any, found: Sequence[Means]) -> None:  # noqa: ANN401 - matplotlib has no types
    """Label each point at the first free place near it."""
    at = {one.policy: axes.transData.transform((one.cost, one.violation)) * _POINTS / axes.figure.dpi for one in found}
    edge = axes.bbox.x0 * _POINTS / axes.figure.dpi
    taken = [(x - 5, x + 5, y - 5, y + 5) for x, y in at.values()]
    for one in sorted(found, key=lambda one: (one.violation, one.cost or 0.0)):
        color = _color(one.policy)
        text = f"{one.policy} {one.rescales_per_hour:.1f}"
        x, y = at[one.policy]
        wide = _WIDE * len(text)
        place = (8.0, -4.0)
        for right, up in ((side, rise) for rise in _RISES for side in (8.0, -8.0 - wide)):
            box = (x + right, x + right + wide, y + up, y + up + _HIGH)
            if box[0] > edge and not any(_meet(box, other) for other in taken):
                place = (right, up)
                break
        taken.append((x + place[0], x + place[0] + wide, y + place[1], y + place[1] + _HIGH))
        axes.annotate(
            text,
            (one.cost, one.violation),
            place,
            textcoords="offset points",
            fontsize=8.5,
            color=color,
            fontweight="bold" if color == GREEN else "normal",
            arrowprops=None if place[1] == _RISES[0] else {"arrowstyle": "-", "color": color, "linewidth": 0.6},
        )


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


def _color(policy: str) -> str:
    baseline = BASELINES.get(policy)
    if baseline is not None and baseline.oracle:
        return PURPLE
    return BLUE if baseline is not None and baseline.bare else GREEN


def _marker(policy: str) -> str:
    baseline = BASELINES.get(policy)
    return "o" if baseline is None or not baseline.oracle else "^"
