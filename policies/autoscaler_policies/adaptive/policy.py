"""The default policy: it learns the capacity of each size and the cost of a rescale, and it predicts the arrivals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from autoscaler.policy_api import (
    AMOUNT,
    SHARE,
    ZERO,
    Direction,
    JobState,
    Range,
    Reading,
    Reason,
    Recommendation,
    View,
    effective_slots,
    restart_time,
    saturated_rate,
    source_partitions,
    stall_time,
)
from autoscaler_policies.adaptive import capacity_model, forecast, plateau, reading_window
from autoscaler_policies.adaptive.capacity_model import Capacity, Idle
from autoscaler_policies.adaptive.plateau import Throughput
from autoscaler_policies.adaptive.reading_window import rate, seconds, total_of
from autoscaler_policies.adaptive.state import State
from autoscaler_policies.adaptive.tuning import TUNING
from autoscaler_policies.shared.checks import ABOVE_0_TO_1, ABOVE_0S, FROM_0, FROM_0S, METRIC, check
from autoscaler_policies.shared.readings import moving, total
from autoscaler_policies.shared.recommend import LARGEST, are, format_number, missing, replicas, sized, smallest

WARM_UP = timedelta(seconds=TUNING.warm_up_s)
Rates = tuple[float | None, float | None, float | None]
"""Lag, arrivals and throughput."""


@dataclass(slots=True, kw_only=True)
class _Outlook:
    """The known and expected numbers at one moment. Times are seconds, rates records/s."""

    view: View
    state: State
    partitions: int | None
    lag: float
    throughput: float | None
    level: float
    lasting: float
    expected: tuple[float, ...]
    by_profile: bool
    start_time: float
    restart: float
    replay: float
    curve: tuple[float, float] | None
    share: float = 1.0

    def capacity_at(self, size: int) -> float:
        """The capacity of a size."""
        replicas = _effective_replicas(self.view, size, self.partitions)
        if self.state.capacity.level is not None:
            return self.share * self.state.capacity.rate(replicas)
        seen = saturated_rate(self.view.learned, self.view.spec, size, self.partitions)
        if seen is None and self.curve is not None:
            rate, exponent = self.curve
            return min(rate * math.pow(replicas, exponent), LARGEST)
        return seen or 0.0

    def rate_at(self, ahead: float) -> float:
        """Expected arrivals in `ahead` seconds: the present ones that last, plus a rise. A forecast never lowers it."""
        if self.expected:
            return min(max(self.lasting, self.level + self.rise_expected(ahead)), LARGEST)
        rise = max(self.state.arrivals.rise(ahead), self.state.lasting.rise(self.level, ahead))
        return min(self.lasting + rise, LARGEST)

    def rise_expected(self, ahead: float) -> float:
        """The largest rise within `ahead` seconds by a forecast or the profile, records/s, 0 or more."""
        return max(0.0, *self.expected[: math.ceil(ahead / forecast.MINUTE_S) + 1], self.level) - self.level

    def stall(self, direction: Direction, more: int = 1) -> float:
        """How long the job stands still for a rescale, upwards by `more` replicas."""
        seen = stall_time(self.view.learned, direction, more)
        return self.restart if seen is None else seen

    def downtime(self, more: int = 1) -> float:
        """The downtime of a rescale up by `more` replicas: the stall, and the time for records processed twice."""
        return self.stall(Direction.UP, more) + self.replay

    def effective(self, size: int) -> float:
        """The number of fully used replicas that a size is worth."""
        return _effective_replicas(self.view, size, self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """Keeps the delay of records below an objective at the least cost, with few rescales.

    It learns the capacity of each size (from throughput and utilization, whenever the job runs undisturbed), how long
    workers take to start, how long the job stands still, and how arrivals rise and swing. From these it predicts the
    age of the oldest record. When that age, including the downtime of the rescale, would approach `objective`, it asks
    for the size at which workers and lateness together cost least. It asks for fewer replicas in one step, when the
    smaller size would have been enough for `scale_down_window` and would have saved more than a rescale costs.

    Attributes:
        objective: the oldest unprocessed record should not be older than this; default 60s.
        slack: share of the objective that may be used up before the policy asks for more, above 0 to 1; default 0.75.
        headroom: capacity that a larger size should have above the expected arrivals, as a share of them; default 0.2.
        down_headroom: the same for a smaller size, in addition to the uncertainty of its capacity; default 0.05.
        scale_down_window: the policy asks for fewer only after it has watched the present size for this long, and if
            fewer are enough for all arrivals of that time; default 3m.
        rescale_price: price of a rescale, as the time for which the whole cluster costs as much; default 60s.
        lateness_weight: price of a second beyond the objective, in seconds of the whole cluster; default 14.
        restart: how long the job stands still for a rescale, until that is learned; default 15s.
        start_up: how long new workers take to start, until that is learned; default 45s.
        profile: name of a metric of the source `profile`, which has the typical arrivals, the capacity of sizes and the
            duration of rescales from weeks of history; trusted while it is no more wrong than constant arrivals.
            Default none.
        forecast: name of a metric with the records/s expected in each of the next minutes; the last one holds from then
            on. It replaces trends and profile, which count while it is missing. Default none.
        lag: name of the metric with the records waiting.
        arrivals: name of the metric with the offered records/s.
        throughput: name of the metric with the processed records/s.
        utilization: name of the metric from 0 to 1 with the busy share or the CPU of the workers; if it has one number
            per replica, the highest counts. It need not reach 1: when the job falls behind, the policy learns at which
            utilization it is saturated. Without this metric, capacity is learned only then.
    """

    stabilizes: ClassVar[bool] = True
    """It evaluates the past itself: the cluster's stabilization window is 0s unless the user sets one."""

    objective: timedelta = timedelta(seconds=60)
    slack: float = field(default=0.75, metadata={"aliases": ("patience",)})
    headroom: float = field(default=0.2, metadata={"aliases": ("reserve",)})
    down_headroom: float = field(default=0.05, metadata={"aliases": ("down_reserve",)})
    scale_down_window: timedelta = field(default=timedelta(minutes=3), metadata={"aliases": ("calm",)})
    rescale_price: timedelta = field(default=timedelta(seconds=60), metadata={"aliases": ("outage",)})
    lateness_weight: float = field(default=14.0, metadata={"aliases": ("waiting",)})
    restart: timedelta = timedelta(seconds=15)
    start_up: timedelta = timedelta(seconds=45)
    profile: str | None = None
    forecast: str | None = None
    lag: str = "lag"
    arrivals: str = "arrivals"
    throughput: str = "throughput"
    utilization: str = "utilization"

    def __post_init__(self) -> None:
        check(self, "objective", *ABOVE_0S)
        check(self, "slack", *ABOVE_0_TO_1)
        check(self, "headroom down_headroom", lambda share: 0 <= share < 1, "from 0 to below 1")
        check(self, "lateness_weight", *FROM_0)
        check(self, "scale_down_window rescale_price restart start_up", *FROM_0S)
        check(self, "lag arrivals throughput utilization profile forecast", *METRIC)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics it cannot do without."""
        return (self.lag, self.arrivals, self.throughput)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of its metrics."""
        return {self.lag: AMOUNT, self.arrivals: AMOUNT, self.throughput: AMOUNT, self.utilization: SHARE}

    @property
    def lookback(self) -> timedelta:
        """How much of the past it needs: the longest trend, and the window for scaling down."""
        longest = timedelta(seconds=forecast.MINUTE_S * TUNING.points)
        return max(longest, self.scale_down_window) + timedelta(minutes=2)

    def estimate_capacity(self, memory: Mapping[str, float], size: int, workers: float) -> float | None:
        """Records/s that a size processes, according to the capacity model."""
        del size
        capacity = State.load(memory).capacity
        return None if capacity.level is None else capacity.rate(workers)

    # learning

    def learn(self, view: View) -> Mapping[str, float]:
        """Learn arrivals, how much of them lasts, capacity, checkpoints, and what fewer replicas would have saved."""
        state = State.load(view.memory)
        now = seconds(view.now)
        _learn_checkpoints(view, state)
        rates = lag, arrivals, throughput = self._rates(view)
        if arrivals is not None:
            # Arriving records are processed or wait: these two readings confirm arrivals up to their sum.
            confirmed = math.inf if throughput is None or lag is None else throughput + lag
            at, latest = seconds(view.metrics[self.arrivals].at), self._latest_rate(view)
            state.arrivals.follow(arrivals, at, latest=latest, confirmed=confirmed)
            state.lasting.learn(self._minutes(view))
            state.season.compare(state.arrivals.level or 0.0, _season(self._profile(view)), now)
            self._learn_capacity(view, state, rates, now)
        self._learn_spare(view, state, rates, now)
        return state.dump()

    def _learn_capacity(self, view: View, state: State, rates: Rates, now: float) -> None:
        lag, arrivals, throughput = rates
        if arrivals is None or throughput is None:
            return
        plateau.forget(state.plateau, view.current, throughput, now)
        waits = TUNING.past_share * self.objective.total_seconds() * throughput
        falls_behind = lag is not None and throughput < arrivals and lag > waits
        busy = self._learn_saturation(view, state, throughput, now, falls_behind=falls_behind)
        if busy is None:
            return
        workers = _effective_replicas(view, view.current, source_partitions(view.spec, view.engine, view.past))
        least = TUNING.min_utilization
        curve = _curve(self._profile(view))
        if curve is not None and state.capacity.level is None:
            # The level is measured at once, the exponent takes days: take it from the profile. But if the job cannot
            # process as much as the profile says, the profile is that of another job.
            most = (1.0 + TUNING.abnormal) * throughput / max(busy, least)
            if curve[0] * math.pow(workers, curve[1]) <= most:
                state.capacity.exponent = curve[1]
        seen = state.capacity.rate(workers)
        # A job that was never busier can process at least this much: enough to get fewer replicas and be measured then.
        hardly = busy < least
        if hardly and not (
            busy > 0 and (state.capacity.level is None or state.capacity.least) and throughput / least > seen
        ):
            return
        if hardly or state.capacity.least:
            state.capacity, state.idle = Capacity(exponent=state.capacity.exponent, least=hardly), Idle()
        state.capacity.sample(state.idle, workers, throughput, max(busy, least), now)

    def _learn_saturation(
        self, view: View, state: State, throughput: float, now: float, *, falls_behind: bool
    ) -> float | None:
        """Utilization as a share of that of the saturated job, 0 to 1; None: unknown, or the job is disturbed."""
        behind, since = state.behind, state.behind.since_at
        gap, behind.seen_at, behind.since_at = max(now - (behind.seen_at or now), 0.0), now, None
        if not _undisturbed(view):
            return None
        busy = _hottest(view, self.utilization)
        if falls_behind and (busy is None or state.saturation.plausible(busy)):
            behind.since_at = now if since is None or gap > _longest_gap(view) else since
        lasts = behind.since_at is not None and now - behind.since_at >= forecast.MINUTE_S
        if busy is not None:
            change = state.saturation.follow(busy, gap, saturated=lasts)
            if change != 1.0 and state.capacity.level is not None:
                state.capacity.level += math.log(change)
                state.idle, state.climb = Idle(), Throughput()
            busy = min(busy / state.saturation.utilization, 1.0)
        if behind.since_at is None or (busy is not None and busy <= TUNING.saturated_utilization):
            return busy
        if lasts and self.utilization not in _missing(view):
            plateau.compare(state.climb, state.plateau, view.current, throughput, now)
        return 1.0

    def _learn_spare(self, view: View, state: State, rates: Rates, now: float) -> None:
        """Learn what fewer replicas would have saved since the last change of size, in replica-seconds.

        As in the ski rental problem, one rents until buying would have been cheaper: a rescale that saves much is made
        early, one that saves little is made late, and one whose gain does not last is not made.
        """
        lag, arrivals, throughput = rates
        if lag is None or arrivals is None or throughput is None or _missing(view):
            return  # the sum continues at the next reading, unless the gap is too long
        spare = state.spare
        since = 0.0 if spare.seen_at is None else max(now - spare.seen_at, 0.0)
        before, spare.size, spare.seen_at = spare.size, view.current, now
        if before and before < view.current:
            workers = _effective_replicas(view, before, source_partitions(view.spec, view.engine, view.past))
            plateau.climb(state.climb, before, state.capacity.rate(workers), now)
        if before != view.current or since > _longest_gap(view) or spare.since_at > now:
            spare.since_at, spare.saved, since = now, 0.0, 0.0
        # If polls are far apart, the previous one must have shown the smaller size as well.
        least = (spare.enough or 0) if since > forecast.MINUTE_S else 0
        spare.enough = None
        if moving(view):
            return
        spare.enough = view.current
        outlook = self._outlook(view, state, lag, arrivals, throughput)
        if outlook.capacity_at(view.current) > 0:
            spare.enough = self._smallest_size(outlook)
        fewer = view.current - max(spare.enough, least) or -TUNING.significance
        spare.saved = max(spare.saved + fewer * since, 0.0)

    # deciding

    def evaluate(self, view: View) -> Recommendation:
        """Ask for the size that meets the objective at the least cost."""
        lag, arrivals, throughput = self._rates(view)
        if lag is None or arrivals is None:
            absent = [name for name, value in ((self.lag, lag), (self.arrivals, arrivals)) if value is None]
            return missing(view, *absent)
        outlook = self._outlook(view, State.load(view.memory), lag, arrivals, throughput)
        capacity = outlook.capacity_at(view.current)
        if capacity <= 0 and (view.current or outlook.capacity_at(1) <= 0):
            return self._without_capacity(view, lag, arrivals, throughput)
        larger, up = self._larger_size(outlook), outlook.start_time
        more = max(larger - view.current, 1)
        rate_ahead = outlook.rate_at(up)
        # The backlog, and the age of the oldest record, at the end of a rescale that is requested now.
        waiting = max(0.0, lag + ((outlook.level + rate_ahead) / 2 - capacity) * up)
        waiting += min(capacity, outlook.level) * outlook.replay + rate_ahead * outlook.stall(Direction.UP, more)
        backlog_after_rescale = min(waiting, LARGEST)
        age = min(backlog_after_rescale / rate_ahead, LARGEST) if rate_ahead > 0 else 0.0
        inputs = {
            "arrivals": outlook.level,
            "expected": rate_ahead,
            "ahead": up,
            "lag": lag,
            "capacity": capacity,
            "rescaled_age": age,
        }
        if capacity > outlook.level:
            inputs["recovery"] = min(lag / (capacity - outlook.level), LARGEST)
        objective = self.objective.total_seconds()
        early = up + TUNING.lead_downtimes * outlook.downtime(more)
        rise = outlook.rise_expected(early) if outlook.by_profile and view.rescale is None else 0.0
        if rise > max(capacity - outlook.level, 0.0):
            highest = max(rate_ahead, outlook.rate_at(early))
            return self._scale_up(outlook, larger, highest, backlog_after_rescale, inputs)
        if rate_ahead > capacity:
            if self._swing_passes(outlook, capacity):
                passes = "this peak is like earlier ones and is expected to pass"
                return sized(view, view.current, inputs, f"{self._describe_load(outlook, inputs)}; {passes}")
            grows = (rate_ahead - capacity) / rate_ahead
            if view.rescale is not None or age + grows * TUNING.warm_up_s > self.slack * objective:
                return self._scale_up(outlook, larger, rate_ahead, backlog_after_rescale, inputs)
        late = lag > self.slack * objective * outlook.level and lag > TUNING.past_share * objective * capacity
        if late and not self._recovers_sooner(outlook, capacity):
            return self._scale_up(outlook, larger, rate_ahead, backlog_after_rescale, inputs)
        if throughput is None:
            return missing(view, self.throughput)
        fewer = self._scale_down(outlook, inputs)
        return fewer or sized(view, view.current, inputs, self._describe_stay(outlook, inputs))

    def _scale_up(
        self, outlook: _Outlook, least: int, rate_ahead: float, backlog_after_rescale: float, inputs: dict[str, float]
    ) -> Recommendation:
        """Ask for the size above the present one at which workers and lateness together cost least."""
        view = outlook.view
        if (limited := plateau.describe(outlook.state.climb, outlook.state.plateau)) is not None:
            return sized(view, view.current, inputs, f"{self._describe_load(outlook, inputs)}; {limited}")
        maximum = view.limits.maximum
        late = backlog_after_rescale - self.slack * self.objective.total_seconds() * rate_ahead
        best, price = maximum, math.inf
        for size in range(least, maximum + 1):
            spare = outlook.capacity_at(size) / (1 + self.headroom / 2) - rate_ahead
            lasts = max(late, 0.0) / spare if spare > 0 else math.inf
            cost = (size - least) * TUNING.horizon_s + self.lateness_weight * least * lasts
            if cost < price:
                best, price = size, cost
        # Replicas that do not improve the distribution of partitions do nothing: use the smallest size of equal work.
        used = outlook.effective(best)
        best = smallest(min(view.current, best), best, lambda size: outlook.effective(size) >= used)
        capacity = outlook.capacity_at(best)
        inputs["new_capacity"] = capacity
        if price < math.inf:
            inputs["cost"] = price
        inputs.pop("recovery", None)
        now = f"{replicas(view.current)} ({format_number(inputs['capacity'])}/s)"
        text = f"{self._describe_load(outlook, inputs)}; {now} {are(view.current)} too few, "
        if capacity > rate_ahead:
            recovery = min(backlog_after_rescale / (capacity - rate_ahead), LARGEST)
            inputs["recovery"] = recovery
            text += f"with {best} ({format_number(capacity)}/s) the backlog is processed "
            text += f"{format_number(recovery)} s after the rescale"
        else:
            most = "the maximum" if best >= maximum else "the most that have partitions to read"
            larger = f"and so {are(best)} {best} ({format_number(capacity)}/s), {most}"
            text += f"but {most}" if best <= view.current else larger
        return sized(view, max(best, view.current), inputs, text)

    def _larger_size(self, outlook: _Outlook) -> int:
        """The smallest size above the present one that would be enough."""
        maximum = outlook.view.limits.maximum
        wanted = outlook.rate_at(TUNING.horizon_s + outlook.start_time) * (1 + self.headroom)
        least = min(outlook.view.current + 1, maximum)
        return smallest(least, maximum, lambda size: outlook.capacity_at(size) >= wanted)

    def _swing_passes(self, outlook: _Outlook, capacity: float) -> bool:
        """Whether arrivals only swing above a level, and return to it before a large backlog forms.

        The job falls behind during the swing (`forecast.Swings.backlog`). Then it must process the excess backlog
        within the time that a rescale would have taken.
        """
        found = outlook.state.lasting.swings()
        if found is None or outlook.expected:
            return False
        over = found.backlog(outlook.level - found.middle, capacity)
        most = TUNING.peak_share * self.objective.total_seconds() * capacity
        return outlook.lag + over <= most + (outlook.start_time + outlook.downtime()) * (capacity - found.middle)

    def _recovers_sooner(self, outlook: _Outlook, capacity: float) -> bool:
        """Whether the objective is met earlier without a rescale, since its downtime would add to the backlog.

        The lag is compared with the capacity, not with the arrivals: more arrivals must not look like less delay.
        """
        kept = self.slack * self.objective.total_seconds() * capacity
        return outlook.lag - kept <= (outlook.start_time + outlook.downtime()) * (capacity - outlook.level)

    def _smallest_size(self, outlook: _Outlook) -> int:
        """The smallest size that would be enough, up to the present one."""
        view, model = outlook.view, outlook.state.capacity
        low = view.limits.minimum
        if low >= view.current:
            return view.current
        objective = self.objective.total_seconds()
        # Throughput counts too, as arrivals may be reported too low.
        most = max(outlook.rate_at(TUNING.horizon_s), outlook.throughput or 0.0)
        most *= 1 + self.down_headroom
        seen = self._points(view, 1, begin=seconds(view.now - self.scale_down_window))
        swings = outlook.state.lasting.swings()

        def fits(size: int) -> bool:
            capacity = outlook.capacity_at(size)
            if capacity < most:
                return False
            unsure = model.uncertainty(max(outlook.effective(size), 1.0))
            if capacity < most * (1 + unsure):
                return False
            waiting = reading_window.largest_backlog(seen, capacity)
            if swings is not None:
                off = TUNING.significance * swings.spread * swings.middle
                waiting = max(waiting, swings.backlog(off, capacity))
            return waiting <= TUNING.past_share * objective * capacity

        return smallest(low, view.current, fits)

    def _scale_down(self, outlook: _Outlook, inputs: dict[str, float]) -> Recommendation | None:
        """Ask for a smaller size that was enough for a while, once it would have saved more than a rescale costs."""
        view, spare = outlook.view, outlook.state.spare
        saved, price = spare.saved, self._rescale_price(outlook)
        if spare.size != view.current or saved < price:
            return None
        size = self._smallest_size(outlook)
        if size >= view.current or self._awaited(outlook, size) is not None:
            return None
        capacity = outlook.capacity_at(size)
        inputs["new_capacity"] = capacity
        inputs["saved"] = saved
        inputs["rescale_price"] = price
        text = (
            f"{self._describe_load(outlook, inputs)}; {replicas(size)} ({format_number(capacity)}/s) "
            f"{are(size)} enough and would have saved {format_number(saved)} replica-seconds; "
            f"a rescale costs {format_number(price)}"
        )
        text += self._describe_lateness(outlook)
        return sized(view, size, inputs, text)

    def _awaited(self, outlook: _Outlook, size: int) -> str | None:
        """What a smaller size still waits for, however much it would have saved; None: nothing."""
        view, window = outlook.view, self.scale_down_window.total_seconds()
        if view.rescale is not None:
            return "the rescale in progress has settled"
        if seconds(view.now) - outlook.state.spare.since_at < window:
            return f"this size has been observed for {format_number(window)} s"
        if outlook.lag > TUNING.peak_share * self.objective.total_seconds() * outlook.capacity_at(size):
            return "the backlog is smaller"
        return None

    def _rescale_price(self, outlook: _Outlook) -> float:
        """What a smaller size must have saved before a rescale is worth it, in replica-seconds.

        The price of a rescale, and of the time by which its stop makes records late.
        """
        price = self.rescale_price.total_seconds() + self.lateness_weight * self._late_by_stop(outlook)
        return min(price * outlook.view.current, LARGEST)

    def _late_by_stop(self, outlook: _Outlook) -> float:
        """By how many seconds a rescale down makes records older than the objective, through its stall and replay.

        The lag is compared with the capacity, not with the arrivals: more arrivals must not lower the price.
        """
        capacity = outlook.capacity_at(outlook.view.current)
        if outlook.level <= 0 or capacity <= 0:
            return 0.0
        oldest = outlook.stall(Direction.DOWN) + outlook.replay + outlook.lag / capacity
        return min(max(oldest - self.objective.total_seconds(), 0.0), LARGEST)

    def _describe_stay(self, outlook: _Outlook, inputs: Mapping[str, float]) -> str:
        view = outlook.view
        text = self._describe_load(outlook, inputs)
        enough = "enough for now" if inputs["expected"] <= inputs["capacity"] else "kept while the delay is small"
        text += f"; {replicas(view.current)} ({format_number(inputs['capacity'])}/s) {are(view.current)} {enough}"
        if outlook.lag and "recovery" in inputs:
            text += f", the backlog is processed in {format_number(inputs['recovery'])} s"
        fewer, saved = outlook.state.spare.enough, outlook.state.spare.saved
        if fewer is not None and fewer < view.current:
            price = self._rescale_price(outlook)
            text += f"; {fewer} would be enough and would have saved {format_number(saved)} replica-seconds so far;"
            text += f" a rescale costs {format_number(price)}{self._describe_lateness(outlook)}"
            awaited = self._awaited(outlook, fewer)
            if saved >= price and awaited is not None:
                text += f"; waiting until {awaited}"
        return text

    def _describe_lateness(self, outlook: _Outlook) -> str:
        late = self._late_by_stop(outlook)
        return f", as it makes records {format_number(late)} s older than the objective" if late > 0 else ""

    def _describe_load(self, outlook: _Outlook, inputs: Mapping[str, float]) -> str:
        text = f"{format_number(outlook.level)}/s arriving"
        if inputs["expected"] != outlook.level:
            text += f", {format_number(inputs['expected'])}/s in {format_number(inputs['ahead'])} s"
        text += f", lag {format_number(outlook.lag)}"
        full = outlook.state.saturation.utilization
        return text if full == 1.0 else f"{text}, at a utilization of {full:.2g} it can do no more"

    def _without_capacity(self, view: View, lag: float, arrivals: float, throughput: float | None) -> Recommendation:
        """If the capacity is unknown: ask for one more replica if there are clearly too few, else abstain."""
        inputs = {"lag": lag, "arrivals": arrivals}
        what = f"lag {format_number(lag)} records at {format_number(arrivals)}/s arriving, capacity not known yet"
        if not view.current:
            if lag or arrivals:
                return sized(view, 1, inputs, f"{what}; nothing is processed by 0 replicas: one")
            return sized(view, 0, inputs, "nothing arrives, nothing waits")
        if throughput and view.rescale is None and arrivals >= throughput:
            inputs["throughput"] = throughput
            if lag > throughput * self.objective.total_seconds():
                behind = format_number(min(lag / throughput, LARGEST))
                return sized(view, view.current + 1, inputs, f"{what}; {behind} s behind and not gaining: one more")
        return Recommendation(None, Reason.LEARNING, inputs, what)

    def _outlook(self, view: View, state: State, lag: float, arrivals: float, throughput: float | None) -> _Outlook:
        level = arrivals if state.arrivals.level is None else max(state.arrivals.level, 0.0)
        profile = self._profile(view)
        external = self._external_forecast(view) if self.forecast is not None else ()
        expected = (level, *external) if external else state.season.expected(level, _season(profile))
        restart = _profiled_time(profile, "stall", self.restart)
        outlook = _Outlook(
            view=view,
            state=state,
            partitions=source_partitions(view.spec, view.engine, view.past),
            lag=lag,
            throughput=throughput,
            level=level,
            lasting=level if external else state.lasting.rate(level),
            expected=expected,
            by_profile=bool(expected) and not external,
            start_time=restart_time(view.learned, Direction.UP)
            or _profiled_time(profile, "start_up", self.start_up) + restart,
            restart=restart,
            replay=0.0,
            curve=_curve(profile),
        )
        # A job that does not stop does not return to a checkpoint.
        if max(outlook.stall(Direction.UP), outlook.stall(Direction.DOWN)) > 1.0:
            outlook.replay = (state.checkpoint.interval or 0.0) / 2
        behind = state.behind.since_at
        if throughput and behind is not None and seconds(view.now) - behind >= forecast.MINUTE_S:
            capacity = outlook.capacity_at(view.current)
            if throughput < (1.0 - capacity_model.SHIFT) * capacity:  # the capacity was learned at little load
                outlook.share = throughput / capacity
        return outlook

    def _external_forecast(self, view: View) -> tuple[float, ...]:
        """The arrivals that another system forecasts, per minute; empty if there is no valid forecast."""
        reading = None if self.forecast is None else view.metrics.get(self.forecast)
        if reading is None:
            return ()
        rates = reading.value if isinstance(reading.value, tuple) else (reading.value,)
        return rates if min(rates) >= 0 else ()

    def _profile(self, view: View) -> Reading | None:
        """The profile of the cluster, if there is one."""
        return None if self.profile is None else view.metrics.get(self.profile)

    def _latest_rate(self, view: View) -> float:
        """The most recent arrivals, records/s, if readings are means over a longer time; else 0."""
        over, apart = view.metrics[self.arrivals].over, view.spec.interval
        if over <= apart:
            return 0.0
        return forecast.latest_rate(
            self._points(view, 1, begin=seconds(view.now - over - 3 * apart)), over.total_seconds()
        )

    def _minutes(self, view: View) -> list[tuple[float, float]]:
        """The arrivals of the last quarter of an hour, about a minute apart, in order of time."""
        stride = max(1, round(forecast.MINUTE_S / view.spec.interval.total_seconds()))
        return self._points(view, stride, stride * TUNING.points)

    def _points(
        self, view: View, stride: int, polls: int | None = None, begin: float = -math.inf
    ) -> list[tuple[float, float]]:
        """Past arrivals (`reading_window.points`), at least the present ones."""
        now = view.metrics[self.arrivals]
        found = reading_window.points(view.past, self.arrivals, stride, polls, begin)
        return found or [(seconds(now.at), total_of(now))]

    def _rates(self, view: View) -> Rates:
        """Lag, arrivals and throughput, as far as they can be used.

        If the lag has grown by more than can have arrived, only the possible growth counts until the next reading.
        """
        lag, arrivals, throughput = total(view, self.lag), total(view, self.arrivals), total(view, self.throughput)
        before = rate(view.past[-2], self.lag) if lag and len(view.past) > 1 else None
        if lag is None or arrivals is None or before is None or lag <= before or not _undisturbed(view):
            return lag, arrivals, throughput
        since = (view.metrics[self.lag].at - view.past[-2].metrics[self.lag].at).total_seconds()
        come = max(arrivals, throughput or 0.0)
        return min(lag, before + come * since) if since > 0 else lag, arrivals, throughput


