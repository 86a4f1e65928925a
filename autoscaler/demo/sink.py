"""Read the records that arrived at the sink, without Spark.

Spark's file sink is exactly-once because of its log (`_spark_metadata`): a file counts if a committed batch lists it.
Files that a failed attempt has left do not count.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

LOG = "_spark_metadata"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A record at the sink: its place in the log, the worker that processed it, and when (seconds since 1970)."""

    partition: int
    offset: int
    worker: str
    at: float


@dataclass(frozen=True, slots=True)
class Account:
    """The comparison of offered and processed records.

    Attributes:
        offered: records that were offered.
        processed: records at the sink, including duplicates.
        lost: records that were offered but are not at the sink.
        duplicated: further copies of records at the sink.
        strange: records at the sink that were never offered.
    """

    offered: int
    processed: int
    lost: int
    duplicated: int
    strange: int

    @property
    def exact(self) -> bool:
        """Whether each offered record arrived exactly once, and no other record arrived."""
        return not (self.lost or self.duplicated or self.strange) and self.offered == self.processed


def account(heads: Sequence[int], arrivals: Iterable[tuple[int, int]]) -> Account:
    """Compare the number of records offered in each partition with the partition and offset of each arrived record."""
    seen = Counter(arrivals)
    offered = {(partition, offset) for partition, head in enumerate(heads) for offset in range(head)}
    return Account(
        offered=len(offered),
        processed=seen.total(),
        lost=len(offered - seen.keys()),
        duplicated=seen.total() - len(seen),
        strange=sum(count for record, count in seen.items() if record not in offered),
    )


def committed_files(sink: Path) -> list[Path]:
    """The committed files according to the sink's log, oldest batch first.

    Raises:
        ValueError: the log is incomplete or in an unknown format.
        OSError: the log cannot be read.
    """
    log = sink / LOG
    if not log.is_dir():
        return []
    plain = {int(path.name): path for path in log.iterdir() if path.name.isdigit()}
    compact = {int(path.stem): path for path in log.glob("*.compact") if path.stem.isdigit()}
    newest = max(compact, default=-1)
    later = sorted(number for number in plain if number > newest)
    if later != list(range(newest + 1, newest + 1 + len(later))):
        raise ValueError(f"the sink's log {log} has gaps: batches {later} after {newest}")
    logs = ([compact[newest]] if compact else []) + [plain[number] for number in later]
    files: list[Path] = []
    for path in logs:
        version, *entries = path.read_text().splitlines()
        if version != "v1":
            raise ValueError(f"{path} is in format {version!r}, expected 'v1'")
        for entry in map(json.loads, entries):
            if entry["action"] != "add":
                raise ValueError(f"{path} has the action {entry['action']!r}, expected 'add'")
            files.append(sink / unquote(urlparse(entry["path"]).path).rsplit("/", 1)[-1])
    return files


def commits(sink: Path) -> list[float]:
    """When each batch whose log still exists was committed, oldest first, in seconds since 1970."""
    logs = [path for path in (sink / LOG).glob("*") if path.name.removesuffix(".compact").isdigit()]
    return sorted(path.stat().st_mtime for path in logs)


def read_sink(sink: Path) -> list[Arrival]:
    """Every record at the sink, in the order in which they were processed.

    Raises:
        ValueError: the sink's log is incomplete or in an unknown format.
        OSError: a committed file cannot be read.
    """
    import pyarrow as pa  # noqa: PLC0415 - it belongs to an extra
    import pyarrow.parquet as pq  # noqa: PLC0415 - it belongs to an extra

    tables = [pq.ParquetFile(path).read() for path in committed_files(sink)]
    if not tables:
        return []
    table = pa.concat_tables(tables)
    columns = [table.column(name).to_pylist() for name in ("partition", "offset", "worker", "at")]
    return sorted((Arrival(*row) for row in zip(*columns, strict=True)), key=lambda arrival: arrival.at)
