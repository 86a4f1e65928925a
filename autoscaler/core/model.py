"""The model of the decision machine as frozen dataclasses.

Times are aware datetimes, spans are timedeltas; rates are records per second; sizes are numbers of replicas.
Nothing here reads a clock: the time is `Observation.at`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

from autoscaler.core.fast_init import creator, fast_init
from autoscaler.core.parameters import ParameterError

ZERO = timedelta(0)

MAX_REPLICAS = 1_000_000
"""A larger size is a mistake of a policy or a target."""

MOST_LEARNED = 1000
"""The most numbers that a policy may keep."""

MOST = math.nextafter(2.0**63, 0.0)
"""No reading is larger: programs that count in 64 bits report the limits of that type when they have no value."""


SAME_RUN = timedelta(seconds=1)
"""Start times of a job that differ by less than this belong to the same run."""


class Range(NamedTuple):
    """The values that a metric can have, both ends included, and the words for them in messages."""

    least: float
    most: float
    expected: str

    def meet(self, other: Range) -> Range:
        """The intersection of two ranges. Messages name the narrower one."""
        narrower = min(self, other, key=lambda each: each.most - each.least)
        return Range(max(self.least, other.least), min(self.most, other.most), narrower.expected)


ANY = Range(-MOST, MOST, "a number of less than 2^63")
"""The range of a metric about which nothing is known."""

AMOUNT = Range(0.0, MOST, "0 to below 2^63")
"""The range of a lag, a rate, a count or a usage, such as CPU in cores or relative to a request."""

SHARE = Range(0.0, 2.0, "a share from 0 to 1")
"""The range of a busy share. Short windows can show slightly more than 1; above 2 it is a percentage or a mistake."""


_NO_ENTRIES: dict[str, Any] = {}


def no_entries() -> Mapping[str, Any]:
    """One empty mapping, shared by objects that are many and kept long. A mapping proxy could not be pickled."""
    return _NO_ENTRIES


class Reason(StrEnum):
    """The vocabulary that logs, metric labels and explanations share."""

    # reasons of policies
    ABOVE = "above"  # the load needs more replicas than there are
    BELOW = "below"  # fewer replicas are enough
    STEADY = "steady"  # the current size fits
    MISSING = "missing"  # an input is missing, stale, not a finite number, or the target or engine is unknown
    LEARNING = "learning"  # not enough seen yet to have an opinion
    ABSTAINED = "abstained"  # this policy has no opinion now
    FAILED = "failed"  # the policy raised an error or returned nonsense
    # reasons of guards
    FRESHNESS = "freshness"
    SETTLING = "settling"
    SHORT = "short"  # the size of the rescale in progress is clearly too small, so more is allowed
    TOLERANCE = "tolerance"
    STABILIZATION = "stabilization"
    RATE_LIMIT = "rate_limit"
    COOLDOWN = "cooldown"
    CAP = "cap"
    USEFUL_SIZE = "useful_size"
    BOUNDS = "bounds"
    TARGET = "target"  # the target itself goes no further (its own limits, a suspended process, another owner)
    CONTENTION = "contention"  # another controller keeps changing the size: we back off
    CONTROL = "control"  # a user has paused it, holds it at a size or limits it
    # what happened to a rescale
    SETTLED = "settled"
    DEADLINE = "deadline"  # a phase took longer than its deadline: reported and released
    SUPERSEDED = "superseded"  # another size was requested meanwhile, here or from outside
    UNCONFIRMED = "unconfirmed"  # the scale call failed and the target does not show the size
    CLOCK = "clock"  # the clock went backwards


class JobState(StrEnum):
    """The state of the job as the in-job scheduler reports it.

    `IDLE`: there is no job and none is expected, for example between batch jobs. Unlike `STOPPED` it blocks nothing.
    """

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    FAILED = "failed"
    IDLE = "idle"
    UNKNOWN = "unknown"


class Direction(StrEnum):
    """The direction of a rescale."""

    UP = "up"
    DOWN = "down"


class Phase(StrEnum):
    """The progress of a rescale; the value names the step that was completed last."""

    REQUESTED = "requested"
    READY = "ready"
    REGISTERED = "registered"
    ABSORBED = "absorbed"
    RUNNING = "running"
    CAUGHT_UP = "caught_up"


PHASES: tuple[Phase, ...] = tuple(Phase)


class Cause(StrEnum):
    """Who started a rescale."""

    REQUEST = "request"  # it was requested here
    EXTERNAL = "external"  # the desired size was changed from outside
    LOSS = "loss"  # replicas went away and are being replaced


@fast_init
@dataclass(frozen=True, slots=True)
class Reading:
    """One metric as it was read.

    Attributes:
        value: a number, or one number per replica.
        at: when the value was measured at its origin (not when it was requested).
        partitions: partitions of the log that it was read from, if known: a job cannot use more slots than these.
        parts: the numbers it is made of, if known: name of a vertex or replica -> name of a number -> number.
        over: the value is a mean over this time before `at`, although it is read more often; zero: it is no such mean,
            or that is unknown.
        mean: the mean over the whole job, if the source knows it besides one number per worker. The value then has a
            number for every worker that the job uses, however many replicas are up. Each number may be that of the
            worker's busiest part.
    """

    value: float | tuple[float, ...]
    at: datetime
    partitions: int | None = None
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=no_entries)
    over: timedelta = timedelta(0)
    mean: float | None = None

    @property
    def averaged(self) -> float | tuple[float, ...]:
        """The mean if the source knows it, else the value: for policies that average over replicas."""
        return self.value if self.mean is None else self.mean

    def finite(self) -> bool:
        """Whether it has at least one number and all its numbers are finite."""
        value = self.value
        if self.mean is not None and not math.isfinite(self.mean):
            return False
        if self.parts and not all(math.isfinite(number) for part in self.parts.values() for number in part.values()):
            return False
        if isinstance(value, tuple):
            return bool(value) and all(map(math.isfinite, value))
        return math.isfinite(value)

    def within(self, least: float, most: float) -> bool:
        """Whether it is finite and every value is in this range. Parts may mean anything: they must be in `ANY`."""
        value = self.value
        if self.mean is not None and not least <= self.mean <= most:
            return False
        if self.parts and not all(-MOST <= number <= MOST for part in self.parts.values() for number in part.values()):
            return False
        if isinstance(value, tuple):
            return bool(value) and all(map(math.isfinite, value)) and least <= min(value) and max(value) <= most
        return math.isfinite(value) and least <= value <= most


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """The job as its in-job scheduler reports it. None: unknown.

    Attributes:
        job: state of the job.
        slots: slots the engine has registered.
        parallelism: slots the job really uses (if the engine reports it, only those that have run a task).
        max_parallelism: the most slots the job can ever use (key groups, state partitions).
        partitions: partitions of the source, or tasks of the widest stage: capacity grows in steps that follow from it.
        running_since: when the job last went into RUNNING.
        last_checkpoint: when the last checkpoint or batch completed.
        restarts: how often the job has restarted.
        deadlines: how long each phase of a rescale may take according to the engine's own settings (checkpoint
            interval, heartbeat time-out and the like); the configuration overrides them.
    """

    job: JobState
    slots: int | None = None
    parallelism: int | None = None
    max_parallelism: int | None = None
    partitions: int | None = None
    running_since: datetime | None = None
    last_checkpoint: datetime | None = None
    restarts: int | None = None
    deadlines: Mapping[Phase, timedelta] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = self.slots, self.parallelism, self.max_parallelism, self.partitions, self.restarts
        for number in counts:
            if number is not None and number < 0:
                name = ("slots", "parallelism", "max_parallelism", "partitions", "restarts")[counts.index(number)]
                raise ParameterError(name, f"must be 0 or more, not {number}")
        for phase, limit in self.deadlines.items():
            if phase not in PHASES:
                raise ValueError(f"{phase!r} has a deadline and is no phase, expected one of {', '.join(PHASES)}")
            if limit <= ZERO:
                raise ValueError(f"the deadline of {phase} must be above 0s, not {limit}")


@dataclass(frozen=True, slots=True)
class Bound:
    """The smallest or largest size that the target accepts at present, and why, as a sentence for users."""

    replicas: int
    reason: str

    def __post_init__(self) -> None:
        replicas: object = self.replicas
        if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 0:
            raise ValueError(f"a bound must be a whole number of replicas, 0 or more, not {replicas!r}")
        if not self.reason:
            raise ValueError("a bound must have a reason: it is shown to explain why the size is held")


class ControlKind(StrEnum):
    """The kinds of manual controls; if several contradict each other, the first one here counts."""

    PAUSE = "pause"
    HOLD = "hold"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A manual control of a cluster, set by command or by an annotation.

    Attributes:
        kind: what it does.
        by: who set it; for an annotation, the object that has it.
        at: when it was set; None: unknown, as for an annotation. An unknown time counts as older than any other.
        up, down: the directions that a pause blocks.
        replicas: the size of a hold.
        minimum, maximum: the range of a limit; None: no limit on that side.
        until: when it ends by itself; None: it lasts until it is resumed or its annotation is removed.
        reason: why it was set, or None.
    """

    kind: ControlKind
    by: str
    at: datetime | None = None
    up: bool = False
    down: bool = False
    replicas: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    until: datetime | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        sizes = {"replicas": self.replicas, "minimum": self.minimum, "maximum": self.maximum}
        for name, size in sizes.items():
            if size is not None and not 0 <= size <= MAX_REPLICAS:
                raise ParameterError(name, f"must be 0 to {MAX_REPLICAS}, not {size}")
        if (self.up or self.down) is not (self.kind is ControlKind.PAUSE):
            raise ParameterError("up", "a pause, and nothing else, has a direction: up, down or both")
        if (self.replicas is not None) is not (self.kind is ControlKind.HOLD):
            raise ParameterError("replicas", "a hold, and nothing else, has a size")
        limited = self.minimum is not None or self.maximum is not None
        if limited is not (self.kind is ControlKind.LIMIT):
            raise ParameterError("minimum", "a limit, and nothing else, has a minimum, a maximum or both")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ParameterError("minimum", f"must not be above maximum ({self.maximum}), not {self.minimum}")
        for name, time in (("at", self.at), ("until", self.until)):
            if time is not None and not (time.tzinfo is not None and _FIRST_YEAR <= time.year < _LAST_YEAR):
                raise ParameterError(name, f"must be a time of this or the next century, with its zone, not {time}")


