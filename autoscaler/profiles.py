"""Profiles as JSON files, one for each cluster, validated when they are read back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import ConfigDict, RootModel, ValidationError

from autoscaler.core.profile import Profile, Season

FORMAT = "autoscaler-profile"
VERSION = 1
SUFFIX = ".json"

_PLAIN = re.compile(r"[\w.-]+")
_DIGITS = 6


class _Profile(RootModel[Profile]):
    model_config = ConfigDict(ser_json_inf_nan="strings")


def name(cluster: str) -> str:
    """The file of a cluster's profile. What a file's name cannot hold is written as %XX."""
    safe = "".join(
        letter if _PLAIN.fullmatch(letter) else "".join(f"%{byte:02X}" for byte in letter.encode())
        for letter in cluster
    )
    return (f"%2E{safe[1:]}" if safe.startswith(".") else safe) + SUFFIX


def dump(profile: Profile) -> str:
    """A profile as JSON, its numbers with six digits."""
    whole = {"format": FORMAT, "version": VERSION, **_Profile.model_construct(profile).model_dump(mode="json")}
    return json.dumps(_rounded(whole)) + "\n"


def load(text: bytes | str) -> Profile:
    """Read a profile back. Raises ValueError with one line that says what is wrong."""
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise ValueError(f"is no profile: expected an object with format {FORMAT!r}")
    version = whole.get("version")
    if version != VERSION:
        raise ValueError(f"version {version!r} of the profile's format is not known, expected {VERSION}")
    body = {key: value for key, value in whole.items() if key not in ("format", "version")}
    try:
        profile = _Profile.model_validate(body, strict=False).root
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ValueError(f"{where}: {problem['msg']}" if where else str(problem["msg"])) from error
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


def _check(season: Season) -> None:
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


def _rounded(thing: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(thing, float):
        return float(f"{thing:.{_DIGITS}g}")
    if isinstance(thing, dict):
        return {key: _rounded(value) for key, value in thing.items()}
    if isinstance(thing, list):
        return [_rounded(value) for value in thing]
    return thing
