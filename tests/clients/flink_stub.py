"""A server that answers with recorded answers of real JobManagers, which a test may change.

`data/<version>/<scene>.json` maps a path to the status and the body of its answer. Scenes: `waiting` (no TaskManager
yet), `running` (one or two), `rescaled` (after a TaskManager was added; two source subtasks have finished), `plain`
(default scheduler, no checkpoints) and `failed` (the same after its only TaskManager was lost).
`data/2.3/subtasks.json` is an answer to `/jobs/<id>/vertices/<id>` of another job, on two TaskManagers of two slots.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.test_utils import TestServer

from autoscaler.clients.http import JsonClient

T = TypeVar("T")
DATA = Path(__file__).parent / "data" / "flink"
VERSIONS = ("1.18", "1.20", "2.3")
SOURCE, WORK, SUM = (
    "ca88eee0095684d687a1b6495617f957",
    "674df9b0384c0348e0b9d1034a44c46c",
    "239c254b5ff89532b198266322bc819f",
)
"""Vertices of the recorded job: numbers -> (rebalance) work -> (by key) sum and sink."""
BUSY, IDLE, HELD = "accumulateBusyTimeMs", "accumulateIdleTimeMs", "accumulateBackPressuredTimeMs"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Shared:
    """The shared objects of a daemon."""

    def __init__(self) -> None:
        self.live: dict[Hashable, Any] = {}
        self.stack = AsyncExitStack()

    async def enter(self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        if key not in self.live:
            self.live[key] = await self.stack.enter_async_context(factory())
        return self.live[key]  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Expire the cached answers."""
        for live in self.live.values():
            if isinstance(live, JsonClient):
                live.forget()