_FIRST_YEAR, _LAST_YEAR = 2000, 2200


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything that was observed of one cluster at one time.

    Attributes:
        at: the time of the observation; the only clock the core has.
        desired: the size the target was last set to; None when the target could not be read.
        ready: replicas that are up; None when the target did not report them.
        metrics: metric name -> reading.
        missing: metric (or `target`, `engine`) name -> why it could not be read.
        engine: the state of the job; None when there is no engine or it could not be polled.
        floor, ceiling: the smallest and the largest size the target accepts at present, and why; None: unknown.
        remarks: what the target reports for users, such as why replicas do not start.
        controls: the manual controls in force now.
    """

    at: datetime
    desired: int | None
    ready: int | None
    metrics: Mapping[str, Reading] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    engine: EngineStatus | None = None
    floor: Bound | None = None
    ceiling: Bound | None = None
    remarks: tuple[str, ...] = ()
    controls: tuple[Control, ...] = ()


@fast_init
@dataclass(frozen=True, slots=True)
class Recommendation:
    """What one policy asks for.

    Attributes:
        replicas: the size asked for, or None to abstain.
        reason: ABOVE, BELOW, STEADY with a size; MISSING, LEARNING, ABSTAINED, FAILED without one.
        inputs: the numbers it was computed from, by name.
        detail: one sentence for people, with the numbers in it.
        policy: the policy's name in the configuration; filled in by the evaluate stage.
    """

    replicas: int | None
    reason: Reason
    inputs: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""
    policy: str = ""


@fast_init
@dataclass(frozen=True, slots=True)
class Verdict:
    """How one guard changed the size it was given. `before == after` when it changed nothing."""

    guard: Reason
    before: int
    after: int
    reason: Reason
    detail: str = ""


class Fact(NamedTuple):
    """What a guard found, or what happened to a rescale, as values. `explain.describe` turns it into a sentence."""

    kind: str
    values: Mapping[str, object] = MappingProxyType({})


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of one step, with its whole trail.

    Attributes:
        current: the size the target had when this was decided.
        proposed: the size that the policies together asked for.
        desired: the size that the cluster should have. It differs from `current` only when a rescale is requested.
        reason: the last guard that changed the size; if none did, the reason of the policies.
        notes: what happened to a rescale in this step (reason, one sentence).
        combined: the configured rule that combined the recommendations; empty: the largest size counted.
    """

    cluster: str
    at: datetime
    current: int
    proposed: int
    desired: int
    reason: Reason
    recommendations: tuple[Recommendation, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[tuple[Reason, str], ...] = ()
    combined: str = ""

    @property
    def rescale(self) -> bool:
        """Whether a new size is requested."""
        return self.desired != self.current


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a cluster's size, both inclusive."""

    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        if self.minimum < 0:
            raise ParameterError("min", f"must be 0 or more, not {self.minimum}")
        if self.maximum < 1:
            raise ParameterError("max", f"must be 1 or more, not {self.maximum}")
        if self.minimum > self.maximum:
            raise ParameterError("min", f"must not be above max ({self.maximum}), not {self.minimum}")


@fast_init
@dataclass(frozen=True, slots=True)
class Allowance:
    """The bounds at one time, as a policy that moves them sets them.

    Attributes:
        limits: the bounds.
        excluded: why nothing may change now, as a sentence for users; None or empty: changes are allowed.
    """

    limits: Limits
    excluded: str | None = None


class RateKind(StrEnum):
    """What a rate limit counts (HPA v2 behaviour policies)."""

    REPLICAS = "replicas"
    PERCENT = "percent"


class Select(StrEnum):
    """Which of several rate limits counts (HPA v2 selectPolicy); DISABLED forbids the direction."""

    MAX = "max"
    MIN = "min"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `value` replicas, or percent of the size at the period's start, within `period`.

    Attributes:
        kind: what `value` counts: `replicas` or `percent`.
        value: above 0; replicas are a whole number.
        period: the time within which the size changes by at most that.
    """

    kind: RateKind
    value: float
    period: timedelta

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise ParameterError("value", f"must be above 0, not {self.value}")
        if self.kind is RateKind.REPLICAS and self.value != int(self.value):
            raise ParameterError("value", f"must be a whole number of replicas, not {self.value}")
        if self.period <= ZERO:
            raise ParameterError("period", "must be above 0s")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The guards of one direction.

    Attributes:
        window: stabilization window; scaling up uses the smallest proposal within it, scaling down the largest.
        tolerance: relative change of the size that is ignored, 0 to below 1.
        cooldown: no change in this direction for this long after a rescale has ended.
        select: which rate counts, or DISABLED.
        rates: rate limits; none means unlimited.
    """

    window: timedelta = ZERO
    tolerance: float = 0.0
    cooldown: timedelta = ZERO
    select: Select = Select.MAX
    rates: tuple[Rate, ...] = ()

    def __post_init__(self) -> None:
        if self.window < ZERO:
            raise ParameterError("window", "must not be negative")
        if self.cooldown < ZERO:
            raise ParameterError("cooldown", "must not be negative")
        if not 0.0 <= self.tolerance < 1.0:
            raise ParameterError("tolerance", f"must be from 0 to below 1, not {self.tolerance}")


DOWN = Behaviour(window=timedelta(minutes=5))
"""The default guards for scaling down..."""
STABILIZED = Behaviour()
"""... and the default if every policy evaluates the past itself (`stabilizes`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleSpec:
    """How a rescale is followed until it is absorbed.

    Attributes:
        ready, registered, absorbed, running, caught_up: deadline of each phase, counted from the end of the phase
            before. If registered, absorbed or running is None, its deadline follows from the engine's own settings (see
            `EngineStatus.deadlines`), and is 2, 3 and 2 minutes if the engine reports none.
        short: a rescale in progress is clearly too small if the proposal exceeds its size by more than this share.
        backlog_time: the job has caught up when lag divided by throughput is at most this.
        lag, throughput: names of the metrics for the phase caught_up; without them it ends at once.
    """

    ready: timedelta = timedelta(minutes=5)
    registered: timedelta | None = None
    absorbed: timedelta | None = None
    running: timedelta | None = None
    caught_up: timedelta = timedelta(minutes=15)
    short: float = 0.25
    backlog_time: timedelta = timedelta(seconds=10)
    lag: str = "lag"
    throughput: str = "throughput"

    def __post_init__(self) -> None:
        for name in ("ready", "registered", "absorbed", "running", "caught_up"):
            limit = getattr(self, name)
            if limit is not None and limit <= ZERO:
                raise ParameterError(name, "must be above 0s")
        if not (math.isfinite(self.short) and self.short >= 0):
            raise ParameterError("short", f"must be 0 or more, not {self.short}")
        if self.backlog_time < ZERO:
            raise ParameterError("backlog_time", "must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitySpec:
    """How capacity (records/s a size can process when busy) is learned.

    Attributes:
        per_replica: assumed capacity of one replica until something is learned, records/s; None: unknown.
        throughput: metric with the processed records/s.
        saturation: metric from 0 to 1 for how busy the job is; at 1 it can take no more work.
        saturated_at: at or above this saturation the throughput is the capacity.
        memory: weight of a new sample in the moving average, above 0 to 1.
        sustained: the job must have been saturated for this long; at least the time the throughput is averaged over.
        warmup: samples within this time after a rescale, loss or restart was absorbed are ignored.
    """

    per_replica: float | None = None
    throughput: str = "throughput"
    saturation: str = "saturation"
    saturated_at: float = 0.95
    memory: float = 0.3
    sustained: timedelta = timedelta(seconds=30)
    warmup: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        if self.per_replica is not None and not (math.isfinite(self.per_replica) and self.per_replica > 0):
            raise ParameterError("per_replica", f"must be above 0, not {self.per_replica}")
        if not 0.0 < self.saturated_at <= 1.0:
            raise ParameterError("saturated_at", f"must be above 0 and at most 1, not {self.saturated_at}")
        if not 0.0 < self.memory <= 1.0:
            raise ParameterError("memory", f"must be above 0 and at most 1, not {self.memory}")
        for name in ("sustained", "warmup"):
            if getattr(self, name) < ZERO:
                raise ParameterError(name, "must not be negative")


class Policy(Protocol):
    """A policy: a frozen dataclass whose fields are its parameters.

    It may also have optional hooks: `Learner`, `Bounding`, `Stabilizing`, `Comparing`, `LookingBack`, `Requiring`,
    `Ranging`, `Serving` and `Estimating`.
    """

    def evaluate(self, view: View) -> Recommendation:
        """Return the size the policy asks for. Pure and synchronous; it may abstain."""
        ...


class Learner(Protocol):
    """A policy that learns numbers by name. They are kept with the state and shown to users."""

    def learn(self, view: View) -> Mapping[str, float]:
        """Return the numbers known now, from those known before (`view.memory`) and the view. Pure.

        Return at most `MOST_LEARNED` numbers, all finite. Store a time as seconds since 1970 under a name that ends
        with `_at`: it is shifted when the clock is set. Called before `evaluate`, unless the target's size is unknown.
        """
        ...


class Bounding(Protocol):
    """A policy that moves the bounds, such as a schedule. It is called before any policy is evaluated.

    If it never asks for a size, it also has the class attribute `asks = False`: it is left out when policies combine.
    """

    def allow(self, now: datetime, limits: Limits) -> Allowance:
        """Return the bounds that hold now. Pure."""
        ...


class Stabilizing(Protocol):
    """A policy that never asks for fewer replicas because of a short dip: it needs no stabilization window."""

    stabilizes: ClassVar[bool]


class Comparing(Protocol):
    """A policy that compares metrics with fixed levels. For a metric that is a share, a level above 1 is refused."""

    @property
    def levels(self) -> tuple[tuple[str, float], ...]:
        """Each level with the name of its metric, in the metric's unit."""
        ...


