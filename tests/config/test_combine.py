from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config import combine
from autoscaler.config.combine import Expression, read
from autoscaler.config.model import Config
from autoscaler.core.combine import combined_size as combined
from autoscaler.core.model import MAX_REPLICAS, ClusterState, NamedPolicy, Observation, Reading, Reason, Recommendation
from autoscaler.core.step import step
from tests.core.build import T0, Asks, Fixed, spec

POLICIES = ("lag", "cpu", "capacity", "urgent")


def proposed(text: str, current: int = 4, **sizes: int | None) -> tuple[int, str | None]:
    """The core's result of an expression, and the reason why it is untrusted."""
    asked = tuple(
        Recommendation(sizes.get(name), Reason.STEADY if name in sizes else Reason.ABSTAINED, policy=name)
        for name in POLICIES
    )
    return combined(asked, current, read(text, POLICIES))


@pytest.mark.parametrize(
    ("text", "sizes", "expected"),
    [
        ("lag", {"lag": 3}, 3),
        ("max(lag, cpu)", {"lag": 3, "cpu": 5}, 5),
        ("max(lag, cpu)", {"cpu": 5}, 5),
        ("min(lag, cpu, 12)", {"lag": 30, "cpu": 15}, 12),
        ("min(lag, cpu)", {"lag": 3}, 3),
        ("max(lag, 2)", {"lag": 1}, 2),
        ("first(lag, capacity)", {"lag": 3, "capacity": 9}, 3),
        ("first(lag, capacity)", {"capacity": 9}, 9),
        ("first(lag, 6)", {}, 6),
        ("first(lag, current)", {}, 4),
        ("max(first(lag, 2), cpu)", {"cpu": 1}, 2),
        # a policy is true while it requests more than the present size
        ("lag if urgent else capacity", {"urgent": 5, "lag": 20, "capacity": 3}, 20),
        ("lag if urgent else capacity", {"urgent": 4, "lag": 20, "capacity": 3}, 3),
        ("lag if urgent else capacity", {"urgent": 1, "lag": 20, "capacity": 3}, 3),
        ("lag if urgent else capacity", {"lag": 20, "capacity": 3}, 3),
        ("lag if not urgent else capacity", {"lag": 20, "capacity": 3}, 20),
        ("lag if urgent and cpu else 7", {"urgent": 5, "cpu": 5, "lag": 9}, 9),
        ("lag if urgent and cpu else 7", {"urgent": 5, "lag": 9}, 7),
        ("lag if urgent or cpu else 7", {"cpu": 5, "lag": 9}, 9),
        ("lag if lag > current + 2 else current", {"lag": 6}, 4),
        ("lag if lag > current + 2 else current", {"lag": 7}, 7),
        ("lag if 1 < lag <= 8 and not cpu else 1", {"lag": 8, "cpu": 2}, 8),
        ("lag if lag == cpu else 1", {"lag": 8, "cpu": 8}, 8),
        ("lag if lag != cpu else 1", {"lag": 8, "cpu": 8}, 1),
        ("lag if lag >= cpu else 1", {"lag": 8, "cpu": 8}, 8),
        ("lag if lag < cpu else 1", {"lag": 8, "cpu": 8}, 1),
        # arithmetic, rounded up at the end
        ("lag * 1.1", {"lag": 10}, 11),
        ("lag * 1.15", {"lag": 10}, 12),
        ("(lag + cpu) / 2", {"lag": 10, "cpu": 5}, 8),
        ("floor((lag + cpu) / 2)", {"lag": 10, "cpu": 5}, 7),
        ("round(lag / 4)", {"lag": 10}, 3),
        ("round(lag / 4)", {"lag": 9}, 2),
        ("round(lag - 4.5) + 5", {"lag": 2}, 3),  # -2.5 is rounded to -2: halves up
        ("round(lag - 4.5) + 5", {"lag": 3}, 4),
        ("ceil(lag / 4) + 1", {"lag": 9}, 4),
        ("max(lag - 5, 1)", {"lag": 3}, 1),
        ("-lag + 10 - +2", {"lag": 3}, 5),
        ("max(lag * 1.5, 2)", {"lag": 4}, 6),
        ("current", {}, 4),
        ("\n  max(lag,\n      cpu)\n", {"lag": 3, "cpu": 5}, 5),
    ],
)
def test_an_expression_gives_the_size(text: str, sizes: dict[str, int], expected: int) -> None:
    assert proposed(text, **sizes) == (expected, None)


