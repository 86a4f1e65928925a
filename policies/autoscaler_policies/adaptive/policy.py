"""The default policy: it knows what each size can do, what a rescale costs and what will probably arrive."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from autoscaler.policy_api import (
    AMOUNT,
    PHASES,
    SHARE,
    ZERO,
    Direction,
    JobState,
    Phase,
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
from autoscaler_policies.adaptive import capacity_model, forecast, plateau, reading_window, seasonality
from autoscaler_policies.adaptive.forecast import SteadyLine
from autoscaler_policies.adaptive.reading_window import rate, seconds, total_of
from autoscaler_policies.adaptive.tuning import TUNING
from autoscaler_policies.shared.checks import ABOVE_0_TO_1, ABOVE_0S, FROM_0, FROM_0S, METRIC, check
from autoscaler_policies.shared.readings import total
from autoscaler_policies.shared.recommend import LARGEST, format_number, missing, replicas, sized, smallest

MINUTE = timedelta(seconds=forecast.MINUTE_S)
LONGEST_TREND = max(forecast.TRENDS.values())
"""Readings that the longest trend is fitted to."""
Rates = tuple[float | None, float | None, float | None]
"""Lag, arrivals and throughput."""


@dataclass(slots=True, kw_only=True)
class _Outlook:
    """What is known and expected at one moment. Times are seconds, rates records/s."""

    view: View
    memory: Mapping[str, float]
    partitions: int | None
    lag: float
    throughput: float | None
    level: float
    lasting: float
    trends: tuple[tuple[float, float], ...]
    season: tuple[float, ...]
    season_trust: float
    start_time: float
    stall_up: float
    stall_down: float
    replay: float
    forecast: tuple[float, ...]
    curve: tuple[float, float] | None
    share: float = 1.0

    def capacity_at(self, size: int) -> float:
        """What a size can process."""
        spec = self.view.spec
        if "capacity.level" not in self.memory:
            seen = saturated_rate(self.view.learned, spec, size, self.partitions)
            if seen is None and self.curve is not None:
                rate, exponent = self.curve
                return min(rate * math.pow(_effective_replicas(self.view, size, self.partitions), exponent), LARGEST)
            return seen or 0.0
        replicas = _effective_replicas(self.view, size, self.partitions)
        return self.share * capacity_model.rate(self.memory, replicas, size)

    def rate_at(self, ahead: float) -> float:
        """What will arrive so far ahead: what lasts of what arrives now, and any rise; a forecast lowers nothing."""
        if self.forecast:
            minutes = max(math.ceil(ahead / forecast.MINUTE_S), 1)
            return min(max(self.level, *self.forecast[:minutes]), LARGEST)
        rise = 0.0
        for slope, seen in self.trends:
            rise = max(rise, slope * (min(ahead, seen * TUNING.trend_persistence) + TUNING.reading_age_s))
        if self.season:
            most = max(self.season[: math.ceil(ahead / forecast.MINUTE_S) + 1])
            rise = max(rise, self.season_trust * (most - self.level))
        return min(self.lasting + rise, LARGEST)

    @property
    def downtime(self) -> float:
        """What a rescale up costs: how long the job stands still, and what it has to process twice."""
        return self.stall_up + self.replay

    @property
    def horizon(self) -> float:
        """How far ahead a new size is to do."""
        longer = TUNING.horizon_downtimes * self.downtime if self.season_trust >= TUNING.profile_trust else 0.0
        return TUNING.horizon_s + longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """Keeps the delay of records below an objective at the least cost, with few rescales.

    It learns what each size can process (from throughput and utilization, whenever the job runs undisturbed), how
    long workers take to start, how long the job stands still, and how arrivals rise and swing. From these it predicts
    how old the oldest record gets. It asks for more when that age, the downtime of the rescale included, would
    approach `objective`, and then for the size at which workers and lateness together cost least; for fewer in one
    step, when the smaller size would have done for `scale_down_window` and has cost more than a rescale is worth.

    Attributes:
        objective: the oldest unprocessed record should not be older than this; default 60s.
        slack: share of the objective that may be used up before more is asked for, above 0 to 1; default 0.75.
        headroom: capacity that a larger size should have above what is expected, as a share of that; default 0.05.
        down_headroom: the same for a smaller size, besides how unsure its capacity is; default 0.025.
        scale_down_window: fewer only when watched for so long, and for the most that arrived within it; default 3m.
        rescale_price: a rescale is worth as much as the whole cluster for so long; default 60s.
        lateness_weight: what a second beyond the objective costs, in seconds of the whole cluster; default 14.
        restart: how long the job stands still for a rescale, until that has been seen; default 15s.
        start_up: how long new workers take to start, until that has been seen; default 45s.
        profile: name of a metric of the source `profile`, which has the typical arrivals, the capacity of sizes and the
            duration of rescales from weeks of history; trusted as far as it has been right recently. Default none.
        forecast: name of a metric with the records/s expected in each of the next minutes, the last of them from then
            on; it takes the place of trends and profile, which count while it is missing. Default none.
        lag: name of the metric with the records waiting.
        arrivals: name of the metric with the offered records/s.
        throughput: name of the metric with the processed records/s.
        utilization: name of the metric from 0 to 1 with the busy share or the CPU of the workers; of one number per
            replica the hottest counts. Without it capacity is learned only while the job falls behind.
    """

    stabilizes: ClassVar[bool] = True
    """It evaluates the past itself: the cluster's stabilization window is 0s unless the user sets one."""

    objective: timedelta = timedelta(seconds=60)
    slack: float = field(default=0.75, metadata={"aliases": ("patience",)})
    headroom: float = field(default=0.05, metadata={"aliases": ("reserve",)})
    down_headroom: float = field(default=0.025, metadata={"aliases": ("down_reserve",)})
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
        """What its metrics can be."""
        return {self.lag: AMOUNT, self.arrivals: AMOUNT, self.throughput: AMOUNT, self.utilization: SHARE}

    @property
    def lookback(self) -> timedelta:
        """How much past it needs: the longest trend, and the window for scaling down."""
        longest = timedelta(seconds=forecast.MINUTE_S * LONGEST_TREND)
        return max(longest, self.scale_down_window) + timedelta(minutes=2)

    def estimate_capacity(self, memory: Mapping[str, float], size: int, workers: float) -> float | None:
        """Records/s that a size processes, by the model of its capacity."""
        return capacity_model.rate(memory, workers, size) if "capacity.level" in memory else None

    # learning

    def learn(self, view: View) -> Mapping[str, float]:
        """What is known now: arrivals, forecasts and their errors, capacity, stalls, what fewer would have saved."""
        memory = dict(view.memory)
        now = seconds(view.now)
        _learn_checkpoints(view, memory)
        for direction in Direction:
            if (stall := stall_time(view.learned, direction)) is not None:
                memory[f"stall.{direction}"] = stall
        lag, arrivals, throughput = self._rates(view)
        if arrivals is not None:
            reading = view.metrics[self.arrivals]
            at = seconds(reading.at)
            over_s = reading.over.total_seconds() if reading.over > view.spec.interval else 0.0
            latest = self._latest_rate(view, over_s) if over_s else 0.0
            # More arrives than is processed, by these readings, but the lag does not grow.
            doubtful = False
            if throughput is not None and lag is not None:
                doubtful = lag < TUNING.unprocessed_s * (arrivals - throughput)
            forecast.follow(memory, arrivals, at, latest=latest, over=over_s, doubtful=doubtful)
            minutes = self._minutes(view)
            forecast.find_trends(memory, minutes)
            forecast.learn_outlasting(memory, minutes)
            forecast.follow_line(memory, arrivals, at)
            forecast.judge_forecast(memory, now)
            seasonality.compare(memory, _season(self._profile(view)), now)
            self._learn_capacity(view, memory, (lag, arrivals, throughput), now)
        self._learn_spare(view, memory, (lag, arrivals, throughput), now)
        # One that is not finite makes the sum so too: faster than testing each.
        if math.isfinite(sum(memory.values())):
            return memory
        return {name: number for name, number in memory.items() if math.isfinite(number)}

    def _latest_rate(self, view: View, over: float) -> float:
        """What arrived recently, by readings that are means over so many seconds."""
        begin = seconds(view.now) - over - 3 * max(forecast.READING_S, view.spec.interval.total_seconds())
        return forecast.latest_rate(self._points(view, 1, begin=begin), over)

    def _learn_capacity(self, view: View, memory: dict[str, float], rates: Rates, now: float) -> None:
        lag, arrivals, throughput = rates
        behind = memory.pop("behind.since_at", now)
        plateau.forget(memory, view.current, throughput or 0.0, now)
        if arrivals is None or throughput is None or not _undisturbed(view):
            return
        busy = _hottest(view, self.utilization)
        behind_now = lag is not None and throughput < arrivals and lag > TUNING.behind_s * throughput
        if behind_now and (busy is None or busy > TUNING.saturated_utilization):
            busy = 1.0
            memory["behind.since_at"] = behind
            if now - behind >= TUNING.saturated_s:
                plateau.compare(memory, view.current, throughput, now)
        if busy is None:
            return
        curve = _curve(self._profile(view))
        if curve is not None and "capacity.level" not in memory:
            memory["capacity.exponent"] = curve[1]  # the level is measured at once, the exponent takes days
        partitions = source_partitions(view.spec, view.engine, view.past)
        workers = _effective_replicas(view, view.current, partitions)
        if 0 < busy < capacity_model.MIN_UTILIZATION and ("capacity.level" not in memory or "capacity.least" in memory):
            # Never seen busier, it can do at least so much: enough to get fewer replicas, and then be measured.
            busy = capacity_model.MIN_UTILIZATION
            if throughput / busy > capacity_model.rate(memory, workers, view.current):
                capacity_model.forget(memory)
                capacity_model.sample(memory, workers, view.current, throughput, busy, now)
                memory["capacity.least"] = 1.0
            return
        if busy >= capacity_model.MIN_UTILIZATION and "capacity.least" in memory:
            capacity_model.forget(memory)
        capacity_model.sample(memory, workers, view.current, throughput, busy, now)

    def _learn_spare(self, view: View, memory: dict[str, float], rates: Rates, now: float) -> None:
        """What fewer replicas would have saved since the size changed last, in replica-seconds.

        The rent that is paid until buying would have been cheaper (ski rental): a rescale that saves much
        is done early, one that saves little late, and one whose gain does not last is not done.
        """
        lag, arrivals, throughput = rates
        if arrivals is None or lag is None:
            return  # what fewer would have saved goes on with the next reading, unless that is too long after
        size = memory.get("spare.size")
        since = max(now - memory.get("spare.seen_at", now), 0.0)
        memory["spare.seen_at"] = now
        memory["spare.size"] = float(view.current)  # a whole number would have the core copy all of it
        if "down.reserve" in memory:
            memory["down.reserve"] *= math.exp(-since / TUNING.headroom_decay_s)
        if size is not None and size != view.current:
            self._learn_headroom(view, memory, now, rises=view.current > size)
            if size < view.current:
                workers = _effective_replicas(view, round(size), source_partitions(view.spec, view.engine, view.past))
                plateau.climb(memory, round(size), capacity_model.rate(memory, workers, round(size)), now)
        if size != view.current or since > TUNING.unobserved_s:
            memory["spare.since_at"] = now
            memory["spare.saved"] = 0.0
        memory["spare.enough"] = float(view.current)
        if view.rescale is not None:
            return
        outlook = self._outlook(view, memory, lag, arrivals, throughput)
        enough = self._smallest_size(outlook) if outlook.capacity_at(view.current) > 0 else view.current
        memory["spare.enough"] = float(enough)
        fewer = view.current - enough or -TUNING.relapse_weight
        seen = since if since <= TUNING.unobserved_s else 0.0
        memory["spare.saved"] = max(memory.get("spare.saved", 0.0) + fewer * seen, 0.0)

    def _learn_headroom(self, view: View, memory: dict[str, float], now: float, *, rises: bool) -> None:
        """Fewer replicas that did not last, though no more arrived: the next time they need more to spare."""
        level = memory.get("arrivals.level", 0.0)
        if not rises:
            memory["down.seen_at"] = now
            memory["down.level"] = max(level, self._peak(view, memory))
            return
        # More may have been asked for because of what will arrive.
        known: tuple[float, ...] = ()
        if seasonality.season_trust(memory) >= TUNING.profile_trust:
            known = seasonality.expected(memory, _season(self._profile(view)))
        level = max([level, *self._external_forecast(view), *known])
        swing = memory.get("arrivals.swing", forecast.SWING)
        most = memory.pop("down.level", 0.0) * (1 + TUNING.reversal_deviations * swing)
        if now - memory.pop("down.seen_at", -math.inf) < TUNING.reversal_s and level < most:
            headroom = memory.get("down.reserve", 0.0) + TUNING.reversal_headroom
            memory["down.reserve"] = min(headroom, TUNING.learned_headroom_limit)

    # deciding

    def evaluate(self, view: View) -> Recommendation:
        """Ask for the size that meets the objective at the least cost."""
        lag, arrivals, throughput = self._rates(view)
        if lag is None or arrivals is None:
            absent = [name for name, value in ((self.lag, lag), (self.arrivals, arrivals)) if value is None]
            return missing(view, *absent)
        outlook = self._outlook(view, view.memory, lag, arrivals, throughput)
        capacity = outlook.capacity_at(view.current)
        if capacity <= 0 and (view.current or outlook.capacity_at(1) <= 0):
            return self._without_capacity(view, lag, arrivals, throughput)
        up = outlook.start_time
        rate_ahead = outlook.rate_at(up)
        # How much waits, and how old the oldest record is, once a rescale that is asked for now is over.
        backlog_after_rescale = max(0.0, lag + ((outlook.level + rate_ahead) / 2 - capacity) * up)
        backlog_after_rescale = min(
            backlog_after_rescale + min(capacity, outlook.level) * outlook.replay + rate_ahead * outlook.stall_up,
            LARGEST,
        )
        age = min(backlog_after_rescale / rate_ahead, LARGEST) if rate_ahead > 0 else 0.0
        drain = lag / (capacity - outlook.level) if capacity > outlook.level else math.inf
        inputs = {
            "arrivals": outlook.level,
            "expected": rate_ahead,
            "ahead": up,
            "lag": lag,
            "capacity": capacity,
            "rescaled_age": age,
        }
        if drain < math.inf:
            inputs["recovery"] = min(drain, LARGEST)
        objective = self.objective.total_seconds()
        if view.rescale is None and self._rise_expected(outlook, capacity):
            rate_ahead = max(rate_ahead, outlook.rate_at(outlook.start_time + TUNING.lead_downtimes * outlook.downtime))
            return self._scale_up(outlook, rate_ahead, backlog_after_rescale, inputs)
        if rate_ahead > capacity:
            waits = self._hold_reason(outlook, capacity, age)
            if waits is not None:
                return sized(view, view.current, inputs, f"{self._describe_load(outlook, inputs)}; {waits}")
            grows = (rate_ahead - capacity) / rate_ahead
            if view.rescale is not None or age + grows * TUNING.reaction_s > self.slack * objective:
                return self._scale_up(outlook, rate_ahead, backlog_after_rescale, inputs)
        late = lag > TUNING.behind_s * capacity and lag > self.slack * objective * outlook.level
        if late and drain > TUNING.shortage_objectives * objective and not self._recovers_sooner(outlook, capacity):
            return self._scale_up(outlook, rate_ahead, backlog_after_rescale, inputs)
        if throughput is None:
            return missing(view, self.throughput)
        fewer = self._scale_down(outlook, inputs)
        return fewer or sized(view, view.current, inputs, self._describe_stay(outlook, inputs))

    def _scale_up(
        self, outlook: _Outlook, rate_ahead: float, backlog_after_rescale: float, inputs: dict[str, float]
    ) -> Recommendation:
        """The size above the present one at which workers and lateness together cost least."""
        view = outlook.view
        if (limited := plateau.describe(outlook.memory)) is not None:
            return sized(view, view.current, inputs, f"{self._describe_load(outlook, inputs)}; {limited}")
        maximum = view.limits.maximum
        objective = self.objective.total_seconds()
        worked_off = max(0.0, outlook.downtime - TUNING.recovered_share * objective) / TUNING.up_recovery_s
        wanted = outlook.rate_at(outlook.horizon + outlook.start_time) * (1 + self.headroom + worked_off)
        line = self._steady_line(outlook)
        if line is not None:
            around = line.middle * (1 + TUNING.line_deviations * line.spread)
            wanted = min(wanted, around * (1 + self.headroom + worked_off))
        least = smallest(min(view.current + 1, maximum), maximum, lambda size: outlook.capacity_at(size) >= wanted)
        late = backlog_after_rescale - TUNING.lateness_share * objective * rate_ahead
        best, price = least, math.inf
        for size in range(least, maximum + 1):
            spare = outlook.capacity_at(size) / (1 + self.headroom / 2) - rate_ahead
            lasts = 0.0 if late <= 0 else late / spare if spare > 0 else math.inf
            cost = (size - least) * TUNING.horizon_s + self.lateness_weight * least * lasts
            if cost < price:
                best, price = size, cost
            elif size > best + TUNING.search_width:
                break
        # What has nothing to read does nothing: more replicas than partitions, or than divide them better.
        used = _effective_replicas(view, best, outlook.partitions)
        low = min(view.current, best)
        best = smallest(low, best, lambda size: _effective_replicas(view, size, outlook.partitions) >= used)
        capacity = outlook.capacity_at(best)
        inputs["able"] = capacity
        if price < math.inf:
            inputs["waiting"] = price
        inputs.pop("recovery", None)
        now = f"{replicas(view.current)} ({format_number(inputs['capacity'])}/s)"
        text = f"{self._describe_load(outlook, inputs)}; {now} are short, "
        if capacity > rate_ahead:
            recovery = min(backlog_after_rescale / (capacity - rate_ahead), LARGEST)
            inputs["recovery"] = recovery
            text += f"{best} ({format_number(capacity)}/s) recover in {format_number(recovery)} s after it"
        elif line is not None and capacity > line.middle:
            middle = format_number(line.middle)
            text += f"{best} ({format_number(capacity)}/s) do for what arrivals swing around, {middle}/s"
        else:
            most = "the most allowed" if best >= maximum else "the most that have something to do"
            text += f"{best} ({format_number(capacity)}/s), {most}, are too"
        return sized(view, max(best, view.current), inputs, text)

    def _rise_expected(self, outlook: _Outlook, capacity: float) -> bool:
        """Whether the season alone will soon need more than the size can process."""
        if outlook.season_trust < TUNING.profile_trust or seasonality.is_far_below(outlook.level, outlook.season):
            return False
        minutes = round((outlook.start_time + TUNING.lead_downtimes * outlook.downtime) / forecast.MINUTE_S)
        nearly = TUNING.lead_margin * (outlook.downtime / self.objective.total_seconds()) ** 2
        return outlook.season[min(minutes, len(outlook.season) - 1)] * (1 + nearly) > capacity

    def _hold_reason(self, outlook: _Outlook, capacity: float, age: float) -> str | None:
        """Why nothing is done yet, though more will arrive than the size can process, if there is a reason."""
        view = outlook.view
        if age < self.slack * self.objective.total_seconds() and _jumping(view):
            return "arrivals have just jumped: the next readings show how far"
        if self._swing_passes(outlook, capacity):
            return "that is a peak like those before it, which is expected to pass"
        if view.rescale is None and self._bump_passes(outlook, capacity):
            return "that is more than usual, and passes before a rescale would pay"
        return None

    def _bump_passes(self, outlook: _Outlook, capacity: float) -> bool:
        """Whether arrivals are above the profile for a while only, and a rescale would delay records by more."""
        if outlook.season_trust < TUNING.profile_trust or seasonality.is_far_above(outlook.level, outlook.season):
            return False
        if max(outlook.season) > capacity:
            return False
        most = seasonality.peak_backlog(outlook.level, outlook.season, outlook.season_trust, capacity, outlook.lag)
        return most < TUNING.bump_share * outlook.downtime * capacity

    def _steady_line(self, outlook: _Outlook) -> SteadyLine | None:
        """The line that arrivals only swing around (`forecast.steady_line`), unless a forecast predicts more."""
        if outlook.forecast or outlook.season_trust >= TUNING.profile_trust:
            return None
        return forecast.steady_line(outlook.memory)

    def _swing_passes(self, outlook: _Outlook, capacity: float) -> bool:
        """Whether arrivals only swing above a line that they return to before much waits.

        The size falls behind by what is above the line for a while (`forecast.SteadyLine.backlog`), and then catches
        up, at the latest within the time a rescale would have taken.
        """
        found = self._steady_line(outlook)
        if found is None:
            return False
        over = found.backlog(outlook.level - found.middle, capacity)
        most = TUNING.peak_share * self.objective.total_seconds() * capacity
        return outlook.lag + over <= most + (outlook.start_time + outlook.downtime) * (capacity - found.middle)

    def _recovers_sooner(self, outlook: _Outlook, capacity: float) -> bool:
        """Whether the objective is met earlier without a rescale, whose downtime has to be worked off as well.

        Compared with the capacity and not with the arrivals: more arrivals must not seem to be less delay.
        """
        if capacity <= outlook.level:
            return False
        kept = TUNING.met_share * self.objective.total_seconds() * capacity
        return outlook.lag - kept <= (outlook.start_time + outlook.downtime) * (capacity - outlook.level)

    def _smallest_size(self, outlook: _Outlook) -> int:
        """The smallest size that would do, up to the present one."""
        view, memory = outlook.view, outlook.memory
        low = view.limits.minimum
        if low >= view.current:
            return view.current
        objective = self.objective.total_seconds()
        most = max(outlook.rate_at(outlook.horizon), self._last_minute_rate(outlook))
        downtime = outlook.stall_down + outlook.replay
        headroom = 1 + self.down_headroom + memory.get("down.reserve", 0.0)
        most *= headroom + max(0.0, downtime - TUNING.recovered_share * objective) / TUNING.down_recovery_s
        backlog_after_rescale = outlook.lag + outlook.level * downtime
        seen = self._points(view, 1, begin=seconds(view.now - self.scale_down_window))
        line = forecast.steady_line(memory)

        def fits(size: int) -> bool:
            capacity = outlook.capacity_at(size)
            unsure = capacity_model.uncertainty(memory, max(size, 1))
            if capacity < most * (1 + unsure) or backlog_after_rescale > TUNING.down_delay_share * objective * capacity:
                return False
            waiting = reading_window.largest_backlog(seen, capacity)
            if line is not None:
                swing = TUNING.swing_deviations * line.spread * line.middle
                waiting = max(waiting, line.backlog(swing, capacity))
            return waiting <= TUNING.past_delay_share * objective * capacity

        return smallest(low, view.current, fits)

    def _scale_down(self, outlook: _Outlook, inputs: dict[str, float]) -> Recommendation | None:
        """The smaller size that would have done for a while, once it would have saved more than a rescale costs."""
        view, memory = outlook.view, outlook.memory
        if view.rescale is not None or memory.get("spare.size") != view.current:
            return None
        now = seconds(view.now)
        known = memory.get("spare.enough")
        # What `learn` has just found. It is not called while the target's size is unknown.
        size = int(known) if known is not None and memory.get("spare.seen_at") == now else self._smallest_size(outlook)
        saved = memory.get("spare.saved", 0.0)
        price = self._price(view)
        watched = now - memory.get("spare.since_at", math.inf)
        if size >= view.current or watched < self.scale_down_window.total_seconds() or saved < price:
            return None
        if outlook.lag > TUNING.recovered_share * self.objective.total_seconds() * inputs["capacity"]:
            return None
        capacity = outlook.capacity_at(size)
        inputs["able"] = capacity
        inputs["saved"] = saved
        inputs["outage"] = price
        text = (
            f"{self._describe_load(outlook, inputs)}; {replicas(size)} ({format_number(capacity)}/s) would do and "
            f"would have saved {format_number(saved)} replica-seconds, a rescale is worth {format_number(price)}"
        )
        return sized(view, size, inputs, text)

    def _price(self, view: View) -> float:
        """What a smaller size must have saved before a rescale is worth it, in replica-seconds."""
        return self.rescale_price.total_seconds() * view.current

    def _describe_stay(self, outlook: _Outlook, inputs: Mapping[str, float]) -> str:
        view = outlook.view
        text = self._describe_load(outlook, inputs)
        text += f"; {replicas(view.current)} ({format_number(inputs['capacity'])}/s)"
        text += f" work it off in {format_number(inputs['recovery'])} s" if "recovery" in inputs else " do for now"
        enough = int(outlook.memory.get("spare.enough", view.current))
        if enough < view.current:
            saved = format_number(outlook.memory.get("spare.saved", 0.0))
            price = format_number(self._price(view))
            text += f"; {enough} would do and have saved {saved} of {price} replica-seconds"
        return text

    def _describe_load(self, outlook: _Outlook, inputs: Mapping[str, float]) -> str:
        text = f"{format_number(outlook.level)}/s arriving"
        if inputs["expected"] != outlook.level:
            text += f", {format_number(inputs['expected'])}/s in {format_number(inputs['ahead'])} s"
        return f"{text}, lag {format_number(outlook.lag)}"

    def _without_capacity(self, view: View, lag: float, arrivals: float, throughput: float | None) -> Recommendation:
        """Without a known capacity: one more when there is clearly too little, else no opinion."""
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

    def _outlook(
        self, view: View, memory: Mapping[str, float], lag: float, arrivals: float, throughput: float | None
    ) -> _Outlook:
        level = max(memory.get("arrivals.level", arrivals), 0.0)
        profile = self._profile(view)
        external = self._external_forecast(view) if self.forecast is not None else ()
        season: tuple[float, ...] = ()
        trust, trend_share = 0.0, 1.0
        if profile is not None and not external:
            season = seasonality.expected(memory, _season(profile))
        if season:
            trust = seasonality.season_trust(memory)
            # Where the profile predicts the arrivals no trend is needed, unless far more arrives.
            trend_share = 1.0 if seasonality.is_far_above(level, season) else 1.0 - trust
        restart = _profiled_time(profile, "stall", self.restart)
        stall_up, stall_down = memory.get("stall.up", restart), memory.get("stall.down", restart)
        outlook = _Outlook(
            view=view,
            memory=memory,
            partitions=source_partitions(view.spec, view.engine, view.past),
            lag=lag,
            throughput=throughput,
            level=level,
            lasting=level if external else level + trend_share * (forecast.lasting_rate(memory, level) - level),
            trends=forecast.trends(memory, trend_share),
            season=season,
            season_trust=trust,
            start_time=restart_time(view.learned, Direction.UP)
            or _profiled_time(profile, "start_up", self.start_up) + restart,
            stall_up=stall_up,
            stall_down=stall_down,
            replay=0.0,
            forecast=external,
            curve=_curve(profile),
        )
        if max(stall_up, stall_down) > 1.0:  # a job that does not stop does not return to a checkpoint
            outlook.replay = memory.get("checkpoint.interval", TUNING.checkpoint_interval_s)
        behind_since = memory.get("behind.since_at", math.inf)
        if throughput and seconds(view.now) - behind_since >= TUNING.saturated_s:
            capacity = outlook.capacity_at(view.current)
            if throughput < TUNING.saturated_share * capacity:
                outlook.share = throughput / capacity
        return outlook

    def _external_forecast(self, view: View) -> tuple[float, ...]:
        """What another system forecasts, by the minute; nothing where that is not a forecast."""
        reading = None if self.forecast is None else view.metrics.get(self.forecast)
        if reading is None:
            return ()
        rates = reading.value if isinstance(reading.value, tuple) else (reading.value,)
        return rates if min(rates) >= 0 else ()

    def _profile(self, view: View) -> Reading | None:
        """The profile of the cluster, if there is one."""
        return None if self.profile is None else view.metrics.get(self.profile)

    def _minutes(self, view: View) -> list[tuple[float, float]]:
        """The arrivals of the last quarter of an hour, about a minute apart, in order of time."""
        stride = max(1, round(forecast.MINUTE_S / view.spec.interval.total_seconds()))
        return self._points(view, stride, stride * LONGEST_TREND)

    def _points(
        self, view: View, stride: int, polls: int | None = None, begin: float = -math.inf
    ) -> list[tuple[float, float]]:
        """The arrivals that were seen (`reading_window.points`), those of now at least."""
        now = view.metrics[self.arrivals]
        found = reading_window.points(view.past, self.arrivals, stride, polls, begin)
        return found or [(seconds(now.at), total_of(now))]

    def _peak(self, view: View, memory: Mapping[str, float]) -> float:
        """The most that arrived within the scale-down window, less what may be noise."""
        most = reading_window.peak(view.past, self.arrivals, view.now - self.scale_down_window)
        return most / (1 + 2 * memory.get("arrivals.noise", forecast.NOISE))

    def _rates(self, view: View) -> Rates:
        """Lag, arrivals and throughput, as far as they can be used.

        A lag that has grown by far more than can have arrived counts only that much until it is read again.
        """
        lag, arrivals, throughput = total(view, self.lag), total(view, self.arrivals), total(view, self.throughput)
        before = rate(view.past[-2], self.lag) if lag and len(view.past) > 1 else None
        if lag is None or arrivals is None or before is None or lag <= before or not _undisturbed(view):
            return lag, arrivals, throughput
        since = (view.metrics[self.lag].at - view.past[-2].metrics[self.lag].at).total_seconds()
        come = max(arrivals, throughput or 0.0)
        return min(lag, before + TUNING.lag_growth_limit * come * since) if since > 0 else lag, arrivals, throughput

    def _last_minute_rate(self, outlook: _Outlook) -> float:
        """What arrived within the last minute by what was processed and what waits now, independent of `arrivals`."""
        view, throughput = outlook.view, outlook.throughput
        if throughput is None:
            return 0.0
        begin = view.now - MINUTE
        for seen in reversed(view.past):
            reading = seen.metrics.get(self.lag)
            if reading is not None and reading.at <= begin and (before := rate(seen, self.lag)) is not None:
                more = outlook.lag - before
                since = (view.metrics[self.lag].at - reading.at).total_seconds()
                return min(max(throughput + more / max(since, forecast.MINUTE_S), 0.0), LARGEST)
        return throughput


