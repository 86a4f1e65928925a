"""Simulates, in another process, what another objective or other policies would have done with the recorded load."""

from __future__ import annotations

import asyncio
import math
import resource
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autoscaler import http_connections
from autoscaler.config.model import Metric
from autoscaler.core.model import CapacitySpec, ClusterState, Decision, NamedPolicy, Observation, Reading, Reason
from autoscaler.daemon import http_what_if, what_if
from autoscaler.ports import Record
from autoscaler.testing.fakes import FakeQuery
from autoscaler_policies.adaptive.policy import Adaptive

from .test_http_control import PATIENCE, House, running

HOUR = 3600.0
PATH = "/api/v1/clusters/a/what-if"


async def recorded(
    house: House, *, hours: float = 1.0, metrics: tuple[str, ...] = ("arrivals", "lag", "throughput")
) -> None:
    """Give cluster `a` another policy and a series of these hours, with a peak in the middle."""
    await house.ask("POST", "/api/v1/clusters/a/decide")
    controller = house.daemon.controllers["a"]
    spec = replace(
        controller.cluster.spec,
        policies=(NamedPolicy("main", Adaptive()),),
        metrics=metrics,
        capacity=CapacitySpec(per_replica=100.0),
        interval=timedelta(seconds=15),
    )
    queries = {name: Metric("source", FakeQuery(name)) for name in metrics}
    controller.cluster = replace(controller.cluster, spec=spec, metrics=queries)
    controller.series.__init__()  # type: ignore[misc]
    controller.series.filled = True
    end = house.daemon.utc()
    for number in range(int(hours * 240)):
        at = end - timedelta(hours=hours) + timedelta(seconds=15 * number)
        load = 300.0 + 250.0 * math.sin(math.pi * number / (hours * 240))
        values = {"arrivals": load, "throughput": load, "lag": 0.0 if number % 10 else 20_000.0}
        readings = {name: Reading(value, at) for name, value in values.items()}
        observation = Observation(at=at, desired=6, ready=6, metrics=readings)
        decision = Decision(cluster="a", at=at, current=6, proposed=6, desired=6, reason=Reason.STEADY)
        controller.series.add(spec, ClusterState(), Record(observation, decision))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with running(tmp_path) as found:
        await recorded(found)
        yield found


async def test_another_objective_is_simulated_beside_the_present_one_and_the_recorded_history(house: House) -> None:
    answer = await house.ask("POST", PATH, json={"objective": "30s"})
    assert (answer["simulated"], answer["objective"]) == (True, 30.0)
    assert "Simulated" in answer["notes"][0]
    figures = answer["figures"]
    assert figures["happened"]["worker_hours"] == pytest.approx(6.0, rel=0.02)
    assert figures["happened"]["share_later_than_objective"] == pytest.approx(0.1, abs=0.05)
    assert figures["happened"]["rescales"] == 0
    for name in ("what", "present"):
        assert 2.0 < figures[name]["worker_hours"] < 7.0
        assert figures[name]["hours"] == pytest.approx(1.0, rel=0.03)
    # The load is the recorded one; the sizes differ.
    assert max(answer["what"]["load"]) == pytest.approx(550.0, rel=0.02)
    assert len({*answer["what"]["desired"]}) > 1
    assert {*answer["happened"]["desired"]} == {6.0}
    assert answer["what"]["decisions"]


async def test_other_policies_have_the_form_of_a_configuration_file(house: House) -> None:
    policies = {"main": {"type": "backlog-drain", "utilization": 0.8}}
    answer = await house.ask("POST", PATH, json={"policies": policies})
    assert any(each["text"].startswith("main: ") for each in answer["what"]["decisions"])
    assert answer["objective"] == 60.0


