"""When to run a full garbage collection: it blocks everything else, for 0.8 s with 10,000 clusters."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

GROWTH = 2.0
"""Factor by which memory may grow from one full collection to the next; at worst all growth is garbage."""

CHECK_INTERVAL = 1.0
"""Seconds between two checks of the memory."""

_NEVER = 2**31 - 1
_PAGES = Path("/proc/self/statm")


def used_memory() -> tuple[int, int]:
    """Allocated blocks of small objects, and memory pages of this process; 0 if not known.

    Pages show large objects, whose memory is returned to the system. Small objects are counted by their blocks, because
    Python keeps their freed memory for later objects.
    """
    try:
        pages = int(_PAGES.read_text().split()[1])
    except OSError:
        pages = 0
    return sys.getallocatedblocks(), pages


async def collect_on_growth(memory: Callable[[], Sequence[int]] = used_memory) -> None:
    """Run full collections when memory has grown, instead of by Python's own rule, until cancelled.

    Python counts the objects that survive the younger generations, even if they are freed soon afterwards. An answer
    with a sample for each of thousands of clusters would trigger a full collection every few seconds, although
    reference counting frees it when the next answer arrives. Objects that exist after the start are assumed to be
    permanent, and all collections skip them (`gc.freeze`).

    Args:
        memory: the used memory by several measures in any units; 0 for a measure that is not known.
    """
    if any(memory()):
        gc.set_threshold(*gc.get_threshold()[:2], _NEVER)
    await asyncio.sleep(CHECK_INTERVAL)
    gc.collect()
    gc.freeze()
    before = memory()
    while True:
        await asyncio.sleep(CHECK_INTERVAL)
        if any(now > GROWTH * was > 0 for now, was in zip(memory(), before, strict=True)):
            gc.collect()
            before = memory()
