"""Rows of an older schema in the table's schema."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakewright.model.schema import conform

# Stored type, table's type, values, and what they are in the table's type.
NESTED: dict[str, tuple[pa.DataType, pa.DataType, list[object], list[object]]] = {
    "a struct takes its fields by name": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        pa.struct([("b", pa.string()), ("c", pa.bool_()), ("a", pa.int64())]),
        [{"a": 1, "b": "x"}, None, {"a": 3, "b": None}, {"a": 4, "b": "y"}],
        [
            {"b": "x", "c": None, "a": 1},
            None,
            {"b": None, "c": None, "a": 3},
            {"b": "y", "c": None, "a": 4},
        ],
    ),
    "a list takes its items": (
        pa.list_(pa.field("array", pa.int32())),
        pa.list_(pa.field("element", pa.int64())),
        [[1], None, [], [2, None, 3]],
        [[1], None, [], [2, None, 3]],
    ),
    "a map takes its entries": (
        pa.map_(pa.string(), pa.int32()),
        pa.map_(pa.string(), pa.int64()),
        [[("a", 1)], None, [], [("b", 2), ("c", None)]],
        [[("a", 1)], None, [], [("b", 2), ("c", None)]],
    ),
    "a list of structs takes both": (
        pa.list_(pa.struct([("a", pa.int32())])),
        pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])),
        [[{"a": 1}], None, [], [{"a": 2}, {"a": 3}]],
        [[{"a": 1, "b": None}], None, [], [{"a": 2, "b": None}, {"a": 3, "b": None}]],
    ),
}


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize(
    ("stored", "kind", "values", "expected"), NESTED.values(), ids=list(NESTED)
)
def test_a_slice_conforms_as_the_whole_does(
    stored: pa.DataType,
    kind: pa.DataType,
    values: list[object],
    expected: list[object],
    start: int,
) -> None:
    rows = pa.table([pa.array(values, stored).slice(start)], names=["v"])
    conformed = conform(rows, pa.schema([("v", kind)]), source="f")
    conformed.validate(full=True)
    assert conformed.column("v").to_pylist() == expected[start:]
