"""Daedalus: the smallest size that can process the forecast arrivals and recovers in time, with few rescales.

Pfister, Scheinert, Geldenhuys, Kao: "Daedalus: Self-Adaptive Horizontal Autoscaling for Resource Efficiency of
Distributed Stream Processing Systems", ICPE 2024, and its published code (pfisterb/daedalus, folder daedalus), whose
numbers are the defaults here: execution_manager.py for the plan, capacity.py and regression.py for capacity,
forecasting.py for arrivals, recovery_time.py for recovery.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from autoscaler.policy_api import (
    AMOUNT,
    SHARE,
    Cause,
    Direction,
    JobState,
    Phase,
    Range,
    Reason,
    Recommendation,
    Rescale,
    View,
)
from autoscaler_policies.research.daedalus_model import Curve, Line, Regression, fit, recovery_time, wape
from autoscaler_policies.shared.checks import ABOVE_0S, FROM_0, FROM_0S, METRIC, check
from autoscaler_policies.shared.readings import busy, each, moving, total, warm_since
from autoscaler_policies.shared.recommend import format_number, missing, replicas, sized

FALLBACK = 600.0
"""For how many seconds ahead the line through the last interval is used (`workload_regression`)."""

AT_START = 300.0
"""At the start, the last rescale counts as this many seconds ago (`ExecutionManager.__init__`)."""

SIZES = 100
"""The most sizes that are remembered, with six numbers each; those furthest from the present one are forgotten."""

FACTS = ("samples", "busy", "rate", "variance", "covariance")
"""The remembered numbers of the regression of a size."""

LINE = ("line_at", "level", "slope")
"""The remembered numbers of a forecast."""

ON_ITS_WAY = ("stands_at", "up", "predicted")
"""The remembered numbers of a rescale until it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Daedalus:
    """The smallest size with capacity for the forecast that recovers from the rescale in time.

    Every `interval` it updates a regression of throughput over busy share for the present size, extrapolated to the
    point where the busiest replica is always busy. It forecasts the arrivals. Then it takes the smallest size that can
    process the present arrivals, recovers within `target_recovery`, and can process the arrivals until then; a size
    other than the present one must also be able to process the arrivals up to the `horizon`. Nothing changes during the
    `cooldown` after a rescale, and until `optional_cooldown` only if the present size will not last the next interval.

    Attributes:
        target_recovery: time within which the backlog of a rescale must be processed; default 10m.
        checkpoint: interval of checkpoints; the arrivals of this time are processed again after a rescale; default 10s.
        downtime_up: how long the job is assumed to stand still when replicas are added, until learned; default 30s.
        downtime_down: the same when replicas are removed; default 15s.
        interval: time between two decisions, over which the readings should be averaged; default 60s.
        cooldown: time after a rescale in which nothing changes; default 3m.
        optional_cooldown: time after a rescale in which only necessary changes are made; default 10m.
        warm_up: readings within this time after a rescale or restart do not count for capacity; default 2m.
        horizon: how far ahead arrivals are forecast; default 15m.
        trend_window: the forecast is the straight line through the arrivals of this time; default 15m.
        max_forecast_error: if a forecast was wrong by at least this share (WAPE), it is replaced by the straight line
            through the last interval alone, used for 10 minutes ahead; default 0.25.
        arrivals: name of the metric with the offered records/s.
        throughput: name of the metric with the processed records/s.
        lag: name of the metric with the records waiting.
        utilization: name of the metric with the busy share or the CPU, 0 to 1, of all replicas or of each.
        forecast: name of a metric with the records/s expected in each of the next minutes; the last one holds from then
            on. It replaces the line, which counts while the forecast is missing. Default none.
    """

    target_recovery: timedelta = timedelta(minutes=10)
    checkpoint: timedelta = timedelta(seconds=10)
    downtime_up: timedelta = timedelta(seconds=30)
    downtime_down: timedelta = timedelta(seconds=15)
    interval: timedelta = timedelta(seconds=60)
    cooldown: timedelta = field(default=timedelta(minutes=3), metadata={"aliases": ("grace",)})
    optional_cooldown: timedelta = field(default=timedelta(minutes=10), metadata={"aliases": ("patience",)})
    warm_up: timedelta = timedelta(minutes=2)
    horizon: timedelta = timedelta(minutes=15)
    trend_window: timedelta = field(default=timedelta(minutes=15), metadata={"aliases": ("trend",)})
    max_forecast_error: float = field(default=0.25, metadata={"aliases": ("bad",)})
    arrivals: str = "arrivals"
    throughput: str = "throughput"
    lag: str = "lag"
    utilization: str = "utilization"
    forecast: str | None = None

    def __post_init__(self) -> None:
        check(self, "target_recovery interval horizon trend_window", *ABOVE_0S)
        check(self, "checkpoint downtime_up downtime_down cooldown optional_cooldown warm_up", *FROM_0S)
        least = self.interval
        check(
            self,
            "trend_window",
            lambda window: window >= least,
            f"at least the interval ({least.total_seconds():g}s)",
        )
        check(self, "max_forecast_error", *FROM_0)
        check(self, "arrivals throughput lag utilization forecast", *METRIC)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics it cannot do without."""
        return (self.arrivals, self.throughput, self.lag, self.utilization)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of its metrics."""
        return {self.lag: AMOUNT, self.arrivals: AMOUNT, self.throughput: AMOUNT, self.utilization: SHARE}

    @property
    def lookback(self) -> timedelta:
        """How much of the past it needs: the time over which the trend is measured."""
        return self.trend_window

    # learning

    def learn(self, view: View) -> Mapping[str, float]:
        """Follow a rescale; at the end of an interval update capacity and forecast, and decide."""
        now = view.now.timestamp()
        memory = dict(view.memory)
        if "rescaled_at" not in memory:
            memory["rescaled_at"] = now - AT_START
        self._follow(view, memory, now)
        # A poll may be slightly early or late: do not wait for another poll because of half an interval.
        due = memory.get("decided_at", -math.inf) + (self.interval - view.spec.interval / 2).total_seconds()
        if now < due or self._absent(view):
            return memory
        memory["decided_at"] = now
        for name in ("size", "recovery", "capacity"):
            memory.pop(name, None)
        self._measure(view, memory, now)
        line = self._external_forecast(view, memory) or self._forecast(view, memory, now)
        if line is None or now - memory["rescaled_at"] < self.cooldown.total_seconds() or moving(view):
            return memory
        self._plan(view, memory, line, now)
        return memory

    def _follow(self, view: View, memory: dict[str, float], now: float) -> None:
        """Record a rescale; when it is over, learn from it how long the job stands still.

        `adjust_downtime`: one second more if recovery took longer than predicted, else one second less.
        """
        rescale = view.rescale
        before = memory.get("replicas", float(view.current))
        memory["replicas"] = float(view.current)
        if rescale is None:
            if before != view.current:
                # The rescale was over between two polls, and is seen only now.
                self._begin(memory, now, view.current)
                memory["stands_at"] = now - view.spec.interval.total_seconds()
                memory["up"] = float(view.current > before)
            begin, up, predicted = (memory.pop(name, None) for name in ON_ITS_WAY)
            if begin is not None and predicted is not None:
                name = "downtime_up" if up else "downtime_down"
                longer = now - begin > predicted
                memory[name] = max(0.0, self._downtime(memory, down=not up) + (1.0 if longer else -1.0))
            return
        if rescale.cause is Cause.LOSS:
            return
        if abs(memory["rescaled_at"] - rescale.at.timestamp()) > 1:
            self._begin(memory, rescale.at.timestamp(), rescale.to)
        if "predicted" in memory:
            memory["stands_at"] = _stands_since(rescale)
            memory["up"] = float(rescale.direction is Direction.UP)

    def _begin(self, memory: dict[str, float], at: float, to: int) -> None:
        """Record a new rescale, and the predicted recovery time if the policy has chosen its size."""
        memory["rescaled_at"] = at
        for name in ON_ITS_WAY:
            memory.pop(name, None)
        predicted = memory.pop("recovery", None)
        if memory.pop("size", None) == to and predicted is not None:
            memory["predicted"] = predicted

    def _measure(self, view: View, memory: dict[str, float], now: float) -> None:
        """Update the regression of the present size and its capacity (`analyze_capacity`)."""
        size = view.current
        throughput, shares = total(view, self.throughput), busy(view, self.utilization)
        if throughput is None or shares is None or not self._warm(view, now):
            return
        names = [f"{fact}_{size}" for fact in FACTS]
        model = Regression(*(memory[name] for name in names)) if all(name in memory for name in names) else Regression()
        each_throughput = each(view, self.throughput)
        if len(each_throughput) == len(shares):
            for share, rate in zip(shares, each_throughput, strict=True):
                model = model.seen(share, rate)
        else:
            model = model.seen(sum(shares) / len(shares), throughput / size)
        # Skew: when the busiest replica is at 1, the mean replica is at 1 - (busiest - mean). All have the same
        # capacity, so together they process the throughput of a mean replica times their number.
        capacity = size * model.at(1 - (max(shares) - sum(shares) / len(shares)))
        found = (model.count, model.x, model.y, model.variance, model.covariance)
        if not (all(map(math.isfinite, found)) and 0 < capacity < math.inf):
            return
        memory.update(zip(names, found, strict=True))
        before = memory.get(f"capacity_{size}")
        memory[f"capacity_{size}"] = capacity if before is None else before / 2 + capacity / 2
        memory["each"] = capacity / size
        if before is None:
            _forget(memory, size)

    def _warm(self, view: View, now: float) -> bool:
        """Whether the readings show the present size in a steady state, not a transient of a rescale or restart."""
        engine = view.engine
        since = warm_since(view)
        if engine is not None:
            if engine.job is not JobState.RUNNING:
                return False
            if engine.running_since is not None:
                since = max(since, engine.running_since.timestamp())
        return 0 < view.current == view.ready and not moving(view) and now - since >= self.warm_up.total_seconds()

    def _external_forecast(self, view: View, memory: dict[str, float]) -> Curve | None:
        """The forecast of a metric, if there is one."""
        reading = None if self.forecast is None else view.metrics.get(self.forecast)
        if reading is None:
            return None
        rates = reading.value if isinstance(reading.value, tuple) else (reading.value,)
        if min(rates) < 0:
            return None
        memory["wape"] = 0.0
        return Curve(tuple([min(rate, 1e300) for rate in rates]), self.horizon.total_seconds())

    def _forecast(self, view: View, memory: dict[str, float], now: float) -> Line | None:
        """The line through the last arrivals; if the last line was wrong, the line through the last interval."""
        interval = self.interval.total_seconds()
        seen = self._arrivals(view, now)
        late = [(time, rate) for time, rate in seen if time >= -interval]
        line = fit(seen, self.horizon.total_seconds())
        error = math.inf
        if all(name in memory for name in LINE):
            age = now - memory["line_at"]
            then = Line(memory["level"], memory["slope"], line.horizon)
            error = wape(then, [(age + time, rate) for time, rate in late if age + time > 0])
        if not (math.isfinite(line.level) and math.isfinite(line.slope)):
            return None
        memory.update(line_at=now, level=line.level, slope=line.slope)
        if error < self.max_forecast_error:
            memory["wape"] = error
            return line
        memory["wape"] = min(error, 1e6)
        line = fit(late, FALLBACK)
        return line if math.isfinite(line.level) and math.isfinite(line.slope) else None

    def _arrivals(self, view: View, now: float) -> list[tuple[float, float]]:
        """Points (seconds from now, records/s) within the trend window; at least the present reading."""
        begin = -self.trend_window.total_seconds()
        found = [(0.0, total(view, self.arrivals) or 0.0)]
        for seen in reversed(view.past[:-1]):
            time = seen.at.timestamp() - now
            if time < begin:
                break  # the past may be longer, as another policy may need more
            reading = seen.metrics.get(self.arrivals)
            if reading is None:
                continue
            value = reading.value
            rate = sum(value) if isinstance(value, tuple) else value
            if 0 <= rate < math.inf:
                found.append((time, rate))
        return found

    # planning

    def _capacity(self, memory: Mapping[str, float], size: int) -> float:
        """The capacity of a size, records/s: as observed, else in proportion to the present one (`get_capacity`)."""
        capacity = memory.get(f"capacity_{size}") or memory.get("each", 0.0) * size
        return min(max(capacity, 0.0), 1e300)

    def _plan(self, view: View, memory: dict[str, float], line: Line | Curve, now: float) -> None:
        """Choose the size (`plan` and `determine_scaleout`)."""
        current = view.current
        current_capacity = self._capacity(memory, current)
        arrivals, lag = total(view, self.arrivals) or 0.0, total(view, self.lag) or 0.0
        if current and not current_capacity:
            return
        if "each" not in memory:
            return
        within_cooldown = now - memory["rescaled_at"] < self.optional_cooldown.total_seconds()
        memory["most"] = min(line.most(line.horizon), 1e300)
        if (
            within_cooldown
            and current_capacity > arrivals
            and current_capacity > line.most(self.interval.total_seconds())
        ):
            memory.update(size=float(current), capacity=current_capacity)
            return
        waiting = arrivals * self.checkpoint.total_seconds() + lag
        for size in range(max(view.limits.minimum, 1), view.limits.maximum + 1):
            capacity = self._capacity(memory, size)
            if capacity <= arrivals:
                continue
            recovery = recovery_time(line, capacity, waiting, self._downtime(memory, down=size < current))
            if not recovery <= self.target_recovery.total_seconds() or capacity < line.most(recovery):
                continue
            if size < current and current_capacity < lag:
                continue
            if size == current or capacity > line.most(line.horizon):
                memory.update(size=float(size), capacity=capacity, recovery=recovery)
                return
        size = max(view.limits.maximum, 1)
        memory.update(size=float(size), capacity=self._capacity(memory, size))

    def _downtime(self, memory: Mapping[str, float], *, down: bool) -> float:
        name = "downtime_down" if down else "downtime_up"
        return memory.get(name, getattr(self, name).total_seconds())

    def evaluate(self, view: View) -> Recommendation:
        """Ask for the size that was chosen last."""
        absent = self._absent(view)
        if absent:
            return missing(view, *absent)
        memory = view.memory
        arrivals = total(view, self.arrivals) or 0.0
        inputs = {"arrivals": arrivals, "lag": total(view, self.lag) or 0.0}
        what = f"{format_number(arrivals)}/s arriving"
        if not view.current and (arrivals or inputs["lag"]) and "size" not in memory:
            return sized(view, 1, inputs, f"{what}; nothing is processed by 0 replicas: one")
        since = view.now.timestamp() - memory.get("rescaled_at", -math.inf)
        grace = self.cooldown.total_seconds()
        if since < grace:
            what += (
                f"; the last rescale was {format_number(since)} s ago, and nothing is changed for "
                f"{format_number(grace)} s"
            )
            return sized(view, view.current, inputs, what)
        if not all(name in memory for name in ("size", "capacity", "most", "wape")):
            return Recommendation(None, Reason.LEARNING, inputs, f"{what}; the capacity is not known yet")
        size, capacity, most = int(memory["size"]), memory["capacity"], memory["most"]
        inputs |= {"capacity": capacity, "forecast": most, "wape": memory["wape"]}
        what += f", up to {format_number(most)}/s forecast; {replicas(size)} ({format_number(capacity)}/s)"
        recovery = memory.get("recovery")
        if recovery is not None:
            inputs["recovery"] = recovery
            what += f" recover in {format_number(recovery)} s"
        elif size == view.current:
            what += " will do for now, soon after a rescale"
        else:
            what += ": no size does better"
        return sized(view, size, inputs, what)

    def _absent(self, view: View) -> list[str]:
        found: dict[str, object] = {name: total(view, name) for name in (self.arrivals, self.throughput, self.lag)}
        found[self.utilization] = busy(view, self.utilization)
        return [name for name, value in found.items() if value is None]


def _stands_since(rescale: Rescale) -> float:
    """When the job stopped for a rescale: while new replicas start, it still runs on the old ones."""
    begin = rescale.at.timestamp()
    if rescale.direction is Direction.UP:
        begin += sum(rescale.durations.get(phase, 0.0) for phase in (Phase.READY, Phase.REGISTERED))
    return begin


def _forget(memory: dict[str, float], size: int) -> None:
    """Forget the size furthest from this one if too many are remembered."""
    known = [int(name.removeprefix("capacity_")) for name in memory if name.startswith("capacity_")]
    if len(known) > SIZES:
        furthest = max(known, key=lambda other: (abs(other - size), other))
        for fact in (*FACTS, "capacity"):
            memory.pop(f"{fact}_{furthest}", None)
