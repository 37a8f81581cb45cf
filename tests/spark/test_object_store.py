"""A table on S3 reads on Spark without Spark's own S3 JAR: the workers fetch what they need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import lakewright as lw
from lakewright.storage.factory import storage_for
from lakewright.testing.s3 import S3Server, moto_server
from support.golden import GoldenTables, queries, upload


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with moto_server() as server:
        server.create_bucket("lake")
        yield server


@pytest.mark.parametrize("name", ["cow_basic", "mor_parquet"])
def test_reads_from_s3(
    name: str, server: S3Server, golden: GoldenTables, spark: SparkSession
) -> None:
    address, options = f"s3a://lake/{name}", server.hadoop_options()
    upload(golden[name], storage_for(address, options))
    rows = len(queries(name)[0].rows or ())
    table = lw.open(address, spark=spark, options=options)
    assert table.read().count() == rows
    assert table.read().where("day = '2026-01-02'").count() < rows
    assert spark.read.format("hudi").options(**options).load(address).count() == rows
    assert table.changes(since=None).dataframe.count() == rows
