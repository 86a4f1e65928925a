"""The picture of a batch application: tasks and slots, workers, stages over time. Needs matplotlib (extra plot)."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

# This import comes first: if matplotlib is missing, its error says how to install it.
from autoscaler.plot_style import BLUE, GREEN, GREY, ORANGE, filled_steps, legend, save, timeline  # isort: skip
from matplotlib.ticker import MaxNLocator

from autoscaler.injob.batch_stages import Application, BatchOptions, parallelism_by_rule

LABELLED = 40
"""The maximum number of stages at which each bar has room for a label."""


def draw(application: Application, options: BatchOptions, path: Path) -> None:
    """Draw the application into a PNG file.

    Raises:
        OSError: the file cannot be written.
    """
    stages = [stage for stage in application.stages if stage.submitted is not None and not stage.streaming]
    spans = [(stage.submitted or 0.0, stage.ended) for stage in stages]
    zero = min((began for began, _ in spans), default=0.0)
    times = [time for stage in stages for span in stage.task_times for time in span] + [
        at for span in spans for at in span
    ]
    end = max((time for time in times if time is not None), default=zero)
    figure, (tasks, workers, bars) = timeline((3, 1, 3))

    slots = [(each.added, each.removed, each.slots) for each in application.executors]
    at, running = levels([(*span, 1) for stage in stages for span in stage.task_times], zero, end)
    slots_at, slot_levels = levels(slots, zero, end)
    # A slot starts its next task some milliseconds before the driver learns that the previous one ended, so the count
    # of running tasks can exceed the slots.
    limits = [slot_levels[bisect_right(slots_at, time) - 1] for time in at]
    filled_steps(tasks, at, [min(pair) for pair in zip(running, limits, strict=True)], BLUE, "running tasks")
    tasks.step(slots_at, slot_levels, where="post", color=GREY, linewidth=1.5, label="slots")
    tasks.set_ylabel("tasks")
    tasks.set_ylim(bottom=0)
    legend(tasks)

    filled_steps(workers, *levels(((began, gone, 1) for began, gone, _ in slots), zero, end), GREEN, "executors")
    workers.set_ylabel("workers")
    workers.set_ylim(bottom=0)

    for axes in (tasks, workers):
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))

    for place, (stage, (began, ended)) in enumerate(zip(stages, spans, strict=True)):
        length = (end if ended is None else ended) - began
        bars.barh(place, length, left=began - zero, color=BLUE if stage.shuffle_read_bytes else ORANGE, height=0.7)
        if len(stages) <= LABELLED:
            rule = parallelism_by_rule(stage, options)
            text = f" {stage.label}: {stage.tasks}" + ("" if rule is None else f" (rule: {rule})")
            bars.text(began - zero + length, place, text, va="center", fontsize=8)
    bars.set_xlim(0, max(1.15 * (end - zero), 0.1))  # room for the last texts
    bars.invert_yaxis()
    bars.set_yticks([])
    bars.set_ylabel("stages: tasks")
    bars.set_xlabel("seconds")
    save(figure, path, f"{application.name}: stages that read shuffles (blue) and others (orange)")


def levels(spans: Iterable[tuple[float, float | None, int]], zero: float, end: float) -> tuple[list[float], list[int]]:
    """Sum the amounts of all spans over time: the times of change, in seconds after `zero`, and the sum from each on.

    A span is (start, end, amount); an end of None means that the span continues. `zero` is the first and `end` the last
    time shown.
    """
    changes: dict[float, int] = defaultdict(int, {zero: 0, end: 0})
    for began, ended, amount in spans:
        changes[max(began, zero)] += amount
        if ended is not None:
            changes[max(ended, zero)] -= amount
    times = sorted(at for at in changes if at <= end)
    return [at - zero for at in times], list(accumulate(changes[at] for at in times))
