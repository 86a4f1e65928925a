"""Draws the timeline of a simulation: rates, workers and delay, with the changes of size marked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from autoscaler.cli.configuration import wrong
from autoscaler.cli.simulate_setup import Setup
from autoscaler.core.model import Decision
from autoscaler.plugins import install_hint
from autoscaler.ports import AutoscalerError
from autoscaler.simulation.batch import BatchRun
from autoscaler.simulation.loop import Run
from autoscaler.simulation.plant import START, STEP
from autoscaler.simulation.scoring import ages, needed

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
MOST_TIMES = 10
"""The maximum number of labels on a time axis."""
APART = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080))


def check(path: Path) -> None:
    """Check, before the simulation, that a picture can be drawn into this file.

    Raises:
        AutoscalerError: matplotlib is not installed.
        ConfigurationError: the directory of the file does not exist, or the file is not a PNG.
    """
    if find_spec("matplotlib") is None:
        raise AutoscalerError(f"--plot needs matplotlib: {install_hint('plot')}")
    if path.suffix.lower() != ".png":
        raise wrong(f"--plot {path}: is not a PNG file, expected a name that ends with .png")
    if not path.absolute().parent.is_dir():
        raise wrong(f"--plot {path}: there is no directory {path.parent}")


def draw(prepared: Setup, run: Run, rescales: Sequence[Decision], path: Path) -> None:
    """Draw a run into a PNG file.

    Raises:
        AutoscalerError: the file cannot be written.
    """
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - it belongs to an extra

    from autoscaler import plot_style as style  # noqa: PLC0415 - the same

    track, plant = run.track, run.plant
    hours = [step * STEP / 3600 for step in range(len(track.arrivals))]
    figure, (rates, workers, delay) = style.timeline((2, 2, 1.6))

    style.filled_steps(rates, hours, [records / STEP for records in track.arrivals], style.GREY, "offered")
    capacity = [run.rate_per_worker * size**plant.gamma for size in track.running]
    rates.step(hours, capacity, where="post", color=style.BLUE, linewidth=1.5, label="capacity of the workers")
    rates.set_ylabel("records/s")
    rates.set_ylim(bottom=0)

    style.filled_steps(workers, hours, track.billed, style.GREEN, "billed")
    need = needed(track.arrivals, run.rate_per_worker, plant.gamma)
    dotted = {"color": style.BLACK, "linewidth": 1}
    workers.step(hours, need, where="post", linestyle=":", label="needed at the moment", **dotted)
    workers.axhline(prepared.static, linestyle="--", label="static size", **dotted)
    workers.set_ylabel("workers")
    workers.set_ylim(bottom=0)
    workers.yaxis.set_major_locator(MaxNLocator(integer=True))
    for decision in rescales:
        at = (decision.at - START).total_seconds() / 3600
        up = decision.desired > decision.current
        color = style.ORANGE if up else style.PURPLE
        workers.plot([at], [decision.desired], "^" if up else "v", color=color, markersize=5)

    delay.step(hours, ages(track.arrivals, track.position), where="post", color=style.RED, linewidth=1.2)
    style.limit(delay, hours[-1], plant.slo, f"objective {plant.slo:g} s")
    delay.set_ylabel("age of the oldest\nrecord, seconds")
    delay.set_ylim(bottom=0)
    delay.set_xlim(0, len(hours) * STEP / 3600)
    _label_times(delay, prepared.cluster.time_zone, HOUR, "hours")
    for axes in (rates, workers):
        style.legend(axes)
    score = run.score()
    title = (
        f"{prepared.spec.name} under {run.load.name}: {score.cost:.1f} worker-hours, {score.violation:.2%} of the time "
        f"too late, {score.rescales} changes of size"
    )
    _save(figure, path, title)


def draw_jobs(name: str, time_zone: str, run: BatchRun, path: Path) -> None:
    """Draw a run of a cluster under batch jobs into a PNG file: tasks against slots, and workers.

    Raises:
        AutoscalerError: the file cannot be written.
    """
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - it belongs to an extra

    from autoscaler import plot_style as style  # noqa: PLC0415 - the same

    minutes = [sample.after / 60 for sample in run.samples]
    figure, (tasks, workers) = style.timeline((2, 1.4))
    waiting = [sample.pending + sample.running for sample in run.samples]
    style.filled_steps(tasks, minutes, waiting, style.GREY, "tasks that wait or run")
    style.filled_steps(tasks, minutes, [sample.running for sample in run.samples], style.GREEN, "tasks that run")
    slots = [sample.slots for sample in run.samples]
    tasks.step(minutes, slots, where="post", color=style.BLUE, linewidth=1.5, label="slots")
    tasks.set_ylabel("tasks, slots")
    # The waiting tasks may be a hundred times as many.
    tasks.set_ylim(0, 2 * max((*slots, 1)))
    style.filled_steps(workers, minutes, [sample.billed for sample in run.samples], style.GREEN, "workers, billed")
    workers.set_ylabel("workers")
    workers.set_ylim(bottom=0)
    workers.yaxis.set_major_locator(MaxNLocator(integer=True))
    _label_times(workers, time_zone, MINUTE, "minutes")
    for axes in (tasks, workers):
        style.legend(axes)
    longest = max((seconds for seconds in run.times if seconds is not None), default=0.0)
    _save(figure, path, f"{name}: {run.worker_seconds:.0f} worker-seconds, longest job {longest:.0f} s")


def _label_times(axes: Any, time_zone: str, unit: timedelta, name: str) -> None:  # noqa: ANN401 - matplotlib has no types
    """Label the time axis: in UTC with the units since the beginning, else with the local time."""
    if time_zone == "UTC":
        axes.set_xlabel(name)
        return
    from matplotlib.ticker import MultipleLocator  # noqa: PLC0415 - it belongs to an extra

    begin, end = axes.get_xlim()
    least = (end - begin) * unit / MOST_TIMES
    apart = next((each for each in APART if each >= least), APART[-1])
    zone = ZoneInfo(time_zone)
    axes.xaxis.set_major_locator(MultipleLocator(apart / unit))
    axes.xaxis.set_major_formatter(lambda at, _: f"{(START + at * unit).astimezone(zone):%a %H:%M}")
    axes.set_xlabel(f"time in {time_zone}")


def _save(figure: Any, path: Path, title: str) -> None:  # noqa: ANN401 - matplotlib has no types
    from autoscaler import plot_style as style  # noqa: PLC0415 - it belongs to an extra

    try:
        style.save(figure, path, title)
    except OSError as error:
        raise AutoscalerError(f"--plot {path}: cannot be written: {error}") from error
