"""Event times: when what a row tells happened, in milliseconds since 1970."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError
from lakewright.model.merge import Deletes, Flags, MergedLogRecords, MergeRule, Upserts, merge_logs
from lakewright.model.schema import RECORD_KEY

_SECONDS = (10**9, 10**10)
_MILLIS = (10**12, 10**13)


def event_range(column: pa.Array | pa.ChunkedArray, name: str) -> tuple[int | None, int | None]:
    """The least and the greatest event time of a column; None if it has none.

    A whole number of ten digits counts seconds and one of thirteen milliseconds, as real writers
    take them; others are no times.
    """
    bounds = pc.min_max(event_millis(column, name)).as_py()
    return bounds["min"], bounds["max"]


def check_event_time(schema: pa.Schema, name: str) -> None:
    """Refuse a column that is not there, or whose type holds no times."""
    if name not in schema.names:
        raise InvalidError(
            "the column of event times is not there", column=name, columns=list(schema.names)
        )
    event_millis(pa.array([], schema.field(name).type), name)


def event_millis(column: pa.Array | pa.ChunkedArray, name: str) -> pa.ChunkedArray | pa.Array:
    """The event time of each row in milliseconds; null where there is none."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return column.cast(pa.timestamp("ms", getattr(kind, "tz", None)), safe=False).cast(
            pa.int64()
        )
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        digits = pc.match_substring_regex(column, r"^[0-9]{1,18}$")
        column = pc.if_else(digits, column, pa.scalar(None, kind)).cast(pa.int64())
    elif pa.types.is_integer(kind):
        column = column.cast(pa.int64())
    else:
        raise InvalidError(
            "a column of this type holds no event times: a whole number (seconds or "
            "milliseconds), a timestamp or a date expected",
            column=name,
            type=str(kind),
        )
    seconds = pc.multiply(_within(column, _SECONDS), 1000)
    return pc.coalesce(seconds, _within(column, _MILLIS))


def _within(column: pa.Array, bounds: tuple[int, int]) -> pa.Array:
    low, high = bounds
    fits = pc.and_(pc.greater_equal(column, low), pc.less(column, high))
    return pc.if_else(fits, column, pa.scalar(None, pa.int64()))


# ------------------------------------------------------------------------------------------------
# Log versions from an event time on, apart from those before it.
#
# What happened before the threshold goes into the base file, the rest stays in a log file beside
# it.
# Both together give every reader the rows that it saw before, whatever log files come after them:
# - the version that wins among all of a key stays back only if it is late itself;
# - what stays back is at least as strong as all that goes into the base file, and log rows win
# ties;
# - a delete without ordering value ends what is before it in log files, and the base row. Where a
# row
#   came back after it, which stays, it is not applied: whether that row wins is for its base row
# to
#   tell, as it was.


Changes = Sequence[Upserts | Deletes]


@dataclass(frozen=True, slots=True)
class EventTimeThreshold:
    """An event time, and the column that tells it.

    `in_order` tells that deletes compete by that column too, which then tells when they happened;
    a delete that does not tell counts as before.
    """

    column: str
    threshold_ms: int
    in_order: bool = False

    def is_late(self, rows: pa.Table) -> Flags:
        """Which rows happened at the threshold or after it."""
        return self._late(rows.column(self.column))

    def is_late_change(self, block: Upserts | Deletes) -> Flags:
        """Which versions of a block happened then."""
        if isinstance(block, Upserts):
            return self.is_late(block.rows)
        if not self.in_order or not block.ordering:
            return np.zeros(len(block.keys), bool)
        late = self._late(block.ordering[0])
        return late if block.unconditional is None else late & ~np.asarray(block.unconditional)

    def is_late_winner(self, outcome: MergedLogRecords) -> Flags:
        """Which keys are won by a version that happened then."""
        late = np.zeros(len(outcome.keys), bool)
        if self.in_order:
            late = self._late(outcome.ordering[0]) & ~outcome.beats_any_base
        has_row = outcome.row >= 0
        late[has_row] = self.is_late(outcome.rows.take(pa.array(outcome.row[has_row])))
        return late

    def _late(self, column: pa.Array | pa.ChunkedArray) -> Flags:
        times = event_millis(column, self.column)
        late = pc.fill_null(pc.greater_equal(times, self.threshold_ms), False)
        return np.asarray(late, dtype=bool)


