"""Merging of row versions: log records with each other, and with the rows of a base file.

All functions work on whole columns. The versions of a key are ordered: first the base row, then the
log blocks in the order in which they were written. Under commit-time ordering the last version
wins. Under event-time ordering a version wins over earlier ones if its ordering value is not lower;
otherwise it is late and is dropped. A delete is a version as well and competes by its ordering
value. A delete without ordering value is unconditional: it discards all earlier versions, and any
later version wins over it.

As in Hudi's readers, log versions are merged with each other first, and the result with the base
row. The order matters in two cases: for partial updates, and for a row that is inserted again after
an unconditional delete with a lower ordering value than the base row has: then the base row wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError
from lakewright.model.schema import IS_DELETED, OPERATION, RECORD_KEY
from lakewright.utils.arrow_rows import (
    as_array,
    cast_in_pieces,
    index_in,
    take_rows,
    take_values,
    without_large_type,
)

Indexes = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

_ALL_BUT_SIGN = np.int64(0x7FFF_FFFF_FFFF_FFFF)


@dataclass(frozen=True)
class MergeRule:
    """How versions of a key are compared; without ordering fields it is commit-time ordering."""

    ordering: tuple[str, ...] = ()
    delete_marker: tuple[str, str] | None = None


@dataclass(frozen=True)
class Upserts:
    """The rows of one data block, in the table's schema.

    For a block of partial updates, `columns` are the columns that it contains; the others are null
    in `rows` and keep their previous values.
    """

    rows: pa.Table
    columns: frozenset[str] | None = None


@dataclass(frozen=True)
class Deletes:
    """The keys of one delete block; `ordering` holds one column for each ordering field."""

    keys: pa.Array
    ordering: tuple[pa.Array, ...] = ()
    unconditional: pa.Array | None = None


@dataclass(frozen=True)
class MergedLogRecords:
    """The merged versions of all log blocks of a slice: one entry for each key.

    - `row` is the row number in `rows` of the winning version, -1 for one from a delete block;
    - `beats_any_base` marks keys that win over the base row whatever its ordering value is;
    - `sources[c]` is the row number in `rows` of the value of column c, -1 if the log blocks have
      none; empty if there are no partial updates.
    """

    keys: pa.Array
    rows: pa.Table
    row: Indexes
    deleted: Flags
    beats_any_base: Flags
    ordering: tuple[pa.Array, ...]
    sources: dict[str, Indexes] = field(default_factory=dict)

    def select(self, at: Indexes) -> MergedLogRecords:
        """Return the entries at these positions."""
        indices = pa.array(at)
        return replace(
            self,
            keys=without_large_type(self.keys.take(indices)),
            row=self.row[at],
            deleted=self.deleted[at],
            beats_any_base=self.beats_any_base[at],
            ordering=tuple(without_large_type(column.take(indices)) for column in self.ordering),
            sources={name: rows[at] for name, rows in self.sources.items()},
        )

    def winning_rows(self) -> pa.Table:
        """Return the rows of the entries that are not deleted."""
        return take_rows(self.rows, self.row[~self.deleted])


def merge_logs(
    blocks: Sequence[Upserts | Deletes], schema: pa.Schema, rule: MergeRule
) -> MergedLogRecords:
    """Merge the log blocks of a slice, given in the order in which they were written."""
    versions = _Versions.gather(blocks, schema, rule)
    winner = _winners(versions)
    return MergedLogRecords(
        keys=versions.keys,
        rows=versions.rows,
        row=versions.row[winner],
        deleted=versions.deleted[winner],
        beats_any_base=(versions.last_reset == winner)
        if rule.ordering
        else np.ones(len(winner), bool),
        ordering=tuple(column.take(pa.array(winner)) for column in versions.ordering),
        sources=_sources(versions, blocks, schema),
    )


def _winners(versions: _Versions) -> Indexes:
    """Return for each key its winning version. Only keys with several versions are sorted."""
    winner = np.empty(len(versions.keys), np.int64)
    winner[versions.code] = versions.sequence
    if len(versions.keys) == len(versions.code):
        return winner
    is_repeated = np.bincount(versions.code, minlength=len(versions.keys)) > 1
    at = np.flatnonzero(is_repeated[versions.code])
    code = versions.code[at]
    rank = versions.rank(at)
    since_reset = at >= versions.last_reset[code]
    # Versions of a key are in the order of writing, which a stable sort keeps.
    order = np.lexsort((rank, since_reset, code))
    last = np.append(np.flatnonzero(np.diff(code[order])), len(order) - 1)
    winner[code[order[last]]] = at[order[last]]
    return winner


@dataclass(frozen=True)
class _Versions:
    """All log versions of all keys, in the order of writing, as parallel arrays."""

    keys: pa.Array  # distinct
    code: npt.NDArray[np.int32]  # position in `keys`
    sequence: Indexes
    row: Indexes  # position in `rows`, -1 in a delete block
    rows: pa.Table
    deleted: Flags
    ordering: tuple[pa.Array, ...]
    last_reset: Indexes  # for each key its last unconditional delete, -1 if none

    @classmethod
    def gather(
        cls, blocks: Sequence[Upserts | Deletes], schema: pa.Schema, rule: MergeRule
    ) -> _Versions:
        upserts = [block.rows for block in blocks if isinstance(block, Upserts)]
        rows = pa.concat_tables([schema.empty_table(), *upserts])
        empty = pa.array([], pa.string())
        keys = pa.chunked_array([empty, *(chunk for b in blocks for chunk in _keys(b))])
        if keys.null_count:
            raise CorruptError("rows in log files have no record key", rows=keys.null_count)
        encoded = as_array(keys).dictionary_encode()
        code = np.asarray(encoded.indices)
        sequence = np.arange(len(code))
        is_row = _spread([isinstance(b, Upserts) for b in blocks], blocks)
        row = np.where(is_row, np.cumsum(is_row) - 1, -1)
        deleted = ~is_row
        deleted[is_row] = rows_marked_deleted(rows, rule)
        types = [schema.field(name).type for name in rule.ordering]
        ordering = tuple(
            as_array(
                pa.chunked_array(
                    [chunk for block in blocks for chunk in _ordering(block, i, name, types[i])],
                    types[i],
                )
            )
            for i, name in enumerate(rule.ordering)
        )
        last_reset = np.full(len(encoded.dictionary), -1)
        reset = np.flatnonzero(deleted & _unconditional(blocks, is_row, ordering))
        last_reset[code[reset]] = reset
        return cls(encoded.dictionary, code, sequence, row, rows, deleted, ordering, last_reset)

    def rank(self, at: Indexes) -> Indexes:
        """Return ranks of these versions that compare like their ordering values, or positions."""
        if not self.ordering:
            return self.sequence[at]
        indices = pa.array(at)
        return _rank(tuple(column.take(indices) for column in self.ordering))


def _keys(block: Upserts | Deletes) -> list[pa.Array]:
    if isinstance(block, Deletes):
        return cast_in_pieces(block.keys, pa.string())
    return list(block.rows.column(RECORD_KEY).chunks)


def _length(block: Upserts | Deletes) -> int:
    return len(block.keys) if isinstance(block, Deletes) else len(block.rows)


def _spread(values: Sequence[object], blocks: Sequence[Upserts | Deletes]) -> Flags:
    return np.repeat(np.array(values, dtype=bool), [_length(block) for block in blocks])


def _ordering(
    block: Upserts | Deletes, position: int, name: str, kind: pa.DataType
) -> list[pa.Array]:
    if isinstance(block, Upserts):
        return list(block.rows.column(name).chunks)
    if position < len(block.ordering):
        try:
            return cast_in_pieces(block.ordering[position], kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise CorruptError(
                "a delete block orders by another type than the table",
                field=name,
                stored=str(block.ordering[position].type),
                expected=str(kind),
            ) from error
    return [pa.nulls(len(block.keys), kind)]


def rows_marked_deleted(rows: pa.Table, rule: MergeRule) -> Flags:
    """Return which rows of data blocks are marked as deleted by one of their columns."""
    deleted = np.zeros(len(rows), bool)
    names = set(rows.column_names)
    if IS_DELETED in names and pa.types.is_boolean(rows[IS_DELETED].type):
        deleted |= np.asarray(pc.fill_null(rows[IS_DELETED], False))
    if OPERATION in names:
        is_delete = pc.is_in(rows[OPERATION], value_set=pa.array(["D", "-U"]))
        deleted |= np.asarray(is_delete)
    if rule.delete_marker is not None and rule.delete_marker[0] in names:
        field_name, marker = rule.delete_marker
        text = rows[field_name].cast(pa.string())
        deleted |= np.asarray(pc.fill_null(pc.equal(text, marker), False))
    return deleted


def _unconditional(
    blocks: Sequence[Upserts | Deletes], is_row: Flags, ordering: tuple[pa.Array, ...]
) -> Flags:
    """Return which versions have no ordering value (or the value that stands for none)."""
    flags = np.zeros(len(is_row), bool)
    in_delete_blocks = [
        np.asarray(block.unconditional)
        if block.unconditional is not None
        else np.full(len(block.keys), not block.ordering)
        for block in blocks
        if isinstance(block, Deletes)
    ]
    flags[~is_row] = np.concatenate([np.zeros(0, bool), *in_delete_blocks])
    if len(ordering) == 1:
        has_no_value = np.asarray(ordering[0].is_null())
        if pa.types.is_int32(ordering[0].type):
            has_no_value = has_no_value | np.asarray(pc.fill_null(pc.equal(ordering[0], 0), True))
        flags |= has_no_value & is_row
    return flags


def _rank(ordering: tuple[pa.Array, ...]) -> Indexes:
    """Return ranks that compare like the ordering values, field by field; null is lowest."""
    combined: Indexes | None = None
    for column in map(comparable, ordering):
        rank = np.asarray(pc.rank(column, tiebreaker="dense")).astype(np.int64)
        rank[np.asarray(column.is_null())] = 0
        if combined is None:
            combined = rank
        else:
            # Dense ranks are at most the number of versions: the product stays far below 2^63.
            combined = combined * (len(rank) + 1) + rank
            combined = np.unique(combined, return_inverse=True)[1]
    assert combined is not None
    return combined


def comparable(column: pa.Array) -> pa.Array:
    """Return values with a total order: floats as integers that sort as Java sorts the floats.

    In Java, NaN equals itself and is greater than all others, and -0.0 is less than 0.0.
    """
    if not pa.types.is_floating(column.type):
        return column
    values = np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0))
    # NaN has many bit patterns, some of them with a sign: use one.
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    # The bit patterns of negative floats are in reverse order.
    ordered = bits ^ ((bits >> 63) & _ALL_BUT_SIGN)
    return pa.array(ordered, mask=np.asarray(column.is_null()))


def _sources(
    versions: _Versions, blocks: Sequence[Upserts | Deletes], schema: pa.Schema
) -> dict[str, Indexes]:
    """Return the source row of each column of each key, if any block has partial updates.

    Versions are applied in order: one that is not late sets all columns it contains, a late one
    only those that no version has set yet. A delete that is not late discards all columns.
    """
    if all(not isinstance(b, Upserts) or b.columns is None for b in blocks):
        return {}
    code, sequence = versions.code.astype(np.int64), versions.sequence
    rank = versions.rank(sequence)
    order = np.lexsort((sequence, code))
    # Versions are sorted by key and the key is in the high part: one running maximum is enough.
    key_and_rank = code[order] * (len(order) + 2) + rank[order]
    in_time = np.zeros(len(order), bool)
    in_time[order] = key_and_rank >= np.maximum.accumulate(key_and_rank)
    start = versions.last_reset.copy()
    is_reset = in_time & versions.deleted
    np.maximum.at(start, code[is_reset], sequence[is_reset])
    is_applied = (sequence > start[code]) & ~versions.deleted
    sources = {}
    for name in schema.names:
        has_column = is_applied & _spread(
            [isinstance(b, Upserts) and (b.columns is None or name in b.columns) for b in blocks],
            blocks,
        )
        # Row numbers increase with the sequence: the greatest one belongs to the last version.
        latest = _extreme(np.maximum, -1, versions, has_column & in_time)
        first_late = _extreme(np.minimum, len(versions.rows), versions, has_column & ~in_time)
        fallback = np.where(first_late < len(versions.rows), first_late, -1)
        sources[name] = np.where(latest >= 0, latest, fallback)
    return sources


def _extreme(choose: np.ufunc, start: int, versions: _Versions, chosen: Flags) -> Indexes:
    """Return for each key the lowest or highest row of the chosen versions; `start` if none."""
    rows = np.full(len(versions.keys), start)
    choose.at(rows, versions.code[chosen], versions.row[chosen])
    return rows


# Merging log records with the rows of a base file.

# Called with the rows before and after a change, both in the same order; None before an insert and
# after a delete.
RowChangeCallback: TypeAlias = Callable[[pa.Table | None, pa.Table | None], None]


@dataclass
class MergeCounts:
    """Counts of base rows read, and of rows updated, inserted and deleted while merging."""

    base: int = 0
    updated: int = 0
    inserted: int = 0
    deleted: int = 0


def merge_with_base(
    batches: Iterable[pa.RecordBatch],
    outcome: MergedLogRecords,
    rule: MergeRule,
    counts: MergeCounts | None = None,
    on_change: RowChangeCallback | None = None,
) -> Iterator[pa.Table]:
    """Yield the merged rows of a slice: unchanged and updated base rows, then inserted rows.

    `batches` are the rows of the base file in the schema of `outcome.rows`; only about as many of
    them as the outcome has keys, at least one batch, and at most about half a gibibyte are in
    memory at a time. `on_change` is called with all rows that change.
    """
    return _merged(
        batches,
        outcome,
        rule,
        include_base=True,
        counts=counts or MergeCounts(),
        on_change=on_change,
    )


def updated_rows(
    batches: Iterable[pa.RecordBatch], outcome: MergedLogRecords, rule: MergeRule
) -> Iterator[pa.Table]:
    """Yield only the merged rows that come from log records.

    For partial updates, `batches` must contain all columns of the base rows.
    """
    return _merged(batches, outcome, rule, include_base=False, counts=MergeCounts())


def overwritten_rows(
    batches: Iterable[pa.RecordBatch], outcome: MergedLogRecords, rule: MergeRule
) -> Iterator[Indexes]:
    """Yield the row numbers of base rows that log records update or delete.

    Of the base rows, only the key and ordering columns are needed.
    """
    first = 0
    for match in _key_matches(batches, outcome, rule):
        yield first + match.at[match.wins]
        first += len(match.base)


@dataclass(frozen=True)
class _KeyMatch:
    """The base rows whose keys have log records.

    `at` are their row numbers in `base`, `key` the positions of their keys in the log records, and
    `wins` marks those that the log records win over.
    """

    base: pa.Table
    at: Indexes
    key: Indexes
    wins: Flags


def _key_matches(
    batches: Iterable[pa.RecordBatch], records: MergedLogRecords, rule: MergeRule
) -> Iterator[_KeyMatch]:
    for table in _combined(batches, len(records.keys)):
        index = index_in(table.column(RECORD_KEY), records.keys)
        at = np.flatnonzero(np.asarray(index.is_valid()))
        key = np.asarray(index.drop_null(), dtype=np.int64)
        wins = records.beats_any_base[key] | ~_base_is_newer(table, at, key, records, rule)
        yield _KeyMatch(table, at, key, wins)


def _merged(
    batches: Iterable[pa.RecordBatch],
    records: MergedLogRecords,
    rule: MergeRule,
    *,
    include_base: bool,
    counts: MergeCounts,
    on_change: RowChangeCallback | None = None,
) -> Iterator[pa.Table]:
    in_base = np.zeros(len(records.keys), bool)
    for match in _key_matches(batches, records, rule):
        in_base[match.key] = True
        if include_base:
            unchanged = np.ones(len(match.base), bool)
            unchanged[match.at[match.wins]] = False
            yield match.base.filter(pa.array(unchanged))
        updated = match.wins & ~records.deleted[match.key]
        deleted = match.wins & records.deleted[match.key]
        counts.base += len(match.base)
        counts.updated += int(updated.sum())
        counts.deleted += int(deleted.sum())
        if on_change is not None and deleted.any():
            on_change(take_rows(match.base, match.at[deleted]), None)
        if updated.any():
            rows = _patched(match.base, match.at[updated], match.key[updated], records)
            if on_change is not None:
                on_change(take_rows(match.base, match.at[updated]), rows)
            yield rows
    new = np.flatnonzero(~in_base & ~records.deleted)
    counts.inserted += len(new)
    if len(new):
        rows = _patched(None, None, new, records)
        if on_change is not None:
            on_change(None, rows)
        yield rows


# Base rows that are in memory at a time.
_MAX_COMBINED_BYTES = 512 << 20


def _combined(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Combine batches to tables of at least `rows` rows: each lookup builds a key index anew."""
    pending: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        pending.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
        if count >= rows or size >= _MAX_COMBINED_BYTES:
            yield pa.Table.from_batches(pending)
            pending, count, size = [], 0, 0
    if pending:
        yield pa.Table.from_batches(pending)


