"""The picture of both runs of a batch job, side by side on the same axes. Needs matplotlib (extra plot)."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Any

# This import comes first: if matplotlib is missing, its error says how to install it.
from autoscaler.plot_style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, filled_steps, legend, save, timelines  # isort: skip
from matplotlib.ticker import MaxNLocator

from autoscaler.demo.spark_batch.result import BatchRun
from autoscaler.injob.batch_plot import levels
from autoscaler.injob.batch_stages import Stage

SHORTEST = 1.0
"""The minimum duration in seconds of a stage that the picture shows."""


def draw(elastic: BatchRun, fixed: BatchRun, path: Path) -> None:
    """Draw the runs into a PNG file.

    Raises:
        OSError: the file cannot be written.
    """
    figure, columns = timelines((1.4, 1, 1.2, 2.2), columns=2)
    titles = ("the autoscaler, policy batch", "Spark's defaults, fixed size")
    for place, (run, title) in enumerate(zip((elastic, fixed), titles, strict=True)):
        tasks, pending, workers, stages = columns[:, place]
        tasks.set_title(
            f"{title}: {run.worker_seconds:.0f} worker-seconds in {run.time:.0f} s", fontsize=11, pad=24, loc="left"
        )
        _draw_tasks(run, tasks, pending)
        _draw_workers(run, workers)
        _draw_stages(run, stages)
        stages.set_xlabel("seconds since the job began")
    names = ("tasks", "tasks", "workers", "stage: its tasks, what it is of")
    for axes, name in zip(columns[:, 0], names, strict=True):
        axes.set_ylabel(name)
    columns[0, 0].set_xlim(0, 1.02 * max(elastic.time, fixed.time))
    for row in columns[:3]:
        top = max(axes.get_ylim()[1] for axes in row)
        for axes in row:
            axes.set_ylim(0, top)
            axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    title = "The same batch job twice; stages that read shuffles are blue. A row costs a call to a service, and no CPU"
    save(figure, path, title)


def _draw_tasks(run: BatchRun, running: Any, pending: Any) -> None:  # noqa: ANN401 - matplotlib has no types
    submitted = [stage for stage in run.application.stages if stage.submitted is not None]
    slots = [(each.added, each.removed, each.slots) for each in run.application.executors]
    at, have = levels(slots, run.began, run.ended)
    times, count = levels([(*span, 1) for stage in submitted for span in stage.task_times], run.began, run.ended)
    # A slot starts its next task some milliseconds before the driver learns that the previous one ended.
    limits = [have[bisect_right(at, time) - 1] for time in times]
    filled_steps(running, times, [min(pair) for pair in zip(count, limits, strict=True)], BLUE, "running tasks")
    running.step(at, have, where="post", color=BLACK, linewidth=1.3, linestyle="--", label="slots")
    legend(running)
    # A task waits from the start of its stage to its own start.
    waiting = [(stage.submitted or 0.0, began, 1) for stage in submitted for began, _ in stage.task_times]
    filled_steps(pending, *levels(waiting, run.began, run.ended), GREY, "pending tasks")
    legend(pending)


def _draw_workers(run: BatchRun, axes: Any) -> None:  # noqa: ANN401
    spans = [(at, None, count - before) for (at, count), before in zip(run.workers, _before(run), strict=True)]
    filled_steps(axes, *levels(spans, run.began, run.ended), GREEN, "worker processes")
    axes.set_ylim(top=1.8 * axes.get_ylim()[1])  # room for the requests
    shown = [rescale for rescale in run.rescales if 0 <= rescale.at <= run.time]
    for number, rescale in enumerate(shown):
        color = ORANGE if rescale.to > rescale.before else PURPLE
        axes.axvline(rescale.at, color=color, linewidth=1.1, linestyle=":")
        # Vary the height, so that the labels of requests in quick succession do not overlap.
        text, height = f" {rescale.before}→{rescale.to}", 1.0 - 0.15 * (number % 3)
        place = {"xycoords": ("data", "axes fraction"), "va": "top"}
        axes.annotate(text, (rescale.at, height), color=color, fontsize=8, fontweight="bold", **place)
    legend(axes)


def _before(run: BatchRun) -> list[int]:
    return [0, *(count for _, count in run.workers[:-1])]


def _draw_stages(run: BatchRun, axes: Any) -> None:  # noqa: ANN401
    shown = [stage for stage in run.application.stages if _length(stage, run) >= SHORTEST]
    for place, stage in enumerate(shown):
        began, length = (stage.submitted or 0.0) - run.began, _length(stage, run)
        axes.barh(place, length, left=began, color=BLUE if stage.shuffle_read_bytes else ORANGE, height=0.7)
        text, right = f"{stage.label}: {stage.tasks}, {stage.name}", began > run.time / 2
        axes.annotate(
            text,
            (began if right else began + length, place),
            xytext=(-4 if right else 4, 0),
            textcoords="offset points",
            ha="right" if right else "left",
            va="center",
            fontsize=8,
        )
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_yticks([])


def _length(stage: Stage, run: BatchRun) -> float:
    return 0.0 if stage.submitted is None else (run.ended if stage.ended is None else stage.ended) - stage.submitted
