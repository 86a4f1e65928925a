"""The simulation against published measurements of a real Flink: `python -m tests.simulation.published TRACES`.

The measurements are the raw data of "Demeter: Resource-Efficient Distributed Stream Processing under Dynamic Loads"
(2024), https://github.com/dos-group/demeter, runs `reactive35_*`: Flink 1.17 in Reactive Mode on Kubernetes, an HPA at
35 % CPU with its defaults, 18 hours on the loads `ads18h` and `cars18h`, every 45 minutes a TaskManager that is
unreachable for 30 s, 1 to 24 TaskManagers of one core and one slot, starting with 24. The figures are the mean size as
a share of 24 static ones, and the share of the time in which a record took longer than 10 s.

Nothing here was fitted to those figures. Times and settings are those of the repository's manifests; the rate per
worker follows from the CPU of the static run; everything else is the plant `k8s` of the benchmark.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from autoscaler.cli.benchmark_run import cluster
from autoscaler.cli.output import print_lines
from autoscaler.core.model import ClusterSpec, ClusterState, Decision, Observation, Reading
from autoscaler.core.step import Decide
from autoscaler.simulation.baselines import Baseline, without_guards
from autoscaler.simulation.loads import Load, load_by_name
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import PLANTS, START, PlantSpec, work
from autoscaler.simulation.scoring import ages

STATIC = 24
"""TaskManagers of the static run, with which the others begin, and the most there may be."""

HPA = Baseline("{type: hpa, metrics: [{type: utilization, metric: cpu, target: 35}]}")
"""`taskmanager-autoscaler.yaml`: no `behavior`, so down to the most asked for within 5 minutes, and up at once."""

RESOLUTION = timedelta(seconds=60)
"""How often metrics-server reads the CPU: its own default, since the chart was installed without another one."""

INITIALIZATION = timedelta(minutes=5)
"""For so long after its start a pod's CPU counts only where all of it was read while the pod was ready: HPA's
`--horizontal-pod-autoscaler-cpu-initialization-period`."""

PLANT = replace(PLANTS["k8s"], checkpoint=20.0, crash_every=2700.0, crash_noticed=20.0, idle=0.036, slo=10.0)
"""The plant `k8s` with what is known: checkpoints (`--chkInterval 20000`, seen in the CPU as well), the failures (drawn
here, 45 minutes apart on average), `heartbeat.timeout: 20000`, the CPU of a static run that nothing is offered."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A published run, and the rate of a worker by the static run on the same load.

    Attributes:
        scenario: the load.
        workers: mean size, as a share of the static ones.
        late: share of the time in which a record took longer than the bound.
        rate: records/s, on the scale of the recorded load...
        cpu: ... at which the static workers use that share of their CPU.
    """

    scenario: str
    workers: float
    late: float
    rate: float
    cpu: float

    def rate_per_worker(self, plant: PlantSpec) -> float:
        """Records/s of one worker at 100 % CPU, if the CPU grows with the records."""
        return self.rate * (1.0 - plant.idle) / (self.cpu - plant.idle) / work(STATIC, plant.gamma)


MEASURED = (
    Measured("ads18h", 0.61, 0.011, 25_800.0, 0.352),
    Measured("cars18h", 0.83, 0.071, 33_700.0, 0.41),
)
"""The CPU of `1_baseline_*`, the mean of some minutes near the highest load. Elsewhere ADS has 22.5 % at 57 % of that
rate: it grows with the records. CARS has 34.6 % at 89 %, and 38.6 % at 34 %: its windows cost as much as its records,
so whatever grows with the records asks for too few workers on little load."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A variant of the simulation.

    Attributes:
        name: the difference from the known setup.
        plant: how the cluster behaves.
        pods: whether the HPA reads the CPU as in Kubernetes (`as_pods`), or directly from the plant.
        sized: whether a worker is as fast as the static run says, or 16 of them process the load's maximum.
    """

    name: str
    plant: PlantSpec = PLANT
    pods: bool = True
    sized: bool = True


SETUPS = (
    Setup("as published"),
    Setup("exponent 1, not 0.9", replace(PLANT, gamma=1.0)),
    Setup("stalls of half the time", replace(PLANT, restart_up=6.0, restart_down=4.0)),
    Setup("checkpoints every 10 s", replace(PLANT, checkpoint=10.0)),
    Setup("no slow start", replace(PLANT, cold=1.0)),
    Setup("no failures", replace(PLANT, crash_every=0.0)),
    Setup("CPU as other policies see it", pods=False),
    Setup("16 workers carry the maximum", sized=False),
)
"""The published setup, and variants of each assumption."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """The figures of a simulation; means over its seeds.

    Attributes:
        workers: mean size, as a share of the static ones.
        late: share of the time in which the oldest waiting record is older than the bound.
        shown: the same share of the time in which the job runs. The published latency is measured inside the job, which
            reports none while it is stopped.
        rescales: requested changes of size, per hour.
        restarts: of the job, per hour.
    """

    workers: float
    late: float
    shown: float
    rescales: float
    restarts: float


def simulated(spec: ClusterSpec, measured: Measured, load: Load, setup: Setup, seeds: Sequence[int]) -> Simulated:
    """Run the policy under the published conditions.

    Args:
        spec: a cluster of 1 to `STATIC` workers with the policy.
        measured: the published run.
        load: that of `measured`.
        setup: the variant.
        seeds: one run each.
    """
    if setup.sized:
        load = replace(load, rate_per_worker=measured.rate_per_worker(setup.plant))
    each: list[tuple[float, ...]] = []
    for seed in seeds:
        decide = cpu_as_pods(without_guards) if setup.pods else without_guards
        track = run(spec, setup.plant, load, seed, size=STATIC, decide=decide).track
        old = [age > setup.plant.slo for age in ages(track.arrivals, track.position)]
        runs = [late for late, stopped in zip(old, track.stopped, strict=True) if stopped < 1.0]
        steps, hours = len(old), load.seconds / 3600
        each.append(
            (
                sum(track.billed) / steps / STATIC,
                sum(old) / steps,
                sum(runs) / max(len(runs), 1),
                len(track.requests) / hours,
                track.restarts / hours,
            )
        )
    return Simulated(*(math.fsum(values) / len(each) for values in zip(*each, strict=True)))


def cpu_as_pods(decide: Decide) -> Decide:
    """The same decider with the CPU as an HPA in Kubernetes reads it: per pod, once a minute the mean of the last one.

    A pod that became ready within that minute counts as not ready: as idle for a scale-up, not at all for a scale-down.
    The youngest pods are removed first. For one simulation only: it has state.
    """
    ready: list[datetime] = []  # the start of each pod, the oldest first
    last: list[tuple[datetime, float]] = []

    def decided(spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        now = observation.at
        del ready[observation.ready or 0 :]
        ready.extend([now if last else START - INITIALIZATION] * ((observation.ready or 0) - len(ready)))
        if not last or now - last[0][0] >= RESOLUTION:
            value = observation.metrics["cpu"].value
            last[:] = [(now, math.fsum(value) / len(value) if isinstance(value, tuple) else value)]
        at, cpu = last[0]
        parts: Mapping[str, Mapping[str, float]] = {
            f"pod {number}": {
                "usage": cpu,
                "request": 1.0,
                "ready": float(since <= at - RESOLUTION or now - since >= INITIALIZATION),
            }
            for number, since in enumerate(ready)
        }
        metrics = {**observation.metrics, "cpu": Reading(cpu, now, parts=parts)}
        return decide(spec, state, replace(observation, metrics=metrics))

    return decided


def main() -> None:
    """Print the measured and the simulated figures, for every setup."""
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", type=Path, help="the folder of the recorded loads")
    folder = parser.parse_args().traces
    spec = cluster("hpa", HPA, PLANT.slo, 1.0)
    for measured in MEASURED:
        load = load_by_name(measured.scenario, 0, folder)
        print_lines(
            f"{measured.scenario}: measured {measured.workers:.0%} of {STATIC} workers, {measured.late:.1%} late"
        )
        for setup in SETUPS:
            one = simulated(spec, measured, load, setup, (1, 2, 3))
            print_lines(
                f"  {setup.name:<32} {one.workers:.1%} ({one.workers / measured.workers - 1:+.0%}), "
                f"{one.late:.1%} late, {one.shown:.1%} while it runs, {one.rescales:.1f} rescales/h"
            )


if __name__ == "__main__":
    main()
