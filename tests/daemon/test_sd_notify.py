"""The messages that a service manager gets from the daemon, on real datagram sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from autoscaler.core.model import ClusterState
from autoscaler.daemon.connections import CONNECT_TIMEOUT
from autoscaler.daemon.controller import Controller
from autoscaler.daemon.discovery import FleetStatus
from autoscaler.daemon.fleet import Fleet
from autoscaler.daemon.sd_notify import POLL_INTERVAL, SEND_TIMEOUT, Notifier
from autoscaler.daemon.status import DaemonStatus
from autoscaler.ports import Record, RefusedError
from autoscaler.testing import virtual_time
from tests.daemon.fake_stores import FakeStore
from tests.plugins.distributions import write_distribution

from .conftest import World

Message = dict[str, str]

PATIENCE = 60.0
"""Seconds that a slow machine may take for something that normally takes a moment."""


class Manager:
    """A service manager's end of the socket.

    Attributes:
        heard: every message so far, oldest first.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.heard: list[Message] = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.setblocking(False)
        self._taken = 0

    def read(self) -> None:
        """Read the waiting messages from the socket."""
        with contextlib.suppress(BlockingIOError):
            while True:
                text = self.socket.recv(4096).decode()
                self.heard.append(dict(line.split("=", 1) for line in text.split("\n")))

    def hear(self) -> list[Message]:
        """All messages since the last call."""
        self.read()
        new = self.heard[self._taken :]
        self._taken = len(self.heard)
        return new

    def wait(self, wanted: Callable[[Message], object]) -> Message:
        """The first message of this kind since the last call."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self.read()
            while self._taken < len(self.heard):
                self._taken += 1
                if wanted(self.heard[self._taken - 1]):
                    return self.heard[self._taken - 1]
            time.sleep(0.01)
        raise AssertionError(f"not heard; but {self.heard[-20:]}")

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def address() -> Iterator[str]:
    # Not tmp_path: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory() as directory:
        yield f"{directory}/notify"


@pytest.fixture
def manager(address: str) -> Iterator[Manager]:
    opened = Manager(address)
    yield opened
    opened.close()


# ---- the environment


@pytest.mark.parametrize("process", [None, str(os.getpid())], ids=["whoever it is for", "for us"])
def test_the_environment_has_the_socket_and_the_watchdog_interval_and_children_do_not_inherit_them(
    process: str | None,
) -> None:
    environ = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "3000000", "PATH": "/bin"}
    if process is not None:
        environ["WATCHDOG_PID"] = process
    notifier = Notifier.from_environment(environ)
    assert (notifier.address, notifier.watchdog) == ("/run/notify", 3.0)
    assert environ == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("environ", "address", "warning"),
    [
        ({}, "", ""),
        ({"WATCHDOG_USEC": "3000000"}, "", ""),
        ({"NOTIFY_SOCKET": "@name", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, "@name", ""),
        ({"NOTIFY_SOCKET": "@name", "WATCHDOG_USEC": "soon"}, "@name", "WATCHDOG_USEC is not used"),
        ({"NOTIFY_SOCKET": "@name", "WATCHDOG_USEC": "0"}, "@name", "WATCHDOG_USEC is not used"),
        ({"NOTIFY_SOCKET": "vsock:2:1", "WATCHDOG_USEC": "3000000"}, "", "NOTIFY_SOCKET is not used"),
    ],
)
def test_there_is_no_watchdog_without_a_manager_or_when_another_process_is_meant(
    environ: dict[str, str], address: str, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier.from_environment(environ)
    assert (notifier.address, notifier.watchdog) == (address or None, None)
    assert not environ
    assert [warning in line for line in caplog.messages] == ([True] if warning else [])


# ---- messages


def test_a_message_reaches_a_path_and_an_abstract_name(address: str) -> None:
    async def main(notifier: Notifier, manager: Manager) -> None:
        await notifier.ready()
        before = time.monotonic_ns() // 1000
        await notifier.reloading()
        after = time.monotonic_ns() // 1000
        await notifier.stopping()
        ready, reloading, stopping = manager.hear()
        assert ready == {"READY": "1"}
        assert reloading["RELOADING"] == "1"
        assert before <= int(reloading["MONOTONIC_USEC"]) <= after
        assert stopping == {"STOPPING": "1", "STATUS": "stopping"}

    for each in (address, f"@autoscaler-test-{os.getpid()}"):
        manager = Manager(each)
        try:
            asyncio.run(main(Notifier(each), manager))
        finally:
            manager.close()


def test_without_a_manager_nothing_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        notifier = Notifier()
        await notifier.ready()
        async with watched(World("a"), notifier):
            assert not [task for task in asyncio.all_tasks() if task.get_name() == "systemd"]

    virtual_time.run(main())
    assert not caplog.messages


def test_a_manager_that_has_gone_has_no_effect_and_is_reported_once(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world = World("a")
        async with watched(world, Notifier(address, 4.0)):
            await world.until(100)
            assert len(world.ticks("a")) == 10
            with ExitStack() as closing:
                manager = Manager(address)
                closing.callback(manager.close)
                await world.until(105)
                # The messages that the manager has missed come first.
                first, *others = manager.hear()
                assert first == {"READY": "1", "STATUS": "1 cluster", "WATCHDOG": "1"}
                assert others
                assert all(message == {"WATCHDOG": "1"} for message in others)

    virtual_time.run(main())
    warnings = [line for line in caplog.records if "cannot notify" in line.message]
    assert [line.levelno for line in warnings] == [logging.WARNING]


def test_a_manager_that_does_not_read_keeps_the_loop_free(manager: Manager) -> None:
    # For a socket that is not read, the kernel keeps this number of messages, plus one.
    kept = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())

    async def main() -> None:
        notifier = Notifier(manager.address)
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.1)
                turns += 1

        turning = asyncio.create_task(turn())
        begun = asyncio.get_running_loop().time()
        for _ in range(kept + 3):
            await notifier.ready()
        waited = asyncio.get_running_loop().time() - begun
        assert waited >= SEND_TIMEOUT
        assert turns >= waited / 0.1 - 2
        manager.hear()
        await notifier.ready()
        assert manager.hear() == [{"READY": "1"}]
        turning.cancel()

    virtual_time.run(main())


# ---- the status of the clusters


@dataclass
class Part:
    """The parts of a daemon that the notifier reads."""

    fleet: Fleet
    dry_run: bool = False
    reload_problems: tuple[str, ...] = ()
    fleets: tuple[FleetStatus, ...] = ()

    @property
    def controllers(self) -> dict[str, Controller]:
        return self.fleet.controllers


@asynccontextmanager
async def watched(world: World, notifier: Notifier, manager: Manager | None = None) -> AsyncIterator[Part]:
    part = Part(world.fleet)
    if manager is not None:
        # Read messages as they arrive: the kernel keeps only a few, and virtual time runs fast.
        asyncio.get_running_loop().add_reader(manager.socket, manager.read)
    await world.start()
    async with notifier.watching(cast("DaemonStatus", part), world.fleet.connections.tried):
        yield part
    await world.fleet.cancel()
    await world.fleet.connections.close()


@dataclass
class Stuck(FakeStore):
    """A store that does not answer for some clusters while they are listed here, and raises for others."""

    hanging: set[str] = field(default_factory=set)
    raising: set[str] = field(default_factory=set)

    async def save(self, cluster: str, state: ClusterState, record: Record | None) -> None:
        while cluster in self.hanging:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.5)
        if cluster in self.raising:
            raise ArithmeticError("a defect")
        await super().save(cluster, state, record)


def stuck_world(*names: str) -> tuple[World, Stuck]:
    world = World(*names)
    store = Stuck()
    world.store = store
    world.fleet = world.make_fleet()
    return world, store


def test_it_is_ready_once_every_plug_in_was_tried_and_reports_the_state_of_the_clusters(manager: Manager) -> None:
    async def main() -> None:
        world = World("a", "b")
        world.plugins["a"].failures.extend([ValueError("not today")] * 2)
        async with watched(world, Notifier(manager.address), manager) as part:
            await world.until(0.1)
            assert manager.hear() == [{"READY": "1", "STATUS": "2 clusters; 2 not observed yet"}]
            await world.until(60)
            later = manager.hear()
            assert [list(message) for message in later] == [["STATUS"]] * len(later)
            assert later[-1]["STATUS"] == "2 clusters"
            part.reload_problems = ("config.yaml:3: bad",)
            part.dry_run = True
            await world.until(70)
            (message,) = manager.hear()
            assert message["STATUS"] == (
                "2 clusters (dry run); new configuration invalid, the previous one stays in use"
            )
            await world.until(500)
            assert not manager.hear()  # messages come only on transitions

    virtual_time.run(main())


def test_a_plug_in_that_ignores_cancellation_delays_ready_for_a_limited_time(manager: Manager) -> None:
    class Stubborn:
        @asynccontextmanager
        async def connect(self, shared: object) -> AsyncIterator[None]:
            del shared
            while not over:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1)
            yield

    over = False

    async def main() -> None:
        nonlocal over
        world = World("a", "b")
        stubborn = world.fleet.connections.lease(Stubborn())
        async with watched(world, Notifier(manager.address), manager):
            await world.until(CONNECT_TIMEOUT - 1)
            assert not manager.hear()
            await world.until(CONNECT_TIMEOUT + 2 * SEND_TIMEOUT)
            assert manager.hear() == [{"READY": "1", "STATUS": "2 clusters"}]
            over = True
            await stubborn.tried()

    virtual_time.run(main())


@pytest.mark.parametrize(
    ("watchdog", "period"), [(4.0, 2.0), (2 * POLL_INTERVAL, POLL_INTERVAL), (600.0, POLL_INTERVAL)]
)
def test_watchdog_messages_come_at_half_the_watchdog_time_or_sooner(
    manager: Manager, watchdog: float, period: float
) -> None:
    async def main() -> None:
        world = World("a")
        async with watched(world, Notifier(manager.address, watchdog), manager):
            await world.until(30.5)
            manager.hear()
            await world.until(30.5 + 10 * period)
            assert manager.hear() == [{"WATCHDOG": "1"}] * 10

    virtual_time.run(main())


def test_one_cluster_in_trouble_does_not_trigger_a_restart(manager: Manager) -> None:
    async def main() -> None:
        world, store = stuck_world("good", "hangs", "raises", "refused")
        async with watched(world, Notifier(manager.address, 4.0), manager):
            await world.until(30.5)
            manager.hear()
            store.hanging.add("hangs")
            store.raising.add("raises")
            world.targets["refused"].scale_failure = RefusedError("no")
            world.source.values["load"] = 300.0
            await world.until(300.5)
            heard = manager.hear()
            assert [message["WATCHDOG"] for message in heard] == ["1"] * 135
            assert [message["STATUS"] for message in heard if "STATUS" in message][-1] == (
                "4 clusters; 3 failing: hangs, raises, refused"
            )
            store.hanging.clear()
            store.raising.clear()
            world.targets["refused"].scale_failure = None
            await world.until(330)
            assert [message["STATUS"] for message in manager.hear() if "STATUS" in message][-1] == "4 clusters"

    virtual_time.run(main())


def test_no_watchdog_message_while_no_tick_finishes(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autoscaler.daemon.sd_notify")

    async def main() -> None:
        world, store = stuck_world("a", "b")
        async with watched(world, Notifier(manager.address, 4.0), manager):
            await world.until(30)
            store.hanging |= {"a", "b"}
            await world.until(30 + 10 + 3 * 10 + 4 + 2)  # the last tick that succeeds, and the limit of `overdue`
            manager.hear()
            await world.until(300)
            assert manager.hear() in ([], [{"STATUS": "2 clusters; 2 failing: a, b"}])
            store.hanging.clear()
            await world.until(315)
            assert all("WATCHDOG" in message for message in manager.hear())
            assert manager.heard[-1] == {"WATCHDOG": "1"}

    virtual_time.run(main())
    assert [line.message for line in caplog.records if line.name == "autoscaler.daemon.sd_notify"] == [
        "no tick finishes: the watchdog is not notified",
        "ticks finish again: the watchdog is notified",
    ]


def test_a_daemon_without_clusters_is_alive(manager: Manager) -> None:
    async def main() -> None:
        world = World()
        async with watched(world, Notifier(manager.address, 4.0), manager):
            await world.until(7)
            first, *others = manager.hear()
            assert first == {"READY": "1", "STATUS": "0 clusters", "WATCHDOG": "1"}
            assert others == [{"WATCHDOG": "1"}] * 3

    virtual_time.run(main())


# ---- the process

PLUGIN = """
import asyncio, json, os, time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from autoscaler.core.model import Reading