def _undisturbed(view: View) -> bool:
    """Whether what is seen is what this size does, not a transient."""
    if view.ready != view.current or view.current < 1:
        return False
    engine = view.engine
    if engine is not None:
        if engine.job is not JobState.RUNNING:
            return False
        if engine.running_since is not None and ZERO <= view.now - engine.running_since < TUNING.warm_up:
            return False
    if view.rescale is not None and PHASES.index(view.rescale.phase) < PHASES.index(Phase.RUNNING):
        return False
    return view.disturbance_ended_at is None or view.now - view.disturbance_ended_at >= TUNING.warm_up


def _learn_checkpoints(view: View, memory: dict[str, float]) -> None:
    """How far apart the job's checkpoints are."""
    if view.engine is not None and view.engine.last_checkpoint is not None:
        at = seconds(view.engine.last_checkpoint)
        took = at - memory.get("checkpoint.seen_at", at)
        if took > 0:
            # They are not seen one by one: the least is the nearest to the truth, and may grow.
            memory["checkpoint.interval"] = min(took, memory.get("checkpoint.interval", took) * 1.1)
        memory["checkpoint.seen_at"] = at


def _jumping(view: View) -> bool:
    """Whether arrivals have just jumped up, and polls are so close together that the next ones soon show how far.

    A rate measured across a jump is neither the old nor the new one: a size for it would be changed at once.
    """
    now, interval = seconds(view.now), view.spec.interval.total_seconds()
    if 0 <= now - view.memory.get("arrivals.rises_at", -math.inf) < interval <= forecast.READING_S:
        return True
    settling_s = TUNING.jump_polls * interval
    return settling_s < forecast.READING_S and 0 <= now - view.memory.get("arrivals.jumped_at", -math.inf) < settling_s


