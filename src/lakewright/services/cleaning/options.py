"""The options of cleaning, with Hudi's own keys and defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from lakewright.options import at_least, option, parse_bool, parse_word

_UNLIMITED = 2**63 - 1


class CleanPolicy(StrEnum):
    """How long old file slices are retained: by commits, by hours, or by number of slices."""

    COMMITS = "KEEP_LATEST_COMMITS"
    HOURS = "KEEP_LATEST_BY_HOURS"
    VERSIONS = "KEEP_LATEST_FILE_VERSIONS"


class CleanTrigger(StrEnum):
    """The condition that triggers a clean."""

    NUM_COMMITS = "NUM_COMMITS"


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error


def _partitions(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip().strip("/")))


def _hours_or_never(text: str) -> int:
    hours = int(text)
    if hours != -1 and hours < 1:
        raise ValueError("-1 (never), or 1 or more expected")
    return hours


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningSettings:
    """Which file slices a clean retains, and when it runs.

    Whatever the policy, a clean retains the newest slice of every file group, and the slice that a
    query as of the earliest retained commit reads.
    """

    policy: CleanPolicy = option(
        "hoodie.clean.policy",
        CleanPolicy.COMMITS,
        parse=parse_word(CleanPolicy),
        aliases=("hoodie.cleaner.policy",),
        doc="KEEP_LATEST_COMMITS, KEEP_LATEST_BY_HOURS or KEEP_LATEST_FILE_VERSIONS.",
    )
    commits_retained: int = option(
        "hoodie.clean.commits.retained",
        10,
        parse=at_least(1),
        aliases=("hoodie.cleaner.commits.retained",),
        doc="KEEP_LATEST_COMMITS: the table can be read as of each of this many newest commits.",
    )
    hours_retained: int = option(
        "hoodie.clean.hours.retained",
        24,
        parse=at_least(1),
        aliases=("hoodie.cleaner.hours.retained",),
        doc="KEEP_LATEST_BY_HOURS: the table can be read as of each commit of these last hours.",
    )
    versions_retained: int = option(
        "hoodie.clean.fileversions.retained",
        3,
        parse=at_least(1),
        aliases=("hoodie.cleaner.fileversions.retained",),
        doc="KEEP_LATEST_FILE_VERSIONS: how many slices of each file group are kept. Replaced file "
        "groups are deleted at once.",
    )
    trigger: CleanTrigger = option(
        "hoodie.clean.trigger.strategy",
        CleanTrigger.NUM_COMMITS,
        parse=parse_word(CleanTrigger),
        doc="NUM_COMMITS: clean after a number of commits.",
    )
    trigger_commits: int = option(
        "hoodie.clean.trigger.max.commits",
        1,
        parse=at_least(0),
        aliases=("hoodie.clean.max.commits",),
        doc="Clean when this many commits have completed since the last clean.",
    )
    incremental: bool = option(
        "hoodie.clean.incremental.enabled",
        True,
        parse=parse_bool,
        aliases=("hoodie.cleaner.incremental.mode",),
        doc="Check only partitions in which files can have become deletable since the last clean. "
        "If off, or if the last clean does not record enough, all partitions are listed.",
    )
    partition_regex: re.Pattern[str] | None = option(
        "hoodie.clean.partition.filter.regex",
        None,
        parse=_pattern,
        aliases=("hoodie.cleaner.partition.filter.regex",),
        doc="Clean only partitions whose whole path matches.",
    )
    partitions_selected: tuple[str, ...] = option(
        "hoodie.clean.partition.filter.selected",
        (),
        parse=_partitions,
        aliases=("hoodie.cleaner.partition.filter.selected",),
        doc="Clean only these partitions, separated by commas; overrides the regular expression.",
    )
    max_commits_to_clean: int = option(
        "hoodie.clean.max.commits.to.clean",
        _UNLIMITED,
        parse=at_least(1),
        doc="A clean advances the earliest retained commit by at most this many commits; the next "
        "clean continues from there. Not for KEEP_LATEST_FILE_VERSIONS.",
    )
    empty_interval_hours: int = option(
        "hoodie.write.empty.clean.interval.hours",
        -1,
        parse=_hours_or_never,
        doc="Record a clean that deletes nothing when the last clean is this old; -1: only where "
        "that saves the next clean much work.",
    )
    allow_multiple: bool = option(
        "hoodie.clean.multiple.enabled",
        False,
        parse=parse_bool,
        aliases=("hoodie.clean.allow.multiple",),
        doc="Plan a clean while another one is pending.",
    )

    @property
    def is_filtered(self) -> bool:
        """Whether only some of the partitions are to be cleaned."""
        return bool(self.partitions_selected) or self.partition_regex is not None

    def selects(self, partition: str) -> bool:
        """Whether the filters include a partition."""
        if self.partitions_selected:
            return partition in self.partitions_selected
        return self.partition_regex is None or bool(self.partition_regex.fullmatch(partition))
