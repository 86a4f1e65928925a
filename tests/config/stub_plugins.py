"""Plug-ins with parameters of every type; the tests install them as a separate distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal

from autoscaler.core.model import Reason, Recommendation, View
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import Secret, Shared


@dataclass(frozen=True, slots=True)
class StubQuery:
    """One metric.

    Attributes:
        name: what to read.
        factor: what to multiply it by.
        match: labels that pick the sample.
    """

    name: str
    factor: float = 1.0
    match: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StubSource:
    """A source that is never opened.

    Attributes:
        url: address of the server.
        token: bearer token.
        headers: further headers.
        timeout: time for one answer, above 0s.
    """

    Query: ClassVar[type] = StubQuery
    url: str
    token: Secret | None = None
    headers: Mapping[str, Secret] = field(default_factory=dict)
    timeout: timedelta = timedelta(seconds=3)

    def __post_init__(self) -> None:
        if self.timeout <= timedelta(0):
            raise ParameterError("timeout", "must be above 0s")
        if self.token == "refused":
            raise ParameterError("token", f"{self.token} does not fit the url")

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OddQuery:
    """One metric with a failing attribute.

    Attributes:
        fails: which attribute fails.
        share: how much of it.
    """

    fails: str = ""
    share: float = 0.5

    @property
    def doubts(self) -> object:
        if self.fails == "doubts":
            raise KeyError("oops")
        return [("share", "is doubtful"), 7] if self.fails else 7

    @property
    def ages(self) -> object:
        if self.fails == "ages":
            raise KeyError("oops")
        return 7


@dataclass(frozen=True, slots=True)
class FailingShare:
    """One metric whose attribute raises."""

    @property
    def share(self) -> bool:
        raise KeyError("oops")


@dataclass(frozen=True, slots=True)
class OddSource:
    """A source with a query that fails, or with a look-alike that has more attributes."""

    Query: ClassVar[type] = OddQuery

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError

    def check_query(self, query: Any) -> None:
        match getattr(query, "fails", ""):
            case "refused":
                raise ParameterError("fails", "is not for this source")
            case "together":
                raise ParameterError("share", "is not for this source")
            case "check":
                raise KeyError("oops")


@dataclass(frozen=True, slots=True)
class FailingSource(OddSource):
    """A source with a query that fails."""

    Query: ClassVar[type] = FailingShare


@dataclass(frozen=True, slots=True)
class StubEngine:
    """An engine that is never opened."""

    url: str = "http://127.0.0.1:8080"

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class UnhashableEngine(StubEngine):
    """An engine that raises when it is hashed, if its URL says so."""

    def __hash__(self) -> int:
        if "unknown" in self.url:
            raise KeyError("oops")
        return 0


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True, slots=True)
class Point:
    """A point.

    Attributes:
        x: how far right, in metres.
        y: how far up, in metres.
    """

    x: float
    y: float = 0.0

    def __post_init__(self) -> None:
        if self.x > 100:
            raise ParameterError("x", f"must be at most 100, not {self.x}")
        if self.x + self.y > 150:
            raise ValueError("the point is too far out")


@dataclass(frozen=True, slots=True)
class StubTarget:
    """A target with a parameter of every type.

    Args:
        directory: where it lives.
        count: how many.
        share: how much of it.
        loud: whether it speaks.
        name: what it is called.
        grace: how long it waits.
        colour: which colour.
        level: which level.
        points: where it is.
        pair: a name and a number.
        words: some words.
        either: a number or a string.
        labels: labels.
        origin: the first point.
    """

    directory: Path = Path("stub")
    count: int = 1
    share: float = 0.5
    loud: bool = False
    name: str = "stub"
    grace: timedelta = timedelta(seconds=10)
    colour: Colour = Colour.RED
    level: Literal["low", "high", 3] = "low"
    points: tuple[Point, ...] = ()
    pair: tuple[str, int] = ("a", 1)
    words: Sequence[str] = ()
    either: float | str = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    origin: Point = Point(1.0, 2.0)

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FailingTarget(StubTarget):
    """A target with a time-out that fails."""

    @property
    def timeout(self) -> timedelta:
        raise KeyError("oops")


@dataclass(frozen=True, slots=True)
class FailingSubject(StubTarget):
    """A target whose subject raises, if its name says so."""

    @property
    def subject(self) -> str:
        if self.name == "unknown":
            raise KeyError("oops")
        return self.name


@dataclass(frozen=True, slots=True)
class StubDiscovery:
    """A discovery that is never opened.

    Attributes:
        selector: which members.
    """

    variables: ClassVar[tuple[str, ...]] = ("name", "namespace", "labels", "annotations", "ZONE")
    selector: str = ""

    def __post_init__(self) -> None:
        if self.selector == "bad":
            raise ParameterError("selector", "must not be bad")

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class NamelessDiscovery(StubDiscovery):
    """A discovery that does not declare the variables of its members."""

    variables: ClassVar[Any] = "name"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy.

    Attributes:
        metric: its metric.
    """

    metric: str


