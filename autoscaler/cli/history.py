"""`autoscaler history`: the history of a fleet as a dataset. `history import` is here, the others beside it."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscaler.cli import history_follow, history_prometheus, history_query, spark_options
from autoscaler.cli import options as arguments
from autoscaler.cli.configuration import wrong
from autoscaler.cli.options import Commands
from autoscaler.cli.output import complain, print_json, say, table
from autoscaler.core.explain import count_of
from autoscaler.ports import AutoscalerError
from autoscaler.trace.format import COMPRESSED_SUFFIX, SUFFIX

if TYPE_CHECKING:
    from autoscaler.history.dataset import Dataset
    from autoscaler.history.ingest_records import Imported

# ruff: noqa: PLC0415 - PySpark is loaded when the command runs

OK, FAILED = 0, 1

LEDGER = "imported.json"
_TAIL = 1 << 20
"""A last line without an end is looked for so many bytes back."""


def register(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("history", description="Collect the history of a fleet in a dataset, and query it.")
    add_commands(parser)


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add `import`, `follow` and `query` to the parser of `history`."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    sub = commands.add_parser("import", help="add what daemons have recorded, or Prometheus has, to a dataset")
    _import_arguments(sub)
    sub.set_defaults(command=run)
    sub = commands.add_parser("follow", help="add to a dataset what daemons pack, as it appears")
    history_follow.add_arguments(sub)
    sub.set_defaults(command=history_follow.run)
    sub = commands.add_parser("query", help="ask a dataset in SQL")
    history_query.add_arguments(sub)
    sub.set_defaults(command=history_query.run)


def _import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Add the history of daemons to a dataset: Parquet files by date, for `autoscaler profile`, `backtest` and "
        "`history query`. What is there already is not added again, so a directory can be imported as often as you "
        "like. Lines that are no records are set aside and counted. docs/history.md has an example."
    )
    add = parser.add_argument
    add(
        "sources",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="history/ of a daemon's directory, what `simulate --record` has written, or files (.jsonl, .jsonl.gz)",
    )
    add("dataset", metavar="DATASET", help="the dataset: a directory, or a URL that Spark can write; made if not there")
    add(
        "--rename",
        action="append",
        type=arguments.renamed,
        default=[],
        metavar="OLD=NEW",
        help="what is of cluster OLD is of NEW; may be repeated",
    )
    add("--again", action="store_true", help="also read files that were imported and have not changed since")
    add("--json", action="store_true", help="print JSON")
    history_prometheus.add_arguments(parser)
    spark_options.add_arguments(parser)


@dataclass(slots=True)
class _Found:
    """The files of the directories.

    Attributes:
        files: path -> size and time of the last change.
        torn: path -> the last line, where it has no end and the file is the newest of its directory.
        problems: what cannot be read, and why.
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
    spark_options.needed("history")
    from autoscaler.history.dataset import open_dataset

    found = _find(options.sources)
    if not found.files:
        complain(*found.problems)
        raise AutoscalerError("nothing was imported: there is no file that can be read")
    rename = dict(options.rename)
    if _is_url(options.dataset):
        # Its file system is Spark's.
        with spark_options.opened(options, "history") as spark:
            dataset = open_dataset(options.dataset, make=True)
            return _import(options, dataset, found, rename, spark)
    dataset = open_dataset(options.dataset, make=True)
    if not options.again and not _news(found, _ledger(dataset)):
        return _tell(options, found, len(found.files), None)
    with spark_options.opened(options, "history") as spark:
        return _import(options, dataset, found, rename, spark)


def _is_url(path: str) -> bool:
    return "://" in path


def _import(
    options: argparse.Namespace,
    dataset: Dataset,
    found: _Found,
    rename: Mapping[str, str],
    spark: Any,  # noqa: ANN401 - a session of Spark, imported only when needed
    *,
    repeated: bool = False,
) -> int:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from autoscaler.history import ingest_records as records
    from autoscaler.history.progress import watched

    ledger = _ledger(dataset)
    news = list(found.files) if options.again else _news(found, ledger)
    now = datetime.fromtimestamp(time.time(), UTC)
    if options.explain and news:
        spark_options.tell_plan(options, records.plans(spark, news, now=now, rename=rename))
    try:
        with watched(spark, f"importing {count_of(len(news), 'file')}"):
            done = records.add(spark, dataset, news, now=now, rename=rename, torn=found.torn)
    except (AutoscalerError, PySparkException, Py4JError) as error:
        gone = [file for file in news if not Path(file).exists()]
        if not gone:
            raise
        if repeated:
            raise AutoscalerError(f"{gone[0]}: was packed or removed while it was imported; run this again") from error
        # A daemon packs an hour when the next one has begun: the same lines are in another file now.
        return _import(options, dataset, _find(options.sources), rename, spark, repeated=True)
    ledger |= {file: found.files[file] for file in news}
    dataset.keep_note(LEDGER, json.dumps(ledger, indent=0) + "\n")
    return _tell(options, found, len(found.files) - len(news), done)


def _ledger(dataset: Dataset) -> dict[str, list[Any]]:
    """What was imported: file -> size and time of the last change."""
    try:
        told = json.loads(dataset.note(LEDGER) or "{}")
    except ValueError:
        return {}  # it only saves time
    return told if isinstance(told, dict) else {}


def _news(found: _Found, ledger: Mapping[str, object]) -> list[str]:
    return [file for file, state in found.files.items() if ledger.get(file) != state]


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
    """All files of a source, packed and plain, in the order of their names: what is in two of them is added once."""
    if not source.is_dir():
        source.stat()
        # Spark takes `..` away without a look at links, and what a file's own name ends in tells how to read it.
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


def _tell(options: argparse.Namespace, found: _Found, unchanged: int, done: Imported | None) -> int:
    merged = None if done is None else done.merged
    told: dict[str, Any] = {
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
        print_json(told)
    else:
        _show(told, options.dataset)
        complain(*(f"warning: {problem}" for problem in (*found.problems, *map(_damaged, told["damaged"]))))
    records = [told[what].get("decisions", 0) for what in ("added", "known")]
    return OK if any(records) or not told["files"]["read"] else FAILED


def _damaged(file: str) -> str:
    return f"{file}: is damaged; what could be read of it was imported"


def _show(told: Mapping[str, Any], dataset: str) -> None:
    added, known = told["added"].get("decisions", 0), told["known"].get("decisions", 0)
    days = told["dates"].get("decisions", [])
    rejected = sum(told["rejected"].values())
    rows = [
        ("files read", f"{told['files']['read']:,}", ""),
        ("files not changed since they were imported", f"{told['files']['unchanged']:,}", "--again reads them too"),
        ("records added", f"{added:,}", _span(days)),
        ("records there already, or twice", f"{known:,}", ""),
        ("lines and files set aside", f"{rejected:,}", f"table rejected of {dataset}" if rejected else ""),
        *((f"  {reason}", f"{count:,}", "") for reason, count in sorted(told["rejected"].items())),
    ]
    table(("what", "how many", ""), [row for row in rows if row[1] != "0" or row[0] in {"files read", "records added"}])
    if not told["files"]["read"]:
        say("", "Nothing has changed since the last import.")


def _span(days: Sequence[str]) -> str:
    if not days:
        return ""
    return f"{count_of(len(days), 'day')}, {days[0]} to {days[-1]}" if len(days) > 1 else f"on {days[0]}"
