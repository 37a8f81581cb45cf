"""Executes a clean plan: deletes its files, except those that have become needed since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakewright.errors import ConflictError, CorruptError, UnsupportedError
from lakewright.model.commit_metadata import CleanedPartition, CleanMetadata
from lakewright.model.file_group import PARTITION_METADATA, FileSlice, GroupKey, parse_data_file
from lakewright.model.instant import Action
from lakewright.model.plans import CleanPlan, parse_reasons
from lakewright.model.table_config import META_FOLDER
from lakewright.services.base import ExecutionContext
from lakewright.services.cleaning.planner import PartitionFiles, load_partition_files
from lakewright.services.planning import SkippedPartitions
from lakewright.storage.base import FileStatus, join_path, split_path
from lakewright.table.cleaned_files import files_of_slice
from lakewright.table.failed_writes import delete_leftovers, delete_orphan_files, find_leftovers
from lakewright.table.locks.base import acquired
from lakewright.table.properties import drop_metadata_table, has_metadata_table
from lakewright.table.snapshot import Snapshot, load_snapshot

# How many partitions are listed and removed per step; the lock is verified before each step.
_REMOVAL_BATCH = 256


@dataclass(frozen=True, slots=True)
class _DeletableFiles:
    """The planned files to delete, by partition, and why others of the plan are skipped."""

    names: Mapping[str, tuple[str, ...]]
    skipped: SkippedPartitions


def clean(context: ExecutionContext, plan: CleanPlan) -> CleanMetadata:
    """Delete the files of a plan; idempotent. The caller must not hold the table's lock.

    A file that no longer exists counts as deleted. A file that has become needed since the plan was
    made is kept and is not in the result; its partition is recorded as skipped, so that the next
    clean checks it again.

    Raises:
        ConflictError: another process completed or rolled back the clean before this one deleted
            anything.
    """
    started_ms = context.clock.monotonic_ms()
    planned = _planned_files(plan)
    current = _current_snapshot(context)
    deletable = _still_deletable(current, planned)
    storage = context.writer.storage
    _require_pending(context)
    storage.delete_many(
        join_path(p, name) for p, names in deletable.names.items() for name in names
    )
    removed = _remove_partitions(context, plan.deleted_partitions, deletable.skipped)
    _delete_leftovers(context)
    return CleanMetadata(
        started_at=context.instant,
        earliest_to_retain=plan.earliest_to_retain.requested_at if plan.earliest_to_retain else "",
        took_ms=context.clock.monotonic_ms() - started_ms,
        files_deleted=sum(map(len, deletable.names.values())),
        last_completed=plan.last_completed,
        partitions={
            partition: CleanedPartition(
                partition=partition,
                policy=plan.policy,
                patterns=names,
                deleted=names,
                is_partition_deleted=partition in removed,
            )
            for partition, names in sorted(deletable.names.items())
            if names or partition in removed
        },
        extra=_extra(plan, deletable.skipped),
    )


def _planned_files(plan: CleanPlan) -> dict[str, tuple[str, ...]]:
    """The file names of a plan by partition, without the folders of their paths.

    Raises:
        CorruptError: the plan lists files of the table's metadata folder.
    """
    if any(file.is_bootstrap for files in plan.files.values() for file in files):
        raise UnsupportedError("the plan deletes files of a bootstrapped table")
    planned: dict[str, tuple[str, ...]] = dict.fromkeys(plan.deleted_partitions, ())
    for partition, files in plan.files.items():
        planned[partition] = tuple(split_path(file.path)[1] for file in files)
    for partition, names in plan.bare_files.items():
        planned[partition] = tuple(dict.fromkeys((*planned.get(partition, ()), *names)))
    inside = [partition for partition in planned if partition.split("/")[0] == META_FOLDER]
    if inside:
        raise CorruptError(
            "a clean plan names the table's own metadata: nothing was deleted; delete the plan's "
            "files from the timeline",
            partitions=inside,
        )
    return planned


def _current_snapshot(context: ExecutionContext) -> Snapshot:
    """Load the table; drop a metadata table first, as it would keep listing deleted files."""
    current = load_snapshot(context.writer.storage)
    if not has_metadata_table(current.config):
        return current
    with context.writer.locked():
        drop_metadata_table(current.storage, load_snapshot(current.storage).config)
    return load_snapshot(current.storage)


def _require_pending(context: ExecutionContext) -> None:
    """Raise ConflictError if the clean is no longer pending: its files may be needed by now."""
    timeline = load_snapshot(context.writer.storage).timeline
    if not any(i.requested_at == context.instant for i in timeline.pending(Action.CLEAN)):
        raise ConflictError(
            "the clean was completed or rolled back by another process", instant=context.instant
        )


def _delete_leftovers(context: ExecutionContext) -> None:
    """Delete the leftover and orphan files of crashed writers."""
    storage = context.writer.storage
    leftovers = find_leftovers(storage, context.writer.heartbeat, context.clock, check_clock=True)
    delete_leftovers(storage, leftovers)
    if leftovers.orphans:
        with context.writer.locked():
            settings, now_ms = context.writer.heartbeat, context.clock.now_ms()
            delete_orphan_files(load_snapshot(storage), settings, now_ms, leftovers.orphans)


def _still_deletable(current: Snapshot, planned: Mapping[str, tuple[str, ...]]) -> _DeletableFiles:
    """Remove from a plan the files that are needed now.

    Between planning and execution, another process may have created a savepoint, scheduled a
    compaction, or rolled back the write that superseded the files.
    """
    partition_files = load_partition_files(current, current.files(planned))
    newest = {group.key: group.latest_merged_slice() for group in partition_files.groups}
    skipped = SkippedPartitions()
    deletable: dict[str, tuple[str, ...]] = {}
    for partition, names in planned.items():
        reasons = {name: _why_needed(partition_files, newest, partition, name) for name in names}
        deletable[partition] = tuple(name for name, reason in reasons.items() if not reason)
        for reason in filter(None, reasons.values()):
            skipped.add(partition, reason)
    return _DeletableFiles(deletable, skipped)


def _why_needed(
    partition_files: PartitionFiles,
    newest: Mapping[GroupKey, FileSlice],
    partition: str,
    name: str,
) -> str:
    """Why a file must not be deleted; empty if it may be."""
    file = parse_data_file(name)
    if file is None:
        return "named by the plan, but no data file"
    key = partition, file.file_id
    current = newest.get(key)
    if key in partition_files.protected.planned:
        return partition_files.protected.planned[key]
    if (partition, name) in partition_files.protected.saved:
        return "held by a savepoint"
    if not partition_files.view.timeline.is_committed(file.instant):
        return f"of {file.instant}, which is not completed"
    if current is not None and (
        file.instant >= current.base_instant or any(f.name == name for f in files_of_slice(current))
    ):
        return "part of the table as it is"
    return ""


def _remove_partitions(
    context: ExecutionContext, partitions: Iterable[str], skipped: SkippedPartitions
) -> frozenset[str]:
    """Delete the partition metadata file of empty partitions; return the partitions removed.

    A writer that finds the metadata file does not create another one, so it may only be deleted
    while no process can be writing: under the lock, with no write pending.
    """
    removed: set[str] = set()
    requested = sorted(partitions)
    if not requested:
        return frozenset()
    storage, lock = context.writer.storage, context.writer.new_lock()
    with acquired(lock):
        has_pending_write = any(i.is_write for i in load_snapshot(storage).timeline.pending())
        for start in range(0, len(requested), _REMOVAL_BATCH):
            listed = storage.list_many(requested[start : start + _REMOVAL_BATCH])
            empty = (
                {}
                if has_pending_write
                else {p: files for p, files in listed.items() if _is_empty(files)}
            )
            for partition in listed.keys() - empty.keys():
                skipped.add(partition, "not removed: a write is pending, or it has new files")
            lock.verify()
            storage.delete_many(file.path for files in empty.values() for file in files)
            removed.update(empty)
    return frozenset(removed)


def _is_empty(files: Iterable[FileStatus]) -> bool:
    return all(file.name.startswith(PARTITION_METADATA) for file in files)


def _extra(plan: CleanPlan, skipped: SkippedPartitions) -> dict[str, str]:
    """The extra metadata of the plan, with the partitions that the execution skipped added."""
    for partition, reason in parse_reasons(plan.extra).items():
        skipped.add(partition, reason)
    return {**plan.extra, **skipped.to_extra_metadata()}
