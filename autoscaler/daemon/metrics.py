"""The daemon's own metrics, read from the last state of the controllers at every scrape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from importlib.metadata import version
from statistics import median
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from autoscaler.core.capacity import restart_time
from autoscaler.core.model import Direction, Reading, SizeCapacity
from autoscaler.daemon.controller import NOT_OBSERVED
from autoscaler.daemon.discovery import FleetStatus
from autoscaler.daemon.leases import Ownership
from autoscaler.daemon.status import ClusterSnapshot, DaemonStatus
from autoscaler.daemon.workload import backlog_time

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class TickHistograms:
    """How late ticks begin and how long they take, over all clusters."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._late = Histogram(
            "autoscaler_tick_lateness_seconds",
            "How much later than planned a tick began.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._took = Histogram(
            "autoscaler_tick_duration_seconds",
            "How long a tick took, from the first request to the answer of the target.",
            buckets=_BUCKETS,
            registry=registry,
        )

    def record_tick(self, late: float, took: float) -> None:
        """Record one tick."""
        self._late.observe(max(0.0, late))
        self._took.observe(took)


def loop_stalls(registry: CollectorRegistry) -> Counter:
    """The counter of stalls of the event loop."""
    return Counter(
        "autoscaler_loop_stalls", "How often the event loop was blocked for a second or more.", registry=registry
    )


def registry() -> CollectorRegistry:
    """A new registry with the metrics of the daemon's process."""
    # Without the series `_created` of each histogram, which carry no information.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no annotation
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def exposition(status: DaemonStatus, registry: CollectorRegistry, clusters: list[ClusterSnapshot]) -> bytes:
    """The metrics as Prometheus text. It may run outside the daemon's thread."""
    return generate_latest(registry) + _text(_FAMILIES, clusters, status.utc())


def exposition_of_policies(status: DaemonStatus, clusters: list[ClusterSnapshot]) -> bytes:
    """The learned numbers and the inputs of policies as Prometheus text: up to thousands for each cluster."""
    return _text(_FAMILIES_OF_POLICIES, clusters, status.utc())


