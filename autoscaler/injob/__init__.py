"""The API for PySpark jobs.

`report` serves the job's progress to the autoscaler. `ReactiveJob` schedules the job's streaming queries.
`adaptive_batch` sets the number of tasks of each stage of the job's batch queries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autoscaler.injob.report import Reporter, report

if TYPE_CHECKING:
    from autoscaler.injob.batch import AdaptiveBatch, BatchReportError, adaptive_batch, batch_report
    from autoscaler.injob.reactive import JobFailedError, ReactiveJob, reactive_conf

__all__ = [
    "AdaptiveBatch",
    "BatchReportError",
    "JobFailedError",
    "ReactiveJob",
    "Reporter",
    "adaptive_batch",
    "batch_report",
    "reactive_conf",
    "report",
]

_BATCH = {"AdaptiveBatch", "BatchReportError", "adaptive_batch", "batch_report"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any exported object
    # Import on first use: a job that only calls report() does not load the server of the reactive job's REST API.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "autoscaler.injob.batch" if name in _BATCH else "autoscaler.injob.reactive"
    return getattr(importlib.import_module(module), name)
