"""The status of fleets that a running daemon shows over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from autoscaler.daemon.history import History
from autoscaler.daemon.service import Daemon
from autoscaler.daemon.state_store import open_state_store
from autoscaler.daemon.status import health
from autoscaler.ports import Member, UnavailableError
from autoscaler.testing.fakes import Fake, FakeTarget

from .conftest import Fleets

PATIENCE = 60.0
"""Seconds that a slow machine may take for something that normally takes a moment."""


@dataclass
class House:
    """A running daemon with one fleet and no other cluster."""

    daemon: Daemon
    world: Fleets
    session: aiohttp.ClientSession

    async def ask(self, path: str) -> tuple[int, Any]:
        assert self.daemon.url is not None
        async with self.session.get(self.daemon.url + path) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    async def until(self, path: str, seen: Callable[[int, Any], bool]) -> Any:
        async with asyncio.timeout(PATIENCE):
            while True:
                status, body = await self.ask(path)
                if seen(status, body):
                    return body
                await asyncio.sleep(0.01)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    world = Fleets()
    world.of_members = {"interval": timedelta(milliseconds=100), "timeout": timedelta(milliseconds=500)}
    world.specs["f"] = replace(world.specs["f"], interval=timedelta(milliseconds=50))
    world.discovery.failure = UnavailableError("away")
    config = replace(world.config, daemon=replace(world.config.daemon, directory=tmp_path))
    async with open_state_store(tmp_path, decisions=100) as store, aiohttp.ClientSession() as session:
        history = History(tmp_path / "history", timedelta(days=1))
        await history.start()
        daemon = Daemon(config, lambda: config, store, history)
        work = asyncio.create_task(daemon.run())
        while not daemon.url:  # noqa: ASYNC110 - the URL is only logged
            await asyncio.sleep(0.001)
        yield House(daemon, world, session)
        daemon.stop()
        await work
        await history.close()


async def test_without_any_cluster_it_is_alive_and_it_is_ready_once_the_discovery_has_answered(house: House) -> None:
    body = await house.until("/readyz", lambda _, body: body["fleets"] == {"f": "away"})
    assert body["ok"] is False
    assert await house.ask("/healthz") == (200, {"ok": True, "clusters": 0, "overdue": []})
    now = asyncio.get_running_loop().time()
    assert health(house.daemon, now) == (True, "0 clusters, 1 fleet; no answer of the discovery of f")
    house.world.discovery.failure = None
    await house.until("/readyz", lambda status, _: status == 200)
    assert health(house.daemon, now) == (True, "0 clusters, 1 fleet")
    # A member may be observed before the test has asked for its first status: it fails until the test has seen that.
    target = FakeTarget(failure=UnavailableError("not there yet"))
    house.world.plugins["a"] = Fake(target)
    house.world.find("a")
    await house.until("/readyz", lambda status, _: status == 503)
    target.failure = None
    await house.until("/readyz", lambda status, _: status == 200)
    assert (await house.ask("/healthz"))[1]["clusters"] == 1


async def test_members_with_slashes_in_their_names_are_found_encoded_or_not(house: House) -> None:
    house.world.discovery.failure = None
    names = ["prod/orders", "prod/orders/decisions"]
    house.world.discovery.found = [Member(name, {"name": name}) for name in names]
    await house.until("/readyz", lambda status, _: status == 200 and house.daemon.members.keys() == set(names))
    _, body = await house.ask("/api/v1/clusters")
    assert [(row["name"], row["fleet"]) for row in body["clusters"]] == [(name, "f") for name in names]
    for path, name in (("prod%2Forders", names[0]), ("prod/orders", names[0]), ("prod%2Forders%2Fdecisions", names[1])):
        status, body = await house.ask(f"/api/v1/clusters/{path}")
        assert (status, body["name"], body["fleet"]) == (200, name, "f")
        # A cluster is ready once it has been observed; its decision may be stored a moment later.
        body = await house.until(
            f"/api/v1/clusters/{path}/decisions?limit=1", lambda status, body: status == 200 and body["decisions"]
        )
        assert body["cluster"] == name
        assert f"cluster {name}" in body["decisions"][0]["explanation"]


async def test_problems_of_a_fleet_and_its_members_are_shown(house: House) -> None:
    house.world.discovery.failure = None
    good = [Member(name, {"name": name}) for name in "abc"]
    bad = Member("bad", {"name": "bad", "max": "lots"})
    house.world.discovery.found = [*good, bad]
    await house.until("/readyz", lambda _, body: not body["not_observed"] and "bad" in str(body["fleets"]))
    worse = replace(good[1], values={"name": "b", "max": "more"})
    house.world.discovery.found = [good[0], bad, worse, good[2]]
    problem = "config.yaml:7: fleets.f[bad].template.max: 'lots' is no number"
    changed = "config.yaml:7: fleets.f[b].template.max: 'more' is no number"
    await house.until("/readyz", lambda _, body: body["problems"] == {"b": changed})
    house.world.discovery.found = house.world.discovery.found[:2]
    body = await house.until("/api/v1/fleets", lambda _, body: len(body["fleets"][0]["held"]) == 2)
    (fleet,) = body["fleets"]
    assert (fleet["name"], fleet["members"], fleet["clusters"], fleet["problem"]) == ("f", 4, 3, None)
    assert fleet["age"] < PATIENCE
    assert sorted((held["member"], held["cluster"]) for held in fleet["held"]) == [("b", "b"), ("c", "c")]
    assert sorted(fleet["refused"], key=lambda refused: refused["member"]) == [
        {"member": "b", "cluster": "b", "problems": [changed]},
        {"member": "bad", "cluster": None, "problems": [problem]},
    ]
    assert (await house.ask("/api/v1/clusters"))[1]["fleets"][0]["members"] == 4
    status, body = await house.ask("/api/v1/clusters/bad/decisions")
    assert (status, body["error"]) == (404, f"there is no cluster 'bad'; the fleet f has refused: {problem}")
    _, ready = await house.ask("/readyz")
    assert "1 more members have problems" in ready["fleets"]["f"]
    assert health(house.daemon, 0.0)[1].endswith("2 members refused")
    _, text = await house.ask("/metrics")
    for line in (
        'autoscaler_fleet_members{fleet="f"} 4.0',
        'autoscaler_fleet_members_refused{fleet="f"} 2.0',
        'autoscaler_fleet_members_held{fleet="f"} 2.0',
        'autoscaler_fleet_answer_age_seconds{fleet="f"} ',
        'autoscaler_fleet_discovery_failures_total{fleet="f"} ',
    ):
        assert line in text


async def test_one_invalid_member_does_not_make_the_daemon_unready_and_is_named(house: House) -> None:
    house.world.discovery.failure = None
    house.world.find("abc")
    await house.until("/readyz", lambda status, _: status == 200 and len(house.daemon.members) == 3)
    refused = Member("bad", {"name": "bad", "max": "lots"})
    house.world.discovery.found = [*house.world.discovery.found, refused]
    house.world.targets["a"].failure = UnavailableError("no such Deployment")
    body = await house.until("/readyz", lambda _, body: "a" in body["problems"] and body["fleets"])
    assert "no such Deployment" in body["problems"]["a"]
    assert "[bad].template.max" in body["fleets"]["f"]
    assert (await house.ask("/readyz"))[0] == 200
    assert body["ok"] is True
    # A member that has just joined.
    house.world.find("abcd")
    house.world.plugins["d"] = Fake(FakeTarget())
    house.world.plugins["d"].live.failure = UnavailableError("not there yet")
    await house.until("/readyz", lambda _, body: "d" in body["problems"] or "d" in body["not_observed"])
    assert (await house.ask("/readyz"))[0] == 200
    # All of them.
    for name in "bcd":
        house.world.targets[name].failure = UnavailableError("the API server is away")
    await house.until("/readyz", lambda status, body: status == 503 and not body["ok"] and len(body["problems"]) == 4)


async def test_a_fleet_whose_members_are_all_refused_makes_the_daemon_unready(house: House) -> None:
    house.world.discovery.failure = None
    house.world.find("ab", max="lots")
    body = await house.until("/readyz", lambda _, body: "1 more members have problems" in str(body["fleets"]))
    assert (await house.ask("/readyz"))[0] == 503
    assert (body["ok"], body["problems"], body["not_observed"]) == (False, {}, [])


async def test_a_reload_updates_the_fleets(house: House) -> None:
    house.world.discovery.failure = None
    house.world.find("a")
    await house.until("/readyz", lambda status, _: status == 200 and "a" in house.daemon.members)
    before = house.daemon.controllers["a"]
    house.world.specs["f"] = replace(
        house.world.spec("f", house.world.discover, minimum=2), interval=timedelta(hours=1)
    )
    config = replace(house.daemon.config, fleets=dict(house.world.specs))
    house.daemon._load = lambda: config
    house.daemon.reload()
    await house.until("/api/v1/clusters", lambda _, body: body["clusters"][0]["min"] == 2)
    assert house.daemon.controllers["a"] is not before
    assert house.daemon.controllers["a"].counters is before.counters
