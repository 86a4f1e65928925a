"""Expressions over named numbers: `combine` of a cluster, and formulas of policies.

    lag if urgent else max(capacity, cpu)
    trig_one > 2 ? trig_one + trig_two : 1
    count([trig_one, trig_two], {# > 1}) > 1 ? 5 : 0

Conditions are written as in Python (`a if c else b`, `and`, `or`, `not`, `1 < a <= 8`) or as in expr-lang
(`c ? a : b`, `&&`, `||`, `!`). Precedence, from the loosest to the tightest: conditional, or, and, not, comparisons,
`+ -`, `* / %`, sign, `**`, `a ?? b` (b if a has no value). There are no strings, variables or loops: an expression can
only compute, in a short time. Numbers are floats; a number without a value is `nil`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import NoReturn, TypeAlias

from autoscaler.core.model import MAX_REPLICAS

LONGEST = 1000
"""The most characters of an expression."""
MOST_TOKENS = 200
"""The most numbers, names and signs of an expression."""
DEEPEST = 50
"""The deepest nesting of brackets and conditions."""

CURRENT = "current"
"""The name of the current size in an expression over sizes."""


def _half_away(number: float) -> float:
    """`math.Round` of Go, which expr-lang uses: halves away from zero."""
    return math.copysign(math.floor(abs(number) + 0.5), number)


def _half_up(number: float) -> float:
    """Halves up, as sizes are rounded."""
    return math.floor(number + 0.5)


_ONE: Mapping[str, Callable[..., float]] = {
    "round": _half_away,
    "ceil": math.ceil,
    "floor": math.floor,
    "abs": abs,
    "int": math.trunc,
    "float": float,
}
"""Functions of one number."""

_MANY: Mapping[str, Callable[..., float]] = {
    "max": max,
    "min": min,
    "sum": math.fsum,
    "mean": lambda numbers: math.fsum(numbers) / max(len(numbers), 1),
    "median": lambda numbers: median(numbers) if numbers else 0,
}
"""Functions of several numbers, or of an array of them; all but max and min give 0 for an empty array."""

_TEST: Mapping[str, Callable[[Sequence[bool]], float | bool]] = {
    "count": sum,
    "all": all,
    "any": any,
    "none": lambda found: not any(found),
    "one": lambda found: sum(found) == 1,
}
"""Functions of an array and a test of each of its elements, `{# > 1}`; all but `count` are conditions."""

FUNCTIONS = ("max", "min", "first", *(name for name in (*_ONE, *_MANY, *_TEST) if name not in ("max", "min")))
WORDS = frozenset({"if", "else", "or", "and", "not", "nil", "true", "false"})

_COMPARISONS: Mapping[str, Callable[..., bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
}
_ARITHMETIC: Mapping[str, Callable[..., float]] = {
    "negative": lambda a: -a,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "%": math.fmod,
    "**": math.pow,
}
_NOT, _SIGN = 20, 90
_PRECEDENCE = {"||": 10, "&&": 15, **dict.fromkeys(_COMPARISONS, 20), "+": 30, "-": 30, "*": 60, "/": 60, "%": 60}
_PRECEDENCE |= {"**": 100, "??": 500}
_SAME = {"or": "||", "and": "&&", "not": "!", "^": "**"}
_TOKEN = re.compile(
    r"\s*(?:((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|([A-Za-z_$][\w$]*)|(\?\?|\|\||&&|\*\*|[=!<>]=|\S))", re.ASCII
)
_END = ""


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of an expression: what it is, where it begins (column), and whether it is a condition or a number."""

    kind: str
    at: int
    args: tuple[_Node, ...] = ()
    condition: bool = False
    name: str = ""
    number: float | None = None


@dataclass(frozen=True, slots=True)
class _Missing:
    """Stands for a number without a value."""

    name: str


class _Asked(float):
    """A size that a policy asks for, or what was computed from one."""


