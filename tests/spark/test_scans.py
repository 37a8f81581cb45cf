"""What a scan costs and which files it touches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lakewright as lw
from lakewright.storage.factory import storage_for
from lakewright.testing.table_builder import TableBuilder
from support.soak import sized

PARTITIONS = sized(40, soak=1000)


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
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy-on-write table of 15 columns in 8 files."""
    path, rows_per_file = tmp_path_factory.mktemp("table"), 40
    builder = TableBuilder(
        storage_for(path), wide_rows(0, 4, "d").schema, table_type="COPY_ON_WRITE"
    ).create()
    for part in range(8):
        day = f"2026-01-0{part % 4 + 1}"
        rows = {(day, f"file-{part}"): wide_rows(part * rows_per_file, rows_per_file, day)}
        builder.commit(rows, action="commit", operation="BULK_INSERT")
    return path


def all_columns(frame: DataFrame) -> DataFrame:
    return frame


def two_columns(frame: DataFrame) -> DataFrame:
    return frame.groupBy("flag").agg(F.sum("x1"))


@dataclass(frozen=True)
class Scan:
    """How Spark carries a query out: the nodes of its plan, and what it reads."""

    nodes: tuple[str, ...]
    columns: frozenset[str]
    batched: bool
    files: frozenset[str]

    @classmethod
    def of(cls, frame: DataFrame) -> Scan:
        plan = frame._jdf.queryExecution().executedPlan().toString()
        names = re.findall(r"^[ :+-]*(?:\*?\(\d+\) )?([A-Z]\w+(?: parquet)?)", plan, re.M)
        (read,) = re.findall(r"ReadSchema: struct<(.*)>", plan)
        return cls(
            # To name columns costs nothing.
            tuple(name for name in names if name != "Project"),
            frozenset(re.findall(r"(\w+):", read)),
            "Batched: true" in plan,
            frozenset(frame.inputFiles()),
        )


@pytest.fixture
def usual(spark: SparkSession) -> Iterator[None]:
    """Queries are compiled, as in sessions outside of tests, and plans are printed in full."""
    settings = {
        "spark.sql.codegen.wholeStage": "true",
        "spark.sql.codegen.factoryMode": "FALLBACK",
        "spark.sql.maxMetadataStringLength": "10000",
    }
    before = {key: spark.conf.get(key) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield
    for key, value in before.items():
        spark.conf.set(key, str(value))


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize("query", [all_columns, two_columns])
def test_a_table_without_logs_is_scanned_as_its_bare_parquet_files(
    query: Callable[[DataFrame], DataFrame], table: Path, spark: SparkSession
) -> None:
    files = [str(file) for file in table.glob("*/*.parquet")]
    frame, ours = query(spark.read.parquet(*files)), query(lw.open(str(table), spark=spark).read())
    bare, scan = Scan.of(frame), Scan.of(ours)
    assert len(bare.files) == 8
    assert bare.nodes[-1] == "FileScan parquet"
    # The value of the partition is in the path, and need not be read.
    assert bare.columns - {"day"} == scan.columns - {"_tmp_metadata_row_index"}
    assert replace(scan, columns=bare.columns) == bare
    assert ours.count() == frame.count()


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
    read_rows = table.read().select("id", "day").collect()
    assert sorted(map(tuple, read_rows)) == rows
