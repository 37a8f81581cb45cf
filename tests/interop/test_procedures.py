"""Procedures and real Hudi's: the same names of columns and, on its own tables, the same values.

And a job that is written for it, which runs here with the same rows.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from real_hudi import RealHudi

from lakewright.sql.procedures.base import Procedure
from lakewright.sql.procedures.registry import PROCEDURES
from support.golden import GoldenTables

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "hudi_job.py"

# What is compared by value, on which tables, and the columns that are about this machine.
SHOWN = {
    "show_commits": ("mor_compacted", "cow_clustered", "mor_pending_compaction"),
    "show_commits_metadata": ("mor_compacted",),
    "show_archived_commits": ("cow_archived",),
    "show_cleans": ("cow_archived",),
    "show_clean_plans": ("cow_archived",),
    "show_cleans_metadata": ("cow_archived",),
    "show_compaction": ("mor_compacted", "mor_pending_compaction"),
    "show_clustering": ("cow_clustered",),
    "show_savepoints": ("cow_savepoint",),
    "stats_wa": ("mor_compacted", "cow_archived"),
    "stats_file_sizes": ("mor_compacted",),
    "show_timeline": ("cow_savepoint", "cow_rolled_back", "cow_archived"),
}
OF_THIS_MACHINE = {"requested_time", "inflight_time", "completed_time", "extra_metadata"}


def plain(rows: list[dict[str, Any]]) -> list[str]:
    """Rows in no order, without nulls, numbers rounded."""
    texts = []
    for row in rows:
        present = {k: v for k, v in row.items() if v is not None and k not in OF_THIS_MACHINE}
        near = {k: round(v, 6) if isinstance(v, float) else v for k, v in present.items()}
        texts.append(json.dumps(near, sort_keys=True))
    return sorted(texts)


def names(procedure: Procedure) -> list[str]:
    return [column.strip().rsplit(" ", 1)[0] for column in procedure.columns.split(",")]


def test_columns_and_values_are_those_of_real_hudi(
    real_hudi: RealHudi, spark: SparkSession, golden: GoldenTables
) -> None:
    for table in sorted({table for tables in SHOWN.values() for table in tables}):
        real_hudi.sql(f"CREATE TABLE shown_{table} USING hudi LOCATION '{golden[table]}'")
    for name, tables in SHOWN.items():
        for table in tables:
            limit = ", limit => 100" if name != "show_savepoints" else ""
            call = f"CALL {name}(table => 'shown_{table}'{limit})"
            assert names(PROCEDURES[name]) == real_hudi.columns(call), name
            theirs = real_hudi.sql(call)
            assert theirs, (name, table)
            text = f"CALL {name}(path => ?{limit})"
            ours = [row.asDict() for row in spark.sql(text, [str(golden[table])]).collect()]
            assert plain(ours) == plain(theirs), (name, table)
    at = real_hudi.sql("CALL show_commits(table => 'shown_cow_clustered')")[0]["commit_time"]
    for name in ("show_commit_files", "show_commit_partitions", "show_commit_write_stats"):
        theirs = real_hudi.sql(
            f"CALL {name}(table => 'shown_cow_clustered', instant_time => '{at}')"
        )
        text = f"CALL {name}(path => ?, instant_time => ?)"
        mine = spark.sql(text, [str(golden["cow_clustered"]), at])
        assert plain([row.asDict() for row in mine.collect()]) == plain(theirs), name


@pytest.mark.thorough
def test_a_job_returns_the_same_rows_on_real_hudi(
    real_hudi: RealHudi, spark: SparkSession, tmp_path: Path
) -> None:
    theirs = real_hudi.job(EXAMPLE, tmp_path / "theirs")
    ours = runpy.run_path(str(EXAMPLE))["job"](spark, str(tmp_path / "ours"))
    assert {key: [list(row) for row in rows] for key, rows in ours.items()} == theirs
