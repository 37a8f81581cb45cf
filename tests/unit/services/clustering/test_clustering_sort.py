"""Sorting rows that do not fit into memory."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pytest

from lakewright.services.clustering import layout
from lakewright.services.clustering.layout import Layout, Ordering, sorted_rows
from lakewright.utils.arrow_rows import split_by_size

COUNT = 6000


class Rows:
    """Rows in batches that may be read more than once; `projections`: columns of each reading."""

    def __init__(self, table: pa.Table, batch: int = 500) -> None:
        self.table = table
        self.batch = batch
        self.projections: list[Sequence[str] | None] = []

    def read(self, columns: Sequence[str] | None) -> Generator[pa.Table, None, None]:
        self.projections.append(columns)
        chosen = self.table if columns is None else self.table.select(list(columns))
        for start in range(0, len(chosen), self.batch):
            yield chosen.slice(start, self.batch)


def rows() -> pa.Table:
    chance = np.random.default_rng(11)
    return pa.table(
        {
            "a": chance.integers(0, 40, COUNT),
            "b": [None if n % 9 == 0 else f"{n % 977:04d}" for n in range(COUNT)],
            "n": list(range(COUNT)),
        }
    )


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


LIMITS = {"in memory": 1 << 30, "in some pieces": 60_000, "in very many pieces": 1}


@pytest.mark.parametrize("most_bytes", LIMITS.values(), ids=list(LIMITS))
def test_linear_order_is_the_same_however_little_fits(most_bytes: int, disk: Path) -> None:
    table = rows()
    ordered = pa.concat_tables(sorted_rows(Rows(table).read, Ordering(("a", "b")), most_bytes))
    expected = sorted(
        table.to_pylist(), key=lambda row: (row["a"], row["b"] is not None, row["b"] or "")
    )
    keys = [(row["a"], row["b"]) for row in ordered.to_pylist()]
    assert keys == [(row["a"], row["b"]) for row in expected]
    assert sorted(ordered["n"].to_pylist()) == list(range(COUNT))
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("most_bytes", LIMITS.values(), ids=list(LIMITS))
def test_no_row_is_lost_or_doubled(layout: Layout, most_bytes: int, disk: Path) -> None:
    ordering = Ordering(("b", "a"), layout)
    ordered = pa.concat_tables(sorted_rows(Rows(rows()).read, ordering, most_bytes))
    assert sorted(ordered["n"].to_pylist()) == list(range(COUNT))


def test_only_the_columns_of_the_order_are_read_twice() -> None:
    few, many = Rows(rows()), Rows(rows())
    list(sorted_rows(few.read, Ordering(("a",)), 1 << 30))
    list(sorted_rows(many.read, Ordering(("a",)), 60_000))
    assert few.projections == [None]
    assert many.projections == [None, ("a",)]


def test_no_rows_have_no_order() -> None:
    assert list(sorted_rows(Rows(rows().slice(0, 0)).read, Ordering(("a",)), 1)) == []


def test_memory_is_bounded(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No piece is much larger than the memory for it, though one value is in most rows."""
    sizes: list[int] = []

    def noted(table: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
        sizes.append(table.nbytes)
        return split_by_size(table, most_bytes)

    monkeypatch.setattr(layout, "split_by_size", noted)
    table = rows().set_column(0, "a", pa.array([7] * (COUNT - 5) + [1, 2, 3, 8, 9]))
    limit = 40_000
    list(sorted_rows(Rows(table).read, Ordering(("a",)), limit))
    assert max(sizes) <= limit
    assert sum(sizes) >= table.nbytes * 0.9


def test_a_sort_that_is_given_up_leaves_nothing_on_disk(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[IO[bytes]] = []

    create = tempfile.TemporaryFile

    def noted(*, prefix: str, dir: str) -> IO[bytes]:
        files.append(create(prefix=prefix, dir=dir))
        return files[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", noted)
    batches = sorted_rows(Rows(rows()).read, Ordering(("a",)), 10_000, str(disk))
    next(batches)
    assert files
    # The files have no names: a process that is killed leaves none either.
    assert list(disk.iterdir()) == []
    batches.close()
    assert all(file.closed for file in files)
