"""Learned values of a cluster, for charts: the capacity of sizes, the duration of rescales, the usual week."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autoscaler.core.model import CapacitySpec, ClusterState, Learned, Limits, SizeCapacity
from autoscaler.core.workload_profile import Profile, Season
from autoscaler.daemon.learned import learned_document
from autoscaler.testing.fakes import Fake, FakeSource
from autoscaler.testing.virtual_time import run

from .conftest import World, spec
from .test_http_control import running

NOW = datetime(2026, 1, 31, 17, tzinfo=UTC)


def shown(state: ClusterState | None = None, profile: Profile | None = None, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = learned_document(
        spec("a", **changes), state or ClusterState(), [(2, 4, 31.5)], profile, NOW
    )
    return found


def profile(*usual: float) -> Profile:
    season = Season(usual, usual, usual)
    return Profile(cluster="a", made_at=NOW, begin=NOW - timedelta(days=28), end=NOW, observations=1, season=season)


def test_capacities_are_those_of_allowed_sizes_and_of_observed_ones() -> None:
    state = ClusterState(learned=Learned(capacity={2: SizeCapacity(200.0, NOW, 5)}))
    found = shown(state, limits=Limits(0, 4))
    assert found["capacity_by_size"] == [(1, 100.0, 1), (2, 200.0, 6), (3, 300.0, 1), (4, 400.0, 1)]
    sizes = [size for size, _, _ in shown(state, limits=Limits(1, 1000))["capacity_by_size"]]
    assert len(sizes) < 50
    assert {1, 2, 1000} <= {*sizes}


def test_unknown_values_are_not_drawn() -> None:
    found = shown()
    assert (found["capacity_by_size"], found["week"], found["rescale_seconds"]) == ([], None, [[2, 4, 31.5]])
    assert shown(capacity=CapacitySpec(per_replica=10.0), limits=Limits(1, 2))["capacity_by_size"] == [
        (1, 10.0, 1),
        (2, 20.0, 1),
    ]


def test_the_usual_week_has_each_hour_relative_to_the_mean() -> None:
    week = shown(profile=profile(*(100.0 + 50.0 * math.sin(hour / 24 * math.tau) for hour in range(168))))["week"]
    assert [hour for hour, _ in week] == list(range(168))
    assert week[0][1] == pytest.approx(1.0)
    assert week[6][1] == pytest.approx(1.5)
    assert week[18][1] == pytest.approx(0.5)
    assert shown(profile=profile(*[0.0] * 168))["week"] is None


class Profiled(FakeSource):
    """A source with the profile of a cluster."""

    broken = False

    def profile(self, query: object) -> Profile:
        if self.broken:
            raise RuntimeError(query)
        return profile(*[1.0] * 168)


def test_a_profile_comes_from_any_source_that_has_one() -> None:
    async def story() -> None:
        world = World("a")
        await world.start()
        await world.until(11)
        connections = world.fleet.controllers["a"].connections
        assert connections.profile(world.clusters["a"]) is None
        source = Profiled({"load": 100.0})
        world.source_plugin = Fake(source)
        await world.start()
        await world.until(31)
        connections = world.fleet.controllers["a"].connections
        assert connections.profile(world.clusters["a"]) is not None
        source.broken = True
        assert connections.profile(world.clusters["a"]) is None
        await world.fleet.stop()

    run(story())


async def test_the_endpoint_returns_the_values_to_draw(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        await house.ask("POST", "/api/v1/clusters/a/decide")
        learned = (await house.ask("GET", "/api/v1/clusters/a"))["learned"]
        assert (learned["capacity_by_size"], learned["rescale_seconds"], learned["week"]) == ([], [], None)
