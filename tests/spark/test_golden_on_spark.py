"""Tables made by real Hudi read on Spark, row for row, as real Hudi reads them.

The plans of all queries are read without Spark in tests/unit/scan.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import reduce

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lakewright as lw
from support.golden import NAMES, GoldenTables, Query, some_queries
from support.soak import SOAK


def ask(table: lw.Table, query: Query) -> DataFrame:
    if query.kind == "changes":
        return table.changes(since=query.since, until=query.until).dataframe
    if query.kind == "read_optimized":
        return table.read_optimized()
    return table.read(as_of=query.as_of)


# All of them are read without Spark; every kind of file and of query is among these.
@pytest.mark.parametrize("name", NAMES if SOAK else NAMES[::2])
def test_reads_as_real_hudi_does(name: str, golden: GoldenTables, spark: SparkSession) -> None:
    table = lw.open(str(golden[name]), spark=spark)
    queries = some_queries(name)
    # One Spark job for all questions of a table: each row says which question it answers.
    frames = [
        ask(table, query).select(
            F.lit(number).alias("query"), F.to_json(F.struct("*")).alias("row")
        )
        for number, query in enumerate(queries)
    ]
    answers: dict[int, list[str]] = defaultdict(list)
    for number, text in reduce(DataFrame.unionAll, frames).collect():
        row = {k: v for k, v in json.loads(text).items() if not k.startswith("_hoodie")}
        answers[number].append(json.dumps(row, sort_keys=True))
    for number, query in enumerate(queries):
        assert sorted(answers[number]) == sorted(query.rows or ()), str(query)
