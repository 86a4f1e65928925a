"""The options of a reactive job: its minimum and maximum slots, and Flink's options of the adaptive scheduler."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from autoscaler.injob.reactive import proportions
from autoscaler.injob.reactive.conf import LONGEST_HEARTBEAT_TIMEOUT, SHORTEST_HEARTBEAT_TIMEOUT
from autoscaler.schedulers.flink import MAX_PARALLELISM, FlinkSettings, Restart
from autoscaler.schedulers.flink_durations import format_seconds, seconds
from autoscaler.schedulers.slots import Bounds

ADAPTIVE = "jobmanager.adaptive-scheduler."
RESTART = "restart-strategy."
REACTIVE = "reactive."
"""Options that Flink does not have."""
UNUSED = frozenset(
    {
        ADAPTIVE + "prefer-minimal-taskmanagers",
        RESTART + "failure-rate.delay",
        RESTART + "failure-rate.failure-rate-interval",
        RESTART + "failure-rate.max-failures-per-interval",
    }
)
"""Options of Flink that are accepted but have no effect here."""

REPARTITIONS = ("never", "allowed")

FOREVER = 2**31 - 1
"""Flink's value for an unlimited number of attempts."""

_STRATEGIES = {
    **dict.fromkeys(("none", "off", "disable"), Restart.NONE),
    **dict.fromkeys(("fixed-delay", "fixeddelay"), Restart.FIXED),
    **dict.fromkeys(("exponential-delay", "exponentialdelay"), Restart.EXPONENTIAL),
}


