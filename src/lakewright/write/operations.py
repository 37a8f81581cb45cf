"""Bulk inserts: every task writes the rows it gets, whatever their partition, into new files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError, LakewrightError
from lakewright.format.delete_block import DeleteRecords
from lakewright.model.file_group import FileSlice
from lakewright.model.merge import MergedLogRecords, RowChangeCallback, merge_logs, merge_with_base
from lakewright.model.record_keys import bucket_ids
from lakewright.model.schema import PARTITION_PATH, RECORD_KEY
from lakewright.scan.slice_reader import batches_of
from lakewright.storage.base import map_in_threads
from lakewright.write.base_file_writer import abort_on_failure
from lakewright.write.file_group_writer import FileGroupWriter, RollingWriter
from lakewright.write.incoming_rows import (
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
from lakewright.write.spill import SpillBuffer, decode_changes, is_file_bound, load_spilled_rows
from lakewright.write.task import (
    DeferredPartition,
    DeferredWork,
    Operation,
    WriteStatus,
    WriteTask,
    WriteToken,
)

# Rows of many partitions may come in turn: what waits for its file is bounded for all together.
_MOST_WAITING_BYTES = 256 << 20


class BulkWriter:
    """Open files of one task, one for each partition that it has met.

    Files are small where partitions are many, and their time goes into waiting for storage: those
    of several partitions are made at once.
    """

    def __init__(self, groups: FileGroupWriter) -> None:
        self._groups = groups
        self._open: dict[str, RollingWriter] = {}

    def write(self, rows: pa.Table) -> None:
        """Add prepared rows of any partitions."""
        task = self._groups.task
        rows = without_deleted(rows, task)
        parts = dict(by_partition(rows)) if len(rows) else {}
        if task.settings.sort_mode.keeps_together:
            self._end([path for path in self._open if parts and path not in parts])
        new = [path for path in parts if path not in self._open]
        map_in_threads(lambda path: PartitionState.load(task, path).ensure_metadata(), new)
        self._open |= {path: RollingWriter(self._groups, path) for path in new}
        for path, part in parts.items():
            self._open[path].write(part)
        if sum(writer.waiting_bytes for writer in self._open.values()) > _MOST_WAITING_BYTES:
            max(self._open.values(), key=lambda writer: writer.waiting_bytes).flush()

    def close(self) -> None:
        """End all files."""
        self._end(list(self._open))

    def _end(self, paths: Sequence[str]) -> None:
        map_in_threads(lambda path: self._open[path].close(), paths)
        for path in paths:
            del self._open[path]

    def abort(self, error: BaseException) -> None:
        """Let the files in the making not appear."""
        for writer in self._open.values():
            writer.abort(error)


# ------------------------------------------------------------------------------------------------
# Rows that meet no older ones: into small files while there is room, then into new ones.


def insert_rows(groups: FileGroupWriter, partition: PartitionState, rows: pa.Table) -> None:
    """Write the rows of one partition without looking for older ones of their keys."""
    task = groups.task
    rows = without_deleted(rows, task)
    if task.settings.combine_before_insert:
        outcome = merge_logs(as_merge_input(rows, task), task.stored_schema, task.rule)
        rows = outcome.rows.take(pa.array(outcome.row[~outcome.deleted]))
    if not task.operation.replaces and task.settings.duplicate_policy != "none":
        rows = _without_known(groups, partition, rows)
    if not len(rows):
        return
    if task.buckets:
        _insert_buckets(groups, partition, rows)
        return
    start = 0
    small = () if task.operation.replaces else partition.small_files()
    for position, share in assign_to_small_files(small, len(rows)):
        _extend(groups, partition, partition.slices[position], rows.slice(start, share))
        start += share
    if start < len(rows):
        groups.write_new_groups(partition, rows.slice(start))


def _insert_buckets(groups: FileGroupWriter, partition: PartitionState, rows: pa.Table) -> None:
    task = groups.task
    keys = rows.column(RECORD_KEY).combine_chunks()
    ids = bucket_ids(keys, task.keys, task.settings.bucket_hash_fields, task.settings.buckets)
    for bucket in np.unique(ids).tolist():
        part = rows.filter(pa.array(ids == bucket))
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
    """The next base file of a group: its rows, and these."""
    partition.check_not_clustering(item)

    def extended(old: Iterator[pa.Table], seen: RowChangeCallback | None) -> Iterator[pa.Table]:
        if seen is not None:
            seen(None, rows)
        return chain(old, [rows])

    groups.merge_base(partition.path, item, extended, inserts=len(rows))


def _without_known(groups: FileGroupWriter, partition: PartitionState, rows: pa.Table) -> pa.Table:
    task = groups.task
    keys = rows.column(RECORD_KEY).combine_chunks()
    distinct = keys.unique()
    where = lookup_keys(task, partition.slices, distinct)
    for position in np.unique(where[where != NOWHERE]).tolist():
        item = partition.slices[position]
        if item.logs:
            # A key that log files have deleted is not there any more.
            asked = np.flatnonzero(where == position)
            alive = live_keys(task, item, distinct.take(pa.array(asked)))
            where[np.delete(asked, alive)] = NOWHERE
    known = distinct.filter(pa.array(where != NOWHERE))
    if not len(known):
        return rows
    if task.settings.duplicate_policy == "fail":
        raise InvalidError(
            "rows to insert have keys that are in the table already",
            partition=partition.path,
            keys=known.slice(0, 5).to_pylist(),
            count=len(known),
        )
    return rows.filter(pc.invert(pc.is_in(keys, value_set=known)))


# ------------------------------------------------------------------------------------------------
# Rows that meet older rows of their key: updates, inserts of new keys, deletes.


@dataclass(frozen=True)
class _NextBase:
    """The changes that make the next base file of a group; `inserts` are of new keys."""

    item: FileSlice
    changes: MergedLogRecords
    inserts: int

    @property
    def size(self) -> int:
        return self.item.base.size if self.item.base is not None else 0


def merge_rows(groups: FileGroupWriter, partition: PartitionState, rows: pa.Table) -> None:
    """Write the rows of one partition: of each key the version that wins, where the key lives."""
    task = groups.task
    outcome = merge_logs(as_merge_input(rows, task), task.stored_schema, task.rule)
    if task.buckets:
        _merge_buckets(groups, partition, outcome)
        return
    where = lookup_keys(task, partition.slices, outcome.keys)
    new = np.flatnonzero((where == NOWHERE) & ~outcome.deleted)
    inserts = _fill(partition, where, new) if len(new) else {}
    next_bases = []
    for position, chosen in _grouped(where):
        item = partition.slices[position]
        partition.check_not_clustering(item)
        part = outcome.select(chosen)
        if task.merge_on_read and position not in inserts:
            _append(groups, partition, item.file_id, part, item)
        else:
            next_bases.append(_NextBase(item, part, inserts.get(position, 0)))
    _write_bases(groups, partition, next_bases)
    rest = new[where[new] == NOWHERE]
    if len(rest):
        groups.write_new_groups(partition, outcome.rows.take(pa.array(outcome.row[rest])))


def _merge_buckets(
    groups: FileGroupWriter, partition: PartitionState, outcome: MergedLogRecords
) -> None:
    task = groups.task
    ids = bucket_ids(
        outcome.keys, task.keys, task.settings.bucket_hash_fields, task.settings.buckets
    )
    next_bases = []
    for bucket, chosen in _grouped(ids.astype(np.int64)):
        position = partition.by_bucket.get(bucket)
        part = outcome.select(chosen)
        if position is None:
            _begin_bucket(groups, partition, bucket, part)
            continue
        item = partition.slices[position]
        partition.check_not_clustering(item)
        if task.merge_on_read:
            _append(groups, partition, item.file_id, part, item)
        else:
            next_bases.append(_NextBase(item, part, _unknown(groups, item, part)))
    _write_bases(groups, partition, next_bases)


def _unknown(groups: FileGroupWriter, item: FileSlice, outcome: MergedLogRecords) -> int:
    """How many rows of a bucket have keys that it does not hold yet."""
    nowhere = lookup_keys(groups.task, [item], outcome.keys) == NOWHERE
    return int((nowhere & ~outcome.deleted).sum())


def _begin_bucket(
    groups: FileGroupWriter, partition: PartitionState, bucket: int, outcome: MergedLogRecords
) -> None:
    """The first rows of a bucket; there is nothing to delete in it.

    Writers that do not wait for each other may both begin it: two base files of one group would
    hide each other, two log files do not.
    """
    file_id = groups.bucket_file_id(partition, bucket)
    if groups.task.non_blocking:
        _append(groups, partition, file_id, outcome)
        return
    rows = outcome.rows.take(pa.array(outcome.row[~outcome.deleted]))
    if len(rows):
        groups.write_new_groups(partition, rows, file_id)


def _fill(partition: PartitionState, where: Positions, new: Positions) -> dict[int, int]:
    """Give new keys to small files, as far as there is room; tells which slices got some."""
    filled = dict(assign_to_small_files(partition.small_files(), len(new)))
    start = 0
    for position, share in filled.items():
        where[new[start : start + share]] = position
        start += share
    return filled


def _append(
    groups: FileGroupWriter,
    partition: PartitionState,
    file_id: str,
    outcome: MergedLogRecords,
    item: FileSlice | None = None,
) -> None:
    rows = outcome.rows.take(pa.array(outcome.row[~outcome.deleted]))
    deletes = delete_records(partition.path, outcome) if outcome.deleted.any() else None
    said = outcome.row[outcome.deleted & (outcome.row >= 0)]
    gone = outcome.rows.take(pa.array(said)) if len(said) else None
    groups.append_logs(partition, file_id, rows, deletes, gone=gone, item=item)


def _write_bases(
    groups: FileGroupWriter, partition: PartitionState, bases: Sequence[_NextBase]
) -> None:
    """Write the next base files of some groups, or leave them to others if they are much work."""
    size = sum(base.size for base in bases)
    if len(bases) > 1 and size > groups.task.settings.hand_on_bytes:
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
    """Write the next base file of a group: its rows with these changes."""

    def merged(old: Iterator[pa.Table], seen: RowChangeCallback | None) -> Iterator[pa.Table]:
        return merge_with_base(batches_of(old), outcome, groups.task.rule, seen=seen)

    groups.merge_base(partition, item, merged, inserts=inserts)


def delete_records(path: str, outcome: MergedLogRecords) -> DeleteRecords:
    """The keys that are deleted, as a log file tells of them."""
    gone = pa.array(np.flatnonzero(outcome.deleted))
    keys = outcome.keys.take(gone)
    unconditional = pa.array(outcome.beats_any_base[outcome.deleted])
    return DeleteRecords(
        keys,
        pa.repeat(pa.scalar(path), len(keys)),
        unconditional,
        tuple(column.take(gone) for column in outcome.ordering),
    )


def _grouped(values: Positions) -> list[tuple[int, Positions]]:
    """The positions of each value that is not NOWHERE, by value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    return [
        (int(ordered[a]), order[a:b])
        for a, b in pairwise(starts)
        if a < b and ordered[a] != NOWHERE
    ]


