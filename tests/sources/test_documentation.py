from __future__ import annotations

from pathlib import Path

from autoscaler.sources.spark_metrics import Metric

PAGE = (Path(__file__).parents[2] / "docs" / "integrations" / "spark.md").read_text()


def test_every_metric_is_on_the_page() -> None:
    for metric in Metric:
        assert f"| `{metric}` |" in PAGE
