"""The order of values in statistics is that of Java's types, and bounds enclose all values."""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from lakewright.model.value_order import column_bounds, value_ranks

NAN = float("nan")

ASCENDING: dict[str, tuple[pa.DataType, list[Any]]] = {
    "booleans": (pa.bool_(), [False, True]),
    "ints": (pa.int32(), [-(2**31), -1, 0, 1, 2**31 - 1]),
    "longs": (pa.int64(), [-(2**63), -(2**53) - 1, -(2**53), 2**53, 2**53 + 1, 2**63 - 1]),
    "doubles": (pa.float64(), [-math.inf, -1.5, -5e-324, -0.0, 0.0, 5e-324, 2.0, math.inf, NAN]),
    "floats": (pa.float32(), [-math.inf, -1.5, -0.0, 0.0, 2.0, math.inf, NAN]),
    "text": (pa.string(), ["", "A", "a", "aa", "b", "é", "\ud7ff"]),
    "text beyond the basic plane": (pa.string(), ["z", "\U0001f600", "\ue000", "\uffff"]),
    "bytes, which are signed": (
        pa.binary(),
        [b"", b"\x80", b"\xff", b"\x00", b"\x00\x80", b"\x00\x00", b"\x01", b"\x7f"],
    ),
    "decimals": (pa.decimal128(10, 2), [Decimal("-9.99"), Decimal("0.00"), Decimal("0.01")]),
    "dates": (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(2026, 1, 1)]),
    "times": (pa.timestamp("us", "UTC"), [-1, 0, 1]),
    "times of day": (pa.time32("ms"), [0, 1, 86_399_999]),
}


@pytest.mark.parametrize(("kind", "values"), ASCENDING.values(), ids=list(ASCENDING))
def test_values_are_ranked(kind: pa.DataType, values: list[Any]) -> None:
    ranks = value_ranks(pa.array([values[-1], *values, values[0]], kind)).tolist()
    first, *ascending, last = ranks
    assert all(a < b for a, b in pairwise(ascending))
    assert (first, last) == (ascending[-1], ascending[0])
    assert value_ranks(pa.array([], kind)).tolist() == []


def test_ranks_of_a_slice_are_of_its_own_values() -> None:
    values = pa.array([b"\x80", b"\x01", b"\x02"])[1:]
    assert value_ranks(values).tolist() == [0, 1]


BOUNDS: dict[str, tuple[pa.Array, object, object]] = {
    "numbers": (pa.array([3, None, 1], pa.int32()), 1, 3),
    "no values": (pa.array([None, None], pa.int64()), None, None),
    "nothing": (pa.array([], pa.string()), None, None),
    "text by bytes": (pa.array(["\ue000", "\U0001f600"]), "\ue000", "\U0001f600"),
    "unsigned bytes": (pa.array([b"\x80", b"\x01"]), b"\x01", b"\x80"),
    "NaN is the greatest": (pa.array([NAN, 1.0, None]), 1.0, NAN),
    "NaN alone": (pa.array([NAN, NAN, None]), NAN, NAN),
    "a zero encloses both zeros": (pa.array([0.0, -0.0]), -0.0, 0.0),
    "a least zero": (pa.array([0.0, 1.0], pa.float32()), -0.0, 1.0),
    "a greatest zero": (pa.array([-0.0, -1.0]), -1.0, 0.0),
    "no floats": (pa.array([None], pa.float64()), None, None),
}


@pytest.mark.parametrize(("values", "least", "greatest"), BOUNDS.values(), ids=list(BOUNDS))
def test_bounds_enclose_all_values(values: pa.Array, least: object, greatest: object) -> None:
    for column in (values, pa.chunked_array([values])):
        bounds = column_bounds(column)
        found = (bounds.least.as_py(), bounds.greatest.as_py())
        assert list(map(repr, found)) == list(map(repr, (least, greatest)))
        assert bounds.least.type == bounds.greatest.type == values.type
        assert (bounds.values, bounds.nulls) == (
            len(values) - values.null_count,
            values.null_count,
        )
