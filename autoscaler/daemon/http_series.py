"""`GET /api/v1/clusters/{name}/series`: time series, decisions and rescales of a cluster, for charts."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from aiohttp import hdrs, web

from autoscaler.core.model import ClusterState
from autoscaler.daemon.controller import Controller
from autoscaler.daemon.http_requests import (
    MAX_LISTED,
    STATUS,
    controller_of,
    number_of,
    record_of,
    time_of,
    until_of,
)
from autoscaler.daemon.renderer import RENDERER
from autoscaler.daemon.series import Series, series_document
from autoscaler.ports import Record, StoreError

log = logging.getLogger("autoscaler.daemon.http_series")

DEFAULT_SPAN = timedelta(hours=1)

_LEVEL = 5
"""The compression level: it compresses a week of 113 kB to 8 kB."""

FIRST = datetime(2000, 1, 1, tzinfo=UTC)

LEAST_POINTS, MOST_POINTS, DEFAULT_POINTS = 10, 2000, 600


async def series(request: web.Request) -> web.Response:
    """The endpoint."""
    status, renderer = request.app[STATUS], request.app[RENDERER]
    controller = controller_of(status, request.match_info["name"])
    now = status.utc()
    since, until = range_of(request, now)
    number = number_of(request, "points", DEFAULT_POINTS, LEAST_POINTS, MOST_POINTS)
    await fill(request, controller)
    rows, width = controller.series.points(since, until, now.timestamp())
    changes = controller.series.changes(since, until)
    width = max(width, controller.cluster.interval.total_seconds())

    headers: dict[str, str] = {hdrs.VARY: hdrs.ACCEPT_ENCODING}
    if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
        headers[hdrs.CONTENT_ENCODING] = "gzip"

    def rendered() -> bytes:
        document = series_document(rows, since, until, number, width, changes)
        body = json.dumps({"cluster": controller.name, **document}, allow_nan=False).encode()
        return gzip.compress(body, _LEVEL, mtime=0) if hdrs.CONTENT_ENCODING in headers else body

    return web.Response(body=await renderer.render(rendered), content_type="application/json", headers=headers)


def range_of(request: web.Request, now: datetime) -> tuple[float, float]:
    """Begin and end of the requested time range, in seconds since 1970. Raises HTTPBadRequest."""
    until = min(until_of(request) or now, now)
    since = time_of(request, "from") or max(until, FIRST) - DEFAULT_SPAN
    if not FIRST <= since < until:
        text = (
            f"from is {since.isoformat()}, expected a time of this century, before until ({until.isoformat()}) and now"
        )
        raise web.HTTPBadRequest(text=text)
    return since.timestamp(), until.timestamp()


async def fill(request: web.Request, controller: Controller) -> None:
    """Add, once, the decisions in the state store from before this daemon took the cluster."""
    if not controller.series.filled:
        await request.app[RENDERER].share(("fill", controller.name), lambda: _fill(request, controller))


async def _fill(request: web.Request, controller: Controller) -> None:
    status, renderer, known, state = (
        request.app[STATUS],
        request.app[RENDERER],
        controller.series,
        controller.state,
    )
    records: list[Record] = []
    until = None if known.begun_at is None else known.begun_at - timedelta(microseconds=1)
    try:
        async for page in status.store.pages(controller.name, MAX_LISTED, until):
            records += await renderer.render(partial(list, map(record_of, page)))
    except StoreError as error:
        log.debug("series not filled", extra={"cluster": controller.name, "error": str(error)})
        return
    earlier = await renderer.render(partial(_earlier, controller, state or ClusterState(), records))
    known.fill(earlier)


def _earlier(controller: Controller, state: ClusterState, records: Sequence[Record]) -> Series:
    """The series of records, which come newest first. All of them use the learned state of now."""
    found = Series()
    for record in reversed(records):
        found.add(controller.cluster.spec, state, record)
    return found
