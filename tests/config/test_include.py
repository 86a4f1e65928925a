"""Files that the configuration file includes: read as if they were part of it, with problems under their own names."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from autoscaler.cli import trials
from autoscaler.config import include, json_schema, load
from autoscaler.config.document import MAX_NODES, Mapping, Problems
from autoscaler.config.model import Config
from autoscaler.ports import ConfigurationError

Write = Callable[..., Path]

SOURCE = 'type: stub-source, url: "http://127.0.0.1:9090"'
MAIN = f"include: conf.d\nsources:\n  main: {{{SOURCE}}}\n"
CLUSTER = """\
    target: {{type: stub-target, name: {name}}}
    max: 4
    metrics:
      lag: {{source: main, name: lag}}
    policies:
      main: {{type: stub-policy, within: 60s}}
"""


def cluster(name: str) -> str:
    return f"  {name}:\n{CLUSTER.format(name=name)}"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the main file and others, by their paths; returns the path of the main file."""

    def written(main: str, **files: str) -> Path:
        (tmp_path / "conf.d").mkdir(exist_ok=True)
        for name, text in files.items():
            (tmp_path / "conf.d" / f"{name}.yaml").write_text(text)
        path = tmp_path / "autoscaler.yaml"
        path.write_text(main)
        return path

    return written


def problems(path: Path) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        load(path, {})
    return [problem.replace(f"{path.parent}/", "") for problem in raised.value.problems]


def accepted(path: Path) -> Config:
    return load(path, {})


def test_clusters_and_sources_of_included_files_are_read_as_part_of_the_file(write: Write) -> None:
    path = write(
        MAIN + "clusters:\n" + cluster("own"),
        a="x-own: 1\nclusters:\n" + cluster("a").replace("source: main", "source: other"),
        b=f"sources:\n  other: {{{SOURCE}}}\nclusters:\n" + cluster("b"),
    )
    config = accepted(path)
    assert list(config.clusters) == ["own", "a", "b"]
    assert list(config.sources) == ["main", "other"]


def test_the_file_itself_needs_no_clusters(write: Write) -> None:
    path = write("include: conf.d/*.yaml\n", a=MAIN.partition("\n")[2] + "clusters:\n" + cluster("a"))
    assert list(accepted(path).clusters) == ["a"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("conf.d", ["a", "b"]),
        ("conf.d/", ["a", "b"]),
        ("conf.d/*.yaml", ["a", "b"]),
        ("[conf.d/b.yaml, conf.d/a.yaml]", ["b", "a"]),
        ("[conf.d/a.yaml, conf.d]", ["a", "b"]),
        ("'**/b.yaml'", ["b"]),
        ("'conf.d/**/b.yaml'", ["b"]),
        ("'*/[!b].yaml'", ["a"]),
        ("'./conf.d/../*.d/./?.yaml'", ["a", "b"]),
        ("'*.yaml'", []),
        ("nothing/*.yaml", []),
    ],
)
def test_files_folders_and_patterns_are_included_by_name(write: Write, text: str, names: list[str]) -> None:
    main = MAIN.replace("include: conf.d", f"include: {text}") + "clusters:\n" + cluster("own")
    path = write(main, a="clusters:\n" + cluster("a"), b="clusters:\n" + cluster("b"))
    (path.parent / "conf.d" / ".hidden.yaml").write_text("is not read")
    (path.parent / "conf.d" / "a.yaml~").write_text("is not read")
    (path.parent / "lost+found").mkdir()
    (path.parent / "lost+found" / "b.yaml").write_text("is not read")
    assert list(accepted(path).clusters) == ["own", *names]


