"""The time that a partition path names: a day, or an hour.

`partition_day` and `partition_end` recognize days at the beginning of a path in several formats;
`PathTime` parses one configured format at a configured level and guesses nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

from lakewright.errors import InvalidError
from lakewright.model.instant import moment_ms
from lakewright.model.partition_paths import DEFAULT_PARTITION

_NAME_PREFIX = re.compile(r"(^|/)[^/]*?=")
_DAY = re.compile(r"(\d{4})([/-])(\d{1,2})\2(\d{1,2})(?!\d)|(\d{4})(\d{2})(\d{2})(?!\d)")
_HOUR = re.compile(r"[/-](\d{1,2})(?=/|$)")


def partition_day(path: str) -> date | None:
    """Return the day that a partition path begins with; None if it begins with no day.

    Hudi recognizes `2026/01/31`, also as `year=2026/month=01/day=31`, and with further levels after
    it. This function also recognizes `2026-01-31` and `20260131`.
    """
    match = _DAY.match(_NAME_PREFIX.sub(r"\1", path))
    return _date(match) if match is not None else None


def _date(match: re.Match[str]) -> date | None:
    year, _, month, day, *compact = match.groups()
    try:
        return date(*map(int, (year, month, day) if year else compact))
    except ValueError:
        return None


def partition_end(path: str, zone: tzinfo, interval_ms: int | None = None) -> int | None:
    """Return when the time of a partition ends, in milliseconds since 1970; None if it has none.

    Its length is `interval_ms` if given, else an hour if the path names one (`2026-01-31/05`,
    `day=2026-01-31/hour=05`), else a day. It is a length of local time: the path of an hour that
    daylight saving repeats stands for both, and a day may have 23 or 25 hours.
    """
    values = _NAME_PREFIX.sub(r"\1", path)
    match = _DAY.match(values)
    day = _date(match) if match is not None else None
    if match is None or day is None:
        return None
    hour = _HOUR.match(values[match.end() :])
    start = datetime(day.year, day.month, day.day, tzinfo=zone)
    length = timedelta(days=1)
    if hour is not None and int(hour[1]) < 24:
        start, length = start.replace(hour=int(hour[1])), timedelta(hours=1)
    if interval_ms is not None:
        length = timedelta(milliseconds=interval_ms)
    try:
        return moment_ms(start + length)
    except OverflowError:  # the calendar ends with year 9999
        return moment_ms(start) + length // timedelta(milliseconds=1)


# Times in a configured format.

# Python's formats by those of Java; a slash begins the next level of the path.
_FORMATS = {
    "yyyy-MM-dd": "%Y-%m-%d",
    "yyyyMMdd": "%Y%m%d",
    "yyyy-MM-dd/HH": "%Y-%m-%d/%H",
    "yyyyMMdd/HH": "%Y%m%d/%H",
}
_LENGTHS = {"%Y-%m-%d": 10, "%Y%m%d": 8, "%H": 2}


@dataclass(frozen=True, slots=True)
class PathTime:
    """The position and format of a time in partition paths; `start` is its first level, from 0."""

    format: str = "yyyy-MM-dd"
    start: int = 0

    def __post_init__(self) -> None:
        if self.format not in _FORMATS:
            raise InvalidError(
                "a time in a path has another format", format=self.format, known=list(_FORMATS)
            )
        if self.start < 0:
            raise InvalidError("the levels of a path are counted from 0 on", index=self.start)

    @property
    def levels(self) -> int:
        """The number of path levels that the time spans.

        >>> PathTime("yyyyMMdd").levels, PathTime("yyyy-MM-dd/HH", 1).levels
        (1, 2)
        """
        return self.format.count("/") + 1

    def parse(self, partition: str, *, hive_style: bool) -> datetime | None:
        """Return the start of a partition's day or hour; None for the default partition.

        Raises:
            InvalidError: the path has no time in this format at this position.
        """
        levels = partition.split("/")[self.start : self.start + self.levels]
        if len(levels) < self.levels:
            raise self._error("the path of a partition has too few levels", partition)
        values = []
        for level in levels:
            name, equals, value = level.partition("=")
            if hive_style != bool(equals):
                raise self._error(
                    "the path of a partition is not in the style of the table", partition
                )
            values.append(value if hive_style else name)
        if DEFAULT_PARTITION in values:
            return None
        return self._parse(values, partition)

    def _parse(self, values: list[str], partition: str) -> datetime:
        patterns = _FORMATS[self.format].split("/")
        # Python parses a month without leading zero; Java does not.
        has_full_length = all(len(v) == _LENGTHS[p] for v, p in zip(values, patterns, strict=True))
        try:
            if not has_full_length:
                raise ValueError("of another length")
            return datetime.strptime("/".join(values), _FORMATS[self.format]).replace(tzinfo=UTC)
        except ValueError as error:
            raise self._error("the path of a partition names no time", partition) from error

    def _error(self, message: str, partition: str) -> InvalidError:
        return InvalidError(
            f"{message}: set the options of its event time right, or select partitions",
            partition=partition,
            format=self.format,
            start_index=self.start,
        )
