"""Notifications of events of clusters, sent to the configured receivers and to targets that can show them.

After each tick, the state of a cluster is compared with its state after the previous tick. Each receiver has its own
queue and task: a tick adds to the queue and never waits, and a receiver that hangs does not delay others. Notifications
above the receiver's rate wait and are sent together. If the queue is full, the oldest one is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import uuid4
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential, wait_random

from autoscaler.config.model import NotificationSpec
from autoscaler.core.explain import describe_control, describe_rescale, outcome
from autoscaler.core.foreign import shorten
from autoscaler.core.model import Cause, Control, Decision, Observation, Reason, Rescale
from autoscaler.core.wording import format_span
from autoscaler.daemon.connections import (
    Connection,
    Connections,
    equal,
    format_error,
    sleep_until_stopped,
    uncancelled,
)
from autoscaler.daemon.controller import NOT_OBSERVED, Controller, LogState, trouble
from autoscaler.daemon.leases import Ownership
from autoscaler.daemon.workload import backlog_time
from autoscaler.ports import (
    EdgeTimeoutError,
    Notification,
    NotificationKind,
    Notifier,
    Severity,
    ShowsEvents,
    UnavailableError,
)

log = logging.getLogger("autoscaler.daemon.notifications")

Message = tuple[NotificationKind, str]

QUEUE = 1000
"""Most notifications that wait for one receiver."""

DIGEST_FROM = 5
"""Number of waiting notifications from which they are sent as one message."""

TIMEOUT = 30.0
"""Seconds that sending one message may take."""

ATTEMPTS = 8
"""How often one message is sent while its receiver is unavailable, with growing pauses: over about two minutes."""

DRAIN = 3.0
"""Seconds that sending the waiting notifications may take at shutdown."""

TICKS_IN_TROUBLE = 3
"""Ticks after which trouble is reported: a reading that fails once is not."""

EXPIRING = timedelta(minutes=10)
"""Time before the end of a control at which a notification announces it, at most a quarter of its duration."""

BACKLOG = 60.0
BACKLOG_FOR = timedelta(minutes=5)
"""More than `BACKLOG` seconds of backlog at the largest size are reported once they have lasted for `BACKLOG_FOR`."""

EVENTS = "kubernetes-events"
EVENTS_RATE = 600
"""Most events on targets per minute."""

_SEVERITY = {
    NotificationKind.RESCALE_FAILED: Severity.ERROR,
    NotificationKind.TROUBLE_BEGUN: Severity.ERROR,
    NotificationKind.CONTROL_EXPIRING: Severity.WARNING,
    NotificationKind.AT_MAXIMUM_BEGUN: Severity.WARNING,
}  # the other kinds are information
_SHOWN = ("rescale-", "trouble-", "at-maximum-")  # prefixes of the kinds that targets show


@dataclass(frozen=True, slots=True)
class Seen:
    """The part of a cluster's state after a tick that can cause notifications.

    Attributes:
        rescale: the rescale in progress, or None.
        refused: whether scale calls fail.
        troubled: consecutive ticks in which it had another problem.
        controls: the controls in force.
        expiring: the controls in force that end soon.
        full_since: since when it is at its largest size with a backlog, or None.
        full: whether that has lasted for `BACKLOG_FOR`.
    """

    rescale: Rescale | None = None
    refused: bool = False
    troubled: int = 0
    controls: tuple[Control, ...] = ()
    expiring: tuple[Control, ...] = ()
    full_since: datetime | None = None
    full: bool = False


def see(controller: Controller, before: Seen, now: datetime) -> Seen:
    """The state of a cluster after a tick."""
    state, observation, refused = controller.state, controller.observation, controller.refusal is not None
    problem = None if refused else trouble(controller)
    controls = before.controls if observation is None or observation.desired is None else controller.controls
    full = None if observation is None else _is_full(controller, observation)
    since = before.full_since if full is None else (before.full_since or now) if full else None
    return Seen(
        rescale=None if state is None else state.rescale,
        refused=refused,
        troubled=0 if problem in {None, NOT_OBSERVED} else before.troubled + 1,
        controls=controls,
        expiring=tuple(each for each in controls if _is_expiring(each, now)),
        full_since=since,
        full=since is not None and now - since >= BACKLOG_FOR,
    )


def _is_full(controller: Controller, observation: Observation) -> bool | None:
    """Whether a cluster is at its largest size with a backlog. None: not known."""
    spec, size = controller.cluster.spec, observation.desired
    backlog = backlog_time(spec, observation)
    return None if backlog is None or size is None else backlog > BACKLOG and size >= controller.limits.maximum


def _is_expiring(control: Control, now: datetime) -> bool:
    if control.until is None:
        return False
    whole = EXPIRING if control.at is None else (control.until - control.at) / 4
    return control.until - now <= min(EXPIRING, whole)


def news(controller: Controller, before: Seen, after: Seen) -> Iterator[Message]:
    """The messages about a cluster that follow from its states after two consecutive ticks."""
    observation = controller.observation
    yield from _rescales(controller, before, after)
    if before.troubled < TICKS_IN_TROUBLE <= after.troubled:
        yield NotificationKind.TROUBLE_BEGUN, trouble(controller) or ""
    if after.troubled == 0 and before.troubled >= TICKS_IN_TROUBLE:
        yield NotificationKind.TROUBLE_ENDED, "under control again"
    yield from _controls(before, after)
    if after.full and not before.full and observation is not None:
        backlog = backlog_time(controller.cluster.spec, observation) or 0.0
        waits = "nothing is processed" if backlog == float("inf") else f"{format_span(backlog)} of records wait"
        yield NotificationKind.AT_MAXIMUM_BEGUN, f"at its maximum of {observation.desired}, and {waits}"
    if before.full and not after.full:
        yield NotificationKind.AT_MAXIMUM_ENDED, "not at its maximum with a backlog any more"


def _rescales(controller: Controller, before: Seen, after: Seen) -> Iterator[Message]:
    if after.refused:
        if not before.refused:
            yield NotificationKind.RESCALE_FAILED, trouble(controller) or ""
        return  # while scale calls fail, each tick repeats the request
    old, new = before.rescale, after.rescale
    if old is not None and new is None and not before.refused:
        yield _ended(old, controller.decision)
    if new is not None and (old is None or old.at != new.at or before.refused):
        yield NotificationKind.RESCALE_BEGUN, _begun(controller, new)
    elif before.refused:
        yield NotificationKind.RESCALE_ENDED, "no scale call is needed any more"


def _begun(controller: Controller, rescale: Rescale) -> str:
    decision, observation = controller.decision, controller.observation
    asked = rescale.cause is Cause.REQUEST and decision is not None and decision.rescale
    if asked and decision is not None and observation is not None:
        return outcome(observation, decision, dry_run=controller.dry_run)
    return f"{describe_rescale(rescale)} has begun"


def _ended(rescale: Rescale, decision: Decision | None) -> Message:
    """How a rescale has ended, in the words of the decision that noticed it."""
    for reason, text in () if decision is None else decision.notes:
        if reason in {Reason.DEADLINE, Reason.UNCONFIRMED}:
            return NotificationKind.RESCALE_FAILED, text
        if reason is Reason.SETTLED:
            return NotificationKind.RESCALE_ENDED, text
    return NotificationKind.RESCALE_ENDED, f"{describe_rescale(rescale)} is not in progress any more"


def _controls(before: Seen, after: Seen) -> Iterator[Message]:
    kinds = {control.kind for control in after.controls}
    for control in after.controls:
        if control not in before.controls:
            yield NotificationKind.CONTROL_SET, describe_control(control)
        elif control in after.expiring and control not in before.expiring:
            yield NotificationKind.CONTROL_EXPIRING, f"ends soon: {describe_control(control)}"
    for control in before.controls:
        if control.kind not in kinds:
            yield NotificationKind.CONTROL_ENDED, f"control ended: {describe_control(control)}"


class Receiver:
    """One receiver: its queue, and the task that sends the notifications.

    Args:
        name: its name.
        send: sends notifications as one message; raises EdgeError.
        rate: most messages per minute.
        count: called with an outcome (`sent`, `failed` or `dropped`) and the number of notifications.
        attempts: how often a message is tried while the receiver is unavailable.
        together: most notifications in one message.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[Sequence[Notification]], Awaitable[None]],
        rate: int,
        count: Callable[[str, int], None],
        *,
        attempts: int = ATTEMPTS,
        together: int = 100,
    ) -> None:
        self.name = name
        self._send = send
        self._count = count
        self._attempts = attempts
        self._together = together
        self._queue: deque[Notification] = deque()
        self._sending: list[Notification] = []
        self._sent_at: deque[float] = deque(maxlen=rate)
        self._arrived = asyncio.Event()
        self._stopping = asyncio.Event()
        self._dropping = self._failing = False
        self._task = asyncio.create_task(self._run(), name=f"notifications to {name}")

    def offer(self, notification: Notification) -> None:
        """Add a notification to the queue. This never waits."""
        if len(self._queue) >= QUEUE:
            self._queue.popleft()
            self._count("dropped", 1)
            if not self._dropping:
                self._dropping = True
                log.warning("notifications are dropped: too many wait", extra={"receiver": self.name})
        self._queue.append(notification)
        self._arrived.set()

    async def stop(self, seconds: float = DRAIN) -> None:
        """Send the waiting notifications, for at most `seconds`, and end the task."""
        self._stopping.set()
        self._arrived.set()
        await asyncio.wait((self._task,), timeout=seconds)
        self.cancel()

    def cancel(self) -> None:
        """Stop sending, and count the waiting notifications as dropped."""
        waiting = len(self._sending) + len(self._queue)
        if self._task.cancel() and waiting:
            self._count("dropped", waiting)
            log.warning(
                "notifications dropped: the daemon or this receiver was stopped before they were sent",
                extra={"receiver": self.name, "waiting": waiting},
            )

    async def _run(self) -> None:
        while self._queue or not self._stopping.is_set():
            if not self._queue:
                self._dropping = False
                self._arrived.clear()
                await self._arrived.wait()
                continue
            await self._pace()
            several = self._together if len(self._queue) >= DIGEST_FROM else 1
            self._sending = [self._queue.popleft() for _ in range(min(len(self._queue), several))]
            await self._deliver(self._sending)
            self._sending = []

    async def _pace(self) -> None:
        """Wait until the rate allows another message, or until a stop."""
        loop = asyncio.get_running_loop()
        full = len(self._sent_at) == self._sent_at.maxlen
        if full and (wait := self._sent_at[0] + 60.0 - loop.time()) > 0:
            await sleep_until_stopped(self._stopping, wait)
        self._sent_at.append(loop.time())

    async def _deliver(self, batch: Sequence[Notification]) -> None:
        try:
            async for attempt in AsyncRetrying(
                stop=stop_after_attempt(self._attempts),
                wait=wait_exponential(multiplier=1, max=60) + wait_random(0, 1),
                retry=retry_if_exception_type(UnavailableError),
                reraise=True,
            ):
                with attempt, uncancelled():
                    await self._attempt(batch)
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
            self._count("failed", len(batch))
            if not self._failing:
                extra = {"receiver": self.name, "error": format_error(error)}
                log.error("notifications cannot be sent", extra=extra)  # noqa: TRY400 - it is complete
            self._failing = True
        else:
            self._count("sent", len(batch))
            if self._failing:
                log.info("notifications are sent again", extra={"receiver": self.name})
            self._failing = False

    async def _attempt(self, batch: Sequence[Notification]) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._send(batch)
        except TimeoutError as error:
            raise EdgeTimeoutError(f"no answer within {TIMEOUT:g} s") from error


