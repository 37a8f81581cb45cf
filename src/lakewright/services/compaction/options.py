"""The options of compaction, with Hudi's keys and defaults, and the parsers of their values.

The event time threshold of a compaction is a fixed time, or derived from the present: less the
allowed lateness, rounded down to a full hour or day.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lakewright.errors import InvalidError
from lakewright.model.instant import full_time, is_time
from lakewright.options import (
    at_least,
    option,
    parse_bool,
    parse_choice,
    parse_duration,
    parse_word,
)
from lakewright.services.planning import LogPlanningSettings, missing_seconds_option

_UNITS = ("hour", "day")


@dataclass(frozen=True, slots=True)
class ThresholdRounding:
    """Rounds a moment down to the start of its hour or day, in a time zone."""

    unit: str
    zone: tzinfo = UTC

    def round_down(self, moment: datetime) -> datetime:
        """Return the start of the hour or day that a moment lies in."""
        local = moment.astimezone(self.zone)
        hour = local.replace(minute=0, second=0, microsecond=0)
        return hour.replace(hour=0, fold=0) if self.unit == "day" else hour


def parse_rounding(text: str) -> ThresholdRounding:
    """Parse `hour` or `day`, and the name of a time zone after a blank or a comma."""
    unit, *zones = text.replace(",", " ").split() or [""]
    if unit.lower() not in _UNITS or len(zones) > 1:
        raise ValueError("hour or day expected, with or without a zone, such as day Europe/Berlin")
    try:
        zone: tzinfo = ZoneInfo(zones[0]) if zones else UTC
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"no such zone: {zones[0]}") from error
    return ThresholdRounding(unit.lower(), zone)


def parse_threshold(text: str) -> str:
    """Validate an instant, which is returned in full length, or an ISO time with its zone."""
    if is_time(text.strip()):
        return full_time(text.strip())
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        raise ValueError("a time with its zone expected, such as 2026-01-31T00:00:00Z")
    return moment.isoformat()


def earlier(moment: datetime, lateness_ms: int | None, floor: ThresholdRounding | None) -> datetime:
    """Return a moment less the allowed lateness, rounded down; InvalidError if before year 1."""
    try:
        # In UTC: local time is not even where daylight saving begins or ends.
        latest = moment.astimezone(UTC) - timedelta(milliseconds=lateness_ms or 0)
        return floor.round_down(latest) if floor is not None else latest
    except OverflowError as error:
        raise InvalidError(
            "the threshold lies before year 1: give a shorter lateness",
            option="hoodie.compaction.event.time.lateness",
            lateness_ms=lateness_ms,
        ) from error


TRIGGER = "hoodie.compact.inline.trigger.strategy"
OLDEST_DEBT_FIRST = "oldest_debt_first"


class CompactionTrigger(StrEnum):
    """When a compaction is due, by Hudi's names."""

    NUM_COMMITS = "NUM_COMMITS"
    NUM_COMMITS_AFTER_LAST_REQUEST = "NUM_COMMITS_AFTER_LAST_REQUEST"
    TIME_ELAPSED = "TIME_ELAPSED"
    NUM_AND_TIME = "NUM_AND_TIME"
    NUM_OR_TIME = "NUM_OR_TIME"


def _parse_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("the name of a strategy expected, or several with commas between them")
    return names


def _parse_pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings(LogPlanningSettings):
    """When a compaction is due, and which file groups it compacts."""

    strategies: tuple[str, ...] = option(
        "hoodie.compaction.strategy",
        ("log_file_size",),
        parse=_parse_names,
        doc="Which file groups are compacted: `log_file_size`, `log_file_num`, `bounded_io`, "
        "`unbounded`, `day_based`, `bounded_partition`, `unbounded_partition`, `partition_regex`, "
        "`event_time`, or the name of Hudi's class. Several, separated by commas, are applied in "
        "order: each selects from what the one before has selected.",
    )
    target_io_mb: int = option(
        "hoodie.compaction.target.io",
        512_000,
        parse=at_least(1),
        doc="How many megabytes a compaction reads and writes, for strategies with a budget. The "
        "file group that exceeds it is the last one.",
    )
    log_size_threshold: int = option(
        "hoodie.compaction.logfile.size.threshold",
        0,
        parse=at_least(0),
        doc="`log_file_size` skips file groups with fewer bytes in their log files.",
    )
    log_count_threshold: int = option(
        "hoodie.compaction.logfile.num.threshold",
        0,
        parse=at_least(0),
        doc="`log_file_num` skips file groups with fewer log files.",
    )
    target_partitions: int = option(
        "hoodie.compaction.daybased.target.partitions",
        10,
        parse=at_least(1),
        doc="`day_based` compacts this many partitions, the latest days first; `bounded_partition` "
        "those from this many days before today on, and `unbounded_partition` the others.",
    )
    partition_pattern: re.Pattern[str] | None = option(
        "hoodie.compaction.partition.path.regex",
        None,
        parse=_parse_pattern,
        doc="`partition_regex` compacts the partitions in whose path this pattern is found.",
    )
    threshold: str | None = option(
        "hoodie.compaction.event.time.threshold",
        None,
        parse=parse_threshold,
        doc="`event_time` compacts rows with event times before this: a time with its zone, such "
        "as 2026-01-31T00:00:00Z, or an instant.",
    )
    lateness_ms: int | None = option(
        "hoodie.compaction.event.time.lateness",
        None,
        parse=parse_duration,
        doc="`event_time` compacts rows with event times longer ago than this, such as 2h.",
    )
    rounding: ThresholdRounding | None = option(
        "hoodie.compaction.event.time.floor",
        None,
        parse=parse_rounding,
        doc="`event_time` compacts rows with event times before the last full `hour` or `day`, in "
        "UTC or in a zone, as in `day Europe/Berlin`. A lateness is subtracted first.",
    )
    exact_split: bool = option(
        "hoodie.compaction.event.time.exact.split",
        False,
        parse=parse_bool,
        doc="Whether `event_time` leaves rows from the threshold on out of base files: they stay "
        "in a log file. Requires EVENT_TIME_ORDERING.",
    )
    order: str = option(
        "lakewright.compaction.order",
        "strategy",
        parse=parse_choice("strategy", OLDEST_DEBT_FIRST),
        doc="Which file groups a budget is spent on first: those that the `strategy` prefers, or "
        "`oldest_debt_first`, those with the oldest uncompacted log files.",
    )
    max_operations: int = option(
        "lakewright.compaction.plan.operations",
        0,
        parse=at_least(0),
        doc="How many file groups one plan has at most; 0: as many as the strategy chooses. "
        "The next plan continues with the others.",
    )
    trigger: CompactionTrigger = option(
        TRIGGER,
        CompactionTrigger.NUM_COMMITS,
        parse=parse_word(CompactionTrigger),
        doc="When a compaction is due: NUM_COMMITS and TIME_ELAPSED since the last completed one, "
        "both (NUM_AND_TIME) or one of them (NUM_OR_TIME), or NUM_COMMITS_AFTER_LAST_REQUEST.",
    )
    max_delta_commits: int = option(
        "hoodie.compact.inline.max.delta.commits",
        5,
        parse=at_least(0),
        doc="How many completed delta commits make a compaction due; 0: it is always due.",
    )
    max_delta_seconds: int = option(
        "hoodie.compact.inline.max.delta.seconds",
        3_600,
        parse=at_least(0),
        doc="How many seconds after the last one a compaction is due.",
    )
    missing_seconds: int = missing_seconds_option()
