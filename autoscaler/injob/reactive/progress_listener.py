"""What Spark tells a reactive job of its queries: their batches, and that one has ended."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable
from typing import Any

from autoscaler.injob.reactive.measures import Meters
from autoscaler.injob.reactive.snapshot import Commit
from autoscaler.injob.report import with_progress_as_text


def progress_listener(
    events: queue.SimpleQueue[Any],
    meters: Meters,
    ended: Callable[[], None],
) -> Any:  # noqa: ANN401 - a StreamingQueryListener
    """Puts each batch of a query, as a `Commit`, into `events`, and calls `ended` when a query has ended."""
    from pyspark.sql.streaming import StreamingQueryListener  # noqa: PLC0415 - only in a driver

    class Listener(StreamingQueryListener):  # type: ignore[misc]  # it has no types
        def __init__(self) -> None:
            self.last: dict[str, int] = {}

        def onQueryStarted(self, event: Any) -> None:  # noqa: ANN401, N802
            """Nothing is to be done."""

        def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401, N802
            """Spark calls it where there is no shorter way."""
            self.progressed(event.progress.json)

        def progressed(self, text: str) -> None:
            """A batch has ended, or there was none for a while."""
            progress = json.loads(text)
            run, batch = progress["runId"], progress["batchId"]
            if self.last.get(run) == batch:
                meters.idle(progress["id"], run)
                return
            self.last[run] = batch
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

        def onQueryIdle(self, event: Any) -> None:  # noqa: ANN401, N802
            """It has had nothing to do for a while."""
            meters.idle(str(event.id), str(event.runId))

        def onQueryTerminated(self, event: Any) -> None:  # noqa: ANN401, N802
            """The query is looked at, to know why."""
            ended()
            self.last.pop(str(event.runId), None)
            meters.terminated(str(event.runId))

    listener = Listener()
    return with_progress_as_text(listener, listener.progressed)
