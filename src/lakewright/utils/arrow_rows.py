"""Takes rows, finds keys and splits tables within the limits of Arrow.

An Arrow array of strings holds at most 2 GiB of text. Concatenating the chunks of a column, which
Arrow itself does to take rows from it, fails beyond that, and copies the whole column below it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

RowNumbers = npt.NDArray[np.int64]

# No array is made larger than this. Arrow's limit is twice as high: rows differ in size.
MAX_CHUNK_BYTES = 1 << 30
# Below this size, taking rows from several chunks costs more than concatenating them.
_SMALL_BYTES = 1 << 20

_LARGE_TYPES = {
    pa.string(): pa.large_string(),
    pa.binary(): pa.large_binary(),
}
_SMALL_TYPES = {large: small for small, large in _LARGE_TYPES.items()}


def take_rows(rows: pa.Table, at: RowNumbers) -> pa.Table:
    """Return the rows with these numbers, in this order; -1 stands for a row of nulls.

    Only chunks that contain one of the rows are read. Where consecutive rows are taken in their
    order, nothing is copied.
    """
    if not len(at):
        return rows.slice(0, 0)
    if rows.nbytes <= min(_SMALL_BYTES, MAX_CHUNK_BYTES):
        return rows.take(pa.array(at, mask=at < 0))
    batches = rows.to_batches()
    ends = np.cumsum([batch.num_rows for batch in batches])
    step = max(1, int(len(rows) * MAX_CHUNK_BYTES / (2 * rows.nbytes)))
    parts: list[pa.Table] = []
    for start in range(0, len(at), step):
        parts += _taken(batches, ends, at[start : start + step])
    return pa.concat_tables(parts)


def as_dictionary(column: pa.Array) -> pa.DictionaryArray:
    """Return a column as an array of numbers and the distinct values that they stand for."""
    is_coded = pa.types.is_dictionary(column.type)
    return column if is_coded else column.dictionary_encode()


def take_values(column: pa.ChunkedArray, at: RowNumbers) -> pa.ChunkedArray:
    """Return the values of a column at these places; -1 stands for null."""
    return take_rows(pa.table({"values": column}), at).column(0)


def _taken(batches: list[pa.RecordBatch], ends: RowNumbers, at: RowNumbers) -> Iterator[pa.Table]:
    in_order = bool(np.all(at[1:] >= at[:-1]))
    order = None if in_order else np.argsort(at, kind="stable")
    gathered = _gathered(batches, ends, at if order is None else at[order])
    if order is None:
        yield gathered
        return
    if gathered.nbytes > MAX_CHUNK_BYTES and len(at) > 1:
        middle = len(at) // 2
        yield from _taken(batches, ends, at[:middle])
        yield from _taken(batches, ends, at[middle:])
        return
    place = np.empty(len(at), np.int64)
    place[order] = np.arange(len(at))
    yield gathered.take(pa.array(place))


def _gathered(batches: list[pa.RecordBatch], ends: RowNumbers, ascending: RowNumbers) -> pa.Table:
    """Return rows whose numbers ascend, as slices of the batches or copies from them."""
    bounds = np.searchsorted(ascending, np.append(0, ends))
    schema = batches[0].schema
    missing = int(bounds[0])
    parts = [_null_rows(missing, schema)] if missing else []
    for number in np.flatnonzero(np.diff(bounds)):
        batch = batches[number]
        at = ascending[bounds[number] : bounds[number + 1]] - (ends[number] - batch.num_rows)
        if np.all(np.diff(at) == 1):
            parts.append(batch.slice(int(at[0]), len(at)))
        else:
            parts.append(batch.take(pa.array(at)))
    return pa.Table.from_batches(parts, schema)


def _null_rows(count: int, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.nulls(count, field.type) for field in schema], schema=schema
    )


def as_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array: one of a large type if another one could not hold it."""
    if isinstance(column, pa.Array):
        return column
    if column.nbytes > MAX_CHUNK_BYTES and column.type in _LARGE_TYPES:
        column = column.cast(_LARGE_TYPES[column.type])
    return column.combine_chunks()


def without_large_type(array: pa.Array) -> pa.Array:
    """Return an array of a large type in the ordinary type, if that can hold it."""
    small = _SMALL_TYPES.get(array.type)
    return array if small is None or array.nbytes > MAX_CHUNK_BYTES else array.cast(small)


def cast_in_pieces(array: pa.Array, kind: pa.DataType) -> list[pa.Array]:
    """Return an array in another type: in several pieces, if it is of a large type."""
    if array.type not in _SMALL_TYPES:
        return [array.cast(kind)]
    pieces = split_by_size(pa.table({"values": array}), MAX_CHUNK_BYTES // 2)
    return [chunk for piece in pieces for chunk in piece.column(0).cast(kind).chunks]


def index_in(values: pa.Array | pa.ChunkedArray, keys: pa.Array) -> pa.Array:
    """Return for each value its position in `keys`, null if it is not among them."""
    values, keys = _in_one_type(values, keys)
    index = pc.index_in(values, value_set=keys)
    return index.combine_chunks() if isinstance(index, pa.ChunkedArray) else index


def is_in(values: pa.Array | pa.ChunkedArray, keys: pa.Array) -> pa.Array | pa.ChunkedArray:
    """Return for each value whether it is in `keys`."""
    values, keys = _in_one_type(values, keys)
    return pc.is_in(values, value_set=keys)


def _in_one_type(
    values: pa.Array | pa.ChunkedArray, keys: pa.Array
) -> tuple[pa.Array | pa.ChunkedArray, pa.Array]:
    """Return values and keys in the large type, if one of them is."""
    if values.type == keys.type:
        return values, keys
    if values.type in _SMALL_TYPES:
        return values, keys.cast(values.type)
    return values.cast(keys.type), keys


def split_by_size(rows: pa.Table, max_bytes: int) -> Iterator[pa.Table]:
    """Split rows into pieces of about `max_bytes`, none of much more; at least one row each."""
    size = rows.nbytes
    step = max(1, int(len(rows) * max_bytes / max(size, 1)))
    for start in range(0, len(rows), step):
        piece = rows.slice(start, step)
        # Rows differ in size: a piece may have those that are larger than the others.
        if len(piece) > 1 and piece.nbytes > 2 * max_bytes:
            yield from split_by_size(piece, max_bytes)
        else:
            yield piece
