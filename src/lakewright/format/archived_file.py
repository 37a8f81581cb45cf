"""Files of the archived timeline: Parquet, a row for each instant, sorted by requested time.

Rows are in small row groups with the least and greatest value of each time and action, so that a
reader fetches only the row groups and columns that it needs.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakewright.errors import CorruptError
from lakewright.format.avro.schema import load_schema

METADATA, PLAN = "metadata", "plan"
CONTENT = (METADATA, PLAN)

# The end of a file that is read first: enough for the footer of some hundred row groups.
TAIL_BYTES = 64 * 1024
# A row group ends with the first row that reaches one of these. The bytes are uncompressed.
GROUP_ROWS = 1_000
GROUP_BYTES = 4 * 1024 * 1024
# Merging decodes so much of each file at a time.
_BATCH_BYTES = 1024 * 1024
# A file ends with the length of its footer, in four bytes, and with this.
_MAGIC = b"PAR1"
_LENGTH_BYTES = 4 + len(_MAGIC)
_NAMES = ("instantTime", "completionTime", "action")
_SCHEMA = pa.schema(
    [
        pa.field("instantTime", pa.string()),
        pa.field("completionTime", pa.string()),
        pa.field("action", pa.string()),
        pa.field(METADATA, pa.binary()),
        pa.field(PLAN, pa.binary()),
        pa.field("version", pa.int32(), nullable=False),
    ]
)
_FOOTER = {
    "parquet.avro.schema": load_schema("HoodieLSMTimelineInstant").text,
    "writer.model.name": "avro",
}
_WRITER_OPTIONS: dict[str, Any] = {
    "compression": "gzip",
    # As Java: Arrow's default takes half as long again for less than a hundredth of the size.
    "compression_level": 6,
    "use_dictionary": ["action"],
    "write_statistics": list(_NAMES),
    "store_schema": False,
}
_PARQUET_ERRORS = (pa.ArrowException, LookupError, MemoryError, OSError, OverflowError, ValueError)


# After every text, in letters as in bytes.
NO_END = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class ArchivedInstant:
    """One archived instant, with the raw bytes of its completed file and of its plan, if any.

    `metadata` and `plan` are also None if the entry was read without them.
    """

    requested_at: str
    completed_at: str
    action: str
    metadata: bytes | None = None
    plan: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which archived instants to read, and what of each.

    Instants requested in [first, last], and if they are given: only those with one of these
    requested times, only those that completed in [completed_from, completed_until], only these
    actions.
    `content` names the columns to read beside times and actions: `METADATA`, `PLAN`.
    """

    first: str = ""
    last: str = NO_END
    times: frozenset[str] | None = None
    completed_from: str = ""
    completed_until: str = NO_END
    actions: frozenset[str] | None = None
    content: tuple[str, ...] = ()

    @classmethod
    def of_times(cls, times: Collection[str], content: tuple[str, ...] = ()) -> Selection:
        """The instants with one of these requested times, of which there is at least one."""
        return cls(first=min(times), last=max(times), times=frozenset(times), content=content)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read."""
        return (*_NAMES, *self.content)

    def includes(self, entry: ArchivedInstant) -> bool:
        """Whether an entry is selected."""
        return (
            self.first <= entry.requested_at <= self.last
            and (self.times is None or entry.requested_at in self.times)
            and self.completed_from <= entry.completed_at <= self.completed_until
            and (self.actions is None or entry.action in self.actions)
        )

    def overlaps(self, first: str, last: str) -> bool:
        """Whether an instant requested in [first, last] may be selected."""
        return (
            first <= self.last
            and last >= self.first
            and (self.times is None or any(first <= at <= last for at in self.times))
        )


def is_file_end(tail: bytes) -> bool:
    """Whether these may be the last bytes of a Parquet file."""
    return len(tail) >= _LENGTH_BYTES and tail.endswith(_MAGIC)


def footer_length(tail: bytes) -> int:
    """Return how many bytes at the end of a file its footer takes, by the last bytes."""
    return int.from_bytes(tail[-_LENGTH_BYTES : -len(_MAGIC)], "little") + _LENGTH_BYTES


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of a file."""

    offset: int
    length: int