@pytest.mark.parametrize(
    "text",
    ["lag", "max(lag, cpu)", "min(lag, cpu)", "first(lag, cpu)", "max(lag, 9)", "min(lag, 9)", "max(lag, current + 5)"],
)
def test_if_all_named_policies_abstain_the_size_stays(text: str) -> None:
    assert proposed(text, capacity=20) == (4, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lag + 1", "the policy lag abstains, and its size is needed; first(lag, ...) takes another one"),
        ("max(cpu, lag * 2)", "the policy lag abstains"),
        ("-lag", "the policy lag abstains"),
        ("round(lag)", "the policy lag abstains"),
        ("cpu if lag > 2 else 1", "the policy lag abstains"),
        ("cpu if 2 < cpu < lag else 1", "the policy lag abstains"),
        ("cpu / (cpu - 5)", "cannot compute '/' at column 1: float division by zero"),
        ("first(cpu, cpu / 0)", "cannot compute '/' at column 12: float division by zero"),
        ("first(lag, cpu, lag * 2)", "the policy lag abstains"),
        ("cpu - 10", "they give -5.0, expected 0 to 1000000"),
        ("cpu * 1000000", "they give 5000000"),
        ("cpu / 2 * 1000000", "they give 2500000.0"),
    ],
)
def test_a_failing_expression_is_reported_and_the_greatest_size_counts(text: str, problem: str) -> None:
    size, why = proposed(text, cpu=5, capacity=7)
    assert size == 7
    assert why is not None
    assert why.startswith("the policies cannot be combined: ")
    assert problem in why


