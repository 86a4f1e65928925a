"""Parses YAML to a tree of nodes with their lines; YAML features that a configuration does not need are refused.

PyYAML scans and parses; the tree is composed here from its events, because PyYAML's own constructor loses the lines,
accepts duplicate keys silently, and reads `1:30` as the number 90.
"""

from __future__ import annotations

import json
import re
from collections import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

import yaml

from autoscaler.core.foreign import Mask
from autoscaler.ports import ConfigurationError

MAX_BYTES = 10_000_000  # a thousand clusters need about 1.5 million
MAX_NODES = 500_000  # counted with aliases written out, so that a few lines of aliases cannot become gigabytes
MAX_DEPTH = 100
MAX_FOREIGN_NODES = 2_000  # of a template that a member brings
MAX_FOREIGN_TEXT = 10_000  # characters of a text in it
MAX_PROBLEMS = 100
FILE = "(file)"  # the path of a problem of the whole file

# libyaml is about twenty times faster; both give the same events.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER = yaml.resolver.Resolver()
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = ("!", f"{_TAG}str")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_NO_COLON = "could not find expected ':'"
_DECIMAL = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_MAX_DIGITS = 18
_PLAIN_KEY = re.compile(r"[\w@-][\w./@-]{0,79}")
_SHOWN_KEY = 60
_LONGEST_MESSAGE = 500


class Invalid(Exception):  # noqa: N818 - control flow inside this package: the problem has been recorded already
    """The part that was read is not usable; its problems have been recorded."""


class Line(int):
    """The number of a line in an included file.

    Attributes:
        file: the name of that file.
    """

    file: str

    @classmethod
    def of(cls, number: int, file: str) -> Line:
        """A line of that file."""
        line = cls(number)
        line.file = file
        return line


class Problem(NamedTuple):
    """One problem: its place and its message."""

    file: str
    line: int
    path: str
    message: str


class Problems:
    """Collects the problems of one file, and of the files that it includes."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: dict[Problem, None] = {}  # an ordered set
        self.secrets: set[str] = set()
        self._mask = Mask()

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, line: int, path: str, message: str) -> None:
        """Record a problem."""
        file = line.file if isinstance(line, Line) else self.file
        self._found[Problem(file, line, path or FILE, " ".join(message.split()))] = None

    def fail(self, line: int, path: str, message: str) -> Invalid:
        """Record a problem and return what to raise."""
        self.add(line, path, message)
        return Invalid()

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._found)

    def adopt(self, other: Problems, unless: Callable[[Problem], bool]) -> None:
        """Add the problems of another collection, without those for which `unless` is true, and hide its secrets."""
        self._found |= {problem: None for problem in other if not unless(problem)}
        for secret in other.secrets:
            self.hide(secret)

    def hide(self, secret: str) -> None:
        """Mask this string in all messages."""
        self.secrets.add(secret)
        self._mask.hide(secret)

    def error(self) -> ConfigurationError:
        """All problems in the order of the file; those of included files follow."""
        ordered = sorted(self._found, key=lambda problem: (problem[0] != self.file, *problem[:2]))
        lines = [
            f"{file}:{line}: {path}: {self._masked(message)}" for file, line, path, message in ordered[:MAX_PROBLEMS]
        ]
        if len(ordered) > MAX_PROBLEMS:
            file, line, *_ = ordered[MAX_PROBLEMS]
            lines.append(f"{file}:{line}: {FILE}: and {len(ordered) - MAX_PROBLEMS} more problems from here on")
        return ConfigurationError(lines)

    def _masked(self, message: str) -> str:
        message = self._mask(message)
        # Cut after masking: the beginning of a secret would not be recognized.
        return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}..."


@dataclass(frozen=True, slots=True)
class Odd:
    """A plain scalar with a YAML 1.1 meaning that a configuration does not use."""

    meaning: str


@dataclass(slots=True)
class Scalar:
    """A string, number, boolean or null; `text` is how it is written."""

    line: int
    text: str
    value: str | int | float | bool | Odd | None
    size: int = 1


@dataclass(slots=True)
class Sequence:
    """A list."""

    line: int
    items: list[Node] = field(default_factory=list)
    size: int = 1


@dataclass(slots=True)
class Entry:
    """A key's line and value; `written` is the key in the file if that is a former name."""

    line: int
    node: Node
    written: str | None = None


