"""Reading HFiles: whole ones, parts by ranges, and damaged ones."""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa
import pytest

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.format.hfile.layout import Codec, HFileEntries
from lakewright.format.hfile.reader import HFileReader, file_ranges, load_index, parse_hfile
from lakewright.format.hfile.writer import format_hfile
from support.golden import GoldenTables
from support.hfiles import as_plain, hfile_entries, pairs_of


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def pb_field(number: int, value: int | bytes) -> bytes:
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
    first = b"\x03\x00\x01" + entries[0][0]
    index = block(b"IDXROOT2", struct.pack(">qi", 0, len(data)) + first, codec)
    pair = pb_field(1, b"schema") + pb_field(2, b"{}")
    message = pb_field(1, pair)
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
    body = b"".join(pb_field(number, value) for number, value in numbers.items())
    tail = b'TRABLK"$' + varint(len(body)) + body
    return data + index + info + tail.ljust(4092, b"\x00") + b"\x00\x00\x00\x03"


ENTRIES = ((b"a", b"1"), (b"b", b"22"))
PLAIN = hfile(*ENTRIES)


@pytest.mark.parametrize("codec", [1, 2], ids=["gzip", "plain"])
def test_a_file_is_read_with_and_without_compression(codec: int) -> None:
    read = as_plain(parse_hfile(hfile(*ENTRIES, codec=codec)))
    assert read == (list(ENTRIES), {"schema": b"{}"}, {})


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


# -- ranges


@dataclass
class CountedRanges:
    """The ranges that are read of a file in memory."""

    data: bytes
    read: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, offset: int, length: int) -> bytes:
        self.read.append((offset, length))
        return self.data[offset : offset + length]


def many_entries(count: int, value: bytes = b"v" * 40) -> HFileEntries:
    return hfile_entries(*((f"key-{number:06d}", value) for number in range(count)))


def written(entries: HFileEntries, block_bytes: int = 65536) -> bytes:
    return format_hfile(entries, '"bytes"', 0, codec=Codec.NONE, block_bytes=block_bytes)


LARGE = written(many_entries(40_000))
BLOCK_ENTRIES = 65536 // (10 + 40 + 21)


def opened(data: bytes = LARGE) -> tuple[HFileReader, CountedRanges]:
    """A reader whose index was loaded before, and what it reads."""
    ranges = CountedRanges(data)
    return HFileReader(ranges, load_index(CountedRanges(data), len(data))), ranges


