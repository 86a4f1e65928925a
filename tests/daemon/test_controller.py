"""Controllers in virtual time: timing of ticks, isolation, order of saving and acting, failures, clock jumps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from autoscaler.core.model import (
    Behaviour,
    Bound,
    ClusterState,
    Decision,
    EngineStatus,
    JobState,
    Limits,
    NamedPolicy,
    Observation,
    Phase,
    Reading,
    Reason,
)
from autoscaler.daemon.controller import NOT_OBSERVED, SCALE_TIMEOUT, SILENCE, UNANSWERED, Refusal, splay
from autoscaler.plugins import Kind, load
from autoscaler.ports import EdgeError, Record, RefusedError, UnavailableError, Worker, Workforce
from autoscaler.targets.advice import Advice
from autoscaler.testing import virtual_time
from autoscaler.testing.fakes import Fake, FakeEngine, FakeTarget

from .conftest import World, make_cluster


def test_the_splay_is_stable_and_spreads_evenly() -> None:
    # The value is the same in every process, whatever its hash seed.
    assert splay("orders", 10.0) == pytest.approx(splay("orders", 10.0))
    assert splay("orders", 20.0) == pytest.approx(2 * splay("orders", 10.0))
    offsets = [splay(f"cluster-{number}", 10.0) for number in range(1000)]
    tenths = [sum(int(offset) == tenth for offset in offsets) for tenth in range(10)]
    assert all(60 <= count <= 140 for count in tenths)


def test_a_requested_tick_does_not_move_the_other_ticks() -> None:
    async def main() -> list[float]:
        world = World("a")
        await world.start()
        await world.until(splay("a", 10.0) + 24)
        await world.fleet.controllers["a"].decide_now()
        assert asyncio.get_running_loop().time() == pytest.approx(splay("a", 10.0) + 24)
        await world.until(splay("a", 10.0) + 41)
        await world.fleet.stop()
        assert max(world.tick_times.late) < 0.001
        assert world.fleet.controllers["a"].counters.skipped == 0
        return world.ticks("a")

    assert virtual_time.run(main()) == [pytest.approx(splay("a", 10.0) + at) for at in (0, 10, 20, 24, 30, 40)]


def test_constantly_requested_ticks_are_a_second_apart() -> None:
    async def main() -> list[float]:
        world = World("a")
        await world.start()
        controller = world.fleet.controllers["a"]
        await world.until(splay("a", 10.0) + 0.5)
        while asyncio.get_running_loop().time() < splay("a", 10.0) + 9:
            await asyncio.gather(controller.decide_now(), controller.decide_now())
        await world.fleet.stop()
        return world.ticks("a")

    assert virtual_time.run(main()) == [pytest.approx(splay("a", 10.0) + at) for at in range(10)]


def test_a_request_during_a_tick_gets_the_next_one() -> None:
    async def main() -> list[float]:
        world = World("a")
        world.targets["a"].delay = 2.0
        await world.start()
        await world.until(splay("a", 10.0) + 1)
        await world.fleet.controllers["a"].decide_now()
        assert asyncio.get_running_loop().time() == pytest.approx(splay("a", 10.0) + 4)
        await world.fleet.stop()
        return world.ticks("a")

    assert virtual_time.run(main()) == [pytest.approx(splay("a", 10.0) + at) for at in (2, 4)]


def test_a_requested_tick_that_outlasts_the_next_regular_one_skips_it() -> None:
    async def main() -> tuple[list[float], int]:
        world = World("a")
        await world.start()
        await world.until(splay("a", 10.0) + 9)
        world.targets["a"].delay = 2.0
        await world.fleet.controllers["a"].decide_now()
        await world.until(splay("a", 10.0) + 23)
        await world.fleet.stop()
        return world.ticks("a"), world.fleet.controllers["a"].counters.skipped

    ticks, skipped = virtual_time.run(main())
    assert ticks == [pytest.approx(splay("a", 10.0) + at) for at in (0, 11, 22)]
    assert skipped == 1


def test_whoever_waits_for_a_tick_is_released_when_the_controller_ends() -> None:
    async def main() -> None:
        world = World("a")
        world.targets["a"].delay = 3.0
        await world.start()
        await world.until(splay("a", 10.0) + 1)
        controller = world.fleet.controllers["a"]
        waiting = [asyncio.create_task(controller.decide_now()) for _ in range(2)]
        waiting[0].cancel()
        await asyncio.sleep(0)
        await world.fleet.stop()
        await asyncio.wait_for(waiting[1], 1)
        await asyncio.wait_for(controller.decide_now(), 1)
        assert controller.decision is None

    virtual_time.run(main())


def test_ticks_do_not_drift_over_hours() -> None:
    async def main() -> list[float]:
        world = World("a")
        world.targets["a"].delay = 1.7
        await world.start()
        await world.until(6 * 3600)
        await world.fleet.stop()
        assert max(world.tick_times.late) < 0.001
        return world.ticks("a")

    ticks = virtual_time.run(main())
    assert len(ticks) == 2160
    first = ticks[0]
    assert first == pytest.approx(splay("a", 10.0) + 1.7)
    assert all(at == pytest.approx(first + 10 * number) for number, at in enumerate(ticks))


def test_missed_ticks_are_skipped_and_not_made_up_for() -> None:
    async def main() -> list[float]:
        world = World("a")
        # The tick's time-out does not apply to scale calls: this one takes two and a half intervals.
        world.targets["a"].scale_delay = 25.0
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(100)
        await world.fleet.stop()
        assert world.fleet.controllers["a"].counters.skipped == 2
        return world.ticks("a")

    ticks = virtual_time.run(main())
    assert [later - earlier for earlier, later in pairwise(ticks)] == pytest.approx([30.0, *[10.0] * (len(ticks) - 2)])


@pytest.mark.parametrize("trouble", ["slow", "hanging", "failing", "broken"])
def test_a_failing_cluster_does_not_delay_another(trouble: str) -> None:
    async def main() -> None:
        world = World("good", "bad")
        bad = world.targets["bad"]
        if trouble == "slow":
            bad.delay = 3.9
        elif trouble == "hanging":
            bad.delay = 1e9
        elif trouble == "failing":
            bad.failure = UnavailableError("the bad target is down")
        else:
            bad.failure = ZeroDivisionError("a defect in a plug-in")
        await world.start()
        await world.until(600)
        await world.fleet.stop()
        offset = splay("good", 10.0)
        assert world.ticks("good") == pytest.approx([offset + 10 * number for number in range(60)])
        assert len(world.ticks("bad")) in (59, 60)

    virtual_time.run(main())


def test_a_plugin_that_ignores_cancellation_holds_only_one_task() -> None:
    async def main() -> None:
        world = World("a")
        asked = 0

        class Stubborn:
            async def collect(self, *_: object) -> Reading:
                nonlocal asked
                asked += 1
                while True:
                    try:
                        await asyncio.sleep(300)
                        raise UnavailableError("too late")
                    except asyncio.CancelledError:
                        continue

        world.source_plugin.__dict__["live"] = Stubborn()
        await world.start()
        await world.until(250)
        assert asked == 1
        assert world.store.records[0].observation.missing == {"load": "no answer within 4 s"}
        assert world.store.records[1].observation.missing == {"load": "the previous request still hangs"}
        await world.until(500)
        assert asked == 2
        await world.fleet.stop()

    virtual_time.run(main())


def test_all_plug_ins_are_called_concurrently_within_the_timeout() -> None:
    async def main() -> None:
        world = World("a", engine=True)
        world.targets["a"].delay = world.source.delay = world.engines["a"].delay = 3.0
        await world.start()
        await world.until(30)
        await world.fleet.stop()
        assert world.tick_times.took[0] == pytest.approx(3.0)
        assert not world.store.records[0].observation.missing

    virtual_time.run(main())


def test_unreadable_values_are_missing_with_a_reason() -> None:
    async def main() -> None:
        world = World("a", engine=True)
        world.targets["a"].failure = RefusedError("the target says no")
        world.engines["a"].delay = 60.0
        world.source.failures["load"] = KeyError("surprise")
        await world.start()
        await world.until(15)
        await world.fleet.stop()
        record = world.store.records[0]
        assert record.observation.missing == {
            "target": "the target says no",
            "engine": "no answer within 4 s",
            "load": "KeyError: 'surprise'",
        }
        assert record.observation.desired is None
        assert not record.decision.rescale
        assert world.fleet.controllers["a"].counters.errors == {"target": 1, "engine": 1, "load": 1}

    virtual_time.run(main())


def test_an_unexpected_error_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World("a")
        world.source.failures["load"] = KeyError("surprise")
        await world.start()
        await world.until(100)
        await world.fleet.stop()

    caplog.set_level(logging.INFO, "autoscaler")
    virtual_time.run(main())
    unexpected = [record for record in caplog.records if "unexpected" in record.message]
    assert len(unexpected) == 1
    assert unexpected[0].exc_info is not None
    assert len([record for record in caplog.records if record.message == "reading is missing"]) == 1


def test_state_is_saved_before_the_target_is_called() -> None:
    async def main() -> None:
        world = World("a")
        target, store = world.targets["a"], world.store

        async def scale(replicas: int) -> None:
            rescale = store.states["a"].rescale
            assert rescale is not None
            assert (rescale.to, rescale.phase) == (replicas, Phase.REQUESTED)
            store.journal.append(("scale", replicas))

        target.scale = scale  # type: ignore[method-assign]
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(10)
        await world.fleet.stop()
        assert store.journal[0] == ("save", "a")
        assert sorted(store.journal[1:]) == [("scale", 3), ("write", "a")]

    virtual_time.run(main())


def test_a_request_does_not_wait_for_the_history() -> None:
    async def main() -> None:
        world = World("a")
        target, store = world.targets["a"], world.store
        asked: list[float] = []

        async def write(record: object) -> None:
            del record
            await asyncio.sleep(7)
            store.journal.append("written")

        async def scale(replicas: int) -> None:
            del replicas
            asked.append(asyncio.get_running_loop().time())

        store.write = write  # type: ignore[method-assign]
        target.scale = scale  # type: ignore[method-assign]
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(10)
        await world.fleet.stop()
        assert asked == pytest.approx(world.ticks("a")[:1])
        # The record is written nevertheless, even though the daemon stops meanwhile.
        assert store.journal == [("save", "a"), "written"]

    virtual_time.run(main())


def test_a_rescale_is_requested_once_and_followed_until_it_is_settled() -> None:
    async def main() -> None:
        world = World("a", engine=True)
        target, engine = world.targets["a"], world.engines["a"]
        target.startup = 22.0
        engine.status = EngineStatus(job=JobState.RUNNING, slots=1, parallelism=1)
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(28)
        engine.status = EngineStatus(job=JobState.RUNNING, slots=3, parallelism=3)
        await world.until(60)
        await world.fleet.stop()
        assert target.requests == [3]
        controller = world.fleet.controllers["a"]
        assert controller.state is not None
        assert controller.state.rescale is None
        assert {phase for _, phase in controller.counters.phases} == set(Phase) - {Phase.REQUESTED}
        assert all(count == 1 for count, _ in controller.counters.phases.values())

    virtual_time.run(main())


def test_a_failed_call_without_effect_is_repeated() -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]
        target.scale_failure = UnavailableError("no route to the target")
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(10)
        kept = world.store.states["a"].rescale
        assert kept is not None
        assert kept.error == "no route to the target"
        target.scale_failure = None
        await world.until(60)
        await world.fleet.stop()
        assert target.requests == [3, 3]
        assert target.desired == 3
        notes = [reason for record in world.store.records for reason, _ in record.decision.notes]
        assert Reason.UNCONFIRMED in notes
        assert world.fleet.controllers["a"].counters.failed_calls == 1

    virtual_time.run(main())


def test_a_failed_call_that_took_effect_is_confirmed_by_the_observed_size() -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]
        target.scale_failure, target.accepts_failing = UnavailableError("the answer was lost"), True
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(60)
        await world.fleet.stop()
        assert target.requests == [3]

    virtual_time.run(main())


def test_a_scale_call_without_an_answer_ends_at_its_own_time_out() -> None:
    async def main() -> None:
        world = World("a")
        world.targets["a"].scale_delay = 1e9
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(splay("a", 10.0) + SCALE_TIMEOUT - 1)
        # A supervisor must not restart the daemon in the middle of a scale call.
        assert not world.fleet.controllers["a"].overdue(asyncio.get_running_loop().time())
        await world.until(splay("a", 10.0) + SCALE_TIMEOUT + 1)
        kept = world.store.states["a"].rescale
        assert kept is not None
        assert kept.error == "no answer within 30 s"
        await world.fleet.stop()

    virtual_time.run(main())


def test_a_timeout_error_of_a_plug_in_is_not_taken_for_the_time_out_of_the_call() -> None:
    async def main() -> None:
        world = World("a")
        world.targets["a"].scale_failure = TimeoutError("no answer of the group within 2 s")
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(15)
        await world.fleet.stop()
        refusal = world.fleet.controllers["a"].refusal
        assert refusal is not None
        assert refusal.error == "TimeoutError: no answer of the group within 2 s"

    virtual_time.run(main())


def test_no_call_is_made_while_state_cannot_be_persisted_and_calls_resume_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]
        await world.start()
        await world.until(20)
        world.store.failure = "the disk is full"
        world.source.values["load"] = 300.0
        await world.until(60)
        controller = world.fleet.controllers["a"]
        assert target.requests == []
        assert controller.problem == "the disk is full"
        assert not controller.overdue(asyncio.get_running_loop().time())
        world.store.failure = ""
        await world.until(80)
        await world.fleet.stop()
        assert target.requests == [3]
        assert controller.problem is None

    caplog.set_level(logging.INFO, "autoscaler")
    virtual_time.run(main())
    assert len([r for r in caplog.records if "cannot persist state" in r.message]) == 1


@pytest.mark.parametrize(("method", "what"), [("load", "read"), ("save", "persist")])
def test_a_store_that_does_not_answer_is_logged_while_the_controller_waits(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, method: str, what: str
) -> None:
    async def main() -> None:
        world = World("a")
        inner, back = getattr(world.store, method), asyncio.Event()

        async def hangs(*arguments: object) -> object:
            await back.wait()
            return await inner(*arguments)

        monkeypatch.setattr(world.store, method, hangs)
        await world.start()
        controller = world.fleet.controllers["a"]
        await world.until(SILENCE - 0.1)
        assert controller.problem == NOT_OBSERVED
        await world.until(100)
        assert "has not answered for 15 s" in str(controller.problem)
        back.set()
        await world.until(130)
        assert controller.problem is None
        await world.fleet.stop()

    caplog.set_level(logging.INFO, "autoscaler")
    virtual_time.run(main())
    assert messages(caplog)[:2] == [f"decision skipped: cannot {what} state", "decisions resumed"]


def test_a_decision_is_dropped_if_the_store_takes_too_long_to_save_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        world = World("a")
        await world.start()
        await world.until(20)
        save, back = world.store.save, asyncio.Event()

        async def hangs(cluster: str, state: ClusterState, record: Record | None) -> None:
            await back.wait()
            await save(cluster, state, record)

        monkeypatch.setattr(world.store, "save", hangs)
        world.source.values["load"] = 900.0
        await world.until(600)
        world.source.values["load"] = 300.0
        back.set()
        await world.until(630)
        await world.fleet.stop()
        assert world.targets["a"].requests == [3]

    caplog.set_level(logging.INFO, "autoscaler")
    virtual_time.run(main())
    [failed] = [record for record in caplog.records if record.message == "scale call failed"]
    assert "too old" in failed.__dict__["error"]


def test_an_unreadable_state_is_not_reported_as_one_that_cannot_be_persisted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = World("a")
        world.store.failure = "the state of cluster 'a' cannot be read"
        await world.start()
        await world.until(60)
        await world.fleet.stop()

    caplog.set_level(logging.INFO, "autoscaler")
    virtual_time.run(main())
    assert messages(caplog) == ["decision skipped: cannot read state"]


def test_a_dry_run_saves_everything_and_calls_nothing() -> None:
    async def main() -> None:
        world = World("a", dry_run=True)
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(100)
        await world.fleet.stop()
        assert world.targets["a"].requests == []
        assert all(record.dry_run for record in world.store.records)
        # Every tick repeats the advice: no rescale is assumed to be in progress, and no rate limit is used up.
        assert all(record.decision.desired == 3 for record in world.store.records)
        state = world.store.states["a"]
        assert state.rescale is None
        assert state.events == ()

    virtual_time.run(main())


@pytest.mark.parametrize("workers", [None, 4])
def test_advice_that_nobody_follows_does_not_accumulate(workers: int | None) -> None:
    async def main() -> None:
        world = World("a")
        tracking = NamedPolicy("cpu", load(Kind.POLICY, "target-tracking")(metric="load", target=0.7))
        engine = None if workers is None else Fake(Counted(workers))
        world.clusters["a"] = make_cluster(
            "a", Advice(size=3), engine, policies=(tracking,), limits=Limits(1, 20), down=Behaviour()
        )
        world.source.values["load"] = 0.9
        await world.start()
        await world.until(600)
        assert {(record.decision.current, record.decision.desired) for record in world.store.records} == (
            {(3, 4)} if workers is None else {(4, 6)}
        )
        assert all(record.dry_run for record in world.store.records)
        # New advice is compared with the present size, not with earlier advice.
        world.source.values["load"] = 0.7
        await world.until(700)
        await world.fleet.stop()
        assert world.store.records[-1].decision.desired == (workers or 3)

    virtual_time.run(main())


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(days=400), -timedelta(hours=1), -timedelta(days=400)])
def test_a_clock_jump_neither_stops_the_ticks_nor_scales_down(jump: timedelta) -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]
        target.desired = target.ready = 5
        world.source.values["load"] = 500.0
        await world.start()
        await world.until(300)
        world.source.values["load"] = 100.0  # needs fewer replicas; the stabilization window must still pass
        world.clock.set_by = jump
        await world.until(355)
        assert target.requests == []
        assert len(world.store.records) in (35, 36)
        await world.until(500)
        await world.fleet.stop()
        assert target.requests == [1]

    virtual_time.run(main())


def test_after_a_kill_between_saving_and_calling_the_request_is_repeated() -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]
        target.scale_delay = 5.0
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(splay("a", 10.0) + 1)
        assert target.scaling == 1
        await world.fleet.cancel()  # like a kill in the middle of the call
        assert target.desired == 1
        kept = world.store.states["a"].rescale
        assert kept is not None
        assert not kept.error
        target.scale_delay = 0.0
        world.fleet = world.make_fleet()
        await world.start()
        await world.until(60)
        await world.fleet.stop()
        assert target.desired == 3
        texts = [text for record in world.store.records for _, text in record.decision.notes]
        assert any(UNANSWERED in text for text in texts)

    virtual_time.run(main())


def test_a_request_that_replaces_one_from_before_the_start_is_logged_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]

        async def accept(replicas: int) -> None:
            target.requests.append(replicas)

        world.source.values["load"] = 300.0
        scale, target.scale = target.scale, accept  # type: ignore[method-assign] # it accepts and shows nothing
        await world.start()
        await world.until(15)
        await world.fleet.stop()
        target.scale = scale  # type: ignore[method-assign]
        world.fleet = world.make_fleet()
        caplog.clear()
        await world.start()
        await world.until(60)
        await world.fleet.stop()
        assert target.requests == [3, 3]

    caplog.set_level(logging.INFO, "autoscaler")
    virtual_time.run(main())
    why = "the daemon was stopped, or handed the cluster over, before the target showed the new size"
    assert messages(caplog) == [f"the target did not accept the change from 1 to 3: {why}", "rescale"]


def test_an_internal_defect_in_one_cluster_ends_neither_it_nor_others(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World("a", "b")
        await world.start()
        await world.until(15)
        broken = world.fleet.controllers["a"]

        def fail(*_: object) -> None:
            raise AssertionError("a defect")

        broken._decide = fail  # type: ignore[assignment]
        await world.until(100)
        loop = asyncio.get_running_loop()
        assert broken.overdue(loop.time())
        assert not world.fleet.controllers["b"].overdue(loop.time())
        await world.fleet.stop()

    virtual_time.run(main())
    assert any("tick failed" in record.message for record in caplog.records)


def test_a_scale_call_that_cancels_itself_is_a_failed_call_and_does_not_end_the_controller() -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]
        target.scale_failure = asyncio.CancelledError()
        world.source.values["load"] = 300.0
        await world.start()
        await world.until(10)
        assert world.fleet.controllers["a"].counters.failed_calls == 1
        target.scale_failure = None
        await world.until(100)
        await world.fleet.stop()
        assert target.desired == 3
        assert len(world.ticks("a")) == 10

    virtual_time.run(main())


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name.startswith("autoscaler.daemon.controller")]


def test_a_steady_state_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World("a", engine=True)
        await world.start()
        await world.until(3600)
        await world.fleet.stop()

    caplog.set_level(logging.INFO, "autoscaler")
    virtual_time.run(main())
    assert messages(caplog) == ["decision"]


def test_an_intermittent_reading_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World("a")
        await world.start()
        for number in range(50):
            await world.until(10 * number + 9.999)
            if number % 2:
                world.source.failures["load"] = UnavailableError(f"trouble {number}")
            else:
                world.source.failures.clear()
        world.source.failures.clear()
        await world.until(600)
        await world.fleet.stop()

    caplog.set_level(logging.INFO, "autoscaler")
    virtual_time.run(main())
    assert messages(caplog) == ["decision", "reading is missing", "decision", "reading is available again"]


@pytest.mark.parametrize(("startup", "lines"), [(0.0, []), (35.0, ["the rescale from 1 to 3 has settled after 40 s"])])
def test_a_rescale_is_logged_once_and_again_when_it_takes_long(
    startup: float, lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world = World("a")
        world.targets["a"].startup = startup
        await world.start()
        await world.until(100)
        caplog.clear()
        world.source.values["load"] = 300.0
        await world.until(300)
        await world.fleet.stop()

    caplog.set_level(logging.INFO, "autoscaler")
    virtual_time.run(main())
    assert messages(caplog)[0] == "rescale"
    assert vars(caplog.records[0])["why"] == "per-replica: 300 needs 3"
    assert [text for text in messages(caplog) if text != "decision"] == ["rescale", *lines]
    assert len(caplog.records) <= 1 + 2 * len(lines)


def test_a_target_that_refuses_every_call_with_another_text_does_not_flood_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = World("a")
        calls = 0

        async def scale(replicas: int) -> None:
            nonlocal calls
            calls += 1
            raise RefusedError(f"answered 403: not allowed to have {replicas} (request 7f{calls:05x}-{calls})")

        world.targets["a"].scale = scale  # type: ignore[method-assign]
        await world.start()
        for number in range(60):
            world.source.values["load"] = 300.0 + number % 3
            await world.until(10.0 * number)
        await world.fleet.stop()
        assert calls > 50

    caplog.set_level(logging.INFO, "autoscaler")
    virtual_time.run(main())
    assert len(caplog.records) < 8
    assert messages(caplog).count("scale call failed") == 1


def test_a_target_that_answers_intermittently_does_not_flood_the_log_with_remarks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]
        target.remarks = ("no node is free",)
        await world.start()
        for tick in range(100):
            target.failure = UnavailableError("away") if tick % 2 else None
            await world.until(10.0 * (tick + 1))
        target.failure = None
        for remarks in ((), ("no node is free",)):  # the condition ends, and later begins again
            target.remarks = remarks
            await world.until(asyncio.get_running_loop().time() + 60)
        await world.fleet.stop()

    caplog.set_level(logging.INFO, "autoscaler")
    virtual_time.run(main())
    assert messages(caplog).count("target or annotation reports a condition") == 2


def test_a_target_that_refuses_repeatedly_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]
        world.source.values["load"] = 300.0
        target.scale_failure = RefusedError("no")
        await world.start()
        await world.until(600)
        assert len(target.requests) == 60
        target.scale_failure = None
        await world.until(700)
        world.source.values["load"] = 500.0
        target.scale_failure = RefusedError("no")
        await world.until(800)
        await world.fleet.stop()

    caplog.set_level(logging.INFO, "autoscaler")
    virtual_time.run(main())
    logged = messages(caplog)
    assert logged.count("scale call failed") == 2
    assert [text for text in logged if "did not accept" in text] == [
        "the target did not accept the change from 1 to 3: no",
        "the target did not accept the change from 3 to 5: no",
    ]


def test_the_first_of_consecutive_refused_calls_is_remembered_across_a_reload_until_one_succeeds() -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]
        world.source.values["load"] = 300.0
        target.scale_failure = RefusedError("no")
        await world.start()
        await world.until(100)
        first = world.fleet.controllers["a"].refusal
        assert first is not None
        assert (first.replicas, first.error) == (3, "no")
        assert (first.since - world.clock.start).total_seconds() == world.ticks("a")[0]
        world.clusters["a"] = replace(world.clusters["a"], timeout=timedelta(seconds=3))
        await world.start()
        assert world.fleet.controllers["a"].refusal == first
        world.source.values["load"] = 500.0
        target.scale_failure = RefusedError("still no")
        await world.until(200)
        assert world.fleet.controllers["a"].refusal == Refusal(first.since, 5, "still no")
        target.scale_failure = None
        await world.until(220)
        assert world.fleet.controllers["a"].refusal is None
        await world.fleet.stop()

    virtual_time.run(main())


def test_refused_calls_for_the_minimum_are_a_problem_too() -> None:
    async def main() -> None:
        world = World("a", limits=Limits(3, 10))
        world.targets["a"].scale_failure = RefusedError("no")
        await world.start()
        await world.until(100)
        refusal = world.fleet.controllers["a"].refusal
        await world.fleet.stop()
        assert refusal is not None
        assert (refusal.since - world.clock.start).total_seconds() == world.ticks("a")[0]
        # The policies propose the present size: only the bounds require another one.
        assert {record.decision.proposed for record in world.store.records} == {1}

    virtual_time.run(main())


def test_a_refused_call_is_over_when_the_size_is_changed_externally() -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]
        world.source.values["load"] = 300.0
        target.scale_failure = RefusedError("no")
        await world.start()
        await world.until(100)
        assert world.fleet.controllers["a"].refusal is not None
        del world.source.values["load"]
        target.desired = target.ready = 3
        await world.until(120)
        assert world.fleet.controllers["a"].refusal is None
        await world.fleet.stop()

    virtual_time.run(main())


class Picky(FakeTarget):
    """A target that asks the engine for its workers before it lowers its size."""

    def __init__(self) -> None:
        super().__init__(desired=3, ready=3)
        self.attached: list[Callable[[], Workforce]] = []
        self.seen: list[str] = []

    def attach(self, workforce: Callable[[], Workforce]) -> None:
        self.attached.append(workforce)

    async def scale(self, replicas: int) -> None:
        try:
            self.seen += [worker.id for worker in await self.attached[0]().workers()]
        except EdgeError as error:
            self.seen.append(str(error))
        await super().scale(replicas)


class Stubborn(Picky):
    """A target that sometimes refuses the engine."""

    ripe = False

    def attach(self, workforce: Callable[[], Workforce]) -> None:
        if not self.ripe:
            raise RuntimeError("not yet")
        super().attach(workforce)


class Staffed(FakeEngine):
    """An engine that can list its workers."""

    async def workers(self) -> Sequence[Worker]:
        return [Worker("w-1", frozenset({"10.0.0.1"}), 2.0)]

    async def drain(self, worker: Worker) -> None:
        raise RefusedError(f"{worker.id} stays")


class Counted(Staffed):
    """An engine with this number of workers."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    async def workers(self) -> Sequence[Worker]:
        return [Worker(f"w-{number}", frozenset()) for number in range(self.count)]


