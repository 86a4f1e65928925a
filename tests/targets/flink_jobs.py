"""A JobManager for tests: it keeps the bounds of jobs and answers as a real Flink 2.3 does."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

SEEN: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "flink_requirements.json").read_text())
JID = SEEN["job"]["jid"]
SOURCE, NARROW, SINK = (vertex["id"] for vertex in SEEN["job"]["vertices"])


class FakeFlink:
    """One cluster with one job: a source and a sink with 128 key groups and a vertex with 2 between them.

    Attributes:
        slots: of the cluster. All vertices share slots.
        mode: the scheduler: `adaptive`, `reactive`, `default`, or `old` for a Flink without bounds.
        busy: while true, new bounds are kept but not applied yet.
        state: state of the job.
        jids: ids of the existing jobs of that name.
        puts: the bounds that were put, in their order.
        failing: the answer to every request instead.
        refusal: the answer to new bounds instead.
    """

    def __init__(self) -> None:
        self.slots = 4
        self.mode = "adaptive"
        self.busy = False
        self.state = "RUNNING"
        self.jids = [JID]
        self.name = "counting"
        self.puts: list[dict[str, Any]] = []
        self.upper = {vertex["id"]: 1 for vertex in SEEN["job"]["vertices"]}
        self.lower = dict.fromkeys(self.upper, 1)
        self.running = dict(self.upper)
        self.maximum = {vertex["id"]: vertex["maxParallelism"] for vertex in SEEN["job"]["vertices"]}
        self.failing: web.Response | None = None
        self.refusal: web.Response | None = None

    def follow(self) -> None:
        """Let the job follow its bounds as far as there are slots."""
        self.running = {vertex: min(upper, self.slots) for vertex, upper in self.upper.items()}

    def job(self, jid: str) -> dict[str, Any]:
        job: dict[str, Any] = copy.deepcopy(SEEN["job"]) | {"jid": jid, "name": self.name, "state": self.state}
        job["schedulerType"] = "Default" if self.mode == "default" else "Adaptive"
        if self.state == "INITIALIZING":
            job["vertices"] = []
        for vertex in job["vertices"]:
            vertex["parallelism"] = self.running[vertex["id"]]
            vertex["maxParallelism"] = self.maximum[vertex["id"]]
            vertex["tasks"]["RUNNING"] = self.running[vertex["id"]]
        return job

    def bounds(self) -> dict[str, Any]:
        return {
            vertex: {"parallelism": {"lowerBound": self.lower[vertex], "upperBound": upper}}
            for vertex, upper in self.upper.items()
        }

    def put(self, wished: Mapping[str, Any]) -> web.Response:
        """Check and store bounds as Flink's Dispatcher does."""
        if self.refusal is not None:
            return self.refusal
        if missing := [vertex for vertex in self.upper if vertex not in wished]:
            return answer({"errors": [f"The request is incomplete, missing job vertex {missing}."]}, 400)
        bounds = {
            vertex: (of["parallelism"]["lowerBound"], of["parallelism"]["upperBound"]) for vertex, of in wished.items()
        }
        for vertex, (lower, upper) in bounds.items():
            if not 1 <= lower <= upper:
                return answer({"errors": [f"The requested lower bound [{lower}] is higher than [{upper}]."]}, 400)
            if 0 < self.maximum[vertex] < upper:
                return answer(SEEN["put_above_maximum_400"], 400)
        self.puts.append(dict(wished))
        self.lower = {vertex: lower for vertex, (lower, _) in bounds.items()}
        self.upper = {vertex: upper for vertex, (_, upper) in bounds.items()}
        if not self.busy:
            self.follow()
        return answer({})

    async def handle(self, request: web.Request) -> web.Response:
        if self.failing is not None:
            return web.Response(status=self.failing.status, body=self.failing.body, content_type="application/json")
        match request.path.strip("/").split("/"):
            case ["overview"]:
                free = self.slots - max(self.running.values())
                return answer(SEEN["overview"] | {"slots-total": self.slots, "slots-available": free})
            case ["jobmanager", "config"]:
                return answer(SEEN["reactive_config"] if self.mode == "reactive" else [])
            case ["jobs", "overview"]:
                line = SEEN["line"] | {"name": self.name, "state": self.state}
                return answer({"jobs": [line | {"jid": jid} for jid in self.jids]})
            case ["jobs", jid] if jid in self.jids:
                return answer(self.job(jid))
            case ["jobs", jid, "resource-requirements"] if jid in self.jids:
                return await self.requirements(request)
        return answer(SEEN["get_unknown_path_404"], 404)

    async def requirements(self, request: web.Request) -> web.Response:
        putting = request.method == "PUT"
        match self.mode:
            case "old":
                return answer(SEEN["put_unknown_path_404" if putting else "get_unknown_path_404"], 404)
            case "default":
                return answer(SEEN["default_500" if putting else "get_default_500"], 500)
            case "reactive":
                return answer(SEEN["put_reactive_500"], 500) if putting else answer(SEEN["reactive_requirements"])
        return self.put(await request.json()) if putting else answer(self.bounds())


def answer(document: object, status: int = 200) -> web.Response:
    """Flink's answer: JSON, even for errors."""
    return web.json_response(document, status=status)


@asynccontextmanager
async def serving(flink: FakeFlink) -> AsyncIterator[str]:
    """The address of the server, while the context is open."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", flink.handle)
    async with TestServer(application) as server:
        yield str(server.make_url("")).rstrip("/")
