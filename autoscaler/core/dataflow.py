"""How records flow through the vertices of a job: what each vertex processes, could process, and must process.

The rules are those of the autoscaler of a streaming engine's operator, number for number; each docstring names the
class and method it follows, and the policy that uses them names the operator and its version. Rates are records per
second, busy and backpressured times are milliseconds per second (0 to 1000), times of samples are milliseconds.

Unknown numbers are NaN. Every function is total: the result is NaN if a relevant input is NaN, and infinity if a vertex
receives no records and so shows no limit. Code that turns a result into a metric must filter out both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from operator import add

NAN = math.nan
INF = math.inf

Samples = Iterable[tuple[float, float | None]]
"""The readings of a window: (time in ms, value), None or NaN for a missing value. Any order."""

_SECOND = timedelta(seconds=1)
_LONGEST = float(2**63)  # Java's Math.round is capped at its largest long, which is this number as a double


@dataclass(frozen=True, slots=True)
class Rates:
    """The records/s that a vertex receives and sends now, over all its subtasks and all its edges."""

    records_in: float
    records_out: float = NAN


@dataclass(frozen=True, slots=True)
class TargetRate:
    """What a vertex must process, records/s: to keep up, and in addition to process the lag."""

    rate: float
    catch_up: float = 0.0


@dataclass(frozen=True, slots=True)
class Graph:
    """The vertices of a job and its edges (from, to). A vertex without inputs is a source.

    Raises:
        ValueError: an edge names an unknown vertex, or the edges form a cycle.
    """

    vertices: tuple[str, ...]
    edges: tuple[tuple[str, str], ...] = ()
    order: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """All vertices, each after its inputs."""
    _inputs: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _outputs: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for edge in self.edges:
            for vertex in edge:
                if vertex not in self.vertices:
                    raise ValueError(f"the edge {edge[0]} -> {edge[1]} names {vertex}, which is no vertex of the job")
        pairs = tuple(dict.fromkeys(self.edges))  # two edges between the same vertices count once, as in JobTopology
        inputs = {vertex: tuple(start for start, end in pairs if end == vertex) for vertex in self.vertices}
        outputs = {vertex: tuple(end for start, end in pairs if start == vertex) for vertex in self.vertices}
        order: dict[str, None] = {}
        while len(order) < len(inputs):
            ready = [
                vertex for vertex in inputs if vertex not in order and all(start in order for start in inputs[vertex])
            ]
            if not ready:
                raise ValueError(f"the edges form a cycle: {', '.join(v for v in inputs if v not in order)}")
            order.update(dict.fromkeys(ready))
        object.__setattr__(self, "_inputs", inputs)
        object.__setattr__(self, "_outputs", outputs)
        object.__setattr__(self, "order", tuple(order))

    def inputs(self, vertex: str) -> tuple[str, ...]:
        """The vertices that send to it."""
        return self._inputs[vertex]

    def outputs(self, vertex: str) -> tuple[str, ...]:
        """The vertices it sends to."""
        return self._outputs[vertex]

    @property
    def sources(self) -> tuple[str, ...]:
        """The vertices without inputs."""
        return tuple(vertex for vertex in self.order if not self._inputs[vertex])


@dataclass(frozen=True, slots=True)
class JobRate:
    """The capacity of a whole job.

    Attributes:
        rate: records/s at all its sources together, with the present mix of sources. Infinite when nothing flows, NaN
            when no vertex or no source is known.
        limiting: the vertex that is the bottleneck, if there is one.
        unknown: vertices whose capacity or required rate is unknown (a legacy source has no busy time; a counter that
            was reset makes a rate negative): `rate` leaves them out.
    """

    rate: float
    limiting: str | None = None
    unknown: tuple[str, ...] = ()


# a window of samples


def rate(samples: Samples) -> float:
    """Growth of a counter per second, from its first to its last sample: `ScalingMetricEvaluator.getRate`.

    Fewer than two samples give NaN. A counter that was reset gives a negative rate, as in the original.
    """
    known = [(at, value) for at, value in in_order(samples) if not math.isnan(value)]
    if len(known) < 2:  # noqa: PLR2004 - a rate lies between two samples
        return NAN
    (start, first), (end, last) = known[0], known[-1]
    return 1000 * (last - first) / max(math.trunc(end - start), 1)


def average(values: Iterable[float | None], minimum: int = 1) -> float:
    """Mean of the finite values; NaN if there are fewer than `minimum`: `ScalingMetricEvaluator.getAverage`.

    Infinity if no value is finite and one is infinite.
    """
    known = [value for value in values if value is not None and not math.isnan(value)]
    finite = [value for value in known if not math.isinf(value)]
    if not finite:
        return INF if known else NAN
    return _sum(finite) / len(finite) if len(finite) >= minimum else NAN


def in_order(samples: Samples) -> list[tuple[float, float]]:
    """The samples by time. Of two samples with the same time the last one given counts, as in a TreeMap."""
    return sorted({at: _number(value) for at, value in samples}.items())


def _sum(values: Iterable[float]) -> float:
    """The sum, added one by one as in Java. From Python 3.12 on, `sum` compensates, so its last digit differs."""
    return reduce(add, values, 0.0)


def _number(value: float | None) -> float:
    return NAN if value is None else value


# the capacity of one vertex


def observed_rate(records_in: float, backpressured: float) -> float:
    """What a source could process without backpressure: `ScalingMetrics.computeObservedTprWithBackpressure`.

    Args:
        records_in: records/s it takes in now, while it has a backlog.
        backpressured: ms per second in which it waits for downstream vertices, mean over its subtasks.

    Returns:
        Records/s, or NaN if it only waits.
    """
    if backpressured >= 1000:  # noqa: PLR2004 - a second has 1000 ms
        return NAN
    return records_in / (1 - backpressured / 1000)


def observed_while_catching_up(
    records_in: float,
    lag: float | None,
    backpressured: float,
    *,
    threshold: timedelta = timedelta(seconds=30),
    previous: float = NAN,
) -> float:
    """One sample of the observed true rate of a source: `ScalingMetrics.getObservedTpr`.

    Only a source with a backlog runs at full speed, so the rate is measured while the lag is worth at least `threshold`
    of its input; otherwise the result is `previous`, the mean of the earlier samples. No input gives infinity: the rate
    is unlimited.

    Args:
        records_in: records/s it takes in now; NaN gives NaN.
        lag: records waiting; None or NaN is no backlog.
        backpressured: ms per second, mean over its subtasks.
        threshold: `job.autoscaler.observed-true-processing-rate.lag-threshold`, counted in whole seconds.
        previous: the result if the rate cannot be measured now.
    """
    if math.isnan(records_in):
        return NAN
    if records_in == 0:
        return INF
    if not _number(lag) >= threshold // _SECOND * records_in:
        return previous
    seen = observed_rate(records_in, backpressured)
    return previous if math.isnan(seen) else seen


def true_processing_rate(
    busy: float,
    records_in: float,
    observed: Iterable[float | None] = (),
    *,
    switch_threshold: float = 0.15,
    minimum: int = 2,
) -> float:
    """Records/s that a vertex could process at its parallelism: `ScalingMetricEvaluator.computeTrueProcessingRate`.

    It is the present rate divided by the busy share. Busy time does not include the work of a source outside its task.
    So the observed rate counts instead if busy time gives more than `switch_threshold` above it, or no finite rate.

    Args:
        busy: busy ms per second.
        records_in: records/s. 0 gives infinity: the rate is unlimited until records flow.
        observed: samples of the observed true rate (`observed_while_catching_up`).
        switch_threshold: `job.autoscaler.observed-true-processing-rate.switch-threshold`.
        minimum: samples that the mean of `observed` needs.
    """
    by_busy_time = INF if records_in == 0 else divided(records_in, busy / 1000)
    seen = average(observed, minimum)
    if math.isnan(seen):
        return by_busy_time
    if not math.isfinite(by_busy_time) or by_busy_time > seen * (1 + switch_threshold):
        return seen
    return by_busy_time


def divided(dividend: float, divisor: float) -> float:
    """IEEE division, as Java does it: x / 0 is an infinity and 0 / 0 is NaN."""
    if divisor:
        return dividend / divisor
    if dividend == 0 or math.isnan(dividend):
        return NAN
    return math.copysign(INF, dividend) * math.copysign(1, divisor)


# the target rate of each vertex


def edge_rate(graph: Graph, rates: Mapping[str, Rates], start: str, end: str) -> float:
    """Records/s that flow along one edge: `ScalingMetricEvaluator.computeEdgeDataRate`.

    Engines measure vertices, not edges. If `end` has no other input, the rate is its input. Otherwise, if the other
    inputs send to no other vertex, the rate is the input of `end` minus what they send; else it is all that `start`
    sends.
    """
    others = [vertex for vertex in graph.inputs(end) if vertex != start]
    if not others:
        return _rates(rates, end).records_in
    if all(len(graph.outputs(vertex)) == 1 for vertex in others):
        sent = _sum(_rates(rates, vertex).records_out for vertex in others)
        if not math.isnan(sent):
            return _rates(rates, end).records_in - sent
    return _rates(rates, start).records_out


def output_ratio(graph: Graph, rates: Mapping[str, Rates], start: str, end: str) -> float:
    """Records sent along an edge per record received: `ScalingMetricEvaluator.computeEdgeOutputRatio`.

    0 if nothing arrives, as any other number would be far too large; NaN if either rate is unknown.
    """
    taken = _rates(rates, start).records_in
    if math.isnan(taken) or taken == 0:
        return taken
    return edge_rate(graph, rates, start, end) / taken


def output_ratios(graph: Graph, rates: Mapping[str, Rates]) -> dict[tuple[str, str], float]:
    """`output_ratio` of every edge."""
    return {(start, end): output_ratio(graph, rates, start, end) for start, end in graph.edges}


def _rates(rates: Mapping[str, Rates], vertex: str) -> Rates:
    return rates.get(vertex) or Rates(NAN)


def propagate(graph: Graph, sources: Mapping[str, float], ratios: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Records/s of every vertex for these rates of the sources: each vertex sends its rate times the edge's ratio.

    A source that is not given counts as NaN, and so does every vertex that depends on it.
    """
    found: dict[str, float] = {}
    for vertex in graph.order:
        inputs = graph.inputs(vertex)
        found[vertex] = (
            _sum(found[start] * ratios[start, vertex] for start in inputs) if inputs else sources.get(vertex, NAN)
        )
    return found


