"""What a task does with rows: bulk insert, insert, or merge with the rows of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError
from lakewright.format.delete_block import DeleteRecords
from lakewright.model.file_group import FileSlice
from lakewright.model.merge import (
    MergedLogRecords,
    RowChangeCallback,
    merge_logs,
    merge_with_base,
    rows_marked_deleted,
)
from lakewright.model.record_keys import bucket_ids
from lakewright.model.schema import OPERATION, RECORD_KEY
from lakewright.scan.slice_reader import batches_of
from lakewright.storage.base import map_in_threads
from lakewright.utils.arrow_rows import (
    MAX_CHUNK_BYTES,
    as_array,
    cast_in_pieces,
    is_in,
    take_rows,
    without_large_type,
)
from lakewright.write.file_group_writer import FileGroupWriter, RollingWriter
from lakewright.write.gathered_rows import GatheredRows
from lakewright.write.incoming_rows import (
    MOVED_COLUMN,
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
from lakewright.write.task import (
    WriteTask,
)

Item = TypeVar("Item")

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


def insert_rows(groups: FileGroupWriter, partition: PartitionState, rows: GatheredRows) -> None:
    """Insert the rows of one partition, without merging them with rows of the table."""
    task = groups.task
    columns = rows.columns()
    chosen = rows_to_insert(rows, task)
    if not task.operation.replaces and task.settings.duplicate_policy != "none":
        keys = take_rows(columns.select([RECORD_KEY]), chosen).column(0)
        chosen = chosen[_are_new(groups, partition, keys)]
    if not len(chosen):
        return
    if task.buckets:
        _insert_buckets(groups, partition, rows, chosen)
        return
    small = () if task.operation.replaces else _claimed_small_files(groups, partition)
    assigned = assign_to_small_files(small, len(chosen))
    ends = np.cumsum([count for _, count in assigned], dtype=np.int64)
    shares = np.split(chosen, ends)
    targets = [position for position, _ in assigned]
    for position, pieces in zip([*targets, None], rows.groups(shares), strict=True):
        if position is None:
            groups.write_new_groups(partition, pieces)
        else:
            share = len(shares[targets.index(position)])
            _extend(groups, partition, partition.slices[position], pieces, share)


def rows_to_insert(rows: GatheredRows, task: WriteTask) -> Positions:
    """Return the numbers of the rows to insert: not the deleted ones, and one of each key."""
    columns = rows.columns()
    chosen = np.arange(len(rows))
    if task.delete_columns:
        chosen = np.flatnonzero(~rows_marked_deleted(columns, task.merge_rule))
    if task.settings.combine_before_insert:
        merged = _merge_incoming(take_rows(columns, chosen), task)
        chosen = chosen[merged.row[~merged.deleted]]
    return chosen


def _claimed_small_files(
    groups: FileGroupWriter, partition: PartitionState
) -> Iterator[tuple[int, int]]:
    for position, room in partition.small_files():
        if room and groups.claim(partition, partition.slices[position]):
            yield position, room


def _insert_buckets(
    groups: FileGroupWriter, partition: PartitionState, rows: GatheredRows, chosen: Positions
) -> None:
    task = groups.task
    keys = take_rows(rows.columns().select([RECORD_KEY]), chosen).column(0)
    by_bucket = _grouped(_buckets_of(task, keys))
    shares = [chosen[places] for _, places in by_bucket]
    for (bucket, _), share, pieces in zip(by_bucket, shares, rows.groups(shares), strict=True):
        position = None if task.operation.replaces else partition.by_bucket.get(bucket)
        if position is None:
            file_id = groups.bucket_file_id(partition, bucket)
            if task.non_blocking and not task.operation.replaces:
                _append_rows(groups, partition, file_id, pieces)
            else:
                groups.write_new_groups(partition, pieces, file_id)
            continue
        item = partition.slices[position]
        partition.check_not_clustering(item)
        if task.merge_on_read:
            _append_rows(groups, partition, item.file_id, pieces, item)
        else:
            _extend(groups, partition, item, pieces, len(share))


def _append_rows(
    groups: FileGroupWriter,
    partition: PartitionState,
    file_id: str,
    pieces: Iterable[pa.Table],
    item: FileSlice | None = None,
) -> None:
    rows = pa.concat_tables(pieces)
    groups.append_logs(partition, file_id, rows, None, inserts=len(rows), item=item)


def _extend(
    groups: FileGroupWriter,
    partition: PartitionState,
    item: FileSlice,
    pieces: Iterable[pa.Table],
    count: int,
) -> None:
    """Write the next base file of a group: its rows, and `count` new ones."""
    partition.check_not_clustering(item)

    def extended(
        old_rows: Iterator[pa.Table], on_change: RowChangeCallback | None
    ) -> Iterator[pa.Table]:
        yield from old_rows
        for rows in pieces:
            if on_change is not None:
                on_change(None, rows)
            yield rows

    groups.merge_base(partition.path, item, extended, inserts=count)


def _are_new(
    groups: FileGroupWriter, partition: PartitionState, keys: pa.ChunkedArray
) -> npt.NDArray[np.bool_]:
    """Return which rows have keys that the partition does not contain; refuse others if asked."""
    task = groups.task
    distinct = as_array(keys).unique()
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
        return np.ones(len(keys), bool)
    if task.settings.duplicate_policy == "fail":
        raise InvalidError(
            "rows to insert have keys that are in the table already",
            partition=partition.path,
            keys=existing.slice(0, 5).to_pylist(),
            count=len(existing),
        )
    return ~np.asarray(is_in(keys, existing))


# Merges: rows update or delete the row of their key, or are inserted if the key is new.


def merge_rows(groups: FileGroupWriter, partition: PartitionState, rows: GatheredRows) -> None:
    """Merge the rows of one partition: the winning version of each key replaces its row."""
    task = groups.task
    changes = _merge_incoming(rows.columns(), task)
    if task.buckets:
        _merge_buckets(groups, partition, rows, changes)
        return
    locations = lookup_keys(task, partition.slices, changes.keys)
    new_keys = np.flatnonzero((locations == NOWHERE) & ~changes.deleted)
    inserts = _assign_new_keys(partition, locations, new_keys) if len(new_keys) else {}
    by_position = _grouped(locations)
    for position, _ in by_position:
        partition.check_not_clustering(partition.slices[position])
    to_log = [
        (position, places)
        for position, places in by_position
        if task.merge_on_read and position not in inserts
    ]
    logged = {position for position, _ in to_log}
    to_base = [(position, places) for position, places in by_position if position not in logged]
    unassigned = new_keys[locations[new_keys] == NOWHERE]
    shares = [*(places for _, places in (*to_log, *to_base)), unassigned]
    pieces_of = rows.groups([_rows_of(changes, places) for places in shares])
    for position, places in to_log:
        item = partition.slices[position]
        part = _own_rows(changes, places, next(pieces_of), task)
        append_changes(groups, partition, item.file_id, part, item)
    defers = _defers(task, [partition.slices[position] for position, _ in to_base])
    for position, places in to_base:
        part = _own_rows(changes, places, next(pieces_of), task)
        item, count = partition.slices[position], inserts.get(position, 0)
        _write_base(groups, partition, item, part, inserts=count, defers=defers)
    if len(unassigned):
        stored = task.stored_schema.names
        new_rows = (piece.select(stored) for piece in next(pieces_of))
        groups.write_new_groups(partition, new_rows)


def _merge_buckets(
    groups: FileGroupWriter,
    partition: PartitionState,
    rows: GatheredRows,
    changes: MergedLogRecords,
) -> None:
    task = groups.task
    by_bucket = _grouped(_buckets_of(task, changes.keys))
    known = [
        partition.slices[partition.by_bucket[bucket]]
        for bucket, _ in by_bucket
        if bucket in partition.by_bucket
    ]
    for item in known:
        partition.check_not_clustering(item)
    defers = not task.merge_on_read and _defers(task, known)
    pieces_of = rows.groups([_rows_of(changes, places) for _, places in by_bucket])
    for (bucket, places), pieces in zip(by_bucket, pieces_of, strict=True):
        position = partition.by_bucket.get(bucket)
        part = _own_rows(changes, places, pieces, task)
        if position is None:
            _write_first_rows(groups, partition, bucket, part)
            continue
        item = partition.slices[position]
        if task.merge_on_read:
            append_changes(groups, partition, item.file_id, part, item)
        else:
            new_keys = _count_new_keys(groups, item, part)
            _write_base(groups, partition, item, part, inserts=new_keys, defers=defers)


def _merge_incoming(columns: pa.Table, task: WriteTask) -> MergedLogRecords:
    """Merge the versions of each key, given the columns that decide; `row` numbers all rows."""
    names = deciding_columns(task)(task.stored_schema)
    schema = pa.schema([task.stored_schema.field(name) for name in names])
    changes = merge_logs(as_merge_input(columns, task), schema, task.merge_rule)
    if MOVED_COLUMN not in columns.column_names:
        return changes
    upserts = np.flatnonzero(~np.asarray(pc.fill_null(columns.column(MOVED_COLUMN), False)))
    has_row = changes.row >= 0
    numbers = np.full(len(changes.row), -1, np.int64)
    numbers[has_row] = upserts[changes.row[has_row]]
    return replace(changes, row=numbers)


def winning_changes(rows: GatheredRows, task: WriteTask) -> MergedLogRecords:
    """Return the winning version of each key, with all columns of its row."""
    changes = _merge_incoming(rows.columns(), task)
    places = np.arange(len(changes.keys))
    (own,) = (
        _own_rows(changes, places, pieces, task)
        for pieces in rows.groups([_rows_of(changes, places)])
    )
    return own


def _rows_of(changes: MergedLogRecords, places: Positions) -> Positions:
    """Return the numbers of the rows of some entries, in the order of the entries."""
    numbers = changes.row[places]
    return numbers[numbers >= 0]


def _own_rows(
    changes: MergedLogRecords, places: Positions, pieces: Iterable[pa.Table], task: WriteTask
) -> MergedLogRecords:
    """Return some entries with their own rows only, with all columns."""
    part = changes.select(places)
    schema = task.stored_schema
    rows = [piece.select(schema.names) for piece in pieces]
    has_row = part.row >= 0
    numbers = np.where(has_row, np.cumsum(has_row) - 1, -1)
    return replace(part, rows=pa.concat_tables([schema.empty_table(), *rows]), row=numbers)


def _buckets_of(task: WriteTask, keys: pa.Array | pa.ChunkedArray) -> Positions:
    """Return the bucket of each key."""
    chunks = cast_in_pieces(keys, pa.string()) if isinstance(keys, pa.Array) else keys.chunks
    fields, count = task.settings.bucket_hash_fields, task.settings.buckets
    buckets = [bucket_ids(chunk, task.key_rule, fields, count) for chunk in chunks]
    return np.concatenate([np.zeros(0, np.int64), *buckets])


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
    rows = changes.winning_rows()
    if len(rows):
        groups.write_new_groups(partition, [rows], file_id)


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
    rows = changes.winning_rows()
    deletes = delete_records(partition.path, changes) if changes.deleted.any() else None
    marked = changes.row[changes.deleted & (changes.row >= 0)]
    deleted_rows = take_rows(changes.rows, marked) if len(marked) else None
    groups.append_logs(partition, file_id, rows, deletes, deleted_rows=deleted_rows, item=item)


def _defers(task: WriteTask, bases: Sequence[FileSlice]) -> bool:
    """Whether rewriting these base files is so much work that other tasks should do it."""
    size = sum(item.base.size for item in bases if item.base is not None)
    return len(bases) > 1 and size > task.settings.defer_bytes


def _write_base(
    groups: FileGroupWriter,
    partition: PartitionState,
    item: FileSlice,
    changes: MergedLogRecords,
    *,
    inserts: int,
    defers: bool,
) -> None:
    """Write the next base file of a group, or defer it."""
    if defers:
        groups.defer_group(partition, item, changes, inserts=inserts)
    else:
        merge_group(groups, partition.path, item, changes, inserts=inserts)


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
    keys = without_large_type(outcome.keys.take(indices))
    unconditional = pa.array(outcome.beats_any_base[outcome.deleted])
    kind = pa.string() if len(path) * len(keys) < MAX_CHUNK_BYTES // 4 else pa.large_string()
    return DeleteRecords(
        keys,
        pa.repeat(pa.scalar(path, kind), len(keys)),
        unconditional,
        tuple(without_large_type(column.take(indices)) for column in outcome.ordering),
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


def deciding_columns(task: WriteTask) -> Callable[[pa.Schema], list[str]]:
    """Return the function that selects the columns that decide where a row goes and which wins."""
    needed = {RECORD_KEY, MOVED_COLUMN, OPERATION, *task.merge_rule.ordering, *task.delete_columns}
    return lambda schema: [name for name in schema.names if name in needed]
