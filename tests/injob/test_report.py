"""The report without Spark: a fake session with only the data that the report uses."""

from __future__ import annotations

import json
import logging
import math
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from autoscaler.clients.spark_progress import Batch
from autoscaler.injob import report
from autoscaler.injob.report import MAX_CLIENTS, REBIND_INTERVAL, SETTINGS, Reporter, _Run, partitions, total, trim

DATA = Path(__file__).parent.parent / "sources" / "data"
PROGRESS = json.loads((DATA / "progress_stateful.json").read_text())


class Streams:
    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self.status: dict[str, bool] = {}

    def addListener(self, listener: Any) -> None:  # noqa: N802 - Spark's name
        self.listeners.append(listener)

    def removeListener(self, listener: Any) -> None:  # noqa: N802 - Spark's name
        self.listeners.remove(listener)

    def get(self, _: str) -> Any:
        execution = SimpleNamespace(trigger=lambda: SimpleNamespace(toString=lambda: "ProcessingTimeTrigger(2000)"))
        return SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: execution), status=self.status)


class Session:
    """The part of a SparkSession that the report uses."""

    def __init__(self, application: str = "app-1") -> None:
        settings = {"spark.master": "spark://m:7077", "spark.hadoop.fs.s3a.secret.key": "hush", "spark.cores.max": "4"}
        self.sparkContext = SimpleNamespace(
            applicationId=application,
            appName="lab",
            uiWebUrl="http://driver:4040",
            version="4.3.0",
            getConf=lambda: SimpleNamespace(get=settings.get),
        )
        self.conf = SimpleNamespace(get={"spark.sql.shuffle.partitions": "200"}.__getitem__)
        self.streams = Streams()


@pytest.fixture
def start() -> Iterator[Callable[..., Reporter]]:
    started: list[Reporter] = []

    def call(session: Session, **parameters: Any) -> Reporter:
        reporter = report(session, **{"port": 0, **parameters})
        started.append(reporter)
        return reporter

    yield call
    for reporter in started:
        reporter.stop()


def get(reporter: Reporter, path: str = "/v1/progress") -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{reporter.port}{path}", timeout=5) as response:
        body = response.read()
    return json.loads(body) if path == "/v1/progress" else body


def bound(reporter: Reporter) -> int | None:
    return reporter.port


def progress(number: int, **changes: Any) -> str:
    return json.dumps({**PROGRESS, "batchId": number, **changes})


def test_the_progress_of_spark_is_served(start: Callable[..., Reporter]) -> None:
    before = time.time()
    reporter = start(Session())
    reporter.on_started(PROGRESS["id"], PROGRESS["runId"], "q1")
    reporter.on_progress(progress(13))
    reporter.on_idle(PROGRESS["id"], PROGRESS["runId"])
    answer = get(reporter)
    assert answer["format"] == 1
    assert before - 1 <= answer["now"] <= time.time() + 1
    assert answer["application"] == {"id": "app-1", "name": "lab", "ui": "http://driver:4040"}
    (query,) = answer["queries"]
    assert (query["name"], query["trigger"]) == ("q1", "ProcessingTimeTrigger(2000)")
    assert query["terminated"] is None
    assert query["idle"] >= before
    (batch,) = query["progress"]
    assert batch["batchId"] == 13
    assert batch["start"] == pytest.approx(1795227138.525)
    assert batch["sources"][0]["latest"] == 4 * 4189 - 1
    assert batch["state"] == [{"operator": "stateStoreSave", "rows": 1000, "partitions": 4}]
    assert batch["idle"] is None
    assert batch["steady"] <= answer["steady"] <= time.monotonic() + 1
    assert (batch["sources"][0]["startPartitions"], batch["sources"][0]["partitions"]) == (4, 4)
    reporter.on_progress(progress(14))
    assert get(reporter)["queries"][0]["progress"][1]["idle"] == query["idle"]
    reporter.on_terminated(PROGRESS["id"], PROGRESS["runId"], "boom\n at line 1")
    (query,) = get(reporter)["queries"]
    assert query["exception"] == "boom"
    assert query["terminated"] >= before


