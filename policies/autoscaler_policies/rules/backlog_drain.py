"""The smallest size that keeps up with the arrivals and processes the backlog in time, including the restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from autoscaler.policy_api import (
    AMOUNT,
    ZERO,
    Direction,
    Range,
    Reason,
    Recommendation,
    View,
    restart_time,
    saturated_rate,
    source_partitions,
)
from autoscaler_policies.shared.checks import ABOVE_0_TO_1, ABOVE_0S, FROM_0S, METRIC, check
from autoscaler_policies.shared.readings import MARGIN, total
from autoscaler_policies.shared.recommend import LARGEST, are, finite, format_number, missing, replicas, sized, smallest

# If a restart took more than a third of `drain_time`, absurd sizes would be needed to process its backlog in the rest.
# So `drain_time` counts as at least this many restarts: at least two thirds of it are for draining.
RESTARTS = 3.0
# While a rescale is in progress, its size stays unless the backlog takes more than this many times the allowed time.
RESCALE_TOLERANCE = 2.0
# Earlier arrivals confirm the present ones if they differ by less than this factor: noise of +-10 % stays below it.
SAME = 1.25


@dataclass(slots=True)
class _Load:
    """The load, and the capacity of each size."""

    view: View
    lag: float
    arrivals: float
    partitions: int | None
    capacity: float

    def capacity_at(self, size: int) -> float:
        """Records/s that a size can process."""
        return saturated_rate(self.view.learned, self.view.spec, size, self.partitions) or 0.0

    def backlog_after_rescale(self, working: float, seconds: float) -> float:
        """Records waiting after a change that takes `seconds`, while `working` records/s are processed."""
        return max(0.0, self.lag + (self.arrivals - working) * seconds)

    def inputs(self, **more: float) -> dict[str, float]:
        """The numbers from which a size was computed."""
        numbers = {"lag": self.lag, "arrivals": self.arrivals, "capacity": self.capacity, **more}
        if max(numbers.values()) > LARGEST:
            return {name: finite(number) for name, number in numbers.items()}
        return numbers

    def describe(self, size: int, rate: float) -> str:
        """Load and size in words, as the beginning of a sentence."""
        load = f"lag {format_number(self.lag)} records at {format_number(self.arrivals)}/s arriving"
        return f"{load}; {replicas(size)} ({format_number(rate)}/s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogDrain:
    """Compares arrivals and backlog with the capacity of each size, which is learned or configured.

    It asks for more replicas if arrivals are above `utilization` of the present capacity, or if the backlog takes
    longer than `drain_time`: for the smallest size for which neither is true, including the backlog of the change, or
    for the maximum. It asks for fewer if arrivals are at most `down_utilization` of the smaller capacity, the present
    size can process the backlog within `down_backlog_time`, and the smaller size can process the backlog of the change
    within `drain_time`. Otherwise nothing changes. While a rescale is in progress, its size stays unless the backlog
    takes twice as long as `drain_time`.

    While the capacity is unknown it abstains, unless the backlog is worth more than `drain_time` of the throughput and
    does not shrink: then it asks for one more replica. From 0 replicas it asks for the first one as soon as there are
    arrivals or a backlog.

    Attributes:
        drain_time: time in which a backlog is to be processed, including the restart; default 60s. It counts as at
            least three restarts. Set it to several times the interval of checkpoints or batches.
        restart: time from the request for a size until the job runs with it, used until learned; default 15s.
        stops: whether the job stands still during that time (Flink); false if the old size continues to work until the
            new one is ready (Spark); default true.
        utilization: share of a size's capacity above which the policy asks for more; default 0.9.
        down_utilization: the same for a smaller size that would be enough; below utilization; default 0.7.
        down_backlog_time: the size is not lowered while it needs longer than this for the backlog; default 10s.
        stable_time: arrivals must have been about the same (within a quarter) for this long before the size changes,
            unless the backlog is worth more than `drain_time`; before scaling down, no reading of this time may be
            missing; default 0s: no wait.
        lag: name of the metric with the records waiting.
        arrivals: name of the metric with the offered records/s.
        throughput: name of the metric with the processed records/s; only read while capacity is unknown.
    """

    drain_time: timedelta = field(default=timedelta(seconds=60), metadata={"aliases": ("within",)})
    restart: timedelta = timedelta(seconds=15)
    stops: bool = True
    utilization: float = 0.9
    down_utilization: float = 0.7
    down_backlog_time: timedelta = field(default=timedelta(seconds=10), metadata={"aliases": ("calm",)})
    stable_time: timedelta = field(default=ZERO, metadata={"aliases": ("confirm",)})
    lag: str = "lag"
    arrivals: str = "arrivals"
    throughput: str = "throughput"

    def __post_init__(self) -> None:
        check(self, "drain_time", *ABOVE_0S)
        check(self, "restart down_backlog_time stable_time", *FROM_0S)
        check(self, "utilization", *ABOVE_0_TO_1)
        most = self.utilization
        expected = f"above 0 and below utilization ({most:g}), or the size alternates"
        check(self, "down_utilization", lambda share: 0 < share < most, expected)
        check(self, "lag arrivals throughput", *METRIC)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics it cannot do without."""
        return (self.lag, self.arrivals)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of its metrics."""
        return {self.lag: AMOUNT, self.arrivals: AMOUNT, self.throughput: AMOUNT}

    @property
    def lookback(self) -> timedelta:
        """How much of the past it needs: enough to confirm the arrivals."""
        return self.stable_time + MARGIN if self.stable_time else ZERO

    def evaluate(self, view: View) -> Recommendation:
        """Ask for the size that keeps up and processes the backlog in time."""
        lag = total(view, self.lag)
        arrivals = total(view, self.arrivals)
        if lag is None or arrivals is None:
            absent = [name for name, value in ((self.lag, lag), (self.arrivals, arrivals)) if value is None]
            return missing(view, *absent)
        partitions = source_partitions(view.spec, view.engine, view.past)
        capacity = saturated_rate(view.learned, view.spec, view.current, partitions)
        if capacity is None:
            return self._unknown(view, lag, arrivals)

        load = _Load(view, lag, arrivals, partitions, capacity)
        spare = capacity - arrivals
        restart, within = self._times(view, Direction.UP)
        if self.stable_time and lag <= capacity * within:
            other = self._unconfirmed(view, arrivals)
            if other is not None:
                detail = (
                    f"{load.describe(view.current, capacity)}; "
                    f"arrivals were {format_number(other)}/s just before: waiting until they are stable (stable_time)"
                )
                return sized(view, view.current, load.inputs(before=other), detail)
        allowed = within if view.rescale is None else within * RESCALE_TOLERANCE
        if arrivals > capacity * self.utilization or lag > spare * allowed:
            return self._more(load, restart, within)
        if view.current > view.limits.minimum and lag <= spare * self.down_backlog_time.total_seconds():
            size = self._fewer(load)
            if size is not None and self.stable_time and not self._read_throughout(view):
                detail = (
                    f"{load.describe(view.current, capacity)}; arrivals were not read at every observation of the last "
                    f"{self.stable_time.total_seconds():g} s (stable_time): {replicas(view.current)} "
                    f"{are(view.current)} kept"
                )
                return sized(view, view.current, load.inputs(), detail)
            if size is not None:
                return size
        fit = f"can process the backlog in {format_number(lag / spare)} s" if lag else f"{are(view.current)} enough"
        return sized(view, view.current, load.inputs(), f"{load.describe(view.current, capacity)} {fit}")

    def _unconfirmed(self, view: View, arrivals: float) -> float | None:
        """Different arrivals of a reading within `stable_time`, or of the one before that time; None: all are similar.

        A rate that was measured across a change of load is neither the old nor the new one. The same reading may be
        seen more than once, so it is only compared with other readings.
        """
        newest = view.metrics[self.arrivals].at
        begin = newest - self.stable_time
        for seen in reversed(view.past):
            reading = seen.metrics.get(self.arrivals)
            if reading is None or reading.at >= newest or not reading.finite():
                continue
            value = reading.value
            other = finite(sum(value)) if isinstance(value, tuple) else value
            if other * SAME < arrivals or arrivals * SAME < other:
                return other
            if reading.at <= begin:
                break
        return None

    def _read_throughout(self, view: View) -> bool:
        """Whether arrivals were read at every observation of `stable_time`: unread arrivals may have been different."""
        begin = view.metrics[self.arrivals].at - self.stable_time
        for seen in reversed(view.past):
            reading = seen.metrics.get(self.arrivals)
            if reading is None or reading.at <= begin:
                return reading is not None
        return False

    def _more(self, load: _Load, restart: float, within: float) -> Recommendation:
        """Ask for the smallest larger size that keeps up and processes the backlog in time, else for the maximum."""
        view, arrivals = load.view, load.arrivals
        working = 0.0 if self.stops else load.capacity_at(min(view.ready, view.current))
        backlog = load.backlog_after_rescale(working, restart)
        left = within - restart

        def fits(size: int) -> bool:
            rate = load.capacity_at(size)
            return arrivals <= rate * self.utilization and backlog <= (rate - arrivals) * left

        maximum = view.limits.maximum
        size = smallest(view.current + 1, max(maximum, view.current) + 1, fits)
        enough = size <= maximum
        if not enough:
            size = maximum
        rate = load.capacity_at(size)
        inputs = load.inputs(new_capacity=rate, restart=restart, backlog_after_rescale=backlog)
        if not enough:
            detail = (
                f"{load.describe(size, rate)}, the maximum, "
                f"cannot keep up and process the backlog in {format_number(within)} s"
            )
        else:
            seconds = restart + (backlog / (rate - arrivals) if backlog else 0.0)
            detail = (
                f"{load.describe(size, rate)} can process the backlog in {format_number(seconds)} s, of which the "
                f"restart takes {format_number(restart)} s; {view.current} ({format_number(load.capacity)}/s) "
                f"{are(view.current)} too few"
            )
        return sized(view, size, inputs, detail)

    def _fewer(self, load: _Load) -> Recommendation | None:
        """Ask for the smallest size that would be enough, or None if all replicas are needed."""
        view, arrivals = load.view, load.arrivals
        restart, within = self._times(view, Direction.DOWN)
        left = within - restart

        def fits(size: int) -> bool:
            rate = load.capacity_at(size)
            if arrivals > rate * self.down_utilization:
                return False
            return load.backlog_after_rescale(0.0 if self.stops else rate, restart) <= (rate - arrivals) * left

        if not fits(view.current - 1):
            return None
        size = smallest(view.limits.minimum, view.current - 1, fits)
        rate = load.capacity_at(size)
        inputs = load.inputs(new_capacity=rate, restart=restart)
        return sized(view, size, inputs, f"{load.describe(size, rate)} {are(size)} enough; there are {view.current}")

    def _times(self, view: View, direction: Direction) -> tuple[float, float]:
        """Seconds that a change in that direction takes, and seconds allowed for change and backlog together."""
        seconds = restart_time(view.learned, direction)
        if seconds is None:
            seconds = self.restart.total_seconds()
        return seconds, max(self.drain_time.total_seconds(), RESTARTS * seconds)

    def _unknown(self, view: View, lag: float, arrivals: float) -> Recommendation:
        """If the capacity is unknown: ask for one more replica if there are clearly too few, else abstain."""
        inputs = {"lag": lag, "arrivals": arrivals}
        throughput = total(view, self.throughput)
        within = self._times(view, Direction.UP)[1]
        what = f"lag {format_number(lag)} records at {format_number(arrivals)}/s arriving, capacity not known yet"
        if not view.current and (lag or arrivals):
            return sized(view, 1, inputs, f"{what}; nothing is processed by 0 replicas: one")
        if throughput is None or throughput <= 0:
            return Recommendation(None, Reason.LEARNING, inputs, what)
        inputs["throughput"] = throughput
        if view.rescale is None and arrivals >= throughput and lag > throughput * within:
            behind = format_number(finite(lag / throughput))
            detail = f"{what}; {format_number(throughput)}/s processed, {behind} s behind and not gaining: one more"
            return sized(view, view.current + 1, inputs, detail)
        return Recommendation(None, Reason.LEARNING, inputs, f"{what}; {format_number(throughput)}/s processed")
