"""The parts of an HFile: blocks, file info and trailer, and the numbers in them.

A file is a sequence of blocks: data blocks, meta blocks, the root index of the data blocks, the
index of the meta blocks, and the file info. A trailer of fixed size ends it, and holds the offsets
of the indexes. Every block has a header of its own; one codec, named in the trailer, compresses all
blocks. Numbers are big-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError, UnsupportedError

DATA_MAGIC = b"DATABLK*"
META_MAGIC = b"METABLKc"
INDEX_MAGIC = b"IDXROOT2"
INFO_MAGIC = b"FILEINF2"

# Magic, size on disk without this header, size of the payload, offset of the previous block, kind
# of checksum, bytes for each checksum, size on disk with this header and without checksums.
BLOCK_HEADER = struct.Struct(">8siiqBii")
# Lengths of key and value, then the length of the row, which is the key that callers know.
ENTRY_HEAD = struct.Struct(">iih")
# The rest of a key: no family, the latest timestamp, a put.
ENTRY_TAIL = struct.pack(">BqB", 0, (1 << 63) - 1, 4)
# The bytes of an entry that are neither row nor value; the last one is the MVCC version.
ENTRY_OVERHEAD = ENTRY_HEAD.size + len(ENTRY_TAIL) + 1
# What a key has besides its row: the row's length, and the tail.
KEY_OVERHEAD = 2 + len(ENTRY_TAIL)
MAX_KEY_BYTES = (1 << 15) - 1

TRAILER_SIZE = 4096
LAST_KEY = "hfile.LASTKEY"

_TRAILER_MAGIC = b'TRABLK"$'
_MAJOR_VERSION = 3
_COMPARATOR = b"org.apache.hudi.io.storage.HoodieHBaseKVComparator"
_PROTOBUF_MAGIC = b"PBUF"
_NO_CHECKSUM = 0
_CHECKSUM_BYTES, _BYTES_PER_CHECKSUM = 4, 16384
# As Java writes it: no name, no time, an unknown system.
_GZIP_HEAD = bytes.fromhex("1f8b08000000000000ff")
_GZIP_TAIL = struct.Struct("<II")
# What blocks may become when they are decompressed, beside a multiple of their stored size: damaged
# or hostile files must not fill the memory.
_PLAIN_ALLOWANCE, _MAX_RATIO = 16 << 20, 256
# Arrow's arrays, which entries become, hold twice as much.
_MAX_PLAIN_BYTES = 1 << 30


class Codec(IntEnum):
    """The compression of all blocks of a file; the values are those on disk."""

    GZIP = 1
    NONE = 2


@dataclass(frozen=True, slots=True, eq=False)
class HFileEntries:
    """Keys and values, two binary arrays of equal length without nulls."""

    keys: pa.Array
    values: pa.Array

    def __len__(self) -> int:
        """The number of entries."""
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class Trailer:
    """The end of a file; `data_bytes` is the sum of the entries' sizes before compression."""

    info_offset: int
    index_offset: int
    data_bytes: int
    data_blocks: int
    meta_blocks: int
    entries: int
    first_block: int
    last_block: int
    codec: Codec


def ascend_strictly(keys: pa.Array) -> bool:
    """Whether each key is greater than the one before it."""
    return len(keys) < 2 or bool(pc.all(pc.less(keys[:-1], keys[1:])).as_py())


def format_trailer(trailer: Trailer) -> bytes:
    """Return the bytes of a trailer."""
    numbers = {
        1: trailer.info_offset,
        2: trailer.index_offset,
        3: trailer.data_bytes,
        5: trailer.data_blocks,
        6: trailer.meta_blocks,
        7: trailer.entries,
        8: 1,  # levels of the index
        9: trailer.first_block % (1 << 64),
        10: trailer.last_block,
    }
    message = b"".join(_number_field(number, value) for number, value in numbers.items())
    message += _bytes_field(11, _COMPARATOR) + _number_field(12, trailer.codec)
    head = _TRAILER_MAGIC + _varint(len(message)) + message
    return head.ljust(TRAILER_SIZE - 1, b"\x00") + bytes([_MAJOR_VERSION])


def parse_trailer(data: bytes) -> Trailer:
    """Parse a trailer.

    Raises:
        UnsupportedError: the file is of another version, has an index of several levels, or uses
            another compression.
    """
    if len(data) != TRAILER_SIZE or not data.startswith(_TRAILER_MAGIC):
        raise CorruptError("an HFile has no trailer")
    version = int.from_bytes(data[-3:], "big")
    if version != _MAJOR_VERSION:
        raise UnsupportedError("an HFile of another version", version=version)
    numbers = {
        number: value
        for number, value in _fields(_message(data, len(_TRAILER_MAGIC)))
        if isinstance(value, int)
    }
    if numbers.get(8, 1) != 1:
        raise UnsupportedError("an HFile with an index of several levels", levels=numbers[8])
    codec = numbers.get(12, Codec.NONE)
    if codec not in set(Codec):
        raise UnsupportedError("an HFile with another compression", codec=codec)
    return Trailer(
        info_offset=numbers.get(1, 0),
        index_offset=numbers.get(2, 0),
        data_bytes=numbers.get(3, 0),
        data_blocks=numbers.get(5, 0),
        meta_blocks=numbers.get(6, 0),
        entries=numbers.get(7, 0),
        first_block=numbers.get(9, 0),
        last_block=numbers.get(10, 0),
        codec=Codec(codec),
    )


