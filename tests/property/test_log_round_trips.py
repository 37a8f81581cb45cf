"""What is written to a log is read from it again, and damage does no worse than an error."""

from __future__ import annotations

import io
import json
import struct
from base64 import b64encode
from datetime import UTC, datetime
from decimal import Decimal
from random import Random
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.format.avro.schema import arrow_schema, avro_schema, parse_schema
from lakewright.format.bloom_filter import (
    BloomSettings,
    BloomType,
    build_bloom,
    format_bloom,
    parse_bloom,
)
from lakewright.format.data_block import data_block_rows, format_avro_block, format_parquet_block
from lakewright.format.delete_block import DeleteRecords, format_delete_block, parse_delete_block
from lakewright.format.log_block import BlockKind, Header, LogBlock, format_block, parse_blocks
from lakewright.format.metadata_table.files import read_block
from lakewright.format.metadata_table.record_schema import record_kind
from lakewright.format.parquet_footer import footer_metadata, parse_footer
from lakewright.format.record_positions import format_positions, parse_positions, record_positions
from support.golden import GoldenTables
from support.soak import sized

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))


# -- framing


HEADERS = st.dictionaries(st.sampled_from(list(Header)), TEXT).map(
    lambda headers: {**headers, Header.INSTANT_TIME: "20260101000000000"}
)
BLOCKS = st.lists(
    st.tuples(st.sampled_from(list(BlockKind)), HEADERS, st.binary(max_size=50)), max_size=4
)


@given(BLOCKS)
def test_blocks_come_back(blocks: list[tuple[BlockKind, dict[Header, str], bytes]]) -> None:
    data = b"".join(format_block(*block) for block in blocks)
    parsed = parse_blocks(data, file_name="a.log")
    assert [(b.kind, b.headers, bytes(b.content)) for b in parsed] == blocks


@given(BLOCKS.filter(bool), st.data())
def test_a_file_with_a_byte_more_or_less_is_an_error(
    blocks: list[tuple[BlockKind, dict[Header, str], bytes]], data: st.DataObject
) -> None:
    whole = b"".join(format_block(*block) for block in blocks)
    borders = {0}
    for block in blocks:
        borders.add(max(borders) + len(format_block(*block)))
    end = data.draw(st.integers(1, len(whole) - 1).filter(lambda at: at not in borders))
    for damaged in (whole[:end], whole + b"\x00"):
        with pytest.raises(CorruptError):
            parse_blocks(damaged, file_name="a.log")


# -- rows


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda unscaled: Decimal(f"{unscaled}E-{scale}"))


def leaf_types() -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    """Arrow types with values that Python and Arrow agree about."""
    shapes = st.tuples(st.integers(1, 38), st.integers(0, 38)).filter(lambda s: s[1] <= s[0])
    return st.one_of(
        st.just((pa.bool_(), st.booleans())),
        st.just((pa.int32(), st.integers(-(2**31), 2**31 - 1))),
        st.just((pa.int64(), st.integers(-(2**63), 2**63 - 1))),
        st.just((pa.float32(), st.floats(width=32, allow_nan=False))),
        st.just((pa.float64(), st.floats(allow_nan=False))),
        st.just((pa.string(), TEXT)),
        st.just((pa.binary(), st.binary(max_size=12))),
        st.just((pa.date32(), st.dates())),
        st.just((pa.time64("us"), st.times())),
        st.just((pa.timestamp("us", "UTC"), MOMENTS)),
        st.just((pa.timestamp("us"), MOMENTS.map(lambda moment: moment.replace(tzinfo=None)))),
        st.integers(1, 20).map(lambda n: (pa.binary(n), st.binary(min_size=n, max_size=n))),
        shapes.map(lambda shape: (pa.decimal128(*shape), decimals(*shape))),
    )


