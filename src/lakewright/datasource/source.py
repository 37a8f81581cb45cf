"""The Spark data source `hudi`, for SQL over views and catalog tables.

Spark does not prune columns for a Python data source. So after `install`,
`spark.read.format("hudi").load()` does not use this source: it returns the DataFrame of
`Table.read`, which Spark plans natively.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from lakewright.datasource.stream_source import stream_reader
from lakewright.errors import InvalidError
from lakewright.scan.cdc.planner import CdcScanPlan
from lakewright.scan.query_options import plan_query, read_settings
from lakewright.scan.scan_plan import ScanPlan
from lakewright.spark.reader import CdcReader, SliceReader, spark_schema, with_values
from lakewright.storage.base import Storage
from lakewright.storage.factory import storage_for, storage_options
from lakewright.table.snapshot import load_consistent_snapshot, load_snapshot

FORMATS = ("hudi", "org.apache.hudi")

# Spark passes a Python data source neither path nor options of a catalog table, but it passes the
# metadata of the columns: that of the first column holds both.
OPTIONS_METADATA = "lakewright.options"


class HudiSource(DataSource):
    """Tables in the Hudi format."""

    session: ClassVar[Mapping[str, str]] = {}
    """The storage options of the session in which the source is registered."""

    @classmethod
    def name(cls) -> str:
        """Return the format name."""
        return FORMATS[0]

    def schema(self) -> T.StructType:
        """Return the columns of the query that the options describe."""
        return spark_schema(planned(self.options, session=self.session)[1].result_schema)

    def reader(self, schema: T.StructType) -> DataSourceReader:
        """Return a reader of the columns in `schema`."""
        options = {**_catalog_options(schema), **self.options}
        storage, plan = planned(options, schema.names, session=self.session)
        if isinstance(plan, CdcScanPlan):
            return CdcReader(storage, plan)
        return SliceReader(storage, plan)

    def streamReader(self, schema: T.StructType) -> DataSourceStreamReader:
        """Return a stream reader of changes to the columns in `schema`."""
        return stream_reader({**self.session, **_catalog_options(schema), **self.options}, schema)


def register_source(spark: SparkSession) -> None:
    """Register the data source in a session, with the current storage options of the session.

    The storage options are attributes of the class, which Spark serializes. They are not options of
    a table, because a catalog stores those, and they may contain credentials.
    """
    session = session_storage_options(spark)
    spark.dataSource.register(with_values(HudiSource, FORMATS[0], session=session))


def _catalog_options(schema: T.StructType) -> dict[str, str]:
    """Return the options of a catalog table, from the metadata of its first column."""
    return schema.fields[0].metadata.get(OPTIONS_METADATA, {}) if schema.fields else {}


def planned(
    options: Mapping[str, str],
    columns: Sequence[str] | None = None,
    *,
    session: Mapping[str, str] | None = None,
) -> tuple[Storage, ScanPlan | CdcScanPlan]:
    """Plan the query that options describe, and return its storage and scan plan.

    `session` holds storage options for which the query's own take precedence.
    """
    if not options.get("path"):
        raise InvalidError("the table's path is missing: give it as an option", option="path")
    storage = storage_for(options["path"], {**(session or {}), **storage_options(options)})
    settings = read_settings(options)
    load = load_consistent_snapshot if settings.query_type == "incremental" else load_snapshot
    return storage, plan_query(load(storage), settings, columns)


def struct_of(schema: T.StructType | str) -> T.StructType:
    """Return a schema as a StructType; it may be given as DDL."""
    parsed = T.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, T.StructType):
        raise InvalidError(
            "a schema of columns expected: a StructType, or a text such as 'id string, ts long'",
            schema=str(schema),
        )
    return parsed


def session_storage_options(spark: SparkSession) -> dict[str, str]:
    """Return the storage options in the configuration of a session (`spark.hadoop.fs.*`)."""
    return storage_options(spark.conf.getAll)
