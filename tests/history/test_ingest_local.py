"""An import without Spark gives the same rows as Spark, and lines that only Spark can judge are left to Spark."""

from __future__ import annotations

import errno
import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import date, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from autoscaler import cli
from autoscaler.history import ingest_local, ingest_records, rescales
from autoscaler.history.dataset import Dataset, DatasetError, Merged, local, merge, open_dataset
from autoscaler.history.ingest_local import add_local
from autoscaler.history.ingest_records import DAMAGED, Imported
from autoscaler.history.schema import TABLES
from autoscaler.ports import Record
from autoscaler.trace.codec import dump_record
from tests.history.fleet import Fleet, Part, simulated, trace
from tests.history.test_records import BAD, GOOD, NOW, drawn, in_full, lines, spoiled

ODD: list[Any] = [
    *(None, [], {}, "", "x", 0, -1, 2.0, 1.5, True, "NaN", "nan", "-Infinity", "inf", "5", 2**31, 2**60, 1e308),
    *([1], [None], ["a"], [1, "NaN"], [[]], [["a"]], [["a", "b", "c"]], [["a", None]], [{}], [{"replicas": 1}]),
    *("PT", "PT1.5S", "P1W", "P1DT2H", "-PT5S", "PT1H1M1.123456S", "PT1.1234567S", "PT1.2.3S", "pt1m", "60"),
    *("2026-01-05", "2026-01-05T12:00Z", "2026-01-05T12:00:00+02:00", "2026-01-05T12:00:00.1234567Z"),
    *("2026-01-05T12:00:00", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
    *("bounds", "cap bounds", "bounds bounds", "\u2003cap", "cap\u000bbounds", "[1, 2]", {"a": 1}, {"a": None}),
    {"lag": {"value": [], "at": "2026-01-05T12:00:00Z"}},
    {"utilization": {"value": [-0.0, "NaN", 3], "at": "2026-01-05T12:00:00Z", "mean": 1}},
]
"""Values that a field of a line may have which others, or a damaged disk, have written."""


def rows(dataset: Dataset) -> dict[str, Counter[str]]:
    """The rows of all tables as text, in which NaN equals NaN."""
    found = {}
    for table in TABLES:
        names = [name for some in dataset.files(table).values() for name in some]
        read = [pq.ParquetFile(Path(dataset.path, name)).read() for name in names]
        found[table] = Counter(
            f"{name.split('/')[1]} {row}"
            for name, some in zip(names, read, strict=True)
            for row in some.select(sorted(some.column_names)).to_pylist()
        )
    return found


def as_others_write(dice: Random, record: Record) -> bytes:
    """A line with all fields, with unknown ones, or from before there were versions."""
    line = json.loads(dice.choice([dump_record, in_full])(record))
    if dice.random() < 0.2:
        line["mood"], line["observation"]["colour"] = {"good": [1]}, "blue"
    if dice.random() < 0.2:
        del line["version"]
    if dice.random() < 0.2:
        line["decision"]["guards"] = f" {line['decision'].get('guards', '').replace(' ', '  ')}\t"
    return json.dumps(line, ensure_ascii=dice.random() < 0.5).encode()


def written(directory: Path, found: Sequence[bytes], each: int) -> list[str]:
    """Files of so many lines each, every second one compressed."""
    directory.mkdir()
    files = []
    for number, begin in enumerate(range(0, len(found), each)):
        file = directory / f"{number:03}.jsonl{'.gz' * (number % 2)}"
        content = b"\n".join(found[begin : begin + each]) + b"\n" * (number % 3 > 0)
        file.write_bytes(gzip.compress(content) if number % 2 else content)
        files.append(str(file))
    return files


@pytest.mark.e2e
@pytest.mark.parametrize("seed", range(2))
def test_the_rows_are_those_that_spark_makes(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    dice = Random(seed)  # noqa: S311 - not a secret
    records = drawn(dice, 2000)  # of more than two days
    found = [as_others_write(dice, record) for record in records]
    files = [*written(tmp_path / "in", [b"\n".join(found[n : n + 20]) for n in range(0, 2000, 20)], 1)]
    ours, sparks = (open_dataset(tmp_path / name, make=True) for name in ("ours", "sparks"))
    # Days get rows when they are over, and known rows come again.
    for some in (files[::3], files[:40], files):
        done, left = add_local(ours, some, now=NOW, rename={"clicks": "views"})
        assert left == []
        same = ingest_records.add(spark, sparks, some, now=NOW, rename={"clicks": "views"})
        assert done == same
        assert rows(ours) == rows(sparks)
    assert sum(rows(ours)["decisions"].values()) == 2000


def _places(line: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    pairs = line.items() if isinstance(line, dict) else enumerate(line) if isinstance(line, list) else ()
    for name, value in pairs:
        yield from _places(value, (*path, name))


def changed(dice: Random, record: Record) -> bytes:
    """A line in which one value is odd, or missing."""
    line = json.loads(dice.choice([dump_record, in_full])(record))
    *way, last = dice.choice([path for path in _places(line) if path[-1] != "at" or len(path) > 2])
    place = line
    for name in way:
        place = place[name]
    if dice.random() < 0.2:
        del place[last]
    else:
        place[last] = dice.choice(ODD)
    return json.dumps(line).encode()


@pytest.mark.e2e
def test_an_odd_line_is_imported_as_by_spark_or_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    dice = Random(4)  # noqa: S311 - not a secret
    file, taken = tmp_path / "one.jsonl", []
    for record in drawn(dice, 1500):
        file.write_bytes(line := changed(dice, record))
        with suppress(*ingest_local._LEFT_TO_SPARK):
            ingest_local._tables([str(file)], {}, NOW, 1 << 30)
            taken.append(line)
    assert len(taken) > 300
    files = written(tmp_path / "in", taken, 100)
    ours, sparks = (open_dataset(tmp_path / name, make=True) for name in ("ours", "sparks"))
    done, left = add_local(ours, files, now=NOW)
    assert (done, rows(ours)) == (ingest_records.add(spark, sparks, files, now=NOW), rows(sparks))
    assert (done.rejected, left) == ({}, [])


@pytest.mark.e2e
def test_large_durations_and_negative_zeros_are_the_same_in_both(spark: SparkSession, tmp_path: Path) -> None:
    spans = [
        "PT99999999M",
        "PT2147483647M59S",
        "PT2147483648M",
        "PT99999999999S",
        "PT-5M",
        "PT99999999M3S",
        "P99999999D",
    ]
    taken = [spoiled(decision__cluster=span, observation__metrics__lag__over=span) for span in spans]
    for number in (b"-0", b"-0.0", b"-0e1", b"[-0, -0.0]"):
        line = spoiled(decision__cluster=number.decode(), observation__metrics__lag__value="here")
        taken.append(line.replace(b'"here"', number))
    parts = spoiled(decision__cluster="parts", observation__metrics__lag__parts={"p": {"a": "here"}})
    taken.append(parts.replace(b'"here"', b"-0"))
    files = written(tmp_path / "in", taken, 1)
    ours, sparks = (open_dataset(tmp_path / name, make=True) for name in ("ours", "sparks"))
    done, left = add_local(ours, files, now=NOW)
    assert [json.loads(_content(Path(file)))["decision"]["cluster"] for file in left] == ["PT-5M"]
    done += ingest_records.add(spark, ours, left, now=NOW)
    assert done == ingest_records.add(spark, sparks, files, now=NOW)
    assert rows(ours) == rows(sparks)


LEFT_TO_SPARK = {
    **{f"{reason}: {line[:20]!r}": line + b"\n" for line, reason in BAD.items()},
    "twice": dump_record(GOOD[0]) + b"\n",
    "other ends of lines": dump_record(GOOD[200]) + b"\r\n",
    "an empty line": b"\n\n",
    "a byte that is no text": dump_record(GOOD[200]).replace(b'"cluster":"', b'"cluster":"\xff') + b"\n",
    "a metric that is nothing": spoiled(observation__metrics={"lag": None}) + b"\n",
    **{
        f"a span that is {what}": spoiled(observation__metrics__lag__over=span) + b"\n"
        for what, span in {
            "longer than the precision of decimals": f"PT{10**30}S",
            "no finite number": f"P{'9' * 400}D",
            "of one unit twice": "PT5M3M",  # Spark counts the first
        }.items()
    },
    "a time without seconds": spoiled(observation__metrics__lag__at="2026-01-05T12:00Z") + b"\n",
}


@pytest.mark.parametrize("kind", LEFT_TO_SPARK)
def test_lines_that_only_spark_can_judge_are_left_to_it(tmp_path: Path, kind: str) -> None:
    dataset = open_dataset(tmp_path / "dataset", make=True)
    file = tmp_path / "2026-01-05T22.jsonl"
    file.write_bytes(lines(GOOD[:3]) + LEFT_TO_SPARK[kind])
    assert add_local(dataset, [str(file)], now=NOW) == (Imported(), [str(file)])
    assert dataset.dates() == ()


def some_odd(directory: Path, dice: Random) -> tuple[list[str], list[str]]:
    """Files of an hour each, and the odd ones among them: each odd in another way."""
    files = written(directory, [dump_record(record) for record in drawn(dice, 800)], 20)
    damaged = dice.choice(files[1::2])
    Path(damaged).write_bytes((packed := Path(damaged).read_bytes())[: len(packed) // 2])
    twin, *others = dice.sample([file for file in files if file != damaged], 9)
    first = _content(Path(twin)).splitlines()[0]
    for number, file in enumerate(map(Path, others)):
        plain = _content(file).rstrip(b"\n")
        # The last line is truncated, as by a kill; or there is one more: not a record, or one that another file has.
        content = plain[:-150] if number < 3 else b"%b\n%b\n" % (plain, [*BAD][number] if number < 6 else first)
        file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
    return files, sorted([*others, damaged, twin])


def _content(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


@pytest.mark.parametrize("seed", range(5))
def test_only_odd_files_are_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(ingest_local, "_GROUP", 100_000)
    files, odd = some_odd(tmp_path / "in", Random(seed))  # noqa: S311 - not a secret
    dataset, same = (open_dataset(tmp_path / name, make=True) for name in ("dataset", "same"))
    done, left = add_local(dataset, files, now=NOW)
    assert left == odd
    whole = [file for file in files if file not in odd]
    assert (done, rows(dataset)) == (add_local(same, whole, now=NOW)[0], rows(same))
    assert done.merged.added["decisions"] == done.lines == 20 * len(whole)


@pytest.mark.e2e
def test_the_result_equals_an_import_of_all_files_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    files, _ = some_odd(tmp_path / "in", Random(7))  # noqa: S311 - not a secret
    ours, sparks = (open_dataset(tmp_path / name, make=True) for name in ("ours", "sparks"))
    for _ in range(2):
        done, left = add_local(ours, files, now=NOW)
        assert 0 < len(left) < len(files) // 2
        done += ingest_records.add(spark, ours, left, now=NOW)
        assert done == ingest_records.add(spark, sparks, files, now=NOW)
        assert rows(ours) == rows(sparks)
    assert done.rejected[DAMAGED] == 1


def test_the_declared_size_of_a_damaged_file_does_not_exclude_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = written(tmp_path / "in", [lines(GOOD)], 1)
    damaged = tmp_path / "in" / "damaged.jsonl.gz"
    damaged.write_bytes(gzip.compress(lines(GOOD[:9]))[:-4] + b"\xff\xff\xff\xff")
    monkeypatch.setattr(ingest_local, "MOST_BYTES", 1 << 23)
    dataset = open_dataset(tmp_path / "dataset", make=True)
    assert add_local(dataset, [str(damaged), whole], now=NOW)[1] == [str(damaged)]
    assert sum(rows(dataset)["decisions"].values()) == len(GOOD)


def test_an_empty_file_is_left_to_spark(tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path / "dataset", make=True)
    (whole,) = written(tmp_path / "in", [lines(GOOD)], 1)
    for empty in (tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"):
        empty.write_bytes(b"")
        assert add_local(dataset, [whole, str(empty)], now=NOW)[1] == [str(empty)]


def test_a_file_with_more_bytes_than_it_declares_is_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(tmp_path / "dataset", make=True)
    whole, last = lines(GOOD), lines(GOOD[:1])
    file = tmp_path / "two.jsonl.gz"
    # The size at the end is that of the last member.
    file.write_bytes(gzip.compress(whole[len(last) :]) + gzip.compress(last))
    monkeypatch.setattr(ingest_local, "MOST_BYTES", len(whole))
    assert ingest_local._size(str(file)) < len(whole) // 2
    ingest_local._tables([str(file)], {}, NOW, len(whole))
    monkeypatch.setattr(ingest_local, "MOST_BYTES", len(whole) - 1)
    assert add_local(dataset, [str(file)], now=NOW) == (Imported(), [str(file)])


def test_files_of_earlier_versions_get_rows(tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path / "dataset", make=True)
    first, second = written(tmp_path / "in", [dump_record(record) for record in GOOD], 120)
    assert add_local(dataset, [first], now=NOW)[1] == []
    for table in ("observations", "decisions"):
        for name in (name for some in dataset.files(table).values() for name in some):
            # Before times had statistics, and before `controls` existed.
            old = pq.ParquetFile(file := Path(dataset.path, name)).read()
            kept = [name for name in old.column_names if name != "controls"]
            pq.write_table(old.select(kept), file, store_schema=False, use_deprecated_int96_timestamps=True)
    assert add_local(dataset, [second], now=NOW)[1] == []
    new = open_dataset(tmp_path / "new", make=True)
    assert add_local(new, [first, second], now=NOW)[1] == []
    assert rows(dataset)["rescales"] == rows(new)["rescales"]
    assert sum(rows(dataset)["decisions"].values()) == len(GOOD)


@pytest.mark.e2e
def test_spark_finds_rows_with_nan(spark: SparkSession, tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path / "dataset", make=True)
    file = tmp_path / "2026-01-05T12.jsonl"
    values = ["NaN", 1, 2.5]
    found = [spoiled(observation__metrics__lag__value=value, decision__cluster=f"{value}") for value in values]
    file.write_bytes(b"\n".join(found))
    assert add_local(dataset, [str(file)], now=NOW)[1] == []
    # NaN is greater than any other number.
    assert [row.cluster for row in dataset.read(spark, "observations").where("lag > 3").collect()] == ["NaN"]


def test_damaged_files_are_left_to_spark(tmp_path: Path) -> None:
    dataset = open_dataset(tmp_path / "dataset", make=True)
    file = tmp_path / "2026-01-05T22.jsonl.gz"
    whole = gzip.compress(lines(GOOD))
    middle = len(whole) // 2
    for damaged in (whole[:middle], whole[:middle] + b"\0\0\0\0" + whole[middle + 4 :], b"", lines(GOOD)):
        file.write_bytes(damaged)
        assert add_local(dataset, [str(file)], now=NOW) == (Imported(), [str(file)])
    assert add_local(dataset, [str(tmp_path / "none")], now=NOW) == (Imported(), [str(tmp_path / "none")])
    file.write_bytes(whole)
    assert add_local(dataset, [str(file)], now=NOW)[1] == []
    # Of a table too: Spark names the file.
    for name in dataset.files("decisions")[date(2026, 1, 5)]:
        Path(dataset.path, name).write_bytes(b"PAR1 and nothing else PAR1")
    assert add_local(dataset, [str(file)], now=NOW) == (Imported(), [str(file)])


@pytest.mark.usefixtures("no_spark")
def test_the_command_imports_the_files_of_daemons_without_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces, dataset = tmp_path / "traces", str(tmp_path / "dataset")
    traces.mkdir()
    (traces / "2026-01-05T22.jsonl").write_bytes(lines(GOOD[:100]))
    assert cli.main(["history", "import", str(traces), dataset, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["added"] == {"observations": 100, "decisions": 100, "rejected": 0}
    # It has grown, and was compressed.
    (traces / "2026-01-05T22.jsonl").unlink()
    (traces / "2026-01-05T22.jsonl.gz").write_bytes(gzip.compress(lines(GOOD[:120])))
    assert cli.main(["history", "import", str(traces), dataset, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["added"]["decisions"], report["known"]["decisions"]) == (20, 100)


@pytest.fixture
def given_to_spark(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The files of each import by Spark, which fails."""
    given: list[list[str]] = []

    def add(_: object, __: object, files: list[str], **___: object) -> Imported:
        given.append(files)
        raise DatasetError("Spark was killed")

    monkeypatch.setattr("autoscaler.cli.spark_options.open_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr("autoscaler.history.progress.show_progress", lambda *_: nullcontext())
    monkeypatch.setattr(ingest_records, "add", add)
    return given


def test_a_command_that_is_killed_before_the_odd_files_are_imported_can_be_repeated(
    tmp_path: Path,
    given_to_spark: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files, odd = some_odd(tmp_path / "in", Random(1))  # noqa: S311 - not a secret
    command = ["history", "import", str(tmp_path / "in"), str(tmp_path / "dataset"), "--json"]
    for _ in range(2):
        assert cli.main(command) == 1
        assert "Spark was killed" in capsys.readouterr().err
    assert given_to_spark == [odd, odd]
    assert sum(rows(open_dataset(tmp_path / "dataset"))["decisions"].values()) == 20 * (len(files) - len(odd))
    monkeypatch.setattr(ingest_records, "add", lambda *_, **__: Imported(Merged({"decisions": 9}), 10, {"odd": 1}))
    assert cli.main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["files"] == {"read": len(odd), "unchanged": len(files) - len(odd)}
    assert cli.main([*command, "--reimport"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["files"] == {"read": len(files), "unchanged": 0}
    known = 20 * (len(files) - len(odd))
    assert (report["lines"], report["added"]["decisions"], report["known"]["decisions"]) == (known + 10, 9, known)
    assert report["rejected"] == {"odd": 1}


@pytest.mark.usefixtures("no_spark")
def test_a_file_that_is_compressed_during_the_import_does_not_start_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    traces, dataset = tmp_path / "traces", str(tmp_path / "dataset")
    traces.mkdir()
    for hour in (22, 23):
        (traces / f"2026-01-05T{hour}.jsonl").write_bytes(lines(GOOD[hour::30]))
    packed = traces / "2026-01-05T22.jsonl"

    def pack_and_add(*arguments: Any, **options: Any) -> tuple[Imported, list[str]]:
        if packed.exists():
            Path(f"{packed}.gz").write_bytes(gzip.compress(packed.read_bytes()))
            packed.unlink()
        return add_local(*arguments, **options)

    monkeypatch.setattr(ingest_local, "add_local", pack_and_add)
    assert cli.main(["history", "import", str(traces), dataset, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = len(GOOD[22::30]) + len(GOOD[23::30])
    assert (report["files"], report["added"]["decisions"]) == ({"read": 2, "unchanged": 0}, found)
    assert report["known"]["decisions"] == 0


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("autoscaler.cli.spark_options.open_session", refuse)


@pytest.mark.parametrize("each", [1, 5])
def test_rescales_found_hour_by_hour_equal_those_of_all_hours_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each: int
) -> None:
    part = Part(Fleet(clusters=4, days=3, interval=60.0), 0, 4, 60.0)
    found: dict[str, list[str]] = {}
    for hour, line in trace(part, next(simulated(part))):
        found.setdefault(hour, []).append(line)
    files = []
    for hour, text in sorted(found.items()):
        files.append(str(tmp_path / f"{hour}.jsonl"))
        Path(files[-1]).write_text("".join(text))
    whole, hourly = (open_dataset(tmp_path / name, make=True) for name in ("whole", "hourly"))
    assert add_local(whole, files, now=NOW)[1] == []
    read: list[int] = []
    find_local = rescales.find_local

    def find(observations: Sequence[Path], decisions: Sequence[Path], since: datetime | None) -> pa.Table:
        read.append(len(observations))
        return find_local(observations, decisions, since)

    monkeypatch.setattr(rescales, "find_local", find)
    for begin in range(0, len(files), each):
        assert add_local(hourly, files[begin : begin + each], now=NOW)[1] == []
    assert rows(hourly)["rescales"] == rows(whole)["rescales"]
    assert sum(rows(whole)["rescales"].values()) > 20
    if each == 1:
        # Only the last hours are read: the new ones, the hours that they affect, and a day before them.
        assert max(read[-4:]) <= 36, read
    # After hours are imported again, the rescales of all nearby days are found, even if some were lost.
    for names in hourly.files("rescales").values():
        Path(hourly.path, names[0]).unlink()
    assert rows(hourly)["rescales"] != rows(whole)["rescales"]
    assert add_local(hourly, files, now=NOW)[1] == []
    assert rows(hourly)["rescales"] == rows(whole)["rescales"]


def test_files_are_sorted_and_no_cluster_of_a_day_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "ROWS_PER_FILE", 50)
    dataset = open_dataset(tmp_path / "dataset", make=True)
    files = written(tmp_path / "in", [dump_record(record) for record in GOOD], 60)
    assert add_local(dataset, files, now=NOW)[1] == []
    for names in dataset.files("observations").values():
        tables = [pq.read_table(Path(dataset.path, name), columns=["cluster", "at"]) for name in names]
        assert len(tables) > 1
        for table in tables:
            assert table.equals(table.sort_by([("cluster", "ascending"), ("at", "ascending")]))
        together = pa.concat_tables([table.group_by("cluster").aggregate([]) for table in tables])
        assert len(together) == len(together["cluster"].unique())


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = open_dataset(tmp_path / "dataset", make=True)
    files = written(tmp_path / "in", [dump_record(record) for record in GOOD], 60)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", full)
        with pytest.raises(DatasetError, match="cannot be written: No space left on device"):
            add_local(dataset, files, now=NOW)
    assert sum(rows(dataset)["decisions"].values()) == 0
    assert not (tmp_path / "dataset" / "_staging").exists()
    assert add_local(dataset, files, now=NOW)[1] == []


def test_text_too_large_for_arrows_sort_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = open_dataset(tmp_path / "dataset", make=True)
    files = written(tmp_path / "in", [dump_record(record) for record in GOOD], 60)

    def overflow(*_: object) -> None:
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    monkeypatch.setattr(local, "write", overflow)
    assert add_local(dataset, files, now=NOW) == (Imported(), files)
    assert dataset.dates() == ()


def test_a_dataset_with_very_many_rows_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = open_dataset(tmp_path / "dataset", make=True)
    first, second = written(tmp_path / "in", [dump_record(record) for record in GOOD], 120)
    assert add_local(dataset, [first], now=NOW)[1] == []
    monkeypatch.setattr(rescales, "IN_PROCESS", 150)
    before = rows(dataset)
    assert add_local(dataset, [second], now=NOW) == (Imported(), [second])
    assert rows(dataset) == before
    monkeypatch.setattr(rescales, "IN_PROCESS", 100)
    monkeypatch.setattr(ingest_local, "_tables", lambda *_: pytest.fail("lines were read"))
    assert add_local(dataset, [second], now=NOW) == (Imported(), [second])


def test_a_finished_day_is_left_to_spark_if_it_has_very_many_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(tmp_path / "dataset", make=True)
    first, second, *others = written(tmp_path / "in", [dump_record(record) for record in GOOD], 40)
    assert add_local(dataset, [first], now=NOW)[1] == []
    assert add_local(dataset, others, now=NOW)[1] == []
    monkeypatch.setattr(merge, "LOCAL_ROWS", 10)
    assert add_local(dataset, [second], now=NOW) == (Imported(), [second])
    monkeypatch.undo()
    assert add_local(dataset, [second], now=NOW)[1] == []
    assert sum(rows(dataset)["decisions"].values()) == len(GOOD)
