"""The picture of a run: load and throughput, lag, workers, with the rescales marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autoscaler.demo.result import BACKLOG, Run, first_tasks, lags, throughput

_LOAD, _DONE, _LAG, _WORKERS = "#7f8c8d", "#2471a3", "#c0392b", "#1e8449"
_UP, _DOWN = "#d35400", "#6c3483"


def draw(run: Run, path: Path) -> None:
    """Draw the run into a PNG file.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    import matplotlib as mpl  # noqa: PLC0415 - it belongs to an extra

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only after the backend was chosen
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    lag = lags(run)
    end = max(lag[-1][0], run.samples[-1].at if run.samples else 0.0)
    figure, (rates, waiting, workers) = plt.subplots(
        3, 1, figsize=(11, 8), sharex=True, height_ratios=(3, 2, 1.6), layout="constrained"
    )
    for axes in (rates, waiting, workers):
        axes.grid(color="#e5e8e8", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)

    steps = [*run.load.steps, (run.load.duration, 0.0), (end, 0.0)]
    times, offered = [at for at, _ in steps], [rate for _, rate in steps]
    rates.fill_between(times, offered, step="post", color=_LOAD, alpha=0.18, linewidth=0)
    rates.step(times, offered, where="post", color=_LOAD, linewidth=1.8, label="load: offered records/s")
    done = throughput(run)
    rates.plot(
        [at for at, _ in done],
        [rate for _, rate in done],
        color=_DONE,
        linewidth=2,
        label="throughput: processed records/s",
    )
    rates.set_ylabel("records/s")
    rates.set_ylim(bottom=0)
    rates.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, frameon=False, ncols=2)

    waiting.fill_between([at for at, _ in lag], [count for _, count in lag], color=_LAG, alpha=0.25, linewidth=0)
    waiting.plot([at for at, _ in lag], [count for _, count in lag], color=_LAG, linewidth=1.8)
    enough = BACKLOG * max(rate for _, rate in run.load.steps)
    waiting.axhline(enough, color=_LAG, linewidth=1, linestyle=":")
    waiting.annotate(
        f"{BACKLOG:g} s of the highest load", (end, enough), ha="right", va="bottom", fontsize=8, color=_LAG
    )
    waiting.set_ylabel("lag (records waiting)")
    waiting.set_ylim(bottom=0)

    told = [sample for sample in run.samples if sample.desired is not None and sample.ready is not None]
    at = [sample.at for sample in told]
    workers.fill_between(at, [sample.ready for sample in told], step="post", color=_WORKERS, alpha=0.25, linewidth=0)
    workers.step(at, [sample.ready for sample in told], where="post", color=_WORKERS, linewidth=2, label="up")
    workers.step(
        at,
        [sample.desired for sample in told],
        where="post",
        color="#212f3d",
        linewidth=1.2,
        linestyle="--",
        label="asked for",
    )
    new = [first for first in first_tasks(run).values() if first > min(first_tasks(run).values())]
    workers.plot(new, [0.12] * len(new), "^", color=_WORKERS, markersize=7, label="a new worker's first task")
    workers.set_ylabel("workers")
    workers.set_xlabel("seconds since the load began")
    workers.yaxis.set_major_locator(MaxNLocator(integer=True))
    workers.set_ylim(0, max([*(sample.desired or 0 for sample in told), 1]) + 0.6)
    workers.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, frameon=False, ncols=3, fontsize=9)
    workers.set_xlim(0, end)

    for rescale in run.rescales:
        color = _UP if rescale.to > rescale.before else _DOWN
        for axes in (rates, waiting, workers):
            axes.axvline(rescale.at, color=color, linewidth=1.3, linestyle="--")
        rates.annotate(
            f" {rescale.before} → {rescale.to}",
            (rescale.at, 1.0),
            xycoords=("data", "axes fraction"),
            va="top",
            color=color,
            fontweight="bold",
        )
    figure.suptitle(_title(run), fontsize=12, fontweight="bold")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _title(run: Run) -> str:
    account: Any = run.account
    exact = "each exactly once" if account.exact else f"{account.lost} lost, {account.duplicated} duplicated"
    return f"{account.offered} records offered, {account.processed} processed, {exact}"
