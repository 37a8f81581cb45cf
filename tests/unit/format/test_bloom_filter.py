"""Bloom filters, bit by bit as real Hudi makes them."""

from __future__ import annotations

import base64
import struct
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format.bloom_filter import (
    BloomSettings,
    BloomType,
    build_bloom,
    format_bloom,
    parse_bloom,
)
from support.golden import GoldenTables

SMALL = BloomSettings(BloomType.DYNAMIC, 10, 0.01, 35)
LARGE = BloomSettings()
SIMPLE = BloomSettings(BloomType.SIMPLE, 100, 0.0001, 0)

# Hashes of the Base64 text that classes of Hudi 1.2.0 gave for the keys k€0, k€1, ...
BY_HUDI = {
    "a row that is half full": (
        (SMALL, 5),
        "d938903e8316c5ab88c0537c5f76654f22d9f5f1d7fab8741a47c85498c42ac3",
    ),
    "a row that is full": (
        (SMALL, 10),
        "f9273ab9df8323541f3e9733d15116559056efec278845e9269afb2658b02419",
    ),
    "a second row": (
        (SMALL, 11),
        "46697271c4ee0d5f7f8200a6a54b4e905a139626cc7d1f750ceec363949c079a",
    ),
    "as many rows as allowed": (
        (SMALL, 40),
        "2dfd255483f39769f7dc0f32e6d6f350ce5e4d3a04c4bd73127806d3e65150ed",
    ),
    "one key more than fits": (
        (SMALL, 41),
        "855a548c8c5b30f7862aa08de235736b232cd3945aed33bb50894f1035b94080",
    ),
    "many keys more than fit": (
        (SMALL, 100),
        "569611a4261aa7847c2b8f7f79d2708b19b63cd7de0b1d1373d19160b6bb5c54",
    ),
    "a simple filter": (
        (SIMPLE, 50),
        "ef18f33b4a37317716732240c230c485f7992a8b7cb3a1d19dafbfbfd4df4ba3",
    ),
    "two rows of the usual size": (
        (LARGE, 70_000),
        "dbb12670d22dcd54a2b180e91b03899159604e7d9bf0b4cb322b203e8fa8b14b",
    ),
    "more keys than two rows of the usual size hold": (
        (LARGE, 130_005),
        "7b06687b120037061fb01edcaff86de35e9004b32035f92f68a6e376ac2c12b3",
    ),
}


@pytest.mark.parametrize(("made", "digest"), BY_HUDI.values(), ids=list(BY_HUDI))
def test_a_filter_is_the_one_that_hudi_makes(made: tuple[BloomSettings, int], digest: str) -> None:
    settings, count = made
    keys = pa.array([f"k€{i}" for i in range(count)])
    bloom = build_bloom(keys, settings)
    data = format_bloom(bloom)
    assert sha256(base64.b64encode(data)).hexdigest() == digest
    assert bloom.may_contain(keys).all()
    again = parse_bloom(data, settings.kind)
    assert format_bloom(again) == data
    assert again.may_contain(keys).all()


@pytest.mark.parametrize("name", ["cow_basic", "cow_hive_complex", "mor_compacted"])
def test_filters_in_base_files_of_real_hudi_are_made_again(golden: GoldenTables, name: str) -> None:
    files = sorted(golden[name].rglob("*.parquet"))
    assert files
    for file in files:
        keys = pq.ParquetFile(file).read(["_hoodie_record_key"]).column(0).combine_chunks()
        stored = pq.read_metadata(file).metadata[b"org.apache.hudi.bloomfilter"]
        data = base64.b64decode(stored)
        assert format_bloom(build_bloom(keys, BloomSettings())) == data
        assert parse_bloom(data, BloomType.DYNAMIC).may_contain(keys).all()


def test_the_usual_size_is_that_of_hudi() -> None:
    assert (BloomSettings().bits, BloomSettings().hashes) == (2_587_966, 30)


