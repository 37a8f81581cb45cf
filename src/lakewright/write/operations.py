"""What a task does with its rows: bulk insert, insert, or merge with the rows of the table.

`run_task` writes the rows of one task, and `run_deferred` the work that other tasks deferred. Both
run in Spark's executors and in the local engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError, LakewrightError
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
from lakewright.model.schema import OPERATION, PARTITION_PATH, RECORD_KEY
from lakewright.scan.slice_reader import batches_of
from lakewright.storage.base import map_in_threads
from lakewright.utils.arrow_rows import (
    MAX_CHUNK_BYTES,
    as_array,
    cast_in_pieces,
    is_in,
    split_by_size,
    take_rows,
    without_large_type,
)
from lakewright.utils.bin_packing import batches_by_size
from lakewright.write.base_file_writer import abort_on_failure
from lakewright.write.file_group_writer import FileGroupWriter, RollingWriter
from lakewright.write.gathered_rows import GatheredRows
from lakewright.write.incoming_rows import (
    MOVED_COLUMN,
    as_merge_input,
    by_partition,
    to_table_schema,
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
from lakewright.write.spill import decode_changes, is_file_bound, load_spilled_rows
from lakewright.write.task import (
    DeferredPartition,
    DeferredWork,
    Operation,
    WriteStatus,
    WriteTask,
    WriteToken,
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
    chosen = np.arange(len(rows))
    if task.delete_columns:
        chosen = np.flatnonzero(~rows_marked_deleted(columns, task.merge_rule))
    if task.settings.combine_before_insert:
        merged = _merge_incoming(take_rows(columns, chosen), task)
        chosen = chosen[merged.row[~merged.deleted]]
    if not task.operation.replaces and task.settings.duplicate_policy != "none":
        keys = take_rows(columns.select([RECORD_KEY]), chosen).column(0)
        chosen = chosen[_are_new(groups, partition, keys)]
    if not len(chosen):
        return
    if task.buckets:
        _insert_buckets(groups, partition, rows, chosen)
        return
    small = () if task.operation.replaces else partition.small_files()
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
        _append(groups, partition, item.file_id, part, item)
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
            _append(groups, partition, item.file_id, part, item)
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
        _append(groups, partition, file_id, changes)
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


def _append(
    groups: FileGroupWriter,
    partition: PartitionState,
    file_id: str,
    changes: MergedLogRecords,
    item: FileSlice | None = None,
) -> None:
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


# Tasks: the rows of some partitions.


# Bound for rows of file-bound partitions, kept until the task has read all its partitions.
_MAX_FILE_BOUND_BYTES = 64 << 20
# Bound for the rows, and the files to read, of all partitions that a task writes at once.
_MAX_CONCURRENT_BYTES = 64 << 20
_MAX_CONCURRENT = 1024
# Rows are converted in pieces of this size: types, keys and paths need memory for both forms.
_CONVERTED_BYTES = 64 << 20


def run_task(task: WriteTask, token: WriteToken, batches: Iterable[pa.RecordBatch]) -> WriteStatus:
    """Write the rows of one task.

    A LakewrightError is returned in the status; the engine may raise it, to retry the task. The
    rows of a partition must be contiguous, unless they are bulk inserted.
    """
    groups = FileGroupWriter(task, token)
    try:
        rows = _converted(task, token, batches)
        return (
            _run_bulk_insert(groups, rows)
            if needs_no_shuffle(task)
            else _run_by_partition(groups, rows)
        )
    except LakewrightError as error:
        return groups.status(error=error)


def run_deferred(task: WriteTask, token: WriteToken, works: Iterable[DeferredWork]) -> WriteStatus:
    """Do work that other tasks deferred; a LakewrightError is returned in the status."""
    groups = FileGroupWriter(task, token)
    try:
        _in_threads(task, partial(_do_deferred, groups), works, lambda work: work.size)
        return groups.status()
    except LakewrightError as error:
        return groups.status(error=error)


def _do_deferred(groups: FileGroupWriter, work: DeferredWork) -> None:
    task = groups.task
    if isinstance(work, DeferredPartition):
        partition = PartitionState.load(task, work.partition)
        rows = GatheredRows.of(
            load_spilled_rows(task, work.rows), deciding_columns(task), groups.token.folder
        )
        _write(groups, partition, rows)
        return
    with _size_errors(partition=work.partition, file_id=work.item.file_id):
        stored = pa.concat_tables(load_spilled_rows(task, work.changes))
        changes = decode_changes(stored, task.stored_schema)
        merge_group(groups, work.partition, work.item, changes, inserts=work.inserts)


def needs_no_shuffle(task: WriteTask) -> bool:
    """Whether rows of one partition may be in several tasks, which all write their own files."""
    settings = task.settings
    compared = settings.combine_before_insert or settings.duplicate_policy != "none"
    return task.operation is Operation.BULK_INSERT and not task.buckets and not compared


def _run_bulk_insert(groups: FileGroupWriter, tables: Iterable[pa.Table]) -> WriteStatus:
    with abort_on_failure(BulkWriter(groups)) as writer:
        for rows in tables:
            with _size_errors(rows=len(rows), bytes=rows.nbytes):
                writer.write(rows)
        writer.close()
    return groups.status()


def _run_by_partition(groups: FileGroupWriter, tables: Iterable[pa.Table]) -> WriteStatus:
    task = groups.task
    replaced: dict[str, tuple[str, ...]] = {}
    file_bound: list[tuple[PartitionState, GatheredRows]] = []
    gathered = _partitions(task, groups.token, tables)
    for batch in batches_by_size(
        gathered, lambda item: item[1].nbytes, _MAX_CONCURRENT_BYTES, _at_once(task)
    ):
        row_bound: list[tuple[PartitionState, GatheredRows]] = []
        paths = [path for path, _ in batch]
        partitions = map_in_threads(partial(PartitionState.load, task), paths)
        for partition, (path, rows) in zip(partitions, batch, strict=True):
            if task.operation.replaces:
                replaced[path] = tuple(item.file_id for item in partition.slices)
                for item in partition.slices:
                    partition.check_not_clustering(item)
            is_bound = is_file_bound(partition.read_bytes, rows.nbytes)
            (file_bound if is_bound else row_bound).append((partition, rows))
        _write_all(groups, row_bound)
        if sum(rows.nbytes for _, rows in file_bound) > _MAX_FILE_BOUND_BYTES:
            _write_file_bound(groups, file_bound)
            file_bound = []
    _write_file_bound(groups, file_bound)
    return groups.status(replaced)


def _at_once(task: WriteTask) -> int:
    """Return how many partitions a task writes at once: more than one only to hide latency."""
    return _MAX_CONCURRENT if task.storage.is_remote else 1


def _in_threads(
    task: WriteTask,
    work: Callable[[Item], None],
    items: Iterable[Item],
    size: Callable[[Item], int],
) -> None:
    """Do the work of several small items at once; large ones have the memory of the task alone."""
    for batch in batches_by_size(items, size, _MAX_CONCURRENT_BYTES, _at_once(task)):
        map_in_threads(work, batch)


def _write_all(
    groups: FileGroupWriter, partitions: Iterable[tuple[PartitionState, GatheredRows]]
) -> None:
    """Write the rows of some partitions."""
    _in_threads(
        groups.task,
        lambda item: _write(groups, *item),
        partitions,
        lambda item: item[0].read_bytes + item[1].nbytes,
    )


def _write(groups: FileGroupWriter, partition: PartitionState, rows: GatheredRows) -> None:
    with closing(rows), _size_errors(partition=partition.path, rows=len(rows), bytes=rows.nbytes):
        if groups.task.operation.merges:
            merge_rows(groups, partition, rows)
        else:
            insert_rows(groups, partition, rows)


def _write_file_bound(
    groups: FileGroupWriter, file_bound: Sequence[tuple[PartitionState, GatheredRows]]
) -> None:
    """Write rows whose work is mostly reading files, or defer them if it is much work."""
    read_bytes = sum(partition.read_bytes for partition, _ in file_bound)
    defers = len(file_bound) > 1 and read_bytes > groups.task.settings.defer_bytes
    if not defers:
        _write_all(groups, file_bound)
        return
    for partition, rows in file_bound:
        with closing(rows):
            groups.defer(partition, rows.tables())


@contextmanager
def _size_errors(**facts: object) -> Iterator[None]:
    """Raise InvalidError where rows exceed the memory of a worker or a limit of Arrow.

    Spark would run the task again and again, with the same rows.
    """
    try:
        yield
    except MemoryError as error:
        raise InvalidError(
            "a worker has too little memory for these rows: give executors more memory for Python, "
            "or write fewer rows at once",
            **facts,
            cause=str(error),
        ) from error
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        if not isinstance(error, pa.ArrowCapacityError) and "overflow" not in str(error):
            raise
        raise InvalidError(
            "values of these rows are too large for Arrow, which holds 2 GiB of one column "
            "together: write fewer rows at once, or shorter values",
            **facts,
            cause=str(error),
        ) from error


def deciding_columns(task: WriteTask) -> Callable[[pa.Schema], list[str]]:
    """Return the function that selects the columns that decide where a row goes and which wins."""
    needed = {RECORD_KEY, MOVED_COLUMN, OPERATION, *task.merge_rule.ordering, *task.delete_columns}
    return lambda schema: [name for name in schema.names if name in needed]


def _converted(
    task: WriteTask, token: WriteToken, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.Table]:
    first = 0
    for batch in batches:
        with _size_errors(rows=batch.num_rows, bytes=batch.nbytes):
            for rows in split_by_size(pa.Table.from_batches([batch]), _CONVERTED_BYTES):
                yield to_table_schema(rows, task, token, first)
                first += len(rows)


def _partitions(
    task: WriteTask, token: WriteToken, tables: Iterable[pa.Table]
) -> Iterator[tuple[str, GatheredRows]]:
    """Return the rows of each partition; those of a partition must be contiguous."""
    finished: set[str] = set()
    current: str | None = None
    rows = GatheredRows(deciding_columns(task), token.folder)
    try:
        for table in tables:
            for path, part in by_partition(table):
                if path != current:
                    if current is not None:
                        yield current, rows
                    if path in finished:
                        raise InvalidError(
                            "rows of one partition came apart",
                            partition=path,
                            column=PARTITION_PATH,
                        )
                    finished.add(path)
                    current, rows = path, GatheredRows(deciding_columns(task), token.folder)
                rows.add(part)
        if current is not None:
            yield current, rows
    except BaseException:
        rows.close()
        raise
