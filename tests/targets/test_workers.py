"""The kinds of workers of the target `local`: their parameters, their start, and when they count as ready."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from autoscaler.clients.http import Endpoint, JsonClient
from autoscaler.config import load
from autoscaler.ports import AnswerError, EdgeError, EdgeTimeoutError, RefusedError, UnavailableError
from autoscaler.targets.local.pool import Kind, Place
from autoscaler.targets.local.target import Local, WorkerKind
from autoscaler.targets.local.workers import (
    FlinkTaskManagers,
    Sizes,
    SparkWorkers,
    flink_home,
    flink_sizes,
    spark_home,
)
from autoscaler.testing.contracts import LocalShared

LIMIT = timedelta(seconds=30)
SPARK = {"directory": Path("pool"), "master": "spark://127.0.0.1:7077"}
FLINK = {"directory": Path("pool"), "kind": WorkerKind.FLINK_TASKMANAGER}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({**SPARK, "master": "http://127.0.0.1:7077"}, "spark://host:port"),
        ({**SPARK, "master": ""}, "master: must be spark://host:port"),
        ({**SPARK, "master_ui": "127.0.0.1:8080"}, "must be an address such as http://"),
        ({**SPARK, "cores": 0}, "must be 1 or more"),
        ({**SPARK, "memory": "1 GB"}, "768m or 2g"),
        ({**SPARK, "grace": timedelta(0)}, "grace: must be above 0s"),
        ({**SPARK, "worker_timeout": timedelta(milliseconds=400)}, "whole seconds"),
        ({**SPARK, "backoff": timedelta(minutes=2)}, "backoff: must not be above max_backoff"),
        ({**SPARK, "slots": 2}, "slots: is for kind flink-taskmanager and has no effect with kind spark-worker"),
        ({**FLINK, "master": "spark://127.0.0.1:7077"}, "master: is for kind spark-worker"),
        ({**FLINK, "drain": timedelta(seconds=5)}, "drain: is for kind spark-worker"),
        ({**FLINK, "flink_rest": "127.0.0.1:8081"}, "flink_rest: must be an address such as http://"),
        ({**FLINK, "slots": 0}, "must be 1 or more"),
        ({**FLINK, "memory": "1gb"}, "768m or 2g"),
    ],
)
def test_invalid_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Local(**parameters)


PAGE = (Path(__file__).parents[2] / "docs" / "getting-started.md").read_text()


def test_the_targets_of_the_page_load(tmp_path: Path) -> None:
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "type: local" in block]
    kinds = []
    for block in blocks:
        cluster = block.replace("\n", "\n    ").rstrip()
        metrics = ", ".join(f"{name}: {{source: s, metric: {name}}}" for name in ("lag", "arrivals"))
        more = f"    metrics: {{{metrics}}}\n    policies: {{p: {{type: backlog-drain}}}}\n    max: 4\n"
        file = tmp_path / "autoscaler.yaml"
        source = "sources: {s: {type: flink, url: 'http://127.0.0.1:8081'}}\n"
        file.write_text(f"{source}clusters:\n  c:\n    {cluster}\n{more}")
        target = load(file, {}).clusters["c"].target
        assert isinstance(target, Local)
        kinds.append(target.kind)
    assert kinds == list(WorkerKind)


# ---- when a worker counts

STATES = {"127.9.9.2": "ALIVE", "127.9.9.3": "DECOMMISSIONED", "127.9.9.4": "DEAD", "127.8.8.2": "ALIVE"}
MASTER = {
    "status": "ALIVE",
    "workers": [{"id": f"worker-{host}", "host": host, "state": state, "cores": 2} for host, state in STATES.items()],
    "activeapps": [],
}
# Worker 4 was killed and worker 5 has its address now; Flink still lists 4.
LISTED = ("127.9.9.2-2", "127.9.9.4-4", "127.9.9.3-7")
JOB_MANAGER = {
    "taskmanagers": [{"id": one, "path": f"pekko://flink@{one}", "slotsNumber": 1, "freeSlots": 0} for one in LISTED]
}


def place(number: int, last: int) -> Place:
    return Place(f"127.9.9.{last}", Path("work"), Path("local"), number)


PLACES = [place(2, 2), place(3, 3), place(5, 4), place(6, 5)]


def spark(page: JsonClient | None) -> SparkWorkers:
    return SparkWorkers(
        home=Path("spark"),
        java=Path("java"),
        master="spark://m:1",
        cores=2,
        memory="1g",
        timeout=timedelta(seconds=60),
        page=page,
    )


def flink(page: JsonClient | None) -> FlinkTaskManagers:
    return FlinkTaskManagers(
        home=Path("/flink"), java=Path("/java"), conf=Path("/conf"), sizes=Sizes(("-Xmx1",), ("-D", "a=b")), page=page
    )


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def registered(
    kind: Callable[[JsonClient], Kind], answer: Answer, limit: timedelta = timedelta(seconds=30)
) -> int:
    application = web.Application()
    application.router.add_get("/{page:.*}", answer)
    async with TestServer(application) as server, client(str(server.make_url("/")), limit) as page:
        return await kind(page).registered(PLACES)


@asynccontextmanager
async def client(url: str, limit: timedelta = timedelta(seconds=3)) -> AsyncIterator[JsonClient]:
    async with LocalShared() as shared:
        yield await JsonClient.open(shared, Endpoint(url=url, timeout=limit))


def answering(content: object) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=content if isinstance(content, str) else json.dumps(content))

    return answer


async def test_ready_workers_are_those_that_are_alive_at_the_master() -> None:
    assert await registered(spark, answering(MASTER)) == 1


async def test_ready_workers_are_the_task_managers_that_the_job_manager_lists() -> None:
    assert await registered(flink, answering(JOB_MANAGER)) == 1


@pytest.mark.parametrize("kind", [spark, flink])
async def test_without_a_page_each_worker_counts(kind: Callable[[JsonClient | None], Kind]) -> None:
    assert await kind(None).registered(PLACES) == 4


@pytest.mark.parametrize("kind", [spark, flink])
@pytest.mark.parametrize(
    "text", ["<html>hello</html>", "[]", '{"workers": [{}], "taskmanagers": [{}]}', "{}", '{"workers": 3}', ""]
)
async def test_an_unexpected_answer_is_an_error(kind: Callable[[JsonClient], Kind], text: str) -> None:
    with pytest.raises(AnswerError, match=r"expected (a Spark Master's|Flink's) JSON"):
        await registered(kind, answering(text))


async def test_a_page_that_fails_or_hangs_is_unavailable() -> None:
    async def fail(_: web.Request) -> web.Response:
        return web.Response(status=503)

    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(1)
        return web.json_response(MASTER)

    with pytest.raises(UnavailableError, match=r"/json/ answered 503"):
        await registered(spark, fail)
    with pytest.raises(EdgeTimeoutError, match="did not answer in full within"):
        await registered(spark, hang, timedelta(milliseconds=300))


async def test_an_unreachable_page_is_unavailable() -> None:
    async with client("http://127.0.0.1:1") as page:
        with pytest.raises(UnavailableError, match="cannot be reached"):
            await spark(page).registered(PLACES)


# ---- how a worker is started


def test_a_task_manager_is_a_separate_host_with_an_id_that_is_never_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLINK_ENV_JAVA_OPTS", "-Da='b c'")
    monkeypatch.setenv("FLINK_ENV_JAVA_OPTS_TM", "-Dd=e")
    command, environment = flink(None).launch(place(5, 4))
    assert list(command[:4]) == ["/java/bin/java", "-Xmx1", "-Da=b c", "-Dd=e"]
    main = command.index("org.apache.flink.runtime.taskexecutor.TaskManagerRunner")
    assert list(command[main + 1 : main + 5]) == ["--configDir", "/conf", "-D", "a=b"]
    settings = [
        argument for before, argument in zip(command[main:], command[main + 1 :], strict=False) if before == "-D"
    ]
    assert {"taskmanager.host=127.9.9.4", "taskmanager.bind-host=127.9.9.4"} <= set(settings)
    assert "taskmanager.resource-id=127.9.9.4-5" in settings
    assert environment["FLINK_PLUGINS_DIR"] == "/flink/plugins"


def installation(home: Path, java: str = "exit 1") -> Path:
    """A fake Flink installation, and a Java that runs the script."""
    for name in ("lib/flink-dist-2.3.0.jar", "lib/other.jar", "bin/bash-java-utils.jar", "bin/java"):
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (home / "bin" / "java").write_text(f"#!/bin/sh\n{java}\n")
    (home / "bin" / "java").chmod(0o755)
    return home


def test_flink_computes_the_memory_sizes(tmp_path: Path) -> None:
    result = 'echo chatter; echo BASH_JAVA_UTILS_EXEC_RESULT:-Xmx5; echo BASH_JAVA_UTILS_EXEC_RESULT:-D "$*"'
    home = installation(tmp_path, result)
    sizes = flink_sizes(home, home, Path("/conf"), "GET_TM_RESOURCE_PARAMS", {"a.b": "1g"})
    assert sizes.jvm == ("-Xmx5",)
    assert sizes.settings[-5:] == ("GET_TM_RESOURCE_PARAMS", "--configDir", "/conf", "-D", "a.b=1g")


def test_settings_that_flink_rejects_are_refused_with_its_message(tmp_path: Path) -> None:
    home = installation(tmp_path, "echo 'IllegalConfigurationException: too small' >&2; echo '  at x' >&2; exit 1")
    with pytest.raises(RefusedError, match=r"(?s)a\.b=1m: IllegalConfigurationException: too small"):
        flink_sizes(home, home, Path("/conf"), "GET_TM_RESOURCE_PARAMS", {"a.b": "1m"})


def test_a_directory_without_spark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no bin/spark-class"):
        spark_home(str(tmp_path))


def test_a_directory_without_flink_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no lib/flink-dist"):
        flink_home(str(tmp_path))
    home = installation(tmp_path)
    assert flink_home(str(home)) == home
    (home / "bin" / "bash-java-utils.jar").unlink()
    with pytest.raises(RefusedError, match="no bin/bash-java-utils"):
        flink_home(str(home))


def test_a_flink_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(RefusedError, match=r"set flink_home, or pip install '\.\[flink-test\]'"):
        flink_home()


class Shared:
    async def enter(self, key: object, factory: object) -> Any:
        raise AssertionError(key, factory)


async def test_a_flink_without_a_configuration_is_refused(tmp_path: Path) -> None:
    home = installation(tmp_path / "flink")
    local = Local(
        directory=tmp_path / "pool",
        kind=WorkerKind.FLINK_TASKMANAGER,
        flink_home=str(home),
        java_home=str(home),
    )
    with pytest.raises(RefusedError, match=r"no config\.yaml in .*flink/conf; set flink_conf"):
        async with local.connect(Shared()):
            pass
    (tmp_path / "config.yaml").touch()
    # Java runs then, and this one cannot
    with pytest.raises(EdgeError, match="Flink does not accept"):
        async with replace(local, flink_conf=str(tmp_path)).connect(Shared()):
            pass