class OptionsError(ValueError):
    """The options cannot be used.

    Attributes:
        problems: one sentence each: the option, its value, what was expected and what to do.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(
            "the options of the reactive job cannot be used:\n" + "\n".join(f"- {one}" for one in problems)
        )
        self.problems = problems


def _plain(value: object) -> str:
    return str(value).strip().strip("'\"").lower()


def _option(kind: str, default: Any, *keys: str, least: float = 0, most: float = math.inf) -> Any:  # noqa: ANN401 - a field
    """A field with its Flink names in order of precedence; `least` and `most` are inclusive."""
    return field(default=default, metadata={"kind": kind, "keys": keys, "least": least, "most": most})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The declared resources of a reactive job, and how it rescales and restarts. Times are seconds.

    Attributes:
        min_slots: the minimum slots; with fewer the job does not run.
        preferred_slots: the maximum slots that the job requests; None: all that exist, as in Reactive Mode.
        max_parallelism: the maximum slots that the job can use: `pipeline.max-parallelism`. None: not limited.
        resource_wait_timeout: how long a starting job waits for its preferred slots; then it runs on fewer, or fails
            below the minimum. -1 or math.inf: forever, the default in Reactive Mode and here.
        resource_stabilization_timeout: how long a job that starts on fewer slots than preferred waits for more.
        executing_stabilization: how long a running job waits for further slots before it is rescaled.
        cooldown: the minimum time from one rescale to the next; Flink's older name is `scaling-interval.min`.
        scaling_interval_max: after this time a gain below `min_parallelism_increase` is used too; math.inf: never.
        min_parallelism_increase: the minimum gain of slots for which the job restarts.
        max_delay: how long a rescale waits for a commit at most; None: it does not wait.
        max_commit_age: a running job is rescaled only within this time after a commit of one of its queries;
            math.inf: at any time. Flink has no such option.
        max_checkpoint_failures: the number of failed commits that count like one completed commit.
        heartbeat_timeout: after this time without a heartbeat an executor counts as lost.
        restart: the restart strategy after a failure.
        initial_backoff, max_backoff, backoff_multiplier: parameters of the exponential delay before a restart.
        reset_backoff_threshold: after this time without a failure the delay is reset to the initial one.
        jitter_factor: the fraction by which a delay is varied at random, from 0 to 1.
        attempts_before_reset: the number of failures since the last reset that are tolerated; math.inf: any number.
        fixed_delay, fixed_attempts: parameters of the strategy `fixed-delay`.
        repartition_state: `never`, or `allowed`: state with fewer partitions than there are slots is repartitioned
            while its query is stopped. Flink has neither this option nor the next.
        repartition_after: how long the slots must have exceeded the partitions without a change.
        proportions: min, target and max share of the slots, each from 0 to 1, by query name; None: the queries share
            the slots as their batches come.

    Raises:
        OptionsError: an option has a wrong value, or options contradict each other; the message lists all problems.
    """

    min_slots: int = _option("count", 1, least=1, most=MAX_PARALLELISM)
    preferred_slots: int | None = _option("count", None, least=1, most=MAX_PARALLELISM)
    max_parallelism: int | None = _option("count", None, "pipeline.max-parallelism", least=1, most=MAX_PARALLELISM)
    resource_wait_timeout: float = _option(
        "time", math.inf, ADAPTIVE + "submission.resource-wait-timeout", ADAPTIVE + "resource-wait-timeout"
    )
    resource_stabilization_timeout: float = _option(
        "time",
        0.0,
        ADAPTIVE + "submission.resource-stabilization-timeout",
        ADAPTIVE + "resource-stabilization-timeout",
    )
    executing_stabilization: float = _option("time", 60.0, ADAPTIVE + "executing.resource-stabilization-timeout")
    cooldown: float = _option(
        "time", 30.0, ADAPTIVE + "executing.cooldown-after-rescaling", ADAPTIVE + "scaling-interval.min"
    )
    scaling_interval_max: float = _option("time", math.inf, ADAPTIVE + "scaling-interval.max")
    min_parallelism_increase: int = _option("count", 1, ADAPTIVE + "min-parallelism-increase", least=1)
    max_delay: float | None = _option("time", None, ADAPTIVE + "rescale-trigger.max-delay")
    max_commit_age: float = _option("time", math.inf, REACTIVE + "rescale-trigger.max-checkpoint-age", least=0.001)
    max_checkpoint_failures: int = _option(
        "count", 2, ADAPTIVE + "rescale-trigger.max-checkpoint-failures", least=1, most=FOREVER
    )
    heartbeat_timeout: float = _option(
        "time", 10.0, "heartbeat.timeout", least=SHORTEST_HEARTBEAT_TIMEOUT, most=LONGEST_HEARTBEAT_TIMEOUT
    )
    restart: Restart = _option("strategy", Restart.EXPONENTIAL, RESTART + "type", "restart-strategy")  # noqa: RUF009 - a field
    initial_backoff: float = _option("time", 1.0, RESTART + "exponential-delay.initial-backoff", least=0.001)
    max_backoff: float = _option("time", 60.0, RESTART + "exponential-delay.max-backoff", least=0.001)
    backoff_multiplier: float = _option("number", 1.5, RESTART + "exponential-delay.backoff-multiplier", least=1)
    reset_backoff_threshold: float = _option(
        "time", 3600.0, RESTART + "exponential-delay.reset-backoff-threshold", least=0.001
    )
    jitter_factor: float = _option("number", 0.1, RESTART + "exponential-delay.jitter-factor", most=1)
    attempts_before_reset: float = _option(
        "attempts", math.inf, RESTART + "exponential-delay.attempts-before-reset-backoff"
    )
    fixed_delay: float = _option("time", 1.0, RESTART + "fixed-delay.delay")
    fixed_attempts: float = _option("attempts", 1, RESTART + "fixed-delay.attempts")
    repartition_state: str = _option("permission", "never", REACTIVE + "repartition-state")
    repartition_after: float = _option("time", 600.0, REACTIVE + "repartition-after")
    proportions: Mapping[str, tuple[float, float, float]] | None = _option("proportions", None)

    def __post_init__(self) -> None:
        wrong = {one.name: text for one in fields(self) if (text := _problem(one, getattr(self, one.name)))}
        shares = () if self.proportions is None else proportions.problems(self.proportions)
        if problems := (*wrong.values(), *self._contradictions(wrong), *shares):
            raise OptionsError(*problems)
        if self.resource_wait_timeout < 0:
            object.__setattr__(self, "resource_wait_timeout", math.inf)

    @classmethod
    def of(cls, conf: Mapping[str, str | float], **changes: Any) -> Options:  # noqa: ANN401 - as the fields are
        """Create options from a flat Flink configuration. Other options of Flink are ignored.

        `parallelism.default` is ignored, as in Reactive Mode, and so is `scheduler-mode`. The defaults are those of
        Reactive Mode: Flink's other defaults for the first waits, 5 minutes and 10 s, apply only if they are set.

        Args:
            conf: Flink's names and values; a time without a unit is in milliseconds.
            changes: fields, which take precedence over the configuration.

        Raises:
            OptionsError: the configuration has an unknown option of the adaptive scheduler or of a restart strategy of
                Flink 2.3, an unknown name that begins with `reactive.`, a value that cannot be read, or a value that
                `Options` refuses; the message lists all problems.
        """
        problems = list(_unknown(conf))
        values: dict[str, Any] = {}
        for one in fields(cls):
            key = next((key for key in one.metadata["keys"] if key in conf), None)
            if key is None or one.name in changes:
                continue
            value = _parse(one, conf[key])
            if value is None:
                problems.append(f"{key}: is {conf[key]!r}, expected {_expected(one)}; correct or remove it")
            elif not (one.name == "max_parallelism" and value == -1):  # Flink's "not set"
                values[one.name] = value
        try:
            found = cls(**(values | changes))
        except OptionsError as error:
            raise OptionsError(*problems, *error.problems) from None
        if problems:
            raise OptionsError(*problems)
        return found

    @property
    def most_slots(self) -> int | None:
        """The maximum slots that the job takes; None: not limited."""
        return min((most for most in (self.preferred_slots, self.max_parallelism) if most is not None), default=None)

    def flink_settings(self) -> FlinkSettings:
        """The settings of the state machine with the rules of Flink 2.x and one slot sharing group.

        `min_increase` and `force_after` are set, but the rules of Flink 2.x do not use them.
        """
        fixed = self.restart is Restart.FIXED
        return FlinkSettings(
            groups=((Bounds(self.min_slots, self.most_slots or MAX_PARALLELISM),),),
            cooldown=self.cooldown,
            stabilization=self.executing_stabilization,
            max_delay=self.max_delay or 0.0,
            checkpoint_failures=self.max_checkpoint_failures,
            min_increase=self.min_parallelism_increase,
            force_after=self.scaling_interval_max,
            resource_wait=self.resource_wait_timeout,
            submission_stabilization=self.resource_stabilization_timeout,
            heartbeat=self.heartbeat_timeout,
            restart=self.restart,
            delay=self.fixed_delay if fixed else self.initial_backoff,
            multiplier=self.backoff_multiplier,
            longest=self.max_backoff,
            reset_after=self.reset_backoff_threshold,
            attempts=self.fixed_attempts if fixed else self.attempts_before_reset,
        )

    def shown(self) -> dict[str, str]:
        """Flink's names and values as text; the scheduler is `adaptive`, so clients can change requirements by PUT."""
        found = {"jobmanager.scheduler": "adaptive"}
        for one in fields(self):
            value = getattr(self, one.name)
            key = next(iter(one.metadata["keys"]), "")
            unset = value is None or (one.name == "scaling_interval_max" and value == math.inf)
            if key and not unset and not (key.startswith(REACTIVE) and value == one.default):
                found[key] = _format(one, value)
        if self.proportions is not None:
            found[REACTIVE + "proportions"] = proportions.shown(self.proportions)
        return found

    def _contradictions(self, wrong: Mapping[str, str]) -> Iterator[str]:
        """List the options that are above another option that bounds them; both values are valid by themselves."""
        for low, high in (
            ("min_slots", "preferred_slots"),
            ("min_slots", "max_parallelism"),
            ("preferred_slots", "max_parallelism"),
            ("initial_backoff", "max_backoff"),
            ("cooldown", "scaling_interval_max"),
        ):
            if wrong.keys().isdisjoint((low, high)):
                least, most = getattr(self, low), getattr(self, high)
                if least is not None and most is not None and least > most:
                    yield f"{low}: is {least:g}, above {high}, which is {most:g}; lower {low} or raise {high}"


