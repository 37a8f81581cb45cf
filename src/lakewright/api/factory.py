"""Create and open tables by path: `lw.create` and `lw.open`."""

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
from lakewright.spark.tagging import arrow_schema
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
    """Create an empty table at a path.

    The table gets its schema from `schema` or from the first write.

    Args:
        path: URI or local path of the table.
        spark: Spark session for reads, writes and services. Its storage configuration
            (`spark.hadoop.fs.*`) applies to the table.
        name: Table name.
        table_type: `COPY_ON_WRITE` or `MERGE_ON_READ`.
        record_key: Columns of the record key, as a sequence or separated by commas. Rows of a table
            without a record key can only be inserted.
        partition_by: Partition columns, as a sequence or separated by commas.
        ordering: Ordering columns: of two rows with the same key, the one with the greater value
            wins. Without them, the row of the later write wins.
        event_time: Column with the event time, for completion, freshness and event-time compaction.
        schema: Columns of the table, as a `StructType` or a DDL string.
        options: Table properties, key generator options and storage options such as
            `fs.s3a.endpoint` or `durable`.

    Returns:
        The new table.

    Raises:
        InvalidError: An option is unknown or invalid, or a table or data files exist at the path.
        UnsupportedError: An option asks for a feature that this library does not have.

    Example:
        ```python
        table = lw.create(
            "s3a://lake/trips",
            spark=spark,
            name="trips",
            table_type="MERGE_ON_READ",
            record_key="id",
            partition_by=["day"],
            ordering="ts",
        )
        table.upsert(df)
        ```
    """
    session_options = session_storage_options(spark) if spark is not None else {}
    string_options = {key: str(value) for key, value in (options or {}).items()}
    all_storage_options = {**session_options, **storage_options(string_options)}
    storage = storage_for(path, all_storage_options)
    table_options = other_options(string_options)
    check_names(table_options, also=storage_option_names())
    spec = TableSpec(
        name=name,
        table_type=parse_table_type(table_type),
        record_key=_names(record_key),
        partition_by=_names(partition_by),
        ordering=_names(ordering),
        event_time=event_time,
        schema=None if schema is None else arrow_schema(struct_of(schema)),
        options=table_options,
    )
    create_table(storage, SystemClock(), spec)
    return Table(storage, spark, storage_options=all_storage_options)


def _names(fields: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return field names from a sequence or from a comma-separated string."""
    names = fields.split(",") if isinstance(fields, str) else fields or ()
    return tuple(name.strip() for name in names if name.strip())


def open_table(
    path: str, spark: SparkSession | None = None, *, options: Mapping[str, str] | None = None
) -> Table:
    """Open the table at a path.

    Args:
        path: URI or local path of the table.
        spark: Spark session for reads, writes and services; the active session if omitted.
        options: Storage options such as `fs.s3a.endpoint` or `durable`. They take precedence over
            the storage configuration of the session (`spark.hadoop.fs.*`).

    Returns:
        The table.

    Raises:
        InvalidError: There is no table at the path.
        UnsupportedError: The table has a version or feature that this library does not support.

    Example:
        ```python
        table = lw.open("s3a://lake/trips", spark=spark)
        table.read().where("day = '2026-01-31'").show()
        ```
    """
    session_options = session_storage_options(spark) if spark is not None else {}
    all_storage_options = {
        **session_options,
        **{key: str(value) for key, value in (options or {}).items()},
    }
    table = Table(
        storage_for(path, all_storage_options), spark, storage_options=all_storage_options
    )
    table.snapshot()
    return table
