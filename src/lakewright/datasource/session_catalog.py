"""Tables in the catalog of a Spark session, in memory or backed by a metastore.

Spark asks the data source `hudi` for partitions and does not allow to register any. So a table in
this catalog has a name, columns and properties only.
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
    """Return a function that syncs to the catalog of a session, which is requested on first use."""
    return lambda snapshot, settings, properties: sync_session(
        session(), snapshot, settings, properties
    )


def sync_session(
    spark: SparkSession,
    snapshot: Snapshot,
    settings: SyncSettings,
    properties: Mapping[str, str | None],
) -> tuple[SyncResult, ...] | Skip:
    """Register a table in the catalog of a session; see `sync_table`."""
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
    desired: CatalogTable,
    properties: Mapping[str, str | None],
) -> SyncResult:
    quoted = f"`{name.database}`.`{name.table}`"
    schema = _schema_of(desired)
    created, altered = False, False
    if spark.catalog.tableExists(quoted):
        registered = spark.table(quoted).schema
        require_same(
            name, CatalogTable(location=_path_in(registered)), _without_partitions(desired)
        )
        altered = _columns(registered) != _columns(schema)
        if altered:
            # Spark cannot change the columns of such a table. Dropping it deletes no files.
            spark.sql(f"DROP TABLE {quoted}")
    else:
        created = True
    if created or altered:
        spark.catalog.createTable(quoted, source=FORMATS[0], schema=schema)
    position = {key: desired.properties.get(key) for key in (LAST_REQUEST, LAST_COMPLETION)}
    SparkCatalog(spark, desired.location).set_properties(quoted, {**properties, **position})
    return SyncResult("spark", str(name), created=created, altered=altered)


def _schema_of(table: CatalogTable) -> T.StructType:
    count = sum(key.startswith(_PART) for key in table.properties)
    text = "".join(table.properties[f"{_PART}{number}"] for number in range(count))
    return T.StructType.fromJson(json.loads(text))


def _path_in(schema: T.StructType) -> str:
    options = schema.fields[0].metadata.get(OPTIONS_METADATA, {}) if schema.fields else {}
    path: str = options.get("path", "")
    return path


def _columns(schema: T.StructType) -> list[tuple[str, str]]:
    return sorted((field.name, field.dataType.simpleString()) for field in schema.fields)


def _without_partitions(table: CatalogTable) -> CatalogTable:
    return CatalogTable(location=table.location)
