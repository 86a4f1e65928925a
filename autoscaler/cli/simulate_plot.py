"""The timeline of a simulation as a picture: rates, workers, delay, with the changes of size marked."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from autoscaler.cli.configuration import wrong
from autoscaler.core.model import Decision
from autoscaler.ports import AutoscalerError
from autoscaler.simulation.loop import Run
from autoscaler.simulation.plant import START, STEP
from autoscaler.simulation.scoring import ages, needed

if TYPE_CHECKING:
    from autoscaler.cli.simulate_setup import Setup

_OFFERED, _DONE, _WORKERS, _NEEDED, _LATE = "#7f8c8d", "#2471a3", "#1e8449", "#212f3d", "#c0392b"
_UP, _DOWN = "#d35400", "#6c3483"


def check(path: Path) -> None:
    """Make sure, before anything takes long, that a picture can be drawn into this file.

    Raises:
        AutoscalerError: matplotlib is not installed.
        ConfigurationError: the file has no folder, or is no PNG.
    """
    if find_spec("matplotlib") is None:
        raise AutoscalerError("--plot needs matplotlib: pip install 'reactive-autoscaler[plot]'")
    if path.suffix.lower() != ".png":
        raise wrong(f"--plot {path}: is no PNG file, expected a name that ends with .png")
    if not path.absolute().parent.is_dir():
        raise wrong(f"--plot {path}: there is no folder {path.parent}")


def draw(prepared: Setup, run: Run, rescales: Sequence[Decision], path: Path) -> None:
    """Draw a run into a PNG file.

    Raises:
        AutoscalerError: the file cannot be written.
    """
    import matplotlib as mpl  # noqa: PLC0415 - it belongs to an extra

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only after the backend was chosen
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    track, load, plant = run.track, run.load, run.plant
    hours = [step * STEP / 3600 for step in range(len(track.arrivals))]
    figure, (rates, workers, delay) = plt.subplots(
        3, 1, figsize=(11, 8), sharex=True, height_ratios=(2, 2, 1.6), layout="constrained"
    )
    for axes in (rates, workers, delay):
        axes.grid(color="#e5e8e8", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)

    offered = [records / STEP for records in track.arrivals]
    able = [run.rate_per_worker * size**plant.gamma for size in track.running]
    rates.fill_between(hours, offered, step="post", color=_OFFERED, alpha=0.25, linewidth=0)
    rates.step(hours, offered, where="post", color=_OFFERED, linewidth=1, label="offered")
    rates.step(hours, able, where="post", color=_DONE, linewidth=1.5, label="what the workers can process")
    rates.set_ylabel("records/s")
    rates.set_ylim(bottom=0)

    workers.fill_between(hours, track.billed, step="post", color=_WORKERS, alpha=0.25, linewidth=0)
    workers.step(hours, track.billed, where="post", color=_WORKERS, linewidth=1.5, label="paid for")
    workers.step(
        hours,
        needed(track.arrivals, run.rate_per_worker, plant.gamma),
        where="post",
        color=_NEEDED,
        linewidth=1,
        linestyle=":",
        label="needed at the moment",
    )
    workers.axhline(prepared.static, color=_NEEDED, linewidth=0.8, linestyle="--", label="always the same size")
    workers.set_ylabel("workers")
    workers.set_ylim(bottom=0)
    workers.yaxis.set_major_locator(MaxNLocator(integer=True))

    delay.step(hours, ages(track.arrivals, track.position), where="post", color=_LATE, linewidth=1.2)
    delay.axhline(plant.slo, color=_LATE, linewidth=1, linestyle=":")
    delay.annotate(
        f"objective {plant.slo:g} s", (hours[-1], plant.slo), ha="right", va="bottom", fontsize=8, color=_LATE
    )
    delay.set_ylabel("age of the oldest\nrecord, seconds")
    delay.set_ylim(bottom=0)
    delay.set_xlabel("hours")
    delay.set_xlim(0, len(hours) * STEP / 3600)
    for axes in (rates, workers):
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, frameon=False, ncols=3, fontsize=9)
    for decision in rescales:
        at = (decision.at - START).total_seconds() / 3600
        color = _UP if decision.desired > decision.current else _DOWN
        workers.plot([at], [decision.desired], "^" if color == _UP else "v", color=color, markersize=5)

    score = run.score()
    figure.suptitle(
        f"{prepared.spec.name} under {load.name}: {score.cost:.1f} worker-hours, {score.violation:.2%} of the time "
        f"too late, {score.rescales} changes of size",
        fontsize=12,
        fontweight="bold",
    )
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise AutoscalerError(f"--plot {path}: cannot be written: {error}") from error
    finally:
        plt.close(figure)
