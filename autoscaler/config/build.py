"""Converts nodes to values: sections of the file, dataclasses of the core, and parameters of plug-ins.

A dataclass is read from a mapping, its fields by their types: str, int, float, bool, timedelta, datetime, Secret,
Path, enumerations, Literal, Mapping[str, ...], tuple[..., ...], other dataclasses, and unions of these with None. A
field annotated with `Plugin(kind)` takes `type` and that plug-in's parameters.

This is not done by pydantic, because every problem must name its line, all problems of a file are reported together,
and the value of a `${ENV}` is hidden if it is a secret. See docs/adr/0006-configuration-by-node.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import re
import types
import typing
import warnings
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin
from urllib.parse import unquote

from autoscaler import plugins
from autoscaler.config.document import (
    Entry,
    Invalid,
    Mapping,
    Node,
    Odd,
    Problems,
    Scalar,
    Sequence,
    join,
    read_plain,
)
from autoscaler.config.template import PLACEHOLDER, Environment, Expression, Part, Scope, TextTemplate
from autoscaler.core.durations import parse_duration
from autoscaler.core.foreign import format_exception
from autoscaler.core.parameters import ParameterError
from autoscaler.plugins import Kind
from autoscaler.ports import PluginError, Secret

T = TypeVar("T")

log = logging.getLogger("autoscaler.config")

Reader: TypeAlias = Callable[[Node, str], Any]

_PLUGIN = "{}: a mapping with `type` and its parameters"
_LONGEST_ODD = 40
TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?(Z|[+-][0-9]{2}:[0-9]{2}))?"
"""A date, or a time with its zone, as `read_time` reads it."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET_NAME = re.compile(r"passw|secret|token|api.?key|auth(?!or(?!i[sz]))|cookie|credential", re.IGNORECASE)
_IN_URL = re.compile(r"[?&]([^=&#\s]+)=([^&#\s]+)")
_SHORTEST_HIDDEN, _LONGEST_WORD = 8, 16  # least lengths at which a suspected secret is hidden; letters may be a word
_UNUSED = "not-set-and-not-used-offline"  # the value of a secret whose variable is not set; it is never shown


@dataclass(frozen=True, slots=True)
class Plugin:
    """Annotates a field that takes a plug-in of a kind, selected by `type`."""

    kind: Kind


@dataclass(slots=True)
class Fields:
    """The fields that could be read from a mapping.

    Attributes:
        values: field name -> value, of the keys that are present and valid.
        complete: whether every key is valid and no required one is missing.
    """

    values: dict[str, Any]
    complete: bool


