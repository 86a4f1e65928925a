"""The delay from a decision to its request: state is saved durably in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from autoscaler.core.model import ClusterSpec, ClusterState, Decision, Observation
from autoscaler.core.step import step
from autoscaler.daemon.fleet import Fleet
from autoscaler.daemon.history import History
from autoscaler.daemon.observer import utc_now
from autoscaler.daemon.state_store import open_state_store
from autoscaler.daemon.write_batcher import PAUSE
from autoscaler.testing.fakes import Fake, FakeSource, FakeTarget
from tests.daemon.conftest import Ticked, make_cluster, make_config

pytestmark = pytest.mark.benchmark

CLUSTERS = 500
INTERVAL = timedelta(seconds=5)
ROUNDS = 4


class Timed(FakeTarget):
    """A target that records the time of its request."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    async def scale(self, replicas: int) -> None:
        self.asked.append(time.perf_counter())
        await super().scale(replicas)


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def test_a_request_reaches_the_target_soon_after_its_decision(tmp_path: Path) -> None:
    decided: dict[str, list[float]] = {}
    kept: list[float] = []

    def decide(spec: ClusterSpec, state: ClusterState, seen: Observation) -> tuple[ClusterState, Decision]:
        after, decision = step(spec, state, seen)
        if decision.rescale:
            decided.setdefault(spec.name, []).append(time.perf_counter())
        return after, decision

    targets = {f"c{number:03}": Timed() for number in range(CLUSTERS)}
    clusters = {
        name: make_cluster(name, Fake(target), interval=INTERVAL, timeout=INTERVAL / 2)
        for name, target in targets.items()
    }
    source = FakeSource({"load": 100.0})
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_state_store(tmp_path / "state", decisions=50))
        history = History(tmp_path / "history", timedelta(days=1))
        await history.start()
        fleet = Fleet(store, history, Ticked(), utc=utc_now, dry_run=False, decide=decide)
        await fleet.apply(make_config(clusters, Fake(source), tmp_path))
        for size in range(2, 2 + ROUNDS):
            source.values["load"] = 100.0 * size
            await asyncio.sleep(INTERVAL.total_seconds())
        for number in range(50):
            # The time of saving alone: the disk's part of the delay.
            await asyncio.sleep(2 * PAUSE)
            begun = time.perf_counter()
            await store.save(f"extra-{number}", ClusterState(), None)
            kept.append(time.perf_counter() - begun)
        await fleet.stop()
        await history.close()
    delays = [
        asked - at
        for name, target in targets.items()
        for at, asked in zip(decided.get(name, []), target.asked, strict=False)
    ]
    keeping = quantile(kept, 0.5)
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\n{len(delays)} requests of {CLUSTERS} clusters at an interval of {INTERVAL.total_seconds():g} s"
        f"\n  from the decision to the request  {quantile(delays, 0.5) * 1000:6.1f} ms median, "
        f"{quantile(delays, 0.99) * 1000:6.1f} ms at p99, {max(delays) * 1000:6.1f} ms at most (goal 100)"
        f"\n  keeping one state alone           {keeping * 1000:6.1f} ms median"
    )
    assert len(delays) >= 0.9 * CLUSTERS * (ROUNDS - 1)
