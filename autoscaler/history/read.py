"""Read a dataset as records, for a replay, without Spark.

Records are exactly as they were imported. If an observation has no decision, as after an import from Prometheus, the
decision is derived from the size at the next observation.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from autoscaler.core.model import (
    Bound,
    Control,
    ControlKind,
    Decision,
    EngineStatus,
    JobState,
    Observation,
    Phase,
    Reading,
    Reason,
    Recommendation,
    Verdict,
)
from autoscaler.history.dataset import Dataset, DatasetError, open_dataset
from autoscaler.history.dataset.layout import day_of, unreadable
from autoscaler.ports import Record
from autoscaler.trace.verdict_trail import restored

BATCH = 2000
"""Maximum rows of a file that are in memory at a time."""

GAP = 2.5
"""After a pause longer than this many intervals (the shortest so far), a new size does not show the last decision."""

_Row = Mapping[str, Any]
_Key = tuple[str, datetime]


def read(
    path: str | Path,
    *,
    clusters: Collection[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    advanced: Callable[[int], object] = lambda _: None,
) -> Iterator[Record]:
    """Read the records of a dataset, day by day and cluster by cluster; those of one cluster in order of time.

    Memory holds one batch per file and one record per cluster. `since` and `until` are inclusive. Row groups without
    the wanted `clusters` are not read. `advanced` is called with the number of days done.

    Raises:
        DatasetError: there is no dataset, or one of its files cannot be read.
    """
    dataset = _opened(path)
    observed = dataset.files("observations")
    decided = dataset.files("decisions")
    waiting: dict[str, _Undecided] = {}
    first, last = day_of(since), day_of(until)
    for done, (day, names) in enumerate(observed.items(), 1):
        if day is not None and not ((first and day < first) or (last and day > last)):
            rows = _rows(dataset, names, clusters)
            for observation, decision in _together(rows, _rows(dataset, decided.get(day, ()), clusters)):
                at = observation["at"]
                if (since and at < since) or (until and at > until):
                    continue
                try:
                    yield from _next(waiting, _observation(observation), observation["cluster"], decision)
                except (KeyError, TypeError, ValueError) as error:
                    raise DatasetError(_invalid(path, observation, error)) from error
        advanced(done)
    for one in waiting.values():
        yield one.record(one.current)


def days(path: str | Path) -> int:
    """The number of days with observations. Raises DatasetError."""
    return len(_opened(path).dates())


def clusters(path: str | Path) -> Counter[str]:
    """The number of observations of each cluster. Raises DatasetError."""
    dataset = _opened(path)
    counts: Counter[str] = Counter()
    for name in itertools.chain(*dataset.files("observations").values()):
        with _reading(dataset, name) as file:
            for batch in file.iter_batches(columns=["cluster"]):
                for one in pc.value_counts(batch.column(0)).to_pylist():
                    counts[one["values"]] += one["counts"]
    return counts


# Files


def _opened(path: str | Path) -> Dataset:
    if "://" in str(path):
        raise DatasetError(f"{path}: a dataset can be read record by record only on this machine; copy it here")
    return open_dataset(path)


def _reading(dataset: Dataset, name: str) -> pq.ParquetFile:
    file = Path(dataset.path) / name
    try:
        return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> DatasetError:
    return unreadable(str(file), str(error).splitlines()[0])


def _rows(dataset: Dataset, names: Sequence[str], wanted: Collection[str] | None) -> Iterator[_Row]:
    """The rows of some files of a day, ordered by cluster and time."""
    streams = [_of_file(dataset, name, wanted) for name in names]
    return streams[0] if len(streams) == 1 else heapq.merge(*streams, key=_key)


def _of_file(dataset: Dataset, name: str, wanted: Collection[str] | None) -> Iterator[_Row]:
    file = Path(dataset.path) / name
    last: _Key | None = None
    try:
        with _reading(dataset, name) as opened:
            groups = _groups(opened, wanted)
            if not groups:
                return
            chosen = None if wanted is None else pa.array(sorted(wanted), pa.string())
            for read_batch in opened.iter_batches(BATCH, row_groups=groups):
                batch = read_batch if chosen is None else read_batch.filter(pc.is_in(read_batch["cluster"], chosen))
                for row in _dicts(batch):
                    key = _key(row)
                    if last is not None and key < last:
                        raise DatasetError(f"{file}: is not sorted by cluster and time; import that day again")
                    last = key
                    yield row
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(file, error) from error


def _groups(opened: pq.ParquetFile, wanted: Collection[str] | None) -> list[int]:
    """The row groups that may have one of the wanted clusters according to their statistics."""
    count = opened.metadata.num_row_groups
    if wanted is None:
        return list(range(count))
    place = opened.schema_arrow.names.index("cluster")
    # The metadata lists leaf columns, and a nested column before this one has several.
    leaf = next(
        number for number in range(place, opened.metadata.num_columns) if opened.schema.column(number).path == "cluster"
    )

    def may(number: int) -> bool:
        found = opened.metadata.row_group(number).column(leaf).statistics
        return found is None or not found.has_min_max or any(found.min <= name <= found.max for name in wanted)

    return [number for number in range(count) if may(number)]


def _invalid(path: str | Path, row: _Row, error: Exception) -> str:
    return (
        f"{path}: the row of cluster {row['cluster']} at {row['at']:%Y-%m-%d %H:%M:%S} is not a record: {error!r}; "
        "was it written by another version?"
    )


def _dicts(batch: pa.RecordBatch) -> Iterator[_Row]:
    names = batch.schema.names
    for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        row = dict(zip(names, values, strict=True))
        row["at"] = _time(row["at"])
        yield row


def _key(row: _Row) -> _Key:
    return row["cluster"], row["at"]


def _together(observations: Iterator[_Row], decisions: Iterator[_Row]) -> Iterator[tuple[_Row, _Row | None]]:
    """Pair each observation with the decision of the same cluster and time, if there is one."""
    decision = next(decisions, None)
    for observation in observations:
        while decision is not None and _key(decision) < _key(observation):
            decision = next(decisions, None)
        same = decision is not None and _key(decision) == _key(observation)
        yield observation, decision if same else None


# Observations without a decision


class _Undecided:
    """The last observation of a cluster if it has no decision; the next observation shows which size was set."""

    def __init__(self, cluster: str, observation: Observation, current: int, shortest: timedelta | None) -> None:
        self.cluster = cluster
        self.observation = observation
        self.current = current
        self.shortest = shortest

    def record(self, after: int) -> Record:
        observation, current = self.observation, self.current
        reason = Reason.STEADY if after == current else Reason.ABOVE if after > current else Reason.BELOW
        return Record(
            observation,
            Decision(
                cluster=self.cluster, at=observation.at, current=current, proposed=after, desired=after, reason=reason
            ),
        )


def _next(
    waiting: dict[str, _Undecided], observation: Observation, cluster: str, decision: _Row | None
) -> Iterator[Record]:
    """The previous record, if this observation completes it, and the observation's own record if it has a decision."""
    before = waiting.pop(cluster, None)
    shortest = None
    if before is not None:
        apart = observation.at - before.observation.at
        followed = before.shortest is None or apart <= before.shortest * GAP
        shortest = apart if before.shortest is None else min(apart, before.shortest)
        known = observation.desired is not None and followed
        yield before.record(observation.desired if known and observation.desired is not None else before.current)
    if decision is not None:
        yield _record(observation, decision)
        return
    known_before = 0 if before is None else before.current
    current = known_before if observation.desired is None else observation.desired
    waiting[cluster] = _Undecided(cluster, observation, current, shortest)


