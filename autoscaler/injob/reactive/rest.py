"""The REST API of a reactive job, compatible with Flink 2.3. The server has its own thread and event loop.

This module has the paths, the changes and their authorization. `rest_answers` has the responses to read requests. If
Flink responds 500 to a mistake of the client, this server responds 4xx and says what to do.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Protocol

from aiohttp import web

from autoscaler.http_connections import Connections
from autoscaler.injob.reactive import rest_answers as answers
from autoscaler.injob.reactive import rest_metrics as metrics
from autoscaler.injob.reactive.rest_answers import STATUS, TERMINAL, Question, RequestError, max_parallelism, unresolved
from autoscaler.injob.reactive.snapshot import Snapshot, State
from autoscaler.schedulers.slots import Bounds

MAX_BODY = 1 << 20
"""Maximum bytes of a request's body."""
BODY_TIMEOUT = 20.0
"""Seconds within which a request's body must arrive. Below `http_connections.ANSWER_TIMEOUT`, so that 408 is sent."""
ACCEPTING = 3
"""Loop iterations after which an accepted connection is registered with the server, which can then close it."""
MAX_ERRORS = 20
MAX_INT = 1 << 31

ID = r"[0-9a-fA-F]{32}"
PATH_PARAMETERS = {"job": "jobid", "vertex": "vertexid", "trigger": "triggerid", "rescale": "rescaleuuid"}
HOW_TO_PUT = (
    'Send {"<vertex id>": {"parallelism": {"lowerBound": 1, "upperBound": 4}}, ...} with all vertices that '
    "GET of the same path shows."
)

log = logging.getLogger("autoscaler.injob.reactive.rest")


class Control(Protocol):
    """The job as the server reads and changes it. The server's thread calls these methods; all return at once."""

    def snapshot(self) -> Snapshot:
        """The job as it is now."""
        ...

    def require(self, bounds: Mapping[str, Bounds]) -> None:
        """Set the bounds of every query, by query id."""
        ...

    def request_stop(self) -> str:
        """Stop the job with a last commit. Returns an id for this request, of 32 hexadecimal digits."""
        ...

    def cancel(self) -> None:
        """Stop the job at once."""
        ...

    def stopped(self, trigger: str) -> bool | None:
        """Whether the stop with this request id has completed; None: there was no such request."""
        ...


# ----------------------------------------------------------------------------------------------------------
# bounds


def read_bounds(job: Snapshot, body: object) -> dict[str, Bounds]:
    """Parse and check the bounds in a request's body. Raises RequestError if they cannot be set."""
    if body is None or body == {}:
        raise RequestError(400, f"Request body does not specify resource requirements. {HOW_TO_PUT}")
    if not isinstance(body, dict):
        raise _unexpected("")
    sent = {str(key).lower(): _read_pair(str(key), value) for key, value in body.items()}
    known = {query.id: query.name for query in job.queries}
    errors = [f"Job vertex [{one}] was not found in the JobGraph." for one in sent if one not in known]
    errors += [
        f"The request is incomplete, missing job vertex [{one}] resource requirements."
        for one in known
        if one not in sent
    ]
    most = max_parallelism(job)
    errors += [error for one, (lower, upper) in sent.items() if (error := _bounds_error(one, lower, upper, most))]
    if errors:
        # One line per error, as in Flink; the daemon shows the last line.
        hint = f" {HOW_TO_PUT}" if sent.keys() != known.keys() else ""
        raise RequestError(400, "\n".join(errors[:MAX_ERRORS]) + hint)
    return {one: Bounds(*sent[one]) for one in known}


def _read_pair(key: str, value: object) -> tuple[int, int]:
    """Parse the lower and upper bound of one vertex. Raises RequestError."""
    parallelism = value.get("parallelism") if isinstance(value, dict) else None
    given = parallelism if isinstance(parallelism, dict) else {}
    lower, upper = given.get("lowerBound"), given.get("upperBound")
    # isinstance would accept `true`: bool is a subclass of int.
    if type(lower) is int and type(upper) is int and max(abs(lower), abs(upper)) < MAX_INT and re.fullmatch(ID, key):
        return lower, upper
    raise _unexpected(f" {key[:40]!r}: {str(value)[:80]} is not understood.")


def _bounds_error(one: str, lower: int, upper: int, most: int) -> str | None:
    """Why these bounds are invalid for a vertex, in Flink's words; None: they are valid."""
    if lower < 1 or upper < 1:
        both = f"Both, the requested lower bound [{lower}] and upper bound [{upper}]"
        return f"{both} for job vertex [{one}] must be greater than zero."
    if lower > upper:
        return f"The requested lower bound [{lower}] for job vertex [{one}] is higher than the upper bound [{upper}]."
    if upper > most:
        return (
            f"The newly requested parallelism {upper} for the job vertex {one} exceeds its maximum parallelism {most}."
        )
    return None


