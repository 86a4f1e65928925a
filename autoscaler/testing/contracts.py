"""Contract tests for authors of plug-ins. They check the behaviour that the daemon relies on, without the daemon.

Inherit the class for your kind of plug-in and override its fixtures. Then pytest runs all its tests on your plug-in.
For a policy, you need only pytest:

    import pytest
    from autoscaler.testing import PolicyContract
    from my_package import Weekend

    class TestWeekend(PolicyContract):
        @pytest.fixture
        def policy(self):
            return Weekend(replicas=2)

        @pytest.fixture
        def metrics(self):  # names of the metrics that the policy requires; default: its attribute `metrics`
            return ()

Sources, engines, targets and discoveries run on an event loop, so their tests also need pytest-asyncio:

    import pytest
    import pytest_asyncio
    from autoscaler.testing import SourceContract

    class TestMine(SourceContract):
        @pytest_asyncio.fixture
        async def plugin(self):
            async with a_server_of_yours() as url:
                yield Mine(url=url, token=Secret("hunter2"))

        @pytest.fixture
        def query(self):
            return Mine.Query(name="lag")

        @pytest.fixture
        def unreachable(self):
            return Mine(url="http://127.0.0.1:1", token=Secret("hunter2"))

This module imports pytest. No other module of the package imports this module, so only tests need pytest.
"""
# ruff: noqa: S101 - these are shipped tests; each assertion says what was expected

from __future__ import annotations

import asyncio
import builtins
import copy
import dataclasses
import inspect
import json
import math
import pickle
import random
import socket
import time
import warnings
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, Self, TypeVar

import pytest

from autoscaler.core.model import (
    MOST_LEARNED,
    Allowance,
    Bound,
    Cause,
    ClusterSpec,
    Direction,
    EngineStatus,
    JobState,
    Learned,
    Limits,
    Observation,
    Phase,
    Policy,
    Reading,
    Reason,
    Recommendation,
    Rescale,
    SizeCapacity,
    View,
)
from autoscaler.ports import (
    Discovery,
    DiscoveryPlugin,
    EdgeError,
    EnginePlugin,
    Member,
    ScaleTarget,
    Secret,
    SourcePlugin,
    TargetPlugin,
    TargetStatus,
)

T = TypeVar("T")

ROLES = ("lag", "arrivals", "throughput", "saturation", "utilization")
START = datetime(2026, 1, 1, tzinfo=UTC)
INTERVAL = timedelta(seconds=15)
LARGEST = 1.7976931348623157e308
MOST = 1_000_000  # the core treats a larger size as an error

_NUMBERS = (0.0, 1e-300, 0.01, 0.5, 0.95, 1.0, 17.0, 1e4, 1e9, 1e300, LARGEST, -1.0, -LARGEST)
_SIZES = (0, 1, 2, 3, 7, 50, 1000)
_LIMITS = (Limits(0, 1), Limits(0, 10), Limits(1, 4), Limits(2, 100), Limits(5, 5), Limits(0, 1000))


def _on_a_loop() -> pytest.MarkDecorator:
    """The mark that pytest-asyncio needs in strict mode. If pytest does not know the mark, skip the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pytest.PytestUnknownMarkWarning)
        try:
            return pytest.mark.asyncio
        except (pytest.PytestUnknownMarkWarning, pytest.fail.Exception):  # the latter with --strict-markers
            return pytest.mark.skip(reason="the contracts of all but policies need pytest-asyncio")


on_a_loop = _on_a_loop()


class LocalShared:
    """The shared objects of plug-ins for one test: opened at first use, closed at the end of the context."""

    def __init__(self) -> None:
        self._live: dict[Hashable, Any] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def enter(self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Return the object under `key`. Open it if there is none yet."""
        if key not in self._live:
            self._live[key] = await self._stack.enter_async_context(factory())
        return self._live[key]  # type: ignore[no-any-return]


def views(metrics: Sequence[str], count: int = 200, seed: int = 2026) -> list[View]:
    """Views as the daemon may pass them to a policy: typical, empty, extreme and odd. They are the same at each call.

    Metrics are finite or missing, because the core removes untrusted values. The past is raw: it has NaN, infinities
    and gaps. Sizes may be outside the limits, as after a change of the configuration.

    Args:
        metrics: names of metrics to generate in addition to the well-known ones.
        count: number of views.
        seed: seed of the random generator.
    """
    chance = random.Random(seed)  # noqa: S311 - repeatable test data, not a secret
    names = tuple(dict.fromkeys((*metrics, *ROLES)))
    return [_view(chance, names) for _ in range(count)]


