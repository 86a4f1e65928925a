"""A dataset is read back as the original records, and can be replayed like them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autoscaler import cli
from autoscaler.core.model import (
    Bound,
    Control,
    ControlKind,
    Decision,
    EngineStatus,
    JobState,
    Observation,
    Phase,
    Reading,
    Reason,
    Recommendation,
    Verdict,
)
from autoscaler.history import read
from autoscaler.history.dataset import DatasetError
from autoscaler.ports import Record
from autoscaler.trace import format as traces
from autoscaler.trace.codec import dump_record
from tests.history import written

BEGIN = datetime(2026, 1, 5, 23, 58, 30, 123456, UTC)
TICK = timedelta(seconds=15)

CONFIG = """
sources:
  prom: {type: prometheus, url: 'http://127.0.0.1:9'}
clusters:
  orders:
    target: {type: 'null'}
    min: 1
    max: 12
    metrics: {cpu: {source: prom, query: cpu}}
    policies: {busy: {type: target-tracking, metric: cpu, target: 0.7}}
"""


def full(cluster: str, at: datetime) -> Record:
    """A record with all possible values."""
    seen = Observation(
        at=at,
        desired=4,
        ready=None,
        metrics={
            "lag": Reading(12.5, at - timedelta(microseconds=1), 12, {"map": {"rate": 1.0, "busy": 0.1}}),
            "utilization": Reading((0.1, 0.30000000000000004), at, over=timedelta(seconds=59.999999), mean=0.2),
            "saturation": Reading((0.1, 0.5), at),
            "arrivals": Reading(math.inf, at),
        },
        missing={"throughput": "no sample", "engine": ""},
        engine=EngineStatus(
            job=JobState.RUNNING,
            slots=8,
            parallelism=None,
            max_parallelism=128,
            partitions=12,
            running_since=at - TICK,
            last_checkpoint=None,
            restarts=0,
            deadlines={Phase.ABSORBED: timedelta(seconds=0.25)},
        ),
        floor=Bound(1, "the group's own"),
        ceiling=None,
        remarks=("a pod does not come up", "ä"),
        controls=(
            Control(kind=ControlKind.PAUSE, by="alice", at=at - TICK, up=True, until=at + TICK, reason="a release"),
            Control(kind=ControlKind.HOLD, by="the annotation", replicas=0),
            Control(kind=ControlKind.LIMIT, by="bob", at=at - TICK, maximum=9),
        ),
    )
    decision = Decision(
        cluster=cluster,
        at=at,
        current=4,
        proposed=8,
        desired=6,
        reason=Reason.RATE_LIMIT,
        recommendations=(
            Recommendation(8, Reason.ABOVE, {"lag": 12.5, "odd.name": -0.0}, "because", "busy"),
            Recommendation(None, Reason.MISSING, {}, "", "other"),
        ),
        verdicts=(Verdict(Reason.RATE_LIMIT, 8, 6, Reason.RATE_LIMIT, "2 a minute"),),
        notes=((Reason.SETTLED, "after 20s"),),
        combined="max(busy, other)",
    )
    return Record(seen, decision, dry_run=True, failed="HTTP 500")


def plain(cluster: str, at: datetime, desired: int | None = 4) -> Record:
    return Record(
        Observation(at=at, desired=desired, ready=desired),
        Decision(cluster=cluster, at=at, current=desired or 0, proposed=0, desired=desired or 0, reason=Reason.STEADY),
    )


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulation in which much goes wrong, over midnight."""
    directory = tmp_path_factory.mktemp("simulated")
    (directory / "config.yaml").write_text(CONFIG)
    arguments = ["simulate", directory / "config.yaml", "--load", "steps6h", "--hours", 2, "--faults", "all"]
    assert cli.main([*map(str, arguments), "--record", str(directory / "trace")]) == 0
    return directory / "trace"


def test_a_record_is_read_back_with_all_its_values(tmp_path: Path) -> None:
    records = [full("orders", BEGIN), plain("orders", BEGIN + TICK), plain("orders", BEGIN + 2 * TICK, None)]
    assert list(read.read(written.dataset(tmp_path / "dataset", records))) == records


