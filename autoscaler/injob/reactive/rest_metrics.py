"""Metrics of a vertex, that is a query, in Flink 2.3's format: pure functions of a snapshot.

Flink measures each subtask, and Spark measures the query. Each subtask therefore shows an equal share of the query's
records, and the query's busy share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from autoscaler.injob.reactive.rest_answers import Question, RequestError, task_counts, unresolved
from autoscaler.injob.reactive.snapshot import Measures, Query

AGGREGATES = ("min", "max", "avg", "sum", "skew")
"""In the order of Flink's responses."""


def subtask_metrics(question: Question) -> object:
    """The names of a vertex's metrics, or their aggregates over its subtasks.

    As in Flink, the list does not have unknown metrics, and the response to a request with an unknown metric is empty.
    """
    wanted = _aggregates(question.query)
    query = next((one for one in question.job.queries if one.id == question.ids["vertex"]), None)
    if question.ids["job"] != question.job.id or query is None or query.measures is None:
        return []
    running = task_counts(question.job, query)["RUNNING"]
    chosen = _chosen(question.query["subtasks"], running) if "subtasks" in question.query else running
    found = vertex_metrics(query, query.measures, max(1, running))
    if not chosen:
        return []
    if "get" not in question.query:
        return [{"id": name} for name in found]
    names = question.query["get"].split(",")
    if not found.keys() >= set(names):
        return []
    return [_aggregate(name, found[name], chosen, wanted) for name in names]


def taskmanager_metrics(question: Question) -> object:
    """An empty list: Spark's executors report neither their heap size nor their CPU load to the driver."""
    _aggregates(question.query)
    return []


def vertex_metrics(query: Query, measures: Measures, subtasks: int) -> dict[str, float]:
    """The known metrics of a vertex: Flink's name of each metric -> its value in each subtask."""
    source = f"Source__{re.sub('[ .:,]', '_', query.name)}."
    share, busy = measures.busy_share, measures.busy
    each = {
        "accumulateBusyTimeMs": None if busy is None else round(busy * 1000),
        "accumulateIdleTimeMs": None if busy is None else round((measures.age - busy) * 1000),
        # A query has no downstream operator that could exert back-pressure.
        "accumulateBackPressuredTimeMs": None if busy is None else 0,
        "busyTimeMsPerSecond": None if share is None else share * 1000,
        "idleTimeMsPerSecond": None if share is None else (1 - share) * 1000,
        "backPressuredTimeMsPerSecond": None if share is None else 0,
        f"{source}currentOutputWatermark": None if measures.watermark is None else round(measures.watermark * 1000),
        f"{source}sourceIdleTime": round(measures.idle * 1000),
    }
    together = {
        "numRecordsIn": measures.records,
        "numRecordsInPerSecond": measures.rate,
        "numRecordsOut": measures.written,
        f"{source}numRecordsIn": measures.records,
        f"{source}numRecordsInPerSecond": measures.rate,
        f"{source}pendingRecords": measures.pending,
    }
    shares = {name: None if value is None else value / subtasks for name, value in together.items()}
    return {name: float(value) for name, value in (each | shares).items() if value is not None}


def _aggregate(name: str, value: float, subtasks: int, wanted: frozenset[str]) -> dict[str, object]:
    figures = {"min": value, "max": value, "avg": value, "sum": value * subtasks, "skew": 0.0}
    return {"id": name} | {kind: figures[kind] for kind in AGGREGATES if kind in wanted}


def _aggregates(query: Mapping[str, str]) -> frozenset[str]:
    """The requested aggregates. Raises RequestError."""
    text = query.get("agg", ",".join(AGGREGATES))
    wanted = frozenset(text.lower().split(","))
    if not wanted <= set(AGGREGATES):
        raise RequestError(400, f"{unresolved('query', 'agg', text)} Expected some of {', '.join(AGGREGATES)}.")
    return wanted


def _chosen(text: str, subtasks: int) -> int:
    """How many of the subtasks an expression such as `0,2-3` selects; as in Flink, 0 if it cannot be parsed."""
    found: set[int] = set()
    for part in text.split(","):
        span = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if span is None:
            return 0
        found.update(range(int(span[1]), min(subtasks - 1, int(span[2] or span[1])) + 1))
    return len(found)
