"""HFiles in tests: comparison with those that Java wrote."""

from __future__ import annotations

import zlib
from dataclasses import replace
from hashlib import sha256

import pyarrow as pa

from lakewright.format.hfile.layout import (
    INDEX_MAGIC,
    TRAILER_SIZE,
    HFileEntries,
    PlainBytes,
    Trailer,
    parse_block,
    parse_trailer,
)
from lakewright.format.hfile.reader import HFile, parse_hfile

_SAMPLE = " ".join(map(str, range(2000))).encode()
# Whether zlib here compresses as Java's does: some builds of Python have a faster one.
COMPRESSES_AS_JAVA = (
    sha256(zlib.compress(_SAMPLE)).hexdigest()
    == "daf38454b70ad6a82ecf25daf4593868bf963d1bfd192526f69d89243b2939d0"
)


def hfile_entries(*pairs: tuple[str | bytes, bytes]) -> HFileEntries:
    keys = [key.encode() if isinstance(key, str) else key for key, _ in pairs]
    return HFileEntries(
        pa.array(keys, pa.binary()), pa.array([value for _, value in pairs], pa.binary())
    )


def pairs_of(entries: HFileEntries) -> list[tuple[bytes, bytes]]:
    return list(zip(entries.keys.to_pylist(), entries.values.to_pylist(), strict=True))


def assert_same_file(actual: bytes, expected: bytes) -> None:
    """The files are equal, or, if zlib differs from Java's, equal before compression."""
    if COMPRESSES_AS_JAVA:
        assert actual == expected
    assert _without_offsets(actual) == _without_offsets(expected)
    assert _payloads(actual) == _payloads(expected)
    assert as_plain(parse_hfile(actual)) == as_plain(parse_hfile(expected))


def as_plain(hfile: HFile) -> tuple[list[tuple[bytes, bytes]], dict[str, bytes], dict[str, bytes]]:
    return pairs_of(hfile.entries), dict(hfile.info), dict(hfile.meta)


def _without_offsets(data: bytes) -> Trailer:
    trailer = parse_trailer(data[-TRAILER_SIZE:])
    return replace(trailer, info_offset=0, index_offset=0, first_block=0, last_block=0)


def _payloads(data: bytes) -> list[tuple[bytes, bytes]]:
    codec = parse_trailer(data[-TRAILER_SIZE:]).codec
    body = memoryview(data)[:-TRAILER_SIZE]
    at, found = 0, []
    while at < len(body):
        magic = bytes(body[at : at + 8])
        payload, at = parse_block(body, at, magic, codec, PlainBytes())
        # Indexes hold offsets, which depend on the compression.
        found.append((magic, b"" if magic == INDEX_MAGIC else bytes(payload)))
    return found