def _unexpected(about: str) -> RequestError:
    return RequestError(400, f"Request did not match expected format JobResourceRequirementsBody.{about} {HOW_TO_PUT}")


# ----------------------------------------------------------------------------------------------------------
# changes


@dataclass(frozen=True, slots=True)
class Change:
    """A request that may change the job.

    Attributes:
        question: the job, and the parameters of the request.
        control: the interface to change the job.
        body: the JSON body; None if the body is empty.
    """

    question: Question
    control: Control
    body: object


def put_requirements(change: Change) -> tuple[int, object]:
    """Set the bounds of all queries."""
    job = change.question.job
    if job.settings.get("scheduler-mode", "").strip().lower() == "reactive":
        # Flink's message, which the target flink-requirements recognizes.
        reason = "Cannot change the parallelism of a job running in reactive mode."
        raise RequestError(
            500,
            "Internal server error.",
            f"<Exception on server side:\njava.lang.UnsupportedOperationException: {reason}",
        )
    _refuse_ended(job)
    bounds = read_bounds(job, change.body)
    log.info("new bounds: %s", ", ".join(f"{one} {each.lower} to {each.upper}" for one, each in bounds.items()))
    change.control.require(bounds)
    return 200, {}


def stop(change: Change) -> tuple[int, object]:
    """Stop the job with a last commit. `targetDirectory` is ignored: commits stay in the queries' checkpoints."""
    body = {} if change.body is None else change.body
    expected = {"targetDirectory": str, "drain": bool, "formatType": str, "triggerId": str}
    if not isinstance(body, dict) or any(
        body.get(name) is not None and type(body[name]) is not kind for name, kind in expected.items()
    ):
        error = "Request did not match expected format StopWithSavepointRequestBody. Send {} or no body."
        raise RequestError(400, error)
    if body.get("drain"):
        raise RequestError(400, "drain: Spark cannot end its windows early; leave drain out, or send false.")
    _refuse_ended(change.question.job)
    log.info("a stop with a last commit was requested")
    return 202, {"request-id": change.control.request_stop()}


def cancel(change: Change) -> tuple[int, object]:
    """Stop the job at once."""
    mode = change.question.query.get("mode", "cancel")
    if mode == "stop":
        path = f"/jobs/{change.question.job.id}/stop"
        error = f'The termination mode "stop" has been removed. Use "cancel", or POST {path} for a last commit.'
        raise RequestError(308, error)
    if mode != "cancel":
        raise RequestError(400, unresolved("query", "mode", mode) + " Use mode=cancel.")
    job = change.question.job
    if job.state is not State.CANCELED:
        if job.state in TERMINAL:
            reached = f"the job has already reached another terminal state ({STATUS[job.state]})"
            raise RequestError(409, f"Job cancellation failed because {reached}. Start the job again to run it.")
        log.info("a cancellation was requested")
        change.control.cancel()
    return 202, {}


