"""Records as a dataset, written by Arrow alone: independent of the importer, and quick."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from autoscaler.core.model import Bound, Observation, Reading
from autoscaler.history.schema import TABLES
from autoscaler.ports import Record
from autoscaler.trace.verdict_trail import shortened


def dataset(directory: Path, records: Iterable[Record], *, decided: bool = True, rows_per_group: int = 1000) -> Path:
    """Write records as a dataset; optionally without decisions."""
    directory.mkdir(parents=True)
    (directory / "autoscaler-history.json").write_text(json.dumps({"format": "autoscaler-history", "version": 1}))
    ordered = sorted(records, key=lambda record: (record.decision.cluster, record.decision.at))
    write(directory, "observations", [observation(record) for record in ordered], rows_per_group)
    if decided:
        write(directory, "decisions", [decision(record) for record in ordered], rows_per_group)
    return directory


def write(directory: Path, table: str, rows: list[dict[str, Any]], rows_per_group: int = 1000) -> None:
    schema = to_arrow_schema(TABLES[table], timezone="UTC")
    schema = schema.remove(schema.get_field_index("date"))
    for day in sorted({row["at"].date() for row in rows}):
        place = directory / table / f"date={day}"
        place.mkdir(parents=True)
        made = pa.Table.from_pylist([row for row in rows if row["at"].date() == day], schema=schema)
        pq.write_table(made, place / "part-0.parquet", row_group_size=rows_per_group)


def observation(record: Record) -> dict[str, Any]:
    seen = record.observation
    return {
        "cluster": record.decision.cluster,
        "at": seen.at,
        "desired": seen.desired,
        "ready": seen.ready,
        "lag": _first(seen, "lag"),
        "metrics": {name: _metric(reading) for name, reading in seen.metrics.items()},
        "missing": dict(seen.missing),
        "engine": _engine(seen),
        "floor": _bound(seen.floor),
        "ceiling": _bound(seen.ceiling),
        "remarks": list(seen.remarks),
        "controls": [asdict(control) for control in seen.controls] or None,
    }


def _first(seen: Observation, name: str) -> float | None:
    reading = seen.metrics.get(name)
    return None if reading is None else sum(reading.value) if isinstance(reading.value, tuple) else reading.value


def _metric(reading: Reading) -> dict[str, Any]:
    several = isinstance(reading.value, tuple)
    return {
        "value": reading.mean if several else reading.value,
        "values": list(reading.value) if isinstance(reading.value, tuple) else None,
        "at": reading.at,
        "partitions": reading.partitions,
        "parts": {name: dict(numbers) for name, numbers in reading.parts.items()},
        "over": reading.over.total_seconds(),
    }


def _bound(bound: Bound | None) -> Mapping[str, Any] | None:
    return None if bound is None else {"replicas": bound.replicas, "reason": bound.reason}


def _engine(seen: Observation) -> Mapping[str, Any] | None:
    engine = seen.engine
    if engine is None:
        return None
    names = ("slots", "parallelism", "max_parallelism", "partitions", "running_since", "last_checkpoint", "restarts")
    deadlines = {phase.value: limit.total_seconds() for phase, limit in engine.deadlines.items()}
    return {"job": engine.job.value, **{name: getattr(engine, name) for name in names}, "deadlines": deadlines}


def decision(record: Record) -> dict[str, Any]:
    one = record.decision
    guards, verdicts = shortened(one.verdicts, one.proposed)
    return {
        **{name: getattr(one, name) for name in ("cluster", "at", "current", "proposed", "desired", "combined")},
        "reason": one.reason.value,
        "recommendations": [
            {
                "policy": asked.policy,
                "replicas": asked.replicas,
                "reason": asked.reason.value,
                "inputs": dict(asked.inputs),
                "detail": asked.detail,
            }
            for asked in one.recommendations
        ],
        "guards": " ".join(guards),
        "verdicts": [
            {
                "guard": verdict.guard.value,
                "before": verdict.before,
                "after": verdict.after,
                "reason": verdict.reason.value,
                "detail": verdict.detail,
            }
            for verdict in verdicts
        ],
        "notes": [{"reason": reason.value, "text": text} for reason, text in one.notes],
        "dry_run": record.dry_run,
        "failed": record.failed,
    }
