"""Reads the files that the configuration file includes, as if it contained their sources, clusters and fleets."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from autoscaler.config import document
from autoscaler.config.document import MAX_NODES, Entry, Invalid, Line, Mapping, Node, Problems, Scalar, Sequence, join

INCLUDE = "include"
SECTIONS = ("sources", "clusters", "fleets")
_LISTED = f"{', '.join(SECTIONS[:-1])} and {SECTIONS[-1]}"
OWN = "x-"
"""Top-level keys with this prefix are for the user's own anchors."""

MAX_FILES = 1000
LOST_AND_FOUND = "lost+found"
"""A folder that ext4 has at the root of a volume, and that only root may read."""

ENDINGS = (".yaml", ".yml")
"""The suffixes of the files that are read from a folder."""


def read(path: Path, problems: Problems) -> Node:
    """Read a configuration file with the files that it includes.

    Raises:
        Invalid: it cannot be read as one YAML document. Other problems, those of included files too, are recorded only.
    """
    root = document.read(path, problems)
    if not isinstance(root, Mapping) or INCLUDE not in root.entries:
        return root
    files: dict[str, None] = {}  # an ordered set
    for node, where in _patterns(root.entries[INCLUDE].node, problems):
        files.update(dict.fromkeys(_matching(path.parent, node, where, problems)))
    itself = path.resolve()
    found = [file for file in files if Path(file).resolve() != itself]  # a pattern may match the file itself
    if len(found) > MAX_FILES:
        line = root.entries[INCLUDE].line
        problems.add(line, INCLUDE, f"{len(found):,} files, at most {MAX_FILES:,}: put several clusters in a file")
        return root
    merged = Mapping(root.line, dict(root.entries), root.size)
    for section in SECTIONS:
        # YAML aliases may share nodes, so no node is changed.
        entry = root.entries.get(section)
        if entry is not None and isinstance(entry.node, Mapping):
            copy = Mapping(entry.node.line, dict(entry.node.entries), entry.node.size)
            merged.entries[section] = Entry(entry.line, copy, entry.written)
    for file in found:
        try:
            _merge(merged, document.read(Path(file), problems, file), file, problems)
        except Invalid:
            continue
    return merged


def _patterns(node: Node, problems: Problems) -> Iterator[tuple[Scalar, str]]:
    """The strings of `include:`, each with its path. Other values are refused later, when their type is checked."""
    items = enumerate(node.items) if isinstance(node, Sequence) else [(None, node)]
    for index, item in items:
        where = INCLUDE if index is None else join(INCLUDE, index)
        if not (isinstance(item, Scalar) and isinstance(item.value, str)):
            continue
        if item.value and "${" not in item.value:
            yield item, where
        else:
            problems.add(
                item.line, where, f"is {item.value!r}, expected a file, a folder or a pattern like conf.d/*.yaml"
            )


def _matching(directory: Path, node: Scalar, where: str, problems: Problems) -> list[str]:
    """The files that a pattern matches, by name. A path without a wildcard must exist. Hidden files never match."""
    given = Path(node.text).expanduser()
    path = directory / given
    try:
        if glob.has_magic(node.text):
            return _files(directory, given)
        if path.is_dir():
            return sorted(file for ending in ENDINGS for file in _files(path, Path(f"*{ending}")))
        if path.exists():
            return [str(path)]
    except OSError as error:
        # Without this problem, the clusters in it would count as removed.
        problems.add(node.line, where, f"{error.filename} cannot be read: {error.strerror}")
        return []
    problems.add(node.line, where, f"there is no file or folder {path}")
    return []


def _files(base: Path, pattern: Path) -> list[str]:
    """The files of a pattern. Raises OSError if a folder cannot be read, which `glob` would take for an empty one."""
    for parent in reversed(pattern.parents):
        for name in ("", *_glob(base, parent)):
            if (base / name).is_dir():
                os.scandir(base / name).close()
    return sorted({str(base / name) for name in _glob(base, pattern) if (base / name).is_file()})


def _glob(base: Path, pattern: Path) -> list[str]:
    # Not `Path.glob`, which also matches hidden files, such as those that an editor leaves.
    found = glob.glob(str(pattern), root_dir=base, recursive=True)  # noqa: PTH207
    return [name for name in found if LOST_AND_FOUND not in Path(name).parts]


def _merge(root: Mapping, included: Node, file: str, problems: Problems) -> None:
    """Add the sections of an included file to those of the root."""
    if not isinstance(included, Mapping):
        raise problems.fail(included.line, "", f"expected a mapping with {_LISTED}")
    for key, entry in included.entries.items():
        if key.startswith(OWN):
            continue
        if key not in SECTIONS:
            problems.add(entry.line, key, f"an included file has {_LISTED} only; write this in {problems.file}")
            continue
        section = root.entries.setdefault(key, Entry(entry.line, Mapping(entry.line))).node
        if not isinstance(entry.node, Mapping):
            problems.add(entry.line, key, "expected a mapping")
            continue
        if not isinstance(section, Mapping):
            continue  # refused later, when the sections of the file itself are read
        for name, inner in entry.node.entries.items():
            if name in section.entries:
                problems.add(inner.line, join(key, name), f"is already in {_place(section.entries[name], problems)}")
            else:
                section.entries[name] = inner
    root.size += included.size
    if root.size > MAX_NODES:
        raise problems.fail(Line.of(1, file), "", f"more than {MAX_NODES:,} values in all files together")


def _place(entry: Entry, problems: Problems) -> str:
    file = entry.line.file if isinstance(entry.line, Line) else problems.file
    return f"{file}:{entry.line}"