@pytest.mark.parametrize(
    ("engine", "seen"),
    [
        (Staffed(), "w-1"),
        (FakeEngine(), "the cluster's engine cannot name its workers"),
        (None, "the cluster has no engine that could name its workers"),
    ],
)
def test_a_target_that_selects_workers_receives_the_engine_once(engine: FakeEngine | None, seen: str) -> None:
    async def main() -> None:
        world = World("a")
        target = Picky()
        world.clusters["a"] = make_cluster("a", Fake(target), None if engine is None else Fake(engine))
        world.source.values["load"] = 500.0
        await world.start()
        await world.until(100)
        await world.fleet.stop()
        assert target.requests == [5]
        assert len(target.attached) == 1
        assert target.seen == [seen]

    virtual_time.run(main())


def test_limits_and_remarks_of_the_target_are_observed_and_saved() -> None:
    async def main() -> None:
        world = World("a")
        target = world.targets["a"]
        target.ceiling = Bound(2, "the group's own maximum is 2")
        target.floor = "nonsense"  # type: ignore[assignment]
        target.remarks = ("1 pod pending", 5)  # type: ignore[assignment]
        world.source.values["load"] = 500.0
        await world.start()
        await world.until(10)
        await world.fleet.stop()
        assert target.requests == [2]
        record = world.store.records[0]
        assert record.observation.ceiling == target.ceiling
        assert record.observation.floor is None
        assert record.observation.remarks == ("1 pod pending", "5")
        assert record.decision.reason is Reason.TARGET

    virtual_time.run(main())


