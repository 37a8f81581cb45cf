"""Column types in the words of Hive, and of Spark's schemas. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from lakewright.errors import UnsupportedError

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
