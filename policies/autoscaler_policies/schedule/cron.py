"""Cron expressions: when one is due in a time zone, also when clocks are set forward or back.

Five fields (minute, hour, day of month, month, day of week) as in crontab(5) of Debian, whose rules this follows:
https://manpages.debian.org/bookworm/cron/crontab.5.en.html and cron.8 for the change to daylight saving time.
Why it is not a library: docs/adr/0010-schedules-have-their-own-cron.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import TypeAlias
from zoneinfo import ZoneInfo

_MINUTE = timedelta(minutes=1)

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_TERM = re.compile(r"(?:(?P<every>\*)|(?P<low>\w+)(?:-(?P<high>\w+))?)(?:/(?P<step>\w+))?", re.ASCII)
_LONGEST = 200  # characters; a list of all minutes has 169

# 29 February on a given weekday occurs once in 28 years, or once in 40 around a century year without a leap day.
_YEARS = range(2000, 2041)

Moment: TypeAlias = tuple[datetime, datetime]
"""When a cron expression is due: the instant in UTC, and the local time it stands for.

Two moments within a skipped hour have the same instant; the local time tells them apart.
"""

_LAST_WALL = datetime.max  # noqa: DTZ901 - later than any local time


@dataclass(frozen=True, slots=True)
class _Field:
    """One field: its name for users, its range of numbers, and the names that stand for some of them."""

    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()

    def number(self, text: str) -> int:
        """A number or name of this field."""
        if text.lower() in self.names:
            # January is 1, Sunday is 0.
            return self.names.index(text.lower()) + self.least
        if not text.isdecimal():
            also = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
            raise ValueError(f"is {text!r}, expected {self.least} to {self.most}{also}")
        number = int(text) if len(text) <= 4 else self.most + 1  # noqa: PLR2004 - far above, and short to show
        if not self.least <= number <= self.most:
            raise ValueError(f"is {text[:20]}, expected {self.least} to {self.most}")
        return number


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _WEEKDAYS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """A cron expression; see `parse`.

    Attributes:
        minutes, hours, days, months: the numbers that match, sorted.
        weekdays: the weekdays that match, sorted; Sunday is 0.
        either: whether one matching day field is enough: it is if neither day field begins with `*`.
        floating: whether it follows the wall clock: not due in a skipped hour, and due twice in a repeated one.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either: bool
    floating: bool

    def on(self, day: date) -> bool:
        """Whether it is due on a day."""
        if day.month not in self.months:
            return False
        by_month = day.day in self.days
        by_week = day.isoweekday() % 7 in self.weekdays
        return by_month or by_week if self.either else by_month and by_week


@lru_cache(maxsize=4096)
def parse(text: str) -> Cron:
    """Parse a cron expression.

    Raises:
        ValueError: it is not a cron expression, or is never due; the message begins with the text and names the field.
    """
    shown = repr(text[:_LONGEST])
    if len(text) > _LONGEST:
        raise ValueError(f"{shown}... is longer than {_LONGEST} characters")
    written = text.strip()
    if written.startswith("@"):
        if written.lower() not in _NICKNAMES:
            raise ValueError(f"{shown}: expected one of {', '.join(_NICKNAMES)}, or five fields")
        written = _NICKNAMES[written.lower()]
    parts = written.split()
    if len(parts) != len(_FIELDS):
        also = "; seconds are not supported" if len(parts) == len(_FIELDS) + 1 else ""
        names = ", ".join(field.name for field in _FIELDS)
        raise ValueError(f"{shown}: expected five fields ({names}), found {len(parts)}{also}")
    found = []
    for position, (field, part) in enumerate(zip(_FIELDS, parts, strict=True), 1):
        try:
            found.append(_numbers(field, part))
        except ValueError as error:
            raise ValueError(f"{shown}: field {position} ({field.name}) {error}") from error
    minutes, hours, days, months, weekdays = found
    starred = [part.startswith("*") for part in parts]
    cron = Cron(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=tuple(sorted({day % 7 for day in weekdays})),
        either=not (starred[2] or starred[4]),
        floating=starred[0] or starred[1],
    )
    if not any(_days(cron, year) for year in _YEARS):
        raise ValueError(f"{shown} is never due: none of these months has such a day")
    return cron


