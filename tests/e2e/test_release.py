"""A release, from a temporary tag in a clone: what the script makes, and the package for Debian in a scratch root."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy.test_docker import CONFIG, running
from tests.deploy.test_version import locked
from tests.docs.refresh import ROOT, VERSION
from tests.e2e import debian
from tests.e2e.helm import program
from tests.e2e.kube_server import missing

pytestmark = pytest.mark.e2e

UNIT = "autoscaler.service"
NAMES = {
    f"reactive_autoscaler-{VERSION}-py311-none-any.whl",
    f"reactive_autoscaler-{VERSION}.tar.gz",
    f"reactive-autoscaler-{VERSION}.cdx.json",
    f"reactive-autoscaler_{VERSION}_amd64.deb",
    f"autoscaler-{VERSION}.tgz",
}


def git(clone: Path, *arguments: str) -> None:
    author = ("-c", "user.name=A test", "-c", "user.email=test@example.com", "-c", "advice.detachedHead=false")
    subprocess.run(["git", "-C", str(clone), *author, *arguments], check=True, capture_output=True, text=True)


def commit(clone: Path, tag: str) -> None:
    git(clone, "commit", "--quiet", "--all", "--message=A release of a test")
    git(clone, "tag", tag)


def release(clone: Path, tag: str, out: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{program().parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, str(clone / "deploy" / "release.py"), tag, str(out)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return cloned(tmp_path)


def cloned(directory: Path) -> Path:
    if not (ROOT / ".git").exists():
        missing("this is no clone of the repository")
    git(ROOT, "clone", "--quiet", str(ROOT), str(directory / "clone"))
    return directory / "clone"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with a release of the checked-out commit."""
    debian.need("dpkg-deb")
    directory = tmp_path_factory.mktemp("release")
    clone = cloned(directory)
    changelog = clone / "CHANGELOG.md"
    heading = rf"^## {re.escape(VERSION)} \(.*\)$"
    text = re.sub(heading, f"## {VERSION} (2026-01-01)", changelog.read_text(), count=1, flags=re.MULTILINE)
    changelog.write_text(text)
    commit(clone, f"v{VERSION}")
    done = release(clone, f"v{VERSION}", directory / "out")
    assert done.returncode == 0, done.stderr
    return directory / "out"


def test_a_release_has_wheel_source_sbom_package_and_chart_in_one_version(released: Path) -> None:
    assert {path.name for path in released.iterdir()} == {*NAMES, "SHA256SUMS"}
    summed = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=released, capture_output=True, check=False)
    assert summed.returncode == 0
    with zipfile.ZipFile(released / f"reactive_autoscaler-{VERSION}-py311-none-any.whl") as wheel:
        metadata = wheel.read(f"reactive_autoscaler-{VERSION}.dist-info/METADATA").decode()
    assert email.message_from_string(metadata)["Version"] == VERSION
    with tarfile.open(released / f"autoscaler-{VERSION}.tgz") as chart:
        file = chart.extractfile("autoscaler/Chart.yaml")
        assert file
        about = yaml.safe_load(file.read())
    assert (about["version"], about["appVersion"]) == (VERSION, VERSION)


def test_the_sbom_names_each_locked_requirement_with_a_hash(released: Path) -> None:
    sbom = json.loads((released / f"reactive-autoscaler-{VERSION}.cdx.json").read_text())
    assert sbom["bomFormat"] == "CycloneDX"
    assert (sbom["metadata"]["component"]["name"], "timestamp" in sbom["metadata"]) == ("reactive-autoscaler", False)
    assert {each["name"]: each["version"] for each in sbom["components"]}.items() >= locked("runtime").items()
    for each in sbom["components"]:
        assert any(reference.get("hashes") for reference in each["externalReferences"]), each["name"]


