"""What Spark is doing, for people: a bar while it works, and the plan of what it will do."""

from __future__ import annotations

import io
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoscaler.core.explain import format_number

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

EVERY = 0.3
"""Seconds between two looks at what Spark has done."""


@dataclass(frozen=True, slots=True)
class Done:
    """How far the jobs of one piece of work are.

    Attributes:
        stages, of_stages: stages that have ended, of those known by now: a plan that adapts finds more on its way.
        tasks, of_tasks: the same of tasks.
        rows: rows read from files and other sources; None where Spark does not tell.
    """

    stages: int = 0
    of_stages: int = 0
    tasks: int = 0
    of_tasks: int = 0
    rows: int | None = None

    def __str__(self) -> str:
        told = f"{self.stages}/{self.of_stages} stages, {self.tasks}/{self.of_tasks} tasks"
        return f"{told}, {format_number(float(self.rows))} rows" if self.rows else told


def is_connect(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect, which has no context and does not tell of its stages."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextmanager
def watched(spark: SparkSession, what: str) -> Iterator[None]:
    """A bar on the standard error while Spark works: stages and tasks done, rows read.

    The jobs started inside, by this thread, are called `what` in Spark's own UI. Without a terminal nothing is
    printed, and with Spark Connect there is only something that turns.

    Args:
        spark: the session that works.
        what: what is being done, like `reading 12 files`.
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
    """Name the jobs of this thread, and call them afterwards what they were called before."""
    keys = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    before = {key: context.getLocalProperty(key) for key in keys}
    group = f"autoscaler-{uuid.uuid4()}"
    context.setJobGroup(group, what)
    try:
        yield group
    finally:
        with suppress(Exception):  # where Spark has gone, the error that says so must not be replaced by this one
            for key, value in before.items():
                context.setLocalProperty(key, value)


@contextmanager
def _bar(context: SparkContext, what: str, group: str, console: object) -> Iterator[None]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - likewise

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"), TimeElapsedColumn())
    ended = threading.Event()
    with Progress(*columns, console=console, transient=True) as bar:  # type: ignore[arg-type] # imported when needed
        task = bar.add_task(what, total=None, done="")

        def look() -> None:
            while not ended.wait(EVERY):
                with suppress(Exception):  # a bar is no reason to fail, and Spark may be going down
                    now = done(context, group)
                    bar.update(task, total=now.of_tasks or None, completed=now.tasks, done=str(now))

        thread = threading.Thread(target=look, name="autoscaler-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def done(context: SparkContext, group: str) -> Done:
    """How far the jobs of a group are."""
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
        # The stages of a job that has ended are over too: what is not done was there already, and left out.
        over = over or 0 < of_here <= here  # noqa: PLW2901 - it is the same thing, known better
        ended += over
        tasks += of_here if over else here
        of_tasks += of_here
    return Done(ended, len(stages), tasks, of_tasks, _rows(context, stages))


def _rows(context: SparkContext, stages: dict[int, bool]) -> int | None:
    try:
        store = context._jsc.sc().statusStore()  # noqa: SLF001 - the tracker's own store, which alone knows the rows
        return sum(int(store.lastStageAttempt(stage).inputRecords()) for stage in stages)
    except Exception:  # noqa: BLE001 - it is no public interface: where it has changed, nothing is told
        return None


def told_of(spark: SparkSession) -> None:
    """Say where Spark's own UI is, on the standard error if that is a terminal."""
    if sys.stderr.isatty() and not is_connect(spark) and spark.sparkContext.uiWebUrl:
        sys.stderr.write(f"Spark's own view of the work: {spark.sparkContext.uiWebUrl}\n")


def explained(df: DataFrame) -> str:
    """The physical plan of a query, as Spark formats it. Nothing is run."""
    written = io.StringIO()
    with redirect_stdout(written):
        df.explain(mode="formatted")
    return written.getvalue().strip()