class DaemonCollector(Collector):
    """The metrics of the daemon as a whole. It may run outside the daemon's thread."""

    def __init__(self, status: DaemonStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Produce all families."""
        status = self._status
        info = GaugeMetricFamily("autoscaler_build_info", "Always 1; the version is the label.", labels=["version"])
        info.add_metric([version("reactive-autoscaler")], 1)
        yield info
        for name, text, value in (
            ("clusters", "Clusters under control.", len(status.controllers)),
            (
                "clusters_configured",
                "Clusters in the configuration, whichever copy of the daemon controls them.",
                len(status.clusters),
            ),
            ("dry_run", "1 if the daemon makes no scale calls.", status.dry_run),
            ("store_ok", "1 when the last state was persisted; at 0 nothing is scaled.", status.store_failure is None),
            ("history_ok", "1 when the last decision was written to the history.", status.history.failure is None),
            ("last_reload_successful", "0 when the last reload was refused.", not status.reload_problems),
            ("last_reload_timestamp_seconds", "When the configuration was last loaded.", status.loaded_at.timestamp()),
        ):
            yield GaugeMetricFamily(f"autoscaler_{name}", text, value=float(value))
        if status.ownership.me is not None:
            yield from _sharing(status.ownership)
        fleets, now = status.fleets, status.utc()
        for kind, name, text, number in _FLEETS:
            family = kind(f"autoscaler_fleet_{name}", text, labels=["fleet"])
            for fleet in fleets:
                family.add_metric([fleet.name], number(fleet, now))
            if fleets:
                yield family

    def describe(self) -> Iterable[Metric]:
        """Describe nothing in advance: `collect` returns the families."""
        return ()


def _sharing(ownership: Ownership) -> Iterator[Metric]:
    """The metrics of copies and leases."""
    for kind, name, text, value in (
        (
            GaugeMetricFamily,
            "copies",
            "Live copies of the daemon, as of this one's last lease renewal.",
            len(ownership.copies),
        ),
        (
            GaugeMetricFamily,
            "leases_owned",
            "Leases that this copy of the daemon holds: the clusters that it controls.",
            ownership.owned,
        ),
        (CounterMetricFamily, "leases_taken", "Leases that this copy of the daemon has taken.", ownership.taken),
        (
            GaugeMetricFamily,
            "leases_ok",
            "0 while this copy of the daemon cannot renew its leases.",
            ownership.failure is None,
        ),
    ):
        yield kind(f"autoscaler_{name}", text, value=float(value))


def _answer_age(fleet: FleetStatus, now: datetime) -> float:
    return math.inf if fleet.answered_at is None else (now - fleet.answered_at).total_seconds()


_FLEETS: tuple[tuple[type[Any], str, str, Callable[[FleetStatus, datetime], float]], ...] = (
    (GaugeMetricFamily, "members", "Members that the fleet has.", lambda fleet, _: fleet.members),
    (
        GaugeMetricFamily,
        "members_refused",
        "Members for which the template cannot be filled, or whose name or target another cluster has.",
        lambda fleet, _: len(fleet.problems),
    ),
    (
        GaugeMetricFamily,
        "members_held",
        "Members that are no longer found and are kept until they have been missing for `confirm`.",
        lambda fleet, _: len(fleet.held),
    ),
    (
        CounterMetricFamily,
        "discovery_failures",
        "How often the discovery did not answer.",
        lambda fleet, _: fleet.failures,
    ),
    (
        GaugeMetricFamily,
        "answer_age_seconds",
        "How long ago the discovery answered; infinite before the first answer.",
        _answer_age,
    ),
)


_AT_ONCE = 100
"""Clusters whose text is built together."""

_Samples = Iterable[tuple[str, float]]
"""Additional labels, such as `,metric="lag"`, and the value."""


@dataclass(frozen=True, slots=True)
class _Family:
    """A metric of the clusters, formatted without the client library, which would take ten times as long."""

    name: str
    kind: str
    help: str | None
    samples: Callable[[ClusterSnapshot, datetime], _Samples]
    suffix: str = ""

    @property
    def head(self) -> str:
        # A summary has two families of samples, `_count` and `_sum`, under one head.
        return "" if self.help is None else f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"

    def lines(self, clusters: list[tuple[str, ClusterSnapshot]], now: datetime) -> bytes:
        """The samples of clusters. Each cluster comes with its name as an escaped label value."""
        name, samples = self.name + self.suffix, self.samples
        lines = [
            f'{name}{{cluster="{label}"{labels}}} {float(value)!r}\n'
            for label, cluster in clusters
            for labels, value in samples(cluster, now)
        ]
        return "".join(lines).encode(errors="replace")


def _text(families: Sequence[_Family], clusters: list[ClusterSnapshot], now: datetime) -> bytes:
    """All families, built for some clusters at a time, so that the data of a cluster stays in the processor's cache."""
    named = [(_escaped(cluster.name), cluster) for cluster in clusters]
    parts = [[family.head.encode()] for family in families]
    for start in range(0, len(named), _AT_ONCE):
        few = named[start : start + _AT_ONCE]
        for family, lines in zip(families, parts, strict=True):
            lines.append(family.lines(few, now))
    return b"".join([part for lines in parts for part in lines])


def _single(value: Callable[[ClusterSnapshot], float | None]) -> Callable[[ClusterSnapshot, datetime], _Samples]:
    """One sample for each cluster that has the value."""

    def samples(cluster: ClusterSnapshot, _: datetime) -> _Samples:
        number = value(cluster)
        return () if number is None else (("", number),)

    return samples


def _values(cluster: ClusterSnapshot, _: datetime) -> _Samples:
    for name, reading in cluster.observation.metrics.items() if cluster.observation else ():
        yield f',metric="{_escaped(name)}"', _mean(reading)


def _value_ages(cluster: ClusterSnapshot, now: datetime) -> _Samples:
    for name, reading in cluster.observation.metrics.items() if cluster.observation else ():
        yield f',metric="{_escaped(name)}"', (now - reading.at).total_seconds()


def _missing(cluster: ClusterSnapshot, _: datetime) -> _Samples:
    if cluster.observation is not None:
        missing = cluster.observation.missing
        for name in ("target", *(("engine",) if cluster.cluster.engine else ()), *cluster.cluster.metrics):
            yield f',reading="{_escaped(name)}"', name in missing


def _controls(cluster: ClusterSnapshot, _: datetime) -> _Samples:
    for control in cluster.controls:
        yield f',kind="{control.kind.value}",by="{_escaped(control.by)}"', 1


def _control_ends(cluster: ClusterSnapshot, _: datetime) -> _Samples:
    for control in cluster.controls:
        if control.until is not None:
            yield f',kind="{control.kind.value}",by="{_escaped(control.by)}"', control.until.timestamp()


# These functions copy the counters, because the loop continues to count while another thread reads them.
def _decisions(cluster: ClusterSnapshot, _: datetime) -> _Samples:
    for reason, number in cluster.counters.decisions.copy().items():
        yield f',reason="{reason.value}"', number


def _read_errors(cluster: ClusterSnapshot, _: datetime) -> _Samples:
    for name, number in cluster.counters.errors.copy().items():
        metric = cluster.cluster.metrics.get(name)
        source = metric.source if metric else name
        yield f',reading="{_escaped(name)}",source="{_escaped(source)}"', number


def _rescales(cluster: ClusterSnapshot, _: datetime) -> _Samples:
    """Both directions from the start, even if 0: Prometheus' increase() ignores the first value of a series."""
    for direction in Direction:
        yield f',direction="{direction.value}"', cluster.counters.rescales.get(direction, 0)


def _phase_counts(cluster: ClusterSnapshot, _: datetime) -> _Samples:
    for (direction, phase), (count, _seconds) in cluster.counters.phases.copy().items():
        yield f',direction="{direction.value}",phase="{phase.value}"', count


def _phase_sums(cluster: ClusterSnapshot, _: datetime) -> _Samples:
    for (direction, phase), (_count, total) in cluster.counters.phases.copy().items():
        yield f',direction="{direction.value}",phase="{phase.value}"', total


def _capacity(
    value: Callable[[SizeCapacity, datetime], float],
) -> Callable[[ClusterSnapshot, datetime], _Samples]:
    """One sample for each size whose capacity was learned."""

    def samples(cluster: ClusterSnapshot, now: datetime) -> _Samples:
        for size, seen in cluster.state.learned.capacity.items() if cluster.state else ():
            yield f',replicas="{size}"', value(seen, now)

    return samples


def _phase_medians(cluster: ClusterSnapshot, _: datetime) -> _Samples:
    for direction, durations in cluster.state.learned.durations.items() if cluster.state else ():
        for phase, last in durations.items():
            if last:
                yield f',direction="{direction.value}",phase="{phase.value}"', median(last)


def _restarts(cluster: ClusterSnapshot, _: datetime) -> _Samples:
    for direction in cluster.state.learned.durations if cluster.state else ():
        restart = restart_time(cluster.state.learned, direction)  # type: ignore[union-attr]  # the loop is empty without a state
        if restart is not None:
            yield f',direction="{direction.value}"', restart


def _learned(cluster: ClusterSnapshot, _: datetime) -> _Samples:
    for policy, memory in cluster.state.learned.memory.items() if cluster.state else ():
        labels = f',policy="{_escaped(policy)}",name="'
        for key, number in memory.items():
            if not key.endswith("_at"):
                yield f'{labels}{_escaped(key)}"', number


def _learned_ages(cluster: ClusterSnapshot, now: datetime) -> _Samples:
    seconds = now.timestamp()
    for policy, memory in cluster.state.learned.memory.items() if cluster.state else ():
        labels = f',policy="{_escaped(policy)}",name="'
        for key, number in memory.items():
            if key.endswith("_at"):
                yield f'{labels}{_escaped(key.removesuffix("_at"))}"', seconds - number


def _inputs(cluster: ClusterSnapshot, _: datetime) -> _Samples:
    for recommendation in cluster.decision.recommendations if cluster.decision else ():
        labels = f',policy="{_escaped(recommendation.policy)}",name="'
        for key, number in recommendation.inputs.items():
            yield f'{labels}{_escaped(str(key))}"', number


_FAMILIES = (
    _Family(
        "autoscaler_current_replicas",
        "gauge",
        "The size that the target was last set to.",
        _single(lambda c: c.observation.desired if c.observation else None),
    ),
    _Family(
        "autoscaler_ready_replicas",
        "gauge",
        "Replicas that are up.",
        _single(lambda c: c.observation.ready if c.observation else None),
    ),
    _Family(
        "autoscaler_proposed_replicas",
        "gauge",
        "Replicas that the policies together proposed, before the guards.",
        _single(lambda c: c.decision.proposed if c.decision else None),
    ),
    _Family(
        "autoscaler_desired_replicas",
        "gauge",
        "Replicas decided.",
        _single(lambda c: c.decision.desired if c.decision else None),
    ),
    _Family("autoscaler_min_replicas", "gauge", "The smallest size allowed.", _single(lambda c: c.limits.minimum)),
    _Family("autoscaler_max_replicas", "gauge", "The largest size allowed.", _single(lambda c: c.limits.maximum)),
    _Family(
        "autoscaler_trouble",
        "gauge",
        "1 while nothing is decided for the cluster, its target does not answer or refuses, or the template of its "
        "fleet cannot be filled.",
        _single(lambda c: c.trouble is not None and c.trouble != NOT_OBSERVED),
    ),
    _Family(
        "autoscaler_backlog_seconds",
        "gauge",
        "Lag divided by throughput; absent while one of them is missing.",
        _single(lambda c: backlog_time(c.cluster.spec, c.observation) if c.observation else None),
    ),
    _Family(
        "autoscaler_last_decision_timestamp_seconds",
        "gauge",
        "When the last decision was made.",
        _single(lambda c: c.decision.at.timestamp() if c.decision else None),
    ),
    _Family(
        "autoscaler_metric_value",
        "gauge",
        "The last value of a metric; the mean, if it has one number per replica.",
        _values,
    ),
    _Family(
        "autoscaler_metric_age_seconds",
        "gauge",
        "Age of the last value of a metric, from the time of the value at its origin.",
        _value_ages,
    ),
    _Family(
        "autoscaler_reading_missing",
        "gauge",
        "1 if a metric, the engine or the target could not be read at the last tick.",
        _missing,
    ),
    _Family("autoscaler_control", "gauge", "1 while people have paused, held or limited the cluster.", _controls),
    _Family(
        "autoscaler_control_until_timestamp_seconds",
        "gauge",
        "When the pause, hold or limit expires; absent if it does not expire.",
        _control_ends,
    ),
    _Family("autoscaler_decisions_total", "counter", "Decisions by reason.", _decisions),
    _Family(
        "autoscaler_read_errors_total",
        "counter",
        "Readings that failed; source is the name of the metric's source, or target or engine.",
        _read_errors,
    ),
    _Family(
        "autoscaler_ticks_skipped_total",
        "counter",
        "Ticks skipped because the previous one took too long.",
        _single(lambda c: c.counters.skipped),
    ),
    _Family(
        "autoscaler_scale_call_failures_total",
        "counter",
        "Scale calls that failed.",
        _single(lambda c: c.counters.failed_calls),
    ),
    _Family(
        "autoscaler_unexpected_errors_total",
        "counter",
        "Errors of the cluster's plug-ins that are defects, not failures of an external system.",
        _single(lambda c: c.counters.unexpected),
    ),
    _Family(
        "autoscaler_rescale_in_flight",
        "gauge",
        "1 while a rescale is in progress.",
        _single(lambda c: c.state.rescale is not None if c.state else None),
    ),
    _Family(
        "autoscaler_rescale_started_timestamp_seconds",
        "gauge",
        "When the rescale in progress was requested.",
        _single(lambda c: c.state.rescale.at.timestamp() if c.state and c.state.rescale else None),
    ),
    _Family("autoscaler_rescales_total", "counter", "Rescales requested.", _rescales),
    _Family(
        "autoscaler_rescale_phase_seconds",
        "summary",
        "How long the phases of settled rescales took, each from the end of the previous phase.",
        _phase_counts,
        "_count",
    ),
    _Family("autoscaler_rescale_phase_seconds", "summary", None, _phase_sums, "_sum"),
    _Family(
        "autoscaler_learned_capacity_records_per_second",
        "gauge",
        "Learned capacity of a size, records/s.",
        _capacity(lambda seen, _: seen.rate),
    ),
    _Family(
        "autoscaler_learned_capacity_age_seconds",
        "gauge",
        "Age of the learned capacity of a size.",
        _capacity(lambda seen, now: (now - seen.at).total_seconds()),
    ),
    _Family(
        "autoscaler_learned_capacity_samples",
        "gauge",
        "Number of samples behind the learned capacity of a size.",
        _capacity(lambda seen, _: seen.samples),
    ),
    _Family(
        "autoscaler_learned_phase_seconds",
        "gauge",
        "How long a phase of a rescale takes: the median of the last few rescales.",
        _phase_medians,
    ),
    _Family(
        "autoscaler_learned_restart_seconds",
        "gauge",
        "How long the last few rescales took from the request until the job ran.",
        _restarts,
    ),
)

_FAMILIES_OF_POLICIES = (
    _Family("autoscaler_learned", "gauge", "A number that a policy has learned.", _learned),
    _Family("autoscaler_learned_age_seconds", "gauge", "Age of a time that a policy has learned.", _learned_ages),
    _Family(
        "autoscaler_recommendation_input",
        "gauge",
        "A number that the last recommendation of a policy is based on.",
        _inputs,
    ),
)


@lru_cache(maxsize=65536)
def _escaped(value: str) -> str:
    """A label value, escaped for the text format."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _mean(reading: Reading) -> float:
    value = reading.averaged
    return sum(value) / len(value) if isinstance(value, tuple) else value
