"""Helpers that the HTTP handlers share: keys of the application, parsing of requests, and documents of decisions."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from aiohttp import hdrs, web
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from autoscaler.core.durations import parse_duration
from autoscaler.core.explain import describe_control, explain
from autoscaler.core.model import ClusterState, Control, Decision
from autoscaler.daemon.controller import Controller
from autoscaler.daemon.status import DaemonStatus
from autoscaler.http_connections import Connections
from autoscaler.ports import Record, StoreError
from autoscaler.trace.codec import load_record, to_json

Model = TypeVar("Model", bound=BaseModel)

MAX_LISTED = 10_000
"""Most decisions, or entries of the audit, in one answer."""

CONNECTIONS: web.AppKey[Connections] = web.AppKey("connections")
"""The connections of an application."""

STATUS: web.AppKey[DaemonStatus] = web.AppKey("status")
"""The status of the daemon that an application belongs to."""

BUSY: web.AppKey[asyncio.Lock] = web.AppKey("what-if")
"""The lock that allows one simulation of `what-if` at a time."""

_LONGEST_SHOWN = 60


class WhatIfRequest(BaseModel):
    """The objective or policies to simulate, and the time range whose recorded load is used."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    objective: str | None = Field(default=None, max_length=40, description="Another objective, such as `30s`.")
    policies: dict[str, Any] | None = Field(default=None, description="Other policies, as in a configuration file.")
    since: AwareDatetime | None = Field(default=None, alias="from", description="Default: an hour before `until`.")
    until: AwareDatetime | None = Field(default=None, description="Default: now.")

    @field_validator("objective")
    @classmethod
    def _is_a_time(cls, text: str | None) -> str | None:
        if text is not None:
            parse_duration(text)
        return text

    @model_validator(mode="after")
    def _differs(self) -> Self:
        if self.objective is None and self.policies is None:
            raise ValueError("nothing is different: give objective, policies or both")
        return self


def controller_of(status: DaemonStatus, name: str) -> Controller:
    """The controller of a cluster. Raises HTTPNotFound, which lists the known clusters."""
    controller = status.controllers.get(name)
    if controller is None:
        for fleet in status.fleets:
            if name in fleet.problems:
                why = "; ".join(fleet.problems[name])
                raise web.HTTPNotFound(text=f"there is no cluster {name!r}; the fleet {fleet.name} has refused: {why}")
        known = ", ".join(sorted(status.clusters)[:20]) or "none"
        raise web.HTTPNotFound(text=f"there is no cluster {name!r}; there are: {known}")
    return controller


def limit_of(request: web.Request) -> int:
    """The parameter `limit` of a query. Raises HTTPBadRequest."""
    return number_of(request, "limit", 20, 1, MAX_LISTED)


def number_of(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    """A parameter of a query that is a number. Raises HTTPBadRequest."""
    text = request.query.get(name, str(default))
    # Do not convert long texts: for thousands of digits Python raises another error.
    if not text.isdecimal() or len(text) > len(str(most)) or not least <= int(text) <= most:
        shown = text[:_LONGEST_SHOWN]
        raise web.HTTPBadRequest(text=f"{name} is {shown!r}, expected a number from {least} to {most}")
    return int(text)


def until_of(request: web.Request) -> datetime | None:
    """The parameter `until` of a query. Raises HTTPBadRequest."""
    return time_of(request, "until")


def time_of(request: web.Request, name: str) -> datetime | None:
    """A parameter of a query that is a time, UTC by default. Raises HTTPBadRequest."""
    text = request.query.get(name)
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        shown = text[:_LONGEST_SHOWN]
        raise web.HTTPBadRequest(text=f"{name} is {shown!r}, expected a time like 2026-01-31T17:05:00Z") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def record_of(line: bytes) -> Record:
    """Parse a decision from a line of the state store. Raises StoreError."""
    try:
        return load_record(line)
    except ValueError as error:
        raise StoreError(f"a decision cannot be read: {error}") from error


def failure_of(state: ClusterState | None, decision: Decision) -> str | None:
    """Why the scale call of the last decision failed, or None."""
    rescale = None if state is None else state.rescale
    return rescale.error if rescale is not None and rescale.at == decision.at else None


def time_text(at: datetime | None) -> str | None:
    """A time in an answer."""
    return None if at is None else at.isoformat()


def decision_document(record: Record, failed: str | None) -> dict[str, object]:
    """A decision with its observation and its explanation; `failed` is why its scale call has failed."""
    return {
        "observation": to_json(record.observation),
        "decision": to_json(record.decision),
        "dry_run": record.dry_run,
        "explanation": explain(record.observation, record.decision, dry_run=record.dry_run, failed=failed),
    }


def control_document(control: Control) -> dict[str, object]:
    """A control, also as a sentence."""
    return {
        "kind": control.kind.value,
        "by": control.by,
        "at": time_text(control.at),
        "until": time_text(control.until),
        "reason": control.reason,
        "up": control.up,
        "down": control.down,
        "replicas": control.replicas,
        "min": control.minimum,
        "max": control.maximum,
        "text": describe_control(control),
    }


async def read_body(request: web.Request) -> bytes:
    """The body of a request. Raises HTTPRequestEntityTooLarge, RequestPayloadError and ConnectionResetError."""
    with request.app[CONNECTIONS].receiving(request.protocol):
        return await request.read()


async def body_of(request: web.Request, model: type[Model]) -> Model:
    """The parsed body of a request.

    Raises HTTPBadRequest, HTTPUnsupportedMediaType and HTTPRequestEntityTooLarge.
    """
    if request.content_type != "application/json":
        shown = request.headers.get(hdrs.CONTENT_TYPE, "nothing")[:100]
        raise web.HTTPUnsupportedMediaType(text=f"the Content-Type is {shown}, expected application/json")
    try:
        return model.model_validate_json(await read_body(request))
    except ValidationError as error:
        raise web.HTTPBadRequest(text="; ".join(map(_problem, error.errors(include_url=False)))) from error


def _problem(error: ErrorDetails) -> str:
    """A problem of a body, with the key that it refers to."""
    place = ".".join(map(str, error["loc"]))
    message = error["msg"].removeprefix("Value error, ")
    return f"{place}: {message}" if place else message
