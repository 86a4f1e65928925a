"""The report: a small HTTP endpoint in the driver that serves the progress of the application's streaming queries.

Spark publishes the progress of Structured Streaming on no REST endpoint; a listener inside the driver is told
of it. The listener keeps the last batches of each query as ready-made JSON, so that a batch costs one
serialisation and a poll costs one join of strings. Nothing here may hurt the job: errors are logged, never
raised into Spark.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import wraps
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ParamSpec

FORMAT = 1
"""Version of the report's format."""

DEFAULT_PORT = 4050
"""Port of the report when neither the call nor `AUTOSCALER_REPORT_PORT` names one."""

SETTINGS = (
    "spark.cores.max",
    "spark.decommission.enabled",
    "spark.dynamicAllocation.enabled",
    "spark.executor.cores",
    "spark.executor.heartbeatInterval",
    "spark.locality.wait",
    "spark.locality.wait.node",
    "spark.locality.wait.process",
    "spark.locality.wait.rack",
    "spark.master",
    "spark.network.timeout",
    "spark.network.timeoutInterval",
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.noDataProgressEventInterval",
    "spark.sql.streaming.stateStore.providerClass",
    "spark.storage.decommission.enabled",
    "spark.storage.decommission.replicationReattemptInterval",
    "spark.task.cpus",
    "spark.task.maxFailures",
)
"""The only settings that leave the driver; none of them can hold a secret."""

KEPT_RUNS = 16
REBIND_EVERY = 2.0
LOOK_UP_EVERY = 0.2
SOCKET_TIMEOUT = 10.0

log = logging.getLogger("autoscaler.injob")

P = ParamSpec("P")


def report(
    spark: Any,  # noqa: ANN401 - a SparkSession; pyspark is not imported for the sake of its type
    host: str = "127.0.0.1",
    port: int | None = None,
    batches: int = 120,
) -> Reporter:
    """Serve the progress of the session's streaming queries for the autoscaler.

    Call it once, before the queries start (queries that run already are seen from their next batch on). A
    second call for the same session returns the same reporter. When the port is taken, the job goes on: the
    error is logged and the port is tried again every two seconds, since mostly a former driver is just going
    away; it never moves to another port, where nobody would look for it.

    Args:
        spark: the SparkSession whose queries are reported.
        host: address to listen on; loopback by default. The report has no authentication.
        port: port to listen on, 0 for any free one; default `AUTOSCALER_REPORT_PORT`, else 4050.
        batches: how many batches of each query are kept.

    Raises:
        ValueError: the port or the number of batches makes no sense.
    """
    return _reporter(spark, host, _port(port), batches)


def _port(port: int | None) -> int:
    if port is None:
        text = os.environ.get("AUTOSCALER_REPORT_PORT", str(DEFAULT_PORT))
        try:
            port = int(text)
        except ValueError:
            raise ValueError(f"AUTOSCALER_REPORT_PORT must be a port number, not {text!r}") from None
    if not 0 <= port <= 65535:  # noqa: PLR2004 - the range of ports
        raise ValueError(f"port must be from 0 to 65535, not {port}")
    return port


_lock = threading.Lock()
_running: list[Reporter] = []


def _reporter(spark: Any, host: str, port: int, batches: int) -> Reporter:  # noqa: ANN401 - see report
    with _lock:
        for running in list(_running):
            if running.spark is spark and not running.stopped:
                return running
            if running.stopped or running.application["id"] != spark.sparkContext.applicationId:
                # The former application of this process is over; its port is wanted now.
                running.stop()
                _running.remove(running)
        reporter = Reporter(spark, host, port, batches)
        _running.append(reporter)
    return reporter


