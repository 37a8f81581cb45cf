"""Checksums and hashes, computed plainly: what the library's own are compared with."""

from __future__ import annotations

import struct
import zlib

_MASK = 0xFFFFFFFF
_MURMUR = 0x5BD1E995


def sidecar_of(data: bytes, *, chunk: int = 512) -> bytes:
    """Return the checksum file that Hadoop would write for `data`."""
    sums = [zlib.crc32(data[start : start + chunk]) for start in range(0, len(data), chunk)]
    return struct.pack(">4si", b"crc\0", chunk) + struct.pack(f">{len(sums)}I", *sums)


def murmur2(data: bytes, seed: int) -> int:
    """Return the 32-bit Murmur2 hash of the format, which treats trailing bytes as signed."""
    value = (seed ^ len(data)) & _MASK
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MURMUR & _MASK
        word = (word ^ word >> 24) * _MURMUR & _MASK
        value = (value * _MURMUR & _MASK) ^ word
    if whole < len(data):
        for byte, shift in zip(reversed(data[whole:]), (0, 8, 16), strict=False):
            value ^= ((byte - 256 if byte > 127 else byte) << shift) & _MASK
        value = value * _MURMUR & _MASK
    value = (value ^ value >> 13) * _MURMUR & _MASK
    value ^= value >> 15
    return value - (1 << 32) if value > 0x7FFFFFFF else value