def test_problems_of_all_files_are_reported_together_each_with_its_file(write: Write) -> None:
    path = write(
        MAIN + "clusters:\n" + cluster("own").replace("max: 4", "max: 0"),
        a="clusters:\n" + cluster("a").replace("max: 4", "mx: 4"),
        b="clusters: [\n",
        c="",
        d="clusters: 3\n",
        e="- 1\n",
        f=f"sources:\n  f: {{{SOURCE}}}\n\x01",
    )
    (path.parent / "conf.d" / "g.yaml").write_bytes(b"a: 1\nclusters: \xff")
    found = problems(path)
    assert [problem.partition(" ")[0] for problem in found] == [
        "autoscaler.yaml:7:",
        "conf.d/a.yaml:2:",
        "conf.d/a.yaml:4:",
        "conf.d/b.yaml:2:",
        "conf.d/c.yaml:1:",
        "conf.d/d.yaml:1:",
        "conf.d/e.yaml:1:",
        "conf.d/f.yaml:3:",
        "conf.d/g.yaml:2:",
    ]
    assert found[2] == "conf.d/a.yaml:4: clusters.a.mx: unknown key; did you mean 'max'?"
    assert found[4] == "conf.d/c.yaml:1: (file): the file is empty, expected a mapping (key: value)"
    assert found[5] == "conf.d/d.yaml:1: clusters: expected a mapping"
    assert found[6] == "conf.d/e.yaml:1: (file): expected a mapping with sources, clusters and fleets"


def test_a_name_belongs_to_one_file(write: Write) -> None:
    path = write(
        MAIN + "clusters:\n" + cluster("a"),
        a=f"sources:\n  main: {{{SOURCE}}}\nclusters:\n" + cluster("a") + cluster("b"),
        b="clusters:\n" + cluster("b"),
    )
    assert problems(path) == [
        "conf.d/a.yaml:2: sources.main: is already in autoscaler.yaml:3",
        "conf.d/a.yaml:4: clusters.a: is already in autoscaler.yaml:5",
        "conf.d/b.yaml:2: clusters.b: is already in conf.d/a.yaml:11",
    ]


def test_settings_of_the_daemon_and_includes_are_allowed_only_in_the_main_file(write: Write) -> None:
    path = write(MAIN + "clusters:\n" + cluster("own"), a="daemon: {log: json}\ninclude: b.yaml\n")
    text = "an included file has sources, clusters and fleets only; write this in autoscaler.yaml"
    assert problems(path) == [f"conf.d/a.yaml:1: daemon: {text}", f"conf.d/a.yaml:2: include: {text}"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no-such.yaml", "include: there is no file or folder no-such.yaml"),
        ("''", "include: is '', expected a file, a folder or a pattern like conf.d/*.yaml"),
        ("${HOME}/a.yaml", "include: is '${HOME}/a.yaml', expected a file, a folder or a pattern like conf.d/*.yaml"),
        ("[a, 3]", "include[0]: there is no file or folder a"),
        ("3", "include: expected "),
        ("{a: b}", "include: expected "),
    ],
)
def test_a_path_that_cannot_be_included_is_named(write: Write, text: str, problem: str) -> None:
    main = MAIN.replace("include: conf.d", f"include: {text}") + "clusters:\n" + cluster("own")
    assert problems(write(main))[0].startswith(f"autoscaler.yaml:1: {problem}")


def test_a_section_that_is_not_a_mapping_is_refused_at_its_position(write: Write) -> None:
    path = write(MAIN + "clusters: 3\n", a="clusters:\n" + cluster("a"))
    assert problems(path) == ["autoscaler.yaml:4: clusters: expected a mapping (key: value), not the number 3"]


def test_an_unreadable_file_is_named(write: Write) -> None:
    path = write(MAIN.replace("conf.d", "conf.d/a.yaml") + "clusters:\n" + cluster("own"))
    (path.parent / "conf.d" / "a.yaml").symlink_to("a.yaml")
    assert problems(path)[0].startswith("autoscaler.yaml:1: include: there is no file or folder")
    if os.geteuid():
        (path.parent / "conf.d" / "a.yaml").unlink()
        (path.parent / "conf.d" / "a.yaml").touch(mode=0)
        assert problems(path)[0].startswith("conf.d/a.yaml:1: (file): cannot be read")


