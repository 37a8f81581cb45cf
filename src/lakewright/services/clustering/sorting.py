"""Rows in order, however many they are: what does not fit into memory is cut up on disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from lakewright.services.clustering.ordering import Ordering, Splitter
from lakewright.write.gather import GatheredRows, pieces

# Each piece of a sort has a file open.
_MOST_PIECES = 256
_SAMPLE_ROWS = 100_000
# What is handed on at once: files are closed between, and so come to their size within as much.
_HANDED_BYTES = 8 << 20

# The rows of some columns, or of all; may be asked for again.
Rows = Generator[pa.Table, None, None]
Reader = Callable[[Sequence[str] | None], Rows]


def in_order(read: Reader, ordering: Ordering, most_bytes: int) -> Rows:
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
    splitter = Splitter.of(ordering, sample.rows, max(2, min(_MOST_PIECES, wanted)))
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
    tables: Iterator[pa.Table], splitter: Splitter, most_bytes: int
) -> Iterator[pa.Table]:
    count = splitter.pieces
    with ExitStack() as stack:
        piles = [
            stack.enter_context(closing(GatheredRows(most_bytes // count))) for _ in range(count)
        ]
        filled: set[int] = set()
        for table in tables:
            numbers = splitter.deal(table)
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
