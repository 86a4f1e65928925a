"""Profiles as JSON files, one for each cluster, validated when they are read.

Spark's workers write profiles, and have only the packages that Spark needs: pydantic is imported only for reading.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from autoscaler.core.workload_profile import Profile, Season, local_seconds

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FORMAT = "autoscaler-profile"
VERSION = 1
SUFFIX = ".json"

_PLAIN = re.compile(r"[\w.-]+")
_DIGITS = 6


def file_name(cluster: str) -> str:
    """The name of the file of a cluster's profile. Characters that a file name cannot have are written as %XX."""
    safe = "".join(
        letter if _PLAIN.fullmatch(letter) else "".join(f"%{byte:02X}" for byte in letter.encode())
        for letter in cluster
    )
    return (f"%2E{safe[1:]}" if safe.startswith(".") else safe) + SUFFIX


def dump(profile: Profile) -> str:
    """A profile as JSON, its numbers with six digits."""
    return json.dumps({"format": FORMAT, "version": VERSION, **_plain(profile)}) + "\n"


def _plain(thing: Any) -> Any:  # noqa: ANN401 - any part of a profile, as a JSON value
    if isinstance(thing, float):
        return float(f"{thing:.{_DIGITS}g}") if math.isfinite(thing) else str(thing)
    if isinstance(thing, datetime):
        return thing.astimezone(UTC).isoformat().replace("+00:00", "Z") if thing.tzinfo else thing.isoformat()
    if is_dataclass(thing):
        return {each.name: _plain(getattr(thing, each.name)) for each in fields(thing)}
    if isinstance(thing, Mapping):
        return {key: _plain(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        # The fast path for the rates of a week, which are nearly all of a profile. One NaN or infinity spoils the sum.
        if set(map(type, thing)) == {float} and math.isfinite(sum(thing)):
            return [float(f"{value:.{_DIGITS}g}") for value in thing]
        return [_plain(value) for value in thing]
    return thing


def load(text: bytes | str) -> Profile:
    """Read a profile. Raises ValueError with one line that says what is wrong."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise ValueError(f"is not a profile: expected an object with format {FORMAT!r}")
    version = whole.get("version")
    if version != VERSION:
        raise ValueError(f"version {version!r} of the profile format is not supported, expected {VERSION}")
    body = {key: value for key, value in whole.items() if key not in ("format", "version")}
    profile = _validated(body)
    if not all(map(math.isfinite, _numbers(profile))):
        raise ValueError("has a number that is not finite")
    season = profile.season
    if season is not None:
        _check(season)
    for what in ("made_at", "begin", "end"):
        if getattr(profile, what).tzinfo is None:
            raise ValueError(f"{what}: has no time zone")
    curve = profile.capacity
    if curve is not None and not (curve.rate > 0 and curve.exponent > 0):
        raise ValueError("capacity: expected a rate and an exponent above 0")
    return profile


def _validated(body: dict[str, Any]) -> Profile:
    from pydantic import ValidationError  # noqa: PLC0415 - see above

    from autoscaler.trace.codec import first_problem  # noqa: PLC0415 - it imports pydantic

    try:
        return _reader().validate_python(body, strict=False)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error


@cache
def _reader() -> TypeAdapter[Profile]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - see above

    return TypeAdapter(Profile)


def _check(season: Season) -> None:
    local_seconds(0.0, season.time_zone)
    lengths = {len(season.usual), len(season.low), len(season.high)}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError("season: expected usual, low and high with equally many slots, at least one")
    if min(*season.usual, *season.low, *season.high, 0.0) < 0:
        raise ValueError("season: expected 0 records/s or more in each slot")


def _numbers(thing: object) -> Iterator[float]:
    if isinstance(thing, float):
        yield thing
    elif is_dataclass(thing):
        for each in fields(thing):
            yield from _numbers(getattr(thing, each.name))
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from _numbers(value)
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            yield from _numbers(value)