def test_false_positives_are_as_rare_as_configured() -> None:
    bloom = build_bloom(pa.array([f"in{i}" for i in range(1000)]), BloomSettings(entries=1000))
    assert not bloom.may_contain(pa.array([f"out{i}" for i in range(20_000)])).any()
    loose = BloomSettings(BloomType.SIMPLE, 1000, 0.1)
    bloom = build_bloom(pa.array([f"in{i}" for i in range(1000)]), loose)
    share = bloom.may_contain(pa.array([f"out{i}" for i in range(20_000)])).mean()
    assert 0.05 < share < 0.15


def test_keys_of_any_length_and_a_slice_of_them_are_found() -> None:
    keys = pa.array(["", "a", "ab", "abc", "abcd", "ü" * 50, "x" * 1000]).slice(1)
    bloom = build_bloom(keys, SMALL)
    assert bloom.may_contain(keys).all()
    assert bloom.may_contain(keys.slice(3)).all()
    assert len(bloom.may_contain(keys.slice(6))) == 0


def test_a_filter_without_keys_holds_nothing() -> None:
    bloom = build_bloom(pa.array([], pa.string()), SMALL)
    assert not bloom.rows.any()
    assert not bloom.may_contain(pa.array(["a"])).any()
    assert format_bloom(parse_bloom(format_bloom(bloom), SMALL.kind)) == format_bloom(bloom)


def test_a_null_is_no_key() -> None:
    with pytest.raises(InvalidError):
        build_bloom(pa.array(["a", None]), SMALL)


def test_impossible_settings_are_refused() -> None:
    for entries, share in ((0, 0.1), (10, 0.0), (10, 1.0)):
        with pytest.raises(InvalidError):
            BloomSettings(BloomType.SIMPLE, entries, share)


DATA = format_bloom(build_bloom(pa.array(["a", "b"]), SMALL))
ROW = DATA[13 + 12 :]
FORMS = {"hashes": 4, "bits": 9, "entries": 13, "in_last_row": 17, "rows": 21}


def patched(at: int, form: str, value: int, data: bytes = DATA) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, at, value)
    return bytes(changed)


DAMAGED: dict[str, tuple[bytes, BloomType, type[Exception]]] = {
    "nothing": (b"", BloomType.DYNAMIC, CorruptError),
    "half a header": (DATA[:10], BloomType.DYNAMIC, CorruptError),
    "a header alone": (DATA[:13], BloomType.DYNAMIC, CorruptError),
    "a row that is cut off": (DATA[:-1], BloomType.DYNAMIC, CorruptError),
    "bytes after the end": (DATA + b"\x00", BloomType.DYNAMIC, CorruptError),
    "bytes after the end of a simple one": (ROW + b"\x00", BloomType.SIMPLE, CorruptError),
    "another version": (patched(0, ">i", -2), BloomType.DYNAMIC, UnsupportedError),
    "another hash": (patched(8, ">b", 0), BloomType.DYNAMIC, UnsupportedError),
    "no hashes": (patched(4, ">i", 0), BloomType.DYNAMIC, CorruptError),
    "an absurd number of hashes": (patched(4, ">i", 1 << 30), BloomType.DYNAMIC, CorruptError),
    "no bits": (patched(9, ">i", 0), BloomType.DYNAMIC, CorruptError),
    "more bits than bytes": (patched(9, ">i", 1 << 30, ROW), BloomType.SIMPLE, CorruptError),
    "no rows": (patched(21, ">i", 0), BloomType.DYNAMIC, CorruptError),
    "an absurd number of rows": (patched(21, ">i", 1 << 30), BloomType.DYNAMIC, CorruptError),
    "a row of another size": (patched(4, ">i", 5), BloomType.DYNAMIC, CorruptError),
    "a negative number of keys": (patched(17, ">i", -1), BloomType.DYNAMIC, CorruptError),
}


@pytest.mark.parametrize(("data", "kind", "error"), DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_filter_is_an_error(data: bytes, kind: BloomType, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_bloom(data, kind)


def test_bits_are_where_the_format_has_them() -> None:
    bloom = parse_bloom(struct.pack(">iibi", -1, 1, 1, 10) + b"\x02\x01", BloomType.SIMPLE)
    assert np.flatnonzero(bloom.rows[0]).tolist() == [1, 8]
