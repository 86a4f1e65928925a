"""The target that only gives advice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import pytest

from autoscaler.ports import EdgeError, PicksWorkers, RefusedError, UnavailableError, Worker, Workforce
from autoscaler.targets.advice import Advice

T = TypeVar("T")


class Nothing:
    async def enter(self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        raise AssertionError(f"{key} and {factory} are not needed")


async def test_with_follow_advice_counts_as_applied() -> None:
    assert not Advice(follow=True).advisory
    async with Advice(size=2, follow=True).connect(Nothing()) as target:
        assert ((await target.describe()).desired, (await target.describe()).ready) == (2, 2)
        await target.scale(5)
        status = await target.describe()
    assert (status.desired, status.ready) == (5, 5)
    assert "last advice: 5" in status.remarks


async def test_without_follow_the_size_stays_as_configured() -> None:
    assert Advice().advisory
    async with Advice(size=2).connect(Nothing()) as target:
        await target.scale(5)
        status = await target.describe()
    assert (status.desired, status.ready) == (2, 2)
    assert "last advice: 5" in status.remarks


class Staffed:
    def __init__(self, count: int) -> None:
        self.count = count

    async def workers(self) -> Sequence[Worker]:
        return [Worker(f"w-{number}", frozenset()) for number in range(self.count)]

    async def drain(self, worker: Worker) -> None:
        raise AssertionError(f"{worker} is not to be drained")


async def test_the_size_is_the_number_of_workers_that_the_engine_lists() -> None:
    engine: Staffed | EdgeError = Staffed(4)

    def workforce() -> Workforce:
        if isinstance(engine, EdgeError):
            raise engine
        return engine

    async with Advice(size=2).connect(Nothing()) as target:
        assert isinstance(target, PicksWorkers)
        target.attach(workforce)
        assert (await target.describe()).desired == 4
        engine = Staffed(3)
        status = await target.describe()
        assert (status.desired, status.ready) == (3, 3)
        engine = RefusedError("it cannot name its workers")
        assert (await target.describe()).desired == 2
        engine = UnavailableError("not connected yet")
        with pytest.raises(UnavailableError):
            await target.describe()


async def test_invalid_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        Advice(size=-1)
    async with Advice().connect(Nothing()) as target:
        with pytest.raises(RefusedError):
            await target.scale(-1)
