from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoscaler.core.expression import DEEPEST, FUNCTIONS, LONGEST, MOST_TOKENS, Expression

VALUES: Mapping[str, float | None] = {"one": 1.0, "two": 2.0, "five": 5.0, "none_yet": None, "count": 7.0}
NAMES = tuple(VALUES)


def result(text: str) -> float | None:
    return Expression(text).compute(VALUES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one + two", 3),
        ("(one + five) / two", 3),
        ("  7  ", 7),
        (".5 + 1.5e1", 15.5),
        # precedence and associativity
        ("1 + 2 * 3", 7),
        ("10 - 3 - 2", 5),
        ("100 / 10 / 2", 5),
        ("-2 ** 2", -4),
        ("2 ** 3 ** 2", 512),
        ("2 ^ 3", 8),
        ("-five + two", -3),
        ("+five - -two", 7),
        ("2 * -two", -4),
        ("7 % 4", 3),
        ("-7 % 4", -3),
        ("1 + none_yet ?? 3", 4),
        ("(none_yet ?? 3) + 1", 4),
        ("none_yet ?? none_yet ?? 9", 9),
        ("(one ?? five) / 1", 1),
        # conditions
        ("one > 2 ? one + two : 1", 1),
        ("one < 2 ? one + two >= 2 ? 5 : 10 : 0", 5),
        ("one > 2 ? 1 : two > 2 ? 2 : 3", 3),
        ("one >= 1 && two <= 2 ? 1 : 0", 1),
        ("one > 1 or two != 2 ? 1 : 0", 0),
        ("one > 1 || true and not false ? 1 : 0", 1),
        ("!(one == 1) ? 1 : 0", 0),
        ("one < 1 || one > 1 ? 1 : 0", 0),
        ("one <= 1 && one >= 1 ? 1 : 0", 1),
        ("(one == 1) == true ? 1 : 0", 1),
        ("(one == 1) != true ? 1 : 0", 0),
        ("none_yet == nil ? 0 : none_yet", 0),
        ("one != nil ? 4 : 0", 4),
        # functions
        ("count([one, two], {# > 1}) > 1 ? 5 : 0", 0),
        ("count([one, two, five], # > 1)", 2),
        ("max(one, two, five)", 5),
        ("min([one, two, five])", 1),
        ("sum([one, two, five])", 8),
        ("mean([one, two])", 1.5),
        ("median([5, 1, 2])", 2),
        ("median(5, 1, 2, 4)", 3),
        ("abs(-3) + ceil(1.2) + floor(1.8)", 6),
        ("round(2.5) + round(-2.5)", 0),
        ("int(2.9) + int(-2.9) + float(1)", 1),
        ("all([1, 2], # > 0) && none([1, 2], # > 2) ? 1 : 0", 1),
        ("any([1, 2], # > 1) && one([1, 2], # > 1) ? 1 : 0", 1),
        ("count([1, 2], count([1, 2, 3], # > 1) > #)", 1),
        ("count([1, none_yet], # != nil)", 1),
        ("sum(1, 2)", 3),
        ("max([one]) + min(-1, nil ?? 3)", 0),
        # as in Python
        ("five if one > 2 else two", 2),
        ("1 if one > 2 else 2 if one > 1 else 3", 3),
        ("(1 if one > 1 else 2) ** 2", 4),
        ("1 < two <= 2 < five ? 1 : 0", 1),
        ("1 < two < 2 ? 1 : 0", 0),
        ("one == 1 == true ? 1 : 0", 1),
        ("not one == 2 ? 1 : 0", 1),
        ("(one > 2 ? true : false) ? 1 : 0", 0),
        ("false || one > 0 ? 1 : 0", 1),
        ("first(none_yet, nil, two, five)", 2),
        ("first(one - 1, two)", 0),
        ("first([two, five])", 2),
        ("first([none_yet, five])", None),
        ("first([])", None),
        ("sum([]) + mean([]) + median([])", 0),
        ("sum([one, two], {# * 3})", 9),
        ("sum([], # * 3)", 0),
        ("count([], # > 1)", 0),
        # a name may be that of a function
        ("count + 1", 8),
        ("nil", None),
        ("none_yet", None),
        ("none_yet ?? none_yet", None),
    ],
)
def test_the_results_are_those_of_expr_lang(text: str, expected: float | None) -> None:
    assert result(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty, expected an expression such as max"),
        ("   ", "is empty"),
        ("1 +", "column 4: expected a number, a name or '(', not the end"),
        ("1 2", "column 3: expected an operator or the end, not '2'"),
        ("1 = 2", "column 3: expected an operator or the end, not '='"),
        (")", "column 1: expected a number, a name or '(', not ')'"),
        ("(1", "column 3: expected ')', not the end"),
        ("[1, 2]", "column 1: an array is the whole argument of a function"),
        ("max(true ? [1] : [2])", "column 12: an array is the whole argument of a function; write c ? max([a]) : max("),
        ("max(1 2)", "column 7: expected ',' or ')', not '2'"),
        ("max([1 2])", "column 8: expected ',' or ']', not '2'"),
        ("max([1", "column 7: expected ',' or ']', not the end"),
        ("one ? 1 : 2", "column 1: this is a number, expected a condition: a comparison such as lag > 2"),
        ("true ? 1", "column 9: expected ':', not the end"),
        ("1 if true", "column 10: expected 'else', not the end"),
        ("true ? 1 : false", "column 6: expected numbers or conditions on both sides, not one of each"),
        ("eval(1)", "column 1: eval() is not supported here; functions: max, min, first"),
        ("1 + filter([1], # > 0)", "column 5: filter() is not supported here; functions: max"),
        ("map([1], # + 1)", "column 1: map() is not supported here"),
        ("one.real", "column 4: expected an operator or the end, not '.'"),
        ("'text'", "column 1: expected a number, a name or '(', not \"'\""),
        ("else", "column 1: expected a number, a name or '(', not 'else'"),
        ("#", "column 1: expected a number, a name or '(', not '#'"),
        ("count([1], # > 0) + #", "column 21: expected a number, a name or '(', not '#'"),
        ("count([1], {# > 0)", "column 18: expected '}', not ')'"),
        ("none_yet ?? one + 2", "column 17: expected brackets: ??"),
        ("one > 1", "column 1: this is a condition, expected a number"),
        ("one + true", "column 7: this is a condition, expected a number"),
        ("true && 1", "column 9: this is a number, expected a condition"),
        ("true == 1", "column 9: this is a number, expected a condition"),
        ("!one ? 1 : 2", "column 2: this is a number, expected a condition"),
        ("-true", "column 2: this is a condition, expected a number"),
        ("max([true])", "column 6: this is a condition, expected a number"),
        ("max([[1]])", "column 6: an array is the whole argument of a function"),
        ("max()", "column 1: max takes numbers, as in max(a, b)"),
        ("first()", "column 1: first takes numbers, as in first(a, b)"),
        ("max([1], 2)", "column 10: this is a number, expected a condition"),
        ("max([1], # > 2)", "column 1: max takes numbers, as in max(a, b)"),
        ("sum([1], # > 2)", "column 10: this is a condition, expected a number"),
        ("abs(1, 2)", "column 1: abs takes one number, as in abs(a)"),
        ("abs([1])", "column 1: abs takes one number"),
        ("count([1])", "column 1: count takes an array and a test, as in count([a, b], {# > 1})"),
        ("count(1)", "column 1: count takes an array and a test"),
        ("1e999", "column 1: expected a finite number"),
        ("\u00b2", "column 1: expected a number"),
        ("\u00f6", "column 1: expected a number"),
        ("1" * (LONGEST + 1), f"has {LONGEST + 1} characters, expected at most {LONGEST}"),
        ("1" + "+1" * MOST_TOKENS, f"expected at most {MOST_TOKENS}"),
        ("(" * (DEEPEST + 1), f"column {DEEPEST + 1}: nested more than {DEEPEST} deep"),
        ("2**" * DEEPEST + "2", f"nested more than {DEEPEST} deep"),
        ("1 if " + "not " * DEEPEST + "true else 2", f"nested more than {DEEPEST} deep"),
    ],
)
def test_a_syntax_error_reports_the_problem_and_its_column(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Expression(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("none_yet + 1", "has nil in '\\+' at column 1, expected a number; nil \\?\\? 0 gives one"),
        ("max(1, none_yet)", "has nil in 'max' at column 1"),
        ("none_yet > 1 ? 1 : 2", "has nil in '>' at column 1"),
        ("sum([1, none_yet])", "has nil in 'sum'"),
        ("1 / (one - 1)", "cannot compute '/' at column 1: float division by zero"),
        ("one % 0", "cannot compute '%' at column 1"),
        ("(-8) ** 0.5", "cannot compute '\\*\\*' at column 2"),
        ("10 ** 999", "cannot compute '\\*\\*' at column 1"),
        ("1e308 * 10", "cannot compute '\\*' at column 1: it gives inf"),
        ("sum([1e308, 1e308])", "cannot compute 'sum' at column 1"),
        ("max([])", "cannot compute 'max' at column 1"),
        ("sum([one, none_yet], # + 1)", "has nil in '\\+'"),
        ("sum([1], none_yet)", "has nil in 'sum'"),
        ("first([1, 1 / 0])", "cannot compute '/' at column 11"),
    ],
)
def test_an_evaluation_error_reports_the_problem_and_its_column(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        result(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lag if lag else cpu", 6),
        ("1 if off else cpu", 2),
        ("1 if cpu else current", 4),
        ("max(off, cpu)", 2),
        ("max(off, 9)", None),
        ("min(off, current)", None),
        ("max(off, lag * 2)", 12),
        ("max(off, max(cpu, 9) + 0)", None),
        ("off == nil ? 1 : 2", 1),
    ],
)
def test_in_a_formula_of_sizes_a_name_is_a_policy(text: str, expected: float | None) -> None:
    sizes = {"lag": 6.0, "cpu": 2.0, "off": None, "current": 4.0}
    assert Expression(text, sizes=True).compute(sizes) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("off + 1", "the policy off abstains, and its size is needed; first(off, ...) takes another one"),
        ("lag == off ? 1 : 2", "the policy off abstains"),
        ("nil + 1", "has nil in '+' at column 1"),
    ],
)
def test_in_a_formula_of_sizes_an_abstaining_policy_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Expression(text, sizes=True).compute({"lag": 6.0, "off": None, "current": 4.0})
    assert message in str(caught.value)