@st.composite
def fields(draw: st.DrawFn, name: str, depth: int) -> tuple[pa.Field, st.SearchStrategy[Any]]:
    nullable = draw(st.booleans())
    shape = draw(st.sampled_from(["leaf"] * 3 + ["list", "map", "struct"] if depth else ["leaf"]))
    if shape == "leaf":
        kind, values = draw(leaf_types())
    elif shape == "list":
        item, items = draw(fields("element", depth - 1))
        kind, values = pa.list_(item), st.lists(items, max_size=4)
    elif shape == "map":
        item, items = draw(fields("value", depth - 1))
        kind = pa.map_(pa.string(), item)
        values = st.dictionaries(TEXT, items, max_size=3).map(lambda d: list(d.items()))
    else:
        inner = [draw(fields(f"s{i}", depth - 1)) for i in range(draw(st.integers(1, 3)))]
        kind = pa.struct([field for field, _ in inner])
        values = st.fixed_dictionaries({field.name: value for field, value in inner})
    field = pa.field(name, kind, nullable=nullable)
    return field, st.none() | values if nullable else values


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    columns = [draw(fields(f"c{i}", 2)) for i in range(draw(st.integers(1, 5)))]
    count = draw(st.integers(0, 6))
    repeat = draw(st.sampled_from([1, 1, 40]))
    arrays = [
        pa.array(draw(st.lists(values, min_size=count, max_size=count)) * repeat, field.type)
        for field, values in columns
    ]
    table = pa.table(arrays, schema=pa.schema([field for field, _ in columns]))
    return table.slice(draw(st.integers(0, 2)))


@given(tables())
def test_the_schema_of_rows_comes_back(table: pa.Table) -> None:
    assert arrow_schema(avro_schema(table.schema, "row", "a.b")) == table.schema


@given(tables(), st.data())
def test_avro_rows_come_back(table: pa.Table, data: st.DataObject) -> None:
    schema = avro_schema(table.schema, "row", "a.b")
    (block,) = parse_blocks(format_avro_block(table, "1", schema), file_name="")
    rows = data_block_rows(block)
    rows.validate(full=True)
    assert rows.equals(table)
    columns = data.draw(st.lists(st.sampled_from(table.column_names), min_size=1, unique=True))
    assert data_block_rows(block, columns).equals(table.select(columns))


@given(tables())
def test_fastavro_reads_the_same_rows_and_writes_the_same_bytes(table: pa.Table) -> None:
    schema = avro_schema(table.schema, "row", "a.b")
    parsed = fastavro.parse_schema(json.loads(schema))
    (block,) = parse_blocks(format_avro_block(table, "1", schema), file_name="")
    stream, again = io.BytesIO(block.content[8:]), io.BytesIO()
    while length := stream.read(4):
        row: Any = fastavro.schemaless_reader(stream, parsed, None)
        again.write(length)
        fastavro.schemaless_writer(again, parsed, row)
    assert again.getvalue() == block.content[8:]


@given(tables())
def test_parquet_rows_come_back(table: pa.Table) -> None:
    schema = avro_schema(table.schema, "row", "a.b")
    (block,) = parse_blocks(format_parquet_block(table, "1", schema), file_name="")
    assert data_block_rows(block).equals(table)


@given(tables(), st.binary(min_size=1, max_size=60), st.integers(0, 1 << 30))
def test_any_bytes_as_rows_are_rows_or_an_error(table: pa.Table, noise: bytes, at: int) -> None:
    schema = avro_schema(table.schema, "row", "a.b")
    (block,) = parse_blocks(format_avro_block(table, "1", schema), file_name="")
    content = bytearray(block.content)
    start = 8 + at % max(len(content) - 8, 1)
    content[start : start + len(noise)] = noise
    headers = {Header.INSTANT_TIME: "1", Header.SCHEMA: schema}
    damaged = LogBlock(BlockKind.AVRO, headers, memoryview(bytes(content)))
    alone = struct.pack(">iii", 3, 1, len(noise)) + noise
    for noisy in (damaged, LogBlock(BlockKind.AVRO, headers, memoryview(alone))):
        try:
            data_block_rows(noisy).validate(full=True)
        except CorruptError:
            continue


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["null", "int", "string", "a.b"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries(
            {"type": st.sampled_from(["record", "array", "map", "fixed", "enum", "int"]) | inner},
            optional={
                "name": st.sampled_from(["a", "b", "a.b"]) | inner,
                "fields": st.lists(inner) | inner,
                "items": inner,
                "values": inner,
                "size": inner,
                "symbols": inner,
                "logicalType": st.sampled_from(["decimal", "date"]) | inner,
                "precision": inner,
                "scale": inner,
            },
        )
    ),
)


