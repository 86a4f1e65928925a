"""Simulate a run of the demo on Spark, with workers as measured in that run.

The simulation uses the plant of `autoscaler simulate` and decides with the demo's configuration. A real daemon reads
the finished batches of a query, so its information is as old as the running batch. Here the batches follow from the
plant's progress, and the functions of the source `spark` turn them into metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from statistics import median
from typing import Any

from autoscaler.clients.spark_progress import Batch, read_batch
from autoscaler.clients.spark_progress import Run as Query
from autoscaler.core.model import ClusterSpec, ClusterState, EngineStatus, JobState, Observation, Reading
from autoscaler.core.step import step
from autoscaler.demo.environment import PARTITIONS
from autoscaler.demo.load import BatchSizer, Load
from autoscaler.demo.result import Rescale, Run, Sample, first_tasks, summary
from autoscaler.demo.sink import Account, Arrival
from autoscaler.ports import EdgeError
from autoscaler.schedulers.spark import SparkSettings
from autoscaler.simulation.plant import START, STEP, Plant, PlantSpec
from autoscaler.sources.spark_metrics import METRICS, Metric, Snapshot

TICK = 0.25
"""Seconds of one step here. A step of the plant is STEP / TICK times longer, so its times are scaled by that factor."""

MAX_DRAIN = 180.0
"""Seconds for which the simulation waits for the last rescale after the end of the load."""

REPORTED_BATCHES = 100
"""Batches of the query in its simulated report."""

COMPARED = ("peak_lag", "drained_after_s", "first_scale_up_after_s", "scale_ups", "scale_downs", "rescales")
"""The figures of the summary that are compared with the real run."""

_EPOCH = 1e9  # when the load begins, by the clock of the simulated driver


@dataclass(frozen=True, slots=True)
class Measured:
    """Rates and times of a run's workers, all from before the peak of the lag.

    Attributes:
        rate_per_worker: records/s of an overloaded worker, before the first scale-up.
        startup: seconds from the request until the new workers were ready.
        joined: seconds from then until the job had their slots.
        cold: seconds from then until the commit of the first batch in which all new workers had processed a record.
            That batch waits for their first tasks, which start Python processes.
        shortest: seconds of a batch with few records, before the load rose; if none ended before that, the target
            length of a batch.
    """

    rate_per_worker: float
    startup: float
    joined: float
    cold: float
    shortest: float


def measure(run: Run, batch: float) -> Measured | None:
    """Measure the workers at the first scale-up of a run; None if there was none, or too little of it was observed.

    Args:
        run: the run.
        batch: the seconds that a full batch takes. The measurement begins this long after the load rose, because the
            workers may not have been fully loaded before.
    """
    rise = run.load.rise
    up = next((each for each in run.rescales if each.to > each.before and rise is not None and each.at >= rise), None)
    if rise is None or up is None:
        return None
    later = [sample for sample in run.samples if sample.at > up.at]
    ready = next((sample.at for sample in later if (sample.ready or 0) >= up.to), math.inf)
    joined = next((sample.at for sample in later if (sample.slots or 0) >= up.to), math.inf)
    new = sorted(at for at in first_tasks(run).values() if at > up.at)[: up.to - up.before]
    commits = [at - run.start for at in run.commits]
    used = next((at for at in commits if new and at >= new[-1]), math.inf)
    lengths = [after - before for before, after in pairwise(commits) if after < rise]
    begin = rise + batch
    done = sum(begin <= arrival.at - run.start < up.at for arrival in run.arrivals)
    if math.inf in (ready, joined, used) or not done:
        return None
    return Measured(
        rate_per_worker=done / (up.at - begin) / up.before,
        startup=ready - up.at,
        joined=max(0.0, joined - ready),
        cold=max(0.0, used - max(joined, ready)),
        # If processes start slowly, no batch ended before the load rose.
        shortest=median(lengths or [batch]),
    )


def simulate(spec: ClusterSpec, load: Load, measured: Measured, batch: float, window: float, phase: float = 0.0) -> Run:
    """Run the demo with simulated workers. Returns the same data as a real run.

    Args:
        spec: the cluster of the demo's configuration.
        load: the offered load.
        measured: the workers' measured rates and times.
        batch: the seconds that a full batch takes.
        window: seconds over which the source averages.
        phase: seconds from the start of the load to the first decision, modulo the decision interval.
    """
    plant = Plant(_plant(measured), measured.rate_per_worker * TICK / STEP, 0, spec.limits.minimum)
    query = _Query(sizer=BatchSizer(batch, 10 * PARTITIONS), window=window, shortest=measured.shortest)
    state = ClusterState()
    arrivals: list[Arrival] = []
    rescales: list[Rescale] = []
    samples = [Sample(0.0, plant.desired, plant.desired, plant.desired)]
    every = round(spec.interval.total_seconds() / TICK)
    due = round(phase / TICK) % every
    ticks, now = 0, 0.0
    drained = False
    while now < load.duration + MAX_DRAIN and not (drained and _settled(samples)):
        before = now
        ticks += 1
        now = ticks * TICK
        plant.advance(float(load.offered(now) - load.offered(before)))
        _process(arrivals, plant, before)
        query.advance(now, load.offered(now), len(arrivals), plant.track.running[-1])
        seen = plant.observe()
        samples.append(Sample(now, seen.desired, seen.ready, plant.track.running[-1]))
        drained = now > load.duration and len(arrivals) == load.offered(now)
        if ticks % every != due:
            continue
        observation = query.observed(now, seen)
        state, decision = step(spec, state, observation)
        if decision.desired != decision.current:
            rescales.append(Rescale(now, decision.current, decision.desired, decision.reason))
            plant.scale(decision.desired)
    offered = load.offered(load.duration)
    return Run(
        load=load,
        start=0.0,
        arrivals=arrivals,
        account=Account(offered, len(arrivals), offered - len(arrivals), 0, 0),
        samples=samples,
        rescales=rescales,
        drained=drained,
        workers=plant.desired,
        commits=[each.received - _EPOCH for each in query.batches],
    )


def simulate_beside(run: Run, spec: ClusterSpec, batch: float, window: float) -> Mapping[str, Any] | None:
    """Simulate a run with workers as measured in it; None if they could not be measured. See `simulate`."""
    measured = measure(run, batch)
    if measured is None:
        return None
    # The time from the rise of the load to the next decision is random, so the simulation uses that of the real run.
    phase = run.rescales[0].at % spec.interval.total_seconds()
    found = summary(simulate(spec, run.load, measured, batch, window, phase))
    return {
        "one_worker_per_s": round(measured.rate_per_worker, 1),
        "start_up_s": round(measured.startup, 1),
        "joined_after_s": round(measured.joined, 1),
        "cold_s": round(measured.cold, 1),
        "shortest_batch_s": round(measured.shortest, 1),
        **{name: found[name] for name in COMPARED},
    }


def describe_simulation(result: Mapping[str, Any]) -> str:
    """Describe the simulation in a result, and its deviation from the real run, in a sentence."""
    found = result["simulated"]

    def deviation(name: str) -> str:
        real, simulated = result[name], found[name]
        return f" ({simulated / real - 1:+.0%})" if real and simulated is not None else ""

    back = (
        "never drained"
        if found["drained_after_s"] is None
        else f"drained {found['drained_after_s']:.0f} s after the request"
    )
    return (
        f"lag at most {found['peak_lag']} records{deviation('peak_lag')}, {back}{deviation('drained_after_s')}, "
        f"{found['scale_ups']} up and {found['scale_downs']} down"
    )


def _plant(measured: Measured) -> PlantSpec:
    """The measured workers under Spark's scheduler: n workers do n times the work, as far as partitions allow."""
    longer = STEP / TICK
    return PlantSpec(
        startup=measured.startup * longer,
        startup_sd=0.0,
        scheduler=SparkSettings(used_after=measured.joined * longer),
        joining=measured.cold * longer,
        gamma=1.0,
        partitions=PARTITIONS,
        sigma=0.0,
        cold=1.0,
    )


