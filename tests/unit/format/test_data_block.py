"""Rows of data blocks, judged by fastavro and by what real Hudi wrote."""

from __future__ import annotations

import io
import json
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format.avro.schema import arrow_schema, avro_schema
from lakewright.format.data_block import data_block_rows, format_avro_block, format_parquet_block
from lakewright.format.log_block import BlockKind, Header, LogBlock, parse_blocks
from lakewright.format.record_positions import RecordPositions, record_positions
from support.golden import GoldenTables


def avro_record(*types: Any) -> str:
    fields = [{"name": f"f{i}", "type": kind} for i, kind in enumerate(types)]
    return json.dumps({"type": "record", "name": "r", "fields": fields})


def encoded(schema: str, rows: list[dict[str, Any]]) -> bytes:
    """The content of a block, by fastavro."""
    parsed = fastavro.parse_schema(json.loads(schema))
    content = [struct.pack(">ii", 3, len(rows))]
    for row in rows:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, row)
        content += [struct.pack(">i", stream.tell()), stream.getvalue()]
    return b"".join(content)


def avro_block(schema: str, content: bytes) -> LogBlock:
    headers = {Header.INSTANT_TIME: "1", Header.SCHEMA: schema}
    return LogBlock(BlockKind.AVRO, headers, memoryview(content), 0, "a.log")


def fixed(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": f"x{size}{len(more)}", "size": size, **more}


DECIMAL = {"logicalType": "decimal", "precision": 12, "scale": 2}
WIDE = {"logicalType": "decimal", "precision": 38, "scale": 10}
AMOUNTS = [Decimal("0.00"), Decimal("-0.01"), Decimal("1.28"), Decimal("-9999999999.99")]
WIDE_AMOUNTS = [Decimal("9" * 28 + ".0123456789"), Decimal("-" + "9" * 28 + ".9999999999")]
POINT = {
    "type": "record",
    "name": "p",
    "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": ["null", "string"]}],
}
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "null": ("null", [None, None]),
    "boolean": ("boolean", [True, False]),
    "int": ("int", [0, -1, 1, 63, 64, -64, -65, 2**31 - 1, -(2**31)]),
    "long": ("long", [s * (1 << b) for b in range(63) for s in (1, -1)] + [2**63 - 1, -(2**63)]),
    "float": ("float", [0.0, -1.5, float("inf"), 1e-45]),
    "double": ("double", [0.0, -1.5, float("-inf"), 5e-324]),
    "bytes": ("bytes", [b"", b"\x00", bytes(range(256)) * 3]),
    "string": ("string", ["", "a", "ü€😀", "x" * 300]),
    "fixed": (fixed(3), [b"abc", b"\x00\x00\x00"]),
    "enum": ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, ["B", "A"]),
    "date": ({"type": "int", "logicalType": "date"}, [date(1, 1, 1), date(2026, 1, 1)]),
    "time-millis": ({"type": "int", "logicalType": "time-millis"}, [time(0), time(23, 59, 59)]),
    "time-micros": ({"type": "long", "logicalType": "time-micros"}, [time(0), time(1, 2, 3, 4)]),
    "timestamp-millis": (
        {"type": "long", "logicalType": "timestamp-millis"},
        [datetime(2026, 1, 1, 2, 3, 4, 5000, UTC), datetime(1900, 1, 1, tzinfo=UTC)],
    ),
    "timestamp-micros": (
        {"type": "long", "logicalType": "timestamp-micros"},
        [datetime(2026, 1, 1, 2, 3, 4, 5, UTC), datetime(1900, 1, 1, tzinfo=UTC)],
    ),
    "local-timestamp-micros": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        [datetime(2026, 1, 1, 2, 3, 4, 5), datetime(1900, 1, 1)],
    ),
    "decimal in bytes": ({"type": "bytes", **DECIMAL}, AMOUNTS),
    "wide decimal in bytes": ({"type": "bytes", **WIDE}, WIDE_AMOUNTS),
    "decimal in fixed": (fixed(6, **DECIMAL), AMOUNTS),
    "decimal in a larger fixed": (fixed(20, **DECIMAL), AMOUNTS),
    "wide decimal in fixed": (fixed(16, **WIDE), WIDE_AMOUNTS),
    "record": (POINT, [{"x": 1, "y": None}, {"x": 2, "y": "b"}]),
    "array of varints": ({"type": "array", "items": "long"}, [[], [1], [300, -1, 2**62], []]),
    "array of doubles": ({"type": "array", "items": "double"}, [[], [1.5, 2.5], [3.5]]),
    "array of text": ({"type": "array", "items": "string"}, [["", "ab"], [], ["c"]]),
    "array with nulls": ({"type": "array", "items": ["null", "long"]}, [[None, 5], [], [7]]),
    "array of arrays": (
        {"type": "array", "items": {"type": "array", "items": "int"}},
        [[[], [1, 2]], [], [[3]]],
    ),
    "array of records": ({"type": "array", "items": POINT}, [[{"x": 1, "y": "a"}], []]),
    "map": ({"type": "map", "values": "long"}, [{"a": 1, "b": 2}, {}]),
    "map of records": ({"type": "map", "values": POINT}, [{"a": {"x": 9, "y": None}}, {}]),
}


