"""Rows as JSON texts: every type, whole columns at a time."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.errors import UnsupportedError
from lakewright.scan.cdc.reader import row_texts, struct_texts

NESTED = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])
MONEY = pa.decimal128(12, 2)

CASES: dict[str, tuple[pa.DataType, Any, str]] = {
    "a text": (pa.string(), "plain", '"plain"'),
    "a text with marks": (pa.string(), 'a"b\\c', r'"a\"b\\c"'),
    "a text of several lines": (pa.string(), "a\n\tb\x01", r'"a\n\tb\u0001"'),
    "a text of the world": (pa.string(), "åé漢", '"åé漢"'),
    "an empty text": (pa.string(), "", '""'),
    "a number": (pa.int64(), -(2**63), "-9223372036854775808"),
    "a flag": (pa.bool_(), True, "true"),
    "a fraction": (pa.float64(), 0.1, "0.1"),
    "a great fraction": (pa.float64(), 1e300, "1e+300"),
    "no number": (pa.float64(), math.nan, '"NaN"'),
    "more than all numbers": (pa.float64(), math.inf, '"Infinity"'),
    "less than all numbers": (pa.float32(), -math.inf, '"-Infinity"'),
    "money": (MONEY, Decimal("-0.01"), "-0.01"),
    "a time in microseconds": (
        pa.timestamp("us", "UTC"),
        datetime(2026, 1, 1, tzinfo=UTC),
        "1767225600000000",
    ),
    "a local time": (pa.timestamp("us"), datetime(1970, 1, 1, 0, 0, 1), "1000000"),
    "a day": (pa.date32(), date(1970, 1, 3), "2"),
    "bytes": (pa.binary(), b"\x00\xff", '"AP8="'),
    "a list": (pa.list_(pa.int64()), [1, None], "[1,null]"),
    "an empty list": (pa.list_(pa.int64()), [], "[]"),
    "a list of lists": (pa.list_(pa.list_(pa.string())), [["a"], None], '[["a"],null]'),
    "a map": (pa.map_(pa.string(), MONEY), [('k"', Decimal("1.50"))], r'{"k\"":1.50}'),
    "a map of numbers": (pa.map_(pa.int32(), pa.bool_()), [(1, None)], '{"1":null}'),
    "a struct": (NESTED, {"a": 1, "b": {"c": None}}, '{"a":1,"b":{"c":null}}'),
    "a struct with nothing in it": (NESTED, {"a": None, "b": None}, '{"a":null,"b":null}'),
}


@pytest.mark.parametrize(("kind", "value", "expected"), CASES.values(), ids=list(CASES))
def test_a_value(kind: pa.DataType, value: Any, expected: str) -> None:
    rows = pa.table({"v": pa.array([None, value, None, value], kind)})
    texts = row_texts(rows).to_pylist()
    assert texts == ['{"v":null}', f'{{"v":{expected}}}'] * 2
    # A part of a column is not sliced with it.
    assert row_texts(rows.slice(1, 2)).to_pylist() == texts[1:3]
    assert all(json.loads(text) for text in texts)


def test_a_struct_that_is_not_there_is_none() -> None:
    rows = pa.array([{"a": 1, "b": None}, None], NESTED)
    assert struct_texts(rows).to_pylist() == ['{"a":1,"b":null}', None]


def test_rows_in_several_pieces_and_none() -> None:
    piece = pa.table({"a": ["x"], "b": [1]})
    assert row_texts(pa.concat_tables([piece, piece])).to_pylist() == ['{"a":"x","b":1}'] * 2
    assert row_texts(piece.slice(0, 0)).to_pylist() == []
    assert row_texts(piece.select([])).to_pylist() == ["{}"]


def test_a_type_without_a_form_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="JSON"):
        row_texts(pa.table({"d": pa.array([1], pa.duration("s"))}))


values = st.fixed_dictionaries(
    {
        "text": st.none() | st.text(),
        "number": st.none() | st.integers(-(2**63), 2**63 - 1),
        "fraction": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "items": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        'a "name"': st.none() | st.fixed_dictionaries({"x": st.none() | st.booleans()}),
    }
)
SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.int64()),
        ("fraction", pa.float64()),
        ("items", pa.list_(pa.string())),
        ('a "name"', pa.struct([("x", pa.bool_())])),
    ]
)


@given(st.lists(values, max_size=6))
def test_what_is_written_is_read_back(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    assert [json.loads(text) for text in row_texts(table).to_pylist()] == rows