def target_rates(
    graph: Graph, sources: Mapping[str, TargetRate], ratios: Mapping[tuple[str, str], float]
) -> dict[str, TargetRate]:
    """What every vertex must process for the sources' offered rates: `ScalingMetricEvaluator.computeTargetDataRate`.

    Args:
        graph: the job.
        sources: the offered rate and the lag's rate of each source.
        ratios: output ratio of each edge (`output_ratios`).
    """
    rates = propagate(graph, {vertex: target.rate for vertex, target in sources.items()}, ratios)
    catch_ups = propagate(graph, {vertex: target.catch_up for vertex, target in sources.items()}, ratios)
    return {vertex: TargetRate(rates[vertex], catch_ups[vertex]) for vertex in graph.order}


# the needed capacity


def target_capacity(
    target: TargetRate,
    utilization: float,
    catch_up: timedelta,
    restart: timedelta = timedelta(0),
    *,
    rounded_from: float = -INF,
) -> float:
    """Records/s a vertex must be able to process: `AutoScalerUtils.getTargetProcessingCapacity`.

    That is its rate at the wanted utilization, plus the rate at which the lag is processed, plus the rate for the
    backlog of a restart, rounded to a whole number as Java does it (halves up).

    Args:
        target: what it must process.
        utilization: how busy that may make it, limited to 0..1; 0 gives infinity.
        catch_up: time within which the backlog of a restart is to be processed, in whole seconds; 0 adds nothing.
        restart: how long a restart takes, in whole seconds; 0 leaves it out.
        rounded_from: smaller capacities are not rounded. The operator rounds all of them, so that less than half a
            record per second needs no capacity.
    """
    if math.isnan(target.catch_up) or math.isnan(target.rate):
        return NAN
    utilization = min(1.0, max(0.0, utilization))
    if utilization == 0:
        return INF
    seconds = catch_up // _SECOND
    stopped = restart // _SECOND
    after_restart = target.rate * stopped / seconds if stopped and seconds else 0.0
    capacity = target.catch_up + after_restart + target.rate / utilization
    return capacity if capacity < rounded_from else _round(capacity)