@given(st.lists(JSON, max_size=3))
def test_any_json_as_a_schema_is_a_schema_or_an_error(types: list[Any]) -> None:
    named = [{"name": f"f{i}", "type": kind} for i, kind in enumerate(types)]
    try:
        kind = parse_schema(json.dumps({"type": "record", "name": "r", "fields": named}))
    except (CorruptError, UnsupportedError):
        return
    assert len(kind.children) == len(types)


# -- deletes


ORDERINGS = st.sampled_from(
    [
        (pa.bool_(), st.booleans()),
        (pa.int32(), st.integers(1, 2**31 - 1)),
        (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
        (pa.float32(), st.floats(width=32, allow_nan=False)),
        (pa.float64(), st.floats(allow_nan=False)),
        (pa.binary(), st.binary(max_size=9)),
        (pa.string(), TEXT),
        (pa.date32(), st.dates()),
        (pa.decimal128(30, 15), decimals(30, 15)),
        (pa.timestamp("us", "UTC"), MOMENTS),
    ]
)


@st.composite
def delete_records(draw: st.DrawFn) -> DeleteRecords:
    count = draw(st.integers(0, 5))
    kinds = draw(st.lists(ORDERINGS, max_size=3))
    competing = bool(kinds) and count > 0
    return DeleteRecords(
        pa.array(draw(st.lists(TEXT, min_size=count, max_size=count)), pa.string()),
        pa.array(draw(st.lists(st.none() | TEXT, min_size=count, max_size=count)), pa.string()),
        pa.array([not competing] * count, pa.bool_()),
        tuple(
            pa.array(draw(st.lists(values, min_size=count, max_size=count)), kind)
            for kind, values in kinds
            if competing
        ),
    )


@given(delete_records())
def test_deletes_come_back(records: DeleteRecords) -> None:
    (block,) = parse_blocks(format_delete_block(records, "1", "{}"), file_name="")
    assert block.headers == {Header.INSTANT_TIME: "1", Header.SCHEMA: "{}"}
    assert parse_delete_block(block) == records


@given(delete_records(), delete_records())
def test_kinds_of_deletes_are_taken_apart(one: DeleteRecords, two: DeleteRecords) -> None:
    always = pa.array([True] * len(two), pa.bool_())
    mixed = DeleteRecords(
        pa.concat_arrays([one.keys, two.keys]),
        pa.concat_arrays([one.partitions, two.partitions]),
        pa.concat_arrays([one.unconditional, always]),
        tuple(pa.concat_arrays([c, pa.nulls(len(two), c.type)]) for c in one.ordering),
    )
    blocks = [format_delete_block(part, "1") for part in mixed.by_kind()]
    read = [parse_delete_block(b) for b in parse_blocks(b"".join(blocks), file_name="")]
    assert sorted(k for part in read for k in part.keys.to_pylist()) == sorted(
        mixed.keys.to_pylist()
    )
    assert all(len(set(part.unconditional.to_pylist())) <= 1 for part in read)


# -- positions and filters


# More than any of the tests has.
MOST_POSITIONS = 1 << 20
POSITIONS = st.lists(
    st.one_of(
        st.integers(0, 300_000).map(lambda n: range(n, n + 1)),
        st.tuples(st.integers(0, 300_000), st.integers(1, 9000)).map(
            lambda run: range(run[0], run[0] + run[1])
        ),
        st.integers(0, 2**64 - 1).map(lambda n: range(n, n + 1)),
    ),
    max_size=6,
).map(lambda runs: sorted({n for run in runs for n in run}))


@given(POSITIONS, st.booleans())
def test_positions_come_back_and_pyroaring_agrees(values: list[int], runs: bool) -> None:
    text = format_positions(np.array(values, np.uint64))
    assert parse_positions(text, len(values)).tolist() == values
    bitmap = BitMap64(values)
    if runs:
        bitmap.run_optimize()
    (theirs,) = parse_blocks(
        format_block(
            BlockKind.AVRO,
            {
                Header.INSTANT_TIME: "1",
                Header.RECORD_POSITIONS: b64encode(bitmap.serialize()).decode(),
                Header.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS: "0",
            },
            b"",
        ),
        file_name="",
    )
    parsed = record_positions(theirs, MOST_POSITIONS)
    assert parsed is not None
    assert parsed.positions.tolist() == values


@given(st.binary(max_size=80))
def test_any_bytes_as_positions_are_positions_or_an_error(data: bytes) -> None:
    text = b64encode(data).decode()
    try:
        values = parse_positions(text, MOST_POSITIONS)
    except CorruptError:
        return
    assert parse_positions(format_positions(values), len(values)).tolist() == values.tolist()


KEYS = st.lists(TEXT, max_size=60, unique=True)
FILTERS = st.builds(
    BloomSettings,
    st.sampled_from(list(BloomType)),
    st.integers(1, 40),
    st.sampled_from([0.3, 0.01, 1e-9]),
    st.integers(1, 100),
)


@given(KEYS, FILTERS)
def test_a_filter_comes_back_and_knows_its_keys(keys: list[str], settings: BloomSettings) -> None:
    column = pa.array(keys, pa.string())
    data = format_bloom(build_bloom(column, settings))
    bloom = parse_bloom(data, settings.kind)
    assert format_bloom(bloom) == data
    assert bloom.may_contain(column).all()


@given(KEYS, FILTERS)
def test_a_footer_comes_back(keys: list[str], settings: BloomSettings) -> None:
    column = pa.array(keys, pa.string())
    stored = footer_metadata(column, settings)
    footer = parse_footer({key.encode(): value.encode() for key, value in stored.items()})
    assert footer.may_contain(column).all()
    for encoding in ("utf-8", "utf-16-be"):
        ordered = sorted(keys, key=lambda key: key.encode(encoding))
        if footer.min_key is not None:
            assert (footer.min_key, footer.max_key) == (ordered[0], ordered[-1])
    assert (footer.min_key is None) == (footer.max_key is None)


@given(st.lists(st.text(st.characters(max_codepoint=0xD7FF)), min_size=1))
def test_keys_that_have_one_order_have_a_range(keys: list[str]) -> None:
    metadata = footer_metadata(pa.array(keys), BloomSettings(entries=10))
    stored = metadata["hoodie_min_record_key"], metadata["hoodie_max_record_key"]
    assert stored == (min(keys), max(keys))


# -- damage


def damaged(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 3))):
        at = random.randrange(len(changed))
        match random.randrange(5):
            case 0 | 1:
                changed[at] ^= 1 << random.randrange(8)
            case 2:
                changed[at] = random.choice((0, 1, 127, 128, 255))
            case 3:
                del changed[at : at + random.randrange(1, 9)]
            case _:
                changed[at:at] = random.randbytes(random.randrange(1, 9))
        if not changed:
            break
    return bytes(changed)


