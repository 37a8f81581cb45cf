"""Execution of INSERT, UPDATE, DELETE, TRUNCATE and DROP PARTITION as writes to a table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from lakewright.client.write_client import parse_operation
from lakewright.errors import InvalidError
from lakewright.model.partition_paths import partition_paths
from lakewright.sql.parser import Delete, DropPartitions, Insert, Partition, Truncate, Update
from lakewright.sql.session import INSERT_OPERATION, TargetTable, session_setting
from lakewright.sql.store_assignment import column_named, quoted, type_sql
from lakewright.write.task import Operation, table_partition_rule
from lakewright.write.writer import Commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLAIN_TEXT = re.compile(r"'([^'\\]*)'")
_PLAIN_NUMBER = re.compile(r"[0-9]{1,9}")
_OPERATION = "hoodie.datasource.write.operation"
_OVERWRITE_MODE = "hoodie.datasource.overwrite.mode"
_SPARK_OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"


def run_insert(target: TargetTable, insert: Insert, ctes: str) -> Commit:
    """Insert the rows of a query, or overwrite the table or partitions with them."""
    frame = _rows_to_insert(target, insert, target.session.query(f"{ctes}{insert.query}"))
    path = _named_path(target, insert.partition)
    partitions = None if path is None else frozenset({path})
    if not insert.overwrite:
        return target.write(_insert_operation(target), frame, partitions=partitions)
    static = {name: text for name, text in insert.partition if text is not None}
    fields = target.config.partition_fields
    if fields and len(static) == len(fields) and frame.isEmpty():
        # INSERT_OVERWRITE replaces the partitions of its rows: without rows, delete the partition.
        commit = target.delete_partitions(*_paths(target, (insert.partition,)))
        return commit if isinstance(commit, Commit) else target.write(Operation.UPSERT, frame)
    is_full_overwrite = not fields or not (insert.partition or _is_overwrite_dynamic(target))
    operation = (
        Operation.INSERT_OVERWRITE_TABLE if is_full_overwrite else Operation.INSERT_OVERWRITE
    )
    return target.write(operation, frame, partitions=partitions)


def _is_overwrite_dynamic(target: TargetTable) -> bool:
    """Whether INSERT OVERWRITE without PARTITION replaces only the partitions of its rows."""
    hudi_mode = session_setting(target.session, _OVERWRITE_MODE)
    mode = hudi_mode or target.session.spark.conf.get(_SPARK_OVERWRITE_MODE, "static")
    return str(mode).lower() == "dynamic"


def _insert_operation(target: TargetTable) -> Operation:
    """The operation that the session sets for INSERT INTO; insert by default, as in Hudi."""
    return parse_operation(
        {_OPERATION: session_setting(target.session, INSERT_OPERATION) or "insert"}
    )


def _rows_to_insert(target: TargetTable, insert: Insert, frame: DataFrame) -> DataFrame:
    """Return the rows of a query with the table's columns, matched by position or by name."""
    static = {
        column_named(target.columns, name).name: text
        for name, text in insert.partition
        if text is not None
    }
    _check_partition(target, insert.partition)
    columns = [column.name for column in target.columns if column.name not in static]
    if insert.by_name or insert.columns is not None:
        names = insert.columns if insert.columns is not None else frame.columns
        columns = [column_named(target.columns, name).name for name in names]
    duplicates = sorted({name for name in columns if columns.count(name) > 1 or name in static})
    if duplicates:
        raise InvalidError("a column is named twice", columns=duplicates)
    if len(frame.columns) != len(columns):
        raise InvalidError(
            f"the query returns {len(frame.columns)} columns, and {len(columns)} are expected",
            expected=columns,
            given=frame.columns,
        )
    numbered = frame.toDF(*(f"_{number}" for number in range(len(columns))))
    source = {name: f"_{number}" for number, name in enumerate(columns)}
    for number, (name, text) in enumerate(static.items(), len(columns)):
        numbered = numbered.selectExpr("*", f"{text} AS _{number}")
        source[name] = f"_{number}"
    return _cast_with_keys(target, numbered, source)


def _cast_with_keys(target: TargetTable, frame: DataFrame, source: dict[str, str]) -> DataFrame:
    """Cast rows to the table's columns; InvalidError if columns of the record key are missing."""
    missing = [name for name in target.config.record_key_fields if name.split(".")[0] not in source]
    if missing:
        raise InvalidError("rows need a value in each column of the key", missing=missing)
    return target.cast(frame, source)


def _check_partition(target: TargetTable, partition: Partition) -> None:
    """Raise InvalidError if a partition names columns that the table is not partitioned by."""
    fields = [name.lower() for name in target.config.partition_fields]
    unknown = [name for name, _ in partition if name.lower() not in fields]
    if unknown:
        raise InvalidError(
            "the table is not partitioned by this",
            columns=unknown,
            partitioned_by=list(target.config.partition_fields),
        )


def run_delete(target: TargetTable, delete: Delete, ctes: str) -> Commit:
    """Delete the rows that match the condition."""
    target.require_keys()
    alias = quoted(target.alias)
    where = f" WHERE {delete.where}" if delete.where else ""
    frame = target.session.query(
        f"{ctes}SELECT {_columns(target)} FROM ", target.rows, f" AS {alias}{where}"
    )
    return target.write(Operation.DELETE, frame)