@dataclass(frozen=True)
class ArchivedFileFooter:
    """The footer of a file of `size` bytes: where its row groups are, and what they hold."""

    size: int
    metadata: pq.FileMetaData

    @classmethod
    def parse(cls, tail: bytes, size: int) -> ArchivedFileFooter:
        """Parse the end of a file, which contains the footer.

        Raises:
            CorruptError: it cannot be parsed, or does not fit the size.
        """
        try:
            metadata = pq.read_metadata(pa.BufferReader(tail))
        except _PARQUET_ERRORS as error:
            raise _unreadable(size, error) from error
        # A row takes at least a byte: a damaged row count must not cause a huge allocation.
        if metadata.num_rows > size:
            raise CorruptError("the archived timeline file claims too many rows", size=size)
        return cls(size, metadata)

    def groups(self, selection: Selection) -> list[int]:
        """Return the row groups that may hold a selected instant."""
        return [n for n in range(self.metadata.num_row_groups) if self._may_hold(n, selection)]

    def _may_hold(self, group: int, selection: Selection) -> bool:
        bounds = self._bounds(group)
        requested, completed, action = (bounds.get(name) for name in _NAMES)
        return (
            (requested is None or selection.overlaps(*requested))
            and (completed is None or completed[1] >= selection.completed_from)
            and (completed is None or completed[0] <= selection.completed_until)
            and (
                action is None
                or selection.actions is None
                or any(action[0] <= name <= action[1] for name in selection.actions)
            )
        )

    def _bounds(self, group: int) -> dict[str, tuple[str, str]]:
        """Return the least and greatest value of the columns of a row group that have them."""
        bounds = {}
        for name, column in self._columns(group, _NAMES).items():
            statistics = column.statistics if column.is_stats_set else None
            if statistics is not None and statistics.has_min_max:
                least, greatest = statistics.min, statistics.max
                if isinstance(least, str) and isinstance(greatest, str):
                    bounds[name] = least, greatest
        return bounds

    def _columns(self, group: int, names: Collection[str]) -> dict[str, pq.ColumnChunkMetaData]:
        row_group = self.metadata.row_group(group)
        columns = map(row_group.column, range(row_group.num_columns))
        return {
            column.path_in_schema: column for column in columns if column.path_in_schema in names
        }

    def ranges(self, groups: Iterable[int], columns: Collection[str]) -> list[ByteRange]:
        """Return where columns of row groups are, one range for neighbours."""
        chunks = (c for group in groups for c in self._columns(group, columns).values())
        joined: list[ByteRange] = []
        for part in sorted(map(self._range, chunks), key=lambda part: part.offset):
            if joined and joined[-1].offset + joined[-1].length == part.offset:
                before = joined.pop()
                joined.append(ByteRange(before.offset, before.length + part.length))
            else:
                joined.append(part)
        return joined

    def is_sorted(self, groups: Sequence[int]) -> bool:
        """Whether each of these row groups begins where the one before it ends, or later."""
        bounds = [self._bounds(group).get(_NAMES[0]) for group in groups]
        return all(a and b and a[1] <= b[0] for a, b in pairwise(bounds))

    def _range(self, column: pq.ColumnChunkMetaData) -> ByteRange:
        offset, length = column.data_page_offset, column.total_compressed_size
        if column.has_dictionary_page and 0 < column.dictionary_page_offset < offset:
            offset = column.dictionary_page_offset
        if offset < 0 or length < 0 or offset + length > self.size:
            raise CorruptError(
                "a row group is outside of the archived timeline file",
                size=self.size,
                offset=offset,
                length=length,
            )
        return ByteRange(offset, length)


def parse_row_groups(
    footer: ArchivedFileFooter,
    parts: Mapping[ByteRange, bytes],
    groups: Sequence[int],
    selection: Selection,
) -> list[tuple[int, ArchivedInstant]]:
    """Return the selected entries of row groups, each with the number of its row group.

    `parts` are the bytes of these row groups: the selected columns, and times and actions.

    Raises:
        CorruptError: the bytes cannot be decoded.
    """
    # Memory that is never touched is never allocated.
    sparse = np.zeros(footer.size, np.uint8)
    for part, data in parts.items():
        if len(data) != part.length:
            raise CorruptError(
                "the archived timeline file is shorter than its footer says",
                offset=part.offset,
                length=part.length,
                read=len(data),
            )
        sparse[part.offset : part.offset + part.length] = np.frombuffer(data, np.uint8)
    try:
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(sparse)), metadata=footer.metadata)
    except _PARQUET_ERRORS as error:
        raise _unreadable(footer.size, error) from error
    return [(n, e) for n in groups for e in _parse_groups(file, [n], footer.size, selection)]


def parse_archived_file(
    data: bytes, selection: Selection | None = None
) -> tuple[ArchivedInstant, ...]:
    """Return the selected instants of an archived timeline file, by default all with their content.

    Raises:
        CorruptError: the bytes are not an archived timeline file.
    """
    selection = selection or Selection(content=CONTENT)
    footer = ArchivedFileFooter.parse(data, len(data))
    try:
        file = pq.ParquetFile(pa.BufferReader(data), metadata=footer.metadata)
    except _PARQUET_ERRORS as error:
        raise _unreadable(len(data), error) from error
    groups = footer.groups(selection)
    return tuple(_parse_groups(file, groups, len(data), selection)) if groups else ()


