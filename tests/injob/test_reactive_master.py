"""Reading the settings of a Master, with a fake Master."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoscaler.clients.spark_environment import read_settings
from autoscaler.injob.reactive import master as module
from autoscaler.injob.reactive.conf import reactive_conf
from autoscaler.injob.reactive.master import Master, addresses, read_master
from autoscaler.injob.reactive.options import Options
from autoscaler.injob.reactive.preflight import findings, read_facts
from autoscaler.targets.local.workers import spark_home
from tests.e2e.test_local_target import get, java, until

__all__ = ["java"]

PAGE = """<html><h4>Spark Properties</h4><table>
<tr><td>spark.worker.timeout</td><td> 10 </td></tr>
<tr><td>spark.app.name</td>
  <td>a &lt;b&gt;</td></tr>
<tr><td>java.home</td><td>/usr</td></tr></table></html>"""


@contextmanager
def web_ui(page: str, status: int = 200) -> Iterator[int]:
    """A web UI with one page; returns its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name is the base class's
            self.send_response(status if self.path == "/environment/" else 404)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def session(master: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master))


def answering(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str, int], int]) -> None:
    """Make Masters answer at their web UI."""
    monkeypatch.setattr(module, "_web_port", lambda _, host, port, __: answer(host, port))


def test_the_settings_are_read_from_the_page() -> None:
    assert read_settings(PAGE) == {"spark.worker.timeout": "10", "spark.app.name": "a <b>"}
    assert read_settings("<html>sign in</html>") is None


@pytest.mark.parametrize(
    ("master", "found"),
    [
        ("spark://one:7077", [("one", 7077)]),
        ("spark://one:7077,two:7078", [("one", 7077), ("two", 7078)]),
        ("spark://[::1]:7077", [("[::1]", 7077)]),
        ("spark://one", []),
        ("yarn", []),
        ("local-cluster[2,1,1024]", []),
    ],
)
def test_the_masters_are_those_of_the_url(master: str, found: list[tuple[str, int]]) -> None:
    assert addresses(master) == found


def test_without_a_master_nothing_is_read() -> None:
    assert read_master(session("yarn")) == Master()


def test_the_first_master_that_answers_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with web_ui(PAGE) as port:

        def answer(_: str, asked: int) -> int:
            if asked == 1:
                raise ConnectionError("refused")
            return port

        answering(monkeypatch, answer)
        found = read_master(session("spark://127.0.0.1:1,127.0.0.1:2"), 60)
    assert found == Master({"spark.worker.timeout": "10", "spark.app.name": "a <b>"})


@pytest.mark.parametrize(
    ("page", "status", "problem"),
    [("", 403, "HTTPError: HTTP Error 403: Forbidden"), ("<html>sign in</html>", 200, "shows no Spark properties")],
)
def test_the_error_says_why_settings_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, page: str, status: int, problem: str
) -> None:
    with web_ui(page, status) as port:
        answering(monkeypatch, lambda *_: port)
        found = read_master(session("spark://127.0.0.1:1"), 60)
    assert found.settings is None
    assert found.problem.endswith(problem)


def test_a_master_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()

    def answer(*_: object) -> int:
        never.wait(60)
        return 1

    answering(monkeypatch, answer)
    try:
        assert read_master(session("spark://one:1"), 0.01) == Master(problem="no answer within 0.01 s")
    finally:
        never.set()


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("", ["spark.decommission.enabled", "spark.worker.timeout", "spark.deploy.maxExecutorRetries"]),
        (
            "-Dspark.worker.timeout=10 -Dspark.deploy.maxExecutorRetries=-1 -Dspark.decommission.enabled=true",
            [],
        ),
    ],
)
def test_the_preflight_check_reads_the_start_settings_of_a_real_master(
    tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch, options: str, names: list[str]
) -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    from autoscaler.demo.processes import Processes, free_port  # noqa: PLC0415 - it needs pyspark
    from autoscaler.demo.spark.cluster import spark_variables  # noqa: PLC0415

    monkeypatch.setenv("JAVA_HOME", str(java))
    processes, port, ui = Processes(tmp_path / "logs", tmp_path / "pool"), free_port(), free_port()
    environment = spark_variables(java) | {"SPARK_MASTER_OPTS": options}
    start = [str(spark_home() / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
    try:
        processes.start("master", [*start, "--port", str(port), "--webui-port", str(ui)], environment)
        until(lambda: get(f"http://127.0.0.1:{ui}/json/"))
        conf = reactive_conf() | {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
        session = SparkSession.builder.master(f"spark://127.0.0.1:{port}").config(map=conf).getOrCreate()
        try:
            # Longer than a job waits: this tests reading, and the machine may be busy.
            facts = read_facts(session, slots=1, cluster=read_master(session, 60))
        finally:
            session.stop()
    finally:
        processes.clear()
    assert facts.cluster.problem == ""
    assert [finding.name for finding in findings(facts, Options())] == names