@pytest.mark.parametrize(
    ("status", "working"),
    [
        ({"isTriggerActive": True, "isDataAvailable": True}, True),
        ({"isTriggerActive": True, "isDataAvailable": False}, False),
        ({"isTriggerActive": False, "isDataAvailable": True}, False),
        ({}, None),
    ],
)
def test_a_query_is_working_while_a_batch_with_data_runs_and_no_longer_after_its_end(
    start: Callable[..., Reporter], status: dict[str, bool], working: bool | None
) -> None:
    session = Session()
    reporter = start(session)
    session.streams.status = status
    reporter.on_started("q", "r", "orders")
    assert get(reporter)["queries"][0]["working"] is working
    reporter.on_terminated("q", "r", None)
    assert get(reporter)["queries"][0]["working"] is None


FILES = json.loads((DATA / "progress_files.json").read_text())


def of_files(number: int, rows: int, run: str = "r") -> str:
    source = {**FILES["sources"][0], "numInputRows": rows}
    return json.dumps({**FILES, "runId": run, "batchId": number, "numInputRows": rows, "sources": [source]})


def test_a_job_may_count_the_backlog_of_its_own_source(start: Callable[..., Reporter]) -> None:
    waits = iter([9, 4, 0, 5])
    asked: list[int] = []

    def waiting(batch: Any) -> int:
        asked.append(batch["batchId"])
        return next(waits)

    reporter = start(Session(), waiting=waiting)
    for number, rows in enumerate((3, 5, 4)):
        reporter.on_progress(of_files(number, rows))
    reporter.on_progress(of_files(3, 2, "another run"))
    first, second = get(reporter)["queries"]
    positions = [
        tuple(batch["sources"][0][key] for key in ("start", "end", "latest", "partitions", "startPartitions"))
        for batch in (*first["progress"], *second["progress"])
    ]
    assert positions == [(0, 3, 12, 1, 1), (3, 8, 12, 1, 1), (8, 12, 12, 1, 1), (0, 2, 7, 1, 1)]
    assert asked == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "waiting",
    [lambda _: None, lambda _: 1 / 0, *(lambda _, count=count: count for count in (-1, 5.0, math.nan, "5", 1 << 64))],
)
def test_a_count_that_fails_is_not_invented(start: Callable[..., Reporter], waiting: Any) -> None:
    reporter = start(Session(), waiting=waiting)
    reporter.on_progress(of_files(0, 3))
    (source,) = get(reporter)["queries"][0]["progress"][0]["sources"]
    assert (source["end"], source["latest"]) == (3, None)


def test_a_numpy_integer_is_a_valid_count(start: Callable[..., Reporter]) -> None:
    reporter = start(Session(), waiting=lambda _: np.int64(4))
    reporter.on_progress(of_files(0, 3))
    (source,) = get(reporter)["queries"][0]["progress"][0]["sources"]
    assert (source["end"], source["latest"]) == (3, 7)


def test_a_reported_newest_offset_is_used(start: Callable[..., Reporter]) -> None:
    reporter = start(Session(), waiting=lambda _: 5)
    reporter.on_progress(progress(13))
    assert get(reporter)["queries"][0]["progress"][0]["sources"] == trim(json.loads(progress(13)), 0.0)["sources"]


PYTHON_WORKER = """org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the \
Python worker: Traceback (most recent call last):
  File "/job.py", line 17, in price
    return prices[key]
           ~~~~~~^^^^^
KeyError: 'no such key'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/job.py", line 19, in price
ValueError: key 7 has no price
of today
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1097)
\tat org.apache.spark.sql.execution.python.PythonUDFRunner$$anon$2.read(PythonUDFRunner.scala:101)
"""

FOREACH_BATCH = """py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: \
Traceback (most recent call last):
  File "/job.py", line 2, in write
RuntimeError

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""

JAVA = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/job.py", line 15, in write
    rows = df.count()
           ^^^^^^^^^^
py4j.protocol.Py4JJavaError: An error occurred while calling o658.count.
: org.apache.spark.SparkException: [CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT] Error writing state store files
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.failedToCommitStateFileError(QueryExecutionErrors.scala:2310)
Caused by: java.io.IOException: No space left on device
"""

