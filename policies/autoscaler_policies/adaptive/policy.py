"""The default policy: it knows what each size can do, what a rescale costs and what will probably arrive."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from autoscaler.policy_api import (
    PHASES,
    ZERO,
    Direction,
    JobState,
    ParameterError,
    Phase,
    Reading,
    Reason,
    Recommendation,
    View,
    effective_slots,
    restart_time,
    saturated_rate,
    source_partitions,
)
from autoscaler_policies.adaptive import capacity_model, forecast
from autoscaler_policies.adaptive import reading_window as recent
from autoscaler_policies.adaptive import seasonality as usual
from autoscaler_policies.adaptive.reading_window import rate, seconds, together
from autoscaler_policies.shared.readings import total
from autoscaler_policies.shared.recommend import LARGEST, missing, plain, replicas, sized, smallest

MINUTE = timedelta(seconds=forecast.MINUTE_S)
LONGEST = max(forecast.TRENDS.values())
"""Readings that the longest trend is looked for in."""
WARM = timedelta(seconds=120)
"""After a restart caches are cold, the backlog is worked off, and averages still hold the time of the stall."""
CHECKPOINT_S = 10.0
"""What a restart goes back by, until checkpoints have been seen."""
SLOWLY = 0.3
"""Weight of a new time in the average of the times that the job stood still."""
BEHIND_S = 10.0
LONG_S = 60.0
FAR = 0.85
"""A job that has done all it can for so long and less than this share of what was expected of it shows what it can do:
what was learned on little load, where utilization says least, is wrong."""
STUCK = 0.6
"""A job that falls behind by so much does all it can, if its workers are busier than that: else something else does."""

AVERAGED_S = 30.0
"""A rate is usually a mean over a minute: what it shows is so old."""
WAITS_S = 2.0
"""Of what arrives and is not processed at least so many seconds' worth waits, or one of the readings is wrong."""
MOST_COME = 2.0
"""A lag that has grown by more than so many times what came in the meantime, the job running, is read again first."""
LASTS = 3.0
"""A trend is expected to last so many times as long as it has been seen..."""
AHEAD_S = 450.0
"""... and a size to do for so long: trends that last longer are met by the next rescale."""

REACT_S = 120.0
"""More is asked for when the delay would come near the objective within so long."""
LATE = 0.8
"""A delay beyond this share of the objective is expected to break it: nothing comes as it was foreseen."""
LOOKS = 2.0
"""After so many looks without another jump of the arrivals they are where they jumped to."""
RECOVER_S = 600.0
RECOVER_UP_S = 1200.0
RECOVERED = 0.25
"""Within so long what a rescale piles up should be gone, down to this share of the objective."""
BARELY = 0.9
"""A change whose own outage makes the oldest record older than this share of the objective is not one for saving."""
DRAINS = 5.0
"""A backlog that takes so many objectives to be worked off is a shortage, though nothing more arrives..."""
NEARLY = 0.9
"""... unless the delay is down to this share of the objective sooner than a rescale is over."""
BELIEVED = 0.4
"""A profile that is believed so far is acted on before anything has risen..."""
EARLY = 2.7
"""... where the usual will be too much for the size so many outages of a rescale after one that is asked for now..."""
SURE = 0.09
"""... or nearly, by so much times the square of the share of the objective that the outage takes: the more it takes,
the less may have piled up when it comes."""
FURTHER = 12.0
"""The longer a rescale's outage, the further ahead the next size is to do: by so many times as long."""
PASSES = 0.45
"""A bump that passes is left alone where it makes the oldest record older by less than this share of what the outage
of a rescale would."""
CURVES = (0.75, 1.05)
"""No profile is believed that sizes go on in another way than with an exponent between these..."""
LONGEST_TIME_S = 600.0
"""... nor that something takes longer."""
RIDE = 0.3
"""Of a peak that passes this share of the objective may wait, and what is worked off sooner than by a rescale."""
WIDER = 4
"""So many sizes beyond the best are looked at: the price of a size has one valley, but sizes are whole numbers."""

SWINGS = 2.0
"""Fewer must do for the middle of the arrivals and so many times what they swing by..."""
MORE_SWINGS = 1.2
"""... and where they swing around a line, more for that and so many times, and no more than what fewer must do for:
what is asked for at a peak must not be too much right after it."""
WAVERS = 3.0
"""What fits now and then only does not fit: a time in which it does not undoes so many in which it did."""
UNSEEN_S = 240.0
"""After so long unseen what fewer would have saved begins anew."""
ANSWER_S = 5.0
"""What an engine says of its job's state may be so old (Flink: 3 s)."""
FLIP_S = 24 * 3600.0
FLIP_SWINGS = 3.0
FLIP_RESERVE = 0.08
MOST_RESERVE = 0.4
RESERVE_KEPT_S = 24 * 3600.0
"""Fewer that did not last for a day, though no more arrived, need so much more to spare the next time; forgotten
within a day."""


