"""The queries on a table: from a snapshot and what was asked for to a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from lakewright.core.commits import CommitMetadata
from lakewright.core.files import BaseFile, LogFile, parse_data_file
from lakewright.core.instant import Instant
from lakewright.core.slices import FileSlice, GroupKey, View
from lakewright.core.table_config import TableConfig, TableType
from lakewright.errors import InvalidError
from lakewright.read.incremental import ChangeRange, plan_range
from lakewright.read.plan import ReadPlan, plan_read
from lakewright.read.prune import path_columns
from lakewright.storage.base import join_path, split_path
from lakewright.table.cleaned import files_of, going_files
from lakewright.table.snapshot import FilesByPartition, Snapshot

# Operations that move rows and keep the commit time of each. A log compaction does not keep it, but
# the log files it was made of are still there to be read in its place.
_SERVICES = frozenset({"COMPACT", "CLUSTER"})


@dataclass(frozen=True)
class ChangePlan:
    """An incremental query: the range, and how to read its rows."""

    range: ChangeRange
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

    Without `since` these are all rows as of `until`. Else, as for every reader of the format, the
    versions that compete are those written in the window of the range, from its first request to
    its last: files from before need not be read, and a late version that only loses to one of them
    is still handed over. Only file groups that an instant of the range touched can hold such rows:
    what it wrote, or what a service made of it since.

    If the cleaner has deleted files of the range, `fallback` allows to look for its rows in the
    newest files of the whole table: those that were overwritten since are gone.
    """
    if not snapshot.config.has_meta_fields:
        raise InvalidError(
            "a table without meta fields has no changes to read", table=snapshot.config.name
        )
    instants = (*snapshot.archived, *snapshot.timeline.completed_writes)
    chosen = plan_range(instants, since=since, until=until, limit=limit)
    schema = snapshot.schema(snapshot.view())
    bounded = snapshot.view(completed_until=chosen.until)
    view = replace(bounded, archived=snapshot.archived_times)
    if not chosen.instants or (since is None and chosen.until is None):
        slices = [group.merged() for group in snapshot.groups(view)] if chosen.instants else []
        return ChangePlan(chosen, _plan(snapshot.config, schema, slices, columns))
    commits = snapshot.commits(chosen.instants)
    wrote: frozenset[str] | None = _ingested(
        snapshot.config, zip(chosen.instants, commits, strict=True)
    )
    written = _written(commits)
    touched = sorted({partition for partition, _ in written})
    files = snapshot.files(None if since is None else touched)
    # The timeline forgets a replacement once the replaced files are gone; the range does not.
    replaced = snapshot.replaced(view).union(
        (partition, file_id)
        for commit in commits
        for partition, file_ids in commit.replaced.items()
        for file_id in file_ids
    )
    window = view if since is None else _window_of(view, chosen)
    cleaned = _cleaned(snapshot, window, files, commits, written - replaced)
    if cleaned:
        if not fallback:
            raise InvalidError(
                "files of the range were cleaned; its rows may be read from the newest files",
                option="hoodie.datasource.read.incr.fallback.fulltablescan.enable",
                file=cleaned,
            )
        slices = [group.merged() for group in snapshot.groups(snapshot.view())]
    elif since is None:
        slices, wrote = [group.merged() for group in snapshot.groups(view, files)], None
    else:
        slices = _window(snapshot, view, window, files, written)
    return ChangePlan(chosen, _plan(snapshot.config, schema, slices, columns, wrote))


def _window_of(view: View, chosen: ChangeRange) -> View:
    """A view of a range from its first request to its last."""
    requested = [instant.requested_at for instant in chosen.instants]
    return replace(view, requested_from=min(requested), requested_until=max(requested))


def _window(
    snapshot: Snapshot,
    view: View,
    window: View,
    files: FilesByPartition,
    touched: Collection[GroupKey],
) -> list[FileSlice]:
    """What was written in a range's window, to file groups that the range touched."""
    slices = [g.merged() for g in snapshot.groups(window, files) if g.key in touched]
    whole = {g.key: g.merged() for g in snapshot.groups(view, files)}
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


def _ingested(
    config: TableConfig, writes: Iterable[tuple[Instant, CommitMetadata]]
) -> frozenset[str]:
    """The instants that brought rows; a commit on a merge-on-read table is a compaction."""
    merge_on_read = config.table_type is TableType.MERGE_ON_READ
    return frozenset(
        instant.requested_at
        for instant, commit in writes
        if commit.operation not in _SERVICES and not (merge_on_read and instant.action == "commit")
    )


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
