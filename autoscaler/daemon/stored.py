"""The formats in which both state stores keep states and members, and their limits of size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import datetime

from autoscaler.core.model import ClusterState, Observation
from autoscaler.core.state import rebase
from autoscaler.ports import Member
from autoscaler.trace.codec import check_times, load_record, load_state

MAX_BYTES = 16 * 2**20
"""Most bytes of decisions kept for one cluster. Decisions that its state needs are kept in any case."""

PAGE = 64 * 1024
"""About how many bytes of decisions are read at once."""


def restore(state: bytes, records: Iterable[bytes]) -> ClusterState:
    """A state with its past: the observations of these records, oldest first. Raises ValueError if one is invalid."""
    loaded, past = load_state(state), tuple(load_record(record).observation for record in records)
    check_times(_times((loaded, past)))
    return replace(loaded, past=_past(past))


def restore_member(key: bytes, found: bytes) -> Member:
    """A stored member. Raises ValueError if it is invalid."""
    values, template = json.loads(found), None
    if isinstance(values, list):
        values, template = values
    if not isinstance(values, dict):
        raise ValueError("a member has no values")  # noqa: TRY004 - the stored value is wrong
    return Member(key.decode(errors="surrogatepass"), values, template=template)


def dump_member(member: Member) -> bytes:
    """The values of a member as JSON, or a list of these and its own template."""
    values = _texts(member.values)
    stored = values if member.template is None else [values, member.template]
    return json.dumps(stored).encode()


def dump_id(key: str) -> bytes:
    """The id of a member as bytes: it comes from outside and may not be valid text for a database."""
    return key.encode(errors="surrogatepass")


def _texts(values: Mapping[str, object]) -> dict[str, str | dict[str, str]]:
    """The values of a member that a template can use. A plug-in may return other values, which are omitted."""
    found: dict[str, str | dict[str, str]] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found[str(name)] = {
                key: inner for key, inner in value.items() if isinstance(key, str) and isinstance(inner, str)
            }
        elif isinstance(value, str):
            found[str(name)] = value
    return found


def _times(thing: object) -> Iterator[datetime]:
    """All times in a state."""
    if isinstance(thing, datetime):
        yield thing
    elif is_dataclass(thing):
        for field in fields(thing):
            yield from _times(getattr(thing, field.name))
    elif isinstance(thing, Mapping | tuple):
        for part in thing.values() if isinstance(thing, Mapping) else thing:
            yield from _times(part)


def _past(observations: Iterable[Observation]) -> tuple[Observation, ...]:
    """The past as the core had it: when the clock was set back, earlier observations were shifted with it."""
    past: tuple[Observation, ...] = ()
    before: datetime | None = None
    for observation in observations:
        if before is not None and observation.at < before:
            past = rebase(ClusterState(past=past), observation.at - before).past
        past = (*past, observation)
        before = observation.at
    return past
