"""Computes the metrics of a Flink job: pure functions of a snapshot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from autoscaler.clients.flink import Aggregate
from autoscaler.core import dataflow
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import AnswerError, NotYetError
from autoscaler.schedulers.slots import MOST_MAX_PARALLELISM, Bounds, slots_needed
from autoscaler.sources.flink_samples import (
    BACKPRESSURED,
    BUSY,
    EVENT_LAG,
    IDLE,
    MIN_RATE_SPAN,
    NOW_BACKPRESSURED,
    NOW_BUSY,
    NOW_IDLE,
    PER_SECOND,
    RECORDS_IN,
    RECORDS_OUT,
    SOURCE_IDLE,
    WATERMARKS,
    Snapshot,
    SubtasksSample,
    Track,
)

HEAP_USED, HEAP_MAX = "Status.JVM.Memory.Heap.Used", "Status.JVM.Memory.Heap.Max"
GC, CPU = "Status.JVM.GarbageCollector.All.TimeMsPerSecond", "Status.JVM.CPU.Load"

MEAN_SPAN = 65.0  # seconds; Flink's own rates are means over 60 s, so they are too low while a task is younger
UNSATURATED = 0.9
NO_TIME = 2.0**62  # Flink's watermarks before the first and after the last record are beyond this
MAX_NAME = 80  # characters; the name of a vertex can be as long as a SQL statement


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
"""Metrics that accept the parameter `vertex`; the last three require it."""
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
    """How to combine the busy times of a vertex's subtasks (`job.autoscaler.metrics.busy-time.aggregator`)."""

    MAX = "MAX"
    MIN = "MIN"
    AVG = "AVG"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkQuery:
    """One metric of a Flink job.

    Attributes:
        metric: for the job: lag, arrivals, throughput, saturation, utilization, capacity, required_parallelism,
            required_slots; for all vertices at once: vertices; for one vertex: busy, idle, backpressured, records_in,
            records_out, true_rate; about time: watermark_lag, event_lag, source_idle; for the TaskManagers: heap, gc,
            cpu; for checkpoints: checkpoint_duration, checkpoint_age.
        vertex: the id of a vertex, its name, or a part of its name that no other vertex has. Without it, busy, idle
            and backpressured are the values of the vertex with the highest value. Default: none.
        aggregate: how to combine the subtasks of a vertex: avg, max (the hottest) or min; for busy, idle,
            backpressured, capacity, required_parallelism, required_slots, true_rate and vertices. Default: max for the
            last five, as in Flink's own autoscaler, else avg.
        utilization: the highest allowed busy share of the busiest vertex, above 0 to 1, for required_parallelism and
            required_slots; default 0.7.
        catch_up: the time in which the job must process the lag and the records that arrive during a restart, for
            required_parallelism and required_slots; default 0s: no parallelism is added for them.
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
        """Whether the metric is a share from 0 to 1."""
        return self.metric in SHARE_METRICS

    @property
    def aggregator(self) -> Aggregator:
        """How to combine the busy times of subtasks."""
        hottest = self.metric in {Metric.CAPACITY, Metric.TRUE_RATE, Metric.VERTICES, *REQUIREMENT_METRICS}
        return Aggregator((self.aggregate or ("max" if hottest else "avg")).upper())


def source_counter(track: Track) -> str:
    """The name of the counter of the records that a source reads.

    Sources that are built like Flink's connectors count the records they read (`Source__x.numRecordsIn`). For other
    sources, the records they emit must be enough. As in Flink's autoscaler, the first counter that is not 0 is used.
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
    # At the first poll, use Flink's own mean over 60 s.
    mean = last.metrics.get(name + PER_SECOND)
    if mean is not None and last.clock is not None and last.clock >= MEAN_SPAN * 1000 and math.isfinite(mean.sum):
        return max(0.0, mean.sum)
    raise NotYetError(f"vertex {track.vertex.name!r}: a rate needs two polls of its counters; this was the first")


def read_rate(track: Track) -> float:
    """Records per second that a source reads."""
    return record_rate(track, source_counter(track))


def pending_records(track: Track) -> float:
    """Records that wait for a source. Raises AnswerError when the source does not report them."""
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
    """Share of the time, 0 to 1, that a vertex's subtasks spend in one condition; NaN if Flink does not measure it.

    The mean (AVG) is computed from the counter `total` over the window. MAX and MIN come from Flink's own shares `now`,
    each of which covers the last 5 s.
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
    """Share of the time that a vertex works."""
    return share(track, BUSY, NOW_BUSY, aggregator)


def backpressured(track: Track) -> float:
    """Share of the time that a vertex waits for downstream vertices."""
    return share(track, BACKPRESSURED, NOW_BACKPRESSURED, Aggregator.AVG)


# ----------------------------------------------------------------------------------------------------------
# the metrics


def lag(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Records waiting at all sources."""
    return sum(pending_records(track) for track in _existing(snapshot.sources))


