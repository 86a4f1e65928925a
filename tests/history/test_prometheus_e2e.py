"""A day of history from a real Prometheus server, imported and replayed."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoscaler import cli
from autoscaler.cli import history_prometheus, spark_options
from autoscaler.history import read
from tests.integration.test_real_prometheus import binary, running

pytestmark = pytest.mark.e2e

STEP = 15
DAY = 86_400
GAP = range(10 * 3600, 12 * 3600)
GROWN = 15 * 3600
LOOKBACK = 300
"""Seconds for which Prometheus takes a sample to hold, where nothing says that its series has ended."""

CONFIG = """
sources:
  prom: {{type: prometheus, url: '{url}'}}
clusters:
  orders:
    target: {{type: 'null'}}
    min: 1
    max: 12
    metrics: {{cpu: {{source: prom, query: 'avg by (cluster) (cpu)', match: {{cluster: orders}}}}}}
    policies: {{busy: {{type: target-tracking, metric: cpu, target: 0.7}}}}
  clicks:
    target: {{type: 'null'}}
    min: 1
    max: 12
    metrics: {{cpu: {{source: prom, query: 'cpu{{cluster="clicks"}}'}}}}
    policies: {{busy: {{type: target-tracking, metric: cpu, target: 0.7}}}}
"""


def cpu(cluster: str, second: int) -> float:
    wave = math.sin(2 * math.pi * second / DAY)
    return round(0.6 + 0.3 * wave if cluster == "orders" else 0.7, 6)


def size(cluster: str, second: int) -> int:
    return 3 if cluster == "clicks" else 4 if second < GROWN else 6


@dataclass
class World:
    """A server, and the start of its day."""

    url: str
    begin: int


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    binary()
    directory = tmp_path_factory.mktemp("history") / "run"
    directory.mkdir()
    # Blocks must be younger than Prometheus's retention.
    begin = (int(time.time()) - DAY - 3600) // 3600 * 3600
    families = {"cpu": cpu, "autoscaler_current_replicas": size, "autoscaler_ready_replicas": size}
    with (directory / "day.om").open("w") as lines:
        for name, value in families.items():
            lines.write(f"# TYPE {name} gauge\n")
            for cluster in ("orders", "clicks"):
                for second in range(0, DAY, STEP):
                    if second not in GAP:
                        labels = f'{{cluster="{cluster}"}}'
                        lines.write(f"{name}{labels} {value(cluster, second)} {begin + second}\n")
        lines.write("# EOF\n")
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool comes with Prometheus"
    backfill = [promtool, "tsdb", "create-blocks-from", "openmetrics", str(directory / "day.om")]
    subprocess.run([*backfill, str(directory / "data")], check=True, capture_output=True)
    with running(directory, "global: {}") as url:
        yield World(url, begin)


def import_(world: World, tmp_path: Path, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    history_prometheus.add_arguments(parser)
    spark_options.add_arguments(parser)
    parser.add_argument("--json", action="store_true")
    (tmp_path / "config.yaml").write_text(CONFIG.format(url=world.url))
    since, until = (datetime.fromtimestamp(world.begin + second, UTC).isoformat() for second in (0, DAY - STEP))
    given = ["--prometheus", "--config", str(tmp_path / "config.yaml"), "--from", since, "--to", until]
    return history_prometheus.run(parser.parse_args([*given, "--rate", "1000", *arguments]), tmp_path / "dataset")


@pytest.mark.usefixtures("spark")
def test_a_day_of_prometheus_is_replayed_beside_the_actual_sizes(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert import_(world, tmp_path, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    held = (DAY - (GAP.stop - GAP.start - LOOKBACK)) // STEP
    assert printed["clusters"] == {
        name: {"observations": printed["clusters"][name]["observations"], "with_size": held}
        for name in ("orders", "clicks")
    }
    for cluster in ("orders", "clicks"):
        for record in read.read(tmp_path / "dataset", clusters=[cluster]):
            seen = record.observation
            second = round(seen.at.timestamp()) - world.begin
            true = GAP.start - STEP if second in GAP else second
            assert seen.desired == seen.ready == size(cluster, true)
            assert seen.metrics["cpu"].value == cpu(cluster, true)
            # For a plain selector, Prometheus has the time of its sample.
            stamp = seen.at if cluster == "orders" else datetime.fromtimestamp(world.begin + true, UTC)
            assert seen.metrics["cpu"].at == stamp
            assert not seen.missing

    assert cli.main(["replay", str(tmp_path / "dataset"), str(tmp_path / "config.yaml"), "--json"]) == 0
    clusters = json.loads(capsys.readouterr().out)["clusters"]
    orders, clicks = clusters["orders"], clusters["clicks"]
    assert clicks["equal"] == clicks["decisions"]
    assert orders["rescales"]["recorded"] == 1
    assert orders["replica_hours"]["recorded"] == pytest.approx(4 * 13 + 6 * 9, rel=0.02)
    # The busy half of the day would have had more than four, the quiet one fewer than six.
    more, *_, fewer = orders["differences"]
    assert more["recorded"] == [4, 4]
    assert more["replica_hours"] > 1
    assert fewer["recorded"][1] == 6
    assert fewer["replica_hours"] < -1

    # Other windows and another step give the same in the overlap.
    assert import_(world, tmp_path, "--window", "1d", "--step", "30s", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["added"] == 0
    assert again["known"] == pytest.approx(held, abs=2)


@pytest.mark.usefixtures("spark")
def test_a_replay_needs_no_engine_which_prometheus_does_not_have(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert import_(world, tmp_path) == 0
    engine = "    engine: {type: flink, url: 'http://127.0.0.1:9'}\n    min: 1\n"
    config = CONFIG.format(url=world.url).replace("    min: 1\n", engine, 1)
    (tmp_path / "config.yaml").write_text(config)
    capsys.readouterr()
    assert cli.main(["replay", str(tmp_path / "dataset"), str(tmp_path / "config.yaml"), "--json"]) == 0
    captured = capsys.readouterr()
    assert "orders: the history has no engine" in captured.err
    assert min(one["again"][0] for one in json.loads(captured.out)["clusters"]["orders"]["differences"]) < 6
