"""Options and session of the commands that run on Spark."""

from __future__ import annotations

import argparse
import logging
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from autoscaler.cli.configuration import wrong
from autoscaler.cli.output import print_error
from autoscaler.plugins import install_hint
from autoscaler.ports import AutoscalerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# ruff: noqa: PLC0415 - PySpark is loaded when a command runs: `--help` is fast and does not need it

_OPTIONS = "spark.driver.extraJavaOptions"
_END_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--master`, `--remote`, `--conf` and `--explain`, in a group of their own."""
    add = parser.add_argument_group("Spark").add_argument
    add(
        "--master",
        metavar="URL",
        help="where Spark runs: local[4], spark://host:7077, k8s://... "
        "(default: the master of spark-submit, else all cores of this machine)",
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
    add("--explain", action="store_true", help="also print the physical plan on the standard error")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark.") or key == "spark.":
        raise argparse.ArgumentTypeError(f"{text!r} is not like spark.driver.memory=4g")
    return key, value


def table_url(path: str) -> str:
    """The URL of a table to write; it may replace the table of an earlier run.

    Raises:
        ConfigurationError: the path exists and is not such a table.
    """
    if "://" in path:
        return path
    place = Path(path).absolute()
    if place.exists() and not (place / "_SUCCESS").exists():
        raise wrong(f"{path}: exists and is not a table of an earlier run")
    return f"file://{place}"


def require_pyspark(command: str) -> None:
    """Raise AutoscalerError if PySpark is not installed, before anything of `autoscaler.history` is imported."""
    for package in ("pyspark", "pyarrow", "pandas"):
        try:
            __import__(package)
        except ImportError as error:
            raise AutoscalerError(f"{command} needs PySpark: {install_hint('spark')} ({error})") from error


@contextmanager
def open_session(
    options: argparse.Namespace, command: str, *, reads: str | None = None, little: bool = False
) -> Iterator[SparkSession]:
    """Open the Spark session of the options for the block. An error of Spark in the block becomes one line.

    Args:
        options: the options of `add_arguments`.
        command: the name of the command.
        reads: the dataset that the command reads; a local path that is no dataset is refused before Spark starts.
        little: whether Java has little to do; this is determined here if `reads` is on this machine.

    Raises:
        AutoscalerError: there is no PySpark or no Java, or Spark does not start or fails.
    """
    require_pyspark(command)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from autoscaler.history.dataset import FEW_ROWS, open_dataset
    from autoscaler.history.dataset.layout import full_disk
    from autoscaler.history.progress import print_ui_url
    from autoscaler.history.session import little_data, session

    if options.master is not None and options.remote is not None:
        raise AutoscalerError("--master and --remote exclude each other: a Spark Connect server has its own master")
    if reads is not None and "://" not in reads:
        little = open_dataset(reads).has_few_rows("observations", FEW_ROWS)
    if sys.stderr.isatty():
        print_error("Starting Spark ...")
    name = f"autoscaler {command}"
    settings = _settings(dict(options.conf), little=little)
    _silence_pyspark()
    interrupts = _Interrupts()
    try:
        with (
            interrupts.caught(),
            session(name, master=options.master, remote=options.remote, settings=settings) as spark,
        ):
            interrupts.end(spark)
            print_ui_url(spark)
            with little_data(spark, dict(options.conf)) if little else nullcontext():
                yield spark
    except (PySparkException, Py4JError) as error:
        raise AutoscalerError(full_disk(error) or f"Spark failed: {cause(error)}{_hint(error)}") from error
    except ConnectionRefusedError as error:
        raise AutoscalerError("Spark failed: its Java was killed, or had no memory left; run this again") from error
    except ImportError as error:
        if options.remote is None:
            raise
        raise AutoscalerError(f"--remote needs Spark Connect: pip install 'pyspark[connect]' ({error})") from error


def _settings(given: dict[str, str], *, little: bool) -> dict[str, str]:
    """Add the settings that keep Spark's console quiet: only a progress bar, and only on a terminal."""
    from autoscaler import history
    from autoscaler.history.session import LITTLE_JAVA

    log = Path(history.__path__[0]) / "log4j2.properties"
    given.setdefault("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
    ours = [f"-Dlog4j2.configurationFile={log.as_uri()}", *([LITTLE_JAVA] if little else [])]
    given[_OPTIONS] = " ".join([*ours, given.get(_OPTIONS, "")]).strip()
    return given


def _silence_pyspark() -> None:
    """Silence PySpark's logs, which have pages of stack traces: the command reports the errors."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    # Py4J logs to the root logger when Ctrl-C interrupts a call.
    logging.basicConfig(handlers=[logging.NullHandler()])


class _Interrupts:
    """On SIGINT and SIGTERM, ends the command by KeyboardInterrupt and cancels its Spark jobs.

    PySpark's own handler of SIGINT does not achieve this: it calls Java within another call, and the command still
    waits for the job's result.
    """

    def __init__(self) -> None:
        self._sessions: list[SparkSession] = []
        self._handlers: dict[int, Any] = {}
        self._received = threading.Event()
        self._over = threading.Event()

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch signals until the end of the block, unless the command catches them itself."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._handle()
        try:
            yield
        except Exception as error:
            if self._received.is_set():  # Spark reports its cancelled jobs as an error
                raise KeyboardInterrupt from error
            raise
        finally:
            self._over.set()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def end(self, spark: SparkSession) -> None:
        """Cancel the jobs of this session too, and catch signals again: the session has installed PySpark's handler."""
        self._sessions.append(spark)
        self._handle()

    def _handle(self) -> None:
        for number in self._handlers:
            signal.signal(number, self._interrupt)

    def _interrupt(self, _: int, __: FrameType | None) -> None:
        if not self._received.is_set():
            self._received.set()
            # In another thread, because this one may wait in a call.
            threading.Thread(target=self._end_jobs, daemon=True).start()
        raise KeyboardInterrupt

    def _end_jobs(self) -> None:
        while not self._over.wait(_END_S):
            for spark in self._sessions:
                with suppress(Exception):  # Spark may have ended
                    spark.interruptAll()


def _hint(error: BaseException) -> str:
    """What to do if Spark's workers lack a module; empty for other errors."""
    if not cause(error).startswith("ModuleNotFoundError"):
        return ""
    return "; workers need it: install it on them, or send it with --conf spark.submit.pyFiles=FILE.zip"


def cause(error: BaseException) -> str:
    """The innermost cause of an error of Spark, in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    if any(line.startswith("Traceback (most recent") for line in lines):
        # The traceback of a Python worker ends with the exception.
        raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit)\b", line)]
        return raised[0] if raised else "a Python worker failed"
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    found = causes[-1:] or [line for line in lines if line and not line.startswith("at ")][:1]
    return found[0] if found else type(error).__name__


def print_plans(options: argparse.Namespace, plans: Mapping[str, DataFrame]) -> None:
    """With `--explain`, print the physical plans of queries, by name, on the standard error."""
    if not options.explain:
        return
    from autoscaler.history.progress import explain_plan

    for what, df in plans.items():
        print_error(f"The plan of {what}:", explain_plan(df), "")
