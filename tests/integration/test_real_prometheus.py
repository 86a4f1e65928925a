"""The source and the discovery `prometheus` against a real Prometheus server that scrapes real targets."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
import requests
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, start_http_server
from prometheus_client.core import GaugeMetricFamily

from autoscaler.core.model import Reading
from autoscaler.demo.processes import free_port
from autoscaler.discoveries import prometheus as discoveries
from autoscaler.ports import AnswerError, EdgeError, Member, RefusedError, Secret
from autoscaler.sources.prometheus import Many, Prometheus, Query
from autoscaler.testing.contracts import LocalShared
from tests.sources.prometheus_server import Authority, read

CLUSTERS = 300
OLD = 60  # the age in seconds of the sample with its own time stamp
SCRAPE = 1.0  # seconds, also the scrape timeout: a slower target has no values until the next time
PASSWORD = "hunter2"
HASHED = "$2b$04$abcdefghijklmnopqrstuuV3duMsC0HpUex6N9qapiuOHHWkwRXVm"  # its bcrypt hash, at the minimum cost


def now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


def binary() -> str:
    path = shutil.which("prometheus")
    if path is None:
        missing = "no prometheus on the PATH (Debian: apt-get install prometheus)"
        if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    return path


def poll(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


@contextmanager
def running(directory: Path, configuration: str, web_configuration: str = "") -> Iterator[str]:
    """A Prometheus server, with the data in the directory if there is any; yields its address."""
    directory.mkdir(exist_ok=True)
    (directory / "prometheus.yml").write_text(configuration)
    (directory / "web.yml").write_text(web_configuration)
    address = f"127.0.0.1:{free_port()}"
    url = f"{'https' if web_configuration else 'http'}://{address}"
    command = [binary(), f"--web.listen-address={address}", "--log.level=warn"]
    command += [f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
    command += [f"--web.config.file={directory}/web.yml"]
    log = directory / "log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:

        def ready() -> bool:
            assert process.poll() is None, log.read_text()
            with requests.Session() as session:
                session.trust_env = False
                try:
                    answer = session.get(f"{url}/-/ready", timeout=10, auth=("ann", PASSWORD), verify=str(ca))
                except (requests.exceptions.ConnectionError, requests.exceptions.Timeout):
                    return False
            return answer.ok

        ca = directory.parent / "ca.pem"
        try:
            poll(ready, "Prometheus is ready")
            yield url
        finally:
            process.terminate()
            process.wait(60)


class Stamped:
    """A collector whose sample has its own time, like one of a push gateway or a bridge."""

    def __init__(self) -> None:
        self.at = round(time.time() - OLD, 3)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily("bridged_lag", "Records waiting, as of some time ago.", labels=["cluster"])
        family.add_metric(["orders"], 42, timestamp=self.at)
        yield family


@dataclass
class World:
    """A Prometheus server and its targets: one with many clusters, one that can be stopped."""

    url: str
    lag: Gauge
    stamped: Stamped
    stop: Callable[[], None]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    binary()
    lasting, mortal = CollectorRegistry(), CollectorRegistry()
    lag = Gauge("consumer_lag", "Records waiting.", ["cluster", "partition"], registry=lasting)
    for number in range(CLUSTERS):
        lag.labels(f"c{number}", "0").set(number)
    busy = Gauge("busy_ratio", "Busy share.", ["pod"], registry=lasting)
    for number, value in enumerate((0.25, 0.75, 0.5)):
        busy.labels(f"worker-{number}").set(value)
    stamped = Stamped()
    lasting.register(stamped)
    Gauge("mortal_lag", "Records waiting.", registry=mortal).set(5)
    servers = [start_http_server(0, "127.0.0.1", registry) for registry in (lasting, mortal)]
    targets = [f"127.0.0.1:{server.server_address[1]}" for server, _ in servers]
    configuration = f"""