def as_arrow(value: Any) -> Any:
    """Arrow takes a map as pairs."""
    if isinstance(value, dict) and not set(value) >= {"x", "y"}:
        return [(k, as_arrow(v)) for k, v in value.items()]
    return value


def unions(kind: Any) -> dict[str, Any]:
    return {"plain": kind, "null first": ["null", kind], "null last": [kind, "null"]}


CASES = {
    f"{name}, {form}": (union, [*values, None, *values] if form != "plain" else values)
    for name, (kind, values) in VALUES.items()
    for form, union in unions(kind).items()
    if kind != "null" or form == "plain"
}


@pytest.mark.parametrize(("kind", "values"), CASES.values(), ids=list(CASES))
@pytest.mark.parametrize("times", [1, 50], ids=["few rows", "many rows"])
def test_rows_are_those_that_fastavro_reads_and_writes(
    kind: Any, values: list[Any], times: int
) -> None:
    schema = avro_record("string", kind, "int")
    rows = [{"f0": "before", "f1": value, "f2": -7} for value in values] * times
    block = avro_block(schema, encoded(schema, rows))
    table = data_block_rows(block)
    table.validate(full=True)
    expected = [{**row, "f1": as_arrow(row["f1"])} for row in rows]
    assert table.equals(pa.Table.from_pylist(expected, schema=arrow_schema(schema)))
    (written,) = parse_blocks(format_avro_block(table, "1", schema), file_name="a.log")
    assert written.content == block.content


@pytest.mark.parametrize(("kind", "values"), CASES.values(), ids=list(CASES))
def test_a_column_that_is_not_projected_is_skipped(kind: Any, values: list[Any]) -> None:
    schema = avro_record("string", kind, "int")
    rows = [{"f0": f"r{i}", "f1": value, "f2": i} for i, value in enumerate(values)]
    table = data_block_rows(avro_block(schema, encoded(schema, rows)), ["f2", "unknown", "f0"])
    assert table.to_pylist() == [{"f2": r["f2"], "f0": r["f0"]} for r in rows]


def test_long_arrays_of_few_rows_are_read_one_by_one() -> None:
    schema = avro_record({"type": "array", "items": ["null", "float"]})
    lists: list[Any] = [[float(i) for i in range(5000)], [None] * 3, []]
    rows = [{"f0": items} for items in lists]
    assert data_block_rows(avro_block(schema, encoded(schema, rows))).to_pylist() == rows


def test_arrays_may_come_in_several_blocks_with_their_size() -> None:
    schema = avro_record({"type": "array", "items": "int"})
    row = bytes([0x04, 2, 4, 0x03, 0x04, 6, 8, 0x02, 10, 0])  # 2 items; -2 with 2 bytes; 1 item
    content = struct.pack(">iii", 3, 1, len(row)) + row
    assert data_block_rows(avro_block(schema, content)).to_pylist() == [{"f0": [1, 2, 3, 4, 5]}]


