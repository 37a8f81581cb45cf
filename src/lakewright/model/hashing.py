"""The hash functions of the format, for single values and for columns of strings.

Those of keys and buckets compute with 32-bit integers that wrap around; for single values they
return signed integers, as Java does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Hashes = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

_MASK = 0xFFFFFFFF
_MAX_INT = 0x7FFFFFFF
_MURMUR = 0x5BD1E995
_LONG_MASK = 0xFFFFFFFFFFFFFFFF
# The primes of xxHash.
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_XX_STRIPE = struct.Struct("<4Q")
# Number of keys hashed together: few enough to fit into the processor's cache.
_BATCH_SIZE = 8192


def java_string_hash(text: str) -> int:
    """Return Java's hash of a string, computed over its UTF-16 code units."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    value = 0
    for unit in units:
        value = (31 * value + unit) & _MASK
    return _signed(value)


def java_list_hash(values: Sequence[str | None]) -> int:
    """Return Java's hash of a list of strings; null hashes to 0."""
    value = 1
    for item in values:
        value = (31 * value + (0 if item is None else java_string_hash(item))) & _MASK
    return _signed(value)


def bucket_of(hash_keys: Sequence[str | None], buckets: int) -> int:
    """Return the bucket of a key, given the values of its hashed fields."""
    return (java_list_hash(hash_keys) & _MAX_INT) % buckets


def java_string_hashes(strings: pa.Array) -> Hashes:
    """Return `java_string_hash` of each value of a column of strings; null hashes to 0."""
    hashes = np.zeros(len(strings), np.uint32)
    ascii_only = np.asarray(pc.fill_null(pc.string_is_ascii(strings), False))
    ascii_values = strings.filter(pa.array(ascii_only)).cast(pa.large_binary())
    hashes[ascii_only] = _polynomials(*_bytes_and_bounds(ascii_values))
    other = np.flatnonzero(~ascii_only & np.asarray(strings.is_valid()))
    if len(other):
        texts = strings.take(pa.array(other)).to_pylist()
        hashes[other] = [java_string_hash(text) & _MASK for text in texts]
    return hashes.view(np.int32)


def buckets_of(hash_keys: Sequence[pa.Array], buckets: int) -> npt.NDArray[np.int32]:
    """Return `bucket_of` for each row, given one column for each hashed field."""
    value = np.ones(len(hash_keys[0]), np.uint32)
    for column in hash_keys:
        value = value * np.uint32(31) + java_string_hashes(column).view(np.uint32)
    return ((value & np.uint32(_MAX_INT)) % np.uint32(buckets)).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class MurmurKeys:
    """Keys of equal length, preprocessed so that hashing them with several seeds is cheap."""

    index: npt.NDArray[np.int64]
    length: int
    words: npt.NDArray[np.uint32]  # one row for each 4-byte word of the keys
    tail: npt.NDArray[np.uint32] | None

    def hash(self, seed: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Return the 32-bit Murmur2 hash of every key, each with its own seed.

        Like the format, it treats trailing bytes as signed.
        """
        m = np.uint32(_MURMUR)
        value = seed ^ np.uint32(self.length)
        for word in self.words:
            value *= m
            value ^= word
        if self.tail is not None:
            value ^= self.tail
            value *= m
        value ^= value >> np.uint32(13)
        value *= m
        value ^= value >> np.uint32(15)
        return value


def murmur_keys(keys: pa.Array) -> Iterator[MurmurKeys]:
    """Yield the keys of a column of strings without nulls, in batches to be hashed together."""
    lengths = np.asarray(pc.binary_length(keys))
    order = np.argsort(lengths, kind="stable")
    steps = np.flatnonzero(np.diff(lengths[order])) + 1
    for group in np.split(order, steps):
        for first in range(0, len(group), _BATCH_SIZE):
            index = group[first : first + _BATCH_SIZE]
            yield _prepare(keys.take(pa.array(index)), index)


def xxh64(data: bytes, seed: int) -> int:
    """Return the 64-bit xxHash of some bytes."""
    at, end = 0, len(data)
    if end >= 32:
        lanes = [(seed + start) & _LONG_MASK for start in (_P1 + _P2, _P2, 0, -_P1)]
        while at <= end - 32:
            words = _XX_STRIPE.unpack_from(data, at)
            lanes = [_xx_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            at += _XX_STRIPE.size
        value = sum(map(_rotated, lanes, (1, 7, 12, 18)))
        for lane in lanes:
            value = ((value ^ _xx_round(0, lane)) * _P1 + _P4) & _LONG_MASK
    else:
        value = (seed + _P5) & _LONG_MASK
    value = (value + end) & _LONG_MASK
    for start in range(at, end - 7, 8):
        word = int.from_bytes(data[start : start + 8], "little")
        value = (_rotated(value ^ _xx_round(0, word), 27) * _P1 + _P4) & _LONG_MASK
    at = end & ~7
    if end & 4:
        word = int.from_bytes(data[at : at + 4], "little")
        value = (_rotated(value ^ word * _P1 & _LONG_MASK, 23) * _P2 + _P3) & _LONG_MASK
    for byte in data[end & ~3 :]:
        value = _rotated(value ^ byte * _P5 & _LONG_MASK, 11) * _P1 & _LONG_MASK
    value = (value ^ value >> 33) * _P2 & _LONG_MASK
    value = (value ^ value >> 29) * _P3 & _LONG_MASK
    return value ^ value >> 32


def _xx_round(lane: int, word: int) -> int:
    return _rotated((lane + word * _P2) & _LONG_MASK, 31) * _P1 & _LONG_MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _LONG_MASK


def _signed(value: int) -> int:
    return value - (1 << 32) if value > _MAX_INT else value


def _bytes_and_bounds(binary: pa.Array) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Return the bytes of a large binary column without nulls, and the bounds of its values."""
    _, offsets, data = binary.buffers()
    bounds = np.frombuffer(offsets, np.int64)[binary.offset : binary.offset + len(binary) + 1]
    values = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return values[bounds[0] : bounds[-1]], bounds - bounds[0]


def _polynomials(units: Bytes, bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return for each value the sum of unit * 31^(distance from the end of the value)."""
    lengths = np.diff(bounds)
    powers = np.full(int(lengths.max(initial=0)) + 1, 31, np.uint32)
    powers[0] = 1
    np.cumprod(powers, out=powers, dtype=np.uint32)
    from_end = np.repeat(bounds[1:], lengths) - np.arange(len(units)) - 1
    sums = np.zeros(len(units) + 1, np.uint32)
    np.cumsum(units * powers[from_end], out=sums[1:], dtype=np.uint32)
    return sums[bounds[1:]] - sums[bounds[:-1]]


def _prepare(keys: pa.Array, index: npt.NDArray[np.int64]) -> MurmurKeys:
    units, bounds = _bytes_and_bounds(keys.cast(pa.large_binary()))
    length = int(bounds[1] - bounds[0])
    key_bytes = units.reshape(len(index), length)
    whole = length // 4 * 4
    words = np.ascontiguousarray(key_bytes[:, :whole]).view("<u4").T * np.uint32(_MURMUR)
    words ^= words >> np.uint32(24)
    words *= np.uint32(_MURMUR)
    tail = None
    if whole < length:
        tail = np.zeros(len(index), np.int32)
        for position in range(whole, length):
            tail ^= key_bytes[:, position].view(np.int8).astype(np.int32) << 8 * (
                length - 1 - position
            )
    return MurmurKeys(
        index,
        length,
        np.ascontiguousarray(words),
        None if tail is None else tail.view(np.uint32),
    )
