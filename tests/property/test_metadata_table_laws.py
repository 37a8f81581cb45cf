"""Laws of the metadata table's bytes: what is written is found, and damage never surprises."""

from __future__ import annotations

import math
from bisect import bisect_left
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.format.hfile.layout import Codec, HFileEntries
from lakewright.format.hfile.reader import HFileReader, parse_hfile
from lakewright.format.hfile.writer import format_hfile, sorted_entries
from lakewright.format.metadata_table.column_values import (
    WrappedValues,
    column_values,
    stored_type,
    unwrap_values,
    wrap_values,
)
from lakewright.format.metadata_table.files import DeletedKeys, format_base_file
from lakewright.format.metadata_table.merging import merge_records
from lakewright.format.metadata_table.record_schema import (
    RECORD_COLUMNS,
    RecordKind,
    record_schema_json,
)
from lakewright.format.metadata_table.records import decode_records, encode_records
from lakewright.model.hashing import java_string_hash
from lakewright.model.metadata_keys import (
    secondary_index_keys,
    secondary_index_prefixes,
    split_secondary_index_keys,
)
from lakewright.model.metadata_partitions import (
    IndexVersion,
    data_partition_of,
    shard_file_id,
    shard_numbers,
)
from lakewright.model.value_order import column_bounds, value_ranks
from support.hfiles import pairs_of
from support.metadata_tables import STEPS, MetadataTables, log_blocks
from support.soak import sized

SCHEMA = record_schema_json().encode()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KEYS = st.one_of(TEXT, st.text("ab$\\\0", max_size=4)).map(str.encode)
ENTRIES = st.dictionaries(KEYS, st.binary(max_size=30), max_size=40)


def entries_of(pairs: dict[bytes, bytes]) -> HFileEntries:
    return sorted_entries(
        HFileEntries(
            pa.array(list(pairs), pa.binary()), pa.array(list(pairs.values()), pa.binary())
        )
    )


def reader_of(data: bytes) -> HFileReader:
    return HFileReader.open(lambda at, length: data[at : at + length], len(data))


@given(ENTRIES, st.sampled_from(Codec), st.integers(1, 300))
def test_entries_come_back(pairs: dict[bytes, bytes], codec: Codec, block_bytes: int) -> None:
    data = format_hfile(entries_of(pairs), "{}", 0, codec=codec, block_bytes=block_bytes)
    assert pairs_of(parse_hfile(data).entries) == sorted(pairs.items())


@given(ENTRIES, st.lists(KEYS), st.integers(1, 300))
def test_a_key_is_found_wherever_it_is(
    pairs: dict[bytes, bytes], asked: list[bytes], block_bytes: int
) -> None:
    reader = reader_of(format_hfile(entries_of(pairs), "{}", 0, block_bytes=block_bytes))
    keys = [*asked, *pairs]
    found = reader.look_up(pa.array(keys, pa.binary())).to_pylist()
    assert found == [pairs.get(key) for key in keys]


@given(ENTRIES, st.lists(KEYS, max_size=4), st.integers(1, 300))
def test_a_prefix_finds_all_of_its_keys(
    pairs: dict[bytes, bytes], prefixes: list[bytes], block_bytes: int
) -> None:
    reader = reader_of(format_hfile(entries_of(pairs), "{}", 0, block_bytes=block_bytes))
    found = [key for batch in reader.with_prefixes(prefixes) for key, _ in pairs_of(batch)]
    assert found == sorted(key for key in pairs if key.startswith(tuple(prefixes)))


@given(ENTRIES, KEYS, st.none() | KEYS, st.integers(1, 300))
def test_a_range_has_the_keys_between_its_ends(
    pairs: dict[bytes, bytes], start: bytes, stop: bytes | None, block_bytes: int
) -> None:
    reader = reader_of(format_hfile(entries_of(pairs), "{}", 0, block_bytes=block_bytes))
    found = [key for batch in reader.scan(start, stop) for key, _ in pairs_of(batch)]
    ordered = sorted(pairs)
    end = len(ordered) if stop is None else bisect_left(ordered, stop)
    assert found == ordered[bisect_left(ordered, start) : end]


# -- records

LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
# A wrapper with some bytes that are a value in it.
WRAPPED = st.one_of(
    st.just((0, b"")),
    st.booleans().map(lambda flag: (1, bytes([flag]))),
    st.tuples(st.sampled_from([2, 3, 8, 10, 11, 12]), st.binary(min_size=1, max_size=1)).map(
        lambda value: (value[0], bytes([value[1][0] & 0x7F]))
    ),
    st.binary(min_size=4, max_size=4).map(lambda value: (4, value)),
    st.binary(min_size=8, max_size=8).map(lambda value: (5, value)),
    st.binary(max_size=20).map(lambda value: (6, bytes([len(value) * 2]) + value)),
    TEXT.map(str.encode).map(lambda value: (7, bytes([len(value) * 2]) + value)),
)


def with_values(row: dict[str, Any], least: tuple[int, bytes], greatest: tuple[int, bytes]) -> Any:
    values = zip(
        ("min_wrapper", "min_value", "max_wrapper", "max_value"), (*least, *greatest), strict=True
    )
    return row | dict(values)


ROWS: dict[RecordKind, st.SearchStrategy[dict[str, Any]]] = {
    RecordKind.FILES: st.fixed_dictionaries(
        {
            "key": TEXT,
            "files": st.lists(
                st.fixed_dictionaries(
                    {
                        "name": TEXT,
                        "size": st.integers(1, 2**63 - 1),
                        "is_deleted": st.booleans(),
                    }
                ),
                max_size=5,
            ),
        }
    ),
    RecordKind.COLUMN_STATS: st.builds(
        with_values,
        st.fixed_dictionaries(
            {
                "key": TEXT,
                "type": st.sampled_from([3, 6]),
                "file_name": st.none() | TEXT,
                "column_name": st.none() | TEXT,
                **dict.fromkeys(
                    ("value_count", "null_count", "total_size", "total_uncompressed_size"),
                    st.none() | LONGS,
                ),
                "is_deleted": st.booleans(),
                "is_tight_bound": st.booleans(),
                "value_type": st.none() | INTS,
            }
        ),
        WRAPPED,
        WRAPPED,
    ),
    RecordKind.BLOOM_FILTERS: st.fixed_dictionaries(
        {
            "key": TEXT,
            "filter_type": TEXT,
            "timestamp": TEXT,
            "bloom_filter": st.binary(max_size=20),
            "is_deleted": st.booleans(),
        }
    ),
    RecordKind.RECORD_INDEX: st.fixed_dictionaries(
        {
            "key": TEXT,
            "partition": st.none() | TEXT,
            "file_id_high": st.none() | LONGS,
            "file_id_low": st.none() | LONGS,
            "file_index": st.none() | INTS,
            "file_id": st.none() | TEXT,
            "instant_ms": st.none() | LONGS,
            "file_id_encoding": INTS,
            "position": st.none() | LONGS,
        }
    ),
    RecordKind.SECONDARY_INDEX: st.fixed_dictionaries({"key": TEXT, "is_deleted": st.booleans()}),
}


@pytest.mark.parametrize("kind", RecordKind)
def test_records_come_back(kind: RecordKind) -> None:
    @given(st.lists(ROWS[kind], max_size=12, unique_by=lambda row: row["key"]))
    def law(rows: list[dict[str, Any]]) -> None:
        ordered = sorted(rows, key=lambda row: row["key"].encode())
        records = pa.Table.from_pylist(rows, RECORD_COLUMNS[kind])
        file = parse_hfile(format_base_file(encode_records(kind, records), 0))
        found = decode_records(kind, file.entries, SCHEMA)
        assert found.equals(pa.Table.from_pylist(ordered, RECORD_COLUMNS[kind]))

    law()


COLUMNS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int32(): INTS,
    pa.int64(): LONGS,
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): TEXT,
    pa.binary(): st.binary(max_size=12),
    pa.decimal128(15, 4): st.integers(-(10**15) + 1, 10**15 - 1).map(
        lambda number: Decimal(number).scaleb(-4)
    ),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("ms"): st.datetimes().map(
        lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)
    ),
}


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_values_of_statistics_come_back(column: pa.DataType) -> None:
    @given(st.lists(st.none() | COLUMNS[column]), st.sampled_from(IndexVersion))
    def law(rows: list[Any], version: IndexVersion) -> None:
        values = pa.array(rows, column)
        stored = stored_type(column, version)
        assert stored is not None
        wrapped = wrap_values(values, stored)
        types = pa.array([stored.value_type] * len(rows), pa.int32())
        infos = pa.array([stored.info] * len(rows), pa.string())
        for found in (
            unwrap_values(wrapped, stored).cast(column),
            column_values(wrapped, types, infos, column),
        ):
            assert list(map(repr, found.to_pylist())) == list(map(repr, values.to_pylist()))

    law()