@dataclass(frozen=True)
class Query:
    pass


@dataclass(frozen=True)
class Blocking:
    '''A source that blocks the event loop while there is a file.

    Attributes:
        path: the file.
    '''

    Query: ClassVar[type] = Query
    path: str

    @asynccontextmanager
    async def connect(self, shared):
        child = await asyncio.create_subprocess_exec("env", stdout=asyncio.subprocess.PIPE)
        output, _ = await child.communicate()
        Path(self.path + ".env").write_bytes(output)
        yield self

    async def collect(self, query, now):
        while Path(self.path).exists():
            time.sleep(0.01)
        return Reading(100.0, now)
"""


@dataclass
class Place:
    """A directory with a configuration, and a daemon with a service manager."""

    directory: Path
    environment: dict[str, str]

    @property
    def block(self) -> Path:
        return self.directory / "block"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def configure(self, *names: str) -> None:
        clusters = "".join(
            f"  {name}:\n    interval: 100ms\n    timeout: 80ms\n    target: {{type: advice}}\n    min: 1\n    max: 9\n"
            "    metrics: {load: {source: blocking}}\n"
            "    policies: {rate: {type: target-tracking, metric: load, target: 100, mode: total}}\n"
            for name in names
        )
        (self.directory / "config.yaml").write_text(
            "daemon: {directory: var, listen: '127.0.0.1:0', log: json}\n"
            f"sources: {{blocking: {{type: blocking, path: '{self.block}'}}}}\nclusters:\n{clusters}"
        )

    def url(self) -> str:
        lines = [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return str(next(line["url"] for line in lines if line["message"] == "started"))


@pytest.fixture
def place(tmp_path: Path, manager: Manager) -> Place:
    points = {"sources": {"blocking": "blocking_source:Blocking"}}
    write_distribution(tmp_path / "site", "blocking", points, modules={"blocking_source": PLUGIN})
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "site"),
        "NOTIFY_SOCKET": manager.address,
        "WATCHDOG_USEC": "500000",
    }
    return Place(tmp_path, environment)


@pytest.fixture
def start(place: Place) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started = []

    def start() -> subprocess.Popen[bytes]:
        with place.log.open("wb") as log:
            daemon = subprocess.Popen(
                [sys.executable, "-m", "autoscaler", "run", str(place.directory / "config.yaml")],
                stderr=log,
                env=place.environment,
            )
        started.append(daemon)
        return daemon

    yield start
    for daemon in started:
        daemon.kill()
        daemon.wait()


def status(text: str) -> Callable[[Message], bool]:
    return lambda message: message.get("STATUS") == text


def test_a_manager_receives_the_states_of_the_daemon(
    place: Place, manager: Manager, start: Callable[[], subprocess.Popen[bytes]]
) -> None:
    place.configure("a")
    daemon = start()
    manager.wait(lambda message: "READY" in message)
    with urllib.request.urlopen(f"{place.url()}/healthz", timeout=PATIENCE) as answer:  # noqa: S310 - this test's daemon
        assert answer.status == 200
    if manager.heard[0]["STATUS"] != "1 cluster":
        manager.wait(status("1 cluster"))
    for _ in range(3):
        manager.wait(lambda message: "WATCHDOG" in message)

    place.configure("a", "b")
    daemon.send_signal(signal.SIGHUP)
    manager.wait(lambda message: "RELOADING" in message and "MONOTONIC_USEC" in message)
    manager.wait(lambda message: "READY" in message)
    manager.wait(status("2 clusters"))

    (place.directory / "config.yaml").write_text("nonsense")
    daemon.send_signal(signal.SIGHUP)
    manager.wait(lambda message: "RELOADING" in message)
    manager.wait(lambda message: "READY" in message)
    manager.wait(status("2 clusters; new configuration invalid, the previous one stays in use"))

    daemon.send_signal(signal.SIGTERM)
    manager.wait(lambda message: "STOPPING" in message)
    assert daemon.wait(PATIENCE) == 0
    manager.hear()
    assert "STOPPING" in manager.heard[-1]
    # Workers and other child processes must not notify in the name of the daemon.
    inherited = (place.directory / "block.env").read_text()
    assert "PYTHONPATH=" in inherited
    assert "NOTIFY_SOCKET" not in inherited
    assert "WATCHDOG" not in inherited


def test_a_daemon_whose_loop_is_blocked_sends_no_watchdog_message(
    place: Place, manager: Manager, start: Callable[[], subprocess.Popen[bytes]]
) -> None:
    place.configure("a", "b")
    daemon = start()
    manager.wait(lambda message: "READY" in message)
    manager.wait(lambda message: "WATCHDOG" in message)
    place.block.touch()
    # Wait for two watchdog times without a sign of life; messages sent before may still arrive.
    deadline = time.monotonic() + PATIENCE
    heard = time.monotonic()
    while time.monotonic() - heard < 1.0:
        if manager.hear():
            heard = time.monotonic()
        assert time.monotonic() < deadline, "signs of life although the loop is blocked"
        time.sleep(0.02)
    place.block.unlink()
    manager.wait(lambda message: "WATCHDOG" in message)
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0


def test_a_missing_manager_does_not_prevent_the_daemon_from_running(
    place: Place, manager: Manager, start: Callable[[], subprocess.Popen[bytes]]
) -> None:
    place.environment["NOTIFY_SOCKET"] = f"{manager.address}-of-nobody"
    place.configure("a")
    daemon = start()
    deadline = time.monotonic() + PATIENCE
    while "cannot notify the service manager" not in place.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with urllib.request.urlopen(f"{place.url()}/healthz", timeout=PATIENCE) as answer:  # noqa: S310 - this test's daemon
        assert answer.status == 200
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0
