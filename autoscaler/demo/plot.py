"""The picture of a run: load and throughput, lag, workers, with the rescales marked. Needs matplotlib (extra plot)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from autoscaler.demo.result import BACKLOG, Run, first_tasks, lags, throughput
from autoscaler.plot_style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, filled_steps, legend, limit, save
from autoscaler.plot_style import timeline as panels


def draw(run: Run, path: Path) -> None:
    """Draw the run into a PNG file.

    Raises:
        OSError: the file cannot be written.
    """
    lag = lags(run)
    end = max(lag[-1][0], run.samples[-1].at if run.samples else 0.0)
    figure, (rates, waiting, workers) = panels((3, 2, 1.6))

    steps = [*run.load.steps, (run.load.duration, 0.0), (end, 0.0)]
    filled_steps(rates, [at for at, _ in steps], [rate for _, rate in steps], GREY, "load: offered records/s")
    done = throughput(run)
    rates.plot(*zip(*done, strict=True), color=BLUE, linewidth=2, label="throughput: processed records/s")
    rates.set_ylabel("records/s")
    rates.set_ylim(bottom=0)

    times, counts = zip(*lag, strict=True)
    waiting.fill_between(times, counts, color=RED, alpha=0.25, linewidth=0)
    waiting.plot(times, counts, color=RED, linewidth=1.8)
    enough = BACKLOG * max(rate for _, rate in run.load.steps)
    limit(waiting, end, enough, f"{BACKLOG:g} s of the highest load")
    waiting.set_ylabel("lag (records waiting)")
    waiting.set_ylim(bottom=0)

    known = [sample for sample in run.samples if sample.desired is not None and sample.ready is not None]
    at = [sample.at for sample in known]
    filled_steps(workers, at, [sample.ready or 0 for sample in known], GREEN, "ready")
    sizes = [sample.desired or 0 for sample in known]
    workers.step(at, sizes, where="post", color=BLACK, linewidth=1.2, linestyle="--", label="requested")
    new = [first for first in first_tasks(run).values() if first > min(first_tasks(run).values())]
    workers.plot(new, [0.12] * len(new), "^", color=GREEN, markersize=7, label="first task of a new worker")
    workers.set_ylabel("workers")
    workers.set_xlabel("seconds since the load began")
    workers.yaxis.set_major_locator(MaxNLocator(integer=True))
    workers.set_ylim(0, max([*sizes, 1]) + 0.6)
    workers.set_xlim(0, end)
    for axes in (rates, workers):
        legend(axes)

    for rescale in run.rescales:
        color = ORANGE if rescale.to > rescale.before else PURPLE
        for axes in (rates, waiting, workers):
            axes.axvline(rescale.at, color=color, linewidth=1.3, linestyle="--")
        text = f" {rescale.before} → {rescale.to}"
        place = {"xycoords": ("data", "axes fraction"), "va": "top"}
        rates.annotate(text, (rescale.at, 1.0), color=color, fontweight="bold", **place)
    account: Any = run.account
    exact = "each exactly once" if account.exact else f"{account.lost} lost, {account.duplicated} duplicated"
    save(figure, path, f"{account.offered} records offered, {account.processed} processed, {exact}")
