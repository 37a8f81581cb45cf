"""One sync: look at the table, look at the catalog, plan, tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lakewright.core.plans import Skip
from lakewright.core.table_config import TableConfig, TableType
from lakewright.services.sync.catalog import MetaCatalog, Registered, TableName
from lakewright.services.sync.look import Table, check_partition_fields
from lakewright.services.sync.plan import Changes, plan_sync, require_same, trusted_position
from lakewright.services.sync.settings import SyncSettings, TableStrategy
from lakewright.table.snapshot import Snapshot

Item = TypeVar("Item")


@dataclass(frozen=True)
class Synced:
    """What a catalog was told about one name of a table."""

    catalog: str
    table: str
    created: bool = False
    altered: bool = False
    added: int = 0
    moved: int = 0
    dropped: int = 0

    @property
    def changed(self) -> bool:
        """Whether anything was told."""
        return self.created or self.altered or bool(self.added + self.moved + self.dropped)


def sync_table(
    snapshot: Snapshot, settings: SyncSettings, catalog: MetaCatalog, more: Mapping[str, str]
) -> tuple[Synced, ...] | Skip:
    """Tell a catalog of a table as it is in a snapshot; `more` are properties to be set.

    Partitions first, and how far the catalog knows the table last: who dies in between is
    followed by one who tells the same again.
    """
    check_partition_fields(snapshot.config, settings)
    if snapshot.avro_schema() is None:
        return Skip("the table has no schema yet: nothing was written")
    table = Table(snapshot, settings, more)
    catalog.ensure_database(settings.database, create=settings.create_database)
    return tuple(
        _told(table, catalog, name, read_optimized=optimized)
        for name, optimized in names_of(snapshot.config, settings)
    )


def names_of(config: TableConfig, settings: SyncSettings) -> list[tuple[TableName, bool]]:
    """The names that a table gets, and which of them are read-optimized."""
    name = settings.table or fitting(config.name)
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


def fitting(name: str) -> str:
    """A table's own name as catalogs take it.

    >>> fitting("Rides-2026")
    'rides_2026'
    """
    return "".join(char if char.isalnum() else "_" for char in name).lower()


def _told(table: Table, catalog: MetaCatalog, name: TableName, *, read_optimized: bool) -> Synced:
    known = catalog.load(name)
    target = table.registered(read_optimized=read_optimized)
    if known is not None:
        require_same(name, known, target)
    wanted = table.wanted(target, trusted_position(known))
    asked = None if wanted.whole else {*wanted.present, *wanted.gone}
    there = {}
    if known is not None and target.partition_columns and (asked is None or asked):
        there = catalog.partitions(name, asked)
    changes = plan_sync(known, there, wanted)
    _tell(catalog, name, changes, known or target, table.settings.batch)
    return Synced(
        catalog=catalog.kind,
        table=str(name),
        created=changes.create is not None,
        altered=changes.alter is not None,
        added=len(changes.add),
        moved=len(changes.move),
        dropped=len(changes.drop),
    )


def _tell(
    catalog: MetaCatalog, name: TableName, changes: Changes, table: Registered, batch: int
) -> None:
    if changes.create is not None:
        # Without its position: only when the partitions are there as well is it known.
        catalog.create(name, without_position(changes.create))
    for new in _batches(changes.add, batch):
        catalog.add(name, table, new)
    for new in _batches(changes.move, batch):
        catalog.move(name, table, new)
    for gone in _batches(changes.drop, batch):
        catalog.drop(name, gone)
    last = changes.create or changes.alter
    if last is not None:
        catalog.alter(name, last)


def without_position(table: Registered) -> Registered:
    """A table of which a catalog does not know up to where it knows it."""
    kept = {k: v for k, v in table.properties.items() if not k.startswith("last_commit_")}
    return Registered(
        location=table.location,
        columns=table.columns,
        partition_columns=table.partition_columns,
        properties=kept,
        serde=table.serde,
    )


def _batches(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[at : at + size] for at in range(0, len(items), size)]
