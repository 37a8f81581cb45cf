"""The work of one task: rows of some partitions into files; on Spark and in a plain loop alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from lakewright.core.meta_columns import PARTITION_PATH
from lakewright.errors import InvalidError, LakewrightError
from lakewright.write.base_files import nothing_on_failure
from lakewright.write.bulk import BulkWriter
from lakewright.write.gather import GatheredRows
from lakewright.write.groups import GroupWriter
from lakewright.write.incoming import by_partition, prepare
from lakewright.write.inserts import insert_rows
from lakewright.write.partition import Partition
from lakewright.write.task import Operation, Outcome, PartitionWork, Token, Work, WriteTask
from lakewright.write.upserts import merge_group, merge_rows
from lakewright.write.works import changes_from, outweighs, take_up

# Rows that wait until a task has seen all its partitions.
_MOST_HELD_BYTES = 64 << 20


def run_task(task: WriteTask, token: Token, batches: Iterable[pa.RecordBatch]) -> Outcome:
    """Write the rows of one task; an error of ours comes back as a value, so nothing is retried.

    Rows of one partition must come together, unless they are bulk inserted.
    """
    groups = GroupWriter(task, token)
    try:
        rows = _prepared(task, token, batches)
        return _bulk(groups, rows) if spreads_freely(task) else _by_partition(groups, rows)
    except LakewrightError as error:
        return groups.outcome(error=error)


def run_works(task: WriteTask, token: Token, works: Iterable[Work]) -> Outcome:
    """Do what other tasks have handed on; an error of ours comes back as a value."""
    groups = GroupWriter(task, token)
    try:
        for work in works:
            if isinstance(work, PartitionWork):
                partition = Partition.look(task, work.partition)
                _write(groups, partition, take_up(task, work.rows))
            else:
                changes = changes_from(take_up(task, work.changes), task.stored_schema)
                merge_group(groups, work.partition, work.item, changes, inserts=work.inserts)
        return groups.outcome()
    except LakewrightError as error:
        return groups.outcome(error=error)


def spreads_freely(task: WriteTask) -> bool:
    """Whether rows need not meet others of their partition: every task makes its own files."""
    settings = task.settings
    compared = settings.combine_before_insert or settings.duplicate_policy != "none"
    return task.operation is Operation.BULK_INSERT and not task.buckets and not compared


def _bulk(groups: GroupWriter, tables: Iterable[pa.Table]) -> Outcome:
    with nothing_on_failure(BulkWriter(groups)) as writer:
        for rows in tables:
            writer.write(rows)
        writer.close()
    return groups.outcome()


def _by_partition(groups: GroupWriter, tables: Iterable[pa.Table]) -> Outcome:
    task = groups.task
    replaced: dict[str, tuple[str, ...]] = {}
    heavy: list[tuple[Partition, pa.Table]] = []
    for path, rows in _partitions(tables):
        partition = Partition.look(task, path)
        if task.operation.replaces:
            replaced[path] = tuple(item.file_id for item in partition.slices)
            for item in partition.slices:
                partition.check_free(item)
        if outweighs(partition.weight, rows):
            heavy.append((partition, rows))
            if sum(rows.nbytes for _, rows in heavy) > _MOST_HELD_BYTES:
                _write_heavy(groups, heavy)
                heavy = []
        else:
            _write(groups, partition, rows)
    _write_heavy(groups, heavy)
    return groups.outcome(replaced)


def _write(groups: GroupWriter, partition: Partition, rows: pa.Table) -> None:
    if groups.task.operation.merges:
        merge_rows(groups, partition, rows)
    else:
        insert_rows(groups, partition, rows)


def _write_heavy(groups: GroupWriter, heavy: Sequence[tuple[Partition, pa.Table]]) -> None:
    """Write rows that make more work than they show, or leave them to others if it is much."""
    weight = sum(partition.weight for partition, _ in heavy)
    hands_on = len(heavy) > 1 and weight > groups.task.settings.hand_on_bytes
    for partition, rows in heavy:
        if hands_on:
            groups.hand_on(partition, rows)
        else:
            _write(groups, partition, rows)


def _prepared(
    task: WriteTask, token: Token, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.Table]:
    first = 0
    for batch in batches:
        if batch.num_rows:
            yield prepare(pa.Table.from_batches([batch]), task, token, first)
            first += batch.num_rows


def _partitions(tables: Iterable[pa.Table]) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each partition, which come one after the other."""
    done: set[str] = set()
    current: str | None = None
    rows = GatheredRows()
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
                current, rows = path, GatheredRows()
            rows.add(part)
    if current is not None:
        with closing(rows):
            yield current, rows.table()
