"""The work of one task: rows of some partitions into files; on Spark and in a plain loop alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from lakewright.write.task import Operation, Outcome, Token, WriteTask
from lakewright.write.upserts import merge_rows


def run_task(task: WriteTask, token: Token, batches: Iterable[pa.RecordBatch]) -> Outcome:
    """Write the rows of one task; an error of ours comes back as a value, so nothing is retried.

    Rows of one partition must come together, unless they are bulk inserted.
    """
    groups = GroupWriter(task, token)
    try:
        rows = _prepared(task, token, batches)
        return _bulk(groups, rows) if spreads_freely(task) else _by_partition(groups, rows)
    except LakewrightError as error:
        return Outcome(tuple(groups.stats), error=error)


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
    return Outcome(tuple(groups.stats))


def _by_partition(groups: GroupWriter, tables: Iterable[pa.Table]) -> Outcome:
    task = groups.task
    replaced: dict[str, tuple[str, ...]] = {}
    for path, rows in _partitions(tables):
        partition = Partition.look(task, path)
        if task.operation.replaces:
            replaced[path] = tuple(item.file_id for item in partition.slices)
            for item in partition.slices:
                partition.check_free(item)
        if task.operation.merges:
            merge_rows(groups, partition, rows)
        else:
            insert_rows(groups, partition, rows)
    return Outcome(tuple(groups.stats), replaced)


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
