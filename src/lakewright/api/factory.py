"""Tables by their path: new ones, and those that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from lakewright.api.table import Table
from lakewright.client.write_client import Options
from lakewright.clock import SystemClock
from lakewright.datasource.source import session_storage_options, struct_of
from lakewright.model.table_config import parse_table_type
from lakewright.options import check_names
from lakewright.spark.writer import arrow_schema
from lakewright.storage.factory import (
    other_options,
    storage_for,
    storage_option_names,
    storage_options,
)
from lakewright.table.create import TableSpec, create_table


def create(
    path: str,
    spark: SparkSession | None = None,
    *,
    name: str,
    table_type: str = "COPY_ON_WRITE",
    record_key: str | Sequence[str] = (),
    partition_by: str | Sequence[str] | None = None,
    ordering: str | Sequence[str] | None = None,
    event_time: str | None = None,
    schema: T.StructType | str | None = None,
    options: Options = None,
) -> Table:
    """Make an empty table at a path; its schema comes with the first write, or is given here.

    `options` are table properties, key generator options, and for its storage such as
    `fs.s3a.endpoint` or `durable`.
    """
    session = session_storage_options(spark) if spark is not None else {}
    told = {key: str(value) for key, value in (options or {}).items()}
    places = {**session, **storage_options(told)}
    storage = storage_for(path, places)
    rest = other_options(told)
    check_names(rest, also=storage_option_names())
    spec = TableSpec(
        name=name,
        table_type=parse_table_type(table_type),
        record_key=_names(record_key),
        partition_by=_names(partition_by),
        ordering=_names(ordering),
        event_time=event_time,
        schema=None if schema is None else arrow_schema(struct_of(schema)),
        options=rest,
    )
    create_table(storage, SystemClock(), spec)
    return Table(storage, spark, places=places)


def _names(fields: str | Sequence[str] | None) -> tuple[str, ...]:
    """Field names from a list, or from a text that separates them by commas."""
    listed = fields.split(",") if isinstance(fields, str) else fields or ()
    return tuple(name.strip() for name in listed if name.strip())


def open_table(
    path: str, spark: SparkSession | None = None, *, options: Mapping[str, str] | None = None
) -> Table:
    """The table at a path.

    `options` are for its storage, such as `fs.s3a.endpoint` or `durable`; what the session is
    configured with (`spark.hadoop.fs.s3a.endpoint`) counts where they say nothing.
    """
    session = session_storage_options(spark) if spark is not None else {}
    places = {**session, **{key: str(value) for key, value in (options or {}).items()}}
    table = Table(storage_for(path, places), spark, places=places)
    table.snapshot()
    return table