def _process(arrivals: list[Arrival], plant: Plant, begin: float) -> None:
    """Add the records of the step that began at `begin`, evenly spaced and assigned to workers round-robin."""
    position = math.floor(plant.track.position[-1] + 1e-6)
    new = position - len(arrivals)
    workers = plant.track.running[-1]
    arrivals += [
        Arrival(0, len(arrivals) + number, f"worker {number % workers + 1}", begin + (number + 1) / new * TICK)
        for number in range(new)
    ]


def _settled(samples: Sequence[Sample]) -> bool:
    """Whether no rescale is in progress, and the size has fallen again if it had risen."""
    last = samples[-1]
    sizes = [sample.desired or 0 for sample in samples]
    return last.ready == last.desired and (sizes[-1] < max(sizes) or max(sizes) == sizes[0])


@dataclass(slots=True, kw_only=True)
class _Query:
    """The batches that a query would have run.

    Attributes:
        sizer: limits the number of records of a batch.
        window: seconds over which the source averages.
        shortest: seconds of a batch with few records.
        batches: the finished batches, oldest first.
        changes: when workers were added or removed.
        running: the number of running workers.
        done: the records of all finished batches.
        began: when the running batch began; None: no batch runs.
        head: the records that had arrived when the running batch began.
        rows: the records of the running batch.
    """

    sizer: BatchSizer
    window: float
    shortest: float
    batches: list[Batch] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    running: int = 0
    done: int = 0
    began: float | None = None
    head: int = 0
    rows: int = 0

    def advance(self, now: float, offered: int, processed: int, running: int) -> None:
        """Advance by one step; the arguments are the offered and processed records and the workers after the step."""
        if self.running not in (0, running):
            self.changes.append(_EPOCH + now)
        self.running = running
        if self.began is not None and processed >= self.done + self.rows:
            # A batch that leaves a backlog ends as soon as its records are processed, even if that is quick.
            full = self.done + self.rows < self.head
            if full or now >= self.began + self.shortest:
                self._end(self.began, now)
        if self.began is None and offered > self.done:
            self.began, self.head = now, offered
            self.rows = min(self.sizer.rows(now), offered - self.done)
            self.sizer.admitted(self.rows, now)

    def observed(self, now: float, plant: Observation) -> Observation:
        """The observation that the daemon would have made."""
        run = Query(
            query="simulated",
            run="simulated",
            trigger="ProcessingTimeTrigger(0)",
            started=_EPOCH,
            progress=tuple(self.batches[-REPORTED_BATCHES:]),
        )
        seen = Snapshot(
            run=run, now=_EPOCH + now, window=self.window, working=self.began is not None, changes=tuple(self.changes)
        )
        metrics: dict[str, Reading] = {}
        missing: dict[str, str] = {}
        for metric in (Metric.LAG, Metric.ARRIVALS, Metric.THROUGHPUT, Metric.SATURATION):
            try:
                value = METRICS[metric](seen)
            except EdgeError as error:
                missing[metric] = str(error)
            else:
                metrics[metric] = Reading(value.value, START + timedelta(seconds=min(value.at - _EPOCH, now)))
        engine = EngineStatus(
            job=JobState.RUNNING,
            slots=self.running,
            parallelism=self.running,
            partitions=PARTITIONS,
            running_since=START,
        )
        return Observation(
            at=START + timedelta(seconds=now),
            desired=plant.desired,
            ready=plant.ready,
            metrics=metrics,
            missing=missing,
            engine=engine,
        )

    def _end(self, began: float, now: float) -> None:
        end = self.done + self.rows
        source = {"rows": self.rows, "start": self.done, "end": end, "latest": self.head}
        batch = {
            "batchId": len(self.batches),
            "start": _EPOCH + began,
            "received": _EPOCH + now,
            "rows": self.rows,
            "durationMs": {"triggerExecution": round((now - began) * 1000)},
            "sources": ({**source, "partitions": PARTITIONS, "startPartitions": PARTITIONS},),
            "state": (),
        }
        self.batches.append(read_batch(batch))
        self.done, self.began = end, None
