"""How Spark shows its progress: descriptions of jobs, the address of its UI, and query plans."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DESCRIPTION = "spark.job.description"


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a Spark Connect session, which has no SparkContext and does not report its stages."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextmanager
def show_progress(spark: SparkSession, what: str) -> Iterator[None]:
    """Describe the jobs that this thread starts within the block, like `reading 12 files`, in Spark's UI.

    On a terminal Spark itself shows their progress. With Spark Connect this function does nothing.
    """
    if is_connect(spark):
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(what)
    try:
        yield
    finally:
        with suppress(Exception):  # if Spark has ended, do not hide its error
            context.setLocalProperty(_DESCRIPTION, before)


def print_ui_url(spark: SparkSession) -> None:
    """Print the URL of Spark's UI to standard error if that is a terminal."""
    if sys.stderr.isatty() and not is_connect(spark) and spark.sparkContext.uiWebUrl:
        sys.stderr.write(f"Spark UI: {spark.sparkContext.uiWebUrl}\n")


def explain_plan(df: DataFrame) -> str:
    """The physical plan of a query, as Spark formats it. The query does not run."""
    written = io.StringIO()
    with redirect_stdout(written):
        df.explain(mode="formatted")
    return written.getvalue().strip()
