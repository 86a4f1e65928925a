"""Recorded behaviour of a real Flink, and the result of the state machine for the same events.

The external events are the slots, the killed workers, the completed checkpoints and the duration of each restore. From
them the state machine has to derive when the job stops, and when it is deployed with which parallelism.

Most events of the real Flink lie between two polls, so the state machine is run twice: with all of them as early as
possible, and with all as late as possible. The real result has to lie between the two.
"""

from __future__ import annotations

import json
import math
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

from autoscaler.schedulers.flink import FlinkSettings
from autoscaler.schedulers.slots import reactive_bounds
from autoscaler.schedulers.state_machine import (
    Checkpoint,
    Deploy,
    Event,
    Job,
    Killed,
    Passed,
    Restored,
    Slots,
    Stop,
    advance,
)

# The relevant settings: Flink's names, and ours.
_NAMES = {
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "cooldown",
    "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout": "stabilization",
    "jobmanager.adaptive-scheduler.rescale-trigger.max-delay": "max_delay",
    "jobmanager.adaptive-scheduler.submission.resource-stabilization-timeout": "submission_stabilization",
    "heartbeat.timeout": "heartbeat",
    "restart-strategy.exponential-delay.initial-backoff": "delay",
    "restart-strategy.exponential-delay.max-backoff": "longest",
}


@dataclass(frozen=True, slots=True)
class Span:
    """An event happened in this interval. Both ends are seconds since the recording began."""

    earliest: float
    latest: float

    def at(self, late: bool) -> float:
        """One of the two ends."""
        return self.latest if late else self.earliest


