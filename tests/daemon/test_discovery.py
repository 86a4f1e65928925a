"""Fleets in virtual time: members come and go, discoveries fail, and unrelated clusters continue."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from autoscaler.config.model import MemberCluster
from autoscaler.core.foreign import Mask
from autoscaler.core.model import Limits, NamedPolicy
from autoscaler.daemon import discovery
from autoscaler.daemon.controller import splay, trouble
from autoscaler.ports import ConfigurationError, Member, UnavailableError
from autoscaler.testing import virtual_time
from autoscaler.testing.fakes import Fake, FakeDiscovery, FakeEngine

from .conftest import Fleets, Remembers, Template


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    virtual_time.run(main())


def said(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, object]]:
    """The fields of the log lines with this message."""
    return [vars(record) for record in caplog.records if record.message == message]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autoscaler")


def test_members_join_and_leave_without_a_reload_and_without_disturbing_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Fleets("static")
        world.find("abc")
        await world.start()
        await world.until(100)
        before = dict(world.controllers)
        assert set(before) == {"static", "a", "b", "c"}
        assert world.status.clusters == {"id-a": "a", "id-b": "b", "id-c": "c"}
        assert world.discoveries.members["a"] == ("f", "id-a")
        world.find("abd")
        await world.until(200)
        assert set(world.controllers) == {"static", "a", "b", "d"}
        assert all(world.controllers[name] is before[name] for name in ("static", "a", "b"))
        assert world.plugins["c"].closed
        assert len(world.plugins["a"].opened) == len(world.source_plugin.opened) == 1
        await world.stop()
        for name in ("static", "a", "b"):
            assert len(world.ticks(name)) == 20
        assert len(world.discover.opened) == len(world.discover.closed) == 1
        assert world.discovery.asked in (20, 21)

    run(main)
    assert [(line["member"], line["cluster"]) for line in said(caplog, "member joined")] == [
        ("id-a", "a"),
        ("id-b", "b"),
        ("id-c", "c"),
        ("id-d", "d"),
    ]
    assert [line["member"] for line in said(caplog, "member left")] == ["id-c"]


def test_learned_values_survive_the_return_of_a_member() -> None:
    async def main() -> None:
        world = Fleets()
        world.of_members = {"policies": (NamedPolicy("remembers", Remembers()),)}
        world.find("abc")
        await world.start()
        await world.until(100)
        state = world.controllers["c"].state
        assert state is not None
        learned = state.learned.memory["remembers"]
        world.find("ab")
        await world.until(200)
        assert "c" not in world.controllers
        world.find("abc")
        await world.until(300)
        again = world.controllers["c"].state
        assert again is not None
        assert again.learned.memory["remembers"]["first_at"] == learned["first_at"]
        assert again.learned.memory["remembers"]["seen"] == learned["seen"] + 10
        await world.stop()

    run(main)


def test_learned_values_are_forgotten_long_after_a_cluster_has_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = 240.0  # instead of 86,400 seconds: a month of polls takes long in virtual time too
    monkeypatch.setattr(discovery, "SWEEP", day)
    monkeypatch.setattr(discovery, "KEPT", timedelta(seconds=30 * day))

    async def main() -> None:
        world = Fleets("static", interval=timedelta(seconds=60))
        world.of_members = {"interval": timedelta(seconds=60)}
        world.find("abc")
        await world.start()
        await world.until(2 * day)
        world.find("ab")
        await world.until(32 * day)
        assert set(world.store.states) == {"static", "a", "b", "c"}
        await world.until(34 * day)
        assert set(world.store.states) == {"static", "a", "b"}
        # After a long time without a daemon, no member counts as gone before the discovery has answered.
        await world.stop()
        world.store.members.clear()
        world.discovery.failure = UnavailableError("away")
        await world.until(90 * day)
        world.restart()
        await world.start()
        await world.until(95 * day)
        assert {"a", "b"} <= set(world.store.states)
        world.find("a")
        world.discovery.failure, world.store.failure = None, "the disk is full"
        await world.until(97 * day)
        world.store.failure = ""
        await world.until(98 * day)
        assert set(world.store.states) == {"static", "a"}
        await world.stop()

    run(main)
    assert {line["error"] for line in said(caplog, "cannot delete the stored state of removed clusters")} == {
        "the disk is full"
    }


@pytest.mark.parametrize(
    ("maximum", "problem"),
    [
        ("lots", "config.yaml:7: fleets.f[id-b].template.max: 'lots' is no number"),
        ("defect", "config.yaml:7: fleets.f[id-b].name: RuntimeError: the plug-in cannot stand this"),
    ],
)
def test_one_invalid_member_fails_alone_with_the_path_of_the_error(
    maximum: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world = Fleets("static")
        world.find("abc")
        world.discovery.found = [
            replace(member, values={**member.values, "max": maximum}) if member.id == "id-b" else member
            for member in world.discovery.found
        ]
        await world.start()
        await world.until(100)
        assert set(world.controllers) == {"static", "a", "c"}
        assert world.status.members == 3
        assert world.status.problems == {"id-b": (problem,)}
        assert all(trouble(controller) is None for controller in world.controllers.values())
        assert [(line["member"], line["problem"]) for line in said(caplog, "member refused")] == [("id-b", problem)]
        world.find("abc")
        await world.until(200)
        assert "b" in world.controllers
        assert world.status.problems == {}
        assert [line["member"] for line in said(caplog, "member accepted")] == ["id-b"]
        await world.stop()

    run(main)


def test_a_member_whose_values_become_invalid_continues_unchanged_and_reports_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Fleets()
        world.find("a", max="8")
        await world.start()
        await world.until(100)
        before = world.controllers["a"]
        world.find("a", max="lots")
        await world.until(200)
        assert world.controllers["a"] is before
        problem = "config.yaml:7: fleets.f[id-a].template.max: 'lots' is no number"
        assert trouble(before) == problem
        assert world.status.clusters == {"id-a": "a"}
        assert world.status.problems == {"id-a": (problem,)}
        lines = said(caplog, "change of a member refused: its cluster keeps the previous configuration")
        assert [(line["member"], line["problem"]) for line in lines] == [("id-a", problem)]
        # The persisted member is the one that it continues with.
        await world.stop()
        world.restart()
        await world.start()
        await world.until(210)
        assert world.controllers["a"].cluster.spec.limits == Limits(1, 8)
        await world.until(300)
        assert world.status.problems == {"id-a": (problem,)}
        world.find("a", max="9")
        await world.until(400)
        assert world.controllers["a"].cluster.spec.limits == Limits(1, 9)
        assert trouble(world.controllers["a"]) is None
        await world.stop()

    run(main)


def test_a_failing_discovery_removes_no_member_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = Fleets()
        world.find("abcd")
        await world.start()
        await world.until(100)
        before = dict(world.controllers)
        world.discovery.failure = UnavailableError("403: no permission to list deployments")
        await world.until(2000)
        assert world.controllers == before
        assert world.status.failure == "403: no permission to list deployments"
        assert world.status.failures >= 180
        assert world.status.answered_at is not None
        lines = said(caplog, "discovery failed: the known members are kept")
        assert [line["error"] for line in lines] == ["403: no permission to list deployments"]
        world.discovery.failure = None
        await world.until(2020)
        assert world.status.failure is None
        assert world.controllers == before
        assert len(said(caplog, "discovery answers again")) == 1
        await world.stop()

    run(main)


def test_a_loss_of_half_the_members_removes_none_until_it_has_lasted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Fleets()
        world.find("abcd")
        await world.start()
        await world.until(95)
        world.find("ab")
        await world.until(300)
        assert set(world.controllers) == set("abcd")
        assert set(world.status.held) == {"id-c", "id-d"}
        # A failed poll in between neither counts as missing nor restarts the confirm time.
        world.discovery.failure = UnavailableError("away")
        await world.until(350)
        world.discovery.failure = None
        # c returns once.
        world.find("abc")
        await world.until(361)
        world.find("ab")
        await world.until(395)
        assert set(world.controllers) == set("abcd")
        await world.until(411)
        assert set(world.controllers) == set("abc")
        await world.until(675)
        # With three members left, one is fewer than half; but c was already held.
        assert set(world.controllers) == set("ab")
        await world.stop()

    run(main)
    assert [(line["members"], line["missing"], line["confirm"]) for line in said(caplog, _HELD)] == [(4, 2, "5m")]


_HELD = "many members are missing: kept until each has been missing for the fleet's confirm time"


def test_a_restart_while_the_discovery_is_down_continues_with_the_last_members(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Fleets("static")
        world.find("abc")
        await world.start()
        await world.until(100)
        await world.stop()
        world.restart()
        world.discovery.failure = UnavailableError("away")
        caplog.clear()
        await world.start()
        await world.until(200)
        assert set(world.controllers) == {"static", "a", "b", "c"}
        assert world.status.answered_at is None
        assert [line["members"] for line in said(caplog, "members restored")] == [3]
        assert not said(caplog, "member joined")
        world.discovery.failure = None
        world.find("abd")
        await world.until(300)
        assert set(world.controllers) == {"static", "a", "b", "d"}
        await world.stop()

    run(main)


def test_a_member_removed_during_a_scale_call_delays_no_other() -> None:
    async def main() -> None:
        world = Fleets()
        world.find("abc")
        await world.start()
        await world.until(100)
        world.targets["c"].scale_delay = 25.0
        world.source.values["load"] = 300.0
        await world.until(100 + splay("c", 10.0) + 0.5)
        assert world.targets["c"].scaling == 1
        world.find("abd")
        await world.until(100 + splay("c", 10.0) + 11)
        assert world.targets["c"].scaling == 1
        assert "d" in world.controllers
        world.find("abde")
        await world.until(100 + splay("c", 10.0) + 22)
        assert world.targets["c"].scaling == 1
        assert "e" in world.controllers
        await world.until(100 + splay("c", 10.0) + 26)
        assert set(world.controllers) == set("abde")
        assert world.targets["c"].requests == [3]
        await world.until(200)
        await world.stop()
        assert world.ticks("a") == pytest.approx([splay("a", 10.0) + 10 * number for number in range(20)])

    run(main)


def test_of_two_members_with_one_name_the_first_keeps_it_and_the_other_gets_it_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Fleets("static")
        first = [Member("z", {"name": "same"}), Member("y", {"name": "y"}), Member("x", {"name": "x"})]
        world.discovery.found = first
        await world.start()
        await world.until(100)
        before = world.controllers["same"]
        world.discovery.found = [Member("a", {"name": "same"}), Member("b", {"name": "static"}), *first]
        await world.until(200)
        assert world.controllers["same"] is before
        assert world.discoveries.members["same"] == ("f", "z")
        assert {key: len(found) for key, found in world.status.problems.items()} == {"a": 1, "b": 1}
        assert "'z'" in world.status.problems["a"][0]
        assert "'static'" in world.status.problems["b"][0]
        assert [line["member"] for line in said(caplog, "member refused")] == ["a", "b"]
        world.discovery.found = [member for member in world.discovery.found if member.id != "z"]
        await world.until(300)
        assert world.discoveries.members["same"] == ("f", "a")
        assert set(world.status.problems) == {"b"}
        await world.stop()

    run(main)


def test_a_new_member_immediately_takes_the_name_or_target_of_a_missing_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Fleets()
        world.discovery.found = [Member("job-1", {"name": "orders"}), Member("job-2", {"name": "a", "target": "pool"})]
        await world.start()
        await world.until(100)
        before = world.controllers["orders"]
        # Each is half of the members, so both are held. Both were deployed again, the second one under another name.
        world.discovery.found = [Member("job-3", {"name": "orders"}), Member("job-4", {"name": "b", "target": "pool"})]
        await world.until(111)
        assert world.status.problems == {}
        assert world.status.held == {}
        assert world.status.clusters == {"job-3": "orders", "job-4": "b"}
        assert set(world.controllers) == {"orders", "b"}
        assert world.controllers["orders"] is before, "nothing of the cluster has changed"
        await world.until(200)
        assert 100 < world.ticks("b")[0] <= 111
        assert set(world.store.members["f"]) == {"job-3", "job-4"}
        await world.stop()

    run(main)
    assert [line["member"] for line in said(caplog, "member left")] == ["job-1", "job-2"]
    assert said(caplog, "member refused") == []


def test_a_refused_duplicate_takes_over_when_the_first_member_is_missing() -> None:
    async def main() -> None:
        world = Fleets()
        old, new = Member("job-1", {"name": "orders"}), Member("job-2", {"name": "orders"})
        world.discovery.found = [old, new]
        await world.start()
        await world.until(100)
        assert set(world.status.problems) == {"job-2"}
        world.discovery.found = [new]
        await world.until(111)
        assert world.status.clusters == {"job-2": "orders"}
        assert (world.status.problems, world.status.held) == ({}, {})
        await world.stop()

    run(main)


def test_a_member_that_moves_to_another_fleet_is_controlled_there_at_once() -> None:
    async def main() -> None:
        world = Fleets()
        other = FakeDiscovery()
        world.specs["g"] = world.spec("g", Fake(other))
        world.find("ab")
        await world.start()
        await world.until(100)
        world.find("a")
        other.found = [Member("id-b", {"name": "b"})]
        await world.until(125)
        assert world.discoveries.members == {"a": ("f", "id-a"), "b": ("g", "id-b")}
        f, g = world.discoveries.status
        assert (f.members, f.held, f.problems) == (1, {}, {})
        assert (g.members, g.clusters, g.problems) == (1, {"id-b": "b"}, {})
        await world.until(300)
        assert len(world.ticks("b")) == 30
        await world.stop()

    run(main)


def test_of_members_with_equal_targets_only_one_controls_it() -> None:
    async def main() -> None:
        world = Fleets()
        world.discovery.found = [Member(key, {"name": key, "target": "shared"}) for key in "ab"]
        await world.start()
        await world.until(100)
        assert set(world.controllers) == {"a"}
        assert set(world.status.problems) == {"b"}
        await world.stop()

    run(main)


def test_a_reload_of_a_template_changes_only_the_affected_clusters(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = Fleets("static")
        world.find("ab")
        await world.start()
        await world.until(95)
        before = dict(world.controllers)
        # Another template that makes the same clusters of its members.
        world.specs["f"] = world.spec("f", world.discover)
        assert await world.discoveries.apply(world.config) == (set(), set(), set())
        assert world.controllers == before
        world.specs["f"] = world.spec("f", world.discover, minimum=2)
        assert await world.discoveries.apply(world.config) == (set(), set(), {"a", "b"})
        await world.until(200)
        assert world.controllers["static"] is before["static"]
        assert world.controllers["a"].cluster.spec.limits == Limits(2, 10)
        assert world.controllers["a"].counters is before["a"].counters
        assert world.targets["a"].requests == [2]
        assert len(world.discover.opened) == 1
        await world.stop()

    run(main)
    assert len(said(caplog, "member joined")) == 2
    assert not said(caplog, "member left")


def test_a_reload_polls_the_discovery_at_once_and_keeps_the_members_of_a_replaced_one() -> None:
    async def main() -> None:
        world = Fleets()
        world.specs["f"] = replace(world.specs["f"], interval=timedelta(hours=1))
        world.find("abc")
        await world.start()
        await world.until(100)
        before = dict(world.controllers)
        other = FakeDiscovery([*world.discovery.found, Member("id-d", {"name": "d"})])
        world.specs["f"] = replace(world.specs["f"], discover=Fake(other))
        await world.discoveries.apply(world.config)
        await world.until(101)
        assert {name: world.controllers[name] for name in "abc"} == before
        assert "d" in world.controllers
        assert other.asked == 1
        assert world.discover.closed == [pytest.approx(100)]
        await world.stop()

    run(main)


def test_a_reload_adds_and_removes_fleets_with_their_members() -> None:
    async def main() -> None:
        world = Fleets("static")
        world.find("a")
        await world.start()
        await world.until(100)
        second = FakeDiscovery([Member("id-b", {"name": "b"})])
        world.specs = {"g": world.spec("g", Fake(second))}
        await world.discoveries.apply(world.config)
        assert "a" not in world.controllers
        await world.until(200)
        assert set(world.controllers) == {"static", "b"}
        assert set(world.store.members) == {"g"}
        assert world.discover.closed == [pytest.approx(100)]
        await world.stop()

    run(main)


def test_a_member_that_does_not_fit_the_changed_template_continues_unless_its_source_is_gone() -> None:
    async def main() -> None:
        world = Fleets("static")
        world.sources["other"] = Fake(world.source)
        world.specs["f"] = world.spec("f", world.discover, source="other")
        own = Fake(world.source)
        world.specs["g"] = world.spec("g", Fake(FakeDiscovery([Member("h", {"name": "h"})])), own=own)
        world.find("ab")
        await world.start()
        await world.until(100)

        class Strict(Template):
            def expand(self, member: Member) -> MemberCluster:
                if member.id in ("id-a", "h"):
                    raise ConfigurationError([self.problem(member.id, "does not fit")])
                return super().expand(member)

        world.specs["f"] = replace(world.specs["f"], template=Strict(world, "f"))
        world.specs["g"] = replace(world.specs["g"], template=Strict(world, "g"))
        await world.discoveries.apply(world.config)
        assert set(world.controllers) == {"static", "a", "b", "h"}
        assert trouble(world.controllers["a"]) is not None
        del world.sources["other"]
        await world.discoveries.apply(world.config)
        assert set(world.controllers) == {"static", "b", "h"}
        await world.until(200)
        await world.stop()

    run(main)


def test_a_discovery_that_hangs_times_out_and_delays_nothing_else() -> None:
    async def main() -> None:
        world = Fleets("static")
        world.find("a")
        hanging = FakeDiscovery(delay=1e9)
        world.specs["g"] = world.spec("g", Fake(hanging))
        await world.start()
        await world.until(300)
        f, g = world.discoveries.status
        assert f.failure is None
        assert g.failure == "no answer within 30 s"
        assert 5 <= hanging.asked <= 10
        assert set(world.controllers) == {"static", "a"}
        assert len(world.ticks("static")) == 30
        at = asyncio.get_running_loop().time()
        await world.stop()
        assert asyncio.get_running_loop().time() == at

    run(main)


def test_a_discovery_that_cannot_be_cancelled_is_not_called_again_before_it_has_ended() -> None:
    async def main() -> None:
        world = Fleets()
        asked = 0

        async def members() -> Sequence[Member]:
            nonlocal asked
            asked += 1
            for _ in range(10):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(100)
            raise UnavailableError("too late")

        world.discovery.members = members  # type: ignore[method-assign]
        await world.start()
        await world.until(100)
        assert asked == 1
        assert world.status.failure == "the previous request still hangs"
        await world.until(1200)
        assert asked == 2
        at = asyncio.get_running_loop().time()
        await world.stop()
        assert asyncio.get_running_loop().time() <= at + 1
        await asyncio.sleep(2000)

    run(main)


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (ZeroDivisionError("a defect"), "ZeroDivisionError: a defect"),
        (SystemExit("I want out"), "RuntimeError: the plug-in raised SystemExit: I want out"),
    ],
)
def test_a_defect_of_a_discovery_is_logged_once_with_its_traceback(
    failure: BaseException, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world = Fleets("static")
        world.discovery.failure = failure
        await world.start()
        await world.until(100)
        assert world.status.failure == text
        world.discovery.failure = None
        world.find("a")
        await world.until(200)
        assert set(world.controllers) == {"static", "a"}
        await world.stop()

    run(main)
    (line,) = said(caplog, "fleet cannot be updated")
    assert line["exc_info"]


def test_a_discovery_that_cancels_itself_counts_as_failed() -> None:
    async def main() -> None:
        world = Fleets()
        world.discovery.failure = asyncio.CancelledError()
        await world.start()
        await world.until(100)
        assert world.status.failure == "the plug-in cancelled itself"
        await world.stop()

    run(main)


@pytest.mark.parametrize("found", [["prod/a"], [Member(7, {})]])  # type: ignore[arg-type]  # such are refused
def test_an_answer_with_an_invalid_member_is_refused_as_a_whole(found: list[Any]) -> None:
    async def main() -> None:
        world = Fleets()
        world.find("a")
        await world.start()
        await world.until(100)
        world.discovery.found = found
        await world.until(200)
        assert "which is not a Member" in str(world.status.failure)
        assert set(world.controllers) == {"a"}
        await world.stop()

    run(main)


def test_a_failure_to_persist_members_is_logged_once_and_made_up_for(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = Fleets()
        world.store.failure = "the disk is full"
        world.find("a")
        await world.start()
        await world.until(100)
        assert set(world.controllers) == {"a"}
        assert world.store.members == {}
        world.store.failure = ""
        await world.until(200)
        assert set(world.store.members["f"]) == {"id-a"}
        await world.stop()

    run(main)
    assert len(said(caplog, "cannot restore members")) == 1
    assert len(said(caplog, "cannot persist members")) == 1


def test_secrets_of_members_are_masked_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = Mask()
    monkeypatch.setattr(discovery, "mask", mask)

    async def main() -> None:
        world = Fleets()
        world.find("a", token="hunter2")
        await world.start()
        await world.until(100)
        assert mask("it is hunter2") == "it is ***"
        await world.stop()

    run(main)


class Unhashable(Fake[FakeEngine]):
    def __hash__(self) -> int:
        raise RuntimeError("no hash")


def test_a_failed_change_is_retried_at_every_answer_and_shown() -> None:
    async def main() -> None:
        world = Fleets("static")
        world.of_members = {"engine": Unhashable(FakeEngine())}
        world.find("abc")
        await world.start()
        await world.until(100)
        assert set(world.controllers) == {"static"}
        assert world.status.failure == "RuntimeError: no hash"
        assert world.status.failures == 10
        world.of_members = {}
        world.specs = {"f": world.spec("f", world.discover)}
        await world.start()
        await world.until(200)
        assert set(world.controllers) == {"static", "a", "b", "c"}
        assert world.status.failure is None
        assert len(world.ticks("static")) == 20
        await world.stop()

    run(main)


def test_a_fleet_without_members_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = Fleets()
        await world.start()
        await world.until(100)
        assert world.status.failure is None
        assert not world.controllers
        await world.stop()

    run(main)
    assert len(said(caplog, "no member was found")) == 1


def test_many_joining_leaving_or_refused_members_are_logged_in_one_line_with_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Fleets()
        names = [f"m{number:03}" for number in range(100)]
        good = [Member(name, {"name": name}) for name in names]
        world.discovery.found = [*good, *(Member(f"x{name}", {"name": name, "max": "lots"}) for name in names[:12])]
        await world.start()
        await world.until(100)
        world.discovery.found = good[:75]
        await world.until(200)
        await world.stop()

    run(main)
    for message, more in (("member joined", 90), ("member refused", 2), ("member left", 27)):
        lines = said(caplog, message)
        assert len(lines) == 11
        assert lines[-1]["more"] == more


async def test_ten_thousand_members_at_once_make_no_tick_of_others_late() -> None:
    """Measured in processor time of the loop, because the work between two ticks must be short."""
    world = Fleets("static", interval=timedelta(seconds=1), timeout=timedelta(milliseconds=500))
    longest, at = 0.0, time.thread_time()

    async def watch() -> None:
        nonlocal longest, at
        while True:
            await asyncio.sleep(0.001)
            longest, at = max(longest, time.thread_time() - at), time.thread_time()

    world.of_members = {"interval": timedelta(hours=1)}
    await world.start()
    gc.disable()  # like the daemon, which runs its own collections
    watching = asyncio.create_task(watch())
    world.specs["f"] = replace(world.specs["f"], interval=timedelta(milliseconds=100))
    world.discovery.found = [Member(f"m{number}", {"name": f"m{number}"}) for number in range(10_000)]
    at = time.thread_time()
    await world.discoveries.apply(world.config)
    while len(world.discoveries.members) < 10_000 or not world.tick_times.late:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.1)
    gc.enable()
    watching.cancel()
    assert longest < 1.0
    assert max(world.tick_times.late) < 1.0
    await world.discoveries.stop()
    await world.fleet.cancel()


def test_a_probable_mistake_in_members_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = Fleets()
        world.discovery.found = [Member(name, {"name": name, "warn": "config.yaml:9: odd"}) for name in "ab"]
        await world.start()
        await world.until(100)
        world.discovery.found = [*world.discovery.found, Member("c", {"name": "c"})]
        await world.until(200)
        await world.stop()

    run(main)
    (line,) = said(caplog, "probable mistake in a member")
    assert line["warning"] == "config.yaml:9: odd"


def test_a_defect_while_members_are_restored_does_not_end_the_fleet(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = Fleets()
        world.find("a")
        load, world.store.load_members = world.store.load_members, broken  # type: ignore[method-assign]
        await world.start()
        await world.until(100)
        world.store.load_members = load  # type: ignore[method-assign]
        assert set(world.controllers) == {"a"}
        await world.stop()

    async def broken(fleet: str) -> dict[str, Member]:
        raise ZeroDivisionError(fleet)

    run(main)
    assert len(said(caplog, "fleet cannot be updated")) == 1
