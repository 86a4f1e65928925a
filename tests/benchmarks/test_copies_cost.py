"""The cost of two copies with 5,000 clusters each on one machine, with their PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.benchmarks.test_daemon_cost import configuration, download, parsed, prometheus, quantile, started
from tests.benchmarks.test_postgres_store import processor_time
from tests.postgres_server import PostgresServer, postgres

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.skipif(
        "AUTOSCALER_BENCH_LARGE" not in os.environ, reason="AUTOSCALER_BENCH_LARGE is not set: 4 minutes"
    ),
]

COPIES, CLUSTERS, INTERVAL = 2, 10_000, 15
SETTLE = 60.0
"""Seconds until all clusters have ticked a few times."""

SPAN = float(os.environ.get("AUTOSCALER_BENCH_SECONDS", "90"))

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@contextmanager
def copy_of(directory: Path, config: str, url: str) -> Iterator[tuple[psutil.Process, str]]:
    """A running copy; yields its process and its URL."""
    directory.mkdir()
    (directory / "config.yaml").write_text(config)
    log = directory / "log"
    with log.open("wb") as stderr:
        command = [sys.executable, "-m", "autoscaler", "run", str(directory / "config.yaml")]
        daemon = subprocess.Popen(command, stderr=stderr, env={**os.environ, "AUTOSCALER_STATE": url})
        try:
            yield psutil.Process(daemon.pid), started(log, daemon)
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(60) == 0
        finally:
            daemon.kill()
            daemon.wait()


def written(server: PostgresServer, url: str) -> tuple[float, float, float]:
    """Transactions of the copies' database, bytes of its log, and seconds of its processes, since its start."""
    with psycopg.connect(url, autocommit=True) as connection:
        commits = connection.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
        log = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')").fetchone()
    assert commits is not None
    assert log is not None
    return float(commits[0]), float(log[0]), processor_time(server)


def test_two_copies_of_five_thousand_clusters(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(postgres("fsync=on", "shared_buffers=512MB"))
        url = server.database()
        port = stack.enter_context(prometheus(CLUSTERS))
        config = configuration(port, CLUSTERS, INTERVAL).replace("daemon: {", "daemon: {state: '${AUTOSCALER_STATE}', ")
        copies = [stack.enter_context(copy_of(tmp_path / str(number), config, url)) for number in range(COPIES)]
        time.sleep(SETTLE)

        def scraped() -> list[Samples]:
            return [parsed(download(url)) for _, url in copies]

        def used() -> list[float]:
            return [sum(process.cpu_times()[:2]) for process, _ in copies]

        before, cpu, database, begun = scraped(), used(), written(server, url), time.monotonic()
        time.sleep(SPAN)
        after = scraped()
        span = time.monotonic() - begun
        commits, log, busy = (after - then for after, then in zip(written(server, url), database, strict=True))
        cpus = [(after - then) / span for after, then in zip(used(), cpu, strict=True)]
        resident = [process.memory_info().rss for process, _ in copies]
    count = ("autoscaler_tick_lateness_seconds_count", ())
    ticks = sum(new[count] - old[count] for new, old in zip(after, before, strict=True))
    late = [
        quantile(old, new, "autoscaler_tick_lateness_seconds", 0.99) for new, old in zip(after, before, strict=True)
    ]
    owned = [int(samples["autoscaler_leases_owned", ()]) for samples in after]
    missing = sum(
        value for samples in after for (name, _), value in samples.items() if name == "autoscaler_reading_missing"
    )
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\n{COPIES} copies with {owned} clusters, 3 metrics each, every {INTERVAL} s, {span:.0f} s"
        f"\n  ticks      {ticks / (CLUSTERS * span / INTERVAL):7.1%} of those that were due"
        f"\n  lateness   {' and '.join(f'{each * 1000:.0f}' for each in late)} ms at p99, at most"
        f"\n  copies     {' and '.join(f'{each:.1%}' for each in cpus)} of a core, "
        f"{' and '.join(f'{each / 1e6:.0f}' for each in resident)} MB"
        f"\n  PostgreSQL {busy / span:7.1%} of a core, {ticks / span:.0f} saves/s, "
        f"{ticks / commits:.1f} in a transaction, {log / ticks:.0f} bytes of log for each"
        f"\n  missing    {missing:.0f} readings"
    )
    assert sum(owned) == CLUSTERS
    assert ticks >= 0.95 * CLUSTERS * span / INTERVAL
    assert max(late) < 1.0
    assert busy < 0.30 * span
    assert ticks > 2 * commits
