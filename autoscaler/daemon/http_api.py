"""The HTTP endpoints: health, metrics and a JSON API.

`http_control` has the endpoints that change something, `http_page` those of the page. Every error is JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from functools import partial
from ipaddress import ip_address
from typing import TypeVar
from urllib.parse import quote, urlsplit

from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from autoscaler.core.explain import explain
from autoscaler.core.model import ClusterState
from autoscaler.core.workload_profile import Profile
from autoscaler.daemon.controller import NOT_OBSERVED, trouble
from autoscaler.daemon.discovery import FleetStatus
from autoscaler.daemon.events import EVENTS, Events, events
from autoscaler.daemon.http_access import ACCESS, Access
from autoscaler.daemon.http_control import routes
from autoscaler.daemon.http_page import page_routes
from autoscaler.daemon.http_requests import (
    BUSY,
    CONNECTIONS,
    STATUS,
    controller_of,
    decision_document,
    failure_of,
    limit_of,
    record_of,
    time_text,
    until_of,
)
from autoscaler.daemon.http_series import series
from autoscaler.daemon.learned import learned_document
from autoscaler.daemon.metrics import exposition, exposition_of_policies
from autoscaler.daemon.peers import FORWARDED, Peers, copies, is_alone
from autoscaler.daemon.renderer import RENDERER, Renderer
from autoscaler.daemon.rows import clusters_beside, row_document
from autoscaler.daemon.status import ClusterSnapshot, DaemonStatus, fleet_of, health, snapshot
from autoscaler.http_connections import Connections
from autoscaler.ports import AutoscalerError, Record, StoreError
from autoscaler.trace.codec import call_failure, to_json

T = TypeVar("T")

log = logging.getLogger("autoscaler.daemon.http_api")

_REGISTRY: web.AppKey[CollectorRegistry] = web.AppKey("registry")
_HOSTS: web.AppKey[frozenset[str]] = web.AppKey("hosts")
_TURNS: web.AppKey[asyncio.Semaphore] = web.AppKey("turns")

_LOCAL = (".localhost", ".svc", ".svc.cluster.local")
"""Suffixes of host names of this machine and of Kubernetes services."""

_AT_ONCE = 8
"""Requests that begin in one iteration of the loop: a tick waits for no more than these, however many clients ask."""

_PART = 64 * 1024

MAX_BODY = 64 * 1024
"""Most bytes of the body of a request."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ListenError(AutoscalerError):
    """The daemon cannot listen on the address."""


@asynccontextmanager
async def serve_http(
    status: DaemonStatus, registry: CollectorRegistry, access: Access, listen: str, hosts: Sequence[str] = ()
) -> AsyncIterator[str]:
    """Serve the endpoints on `host:port` and yield their URL; port 0 takes a free port.

    Args:
        status: the status of the daemon.
        registry: its metrics.
        access: the access control.
        listen: the address, `host:port`.
        hosts: further names under which clients may reach it.

    Raises:
        ListenError: the address is in use, does not belong to this machine, or is not an address.
    """
    host, port = split_address(listen)
    app = application(status, registry, access, {*hosts, host})
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.2)
    await runner.setup()
    assert runner.server is not None  # noqa: S101 - setup() creates the server
    try:
        try:
            listener = await app[CONNECTIONS].listen(runner.server, host, port, tls=access.tls)
        except OSError as error:
            raise ListenError(
                f"daemon.listen: cannot listen on {listen}: {error.strerror or error}. "
                "Is another autoscaler running? Choose another port, or 0 for a free one"
            ) from error
        try:
            address, number = listener.sockets[0].getsockname()[:2]
            scheme = "http" if access.tls is None else "https"
            yield f"{scheme}://{f'[{address}]' if ':' in address else address}:{number}"
        finally:
            listener.close()
    finally:
        app[EVENTS].close()
        app[RENDERER].close()
        await runner.cleanup()


