"""The keys and partition paths of rows as Spark columns, by the library's own rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from lakewright.core.keys import record_keys
from lakewright.core.partition_paths import partition_paths
from lakewright.write.task import WriteTask

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def key_column(task: WriteTask) -> Column:
    """The record key of each row."""
    rule = task.keys
    return _computed(rule.fields, lambda rows: record_keys(rows, rule))


def path_column(task: WriteTask) -> Column:
    """The partition path of each row."""
    rule = task.partitions
    if not rule.fields:
        return F.lit("")
    return _computed(
        (field.name for field in rule.fields), lambda rows: partition_paths(rows, rule)
    )


def field_of(frame: DataFrame, name: str) -> Column:
    """A column, or with dots in its name a field of a struct column."""
    if name in frame.columns:
        return F.col(quoted(name))
    return F.col(".".join(quoted(part) for part in name.split(".")))


def quoted(name: str) -> str:
    """A column's name as Spark takes it literally."""
    return "`" + name.replace("`", "``") + "`"


def _computed(fields: Iterable[str], rule: Callable[[pa.Table], pa.Array]) -> Column:
    """A text computed from whole columns; only these cross to Arrow."""
    names = list(dict.fromkeys(name.split(".")[0] for name in fields))

    def compute(*columns: pa.Array) -> pa.Array:
        return rule(pa.table(list(columns), names=names)).cast(pa.string())

    make: Callable[..., Callable[..., Column]] = arrow_udf
    return make(compute, "string")(*(F.col(quoted(name)) for name in names))
