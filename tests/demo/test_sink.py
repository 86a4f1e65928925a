"""Reading the sink exactly, from files in the layout of Spark's file sink."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autoscaler.demo.sink import Account, Arrival, account, commits, committed_files, read_sink


def log(sink: Path, name: str, *files: str) -> None:
    (sink / "_spark_metadata").mkdir(parents=True, exist_ok=True)
    entries = [json.dumps({"path": f"file://{sink}/{file}", "size": 1, "action": "add"}) for file in files]
    (sink / "_spark_metadata" / name).write_text("\n".join(("v1", *entries)))


def names(sink: Path) -> list[str]:
    return [path.name for path in committed_files(sink)]


def test_each_record_exactly_once_is_exact() -> None:
    arrivals = [(1, 0), (0, 1), (0, 0)]
    assert account([2, 1], arrivals) == Account(offered=3, processed=3, lost=0, duplicated=0, strange=0)
    assert account([2, 1], arrivals).exact


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        ([(0, 0), (0, 1)], Account(offered=3, processed=2, lost=1, duplicated=0, strange=0)),
        ([(0, 0), (0, 1), (1, 0), (1, 0)], Account(offered=3, processed=4, lost=0, duplicated=1, strange=0)),
        ([(0, 0), (0, 1), (1, 0), (1, 1)], Account(offered=3, processed=4, lost=0, duplicated=0, strange=1)),
        # as many as offered, but wrong
        ([(0, 0), (0, 0), (1, 0)], Account(offered=3, processed=3, lost=1, duplicated=1, strange=0)),
        ([], Account(offered=3, processed=0, lost=3, duplicated=0, strange=0)),
    ],
)
def test_deviations_from_exactly_once_are_distinguished(arrivals: list[tuple[int, int]], expected: Account) -> None:
    assert account([2, 1], arrivals) == expected
    assert not expected.exact


def test_only_committed_files_count(tmp_path: Path) -> None:
    assert names(tmp_path) == []
    log(tmp_path, "0", "a.parquet", "b%20c.parquet")
    log(tmp_path, "1", "d.parquet")
    (tmp_path / "left-by-a-failed-task.parquet").touch()
    (tmp_path / "_spark_metadata" / ".1.crc").touch()
    assert names(tmp_path) == ["a.parquet", "b c.parquet", "d.parquet"]


def test_a_batch_was_committed_at_the_time_of_its_log(tmp_path: Path) -> None:
    assert commits(tmp_path) == []
    for number, name in enumerate(("0", "1.compact", "2")):
        log(tmp_path, name)
        os.utime(tmp_path / "_spark_metadata" / name, (0, 100 + number))
    (tmp_path / "_spark_metadata" / ".1.crc").touch()
    assert commits(tmp_path) == [100, 101, 102]


def test_a_compacted_log_replaces_the_batches_before_it(tmp_path: Path) -> None:
    for number in range(9):
        log(tmp_path, str(number), f"{number}.parquet")
    log(tmp_path, "9.compact", *(f"{number}.parquet" for number in range(10)))
    log(tmp_path, "10", "10.parquet")
    assert names(tmp_path) == [f"{number}.parquet" for number in range(11)]


def test_a_log_with_gaps_is_refused(tmp_path: Path) -> None:
    log(tmp_path, "0", "a.parquet")
    log(tmp_path, "2", "c.parquet")
    with pytest.raises(ValueError, match="gaps"):
        committed_files(tmp_path)


@pytest.mark.parametrize("text", ["v2\n", 'v1\n{"path": "x", "action": "delete"}'])
def test_an_unparseable_log_is_refused(tmp_path: Path, text: str) -> None:
    log(tmp_path, "0")
    (tmp_path / "_spark_metadata" / "0").write_text(text)
    with pytest.raises(ValueError, match="_spark_metadata"):
        committed_files(tmp_path)


def test_records_are_returned_in_the_order_of_their_processing(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra spark)")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (extra spark)")
    for name, rows in (
        ("a.parquet", [(0, 0, "w1", 2.0), (0, 1, "w1", 3.0)]),
        ("b.parquet", [(1, 0, "w2", 1.0)]),
        ("uncommitted.parquet", [(9, 9, "w9", 9.0)]),
    ):
        columns = dict(zip(("partition", "offset", "worker", "at"), map(list, zip(*rows, strict=True)), strict=True))
        pq.write_table(pa.table(columns), tmp_path / name)
    log(tmp_path, "0", "a.parquet", "b.parquet")
    assert read_sink(tmp_path) == [
        Arrival(1, 0, "w2", 1.0),
        Arrival(0, 0, "w1", 2.0),
        Arrival(0, 1, "w1", 3.0),
    ]
    assert read_sink(tmp_path / "empty") == []
