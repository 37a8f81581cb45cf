"""Rows as JSON texts, whole columns at a time.

Each column becomes an array of texts, and Arrow joins the texts of a row. Times are microseconds
and dates are days since 1970, as Hudi has them in change data; decimals are numbers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import UnsupportedError

_SPECIAL = r'[\x00-\x1f"\\]'
# The backslash comes first: the others bring some of their own.
_ESCAPED = ["\\", '"', *map(chr, range(0x20))]


def row_texts(rows: pa.Table) -> pa.Array:
    """Each row as a JSON object with all its columns; nulls are told."""
    columns = [column.combine_chunks() for column in rows.columns]
    return _object(rows.schema.names, columns, len(rows))


def struct_texts(rows: pa.Array) -> pa.Array:
    """Each struct as a JSON object; null where there is none."""
    return _texts(rows)


def _texts(array: pa.Array) -> pa.Array:
    """The values as JSON; null for null."""
    for applies, encode in _ENCODERS:
        if applies(array.type):
            return encode(array)
    raise UnsupportedError("a column type has no form in JSON", type=str(array.type))


def _join(parts: Iterable[pa.Array | str]) -> pa.Array:
    """The parts of each value put together; null is a word here."""
    scalars = [pa.scalar(p) if isinstance(p, str) else p for p in parts]
    return pc.binary_join_element_wise(
        *scalars, "", null_handling="replace", null_replacement="null"
    )


def _where_valid(array: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), texts, None) if array.null_count else texts


def _object(names: Iterable[str], columns: Iterable[pa.Array], length: int) -> pa.Array:
    parts: list[pa.Array | str] = []
    for name, column in zip(names, columns, strict=True):
        lead = "," if parts else "{"
        parts += [f"{lead}{json.dumps(name, ensure_ascii=False)}:", _texts(column)]
    if not parts:
        return pa.array(["{}"] * length, pa.string())
    return _join([*parts, "}"])


def _struct(array: pa.Array) -> pa.Array:
    names = [field.name for field in array.type]
    return _where_valid(array, _object(names, array.flatten(), len(array)))


def _list(array: pa.Array) -> pa.Array:
    bounds = np.asarray(array.offsets)
    texts = _texts(array.values[int(bounds[0]) : int(bounds[-1])])
    return _listed(array, texts, "[", "]")


def _map(array: pa.Array) -> pa.Array:
    bounds = np.asarray(array.offsets)
    part = slice(int(bounds[0]), int(bounds[-1]))
    keys = array.keys[part]
    named = _string(keys if pa.types.is_string(keys.type) else keys.cast(pa.string()))
    return _listed(array, _join([named, ":", _texts(array.items[part])]), "{", "}")


def _listed(array: pa.Array, texts: pa.Array, begin: str, end: str) -> pa.Array:
    """The texts of items put together, those of each value by themselves."""
    bounds = np.asarray(array.offsets)
    starts = pa.array((bounds - bounds[0]).astype(np.int32))
    items = pa.ListArray.from_arrays(starts, pc.fill_null(texts, "null"))
    return _where_valid(array, _join([begin, pc.binary_join(items, ","), end]))


def _string(array: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(array, _SPECIAL)).as_py():
        array = reduce(_escaped, _ESCAPED, array)
    return _where_valid(array, _join(['"', array, '"']))


def _escaped(array: pa.Array, character: str) -> pa.Array:
    return pc.replace_substring(array, character, json.dumps(character)[1:-1])


def _float(array: pa.Array) -> pa.Array:
    texts = array.cast(pa.string())
    if pc.all(pc.is_finite(array)).as_py() is not False:
        return texts
    # JSON has no numbers for these; their names are those of Java.
    names = pc.case_when(
        pc.make_struct(pc.is_nan(array), pc.greater(array, 0.0)),
        '"NaN"',
        '"Infinity"',
        '"-Infinity"',
    )
    return pc.if_else(pc.is_finite(array), texts, names)


def _plain(array: pa.Array) -> pa.Array:
    return array.cast(pa.string())


def _since_1970(array: pa.Array) -> pa.Array:
    days = pa.types.is_date32(array.type)
    return array.cast(pa.int32() if days else pa.int64()).cast(pa.string())


def _binary(array: pa.Array) -> pa.Array:
    # Arrow knows no base64, so this goes value by value.
    encoded = [
        None if v is None else base64.b64encode(v).decode("ascii") for v in array.to_pylist()
    ]
    return _where_valid(array, _join(['"', pa.array(encoded, pa.string()), '"']))


_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (pa.types.is_string, _string),
    (pa.types.is_boolean, _plain),
    (pa.types.is_integer, _plain),
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, _plain),
    (pa.types.is_timestamp, _since_1970),
    (pa.types.is_date32, _since_1970),
    (pa.types.is_binary, _binary),
    (pa.types.is_struct, _struct),
    (pa.types.is_list, _list),
    (pa.types.is_map, _map),
)