def split_address(listen: str) -> tuple[str, int]:
    """Host and port of `host:port`, without the brackets around an IPv6 address. Raises ListenError."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or not host:
        raise ListenError(f"daemon.listen: {listen!r} is not an address, expected host:port like 127.0.0.1:8765")
    return host.removeprefix("[").removesuffix("]"), int(port)


def application(
    status: DaemonStatus, registry: CollectorRegistry, access: Access, hosts: Iterable[str]
) -> web.Application:
    """The web application of a daemon."""
    app = web.Application(
        middlewares=[_send, _json_errors, _check_host, _check_access, _forward], client_max_size=MAX_BODY
    )
    app[ACCESS] = access
    app[_HOSTS] = frozenset(map(_name, hosts))
    app[STATUS], app[_REGISTRY] = status, registry
    app.on_response_prepare.append(_name_files)
    app[_TURNS] = asyncio.Semaphore(_AT_ONCE)
    app[CONNECTIONS], app[RENDERER], app[EVENTS] = Connections(), Renderer(), Events()
    app[BUSY] = asyncio.Lock()
    app.add_routes(
        [
            web.get("/healthz", _health),
            web.get("/readyz", _ready),
            web.get("/metrics", _metrics),
            web.get("/metrics/policies", _metrics_of_policies),
            *page_routes(),
            *routes(),
            web.get("/api/v1/events", events),
            web.get("/api/v1/clusters", _clusters),
            # A name may contain slashes, percent-encoded or not: a proxy may have decoded them.
            web.get("/api/v1/clusters/{name:.+}/decisions", _decisions),
            web.get("/api/v1/clusters/{name:.+}/series", series),
            web.post("/api/v1/clusters/{name:.+}/what-if", _what_if),
            web.get("/api/v1/clusters/{name:.+}", _cluster),
            web.get("/api/v1/fleets", _fleets),
        ]
    )
    return app


async def _name_files(request: web.Request, response: web.StreamResponse) -> None:
    """Add headers that name the daemon's configuration and the directory of its history.

    By the configuration, a client recognizes that it has reached another daemon. From the files of the history, it
    reads decisions that the daemon does not keep any more.
    """
    status = request.app[STATUS]
    response.headers["Autoscaler-Config"] = quote(os.fsencode(status.config.path.absolute()))
    response.headers["Autoscaler-History"] = quote(os.fsencode(status.history.directory.absolute()))
    # Names and error texts come from outside: a browser must not interpret an answer as a page.
    response.headers["X-Content-Type-Options"] = "nosniff"


@web.middleware
async def _send(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a request and send the whole answer within the time that a connection may take."""
    with request.app[CONNECTIONS].busy(request.protocol):
        if request.match_info.handler is not events:  # event streams have their own turns, and wait for them uncounted
            async with request.app[_TURNS]:
                await asyncio.sleep(0)
        response = await handler(request)
        await response.prepare(request)
        await response.write_eof()
        return response


@web.middleware
async def _json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:  # noqa: PLR2004 - not an error
            raise
        headers = {name: error.headers[name] for name in (hdrs.ALLOW, hdrs.WWW_AUTHENTICATE) if name in error.headers}
        return web.json_response({"error": error.text or error.reason}, status=error.status, headers=headers)
    except StoreError as error:
        return web.json_response({"error": str(error)}, status=503)
    except (web.RequestPayloadError, ConnectionResetError):
        why = "the body of the request cannot be read: it was cut off, or is not encoded as its headers say"
        return web.json_response({"error": why}, status=400)
    except Exception:
        log.exception("HTTP request failed", extra={"path": request.path})
        return web.json_response({"error": "internal error; see the daemon's log"}, status=500)


@web.middleware
async def _check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a foreign Host: by DNS rebinding, a page under that name in a user's browser could read everything."""
    host = request.headers.get("Host")
    if host is not None and not _is_ours(host, request.app[_HOSTS]):
        raise web.HTTPMisdirectedRequest(
            text=f"the Host header says {host[:100]!r}, which is not a name of this daemon; if it is, "
            "add it to daemon.hosts"
        )
    return await handler(request)


@web.middleware
async def _check_access(request: web.Request, handler: Handler) -> web.StreamResponse:
    await request.app[ACCESS].check(request)
    return await handler(request)


