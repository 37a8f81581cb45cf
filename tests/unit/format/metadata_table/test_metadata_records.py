"""Records of the metadata table: their bytes, those of older writers, and damaged ones."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format.hfile.layout import HFileEntries
from lakewright.format.metadata_table.record_index import file_ids_of, record_locations
from lakewright.format.metadata_table.record_schema import (
    BLOOM_FILTERS,
    COLUMN_STATS,
    RECORD_COLUMNS,
    RECORD_INDEX,
    SECONDARY_INDEX,
    RecordKind,
    record_kind,
    record_schema_json,
)
from lakewright.format.metadata_table.records import decode_records, encode_records
from support.golden import GoldenTables
from support.hfiles import hfile_entries, pairs_of
from support.metadata_records import listing
from support.metadata_tables import MetadataTables, log_blocks

SCHEMA = record_schema_json().encode()
NO_METAS = "00" * 5


STATS: dict[str, Any] = {
    "key": "k",
    "type": 3,
    "file_name": "f",
    "column_name": "v",
    "min_wrapper": 2,
    "min_value": b"\x02",
    "max_wrapper": 7,
    "max_value": b"\x02b",
    "value_count": 3,
    "null_count": 0,
    "total_size": 1,
    "total_uncompressed_size": 2,
    "is_deleted": False,
    "is_tight_bound": True,
    "value_type": 10,
    "value_type_info": "10,2",
}
LOCATION: dict[str, Any] = {
    "key": "k",
    "partition": "p1",
    "file_id_high": -1,
    "file_id_low": 1,
    "file_index": 0,
    "file_id": "",
    "instant_ms": 64,
    "file_id_encoding": 0,
    "position": None,
}
BLOOM = {
    "key": "k",
    "filter_type": "SIMPLE",
    "timestamp": "1",
    "bloom_filter": b"xy",
    "is_deleted": False,
}

# Records and the bytes of their values; the format has them as in the examples of Hudi.
ENCODED: dict[str, tuple[RecordKind, pa.Table, str]] = {
    "the list of partitions": (
        RecordKind.FILES,
        listing(__all_partitions__={"p1": 0, "p2": -1}),
        NO_METAS + "00 02 02 04 04 7031 00 00 04 7032 00 01 00 00 00 00 00",
    ),
    "the files of a partition": (
        RecordKind.FILES,
        listing(p1={"a": 5}),
        NO_METAS + "00 04 02 02 02 61 0a 00 00 00 00 00 00",
    ),
    "a partition without files": (
        RecordKind.FILES,
        listing(p1={}),
        NO_METAS + "00 04 02 00 00000000",
    ),
    "statistics": (
        RecordKind.COLUMN_STATS,
        pa.Table.from_pylist([STATS], COLUMN_STATS),
        NO_METAS + "00 06 00 00 02 02 02 66 02 02 76 04 02 0e 02 62"
        "02 06 02 00 02 02 02 04 00 01 02 14 02 08 31302c32 00 00",
    ),
    "statistics without anything": (
        RecordKind.COLUMN_STATS,
        pa.Table.from_pylist(
            [
                {
                    "key": "k",
                    "type": 6,
                    "min_wrapper": 0,
                    "min_value": b"",
                    "max_wrapper": 0,
                    "max_value": b"",
                    "is_deleted": True,
                    "is_tight_bound": False,
                }
            ],
            COLUMN_STATS,
        ),
        NO_METAS + "00 0c 00 00 02 00 00 00 00 00 00 00 00 01 00 00 00 00",
    ),
    "a bloom filter": (
        RecordKind.BLOOM_FILTERS,
        pa.Table.from_pylist([BLOOM], BLOOM_FILTERS),
        NO_METAS + "00 08 00 02 0c 53494d504c45 02 31 04 7879 00 00 00 00",
    ),
    "a location": (
        RecordKind.RECORD_INDEX,
        pa.Table.from_pylist([LOCATION], RECORD_INDEX),
        NO_METAS + "00 0a 00 00 00 02 02 04 7031 02 01 02 02 02 00 02 00 02 8001 00 00 00",
    ),
    "a key of a secondary index": (
        RecordKind.SECONDARY_INDEX,
        pa.Table.from_pylist([{"key": "a$k", "is_deleted": False}], SECONDARY_INDEX),
        NO_METAS + "00 0e 00 00 00 00 02 00",
    ),
}


@pytest.mark.parametrize(("kind", "records", "expected"), ENCODED.values(), ids=list(ENCODED))
def test_a_record_has_its_bytes(kind: RecordKind, records: pa.Table, expected: str) -> None:
    entries = encode_records(kind, records)
    assert [value.hex() for _, value in pairs_of(entries)] == [expected.replace(" ", "")]
    assert entries.keys.to_pylist() == [key.encode() for key in records["key"].to_pylist()]
    assert decode_records(kind, entries, SCHEMA).equals(records)


def test_records_of_a_compaction_name_their_file() -> None:
    (value,) = encode_records(RecordKind.FILES, listing(p1={}), "a.hfile").values.to_pylist()
    assert value.startswith(bytes(4) + b"\x02\x0ea.hfile\x00\x04")
    assert decode_records(RecordKind.FILES, hfile_entries(("p1", value)), SCHEMA).to_pylist() == [
        {"key": "p1", "files": []}
    ]


def test_records_are_sorted_by_the_bytes_of_their_keys() -> None:
    records = listing(**{"\U0001f600": {}, "\ue000": {}, "a": {}})
    assert [k.decode() for k, _ in pairs_of(encode_records(RecordKind.FILES, records))] == [
        "a",
        "\ue000",
        "\U0001f600",
    ]


@pytest.mark.parametrize("kind", RecordKind)
def test_no_records_are_no_entries(kind: RecordKind) -> None:
    entries = encode_records(kind, RECORD_COLUMNS[kind].empty_table())
    assert len(entries) == 0
    assert decode_records(kind, entries, SCHEMA).equals(RECORD_COLUMNS[kind].empty_table())


def without_docs(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: without_docs(part) for name, part in schema.items() if name != "doc"}
    return [without_docs(part) for part in schema] if isinstance(schema, list) else schema


def test_the_schema_is_that_of_hudi_without_its_documentation(
    metadata_tables: MetadataTables,
) -> None:
    step = metadata_tables["c9n/01-insert"]
    logs = [path for path in step.files("files") if path.suffix != ".hfile"]
    (text,) = {b.schema_json for path in logs for b in log_blocks(path) if b.schema_json}
    stored, own = json.loads(text), json.loads(SCHEMA)
    assert without_docs(own) == without_docs(stored)
    plain = json.loads(record_schema_json(meta_columns=False))
    assert plain["fields"] == own["fields"][5:]


def old_schema(change: Callable[[dict[str, Any]], None]) -> bytes:
    schema = json.loads(SCHEMA)
    change(schema)
    return json.dumps(schema).encode()


def field_of(schema: dict[str, Any], *path: str) -> dict[str, Any]:
    """The record type of a field, at any depth."""
    found: Any = schema
    for name in path:
        kind = next(field for field in found["fields"] if field["name"] == name)["type"]
        found = kind[1] if isinstance(kind, list) else kind
        found = found.get("values", found)
    return dict(found)


def drop(record: str, *names: str) -> Callable[[dict[str, Any]], None]:
    def change(schema: dict[str, Any]) -> None:
        for field in schema["fields"]:
            if field["name"] == record:
                inner = field["type"][1]
                inner["fields"] = [f for f in inner["fields"] if f["name"] not in names]
        schema["fields"] = [field for field in schema["fields"] if field["name"] not in names]

    return change


def encoded_by(schema: bytes, record: dict[str, Any]) -> HFileEntries:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(schema)), record)
    return hfile_entries(("k", stream.getvalue()))


WRAPPERS = "org.apache.hudi.avro.model."
OLD_STATS = {
    "fileName": "f",
    "columnName": "v",
    "minValue": (WRAPPERS + "IntWrapper", {"value": 1}),
    "maxValue": (WRAPPERS + "TimestampMicrosWrapper", {"value": 7}),
    "valueCount": 3,
    "nullCount": 0,
    "totalSize": 1,
    "totalUncompressedSize": 2,
    "isDeleted": False,
}
"""Statistics as writers before 1.1 had them."""


def test_records_of_older_writers_have_defaults() -> None:
    schema = old_schema(drop("ColumnStatsMetadata", "isTightBound", "valueType"))
    record = {"key": "", "type": 3, "filesystemMetadata": None, "ColumnStatsMetadata": OLD_STATS}
    (found,) = decode_records(
        RecordKind.COLUMN_STATS, encoded_by(schema, record), schema
    ).to_pylist()
    assert found == STATS | {
        "max_wrapper": 11,
        "max_value": b"\x0e",
        "is_tight_bound": False,
        "value_type": None,
        "value_type_info": None,
    }


def test_wrappers_are_known_by_their_names() -> None:
    def fewer(schema: dict[str, Any]) -> None:
        stats = field_of(schema, "ColumnStatsMetadata")
        unions = {f["name"]: f["type"] for f in stats["fields"] if f["name"][3:] == "Value"}
        del unions["minValue"][1], unions["maxValue"][1]
        unions["minValue"][-1]["fields"][0]["type"][1]["items"].remove("BooleanWrapper")

    schema = old_schema(fewer)
    record = {
        "key": "",
        "type": 3,
        "filesystemMetadata": None,
        "ColumnStatsMetadata": OLD_STATS | {"isTightBound": True},
    }
    (found,) = decode_records(
        RecordKind.COLUMN_STATS, encoded_by(schema, record), schema
    ).to_pylist()
    assert (found["min_wrapper"], found["max_wrapper"]) == (2, 11)


def test_records_without_meta_columns_are_read() -> None:
    schema = record_schema_json(meta_columns=False).encode()
    record = {"key": "k", "type": 2, "filesystemMetadata": {"a": {"size": 1, "isDeleted": False}}}
    found = decode_records(RecordKind.FILES, encoded_by(schema, record), schema)
    assert found.equals(listing(k={"a": 1}))


def test_a_listing_may_be_null_or_in_pieces() -> None:
    values = {
        "p1": "00 04 00 00 00 00 00",
        "p2": "00 04 02 01 08 02 61 0a 00 02 02 62 0a 01 00" + "00" * 4,
    }
    entries = hfile_entries(
        *((key, bytes.fromhex(NO_METAS + value)) for key, value in values.items())
    )
    found = decode_records(RecordKind.FILES, entries, SCHEMA).to_pylist()
    assert found == [
        {"key": "p1", "files": []},
        {
            "key": "p2",
            "files": [
                {"name": "a", "size": 5, "is_deleted": False},
                {"name": "b", "size": 5, "is_deleted": True},
            ],
        },
    ]


def test_records_of_another_kind_are_damage(golden: GoldenTables) -> None:
    for name, (kind, records, _) in ENCODED.items():
        entries = encode_records(kind, records)
        for other in set(RecordKind) - {kind}:
            with pytest.raises(CorruptError):
                print(name, other, decode_records(other, entries, SCHEMA))


ONE = listing(p1={"a": 5})
VALUE = pairs_of(encode_records(RecordKind.FILES, ONE))[0][1]
DAMAGED_VALUES = {
    "nothing": b"",
    "cut off": VALUE[:-1],
    "too long": VALUE + b"\x00",
    "a type of another kind": VALUE.replace(b"\x00\x04\x02", b"\x00\x06\x02", 1),
    "a union without such a branch": VALUE[:-1] + b"\x04",
    "a name that is not text": VALUE.replace(b"a", b"\xff"),
    "a flag that is neither": VALUE.replace(b"a\x0a\x00", b"a\x0a\x02"),
    "an absurd number of files": VALUE.replace(b"\x04\x02\x02", b"\x04\x02\xfe\xff\xff\xff\x0f"),
}


@pytest.mark.parametrize("value", DAMAGED_VALUES.values(), ids=list(DAMAGED_VALUES))
def test_a_damaged_value_is_an_error(value: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_records(RecordKind.FILES, hfile_entries(("p1", value)), SCHEMA)


def test_a_key_that_is_not_text_is_an_error() -> None:
    with pytest.raises(CorruptError):
        decode_records(RecordKind.FILES, hfile_entries((b"\xff", VALUE)), SCHEMA)


def retyped(path: tuple[str, ...], kind: object) -> bytes:
    def change(schema: dict[str, Any]) -> None:
        *parents, name = path
        record = field_of(schema, *parents) if parents else schema
        next(field for field in record["fields"] if field["name"] == name)["type"] = kind

    return old_schema(change)


OTHER_SCHEMAS = {
    "no schema": b"{}",
    "no JSON": b"{",
    "a row of a table": b'{"type":"record","name":"row","fields":[{"name":"a","type":"int"}]}',
    "files in a list": retyped(("filesystemMetadata",), {"type": "array", "items": "string"}),
    "files with sizes of text": retyped(("filesystemMetadata", "size"), "string"),
    "statistics that are a number": retyped(("ColumnStatsMetadata",), ["null", "int"]),
    "values without wrappers": retyped(("ColumnStatsMetadata", "maxValue"), ["null", "int"]),
    "no key": old_schema(drop("", "key")),
    "files without sizes": retyped(
        ("filesystemMetadata",),
        [
            "null",
            {
                "type": "map",
                "values": {
                    "type": "record",
                    "name": "x",
                    "fields": [{"name": "isDeleted", "type": "boolean"}],
                },
            },
        ],
    ),
}


@pytest.mark.parametrize("schema", OTHER_SCHEMAS.values(), ids=list(OTHER_SCHEMAS))
def test_another_schema_is_damage(schema: bytes) -> None:
    for kind in RecordKind:
        with pytest.raises(CorruptError):
            decode_records(kind, hfile_entries(("p1", VALUE)), schema)


def test_a_schema_without_the_field_of_a_kind_has_no_records_of_it() -> None:
    schema = old_schema(drop("", "SecondaryIndexMetadata"))
    with pytest.raises(CorruptError, match="of this kind"):
        decode_records(RecordKind.SECONDARY_INDEX, hfile_entries(), schema)
    assert not len(decode_records(RecordKind.FILES, hfile_entries(), schema))


REFUSED: dict[str, tuple[RecordKind, list[dict[str, Any]]]] = {
    "a record without key": (RecordKind.SECONDARY_INDEX, [{"key": None, "is_deleted": False}]),
    "two records of one key": (
        RecordKind.SECONDARY_INDEX,
        [{"key": "a", "is_deleted": False}, {"key": "a", "is_deleted": True}],
    ),
    "a flag that is null": (RecordKind.SECONDARY_INDEX, [{"key": "a", "is_deleted": None}]),
    "a bloom filter without bytes": (RecordKind.BLOOM_FILTERS, [BLOOM | {"bloom_filter": None}]),
    "statistics without type": (RecordKind.COLUMN_STATS, [STATS | {"type": None}]),
    "statistics of another type": (RecordKind.COLUMN_STATS, [STATS | {"type": 5}]),
    "a value without wrapper": (RecordKind.COLUMN_STATS, [STATS | {"min_wrapper": None}]),
    "a value in an unknown wrapper": (RecordKind.COLUMN_STATS, [STATS | {"max_wrapper": 14}]),
    "a value that is null": (RecordKind.COLUMN_STATS, [STATS | {"max_value": None}]),
    "a wrapper of null with a value": (RecordKind.COLUMN_STATS, [STATS | {"min_wrapper": 0}]),
    "a value in a negative wrapper": (RecordKind.COLUMN_STATS, [STATS | {"max_wrapper": -1}]),
    "a file without a size": (
        RecordKind.FILES,
        [{"key": "p1", "files": [{"name": "a", "size": 0, "is_deleted": False}]}],
    ),
    "a file without a name": (
        RecordKind.FILES,
        [{"key": "p1", "files": [{"name": None, "size": 1, "is_deleted": False}]}],
    ),
}


@pytest.mark.parametrize(("kind", "rows"), REFUSED.values(), ids=list(REFUSED))
def test_records_that_do_not_fit_are_refused(kind: RecordKind, rows: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidError):
        encode_records(kind, pa.Table.from_pylist(rows, RECORD_COLUMNS[kind]))


def test_records_with_other_columns_are_refused() -> None:
    with pytest.raises(InvalidError):
        encode_records(RecordKind.FILES, pa.table({"key": ["a"]}))
    with pytest.raises(InvalidError):
        encode_records(RecordKind.SECONDARY_INDEX, pa.table({"key": ["a"], "is_deleted": ["x"]}))


def test_a_folder_says_what_its_records_hold() -> None:
    assert record_kind("partition_stats") is RecordKind.COLUMN_STATS
    assert record_kind("expr_index_x", "column_stats") is RecordKind.COLUMN_STATS
    assert record_kind("expr_index_x", "bloom_filters") is RecordKind.BLOOM_FILTERS
    for kind in (None, "files", "other"):
        with pytest.raises(UnsupportedError):
            record_kind("expr_index_x", kind)


# -- locations

FILE_IDS = {
    "498ab9f6-88a8-40fc-848c-d11694c164ce-0": (0x498AB9F688A840FC, -0x7B732EE96B3E9B32, 0, "", 0),
    "00000001-0000-0000-0000-000000000000-12": (1 << 32, 0, 12, "", 0),
    "ffffffff-ffff-ffff-ffff-ffffffffffff": (-1, -1, -1, "", 0),
    "498AB9F6-88A8-40FC-848C-D11694C164CE-0": (-1, -1, -1, None, 1),
    "498ab9f6-88a8-40fc-848c-d11694c164ce-00": (-1, -1, -1, None, 1),
    "498ab9f6-88a8-40fc-848c-d11694c164ce-": (-1, -1, -1, None, 1),
    "any text": (-1, -1, -1, None, 1),
}


@pytest.mark.parametrize("coded", [False, True])
def test_file_ids_come_back(coded: bool) -> None:
    ids = pa.array(list(FILE_IDS))
    partitions = pa.array(["", *["p1"] * (len(ids) - 1)])
    keys = pa.array([f"k{number}" for number in range(len(ids))])
    if coded:
        ids, partitions = ids.dictionary_encode(), partitions.dictionary_encode()
    records = record_locations(keys, partitions, ids, pa.array(range(len(ids))))
    stored = [
        (r["file_id_high"], r["file_id_low"], r["file_index"], r["file_id"], r["file_id_encoding"])
        for r in records.to_pylist()
    ]
    expected = [
        (*numbers[:3], name if numbers[3] is None else numbers[3], numbers[4])
        for name, numbers in FILE_IDS.items()
    ]
    assert stored == expected
    assert records["partition"].to_pylist() == partitions.to_pylist()
    assert file_ids_of(records).to_pylist() == list(FILE_IDS)
    entries = encode_records(RecordKind.RECORD_INDEX, records)
    assert decode_records(RecordKind.RECORD_INDEX, entries, SCHEMA).equals(records)


def test_no_locations_have_no_file_ids() -> None:
    assert file_ids_of(RECORD_INDEX.empty_table()).to_pylist() == []


def test_a_row_without_a_place_is_refused() -> None:
    one, none, times = pa.array(["a"]), pa.array([None], pa.string()), pa.array([1])
    with pytest.raises(InvalidError):
        record_locations(one, none, one, times)
    with pytest.raises(InvalidError):
        record_locations(one, one, none, times)


@pytest.mark.parametrize(
    "missing", [{"file_id_high": None}, {"file_id": None, "file_id_encoding": 1}]
)
def test_a_location_without_a_file_group_is_damage(missing: dict[str, Any]) -> None:
    with pytest.raises(CorruptError):
        file_ids_of(pa.Table.from_pylist([LOCATION | missing], RECORD_INDEX))
