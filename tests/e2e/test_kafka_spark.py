"""A PySpark job that reads Kafka, scaled by the metrics of the brokers and of the job."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiokafka import AIOKafkaProducer

from autoscaler.clients.java_home import JavaNotFoundError, find_java
from tests.sources import kafka_broker
from tests.sources.kafka_broker import Broker, missing

pytestmark = pytest.mark.e2e

T = TypeVar("T")
TOPIC, PARTITIONS, GROUP = "orders", 6, "orders-job"
COST = 0.04  # seconds of waiting per record: 25 records/s per worker at best
LOW, HIGH = 8.0, 60.0  # records/s: one worker has spare time, three have enough to do
SURGE = 30.0  # seconds
WINDOW = 6  # seconds over which arrivals are averaged
PATIENCE = 300  # seconds, for steps whose duration depends on the machine
WORKER_TIMEOUT = 60

# The connector of Spark's own version if Maven Central has it; otherwise the newest that it had.
CONNECTOR = {
    "org.apache.spark:spark-sql-kafka-0-10_2.13": "4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13": "4.0.0",
    "org.apache.kafka:kafka-clients": "3.9.1",
    "org.apache.commons:commons-pool2": "2.12.1",
}

CONFIGURATION = """
daemon: {{directory: {state}, listen: "127.0.0.1:{listen}"}}
sources:
  kafka: {{type: kafka, bootstrap_servers: "{servers}"}}
  job: &job
    type: spark
    app: kafka-e2e
    report: http://127.0.0.1:{report}
    master: http://127.0.0.1:{master_ui}
    driver: http://127.0.0.1:{driver_ui}
    window: 10s
clusters:
  orders:
    interval: 2s
    timeout: 1500ms
    target:
      type: local
      kind: spark-worker
      directory: {pool}
      master: spark://127.0.0.1:{master}
      master_ui: http://127.0.0.1:{master_ui}
      cores: 1
      memory: 1g
      worker_timeout: {worker_timeout}s
    engine: *job
    slots_per_replica: 1
    min: 1
    max: 4
    metrics:
      arrivals: {{source: kafka, metric: arrivals, topics: [{topic}], window: {window}s}}
      lag: {{source: kafka, metric: lag, group: {group}, topics: [{topic}]}}
      throughput: {{source: job, metric: throughput}}
      saturation: {{source: job, metric: saturation}}
    policies:
      drain: {{type: backlog-drain, drain_time: 60s, restart: 15s, stable_time: 3s, stops: false}}
    up: {{window: 0s}}
    down: {{window: 12s, cooldown: 5s}}
    settle: {{ready: 1m, registered: 1m, absorbed: 1m, running: 1m, caught_up: 3m, backlog_time: 5s}}
    capacity: {{per_replica: {per_worker:g}, sustained: 12s, warmup: 20s}}
    max_age: 30s
    lookback: 3m
"""


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            missing(f"{package} is not installed (extra spark)")
    try:
        return find_java(tmp_path_factory.mktemp("java"))
    except JavaNotFoundError as error:
        missing(str(error))
        raise


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    kafka_broker.java()
    with kafka_broker.running(tmp_path / "kafka") as one:
        yield one


def get(url: str) -> Any:
    """Return the JSON at an address, or None while nothing answers there."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - loopback addresses of our own
            return json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return None


@dataclass
class Producer:
    """Appends records at a variable rate, and counts them by partition and over time."""

    client: AIOKafkaProducer
    rate: float = LOW
    sent: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    history: list[tuple[float, int]] = field(default_factory=list)  # time, and records sent until then

    async def run(self) -> None:
        due, last, turn = 0.0, time.monotonic(), 0
        while True:
            await asyncio.sleep(0.1)
            now = time.monotonic()
            due += self.rate * (now - last)
            last = now
            while due >= 1:
                partition, turn, due = turn % PARTITIONS, turn + 1, due - 1
                await self.client.send(TOPIC, str(turn).encode(), partition=partition)
                self.sent[partition] += 1
            self.history.append((time.time(), turn))

    def truth(self, at: float) -> float:
        """Records per second that were sent in the window before a time; not `rate` while this process stalled."""
        before, until = (max(sent for when, sent in self.history if when <= end) for end in (at - WINDOW, at))
        return (until - before) / WINDOW


