"""Times at which Flink's autoscaler must not scale: `job.autoscaler.excluded.periods`.

An expression is a daily range (`9:30:30-10:50:20`), a cron expression of Quartz (`* * 9-11 ? * MON-FRI`), or both
joined by `&&`. The rules are those of `CalendarUtils` of the Flink Kubernetes operator, which uses `DailyCalendar` and
`CronExpression` of Quartz 2.3. A cron expression excludes every second that it matches.
"""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import date, datetime, time

_MONTHS = {"JAN": 1, "FEB": 2, "MAR": 3, "APR": 4, "MAY": 5, "JUN": 6}
_MONTHS |= {"JUL": 7, "AUG": 8, "SEP": 9, "OCT": 10, "NOV": 11, "DEC": 12}
_DAYS = {"SUN": 1, "MON": 2, "TUE": 3, "WED": 4, "THU": 5, "FRI": 6, "SAT": 7}
_NO_NAMES: dict[str, int] = {}
_SATURDAY = 7
_YEARS = (1970, 2099)


@dataclass(frozen=True, slots=True)
class Daily:
    """A range of times on every day, both ends included."""

    start: time
    end: time

    def __post_init__(self) -> None:
        if not self.start < self.end:
            raise ValueError(f"{self.start}-{self.end} does not end after it begins; past midnight, write two ranges")

    def holds(self, at: datetime) -> bool:
        """Whether a local time is in it."""
        return self.start <= at.time() <= self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """A cron expression of Quartz: the values that each field matches.

    Attributes:
        seconds, minutes, hours, months, years: values; years None: every year.
        days: days of the month, or None if that field is `?`.
        last: how many days before the end of the month (`L`, `L-3`), or None.
        weekday_of: whether the nearest weekday is meant instead of the day (`W`).
        weekdays: 1 (Sunday) to 7, or None if that field is `?`.
        nth: which of these weekdays in the month (`#`); 0: each; -1: the last (`6L`).
    """

    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    months: frozenset[int]
    years: frozenset[int] | None = None
    days: frozenset[int] | None = None
    last: int | None = None
    weekday_of: bool = False
    weekdays: frozenset[int] | None = None
    nth: int = 0

    def holds(self, at: datetime) -> bool:
        """Whether it matches the second of a local time."""
        return (
            at.second in self.seconds
            and at.minute in self.minutes
            and at.hour in self.hours
            and at.month in self.months
            and (self.years is None or at.year in self.years)
            and (self._on_weekday(at.date()) if self.days is None else self._on_day(at.date(), self.days))
        )

    def _on_day(self, day: date, days: frozenset[int]) -> bool:
        length = monthrange(day.year, day.month)[1]
        if self.last is not None:
            days = frozenset({length - self.last})
        if not self.weekday_of:
            return day.day in days
        return day.day in {_nearest_weekday(day.replace(day=one), length) for one in days if 1 <= one <= length}

    def _on_weekday(self, day: date) -> bool:
        if day.isoweekday() % 7 + 1 not in (self.weekdays or ()):
            return False
        if self.nth < 0:
            return day.day + 7 > monthrange(day.year, day.month)[1]
        return not self.nth or (day.day - 1) // 7 + 1 == self.nth


def _nearest_weekday(day: date, length: int) -> int:
    """The day of the month of the nearest weekday (Monday to Friday) in the same month."""
    match day.isoweekday():
        case 6:  # Saturday
            return day.day - 1 if day.day > 1 else day.day + 2
        case 7:  # Sunday
            return day.day + 1 if day.day < length else day.day - 2
        case _:
            return day.day


Period = tuple[Daily | Cron, ...]
"""The parts of an expression: a time is excluded if all of them match."""


def parse(expression: str) -> Period:
    """Parse one expression: `CalendarUtils.validateExcludedExpression`.

    Raises:
        ValueError: it is not an expression; the message says what is wrong.
    """
    parts = [part.strip() for part in expression.split("&&")]
    if len(parts) > 2:  # noqa: PLR2004 - one range and one cron expression
        raise ValueError(f"{expression!r} has more than one &&")
    found = tuple(daily(part) if re.fullmatch(r"[\d:\s]+-[\d:\s]+", part) else cron(part) for part in parts)
    if len({type(one) for one in found}) < len(found):
        raise ValueError(f"{expression!r} joins two of the same kind, expected a daily range && a cron expression")
    return found


def excluded(periods: tuple[Period, ...], at: datetime) -> bool:
    """Whether a local time is in one of the periods: `CalendarUtils.inExcludedPeriods`."""
    return any(all(part.holds(at) for part in period) for period in periods)