# Spark removes the margins of a group's lines.
GROUP = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: \
  + Exception Group Traceback (most recent call last):
   File "/job.py", line 9, in price
     raise ExceptionGroup("two prices", [ValueError("a"), TypeError("b")])
     ^^^^^^^^^^^^^^^^^^^^^
 ExceptionGroup: two prices (2 sub-exceptions)
  +-+---------------- 1 ----------------
 ValueError: a
    +---------------- 2 ----------------
 TypeError: b
    +------------------------------------
 SQLSTATE: 38000
=== Streaming Query ===
"""


TASK_GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/job.py", line 12, in write
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/job.py", line 5, in send
    | ValueError: a
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/job.py", line 7, in send
    |     save()
    |     ^^^^^^
    | OSError: disk | full
    +------------------------------------
"""


@pytest.mark.parametrize(
    ("exception", "why"),
    [
        (
            JAVA,
            "org.apache.spark.SparkException: [CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT] Error writing state store files",
        ),
        (GROUP, "ExceptionGroup: two prices (2 sub-exceptions)"),
        (TASK_GROUP, "OSError: disk | full"),
        (PYTHON_WORKER, "ValueError: key 7 has no price"),
        (FOREACH_BATCH, "RuntimeError"),
        (
            "org.apache.spark.SparkException: Job aborted\n\tat org.apache\n",
            "org.apache.spark.SparkException: Job aborted",
        ),
        ("Traceback (most recent call last):\n  cut", "Traceback (most recent call last):"),
        ("x" * 10_000, "x" * 500),
        (
            "Traceback (most recent call last):\n" + 30_000 * "  deep\n" + "E: far off",
            "Traceback (most recent call last):",
        ),
        ("\n ", "no error message"),
    ],
)
def test_the_reason_for_a_failed_query_is_one_line(start: Callable[..., Reporter], exception: str, why: str) -> None:
    reporter = start(Session())
    reporter.on_terminated("q", "r", exception)
    (query,) = get(reporter)["queries"]
    assert (query["terminated"] is not None, query["exception"]) == (True, why)


def test_the_settings_are_an_allow_list_without_secrets(start: Callable[..., Reporter]) -> None:
    settings = get(start(Session()))["settings"]
    assert settings == {
        "spark.master": "spark://m:7077",
        "spark.cores.max": "4",
        "spark.sql.shuffle.partitions": "200",
    }
    assert not [key for key in SETTINGS if any(word in key.lower() for word in ("secret", "password", "token", "key"))]


def test_only_the_last_batches_are_kept(start: Callable[..., Reporter]) -> None:
    reporter = start(Session(), batches=5)
    for number in range(20):
        reporter.on_progress(progress(number))
    (query,) = get(reporter)["queries"]
    assert [batch["batchId"] for batch in query["progress"]] == [15, 16, 17, 18, 19]


def test_a_job_that_restarts_its_query_forever_does_not_use_more_memory(start: Callable[..., Reporter]) -> None:
    reporter = start(Session())
    for number in range(200):
        reporter.on_started("id", f"run-{number}", "q")
        reporter.on_terminated("id", f"run-{number}", "boom")
    reporter.on_started("id", "last", "q")
    queries = get(reporter)["queries"]
    assert len(queries) <= 20
    assert queries[-1]["runId"] == "last"
    assert queries[-1]["restarts"] == 200, "those that are forgotten count"
    reporter.on_started("other id", "unchecked", "q")
    assert get(reporter)["queries"][-1]["restarts"] == 201, "without a checkpoint each run has its own id"
    reporter.on_started("third id", "new", "r")
    assert get(reporter)["queries"][-1]["restarts"] == 0


