"""Writes records and states as JSON, and validates them when it reads them. NaN and infinities become strings.

A line of the trace format omits the usual values: an empty list or text is not written, and of a guard that did not
change the size only the name is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, PlainSerializer, RootModel, ValidationError

from autoscaler.core.model import ClusterState, Decision, Learned, Observation, Reason
from autoscaler.ports import AuditEntry, Record, StoredControl
from autoscaler.trace.verdict_trail import restored, shortened

_T = TypeVar("_T")
_CONFIG = ConfigDict(ser_json_inf_nan="strings")
_SELDOM = ConfigDict(defer_build=True)  # built at the first use: most daemons never need these models

_STORED = {
    "watched_since": "since",
    "cooldown_from": "ended",
    "disturbance_ended_at": "warm_from",
    "last_missed": "missed",
    "override_times": "overruled",
}
"""Field of a state -> its key in a stored state, if that differs."""


def _words(text: object) -> list[str]:
    if not isinstance(text, str):
        raise ValueError("must be names with a space between them")  # noqa: TRY004 - pydantic reports ValueError only
    return text.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision(Decision):
    """A decision with its shortened trail.

    Attributes:
        guards: the names of all guards in their order, written with a space between them; empty: `verdicts` has the
            whole trail.
    """

    guards: Annotated[tuple[Reason, ...], BeforeValidator(_words), PlainSerializer(" ".join)] = ()


@dataclass(frozen=True, slots=True)
class _Line:
    """A record as it is written.

    Attributes:
        version: by default None and not 1, so that 1 is written; a line that lacks it is of version 1.
    """

    observation: Observation
    decision: _Decision
    version: int | None = None
    dry_run: bool = False
    failed: str = ""


class _Lines(RootModel[_Line]):
    model_config = _CONFIG


class _State(RootModel[ClusterState]):
    model_config = _CONFIG | ConfigDict(alias_generator=lambda name: _STORED.get(name, name))


class _Observation(RootModel[Observation]):
    model_config = _CONFIG | _SELDOM


class _Decided(RootModel[Decision]):
    model_config = _CONFIG | _SELDOM


class _StoredControl(RootModel[StoredControl]):
    model_config = _SELDOM


class _AuditEntry(RootModel[AuditEntry]):
    model_config = _SELDOM


_FIELDS = fields(Decision)
_lines = _Lines.__pydantic_serializer__
_state = _State.__pydantic_serializer__

VERSION = 1
"""Version of the trace format."""

TIMES = (datetime(1900, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC))
"""The range of plausible times. A clock that is not set yet shows 1970, and earlier events are older than that."""


def dump_record(record: Record) -> bytes:
    """One record as a line of JSON, without the line's end."""
    values = _fields(record.decision)
    values["guards"], values["verdicts"] = shortened(values["verdicts"], values["proposed"])
    decision = _Decision(**values)
    line = _Line(record.observation, decision, record.version, record.dry_run, record.failed)
    return _lines.to_json(_Lines.model_construct(line), exclude_defaults=True, warnings=False)


def load_record(text: bytes | str) -> Record:
    """Read a record back. Raises ValueError with one line that says what is wrong."""
    line = _load(_Lines, text)
    if line.version not in (VERSION, None):
        raise ValueError(f"version {line.version} of the trace format is not known, expected {VERSION}")
    values = _fields(line.decision)
    values["verdicts"] = restored(line.decision.guards, values["verdicts"], values["proposed"])
    decision = Decision(**values)
    return Record(line.observation, decision, VERSION, line.dry_run, line.failed)


def check_times(times: Iterable[datetime | None]) -> None:
    """Raise ValueError if the core cannot calculate with one of the times of a record or a state."""
    for time in times:
        if time is not None and (time.tzinfo is None or not TIMES[0] <= time < TIMES[1]):
            raise ValueError(f"it has the time {time.isoformat()}, expected one from {TIMES[0].year} on, with its zone")


def call_failure(record: Record, newer: Record | None) -> str | None:
    """Why the scale call of a decision failed, according to the record after it; None: it did not fail."""
    return newer.failed or None if newer is not None and record.decision.rescale else None


def _fields(decision: Decision) -> dict[str, Any]:
    return {field.name: getattr(decision, field.name) for field in _FIELDS}


def dump_state(state: ClusterState) -> bytes:
    """A state as JSON, without its past, which the records have."""
    return _state.to_json(_State.model_construct(state), exclude={"past"}, by_alias=True, warnings=False)


def load_state(text: bytes | str) -> ClusterState:
    """Read a state back. Raises ValueError with one line that says what is wrong."""
    state = _load(_State, text)
    return replace(state, learned=_sound(state.learned))


def _sound(learned: Learned) -> Learned:
    """Drop numbers that are not finite: they would spoil everything learned from them. They are learned again."""
    finite = math.isfinite
    return Learned(
        {size: seen for size, seen in learned.capacity.items() if finite(seen.rate)},
        {
            direction: {phase: last for phase, last in phases.items() if all(map(finite, last))}
            for direction, phases in learned.durations.items()
        },
        {
            policy: {name: number for name, number in memory.items() if finite(number)}
            for policy, memory in learned.memory.items()
        },
        {
            direction: tuple(each for each in times if all(number is None or finite(number) for number in each))
            for direction, times in learned.times.items()
        },
    )


def dump_control(stored: StoredControl) -> bytes:
    """A manual control as JSON, without its id."""
    text = _StoredControl.model_construct(stored).model_dump_json(exclude={"id"}, exclude_defaults=True)
    return text.encode()


def load_control(identity: int, text: bytes | str) -> StoredControl:
    """Read a manual control back. Raises ValueError with one line that says what is wrong."""
    return replace(_load(_StoredControl, text), id=identity)


def dump_audit(entry: AuditEntry) -> bytes:
    """An entry of the audit as JSON."""
    return _AuditEntry.model_construct(entry).model_dump_json(exclude_defaults=True).encode()


def load_audit(text: bytes | str) -> AuditEntry:
    """Read an entry of the audit back. Raises ValueError with one line that says what is wrong."""
    return _load(_AuditEntry, text)


def to_json(thing: Observation | Decision | ClusterState | StoredControl | AuditEntry) -> object:
    """Convert to JSON values for the API. This goes through JSON text, because only text writes infinities."""
    if isinstance(thing, ClusterState):
        return json.loads(dump_state(thing))
    return json.loads(_SHOWN[type(thing)].model_construct(thing).model_dump_json(warnings=False))


_SHOWN: Mapping[type, type[RootModel[Any]]] = {
    Observation: _Observation,
    Decision: _Decided,
    StoredControl: _StoredControl,
    AuditEntry: _AuditEntry,
}


def _load(model: type[RootModel[_T]], text: bytes | str) -> _T:
    """Read JSON by a model. Raises ValueError with one line that says what is wrong."""
    try:
        return model.model_validate_json(text).root
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error


def first_problem(error: ValidationError) -> str:
    """The place and the message of the first problem, in one line."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])