# ------------------------------------------------------------------------------------------------
# The work of one task: rows of some partitions into files; on Spark and in a plain loop alike.


# Rows that wait until a task has seen all its partitions.
_MOST_HELD_BYTES = 64 << 20


def run_task(task: WriteTask, token: WriteToken, batches: Iterable[pa.RecordBatch]) -> WriteStatus:
    """Write the rows of one task; an error of ours comes back as a value, so nothing is retried.

    Rows of one partition must come together, unless they are bulk inserted.
    """
    groups = FileGroupWriter(task, token)
    try:
        rows = _prepared(task, token, batches)
        return _bulk(groups, rows) if needs_no_shuffle(task) else _by_partition(groups, rows)
    except LakewrightError as error:
        return groups.status(error=error)


def run_deferred(task: WriteTask, token: WriteToken, works: Iterable[DeferredWork]) -> WriteStatus:
    """Do what other tasks have handed on; an error of ours comes back as a value."""
    groups = FileGroupWriter(task, token)
    try:
        for work in works:
            if isinstance(work, DeferredPartition):
                partition = PartitionState.load(task, work.partition)
                _write(groups, partition, load_spilled_rows(task, work.rows))
            else:
                changes = decode_changes(load_spilled_rows(task, work.changes), task.stored_schema)
                merge_group(groups, work.partition, work.item, changes, inserts=work.inserts)
        return groups.status()
    except LakewrightError as error:
        return groups.status(error=error)


