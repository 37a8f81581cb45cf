"""Writing HFiles: the bytes are those that Hudi's own writer makes."""

from __future__ import annotations

import struct
from hashlib import sha256
from random import Random

import pyarrow as pa
import pytest

from lakewright.errors import InvalidError
from lakewright.format.hfile.layout import (
    BLOCK_HEADER,
    DATA_MAGIC,
    TRAILER_SIZE,
    Codec,
    HFileEntries,
    PlainBytes,
    parse_block,
    parse_trailer,
)
from lakewright.format.hfile.reader import HFileReader, parse_hfile
from lakewright.format.hfile.writer import format_hfile, sorted_entries
from support.hfiles import COMPRESSES_AS_JAVA, as_plain, hfile_entries, pairs_of

CREATED = 1_700_000_000_000
TWO = hfile_entries(("a", b"\x01"), ("b", b"\x02\x03"))
MANY = hfile_entries(*((f"k{i:05d}", bytes([i % 251]) * (i % 90)) for i in range(400)))
LONG = (
    ("a", b"x" * 10),
    ("b", b"y" * 5000),
    ("c", b"z" * 10),
    ("d", b"w" * 70000),
    ("e" * 200, b""),
)
BASE_INFO = {
    "bloomFilterTypeCode": b"DYNAMIC_V0",
    "minRecordKey": b"k00000",
    "maxRecordKey": b"k00399",
}
LONG_KEYS = hfile_entries(("a" * 32767, b"1"), ("b" * 126, b"2"), ("c" * 127, b"2"))
ASTRAL = hfile_entries(("z", b"1"), ("\ue000", b"2"), ("\U0001f600", b"3"))
NOTHING = hfile_entries()
SCHEMA = '"int"'
META = {"bloomFilter": b"xyz", "aaa": b"1", "zz": b"22"}

NONE = Codec.NONE

# What org.apache.hudi.io.hfile.HFileWriterImpl of Hudi 1.2.0 wrote of the same entries: the size of
# the file and its SHA-256. The schema is `"int"`.
VECTORS: dict[str, tuple[bytes, int, str]] = {
    "two entries": (
        format_hfile(TWO, SCHEMA, CREATED, codec=NONE),
        4502,
        "d39da94e13f40d753f47cacc543a6e38850734e3b96568200cbc3c7e127adc32",
    ),
    "a meta block": (
        format_hfile(TWO, SCHEMA, CREATED, codec=NONE, meta={"bloomFilter": b"xyz"}),
        4566,
        "70fbedc25aaabfee788d23717cf36940b1f99ed3cf78807a48c030da8163d13e",
    ),
    "two entries, gzip": (
        format_hfile(TWO, SCHEMA, CREATED),
        4503,
        "7961348895292666ab0af67f73b4ade97c5cee35ba70ab9baf54237914eeef27",
    ),
    "no entries": (
        format_hfile(NOTHING, SCHEMA, CREATED, codec=NONE),
        4399,
        "04e54a169d79243b8f778d42be56ec8376c26e8b75921f8764010fd127faca16",
    ),
    "no entries, gzip": (
        format_hfile(NOTHING, SCHEMA, CREATED),
        4406,
        "aef85217e0d5916fc8ad99b6cdeeeb5b6269a808fa79e21885a90758f1899294",
    ),
    "many blocks": (
        format_hfile(MANY, SCHEMA, CREATED, codec=NONE, block_bytes=1000),
        33689,
        "0e12c532fdef619f3759bc6227c33073095b1a9c6dc172b6ab705018ad1bd224",
    ),
    "many blocks, gzip": (
        format_hfile(MANY, SCHEMA, CREATED, block_bytes=1000),
        10497,
        "988f532059e8bdd54922fd35a4ccfd289ced12dd4b9d725a783661f89603fcd0",
    ),
    "entries larger than a block": (
        format_hfile(hfile_entries(*LONG), SCHEMA, CREATED, codec=NONE, block_bytes=1000),
        80413,
        "a3f3da1443094ab970783f7f678409ea95f92a0e3d55149f657d407834cddd62",
    ),
    "a first entry larger than a block": (
        format_hfile(hfile_entries(*LONG[1:]), SCHEMA, CREATED, codec=NONE, block_bytes=1000),
        80328,
        "480e89aa4d6498c227b8213e240743349d0e4e7b7e3d7613ce9ee219e21ea0a9",
    ),
    "a base file": (
        format_hfile(MANY, SCHEMA, CREATED, block_bytes=1000, info=BASE_INFO, meta=META),
        10779,
        "1bae2bc8ef8a57cce66ebbb1c95c3853e1ec5e90c1dc77bd3164448fb579e1f0",
    ),
    "an empty key": (
        format_hfile(hfile_entries(("", b"1"), ("a", b"2")), SCHEMA, CREATED, codec=NONE),
        4499,
        "060e4557d3aadcba4a5b7601a84c39a81f2c354a07811710562e26ca9d1c3132",
    ),
    "long keys": (
        format_hfile(LONG_KEYS, SCHEMA, CREATED, codec=NONE, block_bytes=100),
        70812,
        "85674364b645da6837f21d66ed8c0798d3a2d39309461abb1a8d05afb51dc937",
    ),
    "characters beyond the basic plane": (
        format_hfile(ASTRAL, SCHEMA, CREATED, codec=NONE, block_bytes=10),
        4643,
        "70f282a9b8d69dd719d7f748042eeb25302c20269425883ca92662cc914dbd1e",
    ),
}


