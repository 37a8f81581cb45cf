"""What a catalog must be told, from what it knows and what a table is. Pure."""

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
from lakewright.model.instant import Action, Instant
from lakewright.model.partition_paths import DEFAULT_PARTITION, partition_values
from lakewright.model.schema import META_FIELDS
from lakewright.model.table_config import SLASH_DATES, TableConfig
from lakewright.table.snapshot import Snapshot

_SCHEMA = "spark.sql.sources.schema"
# What catalogs themselves keep among a table's properties.
_OURS = ("lakewright.", "spark.sql.", LAST_REQUEST, LAST_COMPLETION)


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredTable:
    """A table as it is: what should be registered.

    `present` and `gone` are its partitions that are told, by values with locations; `whole` says
    that `present` are all there are.
    """

    table: CatalogTable
    present: Mapping[Values, str]
    gone: frozenset[Values] = frozenset()
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogChanges:
    """What a catalog is told, in this order; empty where it knows all already."""

    create: CatalogTable | None = None
    alter: CatalogTable | None = None
    add: tuple[tuple[Values, str], ...] = ()
    move: tuple[tuple[Values, str], ...] = ()
    drop: tuple[Values, ...] = ()

    def __bool__(self) -> bool:
        return any((self.create, self.alter, self.add, self.move, self.drop))


def plan_sync(
    known: CatalogTable | None, partitions: Mapping[Values, str], wanted: DesiredTable
) -> CatalogChanges:
    """The changes that make a catalog know a table as it is.

    `partitions` are those that the catalog has of the ones in question: of all, if the table's
    partitions are `whole`.
    """
    present = wanted.present
    add = tuple((v, at) for v, at in sorted(present.items()) if v not in partitions)
    move = tuple(
        (v, at) for v, at in sorted(present.items()) if _plain(partitions.get(v, at)) != _plain(at)
    )
    gone = partitions.keys() - present.keys()
    drop = tuple(sorted(gone if wanted.whole else gone & wanted.gone))
    if known is None:
        return CatalogChanges(create=wanted.table, add=add)
    merged = _merged(known, wanted.table)
    return CatalogChanges(alter=merged if merged != known else None, add=add, move=move, drop=drop)


def require_same(name: object, known: CatalogTable, wanted: CatalogTable) -> None:
    """Refuse to take a name that stands for something else."""
    if _plain(known.location) != _plain(wanted.location):
        raise ConflictError(
            "the catalog has another table of this name: drop it there, or give another name",
            table=str(name),
            location=known.location,
            wanted=wanted.location,
        )
    before = [column for column, _ in known.partition_columns]
    after = [column for column, _ in wanted.partition_columns]
    if before != after:
        raise ConflictError(
            "the table is registered with other partition columns, which no catalog can change: "
            "drop it there (its files stay), then sync again",
            table=str(name),
            registered=before,
            wanted=after,
        )


def last_synced_time(known: CatalogTable | None) -> str | None:
    """The completion time up to which a catalog knows a table; None if that cannot be told."""
    if known is None or known.properties.get(PROVIDER) != HUDI:
        return None
    return known.properties.get(LAST_COMPLETION) or None


def _merged(known: CatalogTable, wanted: CatalogTable) -> CatalogTable:
    """What is registered, with what is wanted; properties of others stay, ours that ended go."""
    kept = {
        key: value
        for key, value in known.properties.items()
        if not key.startswith(_OURS) or key == "spark.sql.create.version"
    }
    return replace(
        known,
        columns=wanted.columns,
        # The type of a partition column is what it was when it was registered.
        properties={**kept, **wanted.properties},
        serde={**known.serde, **wanted.serde},
    )


def _plain(location: str) -> str:
    """A location, however its scheme is written: `file:/a` is `file:///a`, `s3a` is `s3`."""
    scheme, colon, rest = location.rstrip("/").partition(":")
    if not colon:
        return location.rstrip("/")
    scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme)
    rest = "/" + rest.lstrip("/") if scheme == "file" else rest
    return rest if scheme == "file" else f"{scheme}:{rest}"


# ------------------------------------------------------------------------------------------------
# A table as a catalog should know it: columns, properties, and its partitions since a sync.


_MOST_TEXT = 4000  # of a property, in the databases behind metastores
_OPTIONS = "lakewright.options"
_MADE_TEXT = ("TIMESTAMP", "CUSTOM", "TIMESTAMP_AVRO", "CUSTOM_AVRO")
_META = {field.name for field in META_FIELDS}
_READ_OPTIMIZED = {"hoodie.datasource.query.type": "read_optimized"}


@dataclass(frozen=True)
class TableMetadata:
    """What all names of a table in a catalog have in common."""

    snapshot: Snapshot
    settings: SyncSettings
    more: Mapping[str, str]

    def catalog_table(self, *, read_optimized: bool) -> CatalogTable:
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
            **sync_position(self.snapshot),
        }
        serde = {"path": location, QUERY_AS_RO: str(read_optimized).lower()}
        return CatalogTable(
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

    def desired(self, table: CatalogTable, since: str | None) -> DesiredTable:
        """The table with its partitions: those touched since a completion time, or all."""
        if not table.partition_columns:
            return DesiredTable(table=table, present={}, whole=True)
        touched = None
        if since is not None and self.settings.incremental:
            touched = changed_partitions_since(self.snapshot, since)
        if touched is None:
            return DesiredTable(table=table, present=self._located(self._visible(None)), whole=True)
        written, doubtful = touched
        still = self._visible(doubtful) if doubtful else set()
        gone = {self._values(path) for path in doubtful - still}
        present = self._located(written | still)
        return DesiredTable(table=table, present=present, gone=frozenset(gone - present.keys()))

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


def changed_partitions_since(snapshot: Snapshot, since: str) -> tuple[set[str], set[str]] | None:
    """The partitions that were written, and those that may be gone; None if all may have changed.

    A rollback takes back what a sync has told before, and a restore much of it.
    """
    undone = snapshot.timeline.completed(Action.ROLLBACK, Action.RESTORE)
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


def sync_position(snapshot: Snapshot) -> dict[str, str]:
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
