"""The store on a real disk: its content and its failures."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import sqlite3
import stat
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoscaler.core.model import (
    Bound,
    Cause,
    ClusterState,
    Control,
    ControlKind,
    Decision,
    Direction,
    EngineStatus,
    JobState,
    Learned,
    Observation,
    Phase,
    Proposal,
    Reading,
    Reason,
    Recommendation,
    Rescale,
    RescaleTimes,
    ScaleEvent,
    SizeCapacity,
    Verdict,
)
from autoscaler.core.step import step
from autoscaler.daemon import state_store
from autoscaler.daemon.controls import Controls
from autoscaler.daemon.state_store import FILE, SqliteStateStore, open_state_store, read_state
from autoscaler.ports import Member, Record, StoreError
from autoscaler.trace.codec import dump_record, dump_state, load_record, load_state, to_json

from .conftest import in_writer, records_of, spec

NOW = datetime(2026, 1, 31, 17, 5, 3, 250_000, tzinfo=UTC)
DATA = Path(__file__).parent / "data"


def a_record(at: datetime = NOW, cluster: str = "a") -> Record:
    observation = Observation(
        at=at,
        desired=3,
        ready=2,
        metrics={"lag": Reading(120.5, at - timedelta(seconds=2)), "cpu": Reading((0.5, 0.75), at)},
        missing={"engine": 'it said "no"\nand more'},
        engine=EngineStatus(
            job=JobState.RESTARTING,
            slots=3,
            parallelism=2,
            max_parallelism=128,
            partitions=12,
            running_since=at,
            last_checkpoint=at,
            restarts=4,
        ),
    )
    decision = Decision(
        cluster=cluster,
        at=at,
        current=3,
        proposed=5,
        desired=4,
        reason=Reason.RATE_LIMIT,
        recommendations=(Recommendation(5, Reason.ABOVE, {"lag": 120.5}, "too much", "drain"),),
        verdicts=(Verdict(Reason.RATE_LIMIT, 5, 4, Reason.RATE_LIMIT, "1 in 60 s"),),
        notes=((Reason.SETTLED, "done"),),
    )
    return Record(observation, decision)


def a_state(at: datetime = NOW) -> ClusterState:
    rescale = Rescale(
        before=3,
        to=4,
        at=at,
        cause=Cause.REQUEST,
        phase=Phase.READY,
        since=at,
        confirmed=True,
        durations={Phase.READY: 4.5},
    )
    return ClusterState(
        at=at,
        desired=3,
        watched_since=at - timedelta(hours=1),
        proposals=(Proposal(at - timedelta(seconds=10), 4), Proposal(at, 5)),
        events=(ScaleEvent(at, 1),),
        rescale=rescale,
        cooldown_from=at,
        disturbance_ended_at=at,
        last_missed=replace(rescale, error="late", deadlines={Phase.ABSORBED: timedelta(seconds=95)}),
        requested=at - timedelta(minutes=1),
        override_times=(at - timedelta(minutes=9), at - timedelta(minutes=5)),
        past=(),
        learned=Learned(
            {3: SizeCapacity(123.4, at, 7)},
            {Direction.UP: {Phase.READY: (4.5, 5.5)}},
            {"adaptive": {"capacity.3.rate": 0.1 + 0.2, "capacity.3.seen_at": at.timestamp(), "tiny": 5e-324}},
            {Direction.UP: (RescaleTimes(None, None, 15.0, 30.0), RescaleTimes(15.0, 22.5, 41.25, 41.25))},
        ),
    )


def test_every_kind_of_number_survives() -> None:
    record = a_record()
    odd = {"nan": Reading(math.nan, NOW), "inf": Reading((math.inf, -math.inf, 1e-300), NOW)}
    record = replace(record, observation=replace(record.observation, metrics=odd), dry_run=True)
    text = dump_record(record)
    assert b"\n" not in text
    back = load_record(text)
    assert math.isnan(back.observation.metrics["nan"].value)  # type: ignore[arg-type]
    assert back.observation.metrics["inf"].value == (math.inf, -math.inf, 1e-300)
    assert back.dry_run
    assert load_record(dump_record(a_record())) == a_record()


def test_a_line_omits_default_values() -> None:
    observation = Observation(at=NOW, desired=3, ready=3, metrics={"load": Reading(300.0, NOW)})
    _, decision = step(spec("a"), ClusterState(), observation)
    text = dump_record(Record(observation, decision))
    assert load_record(text) == Record(observation, decision)
    line = json.loads(text)
    assert set(line) == {"observation", "decision", "version"}
    assert set(line["observation"]) == {"at", "desired", "ready", "metrics"}
    assert set(line["observation"]["metrics"]["load"]) == {"value", "at"}
    expected = {"cluster", "at", "current", "proposed", "desired", "reason", "recommendations", "guards"}
    assert set(line["decision"]) == expected
    assert line["decision"]["guards"].split() == [verdict.guard for verdict in decision.verdicts]


@pytest.mark.parametrize(
    ("guards", "problem"),
    [
        ("rate_limit nobody", r"decision\.guards\.1: Input should be"),
        (["rate_limit"], r"decision\.guards: Value error, must be names with a space between them"),
        ("cap", "verdicts: a guard has a verdict but is not among the names in guards"),
        ("rate_limit rate_limit", "or occurs twice"),
    ],
)
def test_guards_that_form_no_trail_are_refused(guards: object, problem: str) -> None:
    line = json.loads(dump_record(a_record()))
    line["decision"]["guards"] = guards
    with pytest.raises(ValueError, match=problem):
        load_record(json.dumps(line))


@pytest.mark.parametrize(("version", "problem"), [({}, ""), ({"version": 1}, ""), ({"version": 2}, "version 2 of the")])
def test_a_line_of_another_version_is_refused_and_one_without_a_version_is_of_the_first(
    version: dict[str, int], problem: str
) -> None:
    line = json.loads(dump_record(a_record()))
    del line["version"]
    with pytest.raises(ValueError, match=problem) if problem else nullcontext():
        assert load_record(json.dumps(line | version)) == a_record()


def test_what_a_version_before_targets_had_bounds_has_kept_is_still_read() -> None:
    """The data was written by a version without remarks, floors, ceilings, deadlines and partitions of a reading."""
    record = load_record((DATA / "trace-1.jsonl").read_bytes())
    seen = record.observation
    assert (seen.floor, seen.ceiling, seen.remarks) == (None, None, ())
    assert seen.engine is not None
    assert seen.engine.deadlines == {}
    assert seen.metrics["lag"].partitions is None
    # The record has a complete verdict of each guard.
    assert [verdict.after for verdict in record.decision.verdicts] == [6] * 9
    assert load_record(dump_record(record)) == record
    state = load_state((DATA / "state-1.json").read_bytes())
    assert (state.requested, state.override_times) == (None, ())
    assert state.rescale is not None
    assert state.rescale.deadlines == {}
    state = replace(state, past=(seen,))
    later = replace(seen, at=seen.at + timedelta(seconds=15), ready=6)
    after, decision = step(spec("orders", engine=True), state, later)
    assert (
        Reason.SETTLING,
        "the rescale from 3 to 6: after 30 s the target has the new number of replicas ready",
    ) in decision.notes
    assert load_state(dump_state(after)) == replace(after, past=())


def test_everything_that_a_target_and_an_engine_may_report_survives() -> None:
    record, state = a_record(), a_state()
    engine = EngineStatus(
        job=JobState.RUNNING, deadlines={Phase.ABSORBED: timedelta.max, Phase.RUNNING: timedelta(seconds=72.5)}
    )
    observation = replace(
        record.observation,
        engine=engine,
        floor=Bound(1, "one is protected"),
        ceiling=Bound(9, "the group's own maximum is 9"),
        remarks=("1 pod pending: Insufficient cpu",),
        metrics={"lag": Reading(1.0, NOW, 12)},
    )
    record = replace(record, observation=observation)
    assert load_record(dump_record(record)) == record
    assert state.rescale is not None
    rescale = replace(state.rescale, deadlines=engine.deadlines)
    state = replace(state, past=(), rescale=rescale, requested=NOW, override_times=(NOW, NOW))
    assert load_state(dump_state(state)) == state


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -math.inf])
def test_an_invalid_learned_number_is_learned_again(nonsense: float) -> None:
    state = replace(a_state(), past=())
    kept = state.learned
    damaged = Learned(
        {**kept.capacity, 4: SizeCapacity(nonsense, NOW, 1)},
        {Direction.UP: {**kept.durations[Direction.UP], Phase.ABSORBED: (1.0, nonsense)}},
        {"adaptive": {**kept.memory["adaptive"], "noise": nonsense}, "other": {"x": nonsense}},
        {Direction.UP: (*kept.times[Direction.UP], RescaleTimes(0.0, nonsense, 1.0, 2.0))},
    )
    learned = load_state(dump_state(replace(state, learned=damaged))).learned
    assert learned == replace(kept, memory={**kept.memory, "other": {}})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Invalid JSON"),
        ("{}", "observation: Field required"),
        ('{"observation": 3}', "observation"),
        (dump_record(a_record()).decode().replace('"version":1', '"version":2'), "version 2 of the trace format"),
        (dump_record(a_record()).decode().replace('"rate_limit"', '"whim"'), "reason"),
    ],
)
def test_an_invalid_record_is_refused_with_its_position(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        load_record(text)


async def test_waiting_saves_are_written_in_one_transaction(tmp_path: Path) -> None:
    async with open_state_store(tmp_path, decisions=20) as store:
        commits: list[str] = []
        await in_writer(store, lambda connection: connection.set_trace_callback(commits.append))
        await asyncio.gather(*(store.save(f"c{n}", a_state(), a_record(cluster=f"c{n}")) for n in range(200)))
        assert commits.count("COMMIT") == 1
        await in_writer(store, lambda connection: connection.set_trace_callback(None))


def fill(connection: sqlite3.Connection) -> None:
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")


async def test_a_full_disk_is_reported_and_nothing_is_half_persisted(tmp_path: Path) -> None:
    async with open_state_store(tmp_path, decisions=1000) as store:
        await store.save("a", a_state(), a_record())
        await in_writer(store, fill)
        with pytest.raises(StoreError, match=r"the disk is full\. Decisions are not acted on until there is space"):
            await keep_many(store)
        assert "disk is full" in str(store.failure)
        assert len(await records_of(store, "new", 1000)) == 0
        assert await store.load("new") is None
        assert await store.load("a") is not None
        await in_writer(store, lambda connection: connection.execute("PRAGMA max_page_count = 1000000"))
        await keep_many(store)
        assert store.failure is None
        assert len(await records_of(store, "new", 1000)) == 50


async def keep_many(store: SqliteStateStore) -> None:
    """All saves are in one transaction, which is too large for the remaining pages."""
    await asyncio.gather(
        *(store.save("new", a_state(), a_record(NOW + timedelta(seconds=n), "new")) for n in range(50))
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"this is not a database, but it is long enough" * 100,
        b"SQLite format 3\0junk" * 300,
        bytes(range(55, 255)),
    ],
)
async def test_a_file_that_is_not_a_database_is_refused_with_advice(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    if not content:
        async with open_state_store(tmp_path, decisions=5) as store:  # an empty file is a new database
            assert await store.load("a") is None
        return
    with pytest.raises(StoreError, match=f"{FILE} is damaged .* move the file away"):
        async with open_state_store(tmp_path, decisions=5):
            pass
    assert (tmp_path / FILE).read_bytes() == content


async def test_damage_in_the_middle_of_the_file_is_an_error_and_not_a_wrong_state(tmp_path: Path) -> None:
    async with open_state_store(tmp_path, decisions=500) as store:
        for number in range(100):
            at = NOW + timedelta(seconds=number)
            await store.save("a", a_state(at), a_record(at))
    path = tmp_path / FILE
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)
    async with open_state_store(tmp_path, decisions=500) as store:
        with pytest.raises(StoreError, match=r"is damaged"):
            await store.load("a")
        with pytest.raises(StoreError, match=r"is damaged"):
            await store.save("a", a_state(), a_record())
    with pytest.raises(StoreError, match=r"is damaged"):
        read_state(tmp_path, "a")


async def test_a_file_of_a_later_version_is_refused_and_not_changed(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="has schema 99, expected 1"):
        async with open_state_store(tmp_path, decisions=5):
            pass


async def test_a_second_daemon_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    async with open_state_store(tmp_path, decisions=5):
        with pytest.raises(StoreError, match=rf"in use by another autoscaler \(process {os.getpid()}\)"):
            async with open_state_store(tmp_path, decisions=5):
                pass
    async with open_state_store(tmp_path, decisions=5):
        pass


async def test_only_the_user_of_the_daemon_can_read_the_files(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "var"
    async with open_state_store(directory, decisions=5) as store:
        await store.save("a", a_state(), a_record())
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}


async def test_a_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be used for state: Not a directory"):
        async with open_state_store(tmp_path / "file" / "var", decisions=5):
            pass


async def test_what_was_kept_before_the_clock_was_set_is_read_after_a_restart(tmp_path: Path) -> None:
    at = datetime(1970, 1, 1, 0, 0, 40, tzinfo=UTC)  # observations an hour earlier are in the previous year
    async with open_state_store(tmp_path, decisions=5) as store:
        await store.save("a", a_state(at), a_record(at))
    assert read_state(tmp_path, "a") == a_state(at)


def test_an_unreadable_state_is_reported(tmp_path: Path) -> None:
    assert read_state(tmp_path, "a") is None
    with pytest.raises(StoreError, match="cannot be used: File name too long"):
        read_state(tmp_path / ("x" * 300), "a")
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        # The file as left by a daemon that was killed before it created its tables.
        connection.execute("PRAGMA journal_mode = WAL")
        assert read_state(tmp_path, "a") is None
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="has schema 99, expected 1"):
        read_state(tmp_path, "a")


def test_numbers_that_json_lacks_are_strings_in_the_api() -> None:
    record = a_record()
    asked = Recommendation(1, Reason.STEADY, {"ratio": math.nan, "bound": math.inf})
    shown = to_json(replace(record.decision, recommendations=(asked,)))
    assert '"inputs": {"ratio": "NaN", "bound": "Infinity"}' in json.dumps(shown, allow_nan=False)


def test_a_state_is_saved_without_its_past_which_is_in_the_records() -> None:
    state = replace(a_state(), past=(a_record().observation,) * 3)
    assert load_state(dump_state(state)) == replace(state, past=())


@pytest.mark.parametrize("gone", ["directory", "file"])
async def test_a_deleted_state_file_is_noticed_and_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, gone: str
) -> None:
    directory = tmp_path / "var"
    async with open_state_store(directory, decisions=5) as store:
        await store.save("a", a_state(), a_record())
        if gone == "directory":
            shutil.rmtree(directory)
        else:
            (directory / FILE).unlink()
        await store.save("a", a_state(), a_record())
        assert store.failure is None
        assert read_state(directory, "a") == a_state()
        assert len(await records_of(store, "a", 10)) == 1
        with pytest.raises(StoreError, match="in use by another autoscaler"):
            async with open_state_store(directory, decisions=5):
                pass
    assert [record.message for record in caplog.records] == ["the state file was deleted or replaced: opening it again"]


@pytest.mark.parametrize("replaced", [False, True])
async def test_controls_survive_a_deleted_or_replaced_state_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    hold = Control(kind=ControlKind.HOLD, by="", replicas=3)
    async with open_state_store(tmp_path / "backup", decisions=5) as store:
        await Controls(store, lambda: now).add(hold, ["c"], by="bob")
    async with open_state_store(tmp_path / "var", decisions=5) as store:
        controls = Controls(store, lambda: now)
        await controls.load()
        for cluster in ("a", "b"):
            await controls.add(hold, [cluster], by="ann", until=now + timedelta(hours=1))
        known = controls.listing(now)
        (tmp_path / "var" / FILE).unlink()
        if replaced:
            shutil.copy(tmp_path / "backup" / FILE, tmp_path / "var")
        with monkeypatch.context() as patched:
            patched.setattr(state_store, "dump_control", lambda _: "no bytes")
            with pytest.raises(StoreError):
                await store.save("a", a_state(), a_record())
        await store.save("a", a_state(), a_record())
        assert await store.load_controls() == list(known)
        await controls.add(hold, ["a"], by="ann", until=now + timedelta(hours=2))
        assert [each.clusters for each in controls.listing(now)] == [("b",), ("a",)]
    async with open_state_store(tmp_path / "var", decisions=5) as store:
        assert tuple(await store.load_controls()) == controls.listing(now)


async def test_nothing_is_saved_until_a_deleted_directory_can_be_created_again(tmp_path: Path) -> None:
    directory = tmp_path / "volume" / "var"
    async with open_state_store(directory, decisions=5) as store:
        await store.save("a", a_state(), a_record())
        shutil.rmtree(directory.parent)
        directory.parent.write_text("not a directory")
        for _ in range(3):
            with pytest.raises(StoreError, match="cannot be used for state: Not a directory"):
                await store.save("a", a_state(), a_record())
        assert "cannot be used for state" in str(store.failure)
        directory.parent.unlink()
        await store.save("a", a_state(), a_record())
        assert store.failure is None
    assert read_state(directory, "a") == a_state()


async def test_another_daemon_that_took_over_a_deleted_directory_keeps_it(tmp_path: Path) -> None:
    directory = tmp_path / "var"
    async with open_state_store(directory, decisions=5) as store:
        await store.save("a", a_state(), a_record())
        shutil.rmtree(directory)
        async with open_state_store(directory, decisions=5) as other:
            with pytest.raises(StoreError, match="in use by another autoscaler"):
                await store.save("a", a_state(), a_record())
            await other.save("b", a_state(), a_record())
        await store.save("a", a_state(), a_record())
    assert read_state(directory, "b") == read_state(directory, "a") == a_state()


async def test_only_changed_members_are_written(tmp_path: Path) -> None:
    members = {str(number): Member(str(number), {"name": str(number)}) for number in range(100)}
    async with open_state_store(tmp_path, decisions=9) as store:
        await store.save_members("f", members)
        before = await in_writer(store, lambda connection: connection.total_changes)
        await store.save_members("f", {**members, "7": Member("7", {"name": "other"}), "new": Member("new", {})})
        assert await in_writer(store, lambda connection: connection.total_changes) - before == 2


async def test_a_directory_of_a_version_without_fleets_is_still_read(tmp_path: Path) -> None:
    async with open_state_store(tmp_path, decisions=9) as store:
        await store.save("a", ClusterState(), a_record())
        await in_writer(store, lambda connection: connection.execute("DROP TABLE member"))
    async with open_state_store(tmp_path, decisions=9) as store:
        assert await store.load_members("f") == {}
        assert len(await records_of(store, "a", 9)) == 1


async def test_all_members_are_written_again_if_the_file_was_deleted(tmp_path: Path) -> None:
    a, b = Member("a", {"name": "a"}), Member("b", {"name": "b"})
    async with open_state_store(tmp_path, decisions=9) as store:
        await store.save_members("f", {"a": a})
        (tmp_path / FILE).unlink()
        await store.save_members("f", {"a": a, "b": b})
        assert await store.load_members("f") == {"a": a, "b": b}


async def test_a_failure_to_write_members_is_an_error_and_nothing_is_half_persisted(tmp_path: Path) -> None:
    a = Member("a", {"name": "a"})
    async with open_state_store(tmp_path, decisions=9) as store:
        await store.save_members("f", {"a": a})
        await in_writer(store, lambda connection: connection.execute("PRAGMA query_only = 1"))
        with pytest.raises(StoreError, match="cannot be used"):
            await store.save_members("f", {"b": a})
        with pytest.raises(StoreError, match="cannot be used"):
            await store.forget_members(set())
        await in_writer(store, lambda connection: connection.execute("PRAGMA query_only = 0"))
        assert await store.load_members("f") == {"a": a}
