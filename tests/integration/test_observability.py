"""Every query of deploy/grafana and deploy/prometheus against a real Prometheus that scrapes a real daemon."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import promql_parser
import pytest
import yaml

from autoscaler.config.model import Config, Metric, NotificationSpec
from autoscaler.core.model import Control, ControlKind, SizeCapacity
from autoscaler.daemon.history import History
from autoscaler.daemon.leases import SharedOwnership
from autoscaler.daemon.service import Daemon
from autoscaler.daemon.state_store import open_state_store
from autoscaler.ports import Copy, Notification, RefusedError
from autoscaler.testing.fakes import Fake, FakeDiscovery, FakeQuery, FakeTarget
from tests.daemon.conftest import Fleets, make_cluster
from tests.daemon.fake_stores import FakeLeases, FakeSharedStore
from tests.integration.test_real_prometheus import running

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
TICK = timedelta(milliseconds=500)
PATIENCE = 90.0  # seconds until everything has been scraped and recorded, on a busy machine


def rules() -> list[dict[str, str]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panel_queries(path: Path) -> Iterator[tuple[str, str]]:
    """The queries of a dashboard, by the name of its panel, with the variables filled in."""
    board = json.loads(path.read_text())
    asked = [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel["targets"]]
    asked += [(each["name"], each["expr"]) for each in board["annotations"]["list"]]
    values = {"$job": ".*", "$cluster": "busy", "$__rate_interval": "10s"}
    for title, query in asked:
        for name, value in values.items():
            query = query.replace(name, value)  # noqa: PLW2901 - the same query, filled in
        yield title, query


def variables(path: Path) -> Iterator[tuple[str, str]]:
    """The metrics and labels from which a dashboard's variables take their values."""
    for variable in json.loads(path.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
            assert match, variable
            yield match[1].replace("$job", ".*"), match[2]


def named(node: Any) -> Iterator[str]:
    """The metrics in a query."""
    if isinstance(node, promql_parser.VectorSelector):
        yield str(node.name)
    for part in ("expr", "param", "lhs", "rhs", "vector_selector", "args"):
        inner = getattr(node, part, None)
        for each in inner if isinstance(inner, list) else [] if inner is None else [inner]:
            yield from named(each)


@dataclass
class Deaf:
    """A receiver that accepts nothing."""

    async def send(self, notifications: Sequence[Notification]) -> None:
        raise RefusedError(f"{len(notifications)} not accepted")


def configuration(directory: Path) -> Config:
    """Clusters, one of which is always about to rescale, and one with every kind of problem; and a fleet."""
    world = Fleets()
    world.of_members = {"interval": TICK, "timeout": TICK / 2}
    world.source.values |= {"lag": 50.0, "throughput": 10.0}

    def load(now: datetime) -> float:
        return 1000.0 if now.second // 4 % 2 else 100.0

    world.source.values["load"] = load
    names = ("load", "lag", "throughput")
    metrics = {name: Metric("source", FakeQuery(name)) for name in names}
    more: dict[str, Any] = {"interval": TICK, "timeout": TICK / 2, "metrics": names}
    quick = make_cluster("busy", Fake(FakeTarget(startup=1.0)), **more)
    down = replace(quick.spec.down, window=timedelta(0))
    refusing = make_cluster("bad", Fake(FakeTarget(scale_failure=RefusedError("no quota"))), **more)
    stuck = make_cluster("stuck", Fake(FakeTarget(startup=1e6)), **more)
    clusters = {
        "busy": replace(quick, spec=replace(quick.spec, down=down), metrics=metrics),
        "bad": replace(refusing, metrics={**metrics, "lag": Metric("source", FakeQuery("no such metric"))}),
        "stuck": replace(stuck, metrics=metrics),
    }
    discovery = FakeDiscovery()
    world.find("m")
    discovery.found = world.discovery.found
    config = replace(world.config, clusters=clusters, fleets={"f": world.spec("f", Fake(discovery))})
    notifications = {"ops": NotificationSpec(to=Fake(Deaf()), rate=1000)}
    return replace(config, daemon=replace(config.daemon, directory=directory, notifications=notifications))


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    config = configuration(tmp_path)
    me = Copy(UUID(int=1), "pod-a", "http://a:8765")
    ownership = SharedOwnership(FakeSharedStore(me, FakeLeases()), "pod-a")
    async with open_state_store(tmp_path, decisions=100) as store:
        history = History(tmp_path / "history", timedelta(days=1))
        await history.start()
        daemon = Daemon(config, lambda: config, store, history, ownership=ownership)
        work = asyncio.create_task(daemon.run())
        async with asyncio.timeout(PATIENCE):
            while set(daemon.controllers) != {"busy", "bad", "stuck", "m"}:
                assert not work.done()
                await asyncio.sleep(0.01)
        hold = Control(kind=ControlKind.HOLD, by="", replicas=1)
        await daemon.controls.add(hold, ["bad", "busy"], by="alice", until=daemon.utc() + timedelta(seconds=12))
        yield daemon
        daemon.stop()
        await work
        await history.close()


class Server:
    """The Prometheus server."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def get(self, path: str, **parameters: str) -> Any:
        async with self._session.get(f"{self._url}/api/v1/{path}", params=parameters) as answer:
            found = await answer.json()
        assert found["status"] == "success", (parameters, found)
        return found["data"]

    async def ask(self, query: str) -> list[Any]:
        result: list[Any] = (await self.get("query", query=query))["result"]
        return result


@pytest.fixture
async def server(daemon: Daemon, tmp_path: Path) -> AsyncIterator[Server]:
    assert daemon.url is not None
    directory = tmp_path / "prometheus"
    directory.mkdir()
    shutil.copy(RULES, directory / "rules.yaml")
    scraped = f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [rules.yaml]
scrape_configs:
- {{job_name: autoscaler, honor_labels: true, static_configs: [{{targets: ["{daemon.url.removeprefix("http://")}"]}}]}}
"""
    with running(directory, scraped) as url:
        async with aiohttp.ClientSession() as session:
            yield Server(url, session)


def learn(daemon: Daemon) -> None:
    """Set a learned capacity of a cluster, which would take minutes to learn."""
    controller = daemon.controllers["busy"]
    if controller.state is not None:
        capacity = {1: SizeCapacity(100.0, datetime.now(UTC), 3)}  # noqa: TID251 - the real time of a real server
        learned = replace(controller.state.learned, capacity=capacity)
        controller.state = replace(controller.state, learned=learned)


async def test_every_query_of_the_dashboards_has_a_result_and_every_metric_of_the_rules_exists(
    daemon: Daemon, server: Server
) -> None:
    waiting = {f"{path.stem}: {title}: {query}": query for path in DASHBOARDS for title, query in panel_queries(path)}
    waiting |= {rule["record"]: rule["record"] for rule in rules() if "record" in rule}
    asked = set(waiting.values()) | {rule["expr"] for rule in rules()}
    assert len(asked) > 60
    until = asyncio.get_running_loop().time() + PATIENCE
    # Not sooner than the hold of the bad cluster ends and its target has refused once more: a counter that is 1 at its
    # first scrape has not increased.
    alerts = {"AutoscalerReadingsStale", "AutoscalerScaleCallsRefused", "AutoscalerNotificationsLost"}
    due = alerts
    while (waiting or due) and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.5)
        learn(daemon)
        waiting = {what: query for what, query in waiting.items() if not await server.ask(query)}
        due = alerts - {alert["labels"]["alertname"] for alert in (await server.get("alerts"))["alerts"]}
    names = set(await server.get("label/__name__/values"))
    missing = {name for query in asked for name in named(promql_parser.parse(query)) if name not in names}
    assert missing == set()
    assert sorted(waiting) == []
    for rule in rules():
        await server.ask(rule["expr"])
    assert due == set()
    for path in DASHBOARDS:
        for metric, label in variables(path):
            assert await server.get(f"label/{label}/values", **{"match[]": metric}), (metric, label)
    loaded = [rule["health"] for group in (await server.get("rules"))["groups"] for rule in group["rules"]]
    assert set(loaded) == {"ok"}
    assert len(loaded) == len(rules())


def test_an_unknown_metric_is_detected() -> None:
    query = "topk(3, sum by (a) (rate(one_total[5m]))) / on (a) -(two) > bool max_over_time(three[1h:1m])"
    assert set(named(promql_parser.parse(query))) == {"one_total", "two", "three"}
