"""HFiles of the metadata table, as real Hudi wrote them, and damaged ones."""

from __future__ import annotations

import gzip
import io
import json
import struct
from pathlib import Path
from random import Random

import fastavro
import pytest

from lakewright.errors import CorruptError, LakewrightError, UnsupportedError
from lakewright.format.hfile import HFile, parse_hfile
from lakewright.format.log_block import BlockKind, Header, LogBlock, parse_blocks
from lakewright.format.metadata_table import (
    ListedFile,
    MetadataRecord,
    merged_listing,
    metadata_records,
)
from support.golden import GoldenTables

FILES = ".hoodie/metadata/files"


def files_partition(table: Path) -> list[Path]:
    """The base file, then the log files in the order of their instants."""
    files = [p for p in (table / FILES).iterdir() if not p.name.endswith(".crc")]
    base = [p for p in files if p.suffix == ".hfile"]
    logs = sorted((p for p in files if ".log." in p.name), key=lambda p: p.name.split("_")[1])
    return [*base, *logs]


def read_records(path: Path) -> list[MetadataRecord]:
    if path.suffix == ".hfile":
        return metadata_records(parse_hfile(path.read_bytes()))
    blocks = parse_blocks(path.read_bytes(), file_name=path.name)
    return [r for b in blocks if b.kind is BlockKind.HFILE for r in metadata_records(b)]


@pytest.mark.parametrize("name", ["cow_mdt", "mor_mdt"])
def test_the_listing_is_what_is_on_disk(golden: GoldenTables, name: str) -> None:
    table = golden[name]
    records = [r for path in files_partition(table) for r in read_records(path)]
    on_disk = {
        folder.name: {
            file.name: file.stat().st_size
            for file in folder.iterdir()
            if file.suffix != ".crc" and file.name != ".hoodie_partition_metadata"
        }
        for folder in table.iterdir()
        if folder.name != ".hoodie"
    }
    assert len(on_disk) == 3
    assert merged_listing(records) == on_disk


def test_every_hfile_of_real_hudi_is_read(golden: GoldenTables) -> None:
    files = [
        path
        for name in ("cow_rolled_back", "cow_mdt")
        for path in (golden[name] / ".hoodie/metadata").rglob("*.hfile")
    ]
    assert len(files) > 3
    for path in files:
        hfile = parse_hfile(path.read_bytes())
        assert hfile.entries
        keys = [key for key, _ in hfile.entries]
        assert keys == sorted(keys)
        assert hfile.info["minRecordKey"] == keys[0]
        assert hfile.info["maxRecordKey"] == keys[-1]


def listed(key: str, **files: tuple[int, bool]) -> MetadataRecord:
    return MetadataRecord(key, {name: ListedFile(*item) for name, item in files.items()})


HERE = listed("__all_partitions__", p=(0, False))
MERGES: dict[str, tuple[list[MetadataRecord], dict[str, dict[str, int]]]] = {
    "nothing is listed": ([], {}),
    "a partition may be empty": ([HERE], {"p": {}}),
    "a file is listed": ([HERE, listed("p", a=(5, False))], {"p": {"a": 5}}),
    "the larger size counts": (
        [HERE, listed("p", a=(5, False)), listed("p", a=(3, False))],
        {"p": {"a": 5}},
    ),
    "a file goes": ([HERE, listed("p", a=(5, False)), listed("p", a=(0, True))], {"p": {}}),
    "a file that was never there goes": ([HERE, listed("p", a=(0, True))], {"p": {}}),
    "a file comes again": (
        [HERE, listed("p", a=(5, False)), listed("p", a=(0, True)), listed("p", a=(2, False))],
        {"p": {"a": 2}},
    ),
    "a partition goes": (
        [HERE, listed("p", a=(5, False)), listed("__all_partitions__", p=(0, True))],
        {},
    ),
    "a dot stands for the table's own folder": (
        [listed("__all_partitions__", **{".": (0, False)}), listed(".", a=(5, False))],
        {"": {"a": 5}},
    ),
}


@pytest.mark.parametrize(("records", "expected"), MERGES.values(), ids=list(MERGES))
def test_records_are_merged(
    records: list[MetadataRecord], expected: dict[str, dict[str, int]]
) -> None:
    assert merged_listing(records) == expected


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def block(magic: bytes, content: bytes, codec: int, size: int | None = None) -> bytes:
    stored = gzip.compress(content, mtime=0) if codec == 1 else content
    content_size = len(content) if size is None else size
    header = struct.pack(
        ">8siiqBii", magic, len(stored), content_size, -1, 0, 16384, 33 + len(stored)
    )
    return header + stored


def key_value(key: bytes, value: bytes) -> bytes:
    head = struct.pack(">iih", len(key) + 12, len(value), len(key))
    return head + key + struct.pack(">BqB", 0, (1 << 63) - 1, 4) + value + b"\x00"


def hfile(
    *entries: tuple[bytes, bytes], codec: int = 2, count: int | None = None, **trailer: int
) -> bytes:
    """A small file: one data block, its index, its info, its trailer."""
    data = block(b"DATABLK*", b"".join(key_value(k, v) for k, v in entries), codec)
    index = block(b"IDXROOT2", struct.pack(">qi", 0, len(data)) + b"\x03\x00\x01k", codec)
    pair = field(1, b"schema") + field(2, b"{}")
    message = field(1, pair)
    info = block(b"FILEINF2", b"PBUF" + varint(len(message)) + message, codec)
    numbers = {
        1: len(data) + len(index),
        2: len(data),
        5: 1,
        6: 0,
        7: len(entries),
        8: 1,
        12: codec,
    }
    numbers |= {int(name[1:]): value for name, value in trailer.items()}
    if count is not None:
        numbers[7] = count
    body = b"".join(field(number, value) for number, value in numbers.items())
    tail = b'TRABLK"$' + varint(len(body)) + body
    return data + index + info + tail.ljust(4092, b"\x00") + b"\x00\x00\x00\x03"


