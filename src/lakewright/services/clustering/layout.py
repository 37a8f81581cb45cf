"""In which order clustered rows are written: by columns, or along a curve through all of them.

A query that filters on one of several columns skips files best if each file spans little of each
column. Rows sorted by columns do that for the first of them; a curve that fills the space of all
columns does it for each, a little less.
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
from lakewright.write.spill import SpillBuffer, pieces

Indexes = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint64]
Numbers = TypeVar("Numbers", Indexes, Codes)

_CODE_BITS = 64
# More steps along an axis than a group has files: finer ones cost time and help no query.
_MOST_AXIS_BITS = 16
_MOST_MARKS = 1 << 15


class Layout(StrEnum):
    """How rows are put in order, in Hudi's words."""

    LINEAR = "LINEAR"
    ZORDER = "ZORDER"
    HILBERT = "HILBERT"


@dataclass(frozen=True, slots=True)
class Ordering:
    """Rows by these columns, which may be fields of structs (`a.b`); nulls come first."""

    columns: tuple[str, ...]
    layout: Layout = Layout.LINEAR

    @property
    def sources(self) -> tuple[str, ...]:
        """The table's columns that are needed to tell the order."""
        return tuple(dict.fromkeys(name.split(".")[0] for name in self.columns))

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that the table lacks, or whose values have no order."""
        empty = schema.empty_table()
        for name in self.columns:
            try:
                pc.rank(_column(empty, name))
            except (pa.ArrowException, KeyError) as error:
                known = list(schema.names)
                raise InvalidError(
                    "rows cannot be sorted by this column", column=name, columns=known
                ) from error

    def keys(self, rows: pa.Table) -> list[pa.ChunkedArray]:
        """The columns that the order depends on."""
        return [_column(rows, name) for name in self.columns]

    def indexes(self, rows: pa.Table) -> Indexes:
        """The positions of rows in their order; equal ones stay as they are."""
        keys = self.keys(rows)
        if self.layout is Layout.LINEAR:
            return np.lexsort([_ranks(key) for key in reversed(keys)])
        codes = curve_codes(keys, [marks_of(key) for key in keys], self.layout)
        return np.argsort(codes, kind="stable")


@dataclass(frozen=True)
class RangePartitioner:
    """Deals rows out to pieces: no row of a piece belongs before a row of an earlier one.

    Made from a sample of the rows. Rows that are equal in order may go to several pieces, so that
    none becomes larger than the others because a value is frequent.
    """

    ordering: Ordering
    scales: tuple[pa.Array, ...]
    splits: pa.Table
    split_codes: Codes

    @classmethod
    def from_sample(cls, ordering: Ordering, sample: pa.Table, pieces: int) -> RangePartitioner:
        """Bounds between so many pieces that are about equally large."""
        keys = ordering.keys(sample)
        at = np.arange(1, pieces) * len(sample) // pieces
        if ordering.layout is Layout.LINEAR:
            bounds = sample.take(pa.array(ordering.indexes(sample)[at]))
            return cls(ordering, (), bounds, np.zeros(0, np.uint64))
        scales = tuple(marks_of(key) for key in keys)
        codes = np.sort(curve_codes(keys, scales, ordering.layout))
        return cls(ordering, scales, sample.slice(0, 0), codes[at])

    @property
    def pieces(self) -> int:
        """How many pieces there are."""
        return max(len(self.splits), len(self.split_codes)) + 1

    def assign(self, rows: pa.Table) -> Indexes:
        """The number of the piece of each row."""
        if self.ordering.layout is Layout.LINEAR:
            return _spread(*self._linear(rows))
        return _spread(self._codes(rows), self.split_codes)

    def indexes(self, rows: pa.Table) -> Indexes:
        """The positions of the rows of one piece in their order."""
        if self.ordering.layout is Layout.LINEAR:
            return self.ordering.indexes(rows)
        return np.argsort(self._codes(rows), kind="stable")

    def _codes(self, rows: pa.Table) -> Codes:
        return curve_codes(self.ordering.keys(rows), self.scales, self.ordering.layout)

    def _linear(self, rows: pa.Table) -> tuple[Indexes, Indexes]:
        """Numbers that compare like rows and bounds do, as far as comparing with bounds goes.

        Odd numbers stand for what is equal to a bound in the columns so far, even ones for what
        lies between; only the former are told apart by the next column.
        """
        codes, splits = np.ones(len(rows), np.int64), np.ones(len(self.splits), np.int64)
        pairs = zip(self.ordering.keys(rows), self.ordering.keys(self.splits), strict=True)
        for key, bound in pairs:
            marks = marks_of(bound)
            width = 2 * len(marks) + 2
            step = np.where(codes % 2 == 1, _against(key, marks), 0)
            codes, splits = codes * width + step, splits * width + _against(bound, marks)
            known = np.unique(splits)
            codes, splits = _between(known, codes), _between(known, splits)
        return codes, splits


def marks_of(column: pa.ChunkedArray) -> pa.Array:
    """The values of a column in order, each once; of very many only some, evenly chosen."""
    distinct = pc.drop_null(pc.unique(column))
    if isinstance(distinct, pa.ChunkedArray):
        distinct = distinct.combine_chunks()
    ordered = distinct.take(pc.array_sort_indices(distinct))
    if len(ordered) <= _MOST_MARKS:
        return ordered
    return ordered.take(pa.array(np.linspace(0, len(ordered) - 1, _MOST_MARKS).astype(np.int64)))


def curve_codes(
    keys: Sequence[pa.ChunkedArray], scales: Sequence[pa.Array], layout: Layout
) -> Codes:
    """The place of each row on a curve; `scales` are the marks that its axes are divided by."""
    used = min(len(keys), _CODE_BITS)
    bits = min(_MOST_AXIS_BITS, _CODE_BITS // used)
    axes = [_axis(keys[at], scales[at], bits) for at in range(used)]
    return interleave(hilbert_axes(axes, bits) if layout is Layout.HILBERT else axes, bits)


def interleave(axes: Sequence[Codes], bits: int) -> Codes:
    """One number of the bits of several, the highest of each first."""
    code = np.zeros_like(axes[0])
    one = np.uint64(1)
    for bit in reversed(range(bits)):
        for axis in axes:
            code = (code << one) | ((axis >> np.uint64(bit)) & one)
    return code


def hilbert_axes(axes: Sequence[Codes], bits: int) -> list[Codes]:
    """Coordinates turned so that their interleaved bits are the place on a Hilbert curve.

    Skilling's transform: the turns and mirrorings of the cells are undone from the largest cell to
    the smallest, and what is left is Gray-coded.
    """
    turned = [axis.copy() for axis in axes]
    for bit in reversed(range(1, bits)):
        high, below = np.uint64(1 << bit), np.uint64((1 << bit) - 1)
        for axis in turned:
            is_far = (axis & high) != 0
            swapped = np.where(is_far, np.uint64(0), (turned[0] ^ axis) & below)
            # The first axis is exchanged with itself, which must change nothing.
            if axis is not turned[0]:
                axis ^= swapped
                turned[0] ^= swapped
            turned[0] ^= np.where(is_far, below, np.uint64(0))
    for before, axis in pairwise(turned):
        axis ^= before
    parity = np.zeros_like(turned[0])
    for bit in reversed(range(1, bits)):
        is_set = (turned[-1] & np.uint64(1 << bit)) != 0
        parity ^= np.where(is_set, np.uint64((1 << bit) - 1), np.uint64(0))
    return [axis ^ parity for axis in turned]


def _axis(key: pa.ChunkedArray, marks: pa.Array, bits: int) -> Codes:
    place = _against(key, marks).astype(np.uint64)
    return place * np.uint64((1 << bits) - 1) // np.uint64(2 * len(marks) + 1)


def _spread(codes: Numbers, splits: Numbers) -> Indexes:
    """The piece of each row: equal to several bounds in a row, it may lie anywhere between them."""
    first = np.searchsorted(splits, codes, "left")
    last = np.searchsorted(splits, codes, "right")
    return first + np.arange(len(codes)) % (last - first + 1)


def _against(key: pa.ChunkedArray, marks: pa.Array) -> Indexes:
    """Where values lie among marks: 0 for nulls, even on a mark, odd between, before and after."""
    together = _ranks(pa.chunked_array([marks, *key.chunks], key.type))
    known, ranks = together[: len(marks)], together[len(marks) :]
    return np.where(ranks == 0, 0, _between(known, ranks) + 1)


def _between(known: Indexes, values: Indexes) -> Indexes:
    """Where values lie among known ones: odd on one of them, even between."""
    return np.searchsorted(known, values, "left") + np.searchsorted(known, values, "right")


def _ranks(column: pa.ChunkedArray) -> Indexes:
    """The rank of each value, equal values alike; nulls are 0. Nan comes last."""
    ranks: Indexes = pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
    if column.null_count:
        nulls = np.asarray(pc.is_null(column).to_numpy(), dtype=bool)
        ranks = np.where(nulls, 0, ranks)
    return ranks


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    head, *fields = [name] if name in rows.column_names else name.split(".")
    column = rows.column(head)
    return pc.struct_field(column, fields) if fields else column


# ------------------------------------------------------------------------------------------------
# Rows in order, however many they are: what does not fit into memory is cut up on disk.


# Each piece of a sort has a file open.
_MOST_PIECES = 256
_SAMPLE_ROWS = 100_000
# What is handed on at once: files are closed between, and so come to their size within as much.
_HANDED_BYTES = 8 << 20

# The rows of some columns, or of all; may be asked for again.
Rows = Generator[pa.Table, None, None]
Reader = Callable[[Sequence[str] | None], Rows]


def sorted_rows(read: Reader, ordering: Ordering, most_bytes: int) -> Rows:
    """All rows in order, a little at a time.

    Rows of more than `most_bytes` are sorted in pieces: where a piece begins is told by a sample,
    for which the columns of the order are read on their own before.
    """
    rows = read(None)
    held: deque[pa.Table] = deque()
    size = 0
    for table in rows:
        held.append(table)
        size += table.nbytes
        if size >= most_bytes:
            break
    else:
        if held:
            whole = pa.concat_tables(held)
            held.clear()
            yield from pieces(whole.take(pa.array(ordering.indexes(whole))), _HANDED_BYTES)
        return
    sample = _take_sample(read(ordering.sources))
    row_bytes = size / sum(map(len, held))
    # Half of the memory is for sorting a piece.
    wanted = -(-int(sample.counted * row_bytes) // max(1, most_bytes // 2))
    splitter = RangePartitioner.from_sample(
        ordering, sample.rows, max(2, min(_MOST_PIECES, wanted))
    )
    yield from _by_pieces(chain(_drained(held), rows), splitter, most_bytes)


@dataclass(frozen=True, slots=True)
class _Sample:
    rows: pa.Table
    counted: int


def _take_sample(tables: Iterator[pa.Table]) -> _Sample:
    """Some of the rows, from beginning to end at equal distances, and how many there are."""
    kept: list[pa.Table] = []
    counted, many, step = 0, 0, 1
    for table in tables:
        chosen = np.arange(-counted % step, len(table), step)
        kept.append(table.take(pa.array(chosen)))
        counted += len(table)
        many += len(chosen)
        if many > 2 * _SAMPLE_ROWS:
            whole = pa.concat_tables(kept)
            kept = [whole.take(pa.array(np.arange(0, len(whole), 2)))]
            many, step = len(kept[0]), step * 2
    return _Sample(pa.concat_tables(kept), counted)


def _by_pieces(
    tables: Iterator[pa.Table], splitter: RangePartitioner, most_bytes: int
) -> Iterator[pa.Table]:
    count = splitter.pieces
    with ExitStack() as stack:
        piles = [
            stack.enter_context(closing(SpillBuffer(most_bytes // count))) for _ in range(count)
        ]
        filled: set[int] = set()
        for table in tables:
            numbers = splitter.assign(table)
            order = np.argsort(numbers, kind="stable")
            present, starts = np.unique(numbers[order], return_index=True)
            for number, chosen in zip(present, np.split(order, starts[1:]), strict=True):
                piles[number].add(table.take(pa.array(chosen)))
                filled.add(int(number))
        for number in sorted(filled):
            with closing(piles[number]) as pile:
                rows = pile.table()
                yield from pieces(rows.take(pa.array(splitter.indexes(rows))), _HANDED_BYTES)


def _drained(held: deque[pa.Table]) -> Iterator[pa.Table]:
    while held:
        yield held.popleft()
