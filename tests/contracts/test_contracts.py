"""The contract tests accept good plug-ins and detect bad ones."""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from autoscaler.core.model import (
    Allowance,
    EngineStatus,
    JobState,
    Limits,
    Reading,
    Reason,
    Recommendation,
    View,
)
from autoscaler.ports import Member, Secret, Shared, TargetStatus, UnavailableError
from autoscaler.testing import (
    DiscoveryContract,
    EngineContract,
    PolicyContract,
    SourceContract,
    TargetContract,
    views,
)

Answer = Callable[[View], Any]
METRICS = ("lag",)


@dataclass(frozen=True)
class Scripted:
    """A policy that answers by a function.

    Attributes:
        answer: the function.
    """

    answer: Answer

    def evaluate(self, view: View) -> Recommendation:
        return self.answer(view)  # type: ignore[no-any-return]


def steady(view: View, **changes: Any) -> Recommendation:
    parts: dict[str, Any] = {"replicas": view.current, "reason": Reason.STEADY, "detail": "it fits", **changes}
    return Recommendation(**parts)


def lag_as_zero(view: View) -> Recommendation:
    lag = view.number("lag") or 0.0
    size = 1 if lag < 1 else view.current
    return steady(view, replicas=size, reason=Reason.BELOW if size < view.current else Reason.STEADY)


def divides(view: View) -> Recommendation:
    return steady(view, inputs={"share": 1 / (view.number("lag") or 0)})


def greedy(view: View) -> Recommendation:
    view.metrics.clear()  # type: ignore[attr-defined]
    return steady(view)


def by_chance(view: View) -> Recommendation:
    return steady(view, replicas=view.current + random.randrange(1000))  # noqa: S311 - the fault to be detected


def by_clock(view: View) -> Recommendation:
    return steady(view, detail=f"at {time.time() // 1e9}")


def check(policy: Any) -> None:
    """Run the contract's tests on a policy, each with new views."""
    contract = PolicyContract()
    contract.test_it_is_a_frozen_dataclass_with_described_parameters(policy)
    contract.test_it_answers_every_view(policy, views(METRICS))
    contract.test_the_same_view_gets_the_same_answer(policy, views(METRICS))
    contract.test_it_changes_nothing(policy, views(METRICS))
    with pytest.MonkeyPatch.context() as patch:
        contract.test_it_reads_neither_clock_nor_chance_nor_the_world(policy, views(METRICS), patch)
    contract.test_without_its_metrics_it_never_asks_for_less(policy, METRICS, views(METRICS))


def test_a_good_policy_passes() -> None:
    check(Scripted(steady))


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lag_as_zero, id="missing-counts-as-zero"),
        pytest.param(divides, id="divides-by-zero"),
        pytest.param(greedy, id="changes-the-view"),
        pytest.param(by_chance, id="uses-chance"),
        pytest.param(by_clock, id="reads-the-clock"),
        pytest.param(lambda _: None, id="answers-nothing"),
        pytest.param(lambda view: steady(view, replicas=1.5), id="half-a-replica"),
        pytest.param(lambda view: steady(view, replicas=True), id="true-replicas"),
        pytest.param(lambda view: steady(view, replicas=-1), id="negative-size"),
        pytest.param(lambda view: steady(view, replicas=10**7), id="absurd-size"),
        pytest.param(lambda view: steady(view, reason=Reason.MISSING), id="a-size-though-missing"),
        pytest.param(lambda view: steady(view, replicas=None), id="steady-without-a-size"),
        pytest.param(lambda view: steady(view, replicas=view.current + 1, reason=Reason.BELOW), id="below-and-more"),
        pytest.param(lambda view: steady(view, reason="steady "), id="another-reason"),
        pytest.param(lambda view: steady(view, detail=""), id="no-detail"),
        pytest.param(lambda view: steady(view, inputs={"a": float("inf")}), id="infinite-input"),
        pytest.param(lambda view: steady(view, inputs={1: 1.0}), id="input-without-a-name"),
    ],
)
def test_a_bad_policy_is_detected(answer: Answer) -> None:
    with pytest.raises((AssertionError, ArithmeticError)):
        check(Scripted(answer))


@dataclass(frozen=True)
class Learning:
    """A policy that learns by a function and answers by another.

    Attributes:
        learned: computes the memory.
        answer: computes the answer from it.
    """

    learned: Answer
    answer: Answer = steady

    def learn(self, view: View) -> dict[str, float]:
        return self.learned(view)  # type: ignore[no-any-return]

    def evaluate(self, view: View) -> Recommendation:
        return self.answer(view)  # type: ignore[no-any-return]