class LookingBack(Protocol):
    """A policy that reads `View.past`."""

    @property
    def lookback(self) -> timedelta:
        """How much of the past it needs. If that is zero for all policies, old observations keep no readings."""
        ...


class Requiring(Protocol):
    """A policy that cannot do without some metrics. The configuration refuses a cluster that lacks one."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Their names."""
        ...


class Ranging(Protocol):
    """A policy that knows the ranges of some of its metrics. A reading outside its range counts as missing.

    A reading above the range is missing for this policy only: others may still raise the size because of it. Nothing
    is lowered then.
    """

    @property
    def ranges(self) -> Mapping[str, Range]:
        """Name of the metric -> `AMOUNT`, `SHARE` or another range."""
        ...


class Serving(Protocol):
    """A policy that keeps up with arrivals. Users see its objective and its metrics, and a simulation uses them too.

    Each attribute is optional.
    """

    objective: timedelta
    """No record should wait longer than this."""

    arrivals: str
    throughput: str
    lag: str
    """Names of the metrics with the offered and the processed records/s, and with the records waiting."""


class Estimating(Protocol):
    """A policy that learns the capacity of sizes. Users see it, and a simulation uses it too."""

    def estimate_capacity(self, memory: Mapping[str, float], size: int, workers: float) -> float | None:
        """Records/s that a size processes when it is busy, as far as learned; None: unknown. Pure.

        `workers` is the size without the part that is idle because partitions do not divide evenly.
        """
        ...


