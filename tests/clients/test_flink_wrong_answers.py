"""Whatever a JobManager answers, the result is a finite reading, a status, or an edge error."""

from __future__ import annotations

import asyncio
import copy
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from autoscaler.core.model import EngineStatus, Reading
from autoscaler.engines.flink import Flink as Engine
from autoscaler.ports import EdgeError
from autoscaler.sources.flink import Flink
from autoscaler.sources.flink_metrics import NEEDS_VERTEX, FlinkQuery, Metric
from tests.clients.flink_stub import VERSIONS, WORK, FakeFlink, Shared, serve

ROUNDS = 15
JUNK: tuple[Any, ...] = (
    None,
    -1,
    0,
    1e300,
    -1e300,
    2**70,
    "",
    "x",
    "NaN",
    [],
    {},
    True,
    [None],
    {"a": 1},
    float("nan"),
)
QUERIES = [FlinkQuery(metric=metric, vertex="work" if metric in NEEDS_VERTEX else None) for metric in Metric]


def places(known: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The positions where something could be replaced."""
    found = [path] if path else []
    items = known.items() if isinstance(known, dict) else enumerate(known) if isinstance(known, list) else ()
    for key, value in items:
        found += places(value, (*path, key))
    return found


def replace(known: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        known = known[key]
    known[path[-1]] = value


@pytest.mark.parametrize("release", VERSIONS)
async def test_wrong_answers_never_give_a_wrong_number(release: str) -> None:
    chance = random.Random(f"flink {release}")  # noqa: S311 - a table that is the same each time, not a secret
    for _ in range(ROUNDS):
        flink = FakeFlink(release, chance.choice(("running", "rescaled", "waiting")))
        parts: list[Any] = [flink.answers, flink.metrics, flink.workers, flink.numbers]
        for part in parts:
            wheres = [where for where in places(part) if where[-1] != "status"]
            for where in chance.sample(wheres, min(len(wheres), chance.choice((0, 1, 2)))):
                try:
                    replace(part, where, copy.deepcopy(chance.choice(JUNK)))
                except (KeyError, IndexError, TypeError):
                    continue  # its container has been replaced
        shared, now = Shared(), datetime(2026, 1, 1, tzinfo=UTC)
        async with (
            serve(flink) as url,
            shared.stack,
            Flink(url=url).connect(shared) as source,
            Engine(url=url).connect(shared) as engine,
        ):
            readings = await asyncio.gather(*(source.collect(q, now) for q in QUERIES), return_exceptions=True)
            for query, reading in zip(QUERIES, readings, strict=True):
                assert isinstance(reading, EdgeError) or (isinstance(reading, Reading) and reading.finite()), query
            described = await asyncio.gather(engine.describe(), engine.diagnose(), return_exceptions=True)
            assert all(isinstance(one, EdgeError | EngineStatus | list) for one in described), described


async def test_wrong_subtasks_never_give_a_wrong_share() -> None:
    chance = random.Random(5)  # noqa: S311 - a table that is the same each time, not a secret
    counted = []
    for _ in range(4 * ROUNDS):
        flink, shared, now = FakeFlink(), Shared(), datetime(2026, 1, 1, tzinfo=UTC)
        flink.place(WORK, "a", "b")
        async with serve(flink) as url, shared.stack, Flink(url=url).connect(shared) as source:
            for poll in range(4):
                flink.pass_time(10, {}, {WORK: (0.5, 0.0)})
                flink.work_unevenly(10, WORK, 0.2, 0.8)
                if poll == 3:
                    replace(flink.shown, chance.choice(places(flink.shown)), copy.deepcopy(chance.choice(JUNK)))
                shared.forget()
                now += timedelta(seconds=15)
                reading = await source.collect(FlinkQuery(metric=Metric.UTILIZATION), now)
                assert reading.within(0.0, 1.0)
        counted.append(isinstance(reading.value, tuple))
    assert {True, False} == set(counted), "some of what is wrong does not matter"