@web.middleware
async def _forward(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Forward a request about a cluster to the copy that controls it. Every copy can answer for past decisions."""
    status, name = request.app[STATUS], request.match_info.get("name")
    if (
        name is None
        or name in status.controllers
        or name not in status.clusters
        or request.match_info.handler is _decisions
        or FORWARDED in request.headers
    ):
        return await handler(request)
    return await Peers.of(request).forward(request)


def _is_ours(host: str, hosts: frozenset[str]) -> bool:
    """Whether a host is an address, a configured name, or a name that cannot be registered in the public DNS."""
    try:
        name = _name(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
    return name in hosts or (bool(name) and "." not in name) or name.endswith(_LOCAL) or _is_address(name)


def _name(host: str) -> str:
    return host.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


async def _health(request: web.Request) -> web.Response:
    status = request.app[STATUS]
    now = asyncio.get_running_loop().time()
    overdue = sorted(c.name for c in status.controllers.values() if c.overdue(now))
    # One failing cluster does not trigger a restart; /readyz shows it.
    alive, _ = health(status, now)
    body = {"ok": alive, "clusters": len(status.controllers), "overdue": overdue}
    return web.json_response(body, status=200 if alive else 503)


async def _ready(request: web.Request) -> web.Response:
    status = request.app[STATUS]
    waiting = sorted(c.name for c in status.controllers.values() if c.decision is None)
    problems = {c.name: why for c in status.controllers.values() if (why := trouble(c)) not in (None, NOT_OBSERVED)}
    fleets = {fleet.name: why for fleet in status.fleets if (why := _fleet_problem(fleet)) is not None}
    down = {*waiting, *problems}
    ok = not (
        down - status.members.keys() or any(_is_down(fleet, down) for fleet in status.fleets) or status.store_failure
    )
    body = {
        "ok": ok,
        "not_observed": waiting,
        "problems": problems,
        "fleets": fleets,
        "store": status.store_failure or "ok",
        "history": status.history.failure or "ok",
        "reload": _reload(status),
    }
    return web.json_response(body, status=200 if ok else 503)


def _is_down(fleet: FleetStatus, down: Collection[str]) -> bool:
    """Whether a fleet is not under control at all. One bad member of hundreds must not make the daemon not ready."""
    return fleet.failure is not None or (fleet.members > 0 and all(name in down for name in fleet.clusters.values()))


def _fleet_problem(fleet: FleetStatus) -> str | None:
    """Why some members of a fleet are not under control with their present values, or None."""
    if fleet.failure is not None:
        return fleet.failure
    for member, problems in fleet.problems.items():
        more = f"; {len(fleet.problems) - 1} more members have problems" if len(fleet.problems) > 1 else ""
        return f"member {member}: {problems[0]}{more}"
    return None


async def _metrics(request: web.Request) -> web.Response:
    status, registry = request.app[STATUS], request.app[_REGISTRY]
    return await _exposed(request, "metrics", lambda clusters: exposition(status, registry, clusters))


async def _metrics_of_policies(request: web.Request) -> web.Response:
    status = request.app[STATUS]
    return await _exposed(request, "policies", lambda clusters: exposition_of_policies(status, clusters))


async def _exposed(request: web.Request, key: str, text: Callable[[list[ClusterSnapshot]], bytes]) -> web.Response:
    renderer = request.app[RENDERER]

    async def make() -> bytes:
        clusters = await snapshot(request.app[STATUS])
        return await renderer.render(lambda: text(clusters))

    body = await renderer.share(key, make)
    return web.Response(body=_parts(body), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _clusters(request: web.Request) -> web.Response:
    status, renderer = request.app[STATUS], request.app[RENDERER]
    alone = is_alone(request)

    async def make() -> bytes:
        answers = [] if alone else await Peers.of(request).ask(request)
        others = [row for answer in answers for row in answer.body.get("clusters", ())]
        clusters, fleets = await clusters_beside(status, None if alone else others), status.fleets
        dry_run, reload, now = status.dry_run, _reload(status), status.utc()
        loop_time = asyncio.get_running_loop().time()

        def rendered() -> bytes:
            # A cluster that has just been handed over may be in two answers: ours comes last and wins.
            rows = {row["name"]: row for row in (*others, *(row_document(cluster, now) for cluster in clusters))}
            return _json(
                {
                    "dry_run": dry_run,
                    "reload": reload,
                    "copies": copies(status.ownership, answers),
                    "fleets": [_fleet(fleet, loop_time, now) for fleet in fleets],
                    "clusters": [row for _, row in sorted(rows.items())],
                }
            )

        return await renderer.render(rendered)

    body = await renderer.share(("clusters", alone), make)
    return web.Response(body=_parts(body), content_type="application/json")


async def _fleets(request: web.Request) -> web.Response:
    status, renderer = request.app[STATUS], request.app[RENDERER]
    loop_time, now = asyncio.get_running_loop().time(), status.utc()

    async def make() -> bytes:
        return await renderer.render(
            lambda: _json({"fleets": [_fleet(fleet, loop_time, now) for fleet in status.fleets]})
        )

    body = await renderer.share("fleets", make)
    return web.Response(body=_parts(body), content_type="application/json")


async def _what_if(request: web.Request) -> web.StreamResponse:
    """Load the simulator at the first request, because few need it; in a thread, because that would delay ticks."""
    what_if = await asyncio.to_thread(_load_what_if)
    return await what_if(request)


def _load_what_if() -> Handler:
    from autoscaler.daemon.http_what_if import what_if  # noqa: PLC0415 - the import takes a megabyte of memory

    return what_if


def _fleet(fleet: FleetStatus, loop_time: float, now: datetime) -> dict[str, object]:
    return {
        "name": fleet.name,
        "answered_at": time_text(fleet.answered_at),
        "age": None if fleet.answered_at is None else (now - fleet.answered_at).total_seconds(),
        "problem": fleet.failure,
        "failures": fleet.failures,
        "members": fleet.members,
        "clusters": len(fleet.clusters),
        "held": [
            {"member": member, "cluster": fleet.clusters.get(member), "age": loop_time - since}
            for member, since in fleet.held.items()
        ],
        "refused": [
            {"member": member, "cluster": fleet.clusters.get(member), "problems": list(problems)}
            for member, problems in fleet.problems.items()
        ],
    }


async def _cluster(request: web.Request) -> web.Response:
    status = request.app[STATUS]
    controller = controller_of(status, request.match_info["name"])
    connections = {name: each.problem or "ok" for name, each in controller.connections.connections().items()}
    cluster = ClusterSnapshot.of(controller, fleet_of(status.members, controller.name))
    now = status.utc()
    known = {"reload": _reload(status), "remarks": list(controller.remarks), "connections": connections}
    profile = controller.connections.profile(controller.cluster)
    took = controller.series.settled()
    body = await request.app[RENDERER].render(lambda: _json(_details(cluster, known, took, profile, now)))
    return web.Response(body=_parts(body), content_type="application/json")


def _details(
    cluster: ClusterSnapshot,
    known: Mapping[str, object],
    took: Sequence[tuple[int, int, float]],
    profile: Profile | None,
    now: datetime,
) -> dict[str, object]:
    observation, decision, state = cluster.observation, cluster.decision, cluster.state
    return {
        **row_document(cluster, now),
        **known,
        "learned": None if state is None else learned_document(cluster.cluster.spec, state, took, profile, now),
        "state": None if state is None else to_json(state),
        "observation": None if observation is None else to_json(observation),
        "decision": None if decision is None else to_json(decision),
        "explanation": None
        if observation is None or decision is None
        else explain(observation, decision, dry_run=cluster.dry_run, failed=failure_of(state, decision)),
    }


async def _decisions(request: web.Request) -> web.Response:
    status, renderer, name = request.app[STATUS], request.app[RENDERER], request.match_info["name"]
    if name in status.clusters and name not in status.controllers:
        state = await status.store.load(name)
    else:
        state = controller_of(status, name).state
    pages = status.store.pages(name, limit_of(request), until_of(request))
    parts = _decision_list(name, state, pages, renderer)
    # Read the first page before the answer begins: after that, an error can only close the connection.
    first = await anext(parts)
    return web.Response(body=_joined(first, parts), content_type="application/json")


async def _decision_list(
    name: str, state: ClusterState | None, pages: AsyncGenerator[list[bytes], None], renderer: Renderer
) -> AsyncGenerator[bytes, None]:
    newer: Record | None = None

    def rendered(page: list[bytes]) -> str:
        nonlocal newer
        texts = []
        for line in page:
            record = record_of(line)
            failed = failure_of(state, record.decision) or call_failure(record, newer)
            texts.append(json.dumps(decision_document(record, failed)))
            newer = record
        return ", ".join(texts)

    before = f'{{"cluster": {json.dumps(name)}, "decisions": ['
    async with aclosing(pages):
        async for page in pages:
            text = await renderer.render(partial(rendered, page))
            yield f"{before}{text}".encode()
            before = ", "
    yield f"{'' if before == ', ' else before}]}}".encode()


async def _joined(first: bytes, parts: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(parts):
        yield first
        async for part in parts:
            yield part


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    """A long answer in parts: for a slow client, only the next part is copied, not all that it has not read yet."""
    for start in range(0, len(body), _PART):
        yield body[start : start + _PART]


def _json(document: object) -> bytes:
    return json.dumps(document).encode()


def _reload(status: DaemonStatus) -> list[str] | str:
    return list(status.reload_problems) or "ok"
