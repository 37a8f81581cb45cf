"""Filters in SQL: what is understood, what is left to Spark, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakewright.errors import InvalidError
from lakewright.scan.filters import parse_filter
from lakewright.scan.scan_plan import Comparison

NAN = float("nan")
ROWS = pa.table(
    {
        "id": pa.array(["a", "b", "c", None]),
        "n": pa.array([1, 2, None, 4], pa.int32()),
        "x": pa.array([0.1, NAN, None, -1.0], pa.float32()),
        "day": pa.array([date(2026, 1, n) for n in (1, 2, 3)] + [None]),
        "at": pa.array(
            [datetime(2026, 1, n, tzinfo=UTC) for n in (1, 2, 3)] + [None],
            pa.timestamp("us", "UTC"),
        ),
        "ok": pa.array([True, False, None, True]),
        "price": pa.array([Decimal("1.0"), None, None, None], pa.decimal128(5, 2)),
        "info": pa.array([{"x": 1}] * 4),
    }
)

# A filter, and the numbers of the rows that pass it: as Spark 4 answers the same question.
UNDERSTOOD: dict[str, list[int]] = {
    "n > 1": [1, 3],
    "N >= 2 AND id = 'b'": [1],
    "2 < n": [3],
    "n = 1 or id = 'c'": [0, 2],
    "not n = 1": [1, 3],
    "n != 1": [1, 3],
    "n <> 1": [1, 3],
    "n in (1, 4)": [0, 3],
    "n not in (1)": [1, 3],
    "n between 1 and 2": [0, 1],
    "n not between 1 and 2": [3],
    "n is null": [2],
    "n is not null": [0, 1, 3],
    "(n = 1)": [0],
    "n > -5": [0, 1, 3],
    "id > 'a'": [1, 2],
    "x > 0.5": [1],
    "x >= -1": [0, 1, 3],
    "x < 100": [0, 3],
    "x != 0.5": [0, 1, 3],
    "x = 0.1": [],  # the float next to it is not the double next to it
    "day >= '2026-01-02'": [1, 2],
    "at < '2026-01-02 00:00:00'": [0],
    "at = '2026-01-02'": [1],
    "ok = true": [0, 3],
    "not (n = 1 and ok = true)": [1, 3],
}


@pytest.mark.parametrize(("text", "expected"), UNDERSTOOD.items())
def test_rows_that_pass(text: str, expected: list[int]) -> None:
    parsed = parse_filter(text, ROWS.schema)
    assert parsed is not None
    numbered = ROWS.append_column("at_row", pa.array(range(4)))
    passed: list[Any] = numbered.filter(parsed.expression).column("at_row").to_pylist()
    assert passed == expected


LEFT_TO_SPARK = [
    "n = '1'",
    "n = 1.5",
    "n > 99999999999999999999",
    "n = id",
    "ok",
    "length(id) = 1",
    "id like 'a%'",
    "price > 0.5",
    "info.x = 1",
    "n <=> 1",
    "n + 1 > 2",
    "day > '2026'",
    "at > 'yesterday'",
    "n in (select 1)",
    "id = NULL",
    "n between 1 and 2 and upper(id) = 'A'",
]


@pytest.mark.parametrize("text", LEFT_TO_SPARK)
def test_what_only_spark_is_sure_of_is_left_to_it(text: str) -> None:
    assert parse_filter(text, ROWS.schema) is None


REFUSED = {
    "n >": "not a condition",
    "": "not a condition",
    "n = 1; drop table trips": "not a condition",
    "n = 1 limit 3": "not a condition",
    "n = 1 group by n": "not a condition",
    "n = 1 union select 2": "not a condition",
    "m = 1": "no such column",
    "nn = 1 and upper(id) = 'A'": "no such column",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items())
def test_what_is_no_filter_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        parse_filter(text, ROWS.schema)


def test_conjuncts_of_a_filter_are_used_for_pruning() -> None:
    parsed = parse_filter(
        "day = '2026-01-01' and (n in (1, 2)) and (n > 1 or id = 'a')", ROWS.schema
    )
    assert parsed is not None
    assert parsed.comparisons == (
        Comparison("day", "=", date(2026, 1, 1)),
        Comparison("n", "in", (1, 2)),
    )
    assert parsed.columns == ("day", "n", "id")
