"""Values that the table's types cannot hold as they are."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakewright.errors import InvalidError
from lakewright.model.lossless_cast import check_lossless
from lakewright.model.schema import conform

MILLIS, MICROS = pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")
LONG, FLOAT, DOUBLE = pa.int64(), pa.float32(), pa.float64()
WHOLE = datetime(2026, 1, 1, 0, 0, 1, 999_000, UTC)
SPLIT = datetime(2026, 1, 1, 0, 0, 1, 999_001, UTC)
BEFORE = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)

Case = tuple[pa.DataType, pa.DataType, list[Any]]

LOSSLESS: dict[str, Case] = {
    "whole milliseconds": (MICROS, MILLIS, [WHOLE, None]),
    "milliseconds in a column of microseconds": (MILLIS, MICROS, [WHOLE, None]),
    "whole numbers that a double has": (LONG, DOUBLE, [0, -(2**53), 2**54, -(2**63), None]),
    "whole numbers that a float has": (LONG, FLOAT, [0, 2**24, -(2**40), None]),
    "ints as longs": (pa.int32(), LONG, [2**31 - 1, -(2**31), None]),
    "ints as doubles": (pa.int32(), DOUBLE, [2**31 - 1, -(2**31), None]),
    "floats as doubles": (FLOAT, DOUBLE, [0.1, float("nan"), float("inf"), None]),
    "decimals of more digits": (
        pa.decimal128(5, 2),
        pa.decimal128(12, 2),
        [Decimal("123.45"), None],
    ),
    "dates": (pa.date32(), pa.date32(), [date(1, 1, 1), None]),
    "texts": (pa.large_string(), pa.string(), ["a", None]),
    "bytes": (pa.binary(), pa.binary(2), [b"ab", None]),
    "a dictionary": (pa.dictionary(pa.int32(), pa.string()), pa.string(), ["a", None]),
    "nothing": (pa.null(), LONG, [None]),
    "structs": (
        pa.struct([("a", pa.int32()), ("t", MICROS)]),
        pa.struct([("t", MILLIS), ("a", LONG), ("new", FLOAT)]),
        [{"a": 1, "t": WHOLE}, None],
    ),
    "lists": (pa.list_(MICROS), pa.list_(MILLIS), [[WHOLE, None], None]),
    "maps": (
        pa.map_(pa.string(), LONG),
        pa.map_(pa.string(), DOUBLE),
        [[("a", 1), ("b", None)], None],
    ),
}

CHANGED: dict[str, Case] = {
    "microseconds": (MICROS, MILLIS, [WHOLE, SPLIT, SPLIT]),
    "microseconds before 1970": (MICROS, MILLIS, [WHOLE, BEFORE, BEFORE]),
    "local microseconds": (
        pa.timestamp("us"),
        pa.timestamp("ms"),
        [d.replace(tzinfo=None) for d in (WHOLE, SPLIT, SPLIT)],
    ),
    "a time beyond microseconds": (pa.timestamp("s"), pa.timestamp("us"), [0, 2**50, -(2**50)]),
    "a long that a double rounds": (LONG, DOUBLE, [2**53, 2**53 + 1, -(2**53) - 1]),
    "the greatest longs": (LONG, DOUBLE, [0, 2**63 - 1, 2**63 - 2]),
    "a long that a float rounds": (LONG, FLOAT, [2**24, 2**24 + 1, 2**63 - 1]),
    "an int that a float rounds": (pa.int32(), FLOAT, [2**24, 2**24 + 1, -(2**31) + 1]),
    "a long beyond ints": (LONG, pa.int32(), [1, 2**31, -(2**40)]),
    "a double in a float": (DOUBLE, FLOAT, [0.5, 0.1, 1e300]),
    "a fraction": (DOUBLE, LONG, [2.0, 0.5, float("inf")]),
    "digits of a decimal": (
        pa.decimal128(5, 2),
        pa.decimal128(5, 1),
        [Decimal("1.20"), Decimal("1.25"), Decimal("-0.01")],
    ),
    "a time of day in a date": (pa.date64(), pa.date32(), [0, 1, 86_399_999]),
    "a field of a struct": (
        pa.struct([("t", MICROS)]),
        pa.struct([("t", MILLIS)]),
        [{"t": WHOLE}, {"t": SPLIT}, {"t": SPLIT}],
    ),
    "an element of a list": (
        pa.list_(MICROS),
        pa.list_(MILLIS),
        [[WHOLE], [WHOLE, SPLIT], [SPLIT]],
    ),
    "a value of a map": (
        pa.map_(pa.string(), LONG),
        pa.map_(pa.string(), DOUBLE),
        [[("a", 1)], [("a", 2**53 + 1)], [("b", 2**53 + 3)]],
    ),
}


def rows(kind: pa.DataType, values: list[Any]) -> pa.Table:
    """The values in a slice, next to others that it leaves out."""
    plain = kind if not pa.types.is_date64(kind) else pa.int64()
    made = pa.array([values[0], *values, values[0]], plain).cast(kind)
    return pa.table({"x": made}).slice(1, len(values))


@pytest.mark.parametrize(("written", "stored", "values"), LOSSLESS.values(), ids=list(LOSSLESS))
def test_values_that_stay_the_same_are_accepted(
    written: pa.DataType, stored: pa.DataType, values: list[Any]
) -> None:
    schema = pa.schema([("x", stored)])
    check_lossless(rows(written, values), schema)
    conform(rows(written, values), schema, source="rows")


@pytest.mark.parametrize(("written", "stored", "values"), CHANGED.values(), ids=list(CHANGED))
def test_values_that_would_change_are_refused(
    written: pa.DataType, stored: pa.DataType, values: list[Any]
) -> None:
    table = rows(written, values)
    with pytest.raises(InvalidError, match="would change") as caught:
        check_lossless(table, pa.schema([("x", stored)]))
    facts = caught.value.facts
    assert facts["column"] in ("x", "x.t")
    assert facts["rows"] == 2
    assert facts["value"]
    # Without the first of them the others are still found; without them all is well.
    with pytest.raises(InvalidError):
        check_lossless(table.slice(2), pa.schema([("x", stored)]))
    check_lossless(table.slice(0, 1), pa.schema([("x", stored)]))


def test_the_error_says_what_to_do() -> None:
    with pytest.raises(InvalidError) as caught:
        check_lossless(rows(MICROS, [WHOLE, SPLIT]), pa.schema([("x", MILLIS)]))
    assert "date_trunc('MILLISECOND', column)" in str(caught.value)
    assert "value='2026-01-01 00:00:01.999001Z', rows=1, of=2" in str(caught.value)