class Combine(Protocol):
    """The rule that combines recommendations into one proposal. Picklable, hashable and pure; users see its `str`."""

    def combine(self, sizes: Mapping[str, int | None], current: int) -> float | None:
        """The combined size, which the caller rounds up; None: the current size stays.

        Args:
            sizes: policy name -> the size it asks for; None: it abstains.
            current: the current size.

        Raises:
            ValueError: no size can be computed from these; users see the message.
        """
        ...


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy under the name it has in the configuration, with its optional hooks looked up once.

    Attributes:
        learn: the method of a `Learner`, else None.
        allow: the method of a `Bounding` policy, else None.
        asks: False for a `Bounding` policy that never asks for a size.
        stabilizes: whether it is a `Stabilizing` policy.
        looks_back: whether it may read `View.past`: False if its `lookback` is zero.
        ranges: the ranges of a `Ranging` policy.
    """

    name: str
    policy: Policy
    learn: Callable[[View], Mapping[str, float]] | None = field(init=False, repr=False, compare=False)
    allow: Callable[[datetime, Limits], Allowance] | None = field(init=False, repr=False, compare=False)
    asks: bool = field(init=False, repr=False, compare=False)
    stabilizes: bool = field(init=False, repr=False, compare=False)
    looks_back: bool = field(init=False, repr=False, compare=False)
    ranges: Mapping[str, Range] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("learn", "allow"):
            hook = getattr(self.policy, name, None)
            object.__setattr__(self, name, hook if callable(hook) else None)
        object.__setattr__(self, "asks", getattr(self.policy, "asks", True) is not False)
        object.__setattr__(self, "stabilizes", getattr(self.policy, "stabilizes", False) is True)
        object.__setattr__(self, "looks_back", getattr(self.policy, "lookback", None) != ZERO)
        ranges = getattr(self.policy, "ranges", {})
        if not (isinstance(ranges, Mapping) and all(isinstance(each, Range) for each in ranges.values())):
            raise TypeError(f"its attribute ranges is {ranges!r}, expected a Range by name")
        object.__setattr__(self, "ranges", ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The configuration that a cluster's decisions depend on.

    Attributes:
        metrics: names of the required metrics; a missing one forbids scaling down.
        engine: whether an engine is polled; if so, an unreadable engine forbids scaling down.
        slots_per_replica: slots one replica offers the job.
        partitions: source partitions, when the engine does not report them; None: unknown.
        interval: time between two observations; a gap of several intervals hides what happened in between.
        max_age: an older reading counts as missing.
        max_ahead: a reading further in the future counts as missing.
        lookback: how much of the past the policies see.
        combine: how the recommendations become one proposal; None: the largest size asked for.
        down: by default a window of 5 minutes, or none if all policies that ask for sizes stabilize themselves.
        ranges: metric -> its range, which follows from its use here and in the policies.
        looks_back: whether a policy may read the past.
    """

    name: str
    limits: Limits
    policies: tuple[NamedPolicy, ...]
    up: Behaviour = Behaviour()
    down: Behaviour = DOWN
    settle: SettleSpec = SettleSpec()
    capacity: CapacitySpec = CapacitySpec()
    metrics: tuple[str, ...] = ()
    engine: bool = False
    slots_per_replica: int = 1
    partitions: int | None = None
    interval: timedelta = timedelta(seconds=15)
    max_age: timedelta = timedelta(minutes=1)
    max_ahead: timedelta = timedelta(seconds=5)
    lookback: timedelta = timedelta(minutes=10)
    combine: Combine | None = None
    ranges: Mapping[str, Range] = field(init=False, repr=False, compare=False)
    looks_back: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.slots_per_replica < 1:
            raise ParameterError("slots_per_replica", f"must be 1 or more, not {self.slots_per_replica}")
        if self.partitions is not None and self.partitions < 1:
            raise ParameterError("partitions", f"must be 1 or more, not {self.partitions}")
        for name in ("interval", "max_age"):
            if getattr(self, name) <= ZERO:
                raise ParameterError(name, "must be above 0s")
        for name in ("max_ahead", "lookback"):
            if getattr(self, name) < ZERO:
                raise ParameterError(name, "must not be negative")
        if self.down is DOWN or self.down is STABILIZED:
            # By identity: an equal value that the user has configured must stay, whatever the policies do.
            object.__setattr__(self, "down", STABILIZED if self.stabilized else DOWN)
        ranges = {self.settle.lag: AMOUNT, self.settle.throughput: AMOUNT, self.capacity.throughput: AMOUNT}
        for known in ({self.capacity.saturation: SHARE}, *(named.ranges for named in self.policies)):
            for metric, found in known.items():
                ranges[metric] = found.meet(ranges.get(metric, found))
        object.__setattr__(self, "ranges", ranges)
        object.__setattr__(self, "looks_back", any(named.looks_back for named in self.policies))

    def with_limits(self, limits: Limits) -> ClusterSpec:
        """A copy with other limits, for schedules at every step. `dataclasses.replace` would check all fields again."""
        other = object.__new__(type(self))
        for each in fields(self):
            object.__setattr__(other, each.name, limits if each.name == "limits" else getattr(self, each.name))
        return other

    @property
    def stabilized(self) -> bool:
        """Whether all policies that ask for sizes evaluate the past themselves."""
        asking = [named for named in self.policies if named.asks]
        return bool(asking) and all(named.stabilizes for named in asking)