def test_a_second_call_returns_the_same_reporter_and_a_new_application_gets_a_new_one(
    start: Callable[..., Reporter],
) -> None:
    session = Session()
    reporter = start(session)
    assert start(session) is reporter
    assert len(session.streams.listeners) == 1
    other = start(Session("app-2"))
    assert other is not reporter
    assert reporter.stopped
    assert get(other)["application"]["id"] == "app-2"


def test_stopping_frees_the_port_and_the_listener(start: Callable[..., Reporter]) -> None:
    session = Session()
    reporter = start(session)
    port = reporter.port
    reporter.stop()
    reporter.stop()
    assert session.streams.listeners == []
    again = start(session, port=port)
    assert again is not reporter
    assert again.port == port


def test_a_port_in_use_does_not_stop_the_job_and_is_used_once_it_is_free(
    start: Callable[..., Reporter], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        reporter = start(Session(), port=port)
        assert bound(reporter) is None
        assert f"port {port}" in caplog.text
        assert "the job continues" in caplog.text
        reporter.on_progress(progress(1))
    deadline = time.monotonic() + REBIND_INTERVAL + 5
    while bound(reporter) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert bound(reporter) == port
    assert len(get(reporter)["queries"]) == 1


def test_an_error_in_the_report_is_logged_and_never_reaches_spark(
    start: Callable[..., Reporter], caplog: pytest.LogCaptureFixture
) -> None:
    session = Session()
    reporter = start(session)
    listener = session.streams.listeners[0]
    for text in ("", "[]", "{}", progress(1, timestamp="yesterday"), progress(1, sources=[5])):
        caplog.clear()
        listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=text)))
        assert "the job is not affected" in caplog.text
    listener.onQueryStarted(SimpleNamespace(id="i", runId="r", name="fine"))
    listener.onQueryIdle(SimpleNamespace(id="i", runId="r"))
    listener.onQueryTerminated(SimpleNamespace(id="i", runId="r", exception=None))
    assert [query["name"] for query in get(reporter)["queries"] if query["name"] == "fine"]


def test_other_paths_are_not_found_and_health_is_served(start: Callable[..., Reporter]) -> None:
    reporter = start(Session())
    assert get(reporter, "/healthz") == b"ok\n"
    with pytest.raises(urllib.error.HTTPError, match="404") as raised:
        get(reporter, "/etc/passwd")
    raised.value.close()


def test_it_listens_on_an_ipv6_address(start: Callable[..., Reporter], caplog: pytest.LogCaptureFixture) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    caplog.set_level(logging.INFO)
    reporter = start(Session(), host="::1")
    assert f"serving the report on http://[::1]:{reporter.port}/v1/progress" in caplog.messages
    with urllib.request.urlopen(f"http://[::1]:{reporter.port}/healthz", timeout=5) as response:
        assert response.status == 200


def test_a_silent_client_does_not_block_others(start: Callable[..., Reporter]) -> None:
    reporter = start(Session())
    with socket.create_connection(("127.0.0.1", reporter.port or 0)) as silent:
        silent.send(b"GET /v1/pro")
        assert get(reporter)["format"] == 1