Rates = tuple[float | None, float | None, float | None]
"""Lag, arrivals and throughput."""


@dataclass(slots=True)
class _Outlook:
    """What is known and expected at one moment. Times are seconds, rates records/s."""

    view: View
    memory: Mapping[str, float]
    partitions: int | None
    lag: float
    throughput: float | None
    level: float
    trends: tuple[tuple[float, float], ...]
    usual: tuple[float, ...]
    trusted: float
    start_up: float
    stall_up: float
    stall_down: float
    replay: float
    told: tuple[float, ...]
    curve: tuple[float, float] | None
    share: float = 1.0

    def able(self, size: int) -> float:
        """What a size can process."""
        spec = self.view.spec
        if "capacity.level" not in self.memory:
            seen = saturated_rate(self.view.learned, spec, size, self.partitions)
            if seen is None and self.curve is not None:
                rate, exponent = self.curve
                return min(rate * math.pow(_workers(self.view, size, self.partitions), exponent), LARGEST)
            return seen or 0.0
        return self.share * capacity_model.rate(self.memory, _workers(self.view, size, self.partitions), size)

    @property
    def up(self) -> float:
        """How long it takes until a larger size runs."""
        return restart_time(self.view.learned, Direction.UP) or self.start_up

    def arriving(self, ahead: float) -> float:
        """What will arrive so far ahead; never less than now, as a forecast must not lower anything."""
        if self.told:
            minutes = max(math.ceil(ahead / forecast.MINUTE_S), 1)
            return min(max(self.level, *self.told[:minutes]), LARGEST)
        rise = 0.0
        for slope, seen in self.trends:
            rise = max(rise, slope * (min(ahead, seen * LASTS) + AVERAGED_S))
        if self.usual:
            most = max(self.usual[: math.ceil(ahead / forecast.MINUTE_S) + 1])
            rise = max(rise, self.trusted * (most - self.level))
        return min(self.level + rise, LARGEST)

    @property
    def outage(self) -> float:
        """What a rescale up costs: how long the job stands still, and what it has to do again."""
        return self.stall_up + self.replay

    @property
    def lasting(self) -> float:
        """How far ahead a new size is to do."""
        return AHEAD_S + (FURTHER * self.outage if self.trusted >= BELIEVED else 0.0)


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Keeps the delay of records below an objective at the least cost, with few rescales.

    It learns what each size can process (from throughput and utilization, whenever the job runs undisturbed), how
    long workers take to come, how long the job stands still, and how arrivals rise and swing. From these it predicts
    how old the oldest record gets. It asks for more when that age, the outage of the rescale included, would come
    near `objective`, and then for the size at which workers and lateness together cost least; for fewer in one step,
    when the smaller size would have done for `calm` and has cost more than the outage of a rescale.

    Attributes:
        objective: the oldest unprocessed record should not be older than this; default 60s.
        patience: share of the objective that may be used up before more is asked for, above 0 to 1; default 0.75.
        reserve: capacity that a larger size should have above what is expected, as a share of that; default 0.05.
        down_reserve: the same for a smaller size, besides what arrivals swing by; default 0.02.
        calm: fewer only when watched for so long, and for the most that arrived within it; default 3m.
        outage: a rescale is worth as much as the whole cluster for so long; default 72s.
        waiting: what a second beyond the objective costs, in seconds of the whole cluster; default 14.
        restart: how long the job stands still for a rescale, until that has been seen; default 15s.
        start_up: how long new workers take to come, until that has been seen; default 45s.
        profile: name of a metric of the source `profile`, which tells from weeks of history what usually arrives, what
            sizes can do and how long a rescale takes; believed as far as it has been right of late. Default none.
        forecast: name of a metric with the records/s expected in each of the next minutes, the last of them from then
            on; it takes the place of trends and profile, which count while it is missing. Default none.
        lag: name of the metric with the records waiting.
        arrivals: name of the metric with the offered records/s.
        throughput: name of the metric with the processed records/s.
        utilization: name of the metric from 0 to 1 with the busy share or the CPU of the workers; of one number per
            replica the hottest counts. Without it capacity is learned only while the job falls behind.
    """

    stabilizes: ClassVar[bool] = True
    """It looks at the past itself: the cluster's stabilization window is 0s unless the user says otherwise."""

    objective: timedelta = timedelta(seconds=60)
    patience: float = 0.75
    reserve: float = 0.05
    down_reserve: float = 0.02
    calm: timedelta = timedelta(minutes=3)
    outage: timedelta = timedelta(seconds=72)
    waiting: float = 14.0
    restart: timedelta = timedelta(seconds=15)
    start_up: timedelta = timedelta(seconds=45)
    profile: str | None = None
    forecast: str | None = None
    lag: str = "lag"
    arrivals: str = "arrivals"
    throughput: str = "throughput"
    utilization: str = "utilization"

    def __post_init__(self) -> None:
        if self.objective <= ZERO:
            raise ParameterError("objective", f"is {self.objective.total_seconds():g}s, expected above 0s")
        if not 0 < self.patience <= 1:
            raise ParameterError("patience", f"is {self.patience:g}, expected above 0 and at most 1")
        for name in ("reserve", "down_reserve"):
            if not 0 <= getattr(self, name) < 1:
                raise ParameterError(name, f"is {getattr(self, name):g}, expected from 0 to below 1")
        if not 0 <= self.waiting < math.inf:
            raise ParameterError("waiting", f"is {self.waiting:g}, expected 0 or more")
        for name in ("calm", "outage", "restart", "start_up"):
            if getattr(self, name) < ZERO:
                raise ParameterError(name, f"is {getattr(self, name).total_seconds():g}s, expected 0s or more")
        names = ("lag", "arrivals", "throughput", "utilization", "profile", "forecast")
        empty = [name for name in names if getattr(self, name) == ""]
        if empty:
            raise ParameterError(empty[0], "is empty, expected the name of a metric")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics it cannot do without."""
        return (self.lag, self.arrivals, self.throughput)

    @property
    def lookback(self) -> timedelta:
        """How much past it needs: the longest trend, and the time that must have been calm."""
        longest = timedelta(seconds=forecast.MINUTE_S * LONGEST)
        return max(longest, self.calm) + timedelta(minutes=2)

    # learning

    def learn(self, view: View) -> Mapping[str, float]:
        """What is known now: arrivals, forecasts and their errors, capacity, stalls, what fewer would have saved."""
        memory = dict(view.memory)
        now = seconds(view.now)
        _learn_stalls(view, memory, now)
        lag, arrivals, throughput = self._rates(view)
        if arrivals is not None:
            reading = view.metrics[self.arrivals]
            at = seconds(reading.at)
            over_s = reading.over.total_seconds() if reading.over > view.spec.interval else 0.0
            latest = self._latest(view, over_s) if over_s else 0.0
            # More is said to arrive than is processed, though it does not wait anywhere.
            doubtful = throughput is not None and lag is not None and lag < WAITS_S * (arrivals - throughput)
            forecast.follow(memory, arrivals, at, latest=latest, over=over_s, doubtful=doubtful)
            forecast.look(memory, self._minutes(view))
            forecast.settle(memory, arrivals, at)
            forecast.judge(memory, now)
            usual.compare(memory, _usual(self._profile(view)), now)
            self._learn_capacity(view, memory, (lag, arrivals, throughput), now)
        self._learn_spare(view, memory, (lag, arrivals, throughput), now)
        # One that is not finite makes the sum so too: quicker than to look at each.
        if math.isfinite(sum(memory.values())):
            return memory
        return {name: number for name, number in memory.items() if math.isfinite(number)}

    def _latest(self, view: View, over: float) -> float:
        """What arrived of late, by readings that are means over so many seconds."""
        begin = seconds(view.now) - over - 3 * max(forecast.READING_S, view.spec.interval.total_seconds())
        return forecast.newest(self._points(view, 1, begin=begin), over)

    def _learn_capacity(self, view: View, memory: dict[str, float], rates: Rates, now: float) -> None:
        lag, arrivals, throughput = rates
        behind = memory.pop("behind.since_at", now)
        if arrivals is None or throughput is None or not _undisturbed(view):
            return
        busy = _hottest(view, self.utilization)
        if lag is not None and throughput < arrivals and lag > BEHIND_S * throughput and (busy is None or busy > STUCK):
            busy = 1.0
            memory["behind.since_at"] = behind
        if busy is None:
            return
        curve = _curve(self._profile(view))
        if curve is not None and "capacity.level" not in memory:
            memory["capacity.exponent"] = curve[1]  # the level is seen at once, how it goes on from there in days
        partitions = source_partitions(view.spec, view.engine, view.past)
        workers = _workers(view, view.current, partitions)
        if 0 < busy < capacity_model.LEAST_BUSY and ("capacity.level" not in memory or "capacity.least" in memory):
            # Never seen busier, it can do at least so much: enough to get fewer replicas, and then be measured.
            busy = capacity_model.LEAST_BUSY
            if throughput / busy > capacity_model.rate(memory, workers, view.current):
                capacity_model.forget(memory)
                capacity_model.sample(memory, workers, view.current, throughput, busy, now)
                memory["capacity.least"] = 1.0
            return
        if busy >= capacity_model.LEAST_BUSY and "capacity.least" in memory:
            capacity_model.forget(memory)
        capacity_model.sample(memory, workers, view.current, throughput, busy, now)

    def _learn_spare(self, view: View, memory: dict[str, float], rates: Rates, now: float) -> None:
        """What fewer replicas would have saved since the size changed last, in replica-seconds.

        The rent that is paid until buying would have been cheaper (ski rental): a rescale that saves much comes soon,
        one that saves little comes late, and one whose gain comes and goes does not come at all.
        """
        lag, arrivals, throughput = rates
        size = memory.get("spare.size")
        since = max(now - memory.get("spare.seen_at", now), 0.0)
        memory["spare.seen_at"] = now
        memory["spare.size"] = float(view.current)  # a whole number would have the core copy all of it
        if "down.reserve" in memory:
            memory["down.reserve"] *= math.exp(-since / RESERVE_KEPT_S)
        if size is not None and size != view.current:
            self._learn_reserve(view, memory, now, rises=view.current > size)
        if size != view.current or arrivals is None or lag is None or since > UNSEEN_S:
            memory["spare.since_at"] = now
            memory["spare.saved"] = 0.0
        memory["spare.enough"] = float(view.current)
        if arrivals is None or lag is None or view.rescale is not None:
            return
        outlook = self._outlook(view, memory, lag, arrivals, throughput)
        enough = self._enough(outlook) if outlook.able(view.current) > 0 else view.current
        memory["spare.enough"] = float(enough)
        fewer = view.current - enough or -WAVERS
        seen = since if since <= UNSEEN_S else 0.0
        memory["spare.saved"] = max(memory.get("spare.saved", 0.0) + fewer * seen, 0.0)

    def _learn_reserve(self, view: View, memory: dict[str, float], now: float, *, rises: bool) -> None:
        """Fewer replicas that did not last, though no more arrived: the next time they need more to spare."""
        level = memory.get("arrivals.level", 0.0)
        if not rises:
            memory["down.seen_at"] = now
            memory["down.level"] = max(level, self._peak(view, memory))
            return
        # More may have been asked for because of what will arrive.
        known = usual.foretold(memory, _usual(self._profile(view))) if usual.trust(memory) >= BELIEVED else ()
        level = max([level, *self._told(view), *known])
        most = memory.pop("down.level", 0.0) * (1 + FLIP_SWINGS * memory.get("arrivals.swing", forecast.SWING))
        if now - memory.pop("down.seen_at", -math.inf) < FLIP_S and level < most:
            memory["down.reserve"] = min(memory.get("down.reserve", 0.0) + FLIP_RESERVE, MOST_RESERVE)

    # deciding

    def evaluate(self, view: View) -> Recommendation:
        """Say which size keeps the objective at the least cost."""
        lag, arrivals, throughput = self._rates(view)
        if lag is None or arrivals is None:
            absent = [name for name, value in ((self.lag, lag), (self.arrivals, arrivals)) if value is None]
            return missing(view, *absent)
        outlook = self._outlook(view, view.memory, lag, arrivals, throughput)
        able = outlook.able(view.current)
        if able <= 0 and (view.current or outlook.able(1) <= 0):
            return self._unknown(view, lag, arrivals, throughput)
        up = outlook.up
        soon = outlook.arriving(up)
        # How much waits, and how old the oldest record is, once a rescale that is asked for now is over.
        piled = max(0.0, lag + ((outlook.level + soon) / 2 - able) * up)
        piled = min(piled + min(able, outlook.level) * outlook.replay + soon * outlook.stall_up, LARGEST)
        age = min(piled / soon, LARGEST) if soon > 0 else 0.0
        drain = lag / (able - outlook.level) if able > outlook.level else math.inf
        inputs = {
            "arrivals": outlook.level,
            "expected": soon,
            "ahead": up,
            "lag": lag,
            "capacity": able,
            "rescaled_age": age,
        }
        if drain < math.inf:
            inputs["recovery"] = min(drain, LARGEST)
        objective = self.objective.total_seconds()
        if view.rescale is None and self._rises(outlook, able):
            soon = max(soon, outlook.arriving(outlook.up + EARLY * outlook.outage))
            return self._more(outlook, soon, piled, inputs)
        if soon > able:
            waits = self._waits(outlook, able, age)
            if waits:
                return sized(view, view.current, inputs, f"{self._load(outlook, inputs)}; {waits}")
            grows = (soon - able) / soon
            if view.rescale is not None or age + grows * REACT_S > self.patience * objective:
                return self._more(outlook, soon, piled, inputs)
        late = lag > BEHIND_S * able and lag > self.patience * objective * outlook.level
        if late and drain > DRAINS * objective and not self._sooner(outlook, able):
            return self._more(outlook, soon, piled, inputs)
        if throughput is None:
            return missing(view, self.throughput)
        return self._fewer(outlook, inputs) or sized(view, view.current, inputs, self._stays(outlook, inputs))

    def _more(self, outlook: _Outlook, soon: float, piled: float, inputs: dict[str, float]) -> Recommendation:
        """The size above the present one at which workers and lateness together cost least."""
        view = outlook.view
        maximum = view.limits.maximum
        objective = self.objective.total_seconds()
        worked_off = max(0.0, outlook.outage - RECOVERED * objective) / RECOVER_UP_S
        wanted = outlook.arriving(outlook.lasting + outlook.up) * (1 + self.reserve + worked_off)
        settled = self._settled(outlook)
        if settled is not None:
            middle, spread, _ = settled
            for swings, reserve in ((MORE_SWINGS, self.reserve), (SWINGS, self.down_reserve)):
                wanted = min(wanted, middle * (1 + swings * spread) * (1 + reserve + worked_off))
        least = smallest(min(view.current + 1, maximum), maximum, lambda size: outlook.able(size) >= wanted)
        late = piled - LATE * objective * soon
        best, price = least, math.inf
        for size in range(least, maximum + 1):
            spare = outlook.able(size) / (1 + self.reserve / 2) - soon
            lasts = 0.0 if late <= 0 else late / spare if spare > 0 else math.inf
            cost = (size - least) * AHEAD_S + self.waiting * least * lasts
            if cost < price:
                best, price = size, cost
            elif size > best + WIDER:
                break
        # What has nothing to read does nothing: more replicas than partitions, or than divide them better.
        used = _workers(view, best, outlook.partitions)
        best = smallest(min(view.current, best), best, lambda size: _workers(view, size, outlook.partitions) >= used)
        able = outlook.able(best)
        inputs["able"] = able
        if price < math.inf:
            inputs["waiting"] = price
        inputs.pop("recovery", None)
        text = f"{self._load(outlook, inputs)}; {replicas(view.current)} ({plain(inputs['capacity'])}/s) are short, "
        if able > soon:
            recovery = min(piled / (able - soon), LARGEST)
            inputs["recovery"] = recovery
            text += f"{best} ({plain(able)}/s) recover in {plain(recovery)} s after it"
        elif settled is not None and able > settled[0]:
            text += f"{best} ({plain(able)}/s) do for what arrivals swing around, {plain(settled[0])}/s"
        else:
            most = "the most allowed" if best >= maximum else "the most that have something to do"
            text += f"{best} ({plain(able)}/s), {most}, are too"
        return sized(view, max(best, view.current), inputs, text)

    def _rises(self, outlook: _Outlook, able: float) -> bool:
        """Whether more will be needed soon by what usually arrives, though not yet."""
        if outlook.trusted < BELIEVED or usual.below(outlook.level, outlook.usual):
            return False
        minutes = round((outlook.up + EARLY * outlook.outage) / forecast.MINUTE_S)
        nearly = SURE * (outlook.outage / self.objective.total_seconds()) ** 2
        return outlook.usual[min(minutes, len(outlook.usual) - 1)] * (1 + nearly) > able

    def _waits(self, outlook: _Outlook, able: float, age: float) -> str:
        """Why nothing is done yet, though more will arrive than the size can process; empty: something is."""
        view = outlook.view
        if age < self.patience * self.objective.total_seconds() and _jumping(view):
            return "arrivals have just jumped: the next looks tell how far"
        if self._swings(outlook, able):
            return "that is a peak like those before it, which is expected to pass"
        if view.rescale is None and self._passes(outlook, able):
            return "that is more than usual, and passes before a rescale would pay"
        return ""

    def _passes(self, outlook: _Outlook, able: float) -> bool:
        """Whether arrivals are above the usual for a while only, and a rescale would delay records by more."""
        if outlook.trusted < BELIEVED or usual.above(outlook.level, outlook.usual) or max(outlook.usual) > able:
            return False
        most = usual.piled(outlook.level, outlook.usual, outlook.trusted, able, outlook.lag)
        return most < PASSES * outlook.outage * able

    def _settled(self, outlook: _Outlook) -> tuple[float, float, float] | None:
        """The line that arrivals only swing around (`forecast.settled`), unless a forecast knows more of them."""
        return None if outlook.told or outlook.trusted >= BELIEVED else forecast.settled(outlook.memory)

    def _swings(self, outlook: _Outlook, able: float) -> bool:
        """Whether arrivals only swing above a line that they come back to before much waits.

        What is above the line fades with the time that such things last: the size falls behind by the area between
        that and what it can do, and then catches up, at the latest within the time a rescale would have taken.
        """
        found = self._settled(outlook)
        if found is None:
            return False
        middle, _, lasts = found
        off, spare = outlook.level - middle, able - middle
        if spare <= 0:
            return False
        over = lasts * (off - spare - spare * (math.log(off) - math.log(spare))) if off > spare else 0.0
        most = RIDE * self.objective.total_seconds() * able + (outlook.up + outlook.outage) * spare
        return outlook.lag + over <= most

    def _sooner(self, outlook: _Outlook, able: float) -> bool:
        """Whether the objective is kept again sooner without a rescale, whose outage has to be worked off as well.

        Held against what the size can do and not against what arrives: more arrivals must not look like less delay.
        """
        if able <= outlook.level:
            return False
        kept = NEARLY * self.objective.total_seconds() * able
        return outlook.lag - kept <= (outlook.up + outlook.outage) * (able - outlook.level)

    def _enough(self, outlook: _Outlook) -> int:
        """The smallest size that would do, up to the present one."""
        view, memory = outlook.view, outlook.memory
        low = view.limits.minimum
        if low >= view.current:
            return view.current
        objective = self.objective.total_seconds()
        swings = memory.get("arrivals.middle", 0.0) * (1 + SWINGS * memory.get("arrivals.swing", forecast.SWING))
        if (found := forecast.settled(memory)) is not None:
            middle, spread, _ = found
            swings = max(swings, middle * (1 + SWINGS * spread))
        most = max(outlook.arriving(outlook.lasting), self._peak(view, memory), swings, self._came(outlook))
        outage = outlook.stall_down + outlook.replay
        reserve = 1 + self.down_reserve + memory.get("down.reserve", 0.0)
        most *= reserve + max(0.0, outage - RECOVERED * objective) / RECOVER_S
        piled = outlook.lag + outlook.level * outage

        def fits(size: int) -> bool:
            able = outlook.able(size)
            return able >= most and piled <= BARELY * objective * able

        return smallest(low, view.current, fits)

    def _fewer(self, outlook: _Outlook, inputs: dict[str, float]) -> Recommendation | None:
        """The smaller size that would have done for a while, once it would have saved more than a rescale costs."""
        view, memory = outlook.view, outlook.memory
        if view.rescale is not None or memory.get("spare.size") != view.current:
            return None
        now = seconds(view.now)
        known = memory.get("spare.enough")
        # What `learn` has just found. It is not called while the target's size is unknown.
        size = int(known) if known is not None and memory.get("spare.seen_at") == now else self._enough(outlook)
        saved = memory.get("spare.saved", 0.0)
        outage = self.outage.total_seconds() * view.current
        watched = now - memory.get("spare.since_at", math.inf)
        if size >= view.current or watched < self.calm.total_seconds() or saved < outage:
            return None
        if outlook.lag > RECOVERED * self.objective.total_seconds() * inputs["capacity"]:
            return None
        able = outlook.able(size)
        inputs["able"] = able
        inputs["saved"] = saved
        inputs["outage"] = outage
        text = (
            f"{self._load(outlook, inputs)}; {replicas(size)} ({plain(able)}/s) would do and would have saved "
            f"{plain(saved)} replica-seconds, a rescale is worth {plain(outage)}"
        )
        return sized(view, size, inputs, text)

    def _stays(self, outlook: _Outlook, inputs: Mapping[str, float]) -> str:
        view = outlook.view
        text = f"{self._load(outlook, inputs)}; {replicas(view.current)} ({plain(inputs['capacity'])}/s)"
        text += f" work it off in {plain(inputs['recovery'])} s" if "recovery" in inputs else " do for now"
        enough = int(outlook.memory.get("spare.enough", view.current))
        if enough < view.current:
            saved = outlook.memory.get("spare.saved", 0.0)
            worth = self.outage.total_seconds() * view.current
            text += f"; {enough} would do and have saved {plain(saved)} of {plain(worth)} replica-seconds"
        return text

    def _load(self, outlook: _Outlook, inputs: Mapping[str, float]) -> str:
        text = f"{plain(outlook.level)}/s arriving"
        if inputs["expected"] > outlook.level:
            text += f", {plain(inputs['expected'])}/s in {plain(inputs['ahead'])} s"
        return f"{text}, lag {plain(outlook.lag)}"

    def _unknown(self, view: View, lag: float, arrivals: float, throughput: float | None) -> Recommendation:
        """Without a known capacity: one more when there is clearly too little, else no opinion."""
        inputs = {"lag": lag, "arrivals": arrivals}
        what = f"lag {plain(lag)} records at {plain(arrivals)}/s arriving, capacity not known yet"
        if not view.current:
            if lag or arrivals:
                return sized(view, 1, inputs, f"{what}; nothing is processed by 0 replicas: one")
            return sized(view, 0, inputs, "nothing arrives, nothing waits")
        if throughput and view.rescale is None and arrivals >= throughput:
            inputs["throughput"] = throughput
            if lag > throughput * self.objective.total_seconds():
                behind = plain(min(lag / throughput, LARGEST))
                return sized(view, view.current + 1, inputs, f"{what}; {behind} s behind and not gaining: one more")
        return Recommendation(None, Reason.LEARNING, inputs, what)

    def _outlook(
        self, view: View, memory: Mapping[str, float], lag: float, arrivals: float, throughput: float | None
    ) -> _Outlook:
        level = max(memory.get("arrivals.level", arrivals), 0.0)
        profile = self._profile(view)
        told = self._told(view) if self.forecast is not None else ()
        foretold: tuple[float, ...] = ()
        trusted, share = 0.0, 1.0
        if profile is not None and not told:
            foretold = usual.foretold(memory, _usual(profile))
        if foretold:
            trusted = usual.trust(memory)
            # What usually comes needs no trend to foretell it, unless far more comes than that.
            share = 1.0 if usual.above(level, foretold) else 1.0 - trusted
        restart = _took(profile, "stall", self.restart)
        stall_up, stall_down = memory.get("stall.up", restart), memory.get("stall.down", restart)
        outlook = _Outlook(
            view,
            memory,
            source_partitions(view.spec, view.engine, view.past),
            lag,
            throughput,
            level,
            forecast.trends(memory, share),
            foretold,
            trusted,
            _took(profile, "start_up", self.start_up) + restart,
            stall_up,
            stall_down,
            # What does not stand still goes back to no checkpoint.
            memory.get("checkpoint.interval", CHECKPOINT_S) if max(stall_up, stall_down) > 1.0 else 0.0,
            told,
            _curve(profile),
        )
        if throughput and "behind.since_at" in memory and seconds(view.now) - memory["behind.since_at"] >= LONG_S:
            able = outlook.able(view.current)
            if throughput < FAR * able:
                outlook.share = throughput / able
        return outlook

    def _told(self, view: View) -> tuple[float, ...]:
        """What somebody else forecasts, by the minute; nothing where that is no forecast."""
        reading = None if self.forecast is None else view.metrics.get(self.forecast)
        if reading is None:
            return ()
        rates = reading.value if isinstance(reading.value, tuple) else (reading.value,)
        return rates if min(rates) >= 0 else ()

    def _profile(self, view: View) -> Reading | None:
        """What a profile of the cluster tells, if there is one."""
        return None if self.profile is None else view.metrics.get(self.profile)

    def _minutes(self, view: View) -> list[tuple[float, float]]:
        """The arrivals of the last quarter of an hour, about a minute apart, in order of time."""
        stride = max(1, round(forecast.MINUTE_S / view.spec.interval.total_seconds()))
        return self._points(view, stride, stride * LONGEST)

    def _points(
        self, view: View, stride: int, looks: int | None = None, begin: float = -math.inf
    ) -> list[tuple[float, float]]:
        """The arrivals that were seen (`recent.points`), those of now at least."""
        now = view.metrics[self.arrivals]
        found = recent.points(view.past, self.arrivals, stride, looks, begin)
        return found or [(seconds(now.at), together(now))]

    def _peak(self, view: View, memory: Mapping[str, float]) -> float:
        """The most that arrived within the calm time, less what may be noise."""
        most = recent.peak(view.past, self.arrivals, view.now - self.calm)
        return most / (1 + 2 * memory.get("arrivals.noise", forecast.NOISE))

    def _rates(self, view: View) -> Rates:
        """Lag, arrivals and throughput, as far as they can be used.

        Of a lag that has grown by far more than can have come no more than that counts, until it is read again.
        """
        lag, arrivals, throughput = total(view, self.lag), total(view, self.arrivals), total(view, self.throughput)
        before = rate(view.past[-2], self.lag) if lag and len(view.past) > 1 else None
        if lag is None or arrivals is None or before is None or lag <= before or not _undisturbed(view):
            return lag, arrivals, throughput
        since = (view.metrics[self.lag].at - view.past[-2].metrics[self.lag].at).total_seconds()
        come = max(arrivals, throughput or 0.0)
        return min(lag, before + MOST_COME * come * since) if since > 0 else lag, arrivals, throughput

    def _came(self, outlook: _Outlook) -> float:
        """What has come within the last minute by what was processed and what waits now, whatever the arrivals say."""
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
        if engine.running_since is not None and ZERO <= view.now - engine.running_since < WARM:
            return False
    if view.rescale is not None and PHASES.index(view.rescale.phase) < PHASES.index(Phase.RUNNING):
        return False
    return view.disturbance_ended_at is None or view.now - view.disturbance_ended_at >= WARM


def _learn_stalls(view: View, memory: dict[str, float], now: float) -> None:
    """How long the job stands still for a rescale, up and down apart; and how far apart its checkpoints are.

    From when it was last seen running, with another parallelism, until it says to have run again, or until it was last
    seen not to: Flink's job runs before its tasks have their state back.
    """
    engine = view.engine
    if now - memory.get("spare.seen_at", now) > max(UNSEEN_S, 2 * view.spec.interval.total_seconds()):
        memory.pop("running.seen_at", None)  # nobody looked: it may have stood still at any time, or not at all
    if engine is None:
        return
    if engine.last_checkpoint is not None:
        at = seconds(engine.last_checkpoint)
        took = at - memory.get("checkpoint.seen_at", at)
        if took > 0:
            # They are not seen one by one: the least is the nearest to the truth, and may grow.
            memory["checkpoint.interval"] = min(took, memory.get("checkpoint.interval", took) * 1.1)
        memory["checkpoint.seen_at"] = at
    if engine.job in (JobState.STARTING, JobState.RESTARTING):
        memory["running.not_at"] = now
    if engine.job is not JobState.RUNNING or engine.running_since is None:
        return
    since = seconds(engine.running_since)
    stood = memory.pop("running.not_at", since)
    used = float(view.ready if engine.parallelism is None else engine.parallelism)
    before, seen = memory.get("running.parallelism", used), memory.get("running.seen_at")
    if seen is not None and used != before:
        name = "stall.up" if used > before else "stall.down"
        stall = 0.0
        if since > memory.get("running.since_at", since) + 1.0:
            # Workers go when they are told to, right after a look; they come at any time between two.
            end = stood if stood > since + ANSWER_S else since
            stall = max(end - seen - (0.0 if used < before else view.spec.interval.total_seconds() / 2), 1.0)
        known = memory.get(name, stall)
        memory[name] = known + SLOWLY * (stall - known)
    memory["running.parallelism"] = used
    memory["running.since_at"] = since
    memory["running.seen_at"] = max(now, since)


def _jumping(view: View) -> bool:
    """Whether arrivals have just jumped up, and looks are so close together that the next ones soon tell how far.

    A rate measured across a jump is neither the old nor the new one: a size for it would be changed at once.
    """
    now, interval = seconds(view.now), view.spec.interval.total_seconds()
    if 0 <= now - view.memory.get("arrivals.rises_at", -math.inf) < interval <= forecast.READING_S:
        return True
    soon = LOOKS * interval
    return soon < forecast.READING_S and 0 <= now - view.memory.get("arrivals.jumped_at", -math.inf) < soon


def _workers(view: View, size: int, partitions: int | None) -> float:
    """How many replicas' work a size does: partitions that do not divide evenly leave some of it idle."""
    return effective_slots(size, view.spec.slots_per_replica, partitions) / view.spec.slots_per_replica


def _usual(profile: Reading | None) -> tuple[float, ...]:
    """The usual arrivals of now and of the next minutes, by the profile; nothing where it tells none."""
    if profile is None or not isinstance(profile.value, tuple) or min(profile.value) < 0:
        return ()
    return profile.value if profile.value[0] > 0 and max(profile.value) <= LARGEST else ()


def _curve(profile: Reading | None) -> tuple[float, float] | None:
    """What one replica can do and how that grows with the size, by the profile."""
    if profile is None:
        return None
    curve = profile.parts.get("capacity", {})
    rate, exponent = curve.get("rate", 0.0), curve.get("exponent", 0.0)
    low, high = CURVES
    return (rate, exponent) if 0 < rate <= LARGEST and low <= exponent <= high else None


def _took(profile: Reading | None, what: str, otherwise: timedelta) -> float:
    """How many seconds something took on the way up, by the profile."""
    known = -1.0 if profile is None else profile.parts.get("up", {}).get(what, -1.0)
    return known if 0 <= known <= LONGEST_TIME_S else otherwise.total_seconds()


def _hottest(view: View, name: str) -> float | None:
    reading = view.metrics.get(name)
    if reading is None:
        return None
    value = reading.value
    return max(value) if isinstance(value, tuple) else value