_Value: TypeAlias = float | bool | _Missing


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that was read and can be computed.

    Attributes:
        text: the expression.
        sizes: whether the names are policies and their numbers the sizes that they ask for, None if a policy abstains.
            Then a name is also a condition, true while that size is above `current`; max and min leave out policies
            that abstain; round rounds halves up, not away from zero; and no number may exceed the largest size.

    Raises:
        ValueError: it cannot be parsed; the message has the column and what was expected there.
    """

    text: str
    sizes: bool = False
    names: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """The names in it, each with the column of its first use."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", _parse(self.text, self.sizes)[1])

    def compute(self, values: Mapping[str, float | None]) -> float | None:
        """The result; None: it has no value.

        Raises:
            ValueError: it cannot be computed: a number has no value, is divided by zero or is too large for a float.
        """
        found = _evaluate(_parse(self.text, self.sizes)[0], values, self.sizes)
        return None if isinstance(found, _Missing) else float(found)


def _refuse(at: int, problem: str) -> NoReturn:
    raise ValueError(f"column {at}: {problem}")


@lru_cache(maxsize=4096)
def _parse(text: str, sizes: bool) -> tuple[_Node, Mapping[str, int]]:
    if not text.strip():
        raise ValueError("is empty, expected an expression such as max(lag, cpu)")
    if len(text) > LONGEST:
        raise ValueError(f"has {len(text)} characters, expected at most {LONGEST}")
    tokens = []
    for match in _TOKEN.finditer(text):
        part = match.lastindex or 0
        tokens.append(_Token(_SAME.get(match[part], match[part]), match.start(part) + 1))
    if len(tokens) > MOST_TOKENS:
        raise ValueError(f"has {len(tokens)} numbers, names and signs, expected at most {MOST_TOKENS}")
    parser = _Parser([*tokens, _Token(_END, len(text) + 1)], sizes)
    node = parser.number(parser.expression())
    parser.expect(_END, "an operator or the end")
    return node, parser.names


