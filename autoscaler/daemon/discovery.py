"""The fleets of a running daemon: it polls their discoveries, and members come and go without a reload.

Each fleet has a task that applies changes of its members to the controllers at once (`Fleet.change`). A reload does the
same for all fleets. A lock allows one such change at a time. The members last accepted are persisted: if the discovery
does not answer after a start, the daemon continues with them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from autoscaler.config.fleets import assemble
from autoscaler.config.model import Config, FleetSpec, MemberCluster
from autoscaler.core.durations import format_duration
from autoscaler.core.foreign import foreign_text, mask
from autoscaler.daemon.connections import (
    CANCELLED,
    Connection,
    Connections,
    contained,
    equal,
    format_error,
    sleep_until_stopped,
)
from autoscaler.daemon.controller import LogState
from autoscaler.daemon.event_loop import Slices
from autoscaler.daemon.fleet import CANCEL_TIMEOUT, Changes, Fleet
from autoscaler.daemon.membership import Membership, accept
from autoscaler.daemon.observer import FoundControls
from autoscaler.daemon.reports import Known, Reporter
from autoscaler.ports import (
    ConfigurationError,
    EdgeError,
    Member,
    MemberStore,
    MembersWithControls,
    RefusedError,
    Reports,
    StoreError,
    UnavailableError,
)

log = logging.getLogger("autoscaler.daemon.discovery")

ASK_TIMEOUT = 30.0
"""Seconds a discovery may take to answer."""

MAX_LINES = 10
"""Log lines about single members at a time; the others are counted in one line."""

KEPT = timedelta(days=30)
"""How long the state of a removed cluster is kept, from its last tick."""

SWEEP = timedelta(days=1).total_seconds()
"""Seconds between two deletions of expired state."""

SWEEP_RETRY = 60.0
"""Seconds until the next attempt while not all discoveries have answered: until then nobody knows who has left."""

NOT_ASKED = "the discovery has not answered yet"


@dataclass(frozen=True, slots=True)
class Filled:
    """A member and the cluster that the template makes of it.

    Attributes:
        member: the member as it was last found.
        good: the member as it was when the template could last be filled; None: never.
        cluster: the cluster made of `good`, with the template of that time.
        problems: why the template cannot be filled now; empty if it can.
    """

    member: Member
    good: Member | None
    cluster: MemberCluster | None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """The status of a fleet after an answer or a reload. It is immutable, so other threads can read it.

    Attributes:
        members: number of members, including those without a cluster.
        held: ids of missing members that are kept until it is certain that they have gone -> loop time since when.
        clusters: id of a member -> its cluster, for clusters under control.
        problems: id of a member -> what is wrong with it; a member that has a cluster keeps its previous configuration.
        failure: why the discovery does not answer, or None.
        failures: how often it has not answered.
        answered_at: when it answered last, or None.
    """

    name: str
    members: int = 0
    held: Mapping[str, float] = field(default_factory=dict)
    clusters: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    failure: str | None = NOT_ASKED
    failures: int = 0
    answered_at: datetime | None = None


class Discoveries:
    """All fleets of a configuration. It combines their clusters with those of the section `clusters`.

    Attributes:
        members: name of a member's cluster -> its fleet and the member's id.
        controls: name of a member's cluster -> the controls on the member, for members that have controls or remarks.
    """

    def __init__(self, fleet: Fleet, store: MemberStore, *, utc: Callable[[], datetime]) -> None:
        self.members: Mapping[str, tuple[str, str]] = {}
        self.controls: Mapping[str, FoundControls] = {}
        self._fleet = fleet
        self._store = store
        self._utc = utc
        self._config: Config
        self._watches: dict[str, _Watch] = {}
        self._lock = asyncio.Lock()
        self._applied = True
        self._store_failure: str | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[object]] = set()

    @property
    def status(self) -> list[FleetStatus]:
        """The status of every fleet, sorted by name. Other threads may read it."""
        return [watch.status for _, watch in sorted(self._watches.copy().items())]

    async def apply(self, config: Config) -> tuple[set[str], set[str], set[str]]:
        """Control the clusters of a configuration and of the known members of its fleets, and poll these fleets.

        Known members stay, whatever a changed template makes of them. All discoveries are polled at once.

        Returns:
            The names of the clusters that were added, removed and changed.
        """
        async with self._lock:
            known = [(config.fleets[name], watch) for name, watch in self._watches.items() if name in config.fleets]
            filled = [await _fill(config, spec, watch.membership, watch.filled, anew=True) for spec, watch in known]
            for name in self._watches.keys() - config.fleets.keys():
                await self._watches[name].end()
                self._release(self._watches.pop(name).connection)
            for (spec, watch), found in zip(known, filled, strict=True):
                if not equal(spec.discover, watch.spec.discover):
                    self._release(watch.connection)
                    watch.connection = self._fleet.connections.lease(spec.discover)
                watch.renew(spec, found)
            new = [spec for name, spec in config.fleets.items() if name not in self._watches]
            for spec in new:
                self._watches[spec.name] = _Watch(spec, self._fleet.connections.lease(spec.discover))
            self._config = config
            changes = await self._change()
            for spec in new:
                self._watches[spec.name].start(self._run, self._report)
        self._in_background(self._persist(self._store.forget_members(config.fleets)))
        self._sweeping = self._sweeping or asyncio.create_task(self._sweep(), name="delete state of removed clusters")
        await asyncio.gather(*changes.ending)
        return changes.added, changes.removed, changes.changed

    def shows(self, cluster: str) -> bool:
        """Whether a cluster is a member whose status is shown where the member was found."""
        fleet, _ = self.members.get(cluster, ("", ""))
        try:
            return fleet in self._watches and isinstance(self._watches[fleet].live(), Reports)
        except EdgeError:
            return False

    async def stop(self) -> None:
        """Stop polling. The controllers continue until they are stopped themselves."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        await asyncio.gather(*(watch.end() for watch in self._watches.values()))

    async def _sweep(self) -> None:
        """Delete the state of clusters that were removed long ago, regularly until this is cancelled."""
        while True:
            complete = all(fleet.answered_at is not None for fleet in self.status)
            if complete:
                try:
                    await self._fleet.forget(self._utc() - KEPT)
                except StoreError as error:
                    log.error("cannot delete the stored state of removed clusters", extra={"error": str(error)})  # noqa: TRY400 - it is complete
            await asyncio.sleep(SWEEP if complete else SWEEP_RETRY)

    async def _run(self, watch: _Watch) -> None:
        """Poll a discovery until this is cancelled."""
        loop = asyncio.get_running_loop()
        restored = False
        while True:
            begun = loop.time()
            watch.asked_for.clear()
            try:
                if not restored:
                    restored = True
                    await self._restore(watch)
                await self._poll(watch)
            except Exception as error:
                # A defect of a plug-in or of ours: the other fleets continue, and this one is retried.
                if watch.fail(format_error(error)):
                    log.exception("fleet cannot be updated", extra={"fleet": watch.name})
            interval = watch.spec.interval.total_seconds()
            await sleep_until_stopped(watch.asked_for, max(begun + interval - loop.time(), interval / 2))

    async def _report(self, watch: _Watch) -> None:
        """Show the status of the members where they were found, until this is cancelled."""
        fleet = self._fleet
        await Reporter(watch.name, watch.live, watch.known, fleet.controllers, self._utc, fleet.ownership).run()

    async def _restore(self, watch: _Watch) -> None:
        """Continue with the members that were persisted before the start."""
        try:
            members = await self._store.load_members(watch.name)
        except StoreError as error:
            log.error("cannot restore members", extra={"fleet": watch.name, "error": str(error)})  # noqa: TRY400 - it is complete
            return
        if members:
            log.info("members restored", extra={"fleet": watch.name, "members": len(members)})
            watch.reported = dict.fromkeys(members, ())
            await self._take(watch, lambda _: Membership(members))

    async def _poll(self, watch: _Watch) -> None:
        """Poll the discovery once, and apply its answer."""
        try:
            found = await watch.ask()
        except EdgeError as error:
            text = format_error(error)
            if watch.fail(text):
                log.warning("discovery failed: the known members are kept", extra={"fleet": watch.name, "error": text})
            return
        now = asyncio.get_running_loop().time()
        await self._take(watch, lambda spec: accept(watch.membership, found, now, spec.confirm.total_seconds()))
        watch.succeed(self._utc())

    async def _take(self, watch: _Watch, members: Callable[[FleetSpec], Membership]) -> None:
        """Control the clusters of these members, and persist the members."""
        while True:
            spec, before = watch.spec, watch.filled
            membership = members(spec)
            filled = await _fill(self._config, spec, membership, before, anew=False)
            async with self._lock:
                if watch.spec is not spec or watch.filled is not before:
                    continue  # meanwhile there was a reload, or a member of another fleet replaced one of this fleet
                held = watch.membership.held.keys()
                watch.take(membership, filled)
                if filled is not before or membership.held.keys() != held or not self._applied:
                    await self._change()
                break
        if watch.unsaved:
            good = {key: each.good for key, each in watch.filled.items() if each.good is not None}
            watch.unsaved = not await self._persist(self._store.save_members(watch.name, good))

    async def _change(self) -> Changes:
        """Make the controllers match the known members."""
        self._applied = False
        found = {name: _clusters(watch.filled) for name, watch in self._watches.items()}
        held = {(name, key) for name, watch in self._watches.items() for key in watch.membership.held}
        # In a thread: with ten thousand members it would delay ticks too long.
        with contained():
            assembled = await asyncio.to_thread(assemble, self._config, found, self.members, held)
        mask.hide(*assembled.config.secrets)
        # Set these before the change: a new cluster needs its fleet and its controls at its first tick.
        self.controls = await self._controls(assembled.members)
        self.members = {**self.members, **assembled.members}
        changes = await self._fleet.change(assembled.config)
        self._applied = True
        self.members = assembled.members
        problems = {
            name: problem
            for name, (fleet, member) in assembled.members.items()
            for problem in self._watches[fleet].filled[member].problems[:1]
        }
        self._fleet.template_problems = problems
        for name, controller in self._fleet.controllers.items():
            controller.template_problem = problems.get(name)
        for name, watch in self._watches.items():
            watch.refuse(assembled.refused.get(name, {}))
            watch.report()
        return changes

    async def _controls(self, members: Mapping[str, tuple[str, str]]) -> dict[str, FoundControls]:
        """The controls on members by the names of their clusters, without members that have no controls or remarks."""
        found, slices = {}, Slices()
        plugins = {
            fleet: watch.spec.discover
            for fleet, watch in self._watches.items()
            if isinstance(watch.spec.discover, MembersWithControls)
        }
        for name, (fleet, member) in members.items() if plugins else ():
            if fleet in plugins:
                await slices.turn()
                found[name] = _controls(plugins[fleet], self._watches[fleet].filled[member].member)
        return {name: each for name, each in found.items() if each.controls or each.remarks}

    async def _persist(self, call: Coroutine[None, None, None]) -> bool:
        """Wait for a call of the store. Returns whether it succeeded; the same failure is logged once."""
        try:
            await call
        except StoreError as error:
            if str(error) != self._store_failure:
                log.error("cannot persist members", extra={"error": str(error)})  # noqa: TRY400 - it is complete
            self._store_failure = str(error)
            return False
        self._store_failure = None
        return True

    def _release(self, connection: Connection) -> None:
        """Close the connection of a discovery that is not polled any more."""
        self._in_background(self._fleet.connections.release(connection))

    def _in_background(self, work: Coroutine[None, None, object]) -> None:
        """Run work in the background, so that a reload does not wait for a slow disk or plug-in."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


class _Watch:
    """One fleet: its members and the state of its discovery.

    Attributes:
        connection: the connection of the discovery.
        membership: the members.
        filled: the filled members by their ids; replaced by another mapping whenever one of them changes.
        refused: id of a member that has no cluster although its template could be filled -> why.
        reported: id of a member -> its problems, as they were logged.
        unsaved: whether the members differ from the persisted ones.
        asked_for: set it to poll the discovery now.
    """

    def __init__(self, spec: FleetSpec, connection: Connection) -> None:
        self.spec = spec
        self.name = spec.name
        self.connection = connection
        self.membership = Membership()
        self.filled: Mapping[str, Filled] = {}
        self.refused: Mapping[str, str] = {}
        self.reported: Mapping[str, tuple[str, ...]] = {}
        self.unsaved = False
        self.asked_for = asyncio.Event()
        self._failure: str | None = NOT_ASKED
        self._failures = 0
        self._answered_at: datetime | None = None
        self._logged = LogState()
        self._warned: Collection[str] = ()
        self._asked: asyncio.Task[Sequence[Member]] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def status(self) -> FleetStatus:
        """The present status."""
        filled, refused = self.filled, self.refused
        return FleetStatus(
            name=self.name,
            members=len(filled),
            held=self.membership.held,
            clusters={
                key: each.cluster.name
                for key, each in filled.items()
                if each.cluster is not None and key not in refused
            },
            problems=_problems(filled, refused),
            failure=self._failure,
            failures=self._failures,
            answered_at=self._answered_at,
        )

    def start(self, *runs: Callable[[_Watch], Coroutine[None, None, None]]) -> None:
        """Start the tasks of this fleet."""
        self._tasks = [asyncio.create_task(run(self), name=f"fleet {self.name}") for run in runs]

    async def end(self) -> None:
        """Stop the tasks of this fleet. If a plug-in does not end when it is cancelled, abandon it."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CANCEL_TIMEOUT)

    def live(self) -> object:
        """The live discovery. Raises UnavailableError while there is none."""
        return self.connection.get()

    def known(self) -> Iterator[Known]:
        """What is known of each member, as of the time of the call."""
        refused = self.refused
        for key, each in self.filled.items():
            cluster = None if each.cluster is None or key in refused else each.cluster.name
            yield Known(each.member, cluster, refused.get(key) or next(iter(each.problems), None))

    async def ask(self) -> Sequence[Member]:
        """Ask the discovery.

        Raises:
            EdgeError: the discovery did not return the members.
        """
        if self._asked is not None and not self._asked.done():
            raise UnavailableError("the previous request still hangs")
        self._asked = task = asyncio.create_task(_members(self.connection), name=f"discovery of fleet {self.name}")
        try:
            await asyncio.wait((task,), timeout=ASK_TIMEOUT)
        finally:
            if not task.done():
                task.cancel()
                task.add_done_callback(_ignore)
        if not task.done():
            raise UnavailableError(f"no answer within {ASK_TIMEOUT:g} s")
        if task.cancelled():
            raise UnavailableError(CANCELLED)
        return task.result()

    def take(self, membership: Membership, filled: Mapping[str, Filled]) -> None:
        """Replace the members, and log when members begin or cease to be missing."""
        extra = {"fleet": self.name, "members": len(self.membership.members), "missing": len(membership.held)}
        if membership.held and not self.membership.held:
            confirm = format_duration(self.spec.confirm)
            log.warning(
                "many members are missing: kept until each has been missing for the fleet's confirm time",
                extra={**extra, "confirm": confirm},
            )
        elif self.membership.held and not membership.held:
            log.info("no member is missing any more", extra=extra)
        self.unsaved = self.unsaved or filled is not self.filled
        self.membership, self.filled = membership, filled

    def renew(self, spec: FleetSpec, filled: Mapping[str, Filled]) -> None:
        """Replace the specification and the members filled with it, and poll the discovery now."""
        self.spec = spec
        self.take(self.membership, filled)
        self.asked_for.set()

    def refuse(self, refused: Mapping[str, str]) -> None:
        """Refuse these members. A held one is removed instead: another member now has its name or its target."""
        gone = refused.keys() & self.membership.held.keys()
        self.refused = {key: problem for key, problem in refused.items() if key not in gone}
        if gone:
            self.membership = self.membership.without(gone)
            self.filled = {key: each for key, each in self.filled.items() if key not in gone}
            self.unsaved = True

    def fail(self, error: str) -> bool:
        """Record that the discovery did not answer. Returns whether this error was not logged yet."""
        self._failure = error
        self._failures += 1
        return self._logged.is_new_refusal(error)

    def succeed(self, at: datetime) -> None:
        """Record an answer of the discovery."""
        if self._logged.refused:
            log.info("discovery answers again", extra={"fleet": self.name, "members": len(self.filled)})
            self._logged.refused.clear()
        if not self.filled and self._answered_at is None:
            log.warning("no member was found", extra={"fleet": self.name})
        self._failure, self._answered_at = None, at

    def report(self) -> None:
        """Log which members have joined, left, were refused, or are accepted after a refusal."""
        before, problems = self.reported, _problems(self.filled, self.refused)
        self.reported = now = {key: problems.get(key, ()) for key in self.filled}
        joined = [key for key in now.keys() - before.keys() if not now[key]]
        self._log(logging.INFO, "member joined", [self._row(key) for key in joined])
        self._log(logging.INFO, "member left", [{"member": key} for key in before.keys() - now.keys()])
        refused = [key for key, found in now.items() if found and found != before.get(key)]
        for kept, message in (
            (False, "member refused"),
            (True, "change of a member refused: its cluster keeps the previous configuration"),
        ):
            rows = [
                {"member": key, "problem": problem}
                for key in refused
                if kept is (self.filled[key].cluster is not None and key not in self.refused)
                for problem in now[key]
            ]
            self._log(logging.WARNING, message, rows)
        warnings = {
            warning: key
            for key, each in self.filled.items()
            if each.cluster is not None
            for warning in each.cluster.warnings
        }
        rows = [{"member": key, "warning": text} for text, key in warnings.items() if text not in self._warned]
        self._log(logging.WARNING, "probable mistake in a member", rows)
        self._warned = warnings.keys()
        accepted = [key for key, found in before.items() if found and key in now and not now[key]]
        self._log(logging.INFO, "member accepted", [self._row(key) for key in accepted])

    def _row(self, key: str) -> dict[str, str]:
        cluster = self.filled[key].cluster
        return {"member": key, **({} if cluster is None else {"cluster": cluster.name})}

    def _log(self, level: int, message: str, rows: Sequence[Mapping[str, str]]) -> None:
        """Log a line for each of the first `MAX_LINES` rows, and one that counts the others."""
        for row in sorted(rows, key=lambda row: row["member"])[:MAX_LINES]:
            log.log(level, message, extra={"fleet": self.name, **row})
        if len(rows) > MAX_LINES:
            log.log(level, message, extra={"fleet": self.name, "more": len(rows) - MAX_LINES})