def averaging_span(snapshot: Snapshot) -> float:
    """Seconds over which the sources' rates are averaged; 0 if the samples of the sources do not span the same time."""
    spans = {round(track.samples[-1].at - track.samples[0].at, 1) for track in snapshot.sources if track.samples}
    return spans.pop() if len(spans) == 1 else 0.0


def throughput(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Records per second that all sources read."""
    return sum(read_rate(track) for track in _existing(snapshot.sources))


def arrivals(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Records per second that arrive: the records that are read, plus the growth of the lag."""
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
        why, error = f"the growth of its lag needs two polls, and this was the first at {name!r}", NotYetError
    if _load(track) < UNSATURATED:
        return rate  # the source is not saturated, so it reads all records that arrive
    raise error(
        f"what arrives at {name!r} is unknown: {why}; it is busy all the time, so it may read less than arrives"
    )


def _load(track: Track) -> float:
    """Share of the time that a source has records to read: it works, or it waits for downstream vertices."""
    parts = [part for part in (busy(track), backpressured(track)) if not math.isnan(part)]
    if not parts:
        raise AnswerError(f"{track.vertex.name!r} reports neither how busy nor how backpressured it is")
    return min(1.0, sum(parts))


def saturation(snapshot: Snapshot, _: FlinkQuery) -> float:
    """The share of its capacity that the job uses: the highest busy share of any vertex, or load of any source."""
    shares = [busy(track) for track in _existing(snapshot.alive)] + [_load(track) for track in snapshot.sources]
    known = [one for one in shares if not math.isnan(one)]
    if not known:
        raise AnswerError("no vertex reports how busy it is")
    return max(known)


def utilization(snapshot: Snapshot, _: FlinkQuery) -> float:
    """Busy share of the slots: the mean over the subtasks of the busiest vertex."""
    return _most(snapshot, BUSY, NOW_BUSY, Aggregator.AVG)


def worker_shares(samples: Sequence[SubtasksSample]) -> tuple[float, ...]:
    """For each TaskManager, in the order of their ids: the busy share of its busiest subtask over the samples.

    It is the busiest subtask and not the mean over the TaskManager's slots, because a subtask that is always busy slows
    down its upstream subtasks, no matter how idle its neighbours are. All samples have the same subtasks. The result is
    empty with fewer than two samples, or while a subtask has counted less than a second.
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
    """The vertex with the busiest subtask, by Flink's own shares over the window; None if no vertex reports them."""
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
    """Records per second that a vertex receives, or that a source reads."""
    track = find_vertex(snapshot, query.vertex or "")
    return read_rate(track) if track in snapshot.sources else record_rate(track, RECORDS_IN)


def records_out(snapshot: Snapshot, query: FlinkQuery) -> float:
    """Records per second that a vertex emits, counted once for each vertex that receives them."""
    return record_rate(find_vertex(snapshot, query.vertex or ""), RECORDS_OUT)


def true_rate(snapshot: Snapshot, query: FlinkQuery) -> float:
    """Records per second that a vertex could process at its parallelism."""
    track = find_vertex(snapshot, query.vertex or "")
    return _finite(_true_rate(track, track in snapshot.sources, query.aggregator), f"the true rate of {query.vertex!r}")


def _true_rate(track: Track, source: bool, aggregator: Aggregator) -> float:
    rate = read_rate(track) if source else record_rate(track, RECORDS_IN)
    observed = []
    if source and track.last.pending is not None:
        # Flink's autoscaler keeps a sample per poll. Here the whole window is one sample, so its mean is used twice.
        held = backpressured(track)
        one = dataflow.observed_while_catching_up(rate, track.last.pending, 0.0 if math.isnan(held) else held * 1000)
        observed = [one, one]
    return dataflow.true_processing_rate(busy(track, aggregator) * 1000, rate, observed)


@dataclass(frozen=True, slots=True)
class Work:
    """The rates that every vertex has, must reach and could reach, by the rules of Flink's autoscaler."""

    graph: dataflow.Graph
    rates: Mapping[str, dataflow.Rates]
    targets: Mapping[str, dataflow.TargetRate]
    true_rates: Mapping[str, float]
    sources: frozenset[str]


def work(snapshot: Snapshot, query: FlinkQuery, target: Callable[[Track, FlinkQuery], dataflow.TargetRate]) -> Work:
    """Compute the rates of all vertices. `target` computes the rate that a source must reach.

    Raises:
        AnswerError: a vertex cannot be measured.
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
    """The rate at which a source reads now."""
    return dataflow.TargetRate(read_rate(track))


def _target(track: Track, query: FlinkQuery) -> dataflow.TargetRate:
    """The rate that a source must reach. If it does not report its lag: its present rate, as in Flink's autoscaler."""
    if track.last.pending is None:
        return _taken(track, query)
    seconds = query.catch_up.total_seconds()
    return dataflow.TargetRate(_offered(track), pending_records(track) / seconds if seconds else 0.0)


def capacity(snapshot: Snapshot, query: FlinkQuery) -> float:
    """Records per second that the whole job could process at its sources, at its current parallelism."""
    known = work(snapshot, query, _taken)
    found = dataflow.job_true_rate(
        known.graph, {v: target.rate for v, target in known.targets.items()}, known.true_rates
    )
    names = [snapshot.tracks[vertex].vertex.name for vertex in found.unknown if vertex not in known.graph.sources]
    if names:
        raise AnswerError(f"the capacity of the job is unknown: {', '.join(names)} cannot be measured")
    return _finite(found.rate, "the capacity of the job")


def required_parallelism(snapshot: Snapshot, query: FlinkQuery) -> float:
    """The highest parallelism that any vertex needs for the arriving records, at the target utilization."""
    return float(max(_needed(snapshot, query).values()))


def required_slots(snapshot: Snapshot, query: FlinkQuery) -> float:
    """The slots with which every vertex gets the parallelism it needs.

    If all vertices are in one slot sharing group, this is the highest parallelism that any vertex needs. Flink before
    1.20 does not report the groups; then all vertices are assumed to be in one group, which is Flink's default.
    """
    needed = _needed(snapshot, query)
    # A vertex that has ended, or whose need is unknown, also needs a slot when the job is deployed again.
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
    """Vertex -> the parallelism it needs, without legacy sources. Raises AnswerError if it is unknown for another."""
    known = work(snapshot, query, _target)
    needed = {}
    for track in snapshot.alive:
        vertex = track.vertex
        target, rate = known.targets[vertex.id], known.true_rates[vertex.id]
        wanted = dataflow.target_capacity(target, query.utilization, query.catch_up, query.restart)
        if math.isnan(rate) and vertex.id in known.graph.sources:
            continue  # a legacy source: its need is unknown, and it is rarely the bottleneck
        if math.isnan(rate) or math.isnan(wanted):
            raise AnswerError(f"the parallelism that {vertex.name!r} needs is unknown: its rates cannot be measured")
        if known.rates[vertex.id].records_in == 0 and wanted > 0:
            # By Flink's rules its true rate would be infinite, and a job that is stuck would be scaled down.
            waiting = f"{target.rate:g} records/s arrive" if target.rate > 0 else "records wait for it"
            raise AnswerError(
                f"the parallelism that {vertex.name!r} needs is unknown: it reads no records although {waiting}; "
                "the job is stuck, check its backpressure"
            )
        most = vertex.max_parallelism if vertex.max_parallelism > 0 else None
        # The sample's count leaves out subtasks of a source that have ended.
        needed[vertex.id] = dataflow.needed_parallelism(track.last.count, rate, wanted, most)
    if not needed:
        raise AnswerError("no vertex reports the rate that it could process")
    return needed


def vertices(snapshot: Snapshot, _: FlinkQuery) -> float:
    """The number of vertices that have not ended; the reading's `parts` has the figures of each."""
    return float(len(_existing(snapshot.alive)))


def parts(snapshot: Snapshot, query: FlinkQuery) -> dict[str, dict[str, float]]:
    """`name (id)` of each vertex -> the figures that Flink's autoscaler uses, without unknown ones.

    A vertex that has ended has only its slot sharing group and its maximum parallelism. They still matter, because the
    vertex is deployed again with the others.
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
    """Share of its host's processors that a TaskManager's process uses, mean over all TaskManagers."""
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
    """Seconds since the last completed checkpoint started: a restart processes the records of this time again."""
    latest = None if snapshot.checkpoints is None else snapshot.checkpoints.latest.completed
    if latest is None:
        raise AnswerError("no checkpoint has completed (yet)")
    return max(0.0, (snapshot.job.now - latest.triggered) / 1000)


def _existing(tracks: Sequence[Track]) -> Sequence[Track]:
    if not tracks:
        raise AnswerError("the job has no vertex that still runs")
    return tracks


def find_vertex(snapshot: Snapshot, text: str) -> Track:
    """The vertex with that id or name, or the only one whose name contains it. Raises AnswerError."""
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
