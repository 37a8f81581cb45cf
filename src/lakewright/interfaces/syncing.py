"""Catalog sync for people: options in, what was told out; after a write, or when asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from lakewright.clock import Clock
from lakewright.core.plans import Skip
from lakewright.errors import LakewrightError, kind_of
from lakewright.interfaces.freshness import catalog_properties, measured
from lakewright.services.sync.catalog import MetaCatalog
from lakewright.services.sync.glue import glue_catalog
from lakewright.services.sync.hive import hive_catalog
from lakewright.services.sync.settings import SyncMode, SyncSettings, sync_settings
from lakewright.services.sync.syncing import Synced, sync_table
from lakewright.storage.base import Storage
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.write.metrics.meter import Meter

Properties = Mapping[str, str | None]
# Tells the catalog of a Spark session; who has none needs no Spark either.
InSession = Callable[[Snapshot, SyncSettings, Properties], tuple[Synced, ...] | Skip]


def sync(
    storage: Storage, clock: Clock, options: Mapping[str, str], in_session: InSession
) -> tuple[Synced, ...] | Skip:
    """Tell the catalog that options name of a table."""
    settings = sync_settings(options)
    snapshot = load_snapshot(storage)
    meter = Meter.of(storage, clock, options, snapshot.config.name)
    kind = settings.kind.lower()
    try:
        properties = catalog_properties(measured(snapshot, clock, options))
        done = _told(snapshot, settings, properties, in_session)
    except LakewrightError as error:
        meter.count("catalog.syncs", catalog=kind, outcome=kind_of(error))
        raise
    told = not isinstance(done, Skip) and any(each.changed for each in done)
    meter.count("catalog.syncs", catalog=kind, outcome="changed" if told else "unchanged")
    return done


def sync_after_write(
    storage: Storage, clock: Clock, options: Mapping[str, str], in_session: InSession
) -> None:
    """Sync where options ask for it; a failure is a warning, unless they say otherwise."""
    settings = sync_settings(options)
    if not settings.enabled:
        return
    try:
        sync(storage, clock, options, in_session)
    except LakewrightError as error:
        if not settings.ignore_errors:
            error.add_note("The write before it has completed, only the catalog was not told.")
            raise
        text = f"the catalog was not told of the write, which has completed: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def _told(
    snapshot: Snapshot,
    settings: SyncSettings,
    properties: Properties,
    in_session: InSession,
) -> tuple[Synced, ...] | Skip:
    if settings.kind is SyncMode.SPARK:
        return in_session(snapshot, settings, properties)
    known = {key: value for key, value in properties.items() if value is not None}
    with _catalog(settings) as catalog:
        return sync_table(snapshot, settings, catalog, known)


def _catalog(settings: SyncSettings) -> AbstractContextManager[MetaCatalog]:
    if settings.kind is SyncMode.HMS:
        return hive_catalog(settings.uris)
    return nullcontext(glue_catalog(settings.region, settings.endpoint))