@dataclass(frozen=True, slots=True)
class ScaleEvent:
    """A requested change of size, as rate limits count it. `change` is signed, in replicas."""

    at: datetime
    change: int


@fast_init
@dataclass(frozen=True, slots=True)
class Proposal:
    """A trusted proposal, kept for the stabilization windows."""

    at: datetime
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescale:
    """A rescale in progress.

    Attributes:
        before: the size when it began.
        to: the size after it.
        at: when it was requested.
        cause: who started it.
        phase: the step completed last.
        since: when that step was completed.
        confirmed: whether the target has shown `to` as its desired size.
        error: the error of the scale call when it failed, else empty.
        durations: phase -> seconds it took.
        deadlines: phase -> how long it may take by the engine's own settings, as last reported.
        replaced: the rescale in progress that this request replaced, kept until this one is confirmed: if the target
            does not accept this one, the replaced one is followed again.
        earlier: sizes requested before this one that the target may show first.
        waiting_since: when the first of several steps in a row was requested, while no replica has come up; None: `at`.
        ready_before: replicas that were up at that time, at most `before`; None: unknown.
    """

    before: int
    to: int
    at: datetime
    cause: Cause
    phase: Phase
    since: datetime
    confirmed: bool = False
    error: str = ""
    durations: Mapping[Phase, float] = field(default_factory=dict)
    deadlines: Mapping[Phase, timedelta] = field(default_factory=dict)
    replaced: Rescale | None = None
    earlier: tuple[int, ...] = ()
    waiting_since: datetime | None = None
    ready_before: int | None = None

    @property
    def direction(self) -> Direction:
        """Up when replicas are added, down when they are removed."""
        return Direction.UP if self.to >= self.before else Direction.DOWN


