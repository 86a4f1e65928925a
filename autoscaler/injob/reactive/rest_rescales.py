"""Derive the rescales of a reactive job from its timeline, counted as Flink 2.3 counts them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.injob.reactive.snapshot import Failure, Snapshot, State, Step

UNDEPLOYED = frozenset({State.CREATED, State.WAITING_FOR_RESOURCES, State.CREATING})
SCHEDULER_STATE = {
    State.CREATED: "Created",
    State.WAITING_FOR_RESOURCES: "WaitingForResources",
    State.CREATING: "CreatingExecutionGraph",
    State.EXECUTING: "Executing",
    State.RESTARTING: "Restarting",
}
CLOSED_BY = {
    State.FAILING: "JOB_FAILED",
    State.FAILED: "JOB_FAILED",
    State.CANCELING: "JOB_CANCELED",
    State.CANCELED: "JOB_CANCELED",
    State.FINISHED: "JOB_FINISHED",
}
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


def millis(at: float) -> int:
    """Seconds as whole milliseconds."""
    return round(at * 1000)


def identifier(*parts: object) -> str:
    """An id of 32 hexadecimal digits, always the same for the same parts."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:32]


def statistics(values: Sequence[int]) -> dict[str, object]:
    """Minimum, maximum, mean and percentiles, as Flink summarizes durations."""
    ordered = sorted(values)

    def percentile(share: float) -> float | str:
        if not ordered:
            return "NaN"
        position = min(max(share * (len(ordered) + 1), 1.0), float(len(ordered)))
        below = ordered[int(position) - 1]
        above = ordered[min(int(position), len(ordered) - 1)]
        return below + (position - int(position)) * (above - below)

    low, high, mean = (ordered[0], ordered[-1], sum(ordered) // len(ordered)) if ordered else (0, 0, 0)
    return {"min": low, "max": high, "avg": mean, **{name: percentile(share) for name, share in PERCENTILES.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescale:
    """An attempt to run on other slots, or to run again after a failure; times are seconds since 1970.

    Attributes:
        steps: the steps of the timeline, each with another state than the one before.
        cause: Flink's TriggerCause.
        began: when the rescale was triggered.
        ended: when it was completed or given up; None while it is in progress.
        reason: Flink's TerminatedReason; None while it is in progress.
        requirements, attempt: the number of the bounds that the rescale follows, and the number of this attempt to
            follow them; both from 1.
    """

    steps: tuple[Step, ...]
    cause: str
    began: float
    ended: float | None = None
    reason: str | None = None
    requirements: int = 1
    attempt: int = 1

    @property
    def terminal(self) -> str | None:
        """Flink's TerminalState."""
        if self.reason is None:
            return None
        return {"SUCCEEDED": "COMPLETED", "EXCEPTION_OCCURRED": "FAILED"}.get(self.reason, "IGNORED")


def failure_between(job: Snapshot, since: float, until: float) -> Failure | None:
    """The last failure after `since` and no later than `until`."""
    return next((failure for failure in reversed(job.failures) if since < failure.at <= until), None)


def trigger_cause(job: Snapshot, before: Step | None, step: Step) -> str:
    """Why a rescale began."""
    if before is None or step.state in UNDEPLOYED:
        return "INITIAL_SCHEDULE"
    if failure_between(job, before.at, step.at) or step.slots < step.before:
        return "RECOVERABLE_FAILOVER"
    # A restart on the same number of slots as before repartitions state for slots that were added earlier.
    updated = step.slots == before.slots and step.before != step.after
    return "UPDATE_REQUIREMENT" if updated else "NEW_RESOURCE_AVAILABLE"


class _Attempts:
    """The rescales found so far. The last one may still be in progress: `open` has its steps."""

    def __init__(self, job: Snapshot) -> None:
        self.found: list[Rescale] = []
        self.open: list[Step] = []
        self._job = job
        self._cause = ""
        self._began = 0.0

    def begin(self, before: Step | None, step: Step) -> None:
        self._cause, self._began = trigger_cause(self._job, before, step), step.at
        # As in Flink, the first phase of a rescale is the phase in which the job ran before.
        self.open = [before, step] if before and before.state is State.EXECUTING else [step]

    def close(self, at: float | None, reason: str | None) -> None:
        last = self.found[-1] if self.found else None
        updated = last is not None and self._cause == "UPDATE_REQUIREMENT"
        self.found.append(
            Rescale(
                steps=tuple(self.open),
                cause=self._cause,
                began=self._began,
                ended=at,
                reason=reason,
                requirements=(last.requirements if last else 1) + updated,
                attempt=1 if last is None or updated else last.attempt + 1,
            )
        )
        self.open = []

    def give_up(self, step: Step, reason: str) -> None:
        """Close the open rescale as given up, because the job enters a state that is not part of it."""
        last = self.open[-1]
        ended = step.state in {State.FAILING, State.FAILED}
        if last.state is State.CREATING and (ended or failure_between(self._job, last.at, step.at)):
            reason = "EXCEPTION_OCCURRED"
        self.close(step.at, reason)

    def start(self, before: Step | None, step: Step) -> None:
        """Handle a step in which the job waits, starts or restarts."""
        again = step.state in {State.RESTARTING, State.CREATED}
        if self.open and again and self.open[-1].state is not step.state:
            self.give_up(step, "JOB_FAILOVER_RESTARTING")
        if not self.open:
            self.begin(before, step)
        elif self.open[-1].state is not step.state:
            self.open.append(step)

    def run(self, before: Step | None, step: Step) -> None:
        """Handle a step in which the job starts to run, or continues to run without a rescale."""
        if self.open:
            self.open.append(step)
            self.close(step.at, "SUCCEEDED")
        elif before and before.state is State.EXECUTING:
            self.begin(None, step)
            self._cause = trigger_cause(self._job, before, step)
            self.close(step.at, "NO_RESOURCES_OR_PARALLELISMS_CHANGE")


def rescales(job: Snapshot) -> list[Rescale]:
    """The rescales of the timeline, oldest first."""
    attempts = _Attempts(job)
    before = None
    for step in job.timeline:
        if step.state is State.EXECUTING:
            attempts.run(before, step)
        elif step.state in SCHEDULER_STATE:
            attempts.start(before, step)
        elif attempts.open and step.state in CLOSED_BY:
            attempts.give_up(step, CLOSED_BY[step.state])
        before = step
    if attempts.open:
        attempts.close(None, None)
    return attempts.found


def spans(job: Snapshot, one: Rescale) -> list[dict[str, object]]:
    """The phases of a rescale with their durations, in Flink's format."""
    ends = [*(step.at for step in one.steps[1:]), one.ended]
    shown: list[dict[str, object]] = []
    since = one.began - 1.0  # used if the rescale does not begin with a phase in which the job runs
    for step, end in zip(one.steps, ends, strict=True):
        failure = None
        if step.state is State.RESTARTING:
            failure = failure_between(job, since, step.at)
        elif step.state is State.CREATING and one.terminal == "FAILED":
            failure = failure_between(job, step.at, job.now if end is None else end)
        shown.append(
            {
                "state": SCHEDULER_STATE[step.state],
                "enterTimestampInMillis": millis(step.at),
                "leaveTimestampInMillis": None if end is None else millis(end),
                "durationInMillis": None if end is None else millis(end) - millis(step.at),
                "stringifiedException": failure and f"{failure.error}: {failure.text}",
            }
        )
        since = step.at
    return shown
