"""`POST /api/v1/clusters/{name}/what-if`: simulate another objective or other policies with the recorded load."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median

from aiohttp import web

from autoscaler.core.capacity import source_partitions
from autoscaler.core.model import ClusterSpec, ClusterState, Direction, Phase
from autoscaler.daemon.controller import Controller
from autoscaler.daemon.http_requests import BUSY, CONNECTIONS, STATUS, WhatIfRequest, body_of, controller_of
from autoscaler.daemon.http_series import DEFAULT_SPAN, FIRST, fill
from autoscaler.daemon.renderer import RENDERER
from autoscaler.daemon.series import KEYS, Row, series_document
from autoscaler.daemon.what_if import POINTS, Job, figures_of
from autoscaler.daemon.workload import capacity_at, roles
from autoscaler.simulation.loads import Load
from autoscaler.simulation.plant import METRICS, STEP, PlantSpec

TIME_LIMIT = 60.0
"""Seconds that a simulation may take: a day takes a few."""

LEAST_SPAN = 600.0
"""The least recorded load, in seconds, that can be simulated."""

_LOAD, _CURRENT = KEYS.index("load"), KEYS.index("current")
_MODULE = "autoscaler.daemon.what_if"
_EXPONENTS = (0.5, 1.0)

CAVEAT = (
    "Simulated: a model of the cluster, with the capacity and the start-up time known today, under the recorded load. "
    "Compare it with the present configuration in the same model, and compare that one with what happened."
)


async def what_if(request: web.Request) -> web.Response:
    """The endpoint."""
    status, lock = request.app[STATUS], request.app[BUSY]
    controller = controller_of(status, request.match_info["name"])
    asked = await body_of(request, WhatIfRequest)
    if lock.locked():
        raise web.HTTPServiceUnavailable(text="another simulation is running: try again in a moment")
    request.app[CONNECTIONS].extend(request.protocol, TIME_LIMIT)
    async with lock:
        now = status.utc()
        until = min(asked.until or now, now)
        since = asked.since or max(until, FIRST) - DEFAULT_SPAN
        await fill(request, controller)
        rows, width = controller.series.points(since.timestamp(), until.timestamp(), now.timestamp())
        job, notes = _job(controller, asked, rows, now)
        begin = job.start.timestamp()
        end = begin + job.load.seconds
        found = json.loads(await _simulated(job))
        if "error" in found:
            raise web.HTTPBadRequest(text=found["error"])
        rows = [row for row in rows if begin <= row[0] <= end]
        width = max(width, controller.cluster.interval.total_seconds())
        changes = controller.series.changes(begin, end)
        draw = partial(series_document, rows, begin, end, POINTS, width, changes)
        happened = await request.app[RENDERER].render(draw)
    objective = None if found["objective"] is None else timedelta(seconds=found["objective"])
    figures = {**found["figures"], "happened": figures_of(rows, width, objective, len(happened["decisions"]))}
    answer = {"cluster": controller.name, "simulated": True, "notes": [CAVEAT, *notes]}
    return web.json_response(
        {**answer, "what": found["what"], "happened": happened, "objective": found["objective"], "figures": figures}
    )


async def _simulated(job: Job) -> bytes:
    """The output of the process that simulates a job."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", _MODULE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(TIME_LIMIT):
            answer, _ = await process.communicate(pickle.dumps(job))
    except TimeoutError as error:
        text = f"the simulation took longer than {TIME_LIMIT:g} s: choose a shorter time range"
        raise web.HTTPServiceUnavailable(text=text) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise web.HTTPServiceUnavailable(text=f"the simulation has failed with exit code {process.returncode}")
    return answer


def _job(controller: Controller, asked: WhatIfRequest, rows: Sequence[Row], now: datetime) -> tuple[Job, list[str]]:
    """The job to simulate, and notes about it for the reader. Raises HTTPBadRequest."""
    state, notes = controller.state or ClusterState(), []
    known = [(at, values) for at, values in rows if not math.isnan(values[_LOAD])]
    span = known[-1][0] - known[0][0] if known else 0.0
    if span < LEAST_SPAN:
        raise web.HTTPBadRequest(
            text=f"{span / 60:.0f} minutes of load are recorded in this time, expected at least {LEAST_SPAN / 60:.0f}"
        )
    spec = controller.cluster.spec
    partitions = source_partitions(spec, state.past[-1].engine if state.past else None, state.past)
    sizes = [values[_CURRENT] for _, values in known if not math.isnan(values[_CURRENT])]
    size = max(1, round(sizes[0])) if sizes else max(1, spec.limits.minimum)
    rate, exponent = _capacity(spec, state, partitions, round(median(sizes)) if sizes else size)
    names = _names(controller)
    left_out = sorted({*controller.cluster.metrics} - {*names})
    if left_out:
        notes.append(f"Not simulated: the metrics {', '.join(left_out)}.")
    interval = timedelta(seconds=STEP * max(1, math.ceil(spec.interval.total_seconds() / STEP)))
    if interval != spec.interval:
        notes.append(f"The interval is {interval.total_seconds():g} s: the simulation runs in steps of {STEP:g} s.")
    started = state.learned.durations.get(Direction.UP, {}).get(Phase.READY)
    plant = PlantSpec(gamma=exponent, partitions=partitions)
    if started:
        plant = replace(plant, startup=max(1.0, median(started)))
    job = Job(
        spec=replace(spec, metrics=tuple(names), interval=interval),
        objective=asked.objective,
        policies=asked.policies,
        names=names,
        plant=plant,
        load=Load(spec.name, _steps(known), rate_per_worker=rate),
        size=size,
        start=datetime.fromtimestamp(known[0][0], UTC),
        state=replace(state, past=()),
        at=now,
    )
    return job, notes


def _capacity(spec: ClusterSpec, state: ClusterState, partitions: int | None, size: int) -> tuple[float, float]:
    """Records/s of one worker, and the exponent with which the rate grows with the size. Raises HTTPBadRequest."""
    size = max(size, 1)
    other = 2 * size
    small, large = (capacity_at(spec, state.learned, each, partitions) for each in (size, other))
    if not small or not large:
        text = "the capacity of a worker is not known yet: set capacity.per_replica, or let the job run under load"
        raise web.HTTPBadRequest(text=text)
    least, most = _EXPONENTS
    exponent = min(max(math.log2(large / small), least), most)
    return small / size**exponent, exponent


def _names(controller: Controller) -> dict[str, str]:
    """Metric of the cluster -> metric of the simulation, matched by its role, its name or its query's `metric`."""
    known = roles(controller.cluster.spec)
    parts = {known.arrivals: "arrivals", known.throughput: "throughput", known.lag: "lag"}
    found = {}
    for name, metric in controller.cluster.metrics.items():
        candidates = (parts.get(name), name, getattr(metric.query, "metric", None))
        match = next((each for each in candidates if each in METRICS), None)
        if match is not None:
            found[name] = match
    return found


def _steps(known: Sequence[Row]) -> tuple[float, ...]:
    """The load in each step, interpolated linearly between two readings."""
    begin, steps, place = known[0][0], [], 0
    for number in range(int((known[-1][0] - begin) / STEP)):
        at = begin + number * STEP
        while place + 2 < len(known) and known[place + 1][0] <= at:
            place += 1
        (before, first), (after, second) = known[place], known[place + 1]
        share = (at - before) / (after - before)
        steps.append(max(0.0, first[_LOAD] + share * (second[_LOAD] - first[_LOAD])))
    return tuple(steps)
