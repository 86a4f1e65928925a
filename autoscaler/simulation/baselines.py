"""The policies of the benchmark: common ones, published ones, and those of this project.

Each policy is written as in a configuration file. Third-party rules run without guards (`bare`), with their own windows
and cooldowns. Policies of this project run through `step` with all guards, as in the daemon. An oracle sees the
arrivals of the next minutes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate

from autoscaler.core.guards import GuardContext
from autoscaler.core.model import (
    ClusterSpec,
    ClusterState,
    Decision,
    Observation,
    Policy,
    Reading,
    Reason,
    Recommendation,
    Verdict,
    View,
)
from autoscaler.core.step import Decide, step
from autoscaler.simulation.loads import Load
from autoscaler.simulation.plant import START, STEP

FORECAST = "forecast"
"""The metric of an oracle: mean arrivals of each of the next minutes, records/s."""

FORECAST_MINUTES = 20
"""Minutes of the forecast."""

_MINUTE = round(60 / STEP)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A policy to compare with.

    Attributes:
        settings: one policy as in a configuration file, or all of a cluster's settings for decisions. `$SLO` becomes
            the plant's objective, such as 60s; `$LAG` the records that a worker at 100 % processes in `LAG_S` seconds.
        bare: whether it runs without the guards, with the limits only.
        oracle: whether it sees the future.
        flat: whether its forecast shows the present arrivals, so that it expects no change.
        policy: a policy that is not a plug-in, instead of `settings`.
    """

    settings: str
    bare: bool = True
    oracle: bool = False
    flat: bool = False
    policy: Policy | None = None

    def decide(self, load: Load, *, guarded: bool = False) -> Decide:
        """The decider of a simulation under that load. With `guarded`, the guards always apply."""
        chosen: Decide = without_guards if self.bare and not guarded else step
        if self.flat:
            return with_flat_forecast(chosen)
        return with_forecast(chosen, load) if self.oracle else chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogCpu:
    """Google Dataflow's rule for streaming jobs, as its documentation stated it.

    It scales up when the backlog has been worth more than `behind` seconds and the CPU has been above `idle` for
    `lasting`: to the size that clears the backlog within `clears` seconds, at the present throughput of a worker. It
    scales down when the backlog has been worth less than `calm` seconds and the CPU has been below `target` for
    `lasting`: to the size that then has this CPU. Source: "Deploying a pipeline", section "Autotuning features:
    streaming autoscaling", of cloud.google.com/dataflow/docs: "remains backlogged with workers utilizing, on average,
    more than 20% of their CPUs, for a couple minutes ... targets clearing the backlog in approximately 150 seconds
    after scaling up, given the current throughput per worker"; "lower than 10 seconds and workers are utilizing on
    average less than 75% of the CPUs for a period of a couple minutes". Only later editions name the least backlog that
    counts: 15 seconds.
    """

    behind: float = 15.0
    calm: float = 10.0
    idle: float = 0.2
    target: float = 0.75
    clears: float = 150.0
    lasting: timedelta = timedelta(seconds=120)

    def evaluate(self, view: View) -> Recommendation:
        """The size that the rule asks for."""
        seen = []
        for observation in reversed(view.past):
            seen.append(observation)
            if view.now - observation.at >= self.lasting:
                break
        else:
            return Recommendation(None, Reason.LEARNING, {}, f"not watched for {self.lasting.total_seconds():g} s yet")
        if any(observation.desired != view.current or observation.ready != view.current for observation in seen):
            return Recommendation(view.current, Reason.STEADY, {}, "not of this size for long enough")
        if _numbers(seen[0]) is None:
            return Recommendation(None, Reason.MISSING, {}, "a reading is missing")
        numbers = [each for each in map(_numbers, seen) if each is not None]
        arrivals, throughput, lag, cpu = numbers[0]
        waits = [_time(lag, throughput) for _, throughput, lag, _ in numbers]
        inputs = {"arrivals": arrivals, "throughput": throughput, "lag": lag, "cpu": cpu}
        size = view.current
        if throughput > 0 and min(waits) > self.behind and min(each[3] for each in numbers) > self.idle:
            size = max(size, math.ceil(view.current * (arrivals + lag / self.clears) / throughput))
        elif max(waits) < self.calm and max(each[3] for each in numbers) < self.target:
            size = min(size, math.ceil(view.current * cpu / self.target))
        size = max(view.limits.minimum, min(size, view.limits.maximum))
        reason = Reason.ABOVE if size > view.current else Reason.BELOW if size < view.current else Reason.STEADY
        return Recommendation(size, reason, inputs, f"backlog worth {min(waits[0], 1e9):.0f} s, CPU {cpu:.0%}")


