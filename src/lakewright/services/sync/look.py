"""A table as a catalog should know it: columns, properties, and its partitions since a sync."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakewright.core.freshness import dropped_partitions
from lakewright.core.instant import Instant
from lakewright.core.meta_columns import META_FIELDS
from lakewright.core.partition_paths import DEFAULT_PARTITION, partition_values
from lakewright.core.table_config import TableConfig
from lakewright.core.table_options import SLASH_DATES
from lakewright.errors import InvalidError
from lakewright.services.sync.catalog import (
    HUDI,
    LAST_COMPLETION,
    LAST_REQUEST,
    PROVIDER,
    QUERY_AS_RO,
    Registered,
    Values,
)
from lakewright.services.sync.plan import Wanted
from lakewright.services.sync.settings import SyncSettings
from lakewright.services.sync.types import hive_type, spark_schema_json
from lakewright.table.snapshot import Snapshot

_MOST_TEXT = 4000  # of a property, in the databases behind metastores
_OPTIONS = "lakewright.options"
_MADE_TEXT = ("TIMESTAMP", "CUSTOM", "TIMESTAMP_AVRO", "CUSTOM_AVRO")
_META = {field.name for field in META_FIELDS}
_READ_OPTIMIZED = {"hoodie.datasource.query.type": "read_optimized"}


@dataclass(frozen=True)
class Table:
    """What all names of a table in a catalog have in common."""

    snapshot: Snapshot
    settings: SyncSettings
    more: Mapping[str, str]

    def registered(self, *, read_optimized: bool) -> Registered:
        """The table under one of its names."""
        config = self.snapshot.config
        schema = self._schema()
        columns, by = _columns(config, schema)
        location = self.snapshot.storage.root
        options = {"path": location, **(_READ_OPTIMIZED if read_optimized else {})}
        properties = {
            "EXTERNAL": "TRUE",
            **dict(self.settings.properties),
            **self.more,
            **spark_properties(schema, options, [name for name, _ in by]),
            **position(self.snapshot),
        }
        serde = {"path": location, QUERY_AS_RO: str(read_optimized).lower()}
        return Registered(
            location=location,
            columns=columns,
            partition_columns=by,
            properties=properties,
            serde=serde,
        )

    def _schema(self) -> pa.Schema:
        schema = self.snapshot.schema(self.snapshot.view())
        if not self.settings.omit_meta_columns:
            return schema
        return pa.schema([field for field in schema if field.name not in _META])

    def wanted(self, table: Registered, since: str | None) -> Wanted:
        """The table with its partitions: those touched since a completion time, or all."""
        if not table.partition_columns:
            return Wanted(table=table, present={}, whole=True)
        touched = None
        if since is not None and self.settings.incremental:
            touched = touched_since(self.snapshot, since)
        if touched is None:
            return Wanted(table=table, present=self._located(self._visible(None)), whole=True)
        written, doubtful = touched
        still = self._visible(doubtful) if doubtful else set()
        gone = {self._values(path) for path in doubtful - still}
        present = self._located(written | still)
        return Wanted(table=table, present=present, gone=frozenset(gone - present.keys()))

    def _visible(self, partitions: Iterable[str] | None) -> set[str]:
        """The partitions, or those of some, that hold rows for a reader."""
        files = self.snapshot.files(partitions)
        return {group.partition for group in self.snapshot.groups(self.snapshot.view(), files)}

    def _located(self, paths: Iterable[str]) -> dict[Values, str]:
        root = self.snapshot.storage.root
        return {self._values(path): f"{root}/{path}" for path in paths}

    def _values(self, path: str) -> Values:
        return values_of(self.snapshot.config, path)


def values_of(config: TableConfig, path: str) -> Values:
    """The values of the partition columns in a partition's path."""
    found = partition_values(
        path,
        config.partition_fields,
        hive_style=config.hive_style,
        url_encoded=config.url_encoded,
        slashes_for_dashes=config.flag(SLASH_DATES),
    )
    return tuple(DEFAULT_PARTITION if value is None else value for value in found)


def check_partition_fields(config: TableConfig, settings: SyncSettings) -> None:
    """Refuse partition columns that are not the table's."""
    told = settings.partition_fields
    if told and told != config.partition_fields:
        raise InvalidError(
            "the table is partitioned by other columns: leave the option out, or give these",
            given=",".join(told),
            columns=",".join(config.partition_fields),
        )


def touched_since(snapshot: Snapshot, since: str) -> tuple[set[str], set[str]] | None:
    """The partitions that were written, and those that may be gone; None if all may have changed.

    A rollback takes back what a sync has told before, and a restore much of it.
    """
    undone = snapshot.timeline.completed("rollback", "restore")
    if any((instant.completed_at or "") > since for instant in undone):
        return None
    active = [i for i in snapshot.timeline.completed_writes if (i.completed_at or "") > since]
    late = [i for i in snapshot.archived_after(since) if (i.completed_at or "") > since]
    written: set[str] = set()
    doubtful: set[str] = set()
    for commit in snapshot.commits([*late, *active]):
        written |= commit.stats.keys()
        doubtful |= dropped_partitions(commit)
    return written - doubtful, doubtful


def position(snapshot: Snapshot) -> dict[str, str]:
    """Up to where a catalog knows a table, in Hudi's words."""
    writes: tuple[Instant, ...] = snapshot.timeline.completed_writes
    if not writes:
        return {}
    return {
        LAST_REQUEST: max(instant.requested_at for instant in writes),
        LAST_COMPLETION: max(instant.completed_at or "" for instant in writes),
    }


def spark_properties(
    schema: pa.Schema, options: Mapping[str, str], partition_columns: list[str]
) -> dict[str, str]:
    """What makes the table one of the source `hudi` for Spark, and never plain parquet."""
    metadata: dict[str, Any] = {_OPTIONS: dict(options)}
    known = set(schema.names)
    last = [schema.field(name) for name in partition_columns if name in known]
    first = [field for field in schema if field.name not in partition_columns]
    text = spark_schema_json(pa.schema([*first, *last]), metadata)
    parts = [text[at : at + _MOST_TEXT] for at in range(0, len(text), _MOST_TEXT)]
    found = {PROVIDER: HUDI, "spark.sql.sources.schema.numParts": str(len(parts))}
    for number, part in enumerate(parts):
        found[f"spark.sql.sources.schema.part.{number}"] = part
    if last and len(last) == len(partition_columns):
        found["spark.sql.sources.schema.numPartCols"] = str(len(last))
        for number, field in enumerate(last):
            found[f"spark.sql.sources.schema.partCol.{number}"] = field.name
    return found


def _columns(
    config: TableConfig, schema: pa.Schema
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Hive's columns, and those of partitions: text where the path is no plain value."""
    made = config.key_generator in _MADE_TEXT
    types = {field.name: hive_type(field.type) for field in schema}
    by = tuple(
        (name, "string" if made else types.get(name, "string")) for name in config.partition_fields
    )
    names = set(config.partition_fields)
    return tuple((name, kind) for name, kind in types.items() if name not in names), by
