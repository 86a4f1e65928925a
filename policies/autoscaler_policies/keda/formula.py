"""A small language for formulas over named numbers: what KEDA's `scalingModifiers.formula` uses of expr-lang.

    trig_one > 2 ? trig_one + trig_two : 1
    count([trig_one, trig_two], {# > 1}) > 1 ? 5 : 0
    kafka ?? prometheus ?? 5

Syntax and precedence are those of expr-lang (https://expr-lang.org/docs/language-definition, its `parser/operator.go`):
numbers, names, `nil`, `true`, `false`, arrays; `?:`, `||`/`or`, `&&`/`and`, comparisons, `+ - * / %`, `**`/`^`, `??`,
`!`/`not`; and the functions listed below. There are no texts, maps, variables or loops, so a formula is done at once
and can do nothing but compute. What is computed are floats; `nil` is a number that is not there.

A formula is checked when it is parsed: whoever wrote it learns there what is wrong, and at which character.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

LONGEST = 1000
"""Characters of a formula."""
MOST_TOKENS = 200
"""Numbers, names and signs of a formula."""
DEEPEST = 50
"""Brackets and conditions within each other."""

Value = float | bool | None | tuple["Value", ...]


class Kind(Enum):
    """What a part of a formula gives."""

    NUMBER = "a number"
    BOOL = "true or false"
    ARRAY = "an array of numbers"


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a formula: what it is, what it gives, where it begins (characters from 1)."""

    name: str
    kind: Kind
    at: int
    args: tuple[Node, ...] = ()
    number: float | None = None


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    at: int


_TOKEN = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z_$][\w$]*)|(\S))", re.ASCII)
_PAIRS = ("??", "||", "&&", "==", "!=", "<=", ">=", "**")
_SAME = {"or": "||", "and": "&&", "not": "!", "^": "**"}
_TERNARY, _UNARY_NOT, _UNARY_SIGN, _COALESCE = 0, 50, 90, 500
_PRECEDENCE = {
    "||": 10,
    "&&": 15,
    "==": 20,
    "!=": 20,
    "<": 20,
    ">": 20,
    "<=": 20,
    ">=": 20,
    "+": 30,
    "-": 30,
    "*": 60,
    "/": 60,
    "%": 60,
    "**": 100,
    "??": _COALESCE,
}
_END = ""


def _half_away(number: float) -> float:
    """Go's math.Round: halves away from zero."""
    return math.copysign(math.floor(abs(number) + 0.5), number)


def _median(numbers: Sequence[float]) -> float:
    ordered = sorted(numbers)
    half = len(ordered) // 2
    if not ordered:
        return 0.0
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


_ONE: Mapping[str, Callable[[float], float]] = {
    "abs": abs,
    "ceil": lambda number: float(math.ceil(number)),
    "floor": lambda number: float(math.floor(number)),
    "round": _half_away,
    "int": lambda number: float(math.trunc(number)),
    "float": float,
}
"""Functions of one number."""

_MANY: Mapping[str, Callable[[Sequence[float]], float]] = {
    "max": max,
    "min": min,
    "sum": math.fsum,
    "mean": lambda numbers: math.fsum(numbers) / len(numbers) if numbers else 0.0,
    "median": _median,
}
"""Functions of several numbers or an array of them."""

_PICK: Mapping[str, Callable[[Sequence[float | None]], float | None]] = {
    "len": lambda numbers: float(len(numbers)),
    "first": lambda numbers: numbers[0] if numbers else None,
    "last": lambda numbers: numbers[-1] if numbers else None,
}
"""Functions of an array, whatever is in it."""

_TEST: Mapping[str, tuple[Kind, Callable[[Sequence[float | None], Sequence[bool]], Value]]] = {
    "count": (Kind.NUMBER, lambda _, found: float(sum(found))),
    "all": (Kind.BOOL, lambda _, found: all(found)),
    "any": (Kind.BOOL, lambda _, found: any(found)),
    "none": (Kind.BOOL, lambda _, found: not any(found)),
    "one": (Kind.BOOL, lambda _, found: sum(found) == 1),
    "filter": (Kind.ARRAY, lambda numbers, found: tuple(n for n, yes in zip(numbers, found, strict=True) if yes)),
}
"""Functions of an array and a test of each of its elements, `{# > 1}`."""

