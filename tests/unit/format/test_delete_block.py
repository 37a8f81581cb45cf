"""Delete blocks: as real Hudi writes them, with every kind of ordering value, and damaged ones."""

from __future__ import annotations

import io
import json
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from lakewright.errors import CorruptError, InvalidError
from lakewright.format.delete_block import DeleteRecords, format_delete_block, parse_delete_block
from lakewright.format.log_block import BlockKind, Header, LogBlock, parse_blocks
from support.golden import NAMES, GoldenTables

SCALARS: list[tuple[str, Any]] = [
    ("BooleanWrapper", "boolean"),
    ("IntWrapper", "int"),
    ("LongWrapper", "long"),
    ("FloatWrapper", "float"),
    ("DoubleWrapper", "double"),
    ("BytesWrapper", "bytes"),
    ("StringWrapper", "string"),
    ("DateWrapper", "int"),
    (
        "DecimalWrapper",
        {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 15},
    ),
    ("TimeMicrosWrapper", {"type": "long", "logicalType": "time-micros"}),
    ("TimestampMicrosWrapper", "long"),
]


def wrapper(name: str, kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "value", "type": kind}]}


ARRAY_ITEMS = ["null", *(name for name, _ in SCALARS), wrapper("LocalDateWrapper", "int")]
ARRAY = wrapper("ArrayWrapper", ["null", {"type": "array", "items": ARRAY_ITEMS}])
ARRAY["fields"][0]["name"] = "wrappedValues"
RECORD = {
    "type": "record",
    "name": "HoodieDeleteRecord",
    "fields": [
        {"name": "recordKey", "type": ["null", "string"]},
        {"name": "partitionPath", "type": ["null", "string"]},
        {"name": "orderingVal", "type": ["null", *(wrapper(*s) for s in SCALARS), ARRAY]},
    ],
}
LIST = fastavro.parse_schema(
    {
        "type": "record",
        "name": "HoodieDeleteRecordList",
        "fields": [{"name": "deleteRecordList", "type": {"type": "array", "items": RECORD}}],
    }
)


def delete(key: str | None, ordering: Any = None, partition: str | None = "p") -> dict[str, Any]:
    return {"recordKey": key, "partitionPath": partition, "orderingVal": ordering}


def several(*values: Any) -> Any:
    return ("ArrayWrapper", {"wrappedValues": list(values)})


def one(name: str, value: Any) -> Any:
    return (name, {"value": value})


def block_of(content: bytes) -> LogBlock:
    return LogBlock(BlockKind.DELETE, {Header.INSTANT_TIME: "1"}, memoryview(content), 0, "a.log")


def delete_block(*records: dict[str, Any]) -> LogBlock:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, LIST, {"deleteRecordList": list(records)})
    return block_of(struct.pack(">ii", 3, stream.tell()) + stream.getvalue())


def reread(records: DeleteRecords) -> Any:
    """What fastavro reads from a block that we write."""
    (block,) = parse_blocks(format_delete_block(records, "1"), file_name="")
    read: Any = fastavro.schemaless_reader(io.BytesIO(block.content[8:]), LIST, None)
    return read["deleteRecordList"]


MOMENT = datetime(2026, 1, 1, 2, 3, 4, 5, UTC)
ORDERINGS: dict[str, tuple[Any, pa.DataType, Any]] = {
    "boolean": (one("BooleanWrapper", True), pa.bool_(), True),
    "int": (one("IntWrapper", -3), pa.int32(), -3),
    "long": (one("LongWrapper", 1 << 40), pa.int64(), 1 << 40),
    "long zero, which is an event time": (one("LongWrapper", 0), pa.int64(), 0),
    "float": (one("FloatWrapper", 1.5), pa.float32(), 1.5),
    "double": (one("DoubleWrapper", 0.1), pa.float64(), 0.1),
    "bytes": (one("BytesWrapper", b"\xff\x00"), pa.binary(), b"\xff\x00"),
    "string": (one("StringWrapper", "ü"), pa.string(), "ü"),
    "date": (one("DateWrapper", 20454), pa.date32(), date(2026, 1, 1)),
    "decimal": (
        one("DecimalWrapper", Decimal("-999999999999999.999999999999999")),
        pa.decimal128(30, 15),
        Decimal("-999999999999999.999999999999999"),
    ),
    "timestamp": (
        one("TimestampMicrosWrapper", 1767232984000005),
        pa.timestamp("us", "UTC"),
        MOMENT,
    ),
}


