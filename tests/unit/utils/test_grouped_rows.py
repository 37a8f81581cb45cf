"""Rows in groups, and what is computed of each group at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lakewright.utils.grouped_rows import (
    GroupedRows,
    distinct_rows,
    reduce_spans,
    rows_of_spans,
)


def test_rows_of_a_group_keep_their_order() -> None:
    groups = GroupedRows.of(np.array([7, 3, 7, 3, 5]))
    assert [
        groups.order[start:end].tolist()
        for start, end in zip(groups.starts, groups.ends, strict=True)
    ] == [[1, 3], [4], [0, 2]]


def test_no_rows_are_no_groups() -> None:
    groups = GroupedRows.of(np.zeros(0, np.int64))
    assert (len(groups.order), len(groups.starts), len(groups.ends)) == (0, 0, 0)
    assert len(groups.last_true(np.zeros(0, bool))) == 0


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([0, 0, 0, 0, 0], [-1, 1, 2]),
        ([1, 1, 0, 0, 1], [1, 1, 4]),
        ([1, 0, 1, 1, 0], [0, 2, 3]),
    ],
)
def test_the_last_flag_of_each_group_is_found(flags: list[int], expected: list[int]) -> None:
    groups = GroupedRows.of(np.array([0, 0, 1, 2, 2]))
    assert groups.last_true(np.array(flags, bool)).tolist() == expected


def test_spans_are_reduced_without_what_is_between_them() -> None:
    values = np.array([5, 1, 9, 2, 8])
    starts, ends = np.array([0, 3]), np.array([2, 5])
    assert reduce_spans(np.add, values, starts, ends).tolist() == [6, 10]
    assert reduce_spans(np.maximum, values, np.array([1]), np.array([2])).tolist() == [1]
    assert reduce_spans(np.add, values, starts[:0], ends[:0]).tolist() == []
    assert rows_of_spans(starts, ends).tolist() == [0, 1, 3, 4]
    assert rows_of_spans(starts[:0], ends[:0]).tolist() == []


def test_distinct_rows_are_numbered() -> None:
    rows = pa.record_batch(
        {"a": ["x", "y", "x", None, "x"], "b": [1, 1, 1, None, 2], "c": [0, 1, 2, 3, 4]}
    )
    distinct, numbers = distinct_rows(rows, ["a", "b"])
    assert distinct.take(pa.array(numbers)).equals(rows.select(["a", "b"]))
    assert distinct.num_rows == 4
    empty, numbers = distinct_rows(rows.slice(0, 0), ["a"])
    assert (empty.num_rows, len(numbers)) == (0, 0)
    one, numbers = distinct_rows(rows.slice(0, 1), ["a", "b"])
    assert (one.to_pylist(), numbers.tolist()) == ([{"a": "x", "b": 1}], [0])
