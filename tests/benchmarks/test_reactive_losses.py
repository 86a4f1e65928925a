"""A worker is killed, hangs, is cut off or decommissioned: the longest time without a commit, beside plain Spark."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.keyed_cluster import Keyed, grow
from tests.e2e.test_local_target import java

__all__ = ["java"]

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.skipif(
        "AUTOSCALER_BENCH_LARGE" not in os.environ, reason="AUTOSCALER_BENCH_LARGE is not set: 10 minutes"
    ),
]

WATCHED = {True: 40.0, False: 130.0}
"""Seconds for which commits are watched after a loss, under `ReactiveJob` and with plain Spark."""

CHAIN = "reactive-losses"


def family(pid: int) -> list[psutil.Process]:
    """A worker and its executors."""
    worker = psutil.Process(pid)
    return [worker, *worker.children(recursive=True)]


@contextmanager
def signalled(pid: int, number: signal.Signals) -> Iterator[None]:
    """The worker and its executors have got a signal; those that hang continue at the end."""
    found = family(pid)
    for process in found:
        process.send_signal(number)
    try:
        yield
    finally:
        for process in found:
            if process.is_running():
                process.send_signal(signal.SIGCONT)


@contextmanager
def decommissioned(pid: int) -> Iterator[None]:
    """The worker releases its executors once they have ended their tasks."""
    os.kill(pid, signal.SIGPWR)
    yield


@contextmanager
def cut_off(pid: int) -> Iterator[None]:
    """No packet goes from or to the worker and its executors, and no connection is closed."""

    def rule(*arguments: str) -> None:
        subprocess.run(["iptables", "-w", *arguments], check=True, capture_output=True)

    over, known = threading.Event(), set[int]()

    def cut() -> None:
        # A connection that is opened later is cut too.
        while not over.wait(0.1):
            for process in found:
                for one in process.net_connections("tcp") if process.is_running() else ():
                    if one.laddr.port not in known:
                        known.add(one.laddr.port)
                        rule("-A", CHAIN, "-p", "tcp", "--sport", str(one.laddr.port), "-j", "DROP")
                        rule("-A", CHAIN, "-p", "tcp", "--dport", str(one.laddr.port), "-j", "DROP")

    found = family(pid)
    rule("-N", CHAIN)
    rule("-I", "INPUT", "-j", CHAIN)
    cutting = threading.Thread(target=cut)
    cutting.start()
    try:
        yield
    finally:
        over.set()
        cutting.join()
        rule("-D", "INPUT", "-j", CHAIN)
        rule("-F", CHAIN)
        rule("-X", CHAIN)


async def boundary(job: Keyed) -> None:
    """Wait for the end of a batch: an executor lost in the middle of one takes shuffle files along."""
    before = len(job.committed())
    while len(job.committed()) == before:  # noqa: ASYNC110 - files have no event to wait for
        await asyncio.sleep(0.01)


LOSSES: dict[str, Callable[[int], AbstractContextManager[None]]] = {
    "killed": lambda pid: signalled(pid, signal.SIGKILL),
    "hung": lambda pid: signalled(pid, signal.SIGSTOP),
    "cut off": cut_off,
    "decommissioned": decommissioned,
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_the_results_are_exact_and_no_loss_causes_a_long_delay(loss: str, tmp_path: Path, java: Path) -> None:
    if loss == "cut off" and (os.geteuid() or shutil.which("iptables") is None):
        pytest.skip("cutting off a worker takes iptables, and root")
    gaps, failed = {}, {}
    for reactive in (True, False):
        job = Keyed(tmp_path / str(reactive), java, reactive=reactive, keys=1000, rows=200, cost=0.005, files=400)
        try:
            async with job.cluster.target() as pool:
                await grow(pool, 2)
                job.start()
                job.warm(5)
                job.tasks_on(2)
                await boundary(job)
                pid = pool._workers[2].pid
                assert pid is not None
                with LOSSES[loss](pid):
                    lost = time.time()
                    await asyncio.sleep(WATCHED[reactive])
                    gaps[reactive] = job.longest_gap(lost)
                    failed[reactive] = sum(one["failedTasks"] for one in job.cluster.executors())
                job.cluster.processes.stop("job", 60)
            job.check()
        finally:
            job.cluster.processes.clear()
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\na worker is {loss}: longest time without a commit {gaps[True]:.1f} s, plain Spark {gaps[False]:.1f} s; "
        f"failed tasks {failed[True]}, plain Spark {failed[False]}"
    )
    assert gaps[True] < 10 + 5
    if loss == "decommissioned":
        assert failed[True] == 0