@pytest.mark.parametrize(("data", "size", "digest"), VECTORS.values(), ids=list(VECTORS))
def test_the_bytes_are_those_of_hudi(data: bytes, size: int, digest: str) -> None:
    if COMPRESSES_AS_JAVA or parse_trailer(data[-TRAILER_SIZE:]).codec is NONE:
        assert (len(data), sha256(data).hexdigest()) == (size, digest)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("block_bytes", [1, 1000, 1 << 20])
def test_what_is_written_is_read(codec: Codec, block_bytes: int) -> None:
    data = format_hfile(
        MANY, SCHEMA, CREATED, codec=codec, block_bytes=block_bytes, info=BASE_INFO, meta=META
    )
    entries, info, meta = as_plain(parse_hfile(data))
    assert entries == pairs_of(MANY)
    assert info | BASE_INFO | {"schema": b'"int"'} == info
    assert meta == META


@pytest.mark.parametrize("level", [1, 9])
def test_any_level_of_compression_is_read(level: int) -> None:
    data = format_hfile(MANY, SCHEMA, CREATED, level=level)
    assert pairs_of(parse_hfile(data).entries) == pairs_of(MANY)


def test_entries_of_many_batches_are_cut_as_those_of_one() -> None:
    entries = hfile_entries(*((f"{n:07d}", bytes(3000)) for n in range(25_000)))
    data = format_hfile(entries, SCHEMA, CREATED, codec=NONE)
    index = HFileReader.open(lambda at, length: data[at : at + length], len(data)).index
    each = 65536 // (7 + 3000 + 21)
    assert list(index.first_keys) == [f"{n:07d}".encode() for n in range(0, 25_000, each)]
    assert parse_hfile(data).entries.values.equals(entries.values)


def hidden_bytes(stored: int) -> int:
    """How many bytes at the end of a block Hudi 1.2.0 takes for checksums."""
    on_disk = stored + 4 * -(-(33 + stored) // 16384)
    return 4 * -(-(33 + on_disk) // 16384)


@pytest.mark.parametrize("codec", Codec)
def test_no_entry_begins_where_hudi_does_not_look(codec: Codec) -> None:
    random = Random(3)
    values = (random.randbytes(random.randrange(300)) for _ in range(20_000))
    entries = hfile_entries(*((f"{n:06d}", value) for n, value in enumerate(values)))
    data = memoryview(format_hfile(entries, SCHEMA, CREATED, codec=codec))
    at = 0
    while bytes(data[at : at + 8]) == DATA_MAGIC:
        stored = BLOCK_HEADER.unpack_from(data, at)[6] - BLOCK_HEADER.size
        payload, at = parse_block(data, at, DATA_MAGIC, codec, PlainBytes())
        last = bytes(payload).rindex(b"\x7f" + b"\xff" * 7 + b"\x04") - 17
        assert last < len(payload) - hidden_bytes(stored)


def test_the_last_key_is_that_of_the_file() -> None:
    last = parse_hfile(format_hfile(MANY, SCHEMA, CREATED)).info["hfile.LASTKEY"]
    assert last == struct.pack(">h", 6) + b"k00399"


REFUSED: dict[str, HFileEntries] = {
    "keys that descend": hfile_entries(("b", b""), ("a", b"")),
    "a key that occurs twice": hfile_entries(("a", b"1"), ("a", b"2")),
    "a key that is too long": hfile_entries(("a" * 32768, b"")),
    "an entry without key": HFileEntries(pa.array([None], pa.binary()), pa.array([b""])),
    "an entry without value": HFileEntries(pa.array([b"a"]), pa.array([None], pa.binary())),
    "fewer values than keys": HFileEntries(pa.array([b"a", b"b"]), pa.array([b"a"])),
}


@pytest.mark.parametrize("entries", REFUSED.values(), ids=list(REFUSED))
def test_other_entries_are_refused(entries: HFileEntries) -> None:
    with pytest.raises(InvalidError):
        format_hfile(entries, SCHEMA, CREATED)


def test_entries_are_sorted_by_the_bytes_of_their_keys() -> None:
    # UTF-16 has these two the other way round.
    entries = hfile_entries(("\U0001f600", b"1"), ("\ue000", b"2"), ("a", b"3"))
    ordered = sorted_entries(entries)
    assert ordered.values.to_pylist() == [b"3", b"2", b"1"]
    assert sorted_entries(ordered) is ordered


def test_an_entry_of_the_file_info_does_not_replace_those_of_the_format() -> None:
    data = format_hfile(TWO, SCHEMA, CREATED, info={"hfile.LASTKEY": b"x"})
    assert parse_hfile(data).info["hfile.LASTKEY"] == b"\x00\x01b"