def _patched(
    base: pa.Table | None, base_row: Indexes | None, key: Indexes, records: MergedLogRecords
) -> pa.Table:
    """Return the winning log rows of these keys; missing columns come from their base rows."""
    if not records.sources:
        return take_rows(records.rows, records.row[key])
    columns = []
    for name in records.rows.column_names:
        source = records.sources[name][key]
        log_column = records.rows.column(name)
        if base is None or base_row is None:
            columns.append(take_values(log_column, source))
        else:
            both = pa.chunked_array(
                [*base.column(name).chunks, *log_column.chunks], log_column.type
            )
            index = np.where(source < 0, base_row, source + len(base))
            columns.append(take_values(both, index))
    return pa.table(columns, schema=records.rows.schema)


def _base_is_newer(
    base: pa.Table, base_row: Indexes, key: Indexes, records: MergedLogRecords, rule: MergeRule
) -> Flags:
    newer = np.zeros(len(base_row), bool)
    tie = np.ones(len(base_row), bool)
    for name, log_ordering in zip(rule.ordering, records.ordering, strict=True):
        base_value = comparable(as_array(take_values(base.column(name), base_row)))
        log_value = comparable(log_ordering.take(pa.array(key)))
        greater = pc.fill_null(
            pc.greater(base_value, log_value), pc.and_(base_value.is_valid(), log_value.is_null())
        )
        equal = pc.fill_null(
            pc.equal(base_value, log_value), pc.and_(base_value.is_null(), log_value.is_null())
        )
        newer |= tie & np.asarray(greater)
        tie &= np.asarray(equal)
    return newer
