"""The default stabilization window depends on the policies; a configured one holds."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest

from autoscaler.config import load
from autoscaler.core.model import DOWN, STABILIZED, Behaviour, ClusterSpec, Limits, NamedPolicy
from autoscaler_policies.adaptive.policy import Adaptive
from autoscaler_policies.rules.target_tracking import TargetTracking
from autoscaler_policies.schedule.policy import Schedule, Window

FILE = """
daemon: {directory: var}
sources:
  prom: {type: prometheus, url: "http://127.0.0.1:9090"}
clusters:
  c:
    target: {type: advice}
    max: 10
    metrics:
      cpu: {source: prom, query: cpu}
      lag: {source: prom, query: lag}
      arrivals: {source: prom, query: arrivals}
      throughput: {source: prom, query: throughput}
    policies: {POLICIES}
    DOWN
"""
OWN = "{main: {type: adaptive}}"
OTHER = "{cpu: {type: target-tracking, metric: cpu, target: 0.6}}"
BOTH = "{main: {type: adaptive}, cpu: {type: target-tracking, metric: cpu, target: 0.6}}"
TIMED = (
    '{main: {type: adaptive}, day: {type: schedule, windows: [{name: day, start: "0 8 * * *", duration: 9h, min: 2}]}}'
)
ADAPTIVE = NamedPolicy("main", Adaptive())
TRACKING = NamedPolicy("cpu", TargetTracking("cpu", 0.6))
CALENDAR = NamedPolicy("day", Schedule((Window(name="day", start="0 8 * * *", duration=timedelta(hours=9), min=2),)))


@pytest.mark.parametrize(
    ("policies", "down", "window"),
    [
        (OWN, "", 0),
        (OWN, "down: {cooldown: 1m}", 0),
        (OWN, "down: {window: 5m}", 300),
        (OWN, "down: {window: 2m, tolerance: 0.1}", 120),
        (TIMED, "", 0),
        (OTHER, "", 300),
        (OTHER, "down: {cooldown: 1m}", 300),
        (OTHER, "down: {window: 0s}", 0),
        (BOTH, "", 300),
        (BOTH, "down: {cooldown: 1m}", 300),
    ],
)
def test_the_down_window_is_the_configured_one_or_else_the_one_the_policies_need(
    tmp_path: Path, policies: str, down: str, window: int
) -> None:
    path = tmp_path / "autoscaler.yaml"
    path.write_text(FILE.replace("{POLICIES}", policies).replace("DOWN", down))
    spec = load(path, {}).clusters["c"].spec
    assert spec.down.window == timedelta(seconds=window)
    assert spec.down.cooldown == timedelta(minutes=1 if "cooldown" in down else 0)


@pytest.mark.parametrize(
    ("policies", "down"),
    [
        ((), DOWN),
        ((TRACKING,), DOWN),
        ((CALENDAR,), DOWN),
        ((ADAPTIVE, TRACKING), DOWN),
        ((ADAPTIVE,), STABILIZED),
        ((ADAPTIVE, CALENDAR), STABILIZED),
    ],
)
def test_a_spec_has_the_window_that_its_policies_need(policies: tuple[NamedPolicy, ...], down: Behaviour) -> None:
    assert ClusterSpec(name="c", limits=Limits(1, 2), policies=policies).down == down


def test_with_other_policies_the_window_is_back() -> None:
    spec = ClusterSpec(name="c", limits=Limits(1, 2), policies=(ADAPTIVE,))
    assert dataclasses.replace(spec, policies=(TRACKING,)).down == DOWN
    assert dataclasses.replace(spec, limits=Limits(1, 3)).down == STABILIZED


def test_a_configured_window_is_kept_whatever_the_policies_do() -> None:
    assert (
        ClusterSpec(
            name="c", limits=Limits(1, 2), policies=(ADAPTIVE,), down=Behaviour(window=timedelta(minutes=5))
        ).down
        == DOWN
    )
    assert ClusterSpec(name="c", limits=Limits(1, 2), policies=(TRACKING,), down=Behaviour()).down == STABILIZED
