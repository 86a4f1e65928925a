"""The report: a small HTTP endpoint in the driver that serves the progress of the application's streaming queries.

No REST endpoint of Spark publishes the progress of Structured Streaming; only a listener inside the driver receives it.
The listener keeps the last batches of each query as serialised JSON, so that a batch costs one serialisation and a poll
costs one join of strings. This module must not disturb the job: it logs errors and never raises them into Spark.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import index
from typing import Any, ParamSpec

FORMAT = 1
"""Version of the report's format."""

DEFAULT_PORT = 4050
"""Port of the report if neither the call nor `AUTOSCALER_REPORT_PORT` sets one."""

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
    "spark.shuffle.manager",
    "spark.shuffle.sort.io.plugin.class",
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.noDataProgressEventInterval",
    "spark.sql.streaming.stateStore.providerClass",
    "spark.storage.decommission.enabled",
    "spark.storage.decommission.replicationReattemptInterval",
    "spark.storage.decommission.shuffleBlocks.enabled",
    "spark.task.cpus",
    "spark.task.maxFailures",
)
"""The only settings that leave the driver; none of them can hold a secret."""

MAX_RUNS = 16
REBIND_INTERVAL = 2.0
POLL_INTERVAL = 0.2
SOCKET_TIMEOUT = 10.0
MAX_CLIENTS = 32
MAX_POSITION = 1 << 62
"""Positions at or above this limit are reported as unknown: a number too large for a client spoils the whole report."""

log = logging.getLogger("autoscaler.injob")

MAX_ERROR = 100_000
"""Characters of an error's text that are searched: the time of a search grows with the square of the length."""
_RAISED = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t]{2}.*\n|[ \t]?\n)* ?"
    r"(?:py4j\.protocol\.Py4JJavaError: .*\n ?: )?(\S.*)"
)
"""py4j's own line names only the call; the exception raised in Java is in the line after it."""
_MARGIN = re.compile(r"^ *\|", re.MULTILINE)
"""The margin of the lines of an exception group; Spark removes it from most texts, but not the space after it."""

P = ParamSpec("P")
Waiting = Callable[[Mapping[str, Any]], int | None]
"""Counts the waiting rows of a job's own source: see `report`."""


def report(
    spark: Any,  # noqa: ANN401 - a SparkSession; pyspark is not imported for the sake of its type
    host: str = "127.0.0.1",
    port: int | None = None,
    batches: int = 120,
    waiting: Waiting | None = None,
) -> Reporter:
    """Serve the progress of the session's streaming queries for the autoscaler.

    Call this function once, before the queries start. Queries that already run are reported from their next batch on. A
    second call for the same session returns the same reporter. If the port is in use, the job continues: the reporter
    logs the error and retries the port every two seconds, since usually a former driver is still shutting down. It
    never moves to another port, where the autoscaler would not find it.

    The function raises nothing. After any error (a session of Spark Connect, a stopped session, an invalid port), it
    logs the error, the job continues, and the returned reporter is stopped.

    Args:
        spark: the SparkSession whose queries are reported, in the driver's own process.
        host: the address to listen on, `::` for all IPv6 addresses too; default loopback. The report has no
            authentication.
        port: the port to listen on, 0 for any free port; default `AUTOSCALER_REPORT_PORT`, else 4050.
        batches: how many batches of each query are kept, at least 3.
        waiting: a function for a query whose only source does not report its newest offset, such as files. The reporter
            calls it after each batch with the batch's progress as Spark writes it. It returns how many rows waited when
            the batch began, without the rows that the batch read; None: not known. Lag and arrivals then count these
            rows.
    """
    reporter = Reporter(spark, host, DEFAULT_PORT if port is None else port, batches, waiting)
    try:
        return _reporter(reporter, port)
    except _UnusableError as error:
        log.error("no report is served, so the autoscaler cannot see this job, which continues: %s", error)  # noqa: TRY400 - the message is complete
    except Exception:
        log.exception("no report is served, so the autoscaler cannot see this job, which continues")
    reporter.stop()
    return reporter


class _UnusableError(Exception):
    """An argument of `report` cannot be used."""


