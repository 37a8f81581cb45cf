"""Taking rows and finding keys within the limits of Arrow, most of them lowered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.utils import arrow_rows
from lakewright.utils.arrow_rows import (
    as_array,
    cast_in_pieces,
    index_in,
    is_in,
    split_by_size,
    take_rows,
    take_values,
    without_large_type,
)

LIMIT = 400


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_rows, "MAX_CHUNK_BYTES", LIMIT)
    monkeypatch.setattr(arrow_rows, "_SMALL_BYTES", 0)


def rows(chunks: Sequence[int]) -> pa.Table:
    """Rows in chunks of these sizes, with texts of different lengths, nulls and nested values."""
    count = sum(chunks)
    table = pa.table(
        {
            "number": pa.array(range(count), pa.int64()),
            "text": pa.array([None if n % 5 == 4 else "ä" * (n * 7 % 60) for n in range(count)]),
            "nested": pa.array([{"tags": [f"t{n}"] * (n % 4)} for n in range(count)]),
        }
    )
    starts = np.cumsum([0, *chunks[:-1]]).tolist()
    return pa.concat_tables(
        [table.slice(start, size) for start, size in zip(starts, chunks, strict=True)]
    )


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.data())
def test_rows_are_taken_as_arrow_takes_them(chunks: list[int], data: st.DataObject) -> None:
    table = rows(chunks)
    at = data.draw(st.lists(st.integers(-1, len(table) - 1), max_size=80))
    numbers = np.array(at, np.int64)
    expected = table.take(pa.array(numbers, mask=numbers < 0))
    assert take_rows(table, numbers).to_pylist() == expected.to_pylist()
    assert take_values(table.column("text"), numbers).to_pylist() == expected["text"].to_pylist()


def test_no_chunk_exceeds_the_limit_whatever_the_order() -> None:
    table = rows([40] * 5)
    largest_row = max(table.slice(number, 1).nbytes for number in range(len(table)))
    for order in (np.arange(200)[::-1], np.random.default_rng(1).permutation(200)):
        taken = take_rows(table, order)
        assert taken.column("number").to_pylist() == order.tolist()
        for batch in taken.to_batches():
            assert batch.nbytes <= max(LIMIT, largest_row)


def test_consecutive_rows_are_not_copied() -> None:
    table = rows([50, 50])
    before = pa.total_allocated_bytes()
    taken = take_rows(table, np.arange(20, 90))
    # What is allocated is the numbers of the rows, at most.
    assert pa.total_allocated_bytes() - before < table.nbytes // 4
    assert taken.equals(table.slice(20, 70))


def test_a_column_of_more_than_two_gibibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    chunk = pa.array(["x" * 65_536] * 1024)
    table = pa.table(
        {"n": np.arange(36 * 1024), "text": pa.chunked_array([chunk] * 36, pa.string())}
    )
    assert table.nbytes > 2**31
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        table.take(pa.array([5, 3, 36_000]))
    taken = take_rows(table, np.array([5, 3, 36_000]))
    assert taken.column("n").to_pylist() == [5, 3, 36_000]
    assert len(take_rows(table, np.arange(len(table)))) == len(table)


@dataclass(frozen=True)
class Keys:
    count: int
    kind: pa.DataType


KEYS = {
    "few keys keep their type": Keys(10, pa.string()),
    "many keys get a large type": Keys(400, pa.large_string()),
}


@pytest.mark.parametrize("case", KEYS.values(), ids=list(KEYS))
def test_keys_are_found_whatever_their_type(case: Keys) -> None:
    texts = [f"key {number}" for number in range(case.count)]
    chunked = pa.chunked_array([texts[: case.count // 2], texts[case.count // 2 :]])
    keys = as_array(chunked)
    assert keys.type == case.kind
    assert keys.to_pylist() == texts
    wanted = pa.chunked_array([["key 3", "no key"], ["key 9"]])
    assert index_in(wanted, keys).to_pylist() == [3, None, 9]
    assert pa.chunked_array(is_in(wanted, keys)).to_pylist() == [True, False, True]
    assert without_large_type(keys.slice(0, 2)).type == pa.string()
    pieces = cast_in_pieces(keys, pa.string())
    assert [text for piece in pieces for text in piece.to_pylist()] == texts
    assert all(piece.type == pa.string() for piece in pieces)
    assert max(piece.nbytes for piece in pieces) <= LIMIT


def test_no_piece_is_much_too_large_though_rows_differ_in_size() -> None:
    texts = ["x" * 1000] * 50 + ["y"] * 5000
    table = pa.table({"text": texts})
    pieces = list(split_by_size(table, 10_000))
    assert pa.concat_tables(pieces).equals(table)
    assert max(piece.nbytes for piece in pieces) <= 20_000
    assert [len(piece) for piece in split_by_size(table.slice(0, 1), 10)] == [1]
