"""The listener through which Spark informs a reactive job of its queries' batches and of queries that end."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable
from typing import Any

from autoscaler.injob.reactive.measures import Meters
from autoscaler.injob.reactive.snapshot import Commit
from autoscaler.injob.report import query_listener


def progress_listener(
    events: queue.SimpleQueue[Any],
    meters: Meters,
    ended: Callable[[], None],
) -> Any:  # noqa: ANN401 - a StreamingQueryListener
    """A listener that puts each batch of a query, as a `Commit`, into `events`, and calls `ended` when a query ends."""
    last: dict[str, int] = {}

    def progressed(text: str) -> None:
        """A batch has ended; the same batch again means that the query has been idle for a while."""
        progress = json.loads(text)
        run, batch = progress["runId"], progress["batchId"]
        if last.get(run) == batch:
            meters.idle(progress["id"], run)
            return
        last[run] = batch
        took = progress.get("batchDuration", 0) / 1000
        events.put(
            Commit(
                number=0,
                query=run,
                batch=batch,
                began=time.time() - took,
                took=took,
                rows=progress.get("numInputRows") or 0,
                state_partitions=min(
                    (one["numShufflePartitions"] for one in progress.get("stateOperators") or ()), default=0
                ),
            )
        )
        meters.ended(progress)

    def terminated(_: str, run: str, __: str | None) -> None:
        ended()
        last.pop(run, None)
        meters.terminated(run)

    return query_listener(progressed=progressed, idle=meters.idle, terminated=terminated)
