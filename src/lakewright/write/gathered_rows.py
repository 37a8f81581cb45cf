"""The rows of one partition while a task gathers and writes them, in bounded memory.

Above a limit the rows are in a local file, except for the columns that decide which file group each
row goes to. The rows of file groups are then taken from the file in pieces, for several small file
groups at once. At any time, memory holds one piece, or the rows of one file group if a caller
combines them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lakewright.utils.arrow_rows import RowNumbers, take_rows
from lakewright.write.spill import MAX_BUFFERED_BYTES, SpillBuffer, SpillFile

# Rows of file groups that are taken together. More pieces than this would need too many files.
PIECE_BYTES = 256 << 20
_MAX_PIECES = 200


@dataclass
class GatheredRows:
    """Collects the rows of one partition: the columns `kept` in memory, others also in `folder`."""

    kept: Callable[[pa.Schema], Sequence[str]]
    folder: str | None = None
    max_bytes: int = MAX_BUFFERED_BYTES
    nbytes: int = 0
    _count: int = 0
    _kept: list[pa.Table] = field(default_factory=list)
    _buffered: list[pa.Table] = field(default_factory=list)
    _buffered_bytes: int = 0
    _file: SpillFile | None = None

    @classmethod
    def of(
        cls,
        tables: Iterable[pa.Table],
        kept: Callable[[pa.Schema], Sequence[str]],
        folder: str | None = None,
    ) -> GatheredRows:
        """Gather the rows of some tables."""
        rows = cls(kept, folder)
        for table in tables:
            rows.add(table)
        return rows

    def add(self, rows: pa.Table) -> None:
        """Add rows of the same schema as all previous ones."""
        self._kept.append(rows.select(self.kept(rows.schema)))
        self._buffered.append(rows)
        size = rows.nbytes
        self._count += len(rows)
        self.nbytes += size
        self._buffered_bytes += size
        if self._buffered_bytes >= self.max_bytes:
            if self._file is None:
                self._file = SpillFile(self.folder)
            self._file.write(self._buffered)
            self._buffered, self._buffered_bytes = [], 0

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        """Free the memory and the local file."""
        self._kept, self._buffered = [], []
        if self._file is not None:
            self._file.close()

    def columns(self) -> pa.Table:
        """Return the columns `kept` of all rows."""
        return pa.concat_tables(self._kept)

    def tables(self) -> Iterator[pa.Table]:
        """Return all rows, in the order in which they were added."""
        if self._file is not None:
            yield from self._file.tables()
        yield from self._buffered

    def groups(self, groups: Sequence[RowNumbers]) -> Generator[Iterator[pa.Table], None, None]:
        """Return for each group of rows, given by their numbers, its rows in pieces.

        Use the pieces of a group before those of the next group. A row may be in one group only.
        """
        segments = self._segments(groups)
        upcoming: tuple[int, pa.Table] | None = None
        ended = False

        def pieces(number: int) -> Iterator[pa.Table]:
            nonlocal upcoming, ended
            while not ended:
                if upcoming is None:
                    upcoming = next(segments, None)
                    ended = upcoming is None
                if upcoming is None or upcoming[0] != number:
                    return
                table, upcoming = upcoming[1], None
                yield table

        for number in range(len(groups)):
            current = pieces(number)
            yield current
            for _ in current:
                continue

    def _segments(self, groups: Sequence[RowNumbers]) -> Iterator[tuple[int, pa.Table]]:
        """Return the rows of the groups in pieces, with the number of the group of each piece."""
        total_bytes = max(self.nbytes, 1)
        piece_bytes = max(PIECE_BYTES, total_bytes // _MAX_PIECES)
        step = max(1, self._count * piece_bytes // total_bytes)
        plan = _pieces([len(group) for group in groups], step)
        numbers = [
            np.concatenate([groups[number][start:stop] for number, start, stop in piece])
            for piece in plan
        ]
        for piece, rows in zip(plan, self._parts(numbers), strict=True):
            at = 0
            for number, start, stop in piece:
                yield number, rows.slice(at, stop - start)
                at += stop - start

    def _parts(self, parts: Sequence[RowNumbers]) -> Iterator[pa.Table]:
        """Return the rows with these numbers, in this order, as a table for each part."""
        if not parts:
            return
        if self._file is None:
            rows = pa.concat_tables(self._buffered)
            for at in parts:
                yield take_rows(rows, at)
            return
        part_of_row = np.full(self._count, -1, np.int32)
        for number, at in enumerate(parts):
            part_of_row[at] = number
        with ExitStack() as stack:
            share = self.max_bytes // len(parts)
            buffers = [stack.enter_context(closing(SpillBuffer(share, self.folder))) for _ in parts]
            first = 0
            for table in self.tables():
                wanted = part_of_row[first : first + len(table)]
                for number in np.unique(wanted[wanted >= 0]).tolist():
                    buffers[number].add(take_rows(table, np.flatnonzero(wanted == number)))
                first += len(table)
            for buffer, at in zip(buffers, parts, strict=True):
                with closing(buffer):
                    # The buffer has the rows in the order of their numbers.
                    place = np.empty(len(at), np.int64)
                    place[np.argsort(at, kind="stable")] = np.arange(len(at))
                    yield take_rows(buffer.table(), place)


Segment = tuple[int, int, int]


def _pieces(sizes: Sequence[int], step: int) -> list[list[Segment]]:
    """Cut groups of rows into pieces of at most `step` rows; small groups share a piece.

    Each piece is a list of (group, first row, end) within the groups.

    >>> _pieces([2, 1, 5, 0, 1], 3)
    [[(0, 0, 2), (1, 0, 1)], [(2, 0, 3)], [(2, 3, 5), (4, 0, 1)]]
    """
    plan: list[list[Segment]] = []
    room = 0
    for number, size in enumerate(sizes):
        start = 0
        while start < size:
            if not room:
                plan.append([])
                room = step
            stop = min(size, start + room)
            plan[-1].append((number, start, stop))
            room -= stop - start
            start = stop
    return plan
