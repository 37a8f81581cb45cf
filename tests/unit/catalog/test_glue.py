"""Tables in AWS Glue, as moto plays it: what writes, TTL and schema changes make of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import botocore.exceptions
import pyarrow as pa
import pytest
from moto import mock_aws
from typer.testing import CliRunner

from lakewright.catalog.base import TableName
from lakewright.catalog.glue import GlueCatalog
from lakewright.catalog.sync import SyncResult, sync
from lakewright.cli.main import app
from lakewright.client.ttl import TableTtl
from lakewright.errors import ConflictError, InvalidError, UnavailableError
from lakewright.model.instant import Action
from lakewright.model.plans import Skip
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
from support.tables import NO_SERVICES, SCHEMA, WrittenTable, row

REGION = "eu-west-1"
NULL = "__HIVE_DEFAULT_PARTITION__"
GLUE = {
    "hoodie.datasource.hive_sync.mode": "glue",
    "hoodie.datasource.hive_sync.database": "lake",
    "lakewright.sync.glue.region": REGION,
}
AFTER_WRITES = {**GLUE, "hoodie.datasource.meta.sync.enable": "true"}


@pytest.fixture
def glue(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield boto3.client("glue", region_name=REGION)


def synced(table: WrittenTable, **more: str) -> tuple[SyncResult, ...]:
    results = sync(table.storage, table.clock, {**GLUE, **more}, no_session)
    assert not isinstance(results, Skip)
    return results


def no_session(*_: object) -> Any:
    raise AssertionError("Glue needs no Spark")


def partitions(glue: Any, table: str = "written") -> dict[tuple[str, ...], str]:
    listed = glue.get_partitions(DatabaseName="lake", TableName=table)["Partitions"]
    return {tuple(p["Values"]): p["StorageDescriptor"]["Location"] for p in listed}


def drop(glue: Any, day: str) -> None:
    keys = [{"Values": [day]}]
    glue.batch_delete_partition(DatabaseName="lake", TableName="written", PartitionsToDelete=keys)


def parameters(glue: Any, table: str = "written") -> dict[str, str]:
    stored: dict[str, str] = glue.get_table(DatabaseName="lake", Name=table)["Table"]["Parameters"]
    return stored


def test_a_write_is_followed_by_a_sync(glue: Any) -> None:
    table = WrittenTable(options={**NO_SERVICES, **AFTER_WRITES}).create()
    first = table.upsert([row("a"), row("b", day="2026-01-02")])
    registered = glue.get_table(DatabaseName="lake", Name="written")["Table"]
    assert registered["TableType"] == "EXTERNAL_TABLE"
    assert registered["Parameters"]["spark.sql.sources.provider"] == "hudi"
    assert registered["Parameters"]["last_commit_time_sync"] == first.instant
    assert registered["Parameters"]["last_commit_completion_time_sync"] == first.completed_at
    assert registered["PartitionKeys"] == [{"Name": "day", "Type": "string"}]
    names = [column["Name"] for column in registered["StorageDescriptor"]["Columns"]]
    assert names[-3:] == ["id", "ts", "note"]
    assert names[0] == "_hoodie_commit_time"
    assert set(partitions(glue)) == {("2026-01-01",), ("2026-01-02",)}
    table.upsert([row("c", day="2026-01-03")])
    assert set(partitions(glue)) == {("2026-01-01",), ("2026-01-02",), ("2026-01-03",)}


def test_twice_is_once(glue: Any) -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("a")])
    (first,) = synced(table)
    assert (first.created, first.added) == (True, 1)
    version = glue.get_table(DatabaseName="lake", Name="written")["Table"].get("VersionId")
    (again,) = synced(table)
    assert not again.changed
    assert glue.get_table(DatabaseName="lake", Name="written")["Table"].get("VersionId") == version


def test_only_what_was_touched_since_is_looked_at(glue: Any) -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row(f"k{n}", day=f"2026-01-{n:02}") for n in range(1, 21)])
    synced(table)
    table.upsert([row("new", day="2026-02-01")])
    counting = CountingStorage(table.storage)
    results = sync(counting, table.clock, GLUE, no_session)
    assert not isinstance(results, Skip)
    assert results[0].added == 1
    listed = {path for method, path in counting.touched if method.startswith("list")}
    assert listed <= {".hoodie/timeline", ".hoodie/timeline/history"}
    assert len(partitions(glue)) == 21


def test_deleted_partitions_are_dropped_and_one_that_came_back_stays(glue: Any) -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("a"), row("b", day="2026-01-02"), row("c", day="2026-01-03")])
    synced(table)
    table.delete_partitions("2026-01-01", "2026-01-02")
    table.upsert([row("d", day="2026-01-02")])
    (result,) = synced(table)
    assert result.dropped == 1
    assert set(partitions(glue)) == {("2026-01-02",), ("2026-01-03",)}
    (again,) = synced(table)
    assert not again.changed


def test_partitions_that_ttl_deletes_are_dropped(glue: Any) -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("a")])
    synced(table)
    ttl = TableTtl.for_table(table.storage, {}, table.clock)
    ttl.save({"spec": "2026-01-01", "level": "PARTITION", "units": "DAYS", "value": 1})
    ttl.configure(trigger_strategy="NUM_COMMITS", trigger_value="1")
    ttl.enable()
    table.clock.sleep(3 * 86_400)
    commit = table.upsert([row("b", day="2026-01-02")], AFTER_WRITES)
    assert any(getattr(step, "operation", "") == "DELETE_PARTITION" for step in commit.services)
    assert set(partitions(glue)) == {("2026-01-02",)}


def test_another_process_may_have_dropped_or_added_them(glue: Any) -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("a"), row("b", day="2026-01-02")])
    synced(table)
    drop(glue, "2026-01-01")
    table.delete_partitions("2026-01-01")
    (result,) = synced(table)
    assert result.dropped == 0
    drop(glue, "2026-01-02")
    (whole,) = synced(table, **{"hoodie.meta.sync.incremental": "false"})
    assert whole.added == 1
    assert set(partitions(glue)) == {("2026-01-02",)}


def test_a_rollback_drops_a_partition(glue: Any) -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("a")])
    last = table.upsert([row("b", day="2026-01-02")])
    synced(table)
    table.writer().rollback(last.instant)
    (result,) = synced(table)
    assert result.dropped == 1
    assert set(partitions(glue)) == {("2026-01-01",)}


def test_a_rollback_that_was_archived_since_drops_a_partition(glue: Any) -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("a")])
    last = table.upsert([row("b", day="2026-01-02")])
    synced(table)
    table.writer().rollback(last.instant)
    for number in range(6):
        table.upsert([row(f"k{number}")])
    keep = {
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.clean.commits.retained": "1",
    }
    table.services(keep).run("archive")
    assert load_snapshot(table.storage).timeline.completed(Action.ROLLBACK) == ()
    (result,) = synced(table)
    assert result.dropped == 1
    assert set(partitions(glue)) == {("2026-01-01",)}


def test_keys_that_glue_leaves_are_requested_again(glue: Any) -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row(f"k{n}", day=f"2026-01-{n:02}") for n in range(1, 6)])
    synced(table)
    requested = [(f"2026-01-{n:02}",) for n in range(1, 6)]
    catalog, name = GlueCatalog(glue, botocore.exceptions), TableName("lake", "written")
    original = glue.batch_get_partition

    def two_at_a_time(PartitionsToGet: list[Any], **more: Any) -> Any:
        response = original(PartitionsToGet=PartitionsToGet[:2], **more)
        return {**response, "UnprocessedKeys": PartitionsToGet[2:]}

    def none_at_all(PartitionsToGet: list[Any], **_: Any) -> Any:
        return {"Partitions": [], "UnprocessedKeys": PartitionsToGet}

    glue.batch_get_partition = two_at_a_time
    assert set(catalog.partitions(name, requested)) == set(requested)
    glue.batch_get_partition = none_at_all
    with pytest.raises(UnavailableError, match="sync again"):
        catalog.partitions(name, requested)


def test_a_new_column_is_reported(glue: Any) -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("a")])
    synced(table)
    wider = pa.schema([*SCHEMA, pa.field("fare", pa.float64())])
    table.write("UPSERT", [{**row("b"), "fare": 1.5}], schema=wider)
    (result,) = synced(table)
    assert result.altered
    registered = glue.get_table(DatabaseName="lake", Name="written")["Table"]
    assert {"Name": "fare", "Type": "double"} in registered["StorageDescriptor"]["Columns"]
    assert '"fare"' in registered["Parameters"]["spark.sql.sources.schema.part.0"]


LAYOUTS: dict[str, tuple[tuple[str, ...], dict[str, str], dict[str, Any], tuple[str, ...], str]] = {
    "hive style": (
        ("day",), {"hoodie.datasource.write.hive_style_partitioning": "true"}, {},
        ("2026-01-01",), "day=2026-01-01",
    ),
    "two levels": (("note", "day"), {}, {"note": "x"}, ("x", "2026-01-01"), "x/2026-01-01"),
    "two levels in hive style": (
        ("note", "day"), {"hoodie.datasource.write.hive_style_partitioning": "true"}, {"note": "x"},
        ("x", "2026-01-01"), "note=x/day=2026-01-01",
    ),
    "no value": (
        ("note",), {}, {"note": None}, (NULL,), NULL,
    ),
    "encoded": (
        ("note",), {"hoodie.datasource.write.partitionpath.urlencode": "true"}, {"note": "a/b"},
        ("a/b",), "a%2Fb",
    ),
    "a number": (("ts",), {}, {"ts": 7}, ("7",), "7"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("by", "options", "more", "values", "path"), LAYOUTS.values(), ids=list(LAYOUTS)
)
def test_values_come_from_paths_of_any_layout(
    glue: Any,
    by: tuple[str, ...],
    options: dict[str, str],
    more: dict[str, Any],
    values: tuple[str, ...],
    path: str,
) -> None:
    table = WrittenTable(options=NO_SERVICES).create(partition_by=by, options=options, ordering=())
    table.upsert([{**row("a"), **more}])
    synced(table)
    assert partitions(glue) == {values: f"{table.storage.root}/{path}"}


def test_a_table_without_partitions(glue: Any) -> None:
    table = WrittenTable(options=NO_SERVICES).create(partition_by=())
    table.upsert([row("a")])
    synced(table)
    assert "PartitionKeys" not in parameters(glue)
    assert partitions(glue) == {}
    assert not synced(table)[0].changed


def test_views_of_merge_on_read_have_names(glue: Any) -> None:
    table = WrittenTable(options=NO_SERVICES).create("MERGE_ON_READ", event_time="ts")
    table.upsert([row("a", 1_767_000_000_000)])
    assert [result.table for result in synced(table)] == [
        "lake.written_ro",
        "lake.written_rt",
        "lake.written",
    ]
    storage = glue.get_table(DatabaseName="lake", Name="written_ro")["Table"]["StorageDescriptor"]
    assert storage["SerdeInfo"]["Parameters"]["hoodie.query.as.ro.table"] == "true"
    assert storage["InputFormat"].endswith(".HoodieParquetInputFormat")
    assert "read_optimized" in parameters(glue, "written_ro")["spark.sql.sources.schema.part.0"]
    assert "read_optimized" not in parameters(glue)["spark.sql.sources.schema.part.0"]
    assert parameters(glue)["lakewright.snapshot.completion"] == "1767000000000"
    (only,) = synced(
        table,
        **{
            "hoodie.datasource.hive_sync.table.strategy": "RO",
            "hoodie.datasource.hive_sync.table": "fast",
        },
    )
    assert only.table == "lake.fast"


def test_more_partitions_than_one_call_takes(glue: Any) -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row(f"k{n}", day=f"d{n:03}") for n in range(130)])
    assert synced(table)[0].added == 130
    assert len(partitions(glue)) == 130
    table.delete_partitions("d0*")
    assert synced(table)[0].dropped == 100
    assert len(partitions(glue)) == 30


def test_another_table_keeps_its_name(glue: Any) -> None:
    first, second = (WrittenTable(options=NO_SERVICES).create() for _ in range(2))
    for table in (first, second):
        table.upsert([row("a")])
    synced(first)
    with pytest.raises(ConflictError, match="another table of this name"):
        synced(second)


def test_what_was_never_written_is_not_registered(glue: Any) -> None:
    table = WrittenTable().create()
    result = sync(table.storage, table.clock, GLUE, no_session)
    assert isinstance(result, Skip)
    assert glue.get_databases()["DatabaseList"] == []


def test_other_partition_columns_and_a_missing_database_are_refused(glue: Any) -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("a")])
    with pytest.raises(InvalidError, match="partitioned by other columns"):
        synced(table, **{"hoodie.datasource.hive_sync.partition_fields": "note"})
    with pytest.raises(InvalidError, match="no such database"):
        synced(table, **{"hoodie.datasource.hive_sync.auto_create_database": "false"})
    synced(table, **{"hoodie.datasource.hive_sync.partition_fields": "day"})


NOBODY = {
    "hoodie.datasource.meta.sync.enable": "true",
    "hoodie.datasource.hive_sync.metastore.uris": "thrift://127.0.0.1:1",
}


def test_a_catalog_that_does_not_answer_fails_no_write() -> None:
    table = WrittenTable(options={**NO_SERVICES, **NOBODY}).create()
    with pytest.warns(RuntimeWarning, match="the catalog was not updated after the write"):
        table.upsert([row("a")])
    assert len(table.rows()) == 1
    strict = {"hoodie.datasource.hive_sync.ignore_exceptions": "false"}
    with pytest.raises(UnavailableError, match="no Hive metastore answers") as failure:
        table.upsert([row("b")], strict)
    assert failure.value.committed is not None
    assert not failure.value.retryable
    assert len(table.rows()) == 2


def test_the_command(glue: Any, tmp_path: Any) -> None:
    table = WrittenTable(LocalStorage(str(tmp_path / "t")), options=NO_SERVICES).create()
    table.upsert([row("a")])
    flags = ["--mode", "glue", "--database", "lake", "-o", f"lakewright.sync.glue.region={REGION}"]
    first = CliRunner().invoke(app, ["sync", str(tmp_path / "t"), *flags, "--json"])
    assert first.exit_code == 0, first.output
    (result,) = json.loads(first.output)["synced"]
    assert (result["table"], result["created"], result["added"]) == ("lake.written", True, 1)
    again = CliRunner().invoke(app, ["sync", str(tmp_path / "t"), *flags])
    assert again.exit_code == 0, again.output
    assert "lake.written" in again.output
    unnamed = CliRunner().invoke(app, ["sync", str(tmp_path / "t")])
    assert unnamed.exit_code == 2
    assert "--metastore-uris" in unnamed.output