class Builder:
    """Builds values from the nodes of one file.

    Args:
        problems: where problems are recorded.
        directory: the base of relative paths.
        environ: the variables that `${NAME}` may name.
        offline: whether the caller connects to nothing. Then the variables of secrets (see `_substituted`) and the
            packages that plug-ins need to connect may be missing.
        scope: what the expressions of a fleet's template may name; None: the file is no template.

    Attributes:
        warnings: where uses of former names, and secrets in clear text, are recorded.
    """

    def __init__(
        self,
        problems: Problems,
        directory: Path,
        environ: abc.Mapping[str, str],
        *,
        offline: bool = False,
        scope: Scope | None = None,
    ) -> None:
        self.problems = problems
        self.warnings = Problems(problems.file)
        self._directory = directory
        self._environ = environ
        self._offline = offline
        self._scope = scope
        self._classes: dict[tuple[Kind, str], tuple[type[Any] | PluginError, str]] = {}

    def within(self, scope: Scope, problems: Problems) -> Builder:
        """A builder like this one for a fleet's template, with its own problems and warnings."""
        other = Builder(problems, self._directory, self._environ, offline=self._offline, scope=scope)
        other._classes = self._classes  # finding a plug-in takes longer than reading it
        return other

    @property
    def _own(self) -> bool:
        """Whether this builder reads a member's own template."""
        return self._scope is not None and self._scope.own

    def fail(self, node: Node, path: str, message: str) -> Invalid:
        """Record a problem at a node and return what to raise."""
        return self.problems.fail(node.line, path, message)

    def dataclass(self, cls: type[T], node: Node, path: str, default: T | None = None) -> T:
        """Build a dataclass from a mapping; missing keys have the value of `default`, or the default of the class.

        Raises:
            Invalid: it could not be built; all its problems are recorded.
        """
        mapping = self.mapping(node, path, cls)
        read = self.fields(cls, mapping, path, base=default)
        if not read.complete:
            raise Invalid
        return self.construct(cls, mapping, path, read.values, default)

    def fields(
        self,
        cls: type[Any],
        mapping: Mapping,
        path: str,
        *,
        taken: tuple[str, ...] = (),
        base: object = None,
        readers: abc.Mapping[str, Reader] = types.MappingProxyType({}),
    ) -> Fields:
        """Read the fields of a dataclass. A wrong field does not stop the reading of the others.

        Args:
            cls: the dataclass.
            mapping: what to read.
            path: its path.
            taken: keys that are read elsewhere.
            base: gives the values of missing keys; without it, fields without a default are required.
            readers: readers of some of the fields, by name; the others are read by their type.
        """
        hints = type_hints(cls)
        known = {field.name: field for field in dataclasses.fields(cls) if field.init}
        complete = True
        for key, entry in mapping.entries.items():
            if key not in known and key not in taken:
                hint = plugins.guess(key, known) or f"; known here: {', '.join([*taken, *known])}"
                self.problems.add(entry.line, join(path, key), f"unknown key{hint}")
                complete = False
        values: dict[str, Any] = {}
        for name, field in known.items():
            if name in mapping.entries:
                inner, where = mapping.entries[name].node, mapping.place(name, path)[1]
                default = field.default if base is None else getattr(base, name)
                try:
                    reader = readers.get(name)
                    if reader:
                        values[name] = reader(inner, where)
                    else:
                        read = partial(self.value, hints[name], inner, where, default)
                        values[name] = self._once((cls, name, id(inner), id(default)), inner, read)
                except Invalid:
                    complete = False
            elif base is None and is_required(field):
                expected = describe(hints[name])
                self.problems.add(mapping.line, join(path, name), f"missing; expected {expected}")
                complete = False
        return Fields(values, complete)

    def construct(
        self,
        cls: type[T],
        mapping: Mapping,
        path: str,
        values: abc.Mapping[str, Any],
        default: T | None = None,
    ) -> T:
        """Make the dataclass; errors that it raises are recorded as problems."""
        try:
            if default is not None:
                return dataclasses.replace(default, **values)  # type: ignore[type-var]
            return cls(**values)
        except ParameterError as error:
            if error.name in mapping.entries:
                raise self.problems.fail(*mapping.place(error.name, path), error.message) from error
            raise self.fail(mapping, path, str(error)) from error
        except ValueError as error:
            message = str(error) or f"{cls.__name__} refuses these values without a reason"
            word = re.split(r"[\s:,=(]", message.lstrip("`'\""), maxsplit=1)[0].rstrip("`'\"")
            if word in mapping.entries:
                _warn_of_first_word(cls)
                message = message.removeprefix(f"{word}:").strip()  # the path has the name already
                raise self.problems.fail(*mapping.place(word, path), message) from error
            raise self.fail(mapping, path, message) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plug-in may fail in any way
            raise self.fail(mapping, path, f"{cls.__name__} failed: {format_exception(error)}") from error

    def mapping(self, node: Node, path: str, cls: type[Any] | None = None) -> Mapping:
        """The node as a mapping. If a dataclass is given, former names of its fields become the present ones."""
        if isinstance(node, Mapping):
            return node if cls is None else self._renamed(plugins.aliases(cls), node, path)
        raise self.fail(node, path, f"expected a mapping (key: value), not {shape(node)}")

    def _renamed(self, aliases: abc.Mapping[str, str], mapping: Mapping, path: str) -> Mapping:
        if aliases.keys().isdisjoint(mapping.entries):
            return mapping
        entries: dict[str, Entry] = {}
        for key, entry in mapping.entries.items():
            name = aliases.get(key, key)
            if name != key:
                self.warnings.add(entry.line, join(path, key), f"{key!r} is now called {name!r}")
                entry = Entry(entry.line, entry.node, key)  # noqa: PLW2901 - the same entry under its present name
            if name in entries:
                other = entries[name].written or name
                message = f"{key!r} and {other!r} are the same key: keep {name!r} only"
                raise self.problems.fail(entry.line, join(path, key), message)
            entries[name] = entry
        return Mapping(mapping.line, entries, mapping.size)

    def entries(self, node: Node, path: str, read: Callable[[str, Node, str], T]) -> dict[str, T]:
        """Read each value of a mapping from names to values. Raises Invalid after reading all, if one is wrong."""
        entries = self.mapping(node, path).entries
        found: dict[str, T] = {}
        for key, entry in entries.items():
            try:
                found[key] = read(key, entry.node, join(path, key))
            except Invalid:
                continue
        if len(found) < len(entries):
            raise Invalid
        return found

    def plugin_class(self, kind: Kind, node: Node, path: str) -> type[Any]:
        """The class of the plug-in that the key `type` of a mapping names."""
        if not isinstance(node, Mapping):
            # The user may have written one plug-in in place of named ones: its keys are then read as names.
            named = "; put `type` and the keys beside it under a name of your choice" if path.endswith(".type") else ""
            raise self.fail(node, path, f"expected {_PLUGIN.format(kind.phrase)}, not {shape(node)}{named}")
        mapping = node
        if "type" not in mapping.entries:
            known = ", ".join(plugins.names(kind)) or "none at all"
            raise self.problems.fail(
                mapping.line, join(path, "type"), f"missing; expected the name of {kind.phrase}; installed: {known}"
            )
        where = join(path, "type")
        self._refuse_expression(mapping.entries["type"].node, where)
        chosen = self._substituted(str, mapping.entries["type"].node, where)
        # The text as written: `null` is a former name of a target, but YAML reads it as nothing.
        if not isinstance(chosen, Scalar) or not chosen.text:
            raise self.fail(chosen, where, f"expected the name of {kind.phrase}, not {shape(chosen)}")
        key = (kind, chosen.text)
        if key not in self._classes:
            try:
                found = usable(plugins.load(kind, chosen.text), kind)
                if not self._offline:
                    plugins.require_packages(kind, chosen.text, found)
                self._classes[key] = found, plugins.current_name(kind, chosen.text)
            except PluginError as error:
                self._classes[key] = error, chosen.text
        cls, name = self._classes[key]
        if isinstance(cls, PluginError):
            raise self.fail(chosen, where, str(cls)) from cls
        if name != chosen.text:
            self.warnings.add(chosen.line, where, f"{chosen.text!r} is now called {name!r}")
        return cls

    def plugin(self, kind: Kind, node: Node, path: str) -> Any:  # noqa: ANN401 - whatever the plug-in's class is
        """Build a plug-in from `type` and its parameters."""
        return self._once((kind, id(node)), node, lambda: self._plugin(kind, node, path))

    def _once(self, key: abc.Hashable, node: Node, read: Callable[[], T]) -> T:
        """Read a node. In a template, a node that is the same for all members is read only once."""
        if self._scope is None or id(node) in self._scope.varying:
            return read()
        if key not in self._scope.fixed:
            self._scope.fixed[key] = read()
        value: T = self._scope.fixed[key]
        return value

    def _plugin(self, kind: Kind, node: Node, path: str) -> Any:  # noqa: ANN401 - whatever the plug-in's class is
        cls = self.plugin_class(kind, node, path)
        mapping = self.mapping(node, path, cls)
        read = self.fields(cls, mapping, path, taken=("type",))
        if not read.complete:
            raise Invalid
        return self.construct(cls, mapping, path, read.values)

    def value(self, hint: Any, node: Node, path: str, default: Any = None) -> Any:  # noqa: ANN401 - any type
        """Read a node as a type.

        Raises:
            Invalid: it is not of that type; the problems are recorded.
        """
        plugin = plugin_of(hint)
        if plugin is not None:
            if isinstance(node, Scalar) and node.value is None and allows_none(hint):
                return None
            return self.plugin(plugin.kind, node, path)
        hint = bare(hint)
        origin, args = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            return self._union(args, node, path, default)
        self._check_own(hint, node, path)
        node = self._substituted(hint, node, path)
        if origin is Literal:
            return self._choice({str(choice): choice for choice in args}, node, path)
        if origin in MAPPINGS:
            return self._mapping(args[1], node, path)
        if origin in LISTS:
            return self._list(hint, node, path)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return self.dataclass(hint, node, path, default if isinstance(default, hint) else None)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self._choice({str(member.value): member for member in hint}, node, path)
        return self._scalar(hint, node, path)

    def _union(self, args: tuple[Any, ...], node: Node, path: str, default: Any) -> Any:  # noqa: ANN401 - any type
        members = [member for member in args if member is not type(None)]
        if len(members) < len(args) and isinstance(node, Scalar) and node.value is None:
            return None
        if self._scope is not None and len(members) < len(args) and self._is_empty(node, path):
            return None
        if len(members) == 1:
            return self.value(members[0], node, path, default)
        self._substituted(str, node, path)  # reports an unset variable as such, not as a wrong type
        for member in members:
            trial = Builder(Problems(""), self._directory, self._environ, offline=self._offline, scope=self._scope)
            try:
                trial.value(member, node, path, default)
            except Invalid:
                continue
            return self.value(member, node, path, default)
        # If only one type accepts this kind of node, its problems are more precise.
        matching = [member for member in members if _container(member) is type(node)]
        if len(matching) == 1:
            return self.value(matching[0], node, path, default)
        expected = " or ".join(describe(member) for member in members)
        raise self.fail(node, path, f"expected {expected}, not {shape(node)}")

    def _check_own(self, hint: Any, node: Node, path: str) -> None:  # noqa: ANN401 - a type of any form
        """Refuse a path or a secret in a member's own template."""
        if self._own and hint in (Path, Secret):
            what = "names a file or directory" if hint is Path else "is a secret"
            raise self.fail(
                node, path, f"{what}, which only the daemon's own file may have; refer to a source of that file by name"
            )

    def _is_empty(self, node: Node, path: str) -> bool:
        """Whether the expressions of a node give an empty text, which stands for null."""
        if not (isinstance(node, Scalar) and "${" in node.text):
            return False
        found = self._substituted(str, node, path)
        return isinstance(found, Scalar) and not found.text

    def _choice(self, choices: abc.Mapping[str, Any], node: Node, path: str) -> Any:  # noqa: ANN401 - any member
        if isinstance(node, Scalar) and node.text in choices:
            return choices[node.text]
        shown = repr(node.text) if isinstance(node, Scalar) and node.text else shape(node)
        hint = plugins.guess(node.text, choices) if isinstance(node, Scalar) else ""
        raise self.fail(node, path, f"expected one of {', '.join(choices)}, not {shown}{hint}")

    def _mapping(self, hint: Any, node: Node, path: str) -> dict[str, Any]:  # noqa: ANN401 - any type
        def read(key: str, inner: Node, where: str) -> Any:  # noqa: ANN401 - any type
            if hint is str and _SECRET_NAME.search(key) and isinstance(inner, Scalar) and "${" not in inner.text:
                self._suspect(inner, where, "it", inner.text)
            return self.value(hint, inner, where)

        return self.entries(node, path, read)

    def _suspect(self, node: Node, path: str, what: str, value: str) -> None:
        """Warn of a value that may be a secret, by its name. A word is not hidden, as it may occur in many messages."""
        message = f"{what} looks like a secret in clear text: write ${{NAME}} and set that environment variable"
        self.warnings.add(node.line, path, message)
        if self._own:
            return  # it is not our secret, and hiding it would hide this text in all messages
        if len(value) >= (_LONGEST_WORD if value.isalpha() else _SHORTEST_HIDDEN):
            self.problems.hide(value)
            self.problems.hide(unquote(value))

    def _list(self, hint: Any, node: Node, path: str) -> tuple[Any, ...]:  # noqa: ANN401 - any type
        if not isinstance(node, Sequence):
            raise self.fail(node, path, f"expected a list, not {shape(node)}")
        args = get_args(hint)
        hints = [args[0]] * len(node.items) if is_uniform(hint) else list(args)
        if len(hints) != len(node.items):
            raise self.fail(node, path, f"expected a list of {len(hints)}, not of {len(node.items)}")
        found = []
        for index, (inner, item) in enumerate(zip(hints, node.items, strict=True)):
            try:
                found.append(self.value(inner, item, join(path, index)))
            except Invalid:
                continue
        if len(found) < len(hints):
            raise Invalid
        return tuple(found)

    def _scalar(self, hint: Any, node: Node, path: str) -> Any:  # noqa: ANN401, C901 - one case per type
        value = node.value if isinstance(node, Scalar) else None
        if hint in (Secret, TextTemplate) and isinstance(value, str):
            return hint(value)
        if hint is bool and isinstance(value, bool):
            return value
        if hint is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise self.fail(node, path, f"expected a finite number, not {value}")
            return float(value)
        if hint is str and isinstance(value, str):
            return value
        if hint is Path and isinstance(value, str):
            if not value.strip() or "\0" in value:
                raise self.fail(node, path, "expected the path of a file or directory, not an empty or broken string")
            return self._directory / os.path.expanduser(value)  # noqa: PTH111 - Path.expanduser raises for no home
        read = _TIMES.get(hint)
        if read and isinstance(node, Scalar) and value is not None and not isinstance(value, bool):
            try:
                return read(node.text)
            except ValueError as error:
                raise self.fail(node, path, str(error)) from error
        if hint is Secret and isinstance(node, Scalar) and value is not None:
            raise self.fail(node, path, "expected a string or ${NAME}; put this value in quotes")
        raise self.fail(node, path, f"expected {describe(hint)}, not {shape(node)}{_quote(hint, node)}")

    def _substituted(self, hint: Any, node: Node, path: str) -> Node:  # noqa: ANN401 - a type of any form
        """Replace `${NAME}` and expressions in a node by their values, typed as if the file contained these.

        A value is a secret, and hidden, if the field is a `Secret`, or if its key or variable has a name like one.
        """
        if hint is TextTemplate or not (isinstance(node, Scalar) and isinstance(node.value, str)):
            return node
        if self._scope is not None and _container(hint) is not Scalar:
            return node  # an expression stands for a scalar only
        secret = hint is Secret
        text = node.value
        if "${" not in text:
            if secret and text:
                self.problems.hide(text)
                message = (
                    "a secret in clear text: write ${NAME} and set that environment variable, or use a parameter for "
                    "a file, such as token_file, if there is one"
                )
                self.warnings.add(node.line, path, message)
            for name, value in _IN_URL.findall(text) if hint is str else ():
                if _SECRET_NAME.search(name):
                    self._suspect(node, path, name, value)
            return node
        secret = secret or _SECRET_NAME.search(path.rpartition(".")[2]) is not None
        filled = []
        for part in self._parts(node, path):
            if isinstance(part, Environment):
                filled.append(self._environment(part.name, hint, node, path, secret=secret))
            elif isinstance(part, Expression):
                filled.append(self._expression(part, hint, node, path, secret=secret))
            else:
                filled.append(part)
        text = "".join(filled)
        return Scalar(node.line, text, text if hint in _TEXTS else read_plain(text))

    def _parts(self, node: Scalar, path: str) -> abc.Sequence[Part]:
        if self._scope is not None:
            try:
                return self._scope.parts(node.text)
            except ValueError as error:
                raise self.fail(node, path, str(error)) from error
        if "${" in _VARIABLE.sub("", node.text):
            raise self.fail(node, path, "only ${NAME} is understood, with letters, digits and _ in the name")
        # Every second part is the name of a variable.
        return [Environment(part) if index % 2 else part for index, part in enumerate(_VARIABLE.split(node.text))]

    def _environment(self, name: str, hint: Any, node: Node, path: str, *, secret: bool) -> str:  # noqa: ANN401 - any type
        """The value of an environment variable."""
        hidden = secret or _SECRET_NAME.search(name) is not None
        unused = hidden and self._offline and hint in _TEXTS
        value = self._environ.get(name) or (_UNUSED if unused else "")
        if not value:
            state = "is empty" if name in self._environ else "is not set"
            why = " (only secrets may be unset for a command that connects to nothing)" if self._offline else ""
            raise self.fail(node, path, f"the environment variable {name} {state}; set it for this process{why}")
        if hidden:
            self.problems.hide(value)
        return value

    def _expression(self, expression: Expression, hint: Any, node: Node, path: str, *, secret: bool) -> str:  # noqa: ANN401 - any type
        """The member's value of an expression; without a member a placeholder, if the field is a text."""
        assert self._scope is not None  # noqa: S101 - there are no expressions without it
        try:
            value = self._scope.value(expression)
        except ValueError as error:
            raise self.fail(node, path, str(error)) from error
        if value is None:
            self._scope.unknown.add(path)
            if hint not in _TEXTS:
                raise Invalid  # not a problem: the value is unknown without a member
            return PLACEHOLDER
        # A default, such as `basic`, is not hidden: it is an ordinary word.
        if not self._own and (hint is Secret or (secret and value != expression.default)):
            self.problems.hide(value)
        return value

    def _refuse_expression(self, node: Node, path: str) -> None:
        """Refuse an expression in a place where every member must have the same value."""
        if self._scope is None or not isinstance(node, Scalar) or "${" not in node.text:
            return
        if any(isinstance(part, Expression) for part in self._parts(node, path)):
            raise self.fail(node, path, "all members of a fleet have the same type of plug-in; write its name")


