"""Plans queries: snapshot, read-optimized, time travel, and incremental.

Rows carry the requested time of the write they come from, and writes do not complete in the order
in which they were requested. So an incremental query selects instants by completion time, and rows
by the requested times of these instants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import overload

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
from lakewright.model.instant import WRITE_ACTIONS, Action, Instant, InstantTime
from lakewright.model.schema import META_FIELDS
from lakewright.model.table_config import TableConfig, TableType
from lakewright.scan.scan_plan import ScanPlan, path_columns, plan_scan
from lakewright.storage.base import join_path, split_path
from lakewright.table.cleaned_files import (
    files_being_cleaned,
    files_of_slice,
    slices_before_cleaning,
)
from lakewright.table.snapshot import FilesByPartition, Snapshot

EARLIEST = "earliest"
# Services that keep the commit times of the rows they rewrite. A log compaction does not, but the
# log files it compacted still exist, and are read in its place.
_KEEPS_COMMIT_TIMES = SERVICE_OPERATIONS - {"LOG_COMPACT"}
_OVERWRITES = frozenset({"INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE"})


class RangeType(Enum):
    """Whether the begin is part of a range; its end always is."""

    OPEN_CLOSED = "(begin, end]"
    CLOSED_CLOSED = "[begin, end]"


class InstantsFromBeginning(Sequence[Instant]):
    """Instants in completion order, of which archived ones are loaded only if they are looked at.

    The last of them is known from the beginning: `newest` ends with it. `load` returns all.
    """

    def __init__(self, newest: tuple[Instant, ...], load: Callable[[], Sequence[Instant]]) -> None:
        self._newest = newest
        self._load = load

    @cached_property
    def _all(self) -> tuple[Instant, ...]:
        return tuple(self._load())

    @overload
    def __getitem__(self, index: int) -> Instant: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Instant, ...]: ...

    def __getitem__(self, index: int | slice) -> Instant | tuple[Instant, ...]:
        return self._newest[-1] if index == -1 else self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | list | InstantsFromBeginning):
            return NotImplemented
        return tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self._all)

    def __repr__(self) -> str:
        return repr(self._all)


@dataclass(frozen=True)
class QueryContext:
    """The instants of a range in the order of completion, and where the next range begins.

    `until` is None if the range is open, and includes everything that has completed; a limit ends a
    range early. `checkpoint` is the begin if there is nothing new, None if there is nothing at all.
    `is_complete` is false if writes of the range were skipped on request. `skipped_services` are
    services that were skipped: rows of the range may be in the files that they wrote.
    """

    snapshot: Snapshot
    begin: str | None
    end: str | None
    instants: Sequence[Instant]
    until: str | None
    checkpoint: str | None
    is_complete: bool = True
    skipped_services: tuple[Instant, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no instant completed in the range."""
        return not self.instants

    @property
    def from_beginning(self) -> bool:
        """Whether the range begins with the table."""
        return self.begin == EARLIEST

    @property
    def is_snapshot(self) -> bool:
        """Whether the result is a snapshot query of the table."""
        return self.is_state and self.until is None

    @property
    def is_state(self) -> bool:
        """Whether the result is the state of the table at the end of the range."""
        return self.from_beginning and self.is_complete

    @property
    def active(self) -> tuple[Instant, ...]:
        """The instants on the active timeline."""
        active_times = self.snapshot.timeline.by_time
        return tuple(i for i in self.instants if i.requested_at in active_times)

    @property
    def archived(self) -> tuple[Instant, ...]:
        """The instants on the archived timeline."""
        active_times = self.snapshot.timeline.by_time
        return tuple(i for i in self.instants if i.requested_at not in active_times)

    @property
    def first_completed(self) -> str | None:
        """The completion time of the first instant."""
        return self.instants[0].completed_at if self.instants else None

    @property
    def last_completed(self) -> str | None:
        """The completion time of the last instant."""
        return self.instants[-1].completed_at if self.instants else None

    @cached_property
    def commit_times(self) -> frozenset[str]:
        """The commit times of the rows of the range: the requested times of its writes.

        Services are not included: the rows they rewrite keep the commit time of the write.
        """
        config = self.snapshot.config
        commits = self.snapshot.commits(self.instants)
        return frozenset(
            instant.requested_at
            for instant, commit in zip(self.instants, commits, strict=True)
            if commit.operation not in _KEEPS_COMMIT_TIMES and not is_compaction(config, instant)
        )