@dataclass(frozen=True, slots=True)
class SizeCapacity:
    """The measured throughput of one size when saturated: records/s, time of the last sample, number of samples."""

    rate: float
    at: datetime
    samples: int


class RescaleTimes(NamedTuple):
    """When the job stopped and ran again in a rescale, in seconds after the request, as bounds from two observations.

    Attributes:
        stopped_after, stopped_before: when it stopped; both None: unknown; both equal to `ran_before`: it did not stop.
        ran_after, ran_before: when it ran with the new size; equal if the engine reports the time.
        replicas: number of replicas that were added or removed.
    """

    stopped_after: float | None
    stopped_before: float | None
    ran_after: float
    ran_before: float
    replicas: int = 1


@fast_init
@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned from past rescales and while the job was saturated.

    Attributes:
        capacity: size -> its throughput when busy.
        durations: direction -> phase -> the last few durations as they were observed, in seconds, oldest first. Each
            ends at an observation.
        memory: policy -> name -> what that policy has learned.
        times: direction -> when the job stopped and ran again in the last rescales, oldest first.
    """

    capacity: Mapping[int, SizeCapacity] = field(default_factory=dict)
    durations: Mapping[Direction, Mapping[Phase, tuple[float, ...]]] = field(default_factory=dict)
    memory: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    times: Mapping[Direction, tuple[RescaleTimes, ...]] = field(default_factory=dict)


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """Everything that a decision depends on besides the spec and the observation. It survives a restart.

    Attributes:
        at: time of the last observation.
        desired: the size the target was last seen with.
        watched_since: since when the cluster has been watched on trusted input, without a gap too long for the
            stabilization window.
        proposals: trusted proposals within the longest stabilization window, oldest first.
        events: our changes of size within the longest rate period, oldest first.
        rescale: the rescale in progress, if any.
        cooldown_from: when the last rescale ended; cooldowns count from here.
        last_missed: the last rescale that missed a deadline, while its replicas are still missing or the job restarts.
        disturbance_ended_at: when the last disturbance of the job was absorbed; some time later capacity is learned.
        requested: when we last requested a size; None when that call failed.
        override_times: the last few times at which a requested size was changed from outside, or was accepted but never
            shown; oldest first.
        past: observations within the lookback, oldest first. Restored from the decision log.
        learned: capacity and durations.
    """

    at: datetime | None = None
    desired: int | None = None
    watched_since: datetime | None = None
    proposals: tuple[Proposal, ...] = ()
    events: tuple[ScaleEvent, ...] = ()
    rescale: Rescale | None = None
    cooldown_from: datetime | None = None
    disturbance_ended_at: datetime | None = None
    last_missed: Rescale | None = None
    requested: datetime | None = None
    override_times: tuple[datetime, ...] = ()
    past: tuple[Observation, ...] = ()
    learned: Learned = Learned()


@partial(fast_init, former={"warm_from": "disturbance_ended_at"})
@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a policy sees. `warm_from` is accepted as the former name of `disturbance_ended_at`.

    Attributes:
        now: the time of the observation.
        current: the size that the cluster was set to.
        ready: replicas that are up (equal to `current` when the target does not report it).
        metrics: the trusted readings only: fresh and finite.
        past: observations within the lookback, oldest first, the present one last.
        limits: the present bounds of the size.
        learned: capacity and durations learned so far.
        spec: the cluster's spec, for slots per replica, partitions and the like.
        engine: the state of the job, or None.
        rescale: the rescale in progress, if any.
        disturbance_ended_at: when the last disturbance of the job was absorbed; readings soon after it are transient.
        memory: what this policy has learned; see `Learner`.
    """

    now: datetime
    current: int
    ready: int
    metrics: Mapping[str, Reading]
    past: tuple[Observation, ...]
    limits: Limits
    learned: Learned
    spec: ClusterSpec
    engine: EngineStatus | None = None
    rescale: Rescale | None = None
    disturbance_ended_at: datetime | None = None
    memory: Mapping[str, float] = field(default_factory=dict)

    @property
    def warm_from(self) -> datetime | None:
        """The former name of `disturbance_ended_at`."""
        return self.disturbance_ended_at

    def with_learned(self, learned: Learned, memory: Mapping[str, float]) -> View:
        """A copy with other learned values. Written out, because `dataclasses.replace` takes twice as long."""
        return _create_view(
            now=self.now,
            current=self.current,
            ready=self.ready,
            metrics=self.metrics,
            past=self.past,
            limits=self.limits,
            learned=learned,
            spec=self.spec,
            engine=self.engine,
            rescale=self.rescale,
            disturbance_ended_at=self.disturbance_ended_at,
            memory=memory,
        )

    def knowing(self, learned: Learned, memory: Mapping[str, float]) -> View:
        """Deprecated: the former name of `with_learned`."""
        return self.with_learned(learned, memory)

    def number(self, name: str) -> float | None:
        """A metric as one number (the mean, if it has one per replica), or None when it is not trusted."""
        reading = self.metrics.get(name)
        if reading is None:
            return None
        value = reading.averaged
        return sum(value) / len(value) if isinstance(value, tuple) else value


_create_view = creator(View)
