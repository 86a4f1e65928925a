"""Notifications come on transitions, independently for each receiver. All in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, ClassVar
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry

from autoscaler.config.model import Metric, NotificationSpec
from autoscaler.config.template import TextTemplate
from autoscaler.core.model import Control, ControlKind, Limits, NamedPolicy
from autoscaler.daemon import notifications
from autoscaler.daemon.controller import Controller
from autoscaler.daemon.fleet import Fleet
from autoscaler.daemon.leases import Ownership
from autoscaler.daemon.notifications import Notifications
from autoscaler.ports import Copy, Notification, RefusedError, Severity, UnavailableError
from autoscaler.testing import virtual_time
from autoscaler.testing.fakes import Fake, FakeQuery, FakeTarget

from .conftest import Moves, World, make_cluster

LOGGER = "autoscaler.daemon.notifications"


@dataclass
class Inbox:
    """A receiver that keeps the notifications that it gets.

    Attributes:
        messages: each message with its time and its notifications.
        failures: errors that the next attempts raise, one each.
        hangs: seconds that each attempt takes.
    """

    messages: list[tuple[float, tuple[Notification, ...]]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    hangs: float = 0.0

    async def send(self, sent: Sequence[Notification]) -> None:
        await asyncio.sleep(self.hangs)
        if self.failures:
            raise self.failures.pop(0)
        self.messages.append((asyncio.get_running_loop().time(), tuple(sent)))

    @property
    def kinds(self) -> list[str]:
        return [f"{each.cluster} {each.kind.value}" for _, sent in self.messages for each in sent]


@dataclass
class Board(FakeTarget):
    """A target that can show events."""

    shown: list[str] = field(default_factory=list)

    async def show(self, notification: Notification) -> None:
        self.shown.append(notification.kind.value)


@dataclass(frozen=True, eq=False)
class BoardPlugin(Fake[Board]):
    shows_events: ClassVar[bool] = True


class Told(World):
    """A world that sends the notifications of its clusters to inboxes."""

    def __init__(self, *names: str, ownership: Ownership | None = None, **changes: Any) -> None:
        self.ownership = ownership or Ownership()
        self.orders: dict[str, tuple[Control, ...]] = {}
        self.registry = CollectorRegistry()
        self.members: set[str] = set()
        super().__init__(*names, **changes)
        self.inbox = Inbox()
        self.specs = {"ops": self.receiver(self.inbox)}

    def make_fleet(self, *, dry_run: bool = False) -> Fleet:
        fleet = Fleet(
            self.store,
            self.store,
            self.tick_times,
            utc=self.clock,
            dry_run=dry_run,
            ownership=self.ownership,
            ticked=lambda controller: self.notifications.ticked(controller),  # noqa: PLW0108 - made below
        )
        shown = self.members.__contains__
        self.notifications = Notifications(fleet.controllers, self.ownership, self.registry, self.clock, shown)
        return fleet

    @staticmethod
    def receiver(inbox: Inbox, **more: Any) -> NotificationSpec:
        return NotificationSpec(to=Fake(inbox), **more)

    async def start(self) -> None:
        self.notifications.apply(self.specs)
        await super().start()

    async def stop(self) -> None:
        await self.fleet.stop()
        await self.notifications.stop()

    def count(self, outcome: str, receiver: str = "ops") -> float:
        labels = {"receiver": receiver, "outcome": outcome}
        return self.registry.get_sample_value("autoscaler_notifications_total", labels) or 0.0


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    virtual_time.run(main())


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autoscaler")


def test_a_rescale_is_reported_at_its_begin_and_end_and_nothing_without_a_change() -> None:
    async def main() -> None:
        world = Told("a")
        world.targets["a"].startup = 25.0
        await world.start()
        await world.until(100)
        assert world.inbox.messages == []
        world.source.values["load"] = 300.0
        await world.until(200)
        assert world.inbox.kinds == ["a rescale-begun", "a rescale-ended"]
        (_, (begun,)), (_, (ended,)) = world.inbox.messages
        assert "cluster a is scaled up from 1 to 3, as the policies asked." in begun.message
        assert ended.message.startswith("the rescale from 1 to 3 has settled after")
        assert begun.text == f"info: a: {begun.message}"
        assert begun.id != ended.id
        assert world.count("sent") == 2
        await world.stop()

    run(main)


def test_a_rescale_that_misses_its_deadline_is_reported_as_failed() -> None:
    async def main() -> None:
        world = Told("a")
        world.targets["a"].startup = 1e6
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(600)
        assert world.inbox.kinds[:2] == ["a rescale-begun", "a rescale-failed"]
        _, (failed,) = world.inbox.messages[1]
        assert (failed.severity, "no longer waited for" in failed.message) == (Severity.ERROR, True)
        await world.stop()

    run(main)


def test_refused_scale_calls_are_reported_once_and_so_is_their_end() -> None:
    async def main() -> None:
        world = Told("a", "b")
        for target in world.targets.values():
            target.scale_failure = RefusedError("quota exceeded")
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(300)
        assert sorted(world.inbox.kinds) == ["a rescale-failed", "b rescale-failed"]
        assert all("quota exceeded" in sent[0].message for _, sent in world.inbox.messages)
        world.targets["a"].scale_failure = None
        await world.until(320)
        assert world.inbox.kinds[2:3] == ["a rescale-begun"]
        world.source.values["load"] = 100.0
        await world.until(340)
        assert "b rescale-ended" in world.inbox.kinds
        await world.stop()

    run(main)


def test_a_problem_is_reported_after_three_ticks_and_when_it_ends() -> None:
    async def main() -> None:
        world = Told("a")
        await world.start()
        await world.until(50)
        target = world.targets["a"]
        for seconds in (20, 100):
            target.failure = UnavailableError("connection refused")
            await world.until(asyncio.get_running_loop().time() + seconds)
            target.failure = None
            await world.until(asyncio.get_running_loop().time() + 50)
        assert world.inbox.kinds == ["a trouble-begun", "a trouble-ended"]
        assert world.inbox.messages[0][1][0].message == "target: connection refused"
        await world.stop()

    run(main)


def test_controls_are_reported_when_they_are_set_about_to_expire_and_ended() -> None:
    async def main() -> None:
        world = Told("a")
        await world.start()
        await world.until(50)
        now = world.clock()
        hold = Control(
            kind=ControlKind.HOLD, by="alice", at=now, replicas=1, until=now + timedelta(hours=1), reason="game"
        )
        world.targets["a"].controls = (hold,)
        await world.until(3000)
        assert world.inbox.kinds == ["a control-set"]
        assert world.inbox.messages[0][1][0].message.endswith("held at 1 by alice until 2026-01-01 01:00:50 UTC: game")
        await world.until(3500)
        assert world.inbox.kinds[1:] == ["a control-expiring"]
        world.targets["a"].failure = UnavailableError(
            "for a moment"
        )  # its controls are not known meanwhile, so they have not ended
        await world.until(3515)
        world.targets["a"].failure = None
        await world.until(3600)
        world.targets["a"].controls = ()
        await world.until(3700)
        assert world.inbox.kinds[2:] == ["a control-ended"]
        await world.stop()

    run(main)


@pytest.mark.parametrize("most", [10, 4])
def test_a_backlog_at_the_maximum_is_reported_once_it_has_lasted(most: int) -> None:
    async def main() -> None:
        world = Told("a")
        world.source.values |= {"lag": 0.0, "throughput": 100.0, "load": 1000.0}
        cluster = make_cluster("a", world.plugins["a"], metrics=("load", "lag", "throughput"))
        metrics = {name: Metric("source", FakeQuery(name)) for name in ("load", "lag", "throughput")}
        policies = (*cluster.spec.policies, NamedPolicy("calendar", Moves(Limits(1, most))))
        world.clusters["a"] = replace(cluster, metrics=metrics, spec=replace(cluster.spec, policies=policies))
        await world.start()
        await world.until(200)
        world.inbox.messages.clear()
        world.source.values["lag"] = 100 * 90.0
        await world.until(400)
        assert world.inbox.kinds == []
        await world.until(800)
        assert world.inbox.kinds == ["a at-maximum-begun"]
        assert world.inbox.messages[0][1][0].message == f"at its maximum of {most}, and 1 min 30 s of records wait"
        del world.source.values["lag"]  # an unknown backlog does not end it
        await world.until(850)
        assert len(world.inbox.kinds) == 1
        world.source.values["lag"] = 0.0
        await world.until(900)
        assert world.inbox.kinds[1:] == ["a at-maximum-ended"]
        await world.stop()

    run(main)


class Copies(Ownership):
    """One of two copies, which holds all leases."""

    copies: Mapping[UUID, Copy] = MappingProxyType({UUID(int=1): Copy(UUID(int=1), "pod-a", "http://a:8765")})

    @property
    def me(self) -> UUID:
        return UUID(int=1)


def test_a_change_of_the_owner_is_reported_with_several_copies_and_a_reload_is_not_reported() -> None:
    async def main() -> None:
        world = Told("a", ownership=Copies())
        await world.start()
        await world.until(50)
        assert world.inbox.kinds == ["a owner-changed"]
        assert world.inbox.messages[0][1][0].message == "controlled by pod-a"
        world.clusters["a"] = make_cluster("a", world.plugins["a"], interval=timedelta(seconds=5))
        await world.fleet.apply(world.config)
        await world.until(100)
        assert world.inbox.kinds == ["a owner-changed"]
        await world.stop()

    run(main)


def test_a_receiver_gets_its_selected_events_in_its_own_wording() -> None:
    async def main() -> None:
        world = Told("prod-a", "dev-a")
        errors, rescales = Inbox(), Inbox()
        text = TextTemplate("${time} [${kind}] ${cluster} ${severity}")
        world.specs = {
            "errors": world.receiver(errors, severity=Severity.ERROR),
            "rescales": world.receiver(rescales, kinds=("rescale-*",), clusters=("prod-*",), text=text),
        }
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(50)
        for target in world.targets.values():
            target.failure = UnavailableError("away")
        await world.until(100)
        assert sorted(errors.kinds) == ["dev-a trouble-begun", "prod-a trouble-begun"]
        assert rescales.kinds == ["prod-a rescale-begun", "prod-a rescale-ended"]
        at = rescales.messages[0][1][0].at
        assert rescales.messages[0][1][0].text == f"{at:%Y-%m-%d %H:%M:%S} UTC [rescale-begun] prod-a info"
        await world.stop()

    run(main)


def test_messages_beyond_the_rate_are_sent_together_later_and_in_order() -> None:
    async def main() -> None:
        names = [f"c{number:02}" for number in range(40)]
        world = Told(*names)
        world.specs = {"ops": world.receiver(world.inbox, rate=5)}
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(200)
        times = [at for at, _ in world.inbox.messages]
        assert all(later - earlier >= 59 for earlier, later in zip(times, times[5:], strict=False))
        assert max(len(sent) for _, sent in world.inbox.messages) > 20
        told = world.inbox.kinds
        assert sorted(told) == sorted(f"{name} rescale-{what}" for name in names for what in ("begun", "ended"))
        assert all(told.index(f"{name} rescale-begun") < told.index(f"{name} rescale-ended") for name in names)
        await world.stop()

    run(main)


def test_a_temporary_failure_is_retried_and_a_refusal_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = Told("a", "b")
        world.inbox.failures = [UnavailableError("503")] * 3
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(100)
        assert (world.count("sent"), world.count("failed")) == (4, 0)
        assert logged(caplog) == []
        world.inbox.failures = [RefusedError("404: no such hook"), RefusedError("404: no such hook")]
        world.source.values["load"] = 500.0
        await world.until(200)
        assert (world.count("sent"), world.count("failed")) == (6, 2)
        assert logged(caplog) == ["notifications cannot be sent", "notifications are sent again"]
        await world.stop()

    run(main)


def test_a_receiver_that_cancels_itself_gets_the_next_messages(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = Told("a")
        world.inbox.failures = [asyncio.CancelledError()]
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(100)
        assert (world.count("sent"), world.count("failed")) == (1, 1)
        assert logged(caplog) == ["notifications cannot be sent", "notifications are sent again"]
        await world.stop()

    run(main)


def test_a_hanging_receiver_delays_no_tick_no_other_receiver_and_the_shutdown_by_three_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Told("a")
        hanging = Inbox(hangs=1e9)
        world.specs["hangs"] = world.receiver(hanging)
        world.source.values["load"] = lambda now: 100.0 + 400.0 * (now.minute // 3 % 2)
        await world.start()
        await world.until(1000)
        assert len(world.ticks("a")) == 100
        assert max(world.tick_times.late) < 0.001 > max(world.tick_times.took)
        assert len(world.inbox.messages) >= 8
        await world.fleet.stop()
        await world.notifications.stop()
        assert asyncio.get_running_loop().time() == pytest.approx(1003)
        assert world.count("dropped", "hangs") + world.count("failed", "hangs") == len(world.inbox.messages)
        assert (
            logged(caplog)[-1] == "notifications dropped: the daemon or this receiver was stopped before they were sent"
        )

    run(main)


def test_a_full_queue_drops_its_oldest_message_counts_it_and_logs_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notifications, "QUEUE", 3)

    async def main() -> None:
        world = Told(*(f"c{number}" for number in range(10)))
        world.inbox.hangs = 20.0
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(200)
        assert world.count("dropped") == 20 - len(world.inbox.kinds) > 0
        assert logged(caplog) == ["notifications are dropped: too many wait"]
        assert world.inbox.kinds[-1].endswith("rescale-ended")
        await world.stop()

    run(main)


def test_a_reload_changes_receivers_and_queued_messages_are_still_sent() -> None:
    async def main() -> None:
        world = Told("a")
        kept, changed = Inbox(), Inbox(hangs=1.0)
        world.specs = {"kept": world.receiver(kept), "changed": world.receiver(changed)}
        world.source.values["load"] = 300.0
        await world.start()
        while not kept.messages:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        other = Inbox()
        world.notifications.apply({**world.specs, "changed": world.receiver(other)})
        await world.until(100)
        assert changed.kinds == ["a rescale-begun"]
        assert other.kinds == ["a rescale-ended"]
        assert kept.kinds == ["a rescale-begun", "a rescale-ended"]
        assert world.specs["changed"].to.closed  # type: ignore[attr-defined] # it is a fake
        assert not world.specs["kept"].to.closed  # type: ignore[attr-defined]
        await world.stop()

    run(main)


@pytest.mark.parametrize(
    ("dry_run", "member", "shown"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_notifications_are_shown_on_a_target_that_can_unless_they_are_shown_elsewhere(
    dry_run: bool, member: bool, shown: bool
) -> None:
    async def main() -> None:
        world = Told("a", "plain", dry_run=dry_run)
        world.members |= {"a"} if member else set()
        board = Board()
        world.clusters["a"] = make_cluster("a", BoardPlugin(board))
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(100)
        assert board.shown == (["rescale-begun", "rescale-ended"] if shown else [])
        await world.stop()

    run(main)


def test_an_internal_defect_ends_no_controller_and_is_logged_once_per_cluster_and_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    see = notifications.see
    raised: list[Exception] = [ZeroDivisionError()]

    def defect(controller: Controller, *rest: Any) -> Any:
        if raised and controller.name != "fine":
            raise raised[0]
        return see(controller, *rest)

    def lines() -> list[tuple[str, str]]:
        found = [(each.getMessage(), vars(each)["cluster"]) for each in caplog.records if each.name == LOGGER]
        caplog.clear()
        return found

    monkeypatch.setattr(notifications, "see", defect)
    made, broken = "notifications of a cluster are built again", "cannot build notifications of a cluster"

    async def main() -> None:
        world = Told("a", "b", "fine")
        await world.start()
        await world.until(100)
        assert [len(world.ticks(name)) for name in ("a", "b", "fine")] == [10, 10, 10]
        assert sorted(lines()) == [(broken, "a"), (broken, "b")]
        raised[0] = KeyError("another")
        await world.until(150)
        assert sorted(lines()) == [(broken, "a"), (broken, "b")]
        raised.clear()
        await world.until(200)
        assert sorted(lines()) == [(made, "a"), (made, "b")]
        await world.stop()

    run(main)
