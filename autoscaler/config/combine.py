"""The expression by which the sizes that several policies ask for become one: `combine` of a cluster.

What it may contain is decided here, on its syntax tree, before the library simpleeval computes it: names of policies,
numbers, arithmetic, a few functions and conditions. Everything else is refused when the file is read.
"""

from __future__ import annotations

import ast
import keyword
import math
import operator
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

from simpleeval import SimpleEval

from autoscaler import plugins
from autoscaler.core.model import MAX_REPLICAS, NamedPolicy

_LONGEST = 500  # characters
_DEEPEST = 20  # levels

CURRENT = "current"
"""The name of the size there is."""


class _Silent:
    """In place of the size of a policy that abstains."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __bool__(self) -> bool:
        return False


class _More(int):
    """A size above the present one: true in a condition."""

    def __bool__(self) -> bool:
        return True


class _Enough(int):
    """A size of at most the present one: false in a condition."""

    def __bool__(self) -> bool:
        return False


class _Sized(float):
    """What was computed from the size of a policy."""


_Number: TypeAlias = float | _Silent
_ASKED = (_More, _Enough, _Sized)


def _needed(numbers: Iterable[_Number]) -> None:
    silent = next((number.name for number in numbers if isinstance(number, _Silent)), None)
    if silent is not None:
        raise ValueError(
            f"the policy {silent} abstains, and its size is needed; first({silent}, ...) takes another one"
        )


def _reckon(compute: Callable[..., float]) -> Callable[..., float]:
    """Arithmetic with sizes, which must be there."""

    def checked(*numbers: _Number) -> float:
        _needed(numbers)
        number = compute(*numbers)
        return _Sized(number) if any(isinstance(one, _ASKED) for one in numbers) else number

    return checked


def _compare(compute: Callable[[Any, Any], bool]) -> Callable[[_Number, _Number], bool]:
    def checked(left: _Number, right: _Number) -> bool:
        _needed((left, right))
        return compute(left, right)

    return checked


def _choose(choose: Callable[[list[float]], float]) -> Callable[..., _Number]:
    """The least or greatest of those that do not abstain. Numbers are bounds of sizes: alone they say nothing."""

    def chosen(*numbers: _Number) -> _Number:
        said = [number for number in numbers if not isinstance(number, _Silent)]
        if len(said) < len(numbers) and not any(isinstance(one, _ASKED) for one in said):
            return next(number for number in numbers if isinstance(number, _Silent))
        return choose(said)

    return chosen


def _first(*numbers: _Number) -> _Number:
    """The first that does not abstain."""
    return next((number for number in numbers if not isinstance(number, _Silent)), numbers[-1])


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: _reckon(operator.add),
    ast.Sub: _reckon(operator.sub),
    ast.Mult: _reckon(operator.mul),
    ast.Div: _reckon(operator.truediv),
    ast.USub: _reckon(operator.neg),
    ast.UAdd: _reckon(operator.pos),
    ast.Lt: _compare(operator.lt),
    ast.LtE: _compare(operator.le),
    ast.Gt: _compare(operator.gt),
    ast.GtE: _compare(operator.ge),
    ast.Eq: _compare(operator.eq),
    ast.NotEq: _compare(operator.ne),
    ast.Not: operator.not_,
}
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_ROUNDING: dict[str, Callable[..., Any]] = {
    "round": _reckon(lambda number: math.floor(number + 0.5)),  # half up: people know no other way
    "ceil": _reckon(math.ceil),
    "floor": _reckon(math.floor),
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"max": _choose(max), "min": _choose(min), "first": _first, **_ROUNDING}
_WORDS = frozenset({*_FUNCTIONS, CURRENT, *keyword.kwlist})


@dataclass(frozen=True, slots=True)
class Expression:
    """How the sizes that policies ask for become one. A `Combine` of the core.

    A policy's name stands for the size it asks for, `current` for the size there is. In a condition a policy is true
    while it asks for more replicas than there are.

    Attributes:
        text: the expression, such as `lag if urgent else max(capacity, cpu)`.
    """

    text: str

    def __post_init__(self) -> None:
        _parsed(self.text)

    def __str__(self) -> str:
        return self.text

    @property
    def names(self) -> tuple[str, ...]:
        """The policies that it names, in order."""
        return tuple(_parsed(self.text)[1])

    def combine(self, sizes: Mapping[str, int | None], current: int) -> float | None:
        """The size that it gives for these; None: nothing. See `Combine`."""
        tree, columns = _parsed(self.text)
        names: dict[str, _Number] = {CURRENT: current}
        for name in columns:
            if name not in sizes:
                raise ValueError(f"there is no policy {name}")
            size = sizes[name]
            names[name] = _Silent(name) if size is None else _More(size) if size > current else _Enough(size)
        evaluator = _evaluator()
        evaluator.names = names
        try:
            size = evaluator.eval(self.text, tree)
        except ArithmeticError as error:
            raise ValueError(f"{self.text}: {error}") from error
        return None if isinstance(size, _Silent) else size


_local = threading.local()


def _evaluator() -> SimpleEval:
    """This thread's evaluator: to make one takes longer than to evaluate, and it holds the names."""
    evaluator: SimpleEval | None = getattr(_local, "evaluator", None)
    if evaluator is None:
        evaluator = _local.evaluator = SimpleEval(operators=_OPERATORS, functions=_FUNCTIONS, names={})
    return evaluator