def java_order(value: Any) -> Any:
    """A key that orders values as Java does."""
    if isinstance(value, float):
        return (math.isnan(value), 0 if math.isnan(value) else value, math.copysign(1, value))
    if isinstance(value, str):
        return value.encode("utf-16-be")
    return (
        [byte - 256 if byte > 127 else byte for byte in value]
        if isinstance(value, bytes)
        else value
    )


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_ranks_are_in_the_order_of_java(column: pa.DataType) -> None:
    @given(st.lists(COLUMNS[column]))
    def law(rows: list[Any]) -> None:
        values = pa.array(rows, column).to_pylist()
        ranks = value_ranks(pa.array(rows, column)).tolist()
        by_rank = sorted(zip(ranks, values, strict=True), key=lambda pair: pair[0])
        keys = [java_order(value) for _, value in by_rank]
        if column != pa.float64() and column != pa.float32():
            assert keys == sorted(keys)
            assert len(set(ranks)) == len({repr(key) for key in keys})
        else:
            plain = [key for key in keys if not key[0]]
            assert plain == sorted(plain)
            assert keys[len(plain) :] == [key for key in keys if key[0]]

    law()


@given(st.lists(st.none() | st.floats()))
def test_bounds_of_floats_enclose_them_in_every_order(rows: list[float | None]) -> None:
    bounds = column_bounds(pa.array(rows, pa.float64()))
    least, greatest = bounds.least.as_py(), bounds.greatest.as_py()
    for value in rows:
        if value is not None:
            assert java_order(least) <= java_order(value) or math.isnan(least)
            assert math.isnan(greatest) or java_order(value) <= java_order(greatest)


# -- merging

CHANGES = st.lists(
    st.one_of(
        # Records: for each key the files, with a size or None for a deleted one.
        st.dictionaries(
            st.sampled_from("pq"),
            st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(1, 9)),
        ),
        # Deleted keys.
        st.sets(st.sampled_from("pq")),
    ),
    max_size=8,
)


def listed_one_by_one(changes: list[Any]) -> dict[str, dict[str, int | None]]:
    """The rules of the format, applied to one entry after the other."""
    state: dict[str, dict[str, int | None]] = {}
    for change in changes:
        if isinstance(change, set):
            for key in change:
                state.pop(key, None)
            continue
        for key, files in change.items():
            own = state.setdefault(key, {})
            for name, size in files.items():
                if size is not None:
                    own[name] = max(size, own.get(name) or 0)
                elif own.get(name) is not None:
                    del own[name]
                else:
                    own[name] = None
    return state


@given(CHANGES)
def test_listings_are_united_as_one_by_one(changes: list[Any]) -> None:
    sources = [
        DeletedKeys(pa.array(sorted(change), pa.string()))
        if isinstance(change, set)
        else pa.Table.from_pylist(
            [
                {
                    "key": key,
                    "files": [
                        {"name": name, "size": size or 0, "is_deleted": size is None}
                        for name, size in files.items()
                    ],
                }
                for key, files in change.items()
            ],
            RECORD_COLUMNS[RecordKind.FILES],
        )
        for change in changes
    ]
    found = {
        row["key"]: {f["name"]: None if f["is_deleted"] else f["size"] for f in row["files"]}
        for row in merge_records(RecordKind.FILES, sources).to_pylist()
    }
    assert found == listed_one_by_one(changes)


STATS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.none() | st.integers(-3, 3),
        st.booleans(),  # tight
        st.booleans(),  # a delete of the key
    ),
    max_size=8,
)


