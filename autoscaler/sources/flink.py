"""Metrics of a Flink job, from the JobManager's REST API.

The first half computes: pure functions of a snapshot. The second half fetches, once a poll for all
metrics of a job.

Flink counts, for every subtask, the milliseconds it was busy, idle and backpressured since it started.
Together they are the subtask's age on its own machine, the very moment its other counters were read. That is the
clock of all rates here: it does not matter when the JobManager gathered a counter, nor whether the TaskManagers
answered at the same time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar, NamedTuple

from autoscaler.clients.flink import Aggregate, Checkpoints, FlinkApi, FlinkParameters, Job, Subtask, Vertex
from autoscaler.core import dataflow
from autoscaler.core.model import Reading
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import AnswerError, EdgeError, EdgeTimeoutError, NotYetError, RefusedError, Shared
from autoscaler.schedulers.slots import MOST_MAX_PARALLELISM, Bounds, slots_needed

BUSY, IDLE, BACKPRESSURED = "accumulateBusyTimeMs", "accumulateIdleTimeMs", "accumulateBackPressuredTimeMs"
NOW_BUSY, NOW_IDLE, NOW_BACKPRESSURED = "busyTimeMsPerSecond", "idleTimeMsPerSecond", "backPressuredTimeMsPerSecond"
RECORDS_IN, RECORDS_OUT = "numRecordsIn", "numRecordsOut"
TASK = frozenset({BUSY, IDLE, BACKPRESSURED, NOW_BUSY, NOW_IDLE, NOW_BACKPRESSURED, RECORDS_IN, RECORDS_OUT})
PER_SECOND = "PerSecond"
TASK_RATES = frozenset({RECORDS_IN + PER_SECOND, RECORDS_OUT + PER_SECOND})
PENDING, SOURCE_IDLE, EVENT_LAG = "pendingRecords", "sourceIdleTime", "currentEmitEventTimeLag"
WATERMARKS = ("currentInputWatermark", "currentOutputWatermark")
OPERATOR = frozenset({PENDING, SOURCE_IDLE, EVENT_LAG, WATERMARKS[1]})
HEAP_USED, HEAP_MAX = "Status.JVM.Memory.Heap.Used", "Status.JVM.Memory.Heap.Max"
GC, CPU = "Status.JVM.GarbageCollector.All.TimeMsPerSecond", "Status.JVM.CPU.Load"

NAMES_REFRESH = 60.0
NAMES_RETRY = 10.0  # Flink's Kafka source has no pendingRecords before its first record
MIN_RATE_SPAN = 1000.0  # ms between two samples that make a rate
MEAN_SPAN = 65.0  # Flink's own rates are means over 60 s, and too low before a task has run that long
MAX_GAP = 60.0
MAX_GAP_WINDOWS = 4
UNSATURATED = 0.9
LESS_THAN_MEAN = 0.05  # by how much the hottest subtask may be below the mean of the busiest vertex
COUNT_TOLERANCE = 0.05  # how far a count of subtasks may be from a whole number
NO_TIME = 2.0**62  # Flink's watermarks before the first and after the last record
KAFKA, PULSAR = ".KafkaSourceReader.topic.", ".PulsarConsumer."
MAX_NAME = 80  # names of vertices can be as long as an SQL statement


class Metric(StrEnum):
    """The metrics of a job."""

    LAG = "lag"
    ARRIVALS = "arrivals"
    THROUGHPUT = "throughput"
    SATURATION = "saturation"
    UTILIZATION = "utilization"
    CAPACITY = "capacity"
    REQUIRED_PARALLELISM = "required_parallelism"
    REQUIRED_SLOTS = "required_slots"
    VERTICES = "vertices"
    BUSY = "busy"
    IDLE = "idle"
    BACKPRESSURED = "backpressured"
    RECORDS_IN = "records_in"
    RECORDS_OUT = "records_out"
    TRUE_RATE = "true_rate"
    WATERMARK_LAG = "watermark_lag"
    EVENT_LAG = "event_lag"
    SOURCE_IDLE = "source_idle"
    HEAP = "heap"
    GC = "gc"
    CPU = "cpu"
    CHECKPOINT_DURATION = "checkpoint_duration"
    CHECKPOINT_AGE = "checkpoint_age"


VERTEX_METRICS = frozenset(
    {Metric.BUSY, Metric.IDLE, Metric.BACKPRESSURED, Metric.RECORDS_IN, Metric.RECORDS_OUT, Metric.TRUE_RATE}
)
"""Metrics that a vertex can be named for; the last three must."""
NEEDS_VERTEX = frozenset({Metric.RECORDS_IN, Metric.RECORDS_OUT, Metric.TRUE_RATE})
RATE_METRICS = frozenset({Metric.ARRIVALS, Metric.THROUGHPUT})
WORKER_METRICS = frozenset({Metric.HEAP, Metric.GC, Metric.CPU})
SHARE_METRICS = WORKER_METRICS | {
    *(Metric.SATURATION, Metric.UTILIZATION),
    *(Metric.BUSY, Metric.IDLE, Metric.BACKPRESSURED),
}
REQUIREMENT_METRICS = frozenset({Metric.REQUIRED_PARALLELISM, Metric.REQUIRED_SLOTS})
CHECKPOINT_METRICS = frozenset({Metric.CHECKPOINT_DURATION, Metric.CHECKPOINT_AGE})


class Aggregator(StrEnum):
    """How the busy times of a vertex's subtasks become one (`job.autoscaler.metrics.busy-time.aggregator`)."""

    MAX = "MAX"
    MIN = "MIN"
    AVG = "AVG"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkQuery:
    """One metric of a Flink job.

    Attributes:
        metric: lag, arrivals, throughput, saturation, utilization, capacity, required_parallelism, required_slots; of
            every vertex at once vertices; of one busy, idle, backpressured, records_in, records_out, true_rate; of
            time watermark_lag, event_lag, source_idle; of the TaskManagers heap, gc, cpu; of checkpoints
            checkpoint_duration, checkpoint_age.
        vertex: which vertex: its id, its name, or a part of its name that no other has; busy, idle and backpressured
            without it are those of the vertex that has most. Default: none.
        aggregate: over the subtasks of a vertex avg, max (the hottest) or min; for busy, idle, backpressured,
            capacity, required_parallelism, required_slots, true_rate and vertices. Default: max for the last five, as
            in Flink's own autoscaler, else avg.
        utilization: how busy the busiest vertex may be, above 0 to 1, for required_parallelism and required_slots;
            default 0.7.
        catch_up: in what time the lag, and what arrives during a restart, is to be processed, for required_parallelism
            and required_slots; default 0s: nothing is added for them.
        restart: how long a restart takes, for required_parallelism and required_slots; default 0s.
    """

    metric: str
    vertex: str | None = None
    aggregate: str | None = None
    utilization: float = 0.7
    catch_up: timedelta = timedelta(0)
    restart: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        if self.metric not in set(Metric):
            raise ParameterError("metric", f"must be one of {', '.join(Metric)}, not {self.metric!r}")
        if self.vertex is not None and self.metric not in VERTEX_METRICS:
            raise ParameterError(
                "vertex", f"has no meaning for {self.metric}; it is for {', '.join(sorted(VERTEX_METRICS))}"
            )
        if self.vertex is None and self.metric in NEEDS_VERTEX:
            raise ValueError(f"{self.metric} needs a vertex: its id, or a part of its name")
        if self.aggregate not in {None, "avg", "max", "min"}:
            raise ParameterError("aggregate", f"must be avg, max or min, not {self.aggregate!r}")
        if not (math.isfinite(self.utilization) and 0 < self.utilization <= 1):
            raise ParameterError("utilization", f"must be above 0 and at most 1, not {self.utilization}")
        for name in ("catch_up", "restart"):
            if getattr(self, name) < timedelta(0):
                raise ParameterError(name, "must not be negative")

    @property
    def share(self) -> bool:
        """Whether it is a share from 0 to 1."""
        return self.metric in SHARE_METRICS

    @property
    def aggregator(self) -> Aggregator:
        """How busy times of subtasks become one."""
        hottest = self.metric in {Metric.CAPACITY, Metric.TRUE_RATE, Metric.VERTICES, *REQUIREMENT_METRICS}
        return Aggregator((self.aggregate or ("max" if hottest else "avg")).upper())