def _port(port: object) -> int:
    where = "port"
    if port is None:
        where, text = "AUTOSCALER_REPORT_PORT", os.environ.get("AUTOSCALER_REPORT_PORT", str(DEFAULT_PORT))
        try:
            port = int(text)
        except ValueError:
            raise _UnusableError(f"AUTOSCALER_REPORT_PORT must be a port number, not {text!r}") from None
    if not isinstance(port, int) or not 0 <= port <= 65535:  # noqa: PLR2004 - the range of ports
        raise _UnusableError(f"{where} must be a number from 0 to 65535, not {port!r}")
    return port


_lock = threading.Lock()
_running: list[Reporter] = []


def _reporter(reporter: Reporter, port: int | None) -> Reporter:
    with _lock:
        for running in _running:
            if running.spark is reporter.spark and not running.stopped:
                return running
        application = _context(reporter.spark).applicationId
        for running in list(_running):
            if running.stopped or running.application["id"] != application:
                # The former application of this process has ended; the new one needs its port.
                running.stop()
                _running.remove(running)
        reporter.start(_port(port))
        _running.append(reporter)
    return reporter


def _context(spark: Any) -> Any:  # noqa: ANN401 - Spark's types
    """The session's SparkContext. Raises _UnusableError if this process has none."""
    if ".connect." in type(spark).__module__:
        raise _UnusableError(
            "the session is one of Spark Connect: its driver is another process, and a session in that process does "
            "not see its queries; start the queries in the driver, with a session that has a sparkContext"
        )
    context = spark.sparkContext
    if getattr(context, "_jsc", context) is None:
        raise _UnusableError("the session is stopped; call report(spark) with a session that runs")
    return context


def _abandon_in_child() -> None:
    """Close the port in a forked child, which would otherwise keep it in use after the driver has ended."""
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.Lock()
    for running in _running:
        running.abandon()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_in_child)


def _never_raises(function: Callable[P, None]) -> Callable[P, None]:
    """Log exceptions instead of raising them into Spark's listener thread."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception:
            log.exception("an event of a query could not be processed; the job is not affected")

    return call


class _Run:
    """One run of one query, in the report's format."""

    def __init__(self, query: str, run: str, name: str | None, started: float, batches: int, restarts: int = 0) -> None:
        self.head: dict[str, Any] = {
            "id": query,
            "runId": run,
            "name": name,
            "trigger": None,
            "started": started,
            "restarts": restarts,
            "idle": None,
            "terminated": None,
            "exception": None,
        }
        self.progress: deque[str] = deque(maxlen=batches)
        self.read = 0

    def body(self, working: bool | None = None) -> str:
        progress = ", ".join(tuple(self.progress))
        return f'{json.dumps(self.head)[:-1]}, "working": {json.dumps(working)}, "progress": [{progress}]}}'


