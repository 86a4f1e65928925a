"""The HTTP endpoints: health, metrics and a JSON API. All of them are read-only, and every error is JSON."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from statistics import median

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from autoscaler.core.capacity import restart_time
from autoscaler.core.evaluate import allowed
from autoscaler.core.explain import explain
from autoscaler.core.model import Decision, Learned, Rescale
from autoscaler.daemon.controller import Controller
from autoscaler.daemon.metrics import exposition
from autoscaler.daemon.status import DaemonStatus, health
from autoscaler.ports import AutoscalerError, Record, StoreError
from autoscaler.trace.codec import to_json

log = logging.getLogger("autoscaler.daemon.http_api")

MAX_DECISIONS = 10_000
"""Most decisions in one answer."""

_STATUS: web.AppKey[DaemonStatus] = web.AppKey("status")
_REGISTRY: web.AppKey[CollectorRegistry] = web.AppKey("registry")

# A client that does not speak HTTP gets an answer, and cannot fill the log.
_protocol = logging.getLogger("autoscaler.daemon.http_api.protocol")
_protocol.addFilter(lambda line: not (line.exc_info and isinstance(line.exc_info[1], HttpProcessingError)))

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ListenError(AutoscalerError):
    """The address cannot be listened on."""


@asynccontextmanager
async def serve_http(status: DaemonStatus, registry: CollectorRegistry, listen: str) -> AsyncIterator[str]:
    """Serve the endpoints on `host:port` and give their URL; port 0 takes a free one.

    Raises:
        ListenError: the address is in use, not of this machine or not an address.
    """
    runner = web.AppRunner(
        application(status, registry), access_log=None, logger=_protocol, handle_signals=False, shutdown_timeout=1.0
    )
    await runner.setup()
    try:
        host, port = split_address(listen)
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ListenError(
                f"daemon.listen: {listen} cannot be listened on: {error.strerror or error}. "
                "Is another autoscaler running? Choose another port, or 0 for a free one"
            ) from error
        address, number = runner.addresses[0][:2]
        yield f"http://{f'[{address}]' if ':' in address else address}:{number}"
    finally:
        await runner.cleanup()


def split_address(listen: str) -> tuple[str, int]:
    """Host and port of `host:port`, without the brackets around an IPv6 address. Raises ListenError."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or not host:
        raise ListenError(f"daemon.listen: {listen!r} is not an address, expected host:port like 127.0.0.1:8765")
    return host.removeprefix("[").removesuffix("]"), int(port)


def application(status: DaemonStatus, registry: CollectorRegistry) -> web.Application:
    """The web application of a daemon."""
    app = web.Application(middlewares=[_json_errors])
    app[_STATUS], app[_REGISTRY] = status, registry
    app.add_routes(
        [
            web.get("/healthz", _health),
            web.get("/readyz", _ready),
            web.get("/metrics", _metrics),
            web.get("/api/v1/clusters", _clusters),
            web.get("/api/v1/clusters/{name}", _cluster),
            web.get("/api/v1/clusters/{name}/decisions", _decisions),
        ]
    )
    return app


@web.middleware
async def _json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:  # noqa: PLR2004 - not an error
            raise
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        return web.json_response({"error": error.text or error.reason}, status=error.status, headers=headers)
    except StoreError as error:
        return web.json_response({"error": str(error)}, status=503)
    except Exception:
        log.exception("HTTP request failed", extra={"path": request.path})
        return web.json_response({"error": "internal error; the daemon's log has it"}, status=500)


async def _health(request: web.Request) -> web.Response:
    status = request.app[_STATUS]
    now = asyncio.get_running_loop().time()
    overdue = sorted(c.name for c in status.controllers.values() if c.overdue(now))
    # One failing cluster does not trigger a restart; /readyz shows it.
    alive, _ = health(status, now)
    body = {"ok": alive, "clusters": len(status.controllers), "overdue": overdue}
    return web.json_response(body, status=200 if alive else 503)


async def _ready(request: web.Request) -> web.Response:
    status = request.app[_STATUS]
    waiting = sorted(c.name for c in status.controllers.values() if c.decision is None)
    problems = {c.name: c.problem for c in status.controllers.values() if c.problem and c.decision is not None}
    ok = not (waiting or problems or status.store_failure)
    body = {
        "ok": ok,
        "not_observed": waiting,
        "problems": problems,
        "store": status.store_failure or "ok",
        "history": status.history_failure or "ok",
        "reload": list(status.reload_problems) or "ok",
    }
    return web.json_response(body, status=200 if ok else 503)


async def _metrics(request: web.Request) -> web.Response:
    # In a thread: the text of a thousand clusters takes longer than a tick may be late.
    body = await asyncio.to_thread(exposition, request.app[_STATUS], request.app[_REGISTRY])
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _clusters(request: web.Request) -> web.Response:
    status = request.app[_STATUS]
    rows = [_row(status, status.controllers[name]) for name in sorted(status.controllers)]
    return web.json_response({"dry_run": status.dry_run, "clusters": rows})


