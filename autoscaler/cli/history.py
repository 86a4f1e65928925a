"""`autoscaler history`: collects the history of a fleet in a dataset. This module contains `history import`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscaler.cli import history_follow, history_prometheus, history_query, spark_options
from autoscaler.cli.configuration import wrong
from autoscaler.cli.options import Commands, Renamed, add_rename, json_option
from autoscaler.cli.output import FAILED, OK, print_error, print_json, print_lines, table
from autoscaler.core.wording import count_of
from autoscaler.ports import AutoscalerError
from autoscaler.trace.format import COMPRESSED_SUFFIX, SUFFIX

if TYPE_CHECKING:
    from autoscaler.history.dataset import Dataset
    from autoscaler.history.ingest_records import Imported

# ruff: noqa: PLC0415 - PySpark is loaded when the command runs

LEDGER = "imported.json"
_TAIL = 1 << 20
"""The last line of a file begins within this many bytes of its end."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands `import`, `follow` and `query`."""
    parser.description = "Collect the history of a fleet in a dataset, and query it."
    own = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _register_import(own)
    history_follow.register(own)
    history_query.register(own)


def _register_import(commands: Commands) -> None:
    parser = commands.add_parser("import", help="add records of daemons, or of Prometheus, to a dataset")
    parser.set_defaults(command=run)
    parser.description = (
        "Add the history of daemons to a dataset: Parquet files by date, for `autoscaler profile`, `backtest` and "
        "`history query`. Records that the dataset already has are skipped, so you can import a directory as often "
        "as you like. Lines that are not records are quarantined and counted. docs/history.md has an example."
    )
    add = parser.add_argument
    add(
        "sources",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="history/ of a daemon's directory, a directory of `simulate --record`, or files (.jsonl, .jsonl.gz)",
    )
    add(
        "dataset",
        metavar="DATASET",
        help="the dataset: a directory, or a URL that Spark can write; created if missing",
    )
    add_rename(parser)
    add(
        "--reimport",
        "--again",
        action=Renamed,
        nargs=0,
        const=True,
        default=False,
        help="also read files that were imported and have not changed since; --again is the old name",
    )
    json_option(parser)
    history_prometheus.add_arguments(parser)
    spark_options.add_arguments(parser)


@dataclass(slots=True)
class _Found:
    """The files of the sources.

    Attributes:
        files: path -> size and time of the last change.
        torn: path -> the last line, if it has no line end and the file is the newest uncompressed one of its source.
        problems: sources that cannot be read, and why.
    """

    files: dict[str, list[int]] = field(default_factory=dict)
    torn: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    if options.prometheus is not None:
        if options.sources:
            raise wrong("history import: give directories or --prometheus, not both")
        return history_prometheus.run(options, Path(options.dataset))
    if not options.sources:
        raise wrong("history import: expected DIR... DATASET, or --prometheus and DATASET")
    spark_options.require_pyspark("history")
    from autoscaler.history.dataset import open_dataset

    found = _find(options.sources)
    if not found.files:
        print_error(*found.problems)
        raise AutoscalerError("nothing was imported: no file can be read")
    if _is_url(options.dataset):
        # Only Spark can access the file system of a URL.
        with spark_options.open_session(options, "history") as spark:
            work = _Import(options, open_dataset(options.dataset, make=True), found)
            work.import_by_spark(spark)
            return work.report()
    work = _Import(options, open_dataset(options.dataset, make=True), found)
    if work.files and not options.explain:
        work.import_local()
    if work.files:
        with spark_options.open_session(options, "history", little=_is_little(work.files)) as spark:
            work.import_by_spark(spark)
    return work.report()


def _is_little(files: Sequence[str]) -> bool:
    from autoscaler.history.dataset import ROWS_PER_FILE
    from autoscaler.history.ingest_records import rows_at_most

    return rows_at_most(files) <= ROWS_PER_FILE


def _is_url(path: str) -> bool:
    return "://" in path


