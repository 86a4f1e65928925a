"""A warning for an objective that is shorter than the time until anything can be observed."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoscaler.config import load

FILE = """
daemon: {directory: var}
sources:
  prom: {type: prometheus, url: "http://127.0.0.1:9090"}
clusters:
  c:
    target: {type: advice}
    max: 10
    interval: INTERVAL
    metrics:
      lag: {source: prom, query: lag}
      arrivals: {source: prom, query: arrivals}
      throughput: {source: prom, query: throughput}
    policies:
      main: {POLICY}
"""


def warnings(folder: Path, interval: str, policy: str) -> list[str]:
    path = folder / "autoscaler.yaml"
    path.write_text(FILE.replace("INTERVAL", interval).replace("POLICY", policy))
    return [str(warning) for warning in load(path, {}).warnings]


def test_an_objective_below_the_interval_gives_a_warning_at_its_line(tmp_path: Path) -> None:
    (warning,) = warnings(tmp_path, "15s", "type: adaptive, objective: 14s")
    where, message = warning.split(": ", 1)
    assert where.endswith("autoscaler.yaml:15")
    assert message == (
        "clusters.c.policies.main.objective: an objective of 14s is shorter than the interval of the cluster (15s): "
        "records may be too old before the next tick; write an objective that is a few times as long as a restart of "
        "the job, or a shorter interval"
    )


def test_the_default_objective_gives_a_warning_at_the_line_of_the_policy(tmp_path: Path) -> None:
    (warning,) = warnings(tmp_path, "2m", "type: adaptive")
    assert (
        "autoscaler.yaml:15: clusters.c.policies.main: an objective of 1m is shorter than the interval of the cluster "
        "(2m)"
    ) in warning


@pytest.mark.parametrize("policy", ["type: adaptive, objective: 15s", "type: backlog-drain, drain_time: 1s"])
def test_a_longer_objective_or_none_gives_no_warning(tmp_path: Path, policy: str) -> None:
    assert warnings(tmp_path, "15s", policy) == []
