"""A streaming data source without an external service: a virtual log that the load fills.

The log behaves like a topic with partitions: it grows with time, batches have a maximum size, and an offset always
names the same record. It needs Spark 4.2 or later.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from autoscaler.demo.load import BatchSizer, Clock, admit, split

if TYPE_CHECKING:
    import pyarrow as pa

MIN_BATCH = 10
"""The size limit of a batch is never below this many records per partition."""


class VirtualLog(DataSource):  # type: ignore[misc] # pyspark publishes no types here
    """The log as a Spark data source, named `virtual-log`.

    Options: `clock` (the file with the time when the load began), `partitions`, `maxRowsPerBatch`, and
    `secondsPerBatch` (the time that a batch should take).
    """

    @classmethod
    def name(cls) -> str:
        """The name in `spark.readStream.format(...)`."""
        return "virtual-log"

    def schema(self) -> str:
        """A record consists of its position in the log."""
        return "partition int, offset long"

    def streamReader(self, schema: object) -> VirtualLogReader:  # noqa: ARG002, N802 - Spark's signature
        """The reader of a streaming query."""
        return VirtualLogReader(
            Clock(Path(self.options["clock"])),
            int(self.options["partitions"]),
            int(self.options["maxRowsPerBatch"]),
            float(self.options["secondsPerBatch"]),
        )


@dataclass
class Slice(InputPartition):  # type: ignore[misc]
    """The records that one task reads: those of a partition from `begin` to below `end`."""

    partition: int
    begin: int
    end: int


class VirtualLogReader(DataSourceStreamReader):  # type: ignore[misc]
    """Reads the log with a limit on the size of a batch."""

    def __init__(self, clock: Clock, partitions: int, most: int, seconds: float) -> None:
        self._clock = clock
        self._partitions = partitions
        self._most = most
        self._sizer = BatchSizer(seconds, least=MIN_BATCH * partitions)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The beginning of the log."""
        return self._offset([0] * self._partitions)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The maximum size of a batch."""
        return ReadMaxRows(self._most)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The end of the next batch."""
        head = self._head()
        if not isinstance(limit, ReadMaxRows):
            return self._offset(head)
        begin, now = self._positions(start), time.monotonic()
        end = admit(begin, head, min(limit.max_rows, self._sizer.rows(now)))
        self._sizer.admitted(sum(end) - sum(begin), now)
        return self._offset(end)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """The end of the log, which makes the backlog visible."""
        return self._offset(self._head())

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Slice]:
        """One task per partition, including empty ones, so that the number of partitions is always visible."""
        return [
            Slice(number, begin, until)
            for number, (begin, until) in enumerate(zip(self._positions(start), self._positions(end), strict=True))
        ]

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:
        """The records of a slice. They follow from its bounds."""
        import pyarrow as pa  # noqa: PLC0415 - it belongs to an extra

        offsets = range(partition.begin, partition.end)
        if offsets:
            numbers = pa.array([partition.partition] * len(offsets), pa.int32())
            yield pa.RecordBatch.from_arrays([numbers, pa.array(offsets, pa.int64())], names=["partition", "offset"])

    def _head(self) -> list[int]:
        return split(self._clock.offered(), self._partitions)

    def _offset(self, positions: list[int]) -> dict[str, int]:
        return {str(number): position for number, position in enumerate(positions)}

    def _positions(self, offset: dict[str, Any]) -> list[int]:
        return [int(offset[str(number)]) for number in range(self._partitions)]