@pytest.mark.parametrize(("wrapped", "kind", "value"), ORDERINGS.values(), ids=list(ORDERINGS))
def test_an_ordering_value_has_the_type_of_its_wrapper(
    wrapped: Any, kind: pa.DataType, value: Any
) -> None:
    block = delete_block(delete("a", wrapped), delete("b", wrapped, None))
    records = parse_delete_block(block)
    assert records.keys.to_pylist() == ["a", "b"]
    assert records.partitions.to_pylist() == ["p", None]
    assert records.unconditional.to_pylist() == [False, False]
    (ordering,) = records.ordering
    assert ordering.type == kind
    assert ordering.to_pylist() == [value, value]
    (written,) = parse_blocks(format_delete_block(records, "1"), file_name="")
    assert written.content == block.content


@pytest.mark.parametrize(("wrapped", "kind", "value"), ORDERINGS.values(), ids=list(ORDERINGS))
def test_several_ordering_values_are_columns(wrapped: Any, kind: pa.DataType, value: Any) -> None:
    block = delete_block(
        delete("a", several(wrapped, one("StringWrapper", "x"))),
        delete("b", several(wrapped, None)),
    )
    records = parse_delete_block(block)
    first, second = records.ordering
    assert (first.type, first.to_pylist()) == (kind, [value, value])
    assert (second.type, second.to_pylist()) == (pa.string(), ["x", None])
    (written,) = parse_blocks(format_delete_block(records, "1"), file_name="")
    assert written.content == block.content


def test_a_time_of_day_is_read_but_not_written_since_real_hudi_cannot_read_it() -> None:
    block = delete_block(delete("a", one("TimeMicrosWrapper", time(1, 2, 3))))
    records = parse_delete_block(block)
    assert records.ordering[0].to_pylist() == [time(1, 2, 3)]
    assert records.ordering[0].type == pa.time64("us")
    with pytest.raises(InvalidError):
        format_delete_block(records, "1")


def test_a_local_date_is_a_date() -> None:
    records = parse_delete_block(delete_block(delete("a", several(one("LocalDateWrapper", 1)))))
    assert records.ordering[0].to_pylist() == [date(1970, 1, 2)]


def test_null_and_int_zero_are_unconditional_among_other_values() -> None:
    records = parse_delete_block(
        delete_block(
            delete("a"),
            delete("b", one("IntWrapper", 0)),
            delete("c", one("LongWrapper", 7)),
            delete("d", one("IntWrapper", 5)),
        )
    )
    assert records.unconditional.to_pylist() == [True, True, False, False]
    (ordering,) = records.ordering
    assert ordering.type == pa.int64()
    assert ordering.to_pylist() == [None, None, 7, 5]


PROMOTED: dict[str, tuple[list[Any], pa.DataType]] = {
    "int and long": ([one("IntWrapper", 1), one("LongWrapper", 2)], pa.int64()),
    "float and double": ([one("FloatWrapper", 1), one("DoubleWrapper", 2)], pa.float64()),
    "int and float": ([one("IntWrapper", 1), one("FloatWrapper", 2)], pa.float64()),
}


@pytest.mark.parametrize(("values", "kind"), PROMOTED.values(), ids=list(PROMOTED))
def test_values_of_two_types_take_the_wider_one(values: list[Any], kind: pa.DataType) -> None:
    records = parse_delete_block(delete_block(*(delete("a", value) for value in values)))
    assert records.ordering[0].type == kind
    assert records.ordering[0].to_pylist() == [1, 2]


