"""Measure the queries of a job from their progress, by the same rules as the source `spark`.

A query is measured only when it ends a batch or reports that it is idle. Each measurement includes the query's age at
that moment. Rates between two measurements are therefore exact, and while a batch runs the figures become outdated
but not wrong.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from autoscaler.clients.spark_progress import Batch, Run, read_batch
from autoscaler.injob.reactive.snapshot import Executor, Measures
from autoscaler.injob.report import read_trigger, trim
from autoscaler.ports import AnswerError
from autoscaler.sources.spark_metrics import METRICS, Metric, Snapshot, UnseenBacklogError, counts_records

WINDOW = 5.0
"""Seconds over which the busy share is averaged, as for Flink's `busyTimeMsPerSecond`; a longer batch extends them."""

KEPT = 24
"""How many of a query's last batches are kept for comparison."""

EVERY = 2.0
"""Minimum seconds between two computations of a query's measures, each of which takes some milliseconds."""

log = logging.getLogger("autoscaler.injob.reactive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """The measurements of one run of a query.

    Attributes:
        run: the run's last batches, and when it was last idle.
        begun: when the run started, on the monotonic clock.
        measures: the last measurement; None before the first whole batch.
        share: the last busy share; None: not known.
        busy: seconds in which the query was busy; seconds with an unknown busy share count as busy.
        records: records read so far; None: not known.
        written: rows that the sink has counted so far; None: not known.
        read: when the query last read a record, on the monotonic clock.
    """

    run: Run
    begun: float
    measures: Measures | None = None
    share: float | None = None
    busy: float = 0.0
    records: int | None = 0
    written: int | None = 0
    read: float

    def after(
        self, batch: Batch, changes: Sequence[float], written: int | None = None, watermark: float | None = None
    ) -> Meter:
        """The meter after a batch has ended. `written` is the number of rows that the batch's sink has counted.

        `changes` are the times at which executors were added or removed. They and the watermark are in seconds since
        1970.
        """
        run = replace(self.run, progress=(*self.run.progress, batch)[-KEPT:])
        steady = self.begun if batch.steady is None else batch.steady
        meter = replace(
            self,
            run=run,
            records=_plus(self.records, batch.records if counts_records(run.progress) else batch.rows),
            written=_plus(self.written, written),
            read=steady if batch.records else self.read,
        )
        if self.measures is not None and steady - self.begun < self.measures.age + EVERY:
            return meter
        return _read(meter, batch.received, steady, changes, working=True, watermark=watermark)

    def idle(self, at: float, steady: float, changes: Sequence[float]) -> Meter:
        """The meter after the query has reported that it is idle. `at` is in seconds since 1970."""
        run = replace(self.run, idle=at)
        watermark = self.measures.watermark if self.measures else None
        # `working` is None: the query has just reported that it does not work.
        return _read(replace(self, run=run), at, steady, changes, working=None, watermark=watermark)


def _plus(total: int | None, more: int | None) -> int | None:
    return None if total is None or more is None else total + more


def _read(
    meter: Meter, at: float, steady: float, changes: Sequence[float], *, working: bool | None, watermark: float | None
) -> Meter:
    """The meter with measures taken at `at`."""
    seen = Snapshot(run=meter.run, now=at, steady=steady, window=WINDOW, working=working, changes=tuple(changes))
    share, is_seen = _share(seen) if meter.run.progress else (0.0, True)
    # If executors changed during a batch, it shows the busy share of neither set of executors. Its records and its time
    # count in the sums, so the previous share is used for it. If no share is known yet, the meter stays unmeasured.
    taken = meter.share if share is None and is_seen else share
    if taken is None and is_seen:
        return meter
    was = meter.measures or Measures(age=0.0, busy=None, records=0)
    passed = max(0.0, steady - meter.begun - was.age)
    # The share covers the time since the start of the first new batch. Before that the query was idle.
    began = next((batch.start for batch in meter.run.progress if batch.received > at - passed), at)
    span = min(passed, max(at - began, meter.run.interval))
    busy = meter.busy + (1.0 if taken is None else taken) * span
    read = None if meter.records is None or was.records is None else meter.records - was.records
    now = Measures(
        age=was.age + passed,
        busy=None if taken is None else busy,
        busy_share=share * span / passed if share and passed else share,
        records=meter.records,
        rate=read / passed if read and passed else read,
        pending=known(Metric.LAG, seen),
        written=meter.written,
        idle=max(0.0, steady - meter.read),
        watermark=watermark,
    )
    return replace(meter, measures=now, share=taken, busy=busy)


def _share(snapshot: Snapshot) -> tuple[float | None, bool]:
    """The busy share, or None if it is not known now; and whether this query's share can be known at all."""
    try:
        return METRICS[Metric.SATURATION](snapshot).value, True
    except AnswerError as error:
        return None, not isinstance(error, UnseenBacklogError)


def known(metric: Metric, snapshot: Snapshot) -> float | None:
    """The value that the source `spark` would read, or None if it would report an error."""
    try:
        return max(0.0, METRICS[metric](snapshot).value)
    except AnswerError:
        return None


class Meters:
    """The meters of all queries, written by Spark's listener thread, read by the job's thread. Nothing is raised."""

    def __init__(self, spark: Any, executors: Callable[[], Iterable[Executor]]) -> None:  # noqa: ANN401 - a SparkSession
        self._spark = spark
        self._executors = executors
        self._meters: dict[str, Meter] = {}
        self._lock = threading.Lock()
        self._warned = False

    def seen(self, run: str) -> Measures | None:
        """The last measurement of a query's run; None: there is none yet."""
        with self._lock:
            meter = self._meters.get(run)
        return None if meter is None else meter.measures

    def ended(self, progress: Mapping[str, Any]) -> None:
        """Record a batch that has ended, from its progress."""
        at, steady = time.time(), time.monotonic()
        try:
            meter = self._meters.get(progress["runId"])
            entry = trim(progress, at) | {"steady": steady, "idle": meter and meter.run.idle}
            batch = read_batch(entry)
            if meter is None:
                trigger = read_trigger(self._spark, progress["id"])
                meter = _started(progress["id"], progress["runId"], batch.start, steady - batch.length, trigger)
            written = (progress.get("sink") or {}).get("numOutputRows", -1)
            watermark = _watermark(progress)
            self._keep(meter.after(batch, self._changes(), written if written >= 0 else None, watermark))
        except Exception:  # noqa: BLE001 - nothing may be raised into Spark's thread
            self._warn()

    def idle(self, query: str, run: str) -> None:
        """Record that a query is idle."""
        at, steady = time.time(), time.monotonic()
        try:
            meter = self._meters.get(run) or _started(query, run, at, steady, read_trigger(self._spark, query))
            self._keep(meter.idle(at, steady, self._changes()))
        except Exception:  # noqa: BLE001 - as above
            self._warn()

    def terminated(self, run: str) -> None:
        """Remove the meter of a run that has ended."""
        with self._lock:
            self._meters.pop(run, None)

    def _warn(self) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        log.log(level, "an event of a query is missing in its metrics; the job is not affected", exc_info=True)

    def _keep(self, meter: Meter) -> None:
        with self._lock:
            self._meters[meter.run.run] = meter

    def _changes(self) -> list[float]:
        return [at for one in self._executors() for at in (one.added, one.removed) if at]


def _started(query: str, run: str, at: float, steady: float, trigger: str) -> Meter:
    head = Run(query=query, run=run, trigger=trigger, started=at)
    return Meter(run=head, begun=steady, read=steady)


def _watermark(progress: Mapping[str, Any]) -> float | None:
    """The watermark of a batch, seconds since 1970; None before the first record with an event time."""
    text = (progress.get("eventTime") or {}).get("watermark")
    return (datetime.fromisoformat(text).timestamp() or None) if text else None