def counts(view: View) -> dict[str, float]:
    """A good one: counts its evaluations at each size, for up to a hundred sizes."""
    name = f"size.{view.current}"
    found = {**view.memory, name: view.memory.get(name, 0.0) + 1, f"{name}.seen_at": view.now.timestamp()}
    return dict(list(found.items())[-200:])


def spoils_its_memory(view: View) -> dict[str, float]:
    view.memory["n"] = view.memory.get("n", 0.0) + 1  # type: ignore[index]
    return dict(view.memory)


class Later:
    """A result of an asynchronous method that gives no warning if nobody awaits it."""

    def __await__(self) -> Iterator[None]:
        yield


def luck() -> float:
    return random.uniform(0, 9)  # noqa: S311 - the fault to be detected


def half_is_a_surprise(view: View) -> dict[str, float]:
    return {name: view.memory[name] + 1 if view.memory else 0.0 for name in ("a", "b")}


def knows_all_names(view: View) -> dict[str, float]:
    numbers = [int(name.removeprefix("n.")) for name in view.memory]
    return {f"n.{len(numbers) % 5}": 1.0}


def falls_to_what_it_learned(view: View) -> Recommendation:
    return steady(view, replicas=min(1, view.current), reason=Reason.BELOW) if view.memory else steady(view)


def divides_by_what_it_learned(view: View) -> Recommendation:
    return steady(view, inputs={"share": 1 / view.memory.get("gone", 0.0) if view.memory else 1.0})


def check_learner(policy: Any) -> None:
    """Run the contract's tests for learning policies on a policy."""
    contract = PolicyContract()
    contract.test_what_it_learns_can_be_kept(policy, METRICS, views(METRICS))
    contract.test_it_learns_the_same_from_the_same(policy, views(METRICS))
    with pytest.MonkeyPatch.context() as patch:
        contract.test_it_learns_from_neither_clock_nor_chance_nor_the_world(policy, views(METRICS), patch)
    contract.test_without_its_metrics_it_never_asks_for_less(policy, METRICS, views(METRICS))


