"""Cron expressions of Quartz, which MetaQ 1.x uses (deleteWhen): `0 0 6,18 * * ?` is 6 and 18 o'clock, daily.

Six or seven words: second, minute, hour, day of the month, month, day of the week, year. Unlike in Unix's cron, Sunday
is 1, and one of the two days is `?`: the other one decides.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from typing import Final

from msgspec import Struct

from metaq.errors import ConfigError

YEARS: Final = range(1970, 2100)
_MONTHS: Final = {
    name: n
    for n, name in enumerate(["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"], 1)
}
_WEEKDAYS: Final = {name: n for n, name in enumerate(["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"], 1)}
_SATURDAY: Final = 7
_CHARS_MAX: Final = 200
_ITEM: Final = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)?(?:/(\d{1,4}))?\Z")
_NEAR: Final = re.compile(r"(\d{1,2})W\Z")
_BEFORE_LAST: Final = re.compile(r"L(?:-(\d{1,2}))?(W)?\Z")
_LAST_WEEKDAY: Final = re.compile(r"([1-7]|[A-Z]{3})L\Z")
_NTH_WEEKDAY: Final = re.compile(r"([1-7]|[A-Z]{3})#([1-5])\Z")


class _Field(Struct, frozen=True):
    """Kind of a word of an expression."""

    what: str
    allowed: range
    names: dict[str, int] = {}
    wraps: bool = True
    """A range may run over the end: `22-2` are five hours."""


_SECOND, _MINUTE, _HOUR = (
    _Field("second", range(60)),
    _Field("minute", range(60)),
    _Field("hour", range(24)),
)
_DAY, _MONTH = _Field("day of the month", range(1, 32)), _Field("month", range(1, 13), _MONTHS)
_WEEKDAY = _Field("day of the week", range(1, 8), _WEEKDAYS)
_YEAR = _Field("year", YEARS, wraps=False)


class _Day(Struct, frozen=True):
    """Days of a month that an item stands for. Exactly one of the fields is set."""

    days: frozenset[int] = frozenset()
    near: int = 0
    """The weekday (Monday to Friday) nearest to this day, in the same month."""
    before_last: int = -1
    """Number of days before the last one."""
    before_last_near: bool = False
    """The weekday nearest to that."""
    weekdays: frozenset[int] = frozenset()
    nth: int = 0
    """Only the nth of `weekdays` in the month; -1: the last."""

    def of(self, year: int, month: int) -> set[int]:
        """Return the days of a month."""
        last = _days_of_month(year, month)
        if self.weekdays:
            found = [day for day in range(1, last + 1) if _weekday(year, month, day) in self.weekdays]
            if self.nth:
                return set(found[-1:] if self.nth < 0 else found[self.nth - 1 : self.nth])
            return set(found)
        if self.before_last >= 0:
            day = last - self.before_last
            if day < 1:
                return set()
            return {_nearest_weekday(year, month, day) if self.before_last_near else day}
        if self.near:
            return {_nearest_weekday(year, month, self.near)} if self.near <= last else set()
        return {day for day in self.days if day <= last}


class Cron(Struct, frozen=True):
    """A parsed expression. Times are local: an administrator means the wall clock."""

    text: str
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[_Day, ...]
    months: tuple[int, ...]
    years: tuple[int, ...]

    def following(self, after: datetime) -> datetime | None:
        """Return the first due time behind `after` (local, without a zone); None: never again."""
        begin = after.replace(microsecond=0) + timedelta(seconds=1)
        for year in self.years:
            if year < begin.year:
                continue
            for month in self.months:
                if (year, month) < (begin.year, begin.month):
                    continue
                for day in sorted(set().union(*(item.of(year, month) for item in self.days))):
                    today = date(year, month, day)
                    if today < begin.date():
                        continue
                    earliest = begin.hour * 3600 + begin.minute * 60 + begin.second if today == begin.date() else 0
                    if (time := self._time_from(earliest)) is not None:
                        return datetime(year, month, day) + timedelta(seconds=time)  # noqa: DTZ001  local, as told
        return None

    def _time_from(self, earliest: int) -> int | None:
        """The first second of the day from `earliest` on at which it is due; None: none is left."""
        for hour in self.hours:
            if hour * 3600 + 3599 < earliest:
                continue
            for minute in self.minutes:
                if hour * 3600 + minute * 60 + 59 < earliest:
                    continue
                for second in self.seconds:
                    if (found := hour * 3600 + minute * 60 + second) >= earliest:
                        return found
        return None

    def following_ms(self, after_ms: int) -> int | None:
        """The same in milliseconds since the epoch."""
        found = self.following(datetime.fromtimestamp(after_ms / 1000))  # noqa: DTZ006  local, as told
        return None if found is None else int(found.timestamp() * 1000)

    def is_due(self, after_ms: int, until_ms: int) -> bool:
        """Return whether it was due in (`after_ms`, `until_ms`]."""
        found = self.following_ms(after_ms)
        return found is not None and found <= until_ms


def parse_cron(text: str) -> Cron:
    """Read an expression of Quartz. Raises ConfigError: what is wrong with it, or that it never comes to be due."""
    # Quartz does not mind small letters.
    words = text.upper().split()
    if len(text) > _CHARS_MAX:
        raise ConfigError(f"a cron expression of {len(text)} characters, the limit is {_CHARS_MAX}")
    if len(words) not in {6, 7}:
        raise ConfigError(
            f"the cron expression {text!r} has {len(words)} words: Quartz wants second, minute, hour, day of the month, "
            "month, day of the week and perhaps a year, as in 0 0 6,18 * * ?"
        )
    day, weekday = words[3], words[5]
    if (day == "?") == (weekday == "?"):
        raise ConfigError(
            f"the cron expression {text!r}: write ? for the day of the month or for the day of the week, and for one of "
            "them only"
        )
    days = _weekdays(weekday, text) if day == "?" else _days(day, text)
    cron = Cron(
        text,
        _numbers(_SECOND, words[0], text),
        _numbers(_MINUTE, words[1], text),
        _numbers(_HOUR, words[2], text),
        days,
        _numbers(_MONTH, words[4], text),
        _numbers(_YEAR, words[6] if len(words) > 6 else "*", text),
    )
    # 30 February, say: its messages would stay for ever, and nobody would know why.
    if cron.following(datetime(YEARS.start, 1, 1)) is None:  # noqa: DTZ001  any zone: it is the calendar that says no
        raise ConfigError(f"the cron expression {text!r} never comes to be due: no month has such a day")
    return cron


def _numbers(field: _Field, word: str, text: str) -> tuple[int, ...]:
    found: set[int] = set()
    for item in word.split(","):
        match = _ITEM.match(item)
        if match is None or not item:
            raise _wrong(field, item, text)
        every, first, last, step = match.groups()
        start = field.allowed.start if every or first is None else _number(field, first, text)
        if last is not None:
            stop = _number(field, last, text)
        else:
            # Quartz reads `5/15` as "from 5 to the end, each 15th".
            stop = field.allowed.stop - 1 if every or first is None or step else start
        stride = int(step) if step else 1
        if not 1 <= stride <= len(field.allowed):
            raise _wrong(field, item, text)
        if stop < start:
            if not field.wraps:
                raise _wrong(field, item, text)
            stop += len(field.allowed)
        low, count = field.allowed.start, len(field.allowed)
        found.update(low + (number - low) % count for number in range(start, stop + 1, stride))
    return tuple(sorted(found))


def _number(field: _Field, word: str, text: str) -> int:
    number = field.names.get(word, int(word) if word.isdecimal() and word.isascii() and len(word) <= 4 else -1)
    if number not in field.allowed:
        raise _wrong(field, word, text)
    return number


def _days(word: str, text: str) -> tuple[_Day, ...]:
    found, plain = [], []
    for item in word.split(","):
        if match := _NEAR.match(item):
            found.append(_Day(near=_number(_DAY, match[1], text)))
        elif match := _BEFORE_LAST.match(item):
            found.append(_Day(before_last=int(match[1] or 0), before_last_near=bool(match[2])))
        else:
            plain.append(item)
    if plain:
        found.append(_Day(days=frozenset(_numbers(_DAY, ",".join(plain), text))))
    return tuple(found)


def _weekdays(word: str, text: str) -> tuple[_Day, ...]:
    found, plain = [], []
    for item in word.split(","):
        if item == "L":
            # `L` alone is the last day of the week, which is 7.
            found.append(_Day(weekdays=frozenset({_SATURDAY})))
        elif match := _LAST_WEEKDAY.match(item):
            found.append(_Day(weekdays=frozenset({_number(_WEEKDAY, match[1], text)}), nth=-1))
        elif match := _NTH_WEEKDAY.match(item):
            found.append(_Day(weekdays=frozenset({_number(_WEEKDAY, match[1], text)}), nth=int(match[2])))
        else:
            plain.append(item)
    if plain:
        found.append(_Day(weekdays=frozenset(_numbers(_WEEKDAY, ",".join(plain), text))))
    return tuple(found)


def _days_of_month(year: int, month: int) -> int:
    """Of a month. `calendar` knows them too, and takes 0.1 MB in every process that loads it."""
    following = date(year + month // 12, month % 12 + 1, 1)
    return (following - date(year, month, 1)).days


def _weekday(year: int, month: int, day: int) -> int:
    """As Quartz counts them: Sunday is 1."""
    return date(year, month, day).isoweekday() % 7 + 1


def _nearest_weekday(year: int, month: int, day: int) -> int:
    weekday, last = date(year, month, day).isoweekday(), _days_of_month(year, month)
    if weekday == 6:
        # Never into another month: from Saturday the 1st to Monday the 3rd.
        return day - 1 if day > 1 else day + 2
    if weekday == 7:
        return day + 1 if day < last else day - 2
    return day


def _wrong(field: _Field, item: str, text: str) -> ConfigError:
    low, high = field.allowed.start, field.allowed.stop - 1
    names = f" or {', '.join(field.names)}" if field.names else ""
    return ConfigError(
        f"the cron expression {text!r}: {item!r} is no {field.what}: allowed are {low} to {high}{names}, lists, ranges and steps"
    )