def _view(chance: random.Random, names: Sequence[str]) -> View:
    now = START + timedelta(days=chance.randrange(365), seconds=chance.randrange(86400))
    current = chance.choice(_SIZES)
    ready = chance.choice((current, current, 0, max(0, current - 1), current + 1))
    limits = chance.choice(_LIMITS)
    present = [name for name in names if chance.random() < chance.choice((0.5, 0.95, 1.0))]
    read = now - timedelta(seconds=2)
    metrics = {name: Reading(_value(chance, ready), read, parts=_parts(chance, names)) for name in present}
    missing = {name: "not delivered" for name in names if name not in metrics}
    engine = _engine(chance, now)
    past = [_past(chance, names, now - n * INTERVAL, current) for n in range(chance.randrange(12), 0, -1)]
    past.append(Observation(at=now, desired=current, ready=ready, metrics=metrics, missing=missing, engine=engine))
    spec = ClusterSpec(
        name="contract",
        limits=limits,
        policies=(),
        metrics=tuple(names),
        engine=engine is not None,
        slots_per_replica=chance.choice((1, 2, 8)),
        partitions=chance.choice((None, 1, 6, 100)),
    )
    return View(
        now=now,
        current=current,
        ready=ready,
        metrics=metrics,
        past=tuple(past),
        limits=limits,
        learned=_learned(chance, now),
        spec=spec,
        engine=engine,
        rescale=_rescale(chance, now, current),
        disturbance_ended_at=chance.choice((None, now, now - timedelta(minutes=1), now - timedelta(days=1))),
    )


