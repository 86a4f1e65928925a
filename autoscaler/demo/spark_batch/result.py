"""The figures of two runs of a batch job, and whether they were a success: pure functions of the observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from autoscaler.demo.result import Rescale
from autoscaler.injob.batch_stages import Application, BatchOptions, within_one_power_of_two


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRun:
    """One run of the job. Times are seconds since 1970, but in `rescales` since the job began.

    Attributes:
        application: the stages and executors from the event log.
        began, ended: when the first query was submitted, and when the last query had ended.
        workers: the number of worker processes from each time on, including those that start or drain.
        rescales: the rescales that the daemon requested during the job and after it, with the policy's reasons.
        left: workers above the minimum at the end of the run, some time after the job; None for a fixed size.
        failed_tasks: the number of failed tasks; None if Spark did not report it.
        total: the sum that the driver computed.
        rows: the sorted rows that each query wrote.
    """

    application: Application
    began: float
    ended: float
    workers: Sequence[tuple[float, int]]
    rescales: Sequence[Rescale]
    left: int | None
    failed_tasks: int | None
    total: int
    rows: Mapping[str, Sequence[tuple[Any, ...]]]

    @property
    def time(self) -> float:
        """How long the job took, seconds."""
        return self.ended - self.began

    @property
    def worker_seconds(self) -> float:
        """The total time of worker processes while the job ran, including their start and drain."""
        spans = pairwise((*self.workers, (self.ended, 0)))
        return sum(count * max(0.0, min(to, self.ended) - max(at, self.began)) for (at, count), (to, _) in spans)

    @property
    def executor_seconds(self) -> float:
        """The total time of executors while the job ran; a worker's start before its executor registers is excluded."""
        return sum(
            max(0.0, min(each.removed or self.ended, self.ended) - max(each.added, self.began))
            for each in self.application.executors
        )

    @property
    def task_seconds(self) -> float:
        """The total time of tasks. If every worker were always busy, this would equal the worker-seconds."""
        times = (time for stage in self.application.stages for time in stage.task_times)
        return sum((self.ended if ended is None else ended) - began for began, ended in times)

    @property
    def repeated(self) -> list[str]:
        """The stages that were computed again because shuffle files were lost."""
        return [stage.label for stage in self.application.stages if stage.attempt]


def run_summary(run: BatchRun, options: BatchOptions) -> dict[str, Any]:
    """The figures of one run. They also compare a job that did not follow the rule with the rule of the options."""
    judged = [each for stage in run.application.stages if (each := within_one_power_of_two(stage, options)) is not None]
    return {
        "time_s": round(run.time, 1),
        "worker_seconds": round(run.worker_seconds),
        "executor_seconds": round(run.executor_seconds),
        "task_seconds": round(run.task_seconds),
        "most_workers": max((count for _, count in run.workers), default=0),
        "workers_left": run.left,
        "stages_that_read_shuffles": len(judged),
        "stages_by_the_rule": sum(judged),
        "skewed_partitions": run.application.skewed_partitions,
        "skew_splits": run.application.skew_splits,
        "failed_tasks": run.failed_tasks,
        "repeated_stages": run.repeated,
        "rescales": [{**asdict(each), "at": round(each.at, 1)} for each in run.rescales],
    }


def summary(elastic: BatchRun, fixed: BatchRun, options: BatchOptions) -> dict[str, Any]:
    """The content of the result file."""
    reasons = problems(elastic, fixed)
    return {
        "autoscaler": run_summary(elastic, options),
        "fixed": run_summary(fixed, options),
        "fewer_worker_seconds": round(1 - elastic.worker_seconds / fixed.worker_seconds, 3),
        "more_time": round(elastic.time / fixed.time - 1, 3),
        "results_equal": same_results(elastic, fixed),
        "reasons": reasons,
        "ok": not reasons,
    }


def same_results(one: BatchRun, other: BatchRun) -> bool:
    """Whether two runs have written the same rows and computed the same sum."""
    return (one.total, one.rows) == (other.total, other.rows)


def problems(elastic: BatchRun, fixed: BatchRun) -> list[str]:
    """Why the runs were not a success; empty if they were. Savings do not count: they depend on the machine."""
    found: list[str] = []
    inside = [each for each in elastic.rescales if each.at < elastic.time]
    if not any(each.to > each.before for each in inside):
        found.append("it did not scale up: the daemon never requested more workers while the job ran")
    if not any(each.to < each.before for each in inside):
        found.append("it did not scale down: the daemon never requested fewer workers while the job ran")
    if elastic.left:
        found.append(f"it did not scale down after the job: {elastic.left} workers are left")
    if elastic.failed_tasks:
        found.append(f"{elastic.failed_tasks} tasks failed under the autoscaler")
    if elastic.repeated:
        found.append(f"stages were computed again under the autoscaler: {', '.join(elastic.repeated)}")
    if not same_results(elastic, fixed):
        found.append("the two runs have written different results")
    return found
