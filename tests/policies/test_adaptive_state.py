"""The memory of the default policy is stored as numbers by name, and read back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model import MOST_LEARNED, Direction, Learned, Observation, Reading, RescaleTimes, View
from autoscaler_policies.adaptive.forecast import NORMAL_RATIO
from autoscaler_policies.adaptive.policy import Adaptive
from autoscaler_policies.adaptive.state import VERSION, VERSION_NAME, State
from tests.policies.conftest import NOW, make

NUMBERS = {
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "int": st.integers(0, 10**9),
    "bool": st.booleans(),
}


def any_number(kind: str, usual: object) -> st.SearchStrategy[object]:
    """A possible value of a field: finite numbers of its type, or its initial value, which may be None or infinite."""
    return st.one_of(st.just(usual), NUMBERS[kind.removesuffix(" | None")])


def sections() -> dict[str, Any]:
    return {section.name: getattr(State(), section.name) for section in fields(State)}


states = st.builds(
    State,
    **{
        name: st.builds(type(section), **{of.name: any_number(str(of.type), of.default) for of in fields(section)})
        for name, section in sections().items()
    },
)


def full() -> State:
    """Memory with a number in every field."""
    state = State()
    for section in sections():
        of_state = getattr(state, section)
        for of in fields(of_state):
            setattr(of_state, of.name, {"bool": True, "int | None": 7}.get(str(of.type), 0.5))
    return state


NAMES = set(full().dump())


@given(states)
def test_stored_memory_is_read_back_equal(state: State) -> None:
    memory = state.dump()
    assert State.load(memory) == state
    assert State.load(memory).dump() == memory


@given(states)
def test_finite_numbers_are_kept_under_known_names_and_not_too_many(state: State) -> None:
    memory = state.dump()
    assert all(type(number) is float and math.isfinite(number) for number in memory.values())
    assert memory[VERSION_NAME] == VERSION
    assert set(memory) <= NAMES
    assert len(memory) <= MOST_LEARNED


def test_every_field_is_stored_under_the_names_of_its_section_and_its_own() -> None:
    named = {f"{name}.{of.name}" for name, section in sections().items() for of in fields(section)}
    assert named | {VERSION_NAME} == NAMES
    assert len(NAMES) <= MOST_LEARNED
    assert State.load(full().dump()) == full()


def test_empty_memory_gives_the_initial_state() -> None:
    assert State.load({}) == State()


@pytest.mark.parametrize("version", [{}, {VERSION_NAME: 1.0}])
def test_memory_of_version_1_is_read_where_its_meaning_is_unchanged(version: Mapping[str, float]) -> None:
    state = State.load(
        {
            **version,
            "arrivals.seen_at": 1000.0,
            "arrivals.level": 340.0,
            "arrivals.jumped_at": 400.0,
            "arrivals.swing": 0.1,
            "trend.minutes": 2.0,
            "trend.quarter": 0.2,
            "line.now": 340.0,
            "outlast.mean": 330.0,
            "capacity.level": 4.6,
            "capacity.exponent": 0.85,
            "capacity.seconds": 900.0,
            "capacity.line.weight": 100.0,
            "size.4.deviation": 0.1,
            "season.trust": 0.5,
            "season.told": 360.0,
            "season.same": 340.0,
            "stall.up": 15.0,
            "checkpoint.interval": 60.0,
            "behind.since_at": 990.0,
            "spare.size": 4.0,
            "down.reserve": 0.05,
            "climb.size": 4.0,
            "plateau.rate": 450.0,
        }
    )
    expected = State()
    expected.arrivals.seen_at, expected.arrivals.level = 1000.0, 340.0
    expected.capacity.level, expected.capacity.exponent = 4.6, 0.85
    expected.idle.weight = 100.0
    expected.season.unchanged = 340.0
    expected.checkpoint.interval = 60.0
    expected.behind.since_at = 990.0
    expected.spare.size = 4
    expected.climb.size = 4.0
    expected.plateau.rate = 450.0
    assert state == expected


def test_swings_stored_without_their_mean_deviation_keep_their_width() -> None:
    state = State()
    state.lasting.weight, state.lasting.square = 100.0, 4.0
    former = {name: number for name, number in state.dump().items() if name != "lasting.absolute"}
    found = State.load(former).lasting
    assert NORMAL_RATIO * found.absolute / found.weight == pytest.approx(math.sqrt(4.0 / 100.0))
    assert State.load({**former, "lasting.weight": 0.0}).lasting.absolute == 0


def test_the_idle_cpu_that_version_1_learned_is_read() -> None:
    sums = {"weight": 10.0, "x": 5.0, "y": 6.0, "xx": 3.5, "xy": 3.8, "yy": 4.24}  # y = 0.2 + 0.8 x
    former = State.load({f"capacity.line.{name}": number for name, number in sums.items()})
    assert former == State.load({f"idle.{name}": number for name, number in sums.items()})
    assert former.idle.utilization() == pytest.approx(0.2)
    assert not any(name.startswith("capacity.line") for name in former.dump())


def test_a_later_version_is_not_read() -> None:
    assert State.load({**full().dump(), VERSION_NAME: VERSION + 1}) == State()


@pytest.mark.parametrize("name", ["level", "arrivals", "arrivals.", ".level", "arrivals.level.x", "arrivals.trust", ""])
def test_unknown_names_are_ignored(name: str) -> None:
    assert State.load({name: 5.0}) == State()


def test_a_derived_value_is_not_a_settable_field() -> None:
    assert State.load({"trend.trust": 0.5, "trend.rise": 5.0, "capacity.rate": 5.0}) == State()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_ignored(number: float) -> None:
    assert State.load(dict.fromkeys(NAMES - {VERSION_NAME}, number)) == State()
    state = full()
    state.arrivals.level = state.lasting.mean = state.idle.xx = number
    assert NAMES - set(state.dump()) == {"arrivals.level", "lasting.mean", "idle.xx"}


def test_integers_and_booleans_are_read_back_with_their_type() -> None:
    state = State.load({"spare.size": 4.0, "spare.enough": 3.0, "capacity.least": 1.0, "arrivals.doubted": 0.0})
    assert (state.spare.size, state.spare.enough) == (4, 3)
    assert type(state.spare.size) is type(state.spare.enough) is int
    assert state.capacity.least is True
    assert state.arrivals.doubted is False


# times


def lived(later: timedelta) -> list[Mapping[str, float]]:
    """The memory after each of many polls, all times shifted by so much."""
    policy = Adaptive(profile="usual")
    memory: Mapping[str, float] = {}
    past: tuple[Observation, ...] = ()
    found = []
    for number in range(160):
        at = NOW + later + timedelta(seconds=15 * number)
        size = 4 if number < 140 else 8
        behind = number > 130
        # a jump, then a ramp, then a job that cannot keep up with any number of workers
        arriving = 100.0 + number + 500.0 * (number >= 30)
        values: dict[str, Any] = {
            "lag": 100_000.0 if behind else 10.0,
            "arrivals": arriving,
            "throughput": 500.0 if behind else arriving,
            "utilization": 0.9,
            "usual": tuple(arriving + 4.0 * minute for minute in range(31)),
        }
        seen = make({}, current=size)
        metrics = {name: Reading(value, at, over=timedelta(seconds=60)) for name, value in values.items()}
        past = (*past, replace(seen.past[0], at=at, desired=size, ready=size, metrics=metrics))[-80:]
        assert seen.engine is not None
        view: View = replace(
            seen,
            now=at,
            metrics=metrics,
            past=past,
            memory=memory,
            learned=Learned(times={direction: (RescaleTimes(30.0, 30.0, 42.0, 42.0),) for direction in Direction}),
            engine=replace(seen.engine, last_checkpoint=at - timedelta(seconds=number % 4)),
        )
        memory = policy.learn(view)
        found.append(memory)
    return found


def test_exactly_the_names_that_end_in_at_are_times() -> None:
    shift = timedelta(days=3)
    known = set()
    for before, after in zip(lived(timedelta()), lived(shift), strict=True):
        assert set(before) == set(after)
        known |= set(before)
        for name, number in before.items():
            moved = shift.total_seconds() if name.endswith("_at") else 0.0
            assert after[name] == number + moved, name
    assert known == NAMES
