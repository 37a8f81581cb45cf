"""Orders of rows: each is a permutation, and keeps files narrow."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakewright.errors import InvalidError
from lakewright.services.clustering.layout import (
    Layout,
    Ordering,
    RangePartitioner,
    hilbert_axes,
    interleave,
)

FILES = 64
LAYOUTS = pytest.mark.parametrize("layout", Layout)

MAKERS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "whole numbers": (pa.int64(), lambda n: n - 500),
    "small numbers": (pa.int8(), lambda n: n % 100),
    "floats": (pa.float64(), lambda n: float("nan") if n == 1 else n / 7 - 9),
    "decimals": (pa.decimal128(12, 2), lambda n: Decimal(n - 300) / 4),
    "dates": (pa.date32(), lambda n: datetime.date(2020, 1, 1) + datetime.timedelta(n)),
    "times": (
        pa.timestamp("us", "UTC"),
        lambda n: datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(0, n),
    ),
    "strings": (pa.string(), lambda n: f"{n:05d}"),
    "bytes": (pa.binary(), lambda n: n.to_bytes(4, "big")),
    "booleans": (pa.bool_(), lambda n: n % 2 == 1),
}


def rows_of(kind: str, count: int, *, seed: int = 7, nulls: bool = True) -> pa.Table:
    """Rows of two columns of a kind, at random, with nulls; and their numbers."""
    chance = np.random.default_rng(seed)
    type_, make = MAKERS[kind]
    columns = [
        pa.array(
            [None if nulls and n < 20 else make(int(n)) for n in chance.integers(0, 1000, count)],
            type_,
        )
        for _ in range(2)
    ]
    return pa.table({"a": columns[0], "b": columns[1], "n": pa.array(range(count))})


def ranks(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    values = column.to_pylist()
    # A float that is no number is its own kind of equal.
    names = [str(value) if value != value else value for value in values]
    comparable = {v for v in names if v is not None and v != "nan"}
    order = {value: at + 1 for at, value in enumerate(sorted(comparable))}
    order |= {None: 0, "nan": len(order) + 1}
    return np.array([order[name] for name in names])


@LAYOUTS
@pytest.mark.parametrize("kind", MAKERS)
def test_the_order_of_every_kind_of_column_is_a_permutation(kind: str, layout: Layout) -> None:
    rows = rows_of(kind, 3000)
    indexes = Ordering(("a", "b"), layout).indexes(rows)
    assert sorted(indexes.tolist()) == list(range(3000))


@pytest.mark.parametrize("kind", MAKERS)
def test_linear_order_is_that_of_the_columns_nulls_first_and_stable(kind: str) -> None:
    rows = rows_of(kind, 2000)
    ordered = rows.take(pa.array(Ordering(("a", "b")).indexes(rows)))
    keys = list(
        zip(ranks(ordered["a"]), ranks(ordered["b"]), ordered["n"].to_pylist(), strict=True)
    )
    assert keys == sorted(keys)


def mean_range(rows: pa.Table, name: str) -> float:
    """How much of a column a file spans, as a share."""
    positions = ranks(rows[name])
    size = len(positions) // FILES
    spans = [np.ptp(positions[start : start + size]) for start in range(0, len(positions), size)]
    return float(np.mean(spans) / np.ptp(positions))


@pytest.mark.parametrize("layout", [Layout.ZORDER, Layout.HILBERT])
def test_on_a_curve_files_are_narrow_in_every_column(layout: Layout) -> None:
    rows = rows_of("strings", FILES * 200, nulls=False)
    assert min(mean_range(rows, name) for name in "ab") > 0.9
    ordered = rows.take(pa.array(Ordering(("a", "b"), layout).indexes(rows)))
    assert max(mean_range(ordered, name) for name in "ab") < 0.3


def test_hilbert_files_are_narrower_than_those_of_the_z_order() -> None:
    rows = rows_of("whole numbers", FILES * 200, nulls=False)
    spans = {
        layout: sum(
            mean_range(rows.take(pa.array(Ordering(("a", "b"), layout).indexes(rows))), name)
            for name in "ab"
        )
        for layout in (Layout.ZORDER, Layout.HILBERT)
    }
    assert spans[Layout.HILBERT] < spans[Layout.ZORDER]


@pytest.mark.parametrize(("axes", "bits"), [(2, 1), (2, 4), (3, 3), (4, 2)])
def test_a_hilbert_curve_goes_from_neighbour_to_neighbour(axes: int, bits: int) -> None:
    side = np.arange(1 << bits, dtype=np.uint64)
    points = np.stack(np.meshgrid(*[side] * axes), -1).reshape(-1, axes)
    codes = interleave(hilbert_axes([points[:, i].copy() for i in range(axes)], bits), bits)
    assert sorted(codes.tolist()) == list(range(len(points)))
    walked = points[np.argsort(codes)].astype(int)
    assert {int(np.abs(b - a).sum()) for a, b in pairwise(walked)} == {1}


def test_the_z_order_mixes_bits() -> None:
    one, other = (np.array([value], np.uint64) for value in (0b101, 0b011))
    assert interleave([one, other], 3).tolist() == [0b100111]


@LAYOUTS
@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_rows_have_an_order_too(count: int, layout: Layout) -> None:
    rows = rows_of("strings", count)
    assert sorted(Ordering(("a", "b"), layout).indexes(rows).tolist()) == list(range(count))


@LAYOUTS
def test_a_column_of_nulls_does_no_harm(layout: Layout) -> None:
    rows = pa.table({"a": pa.nulls(9, pa.int64()), "b": list(range(9, 0, -1))})
    ordered = rows.take(pa.array(Ordering(("a", "b"), layout).indexes(rows)))
    assert ordered["b"].to_pylist() == list(range(1, 10))


def test_more_columns_than_bits() -> None:
    rows = pa.table({f"c{n}": [2, 1, 3] for n in range(70)})
    indexes = Ordering(tuple(rows.column_names), Layout.HILBERT).indexes(rows)
    assert sorted(indexes.tolist()) == [0, 1, 2]


def test_fields_of_structs() -> None:
    rows = pa.table({"s": [{"x": 2}, {"x": 1}, None], "n": [1, 2, 3]})
    ordering = Ordering(("s.x", "n"))
    assert ordering.sources == ("s", "n")
    assert ordering.indexes(rows).tolist() == [2, 1, 0]


BAD_COLUMNS = {
    "a column that is not there": "nowhere",
    "a field that is not there": "s.y",
    "a struct": "s",
    "a list": "l",
}


@pytest.mark.parametrize("name", BAD_COLUMNS.values(), ids=list(BAD_COLUMNS))
def test_columns_that_rows_cannot_be_sorted_by(name: str) -> None:
    fields = {"s": pa.struct({"x": pa.int64()}), "l": pa.list_(pa.int64()), "n": pa.int64()}
    with pytest.raises(InvalidError, match=name):
        Ordering(("n", name)).check(pa.schema(fields))


@LAYOUTS
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("pieces", [2, 7])
def test_sorted_pieces_one_after_the_other_are_sorted(
    kind: str, pieces: int, layout: Layout
) -> None:
    rows = rows_of(kind, 2500)
    ordering = Ordering(("a", "b"), layout)
    splitter = RangePartitioner.from_sample(ordering, rows.slice(0, 300), pieces)
    numbers = splitter.assign(rows)
    assert splitter.pieces == pieces
    assert set(numbers.tolist()) <= set(range(pieces))
    parts = [rows.filter(pa.array(numbers == number)) for number in range(pieces)]
    whole = pa.concat_tables([part.take(pa.array(splitter.indexes(part))) for part in parts])
    assert sorted(whole["n"].to_pylist()) == list(range(2500))
    if layout is Layout.LINEAR:
        keys = list(zip(ranks(whole["a"]), ranks(whole["b"]), strict=True))
        assert keys == sorted(keys)


@LAYOUTS
def test_a_frequent_value_is_shared_by_pieces(layout: Layout) -> None:
    rows = pa.table({"a": [1] * 900 + [2] * 100, "b": ["x"] * 1000})
    splitter = RangePartitioner.from_sample(Ordering(("a", "b"), layout), rows, 5)
    sizes = np.bincount(splitter.assign(rows), minlength=5)
    assert sizes.max() <= 400


def test_checking_the_columns_imports_nothing_heavy() -> None:
    """It runs while a plan is made under the lock of the table."""
    program = (
        "import sys, pyarrow as pa; from lakewright.services.clustering.layout import Ordering; "
        "Ordering(('a',)).check(pa.schema([('a', pa.string())])); print('pandas' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program]) == b"False\n"
