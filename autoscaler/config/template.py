"""Expressions in a fleet's template, such as `${labels.app}` or `${annotations['autoscaler/max'] | 8}`.

The values come from outside. Each value is inserted as text, and is never parsed for expressions or as YAML. Its length
is limited, and it has printable characters only.
"""

from __future__ import annotations

import re
from collections import abc
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from autoscaler.config.document import Mapping, Node, Scalar, Sequence
from autoscaler.core.foreign import shorten
from autoscaler.core.wording import list_of
from autoscaler.plugins import guess
from autoscaler.ports import Member

MAX_VALUE = 1000
"""The maximum length of a value, in characters."""

PLACEHOLDER = "member"
"""Stands for every value while a template is checked without members."""

_MAX_LISTED = 10
_LONGEST_SHOWN = 60
_EXPRESSION = re.compile(
    r"""\$\{\s*(?P<variable>[A-Za-z_]\w*)
    (?:\.(?P<plain>[A-Za-z_][\w-]*)|\[\s*(?:'(?P<single>[^'\n]+)'|"(?P<double>[^"\n]+)")\s*\])?\s*
    (?:\|\s*+(?:'(?P<text>[^'\n]*)'|"(?P<quoted>[^"\n]*)"|(?P<bare>(?!['"])(?:(?!\$\{)[^}\n])*?))\s*)?\}""",
    re.VERBOSE | re.ASCII,
)
_ENVIRONMENT = re.compile(r"[A-Z_][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class Environment:
    """`${NAME}`: an environment variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Expression:
    """A value of the member.

    Attributes:
        written: as it is written in the file.
        variable: one of the discovery's variables.
        key: the key in the variable, if that is a mapping.
        default: replaces a value that is missing or empty; None: such a value is a problem of the member.
    """

    written: str
    variable: str
    key: str | None
    default: str | None


Part: TypeAlias = str | Environment | Expression


class TextTemplate(str):
    """A parameter whose expressions are filled when it is used, not when the configuration is read."""

    __slots__ = ()

    def check(self, variables: tuple[str, ...]) -> None:
        """Raise ValueError if an expression is malformed, or names anything but these variables."""
        named = next((part.name for part in parse(self, variables) if isinstance(part, Environment)), None)
        if named is not None:
            raise ValueError(f"${{{named}}} is an environment variable, not one of {', '.join(variables)}")

    def fill(self, values: abc.Mapping[str, str]) -> str:
        """The text with these values of all variables."""
        parts = parse(self, tuple(values))
        return "".join(values[part.variable] if isinstance(part, Expression) else str(part) for part in parts)


@dataclass(frozen=True, slots=True)
class Scope:
    """What the expressions of a template may name.

    Attributes:
        variables: the names of the values that each member of the discovery has.
        member: the member whose values are inserted; None: the template is checked without members.
        varying: the ids of the nodes that are not the same for all members.
        fixed: the values of the other nodes; shared by the scopes of one template.
        own: whether the template is the member's own. Its author may be someone else than the operator of the daemon,
            so it cannot read the environment, name files, or hide a text in our log.
        unknown: the paths of scalars whose value is not known without a member.
    """

    variables: tuple[str, ...]
    member: Member | None
    varying: abc.Set[int]
    fixed: dict[Hashable, Any]
    own: bool = False
    unknown: set[str] = field(default_factory=set)

    def value(self, expression: Expression) -> str | None:
        """The text that an expression stands for; None if it is not known without a member.

        Raises:
            ValueError: the member has no such value, or one that is refused; the message says which.
        """
        if self.member is None:
            return expression.default
        return _value(expression, self.member.values)

    def parts(self, text: str) -> abc.Sequence[Part]:
        """The parts of a scalar. Raises ValueError: an expression is malformed, or names something not allowed."""
        if not self.own:
            return parse(text, self.variables)
        found: abc.Sequence[Part] = parse.__wrapped__(text, self.variables)  # not cached: it comes from outside
        named = next((part.name for part in found if isinstance(part, Environment)), None)
        if named is not None:
            raise ValueError(
                f"${{{named}}} is an environment variable, which only the daemon's own file may name; variables: "
                f"{', '.join(self.variables)}"
            )
        return found

    def hides(self, path: str) -> bool:
        """Whether a problem at this path may come from a value that is not known, at the path or below it."""
        return any(known == path or known.startswith((f"{path}.", f"{path}[")) for known in self.unknown)


@lru_cache(maxsize=10_000)  # of the texts of configuration files only, never of values
def parse(text: str, variables: tuple[str, ...]) -> abc.Sequence[Part]:
    """The parts of a scalar of a template.

    Raises:
        ValueError: an expression is malformed, or names an unknown variable.
    """
    parts: list[Part] = []
    done = 0
    while (at := text.find("${", done)) >= 0:
        if at > done:
            parts.append(text[done:at])
        match = _EXPRESSION.match(text, at)
        if match is None:
            written = shorten(text[at : text.find("}", at) + 1 or None], _LONGEST_SHOWN)
            raise ValueError(
                f"{written} is not an expression; write ${{name}}, ${{labels.app}}, ${{labels['a.b/c']}}, "
                "with a default ${name | 8}, or ${NAME} for an environment variable"
            )
        parts.append(_part(match, variables))
        done = match.end()
    return (*parts, text[done:]) if done < len(text) else tuple(parts)


def ids(node: Node) -> abc.Iterator[int]:
    """The ids of all nodes of a tree."""
    yield id(node)
    match node:
        case Sequence():
            for item in node.items:
                yield from ids(item)
        case Mapping():
            for entry in node.entries.values():
                yield from ids(entry.node)


def varying(node: Node, variables: tuple[str, ...]) -> abc.Set[int]:
    """The ids of the nodes of a tree that contain an expression over a member's values, or a malformed expression."""
    found: dict[int, bool] = {}  # visits a node that YAML aliases share only once

    def varies(node: Node) -> bool:
        if id(node) not in found:
            match node:
                case Scalar():
                    found[id(node)] = "${" in node.text and _names_member(node.text, variables)
                case Sequence():
                    found[id(node)] = True in [varies(item) for item in node.items]
                case Mapping():
                    found[id(node)] = True in [varies(entry.node) for entry in node.entries.values()]
        return found[id(node)]

    varies(node)
    return {known for known, it_does in found.items() if it_does}


def _names_member(text: str, variables: tuple[str, ...]) -> bool:
    try:
        return any(isinstance(part, Expression) for part in parse(text, variables))
    except ValueError:
        return True


def _part(match: re.Match[str], variables: tuple[str, ...]) -> Part:
    variable = match["variable"]
    key = _first(match, "plain", "single", "double")
    default = _first(match, "text", "quoted", "bare")
    if variable in variables:
        return Expression(match[0], variable, key, default)
    if not _ENVIRONMENT.fullmatch(variable):
        raise ValueError(
            f"unknown variable {variable} in {shorten(match[0], _LONGEST_SHOWN)}; variables: "
            f"{', '.join(variables) or 'none'}{guess(variable, variables)}"
        )
    if key is not None or default is not None:
        raise ValueError(f"{variable} is an environment variable: write ${{{variable}}}, without a key or a default")
    return Environment(variable)


def _first(match: re.Match[str], *groups: str) -> str | None:
    return next((match[group] for group in groups if match[group] is not None), None)


def _value(expression: Expression, values: abc.Mapping[str, object]) -> str:
    found = values.get(expression.variable)
    if expression.key is None:
        if isinstance(found, abc.Mapping):
            name = expression.variable
            raise ValueError(f"{expression.written}: {name} has keys; write ${{{name}['KEY']}}{_listed(found)}")
    elif isinstance(found, abc.Mapping):
        found = found.get(expression.key)
    elif found is not None:
        raise ValueError(f"{expression.written}: {expression.variable} has no keys")
    if found is None or found == "":
        if expression.default is not None:
            return expression.default
        known = values.get(expression.variable) if expression.key is not None else values
        state = "is empty and has" if found == "" else "has no value and"
        raise ValueError(f"{expression.written} {state} no default{_listed(known)}")
    fault = fault_of(found, expression.written)
    if fault is not None:
        raise ValueError(fault)
    return str(found)


def fault_of(value: object, what: str) -> str | None:
    """Why a value of a member is refused: it is no string, too long, or not printable; None: it is accepted."""
    if not isinstance(value, str):
        return f"{what} is of the type {type(value).__name__}, expected a string"
    if len(value) > MAX_VALUE:
        return f"{what} has {len(value):,} characters, at most {MAX_VALUE:,} are allowed"
    if not value.isprintable():
        odd = next(character for character in value if not character.isprintable())
        return f"{what} has the character U+{ord(odd):04X}, which is not printable"
    return None


def _listed(known: object) -> str:
    """A list of the known keys for a message, as far as they can be shown."""
    if not isinstance(known, Collection):
        return ""
    keys = [shorten(key, _LONGEST_SHOWN) for key in _texts(known) if key.isprintable()]
    return f"; there are: {list_of(sorted(keys), _MAX_LISTED)}" if keys else "; there are none"


def _texts(found: Iterable[object]) -> Iterable[str]:
    return (item for item in found if isinstance(item, str))
