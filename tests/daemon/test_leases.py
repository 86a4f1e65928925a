"""Which copy controls which cluster: the shares, and several copies in virtual time with one in-memory store."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model import Behaviour, Limits
from autoscaler.daemon import leases
from autoscaler.daemon.controller import EXPIRED, UNANSWERED
from autoscaler.daemon.fleet import Fleet
from autoscaler.daemon.leases import MARGIN, POLL, RENEWAL, Plan, SharedOwnership, pause, plan, share
from autoscaler.ports import LEASE, Copy, Leases, StoreError
from autoscaler.testing import virtual_time
from tests.daemon.conftest import Ticked, World, make_cluster
from tests.daemon.fake_stores import FakeLeases, FakeSharedStore

LOST = "leases lost: expired, or taken by another copy of the daemon"

IDS = {key: UUID(int=number) for number, key in enumerate("abc")}
A, B, C = (Copy(IDS[key], f"pod-{key}", f"http://{key}:8765") for key in "abc")
NAMES = [f"cluster-{number}" for number in range(300)]

copies_of = st.sets(st.uuids(), min_size=1, max_size=8)


def shares(names: list[str], copies: set[UUID]) -> dict[str, UUID]:
    return {name: share(name, copies) for name in names}


@given(copies=copies_of)
def test_every_cluster_belongs_to_exactly_one_copy_whatever_their_order(copies: set[UUID]) -> None:
    forward, backward = sorted(copies), sorted(copies, reverse=True)
    assert [share(name, forward) for name in NAMES] == [share(name, backward) for name in NAMES]
    assert set(shares(NAMES, copies).values()) <= copies


@given(copies=copies_of)
def test_shares_are_balanced(copies: set[UUID]) -> None:
    sizes = Counter(shares(NAMES, copies).values())
    mean = len(NAMES) / len(copies)
    assert all(abs(sizes[copy] - mean) <= 6 * mean**0.5 for copy in copies)


@given(copies=copies_of, data=st.data())
def test_when_a_copy_leaves_only_its_own_clusters_move(copies: set[UUID], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(copies)))
    before = shares(NAMES, copies)
    after = shares(NAMES, copies - {gone} or {UUID(int=0)})
    if len(copies) > 1:
        assert {name for name in NAMES if before[name] != after[name]} == {
            name for name in NAMES if before[name] == gone
        }


@given(copies=copies_of, new=st.uuids())
def test_when_a_copy_joins_clusters_move_only_to_it(copies: set[UUID], new: UUID) -> None:
    before, after = shares(NAMES, copies), shares(NAMES, copies | {new})
    assert {after[name] for name in NAMES if before[name] != after[name]} <= {new}


@pytest.mark.parametrize(
    ("mine", "owned", "take", "let_go"),
    [
        pytest.param("", "", "", "", id="nothing"),
        pytest.param("abc", "", "abc", "", id="a start"),
        pytest.param("abc", "abc", "", "", id="all as it should be"),
        pytest.param("ab", "abc", "", "c", id="another copy has come, or the cluster is gone"),
        pytest.param("abc", "bcd", "a", "d", id="both"),
        pytest.param("", "ab", "", "ab", id="the end"),
    ],
)
def test_which_leases_to_take_and_to_release(mine: str, owned: str, take: str, let_go: str) -> None:
    assert plan(mine, owned) == Plan(frozenset(take), frozenset(let_go))


@pytest.mark.parametrize(
    ("oldest", "busy", "seconds"),
    [
        pytest.param(0.0, False, 3.0, id="alone"),
        pytest.param(0.0, True, 1.0, id="there is something to do"),
        pytest.param(2.0, False, 3.0, id="all others have renewed"),
        pytest.param(13.0, False, 2.1, id="another one will expire before"),
        pytest.param(14.5, True, 0.6, id="very soon"),
        pytest.param(15.0, False, 0.1, id="now"),
    ],
)
def test_when_to_renew_next(oldest: float, busy: bool, seconds: float) -> None:
    assert pause(Leases({}, {}, oldest), busy=busy) == pytest.approx(seconds)


@dataclass
class Running:
    """One copy of the daemon."""

    store: FakeSharedStore
    leases: SharedOwnership
    fleet: Fleet

    async def start(self, world: World) -> None:
        await self.fleet.apply(world.config)
        self.leases.start(self.fleet, "")

    async def stop(self) -> None:
        await self.leases.stop()
        await self.fleet.stop()

    async def kill(self) -> None:
        """Act like a SIGKILL: release no lease."""
        assert self.leases._task is not None
        self.leases._task.cancel()
        await self.fleet.cancel()

    @property
    def clusters(self) -> set[str]:
        return set(self.fleet.controllers)


@dataclass
class Copies:
    """Several copies that control the clusters of one world."""

    world: World
    shared: FakeLeases = field(default_factory=FakeLeases)
    running: dict[str, Running] = field(default_factory=dict)

    async def start(self, *copies: Copy) -> None:
        for copy in copies:
            store = FakeSharedStore(copy, self.shared)
            leases = SharedOwnership(store, copy.name)
            fleet = Fleet(store, store, Ticked(), utc=self.world.clock, ownership=leases)
            key = copy.name[-1]
            self.running[key] = Running(store, leases, fleet)
            await self.running[key].start(self.world)

    def __getitem__(self, key: str) -> Running:
        return self.running[key]

    def ticks(self, name: str) -> list[float]:
        start = self.world.clock.start
        return [
            (record.decision.at - start).total_seconds()
            for record in self.shared.states.records
            if record.decision.cluster == name
        ]

    def longest_gap(self, after: float) -> float:
        """The longest time between two ticks of any cluster, from a time on."""
        gaps = []
        for name in self.world.clusters:
            ticks = [at for at in self.ticks(name) if at >= after - 10]
            gaps += [later - earlier for earlier, later in pairwise(ticks)]
        return max(gaps)

    def each_has_one_owner(self) -> bool:
        owners = [name for running in self.running.values() for name in running.clusters]
        return sorted(owners) == sorted(self.world.clusters)

    async def stop(self) -> None:
        await asyncio.gather(*(running.stop() for running in self.running.values()))


def run(*names: str, scenario: Callable[[Copies], object], **changes: Any) -> None:
    """Run a scenario in virtual time."""

    async def main() -> None:
        copies = Copies(World(*names, **changes))
        await scenario(copies)  # type: ignore[misc]
        await copies.stop()

    virtual_time.run(main())


FEW = [f"c{number}" for number in range(12)]


def test_one_copy_takes_all_clusters_at_once() -> None:
    async def scenario(copies: Copies) -> None:
        await copies.start(A)
        await copies.world.until(1)
        assert copies["a"].clusters == set(FEW)
        await copies.world.until(100)
        assert all(len(copies.ticks(name)) == 10 for name in FEW)

    run(*FEW, scenario=scenario)


def test_a_new_copy_gets_its_share_and_no_tick_is_lost() -> None:
    async def scenario(copies: Copies) -> None:
        await copies.start(A)
        await copies.world.until(100)
        await copies.start(B)
        await copies.world.until(110)
        assert copies.each_has_one_owner()
        assert copies["b"].clusters == {name for name in FEW if share(name, (A.id, B.id)) == B.id}
        assert [name for name in FEW if copies["a"].leases.valid(name)] == sorted(copies["a"].clusters, key=FEW.index)
        await copies.world.until(200)
        assert copies.longest_gap(after=0) <= 20

    run(*FEW, scenario=scenario)


def test_a_stopping_copy_hands_over_at_once() -> None:
    async def scenario(copies: Copies) -> None:
        await copies.start(A, B)
        await copies.world.until(100)
        begun = asyncio.get_running_loop().time()
        await copies["a"].stop()
        assert asyncio.get_running_loop().time() == begun
        assert copies.shared.live() == {B}
        await copies.world.until(104)
        assert copies["b"].clusters == set(FEW)
        await copies.world.until(200)
        assert copies.longest_gap(after=0) <= 20

    run(*FEW, scenario=scenario)


def test_a_taken_over_cluster_is_decided_soon_however_long_its_interval() -> None:
    async def scenario(copies: Copies) -> None:
        await copies.world.until(
            3605
        )  # clocks of machines differ, and with them the time until the next tick of the grid
        await copies.start(A)
        await copies.world.until(3625)
        first = {name: copies.ticks(name) for name in FEW}
        assert {len(ticks) for ticks in first.values()} == {1}
        assert max(first.values())[0] - min(first.values())[0] > 5  # they do not come all at once
        await copies.world.until(3600 * 4)
        for name in FEW:
            _, *grid = copies.ticks(name)
            assert [later - earlier for earlier, later in pairwise(grid)] == pytest.approx([3600.0] * (len(grid) - 1))

    run(*FEW, scenario=scenario, interval=timedelta(hours=1))


def test_the_clusters_of_a_killed_copy_are_taken_over_when_its_lease_expires() -> None:
    async def scenario(copies: Copies) -> None:
        await copies.start(A, B, C)
        await copies.world.until(100)
        lost = copies["a"].clusters
        assert lost
        await copies.running.pop("a").kill()
        renewed = copies.shared.seen[A]
        await copies.world.until(renewed + LEASE + 1)
        assert copies.each_has_one_owner()
        taken = [at for at, name, _ in copies.shared.taken if name in lost and at > 100]
        assert taken == [pytest.approx(renewed + LEASE, abs=0.2)] * len(lost)
        assert sum(running.leases.owned for running in copies.running.values()) == len(FEW)

    run(*FEW, scenario=scenario)


def test_a_new_owner_continues_with_windows_and_an_unanswered_call(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(copies: Copies) -> None:
        world = copies.world
        await copies.start(A)
        await world.until(100)
        before = copies["a"].fleet.controllers["c0"].state
        assert before is not None
        world.targets["c0"].scale_delay = 25
        world.source.values["load"] = 500.0
        await world.until(112)  # its scale call is in progress
        world.targets["c0"].scale_delay = 0
        await copies.running.pop("a").kill()
        await copies.start(B)
        await world.until(140)
        after = copies["b"].fleet.controllers["c0"].state
        assert after is not None
        assert after.watched_since == before.watched_since
        assert UNANSWERED in caplog.text

    caplog.set_level(logging.INFO)
    run("c0", scenario=scenario, down=Behaviour(window=timedelta(minutes=5)))


def test_a_copy_that_was_suspended_checks_first_and_drops_lost_leases(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(copies: Copies) -> None:
        world = copies.world
        await copies.start(A, B)
        await world.until(100)
        stopped = copies["a"]
        lost = stopped.clusters
        stopped.store.failure = "the cable is cut"
        await world.until(130)
        assert copies["b"].clusters == set(FEW)
        # The stopped copy continues until it notices the loss, but without effect.
        assert stopped.clusters == lost
        assert not any(stopped.leases.valid(name) for name in lost)
        world.source.values["load"] = 500.0
        await world.until(145)
        stopped.store.failure = ""
        await world.until(160)
        assert copies.each_has_one_owner()
        assert [target.requests for target in world.targets.values()] == [[5]] * len(FEW)

    caplog.set_level(logging.INFO)
    run(*FEW, scenario=scenario)
    assert [line.message for line in caplog.records].count(LOST) == 1


def test_nothing_is_scaled_if_the_lease_may_have_expired_after_the_save() -> None:
    async def scenario(copies: Copies) -> None:
        world = copies.world
        await copies.start(A)
        await world.until(100)
        copy = copies["a"]
        copy.leases._renewed_at = (
            asyncio.get_running_loop().time() - LEASE + 3.0
        )  # as if the process had been stopped since the last renewal
        copy.leases._task.cancel()  # type: ignore[union-attr]  # it does not renew until the tick
        world.source.values["load"] = 500.0
        await world.until(110)
        assert world.targets["c0"].requests == []
        refusal = copy.fleet.controllers["c0"].refusal
        assert refusal is not None
        assert refusal.error == EXPIRED
        copy.leases.start(copy.fleet, "")
        await world.until(130)
        assert world.targets["c0"].requests == [5]
        assert copy.fleet.controllers["c0"].refusal is None

    run("c0", scenario=scenario)


def test_during_a_store_outage_nothing_is_scaled_the_reason_is_shown_and_everything_resumes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(copies: Copies) -> None:
        world = copies.world
        await copies.start(A, B)
        await world.until(100)
        had = {key: copies[key].clusters for key in "ab"}
        for key in "ab":
            copies[key].store.failure = "the database is away"
        world.source.values["load"] = 500.0
        await world.until(700)
        assert all(target.requests == [] for target in world.targets.values())
        assert all(copies[key].leases.failure == "the database is away" for key in "ab")
        # The clusters are still shown, each with the reason.
        assert {key: copies[key].clusters for key in "ab"} == had
        controllers = [each for key in "ab" for each in copies[key].fleet.controllers.values()]
        assert {each.problem for each in controllers} == {"the database is away"}
        for key in "ab":
            copies[key].store.failure = ""
        await world.until(730)
        assert {key: copies[key].clusters for key in "ab"} == had
        assert all(target.requests == [5] for target in world.targets.values())
        assert {copies[key].leases.failure for key in "ab"} == {None}

    caplog.set_level(logging.INFO)
    run(*FEW, scenario=scenario)
    messages = Counter(line.message for line in caplog.records)
    assert messages["cannot renew leases: nothing is scaled"] == messages["leases are renewed again"] == 2
    # The first copy that is back leaves the shares of the other copies to them.
    assert messages[LOST] == 2
    assert messages["clusters handed over"] == 3  # at the start by the first copy, and at the end by both


def test_a_scale_call_ends_before_its_cluster_is_handed_over() -> None:
    async def scenario(copies: Copies) -> None:
        world = copies.world
        await copies.start(A)
        await world.until(100)
        world.source.values["load"] = 500.0
        for target in world.targets.values():
            target.scale_delay = 20
        await world.until(111)  # all clusters have a scale call in progress
        stopping = asyncio.create_task(copies.running.pop("a").stop())
        await copies.start(B)
        await world.until(115)
        assert copies["b"].clusters == set()
        await stopping
        await world.until(140)
        assert copies["b"].clusters == set(FEW)
        assert all(target.requests == [5] for target in world.targets.values())

    run(*FEW, scenario=scenario)


def test_no_lease_expires_while_a_copy_takes_over_many_clusters(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(FakeSharedStore):
        async def take(self, clusters: Collection[str]) -> dict[str, int]:
            await asyncio.sleep(2)
            return await super().take(clusters)

    async def scenario(copies: Copies) -> None:
        await copies.start(A)
        copies["a"].leases._store = Slow(A, copies.shared)
        copies["a"].store = copies["a"].fleet._store = copies["a"].leases._store
        await copies.world.until(50)
        assert copies["a"].clusters == set(FEW)
        assert {term for _, term in copies.shared.leases.values()} == {1}

    monkeypatch.setattr(leases, "_AT_ONCE", 1)
    caplog.set_level(logging.INFO)
    run(*FEW, scenario=scenario)
    assert LOST not in caplog.messages


def test_no_lease_expires_during_a_long_reload(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(copies: Copies) -> None:
        await copies.start(A)
        await copies.world.until(20)
        fleet = copies["a"].fleet
        async with fleet._lock:
            await copies.start(B)
            await copies.world.until(60)
            assert copies["a"].clusters == set(FEW)
        await copies.world.until(80)
        assert copies.each_has_one_owner()
        assert copies["b"].clusters
        async with fleet._lock:
            stopping = asyncio.create_task(copies.running.pop("a").stop())
            await copies.world.until(100)
            assert not stopping.done()
        await stopping
        await copies.world.until(110)
        assert copies["b"].clusters == set(FEW)

    caplog.set_level(logging.INFO)
    run(*FEW, scenario=scenario)
    assert LOST not in caplog.messages


def test_nothing_is_scaled_if_the_lease_may_have_expired_during_a_slow_renewal() -> None:
    class Slow(FakeSharedStore):
        async def renew(self, name: str, url: str) -> Leases:
            found = await super().renew(name, url)
            await asyncio.sleep(4)
            return found

    async def scenario(copies: Copies) -> None:
        await copies.start(A)
        await copies.world.until(20)
        owner, store = copies["a"].leases, copies["a"].store
        owner._store = slow = Slow(A, copies.shared)
        await copies.world.until(40)
        seen = copies.shared.seen[A]
        slow.failure = store.failure = "the database is away"
        await copies.world.until(seen + LEASE - MARGIN - 0.1)
        assert owner.valid("c0")
        await copies.world.until(seen + LEASE - MARGIN + 0.1)
        assert not owner.valid("c0")

    run("c0", scenario=scenario)


def test_a_lost_lease_is_taken_again_only_when_its_controller_has_ended() -> None:
    async def scenario(copies: Copies) -> None:
        world = copies.world
        await copies.start(A)
        await world.until(100)
        world.source.values["load"] = 500.0
        world.targets["c0"].scale_delay = 25
        await world.until(112)  # a scale call is in progress
        before = copies["a"].fleet.controllers["c0"]
        copies.shared.leases["c0"] = (None, 7)  # another copy held the lease, and has ended
        await world.until(120)
        assert copies.shared.leases["c0"] == (None, 7)
        world.targets["c0"].scale_delay = 0
        await world.until(150)
        assert copies.shared.leases.get("c0") == (A, 8)
        assert copies["a"].fleet.controllers["c0"] is not before

    run("c0", scenario=scenario)


def test_a_share_is_taken_within_a_second_of_its_release() -> None:
    async def scenario(copies: Copies) -> None:
        await copies.start(A)
        await copies.world.until(100)
        renewed = copies.shared.seen[A]
        await copies.world.until(renewed + RENEWAL - 1.5)
        await copies.start(B)
        await copies.world.until(renewed + RENEWAL + POLL)
        assert copies.each_has_one_owner()
        assert copies["b"].clusters

    run(*FEW, scenario=scenario)


def test_leases_taken_without_an_answer_are_known_from_the_next_renewal() -> None:
    class Cut(FakeSharedStore):
        async def take(self, clusters: Collection[str]) -> dict[str, int]:
            await super().take(clusters)
            raise StoreError("the connection was cut")

    async def scenario(copies: Copies) -> None:
        await copies.start(A)
        copies["a"].leases._store = Cut(A, copies.shared)
        copies["a"].fleet._store = copies["a"].leases._store
        await copies.world.until(20)
        assert copies["a"].clusters == set(FEW)
        assert copies["a"].leases.failure is None
        assert {term for _, term in copies.shared.leases.values()} == {1}

    run(*FEW, scenario=scenario)


def test_a_refused_save_triggers_a_check_at_once() -> None:
    async def scenario(copies: Copies) -> None:
        await copies.start(A)
        await copies.world.until(100)
        tick = copies.ticks("c0")[-1] + 10
        await copies.world.until(tick - 0.01)
        copies.shared.leases["c0"] = (None, 7)
        await copies.world.until(tick + 0.01)
        assert copies.shared.seen[A] == pytest.approx(tick, abs=0.001)
        assert copies.shared.leases["c0"] == (A, 8)

    run("c0", scenario=scenario)


def test_a_cluster_that_returns_before_its_controller_has_ended_continues() -> None:
    async def scenario(copies: Copies) -> None:
        world = copies.world
        await copies.start(A)
        await world.until(100)
        world.source.values["load"] = 500.0
        for target in world.targets.values():
            target.scale_delay = 25
        await world.until(111)  # all clusters have a scale call in progress
        await copies.start(B)
        await world.until(116)
        assert not all(copies["a"].leases.owns(name) for name in FEW)
        await copies.running.pop("b").stop()
        await world.until(160)
        assert copies["a"].clusters == set(FEW)
        assert min(copies.ticks(name)[-1] for name in FEW) > 145
        assert {term for _, term in copies.shared.leases.values()} == {1}

    run(*FEW, scenario=scenario)


def test_the_lease_of_a_removed_cluster_is_released() -> None:
    async def scenario(copies: Copies) -> None:
        world = copies.world
        await copies.start(A)
        await world.until(10)
        del world.clusters["c0"]
        await copies["a"].fleet.apply(world.config)
        await world.until(20)
        assert copies.shared.leases["c0"][0] is None
        world.clusters["c0"] = make_cluster("c0", world.plugins["c0"], limits=Limits(2, 10))
        await copies["a"].fleet.apply(world.config)
        await world.until(30)
        assert copies.shared.leases["c0"] == (A, 2)
        assert copies["a"].clusters == set(FEW)

    run(*FEW, scenario=scenario)


def test_clocks_that_differ_by_an_hour_do_not_matter() -> None:
    async def scenario(copies: Copies) -> None:
        await copies.start(A)
        copies["a"].fleet._utc = lambda: copies.world.clock() + timedelta(hours=1)
        await copies.world.until(50)
        await copies.start(B)
        await copies.world.until(100)
        assert copies.each_has_one_owner()
        assert copies["b"].clusters

    run(*FEW, scenario=scenario)


def test_a_defect_during_a_round_is_logged_once_and_loses_no_lease(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        raise RuntimeError("a plug-in that cannot be connected")

    async def scenario(copies: Copies) -> None:
        await copies.start(A)
        await copies.world.until(20)
        fleet, leases = copies["a"].fleet, dict(copies.shared.leases)
        whole = fleet.follow
        fleet.follow = broken  # type: ignore[method-assign]
        await copies.world.until(60)
        assert copies["a"].leases.failure == "RuntimeError: a plug-in that cannot be connected"
        assert copies.shared.leases == leases
        fleet.follow = whole  # type: ignore[method-assign]
        await copies.world.until(70)
        assert copies["a"].leases.failure is None

    caplog.set_level(logging.INFO)
    run(*FEW, scenario=scenario)
    messages = Counter(line.message for line in caplog.records)
    assert messages["leases cannot be balanced"] == messages["leases are renewed again"] == 1
    assert messages[LOST] == 0
