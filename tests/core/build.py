"""Builders of the objects that the decision core works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from autoscaler.core.model import (
    Behaviour,
    ClusterSpec,
    EngineStatus,
    JobState,
    Limits,
    NamedPolicy,
    Observation,
    Policy,
    Reading,
    Reason,
    Recommendation,
    View,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def at(count: float) -> datetime:
    return T0 + seconds(count)


@dataclass(frozen=True, slots=True)
class Asks:
    """Asks for the size that the metric `ask` names; abstains when it is missing."""

    metric: str = "ask"

    def evaluate(self, view: View) -> Recommendation:
        number = view.number(self.metric)
        if number is None:
            return Recommendation(None, Reason.MISSING, detail=f"{self.metric} is missing")
        return asks(int(number), view.current)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A policy that always returns the same answer, or raises it if it is an exception."""

    answer: Any

    def evaluate(self, view: View) -> Recommendation:
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, int):
            return asks(self.answer, view.current)
        answer: Recommendation = self.answer
        return answer


def asks(replicas: int, current: int) -> Recommendation:
    reason = Reason.ABOVE if replicas > current else Reason.BELOW if replicas < current else Reason.STEADY
    return Recommendation(replicas, reason, {"ask": float(replicas)}, f"{replicas} are asked for")


def spec(*policies: Policy, **changes: Any) -> ClusterSpec:
    named = tuple(NamedPolicy(f"p{i}", policy) for i, policy in enumerate(policies or (Asks(),)))
    base = ClusterSpec(name="c", limits=Limits(1, 10), policies=named, down=Behaviour())
    return replace(base, **changes)


def seen(
    second: float,
    desired: int | None,
    ask: float | None = None,
    *,
    ready: int | None = -1,
    metrics: Mapping[str, float | tuple[float, ...]] | None = None,
    missing: Mapping[str, str] | None = None,
    engine: EngineStatus | None = None,
) -> Observation:
    numbers = dict(metrics or {})
    if ask is not None:
        numbers["ask"] = ask
    readings = {name: Reading(value, at(second)) for name, value in numbers.items()}
    there = desired if ready == -1 else ready
    return Observation(
        at=at(second), desired=desired, ready=there, metrics=readings, missing=missing or {}, engine=engine
    )


def running(slots: int, parallelism: int | None = None, **more: Any) -> EngineStatus:
    return EngineStatus(
        job=JobState.RUNNING, slots=slots, parallelism=slots if parallelism is None else parallelism, **more
    )