def needs_no_shuffle(task: WriteTask) -> bool:
    """Whether rows need not meet others of their partition: every task makes its own files."""
    settings = task.settings
    compared = settings.combine_before_insert or settings.duplicate_policy != "none"
    return task.operation is Operation.BULK_INSERT and not task.buckets and not compared


def _bulk(groups: FileGroupWriter, tables: Iterable[pa.Table]) -> WriteStatus:
    with abort_on_failure(BulkWriter(groups)) as writer:
        for rows in tables:
            writer.write(rows)
        writer.close()
    return groups.status()


def _by_partition(groups: FileGroupWriter, tables: Iterable[pa.Table]) -> WriteStatus:
    task = groups.task
    replaced: dict[str, tuple[str, ...]] = {}
    heavy: list[tuple[PartitionState, pa.Table]] = []
    for path, rows in _partitions(tables):
        partition = PartitionState.load(task, path)
        if task.operation.replaces:
            replaced[path] = tuple(item.file_id for item in partition.slices)
            for item in partition.slices:
                partition.check_not_clustering(item)
        if is_file_bound(partition.read_bytes, rows):
            heavy.append((partition, rows))
            if sum(rows.nbytes for _, rows in heavy) > _MOST_HELD_BYTES:
                _write_file_bound(groups, heavy)
                heavy = []
        else:
            _write(groups, partition, rows)
    _write_file_bound(groups, heavy)
    return groups.status(replaced)


