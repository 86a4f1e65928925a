"""The Dockerfile: its rules, and the image that Debian's buildah builds from it without a container engine.

The base image of the Dockerfile is unavailable if only package registries can be reached. It is replaced by a root file
system of the same Debian with the same Python, and with pip at the same place.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from dockerfile_parse import DockerfileParser

from tests.e2e import debian

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


def test_both_stages_use_one_base_image_pinned_by_its_digest() -> None:
    first = instructions()[0]
    assert first["instruction"] == "ARG"
    assert re.fullmatch(r"BASE=python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", first["value"])
    assert [stage[0] for stage in stages()] == [("FROM", "${BASE} AS build"), ("FROM", "${BASE}")]


def test_only_locked_versions_are_installed() -> None:
    build, _ = stages()
    for value in (value for instruction, value in build if instruction == "RUN"):
        for command in re.findall(r"pip .*?install.*?(?=&&|$)", value):
            assert "--require-hashes" in command or "--no-deps --no-index dist/*.whl" in command


def test_it_does_not_run_as_root_and_kubernetes_can_see_that() -> None:
    _, final = stages()
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last(final, "USER"))
    owner = last(final, "USER").split(":")[0]
    (made,) = [value for instruction, value in final if instruction == "RUN"]
    assert f"install -d -o {owner} -g {owner} -m 0700 {last(final, 'VOLUME')}" in made
    order = [instruction for instruction, _ in final]
    assert "RUN" not in order[order.index("USER") :], "nothing is done as that user, nor as root after it"


def test_signals_reach_the_daemon() -> None:
    _, final = stages()
    # In the exec form: a shell as first process would not forward SIGTERM and SIGHUP.
    assert json.loads(last(final, "ENTRYPOINT")) == ["autoscaler"]
    assert json.loads(last(final, "CMD")) == ["run", "/etc/autoscaler/config.yaml"]


def test_every_copied_file_exists_and_no_other_is_sent_to_the_build() -> None:
    build, _ = stages()
    names = copied(build)
    assert names
    for name in names:
        assert (ROOT / name).exists(), name
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines == ["*", *(f"!{name}" for name in names), "**/__pycache__"]


def test_no_secret_can_get_into_a_layer() -> None:
    for each in instructions():
        if each["instruction"] in {"ARG", "ENV"}:
            assert not re.search(r"secret|token|password|key|credential", each["value"], re.IGNORECASE)


def test_the_port_and_the_directory_are_the_documented_ones() -> None:
    _, final = stages()
    (block,) = re.findall(r"```yaml\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    daemon = yaml.safe_load(block)["daemon"]
    assert daemon["directory"] == last(final, "VOLUME") == last(final, "WORKDIR")
    assert daemon["listen"] == f"0.0.0.0:{last(final, 'EXPOSE')}"
    assert f"AUTOSCALER_HEALTH=http://127.0.0.1:{last(final, 'EXPOSE')}/healthz" in last(final, "ENV")


@contextmanager
def running(command: list[str | Path], log: Path) -> Iterator[str]:
    """A running daemon; yields its URL."""
    with log.open("wb") as file:
        daemon = subprocess.Popen(command, stderr=file, cwd=log.parent)
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


def healthy(python: str | Path, url: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The result of the health check, with these additional environment variables."""
    _, final = stages()
    options, _, command = last(final, "HEALTHCHECK").partition("CMD ")
    assert "--timeout=5s" in options
    name, *arguments = json.loads(command)
    assert name == "python"
    environment = {**os.environ, "AUTOSCALER_HEALTH": url, **variables}
    return subprocess.run(
        [python, *arguments], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


def test_the_health_check_asks_a_daemon(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(directory=tmp_path / "state"))
    with running([sys.executable, "-m", "autoscaler", "run", config], tmp_path / "log") as url:
        done = healthy(sys.executable, f"{url}/healthz")
        assert (done.returncode, done.stderr) == (0, "")
        # An unhealthy answer, like that of a daemon whose ticks do not finish.
        assert healthy(sys.executable, f"{url}/nothing").returncode == 1
    assert healthy(sys.executable, f"{url}/healthz").returncode == 1


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("tls", [False, True], ids=["http", "tls"])
def test_the_health_check_works_despite_a_proxy_and_another_name_in_the_certificate(tls: bool) -> None:
    """Docker gives a container the proxies of its own configuration."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            trustme.CA().issue_cert("scaler.example.com").configure_cert(context)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}/healthz"
        nowhere = "http://127.0.0.1:9"
        done = healthy(sys.executable, url, http_proxy=nowhere, https_proxy=nowhere, no_proxy="")
        server.shutdown()
    assert (done.returncode, done.stderr) == (0, "")


# -- the image


class Image:
    """The built image.

    Attributes:
        root: its root file system.
        config: how it is run, in Docker's format.
        state: the directory in place of its volume.
    """

    def __init__(self, work: Path) -> None:
        self.state, self.settings, storage = work / "state", work / "settings", work / "storage"
        self._buildah = ["buildah", "--storage-driver=vfs", f"--root={storage}/root", f"--runroot={storage}/run"]
        self._base(work / "pip")
        certificates = ("/etc/ssl/certs", "/usr/local/share/ca-certificates", "/etc/pip.conf")
        self.run(
            *("build", "--isolation=chroot", "--layers=false", "--format=docker", f"--file={DOCKERFILE}"),
            *(f"--volume={path}:{path}:ro" for path in certificates if Path(path).exists()),
            *("--build-arg=BASE=localhost/base", "--build-arg=VERSION=1.2.3", "--build-arg=REVISION=abc"),
            *("--tag=localhost/autoscaler", str(ROOT)),
        )
        self.config: dict[str, Any] = json.loads(self.run("inspect", "localhost/autoscaler"))["Docker"]["config"]
        self.root = Path(self.run("mount", self.run("from", "localhost/autoscaler")))
        self.settings.mkdir()
        self.state.mkdir()
        os.chown(self.state, *map(int, self.config["User"].split(":")))

    def run(self, *arguments: str) -> str:
        done = subprocess.run([*self._buildah, *arguments], capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
        return done.stdout.strip()

    def _base(self, pip: Path) -> None:
        """Debian's Python, with the layout of the image that it replaces: `python`, pip, ensurepip."""
        local = pip / "usr" / "local"
        packages = local / "lib" / "python3.11" / "dist-packages"
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", packages, "pip"], check=True)
        shutil.rmtree(packages / "bin")
        (local / "bin").mkdir()
        (local / "bin" / "python").symlink_to("/usr/bin/python3")
        (local / "bin" / "pip").touch()
        (packages.parent / "ensurepip").mkdir()
        (packages.parent / "ensurepip" / "__init__.py").touch()
        container = self.run("from", "scratch")
        self.run("add", "-q", container, str(debian.base()), "/")
        self.run("add", "-q", container, str(pip), "/")
        self.run("config", "--env=PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
        self.run("commit", "-q", "--rm", container, "localhost/base")

    def command(self, *command: str, **environment: str) -> list[str]:
        """The command line that runs a command in it like in a container with a read-only root."""
        variables = dict(variable.split("=", 1) for variable in self.config["Env"])
        return debian.contained(
            self.root,
            *command,
            environment={**variables, **environment},
            state=self.state,
            config=self.settings,
            user=self.config["User"],
            directory=self.config["WorkingDir"],
        )

    def called(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*command, **environment), capture_output=True, text=True, timeout=120, check=False
        )


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    debian.need("buildah", "unshare", "setpriv")
    work = tmp_path_factory.mktemp("image")
    yield Image(work)
    shutil.rmtree(work / "storage")


@pytest.mark.e2e
def test_the_image_runs_with_a_read_only_root_and_passes_its_health_check(image: Image, tmp_path: Path) -> None:
    (image.settings / "config.yaml").write_text(CONFIG.format(directory="/var/lib/autoscaler"))
    start = image.command(*image.config["Entrypoint"], *image.config["Cmd"])
    with running([*start], tmp_path / "log") as url:
        kind, *check = image.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        healthy = image.called(*check, AUTOSCALER_HEALTH=f"{url}/healthz")
        assert (healthy.returncode, healthy.stderr) == (0, "")
        assert image.called("autoscaler", "status", "--url", url).returncode == 0
        assert image.called(*check).returncode == 1  # nothing listens at the usual port
        with urllib.request.urlopen(url, timeout=30) as page:  # noqa: S310 - the daemon of this test
            assert b"assets/page.css" in page.read()
    # It has written only to the volume.
    owners = {path.stat().st_uid for path in (image.state, *image.state.rglob("*"))}
    assert owners == {65532}
    assert (image.state / "history").exists()
    refused = image.called("touch", "/opt/autoscaler/x")
    assert "Read-only file system" in refused.stderr


@pytest.mark.e2e
def test_the_image_has_everything_that_the_shipped_configuration_needs(image: Image) -> None:
    shutil.copy(ROOT / "deploy" / "kubernetes" / "base" / "config.yaml", image.settings / "config.yaml")
    checked = image.called("autoscaler", "check", "/etc/autoscaler/config.yaml")
    assert checked.returncode == 0, checked.stderr
    missing = image.called(
        "python", "-c", "import boto3, psycopg, aiokafka, kubernetes_asyncio, jmespath, promql_parser"
    )
    assert (missing.returncode, missing.stderr) == (0, "")


@pytest.mark.e2e
def test_the_image_has_no_compiler_and_no_pip(image: Image) -> None:
    tools = r"(pip3?|cc|gcc|g\+\+|c\+\+|cpp|clang|tcc|ld|as|make|cargo|rustc|go)([-.\d]+)?"
    found = [path for path in image.root.rglob("bin/*") if re.fullmatch(tools, path.name)]
    assert found == []
    for module in ("pip", "ensurepip._bundled", "hatchling"):
        assert image.called("python", "-c", f"import {module}").returncode == 1
    assert list(image.root.rglob("ensurepip/__init__.py")) == []
    assert not (image.root / "build").exists()


@pytest.mark.e2e
def test_the_image_has_its_labels(image: Image) -> None:
    labels = {name.rpartition(".")[2]: value for name, value in image.config["Labels"].items()}
    assert (labels["title"], labels["version"], labels["revision"]) == ("reactive-autoscaler", "1.2.3", "abc")
    assert labels["licenses"] == "Apache-2.0"
    assert (image.config["User"], image.config["ExposedPorts"]) == ("65532:65532", {"8765/tcp": {}})


@pytest.mark.e2e
def test_the_image_is_under_120_mb_to_pull(image: Image) -> None:
    """As registries count it: layers are compressed. The base image that Debian replaces has 46 MB."""
    command = f"tar -C {image.root} -cz opt/autoscaler | wc -c"
    size = int(subprocess.run(["sh", "-c", command], capture_output=True, check=True).stdout)
    assert 20e6 < size < 120e6 - 50e6
