"""Sorts the rows of a clustering: linearly by columns, or along a Z-order or Hilbert curve.

A query that filters on a column skips most files if each file has a narrow range of its values.
Linear sorting achieves that for the first column only, a space-filling curve for all columns, with
somewhat wider ranges. Rows that do not fit in memory are range-partitioned into spill files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError
from lakewright.utils.arrow_rows import split_by_size, take_rows
from lakewright.write.spill import SpillBuffer

Indexes = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint64]
Numbers = TypeVar("Numbers", Indexes, Codes)

_CODE_BITS = 64
# Enough steps per axis to separate the files of a clustering group; more would not help queries.
_MAX_AXIS_BITS = 16
_MAX_BOUNDARIES = 1 << 15


class Layout(StrEnum):
    """How rows are sorted, by Hudi's names."""

    LINEAR = "LINEAR"
    ZORDER = "ZORDER"
    HILBERT = "HILBERT"


@dataclass(frozen=True, slots=True)
class Ordering:
    """Sorts rows by columns, which may be fields of structs (`a.b`); nulls come first."""

    columns: tuple[str, ...]
    layout: Layout = Layout.LINEAR

    @property
    def sources(self) -> tuple[str, ...]:
        """The top-level columns that contain the sort columns."""
        return tuple(dict.fromkeys(name.split(".")[0] for name in self.columns))

    def check(self, schema: pa.Schema) -> None:
        """Raise InvalidError if a column does not exist, or its values cannot be sorted."""
        # `Schema.empty_table` imports pandas, and this may run under the lock of the table.
        empty = pa.Table.from_batches([], schema)
        for name in self.columns:
            try:
                pc.rank(_column(empty, name))
            except (pa.ArrowException, KeyError) as error:
                columns = list(schema.names)
                raise InvalidError(
                    "rows cannot be sorted by this column", column=name, columns=columns
                ) from error

    def keys(self, rows: pa.Table) -> list[pa.ChunkedArray]:
        """The values of the sort columns."""
        return [_column(rows, name) for name in self.columns]

    def indexes(self, rows: pa.Table) -> Indexes:
        """The row indexes in sorted order; the sort is stable."""
        keys = self.keys(rows)
        if self.layout is Layout.LINEAR:
            return np.lexsort([_ranks(key) for key in reversed(keys)])
        codes = curve_codes(keys, [sorted_distinct_values(key) for key in keys], self.layout)
        return np.argsort(codes, kind="stable")


@dataclass(frozen=True)
class RangePartitioner:
    """Assigns rows to pieces: every row of a piece sorts after, or equal to, those of earlier ones.

    The bounds of the pieces come from a sample of the rows. Rows with equal keys may be assigned to
    several pieces, so that a frequent value does not make one piece larger than the others.
    """

    ordering: Ordering
    scales: tuple[pa.Array, ...]
    splits: pa.Table
    split_codes: Codes

    @classmethod
    def from_sample(cls, ordering: Ordering, sample: pa.Table, pieces: int) -> RangePartitioner:
        """A partitioner into `pieces` pieces of about equal size."""
        keys = ordering.keys(sample)
        positions = np.arange(1, pieces) * len(sample) // pieces
        if ordering.layout is Layout.LINEAR:
            bounds = sample.take(pa.array(ordering.indexes(sample)[positions]))
            return cls(ordering, (), bounds, np.zeros(0, np.uint64))
        scales = tuple(sorted_distinct_values(key) for key in keys)
        codes = np.sort(curve_codes(keys, scales, ordering.layout))
        return cls(ordering, scales, sample.slice(0, 0), codes[positions])

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return max(len(self.splits), len(self.split_codes)) + 1

    def assign(self, rows: pa.Table) -> Indexes:
        """The number of the piece of each row."""
        if self.ordering.layout is Layout.LINEAR:
            return _assign_pieces(*self._linear_codes(rows))
        return _assign_pieces(self._codes(rows), self.split_codes)

    def indexes(self, rows: pa.Table) -> Indexes:
        """The row indexes of one piece in sorted order."""
        if self.ordering.layout is Layout.LINEAR:
            return self.ordering.indexes(rows)
        return np.argsort(self._codes(rows), kind="stable")

    def _codes(self, rows: pa.Table) -> Codes:
        return curve_codes(self.ordering.keys(rows), self.scales, self.ordering.layout)

    def _linear_codes(self, rows: pa.Table) -> tuple[Indexes, Indexes]:
        """Numbers for rows and for bounds that compare with each other as these do.

        Odd numbers are rows that equal a bound in the columns so far, even ones are rows between
        bounds; only the former depend on the next column.
        """
        codes, splits = np.ones(len(rows), np.int64), np.ones(len(self.splits), np.int64)
        pairs = zip(self.ordering.keys(rows), self.ordering.keys(self.splits), strict=True)
        for key, bound in pairs:
            boundaries = sorted_distinct_values(bound)
            width = 2 * len(boundaries) + 2
            step = np.where(codes % 2 == 1, _key_positions(key, boundaries), 0)
            codes, splits = (
                codes * width + step,
                splits * width + _key_positions(bound, boundaries),
            )
            distinct = np.unique(splits)
            codes, splits = _positions(distinct, codes), _positions(distinct, splits)
        return codes, splits