def _unknown(conf: Mapping[str, str | float]) -> Iterator[str]:
    known = UNUSED.union(*(one.metadata["keys"] for one in fields(Options)))
    for key in conf:
        if key.startswith((ADAPTIVE, RESTART, REACTIVE)) and key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"correct it to {near[0]}" if near else "remove it"
            whose = "this project" if key.startswith(REACTIVE) else "Flink 2.3"
            yield f"{key}: is no option of {whose}, expected one of its names; {hint}"


def _parse(option: Field[Any], value: object) -> Any:  # noqa: ANN401 - as the field is
    """Parse the value of a field; None if it cannot be read."""
    plain = _plain(value)
    match option.metadata["kind"]:
        case "time":
            return seconds(plain)
        case "strategy":
            return _STRATEGIES.get(plain)
        case "permission":
            return plain if plain in REPARTITIONS else None
        case "number":
            return float(plain) if re.fullmatch(r"-?\d{1,9}(\.\d{1,9})?", plain) else None
        case kind:
            count = int(plain) if re.fullmatch(r"-?\d{1,18}", plain) else None
            return math.inf if kind == "attempts" and count == FOREVER else count


def _expected(option: Field[Any]) -> str:
    """Describe the values that an option can have."""
    kind, least, most = option.metadata["kind"], *_range(option)
    if kind == "strategy":
        return "exponential-delay, fixed-delay or none"
    if kind == "permission":
        return " or ".join(REPARTITIONS)
    noun = {"time": "a time like 10 s or PT10S", "number": "a number", "attempts": "a count"}.get(
        kind, "a whole number"
    )
    show = format_seconds if kind == "time" else "{:g}".format
    return f"{noun}, {show(least)} or more" if most == math.inf else f"{noun} from {show(least)} to {show(most)}"


