"""Fake clusters, and helpers to run a fleet of controllers in virtual time."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from autoscaler.config.model import Cluster, Config, DaemonSpec, FleetSpec, MemberCluster, Metric
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
from autoscaler.daemon.controller import Controller
from autoscaler.daemon.discovery import Discoveries, FleetStatus
from autoscaler.daemon.fleet import Fleet
from autoscaler.daemon.http_requests import record_of
from autoscaler.daemon.state_store import SqliteStateStore
from autoscaler.ports import ConfigurationError, Member, Record, StateStore
from autoscaler.testing.fakes import Fake, FakeDiscovery, FakeEngine, FakeQuery, FakeSource, FakeTarget
from autoscaler.testing.virtual_time import WallClock
from tests.daemon.fake_stores import FakeStore

INTERVAL = timedelta(seconds=10)

R = TypeVar("R")


@dataclass(frozen=True)
class PerReplica:
    """Recommends one replica for each 100 of the load."""

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
    """Learns when it first and last saw a load, how often, and the maximum at each size. It keeps the size."""

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
    """Moves the bounds, and recommends no size."""

    to: Limits

    def allow(self, now: datetime, limits: Limits) -> Allowance:
        del now, limits
        return Allowance(self.to)

    def evaluate(self, view: View) -> Recommendation:
        del view
        return Recommendation(None, Reason.ABSTAINED)


async def records_of(store: StateStore, cluster: str, limit: int, until: datetime | None = None) -> list[Record]:
    """The last decisions of a cluster, newest first, read as the HTTP endpoints read them."""
    return [record_of(line) async for page in store.pages(cluster, limit, until) for line in page]


async def in_writer(store: SqliteStateStore, function: Callable[[sqlite3.Connection], R]) -> R:
    """Call a function with the store's connection, in the writer's thread."""
    return await store._batcher.call(lambda: function(store._connection))


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
    """Records the lateness and the duration of ticks."""

    late: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)

    def __call__(self, late: float, took: float) -> None:
        self.late.append(late)
        self.took.append(took)


class World:
    """A fleet with fake clusters and an in-memory store. Create it inside the virtual-time loop."""

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
        """Advance the time until the loop's clock shows this number of seconds."""
        await asyncio.sleep(seconds - asyncio.get_running_loop().time())

    def ticks(self, name: str) -> list[float]:
        """The times, in seconds, of the decisions for a cluster."""
        return [
            (record.decision.at - self.clock.start).total_seconds()
            for record in self.store.records
            if record.decision.cluster == name
        ]


@dataclass(frozen=True, eq=False)
class Template:
    """Makes fake clusters: `name` and `max` are values of the member, `min` is the same for all."""

    world: Fleets
    fleet: str = "f"
    minimum: int = 1
    source: str = "source"
    own: Fake[FakeSource] | None = None

    def expand(self, member: Member) -> MemberCluster:
        name, maximum = str(member.values["name"]), str(member.values.get("max", "10"))
        if maximum == "defect":
            raise RuntimeError("the plug-in cannot stand this")
        if not maximum.isdecimal():
            raise ConfigurationError([self.problem(member.id, f"{maximum!r} is no number", "template.max")])
        plugin = self.world.plugins.setdefault(str(member.values.get("target", name)), Fake(FakeTarget()))
        self.world.targets[name] = plugin.live
        cluster = make_cluster(name, plugin, limits=Limits(self.minimum, int(maximum)), **self.world.of_members)
        source, sources = self.source, {}
        if self.own is not None:
            source, sources = f"{name}/own", {f"{name}/own": self.own}
        cluster = replace(cluster, metrics={"load": Metric(source, FakeQuery("load"))})
        warnings = (str(member.values["warn"]),) if "warn" in member.values else ()
        secrets = frozenset({str(member.values["token"])} if "token" in member.values else ())
        return MemberCluster(
            id=member.id, name=name, cluster=cluster, sources=sources, warnings=warnings, secrets=secrets
        )

    def problem(self, member: str, message: str, key: str = "name") -> str:
        return f"config.yaml:7: fleets.{self.fleet}[{member}].{key}: {message}"


class Fleets(World):
    """A world with one fleet, `f`."""

    def __init__(self, *names: str, **changes: Any) -> None:
        super().__init__(*names, **changes)
        self.of_members: dict[str, Any] = {}
        self.discovery = FakeDiscovery()
        self.discover = Fake(self.discovery)
        self.specs = {"f": self.spec("f", self.discover)}
        self.sources = {"source": self.source_plugin}
        self.discoveries = Discoveries(self.fleet, self.store, utc=self.clock)

    def spec(self, name: str, discover: Fake[FakeDiscovery], **template: Any) -> FleetSpec:
        return FleetSpec(
            name=name,
            discover=discover,
            interval=INTERVAL,
            confirm=timedelta(minutes=5),
            template=Template(self, name, **template),
        )

    @property
    def config(self) -> Config:
        return replace(super().config, fleets=dict(self.specs), sources=dict(self.sources))

    @property
    def status(self) -> FleetStatus:
        return self.discoveries.status[0]

    @property
    def controllers(self) -> Mapping[str, Controller]:
        return self.fleet.controllers

    def find(self, names: str, **values: str) -> None:
        """Set the members that the discovery finds from now on. All have the same additional values."""
        self.discovery.found = [Member(f"id-{name}", {"name": name, **values}) for name in names]

    async def start(self) -> None:
        await self.discoveries.apply(self.config)

    async def stop(self) -> None:
        await self.discoveries.stop()
        await self.fleet.stop()

    def restart(self) -> None:
        """Replace the daemon by a new one that starts from the persisted data."""
        self.fleet = self.make_fleet()
        self.discoveries = Discoveries(self.fleet, self.store, utc=self.clock)


@pytest.fixture
def world() -> type[World]:
    return World
