"""With the same spec and observations, daemon, simulation and replay make the same decisions, whatever goes wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autoscaler.config.model import Cluster, Config, DaemonSpec, Metric
from autoscaler.core.model import ClusterSpec, EngineStatus, Limits, NamedPolicy, Observation, Reading
from autoscaler.daemon.controller import UNANSWERED, splay
from autoscaler.daemon.fleet import Fleet
from autoscaler.plugins import Kind, load
from autoscaler.ports import RefusedError, TargetStatus, UnavailableError
from autoscaler.simulation import faults
from autoscaler.simulation.loads import Load, load_by_name
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import PLANTS, START, STEP, Plant
from autoscaler.simulation.scoring import needed
from autoscaler.testing import virtual_time
from autoscaler.testing.fakes import Fake, FakeQuery
from autoscaler.trace.codec import dump_record, load_record
from autoscaler.trace.replay import Replay
from tests.daemon.fake_stores import FakeStore

METRICS = ("lag", "arrivals", "throughput", "saturation", "utilization", "cpu")
PLANT = PLANTS["k8s"]
SEED = 5
TICK = timedelta(seconds=15)


def _spec(kind: str, **fields: Any) -> ClusterSpec:
    policy = NamedPolicy("main", load(Kind.POLICY, kind)(**fields))
    return ClusterSpec(
        name="x", limits=Limits(1, 24), policies=(policy,), metrics=METRICS, engine=True, lookback=timedelta(minutes=30)
    )


def _load() -> Load:
    """The steps of the benchmark from half an hour before the first one."""
    rates = load_by_name("steps6h").rates
    return Load("steps", rates[360:1800], rate_per_worker=load_by_name("steps6h").per_worker(PLANT.gamma))


class World:
    """A simulated cluster behind a live target, engine and source, which may fail."""

    def __init__(self, spec: ClusterSpec, offered: Load, wrong: faults.Faults) -> None:
        self.rates = offered.rates
        one = offered.per_worker(PLANT.gamma)
        plant = wrong.applied_to(PLANT)
        self.plant = Plant(plant, one, SEED, needed([self.rates[0] * STEP], one, plant.gamma)[0])
        self.injector = faults.Injector(wrong, SEED, spec)
        self.steps = 0
        self.seen = Observation(at=START, desired=1, ready=1)

    def poll(self, now: datetime) -> Observation:
        if now > self.seen.at:
            seconds = (now - START).total_seconds()
            while self.steps * STEP < seconds:
                self.plant.advance(self.rates[self.steps] * STEP)
                self.steps += 1
            self.seen = self.injector.seen(self.plant.observe(), seconds)
        return self.seen

    @property
    def ended(self) -> bool:
        return (self.steps + 3) > len(self.rates)


class Live:
    """The plug-ins of the daemon."""

    def __init__(self, world: World, clock: Clock) -> None:
        self.world = world
        self.clock = clock

    async def describe(self) -> Any:
        raise NotImplementedError

    @property
    def now(self) -> Observation:
        return self.world.poll(self.clock())


class Target(Live):
    async def describe(self) -> TargetStatus:
        seen = self.now
        if seen.desired is None or seen.ready is None:
            raise UnavailableError(seen.missing["target"])
        return TargetStatus(seen.desired, seen.ready)

    async def scale(self, replicas: int) -> None:
        error = self.world.injector.scale(self.world.plant, replicas, (self.clock() - START).total_seconds())
        if error:
            raise RefusedError(error)


class Engine(Live):
    async def describe(self) -> EngineStatus:
        seen = self.now
        if seen.engine is None:
            raise UnavailableError(seen.missing["engine"])
        return seen.engine


class Source(Live):
    async def collect(self, query: FakeQuery, now: datetime) -> Reading:
        del now
        seen = self.now
        if query.metric in seen.missing:
            raise UnavailableError(seen.missing[query.metric])
        return seen.metrics[query.metric]


class Clock:
    """The simulation's time at the daemon's ticks, whose phase follows from the cluster's name."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.offset = splay(spec.name, TICK.total_seconds())

    def __call__(self) -> datetime:
        seconds = asyncio.get_running_loop().time() - self.offset + TICK.total_seconds()
        return START + timedelta(seconds=round(seconds))


async def _daemon(spec: ClusterSpec, offered: Load, wrong: faults.Faults, restart_every: int) -> FakeStore:
    """A daemon's controllers for a simulated cluster; stopped and restarted every so many ticks."""
    clock, store = Clock(spec), FakeStore()
    world = World(spec, offered, wrong)
    metrics = {name: Metric("source", FakeQuery(name)) for name in spec.metrics}
    target, engine, source = (Fake(part(world, clock)) for part in (Target, Engine, Source))
    cluster = Cluster(
        spec=spec,
        target=target,  # type: ignore[arg-type]
        engine=engine,  # type: ignore[arg-type]
        metrics=metrics,
        interval=TICK,
        timeout=timedelta(seconds=10),
    )
    config = Config(
        path=Path("x"),
        daemon=DaemonSpec(directory=Path("x")),
        sources={"source": source},  # type: ignore[dict-item]
        clusters={"x": cluster},
    )
    fleet = None
    ticks = 0
    while not world.ended:
        if fleet is None:
            fleet = Fleet(store, store, lambda *_: None, utc=clock)
            await fleet.apply(config)
        await asyncio.sleep(TICK.total_seconds())
        ticks += 1
        if restart_every and ticks % restart_every == 0:
            await fleet.stop()
            fleet = None
    if fleet is not None:
        await fleet.stop()
    return store


@pytest.mark.parametrize(
    ("kind", "wrong", "restart_every", "failures"),
    [
        ("adaptive", "", 0, set()),
        ("backlog-drain", "missing:4m,nan@lag,doubled@arrivals,missing@engine:3m,missing@target:2m", 7, {UNANSWERED}),
        (
            "adaptive",
            "refused:40%,unanswered:30%,half:30%,crash:20m,missing@lag:3m",
            0,
            {faults.REFUSED, faults.UNANSWERED, faults.HALF},
        ),
    ],
)
def test_daemon_simulation_and_replay_decide_the_same(
    kind: str, wrong: str, restart_every: int, failures: set[str]
) -> None:
    spec, offered = _spec(kind), _load()
    what = faults.parse(wrong) if wrong else faults.NONE
    simulated: list[Any] = []
    run(spec, PLANT, offered, SEED, record=simulated.append, faults=what)
    lived = virtual_time.run(_daemon(spec, offered, what, restart_every)).records
    assert len(lived) == len(simulated) == len(offered.rates) * STEP / TICK.total_seconds()
    for daemons, ours in zip(lived, simulated, strict=True):
        # A restarted daemon does not know whether its last request has arrived. It has.
        assert daemons == (replace(ours, failed=UNANSWERED) if daemons.failed == UNANSWERED else ours)
    assert sum(one.decision.rescale for one in lived) > 1
    assert {one.failed for one in lived} - {""} == failures
    replay = Replay(spec)
    for one in lived:
        assert replay.add(load_record(dump_record(one))) == one.decision