@asynccontextmanager
async def producing(address: str) -> AsyncIterator[Producer]:
    async with AIOKafkaProducer(bootstrap_servers=address) as client:
        producer = Producer(client)
        task = asyncio.create_task(producer.run())
        try:
            yield producer
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class World:
    """A Spark cluster, the job and the daemon."""

    def __init__(self, directory: Path, java: Path, broker: Broker) -> None:
        # The demo can start these; it is imported here since it needs pyspark.
        from autoscaler.demo.processes import QUICK_START, Processes, free_port  # noqa: PLC0415
        from autoscaler.demo.spark.cluster import spark_variables  # noqa: PLC0415
        from autoscaler.targets.local.workers import spark_home  # noqa: PLC0415

        self.directory, self.broker = directory, broker
        self.processes = Processes(directory / "logs", directory / "pool")
        names = ("listen", "master", "master_ui", "driver_ui", "report")
        self.ports = {name: free_port() for name in names}
        self._home, self._options = spark_home(), QUICK_START
        self.environment = spark_variables(java)

    def start(self) -> None:
        """Start all of it."""
        place = (
            "--host",
            "127.0.0.1",
            "--port",
            str(self.ports["master"]),
            "--webui-port",
            str(self.ports["master_ui"]),
        )
        program = (str(self._home / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master")
        self.processes.start("master", [*program, *place], self.environment)
        jars = kafka_broker.jars("spark-kafka-4.2.0", CONNECTOR, alone=True)
        conf = {
            "spark.jars": ",".join(map(str, sorted(jars.glob("*.jar")))),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": self._options,
            "spark.executor.extraJavaOptions": self._options,
            "spark.executor.cores": "1",
            "spark.executor.memory": "640m",
            "spark.ui.port": str(self.ports["driver_ui"]),
            "spark.ui.showConsoleProgress": "false",
            "spark.worker.timeout": str(WORKER_TIMEOUT),
            "spark.decommission.enabled": "true",
            "spark.storage.decommission.enabled": "false",
            "spark.locality.wait": "0s",
            "spark.local.dir": str(self.directory / "scratch"),
        }
        settings = {
            "name": "kafka-e2e",
            "master": f"spark://127.0.0.1:{self.ports['master']}",
            "report_port": self.ports["report"],
            "conf": conf,
            "servers": self.broker.address,
            "topic": TOPIC,
            "group": GROUP,
            "partitions": PARTITIONS,
            "most": 300,
            "cost": COST,
            "trigger": "2 seconds",
            "sink": str(self.directory / "sink"),
            "checkpoint": str(self.directory / "checkpoint"),
            "ready": str(self.directory / "ready"),
        }
        (self.directory / "job.json").write_text(json.dumps(settings))
        configuration = CONFIGURATION.format(
            state=json.dumps(str(self.directory / "state")),
            pool=json.dumps(str(self.directory / "pool")),
            servers=self.broker.address,
            topic=TOPIC,
            group=GROUP,
            window=WINDOW,
            worker_timeout=WORKER_TIMEOUT,
            per_worker=1 / COST,
            **self.ports,
        )
        (self.directory / "autoscaler.yaml").write_text(configuration)
        job = Path(__file__).with_name("kafka_job.py")
        self.processes.start("job", [sys.executable, str(job), str(self.directory / "job.json")], self.environment)
        run = [sys.executable, "-m", "autoscaler", "run", str(self.directory / "autoscaler.yaml")]
        self.processes.start("daemon", run, self.environment)

    def cluster(self) -> dict[str, Any]:
        """The API's document of the cluster."""
        found: dict[str, Any] = get(f"http://127.0.0.1:{self.ports['listen']}/api/v1/clusters/orders") or {}
        return found

    def reading(self, name: str) -> dict[str, Any] | None:
        """The last reading of a metric in the daemon, or None if it was missing."""
        found: dict[str, Any] | None = ((self.cluster().get("observation") or {}).get("metrics") or {}).get(name)
        return found

    def metric(self, name: str) -> float | None:
        """Its value."""
        reading = self.reading(name)
        return None if reading is None else float(reading["value"])

    def decisions(self) -> list[dict[str, Any]]:
        """All decisions, oldest first."""
        address = f"http://127.0.0.1:{self.ports['listen']}/api/v1/clusters/orders/decisions?limit=2000"
        return [each["decision"] for each in reversed((get(address) or {"decisions": []})["decisions"])]

    def done(self) -> int:
        """Records in committed batches."""
        report = get(f"http://127.0.0.1:{self.ports['report']}/v1/progress") or {"queries": []}
        progress = report["queries"][-1]["progress"] if report["queries"] else []
        return int(progress[-1]["sources"][0]["end"] or 0) if progress else 0

    async def until(self, wanted: Callable[[], T | None], what: str, seconds: float) -> T:
        """Wait for something, while everything runs."""
        deadline = time.monotonic() + seconds
        while not (found := await asyncio.to_thread(wanted)):
            self.processes.check()
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}; {json.dumps(self.cluster())[:3000]}"
            await asyncio.sleep(0.5)
        return found


async def test_a_job_on_kafka_is_scaled_up_and_down_and_loses_nothing(
    tmp_path: Path, java: Path, broker: Broker
) -> None:
    from autoscaler.demo.sink import account, read_sink  # noqa: PLC0415 - it needs pyarrow

    await kafka_broker.make_topic(broker.address, TOPIC, PARTITIONS)
    world = World(tmp_path, java, broker)
    try:
        world.start()
        async with producing(broker.address) as producer:
            await world.until((tmp_path / "ready").exists, "the job runs", PATIENCE)
            await world.until(
                lambda: (world.metric("lag") or 1e9) < 10 * LOW, "what came before it is worked off", PATIENCE
            )
            await world.until(lambda: world.metric("saturation") is not None, "its saturation is known", 60)
            await world.until(lambda: world.cluster().get("desired") == 1, "one worker", 60)
            quiet = await world.until(lambda: world.reading("arrivals"), "arrivals are known", 30)

            producer.rate = HIGH
            risen = time.monotonic()
            await world.until(lambda: (world.metric("arrivals") or 0) > HIGH / 2, "the surge is seen", 30)
            await world.until(lambda: (world.cluster().get("desired") or 0) >= 3, "scaled up", 60)
            await world.until(lambda: (world.cluster().get("ready") or 0) >= 3, "three workers are up", 60)
            await asyncio.sleep(max(0.0, risen + SURGE - time.monotonic()))
            busy = await world.until(lambda: world.reading("arrivals"), "arrivals are known", 30)

            producer.rate = LOW
            await world.until(lambda: world.cluster().get("desired") == 1, "scaled down", 150)
            await world.until(lambda: (world.metric("lag") or 1e9) < 10 * LOW, "the backlog is gone", 30)
            lag = await world.until(lambda: world.reading("lag"), "lag is known", 30)
        await world.until(lambda: world.done() == sum(producer.sent), "every record is processed", 60)
        await world.until(lambda: world.metric("lag") == 0.0, "nothing waits", 30)
        decisions = await world.until(world.decisions, "its decisions are returned", 30)
        await asyncio.to_thread(world.processes.stop, "job", 60)
    finally:
        await asyncio.to_thread(world.processes.clear)

    arrived = read_sink(tmp_path / "sink")
    exact = account(producer.sent, [(arrival.partition, arrival.offset) for arrival in arrived])
    assert exact.exact, exact
    assert len({arrival.worker for arrival in arrived}) >= 3
    assert [reading["partitions"] for reading in (lag, quiet, busy)] == [PARTITIONS] * 3
    for reading in (quiet, busy):
        true = producer.truth(datetime.fromisoformat(reading["at"]).timestamp())
        assert reading["value"] == pytest.approx(true, rel=0.25), reading
    sizes = [decision["desired"] for decision in decisions]
    assert sizes[-1] == 1
    assert max(sizes) >= 3
