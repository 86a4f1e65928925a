"""The autoscaler of the Flink Kubernetes operator: its decisions for the vertices, turned into a number of workers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from zoneinfo import ZoneInfo

from autoscaler.policy_api import (
    AMOUNT,
    MOST_LEARNED,
    SHARE,
    Allowance,
    Cause,
    JobState,
    Limits,
    Observation,
    ParameterError,
    Range,
    Reading,
    Reason,
    Recommendation,
    View,
    dataflow,
)
from autoscaler_policies.flink_operator import excluded_periods as periods
from autoscaler_policies.flink_operator.scaling import (
    MOST,
    Delayed,
    Job,
    Load,
    Settings,
    Summary,
    Wanted,
    exceeds_quota,
    job_changes,
    job_slots,
    needed_capacity,
    processing_backlog,
    recent,
    restart_time,
)
from autoscaler_policies.shared.checks import (
    ABOVE_0,
    ABOVE_0_TO_1,
    ABOVE_0S,
    FROM_0,
    FROM_0S,
    METRIC,
    Check,
    at_least,
    check,
)
from autoscaler_policies.shared.readings import BUSIEST, GAP, moving, slots_in_use
from autoscaler_policies.shared.recommend import are, finite, format_number, missing, replicas, sized

NOTHING: Mapping[str, float] = MappingProxyType({})
JOB = "job"
"""The name of the only vertex, if the metrics are those of the whole job."""
MOST_STEPS = 20
"""The most past steps that are remembered of a vertex: memory must stay small."""

_CHECKS: tuple[tuple[str, Check], ...] = (
    ("utilization_target observed_scalability_coefficient_min", ABOVE_0_TO_1),
    ("scale_down_max_factor", (lambda value: 0 <= value <= 1, "0 to 1")),
    ("target_utilization_boundary scale_up_max_factor scaling_effectiveness_threshold", FROM_0),
    ("observed_true_processing_rate_switch_threshold", FROM_0),
    ("vertex_min_parallelism vertex_max_parallelism observed_scalability_min_observations", at_least(1)),
    ("history_max_count observed_true_processing_rate_min_observations", at_least(1)),
    ("history_max_count", (lambda value: value <= MOST_STEPS, f"{MOST_STEPS} at most")),
    ("catch_up_duration restart_time restart_time_tracking_limit scale_down_interval history_max_age", FROM_0S),
    ("stabilization_interval backlog_processing_lag_threshold", FROM_0S),
    ("observed_true_processing_rate_lag_threshold", FROM_0S),
    ("metrics_window", ABOVE_0S),
    ("quota_cpu quota_memory worker_cpu worker_memory", ABOVE_0),
    ("lag throughput busy arrivals vertices", METRIC),
    ("vertex_exclude_ids", (all, "ids or parts of names, none of them empty")),
)
"""The checks of the parameters."""

_QUEUE = 60
"""The most lower parallelisms that are remembered of a vertex whose scale down waits; fewer if many vertices wait..."""

_SHORTEST = 4
"""... but at least this many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkOperator(Settings):
    """The rule of Flink's own autoscaler: as many subtasks as bring every vertex to its target utilization.

    The new parallelism of each vertex is parallelism x (lag / catch-up + rate x restart / catch-up + rate /
    utilization) / true rate. The true rate is what the vertex could process: its rate divided by its busy share.
    Nothing changes while all vertices are within their band. The number of workers follows from the vertex that needs
    most slots, as in Reactive Mode all vertices share slots. The rules are those of the Flink Kubernetes operator 1.16.
    Parameters have the names of its options `job.autoscaler.*`, with underscores.

    Attributes:
        vertices: name of the metric with the numbers of every vertex (source `flink`, metric `vertices`); default
            none: the job counts as a single vertex with the metrics `lag`, `throughput`, `busy` and `arrivals`.
        utilization_target: how busy a vertex should be, above 0 to 1; default 0.7.
        target_utilization_boundary: allowed distance from the target, if the next two are not given; default 0.3.
        utilization_max: a vertex above this needs more subtasks; default none: target plus boundary.
        utilization_min: a vertex below this needs fewer subtasks; default none: target minus boundary.
        catch_up_duration: time in which a backlog, including that of a restart, is to be processed; with 0s backlogs do
            not count; default 30m.
        restart_time: how long a restart takes; default 5m.
        restart_time_tracking_enabled: whether the longest restart seen counts instead; default false.
        restart_time_tracking_limit: upper limit of the tracked restart time; default 15m.
        scale_down_interval: a scale down waits this long after fewer subtasks were first enough, and then keeps the
            most that were needed within that time; 0s: no wait; default 1h.
        scale_down_max_factor: share of its subtasks that a vertex may lose in one step, 0 to 1; default 0.6.
        scale_up_max_factor: how many times its subtasks a vertex may gain in one step; default 100000.
        vertex_min_parallelism: fewest subtasks of a vertex, 1 or more; default 1.
        vertex_max_parallelism: most subtasks of a vertex; default 200.
        vertex_exclude_ids: vertices that do not count: their ids, or parts of their names; default none.
        scaling_parallelism_alignment_mode: how parallelism is aligned with key groups or source partitions: BALANCED,
            EVENLY_SPREAD, OFF, or as before 1.16 LEGACY_EVENLY_SPREAD, LEGACY_MAXIMIZE_UTILISATION; default BALANCED.
        scaling_effectiveness_detection_enabled: whether a vertex gets no more subtasks after a scale up that gained too
            little; default false.
        scaling_effectiveness_threshold: a gain below this share of the expected one is too little, 0 or more; default
            0.1.
        observed_scalability_enabled: whether to estimate from past steps how well a vertex scales; default false.
        observed_scalability_min_observations: past steps needed for that estimate; default 3.
        observed_scalability_coefficient_min: lower limit of that estimate, above 0 to 1; default 0.5.
        history_max_count: past steps that are remembered of a vertex, up to 20; default 3.
        history_max_age: how long past steps are remembered; default 24h.
        metrics_window: time over which everything is averaged; nothing is asked for before it is full; default 15m.
        stabilization_interval: readings within this time after the start of the job do not count; default 5m.
        backlog_processing_lag_threshold: a source that needs longer than this for its lag may be busy all the time,
            and nothing is scaled down; default 5m.
        observed_true_processing_rate_lag_threshold: a source with more lag than this runs at full speed; default 30s.
        observed_true_processing_rate_switch_threshold: by how much the rate from the busy share may exceed the rate
            observed at full speed; default 0.15.
        observed_true_processing_rate_min_observations: readings at full speed needed for that rate; default 2.
        excluded_periods: when nothing may change: daily ranges such as 9:30:30-10:50:20, cron expressions of Quartz
            such as `* * 9-11 ? * MON-FRI`, or both joined by &&; default none.
        timezone: the time zone of the excluded periods, such as Europe/Berlin; default UTC.
        quota_cpu: processors that all workers together may have; a step that needs more is not made; default none.
        quota_memory: memory that all workers together may have, in GiB; default none.
        worker_cpu: processors of one worker; needed with `quota_cpu`; default none.
        worker_memory: memory of one worker in GiB; needed with `quota_memory`; default none.
        lag: metric with the records waiting, used without `vertices`; default lag.
        throughput: metric with the processed records/s, used without `vertices`; default throughput.
        busy: metric with the busy share, 0 to 1, used without `vertices`; default saturation.
        arrivals: metric with the offered records/s, used without `vertices`; may be absent: then arrivals are
            throughput plus the growth of the lag; default arrivals.
    """

    rounded_from = 100.0
    """Flink rounds every capacity to a whole number, so a job with 0.4 records/s would need no capacity."""

    vertices: str | None = None
    restart_time: timedelta = timedelta(minutes=5)
    restart_time_tracking_enabled: bool = False
    restart_time_tracking_limit: timedelta = timedelta(minutes=15)
    vertex_exclude_ids: tuple[str, ...] = ()
    history_max_count: int = 3
    history_max_age: timedelta = timedelta(hours=24)
    metrics_window: timedelta = timedelta(minutes=15)
    stabilization_interval: timedelta = timedelta(minutes=5)
    backlog_processing_lag_threshold: timedelta = timedelta(minutes=5)
    observed_true_processing_rate_lag_threshold: timedelta = timedelta(seconds=30)
    observed_true_processing_rate_switch_threshold: float = 0.15
    observed_true_processing_rate_min_observations: int = 2
    excluded_periods: tuple[str, ...] = ()
    timezone: str = "UTC"
    quota_cpu: float | None = None
    quota_memory: float | None = None
    worker_cpu: float | None = None
    worker_memory: float | None = None
    lag: str = "lag"
    throughput: str = "throughput"
    busy: str = "saturation"
    arrivals: str = "arrivals"

    def __post_init__(self) -> None:
        for names, expected in _CHECKS:
            check(self, names, *expected)
        target, most, least = self.utilization_target, self.utilization_max, self.utilization_min
        if most is not None and not target <= most <= 1:
            raise ParameterError("utilization_max", f"is {most}, expected utilization_target ({target}) to 1")
        if least is not None and not 0 <= least <= target:
            raise ParameterError("utilization_min", f"is {least}, expected 0 to utilization_target ({target})")
        if self.vertex_max_parallelism < self.vertex_min_parallelism:
            raise ParameterError(
                "vertex_max_parallelism",
                f"is {self.vertex_max_parallelism}, expected vertex_min_parallelism "
                f"({self.vertex_min_parallelism}) or more",
            )
        for quota, worker in (("quota_cpu", "worker_cpu"), ("quota_memory", "worker_memory")):
            if getattr(self, quota) is not None and getattr(self, worker) is None:
                raise ParameterError(worker, f"is missing, expected together with {quota}")
        self._check_periods()

    def _check_periods(self) -> None:
        try:
            _periods(self.excluded_periods)
        except ValueError as error:
            raise ParameterError("excluded_periods", f"{error}") from None
        try:
            _zone(self.timezone)
        except (ValueError, OSError, LookupError):
            raise ParameterError(
                "timezone", f"is {self.timezone:.60}, expected the name of a time zone, such as Europe/Berlin"
            ) from None

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics it cannot do without."""
        return (self.lag, self.throughput, self.busy) if self.vertices is None else (self.vertices,)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of its metrics."""
        return {self.lag: AMOUNT, self.arrivals: AMOUNT, self.throughput: AMOUNT, self.busy: SHARE}

    @property
    def lookback(self) -> timedelta:
        """Slightly more than the window, as there is no reading exactly at its beginning."""
        return self.metrics_window * 1.25 + timedelta(minutes=1)

    def allow(self, now: datetime, limits: Limits) -> Allowance:
        """Let nothing change within the excluded periods."""
        if not self.excluded_periods:
            return Allowance(limits)
        local = now.astimezone(_zone(self.timezone))
        if not periods.excluded(_periods(self.excluded_periods), local):
            return Allowance(limits)
        return Allowance(limits, f"{local:%H:%M} is within excluded_periods")

    def learn(self, view: View) -> Mapping[str, float]:
        """Remember waiting scale downs, past steps of the vertices, and restarts."""
        memory = dict(view.memory)
        self._follow(view, memory)
        measured = self._measure(view)
        if not (isinstance(measured, Recommendation) and measured.reason is Reason.MISSING):
            self._note_reading(view, memory)
        if isinstance(measured, Recommendation):
            return memory
        kept = {name: memory[name] for name in memory if name.startswith("restart.") or name in {"asked_at", "read_at"}}
        history = {
            vertex: self._stepped(vertex, load, memory, _epoch(view.now)) for vertex, load in measured.loads.items()
        }
        for vertex, load in measured.loads.items():
            kept[f"{vertex}.parallelism"] = float(load.parallelism)
            if self._remembers and math.isfinite(load.true_rate):
                kept[f"{vertex}.rate"] = load.true_rate
            for index, step in enumerate(history[vertex]):
                kept |= _of_step(f"{vertex}.step.{index}", step)
        job = self._decide(view, measured, memory, history)
        waiting = {vertex: change.delayed for vertex, change in job.changes.items() if change.delayed is not None}
        room = (MOST_LEARNED - len(kept)) // max(len(waiting), 1)
        for vertex, delayed in waiting.items():
            waits = _of_delayed(vertex, delayed, max(_SHORTEST, min((room - 1) // 3, _QUEUE)))
            if len(kept) + len(waits) <= MOST_LEARNED:  # if left out, the wait of the vertex only starts again
                kept |= waits
        return dict(list(kept.items())[:MOST_LEARNED])

    def evaluate(self, view: View) -> Recommendation:
        """Ask for as many workers as the vertices need."""
        if view.current == 0:
            return self._first(view)
        measured = self._measure(view)
        if isinstance(measured, Recommendation):
            return measured
        history = {vertex: _steps(view.memory, vertex) for vertex in measured.loads}
        job = self._decide(view, measured, view.memory, history)
        return self._answer(view, measured, job)

    def _first(self, view: View) -> Recommendation:
        """A job without any replica gets its first one as soon as there is something to do."""
        if self.vertices is not None:
            return missing(view, self.vertices)
        known = {name: _total(view.metrics.get(name)) for name in (self.lag, self.arrivals)}
        inputs = {name: value for name, value in known.items() if not math.isnan(value)}
        if not inputs:
            return missing(view, *known)
        if any(inputs.values()):
            return sized(view, 1, inputs, "there is something to do and no replica: 1 replica")
        if len(inputs) < len(known) and self.lag not in inputs:
            return missing(view, self.lag)
        return sized(view, 0, inputs, "there is nothing to do and no replica")

    # measuring

    def _measure(self, view: View) -> _Measured | Recommendation:
        """The vertices over the window, or why they cannot be evaluated now."""
        if missed := [name for name in self.metrics if name not in view.metrics]:
            return missing(view, *missed)
        engine = view.engine
        if engine is not None and engine.job is not JobState.RUNNING:
            return Recommendation(None, Reason.ABSTAINED, {}, f"the job is {engine.job}: metrics are not evaluated")
        if moving(view):
            return Recommendation(None, Reason.ABSTAINED, {}, "a rescale is in progress: metrics are not evaluated")
        seen = self._window(view)
        if isinstance(seen, Recommendation):
            return seen
        return self._job(view, seen) if self.vertices is None else self._vertices(view, seen, self.vertices)

    def _window(self, view: View) -> Sequence[Observation] | Recommendation:
        """The observations of the window, oldest first: `ScalingMetricCollector.updateMetrics`."""
        now = view.now
        starts = [] if view.disturbance_ended_at is None else [view.disturbance_ended_at]
        if view.engine is not None and view.engine.running_since is not None:
            starts.append(view.engine.running_since)
        stable = max(starts) + self.stabilization_interval if starts else None
        if stable is not None and now < stable:
            left = (stable - now).total_seconds()
            return _learning(
                f"the job has just started: metrics are ignored for another {left:.0f} s (stabilization_interval)"
            )
        start = now - self.metrics_window
        alike = self._of_one_size(view.past) if self.vertices is None else self._of_same_sizes(view.past, self.vertices)
        seen: list[Observation] = []
        for observation in alike:
            if stable is not None and observation.at < stable:
                break
            seen.append(observation)
            if observation.at <= start:
                break  # the window is full; earlier observations do not count
        first = seen[-1].at if seen else now
        if start < first:
            return _learning(f"metrics_window is complete in {(first - start).total_seconds():.0f} s at the earliest")
        found = [observation for observation in reversed(seen) if observation.at >= start]
        if len(found) < 2:  # noqa: PLR2004 - a rate lies between two
            return _learning(f"there are {len(found)} readings in the window, expected 2 or more")
        return found

    def _of_one_size(self, past: Sequence[Observation]) -> Iterator[Observation]:
        """Usable observations, newest first, as long as the size is the same: a true rate belongs to a parallelism."""
        ready = parallelism = None
        for observation in reversed(past):
            had, engine = observation.ready, observation.engine
            ran = None if engine is None else engine.parallelism
            if ready is None:
                ready = had
            if parallelism is None:
                parallelism = ran
            if (had is not None and had != ready) or (ran is not None and ran != parallelism):
                return
            metrics = observation.metrics
            if self.lag in metrics and self.throughput in metrics and self.busy in metrics:
                yield observation

    def _of_same_sizes(self, past: Sequence[Observation], name: str) -> Iterator[Observation]:
        """The same with `vertices`, as long as no vertex changes. A vertex that is not listed counts as unchanged."""
        sizes: dict[str, float | None] = {}
        for observation in reversed(past):
            reading = observation.metrics.get(name)
            if reading is None or not reading.parts:
                continue
            before = {label: numbers.get("parallelism") for label, numbers in reading.parts.items()}
            if any(sizes.get(label, size) != size for label, size in before.items()):
                return
            sizes |= before
            yield observation

    def _job(self, view: View, seen: Sequence[Observation]) -> _Measured | Recommendation:
        """The job as one vertex."""
        parallelism = slots_in_use(view)
        if not parallelism:
            return Recommendation(None, Reason.ABSTAINED, {}, "no replica is up: metrics are not evaluated")
        processed = [_total(observation.metrics[self.throughput]) for observation in seen]
        shares = [_busiest(observation.metrics[self.busy]) for observation in seen]
        waiting = [_total(observation.metrics[self.lag]) for observation in seen]
        if math.isnan(processed[-1]) or math.isnan(shares[-1]) or math.isnan(waiting[-1]):
            return missing(view, *self.metrics)
        taken = dataflow.average(processed)
        offered = dataflow.NAN
        if self.arrivals in view.metrics:
            offered = dataflow.average([_total(observation.metrics.get(self.arrivals)) for observation in seen], 2)
        if math.isnan(offered):
            ats = [_millis(observation.metrics[self.lag]) for observation in seen]
            offered = taken + dataflow.rate(zip(ats, waiting, strict=True))
        target = self._target(offered, waiting[-1])
        true_rate = self._true_rate(taken, shares, self._observed(processed, waiting, [0.0] * len(seen)))
        if taken == 0 and (target.rate > 0 or waiting[-1] > 0):
            true_rate = dataflow.NAN  # by Flink's rules it would be infinite, which would shrink a job that is stuck
        engine = view.engine
        most = MOST if engine is None or not engine.max_parallelism else max(engine.max_parallelism, parallelism)
        load = Load(parallelism=parallelism, target=target, true_rate=true_rate, max_parallelism=most)
        backlog = processing_backlog(waiting[-1], taken, self.backlog_processing_lag_threshold)
        return _Measured(loads={JOB: load}, names={JOB: "the job"}, group={JOB: 0}, every=[(0, most)], backlog=backlog)

    def _vertices(self, view: View, seen: Sequence[Observation], name: str) -> _Measured | Recommendation:
        """Each vertex separately."""
        readings = [observation.metrics[name] for observation in seen]
        last = readings[-1].parts
        alive = {_ident(label): label for label, numbers in last.items() if numbers.get("parallelism", 0) >= 1}
        if not alive:
            return missing(view, name)
        edges = tuple((start, end) for end, label in alive.items() for start in _inputs(last[label]) if start in alive)
        try:
            graph = dataflow.Graph(tuple(alive), edges)
        except ValueError:
            return Recommendation(None, Reason.MISSING, {}, f"{name}: the vertices feed each other in a circle")
        ats = [_millis(reading) for reading in readings]
        series = {
            vertex: _Series([reading.parts.get(label, NOTHING) for reading in readings], ats)
            for vertex, label in alive.items()
        }
        rates = {
            vertex: dataflow.Rates(one.mean("records_in"), one.mean("records_out")) for vertex, one in series.items()
        }
        sources = [vertex for vertex, one in series.items() if one.last("source") == 1]
        targets = {vertex: self._offered(series[vertex], rates[vertex].records_in) for vertex in sources}
        wanted = dataflow.target_rates(graph, targets, dataflow.output_ratios(graph, rates))
        loads = {
            vertex: self._load(one, wanted[vertex], rates[vertex].records_in, source=vertex in targets)
            for vertex, one in series.items()
        }
        # A legacy source has no busy time, and is rarely the bottleneck.
        left_out = {
            vertex
            for vertex, one in series.items()
            if self._excludes(vertex, alive[vertex])
            or (vertex in targets and math.isnan(loads[vertex].true_rate) and math.isnan(one.mean("busy")))
        }
        threshold = self.backlog_processing_lag_threshold
        return _Measured(
            loads=loads,
            names={vertex: _name(label) for vertex, label in alive.items()},
            group={vertex: _group(last[label]) for vertex, label in alive.items()},
            every=[(_group(numbers), _key_groups(numbers)) for numbers in last.values()],
            backlog=any(
                processing_backlog(series[source].last("lag"), rates[source].records_in, threshold)
                for source in sources
            ),
            left_out=frozenset(left_out),
        )

    def _offered(self, one: _Series, taken: float) -> dataflow.TargetRate:
        """The target rate of a source. A source that never reports its lag has none, as in Flink's autoscaler."""
        lags = one.all("lag")
        if all(map(math.isnan, lags)):
            return self._target(taken, 0.0)
        return self._target(taken + (dataflow.rate(one.timed("lag")) if lags[-1] >= 0 else dataflow.NAN), lags[-1])

    def _load(self, one: _Series, target: dataflow.TargetRate, taken: float, *, source: bool) -> Load:
        observed = self._observed(one.all("records_in"), one.all("lag"), one.all("backpressured")) if source else ()
        true_rate = self._true_rate(taken, one.all("busy"), observed)
        if taken == 0 and (target.rate > 0 or one.last("lag") > 0):
            true_rate = dataflow.NAN  # see `_job`
        return Load(
            parallelism=_whole(one.last("parallelism")),
            target=target,
            true_rate=true_rate,
            max_parallelism=_key_groups(one.numbers[-1]),
            partitions=_whole(one.last("partitions")),
            keyed=one.last("keyed") == 1,
        )

    def _excludes(self, vertex: str, label: str) -> bool:
        return any(text == vertex or text in _name(label) for text in self.vertex_exclude_ids)

    def _target(self, offered: float, waiting: float) -> dataflow.TargetRate:
        seconds = self.catch_up_duration // timedelta(seconds=1)
        return dataflow.TargetRate(
            offered if math.isnan(offered) else max(0.0, offered), waiting / seconds if seconds else 0.0
        )

    def _observed(self, taken: Iterable[float], lags: Iterable[float], held: Iterable[float]) -> Sequence[float]:
        """The rates of a source while it caught up, one per reading."""
        threshold, minimum = (
            self.observed_true_processing_rate_lag_threshold,
            self.observed_true_processing_rate_min_observations,
        )
        seconds = threshold // timedelta(seconds=1)
        found: list[float] = []
        count, total = 0, 0.0
        for records_in, lag, share in zip(taken, lags, held, strict=True):
            one = total / count if count >= minimum else dataflow.NAN
            if not (records_in > 0 and lag < seconds * records_in):  # with less lag, the earlier mean stays
                one = dataflow.observed_while_catching_up(
                    records_in, lag, 0.0 if math.isnan(share) else share * 1000, threshold=threshold, previous=one
                )
            found.append(one)
            if math.isfinite(one):
                count, total = count + 1, total + one
        return found

    def _true_rate(self, taken: float, shares: Sequence[float], observed: Sequence[float]) -> float:
        return dataflow.true_processing_rate(
            dataflow.average(shares) * 1000,
            taken,
            observed,
            switch_threshold=self.observed_true_processing_rate_switch_threshold,
            minimum=self.observed_true_processing_rate_min_observations,
        )

    # the decision

    @property
    def _remembers(self) -> bool:
        """Whether any rule uses past steps."""
        return self.scaling_effectiveness_detection_enabled or self.observed_scalability_enabled

    def _restart(self, memory: Mapping[str, float]) -> timedelta:
        return restart_time(
            [seconds for _, seconds in _restarts(memory)],
            self.restart_time,
            tracked=self.restart_time_tracking_enabled,
            limit=self.restart_time_tracking_limit,
        )

    def _decide(
        self, view: View, measured: _Measured, memory: Mapping[str, float], history: Mapping[str, Sequence[Summary]]
    ) -> Job:
        now = _epoch(view.now)
        waiting = {vertex: _delayed(memory, vertex, load.parallelism, now) for vertex, load in measured.loads.items()}
        return job_changes(
            measured.loads,
            self,
            self._restart(memory),
            histories=history,
            delayed={vertex: delayed for vertex, delayed in waiting.items() if delayed is not None},
            now=now,
            backlog=measured.backlog,
            excluded=measured.left_out,
        )

    def _answer(self, view: View, measured: _Measured, job: Job) -> Recommendation:
        if not job.changes:
            return Recommendation(None, Reason.ABSTAINED, {}, "every vertex is excluded")
        changed = job.changed
        needed = {
            vertex: changed[vertex].parallelism if vertex in changed else measured.loads[vertex].parallelism
            for vertex in job.changes
        }
        limiting = max(needed, key=lambda vertex: (needed[vertex], self._short(view, measured.loads[vertex])))
        load = measured.loads[limiting]
        inputs = self._inputs(view, load, measured, needed[limiting])
        summary = f"{measured.names[limiting]}: {self._describe_load(view, load)}"
        if not changed:
            held = next((vertex for vertex, change in job.changes.items() if change.why), limiting)
            of = "" if held == limiting else f"{measured.names[held]}: "
            why = of + (job.changes[held].why or "every vertex is within its band")
            return sized(
                view, view.current, inputs, f"{summary}; {why}, {replicas(view.current)} {are(view.current)} kept"
            )
        if self._too_much(view, measured, {vertex: change.parallelism for vertex, change in changed.items()}):
            return sized(
                view,
                view.current,
                inputs,
                f"{summary}; the quota allows no more, {replicas(view.current)} {are(view.current)} kept",
            )
        groups = measured.slots(needed)
        slots, each = job_slots(groups), view.spec.slots_per_replica
        workers = -(-slots // each)
        has = job_slots(measured.slots({vertex: measured.loads[vertex].parallelism for vertex in needed}))
        sum_up = f"ceil({slots} slots / {each}) = {replicas(workers)}"
        if slots >= has and workers < view.current:
            workers = view.current  # the job does not use all workers yet, and does not need fewer slots
            sum_up += f", and {view.current} are there"
        return sized(
            view, workers, inputs, f"{summary}: parallelism {load.parallelism} to {needed[limiting]}, {sum_up}"
        )

    def _inputs(self, view: View, load: Load, measured: _Measured, needed: int) -> dict[str, float]:
        inputs = {
            "vertices": float(len(measured.loads)),
            "parallelism": float(load.parallelism),
            "needed": float(needed),
            "target_rate": load.target.rate,
            "catch_up_rate": load.target.catch_up,
            "true_rate": load.true_rate,
            "capacity": self._capacity(view, load),
            "backlog": float(measured.backlog),
        }
        return {name: finite(value) for name, value in inputs.items() if not math.isnan(value)}

    def _capacity(self, view: View, load: Load) -> float:
        return needed_capacity(load.target, self, self._restart(view.memory))

    def _short(self, view: View, load: Load) -> float:
        """Needed capacity divided by the true rate: names the neediest of several vertices with equal parallelism."""
        short = dataflow.divided(self._capacity(view, load), load.true_rate)
        return dataflow.INF if math.isnan(short) else short

    def _describe_load(self, view: View, load: Load) -> str:
        capacity = self._capacity(view, load)
        if math.isnan(load.true_rate) or math.isnan(capacity):
            return f"its rates are not known, it keeps parallelism {load.parallelism}"
        true_rate = "any rate" if math.isinf(load.true_rate) else f"{format_number(load.true_rate)} records/s"
        return (
            f"{format_number(load.target.rate)} records/s need {format_number(capacity)} at "
            f"{self.utilization_target:.0%}, "
            f"{load.parallelism} subtasks could process {true_rate}"
        )

    def _too_much(self, view: View, measured: _Measured, changed: Mapping[str, int]) -> bool:
        if self.quota_cpu is None and self.quota_memory is None:
            return False
        now: dict[int, int] = {}
        new: dict[int, int] = {}
        for vertex, parallelism in changed.items():
            group = measured.group[vertex]
            now[group] = max(now.get(group, 0), measured.loads[vertex].parallelism)
            new[group] = max(new.get(group, 0), parallelism)
        return exceeds_quota(
            [*now.values()],
            [*new.values()],
            view.spec.slots_per_replica,
            worker_cpu=self.worker_cpu or 0.0,
            worker_memory=self.worker_memory or 0.0,
            cpu=self.quota_cpu,
            memory=self.quota_memory,
        )

    # memory

    def _follow(self, view: View, memory: dict[str, float]) -> None:
        """Record a requested rescale, and when the job ran again: `ScalingTracking`."""
        rescale = view.rescale
        asked = memory.get("asked_at", -math.inf)
        if rescale is not None and rescale.cause is Cause.REQUEST and _epoch(rescale.at) > asked + 0.5:
            _stop_waiting(memory)
            memory["asked_at"], memory["asked"] = _epoch(rescale.at), 1.0
            if self.restart_time_tracking_enabled:
                self._keep_restarts(view, memory, [*_restarts(memory), (_epoch(rescale.at), None)])
        known = _restarts(memory)
        if not known or known[-1][1] is not None or moving(view):
            return
        began = known[-1][0]
        engine = view.engine
        ends = [
            view.disturbance_ended_at,
            None if engine is None or engine.job is not JobState.RUNNING else engine.running_since,
        ]
        ended = next((_epoch(end) for end in reversed(ends) if end is not None and _epoch(end) > began), None)
        if ended is not None:
            self._keep_restarts(view, memory, [*known[:-1], (began, ended - began)])

    def _note_reading(self, view: View, memory: dict[str, float]) -> None:
        """Record that there are readings. After a long gap, the waits of scale downs start again.

        More may have been needed in the gap. The original counts it as time in which fewer subtasks were enough.
        """
        now = _epoch(view.now)
        if now - memory.get("read_at", now) > max(self.metrics_window, view.spec.interval * GAP).total_seconds():
            _stop_waiting(memory)
        memory["read_at"] = now

    def _keep_restarts(self, view: View, memory: dict[str, float], known: Sequence[tuple[float, float | None]]) -> None:
        _forget(memory, lambda name: name.startswith("restart."))
        ats = recent(
            [at for at, _ in known], _epoch(view.now), self.history_max_age, self.history_max_count, keep_last=True
        )
        for index, (at, seconds) in enumerate(known[-len(ats) :]):
            memory[f"restart.{index}_at"] = at
            if seconds is not None:
                memory[f"restart.{index}"] = seconds

    def _stepped(self, vertex: str, load: Load, memory: dict[str, float], now: float) -> tuple[Summary, ...]:
        """The past steps of a vertex, including a new one. A change of the vertex resets the wait to scale it down."""
        known = _steps(memory, vertex)
        before = memory.get(f"{vertex}.parallelism")
        if before is not None and before != load.parallelism:
            _forget(memory, lambda name: name.startswith((f"{vertex}.down.", f"{vertex}.down_at")))
            true_rate = memory.get(f"{vertex}.rate")
            if memory.get("asked") and true_rate is not None and before >= 1:
                expected = finite(true_rate * load.parallelism / before)
                known = (*known, Summary(now, _whole(before), load.parallelism, true_rate, expected))
        if not self._remembers:
            return ()
        ats = recent([one.at for one in known], now, self.history_max_age, self.history_max_count)
        return known[len(known) - len(ats) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """The vertices of a job over the window.

    Attributes:
        loads: vertex -> its measured load.
        names: vertex -> its name, for users.
        group: vertex -> its slot sharing group.
        every: slot sharing group and key groups of every deployed vertex, including finished ones.
        backlog: whether a source has a backlog.
        left_out: vertices that do not count.
    """

    loads: Mapping[str, Load]
    names: Mapping[str, str]
    group: Mapping[str, int]
    every: Sequence[tuple[int, int]]
    backlog: bool
    left_out: frozenset[str] = frozenset()

    def slots(self, needed: Mapping[str, int]) -> list[tuple[int, int]]:
        """For each group: the parallelism of its neediest vertex, and the most that its vertices can use."""
        most: dict[int, int] = {}
        for group, key_groups in self.every:
            most[group] = max(most.get(group, 0), key_groups)
        need = dict.fromkeys(most, 1)
        for vertex, parallelism in needed.items():
            group = self.group[vertex]
            need[group] = max(need[group], parallelism)
        return [(need[group], most[group]) for group in most]


@dataclass(frozen=True, slots=True)
class _Series:
    """One vertex over several readings."""

    numbers: Sequence[Mapping[str, float]]
    ats: Sequence[float]

    def all(self, name: str) -> list[float]:
        """A number at each reading; NaN if it is missing, infinite or negative."""
        return [_positive(numbers.get(name, dataflow.NAN)) for numbers in self.numbers]

    def timed(self, name: str) -> Iterator[tuple[float, float]]:
        """The same, each with its time in ms."""
        return zip(self.ats, self.all(name), strict=True)

    def mean(self, name: str) -> float:
        """Its mean."""
        return dataflow.average(self.all(name))

    def last(self, name: str) -> float:
        """The present number."""
        return _positive(self.numbers[-1].get(name, dataflow.NAN))


def _learning(detail: str) -> Recommendation:
    return Recommendation(None, Reason.LEARNING, {}, detail)


def _epoch(at: datetime) -> float:
    return at.timestamp()


def _millis(reading: Reading) -> float:
    return reading.at.timestamp() * 1000


def _positive(value: float) -> float:
    """The value; NaN if it is negative or infinite, as past readings are not checked."""
    return value if 0 <= value < dataflow.INF else dataflow.NAN


def _whole(value: float) -> int:
    """A number as a count; 0 if it is unknown."""
    return 0 if math.isnan(value) else int(min(value, MOST))


def _group(numbers: Mapping[str, float]) -> int:
    """The slot sharing group of a vertex; if it is not reported, all vertices share one group."""
    return _whole(_positive(numbers.get("group", 0.0)))


def _key_groups(numbers: Mapping[str, float]) -> int:
    """The most subtasks that a vertex can have, at least its present number; any number if it is not reported."""
    most = _whole(_positive(numbers.get("max_parallelism", dataflow.NAN))) or MOST
    return max(most, _whole(_positive(numbers.get("parallelism", dataflow.NAN))))


def _total(reading: Reading | None) -> float:
    """A rate or a number of records over all replicas; NaN if it is missing or invalid."""
    if reading is None:
        return dataflow.NAN
    value = reading.value
    if not isinstance(value, tuple):
        return _positive(value)
    return finite(sum(value)) if value and all(0 <= one < dataflow.INF for one in value) else dataflow.NAN


def _busiest(reading: Reading) -> float:
    """The busy share of the busiest replica, or the mean if the source knows it; NaN if it is not a busy share."""
    value = reading.averaged
    if isinstance(value, tuple):
        value = max(value) if value and all(0 <= one <= BUSIEST for one in value) else dataflow.NAN
    return min(value, 1.0) if 0 <= value <= BUSIEST else dataflow.NAN


_LABEL = re.compile(r"(.*) \(([0-9a-f]{32})\)", re.DOTALL)


def _ident(label: str) -> str:
    """The id of a vertex from its label `name (id)`, or the label itself."""
    found = _LABEL.fullmatch(label)
    return found[2] if found else label


def _name(label: str) -> str:
    found = _LABEL.fullmatch(label)
    return found[1] if found else label


def _inputs(numbers: Mapping[str, float]) -> list[str]:
    """The vertices that send records to a vertex."""
    return [name.removeprefix("from:") for name in numbers if name.startswith("from:")]


def _stop_waiting(memory: dict[str, float]) -> None:
    """Forget the waiting scale downs: `DelayedScaleDown.clearAll`."""
    _forget(memory, lambda name: name.endswith(".down_at") or ".down." in name)


def _forget(memory: dict[str, float], known: Callable[[str], bool]) -> None:
    for name in [name for name in memory if known(name)]:
        del memory[name]


def _delayed(memory: Mapping[str, float], vertex: str, parallelism: int, now: float) -> Delayed | None:
    """The waiting scale down of a vertex; None: it has none."""
    since = memory.get(f"{vertex}.down_at")
    if since is None:
        return None
    wanted: list[Wanted] = []
    while (at := memory.get(f"{vertex}.down.{len(wanted)}_at")) is not None:
        lower = memory.get(f"{vertex}.down.{len(wanted)}")
        if lower is None or not 1 <= lower < parallelism:
            break
        outside = memory.get(f"{vertex}.down.{len(wanted)}.outside") == 1
        wanted.append(Wanted(min(at, now), int(lower), outside))
    return Delayed(min(since, now), tuple(wanted)) if wanted else None


def _of_delayed(vertex: str, delayed: Delayed, most: int) -> dict[str, float]:
    wanted = list(delayed.wanted)
    while len(wanted) > most:
        # Of the two that differ least, keep the older for both: it is larger, and too many subtasks do no harm.
        gaps = [before.parallelism - after.parallelism for before, after in pairwise(wanted[:-1])]
        first = gaps.index(min(gaps))
        older, younger = wanted[first : first + 2]
        wanted[first : first + 2] = [Wanted(younger.at, older.parallelism, older.outside)]
    found = {f"{vertex}.down_at": delayed.since}
    for index, one in enumerate(wanted):
        found[f"{vertex}.down.{index}_at"] = one.at
        found[f"{vertex}.down.{index}"] = float(one.parallelism)
        found[f"{vertex}.down.{index}.outside"] = float(one.outside)
    return found


def _steps(memory: Mapping[str, float], vertex: str) -> tuple[Summary, ...]:
    """The past steps of a vertex, oldest first."""
    found: list[Summary] = []
    while (at := memory.get(f"{vertex}.step.{len(found)}_at")) is not None:
        numbers = [memory.get(f"{vertex}.step.{len(found)}.{name}", 0.0) for name in ("from", "to", "rate", "expected")]
        before, after, true_rate, expected = numbers
        if min(before, after) < 1:
            break
        found.append(Summary(at, int(before), int(after), true_rate, expected))
    return tuple(found)


def _of_step(name: str, step: Summary) -> dict[str, float]:
    return {
        f"{name}_at": step.at,
        f"{name}.from": float(step.parallelism),
        f"{name}.to": float(step.new_parallelism),
        f"{name}.rate": step.true_rate,
        f"{name}.expected": step.expected_rate,
    }


def _restarts(memory: Mapping[str, float]) -> list[tuple[float, float | None]]:
    """Past restarts, oldest first: when each was requested, and how many seconds it took (None: not over yet)."""
    found: list[tuple[float, float | None]] = []
    while (at := memory.get(f"restart.{len(found)}_at")) is not None:
        seconds = memory.get(f"restart.{len(found)}")
        found.append((at, None if seconds is None else max(0.0, seconds)))
    return found


@cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@cache
def _periods(expressions: tuple[str, ...]) -> tuple[periods.Period, ...]:
    return tuple(map(periods.parse, expressions))
