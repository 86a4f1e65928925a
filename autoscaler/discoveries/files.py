"""Discovery `files`: the files of a folder, one YAML or JSON file for each member of a fleet."""

from __future__ import annotations

import asyncio
import glob
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import ClassVar

from autoscaler.config import document
from autoscaler.config.document import Invalid, Problems
from autoscaler.ports import Member, RefusedError, Shared

_ENDINGS = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Files:
    """The files of a folder. Each file is a member, and contains its values as a YAML or JSON mapping.

    Attributes:
        path: a folder whose files `*.yaml`, `*.yml` and `*.json` are read, or a pattern of files in a folder, such as
            `jobs/*.yaml`. Hidden files are not read.
    """

    variables: ClassVar[tuple[str, ...]] = ("name", "values")

    path: Path

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[_Folder]:  # noqa: ARG002 - files need no client
        """Yield the folder. The first `members` reads it."""
        yield _Folder(self.path)


class _Folder:
    """The files of a folder. A file is read again only after a change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[Path, tuple[tuple[int, int, int], Member]] = {}

    async def members(self) -> Sequence[Member]:
        """The members of all current files. Raises RefusedError if the folder cannot be listed."""
        return await asyncio.to_thread(self._members)

    def _members(self) -> Sequence[Member]:
        known, self._read = self._read, {}
        for file in self._files():
            try:
                stat = file.stat()
            except FileNotFoundError:
                continue  # the file was removed after the folder was listed
            except OSError as error:
                self._read[file] = (0, 0, 0), _unreadable(file, f"{file} cannot be read: {error.strerror}")
                continue
            state = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            before = known.get(file)
            if before is not None and before[0] == state:
                self._read[file] = before
            elif S_ISREG(stat.st_mode):
                self._read[file] = state, _member(file)
            else:  # do not read a pipe: that would block until a process writes to it
                self._read[file] = state, _unreadable(file, f"{file} is not a regular file")
        return [member for _, member in self._read.values()]

    def _files(self) -> list[Path]:
        whole = not glob.has_magic(self._path.name)
        folder = self._path if whole else self._path.parent
        try:
            found = [file for file in folder.iterdir() if not file.name.startswith(".")]
        except OSError as error:
            raise RefusedError(f"{folder} cannot be listed: {error.strerror}") from error
        return sorted(file for file in found if (file.suffix in _ENDINGS if whole else file.match(self._path.name)))


def _member(file: Path) -> Member:
    problems = Problems(str(file))
    try:
        node = document.read(file, problems)
        if not isinstance(node, document.Mapping):
            raise problems.fail(node.line, "", "expected a mapping of names to values")
        values = {}
        for key, entry in node.entries.items():
            if isinstance(entry.node, document.Scalar):
                values[key] = "" if entry.node.value is None else entry.node.text
            else:
                problems.add(entry.line, key, "expected a string, a number, true or false, not a list or a mapping")
    except Invalid:
        pass
    if problems:
        return _unreadable(file, "; ".join(problems.error().problems))
    return Member(file.name, {"name": file.stem, "values": values})


def _unreadable(file: Path, problem: str) -> Member:
    return Member(file.name, {"name": file.stem}, problem)