def test_a_block_of_many_rows_is_read_in_pieces() -> None:
    schema = avro_record("long", ["null", "string"])
    table = pa.table(
        [
            pa.array(np.arange(50_000)),
            pa.array([None if i % 3 else str(i) for i in range(50_000)]),
        ],
        schema=arrow_schema(schema),
    )
    (block,) = parse_blocks(format_avro_block(table, "1", schema), file_name="")
    read = data_block_rows(block)
    assert read.equals(table)
    assert read.column(0).num_chunks > 1


def test_a_row_larger_than_a_piece_is_read_whole() -> None:
    schema = avro_record("bytes")
    table = pa.table([pa.array([b"a", b"x" * (9 << 20), b"b"])], schema=arrow_schema(schema))
    (block,) = parse_blocks(format_avro_block(table, "1", schema), file_name="")
    assert data_block_rows(block).equals(table)


def test_a_block_without_rows_has_the_columns_of_its_schema() -> None:
    schema = avro_record("int")
    assert data_block_rows(avro_block(schema, struct.pack(">ii", 3, 0))).schema == arrow_schema(
        schema
    )


def data_blocks(table: Path) -> list[LogBlock]:
    files = [p for p in table.glob("2026*/.*.log.*") if not p.name.endswith(".crc")]
    blocks = [b for file in files for b in parse_blocks(file.read_bytes(), file_name=file.name)]
    return [block for block in blocks if block.kind is not BlockKind.DELETE]


@pytest.mark.parametrize("name", ["mor_avro", "mor_is_deleted", "mor_logcompacted", "cow_cdc"])
def test_blocks_of_real_hudi_are_read_like_fastavro_does_and_written_the_same(
    golden: GoldenTables, name: str
) -> None:
    blocks = data_blocks(golden[name])
    assert blocks
    for block in blocks:
        schema = block.schema_json or ""
        parsed = fastavro.parse_schema(json.loads(schema))
        rows, stream = [], io.BytesIO(block.content[8:])
        while stream.read(4):
            rows.append(fastavro.schemaless_reader(stream, parsed, None))
        table = data_block_rows(block)
        assert table.equals(pa.Table.from_pylist(rows, schema=arrow_schema(schema)))
        again = format_avro_block(table, block.instant, schema, kind=block.kind)
        assert parse_blocks(again, file_name="")[0].content == block.content


def test_parquet_blocks_of_real_hudi_come_back(golden: GoldenTables) -> None:
    blocks = data_blocks(golden["mor_parquet"])
    assert blocks
    for block in blocks:
        rows = data_block_rows(block)
        assert rows.schema == arrow_schema(block.schema_json or "")
        again = format_parquet_block(rows, block.instant, block.schema_json or "")
        (written,) = parse_blocks(again, file_name="")
        assert written.kind is BlockKind.PARQUET
        assert data_block_rows(written).equals(rows)
        some = data_block_rows(block, ["ts", "unknown", "id"])
        assert some.equals(rows.select(["ts", "id"]))


SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("d", pa.date32()),
    ]
)
JSON = avro_schema(SCHEMA, "r", "n")
ROWS = pa.table([["a", "b"], [1, None], [date(2026, 1, 1), date(2026, 1, 2)]], schema=SCHEMA)
WRITERS = {"avro": format_avro_block, "parquet": format_parquet_block}


