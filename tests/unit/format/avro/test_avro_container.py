"""Container files with one record: resolution by name, exact bytes, and hostile input."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format.avro.container import decode_record, encode_record, record_name
from lakewright.format.avro.schema import load_schema, with_nullable_text

PLAN = load_schema("HoodieCompactionPlan")
RESTORE = load_schema("HoodieRestorePlan")
RECORD = {
    "instantsToRollback": [{"commitTime": "20260101000000000", "action": "commit"}],
    "version": 2,
    "savepointToRestoreTimestamp": None,
}
INSTANT = {
    "type": "record",
    "name": "HoodieInstantInfo",
    "fields": [{"name": "commitTime", "type": "string"}, {"name": "action", "type": "string"}],
}
INSTANTS = {"name": "instantsToRollback", "type": {"type": "array", "items": INSTANT}}
VERSION = {"name": "version", "type": ["int", "null"]}
SYNC = b"0123456789abcdef"


def restore_schema(*fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "HoodieRestorePlan",
        "namespace": "org.apache.hudi.avro.model",
        "fields": list(fields),
    }


def varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def container(
    schema: Any, body: bytes = b"", *, count: int = 1, sync: bytes = SYNC, **more: bytes
) -> bytes:
    text = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    header = {b"avro.schema": text} | {f"avro.{name}".encode(): v for name, v in more.items()}
    entries = b"".join(varint(len(part)) + part for pair in header.items() for part in pair)
    head = b"Obj\x01" + varint(len(header)) + entries + b"\x00" + SYNC
    return head + varint(count) + varint(len(body)) + body + sync


def written(record: dict[str, Any], *fields: Any) -> bytes:
    schema = restore_schema(*fields)
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), record)
    return container(schema, body.getvalue())


def test_a_record_comes_back() -> None:
    assert decode_record(encode_record(RECORD, RESTORE), RESTORE) == RECORD


def test_fastavro_reads_what_we_write() -> None:
    reader = fastavro.reader(io.BytesIO(encode_record(RECORD, RESTORE)))
    assert list(reader) == [RECORD]
    assert list(reader.metadata) == ["avro.schema"]


def test_equal_records_have_equal_bytes_and_others_another_sync_marker() -> None:
    first, again = encode_record(RECORD, RESTORE), encode_record(dict(RECORD), RESTORE)
    other = encode_record(RECORD | {"version": 3}, RESTORE)
    assert first == again
    assert first[-16:] != other[-16:]


def test_the_name_of_a_record_is_read() -> None:
    assert record_name(encode_record(RECORD, RESTORE)) == "HoodieRestorePlan"


RESOLUTIONS = {
    "a field that the writer did not know gets its default": (
        written(RECORD, INSTANTS),
        {"version": 2, "savepointToRestoreTimestamp": None},
    ),
    "a field that we do not know is dropped": (
        written(RECORD | {"later": "x"}, INSTANTS, {"name": "later", "type": "string"}),
        {"version": 2},
    ),
    "fields may come in another order": (
        written(RECORD | {"version": 7}, VERSION, INSTANTS),
        {"version": 7},
    ),
    "a union may have its branches in another order": (
        written(RECORD | {"version": 7}, {"name": "version", "type": ["null", "int"]}, INSTANTS),
        {"version": 7},
    ),
    "a plain value fits an optional one": (
        written(RECORD | {"version": 7}, {"name": "version", "type": "int"}, INSTANTS),
        {"version": 7},
    ),
    "attributes and documentation do not matter": (
        written(RECORD, {**INSTANTS, "doc": "what", "default": []}, VERSION),
        {"version": 2},
    ),
    "a union of records resolves by name": (
        written(RECORD, {"name": "instantsToRollback", "type": [INSTANTS["type"], "null"]}),
        {"version": 2},
    ),
}


@pytest.mark.parametrize(("data", "expected"), RESOLUTIONS.values(), ids=list(RESOLUTIONS))
def test_resolution(data: bytes, expected: dict[str, Any]) -> None:
    assert decode_record(data, RESTORE) == RECORD | expected


def test_an_added_field_is_last_and_is_ignored_by_readers_that_do_not_know_it() -> None:
    added = with_nullable_text(PLAN, "HoodieCompactionOperation", "nextBaseInstantTime")
    operation = {"baseInstantTime": "1", "fileId": "f", "nextBaseInstantTime": "2"}
    data = encode_record({"operations": [operation]}, added)
    names = [
        field["name"] for field in json.loads(added.text)["fields"][0]["type"][1]["items"]["fields"]
    ]
    assert names[-1] == "nextBaseInstantTime"
    assert decode_record(data, added)["operations"][0]["nextBaseInstantTime"] == "2"
    assert "nextBaseInstantTime" not in decode_record(data, PLAN)["operations"][0]


GOOD = written(RECORD, INSTANTS, VERSION)
BODY = b"\x00\x00\x04"
NESTED: Any = "string"
for _ in range(100):
    NESTED = {"type": "array", "items": NESTED}


def with_field(kind: Any, body: bytes) -> bytes:
    return container(restore_schema({"name": "x", "type": kind}, INSTANTS), body)


CORRUPT = {
    "an empty file": b"",
    "another file": b"PAR1" + GOOD,
    "a header without schema": b"Obj\x01\x00" + SYNC + b"\x02\x02\x00" + SYNC,
    "a schema that is not JSON": container(b"{", BODY),
    "a schema that is not UTF-8": container(b"\xff\xfe\xfd", BODY),
    "a schema nested without end": container(b"[" * 100_000, BODY),
    "a schema that is no record": container("string", b"\x00"),
    "a schema of another record": encode_record({"operations": []}, PLAN),
    "a record without fields": container(restore_schema(), b""),
    "a record without a name": container({"type": "record", "fields": [VERSION]}, b"\x00\x04"),
    "a field without a name": container(restore_schema({"type": "int"}), b"\x00"),
    "a field without a type": container(restore_schema({"name": "x"}), b"\x00"),
    "a name that is no name": with_field(
        {"type": "record", "name": "a b", "fields": [VERSION]}, b""
    ),
    "two fields of one name": container(restore_schema(VERSION, VERSION), b"\x00\x04\x00\x04"),
    "a record defined twice": container(
        restore_schema(INSTANTS, {"name": "y", "type": INSTANT}), b"\x00"
    ),
    "a type nested too deeply": with_field(NESTED, b"\x00"),
    "a union in a union": with_field([["int"]], b"\x00"),
    "a union without branches": with_field([], b"\x00\x00"),
    "a branch that is not there": with_field(["null", "int"], b"\x08\x00"),
    "a field of another type": container(
        restore_schema({"name": "version", "type": "string"}, INSTANTS), b"\x02x\x00"
    ),
    "text that is not UTF-8": container(
        restore_schema({"name": "savepointToRestoreTimestamp", "type": "string"}, INSTANTS),
        b"\x02\xff\x00",
    ),
    "text longer than the file": with_field("string", varint(2**62) + b"x"),
    "text of negative length": with_field("string", b"\x01x"),
    "an array longer than the file": with_field(
        {"type": "array", "items": "int"}, varint(2**62) + b"\x00"
    ),
    "a map longer than the file": with_field({"type": "map", "values": "int"}, varint(2**62)),
    "no record": container(restore_schema(INSTANTS), b"", count=0),
    "two records": container(restore_schema(INSTANTS), b"\x00\x00", count=2),
    "a negative number of records": container(restore_schema(INSTANTS), b"\x00", count=-1),
    "bytes after the record": container(restore_schema(INSTANTS), b"\x00\x00"),
    "bytes after the file": GOOD + b"\x00",
    "another sync marker": container(restore_schema(INSTANTS), b"\x00", sync=b"f" * 16),
}


@pytest.mark.parametrize("data", CORRUPT.values(), ids=list(CORRUPT))
def test_broken_files_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_record(data, RESTORE)


def test_a_file_cut_anywhere_is_corrupt() -> None:
    for size in range(len(GOOD)):
        with pytest.raises(CorruptError):
            decode_record(GOOD[:size], RESTORE)


UNSUPPORTED = {
    "JSON of older tables": b'{"operationType": "UPSERT"}',
    "JSON after blanks": b"\n  {}",
    "a compressed file": container(restore_schema(INSTANTS), b"\x00", codec=b"deflate"),
    "values that take no bytes": with_field({"type": "array", "items": "null"}, varint(2**40)),
    "a record that holds itself": with_field(
        {"type": "record", "name": "R", "fields": [{"name": "next", "type": "R"}]}, b"\x00"
    ),
    "a type of its own": with_field({"type": "fixed", "name": "F", "size": 2**40}, b"\x00"),
}


@pytest.mark.parametrize("data", UNSUPPORTED.values(), ids=list(UNSUPPORTED))
def test_unknown_features_are_unsupported(data: bytes) -> None:
    with pytest.raises(UnsupportedError):
        decode_record(data, RESTORE)


def test_a_file_may_name_the_codec_null() -> None:
    data = container(restore_schema(INSTANTS), b"\x00", codec=b"null")
    assert decode_record(data, RESTORE)["instantsToRollback"] == []


MISFITS: dict[str, dict[str, Any]] = {
    "a number for text": {"savepointToRestoreTimestamp": 5},
    "text for a number": {"version": "2"},
    "a number that is too large": {"version": 2**40},
    "a missing list": {"instantsToRollback": None},
    "an incomplete inner record": {"instantsToRollback": [{"action": "commit"}]},
    "text that has no UTF-8 form": {"savepointToRestoreTimestamp": "\ud800"},
}


@pytest.mark.parametrize("change", MISFITS.values(), ids=list(MISFITS))
def test_values_that_do_not_fit_are_invalid(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="does not fit"):
        encode_record(RECORD | change, RESTORE)