class Reporter:
    """Listens to the queries of one session and serves their progress. `report` creates it.

    Attributes:
        spark: the session.
        application: id, name and UI address of the application; empty before it is known.
        stopped: whether `stop` was called, or the reporter could not be started.
    """

    def __init__(
        self,
        spark: Any,  # noqa: ANN401
        host: str,
        port: int,
        batches: int,
        waiting: Waiting | None = None,
    ) -> None:
        self.spark = spark
        self.application: dict[str, Any] = {}
        self.stopped = False
        self._batches = batches
        self._waiting = waiting
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._head = "{}"
        self._address = (host, port)
        self._server: _Server | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._listener: Any = None

    def start(self, port: int) -> None:
        """Listen to the session and serve on `port`. Raises _UnusableError, and whatever Spark raises."""
        batches: object = self._batches
        if not isinstance(batches, int) or batches < 3:  # noqa: PLR2004 - two intervals show a rate
            raise _UnusableError(f"batches must be a number of at least 3, not {batches!r}")
        context = _context(self.spark)
        self.application = {"id": context.applicationId, "name": context.appName, "ui": context.uiWebUrl}
        self._head = json.dumps(
            {
                "format": FORMAT,
                "spark": context.version,
                "application": self.application,
                "started": time.time(),
                "settings": _settings(self.spark),
            }
        )
        listener = query_listener(
            started=self.on_started, progressed=self.on_progress, idle=self.on_idle, terminated=self.on_terminated
        )
        self.spark.streams.addListener(listener)
        self._listener = listener
        host = self._address[0]
        self._address = (host, port)
        error = self._bind()
        if error is not None:
            log.error(
                "cannot serve the report on %s port %d: %s; the job continues, but the autoscaler cannot see it; "
                "free the port or pass another one to report(spark, port=...) (retrying every %g s)",
                host,
                port,
                getattr(error, "strerror", None) or error,
                REBIND_INTERVAL,
            )
        self._thread = threading.Thread(target=self._serve, name="autoscaler-report", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int | None:
        """The port that the reporter listens on, or None while another process uses it."""
        server = self._server
        return None if server is None else int(server.server_address[1])

    def stop(self) -> None:
        """Stop listening and serving. Further calls have no effect."""
        if self.stopped:
            return
        self.stopped = True
        self._stop.set()
        if self._listener is not None:
            try:
                self.spark.streams.removeListener(self._listener)
            except Exception:
                log.debug("the listener ended with its session", exc_info=True)
        if self._thread is not None:
            self._thread.join(2 * POLL_INTERVAL)

    def abandon(self) -> None:
        """Stop in a forked child, which has neither the reporter's thread nor a connection to Spark."""
        self.stopped = True
        self._stop.set()
        server, self._server = self._server, None
        if server is not None:
            server.socket.close()

    def body(self) -> bytes:
        """The report as it is served."""
        with self._lock:
            active = [run.head for run in self._runs.values() if run.head["terminated"] is None]
        working = {head["runId"]: is_working(self.spark, head["id"]) for head in active}
        with self._lock:
            runs = ", ".join(run.body(working.get(key)) for key, run in self._runs.items())
        clocks = f'"now": {time.time():.3f}, "steady": {time.monotonic():.3f}'
        return f'{{{clocks}, {self._head[1:-1]}, "queries": [{runs}]}}'.encode()

    # events of the listener

    def on_started(self, query: str, run: str, name: str | None) -> None:
        """A query has started."""
        with self._lock:
            self._run(query, run, name)

    def on_progress(self, text: str) -> None:
        """A batch has completed; `text` is its progress as Spark writes it."""
        received, steady = time.time(), time.monotonic()
        progress = json.loads(text)
        entry = trim(progress, received) | {"steady": round(steady, 3)}
        waiting = self._waits(progress)
        with self._lock:
            run = self._run(progress["id"], progress["runId"], progress.get("name"))
            if self._waiting is not None:
                entry["sources"], run.read = (
                    with_row_positions(entry["sources"], run.read, waiting),
                    run.read + (entry["rows"] or 0),
                )
            run.progress.append(json.dumps(entry | {"idle": run.head["idle"]}))
        if run.head["trigger"] is None:
            trigger = read_trigger(self.spark, progress["id"])
            with self._lock:
                run.head["trigger"] = trigger

    def _waits(self, progress: Mapping[str, Any]) -> int | None:
        try:
            return None if self._waiting is None else _count(self._waiting(progress))
        except Exception:
            log.exception("the number of waiting rows is not known; the job is not affected")
            return None

    def on_idle(self, query: str, run: str) -> None:
        """A query is alive and has nothing to do."""
        with self._lock:
            self._run(query, run, None).head["idle"] = time.time()

    def on_terminated(self, query: str, run: str, exception: str | None) -> None:
        """A query has ended; `exception` is the reason when it failed."""
        with self._lock:
            head = self._run(query, run, None).head
            head["terminated"] = time.time()
            head["exception"] = reason(exception) if exception else None

    def _run(self, query: str, run: str, name: str | None) -> _Run:
        known = self._runs.get(run)
        if known is not None and name is not None and known.head["name"] is None:
            known.head["name"] = name
        if known is None:
            earlier = [old.head for old in self._runs.values()]
            mine = [head for head in earlier if head["id"] == query or (name is not None and head["name"] == name)]
            # Old runs are removed below, so a run's restarts continue the count of the runs before it.
            restarts = max((head["restarts"] + 1 for head in mine), default=0)
            known = self._runs[run] = _Run(query, run, name, time.time(), self._batches, restarts)
            ended = [key for key, old in self._runs.items() if old.head["terminated"] is not None]
            for key in ended[: max(0, len(self._runs) - MAX_RUNS)]:
                del self._runs[key]
        return known

    # serving

    def _bind(self) -> OSError | UnicodeError | None:
        try:
            server = _Server(self._address, _Handler)
        except (OSError, UnicodeError) as error:  # UnicodeError: the host is not a valid name
            return error
        server.reporter = self
        self._server = server
        host = self._address[0]
        log.info("serving the report on http://%s:%s/v1/progress", f"[{host}]" if ":" in host else host, self.port)
        return None

    def _serve(self) -> None:
        while self._server is None:
            if self._stop.wait(REBIND_INTERVAL):
                return
            self._bind()
        with self._server as server:
            while not self._stop.is_set():
                server.handle_request()  # returns after POLL_INTERVAL without a request


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = MAX_CLIENTS
    timeout = POLL_INTERVAL
    reporter: Reporter

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.Semaphore(MAX_CLIENTS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as its parent's
        """Serve a client in a thread of its own; close connections above MAX_CLIENTS, to limit the driver's threads."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as its parent's
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - as its parent's
        """Keep a disconnected client off the driver's standard error."""
        log.debug("client %s of the report could not be answered: %s", client_address, sys.exc_info()[1])


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


def _ignore(*_: object) -> None:
    """Ignore an event."""


def query_listener(
    *,
    started: Callable[[str, str, str | None], None] = _ignore,
    progressed: Callable[[str], None] = _ignore,
    idle: Callable[[str, str], None] = _ignore,
    terminated: Callable[[str, str, str | None], None] = _ignore,
) -> Any:  # noqa: ANN401 - the base class is known only inside a driver
    """A StreamingQueryListener that calls functions with the ids of query and run, and logs what they raise.

    `started` also gets the query's name, and `terminated` the reason of a failure. `progressed` gets only the progress
    as Spark writes it. PySpark fetches each number of each event over its gateway, which costs about 20 ms of the
    driver's CPU for a batch with state. If the PySpark version permits, the listener fetches the progress as one JSON
    text instead.
    """
    from pyspark.sql.streaming import StreamingQueryListener  # noqa: PLC0415 - the driver has it, others need not

    class Listener(StreamingQueryListener):  # type: ignore[misc] # pyspark is not followed by mypy
        @_never_raises
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802, ANN401 - Spark's name and type
            started(str(event.id), str(event.runId), event.name)

        @_never_raises
        def onQueryProgress(self, event: Any) -> None:  # noqa: N802, ANN401
            progressed(event.progress.json)

        @_never_raises
        def onQueryIdle(self, event: Any) -> None:  # noqa: N802, ANN401
            idle(str(event.id), str(event.runId))

        @_never_raises
        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802, ANN401
            terminated(str(event.id), str(event.runId), event.exception)

    listener = Listener()
    try:
        from pyspark import SparkContext  # noqa: PLC0415 - the driver has it, others need not
        from pyspark.java_gateway import ensure_callback_server_started  # noqa: PLC0415
        from pyspark.sql.streaming.listener import JStreamingQueryListener  # noqa: PLC0415

        class Direct(JStreamingQueryListener):  # type: ignore[misc] # pyspark is not followed by mypy
            @_never_raises
            def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802, ANN401 - Spark's name and type
                progressed(jevent.progress().json())

        ensure_callback_server_started(SparkContext._gateway)  # noqa: SLF001 - there is no public way
        streaming = SparkContext._jvm.org.apache.spark.sql.streaming  # noqa: SLF001 - as above
        # PySpark uses this object when the listener is added.
        listener._jlistenerobj = streaming.PythonStreamingQueryListenerWrapper(Direct(listener))  # noqa: SLF001
    except Exception:
        log.debug("this PySpark version cannot fetch the progress as one text", exc_info=True)
    return listener


def _settings(spark: Any) -> dict[str, str]:  # noqa: ANN401 - see report
    found: dict[str, str] = {}
    configured = spark.sparkContext.getConf()
    for key in SETTINGS:
        try:
            # A default passed here would hide Spark's own default, so SQL settings are read without one.
            value = spark.conf.get(key) if key.startswith("spark.sql.") else configured.get(key, None)
        except Exception:
            log.debug("setting %s cannot be read", key, exc_info=True)
            continue
        if value is not None:
            found[key] = str(value)
    return found


def read_trigger(spark: Any, query: str) -> str:  # noqa: ANN401 - see report
    """The query's trigger as Spark writes it, such as `ProcessingTimeTrigger(2000)`; "unknown" if it cannot be read."""
    try:
        return str(spark.streams.get(query)._jsq.streamingQuery().trigger().toString())  # noqa: SLF001 - no other way
    except Exception:
        log.debug("the trigger of query %s cannot be read", query, exc_info=True)
        return "unknown"


def is_working(spark: Any, query: str) -> bool | None:  # noqa: ANN401 - see report
    """Whether a batch with data runs at this moment; None: not known.

    The query's Spark jobs do not tell: they do not include work of `foreachBatch` in the driver or in other threads. An
    active trigger does not tell either: the query may only be checking for new data.
    """
    try:
        status = spark.streams.get(query).status
        return bool(status["isTriggerActive"] and status["isDataAvailable"])
    except Exception:
        log.debug("the status of query %s cannot be read", query, exc_info=True)
        return None


def reason(exception: str) -> str:
    """Why a query failed, in one line: the error of the last Python traceback. The driver's log has the full text."""
    return (raised(exception) or exception.strip().partition("\n")[0])[:500] or "no error message"


def raised(text: str) -> str:
    """The error raised in Python: the first line after the last traceback that is not indented; empty if none.

    For an exception group this is its last exception that has a traceback, or else the group itself.
    """
    lines: list[str] = _RAISED.findall(_MARGIN.sub("", text[:MAX_ERROR]))
    return lines[-1] if lines else ""


def trim(progress: Mapping[str, Any], received: float) -> dict[str, Any]:
    """Reduce a query's progress to the fields that the autoscaler needs.

    Args:
        progress: the progress as Spark writes it, as a dict.
        received: when the driver received it, seconds since 1970.
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
                "startPartitions": partitions(source.get("startOffset")),
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


def _count(rows: Any) -> int | None:  # noqa: ANN401 - whatever a function of the job has returned
    """Convert a count, which may be a numpy number, to an int for JSON. Raises TypeError or ValueError."""
    if rows is None:
        return None
    if not 0 <= index(rows) < MAX_POSITION:
        raise ValueError(f"`waiting` returned {rows}, expected a number of rows: 0 or more")
    return index(rows)


def with_row_positions(sources: Sequence[Mapping[str, Any]], read: int, waiting: int | None) -> list[dict[str, Any]]:
    """Give a batch's only source positions counted in rows, if the source does not report its newest offset.

    Args:
        sources: as returned by `trim`.
        read: rows that earlier batches read.
        waiting: rows that this batch left unread; None: not known.
    """
    if len(sources) != 1 or sources[0]["latest"] is not None or sources[0]["rows"] is None:
        return [dict(source) for source in sources]
    done = read + sources[0]["rows"]
    latest = None if waiting is None else done + waiting
    positions = {"start": read, "end": done, "latest": latest, "partitions": 1, "startPartitions": 1}
    return [{**sources[0], **positions}]


def total(offset: object) -> int | None:
    """Sum of the positions in an offset, or None if the offset has other values than whole numbers or is too large.

    Offsets are JSON values or JSON texts: `{"topic": {"0": 123}}`, `{"0": 123}`, `5`, `null`, "null".
    """
    numbers = _numbers(offset)
    return sum(numbers) if numbers and abs(sum(numbers)) < MAX_POSITION else None


def partitions(offset: object) -> int | None:
    """How many positions an offset has, or None if it has other values than whole numbers."""
    return len(_numbers(offset)) or None


def _numbers(offset: object) -> list[int]:
    """The whole numbers in an offset; empty if the offset has any other value."""
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
