"""Plan a catalog sync: the table as it should be registered, and the changes to the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakewright.catalog.base import (
    HUDI,
    LAST_COMPLETION,
    LAST_REQUEST,
    PROVIDER,
    QUERY_AS_RO,
    CatalogTable,
    Values,
    hive_type,
    spark_schema_json,
)
from lakewright.catalog.options import SyncSettings
from lakewright.errors import ConflictError, InvalidError
from lakewright.model.freshness import dropped_partitions
from lakewright.model.instant import WRITE_ACTIONS, Action, Instant
from lakewright.model.partition_paths import DEFAULT_PARTITION, partition_values
from lakewright.model.schema import META_FIELDS
from lakewright.model.table_config import SLASH_DATES, TableConfig
from lakewright.table.snapshot import Snapshot

_SCHEMA = "spark.sql.sources.schema"
# Prefixes of the table properties that a sync owns.
_OWNED_PREFIXES = ("lakewright.", "spark.sql.", LAST_REQUEST, LAST_COMPLETION)


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredTable:
    """The table as it should be registered.

    `present` are partitions by values with their locations, `dropped` those to drop. If
    `is_complete`, `present` are all partitions of the table; otherwise only those that changed
    since the last sync.
    """

    table: CatalogTable
    present: Mapping[Values, str]
    dropped: frozenset[Values] = frozenset()
    is_complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogChanges:
    """The changes to a catalog, in the order in which they are applied; false if there are none."""

    create: CatalogTable | None = None
    alter: CatalogTable | None = None
    add: tuple[tuple[Values, str], ...] = ()
    move: tuple[tuple[Values, str], ...] = ()
    drop: tuple[Values, ...] = ()

    def __bool__(self) -> bool:
        return any((self.create, self.alter, self.add, self.move, self.drop))


def plan_sync(
    registered: CatalogTable | None, partitions: Mapping[Values, str], desired: DesiredTable
) -> CatalogChanges:
    """Return the changes that make a catalog match the table.

    `partitions` are the registered ones among the partitions in question: all, if the partitions of
    the table are `whole`.
    """
    present = desired.present
    add = tuple((v, location) for v, location in sorted(present.items()) if v not in partitions)
    move = tuple(
        (v, location)
        for v, location in sorted(present.items())
        if _normalized(partitions.get(v, location)) != _normalized(location)
    )
    missing = partitions.keys() - present.keys()
    drop = tuple(sorted(missing if desired.is_complete else missing & desired.dropped))
    if registered is None:
        return CatalogChanges(create=desired.table, add=add)
    merged = _merge(registered, desired.table)
    return CatalogChanges(
        alter=merged if merged != registered else None, add=add, move=move, drop=drop
    )


def require_same(name: object, registered: CatalogTable, desired: CatalogTable) -> None:
    """Raise ConflictError if the name is registered for another table."""
    if _normalized(registered.location) != _normalized(desired.location):
        raise ConflictError(
            "the catalog has another table of this name: drop it there, or give another name",
            table=str(name),
            location=registered.location,
            wanted=desired.location,
        )
    registered_columns = [column for column, _ in registered.partition_columns]
    desired_columns = [column for column, _ in desired.partition_columns]
    if registered_columns != desired_columns:
        raise ConflictError(
            "the table is registered with other partition columns, which no catalog can change: "
            "drop it there (its files stay), then sync again",
            table=str(name),
            registered=registered_columns,
            wanted=desired_columns,
        )


def last_synced_time(registered: CatalogTable | None) -> str | None:
    """Return the completion time up to which a catalog is in sync; None if unknown."""
    if registered is None or registered.properties.get(PROVIDER) != HUDI:
        return None
    return registered.properties.get(LAST_COMPLETION) or None


def _merge(registered: CatalogTable, desired: CatalogTable) -> CatalogTable:
    """Return the registered table with the wanted values; foreign properties are kept."""
    foreign_properties = {
        key: value
        for key, value in registered.properties.items()
        if not key.startswith(_OWNED_PREFIXES) or key == "spark.sql.create.version"
    }
    return replace(
        registered,
        columns=desired.columns,
        # The types of partition columns stay as they were registered.
        properties={**foreign_properties, **desired.properties},
        serde={**registered.serde, **desired.serde},
    )


def _normalized(location: str) -> str:
    """Return a location in a canonical form: `file:/a` equals `file:///a`, `s3a` equals `s3`."""
    scheme, colon, rest = location.rstrip("/").partition(":")
    if not colon:
        return location.rstrip("/")
    scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme)
    rest = "/" + rest.lstrip("/") if scheme == "file" else rest
    return rest if scheme == "file" else f"{scheme}:{rest}"


# The table as it should be registered: columns, properties, and partitions changed since a sync.

_UNDO_ACTIONS = (Action.ROLLBACK, Action.RESTORE)
_MAX_PROPERTY_LENGTH = 4000  # maximum length of a property in metastore databases
_OPTIONS = "lakewright.options"
_FORMATTED_GENERATORS = ("TIMESTAMP", "CUSTOM", "TIMESTAMP_AVRO", "CUSTOM_AVRO")
_META = {field.name for field in META_FIELDS}
_READ_OPTIMIZED = {"hoodie.datasource.query.type": "read_optimized"}


@dataclass(frozen=True)
class TableMetadata:
    """The metadata that all registered names of a table have in common."""

    snapshot: Snapshot
    settings: SyncSettings
    extra_properties: Mapping[str, str]

    def catalog_table(self, *, read_optimized: bool) -> CatalogTable:
        """Return the table for one of its names."""
        config = self.snapshot.config
        schema = self._schema()
        columns, partition_columns = _columns(config, schema)
        location = self.snapshot.storage.root
        options = {"path": location, **(_READ_OPTIMIZED if read_optimized else {})}
        properties = {
            "EXTERNAL": "TRUE",
            **dict(self.settings.properties),
            **self.extra_properties,
            **spark_properties(schema, options, [name for name, _ in partition_columns]),
            **sync_position(self.snapshot),
        }
        serde = {"path": location, QUERY_AS_RO: str(read_optimized).lower()}
        return CatalogTable(
            location=location,
            columns=columns,
            partition_columns=partition_columns,
            properties=properties,
            serde=serde,
        )

    def _schema(self) -> pa.Schema:
        schema = self.snapshot.schema(self.snapshot.view())
        if not self.settings.omit_meta_columns:
            return schema
        return pa.schema([field for field in schema if field.name not in _META])

    def desired(self, table: CatalogTable, since: str | None) -> DesiredTable:
        """Return the table with its partitions: those changed since a completion time, or all."""
        if not table.partition_columns:
            return DesiredTable(table=table, present={}, is_complete=True)
        changed = None
        if since is not None and self.settings.incremental:
            changed = changed_partitions_since(self.snapshot, since)
        if changed is None:
            return DesiredTable(
                table=table, present=self._locations(self._visible(None)), is_complete=True
            )
        written, possibly_dropped = changed
        still_visible = self._visible(possibly_dropped) if possibly_dropped else set()
        dropped = {self._values(path) for path in possibly_dropped - still_visible}
        present = self._locations(written | still_visible)
        return DesiredTable(
            table=table, present=present, dropped=frozenset(dropped - present.keys())
        )

    def _visible(self, partitions: Iterable[str] | None) -> set[str]:
        """Return the partitions, of all or of the given ones, that have rows for a reader."""
        files = self.snapshot.files(partitions)
        return {group.partition for group in self.snapshot.groups(self.snapshot.view(), files)}

    def _locations(self, paths: Iterable[str]) -> dict[Values, str]:
        root = self.snapshot.storage.root
        return {self._values(path): f"{root}/{path}" for path in paths}

    def _values(self, path: str) -> Values:
        return values_of(self.snapshot.config, path)


def values_of(config: TableConfig, path: str) -> Values:
    """Return the values of the partition columns in a partition path."""
    values = partition_values(
        path,
        config.partition_fields,
        hive_style=config.hive_style,
        url_encoded=config.url_encoded,
        slashes_for_dashes=config.flag(SLASH_DATES),
    )
    return tuple(DEFAULT_PARTITION if value is None else value for value in values)


def check_partition_fields(config: TableConfig, settings: SyncSettings) -> None:
    """Raise InvalidError if the options name other partition columns than the table has."""
    configured = settings.partition_fields
    if configured and configured != config.partition_fields:
        raise InvalidError(
            "the table is partitioned by other columns: leave the option out, or give these",
            given=",".join(configured),
            columns=",".join(config.partition_fields),
        )


def changed_partitions_since(snapshot: Snapshot, since: str) -> tuple[set[str], set[str]] | None:
    """Return the partitions that were written, and those that may have been dropped.

    None if any partition may have changed: a rollback undoes writes that were synced before, and a
    restore undoes many.
    """
    undone = snapshot.timeline.completed(*_UNDO_ACTIONS)
    if any((instant.completed_at or "") > since for instant in undone):
        return None
    active = [i for i in snapshot.timeline.completed_writes if (i.completed_at or "") > since]
    archived = snapshot.archived_after(since, {*WRITE_ACTIONS, *_UNDO_ACTIONS})
    late = [i for i in archived if (i.completed_at or "") > since]
    if any(i.action in _UNDO_ACTIONS for i in late):
        return None
    written: set[str] = set()
    possibly_dropped: set[str] = set()
    for commit in snapshot.commits([*late, *active]):
        written |= commit.stats.keys()
        possibly_dropped |= dropped_partitions(commit)
    return written - possibly_dropped, possibly_dropped


def sync_position(snapshot: Snapshot) -> dict[str, str]:
    """Return the position of a sync as table properties, with Hudi's keys."""
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
    """Return the properties by which Spark uses the source `hudi`, and not plain Parquet."""
    metadata: dict[str, Any] = {_OPTIONS: dict(options)}
    schema_names = set(schema.names)
    partition_fields = [schema.field(name) for name in partition_columns if name in schema_names]
    data_fields = [field for field in schema if field.name not in partition_columns]
    text = spark_schema_json(pa.schema([*data_fields, *partition_fields]), metadata)
    parts = [
        text[start : start + _MAX_PROPERTY_LENGTH]
        for start in range(0, len(text), _MAX_PROPERTY_LENGTH)
    ]
    properties = {PROVIDER: HUDI, "spark.sql.sources.schema.numParts": str(len(parts))}
    for number, part in enumerate(parts):
        properties[f"spark.sql.sources.schema.part.{number}"] = part
    if partition_fields and len(partition_fields) == len(partition_columns):
        properties["spark.sql.sources.schema.numPartCols"] = str(len(partition_fields))
        for number, field in enumerate(partition_fields):
            properties[f"spark.sql.sources.schema.partCol.{number}"] = field.name
    return properties


def _columns(
    config: TableConfig, schema: pa.Schema
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Return Hive's columns and partition columns; the latter are strings if formatted in paths."""
    is_formatted = config.key_generator in _FORMATTED_GENERATORS
    types = {field.name: hive_type(field.type) for field in schema}
    partition_columns = tuple(
        (name, "string" if is_formatted else types.get(name, "string"))
        for name in config.partition_fields
    )
    partition_names = set(config.partition_fields)
    return tuple(
        (name, kind) for name, kind in types.items() if name not in partition_names
    ), partition_columns