@pytest.mark.parametrize("write", WRITERS.values(), ids=list(WRITERS))
def test_headers_describe_the_block(write: Any) -> None:
    positions = RecordPositions("20250101000000000", np.array([3, 8], np.uint64))
    data = write(
        ROWS, "7", JSON, is_partial=True, compacted_instants=["5", "6"], positions=positions
    )
    (block,) = parse_blocks(data, file_name="")
    assert block.instant == "7"
    assert block.schema_json == JSON
    assert block.is_partial
    assert block.compacted_instants == ("5", "6")
    parsed = record_positions(block, 2)
    assert parsed is not None
    assert (parsed.base_instant, parsed.positions.tolist()) == ("20250101000000000", [3, 8])
    (plain,) = parse_blocks(write(ROWS, "7", JSON), file_name="")
    assert set(plain.headers) == {Header.INSTANT_TIME, Header.SCHEMA}


@pytest.mark.parametrize("write", WRITERS.values(), ids=list(WRITERS))
def test_a_slice_of_a_table_is_written_as_it_is(write: Any) -> None:
    (block,) = parse_blocks(write(ROWS.slice(1), "7", JSON), file_name="")
    assert data_block_rows(block).equals(ROWS.slice(1))
    (empty,) = parse_blocks(write(ROWS.slice(2), "7", JSON), file_name="")
    assert data_block_rows(empty).num_rows == 0


MISFITS: dict[str, pa.Table] = {
    "a column is missing": ROWS.select(["id", "n"]),
    "a column must have values": ROWS.set_column(0, "id", pa.array(["a", None])),
    "a number is too large": pa.table({"id": ["a"], "n": ["x"], "d": pa.array([1], pa.date32())}),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=list(WRITERS))
@pytest.mark.parametrize("rows", MISFITS.values(), ids=list(MISFITS))
def test_rows_that_do_not_fit_are_refused(write: Any, rows: pa.Table) -> None:
    with pytest.raises(InvalidError):
        write(rows, "7", JSON)


def test_an_empty_parquet_block_has_no_rows() -> None:
    headers = {Header.INSTANT_TIME: "1", Header.SCHEMA: JSON}
    block = LogBlock(BlockKind.PARQUET, headers, memoryview(b""))
    assert data_block_rows(block).schema == SCHEMA
    assert data_block_rows(block, ["n", "x"]).column_names == ["n"]


def content(*rows: bytes, count: int | None = None) -> bytes:
    head = struct.pack(">ii", 3, len(rows) if count is None else count)
    return head + b"".join(struct.pack(">i", len(row)) + row for row in rows)