def _problems(filled: Mapping[str, Filled], refused: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The problems of members, by their ids."""
    failed = {key: each.problems for key, each in filled.items() if each.problems}
    return failed | {key: (*failed.get(key, ()), problem) for key, problem in refused.items()}


async def find_members(config: Config, connections: Connections) -> tuple[Config, dict[str, tuple[str, ...]]]:
    """Ask every discovery once, for one-shot commands.

    Returns:
        The configuration with the members that could be added; fleet -> its problems and those of its other members.
    """

    async def find(spec: FleetSpec) -> tuple[Mapping[str, Filled], tuple[str, ...]]:
        watch = _Watch(spec, connections.lease(spec.discover))
        try:
            found = await watch.ask()
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
            return {}, (f"{config.path}: fleets.{spec.name}.discover: {format_error(error)}",)
        return await _fill(config, spec, accept(Membership(), found, 0.0, 0.0), {}, anew=True), ()

    specs = config.fleets.values()
    answers = dict(zip(config.fleets, await asyncio.gather(*map(find, specs)), strict=True))
    assembled = assemble(config, {name: _clusters(filled) for name, (filled, _) in answers.items()})
    mask.hide(*assembled.config.secrets)
    problems = {}
    for name, (filled, failure) in answers.items():
        of_members = _problems(filled, assembled.refused[name])
        problems[name] = (*failure, *(line for _, lines in sorted(of_members.items()) for line in lines))
    return assembled.config, problems


def _controls(plugin: MembersWithControls, member: Member) -> FoundControls:
    try:
        with contained():
            return FoundControls(*plugin.controls(member))
    except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
        return FoundControls(remarks=(f"the controls of {member.id} are not known: {format_error(error)}",))


def _clusters(filled: Mapping[str, Filled]) -> list[MemberCluster]:
    return [each.cluster for each in filled.values() if each.cluster is not None]


async def _members(connection: Connection) -> Sequence[Member]:
    with contained():
        await connection.tried()
        members = tuple(await connection.get().members())
    for member in members:
        if not (isinstance(member, Member) and isinstance(member.id, str)):
            raise RefusedError(f"{connection.name} gave {foreign_text(member)}, which is not a Member")
    return members


def _ignore(task: asyncio.Task[Sequence[Member]]) -> None:
    """Retrieve a result that came too late, so that the loop does not report an unretrieved exception."""
    if not task.cancelled():
        task.exception()


async def _fill(
    config: Config, spec: FleetSpec, membership: Membership, before: Mapping[str, Filled], *, anew: bool
) -> Mapping[str, Filled]:
    """Fill the template for every member whose values have changed, or, with `anew`, for all.

    Returns:
        The filled members by their ids; if nothing has changed, the same mapping object as `before`.
    """
    slices = Slices()
    filled = {}
    same = len(before) == len(membership.members)
    for key, member in membership.members.items():
        await slices.turn()
        known = before.get(key)
        if known is None or anew or known.member != member:
            filled[key] = _filled(config, spec, member, known)
            same = same and equal(filled[key], known)
        else:
            filled[key] = known
    return before if same else filled


def _filled(config: Config, spec: FleetSpec, member: Member, known: Filled | None) -> Filled:
    try:
        with contained():
            return Filled(member, member, spec.template.expand(member))
    except ConfigurationError as error:
        problems = tuple(error.problems)
    except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
        problems = (spec.template.problem(member.id, format_error(error)),)
    if known is None or known.cluster is None:
        return Filled(member, None, None, problems)
    sources = {metric.source for metric in known.cluster.cluster.metrics.values()}
    if not sources <= config.sources.keys() | known.cluster.sources.keys():
        return Filled(member, known.good, None, problems)
    return Filled(member, known.good, known.cluster, problems)
