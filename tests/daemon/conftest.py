"""Clusters of fakes, and what a fleet of controllers needs in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autoscaler.config.model import Cluster, Config, DaemonSpec, Metric
from autoscaler.core.model import (
    Allowance,
    Behaviour,
    ClusterSpec,
    Limits,
    NamedPolicy,
    Reason,
    Recommendation,
    View,
)
from autoscaler.daemon.fleet import Fleet
from autoscaler.testing.fakes import Fake, FakeEngine, FakeQuery, FakeSource, FakeStore, FakeTarget
from autoscaler.testing.virtual_time import WallClock

INTERVAL = timedelta(seconds=10)


@dataclass(frozen=True)
class PerReplica:
    """One replica for each 100 of the load."""

    lookback: timedelta = timedelta(minutes=5)

    def evaluate(self, view: View) -> Recommendation:
        load = view.number("load")
        if load is None:
            return Recommendation(None, Reason.MISSING, detail="no load")
        size = math.ceil(load / 100)
        reason = Reason.ABOVE if size > view.current else Reason.BELOW if size < view.current else Reason.STEADY
        return Recommendation(size, reason, {"load": load}, f"{load:g} needs {size}")


@dataclass(frozen=True)
class Remembers:
    """Knows when it first and last saw a load, how often, and the greatest at each size; asks for what there is."""

    def learn(self, view: View) -> Mapping[str, float]:
        load, memory = view.number("load"), view.memory
        if load is None:
            return memory
        greatest = f"size.{view.current}.greatest"
        return {
            **memory,
            "first_at": memory.get("first_at", view.now.timestamp()),
            "last_at": view.now.timestamp(),
            "seen": memory.get("seen", 0.0) + 1,
            greatest: max(load, memory.get(greatest, load)),
            f"size.{view.current}.seen_at": view.now.timestamp(),
        }

    def evaluate(self, view: View) -> Recommendation:
        return Recommendation(view.current, Reason.STEADY, dict(view.memory), "as it is")


@dataclass(frozen=True)
class Moves:
    """Moves the bounds, and asks for no size."""

    to: Limits

    def allow(self, now: datetime, limits: Limits) -> Allowance:
        del now, limits
        return Allowance(self.to)

    def evaluate(self, view: View) -> Recommendation:
        del view
        return Recommendation(None, Reason.ABSTAINED)


def spec(name: str, **changes: Any) -> ClusterSpec:
    fields: dict[str, Any] = {
        "limits": Limits(1, 10),
        "policies": (NamedPolicy("per-replica", PerReplica()),),
        "down": Behaviour(window=timedelta(seconds=60)),
        "metrics": ("load",),
        "interval": INTERVAL,
        "lookback": timedelta(minutes=5),
    }
    return ClusterSpec(name=name, **(fields | changes))


def make_cluster(name: str, target: object, engine: object | None = None, **changes: Any) -> Cluster:
    interval = changes.pop("interval", INTERVAL)
    timeout = changes.pop("timeout", timedelta(seconds=4))
    return Cluster(
        spec=spec(name, engine=engine is not None, interval=interval, **changes),
        target=target,  # type: ignore[arg-type]
        engine=engine,  # type: ignore[arg-type]
        metrics={"load": Metric("source", FakeQuery("load"))},
        interval=interval,
        timeout=timeout,
    )


def make_config(clusters: Mapping[str, Cluster], source: object, directory: Path = Path("unused")) -> Config:
    daemon = DaemonSpec(directory=directory, listen="127.0.0.1:0")
    return Config(path=Path("config.yaml"), daemon=daemon, sources={"source": source}, clusters=dict(clusters))  # type: ignore[dict-item]


@dataclass
class Ticked:
    """Takes the pace of the controllers."""

    late: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)

    def record_tick(self, late: float, took: float) -> None:
        self.late.append(late)
        self.took.append(took)


class World:
    """Clusters of fakes under a fleet, with the store in memory. Make it inside the virtual-time loop."""

    def __init__(self, *names: str, engine: bool = False, dry_run: bool = False, **changes: Any) -> None:
        self.clock = WallClock()
        self.store = FakeStore()
        self.tick_times = Ticked()
        self.source = FakeSource({"load": 100.0})
        self.source_plugin = Fake(self.source)
        self.targets = {name: FakeTarget() for name in names}
        self.plugins = {name: Fake(target) for name, target in self.targets.items()}
        self.engines = {name: FakeEngine() for name in names} if engine else {}
        self.engine_plugins = {name: Fake(engine) for name, engine in self.engines.items()}
        self.clusters = {
            name: make_cluster(name, self.plugins[name], self.engine_plugins.get(name), **changes) for name in names
        }
        self.fleet = self.make_fleet(dry_run=dry_run)

    def make_fleet(self, *, dry_run: bool = False) -> Fleet:
        return Fleet(self.store, self.store, self.tick_times, utc=self.clock, dry_run=dry_run)

    @property
    def config(self) -> Config:
        return make_config(self.clusters, self.source_plugin)

    async def start(self) -> None:
        await self.fleet.apply(self.config)

    async def until(self, seconds: float) -> None:
        """Let the time go on until the loop's clock shows so many seconds."""
        await asyncio.sleep(seconds - asyncio.get_running_loop().time())

    def ticks(self, name: str) -> list[float]:
        """Seconds at which a cluster was decided about."""
        return [
            (record.decision.at - self.clock.start).total_seconds()
            for record in self.store.records
            if record.decision.cluster == name
        ]


@pytest.fixture
def world() -> type[World]:
    return World
