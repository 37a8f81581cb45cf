"""HFiles of version 3, in which the metadata table stores its records: sorted keys with values.

A file ends with a trailer of fixed size that holds the offset of the index; the index holds the
offsets of the data blocks. Every block has a header of its own and may be compressed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from lakewright.errors import CorruptError, UnsupportedError

_TRAILER_SIZE = 4096
_TRAILER_MAGIC = b'TRABLK"$'
_DATA_MAGIC = b"DATABLK*"
_INDEX_MAGIC = b"IDXROOT2"
_INFO_MAGIC = b"FILEINF2"
_PROTOBUF_MAGIC = b"PBUF"
_BLOCK_HEADER = struct.Struct(">8siiqBii")
_INDEX_ENTRY = struct.Struct(">qi")
_KEY_VALUE = struct.Struct(">iih")
# The rest of a key after its row: family length, timestamp, cell type.
_KEY_TAIL = struct.Struct(">BqB")
_MAJOR_VERSION = 3
_GZIP, _NO_CODEC = 1, 2
_MAX_BLOCK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class HFile:
    """The entries of a file, ascending by key, and its file info."""

    entries: tuple[tuple[bytes, bytes], ...]
    info: Mapping[str, bytes]


def parse_hfile(data: bytes | memoryview) -> HFile:
    """Parse a whole file."""
    view = memoryview(data).cast("B")
    try:
        return _parse(view)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptError("an HFile is damaged", size=len(view), cause=str(error)) from error


@dataclass(frozen=True, slots=True)
class _Trailer:
    info_offset: int
    index_offset: int
    blocks: int
    entries: int
    codec: int


def _parse(view: memoryview) -> HFile:
    trailer = _trailer(view)
    body = view[: len(view) - _TRAILER_SIZE]
    index = _block(body, trailer.index_offset, _INDEX_MAGIC, trailer.codec)
    entries: list[tuple[bytes, bytes]] = []
    for offset in _index_offsets(index, trailer.blocks):
        entries += _key_values(_block(body, offset, _DATA_MAGIC, trailer.codec))
    if len(entries) != trailer.entries:
        raise CorruptError("an HFile has another number of entries than it says")
    if any(a[0] > b[0] for a, b in pairwise(entries)):
        raise CorruptError("the keys of an HFile do not ascend")
    info = _info(_block(body, trailer.info_offset, _INFO_MAGIC, trailer.codec))
    return HFile(tuple(entries), info)


def _trailer(view: memoryview) -> _Trailer:
    if len(view) < _TRAILER_SIZE:
        raise CorruptError("an HFile is too short for its trailer", size=len(view))
    trailer = bytes(view[-_TRAILER_SIZE:])
    version = int.from_bytes(trailer[-3:], "big")
    if not trailer.startswith(_TRAILER_MAGIC):
        raise CorruptError("an HFile has no trailer", size=len(view))
    if version != _MAJOR_VERSION:
        raise UnsupportedError("an HFile of another version", version=version)
    length, at = _varint(trailer, len(_TRAILER_MAGIC))
    fields = _protobuf_fields(trailer[at : at + length])
    numbers = {number: value for number, value in fields if isinstance(value, int)}
    if numbers.get(8, 1) != 1:
        raise UnsupportedError("an HFile with an index of several levels", levels=numbers[8])
    return _Trailer(
        info_offset=numbers.get(1, 0),
        index_offset=numbers.get(2, 0),
        blocks=numbers.get(5, 0),
        entries=numbers.get(7, 0),
        codec=numbers.get(12, _NO_CODEC),
    )


def _block(body: memoryview, offset: int, magic: bytes, codec: int) -> bytes:
    if not 0 <= offset <= len(body) - _BLOCK_HEADER.size:
        raise CorruptError("a block of an HFile is outside of it", offset=offset)
    actual_magic, _, size, _, _, _, stored = _BLOCK_HEADER.unpack_from(body, offset)
    end = offset + stored
    if actual_magic != magic:
        raise CorruptError(
            "a block of an HFile has another kind", offset=offset, magic=actual_magic
        )
    if not _BLOCK_HEADER.size <= stored <= len(body) - offset or not 0 <= size <= _MAX_BLOCK_BYTES:
        raise CorruptError("a block of an HFile has an impossible size", offset=offset, size=size)
    content = body[offset + _BLOCK_HEADER.size : end]
    plain = _inflate(content, size, offset) if codec == _GZIP else bytes(content)
    if codec not in (_GZIP, _NO_CODEC):
        raise UnsupportedError("an HFile with another compression", codec=codec)
    if len(plain) != size:
        raise CorruptError("a block of an HFile has another size than it says", offset=offset)
    return plain


def _inflate(content: memoryview, size: int, offset: int) -> bytes:
    gzip_only = 16 + zlib.MAX_WBITS
    stream = zlib.decompressobj(gzip_only)
    try:
        # One byte more than expected detects a block that is too long, and bounds the memory.
        plain = stream.decompress(content, size + 1)
    except zlib.error as error:
        raise CorruptError("a block of an HFile is damaged", offset=offset) from error
    if not stream.eof or stream.unused_data:
        raise CorruptError("a block of an HFile is longer than it says", offset=offset)
    return plain


def _index_offsets(index: bytes, count: int) -> Iterator[int]:
    at = 0
    for _ in range(count):
        offset, _ = _INDEX_ENTRY.unpack_from(index, at)
        length, at = _hadoop_vint(index, at + _INDEX_ENTRY.size)
        if length < 0:
            raise CorruptError("an index of an HFile has an impossible key")
        at += length
        yield offset
    if at != len(index):
        raise CorruptError("an index of an HFile goes on after its end")


def _key_values(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(block):
        key_length, value_length, row_length = _KEY_VALUE.unpack_from(block, at)
        row = at + _KEY_VALUE.size
        if row_length < 0 or value_length < 0 or key_length != row_length + 2 + _KEY_TAIL.size:
            raise CorruptError("an entry of an HFile has an impossible length")
        value = row + row_length + _KEY_TAIL.size
        # One byte follows the value: the MVCC version, which is always 0 here.
        end = value + value_length + 1
        if end > len(block):
            raise CorruptError("an entry of an HFile reaches over its block")
        yield block[row : row + row_length], block[value : end - 1]
        at = end


def _info(block: bytes) -> dict[str, bytes]:
    if not block.startswith(_PROTOBUF_MAGIC):
        raise CorruptError("the file info of an HFile is no protocol buffer")
    length, at = _varint(block, len(_PROTOBUF_MAGIC))
    info = {}
    for number, pair in _protobuf_fields(block[at : at + length]):
        if number == 1 and isinstance(pair, bytes):
            fields = dict(_protobuf_fields(pair))
            name, value = fields.get(1), fields.get(2, b"")
            if isinstance(name, bytes) and isinstance(value, bytes):
                info[name.decode()] = value
    return info


def _protobuf_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protocol buffer; fixed-width fields are refused."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
        elif tag & 7 == 2:
            length, at = _varint(data, at)
            if length > len(data) - at:
                raise CorruptError("a protocol buffer of an HFile is cut off")
            yield tag >> 3, data[at : at + length]
            at += length
        else:
            raise CorruptError("a protocol buffer of an HFile has an unknown kind of field")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise CorruptError("a number of an HFile has more than 64 bits")


def _hadoop_vint(data: bytes, at: int) -> tuple[int, int]:
    first = data[at] - 256 if data[at] > 127 else data[at]
    if first >= -112:
        return first, at + 1
    negative = first < -120
    length = -120 - first if negative else -112 - first
    if at + 1 + length > len(data):
        raise CorruptError("a number of an HFile is cut off")
    value = int.from_bytes(data[at + 1 : at + 1 + length], "big")
    return (~value if negative else value), at + 1 + length