def _round(value: float) -> float:
    """Java's Math.round: halves up, capped at its largest long. NaN stays NaN; Java would return 0."""
    if math.isnan(value) or abs(value) >= _LONGEST:
        return value if math.isnan(value) else math.copysign(_LONGEST, value)
    whole = math.floor(value)
    return float(whole + (value - whole >= 0.5))  # noqa: PLR2004 - the half that is rounded up


# a whole job


def job_true_rate(graph: Graph, targets: Mapping[str, float], true_rates: Mapping[str, float]) -> JobRate:
    """Records/s that a whole job could process at its sources, at its present parallelism.

    Every vertex limits it: if a vertex must process `targets[v]` for the present rate of the sources, and could process
    `true_rates[v]`, the sources could take `true_rates[v] / targets[v]` times as much. The smallest of these counts.

    Args:
        graph: the job.
        targets: records/s of every vertex at the present or offered rate of the sources (`propagate`,
            `target_rates`): only their proportions matter.
        true_rates: what each vertex could process (`true_processing_rate`).
    """
    offered = _sum(targets.get(vertex, NAN) for vertex in graph.sources)
    limits: dict[str, float] = {}
    unknown: list[str] = []
    for vertex in graph.order:
        target, true_rate = targets.get(vertex, NAN), true_rates.get(vertex, NAN)
        if not target >= 0 or (target > 0 and math.isnan(true_rate)):
            unknown.append(vertex)
        elif target > 0:
            limits[vertex] = true_rate / target
    if math.isnan(offered) or (unknown and not limits):
        return JobRate(NAN, None, tuple(unknown))
    limiting = min(limits, key=limits.__getitem__, default=None)
    if limiting is None or math.isinf(limits[limiting]):
        return JobRate(INF, None, tuple(unknown))
    return JobRate(offered * limits[limiting], limiting, tuple(unknown))


def needed_parallelism(parallelism: int, true_rate: float, capacity: float, max_parallelism: int | None = None) -> int:
    """The parallelism at which a vertex can process `capacity`: `JobVertexScaler.computeScaleTargetParallelism`.

    Capacity is assumed to be proportional to parallelism. As in the original, a vertex with unknown rates keeps its
    parallelism. Alignment to key groups and limits on single steps are not included.

    Args:
        parallelism: its present parallelism.
        true_rate: records/s it could process with that parallelism.
        capacity: records/s it must be able to process (`target_capacity`).
        max_parallelism: its number of key groups; more subtasks would be idle.
    """
    needed = divided(capacity, true_rate) * parallelism
    if math.isnan(needed):
        return parallelism
    most = 2**31 - 1 if max_parallelism is None else max_parallelism
    return most if needed >= most else max(1, math.ceil(needed))