def test_a_repeated_remark_of_a_target_is_saved_once() -> None:
    async def main() -> None:
        world = World("a")
        world.targets["a"].remarks = ("1 pod pending", 5)  # type: ignore[assignment]
        await world.start()
        await world.until(60)
        await world.fleet.stop()
        kept = {id(record.observation.remarks) for record in world.store.records}
        assert len(world.store.records) > len(kept) == 1

    virtual_time.run(main())


def test_a_maximum_beyond_the_usable_size_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World("a", engine=True)
        world.engines["a"].status = EngineStatus(job=JobState.RUNNING, slots=1, parallelism=1, max_parallelism=4)
        await world.start()
        await world.until(600)
        await world.fleet.stop()

    caplog.set_level(logging.WARNING, "autoscaler")
    virtual_time.run(main())
    assert messages(caplog) == [
        "max is more than the job can use: max 10 gives 10 slots, of which the job can use 4",
    ]


def test_stages_of_changing_width_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World("a", engine=True)
        await world.start()
        for number in range(60):
            tasks = 2 + number % 5
            world.engines["a"].status = EngineStatus(job=JobState.RUNNING, slots=1, parallelism=1, partitions=tasks)
            await world.until(10 * number + 10)
        world.clusters["a"] = make_cluster("a", world.plugins["a"], world.engine_plugins["a"], limits=Limits(1, 12))
        await world.fleet.apply(world.config)
        await world.until(700)
        await world.fleet.stop()

    caplog.set_level(logging.WARNING, "autoscaler")
    virtual_time.run(main())
    assert [message.split(", of which")[0] for message in messages(caplog)] == [
        "max is more than the job can use: max 10 gives 10 slots",
        "max is more than the job can use: max 12 gives 12 slots",
    ]


