"""Which instants a consumer has not seen yet: ranges over completion times.

Rows carry the requested time of the write they come from, and writes do not complete in the order
in which they were requested. So a range chooses instants by completion time, and rows by the list
of these instants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from lakewright.core.commits import SERVICE_OPERATIONS
from lakewright.core.instant import Instant
from lakewright.core.table_config import TableConfig, TableType
from lakewright.errors import InvalidError
from lakewright.table.snapshot import Snapshot

EARLIEST = "earliest"
# A log compaction does not keep the commit times of the rows it moves, but the log files it was
# made of are still there to be read in its place.
_KEEPING_TIMES = SERVICE_OPERATIONS - {"LOG_COMPACT"}
_OVERWRITES = frozenset({"INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE"})


class RangeType(Enum):
    """Whether what completed exactly at the begin is part of a range; what did at the end is."""

    OPEN_CLOSED = "(begin, end]"
    CLOSED_CLOSED = "[begin, end]"


@dataclass(frozen=True)
class QueryContext:
    """The instants of a range, in the order of completion, and where the next range begins.

    `until` is None if the range is open and takes in all that has completed; a limit ends a range
    early. `checkpoint` is the begin if there is nothing new, None if there is nothing at all. Not
    `whole`: instants that brought rows were left out on request. `moved` are services that were
    left out: rows of the range may be where these have put them.
    """

    snapshot: Snapshot
    begin: str | None
    end: str | None
    instants: tuple[Instant, ...]
    until: str | None
    checkpoint: str | None
    whole: bool = True
    moved: tuple[Instant, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing completed in the range."""
        return not self.instants

    @property
    def from_beginning(self) -> bool:
        """Whether the range holds all that came before its end."""
        return self.begin == EARLIEST

    @property
    def is_snapshot(self) -> bool:
        """Whether the answer is simply the table as it is."""
        return self.from_beginning and self.until is None and self.whole

    @property
    def active(self) -> tuple[Instant, ...]:
        """The instants that are on the active timeline."""
        known = self.snapshot.timeline.by_time
        return tuple(i for i in self.instants if i.requested_at in known)

    @property
    def archived(self) -> tuple[Instant, ...]:
        """The instants that are in the archived timeline."""
        known = self.snapshot.timeline.by_time
        return tuple(i for i in self.instants if i.requested_at not in known)

    @property
    def first_completed(self) -> str | None:
        """When the first of the instants completed."""
        return self.instants[0].completed_at if self.instants else None

    @property
    def last_completed(self) -> str | None:
        """When the last of the instants completed."""
        return self.instants[-1].completed_at if self.instants else None

    @cached_property
    def commit_times(self) -> frozenset[str]:
        """What rows of the range carry: the requested times of the instants that brought rows.

        Those of services are not among them: they moved rows of others.
        """
        config = self.snapshot.config
        commits = self.snapshot.commits(self.instants)
        return frozenset(
            instant.requested_at
            for instant, commit in zip(self.instants, commits, strict=True)
            if commit.operation not in _KEEPING_TIMES and not is_compaction(config, instant)
        )


@dataclass(frozen=True, kw_only=True)
class IncrementalQueryAnalyzer:
    """Finds the instants of a range.

    `begin` and `end` are completion times. Without `begin` the range holds the last instant alone;
    `EARLIEST` is the beginning of the table. `limit` counts instants, those that completed first.
    Compactions (of merge-on-read tables), clusterings and overwrites can be left out; the first two
    never add rows of their own.
    """

    snapshot: Snapshot
    begin: str | None = None
    end: str | None = None
    range_type: RangeType = RangeType.OPEN_CLOSED
    limit: int | None = None
    skip_compaction: bool = False
    skip_clustering: bool = False
    skip_insert_overwrite: bool = False

    def analyze(self) -> QueryContext:
        """Look at the timeline, and at as much of its history as the range needs."""
        self._check()
        chosen = self._chosen()
        until = self.end
        if self.limit is not None and self.begin is not None and len(chosen) > self.limit:
            # Two that completed at the same time are not told apart by a checkpoint.
            until = chosen[self.limit - 1].completed_at
            chosen = [i for i in chosen if (i.completed_at or "") <= (until or "")]
        given = None if self.begin == EARLIEST else self.begin
        checkpoint = chosen[-1].completed_at if chosen else given
        moved, brought = self._skipped(chosen)
        kept = tuple(i for i in chosen if i.requested_at not in moved | brought)
        return QueryContext(
            self.snapshot,
            self.begin,
            self.end,
            kept,
            until,
            checkpoint,
            whole=not brought,
            moved=tuple(i for i in chosen if i.requested_at in moved),
        )

    def _check(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise InvalidError("a range of changes holds at least one instant", limit=self.limit)
        if self.begin not in (None, EARLIEST) and self.end is not None and self.begin > self.end:
            raise InvalidError("a range begins after its end", begin=self.begin, end=self.end)

    def _chosen(self) -> list[Instant]:
        """The instants of the range, in the order of completion."""
        timeline = self.snapshot.timeline
        if self.begin is not None:
            since = None if self.begin == EARLIEST else self.begin
            archived = (
                self.snapshot.archived if since is None else self.snapshot.archived_after(since)
            )
            return in_order(
                i for i in (*archived, *timeline.completed_writes) if self._holds(i.completed_at)
            )
        last = [i for i in timeline.by_completion if self._holds(i.completed_at)][-1:]
        # Archiving goes by request: an archived write may have completed after an active one.
        later = (
            self.snapshot.archived_after(last[0].completed_at or "")
            if last
            else self.snapshot.archived
        )
        return in_order((*last, *(i for i in later if self._holds(i.completed_at))))[-1:]

    def _holds(self, completed_at: str | None) -> bool:
        if completed_at is None or (self.end is not None and completed_at > self.end):
            return False
        if self.begin is None or self.begin == EARLIEST:
            return True
        closed = self.range_type is RangeType.CLOSED_CLOSED
        return completed_at >= self.begin if closed else completed_at > self.begin

    def _skipped(self, instants: Sequence[Instant]) -> tuple[set[str], set[str]]:
        """The instants that are left out: those that moved rows, and those that brought some."""
        config = self.snapshot.config
        moved = {
            i.requested_at for i in instants if self.skip_compaction and is_compaction(config, i)
        }
        brought: set[str] = set()
        if self.skip_clustering or self.skip_insert_overwrite:
            replacing = [i for i in instants if i.action == "replacecommit"]
            for instant, commit in zip(replacing, self.snapshot.commits(replacing), strict=True):
                if self.skip_clustering and commit.operation == "CLUSTER":
                    moved.add(instant.requested_at)
                if self.skip_insert_overwrite and commit.operation in _OVERWRITES:
                    brought.add(instant.requested_at)
        return moved, brought


def in_order(instants: Iterable[Instant]) -> list[Instant]:
    """Completed instants in the order of completion."""
    return sorted(instants, key=lambda i: (i.completed_at or "", i.requested_at))


def is_compaction(config: TableConfig, instant: Instant) -> bool:
    """On a table that merges on read nothing else is a commit."""
    return config.table_type is TableType.MERGE_ON_READ and instant.action == "commit"
