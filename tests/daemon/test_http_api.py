"""The HTTP endpoints of a running daemon: health, metrics and the API."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import resource
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from autoscaler import cli, http_connections
from autoscaler.config.model import Config, NotificationSpec
from autoscaler.core.model import (
    ClusterState,
    Control,
    ControlKind,
    Direction,
    Limits,
    NamedPolicy,
    Phase,
    Reason,
    Recommendation,
    RescaleTimes,
    SizeCapacity,
)
from autoscaler.daemon import event_loop, http_api, state_store, status
from autoscaler.daemon.history import History
from autoscaler.daemon.http_api import ListenError, serve_http, split_address
from autoscaler.daemon.service import NOT_RELOADED, Daemon
from autoscaler.daemon.state_store import SqliteStateStore, open_state_store
from autoscaler.http_connections import Connections
from autoscaler.ports import ConfigurationError, RefusedError, StoreError, UnavailableError
from autoscaler.testing.fakes import Fake, FakeEngine, FakeSource, FakeTarget

from .conftest import Moves, Remembers, in_writer, make_cluster, make_config

TICK = timedelta(milliseconds=100)
TIMEOUT = timedelta(milliseconds=500)
"""Longer than a tick: fakes answer at once, and a pause of a busy machine must not make readings missing."""


def serve(daemon: Daemon, listen: str, hosts: Sequence[str] = ()) -> AbstractAsyncContextManager[str]:
    return serve_http(daemon, daemon.registry, daemon.access, listen, hosts)


PATIENCE = 60.0
"""Seconds that a slow machine may take for something that normally takes a moment."""


@dataclass
class House:
    """A running daemon with two clusters."""

    daemon: Daemon
    config: Config
    session: aiohttp.ClientSession
    source: FakeSource
    targets: dict[str, FakeTarget]
    store: SqliteStateStore

    @property
    def url(self) -> str:
        assert self.daemon.url is not None
        return self.daemon.url

    async def get(self, path: str, status: int = 200) -> Any:
        async with self.session.get(self.url + path) as response:
            assert response.status == status, await response.text()
            assert response.content_type == "application/json"
            return await response.json()

    async def ready(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                async with self.session.get(self.url + "/readyz") as response:
                    if response.status == 200:
                        return
                await asyncio.sleep(0.01)

    async def until(self, seen: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await seen():  # noqa: ASYNC110 - the condition is on the other side of HTTP
                await asyncio.sleep(0.01)

    async def samples(self, path: str = "/metrics") -> dict[tuple[str, ...], float]:
        async with self.session.get(self.url + path) as response:
            text = await response.text()
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    source = FakeSource({"load": 300.0})
    targets = {"a": FakeTarget(), "b": FakeTarget()}
    clusters = {
        "a": make_cluster("a", Fake(targets["a"]), Fake(FakeEngine()), interval=TICK, timeout=TIMEOUT),
        "b": make_cluster("b", Fake(targets["b"]), interval=TICK, timeout=TIMEOUT),
    }
    config = make_config(clusters, Fake(source), tmp_path)
    problems = ConfigurationError(["config.yaml:1: nonsense"])

    def load() -> Config:
        raise problems

    async with open_state_store(tmp_path, decisions=100) as store, aiohttp.ClientSession() as session:
        history = History(tmp_path / "history", timedelta(days=1))
        await history.start()
        daemon = Daemon(config, load, store, history)
        work = asyncio.create_task(daemon.run())
        while not daemon.url:  # noqa: ASYNC110 - the URL is only logged
            await asyncio.sleep(0.001)
        yield House(daemon, config, session, source, targets, store)
        daemon.stop()
        await work
        await history.close()


async def test_it_is_ready_when_every_cluster_has_been_observed(house: House) -> None:
    await house.ready()
    disk = threading.Event()
    hanging = asyncio.create_task(in_writer(house.store, lambda _: disk.wait(PATIENCE)))
    added = make_cluster("c", Fake(FakeTarget()), interval=TICK, timeout=TIMEOUT)
    house.daemon._load = lambda: replace(house.config, clusters={**house.config.clusters, "c": added})
    house.daemon.reload()

    async def waits() -> bool:
        async with house.session.get(house.url + "/readyz") as response:
            body = await response.json()
            return (response.status, body["ok"], body["not_observed"]) == (503, False, ["c"])

    await house.until(waits)
    disk.set()
    await hanging
    await house.ready()
    body = await house.get("/readyz")
    assert body == {
        "ok": True,
        "not_observed": [],
        "problems": {},
        "fleets": {},
        "store": "ok",
        "history": "ok",
        "reload": "ok",
    }


async def test_one_cluster_with_stuck_ticks_is_named_and_does_not_trigger_a_restart(house: House) -> None:
    await house.ready()

    def broken(*_: object) -> Any:
        raise RuntimeError("a defect in one cluster's decisions")

    house.daemon.controllers["a"]._decide = broken

    async def named() -> bool:
        async with house.session.get(house.url + "/healthz") as response:
            return response.status == 200 and (await response.json())["overdue"] == ["a"]

    await house.until(named)


async def test_it_is_healthy_while_ticks_finish(house: House) -> None:
    await house.ready()

    async def well() -> bool:
        async with house.session.get(house.url + "/healthz") as response:
            return response.status == 200 and await response.json() == {"ok": True, "clusters": 2, "overdue": []}

    await house.until(well)
    disk = threading.Event()
    hanging = asyncio.create_task(in_writer(house.store, lambda _: disk.wait(PATIENCE)))

    async def overdue() -> bool:
        async with house.session.get(house.url + "/healthz") as response:
            return response.status == 503 and (await response.json())["overdue"] == ["a", "b"]

    await house.until(overdue)
    disk.set()
    await hanging
    await house.until(well)


async def test_clusters_are_shown_with_their_last_decision(house: House) -> None:
    await house.ready()

    async def scaled() -> bool:
        return house.targets["a"].desired == 3

    await house.until(scaled)
    body = await house.get("/api/v1/clusters")
    assert body["dry_run"] is False
    assert [row["name"] for row in body["clusters"]] == ["a", "b"]
    row = body["clusters"][0]
    assert (row["min"], row["max"], row["missing"], row["problem"]) == (1, 10, {}, None)
    one = await house.get("/api/v1/clusters/a")
    assert one["connections"] == {"target": "ok", "engine": "ok", "source source": "ok"}
    assert one["observation"]["metrics"]["load"]["value"] == 300
    assert one["state"]["desired"] in (1, 3)
    assert "past" not in one["state"]
    assert one["decision"]["cluster"] == "a"
    assert "per-replica asked for 3" in one["explanation"]


async def test_clusters_are_shown_with_the_bounds_in_force(house: House) -> None:
    controller = house.daemon.controllers["a"]
    policies = (*controller.cluster.spec.policies, NamedPolicy("calendar", Moves(Limits(2, 7))))
    controller.cluster = replace(controller.cluster, spec=replace(controller.cluster.spec, policies=policies))
    await house.ready()
    moved, other = (await house.get("/api/v1/clusters"))["clusters"]
    assert (moved["min"], moved["max"]) == (2, 7)
    assert (other["min"], other["max"]) == (1, 10)
    samples = await house.samples()
    for cluster, least, most in (("a", 2, 7), ("b", 1, 10)):
        assert samples["autoscaler_min_replicas", cluster] == least
        assert samples["autoscaler_max_replicas", cluster] == most


async def test_decisions_are_listed_newest_first_with_their_explanation(house: House) -> None:
    await house.ready()

    async def decided() -> bool:
        return len((await house.get("/api/v1/clusters/a/decisions"))["decisions"]) >= 3

    await house.until(decided)
    body = await house.get("/api/v1/clusters/a/decisions?limit=2")
    first, second = body["decisions"]
    assert first["decision"]["at"] > second["decision"]["at"]
    assert "cluster a" in first["explanation"]
    # In a query the client must escape the + of an offset; a Z needs no escaping.
    until = second["decision"]["at"].replace("+00:00", "Z")
    body = await house.get(f"/api/v1/clusters/a/decisions?limit=1&until={until}")
    assert body["decisions"] == [second]


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/api/v1/clusters/nobody", 404, "there is no cluster 'nobody'; there are: a, b"),
        ("/api/v1/clusters/nobody/decisions", 404, "there is no cluster 'nobody'"),
        ("/api/v1/clusters/a/decisions?limit=many", 400, "limit is 'many', expected a number from 1 to 10000"),
        ("/api/v1/clusters/a/decisions?limit=0", 400, "limit is '0'"),
        (f"/api/v1/clusters/a/decisions?limit={'9' * 5000}", 400, "expected a number from 1 to 10000"),
        ("/api/v1/clusters/a/decisions?until=noon", 400, "until is 'noon', expected a time"),
        ("/nowhere", 404, "Not Found"),
    ],
)
async def test_errors_are_json(house: House, path: str, status: int, text: str) -> None:
    assert text in (await house.get(path, status))["error"]


async def test_other_methods_than_reading_are_refused(house: House) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        async with house.session.request(method, house.url + "/api/v1/clusters") as response:
            assert response.status == 405
            assert "error" in await response.json()


async def test_manual_controls_are_shown_at_once_and_until_they_expire(house: House) -> None:
    await house.ready()
    until = house.daemon.utc() + timedelta(seconds=1)
    hold = Control(kind=ControlKind.HOLD, replicas=5, by="x")
    await house.daemon.controls.add(hold, ["a"], by='al"ice', reason="a release", until=until)
    rows = (await house.get("/api/v1/clusters"))["clusters"]
    [shown], none = rows[0]["controls"], rows[1]["controls"]
    assert none == []
    assert (shown["kind"], shown["replicas"], shown["by"], shown["reason"]) == ("hold", 5, 'al"ice', "a release")
    assert datetime.fromisoformat(shown["until"]) == until
    assert shown["text"].startswith('the size is held at 5 by al"ice until ')
    samples = await house.samples()
    assert samples[("autoscaler_control", "a", "hold", 'al"ice')] == 1
    ends = samples[("autoscaler_control_until_timestamp_seconds", "a", "hold", 'al"ice')]
    assert ends == pytest.approx(until.timestamp())

    async def reached() -> bool:
        found = await house.get("/api/v1/clusters/a")
        return bool(found["desired"] == 5 and "held at 5" in found["explanation"] and found["observation"]["controls"])

    await house.until(reached)

    async def over() -> bool:
        return bool((await house.get("/api/v1/clusters/a"))["controls"] == [])

    await house.until(over)
    assert ("autoscaler_control", "a", "hold", 'al"ice') not in await house.samples()
    await house.daemon.controls.add(replace(hold, replicas=4), ["a"], by="bob")
    samples = await house.samples()
    assert samples[("autoscaler_control", "a", "hold", "bob")] == 1
    assert ("autoscaler_control_until_timestamp_seconds", "a", "hold", "bob") not in samples


async def test_metrics_follow_the_conventions_and_have_all_known_values(house: House) -> None:
    await house.ready()

    async def settled() -> bool:
        samples = await house.samples()
        return all(samples.get(("autoscaler_rescale_phase_seconds_count", c, "up", "ready")) for c in ("a", "b"))

    await house.until(settled)
    house.source.failures["load"] = UnavailableError("gone")

    async def failing() -> bool:
        return (await house.samples()).get(("autoscaler_read_errors_total", "b", "load", "source"), 0) >= 2

    await house.until(failing)
    samples = await house.samples()
    assert samples[("autoscaler_clusters",)] == 2
    assert samples[("autoscaler_build_info", "0.1.0")] == 1
    for name in ("current", "ready", "proposed", "desired"):
        assert samples[(f"autoscaler_{name}_replicas", "a")] == 3
    assert samples[("autoscaler_reading_missing", "a", "load")] == 1
    assert samples[("autoscaler_reading_missing", "a", "engine")] == 0
    assert samples[("autoscaler_decisions_total", "a", "above")] >= 1
    assert samples[("autoscaler_rescales_total", "a", "up")] == 1
    assert samples[("autoscaler_rescales_total", "a", "down")] == 0
    assert samples[("autoscaler_rescale_phase_seconds_count", "a", "up", "ready")] == 1
    assert samples[("autoscaler_rescale_in_flight", "a")] == 0
    assert samples[("autoscaler_tick_lateness_seconds_count",)] > 2
    assert samples[("autoscaler_store_ok",)] == samples[("autoscaler_last_reload_successful",)] == 1
    assert samples[("autoscaler_unexpected_errors_total", "a")] == 0
    house.source.failures["load"] = ZeroDivisionError("a defect")

    async def defective() -> bool:
        return (await house.samples())[("autoscaler_unexpected_errors_total", "a")] >= 1

    await house.until(defective)
    house.source.failures.clear()

    async def back() -> bool:
        return ("autoscaler_metric_value", "a", "load") in await house.samples()

    await house.until(back)
    samples = await house.samples()
    assert samples[("autoscaler_metric_value", "a", "load")] == 300
    assert 0 <= samples[("autoscaler_metric_age_seconds", "a", "load")] < 5
    families: list[Metric] = []
    for path in ("/metrics", "/metrics/policies"):
        async with house.session.get(house.url + path) as response:
            families += text_string_to_metric_families(await response.text())
    documented = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"`{name}`" in documented or name.startswith("process_"), name
        assert family.documentation, family.name
        assert family.name.startswith(("autoscaler_", "process_")), family.name
        assert family.type != "unknown", family.name
    assert len({family.name for family in families}) == len(families)


def learning(house: House) -> None:
    """Make the policies of cluster a learn, from the next tick on."""
    controller = house.daemon.controllers["a"]
    policies = (*controller.cluster.spec.policies, NamedPolicy('say "when"', Remembers()))
    controller.cluster = replace(controller.cluster, spec=replace(controller.cluster.spec, policies=policies))


def teach(house: House, **learned: Any) -> None:
    """Give cluster a, which does not tick any more, learned values that need more time than a test has."""
    controller = house.daemon.controllers["a"]
    assert controller.state is not None
    controller.state = replace(controller.state, learned=replace(controller.state.learned, **learned))


async def remembered(house: House) -> bool:
    samples = await house.samples("/metrics/policies")
    return samples.get(("autoscaler_learned", "a", 'say "when"', "seen"), 0) >= 3


async def test_metrics_have_every_learned_number(house: House) -> None:
    await house.ready()
    learning(house)
    await house.until(lambda: remembered(house))
    samples = await house.samples("/metrics/policies")
    policy = 'say "when"'
    assert samples[("autoscaler_learned", "a", policy, "size.3.greatest")] == 300
    for age in ("first", "last", "size.3.seen"):
        assert 0 <= samples[("autoscaler_learned_age_seconds", "a", policy, age)] < 60
    assert samples[("autoscaler_recommendation_input", "a", "per-replica", "load")] == 300
    assert samples[("autoscaler_recommendation_input", "b", "per-replica", "load")] == 300
    assert samples[("autoscaler_recommendation_input", "a", policy, "seen")] >= 3
    # A learned time is shown only as its age.
    names = {labels[3] for labels in samples if labels[:3] == ("autoscaler_learned", "a", policy)}
    assert names == {"seen", "size.3.greatest"} | names & {"size.1.greatest"}
    assert not any(labels[:2] == ("autoscaler_learned", "b") for labels in samples)
    # There may be thousands of these for each cluster, so only their own endpoint has them.
    assert not {labels[0] for labels in samples} & {labels[0] for labels in await house.samples()}


async def test_metrics_have_the_learned_capacity_and_durations(house: House) -> None:
    await house.ready()
    daemon = house.daemon
    capacity = {2: SizeCapacity(200.5, daemon.utc() - timedelta(hours=1), 7), 12: SizeCapacity(1e9, daemon.utc(), 1)}
    durations = {Direction.DOWN: {Phase.READY: (9.0, 1.0, 2.0), Phase.ABSORBED: (4.0, 5.0), Phase.CAUGHT_UP: (60.0,)}}

    await house.until(lambda: settled_at(house, 3))
    await daemon.fleet.stop()
    teach(house, capacity=capacity, durations=durations)
    samples = await house.samples()
    assert samples[("autoscaler_learned_capacity_records_per_second", "a", "2")] == 200.5
    assert samples[("autoscaler_learned_capacity_records_per_second", "a", "12")] == 1e9
    assert samples[("autoscaler_learned_capacity_samples", "a", "2")] == 7
    assert 3600 <= samples[("autoscaler_learned_capacity_age_seconds", "a", "2")] < 3660
    assert samples[("autoscaler_learned_phase_seconds", "a", "down", "ready")] == 2
    assert samples[("autoscaler_learned_phase_seconds", "a", "down", "absorbed")] == 4.5
    assert samples[("autoscaler_learned_phase_seconds", "a", "down", "caught_up")] == 60
    # The restart time ends when the job runs; catching up does not count.
    assert samples[("autoscaler_learned_restart_seconds", "a", "down")] == 6.5


async def test_metrics_survive_a_policy_with_odd_inputs(house: House) -> None:
    await house.ready()
    odd = 'a\\"b\nc'
    inputs: Any = {7: 1, odd: True}
    await house.daemon.fleet.stop()
    controller = house.daemon.controllers["a"]
    assert controller.decision is not None
    asked = Recommendation(3, Reason.STEADY, inputs, "many", "wild")
    controller.decision = replace(controller.decision, recommendations=(asked,))
    samples = await house.samples("/metrics/policies")
    shown = {labels[3]: value for labels, value in samples.items() if labels[2:3] == ("wild",)}
    assert shown == {odd: 1, "7": 1}


async def test_the_api_reports_learned_values(house: House) -> None:
    await house.ready()
    assert (await house.get("/api/v1/clusters/b"))["learned"]["memory"] == {}
    learning(house)
    await house.until(lambda: remembered(house))
    await house.daemon.fleet.stop()
    teach(
        house,
        capacity={2: SizeCapacity(200.5, house.daemon.utc() - timedelta(hours=1), 7)},
        times={Direction.UP: (RescaleTimes(None, None, 30.0, 30.0, 2),)},
    )
    body = await house.get("/api/v1/clusters/a")
    (size,) = body["learned"]["capacity"]
    assert 3600 <= size.pop("age") < 3660
    assert size == {"replicas": 2, "rate": 200.5, "samples": 7}
    memory = body["learned"]["memory"]['say "when"']
    assert memory["numbers"]["size.3.greatest"] == 300
    assert 0 <= memory["ages"]["first"] < 60
    assert body["state"]["learned"]["memory"]['say "when"']["first_at"] > 1e9
    up = body["learned"]["durations"]["up"]
    assert up["phases"]["ready"]["samples"] == 1
    assert up["restart"] == 30
    asked = body["decision"]["recommendations"][1]
    assert asked["inputs"]["seen"] == memory["numbers"]["seen"]


async def shown(house: House, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    arguments = ["status", "--url", house.url, "--cluster", "a", *options]
    assert await asyncio.to_thread(cli.main, arguments) == 0
    return capsys.readouterr().out


async def test_status_of_one_cluster_shows_all_learned_values(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    await house.ready()
    await house.until(lambda: settled_at(house, 3))
    learning(house)
    await house.until(lambda: remembered(house))
    # Stop all ticks, so that nothing is learned before the values are shown.
    await house.daemon.fleet.stop()
    daemon = house.daemon
    teach(
        house,
        capacity={
            12: SizeCapacity(98765.4, daemon.utc(), 1),
            2: SizeCapacity(200.5, daemon.utc() - timedelta(hours=1), 7),
        },
        durations={Direction.UP: {Phase.READY: (70.0, 90.0), Phase.RUNNING: (0.25,), Phase.CAUGHT_UP: (600.0,)}},
        times={},
        memory={
            "adaptive": {
                "capacity.12.rate": 98765.4,
                "capacity.2.rate": 200.0,
                "capacity.2.seen_at": daemon.utc().timestamp() - 7325,
                "noise": 0.03,
            }
        },
    )
    text = await shown(house, capsys)
    # The inputs of the policies are for people who develop or tune one.
    assert "300 needs 3" in text
    assert "98765" in text
    assert "until it runs" in text
    assert not any(word in text for word in ("load 300", "adaptive", "What the policies have learned"))
    text = await shown(house, capsys, "--verbose")
    lines = [re.split(r"  +", line) for line in text.splitlines()]
    assert lines[1][0] == "a"
    assert lines[1][5] == "1-10"
    assert ["per-replica", "3", "steady", "300 needs 3", "load 300"] in lines
    first = lines.index(["2", "200.5", "1 h ago", "7 times"])
    assert lines[first + 1] == ["12", "98765", "just now", "1 time"]
    assert ["up", "ready", "1 min 20 s", "median of the last 2"] in lines
    assert ["up", "running", "0.25 s", "the last one"] in lines
    assert ["up", "caught up", "10 min", "the last one"] in lines
    assert ["up", "until it runs", "1 min 20 s", "all phases but catching up"] in lines
    memory = [line for line in lines if line[0] == "adaptive"]
    assert memory == [
        ["adaptive", "-", "noise 0.03"],
        ["adaptive", "capacity.2", "rate 200, seen 2 h 2 min ago"],
        ["adaptive", "capacity.12", "rate 98765"],
    ]
    answer = json.loads(await shown(house, capsys, "--json"))
    assert answer["learned"]["memory"]["adaptive"]["numbers"]["noise"] == 0.03
    assert answer["decision"]["recommendations"][0]["inputs"] == {"load": 300}


async def test_status_shows_the_requested_clusters(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    await house.ready()
    house.targets["b"].failure = UnavailableError("gone")

    async def missing() -> bool:
        return bool(await problems_of(house))

    await house.until(missing)

    async def names(*options: str) -> list[str]:
        arguments = ["status", "--url", house.url, *options]
        assert await asyncio.to_thread(cli.main, [*arguments, "--json"]) == 0
        answered = [row["name"] for row in json.loads(capsys.readouterr().out)["clusters"]]
        assert await asyncio.to_thread(cli.main, arguments) == 0
        head, *rows = capsys.readouterr().out.splitlines()
        if not answered:
            none = (
                "No cluster has a problem or a missing reading." if "--troubled" in options else "No cluster matches."
            )
            assert (head, rows) == (none, [])
        else:
            assert [row.split()[0] for row in rows] == answered
        return answered

    assert await names() == ["a", "b"]
    assert await names("--troubled") == ["b"]
    assert await names("--filter", "[a-x]*", "--filter", "nobody") == ["a", "b"]
    assert await names("--filter", "a*") == ["a"]
    assert await names("--filter", "a*", "--troubled") == []
    assert await names("--filter", "c*") == []


async def settled_at(house: House, size: int) -> bool:
    state = house.daemon.controllers["a"].state
    return state is not None and state.desired == size and state.rescale is None


async def test_status_of_a_cluster_without_data_reports_that(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    await house.ready()
    await house.daemon.fleet.stop()
    controller = house.daemon.controllers["a"]
    controller.state = controller.decision = controller.observation = None
    text = await shown(house, capsys)
    assert "The capacity of a size is not learned yet" in text
    assert "How long a rescale takes is not learned yet" in text
    assert "What the policies" not in text
    assert json.loads(await shown(house, capsys, "--json"))["learned"] is None
    options = ["status", "--url", house.url, "--cluster", "nobody"]
    assert await asyncio.to_thread(cli.main, options) == 1
    assert "there is no cluster 'nobody'; there are: a, b" in capsys.readouterr().err


async def test_a_change_that_the_target_refuses_is_not_explained_as_made(house: House) -> None:
    await house.ready()
    house.targets["a"].scale_failure = RefusedError("403 Forbidden")
    house.source.values["load"] = 900.0

    async def explained() -> bool:
        latest = (await house.get("/api/v1/clusters/a"))["explanation"]
        recorded = (await house.get("/api/v1/clusters/a/decisions?limit=1"))["decisions"][0]["explanation"]
        texts = [latest.partition("\n")[0], recorded.partition("\n")[0]]
        return all("403 Forbidden" in text and "is scaled" not in text for text in texts)

    await house.until(explained)

    async def again() -> bool:
        """All of the last decisions failed; that of an older one is known from the record after it."""
        decisions = (await house.get("/api/v1/clusters/a/decisions?limit=3"))["decisions"]
        return all("has not been made: 403 Forbidden" in one["explanation"].partition("\n")[0] for one in decisions)

    await house.until(again)


async def problems_of(house: House) -> dict[str, str]:
    async with house.session.get(house.url + "/readyz") as response:
        body = await response.json()
        assert (response.status == 200) == body["ok"]
    return {} if body["not_observed"] else dict(body["problems"])


async def test_refused_scale_calls_are_a_problem_until_one_succeeds_or_none_is_needed(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    await house.ready()
    await house.until(lambda: settled_at(house, 3))
    house.targets["a"].scale_failure = RefusedError('403 Forbidden: cannot patch "deployments/scale"')
    house.source.values["load"] = 500.0

    async def refused() -> bool:
        return "a" in await problems_of(house)

    await house.until(refused)
    problems = await problems_of(house)
    assert list(problems) == ["a"]
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    why = rf'scale calls have failed since {stamp}; the last one, to 5: 403 Forbidden: cannot patch "deployments/scale"'
    assert re.fullmatch(why, problems["a"])
    row = (await house.get("/api/v1/clusters"))["clusters"][0]
    assert row["problem"] == problems["a"]
    assert await asyncio.to_thread(cli.main, ["status", "--url", house.url]) == 0
    shown_row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("a "))
    assert problems["a"] in shown_row
    since = house.daemon.controllers["a"].refusal
    # `since` is the time of the first failure, not of the last.
    failed = house.daemon.controllers["a"].counters.failed_calls

    async def refused_again() -> bool:
        return house.daemon.controllers["a"].counters.failed_calls >= failed + 2

    await house.until(refused_again)
    assert (await problems_of(house))["a"] == problems["a"]
    assert since is not None
    house.targets["a"].scale_failure = None
    await house.ready()
    assert house.targets["a"].desired == 5


async def test_refused_scale_calls_are_no_longer_a_problem_when_the_present_size_is_right(house: House) -> None:
    await house.ready()
    await house.until(lambda: settled_at(house, 3))
    house.targets["a"].scale_failure = RefusedError("no")
    house.source.values["load"] = 500.0

    async def refused() -> bool:
        return "a" in await problems_of(house)

    await house.until(refused)
    # While the load is missing, nobody knows whether another size is needed.
    house.source.failures["load"] = UnavailableError("gone")
    controller = house.daemon.controllers["a"]

    async def unknown() -> bool:
        return controller.observation is not None and "load" in controller.observation.missing

    await house.until(unknown)
    assert "a" in await problems_of(house)
    house.source.failures.clear()
    house.source.values["load"] = 300.0
    await house.ready()
    assert house.targets["a"].desired == 3


async def test_a_target_that_does_not_answer_is_a_problem(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    await house.ready()
    house.targets["a"].failure = UnavailableError("404: there is no Deployment jobs/taskmanager")

    async def missing() -> bool:
        return (await problems_of(house)) == {"a": "target: 404: there is no Deployment jobs/taskmanager"}

    await house.until(missing)
    assert await asyncio.to_thread(cli.main, ["status", "--url", house.url]) == 0
    assert capsys.readouterr().out.count("there is no Deployment") == 1
    house.targets["a"].failure = None
    await house.ready()


async def test_a_refused_reload_is_shown(house: House) -> None:
    await house.ready()
    house.daemon.reload()

    async def refused() -> bool:
        return bool((await house.get("/readyz"))["reload"] != "ok")

    await house.until(refused)
    assert (await house.get("/readyz"))["reload"] == ["config.yaml:1: nonsense"]
    assert (await house.samples())[("autoscaler_last_reload_successful",)] == 0


async def test_a_port_in_use_gives_a_clear_error(house: House) -> None:
    taken = house.url.removeprefix("http://")
    with pytest.raises(ListenError, match=f"cannot listen on {taken}"):
        async with serve(house.daemon, taken):
            pass


async def test_a_stop_before_the_first_observation_is_clean(tmp_path: Path) -> None:
    config = make_config({}, Fake(FakeSource()), tmp_path)
    async with open_state_store(tmp_path, decisions=100) as store:
        history = History(tmp_path / "history", timedelta(days=1))
        daemon = Daemon(replace(config, clusters={}), lambda: config, store, history)
        daemon.stop()
        await daemon.run()
        await history.close()


def test_addresses_are_parsed() -> None:
    assert split_address("127.0.0.1:8765") == ("127.0.0.1", 8765)
    assert split_address("[::1]:0") == ("::1", 0)
    for bad in ("8765", "localhost", "localhost:", ":8765", "host:port"):
        with pytest.raises(ListenError, match="expected host:port"):
            split_address(bad)


async def test_invalid_http_is_refused_and_does_not_flood_the_log(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(house.url.rpartition(":")[2])
    for garbage in (
        b"\x16\x03\x01\x02\x00\x01",
        b"SSH-2.0-x\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(garbage)
        assert b" 400 " in await reader.readline()
        writer.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING and record.exc_info]


async def test_a_reload_with_an_unexpected_exception_keeps_the_old_configuration(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    await house.ready()

    def fail() -> Config:
        raise RecursionError("a plug-in's own affair")

    house.daemon._load = fail
    house.daemon.reload()

    async def refused() -> bool:
        return bool((await house.get("/readyz"))["reload"] != "ok")

    await house.until(refused)
    assert (await house.get("/readyz"))["reload"] == ["RecursionError: a plug-in's own affair"]
    assert any("the previous one stays" in record.message for record in caplog.records)


async def test_loading_a_configuration_that_hangs_is_abandoned_and_the_next_reload_succeeds(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await house.ready()
    monkeypatch.setattr("autoscaler.daemon.service.LOAD_TIMEOUT", 0.2)
    disk = threading.Event()

    def hangs() -> Config:
        disk.wait(PATIENCE)
        return replace(house.config, clusters={})

    house.daemon._load = hangs
    house.daemon.reload()

    async def refused() -> bool:
        return bool((await house.get("/readyz"))["reload"] != "ok")

    await house.until(refused)
    problem = (
        f"{house.config.path}: this file, or one that it includes, was not read within 0.2 s: "
        "check whether its disk hangs or it is a pipe, then reload"
    )
    assert (await house.get("/readyz"))["reload"] == [problem]
    assert [line.message for line in caplog.records if line.levelname == "ERROR"] == [NOT_RELOADED, problem]
    house.daemon._load = lambda: house.config
    house.daemon.reload()

    async def accepted() -> bool:
        return bool((await house.get("/readyz"))["reload"] == "ok")

    await house.until(accepted)
    disk.set()  # a configuration that was read too late is not used
    assert set(house.daemon.clusters) == {"a", "b"}


async def test_a_plug_in_that_cannot_be_compared_counts_as_changed_at_a_reload(house: House) -> None:
    @dataclass(frozen=True, eq=False)
    class Incomparable(Fake[FakeTarget]):
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("they cannot be compared")

        def __hash__(self) -> int:
            return 1

    await house.ready()
    for count in (1, 2, 3):
        target, receiver = Incomparable(FakeTarget()), cast("Any", Incomparable(FakeTarget()))
        clusters = {**house.config.clusters, "bad": make_cluster("bad", target)}
        notifications = {"bad": NotificationSpec(to=receiver)}
        config = replace(
            house.config, clusters=clusters, daemon=replace(house.config.daemon, notifications=notifications)
        )
        house.daemon._load = lambda config=config: config  # type: ignore[misc]
        house.daemon.reload()

        async def shown(config: Config = config) -> bool:
            controllers = house.daemon.controllers
            return "bad" in controllers and controllers["bad"].cluster is config.clusters["bad"]

        await house.until(shown)
        assert house.daemon.reload_problems == (), count
    assert house.daemon.controllers.keys() == {*house.config.clusters, "bad"}


async def test_warnings_of_the_configuration_are_logged(house: House, caplog: pytest.LogCaptureFixture) -> None:
    await house.ready()
    house.daemon._load = lambda: replace(house.config, warnings=("config.yaml:7: clusters.a: beware",))
    house.daemon.reload()

    async def warned() -> bool:
        return "config.yaml:7: clusters.a: beware" in [record.message for record in caplog.records]

    await house.until(warned)


async def connected(house: House, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(house.url.rpartition(":")[2]))
    writer.write(sent)
    return reader, writer


async def closed(reader: asyncio.StreamReader) -> bool:
    """Wait until the server ends the connection, possibly by a reset."""
    try:
        async with asyncio.timeout(PATIENCE):
            while await reader.read(1 << 20):
                pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: local"])
async def test_a_client_that_stops_sending_is_disconnected(
    house: House, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_connections, "IDLE_TIMEOUT", 0.2)
    reader, writer = await connected(house, sent)
    assert await closed(reader)
    writer.close()


async def test_an_idle_connection_is_closed_after_the_keep_alive_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "KEEP_ALIVE", 0.2)
    reader, writer = await connected(house, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b" 200 " in await reader.readline()
    assert await closed(reader)
    writer.close()


async def test_a_client_that_sends_its_request_byte_by_byte_is_disconnected(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "IDLE_TIMEOUT", 0.2)
    reader, writer = await connected(house, b"GET /healthz HTTP/1.1\r\nX: ")

    async def trickle() -> None:
        while True:
            writer.write(b"a")
            await asyncio.sleep(0.01)

    trickling = asyncio.create_task(trickle())
    assert await closed(reader)
    trickling.cancel()
    writer.close()


async def test_a_client_that_does_not_read_its_response_is_disconnected(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = Connections()
    asked = threading.Event()  # stays set, unlike a busy connection: the loop may be late by more than the time-out

    def large(*_: object) -> bytes:
        asked.set()
        return b"x" * 64_000_000

    monkeypatch.setattr(http_connections, "ANSWER_TIMEOUT", 0.2)
    monkeypatch.setattr(http_api, "Connections", lambda: connections)
    monkeypatch.setattr(http_api, "exposition", large)
    async with (
        serve(house.daemon, "127.0.0.1:0") as url,
        asyncio.timeout(PATIENCE),
    ):
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while not asked.is_set():  # noqa: ASYNC110 - the other side of TCP
            await asyncio.sleep(0.001)
        while connections._busy or connections._idle:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        writer.close()


async def test_idle_clients_do_not_block_others(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (32, 32))
    async with serve(house.daemon, "127.0.0.1:0") as url:
        idle = [await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2])) for _ in range(50)]
        async with house.session.get(f"{url}/healthz") as response:
            assert response.status == 200
        # The limit is a quarter of the descriptors; the request above uses one connection.
        ended = [asyncio.create_task(closed(reader)) for reader, _ in idle]
        async with asyncio.timeout(PATIENCE):
            while sum(task.done() for task in ended) < 50 - 7:  # noqa: ASYNC110 - the other side of TCP
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert sum(task.done() for task in ended) == 50 - 7
        for task in ended:
            task.cancel()
        for _, writer in idle:
            writer.close()
    assert [record.message for record in caplog.records].count("too many HTTP connections: idle ones are closed") == 1


async def test_metrics_are_rendered_once_in_another_thread_for_all_waiting_clients(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, go = [], threading.Event()

    def slow(*_: object) -> bytes:
        threads.append(threading.current_thread())
        go.wait(PATIENCE)
        return b"x" * 1_000_000

    async def scraped() -> bytes:
        async with house.session.get(house.url + "/metrics") as response:
            return await response.read()

    monkeypatch.setattr(http_api, "exposition", slow)
    scrapes = [asyncio.create_task(scraped()) for _ in range(5)]
    while not threads:  # noqa: ASYNC110 - the other side of HTTP
        await asyncio.sleep(0.01)
    # A client that leaves does not cancel the scrape for the others, and the daemon still answers other requests.
    scrapes.pop(0).cancel()
    await house.ready()
    go.set()
    assert {len(body) for body in await asyncio.gather(*scrapes)} == {1_000_000}
    assert len(threads) < 5
    assert threading.main_thread() not in threads


async def test_decisions_are_read_and_sent_in_batches(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.ready()

    async def decided() -> bool:
        return len((await house.get("/api/v1/clusters/a/decisions?limit=10"))["decisions"]) >= 5

    await house.until(decided)
    await house.daemon.fleet.stop()
    whole = await house.get("/api/v1/clusters/a/decisions?limit=10000")
    monkeypatch.setattr(state_store, "PAGE", 1)
    pages = [page async for page in house.daemon.store.pages("a", 10_000, None)]
    assert [len(page) for page in pages] == [1] * len(whole["decisions"])
    assert await house.get("/api/v1/clusters/a/decisions?limit=10000") == whole
    assert (await house.get("/api/v1/clusters/a/decisions?limit=3"))["decisions"] == whole["decisions"][:3]
    assert (await house.get("/api/v1/clusters/a/decisions?until=2000-01-01"))["decisions"] == []


async def test_an_incomplete_response_is_not_taken_for_a_complete_one(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.ready()
    page = await anext(house.daemon.store.pages("a", 1))

    async def pages(*_: object) -> AsyncIterator[list[bytes]]:
        yield page
        raise StoreError("the disk is gone")

    monkeypatch.setattr(house.daemon.store, "pages", pages)
    async with house.session.get(house.url + "/api/v1/clusters/a/decisions") as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_a_client_that_leaves_in_the_middle_is_not_logged(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connections = Connections()
    monkeypatch.setattr(http_api, "Connections", lambda: connections)
    monkeypatch.setattr(http_api, "exposition", lambda *_: b"x" * 64_000_000)
    async with (
        serve(house.daemon, "127.0.0.1:0") as url,
        asyncio.timeout(PATIENCE),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readline()
        writer.transport.abort()
        while connections._busy or connections._idle:  # noqa: ASYNC110 - the other side of TCP
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8765", 200),
        ("127.0.0.1:8765", 200),
        ("10.244.3.7", 200),
        ("[::1]:8765", 200),
        ("autoscaler", 200),
        ("autoscaler.streaming.svc:8765", 200),
        ("autoscaler.streaming.svc.cluster.local", 200),
        ("scaler.example.com", 200),
        ("Scaler.Example.com.:8765", 200),
        ("rebound.example.com:8765", 421),
        ("127.0.0.1.example.com", 421),
        ("localhost.example.com", 421),
        ("[::1", 421),
        ("", 421),
    ],
)
async def test_an_unknown_host_name_is_refused(house: House, host: str, status: int) -> None:
    async with (
        serve_http(
            house.daemon, house.daemon.registry, house.daemon.access, "127.0.0.1:0", hosts=("scaler.example.com",)
        ) as url,
        house.session.get(f"{url}/healthz", headers={"Host": host}) as response,
    ):
        assert response.status == status
        if status != 200:
            assert "add it to daemon.hosts" in (await response.json())["error"]


async def test_an_http_1_0_client_without_a_host_name_is_answered(house: House) -> None:
    reader, writer = await connected(house, b"GET /healthz HTTP/1.0\r\n\r\n")
    assert b" 200 " in await reader.readline()
    writer.close()


async def test_an_unreadable_state_is_reported_from_the_first_tick_on(tmp_path: Path) -> None:
    target = FakeTarget()
    cluster = make_cluster("a", Fake(target), interval=TICK, timeout=TIMEOUT)
    config = make_config({"a": cluster}, Fake(FakeSource({"load": 300.0})), tmp_path)
    async with open_state_store(tmp_path, decisions=100) as store, aiohttp.ClientSession() as session:
        await store.save("a", ClusterState(at=datetime(9999, 12, 31, tzinfo=UTC)), None)
        history = History(tmp_path / "history", timedelta(days=1))
        await history.start()
        daemon = Daemon(config, lambda: config, store, history)
        work = asyncio.create_task(daemon.run())
        while not daemon.url:  # noqa: ASYNC110 - the URL is only logged
            await asyncio.sleep(0.001)
        house = House(daemon, config, session, FakeSource(), {}, store)

        async def told() -> bool:
            async with session.get(f"{daemon.url}/readyz") as response:
                return "a" in (await response.json())["problems"]

        await house.until(told)
        assert "the state of cluster 'a' cannot be read" in (await house.get("/readyz", 503))["problems"]["a"]
        assert target.desired == 1
        daemon.stop()
        await work
        await history.close()


async def test_a_snapshot_of_many_clusters_lets_other_tasks_run(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "SLICE", 0.0)
    await house.ready()
    ran: list[int] = []

    async def other() -> None:
        while True:
            ran.append(1)
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    found = await status.snapshot(house.daemon)
    task.cancel()
    assert [cluster.name for cluster in found] == ["a", "b"]
    assert ran