async def test_a_client_with_the_read_right_may_ask_since_nothing_changes(tmp_path: Path) -> None:
    async with running(tmp_path, tokens=()) as house:
        await house.ask("POST", PATH, None, 400, json={})
        await house.ask("POST", PATH, None, 403, json={}, headers={"Origin": "https://elsewhere.example"})
        await house.ask("POST", "/api/v1/clusters/a/decide", None, 403)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "nothing is different"),
    ({"objective": "soon"}, "objective"),
    ({"objective": "-5s"}, "objective"),
    ({"objective": "x" * 50}, "at most 40 characters"),
    ({"objectives": "5s"}, "objectives"),
    ({"objective": "5s", "from": "yesterday"}, "from"),
    ({"objective": "5s", "from": "2026-01-01T00:00:00"}, "from"),
    ({"objective": "5s", "from": "0001-01-01T00:00:00Z", "until": "0001-01-01T00:00:00Z"}, "0 minutes of load"),
    ({"objective": "5s", "from": "2001-01-01T00:00:00Z", "until": "2001-02-01T00:00:00Z"}, "0 minutes of load"),
    ({"objective": "5s", "until": "0001-01-01T00:00:00Z"}, "0 minutes of load"),
    ({"policies": {}}, "at least one policy"),
    ({"policies": {"main": {"type": "adoptive"}}}, "adaptive"),
    ({"policies": {"main": {}}}, "type"),
    ({"policies": {"main": {"type": "adaptive", "slack": 3}}}, "slack"),
    ({"policies": {"main": {"type": "adaptive", "lag": "queue"}}}, "reads queue"),
    ({"policies": {"main": {"type": "adaptive", "lag": "${HOME}"}}}, "HOME"),
    ({"policies": {"main": {"type": "hpa", "metrics": [[[[[[1]]]]]]}}}, "main"),
    ({"objective": "5s", "policies": {"main": {"type": "threshold", "rules": []}}}, "rules"),
]


async def test_a_request_that_cannot_be_simulated_is_refused_with_the_reason(house: House) -> None:
    for body, wrong in WRONG:
        answer = await house.ask("POST", PATH, status=400, json=body)
        assert wrong in answer["error"], body


async def test_a_cluster_with_unknown_capacity_cannot_be_simulated(house: House) -> None:
    cluster = house.daemon.controllers["a"].cluster
    house.daemon.controllers["a"].cluster = replace(cluster, spec=replace(cluster.spec, capacity=CapacitySpec()))
    answer = await house.ask("POST", PATH, status=400, json={"objective": "30s"})
    assert "set capacity.per_replica" in answer["error"]


async def test_only_one_simulation_runs_at_a_time(house: House) -> None:
    first = asyncio.create_task(house.ask("POST", PATH, json={"objective": "30s"}))
    await asyncio.sleep(0.1)
    answer = await house.ask("POST", PATH, status=503, json={"objective": "30s"})
    assert "another simulation" in answer["error"]
    await first


async def test_a_simulation_that_takes_too_long_is_ended(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_what_if, "TIME_LIMIT", 0.05)
    answer = await house.ask("POST", PATH, status=503, json={"objective": "30s"})
    assert "took longer than 0.05 s" in answer["error"]


async def half_a_request(house: House) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int((house.daemon.url or "").rpartition(":")[2]))
    writer.write(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n".encode())
    writer.write(b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{")
    return reader, writer


async def test_a_client_that_sends_half_a_request_is_disconnected(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "IDLE_TIMEOUT", 0.2)
    reader, writer = await half_a_request(house)
    async with asyncio.timeout(PATIENCE):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


async def test_clients_that_send_half_a_request_do_not_block_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (32, 32))  # a quarter of the descriptors may be connections
    async with running(tmp_path) as house:
        opened = [await half_a_request(house) for _ in range(20)]
        await asyncio.sleep(0.1)
        await house.ask("GET", "/healthz", None)
        for _, writer in opened:
            writer.close()


async def test_a_simulation_may_take_longer_than_other_answers(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "ANSWER_TIMEOUT", 0.1)  # starting a process takes longer
    assert (await house.ask("POST", PATH, json={"objective": "30s"}))["simulated"]


async def test_a_process_that_fails_is_reported(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_what_if, "_MODULE", "autoscaler.nothing")
    answer = await house.ask("POST", PATH, status=503, json={"objective": "30s"})
    assert "exit code 1" in answer["error"]


async def test_metrics_that_a_simulation_lacks_are_named(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        await recorded(house, metrics=("arrivals", "lag", "throughput", "queue"))
        answer = await house.ask("POST", PATH, json={"objective": "30s"})
        assert "Not simulated: the metrics queue." in answer["notes"]


def test_figures_ignore_unknown_values() -> None:
    rows = [(0.0, [math.nan] * 8), (15.0, [math.nan, 1, 1, 50.0, 4, 4, 4, 4]), (30.0, [0, 0, 0, 1.0, 2, 2, 2, 2])]
    found = what_if.figures_of(rows, 15.0, timedelta(seconds=30), 1)  # type: ignore[arg-type]
    assert found == {
        "worker_hours": round(4 * 15 / HOUR, 3),
        "share_later_than_objective": 1.0,
        "rescales": 1,
        "hours": round(15 / HOUR, 3),
    }
    assert what_if.figures_of(rows, 15.0, None, 1)["share_later_than_objective"] is None  # type: ignore[arg-type]