# ----------------------------------------------------------------------------------------------------------
# the snapshot


@dataclass(frozen=True, slots=True)
class Sample:
    """One vertex at one time.

    Attributes:
        at: seconds on the event loop's clock when it was true, as far as is known.
        clock: mean age of its subtasks in milliseconds; None where Flink does not measure it (legacy sources).
        count: subtasks that reported.
        metrics: what they reported.
        pending: records waiting; None when it does not report.
    """

    at: float
    clock: float | None
    count: int
    metrics: Mapping[str, Aggregate]
    pending: float | None = None

    def sum(self, name: str) -> float:
        """Sum over the subtasks, NaN when it is not reported."""
        known = self.metrics.get(name)
        return math.nan if known is None else known.sum


@dataclass(slots=True)
class Track:
    """A vertex over the window.

    Attributes:
        vertex: as the job shows it now.
        samples: oldest first, of one run, without a step backwards.
        missing: why it cannot be measured now, or None.
        ended: whether all its subtasks have finished.
        partitions: of the log that it reads; 0: none, or it does not report.
    """

    vertex: Vertex
    samples: Sequence[Sample] = ()
    missing: str | None = None
    ended: bool = False
    partitions: int = 0

    @property
    def last(self) -> Sample:
        """The newest sample. Raises AnswerError when there is none."""
        if self.missing or not self.samples:
            raise AnswerError(f"vertex {self.vertex.name!r}: {self.missing or 'it has no sample yet'}")
        return self.samples[-1]

    def points(self, value: Callable[[Sample], float | None]) -> list[tuple[float, float | None]]:
        """(milliseconds, value) of each sample."""
        clocked = all(sample.clock is not None for sample in self.samples)
        return [((sample.clock or 0.0) if clocked else sample.at * 1000, value(sample)) for sample in self.samples]

    def grown(self, value: Callable[[Sample], float | None]) -> float:
        """Growth per second over the window; NaN with less than two samples that are a second apart."""
        points = [point for point in self.points(value) if point[1] is not None and not math.isnan(point[1])]
        if len(points) < 2 or points[-1][0] - points[0][0] < MIN_RATE_SPAN:  # noqa: PLR2004 - a rate lies between two
            return math.nan
        return dataflow.rate(points)


class SubtaskId(NamedTuple):
    """One attempt of a subtask; a restarted one is another."""

    taskmanager: str
    number: int
    attempt: int


class SubtaskClock(NamedTuple):
    """What a subtask has counted since it started, in milliseconds."""

    busy: float
    age: float


