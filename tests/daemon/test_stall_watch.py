"""The watch of the event loop: it names the code that blocks the loop, while it blocks."""

from __future__ import annotations

import asyncio
import logging
import selectors
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace

import pytest

from autoscaler.daemon.stall_watch import StallWatch

from .test_process import Place, get, place

__all__ = ["place"]

BLOCKING = """
import time
class Wave:
    def collect(self, released):
        assert released.wait(60)
"""


def test_what_holds_up_the_loop_is_named_once_while_it_does(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    del place  # The fixture has installed the entry points of plugins_of_files.
    module = ModuleType("plugins_of_files")
    exec(compile(BLOCKING, "blocking.py", "exec"), module.__dict__)  # noqa: S102 - a plug-in's module
    noticed, released = threading.Event(), threading.Event()

    class Watch(StallWatch):
        checked = 0

        def check(self) -> None:
            super().check()
            self.checked += noticed.is_set()
            if self.checked > 10:  # the stall lasts, and is not logged again
                released.set()

    async def main() -> None:
        async def observe() -> None:
            module.Wave().collect(released)

        with Watch(noticed.set, limit=0.05):
            await asyncio.create_task(observe(), name="orders: metric lag")

    caplog.set_level(logging.INFO, "autoscaler")
    asyncio.run(main())
    (line,) = [vars(record) for record in caplog.records if "event loop is blocked" in record.message]
    assert line["plugin"] == "the source 'wave' of plugins-of-files 1.0 (plugins_of_files:Wave)"
    assert line["task"] == "orders: metric lag"
    assert "Wave.collect (blocking.py:5) < " in line["stack"]


def test_every_stall_is_counted_each_cause_logged_once_and_an_idle_loop_is_not_a_stall(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, stalls = 0.0, 0

    def stalled() -> None:
        nonlocal stalls
        stalls += 1

    def waiting(caller: CodeType) -> SimpleNamespace:
        """The frame of a select, with its caller."""
        return SimpleNamespace(
            f_code=selectors.EpollSelector.select.__code__,
            f_globals={"__name__": "selectors"},
            f_lineno=1,
            f_back=SimpleNamespace(f_code=caller, f_globals={"__name__": "x"}, f_lineno=1, f_back=None),
        )

    async def main() -> None:
        nonlocal time
        watch = StallWatch(stalled, clock=lambda: time)
        for _ in range(10):
            watch.check()
            time += 5
            await asyncio.sleep(0)
        assert stalls == 0
        for number in range(2):
            for _ in range(5):
                watch.check()
                time += 0.9
            assert stalls == number + 1
            await asyncio.sleep(0)
        # The process was suspended while its loop waited for work.
        loop = asyncio.BaseEventLoop._run_once.__code__  # type: ignore[attr-defined]
        other = subprocess.Popen.communicate.__code__
        for caller, number in ((loop, 2), (other, 3)):
            monkeypatch.setattr(sys, "_current_frames", lambda c=caller: {threading.get_ident(): waiting(c)})
            watch.check()
            time += 5
            watch.check()
            assert stalls == number

    caplog.set_level(logging.INFO, "autoscaler")
    asyncio.run(main())
    assert [(record.__dict__["plugin"], record.__dict__["seconds"]) for record in caplog.records] == [(None, 1.8)]


def test_a_plug_in_that_blocks_the_daemon_is_named_and_counted(place: Place, tmp_path: Path) -> None:
    site = tmp_path / "site" / "plugins_of_files.py"
    text = site.read_text().replace(
        '        """Where the wave is."""\n', '        """Where the wave is."""\n        self.block()\n'
    )
    text = text.replace(
        "    async def collect(self, query: WaveQuery",
        "    def block(self):\n"
        f"        if not Path('{tmp_path}/blocked').exists():\n"
        f"            Path('{tmp_path}/blocked').touch()\n"
        f"            while not Path('{tmp_path}/released').exists():\n"
        "                time.sleep(0.01)\n\n"
        "    async def collect(self, query: WaveQuery",
    )
    site.write_text(text)
    place.configure("a")
    daemon = place.start()
    line = place.wait_for_log("event loop is blocked")
    (tmp_path / "released").touch()
    assert line["plugin"] == "the source 'wave' of plugins-of-files 1.0 (plugins_of_files:Wave)"
    assert line["task"] == "a: metric load"
    assert "Wave.block" in line["stack"]
    assert get(f"{place.url()}/api/v1/clusters")[0] == 200
    with urllib.request.urlopen(f"{place.url()}/metrics", timeout=60) as answer:  # noqa: S310 - the daemon of this test
        metrics = answer.read().decode()
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(60) == 0
    assert "autoscaler_loop_stalls_total 1.0" in metrics
    assert sum("event loop is blocked" in each["message"] for each in place.lines()) == 1
