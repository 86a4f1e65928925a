"""The daemon's event loop: calls that hang in threads, DNS lookups that hang, tasks that try to end the process."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from autoscaler.daemon import event_loop
from autoscaler.daemon.event_loop import EventLoop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        return runner.run(main)


class Dns:
    """A resolver that hangs for every name under `hang.test` until the test ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release = threading.Event()
        self.asked: list[str] = []
        self._resolve = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: str, *arguments: Any) -> Any:
        self.asked.append(host)
        if host.endswith("hang.test"):
            self.release.wait()
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return self._resolve(host, *arguments)


class Plugin:
    """A plug-in that resolves names and makes calls in threads."""

    def enter(self) -> None:
        event_loop.caller.set(self)

    async def resolve(self, name: str) -> Any:
        self.enter()
        return await asyncio.get_running_loop().getaddrinfo(name, 80)

    async def call(self, release: threading.Event) -> None:
        self.enter()
        await asyncio.to_thread(release.wait)


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Dns(monkeypatch)
    yield found
    found.release.set()


def test_hanging_lookups_delay_no_other_lookup_no_call_in_a_thread_and_no_shutdown(dns: Dns) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        hanging = [asyncio.create_task(Plugin().resolve(f"{number}.hang.test")) for number in range(50)]
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            assert await loop.getaddrinfo("localhost", 80)
            assert await asyncio.to_thread(sum, (1, 2)) == 3
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()

    run(main())  # returns although fifty threads still hang
    assert not dns.release.is_set()


def test_repeated_lookups_of_a_hanging_name_occupy_one_thread(dns: Dns) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await loop.getaddrinfo("one.hang.test", 80)
        assert dns.asked == ["one.hang.test"]
        waiting = asyncio.create_task(loop.getaddrinfo("one.hang.test", 80))
        await asyncio.sleep(0)
        dns.release.set()
        with pytest.raises(socket.gaierror):
            await waiting

    run(main())


async def started(*tasks: asyncio.Task[Any]) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


def test_hanging_lookups_of_one_plug_in_delay_only_its_own_next_ones(dns: Dns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "MAX_LOOKUPS_OF_ONE", 2)

    async def main() -> None:
        one, other = Plugin(), Plugin()
        hanging = [asyncio.create_task(one.resolve(f"{number}.hang.test")) for number in range(2)]
        waiting = asyncio.create_task(one.resolve("localhost"))
        given_up = asyncio.create_task(one.resolve("127.0.0.1"))
        await started(*hanging, waiting, given_up)
        given_up.cancel()
        assert dns.asked == ["0.hang.test", "1.hang.test"]
        assert await asyncio.create_task(other.resolve("127.0.0.2"))
        assert await asyncio.create_task(other.resolve("localhost"))
        # Another lookup of the same name shares the first one.
        again = asyncio.create_task(other.resolve("0.hang.test"))
        await started(again, waiting)
        dns.release.set()
        async with asyncio.timeout(30):
            assert await waiting
        for task in (*hanging, again):
            with pytest.raises(socket.gaierror):
                await task
        assert dns.asked == ["0.hang.test", "1.hang.test", "127.0.0.2", "localhost", "localhost"]

    run(main())


def test_a_lookup_that_waited_for_a_slot_joins_a_running_one_for_the_same_name(
    dns: Dns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "MAX_LOOKUPS_OF_ONE", 1)

    async def main() -> None:
        one, other = Plugin(), Plugin()
        first = asyncio.create_task(one.resolve("localhost"))
        await asyncio.sleep(0)
        second = asyncio.create_task(one.resolve("a.hang.test"))
        await asyncio.sleep(0)
        third = asyncio.create_task(other.resolve("a.hang.test"))
        assert await first
        await started(second, third)
        dns.release.set()
        for task in (second, third):
            with pytest.raises(socket.gaierror):
                await task
        assert dns.asked == ["localhost", "a.hang.test"]

    run(main())


def test_calls_that_never_return_exhaust_no_threads_of_other_plug_ins_or_of_the_daemon(
    dns: Dns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "MAX_CALLS_OF_ONE", 2)
    monkeypatch.setattr(event_loop, "MAX_CALLS", 3)
    monkeypatch.setattr(event_loop, "MAX_THREADS", 4)

    async def main() -> None:
        one, other, last = Plugin(), Plugin(), Plugin()
        hanging = [asyncio.create_task(one.call(dns.release)) for _ in range(2)]
        await started(*hanging)
        with pytest.raises(OSError, match="2 calls of this plug-in in threads have not returned"):
            await asyncio.create_task(one.call(dns.release))
        with pytest.raises(OSError, match="2 calls of this plug-in in threads have not returned"):
            await asyncio.create_task(one.resolve("localhost"))
        hanging.append(asyncio.create_task(other.call(dns.release)))
        await started(*hanging)
        with pytest.raises(OSError, match="3 calls in threads have not returned"):
            await asyncio.create_task(other.call(dns.release))
        # However many plug-ins hang, one that has no call in progress may make one.
        hanging.append(asyncio.create_task(last.call(dns.release)))
        await started(*hanging)
        with pytest.raises(OSError, match="4 calls in threads have not returned"):
            await asyncio.create_task(Plugin().call(dns.release))
        # A reload and a scrape still get a thread.
        assert await asyncio.to_thread(sum, (1, 2)) == 3
        for task in hanging:
            task.cancel()
        # Refused lookups do not use up turns.
        assert asyncio.get_running_loop()._turns[one]._value == event_loop.MAX_LOOKUPS_OF_ONE  # type: ignore[attr-defined]

    run(main())


def test_an_exception_of_a_call_in_a_thread_is_raised_where_it_is_awaited() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            await asyncio.to_thread(int, "x")

    run(main())


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_task_that_tries_to_end_the_process_ends_only_itself(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> str:
        async def bad() -> None:
            raise error

        def callback() -> None:
            raise error

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # like the daemon
        task = asyncio.create_task(bad())
        loop.call_soon(callback)
        await asyncio.sleep(0.01)
        assert isinstance(task.exception(), error)
        return "goes on"

    caplog.set_level(logging.INFO, "autoscaler")
    assert run(main()) == "goes on"
    assert [record.message for record in caplog.records] == ["plug-in tried to end the process"] * 2


def test_the_main_task_may_end_the_process() -> None:
    async def main() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        run(main())


def test_ctrl_c_ends_the_loop_while_the_daemon_does_not_handle_it() -> None:
    """During shutdown, after it has restored the signal handlers."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    loop = EventLoop()
    loop.call_soon(interrupt)
    loop.call_later(60, loop.stop)
    end = loop.create_future()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(end)
    loop.close()
