"""Event times: when what a row tells happened, in milliseconds since 1970."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError

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
