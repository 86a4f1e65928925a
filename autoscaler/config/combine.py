"""The setting `combine` of a cluster: an expression that makes one size out of those that its policies ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoscaler import plugins
from autoscaler.core import expression
from autoscaler.core.expression import CURRENT, FUNCTIONS, WORDS
from autoscaler.core.model import NamedPolicy

_WORDS = frozenset({"max", "min", "first", "round", "ceil", "floor", CURRENT, *WORDS})
"""Names that a policy in an expression must not have, because the expression would mean something else."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A `Combine` of the core: combines the sizes of policies by an expression (`autoscaler.core.expression`).

    Attributes:
        text: the expression, such as `lag if urgent else max(capacity, cpu)`.
    """

    text: str

    def __post_init__(self) -> None:
        _ = self.columns

    def __str__(self) -> str:
        return self.text

    @property
    def columns(self) -> Mapping[str, int]:
        """The policies that the expression names, each with the column of its first occurrence."""
        names = expression.Expression(self.text, sizes=True).names
        return {name: column for name, column in names.items() if name != CURRENT}

    @property
    def names(self) -> tuple[str, ...]:
        """The policies that the expression names, in order."""
        return tuple(self.columns)

    def combine(self, sizes: Mapping[str, int | None], current: int) -> float | None:
        """The size that the expression gives for these sizes; None: no size. See `Combine`."""
        expected = expression.Expression(self.text, sizes=True)
        absent = next((name for name in expected.names if name not in sizes and name != CURRENT), None)
        if absent is not None:
            raise ValueError(f"there is no policy {absent}")
        return expected.compute({**sizes, CURRENT: current})


def read(text: str, policies: Iterable[str], silent: Iterable[str] = ()) -> Expression:
    """Read an expression over these policies.

    Args:
        text: the expression; line breaks in it are spaces.
        policies: the names of all policies.
        silent: the policies that never ask for a size.

    Raises:
        ValueError: it cannot be used; the message says where and why.
    """
    text = " ".join(text.split())
    known = list(policies)
    for name in known:
        word = name in _WORDS
        plain = name.isascii() and name.isidentifier() and not word
        if not plain and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text):
            what = "is a word of expressions" if word else "has other characters than letters, digits and _"
            raise ValueError(f"the policy {name!r} cannot be named here, as its name {what}; rename the policy")
    found = Expression(text)
    for name, column in found.columns.items():
        if name in FUNCTIONS and name not in known:
            raise ValueError(f"column {column}: {name} is a function; write {name}(...)")
        if name not in known:
            also = plugins.guess(name, known) or f"; policies: {', '.join(known)}"
            raise ValueError(f"column {column}: there is no policy {name!r}{also}")
        if name in silent:
            raise ValueError(f"column {column}: the policy {name} moves the bounds and asks for no size; leave it out")
    return found


def silent(policies: Iterable[NamedPolicy]) -> tuple[str, ...]:
    """The names of the policies that never ask for a size, as their `asks` states; see `Bounding`."""
    return tuple(named.name for named in policies if not named.asks)


def unheard(found: Expression, policies: Iterable[NamedPolicy]) -> str | None:
    """A warning about configured policies that the expression does not name; None if there are none."""
    policies = tuple(policies)
    taken = {*found.names, *silent(policies)}
    left = [named.name for named in policies if named.name not in taken]
    if not left:
        return None
    ignored, owner = ("its size is", "it") if len(left) == 1 else ("their sizes are", "them")
    return (
        f"the expression does not name {', '.join(left)}, so {ignored} ignored; "
        f"a missing input of {owner} still prevents scaling down"
    )
