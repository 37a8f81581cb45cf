"""What a catalog knows of a table, as values, and what is asked of a catalog."""

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
    """A table in a catalog; `columns` are without those of the partitions."""

    location: str
    columns: tuple[Column, ...] = ()
    partition_columns: tuple[Column, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    serde: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def realtime(self) -> bool:
        """Whether log files count."""
        return self.serde.get(QUERY_AS_RO) != "true"


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name in a catalog."""

    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


class MetaCatalog(Protocol):
    """A catalog with tables and partitions; errors of its own come out as ours."""

    kind: str

    def ensure_database(self, database: str, *, create: bool) -> None:
        """Make a database if it is missing; InvalidError if that is not wanted."""
        ...

    def load(self, name: TableName) -> CatalogTable | None:
        """A table as it is registered; None if it is not."""
        ...

    def create(self, name: TableName, table: CatalogTable) -> None:
        """Register a table."""
        ...

    def alter(self, name: TableName, table: CatalogTable) -> None:
        """Put all of a table's properties and columns in the place of those there."""
        ...

    def partitions(
        self, name: TableName, wanted: Iterable[Values] | None = None
    ) -> dict[Values, str]:
        """The locations of a table's partitions: of all, or of those wanted that are there."""
        ...

    def add(self, name: TableName, table: CatalogTable, new: Sequence[tuple[Values, str]]) -> None:
        """Register partitions; those that are there stay."""
        ...

    def move(self, name: TableName, table: CatalogTable, new: Sequence[tuple[Values, str]]) -> None:
        """Give partitions another location."""
        ...

    def drop(self, name: TableName, gone: Sequence[Values]) -> None:
        """Take partitions out; their files stay. Those that are gone already are no error."""
        ...


# ------------------------------------------------------------------------------------------------
# The classes by which engines know Hudi's tables in a catalog; without them they read nothing.


INPUT = "org.apache.hudi.hadoop.HoodieParquetInputFormat"
INPUT_REALTIME = "org.apache.hudi.hadoop.realtime.HoodieParquetRealtimeInputFormat"
OUTPUT = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat"
SERDE = "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"


# ------------------------------------------------------------------------------------------------
# Column types in the words of Hive, and of Spark's schemas. Pure.


_HIVE = (
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
_SPARK = {
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
    """A type as Hive and Glue write it."""
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
    for fits, word in _HIVE:
        if fits(kind):
            return word
    raise UnsupportedError("no catalog has such a column type", type=str(kind))


def spark_type(kind: pa.DataType) -> Any:
    """A type as Spark's schemas have it in JSON."""
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
        inner = spark_type(kind.value_type)
        return {"type": "array", "elementType": inner, "containsNull": True}
    if pt.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    word = hive_type(kind)
    return _SPARK.get(word, word)


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
    """A schema of Spark's as text; the first column carries the metadata."""
    found = _struct(list(schema))
    if found["fields"]:
        found["fields"][0]["metadata"] = dict(metadata)
    return json.dumps(found, separators=(",", ":"))