# Rows as records


def _record(observation: Observation, decision: _Row) -> Record:
    return Record(observation, _decision(decision), 1, bool(decision["dry_run"]), decision["failed"] or "")


def _observation(row: _Row) -> Observation:
    return Observation(
        **_same(row, "at", "desired", "ready"),
        metrics={name: _metric(metric) for name, metric in row["metrics"] or ()},
        missing=dict(row["missing"] or ()),
        engine=_engine(row["engine"]),
        floor=_bound(row["floor"]),
        ceiling=_bound(row["ceiling"]),
        remarks=tuple(row["remarks"] or ()),
        controls=tuple([_control(each) for each in row.get("controls") or ()]),
    )


def _same(row: _Row, *names: str) -> dict[str, Any]:
    """The fields that a record has in the same form as the row."""
    return {name: row[name] for name in names}


def _metric(row: _Row) -> Reading:
    values = row["values"]
    return Reading(
        row["value"] if values is None else tuple(values),
        _time(row["at"]),
        row["partitions"],
        {part: dict(numbers or ()) for part, numbers in row["parts"] or ()},
        timedelta(seconds=row["over"] or 0.0),
        None if values is None else row["value"],
    )


def _engine(row: _Row | None) -> EngineStatus | None:
    if row is None:
        return None
    return EngineStatus(
        job=JobState(row["job"]),
        **_same(row, "slots", "parallelism", "max_parallelism", "partitions", "restarts"),
        running_since=None if row["running_since"] is None else _time(row["running_since"]),
        last_checkpoint=None if row["last_checkpoint"] is None else _time(row["last_checkpoint"]),
        deadlines={Phase(phase): timedelta(seconds=seconds) for phase, seconds in row["deadlines"] or ()},
    )


def _control(row: _Row) -> Control:
    return Control(
        kind=ControlKind(row["kind"]),
        **_same(row, "by", "replicas", "minimum", "maximum", "reason"),
        at=None if row["at"] is None else _time(row["at"]),
        up=bool(row["up"]),
        down=bool(row["down"]),
        until=None if row["until"] is None else _time(row["until"]),
    )


def _bound(row: _Row | None) -> Bound | None:
    return None if row is None else Bound(row["replicas"], row["reason"])


_FIELDS = itemgetter("policy", "replicas", "reason", "inputs", "detail")


def _decision(row: _Row) -> Decision:
    verdicts = [
        Verdict(Reason(one["guard"]), one["before"], one["after"], Reason(one["reason"]), one["detail"] or "")
        for one in row["verdicts"] or ()
    ]
    return Decision(
        **_same(row, "cluster", "at", "current", "proposed", "desired"),
        reason=Reason(row["reason"]),
        recommendations=tuple(
            Recommendation(replicas, Reason(reason), dict(inputs or ()), detail or "", policy or "")
            for policy, replicas, reason, inputs, detail in map(_FIELDS, row["recommendations"] or ())
        ),
        verdicts=restored([Reason(name) for name in (row.get("guards") or "").split()], verdicts, row["proposed"]),
        notes=tuple((Reason(note["reason"]), note["text"]) for note in row["notes"] or ()),
        combined=row["combined"] or "",
    )


def _time(at: datetime) -> datetime:
    # Spark's INT96 times have no time zone, and are UTC.
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