_TEXTS = (str, Path, Secret)
# A cache: resolving the types of a class takes as long as reading it, and there may be a thousand clusters.
_HINTS: dict[type[Any], dict[str, Any]] = {}
MAPPINGS = (dict, abc.Mapping)
LISTS = (tuple, abc.Sequence)
_NAMES: abc.Mapping[Any, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    timedelta: "a duration like 30s, 5m or 1h30m",
    datetime: "a date like 2026-12-31, or a time with its zone like 2026-12-31T18:00:00+01:00",
    Secret: "a string or ${NAME}",
    Path: "a path",
    TextTemplate: "a string with expressions such as ${cluster}",
}


def _warn_of_first_word(cls: type[Any]) -> None:
    """Report to users, and to the author of the plug-in, that it should raise `ParameterError`."""
    message = (
        f"{cls.__qualname__} names a wrong parameter by the first word of a ValueError; "
        "raise autoscaler.policy_api.ParameterError(name, message) instead"
    )
    log.warning("deprecated: %s", message)
    with contextlib.suppress(DeprecationWarning):  # as an error, it would hide the configuration's problem
        warnings.warn(message, DeprecationWarning, stacklevel=3)


def type_hints(cls: type[Any]) -> dict[str, Any]:
    """The types of a dataclass's fields.

    Raises:
        PluginError: one of them cannot be resolved.
    """
    if cls not in _HINTS:
        try:
            _HINTS[cls] = typing.get_type_hints(cls, include_extras=True)
        except Exception as error:  # annotations are foreign code
            raise PluginError(f"the types of {cls.__qualname__} cannot be resolved: {error}") from error
    return _HINTS[cls]


