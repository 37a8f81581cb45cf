"""The queries on a table: from a snapshot and what was asked for to a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from lakewright.core.commits import CommitMetadata
from lakewright.core.files import BaseFile, LogFile, parse_data_file
from lakewright.core.instant import Instant
from lakewright.core.meta_columns import META_FIELDS
from lakewright.core.slices import FileSlice, GroupKey, View
from lakewright.core.table_config import TableConfig
from lakewright.errors import InvalidError
from lakewright.read.incremental import EARLIEST, IncrementalQueryAnalyzer, QueryContext
from lakewright.read.plan import ReadPlan, plan_read
from lakewright.read.prune import path_columns
from lakewright.storage.base import join_path, split_path
from lakewright.table.cleaned import files_of, going_files
from lakewright.table.snapshot import FilesByPartition, Snapshot


@dataclass(frozen=True)
class ChangePlan:
    """An incremental query: the instants of its range, and how to read their rows."""

    context: QueryContext
    read: ReadPlan


def plan_snapshot(
    snapshot: Snapshot,
    *,
    as_of: str | None = None,
    columns: Sequence[str] | None = None,
    partitions: Iterable[str] | None = None,
) -> ReadPlan:
    """The table as it is, or as it was when the instant `as_of` was the newest request.

    With `partitions` only these are listed and read.
    """
    view = _as_of(snapshot, as_of)
    slices = [group.merged() for group in snapshot.groups(view, snapshot.files(partitions))]
    return _plan(snapshot.config, snapshot.schema(view), slices, columns)


def plan_read_optimized(
    snapshot: Snapshot,
    *,
    as_of: str | None = None,
    columns: Sequence[str] | None = None,
    partitions: Iterable[str] | None = None,
) -> ReadPlan:
    """The newest base files alone: fast, and as old as the last compaction.

    With `partitions` only these are listed and read.
    """
    view = _as_of(snapshot, as_of)
    newest = [group.newest_base() for group in snapshot.groups(view, snapshot.files(partitions))]
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
) -> ChangePlan:
    """The rows that instants which completed in (since, until] wrote, as of `until`.

    Without `since` these are all rows as of `until`.
    """
    analyzer = IncrementalQueryAnalyzer(
        snapshot=snapshot, begin=since or EARLIEST, end=until, limit=limit
    )
    context = analyzer.analyze()
    return ChangePlan(context, plan_context(context, columns=columns, fallback=fallback))


def plan_context(
    context: QueryContext,
    *,
    columns: Sequence[str] | None = None,
    fallback: bool = True,
    schema_of_end: bool = False,
) -> ReadPlan:
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
    schema = schema_seen(snapshot, view if schema_of_end else snapshot.view())
    if context.is_empty:
        return _plan(snapshot.config, schema, [], columns)
    if context.is_snapshot:
        slices = [group.merged() for group in snapshot.groups(view)]
        return _plan(snapshot.config, schema, slices, columns)
    found = _Range(context, view)
    lost = found.lost
    if lost is not None and not fallback:
        raise InvalidError(
            "files of the range were cleaned; its rows may be read from the newest files",
            option="hoodie.datasource.read.incr.fallback.fulltablescan.enable",
            file=lost,
        )
    if lost is not None:
        slices = [group.merged() for group in snapshot.groups(snapshot.view())]
        return _plan(snapshot.config, schema, slices, columns, context.commit_times)
    if context.from_beginning:
        slices = [group.merged() for group in snapshot.groups(view, found.files)]
        wrote = None if context.whole else context.commit_times
        return _plan(snapshot.config, schema, slices, columns, wrote)
    return _plan(snapshot.config, schema, found.slices, columns, context.commit_times)


def schema_seen(snapshot: Snapshot, view: View) -> pa.Schema:
    """The schema of the table, or of rows without columns where nothing was written yet."""
    if snapshot.avro_schema(view) is not None:
        return snapshot.schema(view)
    return pa.schema(META_FIELDS)


@dataclass(frozen=True)
class _Range:
    """The files of a range, as of its end."""

    context: QueryContext
    view: View

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
    def _window(self) -> View:
        """A view of the range from its first request to its last."""
        if self.context.from_beginning:
            return self.view
        requested = [instant.requested_at for instant in self._instants]
        return replace(self.view, requested_from=min(requested), requested_until=max(requested))

    @property
    def lost(self) -> str | None:
        """A file of the range that a clean took, or is about to."""
        # The timeline forgets a replacement once the replaced files are gone; the range does not.
        replaced = self._snapshot.replaced(self.view).union(
            (partition, file_id)
            for commit in self._commits
            for partition, file_ids in commit.replaced.items()
            for file_id in file_ids
        )
        groups = self._written - replaced
        return _cleaned(self._snapshot, self._window, self.files, self._commits, groups)

    @property
    def slices(self) -> list[FileSlice]:
        """What was written in the range's window, to file groups that the range touched."""
        found = self._snapshot.groups(self._window, self.files)
        slices = [group.merged() for group in found if group.key in self._written]
        if not any(item.logs for item in slices):
            return slices
        whole = {g.key: g.merged() for g in self._snapshot.groups(self.view, self.files)}
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
) -> ReadPlan:
    told = path_columns(config, schema, {item.partition for item in slices})
    return plan_read(config, schema, slices, columns=columns, commits=commits, path_columns=told)


def _written(commits: Iterable[CommitMetadata]) -> set[GroupKey]:
    """The file groups that commits wrote to."""
    return {
        (partition, stat.file_id)
        for commit in commits
        for partition, stats in commit.stats.items()
        for stat in stats
        if stat.file_id
    }


def _cleaned(
    snapshot: Snapshot,
    view: View,
    files: FilesByPartition,
    commits: Iterable[CommitMetadata],
    groups: Collection[GroupKey],
) -> str | None:
    """A file that `view` reads of these groups and a clean took, or is about to, if there is one.

    What a clean keeps together is not what an earlier view reads together: a compaction that this
    view does not see may have left the older logs of a slice to the cleaner, and not the newer.
    """
    going = going_files(snapshot)
    there = {
        join_path(partition, file.name)
        for partition, names in files.items()
        for file in names
        if file.name not in going.get(partition, ())
    }
    for group in snapshot.groups(view, _with_listed(files, commits)):
        if group.key in groups:
            found = group.merged()
            lost = [path for f in files_of(found) if (path := found.path(f)) not in there]
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


def _as_of(snapshot: Snapshot, as_of: str | None) -> View:
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
