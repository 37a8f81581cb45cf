"""Where in the past a compaction stands that leaves newer log files out. Pure.

A reader attaches a log file to the slice with the greatest base instant that is not above the log
file's completion time. So the instant X of the new base files decides which log files are in them:
those of a file group that completed before X, all of them and no others. For every reader to see
the same rows at every moment, X must lie in a gap between writes of each group: above the
completion of what is in, and below the beginning of what is not. Where writes overlap, X moves up
until it is in a gap, and the plan takes more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from lakewright.core.files import LogFile
from lakewright.core.slices import FileSlice
from lakewright.table.times import following


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What is known of a log file: when its write completed, and its least event time, if told.

    One that `repeats` was written by a service: it holds versions that older files hold, too.
    """

    completed_at: str
    least: int | None = None
    greatest: int | None = None
    repeats: bool = False
    rows: int | None = None

    @property
    def order(self) -> float:
        """Sorts by what happened first; what nobody waits for comes last."""
        return inf if self.least is None else self.least

    def is_before(self, threshold_ms: int) -> bool:
        """Whether it may hold something that happened before a time."""
        return not self.is_applied and (self.least is None or self.least < threshold_ms)

    @property
    def is_applied(self) -> bool:
        """Whether it holds nothing but deletes that are in the base file as well."""
        return self.repeats and self.rows == 0 and self.least is None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A file group, and what is known of each of its log files, in their order.

    `base_greatest` is the greatest event time in the base file, where the timeline tells it.
    """

    slice: FileSlice
    facts: tuple[LogFacts, ...]
    base_completed_at: str = ""
    base_greatest: int | None = None

    def until(self, instant: str) -> FileSlice:
        """The slice as a base file at an instant folds it."""
        pairs = zip(self.slice.logs, self.facts, strict=True)
        kept = tuple(log for log, facts in pairs if facts.completed_at < instant)
        return replace(self.slice, logs=kept)

    def floor(self, threshold_ms: int) -> str:
        """The time above which a base file must lie that holds all before a threshold."""
        held = (f.completed_at for f in self.facts if f.repeats or f.is_before(threshold_ms))
        return max((self.slice.base_instant, self.base_completed_at, *held))

    def is_before(self, threshold_ms: int) -> bool:
        """Whether some log file may hold something that happened before a time."""
        return any(facts.is_before(threshold_ms) for facts in self.facts)

    def is_beyond(self, threshold_ms: int) -> bool:
        """Whether the base file is known to hold something from a time on."""
        return self.base_greatest is not None and self.base_greatest >= threshold_ms

    def earliest(self) -> tuple[LogFile, LogFacts]:
        """The log file that holds what happened first."""
        pairs = list(zip(self.slice.logs, self.facts, strict=True))
        return min(pairs, key=lambda pair: pair[1].order)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the timeline demands of the instant of a plan.

    It stays above `above`, below the first write that is `pending`, and takes no time that is
    `taken`. `now` is the instant of an ordinary compaction.
    """

    now: str
    above: str = ""
    pending: str | None = None
    taken: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """The instant of a plan; `reason` tells why it could not be in the past."""

    instant: str
    reason: str | None = None


def place(groups: Sequence[Waiting], threshold_ms: int, around: Surroundings) -> Placement:
    """The least instant whose base files hold everything before a threshold, for any reader."""
    floors = (group.floor(threshold_ms) for group in groups)
    instant = _free(following(max((around.above, *floors))), around)
    for began, completed in _spans(groups):
        if began > instant:
            break
        if completed >= instant:
            instant = _free(following(completed), around)
    if instant >= around.now:
        return Placement(around.now, "writes overlap up to now")
    if around.pending is not None and around.pending <= instant:
        return Placement(around.now, f"write {around.pending} is still under way")
    return Placement(instant)


def _spans(groups: Iterable[Waiting]) -> list[tuple[str, str]]:
    """When the writes of all log files began and completed, by their beginning."""
    return sorted(
        {
            (log.instant, facts.completed_at)
            for group in groups
            for log, facts in zip(group.slice.logs, group.facts, strict=True)
        }
    )


def _free(instant: str, around: Surroundings) -> str:
    while instant in around.taken:
        instant = following(instant)
    return instant