class FakeFlink:
    """One JobManager with the recorded job.

    Attributes:
        answers: path without the query -> answer.
        special: path -> a handler that answers instead.
        asked: the requests, with the method unless it is GET.
        ages: milliseconds that the metrics are behind the JobManager's clock, one per request; the last one repeats.
        metrics: vertex -> metric -> {min, max, avg, sum}.
        numbers: the job's own metrics.
        workers: the TaskManagers' metrics.
        shown: vertex -> its subtasks in `/jobs/<id>/vertices/<id>`; other vertices show none.
    """

    def __init__(self, version: str = "2.3", scene: str = "running") -> None:
        recorded = json.loads((DATA / version / f"{scene}.json").read_text())
        self.answers = {path: known for path, known in recorded.items() if "?" not in path}
        self.special: dict[str, Handler] = {}
        self.asked: list[str] = []
        self.ages: deque[float] = deque([100.0])
        self.line = self.answers["/jobs/overview"]["answer"]["jobs"][0]
        self.jid: str = self.line["jid"]
        self.job = self.answers[f"/jobs/{self.jid}"]["answer"]
        self.metrics: dict[str, dict[str, dict[str, float]]] = {}
        self.numbers: dict[str, str] = {}
        self.workers: dict[str, dict[str, float]] = {}
        self.shown: dict[str, list[dict[str, Any]]] = {}
        for path, known in recorded.items():
            if "/subtasks/metrics?get=" in path:
                self.metrics[path.split("/")[4]] = {one.pop("id"): one for one in known["answer"]}
            elif path.startswith(f"/jobs/{self.jid}/metrics?"):
                self.numbers = {one["id"]: one["value"] for one in known["answer"]}
            elif path.startswith("/taskmanagers/metrics?"):
                self.workers = {one.pop("id"): one for one in known["answer"]}

    # changes by a test

    @property
    def settings(self) -> list[dict[str, str]]:
        """The JobManager's settings."""
        found: list[dict[str, str]] = self.answers["/jobmanager/config"]["answer"]
        return found

    def set(self, **values: str) -> None:
        """Set settings; `__` stands for a dot and `_` for a dash."""
        for key, value in values.items():
            self.settings.append({"key": key.replace("__", ".").replace("_", "-"), "value": value})

    def unset(self, key: str) -> None:
        self.settings[:] = [one for one in self.settings if one["key"] != key]

    def state(self, state: str) -> None:
        """Put the job into a state, in the list and by itself."""
        self.line["state"] = self.job["state"] = state

    def vertex(self, vertex: str) -> dict[str, Any]:
        found: dict[str, Any] = next(one for one in self.job["vertices"] if one["id"] == vertex)
        return found

    def subtasks(self, vertex: str) -> int:
        count: int = self.vertex(vertex)["tasks"]["RUNNING"]
        return count

    def report(self, vertex: str, name: str, total: float, most: float | None = None, *, count: int = 0) -> None:
        """Make all subtasks of a vertex together report `total`."""
        count = count or self.subtasks(vertex)
        mean = total / count
        self.metrics[vertex][name] = {
            "min": mean,
            "max": mean if most is None else most,
            "avg": mean,
            "sum": total,
        }

    def place(self, vertex: str, *taskmanagers: str) -> None:
        """Show the subtasks of a vertex on these TaskManagers, one subtask per name; names may repeat."""
        self.shown[vertex] = [
            {
                "subtask": number,
                "status": "RUNNING",
                "attempt": 0,
                "taskmanager-id": taskmanager,
                "metrics": {
                    "accumulated-backpressured-time": 0,
                    "accumulated-idle-time": 9000 + number,
                    "accumulated-busy-time": 1000.0,
                },
            }
            for number, taskmanager in enumerate(taskmanagers)
        ]

    def work_unevenly(self, seconds: float, vertex: str, *shares: float) -> None:
        """Make the subtasks of a vertex busy for these shares of the time that `pass_time` lets pass."""
        for subtask, share in zip(self.shown[vertex], shares, strict=True):
            subtask["metrics"]["accumulated-busy-time"] += 1000 * seconds * share
            subtask["metrics"]["accumulated-idle-time"] += 1000 * seconds * (1 - share)
        total = 1000 * sum(shares)
        self.report(vertex, "busyTimeMsPerSecond", total, 1000 * max(shares), count=len(shares))

    def pass_time(self, seconds: float, rates: dict[str, float], shares: dict[str, tuple[float, float]]) -> None:
        """Let time pass.

        Args:
            seconds: how long.
            rates: vertex -> records per second of all its subtasks, in and out.
            shares: vertex -> (busy, backpressured); the rest is idle.
        """
        for vertex, known in self.metrics.items():
            count = self.subtasks(vertex)
            busy, held = shares.get(vertex, (0.0, 0.0))
            for name, share in ((BUSY, busy), (HELD, held), (IDLE, 1 - busy - held)):
                self.report(vertex, name, known[name]["sum"] + share * seconds * 1000 * count)
            for name, share in (
                ("busyTimeMsPerSecond", busy),
                ("backPressuredTimeMsPerSecond", held),
                ("idleTimeMsPerSecond", 1 - busy - held),
            ):
                self.report(vertex, name, share * 1000 * count)
            moved = rates.get(vertex, 0.0) * seconds
            for name in known:
                source = vertex == SOURCE
                if name in {"numRecordsOut", "Source__numbers.numRecordsOut" if source else "numRecordsIn"}:
                    self.report(vertex, name, known[name]["sum"] + moved)
        self.job["now"] += int(seconds * 1000)

    # answers

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.asked.append(str(request.rel_url) if request.method == "GET" else f"{request.method} {path}")
        if path in self.special:
            return await self.special[path](request)
        names = [name for name in request.query.get("get", "").split(",") if name]
        if path.endswith("/subtasks/metrics"):
            reported = self.metrics.get(path.split("/")[4], {})
            if not names:
                return web.json_response([{"id": name} for name in reported])
            # With one unknown name, Flink answers nothing at all.
            return _numbers([{"id": name, **reported[name]} for name in names] if reported.keys() >= set(names) else [])
        if path == "/taskmanagers/metrics":
            return _numbers([{"id": name, **self.workers[name]} for name in names if name in self.workers])
        if path == f"/jobs/{self.jid}/metrics":
            return web.json_response(
                [{"id": name, "value": value} for name, value in self._own().items() if name in names]
            )
        known = self.answers.get(path)
        vertex = path.removeprefix(f"/jobs/{self.jid}/vertices/")
        if vertex in self.shown:
            known = {"status": 200, "answer": {"id": vertex, "subtasks": self.shown[vertex]}}
        if known is None:
            return web.json_response({"errors": [f"Not found: {path}"]}, status=404)
        return web.json_response(known["answer"], status=known["status"])

    def _own(self) -> dict[str, str]:
        age = self.ages.popleft() if len(self.ages) > 1 else self.ages[0]
        since = self.job["timestamps"]["RUNNING"]
        if not since or not self.numbers:
            return {}
        return {**self.numbers, "uptime": str(int(self.job["now"] - since - age))}


def _numbers(answer: list[dict[str, Any]]) -> web.Response:
    """Write NaN as a string, like Flink."""
    reported = [
        {name: "NaN" if value != value else value for name, value in one.items()}  # noqa: PLR0124 - only NaN is not itself
        for one in answer
    ]
    return web.json_response(reported)


@asynccontextmanager
async def serve(flink: FakeFlink) -> AsyncIterator[str]:
    """Serve it on a free port of loopback; yields the address."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", flink.handle)
    async with TestServer(application) as server:
        yield str(server.make_url("")).rstrip("/")
