"""What a task does with rows: bulk insert, insert, or merge with the rows of the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError
from lakewright.format.delete_block import DeleteRecords
from lakewright.model.file_group import FileSlice
from lakewright.model.merge import MergedLogRecords, RowChangeCallback, merge_logs, merge_with_base
from lakewright.model.record_keys import bucket_ids
from lakewright.model.schema import RECORD_KEY
from lakewright.scan.slice_reader import batches_of
from lakewright.storage.base import map_in_threads
from lakewright.write.file_group_writer import FileGroupWriter, RollingWriter
from lakewright.write.incoming_rows import (
    as_merge_input,
    by_partition,
    without_deleted,
)
from lakewright.write.index import (
    NOWHERE,
    PartitionState,
    Positions,
    assign_to_small_files,
    live_keys,
    lookup_keys,
)

# Rows of many partitions may be interleaved: this bounds the buffered rows of all partitions.
_MAX_BUFFERED_BYTES = 256 << 20


class BulkWriter:
    """Writes the bulk-inserted rows of one task: an open file for each partition.

    With many partitions the files are small, and most of the time is spent on calls to storage: so
    the files of several partitions are created and closed concurrently.
    """

    def __init__(self, groups: FileGroupWriter) -> None:
        self._groups = groups
        self._writers: dict[str, RollingWriter] = {}

    def write(self, rows: pa.Table) -> None:
        """Add converted rows of any partitions."""
        task = self._groups.task
        rows = without_deleted(rows, task)
        by_path = dict(by_partition(rows)) if len(rows) else {}
        if task.settings.sort_mode.keeps_together:
            self._close([path for path in self._writers if by_path and path not in by_path])
        new_paths = [path for path in by_path if path not in self._writers]
        map_in_threads(lambda path: PartitionState.load(task, path).ensure_metadata(), new_paths)
        self._writers |= {path: RollingWriter(self._groups, path) for path in new_paths}
        for path, part in by_path.items():
            self._writers[path].write(part)
        if sum(writer.waiting_bytes for writer in self._writers.values()) > _MAX_BUFFERED_BYTES:
            max(self._writers.values(), key=lambda writer: writer.waiting_bytes).flush()

    def close(self) -> None:
        """Finish all files."""
        self._close(list(self._writers))

    def _close(self, paths: Sequence[str]) -> None:
        map_in_threads(lambda path: self._writers[path].close(), paths)
        for path in paths:
            del self._writers[path]

    def abort(self, error: BaseException) -> None:
        """Discard the unfinished files."""
        for writer in self._writers.values():
            writer.abort(error)


# Inserts: rows are written without looking up their keys, to small files first, then to new ones.


def insert_rows(groups: FileGroupWriter, partition: PartitionState, rows: pa.Table) -> None:
    """Insert the rows of one partition, without merging them with rows of the table."""
    task = groups.task
    rows = without_deleted(rows, task)
    if task.settings.combine_before_insert:
        merged = merge_logs(as_merge_input(rows, task), task.stored_schema, task.merge_rule)
        rows = merged.rows.take(pa.array(merged.row[~merged.deleted]))
    if not task.operation.replaces and task.settings.duplicate_policy != "none":
        rows = _without_existing(groups, partition, rows)
    if not len(rows):
        return
    if task.buckets:
        _insert_buckets(groups, partition, rows)
        return
    start = 0
    small = () if task.operation.replaces else _claimed_small_files(groups, partition)
    for position, count in assign_to_small_files(small, len(rows)):
        _extend(groups, partition, partition.slices[position], rows.slice(start, count))
        start += count
    if start < len(rows):
        groups.write_new_groups(partition, rows.slice(start))


def _claimed_small_files(
    groups: FileGroupWriter, partition: PartitionState
) -> Iterator[tuple[int, int]]:
    for position, room in partition.small_files():
        if room and groups.claim(partition, partition.slices[position]):
            yield position, room


def _insert_buckets(groups: FileGroupWriter, partition: PartitionState, rows: pa.Table) -> None:
    task = groups.task
    keys = rows.column(RECORD_KEY).combine_chunks()
    bucket_of_row = bucket_ids(
        keys, task.key_rule, task.settings.bucket_hash_fields, task.settings.buckets
    )
    for bucket in np.unique(bucket_of_row).tolist():
        part = rows.filter(pa.array(bucket_of_row == bucket))
        position = None if task.operation.replaces else partition.by_bucket.get(bucket)
        if position is None:
            file_id = groups.bucket_file_id(partition, bucket)
            if task.non_blocking and not task.operation.replaces:
                groups.append_logs(partition, file_id, part, None, inserts=len(part))
            else:
                groups.write_new_groups(partition, part, file_id)
            continue
        item = partition.slices[position]
        partition.check_not_clustering(item)
        if task.merge_on_read:
            groups.append_logs(partition, item.file_id, part, None, inserts=len(part), item=item)
        else:
            _extend(groups, partition, item, part)


def _extend(
    groups: FileGroupWriter, partition: PartitionState, item: FileSlice, rows: pa.Table
) -> None:
    """Write the next base file of a group: its rows, and these."""
    partition.check_not_clustering(item)

    def extended(
        old_rows: Iterator[pa.Table], on_change: RowChangeCallback | None
    ) -> Iterator[pa.Table]:
        if on_change is not None:
            on_change(None, rows)
        return chain(old_rows, [rows])

    groups.merge_base(partition.path, item, extended, inserts=len(rows))


def _without_existing(
    groups: FileGroupWriter, partition: PartitionState, rows: pa.Table
) -> pa.Table:
    task = groups.task
    keys = rows.column(RECORD_KEY).combine_chunks()
    distinct = keys.unique()
    locations = lookup_keys(task, partition.slices, distinct)
    for position in np.unique(locations[locations != NOWHERE]).tolist():
        item = partition.slices[position]
        if item.logs:
            # A key that log files deleted is not in the table any more.
            in_slice = np.flatnonzero(locations == position)
            live = live_keys(task, item, distinct.take(pa.array(in_slice)))
            locations[np.delete(in_slice, live)] = NOWHERE
    existing = distinct.filter(pa.array(locations != NOWHERE))
    if not len(existing):
        return rows
    if task.settings.duplicate_policy == "fail":
        raise InvalidError(
            "rows to insert have keys that are in the table already",
            partition=partition.path,
            keys=existing.slice(0, 5).to_pylist(),
            count=len(existing),
        )
    return rows.filter(pc.invert(pc.is_in(keys, value_set=existing)))


# Merges: rows update or delete the row of their key, or are inserted if the key is new.


@dataclass(frozen=True)
class _NextBase:
    """The changes for the next base file of a group; `inserts` counts rows of new keys."""

    item: FileSlice
    changes: MergedLogRecords
    inserts: int

    @property
    def size(self) -> int:
        return self.item.base.size if self.item.base is not None else 0


def merge_rows(groups: FileGroupWriter, partition: PartitionState, rows: pa.Table) -> None:
    """Merge the rows of one partition: the winning version of each key replaces its row."""
    task = groups.task
    changes = merge_logs(as_merge_input(rows, task), task.stored_schema, task.merge_rule)
    if task.buckets:
        _merge_buckets(groups, partition, changes)
        return
    locations = lookup_keys(task, partition.slices, changes.keys)
    new_keys = np.flatnonzero((locations == NOWHERE) & ~changes.deleted)
    inserts = _assign_new_keys(partition, locations, new_keys) if len(new_keys) else {}
    next_bases = []
    for position, indices in _grouped(locations):
        item = partition.slices[position]
        partition.check_not_clustering(item)
        part = changes.select(indices)
        if task.merge_on_read and position not in inserts:
            append_changes(groups, partition, item.file_id, part, item)
        else:
            next_bases.append(_NextBase(item, part, inserts.get(position, 0)))
    _write_bases(groups, partition, next_bases)
    unassigned = new_keys[locations[new_keys] == NOWHERE]
    if len(unassigned):
        groups.write_new_groups(partition, changes.rows.take(pa.array(changes.row[unassigned])))


def _merge_buckets(
    groups: FileGroupWriter, partition: PartitionState, changes: MergedLogRecords
) -> None:
    task = groups.task
    bucket_of_key = bucket_ids(
        changes.keys, task.key_rule, task.settings.bucket_hash_fields, task.settings.buckets
    )
    next_bases = []
    for bucket, indices in _grouped(bucket_of_key.astype(np.int64)):
        position = partition.by_bucket.get(bucket)
        part = changes.select(indices)
        if position is None:
            _write_first_rows(groups, partition, bucket, part)
            continue
        item = partition.slices[position]
        partition.check_not_clustering(item)
        if task.merge_on_read:
            append_changes(groups, partition, item.file_id, part, item)
        else:
            next_bases.append(_NextBase(item, part, _count_new_keys(groups, item, part)))
    _write_bases(groups, partition, next_bases)


def _count_new_keys(groups: FileGroupWriter, item: FileSlice, changes: MergedLogRecords) -> int:
    """Return how many rows of a bucket have keys that the bucket does not contain."""
    is_new = lookup_keys(groups.task, [item], changes.keys) == NOWHERE
    return int((is_new & ~changes.deleted).sum())


def _write_first_rows(
    groups: FileGroupWriter, partition: PartitionState, bucket: int, changes: MergedLogRecords
) -> None:
    """Write the first rows of a bucket, which has no rows to delete yet.

    With non-blocking concurrency two writers may both create the file group: two base files of one
    group would hide each other, two log files do not.
    """
    file_id = groups.bucket_file_id(partition, bucket)
    if groups.task.non_blocking:
        append_changes(groups, partition, file_id, changes)
        return
    rows = changes.rows.take(pa.array(changes.row[~changes.deleted]))
    if len(rows):
        groups.write_new_groups(partition, rows, file_id)


def _assign_new_keys(
    partition: PartitionState, locations: Positions, new_keys: Positions
) -> dict[int, int]:
    """Assign new keys to small files with room; return how many each slice got."""
    assigned = dict(assign_to_small_files(partition.small_files(), len(new_keys)))
    start = 0
    for position, count in assigned.items():
        locations[new_keys[start : start + count]] = position
        start += count
    return assigned


def append_changes(
    groups: FileGroupWriter,
    partition: PartitionState,
    file_id: str,
    changes: MergedLogRecords,
    item: FileSlice | None = None,
) -> None:
    """Append merged changes to a file group as log files."""
    rows = changes.rows.take(pa.array(changes.row[~changes.deleted]))
    deletes = delete_records(partition.path, changes) if changes.deleted.any() else None
    marked = changes.row[changes.deleted & (changes.row >= 0)]
    deleted_rows = changes.rows.take(pa.array(marked)) if len(marked) else None
    groups.append_logs(partition, file_id, rows, deletes, deleted_rows=deleted_rows, item=item)


def _write_bases(
    groups: FileGroupWriter, partition: PartitionState, bases: Sequence[_NextBase]
) -> None:
    """Write the next base files of some groups, or defer them if they are much work."""
    size = sum(base.size for base in bases)
    if len(bases) > 1 and size > groups.task.settings.defer_bytes:
        for base in bases:
            groups.defer_group(partition, base.item, base.changes, inserts=base.inserts)
        return
    for base in bases:
        merge_group(groups, partition.path, base.item, base.changes, inserts=base.inserts)


def merge_group(
    groups: FileGroupWriter,
    partition: str,
    item: FileSlice,
    outcome: MergedLogRecords,
    *,
    inserts: int,
) -> None:
    """Write the next base file of a group: its rows merged with these changes."""

    def merged(
        old_rows: Iterator[pa.Table], on_change: RowChangeCallback | None
    ) -> Iterator[pa.Table]:
        return merge_with_base(
            batches_of(old_rows), outcome, groups.task.merge_rule, on_change=on_change
        )

    groups.merge_base(partition, item, merged, inserts=inserts)


def delete_records(path: str, outcome: MergedLogRecords) -> DeleteRecords:
    """Return the deleted keys as records of a delete block."""
    indices = pa.array(np.flatnonzero(outcome.deleted))
    keys = outcome.keys.take(indices)
    unconditional = pa.array(outcome.beats_any_base[outcome.deleted])
    return DeleteRecords(
        keys,
        pa.repeat(pa.scalar(path), len(keys)),
        unconditional,
        tuple(column.take(indices) for column in outcome.ordering),
    )


def _grouped(values: Positions) -> list[tuple[int, Positions]]:
    """Return the positions of each value other than NOWHERE, by value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    return [
        (int(ordered[a]), order[a:b])
        for a, b in pairwise(starts)
        if a < b and ordered[a] != NOWHERE
    ]
