"""Manual controls, in virtual time: the clusters they apply to, their expiry, what is stored, and what is logged."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model import Control, ControlKind, Reason
from autoscaler.daemon.controls import Controls, expired, in_force, stored_for, unneeded
from autoscaler.daemon.fleet import Fleet
from autoscaler.daemon.observer import FoundControls
from autoscaler.daemon.state_store import FILE, open_state_store
from autoscaler.daemon.status import fleet_of
from autoscaler.ports import MAX_AUDIT, AuditEntry, Member, StoredControl, StoreError
from autoscaler.testing import virtual_time
from autoscaler.testing.fakes import Fake
from tests.daemon.fake_stores import FakeStore

from .conftest import Fleets, in_writer

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def control(kind: str, **more: Any) -> Control:
    parts: dict[str, Any] = {"pause": {"up": True, "down": True}, "hold": {"replicas": 4}, "limit": {"maximum": 6}}
    return Control(**{"kind": ControlKind(kind), "by": "alice", "at": NOON, **parts[kind], **more})


def stored(
    number: int, what: str, clusters: str = "", fleets: str = "", until: datetime | None = None
) -> StoredControl:
    return StoredControl(
        id=number,
        clusters=tuple(clusters.split()),
        fleets=tuple(fleets.split()),
        control=None if what == "resume" else control(what, until=until),
        by="alice",
        at=NOON,
        until=until,
    )


@pytest.mark.parametrize(
    ("orders", "cluster", "fleet", "found"),
    [
        (["pause a"], "a", None, ["pause"]),
        (["pause a"], "b", None, []),
        (["pause prod-*"], "prod-x", None, ["pause"]),
        (["pause x --fleet f"], "a", "f", ["pause"]),
        (["pause x --fleet f*"], "a", "five", ["pause"]),
        (["pause x --fleet f"], "a", None, []),
        (["pause x --fleet f"], "f", None, []),
        (["limit a", "hold a", "pause a"], "a", None, ["pause", "hold", "limit"]),
        (["pause a", "resume a"], "a", None, []),
        (["pause *", "resume a"], "b", None, ["pause"]),
        (["pause a", "resume *", "hold a"], "a", None, ["hold"]),
    ],
)
def test_a_control_holds_for_the_named_clusters_and_fleets_until_they_are_resumed(
    orders: list[str], cluster: str, fleet: str | None, found: list[str]
) -> None:
    parts = [order.partition(" --fleet ") for order in orders]
    listed = [stored(n, first.split()[0], first.split()[1], fleets) for n, (first, _, fleets) in enumerate(parts, 1)]
    assert [each.kind for each in in_force(stored_for(listed, cluster, fleet), NOON)] == found


def test_the_newest_control_of_a_kind_counts_and_after_it_an_older_one_that_has_not_expired() -> None:
    older = replace(stored(1, "hold", "a"), control=control("hold", replicas=3))
    newer = replace(stored(2, "hold", "*", until=NOON + HOUR), control=control("hold", replicas=9))
    for after, size in ((timedelta(0), 9), (HOUR, 3)):
        [found] = in_force(stored_for([older, newer], "a", None), NOON + after)
        assert found.replicas == size


def test_controls_that_can_never_be_in_force_again_are_deleted() -> None:
    soon, late = NOON + HOUR, NOON + 2 * HOUR
    first = stored(1, "pause", "a", until=soon)
    assert unneeded([first], NOON) == []
    assert unneeded([first], soon) == [1]
    assert unneeded([first, stored(2, "pause", "a b", until=late)], NOON) == [1]
    assert unneeded([first, stored(2, "pause", "a b")], NOON) == [1]
    assert unneeded([first, stored(2, "pause", "a", "f")], NOON) == [1]
    assert unneeded([stored(1, "pause", "a"), stored(2, "pause", "a", until=late)], NOON) == []
    assert unneeded([stored(1, "pause", "a", until=late), stored(2, "pause", "a", until=soon)], NOON) == []
    assert unneeded([first, stored(2, "hold", "a")], NOON) == []
    assert unneeded([stored(1, "pause", "a b"), stored(2, "pause", "a")], NOON) == []
    # A resume ends controls of its clusters. It is needed while there is an older control that it ends only in part.
    assert unneeded([first, stored(2, "resume", "a")], NOON) == [1, 2]
    assert unneeded([stored(1, "pause", "*"), stored(2, "resume", "a")], NOON) == []
    assert unneeded([stored(1, "pause", "*"), stored(2, "resume", "a"), stored(3, "pause", "*")], NOON) == [1, 2]
    assert unneeded([stored(1, "resume", "a"), stored(2, "pause", "*")], NOON) == [1]


names = st.sampled_from(["a", "b", "a b", "*"])
orders = st.lists(
    st.tuples(
        st.sampled_from(["pause", "hold", "resume"]),
        names,
        st.sampled_from(["", "f"]),
        st.sampled_from([None, NOON + HOUR, NOON + 2 * HOUR]),
    ),
    max_size=7,
)


@given(orders, st.sampled_from([0, 1, 2]))
def test_deleting_expired_controls_changes_nothing_at_any_later_time(
    listed: list[tuple[str, str, str, datetime | None]], hours: int
) -> None:
    whole = [
        stored(number, what, clusters, fleets, None if what == "resume" else until)
        for number, (what, clusters, fleets, until) in enumerate(listed, 1)
    ]
    now = NOON + hours * HOUR
    gone = unneeded(whole, now)
    kept = [each for each in whole if each.id not in gone]
    for cluster, fleet in (("a", None), ("b", None), ("c", "f"), ("a", "f")):
        for later in (now, now + HOUR, now + 3 * HOUR):
            assert in_force(stored_for(kept, cluster, fleet), later) == in_force(
                stored_for(whole, cluster, fleet), later
            )


@dataclass(frozen=True, eq=False)
class Annotated(Fake[Any]):
    """A discovery whose members set a hold by their values."""

    def controls(self, member: Member) -> tuple[tuple[Control, ...], tuple[str, ...]]:
        size = str(member.values.get("hold", ""))
        if size == "defect":
            raise RuntimeError("cannot stand this")
        if not size:
            return (), ()
        if not size.isdecimal():
            return (), (f"{size!r} is no number",)
        return (control("hold", by="the annotation", at=None, replicas=int(size)),), ()


class Ordering(Fleets):
    """A fleet `f` and static clusters, with controls as in a daemon."""

    def __init__(self, *names: str, **changes: Any) -> None:
        super().__init__(*names, **changes)
        self.specs = {"f": self.spec("f", Annotated(self.discovery))}

    def make_fleet(self, *, dry_run: bool = False) -> Fleet:
        self.controls = Controls(self.store, self.clock)
        return Fleet(
            self.store, self.store, self.tick_times, utc=self.clock, dry_run=dry_run, find_controls=self.controls_of
        )

    def controls_of(self, cluster: str, at: datetime) -> FoundControls:
        found = self.controls.in_force(cluster, fleet_of(self.discoveries.members, cluster), at)
        of_member = self.discoveries.controls.get(cluster, FoundControls())
        return FoundControls(found + of_member.controls, of_member.remarks)

    async def start(self) -> None:
        await self.controls.load()
        await super().start()

    def until_in(self, **span: float) -> datetime:
        return self.clock() + timedelta(**span)

    def reasons(self, cluster: str) -> list[Reason]:
        return [one.decision.reason for one in self.store.records if one.decision.cluster == cluster]


def said(caplog: pytest.LogCaptureFixture, message: str) -> list[tuple[Any, Any]]:
    return [(vars(one)["cluster"], vars(one)["control"]) for one in caplog.records if one.message == message]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autoscaler")


def test_a_hold_is_reached_at_once_expires_and_logs_each_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = Ordering("a", "b")
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(100)
        assert world.targets["a"].requests == [3]
        until = world.until_in(minutes=5)
        added = await world.controls.add(control("hold", replicas=7), ["a"], by="bob", reason="a release", until=until)
        assert (added.id, added.by, added.until) == (1, "bob", until)
        await world.until(120)
        assert world.targets["a"].requests == [3, 7]
        world.source.values["load"] = 500.0
        await world.until(390)
        assert (world.targets["a"].requests, world.targets["b"].requests) == ([3, 7], [3, 5])
        assert Reason.CONTROL in world.reasons("a")
        what = f"the size is held at 7 by bob until {until:%Y-%m-%d %H:%M:%S} UTC: a release"
        assert said(caplog, "control in force") == [("a", what)]
        assert said(caplog, "control ended") == []
        await world.until(600)
        assert world.targets["a"].requests == [3, 7, 5]
        assert said(caplog, "control in force") == said(caplog, "control ended") == [("a", what)]
        await world.stop()

    virtual_time.run(main())


def test_a_pause_survives_a_restart_and_ends_at_the_same_time() -> None:
    async def main() -> None:
        world = Ordering("a")
        await world.start()
        await world.until(50)
        await world.controls.add(control("pause", down=False), ["a"], by="bob", until=world.until_in(minutes=5))
        await world.stop()
        world.source.values["load"] = 900.0
        world.restart()
        await world.start()
        await world.until(340)
        assert world.targets["a"].requests == []
        await world.until(370)
        assert world.targets["a"].requests == [9]
        await world.stop()

    virtual_time.run(main())


def test_a_held_fleet_includes_members_that_join_later_and_can_be_resumed_in_part() -> None:
    async def main() -> None:
        world = Ordering("own")
        world.find("ab")
        world.source.values["load"] = 400.0
        await world.start()
        await world.controls.add(control("pause"), (), ["f"], by="bob")
        await world.until(50)
        world.find("abc")
        await world.until(100)
        assert [world.targets[name].requests for name in ("own", "a", "b", "c")] == [[4], [], [], []]
        await world.controls.add(None, ["b"], by="bob", until=world.until_in(minutes=1))
        await world.until(200)
        assert [world.targets[name].requests for name in ("own", "a", "b", "c")] == [[4], [], [4], []]
        assert [each.clusters for each in world.controls.listing(world.clock())] == [()]
        [paused, resumed] = world.store.entries
        assert (paused.action, paused.scope, paused.detail, paused.by, paused.accepted) == (
            "pause",
            "fleets f",
            "scaling up and down is paused until it is resumed",
            "bob",
            True,
        )
        assert (resumed.action, resumed.scope, resumed.detail) == ("resume", "clusters b", "")
        await world.stop()

    virtual_time.run(main())


def test_a_control_in_the_values_of_a_member_works_without_a_new_controller_also_after_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Ordering()
        world.find("a")
        await world.start()
        await world.until(50)
        controller = world.controllers["a"]
        world.find("a", hold="5")
        await world.until(100)
        assert world.controllers["a"] is controller
        assert world.targets["a"].requests == [5]
        assert [(each.kind, each.by) for each in controller.controls] == [("hold", "the annotation")]
        await world.stop()
        world.discovery.failure = OSError("away")
        world.source.values["load"] = 900.0
        world.restart()
        await world.start()
        await world.until(250)
        assert world.targets["a"].requests == [5]
        world.discovery.failure = None
        world.find("a", hold="many")
        await world.until(400)
        assert world.targets["a"].requests == [5, 9]
        assert world.controllers["a"].remarks == ("'many' is no number",)
        world.find("a", hold="defect")
        await world.until(450)
        [remark] = world.controllers["a"].remarks
        assert remark.startswith("the controls of id-a are not known: ")
        await world.stop()

    virtual_time.run(main())
    assert [
        vars(one)["remark"] for one in caplog.records if one.message == "target or annotation reports a condition"
    ] == [
        "'many' is no number",
        "the controls of id-a are not known: RuntimeError: cannot stand this",
    ]


def test_a_control_shown_by_a_target_is_in_force_but_a_newer_command_takes_precedence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Ordering("a")
        target = world.targets["a"]
        target.controls = ("nonsense", control("hold", at=None, by="the annotation", replicas=6))  # type: ignore[assignment]
        await world.start()
        await world.until(50)
        assert target.requests == [6]
        target.failure = OSError("away")
        await world.until(100)
        target.failure = None
        await world.until(150)
        assert len(said(caplog, "control in force")) == 1
        await world.controls.add(control("hold", replicas=2), ["a"], by="bob", until=world.until_in(seconds=60))
        await world.until(190)
        assert target.requests == [6, 2]
        await world.until(300)
        assert target.requests == [6, 2, 6]
        target.controls = None  # type: ignore[assignment]
        await world.until(400)
        assert world.controllers["a"].controls == ()
        await world.stop()

    virtual_time.run(main())


async def test_a_control_added_during_a_refresh_stays_in_force() -> None:
    class Slow(FakeStore):
        async def load_controls(self) -> list[StoredControl]:
            found = await super().load_controls()
            await adding.wait()
            return found

    adding, store, at = asyncio.Event(), Slow(), lambda: NOON
    controls = Controls(store, at)
    refreshing = asyncio.create_task(controls.refresh())
    await asyncio.sleep(0)
    await controls.add(control("hold"), ["a"], by="bob")
    adding.set()
    await refreshing
    assert [each.kind for each in controls.in_force("a", None, NOON)] == [ControlKind.HOLD]
    await controls.refresh()
    assert controls.in_force("a", None, NOON)


def test_a_control_of_another_daemon_is_known_after_a_refresh_and_kept_while_the_store_is_unavailable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Ordering("a")
        await world.controls.add(control("pause"), ["a"], by="bob")
        other = Controls(world.store, world.clock)
        await other.refresh()
        assert [each.by for each in other.in_force("a", None, world.clock())] == ["bob"]
        world.store.failure = "the disk is full"
        await other.refresh()
        await other.refresh()
        assert other.in_force("a", None, world.clock())
        with pytest.raises(StoreError):
            await other.add(None, ["a"], by="bob")
        assert other.in_force("a", None, world.clock())
        world.store.failure = ""
        await other.refresh()

    virtual_time.run(main())
    texts = [one.message for one in caplog.records if "manual controls" in one.message]
    assert texts == [
        "manual controls cannot be read: the known ones stay in force",
        "manual controls are read again",
    ]


async def test_sqlite_saves_controls_and_audit_together_and_deletes_expired_ones(tmp_path: Path) -> None:
    now = NOON
    async with open_state_store(tmp_path, decisions=5) as store:
        controls = Controls(store, lambda: now)
        first = await controls.add(control("hold"), ["a"], by="alice", reason="x", until=NOON + HOUR)
        await store.add_audit(AuditEntry(at=NOON + HOUR, by="eve", action="pause", scope="clusters a", accepted=False))
        assert await store.load_controls() == [first]
    async with open_state_store(tmp_path, decisions=5) as store:
        controls = Controls(store, lambda: now)
        await controls.load()
        assert controls.listing(NOON) == (first,)
        assert controls.listing(NOON + HOUR) == ()
        now = NOON + 2 * HOUR
        assert expired(first, now)
        second = await controls.add(control("pause"), ["a"], by="bob")
        assert second.id > first.id
        assert await store.load_controls() == [second]
        assert controls.listing(now) == (second,)
        await controls.add(None, ["*", "a"], by="bob")
        assert await store.load_controls() == []
        entries = await store.audit(10)
        assert [(each.action, each.by, each.accepted) for each in entries] == [
            ("resume", "bob", True),
            ("pause", "bob", True),
            ("pause", "eve", False),
            ("hold", "alice", True),
        ]
        assert entries[3] == AuditEntry(
            at=NOON,
            by="alice",
            action="hold",
            scope="clusters a",
            detail="the size is held at 4 until 2026-01-01 13:00:00 UTC",
            reason="x",
        )
        assert [each.by for each in await store.audit(1, NOON + HOUR)] == ["eve"]


async def test_the_last_entries_of_the_audit_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_AUDIT == 10_000
    monkeypatch.setattr("autoscaler.daemon.state_store.MAX_AUDIT", 3)
    async with open_state_store(tmp_path, decisions=5) as store:
        for number in range(5):
            await store.add_audit(AuditEntry(at=NOON, by=f"{number}", action="decide", scope="clusters a"))
        assert [each.by for each in await store.audit(10)] == ["4", "3", "2"]


async def test_a_state_file_without_controls_is_read_and_damage_is_reported(tmp_path: Path) -> None:
    async with open_state_store(tmp_path, decisions=5) as store:
        await in_writer(store, lambda connection: connection.executescript("DROP TABLE control; DROP TABLE audit"))
    async with open_state_store(tmp_path, decisions=5) as store:
        assert await store.load_controls() == []
        await Controls(store, lambda: NOON).add(control("hold"), ["a"], by="alice")
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("UPDATE control SET stored = CAST('{}' AS BLOB)")
        connection.execute("UPDATE audit SET entry = CAST('[]' AS BLOB)")
    connection.close()
    async with open_state_store(tmp_path, decisions=5) as store:
        with pytest.raises(StoreError, match="the manual controls cannot be read: control: Field required"):
            await store.load_controls()
        with pytest.raises(StoreError, match="the audit cannot be read: "):
            await store.audit(1)


async def test_the_in_memory_store_behaves_like_the_others() -> None:
    store = FakeStore()
    entry = AuditEntry(at=NOON, by="alice", action="decide", scope="clusters a")
    await store.add_audit(entry)
    assert await store.audit(1) == [entry]
    assert await store.audit(1, NOON - HOUR) == []
    store.failure = "away"
    with pytest.raises(StoreError):
        await store.audit(1)
    with pytest.raises(StoreError):
        await store.add_audit(entry)