@dataclass(frozen=True, slots=True)
class SubtasksSample:
    """The running subtasks of one vertex at one time, on the event loop's clock in seconds."""

    at: float
    subtasks: Mapping[SubtaskId, SubtaskClock]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a job's metrics are computed from.

    Attributes:
        job: the job as it is now.
        at: when its metrics were true, on the event loop's clock.
        tracks: vertex -> its samples.
        subtasks: those of the vertex with the hottest subtask over the window, oldest first, where they are known.
        workers: metrics over the TaskManagers, where they were requested.
        checkpoints: where they were requested.
    """

    job: Job
    at: float
    tracks: Mapping[str, Track] = field(default_factory=dict)
    subtasks: Sequence[SubtasksSample] = ()
    workers: Mapping[str, Aggregate] = field(default_factory=dict)
    checkpoints: Checkpoints | None = None

    @property
    def sources(self) -> list[Track]:
        """The vertices that nothing feeds, without those that have ended."""
        found = [self.tracks[vertex.id] for vertex in self.job.sources]
        return [track for track in found if not track.ended]

    @property
    def alive(self) -> list[Track]:
        """All vertices but those that have ended."""
        return [track for track in self.tracks.values() if not track.ended]


def source_counter(track: Track) -> str:
    """The counter of the records that a source reads.

    Its reader counts them where it is built as Flink's connectors are (`Source__x.numRecordsIn`); of one that does
    not count, what it gives out must do. The first that is not 0 is taken, as in Flink's autoscaler.
    """
    known = track.last.metrics
    own = sorted(name for name in known if name.startswith("Source__"))
    candidates = [
        *(name for name in own if name.endswith("." + RECORDS_IN)),
        *(name for name in (RECORDS_IN,) if name in known),
        *(name for name in own if name.endswith("." + RECORDS_OUT)),
        *(name for name in (RECORDS_OUT,) if name in known),
    ]
    if not candidates:
        raise AnswerError(f"vertex {track.vertex.name!r} does not report how many records it reads")
    return next((name for name in candidates if known[name].sum > 0), candidates[-1])


def record_rate(track: Track, name: str) -> float:
    """Growth of one of a vertex's counters, per second. Raises AnswerError when it is not known yet."""
    last = track.last
    grown = track.grown(lambda sample: sample.sum(name))
    if not math.isnan(grown):
        return max(0.0, grown)
    # Flink's own mean over 60 s must do at the first poll.
    mean = last.metrics.get(name + PER_SECOND)
    if mean is not None and last.clock is not None and last.clock >= MEAN_SPAN * 1000 and math.isfinite(mean.sum):
        return max(0.0, mean.sum)
    raise NotYetError(f"vertex {track.vertex.name!r}: a rate needs two polls of its counters; this was the first")


def read_rate(track: Track) -> float:
    """Records per second that a source reads."""
    return record_rate(track, source_counter(track))


def pending_records(track: Track) -> float:
    """Records that wait for a source. Raises AnswerError when it does not report."""
    pending = track.last.pending
    if pending is None:
        raise AnswerError(
            f"{track.vertex.name!r} does not report pendingRecords (Flink's Kafka source does once it has read; legacy "
            "sources never do); read the lag elsewhere, such as by the source kafka or prometheus"
        )
    if not math.isfinite(pending) or pending < 0:
        raise AnswerError(f"{track.vertex.name!r} reports {pending} pendingRecords")
    return pending


def share(track: Track, total: str, now: str, aggregator: Aggregator = Aggregator.AVG) -> float:
    """Share of the time, 0 to 1, that the subtasks of a vertex spend so; NaN where Flink does not measure it.

    The mean is computed over the window, the hottest and the idlest from Flink's own shares, each of which is of the
    last 5 s.
    """
    last = track.last
    if aggregator is Aggregator.AVG:
        grown = track.grown(lambda sample: sample.sum(total))
        if not math.isnan(grown):
            return min(1.0, max(0.0, grown / 1000 / last.count))
    some = [sample.metrics[now] for sample in track.samples if now in sample.metrics]
    values = [getattr(known, aggregator.value.lower()) / 1000 for known in some]
    if aggregator is Aggregator.AVG:
        values = values[-1:]
    mean = dataflow.average(values)
    return min(1.0, max(0.0, mean)) if math.isfinite(mean) else math.nan


def busy(track: Track, aggregator: Aggregator = Aggregator.AVG) -> float:
    """Share of the time that it works."""
    return share(track, BUSY, NOW_BUSY, aggregator)


def backpressured(track: Track) -> float:
    """Share of the time that it waits for those downstream."""
    return share(track, BACKPRESSURED, NOW_BACKPRESSURED, Aggregator.AVG)


# ----------------------------------------------------------------------------------------------------------
# the metrics