@given(STATS)
def test_statistics_are_widened_as_one_by_one(
    changes: list[tuple[str, int | None, bool, bool]],
) -> None:
    stored = stored_type(pa.int32(), IndexVersion.V2)
    assert stored is not None
    state: dict[str, tuple[int | None, int | None, int]] = {}
    sources: list[pa.Table | DeletedKeys] = []
    for key, value, tight, is_delete in changes:
        if is_delete:
            sources.append(DeletedKeys(pa.array([key])))
            state.pop(key, None)
            continue
        wrapped = wrap_values(pa.array([value], pa.int32()), stored)
        pair = (wrapped.wrappers[0].as_py(), wrapped.values[0].as_py())
        row = dict.fromkeys(RECORD_COLUMNS[RecordKind.COLUMN_STATS].names, 1) | {
            "key": key,
            "type": 6,
            "file_name": "p",
            "column_name": "v",
            "is_deleted": False,
            "is_tight_bound": tight,
            "value_type": int(stored.value_type or 0),
            "value_type_info": None,
        }
        sources.append(
            pa.Table.from_pylist(
                [with_values(row, pair, pair)], RECORD_COLUMNS[RecordKind.COLUMN_STATS]
            )
        )
        least, greatest, count = (None, None, 0) if tight or key not in state else state[key]
        known = [other for other in (least, greatest, value) if other is not None]
        state[key] = (min(known, default=None), max(known, default=None), count + 1)
    merged = merge_records(RecordKind.COLUMN_STATS, sources)
    found = {}
    for row in merged.to_pylist():
        one = pa.Table.from_pylist([row], merged.schema)
        bounds = (
            unwrap_values(wrapped_of(one, side), stored)[0].as_py() for side in ("min", "max")
        )
        found[row["key"]] = (*bounds, row["value_count"])
    assert found == state


def wrapped_of(row: pa.Table, side: str) -> WrappedValues:
    wrappers, values = (row[f"{side}_{part}"].combine_chunks() for part in ("wrapper", "value"))
    return WrappedValues(wrappers, values)


# -- keys and shards


@given(st.lists(st.tuples(st.none() | TEXT | st.text("$\\\0a"), TEXT | st.text("$\\\0a"))))
def test_values_and_record_keys_come_back(pairs: list[tuple[str | None, str]]) -> None:
    values = pa.array([value for value, _ in pairs], pa.string())
    record_keys = pa.array([key for _, key in pairs], pa.string())
    keys = secondary_index_keys(values, record_keys)
    assert [part.to_pylist() for part in split_secondary_index_keys(keys)] == [
        values.to_pylist(),
        record_keys.to_pylist(),
    ]
    prefixes = secondary_index_prefixes(keys).to_pylist()
    by_value: dict[str, str | None] = {}
    for (value, _), prefix, key in zip(pairs, prefixes, keys.to_pylist(), strict=True):
        assert key.startswith(prefix)
        assert by_value.setdefault(prefix, value) == value


@given(st.lists(TEXT), st.integers(1, 50))
def test_shards_are_those_of_java(keys: list[str], count: int) -> None:
    expected = []
    for key in keys:
        magnitude = abs(java_string_hash(key))
        signed = -magnitude if magnitude == 2**31 else magnitude
        expected.append(abs(int(math.fmod(signed, count))))
    assert shard_numbers(pa.array(keys, pa.string()), count).tolist() == expected


@given(TEXT, st.integers(0, 20_000))
def test_a_partition_comes_back_from_a_file_id(partition: str, shard: int) -> None:
    assert data_partition_of(shard_file_id("record_index", shard, partition)) == partition


# -- damage


def test_damaged_files_of_real_hudi_are_read_or_an_error(metadata_tables: MetadataTables) -> None:
    random = Random(20260101)
    step = metadata_tables[f"c9/{STEPS['c9'][3]}"]
    sources = []
    for folder in step.folders:
        for path in step.files(folder):
            if path.suffix == ".hfile":
                sources.append((step.kind(folder), path.read_bytes()))
            else:
                contents = [bytes(b.content) for b in log_blocks(path) if b.schema_json]
                sources += [(step.kind(folder), data) for data in contents if data[:4] == b"DATA"]
    assert len({kind for kind, _ in sources}) == len(RecordKind)
    noticed = 0
    for _ in range(sized(300, soak=50_000)):
        kind, data = random.choice(sources)
        changed = bytearray(
            format_hfile(parse_hfile(data).entries, SCHEMA.decode(), 0, codec=Codec.NONE)
        )
        for _ in range(random.choice((1, 1, 3))):
            changed[random.randrange(len(changed))] = random.choice((0, 1, 127, 128, 255))
        try:
            hfile = parse_hfile(bytes(changed))
            merge_records(kind, [decode_records(kind, hfile.entries, SCHEMA)] * 2)
        except (CorruptError, UnsupportedError):
            noticed += 1
    assert noticed > sized(30, soak=5_000)
