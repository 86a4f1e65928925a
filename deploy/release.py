#!/usr/bin/env python3
"""Makes a release from a tag, and checks it: `deploy/release.py v0.1.0 dist`. RELEASING.md has the steps.

Needs Python 3.11, git and a package index; helm for the chart, and dpkg-deb and Debian's Python for the package.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class ReleaseError(Exception):
    """A reason why the release cannot be made."""


def run(*command: str | Path, at: Path = ROOT, **environment: str) -> str:
    """Run a command and return its output. Raises ReleaseError."""
    done = subprocess.run(  # noqa: S603 - only commands of this file are run
        command, cwd=at, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout.strip()


def problems(tree: Path, version: str) -> Iterator[str]:
    """Yield everything in a tree that does not fit a release of this version."""
    stated = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["version"]
    if stated != version:
        yield f"pyproject.toml: the version is {stated}, but the tag says {version}"
    heading = re.search(r"^## (.*)$", (tree / "CHANGELOG.md").read_text(), re.MULTILINE)
    if not heading or not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading[1]):
        found = heading[1] if heading else "nothing"
        yield f"CHANGELOG.md: begins with {found!r}, expected '{version} (YYYY-MM-DD)'"
    for path, pattern in (
        ("deploy/helm/autoscaler/Chart.yaml", r"^(?:version|appVersion): (.*)$"),
        ("deploy/kubernetes/example/kustomization.yaml", r"newTag: (.*)$"),
    ):
        for named in re.findall(pattern, (tree / path).read_text(), re.MULTILINE):
            if named != version:
                yield f"{path}: the version is {named}, expected {version}: run python -m tests.docs.refresh"
    base = re.search(r"^ARG BASE=(.*)$", (tree / "deploy/docker/Dockerfile").read_text(), re.MULTILINE)
    if not base or not re.search(r"@sha256:[0-9a-f]{64}$", base[1]):
        yield f"deploy/docker/Dockerfile: the base image {base[1] if base else ''} is not pinned (@sha256:...)"


def same(first: Path, second: Path) -> None:
    """Raise ReleaseError unless two builds are equal, bit for bit."""
    for path in sorted(first.iterdir()):
        if path.read_bytes() != (second / path.name).read_bytes():
            raise ReleaseError(
                f"{path.name}: two builds differ: compare {path} and {second / path.name} with diffoscope"
            )


def files_of(package: Path) -> list[str]:
    """The names of the files in a wheel or a source distribution."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            return archive.namelist()
    with tarfile.open(package) as archive:
        return archive.getnames()


def release(tag: str, out: Path) -> None:
    """Build and check everything. Raises ReleaseError."""
    if not re.fullmatch(r"v\d+\.\d+\.\d+", tag):
        raise ReleaseError(f"the tag is {tag!r}, expected one like v1.2.3")
    if out.exists() and any(out.iterdir()):
        raise ReleaseError(f"{out} is not empty")
    version = tag[1:]
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        trees = [work / "a", work / "another-place"]
        for tree in trees:
            run("git", "-c", "advice.detachedHead=false", "clone", "--quiet", "--branch", tag, ROOT, tree)
        if found := list(problems(trees[0], version)):
            raise ReleaseError("\n".join(found))
        epoch = run("git", "log", "-1", "--format=%ct", at=trees[0])
        python = work / "tools" / "bin" / "python"
        run(sys.executable, "-m", "venv", work / "tools")
        hashed = ("--only-binary", ":all:", "--require-hashes", "-r", "deploy/requirements/build.txt")
        run(python, "-m", "pip", "install", "--quiet", *hashed, at=trees[0])

        build = (python, "-m", "build", "--no-isolation")
        run(*build, "--sdist", "--wheel", "--outdir", out, at=trees[0], SOURCE_DATE_EPOCH=epoch)
        # The second build makes its wheel from the source distribution, in another directory.
        run(*build, "--outdir", work / "again", at=trees[1], SOURCE_DATE_EPOCH=epoch, TZ="Asia/Tokyo", LC_ALL="C")
        same(out, work / "again")
        (wheel,) = out.glob("*.whl")
        for package in out.iterdir():
            if f"reactive_autoscaler-{version}" not in package.name or not files_of(package):
                raise ReleaseError(f"{package.name}: its version is not {version}, or it is empty")

        sbom = out / f"reactive-autoscaler-{version}.cdx.json"
        options = ("--pyproject", "pyproject.toml", "--output-reproducible", "--of", "JSON", "--output-file", sbom)
        run(python, "-m", "cyclonedx_py", "requirements", "deploy/requirements/runtime.txt", *options, at=trees[0])
        pip = f"{python} -m pip"
        run("deploy/debian/build", wheel, out, at=trees[0], SOURCE_DATE_EPOCH=epoch, PIP=pip)
        run("helm", "lint", "--strict", "deploy/helm/autoscaler", at=trees[0])
        run("helm", "package", "deploy/helm/autoscaler", "--destination", out, at=trees[0])
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(lines))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tag", help="a tag of this repository, such as v0.1.0")
    parser.add_argument("out", type=Path, help="an empty directory; created if it is missing")
    arguments = parser.parse_args()
    try:
        release(arguments.tag, arguments.out.resolve())
    except ReleaseError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
