"""A query given by options: check them, and plan it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from lakewright.clock import zone_of
from lakewright.datasource.stream_source import stream_reader
from lakewright.errors import InvalidError, UnsupportedError
from lakewright.model.instant import Instant, full_time, is_time, query_time
from lakewright.options import ignored_options, settings_from
from lakewright.scan.cdc.planner import CdcPlan, plan_cdc_context
from lakewright.scan.options import READ_KEYS, REFUSED_READ_OPTIONS, ReadSettings
from lakewright.scan.planner import (
    EARLIEST,
    IncrementalQueryAnalyzer,
    QueryContext,
    plan_context,
    plan_read_optimized,
    plan_snapshot,
)
from lakewright.scan.scan_plan import ReadPlan
from lakewright.spark.reader import ChangeReader, SliceReader, sent_with, spark_schema
from lakewright.storage.base import Storage
from lakewright.storage.factory import (
    other_options,
    storage_for,
    storage_option_names,
    storage_options,
)
from lakewright.table.snapshot import Snapshot, load_moment, load_snapshot

# Ways to say "from the beginning".
_EARLIEST = frozenset({"earliest", "000", "0"})


def read_settings(options: Mapping[str, str]) -> ReadSettings:
    """Check the options of a query; one of Hudi's that does not matter here is a warning."""
    # Spark takes names in any case, and the path of the table as one of the options.
    told = {key.lower(): value for key, value in other_options(options).items()}
    told.pop("path", None)
    elsewhere = storage_option_names()
    for key in ignored_options(told, READ_KEYS, REFUSED_READ_OPTIONS, elsewhere=elsewhere):
        warnings.warn(f"option {key} has no effect on reading", stacklevel=4)
    settings = settings_from(ReadSettings, told)
    if settings.as_of is not None and settings.query_type == "incremental":
        raise InvalidError(
            "an incremental query has a range, not a point in time: give the end of the range",
            option="as.of.instant",
            instead="hoodie.datasource.read.end.instanttime",
        )
    if settings.range_version is not None and settings.range_version < 8:
        raise UnsupportedError(
            "ranges over requested times lose writes that complete late: leave the option out for "
            "ranges over completion times",
            option="hoodie.datasource.read.incr.table.version",
            value=settings.range_version,
        )
    if settings.incremental_format == "cdc" and settings.query_type != "incremental":
        raise InvalidError(
            "change data is that of a range: ask for an incremental query",
            option="hoodie.datasource.query.type",
            value=settings.query_type,
        )
    return settings


def plan_query(
    snapshot: Snapshot, settings: ReadSettings, columns: Sequence[str] | None = None
) -> ReadPlan | CdcPlan:
    """Plan the query that the settings describe."""
    if settings.query_type == "incremental":
        plan = plan_cdc_context if settings.incremental_format == "cdc" else plan_context
        return plan(
            query_context(snapshot, settings),
            columns=columns,
            fallback=settings.full_scan_fallback,
            schema_of_end=settings.schema_of_end,
        )
    as_of = settings.as_of
    if as_of is not None:
        as_of = query_time(as_of, zone_of(snapshot.config.timeline_zone))
    query = plan_read_optimized if settings.query_type == "read_optimized" else plan_snapshot
    return query(snapshot, as_of=as_of, columns=columns)


def query_context(snapshot: Snapshot, settings: ReadSettings) -> QueryContext:
    """The instants of the range that the settings describe."""
    begin = settings.begin
    return IncrementalQueryAnalyzer(
        snapshot=snapshot,
        begin=None if begin is None else begin_of_range(begin) or EARLIEST,
        end=end_of_range(settings.end),
        skip_compaction=settings.skip_compaction,
    ).analyze()


def begin_of_range(value: str | Instant | None) -> str | None:
    """Where a range begins, as people write it; None is the beginning of the table."""
    if isinstance(value, str) and (value in _EARLIEST or not value.strip("0")):
        return None
    return end_of_range(value)


def end_of_range(value: str | Instant | None) -> str | None:
    """A completion time as people write it; None is an open end."""
    if isinstance(value, Instant):
        value = value.completed_at
    if value is None:
        return None
    if not isinstance(value, str) or not is_time(value):
        raise InvalidError(
            "not a completion time: 17 digits (or `earliest`, where a range begins)", value=value
        )
    return full_time(value)


# ------------------------------------------------------------------------------------------------
# The Spark data source `hudi`, for SQL over views and catalog tables.
#
# Spark gives a Python source no column pruning, so `spark.read.format("hudi").load()` does not
# come
# here after `install`: it gets the DataFrame of `Table.read`, which is planned natively.


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
        if isinstance(plan, CdcPlan):
            return ChangeReader(storage, plan)
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
    spark.dataSource.register(sent_with(HudiSource, FORMATS[0], session=session))


def _stored(schema: T.StructType) -> dict[str, str]:
    """The options that a catalog table's columns carry."""
    return schema.fields[0].metadata.get(OPTIONS_METADATA, {}) if schema.fields else {}


def planned(
    options: Mapping[str, str],
    columns: Sequence[str] | None = None,
    *,
    session: Mapping[str, str] | None = None,
) -> tuple[Storage, ReadPlan | CdcPlan]:
    """Plan the query that options describe, the table's path among them.

    `session` holds storage options that count where the query's own say nothing.
    """
    if not options.get("path"):
        raise InvalidError("the table's path is missing: give it as an option", option="path")
    storage = storage_for(options["path"], {**(session or {}), **storage_options(options)})
    settings = read_settings(options)
    load = load_moment if settings.query_type == "incremental" else load_snapshot
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