def _harmless(function: Callable[P, None]) -> Callable[P, None]:
    """Log what goes wrong instead of raising it into Spark's listener thread."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception:
            log.exception("the report missed an event of a query; the job is not affected")

    return call


class _Run:
    """One run of one query, as it is reported."""

    def __init__(self, query: str, run: str, name: str | None, started: float, batches: int) -> None:
        self.head: dict[str, Any] = {
            "id": query,
            "runId": run,
            "name": name,
            "trigger": None,
            "started": started,
            "idle": None,
            "terminated": None,
            "exception": None,
        }
        self.progress: deque[str] = deque(maxlen=batches)
        self.prepared = json.dumps(self.head)

    def prepare(self) -> None:
        self.prepared = json.dumps(self.head)

    def body(self) -> str:
        return f'{self.prepared[:-1]}, "progress": [{", ".join(tuple(self.progress))}]}}'


class Reporter:
    """Listens to the queries of one session and serves what it heard. Made by `report`.

    Attributes:
        spark: the session.
        application: id, name and UI address of the application.
        stopped: whether `stop` was called.
    """

    def __init__(self, spark: Any, host: str, port: int, batches: int) -> None:  # noqa: ANN401 - see report
        if batches < 3:  # noqa: PLR2004 - two intervals are the least that shows a rate
            raise ValueError(f"batches must be at least 3, not {batches}")
        context = spark.sparkContext
        self.spark = spark
        self.application = {"id": context.applicationId, "name": context.appName, "ui": context.uiWebUrl}
        self.stopped = False
        self._batches = batches
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._head = json.dumps(
            {
                "format": FORMAT,
                "spark": context.version,
                "application": self.application,
                "started": time.time(),
                "settings": _settings(spark),
            }
        )
        self._address = (host, port)
        self._server: _Server | None = None
        self._stop = threading.Event()
        error = self._bind()
        if error is not None:
            log.error(
                "cannot serve the report on %s port %d: %s; the job goes on, but the autoscaler cannot see it; "
                "free the port or give report(spark, port=...) another (it is tried again every %g s)",
                host,
                port,
                error.strerror or error,
                REBIND_EVERY,
            )
        self._thread = threading.Thread(target=self._serve, name="autoscaler-report", daemon=True)
        self._thread.start()
        self._listener = _listener(self)
        spark.streams.addListener(self._listener)

    @property
    def port(self) -> int | None:
        """The port it listens on, or None while the port is taken by somebody else."""
        server = self._server
        return None if server is None else int(server.server_address[1])

    def stop(self) -> None:
        """Stop listening and serving. It may be called twice."""
        if self.stopped:
            return
        self.stopped = True
        self._stop.set()
        try:
            self.spark.streams.removeListener(self._listener)
        except Exception:
            log.debug("the listener went with its session", exc_info=True)
        self._thread.join(2 * LOOK_UP_EVERY)

    def body(self) -> bytes:
        """The report as it is served."""
        with self._lock:
            runs = ", ".join(run.body() for run in self._runs.values())
        return f'{{"now": {time.time():.3f}, {self._head[1:-1]}, "queries": [{runs}]}}'.encode()

    # what the listener tells

    def on_started(self, query: str, run: str, name: str | None) -> None:
        """A query has started."""
        with self._lock:
            self._run(query, run, name)

    def on_progress(self, text: str) -> None:
        """A batch has completed; `text` is its progress as Spark writes it."""
        received = time.time()
        progress = json.loads(text)
        entry = json.dumps(trim(progress, received))
        with self._lock:
            run = self._run(progress["id"], progress["runId"], progress.get("name"))
            run.progress.append(entry)
            first = run.head["trigger"] is None
        if first:
            trigger = _trigger(self.spark, progress["id"])
            with self._lock:
                run.head["trigger"] = trigger
                run.prepare()

    def on_idle(self, query: str, run: str) -> None:
        """A query is alive and had nothing to do."""
        with self._lock:
            idle = self._run(query, run, None)
            idle.head["idle"] = time.time()
            idle.prepare()

    def on_terminated(self, query: str, run: str, exception: str | None) -> None:
        """A query has ended; `exception` says why when it failed."""
        with self._lock:
            ended = self._run(query, run, None)
            ended.head["terminated"] = time.time()
            # The first line says what happened; the stack trace is in the driver's log.
            ended.head["exception"] = exception.strip().splitlines()[0][:500] if exception else None
            ended.prepare()

    def _run(self, query: str, run: str, name: str | None) -> _Run:
        known = self._runs.get(run)
        if known is not None and name is not None and known.head["name"] is None:
            known.head["name"] = name
            known.prepare()
        if known is None:
            known = self._runs[run] = _Run(query, run, name, time.time(), self._batches)
            ended = [key for key, old in self._runs.items() if old.head["terminated"] is not None]
            for key in ended[: max(0, len(self._runs) - KEPT_RUNS)]:
                del self._runs[key]
        return known

    # serving

    def _bind(self) -> OSError | None:
        try:
            server = _Server(self._address, _Handler)
        except OSError as error:
            return error
        server.reporter = self
        self._server = server
        log.info("serving the report on http://%s:%s/v1/progress", self._address[0], self.port)
        return None

    def _serve(self) -> None:
        while self._server is None:
            if self._stop.wait(REBIND_EVERY):
                return
            self._bind()
        with self._server as server:
            while not self._stop.is_set():
                server.handle_request()  # returns after LOOK_UP_EVERY without one


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    timeout = LOOK_UP_EVERY
    reporter: Reporter


class _Handler(BaseHTTPRequestHandler):
    timeout = SOCKET_TIMEOUT
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:  # the name is the base class's
        path = self.path.partition("?")[0].rstrip("/")
        if path == "/v1/progress":
            self._answer(200, "application/json", self.server.reporter.body())
        elif path == "/healthz":
            self._answer(200, "text/plain", b"ok\n")
        else:
            self._answer(404, "text/plain", b"try /v1/progress or /healthz\n")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        log.debug(format, *args)


def _listener(reporter: Reporter) -> Any:  # noqa: ANN401 - the base class is known only inside a driver
    from pyspark.sql.streaming import StreamingQueryListener  # noqa: PLC0415 - the driver has it, others need not

    class Listener(StreamingQueryListener):  # type: ignore[misc] # pyspark is not followed by mypy
        @property
        def _jlistener(self) -> Any:  # noqa: ANN401 - Spark asks for it when the listener is added
            if not hasattr(self, "_jlistenerobj"):
                try:
                    self._jlistenerobj = _direct(self, reporter)
                except Exception:
                    log.debug("this PySpark has no shorter way to the progress", exc_info=True)
            return super()._jlistener

        @_harmless
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802, ANN401 - Spark's name and type
            reporter.on_started(str(event.id), str(event.runId), event.name)

        @_harmless
        def onQueryProgress(self, event: Any) -> None:  # noqa: N802, ANN401
            reporter.on_progress(event.progress.json)

        @_harmless
        def onQueryIdle(self, event: Any) -> None:  # noqa: N802, ANN401
            reporter.on_idle(str(event.id), str(event.runId))

        @_harmless
        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802, ANN401
            reporter.on_terminated(str(event.id), str(event.runId), event.exception)

    return Listener()


def _direct(listener: Any, reporter: Reporter) -> Any:  # noqa: ANN401 - Spark's types
    """The Java side of the listener, with progress taken as the one text that it is.

    PySpark fetches each number of each event over its gateway, about 20 ms of the driver's CPU for a batch with state.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - the driver has it, others need not
    from pyspark.sql.streaming.listener import JStreamingQueryListener  # noqa: PLC0415

    class Direct(JStreamingQueryListener):  # type: ignore[misc] # pyspark is not followed by mypy
        @_harmless
        def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802, ANN401 - Spark's name and type
            reporter.on_progress(jevent.progress().json())

    return SparkContext._jvm.PythonStreamingQueryListenerWrapper(Direct(listener))  # noqa: SLF001 - no other way


