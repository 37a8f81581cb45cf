"""Delete blocks: the deleted keys, and the ordering values that rank deletes against records."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format.avro.decode import ByteChunk, Ints, RowCursors, read_values, varint_at
from lakewright.format.avro.encode import Part, join_parts, joined_bytes, value_parts, varint_parts
from lakewright.format.avro.schema import AvroType
from lakewright.format.log_block import CONTENT_VERSION, BlockKind, Header, LogBlock, format_block
from lakewright.format.record_positions import RecordPositions
from lakewright.utils.arrow_rows import as_array, split_by_size, without_large_type

_INT = struct.Struct(">i")
_TEXT = AvroType("string", pa.string(), branch=1, null_branch=0)
_NULL, _INT_WRAPPER, _ARRAY_WRAPPER = 0, 2, 12
_MAX_FIELDS = 63
_WIDTHS = {"boolean": 1, "float": 4, "double": 8}

# The wrapper records of an ordering value by union branch: Avro type and Arrow type. The last one
# exists only inside an array; outside, its branch number means the array wrapper.
_WRAPPERS: dict[int, tuple[str, pa.DataType]] = {
    1: ("boolean", pa.bool_()),
    2: ("int", pa.int32()),
    3: ("long", pa.int64()),
    4: ("float", pa.float32()),
    5: ("double", pa.float64()),
    6: ("bytes", pa.binary()),
    7: ("string", pa.string()),
    8: ("int", pa.date32()),
    9: ("bytes", pa.decimal128(30, 15)),
    10: ("long", pa.time64("us")),
    11: ("long", pa.timestamp("us", "UTC")),
    12: ("int", pa.date32()),
}


@dataclass(frozen=True, slots=True)
class DeleteRecords:
    """The deletes of a block, one row for each deleted key.

    - `unconditional` deletes remove every earlier version of the record; the others compete with
      those versions by `ordering`;
    - `ordering` has an array for each ordering field, null where a delete is unconditional; it is
      empty if all deletes are unconditional.
    """

    keys: pa.Array
    partitions: pa.Array
    unconditional: pa.Array
    ordering: tuple[pa.Array, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def plus(self, other: DeleteRecords) -> DeleteRecords:
        """Return these deletes followed by `other`, of the same table."""
        return DeleteRecords(
            pa.concat_arrays([self.keys, other.keys]),
            pa.concat_arrays([self.partitions, other.partitions]),
            pa.concat_arrays([self.unconditional, other.unconditional]),
            tuple(map(pa.concat_arrays, zip(self.ordering, other.ordering, strict=True))),
        )

    def split_by_size(self, max_bytes: int) -> Iterator[DeleteRecords]:
        """Split into pieces of about `max_bytes`, at least one delete each."""
        columns = (self.keys, self.partitions, self.unconditional, *self.ordering)
        names = [str(number) for number in range(len(columns))]
        for piece in split_by_size(pa.table(list(columns), names=names), max_bytes):
            keys, partitions, unconditional, *ordering = (
                without_large_type(as_array(column)) for column in piece.columns
            )
            yield DeleteRecords(keys, partitions, unconditional, tuple(ordering))

    def by_kind(self) -> list[DeleteRecords]:
        """Split into unconditional and competing deletes: readers refuse a block with both."""
        if not len(self):
            return [self]
        masks = [self.unconditional, pc.invert(self.unconditional)]
        return [self._filter(mask) for mask in masks if pc.any(mask).as_py()]

    def _filter(self, mask: pa.Array) -> DeleteRecords:
        ordering = tuple(column.filter(mask) for column in self.ordering)
        unconditional = self.unconditional.filter(mask)
        return DeleteRecords(
            self.keys.filter(mask),
            self.partitions.filter(mask),
            unconditional,
            () if pc.all(unconditional).as_py() else ordering,
        )


def parse_delete_block(block: LogBlock) -> DeleteRecords:
    """Return the deletes of a block."""
    content = block.versioned_content()
    if len(content) < _INT.size or _INT.unpack(content[: _INT.size])[0] != len(content) - _INT.size:
        raise block.corrupt("a delete list has another length than it says")
    try:
        return _decode(content[_INT.size :])
    except (IndexError, pa.ArrowInvalid) as error:
        raise block.corrupt("a delete list cannot be decoded", cause=str(error)) from error
    except CorruptError as error:
        raise block.corrupt(error.message, **error.facts) from error


def format_delete_block(
    records: DeleteRecords,
    instant: str,
    schema_json: str | None = None,
    *,
    compacted_instants: Sequence[str] = (),
    positions: RecordPositions | None = None,
) -> bytes:
    """Return the bytes of a delete block.

    Raises:
        InvalidError: the block would mix unconditional and competing deletes, which some readers
            refuse (see `DeleteRecords.by_kind`), or an ordering column has an unsupported type.
    """
    headers = {Header.INSTANT_TIME: instant}
    if schema_json is not None:
        headers[Header.SCHEMA] = schema_json
    if compacted_instants:
        headers[Header.COMPACTED_BLOCK_TIMES] = ",".join(compacted_instants)
    if positions is not None:
        headers |= positions.headers()
    count = len(records)
    body = b"\x00"
    if count:
        rows = join_parts(_record_parts(records))
        head = varint_parts(np.array([count], np.int64))[0].as_py()
        body = b"".join((head, joined_bytes(rows), b"\x00"))
    content = struct.pack(">ii", CONTENT_VERSION, len(body)) + body
    return format_block(BlockKind.DELETE, headers, content)


def _record_parts(records: DeleteRecords) -> list[Part]:
    if records.keys.null_count:
        raise InvalidError("a delete has no key")
    if len(records.ordering) > _MAX_FIELDS:
        raise InvalidError("too many ordering fields", limit=_MAX_FIELDS)
    parts = value_parts(_TEXT, records.keys, "key")
    parts += value_parts(_TEXT, records.partitions, "partition")
    unconditional = np.asarray(records.unconditional)
    if unconditional.all():
        return [*parts, pa.scalar(bytes([_INT_WRAPPER * 2, 0]))]
    if unconditional.any() or not records.ordering:
        raise InvalidError("a delete block holds unconditional and competing deletes")
    wrapped = [_wrapped_parts(column) for column in records.ordering]
    if len(wrapped) == 1:
        return [*parts, *wrapped[0]]
    head = bytes([_ARRAY_WRAPPER * 2, 2, len(wrapped) * 2])
    fields = [part for field_parts in wrapped for part in field_parts]
    return [*parts, pa.scalar(head), *fields, pa.scalar(b"\x00")]


def _wrapped_parts(column: pa.Array) -> list[Part]:
    wrapper = _wrapper_for(column.type)
    kind, arrow = _WRAPPERS[wrapper]
    try:
        return value_parts(
            AvroType(kind, arrow, branch=wrapper, null_branch=_NULL), column, "ordering"
        )
    except pa.ArrowInvalid as error:
        raise InvalidError(
            "an ordering value does not fit its wrapper", type=str(column.type), cause=str(error)
        ) from error


def _wrapper_for(kind: pa.DataType) -> int:
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return _INT_WRAPPER
    if pa.types.is_timestamp(kind) and kind.unit in ("us", "ms"):
        return 11
    if pa.types.is_decimal(kind):
        return 9
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return 7
    # Hudi fails to read a time of day, though the format has a wrapper for it.
    for wrapper, (_, arrow) in _WRAPPERS.items():
        if arrow == kind and not pa.types.is_time(kind):
            return wrapper
    raise InvalidError("an ordering column has a type that deletes cannot carry", type=str(kind))


def _decode(data: memoryview) -> DeleteRecords:
    starts, end = _record_starts(bytes(data))
    if end != len(data):
        raise CorruptError("a delete list goes on after its end")
    if not starts:
        empty = pa.array([], pa.string())
        return DeleteRecords(empty, empty, pa.array([], pa.bool_()))
    bounds = np.array([*starts, end], np.int64)
    # The byte after the last record ends the array.
    bounds[-1] -= 1
    rows = RowCursors(ByteChunk(data), bounds[:-1].copy(), bounds[1:])
    keys, partitions = read_values(_TEXT, rows), read_values(_TEXT, rows)
    if keys.null_count:
        raise CorruptError("a delete has no key")
    unconditional, ordering = _read_ordering(rows)
    if np.any(rows.at != rows.limit):
        raise CorruptError("a delete is longer or shorter than it should be")
    return DeleteRecords(keys, partitions, pa.array(unconditional), ordering)


def _record_starts(data: bytes) -> tuple[list[int], int]:
    """Return where each record of the Avro array starts, and where the array ends.

    Records have no length prefix: each one must be parsed to find the next.
    """
    starts: list[int] = []
    count, at = varint_at(data, 0)
    while count:
        if count < 0:
            count = -count
            _, at = varint_at(data, at)
        for _ in range(count):
            starts.append(at)
            at = _after_ordering(data, _after_text(data, _after_text(data, at)))
        count, at = varint_at(data, at)
        if count and starts:
            raise UnsupportedError("a delete list in several pieces")
    return starts, at


def _after_text(data: bytes, at: int) -> int:
    if data[at] == 2 and data[at + 1] < 0x80:
        return at + 2 + (data[at + 1] >> 1)
    branch, at = varint_at(data, at)
    return at if branch == 0 else _after_bytes(data, at)


def _after_bytes(data: bytes, at: int) -> int:
    length, at = varint_at(data, at)
    if length < 0:
        raise CorruptError("an Avro length is negative")
    return at + length


def _after_ordering(data: bytes, at: int) -> int:
    wrapper, at = varint_at(data, at)
    if wrapper != _ARRAY_WRAPPER:
        return _after_value(data, at, wrapper)
    branch, at = varint_at(data, at)
    count, at = varint_at(data, at)
    if branch != 1 or not 0 < count <= _MAX_FIELDS:
        raise CorruptError("an ordering value has an impossible number of values", count=count)
    for _ in range(count):
        wrapper, at = varint_at(data, at)
        at = _after_value(data, at, wrapper)
    return at + 1


def _after_value(data: bytes, at: int, wrapper: int) -> int:
    if wrapper == _NULL:
        return at
    if wrapper not in _WRAPPERS:
        raise CorruptError("an ordering value has an unknown wrapper", wrapper=wrapper)
    kind = _WRAPPERS[wrapper][0]
    if kind in _WIDTHS:
        return at + _WIDTHS[kind]
    return varint_at(data, at)[1] if kind in ("int", "long") else _after_bytes(data, at)


def _read_ordering(rows: RowCursors) -> tuple[npt.NDArray[np.bool_], tuple[pa.Array, ...]]:
    """Return which deletes are unconditional, and the ordering values of the others."""
    wrappers = rows.varint()
    arrays = wrappers == _ARRAY_WRAPPER
    single = _OrderingValues(len(rows))
    single.read(rows, wrappers, ~arrays)
    unconditional: npt.NDArray[np.bool_] = wrappers == _NULL
    zeros = single.zeros_of(_INT_WRAPPER)
    unconditional[zeros] = True
    single.drop(zeros)
    if not arrays.any():
        return unconditional, () if unconditional.all() else (single.column(),)
    if not np.all(arrays | unconditional):
        raise CorruptError("deletes of one block have different numbers of ordering values")
    return unconditional, _read_arrays(rows, arrays)


def _read_arrays(rows: RowCursors, arrays: npt.NDArray[np.bool_]) -> tuple[pa.Array, ...]:
    inner = rows.some(arrays)
    inner.varint()
    counts = inner.varint()
    if np.any(counts != counts[0]):
        raise CorruptError("deletes of one block have different numbers of ordering values")
    columns = []
    for _ in range(int(counts[0])):
        ordering_values = _OrderingValues(len(inner))
        ordering_values.read(inner, inner.varint(), np.ones(len(inner), bool))
        index = np.cumsum(arrays) - 1
        columns.append(ordering_values.column().take(pa.array(index, mask=~arrays)))
    if np.any(inner.varint() != 0):
        raise CorruptError("an ordering value has its values in several pieces")
    rows.at[arrays] = inner.at
    return tuple(columns)


class _OrderingValues:
    """The values of one ordering field, which may use several wrappers."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.pieces: dict[int, tuple[npt.NDArray[np.int64], pa.Array]] = {}

    def read(self, rows: RowCursors, wrappers: Ints, which: npt.NDArray[np.bool_]) -> None:
        for wrapper in np.unique(wrappers[which]).tolist():
            if wrapper != _NULL:
                index = np.flatnonzero(which & (wrappers == wrapper))
                part = rows.some(index)
                values = read_values(AvroType(*_WRAPPERS[wrapper]), part)
                rows.at[index] = part.at
                self.pieces[wrapper] = (index, values)

    def zeros_of(self, wrapper: int) -> npt.NDArray[np.int64]:
        if wrapper not in self.pieces:
            return np.zeros(0, np.int64)
        index, values = self.pieces[wrapper]
        zeros: npt.NDArray[np.int64] = index[np.asarray(values) == 0]
        return zeros

    def drop(self, rows: npt.NDArray[np.int64]) -> None:
        for wrapper, (index, values) in list(self.pieces.items()):
            remaining = ~np.isin(index, rows)
            if remaining.all():
                continue
            del self.pieces[wrapper]
            if remaining.any():
                self.pieces[wrapper] = (index[remaining], values.filter(pa.array(remaining)))

    def column(self) -> pa.Array:
        target = _common_type({values.type for _, values in self.pieces.values()})
        source = np.full(self.length, -1)
        if not self.pieces:
            return pa.nulls(self.length, target)
        source[np.concatenate([index for index, _ in self.pieces.values()])] = np.arange(
            sum(len(index) for index, _ in self.pieces.values())
        )
        combined = pa.concat_arrays([values.cast(target) for _, values in self.pieces.values()])
        return combined.take(pa.array(source, mask=source < 0))


def _common_type(types: set[pa.DataType]) -> pa.DataType:
    if not types:
        return pa.null()
    if len(types) == 1:
        return types.pop()
    if types == {pa.int32(), pa.int64()}:
        return pa.int64()
    if types <= {pa.int32(), pa.float32(), pa.float64()}:
        return pa.float64()
    raise CorruptError(
        "ordering values of one block have types that do not compare", types=sorted(map(str, types))
    )
