"""The simulated cluster: a fluid queue before workers that come late and a job that stops for every change.

What it is made after: stall times from public raw data of 18-hour Flink runs (Reactive Mode 4-23 s, full redeploy
70-79 s), EC2 cold starts, Flink's default heartbeat time-out of 50 s, exponents of 0.80-0.90 measured for Nexmark,
capacity noise of 1-7 % between cloud machines.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

from autoscaler.core.model import EngineStatus, JobState, Observation, Reading

STEP = 5.0
"""Seconds of one step."""

AVERAGED = 12
"""Steps that the metrics are averaged over: 60 s."""

START = datetime(2026, 1, 5, tzinfo=UTC)
"""The time of the first step: midnight, a Monday."""

RAN_FOR = 3600.0
"""A new plant has been running for so long, or until it is not cold any more if that is longer."""

GRID = 3.0 * 2.0**21
"""x + GRID - GRID is x to the nearest 2^-30: what logarithms, powers and the like give differs in its last digits from
one system's mathematical library to another's, and a simulation's result must not."""


SLOW = 0.7
"""The share of the work of one that a slow worker does."""


def work(size: float, exponent: float) -> float:
    """How many times the work of one so many workers do: size^exponent, the same on every machine."""
    return math.pow(size, exponent) + GRID - GRID


