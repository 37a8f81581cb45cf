"""Which instants a consumer has not seen yet: ranges over completion times.

Rows carry the requested time of the write they come from, and writes do not complete in the order
in which they were requested. So a range chooses instants by completion time, and rows by the list
of these instants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import pyarrow as pa

from lakewright.errors import InvalidError
from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CommitMetadata
from lakewright.model.file_group import (
    BaseFile,
    FileSlice,
    GroupKey,
    LogFile,
    TimelineView,
    parse_data_file,
)
from lakewright.model.instant import Instant, InstantTime
from lakewright.model.schema import META_FIELDS
from lakewright.model.table_config import TableConfig, TableType
from lakewright.scan.scan_plan import ScanPlan, path_columns, plan_scan
from lakewright.storage.base import join_path, split_path
from lakewright.table.snapshot import (
    FilesByPartition,
    Snapshot,
    files_being_cleaned,
    files_of_slice,
)

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
            return in_completion_order(
                i for i in (*archived, *timeline.completed_writes) if self._holds(i.completed_at)
            )
        last = [i for i in timeline.by_completion if self._holds(i.completed_at)][-1:]
        # Archiving goes by request: an archived write may have completed after an active one.
        later = (
            self.snapshot.archived_after(last[0].completed_at or "")
            if last
            else self.snapshot.archived
        )
        return in_completion_order((*last, *(i for i in later if self._holds(i.completed_at))))[-1:]

    def _holds(self, completed_at: InstantTime | None) -> bool:
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


def in_completion_order(instants: Iterable[Instant]) -> list[Instant]:
    """Completed instants in the order of completion."""
    return sorted(instants, key=lambda i: (i.completed_at or "", i.requested_at))


def is_compaction(config: TableConfig, instant: Instant) -> bool:
    """On a table that merges on read nothing else is a commit."""
    return config.table_type is TableType.MERGE_ON_READ and instant.action == "commit"


# ------------------------------------------------------------------------------------------------
# The queries on a table: from a snapshot and what was asked for to a plan.


@dataclass(frozen=True)
class IncrementalScan:
    """An incremental query: the instants of its range, and how to read their rows."""

    context: QueryContext
    plan: ScanPlan


def plan_snapshot(
    snapshot: Snapshot,
    *,
    as_of: str | None = None,
    columns: Sequence[str] | None = None,
    partitions: Iterable[str] | None = None,
) -> ScanPlan:
    """The table as it is, or as it was when the instant `as_of` was the newest request.

    With `partitions` only these are listed and read.
    """
    view = _as_of(snapshot, as_of)
    slices = [
        group.latest_merged_slice() for group in snapshot.groups(view, snapshot.files(partitions))
    ]
    return _plan(snapshot.config, snapshot.schema(view), slices, columns)


def plan_read_optimized(
    snapshot: Snapshot,
    *,
    as_of: str | None = None,
    columns: Sequence[str] | None = None,
    partitions: Iterable[str] | None = None,
) -> ScanPlan:
    """The newest base files alone: fast, and as old as the last compaction.

    With `partitions` only these are listed and read.
    """
    view = _as_of(snapshot, as_of)
    newest = [
        group.latest_base_slice() for group in snapshot.groups(view, snapshot.files(partitions))
    ]
    slices = [item for item in newest if item is not None]
    return _plan(snapshot.config, snapshot.schema(view), slices, columns)


def plan_changes(
    snapshot: Snapshot,
    *,
    since: str | None = None,
    until: str | None = None,
    limit: int | None = None,
    columns: Sequence[str] | None = None,
    fallback: bool = True,
) -> IncrementalScan:
    """The rows that instants which completed in (since, until] wrote, as of `until`.

    Without `since` these are all rows as of `until`.
    """
    analyzer = IncrementalQueryAnalyzer(
        snapshot=snapshot, begin=since or EARLIEST, end=until, limit=limit
    )
    context = analyzer.analyze()
    return IncrementalScan(context, plan_range(context, columns=columns, fallback=fallback))


def plan_range(
    context: QueryContext,
    *,
    columns: Sequence[str] | None = None,
    fallback: bool = True,
    schema_of_end: bool = False,
) -> ScanPlan:
    """The rows that the instants of a range wrote, as of its end.

    From the beginning these are all rows as of the end. Else, as for every reader of the format,
    the versions that compete are those written in the window of the range, from its first request
    to its last: files from before need not be read, and a late version that only loses to one of
    them is still handed over. Only file groups that an instant of the range touched can hold such
    rows: what it wrote, or what a service made of it since.

    If the cleaner has deleted files of the range, `fallback` allows to look for its rows in the
    newest files of the whole table: those that were overwritten since are gone. The columns are
    the table's own now, or with `schema_of_end` those that it had then.
    """
    snapshot = context.snapshot
    snapshot.config.require_changes()
    view = snapshot.view(completed_until=context.until)
    schema = schema_or_empty(snapshot, view if schema_of_end else snapshot.view())
    if context.is_empty:
        return _plan(snapshot.config, schema, [], columns)
    if context.is_snapshot:
        slices = [group.latest_merged_slice() for group in snapshot.groups(view)]
        return _plan(snapshot.config, schema, slices, columns)
    found = _IncrementalFiles(context, view)
    lost = found.find_cleaned_file
    if lost is not None and not fallback:
        raise InvalidError(
            "files of the range were cleaned; its rows may be read from the newest files",
            option="hoodie.datasource.read.incr.fallback.fulltablescan.enable",
            file=lost,
        )
    if lost is not None:
        slices = [group.latest_merged_slice() for group in snapshot.groups(snapshot.view())]
        return _plan(snapshot.config, schema, slices, columns, context.commit_times)
    if context.from_beginning:
        slices = [group.latest_merged_slice() for group in snapshot.groups(view, found.files)]
        wrote = None if context.whole else context.commit_times
        return _plan(snapshot.config, schema, slices, columns, wrote)
    return _plan(snapshot.config, schema, found.slices, columns, context.commit_times)


def schema_or_empty(snapshot: Snapshot, view: TimelineView) -> pa.Schema:
    """The schema of the table, or of rows without columns where nothing was written yet."""
    if snapshot.avro_schema(view) is not None:
        return snapshot.schema(view)
    return pa.schema(META_FIELDS)


@dataclass(frozen=True)
class _IncrementalFiles:
    """The files of a range, as of its end."""

    context: QueryContext
    view: TimelineView

    @property
    def _snapshot(self) -> Snapshot:
        return self.context.snapshot

    @cached_property
    def _commits(self) -> list[CommitMetadata]:
        return self._snapshot.commits(self._instants)

    @property
    def _instants(self) -> tuple[Instant, ...]:
        return (*self.context.instants, *self.context.moved)

    @cached_property
    def _written(self) -> set[GroupKey]:
        return _written(self._commits)

    @cached_property
    def files(self) -> FilesByPartition:
        """The files in the partitions that the range touched, or in all before it."""
        touched = sorted({partition for partition, _ in self._written})
        return self._snapshot.files(None if self.context.from_beginning else touched)

    @cached_property
    def _window(self) -> TimelineView:
        """A view of the range from its first request to its last."""
        if self.context.from_beginning:
            return self.view
        requested = [instant.requested_at for instant in self._instants]
        return replace(self.view, requested_from=min(requested), requested_until=max(requested))

    @property
    def find_cleaned_file(self) -> str | None:
        """A file of the range that a clean took, or is about to."""
        # The timeline forgets a replacement once the replaced files are gone; the range does not.
        replaced = self._snapshot.replaced(self.view).union(
            (partition, file_id)
            for commit in self._commits
            for partition, file_ids in commit.replaced.items()
            for file_id in file_ids
        )
        groups = self._written - replaced
        return _find_cleaned_file(self._snapshot, self._window, self.files, self._commits, groups)

    @property
    def slices(self) -> list[FileSlice]:
        """What was written in the range's window, to file groups that the range touched."""
        found = self._snapshot.groups(self._window, self.files)
        slices = [group.latest_merged_slice() for group in found if group.key in self._written]
        if not any(item.logs for item in slices):
            return slices
        whole = {
            g.key: g.latest_merged_slice() for g in self._snapshot.groups(self.view, self.files)
        }
        return [
            replace(item, whole=whole[item.partition, item.file_id]) if item.logs else item
            for item in slices
        ]


