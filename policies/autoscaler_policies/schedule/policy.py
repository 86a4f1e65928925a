"""Bounds by the calendar: windows that raise or lower minimum and maximum, and times in which nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import ClassVar
from zoneinfo import ZoneInfo, available_timezones

from autoscaler.policy_api import ZERO, Allowance, Limits, ParameterError, Reason, Recommendation, View
from autoscaler_policies.schedule.cron import Cron, Moment, after, before, by, parse

MOST = 100_000
"""The largest size that a configuration may set."""

_SPAN = 6 * 3600
"""Seconds for which the changes of a schedule are computed at once."""

_JOINED = 40
"""Up to this many windows that follow each other without a gap are reported as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A time that begins and ends by the calendar, with its own bounds.

    Attributes:
        name: its name in explanations.
        start: when it opens, a cron expression.
        end: when it closes, a cron expression; either this or `duration`.
        duration: how long it stays open, in elapsed time; above 0s.
        min: the smallest size while it is open, in replicas, 0 to 100,000; default: the cluster's.
        max: the largest size while it is open, in replicas, 1 to 100,000; default: the cluster's.
        timezone: time zone of `start` and `end`, such as Europe/Berlin; default: that of the schedule.
    """

    name: str
    start: str
    end: str | None = None
    duration: timedelta | None = None
    min: int | None = None
    max: int | None = None
    timezone: str | None = None

    def __post_init__(self) -> None:
        _check_times(self)
        if self.min is None and self.max is None:
            raise ParameterError("min", "is missing, expected min, max or both")
        for name, least in (("min", 0), ("max", 1)):
            size = getattr(self, name)
            if size is not None and not least <= size <= MOST:
                raise ParameterError(name, f"is {size}, expected {least} to {MOST:,}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ParameterError("min", f"is {self.min}, expected at most max ({self.max})")


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A time in which nothing changes.

    Attributes:
        name: its name in explanations.
        start: when it begins, a cron expression.
        end: when it ends, a cron expression; either this or `duration`.
        duration: how long it lasts, in elapsed time; above 0s.
        timezone: time zone of `start` and `end`, such as Europe/Berlin; default: that of the schedule.
    """

    name: str
    start: str
    end: str | None = None
    duration: timedelta | None = None
    timezone: str | None = None

    def __post_init__(self) -> None:
        _check_times(self)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Moves the bounds by the calendar, and never asks for a size itself.

    While a window is open, its `min` and `max` replace those of the cluster; if several are open, the largest `min` and
    the largest `max` count. A minimum above the maximum raises the maximum. Exclusions override everything: while one
    is open nothing changes, even if the bounds ask for it.

    Daylight saving time: a skipped time is due when the clock resumes, and a repeated time is due the first time.
    Expressions whose minute or hour begins with `*` follow the clock instead, as in Debian's cron.

    Attributes:
        windows: times with other bounds; default: none.
        exclude: times in which nothing changes; default: none.
        timezone: time zone of all windows and exclusions that name none, such as Europe/Berlin; default: UTC.
    """

    asks: ClassVar[bool] = False
    lookback: ClassVar[timedelta] = ZERO

    windows: tuple[Window, ...] = ()
    exclude: tuple[Exclusion, ...] = ()
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        _check_zone(self.timezone)
        if not (self.windows or self.exclude):
            raise ParameterError("windows", "is empty, expected a window, or one under exclude")
        for name in ("windows", "exclude"):
            names = [window.name for window in getattr(self, name)]
            twice = next((one for one in names if names.count(one) > 1), None)
            if twice is not None:
                raise ParameterError(name, f"has two with the name {twice!r}, expected different names")

    def allow(self, now: datetime, limits: Limits) -> Allowance:
        """The bounds that hold now, and why nothing may change."""
        state = _state(self, now)
        if state.least is None and state.most is None:
            return Allowance(limits, state.excluded)
        least = limits.minimum if state.least is None else state.least
        most = limits.maximum if state.most is None else state.most
        return Allowance(Limits(least, max(least, most)), state.excluded)

    def evaluate(self, view: View) -> Recommendation:
        """Abstain, and report which windows are open, and until when."""
        state = _state(self, view.now)
        limits = view.limits
        detail = f"{state.detail}; {limits.minimum} to {limits.maximum} is allowed"
        if limits.minimum == limits.maximum and not (state.least is None and state.most is None):
            detail += ", as a minimum above the maximum raises it"
        inputs = {"min": float(limits.minimum), "max": float(limits.maximum)}
        return Recommendation(None, Reason.ABSTAINED, inputs, detail)


@dataclass(frozen=True, slots=True)
class _State:
    """The state of a schedule from a time on.

    Attributes:
        at: that time, in seconds since 1970.
        least, most: the bounds of the open windows; None: they set none.
        excluded: why nothing may change; None: changes are allowed.
        detail: what is open, for users.
    """

    at: float
    least: int | None
    most: int | None
    excluded: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class _Times:
    """When a window is open: its parsed expressions."""

    start: Cron
    end: Cron | None
    duration: timedelta
    zone: ZoneInfo

    def closes(self, start: Moment) -> datetime:
        """When a window that opened at a moment closes."""
        return start[0] + self.duration if self.end is None else after(self.end, self.zone, start)[0]

    def until(self, now: datetime) -> datetime | None:
        """When it closes, if it is open now; windows that follow without a gap count as the same."""
        close = self.closes(before(self.start, self.zone, by(now)))
        if close <= now:
            return None
        for _ in range(_JOINED):
            further = self.closes(before(self.start, self.zone, by(close)))
            if further <= close:
                break
            close = further
        return close

    def opens(self, now: datetime) -> datetime:
        """When it opens next."""
        return next(begin for begin, end in self._ahead(now) if end > begin)

    def _ahead(self, now: datetime) -> Iterator[tuple[datetime, datetime]]:
        moment = by(now)
        while True:
            moment = after(self.start, self.zone, moment)
            yield moment[0], self.closes(moment)


def _state(schedule: Schedule, now: datetime) -> _State:
    """The state of a schedule at a time."""
    seconds = now.timestamp()
    states = _states(schedule, int(seconds // _SPAN))
    found = states[0]
    for state in islice(states, 1, None):
        if state.at > seconds:
            break
        found = state
    return found


@lru_cache(maxsize=4096)
def _states(schedule: Schedule, span: int) -> tuple[_State, ...]:
    """The states of a schedule within a span of time, from each change on."""
    now = datetime.fromtimestamp(span * _SPAN, UTC)
    end = now + timedelta(seconds=_SPAN)
    states = []
    while now < end:
        state, now = _state_from(schedule, now)
        states.append(state)
    return tuple(states)


def _state_from(schedule: Schedule, now: datetime) -> tuple[_State, datetime]:
    """The state of a schedule from a time on, and the earliest time at which it may change."""
    changes: list[datetime] = []
    upcoming: list[tuple[datetime, str]] = []
    least: list[int] = []
    most: list[int] = []
    parts: list[str] = []
    excluded: list[str] = []
    every: tuple[Window | Exclusion, ...] = (*schedule.windows, *schedule.exclude)
    for window in every:
        times = _times(window.start, window.end, window.duration or ZERO, window.timezone or schedule.timezone)
        close = times.until(now)
        if close is None:
            opens = times.opens(now)
            changes.append(opens)
            word = "opens" if isinstance(window, Window) else "begins"
            upcoming.append((opens, f"{window.name} {word} at {_time(opens, times.zone)}"))
            continue
        changes.append(close)
        if isinstance(window, Exclusion):
            excluded.append(f"{window.name} lasts until {_time(close, times.zone)}")
            continue
        parts.append(f"{window.name} is open until {_time(close, times.zone)}")
        if window.min is not None:
            least.append(window.min)
        if window.max is not None:
            most.append(window.max)
    if excluded:
        parts.insert(0, f"nothing changes: {' and '.join(excluded)}")
    if not parts:
        parts.append(f"no window is open; {min(upcoming)[1]}")
    state = _State(
        now.timestamp(),
        max(least, default=None),
        max(most, default=None),
        " and ".join(excluded) or None,
        "; ".join(parts),
    )
    return state, min(changes)


@lru_cache(maxsize=8192)
def _times(start: str, end: str | None, duration: timedelta, timezone: str) -> _Times:
    return _Times(parse(start), None if end is None else parse(end), duration, ZoneInfo(timezone))


def _time(at: datetime, zone: ZoneInfo) -> str:
    return f"{at.astimezone(zone):%Y-%m-%d %H:%M %Z}"


def _check_times(window: Window | Exclusion) -> None:
    if not window.name.strip():
        raise ParameterError("name", "is empty, expected a name for the window")
    for field in ("start", "end"):
        text = getattr(window, field)
        if text is not None:
            try:
                parse(text)
            except ValueError as error:
                raise ParameterError(field, f"{error}") from error
    if (window.end is None) == (window.duration is None):
        state = "is missing" if window.end is None else "is set together with duration"
        raise ParameterError("end", f"{state}, expected either end or duration")
    if window.duration is not None and window.duration <= ZERO:
        raise ParameterError("duration", f"is {window.duration.total_seconds():g}s, expected above 0s")
    if window.end is not None and parse(window.end) == parse(window.start):
        raise ParameterError(
            "end", "is the same as start, so the window never closes; expected another time, or a duration"
        )
    if window.timezone is not None:
        _check_zone(window.timezone)


def _check_zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:  # unknown; no name at all; a directory such as Europe
        known = available_timezones()
        if not known:
            raise ParameterError(
                "timezone", f"is {name!r}, but this machine has no time zones: install the package tzdata"
            ) from error
        near = get_close_matches(name, known, 1)
        also = f"; did you mean {near[0]!r}?" if near else ""
        raise ParameterError(
            "timezone", f"is {name[:60]!r}, expected the name of a time zone, such as Europe/Berlin{also}"
        ) from error