def test_in_a_formula_of_sizes_numbers_are_limited_and_current_is_not_a_condition() -> None:
    with pytest.raises(ValueError, match="column 7: numbers go up to 1,000,000"):
        Expression("lag + 1000001", sizes=True)
    with pytest.raises(ValueError, match="column 6: this is a number, expected a condition: a policy, true while"):
        Expression("1 if current else 2", sizes=True)


@pytest.mark.parametrize("text", ["max([])", "sum([])", "first([lag, cpu])"])
def test_in_a_formula_of_sizes_functions_need_a_size_and_first_refuses_arrays(text: str) -> None:
    with pytest.raises(ValueError, match=r"column 1: \w+ takes numbers, as in"):
        Expression(text, sizes=True)


def test_the_names_in_a_formula_have_their_columns() -> None:
    assert Expression("max(lag, cpu) + lag - count([web], # > max)").names == {
        "lag": 5,
        "cpu": 10,
        "web": 30,
        "max": 40,
    }


def test_the_longest_and_deepest_allowed_formulas_are_computed() -> None:
    assert result("1" + "+1" * (MOST_TOKENS // 2 - 1)) == MOST_TOKENS // 2
    assert result("(" * (DEEPEST - 1) + "1" + ")" * (DEEPEST - 1)) == 1


tokens = st.sampled_from(
    (
        *NAMES,
        *FUNCTIONS,
        *"()[]{}#?:,+-*/%^!<>=. 0123456789",
        "??",
        "&&",
        "||",
        "==",
        "**",
        "nil",
        "true",
        "and",
        "not ",
    )
)
texts = st.lists(tokens, max_size=40).map(" ".join) | st.text(max_size=60)
whole = st.recursive(
    st.sampled_from((*NAMES, "1", "2.5", "nil")),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/%^"), inner).map(lambda t: f"({' '.join(t)})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} > {t[1]} ? {t[2]} : {t[0]})"),
        st.tuples(inner, inner).map(lambda t: f"({t[0]} ?? {t[1]})"),
        st.tuples(st.sampled_from(("max", "min", "mean")), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        st.tuples(inner, inner).map(lambda t: f"count([{t[0]}, {t[1]}], # != nil)"),
    ),
    max_leaves=12,
)
numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)  # a busy machine is not a failure
@given(text=texts | whole, values=st.fixed_dictionaries(dict.fromkeys(NAMES, numbers)))
@example(text="one ** two", values={**VALUES, "one": -1e308, "two": 0.5})
def test_gives_a_number_or_nil_or_a_value_error_and_nothing_else(text: str, values: Mapping[str, float | None]) -> None:
    try:
        found = Expression(text).compute(values)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - an error is as good as a number, if it says something
        return
    assert found is None or (type(found) is float and math.isfinite(found))


def test_sizes_are_rounded_half_up_and_other_numbers_half_away_from_zero() -> None:
    assert Expression("round(x - 1)", sizes=True).compute({"x": 0.5}) == 0
    assert Expression("round(x - 1)").compute({"x": 0.5}) == -1