def _undisturbed(view: View) -> bool:
    """Whether the readings show this size in a steady state, not a transient."""
    if view.ready != view.current or view.current < 1:
        return False
    engine = view.engine
    if engine is not None:
        if engine.job is not JobState.RUNNING:
            return False
        if engine.running_since is not None and ZERO <= view.now - engine.running_since < WARM_UP:
            return False
    if moving(view):
        return False
    return view.disturbance_ended_at is None or view.now - view.disturbance_ended_at >= WARM_UP


def _missing(view: View) -> Mapping[str, str]:
    """The names that cannot be trusted now, each with the reason."""
    return view.past[-1].missing if view.past else {}


def _longest_gap(view: View) -> float:
    """The longest gap between two readings that is ignored, in seconds: a minute, or one lost poll."""
    return max(forecast.MINUTE_S, 2.5 * view.spec.interval.total_seconds())


def _learn_checkpoints(view: View, state: State) -> None:
    """Learn the interval of checkpoints."""
    if view.engine is None or view.engine.last_checkpoint is None:
        return
    known, at = state.checkpoint, seconds(view.engine.last_checkpoint)
    took = 0.0 if known.seen_at is None else at - known.seen_at
    if took > 0:
        # Polls may miss checkpoints: the smallest interval is nearest to the truth, and may grow slowly.
        known.interval = took if known.interval is None else min(took, known.interval * 1.1)
    known.seen_at = at