def _problem(option: Field[Any], value: Any) -> str | None:  # noqa: ANN401 - whatever its author gave
    """Describe the problem with a field's value; None: there is none."""
    kind, default, least, most = option.metadata["kind"], option.default, *_range(option)
    if kind == "proportions":
        return None
    if kind == "strategy":
        fits = isinstance(value, Restart)
    elif kind == "permission":
        fits = value in REPARTITIONS
    elif value is None or isinstance(value, bool) or not isinstance(value, int | float):
        fits = value is None and default is None
    elif value == math.inf:
        fits = default == math.inf or kind == "attempts"
    else:
        fits = least <= value <= most and (isinstance(value, int) or kind in {"time", "number"})
        fits = fits or (option.name == "resource_wait_timeout" and value < 0)
    if fits:
        return None
    key = f" ({option.metadata['keys'][0]})" if option.metadata["keys"] else ""
    return f"{option.name}{key}: is {value!r}, expected {_expected(option)}; correct or remove it"


def _range(option: Field[Any]) -> tuple[float, float]:
    return option.metadata["least"], option.metadata["most"]


def _format(option: Field[Any], value: Any) -> str:  # noqa: ANN401 - as the field is
    match option.metadata["kind"]:
        case "time":
            return format_seconds(value)
        case "attempts" if value == math.inf:
            return str(FOREVER)
        case "strategy":
            return str(value.value)
        case _:
            return str(value)