def test_a_good_policy_that_learns_passes() -> None:
    check_learner(Learning(counts))
    check(Learning(counts))


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        pytest.param(
            Learning(lambda view: {**view.memory, f"{view.now}": 1.0}), "learned 1001 numbers", id="for-ever-more"
        ),
        pytest.param(
            Learning(lambda view: {**view.memory, f"{view.current}.a": 1.0, f"{view.current}.b": 1.0}),
            "numbers, expected at most 1000",
            id="too-much-for-each-size",
        ),
        pytest.param(
            Learning(lambda view: {"load": view.number("lag") or float("nan")}),
            "load = nan, expected a finite number",
            id="nan",
        ),
        pytest.param(Learning(lambda view: {"n": view.memory["n"] + 1}), "'n'", id="cannot-begin"),
        pytest.param(Learning(half_is_a_surprise), "^'[ab]'$", id="cannot-read-half-of-it"),
        pytest.param(Learning(knows_all_names), "of.another.version", id="cannot-read-another-version's"),
        pytest.param(Learning(spoils_its_memory), "the view was changed", id="changes-its-memory"),
        pytest.param(Learning(lambda _: {"luck": luck()}), "from the same view", id="uses-chance"),
        pytest.param(Learning(lambda _: {"now_at": time.time() // 1e9}), "nothing but the view", id="reads-the-clock"),
        pytest.param(Learning(lambda _: {1: 1.0}), "what was learned is 1, expected a string", id="no-name"),
        pytest.param(Learning(lambda _: {"text": "1"}), "text = '1', expected a number", id="no-number"),
        pytest.param(Learning(lambda _: None), "learned None, expected a mapping", id="nothing"),
        pytest.param(Learning(lambda _: Later()), "asynchronous, expected a plain method", id="asynchronous"),
        pytest.param(Learning(counts, falls_to_what_it_learned), "without lag", id="lowers-without-its-metrics"),
        pytest.param(Learning(counts, divides_by_what_it_learned), "division", id="cannot-use-what-it-learned"),
    ],
)
def test_a_bad_policy_that_learns_is_detected(policy: Learning, problem: str) -> None:
    with pytest.raises((AssertionError, ArithmeticError, LookupError, ValueError), match=problem):
        check_learner(policy)


@dataclass(frozen=True)
class Confident(Learning):
    """A policy that claims to evaluate the past itself, and answers by its function."""

    stabilizes: ClassVar[bool] = True


def falls_at_once(view: View) -> Recommendation:
    return steady(view, replicas=min(1, view.current), reason=Reason.BELOW)


def test_a_policy_that_lowers_the_size_at_once_needs_the_window() -> None:
    contract = PolicyContract()
    contract.test_it_asks_for_no_fewer_at_first_sight(Confident(counts, steady), views(METRICS))
    with pytest.raises(AssertionError, match="at first sight"):
        contract.test_it_asks_for_no_fewer_at_first_sight(Confident(counts, falls_at_once), views(METRICS))
    with pytest.raises(pytest.skip.Exception, match="relies on the guards"):
        contract.test_it_asks_for_no_fewer_at_first_sight(Learning(counts, falls_at_once), views(METRICS))


@dataclass(frozen=True)
class Moving(Scripted):
    """A policy that moves the bounds by a function.

    Attributes:
        moved: the function.
    """

    answer: Answer = steady
    moved: Callable[[datetime, Limits], Any] = lambda _, limits: Allowance(limits)

    def allow(self, now: datetime, limits: Limits) -> Allowance:
        return self.moved(now, limits)  # type: ignore[no-any-return]


def on_sundays(now: datetime, limits: Limits) -> Allowance:
    if now.weekday() == 6:
        return Allowance(Limits(0, limits.maximum), "it is Sunday")
    return Allowance(limits)


def at_night_the_wrong_way_round(now: datetime, limits: Limits) -> Allowance:
    return Allowance(Limits(limits.maximum, limits.minimum) if now.hour == 3 else limits)


def check_moving(policy: Any) -> None:
    """Run the contract's tests for policies that move the bounds on a policy."""
    with pytest.MonkeyPatch.context() as patch:
        PolicyContract().test_the_bounds_it_allows_are_bounds(policy, patch)


def test_a_good_policy_that_moves_the_bounds_passes() -> None:
    check_moving(Moving())
    check_moving(Moving(moved=on_sundays))


@pytest.mark.parametrize(
    ("moved", "problem"),
    [
        pytest.param(at_night_the_wrong_way_round, "max: must be|must not be above", id="minimum-above-maximum"),
        pytest.param(lambda _, limits: limits, "expected an Allowance", id="no-allowance"),
        pytest.param(lambda now, limits: None if now.weekday() else Allowance(limits), "allows None", id="nothing"),
        pytest.param(
            lambda _, limits: Allowance(limits, cast("str", 5)),
            "excluded is 5, expected a string or None",
            id="no-text",
        ),
        pytest.param(
            lambda _, limits: Allowance(Limits(limits.minimum, limits.maximum + 0.5)),
            "expected whole numbers",
            id="half-a-replica",
        ),
        pytest.param(
            lambda _, limits: Allowance(cast("Limits", (limits.minimum, limits.maximum))),
            "expected Limits",
            id="no-limits",
        ),
        pytest.param(
            lambda _, limits: Allowance(Limits(0, limits.maximum + round(luck()))),
            "allows something else",
            id="chance",
        ),
        pytest.param(lambda _, limits: Allowance(limits, str(time.time() // 1e9)), "nothing but the view", id="clock"),
    ],
)
def test_a_policy_that_allows_invalid_bounds_is_detected(moved: Any, problem: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=problem):
        check_moving(Moving(moved=moved))


@pytest.mark.parametrize("method", ["learn", "allow"])
def test_an_attribute_instead_of_a_method_is_detected(method: str) -> None:
    policy = type("Odd", (Scripted,), {method: 5})(steady)
    with pytest.raises(AssertionError, match=f"{method} is 5, expected a method"):
        check_learner(policy) if method == "learn" else check_moving(policy)


def test_a_mutable_policy_is_detected() -> None:
    @dataclass
    class Loose:
        """No parameters."""

    with pytest.raises(AssertionError, match="frozen"):
        PolicyContract().test_it_is_a_frozen_dataclass_with_described_parameters(Loose())  # type: ignore[arg-type]


def test_an_undescribed_parameter_is_detected() -> None:
    @dataclass(frozen=True)
    class Terse:
        """Says nothing."""

        bound: int = 1

    with pytest.raises(AssertionError, match="bound"):
        PolicyContract().test_it_is_a_frozen_dataclass_with_described_parameters(Terse())  # type: ignore[arg-type]


KEY = Secret("hunter2")


@dataclass(frozen=True)
class EdgeQuery:
    """No parameters."""


@dataclass(frozen=True)
class Edge:
    """A plug-in of any kind, good or with one fault.

    Attributes:
        fault: its fault.
        key: a secret.
        state: its state, outside its parameters.
    """

    Query: ClassVar[type] = EdgeQuery
    variables: ClassVar[tuple[str, ...]] = ("name", "labels")

    fault: str = ""
    key: Secret = KEY
    state: dict[str, Any] = field(default_factory=lambda: {"size": 1}, compare=False)

    def __hash__(self) -> int:
        return hash((self.fault, self.key))

    def __repr__(self) -> str:
        return f"Edge({str(self.key) if self.fault == 'shows its secret' else '***'})"

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[Live]:
        del shared
        if self.fault == "leaves a task":
            self.state["task"] = asyncio.create_task(asyncio.sleep(30))
        yield Live(self)


class Live:
    def __init__(self, spec: Edge) -> None:
        self.spec = spec

    async def collect(self, query: object, now: datetime) -> Reading:
        del query
        await self._fail()
        if self.spec.fault == "naive time":
            return Reading(1.0, now.replace(tzinfo=None))
        return Reading(float("nan") if self.spec.fault == "not a number" else 1.0, now)

    async def describe(self) -> Any:
        await self._fail()
        if self.spec.fault == "engine":
            return EngineStatus(job=JobState.RUNNING, slots=4, running_since=datetime.fromtimestamp(1, UTC))
        if self.spec.fault == "half a slot":
            return EngineStatus(job=JobState.RUNNING, slots=0.5)  # type: ignore[arg-type]
        return TargetStatus(self.spec.state["size"], 0)

    async def members(self) -> list[Any]:
        await self._fail()
        self.spec.state["size"] += 1
        values: dict[str, Any] = {"name": "a", "labels": {"team": "x"}}
        second = Member("b", {"name": "b", "labels": {}})
        match self.spec.fault:
            case "few":
                return [second]
            case "twice":
                return [second, second]
            case "no id":
                return [second, Member("", values)]
            case "bare":
                return [second, values]
            case "variable missing":
                del values["labels"]
            case "a number":
                values["name"] = 1
            case "a number in a label":
                values["labels"] = {"team": 1}
            case "new each time":
                return [second, Member(str(self.spec.state["size"]), values)]
        return [Member("a", values), second]

    async def scale(self, replicas: int) -> None:
        await self._fail()
        if replicas < 0 and self.spec.fault != "takes any size":
            raise ValueError("expected 0 or more")
        before = self.spec.state["size"]
        self.spec.state["size"] = before + replicas if self.spec.fault == "takes differences" else replicas

    async def _fail(self) -> None:
        await asyncio.sleep(0)
        match self.spec.fault:
            case "unreachable":
                raise UnavailableError("nobody is there")
            case "tells its secret":
                raise UnavailableError(f"nobody is there for {str(self.spec.key)}")  # noqa: RUF010 - the fault itself
            case "raises what it likes":
                raise OSError("nobody is there")
            case "hangs":
                await asyncio.sleep(0.4)
                raise UnavailableError("nobody is there")


SECRETS = ("hunter2",)


class Hasty(SourceContract):
    patience = 0.2


class TestGoodSource(SourceContract):
    @pytest.fixture
    def plugin(self) -> Any:
        return Edge()

    @pytest.fixture
    def query(self) -> object:
        return Edge.Query()

    @pytest.fixture
    def unreachable(self) -> Any:
        return Edge("unreachable")


class TestGoodEngine(EngineContract):
    @pytest.fixture
    def plugin(self) -> Any:
        return Edge("engine")

    @pytest.fixture
    def unreachable(self) -> Any:
        return Edge("unreachable")


class TestGoodTarget(TargetContract):
    @pytest.fixture
    def plugin(self) -> Any:
        return Edge()

    @pytest.fixture
    def unreachable(self) -> Any:
        return Edge("unreachable")


class TestGoodDiscovery(DiscoveryContract):
    @pytest.fixture
    def plugin(self) -> Any:
        return Edge()

    @pytest.fixture
    def unreachable(self) -> Any:
        return Edge("unreachable")


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("few", "two members or more"),
        ("twice", "several members have the id b"),
        ("no id", "the id is empty"),
        ("bare", "is not a Member"),
        ("variable missing", "has no labels"),
        ("a number", "name holds 1, expected strings"),
        ("a number in a label", "labels holds 1, expected strings"),
    ],
)
async def test_an_invalid_member_is_detected(fault: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        await DiscoveryContract().test_each_member_has_an_id_of_its_own_and_all_variables(Edge(fault))


async def test_members_that_differ_each_time_are_detected() -> None:
    with pytest.raises(AssertionError, match="the members differ"):
        await DiscoveryContract().test_two_answers_agree(Edge("new each time"))


async def test_an_empty_result_from_an_unreachable_system_is_detected() -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await DiscoveryContract().test_an_unreachable_system_is_an_edge_error_in_time(Edge(), SECRETS)


@pytest.mark.parametrize("names", [["name"], (), ("the name",)])
def test_variables_that_are_not_names_are_detected(names: Any) -> None:
    class Odd(Edge):
        variables = names

    with pytest.raises(AssertionError, match="variables"):
        DiscoveryContract().test_its_variables_are_names(Odd())


@pytest.mark.parametrize("fault", ["naive time", "not a number"])
async def test_an_invalid_reading_is_detected(fault: str) -> None:
    with pytest.raises(AssertionError, match=r"naive|finite"):
        await SourceContract().test_a_reading_is_finite_and_has_the_time_it_was_true(Edge(fault), Edge.Query())


async def test_an_error_that_is_not_an_edge_error_is_detected() -> None:
    source = Edge("raises what it likes")
    with pytest.raises(OSError, match="nobody"):
        await Hasty().test_an_unreachable_server_is_an_edge_error_in_time(source, Edge.Query(), SECRETS)


async def test_a_hanging_plug_in_is_detected() -> None:
    with pytest.raises(AssertionError, match="gave up after"):
        await Hasty().test_an_unreachable_server_is_an_edge_error_in_time(Edge("hangs"), Edge.Query(), SECRETS)


async def test_a_value_from_an_unreachable_server_is_detected() -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await Hasty().test_an_unreachable_server_is_an_edge_error_in_time(Edge(), Edge.Query(), SECRETS)


async def test_a_visible_secret_is_detected() -> None:
    with pytest.raises(AssertionError, match="secret"):
        SourceContract().test_its_text_shows_no_secret(Edge("shows its secret"), SECRETS)
    with pytest.raises(AssertionError, match="secret"):
        await Hasty().test_an_unreachable_server_is_an_edge_error_in_time(Edge("tells its secret"), Edge.Query(), ())


async def test_a_remaining_task_is_detected() -> None:
    edge = Edge("leaves a task")
    with pytest.raises(AssertionError, match="still run"):
        await SourceContract().test_it_leaves_no_task_behind(edge)
    edge.state["task"].cancel()


async def test_an_invalid_status_is_detected() -> None:
    with pytest.raises(AssertionError, match="not a count"):
        await EngineContract().test_its_status_makes_sense(Edge("half a slot"))


async def test_a_target_that_adds_up_requests_is_detected() -> None:
    class HastyTarget(TargetContract):
        patience = 0.2

    with pytest.raises(TimeoutError):
        await HastyTarget().test_asking_twice_is_asking_once(Edge("takes differences"), (2,))


async def test_a_target_that_accepts_any_size_is_detected() -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await TargetContract().test_a_negative_size_is_refused_and_changes_nothing(Edge("takes any size"))


SUITE = """
import pytest
from autoscaler.testing import PolicyContract
from autoscaler_policies.rules.target_tracking import TargetTracking

class TestGiven(PolicyContract):
    @pytest.fixture
    def policy(self):
        return TargetTracking("lag", 10)

class TestForgotten(PolicyContract):
    pass
"""


@pytest.mark.parametrize("strictness", [("-W", "error"), ("--strict-markers",)], ids=" ".join)
def test_the_author_of_a_policy_needs_no_plug_in_of_pytest_and_learns_what_to_override(
    tmp_path: Path, strictness: tuple[str, ...]
) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *strictness, "test_suite.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert re.search(r"\b8 passed, .*\b13 errors", run.stdout), run.stdout
    assert "override the fixture policy in your class" in run.stdout


def test_the_testing_package_needs_pytest_only_for_the_contracts() -> None:
    script = "import sys, autoscaler.testing, autoscaler.testing.fakes; sys.exit('pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
