"""Catalog sync: plan the changes to a catalog and apply them, after a write or on request."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from lakewright.catalog.base import CatalogTable, MetaCatalog, TableName
from lakewright.catalog.glue import glue_catalog
from lakewright.catalog.hive import hive_catalog
from lakewright.catalog.options import SyncMode, SyncSettings, TableStrategy, sync_settings
from lakewright.catalog.planner import (
    CatalogChanges,
    TableMetadata,
    check_partition_fields,
    last_synced_time,
    plan_sync,
    require_same,
)
from lakewright.clock import Clock
from lakewright.errors import LakewrightError, after_commit, kind_of
from lakewright.metrics.meter import MetricsRecorder
from lakewright.model.instant import InstantTime
from lakewright.model.plans import Skip
from lakewright.model.table_config import TableConfig, TableType
from lakewright.storage.base import Storage
from lakewright.table.freshness_report import catalog_properties, freshness_of
from lakewright.table.snapshot import Snapshot, load_snapshot

Item = TypeVar("Item")


@dataclass(frozen=True)
class SyncResult:
    """The changes that a sync made for one registered name of a table."""

    catalog: str
    table: str
    created: bool = False
    altered: bool = False
    added: int = 0
    moved: int = 0
    dropped: int = 0

    @property
    def changed(self) -> bool:
        """Whether the sync changed anything."""
        return self.created or self.altered or bool(self.added + self.moved + self.dropped)


def sync_table(
    snapshot: Snapshot,
    settings: SyncSettings,
    catalog: MetaCatalog,
    extra_properties: Mapping[str, str],
) -> tuple[SyncResult, ...] | Skip:
    """Sync a catalog with a snapshot of a table; `extra_properties` are properties to set.

    Partitions are changed first and the sync position last: after a crash in between, the next sync
    makes the same changes again.
    """
    check_partition_fields(snapshot.config, settings)
    if snapshot.avro_schema() is None:
        return Skip("the table has no schema yet: nothing was written")
    table = TableMetadata(snapshot, settings, extra_properties)
    catalog.ensure_database(settings.database, create=settings.create_database)
    return tuple(
        _sync_name(table, catalog, name, read_optimized=optimized)
        for name, optimized in names_of(snapshot.config, settings)
    )


def names_of(config: TableConfig, settings: SyncSettings) -> list[tuple[TableName, bool]]:
    """Return the names under which a table is registered, and whether each is read-optimized."""
    name = settings.table or matching_name(config.name)
    plain = TableName(settings.database, name)
    if config.table_type is not TableType.MERGE_ON_READ:
        return [(plain, False)]
    if settings.strategy is not TableStrategy.ALL:
        return [(plain, settings.strategy is TableStrategy.RO)]
    views = [
        (TableName(settings.database, f"{name}_ro"), True),
        (TableName(settings.database, f"{name}_rt"), False),
    ]
    return [*views, (plain, False)]


def matching_name(name: str) -> str:
    """Return the name of a table in the form that catalogs accept.

    >>> matching_name("Rides-2026")
    'rides_2026'
    """
    return "".join(char if char.isalnum() else "_" for char in name).lower()


def _sync_name(
    table: TableMetadata, catalog: MetaCatalog, name: TableName, *, read_optimized: bool
) -> SyncResult:
    registered = catalog.load(name)
    target = table.catalog_table(read_optimized=read_optimized)
    if registered is not None:
        require_same(name, registered, target)
    desired = table.desired(target, last_synced_time(registered))
    requested = None if desired.is_complete else {*desired.present, *desired.dropped}
    partitions = {}
    if registered is not None and target.partition_columns and (requested is None or requested):
        partitions = catalog.partitions(name, requested)
    changes = plan_sync(registered, partitions, desired)
    _apply_changes(catalog, name, changes, registered or target, table.settings.batch)
    return SyncResult(
        catalog=catalog.kind,
        table=str(name),
        created=changes.create is not None,
        altered=changes.alter is not None,
        added=len(changes.add),
        moved=len(changes.move),
        dropped=len(changes.drop),
    )


def _apply_changes(
    catalog: MetaCatalog, name: TableName, changes: CatalogChanges, table: CatalogTable, batch: int
) -> None:
    if changes.create is not None:
        # Without the sync position, which is valid only after the partitions were registered.
        catalog.create(name, without_position(changes.create))
    for new in _batches(changes.add, batch):
        catalog.add(name, table, new)
    for new in _batches(changes.move, batch):
        catalog.move(name, table, new)
    for dropped in _batches(changes.drop, batch):
        catalog.drop(name, dropped)
    last = changes.create or changes.alter
    if last is not None:
        catalog.alter(name, last)


def without_position(table: CatalogTable) -> CatalogTable:
    """Return a table without its sync position."""
    properties = {k: v for k, v in table.properties.items() if not k.startswith("last_commit_")}
    return CatalogTable(
        location=table.location,
        columns=table.columns,
        partition_columns=table.partition_columns,
        properties=properties,
        serde=table.serde,
    )


def _batches(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


# Sync by options: after a write, or on request.

Properties = Mapping[str, str | None]
# Syncs the catalog of a Spark session; passed as a function, since other catalogs need no Spark.
InSession = Callable[[Snapshot, SyncSettings, Properties], tuple[SyncResult, ...] | Skip]


def sync(
    storage: Storage, clock: Clock, options: Mapping[str, str], in_session: InSession
) -> tuple[SyncResult, ...] | Skip:
    """Sync the catalog that options name with the current state of a table."""
    settings = sync_settings(options)
    snapshot = load_snapshot(storage)
    meter = MetricsRecorder.create(storage, clock, options, snapshot.config.name)
    kind = settings.kind.lower()
    try:
        properties = catalog_properties(freshness_of(snapshot, clock, options))
        results = _sync_one(snapshot, settings, properties, in_session)
    except LakewrightError as error:
        meter.count("catalog.syncs", catalog=kind, outcome=kind_of(error))
        raise
    changed = not isinstance(results, Skip) and any(result.changed for result in results)
    meter.count("catalog.syncs", catalog=kind, outcome="changed" if changed else "unchanged")
    return results


def sync_after_write(
    storage: Storage,
    clock: Clock,
    options: Mapping[str, str],
    in_session: InSession,
    committed: InstantTime,
) -> None:
    """Sync after the write at `committed`, if options enable it.

    A failure is an error or a warning, as the options say.
    """
    settings = sync_settings(options)
    if not settings.enabled:
        return
    try:
        sync(storage, clock, options, in_session)
    except LakewrightError as error:
        if not settings.ignore_errors:
            raise after_commit(error, committed, "the update of the catalog") from error
        text = f"the catalog was not updated after the write, which has completed: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def _sync_one(
    snapshot: Snapshot,
    settings: SyncSettings,
    properties: Properties,
    in_session: InSession,
) -> tuple[SyncResult, ...] | Skip:
    if settings.kind is SyncMode.SPARK:
        return in_session(snapshot, settings, properties)
    known_properties = {key: value for key, value in properties.items() if value is not None}
    with _catalog(settings) as catalog:
        return sync_table(snapshot, settings, catalog, known_properties)


def _catalog(settings: SyncSettings) -> AbstractContextManager[MetaCatalog]:
    if settings.kind is SyncMode.HMS:
        return hive_catalog(settings.uris)
    return nullcontext(glue_catalog(settings.region, settings.endpoint))
