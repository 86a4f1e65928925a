"""Times at which Flink's autoscaler must not scale: `job.autoscaler.excluded.periods`.

An expression is a daily range (`9:30:30-10:50:20`), a cron expression of Quartz (`* * 9-11 ? * MON-FRI`), or both
joined by `&&`: `CalendarUtils` of the Flink Kubernetes operator, on `DailyCalendar` and `CronExpression` of Quartz 2.3.
A cron expression excludes every second that it names. Of Quartz's `L`, `W` and `#` only `L` for the last day of the
month is supported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_DAY = timedelta(days=1)
_LAST = "L"


@dataclass(frozen=True, slots=True)
class Daily:
    """A range of times on every day, both ends included."""

    start: time
    end: time

    def holds(self, at: datetime) -> bool:
        """Whether a local time is in it."""
        return self.start <= at.time() <= self.end


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression of Quartz: second, minute, hour, day, month, weekday (1: Sunday) and year.

    Attributes:
        fields: the values that each field names; None: any.
        last: whether the last day of the month is meant instead of a day.
    """

    fields: tuple[frozenset[int] | None, ...]
    last: bool = False

    def holds(self, at: datetime) -> bool:
        """Whether it names the second of a local time."""
        if self.last and (at + _DAY).day != 1:
            return False
        values = (at.second, at.minute, at.hour, at.day, at.month, at.isoweekday() % 7 + 1, at.year)
        return all(named is None or value in named for value, named in zip(values, self.fields, strict=True))


Period = tuple[Daily | Cron, ...]
"""All of these hold."""


def parse(expression: str) -> Period:
    """Read one expression: `CalendarUtils.validateExcludedExpression`.

    Raises:
        ValueError: it cannot be read; the message says what is wrong.
    """
    parts = [part.strip() for part in expression.split("&&")]
    found = tuple(_daily(part) if re.fullmatch(r"[\d:\s]+-[\d:\s]+", part) else _cron(part) for part in parts)
    if len({type(one) for one in found}) < len(found):
        raise ValueError(f"{expression!r} joins two of a kind, expected a daily range && a cron expression")
    return found


def excluded(periods: tuple[Period, ...], at: datetime) -> bool:
    """Whether a local time is in one of them: `CalendarUtils.inExcludedPeriods`."""
    return any(all(part.holds(at) for part in period) for period in periods)


def _daily(text: str) -> Daily:
    """Read a daily range, `HH:MM[:SS[:mmm]]` twice, as `DailyCalendar` does."""
    start, end = map(_time, text.split("-"))
    if not start < end:
        raise ValueError(f"{text} does not end after it begins; over midnight it takes two ranges")
    return Daily(start, end)


def _time(text: str) -> time:
    parts = text.strip().split(":")
    try:
        hour, minute, second, millis = map(int, [*parts, *"00"][: max(len(parts), 4)])
        return time(hour, minute, second, millis * 1000)
    except ValueError:
        raise ValueError(f"{text.strip()!r} is not a time, expected HH:MM:SS") from None


def _cron(text: str) -> Cron:
    """Read a cron expression of Quartz: second, minute, hour, day, month, weekday and, if given, year."""
    fields = text.upper().split()
    if len(fields) not in {6, 7}:
        raise ValueError(
            f"{text!r} is neither a daily range such as 9:30:00-11:00:00 nor a cron expression of 6 or 7 fields"
        )
    second, minute, hour, day, month, weekday, year = (*fields, "*")[:7]
    if (day == "?") == (weekday == "?"):
        raise ValueError(f"{text!r}: either the day of the month or the day of the week must be ?, and not both")
    named = (
        _values(second, 0, 59),
        _values(minute, 0, 59),
        _values(hour, 0, 23),
        None if day in ("?", _LAST) else _values(day, 1, 31),
        _values(month, 1, 12, _MONTHS),
        None if weekday == "?" else _values(weekday, 1, 7, _DAYS),
        None if year == "*" else _values(year, 1970, 2099),
    )
    return Cron(named, last=day == _LAST)


def _values(field: str, low: int, high: int, names: Sequence[str] = ()) -> frozenset[int]:
    """All values that a field names. A range may go over its end, as FRI-MON does."""
    found: set[int] = set()
    for part in field.split(","):
        spec, slash, step_text = part.partition("/")
        step = int(step_text) if step_text.isdecimal() else 0 if slash else 1
        if not 1 <= step <= high:
            raise ValueError(f"{part!r}: expected a step from 1 to {high} after /")
        if spec == "*" or (slash and not spec):
            found.update(range(low, high + 1, step))
            continue
        first, dash, second = spec.partition("-")
        start = _value(first, low, high, names)
        end = _value(second, low, high, names) if dash else high if slash else start
        size = high - low + 1
        found.update((value - low) % size + low for value in range(start, end + (size if end < start else 0) + 1, step))
    return frozenset(found)


def _value(text: str, low: int, high: int, names: Sequence[str]) -> int:
    if text in names:
        return names.index(text) + low
    if not (text.isdecimal() and low <= int(text) <= high):
        known = f" or {'/'.join(names)}" if names else ""
        raise ValueError(f"{text!r}: expected {low} to {high}{known}")
    return int(text)
