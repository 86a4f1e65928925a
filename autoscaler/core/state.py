"""Changes to a state between two steps, after a scale call that failed or was not made, or a clock that was set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from autoscaler.core.model import ClusterState, Learned, Observation, Rescale


def call_failed(state: ClusterState, error: str) -> ClusterState:
    """Record that the scale call failed. The next status of the target shows whether it took effect anyway."""
    if state.rescale is None or state.rescale.confirmed:
        return state
    # A request that may never have arrived cannot have been undone by another controller.
    return replace(state, rescale=replace(state.rescale, error=error), requested=None)


def call_withheld(state: ClusterState) -> ClusterState:
    """Take back a request that was never sent (dry run): an earlier rescale goes on, and no scale event counts."""
    rescale = state.rescale
    if rescale is None or rescale.confirmed:
        return state
    events = tuple(event for event in state.events if event.at != rescale.at)
    return replace(state, rescale=rescale.replaced, requested=None, events=events)


def rebase(state: ClusterState, shift: timedelta) -> ClusterState:
    """Move every time in the state by `shift`, so that all ages stay the same when the clock was set."""

    def moved(time: datetime | None) -> datetime | None:
        return None if time is None else time + shift

    def moved_rescale(rescale: Rescale | None) -> Rescale | None:
        return rescale and replace(
            rescale,
            at=rescale.at + shift,
            since=rescale.since + shift,
            replaced=moved_rescale(rescale.replaced),
            waiting_since=moved(rescale.waiting_since),
        )

    learned = state.learned
    return ClusterState(
        at=moved(state.at),
        desired=state.desired,
        watched_since=moved(state.watched_since),
        proposals=tuple(replace(proposal, at=proposal.at + shift) for proposal in state.proposals),
        events=tuple(replace(event, at=event.at + shift) for event in state.events),
        rescale=moved_rescale(state.rescale),
        cooldown_from=moved(state.cooldown_from),
        disturbance_ended_at=moved(state.disturbance_ended_at),
        last_missed=moved_rescale(state.last_missed),
        requested=moved(state.requested),
        override_times=tuple(at + shift for at in state.override_times),
        past=tuple(_moved_observation(observation, shift) for observation in state.past),
        learned=Learned(
            {size: replace(capacity, at=capacity.at + shift) for size, capacity in learned.capacity.items()},
            learned.durations,
            {policy: _moved_memory(memory, shift) for policy, memory in learned.memory.items()},
            learned.times,
        ),
    )


def _moved_memory(memory: Mapping[str, float], shift: timedelta) -> Mapping[str, float]:
    seconds = shift.total_seconds()
    return {name: number + seconds if name.endswith("_at") else number for name, number in memory.items()}


def _moved_observation(observation: Observation, shift: timedelta) -> Observation:
    metrics = {name: replace(reading, at=reading.at + shift) for name, reading in observation.metrics.items()}
    return replace(observation, at=observation.at + shift, metrics=metrics)
