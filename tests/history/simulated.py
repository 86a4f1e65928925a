"""Simulated clusters with known true values, as the minutes from which a profile is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoscaler.core.model import ClusterSpec, ClusterState, Decision, JobState, Limits, Observation, Reason
from autoscaler.history.minutes import COLUMNS, Minutes
from autoscaler.ports import Record
from autoscaler.simulation.loads import Load
from autoscaler.simulation.loop import Run, run
from autoscaler.simulation.plant import PlantSpec


@dataclass
class Follow:
    """Decides by the arrivals alone, at most once per interval: much quicker than a policy, and it rescales."""

    one: float
    exponent: float
    target: float = 0.8
    every: float = 900.0
    last: float = field(default=-math.inf)

    def __call__(
        self, spec: ClusterSpec, state: ClusterState, observation: Observation
    ) -> tuple[ClusterState, Decision]:
        now = observation.at.timestamp()
        size = observation.desired
        assert size is not None
        arrivals = observation.metrics["arrivals"].value
        assert isinstance(arrivals, float)
        want = math.ceil((arrivals / self.target / self.one) ** (1 / self.exponent))
        want = max(spec.limits.minimum, min(spec.limits.maximum, want))
        if want != size and now - self.last >= self.every:
            self.last = now
        else:
            want = size
        return state, Decision(
            cluster=spec.name, at=observation.at, current=size, proposed=want, desired=want, reason=Reason.STEADY
        )


def followed(load: Load, plant: PlantSpec, *, seed: int = 1, target: float = 0.8) -> tuple[list[Record], Run]:
    """The records of a cluster that follows its load."""
    records: list[Record] = []
    decide = Follow(load.per_worker(plant.gamma), plant.gamma, target)
    done = run(
        ClusterSpec(name="simulated", limits=Limits(1, 40), policies=()),
        plant,
        load,
        seed,
        record=records.append,
        decide=decide,
    )
    return records, done


def minutes(records: Sequence[Record], objective: float = 60.0, utilization: str | None = "utilization") -> Minutes:
    """The minutes of records, as the pipeline makes them in the JVM."""
    rows: dict[int, list[dict[str, float]]] = {}
    for record in records:
        seen, engine = record.observation, record.observation.engine
        assert seen.desired is not None
        assert seen.ready is not None
        number = {name: float(reading.value) for name, reading in seen.metrics.items()}  # type: ignore[arg-type]
        at = seen.at.timestamp()
        busy = math.nan if utilization is None else number[utilization]
        behind = number["throughput"] < number["arrivals"] and number["lag"] > 10 * number["throughput"]
        rows.setdefault(math.floor((at - 30) / 60), []).append(
            {
                "observations": 1.0,
                "first": at,
                "last": at,
                "least": float(min(seen.desired, seen.ready)),
                "most": float(max(seen.desired, seen.ready)),
                "paid": float(max(seen.desired, seen.ready)),
                **{name: number[name] for name in ("arrivals", "throughput", "lag")},
                "utilization": busy,
                "late": float(number["lag"] > objective * number["arrivals"]),
                "behind": float(behind and not busy <= 0.6),
                "stopped": float(engine is not None and engine.job is not JobState.RUNNING),
                "running_since": engine.running_since.timestamp() if engine and engine.running_since else math.nan,
                "slots": math.nan if engine is None else float(engine.slots or 0),
                "partitions": float(engine.partitions) if engine and engine.partitions else math.nan,
            }
        )
    how: dict[str, Callable[[list[float]], float]] = {
        "observations": math.fsum,
        "first": min,
        "last": max,
        "least": min,
        "most": max,
        "running_since": _latest,
        "slots": max,
    }
    columns = {
        name: np.array([how.get(name, _mean)([row[name] for row in rows[minute]]) for minute in sorted(rows)])
        for name in COLUMNS
        if name != "minute"
    }
    return Minutes(minute=np.array(sorted(rows), dtype=np.float64), **columns)


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _latest(values: list[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)