FUNCTIONS = (*_ONE, *_MANY, *_PICK, *_TEST, "map")


@lru_cache(maxsize=256)
def parse(text: str, names: tuple[str, ...]) -> Node:
    """Read a formula over these names.

    Raises:
        ValueError: it cannot be read, or does not give a number; the message says what is wrong and where.
    """
    if len(text) > LONGEST:
        raise ValueError(f"has {len(text)} characters, expected at most {LONGEST}")
    tokens = _tokens(text)
    if len(tokens) > MOST_TOKENS:
        # An error of ours instead of Python's own, which ends a formula that is computed too deep.
        raise ValueError(f"has {len(tokens)} numbers, names and signs, expected at most {MOST_TOKENS}")
    reader = _Parser(tokens, names)
    node = reader.expression()
    rest = reader.peek()
    if rest.text != _END:
        raise _wrong(rest, "expected an operator or the end")
    if node.kind is not Kind.NUMBER:
        raise ValueError(f"gives {node.kind.value}, expected a number")
    return node


def compute(node: Node, values: Mapping[str, float | None]) -> float | None:
    """What a formula gives for these values; None: a number that is not there.

    Raises:
        ValueError: it cannot be computed: a missing number in a sum, a division by zero, a number beyond all floats.
    """
    return _compute(node, values, None)  # type: ignore[return-value]  # anything else is refused when it is parsed


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None  # noqa: S101 - its last branch takes any character, and the end is not a space
        begin = match.start(match.lastindex or 0)
        position = match.end()
        pair = text[begin : begin + 2]
        if match[3] and pair in _PAIRS:
            position = begin + 2
            found.append(_Token(pair, begin + 1))
        else:
            word = match[match.lastindex or 0]
            found.append(_Token(_SAME.get(word, word), begin + 1))
    return [*found, _Token(_END, len(text) + 1)]


def _wrong(token: _Token, expected: str) -> ValueError:
    what = f"{token.text!r} at character {token.at}" if token.text else f"the end at character {token.at}"
    return ValueError(f"has {what}, {expected}")


