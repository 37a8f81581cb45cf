"""Runs the tasks of a write: distributes the rows of a task to what is done with them.

`run_task` writes the rows of one task, and `run_deferred` the work that other tasks deferred. Both
run in Spark's executors and in the local engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TypeVar

import pyarrow as pa

from lakewright.errors import InvalidError, LakewrightError
from lakewright.model.schema import PARTITION_PATH
from lakewright.storage.base import map_in_threads
from lakewright.utils.arrow_rows import split_by_size
from lakewright.utils.bin_packing import batches_by_size
from lakewright.write.base_file_writer import abort_on_failure
from lakewright.write.distribution import Distribution, first_distribution, looks_up_keys
from lakewright.write.file_group_writer import FileGroupWriter
from lakewright.write.gathered_rows import GatheredRows
from lakewright.write.incoming_rows import by_partition, to_table_schema
from lakewright.write.index import PartitionState
from lakewright.write.operations import (
    BulkWriter,
    deciding_columns,
    insert_rows,
    merge_group,
    merge_rows,
)
from lakewright.write.spill import decode_changes, is_file_bound, load_spilled_rows
from lakewright.write.targeted_rows import write_targeted
from lakewright.write.task import (
    DeferredPartition,
    DeferredWork,
    WriteStatus,
    WriteTask,
    WriteToken,
)

Item = TypeVar("Item")

# Bound for rows of file-bound partitions, kept until the task has read all its partitions.
_MAX_FILE_BOUND_BYTES = 64 << 20
# Bound for the rows, and the files to read, of all partitions that a task writes at once.
_MAX_CONCURRENT_BYTES = 64 << 20
_MAX_CONCURRENT = 1024
# Rows are converted in pieces of this size: types, keys and paths need memory for both forms.
_CONVERTED_BYTES = 64 << 20


def run_task(
    task: WriteTask,
    token: WriteToken,
    batches: Iterable[pa.RecordBatch],
    distribution: Distribution | None = None,
) -> WriteStatus:
    """Write the rows of one task.

    A LakewrightError is returned in the status; the engine may raise it, to retry the task. What
    must be contiguous is up to the distribution: by default the one that is tried first.
    """
    distribution = distribution or first_distribution(task, rebalances=False)
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
    gathered = _partitions(task, groups, tables)
    for batch in batches_by_size(
        gathered, lambda item: item[1].nbytes, _MAX_CONCURRENT_BYTES, _at_once(task)
    ):
        row_bound: list[tuple[PartitionState, GatheredRows]] = []
        paths = [path for path, _ in batch]
        partitions = map_in_threads(partial(PartitionState.load, task), paths)
        for partition, (path, rows) in zip(partitions, batch, strict=True):
            if task.operation.replaces:
                replaced[path] = partition.file_ids_to_replace()
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


def _converted(
    task: WriteTask, token: WriteToken, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.Table]:
    first = 0
    for batch in batches:
        with _size_errors(rows=batch.num_rows, bytes=batch.nbytes):
            for rows in split_by_size(pa.Table.from_batches([batch]), _CONVERTED_BYTES):
                yield to_table_schema(rows, task, token, first)
                first += len(rows)


def _max_partition_bytes(task: WriteTask) -> int | None:
    """Return how many bytes of one partition a task takes; None where it need not compare them."""
    return task.settings.max_partition_bytes if looks_up_keys(task) or task.buckets else None


def _partitions(
    task: WriteTask, groups: FileGroupWriter, tables: Iterable[pa.Table]
) -> Iterator[tuple[str, GatheredRows]]:
    """Return the rows of each partition; those of a partition must be contiguous.

    It ends with a partition that is too large, which the status of the task then names.
    """
    finished: set[str] = set()
    current: str | None = None
    limit, folder = _max_partition_bytes(task), groups.token.folder
    rows = GatheredRows(deciding_columns(task), folder)
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
                    current, rows = path, GatheredRows(deciding_columns(task), folder)
                rows.add(part)
                if limit is not None and rows.nbytes > limit:
                    groups.too_large.append(path)
                    rows.close()
                    return
        if current is not None:
            yield current, rows
    except BaseException:
        rows.close()
        raise
