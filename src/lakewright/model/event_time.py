"""Event times of rows, in milliseconds since 1970, and splitting log records by event time.

A compaction with an event-time threshold merges the versions before the threshold into the base
file; the others, the late ones, remain in a log file of the new slice. Base file and log file
together return the same rows to every reader as before, whatever log files follow, because:

- a key remains in the log file only if the version that wins among all of its log versions is late;
- the remaining version ranks at least as high as all versions merged into the base file, and log
  records win ties against base rows;
- an unconditional delete (one without ordering value) discards all earlier log versions and the
  base row. If a late row that remains follows such a delete, the delete is not applied to the base
  file: whether that row wins still depends on its ordering value and that of the old base row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError
from lakewright.model.merge import Deletes, Flags, MergedLogRecords, MergeRule, Upserts, merge_logs
from lakewright.model.schema import RECORD_KEY

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS = (10**9, 10**10)
_MILLIS = (10**12, 10**13)
_UNITS_PER_MS = {"us": 1000, "ns": 1_000_000}
# Leaves room for a lateness, and for one millisecond less, in 64 bits.
_MAX_MS = 10**18


def time_text(time_ms: int) -> str:
    """Return an event time as date and time in UTC, or that it has none.

    >>> time_text(0), time_text(10**18), time_text(-10**18)
    ('1970-01-01T00:00:00.000+00:00', 'after year 9999', 'before year 1')
    """
    try:
        moment = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return "before year 1" if time_ms < 0 else "after year 9999"
    return moment.isoformat(timespec="milliseconds")


def event_range(column: pa.Array | pa.ChunkedArray, name: str) -> tuple[int | None, int | None]:
    """Return the least and the greatest event time of a column; None if it has none.

    As in Hudi, an integer of ten digits is in seconds and one of thirteen in milliseconds; other
    integers are not event times. Neither are timestamps of which milliseconds cannot be counted.
    """
    bounds = pc.min_max(event_millis(column, name)).as_py()
    return bounds["min"], bounds["max"]


def count_until(column: pa.Array | pa.ChunkedArray, name: str, time_ms: int) -> int:
    """Return how many event times of a column are at or before a time."""
    return pc.sum(pc.less_equal(event_millis(column, name), time_ms)).as_py() or 0


def check_event_time(schema: pa.Schema, name: str) -> None:
    """Raise InvalidError if the column does not exist or its type cannot hold event times."""
    if name not in schema.names:
        raise InvalidError(
            "the column of event times is not there", column=name, columns=list(schema.names)
        )
    event_millis(pa.array([], schema.field(name).type), name)


def event_millis(column: pa.Array | pa.ChunkedArray, name: str) -> pa.ChunkedArray | pa.Array:
    """Return the event time of each row in milliseconds; null where it has none."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _timestamp_millis(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        is_number = pc.match_substring_regex(column, r"^[0-9]{1,18}$")
        column = pc.if_else(is_number, column, pa.scalar(None, kind)).cast(pa.int64())
    elif pa.types.is_integer(kind):
        column = column.cast(pa.int64(), safe=False)  # what overflows is negative, and no time
    else:
        raise InvalidError(
            "a column of this type holds no event times: a whole number (seconds or "
            "milliseconds), a timestamp or a date expected",
            column=name,
            type=str(kind),
        )
    seconds = pc.multiply(_null_outside(column, _SECONDS), 1000)
    return pc.coalesce(seconds, _null_outside(column, _MILLIS))


