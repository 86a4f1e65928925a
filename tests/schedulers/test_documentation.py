"""What docs/contributing/schedulers.md says is what the code does."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from autoscaler.schedulers.flink import FlinkSettings, Restart
from autoscaler.schedulers.spark import SparkSettings

PAGE = Path(__file__).parents[2] / "docs" / "contributing" / "schedulers.md"


def test_its_examples_run() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.FAIL_FAST)
    assert found.attempted > 10
    assert found.failed == 0


@pytest.mark.parametrize(
    ("version", "cooldown", "stabilization", "delay"),
    [("1.18", 0, None, (1, None)), ("1.20", 30, None, (1, 1.5)), ("2.3", 30, 60, (1, 1.5))],
)
def test_its_table_has_the_defaults(
    version: str, cooldown: float, stabilization: float | None, delay: tuple[float, float | None]
) -> None:
    settings = FlinkSettings.of(version, checkpoint_interval=10.0)
    assert settings.cooldown == cooldown
    assert stabilization in {None, settings.stabilization}
    assert (settings.delay, settings.multiplier if settings.restart is Restart.EXPONENTIAL else None) == delay
    assert (settings.heartbeat, settings.max_delay, settings.checkpoint_failures) == (50, 30, 2)
    spark = SparkSettings()
    assert (spark.used_after, spark.heartbeat) == (4, 90)
