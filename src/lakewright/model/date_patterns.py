"""The date patterns of key generators: letters for parts of a date, quotes around literal text.

These are Joda-Time patterns. Names of months and days are English; letters for eras, centuries and
names of time zones are not supported.
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
_NUMERIC_LETTERS = frozenset("yYxMdDewhHkKmsS")
_TOKEN = re.compile(r"([A-Za-z])\1*|'((?:[^']|'')*)'|[^A-Za-z']+")


def zone(name: str) -> tzinfo:
    """Return a time zone by its name, or by its UTC offset as in `GMT+8:00`."""
    match = _OFFSET.fullmatch(name)
    if match is not None:
        offset = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
        return timezone(-offset if match[1] == "-" else offset)
    if name in ("UTC", "GMT", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise InvalidError("unknown time zone", zone=name) from error


@dataclass(frozen=True, slots=True)
class DatePattern:
    """A parsed pattern: (letter, length of its run) tokens, and (text, 0) for literal text."""

    text: str
    tokens: tuple[tuple[str, int], ...]

    @property
    def finest_millis(self) -> int:
        """The smallest difference in milliseconds, at most a second, that formatted times show."""
        return 1 if any(token == "S" for token, length in self.tokens if length) else 1000

    @property
    def shows_minutes(self) -> bool:
        """Whether formatted times show minutes or smaller units, or a UTC offset."""
        return any(token in "mSsZ" for token, length in self.tokens if length)

    def format(self, millis: int, zone: tzinfo) -> str:
        """Return a time, in milliseconds since 1970, as text in a time zone."""
        try:
            moment = (_EPOCH + timedelta(milliseconds=millis)).astimezone(zone)
        except OverflowError as error:
            raise InvalidError("a time is beyond the year 9999", millis=millis) from error
        return "".join(
            _FORMATTERS[token](moment, length) if length else token for token, length in self.tokens
        )

    def parse(self, text: str, zone: tzinfo | None) -> tuple[int, tzinfo] | None:
        """Return the time in milliseconds and its time zone; None if the text does not match.

        The zone is `zone` if given, else the one that the text names, else UTC.
        """
        match = _regex(self).fullmatch(text)
        return None if match is None else _moment(match.groupdict(), zone)


@lru_cache(maxsize=64)
def date_pattern(text: str) -> DatePattern:
    """Parse a pattern."""
    tokens = tuple(_tokens(text))
    if not tokens:
        raise InvalidError("a date pattern is empty")
    unknown = sorted({token for token, length in tokens if length and token not in _FORMATTERS})
    if unknown or any(token == "Z" and length > 2 for token, length in tokens):
        raise UnsupportedError("a date pattern has unknown letters", pattern=text, letters=unknown)
    return DatePattern(text, tokens)


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise InvalidError("a date pattern has an open quote", pattern=text)
        if match[1]:
            yield match[1], len(match[0])
        else:
            quoted = match[2]
            yield match[0] if quoted is None else quoted.replace("''", "'") or "'", 0
        position = match.end()


def _padded(part: Callable[[datetime], int]) -> Callable[[datetime, int], str]:
    return lambda moment, length: str(part(moment)).zfill(length)


def _year(part: Callable[[datetime], int]) -> Callable[[datetime, int], str]:
    def format_year(moment: datetime, length: int) -> str:
        year = part(moment)
        return f"{year % 100:02d}" if length == 2 else str(year).zfill(length)

    return format_year


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


def _offset_text(moment: datetime, length: int) -> str:
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
    "Z": _offset_text,
}
_PARSED_LETTERS = frozenset("yMdHhamsSZ")


@lru_cache(maxsize=64)
def _regex(pattern: DatePattern) -> re.Pattern[str]:
    parts = []
    used: set[str] = set()
    next_tokens = [*pattern.tokens[1:], ("", 0)]
    for (token, length), (next_token, next_length) in zip(pattern.tokens, next_tokens, strict=True):
        if not length:
            parts.append(re.escape(token))
            continue
        if token not in _PARSED_LETTERS or token in used:
            raise UnsupportedError("dates of this pattern cannot be read", pattern=pattern.text)
        used.add(token)
        adjacent = next_length > 0 and next_token in _NUMERIC_LETTERS
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


def _moment(parts: dict[str, str], time_zone: tzinfo | None) -> tuple[int, tzinfo] | None:
    year = int(parts.get("y", "1970"))
    if len(parts.get("y", "1970")) == 2:
        year += 2000
    fraction = parts.get("S", "0").ljust(6, "0")[:6]
    try:
        text_zone = _parsed_offset(parts["Z"]) if "Z" in parts else None
        moment = datetime(
            year,
            _month_number(parts.get("M", "1")),
            int(parts.get("d", "1")),
            _hour(parts),
            int(parts.get("m", "0")),
            int(parts.get("s", "0")),
            int(fraction),
            text_zone or time_zone or UTC,
        )
    except ValueError:
        return None
    return (moment - _EPOCH) // timedelta(milliseconds=1), time_zone or text_zone or UTC


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
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)