class _Import:
    """One run of the command.

    Attributes:
        files: the files that are still to be read.
    """

    def __init__(self, options: argparse.Namespace, dataset: Dataset, found: _Found) -> None:
        self._options = options
        self._dataset = dataset
        self._rename: dict[str, str] = dict(options.rename)
        self._found = found
        self._read: dict[str, list[int]] = {}
        self._done: Imported | None = None
        self.files = self._to_read()

    def _to_read(self) -> list[str]:
        known = self._read if self._options.reimport else _ledger(self._dataset)
        return [file for file, state in self._found.files.items() if known.get(file) != state]

    def import_local(self) -> None:
        """Import the files that do not need Spark."""
        if sys.stderr.isatty():
            print_error(f"Importing {count_of(len(self.files), 'file')} ...")
        from autoscaler.history import ingest_local  # slow to import: after the line above is printed

        for _ in range(2):
            done, left = ingest_local.add_local(self._dataset, self.files, now=_now(), rename=self._rename)
            self._add(done, left)
            if all(Path(file).exists() for file in self.files):
                break
            self._find_again()

    def import_by_spark(self, spark: Any, *, repeated: bool = False) -> None:  # noqa: ANN401 - imported only when needed
        """Import the remaining files with Spark."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        from autoscaler.history import ingest_records
        from autoscaler.history.progress import show_progress

        files, now = self.files, _now()
        if self._options.explain and files:
            plans = ingest_records.query_plans(spark, files, now=now, rename=self._rename)
            spark_options.print_plans(self._options, plans)
        try:
            with show_progress(spark, f"importing {count_of(len(files), 'file')}"):
                done = ingest_records.add(
                    spark, self._dataset, files, now=now, rename=self._rename, torn=self._found.torn
                )
        except (AutoscalerError, PySparkException, Py4JError) as error:
            removed = [file for file in files if not Path(file).exists()]
            if not removed:
                raise
            if repeated:
                raise AutoscalerError(
                    f"{removed[0]}: was compressed or removed during the import; run this again"
                ) from error
            self._find_again()
            self.import_by_spark(spark, repeated=True)
        else:
            self._add(done, [])

    def _find_again(self) -> None:
        """Find the files again: a daemon compresses the file of an hour when the next hour has begun."""
        self._found = _find(self._options.sources)
        self.files = self._to_read()

    def _add(self, done: Imported, left: list[str]) -> None:
        """Add a result, and note which files were imported."""
        self._done = done if self._done is None else self._done + done
        read = {file: self._found.files[file] for file in set(self.files).difference(left)}
        self._read |= read
        self.files = left
        if read:
            self._dataset.keep_note(LEDGER, json.dumps(_ledger(self._dataset) | read, indent=0) + "\n")

    def report(self) -> int:
        """Print the result. Returns the exit code."""
        unchanged = len(set(self._found.files).difference(self._read))
        return _report(self._options, self._found, unchanged, self._done)


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


def _ledger(dataset: Dataset) -> dict[str, list[Any]]:
    """The imported files: path -> size and time of the last change."""
    try:
        ledger = json.loads(dataset.note(LEDGER) or "{}")
    except ValueError:
        return {}  # the ledger only saves time
    return ledger if isinstance(ledger, dict) else {}


def _find(sources: Sequence[Path]) -> _Found:
    found = _Found()
    for source in sources:
        try:
            here = _files(source)
        except OSError as error:
            found.problems.append(f"{source}: cannot be read: {error.strerror}")
            continue
        if not here:
            found.problems.append(f"{source}: has no file *{SUFFIX} or *{COMPRESSED_SUFFIX}")
        plain = [file for file in here if not file.name.endswith(".gz")]
        for file in here:
            try:
                _add(found, file, newest=bool(plain) and file == plain[-1])
            except OSError as error:
                found.problems.append(f"{file}: cannot be read: {error.strerror}")
    return found


def _files(source: Path) -> list[Path]:
    """All files of a source, sorted by name. A record that is in two of them is added once."""
    if not source.is_dir():
        source.stat()
        # Spark resolves `..` without following links, and reads a file by the suffix of its own name.
        return [source.parent.resolve() / source.name]
    return sorted(file for file in source.resolve().iterdir() if file.name.endswith((SUFFIX, COMPRESSED_SUFFIX)))


def _add(found: _Found, file: Path, *, newest: bool) -> None:
    with file.open("rb") as opened:
        state = os.fstat(opened.fileno())
        if not state.st_size:
            found.problems.append(f"{file}: is empty")
            return
        opened.seek(-1, os.SEEK_END)
        if newest and opened.read(1) != b"\n":
            opened.seek(max(0, state.st_size - _TAIL))
            last = opened.read(_TAIL).rpartition(b"\n")[2]
            found.torn[str(file)] = last.decode(errors="replace")
    found.files[str(file)] = [state.st_size, state.st_mtime_ns]


def _report(options: argparse.Namespace, found: _Found, unchanged: int, done: Imported | None) -> int:
    merged = None if done is None else done.merged
    result: dict[str, Any] = {
        "files": {"read": len(found.files) - unchanged, "unchanged": unchanged},
        "lines": 0 if done is None else done.lines,
        "added": {} if merged is None else dict(merged.added),
        "known": {} if merged is None else dict(merged.known),
        "dates": {} if merged is None else {name: [str(day) for day in days] for name, days in merged.dates.items()},
        "rejected": {} if done is None else dict(done.rejected),
        "damaged": [] if done is None else list(done.damaged),
        "problems": found.problems,
    }
    if options.json:
        print_json(result)
    else:
        _show(result, options.dataset)
        print_error(*(f"warning: {problem}" for problem in (*found.problems, *map(_damaged, result["damaged"]))))
    records = [result[what].get("decisions", 0) for what in ("added", "known")]
    return OK if any(records) or not result["files"]["read"] else FAILED


def _damaged(file: str) -> str:
    return f"{file}: is damaged; its readable part was imported"


def _show(result: Mapping[str, Any], dataset: str) -> None:
    added, known = result["added"].get("decisions", 0), result["known"].get("decisions", 0)
    days = result["dates"].get("decisions", [])
    rejected = sum(result["rejected"].values())
    rows = [
        ("files read", f"{result['files']['read']:,}", ""),
        (
            "files not changed since their import",
            f"{result['files']['unchanged']:,}",
            "--reimport reads them too",
        ),
        ("records added", f"{added:,}", _span(days)),
        ("duplicate records", f"{known:,}", ""),
        ("lines and files quarantined", f"{rejected:,}", f"table rejected of {dataset}" if rejected else ""),
        *((f"  {reason}", f"{count:,}", "") for reason, count in sorted(result["rejected"].items())),
    ]
    table(("what", "how many", ""), [row for row in rows if row[1] != "0" or row[0] in {"files read", "records added"}])
    if not result["files"]["read"]:
        print_lines("", "Nothing has changed since the last import.")


def _span(days: Sequence[str]) -> str:
    if not days:
        return ""
    return f"{count_of(len(days), 'day')}, {days[0]} to {days[-1]}" if len(days) > 1 else f"on {days[0]}"
