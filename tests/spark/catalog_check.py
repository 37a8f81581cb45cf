"""Reads of a table in a metastore by one kind of session: `catalog_check.py KIND URI FOLDER`.

`plain` is Spark without the library, `installed` is with it. Prints what was found, as JSON. A
session keeps its catalog for as long as its process lives, so this is one.
"""

from __future__ import annotations

import json
import sys

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from quick_spark import make_java_quick, quick_session

import lakewright as lw


def main(kind: str, uri: str, warehouse: str) -> None:
    make_java_quick()
    spark = quick_session(
        {
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.hive.metastore.uris": uri,
            "spark.sql.warehouse.dir": warehouse,
        }
    )
    if kind == "installed":
        lw.install(spark)
    found: dict[str, object] = {}
    for query in (
        "SELECT id, day, ts FROM lake.trips ORDER BY id",
        "SELECT id, day, ts FROM lake.trips_ro ORDER BY id",
        "SELECT id, day, ts FROM lake.trips WHERE day = '2026-01-02'",
        "SELECT note FROM lake.trips WHERE id = 'd'",
    ):
        try:
            found[query] = [list(row) for row in spark.sql(query).collect()]
        except (PySparkException, Py4JJavaError) as error:
            found[query] = str(error)[:500]
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
