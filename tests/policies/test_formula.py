from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoscaler_policies.keda.formula import DEEPEST, FUNCTIONS, LONGEST, MOST_TOKENS, compute, parse

VALUES: Mapping[str, float | None] = {"one": 1.0, "two": 2.0, "five": 5.0, "none_yet": None, "count": 7.0}
NAMES = tuple(VALUES)


def result(text: str) -> float | None:
    return compute(parse(text, NAMES), VALUES)


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
        ("sum([one, two, five], {# * 2})", 16),
        ("sum([])", 0),
        ("mean([one, two])", 1.5),
        ("mean([])", 0),
        ("median([5, 1, 2])", 2),
        ("median(5, 1, 2, 4)", 3),
        ("median([])", 0),
        ("abs(-3) + ceil(1.2) + floor(1.8)", 6),
        ("round(2.5) + round(-2.5)", 0),
        ("int(2.9) + int(-2.9) + float(1)", 1),
        ("len(filter([one, two, five], {# >= 2}))", 2),
        ("max(filter([one, none_yet, five], # != nil))", 5),
        ("sum(map([one, two], {# + 1}))", 5),
        ("all([1, 2], # > 0) && none([1, 2], # > 2) ? 1 : 0", 1),
        ("any([1, 2], # > 1) && one([1, 2], # > 1) ? 1 : 0", 1),
        ("first([two, one]) - last([two, one])", 1),
        ("first([]) ?? 3", 3),
        ("last([]) ?? 4", 4),
        ("sum([1, 2], count([1, 2, 3], # > 1) + #)", 7),
        # a name may be that of a function
        ("count + 1", 8),
        ("nil", None),
        ("none_yet", None),
        ("none_yet ?? none_yet", None),
    ],
)
def test_computes_what_expr_lang_computes(text: str, expected: float | None) -> None:
    assert result(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has the end at character 1, expected a number"),
        ("1 +", "has the end at character 4, expected a number"),
        ("1 2", "has '2' at character 3, expected an operator or the end"),
        ("1 = 2", "has '=' at character 3, expected an operator"),
        (")", r"has '\)' at character 1, expected a number"),
        ("(1", r"has the end at character 3, expected '\)'"),
        ("[1, 2", "has the end at character 6, expected ','"),
        ("max(1 2)", "has '2' at character 7, expected ','"),
        ("one ? 1 : 2", "has a number at character 1, expected true or false before '\\?'"),
        ("true ? 1", "has the end at character 9, expected ':'"),
        ("true ? 1 : [1]", "has '\\?' at character 6, expected both sides alike, not a number and an array"),
        ("three", "has 'three' at character 1, expected one of the names one, two"),
        ("eval(1)", "has 'eval' at character 1, expected one of the functions abs, ceil"),
        ("__import__", "has '__import__' at character 1, expected one of the names"),
        ("one.real", "has '.' at character 4, expected an operator"),
        ("'text'", 'has "\'" at character 1, expected a number'),
        ("#", "has '#' at character 1, expected a number"),
        ("count([1], # > 0) + #", "has '#' at character 21, expected a number"),
        ("count([1], {# > 0)", "has '\\)' at character 18, expected '}'"),
        ("none_yet ?? one + 2", "has '\\+' at character 17, expected brackets: \\?\\?"),
        ("one > 1", "gives true or false, expected a number"),
        ("[one]", "gives an array of numbers, expected a number"),
        ("one + true", "has true or false at character 7, expected a number beside '\\+'"),
        ("true && 1", "has a number at character 9, expected true or false beside '&&'"),
        ("!one ? 1 : 2", "has a number at character 2, expected true or false after '!'"),
        ("-true", "has true or false at character 2, expected a number after '-'"),
        ("[true]", "has true or false at character 2, expected a number in an array"),
        ("[[1]]", "has an array of numbers at character 2, expected a number in an array"),
        ("max()", "has 'max' at character 1, expected max\\(numbers or an array\\), not of nothing"),
        ("max([1], 2)", "expected max\\(numbers or an array\\), not of an array of numbers, a number"),
        ("abs(1, 2)", "expected abs\\(a number\\), not of a number, a number"),
        ("len(1)", "expected len\\(an array\\), not of a number"),
        ("sum(1, 2)", "expected sum\\(an array\\), not of a number, a number"),
        ("count([1])", "expected count\\(an array and a test like {# > 1}\\), not of an array of numbers"),
        ("map([1], # > 1)", "expected map\\(an array and a number like {# \\* 2}\\)"),
        ("1e999", "has '1e999' at character 1, expected a finite number"),
        ("\u00b2", "at character 1, expected a number"),
        ("1" * (LONGEST + 1), f"has {LONGEST + 1} characters, expected at most {LONGEST}"),
        ("1" + "+1" * MOST_TOKENS, f"expected at most {MOST_TOKENS}"),
        ("(" * (DEEPEST + 1), f"at character {DEEPEST + 1}, expected at most {DEEPEST} levels"),
    ],
)
def test_says_when_it_is_read_what_is_wrong_and_where(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text, NAMES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("none_yet + 1", "has nil in '\\+' at character 1, expected a number; nil \\?\\? 0 gives one"),
        ("max(1, none_yet)", "has nil in 'max' at character 1"),
        ("none_yet > 1 ? 1 : 2", "has nil in '>' at character 1"),
        ("sum([1, none_yet])", "has nil in 'sum'"),
        ("sum([1], none_yet)", "has nil in 'sum'"),
        ("1 / (one - 1)", "cannot compute '/' at character 1: float division by zero"),
        ("one % 0", "cannot compute '%' at character 1"),
        ("(-8) ** 0.5", "cannot compute '\\*\\*' at character 2"),
        ("10 ** 999", "cannot compute '\\*\\*' at character 1"),
        ("1e308 * 10", "cannot compute '\\*' at character 1: it gives inf"),
        ("sum([1e308, 1e308])", "cannot compute 'sum' at character 1"),
        ("max([])", "cannot compute 'max' at character 1"),
    ],
)
def test_says_what_cannot_be_computed(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        result(text)


def test_the_longest_and_the_deepest_formulas_are_computed() -> None:
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
        st.tuples(inner, inner).map(lambda t: f"sum(filter([{t[0]}, {t[1]}], # != nil))"),
    ),
    max_leaves=12,
)
numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)  # a busy machine is no failure
@given(text=texts | whole, values=st.fixed_dictionaries(dict.fromkeys(NAMES, numbers)))
@example(text="one ** two", values={**VALUES, "one": -1e308, "two": 0.5})
def test_gives_a_number_or_nil_or_a_value_error_and_nothing_else(text: str, values: Mapping[str, float | None]) -> None:
    try:
        found = compute(parse(text, NAMES), values)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - an error is as good as a number, if it says something
        return
    assert found is None or (type(found) is float and math.isfinite(found))