def test_an_overflow_is_reported_too() -> None:
    powers = [f"ceil({'*'.join(['1000000'] * 13)})"] * 4
    with pytest.raises(ValueError, match="it gives inf"):
        Expression(f"{'*'.join(powers)}*cpu").combine({"cpu": 5}, 4)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty, expected an expression"),
        ("  \n", "is empty"),
        ("max(lag, cpu", "column 13: expected ',' or ')', not the end"),
        ("lag cpu", "column 5: expected an operator or the end, not 'cpu'"),
        ("lag +", "column 6: expected a number, a name or '(', not the end"),
        ("lag = 3", "column 5: expected an operator or the end, not '='"),
        ("lagg", "column 1: there is no policy 'lagg'; did you mean 'lag'?"),
        ("max(lag, xyz)", "column 10: there is no policy 'xyz'; policies: lag, cpu, capacity, urgent"),
        ("lag if xyz else cpu", "column 8: there is no policy 'xyz'"),
        ("max", "column 1: max is a function; write max(...)"),
        ("max + 1", "column 1: max is a function"),
        ("lag if first else cpu", "column 8: first is a function"),
        ("len(lag, cpu)", "column 1: len() is not supported here; functions: max, min, first, round, ceil, floor"),
        ("lag(cpu)", "column 1: lag() is not supported here"),
        ("lag.real(1)", "column 4: expected an operator or the end, not '.'"),
        ("(lambda: lag)()", "column 8: expected ')', not ':'"),
        ("max()", "column 1: max takes numbers, as in max(a, b)"),
        ("max(lag, default=cpu)", "column 17: expected ',' or ')', not '='"),
        ("max(*lag)", "column 5: expected a number, a name or '(', not '*'"),
        ("round(lag, 2)", "column 1: round takes one number, as in round(a)"),
        ("lag // 2", "column 6: expected a number, a name or '(', not '/'"),
        ("~lag", "column 1: expected a number, a name or '(', not '~'"),
        ("lag[0]", "column 4: expected an operator or the end, not '['"),
        ("'lag'", "column 1: expected a number, a name or '('"),
        ("[lag for cpu in urgent]", "column 1: expected a number, a name or '(', not '['"),
        ("(lag := 2)", "column 6: expected ')', not ':'"),
        ("True", "column 1: there is no policy 'True'"),
        ("2j", "column 2: expected an operator or the end, not 'j'"),
        ("(lag, cpu)", "column 5: expected ')', not ','"),
        ("1000001", "column 1: numbers go up to 1,000,000"),
        ("lag * 1e400", "column 7: numbers go up to 1,000,000"),
        ("lag > cpu", "column 1: this is a condition, expected a number; write `a if condition else b`"),
        ("lag or cpu", "column 1: this is a condition"),
        ("not lag", "column 1: this is a condition"),
        ("max(lag, cpu and urgent)", "column 10: this is a condition"),
        (
            "lag if current else cpu",
            "column 8: this is a number, expected a condition: a policy, true while it asks for more, or a comparison",
        ),
        ("lag if lag - 2 else cpu", "column 8: this is a number, expected a condition"),
        ("lag if max(lag, cpu) else cpu", "column 8: this is a number, expected a condition"),
        ("lag if lag in cpu else cpu", "column 12: expected 'else', not 'in'"),
        ("lag + Größe", "column 9: expected an operator or the end, not 'ö'"),
        ("lag # or cpu", "column 5: expected an operator or the end, not '#'"),
        ("max(lag, # the main one\n  cpu)", "column 10: expected a number, a name or '(', not '#'"),
        ("lag\0", "column 4: expected an operator or the end, not '\\x00'"),
        ("lag + " * 200 + "1", "has 1201 characters, expected at most 1000"),
        ("lag if " + "not " * 55 + "cpu else 1", "nested more than 50 deep"),
        ("(" * 60 + "lag" + ")" * 60, "nested more than 50 deep"),
        ("-" * 190 + "1", "nested more than 50 deep"),
    ],
)
def test_an_invalid_expression_is_refused_with_its_position(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read(text, POLICIES)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("opening", "inner", "closing", "deepest"),
    [
        ("-", "lag", "", 49),
        ("1+(", "lag", ")", 24),
        ("max(", "lag", ")", 49),
    ],
)
def test_the_nesting_depth_is_limited_in_every_form(opening: str, inner: str, closing: str, deepest: int) -> None:
    assert read(opening * deepest + inner + closing * deepest, POLICIES).names
    deeper = deepest + 1
    with pytest.raises(ValueError, match="nested more than 50 deep"):
        read(opening * deeper + inner + closing * deeper, POLICIES)


def test_the_number_of_characters_is_limited() -> None:
    assert read("lag" + "+1" * 8 + " " * 1000, POLICIES).names == ("lag",)  # leading and trailing spaces do not count
    longest = f"max({'lag, ' * 90}cpu{' ' * 542})"
    assert len(longest) == 1000
    assert Expression(longest).names == ("lag", "cpu")
    with pytest.raises(ValueError, match="has 1001 characters, expected at most 1000"):
        Expression(longest.replace("max(", "max( "))


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("backlog-drain", "max(backlog-drain, cpu)", "has other characters than letters, digits and _"),
        ("team.lag", "team.lag", "has other characters than letters, digits and _"),
        ("2nd", "max(2nd, cpu)", "has other characters than letters, digits and _"),
        ("max", "max(cpu, max)", "is a word of expressions"),
        ("current", "max(cpu, current)", "is a word of expressions"),
        ("if", "max(if, cpu)", "is a word of expressions"),
    ],
)
def test_a_policy_with_a_name_that_cannot_be_written_is_distinguished_from_a_mistake(
    name: str, text: str, why: str
) -> None:
    with pytest.raises(ValueError, match="rename the policy") as caught:
        read(text, (name, "cpu"))
    assert str(caught.value) == f"the policy {name!r} cannot be named here, as its name {why}; rename the policy"
    # such a policy may exist if the expression does not name it
    assert read("cpu + 2", (name, "cpu", "a-b")).names == ("cpu",)


