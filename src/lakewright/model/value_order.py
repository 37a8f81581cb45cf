"""The order of values in statistics, and the bounds of a column in that order.

Statistics are combined in the order of Java's types: numbers of floating point have a total order
in which -0.0 is below 0.0 and NaN above all others, text is ordered by its UTF-16 units, and bytes
are ordered as signed ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ranks = npt.NDArray[np.int64]

_FIRST_DIFFERENT = 0xEE


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the greatest value of a column, and how many values it has and lacks.

    `least` and `greatest` are scalars of the column's type, null if the column has no values.
    """

    least: pa.Scalar
    greatest: pa.Scalar
    values: int
    nulls: int


def value_ranks(values: pa.Array) -> Ranks:
    """Return a number for each value such that equal values have equal numbers, in their order.

    Args:
        values: values without nulls, of a type that statistics have.
    """
    if not len(values):
        return np.zeros(0, np.int64)
    if pa.types.is_floating(values.type):
        return _dense(_float_keys(np.asarray(values)))
    if pa.types.is_string(values.type):
        return _text_ranks(values)
    if pa.types.is_binary(values.type):
        return _ranked(_with_flipped_signs(values))
    if pa.types.is_decimal(values.type):
        return _ranked(values)
    width = {1: pa.uint8(), 32: pa.int32(), 64: pa.int64()}[values.type.bit_width]
    plain = values.cast(width) if width == pa.uint8() else values.view(width)
    return _dense(np.asarray(plain).astype(np.int64))


def column_bounds(values: pa.Array | pa.ChunkedArray) -> Bounds:
    """Return bounds that enclose all values of a column, whatever order a reader compares them in.

    Readers may hold -0.0 and 0.0 for equal, so a bound that is zero encloses both. NaN is greater
    than all other values. Text and bytes are compared by unsigned bytes, as Parquet does.
    """
    nulls = values.null_count
    found = pc.min_max(values)
    least, greatest = found["min"], found["max"]
    if pa.types.is_floating(values.type):
        least, greatest = _float_bounds(values, least, greatest)
    return Bounds(least, greatest, len(values) - nulls, nulls)


def _float_bounds(
    values: pa.Array | pa.ChunkedArray, least: pa.Scalar, greatest: pa.Scalar
) -> tuple[pa.Scalar, pa.Scalar]:
    kind = values.type
    if pc.any(pc.is_nan(values)).as_py():
        greatest = pa.scalar(float("nan"), kind)
        # Arrow passes over NaN, and has another result if there is nothing else.
        others = pc.all(pc.is_nan(values), min_count=0).as_py()
        least = greatest if others else least
    if least.as_py() == 0:
        least = pa.scalar(-0.0, kind)
    if greatest.as_py() == 0:
        greatest = pa.scalar(0.0, kind)
    return least, greatest


def _float_keys(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return numbers in the total order of floating point; all NaN are equal."""
    wide = np.where(np.isnan(values), np.nan, values.astype(np.float64))
    bits: npt.NDArray[np.int64] = wide.view(np.int64)
    keys: npt.NDArray[np.int64] = bits ^ ((bits >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))
    return keys


def _text_ranks(values: pa.Array) -> Ranks:
    if _has_same_order(values):
        return _ranked(values)
    units = [text.encode("utf-16-be") for text in values.to_pylist()]
    return _ranked(pa.array(units, pa.binary()))


def _has_same_order(values: pa.Array) -> bool:
    """Whether the bytes of text order it as its UTF-16 units do.

    They do up to U+DFFF. Characters from U+E000 on begin with the byte EE or a greater one.
    """
    data = values.buffers()[2]
    return data is None or not np.any(np.frombuffer(data, np.uint8) >= _FIRST_DIFFERENT)


def _with_flipped_signs(values: pa.Array) -> pa.Array:
    flat = pa.concat_arrays([values, pa.array([], values.type)])
    validity, offsets, data = flat.buffers()
    if data is None:
        return flat
    flipped = np.frombuffer(data, np.uint8) ^ np.uint8(0x80)
    buffers = [validity, offsets, pa.py_buffer(flipped)]
    return pa.Array.from_buffers(flat.type, len(flat), buffers, offset=flat.offset)


def _ranked(values: pa.Array) -> Ranks:
    ranks: Ranks = np.asarray(pc.rank(values, tiebreaker="dense")).astype(np.int64) - 1
    return ranks


def _dense(keys: npt.NDArray[np.int64]) -> Ranks:
    ranks: Ranks = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    return ranks