class _Parser:
    """Precedence climbing: the right operand of an operator is everything that binds tighter than the operator."""

    def __init__(self, tokens: list[_Token], sizes: bool) -> None:
        self.names: dict[str, int] = {}
        self._tokens = tokens
        self._sizes = sizes
        self._next = 0
        self._depth = 0
        self._in_test = False  # whether `#` stands for an element here

    def _peek(self) -> str:
        return self._tokens[self._next].text

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next += token.text != _END
        return token

    def expect(self, text: str, what: str = "") -> None:
        """Take this token, which must come next."""
        token = self._take()
        if token.text != text:
            self._unexpected(token, what or repr(text))

    @staticmethod
    def _unexpected(token: _Token, expected: str) -> NoReturn:
        _refuse(token.at, f"expected {expected}, not {repr(token.text) if token.text else 'the end'}")

    def number(self, node: _Node) -> _Node:
        """Return the node if it is a number, else raise an error."""
        if node.condition:
            _refuse(node.at, "this is a condition, expected a number; write `a if condition else b`")
        return node

    def _condition(self, node: _Node) -> _Node:
        if self._sizes and node.kind == "name" and node.name != CURRENT:
            return _Node("asks", node.at, condition=True, name=node.name)
        if not node.condition:
            also = "a policy, true while it asks for more, or " if self._sizes else ""
            _refuse(node.at, f"this is a number, expected a condition: {also}a comparison such as lag > 2")
        return node

    def expression(self) -> _Node:
        """Read a number or a condition, up to the first token that cannot belong to it."""
        node = self._binary(1)
        if self._peek() not in ("?", "if"):
            return node
        mark = self._take()
        if mark.text == "?":
            test, then = self._condition(node), self.expression()
            self.expect(":")
        else:
            test, then = self._condition(self._binary(1)), node
            self.expect("else")
        other = self.expression()
        if then.condition is not other.condition:
            _refuse(mark.at, "expected numbers or conditions on both sides, not one of each")
        return _Node("?", node.at, (test, then, other), then.condition)

    def _binary(self, least: int) -> _Node:
        """Read an operand and the operators after it that have at least this precedence."""
        self._depth += 1
        if self._depth > DEEPEST:
            _refuse(self._tokens[self._next].at, f"nested more than {DEEPEST} deep")
        node, before, last = self._unary(), _END, None
        while _PRECEDENCE.get(self._peek(), 0) >= least:
            operator = self._take()
            if before == "??" and operator.text != "??":
                _refuse(operator.at, "expected brackets: ?? and other operators cannot be mixed")
            precedence = _PRECEDENCE[operator.text]
            right = self._binary(precedence + (operator.text != "**"))
            if last is not None and operator.text in _COMPARISONS and not right.condition:
                node = _Node("&&", node.at, (node, self._operation(operator, last, right)), condition=True)  # 1 < a < 8
            else:
                node = self._operation(operator, node, right)
            before = operator.text
            last = right if before in _COMPARISONS and not right.condition else None
        self._depth -= 1
        return node

    def _operation(self, operator: _Token, left: _Node, right: _Node) -> _Node:
        name = operator.text
        if name in ("||", "&&") or (name in ("==", "!=") and (left.condition or right.condition)):
            return _Node(name, left.at, (self._condition(left), self._condition(right)), condition=True)
        return _Node(name, left.at, (self.number(left), self.number(right)), name in _COMPARISONS)

    def _unary(self) -> _Node:
        text = self._peek()
        if text not in ("!", "-", "+"):
            return self._primary(self._take())
        at = self._take().at
        if text == "!":
            return _Node("!", at, (self._condition(self._binary(_NOT)),), condition=True)
        inner = self.number(self._binary(_SIGN))
        return _Node("negative", at, (inner,)) if text == "-" else inner

    def _primary(self, token: _Token) -> _Node:
        text, at = token.text, token.at
        if text == "(":
            node = self.expression()
            self.expect(")")
            return node
        if text == "[" and not self._sizes:
            _refuse(at, "an array is the whole argument of a function; write c ? max([a]) : max([b]) to choose one")
        if text.isascii() and (text[:1].isdigit() or (text[:1] == "." and len(text) > 1)):
            number = float(text)
            if self._sizes and number > MAX_REPLICAS:
                _refuse(at, f"numbers go up to {MAX_REPLICAS:,}")
            if not math.isfinite(number):
                _refuse(at, "expected a finite number")
            return _Node("number", at, number=number)
        if text in ("true", "false"):
            return _Node(text, at, condition=True)
        if text == "nil" or (text == "#" and self._in_test):
            return _Node("number" if text == "nil" else text, at, name=text)
        if text in WORDS or not text.isascii() or not (text[:1].isalpha() or text[:1] in ("_", "$")):
            self._unexpected(token, "a number, a name or '('")
        if self._peek() == "(":
            return self._call(token)
        self.names.setdefault(text, at)
        return _Node("name", at, name=text)

    def _call(self, token: _Token) -> _Node:
        name, at = token.text, token.at
        if name not in FUNCTIONS:
            _refuse(at, f"{name}() is not supported here; functions: {', '.join(FUNCTIONS)}")
        self.expect("(")
        array = self._peek() == "["
        test: tuple[_Node, ...] = ()
        if array:
            self._take()
            args = self._items("]")
            if self._peek() == ",":
                self._take()
                test = (self._test(condition=name != "sum"),)
            self.expect(")")
        else:
            args = self._items(")")
        if name in _TEST:
            wrong, takes = not test, "an array and a test"
        elif name in _ONE:
            wrong, takes = len(args) != 1 or array, "one number"
        else:
            empty = not args and (self._sizes or not array)
            unlike = name == "first" and array and self._sizes  # without sizes: the first element, even if it is nil
            wrong, takes = empty or unlike or (bool(test) and name != "sum"), "numbers"
        if wrong:
            usage = "([a, b], {# > 1})" if name in _TEST else "(a)" if name in _ONE else "(a, b)"
            _refuse(at, f"{name} takes {takes}, as in {name}{usage}")
        how = "test" if test else "array" if array else ""
        return _Node(name, at, (*args, *test), name in _TEST and name != "count", how)

    def _items(self, closing: str) -> tuple[_Node, ...]:
        """Numbers, separated by commas."""
        found: list[_Node] = []
        while self._peek() != closing:
            if found:
                self.expect(",", f"',' or {closing!r}")
            found.append(self.number(self.expression()))
        self._take()
        return tuple(found)

    def _test(self, *, condition: bool) -> _Node:
        """Read the test of each element, `{# > 1}`, also without braces; for `sum` it is a number."""
        outer, self._in_test = self._in_test, True
        braces = self._peek() == "{"
        if braces:
            self._take()
        node = self.expression()
        node = self._condition(node) if condition else self.number(node)
        if braces:
            self.expect("}")
        self._in_test = outer
        return node