TEXT = avro_record("string")
ARRAY = avro_record({"type": "array", "items": ["null", "int"]})
NESTED = avro_record({"type": "array", "items": {"type": "array", "items": "boolean"}})
VARINT_20 = b"\x80" * 9 + b"\x02"
DAMAGED: dict[str, tuple[str, bytes]] = {
    "no rows where some are declared": (TEXT, content(count=1)),
    "more rows than declared": (TEXT, content(b"\x00", b"\x00", count=1)),
    "a negative number of rows": (TEXT, content(count=-1)),
    "an absurd number of rows": (TEXT, content(count=1 << 30)),
    "a row of negative length": (TEXT, struct.pack(">iii", 3, 1, -4)),
    "a row longer than the block": (TEXT, struct.pack(">iii", 3, 1, 40)),
    "a row with bytes left over": (TEXT, content(b"\x00\x00")),
    "a row that ends too early": (TEXT, content(b"\x04a")),
    "a row without bytes": (TEXT, content(b"")),
    "a text of negative length": (TEXT, content(b"\x01")),
    "a text of absurd length": (TEXT, content(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01")),
    "a text that is not UTF-8": (TEXT, content(b"\x04\xff\xff")),
    "a text that takes from the next row": (TEXT, content(b"\x04a", b"\x02b")),
    "a number without end": (avro_record("long"), content(b"\xff" * 20)),
    "a number of more than 64 bits": (avro_record("long"), content(VARINT_20)),
    "an int of more than 32 bits": (avro_record("int"), content(b"\xff\xff\xff\xff\xff\x01")),
    "a boolean of 2": (avro_record("boolean"), content(b"\x02")),
    "a branch that is not there": (avro_record(["null", "int"]), content(b"\x04\x02")),
    "a negative branch": (avro_record(["null", "int"]), content(b"\x01\x02")),
    "a symbol that is not there": (
        avro_record({"type": "enum", "name": "e", "symbols": ["A"]}),
        content(b"\x02"),
    ),
    "half a double": (avro_record("double"), content(b"\x00\x00\x00")),
    "half a fixed": (avro_record(fixed(9)), content(b"abc")),
    "a time after midnight": (
        avro_record({"type": "int", "logicalType": "time-millis"}),
        content(b"\xfe\xff\xff\xff\x0f"),
    ),
    "a decimal without bytes": (avro_record({"type": "bytes", **DECIMAL}), content(b"\x00")),
    "a decimal of too many digits": (
        avro_record({"type": "bytes", **DECIMAL}),
        content(b"\x0c" + b"\x7f" * 6),
    ),
    "a decimal of too many bytes": (
        avro_record({"type": "bytes", **DECIMAL}),
        content(b"\x24" + b"\x00" * 18),
    ),
    "a fixed decimal of too many digits": (avro_record(fixed(6, **DECIMAL)), content(b"\x7f" * 6)),
    "a fixed decimal wider than any": (avro_record(fixed(20, **DECIMAL)), content(b"\x01" * 20)),
    "an array without end": (ARRAY, content(b"\x02\x00")),
    "an array of absurd size": (ARRAY, content(b"\xfe\xff\xff\xff\x0f\x00")),
    "an array of the smallest number of items": (ARRAY, content(b"\xff" * 9 + b"\x01\x00\x00")),
    "arrays in arrays that claim more than there is": (
        NESTED,
        content(*[b"\x10" + b"\x0e" * 8 + b"\x00"] * 40),
    ),
}


@pytest.mark.parametrize(("schema", "data"), DAMAGED.values(), ids=list(DAMAGED))
def test_damaged_rows_are_an_error(schema: str, data: bytes) -> None:
    with pytest.raises(CorruptError) as caught:
        data_block_rows(avro_block(schema, data))
    assert caught.value.facts["file_name"] == "a.log"


# What only the value itself shows.
UNDETECTED = {
    "a text that is not UTF-8",
    "an int of more than 32 bits",
    "a boolean of 2",
    "a symbol that is not there",
    "a time after midnight",
    "a decimal without bytes",
    "a decimal of too many digits",
    "a decimal of too many bytes",
    "a fixed decimal of too many digits",
    "a fixed decimal wider than any",
}
DETECTED = {name: case for name, case in DAMAGED.items() if name not in UNDETECTED}


@pytest.mark.parametrize(("schema", "data"), DETECTED.values(), ids=list(DETECTED))
def test_rows_whose_lengths_are_damaged_are_an_error_for_every_column(
    schema: str, data: bytes
) -> None:
    with pytest.raises(CorruptError):
        data_block_rows(avro_block(schema, data), ["other"])


def test_a_data_block_needs_a_schema() -> None:
    for kind in (BlockKind.AVRO, BlockKind.PARQUET):
        block = LogBlock(kind, {Header.INSTANT_TIME: "1"}, memoryview(b""))
        with pytest.raises(CorruptError):
            data_block_rows(block)


def test_a_damaged_parquet_block_is_an_error(golden: GoldenTables) -> None:
    block = data_blocks(golden["mor_parquet"])[0]
    whole = bytes(block.content)
    for damaged in (whole[:-1], whole[4:], b"PAR1" * 3, whole.replace(b"PAR1", b"PAR2")):
        with pytest.raises(CorruptError):
            data_block_rows(LogBlock(block.kind, block.headers, memoryview(damaged)))


def test_blocks_of_other_kinds_have_no_rows() -> None:
    headers = {Header.INSTANT_TIME: "1"}
    with pytest.raises(UnsupportedError):
        data_block_rows(LogBlock(BlockKind.HFILE, headers, memoryview(b"")))
    with pytest.raises(InvalidError):
        data_block_rows(LogBlock(BlockKind.DELETE, headers, memoryview(b"")))