def test_a_policy_may_have_the_name_of_a_function() -> None:
    assert read("max(sum, count) + abs(one)", ("sum", "count", "one")).names == ("sum", "count", "one")


def test_a_difference_is_not_taken_for_a_name_with_a_hyphen() -> None:
    assert read("lag - cpu", (*POLICIES, "lag-cpu")).combine({"lag": 9, "cpu": 3}, 4) == 6


def test_a_policy_that_only_moves_the_bounds_gives_no_size() -> None:
    with pytest.raises(
        ValueError, match="column 10: the policy calendar moves the bounds and asks for no size; leave it"
    ):
        read("max(lag, calendar)", ("lag", "calendar"), silent=("calendar",))


def test_an_expression_can_be_pickled_and_its_string_is_its_text() -> None:
    expression = read("max(lag,  cpu,\n lag)", POLICIES)
    assert str(expression) == "max(lag, cpu, lag)"
    assert expression.names == ("lag", "cpu")
    again = pickle.loads(pickle.dumps(expression))  # noqa: S301 - our own
    assert again == expression
    assert hash(again) == hash(expression)
    assert again.combine({"lag": 3, "cpu": 5}, 4) == 5


def test_an_expression_created_without_a_file_is_checked_too() -> None:
    with pytest.raises(ValueError, match="expected an operator"):
        Expression("lag.__class__")
    with pytest.raises(ValueError, match="there is no policy cpu"):
        Expression("max(lag, cpu)").combine({"lag": 3}, 4)


def test_threads_do_not_mix_their_sizes() -> None:
    expression, start = Expression("max(lag, cpu) + lag - lag"), threading.Barrier(4)

    def many(size: int) -> bool:
        start.wait()
        return all(expression.combine({"lag": size, "cpu": size - 1}, 4) == size for _ in range(300))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(many, (3, 50, 700, 9000)))


sizes = st.one_of(st.none(), st.integers(0, 50))
numbers = st.one_of(st.sampled_from((*POLICIES, "current")), st.integers(0, 60).map(str), st.just("1.5"))
texts = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["max", "min", "first"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        st.tuples(st.sampled_from(["round", "ceil", "floor"]), inner).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, st.sampled_from(POLICIES), inner).map(lambda t: f"({t[0]} if not {t[1]} else {t[2]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} < {t[2]} else {t[1]})"),
    ),
    max_leaves=6,
)


@given(text=texts, asked=st.tuples(*[sizes] * len(POLICIES)), current=st.integers(0, 50))
def test_any_expression_gives_a_size_or_none_or_a_reason(
    text: str, asked: tuple[int | None, ...], current: int
) -> None:
    asked_sizes = dict(zip(POLICIES, asked, strict=True))
    try:
        size = read(text, POLICIES).combine(asked_sizes, current)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either outcome is right
        return
    assert size is None or isinstance(size, int | float)
    # if no policy abstains it is Python's own arithmetic
    if None not in asked:
        names = {name: Truth(number, current) for name, number in asked_sizes.items()}
        functions = {"max": max, "min": min, "first": lambda a, _: a, "ceil": math.ceil, "floor": math.floor}
        functions["round"] = lambda number: math.floor(number + 0.5)
        expected = eval(text, {"__builtins__": {}}, {**names, **functions, "current": current})  # noqa: S307 - ours
        assert size == expected


class Truth(int):
    """A size that is true while it is above the present one."""

    above: bool

    def __new__(cls, size: int | None, current: int) -> Self:
        made = super().__new__(cls, size or 0)
        made.above = (size or 0) > current
        return made

    def __bool__(self) -> bool:
        return self.above


@given(text=st.text(st.characters(codec="ascii"), max_size=40) | st.text(max_size=40))
def test_any_text_is_only_read_or_refused(text: str) -> None:
    try:
        expression = read(text, POLICIES)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either outcome is right
        return
    size, _ = combined((), 4, replace(expression))
    assert 0 <= size <= MAX_REPLICAS


