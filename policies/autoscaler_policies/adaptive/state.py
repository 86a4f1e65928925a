"""The state that `adaptive` keeps between decisions: typed records, stored as numbers by name.

A number is stored as `section.field`. Names of times end in `_at`, as the core shifts these when the clock is set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from autoscaler_policies.adaptive.capacity_model import Capacity, Idle, Saturation
from autoscaler_policies.adaptive.forecast import NORMAL_RATIO, Arrivals, Lasting
from autoscaler_policies.adaptive.plateau import Throughput
from autoscaler_policies.adaptive.seasonality import Season

VERSION = 2.0
"""Version 1 did not store a version: its present names and those in `_FORMER` are read. A later version is not read."""
VERSION_NAME = "state.version"


@dataclass(slots=True)
class Checkpoint:
    """The interval of checkpoints, seconds (None: not seen), and the time of the last one, seconds since 1970."""

    interval: float | None = None
    seen_at: float | None = None


@dataclass(slots=True)
class Behind:
    """Since when the job has been behind and busy (None: it is not), and the last check of that, seconds since 1970."""

    since_at: float | None = None
    seen_at: float | None = None


@dataclass(slots=True)
class Spare:
    """What fewer replicas would have saved.

    Attributes:
        seen_at: when it was last computed, seconds since 1970.
        since_at: since when it is counted, seconds since 1970.
        size: the size of the cluster at `seen_at`; None: never computed.
        enough: the smallest size that would be enough; None: unknown.
        saved: replica-seconds.
    """

    seen_at: float | None = None
    since_at: float = math.inf
    size: int | None = None
    enough: int | None = None
    saved: float = 0.0


@dataclass(slots=True)
class State:
    """The whole state; the type of each field describes it.

    Attributes:
        climb: the capacity of a smaller size from before the policy asked for more.
        plateau: the size from which more workers did not help.
    """

    arrivals: Arrivals = field(default_factory=Arrivals)
    lasting: Lasting = field(default_factory=Lasting)
    season: Season = field(default_factory=Season)
    capacity: Capacity = field(default_factory=Capacity)
    idle: Idle = field(default_factory=Idle)
    saturation: Saturation = field(default_factory=Saturation)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    behind: Behind = field(default_factory=Behind)
    spare: Spare = field(default_factory=Spare)
    climb: Throughput = field(default_factory=Throughput)
    plateau: Throughput = field(default_factory=Throughput)

    @classmethod
    def load(cls, memory: Mapping[str, float]) -> State:
        """Read a stored state. Unknown names are ignored, and so is everything of a later version than this one."""
        state = cls()
        if memory.get(VERSION_NAME, VERSION) > VERSION:
            return state
        for name, number in memory.items():
            place = _PLACES.get(name) or _FORMER.get(name)
            if place is not None and math.isfinite(number):
                section, of, kind = place
                setattr(getattr(state, section), of, number if kind is float else kind(number))
        lasting = state.lasting
        if "lasting.absolute" not in memory and lasting.square > 0 and lasting.weight > 0:  # from before it was stored
            lasting.absolute = math.sqrt(lasting.square / lasting.weight) * lasting.weight / NORMAL_RATIO
        return state

    def dump(self) -> dict[str, float]:
        """The state to store, as finite numbers by name."""
        found = {VERSION_NAME: VERSION}
        for name, (section, of, _) in _PLACES.items():
            number = getattr(getattr(self, section), of)
            if number is not None and -math.inf < number < math.inf:
                found[name] = float(number)
        return found


_KINDS: Mapping[str, type[float]] = {"bool": bool, "int | None": int}
_PLACES = {
    f"{section.name}.{of.name}": (section.name, of.name, _KINDS.get(str(of.type), float))
    for section in fields(State)
    for of in fields(getattr(State(), section.name))
}
"""Name of a number -> its section, its field and its type."""
_FORMER = {
    **{f"capacity.line.{of.name}": _PLACES[f"idle.{of.name}"] for of in fields(Idle)},
    "season.same": _PLACES["season.unchanged"],
}
"""Names of version 1, still read: without idle CPU, the capacity of a job with little load would seem much lower."""
