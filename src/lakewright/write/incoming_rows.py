"""Converts incoming rows to rows of the table: types, record keys, partition paths."""

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
from lakewright.utils.arrow_rows import as_array, take_rows
from lakewright.write.task import Operation, WriteTask, WriteToken

# True for rows of an upsert that are to be deleted, whatever their ordering value: the old version
# of a row that a global index moves to another partition, and rows that a statement (MERGE INTO)
# deletes beside its updates.
MOVED_COLUMN = "_lakewright_leaves"
# Which file group, bucket or shard of new keys a row is for: see `write/targeted_rows.py`.
TARGET_COLUMN = "_lakewright_target"
_ADDED_FIELDS = (pa.field(MOVED_COLUMN, pa.bool_()), pa.field(TARGET_COLUMN, pa.string()))


def to_table_schema(rows: pa.Table, task: WriteTask, token: WriteToken, first: int) -> pa.Table:
    """Return rows in the table's stored schema, with all meta columns except the file name.

    `first` is the number of the first row within the task: each row gets its own sequence number.
    Rows to delete have only their key, partition and ordering columns.
    """
    # Compute keys and paths from values in the table's types: another type may have another text.
    converted = rows_in(rows, row_schema(rows, task))
    count = len(rows)
    sequence_numbers = generated_keys(task.instant, token.task, first, count)
    keys = sequence_numbers
    if task.config.record_key_fields:
        keys = record_keys(converted, task.key_rule, strict=task.adds_rows)
    if PARTITION_PATH in rows.column_names and _has_look_up(rows):
        # The look-up of keys has set the partition of each row.
        paths = rows.column(PARTITION_PATH).combine_chunks()
    else:
        paths = partition_paths(converted, task.partition_rule, strict=task.adds_rows).cast(
            pa.string()
        )
    data = converted.select(_data_columns(task))
    meta = [
        pa.repeat(pa.scalar(task.instant), count),
        sequence_numbers,
        keys.cast(pa.string()),
        paths,
        pa.nulls(count, pa.string()),
    ]
    names = set(rows.column_names)
    added = [field for field in _ADDED_FIELDS if field.name in names]
    schema = pa.schema([*META_FIELDS, *data.schema, *added])
    return pa.table(
        [*meta, *data.columns, *(rows.column(field.name) for field in added)], schema=schema
    )


def _has_look_up(rows: pa.Table) -> bool:
    return not {MOVED_COLUMN, TARGET_COLUMN}.isdisjoint(rows.column_names)


def by_partition(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Return the rows of each partition, in the order in which the partitions first appear."""
    encoded = rows.column(PARTITION_PATH).dictionary_encode()
    paths = encoded.chunk(0).dictionary.to_pylist()
    if len(paths) == 1:
        yield paths[0], rows
        return
    codes = np.concatenate([np.asarray(chunk.indices) for chunk in encoded.chunks])
    changes = np.flatnonzero(np.diff(codes))
    if len(changes) + 1 > len(paths):
        rows = take_rows(rows, np.argsort(codes, kind="stable"))
        codes = np.sort(codes, kind="stable")
        changes = np.flatnonzero(np.diff(codes))
    bounds = [0, *(int(step) + 1 for step in changes), len(rows)]
    for start, end in pairwise(bounds):
        yield paths[codes[start]], rows.slice(start, end - start)


def without_deleted(rows: pa.Table, task: WriteTask) -> pa.Table:
    """Return the rows without those whose delete columns mark them as deleted."""
    if not task.delete_columns:
        return rows
    deleted = rows_marked_deleted(rows, task.merge_rule)
    return rows.filter(pa.array(~deleted)) if deleted.any() else rows


def as_merge_input(rows: pa.Table, task: WriteTask) -> list[Upserts | Deletes]:
    """Return converted rows, or the columns of them that decide, as upserts and deletes."""
    if task.operation is Operation.DELETE:
        return [_deletes(rows, task, ordered=task.ordered_deletes)]
    if MOVED_COLUMN not in rows.column_names:
        return [Upserts(rows.select(_stored_columns(rows, task)))]
    is_deleted = pc.fill_null(rows.column(MOVED_COLUMN), False)
    upserts = rows.filter(pc.invert(is_deleted)).select(_stored_columns(rows, task))
    return [_deletes(rows.filter(is_deleted), task, ordered=False), Upserts(upserts)]


def _stored_columns(rows: pa.Table, task: WriteTask) -> list[str]:
    present = set(rows.column_names)
    return [name for name in task.stored_schema.names if name in present]


def _deletes(rows: pa.Table, task: WriteTask, *, ordered: bool) -> Deletes:
    keys = as_array(rows.column(RECORD_KEY))
    if not (ordered and task.merge_rule.ordering):
        return Deletes(keys)
    ordering = tuple(as_array(rows.column(name)) for name in task.merge_rule.ordering)
    with_nulls = [
        name
        for name, column in zip(task.merge_rule.ordering, ordering, strict=True)
        if column.null_count
    ]
    if with_nulls:
        # A delete block would store no ordering value, which deletes rows of any ordering value.
        raise InvalidError("ordered deletes have no ordering value", columns=with_nulls)
    if len(ordering) == 1 and pa.types.is_int32(ordering[0].type):
        # All readers of delete blocks take the int 0 for "no ordering value".
        return Deletes(keys, ordering, pc.equal(ordering[0], 0))
    return Deletes(keys, ordering)


def _data_columns(task: WriteTask) -> list[str]:
    if task.operation is not Operation.DELETE:
        return list(task.data_schema.names)
    return list(task.merge_rule.ordering) if task.ordered_deletes else []


def rows_in(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return incoming rows in the table's types, with null in missing columns.

    Raises:
        InvalidError: a value does not fit, or the conversion would change it.
    """
    check_lossless(rows, schema)
    try:
        return conform(rows, schema, source="incoming rows")
    except CorruptError as error:
        facts = {key: value for key, value in error.facts.items() if key != "file"}
        raise InvalidError(
            "values of the incoming rows do not fit the table's schema", **facts
        ) from error


def row_schema(rows: pa.Table, task: WriteTask) -> pa.Schema:
    """Return the schema to convert rows to; rows to delete need not have all columns."""
    if task.operation is not Operation.DELETE:
        return task.data_schema
    incoming = set(rows.column_names)
    return pa.schema([column for column in task.data_schema if column.name in incoming])