def stop_status(change: Change) -> tuple[int, object]:
    """Whether a stop has completed."""
    job, trigger = change.question.job, change.question.ids["trigger"]
    done = change.control.stopped(trigger)
    if done is None:
        error = f"There is no savepoint operation with triggerId={trigger} for job {job.id}."
        error += f" POST /jobs/{job.id}/stop starts one."
        raise RequestError(404, error)
    if not done:
        return 200, {"status": {"id": "IN_PROGRESS"}, "operation": None}
    if job.state is State.FAILED and job.failures:
        last = job.failures[-1]
        cause = {"class": last.error, "stack-trace": f"{last.error}: {last.text}", "serialized-throwable": ""}
        return 200, {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": cause}}
    location = job.settings.get("execution.checkpointing.dir", "checkpointLocation of each query")
    return 200, {"status": {"id": "COMPLETED"}, "operation": {"location": location}}


def _refuse_ended(job: Snapshot) -> None:
    if job.state in TERMINAL:
        raise RequestError(409, f"The job has ended ({STATUS[job.state]}). Start it again to change it.")


# ----------------------------------------------------------------------------------------------------------
# paths

READ: Mapping[str, Callable[[Question], object]] = {
    "/overview": answers.overview,
    "/config": answers.config,
    "/jobmanager/config": answers.cluster_config,
    "/taskmanagers": answers.taskmanagers,
    "/taskmanagers/metrics": metrics.taskmanager_metrics,
    "/jobs": answers.jobs,
    "/jobs/overview": answers.jobs_overview,
    "/jobs/{job}": answers.job_details,
    "/jobs/{job}/status": answers.job_status,
    "/jobs/{job}/config": answers.job_config,
    "/jobs/{job}/resource-requirements": answers.requirements,
    "/jobs/{job}/checkpoints": answers.checkpoints,
    "/jobs/{job}/checkpoints/config": answers.checkpoint_config,
    "/jobs/{job}/exceptions": answers.exceptions,
    "/jobs/{job}/rescales": answers.rescales_timeline,
    "/jobs/{job}/rescales/overview": answers.rescales_overview,
    "/jobs/{job}/rescales/history": answers.rescales_history,
    "/jobs/{job}/rescales/summary": answers.rescales_summary,
    "/jobs/{job}/rescales/config": answers.rescales_config,
    "/jobs/{job}/rescales/details/{rescale}": answers.rescale_details,
    "/jobs/{job}/metrics": answers.job_metrics,
    "/jobs/{job}/vertices/{vertex}/subtasks/metrics": metrics.subtask_metrics,
}
CHANGE: Mapping[tuple[str, str], Callable[[Change], tuple[int, object]]] = {
    ("PUT", "/jobs/{job}/resource-requirements"): put_requirements,
    ("POST", "/jobs/{job}/stop"): stop,
    ("PATCH", "/jobs/{job}"): cancel,
    ("GET", "/jobs/{job}/savepoints/{trigger}"): stop_status,
}
Answer = Callable[[Change], tuple[int, object]]


def _reading(read: Callable[[Question], object]) -> Answer:
    return lambda change: (200, read(change.question))


ROUTES: dict[tuple[str, str], Answer] = {("GET", path): _reading(read) for path, read in READ.items()} | dict(CHANGE)
PATTERNS = {
    path: re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))
    # Literal segments first, so that /jobs/overview is not read as a job id.
    for path in sorted({path for _, path in ROUTES}, key=lambda path: path.count("{"))
}


def find_route(method: str, path: str) -> tuple[str, Answer, dict[str, str]]:
    """The path's template, handler and parameters. Raises RequestError: as in Flink, 404 also for a wrong method."""
    plain = re.sub(r"^/v1(?=/)", "", path).rstrip("/")
    found = ((template, pattern.fullmatch(plain)) for template, pattern in PATTERNS.items())
    template, match = next(((template, match) for template, match in found if match), ("", None))
    answer = ROUTES.get((method, template))
    if match is None or answer is None:
        known = ", ".join(sorted(kind for kind, one in ROUTES if one == template))
        hint = f"This path has only {known}." if known else "GET /jobs/overview shows the job."
        text = f"Unable to load requested file {path[:200]}." if method == "GET" else f"Not found: {path[:200]}."
        raise RequestError(404, f"{text} {hint}")
    ids = match.groupdict()
    for name, value in ids.items():
        if not re.fullmatch(ID, value):
            hint = "Expected 32 hexadecimal digits; GET /jobs shows the job's id."
            raise RequestError(400, f"{unresolved('path', PATH_PARAMETERS[name], value)} {hint}")
    return template, answer, {name: value.lower() for name, value in ids.items()}


# ----------------------------------------------------------------------------------------------------------
# the server


