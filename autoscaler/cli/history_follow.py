"""`autoscaler history follow`: adds the files of daemons to a dataset as they appear."""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from autoscaler.cli import spark_options
from autoscaler.cli.configuration import wrong
from autoscaler.cli.options import Commands, Renamed, count, duration
from autoscaler.cli.output import INTERRUPTED, OK, print_error, print_lines
from autoscaler.core.wording import count_of
from autoscaler.ports import AutoscalerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from autoscaler.history.ingest_follow import Batch, BatchFollower

# ruff: noqa: PLC0415 - PySpark is loaded when the command runs

EVERY = timedelta(minutes=1)
FILES = 64


def register(commands: Commands) -> None:
    """Add the command to the commands of `history`."""
    parser = commands.add_parser("follow", help="add the compressed files of daemons to a dataset as they appear")
    parser.set_defaults(command=run)
    parser.description = (
        "Add the compressed files of daemons to a dataset as they appear: each file is imported once, and the command "
        "can be stopped, killed and restarted at any time. docs/history.md has the details."
    )
    add = parser.add_argument
    add(
        "places",
        nargs="+",
        metavar="DIR",
        help="history directories of daemons, patterns of them in quotes ('/srv/*/history'), or URLs that Spark knows",
    )
    add("dataset", metavar="DATASET", help="the dataset; created if it does not exist")
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--trigger",
        type=_duration,
        default=EVERY,
        metavar="TIME",
        help="interval of the search for new files, like 10m; 0s: no pause (default: 1m)",
    )
    when.add_argument("--available-now", action="store_true", help="import the files that exist now and exit, for cron")
    add(
        "--files",
        type=count,
        default=FILES,
        metavar="N",
        help=f"maximum number of files in a batch (default: {FILES})",
    )
    add("--checkpoint", metavar="DIR", help="where the imported files are recorded (default: DATASET/_follow)")
    add(
        "--uncompressed",
        "--plain",
        action=Renamed,
        nargs=0,
        const=True,
        default=False,
        help="also import *.jsonl: such files must be complete when they appear; --plain is the old name",
    )
    add(
        "--report",
        type=_address,
        metavar="HOST:PORT",
        help="serve the query's progress and the number of waiting files, for the source and the engine `spark`",
    )
    add("--json", action="store_true", help="print a line of JSON for each batch")
    spark_options.add_arguments(parser)


def _duration(text: str) -> timedelta:
    return timedelta() if text == "0" else duration(text)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdecimal() and int(port) <= 65535):  # noqa: PLR2004 - ports
        raise argparse.ArgumentTypeError(f"{text!r} is not like 127.0.0.1:4050")
    return host, int(port)


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    if options.remote is not None:
        raise wrong(
            "history follow: with Spark Connect the query would run in the server, where the command cannot watch it; "
            "start it with --master or spark-submit"
        )
    spark_options.require_pyspark("history")
    signals = _Signals()
    try:
        with ExitStack() as stack:
            stack.enter_context(signals.caught())

            def start() -> SparkSession:
                spark = stack.enter_context(
                    spark_options.open_session(options, "history follow", little=_is_little(options))
                )
                # PySpark installs its own handler of SIGINT when a session begins.
                stack.enter_context(signals.caught())
                return spark

            _follow(options, start, signals)
    except AutoscalerError:
        if not signals.received:
            raise
        # The same signal may have ended Spark, so its errors are not reported.
    return INTERRUPTED if signals.received[:1] == [signal.SIGINT] else OK


def _is_little(options: argparse.Namespace) -> bool:
    """Whether the query imports only few records: those of the files that exist now on this machine."""
    from autoscaler.history.dataset import ROWS_PER_FILE
    from autoscaler.history.ingest_records import rows_at_most

    places = [Path(place) for place in options.places]
    if not options.available_now or "://" in options.dataset or not all(place.is_dir() for place in places):
        return False
    return rows_at_most([str(file) for place in places for file in place.rglob("*.jsonl*")]) <= ROWS_PER_FILE


def _follow(options: argparse.Namespace, start: Callable[[], SparkSession], signals: _Signals) -> None:
    from autoscaler.history.dataset import open_dataset
    from autoscaler.history.ingest_follow import CHECKPOINT, Follower, FollowOptions, waiting_of
    from autoscaler.history.ingest_follow_local import LocalFollower, can_follow_local
    from autoscaler.injob import report

    checkpoint = options.checkpoint or f"{options.dataset.rstrip('/')}/{CHECKPOINT}"
    following = FollowOptions(
        places=options.places,
        checkpoint=checkpoint,
        plain=options.uncompressed,
        files=options.files,
        every=None if options.available_now else options.trigger,
        count=options.report is not None,
    )
    here = can_follow_local(following) and "://" not in options.dataset and not options.explain
    spark = None if here else start()
    batches: list[Batch] = []

    def report_batch(batch: Batch) -> None:
        batches[:] = [batch]
        print_lines(json.dumps(_to_json(batch)) if options.json else _line(batch))

    dataset = open_dataset(options.dataset, make=True)
    what: dict[str, Any] = {"dataset": dataset, "options": following, "report": report_batch, "warn": print_error}
    with ExitStack() as stack:
        if spark is None:
            follower: BatchFollower = LocalFollower(start=start, **what)
        else:
            query = follower = Follower(spark=spark, **what)
            spark_options.print_plans(options, {"finding files": query.found()})
            if options.report is not None:
                host, port = options.report
                stack.callback(report(spark, host, port, waiting=waiting_of(query)).stop)
        if not options.json:
            print_lines(
                f"Following {', '.join(options.places)} into {options.dataset}; the checkpoint is {checkpoint}."
            )
        signals.passed_to(follower)
        follower.run()
    if not options.json and not batches and options.available_now:
        print_lines("No new file.")


def _to_json(batch: Batch) -> object:
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
    notes = [f"{count:,} {what}" for count, what in ((batch.late, "late"), (batch.gone, "removed")) if count]
    files = count_of(batch.files, "file") + (f" ({', '.join(notes)})" if notes else "")
    parts = [f"batch {batch.number}: {files} in {batch.seconds:.1f} s"]
    parts.append(f"{merged.added.get('decisions', 0):,} new records, {merged.known.get('decisions', 0):,} known")
    parts += [f"{count:,} quarantined: {reason}" for reason, count in sorted(batch.imported.rejected.items())]
    if batch.waiting:
        parts.append(f"{count_of(batch.waiting, 'file')} waiting")
    return "; ".join(parts)


class _Signals:
    """Handles SIGTERM and SIGINT: the first signal ends the query, a second one ends the process.

    Attributes:
        received: the signals, in order.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._follower: BatchFollower | None = None

    def passed_to(self, follower: BatchFollower) -> None:
        """Pass signals to this query, also those received before."""
        self._follower = follower
        if self.received:
            follower.stop()

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch signals until the end of the block."""
        before = {number: signal.signal(number, self._take) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)
        if len(self.received) > 1:
            os._exit(INTERRUPTED)
        if self._follower is not None:
            self._follower.stop()