def format_block(
    magic: bytes, payload: bytes | memoryview, codec: Codec, *, previous: int = -1, level: int = -1
) -> bytes:
    """Return the bytes of a block; `level` is that of the compression."""
    stored = _gzip(payload, level) if codec is Codec.GZIP else bytes(payload)
    with_header = BLOCK_HEADER.size + len(stored)
    # Readers hand the checksums to the decoder as well: they must be zero.
    checksums = bytes(-(-with_header // _BYTES_PER_CHECKSUM) * _CHECKSUM_BYTES)
    header = BLOCK_HEADER.pack(
        magic,
        len(stored) + len(checksums),
        len(payload),
        previous,
        _NO_CHECKSUM,
        _BYTES_PER_CHECKSUM,
        with_header,
    )
    return b"".join((header, stored, checksums))


class PlainBytes:
    """Limits what the blocks of one file take in memory when they are decompressed."""

    __slots__ = ("_plain", "_stored")

    def __init__(self) -> None:
        self._plain = 0
        self._stored = 0

    def add(self, plain: int, stored: int) -> None:
        """Account for a block.

        Raises:
            CorruptError: the blocks are compressed more than a table's records can be.
        """
        self._plain += plain
        self._stored += stored
        if self._plain > _PLAIN_ALLOWANCE + _MAX_RATIO * self._stored:
            raise CorruptError(
                "the blocks of an HFile have an impossible size",
                size=self._plain,
                stored=self._stored,
            )


def parse_block(
    data: memoryview, at: int, magic: bytes, codec: Codec, plain_bytes: PlainBytes
) -> tuple[bytes | memoryview, int]:
    """Return the payload of the block at `at`, and where the block ends."""
    if not 0 <= at <= len(data) - BLOCK_HEADER.size:
        raise CorruptError("a block of an HFile is outside of it", at=at)
    actual, on_disk, size, _, _, _, with_header = BLOCK_HEADER.unpack_from(data, at)
    end = at + BLOCK_HEADER.size + on_disk
    if actual != magic:
        raise CorruptError("a block of an HFile has another kind", at=at, magic=actual)
    if not BLOCK_HEADER.size <= with_header <= BLOCK_HEADER.size + on_disk <= len(data) - at:
        raise CorruptError("a block of an HFile has an impossible size", at=at, size=on_disk)
    stored = data[at + BLOCK_HEADER.size : at + with_header]
    if not 0 <= size <= _MAX_PLAIN_BYTES:
        raise CorruptError("a block of an HFile has an impossible size", at=at, size=size)
    if codec is Codec.NONE:
        if len(stored) != size:
            raise CorruptError("a block of an HFile has another size than it says", at=at)
        return stored, end
    plain_bytes.add(size, len(stored))
    return _gunzip(stored, size, at), end


def format_info(info: Mapping[str, bytes]) -> bytes:
    """Return the payload of the file info."""
    pairs = (
        _bytes_field(1, _bytes_field(1, name.encode()) + _bytes_field(2, value))
        for name, value in info.items()
    )
    message = b"".join(pairs)
    return _PROTOBUF_MAGIC + _varint(len(message)) + message


def parse_info(payload: bytes) -> dict[str, bytes]:
    """Parse the payload of the file info."""
    if not payload.startswith(_PROTOBUF_MAGIC):
        raise CorruptError("the file info of an HFile is no protocol buffer")
    info = {}
    for number, pair in _fields(_message(payload, len(_PROTOBUF_MAGIC))):
        if number == 1 and isinstance(pair, bytes):
            fields = dict(_fields(pair))
            name, value = fields.get(1), fields.get(2, b"")
            if isinstance(name, bytes) and isinstance(value, bytes):
                info[name.decode()] = value
    return info


def format_hadoop_vint(value: int) -> bytes:
    """Return a number that is not negative as Hadoop's integer of variable length."""
    if value <= 127:
        return bytes([value])
    size = (value.bit_length() + 7) // 8
    return bytes([256 - 112 - size]) + value.to_bytes(size, "big")


def parse_hadoop_vint(data: bytes, at: int) -> tuple[int, int]:
    """Return Hadoop's integer of variable length at `at`, and where it ends."""
    first = data[at] - 256 if data[at] > 127 else data[at]
    if first >= -112:
        return first, at + 1
    negative = first < -120
    length = -120 - first if negative else -112 - first
    if at + 1 + length > len(data):
        raise CorruptError("a number of an HFile is cut off")
    value = int.from_bytes(data[at + 1 : at + 1 + length], "big")
    return (~value if negative else value), at + 1 + length


def _gzip(payload: bytes | memoryview, level: int) -> bytes:
    stream = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    tail = _GZIP_TAIL.pack(zlib.crc32(payload), len(payload))
    return b"".join((_GZIP_HEAD, stream.compress(payload), stream.flush(), tail))


def _gunzip(stored: memoryview, size: int, at: int) -> bytes:
    stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        # One byte more than expected detects a block that is too long, and bounds the memory.
        plain = stream.decompress(stored, size + 1)
    except zlib.error as error:
        raise CorruptError("a block of an HFile is damaged", at=at) from error
    if len(plain) != size or not stream.eof or stream.unused_data:
        raise CorruptError("a block of an HFile has another size than it says", at=at)
    return plain


def _message(data: bytes, at: int) -> bytes:
    length, at = _varint_at(data, at)
    if length > len(data) - at:
        raise CorruptError("a protocol buffer of an HFile is cut off")
    return data[at : at + length]


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protocol buffer; fixed-width fields are refused."""
    at = 0
    while at < len(data):
        tag, at = _varint_at(data, at)
        if tag & 7 == 0:
            value, at = _varint_at(data, at)
            yield tag >> 3, value
        elif tag & 7 == 2:
            content = _message(data, at)
            at = _varint_at(data, at)[1] + len(content)
            yield tag >> 3, content
        else:
            raise CorruptError("a protocol buffer of an HFile has an unknown kind of field")


def _number_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bytes_field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise CorruptError("a number of an HFile has more than 64 bits")
