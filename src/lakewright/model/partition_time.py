"""The time that a partition's path names: a day, or an hour of it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

from lakewright.errors import InvalidError
from lakewright.model.partition_paths import DEFAULT_PARTITION

_NAMED = re.compile(r"(^|/)[^/]*?=")
_DAY = re.compile(r"(\d{4})([/-])(\d{1,2})\2(\d{1,2})(?!\d)|(\d{4})(\d{2})(\d{2})(?!\d)")
_HOUR = re.compile(r"[/-](\d{1,2})(?=/|$)")


def partition_day(path: str) -> date | None:
    """The day that a partition path begins with; None if it does not.

    Hudi knows `2026/01/31`, also with names as in `year=2026/month=01/day=31`, and with further
    levels behind. `2026-01-31` and `20260131` are days here as well.
    """
    found = _DAY.match(_NAMED.sub(r"\1", path))
    return _date(found) if found is not None else None


def _date(found: re.Match[str]) -> date | None:
    year, _, month, day, *compact = found.groups()
    try:
        return date(*map(int, (year, month, day) if year else compact))
    except ValueError:
        return None


def partition_end(path: str, zone: tzinfo, interval_ms: int | None = None) -> int | None:
    """When the time of a partition is over, in milliseconds since 1970; None if it names none.

    It lasts an hour if the path names one (`2026-01-31/05`, `day=2026-01-31/hour=05`), else a day;
    or as long as is said.
    """
    plain = _NAMED.sub(r"\1", path)
    found = _DAY.match(plain)
    day = _date(found) if found is not None else None
    if found is None or day is None:
        return None
    hour = _HOUR.match(plain[found.end() :])
    start = datetime(day.year, day.month, day.day, tzinfo=zone)
    length = timedelta(days=1)
    if hour is not None and int(hour[1]) < 24:
        start, length = start.replace(hour=int(hour[1])), timedelta(hours=1)
    if interval_ms is not None:
        return round(start.timestamp() * 1000) + interval_ms
    return round((start + length).timestamp() * 1000)


# ------------------------------------------------------------------------------------------------
# The time that the path of a partition tells: a day, or an hour, in one of its levels. Pure.


# By the names that Java's formatter has for them; a slash begins the next level of the path.
_FORMATS = {
    "yyyy-MM-dd": "%Y-%m-%d",
    "yyyyMMdd": "%Y%m%d",
    "yyyy-MM-dd/HH": "%Y-%m-%d/%H",
    "yyyyMMdd/HH": "%Y%m%d/%H",
}
_LENGTHS = {"%Y-%m-%d": 10, "%Y%m%d": 8, "%H": 2}


@dataclass(frozen=True, slots=True)
class PathTime:
    """Where in a path a time stands, and how: `start` is the first level of it, from 0 on."""

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
        """How many levels of a path the time takes.

        >>> PathTime("yyyyMMdd").levels, PathTime("yyyy-MM-dd/HH", 1).levels
        (1, 2)
        """
        return self.format.count("/") + 1

    def of(self, partition: str, *, hive_style: bool) -> datetime | None:
        """The beginning of the day or hour of a partition; None for the partition without value.

        Raises:
            InvalidError: the path tells no such time: nothing is guessed.
        """
        levels = partition.split("/")[self.start : self.start + self.levels]
        if len(levels) < self.levels:
            raise self._refused("the path of a partition has too few levels", partition)
        values = []
        for level in levels:
            name, equals, value = level.partition("=")
            if hive_style != bool(equals):
                raise self._refused(
                    "the path of a partition is not in the style of the table", partition
                )
            values.append(value if hive_style else name)
        if DEFAULT_PARTITION in values:
            return None
        return self._parsed(values, partition)

    def _parsed(self, values: list[str], partition: str) -> datetime:
        patterns = _FORMATS[self.format].split("/")
        # Python takes a month without its zero; Java does not.
        whole = all(len(v) == _LENGTHS[p] for v, p in zip(values, patterns, strict=True))
        try:
            if not whole:
                raise ValueError("of another length")
            return datetime.strptime("/".join(values), _FORMATS[self.format]).replace(tzinfo=UTC)
        except ValueError as error:
            raise self._refused("the path of a partition tells no time", partition) from error

    def _refused(self, message: str, partition: str) -> InvalidError:
        return InvalidError(
            f"{message}: set the options of its event time right, or select partitions",
            partition=partition,
            format=self.format,
            start_index=self.start,
        )
