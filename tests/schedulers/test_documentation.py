"""The table of schedulers in docs/contributing/calculations.md has the defaults of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoscaler.schedulers.flink import FlinkSettings, Restart
from autoscaler.schedulers.spark import SparkSettings

PAGE = (Path(__file__).parents[2] / "docs" / "contributing" / "calculations.md").read_text(encoding="utf-8")


def test_every_setting_of_the_table_exists_in_the_code() -> None:
    table = PAGE.partition("| Flink, executing job |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z_]+)`", table))
    assert len(named) > 5
    settings = FlinkSettings.of("2.3")
    assert {name for name in named if not hasattr(settings, name)} == set()


@pytest.mark.parametrize(
    ("version", "cooldown", "stabilization", "delay"),
    [("1.18", 0, None, (1, None)), ("1.20", 30, None, (1, 1.5)), ("2.3", 30, 60, (1, 1.5))],
)
def test_the_table_has_the_defaults_of_the_code(
    version: str, cooldown: float, stabilization: float | None, delay: tuple[float, float | None]
) -> None:
    settings = FlinkSettings.of(version, checkpoint_interval=10.0)
    assert settings.cooldown == cooldown
    assert stabilization in {None, settings.stabilization}
    assert (settings.delay, settings.multiplier if settings.restart is Restart.EXPONENTIAL else None) == delay
    assert (settings.heartbeat, settings.max_delay, settings.checkpoint_failures) == (50, 30, 2)
    spark = SparkSettings()
    assert (spark.used_after, spark.heartbeat) == (4, 90)