def _parse_groups(
    file: pq.ParquetFile, groups: Sequence[int], size: int, selection: Selection
) -> Iterator[ArchivedInstant]:
    columns = selection.columns
    try:
        table = file.read_row_groups(groups, columns=[*columns], use_threads=False)
        yield from filter(selection.includes, _entries(table, columns))
    except _PARQUET_ERRORS as error:
        raise _unreadable(size, error) from error


def _entries(table: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> list[ArchivedInstant]:
    projection = pa.schema([_SCHEMA.field(name) for name in columns])
    selected = table.select([*columns]).cast(projection)
    values = dict(zip(columns, (column.to_pylist() for column in selected.columns), strict=True))
    nothing = [None] * len(selected)
    rows = zip(*(values.get(name, nothing) for name in (*_NAMES, *CONTENT)), strict=True)
    return [_entry(*row) for row in rows]


def stream_archived_file(data: bytes) -> Iterator[ArchivedInstant]:
    """Yield all entries of a file with their content, by requested time, a few decoded at a time.

    Raises:
        CorruptError: the bytes are not an archived timeline file.
    """
    times = [entry.requested_at for entry in parse_archived_file(data, Selection())]
    if any(a > b for a, b in pairwise(times)):
        # Not written in order: there is no way but to hold all of it.
        yield from sorted(parse_archived_file(data), key=lambda entry: entry.requested_at)
        return
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        uncompressed = sum(
            file.metadata.row_group(n).total_byte_size for n in range(file.num_row_groups)
        )
        rows = max(1, min(GROUP_ROWS, _BATCH_BYTES * len(times) // max(1, uncompressed)))
        columns = (*_NAMES, *CONTENT)
        for batch in file.iter_batches(rows, columns=[*columns], use_threads=False):
            yield from _entries(pa.Table.from_batches([batch]), columns)
    except _PARQUET_ERRORS as error:
        raise _unreadable(len(data), error) from error


def merge_sorted(sources: Iterable[Iterator[ArchivedInstant]]) -> Iterator[ArchivedInstant]:
    """Merge entries sorted by requested time; of equal instants the last source's counts."""
    merged = heapq.merge(*sources, key=lambda entry: entry.requested_at)
    for _, equal in groupby(merged, key=lambda entry: entry.requested_at):
        by_action = {entry.action: entry for entry in equal}
        yield from sorted(by_action.values(), key=lambda entry: entry.completed_at)


def write_archived_file(sink: Any, entries: Iterable[ArchivedInstant]) -> None:
    """Write entries, which are sorted by requested time, to a sink that is open for writing."""
    with pq.ParquetWriter(sink, _SCHEMA, **_WRITER_OPTIONS) as writer:
        for group in _row_groups(entries):
            writer.write_table(_table(group), row_group_size=GROUP_ROWS)
        # Without a stored Arrow schema, pyarrow drops schema metadata: add it explicitly.
        writer.add_key_value_metadata(_FOOTER)


def format_archived_file(entries: Iterable[ArchivedInstant]) -> bytes:
    """Return the bytes of an archived timeline file, sorted by requested time."""
    rows = sorted(entries, key=lambda entry: (entry.requested_at, entry.completed_at))
    sink = pa.BufferOutputStream()
    write_archived_file(sink, rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _row_groups(entries: Iterable[ArchivedInstant]) -> Iterator[list[ArchivedInstant]]:
    group: list[ArchivedInstant] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += len(entry.metadata or b"") + len(entry.plan or b"")
        if len(group) >= GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _table(rows: Sequence[ArchivedInstant]) -> pa.Table:
    columns = [
        [entry.requested_at for entry in rows],
        [entry.completed_at for entry in rows],
        [entry.action for entry in rows],
        [entry.metadata for entry in rows],
        [entry.plan for entry in rows],
        [1] * len(rows),
    ]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def _entry(
    requested_at: str | None,
    completed_at: str | None,
    action: str | None,
    metadata: bytes | None,
    plan: bytes | None,
) -> ArchivedInstant:
    if not requested_at or not completed_at or not action:
        raise CorruptError(
            "an archived instant is incomplete",
            requested_at=requested_at,
            completed_at=completed_at,
            action=action,
        )
    return ArchivedInstant(requested_at, completed_at, action, metadata, plan)


def _unreadable(size: int, error: BaseException) -> CorruptError:
    return CorruptError("the archived timeline file cannot be read", size=size, cause=str(error))
