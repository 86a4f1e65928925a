"""The report without Spark: a session that only hands out what the report asks of it."""

from __future__ import annotations

import json
import logging
import socket
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

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.injob import report
from autoscaler.injob.report import REBIND_EVERY, SETTINGS, Reporter, _Run, partitions, total, trim

DATA = Path(__file__).parent.parent / "sources" / "data"
PROGRESS = json.loads((DATA / "progress_stateful.json").read_text())


class Streams:
    def __init__(self) -> None:
        self.listeners: list[Any] = []

    def addListener(self, listener: Any) -> None:  # noqa: N802 - Spark's name
        self.listeners.append(listener)

    def removeListener(self, listener: Any) -> None:  # noqa: N802 - Spark's name
        self.listeners.remove(listener)

    def get(self, _: str) -> Any:
        execution = SimpleNamespace(trigger=lambda: SimpleNamespace(toString=lambda: "ProcessingTimeTrigger(2000)"))
        return SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: execution))


class Session:
    """As much of a SparkSession as the report uses."""

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


def test_what_spark_tells_is_served(start: Callable[..., Reporter]) -> None:
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
    reporter.on_terminated(PROGRESS["id"], PROGRESS["runId"], "boom\n at line 1")
    (query,) = get(reporter)["queries"]
    assert query["exception"] == "boom"
    assert query["terminated"] >= before


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


def test_a_job_that_restarts_its_query_for_ever_does_not_grow(start: Callable[..., Reporter]) -> None:
    reporter = start(Session())
    for number in range(200):
        reporter.on_started("id", f"run-{number}", "q")
        reporter.on_terminated("id", f"run-{number}", "boom")
    reporter.on_started("id", "last", "q")
    queries = get(reporter)["queries"]
    assert len(queries) <= 20
    assert queries[-1]["runId"] == "last"


def test_calling_it_twice_gives_the_same_reporter_and_a_new_application_a_new_one(
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


def test_a_taken_port_does_not_stop_the_job_and_is_taken_over_when_free(
    start: Callable[..., Reporter], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        reporter = start(Session(), port=port)
        assert bound(reporter) is None
        assert f"port {port}" in caplog.text
        assert "the job goes on" in caplog.text
        reporter.on_progress(progress(1))
    deadline = time.monotonic() + REBIND_EVERY + 5
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


def test_other_paths_are_not_found_and_health_is_told(start: Callable[..., Reporter]) -> None:
    reporter = start(Session())
    assert get(reporter, "/healthz") == b"ok\n"
    with pytest.raises(urllib.error.HTTPError, match="404") as raised:
        get(reporter, "/etc/passwd")
    raised.value.close()


def test_a_silent_client_does_not_keep_others_waiting(start: Callable[..., Reporter]) -> None:
    reporter = start(Session())
    with socket.create_connection(("127.0.0.1", reporter.port or 0)) as silent:
        silent.send(b"GET /v1/pro")
        assert get(reporter)["format"] == 1


@pytest.mark.parametrize(
    ("port", "environment", "message"),
    [(70000, None, "from 0 to 65535"), (None, "http", "must be a port number"), (None, "-1", "from 0 to 65535")],
)
def test_a_wrong_port_is_refused(
    port: int | None, environment: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if environment is not None:
        monkeypatch.setenv("AUTOSCALER_REPORT_PORT", environment)
    with pytest.raises(ValueError, match=message):
        report(Session(), port=port)


def test_the_port_comes_from_the_environment(
    start: Callable[..., Reporter], monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setenv("AUTOSCALER_REPORT_PORT", str(unused_tcp_port))
    assert start(Session(), port=None).port == unused_tcp_port


def test_importing_it_costs_the_job_nothing_heavy() -> None:
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
        ([1, 2], None, None),
        (True, None, None),
    ],
)
def test_offsets_are_summed_or_unknown_never_guessed(offset: object, sum_: int | None, count: int | None) -> None:
    assert total(offset) == sum_
    assert partitions(offset) == count


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=10,
    )
)
def test_any_offset_is_a_whole_number_or_unknown_as_object_and_as_text(offset: object) -> None:
    assert total(offset) is None or isinstance(total(offset), int)
    if isinstance(offset, dict):
        assert total(json.dumps(offset)) == total(offset)


def test_events_and_polls_from_many_threads_do_not_disturb_each_other(start: Callable[..., Reporter]) -> None:
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


def test_trimming_keeps_what_is_needed_and_no_more() -> None:
    assert len(json.dumps(trim(PROGRESS, 0.0))) < 800
    known = _Run("id", "run", None, 0.0, 3)
    known.progress.append(json.dumps(trim(PROGRESS, 0.0)))
    assert json.loads(known.body())["progress"][0]["rows"] == 797
