"""The page of a finished run, as one file: for `simulate`, `replay` and `demo` with `--open`."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from autoscaler.config.model import Cluster
from autoscaler.core.model import ClusterState
from autoscaler.daemon.controller import Counters
from autoscaler.daemon.http_requests import decision_document
from autoscaler.daemon.learned import learned_document
from autoscaler.daemon.rows import row_document
from autoscaler.daemon.series import Points, Series, sample, series_document
from autoscaler.daemon.status import ClusterSnapshot
from autoscaler.ports import AutoscalerError, Record
from autoscaler.trace.codec import call_failure
from autoscaler.web import self_contained

MOST_POINTS = 2000

MOST_TRAILS = 300
"""Most decisions with their whole trail: the newest ones that changed the size. The last decision is added."""


class RecordedRun(NamedTuple):
    """A cluster, its records, oldest first, and its state at the end."""

    cluster: Cluster
    records: Sequence[Record]
    state: ClusterState


def open_page(runs: Sequence[RecordedRun], path: Path | None = None) -> Path:
    """Write the page of runs into a file, by default a temporary one, and open it if there is a display.

    Raises:
        AutoscalerError: the file cannot be written.
    """
    try:
        if path is None:
            opened, name = tempfile.mkstemp(prefix="autoscaler-", suffix=".html")
            os.close(opened)
            path = Path(name)
        path.write_text(self_contained(run_document(runs)))
    except OSError as error:
        raise AutoscalerError(f"{path or tempfile.gettempdir()}: cannot be written: {error.strerror}") from error
    if sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        webbrowser.open(path.absolute().as_uri())
    return path


def run_document(runs: Sequence[RecordedRun]) -> Mapping[str, object]:
    """The data of runs for the page."""
    documents = {run.cluster.spec.name: _documents(run) for run in runs if run.records}
    return {
        "clusters": [row for row, _, _ in documents.values()],
        "series": {name: series for name, (_, series, _) in documents.items()},
        "decisions": {name: decisions for name, (_, _, decisions) in documents.items()},
    }


def _documents(run: RecordedRun) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, object]]]:
    spec, records = run.cluster.spec, run.records
    first, last = records[0].decision.at.timestamp(), records[-1]
    now = last.decision.at
    interval = spec.interval.total_seconds()
    points, series = Points(max(interval, (now.timestamp() - first) / MOST_POINTS)), Series()
    for record in records:
        points.add(record.decision.at.timestamp(), sample(spec, run.state, record))
        series.add_changes(record)
    rows = points.rows(first, now.timestamp())
    changes = series.changes(first, now.timestamp())
    drawn = series_document(rows, first, now.timestamp() + interval, MOST_POINTS, points.width, changes)
    pairs = zip(records, [*records[1:], None], strict=True)
    kept = [pair for pair in pairs if pair[0].decision.rescale][-MOST_TRAILS:]
    if not last.decision.rescale:
        kept.append((last, None))
    snapshot = ClusterSnapshot.unknown(run.cluster, None, "", dry_run=last.dry_run)._replace(
        observation=last.observation,
        decision=last.decision,
        state=run.state,
        problem=None,
        trouble=None,
        controls=last.observation.controls,
        counters=Counters(),
    )
    learned = learned_document(spec, run.state, series.settled(), None, now)
    explained = [decision_document(record, call_failure(record, newer)) for record, newer in kept]
    return {**row_document(snapshot, now), "learned": learned, **explained[-1]}, drawn, explained