def _write(groups: FileGroupWriter, partition: PartitionState, rows: pa.Table) -> None:
    if groups.task.operation.merges:
        merge_rows(groups, partition, rows)
    else:
        insert_rows(groups, partition, rows)


def _write_file_bound(
    groups: FileGroupWriter, heavy: Sequence[tuple[PartitionState, pa.Table]]
) -> None:
    """Write rows that make more work than they show, or leave them to others if it is much."""
    weight = sum(partition.read_bytes for partition, _ in heavy)
    hands_on = len(heavy) > 1 and weight > groups.task.settings.hand_on_bytes
    for partition, rows in heavy:
        if hands_on:
            groups.defer(partition, rows)
        else:
            _write(groups, partition, rows)


def _prepared(
    task: WriteTask, token: WriteToken, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.Table]:
    first = 0
    for batch in batches:
        if batch.num_rows:
            yield to_table_schema(pa.Table.from_batches([batch]), task, token, first)
            first += batch.num_rows


def _partitions(tables: Iterable[pa.Table]) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each partition, which come one after the other."""
    done: set[str] = set()
    current: str | None = None
    rows = SpillBuffer()
    for table in tables:
        for path, part in by_partition(table):
            if path != current:
                if current is not None:
                    with closing(rows):
                        yield current, rows.table()
                if path in done:
                    raise InvalidError(
                        "rows of one partition came apart", partition=path, column=PARTITION_PATH
                    )
                done.add(path)
                current, rows = path, SpillBuffer()
            rows.add(part)
    if current is not None:
        with closing(rows):
            yield current, rows.table()