def _numbers(observation: Observation) -> tuple[float, float, float, float] | None:
    """Arrivals, throughput, lag and CPU, each as one number; None if one of them is missing."""
    readings = [observation.metrics.get(name) for name in ("arrivals", "throughput", "lag", "cpu")]
    values = [reading.value for reading in readings if reading is not None]
    if len(values) < len(readings):
        return None
    arrivals, throughput, lag, cpu = [math.fsum(value) if isinstance(value, tuple) else value for value in values]
    return arrivals, throughput, lag, cpu


def _time(lag: float, throughput: float) -> float:
    """A backlog in seconds of the present throughput."""
    return lag / throughput if throughput > 0 else math.inf if lag > 0 else 0.0


LAG_S = 5.0
"""Rules that divide the lag by a threshold ask for one worker per this many seconds of a worker's full capacity."""

BASELINES: Mapping[str, Baseline] = {
    "static": Baseline("{policies: {}, min: 18, max: 18}"),  # always what the peak needs, plus 10 %
    "hpa70": Baseline("{type: hpa, metrics: [{type: utilization, metric: cpu, target: 70}]}"),
    "keda-lag": Baseline("{type: hpa, metrics: [{type: value_per_replica, metric: lag, target: $LAG}]}"),
    "backlog-cpu": Baseline("", policy=BacklogCpu()),
    # Its defaults are for jobs that take five minutes to restart: they are worse here in all three numbers.
    "flink-operator": Baseline(
        "{type: flink-operator, metrics_window: 5m, stabilization_interval: 1m, scale_down_interval: 15m, "
        "restart_time: 1m}"
    ),
    # Without the additional 20 %, it never drains a backlog.
    "ds2": Baseline("{type: ds2, scaling_factor: 0.2, minor: 0}"),
    "daedalus": Baseline("{type: daedalus}"),
    "daedalus-oracle": Baseline("{type: daedalus, forecast: forecast}", oracle=True),
    "adaptive": Baseline("{type: adaptive, objective: $SLO}", bare=False),
    "adaptive-oracle": Baseline("{type: adaptive, objective: $SLO, forecast: forecast}", bare=False, oracle=True),
    "backlog-drain": Baseline("{type: backlog-drain}", bare=False),
}
"""The eleven policies of the benchmark, by name."""


def _without(settings: str, *, bare: bool = False, flat: bool = False) -> Baseline:
    return Baseline(f"{{type: adaptive, objective: $SLO{settings}}}", bare=bare, flat=flat)


ABLATIONS: Mapping[str, Baseline] = {
    "no forecast": _without(", forecast: forecast", flat=True),  # nor a level that arrivals swing around
    "no slack": _without(", slack: 1"),  # acts when the objective is reached, not before
    "no headroom": _without(", headroom: 0"),
    "no down_headroom": _without(", down_headroom: 0"),
    "no scale_down_window": _without(", scale_down_window: 0s"),
    "no rescale_price": _without(", rescale_price: 0s"),
    "no lateness_weight": _without(", lateness_weight: 0"),
    "no utilization": _without(", utilization: none"),  # capacity is learned only while the job falls behind
    "no guards": _without("", bare=True),
}
"""`adaptive` with one rule off, as far as a parameter or its input can turn the rule off."""


def without_guards(spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
    """Decide as `step` does, with the limits instead of all guards: a recommendation takes effect at once."""
    return step(spec, state, observation, _limits)


def _limits(situation: GuardContext) -> tuple[Verdict, ...]:
    limits, size = situation.spec.limits, situation.proposed
    return (Verdict(Reason.BOUNDS, size, max(limits.minimum, min(size, limits.maximum)), Reason.BOUNDS),)


def with_forecast(decide: Decide, load: Load, start: datetime = START) -> Decide:
    """The same decider with the metric `FORECAST`; after the end of the load it repeats the last arrivals."""
    arrived = [0.0, *accumulate(load.rates)]
    last = len(load.rates)

    def mean(begin: int) -> float:
        begin = min(begin, last - 1)
        end = min(begin + _MINUTE, last)
        return max(0.0, (arrived[end] - arrived[begin]) / (end - begin))

    def decided(spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        now = round((observation.at - start).total_seconds() / STEP)
        future = tuple([mean(now + minute * _MINUTE) for minute in range(FORECAST_MINUTES)])
        metrics = {**observation.metrics, FORECAST: Reading(future, observation.at)}
        return decide(spec, state, replace(observation, metrics=metrics))

    return decided


def with_flat_forecast(decide: Decide) -> Decide:
    """The same decider with a metric `FORECAST` that says that arrivals stay the same."""

    def decided(spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        metrics = dict(observation.metrics)
        if "arrivals" in metrics:
            metrics[FORECAST] = metrics["arrivals"]
        return decide(spec, state, replace(observation, metrics=metrics))

    return decided
