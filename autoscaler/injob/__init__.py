"""What a PySpark job imports: `report(spark)` lets the autoscaler see the progress of its queries."""

from autoscaler.injob.report import Reporter, report

__all__ = ["Reporter", "report"]