def use(block: LogBlock) -> None:
    record_positions(block, MOST_POSITIONS)
    match block.kind:
        case BlockKind.DELETE:
            parse_delete_block(block)
        case BlockKind.HFILE:
            read_block(record_kind(block.file_name), block)
        case BlockKind.AVRO | BlockKind.PARQUET | BlockKind.CDC:
            data_block_rows(block)


def test_damaged_logs_of_real_hudi_are_read_or_an_error(golden: GoldenTables) -> None:
    random = Random(20260101)
    # The folder of a metadata table says what its records are.
    files = [
        (path.parent.name, path.read_bytes())
        for name in ("mor_avro", "mor_parquet", "mor_is_deleted", "mor_mdt", "cow_cdc")
        for path in golden[name].rglob(".*.log.*")
        if not path.name.endswith(".crc")
    ]
    blocks = [block for name, data in files for block in parse_blocks(data, file_name=name)]
    noticed = 0
    for turn in range(sized(400, soak=100_000)):
        try:
            if turn % 4 == 0:
                name, data = random.choice(files)
                for block in parse_blocks(damaged(data, random), file_name=name):
                    use(block)
            else:
                block = random.choice(blocks)
                content = damaged(bytes(block.content) or b"\x00", random)
                use(LogBlock(block.kind, block.headers, memoryview(content), 0, block.file_name))
        except (CorruptError, UnsupportedError):
            noticed += 1
    assert noticed > sized(200, soak=50_000)
