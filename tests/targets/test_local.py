"""The local pool, with small real processes as workers."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from autoscaler.ports import EdgeError, RefusedError, TargetStatus, UnavailableError, Worker
from autoscaler.targets.local import pool as local_pool
from autoscaler.targets.local import processes
from autoscaler.targets.local.pool import Pool, locked, request_size, stop_workers

from .conftest import StandIn, opened, settled, times, until, up

Pools = Callable[..., Awaitable[Pool]]


async def settle(pool: Pool, replicas: int) -> None:
    await pool.scale(replicas)
    async with asyncio.timeout(60):
        await settled(pool)
    await until(lambda: up(pool))


async def test_a_new_pool_is_empty(pools: Pools) -> None:
    pool = await pools()
    assert await pool.describe() == TargetStatus(desired=0, ready=0)


async def test_scale_starts_missing_workers_each_at_its_own_address(pools: Pools) -> None:
    kind = StandIn()
    pool = await pools(kind)
    await settle(pool, 3)
    assert await pool.describe() == TargetStatus(desired=3, ready=3)
    addresses = {place.address for place in kind.places}
    assert len(addresses) == 3
    assert all(address.startswith("127.") and not address.startswith("127.0.") for address in addresses)


async def test_scale_returns_before_the_worker_is_ready_and_the_same_size_again_changes_nothing(pools: Pools) -> None:
    kind = StandIn()
    pool = await pools(kind)
    await pool.scale(2)
    assert (await pool.describe()).ready == 0
    await pool.scale(2)
    await settled(pool)
    await pool.scale(2)
    await asyncio.sleep(0.2)
    assert len(kind.places) == 2


async def test_the_newest_worker_is_removed_first_and_finishes_its_work(tmp_path: Path, pools: Pools) -> None:
    kind = StandIn(done=tmp_path / "done")
    pool = await pools(kind)
    await settle(pool, 2)
    old, new = (pool._workers[number] for number in (1, 2))
    await until(lambda: len(processes.family(new.token)) == 2)
    await pool.scale(1)
    await until(lambda: new.draining)
    status = await pool.describe()
    assert (status.desired, status.ready, status.remarks) == (1, 1, ("1 draining",))
    assert processes.matches(new.pid or 0, new.start or 0, new.token)
    kind.done.touch()
    await settled(pool)
    assert processes.family(new.token) == []
    assert processes.matches(old.pid or 0, old.start or 0, old.token)
    assert pool._log_file(2).read_text().split() == ["up", "draining", "ending"]


class Crew:
    """An engine that lists workers, or raises."""

    def __init__(self, answer: Sequence[Worker] | Exception) -> None:
        self._answer = answer

    async def workers(self) -> Sequence[Worker]:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def drain(self, worker: Worker) -> None:
        raise NotImplementedError


async def test_the_worker_with_the_least_work_is_removed_first(pools: Pools) -> None:
    pool = await pools()
    await settle(pool, 3)
    busy = [Worker(str(number), frozenset({pool._workers[number].address}), cost) for number, cost in ((1, 2), (3, 1))]
    pool.attach(lambda: Crew(busy))
    await settle(pool, 2)
    assert sorted(pool._workers) == [1, 3]
    await settle(pool, 1)
    assert sorted(pool._workers) == [1]


@pytest.mark.parametrize("error", [RefusedError("the engine cannot name its workers"), ValueError("a defect")])
async def test_the_newest_worker_is_removed_if_the_engine_does_not_list_them(pools: Pools, error: Exception) -> None:
    pool = await pools()
    await settle(pool, 2)
    pool.attach(lambda: Crew(error))
    await settle(pool, 1)
    assert sorted(pool._workers) == [1]


async def test_an_engine_that_hangs_does_not_keep_a_worker(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_pool, "_PICK_TIMEOUT", 0.05)
    pool = await pools()
    await settle(pool, 2)
    crew = Crew([])
    crew.workers = asyncio.Event().wait  # type: ignore[method-assign, assignment]
    pool.attach(lambda: crew)
    await settle(pool, 1)
    assert sorted(pool._workers) == [1]


async def test_a_worker_that_does_not_finish_is_stopped_after_the_drain_time(pools: Pools) -> None:
    pool = await pools(StandIn(mode="zombie"), drain=timedelta(milliseconds=300))
    await settle(pool, 1)
    token = pool._workers[1].token
    await pool.scale(0)
    await settled(pool)
    assert processes.family(token) == []


async def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace_time(pools: Pools) -> None:
    pool = await pools(StandIn(mode="stubborn"), grace=timedelta(milliseconds=300))
    await settle(pool, 1)
    worker = pool._workers[1]
    await pool.scale(0)
    await settled(pool)
    assert processes.family(worker.token) == []
    assert "ending" not in pool._log_file(1).read_text()


async def test_processes_left_by_a_worker_are_killed(pools: Pools) -> None:
    pool = await pools(StandIn(mode="orphan", drain_signal=None), grace=timedelta(milliseconds=200))
    await settle(pool, 1)
    token = pool._workers[1].token
    await pool.scale(0)
    await settled(pool)
    assert processes.family(token) == []


async def test_a_worker_that_ends_by_itself_is_replaced(pools: Pools) -> None:
    pool = await pools()
    await settle(pool, 2)
    victim = pool._workers[1]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    await until(lambda: sorted(pool._workers) == [2, 3])
    assert processes.family(victim.token) == []
    status = await pool.describe()
    assert (status.desired, status.ready) == (2, 2)
    assert "worker 1 ended by itself (signal 9)" in status.remarks[0]


async def test_a_worker_that_keeps_failing_is_restarted_with_pauses(pools: Pools) -> None:
    kind = StandIn(mode="crash")
    pool = await pools(kind, backoff=timedelta(milliseconds=200), max_backoff=timedelta(seconds=60))
    await pool.scale(1)
    await until(lambda: str(pool._log_file(4)) in (pool._failure or ""))
    status = await pool.describe()
    assert (status.desired, status.ready) == (1, 0)
    assert "(exit code 3)" in status.remarks[0]
    assert [place.number for place in kind.places] == [1, 2, 3, 4]
    waited = [after - before for before, after in pairwise(kind.starts)]
    assert all(each >= least for each, least in zip(waited, (0.2, 0.4, 0.8), strict=True)), waited


@pytest.mark.parametrize(("name", "size"), [("find", 2), ("send", 0)])
async def test_a_pool_continues_once_files_can_be_opened_again(
    pools: Pools, monkeypatch: pytest.MonkeyPatch, name: str, size: int
) -> None:
    """Processes are read and signalled through files: a daemon may temporarily have too many open."""
    pool = await pools()
    await settle(pool, 1)
    usual = getattr(processes, name)

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(processes, name, fail)
    await pool.scale(size)
    await until(lambda: pool._failure is not None)
    assert "Too many open files" in str(pool._failure)
    if name == "find":
        with pytest.raises(UnavailableError, match="Too many open files"):
            await pool.describe()
    monkeypatch.setattr(processes, name, usual)
    await settle(pool, size)


async def test_a_pool_continues_after_a_workers_directory_could_not_be_removed(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Iterator[int]:
        raise OSError(errno.EMFILE, "Too many open files")

    pool = await pools()
    await settle(pool, 1)
    with monkeypatch.context() as changed:
        changed.setattr(pool, "_numbers", fail)  # it reads a folder
        await pool.scale(0)
        await until(lambda: "Too many open files" in str(pool._failure))
    await settle(pool, 1)


async def test_a_lasting_system_error_is_logged_as_rarely_as_it_is_retried(
    pools: Pools, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = 0

    def fail(*_: object) -> None:
        nonlocal tried
        tried += 1
        raise OSError(errno.EMFILE, "Too many open files")

    pool = await pools(backoff=timedelta(minutes=1))
    await settle(pool, 1)
    monkeypatch.setattr(processes, "find", fail)
    await until(lambda: pool._failure is not None)
    await asyncio.sleep(20 * pool._poll)
    assert tried == 1
    assert len([record for record in caplog.records if "Too many open files" in record.message]) == 1


async def test_a_recovered_pool_resets_its_failures(pools: Pools) -> None:
    pool = await pools(max_backoff=timedelta(milliseconds=200))
    await settle(pool, 1)
    pid = pool._workers[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: bool(pool._failure))
    await until(lambda: not pool._failure)
    assert (await pool.describe()).remarks == ()


async def test_a_missing_command_is_a_remark(pools: Pools) -> None:
    kind = StandIn()
    kind.launch = lambda _place: (["/nonexistent/program"], {})  # type: ignore[method-assign,assignment]
    pool = await pools(kind)
    await pool.scale(1)
    await until(lambda: bool(pool._failure))
    status = await pool.describe()
    assert status.ready == 0
    assert "a worker cannot be started" in status.remarks[0]
    assert "/nonexistent/program" in status.remarks[0]


async def test_of_concurrent_requests_the_last_size_counts(pools: Pools) -> None:
    pool = await pools()
    await asyncio.gather(*(pool.scale(size) for size in (3, 1, 4, 2)))
    await settled(pool)
    assert await pool.describe() == TargetStatus(desired=2, ready=2)
    await asyncio.gather(*(pool.scale(size) for size in (0, 3, 1)))
    await settled(pool)
    assert (await pool.describe()).ready == 1


async def test_a_size_requested_while_draining_starts_new_workers(tmp_path: Path, pools: Pools) -> None:
    kind = StandIn(done=tmp_path / "done")
    pool = await pools(kind)
    await settle(pool, 2)
    await pool.scale(1)
    await until(lambda: pool._workers[2].draining)
    await pool.scale(2)
    await until(lambda: 3 in pool._workers)
    kind.done.touch()
    await settled(pool)
    assert sorted(pool._workers) == [1, 3]


@pytest.mark.parametrize("size", [-1, 251])
async def test_an_impossible_size_is_refused(pools: Pools, size: int) -> None:
    pool = await pools()
    with pytest.raises(RefusedError, match="0 to 250"):
        await pool.scale(size)


async def test_the_next_daemon_takes_over_size_and_workers(tmp_path: Path, pools: Pools) -> None:
    async with opened(tmp_path, StandIn()) as first:
        await settle(first, 2)
        pids = {worker.pid for worker in first._workers.values()}
    second = await pools()
    assert await second.describe() == TargetStatus(desired=2, ready=2)
    assert {worker.pid for worker in second._workers.values()} == pids


async def test_a_short_connection_starts_and_drains_nothing(tmp_path: Path) -> None:
    request_size(tmp_path, 2)
    kind = StandIn()
    pool = Pool(tmp_path, kind, times(), poll=0.01)
    await pool.open()
    assert await pool.describe() == TargetStatus(desired=2, ready=0)
    await asyncio.sleep(0.1)
    await pool.close()
    assert kind.places == []


async def test_the_workers_of_an_abandoned_pool_can_be_stopped(tmp_path: Path) -> None:
    async with opened(tmp_path, StandIn(mode="stubborn")) as pool:
        await settle(pool, 2)
        workers = list(pool._workers.values())
    await asyncio.to_thread(stop_workers, tmp_path, 0.2)
    assert not any(processes.family(worker.token) for worker in workers)
    assert list((tmp_path / "workers").iterdir()) == []
    for worker in workers:
        processes.reap(worker.pid or 0)
    async with opened(tmp_path, StandIn()) as pool:
        assert await pool.describe() == TargetStatus(desired=0, ready=0)


async def test_a_drain_in_progress_is_resumed(tmp_path: Path, pools: Pools) -> None:
    kind = StandIn(done=tmp_path / "done")
    async with opened(tmp_path, kind) as first:
        await settle(first, 2)
        token = first._workers[2].token
        await first.scale(1)
        await until(lambda: "draining" in first._log_file(2).read_text())
    assert processes.family(token)
    second = await pools(kind)
    assert second._workers[2].draining
    kind.done.touch()
    await settled(second)
    assert processes.family(token) == []


OWNER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from conftest import StandIn, settled, times
from autoscaler.targets.local.pool import Pool
async def main():
    pool = Pool(Path(sys.argv[1]), StandIn(), times(), poll=0.05)
    await pool.open()
    await pool.scale(2)
    await settled(pool)
    print("settled", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_workers_survive_a_daemon_that_is_killed(tmp_path: Path, pools: Pools) -> None:
    here = str(Path(__file__).parent)
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNER, str(tmp_path), here), stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    async with asyncio.timeout(60):
        assert await owner.stdout.readline() == b"settled\n"
    owner.kill()
    await owner.wait()
    records = [json.loads(path.read_text()) for path in (tmp_path / "workers").glob("*.json")]
    pool = await pools()
    assert await pool.describe() == TargetStatus(desired=2, ready=2)
    assert {worker.pid for worker in pool._workers.values()} == {record["pid"] for record in records}
    await pool.scale(0)
    await settled(pool)
    assert not any(processes.family(record["token"]) for record in records)


async def test_a_worker_whose_pid_was_not_yet_recorded_is_found(tmp_path: Path, pools: Pools) -> None:
    async with opened(tmp_path, StandIn()) as first:
        await settle(first, 1)
        pid = first._workers[1].pid
    path = tmp_path / "workers" / "1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": None, "start": None}))
    second = await pools()
    assert second._workers[1].pid == pid


async def test_a_process_with_the_pid_of_an_old_worker_is_not_signalled(tmp_path: Path, pools: Pools) -> None:
    async with opened(tmp_path, StandIn()) as first:
        await settle(first, 1)
        worker = first._workers[1]
        path = tmp_path / "workers" / "1.json"
        known = json.loads(path.read_text())  # before the pool may notice that it has gone, and forgets it
        first._kill(worker)
        await until(lambda: processes.find(worker.pid or 0) is None)
        processes.reap(worker.pid or 0)
    other = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "import time; time.sleep(60)")
    try:
        seen = processes.find(other.pid)
        assert seen is not None
        # Even the start time is equal: only the token distinguishes them.
        record = {**known, "pid": other.pid, "start": seen.start, "draining": True}
        path.write_text(json.dumps(record))
        (tmp_path / "desired.json").write_text('{"desired": 0}')
        second = await pools()
        await settled(second)
        assert not path.exists()
        assert other.returncode is None
        assert processes.find(other.pid) == seen
    finally:
        other.kill()
        await other.wait()


LOCKER = """
import sys
from pathlib import Path
from autoscaler.targets.local.pool import locked
with locked(Path(sys.argv[1])):
    pass