def _evaluate(  # noqa: C901, PLR0912 - one case for each kind of node
    node: _Node, values: Mapping[str, float | None], sizes: bool, element: _Value = False
) -> _Value:
    def of(part: _Node) -> _Value:
        return _evaluate(part, values, sizes, element)

    kind, args = node.kind, node.args
    match kind:
        case "number":
            return _Missing(node.name) if node.number is None else node.number
        case "name":
            value = values.get(node.name)
            if value is None:
                return _Missing(node.name)
            return _Asked(value) if sizes and node.name != CURRENT else float(value)
        case "asks":
            size, current = values.get(node.name), values[CURRENT]
            return size is not None and current is not None and size > current
        case "#":
            return element
        case "true" | "false":
            return kind == "true"
        case "?":
            return of(args[1] if of(args[0]) else args[2])
        case "||" | "&&":
            return of(args[1]) if of(args[0]) is (kind == "&&") else kind == "||"
        case "!":
            return not of(args[0])
        case "??":
            left = of(args[0])
            return of(args[1]) if isinstance(left, _Missing) else left
        case "first":
            found = [of(part) for part in args]  # all of them: if any cannot be computed, that is an error
            if node.name == "array":
                return found[0] if found else _Missing("nil")
            return next((value for value in found if not isinstance(value, _Missing)), found[-1])
    if node.name == "test":
        *elements, test = args
        each = [_evaluate(test, values, sizes, of(part)) for part in elements]
        if kind not in _TEST:
            return _computed(node, each, sizes)
        count = _TEST[kind]([bool(one) for one in each])
        return count if node.condition else float(count)
    return _computed(node, [of(part) for part in args], sizes)


def _computed(node: _Node, args: list[_Value], sizes: bool) -> _Value:
    """The result of an operator or a function of numbers. An error in float arithmetic is reported with its column."""
    kind = node.kind
    there = [value for value in args if not isinstance(value, _Missing)]
    if len(there) < len(args):
        missing = next(value for value in args if isinstance(value, _Missing))
        if kind in ("==", "!=") and (not sizes or any(part.name == "nil" for part in node.args)):
            return (not there) is (kind == "==")
        if not (sizes and kind in ("max", "min")):
            raise ValueError(_needed(node, missing, sizes))
        # A plain number only limits sizes: without the size of a policy there is no result.
        if not any(isinstance(value, _Asked) for value in there):
            return missing
    if kind in ("max", "min") and there:
        return _MANY[kind](there)  # the argument itself: a plain number does not become a policy's size
    if kind in _COMPARISONS:
        return _COMPARISONS[kind](*there)
    try:
        found = float(_MANY[kind](there) if kind in _MANY else _function(kind, sizes)(*there))
    except (ArithmeticError, ValueError) as error:
        raise ValueError(f"cannot compute {kind!r} at column {node.at}: {error}") from error
    if not math.isfinite(found):
        raise ValueError(f"cannot compute {kind!r} at column {node.at}: it gives {found}")
    return _Asked(found) if any(isinstance(value, _Asked) for value in there) else found


def _function(kind: str, sizes: bool) -> Callable[..., float]:
    if kind == "round" and sizes:
        return _half_up
    return _ONE.get(kind) or _ARITHMETIC[kind]


def _needed(node: _Node, missing: _Missing, sizes: bool) -> str:
    """Why a number without a value cannot be used here."""
    name = missing.name
    if sizes and name != "nil":
        return f"the policy {name} abstains, and its size is needed; first({name}, ...) takes another one"
    return f"has nil in {node.kind!r} at column {node.at}, expected a number; nil ?? 0 gives one"