def _numbers(field: _Field, text: str) -> tuple[int, ...]:
    numbers: set[int] = set()
    for term in text.split(","):
        match = _TERM.fullmatch(term)
        if match is None:
            raise ValueError(f"has {term[:20]!r}, expected `*`, a number or a range like 1-5, each also with a step")
        if match["every"]:
            low, high = field.least, 6 if field.names is _WEEKDAYS else field.most
        else:
            low = field.number(match["low"])
            high = low
            if match["high"]:
                high = field.number(match["high"])
                if high == 0 and low and field.names is _WEEKDAYS:  # sat-sun
                    high = field.most
            elif match["step"]:
                high = field.most
        if low > high:
            raise ValueError(f"has the range {term}, which goes backwards; write it as two ranges")
        step = match["step"] or "1"
        if not (step.isdecimal() and len(step) <= 3 and int(step)):  # noqa: PLR2004 - no field has more numbers
            raise ValueError(f"has the step {step[:20]}, expected a whole number above 0")
        numbers.update(range(low, high + 1, int(step)))
    return tuple(sorted(numbers))


@lru_cache(maxsize=8192)
def _days(cron: Cron, year: int) -> tuple[int, ...]:
    """The days of a year on which it is due, as ordinals."""
    first = date(year, 1, 1).toordinal()
    last = date(year, 12, 31).toordinal()
    return tuple(ordinal for ordinal in range(first, last + 1) if cron.on(date.fromordinal(ordinal)))


@lru_cache(maxsize=4096)
def _moments(cron: Cron, zone: ZoneInfo, ordinal: int) -> tuple[Moment, ...]:
    """When it is due on a day of the local calendar, in order."""
    day = date.fromordinal(ordinal)
    if not cron.on(day):
        return ()
    found: list[Moment] = []
    for hour in cron.hours:
        for minute in cron.minutes:
            wall = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001 - a local time
            real = _real(wall, zone)
            if cron.floating:
                found.extend((instant, wall) for instant in real)
            else:
                found.append((real[0] if real else _resumed(wall, zone), wall))
    return tuple(sorted(found))


def _real(wall: datetime, zone: ZoneInfo) -> list[datetime]:
    """The instants of a local time: none in a skipped hour, two in a repeated one."""
    instants = {wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)}
    return sorted(instant for instant in instants if instant.astimezone(zone).replace(tzinfo=None) == wall)


def _resumed(wall: datetime, zone: ZoneInfo) -> datetime:
    """The instant of the first existing minute after a skipped one."""
    real: list[datetime] = []
    while not real:
        wall += _MINUTE
        real = _real(wall, zone)
    return real[0]


def by(instant: datetime) -> Moment:
    """The last moment that has passed at an instant."""
    return (instant, _LAST_WALL)


def after(cron: Cron, zone: ZoneInfo, moment: Moment) -> Moment:
    """When it is due next after a moment."""
    for ordinal in _ahead(cron, _ordinal(moment, zone) - 1):
        found = _moments(cron, zone, ordinal)
        if found and found[-1] > moment:
            # If clocks are set back over midnight, the end of a day is repeated after the next day has begun.
            return min(one for one in chain(found, _moments(cron, zone, ordinal + 1)) if one > moment)
    raise AssertionError  # pragma: no cover - the calendar of `_ahead` has no end


def before(cron: Cron, zone: ZoneInfo, moment: Moment) -> Moment:
    """When it was due last at or before a moment."""
    for ordinal in _back(cron, _ordinal(moment, zone) + 1):
        found = _moments(cron, zone, ordinal)
        if found and found[0] <= moment:
            return max(one for one in chain(found, _moments(cron, zone, ordinal - 1)) if one <= moment)
    raise AssertionError  # pragma: no cover - the calendar of `_back` has no end


def _ordinal(moment: Moment, zone: ZoneInfo) -> int:
    return moment[0].astimezone(zone).toordinal()


def _ahead(cron: Cron, ordinal: int) -> Iterator[int]:
    year = date.fromordinal(ordinal).year
    while True:
        yield from (day for day in _days(cron, year) if day >= ordinal)
        year += 1


def _back(cron: Cron, ordinal: int) -> Iterator[int]:
    year = date.fromordinal(ordinal).year
    while True:
        yield from (day for day in reversed(_days(cron, year)) if day <= ordinal)
        year -= 1
