"""DS2: the fewest instances of every operator that keep up with the sources, from true rates.

Kalavri, Liagouris, Hoffmann, Dimitrova, Forshaw, Roscoe: "Three steps is all you need: fast, accurate, automatic
scaling decisions for distributed streaming dataflows", OSDI 2018. What the paper leaves open follows the published code
(strymon-system/ds2, controller/src/policy/scaling.rs and controller/src/bin/manager.rs).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from autoscaler.policy_api import AMOUNT, SHARE, ZERO, Range, Reason, Recommendation, View, dataflow
from autoscaler_policies.shared.checks import ABOVE_0S, FROM_0, METRIC, at_least, check
from autoscaler_policies.shared.readings import busy, each, moving, slots_in_use, total, warm_since
from autoscaler_policies.shared.recommend import finite, format_number, missing, replicas, sized, whole

MOST = 1_000_000  # a result above this number of instances only means that a rate is close to 0


@dataclass(frozen=True, slots=True)
class Operator:
    """The measured numbers of one operator, over all its instances; rates are records/s.

    Attributes:
        instances: number of instances.
        processing: true processing rate: the records received per second of useful time, summed over the instances.
    """

    instances: int
    processing: float


def optimal(
    graph: dataflow.Graph,
    operators: Mapping[str, Operator],
    sources: Mapping[str, float],
    ratios: Mapping[tuple[str, str], float],
) -> dict[str, float]:
    """Instances that every operator needs, not rounded: one pass from the sources to the sinks.

    An operator needs its input rate divided by the true processing rate of one instance. Its output is its input times
    its ratio, true output rate over true processing rate. This is the recursion of the paper, and
    `evaluate_scaling_policy_at_epoch` in the code, where the whole output goes along each edge.

    Args:
        graph: the operators and the edges between them.
        operators: the measured numbers of each. DS2 does not scale sources: leave them out.
        sources: records/s that each source must send.
        ratios: records sent along each edge per received record; 1 for a source.

    Returns:
        Instances by operator; NaN if a number needed for it is unknown.
    """
    coming = dataflow.propagate(graph, sources, ratios)
    return {
        vertex: instances(coming[vertex], operators[vertex].processing, operators[vertex].instances)
        for vertex in graph.order
        if vertex in operators
    }


def instances(coming: float, processing: float, count: int) -> float:
    """Instances that process `coming` records/s if `count` of them have the true rate `processing` together.

    NaN if a rate is unknown: an operator that has processed nothing has no measured capacity.
    """
    if not coming:
        return 0.0
    each_one = processing / count if count > 0 else math.nan
    return min(coming / each_one, MOST) if coming > 0 and each_one > 0 else math.nan


def level(needed: float, factor: float) -> int:
    """The needed instances plus the share `factor`, as a whole number."""
    return whole(min(needed * (1 + factor), MOST))


def true_rate(throughput: float, each_throughput: tuple[float, ...], shares: tuple[float, ...]) -> float:
    """The true rate of a job: records per second of useful time, summed over its instances; NaN if unknown.

    If each instance has its numbers, the mean of the instances that did anything stands for all. Otherwise it is the
    throughput divided by the mean busy share, which is the same if the instances are alike.
    """
    if len(each_throughput) == len(shares):
        rates = [rate / share for rate, share in zip(each_throughput, shares, strict=True) if rate > 0 and share > 0]
        return sum(rates) / len(rates) * len(shares) if rates else math.nan
    share = sum(shares) / len(shares)
    return throughput / share if throughput > 0 and share > 0 else math.nan


@dataclass(slots=True)
class _Found:
    """The result of one decision.

    Attributes:
        slots: needed slots.
        arrivals: records/s that the job, or the vertex that needs most, must process.
        true: true rate of one slot, or of one instance of that vertex; records/s, 0 if unknown.
    """

    slots: int
    arrivals: float
    true: float


@dataclass(slots=True)
class _Job:
    """A job as the parts of a reading describe it. `groups` is its number of slot sharing groups."""

    graph: dataflow.Graph
    operators: dict[str, Operator]
    sources: dict[str, float]
    ratios: dict[tuple[str, str], float]
    groups: int


def _job(parts: Mapping[str, Mapping[str, float]], arrivals: float) -> _Job | None:
    """Vertices, edges and rates from the metric `vertices` of Flink; None if they do not form a job.

    The arrivals are divided among the sources in proportion to their present rates. A source without a true rate, such
    as a legacy source, is not scaled, as DS2 scales no source.
    """
    # The label of a vertex has its name and its id, `Map (cbc357ccb763df2852fee8c4fc7d55f2)`; edges have only ids.
    running = {
        name.rpartition(" (")[2].removesuffix(")"): part
        for name, part in parts.items()
        if 1 <= part.get("parallelism", 0.0) <= MOST
    }
    ratios = {
        (key.removeprefix("from:"), vertex): ratio
        for vertex, part in running.items()
        for key, ratio in part.items()
        if key.startswith("from:")
    }
    try:
        graph = dataflow.Graph(tuple(running), tuple(ratios))
    except ValueError:
        return None
    taken = {vertex: running[vertex].get("records_in", 0.0) for vertex in graph.sources}
    together = sum(taken.values())
    if len(taken) == 1:
        sources = dict.fromkeys(taken, arrivals)
    elif together > 0 and min(taken.values()) >= 0:
        sources = {vertex: arrivals * (rate / together) for vertex, rate in taken.items()}
    else:
        return None
    operators = {
        vertex: Operator(int(part["parallelism"]), part.get("true_rate", math.nan))
        for vertex, part in running.items()
        if vertex not in sources or "true_rate" in part
    }
    groups = len({part.get("group", 0.0) for part in parts.values()})
    return _Job(graph, operators, sources, ratios, groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ds2:
    """The rule of DS2: slots = arrivals / true rate of a slot, computed per vertex if the vertices are known.

    The true rate is the rate at which records would be processed without any waiting: throughput divided by the busy
    share. The policy decides every `interval`, except during the first `warm_up` intervals after a rescale or restart,
    and keeps a decision until the next one. It asks for fewer replicas only if more than `minor` fewer are enough. The
    backlog does not count.

    Attributes:
        interval: the policy interval, over which the readings should be averaged; default 60s.
        warm_up: policy intervals that are ignored after a rescale or restart of the job, and at the start; default 1.
        activation: decisions in a row before the policy acts on one (activation time); default 1.
        target_rate_ratio: if arrivals / throughput is above this although no more slots seem needed, the size is
            multiplied by arrivals / throughput; 1 or more; default none: never.
        scaling_factor: share of instances in addition to the needed ones, 0 or more; default 0.
        minor: a size that is smaller by at most this many replicas is not worth a rescale; default 1.
        arrivals: name of the metric with the offered records/s.
        throughput: name of the metric with the processed records/s.
        utilization: name of the metric with the busy share, 0 to 1, of all replicas or of each.
        vertices: name of the metric with the numbers of each vertex (`vertices` of the source flink); if it is absent,
            the job counts as one vertex.
    """

    lookback: ClassVar[timedelta] = ZERO

    interval: timedelta = timedelta(seconds=60)
    warm_up: int = 1
    activation: int = 1
    target_rate_ratio: float | None = None
    scaling_factor: float = 0.0
    minor: int = 1
    arrivals: str = "arrivals"
    throughput: str = "throughput"
    utilization: str = "utilization"
    vertices: str = "vertices"

    def __post_init__(self) -> None:
        check(self, "interval", *ABOVE_0S)
        check(self, "warm_up minor", *at_least(0))
        check(self, "activation", *at_least(1))
        check(self, "target_rate_ratio", lambda ratio: 1 <= ratio < math.inf, "1 or more")
        check(self, "scaling_factor", *FROM_0)
        check(self, "arrivals throughput utilization vertices", *METRIC)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics it cannot do without."""
        return (self.arrivals, self.throughput, self.utilization)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of its metrics."""
        return {self.arrivals: AMOUNT, self.throughput: AMOUNT, self.utilization: SHARE}

    def learn(self, view: View) -> Mapping[str, float]:
        """Decide at the end of a policy interval, and keep the decision until the next."""
        now = view.now.timestamp()
        if moving(view):
            return {"from_at": now}
        known = view.memory
        begin = known.get("from_at")
        warm = warm_since(view)
        if begin is None or begin < warm:
            begin = now if begin is None and not warm else warm
            known = {}
        # A poll may be slightly early or late: do not wait for another poll because of half an interval.
        passed = now - begin + view.spec.interval.total_seconds() / 2
        interval = float(passed // self.interval.total_seconds())
        if interval <= known.get("intervals", 0.0):
            return known or {"from_at": begin}
        memory = {"from_at": begin, "intervals": interval}
        found = self._decide(view) if interval > self.warm_up else None
        if found is None:
            return memory
        decisions = min(known.get("decisions", 0.0) + 1, float(self.activation))
        return memory | {
            "decisions": decisions,
            "slots": float(found.slots),
            "arrivals": found.arrivals,
            "true_rate": found.true,
        }

    def evaluate(self, view: View) -> Recommendation:
        """Ask for the size of the last decision."""
        absent = self._absent(view)
        if absent:
            return missing(view, *absent)
        memory = view.memory
        if not all(name in memory for name in ("decisions", "slots", "arrivals", "true_rate")):
            return self._undecided(view)
        slots, arrivals, true = memory["slots"], memory["arrivals"], memory["true_rate"]
        inputs = {"arrivals": arrivals, "true_rate": true, "slots": slots}
        what = (
            f"{format_number(arrivals)}/s arriving at a true rate of {format_number(true)}/s per slot need "
            f"{slots:.0f} slots"
        )
        if memory["decisions"] < self.activation:
            what += f"; decision {memory['decisions']:.0f} of {self.activation} in a row that it takes (activation)"
            return Recommendation(None, Reason.LEARNING, inputs, what)
        size = -int(-slots // view.spec.slots_per_replica)
        if view.current - self.minor <= size < view.current:
            what += f": {replicas(size)}, too little of a change from {view.current}"
            return sized(view, view.current, inputs, what)
        return sized(view, size, inputs, f"{what}: {replicas(size)}")

    def _undecided(self, view: View) -> Recommendation:
        """The recommendation without a decision: a first replica if there is none, else abstain."""
        arrivals = total(view, self.arrivals) or 0.0
        if not view.current and arrivals:
            what = f"{format_number(arrivals)}/s arriving, nothing is processed by 0 replicas: one"
            return sized(view, 1, {"arrivals": arrivals}, what)
        what = "no decision yet: the first intervals after a rescale are ignored, and so is one in which nothing flowed"
        return Recommendation(None, Reason.LEARNING, {"arrivals": arrivals}, what)

    def _absent(self, view: View) -> list[str]:
        found = {
            self.arrivals: total(view, self.arrivals),
            self.throughput: total(view, self.throughput),
            self.utilization: busy(view, self.utilization),
        }
        return [name for name, value in found.items() if value is None]

    def _decide(self, view: View) -> _Found | None:
        """The slots that the job needs; None if the readings do not suffice."""
        arrivals, throughput = total(view, self.arrivals), total(view, self.throughput)
        shares = busy(view, self.utilization)
        count = slots_in_use(view)
        if arrivals is None or throughput is None or shares is None or not count:
            return None
        found = self._by_vertex(view, arrivals, count) or self._as_one(
            arrivals, true_rate(throughput, each(view, self.throughput), shares), count
        )
        if found is not None:
            found.slots = self._adjusted(found.slots, count, arrivals, throughput)
        return found

    def _as_one(self, arrivals: float, rate: float, count: int) -> _Found | None:
        """The job as one operator behind one source."""
        needed = instances(arrivals, rate, count)
        if math.isnan(needed):
            return None
        true = 0.0 if math.isnan(rate) else finite(rate / count)
        return _Found(level(needed, self.scaling_factor), arrivals, true)

    def _by_vertex(self, view: View, arrivals: float, count: int) -> _Found | None:
        """The vertex that needs most slots, as all share slots. While a vertex is unknown, no slots are removed."""
        reading = view.metrics.get(self.vertices)
        job = None if reading is None else _job(reading.parts, arrivals)
        if job is None:
            return None
        coming = dataflow.propagate(job.graph, job.sources, job.ratios)
        most: _Found | None = None
        unknown = False
        for vertex, needed in optimal(job.graph, job.operators, job.sources, job.ratios).items():
            if math.isnan(needed):
                unknown = True
                continue
            slots = level(needed, self.scaling_factor) * job.groups
            operator = job.operators[vertex]
            if most is None or slots > most.slots:
                true = operator.processing / operator.instances
                most = _Found(slots, finite(coming[vertex]), 0.0 if math.isnan(true) else finite(true))
        if most is not None and unknown:
            most.slots = max(most.slots, count)
        return most

    def _adjusted(self, slots: int, count: int, arrivals: float, throughput: float) -> int:
        """The final adjustment, if no more slots seem needed and yet the throughput is below the arrivals."""
        ratio = self.target_rate_ratio
        if ratio is None or slots > count or not throughput or arrivals / throughput <= ratio:
            return slots
        return whole(min(arrivals / throughput * slots, MOST))