def read(text: str, policies: Iterable[str], silent: Iterable[str] = ()) -> Expression:
    """Read an expression over these policies.

    Args:
        text: the expression; line breaks in it are spaces.
        policies: the names of all policies.
        silent: those that never ask for a size.

    Raises:
        ValueError: it cannot be used; the message says where and why.
    """
    text = " ".join(text.split())
    known = list(policies)
    for name in known:
        if (not name.isidentifier() or name in _WORDS) and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text):
            what = "is a word of expressions" if name in _WORDS else "has other characters than letters, digits and _"
            raise ValueError(f"the policy {name!r} cannot be named here, as its name {what}; rename the policy")
    expression = Expression(text)
    for name, column in _parsed(text)[1].items():
        if name not in known:
            also = plugins.guess(name, known) or f"; policies: {', '.join(known)}"
            raise ValueError(f"column {column}: there is no policy {name!r}{also}")
        if name in silent:
            raise ValueError(f"column {column}: the policy {name} moves the bounds and asks for no size; leave it out")
    return expression


def silent(policies: Iterable[NamedPolicy]) -> tuple[str, ...]:
    """The names of those that say by `asks` that they never ask for a size; see `Bounding`."""
    return tuple(named.name for named in policies if not named.asks)


def unheard(expression: Expression, policies: Iterable[NamedPolicy]) -> str:
    """What is odd about policies that are configured and not in the expression, or the empty text."""
    policies = tuple(policies)
    taken = {*expression.names, *silent(policies)}
    left = [named.name for named in policies if named.name not in taken]
    if not left:
        return ""
    return (
        f"the sizes of {', '.join(left)} do not count: not in the expression; what they miss still forbids scaling down"
    )


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[ast.expr, Mapping[str, int]]:
    """The syntax tree of an expression, and the policies it names with the column of each."""
    if not text.strip():
        raise ValueError("is empty, expected an expression such as max(lag, cpu)")
    if len(text) > _LONGEST:
        raise ValueError(f"is longer than {_LONGEST} characters")
    odd = next((index for index, character in enumerate(text) if not " " <= character <= "~"), None)
    if odd is not None:
        raise ValueError(f"column {odd + 1}: the character {text[odd]!r} is not understood")
    if "#" in text:  # to Python all that follows would be a comment, also what stood on lines of its own
        raise ValueError(f"column {text.index('#') + 1}: an expression has no comments")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as of `1if`, which later versions of Python refuse
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, MemoryError, RecursionError) as error:
        # No column, or one beyond the end, is where something is missing.
        offset = getattr(error, "offset", None) or len(text)
        raise ValueError(f"column {min(offset, len(text))}: {getattr(error, 'msg', 'nested too deeply')}") from error
    names: dict[str, int] = {}
    _check_size(tree, names, _DEEPEST)
    return tree, names


def _refuse(node: ast.expr, problem: str) -> NoReturn:
    raise ValueError(f"column {node.col_offset + 1}: {problem}")


def _check_size(node: ast.expr, names: dict[str, int], depth: int) -> None:
    """Make sure that this is a size, and note the policies in it."""
    if not depth:
        _refuse(node, f"nested more than {_DEEPEST} deep")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            if value > MAX_REPLICAS:
                _refuse(node, f"numbers go up to {MAX_REPLICAS:,}")
        case ast.Name(id=name):
            _check_name(node, name, names)
        case ast.BinOp(op=op) if isinstance(op, _ARITHMETIC):
            _check_size(node.left, names, depth - 1)
            _check_size(node.right, names, depth - 1)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
            _check_size(node.operand, names, depth - 1)
        case ast.IfExp():
            _check_condition(node.test, names, depth - 1)
            _check_size(node.body, names, depth - 1)
            _check_size(node.orelse, names, depth - 1)
        case ast.Call():
            _check_call(node, names, depth)
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            _refuse(node, "this is a condition, expected a size; write `a if condition else b`")
        case _:
            _refuse(node, _UNKNOWN)


def _check_condition(node: ast.expr, names: dict[str, int], depth: int) -> None:
    """Make sure that this is a condition, and note the policies in it."""
    if not depth:
        _refuse(node, f"nested more than {_DEEPEST} deep")
    match node:
        case ast.Name(id=name) if name != CURRENT:
            _check_name(node, name, names)
        case ast.UnaryOp(op=ast.Not()):
            _check_condition(node.operand, names, depth - 1)
        case ast.BoolOp():
            for value in node.values:
                _check_condition(value, names, depth - 1)
        case ast.Compare(ops=ops) if all(isinstance(op, _COMPARISONS) for op in ops):
            for operand in (node.left, *node.comparators):
                _check_size(operand, names, depth - 1)
        case _:
            _refuse(
                node, "expected a condition: a policy, true while it asks for more, or a comparison as lag > current"
            )


def _check_name(node: ast.expr, name: str, names: dict[str, int]) -> None:
    if name in _FUNCTIONS:
        _refuse(node, f"{name} is a function; write {name}(...)")
    if name != CURRENT:
        names.setdefault(name, node.col_offset + 1)


def _check_call(node: ast.Call, names: dict[str, int], depth: int) -> None:
    function = node.func.id if isinstance(node.func, ast.Name) else ""
    if function not in _FUNCTIONS:
        _refuse(node, f"this is no function; functions: {', '.join(_FUNCTIONS)}")
    if node.keywords or not node.args:
        _refuse(node, f"{function} takes sizes, as in {function}(lag)")
    if function in _ROUNDING and len(node.args) > 1:
        _refuse(node, f"{function} takes one size, not {len(node.args)}")
    for argument in node.args:
        _check_size(argument, names, depth - 1)


_UNKNOWN = (
    "this is not understood; an expression has policies, numbers, `+ - * /`, conditions, and the functions "
    f"{', '.join(_FUNCTIONS)}"
)
