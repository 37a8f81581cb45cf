"""Rows as they come in, made rows of the table: typed, keyed, and told apart by partition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.core.keys import field_column, generated_keys, record_keys
from lakewright.core.merge import Deletes, Upserts
from lakewright.core.meta_columns import META_FIELDS, PARTITION_PATH, RECORD_KEY
from lakewright.core.partition_paths import partition_paths
from lakewright.core.schema import conform
from lakewright.errors import CorruptError, InvalidError
from lakewright.write.task import Operation, Token, WriteTask

# Set on rows of a global index that must leave the partition they were in.
LEAVES = "_lakewright_leaves"


def prepare(rows: pa.Table, task: WriteTask, token: Token, first: int) -> pa.Table:
    """Rows in the table's stored schema, meta columns filled in but for the file name.

    `first` numbers the rows of a task, so that each has its own sequence number. Rows to delete
    bring no more than their key, partition and ordering columns.
    """
    count = len(rows)
    numbers = generated_keys(task.instant, token.task, first, count)
    keys = record_keys(rows, task.keys) if task.config.record_key_fields else numbers
    paths = _paths(rows, task)
    meta = [
        pa.repeat(pa.scalar(task.instant), count),
        numbers,
        keys.cast(pa.string()),
        paths,
        pa.nulls(count, pa.string()),
    ]
    own = _own_columns(rows, task)
    leaves = [rows.column(LEAVES)] if LEAVES in rows.column_names else []
    schema = pa.schema([*META_FIELDS, *own.schema])
    if leaves:
        schema = schema.append(pa.field(LEAVES, pa.bool_()))
    return pa.table([*meta, *own.columns, *leaves], schema=schema)


def by_partition(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Prepared rows of each partition, in the order in which the partitions first appear."""
    encoded = rows.column(PARTITION_PATH).combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], rows
        return
    codes = np.asarray(encoded.indices)
    steps = np.flatnonzero(np.diff(codes))
    if len(steps) + 1 > len(names):
        rows = rows.take(pa.array(np.argsort(codes, kind="stable")))
        codes = np.sort(codes, kind="stable")
        steps = np.flatnonzero(np.diff(codes))
    bounds = [0, *(int(step) + 1 for step in steps), len(rows)]
    for start, end in pairwise(bounds):
        yield names[codes[start]], rows.slice(start, end - start)


def changes_of(rows: pa.Table, task: WriteTask) -> list[Upserts | Deletes]:
    """Prepared rows as versions that compete: new rows, and deletes."""
    if task.operation is Operation.DELETE:
        return [_deletes(rows, task, ordered=task.ordered_deletes)]
    if LEAVES not in rows.column_names:
        return [Upserts(rows.select(task.stored_schema.names))]
    leaving = pc.fill_null(rows.column(LEAVES), False)
    stay = rows.filter(pc.invert(leaving)).select(task.stored_schema.names)
    return [_deletes(rows.filter(leaving), task, ordered=False), Upserts(stay)]


def _deletes(rows: pa.Table, task: WriteTask, *, ordered: bool) -> Deletes:
    keys = rows.column(RECORD_KEY).combine_chunks()
    if not (ordered and task.rule.ordering):
        return Deletes(keys)
    ordering = tuple(rows.column(name).combine_chunks() for name in task.rule.ordering)
    return Deletes(keys, ordering)


def _paths(rows: pa.Table, task: WriteTask) -> pa.Array:
    if LEAVES in rows.column_names and PARTITION_PATH in rows.column_names:
        # The look-up in the whole table has decided where each row belongs.
        return rows.column(PARTITION_PATH).combine_chunks()
    return partition_paths(rows, task.partitions).cast(pa.string())


def _own_columns(rows: pa.Table, task: WriteTask) -> pa.Table:
    schema = task.own_schema
    if task.operation is Operation.DELETE:
        needed = task.rule.ordering if task.ordered_deletes else ()
        schema = pa.schema([schema.field(name) for name in needed])
        for name in needed:
            field_column(rows, name)
    try:
        return conform(rows, schema, source="incoming rows")
    except CorruptError as error:
        facts = {key: value for key, value in error.facts.items() if key != "file"}
        raise InvalidError(
            "values of the incoming rows do not fit the table's schema", **facts
        ) from error