def test_a_target_that_refuses_the_engine_is_missing_with_a_reason_and_retried() -> None:
    async def main() -> None:
        world = World("a")
        target = Stubborn()
        world.clusters["a"] = make_cluster("a", Fake(target))
        await world.start()
        await world.until(10)
        assert world.store.records[0].observation.missing == {"target": "RuntimeError: not yet"}
        target.ripe = True
        await world.until(20)
        await world.fleet.stop()
        assert world.store.records[-1].observation.desired == 3
        assert len(target.attached) == 1

    virtual_time.run(main())


def test_a_reload_with_another_engine_gives_it_to_the_target() -> None:
    async def main() -> None:
        world = World("a")
        target = Picky()
        plugin = Fake(target)
        world.clusters["a"] = make_cluster("a", plugin, Fake(FakeEngine()))
        await world.start()
        await world.until(15)
        world.clusters["a"] = make_cluster("a", plugin, Fake(Staffed()))
        await world.fleet.apply(world.config)
        await world.until(40)
        assert len(plugin.opened) == 1
        workers = await target.attached[-1]().workers()
        await world.fleet.stop()
        assert [worker.id for worker in workers] == ["w-1"]
        # A target that still uses the previous engine gets an error, instead of a request to a closed engine.
        with pytest.raises(EdgeError, match="closed"):
            target.attached[0]()

    virtual_time.run(main())


@pytest.mark.parametrize(("desired", "missing", "over"), [(2, {}, True), (3, {}, False), (2, {"load": "gone"}, False)])
def test_refused_calls_are_over_when_the_decision_is_the_present_size(
    desired: int, missing: dict[str, str], *, over: bool
) -> None:
    """This holds whatever keeps it there: a tolerance, a cap, or the minimum of a policy that does not know it."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    decision = Decision(
        cluster="a",
        at=at,
        current=2,
        proposed=1,
        desired=desired,
        reason=Reason.TOLERANCE,
        recommendations=(),
        verdicts=(),
    )
    observation = Observation(at=at, desired=2, ready=2, metrics={}, missing=missing)
    assert Refusal(at, 3, "503").is_over(observation, decision) is over
