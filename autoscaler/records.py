"""Records and states as JSON, validated when they are read back. A number that JSON lacks becomes a text."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from pydantic import ConfigDict, RootModel, ValidationError

from autoscaler.core.model import ClusterState, Decision, Learned, Observation
from autoscaler.ports import Record

_CONFIG = ConfigDict(ser_json_inf_nan="strings")


class _Record(RootModel[Record]):
    model_config = _CONFIG


class _State(RootModel[ClusterState]):
    model_config = _CONFIG


class _Observation(RootModel[Observation]):
    model_config = _CONFIG


class _Decision(RootModel[Decision]):
    model_config = _CONFIG


_record = _Record.__pydantic_serializer__
_state = _State.__pydantic_serializer__

VERSION = 1
"""Version of the trace format."""


def dump_record(record: Record) -> bytes:
    """One record as a line of JSON, without the line's end."""
    return _record.to_json(_Record.model_construct(record), warnings=False)


def load_record(text: bytes | str) -> Record:
    """Read a record back. Raises ValueError with one line that says what is wrong."""
    try:
        record = _Record.model_validate_json(text).root
    except ValidationError as error:
        raise ValueError(_first(error)) from error
    if record.version != VERSION:
        raise ValueError(f"version {record.version} of the trace format is not known, expected {VERSION}")
    return record


def dump_state(state: ClusterState) -> bytes:
    """A state as JSON, without the past, which is in the records."""
    return _state.to_json(_State.model_construct(state), exclude={"past"}, warnings=False)


def load_state(text: bytes | str) -> ClusterState:
    """Read a state back. Raises ValueError with one line that says what is wrong."""
    try:
        state = _State.model_validate_json(text).root
    except ValidationError as error:
        raise ValueError(_first(error)) from error
    return replace(state, learned=_sound(state.learned))


def _sound(learned: Learned) -> Learned:
    """Without what is no finite number: it would spoil all that is learned on top of it, and is learned anew."""
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
    )


def plain(thing: Observation | Decision | ClusterState) -> object:
    """The same as JSON values, for the API. By way of the text, as only that knows how to write an infinity."""
    match thing:
        case Observation():
            text = _Observation.model_construct(thing).model_dump_json(warnings=False)
        case Decision():
            text = _Decision.model_construct(thing).model_dump_json(warnings=False)
        case ClusterState():
            text = dump_state(thing).decode()
    return json.loads(text)


def _first(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])