@pytest.mark.parametrize(
    ("parameters", "environment", "message"),
    [
        ({"port": 70000}, None, "port must be a number from 0 to 65535, not 70000"),
        ({"port": "http"}, None, "port must be a number from 0 to 65535, not 'http'"),
        # set by Kubernetes for a service that is called autoscaler-report
        ({"port": None}, "tcp://10.0.0.1:4050", "AUTOSCALER_REPORT_PORT must be a port number, not 'tcp://10"),
        ({"port": None}, "-1", "AUTOSCALER_REPORT_PORT must be a number from 0 to 65535, not -1"),
        ({"port": 0, "batches": 2}, None, "batches must be a number of at least 3, not 2"),
        ({"port": 0, "batches": None}, None, "batches must be a number of at least 3, not None"),
    ],
)
def test_an_invalid_parameter_is_logged_and_does_not_stop_the_job(
    start: Callable[..., Reporter],
    parameters: dict[str, Any],
    environment: str | None,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if environment is not None:
        monkeypatch.setenv("AUTOSCALER_REPORT_PORT", environment)
    session = Session()
    reporter = start(session, **parameters)
    assert (reporter.stopped, reporter.port) == (True, None)
    assert session.streams.listeners == []
    assert message in caplog.text
    assert "the autoscaler cannot see this job, which continues" in caplog.text
    reporter.stop()
    again = start(session, port=0)
    assert get(again)["application"]["id"] == "app-1", "a right call after a wrong one works"


def test_the_error_for_spark_connect_names_where_to_call_it(
    start: Callable[..., Reporter], caplog: pytest.LogCaptureFixture
) -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    assert start(connect).stopped
    assert "a session in that process does not see its queries; start the queries in the driver" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_stopped_session_is_reported(start: Callable[..., Reporter], caplog: pytest.LogCaptureFixture) -> None:
    session = Session()
    running = start(Session())
    session.sparkContext._jsc = None
    assert start(session).stopped
    assert "the session is stopped; call report(spark) with a session that runs" in caplog.text
    assert not running.stopped, "a wrong call takes nothing from the right one"


class _Refusing(Streams):
    def addListener(self, _: Any) -> None:  # noqa: N802 - Spark's name
        raise RuntimeError("no callback server")


@pytest.mark.parametrize(
    "session",
    [None, object(), SimpleNamespace(sparkContext=SimpleNamespace()), "refusing"],
    ids=["none", "object", "half", "refusing"],
)
def test_exceptions_of_spark_are_only_logged(
    start: Callable[..., Reporter], session: Any, caplog: pytest.LogCaptureFixture, unused_tcp_port: int
) -> None:
    if session == "refusing":
        session = Session()
        session.streams = _Refusing()
    assert start(session, port=unused_tcp_port).stopped
    assert "which continues" in caplog.text
    assert "Traceback" in caplog.text, "nobody foresaw it, so the log must say where it came from"
    with socket.create_server(("127.0.0.1", unused_tcp_port)):
        pass


def test_an_invalid_host_is_an_error_in_the_log(
    start: Callable[..., Reporter], caplog: pytest.LogCaptureFixture
) -> None:
    assert bound(start(Session(), host="a" * 70)) is None
    assert "cannot serve the report on" in caplog.text


def test_a_forked_child_releases_the_port() -> None:
    """A job may fork (multiprocessing); its children outlive it and must not keep its port open."""
    code = """
import os, socket, sys, time
from tests.injob.test_report import Session
from autoscaler.injob import report
reporter = report(Session(), port=0)
port = reporter.port
here, there = os.pipe()
if os.fork() == 0:
    os.read(here, 1)
    os._exit(not (reporter.stopped and reporter.port is None and not report(Session(), port=0).stopped))
reporter.stop()
deadline = time.monotonic() + 10
while True:
    try:
        socket.create_server(("127.0.0.1", port)).close()
        break
    except OSError:
        if time.monotonic() > deadline:
            sys.exit("the child keeps the port")
        time.sleep(0.05)
os.write(there, b"x")
assert os.wait()[1] == 0
other = report(Session("app-2"), port=0)
assert other.port is not None
other.stop()
"""
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False, cwd=root
    )
    assert done.returncode == 0, done.stderr


def test_excess_clients_are_rejected_and_a_disconnected_one_is_not_logged(
    start: Callable[..., Reporter], capfd: pytest.CaptureFixture[str]
) -> None:
    reporter = start(Session())
    silent = [socket.create_connection(("127.0.0.1", reporter.port or 0)) for _ in range(MAX_CLIENTS)]
    before = threading.active_count()
    with socket.create_connection(("127.0.0.1", reporter.port or 0), timeout=10) as late:
        assert late.recv(1) == b"", "turned away"
    assert threading.active_count() <= before + MAX_CLIENTS
    for client in silent:
        # A daemon whose request times out leaves such a reset in the middle of a request.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.send(b"GET /v1/progress HTTP/1.1\r\n\r\n" * 50)
        client.close()
    deadline = time.monotonic() + 10
    while True:
        try:
            assert get(reporter)["format"] == 1
            break
        except (urllib.error.URLError, ConnectionError):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert capfd.readouterr().err == ""