def lag(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Records waiting at all sources."""
    return sum(pending_records(track) for track in _existing(snapshot.sources))


def averaging_span(snapshot: Snapshot) -> float:
    """Seconds that the sources' rates are means over: 0 where they have not been polled equally often."""
    spans = {round(track.samples[-1].at - track.samples[0].at, 1) for track in snapshot.sources if track.samples}
    return spans.pop() if len(spans) == 1 else 0.0


def throughput(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Records per second that all sources read."""
    return sum(read_rate(track) for track in _existing(snapshot.sources))


def arrivals(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Records per second offered: what is read, and what the lag grows by."""
    return sum(_offered(track) for track in _existing(snapshot.sources))


def _offered(track: Track) -> float:
    rate = read_rate(track)
    name = track.vertex.name
    why, error = f"{name!r} reports no pendingRecords", AnswerError
    if track.last.pending is not None:
        pending_records(track)
        grows = track.grown(lambda sample: sample.pending)
        if not math.isnan(grows):
            return max(0.0, rate + grows)
        why, error = f"how its lag grows needs two polls, and this was the first at {name!r}", NotYetError
    if _load(track) < UNSATURATED:
        return rate  # it reads all that arrives
    raise error(
        f"what arrives at {name!r} is unknown: {why}; it is busy all the time, so it may read less than arrives"
    )


def _load(track: Track) -> float:
    """Share of the time that a source has something to read: it works, or waits for those downstream."""
    parts = [part for part in (busy(track), backpressured(track)) if not math.isnan(part)]
    if not parts:
        raise AnswerError(f"{track.vertex.name!r} reports neither how busy nor how backpressured it is")
    return min(1.0, sum(parts))


def saturation(snapshot: Snapshot, _: FlinkQuery) -> float:
    """How busy the job is with all the work it could take: that of its busiest vertex, or of a backpressured source."""
    shares = [busy(track) for track in _existing(snapshot.alive)] + [_load(track) for track in snapshot.sources]
    known = [one for one in shares if not math.isnan(one)]
    if not known:
        raise AnswerError("no vertex reports how busy it is")
    return max(known)


def utilization(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Busy share of the slots: that of the busiest vertex, mean over its subtasks."""
    return _most(snapshot, BUSY, NOW_BUSY, Aggregator.AVG)


def worker_shares(samples: Sequence[SubtasksSample]) -> tuple[float, ...]:
    """Busy share over the samples of the busiest subtask of each TaskManager, in the order of their ids.

    The busiest and not the mean of a TaskManager's slots: a subtask that is busy all the time holds up those before
    it, however idle its neighbours are. All samples are of the same subtasks; nothing with fewer than two of them, or
    while one of the subtasks has counted less than a second.
    """
    if len(samples) < 2:  # noqa: PLR2004 - a rate lies between two
        return ()
    shares: dict[str, float] = {}
    for subtask, last in samples[-1].subtasks.items():
        first = samples[0].subtasks[subtask]
        if last.age - first.age < MIN_RATE_SPAN:
            return ()
        busy_for = min(1.0, max(0.0, (last.busy - first.busy) / (last.age - first.age)))
        shares[subtask.taskmanager] = max(busy_for, shares.get(subtask.taskmanager, 0.0))
    return tuple(shares[worker] for worker in sorted(shares))


def hottest_vertex(tracks: Iterable[Track]) -> str | None:
    """The vertex with the busiest subtask, by Flink's own shares over the window; None where none reports it."""
    known = [(busy(track, Aggregator.MAX), track.vertex.id) for track in tracks if track.samples]
    return max([one for one in known if not math.isnan(one[0])], default=(0.0, None))[1]


def _most(snapshot: Snapshot, total: str, now: str, aggregator: Aggregator) -> float:
    shares = [share(track, total, now, aggregator) for track in _existing(snapshot.alive)]
    known = [one for one in shares if not math.isnan(one)]
    if not known:
        raise AnswerError(f"no vertex reports {total}")
    return max(known)


def _share(total: str, now: str) -> Callable[[Snapshot, FlinkQuery], float]:
    def of(snapshot: Snapshot, query: FlinkQuery) -> float:
        if query.vertex is None:
            return _most(snapshot, total, now, query.aggregator)
        track = find_vertex(snapshot, query.vertex)
        found = share(track, total, now, query.aggregator)
        if math.isnan(found):
            raise AnswerError(f"{track.vertex.name!r} does not report {now} (legacy sources do not)")
        return found

    return of


def records_in(snapshot: Snapshot, query: FlinkQuery) -> float:
    """Records per second that a vertex takes in; a source: that it reads."""
    track = find_vertex(snapshot, query.vertex or "")
    return read_rate(track) if track in snapshot.sources else record_rate(track, RECORDS_IN)


def records_out(snapshot: Snapshot, query: FlinkQuery) -> float:
    """Records per second that a vertex gives out, counted once for each vertex that gets them."""
    return record_rate(find_vertex(snapshot, query.vertex or ""), RECORDS_OUT)


def true_rate(snapshot: Snapshot, query: FlinkQuery) -> float:
    """Records per second that a vertex could take in at its parallelism."""
    track = find_vertex(snapshot, query.vertex or "")
    return _finite(_true_rate(track, track in snapshot.sources, query.aggregator), f"the true rate of {query.vertex!r}")


def _true_rate(track: Track, source: bool, aggregator: Aggregator) -> float:
    rate = read_rate(track) if source else record_rate(track, RECORDS_IN)
    observed = []
    if source and track.last.pending is not None:
        # Flink takes one sample a time; the window is one here, so its mean stands for all of them.
        held = backpressured(track)
        one = dataflow.observed_while_catching_up(rate, track.last.pending, 0.0 if math.isnan(held) else held * 1000)
        observed = [one, one]
    return dataflow.true_processing_rate(busy(track, aggregator) * 1000, rate, observed)


@dataclass(frozen=True, slots=True)
class Work:
    """What every vertex must do, and could do, by the rules of Flink's autoscaler."""

    graph: dataflow.Graph
    rates: Mapping[str, dataflow.Rates]
    targets: Mapping[str, dataflow.TargetRate]
    true_rates: Mapping[str, float]
    sources: frozenset[str]


def work(snapshot: Snapshot, query: FlinkQuery, target: Callable[[Track, FlinkQuery], dataflow.TargetRate]) -> Work:
    """Put the vertices together. `target` computes what a source must take.

    Raises:
        AnswerError: one of them cannot be measured.
    """
    alive = {track.vertex.id: track for track in _existing(snapshot.alive)}
    inputs = snapshot.job.inputs
    edges = tuple((start, end) for end in alive for start in inputs[end] if start in alive)
    try:
        graph = dataflow.Graph(tuple(alive), edges)
    except ValueError as error:
        raise AnswerError(f"the plan of the job cannot be used: {error}") from None
    sources = frozenset(track.vertex.id for track in snapshot.sources)
    rates: dict[str, dataflow.Rates] = {}
    true_rates: dict[str, float] = {}
    targets: dict[str, dataflow.TargetRate] = {}
    for vertex, track in alive.items():
        source = vertex in sources
        taken = read_rate(track) if source else record_rate(track, RECORDS_IN)
        given = record_rate(track, RECORDS_OUT) if graph.outputs(vertex) else math.nan
        rates[vertex] = dataflow.Rates(taken, given)
        true_rates[vertex] = _true_rate(track, source, query.aggregator)
        if source:
            targets[vertex] = target(track, query)
    ratios = dataflow.output_ratios(graph, rates)
    return Work(graph, rates, dataflow.target_rates(graph, targets, ratios), true_rates, sources)


def _taken(track: Track, _: FlinkQuery) -> dataflow.TargetRate:
    """What a source takes now."""
    return dataflow.TargetRate(read_rate(track))


def _target(track: Track, query: FlinkQuery) -> dataflow.TargetRate:
    """What a source must take: a source that does not report its lag, what it takes, as in Flink's autoscaler."""
    if track.last.pending is None:
        return _taken(track, query)
    seconds = query.catch_up.total_seconds()
    return dataflow.TargetRate(_offered(track), pending_records(track) / seconds if seconds else 0.0)


def capacity(snapshot: Snapshot, query: FlinkQuery) -> float:
    """Records per second that the whole job could process at its sources, at its present parallelism."""
    known = work(snapshot, query, _taken)
    found = dataflow.job_true_rate(
        known.graph, {v: target.rate for v, target in known.targets.items()}, known.true_rates
    )
    names = [snapshot.tracks[vertex].vertex.name for vertex in found.unknown if vertex not in known.graph.sources]
    if names:
        raise AnswerError(f"what the job could process is unknown: {', '.join(names)} cannot be measured")
    return _finite(found.rate, "the capacity of the job")


def required_parallelism(snapshot: Snapshot, query: FlinkQuery) -> float:
    """Parallelism that the neediest vertex needs for what is offered, at the wished utilization."""
    return float(max(_needed(snapshot, query).values()))


def required_slots(snapshot: Snapshot, query: FlinkQuery) -> float:
    """Slots with which every vertex gets the parallelism it needs: where all share slots, that of the neediest.

    Flink before 1.20 does not report the slot sharing groups; there all vertices are taken to be in one, as is the
    default.
    """
    needed = _needed(snapshot, query)
    # A vertex that is over, or whose need is not known, still has its share of the slots when it is deployed again.
    groups: dict[str | None, list[tuple[Bounds, int]]] = {}
    for vertex in snapshot.job.vertices:
        most = vertex.max_parallelism if vertex.max_parallelism > 0 else MOST_MAX_PARALLELISM
        groups.setdefault(vertex.slot_sharing_group, []).append((Bounds(1, most), needed.get(vertex.id, 1)))
    return float(
        slots_needed(
            [[bounds for bounds, _ in group] for group in groups.values()],
            [[wanted for _, wanted in group] for group in groups.values()],
        )
    )


def _needed(snapshot: Snapshot, query: FlinkQuery) -> dict[str, int]:
    """Vertex -> the parallelism it needs. Raises AnswerError unless that is known of every one that matters."""
    known = work(snapshot, query, _target)
    needed = {}
    for track in snapshot.alive:
        vertex = track.vertex
        target, rate = known.targets[vertex.id], known.true_rates[vertex.id]
        wanted = dataflow.target_capacity(target, query.utilization, query.catch_up, query.restart)
        if math.isnan(rate) and vertex.id in known.graph.sources:
            continue  # a legacy source: how much it needs is not known, and it is rarely what limits
        if math.isnan(rate) or math.isnan(wanted):
            raise AnswerError(f"the parallelism that {vertex.name!r} needs is unknown: its rates cannot be measured")
        if known.rates[vertex.id].records_in == 0 and wanted > 0:
            # By Flink's rules it could do anything, which would shrink a job that is stuck.
            waiting = f"{target.rate:g} records/s arrive" if target.rate > 0 else "records wait for it"
            raise AnswerError(
                f"the parallelism that {vertex.name!r} needs is unknown: it reads no records although {waiting}; "
                "the job is stuck, check its backpressure"
            )
        most = vertex.max_parallelism if vertex.max_parallelism > 0 else None
        # Subtasks of a source that have ended do not count.
        needed[vertex.id] = dataflow.needed_parallelism(track.last.count, rate, wanted, most)
    if not needed:
        raise AnswerError("no vertex reports what it could process")
    return needed


def vertices(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Vertices that still run; what is known of each is in `parts`."""
    return float(len(_existing(snapshot.alive)))


def parts(snapshot: Snapshot, query: FlinkQuery) -> dict[str, dict[str, float]]:
    """What Flink's autoscaler uses of each vertex, by its name and id; what is not known is left out.

    A vertex that is over has only its slot sharing group and its key groups: it is deployed again with the others.
    """
    known = work(snapshot, query, _taken)
    ratios = dataflow.output_ratios(known.graph, known.rates)
    groups: dict[str | None, int] = {}
    found: dict[str, dict[str, float]] = {}
    for vertex in snapshot.job.vertices:
        numbers = {
            "group": float(groups.setdefault(vertex.slot_sharing_group, len(groups))),
            "max_parallelism": float(vertex.max_parallelism) if vertex.max_parallelism > 0 else math.nan,
        }
        track = snapshot.tracks[vertex.id]
        if not track.ended:
            numbers |= _measured(track, known, query) | {"keyed": float(vertex.id in snapshot.job.hashed)}
            numbers |= {f"from:{start}": ratios[start, vertex.id] for start in known.graph.inputs(vertex.id)}
        name = f"{vertex.name[:MAX_NAME]} ({vertex.id})"
        found[name] = {key: number for key, number in numbers.items() if math.isfinite(number)}
    return found


def _measured(track: Track, known: Work, query: FlinkQuery) -> dict[str, float]:
    vertex = track.vertex.id
    pending = pending_records(track) if vertex in known.sources and track.last.pending is not None else math.nan
    return {
        "parallelism": float(track.last.count),
        "source": float(vertex in known.sources),
        "partitions": float(track.partitions),
        "records_in": known.rates[vertex].records_in,
        "records_out": known.rates[vertex].records_out,
        "busy": busy(track, query.aggregator),
        "backpressured": backpressured(track),
        "true_rate": known.true_rates[vertex],
        "lag": pending,
    }


def _finite(value: float, what: str) -> float:
    if math.isnan(value):
        raise AnswerError(f"{what} is unknown: a busy time or a rate that it needs is not measured")
    if math.isinf(value):
        raise AnswerError(f"{what} is unknown while no records flow")
    return value


def watermark_lag(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Seconds that the slowest watermark is behind the JobManager's clock."""
    found = []
    for track in _existing(snapshot.alive):
        for name, known in track.last.metrics.items():
            if name.endswith(WATERMARKS) and math.isfinite(known.min) and abs(known.min) < NO_TIME:
                found.append(known.min)
    if not found:
        raise AnswerError("the job has no watermarks (yet): it does not use event time, or no record has come")
    return max(0.0, (snapshot.job.now - min(found)) / 1000)


def event_lag(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Seconds between an event and its emission by the slowest source subtask."""
    return _of_sources(snapshot, EVENT_LAG, "max")


def source_idle(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Seconds for which even the busiest source subtask has read nothing."""
    return _of_sources(snapshot, SOURCE_IDLE, "min")


def _of_sources(snapshot: Snapshot, suffix: str, which: str) -> float:
    found = []
    for track in _existing(snapshot.sources):
        values = [getattr(known, which) for name, known in track.last.metrics.items() if name.endswith("." + suffix)]
        if not values or not all(math.isfinite(value) and value >= 0 for value in values):
            raise AnswerError(f"{track.vertex.name!r} does not report {suffix} (yet)")
        found += values
    return float(max(found) if which == "max" else min(found)) / 1000


def heap(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Used share of the heap over all TaskManagers."""
    used, most = _worker(snapshot, HEAP_USED).sum, _worker(snapshot, HEAP_MAX).sum
    if not (math.isfinite(used) and most > 0):
        raise AnswerError(f"the TaskManagers report {used} used bytes of heap of {most}")
    return used / most


def gc(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Share of the time that TaskManagers collect garbage, mean over 60 s."""
    return max(0.0, _worker(snapshot, GC).avg / 1000)


def cpu(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Share of its host's processors that a TaskManager's process uses, mean over all."""
    load = _worker(snapshot, CPU).avg
    if not load >= 0:
        raise AnswerError(f"the TaskManagers report {load} as the load of their processors")
    return load


def _worker(snapshot: Snapshot, name: str) -> Aggregate:
    known = snapshot.workers.get(name)
    if known is None:
        raise AnswerError(f"no TaskManager reports {name}")
    return known


def checkpoint_duration(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Seconds that the last completed checkpoint took."""
    latest = None if snapshot.checkpoints is None else snapshot.checkpoints.latest.completed
    if latest is None or latest.duration < 0:
        raise AnswerError("no checkpoint has completed (yet)")
    return latest.duration / 1000


def checkpoint_age(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Seconds since the last completed checkpoint began: what a restart would do again."""
    latest = None if snapshot.checkpoints is None else snapshot.checkpoints.latest.completed
    if latest is None:
        raise AnswerError("no checkpoint has completed (yet)")
    return max(0.0, (snapshot.job.now - latest.triggered) / 1000)


def _existing(tracks: Sequence[Track]) -> Sequence[Track]:
    if not tracks:
        raise AnswerError("the job has no vertex that still runs")
    return tracks


def find_vertex(snapshot: Snapshot, text: str) -> Track:
    """The vertex of that id or name, or the only one with that in its name. Raises AnswerError."""
    tracks = list(snapshot.tracks.values())
    exact = [track for track in tracks if text in {track.vertex.id, track.vertex.name}]
    found = exact or [track for track in tracks if text in track.vertex.name]
    if len(found) != 1:
        names = ", ".join(repr(track.vertex.name) for track in tracks)
        count = "no vertex" if not found else f"{len(found)} vertices"
        raise AnswerError(f"the job has {count} named {text!r}; it has {names}")
    return found[0]


METRICS: dict[Metric, Callable[[Snapshot, FlinkQuery], float]] = {
    Metric.LAG: lag,
    Metric.ARRIVALS: arrivals,
    Metric.THROUGHPUT: throughput,
    Metric.SATURATION: saturation,
    Metric.UTILIZATION: utilization,
    Metric.CAPACITY: capacity,
    Metric.REQUIRED_PARALLELISM: required_parallelism,
    Metric.REQUIRED_SLOTS: required_slots,
    Metric.VERTICES: vertices,
    Metric.BUSY: _share(BUSY, NOW_BUSY),
    Metric.IDLE: _share(IDLE, NOW_IDLE),
    Metric.BACKPRESSURED: _share(BACKPRESSURED, NOW_BACKPRESSURED),
    Metric.RECORDS_IN: records_in,
    Metric.RECORDS_OUT: records_out,
    Metric.TRUE_RATE: true_rate,
    Metric.WATERMARK_LAG: watermark_lag,
    Metric.EVENT_LAG: event_lag,
    Metric.SOURCE_IDLE: source_idle,
    Metric.HEAP: heap,
    Metric.GC: gc,
    Metric.CPU: cpu,
    Metric.CHECKPOINT_DURATION: checkpoint_duration,
    Metric.CHECKPOINT_AGE: checkpoint_age,
}


# ----------------------------------------------------------------------------------------------------------
# fetching


def useful_names(names: frozenset[str]) -> frozenset[str]:
    """Those of a vertex's metrics that are used. A comma would split a name in the request."""
    found = {name for name in names if name in TASK | TASK_RATES or name == WATERMARKS[0]}
    for name in names:
        operator, _, last = name.rpartition(".")
        if "," in name or not operator or ".split." in name:
            continue
        if last in OPERATOR or (
            operator.startswith("Source__") and last.removesuffix(PER_SECOND) in {RECORDS_IN, RECORDS_OUT}
        ):
            found.add(name)
    return frozenset(found)


def partitions(names: Iterable[str]) -> int:
    """Partitions that a source reads, by the names of its metrics: `updateKafkaPulsarSourceNumPartitions`.

    Only Flink's connectors for Kafka and Pulsar report them; 0 for any other.
    """
    found: set[tuple[str, str]] = set()
    for name in names:
        if KAFKA in name and name.endswith(".currentOffset"):
            topic, _, number = name.partition(KAFKA)[2].removesuffix(".currentOffset").rpartition(".partition.")
        elif PULSAR in name and name.endswith(".numMsgsReceived"):
            topic, _, rest = name.partition(PULSAR)[2].rpartition("-partition-")
            number = rest.partition(".")[0]
        else:
            continue
        if topic and number.isdecimal():
            found.add((topic, number))
    return len(found)


def make_sample(metrics: Mapping[str, Aggregate], at: float, expected: int) -> Sample | str:
    """Make a sample of what the subtasks reported, or return why that cannot be trusted."""
    if not metrics:
        return "its subtasks report no metrics yet"
    parts = [metrics[name] for name in (BUSY, IDLE, BACKPRESSURED) if name in metrics]
    measured = [part for part in parts if math.isfinite(part.sum) and math.isfinite(part.avg)]
    total, mean = sum(part.sum for part in measured), sum(part.avg for part in measured)
    whole = len(measured) == len((BUSY, IDLE, BACKPRESSURED)) and mean > 0
    count = total / mean if whole else float(expected)
    if abs(count - expected) > COUNT_TOLERANCE:
        return f"{count:.0f} of its {expected} running subtasks report metrics"
    pending = [known.sum for name, known in metrics.items() if name.endswith("." + PENDING)]
    return Sample(at, mean if whole else None, expected, metrics, sum(pending) if pending else None)


def trim_sample(known: Sample) -> Sample:
    """A sample as it is kept for the window: what grows, and the shares of the hottest subtask."""
    kept = {
        name: value
        for name, value in known.metrics.items()
        if name in {BUSY, IDLE, BACKPRESSURED, NOW_BUSY, NOW_IDLE, NOW_BACKPRESSURED}
        or name.endswith((RECORDS_IN, RECORDS_OUT))
    }
    return replace(known, metrics=kept)


def make_subtasks_sample(subtasks: Iterable[Subtask], at: float) -> SubtasksSample | None:
    """Make a sample of the subtasks that run; None when the times of one of them are not known."""
    found = {}
    for one in subtasks:
        if one.status == "RUNNING":
            age = one.times.busy + one.times.idle + one.times.backpressured
            if not 0 < age < math.inf:
                return None
            found[SubtaskId(one.taskmanager, one.number, one.attempt)] = SubtaskClock(one.times.busy, age)
    return SubtasksSample(at, found) if found else None


def continues(before: Sample, after: Sample) -> bool:
    """Whether no counter has decreased: else subtasks have restarted in between."""
    if (before.clock is None) != (after.clock is None) or before.count != after.count:
        return False
    if before.clock is not None and after.clock is not None and after.clock < before.clock:
        return False
    counters = [name for name in after.metrics if name.endswith((RECORDS_IN, RECORDS_OUT))]
    return all(not after.sum(name) < before.sum(name) for name in counters)


@dataclass(frozen=True, kw_only=True)
class Flink(FlinkParameters):
    """Metrics of a Flink job. The engine `flink` has the same parameters.

    Attributes:
        url: the JobManager's REST address, such as http://jobmanager:8081.
        job: the job's name, by which it is followed over restarts, or its id; default: the only job that runs.
        window: time over which rates and shares are averaged; default 30s.
        timeout: time within which all that a reading needs must arrive, each answer within 45 % of it; default 3s.
        username: user for basic authentication, where a proxy before the JobManager needs it; default: none.
        password: the user's password.
        token: bearer token, instead of user and password; default: none.
        ca_file: PEM file with the certificates that sign the server's; default: those of the system.
    """

    window: timedelta = timedelta(seconds=30)

    Query: ClassVar[type] = FlinkQuery

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window <= timedelta(0):
            raise ParameterError("window", "must be above 0")

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[FlinkSource]:
        """Open it. Nothing is sent before the first `collect`."""
        source = FlinkSource(await self.api(shared), self)
        try:
            yield source
        finally:
            await source.close()


class FlinkSource:
    """The live source: polls all vertices once for the metrics of one observation."""

    def __init__(self, api: FlinkApi, parameters: Flink) -> None:
        self._api = api
        self._parameters = parameters
        self._window = parameters.window.total_seconds()
        self._limit = parameters.timeout.total_seconds() * 0.95
        self._run: tuple[object, ...] = ()
        self._samples: dict[str, deque[Sample]] = {}
        self._names: dict[str, tuple[float, frozenset[str]]] = {}
        self._partitions: dict[str, int] = {}
        self._subtasks: dict[str, deque[SubtasksSample]] = {}
        self._hottest: str | None = None
        self._sampled: str | None = None
        self._asked_by_worker = False
        self._shows_subtasks = True
        self._polling: asyncio.Task[Snapshot] | None = None
        self._polled_for: datetime | None = None
        self._missed = False

    async def close(self) -> None:
        """Cancel a poll that is under way."""
        if self._polling is not None and not self._polling.done():
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def collect(self, query: FlinkQuery, now: datetime) -> Reading:
        """Read one metric. Raises EdgeError."""
        metric = Metric(query.metric)
        self._asked_by_worker |= metric is Metric.UTILIZATION
        try:
            async with asyncio.timeout(self._limit):
                snapshot = await self._snapshot(metric, now)
        except TimeoutError:
            raise EdgeTimeoutError(f"{self._parameters.url} did not answer all requests in {self._limit:g} s") from None
        value = METRICS[metric](snapshot, query)
        if not math.isfinite(value) or value < 0:
            raise AnswerError(f"job {snapshot.job.name!r}: {metric} came out as {value}")
        known = parts(snapshot, query) if metric is Metric.VERTICES else {}
        over = timedelta(seconds=averaging_span(snapshot) if metric in RATE_METRICS else 0.0)
        at = now - timedelta(seconds=max(0.0, time.monotonic() - snapshot.at))
        shares = worker_shares(snapshot.subtasks) if metric is Metric.UTILIZATION else ()
        if shares and max(shares) > value - LESS_THAN_MEAN:
            return Reading(shares, at, mean=value)
        return Reading(value, at, parts=known, over=over)

    async def _snapshot(self, metric: Metric, now: datetime) -> Snapshot:
        if metric in WORKER_METRICS:
            job, at = await self._job()
            names = {Metric.HEAP: [HEAP_USED, HEAP_MAX], Metric.GC: [GC], Metric.CPU: [CPU]}[metric]
            return Snapshot(job, at, workers=await self._api.taskmanager_metrics(names))
        if metric in CHECKPOINT_METRICS:
            job, _ = await self._job()
            checkpoints = await self._api.checkpoints(job.jid)
            return Snapshot(job, time.monotonic(), checkpoints=checkpoints)
        return await self._poll(now)

    async def _poll(self, now: datetime) -> Snapshot:
        """One poll for all metrics of one observation."""
        task = self._polling
        if task is None or (task.done() and (self._polled_for != now or task.cancelled() or task.exception())):
            task = self._polling = asyncio.create_task(self._vertices())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._polled_for = now
        # One caller's cancellation must not take the answer from the others.
        return await asyncio.shield(task)

    async def _job(self) -> tuple[Job, float]:
        """The job, and when its metrics were true. Raises AnswerError when it does not run."""
        line = await self._api.find_job(self._parameters.job)
        name = self._parameters.job
        if line is None:
            raise AnswerError(f"{self._api.endpoint.url} runs no job" + (f" named {name!r}" if name else ""))
        if line.ended:
            raise AnswerError(f"job {line.name!r} is {line.state}")
        job = await self._api.job(line.jid)
        state = line.state if line.state != "RUNNING" else job.state
        if state != "RUNNING":
            raise AnswerError(f"job {line.name!r} is {state}, so it has no metrics now")
        age = await self._api.metrics_age(job)
        if age is None:
            raise AnswerError(f"job {line.name!r} has just started: Flink has no metrics of this run yet")
        return job, time.monotonic() - age

    async def _vertices(self) -> Snapshot:
        try:
            snapshot = await self._tracks()
        except EdgeError:
            self._missed = True
            raise
        self._missed = False
        return snapshot

    async def _tracks(self) -> Snapshot:
        job, at = await self._job()
        run = (job.jid, job.since("RUNNING"), tuple((vertex.id, vertex.parallelism) for vertex in job.vertices))
        if run != self._run:
            self._run = run
            self._samples.clear()
            self._names.clear()
            self._partitions.clear()
            self._subtasks.clear()
            self._hottest, self._shows_subtasks = None, True
        # Of the vertex that was hottest at the last poll, so that nothing waits for it; a rate needs two polls anyway.
        tracks, subtasks = await asyncio.gather(
            asyncio.gather(*(self._track(job, vertex, at) for vertex in job.vertices)),
            self._sample_subtasks(job, self._hottest, at),
        )
        self._hottest = hottest_vertex(tracks)
        # A TaskManager that hangs keeps its last figures: they are no younger for being gathered again.
        newest = [track.samples[-1].at for track in tracks if track.samples]
        return Snapshot(job, min([at, *newest]), {track.vertex.id: track for track in tracks}, subtasks)

    async def _sample_subtasks(self, job: Job, vertex: str | None, at: float) -> tuple[SubtasksSample, ...]:
        """Those of a vertex over the window; none where they cannot be read now, so that utilization is a mean."""
        if vertex is None or not (self._asked_by_worker and self._shows_subtasks):
            return ()
        try:
            found = make_subtasks_sample(await self._api.subtasks(job.jid, vertex), at)
        except (RefusedError, AnswerError):
            self._shows_subtasks = False  # a scheduler inside a Spark job shows none
            return ()
        except EdgeError:
            return ()
        if found is None:
            return ()
        samples = self._subtasks.setdefault(vertex, deque())
        paused = self._missed or self._sampled != vertex
        self._sampled = vertex
        if samples:
            before, after = samples[-1].subtasks, found.subtasks
            if before == after:
                return tuple(samples)  # the JobManager has gathered nothing new since
            same = before.keys() == after.keys() and all(before[key].age <= after[key].age for key in after)
            if not same or (paused and at - samples[-1].at > max(MAX_GAP, MAX_GAP_WINDOWS * self._window)):
                samples.clear()
        samples.append(found)
        while len(samples) > 2 and samples[1].at <= at - self._window:  # noqa: PLR2004 - a rate lies between two
            samples.popleft()
        return tuple(samples)

    async def _track(self, job: Job, vertex: Vertex, at: float) -> Track:
        counted = {state: count for state, count in vertex.tasks.items() if count}
        if counted and counted.keys() <= {"FINISHED"}:
            return Track(vertex, ended=True)
        if not vertex.running:
            return Track(vertex, missing="not all of its subtasks run")
        found = make_sample(await self._metrics(job, vertex), at, counted.get("RUNNING", 0))
        if isinstance(found, str):
            self._names.pop(vertex.id, None)
            return Track(vertex, missing=found)
        samples = self._samples.setdefault(vertex.id, deque())
        if samples:
            last = samples[-1]
            gap = self._missed and at - last.at > max(MAX_GAP, MAX_GAP_WINDOWS * self._window)
            if gap or not continues(last, found):
                samples.clear()  # a gap in the polls, or restarted subtasks
            elif found.clock is not None and found.clock == last.clock:
                # the JobManager has gathered nothing new since
                return Track(vertex, tuple(samples), partitions=self._partitions.get(vertex.id, 0))
            else:
                samples[-1] = trim_sample(last)
        samples.append(found)
        while len(samples) > 2 and samples[1].at <= at - self._window:  # noqa: PLR2004 - a rate lies between two
            samples.popleft()
        return Track(vertex, tuple(samples), partitions=self._partitions.get(vertex.id, 0))

    async def _metrics(self, job: Job, vertex: Vertex) -> Mapping[str, Aggregate]:
        """What its subtasks report; the names are requested again when they are missing, or there may be new ones."""
        kept = self._names.get(vertex.id)
        now = time.monotonic()
        if kept is not None and now - kept[0] <= (NAMES_REFRESH if kept[1] >= TASK else NAMES_RETRY):
            found = await self._api.vertex_metrics(job.jid, vertex.id, kept[1])
            if found:
                return found
        known = await self._api.vertex_metric_names(job.jid, vertex.id)
        names = useful_names(known)
        if not names:
            return {}
        if vertex in job.sources:
            self._partitions[vertex.id] = partitions(known)
        lazy = vertex in job.sources and not any(name.endswith("." + PENDING) for name in names)
        self._names[vertex.id] = (now - (NAMES_REFRESH - NAMES_RETRY if lazy else 0), names)
        return await self._api.vertex_metrics(job.jid, vertex.id, names)
