"""A folder of files as a fleet: one member each."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from autoscaler.daemon.connections import Connections
from autoscaler.discoveries.files import Files
from autoscaler.ports import Member, RefusedError


async def found(path: Path) -> list[Member]:
    async with Files(path).connect(Connections()) as discovery:
        return list(await discovery.members())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "jobs"
    path.mkdir()
    return path


async def test_each_file_of_a_folder_is_a_member_with_its_values(folder: Path) -> None:
    (folder / "orders.yaml").write_text('app: shop\nmax: 12\nnight: off\nempty:\nnone: null\ntext: "null"\n')
    (folder / "clicks.json").write_text('{"app": "web", "max": 3}')
    (folder / "views.yml").write_text("{}\n")
    (folder / "notes.txt").write_text("app: no\n")
    (folder / ".hidden.yaml").write_text("app: no\n")
    assert await found(folder) == [
        Member("clicks.json", {"name": "clicks", "values": {"app": "web", "max": "3"}}),
        Member(
            "orders.yaml",
            {
                "name": "orders",
                "values": {"app": "shop", "max": "12", "night": "off", "empty": "", "none": "", "text": "null"},
            },
        ),
        Member("views.yml", {"name": "views", "values": {}}),
    ]


async def test_a_pattern_selects_files_of_a_folder(folder: Path) -> None:
    for name in ("team-a.yaml", "team-b.conf", "other.yaml", ".team-c.yaml"):
        (folder / name).write_text("app: shop\n")
    assert [member.id for member in await found(folder / "team-*")] == ["team-a.yaml", "team-b.conf"]
    assert await found(folder / "nothing-*") == []


async def test_a_folder_whose_path_contains_pattern_characters_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "[a]*"
    folder.mkdir()
    (folder / "orders.yaml").write_text("app: shop\n")
    assert [member.id for member in await found(folder / "*.yaml")] == ["orders.yaml"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"- a\n", "1: (file): expected a mapping of names to values"),
        (b"", "1: (file): the file is empty, expected a mapping (key: value)"),
        (b"a: 1\nb: {c: d}\n", "2: b: expected a string, a number, true or false, not a list or a mapping"),
        (b"a: 1\na: 2\n", "2: a: duplicate key; it is already on line 1"),
        (b"a: [\n", "2: (file): not valid YAML"),
        (b"a: \xff\n", "1: (file): not UTF-8"),
        (b"a: !!python/object:os.system x\n", "1: a: the tag !!python/object:os.system is not allowed"),
    ],
)
async def test_an_unreadable_file_is_a_member_with_a_problem(folder: Path, text: bytes, problem: str) -> None:
    (folder / "bad.yaml").write_bytes(text)
    (folder / "good.yaml").write_text("app: shop\n")
    bad, good = await found(folder)
    assert (bad.id, bad.values) == ("bad.yaml", {"name": "bad"})
    assert bad.problem is not None
    assert bad.problem.startswith(f"{folder}/bad.yaml:{problem}")
    assert good == Member("good.yaml", {"name": "good", "values": {"app": "shop"}})


@pytest.mark.parametrize("path", ["nowhere", "nowhere/*.yaml"])
async def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(tmp_path: Path, path: str) -> None:
    with pytest.raises(RefusedError, match="cannot be listed: No such file or directory"):
        await found(tmp_path / path)


async def test_files_are_added_changed_and_removed(folder: Path) -> None:
    (folder / "a.yaml").write_text("app: one\n")
    async with Files(folder).connect(Connections()) as discovery:
        (first,) = await discovery.members()
        (same,) = await discovery.members()
        assert same is first  # not read again
        (folder / "a.yaml").write_text("app: three\n")
        (folder / "b.yaml").write_text("app: two\n")
        assert [member.values["values"] for member in await discovery.members()] == [{"app": "three"}, {"app": "two"}]
        (folder / "a.yaml").unlink()
        assert [member.id for member in await discovery.members()] == ["b.yaml"]


async def test_a_dangling_link_is_not_a_member(folder: Path) -> None:
    os.symlink(folder / "gone.yaml", folder / "a.yaml")  # noqa: PTH211 - shorter
    (folder / "b.yaml").write_text("app: two\n")
    assert [member.id for member in await found(folder)] == ["b.yaml"]


async def test_a_file_that_is_not_regular_is_a_member_with_a_problem_and_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe.yaml")
    (folder / "folder.yaml").mkdir()
    os.symlink(folder / "round.yaml", folder / "round.yaml")  # noqa: PTH211 - shorter
    (folder / "good.yaml").write_text("app: two\n")
    async with asyncio.timeout(10):
        members = await found(folder)
    assert {member.id: member.problem for member in members} == {
        "folder.yaml": f"{folder}/folder.yaml is not a regular file",
        "good.yaml": None,
        "pipe.yaml": f"{folder}/pipe.yaml is not a regular file",
        "round.yaml": f"{folder}/round.yaml cannot be read: Too many levels of symbolic links",
    }
