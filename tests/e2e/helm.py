"""Helm, built from the Go module proxy once and kept in a cache directory of the user."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from tests.e2e.kube_server import BUILD_SECONDS, missing

MODULE = "helm.sh/helm/v3/cmd/helm"
VERSION = "v3.22.0"
CHART = Path(__file__).parents[2] / "deploy" / "helm" / "autoscaler"


def program() -> Path:
    """The program; it is built if it is missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "reactive-autoscaler-tests" / f"helm-{VERSION}"
    directory.mkdir(parents=True, exist_ok=True)
    found = directory / "bin" / "helm"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be building: this takes as long as that
        if not found.exists():
            _build(directory)
    return found


def _build(directory: Path) -> None:
    if shutil.which("go") is None:
        missing("no go on the PATH to build helm with")
    building = directory / "building"
    shutil.rmtree(building, ignore_errors=True)
    environment = {**os.environ, "GOBIN": str(building), "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
    command = ["go", "install", f"{MODULE}@{VERSION}"]
    try:
        subprocess.run(
            command, cwd=directory, env=environment, check=True, capture_output=True, text=True, timeout=BUILD_SECONDS
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        missing(f"helm cannot be built: {str(error.stderr or error)[-500:]}")
    building.rename(directory / "bin")


def helm(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Helm."""
    done = subprocess.run([program(), *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done