class Notifications:
    """All receivers of a daemon.

    Args:
        controllers: the controllers of all clusters, by the names of the clusters.
        ownership: the leases of this copy.
        registry: the registry of the counter of notifications.
        utc: the clock.
        shown: whether the events of a cluster are shown where its member was found, so that its target need not.
    """

    def __init__(
        self,
        controllers: Mapping[str, Controller],
        ownership: Ownership,
        registry: CollectorRegistry,
        utc: Callable[[], datetime],
        shown: Callable[[str], bool],
    ) -> None:
        self._controllers = controllers
        self._ownership = ownership
        self._utc = utc
        self._shown = shown
        self._counter = Counter(
            "autoscaler_notifications",
            "Notifications by receiver and outcome; kubernetes-events are those shown on targets.",
            ["receiver", "outcome"],
            registry=registry,
        )
        self._seen: WeakKeyDictionary[LogState, Seen] = WeakKeyDictionary()
        self._connections = Connections()
        self._receivers: dict[str, tuple[NotificationSpec, Connection, Receiver]] = {}
        self._events: Receiver | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._failing: WeakKeyDictionary[LogState, str] = WeakKeyDictionary()

    def apply(self, specs: Mapping[str, NotificationSpec]) -> None:
        """Use these receivers. Unchanged ones continue; those that changed or are gone still send what waits."""
        if self._events is None:
            self._events = Receiver(EVENTS, self._show, EVENTS_RATE, self._counting(EVENTS), attempts=1, together=1)
        for name in [name for name, (spec, _, _) in self._receivers.items() if not equal(specs.get(name), spec)]:
            _, connection, receiver = self._receivers.pop(name)
            closing = asyncio.create_task(self._close(connection, receiver))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        for name in specs.keys() - self._receivers.keys():
            spec = specs[name]
            connection = self._connections.lease(spec.to)
            receiver = Receiver(name, _sender(connection), spec.rate, self._counting(name))
            self._receivers[name] = spec, connection, receiver

    def ticked(self, controller: Controller) -> None:
        """Notify about changes by the last tick of a cluster. Called after each tick; it never raises or waits."""
        shows = getattr(controller.cluster.target, "shows_events", False) is True
        if not (shows or self._receivers):
            return
        try:
            before, now = self._seen.get(controller.logged), self._utc()
            after = self._seen[controller.logged] = see(controller, before or Seen(), now)
            if before is None:
                # First tick here: earlier controls and an earlier rescale are not reported; the new owner is.
                new = controller.decision is not None and controller.decision.rescale
                before = Seen(rescale=None if new else after.rescale, controls=after.controls, expiring=after.expiring)
                if self._ownership.me is not None:
                    copy = self._ownership.copies.get(self._ownership.me)
                    self._tell(controller, now, (NotificationKind.OWNER_CHANGED, f"controlled by {copy and copy.name}"))
            for message in news(controller, before, after):
                self._tell(controller, now, message)
        except Exception as error:
            # Log each defect once: the same one at each tick would fill the log.
            what = format_error(error)
            if self._failing.get(controller.logged) != what:
                self._failing[controller.logged] = what
                log.exception("cannot build notifications of a cluster", extra={"cluster": controller.name})
        else:
            if self._failing.pop(controller.logged, None) is not None:
                log.info("notifications of a cluster are built again", extra={"cluster": controller.name})

    def _tell(self, controller: Controller, now: datetime, message: Message) -> None:
        kind, text = message
        severity = _SEVERITY.get(kind, Severity.INFO)
        made = Notification(
            id=uuid4().hex, at=now, kind=kind, severity=severity, cluster=controller.name, message=shorten(text)
        )
        for spec, _, receiver in self._receivers.values():
            if spec.wants(kind, severity, made.cluster):
                receiver.offer(replace(made, text=spec.text.fill(_values(made))))
        shown = kind.startswith(_SHOWN) and not controller.dry_run
        if shown and self._events is not None and getattr(controller.cluster.target, "shows_events", False) is True:
            self._events.offer(made)

    async def stop(self) -> None:
        """Send the waiting notifications, for at most `DRAIN` seconds, and disconnect."""
        await asyncio.gather(*(receiver.stop() for receiver in self._all()), *self._closing)
        await self._connections.close()

    def cancel(self) -> None:
        """End all receivers at once."""
        for receiver in self._all():
            receiver.cancel()

    def _all(self) -> Collection[Receiver]:
        events = [] if self._events is None else [self._events]
        return [*events, *(receiver for _, _, receiver in self._receivers.values())]

    def _counting(self, name: str) -> Callable[[str, int], None]:
        counters = {outcome: self._counter.labels(name, outcome) for outcome in ("sent", "failed", "dropped")}
        return lambda outcome, number: counters[outcome].inc(number)

    async def _close(self, connection: Connection, receiver: Receiver) -> None:
        await receiver.stop()
        await self._connections.release(connection)

    async def _show(self, notifications: Sequence[Notification]) -> None:
        """Show a notification on the target of its cluster, if the target can."""
        (notification,) = notifications
        controller = self._controllers.get(notification.cluster)
        if controller is None or self._shown(notification.cluster):
            return
        target = controller.connections.target()
        if isinstance(target, ShowsEvents):
            await target.show(notification)


def _sender(connection: Connection) -> Callable[[Sequence[Notification]], Awaitable[None]]:
    async def send(notifications: Sequence[Notification]) -> None:
        await connection.tried()
        notifier: Notifier = connection.get()
        await notifier.send(notifications)

    return send


def _values(notification: Notification) -> dict[str, str]:
    """The variables of a template: `NOTIFICATION_VARIABLES`."""
    return {
        "cluster": notification.cluster,
        "kind": notification.kind.value,
        "severity": notification.severity.value,
        "message": notification.message,
        "time": f"{notification.at:%Y-%m-%d %H:%M:%S} UTC",
    }
