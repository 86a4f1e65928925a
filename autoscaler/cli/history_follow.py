"""`autoscaler history follow`: what daemons pack goes into a dataset as it appears."""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING

from autoscaler.cli import options as arguments
from autoscaler.cli import spark_options
from autoscaler.cli.configuration import wrong
from autoscaler.cli.output import complain, say
from autoscaler.core.durations import parse_duration
from autoscaler.core.explain import count_of
from autoscaler.ports import AutoscalerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from autoscaler.history.ingest_follow import Batch, Follower

# ruff: noqa: PLC0415 - PySpark is loaded when the command runs

OK, INTERRUPTED = 0, 130

EVERY = timedelta(minutes=1)
FILES = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `history follow` to a parser."""
    parser.description = (
        "Add to a dataset what daemons pack, as it appears: a streaming query that takes each file once and may be "
        "stopped, killed and started again at any time. docs/history.md says how."
    )
    add = parser.add_argument
    add(
        "places",
        nargs="+",
        metavar="DIR",
        help="history directories of daemons, patterns of them in quotes ('/srv/*/history'), or URLs that Spark knows",
    )
    add("dataset", metavar="DATASET", help="the dataset, which is made if there is none")
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--trigger",
        type=_duration,
        default=EVERY,
        metavar="TIME",
        help="look for new files so often, like 10m; 0s: without a pause (default: 1m)",
    )
    when.add_argument("--available-now", action="store_true", help="take what is there and end, to be run from cron")
    add(
        "--files",
        type=arguments.count,
        default=FILES,
        metavar="N",
        help=f"at most so many files in a batch (default: {FILES})",
    )
    add("--checkpoint", metavar="DIR", help="where Spark keeps which files were taken (default: DATASET/_follow)")
    add("--plain", action="store_true", help="also take *.jsonl: such files must be whole when they appear")
    add(
        "--report",
        type=_address,
        metavar="HOST:PORT",
        help="serve the query's progress there, files waiting included, for the source and the engine `spark`",
    )
    add("--json", action="store_true", help="print a line of JSON for each batch")
    spark_options.add_arguments(parser)


def _duration(text: str) -> timedelta:
    try:
        found = timedelta() if text == "0" else parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return found


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdecimal() and int(port) <= 65535):  # noqa: PLR2004 - ports
        raise argparse.ArgumentTypeError(f"{text!r} is not like 127.0.0.1:4050")
    return host, int(port)


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    if options.remote is not None:
        raise wrong(
            "history follow: with Spark Connect the query would run in the server, out of the command's sight; start "
            "it with --master or spark-submit"
        )
    spark_options.needed("history")
    signals = _Signals()
    try:
        # Caught again: PySpark has its own way with SIGINT, which it installs when a session begins.
        with signals.caught(), spark_options.opened(options, "history follow") as spark, signals.caught():
            _follow(options, spark, signals)
    except AutoscalerError:
        if not signals.came:
            raise
        # Spark may have been told to end by the same signal: what it says then is no news.
    return INTERRUPTED if signals.came[:1] == [signal.SIGINT] else OK


def _follow(options: argparse.Namespace, spark: SparkSession, signals: _Signals) -> None:
    from autoscaler.history.dataset import open_dataset
    from autoscaler.history.ingest_follow import CHECKPOINT, Follower, Following, waiting_of
    from autoscaler.injob import report

    dataset = open_dataset(options.dataset, make=True)
    checkpoint = options.checkpoint or f"{options.dataset.rstrip('/')}/{CHECKPOINT}"
    following = Following(
        places=options.places,
        checkpoint=checkpoint,
        plain=options.plain,
        files=options.files,
        every=None if options.available_now else options.trigger,
        count=options.report is not None,
    )
    told = _Told(as_json=options.json)
    follower = Follower(spark, dataset, following, told.batch, complain)
    spark_options.tell_plan(options, {"finding files": follower.found()})
    if not options.json:
        say(f"Following {', '.join(options.places)} into {options.dataset}; what was taken is kept in {checkpoint}.")
    with ExitStack() as stack:
        if options.report is not None:
            host, port = options.report
            stack.callback(report(spark, host, port, waiting=waiting_of(follower)).stop)
        signals.passed_to(follower)
        follower.run()
    if not options.json and not told.batches and options.available_now:
        say("No new file.")


class _Told:
    """What is printed of the batches.

    Attributes:
        batches: how many there were.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.batches = 0
        self._json = as_json

    def batch(self, batch: Batch) -> None:
        """Print one."""
        self.batches += 1
        if self._json:
            say(json.dumps(_plain(batch)))
            return
        say(_line(batch))


def _plain(batch: Batch) -> object:
    merged = batch.imported.merged
    return {
        "batch": batch.number,
        "files": batch.files,
        "late": batch.late,
        "gone": batch.gone,
        "damaged": list(batch.imported.damaged),
        "new": merged.added.get("decisions", 0),
        "known": merged.known.get("decisions", 0),
        "rejected": dict(batch.imported.rejected),
        "waiting": batch.waiting,
        "seconds": round(batch.seconds, 3),
    }


def _line(batch: Batch) -> str:
    merged = batch.imported.merged
    odd = [
        f"{count:,} {what}" for count, what in ((batch.late, "late"), (batch.gone, "gone before it was read")) if count
    ]
    files = count_of(batch.files, "file") + (f" ({', '.join(odd)})" if odd else "")
    told = [f"batch {batch.number}: {files} in {batch.seconds:.1f} s"]
    told.append(f"{merged.added.get('decisions', 0):,} new records, {merged.known.get('decisions', 0):,} known")
    told += [f"{count:,} set aside: {reason}" for reason, count in sorted(batch.imported.rejected.items())]
    if batch.waiting:
        told.append(f"{count_of(batch.waiting, 'file')} waiting")
    return "; ".join(told)


class _Signals:
    """SIGTERM and SIGINT end the query, a second one the process.

    Attributes:
        came: those that came.
    """

    def __init__(self) -> None:
        self.came: list[int] = []
        self._follower: Follower | None = None

    def passed_to(self, follower: Follower) -> None:
        """From now on to this query, what has come already included."""
        self._follower = follower
        if self.came:
            follower.stop()

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch them until the end of the block."""
        before = {number: signal.signal(number, self._take) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.came.append(number)
        if len(self.came) > 1:
            os._exit(INTERRUPTED)
        if self._follower is not None:
            self._follower.stop()