def sorted_distinct_values(column: pa.ChunkedArray) -> pa.Array:
    """The distinct values of a column, sorted; if there are very many, an even selection."""
    distinct = pc.drop_null(pc.unique(column))
    if isinstance(distinct, pa.ChunkedArray):
        distinct = distinct.combine_chunks()
    ordered = distinct.take(pc.array_sort_indices(distinct))
    if len(ordered) <= _MAX_BOUNDARIES:
        return ordered
    return ordered.take(
        pa.array(np.linspace(0, len(ordered) - 1, _MAX_BOUNDARIES).astype(np.int64))
    )


def curve_codes(
    keys: Sequence[pa.ChunkedArray], scales: Sequence[pa.Array], layout: Layout
) -> Codes:
    """The position of each row on a curve; `scales` has the values that divide each axis."""
    used = min(len(keys), _CODE_BITS)
    bits = min(_MAX_AXIS_BITS, _CODE_BITS // used)
    axes = [_axis(keys[index], scales[index], bits) for index in range(used)]
    return interleave(hilbert_axes(axes, bits) if layout is Layout.HILBERT else axes, bits)


def interleave(axes: Sequence[Codes], bits: int) -> Codes:
    """Interleave the bits of several numbers, the highest bit of each first."""
    code = np.zeros_like(axes[0])
    one = np.uint64(1)
    for bit in reversed(range(bits)):
        for axis in axes:
            code = (code << one) | ((axis >> np.uint64(bit)) & one)
    return code


def hilbert_axes(axes: Sequence[Codes], bits: int) -> list[Codes]:
    """Transform coordinates so that their interleaved bits are the position on a Hilbert curve.

    Skilling's transform: undo the rotations and reflections of the cells, from the largest cell to
    the smallest, then Gray-encode the result.
    """
    turned = [axis.copy() for axis in axes]
    for bit in reversed(range(1, bits)):
        high, below = np.uint64(1 << bit), np.uint64((1 << bit) - 1)
        for axis in turned:
            is_far = (axis & high) != 0
            swapped = np.where(is_far, np.uint64(0), (turned[0] ^ axis) & below)
            # Exchanging the first axis with itself must change nothing.
            if axis is not turned[0]:
                axis ^= swapped
                turned[0] ^= swapped
            turned[0] ^= np.where(is_far, below, np.uint64(0))
    for previous, axis in pairwise(turned):
        axis ^= previous
    parity = np.zeros_like(turned[0])
    for bit in reversed(range(1, bits)):
        is_set = (turned[-1] & np.uint64(1 << bit)) != 0
        parity ^= np.where(is_set, np.uint64((1 << bit) - 1), np.uint64(0))
    return [axis ^ parity for axis in turned]


def _axis(key: pa.ChunkedArray, boundaries: pa.Array, bits: int) -> Codes:
    """The coordinate of each value, scaled to `bits` bits."""
    position = _key_positions(key, boundaries).astype(np.uint64)
    return position * np.uint64((1 << bits) - 1) // np.uint64(2 * len(boundaries) + 1)


def _assign_pieces(codes: Numbers, splits: Numbers) -> Indexes:
    """The piece of each row; rows that equal several bounds are spread over the pieces between."""
    first = np.searchsorted(splits, codes, "left")
    last = np.searchsorted(splits, codes, "right")
    return first + np.arange(len(codes)) % (last - first + 1)


def _key_positions(key: pa.ChunkedArray, boundaries: pa.Array) -> Indexes:
    """The positions of values among boundaries: 0 for nulls, even if equal to one, else odd."""
    all_ranks = _ranks(pa.chunked_array([boundaries, *key.chunks], key.type))
    boundary_ranks, ranks = all_ranks[: len(boundaries)], all_ranks[len(boundaries) :]
    return np.where(ranks == 0, 0, _positions(boundary_ranks, ranks) + 1)


def _positions(boundaries: Indexes, values: Indexes) -> Indexes:
    """The positions of values among sorted boundaries: odd if equal to one, else even."""
    return np.searchsorted(boundaries, values, "left") + np.searchsorted(
        boundaries, values, "right"
    )


def _ranks(column: pa.ChunkedArray) -> Indexes:
    """The dense rank of each value; nulls are 0, NaN comes last."""
    ranks: Indexes = pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
    if column.null_count:
        nulls = np.asarray(pc.is_null(column).to_numpy(), dtype=bool)
        ranks = np.where(nulls, 0, ranks)
    return ranks


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    head, *fields = [name] if name in rows.column_names else name.split(".")
    column = rows.column(head)
    return pc.struct_field(column, fields) if fields else column


# Sorting of rows, in memory or with spill files.


# Each piece of a sort keeps a file open.
_MAX_PIECES = 256
_SAMPLE_ROWS = 100_000
# The size of the tables returned. A writer starts a new file only between two of them, so a file
# exceeds its target size by no more than this.
_OUTPUT_BYTES = 8 << 20

# A `Reader` reads the rows with some columns, or with all; it can be called repeatedly.
Rows = Generator[pa.Table, None, None]
Reader = Callable[[Sequence[str] | None], Rows]


def sorted_rows(
    read: Reader, ordering: Ordering, max_bytes: int, folder: str | None = None
) -> Rows:
    """Return all rows in sorted order, in tables of limited size.

    Rows of more than `max_bytes` are sorted in pieces. The bounds of the pieces come from a
    sample, for which the sort columns are read separately first.
    """
    rows = read(None)
    buffered: deque[pa.Table] = deque()
    size = 0
    for table in rows:
        buffered.append(table)
        size += table.nbytes
        if size >= max_bytes:
            break
    else:
        if buffered:
            combined = pa.concat_tables(buffered)
            buffered.clear()
            yield from split_by_size(take_rows(combined, ordering.indexes(combined)), _OUTPUT_BYTES)
        return
    sample = _take_sample(read(ordering.sources))
    row_bytes = size / sum(map(len, buffered))
    # Half of the memory is for sorting a piece.
    count = -(-int(sample.total_rows * row_bytes) // max(1, max_bytes // 2))
    partitioner = RangePartitioner.from_sample(
        ordering, sample.rows, max(2, min(_MAX_PIECES, count))
    )
    yield from _sorted_by_pieces(chain(_drained(buffered), rows), partitioner, max_bytes, folder)


@dataclass(frozen=True, slots=True)
class _Sample:
    rows: pa.Table
    total_rows: int


def _take_sample(tables: Iterator[pa.Table]) -> _Sample:
    """A sample of the rows at equal distances, and the number of all rows."""
    samples: list[pa.Table] = []
    total_rows, sampled_rows, step = 0, 0, 1
    for table in tables:
        chosen = np.arange(-total_rows % step, len(table), step)
        samples.append(take_rows(table, chosen))
        total_rows += len(table)
        sampled_rows += len(chosen)
        if sampled_rows > 2 * _SAMPLE_ROWS:
            sampled = pa.concat_tables(samples)
            samples = [take_rows(sampled, np.arange(0, len(sampled), 2))]
            sampled_rows, step = len(samples[0]), step * 2
    return _Sample(pa.concat_tables(samples), total_rows)


def _sorted_by_pieces(
    tables: Iterator[pa.Table],
    partitioner: RangePartitioner,
    max_bytes: int,
    folder: str | None,
) -> Iterator[pa.Table]:
    """Partition rows into spill buffers, then sort one buffer after the other."""
    count = partitioner.pieces
    with ExitStack() as stack:
        buffers = [
            stack.enter_context(closing(SpillBuffer(max_bytes // count, folder)))
            for _ in range(count)
        ]
        filled: set[int] = set()
        for table in tables:
            numbers = partitioner.assign(table)
            order = np.argsort(numbers, kind="stable")
            present, starts = np.unique(numbers[order], return_index=True)
            for number, chosen in zip(present, np.split(order, starts[1:]), strict=True):
                buffers[number].add(take_rows(table, chosen))
                filled.add(int(number))
        for number in sorted(filled):
            with closing(buffers[number]) as buffer:
                rows = buffer.table()
                yield from split_by_size(take_rows(rows, partitioner.indexes(rows)), _OUTPUT_BYTES)


def _drained(tables: deque[pa.Table]) -> Iterator[pa.Table]:
    """The tables of a queue; each is removed, so that its memory can be freed."""
    while tables:
        yield tables.popleft()
