"""Floats as ordering values: one order, wherever two versions of a row meet."""

from __future__ import annotations

import math
import struct
from itertools import combinations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.model.merge import MergeRule, Upserts, merge_logs, merge_with_base
from lakewright.model.schema import RECORD_KEY

NEGATIVE_NAN = struct.unpack("<d", b"\x01\0\0\0\0\0\xf8\xff")[0]

# As Java orders them; each line holds values that are equal.
ASCENDING: dict[str, list[float | None]] = {
    "no value": [None],
    "minus infinity": [-math.inf],
    "a negative number": [-1.5],
    "a small negative number": [-5e-324],
    "minus zero": [-0.0],
    "zero": [0.0],
    "a small number": [5e-324],
    "a number": [1.5],
    "infinity": [math.inf],
    "not a number": [math.nan, NEGATIVE_NAN],
}
PAIRS = {
    f"{low} is below {high}": (ASCENDING[low][-1], ASCENDING[high][0])
    for low, high in combinations(ASCENDING, 2)
}
EQUALS = {name: (values[0], values[-1]) for name, values in ASCENDING.items()}
FLOATS = pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
Order = tuple[float | None, int]


def rows(kind: pa.DataType, versions: list[tuple[Order, str]]) -> pa.Table:
    """All of one key: `score` and `minor` are its ordering values."""
    columns = [
        pa.array(["k"] * len(versions)),
        pa.array([order[0] for order, _ in versions], pa.float64()).cast(kind, safe=False),
        pa.array([order[1] for order, _ in versions], pa.int64()),
        pa.array([note for _, note in versions]),
    ]
    return pa.table(columns, names=[RECORD_KEY, "score", "minor", "note"])


def winners(first: Order, second: Order, kind: pa.DataType, *ordering: str) -> list[str]:
    """Which row wins in one block, in two blocks, and as base row and log row."""
    rule = MergeRule(ordering or ("score",))
    old, new = rows(kind, [(first, "first")]), rows(kind, [(second, "second")])
    both = rows(kind, [(first, "first"), (second, "second")])
    none = old.slice(0, 0)
    ways = [(none, [both]), (none, [old, new]), (old, [new])]
    notes = []
    for base, logs in ways:
        outcome = merge_logs([Upserts(block) for block in logs], old.schema, rule)
        tables = merge_with_base(base.to_batches(), outcome, rule)
        (note,) = pa.concat_tables(list(tables)).column("note").to_pylist()
        notes.append(note)
    return notes


@FLOATS
@pytest.mark.parametrize(("low", "high"), PAIRS.values(), ids=list(PAIRS))
def test_the_higher_float_wins(low: float | None, high: float | None, kind: pa.DataType) -> None:
    if kind == pa.float32() and 5e-324 in (abs(low or 0), abs(high or 0)):
        # The smallest float of 32 bits is another one.
        low, high = (math.copysign(1e-45, v) if v and abs(v) == 5e-324 else v for v in (low, high))
    assert winners((low, 0), (high, 0), kind) == ["second"] * 3
    assert winners((high, 0), (low, 0), kind) == ["first"] * 3


@FLOATS
@pytest.mark.parametrize(("one", "other"), EQUALS.values(), ids=list(EQUALS))
def test_equal_floats_are_a_tie(one: float | None, other: float | None, kind: pa.DataType) -> None:
    assert winners((one, 0), (other, 0), kind) == ["second"] * 3
    two = ("score", "minor")
    assert winners((one, 1), (other, 2), kind, *two) == ["second"] * 3
    assert winners((one, 2), (other, 1), kind, *two) == ["first"] * 3


def java_order(value: float | None) -> tuple[int, float, float]:
    """The sort key of floats in Java."""
    if value is None:
        return (0, 0.0, 0.0)
    if math.isnan(value):
        return (2, 0.0, 0.0)
    return (1, value, math.copysign(1.0, value) if value == 0 else 0.0)


ANY_FLOAT = st.none() | st.floats() | st.sampled_from([0.0, -0.0, math.nan, NEGATIVE_NAN])


@given(ANY_FLOAT, ANY_FLOAT)
def test_any_two_floats_compare_alike_wherever_they_meet(
    first: float | None, second: float | None
) -> None:
    expected = "second" if java_order(second) >= java_order(first) else "first"
    assert winners((first, 0), (second, 0), pa.float64()) == [expected] * 3