def test_one_read_opens_a_file_whose_index_is_small() -> None:
    ranges = CountedRanges(LARGE)
    reader = HFileReader.open(ranges, len(LARGE))
    assert ranges.read == [(len(LARGE) - 65536, 65536)]
    assert reader.index.entries == 40_000
    assert reader.index.last_key == b"key-039999"
    assert len(reader.index.first_keys) == -(-40_000 // BLOCK_ENTRIES)


def test_two_reads_open_a_file_whose_index_is_large() -> None:
    data = written(many_entries(9_000), block_bytes=100)
    ranges = CountedRanges(data)
    index = HFileReader.open(ranges, len(data)).index
    assert len(ranges.read) == 2
    assert len(index.offsets) == 9_000


def test_opening_a_small_file_reads_all_of_it() -> None:
    data = written(many_entries(10))
    ranges = CountedRanges(data)
    reader = HFileReader.open(ranges, len(data))
    assert reader.look_up(pa.array(["key-000003"])).to_pylist() == [b"v" * 40]
    assert len(ranges.read) == 1


def test_a_key_costs_one_block() -> None:
    reader, ranges = opened()
    assert reader.look_up(pa.array(["key-020000"])).to_pylist() == [b"v" * 40]
    ((offset, length),) = ranges.read
    assert offset in reader.index.offsets
    assert length < 66_000


@pytest.mark.parametrize("key", ["", "a", "key-040000", "z"])
def test_a_key_outside_of_the_file_costs_nothing(key: str) -> None:
    reader, ranges = opened()
    assert reader.look_up(pa.array([key])).to_pylist() == [None]
    assert ranges.read == []


def test_a_key_between_two_others_is_not_found() -> None:
    reader, ranges = opened()
    assert reader.look_up(pa.array(["key-020000x"])).to_pylist() == [None]
    assert len(ranges.read) == 1


def test_keys_that_are_close_together_are_read_together() -> None:
    reader, ranges = opened()
    near = [f"key-{number:06d}" for number in range(0, 6 * BLOCK_ENTRIES, BLOCK_ENTRIES)]
    assert None not in reader.look_up(pa.array(near)).to_pylist()
    assert len(ranges.read) == 1
    far = ["key-000000", "key-010000", "key-020000", "key-030000"]
    assert None not in reader.look_up(pa.array(far)).to_pylist()
    assert len(ranges.read) == 5


def test_no_range_is_larger_than_eight_megabytes() -> None:
    data = written(many_entries(60_000, bytes(400)))
    reader, ranges = opened(data)
    assert sum(map(len, reader.scan())) == 60_000
    assert max(length for _, length in ranges.read) <= 8 << 20
    assert sum(length for _, length in ranges.read) == sum(reader.index.sizes)


def test_values_are_in_the_order_of_the_keys_asked_for() -> None:
    entries = hfile_entries(("a", b"1"), ("b", b"2"), ("c", b"3"))
    reader, _ = opened(written(entries))
    asked = pa.array(["c", None, "a", "x", "c"])
    assert reader.look_up(asked).to_pylist() == [b"3", None, b"1", None, b"3"]
    assert reader.look_up(asked.cast(pa.binary())).to_pylist() == [b"3", None, b"1", None, b"3"]
    assert reader.look_up(pa.array([], pa.string())).to_pylist() == []


KEYS = [f"{group}{number:04d}" for group in ("a", "ab", "b") for number in range(1000)]


@pytest.mark.parametrize(
    "prefixes", [["a"], ["ab"], ["a0", "b09"], ["ab", "a"], ["x"], [""], ["b0999", "a0000"], []]
)
def test_a_prefix_finds_its_keys(prefixes: list[str]) -> None:
    entries = hfile_entries(*((key, key.encode()) for key in sorted(KEYS)))
    reader, _ = opened(written(entries, block_bytes=1000))
    batches = reader.with_prefixes(prefix.encode() for prefix in prefixes)
    found = [key for batch in batches for key, _ in pairs_of(batch)]
    assert found == [k.encode() for k in sorted(KEYS) if k.startswith(tuple(prefixes))]


def test_a_prefix_costs_the_blocks_that_have_it() -> None:
    reader, ranges = opened()
    found = sum(len(batch) for batch in reader.with_prefixes([b"key-0200"]))
    assert found == 100
    assert sum(length for _, length in ranges.read) < 2 * 66_000


@pytest.mark.parametrize(
    ("start", "stop"), [("", "c"), ("b", "d"), ("bb", "d"), ("d", ""), ("a", "a"), ("e", "")]
)
def test_a_range_of_keys_is_scanned(start: str, stop: str) -> None:
    keys = ["a", "b", "c", "d"]
    reader, _ = opened(written(hfile_entries(*((key, b"") for key in keys)), block_bytes=1))
    found = [k for b in reader.scan(start.encode(), stop.encode() or None) for k, _ in pairs_of(b)]
    assert found == [k.encode() for k in keys if start <= k and (not stop or k < stop)]


def test_a_meta_block_is_read_by_its_name() -> None:
    data = format_hfile(many_entries(9_000), "{}", 0, meta={"bloomFilter": b"xyz" * 999})
    reader, ranges = opened(data)
    assert reader.meta_block("bloomFilter") == b"xyz" * 999
    assert reader.meta_block("other") is None
    assert len(ranges.read) == 1


def test_ranges_of_an_open_file_are_read() -> None:
    with pa.BufferReader(LARGE) as file:
        reader = HFileReader.open(file_ranges(file), len(LARGE))
        assert sum(map(len, reader.scan())) == 40_000


def test_a_file_that_ends_early_is_an_error() -> None:
    reader, ranges = opened()
    ranges.data = LARGE[:100_000]
    with pytest.raises(CorruptError, match="ends too early"):
        list(reader.scan())
    with pytest.raises(CorruptError, match="ends too early"):
        HFileReader.open(ranges, len(LARGE))


# -- damage


def bomb(blocks: int, size: int) -> bytes:
    """A file of blocks that are small on storage and large in memory."""
    plain = key_value(b"k", bytes(size - 22))
    stored = block(b"DATABLK*", plain, 1)
    offsets = [number * len(stored) for number in range(blocks)]
    index = b"".join(
        struct.pack(">qi", offset, len(stored)) + b"\x03\x00\x01" + bytes([number + 65])
        for number, offset in enumerate(offsets)
    )
    root = block(b"IDXROOT2", index, 1)
    info = block(b"FILEINF2", b"PBUF\x00", 1)
    size_of_data = blocks * len(stored)
    numbers = {1: size_of_data + len(root), 2: size_of_data, 5: blocks, 7: blocks, 8: 1, 12: 1}
    body = b"".join(pb_field(number, value) for number, value in numbers.items())
    tail = b'TRABLK"$' + varint(len(body)) + body
    return stored * blocks + root + info + tail.ljust(4092, b"\x00") + b"\x00\x00\x00\x03"


def test_a_small_file_does_not_become_a_large_one_in_memory() -> None:
    for data in (bomb(1, 40 << 20), bomb(20, 2 << 20)):
        with pytest.raises(CorruptError, match="impossible size"):
            parse_hfile(data)


def test_blocks_that_overlap_are_an_error() -> None:
    data = written(many_entries(10), block_bytes=200)
    at = data.index(b"IDXROOT2") + 33
    second = data.index(
        struct.pack(">q", load_index(CountedRanges(data), len(data)).offsets[1]), at
    )
    with pytest.raises(CorruptError, match="outside"):
        parse_hfile(data[:second] + bytes(8) + data[second + 8 :])


FIVE = hfile_entries(*((key, b"1") for key in "acegi"))
# What the index says of the second block, which begins with "e", or of the last key.
MOVED = {
    "a block begins below its key": (b"\x00\x01e", b"\x00\x01f", "is not where"),
    "a block ends above the next key": (b"\x00\x01e", b"\x00\x01b", "is not where"),
    "the keys of the index descend": (b"\x00\x01e", b"\x00\x01j", "do not ascend"),
    "the last key is below the index": (b"\x00\x01i", b"\x00\x01b", "not the greatest"),
}


@pytest.mark.parametrize(("old", "new", "reason"), MOVED.values(), ids=list(MOVED))
def test_an_index_that_does_not_fit_its_blocks_is_an_error(
    old: bytes, new: bytes, reason: str
) -> None:
    data = bytearray(written(FIVE, block_bytes=46))
    # Keys are in the blocks as well; the last key comes after the index.
    at = data.rindex(old) if "greatest" in reason else data.index(old, data.index(b"IDXROOT2"))
    data[at : at + 3] = new
    with pytest.raises(CorruptError, match=reason):
        parse_hfile(bytes(data))


def test_every_damaged_byte_is_an_error_or_harmless(golden: GoldenTables) -> None:
    random = Random(7)
    sources = [
        path.read_bytes()
        for name in ("cow_rolled_back", "cow_mdt")
        for path in (golden[name] / ".hoodie/metadata").rglob("*.hfile")
    ]
    assert len(sources) > 3
    noticed = 0
    for _ in range(300):
        data = bytearray(random.choice(sources))
        data[random.randrange(len(data) - 3500)] ^= 1 << random.randrange(8)
        try:
            parse_hfile(bytes(data))
        except (CorruptError, UnsupportedError):
            noticed += 1
    assert noticed > 200