def test_an_empty_list_is_legal() -> None:
    block = block_of(struct.pack(">ii", 3, 1) + b"\x00")
    records = parse_delete_block(block)
    assert len(records) == 0
    assert records.ordering == ()
    assert records.by_kind() == [records]
    (written,) = parse_blocks(format_delete_block(records, "1"), file_name="")
    assert written.content == block.content


MOR = [name for name in NAMES if name.startswith("mor")]


def test_delete_blocks_of_real_hudi_are_read_and_written_back(golden: GoldenTables) -> None:
    types: dict[str, set[tuple[str, ...]]] = {}
    for name in MOR:
        for file in golden[name].rglob(".*.log.*"):
            if file.name.endswith(".crc"):
                continue
            for block in parse_blocks(file.read_bytes(), file_name=file.name):
                if block.kind is BlockKind.DELETE:
                    records = parse_delete_block(block)
                    again = format_delete_block(records, block.instant, block.schema_json)
                    (written,) = parse_blocks(again, file_name="")
                    assert written.content == block.content
                    assert written.schema_json == block.schema_json
                    types.setdefault(name, set()).add(tuple(str(o.type) for o in records.ordering))
    # A delete operation is unconditional; rows that mark themselves as deleted are not.
    assert types["mor_avro"] == types["mor_parquet"] == types["mor_two_ordering"] == {()}
    assert types["mor_is_deleted"] == {("int64",)}
    assert types["mor_mdt"] == {()}


def records(ordering: list[pa.Array], unconditional: list[bool] | None = None) -> DeleteRecords:
    count = len(ordering[0]) if ordering else len(unconditional or [])
    return DeleteRecords(
        pa.array([f"k{i}" for i in range(count)]),
        pa.array(["p"] * count),
        pa.array(unconditional or [False] * count),
        tuple(ordering),
    )


WRITTEN = {
    "a short number is an int": (pa.array([5], pa.int16()), {"value": 5}),
    "long text is text": (pa.array(["a"], pa.large_string()), {"value": "a"}),
    "a timestamp is written in microseconds": (
        pa.array([1767232984], pa.timestamp("ms", "UTC")),
        {"value": 1767232984000},
    ),
    "a decimal is brought to the scale of its wrapper": (
        pa.array([Decimal("1.25")], pa.decimal128(9, 2)),
        {"value": Decimal("1.250000000000000")},
    ),
}


@pytest.mark.parametrize(("column", "value"), WRITTEN.values(), ids=list(WRITTEN))
def test_a_column_is_written_in_the_nearest_wrapper(column: pa.Array, value: Any) -> None:
    assert [r["orderingVal"] for r in reread(records([column]))] == [value]


def test_headers_are_those_of_the_arguments() -> None:
    (block,) = parse_blocks(format_delete_block(records([], [True]), "7", "{}"), file_name="")
    assert block.headers == {Header.INSTANT_TIME: "7", Header.SCHEMA: "{}"}
    assert reread(records([], [True])) == [delete("k0", {"value": 0})]


def test_kinds_are_taken_apart_to_be_written() -> None:
    mixed = records([pa.array([None, 5], pa.int64())], [True, False])
    with pytest.raises(InvalidError):
        format_delete_block(mixed, "1")
    always, ordered = mixed.by_kind()
    assert [r["recordKey"] for r in reread(always)] == ["k0"]
    assert always.ordering == ()
    assert [r["orderingVal"] for r in reread(ordered)] == [{"value": 5}]


NOT_WRITTEN = {
    "a list orders nothing": records([pa.array([[1]])]),
    "a decimal is too large for its wrapper": records(
        [pa.array([Decimal(10**20)], pa.decimal128(38, 0))]
    ),
    "a delete has no key": DeleteRecords(
        pa.array([None], pa.string()), pa.array(["p"]), pa.array([True])
    ),
    "a competing delete has nothing to compete with": records([], [False]),
}


