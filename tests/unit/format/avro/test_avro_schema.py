"""Avro schemas of rows and their Arrow schemas."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format.avro.schema import arrow_schema, avro_schema, decimal_size
from lakewright.format.log_block import BlockKind, parse_blocks
from support.golden import NAMES, GoldenTables


def record(*types: Any, **more: Any) -> str:
    fields = [{"name": f"f{i}", "type": kind} for i, kind in enumerate(types)]
    return json.dumps({"type": "record", "name": "r", "fields": fields, **more})


def fixed(size: Any, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "x", "size": size, **more}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


INNER = {"type": "record", "name": "i", "fields": [{"name": "a", "type": ["long", "null"]}]}
TYPES: dict[str, tuple[Any, pa.DataType]] = {
    "null": ("null", pa.null()),
    "boolean": ("boolean", pa.bool_()),
    "int": ("int", pa.int32()),
    "long": ("long", pa.int64()),
    "float": ("float", pa.float32()),
    "double": ("double", pa.float64()),
    "bytes": ("bytes", pa.binary()),
    "string": ("string", pa.string()),
    "an object with the name of a type": ({"type": "string"}, pa.string()),
    "fixed": (fixed(5), pa.binary(5)),
    "enum": ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, pa.string()),
    "date": (logical("int", "date"), pa.date32()),
    "time in milliseconds": (logical("int", "time-millis"), pa.time32("ms")),
    "time in microseconds": (logical("long", "time-micros"), pa.time64("us")),
    "timestamp in milliseconds": (logical("long", "timestamp-millis"), pa.timestamp("ms", "UTC")),
    "timestamp in microseconds": (logical("long", "timestamp-micros"), pa.timestamp("us", "UTC")),
    "local in milliseconds": (logical("long", "local-timestamp-millis"), pa.timestamp("ms")),
    "local in microseconds": (logical("long", "local-timestamp-micros"), pa.timestamp("us")),
    "decimal in bytes": (logical("bytes", "decimal", precision=9, scale=2), pa.decimal128(9, 2)),
    "decimal without scale": (logical("bytes", "decimal", precision=9), pa.decimal128(9, 0)),
    "decimal in fixed": (
        fixed(6, logicalType="decimal", precision=12, scale=2),
        pa.decimal128(12, 2),
    ),
    "uuid as text": (logical("string", "uuid"), pa.string()),
    "uuid as bytes": (fixed(16, logicalType="uuid"), pa.binary(16)),
    "an unknown logical type": (logical("long", "moon-phase"), pa.int64()),
    "a logical type of another type": (logical("string", "date"), pa.string()),
    "array": (
        {"type": "array", "items": "long"},
        pa.list_(pa.field("element", pa.int64(), nullable=False)),
    ),
    "array with nulls": (
        {"type": "array", "items": ["null", "long"]},
        pa.list_(pa.field("element", pa.int64())),
    ),
    "map": (
        {"type": "map", "values": "string"},
        pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)),
    ),
    "record": (INNER, pa.struct([pa.field("a", pa.int64())])),
}


@pytest.mark.parametrize(("kind", "arrow"), TYPES.values(), ids=list(TYPES))
def test_every_type_has_its_arrow_type(kind: Any, arrow: pa.DataType) -> None:
    field = arrow_schema(record(kind)).field(0)
    assert field.type == arrow
    assert field.nullable == (kind == "null")


UNIONS = {
    "null first": (["null", "long"], True),
    "null last": (["long", "null"], True),
    "no null": (["long"], False),
}


@pytest.mark.parametrize(("union", "nullable"), UNIONS.values(), ids=list(UNIONS))
def test_a_union_with_null_is_a_nullable_type(union: list[str], nullable: bool) -> None:
    assert arrow_schema(record(union)).field(0) == pa.field("f0", pa.int64(), nullable=nullable)


def test_a_named_type_can_be_used_again_from_another_namespace() -> None:
    named = {**INNER, "name": "deep.i"}
    inner = arrow_schema(record(named, ["null", "deep.i"], namespace="other"))
    assert inner.field("f0").type == inner.field("f1").type


def test_a_name_is_looked_up_in_the_namespace_around_it() -> None:
    schema = record({**INNER, "namespace": "n"}, "i", namespace="n")
    assert arrow_schema(schema).field("f1").type == pa.struct([pa.field("a", pa.int64())])


def nested(depth: int) -> Any:
    return "int" if depth == 0 else {"type": "array", "items": nested(depth - 1)}


def exploding(levels: int) -> str:
    inner: Any = "long"
    for level in range(levels):
        name = f"l{level}"
        twice = [{"name": "a", "type": inner}, {"name": "b", "type": inner}]
        if level:
            twice[1] = {"name": "b", "type": f"l{level - 1}"}
        inner = {"type": "record", "name": name, "fields": twice}
    return json.dumps(inner)


REFUSED: dict[str, tuple[str, type[Exception]]] = {
    "not JSON": ("{", CorruptError),
    "deeply nested JSON": ("[" * 100_000, CorruptError),
    "a number": ("1", CorruptError),
    "no record": ('"string"', CorruptError),
    "a union of a record": (json.dumps(["null", INNER]), CorruptError),
    "a record without fields": ('{"type":"record","name":"r"}', CorruptError),
    "a record without a name": ('{"type":"record","fields":[]}', CorruptError),
    "a field without a name": ('{"type":"record","name":"r","fields":[{}]}', CorruptError),
    "a field without a type": (
        '{"type":"record","name":"r","fields":[{"name":"a"}]}',
        CorruptError,
    ),
    "two fields of one name": (
        json.dumps({**INNER, "fields": [{"name": "a", "type": "int"}] * 2}),
        CorruptError,
    ),
    "an unknown type": (record("strong"), CorruptError),
    "a type defined twice": (record(INNER, INNER), CorruptError),
    "a union in a union": (record([["null", "int"]]), CorruptError),
    "a union of several types": (record(["null", "int", "string"]), UnsupportedError),
    "a record that holds itself": (record(["null", "r"]), UnsupportedError),
    "an array of nothing": (record({"type": "array", "items": "null"}), UnsupportedError),
    "too deep": (record(nested(80)), CorruptError),
    "more columns than atoms": (exploding(40), UnsupportedError),
    "a fixed type of no size": (record(fixed(0)), CorruptError),
    "a fixed type of an absurd size": (record(fixed(1 << 40)), CorruptError),
    "a fixed type of a size that is text": (record(fixed("5")), CorruptError),
    "a decimal without precision": (record(logical("bytes", "decimal")), CorruptError),
    "a decimal with a negative scale": (
        record(logical("bytes", "decimal", precision=5, scale=-1)),
        CorruptError,
    ),
    "a decimal that is too wide": (
        record(logical("bytes", "decimal", precision=39)),
        UnsupportedError,
    ),
    "an enum without symbols": (record({"type": "enum", "name": "e"}), CorruptError),
}


@pytest.mark.parametrize(("text", "error"), REFUSED.values(), ids=list(REFUSED))
def test_a_schema_that_cannot_be_used_is_refused(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        arrow_schema(text)


def test_the_error_names_the_field() -> None:
    inner = [{"name": "x", "type": ["int", "long"]}]
    schema = record({"type": "record", "name": "i", "fields": inner})
    with pytest.raises(UnsupportedError, match=r"f0\.x"):
        arrow_schema(schema)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("mor")])
def test_a_schema_of_real_hudi_is_written_back_letter_by_letter(
    golden: GoldenTables, name: str
) -> None:
    schemas = set()
    for file in golden[name].glob("2026*/.*.log.*"):
        if not file.name.endswith(".crc"):
            blocks = parse_blocks(file.read_bytes(), file_name=file.name)
            schemas |= {b.schema_json for b in blocks if b.kind is not BlockKind.CDC}
    assert schemas
    for text in schemas:
        assert text is not None
        tree = json.loads(text)
        assert avro_schema(arrow_schema(text), tree["name"], tree["namespace"]) == text


def test_the_names_of_nested_types_are_unique_and_valid() -> None:
    point = pa.struct([pa.field("x", pa.decimal128(5, 1)), pa.field("y", pa.decimal128(5, 1))])
    schema = pa.schema(
        [
            pa.field("a", pa.struct([pa.field("point", point)])),
            pa.field("b", pa.list_(pa.field("element", point))),
            pa.field("point", pa.map_(pa.string(), pa.field("value", point))),
            pa.field("key", pa.binary(3)),
        ]
    )
    assert arrow_schema(avro_schema(schema, "r", "n")) == schema
    assert arrow_schema(avro_schema(schema, "r", "")) == schema


STORED = {
    "small numbers are numbers": (pa.int8(), pa.int32()),
    "long text is text": (pa.large_string(), pa.string()),
    "long bytes are bytes": (pa.large_binary(), pa.binary()),
    "a dictionary is what it holds": (pa.dictionary(pa.int32(), pa.string()), pa.string()),
    "any zone is an instant": (pa.timestamp("us", "Europe/Oslo"), pa.timestamp("us", "UTC")),
    "a long list is a list": (
        pa.large_list(pa.field("element", pa.int32())),
        pa.list_(pa.field("element", pa.int32())),
    ),
}


@pytest.mark.parametrize(("written", "stored"), STORED.values(), ids=list(STORED))
def test_a_type_is_stored_as_the_nearest_one(written: pa.DataType, stored: pa.DataType) -> None:
    text = avro_schema(pa.schema([pa.field("a", written)]), "r", "n")
    assert arrow_schema(text).field("a").type == stored


NOT_STORED = {
    "unsigned numbers": pa.field("a", pa.uint64()),
    "half floats": pa.field("a", pa.float16()),
    "nanoseconds": pa.field("a", pa.timestamp("ns", "UTC")),
    "durations": pa.field("a", pa.duration("us")),
    "decimals of more than 38 digits": pa.field("a", pa.decimal256(50, 2)),
    "maps with numbers as keys": pa.field("a", pa.map_(pa.int32(), pa.string())),
    "a name with a dash": pa.field("a-b", pa.string()),
    "a name that begins with a digit": pa.field("1a", pa.string()),
    "a bad name inside": pa.field("a", pa.struct([pa.field("b c", pa.string())])),
}


@pytest.mark.parametrize("field", NOT_STORED.values(), ids=list(NOT_STORED))
def test_what_avro_cannot_hold_is_refused(field: pa.Field) -> None:
    with pytest.raises(InvalidError):
        avro_schema(pa.schema([field]), "r", "n")


def test_a_decimal_takes_as_few_bytes_as_it_can() -> None:
    for precision in range(1, 39):
        size = decimal_size(precision)
        assert 10**precision - 1 < 2 ** (8 * size - 1)
        assert size == 1 or 10**precision - 1 >= 2 ** (8 * size - 9)
