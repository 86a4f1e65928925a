"""The cost of `/metrics` for 10,000 clusters, and for policies with much memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autoscaler.core.model import (
    ClusterSpec,
    ClusterState,
    Decision,
    Direction,
    Learned,
    Limits,
    Observation,
    Phase,
    Reading,
    Reason,
    Recommendation,
    SizeCapacity,
)
from autoscaler.daemon.controller import Counters
from autoscaler.daemon.metrics import DaemonCollector, exposition, exposition_of_policies, registry
from autoscaler.daemon.service import Daemon
from autoscaler.daemon.status import snapshot

pytestmark = pytest.mark.benchmark

CLUSTERS = 10_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def fleet(learned: Learned, inputs: dict[str, float]) -> Daemon:
    """The part of a daemon from which metrics are made."""
    readings = {name: Reading(1234.5, NOW) for name in ("lag", "arrivals", "throughput")}
    asked = Recommendation(3, Reason.STEADY, inputs, "", "adaptive")
    spec = ClusterSpec(name="any", limits=Limits(1, 10), policies=())
    controllers = {}
    for number in range(CLUSTERS):
        name = f"cluster-{number:05}"
        controllers[name] = SimpleNamespace(
            name=name,
            problem=None,
            observation=Observation(at=NOW, desired=3, ready=3, metrics=readings),
            decision=Decision(
                cluster=name, at=NOW, current=3, proposed=3, desired=3, reason=Reason.STEADY, recommendations=(asked,)
            ),
            limits=spec.limits,
            state=ClusterState(learned=learned),
            dry_run=False,
            refusal=None,
            template_problem=None,
            controls=(),
            cluster=SimpleNamespace(engine=None, metrics=readings, spec=spec),
            counters=Counters(
                decisions={Reason.STEADY: 5, Reason.ABOVE: 1},
                rescales={Direction.UP: 1},
                phases={(Direction.UP, Phase.READY): (1, 4.5)},
            ),
        )
    daemon = SimpleNamespace(
        controllers=controllers,
        clusters=controllers,
        members={},
        fleets=(),
        ownership=SimpleNamespace(me=None),
        utc=lambda: NOW + timedelta(seconds=7),
        dry_run=False,
        store_failure=None,
        history=SimpleNamespace(failure=None),
        reload_problems=(),
        loaded_at=NOW,
        registry=registry(),
    )
    daemon.registry.register(DaemonCollector(cast("Any", daemon)))
    return cast("Any", daemon)  # type: ignore[no-any-return]


def scrape(daemon: Daemon) -> bytes:
    clusters = asyncio.run(snapshot(daemon))
    return exposition(daemon, daemon.registry, clusters) + exposition_of_policies(daemon, clusters)


def best(function: Callable[[], object]) -> float:
    """Seconds of the fastest of five calls: other processes of the machine only add time."""
    found = []
    for _ in range(5):
        begun = time.process_time()
        function()
        found.append(time.process_time() - begun)
    return min(found)


def test_a_line_costs_less_than_fifty_plain_steps() -> None:
    sizes = range(2, 22)
    learned = Learned(
        {size: SizeCapacity(98.7654321 * size, NOW, 5) for size in sizes},
        dict.fromkeys(Direction, dict.fromkeys(tuple(Phase)[1:], (4.25, 5.5, 6.75))),
        {
            "adaptive": {
                **{f"capacity.{size}.rate": 98.7654321 * size for size in sizes},
                **{f"capacity.{size}.samples": 5.0 for size in sizes},
                **{f"capacity.{size}.seen_at": NOW.timestamp() for size in sizes},
                **{f"forecast.error.{number}": number / 7 for number in range(20)},
            }
        },
    )
    inputs = {f"input_{number}": number / 3 for number in range(20)}
    bare, full = fleet(Learned(), {}), fleet(learned, inputs)
    without, much = best(lambda: scrape(bare)), best(lambda: scrape(full))
    short, text = scrape(bare), scrape(full)
    loop = best(lambda: sum(number & 7 for number in range(1_000_000)))
    lines, all_lines = short.count(b"\n"), text.count(b"\n")
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\n{CLUSTERS:,} clusters: {without:.2f} s for {lines:,} lines of {len(short) / 1e6:.1f} MB; "
        f"with {all_lines - lines:,} learned numbers and inputs {much:.2f} s, {len(text) / 1e6:.1f} MB"
        f"\n  a line costs {without / lines / loop * 1e6:.0f} plain steps, one that was learned "
        f"{(much - without) / (all_lines - lines) / loop * 1e6:.0f}   (a million plain steps {loop:.3f} s)"
    )
    assert all_lines - lines > 150 * CLUSTERS
    assert without / lines < 50 * loop / 1e6
    assert much / all_lines < 50 * loop / 1e6
