"""Starting, replacing and stopping controllers in virtual time."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from autoscaler.config.model import Cluster
from autoscaler.core.model import Limits
from autoscaler.daemon.connections import Connections
from autoscaler.daemon.controller import splay
from autoscaler.ports import PluginError, Shared, UnavailableError
from autoscaler.testing import virtual_time
from autoscaler.testing.fakes import Fake, FakeSource, FakeTarget

from .conftest import World, make_cluster, make_config


def test_a_stop_waits_for_the_scale_call_and_starts_no_new_tick() -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]
        target.scale_delay = 5.0
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(splay("a", 10.0) + 1)
        assert target.scaling == 1
        await world.fleet.stop()
        assert asyncio.get_running_loop().time() == pytest.approx(splay("a", 10.0) + 5.0)
        assert target.requests == [3]
        assert len(world.store.records) == 1
        assert world.plugins["a"].closed

    virtual_time.run(main())


def test_a_stop_between_ticks_takes_no_time() -> None:
    async def main() -> None:
        world = World(*(f"c{number}" for number in range(50)))
        await world.start()
        await world.until(100)
        await world.fleet.stop()
        assert asyncio.get_running_loop().time() == pytest.approx(100)

    virtual_time.run(main())


@dataclass(frozen=True, eq=False)
class Unconnectable(Fake[FakeSource]):
    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[FakeSource]:
        del shared
        await asyncio.sleep(1e9)
        yield self.live


@dataclass(frozen=True, eq=False)
class SharesUnconnectable(Fake[FakeSource]):
    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[FakeSource]:
        @asynccontextmanager
        async def client() -> AsyncIterator[FakeSource]:
            await asyncio.sleep(1e9)
            yield self.live

        yield await shared.enter("client", client)


@pytest.mark.parametrize("hanging", ["source", "target", "connect", "shared"])
def test_neither_a_stop_nor_a_reload_waits_for_a_hanging_observation(hanging: str) -> None:
    async def main() -> None:
        world = World("a")
        if hanging == "source":
            world.source.delay = 1e9
        elif hanging == "target":
            world.targets["a"].delay = 1e9
        else:
            kind = Unconnectable if hanging == "connect" else SharesUnconnectable
            world.source_plugin = kind(world.source)
        await world.start()
        await world.until(splay("a", 10.0) + 1)
        world.clusters["a"] = make_cluster("a", world.plugins["a"], limits=Limits(2, 10))
        await world.fleet.apply(world.config)
        await world.until(splay("a", 10.0) + 12)
        at = asyncio.get_running_loop().time()
        await world.fleet.stop()
        assert asyncio.get_running_loop().time() == at == pytest.approx(splay("a", 10.0) + 12)
        assert world.store.records == []

    virtual_time.run(main())


def test_a_reload_adds_removes_and_changes_clusters_without_disturbing_the_others() -> None:
    async def main() -> None:
        world = World("same", "gone", "changed")
        await world.start()
        await world.until(100)
        same = world.fleet.controllers["same"]
        before = world.fleet.controllers["changed"]
        assert before.state is not None
        since = before.state.watched_since
        del world.clusters["gone"]
        world.clusters["changed"] = make_cluster("changed", world.plugins["changed"], limits=Limits(2, 10))
        world.targets["new"] = FakeTarget()
        world.plugins["new"] = Fake(world.targets["new"])
        world.clusters["new"] = make_cluster("new", world.plugins["new"])
        changes = await world.fleet.apply(world.config)
        assert changes == ({"new"}, {"gone"}, {"changed"})
        await world.until(200)
        assert world.fleet.controllers["same"] is same
        after = world.fleet.controllers["changed"]
        assert after is not before
        assert after.state is not None
        assert after.state.watched_since == since
        assert after.counters is before.counters
        # Plug-ins that are still used are not even reconnected.
        assert world.plugins["changed"].opened == world.plugins["same"].opened
        assert not world.plugins["changed"].closed
        assert world.plugins["gone"].closed == [pytest.approx(100)]
        assert len(world.ticks("gone")) == 10
        assert len(world.ticks("new")) == 10
        assert len(world.ticks("same")) == len(world.ticks("changed")) == 20
        assert world.targets["changed"].requests == [2]
        await world.fleet.stop()
        assert len(world.source_plugin.opened) == len(world.source_plugin.closed) == 1

    virtual_time.run(main())


def test_a_reload_with_the_same_configuration_changes_nothing() -> None:
    async def main() -> None:
        world = World("a", "b")
        await world.start()
        await world.until(30)
        assert await world.fleet.apply(world.config) == (set(), set(), set())
        await world.fleet.stop()

    virtual_time.run(main())


class Unhashable(Fake[FakeTarget]):
    def __hash__(self) -> int:
        raise RuntimeError("no hash")


def test_a_change_interrupted_by_a_defect_of_a_plug_in_is_completed_by_the_next_one() -> None:
    async def main() -> None:
        world = World("a", "changed", "gone")
        await world.start()
        await world.until(100)
        gone = world.clusters.pop("gone")
        world.clusters["changed"] = make_cluster("changed", world.plugins["changed"], limits=Limits(2, 10))
        world.clusters["bad"] = make_cluster("bad", Unhashable(FakeTarget()))
        world.clusters["later"] = make_cluster("later", Fake(FakeTarget()))
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no hash"):
                await world.fleet.apply(world.config)
        del world.clusters["bad"]
        await world.fleet.apply(world.config)
        await world.until(200)
        assert set(world.fleet.controllers) == {"a", "changed", "later"}
        assert world.targets["changed"].requests == [2]
        assert world.plugins["gone"].closed
        assert len(world.ticks("a")) == 20
        assert len(world.ticks("later")) == 10
        world.clusters = {"gone": gone}
        assert await world.fleet.apply(world.config) == ({"gone"}, {"a", "changed", "later"}, set())
        await world.fleet.stop()

    virtual_time.run(main())


def test_a_plugin_that_cannot_connect_fails_only_its_clusters_and_is_retried() -> None:
    async def main() -> None:
        world = World("good", "bad")
        world.plugins["bad"].failures.extend(UnavailableError("nobody at home") for _ in range(4))
        await world.start()
        await world.until(10)
        assert [r.observation.missing for r in world.store.records if r.decision.cluster == "bad"] == [
            {"target": "Fake cannot be connected: nobody at home"}
        ]
        assert [r.observation.missing for r in world.store.records if r.decision.cluster == "good"] == [{}]
        # Retries come after 1, 2, 4 and 8 seconds: the fourth, at 15 s, succeeds.
        await world.until(40)
        assert world.plugins["bad"].opened == [pytest.approx(15)]
        assert not world.store.records[-1].observation.missing
        await world.fleet.stop()

    virtual_time.run(main())


def test_a_plugin_that_hangs_while_connecting_is_abandoned_and_retried() -> None:
    async def main() -> None:
        attempts = 0

        class Hanging:
            @asynccontextmanager
            async def connect(self, _: Shared) -> AsyncIterator[str]:
                nonlocal attempts
                attempts += 1
                if attempts == 1:
                    await asyncio.sleep(1e9)
                yield "live"

        connections = Connections()
        connection = connections.lease(Hanging())
        await connection.tried()
        assert connection.problem == "Hanging cannot be connected: not connected within 30 s"
        await asyncio.sleep(2)
        assert connection.get() == "live"
        await connections.close()

    virtual_time.run(main())


def test_a_plug_in_with_a_missing_dependency_reports_it_without_a_class_name() -> None:
    async def main() -> None:
        fake: Fake[str] = Fake("live", failures=[PluginError("no credentials: give kubeconfig")])
        connections = Connections()
        connection = connections.lease(fake)
        await connection.tried()
        assert connection.problem == "Fake cannot be connected: no credentials: give kubeconfig"
        await connections.close()

    virtual_time.run(main())


def test_a_timeout_error_of_a_plug_in_while_connecting_is_not_taken_for_our_time_out() -> None:
    async def main() -> None:
        fake: Fake[str] = Fake("live", failures=[TimeoutError("no greeting after 5 s")])
        connections = Connections()
        connection = connections.lease(fake)
        await connection.tried()
        assert connection.problem == "Fake cannot be connected: TimeoutError: no greeting after 5 s"
        await connections.close()

    virtual_time.run(main())


@dataclass(frozen=True)
class _Plugin:
    url: str
    opened: int = 0

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[object]:
        yield await shared.enter(("client", self.url), lambda: _client(self.url))


_clients: list[str] = []


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[object]:
    await asyncio.sleep(1)
    if url == "bad":
        raise UnavailableError("no client for bad")
    _clients.append(f"open {url}")
    yield object()
    _clients.append(f"close {url}")


def test_equal_plugins_are_connected_once_and_shared_clients_are_opened_once() -> None:
    async def main() -> None:
        _clients.clear()
        connections = Connections()
        one, equal, other = (connections.lease(plugin) for plugin in (_Plugin("u"), _Plugin("u"), _Plugin("u", 1)))
        assert one is equal
        assert one is not other
        await connections.tried()
        assert one.get() is other.get()
        await connections.release(one)
        assert connections.lease(_Plugin("u")) is one
        await connections.close()
        assert _clients == ["open u", "close u"]

    virtual_time.run(main())


def test_a_shared_client_that_fails_to_open_is_retried_by_the_next_user() -> None:
    async def main() -> None:
        connections = Connections()
        for _ in range(2):
            with pytest.raises(UnavailableError, match="no client for bad"):
                await connections.enter("key", lambda: _client("bad"))
        assert await connections.enter("key", lambda: _client("good"))
        await connections.close()

    virtual_time.run(main())


def test_a_target_belongs_to_one_cluster_even_when_parameters_are_equal() -> None:
    async def main() -> None:
        connections = Connections()
        a, b = (connections.lease(_Plugin("u"), of=name) for name in ("a", "b"))
        assert a is not b
        assert connections.lease(_Plugin("u"), of="a") is a
        await connections.tried()
        await connections.close()

    virtual_time.run(main())


def test_plugins_that_cannot_be_hashed_are_compared() -> None:
    @dataclass(frozen=True)
    class Unhashable:
        labels: dict[str, str]

        @asynccontextmanager
        async def connect(self, _: Shared) -> AsyncIterator[str]:
            yield "live"

    async def main() -> None:
        connections = Connections()
        one = connections.lease(Unhashable({"a": "b"}))
        assert connections.lease(Unhashable({"a": "b"})) is one
        assert connections.lease(Unhashable({"a": "c"})) is not one
        await connections.tried()
        await connections.close()

    virtual_time.run(main())


def test_a_changed_source_changes_the_clusters_that_use_it() -> None:
    async def main() -> None:
        world = World("a")
        await world.start()
        await world.until(30)
        config = make_config(world.clusters, replace(world.source_plugin))
        assert await world.fleet.apply(config) == (set(), set(), {"a"})
        await world.until(60)
        assert world.source_plugin.closed
        await world.fleet.stop()

    virtual_time.run(main())


def test_a_plugin_that_hangs_while_closing_is_abandoned(caplog: pytest.LogCaptureFixture) -> None:
    class Clinging:
        @asynccontextmanager
        async def connect(self, _: Shared) -> AsyncIterator[str]:
            yield "live"
            for _attempt in range(100):
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    continue

    async def main() -> None:
        connections = Connections()
        connection = connections.lease(Clinging())
        await connection.tried()
        await connections.release(connection)
        assert asyncio.get_running_loop().time() == pytest.approx(20)
        await asyncio.sleep(200_000)

    virtual_time.run(main())
    assert "does not close" in caplog.text


def test_at_a_reload_no_cluster_waits_for_the_scale_call_of_another() -> None:
    async def main() -> None:
        world = World("slow", "other")
        world.targets["slow"].scale_delay = 25.0
        await world.start()
        await world.until(100)
        world.source.values["load"] = 300.0
        await world.until(109)
        assert world.targets["slow"].scaling == 1
        # A change of the shared source changes both clusters.
        world.source_plugin = Fake(world.source)
        await world.fleet.apply(world.config)
        assert asyncio.get_running_loop().time() > 120
        await world.until(200)
        await world.fleet.stop()
        assert world.ticks("other") == pytest.approx([splay("other", 10.0) + 10 * number for number in range(20)])
        assert world.targets["slow"].requests == [3]

    virtual_time.run(main())


def test_a_plug_in_that_cancels_itself_while_connecting_is_retried() -> None:
    async def main() -> None:
        world = World("a")
        world.plugins["a"].failures.append(asyncio.CancelledError())
        await world.start()
        await world.until(30)
        await world.fleet.stop()
        assert world.plugins["a"].opened == [pytest.approx(1)]

        attempts = 0

        @asynccontextmanager
        async def client() -> AsyncIterator[str]:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise asyncio.CancelledError
            yield "live"

        connections = Connections()
        with pytest.raises(UnavailableError, match="the plug-in cancelled itself"):
            await connections.enter("key", client)
        assert await connections.enter("key", client) == "live"
        await connections.close()

    virtual_time.run(main())


def test_a_shared_client_that_hangs_while_closing_is_abandoned(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        @asynccontextmanager
        async def client() -> AsyncIterator[str]:
            yield "live"
            await asyncio.sleep(1e9)

        connections = Connections()
        await connections.enter("key", client)
        await connections.close()
        assert asyncio.get_running_loop().time() < 60

    virtual_time.run(main())
    assert "shared client was not closed within 10 s" in caplog.text
    assert vars(caplog.records[-1])["client"] == "str"


def test_the_first_observation_waits_for_plug_ins_that_are_connecting() -> None:
    async def main() -> None:
        class Slow:
            @asynccontextmanager
            async def connect(self, _: Shared) -> AsyncIterator[object]:
                await asyncio.sleep(3)
                yield FakeTarget()

        world = World("a")
        # Start just before a tick: otherwise the first tick might come late enough by chance.
        await world.until(splay("a", 10.0) - 0.5)
        world.clusters["a"] = make_cluster("a", Slow())
        await world.start()
        await world.until(20)
        await world.fleet.stop()
        assert not world.store.records[0].observation.missing

    virtual_time.run(main())


def test_a_scale_call_that_ignores_cancellation_does_not_delay_the_shutdown() -> None:
    async def main() -> None:
        world = World("a")

        async def scale(replicas: int) -> None:
            assert replicas == 3
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(20)
                    return

        world.targets["a"].scale = scale  # type: ignore[method-assign]
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(10)
        await world.fleet.cancel()
        assert asyncio.get_running_loop().time() < 15
        await world.until(100)

    virtual_time.run(main())


def test_what_a_reload_removes_is_freed_without_the_garbage_collector() -> None:
    """The daemon excludes the objects that exist after its start from every collection."""

    async def main() -> None:
        world = World("a", "b")
        await world.start()
        await world.until(100)
        gc.collect()
        gc.disable()
        try:
            removed = weakref.ref(world.fleet.controllers["a"])
            connections = weakref.ref(world.fleet.controllers["a"].connections)
            del world.clusters["a"]
            await world.fleet.apply(world.config)
            await asyncio.sleep(0)
            assert removed() is None
            assert connections() is None
        finally:
            gc.enable()
        await world.fleet.stop()

    virtual_time.run(main())


def test_a_cluster_removed_during_a_scale_call_delays_no_other() -> None:
    async def main() -> None:
        world = World("slow", "other")
        world.targets["slow"].scale_delay = 25.0
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(splay("slow", 10.0) + 1)
        assert world.targets["slow"].scaling == 1
        del world.clusters["slow"]
        world.targets["new"] = FakeTarget()
        world.clusters["new"] = make_cluster("new", Fake(world.targets["new"]))
        at = asyncio.get_running_loop().time()
        changes = await world.fleet.change(world.config)
        assert asyncio.get_running_loop().time() == at
        assert (changes.added, changes.removed, changes.changed) == ({"new"}, {"slow"}, set())
        assert "slow" in world.fleet.controllers
        await asyncio.gather(*changes.ending)
        assert asyncio.get_running_loop().time() == pytest.approx(splay("slow", 10.0) + 25)
        assert set(world.fleet.controllers) == {"other", "new"}
        assert world.targets["slow"].requests == [3]
        assert world.plugins["slow"].closed == [pytest.approx(splay("slow", 10.0) + 25)]
        await world.until(100)
        await world.fleet.stop()
        assert world.ticks("other") == pytest.approx([splay("other", 10.0) + 10 * number for number in range(10)])
        assert len(world.ticks("new")) >= 9

    virtual_time.run(main())


@pytest.mark.parametrize("changes", ["back", "changed", "changed twice", "changed and gone", "gone and stopped"])
def test_a_cluster_reconfigured_twice_during_its_scale_call_gets_the_last_configuration(changes: str) -> None:
    async def main() -> None:
        world = World("a")
        world.targets["a"].scale_delay = 25.0
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(splay("a", 10.0) + 1)
        before = world.fleet.controllers["a"]
        first = world.clusters.pop("a")
        cluster = make_cluster("a", world.plugins["a"], limits=Limits(2, 10))
        third = make_cluster("a", world.plugins["a"], limits=Limits(4, 10))
        plans: dict[str, list[Cluster | None]] = {
            "back": [None, first],
            "changed": [cluster],
            "changed twice": [cluster, third],
            "changed and gone": [cluster, None],
            "gone and stopped": [None],
        }
        steps = plans[changes]
        for step in steps:
            if step is None:
                world.clusters.pop("a", None)
            else:
                world.clusters["a"] = step
            last = await world.fleet.change(world.config)
            await asyncio.sleep(1)
        if changes == "gone and stopped":
            await world.fleet.stop()
            assert world.targets["a"].requests == [3]
            assert len(world.plugins["a"].closed) == 1
            return
        await asyncio.gather(*last.ending)
        if steps[-1] is None:
            assert not world.fleet.controllers
            assert len(world.plugins["a"].closed) == 1
        else:
            after = world.fleet.controllers["a"]
            assert after is not before
            assert after.cluster is steps[-1]
            assert after.counters is before.counters
            assert not world.plugins["a"].closed  # plug-ins that both use stay connected
        await world.until(100)
        await world.fleet.stop()
        assert len(world.plugins["a"].opened) == len(world.plugins["a"].closed) == 1
        assert len(world.source_plugin.opened) == len(world.source_plugin.closed) == 1

    virtual_time.run(main())


async def test_ten_thousand_new_clusters_do_not_block_the_loop() -> None:
    world = World(*(f"c{number}" for number in range(10_000)), interval=timedelta(hours=1))
    longest, at = 0.0, time.thread_time()

    async def watch() -> None:
        nonlocal longest, at
        while True:
            await asyncio.sleep(0)
            longest, at = max(longest, time.thread_time() - at), time.thread_time()

    config = world.config
    gc.disable()  # like the daemon, which runs its own collections
    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    at = time.thread_time()
    changes = await world.fleet.change(config)
    appeared, longest = longest, 0.0
    at = time.thread_time()
    gone = await world.fleet.change(make_config({}, world.source_plugin))
    await asyncio.gather(*gone.ending)
    gc.enable()
    watching.cancel()
    assert len(changes.added) == len(gone.removed) == 10_000
    assert not world.fleet.controllers
    # Many times the length of a slice, because the machine may be slow; all slices together take seconds.
    assert appeared < 0.5
    assert longest < 1.0
    await world.fleet.stop()
