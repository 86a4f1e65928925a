"""The Dockerfile: no engine is here to build it, so its rules are checked and its commands run without one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "docker"
DOCKERFILE = DEPLOY / "Dockerfile"
SCRIPTS = Path(sysconfig.get_path("scripts"))
CONFIG = """
daemon: {{directory: {directory}, listen: "127.0.0.1:0", log: json}}
clusters:
  a:
    target: {{type: "null", size: 2}}
    interval: 1s
    timeout: 500ms
    min: 1
    max: 9
    metrics: {{load: {{source: nobody, query: load}}}}
    policies: {{rate: {{type: target-tracking, metric: load, target: 100, mode: total}}}}
sources:
  nobody: {{type: prometheus, url: "http://127.0.0.1:1", timeout: 300ms}}
"""


def instructions() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DockerfileParser(str(DOCKERFILE)).structure
    return [each for each in found if each["instruction"] != "COMMENT"]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for each in instructions():
        if each["instruction"] == "FROM":
            found.append([])
        if found:
            found[-1].append((each["instruction"], each["value"]))
    return found


def last(stage: list[tuple[str, str]], name: str) -> str:
    return [value for instruction, value in stage if instruction == name][-1]


def copied(stage: list[tuple[str, str]]) -> list[str]:
    return [name for instruction, value in stage if instruction == "COPY" for name in value.split()[:-1]]


def test_hadolint_finds_nothing_wrong() -> None:
    hadolint = shutil.which("hadolint", path=f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}")
    assert hadolint, "hadolint is missing; it is installed with the extra `dev`"
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_it_does_not_run_as_root_and_kubernetes_can_see_that() -> None:
    _, final = stages()
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last(final, "USER"))
    owner = last(final, "USER").split(":")[0]
    (made,) = [value for instruction, value in final if instruction == "RUN"]
    assert made == f"install -d -o {owner} -g {owner} -m 0700 {last(final, 'VOLUME')}"
    order = [instruction for instruction, _ in final]
    assert "RUN" not in order[order.index("USER") :], "nothing is done as that user, nor as root after it"


def test_signals_reach_the_daemon() -> None:
    _, final = stages()
    # In the exec form: a shell as first process would keep SIGTERM and SIGHUP to itself.
    assert json.loads(last(final, "ENTRYPOINT")) == ["autoscaler"]
    assert json.loads(last(final, "CMD")) == ["run", "/etc/autoscaler/config.yaml"]


def test_everything_copied_exists_and_nothing_else_is_sent_to_be_built() -> None:
    build, _ = stages()
    names = copied(build)
    assert names
    for name in names:
        assert (ROOT / name).exists(), name
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines == ["*", *(f"!{name}" for name in names), "**/__pycache__"]


def test_the_extras_are_the_project_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    build, _ = stages()
    (chosen,) = [value for instruction, value in build if instruction == "ARG"]
    name, _, extras = chosen.partition("=")
    assert name == "EXTRAS"
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert "promql" in extras.split(",")  # `check` in the image reads the queries


def test_no_secret_can_get_into_a_layer() -> None:
    for each in instructions():
        if each["instruction"] in {"ARG", "ENV"}:
            assert not re.search(r"secret|token|password|key|credential", each["value"], re.IGNORECASE)


def test_the_port_and_the_directory_are_those_in_the_documentation() -> None:
    _, final = stages()
    (block,) = re.findall(r"```yaml\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    daemon = yaml.safe_load(block)["daemon"]
    assert daemon["directory"] == last(final, "VOLUME") == last(final, "WORKDIR")
    assert daemon["listen"] == f"0.0.0.0:{last(final, 'EXPOSE')}"
    assert f"AUTOSCALER_HEALTH=http://127.0.0.1:{last(final, 'EXPOSE')}/healthz" in last(final, "ENV")


@contextmanager
def running(autoscaler: list[str | Path], directory: Path) -> Iterator[str]:
    """A daemon; gives its URL."""
    config = directory / "config.yaml"
    config.write_text(CONFIG.format(directory=directory / "state"))
    log = directory / "log"
    with log.open("wb") as file:
        daemon = subprocess.Popen([*autoscaler, "run", config], stderr=file, cwd=directory)
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r'"url": ?"([^"]+)"', log.read_text())):
            assert daemon.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield found[1]
        daemon.terminate()
        assert daemon.wait(30) == 0
    finally:
        daemon.kill()
        daemon.wait()


def healthy(python: str | Path, url: str) -> subprocess.CompletedProcess[str]:
    """What the health check says."""
    _, final = stages()
    options, _, command = last(final, "HEALTHCHECK").partition("CMD ")
    assert "--timeout=5s" in options
    name, *arguments = json.loads(command)
    assert name == "python"
    environment = {**os.environ, "AUTOSCALER_HEALTH": url}
    return subprocess.run(
        [python, *arguments], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


def test_the_health_check_asks_a_daemon(tmp_path: Path) -> None:
    with running([sys.executable, "-m", "autoscaler"], tmp_path) as url:
        done = healthy(sys.executable, f"{url}/healthz")
        assert (done.returncode, done.stderr) == (0, "")
        # A wrong answer, as that of a daemon whose ticks do not finish.
        assert healthy(sys.executable, f"{url}/nothing").returncode == 1
    assert healthy(sys.executable, f"{url}/healthz").returncode == 1


@pytest.mark.e2e
def test_its_steps_build_a_daemon_that_runs(tmp_path: Path) -> None:
    """The build stage's commands on the files it is given, with another place to install to."""
    build, final = stages()
    place, context = tmp_path / "autoscaler", tmp_path / "build"
    context.mkdir()
    for name in copied(build):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, context / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, context)
    (command,) = [value for instruction, value in build if instruction == "RUN"]
    environment = {**os.environ, "EXTRAS": "http", "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(
        ["/bin/sh", "-ec", command.replace("/opt/autoscaler", str(place))],
        cwd=context,
        env=environment,
        timeout=300,
        check=True,
    )
    assert not (place / "bin" / "pip").exists()
    found = subprocess.run(
        [place / "bin" / "autoscaler", "plugins"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "target-tracking" in found.stdout
    assert last(final, "COPY") == "--from=build /opt/autoscaler /opt/autoscaler"
    with running([place / "bin" / json.loads(last(final, "ENTRYPOINT"))[0]], tmp_path) as url:
        assert healthy(place / "bin" / "python", f"{url}/healthz").returncode == 0
        with urllib.request.urlopen(url, timeout=30) as page:  # noqa: S310 - the daemon of this test
            assert b"assets/page.css" in page.read()