def _plan(
    config: TableConfig,
    schema: pa.Schema,
    slices: Sequence[FileSlice],
    columns: Sequence[str] | None,
    commits: frozenset[str] | None = None,
) -> ScanPlan:
    told = path_columns(config, schema, {item.partition for item in slices})
    return plan_scan(config, schema, slices, columns=columns, commits=commits, path_columns=told)


def _written(commits: Iterable[CommitMetadata]) -> set[GroupKey]:
    """The file groups that commits wrote to."""
    return {
        (partition, stat.file_id)
        for commit in commits
        for partition, stats in commit.stats.items()
        for stat in stats
        if stat.file_id
    }


def _find_cleaned_file(
    snapshot: Snapshot,
    view: TimelineView,
    files: FilesByPartition,
    commits: Iterable[CommitMetadata],
    groups: Collection[GroupKey],
) -> str | None:
    """A file that `view` reads of these groups and a clean took, or is about to, if there is one.

    What a clean keeps together is not what an earlier view reads together: a compaction that this
    view does not see may have left the older logs of a slice to the cleaner, and not the newer.
    """
    going = files_being_cleaned(snapshot)
    there = {
        join_path(partition, file.name)
        for partition, names in files.items()
        for file in names
        if file.name not in going.get(partition, ())
    }
    for group in snapshot.groups(view, _with_listed(files, commits)):
        if group.key in groups:
            found = group.latest_merged_slice()
            lost = [path for f in files_of_slice(found) if (path := found.path(f)) not in there]
            if lost:
                return lost[0]
    return None


def _with_listed(
    files: FilesByPartition, commits: Iterable[CommitMetadata]
) -> dict[str, list[BaseFile | LogFile]]:
    """The files that are there, and those that commits wrote."""
    known = {partition: {file.name: file for file in names} for partition, names in files.items()}
    for commit in commits:
        for stat in commit.write_stats():
            partition, name = split_path(stat.path or "")
            file = parse_data_file(name)
            if file is not None:
                known.setdefault(partition, {}).setdefault(name, file)
    return {partition: [*names.values()] for partition, names in known.items()}


def _as_of(snapshot: Snapshot, as_of: str | None) -> TimelineView:
    """What is seen at a point in time, or now; a time whose files were cleaned is refused."""
    retained = None if as_of is None else snapshot.earliest_retained()
    if as_of is not None and retained is not None and as_of < retained:
        raise InvalidError(
            "the table as of this time was cleaned away: keep more commits "
            "(hoodie.clean.commits.retained) to look further back",
            as_of=as_of,
            earliest=retained,
        )
    return snapshot.view(requested_until=as_of)