global: {{scrape_interval: {SCRAPE * 1000:.0f}ms, scrape_timeout: {SCRAPE * 1000:.0f}ms}}
scrape_configs:
- {{job_name: lasting, static_configs: [{{targets: ["{targets[0]}"]}}]}}
- {{job_name: mortal, static_configs: [{{targets: ["{targets[1]}"]}}]}}
"""

    def end(number: int) -> None:
        server, thread = servers[number]
        server.shutdown()
        server.server_close()
        thread.join()

    stopped = []

    def stop() -> None:
        end(1)
        stopped.append(1)

    with running(tmp_path_factory.mktemp("prometheus") / "run", configuration) as url:

        def scraped() -> bool:
            with requests.Session() as session:
                session.trust_env = False
                answer = session.get(f"{url}/api/v1/query", params={"query": "sum(up)"}, timeout=10).json()
            return [sample["value"][1] for sample in answer["data"]["result"]] == ["2"]

        poll(scraped, "both targets are scraped")
        yield World(url, lag, stamped, stop)
    end(0)
    if not stopped:
        end(1)


@asynccontextmanager
async def proxy(url: str, token: str) -> AsyncIterator[str]:
    """A proxy that requires a bearer token, like those of clouds in front of Prometheus."""

    async def forward(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {token}":
            return web.Response(status=401, text="token wrong or missing")
        async with session.get(f"{url}{request.path_qs}") as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")

    application = web.Application()
    application.router.add_get("/{path:.*}", forward)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    async with aiohttp.ClientSession() as session:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def until(plugin: Prometheus, query: Query, wanted: Callable[[Reading | EdgeError], bool]) -> None:
    """Read until the result is the expected one."""
    async with asyncio.timeout(60), LocalShared() as shared, plugin.connect(shared) as source:
        while True:
            try:
                outcome: Reading | EdgeError = await source.collect(query, now())
            except EdgeError as error:
                outcome = error
            if wanted(outcome):
                return
            await asyncio.sleep(0.05)


async def test_a_value_follows_the_target(world: World) -> None:
    query = Query(query='consumer_lag{cluster="c7"}')
    plugin = Prometheus(url=world.url, fresh=timedelta(0))
    reading = await read(plugin, query, now())
    assert reading.value == 7
    assert timedelta(seconds=-1) < now() - reading.at < timedelta(seconds=5)
    world.lag.labels("c7", "0").set(1234)
    await until(plugin, query, lambda outcome: isinstance(outcome, Reading) and outcome.value == 1234)
    world.lag.labels("c7", "0").set(7)
    await until(plugin, query, lambda outcome: isinstance(outcome, Reading) and outcome.value == 7)


@pytest.mark.parametrize("promql", ["consumer_lag", "sum by (cluster) (consumer_lag)"])
async def test_one_query_serves_many_clusters(world: World, promql: str) -> None:
    async with LocalShared() as shared, Prometheus(url=world.url).connect(shared) as source:
        queries = [Query(query=promql, match={"cluster": f"c{number}"}) for number in range(CLUSTERS)]
        readings = await asyncio.gather(*(source.collect(query, now()) for query in queries))
        with pytest.raises(AnswerError, match=f"no sample for cluster='c{CLUSTERS}' among {CLUSTERS}"):
            await source.collect(Query(query=promql, match={"cluster": f"c{CLUSTERS}"}), now())
    assert [reading.value for reading in readings] == list(range(CLUSTERS))
    assert all(abs(now() - reading.at) < timedelta(seconds=5) for reading in readings)


async def members(world: World, query: str, label: str) -> list[Member]:
    plugin = discoveries.Prometheus(url=world.url, query=query, label=label)
    async with LocalShared() as shared, plugin.connect(shared) as discovery:
        return list(await discovery.members())


async def test_the_values_of_a_label_are_members(world: World) -> None:
    found = await members(world, query='consumer_lag{cluster=~"c[12]"}', label="cluster")
    assert [member.id for member in found] == ["c1", "c2"]
    labels = found[0].values["labels"]
    assert isinstance(labels, dict)
    instance = labels.pop("instance")
    assert instance.startswith("127.0.0.1:")
    assert labels == {"cluster": "c1", "partition": "0", "job": "lasting"}
    assert len(await members(world, query="sum by (cluster) (consumer_lag)", label="cluster")) == CLUSTERS
    assert len(await members(world, query="max_over_time(consumer_lag[1h])", label="cluster")) == CLUSTERS


async def test_an_unusable_query_for_members_is_an_error_with_the_servers_message(world: World) -> None:
    with pytest.raises(RefusedError, match=r"400 Bad Request: .*parse error"):
        await members(world, query="consumer_lag{", label="cluster")
    with pytest.raises(AnswerError, match=r"expected an instant vector of Prometheus's API, but data.resultType"):
        await members(world, query="scalar(sum(consumer_lag))", label="cluster")
    with pytest.raises(AnswerError, match=r"a sample has no label 'cluster', but __name__, instance, job, pod"):
        await members(world, query="busy_ratio", label="cluster")


async def test_a_query_returns_one_number_per_replica(world: World) -> None:
    reading = await read(Prometheus(url=world.url), Query(query="busy_ratio", many=Many.EACH), now())
    assert reading.value == (0.25, 0.75, 0.5)
    reading = await read(Prometheus(url=world.url), Query(query="busy_ratio", many=Many.MAX), now())
    assert reading.value == 0.75


async def test_a_sum_can_require_all_its_series(world: World) -> None:
    promql = "sum(busy_ratio) and count(busy_ratio) == "
    assert (await read(Prometheus(url=world.url), promql + "3", now())).value == 1.5
    with pytest.raises(AnswerError, match="no sample"):
        await read(Prometheus(url=world.url), promql + "4", now())


async def test_a_sample_with_its_own_time_has_that_age(world: World) -> None:
    reading = await read(Prometheus(url=world.url), "bridged_lag", now())
    assert reading.value == 42
    assert reading.at.timestamp() == pytest.approx(world.stamped.at, abs=0.001)


async def test_an_aggregate_has_the_age_of_its_age_expression(world: World) -> None:
    promql, labels = "sum by (cluster) (bridged_lag)", {"cluster": "orders"}
    undated = await read(Prometheus(url=world.url), Query(query=promql, match=labels), now())
    assert abs(now() - undated.at) < timedelta(seconds=5)  # all that Prometheus reports: documented
    age = "min by (cluster) (timestamp(bridged_lag))"
    dated = await read(Prometheus(url=world.url), Query(query=promql, match=labels, age=age), now())
    assert dated.at.timestamp() == pytest.approx(world.stamped.at, abs=0.001)


@pytest.mark.parametrize(
    ("promql", "message"),
    [
        ("sum(", "HTTP 400: .*parse error"),
        ("no_such_metric", "no sample"),
        ("consumer_lag[1m]", "result is a 'matrix'"),
        ('"text"', "result is a 'string'"),
        ("1 / 0", r"'\+Inf', expected a finite number"),
        ("scalar(no_such_metric)", "'NaN', expected a finite number"),
        ("up", "2 samples"),
        ("up * on() up", "HTTP 422: .*found duplicate series"),
    ],
)
async def test_a_query_without_a_number_is_an_error_with_the_servers_message(
    world: World, promql: str, message: str
) -> None:
    with pytest.raises(AnswerError, match=message):
        await read(Prometheus(url=world.url), promql, now())


async def test_a_bearer_token_is_accepted_by_a_proxy(world: World) -> None:
    async with proxy(world.url, "s3cret") as url:
        assert (await read(Prometheus(url=url, token=Secret("s3cret")), "sum(consumer_lag)", now())).value == 44850
        with pytest.raises(RefusedError, match="HTTP 401: 'token wrong or missing'"):
            await read(Prometheus(url=url, token=Secret("guess")), "sum(consumer_lag)", now())


async def test_a_metric_disappears_with_its_target_and_is_never_zero(world: World) -> None:
    plugin = Prometheus(url=world.url, fresh=timedelta(0))
    for promql in ("mortal_lag", "sum(mortal_lag)"):
        assert (await read(plugin, promql, now())).value == 5
    world.stop()
    for promql in ("mortal_lag", "sum(mortal_lag)"):
        await until(plugin, Query(query=promql), lambda outcome: isinstance(outcome, AnswerError))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    binary()
    directory = tmp_path_factory.mktemp("guarded")
    authority = Authority.make(directory)
    web_configuration = f"""
