"""The policy in docs/plugins.md that learns and moves the bounds: its code runs as printed there."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autoscaler.core.model import (
    ClusterSpec,
    ClusterState,
    Decision,
    Limits,
    NamedPolicy,
    Observation,
    Policy,
    Reading,
    Reason,
)
from autoscaler.core.step import step
from autoscaler.testing import PolicyContract

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The example as a module, as a reader who copies it would have it."""
    (block,) = (
        found for found in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "def learn" in found
    )
    path = tmp_path_factory.mktemp("example") / "autoscaler_peak.py"
    path.write_text(block)
    spec = importlib.util.spec_from_file_location("autoscaler_peak", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def peak(example: ModuleType) -> Policy:
    policy: Policy = example.Peak(per_replica=100)
    return policy


class TestContract(PolicyContract):
    @pytest.fixture
    def policy(self, peak: Policy) -> Policy:
        return peak


def steps(peak: Any, *loads: float, begin: datetime = NOON) -> tuple[ClusterState, list[Decision]]:
    """Run a step each half hour, each with the size that the previous step decided, which is ready at once."""
    spec = ClusterSpec(
        name="c", limits=Limits(1, 10), policies=(NamedPolicy("peak", peak),), interval=timedelta(minutes=30)
    )
    state, decisions, size = ClusterState(), [], 6
    for number, load in enumerate(loads):
        at = begin + number * timedelta(minutes=30)
        state, decision = step(
            spec, state, Observation(at=at, desired=size, ready=size, metrics={"sessions": Reading(load, at)})
        )
        decisions.append(decision)
        size = decision.desired
    return state, decisions


def test_it_keeps_the_size_for_the_greatest_load(peak: Policy) -> None:
    state, decisions = steps(peak, 550.0, 200.0, 200.0, 200.0)
    assert [decision.desired for decision in decisions] == [6, 6, 6, 6]
    assert state.learned.memory == {"peak": {"peak": 550.0, "peak.seen_at": NOON.timestamp()}}
    assert decisions[-1].recommendations[0].inputs == {"peak": 550.0}


def test_a_peak_is_forgotten_gradually(peak: Policy) -> None:
    state, _ = steps(peak, 550.0, *[200.0] * 40)  # 550 counts for less than 200 after 12 h * log2(2.75) = 17 h 31 min
    memory = state.learned.memory["peak"]
    assert memory["peak"] == 200
    assert memory["peak.seen_at"] >= (NOON + timedelta(hours=17.5)).timestamp()


def test_nothing_changes_while_batches_run(peak: Policy) -> None:
    _, decisions = steps(peak, 900.0, begin=NOON.replace(hour=3))
    assert [decision.desired for decision in decisions] == [6]
    assert decisions[0].reason is Reason.BOUNDS
    assert "batches are running" in decisions[0].verdicts[-1].detail
    _, decisions = steps(peak, 900.0, begin=NOON.replace(hour=4))
    assert [decision.desired for decision in decisions] == [9]