@pytest.mark.parametrize("deletes", NOT_WRITTEN.values(), ids=list(NOT_WRITTEN))
def test_what_cannot_be_written_is_refused(deletes: DeleteRecords) -> None:
    with pytest.raises(InvalidError):
        format_delete_block(deletes, "1")


def content(*parts: bytes, length: int | None = None) -> bytes:
    body = b"".join(parts)
    return struct.pack(">ii", 3, len(body) if length is None else length) + body


KEY = b"\x02\x02a\x00"  # the key "a" and no partition
DAMAGED = {
    "nothing": struct.pack(">i", 3),
    "a length that is too short": content(b"\x00", length=0),
    "a length that is too long": content(b"\x00", length=2),
    "a negative length": content(b"\x00", length=-1),
    "no end": content(b"\x02", KEY, b"\x00"),
    "something after the end": content(b"\x00\x00"),
    "fewer records than declared": content(b"\x04", KEY, b"\x00\x00"),
    "an absurd number of records": content(b"\xfe\xff\xff\xff\x0f", KEY, b"\x00\x00"),
    "a number without end": content(b"\xff" * 12),
    "a record without key": content(b"\x02\x00\x00\x00\x00"),
    "a branch of the key that is not there": content(b"\x02\x04\x02a\x00\x00\x00"),
    "a key that is not text": content(b"\x02\x02\x02\xff\x00\x00\x00"),
    "a key of negative length": content(b"\x02\x02\x01\x00\x00\x00"),
    "a key of absurd length": content(b"\x02\x02\xfe\xff\xff\x0f"),
    "a wrapper that is not there": content(b"\x02", KEY, b"\x1a\x00"),
    "a negative wrapper": content(b"\x02", KEY, b"\x01\x00"),
    "half a double": content(b"\x02", KEY, b"\x0a\x00\x00"),
    "an int of more than 32 bits": content(b"\x02", KEY, b"\x04\xfe\xff\xff\xff\xff\x01\x00"),
    "a decimal without bytes": content(b"\x02", KEY, b"\x12\x00\x00"),
    "a decimal without end": content(b"\x02", KEY, b"\x12\xfe\x01" + b"\x7f" * 127 + b"\x00"),
    "a time after midnight": content(b"\x02", KEY, b"\x14" + b"\xff" * 8 + b"\x01\x00"),
    "more ordering values than any table has": content(
        b"\x02", KEY, b"\x18\x02\x80\x02" + b"\x00" * 128 + b"\x00\x00"
    ),
    "an array that is null": content(b"\x02", KEY, b"\x18\x00\x00"),
    "a wrapper inside an array that is not there": content(
        b"\x02", KEY, b"\x18\x02\x02\x1c\x00\x00\x00"
    ),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_list_is_an_error(data: bytes) -> None:
    with pytest.raises(CorruptError) as caught:
        parse_delete_block(block_of(data))
    assert caught.value.facts["file_name"] == "a.log"


UNEQUAL = {
    "text and numbers do not compare": [one("StringWrapper", "a"), one("LongWrapper", 1)],
    "long and double do not compare exactly": [one("LongWrapper", 1), one("DoubleWrapper", 1)],
    "one value and several do not compare": [
        several(one("LongWrapper", 1), one("LongWrapper", 1)),
        one("LongWrapper", 1),
    ],
}


@pytest.mark.parametrize("values", UNEQUAL.values(), ids=list(UNEQUAL))
def test_values_that_do_not_compare_are_an_error(values: list[Any]) -> None:
    with pytest.raises(CorruptError):
        parse_delete_block(delete_block(*(delete("a", value) for value in values)))


def test_the_schema_that_judges_here_has_the_branches_of_the_format() -> None:
    union = json.loads(json.dumps(RECORD))["fields"][2]["type"]
    assert [b if isinstance(b, str) else b["name"] for b in union][::6] == [
        "null",
        "BytesWrapper",
        "ArrayWrapper",
    ]