@dataclass(frozen=True, slots=True)
class StubPolicy:
    """A policy that never asks for anything.

    Attributes:
        within: how long.
        metric: the metric it reads.
        rules: more metrics it reads.
    """

    within: timedelta
    metric: str = "lag"
    rules: tuple[Rule, ...] = ()

    @property
    def lookback(self) -> timedelta:
        return self.within * 2

    @property
    def metrics(self) -> tuple[str, ...]:
        return (self.metric, *(rule.metric for rule in self.rules))

    def evaluate(self, view: View) -> Recommendation:
        del view
        return Recommendation(None, Reason.ABSTAINED)


@dataclass(frozen=True, slots=True)
class CrashingPolicy:
    """A policy with a bug in its checks."""

    within: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        raise KeyError("oops")

    def evaluate(self, view: View) -> Recommendation:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ExitingPolicy:
    """A policy that would end the process."""

    def __post_init__(self) -> None:
        raise SystemExit(0)

    def evaluate(self, view: View) -> Recommendation:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FailingMetrics:
    """A policy whose list of metrics raises."""

    @property
    def metrics(self) -> tuple[str, ...]:
        raise KeyError("oops")

    def evaluate(self, view: View) -> Recommendation:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OneName:
    """A policy that names its metric as a string instead of a tuple."""

    @property
    def metrics(self) -> str:
        return "lag"

    def evaluate(self, view: View) -> Recommendation:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OddLookback:
    """A policy whose lookback is a number."""

    @property
    def lookback(self) -> int:
        return 5

    def evaluate(self, view: View) -> Recommendation:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OddRanges:
    """A policy that names metrics but not their ranges."""

    @property
    def ranges(self) -> tuple[str, ...]:
        return ("lag",)

    def evaluate(self, view: View) -> Recommendation:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OwnNames:
    """A policy whose parameters have the names of optional attributes of policies.

    Attributes:
        levels: numbers only.
        packages: how many there are.
    """

    levels: tuple[float, ...] = (1.0, 70.0)
    packages: int = 3

    def evaluate(self, view: View) -> Recommendation:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FailingLevels:
    """A policy whose levels raise."""

    @property
    def levels(self) -> tuple[tuple[str, float], ...]:
        raise KeyError("oops")

    def evaluate(self, view: View) -> Recommendation:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FailingObjective:
    """A policy whose objective raises."""

    @property
    def objective(self) -> timedelta:
        raise KeyError("oops")

    def evaluate(self, view: View) -> Recommendation:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class NeedsPart(StubPolicy):
    """A policy that imports a missing part of an installed package."""

    packages: ClassVar[tuple[str, ...]] = ("no_such_cloud.storage",)


@dataclass(frozen=True)
class AnyType:
    """A policy with a parameter of any type."""

    value: object = None

    def evaluate(self, view: View) -> Recommendation:
        raise NotImplementedError


@dataclass(frozen=True)
class Unresolved:
    """A policy with a parameter whose type is undefined."""

    value: Missing = 0  # type: ignore[name-defined]  # noqa: F821 - that is the case

    def evaluate(self, view: View) -> Recommendation:
        raise NotImplementedError


@dataclass(frozen=True)
class Endless:
    """A policy with itself as the type of a parameter."""

    inner: Endless | None = None

    def evaluate(self, view: View) -> Recommendation:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Renamed:
    """A policy with parameters that had other names.

    Attributes:
        replicas: the size it asks for, 1 or more.
        window: how far it looks back.
    """

    former_names: ClassVar[tuple[str, ...]] = ("old-policy",)
    replicas: int = field(metadata={"aliases": ("count", "size")})
    window: timedelta = field(default=timedelta(seconds=5), metadata={"aliases": ("within",)})

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ParameterError("replicas", f"must be 1 or more, not {self.replicas}")

    def evaluate(self, view: View) -> Recommendation:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class NeedsPackage(StubPolicy):
    """A policy that imports packages when it is used."""

    packages: ClassVar[tuple[str, ...]] = ("yaml", "no_such_cloud")
