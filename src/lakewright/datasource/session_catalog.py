"""Tables in the catalog of a Spark session, in memory or with a metastore behind it.

Spark asks the source `hudi` for partitions, and lets nobody register any for it: here a table has
a name, its columns and properties.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import types as T

from lakewright.catalog.base import LAST_COMPLETION, LAST_REQUEST, CatalogTable, TableName
from lakewright.catalog.options import SyncSettings
from lakewright.catalog.planner import TableMetadata, check_partition_fields, require_same
from lakewright.catalog.sync import InSession, SyncResult, names_of
from lakewright.datasource.source import FORMATS, OPTIONS_METADATA, register_source
from lakewright.errors import InvalidError
from lakewright.model.plans import Skip
from lakewright.spark.worker_environment import SPARK_ERRORS
from lakewright.spark.writer import translate_spark_error
from lakewright.table.freshness_report import SparkCatalog
from lakewright.table.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PART = "spark.sql.sources.schema.part."


def spark_catalog_sync(session: Callable[[], SparkSession]) -> InSession:
    """What tells the catalog of a session, which is asked for when there is something to tell."""
    return lambda snapshot, settings, properties: sync_session(
        session(), snapshot, settings, properties
    )


def sync_session(
    spark: SparkSession,
    snapshot: Snapshot,
    settings: SyncSettings,
    properties: Mapping[str, str | None],
) -> tuple[SyncResult, ...] | Skip:
    """Give a table its names in the catalog of a session; see `sync_table`."""
    check_partition_fields(snapshot.config, settings)
    if snapshot.avro_schema() is None:
        return Skip("the table has no schema yet: nothing was written")
    table = TableMetadata(snapshot, settings, {})
    try:
        register_source(spark)
        _ensure_database(spark, settings)
        return tuple(
            _sync_name(spark, name, table.catalog_table(read_optimized=optimized), properties)
            for name, optimized in names_of(snapshot.config, settings)
        )
    except SPARK_ERRORS as error:
        raise translate_spark_error(error) from error


def _ensure_database(spark: SparkSession, settings: SyncSettings) -> None:
    if spark.catalog.databaseExists(settings.database):
        return
    if not settings.create_database:
        raise InvalidError("the session has no such database", database=settings.database)
    spark.sql(f"CREATE DATABASE IF NOT EXISTS `{settings.database}`")


def _sync_name(
    spark: SparkSession,
    name: TableName,
    wanted: CatalogTable,
    properties: Mapping[str, str | None],
) -> SyncResult:
    quoted = f"`{name.database}`.`{name.table}`"
    schema = _schema_of(wanted)
    created, altered = False, False
    if spark.catalog.tableExists(quoted):
        found = spark.table(quoted).schema
        require_same(name, CatalogTable(location=_path_in(found)), _without_partitions(wanted))
        altered = _plain(found) != _plain(schema)
        if altered:
            # Spark changes no columns of such a table; its files are not Spark's to delete.
            spark.sql(f"DROP TABLE {quoted}")
    else:
        created = True
    if created or altered:
        spark.catalog.createTable(quoted, source=FORMATS[0], schema=schema)
    told = {key: wanted.properties[key] for key in (LAST_REQUEST, LAST_COMPLETION)}
    SparkCatalog(spark, wanted.location).set_properties(quoted, {**properties, **told})
    return SyncResult("spark", str(name), created=created, altered=altered)


def _schema_of(table: CatalogTable) -> T.StructType:
    count = sum(key.startswith(_PART) for key in table.properties)
    text = "".join(table.properties[f"{_PART}{number}"] for number in range(count))
    return T.StructType.fromJson(json.loads(text))


def _path_in(schema: T.StructType) -> str:
    carried = schema.fields[0].metadata.get(OPTIONS_METADATA, {}) if schema.fields else {}
    path: str = carried.get("path", "")
    return path


def _plain(schema: T.StructType) -> list[tuple[str, str]]:
    return sorted((field.name, field.dataType.simpleString()) for field in schema.fields)


def _without_partitions(table: CatalogTable) -> CatalogTable:
    return CatalogTable(location=table.location)
