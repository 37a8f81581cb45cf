"""Deleting what a clean has planned, unless somebody has come to need it since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakewright.errors import ConflictError, CorruptError, UnsupportedError
from lakewright.model.commit_metadata import CleanedPartition, CleanMetadata
from lakewright.model.file_group import PARTITION_METADATA, FileSlice, GroupKey, parse_data_file
from lakewright.model.instant import Action
from lakewright.model.plans import CleanPlan, parse_reasons
from lakewright.services.base import ExecutionContext
from lakewright.services.cleaning.planner import PartitionFiles, load_partition_files
from lakewright.services.planning import SkippedPartitions
from lakewright.storage.base import FileStatus, join_path, split_path
from lakewright.table.failed_writes import delete_leftovers, find_leftovers
from lakewright.table.locks.base import held
from lakewright.table.orphan_files import delete_orphan_files
from lakewright.table.properties import drop_metadata_table, has_metadata_table
from lakewright.table.snapshot import Snapshot, files_of_slice, load_snapshot

_META_FOLDER = ".hoodie"
# So many partitions are listed and deleted in one go, and the lock is looked at before each go.
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class _CleanWork:
    """Which files go, by partition, and why others of the plan stay."""

    names: Mapping[str, tuple[str, ...]]
    left: SkippedPartitions


def clean(job: ExecutionContext, plan: CleanPlan) -> CleanMetadata:
    """Delete the files of a plan; may be repeated, and the table's lock must not be held.

    What is gone already counts as deleted. A file that has come to be needed since the plan was
    made stays and is in nobody's list, and its partition is looked at again by the next clean.
    ConflictError if somebody else has ended the clean before this one deletes anything.
    """
    began = job.clock.monotonic_ms()
    named = _planned_files(plan)
    now = _now(job)
    work = _still_deletable(now, named)
    storage = job.writer.storage
    _require_pending(job)
    storage.delete_many(join_path(p, name) for p, names in work.names.items() for name in names)
    removed = _remove_partitions(job, plan.deleted_partitions, work.left)
    _delete_leftovers(job)
    return CleanMetadata(
        started_at=job.instant,
        earliest_to_retain=plan.earliest_to_retain.requested_at if plan.earliest_to_retain else "",
        took_ms=job.clock.monotonic_ms() - began,
        files_deleted=sum(map(len, work.names.values())),
        last_completed=plan.last_completed,
        partitions={
            partition: CleanedPartition(
                partition=partition,
                policy=plan.policy,
                patterns=names,
                deleted=names,
                is_partition_deleted=partition in removed,
            )
            for partition, names in sorted(work.names.items())
            if names or partition in removed
        },
        extra=_extra(plan, work.left),
    )


def _planned_files(plan: CleanPlan) -> dict[str, tuple[str, ...]]:
    """The file names of a plan by partition, whatever its paths begin with.

    Raises:
        CorruptError: the plan names what is no partition, but the table's own metadata.
    """
    if any(file.is_bootstrap for files in plan.files.values() for file in files):
        raise UnsupportedError("the plan deletes files of a bootstrapped table")
    named: dict[str, tuple[str, ...]] = dict.fromkeys(plan.deleted_partitions, ())
    for partition, files in plan.files.items():
        named[partition] = tuple(split_path(file.path)[1] for file in files)
    for partition, names in plan.bare_files.items():
        named[partition] = tuple(dict.fromkeys((*named.get(partition, ()), *names)))
    inside = [partition for partition in named if partition.split("/")[0] == _META_FOLDER]
    if inside:
        raise CorruptError(
            "a clean plan names the table's own metadata: nothing was deleted; delete the plan's "
            "files from the timeline",
            partitions=inside,
        )
    return named


def _now(job: ExecutionContext) -> Snapshot:
    """The table right now, without a metadata table that would go on naming deleted files."""
    now = load_snapshot(job.writer.storage)
    if not has_metadata_table(now.config):
        return now
    with job.writer.locked():
        drop_metadata_table(now.storage, load_snapshot(now.storage).config)
    return load_snapshot(now.storage)


def _require_pending(job: ExecutionContext) -> None:
    """Stop if somebody else has ended this clean: what that one left may be needed by now."""
    timeline = load_snapshot(job.writer.storage).timeline
    if not any(i.requested_at == job.instant for i in timeline.pending(Action.CLEAN)):
        raise ConflictError("the clean was ended by somebody else", instant=job.instant)


def _delete_leftovers(job: ExecutionContext) -> None:
    """Delete what killed processes have left."""
    storage = job.writer.storage
    dead = find_leftovers(storage, job.writer.heartbeat, job.clock)
    delete_leftovers(storage, dead)
    if dead.orphans:
        with job.writer.locked():
            settings, now_ms = job.writer.heartbeat, job.clock.now_ms()
            delete_orphan_files(load_snapshot(storage), settings, now_ms, dead.orphans)


def _still_deletable(now: Snapshot, named: Mapping[str, tuple[str, ...]]) -> _CleanWork:
    """Take out of a plan what is needed now.

    Between a plan and its execution a savepoint may have been made, a compaction scheduled, or the
    write rolled back that made the files superfluous.
    """
    stock = load_partition_files(now, now.files(named))
    newest = {group.key: group.latest_merged_slice() for group in stock.groups}
    left = SkippedPartitions()
    going: dict[str, tuple[str, ...]] = {}
    for partition, names in named.items():
        reasons = {name: _why_needed(stock, newest, partition, name) for name in names}
        going[partition] = tuple(name for name, reason in reasons.items() if not reason)
        for reason in filter(None, reasons.values()):
            left.add(partition, reason)
    return _CleanWork(going, left)


def _why_needed(
    stock: PartitionFiles, newest: Mapping[GroupKey, FileSlice], partition: str, name: str
) -> str:
    """Who needs a file; nobody if empty."""
    file = parse_data_file(name)
    if file is None:
        return "named by the plan, but no data file"
    key = partition, file.file_id
    current = newest.get(key)
    if key in stock.holds.planned:
        return stock.holds.planned[key]
    if (partition, name) in stock.holds.saved:
        return "held by a savepoint"
    if not stock.view.timeline.is_committed(file.instant):
        return f"of {file.instant}, which is not completed"
    if current is not None and (
        file.instant >= current.base_instant or any(f.name == name for f in files_of_slice(current))
    ):
        return "part of the table as it is"
    return ""


def _remove_partitions(
    job: ExecutionContext, partitions: Iterable[str], left: SkippedPartitions
) -> frozenset[str]:
    """Take the metadata file of partitions that are empty; those with a new file stay.

    A writer that finds the file there does not make another, so it may only go while nobody can be
    writing: under the lock, with no write pending.
    """
    removed: set[str] = set()
    asked = sorted(partitions)
    if not asked:
        return frozenset()
    storage, lock = job.writer.storage, job.writer.new_lock()
    with held(lock):
        busy = any(i.is_write for i in load_snapshot(storage).timeline.pending())
        for start in range(0, len(asked), _AT_ONCE):
            listed = storage.list_many(asked[start : start + _AT_ONCE])
            empty = {} if busy else {p: files for p, files in listed.items() if _is_empty(files)}
            for partition in listed.keys() - empty.keys():
                left.add(partition, "not removed: somebody writes, or has written there")
            lock.verify()
            storage.delete_many(file.path for files in empty.values() for file in files)
            removed.update(empty)
    return frozenset(removed)


def _is_empty(files: Iterable[FileStatus]) -> bool:
    return all(file.name.startswith(PARTITION_METADATA) for file in files)


def _extra(plan: CleanPlan, left: SkippedPartitions) -> dict[str, str]:
    """What the plan recorded, and what stayed beyond that."""
    for partition, reason in parse_reasons(plan.extra).items():
        left.add(partition, reason)
    return {**plan.extra, **left.to_extra_metadata()}