def days(metrics: Sequence[str], count: int = 1200) -> list[View]:
    """Views of one cluster in the order of time, for policies that learn. They are the same at each call.

    The load varies between 30 % and 150 % of the capacity. The size goes through about 600 sizes, and each change
    starts a warm-up. Some metrics are missing, and there are gaps of hours.

    Args:
        metrics: names of metrics to generate in addition to the well-known ones.
        count: number of views.
    """
    chance = random.Random(count)  # noqa: S311 - as above
    names = tuple(dict.fromkeys((*metrics, *ROLES)))
    limits = Limits(1, 600)
    spec = ClusterSpec(name="contract", limits=limits, policies=(), metrics=names)
    found: list[View] = []
    now, warm_from = START, START
    past: tuple[Observation, ...] = ()
    for number in range(count):
        now += INTERVAL if chance.random() < 0.99 else timedelta(hours=3)  # noqa: PLR2004 - one in a hundred
        size = 1 + (number * limits.maximum // count if number % 7 else 0)
        if past and past[-1].desired != size:
            warm_from = now
        load = size * chance.choice((0.3, 0.9, 1.0, 1.0, 1.5))
        values = {
            "lag": max(0.0, load - size) * 1e4,
            "arrivals": load * 1e3,
            "throughput": min(load, size) * 1e3,
            "saturation": min(load / size, 1.0),
            "utilization": min(load / size, 1.0),
        }
        metrics_now = {
            name: Reading(values.get(name, load), now, parts={"a": {name: load}, "b": {name: 0.0}})
            for name in names
            if chance.random() < 0.98  # noqa: PLR2004 - one in fifty is missing
        }
        missing = {name: "not delivered" for name in names if name not in metrics_now}
        past = (*past[-20:], Observation(at=now, desired=size, ready=size, metrics=metrics_now, missing=missing))
        found.append(
            View(
                now=now,
                current=size,
                ready=size,
                metrics=metrics_now,
                past=past,
                limits=limits,
                learned=Learned(),
                spec=spec,
                disturbance_ended_at=warm_from,
            )
        )
    return found


def _value(chance: random.Random, ready: int) -> float | tuple[float, ...]:
    if chance.random() < 0.75:  # noqa: PLR2004 - one in four has a number per replica
        return chance.choice((*_NUMBERS, chance.uniform(0, 2), chance.uniform(0, 1e5)))
    count = max(1, min(ready + chance.choice((0, 0, -1, 1)), 50))
    return tuple(chance.choice((*_NUMBERS, chance.uniform(0, 2))) for _ in range(count))


def _parts(chance: random.Random, names: Sequence[str]) -> dict[str, dict[str, float]]:
    if chance.random() < 0.8:  # noqa: PLR2004 - most sources report none
        return {}
    parts = chance.sample(("Source: a -> b", "worker-1", ""), 2)
    return {part: {name: chance.choice(_NUMBERS) for name in names if chance.random() < 0.5} for part in parts}  # noqa: PLR2004 - a coin


def _engine(chance: random.Random, now: datetime) -> EngineStatus | None:
    if chance.random() < 0.3:  # noqa: PLR2004 - some clusters have no engine
        return None
    count = (None, 0, 1, 4, 64)
    since = chance.choice((None, now, now - timedelta(hours=1)))
    state = chance.choice(tuple(JobState))
    slots, parallelism, most, partitions = (chance.choice(count) for _ in range(4))
    return EngineStatus(
        job=state,
        slots=slots,
        parallelism=parallelism,
        max_parallelism=most or None,
        partitions=partitions or None,
        running_since=since,
        last_checkpoint=since,
        restarts=0,
    )


def _past(chance: random.Random, names: Sequence[str], at: datetime, size: int) -> Observation:
    odd = (math.nan, math.inf, -math.inf, *_NUMBERS)
    metrics = {name: Reading(chance.choice(odd), at) for name in names if chance.random() < 0.8}  # noqa: PLR2004 - some gaps
    desired = chance.choice((size, size, None, size + 1))
    return Observation(at=at, desired=desired, ready=desired, metrics=metrics, missing={}, engine=_engine(chance, at))


def _learned(chance: random.Random, now: datetime) -> Learned:
    if chance.random() < 0.4:  # noqa: PLR2004 - a fresh daemon
        return Learned()
    sizes = chance.sample(_SIZES[1:], chance.randrange(1, 4))
    rates = (1e-9, 1.0, 50.0, 1e5, 1e300)
    capacity = {size: SizeCapacity(chance.choice(rates) * size, now - timedelta(hours=1), 3) for size in sizes}
    phases = {phase: (1.0, chance.choice((0.0, 30.0, 1e6))) for phase in Phase}
    return Learned(capacity, {Direction.UP: phases} if chance.random() < 0.5 else {})  # noqa: PLR2004 - a coin


def _rescale(chance: random.Random, now: datetime, current: int) -> Rescale | None:
    if chance.random() < 0.7:  # noqa: PLR2004 - most of the time there is none
        return None
    at = now - timedelta(seconds=20)
    return Rescale(
        before=chance.choice(_SIZES),
        to=current,
        at=at,
        cause=Cause.REQUEST,
        phase=chance.choice(tuple(Phase)[:-1]),
        since=at,
    )


def _without(view: View, names: Sequence[str]) -> View:
    """The same view with some metrics missing."""
    metrics = {name: reading for name, reading in view.metrics.items() if name not in names}
    last = view.past[-1]
    missing = {**last.missing, **dict.fromkeys(names, "stale")}
    past = (*view.past[:-1], dataclasses.replace(last, metrics=metrics, missing=missing))
    return dataclasses.replace(view, metrics=metrics, past=past)


def _check_parameters(plugin: object) -> None:
    """Check that a plug-in is a frozen, hashable dataclass, equal by its parameters, with a docstring for each."""
    cls = type(plugin)
    assert dataclasses.is_dataclass(plugin), f"{cls.__name__} is not a dataclass, expected @dataclass(frozen=True)"
    frozen = cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert frozen, f"{cls.__name__} can be changed, expected @dataclass(frozen=True)"
    copied = copy.deepcopy(plugin)
    assert copied == plugin, f"{plugin!r} is not equal to its copy; equal plug-ins are connected once"
    assert hash(copied) == hash(plugin), f"equal {cls.__name__} have different hashes"
    for field in dataclasses.fields(plugin):
        described = field.name in (cls.__doc__ or "")
        assert described, f"the docstring of {cls.__name__} does not describe its parameter {field.name}"


def _check_secret(secrets: Sequence[str], text: str, where: str) -> None:
    for secret in secrets:
        assert secret not in text, f"{where} shows a secret"


def _secrets(plugin: object) -> tuple[str, ...]:
    """The secrets among a plug-in's parameters."""
    values = vars(plugin).values() if hasattr(plugin, "__dict__") else ()
    slots = (getattr(plugin, field.name) for field in dataclasses.fields(plugin))  # type: ignore[arg-type]
    return tuple({str(value) for value in (*values, *slots) if isinstance(value, Secret) and value})


def _override(what: str) -> NoReturn:
    pytest.fail(f"override the fixture {what} in your class", pytrace=False)


class PolicyContract:
    """The contract of a policy. Override `policy`, and `metrics` unless the policy has an attribute `metrics`."""

    @pytest.fixture
    def policy(self) -> Policy:
        """The policy under test."""
        _override("policy")

    @pytest.fixture
    def metrics(self, policy: Policy) -> Sequence[str]:
        """Names of the metrics without which the policy must not ask for fewer replicas."""
        names = getattr(policy, "metrics", None)
        if names is None:
            _override("metrics (names of the metrics the policy cannot do without)")
        return tuple(names)

    @pytest.fixture
    def views(self, metrics: Sequence[str]) -> Sequence[View]:
        """The views that the policy evaluates. Override this fixture to add your own cases."""
        return views(metrics)

    def test_it_is_a_frozen_dataclass_with_described_parameters(self, policy: Policy) -> None:
        """The fields of the dataclass are the parameters of the policy."""
        _check_parameters(policy)

    def test_it_can_be_sent_to_another_process(self, policy: Policy) -> None:
        """A back-test runs the policy in other processes."""
        assert pickle.loads(pickle.dumps(policy)) == policy, "expected an equal policy after pickling"  # noqa: S301 - our own

    def test_its_lookback_is_a_time(self, policy: Policy) -> None:
        """The optional attribute `lookback` says how much of the past the policy needs."""
        lookback = getattr(policy, "lookback", timedelta(0))
        assert isinstance(lookback, timedelta), f"lookback is {lookback!r}, expected a timedelta"
        assert lookback >= timedelta(0), f"lookback is {lookback}, expected 0 or more"

    def test_it_answers_every_view(self, policy: Policy, views: Sequence[View]) -> None:
        """The policy raises no error, and its recommendations are valid."""
        for view in views:
            _check_recommendation(policy.evaluate(view), view)

    def test_the_same_view_gets_the_same_answer(self, policy: Policy, views: Sequence[View]) -> None:
        """Otherwise a replay would not repeat the recorded decisions."""
        first = [policy.evaluate(view) for view in views]
        other = copy.deepcopy(policy)
        for view, answer in reversed(list(zip(views, first, strict=True))):
            assert policy.evaluate(view) == answer, f"another answer to the same view: {view}"
            assert other.evaluate(view) == answer, f"an equal policy gives another answer: {view}"

    def test_it_changes_nothing(self, policy: Policy, views: Sequence[View]) -> None:
        """The policy changes neither the view nor itself."""
        itself = copy.deepcopy(policy)
        for view in views:
            before = pickle.dumps(view)  # compare bytes, because a NaN in the past is not equal to itself
            policy.evaluate(view)
            assert pickle.dumps(view) == before, "the view was changed"
        assert policy == itself, "the policy was changed"

    def test_it_reads_neither_clock_nor_chance_nor_the_world(
        self, policy: Policy, views: Sequence[View], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A policy gets the time only from `view.now`, and everything else from the view's other fields."""
        for view in views[:20]:
            policy.evaluate(view)  # lets the policy do its late imports

        with _nothing_but_the_view(monkeypatch):
            for view in views:
                policy.evaluate(view)

    def test_without_its_metrics_it_never_asks_for_less(
        self, policy: Policy, metrics: Sequence[str], views: Sequence[View]
    ) -> None:
        """A missing metric is not zero, whatever the policy has learned before."""
        gaps = [(name,) for name in metrics] + ([tuple(metrics)] if metrics else [])
        learn = getattr(policy, "learn", None)
        memories = _memories(learn, views) if learn else [{}] * len(views)
        for view, memory in zip(views, memories, strict=True):
            for gap in gaps:
                shown = dataclasses.replace(_without(view, gap), memory=memory)
                if learn:
                    shown = dataclasses.replace(shown, memory=learn(shown))
                _check_no_fewer(policy.evaluate(shown), view, f"without {', '.join(gap)}")

    def test_what_it_learns_can_be_kept(self, policy: Policy, metrics: Sequence[str], views: Sequence[View]) -> None:
        """The optional method `learn` returns a bounded number of finite numbers by name, and accepts them again.

        It gets its earlier result, at first an empty one. After an upgrade it gets the result of another version.
        """
        learn = _optional(policy, "learn")

        def learned(view: View, memory: Mapping[str, float]) -> Mapping[str, float]:
            found = learn(dataclasses.replace(view, memory=memory))
            _check_memory(found)
            _check_recommendation(policy.evaluate(dataclasses.replace(view, memory=found)), view)
            return found  # type: ignore[no-any-return]

        for seen in (sorted(views, key=lambda view: view.now), days(metrics)):
            memory: Mapping[str, float] = {}
            for number, view in enumerate(seen):
                memory = learned(view, memory)
                if number % 5 == 0:
                    half = {name: memory[name] for name in list(memory)[number % 2 :: 2]}
                    learned(view, {**half, "of.another.version": -1.0})

    def test_it_learns_the_same_from_the_same(self, policy: Policy, views: Sequence[View]) -> None:
        """The method `learn` changes neither the view nor the policy, so that a replay learns the same."""
        learn = _optional(policy, "learn")
        itself = copy.deepcopy(policy)
        other: Any = copy.deepcopy(policy)
        for view, memory in zip(views, _memories(learn, views), strict=True):
            shown = dataclasses.replace(view, memory=memory)
            before = pickle.dumps(shown)
            found = dict(learn(shown))
            assert pickle.dumps(shown) == before, "the view was changed"
            assert learn(shown) == found, f"learns something else from the same view: {view}"
            assert other.learn(shown) == found, f"an equal policy learns something else: {view}"
        assert policy == itself, "the policy was changed"

    def test_it_learns_from_neither_clock_nor_chance_nor_the_world(
        self, policy: Policy, views: Sequence[View], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The same holds when the policy evaluates a view with a learned memory."""
        learn = _optional(policy, "learn")
        _memories(learn, views[:20])
        with _nothing_but_the_view(monkeypatch):
            for view, memory in zip(views, _memories(learn, views), strict=True):
                policy.evaluate(dataclasses.replace(view, memory=memory))

    def test_it_asks_for_no_fewer_at_first_sight(self, policy: Policy, views: Sequence[View]) -> None:
        """If a policy `stabilizes`, the cluster has no stabilization window, so the policy needs its own."""
        if not getattr(policy, "stabilizes", False):
            pytest.skip("this policy relies on the guards, which delay scale-downs")
        learn: Callable[[View], Mapping[str, float]] | None = getattr(policy, "learn", None)
        for view in views:
            shown = dataclasses.replace(view, memory={})
            answer = policy.evaluate(dataclasses.replace(shown, memory=learn(shown) if learn else {}))
            _check_no_fewer(answer, view, "at first sight")

    def test_the_bounds_it_allows_are_bounds(self, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
        """The optional method `allow` returns bounds at every time of a year, and the same bounds for the same time."""
        allow = _optional(policy, "allow")
        itself = copy.deepcopy(policy)
        other: Any = copy.deepcopy(policy)
        # Steps of 7 h 13 min reach every hour of the day, every minute of an hour and every day of the week.
        times = [START + number * timedelta(hours=7, minutes=13) for number in range(1215)]
        cases = [(now, _LIMITS[number % len(_LIMITS)]) for number, now in enumerate(times)]
        allow(*cases[0])
        with _nothing_but_the_view(monkeypatch):
            found = [allow(now, limits) for now, limits in cases]
        for (now, limits), allowance in zip(reversed(cases), reversed(found), strict=True):
            _check_allowance(allowance, now)
            assert allow(now, limits) == allowance, f"allows something else at the same time: {now}"
            assert other.allow(now, limits) == allowance, f"an equal policy allows something else: {now}"
        assert policy == itself, "the policy was changed"


def _check_no_fewer(answer: Recommendation, view: View, when: str) -> None:
    allowed = answer.replicas is None or answer.replicas >= min(view.current, view.limits.maximum)
    assert allowed, f"asks for {answer.replicas} of {view.current} replicas {when}: {answer.detail}"


def _optional(policy: Policy, method: str) -> Callable[..., Any]:
    found = getattr(policy, method, None)
    if found is None:
        pytest.skip(f"this policy has no method {method}")
    assert callable(found), f"{method} is {found!r}, expected a method"
    return found  # type: ignore[no-any-return]


def _memories(learn: Callable[[View], Mapping[str, float]], views: Sequence[View]) -> list[Mapping[str, float]]:
    """The memory before each view, learned from the views before it."""
    found: list[Mapping[str, float]] = [{}]
    for view in views[:-1]:
        found.append(learn(dataclasses.replace(view, memory=found[-1])))
    return found


@contextmanager
def _nothing_but_the_view(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forbid the clock, random numbers, files and the network."""

    def forbidden(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a policy may use nothing but the view")

    with monkeypatch.context() as patched:
        for owner, name in ((time, "time"), (random, "random"), (socket, "socket"), (builtins, "open")):
            patched.setattr(owner, name, forbidden)
        yield


def _whole(*sizes: object) -> bool:
    return all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)


def _check_memory(memory: object) -> None:
    assert not inspect.isawaitable(memory), "learn is asynchronous, expected a plain method"
    assert isinstance(memory, Mapping), f"learned {memory!r}, expected a mapping of names to numbers"
    assert len(memory) <= MOST_LEARNED, f"learned {len(memory)} numbers, expected at most {MOST_LEARNED}"
    for name, number in memory.items():
        assert isinstance(name, str), f"the name of what was learned is {name!r}, expected a string"
        assert isinstance(number, int | float), f"learned {name} = {number!r}, expected a number"
        assert math.isfinite(number), f"learned {name} = {number}, expected a finite number"
    assert json.loads(json.dumps(dict(memory))) == memory, "what was learned does not survive JSON"


def _check_allowance(allowance: object, now: datetime) -> None:
    assert not inspect.isawaitable(allowance), "allow is asynchronous, expected a plain method"
    assert isinstance(allowance, Allowance), f"allows {allowance!r}, expected an Allowance"
    excluded: object = allowance.excluded
    assert isinstance(excluded, str | None), f"{allowance}: excluded is {excluded!r}, expected a string or None"
    limits: object = allowance.limits
    assert isinstance(limits, Limits), f"{allowance}: limits are {limits!r}, expected Limits"
    assert limits.minimum <= limits.maximum, f"at {now} the minimum is above the maximum: {limits}"
    assert _whole(limits.minimum, limits.maximum), f"{limits}: expected whole numbers of replicas"


def _check_recommendation(answer: object, view: View) -> None:
    assert not inspect.isawaitable(answer), "evaluate is asynchronous, expected a plain method"
    assert isinstance(answer, Recommendation), f"{answer!r} is not a Recommendation"
    assert isinstance(answer.reason, Reason), f"reason {answer.reason!r} is not a Reason"
    if answer.replicas is None:
        abstaining = {Reason.MISSING, Reason.LEARNING, Reason.ABSTAINED}
        assert answer.reason in abstaining, f"{answer}: without a size expected one of {sorted(abstaining)}"
    else:
        assert _whole(answer.replicas), f"{answer}: the size is not a whole number"
        assert 0 <= answer.replicas <= MOST, f"{answer}: expected a size from 0 to {MOST}"
        deciding = {Reason.ABOVE, Reason.BELOW, Reason.STEADY}
        assert answer.reason in deciding, f"{answer}: with a size expected one of {sorted(deciding)}"
        if answer.reason is Reason.ABOVE:
            assert answer.replicas >= view.current, f"{answer}: says above and asks for less than {view.current}"
        if answer.reason is Reason.BELOW:
            assert answer.replicas <= view.current, f"{answer}: says below and asks for more than {view.current}"
    detail: object = answer.detail
    assert detail and isinstance(detail, str), f"{answer}: expected a sentence as detail"  # noqa: PT018 - one thing
    inputs = answer.inputs
    assert isinstance(inputs, Mapping), f"{answer}: inputs are not a mapping"
    for name, number in inputs.items():
        assert isinstance(name, str), f"{answer}: the name of input {name!r} is not a string"
        assert math.isfinite(number), f"{answer}: input {name} is not finite"
    assert json.loads(json.dumps(dict(inputs))) == inputs, f"{answer}: inputs do not survive JSON"


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


@asynccontextmanager
async def _connected(plugin: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - any kind of plug-in
    async with LocalShared() as shared, plugin.connect(shared) as live:
        yield live


class _EdgeContract:
    """The common contract of sources, engines, targets and discoveries."""

    patience: float = 10.0
    """Seconds after which a call counts as hung; a plug-in's own `timeout` plus a second takes precedence."""

    @pytest.fixture
    def plugin(self) -> Any:  # noqa: ANN401 - any kind of plug-in
        """A plug-in whose server answers. A target must accept the `sizes`."""
        _override("plugin")

    @pytest.fixture
    def unreachable(self) -> Any:  # noqa: ANN401 - as above
        """A plug-in with an address where no server listens."""
        _override("unreachable")

    @pytest.fixture
    def secrets(self, plugin: object) -> Sequence[str]:
        """Strings that must not appear in any text. Default: the parameters of type `Secret`."""
        return _secrets(plugin)

    def _limit(self, plugin: object) -> float:
        timeout = getattr(plugin, "timeout", None)
        return timeout.total_seconds() + 1.0 if isinstance(timeout, timedelta) else self.patience

    def test_it_is_a_frozen_dataclass_with_described_parameters(self, plugin: object) -> None:
        """The fields of the dataclass are its parameters. Equal plug-ins share one connection."""
        _check_parameters(plugin)

    def test_its_text_shows_no_secret(self, plugin: object, secrets: Sequence[str]) -> None:
        """The daemon writes plug-ins to logs."""
        _check_secret(secrets, repr(plugin), "repr")
        _check_secret(secrets, str(plugin), "str")

    @on_a_loop
    async def test_it_leaves_no_task_behind(self, plugin: Any) -> None:  # noqa: ANN401 - as above
        """All tasks that `connect` starts end with its context."""
        before = asyncio.all_tasks()
        async with asyncio.timeout(self.patience), _connected(plugin):
            pass
        left = {task for task in asyncio.all_tasks() - before if not task.done()}
        assert not left, f"tasks still run: {left}"

    @on_a_loop
    async def test_it_can_be_connected_again(self, plugin: Any) -> None:  # noqa: ANN401 - as above
        """A reload connects a plug-in again."""
        async with LocalShared() as shared:
            for _ in range(2):
                async with asyncio.timeout(self.patience), plugin.connect(shared):
                    pass

    async def _fails_in_time(
        self,
        plugin: Any,  # noqa: ANN401 - as above
        use: Callable[[Any], Any],
        secrets: Sequence[str],
    ) -> None:
        begin = time.monotonic()
        with pytest.raises(EdgeError) as caught:
            async with _connected(plugin) as live:
                await use(live)
        took, limit = time.monotonic() - begin, self._limit(plugin)
        assert took < limit, f"gave up after {took:.1f} s, expected {limit:.1f} s at most"
        assert str(caught.value), "the error has no message"
        _check_secret((*secrets, *_secrets(plugin)), f"{caught.value} {caught.value!r}", "the error")


class SourceContract(_EdgeContract):
    """The contract of a metric source. Override `plugin`, `query` and `unreachable`."""

    @pytest.fixture
    def query(self) -> object:
        """A query that `plugin` can answer, an instance of the plug-in's `Query`."""
        _override("query")

    def test_its_query_is_a_frozen_dataclass(self, plugin: SourcePlugin, query: object) -> None:
        """The fields of the query are the keys of a metric in the configuration."""
        assert isinstance(query, plugin.Query), f"{query!r} is not of the type {plugin.Query.__name__}"
        _check_parameters(query)

    @on_a_loop
    async def test_a_reading_is_finite_and_has_the_time_it_was_true(self, plugin: SourcePlugin, query: object) -> None:
        """A time without a zone or a NaN would stop the decision."""
        async with _connected(plugin) as source:
            reading = await asyncio.wait_for(source.collect(query, _now()), self._limit(plugin))
        assert isinstance(reading, Reading), f"{reading!r} is not a Reading"
        assert reading.finite(), f"{reading} is not finite, expected an error"
        assert reading.at.tzinfo is not None, f"{reading} has a naive time"

    @on_a_loop
    async def test_many_may_ask_at_once(self, plugin: SourcePlugin, query: object) -> None:
        """All clusters that use a source share it."""
        async with _connected(plugin) as source:
            now = _now()
            readings = await asyncio.gather(*(source.collect(query, now) for _ in range(20)))
        assert all(isinstance(reading, Reading) for reading in readings), "expected a Reading for everyone"

    @on_a_loop
    async def test_a_caller_that_gives_up_does_not_affect_others(self, plugin: SourcePlugin, query: object) -> None:
        """The time-out of a cluster must cancel only its own request."""
        async with _connected(plugin) as source:
            impatient = asyncio.create_task(source.collect(query, _now()))
            await asyncio.sleep(0)
            other = asyncio.create_task(source.collect(query, _now()))
            await asyncio.sleep(0)
            impatient.cancel()
            assert isinstance(await other, Reading), "expected a Reading for the other"
            assert isinstance(await source.collect(query, _now()), Reading), "expected a Reading afterwards"

    @on_a_loop
    async def test_an_unreachable_server_is_an_edge_error_in_time(
        self, unreachable: SourcePlugin, query: object, secrets: Sequence[str]
    ) -> None:
        """The source never invents a value, and the message has no secret."""
        await self._fails_in_time(unreachable, lambda source: source.collect(query, _now()), secrets)


class EngineContract(_EdgeContract):
    """The contract of an engine. Override `plugin` and `unreachable`."""

    @on_a_loop
    async def test_its_status_makes_sense(self, plugin: EnginePlugin) -> None:
        """Counts are whole numbers of 0 or more, times have a time zone, and unknown values are None."""
        async with _connected(plugin) as engine:
            status = await asyncio.wait_for(engine.describe(), self.patience)
        assert isinstance(status, EngineStatus), f"{status!r} is not an EngineStatus"
        assert isinstance(status.job, JobState), f"{status}: job is not a JobState"
        for name in ("slots", "parallelism", "max_parallelism", "partitions", "restarts"):
            count = getattr(status, name)
            assert count is None or (isinstance(count, int) and count >= 0), f"{status}: {name} is not a count"
        for name in ("running_since", "last_checkpoint"):
            at = getattr(status, name)
            assert at is None or at.tzinfo is not None, f"{status}: {name} is a naive time"
        assert all(isinstance(phase, Phase) for phase in status.deadlines), f"{status}: deadlines are those of phases"

    @on_a_loop
    async def test_an_unreachable_engine_is_an_edge_error_in_time(
        self, unreachable: EnginePlugin, secrets: Sequence[str]
    ) -> None:
        """The engine must not return a status that seems healthy."""
        await self._fails_in_time(unreachable, lambda engine: engine.describe(), secrets)


class TargetContract(_EdgeContract):
    """The contract of a target. Override `plugin`, and `unreachable` if the target has an address.

    The tests scale the target, so `plugin` must point to something that may be scaled.
    """

    @pytest.fixture
    def unreachable(self) -> TargetPlugin | None:
        """A target with an address where no server listens; None if it has no address."""
        return None

    @pytest.fixture
    def sizes(self) -> Sequence[int]:
        """The sizes that the tests request one after the other."""
        return (2, 3, 1)

    async def _scaled(self, target: ScaleTarget, size: int, times: int = 1) -> None:
        """Request a size and wait until the target shows it."""
        for _ in range(times):
            await target.scale(size)
        async with asyncio.timeout(self.patience):
            while (await target.describe()).desired != size:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.02)

    @on_a_loop
    async def test_what_it_shows_makes_sense(self, plugin: TargetPlugin) -> None:
        """Sizes are whole numbers of 0 or more."""
        async with _connected(plugin) as target:
            status = await asyncio.wait_for(target.describe(), self.patience)
        assert isinstance(status, TargetStatus), f"{status!r} is not a TargetStatus"
        counts: Sequence[object] = (status.desired, status.ready)
        whole = all(isinstance(count, int) and count >= 0 for count in counts)
        assert whole, f"{status}: expected whole numbers of 0 or more"
        assert all(isinstance(remark, str) for remark in status.remarks), f"{status}: remarks are strings"
        bounds: Sequence[object] = (status.floor, status.ceiling)
        assert all(bound is None or isinstance(bound, Bound) for bound in bounds), f"{status}: expected bounds"

    @on_a_loop
    async def test_a_size_asked_for_is_the_size_it_shows(self, plugin: TargetPlugin, sizes: Sequence[int]) -> None:
        """The daemon confirms a rescale by this size."""
        async with _connected(plugin) as target:
            for size in sizes:
                await self._scaled(target, size)

    @on_a_loop
    async def test_asking_twice_is_asking_once(self, plugin: TargetPlugin, sizes: Sequence[int]) -> None:
        """A request is a size, not a difference."""
        async with _connected(plugin) as target:
            await self._scaled(target, sizes[0], times=3)
            await target.scale(sizes[0])
            assert (await target.describe()).desired == sizes[0], "the same size requested again changed it"

    @on_a_loop
    async def test_describing_changes_nothing(self, plugin: TargetPlugin, sizes: Sequence[int]) -> None:
        """The daemon calls `describe` at every tick."""
        async with _connected(plugin) as target:
            await self._scaled(target, sizes[0])
            for _ in range(3):
                assert (await target.describe()).desired == sizes[0], "describe changed the size"

    @on_a_loop
    async def test_a_negative_size_is_refused_and_changes_nothing(self, plugin: TargetPlugin) -> None:
        """The target raises a ValueError or an EdgeError."""
        async with _connected(plugin) as target:
            before = (await target.describe()).desired
            with pytest.raises((ValueError, EdgeError)):
                await target.scale(-1)
            assert (await target.describe()).desired == before, "a refused size changed the target"

    @on_a_loop
    async def test_an_unreachable_target_is_an_edge_error_in_time(
        self, unreachable: TargetPlugin | None, sizes: Sequence[int], secrets: Sequence[str]
    ) -> None:
        """The target must neither return a size nor ignore the failure."""
        if unreachable is None:
            pytest.skip("this target has no address that could be unreachable")
        await self._fails_in_time(unreachable, lambda target: target.describe(), secrets)
        await self._fails_in_time(unreachable, lambda target: target.scale(sizes[0]), secrets)


class DiscoveryContract(_EdgeContract):
    """The contract of a discovery. Override `plugin`, whose system has two members or more, and `unreachable`."""

    async def _members(self, discovery: Discovery, plugin: DiscoveryPlugin) -> dict[str, Member]:
        """Call `members` and check the answer. Returns id -> member."""
        found = await asyncio.wait_for(discovery.members(), self._limit(plugin))
        for member in found:
            assert isinstance(member, Member), f"{member!r} is not a Member"
            assert isinstance(member.id, str), f"{member!r}: the id is not a string"
            assert member.id, f"{member!r}: the id is empty"
        ids = [member.id for member in found]
        twice = {name for name in ids if ids.count(name) > 1}
        assert not twice, f"several members have the id {', '.join(sorted(twice))}"
        assert len(found) > 1, f"expected a fixture plugin whose system has two members or more, got {found!r}"
        return {member.id: member for member in found}

    def test_its_variables_are_names(self, plugin: DiscoveryPlugin) -> None:
        """The configuration checks a template against these names before there is a member."""
        names = plugin.variables
        assert isinstance(names, tuple), f"variables is {names!r}, expected a tuple"
        assert names, "variables is empty: a template could name nothing"
        assert all(name.isidentifier() for name in names), f"variables are {names}, expected names such as namespace"

    @on_a_loop
    async def test_each_member_has_an_id_of_its_own_and_all_variables(self, plugin: DiscoveryPlugin) -> None:
        """The values of a member are strings, or mappings of strings."""
        async with _connected(plugin) as discovery:
            members = await self._members(discovery, plugin)
        for member in members.values():
            absent = set(plugin.variables) - set(member.values)
            assert not absent, f"{member} has no {', '.join(sorted(absent))}"
            for name, value in member.values.items():
                texts: list[object] = [*value, *value.values()] if isinstance(value, Mapping) else [value]
                wrong = [text for text in texts if not isinstance(text, str)]
                assert not wrong, f"{member}: {name} holds {wrong[0]!r}, expected strings"

    @on_a_loop
    async def test_two_answers_agree(self, plugin: DiscoveryPlugin) -> None:
        """A member stays the same as long as its object is the same, also over a new connection."""
        async with _connected(plugin) as discovery:
            first, second = await self._members(discovery, plugin), await self._members(discovery, plugin)
        async with _connected(plugin) as discovery:
            third = await self._members(discovery, plugin)
        assert first == second == third, f"the members differ: {first}, {second}, {third}"

    @on_a_loop
    async def test_a_caller_that_gives_up_does_not_affect_others(self, plugin: DiscoveryPlugin) -> None:
        """Several fleets may share a discovery, and each has its own time-out."""
        async with _connected(plugin) as discovery:
            impatient = asyncio.create_task(discovery.members())
            await asyncio.sleep(0)
            other = asyncio.create_task(self._members(discovery, plugin))
            await asyncio.sleep(0)
            impatient.cancel()
            assert await other == await self._members(discovery, plugin), "the members differ"

    @on_a_loop
    async def test_an_unreachable_system_is_an_edge_error_in_time(
        self, unreachable: DiscoveryPlugin, secrets: Sequence[str]
    ) -> None:
        """An empty list of members would mean that the whole fleet is gone."""
        await self._fails_in_time(unreachable, lambda discovery: discovery.members(), secrets)