def _settings(spark: Any) -> dict[str, str]:  # noqa: ANN401 - see report
    found: dict[str, str] = {}
    configured = spark.sparkContext.getConf()
    for key in SETTINGS:
        try:
            # A default given here would hide Spark's own, so settings of SQL are asked without one.
            value = spark.conf.get(key) if key.startswith("spark.sql.") else configured.get(key, None)
        except Exception:
            log.debug("setting %s cannot be read", key, exc_info=True)
            continue
        if value is not None:
            found[key] = str(value)
    return found


def _trigger(spark: Any, query: str) -> str:  # noqa: ANN401 - see report
    """The query's trigger as Spark writes it, such as `ProcessingTimeTrigger(2000)`; "unknown" if it is not told."""
    try:
        return str(spark.streams.get(query)._jsq.streamingQuery().trigger().toString())  # noqa: SLF001 - no other way
    except Exception:
        log.debug("the trigger of query %s cannot be read", query, exc_info=True)
        return "unknown"


def trim(progress: Mapping[str, Any], received: float) -> dict[str, Any]:
    """Keep of a query's progress what the autoscaler needs.

    Args:
        progress: the progress as Spark writes it, as a dict.
        received: driver's time at which it was received, seconds since 1970.
    """
    return {
        "batchId": progress["batchId"],
        "start": datetime.fromisoformat(progress["timestamp"]).timestamp(),
        "received": round(received, 3),
        "rows": progress.get("numInputRows"),
        "durationMs": progress.get("durationMs", {}),
        "sources": [
            {
                "description": str(source.get("description", ""))[:200],
                "rows": source.get("numInputRows"),
                "start": total(source.get("startOffset")),
                "end": total(source.get("endOffset")),
                "latest": total(source.get("latestOffset")),
                "partitions": partitions(source.get("endOffset")),
            }
            for source in progress.get("sources", ())
        ],
        "state": [
            {
                "operator": operator.get("operatorName"),
                "rows": operator.get("numRowsTotal"),
                "partitions": operator.get("numShufflePartitions"),
            }
            for operator in progress.get("stateOperators", ())
        ],
    }


def total(offset: object) -> int | None:
    """Sum of the positions in an offset, or None when it is not made of whole numbers.

    Offsets come as objects or as strings of JSON: `{"topic": {"0": 123}}`, `{"0": 123}`, `5`, `null`, "null".
    """
    numbers = _numbers(offset)
    return sum(numbers) if numbers else None


def partitions(offset: object) -> int | None:
    """How many positions an offset has, or None when it is not made of whole numbers."""
    return len(_numbers(offset)) or None


def _numbers(offset: object) -> list[int]:
    """The whole numbers that an offset is made of; empty when it holds anything else."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return []
    if isinstance(offset, bool):
        return []
    if isinstance(offset, int):
        return [offset]
    if not isinstance(offset, Mapping):
        return []
    numbers: list[int] = []
    for part in offset.values():
        below = [] if isinstance(part, str) else _numbers(part)
        if not below:
            return []
        numbers += below
    return numbers
