"""The data sets of a race fit together."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.plan import COMMIT_ROWS, HOT_YEAR
from bench.source import Source, prepare

from support.benchmarks import lineitems

KEYS = ["l_orderkey", "l_linenumber"]
COUNT = 14_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("source")
    files = []
    for number in range(2):
        files.append(folder / f"{number}.parquet")
        pq.write_table(lineitems(number * COUNT // 2, COUNT // 2), files[-1])
    return prepare(files, folder / "sets", commits=4, feed=3)


def rows_of(source: Source, name: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(file) for file in source.files(name)])


def keys_of(rows: pa.Table) -> set[tuple[int, int]]:
    return set(zip(*(rows[name].to_pylist() for name in KEYS), strict=True))


@pytest.mark.parametrize(("name", "share", "fresh"), [("spread", 0.05, 0.02), ("delete", 0.01, 0)])
def test_a_change_touches_the_share_of_rows_that_it_says(
    source: Source, name: str, share: float, fresh: float
) -> None:
    there = keys_of(rows_of(source, "rows"))
    incoming = keys_of(rows_of(source, name))
    assert len(incoming & there) == pytest.approx(share * COUNT, rel=0.1)
    assert len(incoming - there) == pytest.approx(fresh * COUNT, rel=0.1)


@pytest.mark.parametrize("name", ["spread", "hot", "delete", "tiny"])
def test_what_goes_out_are_the_rows_whose_keys_come_in(source: Source, name: str) -> None:
    table = rows_of(source, "tiny_rows" if name == "tiny" else "rows")
    incoming, outgoing = rows_of(source, name), rows_of(source, f"{name}_old")
    assert keys_of(incoming) & keys_of(table) == keys_of(outgoing)
    there = {tuple(row.values()) for row in table.to_pylist()}
    assert {tuple(row.values()) for row in outgoing.to_pylist()} <= there


@pytest.mark.parametrize("name", ["rows", "spread", "hot", "delete", "tiny"])
def test_no_key_comes_twice(source: Source, name: str) -> None:
    rows = rows_of(source, name)
    assert rows.num_rows == len(keys_of(rows)) > 0


def test_updates_are_newer_and_hot_ones_are_of_one_year(source: Source) -> None:
    assert set(rows_of(source, "rows")["ts"].to_pylist()) == {0}
    assert set(rows_of(source, "hot")["ts"].to_pylist()) == {1}
    assert set(rows_of(source, "hot")["ship_year"].to_pylist()) == {HOT_YEAR}
    assert len(set(rows_of(source, "spread")["ship_year"].to_pylist())) == 7


def test_every_commit_is_a_file_of_its_own(source: Source) -> None:
    files = source.files("tiny")
    assert [pq.read_metadata(file).num_rows for file in files] == [COMMIT_ROWS] * 4


def test_a_feed_is_of_one_year_a_commit_and_no_key_comes_twice(source: Source) -> None:
    years = [set(pq.read_table(file)["ship_year"].to_pylist()) for file in source.files("feed")]
    assert [len(keys_of_year) for keys_of_year in years] == [1, 1, 1]
    assert len(set.union(*years)) == 3
    rows = rows_of(source, "feed")
    assert len(keys_of(rows)) == rows.num_rows == 3 * COMMIT_ROWS


def test_too_few_rows_for_the_commits_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "few.parquet"
    pq.write_table(lineitems(0, 700), file)
    with pytest.raises(ValueError, match="take a greater --scale"):
        prepare([file], tmp_path / "sets", commits=30, feed=1)
