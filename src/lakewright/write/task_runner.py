"""Runs the tasks of a write: distributes the rows of a task to what is done with them.

`run_task` writes the rows of one task, and `run_deferred` the work that other tasks deferred. Both
run in Spark's executors and in the local engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from lakewright.errors import InvalidError, LakewrightError
from lakewright.model.schema import PARTITION_PATH
from lakewright.write.base_file_writer import abort_on_failure
from lakewright.write.distribution import Distribution, looks_up_keys
from lakewright.write.file_group_writer import FileGroupWriter
from lakewright.write.incoming_rows import by_partition, to_table_schema
from lakewright.write.index import PartitionState
from lakewright.write.operations import BulkWriter, insert_rows, merge_group, merge_rows
from lakewright.write.spill import SpillBuffer, decode_changes, is_file_bound, load_spilled_rows
from lakewright.write.targeted_rows import write_targeted
from lakewright.write.task import (
    DeferredPartition,
    DeferredWork,
    WriteStatus,
    WriteTask,
    WriteToken,
)

# Bound for rows of file-bound partitions, kept until the task has read all its partitions.
_MAX_FILE_BOUND_BYTES = 64 << 20


def run_task(
    task: WriteTask,
    token: WriteToken,
    batches: Iterable[pa.RecordBatch],
    distribution: Distribution = Distribution.BY_PARTITION,
) -> WriteStatus:
    """Write the rows of one task.

    A LakewrightError is returned in the status instead of raised, so that Spark does not retry the
    task. What must be contiguous is up to the distribution.
    """
    groups = FileGroupWriter(task, token)
    groups.shares_partitions = distribution is Distribution.BALANCED
    try:
        rows = _converted(task, token, batches)
        if distribution is Distribution.AS_THEY_COME:
            return _run_bulk_insert(groups, rows)
        if distribution.is_targeted:
            return groups.status(write_targeted(groups, rows))
        return _run_by_partition(groups, rows)
    except LakewrightError as error:
        return groups.status(error=error)


def run_deferred(task: WriteTask, token: WriteToken, works: Iterable[DeferredWork]) -> WriteStatus:
    """Do work that other tasks deferred; a LakewrightError is returned in the status."""
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


def _run_bulk_insert(groups: FileGroupWriter, tables: Iterable[pa.Table]) -> WriteStatus:
    with abort_on_failure(BulkWriter(groups)) as writer:
        for rows in tables:
            writer.write(rows)
        writer.close()
    return groups.status()


def _run_by_partition(groups: FileGroupWriter, tables: Iterable[pa.Table]) -> WriteStatus:
    task = groups.task
    replaced: dict[str, tuple[str, ...]] = {}
    file_bound: list[tuple[PartitionState, pa.Table]] = []
    for path, rows in _partitions(tables, _max_partition_bytes(task)):
        if rows is None:
            groups.too_large.append(path)
            return groups.status()
        partition = PartitionState.load(task, path)
        if task.operation.replaces:
            replaced[path] = partition.file_ids_to_replace()
        if is_file_bound(partition.read_bytes, rows):
            file_bound.append((partition, rows))
            if sum(rows.nbytes for _, rows in file_bound) > _MAX_FILE_BOUND_BYTES:
                _write_file_bound(groups, file_bound)
                file_bound = []
        else:
            _write(groups, partition, rows)
    _write_file_bound(groups, file_bound)
    return groups.status(replaced)


def _write(groups: FileGroupWriter, partition: PartitionState, rows: pa.Table) -> None:
    if groups.task.operation.merges:
        merge_rows(groups, partition, rows)
    else:
        insert_rows(groups, partition, rows)


def _write_file_bound(
    groups: FileGroupWriter, file_bound: Sequence[tuple[PartitionState, pa.Table]]
) -> None:
    """Write rows whose work is mostly reading files, or defer them if it is much work."""
    read_bytes = sum(partition.read_bytes for partition, _ in file_bound)
    defers = len(file_bound) > 1 and read_bytes > groups.task.settings.defer_bytes
    for partition, rows in file_bound:
        if defers:
            groups.defer(partition, rows)
        else:
            _write(groups, partition, rows)


def _converted(
    task: WriteTask, token: WriteToken, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.Table]:
    first = 0
    for batch in batches:
        if batch.num_rows:
            yield to_table_schema(pa.Table.from_batches([batch]), task, token, first)
            first += batch.num_rows


def _max_partition_bytes(task: WriteTask) -> int | None:
    """Return how many bytes of one partition a task takes; None where it need not compare them."""
    return task.settings.max_partition_bytes if looks_up_keys(task) or task.buckets else None


def _partitions(
    tables: Iterable[pa.Table], max_bytes: int | None
) -> Iterator[tuple[str, pa.Table | None]]:
    """Return the rows of each partition, None if they are too many.

    The rows of a partition must be contiguous.
    """
    finished: set[str] = set()
    current: str | None = None
    rows = SpillBuffer()
    for table in tables:
        for path, part in by_partition(table):
            if path != current:
                if current is not None:
                    with closing(rows):
                        yield current, rows.table()
                if path in finished:
                    raise InvalidError(
                        "rows of one partition came apart", partition=path, column=PARTITION_PATH
                    )
                finished.add(path)
                current, rows = path, SpillBuffer()
            rows.add(part)
            if max_bytes is not None and rows.nbytes > max_bytes:
                rows.close()
                yield path, None
                return
    if current is not None:
        with closing(rows):
            yield current, rows.table()
