"""INSERT, UPDATE, DELETE and what takes partitions out, as writes of DataFrames."""

from __future__ import annotations

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

_OPERATION = "hoodie.datasource.write.operation"
_OVERWRITE_MODE = "hoodie.datasource.overwrite.mode"
_SPARK_OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"


def run_insert(goal: TargetTable, insert: Insert, ctes: str) -> Commit:
    """Add the rows of a query, or replace those that are there."""
    frame = _inserted(goal, insert, goal.session.query(f"{ctes}{insert.query}"))
    if not insert.overwrite:
        return goal.write(_insert_operation(goal), frame)
    static = {name: text for name, text in insert.partition if text is not None}
    fields = goal.config.partition_fields
    if fields and len(static) == len(fields) and frame.isEmpty():
        # The partition is to have the rows of the query, and there are none.
        done = goal.delete_partitions(*_paths(goal, (insert.partition,)))
        return done if isinstance(done, Commit) else goal.write(Operation.UPSERT, frame)
    whole = not fields or not (insert.partition or _overwrites_partitions(goal))
    operation = Operation.INSERT_OVERWRITE_TABLE if whole else Operation.INSERT_OVERWRITE
    return goal.write(operation, frame)


def _overwrites_partitions(goal: TargetTable) -> bool:
    """Whether INSERT OVERWRITE without PARTITION replaces the partitions that it has rows for."""
    told = session_setting(goal.session, _OVERWRITE_MODE)
    mode = told or goal.session.spark.conf.get(_SPARK_OVERWRITE_MODE, "static")
    return str(mode).lower() == "dynamic"


def _insert_operation(goal: TargetTable) -> Operation:
    """An insert, as in Hudi, unless the session says otherwise."""
    return parse_operation(
        {_OPERATION: session_setting(goal.session, INSERT_OPERATION) or "insert"}
    )


def _inserted(goal: TargetTable, insert: Insert, frame: DataFrame) -> DataFrame:
    """The rows of a query with the table's columns: by place, or by name."""
    static = {
        column_named(goal.columns, name).name: text
        for name, text in insert.partition
        if text is not None
    }
    _check_partition(goal, insert.partition)
    columns = [column.name for column in goal.columns if column.name not in static]
    if insert.by_name or insert.columns is not None:
        wanted = insert.columns if insert.columns is not None else frame.columns
        columns = [column_named(goal.columns, name).name for name in wanted]
    twice = sorted({name for name in columns if columns.count(name) > 1 or name in static})
    if twice:
        raise InvalidError("a column is named twice", columns=twice)
    if len(frame.columns) != len(columns):
        raise InvalidError(
            f"the query gives {len(frame.columns)} columns, and {len(columns)} are expected",
            expected=columns,
            given=frame.columns,
        )
    numbered = frame.toDF(*(f"_{number}" for number in range(len(columns))))
    source = {name: f"_{number}" for number, name in enumerate(columns)}
    for number, (name, text) in enumerate(static.items(), len(columns)):
        numbered = numbered.selectExpr("*", f"{text} AS _{number}")
        source[name] = f"_{number}"
    return _told_apart(goal, numbered, source)


def _told_apart(goal: TargetTable, frame: DataFrame, source: dict[str, str]) -> DataFrame:
    missing = [name for name in goal.config.record_key_fields if name.split(".")[0] not in source]
    if missing:
        raise InvalidError("rows need a value in each column of the key", missing=missing)
    return goal.cast(frame, source)


def _check_partition(goal: TargetTable, partition: Partition) -> None:
    known = [name.lower() for name in goal.config.partition_fields]
    unknown = [name for name, _ in partition if name.lower() not in known]
    if unknown:
        raise InvalidError(
            "the table is not partitioned by this",
            columns=unknown,
            partitioned_by=list(goal.config.partition_fields),
        )


def run_delete(goal: TargetTable, delete: Delete, ctes: str) -> Commit:
    """Delete the rows that a condition holds for."""
    goal.require_keys()
    alias = quoted(goal.alias)
    where = f" WHERE {delete.where}" if delete.where else ""
    frame = goal.session.query(
        f"{ctes}SELECT {_columns(goal)} FROM ", goal.rows, f" AS {alias}{where}"
    )
    return goal.write(Operation.DELETE, frame)


