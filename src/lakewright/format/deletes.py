"""Delete blocks: which keys go, and the ordering values with which the deletes compete."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError, InvalidError
from lakewright.format.avro_arrow import AvroType
from lakewright.format.avro_encode import Part, join_parts, joined_bytes, value_parts, varint_parts
from lakewright.format.log_blocks import (
    CONTENT_VERSION,
    BlockKind,
    Header,
    LogBlock,
    format_block,
)
from lakewright.format.positions import RecordPositions

_INT = struct.Struct(">i")
_TEXT = AvroType("string", pa.string(), branch=1, null_branch=0)
_NULL, _INT_WRAPPER, _ARRAY_WRAPPER = 0, 2, 12
_DECIMAL = pa.decimal128(30, 15)

# The wrapper records of an ordering value by their branch: Avro type and Arrow type. The last one
# exists only inside of an array, where its branch is that of the array wrapper outside.
_WRAPPERS: dict[int, tuple[str, pa.DataType]] = {
    1: ("boolean", pa.bool_()),
    2: ("int", pa.int32()),
    3: ("long", pa.int64()),
    4: ("float", pa.float32()),
    5: ("double", pa.float64()),
    6: ("bytes", pa.binary()),
    7: ("string", pa.string()),
    8: ("int", pa.date32()),
    9: ("bytes", _DECIMAL),
    10: ("long", pa.time64("us")),
    11: ("long", pa.timestamp("us", "UTC")),
    12: ("int", pa.date32()),
}


@dataclass(frozen=True, slots=True)
class DeleteRecords:
    """The keys of a delete block.

    - `unconditional` deletes end everything before them; the others compete by `ordering`;
    - `ordering` has an array for each ordering field, null where a delete is unconditional, and is
      empty if all are.
    """

    keys: pa.Array
    partitions: pa.Array
    unconditional: pa.Array
    ordering: tuple[pa.Array, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def by_kind(self) -> list[DeleteRecords]:
        """Unconditional and competing deletes apart, as readers want them in blocks."""
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
    """Read a delete block."""
    content = block.versioned_content()
    if len(content) < _INT.size or _INT.unpack(content[: _INT.size])[0] != len(content) - _INT.size:
        raise block.corrupt("a delete list has another length than it says")
    reader = _Reader(bytes(content[_INT.size :]))
    try:
        reader.read_all()
        return _delete_records(reader)
    except (IndexError, OverflowError, struct.error, pa.ArrowException) as error:
        raise block.corrupt("a delete list cannot be decoded", cause=str(error)) from error
    except CorruptError as error:
        raise block.corrupt(error.message, **error.facts) from error


def format_delete_block(
    records: DeleteRecords,
    instant: str,
    schema_json: str | None = None,
    *,
    positions: RecordPositions | None = None,
) -> bytes:
    """Write a delete block.

    Raises:
        InvalidError: unconditional and competing deletes are mixed, which some readers refuse: see
            `DeleteRecords.by_kind`; or an ordering column has a type that cannot be written.
    """
    headers = {Header.INSTANT_TIME: instant}
    if schema_json is not None:
        headers[Header.SCHEMA] = schema_json
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
    parts = [*_text_parts(records.keys, "key"), *_text_parts(records.partitions, "partition")]
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


def _text_parts(column: pa.Array, name: str) -> list[Part]:
    if name == "key" and column.null_count:
        raise InvalidError("a delete has no key")
    return value_parts(_TEXT, column, name)


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
    for wrapper, (_, arrow) in _WRAPPERS.items():
        if arrow == kind:
            return wrapper
    raise InvalidError("an ordering column has a type that deletes cannot carry", type=str(kind))


class _Reader:
    """One Avro array of delete records, read one after the other: each begins where one ends."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.keys: list[bytes] = []
        self.partitions: list[bytes | None] = []
        self.wrappers: list[int] = []
        self.values: list[Any] = []

    def read_all(self) -> None:
        while count := self._varint():
            if count < 0:
                count = -count
                self._varint()
            for _ in range(count):
                self._record()
        if self.at != len(self.data):
            raise CorruptError("a delete list goes on after its end")

    def _record(self) -> None:
        key = self._text()
        if key is None:
            raise CorruptError("a delete has no key")
        self.keys.append(key)
        self.partitions.append(self._text())
        wrapper = self._varint()
        self.wrappers.append(wrapper)
        self.values.append(self._fields() if wrapper == _ARRAY_WRAPPER else self._value(wrapper))

    def _varint(self) -> int:
        value = self.data[self.at]
        self.at += 1
        if value < 0x80:
            return (value >> 1) ^ -(value & 1)
        value &= 0x7F
        for shift in range(7, 70, 7):
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise CorruptError("an Avro number has more than 64 bits")

    def _text(self) -> bytes | None:
        branch = self._varint()
        if branch == 0:
            return None
        if branch != 1:
            raise CorruptError("an Avro union has no such branch")
        return self._bytes()

    def _bytes(self) -> bytes:
        length = self._varint()
        return self._take(length)

    def _take(self, length: int) -> bytes:
        end = self.at + length
        if length < 0 or end > len(self.data):
            raise CorruptError("an Avro value reaches over the end of the block")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def _fields(self) -> list[tuple[int, Any]]:
        fields: list[tuple[int, Any]] = []
        if self._varint() != 1:
            raise CorruptError("an ordering value is an array of nothing")
        while count := self._varint():
            if count < 0:
                count = -count
                self._varint()
            for _ in range(count):
                wrapper = self._varint()
                fields.append((wrapper, self._value(wrapper)))
        return fields

    def _value(self, wrapper: int) -> Any:
        if wrapper == _NULL:
            return None
        if wrapper not in _WRAPPERS:
            raise CorruptError("an ordering value has an unknown wrapper", wrapper=wrapper)
        match _WRAPPERS[wrapper][0]:
            case "int" | "long":
                return self._varint()
            case "boolean":
                return self._take(1) != b"\x00"
            case "float":
                return struct.unpack("<f", self._take(4))[0]
            case "double":
                return struct.unpack("<d", self._take(8))[0]
            case _:
                return self._bytes()


