"""Shows the status of the members of a fleet where they were found, if the discovery can (`ports.Reports`).

A task of each fleet compares the present status of its members with the status last shown. Ticks never wait for this
task. It shows only the last of several changes, a few members at a time at a limited rate, and retries failures with
growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from autoscaler.core.explain import outcome
from autoscaler.daemon.connections import contained, format_error, uncancelled
from autoscaler.daemon.controller import NOT_OBSERVED, Controller, trouble
from autoscaler.daemon.event_loop import Slices
from autoscaler.daemon.leases import Ownership
from autoscaler.ports import EdgeError, Member, MemberStatus, Reports

log = logging.getLogger("autoscaler.daemon.reports")

POLL = 2.0
"""Seconds between two comparisons."""

QUIET = 30.0
"""Least seconds between two reports of a member if neither its size nor whether it is refused has changed."""

AT_ONCE = 8
"""Concurrent reports of a fleet."""

RATE = 50.0
"""Most reports of a fleet per second, so that a thousand changes at once do not overload an API server."""

TIMEOUT = 30.0
"""Seconds that one report may take."""

LONGEST_PAUSE = 60.0
"""Most seconds until a failed report is retried: twice the poll at first, then doubled."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one member.

    Attributes:
        cluster: the name of its cluster, or None if it has none.
        problem: why its values or its template cannot be used, or None.
    """

    member: Member
    cluster: str | None
    problem: str | None


@dataclass(slots=True)
class _Shown:
    """The last report of a member, and when to retry a failed one. Times are loop times."""

    member: Member | None = None
    status: MemberStatus | None = None
    at: float = 0.0
    retry_at: float = 0.0
    pause: float = POLL


class Reporter:
    """Shows the status of the members of one fleet.

    Args:
        fleet: its name.
        live: returns the live discovery; raises EdgeError while there is none.
        known: returns its members.
        controllers: the controllers of all clusters, by the names of the clusters.
        utc: the clock.
        ownership: tells which members this copy shows.
    """

    def __init__(
        self,
        fleet: str,
        live: Callable[[], object],
        known: Callable[[], Iterable[Known]],
        controllers: Mapping[str, Controller],
        utc: Callable[[], datetime],
        ownership: Ownership | None = None,
    ) -> None:
        self._fleet = fleet
        self._live = live
        self._known = known
        self._controllers = controllers
        self._utc = utc
        self._ownership = ownership or Ownership()
        self._shown: dict[str, _Shown] = {}
        self._failing = False

    async def run(self) -> None:
        """Show changes regularly, until this is cancelled."""
        while True:
            await asyncio.sleep(POLL)
            try:
                with contained():
                    await self.report()
            except EdgeError:
                continue  # not connected; the connection logs that
            except Exception:
                log.exception("the status of members cannot be shown", extra={"fleet": self._fleet})

    async def report(self) -> None:
        """Show all changes. Raises EdgeError if the discovery is not connected."""
        live = self._live()
        if not isinstance(live, Reports):
            return
        changed, loop = await self._changed(), asyncio.get_running_loop()
        for first in range(0, len(changed), AT_ONCE):
            batch, begun = changed[first : first + AT_ONCE], loop.time()
            done = await asyncio.gather(*(self._show(live, member, status) for member, status in batch))
            if not any(done):
                break  # the problem is probably the discovery, not these members
            await asyncio.sleep(begun + len(batch) / RATE - loop.time())
        failing = any(shown.retry_at for shown in self._shown.values())
        if self._failing and not failing:
            log.info("the status of members is shown again", extra={"fleet": self._fleet})
        self._failing = failing

    async def _changed(self) -> list[tuple[Member, MemberStatus]]:
        now, slices = asyncio.get_running_loop().time(), Slices()
        before, self._shown = self._shown, {}  # forgets the members that have left
        changed = []
        for known in self._known():
            await slices.turn()
            if not self._is_ours(known):
                continue
            shown = self._shown[known.member.id] = before.get(known.member.id) or _Shown()
            status = self._status(known, shown.status)
            if status is None or now < shown.retry_at:
                continue
            if shown.member == known.member and shown.status is not None:
                quiet = _urgent(status) == _urgent(shown.status) and now < shown.at + QUIET
                if quiet or replace(status, at=shown.status.at, message=shown.status.message) == shown.status:
                    continue
            changed.append((known.member, replace(status, message=self._message(known))))
        return changed

    def _is_ours(self, known: Known) -> bool:
        """Whether this copy shows a member's status. Members without a cluster are shared out by hash like clusters."""
        if known.cluster is None:
            return self._ownership.shares(f"{self._fleet}\n{known.member.id}")
        return self._ownership.owns(known.cluster)

    def _status(self, known: Known, before: MemberStatus | None) -> MemberStatus | None:
        """The status of a member without its message; None: nothing is known yet."""
        controller = None if known.cluster is None else self._controllers.get(known.cluster)
        if controller is None:
            return None if known.problem is None else MemberStatus(at=self._utc(), problem=known.problem, refused=True)
        problem = known.problem or trouble(controller)
        if problem == NOT_OBSERVED:
            return None
        observation, decision, state = controller.observation, controller.decision, controller.state
        rescaled_at = None if state is None else state.requested
        return MemberStatus(
            at=self._utc(),
            size=None if observation is None else observation.desired,
            proposed=None if decision is None else decision.proposed,
            reason="" if decision is None else decision.reason.value,
            rescaled_at=rescaled_at or (None if before is None else before.rescaled_at),
            problem=problem,
            refused=known.problem is not None,
        )

    def _message(self, known: Known) -> str:
        controller = None if known.cluster is None else self._controllers.get(known.cluster)
        if controller is None or controller.observation is None or controller.decision is None:
            return ""
        failed = None if controller.refusal is None else controller.refusal.error
        return outcome(controller.observation, controller.decision, dry_run=controller.dry_run, failed=failed)

    async def _show(self, live: Reports, member: Member, status: MemberStatus) -> bool:
        """Show the status of one member. Returns whether that succeeded; a failure is logged once for the fleet."""
        shown, loop = self._shown[member.id], asyncio.get_running_loop()
        try:
            with uncancelled():
                async with asyncio.timeout(TIMEOUT):
                    await live.report(member.id, status)
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
            shown.pause = min(2 * shown.pause, LONGEST_PAUSE)
            shown.retry_at = loop.time() + shown.pause
            if not self._failing:
                self._failing = True
                text = f"no answer within {TIMEOUT:g} s" if isinstance(error, TimeoutError) else format_error(error)
                extra = {"fleet": self._fleet, "member": member.id, "error": text}
                log.warning("the status of a member cannot be shown", extra=extra)
            return False
        shown.member, shown.status, shown.at, shown.retry_at, shown.pause = member, status, loop.time(), 0.0, POLL
        return True


def _urgent(status: MemberStatus) -> tuple[object, ...]:
    """The parts of a status whose changes are shown at once."""
    return status.size, status.rescaled_at, status.refused