def test_an_invalid_release_tag_is_refused_with_all_its_errors(clone: Path, tmp_path: Path) -> None:
    dockerfile = clone / "deploy" / "docker" / "Dockerfile"
    dockerfile.write_text(re.sub(r"@sha256:\w+", "", dockerfile.read_text()))
    commit(clone, "v99.0.0")
    done = release(clone, "v99.0.0", tmp_path / "out")
    assert done.returncode == 1
    first, *others = done.stderr.splitlines()
    assert first == f"pyproject.toml: the version is {VERSION}, but the tag says 99.0.0"
    assert [line.partition(":")[0] for line in others] == [
        "CHANGELOG.md",
        "deploy/helm/autoscaler/Chart.yaml",
        "deploy/helm/autoscaler/Chart.yaml",
        "deploy/kubernetes/example/kustomization.yaml",
        "deploy/docker/Dockerfile",
    ]
    assert others[-1].endswith("the base image python:3.11-slim-bookworm is not pinned (@sha256:...)")
    assert list((tmp_path / "out").iterdir()) == []
    assert "expected one like v1.2.3" in release(clone, "newest", tmp_path / "out").stderr


# -- the package for Debian


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    debian.need("mmdebstrap", "unshare", "setpriv")
    root = debian.unpacked(tmp_path_factory.mktemp("scratch") / "root")
    yield root
    shutil.rmtree(root)


def dpkg(root: Path, *arguments: str) -> str:
    command = ["chroot", str(root), "dpkg", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def judge(root: Path) -> None:
    """Check the installed unit with systemd's checker: the files that it names must exist."""
    if shutil.which("systemd-analyze") is None:
        missing("not installed: systemd-analyze")
    analyze = ["systemd-analyze", f"--root={root}", "--no-pager"]
    # That root has no systemd: its missing targets do not matter here.
    done = subprocess.run(
        [*analyze, "verify", "--man=no", UNIT], capture_output=True, text=True, timeout=60, check=False
    )
    said = [line for line in done.stderr.splitlines() if UNIT in line]
    assert [line for line in said if not line.endswith(".target not found.")] == []
    judged = subprocess.run(
        [*analyze, "security", "--offline=true", "--threshold=15", UNIT],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "Overall exposure level for autoscaler.service" in judged.stdout


def test_the_package_is_installed_runs_with_its_units_command_and_is_removed(
    released: Path, scratch: Path, tmp_path: Path
) -> None:
    shutil.copy(released / f"reactive-autoscaler_{VERSION}_amd64.deb", scratch / "package.deb")
    dpkg(scratch, "--install", "/package.deb")
    assert f"Version: {VERSION}" in dpkg(scratch, "--status", "reactive-autoscaler")
    shipped = (ROOT / "deploy" / "systemd" / "autoscaler.service").read_text()
    unit = (scratch / "usr" / "lib" / "systemd" / "system" / "autoscaler.service").read_text()
    assert unit == shipped
    judge(scratch)
    command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert command
    state, settings = tmp_path / "state", tmp_path / "settings"
    settings.mkdir()
    state.mkdir()
    os.chown(state, 65532, 65532)
    (settings / "config.yaml").write_text(CONFIG.format(directory="/var/lib/autoscaler"))

    def command_line(*arguments: str) -> list[str]:
        return debian.contained(
            scratch,
            *arguments,
            environment={"HOME": "/", "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
            state=state,
            config=settings,
            user="65532:65532",
            directory="/var/lib/autoscaler",
        )

    with running([*command_line(*command[1].split())], tmp_path / "log") as url:
        status = subprocess.run(command_line("autoscaler", "status", "--url", url), capture_output=True, check=False)
        assert status.returncode == 0, status.stderr
    version = subprocess.run(command_line("autoscaler", "--version"), capture_output=True, text=True, check=True)
    assert version.stdout == f"autoscaler {VERSION}\n"
    dpkg(scratch, "--purge", "reactive-autoscaler")
    assert [
        path for path in ("opt/autoscaler", "usr/bin/autoscaler", "var/lib/autoscaler") if (scratch / path).exists()
    ] == []
