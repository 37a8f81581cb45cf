"""A program of a user, for mypy: it sees the types of the installed wheel, and so do mistakes.

An ignored error that is none would be an error itself.
"""

from __future__ import annotations

from typing import assert_type

from pyspark.sql import DataFrame, SparkSession

import lakewright as lw


def use(spark: SparkSession, frame: DataFrame) -> int:
    lw.install(spark)
    table = lw.create("/tmp/trips", spark=spark, name="trips", record_key="id", ordering="ts")
    assert_type(table, lw.Table)
    commit = table.upsert(frame)
    assert_type(commit, lw.Commit)
    changes = lw.open("/tmp/trips").changes(since=None, limit=2)
    assert_type(changes.checkpoint, str | None)
    assert_type(table.timeline(), tuple[lw.Instant, ...])
    assert_type(table.freshness(), lw.Freshness)
    table.read(as_of=7)  # type: ignore[arg-type]
    table.squash()  # type: ignore[attr-defined]
    try:
        table.run("compaction")
    except lw.ConflictError as error:
        print(error.facts)
    assert_type(commit.inserted, int)
    return commit.inserted