ENTRIES = ((b"a", b"1"), (b"b", b"22"))
PLAIN = hfile(*ENTRIES)


@pytest.mark.parametrize("codec", [1, 2], ids=["gzip", "plain"])
def test_a_file_is_read_with_and_without_compression(codec: int) -> None:
    assert parse_hfile(hfile(*ENTRIES, codec=codec)) == HFile(ENTRIES, {"schema": b"{}"})


def swapped(old: bytes, new: bytes) -> bytes:
    assert old in PLAIN
    return PLAIN.replace(old, new)


def packed_with_another_size(size: int) -> bytes:
    whole = hfile(*ENTRIES, codec=1)
    return whole[:12] + struct.pack(">i", size) + whole[16:]


DAMAGED: dict[str, tuple[bytes, type[Exception]]] = {
    "nothing": (b"", CorruptError),
    "too short for a trailer": (PLAIN[-4095:], CorruptError),
    "a trailer alone": (PLAIN[-4096:], CorruptError),
    "no trailer": (swapped(b"TRABLK", b"TRABLX"), CorruptError),
    "another version": (PLAIN[:-1] + b"\x02", UnsupportedError),
    "several levels of index": (hfile(*ENTRIES, _8=2), UnsupportedError),
    "another compression": (hfile(*ENTRIES, _12=5), UnsupportedError),
    "another number of entries": (hfile(*ENTRIES, count=3), CorruptError),
    "more blocks than the index has": (hfile(*ENTRIES, _5=2), CorruptError),
    "fewer blocks than the index has": (hfile(*ENTRIES, _5=0, _7=0), CorruptError),
    "an absurd number of blocks": (hfile(*ENTRIES, _5=1 << 60), CorruptError),
    "an index outside of the file": (hfile(*ENTRIES, _2=1 << 40), CorruptError),
    "an info outside of the file": (hfile(*ENTRIES, _1=1 << 40), CorruptError),
    "a block of another kind": (swapped(b"DATABLK*", b"DATABLKX"), CorruptError),
    "keys that do not ascend": (hfile((b"b", b""), (b"a", b"")), CorruptError),
    "an info of another kind": (swapped(b"PBUF", b"PBUX"), CorruptError),
    "an entry with a key of another length": (
        swapped(struct.pack(">iih", 13, 1, 1), struct.pack(">iih", 14, 1, 1)),
        CorruptError,
    ),
    "an entry longer than its block": (
        swapped(struct.pack(">iih", 13, 1, 1), struct.pack(">iih", 13, 9999, 1)),
        CorruptError,
    ),
    "a negative value": (
        swapped(struct.pack(">iih", 13, 1, 1), struct.pack(">iih", 13, -1, 1)),
        CorruptError,
    ),
    "a compressed block larger than declared": (packed_with_another_size(3), CorruptError),
    "a compressed block smaller than declared": (packed_with_another_size(300), CorruptError),
    "a compressed block of absurd size": (packed_with_another_size(2**31 - 1), CorruptError),
    "a compressed block of negative size": (packed_with_another_size(-1), CorruptError),
    "no compressed block where one is declared": (hfile(*ENTRIES, _12=1), CorruptError),
}


@pytest.mark.parametrize(("data", "error"), DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_file_is_an_error(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_hfile(data)


def test_an_hfile_without_a_schema_has_no_records() -> None:
    with pytest.raises(CorruptError):
        metadata_records(HFile(ENTRIES, {}))
    with pytest.raises(LakewrightError):
        metadata_records(HFile(ENTRIES, {"schema": b"{}"}))


def test_a_listing_that_is_no_map_is_damage() -> None:
    fields = [
        {"name": "key", "type": "string"},
        {"name": "type", "type": "int"},
        {"name": "filesystemMetadata", "type": {"type": "array", "items": "string"}},
    ]
    schema = {"type": "record", "name": "HoodieMetadataRecord", "fields": fields}
    value = io.BytesIO()
    record = {"key": "p", "type": 2, "filesystemMetadata": ["a.parquet"]}
    fastavro.schemaless_writer(value, schema, record)
    info = {"schema": json.dumps(schema).encode()}
    with pytest.raises(CorruptError, match="damaged"):
        metadata_records(HFile(((b"p", value.getvalue()),), info))


def test_another_block_has_no_records() -> None:
    with pytest.raises(CorruptError):
        metadata_records(LogBlock(BlockKind.AVRO, {Header.INSTANT_TIME: "1"}, memoryview(b"")))


def test_records_of_another_kind_are_refused(golden: GoldenTables) -> None:
    stats = next((golden["cow_rolled_back"] / ".hoodie/metadata/column_stats").glob("*.hfile"))
    with pytest.raises(CorruptError):
        metadata_records(parse_hfile(stats.read_bytes()))


def test_random_damage_is_an_error_or_harmless(golden: GoldenTables) -> None:
    random = Random(7)
    sources = [path.read_bytes() for path in files_partition(golden["mor_mdt"]) if path.suffix]
    sources = [data for data in sources if not data.startswith(b"#HUDI#")]
    noticed = 0
    for _ in range(300):
        data = bytearray(random.choice(sources))
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        try:
            metadata_records(parse_hfile(bytes(data)))
        except (CorruptError, UnsupportedError):
            noticed += 1
    assert noticed > 50