def _delete_records(reader: _Reader) -> DeleteRecords:
    unconditional = [
        wrapper == _NULL or (wrapper == _INT_WRAPPER and value == 0)
        for wrapper, value in zip(reader.wrappers, reader.values, strict=True)
    ]
    return DeleteRecords(
        pa.array(reader.keys, pa.binary()).cast(pa.string()),
        pa.array(reader.partitions, pa.binary()).cast(pa.string()),
        pa.array(unconditional, pa.bool_()),
        _ordering(reader, unconditional),
    )


def _ordering(reader: _Reader, unconditional: Sequence[bool]) -> tuple[pa.Array, ...]:
    nothing = (_NULL, None)
    rows: list[list[tuple[int, Any]] | None] = []
    for wrapper, value, always in zip(reader.wrappers, reader.values, unconditional, strict=True):
        if always:
            rows.append(None)
        else:
            rows.append(value if wrapper == _ARRAY_WRAPPER else [(wrapper, value)])
    widths = {len(row) for row in rows if row is not None}
    if not widths:
        return ()
    if len(widths) > 1:
        raise CorruptError("deletes of one block have different numbers of ordering values")
    return tuple(
        _column([nothing if row is None else row[field] for row in rows])
        for field in range(widths.pop())
    )


def _column(cells: Sequence[tuple[int, Any]]) -> pa.Array:
    wrappers = {wrapper for wrapper, _ in cells} - {_NULL}
    target = _common_type({_WRAPPERS[wrapper][1] for wrapper in wrappers})
    if target == _DECIMAL:
        return pa.array([None if v is None else _decimal(v) for _, v in cells], target)
    if target == pa.string():
        return pa.array([v for _, v in cells], pa.binary()).cast(target)
    if pa.types.is_temporal(target):
        plain = pa.int32() if pa.types.is_date32(target) else pa.int64()
        array = pa.array([v for _, v in cells], plain).view(target)
        array.validate(full=True)
        return array
    return pa.array([v for _, v in cells], target)


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


def _decimal(big_endian: bytes) -> Decimal:
    if not 0 < len(big_endian) <= 16:
        raise CorruptError("a decimal has an impossible length", length=len(big_endian))
    unscaled = int.from_bytes(big_endian, "big", signed=True)
    # Arithmetic would round to 28 digits; a literal does not.
    return Decimal(f"{unscaled}E-{_DECIMAL.scale}")
