"""What a sync changes in a catalog, from the state of the catalog and of the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from lakewright.catalog.base import (
    LAST_COMPLETION,
    PROVIDER,
    QUERY_AS_RO,
    CatalogTable,
    Values,
    hive_type,
    spark_schema_json,
)
from lakewright.catalog.hive import partition_name
from lakewright.catalog.options import SyncMode, sync_settings
from lakewright.catalog.planner import (
    CatalogChanges,
    DesiredTable,
    last_synced_time,
    plan_sync,
    require_same,
    spark_properties,
)
from lakewright.errors import ConflictError, InvalidError, UnsupportedError
from lakewright.spark.reader import spark_schema

A, B, C = ("2026-01-01",), ("2026-01-02",), ("2026-01-03",)
AT = "file:///lake/t"
TABLE = CatalogTable(
    location=AT,
    columns=(("id", "string"),),
    partition_columns=(("day", "string"),),
    properties={PROVIDER: "hudi", LAST_COMPLETION: "20260101000000002"},
    serde={"path": AT, QUERY_AS_RO: "false"},
)


def at(*partitions: Values) -> dict[Values, str]:
    return {values: f"{AT}/{values[0]}" for values in partitions}


def desired(
    *present: Values, dropped: frozenset[Values] = frozenset(), whole: bool = False
) -> DesiredTable:
    return DesiredTable(table=TABLE, present=at(*present), dropped=dropped, is_complete=whole)


PLANS: dict[str, tuple[CatalogTable | None, Mapping[Values, str], DesiredTable, CatalogChanges]] = {
    "a new table is registered with all its partitions": (
        None, {}, desired(A, B, whole=True),
        CatalogChanges(create=TABLE, add=tuple(at(A, B).items())),
    ),
    "what the catalog has is not written again": (TABLE, at(A), desired(A), CatalogChanges()),
    "a partition that was written first is added": (
        TABLE, at(A), desired(A, B), CatalogChanges(add=tuple(at(B).items())),
    ),
    "one that was deleted is dropped": (
        TABLE, at(A), desired(dropped=frozenset({A})), CatalogChanges(drop=(A,)),
    ),
    "one that the catalog does not have is not": (
        TABLE, {}, desired(dropped=frozenset({A})), CatalogChanges(),
    ),
    "others stay where only a part is listed": (TABLE, at(A, B), desired(A), CatalogChanges()),
    "and go where all are": (
        TABLE, at(A, B, C), desired(A, whole=True), CatalogChanges(drop=(B, C))),
    "a place may be written in another way": (
        TABLE, {A: "file:/lake/t/2026-01-01"}, desired(A), CatalogChanges(),
    ),
    "one at another place is moved": (
        TABLE, {A: "file:///old"}, desired(A), CatalogChanges(move=tuple(at(A).items())),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("registered", "there", "table", "expected"), PLANS.values(), ids=list(PLANS)
)
def test_changes(
    registered: CatalogTable | None,
    there: Mapping[Values, str],
    table: DesiredTable,
    expected: CatalogChanges,
) -> None:
    changes = plan_sync(registered, there, table)
    assert changes == expected
    assert bool(changes) == (expected != CatalogChanges())


def test_columns_and_our_properties_change_and_those_of_others_stay() -> None:
    others = {"comment": "mine", "lakewright.snapshot.completion": "5", LAST_COMPLETION: "1"}
    registered = replace(TABLE, properties={**TABLE.properties, **others})
    now = replace(TABLE, columns=(("id", "string"), ("note", "string")))
    altered = plan_sync(registered, {}, DesiredTable(table=now, present={})).alter
    assert altered is not None
    assert altered.columns == now.columns
    assert altered.properties == {**TABLE.properties, "comment": "mine"}


def test_another_table_keeps_its_name() -> None:
    with pytest.raises(ConflictError, match="another table of this name"):
        require_same("t", replace(TABLE, location="file:///else"), TABLE)
    with pytest.raises(ConflictError, match="other partition columns"):
        require_same("t", replace(TABLE, partition_columns=()), TABLE)
    require_same("t", replace(TABLE, location="file:/lake/t/"), TABLE)
    ours = replace(TABLE, location="s3a://lake/t")
    require_same("t", replace(TABLE, location="s3://lake/t"), ours)


def test_a_position_counts_only_where_the_table_is_registered_as_hudis() -> None:
    assert last_synced_time(None) is None
    assert last_synced_time(TABLE) == "20260101000000002"
    plain = {LAST_COMPLETION: "20260101000000002"}
    assert last_synced_time(replace(TABLE, properties=plain)) is None


SCHEMA = pa.schema(
    [
        pa.field("a", pa.string(), nullable=False),
        pa.field("b", pa.int32()),
        pa.field("c", pa.decimal128(10, 2)),
        pa.field("d", pa.timestamp("us", "UTC")),
        pa.field("e", pa.timestamp("us")),
        pa.field("f", pa.list_(pa.int64())),
        pa.field("g", pa.map_(pa.string(), pa.float64())),
        pa.field("h", pa.struct([pa.field("x", pa.bool_()), pa.field("y", pa.date32())])),
        pa.field("i", pa.binary()),
        pa.field("j", pa.float32()),
    ]
)


def test_schemas_are_sparks_own() -> None:
    schema_json = spark_schema_json(SCHEMA, {"carried": "here"})
    ours, theirs = json.loads(schema_json), json.loads(spark_schema(SCHEMA).json())
    assert ours["fields"][0].pop("metadata") == {"carried": "here"}
    assert theirs["fields"][0].pop("metadata") == {}
    assert ours == theirs


def test_types_in_hives_words() -> None:
    assert [hive_type(field.type) for field in SCHEMA] == [
        "string", "int", "decimal(10,2)", "timestamp", "timestamp", "array<bigint>",
        "map<string,double>", "struct<x:boolean,y:date>", "binary", "float",
    ]  # fmt: skip
    with pytest.raises(UnsupportedError, match="no catalog"):
        hive_type(pa.duration("s"))


def test_a_wide_schema_is_reported_in_parts_with_partition_columns_last() -> None:
    many = [pa.field(f"column{n}", pa.string()) for n in range(200)]
    wide = pa.schema([pa.field("day", pa.string()), *many])
    properties = spark_properties(wide, {"path": AT}, ["day"])
    count = int(properties["spark.sql.sources.schema.numParts"])
    parts = [properties[f"spark.sql.sources.schema.part.{n}"] for n in range(count)]
    assert len(parts) > 1
    assert max(map(len, parts)) <= 4000
    text = "".join(parts)
    assert text.index('"column0"') < text.index('"day"')
    assert properties["spark.sql.sources.schema.partCol.0"] == "day"
    assert properties[PROVIDER] == "hudi"


def test_names_of_partitions() -> None:
    assert partition_name(["Day"], ("a=b%",)) == "day=a%3Db%25"


GLUE_TOOL = "org.apache.hudi.aws.sync.AwsGlueCatalogSyncTool"
KINDS: dict[str, tuple[Mapping[str, str], SyncMode]] = {
    "the session's by default": ({}, SyncMode.SPARK),
    "a metastore where one is named": (
        {"hoodie.datasource.hive_sync.metastore.uris": "thrift://h:1"}, SyncMode.HMS,
    ),
    "Glue by Hudi's class": ({"hoodie.meta.sync.client.tool.class": GLUE_TOOL}, SyncMode.GLUE),
    "the mode counts most": (
        {
            "hoodie.datasource.hive_sync.mode": "glue",
            "hoodie.datasource.hive_sync.metastore.uris": "h",
        },
        SyncMode.GLUE,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "kind"), KINDS.values(), ids=list(KINDS))
def test_which_catalog_is_meant(options: Mapping[str, str], kind: SyncMode) -> None:
    assert sync_settings(options).kind is kind


BAD = {
    "no Hive server": ({"hoodie.datasource.hive_sync.mode": "jdbc"}, "use hms"),
    "no other tool": ({"hoodie.meta.sync.client.tool.class": "a.B"}, "HiveSyncTool or"),
    "no name with a quote": ({"hoodie.datasource.hive_sync.table": "a`b"}, "letters, digits"),
    "properties are pairs": ({"hoodie.datasource.hive_sync.table_properties": "a"}, "key=value"),
    "a metastore needs an address": (
        {"hoodie.datasource.hive_sync.mode": "hms", "hoodie.datasource.meta.sync.enable": "true"},
        "needs its address",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=list(BAD))
def test_bad_settings(options: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        sync_settings(options)
