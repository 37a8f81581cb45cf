"""Date patterns as key generators use them: letters for parts of a date, quotes around plain text.

They are the patterns of Joda-Time. Names of months and days are English ones, and letters for eras,
centuries and names of time zones are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from lakewright.errors import InvalidError, UnsupportedError

_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET = re.compile(r"GMT([+-])(\d{1,2})(?::?(\d{2}))?")
_NUMERIC = frozenset("yYxMdDewhHkKmsS")
_TOKEN = re.compile(r"([A-Za-z])\1*|'((?:[^']|'')*)'|[^A-Za-z']+")


def zone(name: str) -> tzinfo:
    """A time zone by its name, or by its distance from Greenwich as in `GMT+8:00`."""
    found = _OFFSET.fullmatch(name)
    if found is not None:
        distance = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
        return timezone(-distance if found[1] == "-" else distance)
    if name in ("UTC", "GMT", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise InvalidError("unknown time zone", zone=name) from error


@dataclass(frozen=True, slots=True)
class DatePattern:
    """One pattern, taken apart: runs of a letter with their length, and plain text."""

    text: str
    tokens: tuple[tuple[str, int], ...]

    @property
    def finest_millis(self) -> int:
        """Times that agree down to this many milliseconds, at most a second, look the same."""
        return 1 if any(token == "S" for token, length in self.tokens if length) else 1000

    @property
    def shows_minutes(self) -> bool:
        """Whether minutes or anything below can be seen."""
        return any(token in "mSsZ" for token, length in self.tokens if length)

    def format(self, millis: int, where: tzinfo) -> str:
        """The text of a moment in a time zone."""
        try:
            moment = (_EPOCH + timedelta(milliseconds=millis)).astimezone(where)
        except OverflowError as error:
            raise InvalidError("a time is beyond the year 9999", millis=millis) from error
        return "".join(
            _FORMATTERS[token](moment, length) if length else token for token, length in self.tokens
        )

    def parse(self, text: str, where: tzinfo | None) -> tuple[int, tzinfo] | None:
        """The moment in milliseconds and its time zone; None if the text breaks the pattern.

        The zone is `where`; without it the one that the text names, or UTC.
        """
        found = _regex(self).fullmatch(text)
        return None if found is None else _moment(found.groupdict(), where)


@lru_cache(maxsize=64)
def date_pattern(text: str) -> DatePattern:
    """Take a pattern apart."""
    tokens = tuple(_tokens(text))
    if not tokens:
        raise InvalidError("a date pattern is empty")
    unknown = sorted({token for token, length in tokens if length and token not in _FORMATTERS})
    if unknown or any(token == "Z" and length > 2 for token, length in tokens):
        raise UnsupportedError("a date pattern has unknown letters", pattern=text, letters=unknown)
    return DatePattern(text, tokens)


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise InvalidError("a date pattern has an open quote", pattern=text)
        if found[1]:
            yield found[1], len(found[0])
        else:
            quoted = found[2]
            yield found[0] if quoted is None else quoted.replace("''", "'") or "'", 0
        at = found.end()


def _padded(part: Callable[[datetime], int]) -> Callable[[datetime, int], str]:
    return lambda moment, length: str(part(moment)).zfill(length)


def _year(part: Callable[[datetime], int]) -> Callable[[datetime, int], str]:
    def text(moment: datetime, length: int) -> str:
        year = part(moment)
        return f"{year % 100:02d}" if length == 2 else str(year).zfill(length)

    return text


def _month(moment: datetime, length: int) -> str:
    if length < 3:
        return str(moment.month).zfill(length)
    name = _MONTHS[moment.month - 1]
    return name if length > 3 else name[:3]


def _day_name(moment: datetime, length: int) -> str:
    name = _DAYS[moment.weekday()]
    return name if length > 3 else name[:3]


def _fraction(moment: datetime, length: int) -> str:
    return f"{moment.microsecond:06d}".ljust(length, "0")[:length]


def _distance(moment: datetime, length: int) -> str:
    text = moment.strftime("%z")[:5]
    return text if length == 1 else f"{text[:3]}:{text[3:]}"


_FORMATTERS: dict[str, Callable[[datetime, int], str]] = {
    "y": _year(lambda m: m.year),
    "Y": _year(lambda m: m.year),
    "x": _year(lambda m: m.isocalendar().year),
    "M": _month,
    "d": _padded(lambda m: m.day),
    "D": _padded(lambda m: m.timetuple().tm_yday),
    "E": _day_name,
    "e": _padded(lambda m: m.isoweekday()),
    "w": _padded(lambda m: m.isocalendar().week),
    "a": lambda m, _: "AM" if m.hour < 12 else "PM",
    "h": _padded(lambda m: (m.hour - 1) % 12 + 1),
    "H": _padded(lambda m: m.hour),
    "k": _padded(lambda m: m.hour or 24),
    "K": _padded(lambda m: m.hour % 12),
    "m": _padded(lambda m: m.minute),
    "s": _padded(lambda m: m.second),
    "S": _fraction,
    "Z": _distance,
}
_PARSED = frozenset("yMdHhamsSZ")


@lru_cache(maxsize=64)
def _regex(pattern: DatePattern) -> re.Pattern[str]:
    parts = []
    seen: set[str] = set()
    following = [*pattern.tokens[1:], ("", 0)]
    for (token, length), (after, after_length) in zip(pattern.tokens, following, strict=True):
        if not length:
            parts.append(re.escape(token))
            continue
        if token not in _PARSED or token in seen:
            raise UnsupportedError("dates of this pattern cannot be read", pattern=pattern.text)
        seen.add(token)
        adjacent = after_length > 0 and after in _NUMERIC
        parts.append(f"(?P<{token}>{_part_regex(token, length, adjacent=adjacent)})")
    return re.compile("".join(parts), re.IGNORECASE | re.ASCII)


def _part_regex(token: str, length: int, *, adjacent: bool) -> str:
    if token == "y":
        return rf"\d{{{length}}}" if adjacent or length == 2 else r"\d{1,4}"
    if token == "M" and length > 2:
        return "|".join([*_MONTHS, *(name[:3] for name in _MONTHS)])
    if token == "a":
        return "AM|PM"
    if token == "S":
        return rf"\d{{1,{length}}}"
    if token == "Z":
        return r"Z|[+-]\d{2}(?::?\d{2})?"
    return r"\d{1,2}"


def _moment(parts: dict[str, str], where: tzinfo | None) -> tuple[int, tzinfo] | None:
    year = int(parts.get("y", "1970"))
    if len(parts.get("y", "1970")) == 2:
        year += 2000
    fraction = parts.get("S", "0").ljust(6, "0")[:6]
    try:
        named = _parsed_offset(parts["Z"]) if "Z" in parts else None
        moment = datetime(
            year,
            _month_number(parts.get("M", "1")),
            int(parts.get("d", "1")),
            _hour(parts),
            int(parts.get("m", "0")),
            int(parts.get("s", "0")),
            int(fraction),
            named or where or UTC,
        )
    except ValueError:
        return None
    return (moment - _EPOCH) // timedelta(milliseconds=1), where or named or UTC


def _month_number(text: str) -> int:
    if text.isdigit():
        return int(text)
    return [name[:3].lower() for name in _MONTHS].index(text[:3].lower()) + 1


def _hour(parts: dict[str, str]) -> int:
    if "H" in parts:
        return int(parts["H"])
    if "h" not in parts:
        return 0
    hour = int(parts["h"])
    if not 1 <= hour <= 12:
        raise ValueError(hour)
    return hour % 12 + (12 if parts.get("a", "AM").upper() == "PM" else 0)


def _parsed_offset(text: str) -> tzinfo:
    if text.upper() == "Z":
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    distance = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-distance if text[0] == "-" else distance)
