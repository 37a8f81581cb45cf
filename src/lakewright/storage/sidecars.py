"""Hadoop's checksum files: `.<name>.crc` beside a file on a local disk."""

from __future__ import annotations

import struct
import zlib

_MAGIC = b"crc\0"
_HEADER = struct.Struct(">4si")


def sidecar_name(name: str) -> str:
    """Return the name of the checksum file that belongs to the file `name`.

    >>> sidecar_name("hoodie.properties")
    '.hoodie.properties.crc'
    """
    return f".{name}.crc"


def is_sidecar(name: str) -> bool:
    """Tell whether Hadoop takes `name` for a checksum file, and so hides it."""
    return name.startswith(".") and name.endswith(".crc")


def matches(data: bytes, sidecar: bytes) -> bool:
    """Tell whether `sidecar` is the checksum file of `data`.

    One that ends within its header says nothing, and so does not contradict: Hadoop reads on
    without it, and it looks like that while a Java writer still holds the file open.
    """
    if len(sidecar) < _HEADER.size:
        return True
    magic, chunk = _HEADER.unpack_from(sidecar)
    if magic != _MAGIC or chunk <= 0:
        return False
    starts = range(0, len(data), chunk)
    if len(sidecar) != _HEADER.size + 4 * len(starts):
        return False
    view = memoryview(data)
    sums = struct.unpack_from(f">{len(starts)}I", sidecar, _HEADER.size)
    return all(
        zlib.crc32(view[start : start + chunk]) == expected
        for start, expected in zip(starts, sums, strict=True)
    )


def sidecar_of(data: bytes, *, chunk: int = 512) -> bytes:
    """Return the checksum file that Hadoop would write for `data`; the inverse of `matches`."""
    sums = [zlib.crc32(data[start : start + chunk]) for start in range(0, len(data), chunk)]
    return _HEADER.pack(_MAGIC, chunk) + struct.pack(f">{len(sums)}I", *sums)
