"""Objects in a worker: copied, checked, converted to what Spark reads."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import io
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from lakewright.errors import UnavailableError
from lakewright.ingestion.cloud.objects import Preparation, Prepared, missing_of, prepare
from lakewright.ingestion.cloud.selection import CloudObject
from lakewright.storage.factory import storage_for
from lakewright.storage.memory import MemoryStorage
from lakewright.write.task import WriteToken

TABLE = pa.table({"id": [1, 2], "name": ["a", "b"]})
AVRO = {
    "type": "record", "name": "row", "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": [
            "null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {"name": "inner", "type": {"type": "record", "name": "inner", "fields": [
            {"name": "list", "type": {"type": "array", "items": "int"}}]}},
    ],
}  # fmt: skip
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
ROWS = [
    {"id": 1, "tags": {"a": "b"}, "at": NOON, "price": Decimal("1.50"), "inner": {"list": [1, 2]}},
    {"id": 2, "tags": {}, "at": NOON, "price": None, "inner": {"list": []}},
]


def avro_bytes() -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, AVRO, ROWS, codec="deflate")
    return sink.getvalue()


def parquet_bytes() -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink)
    return sink.getvalue()


def orc_bytes() -> bytes:
    sink = io.BytesIO()
    orc.write_table(TABLE, sink)
    return sink.getvalue()


def item(path: str, size: int = 1) -> CloudObject:
    return CloudObject("1", "lake", path, path, size)


def prepared(
    folder: Path,
    path: str,
    data: bytes | None,
    kind: str,
    options: Mapping[str, str] | None = None,
    *,
    copied: bool = False,
) -> Prepared:
    store = storage_for(folder / "lake")
    if data is not None:
        store.create(path, data)
    what = Preparation(
        format=kind,
        options=options or {},
        addresses={"lake": str(folder / "lake")},
        target=str(folder / "copies") if copied else None,
        checked=True,
    )
    results = prepare(what, [(0, item(path))], WriteToken())
    assert isinstance(results, list)
    (only,) = results
    return only


LINES = b'{"a": 1}\n\n{"a": 2}\n'
CHECKS = {
    "JSON lines": ("a.json", LINES, "json", {}, None),
    "JSON lines, compressed": ("a.json.gz", gzip.compress(LINES), "json", {}, None),
    "JSON lines, compressed otherwise": ("a.json.bz2", bz2.compress(LINES), "json", {}, None),
    "a list of JSON objects": ("a.json", b'[{"a":\n1}]', "json", {"multiLine": "true"}, None),
    "a compression that only Spark knows is left to it": ("a.json.zst", b"?", "json", {}, None),
    "JSON that ends early": ("a.json", b'{"a": 1}\n{"a":', "json", {}, "JSONDecodeError"),
    "JSON that is no object": ("a.json", b"17\n", "json", {}, "no JSON object"),
    "bytes that are no text": ("a.json", b"\xff\xfe{", "json", {}, "UnicodeDecodeError"),
    "a compressed object that ends early": (
        "a.json.gz", gzip.compress(LINES)[:-9], "json", {}, "EOFError"),
    "no compressed object": ("a.json.gz", LINES, "json", {}, "BadGzipFile"),
    "CSV": ("a.csv", b"a,b\n1,\"x,y\"\n", "csv", {"header": "true"}, None),
    "CSV with another sign": ("a.csv", b"a;b\n1;2\n", "csv", {"sep": ";"}, None),
    "CSV with a short line": ("a.csv", b"a,b\n1\n", "csv", {}, "different numbers of fields"),
    "Parquet": ("a.parquet", parquet_bytes(), "parquet", {}, None),
    "Parquet that ends early": (
        "a.parquet", parquet_bytes()[:-20], "parquet", {}, "ArrowInvalid"),
    "no Parquet": ("a.parquet", b"hello", "parquet", {}, "ArrowInvalid"),
    "ORC": ("a.orc", orc_bytes(), "orc", {}, None),
    "no ORC": ("a.orc", b"hello", "orc", {}, "Not an ORC file"),
    "an object that vanished": ("a.json", None, "json", {}, "no longer exists"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "data", "kind", "options", "problem"), CHECKS.values(), ids=list(CHECKS)
)
def test_checks_objects(
    path: str,
    data: bytes | None,
    kind: str,
    options: Mapping[str, str],
    problem: str | None,
    tmp_path: Path,
) -> None:
    result = prepared(tmp_path, path, data, kind, options)
    if problem is None:
        assert result.problem is None
    else:
        assert problem in (result.problem or "")


def test_damage_within_a_parquet_file_is_found(tmp_path: Path) -> None:
    data = bytearray(parquet_bytes())
    data[4:40] = b"\xff" * 36
    assert prepared(tmp_path, "a.parquet", bytes(data), "parquet").problem is not None


def test_a_copy_has_the_same_bytes_and_a_plain_name(tmp_path: Path) -> None:
    result = prepared(tmp_path, "x/_a +%[].json.gz", gzip.compress(LINES), "json", copied=True)
    assert result.copy == "000000-0-0-0.gz"
    assert gzip.decompress((tmp_path / "copies" / result.copy).read_bytes()) == LINES


def test_avro_is_converted_to_parquet(tmp_path: Path) -> None:
    result = prepared(tmp_path, "a.avro", avro_bytes(), "avro", copied=True)
    assert result.copy is not None
    rows = pq.read_table(tmp_path / "copies" / result.copy).to_pylist(maps_as_pydicts="strict")
    assert rows == ROWS


def test_damaged_avro_is_reported_and_leaves_no_copy(tmp_path: Path) -> None:
    for number, data in enumerate((b"hello", avro_bytes()[:-7])):
        result = prepared(tmp_path, f"{number}.avro", data, "avro", copied=True)
        assert result.problem is not None
    assert list(storage_for(tmp_path / "copies").list_tree("")) == []


def test_a_name_that_no_storage_takes_is_reported(tmp_path: Path) -> None:
    assert "name" in (prepared(tmp_path, "a//b.json", None, "json").problem or "")


def test_objects_that_are_not_there(tmp_path: Path) -> None:
    store = storage_for(tmp_path)
    store.create("a", b"x")
    what = Preparation("json", addresses={"lake": str(tmp_path)})
    assert missing_of(what, [item("a"), item("b")], WriteToken()) == [item("b")]


def test_a_store_that_does_not_answer_says_nothing_about_the_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = "memory://silent"
    MemoryStorage.at(address, {}).create("a.json", LINES)

    def silent(self: MemoryStorage, path: str) -> pa.NativeFile:
        raise UnavailableError("no answer", path=path)

    monkeypatch.setattr(MemoryStorage, "open_input", silent)
    what = Preparation("json", addresses={"lake": address}, checked=True)
    assert isinstance(prepare(what, [(0, item("a.json"))], WriteToken()), UnavailableError)
