"""The Spark data source `hudi`, for SQL over views and catalog tables.

Spark gives a Python source no column pruning, so `spark.read.format("hudi").load()` does not come
here after `install`: it gets the DataFrame of `TableMetadata.read`, which is planned natively.
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

# Spark hands a catalog table's path and options to no Python source, but it does hand over its
# columns' metadata: the first column carries them.
OPTIONS_METADATA = "lakewright.options"


class HudiSource(DataSource):
    """Tables in the Hudi format."""

    session: ClassVar[Mapping[str, str]] = {}
    """The storage options of the session that it is registered in."""

    @classmethod
    def name(cls) -> str:
        """The name under which Spark knows it."""
        return FORMATS[0]

    def schema(self) -> T.StructType:
        """The columns of the query that the options describe."""
        return spark_schema(planned(self.options, session=self.session)[1].result_schema)

    def reader(self, schema: T.StructType) -> DataSourceReader:
        """A reader of the columns in `schema`."""
        told = {**_stored(schema), **self.options}
        storage, plan = planned(told, schema.names, session=self.session)
        if isinstance(plan, CdcScanPlan):
            return CdcReader(storage, plan)
        return SliceReader(storage, plan)

    def streamReader(self, schema: T.StructType) -> DataSourceStreamReader:
        """A reader of changes to the columns in `schema`, batch by batch."""
        return stream_reader({**self.session, **_stored(schema), **self.options}, schema)


def register_source(spark: SparkSession) -> None:
    """Make the source known to a session, with the storage options that the session has now.

    They travel with the class, as Spark sends functions: a catalog keeps the options of a table,
    and these must hold no credentials.
    """
    session = session_storage_options(spark)
    spark.dataSource.register(with_values(HudiSource, FORMATS[0], session=session))


def _stored(schema: T.StructType) -> dict[str, str]:
    """The options that a catalog table's columns carry."""
    return schema.fields[0].metadata.get(OPTIONS_METADATA, {}) if schema.fields else {}


def planned(
    options: Mapping[str, str],
    columns: Sequence[str] | None = None,
    *,
    session: Mapping[str, str] | None = None,
) -> tuple[Storage, ScanPlan | CdcScanPlan]:
    """Plan the query that options describe, the table's path among them.

    `session` holds storage options that count where the query's own say nothing.
    """
    if not options.get("path"):
        raise InvalidError("the table's path is missing: give it as an option", option="path")
    storage = storage_for(options["path"], {**(session or {}), **storage_options(options)})
    settings = read_settings(options)
    load = load_consistent_snapshot if settings.query_type == "incremental" else load_snapshot
    return storage, plan_query(load(storage), settings, columns)


def struct_of(schema: T.StructType | str) -> T.StructType:
    """A schema of columns, given as such or as DDL."""
    parsed = T.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, T.StructType):
        raise InvalidError(
            "a schema of columns expected: a StructType, or a text such as 'id string, ts long'",
            schema=str(schema),
        )
    return parsed


def session_storage_options(spark: SparkSession) -> dict[str, str]:
    """The storage options that a session was configured with, for Spark's own file systems."""
    return storage_options(spark.conf.getAll)
