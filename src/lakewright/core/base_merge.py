"""Log rows that meet the rows of a base file: which of them stay, which come in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.core.merge import Flags, Indexes, LogOutcome, MergeRule, comparable
from lakewright.core.meta_columns import RECORD_KEY

# Told of rows before and after a change, of both in the same order; None where there are none.
Seen: TypeAlias = Callable[[pa.Table | None, pa.Table | None], None]


@dataclass
class Tally:
    """What merging did to the rows of a base file, counted while it goes on."""

    base: int = 0
    updated: int = 0
    inserted: int = 0
    deleted: int = 0


def merge_with_base(
    batches: Iterable[pa.RecordBatch],
    outcome: LogOutcome,
    rule: MergeRule,
    tally: Tally | None = None,
    seen: Seen | None = None,
) -> Iterator[pa.Table]:
    """The merged rows of a slice: base rows that stay, then rows that come from the logs.

    `batches` are rows of the base file in the schema of `outcome.rows`; at any time no more of
    them are held than the outcome has keys, or one of them if that is more. `seen` is told of rows
    that do not stay as they were.
    """
    return _merged(batches, outcome, rule, kept=True, tally=tally or Tally(), seen=seen)


def changed_rows(
    batches: Iterable[pa.RecordBatch], outcome: LogOutcome, rule: MergeRule
) -> Iterator[pa.Table]:
    """The merged rows that come from the logs: base rows updated in part must be given whole."""
    return _merged(batches, outcome, rule, kept=False, tally=Tally())


def beaten_rows(
    batches: Iterable[pa.RecordBatch], outcome: LogOutcome, rule: MergeRule
) -> Iterator[Indexes]:
    """The numbers of base rows that do not stay; key and ordering columns tell."""
    first = 0
    for meeting in _meetings(batches, outcome, rule):
        yield first + meeting.at[meeting.wins]
        first += len(meeting.base)


@dataclass(frozen=True)
class _Meeting:
    """Base rows whose keys are in the logs: where they are, which keys, and which logs win."""

    base: pa.Table
    at: Indexes
    key: Indexes
    wins: Flags


def _meetings(
    batches: Iterable[pa.RecordBatch], outcome: LogOutcome, rule: MergeRule
) -> Iterator[_Meeting]:
    for table in _gathered(batches, len(outcome.keys)):
        match = pc.index_in(table.column(RECORD_KEY), value_set=outcome.keys).combine_chunks()
        at = np.flatnonzero(np.asarray(match.is_valid()))
        key = np.asarray(match.drop_null(), dtype=np.int64)
        wins = outcome.beats_any_base[key] | ~_base_is_newer(table, at, key, outcome, rule)
        yield _Meeting(table, at, key, wins)


def _merged(
    batches: Iterable[pa.RecordBatch],
    outcome: LogOutcome,
    rule: MergeRule,
    *,
    kept: bool,
    tally: Tally,
    seen: Seen | None = None,
) -> Iterator[pa.Table]:
    taken = np.zeros(len(outcome.keys), bool)
    for meeting in _meetings(batches, outcome, rule):
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
    base: pa.Table | None, base_row: Indexes | None, key: Indexes, outcome: LogOutcome
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
    base: pa.Table, hit: Indexes, key: Indexes, outcome: LogOutcome, rule: MergeRule
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