def test_the_port_comes_from_the_environment(
    start: Callable[..., Reporter], monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setenv("AUTOSCALER_REPORT_PORT", str(unused_tcp_port))
    assert start(Session(), port=None).port == unused_tcp_port


def test_importing_it_loads_no_heavy_modules() -> None:
    code = (
        "import sys; before = set(sys.modules); import autoscaler.injob; "
        "heavy = {'aiohttp', 'pydantic', 'yaml', 'tenacity', 'pyspark', 'rich', 'asyncio'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("offset", "sum_", "count"),
    [
        ({"0": 5, "1": 7}, 12, 2),
        ({"topic": {"0": 5, "1": 7}, "other": {"0": 1}}, 13, 3),
        ('{"topic": {"0": 5}}', 5, 1),
        (17, 17, 1),
        ("17", 17, 1),
        (None, None, None),
        ("null", None, None),
        ("", None, None),
        ({}, None, None),
        ({"0": None}, None, None),
        ({"0": "5"}, None, None),
        ({"0": 1.5}, None, None),
        ({"logOffset": 3, "flag": True}, None, None),
        (dict.fromkeys("012345", 1_795_000_000_000_000_000), None, 6),  # nanoseconds since 1970
        ({"0": -1 << 63}, None, 1),
        ([1, 2], None, None),
        (True, None, None),
    ],
)
def test_offsets_are_summed_or_unknown_but_never_guessed(offset: object, sum_: int | None, count: int | None) -> None:
    assert total(offset) == sum_
    assert partitions(offset) == count


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=10,
    )
)
def test_any_offset_is_a_whole_number_or_unknown_as_object_and_as_string(offset: object) -> None:
    assert total(offset) is None or isinstance(total(offset), int)
    if isinstance(offset, dict):
        assert total(json.dumps(offset)) == total(offset)


@given(st.dictionaries(st.text(max_size=3), st.integers(), max_size=9))
def test_whatever_a_source_writes_the_report_can_be_read(offset: dict[str, int]) -> None:
    source = {**PROGRESS["sources"][0], "startOffset": None, "endOffset": offset, "latestOffset": offset}
    entry = trim({**PROGRESS, "sources": [source]}, 1.0)
    assert TypeAdapter(Batch).validate_json(json.dumps(entry)).number == PROGRESS["batchId"]


def test_events_and_polls_from_many_threads_do_not_interfere(start: Callable[..., Reporter]) -> None:
    reporter = start(Session())
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(200):
                reporter.on_progress(progress(number))
        except BaseException as error:  # noqa: BLE001 - it is reported by the test
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        assert len(get(reporter)["queries"]) <= 1
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.benchmark
def test_a_batch_and_a_poll_cost_less_than_a_millisecond(start: Callable[..., Reporter]) -> None:
    logging.getLogger("autoscaler.injob").setLevel(logging.WARNING)
    reporter = start(Session())
    text = progress(1)
    begin = time.perf_counter()
    for _ in range(1000):
        reporter.on_progress(text)
    per_batch = (time.perf_counter() - begin) / 1000
    begin = time.perf_counter()
    for _ in range(200):
        body = reporter.body()
    per_poll = (time.perf_counter() - begin) / 200
    print(  # noqa: T201 - benchmarks print what they measure
        f"\nreport: {per_batch * 1e6:.0f} us a batch, {per_poll * 1e6:.0f} us a poll of {len(body) / 1024:.0f} KiB"
    )
    assert per_batch < 1e-3
    assert per_poll < 1e-3


def test_trimming_keeps_only_the_required_fields() -> None:
    assert len(json.dumps(trim(PROGRESS, 0.0))) < 800
    known = _Run("id", "run", None, 0.0, 3)
    known.progress.append(json.dumps(trim(PROGRESS, 0.0)))
    assert json.loads(known.body())["progress"][0]["rows"] == 797