@dataclass(slots=True)
class Mapping:
    """String keys and their values."""

    line: int
    entries: dict[str, Entry] = field(default_factory=dict)
    size: int = 1

    def place(self, key: str, path: str) -> tuple[int, str]:
        """Line and path of one of its keys, given its own path."""
        entry = self.entries[key]
        return entry.line, join(path, entry.written or key)


Node: TypeAlias = Scalar | Sequence | Mapping


def join(path: str, key: str | int) -> str:
    """The path of a key or an index below a path."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    shown = key if _PLAIN_KEY.fullmatch(key) else json.dumps(key[:_SHOWN_KEY])
    return f"{path}.{shown}" if path else shown


def read(path: Path, problems: Problems, file: str | None = None) -> Node:
    """Read a YAML file.

    Args:
        path: the file.
        problems: where its problems are recorded.
        file: its name in problems, if it is not the main file of `problems`.

    Raises:
        Invalid: it cannot be read as one YAML document. Other problems, such as duplicate keys, are recorded only.
    """
    return parse(_text(path, problems, file), problems, file)


def parse(text: str, problems: Problems, file: str | None = None) -> Node:
    """Read YAML text; like `read`."""
    strange = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if strange:
        line = _line_in(file, _line_of(text, strange.start()))
        raise problems.fail(line, FILE, f"the character U+{ord(strange[0]):04X} is not allowed in YAML")
    try:
        return _Composer(text, problems, file).document()
    except yaml.MarkedYAMLError as error:
        what = ", ".join(part for part in (error.context, error.problem) if part)
        # PyYAML notices a missing colon only after the key: report the line of the key.
        marks = error.problem_mark, error.context_mark
        mark = next(filter(None, reversed(marks) if _NO_COLON in what else marks), None)
        line = mark.line + 1 if mark else 1
        message = f"not valid YAML: {what}{_yaml_hint(text, line, what)}"
        raise problems.fail(_line_in(file, line), FILE, message) from error
    except yaml.YAMLError as error:
        raise problems.fail(_line_in(file, 1), FILE, "not valid YAML") from error


def from_json(value: object, line: int, problems: Problems, path: str) -> Node:
    """Convert a JSON value to nodes that are all on one line.

    Raises:
        Invalid: it has too many values, or a text is too long. It comes from outside, so reading it must not delay a
            tick too much.
    """
    nodes = 0

    def read(value: object, path: str, depth: int) -> Node:
        nonlocal nodes
        nodes += 1
        if nodes > MAX_FOREIGN_NODES:
            raise problems.fail(line, path, f"more than {MAX_FOREIGN_NODES:,} values in all")
        if depth > MAX_DEPTH:
            raise problems.fail(line, path, f"nested more than {MAX_DEPTH} levels deep")
        match value:
            case str():
                if len(value) > MAX_FOREIGN_TEXT:
                    raise problems.fail(line, path, f"longer than {MAX_FOREIGN_TEXT:,} characters")
                return Scalar(line, value, value)
            case None | bool() | int() | float():
                return Scalar(line, json.dumps(value), value)
            case abc.Mapping():
                inner = {str(key): read(found, join(path, str(key)), depth + 1) for key, found in value.items()}
                return Mapping(line, {key: Entry(line, node) for key, node in inner.items()})
            case list() | tuple():
                return Sequence(line, [read(found, join(path, index), depth + 1) for index, found in enumerate(value)])
        raise problems.fail(line, path, f"of the type {type(value).__name__}, which JSON does not have")

    return read(value, path, 0)


def _line_in(file: str | None, number: int) -> int:
    return number if file is None else Line.of(number, file)


def put(node: Node, path: abc.Sequence[str], value: Node) -> Node:
    """A copy of the tree with a value at a path of keys, which may be new. It gets the line of the replaced node.

    YAML aliases may share nodes, so no node is changed.

    Raises:
        KeyError: a node on the path is not a mapping; the error has the path to that node.
    """
    if not path:
        return _at(value, node.line)
    if not isinstance(node, Mapping):
        raise KeyError("")
    entry = node.entries.get(path[0], Entry(node.line, Mapping(node.line)))
    try:
        inner = put(entry.node, path[1:], value)
    except KeyError as error:
        raise KeyError(join(path[0], error.args[0]) if error.args[0] else path[0]) from error
    size = node.size + inner.size - (entry.node.size if path[0] in node.entries else 0)
    return Mapping(node.line, {**node.entries, path[0]: Entry(entry.line, inner)}, size)


def _at(node: Node, line: int) -> Node:
    match node:
        case Scalar():
            return Scalar(line, node.text, node.value)
        case Sequence():
            return Sequence(line, [_at(item, line) for item in node.items], node.size)
    return Mapping(line, {key: Entry(line, _at(entry.node, line)) for key, entry in node.entries.items()}, node.size)


def _text(path: Path, problems: Problems, file: str | None) -> str:
    first = _line_in(file, 1)
    try:
        with path.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise problems.fail(first, FILE, "there is no such file") from error
    except IsADirectoryError as error:
        raise problems.fail(first, FILE, "this is a directory; name the YAML file in it") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise problems.fail(first, FILE, f"cannot be read: {reason}") from error
    if len(data) > MAX_BYTES:
        raise problems.fail(first, FILE, f"larger than {MAX_BYTES:,} bytes; this cannot be a configuration")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8: byte 0x{data[error.start]:02x}; save the file as UTF-8"
        raise problems.fail(_line_in(file, line), FILE, message) from error


def _line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _yaml_hint(text: str, line: int, what: str) -> str:
    current = next(iter(text.split("\n")[line - 1 : line]), "")
    if "\t" in current[: len(current) - len(current.lstrip())]:
        return "; indent with spaces, not with tabs"
    if _NO_COLON in what:
        return "; write `key: value`, with a space after the colon"
    if "mapping values are not allowed" in what:
        return "; put a value that has a colon and a space in quotes, or add a space after the colon of a key above"
    if "block mapping" in what:
        return "; all keys of a mapping need the same indentation: compare this line with the lines above"
    return ""


class _Composer:
    """Composes nodes from the events of one document."""

    def __init__(self, text: str, problems: Problems, file: str | None) -> None:
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=_LOADER)
        self._problems = problems
        self._file = file
        self._anchors: dict[str, Node | None] = {}  # None while the node is still being composed

    def document(self) -> Node:
        """The one document of the text."""
        next(self._events)  # stream start
        if not isinstance(next(self._events), yaml.DocumentStartEvent):
            raise self._problems.fail(
                _line_in(self._file, 1), FILE, "the file is empty, expected a mapping (key: value)"
            )
        node = self._node(next(self._events), "", 0)
        next(self._events)  # document end
        event = next(self._events)
        if isinstance(event, yaml.DocumentStartEvent):
            raise self._problems.fail(
                self._line(event), FILE, "a second document begins here; a file must be one document"
            )
        return node

    def _node(self, event: yaml.Event, path: str, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._problems.fail(self._line(event), path, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        anchor: str | None = event.anchor  # type: ignore[attr-defined]  # every other event that begins a node has one
        if anchor is not None:
            self._anchors[anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node: Node = self._scalar(event, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(event, path, depth)
        else:
            assert isinstance(event, yaml.MappingStartEvent)  # noqa: S101 - no other event begins a node
            node = self._mapping(event, path, depth)
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _alias(self, event: yaml.AliasEvent, path: str) -> Node:
        if event.anchor not in self._anchors:
            known = ", ".join(f"&{name}" for name in self._anchors) or "none"
            raise self._problems.fail(
                self._line(event), path, f"*{event.anchor} is not defined above; anchors: {known}"
            )
        node = self._anchors[event.anchor]
        if node is None:
            raise self._problems.fail(self._line(event), path, f"*{event.anchor} contains itself")
        return node

    def _sequence(self, event: yaml.SequenceStartEvent, path: str, depth: int) -> Sequence:
        self._refuse_tag(event, path)
        sequence = Sequence(self._line(event))
        while not isinstance(inner := next(self._events), yaml.SequenceEndEvent):
            item = self._node(inner, join(path, len(sequence.items)), depth + 1)
            sequence.items.append(item)
            sequence.size = self._grown(sequence.size, item, path)
        return sequence

    def _mapping(self, event: yaml.MappingStartEvent, path: str, depth: int) -> Mapping:
        self._refuse_tag(event, path)
        mapping = Mapping(self._line(event))
        merged: list[Mapping] = []
        merge_line = 0
        while not isinstance(inner := next(self._events), yaml.MappingEndEvent):
            line = self._line(inner)
            key = self._key(inner, path)
            follower = next(self._events)
            value = self._node(follower, join(path, key), depth + 1)
            if not isinstance(value, Scalar) and not isinstance(follower, yaml.AliasEvent):
                value.line = line  # the line of a mapping or list is that of its key
            mapping.size = self._grown(mapping.size, value, path)
            if key == "<<" and _is_merge(inner):
                if merge_line:
                    self._problems.add(
                        line, path, f"a second `<<`, after line {merge_line}: write `<<: [*one, *other]`"
                    )
                merge_line = line
                merged += self._merged(value, line, path)
            elif key in mapping.entries:
                first = mapping.entries[key].line
                self._problems.add(line, join(path, key), f"duplicate key; it is already on line {first}")
            else:
                mapping.entries[key] = Entry(line, value)
        for source in merged:  # the first one wins, and explicit keys win over all
            for key, entry in source.entries.items():
                mapping.entries.setdefault(key, entry)
        return mapping

    def _merged(self, value: Node, line: int, path: str) -> list[Mapping]:
        sources = value.items if isinstance(value, Sequence) else [value]
        found = [source for source in sources if isinstance(source, Mapping)]
        if len(found) < len(sources):
            self._problems.add(line, path, "`<<` takes a mapping or a list of mappings")
        return found

    def _key(self, event: yaml.Event, path: str) -> str:
        if isinstance(event, yaml.AliasEvent):
            node = self._alias(event, path)
            if isinstance(node, Scalar) and node.text:
                return node.text
        elif isinstance(event, yaml.ScalarEvent) and event.value:
            if event.anchor is not None:
                self._anchors[event.anchor] = Scalar(self._line(event), event.value, event.value)
            self._refuse_tag(event, path)
            # A key is used as it is written: `on`, `no` and `1` are names here.
            return str(event.value)
        raise self._problems.fail(self._line(event), path, "a key must be a string that is not empty")

    def _scalar(self, event: yaml.ScalarEvent, path: str) -> Scalar:
        line = self._line(event)
        if event.tag in _TEXT_TAGS or (event.tag is None and not event.implicit[0]):
            return Scalar(line, event.value, event.value)
        if event.tag is not None:
            self._refuse_tag(event, path)
            return Scalar(line, event.value, event.value)
        return Scalar(line, event.value, read_plain(event.value))

    def _line(self, event: yaml.Event) -> int:
        # Events of a string have a mark.
        return _line_in(self._file, int(event.start_mark.line) + 1)  # type: ignore[union-attr]

    def _refuse_tag(self, event: yaml.Event, path: str) -> None:
        tag: str | None = event.tag  # type: ignore[attr-defined]  # only called with events that have one
        if tag is not None and tag not in _TEXT_TAGS:
            shown = f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag
            self._problems.add(self._line(event), path, f"the tag {shown[:_SHOWN_KEY]} is not allowed; remove it")

    def _grown(self, size: int, node: Node, path: str) -> int:
        if size + node.size > MAX_NODES:
            raise self._problems.fail(node.line, path, f"more than {MAX_NODES:,} values once aliases are written out")
        return size + node.size


def _is_merge(event: yaml.Event) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.tag is None and bool(event.implicit[0])


def read_plain(text: str) -> str | int | float | bool | Odd | None:
    """The value of a plain scalar: YAML 1.1 as PyYAML resolves it, but without octal numbers, dates and the like."""
    if _DECIMAL.fullmatch(text):
        return _number(text)
    tag: str = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    tag = tag.removeprefix(_TAG)
    match tag:
        case "null":
            return None
        case "bool":
            return text.lower() in ("yes", "true", "on")
        case "float" if ":" not in text:  # only the infinities and not-a-number are left
            return float(text.lower().replace(".", "", 1))
        case "int" | "float":
            return Odd("a number written in an old way (octal, hexadecimal, binary or 1:30)")
        case "timestamp":
            return Odd("a date")
        case _:
            return text


def _number(text: str) -> int | float | Odd:
    if _INTEGER.fullmatch(text):
        digits = text.replace("_", "")
        return int(digits) if len(digits) <= _MAX_DIGITS else Odd(f"a number of more than {_MAX_DIGITS} digits")
    if text.lstrip("+-")[0] == "0" and text.lstrip("+-").isdigit():
        return Odd("an octal number")
    return float(text.replace("_", ""))