@dataclass(frozen=True, kw_only=True)
class IncrementalQueryAnalyzer:
    """Finds the instants of a range.

    `begin` and `end` are completion times. Without `begin` the range contains only the last
    instant; `EARLIEST` is the beginning of the table. `limit` is a number of instants, those that
    completed first. Compactions (of merge-on-read tables), clusterings and overwrites can be
    skipped; the first two never add rows.
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
        """Read the active timeline, and as much of the archived timeline as the range needs."""
        self._check_range()
        instants: Sequence[Instant] = self._instants_in_range()
        until = self.end
        if self.limit is not None and self.begin is not None and len(instants) > self.limit:
            # A checkpoint cannot separate two instants with the same completion time.
            until = instants[self.limit - 1].completed_at
            instants = tuple(i for i in instants if (i.completed_at or "") <= (until or ""))
        begin = None if self.begin == EARLIEST else self.begin
        checkpoint = instants[-1].completed_at if instants else begin
        skipped_services, skipped_writes = self._skipped_instants(instants)
        skipped = skipped_services | skipped_writes
        selected = (
            tuple(i for i in instants if i.requested_at not in skipped) if skipped else instants
        )
        return QueryContext(
            self.snapshot,
            self.begin,
            self.end,
            selected,
            until,
            checkpoint,
            is_complete=not skipped_writes,
            skipped_services=(
                tuple(i for i in instants if i.requested_at in skipped_services)
                if skipped_services
                else ()
            ),
        )

    def _check_range(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise InvalidError("a range of changes holds at least one instant", limit=self.limit)
        if self.begin not in (None, EARLIEST) and self.end is not None and self.begin > self.end:
            raise InvalidError("a range begins after its end", begin=self.begin, end=self.end)

    def _instants_in_range(self) -> Sequence[Instant]:
        """Return the instants of the range, in the order of completion."""
        if self.begin == EARLIEST:
            last = self._last_in_range()
            if not last or not self.snapshot.has_history():
                return self._from_beginning()
            return InstantsFromBeginning(last, self._from_beginning)
        if self.begin is not None:
            archived = self.snapshot.archived_after(self.begin, until=self.end)
            return self._ordered((*archived, *self.snapshot.timeline.completed_writes))
        return self._last_in_range()

    def _from_beginning(self) -> tuple[Instant, ...]:
        return self._ordered((*self.snapshot.archived, *self.snapshot.timeline.completed_writes))

    def _last_in_range(self) -> tuple[Instant, ...]:
        """Return the instant of the range that completed last, if there is one."""
        last = self._ordered(self.snapshot.timeline.by_completion)[-1:]
        # Archiving is by requested time: an archived write may have completed after an active one.
        later = (
            self.snapshot.archived_after(last[0].completed_at or "")
            if last
            else self.snapshot.archived
        )
        return self._ordered((*last, *later))[-1:]

    def _ordered(self, instants: Iterable[Instant]) -> tuple[Instant, ...]:
        return tuple(in_completion_order(i for i in instants if self._in_range(i.completed_at)))

    def _in_range(self, completed_at: InstantTime | None) -> bool:
        if completed_at is None or (self.end is not None and completed_at > self.end):
            return False
        if self.begin is None or self.begin == EARLIEST:
            return True
        begin_included = self.range_type is RangeType.CLOSED_CLOSED
        return completed_at >= self.begin if begin_included else completed_at > self.begin

    def _skipped_instants(self, instants: Sequence[Instant]) -> tuple[set[str], set[str]]:
        """Return the requested times of the skipped services, and of the skipped writes."""
        config = self.snapshot.config
        services: set[str] = set()
        if self.skip_compaction:
            services = {i.requested_at for i in instants if is_compaction(config, i)}
        writes: set[str] = set()
        if self.skip_clustering or self.skip_insert_overwrite:
            replacing = [i for i in instants if i.action == Action.REPLACE_COMMIT]
            for instant, commit in zip(replacing, self.snapshot.commits(replacing), strict=True):
                if self.skip_clustering and commit.operation == "CLUSTER":
                    services.add(instant.requested_at)
                if self.skip_insert_overwrite and commit.operation in _OVERWRITES:
                    writes.add(instant.requested_at)
        return services, writes


def in_completion_order(instants: Iterable[Instant]) -> list[Instant]:
    """Return completed instants in the order of completion."""
    return sorted(instants, key=lambda i: (i.completed_at or "", i.requested_at))


def is_compaction(config: TableConfig, instant: Instant) -> bool:
    """Whether an instant is a compaction: a commit on a merge-on-read table."""
    return config.table_type is TableType.MERGE_ON_READ and instant.action == Action.COMMIT


# Plans of queries.


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
    """Plan a snapshot query: the table as it is, or as of the instant `as_of`, a requested time.

    With `partitions` only these are listed and read.
    """
    view = _view_as_of(snapshot, as_of)
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
    """Plan a read-optimized query: the newest base files only, as of the last compaction.

    With `partitions` only these are listed and read.
    """
    view = _view_as_of(snapshot, as_of)
    base_slices = [
        group.latest_base_slice() for group in snapshot.groups(view, snapshot.files(partitions))
    ]
    slices = [item for item in base_slices if item is not None]
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
    """Plan an incremental query: the rows that writes completed in (since, until] wrote.

    The rows are as of `until`. Without `since` these are all rows.
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
    """Plan the rows that the instants of a range wrote, as of its end.

    From the beginning these are all rows as of the end. Otherwise, as for every Hudi reader, the
    competing versions of a row are those written between the first and the last requested time of
    the range: older files need not be read, and a late version that only loses to an older one is
    still returned. Only file groups that an instant of the range wrote to can contain such rows: in
    its own files, or in those that a service has made of them since.

    If a clean has deleted files of the range, `fallback` allows to read its rows from the newest
    files of the whole table: rows that were overwritten since are missing then. The columns are the
    current ones, or with `schema_of_end` those at the end of the range.
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
    if context.is_state:
        state = _complete_state(context, view)
        if state is not None:
            return _plan(snapshot.config, schema, state, columns)
    range_files = _IncrementalFiles(context, view)
    cleaned_file = range_files.cleaned_file
    if cleaned_file is not None and not fallback:
        raise InvalidError(
            "files of the range were cleaned; its rows may be read from the newest files",
            option="hoodie.datasource.read.incr.fallback.fulltablescan.enable",
            file=cleaned_file,
        )
    if cleaned_file is not None:
        slices = [group.latest_merged_slice() for group in snapshot.groups(snapshot.view())]
        return _plan(snapshot.config, schema, slices, columns, context.commit_times)
    if context.from_beginning:
        slices = [group.latest_merged_slice() for group in snapshot.groups(view, range_files.files)]
        commits = None if context.is_complete else context.commit_times
        return _plan(snapshot.config, schema, slices, columns, commits)
    return _plan(snapshot.config, schema, range_files.slices, columns, context.commit_times)


def schema_or_empty(snapshot: Snapshot, view: TimelineView) -> pa.Schema:
    """Return the table's schema, or only the meta columns if nothing was written yet."""
    if snapshot.avro_schema(view) is not None:
        return snapshot.schema(view)
    return pa.schema(META_FIELDS)


