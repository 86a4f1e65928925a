"""Computes the metrics of a Spark Structured Streaming query: pure functions of a snapshot.

Positions are the sources' offsets summed over partitions. For Kafka, and for most sources that report their newest
offset, they count records. All times are on the driver's clock, so two clocks are never compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from autoscaler.clients.spark_progress import Batch, Run
from autoscaler.ports import AnswerError

CLOCK_TOLERANCE = 5.0
BETWEEN_BATCHES = 1.0
IDLE_SLACK = 5.0
MIN_TRUSTED = 60.0
TRUSTED_WINDOWS = 4
TRUSTED_BATCHES = 10
STEP_FACTOR = 1.25
NOISE_FACTOR = 3.0
BACKLOG_SHARE = 0.05
BACKLOG_SECONDS = 0.25
BACKLOG_RECORDS = 2
MAX_PAUSE = 0.2
UNSEEN_SHARE = 0.25
RECORDS_PER_OFFSET = (0.1, 4.0)
MIN_ROWS = 20
STALL_FACTOR = 3.0
STALL_BATCHES = 20


class Metric(StrEnum):
    """The metrics of a query."""

    LAG = "lag"
    LAG_SECONDS = "lag_seconds"
    ARRIVALS = "arrivals"
    THROUGHPUT = "throughput"
    SATURATION = "saturation"
    UTILIZATION = "utilization"
    BATCH_TIME = "batch_time"


class UnseenBacklogError(AnswerError):
    """It is unknown whether batches left a backlog, because their source does not report its newest offset."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value, and the time on the driver's clock at which it was true."""

    value: float
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The input from which a query's metrics are computed.

    Attributes:
        run: the run of the query, with its last batches.
        now: the driver's clock.
        steady: the same time on a clock that nobody sets; None if it is not reported.
        window: seconds to average over.
        working: whether a batch is running; None: unknown, for example because the driver could not be reached.
        changes: when executors were added and removed, in any order.
        idle_every: after this many seconds without data Spark reports that the query is idle.
    """

    run: Run
    now: float
    window: float
    working: bool | None = None
    changes: tuple[float, ...] = ()
    idle_every: float = 10.0
    steady: float | None = None


def check_active(run: Run, now: float) -> None:
    """Raise AnswerError when the query has ended: its last figures do not describe a load."""
    if run.terminated is not None:
        why = f": {run.exception}" if run.exception else ""
        raise AnswerError(f"{run.label} ended {now - run.terminated:.0f} s ago{why}")


def batches(snapshot: Snapshot) -> tuple[Batch, ...]:
    """The run's batches, oldest first, since its positions last went back or the driver's clock was last set.

    Raises:
        AnswerError: the query has ended, no batch has completed, the newest batch is in the future, or the
            driver's clock was set during or after it.
    """
    run = snapshot.run
    check_active(run, snapshot.now)
    kept: list[Batch] = []
    before: Batch | None = None
    for batch in run.progress:
        if before is not None and abs(_clock_set(before, batch)) > CLOCK_TOLERANCE:
            kept.clear()  # drop this batch too: it may have started before or after the clock was set
        elif kept and _jumped_back(kept[-1], batch):
            kept = [batch]
        else:
            kept.append(batch)
        before = batch
    if before is None:
        raise AnswerError(f"{run.label} has not completed a batch yet")
    if not kept:
        raise AnswerError(f"{run.label}: the clock of its driver was set during its last batch; waiting for the next")
    if max(kept[-1].start, kept[-1].received) > snapshot.now + CLOCK_TOLERANCE:
        raise AnswerError(
            f"{run.label}: its last batch is {kept[-1].start - snapshot.now:.0f} s in the future of its "
            "driver's clock, "
            "so the clock was set back; waiting for the next batch"
        )
    jump = clock_jump(kept[-1].received, kept[-1].steady, snapshot.now, snapshot.steady)
    if abs(jump) > CLOCK_TOLERANCE:
        raise AnswerError(
            f"{run.label}: the clock of its driver was set by {jump:+.0f} s since its last batch; "
            "waiting for the next batch"
        )
    return tuple(kept)


def _clock_set(before: Batch, after: Batch) -> float:
    return clock_jump(before.received, before.steady, after.received, after.steady)


def clock_jump(before: float, steady_before: float | None, after: float, steady_after: float | None) -> float:
    """Seconds by which a clock was set between two times, measured with a steady clock; 0 without a steady clock."""
    if steady_before is None or steady_after is None:
        return 0.0
    return (after - before) - (steady_after - steady_before)


def _jumped_back(before: Batch, after: Batch) -> bool:
    if after.number <= before.number or after.start <= before.start:
        return True
    for old, new in ((before.head, after.head), (before.done, after.done)):
        if (old is None) != (new is None):
            return True
        if old is not None and new is not None and new < old:
            return True
    # A new partition adds its own position to the sum, which is not growth.
    return [source.partitions for source in before.sources] != [source.partitions for source in after.sources]


def is_idle(snapshot: Snapshot, last: Batch) -> bool:
    """Whether the query is waiting for data, and is not working, between two batches, or stuck."""
    if snapshot.working is True or (last.left or 0) > 0:
        return False
    alive = max(last.received, snapshot.run.idle or 0.0)
    silence = max(snapshot.idle_every, 2 * snapshot.run.interval) + IDLE_SLACK
    if snapshot.now - alive > silence:
        return False
    if snapshot.working is None:
        return (snapshot.run.idle or 0.0) > last.received
    # The next batch may have finished its job although its progress is not reported yet.
    lengths = [batch.length for batch in snapshot.run.progress[-3:]]
    return snapshot.now - last.end > BETWEEN_BATCHES + 1.5 * max(lengths)


def paused_at(snapshot: Snapshot, last: Batch) -> float | None:
    """When the query reported that it was idle, if that was after its last batch; else None."""
    idle_at = snapshot.run.idle
    return idle_at if idle_at is not None and idle_at > last.received and not last.left else None


def head_known(snapshot: Snapshot, last: Batch) -> float:
    """The latest time for which we know that no record has arrived since the last batch was admitted."""
    if not is_idle(snapshot, last):
        return max(last.start, paused_at(snapshot, last) or 0.0)
    if snapshot.run.interval:
        # Spark sees new data only at the next trigger; triggers fire at multiples of the interval.
        return max(last.start, snapshot.now - snapshot.now % snapshot.run.interval)
    return snapshot.now


def position(batch: Batch, what: str) -> int:
    """The newest position that a batch saw. Raises AnswerError when a source does not report it."""
    head = batch.head
    if head is None:
        silent = next((source for source in batch.sources if source.latest is None), None)
        name = silent.description if silent else "the query"
        raise AnswerError(
            f"{what} is unknown: {name} does not report its newest offset; "
            "use a source that does (Kafka, or a Python data source with reportLatestOffset), or let the job count "
            "the waiting records: report(spark, waiting=...)"
        )
    return head


def check_unit(known: Sequence[Batch]) -> None:
    """Raise AnswerError when offsets clearly do not count records (but seconds, bytes or files)."""
    if not counts_records(known):
        rows, way = _moved(known)
        raise AnswerError(
            f"the offsets of {known[-1].sources[0].description} do not count records: "
            f"{rows} rows were read while they moved by {way}"
        )


def counts_records(known: Sequence[Batch]) -> bool:
    """Whether offsets seem to count records, judged by the number of rows that Spark counted."""
    rows, way = _moved(known)
    least, most = RECORDS_PER_OFFSET
    return rows < MIN_ROWS or way == 0 or least <= rows / way <= most


def _moved(known: Sequence[Batch]) -> tuple[int, int]:
    """The rows that batches read, and the distance by which their positions moved."""
    rows = way = 0
    for batch in known:
        records = batch.records
        if batch.rows and records is not None and batch.done is not None:
            rows += batch.rows
            way += records
    return rows, way


def arrivals(snapshot: Snapshot) -> Value:
    """Records per second that arrive: the growth of the newest position."""
    known = batches(snapshot)
    if snapshot.run.once:
        raise AnswerError(
            f"{snapshot.run.label} reads the data that exists at its start and ends ({snapshot.run.trigger}), so its "
            "rate of arrivals is unknown; use a processing-time trigger"
        )
    points = _points(known)
    check_unit(known)
    until = head_known(snapshot, known[-1])
    if until > known[-1].start:
        points.append((until, points[-1][1]))
    rate = growth(points, snapshot.window)
    if rate is None:
        raise AnswerError(f"{snapshot.run.label}: the rate of arrivals needs two batches, there is one")
    return Value(rate, points[-1][0])


def _points(known: Sequence[Batch]) -> list[tuple[float, float]]:
    """(time, newest position) at the start of each batch, and at the last idle report before it."""
    points: list[tuple[float, float]] = []
    before: Batch | None = None
    for batch in known:
        idle_at = batch.idle
        if before is not None and idle_at is not None and before.received < idle_at < batch.start and not before.left:
            points.append((idle_at, points[-1][1]))
        points.append((batch.start, float(position(batch, "the rate of arrivals"))))
        before = batch
    return points


def growth(points: Sequence[tuple[float, float]], window: float) -> float | None:
    """The growth of positions per second over the window that ends with the newest; None with fewer than two points.

    After a step upwards, only the intervals since the step count. A step is at least two newest intervals (or one of a
    third of the window) that all exceed the rate before by a quarter and by more than chance explains. A step downwards
    is averaged over the window: it is not urgent, and a rate that is too low would be dangerous.
    """
    newest = points[-1][0] if points else 0.0
    spans: list[tuple[float, float]] = []
    for (t0, p0), (t1, p1) in itertools.pairwise(points):
        inside = t1 - max(t0, newest - window)
        if inside > 0 and t1 > t0:
            spans.append((inside, (p1 - p0) * inside / (t1 - t0)))
    if not spans:
        return None
    time_all, count_all = sum(dt for dt, _ in spans), sum(count for _, count in spans)
    rates = [count_all / time_all]
    time_since = count_since = 0.0
    for index in range(len(spans) - 1, 0, -1):
        dt, count = spans[index]
        time_since, count_since = time_since + dt, count_since + count
        before = max(0.0, (count_all - count_since) / max(time_all - time_since, 1e-9))
        enough = len(spans) - index >= 2 or time_since >= window / 3  # noqa: PLR2004 - one may be chance
        if enough and all(
            count > STEP_FACTOR * before * dt + NOISE_FACTOR * math.sqrt(max(1.0, before * dt))
            for dt, count in spans[index:]
        ):
            rates.append(count_since / time_since)
    return max(rates)


def lag(snapshot: Snapshot) -> Value:
    """Records waiting: the backlog that the last batch left, plus the arrivals since it was admitted."""
    known = batches(snapshot)
    last = known[-1]
    position(last, "lag")
    check_unit(known)
    if last.left is None:
        raise AnswerError("lag is unknown: a source does not report the offset up to which it has read")
    waiting = is_idle(snapshot, last)
    pause = paused_at(snapshot, last)
    if pause is not None and not waiting:
        raise AnswerError(
            f"{snapshot.run.label} was idle {snapshot.now - pause:.0f} s ago and is not idle now; "
            "its lag is unknown until a batch has ended"
        )
    quiet = snapshot.now - last.end
    trusted = max(MIN_TRUSTED, TRUSTED_WINDOWS * snapshot.window, TRUSTED_BATCHES * max(b.length for b in known))
    if not waiting and quiet > trusted:
        what = "a batch is running" if snapshot.working else "no batch is seen running and the query is not idle"
        raise AnswerError(
            f"{snapshot.run.label} has completed no batch for {quiet:.0f} s ({what}; its longest took "
            f"{max(b.length for b in known):.0f} s): it is stuck, and its lag can no longer be estimated"
        )
    try:
        rate = arrivals(snapshot).value
    except AnswerError:
        return Value(float(last.left), last.start)  # the first batch: its backlog was true when it started
    return Value(last.left + rate * (snapshot.now - head_known(snapshot, last)), snapshot.now)


def lag_seconds(snapshot: Snapshot) -> Value:
    """Lag divided by arrivals: the seconds that the waiting records took to arrive."""
    waiting, rate = lag(snapshot), arrivals(snapshot)
    if waiting.value == 0:
        return waiting
    if rate.value == 0:
        raise AnswerError(f"{waiting.value:.0f} records wait and none arrive, so lag in seconds has no meaning")
    return Value(waiting.value / rate.value, waiting.at)


@dataclass(frozen=True, slots=True)
class Selection:
    """The batches from which throughput, saturation and batch time are computed.

    Attributes:
        batches: oldest first; empty when the query was idle for the whole window.
        until: the time after the last batch counts as idle until this time.
        settled: whether all batches ran on the same set of slots, with warm processes.
    """

    batches: tuple[Batch, ...]
    until: float
    settled: bool


def left_backlog(batch: Batch, rate: float) -> bool:
    """Whether a batch left a backlog: more records than can arrive between its admission and the report."""
    left = batch.left or 0
    return left > max(BACKLOG_SHARE * (batch.records or 0), BACKLOG_SECONDS * rate, BACKLOG_RECORDS)


def select_batches(snapshot: Snapshot, known: Sequence[Batch]) -> Selection:
    """Choose the batches that represent the present.

    These are the batches that ended within the window, at least the last one unless the query has been idle since.
    They must not span a change of the executors. The first batch that ends after a change is left out: it is slow (cold
    processes) and ran on two sets of slots. Until a later batch has ended, the batches before the change are used, with
    their own time. If batches start as fast as possible, only the newest batches that all left a backlog, or all did
    not, are used, if there are at least two of them.
    """
    last = known[-1]
    waiting = is_idle(snapshot, last)
    since = (snapshot.now if waiting else last.end) - snapshot.window
    recent = tuple(batch for batch in known if batch.end > since)
    # Until the trigger's interval is over, the last batch still represents the query's work.
    over = paused_at(snapshot, last) is not None or snapshot.now >= last.start + snapshot.run.interval
    if not recent and waiting and over:
        return Selection((), snapshot.now, settled=True)
    recent = recent or (last,)
    until = snapshot.now if waiting else last.end
    settled = True
    change = max((at for at in (*snapshot.changes, snapshot.run.started) if at <= snapshot.now), default=-math.inf)
    cold = next((batch.end for batch in known if batch.end > change), math.inf)
    if recent[0].start < cold:
        after = tuple(batch for batch in recent if batch.start >= cold)
        before = tuple(batch for batch in known if change - snapshot.window < batch.end <= change)
        if after:
            recent = after
        elif before and not waiting:
            recent, until = before, before[-1].end
        else:
            settled = False
    if not snapshot.run.interval and not waiting:
        rate = _rate(known, snapshot.window)
        state = left_backlog(recent[-1], rate)
        same = tuple(itertools.takewhile(lambda batch: left_backlog(batch, rate) == state, reversed(recent)))[::-1]
        if len(same) >= 2:  # noqa: PLR2004 - one batch may be chance
            recent = same
    return Selection(recent, until, settled)


def _rate(known: Sequence[Batch], window: float) -> float:
    points = [(batch.start, float(batch.head)) for batch in known if batch.head is not None]
    return growth(points, window) or 0.0


def _covered(chosen: Selection, interval: float) -> list[tuple[Batch, float]]:
    """Each batch with the seconds until the next batch started, or would have started."""
    ends = [batch.start for batch in chosen.batches[1:]]
    last = chosen.batches[-1]
    ends.append(max(last.end, last.start + interval, chosen.until))
    return [(batch, end - batch.start) for batch, end in zip(chosen.batches, ends, strict=True)]


def throughput(snapshot: Snapshot) -> Value:
    """Records per second that completed batches processed."""
    known = batches(snapshot)
    chosen = select_batches(snapshot, known)
    if not chosen.batches:
        return Value(0.0, chosen.until)
    parts = _covered(chosen, snapshot.run.interval)
    counted = counts_records(known)
    records = [batch.records if counted else batch.rows for batch, _ in parts]
    if any(count is None for count in records):
        raise AnswerError(f"{snapshot.run.label}: Spark does not report how many rows its batches read")
    span = sum(seconds for _, seconds in parts)
    if span <= 0:
        raise AnswerError(f"{snapshot.run.label}: its last batch took no time")
    return Value(sum(count or 0 for count in records) / span, chosen.until)


def saturation(snapshot: Snapshot) -> Value:
    """The share of its capacity that the query uses, 0 to 1; from 0.95 on, its throughput is its capacity."""
    known = batches(snapshot)
    chosen = select_batches(snapshot, known)
    if not chosen.batches:
        return Value(0.0, chosen.until)
    if not chosen.settled:
        raise AnswerError(f"{snapshot.run.label}: its executors have changed, and no whole batch has run on them yet")
    parts = _covered(chosen, snapshot.run.interval)
    span = sum(seconds for _, seconds in parts)
    if span <= 0:
        raise AnswerError(f"{snapshot.run.label}: its last batch took no time")
    rate, unseen = _rate(known, snapshot.window), _unseen(snapshot, known)
    busy = unknown = 0.0
    for batch, seconds in parts:
        if is_stalled(batch, known):
            continue  # it was waiting, perhaps for a hung worker, so its throughput is not the capacity
        if snapshot.run.interval:
            busy += batch.length
            continue
        # Batches follow one another even at low load, so their time alone tells nothing. A batch that left a backlog
        # was full. Any other batch is compared with the shortest and the smallest one, which are nearly all overhead:
        # the more it exceeds both, the fuller it was.
        full = 1.0 if left_backlog(batch, rate) else _beyond_overhead(batch, known)
        took = seconds if seconds - batch.length <= MAX_PAUSE else batch.length
        if batch.number in unseen:
            unknown += (1.0 - full) * took
            full = 1.0
        busy += full * took
    if unknown > UNSEEN_SHARE * span:
        raise UnseenBacklogError(
            f"{snapshot.run.label}: its batches follow each other at once, and whether they leave a backlog is "
            "unknown: a source does not report its newest offset; use a processing-time trigger, or let the job "
            "count the waiting records: report(spark, waiting=...)"
        )
    return Value(min(1.0, busy / span), chosen.until)


def _unseen(snapshot: Snapshot, known: Sequence[Batch]) -> set[int]:
    """The numbers of batches that may have left a backlog which their source does not report.

    The next batch started at once after such a batch and read something. The last batch is such a batch too, if it
    started at once after its predecessor, read something, and the query is not idle.
    """
    followed = [one for one, after in itertools.pairwise(known) if after.records != 0 and _at_once(one, after)]
    last = known[-1]
    if len(known) > 1 and last.records != 0 and _at_once(known[-2], last) and not is_idle(snapshot, last):
        followed.append(last)
    return {batch.number for batch in followed if batch.left is None}


def _at_once(one: Batch, after: Batch) -> bool:
    return after.start - one.end <= MAX_PAUSE


def _beyond_overhead(batch: Batch, known: Sequence[Batch]) -> float:
    some = [other for other in known if other.records]
    if not some or not batch.records or batch.length <= 0:
        return 0.0
    longer = 1 - min(other.length for other in some) / batch.length
    larger = 1 - min(other.records or 0 for other in some) / batch.records
    return max(0.0, min(longer, larger))


def is_stalled(batch: Batch, known: Sequence[Batch]) -> bool:
    """Whether a batch took far longer than the median batch, in total and per record."""
    others = [other for other in known if other.records and other.length > 0 and other is not batch][-STALL_BATCHES:]
    if len(others) < 3 or not batch.records:  # noqa: PLR2004 - fewer have no typical length
        return False
    return batch.length > STALL_FACTOR * median(other.length for other in others) and (
        batch.length / batch.records > STALL_FACTOR * median(other.length / (other.records or 1) for other in others)
    )


def batch_time(snapshot: Snapshot) -> Value:
    """The average seconds of a batch from its trigger to its commit."""
    known = batches(snapshot)
    chosen = select_batches(snapshot, known)
    taken = chosen.batches or known[-1:]
    return Value(sum(batch.length for batch in taken) / len(taken), chosen.until)


METRICS: dict[Metric, Callable[[Snapshot], Value]] = {
    Metric.LAG: lag,
    Metric.LAG_SECONDS: lag_seconds,
    Metric.ARRIVALS: arrivals,
    Metric.THROUGHPUT: throughput,
    Metric.SATURATION: saturation,
    Metric.BATCH_TIME: batch_time,
}
