"""Literals of a PARTITION clause whose value is known without Spark."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from lakewright.sql.statements import plain_literal

CASES: dict[str, tuple[str, T.DataType, str | int | None]] = {
    "text": (" '2026-01-31' ", T.StringType(), "2026-01-31"),
    "an empty text": ("''", T.StringType(), ""),
    "a number": ("7", T.IntegerType(), 7),
    "a long number": ("20260131", T.LongType(), 20260131),
    "text with an escape": (r"'a\\tb'", T.StringType(), None),
    "two texts": ("'a' 'b'", T.StringType(), None),
    "an expression": ("current_date()", T.StringType(), None),
    "a number for a column of text": ("7", T.StringType(), None),
    "text for a column of numbers": ("'7'", T.IntegerType(), None),
    "a date": ("'2026-01-31'", T.DateType(), None),
    "nothing": ("", T.StringType(), None),
}


@pytest.mark.parametrize(("text", "column", "value"), CASES.values(), ids=list(CASES))
def test_plain_literals(text: str, column: T.DataType, value: str | int | None) -> None:
    assert plain_literal(text, column) == value