@dataclass(frozen=True, slots=True)
class Change:
    """The slots that the job has from then on."""

    span: Span
    slots: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Workers with so many slots were killed."""

    at: float
    slots: int


@dataclass(frozen=True, slots=True)
class Deployment:
    """One deployment of the job.

    Attributes:
        at: its time; a real Flink has a time stamp for it.
        parallelism: the greatest of all vertices.
        restored: when all of its tasks ran; None: never, as on a dead worker whose heartbeat has not timed out.
        stopped: when they no longer ran; None: they ran until the end of the recording.
    """

    at: Span
    parallelism: int
    restored: Span | None = None
    stopped: Span | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """A recording.

    Attributes:
        version: of Flink.
        settings: the configuration, in seconds.
        key_groups: the job's max parallelism.
        slots: slots of the job.
        killed: workers that were killed.
        checkpoints: their completion times.
        deployments: of the job, in order.
        end: the end of the recording.
    """

    version: str
    settings: Mapping[str, float]
    key_groups: int
    slots: tuple[Change, ...]
    killed: tuple[Kill, ...]
    checkpoints: tuple[float, ...]
    deployments: tuple[Deployment, ...]
    end: float

    @property
    def resolution(self) -> float:
        """The largest uncertainty of an event due to polling, in seconds."""
        spans = [change.span for change in self.slots]
        spans += [span for each in self.deployments for span in (each.restored, each.stopped) if span is not None]
        return max(span.latest - span.earliest for span in spans)

    def to_json(self) -> str:
        """The recording as JSON, one line per event."""
        fields = []
        for name, value in asdict(self).items():
            lines = ",\n".join(f"  {json.dumps(each)}" for each in value) if isinstance(value, tuple) else ""
            fields.append(f" {json.dumps(name)}: " + (f"[\n{lines}\n ]" if lines else json.dumps(value)))
        return "{\n" + ",\n".join(fields) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Timeline:
        """Read the output of `to_json`."""
        found = json.loads(text)
        return cls(
            version=found["version"],
            settings=found["settings"],
            key_groups=found["key_groups"],
            slots=tuple(_change(each) for each in found["slots"]),
            killed=tuple(Kill(**each) for each in found["killed"]),
            checkpoints=tuple(found["checkpoints"]),
            deployments=tuple(
                Deployment(_span(each["at"]), each["parallelism"], _maybe(each["restored"]), _maybe(each["stopped"]))
                for each in found["deployments"]
            ),
            end=found["end"],
        )


def flink_settings(timeline: Timeline) -> FlinkSettings:
    """The configuration of the recorded Flink as settings of the state machine."""
    groups = ((reactive_bounds(timeline.key_groups),),)
    changes: dict[str, Any] = {ours: timeline.settings[name] for name, ours in _NAMES.items()}
    interval = timeline.settings["execution.checkpointing.interval"]
    return FlinkSettings.of(timeline.version, checkpoint_interval=interval, **changes, groups=groups)


def modelled(timeline: Timeline, *, late: bool) -> list[Deployment]:
    """The result of the state machine with all events at their latest or at their earliest time.

    Without deployments on dead workers, which fail at once.
    """
    settings = flink_settings(timeline)
    if not late:
        # The timeout counts from the last heartbeat before the kill. And it is chance whether connections are refused
        # before the tasks are cancelled; if so, part of the delay may be over when the dead worker is noticed.
        heartbeat = settings.heartbeat - timeline.settings["heartbeat.interval"]
        settings = replace(settings, heartbeat=heartbeat, refused=True)
    restores = iter([real.restored.at(late) - real.at.earliest for real in timeline.deployments if real.restored])
    events = _outside(timeline, late=late)
    job = Job()
    found: list[Deployment] = []
    while (at := min(events[0].at if events else math.inf, job.wakes_at)) <= timeline.end:
        event = events.pop(0) if events and events[0].at == at else Passed(at)
        job, instructions = advance(settings, job, event)
        for output in instructions:
            if isinstance(output, Deploy):
                found.append(Deployment(Span(output.at, output.at), output.parallelism))
            elif isinstance(output, Stop) and output.at == found[-1].at.latest:
                found.pop()
            elif isinstance(output, Stop):
                found[-1] = _stopped(found[-1], output.at)
                events = [each for each in events if not isinstance(each, Restored)]
        if instructions and isinstance(instructions[-1], Deploy):
            took = max(0.0, next(restores, math.inf))
            insort(events, Restored(found[-1].at.latest + took), key=attrgetter("at"))
        if isinstance(event, Restored):
            found[-1] = replace(found[-1], restored=Span(at, at))
        elif isinstance(event, Killed):
            # Deployments before the kill is noticed do not count.
            found[-1] = _stopped(found[-1], at)
    return found


def _stopped(deployment: Deployment, at: float) -> Deployment:
    return deployment if deployment.stopped else replace(deployment, stopped=Span(at, at))


def _outside(timeline: Timeline, *, late: bool) -> list[Event]:
    """The external events in order. The slots of a killed worker disappear when that is noticed: not an event."""
    found: list[Event] = [Passed(0.0)]
    found += [Killed(each.at, each.slots) for each in timeline.killed]
    kills = list(timeline.killed)
    dead = 0
    for before, after in pairwise([Change(Span(0.0, 0.0), 0), *timeline.slots]):
        while kills and kills[0].at < after.span.latest:
            dead += kills.pop(0).slots
        if dead and before.slots - after.slots == dead:
            dead = 0
        else:
            found.append(Slots(after.span.at(late), after.slots - dead))
    # Of simultaneous events the slots come first.
    found += [Checkpoint(at) for at in timeline.checkpoints]
    return sorted(found, key=attrgetter("at"))


def differences(timeline: Timeline) -> list[tuple[str, float]]:
    """By how many seconds the real Flink was later (more than 0) or earlier than the state machine allows.

    The value is 0 if it lies between the earliest and the latest result. Deployments that never ran are no difference:
    a real Flink repeatedly tries to use a dead worker until its heartbeat times out.

    Raises:
        AssertionError: another parallelism, or one deployment or stop more or less.
    """
    real = [each for each in timeline.deployments if each.restored]
    early, late = modelled(timeline, late=False), modelled(timeline, late=True)
    shapes = [_shape(each) for each in (early, real, late)]
    assert shapes[0] == shapes[1] == shapes[2], f"parallelism, and whether it stopped; early, real, late: {shapes}"
    found: list[tuple[str, float]] = []
    for first, there, last in zip(early, real, late, strict=True):
        found.append((f"deployed with {there.parallelism}", _beyond(first.at, there.at, last.at)))
        if first.stopped and there.stopped and last.stopped:
            found.append((f"stopped with {there.parallelism}", _beyond(first.stopped, there.stopped, last.stopped)))
    return found


def _shape(deployments: Iterable[Deployment]) -> list[tuple[int, bool]]:
    return [(each.parallelism, each.stopped is not None) for each in deployments]


def _beyond(first: Span, real: Span, last: Span) -> float:
    if real.earliest > last.latest:
        return real.earliest - last.latest
    return min(0.0, real.latest - first.earliest)


def _span(found: Mapping[str, float]) -> Span:
    return Span(found["earliest"], found["latest"])


def _maybe(found: Mapping[str, float] | None) -> Span | None:
    return None if found is None else _span(found)


def _change(found: Mapping[str, Any]) -> Change:
    return Change(_span(found["span"]), found["slots"])
