"""Watches a real Flink and writes down what happened to its job from outside, and what its scheduler made of it.

A recorder asks the JobManager's REST API all the time: a poll takes a few hundredths of a second, and there is a tenth
between two. What one poll shows and the one before did not has happened between the two: each observed change has an
earliest and a latest time, and no more is claimed. Checkpoints and deployments carry Flink's own time stamps.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from tests.e2e.flink_cluster import FlinkCluster, until
from tests.schedulers.recorded import Change, Deployment, Kill, Span, Timeline

PAUSE = 0.1  # seconds between two polls
CACHED = 0.05  # seconds for which the REST API repeats itself

RECORDED = {
    "web.refresh-interval": str(round(CACHED * 1000)),  # milliseconds, for the job
    "rest.cache.checkpoint-statistics.timeout": f"{round(CACHED * 1000)}ms",
}
"""Settings that a cluster needs so that what it reports is not three seconds old."""


@dataclass(frozen=True, slots=True)
class _Poll:
    """What the JobManager said, seconds since 1970.

    Attributes:
        asked: before it was asked, and before what it may have repeated.
        answered: when it had answered.
        slots: slots that the job holds, whether it uses them or not.
        deployed: when the job was last deployed; None: it never was, or waits for slots.
        parallelism: with which.
        running: whether all of its tasks run.
    """

    asked: float
    answered: float
    slots: int
    deployed: float | None
    parallelism: int
    running: bool


class Recorder:
    """Looks at a cluster until the end of the context that made it."""

    def __init__(self, flink: FlinkCluster) -> None:
        self._flink = flink
        self._polls: list[_Poll] = []
        self._checkpoints: dict[int, float] = {}
        self._killed: list[tuple[float, int]] = []
        self._deployed: float | None = None
        self._error: Exception | None = None
        self._version = ""
        self._ended = threading.Event()
        self._began = time.time()

    def runs_with(self, parallelism: int) -> None:
        """Wait until the job was deployed anew with so many slots, which are all it holds, and runs."""

        def seen() -> bool:
            last = self._last()
            new = last.running and last.deployed != self._deployed
            return new and last.slots == last.parallelism == parallelism

        until(seen, what=f"for the job to run with {parallelism} slots")
        self._deployed = self._last().deployed

    def holds(self, slots: int) -> None:
        """Wait until the job holds so many slots, whether it uses them or not."""
        until(lambda: self._last().slots == slots, what=f"for {slots} slots")

    def holds_others_than(self, slots: int) -> None:
        """Wait until the job no longer holds so many slots."""
        until(lambda: self._last().slots != slots, what=f"for others than {slots} slots")

    def held_for(self, seconds: float) -> None:
        """Wait until no slot has come or gone for so many seconds."""

        def seen() -> object:
            slots = self._last().slots
            same = list(takewhile(lambda poll: poll.slots == slots, reversed(self._polls)))
            return same and same[0].asked > same[-1].answered + seconds

        until(seen, what=f"for slots that are the same for {seconds:g} s")

    def checkpoint(self) -> None:
        """Have the job make a checkpoint, and wait until it is known when it was complete."""
        number = self._flink.take_checkpoint()
        until(lambda: number in self._checkpoints, what=f"for checkpoint {number}")

    def ran_for(self, seconds: float) -> None:
        """Wait until the last deployment is so many seconds old."""
        deployed = self._deployed
        assert deployed is not None, "the job is to run first"
        until(lambda: time.time() > deployed + seconds)

    def stop(self, number: int) -> None:
        """Stop a TaskManager in good order: it says that it goes."""
        self._flink.end_task_manager(number, signal.SIGTERM)

    def kill(self, number: int, slots: int = 1) -> None:
        """Kill a TaskManager that has so many slots."""
        self._flink.end_task_manager(number, signal.SIGKILL)
        self._killed.append((time.time(), slots))

    def timeline(self, settings: Mapping[str, float]) -> Timeline:
        """What happened, in seconds since the recording began.

        Args:
            settings: what Flink was configured with, in seconds, as far as it matters.
        """
        polls = [_since(self._began, poll) for poll in self._polls]
        return Timeline(
            version=self._version,
            settings=settings,
            key_groups=self._flink.job.max_parallelism,
            slots=tuple(_slots(polls)),
            killed=tuple(Kill(round(at - self._began, 3), slots) for at, slots in self._killed),
            checkpoints=tuple(round(at - self._began, 3) for at in sorted(self._checkpoints.values())),
            deployments=tuple(_deployments(polls)),
            end=polls[-1].answered,
        )

    def _last(self) -> _Poll:
        if self._error is not None:
            raise self._error
        return self._polls[-1] if self._polls else _Poll(0.0, 0.0, 0, None, 0, running=False)

    def _watch(self) -> None:
        while not self._ended.wait(PAUSE):
            try:
                self._poll()
            except OSError:
                # It does not answer yet, or no longer: what changes meanwhile is known less exactly.
                continue
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                self._error = error
                return

    def _poll(self) -> None:
        asked = time.time() - CACHED
        overview = self._flink.get("/overview")
        self._version = overview["flink-version"]
        number = self._flink.job_id()
        job = self._flink.get(f"/jobs/{number}")
        answered = time.time()
        if not job["vertices"]:
            return  # it is being set up
        deployed = job["timestamps"]["RUNNING"]
        tasks = [(vertex["tasks"], vertex["parallelism"]) for vertex in job["vertices"]]
        poll = _Poll(
            asked=asked,
            answered=answered,
            # In Reactive Mode the job is given every slot; the slot counts as soon as it is, not when it is known.
            slots=overview["slots-total"] - overview["slots-available"],
            deployed=deployed / 1000 if deployed > 0 else None,
            parallelism=max(parallelism for _, parallelism in tasks),
            running=job["state"] == "RUNNING" and all(count["RUNNING"] == parallelism for count, parallelism in tasks),
        )
        self._polls.append(poll)
        for each in self._flink.get(f"/jobs/{number}/checkpoints")["history"]:
            if each["status"] == "COMPLETED":
                self._checkpoints[each["id"]] = each["latest_ack_timestamp"] / 1000


@contextmanager
def recorded(flink: FlinkCluster) -> Iterator[Recorder]:
    """Record what a cluster does; it has to have a JobManager by the first poll, not before."""
    recorder = Recorder(flink)
    watching = threading.Thread(target=recorder._watch, name="recorder")
    watching.start()
    try:
        yield recorder
    finally:
        recorder._ended.set()
        watching.join()


def _slots(polls: list[_Poll]) -> Iterator[Change]:
    for before, after in pairwise(polls):
        if before.slots != after.slots:
            yield Change(Span(before.asked, after.answered), after.slots)


def _deployments(polls: list[_Poll]) -> Iterator[Deployment]:
    found: Deployment | None = None
    for before, after in pairwise(polls):
        between = Span(before.asked, after.answered)
        if found and before.running and not (after.running and after.deployed == before.deployed):
            found = replace(found, stopped=between)
        if after.deployed is not None and after.deployed != before.deployed:
            if found:
                yield found
            found = Deployment(Span(after.deployed, after.deployed), after.parallelism)
        if found and after.running and found.restored is None:
            found = replace(found, restored=between)
    if found:
        yield found


def _since(began: float, poll: _Poll) -> _Poll:
    deployed = None if poll.deployed is None else round(poll.deployed - began, 3)
    return replace(
        poll, asked=round(poll.asked - began, 3), answered=round(poll.answered - began, 3), deployed=deployed
    )
