"""Which version of a row wins, on whole columns.

The versions of a key come in an order: first the base file, then the log blocks as they were
written. Under commit-time ordering the last version wins. Under event-time ordering a version wins
over those before it if its ordering value is not lower; a late one is dropped. A delete is a
version as well, and competes by its ordering value; one without ordering value is unconditional:
it ends everything before it, and whatever comes after it wins over it.

Log versions are merged with each other first and the outcome with the base row, as every reader
does. It shows in two places: where rows are updated in part, and where a row comes back after an
unconditional delete with a lower ordering value than its base row has; then the base row wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError
from lakewright.model.schema import OPERATION, RECORD_KEY

Indexes = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

_ALL_BUT_SIGN = np.int64(0x7FFF_FFFF_FFFF_FFFF)


@dataclass(frozen=True)
class MergeRule:
    """How versions of one key are compared; no ordering fields means commit-time ordering."""

    ordering: tuple[str, ...] = ()
    delete_marker: tuple[str, str] | None = None


@dataclass(frozen=True)
class Upserts:
    """The rows of one data block, in the table's schema.

    `columns` names the columns the block really carries if it updates rows in part; the others
    are null in `rows` and mean "as before".
    """

    rows: pa.Table
    columns: frozenset[str] | None = None


@dataclass(frozen=True)
class Deletes:
    """The keys of one delete block; `ordering` holds a column for each ordering field."""

    keys: pa.Array
    ordering: tuple[pa.Array, ...] = ()
    unconditional: pa.Array | None = None


@dataclass(frozen=True)
class MergedLogRecords:
    """The merged versions of all log blocks of a slice: one entry for each key.

    `sources[c]` tells for each key in which row of `rows` its value of column c is, or -1 if the
    logs do not have it; `row` is the row of the winning version, -1 for a delete without a row.
    """

    keys: pa.Array
    rows: pa.Table
    row: Indexes
    deleted: Flags
    beats_any_base: Flags
    ordering: tuple[pa.Array, ...]
    sources: dict[str, Indexes] = field(default_factory=dict)

    def select(self, at: Indexes) -> MergedLogRecords:
        """The same for some of the keys, by their positions."""
        chosen = pa.array(at)
        return replace(
            self,
            keys=self.keys.take(chosen),
            row=self.row[at],
            deleted=self.deleted[at],
            beats_any_base=self.beats_any_base[at],
            ordering=tuple(column.take(chosen) for column in self.ordering),
            sources={name: rows[at] for name, rows in self.sources.items()},
        )


def merge_logs(
    blocks: Sequence[Upserts | Deletes], schema: pa.Schema, rule: MergeRule
) -> MergedLogRecords:
    """Merge the blocks of a slice, given in the order in which they were written."""
    versions = _Versions.gather(blocks, schema, rule)
    rank = _rank(versions.ordering) if rule.ordering else versions.sequence
    since_reset = versions.sequence >= versions.last_reset[versions.code]
    order = np.lexsort((versions.sequence, rank, since_reset, versions.code))
    last = np.append(np.flatnonzero(np.diff(versions.code[order])), len(order) - 1)
    winner = order[last] if len(order) else order
    return MergedLogRecords(
        keys=versions.keys,
        rows=versions.rows,
        row=versions.row[winner],
        deleted=versions.deleted[winner],
        beats_any_base=(versions.last_reset == winner)
        if rule.ordering
        else np.ones(len(winner), bool),
        ordering=tuple(column.take(pa.array(winner)) for column in versions.ordering),
        sources=_sources(versions, rank, blocks, schema),
    )


@dataclass(frozen=True)
class _Versions:
    """Every log version of every key, in order: one array for each fact about it."""

    keys: pa.Array  # distinct
    code: Indexes  # which key
    sequence: Indexes
    row: Indexes  # its row in `rows`, -1 in a delete block
    rows: pa.Table
    deleted: Flags
    ordering: tuple[pa.Array, ...]
    last_reset: Indexes  # for each key the last unconditional delete, -1 if none

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
        encoded = keys.combine_chunks().dictionary_encode()
        code = np.asarray(encoded.indices, dtype=np.int64)
        sequence = np.arange(len(code))
        is_row = _spread([isinstance(b, Upserts) for b in blocks], blocks)
        row = np.where(is_row, np.cumsum(is_row) - 1, -1)
        deleted = ~is_row
        deleted[is_row] = rows_marked_deleted(rows, rule)
        types = [schema.field(name).type for name in rule.ordering]
        ordering = tuple(
            _concat([_ordering(block, i, name, types[i]) for block in blocks], types[i])
            for i, name in enumerate(rule.ordering)
        )
        last_reset = np.full(len(encoded.dictionary), -1)
        reset = np.flatnonzero(deleted & _unconditional(blocks, is_row, ordering))
        last_reset[code[reset]] = reset
        return cls(encoded.dictionary, code, sequence, row, rows, deleted, ordering, last_reset)


def _keys(block: Upserts | Deletes) -> list[pa.Array]:
    if isinstance(block, Deletes):
        return [block.keys.cast(pa.string())]
    return list(block.rows.column(RECORD_KEY).chunks)


def _length(block: Upserts | Deletes) -> int:
    return len(block.keys) if isinstance(block, Deletes) else len(block.rows)


def _spread(values: Sequence[object], blocks: Sequence[Upserts | Deletes]) -> Flags:
    return np.repeat(np.array(values, dtype=bool), [_length(block) for block in blocks])


def _concat(arrays: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays([pa.array([], kind), *arrays])


def _ordering(block: Upserts | Deletes, position: int, name: str, kind: pa.DataType) -> pa.Array:
    if isinstance(block, Upserts):
        return pa.concat_arrays([pa.array([], kind), *block.rows.column(name).chunks])
    if position < len(block.ordering):
        try:
            return block.ordering[position].cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise CorruptError(
                "a delete block orders by another type than the table",
                field=name,
                stored=str(block.ordering[position].type),
                expected=str(kind),
            ) from error
    return pa.nulls(len(block.keys), kind)


def rows_marked_deleted(rows: pa.Table, rule: MergeRule) -> Flags:
    """Rows of data blocks that say themselves that they are deleted."""
    deleted = np.zeros(len(rows), bool)
    names = set(rows.column_names)
    if "_hoodie_is_deleted" in names and pa.types.is_boolean(rows["_hoodie_is_deleted"].type):
        deleted |= np.asarray(pc.fill_null(rows["_hoodie_is_deleted"], False))
    if OPERATION in names:
        gone = pc.is_in(rows[OPERATION], value_set=pa.array(["D", "-U"]))
        deleted |= np.asarray(gone)
    if rule.delete_marker is not None and rule.delete_marker[0] in names:
        field_name, marker = rule.delete_marker
        text = rows[field_name].cast(pa.string())
        deleted |= np.asarray(pc.fill_null(pc.equal(text, marker), False))
    return deleted


def _unconditional(
    blocks: Sequence[Upserts | Deletes], is_row: Flags, ordering: tuple[pa.Array, ...]
) -> Flags:
    """Which versions carry no ordering value of their own (or the one that stands for it)."""
    flags = np.zeros(len(is_row), bool)
    stated = [
        np.asarray(block.unconditional)
        if block.unconditional is not None
        else np.full(len(block.keys), not block.ordering)
        for block in blocks
        if isinstance(block, Deletes)
    ]
    flags[~is_row] = np.concatenate([np.zeros(0, bool), *stated])
    if len(ordering) == 1:
        implied = np.asarray(ordering[0].is_null())
        if pa.types.is_int32(ordering[0].type):
            implied = implied | np.asarray(pc.fill_null(pc.equal(ordering[0], 0), True))
        flags |= implied & is_row
    return flags


def _rank(ordering: tuple[pa.Array, ...]) -> Indexes:
    """Ranks that compare as the ordering values do, field after field; null is lowest."""
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
    """Values whose order is total: every float as the whole number that Java orders it by.

    There NaN equals itself and is above all others, and -0.0 is below 0.0.
    """
    if not pa.types.is_floating(column.type):
        return column
    values = np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0))
    # NaN has many bit patterns, some of them negative.
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    # The bits of negative floats grow the wrong way.
    ordered = bits ^ ((bits >> 63) & _ALL_BUT_SIGN)
    return pa.array(ordered, mask=np.asarray(column.is_null()))


def _sources(
    versions: _Versions, rank: Indexes, blocks: Sequence[Upserts | Deletes], schema: pa.Schema
) -> dict[str, Indexes]:
    """Where each column of each key comes from, if any block updates rows in part.

    One version after the other: one that is not late sets the columns it carries, a late one only
    those that nobody has set yet. A delete that is not late lets everything begin anew.
    """
    if all(not isinstance(b, Upserts) or b.columns is None for b in blocks):
        return {}
    code, sequence = versions.code, versions.sequence
    order = np.lexsort((sequence, code))
    # Keys come one after the other, so one running maximum serves them all.
    height = code[order] * (len(order) + 2) + rank[order]
    in_time = np.zeros(len(order), bool)
    in_time[order] = height >= np.maximum.accumulate(height)
    begin = versions.last_reset.copy()
    ends = in_time & versions.deleted
    np.maximum.at(begin, code[ends], sequence[ends])
    counts = (sequence > begin[code]) & ~versions.deleted
    sources = {}
    for name in schema.names:
        carries = counts & _spread(
            [isinstance(b, Upserts) and (b.columns is None or name in b.columns) for b in blocks],
            blocks,
        )
        # Row numbers grow with the sequence, so the last row is that of the last version.
        latest = _extreme(np.maximum, -1, versions, carries & in_time)
        first_late = _extreme(np.minimum, len(versions.rows), versions, carries & ~in_time)
        filled = np.where(first_late < len(versions.rows), first_late, -1)
        sources[name] = np.where(latest >= 0, latest, filled)
    return sources


def _extreme(choose: np.ufunc, start: int, versions: _Versions, chosen: Flags) -> Indexes:
    """For each key the lowest or highest row among the chosen versions; `start` if none is."""
    rows = np.full(len(versions.keys), start)
    choose.at(rows, versions.code[chosen], versions.row[chosen])
    return rows


# ------------------------------------------------------------------------------------------------
# Log rows that meet the rows of a base file: which of them stay, which come in their place.


# Told of rows before and after a change, of both in the same order; None where there are none.
RowChangeCallback: TypeAlias = Callable[[pa.Table | None, pa.Table | None], None]


@dataclass
class MergeCounts:
    """What merging did to the rows of a base file, counted while it goes on."""

    base: int = 0
    updated: int = 0
    inserted: int = 0
    deleted: int = 0


def merge_with_base(
    batches: Iterable[pa.RecordBatch],
    outcome: MergedLogRecords,
    rule: MergeRule,
    tally: MergeCounts | None = None,
    seen: RowChangeCallback | None = None,
) -> Iterator[pa.Table]:
    """The merged rows of a slice: base rows that stay, then rows that come from the logs.

    `batches` are rows of the base file in the schema of `outcome.rows`; at any time no more of
    them are held than the outcome has keys, or one of them if that is more. `seen` is told of rows
    that do not stay as they were.
    """
    return _merged(batches, outcome, rule, kept=True, tally=tally or MergeCounts(), seen=seen)


def updated_rows(
    batches: Iterable[pa.RecordBatch], outcome: MergedLogRecords, rule: MergeRule
) -> Iterator[pa.Table]:
    """The merged rows that come from the logs: base rows updated in part must be given whole."""
    return _merged(batches, outcome, rule, kept=False, tally=MergeCounts())


def overwritten_rows(
    batches: Iterable[pa.RecordBatch], outcome: MergedLogRecords, rule: MergeRule
) -> Iterator[Indexes]:
    """The numbers of base rows that do not stay; key and ordering columns tell."""
    first = 0
    for meeting in _key_matches(batches, outcome, rule):
        yield first + meeting.at[meeting.wins]
        first += len(meeting.base)


@dataclass(frozen=True)
class _KeyMatch:
    """Base rows whose keys are in the logs: where they are, which keys, and which logs win."""

    base: pa.Table
    at: Indexes
    key: Indexes
    wins: Flags


def _key_matches(
    batches: Iterable[pa.RecordBatch], outcome: MergedLogRecords, rule: MergeRule
) -> Iterator[_KeyMatch]:
    for table in _gathered(batches, len(outcome.keys)):
        match = pc.index_in(table.column(RECORD_KEY), value_set=outcome.keys).combine_chunks()
        at = np.flatnonzero(np.asarray(match.is_valid()))
        key = np.asarray(match.drop_null(), dtype=np.int64)
        wins = outcome.beats_any_base[key] | ~_base_is_newer(table, at, key, outcome, rule)
        yield _KeyMatch(table, at, key, wins)


def _merged(
    batches: Iterable[pa.RecordBatch],
    outcome: MergedLogRecords,
    rule: MergeRule,
    *,
    kept: bool,
    tally: MergeCounts,
    seen: RowChangeCallback | None = None,
) -> Iterator[pa.Table]:
    taken = np.zeros(len(outcome.keys), bool)
    for meeting in _key_matches(batches, outcome, rule):
        taken[meeting.key] = True
        if kept:
            keep = np.ones(len(meeting.base), bool)
            keep[meeting.at[meeting.wins]] = False
            yield meeting.base.filter(pa.array(keep))
        emitted = meeting.wins & ~outcome.deleted[meeting.key]
        gone = meeting.wins & outcome.deleted[meeting.key]
        tally.base += len(meeting.base)
        tally.updated += int(emitted.sum())
        tally.deleted += int(gone.sum())
        if seen is not None and gone.any():
            seen(meeting.base.take(pa.array(meeting.at[gone])), None)
        if emitted.any():
            rows = _patched(meeting.base, meeting.at[emitted], meeting.key[emitted], outcome)
            if seen is not None:
                seen(meeting.base.take(pa.array(meeting.at[emitted])), rows)
            yield rows
    new = np.flatnonzero(~taken & ~outcome.deleted)
    tally.inserted += len(new)
    if len(new):
        rows = _patched(None, None, new, outcome)
        if seen is not None:
            seen(None, rows)
        yield rows


def _gathered(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Batches put together to at least so many rows: each look-up builds its index of keys anew."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(item.num_rows for item in waiting) >= rows:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _patched(
    base: pa.Table | None, base_row: Indexes | None, key: Indexes, outcome: MergedLogRecords
) -> pa.Table:
    """The winning log rows of `key`, with what they leave out taken from their base rows."""
    if not outcome.sources:
        return outcome.rows.take(pa.array(outcome.row[key]))
    columns = []
    for name in outcome.rows.column_names:
        source = outcome.sources[name][key]
        log_column = outcome.rows.column(name)
        if base is None or base_row is None:
            columns.append(log_column.take(pa.array(source, mask=source < 0)))
        else:
            both = pa.chunked_array(
                [*base.column(name).chunks, *log_column.chunks], log_column.type
            )
            index = np.where(source < 0, base_row, source + len(base))
            columns.append(both.take(pa.array(index)))
    return pa.table(columns, schema=outcome.rows.schema)


def _base_is_newer(
    base: pa.Table, hit: Indexes, key: Indexes, outcome: MergedLogRecords, rule: MergeRule
) -> Flags:
    newer = np.zeros(len(hit), bool)
    tie = np.ones(len(hit), bool)
    for name, ordering in zip(rule.ordering, outcome.ordering, strict=True):
        ours = comparable(base.column(name).take(pa.array(hit)).combine_chunks())
        theirs = comparable(ordering.take(pa.array(key)))
        greater = pc.fill_null(pc.greater(ours, theirs), pc.and_(ours.is_valid(), theirs.is_null()))
        equal = pc.fill_null(pc.equal(ours, theirs), pc.and_(ours.is_null(), theirs.is_null()))
        newer |= tie & np.asarray(greater)
        tie &= np.asarray(equal)
    return newer