@dataclass(frozen=True, slots=True)
class PlantSpec:
    """How a simulated cluster behaves. Times are seconds; lognormal ones have a median and a standard deviation of ln.

    Attributes:
        startup, startup_sd: from the request until a worker registers.
        restart_up, restart_down, restart_sd: how long the job stands still when workers come or go.
        heartbeat: what a scale-in adds, when workers are not stopped gracefully.
        checkpoint: a checkpoint completes so often while the job runs; a restart goes back to the last one.
        gamma: n workers do n^gamma times the work of one.
        sigma, tau: standard deviation and memory of the capacity's noise, an AR(1) process of ln(capacity).
        merge: registrations within so long of the first share one restart, which begins then, at the next step.
        cold, cold_for: share of its capacity that a job has for so long after a restart.
        crash_every: mean time between two crashes in the whole cluster, 0: none. The worker is replaced by a new one.
            A job's only worker does not crash.
        crash_noticed: how long a crash keeps the job from restarting (heartbeat time-out).
        slow: share of the new workers that do only `SLOW` of the work of one, as long as they are there.
        never: share of the new workers that never come up. They are billed until they are called off.
        idle: share of the CPU that is busy without any record; it shows in `cpu`, never in `utilization`.
        slo: the age of the oldest unprocessed record should be at most this.
    """

    startup: float = 30.0
    startup_sd: float = 0.25
    restart_up: float = 12.0
    restart_down: float = 8.0
    restart_sd: float = 0.3
    heartbeat: float = 0.0
    checkpoint: float = 10.0
    gamma: float = 0.9
    sigma: float = 0.04
    tau: float = 300.0
    merge: float = 10.0
    cold: float = 0.85
    cold_for: float = 30.0
    crash_every: float = 0.0
    crash_noticed: float = 10.0
    slow: float = 0.0
    never: float = 0.0
    idle: float = 0.05
    slo: float = 60.0

    def __post_init__(self) -> None:
        for name in ("startup", "restart_up", "restart_down", "checkpoint", "tau", "slo", "gamma"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: is {value:g}, expected above 0")
        for name in (
            "startup_sd",
            "restart_sd",
            "heartbeat",
            "sigma",
            "merge",
            "cold_for",
            "crash_every",
            "crash_noticed",
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: is {value:g}, expected 0 or more")
        for name in ("slow", "never"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name}: is {value:g}, expected a share from 0 to 1")
        if not 0 < self.cold <= 1:
            raise ValueError(f"cold: is {self.cold:g}, expected above 0 and at most 1")
        if not 0 <= self.idle < 1:
            raise ValueError(f"idle: is {self.idle:g}, expected from 0 to below 1")


PLANTS: Mapping[str, PlantSpec] = {
    "k8s": PlantSpec(),
    "ec2": PlantSpec(startup=90.0, restart_up=30.0, restart_down=25.0, checkpoint=60.0, slo=120.0),
    "redeploy": PlantSpec(restart_up=75.0, restart_down=70.0, slo=240.0),
    "ungraceful": PlantSpec(heartbeat=50.0, slo=120.0),
}
"""The four plants of the benchmark, by name."""


@dataclass(slots=True)
class Track:
    """What happened, one entry a step; `position` is of the end of the step.

    Attributes:
        arrivals: records that came.
        position: records processed since the beginning, less what a restart went back by.
        billed: workers running or starting.
        running: workers that the job uses.
        stopped: share of the step in which the job stood still.
        requests: (step, size) of each change of size that was asked for.
        restarts: how often the job restarted.
    """

    arrivals: list[float] = field(default_factory=list)
    position: list[float] = field(default_factory=list)
    billed: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)
    requests: list[tuple[int, int]] = field(default_factory=list)
    restarts: int = 0


class Plant:
    """One simulated cluster, running steadily at first. `advance` it step by step, `observe` it, `scale` it.

    Workers come up and checkpoints complete at any time; a restart for new workers and a crash are put off to the
    beginning of the next step.

    Args:
        spec: how it behaves.
        one: records/s that one worker processes.
        seed: of everything that is drawn.
        size: workers at the start, running.
    """

    def __init__(self, spec: PlantSpec, one: float, seed: int, size: int) -> None:
        self.spec = spec
        self.one = one
        self.track = Track()
        self.desired = size
        self._dice = Random(seed)  # noqa: S311 - noise of a simulation, nothing secret
        self._now = 0.0
        self._up = [1.0] * size  # share of a worker's work that each worker does that is up, the oldest first
        self._used = size  # how many of them the job uses
        self._able = one * work(size, spec.gamma)  # records/s that these process
        self._starting: list[float] = []  # when each will register
        self._joins_at = math.inf  # when the restart that takes in new workers begins
        self._stalled_until = 0.0
        self._running_since = -max(RAN_FOR, spec.cold_for)
        self._arrived = 0.0
        self._position = 0.0
        self._committed = 0.0
        self._checkpoint_in = spec.checkpoint
        self._checkpointed = 0.0
        self._noise = spec.sigma * (self._dice.gauss(0.0, 1.0) + GRID - GRID)
        self._keeps = math.exp(-STEP / spec.tau) + GRID - GRID
        self._stirs = spec.sigma * math.sqrt(1.0 - self._keeps * self._keeps)
        self._crash_at = self._next_crash()
        # arrivals/s, processed/s, lag and utilization of each step of the last minute
        self._seen: deque[tuple[float, float, float, float]] = deque(maxlen=AVERAGED)

    def advance(self, arrivals: float) -> None:
        """One step of 5 s in which so many records arrive."""
        spec, track = self.spec, self.track
        begin = self._now
        end = begin + STEP
        if self._joins_at <= begin:
            self._restart(begin, spec.restart_up)
        if self._crash_at <= begin:
            self._crash(begin)
        if self._starting:
            self._register(end)
        self._noise = self._keeps * self._noise + self._stirs * (self._dice.gauss(0.0, 1.0) + GRID - GRID)
        self._arrived += arrivals
        waiting = self._arrived - self._position
        able = done = 0.0
        stalled = min(max(self._stalled_until - begin, 0.0), STEP)
        runs = STEP - stalled
        if runs > 0.0:
            able = self._able * (math.exp(self._noise) + GRID - GRID)
            cold = self._running_since + spec.cold_for - begin - stalled
            if cold > 0.0:
                able *= 1.0 - (1.0 - spec.cold) * min(cold / runs, 1.0)
            done = min(able * runs, waiting)
            # Not above what has arrived by the rounding of a sum.
            self._position = self._arrived if done == waiting else self._position + done
            self._checkpoint_in -= runs
            if self._checkpoint_in <= 0.0:
                # It completed so long before the step's end, and what was processed since then is not in it.
                ago = -self._checkpoint_in % spec.checkpoint
                self._committed = self._position - done * ago / runs
                self._checkpointed = end - ago
                self._checkpoint_in = spec.checkpoint - ago
        self._seen.append((arrivals / STEP, done / STEP, waiting - done, done / (able * STEP) if able else 0.0))
        self._now = end
        track.arrivals.append(arrivals)
        track.position.append(self._position)
        track.billed.append(len(self._up) + len(self._starting))
        track.running.append(self._used)
        track.stopped.append(stalled / STEP)

    def observe(self) -> Observation:
        """What real sources would show now, one step or more after the beginning: averages of the last minute."""
        now = START + timedelta(seconds=self._now)
        count = len(self._seen)
        # fsum: what `sum` makes of the last digit depends on Python's version.
        offered, processed, lag, busy = [math.fsum(each) / count for each in zip(*self._seen, strict=True)]
        utilization = Reading(busy, now)
        return Observation(
            now,
            self.desired,
            len(self._up),
            {
                "arrivals": Reading(offered, now),
                "throughput": Reading(processed, now),
                "lag": Reading(lag, now),
                "utilization": utilization,
                "saturation": utilization,
                "cpu": Reading(self.spec.idle + (1.0 - self.spec.idle) * busy, now),
            },
            {},
            self._status(),
        )

    def scale(self, size: int) -> None:
        """Ask for a size."""
        if size == self.desired:
            return
        self.desired = size
        self.track.requests.append((len(self.track.arrivals), size))
        have = len(self._up) + len(self._starting)
        for _ in range(size - have):
            self._start()
        if size < have:
            cancelled = min(have - size, len(self._starting))
            # The latest are called off first.
            self._starting = sorted(self._starting)[: len(self._starting) - cancelled]
            gone = have - size - cancelled
            if gone:
                del self._up[len(self._up) - gone :]
                self._restart(self._now, self.spec.restart_down, self.spec.heartbeat)

    def _status(self) -> EngineStatus:
        running = self._now >= self._stalled_until
        return EngineStatus(
            JobState.RUNNING if running else JobState.RESTARTING,
            len(self._up),
            self._used if running else 0,
            running_since=START + timedelta(seconds=self._running_since) if running else None,
            last_checkpoint=START + timedelta(seconds=self._checkpointed),
            restarts=self.track.restarts,
        )

    def _start(self) -> None:
        spec = self.spec
        never = spec.never > 0 and self._dice.random() < spec.never
        self._starting.append(math.inf if never else self._now + self._lognormal(spec.startup, spec.startup_sd))

    def _register(self, until: float) -> None:
        """Workers that come up in this step; the first opens the window within which they share a restart."""
        here = [at for at in self._starting if at <= until]
        if not here:
            return
        self._starting = [at for at in self._starting if at > until]
        slow = self.spec.slow
        self._up += [SLOW if slow > 0 and self._dice.random() < slow else 1.0 for _ in here]
        if self._joins_at == math.inf:
            self._joins_at = min(here) + self.spec.merge

    def _restart(self, at: float, median: float, extra: float = 0.0) -> None:
        """The job stops, goes back to the last checkpoint and then uses all workers that are up by now."""
        stall = extra + self._lognormal(median, self.spec.restart_sd)
        self._stalled_until = max(self._stalled_until, at + stall)
        self._running_since = self._stalled_until
        self._position = self._committed
        self._checkpoint_in = self.spec.checkpoint
        self._used = len(self._up)
        self._able = self.one * work(math.fsum(self._up), self.spec.gamma)
        self._joins_at = math.inf
        self.track.restarts += 1

    def _crash(self, at: float) -> None:
        """The oldest worker is gone at once, and replaced; the job goes on without it when that is noticed."""
        self._crash_at = self._next_crash()
        if len(self._up) > 1:
            del self._up[0]
            self._start()
            self._restart(at, self.spec.restart_down, self.spec.crash_noticed)

    def _next_crash(self) -> float:
        if not self.spec.crash_every:
            return math.inf
        return self._now + self._dice.expovariate(1.0 / self.spec.crash_every) + GRID - GRID

    def _lognormal(self, median: float, deviation: float) -> float:
        return self._dice.lognormvariate(math.log(median), deviation) + GRID - GRID
