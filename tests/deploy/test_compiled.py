"""The wheel of `make compiled`: its policies decide as the sources do, to the last digit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
COMPILED = ("capacity_model", "forecast", "recent", "usual")


def python(*arguments: str, packages: Path | None = None, **environment: str) -> str:
    """What a new Python prints; of the packages in a folder, where one is given, before all others."""
    if packages is not None:
        environment["PYTHONPATH"] = str(packages)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of a compiled wheel."""
    missing = [] if shutil.which("cc") else ["a C compiler (Debian: apt-get install gcc libc6-dev)"]
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        missing.append("Python's headers (Debian: apt-get install python3-dev)")
    if missing:
        reason = f"there is no {' and no '.join(missing)}"
        if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("compiled")
    flags = re.search(r'CFLAGS="([^"]*)"', (ROOT / "Makefile").read_text())
    assert flags is not None
    asked = {"HATCH_BUILD_HOOK_ENABLE_MYPYC": "1", "CFLAGS": flags[1]}
    python("-m", "build", "--no-isolation", "--outdir", str(folder), ".", packages=None, **asked)
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as file:
        file.extractall(folder / "packages")
    return folder / "packages"


@pytest.mark.e2e
@pytest.mark.parametrize("name", COMPILED)
def test_what_computes_with_numbers_is_compiled(compiled: Path, name: str) -> None:
    show = f"import autoscaler_policies.{name} as module; print(module.__file__)"
    assert Path(python("-c", show, packages=compiled).strip()).suffix == ".so"
    assert Path(python("-c", show).strip()).suffix == ".py"


@pytest.mark.e2e
@pytest.mark.parametrize("example", ["flink-kubernetes", "spark-local"])
def test_compiled_policies_decide_the_same_to_the_last_digit(compiled: Path, tmp_path: Path, example: str) -> None:
    traces: list[list[str]] = []
    for packages in (None, compiled):
        trace = tmp_path / str(len(traces))
        simulate = ("simulate", f"examples/{example}.yaml", "--load", "steps6h", "--record", str(trace))
        python("-m", "autoscaler", *simulate, packages=packages)
        traces.append([line for file in sorted(trace.rglob("*.jsonl")) for line in file.read_text().splitlines()])
    assert traces[0] == traces[1]
    assert len(traces[0]) > 1000


@pytest.mark.e2e
def test_compiled_policies_pass_the_tests_of_the_sources(compiled: Path) -> None:
    # One that gives the sources another mathematical library cannot give it to these.
    chosen = ("tests/policies", "tests/simulation", "--ignore=tests/simulation/test_machines.py")
    workers = ("-n", "logical", "--maxprocesses", "4")
    said = python("-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, *chosen, packages=compiled)
    assert " passed" in said
