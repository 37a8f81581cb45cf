"""Write HFiles: the bytes are those that Hudi's own writer makes of the same entries.

Blocks are small by default. Hudi's reader computes the end of a data block by its checksums, four
bytes for each 16 KiB on disk, and never finds entries that start in as many bytes at the end of the
payload. In blocks of 64 KiB these are fewer bytes than the smallest entry has.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError
from lakewright.format.hfile.layout import (
    DATA_MAGIC,
    ENTRY_HEAD,
    ENTRY_OVERHEAD,
    ENTRY_TAIL,
    INDEX_MAGIC,
    INFO_MAGIC,
    KEY_OVERHEAD,
    LAST_KEY,
    MAX_KEY_BYTES,
    META_MAGIC,
    Codec,
    HFileEntries,
    Trailer,
    ascend_strictly,
    format_block,
    format_hadoop_vint,
    format_info,
    format_trailer,
)
from lakewright.model.hashing import java_string_hash

MAX_BLOCK_BYTES = 64 * 1024

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_ROW_LENGTH = struct.Struct(">h")
_INDEX_ENTRY = struct.Struct(">qi")
# Entries of many blocks are joined at once, but not into an array that Arrow cannot hold.
_BATCH_BYTES = 32 << 20

Bounds = npt.NDArray[np.int64]


def format_hfile(
    entries: HFileEntries,
    schema_json: str,
    created_ms: int,
    *,
    codec: Codec = Codec.GZIP,
    level: int = -1,
    block_bytes: int = MAX_BLOCK_BYTES,
    info: Mapping[str, bytes] | None = None,
    meta: Mapping[str, bytes] | None = None,
) -> bytes:
    """Return the file of these entries, whose keys must ascend strictly.

    Args:
        entries: keys, which are UTF-8 text, and their values.
        schema_json: the Avro schema of the values.
        created_ms: when the file is made, in milliseconds.
        codec: how blocks are compressed.
        level: the level of the compression.
        block_bytes: no block of several entries is larger than this, before compression.
        info: further entries of the file info.
        meta: the meta blocks, by name.

    Raises:
        InvalidError: the keys do not ascend, or one is longer than the format allows.
    """
    entries = HFileEntries(entries.keys.cast(pa.binary()), entries.values.cast(pa.binary()))
    _check(entries)
    bounds = _bounds(entries)
    cuts = _block_cuts(bounds, block_bytes)
    file = _Parts(codec, level)
    for payload in _payloads(entries, bounds, cuts):
        file.add(DATA_MAGIC, payload, previous=file.size if file.size else -1)
    data_blocks = len(cuts) - 1
    meta = meta or {}
    for value in meta.values():
        file.add(META_MAGIC, value)
    index_offset = file.size
    first_keys = entries.keys.take(pa.array(cuts[:-1])).to_pylist()
    stored_keys = [_ROW_LENGTH.pack(len(key)) + key for key in first_keys]
    blocks, meta_blocks = file.blocks[:data_blocks], file.blocks[data_blocks:]
    file.add(INDEX_MAGIC, _index(stored_keys, blocks))
    file.add(INDEX_MAGIC, _index([name.encode() for name in meta], meta_blocks))
    info_offset = file.size
    given = {"schema": schema_json.encode()} | dict(info or {})
    file.add(INFO_MAGIC, format_info(_in_java_order(given | _own_info(entries, created_ms))))
    trailer = Trailer(
        info_offset=info_offset,
        index_offset=index_offset,
        data_bytes=int(bounds[-1]),
        data_blocks=data_blocks,
        meta_blocks=len(meta),
        entries=len(entries),
        first_block=0 if data_blocks else -1,
        last_block=blocks[-1][0] if blocks else 0,
        codec=codec,
    )
    return b"".join((*file.parts, format_trailer(trailer)))


def sorted_entries(entries: HFileEntries) -> HFileEntries:
    """Return entries in the order of a file: by the bytes of their keys."""
    keys = entries.keys.cast(pa.binary())
    if ascend_strictly(keys):
        return entries
    order = pc.array_sort_indices(keys)
    return HFileEntries(keys.take(order), entries.values.take(order))


class _Parts:
    """The bytes of a file while it is made; `blocks` has offset and size of each block."""

    def __init__(self, codec: Codec, level: int) -> None:
        self.codec = codec
        self.level = level
        self.parts: list[bytes] = []
        self.blocks: list[tuple[int, int]] = []
        self.size = 0

    def add(self, magic: bytes, payload: bytes | memoryview, previous: int = -1) -> None:
        """Append a block."""
        block = format_block(magic, payload, self.codec, previous=previous, level=self.level)
        self.parts.append(block)
        self.blocks.append((self.size, len(block)))
        self.size += len(block)


def _check(entries: HFileEntries) -> None:
    keys = entries.keys
    if len(keys) != len(entries.values) or keys.null_count or entries.values.null_count:
        raise InvalidError("an entry of an HFile has no key or no value")
    if not ascend_strictly(keys):
        raise InvalidError("the keys of an HFile must ascend, and none may occur twice")
    longest = pc.max(pc.binary_length(keys)).as_py() or 0
    if longest > MAX_KEY_BYTES:
        raise InvalidError("a key of an HFile is too long", bytes=longest, limit=MAX_KEY_BYTES)


def _bounds(entries: HFileEntries) -> Bounds:
    """Return where each entry starts in the payloads of all blocks, and where the last one ends."""
    sizes = np.asarray(pc.binary_length(entries.keys)).astype(np.int64)
    sizes += np.asarray(pc.binary_length(entries.values))
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes + ENTRY_OVERHEAD, out=bounds[1:])
    return bounds


def _block_cuts(bounds: Bounds, block_bytes: int) -> Bounds:
    """Return the number of the first entry of each block, and the number of entries."""
    cuts, count = [0], len(bounds) - 1
    while cuts[-1] < count:
        first = cuts[-1]
        end = int(np.searchsorted(bounds, bounds[first] + block_bytes, side="right")) - 1
        cuts.append(max(end, first + 1))
    return np.array(cuts, np.int64)


def _payloads(entries: HFileEntries, bounds: Bounds, cuts: Bounds) -> Iterator[memoryview]:
    at = 0
    while at < len(cuts) - 1:
        fitting = np.searchsorted(bounds[cuts], bounds[cuts[at]] + _BATCH_BYTES, side="right") - 1
        end = max(int(fitting), at + 1)
        data = _joined(entries, int(cuts[at]), int(cuts[end]))
        starts = bounds[cuts[at : end + 1]] - bounds[cuts[at]]
        for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            yield data[start:stop]
        at = end


def _joined(entries: HFileEntries, first: int, end: int) -> memoryview:
    keys, values = entries.keys[first:end], entries.values[first:end]
    heads = np.empty((len(keys), 1), np.dtype([("key", ">i4"), ("value", ">i4"), ("row", ">i2")]))
    rows = np.asarray(pc.binary_length(keys))
    heads["key"][:, 0], heads["row"][:, 0] = rows + KEY_OVERHEAD, rows
    heads["value"][:, 0] = np.asarray(pc.binary_length(values))
    head = pa.Array.from_buffers(pa.binary(ENTRY_HEAD.size), len(keys), [None, pa.py_buffer(heads)])
    joined = pc.binary_join_element_wise(
        head.cast(pa.binary()), keys, pa.scalar(ENTRY_TAIL), values, pa.scalar(b"\x00"), b""
    )
    return memoryview(joined.buffers()[2] or b"")


def _index(keys: Iterable[bytes], blocks: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(
        _INDEX_ENTRY.pack(*block) + format_hadoop_vint(len(key)) + key
        for key, block in zip(keys, blocks, strict=True)
    )


def _own_info(entries: HFileEntries, created_ms: int) -> dict[str, bytes]:
    count = max(len(entries), 1)
    last = entries.keys[-1].as_py() if len(entries) else None
    row_bytes, value_bytes = (
        pc.sum(pc.binary_length(part)).as_py() or 0 for part in (entries.keys, entries.values)
    )
    return {
        LAST_KEY: b"" if last is None else _ROW_LENGTH.pack(len(last)) + last,
        "hfile.AVG_KEY_LEN": _INT.pack(row_bytes // count),
        "hfile.AVG_VALUE_LEN": _INT.pack(value_bytes // count),
        "hfile.CREATE_TIME_TS": _LONG.pack(created_ms),
        "KEY_VALUE_VERSION": _INT.pack(1),
        "MAX_MEMSTORE_TS_KEY": _LONG.pack(0),
    }


def _in_java_order(info: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the info in the order of Java's hash map, filled in the order of `info`."""
    buckets = 16
    while len(info) > buckets * 3 // 4:
        buckets *= 2

    def bucket(name: str) -> int:
        value = java_string_hash(name) & 0xFFFFFFFF
        return (value ^ value >> 16) & (buckets - 1)

    return {name: info[name] for name in sorted(info, key=bucket)}