async def _cluster(request: web.Request) -> web.Response:
    status = request.app[_STATUS]
    controller = _controller(status, request.match_info["name"])
    observation, decision, state = controller.observation, controller.decision, controller.state
    body = {
        **_row(status, controller),
        "remarks": list(controller.remarks),
        "connections": {
            name: connection.problem or "ok" for name, connection in controller.connections.connections().items()
        },
        "learned": None if state is None else _learned(state.learned, status.utc()),
        "state": None if state is None else to_json(state),
        "observation": None if observation is None else to_json(observation),
        "decision": None if decision is None else to_json(decision),
        "explanation": None
        if observation is None or decision is None
        else explain(observation, decision, dry_run=controller.dry_run, failed=_failure(controller, decision)),
    }
    return web.json_response(body)


async def _decisions(request: web.Request) -> web.Response:
    status = request.app[_STATUS]
    controller = _controller(status, request.match_info["name"])
    records = await status.records(controller.name, _limit(request), _until(request))
    decisions = [_record(record, _failure(controller, record.decision)) for record in records]
    return web.json_response({"cluster": controller.name, "decisions": decisions})


def _controller(status: DaemonStatus, name: str) -> Controller:
    controller = status.controllers.get(name)
    if controller is None:
        known = ", ".join(sorted(status.controllers)[:20]) or "none"
        raise web.HTTPNotFound(text=f"there is no cluster {name!r}; there are: {known}")
    return controller


def _limit(request: web.Request) -> int:
    text = request.query.get("limit", "20")
    # Long ones are not converted: Python raises another error for thousands of digits.
    if not text.isdecimal() or len(text) > len(str(MAX_DECISIONS)) or not 1 <= int(text) <= MAX_DECISIONS:
        raise web.HTTPBadRequest(text=f"limit is {text!r}, expected a number from 1 to {MAX_DECISIONS}")
    return int(text)


def _until(request: web.Request) -> datetime | None:
    text = request.query.get("until")
    if text is None:
        return None
    try:
        until = datetime.fromisoformat(text)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"until is {text!r}, expected a time like 2026-01-31T17:05:00Z") from error
    return until if until.tzinfo else until.replace(tzinfo=UTC)


def _failure(controller: Controller, decision: Decision) -> str | None:
    """Why the scale call of this decision failed, where it is the last one; the next decision says it of the others."""
    rescale = None if controller.state is None else controller.state.rescale
    return rescale.error if rescale is not None and rescale.at == decision.at else None


def _record(record: Record, failed: str | None) -> dict[str, object]:
    return {
        "observation": to_json(record.observation),
        "decision": to_json(record.decision),
        "dry_run": record.dry_run,
        "explanation": explain(record.observation, record.decision, dry_run=record.dry_run, failed=failed),
    }


def _row(status: DaemonStatus, controller: Controller) -> dict[str, object]:
    observation, decision, state = controller.observation, controller.decision, controller.state
    spec = controller.cluster.spec
    limits = spec.limits if decision is None else allowed(spec.policies, decision.at, spec.limits)[0].limits
    return {
        "name": controller.name,
        "dry_run": controller.dry_run,
        "at": None if decision is None else decision.at.isoformat(),
        "age": None if decision is None else (status.utc() - decision.at).total_seconds(),
        "min": limits.minimum,
        "max": limits.maximum,
        "current": None if decision is None or observation is None else observation.desired,
        "ready": None if observation is None else observation.ready,
        "proposed": None if decision is None else decision.proposed,
        "desired": None if decision is None else decision.desired,
        "reason": None if decision is None else decision.reason.value,
        "rescale": None if state is None or state.rescale is None else _rescale(state.rescale),
        "missing": {} if observation is None else dict(observation.missing),
        "problem": controller.problem,
    }


def _learned(learned: Learned, now: datetime) -> dict[str, object]:
    """What was learned: ages instead of times, medians instead of lists."""
    seconds = now.timestamp()
    return {
        "capacity": [
            {"replicas": size, "rate": seen.rate, "age": (now - seen.at).total_seconds(), "samples": seen.samples}
            for size, seen in sorted(learned.capacity.items())
        ],
        "durations": {
            direction.value: {
                "phases": {
                    phase.value: {"median": median(last), "samples": len(last)}
                    for phase, last in phases.items()
                    if last
                },
                "restart": restart_time(learned, direction),
            }
            for direction, phases in learned.durations.items()
        },
        "memory": {
            policy: {
                "numbers": {name: number for name, number in memory.items() if not name.endswith("_at")},
                "ages": {
                    name.removesuffix("_at"): seconds - number
                    for name, number in memory.items()
                    if name.endswith("_at")
                },
            }
            for policy, memory in learned.memory.items()
        },
    }


def _rescale(rescale: Rescale) -> dict[str, object]:
    return {
        "before": rescale.before,
        "to": rescale.to,
        "at": rescale.at.isoformat(),
        "cause": rescale.cause.value,
        "phase": rescale.phase.value,
        "error": rescale.error or None,
    }
