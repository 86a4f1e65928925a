"""The cost of 10,000 clusters at an interval of 10 s in PostgreSQL: processor time, latency, log, and dead rows.

The server writes to a real disk (`fsync`), and the server and the daemon's part run on this machine. The effect of
autovacuum shows only in a longer run: AUTOSCALER_BENCH_SECONDS.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from autoscaler.core.model import ClusterState, Observation, Reading
from autoscaler.core.step import step
from autoscaler.daemon.postgres_store import PostgresStateStore
from autoscaler.ports import Record
from tests.daemon.conftest import spec
from tests.postgres_server import PostgresServer, postgres

pytestmark = pytest.mark.benchmark

CLUSTERS = int(os.environ.get("AUTOSCALER_BENCH_CLUSTERS", "10000"))
INTERVAL = 10.0
SPAN = float(os.environ.get("AUTOSCALER_BENCH_SECONDS", "60"))
DECISIONS = 16
"""So few that the measured ticks delete as much as they write, as those of a daemon that runs for long."""

BEFORE = 2 * DECISIONS
"""Ticks of each cluster before it is measured."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres("fsync=on", "shared_buffers=512MB", "track_wal_io_timing=off") as server:
        yield server


def ticks() -> list[tuple[ClusterState, Record]]:
    """States and decisions as after a while: with the past of 5 minutes."""
    found: list[tuple[ClusterState, Record]] = []
    state = ClusterState()
    for number in range(60):
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=INTERVAL * number)
        readings = {name: Reading(300.0 + number, at) for name in ("load", "arrivals", "throughput")}
        observation = Observation(at=at, desired=3, ready=3, metrics=readings)
        state, decision = step(spec("a"), state, observation)
        found.append((state, Record(state.past[-1], decision)))
    return found[-20:]


def processor_time(server: PostgresServer) -> float:
    """Of all processes of the server, in seconds; the postmaster has the time of ended ones, such as autovacuum's."""
    postmaster = psutil.Process(server.pid)
    return sum(postmaster.cpu_times()[:4]) + sum(sum(child.cpu_times()[:2]) for child in postmaster.children())


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


async def test_the_cost_of_ten_thousand_clusters(server: PostgresServer) -> None:
    url = server.database()
    store = PostgresStateStore(url, DECISIONS, leases=True)
    names = [f"prod-{number % 40}/stream-{number:05}" for number in range(CLUSTERS)]
    await store.renew("bench", "")
    await store.take(names)
    content = ticks()
    begun = time.perf_counter()
    for number in range(BEFORE):
        state, record = content[number % len(content)]
        for start in range(0, CLUSTERS, 2000):
            await asyncio.gather(*(store.save(name, state, record) for name in names[start : start + 2000]))
            await store.renew("bench", "")
    fast = CLUSTERS * BEFORE / (time.perf_counter() - begun)
    server.execute("VACUUM ANALYZE", url)
    ((lsn,),) = server.execute("SELECT pg_current_wal_lsn()::text", url)
    statistics = (
        "SELECT sum(n_tup_upd), sum(n_tup_hot_upd), sum(autovacuum_count) FROM pg_stat_user_tables "
        "WHERE relname = 'cluster'"
    )
    ((updates, hot, _),) = server.execute(statistics, url)
    size = "SELECT pg_table_size('autoscaler.cluster'), pg_total_relation_size('autoscaler.decision')"
    sizes = server.execute(size, url)[0]
    latencies: list[float] = []

    async def cluster(index: int) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + INTERVAL * index / CLUSTERS
        end = loop.time() + SPAN
        number = 0
        while due < end:
            await asyncio.sleep(due - loop.time())
            started = loop.time()
            await store.save(names[index], *content[number % len(content)])
            latencies.append(loop.time() - started)
            number += 1
            due += INTERVAL

    async def renew() -> None:
        while True:
            await store.renew("bench", "")
            await asyncio.sleep(3)

    used, own, begun = processor_time(server), time.process_time(), time.perf_counter()
    renewing = asyncio.create_task(renew())
    await asyncio.gather(*(cluster(index) for index in range(CLUSTERS)))
    renewing.cancel()
    took = time.perf_counter() - begun
    used, own = processor_time(server) - used, time.process_time() - own
    await store.close()
    ((log,),) = server.execute(f"SELECT pg_current_wal_lsn() - '{lsn}'::pg_lsn", url)
    await asyncio.sleep(1)  # the server's statistics are a little late
    ((updates_after, hot_after, vacuums),) = server.execute(statistics, url)
    after = server.execute(size, url)[0]
    saves = len(latencies)
    changed = int(str(updates_after)) - int(str(updates))
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\n{saves} saves of {CLUSTERS} clusters in {took:.0f} s: {saves / took:.0f} a second (at most {fast:.0f})"
        f"\n  state {len(repr(content[0][0]))} characters as shown; {DECISIONS} decisions of each are kept"
        f"\n  waited for a save    {quantile(latencies, 0.5) * 1000:6.1f} ms median, "
        f"{quantile(latencies, 0.99) * 1000:6.1f} ms at p99, {max(latencies) * 1000:6.1f} ms at most"
        f"\n  PostgreSQL           {used / took:6.1%} of a core (goal 30 %), {used / saves * 1e6:6.0f} us a save"
        f"\n  the daemon's part    {own / took:6.1%} of a core, {own / saves * 1e6:6.0f} us a save"
        f"\n  log (WAL)            {int(str(log)) / saves:6.0f} bytes a save"
        f"\n  updates without an index change {(int(str(hot_after)) - int(str(hot))) / changed:6.1%} of {changed}, "
        f"autovacuum of states: {vacuums}"
        f"\n  states               {int(str(sizes[0])) / 2**20:6.0f} MiB, then {int(str(after[0])) / 2**20:.0f} MiB"
        f"\n  decisions            {int(str(sizes[1])) / 2**20:6.0f} MiB, then {int(str(after[1])) / 2**20:.0f} MiB"
    )
    assert saves >= 0.9 * CLUSTERS * SPAN / INTERVAL
