"""Real Kafka brokers (KRaft) on loopback, from Maven Central: `running()` starts one, `cluster()` two.

The jars are kept outside the repository, in ~/.cache/reactive-autoscaler, and Maven downloads them once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.structs import OffsetAndMetadata

from autoscaler.demo.processes import free_port
from tests.sources.prometheus_server import Authority

VERSION = "4.1.0"
JARS = {
    "org.apache.kafka:kafka_2.13": VERSION,
    "org.apache.kafka:kafka-tools": VERSION,
    "org.slf4j:slf4j-simple": "1.7.36",
}
JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
START_WITHIN = 90.0
LOST_AFTER = 3.0  # seconds without a heartbeat after which other brokers take over its partitions
USERS = {"ann": "ann-secret", "ben": "ben-secret"}
"""Users of the listeners with SASL and their passwords: ann may describe `allowed` and its group, ben nothing."""

PROTOCOLS = {
    "CONTROLLER": "PLAINTEXT",
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "SASL": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
}

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>autoscaler</groupId><artifactId>tests</artifactId><version>1</version>
<dependencies>{}</dependencies>
</project>
"""


def missing(what: str) -> None:
    """Skip the test, or fail if everything has to be installed."""
    if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
        pytest.fail(what)
    pytest.skip(what)


def jars(name: str, wanted: Mapping[str, str], *, alone: bool = False) -> Path:
    """A directory with jars (`group:artifact` -> version) and, unless `alone`, their dependencies; downloaded once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reactive-autoscaler"
    directory = cache / name
    if directory.exists():
        return directory
    if shutil.which("mvn") is None:
        missing("no Maven to fetch Kafka with (Debian: apt-get install maven)")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists():
            return directory
        work = cache / f"{name}.part"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        without = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
        listed = "".join(
            "<dependency><groupId>{}</groupId><artifactId>{}</artifactId>".format(*key.split(":"))
            + f"<version>{version}</version>{without if alone else ''}</dependency>"
            for key, version in wanted.items()
        )
        (work / "pom.xml").write_text(POM.format(listed))
        command = [
            "mvn",
            "-q",
            "-B",
            # Not ~/.m2: Spark looks there first, and fails if it finds a pom without its jar.
            f"-Dmaven.repo.local={cache / 'maven'}",
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            "-DoutputDirectory=jars",
        ]
        answer = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=600, check=False)
        if answer.returncode != 0:
            missing(f"Maven cannot fetch {name}: {answer.stdout[-2000:]}{answer.stderr[-500:]}")
        (work / "jars").rename(directory)
        shutil.rmtree(work)
    return directory


def java() -> str:
    """The Java that runs the brokers."""
    path = shutil.which("java")
    if path is None:
        missing("no java on the PATH (Debian: apt-get install openjdk-17-jre-headless)")
    assert path is not None
    return path


@dataclass
class Broker:
    """A broker process.

    Attributes:
        directory: its data on disk, and its log.
        ports: listener -> port.
        properties: its configuration.
    """

    directory: Path
    ports: dict[str, int]
    properties: dict[str, str]
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def address(self) -> str:
        return self.at("PLAINTEXT")

    def at(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def tool(self, *words: str, seconds: float = 60) -> str:
        """Run a class of Kafka's with these arguments."""
        command = [java(), *JVM, "-cp", f"{jars(f'kafka-{VERSION}', JARS)}/*", *words]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    def format(self) -> None:
        """Format its disk."""
        self.directory.mkdir(parents=True)
        file = self.directory / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.properties.items()))
        words = ["kafka.tools.StorageTool", "format", "-t", "cmVhY3RpdmVhdXRvc2NhbA", "-c", str(file)]
        for name, password in USERS.items() if "SASL" in self.ports else ():
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                words += ["--add-scram", f"{mechanism}=[name={name},password={password}]"]
        self.tool(*words)

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [java(), *JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command += [
            "-cp",
            f"{jars(f'kafka-{VERSION}', JARS)}/*",
            "kafka.Kafka",
            str(self.directory / "server.properties"),
        ]
        log = self.directory / "log"
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        deadline = time.monotonic() + START_WITHIN
        while not self.listens():
            assert self.process.poll() is None, log.read_text()[-5000:]
            assert time.monotonic() < deadline, f"not up in {START_WITHIN:g} s: {log.read_text()[-5000:]}"
            time.sleep(0.05)

    def listens(self) -> bool:
        """Whether its listener for clients is open."""
        with closing(socket.socket()) as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.ports["PLAINTEXT"])) == 0

    def signal(self, number: signal.Signals) -> None:
        """Suspend, resume or kill it."""
        self.process.send_signal(number)
        if number is signal.SIGKILL:
            self.process.wait(30)

    def stop(self) -> None:
        """Stop it in any case."""
        if self.process.poll() is None:
            self.process.kill()  # its disk is not needed any more
        self.process.wait(30)


