"""When a rescale stopped the job and when the job ran again, as far as observations show it."""

from __future__ import annotations

from datetime import datetime, timedelta

from autoscaler.core.model import SAME_RUN, ClusterState, Direction, JobState, Observation, Rescale, RescaleTimes

STATUS_AGE = timedelta(seconds=5)
"""How old the job state that an engine reports may be (Flink: 3 s)."""

_STOPPED = frozenset({JobState.STARTING, JobState.RESTARTING})


def observed_times(rescale: Rescale, state: ClusterState, observation: Observation) -> RescaleTimes:
    """The times of a requested rescale, computed at the first observation of the job running with the new size.

    If the engine reports since when the job has been running, that time is exact.
    """
    at, requested, replicas = observation.at, rescale.at, abs(rescale.to - rescale.before)
    since = None if observation.engine is None else observation.engine.running_since
    if since is None or not requested < since <= at:
        after = requested if state.at is None else max(state.at, requested)
        stopped = None if since is None or since > at else _seconds(at - requested)
        return RescaleTimes(stopped, stopped, _seconds(after - requested), _seconds(at - requested), replicas)
    after, before = since, since
    for seen in reversed(state.past):
        # A Flink job is RUNNING before its tasks have restored their state.
        if seen.at > since + STATUS_AGE and seen.engine is not None and seen.engine.job in _STOPPED:
            after, before = seen.at, at
            break
    stops = _stopped(rescale, since, (*state.past, observation))
    return RescaleTimes(stops[0], stops[1], _seconds(after - requested), _seconds(before - requested), replicas)


def _stopped(
    rescale: Rescale, since: datetime, observations: tuple[Observation, ...]
) -> tuple[float, float] | tuple[None, None]:
    """The two times between which the previous run ended, in seconds after the request."""
    following = since
    for seen in reversed(observations):
        engine = seen.engine
        began = engine.running_since if engine is not None and engine.job is JobState.RUNNING else None
        if began is not None and began < since - SAME_RUN:
            if seen.at <= rescale.at and rescale.direction is Direction.DOWN:
                return 0.0, 0.0  # replicas that are removed on request stop at once
            return _seconds(max(seen.at, rescale.at) - rescale.at), _seconds(min(following, since) - rescale.at)
        following = seen.at
    return None, None


def _seconds(span: timedelta) -> float:
    return round(span.total_seconds(), 2)
