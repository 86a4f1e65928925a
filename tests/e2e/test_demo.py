"""The demo itself, started as by a user, with a short duration."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from autoscaler.clients.java_home import JavaNotFoundError, find_java, find_jdk
from autoscaler.ports import AutoscalerError
from autoscaler.targets.local import processes
from autoscaler.targets.local.workers import flink_home

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def _everything_is_installed(tmp_path_factory: pytest.TempPathFactory) -> None:
    require_demo(tmp_path_factory)


def require_demo(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip the test if the requirements of the demo are missing."""
    problems = [
        f"{package} is not installed (extra demo)"
        for package in ("pyspark", "pyarrow", "matplotlib")
        if importlib.util.find_spec(package) is None
    ]
    try:
        find_java(tmp_path_factory.mktemp("java"))
    except JavaNotFoundError as error:
        problems.append(str(error))
    missing(problems)


def missing(problems: list[str]) -> None:
    """Skip, or fail if everything has to be installed."""
    if problems and os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
        pytest.fail("; ".join(problems))
    if problems:
        pytest.skip("; ".join(problems))


def left_behind(directory: Path) -> list[str]:
    """Command lines of processes that mention the directory, in their arguments or their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(directory).encode() in command + environment and processes.find(int(entry.name)) is not None:
            found.append(command.replace(b"\0", b" ").decode())
    return found


def played(output: Path, *options: str) -> dict[str, Any]:
    """Run a demo that succeeds; returns its result."""
    answer = subprocess.run(
        [sys.executable, "-m", "autoscaler", "demo", "--json", "--output", str(output), *options],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    result: dict[str, Any] = json.loads(answer.stdout)
    assert result == json.loads((output / "result.json").read_text())
    assert result["ok"] is True
    assert result["reasons"] == []
    assert result["offered"] == result["processed"] > 1500
    assert (result["lost"], result["duplicated"], result["strange"]) == (0, 0, 0)
    assert result["scale_ups"] >= 1
    assert result["scale_downs"] >= 1
    assert result["most_workers"] >= 2
    assert result["peak_lag"] > 0
    assert result["first_scale_up_after_s"] is not None
    assert result["last_new_worker_first_task_s"] is not None
    # A daemon without CPU time answers late: that poll saw no size.
    assert next(size for _, *size in result["workers"] if None not in size) == [1, 1]
    assert (output / "plot.png").read_bytes().startswith(b"\x89PNG")
    # without --keep only the results remain
    assert sorted(path.name for path in output.iterdir()) == ["autoscaler.yaml", "plot.png", "result.json"]
    assert left_behind(output) == []
    return result


def test_the_demo_scales_up_and_down_and_loses_no_record(spark_demo: dict[str, Any]) -> None:
    assert spark_demo["failed_tasks"] == 0
    steps = spark_demo["job_scheduler"]
    states = [step["state"] for step in steps]
    assert states[:3] == ["waiting for resources", "creating", "executing"]
    assert states[-2:] == ["stopping with a last commit", "finished"]
    assert steps[0]["at"] < 0
    # Each batch uses the available workers: adding and removing them needs no restart.
    assert max(step["slots"] for step in steps) > 1
    assert [step for step in steps[2:-2] if step["state"] != "executing"] == []


def test_the_demo_works_the_same_with_flink(tmp_path: Path) -> None:
    try:
        flink_home()
        find_jdk()
    except AutoscalerError as error:
        missing([str(error)])
    result = played(tmp_path / "output", "--engine", "flink", "--duration", "90")
    assert result["restarts"] >= 2
    assert result["checkpoints"] > 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    output = tmp_path / "output"
    demo = subprocess.Popen(
        [sys.executable, "-m", "autoscaler", "demo", "--output", str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 240
        # interrupted in the middle: while a job runs on a worker
        while not (output / "work" / "ready").exists():
            assert demo.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert len(left_behind(output)) > 4
        demo.send_signal(number)
        said, _ = demo.communicate(timeout=60)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 130
    assert "interrupted; all processes were stopped" in said
    assert left_behind(output) == []


def test_a_failed_start_names_the_log_and_shows_its_end(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        '#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "17.0.1"\' >&2; exit 0; fi\n'
        "echo this Java is broken >&2\nexit 1\n"
    )
    java.chmod(0o755)
    output = tmp_path / "output"
    answer = subprocess.run(
        [sys.executable, "-m", "autoscaler", "demo", "--no-plot", "--output", str(output)],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 1
    assert "the master ended unexpectedly (exit code 1)" in answer.stdout
    assert str(output / "logs" / "master.log") in answer.stdout
    assert "this Java is broken" in answer.stdout
    assert left_behind(output) == []
