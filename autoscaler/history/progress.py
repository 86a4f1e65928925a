"""The progress of Spark on the terminal, and the plans of its queries."""

from __future__ import annotations

import io
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

POLL_INTERVAL = 0.3
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a group of jobs.

    Attributes:
        stages, of_stages: stages that have ended, of those known by now: an adaptive plan adds more.
        tasks, of_tasks: the same of tasks.
    """

    stages: int = 0
    of_stages: int = 0
    tasks: int = 0
    of_tasks: int = 0

    def __str__(self) -> str:
        return f"{self.stages}/{self.of_stages} stages, {self.tasks}/{self.of_tasks} tasks"


def is_connect(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect, which has no context and does not report its stages."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextmanager
def show_progress(spark: SparkSession, what: str) -> Iterator[None]:
    """A progress bar on the standard error, if that is a terminal: stages and tasks done.

    The jobs that this thread starts inside are described as `what` in Spark's UI. With Spark Connect there is only a
    spinner.

    Args:
        spark: the session.
        what: a description, like `reading 12 files`.
    """
    from rich.console import Console  # noqa: PLC0415 - a command that prints no bar need not load it

    console = Console(stderr=True)
    if is_connect(spark):
        if not console.is_terminal:
            yield
            return
        with console.status(what):
            yield
        return
    with _grouped(spark.sparkContext, what) as group:
        if not console.is_terminal:
            yield
            return
        with _bar(spark.sparkContext, what, group, console):
            yield


@contextmanager
def _grouped(context: SparkContext, what: str) -> Iterator[str]:
    """Put the jobs of this thread in a group with a description, and restore the previous ones at the end."""
    keys = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    before = {key: context.getLocalProperty(key) for key in keys}
    group = f"autoscaler-{uuid.uuid4()}"
    context.setJobGroup(group, what)
    try:
        yield group
    finally:
        with suppress(Exception):  # if Spark has ended, its error must not be replaced by this one
            for key, value in before.items():
                context.setLocalProperty(key, value)


@contextmanager
def _bar(context: SparkContext, what: str, group: str, console: object) -> Iterator[None]:
    from rich import progress  # noqa: PLC0415 - likewise

    texts = (progress.TextColumn(f"{{task.{field}}}") for field in ("description", "fields[done]"))
    columns = (next(texts), progress.BarColumn(), *texts, progress.TimeElapsedColumn())
    ended = threading.Event()
    with progress.Progress(*columns, console=console, transient=True) as bar:  # type: ignore[arg-type] # imported when needed
        task = bar.add_task(what, total=None, done="")

        def poll() -> None:
            while not ended.wait(POLL_INTERVAL):
                with suppress(Exception):  # the bar must not fail the command, and Spark may be ending
                    now = job_progress(context, group)
                    bar.update(task, total=now.of_tasks or None, completed=now.tasks, done=str(now))

        thread = threading.Thread(target=poll, name="autoscaler-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def job_progress(context: SparkContext, group: str) -> Progress:
    """The progress of the jobs of a group."""
    tracker = context.statusTracker()
    stages: dict[int, bool] = {}
    for job in tracker.getJobIdsForGroup(group):
        found = tracker.getJobInfo(job)
        if found is not None:
            over = found.status != "RUNNING"
            stages |= {stage: stages.get(stage, False) or over for stage in found.stageIds}
    ended = tasks = of_tasks = 0
    for stage, over in stages.items():
        seen = tracker.getStageInfo(stage)
        here, of_here = (seen.numCompletedTasks, seen.numTasks) if seen is not None else (0, 0)
        # The stages of a job that has ended are over too: tasks that are not done were skipped.
        over = over or 0 < of_here <= here  # noqa: PLW2901 - a refined value
        ended += over
        tasks += of_here if over else here
        of_tasks += of_here
    return Progress(ended, len(stages), tasks, of_tasks)


def print_ui_url(spark: SparkSession) -> None:
    """Print the URL of Spark's UI on the standard error, if that is a terminal."""
    if sys.stderr.isatty() and not is_connect(spark) and spark.sparkContext.uiWebUrl:
        sys.stderr.write(f"Spark UI: {spark.sparkContext.uiWebUrl}\n")


def explain_plan(df: DataFrame) -> str:
    """The physical plan of a query, as Spark formats it. Nothing is run."""
    written = io.StringIO()
    with redirect_stdout(written):
        df.explain(mode="formatted")
    return written.getvalue().strip()