def test_a_dataset_with_a_verdict_of_each_guard_is_read(tmp_path: Path) -> None:
    passed = tuple(Verdict(reason, 8, 8, reason) for reason in (Reason.FRESHNESS, Reason.CAP))
    one = full("orders", BEGIN)
    one = replace(one, decision=replace(one.decision, verdicts=(*passed, *one.decision.verdicts)))
    place = written.dataset(tmp_path / "dataset", [one])
    (file,) = (place / "decisions").rglob("*.parquet")
    table = pq.read_table(file)
    (row,) = table.to_pylist()
    assert (row["guards"], len(row["verdicts"])) == ("freshness cap rate_limit", 1)
    assert list(read.read(place)) == [one]
    each = [{"guard": v.guard.value, "before": 8, "after": 8, "reason": v.reason.value, "detail": ""} for v in passed]
    before = table.drop_columns("guards").schema
    pq.write_table(pa.Table.from_pylist([row | {"verdicts": [*each, *row["verdicts"]]}], schema=before), file)
    assert list(read.read(place)) == [one]


def test_nan_and_infinity_are_read_back_unchanged(tmp_path: Path) -> None:
    at = BEGIN
    record = plain("orders", at)
    record = replace(record, observation=replace(record.observation, metrics={"lag": Reading(math.nan, at)}))
    (found,) = read.read(written.dataset(tmp_path / "dataset", [record]))
    value = found.observation.metrics["lag"].value
    assert isinstance(value, float)
    assert math.isnan(value)


def test_records_of_a_simulation_are_read_back_exactly(trace: Path, tmp_path: Path) -> None:
    records = list(traces.read(trace))
    assert any(record.failed for record in records)
    assert any(record.observation.missing for record in records)
    found = list(read.read(written.dataset(tmp_path / "dataset", records)))
    assert [dump_record(one) for one in found] == [dump_record(one) for one in records]
    differ = [one for one, record in zip(found, records, strict=True) if one != record]
    # NaN does not even equal itself.
    assert all(b'"NaN"' in dump_record(one) for one in differ)
    assert len(differ) < len(records) / 2


def test_a_replay_of_a_dataset_decides_like_one_of_the_lines(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG.replace("target: 0.7", "target: 0.5"))
    dataset = written.dataset(tmp_path / "dataset", traces.read(trace), rows_per_group=50)
    reports = []
    for where in (trace, dataset):
        assert cli.main(["replay", str(where), str(tmp_path / "config.yaml"), "--json"]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0]["clusters"]["orders"]["differences"]
    assert reports[0] == reports[1]


def test_a_replay_reports_the_clusters_that_it_skips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    dataset = written.dataset(tmp_path / "dataset", [plain("orders", BEGIN), plain("clicks", BEGIN)])
    assert cli.main(["replay", str(dataset), str(tmp_path / "config.yaml")]) == 0
    assert "Not compared: clicks (1 record)" in capsys.readouterr().err
    assert cli.main(["replay", str(dataset), str(tmp_path / "config.yaml"), "--cluster", "odd"]) == 2
    assert "has no record of cluster 'odd'; it has records of clicks, orders" in capsys.readouterr().err


def test_the_records_of_a_cluster_are_in_order_of_time_over_midnight(tmp_path: Path) -> None:
    records = [full(name, BEGIN + number * TICK) for number in range(20) for name in ("b", "a", "c")]
    dataset = written.dataset(tmp_path / "dataset", records, rows_per_group=5)
    assert len(list((dataset / "observations").iterdir())) == 2
    found = list(read.read(dataset))
    assert len(found) == 60
    for name in "abc":
        assert [one for one in found if one.decision.cluster == name] == [
            one for one in records if one.decision.cluster == name
        ]


def test_one_cluster_is_read_without_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [full(name, BEGIN + number * TICK) for number in range(4) for name in ("a", "b", "c")]
    dataset = written.dataset(tmp_path / "dataset", records, rows_per_group=4)
    groups: list[list[int]] = []
    before = read._groups

    def noted(*arguments: object) -> list[int]:
        groups.append(before(*arguments))  # type: ignore[arg-type]
        return groups[-1]

    monkeypatch.setattr(read, "_groups", noted)
    assert [one.decision.cluster for one in read.read(dataset, clusters=["b"])] == ["b"] * 4
    assert groups == [[1], [1]]


def test_a_day_in_several_files_is_read_in_order(tmp_path: Path) -> None:
    records = [full(name, BEGIN + number * TICK) for number in range(4) for name in ("a", "b")]
    dataset = written.dataset(tmp_path / "dataset", records)
    for table in ("observations", "decisions"):
        (file,) = (dataset / table).glob("*/*.parquet")
        rows = pq.ParquetFile(file).read()
        for number in range(3):
            pq.write_table(rows.take(list(range(number, rows.num_rows, 3))), file.with_name(f"part-{number}.parquet"))
    assert list(read.read(dataset)) == sorted(records, key=lambda one: (one.decision.cluster, one.decision.at))