def test_a_step_decides_by_the_expression() -> None:
    a_spec = spec(Fixed(7), Asks(), combine=Expression("p1 if p0 else p0"))
    readings = {"ask": Reading(9.0, T0)}
    state, decision = step(a_spec, ClusterState(), Observation(at=T0, desired=4, ready=4, metrics=readings))
    assert (decision.proposed, decision.combined) == (9, "p1 if p0 else p0")
    assert state.rescale is not None


# in a file


@pytest.fixture
def two(good: str) -> str:
    """Two policies, followed by a line for the expression."""
    return f"{good}      urgent: {{type: stub-policy, within: 10s}}\n    combine: max(calm, urgent)\n"


def test_a_file_may_have_an_expression(accepted: Callable[..., Config], two: str, good: str) -> None:
    config = accepted(two)
    assert config.clusters["demo"].spec.combine == Expression("max(calm, urgent)")
    assert config.warnings == ()
    assert accepted(good).clusters["demo"].spec.combine is None
    assert accepted(f"{good}    combine:\n").clusters["demo"].spec.combine is None


def test_unused_policies_give_a_warning(accepted: Callable[..., Config], two: str) -> None:
    (warning,) = accepted(two.replace("max(calm, urgent)", "urgent")).warnings
    assert warning.endswith(
        "autoscaler.yaml:14: clusters.demo.combine: the expression does not name calm, so its size is ignored; "
        "a missing input of it still prevents scaling down"
    )
    (warning,) = accepted(two.replace("max(calm, urgent)", "'12'")).warnings
    assert warning.endswith(
        "the expression does not name calm, urgent, so their sizes are ignored; "
        "a missing input of them still prevents scaling down"
    )


def test_a_schedule_neither_needs_to_be_used_nor_gives_a_size(
    accepted: Callable[..., Config], refused: Callable[..., list[str]], two: str
) -> None:
    window = "{name: day, start: '0 8 * * *', end: '0 18 * * *', min: 2}"
    with_schedule = two.replace(
        "    combine:", f"      calendar: {{type: schedule, windows: [{window}]}}\n    combine:"
    )
    assert accepted(with_schedule).warnings == ()
    assert refused(with_schedule.replace("max(calm", "max(calendar")) == [
        "15: clusters.demo.combine: column 5: the policy calendar moves the bounds and asks for no size; leave it out"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max(clm, urgent)", "column 5: there is no policy 'clm'; did you mean 'calm'?"),
        ("max(calm, urgent", "column 17: expected ',' or ')', not the end"),
        ("12", "expected a string, not the number 12; if it is meant as a string, put it in quotes: '12'"),
        ("''", "is empty, expected an expression such as max(lag, cpu)"),
        ("calm.real", "column 5: expected an operator or the end, not '.'"),
    ],
)
def test_a_file_with_an_invalid_expression_is_refused_at_its_line(
    refused: Callable[..., list[str]], two: str, text: str, problem: str
) -> None:
    (found,) = refused(two.replace("max(calm, urgent)", text))
    assert found.startswith(f"14: clusters.demo.combine: {problem}")


def test_an_invalid_policy_is_still_a_known_name(refused: Callable[..., list[str]], two: str) -> None:
    (found,) = refused(two.replace("within: 10s", "within: 10"))
    assert found.startswith("13: clusters.demo.policies.urgent.within: ")
    (found,) = refused("\n".join(line for line in two.splitlines() if "stub-policy" not in line))
    assert "policies" in found


def test_only_a_literal_false_says_that_a_policy_requests_no_size() -> None:
    @dataclass(frozen=True)
    class Odd(Fixed):
        asks: object = None

    policies = [NamedPolicy(f"p{i}", Odd(3, asks)) for i, asks in enumerate((None, 0, "no", False))]
    assert combine.silent(policies) == ("p3",)