def read_time(text: str) -> datetime:
    """Read an ISO 8601 time with its zone, or a date, which means its beginning in UTC. Raises ValueError."""
    message = f"expected {_NAMES[datetime]}, not {text[:_LONGEST_ODD]!r}"
    if not re.fullmatch(TIME, text):
        raise ValueError(message)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:  # a day that the month does not have
        raise ValueError(message) from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


_TIMES: abc.Mapping[Any, Callable[[str], Any]] = {timedelta: parse_duration, datetime: read_time}


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Whether a field has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def bare(hint: Any) -> Any:  # noqa: ANN401 - a type of any form
    """A type without annotations."""
    return bare(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


def is_uniform(hint: Any) -> bool:  # noqa: ANN401 - a type of any form
    """Whether a list's type is `tuple[X, ...]` or `Sequence[X]`, and not a tuple of a fixed length."""
    return get_origin(hint) is abc.Sequence or get_args(hint)[1:] == (Ellipsis,)


def plugin_of(hint: Any) -> Plugin | None:  # noqa: ANN401 - a type of any form
    """The plug-in annotation of a type, also of one that may be None."""
    if get_origin(hint) is Annotated:
        return next((note for note in get_args(hint)[1:] if isinstance(note, Plugin)), None)
    if get_origin(hint) in (Union, types.UnionType):
        return next((found for found in map(plugin_of, get_args(hint)) if found), None)
    return None


def usable(cls: type[Any], kind: Kind) -> type[Any]:
    """Return the class if every parameter has a type that a file can express. Raises PluginError."""
    check_types(cls, ())
    if kind is Kind.SOURCE:
        check_types(cls.Query, ())
    return cls


def check_types(cls: type[Any], inside: tuple[type[Any], ...]) -> None:
    """Like `usable`, for one dataclass and the dataclasses that it contains."""
    if cls in inside:
        raise PluginError(f"{cls.__qualname__} contains itself")
    hints = type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.init:
            _check_type(hints[field.name], f"{cls.__qualname__}.{field.name}", (*inside, cls))


def _check_type(hint: Any, name: str, inside: tuple[type[Any], ...]) -> None:  # noqa: ANN401 - a type of any form
    hint = bare(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal or hint in _NAMES or hint in (type(None), Ellipsis):
        return
    if origin in MAPPINGS and args[0] is str:
        _check_type(args[1], name, inside)
    elif origin in LISTS or origin in (Union, types.UnionType):
        for arg in args:
            _check_type(arg, name, inside)
    elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
        check_types(hint, inside)
    elif not (isinstance(hint, type) and issubclass(hint, Enum)):
        raise PluginError(f"the parameter {name} has the type {hint}, which a configuration cannot express")


def describe(hint: Any) -> str:  # noqa: ANN401 - a type of any form
    """A type in words, for `expected ...`."""
    plugin = plugin_of(hint)
    if plugin:
        return _PLUGIN.format(plugin.kind.phrase)
    hint = bare(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(member) for member in args if member is not type(None))
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(str(member.value) for member in hint)}"
    if origin in LISTS:
        return "a list"
    return _NAMES.get(hint, "a mapping")


def shape(node: Node) -> str:
    """A node in words, without showing a string that might be a secret."""
    if isinstance(node, Mapping):
        return "a mapping"
    if isinstance(node, Sequence):
        return "a list"
    match node.value:
        case None:
            return "nothing"
        case str():
            return "a string" if node.value else "an empty string"
        case Odd():
            meaning = node.value.meaning
            return meaning if len(node.text) > _LONGEST_ODD else f"{node.text}, which YAML reads as {meaning}"
        case bool() if node.text.lower() not in ("true", "false"):
            return f"{node.text}, which YAML reads as {'true' if node.value else 'false'}"
        case bool():
            return node.text
    return f"the number {node.text}"


def _quote(hint: Any, node: Node) -> str:  # noqa: ANN401 - a type of any form
    if hint in (str, Path) and isinstance(node, Scalar) and node.value is not None:
        return f"; if it is meant as a string, put it in quotes: '{node.text}'"
    return ""


def _container(hint: Any) -> type[Any]:  # noqa: ANN401 - a type of any form
    hint = bare(hint)
    if get_origin(hint) in MAPPINGS or dataclasses.is_dataclass(hint):
        return Mapping
    return Sequence if get_origin(hint) in LISTS else Scalar


def allows_none(hint: Any) -> bool:  # noqa: ANN401 - a type of any form
    """Whether a type is a union with None."""
    return get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint)
