"""The common style of the pictures. Needs matplotlib (extra plot)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from autoscaler.plugins import install_hint

try:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"pictures need matplotlib: {install_hint('plot')}", name=error.name) from error

# ruff: noqa: ANN401 - matplotlib has no types

GREY, BLUE, GREEN, BLACK, RED = "#7f8c8d", "#2471a3", "#1e8449", "#212f3d", "#c0392b"
ORANGE, PURPLE = "#d35400", "#7d3c98"


def grid(axes: Iterable[Any]) -> None:
    """Draw a light grid behind the data, and no frame at the top and on the right."""
    for each in axes:
        each.grid(color="#e5e8e8", linewidth=0.8)
        each.set_axisbelow(True)
        for side in ("top", "right"):
            each.spines[side].set_visible(False)


def timeline(height_ratios: Sequence[float]) -> tuple[Any, Any]:
    """A figure with stacked panels that share their time axis."""
    figure, axes = plt.subplots(
        len(height_ratios), 1, figsize=(11, 8), sharex=True, height_ratios=height_ratios, layout="constrained"
    )
    grid(axes)
    return figure, axes


def timelines(height_ratios: Sequence[float], columns: int) -> tuple[Any, Any]:
    """A figure with `columns` timelines side by side and one time axis for all; the panels come by row and column."""
    figure, axes = plt.subplots(
        len(height_ratios),
        columns,
        figsize=(8 * columns, 8.5),
        sharex=True,
        height_ratios=height_ratios,
        layout="constrained",
    )
    grid(axes.flat)
    return figure, axes


def legend(axes: Any) -> None:
    """Draw a legend above the panel."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, frameon=False, ncols=3, fontsize=9)


def filled_steps(axes: Any, x: Sequence[float], y: Sequence[float], color: str, label: str) -> None:
    """Draw a filled step function."""
    axes.fill_between(x, y, step="post", color=color, alpha=0.25, linewidth=0)
    axes.step(x, y, where="post", color=color, linewidth=1.5, label=label)


def limit(axes: Any, x: float, y: float, text: str) -> None:
    """Draw a dotted red horizontal line at y, with a label that ends at x."""
    axes.axhline(y, color=RED, linewidth=1, linestyle=":")
    axes.annotate(text, (x, y), ha="right", va="bottom", fontsize=8, color=RED)


def save(figure: Any, path: Path, title: str, dpi: float = 110) -> None:
    """Write a figure with a title into a PNG file. The same data always gives the same bytes.

    Raises:
        OSError: the file cannot be written.
    """
    figure.suptitle(title, fontsize=12, fontweight="bold")
    try:
        figure.savefig(path, dpi=dpi, metadata={"Software": None})
    finally:
        plt.close(figure)
