"""Framing of log files: a log file is a plain sequence of blocks, with no bytes between them.

In table version 8 and later one instant writes a log file as a whole, and readers ignore the file
until that instant completes. A broken block is therefore always corruption: readers do not skip it
to reach the next good block.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Never

from lakewright.errors import CorruptError, UnsupportedError

MAGIC = b"#HUDI#"
FORMAT_VERSION = 1
CONTENT_VERSION = 3

_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_TWO_INTS = struct.Struct(">ii")
# The block length excludes the magic and itself; the trailing length includes the magic.
_UNCOUNTED = len(MAGIC) + _LONG.size
_MIN_BLOCK_LENGTH = 4 + 4 + 4 + 8 + 4 + 8
# `parse_heads` accepts headers up to the first size, and reads at least the second one at a time.
_MAX_HEAD_BYTES = 1 << 20
_READ_BYTES = 1 << 16

_BytesAt = Callable[[int, int], memoryview]


class BlockKind(IntEnum):
    """The kind of a block; the values are the ordinals on disk."""

    COMMAND = 0
    DELETE = 1
    AVRO = 3
    HFILE = 4
    PARQUET = 5
    CDC = 6


class Header(IntEnum):
    """The keys of a block's header map; the values are the ordinals on disk."""

    INSTANT_TIME = 0
    TARGET_INSTANT_TIME = 1
    SCHEMA = 2
    COMMAND_BLOCK_TYPE = 3
    COMPACTED_BLOCK_TIMES = 4
    RECORD_POSITIONS = 5
    BLOCK_IDENTIFIER = 6
    IS_PARTIAL = 7
    BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS = 8


@dataclass(frozen=True, slots=True)
class LogBlock:
    """One block of a log file; `content` is a view into the file's bytes.

    `content_offset` and `content_size` say where the content is in the file, also if the block was
    read without it.

    Invariant: `headers` holds INSTANT_TIME.
    """

    kind: BlockKind
    headers: Mapping[Header, str]
    content: memoryview
    offset: int = 0
    file_name: str = ""
    content_offset: int = 0
    content_size: int = 0

    @property
    def instant(self) -> str:
        """The instant that wrote the block."""
        return self.headers[Header.INSTANT_TIME]

    @property
    def schema_json(self) -> str | None:
        """The Avro schema of the block's rows; None for some delete and command blocks."""
        return self.headers.get(Header.SCHEMA)

    @property
    def is_partial(self) -> bool:
        """Whether the rows hold only the changed columns."""
        return self.headers.get(Header.IS_PARTIAL, "").lower() == "true"

    @property
    def compacted_instants(self) -> tuple[str, ...]:
        """The instants whose blocks this one replaces; empty unless log compaction wrote it."""
        listed = self.headers.get(Header.COMPACTED_BLOCK_TIMES, "")
        return tuple(instant for instant in listed.split(",") if instant)

    @property
    def target_instant(self) -> str | None:
        """The instant a command block rolls back."""
        return self.headers.get(Header.TARGET_INSTANT_TIME)

    def versioned_content(self) -> memoryview:
        """Return the content after its version number, which must be `CONTENT_VERSION`."""
        if len(self.content) < _INT.size:
            raise self.corrupt("a block is too short for its content version")
        version = _INT.unpack(self.content[: _INT.size])[0]
        if version in (1, 2):
            raise UnsupportedError(
                "log block content of old writers", file_name=self.file_name, version=version
            )
        if version != CONTENT_VERSION:
            raise self.corrupt("unknown version of log block content", version=version)
        return self.content[_INT.size :]

    def corrupt(self, reason: str, **facts: object) -> CorruptError:
        """Return the error for content that breaks the format; it names the block's position."""
        location = {"file_name": self.file_name, "offset": self.offset, "kind": self.kind.name}
        return CorruptError(reason, **location, **facts)


def parse_blocks(data: bytes | memoryview, *, file_name: str) -> list[LogBlock]:
    """Return all blocks of a log file, without copying their content."""
    view = memoryview(data).cast("B")
    reader = _Reader(lambda at, length: view[at : at + length], len(view), file_name)
    blocks = []
    while reader.at < reader.size:
        blocks.append(reader.block())
    return blocks


def parse_heads(
    read: Callable[[int, int], bytes], size: int, *, file_name: str
) -> Iterator[LogBlock]:
    """Yield every block of a log file of `size` bytes, without its content.

    `read(offset, length)` returns up to `length` bytes. Bytes of the next blocks that it returns
    are not read again. Headers of more than a megabyte are an error.
    """
    reader = _Reader(_Window(read, size).bytes_at, size, file_name)
    while reader.at < size:
        yield reader.head()


