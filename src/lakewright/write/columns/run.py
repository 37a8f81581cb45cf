"""The keys and partition paths of rows as Spark columns, by the library's own rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema

from lakewright.core.keys import record_keys
from lakewright.core.partition_paths import partition_paths
from lakewright.read.run import quoted
from lakewright.write.incoming import rows_in
from lakewright.write.task import WriteTask

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Spark 4.1 knows no other zone than UTC here, and has no word for it.
_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)


def arrow_schema(columns: T.StructType) -> pa.Schema:
    """Columns as Spark hands them to Arrow, with times in UTC."""
    return to_arrow_schema(columns, **_IN_UTC)


def key_column(task: WriteTask) -> Column:
    """The record key of each row."""
    rule = task.keys
    strict = task.adds_rows
    return _computed(task, rule.fields, lambda rows: record_keys(rows, rule, strict=strict))


def path_column(task: WriteTask) -> Column:
    """The partition path of each row."""
    rule = task.partitions
    if not rule.fields:
        return F.lit("")
    names = (field.name for field in rule.fields)
    strict = task.adds_rows
    return _computed(task, names, lambda rows: partition_paths(rows, rule, strict=strict))


def field_of(frame: DataFrame, name: str) -> Column:
    """A column, or with dots in its name a field of a struct column."""
    return F.col(field_name(frame, name))


def field_name(frame: DataFrame, name: str) -> str:
    """The name by which Spark finds a column, or with dots in it a field of a struct column."""
    if name in frame.columns:
        return quoted(name)
    return ".".join(quoted(part) for part in name.split("."))


def _computed(
    task: WriteTask, fields: Iterable[str], rule: Callable[[pa.Table], pa.Array]
) -> Column:
    """A text computed from whole columns in the table's types; only these cross to Arrow."""
    known = set(task.own_schema.names)
    tops = (name if name in known else name.split(".")[0] for name in fields)
    names = list(dict.fromkeys(tops))
    schema = pa.schema([task.own_schema.field(name) for name in names])

    def compute(*columns: pa.Array) -> pa.Array:
        rows = rows_in(pa.table(list(columns), names=names), schema)
        return rule(rows).cast(pa.string())

    make: Callable[..., Callable[..., Column]] = arrow_udf
    return make(compute, "string")(*(F.col(quoted(name)) for name in names))
