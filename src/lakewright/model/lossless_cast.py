"""A check, before writing, that casting rows to the table's types loses nothing.

A cast truncates timestamps to the unit of the target type and rounds integers that a float cannot
represent. Readers accept this when the type of a column was widened. A write must not change
values, least of all those of key fields.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError

# The first double beyond the range of int64: the largest int64 values are rounded up to it.
_BEYOND_LONG = 2.0**63

_Leaf = tuple[str, pa.Array, pa.DataType]


def check_lossless(rows: pa.Table, schema: pa.Schema) -> None:
    """Check that no value changes when rows are cast to the types of `schema`.

    Raises:
        InvalidError: with the column, one of its values, and how many would change.
    """
    incoming = rows.schema
    for field in schema:
        index = incoming.get_field_index(field.name)
        if index < 0 or incoming.field(index).type == field.type:
            continue
        for chunk in rows.column(index).chunks:
            for path, values, kind in _leaf_arrays(chunk, field.type, field.name):
                _check_values(path, values, kind)


def _check_values(column: str, values: pa.Array, kind: pa.DataType) -> None:
    changed = _changed(values, kind)
    lossy = values.slice(0, 0) if changed is None else values.filter(changed)
    if len(lossy):
        raise InvalidError(
            f"a value would change in the type that the table has for it: {_advice(kind)}; nothing "
            "was written",
            column=column,
            value=lossy[:1].cast(pa.string())[0].as_py(),
            rows=len(lossy),
            of=len(values),
            stored=str(kind),
            incoming=str(values.type),
        )


def _leaf_arrays(array: pa.Array, kind: pa.DataType, path: str) -> Iterator[_Leaf]:
    """Yield the non-nested arrays within an array that are cast, with their column paths."""
    if array.type == kind:
        return
    if pa.types.is_dictionary(array.type):
        yield from _leaf_arrays(array.dictionary_decode(), kind, path)
    elif pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        names = [field.name for field in array.type]
        for field in kind:
            if field.name in names:
                inner = pc.struct_field(array, [names.index(field.name)])
                yield from _leaf_arrays(inner, field.type, f"{path}.{field.name}")
    elif pa.types.is_map(kind) and pa.types.is_map(array.type):
        # The children of a sliced array are not sliced: copy it.
        flat_copy = array.take(pa.array(np.arange(len(array))))
        yield from _leaf_arrays(flat_copy.keys, kind.key_type, path)
        yield from _leaf_arrays(flat_copy.items, kind.item_type, path)
    elif pa.types.is_list(kind) and not pa.types.is_map(array.type):
        if pa.types.is_nested(array.type):
            yield from _leaf_arrays(array.flatten(), kind.value_type, path)
    elif not pa.types.is_nested(kind) and not pa.types.is_nested(array.type):
        yield path, array, kind


def _changed(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return which values a cast changes; None if it cannot change any.

    The values are cast without checks and cast back: those that differ were changed.
    """
    if not (_is_number(values.type) and _is_number(kind)):
        return None
    cast = values.cast(kind, safe=False)
    changed = pc.not_equal(cast.cast(values.type, safe=False), values)
    if pa.types.is_integer(values.type) and pa.types.is_floating(kind):
        # The result of casting a float beyond int64 back depends on the processor.
        changed = pc.or_(changed, pc.greater_equal(cast.cast(pa.float64()), _BEYOND_LONG))
    if pa.types.is_floating(values.type):
        changed = pc.and_(changed, pc.invert(pc.is_nan(values)))
    return changed


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
    )


def _advice(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        unit = {"s": "SECOND", "ms": "MILLISECOND"}.get(kind.unit, "MICROSECOND")
        return f"cut the column yourself, as with date_trunc('{unit}', column) in Spark"
    return "cast the column yourself if the difference does not matter, or write it to another"