class _Parser:
    """Precedence climbing: an operator takes to its right whatever binds tighter than itself."""

    def __init__(self, tokens: list[_Token], names: tuple[str, ...]) -> None:
        self._tokens = tokens
        self._names = names
        self._next = 0
        self._depth = 0
        self._element = False  # whether `#` means something here

    def peek(self) -> _Token:
        """The token that comes next."""
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next += token.text != _END
        return token

    def _expect(self, text: str) -> None:
        if self.peek().text != text:
            raise _wrong(self.peek(), f"expected {text!r}")
        self._next += 1

    def expression(self, least: int = _TERNARY) -> Node:
        """Read an expression of operators that bind at least so tightly."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise _wrong(self.peek(), f"expected at most {DEEPEST} levels of brackets and conditions")
        node = self._unary()
        before = _END
        while (precedence := _PRECEDENCE.get(self.peek().text, -1)) >= max(least, 1):
            operator = self._take()
            if before == "??" and operator.text != "??":
                raise _wrong(operator, "expected brackets: ?? and other operators cannot be mixed")
            right = self.expression(precedence if operator.text == "**" else precedence + 1)
            node = self._binary(operator, node, right)
            before = operator.text
        while least == _TERNARY and self.peek().text == "?":
            node = self._conditional(node)
        self._depth -= 1
        return node

    def _conditional(self, condition: Node) -> Node:
        mark = self._take()
        self._kind(condition, Kind.BOOL, "before '?'")
        then = self.expression()
        self._expect(":")
        other = self.expression()
        if then.kind is not other.kind:
            raise _wrong(mark, f"expected both sides alike, not {then.kind.value} and {other.kind.value}")
        return Node("?", then.kind, condition.at, (condition, then, other))

    @staticmethod
    def _kind(node: Node, kind: Kind, where: str) -> None:
        if node.kind is not kind:
            raise ValueError(f"has {node.kind.value} at character {node.at}, expected {kind.value} {where}")

    def _binary(self, operator: _Token, left: Node, right: Node) -> Node:
        name = operator.text
        if name in ("||", "&&") or (name in ("==", "!=") and left.kind is Kind.BOOL):
            wanted = gives = Kind.BOOL
        else:
            wanted = Kind.NUMBER
            gives = Kind.BOOL if name in ("==", "!=", "<", ">", "<=", ">=") else Kind.NUMBER
        for side in (left, right):
            self._kind(side, wanted, f"beside {name!r}")
        return Node(name, gives, left.at, (left, right))

    def _unary(self) -> Node:
        token = self.peek()
        if token.text == "!":
            self._take()
            inner = self.expression(_UNARY_NOT)
            self._kind(inner, Kind.BOOL, "after '!'")
            return Node("!", Kind.BOOL, token.at, (inner,))
        if token.text in ("-", "+"):
            self._take()
            inner = self.expression(_UNARY_SIGN)
            self._kind(inner, Kind.NUMBER, f"after {token.text!r}")
            return Node("negative", Kind.NUMBER, token.at, (inner,)) if token.text == "-" else inner
        return self._primary()

    def _primary(self) -> Node:
        token = self._take()
        text = token.text
        if text == "(":
            node = self.expression()
            self._expect(")")
            return node
        if text == "[":
            return Node("array", Kind.ARRAY, token.at, self._items("]"))
        if text.isascii() and (text[:1].isdigit() or (text[:1] == "." and len(text) > 1)):
            number = float(text)
            if not math.isfinite(number):
                raise _wrong(token, "expected a finite number")
            return Node("number", Kind.NUMBER, token.at, number=number)
        if text == "nil" or (text == "#" and self._element):
            return Node("number" if text == "nil" else "#", Kind.NUMBER, token.at)
        if text in ("true", "false"):
            return Node(text, Kind.BOOL, token.at)
        return self._word(token)

    def _word(self, token: _Token) -> Node:
        """A function that is called, or one of the names."""
        text = token.text
        called = self.peek().text == "("
        if called and text in FUNCTIONS:
            return self._call(token)
        if text in self._names:
            return Node("name", Kind.NUMBER, token.at, (Node(text, Kind.NUMBER, token.at),))
        if text[:1].isalpha() or text[:1] in ("_", "$"):
            what, known = ("functions", FUNCTIONS) if called else ("names", self._names)
            raise _wrong(token, f"expected one of the {what} {', '.join(known)}")
        raise _wrong(token, "expected a number, a name, '(' or '['")

    def _items(self, closing: str) -> tuple[Node, ...]:
        """Numbers, separated by commas."""
        found: list[Node] = []
        while self.peek().text != closing:
            if found:
                self._expect(",")
            found.append(self.expression())
            self._kind(found[-1], Kind.NUMBER, "in an array")
        self._take()
        return tuple(found)

    def _call(self, token: _Token) -> Node:
        name = token.text
        self._expect("(")
        args: list[Node] = []
        while self.peek().text != ")":
            if args:
                self._expect(",")
            takes_test = len(args) == 1 and args[0].kind is Kind.ARRAY and name in (*_TEST, "map", "sum")
            args.append(self._test() if takes_test else self.expression())
        self._take()
        gives = self._gives(token, args)
        return Node(name, gives, token.at, tuple(args))

    def _test(self) -> Node:
        """What is said of each element: `{# > 1}`, or without braces."""
        outer, self._element = self._element, True
        braces = self.peek().text == "{"
        if braces:
            self._take()
        node = self.expression()
        if braces:
            self._expect("}")
        self._element = outer
        return node

    def _gives(self, token: _Token, args: list[Node]) -> Kind:
        """What a function gives for these arguments, which must be those it takes."""
        name, kinds = token.text, [arg.kind for arg in args]
        number, array = Kind.NUMBER, Kind.ARRAY
        if name in _ONE:
            fits, expected, gives = kinds == [number], "a number", number
        elif name in _TEST:
            fits, expected, gives = kinds == [array, Kind.BOOL], "an array and a test like {# > 1}", _TEST[name][0]
        elif name == "map":
            fits, expected, gives = kinds == [array, number], "an array and a number like {# * 2}", array
        elif name in _PICK:
            fits, expected, gives = kinds == [array], "an array", number
        elif name == "sum":
            fits, expected, gives = kinds in ([array], [array, number]), "an array", number
        else:
            fits, gives = bool(kinds) and (kinds == [array] or set(kinds) == {number}), number
            expected = "numbers or an array"
        if not fits:
            given = ", ".join(kind.value for kind in kinds) or "nothing"
            raise _wrong(token, f"expected {name}({expected}), not of {given}")
        return gives


def _compute(node: Node, values: Mapping[str, float | None], element: float | None) -> Value:  # noqa: C901, PLR0912
    name = node.name
    if name == "number":
        return node.number
    if name == "name":
        return values.get(node.args[0].name)
    if name == "#":
        return element
    if name in ("true", "false"):
        return name == "true"
    if name == "?":
        condition, then, other = node.args
        return _compute(then if _compute(condition, values, element) else other, values, element)
    if name in ("||", "&&", "??"):
        left = _compute(node.args[0], values, element)
        enough = left is not None if name == "??" else left is (name == "||")
        return left if enough else _compute(node.args[1], values, element)
    if name in _TEST or name == "map" or (name == "sum" and len(node.args) > 1):
        elements: Sequence[float | None] = _compute(node.args[0], values, element)  # type: ignore[assignment]
        found = [_compute(node.args[1], values, each) for each in elements]
        if name in _TEST:
            return _TEST[name][1](elements, found)  # type: ignore[arg-type]  # checked when parsed
        return tuple(found) if name == "map" else _safely(node, math.fsum, _there(node, found))
    args = [_compute(arg, values, element) for arg in node.args]
    if name == "array":
        return tuple(args)
    if name == "!":
        return not args[0]
    if name in ("==", "!="):
        return (args[0] == args[1]) is (name == "==")
    if name in _PICK:
        return _PICK[name](args[0])  # type: ignore[arg-type]
    if len(args) == 1 and isinstance(args[0], tuple):
        args = list(args[0])
    numbers = _there(node, args)
    if name in _MANY:
        return _safely(node, _MANY[name], numbers)
    if name in _ONE:
        return _safely(node, lambda given: _ONE[name](given[0]), numbers)
    return _safely(node, _ARITHMETIC[name], numbers)


def _there(node: Node, args: Sequence[Value]) -> list[float]:
    """The numbers, all of which must be there."""
    if None in args:
        raise ValueError(f"has nil in {node.name!r} at character {node.at}, expected a number; nil ?? 0 gives one")
    return args  # type: ignore[return-value]


def _safely(node: Node, work: Callable[[list[float]], float], numbers: list[float]) -> float:
    """Compute; whatever goes wrong with floats is an error that says where."""
    try:
        result = work(numbers)
    except (ArithmeticError, ValueError) as error:
        raise ValueError(f"cannot compute {node.name!r} at character {node.at}: {error}") from error
    if not math.isfinite(result):
        raise ValueError(f"cannot compute {node.name!r} at character {node.at}: it gives {result}")
    return result


_ARITHMETIC: Mapping[str, Callable[[list[float]], float]] = {
    "negative": lambda n: -n[0],
    "+": lambda n: n[0] + n[1],
    "-": lambda n: n[0] - n[1],
    "*": lambda n: n[0] * n[1],
    "/": lambda n: n[0] / n[1],
    "%": lambda n: math.fmod(n[0], n[1]),
    "**": lambda n: math.pow(n[0], n[1]),
    "<": lambda n: n[0] < n[1],
    ">": lambda n: n[0] > n[1],
    "<=": lambda n: n[0] <= n[1],
    ">=": lambda n: n[0] >= n[1],
}
