"""The daemon's own metrics, read from the last state of the controllers at every scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from importlib.metadata import version
from itertools import islice
from statistics import median

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from autoscaler.core.capacity import restart_time
from autoscaler.core.model import MOST_LEARNED, Learned, Reading, Recommendation
from autoscaler.daemon.controller import Controller
from autoscaler.daemon.status import DaemonStatus

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
        "autoscaler_loop_stalls", "How often the event loop did nothing for a second or more.", registry=registry
    )


def registry() -> CollectorRegistry:
    """A registry of the daemon's own, with the figures of its process."""
    # No second series for each histogram, which has no new information.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no annotation there
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def exposition(status: DaemonStatus, registry: CollectorRegistry) -> bytes:
    """All metrics as Prometheus text. It may run in another thread than the daemon."""
    text = "".join(_numbers(_in_order(status), status.utc()))
    return generate_latest(registry) + text.encode(errors="replace")


class DaemonCollector(Collector):
    """The metrics of the clusters, except for what was learned. It may run in another thread than the daemon."""

    def __init__(self, status: DaemonStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Produce all families."""
        controllers = _in_order(self._status)
        yield from self._of_daemon(len(controllers))
        yield from _of_sizes(controllers)
        yield from self._of_readings(controllers)
        yield from _of_counts(controllers)
        yield from _of_rescales(controllers)

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: `collect` gives the families."""
        return ()

    def _of_daemon(self, clusters: int) -> Iterator[Metric]:
        status = self._status
        info = GaugeMetricFamily("autoscaler_build_info", "Always 1; the version is the label.", labels=["version"])
        info.add_metric([version("reactive-autoscaler")], 1)
        yield info
        for name, text, value in (
            ("clusters", "Clusters under control.", clusters),
            ("dry_run", "1 when the targets are not called.", status.dry_run),
            ("store_ok", "1 when the last state was persisted; at 0 nothing is scaled.", status.store_failure is None),
            ("history_ok", "1 when the last decision was written to the history.", status.history_failure is None),
            ("last_reload_successful", "0 when the last reload was refused.", not status.reload_problems),
            ("last_reload_timestamp_seconds", "When the configuration was last loaded.", status.loaded_at.timestamp()),
        ):
            yield GaugeMetricFamily(f"autoscaler_{name}", text, value=float(value))

    def _of_readings(self, controllers: list[Controller]) -> Iterator[Metric]:
        now = self._status.utc()
        value = GaugeMetricFamily(
            "autoscaler_metric_value",
            "The last value of a metric; the mean, if it has one number per replica.",
            labels=["cluster", "metric"],
        )
        age = GaugeMetricFamily(
            "autoscaler_metric_age_seconds",
            "How long ago the value was true at its origin.",
            labels=["cluster", "metric"],
        )
        missing = GaugeMetricFamily(
            "autoscaler_reading_missing",
            "1 when a metric, the engine or the target could not be read last time.",
            labels=["cluster", "reading"],
        )
        for controller in controllers:
            observation = controller.observation
            if observation is None:
                continue
            for name, reading in observation.metrics.items():
                value.add_metric([controller.name, name], _mean(reading))
                age.add_metric([controller.name, name], (now - reading.at).total_seconds())
            for name in ("target", *(("engine",) if controller.cluster.engine else ()), *controller.cluster.metrics):
                missing.add_metric([controller.name, name], float(name in observation.missing))
        yield value
        yield age
        yield missing


def _in_order(status: DaemonStatus) -> list[Controller]:
    return sorted(status.controllers.values(), key=lambda controller: controller.name)


def _of_sizes(controllers: list[Controller]) -> Iterator[Metric]:
    current = GaugeMetricFamily(
        "autoscaler_current_replicas", "The size that the target was last set to.", labels=["cluster"]
    )
    ready = GaugeMetricFamily("autoscaler_ready_replicas", "Replicas that are up.", labels=["cluster"])
    proposed = GaugeMetricFamily(
        "autoscaler_proposed_replicas", "What the policies together asked for.", labels=["cluster"]
    )
    desired = GaugeMetricFamily("autoscaler_desired_replicas", "What was decided.", labels=["cluster"])
    at = GaugeMetricFamily(
        "autoscaler_last_decision_timestamp_seconds", "When the last decision was made.", labels=["cluster"]
    )
    for controller in controllers:
        observation, decision = controller.observation, controller.decision
        label = [controller.name]
        if observation is not None and observation.desired is not None:
            current.add_metric(label, observation.desired)
        if observation is not None and observation.ready is not None:
            ready.add_metric(label, observation.ready)
        if decision is not None:
            proposed.add_metric(label, decision.proposed)
            desired.add_metric(label, decision.desired)
            at.add_metric(label, decision.at.timestamp())
    yield from (current, ready, proposed, desired, at)


def _of_counts(controllers: list[Controller]) -> Iterator[Metric]:
    decisions = CounterMetricFamily("autoscaler_decisions", "Decisions by reason.", labels=["cluster", "reason"])
    errors = CounterMetricFamily(
        "autoscaler_read_errors",
        "Readings that failed; source is the name of the metric's source, or target or engine.",
        labels=["cluster", "source", "reading"],
    )
    skipped = CounterMetricFamily(
        "autoscaler_ticks_skipped", "Ticks left out because the one before took too long.", labels=["cluster"]
    )
    calls = CounterMetricFamily("autoscaler_scale_call_failures", "Scale calls that failed.", labels=["cluster"])
    unexpected = CounterMetricFamily(
        "autoscaler_unexpected_errors",
        "Errors of the cluster's plug-ins that are no failures of another system but defects.",
        labels=["cluster"],
    )
    for controller in controllers:
        counters = controller.counters
        # Copies: the loop continues counting while another thread reads.
        for reason, number in counters.decisions.copy().items():
            decisions.add_metric([controller.name, reason.value], number)
        for name, number in counters.errors.copy().items():
            metric = controller.cluster.metrics.get(name)
            errors.add_metric([controller.name, metric.source if metric else name, name], number)
        skipped.add_metric([controller.name], counters.skipped)
        calls.add_metric([controller.name], counters.failed_calls)
        unexpected.add_metric([controller.name], counters.unexpected)
    yield from (decisions, errors, skipped, calls, unexpected)


def _of_rescales(controllers: list[Controller]) -> Iterator[Metric]:
    flying = GaugeMetricFamily("autoscaler_rescale_in_flight", "1 while a rescale is in progress.", labels=["cluster"])
    rescales = CounterMetricFamily("autoscaler_rescales", "Rescales requested.", labels=["cluster", "direction"])
    phases = SummaryMetricFamily(
        "autoscaler_rescale_phase_seconds",
        "How long the phases of settled rescales took, each from the end of the one before.",
        labels=["cluster", "direction", "phase"],
    )
    for controller in controllers:
        if controller.state is not None:
            flying.add_metric([controller.name], float(controller.state.rescale is not None))
        for direction, number in controller.counters.rescales.copy().items():
            rescales.add_metric([controller.name, direction.value], number)
        for (direction, phase), (count, total) in controller.counters.phases.copy().items():
            phases.add_metric([controller.name, direction.value, phase.value], count, total)
    yield from (flying, rescales, phases)


_LEARNED = {
    "autoscaler_learned_capacity_records_per_second": "What a size was seen to process when busy.",
    "autoscaler_learned_capacity_age_seconds": "How long ago that was seen last.",
    "autoscaler_learned_capacity_samples": "How often it was seen.",
    "autoscaler_learned_phase_seconds": "How long a phase takes by the last few rescales: their median.",
    "autoscaler_learned_restart_seconds": "How long the last few rescales took from the request until the job ran.",
    "autoscaler_learned": "A number that a policy has learned.",
    "autoscaler_learned_age_seconds": "How long ago a time is that a policy has learned.",
    "autoscaler_recommendation_input": "A number that the last recommendation of a policy is based on.",
}


def _numbers(controllers: list[Controller], now: datetime) -> Iterator[str]:
    """What was learned, and the inputs of recommendations, as Prometheus text.

    Without the library, which takes about ten times as long: there may be a hundred thousand of these.
    """
    families: dict[str, list[str]] = {name: [] for name in _LEARNED}
    for controller in controllers:
        state, decision = controller.state, controller.decision
        cluster = f'{{cluster="{_escaped(controller.name)}"'
        if state is not None:
            _add_learned(families, cluster, state.learned, now)
        if decision is not None:
            for recommendation in decision.recommendations:
                _add_inputs(families, cluster, recommendation)
    for name, lines in families.items():
        yield f"# HELP {name} {_LEARNED[name]}\n# TYPE {name} gauge\n"
        yield from lines


def _add_learned(families: dict[str, list[str]], cluster: str, learned: Learned, now: datetime) -> None:
    rates, ages, samples, phases, restarts, numbers, times, _ = families.items()
    for size, seen in learned.capacity.items():
        labels = f'{cluster},replicas="{size}"}}'
        for (name, lines), value in (
            (rates, seen.rate),
            (ages, (now - seen.at).total_seconds()),
            (samples, seen.samples),
        ):
            lines.append(f"{name}{labels} {float(value)!r}\n")
    for direction, durations in learned.durations.items():
        labels = f'{cluster},direction="{direction}"'
        name, lines = phases
        lines += [f'{name}{labels},phase="{phase}"}} {median(last)!r}\n' for phase, last in durations.items() if last]
        restart = restart_time(learned, direction)
        if restart is not None:
            name, lines = restarts
            lines.append(f"{name}{labels}}} {float(restart)!r}\n")
    seconds = now.timestamp()
    for policy, memory in learned.memory.items():
        labels = f'{cluster},policy="{_escaped(policy)}",name="'
        name, lines = numbers
        lines += _joined(
            f'{name}{labels}{_escaped(key)}"}} {float(number)!r}\n'
            for key, number in memory.items()
            if not key.endswith("_at")
        )
        name, lines = times
        lines += _joined(
            f'{name}{labels}{_escaped(key.removesuffix("_at"))}"}} {seconds - float(number)!r}\n'
            for key, number in memory.items()
            if key.endswith("_at")
        )


def _add_inputs(families: dict[str, list[str]], cluster: str, recommendation: Recommendation) -> None:
    name = "autoscaler_recommendation_input"
    labels = f'{cluster},policy="{_escaped(recommendation.policy)}",name="'
    # A policy may use any number of inputs: the size of the text is limited.
    families[name] += _joined(
        f'{name}{labels}{_escaped(str(key))}"}} {float(number)!r}\n'
        for key, number in islice(recommendation.inputs.items(), MOST_LEARNED)
    )


def _joined(lines: Iterable[str]) -> tuple[str]:
    """As one string: a hundred thousand short ones would double the memory."""
    return ("".join(lines),)


def _escaped(value: str) -> str:
    """A label's value, escaped for the text format."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _mean(reading: Reading) -> float:
    value = reading.value
    return sum(value) / len(value) if isinstance(value, tuple) else value
