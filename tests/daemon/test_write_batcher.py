"""Group commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from autoscaler.daemon import write_batcher
from autoscaler.daemon.write_batcher import WriteBatcher


async def test_writes_soon_after_a_batch_are_applied_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_batcher, "PAUSE", 0.5)
    batches: list[Sequence[int]] = []
    batcher: WriteBatcher[int] = WriteBatcher("test", batches.append)
    await batcher.put(1)
    tasks = []
    for number in (2, 3, 4):
        tasks.append(asyncio.create_task(batcher.put(number)))
        await asyncio.sleep(0.001)
    await asyncio.gather(*tasks)
    await batcher.close(lambda: None)
    assert batches == [[1], [2, 3, 4]]


async def test_an_urgent_write_is_applied_at_once_with_all_waiting_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_batcher, "PAUSE", 3600.0)
    batches: list[Sequence[int]] = []
    batcher: WriteBatcher[int] = WriteBatcher("test", batches.append)
    await batcher.put(1)
    waiting = asyncio.create_task(batcher.put(2))
    await asyncio.sleep(0)
    await batcher.put(3, at_once=True)
    await waiting
    await batcher.close(lambda: None)
    assert batches == [[1], [2, 3]]
