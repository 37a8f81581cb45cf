"""Values that a column's type cannot hold as they are, and refusing rows that have some.

Casting cuts times to the unit of their type and rounds whole numbers that a float has no digits
for. On reading that is what the wider type of a column means. Rows that are written must not change
on their way, least of all where they become keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError

# The first double beyond 64 bits: the whole numbers right below it are rounded up to it.
_BEYOND_LONG = 2.0**63

_Leaf = tuple[str, pa.Array, pa.DataType]


def check_lossless(rows: pa.Table, schema: pa.Schema) -> None:
    """Refuse rows of which a value would change in the types of `schema`.

    Raises:
        InvalidError: with the column, one of its values, and how many would change.
    """
    incoming = rows.schema
    for field in schema:
        index = incoming.get_field_index(field.name)
        if index < 0 or incoming.field(index).type == field.type:
            continue
        for chunk in rows.column(index).chunks:
            for path, values, kind in _leaves(chunk, field.type, field.name):
                _refuse(path, values, kind)


def _refuse(column: str, values: pa.Array, kind: pa.DataType) -> None:
    changed = _changed(values, kind)
    found = values.slice(0, 0) if changed is None else values.filter(changed)
    if len(found):
        raise InvalidError(
            f"a value would change in the type that the table has for it: {_advice(kind)}; nothing "
            "was written",
            column=column,
            value=found[:1].cast(pa.string())[0].as_py(),
            rows=len(found),
            of=len(values),
            stored=str(kind),
            incoming=str(values.type),
        )


def _leaves(array: pa.Array, kind: pa.DataType, path: str) -> Iterator[_Leaf]:
    """The plain values in an array that are to have another type; those of maps have no names."""
    if array.type == kind:
        return
    if pa.types.is_dictionary(array.type):
        yield from _leaves(array.dictionary_decode(), kind, path)
    elif pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        names = [field.name for field in array.type]
        for field in kind:
            if field.name in names:
                inner = pc.struct_field(array, [names.index(field.name)])
                yield from _leaves(inner, field.type, f"{path}.{field.name}")
    elif pa.types.is_map(kind) and pa.types.is_map(array.type):
        # The parts of a slice are not sliced with it.
        whole = array.take(pa.array(np.arange(len(array))))
        yield from _leaves(whole.keys, kind.key_type, path)
        yield from _leaves(whole.items, kind.item_type, path)
    elif pa.types.is_list(kind) and not pa.types.is_map(array.type):
        if pa.types.is_nested(array.type):
            yield from _leaves(array.flatten(), kind.value_type, path)
    elif not pa.types.is_nested(kind) and not pa.types.is_nested(array.type):
        yield path, array, kind


def _changed(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Which values are others once they have the type; None if none can be.

    What an unchecked cast makes of them is cast back: where that differs something was lost.
    """
    if not (_is_number(values.type) and _is_number(kind)):
        return None
    cast = values.cast(kind, safe=False)
    lost = pc.not_equal(cast.cast(values.type, safe=False), values)
    if pa.types.is_integer(values.type) and pa.types.is_floating(kind):
        # Machines differ in what they make of a float that has no place in 64 bits.
        lost = pc.or_(lost, pc.greater_equal(cast.cast(pa.float64()), _BEYOND_LONG))
    if pa.types.is_floating(values.type):
        lost = pc.and_(lost, pc.invert(pc.is_nan(values)))
    return lost


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
