"""Ordering values at the edge mean the same in both table types."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from lakewright.errors import InvalidError
from support.tables import SCHEMA, WrittenTable, row

BOTH = pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
FLOATS = SCHEMA.set(SCHEMA.get_field_index("ts"), pa.field("ts", pa.float64()))


@BOTH
@pytest.mark.parametrize("commits", [1, 2])
def test_not_a_number_is_newer_than_every_number(table_type: str, commits: int) -> None:
    table = WrittenTable(schema=FLOATS).create(table_type)
    versions = [{**row("a", note="nan"), "ts": math.nan}, {**row("a", note="five"), "ts": 5.0}]
    for part in [versions] if commits == 1 else [versions[:1], versions[1:]]:
        table.upsert(part)
    assert [record["note"] for record in table.rows()] == ["nan"]


@BOTH
def test_an_ordered_delete_without_value_is_refused(table_type: str) -> None:
    table = WrittenTable().create(table_type)
    table.upsert([row("a", 5), row("b", 5)])
    with pytest.raises(InvalidError, match="no ordering value"):
        table.write("DELETE", [row("a", 9), {**row("b"), "ts": None}], ordered=True)
    assert [record["id"] for record in table.rows()] == ["a", "b"]
    table.write("DELETE", [{**row("b"), "ts": None}])
    assert [record["id"] for record in table.rows()] == ["a"]
