"""The options of the commands that run on Spark, and the session that they ask for."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from autoscaler.cli.configuration import wrong
from autoscaler.cli.output import complain
from autoscaler.plugins import install_hint
from autoscaler.ports import AutoscalerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# ruff: noqa: PLC0415 - PySpark is loaded when a command runs: `--help` is quick, and goes without it

_OPTIONS = "spark.driver.extraJavaOptions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--master`, `--remote`, `--conf` and `--explain` to a parser, in a group of their own."""
    add = parser.add_argument_group("Spark").add_argument
    add(
        "--master",
        metavar="URL",
        help="where Spark runs: local[4], spark://host:7077, k8s://... (default: what spark-submit says, else here, on "
        "all cores)",
    )
    add("--remote", metavar="URL", help="a Spark Connect server instead, like sc://host:15002")
    add(
        "--conf",
        action="append",
        type=_pair,
        default=[],
        metavar="KEY=VALUE",
        help="a Spark property, like spark.driver.memory=4g; may be repeated",
    )
    # `explain` is what commands without Spark call something else.
    add("--explain", action="store_true", help="also print the physical plan, to the standard error")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark.") or key == "spark.":
        raise argparse.ArgumentTypeError(f"{text!r} is not like spark.driver.memory=4g")
    return key, value


def table_url(path: str) -> str:
    """Where a table is written that takes the place of the one that a run before wrote.

    Raises:
        AutoscalerError: something else is there, which must stay.
    """
    if "://" in path:
        return path
    place = Path(path).absolute()
    if place.exists() and not (place / "_SUCCESS").exists():
        raise wrong(f"{path}: is there already and is no table that was written before")
    return f"file://{place}"


def needed(command: str) -> None:
    """Make sure that PySpark is there, before anything of `autoscaler.history` is imported.

    Raises:
        AutoscalerError: it is not.
    """
    for package in ("pyspark", "pyarrow", "pandas"):
        try:
            __import__(package)
        except ImportError as error:
            raise AutoscalerError(f"{command} needs PySpark: {install_hint('spark')} ({error})") from error


@contextmanager
def opened(options: argparse.Namespace, command: str) -> Iterator[SparkSession]:
    """The Spark session that the options ask for, until the end of the block.

    What Spark raises inside, and the command has not made a better message of, becomes one line.

    Args:
        options: what `add_arguments` has parsed.
        command: the command's name, like `history`.

    Raises:
        AutoscalerError: there is no PySpark or no Java, Spark does not start, or it failed at its work.
    """
    needed(command)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from autoscaler.history.progress import told_of
    from autoscaler.history.session import session

    if options.master is not None and options.remote is not None:
        raise AutoscalerError("--master and --remote exclude each other: a Spark Connect server has its own master")
    name = f"autoscaler {command}"
    settings = _settings(dict(options.conf))
    try:
        with session(name, master=options.master, remote=options.remote, settings=settings) as spark:
            told_of(spark)
            yield spark
    except (PySparkException, Py4JError) as error:
        raise AutoscalerError(f"Spark failed: {cause(error)}") from error
    except ConnectionRefusedError as error:
        raise AutoscalerError("Spark failed: its Java was killed, or had no memory left; run this again") from error
    except ImportError as error:
        if options.remote is None:
            raise
        raise AutoscalerError(f"--remote needs Spark Connect: pip install 'pyspark[connect]' ({error})") from error


def _settings(given: dict[str, str]) -> dict[str, str]:
    """What was given, with Spark's console kept quiet unless that was given as well."""
    from autoscaler import history as pipeline

    log = Path(pipeline.__path__[0]) / "log4j2.properties"
    given.setdefault("spark.ui.showConsoleProgress", "false")
    given[_OPTIONS] = f"-Dlog4j2.configurationFile={log.as_uri()} {given.get(_OPTIONS, '')}".strip()
    return given


def cause(error: BaseException) -> str:
    """What is wrong, in one line: the innermost cause that Spark names, without the stacks around it."""
    lines = [line.strip() for line in str(error).splitlines()]
    if any(line.startswith("Traceback (most recent") for line in lines):
        # Of a Python worker: its traceback ends with what was raised.
        raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit)\b", line)]
        return raised[0] if raised else "a Python worker failed"
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    told = causes[-1:] or [line for line in lines if line and not line.startswith("at ")][:1]
    return told[0] if told else type(error).__name__


def tell_plan(options: argparse.Namespace, plans: Mapping[str, DataFrame]) -> None:
    """Where `--explain` was given, print the physical plans on the standard error.

    Args:
        options: what `add_arguments` has parsed.
        plans: what a query is for -> the query.
    """
    if not options.explain:
        return
    from autoscaler.history.progress import explained

    for what, df in plans.items():
        complain(f"The plan of {what}:", explained(df), "")
