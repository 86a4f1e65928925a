"""Plug-ins that raise or return invalid things: only their own cluster is affected; memory and log stay small."""

from __future__ import annotations

import io
import json
import logging
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest

from autoscaler.config.model import LogFormat, Metric
from autoscaler.core.model import (
    Bound,
    EngineStatus,
    JobState,
    NamedPolicy,
    Reading,
    Reason,
    Recommendation,
    View,
)
from autoscaler.daemon.connections import equal
from autoscaler.daemon.logging import setup
from autoscaler.daemon.stored import restore
from autoscaler.ports import EdgeError, Shared, TargetStatus
from autoscaler.testing import virtual_time
from autoscaler.testing.fakes import Fake, FakeQuery, FakeTarget
from autoscaler.trace.codec import dump_record, dump_state

from .conftest import World, make_cluster

HUGE = 5_000_000


class Unspeakable(Exception):  # noqa: N818 - the text is the point
    def __str__(self) -> str:
        raise SystemExit("not even its text")


class Alien(BaseException):
    pass


ERRORS = [SystemExit(3), KeyboardInterrupt(), Alien("x"), Unspeakable(), RuntimeError("x" * HUGE)]


@dataclass(frozen=True)
class Raising:
    error: BaseException

    def evaluate(self, view: View) -> Recommendation:
        del view
        raise self.error


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["source", "target", "scale", "connect", "shared", "policy"])
def test_an_exception_of_a_plug_in_affects_only_its_cluster(
    where: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world = World("good", "bad")
        world.clusters["bad"] = make_cluster("bad", world.plugins["bad"])
        target = world.targets["bad"]
        if where == "source":
            metrics = {"load": Metric("source", FakeQuery("other"))}
            world.clusters["bad"] = replace(world.clusters["bad"], metrics=metrics)
            world.source.failures["other"] = error
        elif where == "target":
            target.failure = error
        elif where == "scale":
            target.scale_failure = error
            world.source.values["load"] = 300.0
        elif where == "policy":
            spec = world.clusters["bad"].spec
            policies = (*spec.policies, NamedPolicy("raising", Raising(error)))
            world.clusters["bad"] = replace(world.clusters["bad"], spec=replace(spec, policies=policies))
        else:
            world.clusters["bad"] = replace(
                world.clusters["bad"], target=FailsToConnect(target, error, shares=where == "shared")
            )
        await world.start()
        await world.until(200)
        assert len(world.ticks("good")) >= 19
        controller = world.fleet.controllers["bad"]
        if where == "policy" and isinstance(error, KeyboardInterrupt):
            assert (
                controller.problem == "KeyboardInterrupt"
            )  # Somebody may have pressed Ctrl-C: that is not a failure of the policy.
        else:
            assert len(world.ticks("bad")) >= 19
            assert len(controller.counters.errors) == (where in {"source", "target", "connect", "shared"})
        if where != "policy":
            assert controller.counters.unexpected > 1 or where in {"connect", "shared"}
        for record in world.store.records:
            assert all(len(text) < 3000 for text in record.observation.missing.values())
            assert all(len(asked.detail) < 3000 for asked in record.decision.recommendations)
        await world.fleet.stop()

    caplog.set_level(logging.INFO, "autoscaler")
    stream = io.StringIO()
    before = list(logging.getLogger().handlers)
    setup(LogFormat.JSON, stream)
    try:
        virtual_time.run(main())
    finally:
        logging.getLogger().handlers[:] = before
    lines = stream.getvalue().splitlines()
    assert all(json.loads(line) for line in lines)
    assert sum(map(len, lines)) < 100_000


@dataclass(frozen=True, eq=False)
class FailsToConnect:
    live: FakeTarget
    error: BaseException
    shares: bool

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[FakeTarget]:
        @asynccontextmanager
        async def client() -> AsyncIterator[FakeTarget]:
            if self.shares:
                raise self.error
            yield self.live

        live = await shared.enter("client", client)
        if not self.shares:
            raise self.error
        yield live


def test_one_defect_is_logged_once_even_if_its_text_varies(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World("a")
        number = 0

        class Collects:
            async def collect(self, *_: object) -> Reading:
                nonlocal number
                number += 1
                raise KeyError(f"surprise {number}")

        world.source_plugin = Fake(Collects())  # type: ignore[arg-type]
        await world.start()
        await world.until(600)
        await world.fleet.stop()
        assert world.fleet.controllers["a"].counters.unexpected == 60

    caplog.set_level(logging.INFO, "autoscaler")
    virtual_time.run(main())
    assert [record.message for record in caplog.records].count("plug-in raised an unexpected error") == 1


def test_an_intermittent_defect_is_logged_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]
        await world.start()
        for tick in range(100):
            target.failure = KeyError("surprise") if tick % 2 else None
            await world.until(10.0 * (tick + 1))
        target.failure = None
        await world.until(1060)
        target.failure = KeyError("surprise")
        await world.until(1120)
        await world.fleet.stop()

    caplog.set_level(logging.INFO, "autoscaler")
    virtual_time.run(main())
    assert [record.message for record in caplog.records].count("plug-in raised an unexpected error") == 2


NAN = float("nan")


class Nowhere(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta | None:
        return None

    def dst(self, _: datetime | None) -> timedelta | None:
        return None

    def tzname(self, _: datetime | None) -> str | None:
        return None


@pytest.mark.parametrize(
    ("where", "fields", "problem"),
    [
        ("target", {"desired": NAN}, "no TargetStatus: desired is nan (float), expected a whole number"),
        ("target", {"desired": "3"}, "no TargetStatus: desired is 3 (str), expected a whole number"),
        ("target", {"desired": None}, "no TargetStatus: desired is None (NoneType), expected a whole number"),
        ("target", {"ready": 2.5}, "no TargetStatus: ready is 2.5 (float), expected a whole number"),
        ("target", {"ready": True}, "no TargetStatus: ready is True (bool), expected a whole number"),
        ("engine", {"job": "dozing"}, "no EngineStatus: job is dozing (str), expected one of "),
        (
            "engine",
            {"running_since": datetime(2026, 1, 1, tzinfo=Nowhere())},
            "no EngineStatus: running_since is 2026-01-01 00:00:00 (datetime), expected a time with its zone",
        ),
        ("engine", {"slots": NAN}, "no EngineStatus: slots is nan (float), expected a whole number"),
        ("engine", {"restarts": 2.5}, "no EngineStatus: restarts is 2.5 (float), expected a whole number"),
        (
            "engine",
            {"last_checkpoint": datetime(2026, 1, 1)},  # noqa: DTZ001 - the missing zone is the point
            "no EngineStatus: last_checkpoint is 2026-01-01 00:00:00 (datetime), expected a time with its zone",
        ),
        (
            "engine",
            {"running_since": datetime(2300, 1, 1, tzinfo=UTC)},
            "no EngineStatus: running_since is 2300-01-01 00:00:00+00:00 (datetime), expected a time with its zone",
        ),
        ("engine", {"deadlines": {"soon": timedelta(1)}}, "'soon' has a deadline and is no phase, expected one of"),
        ("load", {"partitions": NAN}, "no Reading: partitions is nan (float), expected a whole number"),
        ("load", {"over": 30}, "no Reading: over is 30 (int), expected a timedelta"),
        ("load", {"parts": None}, "no Reading: parts is None (NoneType), expected a mapping"),
    ],
)
def test_a_value_that_could_not_be_restored_after_a_restart_is_missing_and_lowers_nothing(
    where: str, fields: dict[str, Any], problem: str
) -> None:
    async def main() -> None:
        world = World("a", engine=True)
        target, engine, source = world.targets["a"], world.engines["a"], world.source
        target.desired = target.ready = 5
        source.values["load"] = 500.0
        await world.start()
        await world.until(100)
        source.values["load"] = 100.0
        shown = {"desired": 5, "ready": 5}

        async def describe_target() -> TargetStatus:
            return TargetStatus(**shown | fields)

        async def describe_engine() -> EngineStatus:
            return EngineStatus(**{"job": JobState.RUNNING} | fields)

        if where == "target":
            target.describe = describe_target  # type: ignore[method-assign]
        elif where == "engine":
            engine.describe = describe_engine  # type: ignore[method-assign]
        else:
            source.values["load"] = lambda now: replace(Reading(100.0, now), **fields)
        await world.until(300)
        await world.fleet.stop()
        assert target.requests == []
        assert len(world.store.records) in (29, 30)
        last = world.store.records[-1]
        assert problem in last.observation.missing[where]
        assert last.decision.reason is Reason.MISSING
        state = world.store.states["a"]
        kept = restore(dump_state(state), map(dump_record, world.store.records[-len(state.past) :]))
        assert kept == state

    virtual_time.run(main())


def test_values_that_convert_to_an_integer_or_a_state_are_accepted() -> None:
    class Index:
        def __index__(self) -> int:
            return 5

    async def main() -> None:
        world = World("a", engine=True)
        target, engine = world.targets["a"], world.engines["a"]
        target.desired = target.ready = 5
        sizes: Any = iter([(5.0, Index()), (Index(), 5.0)] * 50)

        async def describe_target() -> TargetStatus:
            return TargetStatus(*next(sizes))

        async def describe_engine() -> EngineStatus:
            job: Any = "running"
            return EngineStatus(job=job, slots=5.0, partitions=12.0)  # type: ignore[arg-type]

        target.describe = describe_target  # type: ignore[method-assign]
        engine.describe = describe_engine  # type: ignore[method-assign]
        await world.start()
        await world.until(100)
        await world.fleet.stop()
        last = world.store.records[-1].observation
        assert not {"target", "engine"} & last.missing.keys()
        assert (last.desired, last.ready) == (5, 5)
        assert {type(last.desired), type(last.ready)} == {int}
        assert last.engine == EngineStatus(job=JobState.RUNNING, slots=5, partitions=12)
        assert dump_record(world.store.records[-1])

    virtual_time.run(main())


@pytest.mark.parametrize("where", ["target", "remark"])
def test_a_lone_surrogate_in_a_text_ends_no_tick(where: str) -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]
        if where == "remark":
            target.remarks = ("no node \ud83d",)
        else:
            target.failure = EdgeError("no node \ud83d")
        await world.start()
        await world.until(60)
        await world.fleet.stop()
        observation = world.store.records[-1].observation
        assert {*observation.remarks, *observation.missing.values()} >= {"no node ?"}
        assert dump_record(world.store.records[-1])

    virtual_time.run(main())


def test_texts_of_a_target_are_limited_in_size() -> None:
    async def main() -> None:
        world = World("a")
        remarks: Any = ("x" * HUGE, Unspeakable(), *(str(number) for number in range(1000)))

        async def describe() -> TargetStatus:
            return TargetStatus(1, 1, remarks, Bound(1, "y" * HUGE), None)

        world.targets["a"].describe = describe  # type: ignore[method-assign]
        await world.start()
        await world.until(10)
        await world.fleet.stop()
        observation = world.store.records[0].observation
        assert len(observation.remarks) < 101
        assert len(observation.remarks[0]) == 2000
        assert observation.floor is not None
        assert len(observation.floor.reason) == 2000

    virtual_time.run(main())


@pytest.mark.parametrize("many", ["value", "parts", "a part", "text"])
def test_a_reading_of_too_many_values_is_missing_and_memory_stays_flat(many: str) -> None:
    async def main() -> None:
        world = World("a")

        class Collects:
            async def collect(self, _: object, now: Any) -> Reading:
                if many == "parts":
                    return Reading(1.0, now, parts={f"part{number}": {} for number in range(1001)})
                if many == "a part":
                    return Reading(1.0, now, parts={"part": {f"number{number}": 1.0 for number in range(1001)}})
                return Reading(tuple(map(float, range(20_000))) if many == "value" else "x" * 20_000, now)  # type: ignore[arg-type]

        world.source_plugin = Fake(Collects())  # type: ignore[arg-type]
        await world.start()
        await world.until(20)
        before, _ = tracemalloc.get_traced_memory()
        await world.until(320)
        after, _ = tracemalloc.get_traced_memory()
        assert after - before < 2e6
        missing = world.store.records[-1].observation.missing
        count = "1,001" if "part" in many else "20,000"
        assert missing == {"load": f"{count} values, more than the 1,000 of max_values"}
        await world.fleet.stop()

    tracemalloc.start()
    try:
        virtual_time.run(main())
    finally:
        tracemalloc.stop()


def test_the_maximum_number_of_values_is_a_setting_of_the_cluster() -> None:
    async def main() -> None:
        world = World("a")
        world.clusters["a"] = replace(world.clusters["a"], max_values=3)
        world.source.values["load"] = (1.0, 2.0, 3.0)
        await world.start()
        await world.until(20)
        world.source.values["load"] = (1.0, 2.0, 3.0, 4.0)
        await world.until(30)
        await world.fleet.stop()
        assert [set(record.observation.missing) for record in world.store.records[:3]] == [set(), set(), {"load"}]

    virtual_time.run(main())


def test_with_too_many_workers_and_a_known_mean_the_mean_is_used() -> None:
    async def main() -> None:
        world = World("a")
        world.clusters["a"] = replace(world.clusters["a"], max_values=3)

        class Collects:
            async def collect(self, _: object, now: Any) -> Reading:
                return Reading((1.0,) * (3 if len(world.store.records) < 2 else 4), now, mean=0.5)

        world.source_plugin = Fake(Collects())  # type: ignore[arg-type]
        await world.start()
        await world.until(30)
        await world.fleet.stop()
        found = [record.observation.metrics["load"] for record in world.store.records[:3]]
        assert [(reading.value, reading.mean) for reading in found] == [((1.0,) * 3, 0.5)] * 2 + [(0.5, None)]

    virtual_time.run(main())


def test_errors_of_built_in_plug_ins_are_truncated_too() -> None:
    async def main() -> None:
        world = World("a")
        world.source.failures["load"] = EdgeError("z" * HUGE)
        await world.start()
        await world.until(10)
        await world.fleet.stop()
        assert len(world.store.records[0].observation.missing["load"]) == 2000

    virtual_time.run(main())


def test_a_system_exit_of_a_policy_is_recorded_as_a_failed_policy() -> None:
    async def main() -> None:
        world = World("a")
        spec = world.clusters["a"].spec
        policies = (NamedPolicy("raising", Raising(SystemExit(3))),)
        world.clusters["a"] = replace(world.clusters["a"], spec=replace(spec, policies=policies))
        await world.start()
        await world.until(10)
        await world.fleet.stop()
        (asked,) = world.store.records[0].decision.recommendations
        assert (asked.reason, asked.detail) == (Reason.FAILED, "raised SystemExit: 3")

    virtual_time.run(main())


def test_plug_ins_that_cannot_be_compared_count_as_different_and_this_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Incomparable:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("an array has no truth value")

        __hash__ = object.__hash__

    for _ in range(3):
        assert not equal((Incomparable(), 1), (Incomparable(), 1))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    error = record.__dict__["error"]
    assert error.startswith("RuntimeError: an array has no truth value (")
    assert f"{Path(__file__).name}:" in error