def split_address(listen: str) -> tuple[str, int]:
    """Host and port. Raises ValueError."""
    host, _, port = listen.rpartition(":")
    if not host or not re.fullmatch(r"\d{1,5}", port) or int(port) > 65535:  # noqa: PLR2004 - the largest port
        raise ValueError(f"rest is {listen!r}, expected host:port such as 127.0.0.1:8081; port 0 takes a free one")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Server:
    """The HTTP server. It runs in a daemon thread until it is closed. No request raises into the job.

    Args:
        control: the job.
        listen: host and port; port 0 takes a free port.
        token: the bearer token for requests that change something. Without a token, such requests are accepted on
            loopback only.

    Raises:
        ValueError: the address or the token cannot be used.
    """

    def __init__(self, control: Control, listen: str = "127.0.0.1:8081", token: str | None = None) -> None:
        self._host, self._port = split_address(listen)
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise ValueError(
                "the token must be ASCII without spaces, and not empty (is there a line break at its end?)"
            )
        self._control = control
        self._token = token
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()
        self._connections = Connections()

    def start(self) -> str:
        """Start listening, and return the URL. Raises OSError if the server cannot listen on the address."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listener = socket.create_server((self._host, self._port), family=family)
        except OSError as error:
            raise OSError(
                error.errno,
                f"rest: {self._host}:{self._port} cannot be listened on: {error.strerror or error}. Is another job or "
                "Flink running there? Choose another port, or 0 for a free one",
            ) from error
        host, port = listener.getsockname()[:2]
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(listener, ready), name="reactive-rest", daemon=True)
        self._thread.start()
        ready.result()
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def close(self) -> None:
        """Stop the server. Further calls have no effect."""
        thread, loop = self._thread, self._loop
        self._thread = self._loop = None
        if thread is not None and loop is not None:
            loop.call_soon_threadsafe(self._closing.set)
            thread.join()

    def _run(self, listener: socket.socket, ready: Future[None]) -> None:
        try:
            with listener:
                asyncio.run(self._serve(listener, ready))
        except Exception as error:  # the job continues without its REST API
            if ready.done():
                log.exception("the REST API has failed; the job continues without it")
            else:
                ready.set_exception(error)

    async def _serve(self, listener: socket.socket, ready: Future[None]) -> None:
        self._loop = loop = asyncio.get_running_loop()
        application = web.Application(client_max_size=MAX_BODY)
        application.router.add_route("*", "/{path:.*}", self._send)
        runner = web.AppRunner(application, handle_signals=False, shutdown_timeout=0.2)
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - there is one after setup
        try:
            accepting = await self._connections.listen(runner.server, sock=listener)
            ready.set_result(None)
            await self._closing.wait()
            loop.remove_reader(listener)
            for _ in range(ACCEPTING):
                await asyncio.sleep(0)
            accepting.close()
        finally:
            await runner.cleanup()

    async def _send(self, request: web.Request) -> web.Response:
        """Handle a request and send the whole response while the connection counts as busy, which limits its time."""
        with self._connections.busy(request.protocol):
            response = await self._answer(request)
            await response.prepare(request)
            await response.write_eof()
            return response

    async def _answer(self, request: web.Request) -> web.Response:
        headers: Mapping[str, str] = {}
        try:
            status, answer = await self._handle(request)
            text = json.dumps(answer, allow_nan=False)
        except RequestError as refused:
            status, headers = refused.status, refused.headers or {}
            text = json.dumps({"errors": refused.errors})
        except Exception as error:
            log.exception("%s %s could not be answered", request.method, request.path)
            cause = f"<Exception on server side:\n{type(error).__name__}: {error}\nEnd of exception on server side>"
            status, text = 500, json.dumps({"errors": ["Internal server error.", cause]})
        return web.Response(
            status=status, body=text.encode(), headers=headers, content_type="application/json", charset="UTF-8"
        )

    async def _handle(self, request: web.Request) -> tuple[int, object]:
        # DNS rebinding: a web page whose host name resolves to this machine sends its own name as Host. A client behind
        # a tunnel sends localhost.
        if is_loopback(self._host) and not is_loopback(_host(request.headers.get("Host", "localhost"))):
            raise RequestError(421, "The Host header is not of this machine: use localhost or 127.0.0.1 in the URL.")
        template, answer, ids = find_route(request.method, request.path)
        body: object = None
        if request.method != "GET":
            self._authorize(request)
            body = await _read(request)
        job = self._control.snapshot()
        # As in Flink, the metrics of an unknown job are an empty list, not an error.
        if ids.get("job", job.id) != job.id and not template.endswith("/metrics"):
            raise RequestError(404, f"Job {ids['job']} not found. GET /jobs shows the job that runs here.")
        # Flink reads a repeated parameter as a list.
        query = {name: ",".join(request.query.getall(name)) for name in request.query}
        return answer(Change(Question(job, ids, query), self._control, body))

    def _authorize(self, request: web.Request) -> None:
        if self._token is not None:
            expected = f"Bearer {self._token}".encode()
            if not hmac.compare_digest(request.headers.get("Authorization", "").encode("utf-8", "replace"), expected):
                error = "Changes need the job's token: send the header Authorization: Bearer <token>."
                raise RequestError(401, error, headers={"WWW-Authenticate": "Bearer"})
            return
        if not is_loopback(self._host):
            raise RequestError(
                403,
                f"Changes are refused: the job listens on {self._host} without a token. Give it a token, or loopback.",
            )
        # A browser on this machine sends Origin if a web page of any site requests a change.
        origin = request.headers.get("Origin")
        site = re.fullmatch(r"https?://\[?([^/\[\]]+?)\]?(:\d+)?", origin or "http://localhost")
        if site is None or not is_loopback(site[1]):
            raise RequestError(403, "Changes by web pages of other sites are refused. Give the job a token.")


def _host(header: str) -> str:
    """A Host header without its port."""
    found = re.fullmatch(r"\[([^\]]*)\](:\d+)?|([^:]*)(:\d+)?", header)
    return "" if found is None else found[1] or found[3] or ""


async def _read(request: web.Request) -> object:
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            text = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise RequestError(413, f"The request is longer than {MAX_BODY} bytes. {HOW_TO_PUT}") from None
    except TimeoutError:
        raise RequestError(408, f"The request did not arrive within {BODY_TIMEOUT:g} s. Send it again.") from None
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # The handler reports that this is not the format that it expects.
        return text
