"""What a scan costs and which files it touches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sizes import sized

import lakewright as lw
from lakewright.storage.locate import storage_for
from lakewright.testing.build import TableBuilder

ROWS = sized(600_000, soak=3_000_000)
PARTITIONS = sized(300, soak=1000)


def wide_rows(first: int, count: int, day: str) -> pa.Table:
    random = np.random.default_rng(first)
    number = np.arange(first, first + count)
    columns = {
        "id": pa.array(number).cast(pa.string()),
        "day": pa.array([day] * count),
        "ts": pa.array(number),
        "flag": pa.array(["A", "N", "R", "O"] * (count // 4)),
        "price": pa.array(random.integers(1, 10**6, count)).cast(pa.decimal128(19, 0)),
        **{f"x{i}": pa.array(random.random(count)) for i in range(6)},
        **{f"n{i}": pa.array(random.integers(0, 10**4, count)) for i in range(4)},
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def big_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy-on-write table of many rows and 15 columns in 8 files."""
    path = tmp_path_factory.mktemp("big")
    each = ROWS // 8
    builder = TableBuilder(
        storage_for(path), wide_rows(0, 4, "d").schema, table_type="COPY_ON_WRITE"
    ).create()
    for part in range(8):
        day = f"2026-01-0{part % 4 + 1}"
        rows = {(day, f"file-{part}"): wide_rows(part * each, each, day)}
        builder.commit(rows, action="commit", operation="BULK_INSERT")
    return path


def all_columns(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def two_columns(frame: DataFrame) -> None:
    frame.groupBy("flag").agg(F.sum("x1")).collect()


@pytest.fixture
def compiling(spark: SparkSession) -> Iterator[None]:
    """Queries are compiled, as in sessions that are not of tests."""
    usual = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {key: spark.conf.get(key) for key in usual}
    for key, value in usual.items():
        spark.conf.set(key, value)
    yield
    for key, value in before.items():
        spark.conf.set(key, value)


@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("query", [all_columns, two_columns])
def test_a_scan_without_logs_costs_what_the_bare_parquet_files_cost(
    query: Callable[[DataFrame], None], big_table: Path, spark: SparkSession
) -> None:
    files = [str(file) for file in big_table.glob("*/*.parquet")]

    def ours() -> DataFrame:
        return lw.open(str(big_table), spark=spark).read()

    def bare() -> DataFrame:
        return spark.read.parquet(*files)

    assert ours().count() == bare().count() == ROWS
    ratio = best_ratio(lambda: query(ours()), lambda: query(bare()), enough=1.15)
    assert ratio <= 1.15


def best_ratio(ours: Callable[[], None], other: Callable[[], None], *, enough: float) -> float:
    """Both in turn, many times over, the best of each: noise of the machine only ever adds.

    So where five rounds do not show it, more of them may.
    """
    taken: dict[Callable[[], None], list[float]] = {ours: [], other: []}
    ratio = 0.0
    for _ in range(12):
        for _ in range(5):
            for work, times in taken.items():
                begin = time.perf_counter()
                work()
                times.append(time.perf_counter() - begin)
        ratio = min(taken[ours]) / min(taken[other])
        if ratio <= enough:
            break
    return ratio


@pytest.fixture(scope="module")
def many_partitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many partitions of four rows; all but one are broken after they were written."""
    path = tmp_path_factory.mktemp("many")
    builder = TableBuilder(storage_for(path), wide_rows(0, 4, "d").schema).create()
    rows = {
        (f"day-{n:04d}", f"file-{n}"): wide_rows(n * 4, 4, f"day-{n:04d}")
        for n in range(PARTITIONS)
    }
    builder.commit(rows)
    for file in path.glob("*/*.parquet"):
        if file.parent.name != "day-0007":
            file.write_bytes(b"this is no parquet file any more")
    return path


@pytest.mark.parametrize("where", ["day = 'day-0007'", "day IN ('day-0007') AND x1 >= 0"])
def test_a_filter_on_the_partition_touches_its_files_alone(
    where: str, many_partitions: Path, spark: SparkSession
) -> None:
    table = lw.open(str(many_partitions), spark=spark)
    assert table.read().where(where).count() == 4
    frame = spark.read.format("hudi").load(str(many_partitions))
    assert sorted(row.ts for row in frame.where(where).collect()) == [28, 29, 30, 31]


def test_names_that_look_like_patterns_are_names(spark: SparkSession, tmp_path: Path) -> None:
    table = lw.create(str(tmp_path / "t [x]"), spark, name="t", record_key="id", partition_by="day")
    days = ["b", "a[1]", "a{1,2}", "s*", "q?", "back\\slash"]
    rows = [(f"k{number}", day) for number, day in enumerate(days)]
    table.insert(spark.createDataFrame(rows, "id STRING, day STRING"))
    found = table.read().select("id", "day").collect()
    assert sorted(map(tuple, found)) == rows