"""


def test_two_daemons_in_one_directory_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOCKER, str(tmp_path)]
    with locked(tmp_path):
        other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert f"is in use by another autoscaler (pid {os.getpid()})" in other.stderr
    assert subprocess.run(command, check=False).returncode == 0


async def test_an_address_with_a_listening_socket_is_skipped(pools: Pools) -> None:
    kind = StandIn()
    pool = await pools(kind)
    server = await asyncio.start_server(lambda _r, _w: None, f"{pool._block}.2", 0)
    async with server:
        assert f"{pool._block}.2" in processes.listening_addresses()
        await settle(pool, 1)
    assert kind.places[0].address == f"{pool._block}.3"


@pytest.mark.parametrize("content", ["", "{}", '{"desired": "many"}', '{"desired": -1}', '{"desired": true'])
async def test_an_unreadable_size_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "desired.json").write_text(content)
    with pytest.raises(RefusedError, match=r"desired\.json"):
        await Pool(tmp_path, StandIn(), times()).open()


async def test_an_unreadable_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "7.json").write_text("{")
    with pytest.raises(RefusedError, match=r"7\.json"):
        await Pool(tmp_path, StandIn(), times()).open()


async def test_a_size_that_cannot_be_written_is_not_accepted(tmp_path: Path, pools: Pools) -> None:
    pool = await pools()
    (tmp_path / "desired.tmp").mkdir()
    with pytest.raises(EdgeError, match="cannot be written"):
        await pool.scale(1)
    assert await pool.describe() == TargetStatus(desired=0, ready=0)


async def test_old_logs_of_ended_workers_are_removed(tmp_path: Path, pools: Pools) -> None:
    (tmp_path / "logs").mkdir()
    for number in range(1, 31):
        (tmp_path / "logs" / f"{number}.log").write_text("old")
    pool = await pools()
    await settle(pool, 1)
    assert sorted(pool._workers) == [31]
    await pool.scale(0)
    await settled(pool)
    await until(lambda: len(list((tmp_path / "logs").iterdir())) == 20)
    assert not (tmp_path / "local" / "31").exists()
