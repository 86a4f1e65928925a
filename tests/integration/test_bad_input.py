"""Bad input from outside, end to end: server -> source or engine -> observation -> step. Nothing of it lowers the size.

The policy here always requests the minimum, so only the decision machine's handling of untrusted input keeps the size.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from autoscaler.config.load import load
from autoscaler.config.model import Config
from autoscaler.core.model import ClusterState, Decision, NamedPolicy, Observation, Reason, Recommendation, View
from autoscaler.core.step import step
from autoscaler.daemon.connections import ClusterConnections, Connections
from autoscaler.daemon.observer import Observer
from tests.sources.prometheus_server import EVALUATED, at, vector
from tests.sources.test_spark_server import APP, FakeSpark, broken, drip, huge, refusing

NOW = at(EVALUATED + 1)
SIZE = 5
HOUR = timedelta(hours=1)

FILE = """
sources:
  prom: {type: prometheus, url: "http://prometheus", timeout: 6s, fresh: 0s, attempts: 2}
  job: &job {type: spark, app: lab, report: "http://report", timeout: 6s}
clusters:
  prom:
    target: {type: advice, size: 5, follow: true}
    min: 1
    max: 10
    timeout: 8s
    metrics: {lag: {source: prom, query: lag}}
    policies: &policies {t: {type: threshold, down: [{metric: lag, below: 1e6, replicas: 1}]}}
    down: &down {window: 0s}
  spark:
    target: {type: advice, size: 5, follow: true}
    engine: *job
    min: 1
    max: 10
    timeout: 8s
    metrics:
      lag: {source: job, metric: lag}
      arrivals: {source: job, metric: arrivals}
      throughput: {source: job, metric: throughput}
      saturation: {source: job, metric: saturation}
    policies: *policies
    down: *down
"""


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A configuration as a user would write it; each test replaces the addresses by its own servers."""
    file = tmp_path_factory.mktemp("bad-input") / "autoscaler.yaml"
    file.write_text(FILE)
    return load(file, {})


@dataclass(frozen=True)
class Least:
    """Requests one replica, whatever it observes."""

    def evaluate(self, view: View) -> Recommendation:
        """Request one."""
        return Recommendation(1, Reason.BELOW if view.current > 1 else Reason.STEADY)


class World:
    """Prometheus and Spark on one port, each with good answers until a test corrupts one."""

    def __init__(self, configured: Config) -> None:
        self.configured = configured
        self.spark = FakeSpark()
        self.prometheus: dict[str, Any] = {
            "lag": vector(({"__name__": "lag"}, "10")),
            "timestamp(lag)": vector(({}, str(EVALUATED - 3))),
        }
        self.prometheus_answer: Any = None
        self.places = dict.fromkeys(("prometheus", "report", "master", "driver"), "")
        self.patience = timedelta(seconds=6)
        self.now = NOW

    def corrupt(self, endpoint: str, answer: Any) -> None:
        """Make one endpoint answer with unusable content."""
        if endpoint == "prometheus":
            self.prometheus_answer = answer
        else:
            self.spark.answers[ENDPOINTS[endpoint]] = answer

    async def query(self, request: web.Request) -> web.StreamResponse:
        answer = self.prometheus_answer
        if callable(answer):
            response: web.StreamResponse = await answer(request)
            return response
        if answer is not None:
            return web.Response(text=answer, content_type="text/html")
        return web.json_response(self.prometheus[request.query["query"]])

    @property
    def config(self) -> Config:
        """The configuration with the addresses of this test."""
        url, *rest = self.places.values()
        spark = dict(zip(("report", "master", "driver"), rest, strict=True))

        def moved(plugin: Any, **addresses: Any) -> Any:
            return replace(plugin, timeout=self.patience, **addresses)

        clusters = self.configured.clusters
        sources = self.configured.sources
        return replace(
            self.configured,
            sources={"prom": moved(sources["prom"], url=url), "job": moved(sources["job"], **spark)},
            clusters=clusters | {"spark": replace(clusters["spark"], engine=moved(clusters["spark"].engine, **spark))},  # type: ignore[operator]
        )

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = self.spark.answers["/v1/progress"]
        return report

    @property
    def run(self) -> dict[str, Any]:
        run: dict[str, Any] = self.report["queries"][0]
        return run


ENDPOINTS = {"report": "/v1/progress", "master": "/json/", "driver": f"{APP}/allexecutors"}


@pytest.fixture
async def world(configured: Config) -> AsyncIterator[World]:
    world = World(configured)
    app = web.Application()
    app.router.add_get("/api/v1/query", world.query)
    app.router.add_get("/{path:.*}", world.spark.handle)
    async with TestServer(app) as server:
        for place in world.places:
            world.places[place] = str(server.make_url("")).rstrip("/")
        yield world


