"""When the daemon runs full garbage collections."""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from autoscaler.daemon.garbage import CHECK_INTERVAL, GROWTH, collect_on_growth, used_memory
from autoscaler.testing import virtual_time


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The calls of the garbage collector."""
    thresholds = gc.get_threshold()
    asked: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: asked.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: asked.append("freeze"))
    yield asked
    gc.set_threshold(*thresholds)


def while_it_runs(blocks: list[int], test: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        task = asyncio.create_task(collect_on_growth(lambda: (0, blocks[-1])))
        await asyncio.sleep(1.5 * CHECK_INTERVAL)
        await test
        task.cancel()

    virtual_time.run(main())


def test_a_full_collection_needs_many_more_objects(collections: list[str]) -> None:
    blocks = [1000]

    async def test() -> None:
        assert collections == ["collect", "freeze"]  # Objects that exist after the start are assumed to stay.
        blocks.append(int(GROWTH * 1000))
        await asyncio.sleep(1000 * CHECK_INTERVAL)
        assert collections == ["collect", "freeze"]
        blocks.append(int(GROWTH * 1000) + 1)
        await asyncio.sleep(1000 * CHECK_INTERVAL)
        assert collections == ["collect", "freeze", "collect"]

    while_it_runs(blocks, test())


def test_pythons_own_full_collections_do_not_run(collections: list[str]) -> None:
    young, middle, _ = gc.get_threshold()

    async def test() -> None:
        assert gc.get_threshold() == (young, middle, 2**31 - 1)

    while_it_runs([1000], test())
    assert collections


def test_pythons_own_full_collections_run_if_memory_usage_is_unknown(collections: list[str]) -> None:
    before = gc.get_threshold()

    async def test() -> None:
        await asyncio.sleep(1000 * CHECK_INTERVAL)
        assert gc.get_threshold() == before
        assert collections == ["collect", "freeze"]

    while_it_runs([0], test())


def test_large_objects_count_by_their_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, before = used_memory()
    large = bytearray(b"x" * 50_000_000)
    _, after = used_memory()
    assert (after - before) * resource.getpagesize() > len(large) // 2
    monkeypatch.setattr("autoscaler.daemon.garbage._PAGES", tmp_path / "missing")
    blocks, pages = used_memory()
    assert (blocks > 0, pages) == (True, 0)


def test_small_objects_count_although_their_memory_is_not_returned() -> None:
    before, _ = used_memory()
    small = [object() for _ in range(100_000)]
    during, _ = used_memory()
    del small
    after, _ = used_memory()
    assert during - before > 90_000
    assert during - after > 90_000
