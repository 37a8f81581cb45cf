"""Procedures by CALL with Hudi's names, good and bad arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakewright as lw
from lakewright.errors import CorruptError
from lakewright.sql.procedures.registry import PROCEDURES
from support.golden import GoldenTables

ROWS = "id STRING, day STRING, ts LONG"
QUIET = {"hoodie.compact.inline": "false", "hoodie.clean.automatic": "false"}


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> lw.Table:
    lw.install(spark)
    table = lw.create(
        str(tmp_path / "t"),
        spark,
        name="t",
        table_type="MERGE_ON_READ",
        record_key="id",
        partition_by="day",
        ordering="ts",
    )
    table.upsert(spark.createDataFrame([("a", "d1", 1), ("b", "d2", 1)], ROWS), QUIET)
    table.upsert(spark.createDataFrame([("a", "d1", 2)], ROWS), QUIET)
    return table


def call(spark: SparkSession, table: lw.Table, name: str, more: str = "") -> list[Any]:
    rest = f", {more}" if more else ""
    return list(spark.sql(f"CALL {name}(path => :path{rest})", {"path": table.path}).collect())


def test_what_writes_did(spark: SparkSession, table: lw.Table) -> None:
    second, first = call(spark, table, "show_commits")
    assert (second.action, second.total_files_updated, second.total_records_written) == (
        "deltacommit",
        1,
        1,
    )
    assert (first.total_files_added, first.total_partitions_written) == (2, 2)
    assert call(spark, table, "show_commits", "limit => 1") == [second]
    arguments = "filter => 'total_partitions_written = 2 AND action LIKE \"delta%\"', limit => 1"
    assert call(spark, table, "show_commits", arguments) == [first]
    at = f"instant_time => '{first.commit_time}'"
    files = call(spark, table, "show_commit_files", at)
    assert {row.partition_path for row in files} == {"d1", "d2"}
    assert len(call(spark, table, "show_commit_partitions", at)) == 2
    (size,) = call(spark, table, "show_commit_write_stats", at)
    assert size.total_records_written == 2
    (schema,) = call(spark, table, "show_commit_extra_metadata", "metadata_key => 'schema'")
    assert '"name":"id"' in schema.metadata_value.replace(" ", "")
    (group,) = [row.file_id for row in files if row.partition_path == "d1"]
    history = call(spark, table, "show_file_group_history", f"file_group_id => '{group}'")
    assert [row.instant_time for row in history] == [second.commit_time, first.commit_time]
    timeline = call(spark, table, "show_timeline")
    assert [row.instant_time for row in timeline] == [second.commit_time, first.commit_time]
    assert all(row.completed_time for row in timeline)
    latest = call(spark, table, "show_fsview_latest", "partition_path => 'd1'")
    assert [(row.num_delta_files, row.partition) for row in latest] == [(1, "d1")]
    assert len(call(spark, table, "show_fsview_all")) == 2
    assert call(spark, table, "stats_file_sizes")[-1].commit_time == "ALL"
    properties = {row.key: row.value for row in call(spark, table, "show_table_properties")}
    assert properties["hoodie.table.name"] == "t"
    assert all(row.result for row in call(spark, table, "validate_hoodie_properties"))


def test_savepoints_and_rollbacks(spark: SparkSession, table: lw.Table) -> None:
    _second, first = call(spark, table, "show_commits")
    assert call(spark, table, "create_savepoint", f"commit_time => {first.commit_time}")[0][0]
    assert [row[0] for row in call(spark, table, "show_savepoints")] == [first.commit_time]
    assert call(spark, table, "rollback_to_savepoint")[0].rollback_savepoint_result
    assert [row.commit_time for row in call(spark, table, "show_commits")] == [first.commit_time]
    assert call(spark, table, "delete_savepoint")[0].delete_savepoint_result
    table.upsert(spark.createDataFrame([("c", "d1", 2)], ROWS), QUIET)
    newest = call(spark, table, "show_commits")[0].commit_time
    assert call(spark, table, "rollback_to_instant", f"instant_time => '{newest}'")[0][0]
    rollbacks = call(spark, table, "show_rollbacks")
    assert newest in [row.rollback_instant for row in rollbacks]


def test_a_write_with_an_empty_file_is_rolled_back_by_force(
    spark: SparkSession, table: lw.Table
) -> None:
    before = {(row.id, row.ts) for row in table.read().collect()}
    table.upsert(spark.createDataFrame([("c", "d1", 2)], ROWS), QUIET)
    last = table.snapshot().timeline.completed_writes[-1]
    table.storage.replace(f".hoodie/timeline/{last.file_name}", b"")
    instant = f"instant_time => '{last.requested_at}'"
    with pytest.raises(CorruptError, match="force"):
        call(spark, table, "rollback_to_instant", instant)
    assert call(spark, table, "rollback_to_instant", f"{instant}, force => true")[0].rollback_result
    assert {(row.id, row.ts) for row in table.read().collect()} == before


def test_plans_and_cleans(spark: SparkSession, table: lw.Table) -> None:
    options = {"hoodie.compact.inline.max.delta.commits": "1"}
    planned = table.schedule(
        "compaction", {**options, "hoodie.table.service.plan.cancellable": "true"}
    )
    (plan,) = call(spark, table, "show_table_service_plans")
    assert (plan.instant, plan.state, plan.cancellable) == (planned.requested_at, "REQUESTED", True)
    assert plan.age_ms >= 0
    assert plan.heartbeat_age_ms is None
    assert call(spark, table, "show_missing_partitions") == []
    arguments = f"pending_instant => '{planned.requested_at}', delete_request_instant_file => true"
    assert call(spark, table, "run_rollback_inflight_tableservice", arguments)[0][0] == plan.instant
    assert call(spark, table, "show_table_service_plans") == []
    (compaction,) = call(
        spark, table, "run_compaction", "options => 'hoodie.compact.inline.max.delta.commits=1'"
    )
    assert compaction.state == "COMPLETED"
    table.upsert(spark.createDataFrame([("a", "d1", 3)], ROWS), QUIET)
    (cleaned,) = call(spark, table, "run_clean", "retain_commits => 1, trigger_max_commits => 1")
    (shown,) = call(spark, table, "show_cleans")
    assert shown.total_files_deleted == cleaned.total_files_deleted
    assert call(spark, table, "show_clean_plans")[0].plan_time == shown.clean_time
    assert call(spark, table, "run_clean", "retain_commits => 1") == []


WRONG = {
    "CALL show_comits(path => :p)": "did_you_mean='show_commits'",
    "CALL show_commits(path => :p, limits => 3)": "did_you_mean='limit'",
    "CALL show_commits(path => :p, limit => 'many')": "takes a whole number as limit",
    "CALL show_commits(path => :p, limit => -1)": "from 0 on",
    "CALL show_commits(path => :p, limit => true)": "takes a whole number as limit",
    "CALL show_commits(path => :p, path => :p)": "twice",
    "CALL show_commits()": "which table",
    "CALL show_commits('nowhere')": "no table of the hudi format",
    'CALL show_commits("x\'; DROP TABLE t; --")': "no table of the hudi format",
    "CALL show_commits('`t` WHERE true')": "no table of the hudi format",
    "CALL show_commits(path => '/nowhere/at/all')": "no table at this path",
    "CALL show_commits(path => :p, filter => 'nope = 1')": "no condition on the result",
    "CALL show_commits(path => :p, filter => '1=1; DROP TABLE t')": "no condition on the result",
    "CALL show_commits(path => :q)": "a parameter marker has no value",
    "CALL show_commit_files(path => :p)": "missing=.'instant_time'",
    "CALL show_commit_files(path => :p, instant_time => '1')": "no completed write",
    "CALL rollback_to_instant(path => :p, instant_time => \"1' OR '1'='1\")": "no such instant",
    "CALL create_savepoint(path => :p, commit_time => '2')": "no such write",
    "CALL rollback_to_savepoint(path => :p)": "no savepoint",
    "CALL delete_savepoint(path => :p, instant_time => '3')": "no savepoint of this instant",
    "CALL cancel_table_service(path => :p, instant => '4')": "no plan at this instant",
    "CALL run_rollback_inflight_tableservice(path => :p, pending_instant => '5')": "under way",
    "CALL run_compaction('sometimes', path => :p)": "no such operation",
    "CALL run_clustering(path => :p, predicate => 'day > 1')": "name them",
    "CALL drop_partition(path => :p, partition => '*')": "one partition expected",
    "CALL drop_partition(path => :p, partition => '../x')": "one partition expected",
    "CALL drop_partition(path => :p, partition => 'd9')": "no such partition",
    "CALL show_file_group_history(path => :p, file_group_id => 'x')": "about this file group",
    "CALL run_service('nothing', path => :p)": "service",
    "CALL help('show_comits')": "did_you_mean='show_commits'",
    "CALL show_commits(path => :p": "CALL name",
}


def test_wrong_calls_are_reported_and_change_nothing(spark: SparkSession, table: lw.Table) -> None:
    folder = Path(table.path.removeprefix("file://"))
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    for text, message in WRONG.items():
        with pytest.raises(lw.LakewrightError, match=message):
            spark.sql(text, {"p": table.path})
    after = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    assert {p: t for p, t in after.items() if ".locks" not in p.parts} == before


def test_help(spark: SparkSession) -> None:
    names = {row.procedure for row in spark.sql("-- what is there?\nCALL help()").collect()}
    assert names == {*PROCEDURES, "help"}
    rows = spark.sql("CALL help(cmd => 'show_commit_files')").collect()
    assert [row.name for row in rows if row.kind == "parameter"][:3] == [
        "table",
        "limit",
        "instant_time",
    ]
    assert next(row.name for row in rows if row.kind == "column") == "action"
    assert rows[-1].name == "CALL show_commit_files(table => 'db.trips', instant_time => '...')"


def test_history_of_a_table_by_real_hudi(spark: SparkSession, golden: GoldenTables) -> None:
    path = str(golden["cow_archived"])
    shown = spark.sql("CALL show_archived_commits(path => ?, limit => 3)", [path]).collect()
    assert shown[0].commit_time == "20261115213113223"
    assert [row.total_records_written for row in shown] == [24, 24, 24]
    timeline = spark.sql(
        "CALL show_timeline(path => ?, showArchived => true, limit => 100)", [path]
    ).collect()
    assert {row.timeline_type for row in timeline} == {"ACTIVE", "ARCHIVED"}