def _complete_state(context: QueryContext, view: TimelineView) -> list[FileSlice] | None:
    """Return the slices of the table at the end of a range, without reading archived commits.

    None if files of them may have been deleted: cleans on the active timeline name the files that
    they deleted, and so do the commits there. An archived clean cannot be asked.
    """
    snapshot, until = context.snapshot, context.until or ""
    if any(
        (i.completed_at or "") > until
        for i in snapshot.archived_after(until, {*WRITE_ACTIONS, Action.CLEAN})
    ):
        return None
    active = (i for i in snapshot.timeline.completed_writes if (i.completed_at or "") <= until)
    range_files = _IncrementalFiles(replace(context, instants=tuple(active)), view)
    slices, lost = slices_before_cleaning(snapshot, view, since=until, listed=range_files.files)
    return slices if not lost and range_files.cleaned_file is None else None


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
        return (*self.context.instants, *self.context.skipped_services)

    @cached_property
    def _written_groups(self) -> set[GroupKey]:
        return _written_groups(self._commits)

    @cached_property
    def files(self) -> FilesByPartition:
        """The files of the partitions that the range wrote to; from the beginning, of all."""
        touched = sorted({partition for partition, _ in self._written_groups})
        return self._snapshot.files(None if self.context.from_beginning else touched)

    @cached_property
    def _window(self) -> TimelineView:
        """A view of the instants from the first to the last requested time of the range."""
        if self.context.from_beginning:
            return self.view
        requested = [instant.requested_at for instant in self._instants]
        return replace(self.view, requested_from=min(requested), requested_until=max(requested))

    @property
    def cleaned_file(self) -> str | None:
        """A file of the range that a clean deleted, or is about to delete."""
        # Once replaced files are deleted, the timeline no longer lists their replacement; the
        # commits of the range do.
        replaced = self._snapshot.replaced(self.view).union(
            (partition, file_id)
            for commit in self._commits
            for partition, file_ids in commit.replaced.items()
            for file_id in file_ids
        )
        groups = self._written_groups - replaced
        return _find_cleaned_file(self._snapshot, self._window, self.files, self._commits, groups)

    @property
    def slices(self) -> list[FileSlice]:
        """The slices that were written in the range, of the file groups it wrote to."""
        groups = self._snapshot.groups(self._window, self.files)
        slices = [
            group.latest_merged_slice() for group in groups if group.key in self._written_groups
        ]
        if not any(item.logs for item in slices):
            return slices
        full_slices = {
            g.key: g.latest_merged_slice() for g in self._snapshot.groups(self.view, self.files)
        }
        return [
            replace(item, full_slice=full_slices[item.partition, item.file_id])
            if item.logs
            else item
            for item in slices
        ]


