"""Flink's published cases, and cases worked out from its sources: one function handles all kinds of them.

It runs every JSON file in `data` that holds a list of cases; test_batch.py runs those of batch jobs (batch.json).
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.schedulers.flink import FlinkSettings, default_max_delay
from autoscaler.schedulers.slots import (
    Bounds,
    required_slots,
    slot_allocation,
)
from autoscaler.schedulers.state_machine import Checkpoint, Event, Passed, Slots, Stop, advance

FILES = [json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "data").glob("*.json"))]
CASES = [
    case for cases in FILES if isinstance(cases, list) for case in cases if "kind" in case and case["kind"] != "batch"
]


def groups_of(inputs: dict[str, Any]) -> list[list[Bounds]]:
    return [[Bounds(lower, upper) for lower, upper in group] for group in inputs["groups_min_upper"]]


def rescaled_at(inputs: dict[str, Any]) -> float | None:
    """The first stop of a job that starts to execute at 0 and gets a slot with each change.

    `desired_at` is the time when it has all desired slots; without it, as in Reactive Mode, it never has.
    """
    before = 2
    wished_at, times = inputs["desired_at"], sorted(inputs["changes"])
    if wished_at is not None and times:
        times = sorted({*times, max(wished_at, times[0])})
    never = wished_at is None or inputs["mode"] == "reactive" or not times
    most = 1 << 15 if never else before + bisect_left(times, max(wished_at, times[0])) + 1
    changes: dict[str, Any] = {"groups": ((Bounds(1, most),),)}
    if FlinkSettings.of(inputs["version"]).cooldown:  # 1.18 has none
        changes |= {"cooldown": inputs["cooldown"]}
    changes |= {"stabilization": inputs["stab"], "max_delay": inputs["max_delay"]}
    reactive = inputs["mode"] == "reactive"
    settings = FlinkSettings.of(inputs["version"], reactive=reactive, checkpoint_interval=60.0, **changes)
    job = settings.executing(before, 0.0)
    events: list[Event] = [Slots(at, before + count) for count, at in enumerate(times, 1)]
    events += [Checkpoint(at) for at in inputs["checkpoints"]]
    events.sort(key=lambda event: (event.at, isinstance(event, Checkpoint)))
    for event in [*events, Passed(math.inf)]:
        job, done = advance(settings, job, event)
        for instruction in done:
            if isinstance(instruction, Stop):
                return instruction.at
    return None


def outcome(kind: str, inputs: dict[str, Any]) -> Any:
    match kind:
        case "slot_allocation":
            shares = slot_allocation(groups_of(inputs), inputs["free_slots"])
            return shares if shares is None else [list(group) for group in shares]
        case "required_slots":
            return required_slots(groups_of(inputs))
        case "config_default":
            interval = inputs["checkpoint_interval_s"] if inputs["checkpointing_enabled"] else None
            return default_max_delay(interval, inputs["max_checkpoint_failures"])
        case "adaptive_timeline":
            return rescaled_at(inputs)
        case _:
            raise AssertionError(f"nothing answers for the kind {kind}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_flinks_own_cases_give_flinks_results(case: dict[str, Any]) -> None:
    assert outcome(case["kind"], case["inputs"]) == case["expected"]


def test_a_kind_without_a_handler_is_an_error() -> None:
    with pytest.raises(AssertionError, match="nothing answers for the kind tides"):
        outcome("tides", {})


EVERY_MINUTE = list(range(60, 1000, 60))


@pytest.mark.parametrize(
    ("version", "settings", "changes", "checkpoints", "wished_at", "expected"),
    [
        ("1.18", (30, 60, 180), [], EVERY_MINUTE, None, None),
        ("1.18", (30, 60, 180), [0], [], None, 0),
        ("1.18", (30, 60, 180), [10, 20], [], None, 10),
        ("1.18.1", (30, 60, 180), [10], [], None, 10),
        ("1.19", (30, 60, 180), [10, 20], [], None, 30),
        ("1.20", (30, 60, 180), [30], [], None, 30),  # not after the interval yet: it waits for its end, which is now
        ("1.20", (0, 60, 180), [7], [], None, 7),
        ("1.20", (45, 60, 180), [10], [], 10, 45),  # having all desired slots changes nothing
        ("2.x", (30, 60, 180), [], EVERY_MINUTE, None, None),
        ("2.0", (30, 60, 180), [100, 130, 155], EVERY_MINUTE, None, 180),  # later changes do not prolong the wait
        ("2.3", (30, 60, 180), [60], EVERY_MINUTE, None, 120),  # a checkpoint at the end of the wait counts
        ("2.3", (30, 60, 180), [61], EVERY_MINUTE, None, 180),
        ("2.3", (30, 60, 0), [100], [], None, 160),
        ("2.3", (30, 60, 45), [100], [], None, 160),  # it waits for no checkpoint, but for stable slots
        ("2.3", (30, 60, 100), [100], EVERY_MINUTE, None, 180),
        ("2.3", (30, 60, 70), [100], EVERY_MINUTE, None, 170),
        ("2.3", (90, 20, 180), [10], EVERY_MINUTE, None, 120),  # the wait is over when the cooldown is
        ("2.3", (90, 20, 0), [10], [], None, 90),
        ("2.3", (0, 0, 0), [10], [], None, 10),
        ("2.3", (30, 60, 180), [10], EVERY_MINUTE, 10, 60),  # all come in the cooldown: the first checkpoint after it
        ("2.3", (30, 60, 180), [100, 130], EVERY_MINUTE, 130, 180),  # at 120 one was missing
        ("2.3", (30, 60, 0), [100, 130], [], 130, 130),
        ("2.3", (30, 60, 40), [100, 130], [], 130, 140),
        ("2.3", (30, 60, 20), [100, 130], [], 130, 150),
        ("2.3", (30, 60, 20), [100, 150], [], 150, 160),  # stable before the second poll
        ("2.3", (30, 60, 180), [100], EVERY_MINUTE, 0, 120),
        ("2.3", (30, 60, 0), [100], [], 110, 110),
    ],
)
def test_timelines_calculated_by_hand(
    version: str,
    settings: tuple[float, float, float],
    changes: list[float],
    checkpoints: list[float],
    wished_at: float | None,
    expected: float | None,
) -> None:
    inputs: dict[str, Any] = dict(zip(("cooldown", "stab", "max_delay"), settings, strict=True))
    inputs |= {"version": version, "changes": changes, "checkpoints": checkpoints, "desired_at": wished_at}
    assert rescaled_at(inputs | {"mode": "reactive" if wished_at is None else "default"}) == expected


seconds = st.integers(0, 300)


@given(seconds, seconds, seconds, seconds, st.sets(seconds), st.booleans())
def test_after_one_change_a_job_is_rescaled_when_a_formula_holds(
    cooldown: int, stab: int, max_delay: int, change: int, checkpoints: set[int], wished: bool
) -> None:
    def first(since: int, limit: int) -> int:
        """The first checkpoint from then on, but no later than the limit."""
        return min((at for at in checkpoints if since <= at <= limit), default=limit)

    begin = max(change, cooldown)
    checked = max(change + max_delay, begin)  # without a checkpoint
    stable = max(change + stab, begin)
    expected = first(stable, max(checked, stable))
    if wished:
        expected = min(expected, first(begin, checked))
    inputs = {"version": "2.x", "cooldown": cooldown, "stab": stab, "max_delay": max_delay, "changes": [change]}
    inputs |= {"checkpoints": sorted(checkpoints), "desired_at": change if wished else None, "mode": "default"}
    assert rescaled_at(inputs) == expected


@given(seconds, st.lists(seconds, min_size=1, unique=True), st.sampled_from(["1.18", "1.19", "1.20"]))
def test_until_1_20_the_first_change_counts_at_once_or_after_the_interval(
    interval: int, changes: list[int], version: str
) -> None:
    inputs = {"version": version, "cooldown": interval, "stab": 60, "max_delay": 180, "changes": changes}
    expected = min(changes) if version == "1.18" else max(min(changes), interval)
    assert rescaled_at(inputs | {"checkpoints": [], "desired_at": None, "mode": "reactive"}) == expected