class Watched:
    """One cluster of the file, observed and decided as in the daemon."""

    def __init__(self, observer: Observer, spec: Any) -> None:
        self._observer = observer
        self._spec = replace(spec, policies=(NamedPolicy("least", Least()),))
        self._state = ClusterState()

    async def tick(self) -> tuple[Observation, Decision, str]:
        """The observation, the decision, and all reasons for missing values."""
        seen = await self._observer.observe()
        self._state, decision = step(self._spec, self._state, seen)
        return seen, decision, "; ".join(f"{name}: {why}" for name, why in self._state.past[-1].missing.items())


@asynccontextmanager
async def watched(world: World, cluster: str) -> AsyncIterator[Watched]:
    config = world.config
    known = config.clusters[cluster]
    connections = Connections()
    try:
        edges = ClusterConnections(config, known, connections)
        await connections.tried()
        yield Watched(Observer(known, edges, lambda: world.now), known.spec)
    finally:
        await connections.close()


async def held(world: World, cluster: str, message: str) -> Observation:
    """Poll once, and check that the size is kept and the reason is reported."""
    async with watched(world, cluster) as one:
        seen, decision, missing = await one.tick()
    assert message in missing
    assert decision.proposed == 1, "the policy proposes less"
    assert decision.desired == decision.current == SIZE
    assert decision.reason is Reason.MISSING
    return seen


@pytest.mark.parametrize("cluster", ["prom", "spark"])
async def test_with_good_input_the_size_is_lowered(world: World, cluster: str) -> None:
    async with watched(world, cluster) as one:
        _, decision, missing = await one.tick()
    assert missing == ""
    assert (decision.current, decision.desired) == (SIZE, 1)


COMPRESSED = gzip.compress(b"[" * 100_000_000, 1)


async def compressed(_: web.Request) -> web.StreamResponse:
    # Compressed although the request does not accept it.
    return web.Response(body=COMPRESSED, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})


BAD = {
    "html": "<html><body>Welcome</body></html>",
    "empty": "",
    "cut": '{"now": 1, "status": "succ',
    "null": "null",
    "nested": "[" * 100_000,
    "other": '{"status": "success", "data": {"resultType": "vector", "result": [1, 2]}, "activeapps": 5, "queries": 5}',
    "list": "[1, 2, 3]",
    "100 MB": huge,
    "100 MB compressed": compressed,
    "slow": drip,
    "connection lost": broken,
    "500": refusing(500),
    "404": refusing(404),
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
@pytest.mark.parametrize("endpoint", ["prometheus", *ENDPOINTS])
async def test_an_unusable_answer_keeps_the_size(world: World, endpoint: str, answer: Any) -> None:
    world.corrupt(endpoint, answer)
    if answer is drip:
        world.patience = timedelta(seconds=0.4)
    cluster = "prom" if endpoint == "prometheus" else "spark"
    seen = await held(world, cluster, world.places[endpoint])
    missing = {"prometheus": "lag", "report": "lag", "master": "engine", "driver": "engine"}[endpoint]
    assert missing in seen.missing
    reason = seen.missing[missing].removeprefix("prometheus ")
    assert reason.startswith(world.places[endpoint]), "our own errors begin with the address, others with their type"


@pytest.mark.parametrize("endpoint", ["prometheus", *ENDPOINTS])
async def test_an_unreachable_server_keeps_the_size(world: World, endpoint: str, unused_tcp_port: int) -> None:
    world.places[endpoint] = f"http://127.0.0.1:{unused_tcp_port}"
    await held(world, "prom" if endpoint == "prometheus" else "spark", str(unused_tcp_port))


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"lag": vector(({}, "NaN"))}, "'NaN', expected a finite number"),
        ({"lag": vector(({}, "+Inf"))}, "'+Inf', expected a finite number"),
        ({"lag": vector(({}, "-Inf"))}, "'-Inf', expected a finite number"),
        ({"lag": vector(({}, "0x10"))}, "expected a finite number"),
        ({"lag": vector()}, "no sample among 0"),
        ({"lag": vector(({"a": "1"}, "1"), ({"a": "2"}, "2"))}, "2 samples, expected one"),
        ({"timestamp(lag)": vector()}, "time is unknown"),
        ({"timestamp(lag)": vector(({}, "NaN"))}, "time is unknown"),
        ({"timestamp(lag)": vector(({}, str(EVALUATED - 120)))}, "stale: 121 s old, 60 s allowed"),
        ({"timestamp(lag)": vector(({}, str(EVALUATED + 120)))}, "from the future: 119 s ahead"),
        ({"timestamp(lag)": vector(({}, "0"))}, "stale"),
        ({"timestamp(lag)": vector(({}, "1e18"))}, "expected unix seconds"),
        ({"lag": vector(({}, "-500"))}, "-500, expected 0 to below 2^63"),
        ({"lag": vector(({}, "1e308"))}, "1e+308, expected 0 to below 2^63"),
    ],
)
async def test_an_unusable_or_old_value_of_prometheus_keeps_the_size(
    world: World, answers: dict[str, Any], message: str
) -> None:
    world.prometheus |= answers
    await held(world, "prom", message)