@dataclass(frozen=True, slots=True)
class SplitLogRecords:
    """The merged log versions of a slice: what the base file takes, and what stays beside it."""

    taken: MergedLogRecords
    remaining: MergedLogRecords

    def iterator(self) -> Iterator[pa.RecordBatch]:
        """The rows that the base file takes, unless it has stronger ones."""
        return _live(self.taken)

    def records(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Those of some keys."""
        return _found(self.iterator(), keys)

    def remain_logs_iterator(self) -> Iterator[pa.RecordBatch]:
        """The rows that stay in a log file: the RFC's `getRemainLogsIterator`."""
        return _live(self.remaining)

    def remain_records(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Those of some keys: the RFC's `getRemainRecords`."""
        return _found(self.remain_logs_iterator(), keys)


def _live(outcome: MergedLogRecords) -> Iterator[pa.RecordBatch]:
    rows = outcome.rows.take(pa.array(outcome.row[~outcome.deleted]))
    yield from rows.to_batches()


def _found(batches: Iterable[pa.RecordBatch], keys: Iterable[str]) -> dict[str, dict[str, Any]]:
    wanted = pa.array(sorted(set(keys)), pa.string())
    found = [
        batch.filter(pc.is_in(batch.column(RECORD_KEY), value_set=wanted)) for batch in batches
    ]
    return {row[RECORD_KEY]: row for batch in found for row in batch.to_pylist()}


# Tells which of some keys have a row in the base file.
InBase = Callable[[pa.Array], Flags]


def split_logs(
    changes: Changes,
    schema: pa.Schema,
    rule: MergeRule,
    cut: EventTimeThreshold,
    in_base: InBase | None = None,
) -> SplitLogRecords:
    """Merge versions, those before a threshold and the others apart.

    With `in_base` no key stays back that would have no row in the base file: an index that looks
    into base files alone would not find it.
    """
    whole = merge_logs(changes, schema, rule)
    late = cut.is_late_winner(whole)
    if not late.any():
        return SplitLogRecords(whole, whole.select(np.flatnonzero(late)))
    early = merge_logs(_without(changes, cut), schema, rule)
    stays, undone = _staying(whole, late, early, in_base)
    # All versions of a key that does not stay back are merged, late ones too.
    back = whole.keys.filter(pa.array(stays))
    gone = whole.keys.filter(pa.array(undone))
    taken = merge_logs(_without(changes, cut, back=back, gone=gone), schema, rule)
    return SplitLogRecords(taken, whole.select(np.flatnonzero(stays)))


def _staying(
    whole: MergedLogRecords, late: Flags, early: MergedLogRecords, in_base: InBase | None
) -> tuple[Flags, Flags]:
    """Which keys stay back, and for which of them nothing is done to the base file."""
    at = pc.index_in(whole.keys, value_set=early.keys)
    known = np.asarray(at.is_valid())
    place = np.asarray(pc.fill_null(at, 0), dtype=np.int64)
    if not len(early.keys):
        known, ended, row = known & False, known, known
    else:
        ended = known & (early.deleted & early.beats_any_base)[place]
        row = known & ~early.deleted[place]
    undone = late & ended
    if in_base is None:
        return late, undone
    stored = np.zeros(len(late), bool)
    stored[late] = in_base(whole.keys.filter(pa.array(late)))
    stays = late & (row | (stored & (~known | ended)))
    return stays, undone & stays


def _without(
    changes: Changes,
    cut: EventTimeThreshold,
    *,
    back: pa.Array | None = None,
    gone: pa.Array | None = None,
) -> list[Upserts | Deletes]:
    """The changes less the late ones: all of them, or those of the keys `back`.

    Of the keys `gone` there are none left at all.
    """
    kept = []
    for block in changes:
        late = cut.is_late_change(block)
        if back is not None and gone is not None:
            keys = _keys(block)
            late = (late & _among(keys, back)) | _among(keys, gone)
        kept.append(_only(block, ~late) if late.any() else block)
    return kept


def _among(keys: pa.Array | pa.ChunkedArray, some: pa.Array) -> Flags:
    return np.asarray(pc.is_in(keys, value_set=some), dtype=bool)


def _keys(block: Upserts | Deletes) -> pa.Array | pa.ChunkedArray:
    if isinstance(block, Deletes):
        return block.keys.cast(pa.string())
    return block.rows.column(RECORD_KEY)


def _only(block: Upserts | Deletes, wanted: Flags) -> Upserts | Deletes:
    mask = pa.array(wanted)
    if isinstance(block, Upserts):
        return replace(block, rows=block.rows.filter(mask))
    unconditional = block.unconditional
    return Deletes(
        block.keys.filter(mask),
        tuple(column.filter(mask) for column in block.ordering),
        unconditional.filter(mask) if unconditional is not None else None,
    )