def _effective_replicas(view: View, size: int, partitions: int | None) -> float:
    """How many replicas' work a size does: partitions that do not divide evenly leave some of it idle."""
    return effective_slots(size, view.spec.slots_per_replica, partitions) / view.spec.slots_per_replica


def _season(profile: Reading | None) -> tuple[float, ...]:
    """Arrivals of the profile now and in the next minutes; empty where it has none."""
    if profile is None or not isinstance(profile.value, tuple) or min(profile.value) < 0:
        return ()
    return profile.value if profile.value[0] > 0 and max(profile.value) <= LARGEST else ()


def _curve(profile: Reading | None) -> tuple[float, float] | None:
    """What one replica can do and how that grows with the size, by the profile."""
    if profile is None:
        return None
    curve = profile.parts.get("capacity", {})
    rate, exponent = curve.get("rate", 0.0), curve.get("exponent", 0.0)
    low, high = TUNING.exponents
    return (rate, exponent) if 0 < rate <= LARGEST and low <= exponent <= high else None


def _profiled_time(profile: Reading | None, what: str, otherwise: timedelta) -> float:
    """How many seconds something took on the way up, by the profile."""
    known = -1.0 if profile is None else profile.parts.get("up", {}).get(what, -1.0)
    return known if 0 <= known <= TUNING.profiled_limit_s else otherwise.total_seconds()


def _hottest(view: View, name: str) -> float | None:
    reading = view.metrics.get(name)
    if reading is None:
        return None
    value = reading.value
    return max(value) if isinstance(value, tuple) else value