def run_update(goal: TargetTable, update: Update, ctes: str) -> Commit:
    """Give columns of the rows that a condition holds for new values."""
    goal.require_keys()
    new = {goal.column(parts).name: default_as_null(text) for parts, text in update.assignments}
    if len(new) < len(update.assignments):
        raise InvalidError("a column is assigned twice", columns=sorted(new))
    _refuse_fixed(goal, new)
    alias = quoted(goal.alias)
    texts = [f"({text}) AS _{number}" for number, text in enumerate(new.values())]
    where = f" WHERE {update.where}" if update.where else ""
    select = ", ".join([_columns(goal, but=list(new)), *texts]).removeprefix(", ")
    frame = goal.session.query(f"{ctes}SELECT {select} FROM ", goal.rows, f" AS {alias}{where}")
    source = {column.name: column.name for column in goal.columns}
    source |= {name: f"_{number}" for number, name in enumerate(new)}
    return goal.write(Operation.UPSERT, goal.cast(frame, source))


def _refuse_fixed(goal: TargetTable, names: Iterable[str]) -> None:
    """InvalidError if a row would get another key or partition."""
    fixed = [name for name in names if name in goal.fixed]
    if fixed:
        raise InvalidError(
            "columns of the key and of the partition cannot be assigned: delete the rows and "
            "insert them anew",
            columns=fixed,
        )


def default_as_null(text: str) -> str:
    """An assigned expression; the default of a column is null."""
    return "NULL" if text.strip().upper() == "DEFAULT" else text


def _columns(goal: TargetTable, but: Sequence[str] = ()) -> str:
    alias = quoted(goal.alias)
    return ", ".join(f"{alias}.{quoted(c.name)}" for c in goal.columns if c.name not in but)


def run_truncate(goal: TargetTable, truncate: Truncate) -> Commit | None:
    """Take all rows out of the table, or those of a partition; None if there are none."""
    if truncate.partition:
        return run_drop(goal, DropPartitions((truncate.partition,), if_exists=True))
    return goal.write(Operation.INSERT_OVERWRITE_TABLE, goal.rows.limit(0))


def run_drop(goal: TargetTable, drop: DropPartitions) -> Commit | None:
    """Take partitions out of the table; None if there are none."""
    done = goal.delete_partitions(*_paths(goal, drop.partitions))
    if isinstance(done, Commit):
        return done
    if not drop.if_exists:
        raise InvalidError(f"{done.reason}: name another, or say IF EXISTS")
    return None


def _paths(goal: TargetTable, partitions: Sequence[Partition]) -> tuple[tuple[str, ...], bool]:
    """Paths of partitions that are named by values, and whether they are exact.

    There is a star for each column that is not named.
    """
    fields = goal.config.partition_fields
    exact = [len([text for _, text in part if text]) == len(fields) for part in partitions]
    if len(set(exact)) > 1:
        raise InvalidError("name whole partitions, or parts of them, in one statement")
    return tuple(_path(goal, partition) for partition in partitions), exact[0]


def _path(goal: TargetTable, partition: Partition) -> str:
    _check_partition(goal, partition)
    fields = goal.config.partition_fields
    told = {name.lower(): text for name, text in partition if text is not None}
    columns = [column_named(goal.columns, name) for name in fields]
    texts = [
        f"CAST({told.get(column.name.lower(), 'NULL')} AS {type_sql(column.dataType)}) "
        f"AS {quoted(column.name)}"
        for column in columns
    ]
    row = goal.session.query(f"SELECT {', '.join(texts)}").collect()[0]
    rule = table_partition_rule(goal.config)
    schema = to_arrow_schema(T.StructType(columns), timezone="UTC")
    values = pa.Table.from_pylist([row.asDict()], schema=schema)
    levels = partition_paths(values, rule)[0].as_py().split("/")
    if len(told) == len(fields):
        return "/".join(levels)
    if len(levels) != len(fields):
        raise InvalidError("name all columns of the partition", columns=list(fields))
    named = [column.name.lower() in told for column in columns]
    return "/".join(
        level if is_named else "*" for level, is_named in zip(levels, named, strict=True)
    )
