"""Rows as they come in, made rows of the table: typed, keyed, and told apart by partition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError, InvalidError
from lakewright.model.lossless_cast import check_lossless
from lakewright.model.merge import Deletes, Upserts, rows_marked_deleted
from lakewright.model.partition_paths import partition_paths
from lakewright.model.record_keys import generated_keys, record_keys
from lakewright.model.schema import META_FIELDS, PARTITION_PATH, RECORD_KEY, conform
from lakewright.write.task import Operation, WriteTask, WriteToken

# Set on rows of an upsert that are to be deleted, whatever their ordering: those of a global index
# that must leave the partition they were in, and those that a statement deletes beside others.
MOVED_COLUMN = "_lakewright_leaves"


def to_table_schema(rows: pa.Table, task: WriteTask, token: WriteToken, first: int) -> pa.Table:
    """Rows in the table's stored schema, meta columns filled in but for the file name.

    `first` numbers the rows of a task, so that each has its own sequence number. Rows to delete
    bring no more than their key, partition and ordering columns.
    """
    # Keys and paths are made of values in the table's types: another type may have another text.
    typed = rows_in(rows, _row_schema(rows, task))
    count = len(rows)
    numbers = generated_keys(task.instant, token.task, first, count)
    keys = numbers
    if task.config.record_key_fields:
        keys = record_keys(typed, task.keys, strict=task.adds_rows)
    if MOVED_COLUMN in rows.column_names and PARTITION_PATH in rows.column_names:
        # The look-up in the whole table has decided where each row belongs.
        paths = rows.column(PARTITION_PATH).combine_chunks()
    else:
        paths = partition_paths(typed, task.partitions, strict=task.adds_rows).cast(pa.string())
    own = typed.select(_stored_columns(task))
    meta = [
        pa.repeat(pa.scalar(task.instant), count),
        numbers,
        keys.cast(pa.string()),
        paths,
        pa.nulls(count, pa.string()),
    ]
    leaves = [rows.column(MOVED_COLUMN)] if MOVED_COLUMN in rows.column_names else []
    schema = pa.schema([*META_FIELDS, *own.schema])
    if leaves:
        schema = schema.append(pa.field(MOVED_COLUMN, pa.bool_()))
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


def without_deleted(rows: pa.Table, task: WriteTask) -> pa.Table:
    """The rows but for those that say of themselves that they are deleted: they insert nothing."""
    if not task.delete_columns:
        return rows
    deleted = rows_marked_deleted(rows, task.rule)
    return rows.filter(pa.array(~deleted)) if deleted.any() else rows


def as_merge_input(rows: pa.Table, task: WriteTask) -> list[Upserts | Deletes]:
    """Prepared rows as versions that compete: new rows, and deletes."""
    if task.operation is Operation.DELETE:
        return [_deletes(rows, task, ordered=task.ordered_deletes)]
    if MOVED_COLUMN not in rows.column_names:
        return [Upserts(rows.select(task.stored_schema.names))]
    leaving = pc.fill_null(rows.column(MOVED_COLUMN), False)
    stay = rows.filter(pc.invert(leaving)).select(task.stored_schema.names)
    return [_deletes(rows.filter(leaving), task, ordered=False), Upserts(stay)]


def _deletes(rows: pa.Table, task: WriteTask, *, ordered: bool) -> Deletes:
    keys = rows.column(RECORD_KEY).combine_chunks()
    if not (ordered and task.rule.ordering):
        return Deletes(keys)
    ordering = tuple(rows.column(name).combine_chunks() for name in task.rule.ordering)
    lacking = [
        name for name, column in zip(task.rule.ordering, ordering, strict=True) if column.null_count
    ]
    if lacking:
        # A log file would store a delete without value: one that spares nothing.
        raise InvalidError("ordered deletes have no ordering value", columns=lacking)
    if len(ordering) == 1 and pa.types.is_int32(ordering[0].type):
        # To every reader of log files the whole number 0 means "no ordering value".
        return Deletes(keys, ordering, pc.equal(ordering[0], 0))
    return Deletes(keys, ordering)


def _stored_columns(task: WriteTask) -> list[str]:
    if task.operation is not Operation.DELETE:
        return list(task.own_schema.names)
    return list(task.rule.ordering) if task.ordered_deletes else []


def rows_in(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Incoming rows in the table's types; what they lack is null.

    Raises:
        InvalidError: a value does not fit, or would not be the same any more.
    """
    check_lossless(rows, schema)
    try:
        return conform(rows, schema, source="incoming rows")
    except CorruptError as error:
        facts = {key: value for key, value in error.facts.items() if key != "file"}
        raise InvalidError(
            "values of the incoming rows do not fit the table's schema", **facts
        ) from error


def _row_schema(rows: pa.Table, task: WriteTask) -> pa.Schema:
    """The table's own columns; rows to delete need not have all of them."""
    if task.operation is not Operation.DELETE:
        return task.own_schema
    given = set(rows.column_names)
    return pa.schema([column for column in task.own_schema if column.name in given])
