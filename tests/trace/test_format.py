"""Traces as found on disks: complete, truncated, damaged, compressed, of several clusters."""

from __future__ import annotations

import gzip
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from autoscaler.core.model import Decision, EngineStatus, JobState, Observation, Reading, Reason
from autoscaler.ports import Record
from autoscaler.trace.codec import call_failure, dump_record
from autoscaler.trace.format import TraceError, file_name, files, read, read_back

AT = datetime(2026, 1, 31, 17, 59, 59, tzinfo=UTC)


def _record(second: int = 0, cluster: str = "a") -> Record:
    at = AT + timedelta(seconds=second)
    observation = Observation(at=at, desired=3, ready=3, metrics={"lag": Reading(0.1 + second, at)})
    return Record(observation, Decision(cluster=cluster, at=at, current=3, proposed=3, desired=3, reason=Reason.STEADY))


def _line(second: int = 0, cluster: str = "a") -> bytes:
    return dump_record(_record(second, cluster)) + b"\n"


def test_a_file_gives_its_records_of_all_clusters_in_order(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(_line(2) + _line(1, "b") + b"\n" + _line(3))
    assert list(read(path)) == [_record(2), _record(1, "b"), _record(3)]


def test_a_directory_gives_the_records_of_its_files_oldest_first(tmp_path: Path) -> None:
    (tmp_path / "2026-01-31T18.jsonl").write_bytes(_line(2))
    (tmp_path / "2026-01-31T17.jsonl").write_bytes(_line(1))
    (tmp_path / "2026-01-31T16.jsonl.gz").write_bytes(gzip.compress(_line(0)))
    (tmp_path / "2026-01-31T17.jsonl.gz").write_bytes(gzip.compress(_line(1)))
    (tmp_path / "notes.txt").write_text("nothing of ours")
    assert [path.name for path in files(tmp_path)] == [
        "2026-01-31T16.jsonl.gz",
        "2026-01-31T17.jsonl",
        "2026-01-31T18.jsonl",
    ]
    assert list(read(tmp_path)) == [_record(0), _record(1), _record(2)]


@pytest.mark.parametrize(
    "time", [AT.replace(tzinfo=None), AT.replace(year=9999), AT.replace(year=1)], ids=["no zone", "9999", "1"]
)
def test_a_line_with_an_unusable_time_is_skipped(time: datetime, tmp_path: Path) -> None:
    path = tmp_path / "2026-01-31T17.jsonl"
    good = _record(0)
    for observation in (
        replace(good.observation, at=time),
        replace(good.observation, metrics={"lag": Reading(1.0, time)}),
        replace(good.observation, engine=EngineStatus(job=JobState.RUNNING, running_since=time)),
    ):
        decision = replace(good.decision, at=observation.at)
        path.write_bytes(_line(0) + dump_record(Record(observation, decision)) + b"\n" + _line(1))
        complaints: list[str] = []
        assert list(read(path, complaints.append)) == [_record(0), _record(1)]
        (complaint,) = complaints
        assert complaint == (f"{path}:2: it has the time {time.isoformat()}, expected one from 1900 on, with its zone")


def test_additional_files_of_an_hour_follow_it_and_a_duplicate_is_read_once(
    tmp_path: Path,
) -> None:
    packed = {"16.jsonl.gz": 1, "16.1.jsonl.gz": 2, "16.2.jsonl.gz": 3, "16.10.jsonl.gz": 4, "17.jsonl.gz": 5}
    for name_, second in packed.items():
        (tmp_path / f"2026-01-31T{name_}").write_bytes(gzip.compress(_line(second)))
    (tmp_path / "2026-01-31T15.jsonl").write_bytes(_line(0))
    (tmp_path / "2026-01-31T16.10.jsonl").write_bytes(_line(4))
    (tmp_path / "2026-01-31T17.jsonl").write_bytes(_line(6))  # other content than the compressed one
    (tmp_path / ".2026-01-31T15.jsonl.gz.part").write_bytes(b"half")
    assert [record.decision.at.second for record in read(tmp_path)] == [59, 0, 1, 2, 3, 5, 4]
    assert _record(4) in read(tmp_path)


def test_a_file_that_a_daemon_compresses_during_the_read_is_not_missed(tmp_path: Path) -> None:
    for hour in (16, 17):
        (tmp_path / f"2026-01-31T{hour}.jsonl").write_bytes(_line(hour))
    reading = read(tmp_path)
    assert next(reading) == _record(16)
    (tmp_path / "2026-01-31T17.jsonl").rename(tmp_path / "plain")
    (tmp_path / "2026-01-31T17.jsonl.gz").write_bytes(gzip.compress((tmp_path / "plain").read_bytes()))
    assert list(reading) == [_record(17)]


def test_unreadable_lines_are_reported_with_file_and_line_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "2026-01-31T17.jsonl"
    later = _line(1).replace(b'"version":1', b'"version":2')
    path.write_bytes(_line(0) + b"nonsense\n" + later + b'{"observation":{}}\n\xff\n' + _line(4) + _line(5)[:-20])
    output: list[str] = []
    assert list(read(path, output.append)) == [_record(0), _record(4)]
    assert [line.split(": ", 1)[0] for line in output] == [f"{path}:{number}" for number in (2, 3, 4, 5, 7)]
    assert "Invalid JSON" in output[0]
    assert "version 2 of the trace format is not known, expected 1" in output[1]
    assert "observation.at" in output[2]
    assert output[4] == f"{path}:7: is cut off; a daemon may still be writing it"


def test_a_complete_last_line_counts_even_without_a_line_end(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(_line(0) + _line(1)[:-1])
    assert list(read(path)) == [_record(0), _record(1)]


def test_the_first_bad_line_is_an_error_if_no_listener_is_given(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(_line(0) + b"nonsense\n" + _line(2))
    records = read(path)
    assert next(records) == _record(0)
    with pytest.raises(TraceError, match=rf"{path}:2: Invalid JSON"):
        next(records)


def test_the_error_for_a_missing_trace_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere: there is no such file or directory"):
        files(tmp_path / "nowhere")
    with pytest.raises(TraceError, match=r"has no file \*.jsonl; the history of a daemon is in history/"):
        files(tmp_path)


def test_a_file_that_fails_during_the_read_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(_line(0) * 500)
    for number, spoiled in enumerate((whole[:-30], b"not compressed", whole[:60] + b"\0" * 40 + whole[100:])):
        path = tmp_path / f"{number}.jsonl.gz"
        path.write_bytes(spoiled)
        with pytest.raises(TraceError, match=rf"{path}: cannot be read: \S"):
            list(read(path, lambda _: None))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "dir.jsonl").mkdir()
    with pytest.raises(TraceError, match=r"dir.jsonl: cannot be read: Is a directory"):
        list(read(tmp_path / "sub"))


def test_a_file_is_named_after_the_hour_in_utc() -> None:
    assert file_name(AT) == "2026-01-31T17.jsonl"
    assert file_name(AT.astimezone(timezone(timedelta(hours=5, minutes=30)))) == "2026-01-31T17.jsonl"


def test_a_dangling_link_is_ignored_beside_a_compressed_file(tmp_path: Path) -> None:
    packed = tmp_path / "2026-01-31T17.jsonl.gz"
    packed.write_bytes(gzip.compress(_line(1) + b"\n"))
    (tmp_path / "2026-01-31T17.jsonl").symlink_to(tmp_path / "gone")
    assert files(tmp_path) == [packed]
    packed.unlink()
    with pytest.raises(TraceError, match=r"17\.jsonl: cannot be read: No such file"):
        list(read(tmp_path))


def test_a_directory_beside_a_compressed_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "2026-01-31T17.jsonl.gz").write_bytes(gzip.compress(_line(1) + b"\n"))
    (tmp_path / "2026-01-31T17.jsonl").mkdir()
    with pytest.raises(TraceError, match=r"17\.jsonl: cannot be read: Is a directory"):
        files(tmp_path)


def test_a_damaged_compressed_file_does_not_replace_the_uncompressed_one(tmp_path: Path) -> None:
    plain, packed = tmp_path / "2026-01-31T17.jsonl", tmp_path / "2026-01-31T17.jsonl.gz"
    plain.write_bytes(_line(1) + b"\n")
    packed.write_bytes(b"no gzip")
    assert files(tmp_path) == [plain, packed]


def test_the_records_of_one_cluster_are_read_backwards_from_the_newest(tmp_path: Path) -> None:
    (tmp_path / "2026-01-31T17.jsonl.gz").write_bytes(gzip.compress(_line(0) + _line(0, "b") + b'{"what": "a"}\n'))
    (tmp_path / "2026-01-31T18.jsonl.gz").write_bytes(gzip.compress(_line(3) + _line(2, "b") + _line(1)))
    (tmp_path / "2026-01-31T18.1.jsonl").write_bytes(_line(2) + _line(4) + _line(5)[:-9])
    complaints: list[str] = []
    assert list(read_back(tmp_path, "a", complain=complaints.append)) == [_record(n) for n in (4, 3, 2, 1, 0)]
    assert [complaint.split(": ")[0] for complaint in complaints] == [
        f"{tmp_path}/2026-01-31T18.1.jsonl:3",
        f"{tmp_path}/2026-01-31T17.jsonl.gz:3",
    ]
    assert list(read_back(tmp_path, "b", until=AT + timedelta(seconds=2))) == [_record(2, "b"), _record(0, "b")]
    # Files outside the requested time are not even opened.
    (tmp_path / "2026-01-31T19.jsonl.gz").write_bytes(b"damaged")
    (tmp_path / "2026-01-31T16.jsonl.gz").write_bytes(b"damaged")
    assert next(read_back(tmp_path, "b", until=AT + timedelta(seconds=1))) == _record(0, "b")
    with pytest.raises(TraceError, match="cannot be read"):
        list(read_back(tmp_path, "b", until=AT))
    assert not list(read_back(tmp_path, "b", until=AT - timedelta(hours=9)))


def test_the_reason_for_a_failed_call_is_in_the_record_after_the_decision() -> None:
    steady = _record()
    asked = replace(steady, decision=replace(steady.decision, desired=5))
    after = replace(steady, failed="403 Forbidden")
    assert call_failure(asked, after) == "403 Forbidden"
    assert call_failure(asked, steady) is None
    assert call_failure(asked, None) is None
    assert call_failure(steady, after) is None
