"""The size at which the runnable tasks of a batch job cost least: the price of worker-seconds and of waiting time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from autoscaler.policy_api import (
    AMOUNT,
    ZERO,
    Direction,
    Observation,
    ParameterError,
    Range,
    Recommendation,
    View,
    restart_time,
)
from autoscaler_policies.shared.checks import ABOVE_0S, FROM_0S, METRIC, check
from autoscaler_policies.shared.readings import GAP, MARGIN, total
from autoscaler_policies.shared.recommend import format_number, missing, replicas, sized

# The lookback must be known before a start-up time is learned, so a longer learned time counts as this one.
LONGEST_IDLE = timedelta(minutes=10)
# Larger numbers of tasks or seconds are not real measurements; with this limit the prices of all sizes stay finite.
MOST = 1e15
HIGHEST_PRICE = 1e9


@dataclass(frozen=True, slots=True)
class Work:
    """Tasks that wait or run, and the time that each size needs for them, in waves: each slot runs one task at a time.

    Attributes:
        tasks: waiting and running tasks. A running one counts in full, as its slot is busy until it has finished.
        mean: mean seconds of a task.
        slots: tasks that one replica runs at a time.
        current: the present size.
        start_up: seconds until replicas that are requested now run a task.
    """

    tasks: int
    mean: float
    slots: int
    current: int
    start_up: float

    @property
    def left(self) -> int:
        """Tasks that the present size has not finished when new replicas are ready."""
        waves = int(min(self.start_up / self.mean, MOST)) if self.mean else 0
        return max(0, self.tasks - waves * self.current * self.slots)

    def waves(self, tasks: int, size: int) -> int:
        """How often the slots of a size are filled for this many tasks."""
        return -(-tasks // (size * self.slots))

    def time(self, size: int) -> float:
        """Seconds until all tasks are done, at the present size or a greater one; 1 or more."""
        if size == self.current:
            return self.waves(self.tasks, size) * self.mean
        return self.start_up + self.waves(self.left, size) * self.mean

    def sizes(self, low: int, high: int) -> Iterator[int]:
        """The smallest size for each number of waves, from `low` (1 or more) to `high`, ascending.

        Every other size takes as long as one of these and costs more. There are at most about 2 x sqrt(tasks) of them.
        """
        left, size = self.left, low
        while size <= high:
            yield size
            waves = self.waves(left, size)
            if waves <= 1:
                return
            size = -(-left // ((waves - 1) * self.slots))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sizes a cluster for the tasks of a batch job that can run now.

    It asks for more replicas if tasks wait and the saved time is worth more than the worker-seconds, start-up included.
    It asks for fewer if no task could use some slots for `idle_time`, but for at least as many as hold shuffle files
    still to be read. Without any task for that time it asks for the minimum, which may be 0. From 0 replicas it asks
    for at least one as soon as there is a task. While the duration of tasks is unknown, it asks for as many as cost no
    more than waiting for another start-up would, even if they turn out useless.

    Attributes:
        waiting_price: price of a second of the job's time, in worker-seconds, 0 to 1e9. 0, only with a `deadline`, is
            as cheap as the deadline allows; default 4.0.
        deadline: time since the job began within which the tasks that can run now must be finished. Stages that cannot
            run yet are unknown, so leave time for them; default none.
        start_up: time from the request for a worker until its first task, used until learned; default 30s.
        idle_time: how long slots must have been unused before their workers are removed; default: as long as a worker
            takes to start, at least an interval, at most 10m or `start_up`. So idle workers cost at most twice as much
            as with the best choice in hindsight.
        pending: name of the metric with the tasks that wait for a slot.
        running: name of the metric with the tasks that run.
        remaining: name of the metric with the seconds of slot time that unfinished tasks still need.
        shuffle: name of the metric with the number of workers that hold shuffle files still to be read.
        elapsed: name of the metric with the seconds since the job began; only read with a `deadline`.
    """

    stabilizes: ClassVar[bool] = True
    """It evaluates the past itself: the cluster's stabilization window is 0s unless the user sets one."""

    waiting_price: float = 4.0
    deadline: timedelta | None = None
    start_up: timedelta = timedelta(seconds=30)
    idle_time: timedelta | None = None
    pending: str = "pending_tasks"
    running: str = "running_tasks"
    remaining: str = "remaining_task_time"
    shuffle: str = "shuffle_workers"
    elapsed: str = "job_time"

    def __post_init__(self) -> None:
        check(self, "waiting_price", lambda price: 0 <= price <= HIGHEST_PRICE, f"0 to {HIGHEST_PRICE:g}")
        check(self, "deadline idle_time", *ABOVE_0S)
        check(self, "start_up", *FROM_0S)
        check(self, "pending running remaining shuffle elapsed", *METRIC)
        if not self.waiting_price and self.deadline is None:
            raise ParameterError(
                "waiting_price", "is 0 without a deadline, expected more than 0, or no worker is ever worth its cost"
            )

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics it cannot do without."""
        names = (self.pending, self.running, self.remaining, self.shuffle)
        return names if self.deadline is None else (*names, self.elapsed)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of its metrics."""
        return dict.fromkeys((self.pending, self.running, self.remaining, self.shuffle, self.elapsed), AMOUNT)

    @property
    def lookback(self) -> timedelta:
        """How much of the past it needs: enough to see that slots were not needed."""
        return (self.idle_time or max(self.start_up, LONGEST_IDLE)) + MARGIN

    def evaluate(self, view: View) -> Recommendation:
        """Ask for the size that costs least for the tasks that can run."""
        readings = {name: total(view, name) for name in self.metrics}
        numbers = {name: min(value, MOST) for name, value in readings.items() if value is not None}
        if len(numbers) < len(readings):
            return missing(view, *(name for name in readings if name not in numbers))
        pending, running = math.ceil(numbers[self.pending]), math.ceil(numbers[self.running])
        remaining = numbers[self.remaining]
        mean = remaining / (pending + running / 2) if pending + running else 0.0
        start_up = restart_time(view.learned, Direction.UP)
        if start_up is None:
            start_up = self.start_up.total_seconds()
        work = Work(pending + running, mean, view.spec.slots_per_replica, view.current, min(start_up, MOST))
        inputs = {
            "pending": numbers[self.pending],
            "running": numbers[self.running],
            "remaining": remaining,
            "start_up": work.start_up,
        }
        count = "1 task" if work.tasks == 1 else f"{format_number(work.tasks)} tasks"
        what = f"{count} ({format_number(pending)} wait), {format_number(remaining)} s of work"
        if pending or (work.tasks and not view.current):
            size, detail = self._cheapest(view, work, inputs, numbers.get(self.elapsed, 0.0))
            if size > view.current:
                return sized(view, size, inputs, f"{what}; {detail}")
        else:
            detail = replicas(view.current)
        size, why = self._fewer(view, work, inputs, math.ceil(numbers[self.shuffle]))
        return sized(view, size, inputs, f"{what}; {detail}{why}")

    def _cheapest(self, view: View, work: Work, inputs: dict[str, float], elapsed: float) -> tuple[int, str]:
        """The cheapest size, not below the present one, that meets the deadline if any size does; and why."""
        limits = view.limits
        least = max(limits.minimum, 1)
        if not (work.mean or view.current):
            least = max(least, min(self._worth_a_start_up(work), limits.maximum))
        sizes = [*work.sizes(max(view.current + 1, least), limits.maximum)]
        if view.current >= least:
            sizes.insert(0, view.current)
        options = [(size, work.time(size)) for size in sizes]
        rest = ""
        if self.deadline is not None:
            left = self.deadline.total_seconds() - elapsed
            inputs["left"] = left
            in_time = [option for option in options if option[1] <= left]
            if in_time:
                options, rest = in_time, f", {format_number(left)} s before the deadline"
            else:
                options = [min(options, key=lambda option: option[1])]
                rest = ", the soonest: the deadline "
                rest += f"in {format_number(left)} s cannot be met" if left > 0 else "has passed"
        size, time = min(options, key=lambda option: (option[0] + self.waiting_price) * option[1])
        inputs["time"] = time
        if not work.mean:
            return size, f"{replicas(size)}, as it is not known yet how long a task takes"
        detail = f"{replicas(size)} {'finishes' if size == 1 else 'finish'} in {format_number(time)} s"
        detail += f" for {format_number(size * time)} worker-seconds{rest}"
        if size > view.current > 0:
            inputs["present_time"] = work.time(view.current)
            detail += f"; {view.current} in {format_number(inputs['present_time'])} s"
        return size, detail

    def _worth_a_start_up(self, work: Work) -> int:
        """How many replicas to begin with if only the number of tasks is known.

        A single replica would show how long the tasks take. If they are long, the other replicas would come a start-up
        later, which costs `waiting_price` start-ups. Each of them costs at most a start-up of idle time (`idle_time`).
        """
        return min(-(-work.tasks // work.slots), 1 + int(self.waiting_price))

    def _fewer(self, view: View, work: Work, inputs: dict[str, float], shuffle: int) -> tuple[int, str]:
        """The size that tasks could use within `idle_time`, at most the present one; and why."""
        current = view.current
        idle = self._idle(view, work.start_up)
        useful = self._useful(view, idle)
        least = max(view.limits.minimum, -(-work.tasks // work.slots))
        if current <= least:
            return current, ""
        span = f"{format_number(idle.total_seconds())} s"
        if useful is None:
            return current, f"; observed for less than {span}"
        inputs["useful"] = useful
        inputs["shuffle"] = shuffle
        size = max(useful, shuffle, least)
        if shuffle >= current > useful:
            return current, f"; workers that hold shuffle files: {format_number(shuffle)}"
        if size >= current:
            return current, f"; tasks could use {format_number(useful)} within the last {span}"
        holders = f", workers that hold shuffle files: {shuffle}" if shuffle else ""
        return size, f"; tasks could use at most {useful} for {span}{holders}"

    def _idle(self, view: View, start_up: float) -> timedelta:
        """How long slots must have been unused."""
        if self.idle_time is not None:
            return self.idle_time
        longest = max(self.start_up, LONGEST_IDLE)
        return max(min(timedelta(seconds=min(start_up, longest.total_seconds())), longest), view.spec.interval)

    def _useful(self, view: View, idle: timedelta) -> int | None:
        """The most replicas that tasks could use at any observation of that time; None: a part of it was not observed.

        A gap between observations that exceeds both `max_age` and `GAP` intervals counts as unobserved.
        """
        spec = view.spec
        gap = max(spec.max_age, spec.interval * GAP)
        begin, later, most = view.now - idle, view.now, 0
        for seen in reversed(view.past):
            tasks = [self._count(view, seen, name) for name in (self.pending, self.running)]
            if not ZERO <= later - seen.at <= gap or None in tasks:
                return None
            most = max(most, -(-sum(filter(None, tasks)) // spec.slots_per_replica))
            if seen.at <= begin:
                return most
            later = seen.at
        return None

    @staticmethod
    def _count(view: View, seen: Observation, name: str) -> int | None:
        """The tasks of a past reading, or None if it could not be trusted at that time."""
        reading = seen.metrics.get(name)
        if reading is None or not -view.spec.max_ahead <= seen.at - reading.at <= view.spec.max_age:
            return None
        values = reading.value if isinstance(reading.value, tuple) else (reading.value,)
        if not reading.finite() or min(values) < 0:
            return None
        return math.ceil(min(sum(values), MOST))
