"""The status of members is reported to their discovery: on changes, a few at a time, without delaying a tick."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from autoscaler.daemon import reports
from autoscaler.daemon.discovery import Discoveries
from autoscaler.daemon.leases import Ownership
from autoscaler.ports import Member, MemberStatus, RefusedError, UnavailableError
from autoscaler.testing import virtual_time
from autoscaler.testing.fakes import Fake, FakeDiscovery

from .conftest import Fleets
from .test_discovery import said


@dataclass
class Board(FakeDiscovery):
    """A discovery that shows the status of its members.

    Attributes:
        shown, times: the reports, in order, and their times.
        refuse: ids of members -> the error that a report raises.
        slow: seconds that a report takes.
        under_way, most: concurrent reports: now, and the maximum.
    """

    shown: list[tuple[str, MemberStatus]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    refuse: dict[str, BaseException] = field(default_factory=dict)
    slow: float = 0.0
    under_way: int = 0
    most: int = 0

    async def report(self, member: str, status: MemberStatus) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(self.slow)
            self.shown.append((member, status))
            self.times.append(asyncio.get_running_loop().time())
            if member in self.refuse:
                raise self.refuse[member]
        finally:
            self.under_way -= 1

    def of(self, member: str) -> list[MemberStatus]:
        return [status for shown, status in self.shown if shown == member]


class Boards(Fleets):
    """A world with one fleet whose discovery can show the status of its members."""

    def __init__(self, *names: str, **changes: Any) -> None:
        super().__init__(*names, **changes)
        self.board = Board()
        self.discovery = self.board
        self.specs = {"f": self.spec("f", Fake(self.board))}
        self.discoveries = Discoveries(self.fleet, self.store, utc=self.clock)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    virtual_time.run(main())


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autoscaler")


def test_the_clusters_whose_discovery_shows_their_status_are_known() -> None:
    async def main() -> None:
        shown, plain = Boards("static"), Fleets("static")
        for world in (shown, plain):
            world.find("a")
            await world.start()
        assert not shown.discoveries.shows("a")  # not found yet
        await shown.until(100)
        assert [world.discoveries.shows("a") for world in (shown, plain)] == [True, False]
        assert not shown.discoveries.shows("static")
        for world in (shown, plain):
            await world.stop()

    run(main)


def test_a_member_gets_its_size_and_rescales_and_nothing_without_a_change() -> None:
    async def main() -> None:
        world = Boards("static")
        world.find("a")
        await world.start()
        await world.until(190)
        [first] = world.board.of("id-a")
        assert (first.size, first.problem, first.refused) == (1, None, False)
        world.source.values["load"] = 400.0
        await world.until(400)
        later = world.board.of("id-a")[1:]
        assert [status.size for status in later][-1] == 4
        assert later[0].rescaled_at is not None
        assert later[0].rescaled_at == later[-1].rescaled_at
        assert "from 1 to 4" in later[0].message
        shown = len(world.board.shown)
        await world.until(1000)
        assert len(world.board.shown) == shown
        assert {member for member, _ in world.board.shown} == {"id-a"}
        await world.stop()

    run(main)


def test_a_refused_member_gets_the_path_of_the_error_and_the_news_of_its_end() -> None:
    async def main() -> None:
        world = Boards()
        world.find("a", max="lots")
        await world.start()
        await world.until(60)
        [status] = world.board.of("id-a")
        assert status.problem == "config.yaml:7: fleets.f[id-a].template.max: 'lots' is no number"
        assert (status.refused, status.size) == (True, None)
        world.find("a")
        await world.until(120)
        good = world.board.of("id-a")[-1]
        assert (good.problem, good.refused) == (None, False)
        world.find("a", max="many")
        await world.until(180)
        kept = world.board.of("id-a")[-1]
        assert (kept.refused, kept.size) == (True, good.size)  # it keeps its previous configuration
        await world.stop()

    run(main)


def test_ticks_do_not_wait_for_a_hanging_discovery_and_few_reports_run_at_once() -> None:
    async def main() -> None:
        world = Boards("static")
        world.board.slow = 3600.0
        world.find("abcdefghijklmnopqrst")
        await world.start()
        await world.until(300)
        assert world.board.most == reports.AT_ONCE
        assert len(world.ticks("static")) == len(world.ticks("a")) == 30
        await world.stop()

    run(main)


def test_of_many_simultaneous_changes_a_limited_number_is_reported_each_second() -> None:
    async def main() -> None:
        world = Boards()
        world.discovery.found = [Member(f"id-{number}", {"name": f"m{number}", "max": "lots"}) for number in range(500)]
        await world.start()
        await world.until(60)
        times = world.board.times
        assert len(times) == 500
        for begun in times:
            assert sum(begun <= at < begun + 1 for at in times) <= reports.RATE + reports.AT_ONCE
        assert times[-1] - times[0] == pytest.approx(500 / reports.RATE, rel=0.1)
        await world.stop()

    run(main)


def test_a_failed_report_is_retried_with_growing_pauses_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Boards()
        world.find("abc")
        world.board.refuse = dict.fromkeys(("id-a", "id-b", "id-c"), UnavailableError("no route"))
        await world.start()
        await world.until(1000)
        assert 10 <= len(world.board.of("id-a")) <= 25
        world.board.refuse = {}
        await world.until(1100)
        shown = len(world.board.of("id-a"))
        await world.until(1500)
        assert len(world.board.of("id-a")) == shown
        await world.stop()

    run(main)
    [line] = said(caplog, "the status of a member cannot be shown")
    assert line["error"] == "no route"
    assert len(said(caplog, "the status of members is shown again")) == 1


def test_a_discovery_that_cancels_itself_gets_the_report_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = Boards()
        world.find("ab")
        world.board.refuse = {"id-a": asyncio.CancelledError()}
        await world.start()
        await world.until(100)
        shown = len(world.board.of("id-a"))
        world.board.refuse = {}
        await world.until(300)
        assert len(world.board.of("id-a")) > shown > 1
        await world.stop()

    run(main)
    [line] = said(caplog, "the status of a member cannot be shown")
    assert line["error"] == "the plug-in cancelled itself"
    assert len(said(caplog, "the status of members is shown again")) == 1


def test_a_refused_report_of_one_member_does_not_prevent_others() -> None:
    async def main() -> None:
        world = Boards()
        world.find("abcdefghijklmnop")
        world.board.refuse = {"id-a": RefusedError("too large"), "id-b": SystemExit()}
        await world.start()
        await world.until(100)
        assert all(world.board.of(f"id-{name}") for name in "abcdefghijklmnop")
        await world.stop()

    run(main)


def test_a_changed_member_is_reported_again_and_one_that_has_left_is_not() -> None:
    async def main() -> None:
        world = Boards()
        world.find("ab")
        await world.start()
        await world.until(100)
        world.find("ab", team="another")
        await world.until(200)
        assert len(world.board.of("id-a")) == 2
        world.find("a", team="another")
        shown = len(world.board.of("id-b"))
        await world.until(1000)
        assert len(world.board.of("id-b")) == shown
        await world.stop()

    run(main)


def test_a_discovery_without_status_or_without_a_connection_is_not_a_problem(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = Boards()
        world.specs["g"] = world.spec("g", Fake(FakeDiscovery()))
        world.specs["h"] = world.spec("h", Fake(Board(), [UnavailableError("not yet")] * 3))
        await world.start()
        await world.until(300)
        await world.stop()

    run(main)
    assert said(caplog, "the status of members cannot be shown") == []


class Some(Ownership):
    """An ownership of given clusters, and of given members without a cluster."""

    def __init__(self, *owned: str, share: bool = False) -> None:
        self.names = set(owned)
        self.share = share

    def owns(self, cluster: str) -> bool:
        return cluster in self.names

    def shares(self, name: str) -> bool:
        del name
        return self.share


def test_only_the_owner_reports_a_member() -> None:
    async def main() -> None:
        world = Boards()
        ownership = Some("a")
        world.fleet.ownership = ownership
        world.find("ab")
        world.board.found = [*world.board.found, Member("id-bad", {"name": "bad", "max": "none"})]
        await world.start()
        await world.until(60)
        assert set(world.controllers) == {"a"}
        assert {member for member, _ in world.board.shown} == {"id-a"}
        world.board.shown.clear()
        ownership.names, ownership.share = {"b"}, True
        await world.fleet.follow()
        await world.until(120)
        assert set(world.controllers) == {"b"}
        assert {member for member, _ in world.board.shown} == {"id-b", "id-bad"}
        assert {status.refused for status in world.board.of("id-bad")} == {True}
        await world.stop()

    run(main)


def test_a_member_that_moves_to_this_copy_has_the_problem_of_its_template() -> None:
    async def main() -> None:
        world = Boards()
        ownership = Some()
        world.fleet.ownership = ownership
        world.find("a")
        await world.start()
        await world.until(15)
        world.find("a", max="none")
        await world.until(30)
        assert not world.controllers
        ownership.names = {"a"}
        await world.fleet.follow()
        problem = world.controllers["a"].template_problem
        assert problem is not None
        assert "'none' is no number" in problem
        await world.stop()

    run(main)