def _plan(
    config: TableConfig,
    schema: pa.Schema,
    slices: Sequence[FileSlice],
    columns: Sequence[str] | None,
    commits: frozenset[str] | None = None,
) -> ScanPlan:
    from_path = path_columns(config, schema, {item.partition for item in slices})
    return plan_scan(
        config, schema, slices, columns=columns, commits=commits, path_columns=from_path
    )


def _written_groups(commits: Iterable[CommitMetadata]) -> set[GroupKey]:
    """Return the file groups that commits wrote to."""
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
    """Return a file of these groups that `view` reads and a clean deleted, or is about to; or None.

    A clean retains slices as they are now, not as an earlier view reads them: a compaction that
    this view does not include may have left the older log files of a slice to the cleaner, but not
    the newer ones.
    """
    being_cleaned = files_being_cleaned(snapshot)
    existing = {
        join_path(partition, file.name)
        for partition, names in files.items()
        for file in names
        if file.name not in being_cleaned.get(partition, ())
    }
    for group in snapshot.groups(view, _with_committed(files, commits)):
        if group.key in groups:
            file_slice = group.latest_merged_slice()
            missing = [
                path
                for data_file in files_of_slice(file_slice)
                if (path := file_slice.path(data_file)) not in existing
            ]
            if missing:
                return missing[0]
    return None


def _with_committed(
    files: FilesByPartition, commits: Iterable[CommitMetadata]
) -> dict[str, list[BaseFile | LogFile]]:
    """Return the existing files together with those that commits wrote."""
    by_partition = {
        partition: {file.name: file for file in names} for partition, names in files.items()
    }
    for commit in commits:
        for stat in commit.write_stats():
            partition, name = split_path(stat.path or "")
            file = parse_data_file(name)
            if file is not None:
                by_partition.setdefault(partition, {}).setdefault(name, file)
    return {partition: [*names.values()] for partition, names in by_partition.items()}


def _view_as_of(snapshot: Snapshot, as_of: str | None) -> TimelineView:
    """Return the view as of a requested time, or now; raise if files of that time were cleaned."""
    earliest = None if as_of is None else snapshot.earliest_retained()
    if as_of is not None and earliest is not None and as_of < earliest:
        raise InvalidError(
            "the table as of this time was cleaned away: keep more commits "
            "(hoodie.clean.commits.retained) to look further back",
            as_of=as_of,
            earliest=earliest,
        )
    return snapshot.view(requested_until=as_of)
