"""The virtual log in the way Spark calls it, without a running Spark."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed (extra spark)")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from autoscaler.demo.load import Clock, Load, start_clock
from autoscaler.demo.spark.source import VirtualLog, VirtualLogReader

LOAD = Load(((0.0, 100.0),), 10.0)


def reader(path: Path, most: int = 30) -> VirtualLogReader:
    options = {"clock": str(path), "partitions": "3", "maxRowsPerBatch": str(most), "secondsPerBatch": "2"}
    return VirtualLog(options).streamReader(None)


def test_nothing_is_offered_before_the_clock_starts(tmp_path: Path) -> None:
    log = reader(tmp_path / "clock.json")
    assert log.initialOffset() == {"0": 0, "1": 0, "2": 0}
    assert log.latestOffset(log.initialOffset(), log.getDefaultReadLimit()) == log.initialOffset()
    assert log.reportLatestOffset() == log.initialOffset()
    start_clock(tmp_path / "clock.json", LOAD, time.time() + 60)
    assert log.reportLatestOffset() == log.initialOffset()


def test_a_batch_is_limited_and_the_backlog_stays_visible(tmp_path: Path) -> None:
    start_clock(tmp_path / "clock.json", LOAD, time.time() - 60)
    log = reader(tmp_path / "clock.json")
    assert log.getDefaultReadLimit() == ReadMaxRows(30)
    first = log.latestOffset(log.initialOffset(), ReadMaxRows(30))
    assert first == {"0": 11, "1": 10, "2": 9}
    assert log.reportLatestOffset() == {"0": 334, "1": 333, "2": 333}
    assert sum(log.latestOffset(first, ReadMaxRows(30)).values()) == 60
    assert log.latestOffset(first, ReadAllAvailable()) == log.reportLatestOffset()


def test_an_offset_always_names_the_same_records(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra spark)")
    log = reader(tmp_path / "clock.json")
    # Offsets restored from a checkpoint come as Spark wrote them.
    slices = log.partitions({"0": 2, "1": 5, "2": 0}, {"0": 4, "1": 5, "2": 1})
    rows = [tuple(row.values()) for piece in slices for batch in log.read(piece) for row in batch.to_pylist()]
    assert len(slices) == 3
    assert rows == [(0, 2), (0, 3), (2, 0)]


def test_all_readers_of_the_clock_count_the_same(tmp_path: Path) -> None:
    start_clock(tmp_path / "clock.json", LOAD, time.time() - 60)
    assert Clock(tmp_path / "clock.json").offered() == LOAD.offered(60) == 1000