def broker(
    directory: Path,
    node: int,
    controller: int,
    *,
    copies: int = 1,
    secure: Authority | None = None,
    lost_after: float = LOST_AFTER,
) -> Broker:
    """A broker that is not started yet; node 1, at that port, is the controller of all."""
    names = ["PLAINTEXT", *(("SSL", "SASL", "SASL_SSL") if secure else ())]
    ports = {name: free_port() for name in names}
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    own = f",CONTROLLER://127.0.0.1:{controller}" if node == 1 else ""
    properties = {
        "process.roles": "broker,controller" if node == 1 else "broker",
        "node.id": str(node),
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": listeners + own,
        "advertised.listeners": listeners,
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
        "log.dirs": str(directory / f"data-{node}"),
        "broker.session.timeout.ms": f"{lost_after * 1000:.0f}",
        "broker.heartbeat.interval.ms": "500",
        "offsets.topic.replication.factor": str(copies),
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    if secure is not None:
        store = directory / "server.pem"
        directory.mkdir(parents=True, exist_ok=True)
        store.write_bytes(secure.key.read_bytes() + secure.certificate.read_bytes())
        plain = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        login = "org.apache.kafka.common.security"
        for listener in ("sasl", "sasl_ssl"):
            where = f"listener.name.{listener}"
            properties |= {
                f"{where}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
                f"{where}.plain.sasl.jaas.config": f"{login}.plain.PlainLoginModule required {plain};",
                f"{where}.scram-sha-256.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
                f"{where}.scram-sha-512.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
                f"{where}.oauthbearer.sasl.jaas.config": f"{login}.oauthbearer.OAuthBearerLoginModule required "
                'unsecuredLoginStringClaim_sub="broker";',
            }
        properties |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(secure.ca),
            "ssl.client.auth": "requested",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
    return Broker(directory / f"node-{node}", ports, properties)


@contextmanager
def running(directory: Path, *, secure: Authority | None = None) -> Iterator[Broker]:
    """One broker; with an authority it also has listeners with TLS and SASL, and checks permissions."""
    one = broker(directory, 1, free_port(), secure=secure)
    one.format()
    one.start()
    try:
        yield one
    finally:
        one.stop()


@contextmanager
def cluster(directory: Path, *, lost_after: float = LOST_AFTER) -> Iterator[tuple[Broker, Broker]]:
    """Two brokers of one cluster; the first is its controller."""
    controller = free_port()

    def one(node: int) -> Broker:
        return broker(directory, node, controller, copies=2, lost_after=lost_after)

    both = one(1), one(2)
    started: list[Broker] = []
    try:
        for each in both:
            each.format()
            each.start()
            started.append(each)
        yield both
    finally:
        for each in reversed(started):
            each.stop()


async def make_topic(
    address: str, name: str, partitions: int = 1, assigned: Mapping[int, Sequence[int]] | None = None
) -> None:
    """Create a topic, optionally with its partitions on these nodes."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        topic = NewTopic(name, -1, -1, dict(assigned)) if assigned else NewTopic(name, partitions, 1)
        answer = await admin.create_topics([topic])
        assert [error[1] for error in answer.topic_errors] == [0], answer
    finally:
        await admin.close()


async def delete_topic(address: str, name: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        await admin.delete_topics([name])
    finally:
        await admin.close()


async def grow_topic(address: str, name: str, partitions: int) -> None:
    """Raise the number of partitions of a topic."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        await admin.create_partitions({name: NewPartitions(partitions)})
    finally:
        await admin.close()


async def topics(address: str) -> set[str]:
    """All topics there are."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        return set(await admin.list_topics())
    finally:
        await admin.close()


async def produce(address: str, topic: str, counts: Mapping[int, int]) -> None:
    """Append so many records to each partition."""
    async with AIOKafkaProducer(bootstrap_servers=address) as producer:
        for partition, count in counts.items():
            for number in range(count):
                await producer.send(topic, str(number).encode(), partition=partition)
        await producer.flush()


async def commit(address: str, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Commit offsets like a consumer of the group."""
    async with AIOKafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in offsets])
        await consumer.commit({TopicPartition(topic, p): OffsetAndMetadata(o, "") for p, o in offsets.items()})


async def delete_records(address: str, topic: str, before: Mapping[int, int]) -> None:
    """Delete the records before these offsets, like retention does."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic, p): RecordsToDelete(offset) for p, offset in before.items()})
    finally:
        await admin.close()