@pytest.mark.parametrize("text", ["conf.d", "conf.d/*.yaml", "'*/b.yaml'", "'**/b.yaml'", "conf.d/b.yaml"])
def test_an_unreadable_folder_is_not_taken_for_an_empty_one(write: Write, text: str) -> None:
    path = write(MAIN.replace("conf.d", text) + "clusters:\n" + cluster("own"), b="clusters:\n" + cluster("b"))
    assert list(accepted(path).clusters) == ["own", "b"]
    found = Problems(str(path))
    with tempfile.TemporaryDirectory() as folder:  # other users may not enter the folders of pytest
        shutil.copytree(path.parent, folder, dirs_exist_ok=True)
        Path(folder).chmod(0o755)
        (Path(folder) / "conf.d").chmod(0)
        if not os.getuid():  # root may read everything
            os.seteuid(65534)
        try:
            include.read(Path(folder) / path.name, found)
        finally:
            os.seteuid(os.getuid())
            (Path(folder) / "conf.d").chmod(0o755)
    [problem] = found
    assert (problem.line, problem.path) == (1, "include")
    assert problem.message.startswith(f"{folder}/conf.d")
    assert problem.message.endswith(" cannot be read: Permission denied")


def test_the_name_of_the_folder_with_the_configuration_is_not_a_pattern(write: Write, tmp_path: Path) -> None:
    main = MAIN.replace("conf.d", "conf.d/*.yaml") + "clusters:\n" + cluster("own")
    write(main, b="clusters:\n" + cluster("b"))
    folder = tmp_path / "[1]"
    folder.mkdir()
    for name in ("conf.d", "autoscaler.yaml"):
        (tmp_path / name).rename(folder / name)
    assert list(accepted(folder / "autoscaler.yaml").clusters) == ["own", "b"]


def test_problems_at_the_same_line_of_two_files_are_two_problems(write: Write) -> None:
    assert len(problems(write(MAIN + "clusters:\n" + cluster("own"), a="", b=""))) == 2


def test_the_number_of_values_in_all_files_together_is_limited(write: Write) -> None:
    anchored = f"x-a: &a [{', '.join(['1'] * 1000)}]\nx-b: [{', '.join(['*a'] * 400)}]\n"
    assert 1000 * 400 < MAX_NODES < 2 * 1000 * 400
    path = write(MAIN + "clusters:\n" + cluster("own"), a=anchored, b=anchored)
    assert problems(path) == [f"conf.d/b.yaml:1: (file): more than {MAX_NODES:,} values in all files together"]


def test_more_than_a_thousand_files_are_refused(write: Write) -> None:
    path = write(MAIN + "clusters:\n" + cluster("own"), **{f"f{n}": "clusters: {}\n" for n in range(1001)})
    assert problems(path) == ["autoscaler.yaml:1: include: 1,001 files, at most 1,000: put several clusters in a file"]


def test_an_alias_does_not_reach_into_included_files(write: Write) -> None:
    path = write("include: conf.d\nx-own: &own {}\nsources: *own\nclusters: *own\n", a="clusters:\n" + cluster("a"))
    root = include.read(path, Problems(str(path)))
    assert isinstance(root, Mapping)
    own, clusters = root.entries["x-own"].node, root.entries["clusters"].node
    assert isinstance(own, Mapping)
    assert isinstance(clusters, Mapping)
    assert not own.entries
    assert list(clusters.entries) == ["a"]


def test_warnings_of_included_files_name_them(write: Write) -> None:
    text = "clusters:\n" + cluster("a").replace("    max: 4\n", "    max: 4\n    timeout: 100ms\n")
    path = write(MAIN.replace("stub-source,", "stub-source, timeout: 1s,"), a=text)
    warnings = accepted(path).warnings
    assert [w.partition(" the ")[0] for w in warnings] == [f"{path.parent}/conf.d/a.yaml:5: clusters.a.timeout:"]


def test_the_schema_knows_the_key() -> None:
    assert "include" in json_schema()["properties"]


def test_settings_of_a_cluster_in_an_included_file_can_be_overridden(write: Write) -> None:
    path = write(MAIN, a="clusters:\n" + cluster("a"))
    changed = trials.apply_settings(argparse.Namespace(config=path), accepted(path), {"a": {"max": "7"}})
    assert changed.clusters["a"].spec.limits.maximum == 7
