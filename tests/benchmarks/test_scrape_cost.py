"""What `/metrics` costs where policies have learned much: beside the same without it, on the same machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autoscaler.core.model import (
    ClusterState,
    Decision,
    Direction,
    Learned,
    Observation,
    Phase,
    Reading,
    Reason,
    Recommendation,
    SizeCapacity,
)
from autoscaler.daemon.controller import Counters
from autoscaler.daemon.metrics import DaemonCollector, exposition, registry
from autoscaler.daemon.service import Daemon

pytestmark = pytest.mark.benchmark

CLUSTERS = 1000
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def fleet(learned: Learned, inputs: dict[str, float]) -> Daemon:
    """As much of a daemon as metrics are made of."""
    readings = {name: Reading(1234.5, NOW) for name in ("lag", "arrivals", "throughput")}
    asked = Recommendation(3, Reason.STEADY, inputs, "", "adaptive")
    controllers = {}
    for number in range(CLUSTERS):
        name = f"cluster-{number:04}"
        controllers[name] = SimpleNamespace(
            name=name,
            observation=Observation(NOW, 3, 3, readings),
            decision=Decision(
                cluster=name, at=NOW, current=3, proposed=3, desired=3, reason=Reason.STEADY, recommendations=(asked,)
            ),
            state=ClusterState(learned=learned),
            cluster=SimpleNamespace(engine=None, metrics=readings),
            counters=Counters(
                {Reason.STEADY: 5, Reason.ABOVE: 1}, {Direction.UP: 1}, {(Direction.UP, Phase.READY): (1, 4.5)}
            ),
        )
    daemon = SimpleNamespace(
        controllers=controllers,
        utc=lambda: NOW + timedelta(seconds=7),
        dry_run=False,
        store_failure=None,
        history_failure=None,
        reload_problems=(),
        loaded_at=NOW,
        registry=registry(),
    )
    daemon.registry.register(DaemonCollector(cast("Any", daemon)))
    return cast("Any", daemon)  # type: ignore[no-any-return]


def best(function: Callable[[], object]) -> float:
    """Seconds of the quickest of five calls: what others do on the machine only adds."""
    found = []
    for _ in range(5):
        begun = time.process_time()
        function()
        found.append(time.process_time() - begun)
    return min(found)


def test_a_learned_number_costs_a_scrape_less_than_half_of_another_line() -> None:
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
    without, much = best(lambda: exposition(bare, bare.registry)), best(lambda: exposition(full, full.registry))
    short, text = exposition(bare, bare.registry), exposition(full, full.registry)
    loop = best(lambda: sum(number & 7 for number in range(1_000_000)))
    lines = short.count(b"\n")
    added = text.count(b"\n") - lines
    share = (much - without) / added / (without / lines)
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\n{CLUSTERS} clusters: {without:.2f} s for {lines:,} lines of {len(short) / 1e6:.1f} MB; "
        f"with {added:,} learned numbers and inputs {much:.2f} s, {len(text) / 1e6:.1f} MB"
        f"\n  a learned number costs {share:.0%} of another line, all of them {much / without - 1:.0%} on top"
        f"   (a million plain steps {loop:.3f} s)"
    )
    assert added > 150 * CLUSTERS
    assert share < 0.5