def _last(world: World) -> dict[str, Any]:
    last: dict[str, Any] = world.run["progress"][-1]
    return last


def _shift(world: World, seconds: float) -> float:
    world.report["now"] += seconds
    return seconds


def _master(world: World) -> dict[str, Any]:
    master: dict[str, Any] = world.spark.answers["/json/"]
    return master


CORRUPTED: dict[str, tuple[Callable[[World], Any], str]] = {
    "now is not a number": (lambda w: w.report.update(now=float("nan")), "now: Input should be a finite number"),
    "now is infinite": (lambda w: w.report.update(now=float("inf")), "now: Input should be a finite number"),
    "the clock was set back": (lambda w: _shift(w, -3600), "the clock was set back"),
    "the clock was set forward": (
        lambda w: (_last(w).update(steady=100.0), w.report.update(steady=101.0), _shift(w, 3600)),
        "the clock of its driver was set by",
    ),
    "the query hangs": (lambda w: _shift(w, 3600), "it is stuck"),
    "the query ended": (lambda w: w.run.update(terminated=w.report["now"] - 5, exception="boom"), "boom"),
    "no query": (lambda w: w.report.update(queries=[]), "has not started a streaming query"),
    "no batch": (lambda w: w.run.update(progress=[]), "has not completed a batch"),
    "two queries": (
        lambda w: w.report["queries"].append(w.run | {"id": "b", "runId": "b", "name": "b"}),
        "several queries at a time",
    ),
    "the report of another job": (
        lambda w: w.report.update(application={"id": "app-9", "name": "other"}),
        "is of application 'other'",
    ),
    "the report of a former driver": (
        lambda w: _master(w)["activeapps"][0].update(id="app-new"),
        "the driver was restarted and the old one still answers",
    ),
    "two jobs of one name": (
        lambda w: _master(w)["activeapps"].append(_master(w)["activeapps"][0] | {"id": "app-2"}),
        "2 running applications named 'lab'",
    ),
    "offsets are missing": (
        lambda w: [batch["sources"][0].update(latest=None) for batch in w.run["progress"]],
        "does not report its newest offset",
    ),
    "offsets are no numbers": (lambda w: _last(w)["sources"][0].update(latest="9"), "Input should be a valid integer"),
    "rows are negative": (lambda w: _last(w).update(rows=-1), "greater than or equal to 0"),
}


@pytest.mark.parametrize(("corrupt", "message"), CORRUPTED.values(), ids=CORRUPTED)
async def test_an_impossible_or_old_report_of_spark_keeps_the_size(
    world: World, corrupt: Callable[[World], Any], message: str
) -> None:
    corrupt(world)
    await held(world, "spark", message)


@pytest.mark.parametrize(("cluster", "jump"), [("prom", HOUR), ("prom", -HOUR), ("spark", -HOUR)])
async def test_a_jump_of_the_daemons_clock_keeps_the_size(world: World, cluster: str, jump: timedelta) -> None:
    async with watched(world, cluster) as one:
        world.corrupt("prometheus", "<html>")
        world.corrupt("master", "<html>")
        _, decision, _ = await one.tick()
        assert decision.desired == SIZE
        world.corrupt("prometheus", None)
        world.corrupt("master", world.spark.sample("master"))
        world.now += jump
        _, decision, missing = await one.tick()
    assert decision.desired == SIZE
    said = f"{missing}; {decision.notes}"
    assert ("stale" if jump > timedelta(0) else "the clock went back by 3600 s") in said


async def test_after_the_bad_input_is_gone_the_size_is_lowered_again(world: World) -> None:
    async with watched(world, "prom") as one:
        world.corrupt("prometheus", "<html>")
        _, decision, _ = await one.tick()
        assert decision.desired == SIZE
        world.corrupt("prometheus", None)
        world.now += timedelta(seconds=15)
        _, decision, missing = await one.tick()
    assert missing == ""
    assert decision.desired == 1