def test_times_in_sparks_default_format_are_utc(tmp_path: Path) -> None:
    record = full("orders", BEGIN)
    dataset = written.dataset(tmp_path / "dataset", [record])
    for file in dataset.glob("*/*/*.parquet"):
        rows = pq.ParquetFile(file).read()
        pq.write_table(rows, file, use_deprecated_int96_timestamps=True)
    assert list(read.read(dataset)) == [record]


def without_decisions(tmp_path: Path, *sizes: tuple[int, int | None]) -> list[tuple[int, int]]:
    """The reconstructed decisions at some ticks: the size before and after each."""
    records = [plain("orders", BEGIN + tick * TICK, size) for tick, size in sizes]
    found = list(read.read(written.dataset(tmp_path / "dataset", records, decided=False)))
    assert [one.observation for one in found] == [one.observation for one in records]
    return [(one.decision.current, one.decision.desired) for one in found]


@pytest.mark.parametrize(
    ("sizes", "decided"),
    [
        ([(0, 4), (1, 4), (2, 8), (3, 8)], [(4, 4), (4, 8), (8, 8), (8, 8)]),
        # Over midnight, too.
        ([(5, 4), (6, 4), (7, 2)], [(4, 4), (4, 2), (2, 2)]),
        # While the size is unknown, it is assumed unchanged.
        ([(0, 4), (1, None), (2, 6)], [(4, 4), (4, 6), (6, 6)]),
        ([(0, None), (1, None)], [(0, 0), (0, 0)]),
        # Nobody knows when it changed in a gap.
        ([(0, 4), (1, 4), (40, 8), (41, 8)], [(4, 4), (4, 4), (8, 8), (8, 8)]),
    ],
)
def test_without_a_decision_the_next_size_is_used(
    tmp_path: Path, sizes: list[tuple[int, int | None]], decided: list[tuple[int, int]]
) -> None:
    assert without_decisions(tmp_path, *sizes) == decided


def test_only_the_requested_time_is_read(tmp_path: Path) -> None:
    records = [full("orders", BEGIN + number * TICK) for number in range(20)]
    dataset = written.dataset(tmp_path / "dataset", records)
    found = read.read(dataset, since=BEGIN + 3 * TICK, until=BEGIN + 9 * TICK)
    assert list(found) == records[3:10]


def test_the_requested_time_may_be_in_another_time_zone(tmp_path: Path) -> None:
    midnight = datetime(2026, 1, 6, tzinfo=UTC)
    records = [full("orders", midnight + number * TICK) for number in range(-4, 4)]
    dataset = written.dataset(tmp_path / "dataset", records)
    east, west = timezone(timedelta(hours=5)), timezone(timedelta(hours=-5))
    # by their own calendars they begin a day later and end a day earlier
    since, until = (midnight - 3 * TICK).astimezone(east), (midnight + 2 * TICK).astimezone(west)
    assert (since.day, until.day) == (6, 5)
    assert list(read.read(dataset, since=since)) == records[1:]
    assert list(read.read(dataset, until=until)) == records[:7]


def test_clusters_are_counted(tmp_path: Path) -> None:
    records = [full("orders", BEGIN), full("clicks", BEGIN), full("orders", BEGIN + TICK)]
    assert read.clusters(written.dataset(tmp_path / "dataset", records)) == {"orders": 2, "clicks": 1}


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _unsorted(file: Path) -> None:
    rows = pq.ParquetFile(file).read()
    pq.write_table(rows.take([1, 0]), file)


def _strange(file: Path) -> None:
    rows = pq.ParquetFile(file).read()
    place = rows.schema.get_field_index("engine")
    kind = rows.schema.field(place).type
    engines = pa.array([{"job": "levitating"}] * rows.num_rows, kind)
    pq.write_table(rows.set_column(place, rows.schema.field(place), engines), file)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_cut, r"part-0\.parquet: cannot be read: .*; put a good copy of it there"),
        (_unsorted, r"part-0\.parquet: is not sorted by cluster and time"),
        (_strange, r"of cluster orders at 2026-01-05 23:58:30 is not a record: .*levitating.*another version"),
    ],
)
def test_an_unusable_file_is_named(tmp_path: Path, spoil: Callable[[Path], None], says: str) -> None:
    dataset = written.dataset(tmp_path / "dataset", [full("orders", BEGIN), full("orders", BEGIN + TICK)])
    (file,) = (dataset / "observations").glob("*/*.parquet")
    spoil(file)
    with pytest.raises(DatasetError, match=says):
        list(read.read(dataset))


def test_a_directory_without_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is not a dataset"):
        list(read.read(tmp_path))