def _effective_replicas(view: View, size: int, partitions: int | None) -> float:
    """The number of fully used replicas that a size is worth: slots are idle if partitions do not divide evenly."""
    return effective_slots(size, view.spec.slots_per_replica, partitions) / view.spec.slots_per_replica


def _season(profile: Reading | None) -> tuple[float, ...]:
    """Arrivals of the profile now and in the next minutes; empty if it has none."""
    if profile is None or not isinstance(profile.value, tuple) or min(profile.value) < 0:
        return ()
    return profile.value if profile.value[0] > 0 and max(profile.value) <= LARGEST else ()


def _curve(profile: Reading | None) -> tuple[float, float] | None:
    """The capacity of one replica and the exponent of the size, from the profile; None: unknown."""
    if profile is None:
        return None
    curve = profile.parts.get("capacity", {})
    rate, exponent = curve.get("rate", 0.0), curve.get("exponent", 0.0)
    low, high = capacity_model.EXPONENTS
    return (rate, exponent) if 0 < rate <= LARGEST and low <= exponent <= high else None


def _profiled_time(profile: Reading | None, what: str, otherwise: timedelta) -> float:
    """The duration of a phase when scaling up, in seconds, from the profile; if it has none, `otherwise`."""
    known = -1.0 if profile is None else profile.parts.get("up", {}).get(what, -1.0)
    return known if 0 <= known <= TUNING.stale_s else otherwise.total_seconds()


def _hottest(view: View, name: str) -> float | None:
    reading = view.metrics.get(name)
    if reading is None:
        return None
    value = reading.value
    return max(value) if isinstance(value, tuple) else value
