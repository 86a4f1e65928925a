"""The HTTP endpoints that set controls, request a decision, and list controls and the audit."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from aiohttp import web
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from autoscaler.core.durations import parse_duration
from autoscaler.core.explain import describe_control
from autoscaler.core.model import MAX_REPLICAS, Control, ControlKind
from autoscaler.core.parameters import ParameterError
from autoscaler.core.wording import list_of
from autoscaler.daemon.controller import NOT_OBSERVED
from autoscaler.daemon.controls import RESUME, describe_scope, matches
from autoscaler.daemon.event_loop import Slices
from autoscaler.daemon.http_access import ACCESS
from autoscaler.daemon.http_requests import (
    CONNECTIONS,
    STATUS,
    WhatIfRequest,
    body_of,
    control_document,
    controller_of,
    decision_document,
    failure_of,
    limit_of,
    time_text,
    until_of,
)
from autoscaler.daemon.openapi import document
from autoscaler.daemon.status import DaemonStatus, fleet_of
from autoscaler.ports import AuditEntry, Record, StoredControl

DEFAULT_TIME = timedelta(hours=1)
"""How long a control lasts if the request does not say."""

LONGEST_TIME = timedelta(days=366)

DECIDE_TIMEOUT = 60.0
"""Seconds that a requested decision may take: the tick in progress, one more, and their scale calls."""

_MAX_NAMES = 100
_MAX_NAMED = 20  # most names in an error message

_BOTH = "If neither up nor down is given, both are paused."


def _on_one_line(text: str) -> str:
    """Check a text that is shown on terminals of others: it must not move the cursor or reverse the text direction."""
    text = " ".join(text.split())
    if not text.isprintable():
        raise ValueError(f"is {text!r}, expected characters that can be printed")
    return text


Name = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_on_one_line)]
Size = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]
Words = Annotated[str, StringConstraints(max_length=500), AfterValidator(_on_one_line)]


class ControlRequest(BaseModel):
    """A pause, hold, limit or resume of all clusters that one of the names or patterns matches."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    action: Literal["pause", "hold", "limit", "resume"]
    clusters: list[Name] = Field(default=[], max_length=_MAX_NAMES, description="Names, or patterns such as `prod-*`.")
    fleets: list[Name] = Field(default=[], max_length=_MAX_NAMES, description="All clusters of these fleets.")
    up: bool | None = Field(default=None, description=f"Pause only: stop scaling up. {_BOTH}")
    down: bool | None = Field(default=None, description=f"Pause only: stop scaling down. {_BOTH}")
    replicas: Size | None = Field(default=None, description="Hold only: the size, in replicas.")
    minimum: Size | None = Field(default=None, alias="min", description="Limit only: the smallest size, in replicas.")
    maximum: Size | None = Field(default=None, alias="max", description="Limit only: the largest size, in replicas.")
    lasting: str | None = Field(
        default=None, alias="for", description="How long it lasts, such as `2h`; at most 366d. Default: 1h."
    )
    until_resumed: bool = Field(default=False, description="The control lasts until a resume.")
    reason: Words | None = Field(default=None, description="Why. It is shown with the control.")

    @field_validator("lasting")
    @classmethod
    def _is_a_time(cls, text: str | None) -> str | None:
        if text is not None and not timedelta(0) < parse_duration(text) <= LONGEST_TIME:
            raise ValueError(f"is {text}, expected above 0s and at most {LONGEST_TIME.days}d")
        return text

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not (self.clusters or self.fleets):
            raise ValueError("names no cluster: give clusters, fleets or both")
        own = {"pause": {"up", "down"}, "hold": {"replicas"}, "limit": {"minimum", "maximum"}, "resume": set[str]()}
        times = {"lasting", "until_resumed"} if self.action != RESUME else set()
        allowed = {"action", "clusters", "fleets", "reason", *own[self.action], *times}
        given = {field for field in self.model_fields_set if getattr(self, field) not in (None, False)}
        wrong = sorted(map(_written, given - allowed))
        if wrong:
            raise ValueError(f"{self.action} takes no {' and no '.join(wrong)}")
        if self.lasting is not None and self.until_resumed:
            raise ValueError("for and until_resumed contradict each other: give one of them")
        if self.action == "pause" and self.directions == (False, False):
            raise ValueError("pauses nothing: up or down must be true")
        if self.action == "hold" and self.replicas is None:
            raise ValueError("hold needs replicas")
        if self.action == "limit" and self.minimum is None and self.maximum is None:
            raise ValueError("limit needs min, max or both")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(f"min is {self.minimum}, expected at most max ({self.maximum})")
        return self

    @property
    def directions(self) -> tuple[bool, bool]:
        """Whether a pause stops scaling up, and scaling down; both if the request names neither."""
        if self.up is None and self.down is None:
            return True, True
        return bool(self.up), bool(self.down)

    def control(self, by: str) -> Control | None:
        """The control; None: a resume, which ends all earlier controls."""
        if self.action == RESUME:
            return None
        kind = ControlKind(self.action)
        up, down = self.directions if kind is ControlKind.PAUSE else (False, False)
        return Control(
            kind=kind,
            by=by,
            up=up,
            down=down,
            replicas=self.replicas,
            minimum=self.minimum,
            maximum=self.maximum,
        )

    def until(self, now: datetime) -> datetime | None:
        """When the control expires, or None."""
        if self.until_resumed or self.action == RESUME:
            return None
        return now + (DEFAULT_TIME if self.lasting is None else parse_duration(self.lasting))