def format_block(
    kind: BlockKind, headers: Mapping[Header, str], content: bytes | memoryview
) -> bytes:
    """Return the bytes of one block; the inverse of `parse_blocks`."""
    head = [_TWO_INTS.pack(FORMAT_VERSION, kind), _INT.pack(len(headers))]
    for key, value in headers.items():
        encoded = value.encode()
        head.append(_TWO_INTS.pack(key, len(encoded)) + encoded)
    head.append(_LONG.pack(len(content)))
    counted = sum(map(len, head)) + len(content) + _INT.size + _LONG.size
    no_footers = _INT.pack(0)
    trailing = _LONG.pack(counted + len(MAGIC))
    return b"".join((MAGIC, _LONG.pack(counted), *head, content, no_footers, trailing))


class _Window:
    """The range of a file that was read last; reads another one on demand."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self._size = size
        self._start = 0
        self._data = memoryview(b"")

    def bytes_at(self, at: int, length: int) -> memoryview:
        if at < self._start or at + length > self._start + len(self._data):
            to_read = min(max(length, _READ_BYTES), self._size - at)
            self._start, self._data = at, memoryview(self._read(at, to_read))
        return self._data[at - self._start : at - self._start + length]


class _Reader:
    """A position in a log file; every read is checked against the current block's end."""

    def __init__(self, bytes_at: _BytesAt, size: int, file_name: str) -> None:
        self.bytes_at = bytes_at
        self.size = size
        self.file_name = file_name
        self.at = 0
        self.start = 0
        self.end = size

    def block(self) -> LogBlock:
        self._enter_block()
        kind, headers = self._read_kind_and_headers()
        size = self._length(_LONG)
        start = self.at
        content = self._take(size)
        if self._length(_INT):
            self._fail("block with footers")
        if self._length(_LONG) != self.end - self.start - _LONG.size:
            self._fail("trailing length differs from the block length")
        if self.at != self.end:
            self._fail("content does not fill the block")
        return LogBlock(kind, headers, content, self.start, self.file_name, start, size)

    def head(self) -> LogBlock:
        """Return the next block without its content, and skip to the block after it."""
        self._enter_block()
        end = self.end
        self.end = min(end, self.start + _MAX_HEAD_BYTES)
        kind, headers = self._read_kind_and_headers()
        size = self._length(_LONG)
        start = self.at
        if size > end - start:
            self._fail("content longer than its block")
        self.at = end
        nothing = memoryview(b"")
        return LogBlock(kind, headers, nothing, self.start, self.file_name, start, size)

    def _read_kind_and_headers(self) -> tuple[BlockKind, dict[Header, str]]:
        version, ordinal = _TWO_INTS.unpack(self._take(_TWO_INTS.size))
        if version != FORMAT_VERSION:
            self._fail(f"unknown log format version {version}")
        kind = self._kind(ordinal)
        headers = self._read_headers()
        if Header.INSTANT_TIME not in headers:
            self._fail("block without an instant time")
        return kind, headers

    def _enter_block(self) -> None:
        self.start = self.at
        self.end = self.size
        if self._take(len(MAGIC)) != MAGIC:
            self._fail("no block starts here")
        length = self._length(_LONG)
        if length < _MIN_BLOCK_LENGTH:
            self._fail("block shorter than its fixed parts")
        if length > self.size - self.at:
            self._fail("block longer than the file")
        self.end = self.start + _UNCOUNTED + length

    def _kind(self, ordinal: int) -> BlockKind:
        try:
            return BlockKind(ordinal)
        except ValueError:
            self._fail(f"unknown block type {ordinal}")

    def _read_headers(self) -> dict[Header, str]:
        headers: dict[Header, str] = {}
        for _ in range(self._length(_INT)):
            ordinal = _INT.unpack(self._take(_INT.size))[0]
            value = bytes(self._take(self._length(_INT)))
            try:
                key = Header(ordinal)
                text = value.decode()
            except UnicodeDecodeError:
                self._fail("header value is not UTF-8")
            except ValueError:
                self._fail(f"unknown header {ordinal}")
            if key in headers:
                self._fail(f"header {key.name} occurs twice")
            headers[key] = text
        return headers

    def _length(self, form: struct.Struct) -> int:
        length: int = form.unpack(self._take(form.size))[0]
        if length < 0:
            self._fail("negative length")
        return length

    def _take(self, length: int) -> memoryview:
        if length > self.end - self.at:
            self._fail("block ends too early")
        data = self.bytes_at(self.at, length)
        if len(data) < length:
            self._fail("the file ends too early")
        self.at += length
        return data

    def _fail(self, reason: str) -> Never:
        raise CorruptError(
            f"broken log block: {reason}", file_name=self.file_name, offset=self.start
        )