def daily(text: str) -> Daily:
    """Parse a daily range, two times `HH:MM[:SS[:mmm]]` joined by `-`, as `DailyCalendar` does.

    Raises:
        ValueError: it is not a daily range.
    """
    start, _, end = text.partition("-")
    return Daily(_time(start), _time(end))


def _time(text: str) -> time:
    parts = text.strip().split(":")
    if not (2 <= len(parts) <= 4 and all(part.isdecimal() for part in parts)):  # noqa: PLR2004 - up to milliseconds
        raise ValueError(f"{text.strip()!r} is not a time, expected HH:MM:SS")
    hour, minute, second, millis = (*map(int, parts), 0, 0)[:4]
    try:
        return time(hour, minute, second, millis * 1000)
    except ValueError:
        raise ValueError(f"{text.strip()!r} is not a time, expected HH:MM:SS") from None


def cron(text: str) -> Cron:
    """Parse a cron expression of Quartz: second, minute, hour, day, month, weekday and, optionally, year.

    Raises:
        ValueError: it is not a cron expression.
    """
    fields = text.upper().split()
    if len(fields) not in {6, 7}:
        raise ValueError(
            f"{text!r} is neither a daily range such as 9:30:00-11:00:00 nor a cron expression of 6 or 7 fields"
        )
    second, minute, hour, day, month, weekday, *year = fields
    if (day == "?") == (weekday == "?"):
        raise ValueError(f"{text!r}: either the day of the month or the day of the week must be ?, and not both")
    days = weekdays = None
    last, weekday_of, nth = None, False, 0
    if day == "?":
        weekdays, nth = _weekdays(weekday)
    else:
        days, last, weekday_of = _days(day)
    return Cron(
        seconds=_values(second, 0, 59),
        minutes=_values(minute, 0, 59),
        hours=_values(hour, 0, 23),
        months=_values(month, 1, 12, _MONTHS),
        years=None if year in ([], ["*"]) else _values(year[0], *_YEARS),
        days=days,
        last=last,
        weekday_of=weekday_of,
        weekdays=weekdays,
        nth=nth,
    )


def _days(field: str) -> tuple[frozenset[int], int | None, bool]:
    """Days of the month, days before its end, whether the nearest weekday is meant."""
    if found := re.fullmatch(r"L(?:-(\d+))?(W?)", field):
        back = int(found[1] or 0)
        if back > 30:  # noqa: PLR2004 - as Quartz
            raise ValueError(f"{field!r}: an offset from the last day must be at most 30")
        return frozenset(), back, bool(found[2])
    if found := re.fullmatch(r"(\d+)W", field):
        return _values(found[1], 1, 31), None, True
    return _values(field, 1, 31), None, False


def _weekdays(field: str) -> tuple[frozenset[int], int]:
    """Weekdays, and which of them in the month."""
    if field == "L":
        return frozenset({_SATURDAY}), 0
    if found := re.fullmatch(r"(\w+?)L", field):
        return _values(found[1], 1, 7, _DAYS), -1
    if found := re.fullmatch(r"(\w+)#([1-5])", field):
        return _values(found[1], 1, 7, _DAYS), int(found[2])
    return _values(field, 1, 7, _DAYS), 0


def _values(field: str, low: int, high: int, names: dict[str, int] = _NO_NAMES) -> frozenset[int]:
    """All values that a field matches. A range may wrap around, as FRI-MON does."""
    found: set[int] = set()
    for part in field.split(","):
        spec, slash, step_text = part.partition("/")
        if slash and not step_text.isdecimal():
            raise ValueError(f"{part!r}: expected a whole number after /")
        step = int(step_text) if slash else 1
        if not 1 <= step <= high:
            raise ValueError(f"{part!r}: a step must be from 1 to {high}")
        if spec in {"*", ""}:
            if not spec and not slash:
                raise ValueError(f"{field!r} has an empty part")
            found.update(range(low, high + 1, step))
            continue
        first, dash, second = spec.partition("-")
        start = _value(first, low, high, names)
        end = _value(second, low, high, names) if dash else high if slash else start
        size = high - low + 1
        found.update((value - low) % size + low for value in range(start, end + (size if end < start else 0) + 1, step))
    return frozenset(found)


def _value(text: str, low: int, high: int, names: dict[str, int]) -> int:
    value = names.get(text, int(text) if text.isdecimal() else -1)
    if not low <= value <= high:
        known = f" or {'/'.join(names)}" if names else ""
        raise ValueError(f"{text!r}: expected {low} to {high}{known}")
    return value
