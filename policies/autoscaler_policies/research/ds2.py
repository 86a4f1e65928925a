"""DS2: the fewest instances of every operator that keep up with the sources, from true rates.

Kalavri, Liagouris, Hoffmann, Dimitrova, Forshaw, Roscoe: "Three steps is all you need: fast, accurate, automatic
scaling decisions for distributed streaming dataflows", OSDI 2018. Where the text leaves it open, the published code is
followed (strymon-system/ds2, controller/src/policy/scaling.rs and controller/src/bin/manager.rs).
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

MOST = 1_000_000  # more instances than this are no answer but a rate next to nothing


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator as it was measured, over all its instances; rates are records/s.

    Attributes:
        instances: how many there are.
        processing: true processing rate: what they take in per second of useful time, added up.
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

    An operator needs its input rate divided by the true processing rate of one instance. What it gives out is what
    comes in times its ratio, true output rate over true processing rate. The recursion of the paper, and
    `evaluate_scaling_policy_at_epoch` in the code, where all of it goes along each edge.

    Args:
        graph: the operators and what sends to what.
        operators: what was measured of each. DS2 leaves sources as they are: give none for them.
        sources: records/s that each source is to give out.
        ratios: records sent along each edge for one that is received; of a source 1.

    Returns:
        Instances by operator; NaN where what is needed for it is not known.
    """
    coming = dataflow.propagate(graph, sources, ratios)
    return {
        vertex: instances(coming[vertex], operators[vertex].processing, operators[vertex].instances)
        for vertex in graph.order
        if vertex in operators
    }


def instances(coming: float, processing: float, count: int) -> float:
    """Instances that process `coming` records/s where `count` of them have the true rate `processing` together.

    NaN when a rate is not known: an operator that has processed nothing has no measured capacity.
    """
    if not coming:
        return 0.0
    each_one = processing / count if count > 0 else math.nan
    return min(coming / each_one, MOST) if coming > 0 and each_one > 0 else math.nan


def level(needed: float, factor: float) -> int:
    """The whole number of instances, `factor` (share) more than needed."""
    return whole(min(needed * (1 + factor), MOST))


def true_rate(throughput: float, each_throughput: tuple[float, ...], shares: tuple[float, ...]) -> float:
    """The true rate of a job: records per second of useful time, added up over its instances; NaN when unknown.

    With numbers of each instance it is the sum of theirs, those left out that did nothing; else the throughput over
    the mean busy share, which is the same when the instances are alike.
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
        slots: how many are needed.
        arrivals: records/s that the job, or the vertex that needs most, must process.
        true: true rate of one slot, or of one instance of that vertex; records/s, 0 where nothing is known.
    """

    slots: int
    arrivals: float
    true: float


@dataclass(slots=True)
class _Job:
    """A job as the parts of a reading describe it; `groups` of its vertices (slot sharing groups) share no slots."""

    graph: dataflow.Graph
    operators: dict[str, Operator]
    sources: dict[str, float]
    ratios: dict[tuple[str, str], float]
    groups: int


def _job(parts: Mapping[str, Mapping[str, float]], arrivals: float) -> _Job | None:
    """Vertices, edges and rates from the metric `vertices` of Flink; None where they make no job.

    What arrives is divided among the sources as they take it in now. A source that does not report its true rate, as
    legacy ones, is left as it is, as DS2 leaves all sources.
    """
    # A vertex is named by its name and its id, `Map (cbc357ccb763df2852fee8c4fc7d55f2)`; edges by ids alone.
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
    """The rule of DS2: slots = arrivals / true rate of a slot, for each vertex where the vertices are read.

    The true rate is what would be processed if nothing ever waited: throughput divided by the busy share. It decides
    every `interval`, not during the first `warm_up` intervals after a rescale or restart, and stands by a decision
    until the next. It asks for fewer only when more than `minor` fewer would do. The backlog plays no part.

    Attributes:
        interval: the policy interval, over which the readings should be averaged; default 60s.
        warm_up: policy intervals that are ignored after a rescale or restart of the job, and at the start; default 1.
        activation: decisions in a row before the first is acted on (activation time); default 1.
        target_rate_ratio: when no more is asked for and arrivals are more than so many times the throughput, the
            size is multiplied by that ratio; 1 or more; default none: never.
        scaling_factor: share of instances on top of what is needed, 0 or more; default 0.
        minor: a size that is smaller by at most this many replicas is not worth a rescale; default 1.
        arrivals: name of the metric with the offered records/s.
        throughput: name of the metric with the processed records/s.
        utilization: name of the metric with the busy share, 0 to 1, of all replicas or of each.
        vertices: name of the metric with the numbers of each vertex (`vertices` of the source flink); it may be
            absent, then the job counts as one vertex.
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
        """What its metrics can be."""
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
        # A poll may be a little early or late: half an interval is not worth waiting for another one.
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
        """The recommendation without a decision: the first replica where there is none, else nothing."""
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
        """The slots that the job needs; None when the readings do not suffice for it."""
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
        """The vertex that needs most, as all share slots; one that is unknown keeps what the job has."""
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
        """The final adjustment: nothing more is needed by the rates, yet the sources do not get through."""
        ratio = self.target_rate_ratio
        if ratio is None or slots > count or not throughput or arrivals / throughput <= ratio:
            return slots
        return whole(min(arrivals / throughput * slots, MOST))
