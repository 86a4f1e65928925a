"""The target that only takes advice."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import pytest

from autoscaler.ports import RefusedError
from autoscaler.targets.advice import Advice

T = TypeVar("T")


class Nothing:
    async def enter(self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        raise AssertionError(f"{key} and {factory} are not needed")


async def test_advice_counts_as_taken() -> None:
    async with Advice(size=2).connect(Nothing()) as target:
        assert ((await target.describe()).desired, (await target.describe()).ready) == (2, 2)
        await target.scale(5)
        status = await target.describe()
    assert (status.desired, status.ready) == (5, 5)
    assert "last advice: 5" in status.remarks


async def test_without_following_the_size_stays_as_configured() -> None:
    async with Advice(size=2, follow=False).connect(Nothing()) as target:
        await target.scale(5)
        status = await target.describe()
    assert (status.desired, status.ready) == (2, 2)
    assert "last advice: 5" in status.remarks


async def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        Advice(size=-1)
    async with Advice().connect(Nothing()) as target:
        with pytest.raises(RefusedError):
            await target.scale(-1)
