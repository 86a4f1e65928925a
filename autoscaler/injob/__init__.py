"""What a PySpark job imports: `report` shows its progress to the autoscaler, `ReactiveJob` schedules its queries."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autoscaler.injob.report import Reporter, report

if TYPE_CHECKING:
    from autoscaler.injob.reactive import JobFailedError, ReactiveJob, reactive_conf

__all__ = ["JobFailedError", "ReactiveJob", "Reporter", "reactive_conf", "report"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever has that name
    # A job that only reports loads no HTTP server.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("autoscaler.injob.reactive"), name)
