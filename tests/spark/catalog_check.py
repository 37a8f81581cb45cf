"""Reads of a table in a metastore: `catalog_check.py URI FOLDER`.

`plain` is Spark without the library, `installed` is with it. Prints the answers, as JSON. A
session keeps its catalog for as long as its process lives, so this is one.
"""

from __future__ import annotations

import json
import sys

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lakewright as lw
from support.spark import quick_session

QUERIES = (
    "SELECT id, day, ts FROM lake.trips ORDER BY id",
    "SELECT id, day, ts FROM lake.trips_ro ORDER BY id",
    "SELECT id, day, ts FROM lake.trips WHERE day = '2026-01-02'",
    "SELECT note FROM lake.trips WHERE id = 'd'",
)


def main(uri: str, warehouse: str) -> None:
    spark = quick_session(
        {
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.hive.metastore.uris": uri,
            "spark.sql.warehouse.dir": warehouse,
        }
    )
    plain = [answer(spark, query) for query in QUERIES]
    lw.install(spark)
    print(json.dumps({"plain": plain, "installed": [answer(spark, query) for query in QUERIES]}))
    spark.stop()


def answer(spark: SparkSession, query: str) -> list[list[object]] | str:
    try:
        return [list(row) for row in spark.sql(query).collect()]
    except (PySparkException, Py4JJavaError) as error:
        return str(error)[:500]


if __name__ == "__main__":
    main(*sys.argv[1:])
