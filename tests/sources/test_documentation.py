from __future__ import annotations

from pathlib import Path

from autoscaler.sources.spark_batch import BatchMetric
from autoscaler.sources.spark_metrics import Metric

PAGES = Path(__file__).parents[2] / "docs" / "integrations"
PAGE = (PAGES / "spark.md").read_text()


def test_every_metric_is_on_the_page() -> None:
    for metric in Metric:
        assert f"| `{metric}` |" in PAGE


def test_every_metric_of_batch_jobs_is_on_their_page() -> None:
    page = (PAGES / "spark-batch.md").read_text()
    for metric in BatchMetric:
        assert f"| `{metric}` |" in page