def _timestamp_millis(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return timestamps or dates in whole milliseconds, rounded down; null if out of range."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"), safe=False)
    unit, values = column.type.unit, column.cast(pa.int64())
    if unit in _UNITS_PER_MS:
        # Arrow's division rounds to zero, so before 1970 up.
        units = _UNITS_PER_MS[unit]
        quotient = pc.divide(values, units)
        remainder = pc.subtract(values, pc.multiply(quotient, units))
        return pc.subtract(quotient, pc.less(remainder, 0).cast(pa.int64()))
    if unit == "s":
        return pc.multiply(_null_outside(values, (-_MAX_MS // 1000, _MAX_MS // 1000)), 1000)
    return _null_outside(values, (-_MAX_MS, _MAX_MS))


def _null_outside(column: pa.Array, bounds: tuple[int, int]) -> pa.Array:
    low, high = bounds
    is_within = pc.and_(pc.greater_equal(column, low), pc.less(column, high))
    return pc.if_else(is_within, column, pa.scalar(None, pa.int64()))


# Splitting the log records of a file slice.

Changes = Sequence[Upserts | Deletes]


@dataclass(frozen=True, slots=True)
class EventTimeThreshold:
    """An event time, and the column that holds the event times of rows.

    `in_order`: the column is also the ordering column, so that the ordering value of a delete is
    its event time. A delete whose event time is unknown counts as before the threshold.
    """

    column: str
    threshold_ms: int
    in_order: bool = False

    def is_late(self, rows: pa.Table) -> Flags:
        """Return which rows are late: at the threshold or after it."""
        return self._late(rows.column(self.column))

    def is_late_change(self, block: Upserts | Deletes) -> Flags:
        """Return which versions of a block are late."""
        if isinstance(block, Upserts):
            return self.is_late(block.rows)
        if not self.in_order or not block.ordering:
            return np.zeros(len(block.keys), bool)
        late = self._late(block.ordering[0])
        return late if block.unconditional is None else late & ~np.asarray(block.unconditional)

    def is_late_winner(self, outcome: MergedLogRecords) -> Flags:
        """Return for which keys the winning version is late."""
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
    """The merged log records of a slice, split by event time.

    `to_merge` are those to merge into the base file, `remaining` those that stay in a log file.
    """

    to_merge: MergedLogRecords
    remaining: MergedLogRecords

    def remain_logs_iterator(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that remain in a log file: the RFC's `getRemainLogsIterator`."""
        rows = self.remaining.rows.take(pa.array(self.remaining.row[~self.remaining.deleted]))
        yield from rows.to_batches()


# Returns for each key whether it has a row in the base file.
InBase = Callable[[pa.Array], Flags]


def split_logs(
    changes: Changes,
    schema: pa.Schema,
    rule: MergeRule,
    threshold: EventTimeThreshold,
    in_base: InBase | None = None,
) -> SplitLogRecords:
    """Merge the log records of a slice, split by an event-time threshold.

    With `in_base`, a key remains in the log file only if it will have a row in the base file: an
    index that reads only base files would not find it otherwise.
    """
    merged = merge_logs(changes, schema, rule)
    late = threshold.is_late_winner(merged)
    if not late.any():
        return SplitLogRecords(merged, merged.select(np.flatnonzero(late)))
    early = merge_logs(_without_late(changes, threshold), schema, rule)
    remains, untouched = _remaining_keys(merged, late, early, in_base)
    # Of keys that do not remain, all versions go into the base file, late ones too.
    remaining_keys = merged.keys.filter(pa.array(remains))
    untouched_keys = merged.keys.filter(pa.array(untouched))
    to_merge = merge_logs(
        _without_late(
            changes, threshold, remaining_keys=remaining_keys, untouched_keys=untouched_keys
        ),
        schema,
        rule,
    )
    return SplitLogRecords(to_merge, merged.select(np.flatnonzero(remains)))


def _remaining_keys(
    merged: MergedLogRecords, late: Flags, early: MergedLogRecords, in_base: InBase | None
) -> tuple[Flags, Flags]:
    """Return which keys remain, and for which of them the base row must be left untouched.

    The latter are keys whose early versions end with an unconditional delete.
    """
    early_index = pc.index_in(merged.keys, value_set=early.keys)
    has_early = np.asarray(early_index.is_valid())
    position = np.asarray(pc.fill_null(early_index, 0), dtype=np.int64)
    if not len(early.keys):
        has_early, is_reset, has_early_row = has_early & False, has_early, has_early
    else:
        is_reset = has_early & (early.deleted & early.beats_any_base)[position]
        has_early_row = has_early & ~early.deleted[position]
    untouched = late & is_reset
    if in_base is None:
        return late, untouched
    has_base_row = np.zeros(len(late), bool)
    has_base_row[late] = in_base(merged.keys.filter(pa.array(late)))
    remains = late & (has_early_row | (has_base_row & (~has_early | is_reset)))
    return remains, untouched & remains


def _without_late(
    changes: Changes,
    threshold: EventTimeThreshold,
    *,
    remaining_keys: pa.Array | None = None,
    untouched_keys: pa.Array | None = None,
) -> list[Upserts | Deletes]:
    """Return the changes without late ones: of all keys, or only of `remaining_keys`.

    In the second case all changes of `untouched_keys` are left out as well.
    """
    filtered = []
    for block in changes:
        excluded = threshold.is_late_change(block)
        if remaining_keys is not None and untouched_keys is not None:
            keys = _keys(block)
            excluded = (excluded & _is_in(keys, remaining_keys)) | _is_in(keys, untouched_keys)
        filtered.append(_filtered(block, ~excluded) if excluded.any() else block)
    return filtered


def _is_in(keys: pa.Array | pa.ChunkedArray, value_set: pa.Array) -> Flags:
    return np.asarray(pc.is_in(keys, value_set=value_set), dtype=bool)


def _keys(block: Upserts | Deletes) -> pa.Array | pa.ChunkedArray:
    if isinstance(block, Deletes):
        return block.keys.cast(pa.string())
    return block.rows.column(RECORD_KEY)


def _filtered(block: Upserts | Deletes, keep: Flags) -> Upserts | Deletes:
    mask = pa.array(keep)
    if isinstance(block, Upserts):
        return replace(block, rows=block.rows.filter(mask))
    unconditional = block.unconditional
    return Deletes(
        block.keys.filter(mask),
        tuple(column.filter(mask) for column in block.ordering),
        unconditional.filter(mask) if unconditional is not None else None,
    )
