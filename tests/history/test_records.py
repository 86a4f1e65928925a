"""Daemons' histories become a dataset, and the dataset the same records again, whatever else is in the files."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import ConfigDict, RootModel
from pyspark.sql import DataFrame, SparkSession

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
from autoscaler.history import ingest_local, ingest_records
from autoscaler.history.dataset import Dataset, open_dataset
from autoscaler.history.ingest_records import DAMAGED, NO_ZONE, WRONG_TYPE, Imported
from autoscaler.history.read import read
from autoscaler.ports import Record
from autoscaler.trace.codec import dump_record

BEGIN = datetime(2026, 1, 5, 22, tzinfo=UTC)
NOW = datetime(2026, 2, 1, tzinfo=UTC)


def drawn(dice: Random, count: int) -> list[Record]:
    """Records with all possible values, each with its own time and one of three clusters."""
    return [_record(dice, BEGIN + timedelta(seconds=97 * number, microseconds=number)) for number in range(count)]


def _number(dice: Random) -> float:
    return dice.choice(
        [0.0, -0.0, 1e-300, 1e300, math.inf, -math.inf, math.nan, dice.random(), dice.uniform(0, 1e6), 3.0, 2.0**53 + 2]
    )


def _span(dice: Random) -> timedelta:
    usual = [timedelta(0), timedelta(minutes=1), timedelta(milliseconds=1500), timedelta(days=400, microseconds=3)]
    return dice.choice([*usual, timedelta(seconds=dice.randrange(1, 10**6)), timedelta(days=2, hours=3, minutes=4)])


def _text(dice: Random) -> str:
    return dice.choice(["", "plain", 'with "quotes" and \\', "two\nlines\tand more", "ünï\u2028\U0001f680", "[1, 2]"])


def _reading(dice: Random, at: datetime) -> Reading:
    many = dice.random() < 0.4
    value = tuple(_number(dice) for _ in range(dice.randrange(4))) if many else _number(dice)
    parts = {f"part {part}": {name: _number(dice) for name in "ab"} for part in range(dice.randrange(3))}
    mean = value[0] if isinstance(value, tuple) and len(value) == 2 else None
    return Reading(value, at - _span(dice), dice.choice([None, 12]), parts, _span(dice), mean)


def _limit(dice: Random, at: datetime) -> Control:
    least, most = dice.choice([None, 3]), dice.randrange(5, 9)
    until, why = dice.choice([None, at + _span(dice)]), dice.choice([None, _text(dice)])
    return Control(
        kind=ControlKind.LIMIT,
        by=_text(dice),
        at=at - _span(dice),
        until=until,
        reason=why,
        minimum=least,
        maximum=most,
    )


def _record(dice: Random, at: datetime) -> Record:
    def size() -> int:
        return dice.randrange(30)

    engine = EngineStatus(
        job=dice.choice(list(JobState)),
        slots=dice.choice([None, size()]),
        parallelism=dice.choice([None, size()]),
        max_parallelism=dice.choice([None, size()]),
        partitions=dice.choice([None, size()]),
        running_since=dice.choice([None, at - _span(dice)]),
        last_checkpoint=dice.choice([None, at - _span(dice)]),
        restarts=dice.choice([None, 3]),
        deadlines={phase: _span(dice) + timedelta(seconds=1) for phase in Phase if dice.random() < 0.3},
    )
    names = ("lag", "arrivals", "throughput", "utilization", _text(dice) or "other")
    observation = Observation(
        at=at,
        desired=dice.choice([None, size()]),
        ready=dice.choice([None, size()]),
        metrics={name: _reading(dice, at) for name in names if dice.random() < 0.7},
        missing={_text(dice): _text(dice) for _ in range(dice.randrange(2))},
        engine=dice.choice([None, engine]),
        floor=dice.choice([None, Bound(size(), "its own least")]),
        ceiling=dice.choice([None, Bound(size(), "a quota")]),
        remarks=tuple(_text(dice) for _ in range(dice.randrange(3))),
        controls=dice.choice([(), (_limit(dice, at), Control(kind=ControlKind.PAUSE, by=_text(dice), down=True))]),
    )
    reason = dice.choice(list(Reason))
    asked = tuple(
        Recommendation(
            dice.choice([None, size()]),
            reason,
            dice.choice([{}, {"x": _number(dice), "y z": 1.0}]),
            _text(dice),
            dice.choice(["", f"p{policy}"]),
        )
        for policy in range(dice.randrange(3))
    )
    proposed, capped = size(), size()
    verdicts = dice.choice(
        [
            tuple(Verdict(reason, size(), size(), reason, _text(dice)) for _ in range(dice.randrange(4))),
            tuple(Verdict(guard, proposed, proposed, guard) for guard in (Reason.CAP, Reason.BOUNDS)),
            (Verdict(Reason.CAP, proposed, capped, Reason.CAP), Verdict(Reason.BOUNDS, capped, capped, Reason.BOUNDS)),
        ]
    )
    notes = tuple((reason, _text(dice)) for _ in range(dice.randrange(3)))
    cluster = dice.choice(["orders", "clicks", "ünusual cluster/1"])
    decision = Decision(
        cluster=cluster,
        at=at,
        current=size(),
        proposed=proposed,
        desired=size(),
        reason=reason,
        recommendations=asked,
        verdicts=verdicts,
        notes=notes,
        combined=_text(dice),
    )
    return Record(observation, decision, dry_run=dice.random() < 0.2, failed=_text(dice))


class _Full(RootModel[Record]):
    """A record with all fields of its line."""

    model_config = ConfigDict(ser_json_inf_nan="strings")


def in_full(record: Record) -> bytes:
    """A line with all fields, as written by others, or by a daemon that omits nothing."""
    return _Full(record).model_dump_json().encode()


def lines(of: Iterable[Record]) -> bytes:
    return b"".join(dump_record(record) + b"\n" for record in of)


def as_lines(path: Path) -> list[bytes]:
    return sorted(dump_record(record) for record in read(path))


GOOD = drawn(Random(6), 240)  # noqa: S311 - not a secret; over midnight
ONE = json.loads(dump_record(GOOD[0]))


def spoiled(**changes: Any) -> bytes:
    """A valid line of another time with one change in it: `decision__at` for decision.at; None removes it."""
    line = json.loads(json.dumps(ONE))
    line["observation"]["at"] = line["decision"]["at"] = "2026-01-05T12:00:00Z"
    line["observation"]["metrics"] = {"lag": {"value": 1.0, "at": "2026-01-05T12:00:00Z"}}
    line["decision"]["verdicts"] = [{"guard": "bounds", "before": 1, "after": 1, "reason": "bounds", "detail": ""}]
    for path, value in changes.items():
        *way, last = path.split("__")
        place = line
        for name in way:
            place = place[int(name)] if name.isdecimal() else place[name]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return json.dumps(line).encode()


BOTH = {"observation__at": "2999-01-01T00:00:00Z", "decision__at": "2999-01-01T00:00:00Z"}
OLD = dict.fromkeys(BOTH, "1999-12-31T00:00:00Z")
BAD = {
    b"not a record": "it is not a JSON object",
    b"[1, 2]": "it is not a JSON object",
    dump_record(GOOD[1]).partition(b',"version"')[0].removesuffix(b"}"): "it is cut off",
    b'{"observation": {}, "decisions": {"cluster": "x"} ]}': "it is not JSON, or has no decision",
    spoiled(version=2): "version 2 of the trace format is not known, expected 1",
    spoiled(decision__cluster=None): "it has no decision.cluster",
    spoiled(decision__proposed=None): "it has no decision.proposed",
    spoiled(decision__at="2026-01-05T12:00:01Z"): "its observation is of another time than its decision",
    spoiled(**OLD): "its time is before 2000: a clock was wrong",
    spoiled(**BOTH): "its time is in the future: a clock was wrong",
    spoiled(**dict.fromkeys(BOTH, "2026-01-05T12:00:00.5")): NO_ZONE,
    spoiled(observation__metrics__lag__at="2026-01-05T12:00:00"): NO_ZONE,
    spoiled(observation__metrics__lag__at="2026-01-05"): NO_ZONE,
    spoiled(decision__current="many"): WRONG_TYPE,
    spoiled(decision__verdicts__0__before="few"): WRONG_TYPE,
    spoiled(decision__guards="bounds nobody"): WRONG_TYPE,
    spoiled(decision__guards=["bounds"]): WRONG_TYPE,
    spoiled(decision__guards="cap"): WRONG_TYPE,
    spoiled(decision__guards="bounds bounds"): WRONG_TYPE,
    spoiled(observation__metrics__lag__value="much"): WRONG_TYPE,
    spoiled(observation__metrics__lag__at=None): WRONG_TYPE,
    spoiled(observation__metrics__lag__partitions=[1]): WRONG_TYPE,
}
UNKNOWN_FIELD = spoiled(observation__colour="blue", decision__cluster="newer", mood={"good": [1]})


@dataclass(frozen=True)
class Messy:
    directory: Path
    dataset: Dataset
    first: Imported
    again: Imported
    files_before: dict[str, bytes]


def parquet(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*.parquet")}


@pytest.fixture(scope="module")
def messy(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Messy:
    """A directory with every kind of error, imported twice."""
    directory = tmp_path_factory.mktemp("history of [two] daemons + more")
    first, second, third = GOOD[:100], GOOD[90:200], GOOD[200:]
    (directory / "2026-01-05T22.jsonl").write_bytes(
        lines(first) + b"".join(line + b"\n" for line in BAD) + UNKNOWN_FIELD + b"\n\n" + dump_record(GOOD[0]) + b"\n"
    )
    (directory / "2026-01-05T23.jsonl.gz").write_bytes(gzip.compress(lines(second)))
    # Truncated in the middle, like an interrupted copy: all of these records are in the other file.
    whole = gzip.compress(lines(GOOD[90:200]), compresslevel=0)
    (directory / "2026-01-06T00.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    torn = dump_record(GOOD[5])[:300]
    (directory / "2026-01-06T01.jsonl").write_bytes(lines(third) + torn)
    dataset = open_dataset(tmp_path_factory.mktemp("datasets") / "history", make=True)

    def imported() -> Imported:
        files = sorted(str(file) for file in directory.iterdir())
        return ingest_records.add(spark, dataset, files, now=NOW, torn={files[-1]: torn.decode()})

    once = imported()
    return Messy(directory, dataset, once, imported(), parquet(Path(dataset.path)))


@pytest.mark.e2e
def test_imported_records_are_read_back_unchanged(messy: Messy) -> None:
    back = [line for line in as_lines(Path(messy.dataset.path)) if b'"cluster":"newer"' not in line]
    assert back == sorted(dump_record(record) for record in GOOD)


@pytest.mark.e2e
def test_lines_with_all_fields_are_the_same_records(spark: SparkSession, tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path / "dataset", make=True)
    file = tmp_path / "2026-01-05T22.jsonl"
    file.write_bytes(b"".join(in_full(record) + b"\n" for record in GOOD))
    added = ingest_records.add(spark, dataset, [str(file)], now=NOW).merged
    assert added.added["decisions"] == len(GOOD)
    assert as_lines(Path(dataset.path)) == sorted(dump_record(record) for record in GOOD)
    # They are recognized as the same.
    file.write_bytes(lines(GOOD))
    assert ingest_records.add(spark, dataset, [str(file)], now=NOW).merged.added["decisions"] == 0


@pytest.mark.e2e
def test_lines_with_different_white_space_are_the_same_records(spark: SparkSession, tmp_path: Path) -> None:
    def spaced(record: Record) -> bytes:
        line = json.loads(dump_record(record))
        guards = line["decision"].get("guards", "")
        return json.dumps(line | {"decision": line["decision"] | {"guards": f" {guards.replace(' ', '  ')} "}}).encode()

    dataset = open_dataset(tmp_path / "dataset", make=True)
    file = tmp_path / "2026-01-05T22.jsonl"
    file.write_bytes(b"".join(spaced(record) + b"\n" for record in GOOD))
    added = ingest_records.add(spark, dataset, [str(file)], now=NOW)
    assert (added.merged.added["decisions"], added.rejected) == (len(GOOD), {})
    assert as_lines(Path(dataset.path)) == sorted(dump_record(record) for record in GOOD)
    file.write_bytes(lines(GOOD))
    assert ingest_records.add(spark, dataset, [str(file)], now=NOW).merged.added["decisions"] == 0


@pytest.mark.e2e
def test_omitted_fields_of_a_line_are_empty_in_the_tables(messy: Messy, spark: SparkSession) -> None:
    done = messy.dataset.read(spark, "decisions")
    missing = "exists(recommendations, one -> one.inputs is null or one.detail is null or one.policy is null)"
    verdicts = "exists(verdicts, one -> one.detail is null) or guards is null or notes is null or combined is null"
    lists = "recommendations is null or verdicts is null"
    assert done.where(f"{missing} or {verdicts} or {lists} or dry_run is null or failed is null").count() == 0
    seen = messy.dataset.read(spark, "observations")
    metric = "exists(map_values(metrics), one -> one.parts is null or one.over is null)"
    assert seen.where(f"{metric} or metrics is null or missing is null or remarks is null").count() == 0
    assert seen.where("engine is not null and engine.deadlines is null").count() == 0


@pytest.mark.e2e
def test_records_in_several_files_are_added_once(messy: Messy) -> None:
    # Ten in both of the first two files, one twice in the first, and the readable part of the damaged one.
    assert messy.first.merged.added["decisions"] == messy.first.merged.added["observations"] == len(GOOD) + 1
    assert messy.first.merged.known["decisions"] > 11
    assert messy.first.merged.added["decisions"] + messy.first.merged.known["decisions"] < messy.first.lines


@pytest.mark.e2e
def test_a_repeated_import_changes_no_file(messy: Messy) -> None:
    assert set(messy.again.merged.added.values()) == {0}
    assert messy.again.rejected == messy.first.rejected
    assert parquet(Path(messy.dataset.path)) == messy.files_before


@pytest.mark.e2e
def test_lines_that_are_not_records_are_quarantined_with_the_reason(messy: Messy, spark: SparkSession) -> None:
    rejected_rows = messy.dataset.read(spark, "rejected").collect()
    found = Counter(row.reason for row in rejected_rows)
    wanted = Counter(BAD.values()) + Counter([DAMAGED])
    assert found == wanted
    assert messy.first.rejected == dict(wanted)
    assert {row.file for row in rejected_rows} == {
        str(messy.directory / name) for name in ("2026-01-05T22.jsonl", "2026-01-06T00.jsonl.gz")
    }
    texts = {row.text for row in rejected_rows}
    assert "not a record" in texts
    assert all(len(text) <= 1000 for text in texts)
    assert messy.first.damaged == (str(messy.directory / "2026-01-06T00.jsonl.gz"),)


def test_a_truncated_file_is_detected_without_reading_any(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl.gz", tmp_path / "cut.jsonl.gz"
    packed = gzip.compress(lines(GOOD))
    whole.write_bytes(packed)
    cut.write_bytes(packed[: len(packed) // 2])
    files = [str(file) for file in (whole, cut, tmp_path / "missing.jsonl.gz", tmp_path / "plain.jsonl")]
    assert [file for file in files if not ingest_records._has_plausible_end(file)] == [str(cut)]
    # Damage in the middle shows only when it is read, which does not need Spark.
    no_spark: Any = None
    spoiled_within = bytearray(packed)
    spoiled_within[len(packed) // 2] ^= 0xFF
    whole.write_bytes(spoiled_within)
    assert ingest_records._has_plausible_end(str(whole))
    assert ingest_records._damaged(no_spark, files) == {str(whole), str(cut)}


@pytest.mark.e2e
def test_shuffled_rows_are_computed_once_and_removed_at_the_end(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    file.write_bytes(lines(GOOD))
    with ingest_records._computed_once(spark.read.text(str(file)).repartition(3)) as kept:
        file.unlink()
        assert {kept.count() for _ in range(2)} == {len(GOOD)}
        assert kept.where("value like '%clicks%'").count() == lines(GOOD).count(b'"cluster":"clicks"')
    with pytest.raises(Exception, match=r"FAILED_READ_FILE\.FILE_NOT_EXIST"):
        kept.count()


@pytest.mark.e2e
def test_an_import_leaves_no_shuffle_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed_once, seen = ingest_records._computed_once, []

    @contextmanager
    def spied(rows: DataFrame) -> Iterator[DataFrame]:
        with computed_once(rows) as kept:
            seen.append(kept)
            yield kept

    monkeypatch.setattr(ingest_records, "_computed_once", spied)
    file = tmp_path / "all.jsonl"
    file.write_bytes(lines(GOOD))
    done = ingest_records.add(spark, open_dataset(tmp_path / "dataset", make=True), [str(file)], now=NOW)
    assert done.lines == len(GOOD)
    file.unlink()
    with pytest.raises(Exception, match=r"FAILED_READ_FILE\.FILE_NOT_EXIST"):
        seen[0].count()


def of(clusters: Iterable[str], day: str = "2026-01-05", times: int = 25) -> bytes:
    """Lines of clusters, at so many times of a day."""
    each = lines(record for record in GOOD if record.decision.cluster == "clicks").splitlines(keepends=True)
    day_of = re.compile(rb'"at":"2026-01-0\d')
    begin = [day_of.sub(b'"at":"%s' % day.encode(), line) for line in each][:times]
    return b"".join(line.replace(b'"clicks"', b'"%s"' % name.encode()) for name in clusters for line in begin)


def held(spark: SparkSession, directory: Path) -> list[list[str]]:
    """The clusters of each Parquet file of a directory, whose rows are in order."""
    found = []
    for file in directory.glob("*.parquet"):
        there = [(row.cluster, row.at) for row in spark.read.parquet(str(file)).select("cluster", "at").collect()]
        assert there == sorted(there)
        found.append(sorted({cluster for cluster, _ in there}))
    return sorted(found)


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["{}.jsonl", "2026-01-05T{:02}.jsonl"])
def test_an_import_into_new_dates_makes_files_of_whole_clusters_in_their_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(ingest_records, "ROWS_PER_FILE", 100)
    names = [f"c{number:02}" for number in range(16)]
    files = []
    # Each file has two clusters that no other file has: the sampled file shows nothing of the others.
    for number in range(8):
        files.append(tmp_path / name.format(number))
        files[-1].write_bytes(of([names[number], names[15 - number]]))
    # A line with a wrong time does not put all of them into one file.
    files[0].write_bytes(files[0].read_bytes() + of(["c00"], "2001-02-03", times=1))
    dataset = open_dataset(tmp_path / "dataset", make=True)
    done = ingest_records.add(spark, dataset, [str(file) for file in files], now=NOW)
    assert done.merged.added == {"observations": 401, "decisions": 401, "rejected": 0}
    for table in ("observations", "decisions"):
        files_of = held(spark, tmp_path / "dataset" / table / "date=2026-01-05")
        assert [cluster for clusters in files_of for cluster in clusters] == names
        assert 2 <= len(files_of) <= 5
        assert held(spark, tmp_path / "dataset" / table / "date=2001-02-03") == [["c00"]]
    assert len(as_lines(tmp_path / "dataset")) == 401


@pytest.mark.e2e
def test_one_import_adds_to_old_and_new_dates_and_to_those_with_duplicate_lines(
    spark: SparkSession, tmp_path: Path
) -> None:
    dataset = open_dataset(tmp_path / "dataset", make=True)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_bytes(of(["a", "b"], "2026-01-05"))
    # For Spark this integer of JSON is a time some million years from now.
    far = spoiled(decision__at=1767650400000000) + b"\n"
    second.write_bytes(of(["b", "c"], "2026-01-05") + of(["a"], "2026-01-06") + 2 * of(["a"], "2026-01-07") + far)
    ingest_records.add(spark, dataset, [str(first)], now=NOW)
    done = ingest_records.add(spark, dataset, [str(second)], now=NOW)
    assert done.merged.added == {"observations": 75, "decisions": 75, "rejected": 1}
    assert done.merged.known == {"observations": 50, "decisions": 50, "rejected": 0}
    wanted = of("abc", "2026-01-05") + of("a", "2026-01-06") + of("a", "2026-01-07")
    assert as_lines(tmp_path / "dataset") == sorted(wanted.splitlines())
    again = ingest_records.add(spark, dataset, [str(first), str(second)], now=NOW)
    assert again.merged.added == {"observations": 0, "decisions": 0, "rejected": 0}


@pytest.mark.e2e
def test_a_line_with_an_impossible_time_is_quarantined(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that a date has more files than 32 bits can count days.
    monkeypatch.setattr(ingest_records, "ROWS_PER_FILE", 1)
    file = tmp_path / "one.jsonl"
    file.write_bytes(of([f"c{number}" for number in range(12)], times=3) + spoiled(decision__at=9 * 10**12) + b"\n")
    done = ingest_records.add(spark, open_dataset(tmp_path / "dataset", make=True), [str(file)], now=NOW)
    assert sum(done.rejected.values()) == 1
    assert done.merged.added["decisions"] == 36


@pytest.mark.e2e
@pytest.mark.usefixtures("spark")
def test_bytes_that_are_not_text_are_quarantined_as_text_unless_a_line_is_only_incomplete_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, dataset = tmp_path / "2026-01-05T22.jsonl", tmp_path / "dataset"
    whole = spoiled(decision__cluster="\u00fcnusual").replace(b"\\u00fc", "\u00fc".encode())
    cut = whole[: whole.index("\u00fc".encode()) + 1]
    file.write_bytes(lines(GOOD[:2]) + b"of a \xff disk\n" + cut)
    assert cli.main(["history", "import", str(file.parent), str(dataset), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rejected"] == {"it is not a JSON object": 1}
    assert cli.main(["history", "query", str(dataset), "SELECT text FROM rejected", "--json"]) == 0
    assert "of a \ufffd disk" in json.dumps(json.loads(capsys.readouterr().out), ensure_ascii=False)


@pytest.mark.e2e
def test_a_day_that_gets_only_an_invalid_line_is_not_changed(spark: SparkSession, tmp_path: Path) -> None:
    mine = [record for record in GOOD if record.decision.cluster == "clicks"]
    monday = [record for record in mine if record.decision.at.day == BEGIN.day]
    tuesday = [record for record in mine if record.decision.at.day != BEGIN.day]
    dataset = open_dataset(tmp_path / "dataset", make=True)
    (tmp_path / "first.jsonl").write_bytes(lines([*monday[1:], *tuesday]))
    ingest_records.add(spark, dataset, [str(tmp_path / "first.jsonl")], now=NOW)
    before = parquet(tmp_path / "dataset")
    # Only its key is that of a record.
    bad = spoiled(decision__verdicts__0__before="few").replace(b"2026-01-05T12", b"2026-01-06T12")
    (tmp_path / "second.jsonl").write_bytes(lines(monday[:1]) + bad + b"\n")
    done = ingest_records.add(spark, dataset, [str(tmp_path / "second.jsonl")], now=NOW)
    assert (done.merged.added["decisions"], done.rejected) == (1, {WRONG_TYPE: 1})
    assert as_lines(tmp_path / "dataset") == sorted(dump_record(record) for record in mine)
    after = parquet(tmp_path / "dataset")
    of_tuesday = {name: held for name, held in before.items() if "2026-01-06" in name and "rejected" not in name}
    assert len(of_tuesday) >= 2
    assert {name: held for name, held in after.items() if name in of_tuesday} == of_tuesday
    assert dataset.read(spark, "observations").count() == len(mine)


@pytest.mark.e2e
def test_the_flat_columns_are_totals_of_all_replicas(messy: Messy, spark: SparkSession) -> None:
    rows = {
        (row.cluster, row.at.astimezone(UTC)): row
        for row in messy.dataset.read(spark, "observations").select("cluster", "at", "lag", "utilization").collect()
    }
    compared = 0
    for record in GOOD:
        row = rows[record.decision.cluster, record.observation.at]
        for name, of_many in (("lag", math.fsum), ("utilization", max)):
            reading = record.observation.metrics.get(name)
            if reading is None:
                assert row[name] is None
            elif not isinstance(reading.value, tuple):
                assert row[name] == reading.value or math.isnan(row[name])
            elif reading.finite():
                assert row[name] == pytest.approx(of_many(reading.value))
                compared += 1
    assert compared > 5


@pytest.mark.e2e
def test_the_command_reads_only_what_has_changed_and_renames_clusters(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    del spark  # the command uses the existing session
    one, other, dataset = tmp_path / "one", tmp_path / "other", tmp_path / "dataset"
    one.mkdir()
    other.mkdir()
    mine = [record for record in GOOD if record.decision.cluster == "clicks"][:20]
    (one / "2026-01-05T22.jsonl").write_bytes(lines(mine[:10]))
    (one / "2026-01-05T23.jsonl").write_bytes(lines(mine[10:15]) + dump_record(mine[15])[:100])
    (one / "2026-01-05T21.jsonl").touch()

    def imported(*arguments: object) -> dict[str, Any]:
        assert cli.main(["history", "import", *map(str, arguments), "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    first = imported(one, other, dataset, "--rename", "clicks=views")
    assert first["added"]["decisions"] == 15
    assert first["rejected"] == {}
    assert first["problems"] == [f"{one}/2026-01-05T21.jsonl: is empty", f"{other}: has no file *.jsonl or *.jsonl.gz"]
    assert {record.decision.cluster for record in read(dataset)} == {"views"}

    unchanged = imported(one, dataset, "--rename", "clicks=views")
    assert unchanged["files"] == {"read": 0, "unchanged": 2}

    # The daemon continues its file.
    (one / "2026-01-05T23.jsonl").write_bytes(lines(mine[10:20]))
    grown = imported(one, dataset, "--rename", "clicks=views")
    assert grown["files"] == {"read": 1, "unchanged": 1}
    assert (grown["added"]["decisions"], grown["known"]["decisions"]) == (5, 5)

    for same in (str(dataset), f"file://{dataset}"):
        assert cli.main(["history", "import", str(one), same, "--rename", "clicks=views"]) == 0
        assert "Nothing has changed since the last import." in capsys.readouterr().out


@pytest.mark.e2e
@pytest.mark.usefixtures("spark")
def test_a_file_is_identified_by_any_path_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("traces", "here", "elsewhere/deep"):
        (tmp_path / name).mkdir(parents=True)
    mine = [record for record in GOOD if record.decision.cluster == "clicks"][:3]
    bad = spoiled(decision__verdicts__0__before="few")
    (tmp_path / "traces" / "stored").write_bytes(gzip.compress(lines(mine) + bad))
    # The name of the link determines how it is read.
    (tmp_path / "traces" / "2026-01-05T22.jsonl.gz").symlink_to("stored")
    (tmp_path / "here" / "linked").symlink_to(tmp_path / "elsewhere" / "deep")
    (tmp_path / "elsewhere" / "traces").symlink_to(tmp_path / "traces")
    monkeypatch.chdir(tmp_path / "here")
    assert cli.main(["history", "import", "../traces", "linked/../traces", "../dataset", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["files"]["read"], report["added"]["decisions"], report["rejected"]) == (1, 3, {WRONG_TYPE: 1})


@pytest.mark.e2e
@pytest.mark.usefixtures("spark")
def test_a_file_that_is_compressed_during_the_import_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = [record for record in GOOD if record.decision.cluster == "clicks"][:20]
    traces, dataset = tmp_path / "traces", tmp_path / "dataset"
    traces.mkdir()
    hours = [traces / f"2026-01-05T{hour}.jsonl" for hour in (20, 21, 22, 23)]
    for number, file in enumerate(hours):
        file.write_bytes(lines(mine[number::4]))
    todo = [hours[0]]

    def pack() -> None:
        if todo:
            file = todo.pop()
            Path(f"{file}.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()

    def add(*arguments: Any, **options: Any) -> Imported:
        pack()
        return real(*arguments, **options)

    real = ingest_records.add
    monkeypatch.setattr(ingest_local, "add_local", lambda _, files, **__: (Imported(), files))
    monkeypatch.setattr(ingest_records, "add", add)
    assert cli.main(["history", "import", str(traces), str(dataset), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["files"]["read"], report["added"]["decisions"]) == (4, 20)
    # If files keep disappearing, it says so.
    todo = hours[1:3]
    assert cli.main(["history", "import", str(traces), str(dataset), "--again"]) == 1
    assert f"{hours[1]}: was compressed or removed during the import; run this again" in capsys.readouterr().err


@pytest.mark.e2e
@pytest.mark.usefixtures("spark")
def test_records_imported_before_a_rename_keep_their_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces, dataset = tmp_path / "traces", tmp_path / "dataset"
    traces.mkdir()
    mine = [record for record in GOOD if record.decision.cluster == "clicks"][:20]
    (traces / "2026-01-05T22.jsonl").write_bytes(lines(mine[:10]))
    assert cli.main(["history", "import", str(traces), str(dataset)]) == 0
    (traces / "2026-01-05T23.jsonl").write_bytes(lines(mine[10:]))
    capsys.readouterr()
    assert cli.main(["history", "import", str(traces), str(dataset), "--rename", "clicks=views", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == {"read": 1, "unchanged": 1}
    assert Counter(record.decision.cluster for record in read(dataset)) == {"clicks": 10, "views": 10}


@pytest.mark.e2e
@pytest.mark.usefixtures("spark")
def test_without_a_valid_record_the_command_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, dataset = tmp_path / "2026-01-05T22.jsonl", tmp_path / "dataset"
    file.write_bytes(b"not a record\n[1, 2]\n")
    assert cli.main(["history", "import", str(file), str(dataset), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["added"] == {"observations": 0, "decisions": 0, "rejected": 2}


def test_without_a_readable_file_the_command_reports_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["history", "import", str(tmp_path / "none"), str(tmp_path / "dataset")]) == 1
    printed = capsys.readouterr().err
    assert f"{tmp_path}/none: cannot be read: No such file or directory" in printed
    assert "nothing was imported" in printed
    assert not (tmp_path / "dataset").exists()


def test_invalid_arguments_are_reported_with_the_expected_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["history", "import", str(tmp_path)]) == 2
    assert "expected DIR... DATASET" in capsys.readouterr().err
    assert cli.main(["history", "import", str(tmp_path), str(tmp_path / "d"), "--rename", "a"]) == 2
    assert "'a' is not like OLD=NEW" in capsys.readouterr().err
