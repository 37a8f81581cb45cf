"""The interface of catalogs, their tables as values, and column types of Hive and Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.types as pt

from lakewright.errors import UnsupportedError

Values = tuple[str, ...]
Column = tuple[str, str]

LAST_REQUEST = "last_commit_time_sync"
LAST_COMPLETION = "last_commit_completion_time_sync"
PROVIDER = "spark.sql.sources.provider"
HUDI = "hudi"
QUERY_AS_RO = "hoodie.query.as.ro.table"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """A table in a catalog; `columns` does not include the partition columns."""

    location: str
    columns: tuple[Column, ...] = ()
    partition_columns: tuple[Column, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    serde: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def realtime(self) -> bool:
        """Whether queries read log files (a snapshot, not a read-optimized query)."""
        return self.serde.get(QUERY_AS_RO) != "true"


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of a table in a catalog."""

    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


class MetaCatalog(Protocol):
    """A catalog with tables and partitions; it raises errors of this library."""

    kind: str

    def ensure_database(self, database: str, *, create: bool) -> None:
        """Create a missing database if `create` is set; InvalidError otherwise."""
        ...

    def load(self, name: TableName) -> CatalogTable | None:
        """Return a registered table; None if it is not registered."""
        ...

    def create(self, name: TableName, table: CatalogTable) -> None:
        """Register a table."""
        ...

    def alter(self, name: TableName, table: CatalogTable) -> None:
        """Replace all columns and properties of a table."""
        ...

    def partitions(
        self, name: TableName, requested: Iterable[Values] | None = None
    ) -> dict[Values, str]:
        """Return the locations of registered partitions: all, or the requested ones that exist."""
        ...

    def add(self, name: TableName, table: CatalogTable, new: Sequence[tuple[Values, str]]) -> None:
        """Register partitions; existing ones are not changed."""
        ...

    def move(self, name: TableName, table: CatalogTable, new: Sequence[tuple[Values, str]]) -> None:
        """Change the locations of partitions."""
        ...

    def drop(self, name: TableName, dropped: Sequence[Values]) -> None:
        """Drop partitions from the catalog, not their files; missing ones are no error."""
        ...


# Input and output formats by which query engines recognize Hudi tables in a catalog.

INPUT = "org.apache.hudi.hadoop.HoodieParquetInputFormat"
INPUT_REALTIME = "org.apache.hudi.hadoop.realtime.HoodieParquetRealtimeInputFormat"
OUTPUT = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat"
SERDE = "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"


# Column types of Hive and of Spark's JSON schemas.

_HIVE_TYPES = (
    (pt.is_boolean, "boolean"),
    (pt.is_int8, "tinyint"),
    (pt.is_int16, "smallint"),
    (pt.is_int32, "int"),
    (pt.is_int64, "bigint"),
    (pt.is_float32, "float"),
    (pt.is_float64, "double"),
    (pt.is_date32, "date"),
    (pt.is_timestamp, "timestamp"),
    (lambda kind: pt.is_string(kind) or pt.is_large_string(kind), "string"),
    (
        lambda kind: (
            pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind)
        ),
        "binary",
    ),
)
_SPARK_TYPES = {
    "boolean": "boolean",
    "tinyint": "byte",
    "smallint": "short",
    "int": "integer",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "string": "string",
    "binary": "binary",
}


def hive_type(kind: pa.DataType) -> str:
    """Return the type name in Hive and Glue."""
    if pt.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_struct(kind):
        inner = ",".join(f"{field.name}:{hive_type(field.type)}" for field in kind)
        return f"struct<{inner}>"
    if pt.is_map(kind):
        return f"map<{hive_type(kind.key_type)},{hive_type(kind.item_type)}>"
    if pt.is_list(kind) or pt.is_large_list(kind):
        return f"array<{hive_type(kind.value_type)}>"
    return _simple(kind)


def _simple(kind: pa.DataType) -> str:
    for matches, name in _HIVE_TYPES:
        if matches(kind):
            return name
    raise UnsupportedError("no catalog has such a column type", type=str(kind))


def spark_type(kind: pa.DataType) -> Any:
    """Return the type in Spark's JSON schemas."""
    if pt.is_struct(kind):
        return _struct(list(kind))
    if pt.is_map(kind):
        return {
            "type": "map",
            "keyType": spark_type(kind.key_type),
            "valueType": spark_type(kind.item_type),
            "valueContainsNull": True,
        }
    if pt.is_list(kind) or pt.is_large_list(kind):
        element = spark_type(kind.value_type)
        return {"type": "array", "elementType": element, "containsNull": True}
    if pt.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    name = hive_type(kind)
    return _SPARK_TYPES.get(name, name)


def _struct(fields: Sequence[pa.Field]) -> dict[str, Any]:
    return {"type": "struct", "fields": [_field(field) for field in fields]}


def _field(field: pa.Field) -> dict[str, Any]:
    return {
        "name": field.name,
        "type": spark_type(field.type),
        "nullable": True,
        "metadata": {},
    }


def spark_schema_json(schema: pa.Schema, metadata: Mapping[str, Any]) -> str:
    """Return the JSON of a Spark schema; the first column has the metadata."""
    struct = _struct(list(schema))
    if struct["fields"]:
        struct["fields"][0]["metadata"] = dict(metadata)
    return json.dumps(struct, separators=(",", ":"))