def run_update(target: TargetTable, update: Update, ctes: str) -> Commit:
    """Assign new values to columns of the rows that match the condition."""
    target.require_keys()
    assigned = {
        target.column(parts).name: default_as_null(text) for parts, text in update.assignments
    }
    if len(assigned) < len(update.assignments):
        raise InvalidError("a column is assigned twice", columns=sorted(assigned))
    _refuse_key_columns(target, assigned)
    alias = quoted(target.alias)
    texts = [f"({text}) AS _{number}" for number, text in enumerate(assigned.values())]
    where = f" WHERE {update.where}" if update.where else ""
    select = ", ".join([_columns(target, excluded=list(assigned)), *texts]).removeprefix(", ")
    frame = target.session.query(f"{ctes}SELECT {select} FROM ", target.rows, f" AS {alias}{where}")
    source = {column.name: column.name for column in target.columns}
    source |= {name: f"_{number}" for number, name in enumerate(assigned)}
    return target.write(Operation.UPSERT, target.cast(frame, source))


def _refuse_key_columns(target: TargetTable, names: Iterable[str]) -> None:
    """Raise InvalidError if columns of the record key or the partition are assigned."""
    fixed = [name for name in names if name in target.fixed]
    if fixed:
        raise InvalidError(
            "columns of the key and of the partition cannot be assigned: delete the rows and "
            "insert them anew",
            columns=fixed,
        )


def default_as_null(text: str) -> str:
    """Return an assigned expression, with NULL for DEFAULT: columns have no other default."""
    return "NULL" if text.strip().upper() == "DEFAULT" else text


def _columns(target: TargetTable, excluded: Sequence[str] = ()) -> str:
    alias = quoted(target.alias)
    return ", ".join(f"{alias}.{quoted(c.name)}" for c in target.columns if c.name not in excluded)


def run_truncate(target: TargetTable, truncate: Truncate) -> Commit | None:
    """Delete all rows of the table or of a partition; None if the partition does not exist."""
    if truncate.partition:
        return run_drop(target, DropPartitions((truncate.partition,), if_exists=True))
    return target.write(Operation.INSERT_OVERWRITE_TABLE, target.rows.limit(0))


def run_drop(target: TargetTable, drop: DropPartitions) -> Commit | None:
    """Delete partitions; None if they do not exist and the statement says IF EXISTS."""
    commit = target.delete_partitions(*_paths(target, drop.partitions))
    if isinstance(commit, Commit):
        return commit
    if not drop.if_exists:
        raise InvalidError(f"{commit.reason}: name another, or say IF EXISTS")
    return None


def _paths(target: TargetTable, partitions: Sequence[Partition]) -> tuple[tuple[str, ...], bool]:
    """Return the paths of partitions given by column values, and whether they are exact.

    If they are not exact they are patterns, with `*` for each column without a value.
    """
    fields = target.config.partition_fields
    exact = [len([text for _, text in part if text]) == len(fields) for part in partitions]
    if len(set(exact)) > 1:
        raise InvalidError("name whole partitions, or parts of them, in one statement")
    return tuple(_path(target, partition) for partition in partitions), exact[0]


def _named_path(target: TargetTable, partition: Partition) -> str | None:
    """Return the path of a partition if plain literals name it, without asking Spark."""
    static = {name.lower(): text for name, text in partition if text is not None}
    columns = [column_named(target.columns, name) for name in target.config.partition_fields]
    values = {
        column.name: plain_literal(static.get(column.name.lower(), ""), column.dataType)
        for column in columns
    }
    if not values or None in values.values():
        return None
    schema = to_arrow_schema(T.StructType(columns), timezone="UTC")
    rows = pa.Table.from_pylist([values], schema=schema)
    return str(partition_paths(rows, table_partition_rule(target.config))[0])


def plain_literal(text: str, column: T.DataType) -> str | int | None:
    """Return the value that a plain literal gives a column of text or integers; else None."""
    if isinstance(column, T.StringType):
        quoted_text = _PLAIN_TEXT.fullmatch(text.strip())
        return quoted_text[1] if quoted_text else None
    is_number = isinstance(column, (T.IntegerType, T.LongType)) and _PLAIN_NUMBER.fullmatch(text)
    return int(text) if is_number else None


def _path(target: TargetTable, partition: Partition) -> str:
    _check_partition(target, partition)
    fields = target.config.partition_fields
    static = {name.lower(): text for name, text in partition if text is not None}
    columns = [column_named(target.columns, name) for name in fields]
    texts = [
        f"CAST({static.get(column.name.lower(), 'NULL')} AS {type_sql(column.dataType)}) "
        f"AS {quoted(column.name)}"
        for column in columns
    ]
    row = target.session.query(f"SELECT {', '.join(texts)}").collect()[0]
    rule = table_partition_rule(target.config)
    schema = to_arrow_schema(T.StructType(columns), timezone="UTC")
    values = pa.Table.from_pylist([row.asDict()], schema=schema)
    levels = partition_paths(values, rule)[0].as_py().split("/")
    if len(static) == len(fields):
        return "/".join(levels)
    if len(levels) != len(fields):
        raise InvalidError("name all columns of the partition", columns=list(fields))
    has_value = [column.name.lower() in static for column in columns]
    return "/".join(
        level if is_static else "*" for level, is_static in zip(levels, has_value, strict=True)
    )