tls_server_config: {{cert_file: {authority.certificate}, key_file: {authority.key}}}
basic_auth_users: {{ann: "{HASHED}"}}
"""
    with running(directory / "run", "global: {}", web_configuration) as url:
        yield url, authority.ca


class TestGuarded:
    """With TLS and basic authentication by Prometheus's own `--web.config.file`."""

    async def test_the_right_password_over_trusted_tls_gives_values(self, guarded: tuple[str, Path]) -> None:
        url, ca = guarded
        plugin = Prometheus(url=url, username="ann", password=Secret(PASSWORD), ca_file=ca)
        assert (await read(plugin, "vector(3)", now())).value == 3

    async def test_a_wrong_password_is_refused(self, guarded: tuple[str, Path]) -> None:
        url, ca = guarded
        with pytest.raises(RefusedError, match="HTTP 401"):
            await read(Prometheus(url=url, username="ann", password=Secret("guess"), ca_file=ca), "vector(3)")
        with pytest.raises(RefusedError, match="check username and password, or token"):
            await read(Prometheus(url=url, ca_file=ca), "vector(3)")

    async def test_another_authority_is_not_trusted(self, guarded: tuple[str, Path]) -> None:
        url, _ = guarded
        with pytest.raises(AnswerError, match="CERTIFICATE_VERIFY_FAILED"):
            await read(Prometheus(url=url, username="ann", password=Secret(PASSWORD)), "vector(3)")

    async def test_plain_http_to_the_tls_port_is_an_error(self, guarded: tuple[str, Path]) -> None:
        url, _ = guarded
        with pytest.raises(AnswerError, match="HTTP 400: 'Client sent an HTTP request to an HTTPS server"):
            await read(Prometheus(url=url.replace("https", "http")), "vector(3)")