class DecideRequest(BaseModel):
    """A request for a decision now, before the next tick is due."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    reason: Words | None = Field(default=None, description="Why, for the audit.")


def routes() -> list[web.RouteDef]:
    """The endpoints of this module."""
    return [
        web.post("/api/v1/controls", _add_control),
        web.get("/api/v1/controls", _controls),
        web.get("/api/v1/audit", _audit),
        web.post("/api/v1/clusters/{name:.+}/decide", _decide),
        web.get("/api/v1/openapi.json", _openapi),
    ]


async def _add_control(request: web.Request) -> web.Response:
    status, by = request.app[STATUS], request.app[ACCESS].caller(request)
    asked = await body_of(request, ControlRequest)
    clusters = await _matching(status, asked)
    now = status.utc()
    try:
        stored = await status.controls.add(
            asked.control(by), asked.clusters, asked.fleets, by=by, reason=asked.reason or None, until=asked.until(now)
        )
    except ParameterError as error:
        # The request was valid: the machine's clock is outside the range of times that a control accepts.
        shown = f"{now:%Y-%m-%d %H:%M:%S} UTC"
        raise web.HTTPServiceUnavailable(
            text=f"nothing is set: the clock of the daemon's machine shows {shown}; set it, and try again"
        ) from error
    answer: dict[str, object] = {"id": stored.id, "until": time_text(stored.until), "clusters": clusters}
    answer["held_at"] = _held_at(status, asked.replicas, clusters)
    answer["preceded_by"] = await preceded_by(status, stored.control, clusters)
    return web.json_response(answer, status=201)


def _held_at(status: DaemonStatus, replicas: int | None, clusters: Iterable[str]) -> dict[str, int]:
    """The clusters that `min` and `max` of their configuration hold at another size than the requested one."""
    if replicas is None:
        return {}
    known = status.clusters
    limits = {name: known[name].spec.limits for name in clusters if name in known}
    sizes = {name: max(each.minimum, min(replicas, each.maximum)) for name, each in limits.items()}
    return {name: size for name, size in sizes.items() if size != replicas}


async def preceded_by(status: DaemonStatus, control: Control | None, clusters: Iterable[str]) -> dict[str, list[str]]:
    """The controls in force that take precedence over the requested one, as a pause does over a hold, by cluster."""
    if control is None:
        return {}
    kinds, slices = [*ControlKind], Slices()
    before, now, found = kinds[: kinds.index(control.kind)], status.utc(), {}
    for name in clusters:
        await slices.turn()
        controller = status.controllers.get(name)  # it knows annotations; those on clusters of other copies are unknown
        if controller is None:
            in_force = status.controls.in_force(name, fleet_of(status.members, name), now)
        else:
            in_force = controller.controls
        if described := [describe_control(each) for each in in_force if each.kind in before]:
            found[name] = described
    return found


async def _controls(request: web.Request) -> web.Response:
    status = request.app[STATUS]
    now, members, slices = status.utc(), status.members, Slices()
    listed = status.controls.listing(now)
    in_force: dict[int, list[str]] = {each.id: [] for each in listed}
    waiting = {*in_force}
    for name in sorted(status.clusters):
        await slices.turn()
        fleet = fleet_of(members, name)
        controls = status.controls.in_force(name, fleet, now)
        for each in listed:
            if matches(each, name, fleet):
                waiting.discard(each.id)
                if any(control is each.control for control in controls):
                    in_force[each.id].append(name)
    # Omit controls that later ones have replaced or resumed for all of their clusters.
    shown = [_shown(each, in_force[each.id]) for each in listed if in_force[each.id] or each.id in waiting]
    return web.json_response({"controls": shown})


async def _audit(request: web.Request) -> web.Response:
    entries = await request.app[STATUS].store.audit(limit_of(request), until_of(request))
    return web.json_response({"entries": [{**dataclasses.asdict(each), "at": time_text(each.at)} for each in entries]})


async def _decide(request: web.Request) -> web.Response:
    status, by = request.app[STATUS], request.app[ACCESS].caller(request)
    controller = controller_of(status, request.match_info["name"])
    asked = await body_of(request, DecideRequest) if request.can_read_body else DecideRequest()
    entry = AuditEntry(
        at=status.utc(),
        by=by,
        action="decide",
        scope=describe_scope([controller.name], ()),
        reason=asked.reason or None,
    )
    request.app[CONNECTIONS].extend(request.protocol, DECIDE_TIMEOUT)
    await status.store.add_audit(entry)
    before = controller.decision
    try:
        async with asyncio.timeout(DECIDE_TIMEOUT):
            await controller.decide_now()
    except TimeoutError as error:
        raise web.HTTPServiceUnavailable(text=f"nothing was decided within {DECIDE_TIMEOUT:g} s") from error
    observation, decision, state = controller.observation, controller.decision, controller.state
    why = controller.problem
    if why is not None or observation is None or decision is None or decision is before:
        if why in (None, NOT_OBSERVED):
            why = "the cluster was reconfigured, removed or handed over, or the daemon stops"
        raise web.HTTPServiceUnavailable(text=f"nothing was decided: {why}")
    record = Record(observation, decision, dry_run=controller.dry_run)
    return web.json_response({"cluster": controller.name, **decision_document(record, failure_of(state, decision))})


async def _openapi(_: web.Request) -> web.Response:
    return web.json_response(document(ControlRequest, DecideRequest, WhatIfRequest))


def _written(field: str) -> str:
    """The key of a field in the body of a request."""
    return ControlRequest.model_fields[field].alias or field


async def _matching(status: DaemonStatus, asked: ControlRequest) -> list[str]:
    """The names of the clusters that a request matches now. Raises HTTPNotFound if a name or pattern matches none."""
    members, slices = status.members, Slices()
    control = StoredControl(
        clusters=tuple(asked.clusters), fleets=tuple(asked.fleets), control=None, by="", at=status.utc()
    )
    found = []
    for name in sorted(status.clusters):
        await slices.turn()
        if matches(control, name, fleet_of(members, name)):
            found.append(name)
    await _refuse_unmatched("cluster", asked.clusters, sorted(status.clusters), slices)
    await _refuse_unmatched("fleet", asked.fleets, [fleet.name for fleet in status.fleets], slices)
    return found


async def _refuse_unmatched(what: str, patterns: Iterable[str], known: Sequence[str], slices: Slices) -> None:
    names = {*known}
    for pattern in patterns:
        await slices.turn()
        if pattern not in names and not any(fnmatchcase(name, pattern) for name in known):
            there = list_of(known, _MAX_NAMED) or "none"
            raise web.HTTPNotFound(text=f"no {what} matches {pattern!r}; there are: {there}")


def _shown(stored: StoredControl, in_force: list[str]) -> dict[str, object]:
    assert stored.control is not None  # noqa: S101 - resumes are not listed
    scope = {"clusters": stored.clusters, "fleets": stored.fleets, "in_force": in_force}
    return {"id": stored.id, **scope, **control_document(stored.control)}
