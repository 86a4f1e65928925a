"""Records the external events of a job on a real Flink, and the decisions of Flink's scheduler.

A recorder polls the JobManager's REST API continuously: a poll takes a few hundredths of a second, and there is a tenth
between two. A difference between two polls happened between them: each observed change has an earliest and a latest
time, and nothing more exact is claimed. Checkpoints and deployments have Flink's own time stamps.
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
CACHED = 0.05  # seconds for which the REST API caches its answers

RECORDED = {
    "web.refresh-interval": str(round(CACHED * 1000)),  # milliseconds, for the job
    "rest.cache.checkpoint-statistics.timeout": f"{round(CACHED * 1000)}ms",
}
"""Settings that a cluster needs so that what it reports is not three seconds old."""


@dataclass(frozen=True, slots=True)
class _Poll:
    """One answer of the JobManager, times in seconds since 1970.

    Attributes:
        asked: before the request, and before the time that a cached answer may be from.
        answered: after the answer.
        slots: slots that the job has, whether it uses them or not.
        deployed: time of the last deployment; None: there was none, or the job waits for slots.
        parallelism: that of the deployment.
        running: whether all of its tasks run.
    """

    asked: float
    answered: float
    slots: int
    deployed: float | None
    parallelism: int
    running: bool


class Recorder:
    """Polls a cluster until the end of its context."""

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
        """Wait until the job was deployed again with so many slots, has no others, and runs."""

        def seen() -> bool:
            last = self._last()
            new = last.running and last.deployed != self._deployed
            return new and last.slots == last.parallelism == parallelism

        until(seen, what=f"for the job to run with {parallelism} slots")
        self._deployed = self._last().deployed

    def holds(self, slots: int) -> None:
        """Wait until the job has so many slots, whether it uses them or not."""
        until(lambda: self._last().slots == slots, what=f"for {slots} slots")

    def holds_others_than(self, slots: int) -> None:
        """Wait until the job no longer has so many slots."""
        until(lambda: self._last().slots != slots, what=f"for others than {slots} slots")

    def held_for(self, seconds: float) -> None:
        """Wait until the slots have not changed for so many seconds."""

        def seen() -> object:
            slots = self._last().slots
            same = list(takewhile(lambda poll: poll.slots == slots, reversed(self._polls)))
            return same and same[0].asked > same[-1].answered + seconds

        until(seen, what=f"for slots that are the same for {seconds:g} s")

    def checkpoint(self) -> None:
        """Trigger a checkpoint, and wait until its completion time is known."""
        number = self._flink.take_checkpoint()
        until(lambda: number in self._checkpoints, what=f"for checkpoint {number}")

    def ran_for(self, seconds: float) -> None:
        """Wait until the last deployment is so many seconds old."""
        deployed = self._deployed
        assert deployed is not None, "the job is to run first"
        until(lambda: time.time() > deployed + seconds)

    def stop(self, number: int) -> None:
        """Stop a TaskManager gracefully: it announces its shutdown."""
        self._flink.end_task_manager(number, signal.SIGTERM)

    def kill(self, number: int, slots: int = 1) -> None:
        """Kill a TaskManager that has so many slots."""
        self._flink.end_task_manager(number, signal.SIGKILL)
        self._killed.append((time.time(), slots))

    def timeline(self, settings: Mapping[str, float]) -> Timeline:
        """The events, in seconds since the recording began.

        Args:
            settings: the relevant part of Flink's configuration, in seconds.
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
                # It does not answer yet, or no longer: changes meanwhile are known less exactly.
                continue
            except Exception as error:  # noqa: BLE001 - raised in the waiting thread
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
            # In Reactive Mode the job gets every slot; a slot counts from its allocation, not from when it is first
            # seen.
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
    """Record a cluster; its JobManager has to run by the first poll, but not earlier."""
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
