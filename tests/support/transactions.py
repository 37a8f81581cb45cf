"""A table in memory and the transactions of its writers."""

from __future__ import annotations

from collections.abc import Mapping

from lakewright.format.archived_file import ArchivedInstant, format_archived_file
from lakewright.format.archived_timeline import (
    ArchivedTimelineFile,
    Manifest,
    format_manifest,
    manifest_name,
)
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.file_group import BaseFile, LogFile, parse_data_file
from lakewright.model.instant import Instant
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.failed_writes import delete_orphan_files
from lakewright.table.markers import MarkerKind, create_marker
from lakewright.table.options import HeartbeatSettings
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import Transaction, TransactionManager
from lakewright.testing.clock import ManualClock
from lakewright.testing.table_builder import TableBuilder
from support.tables import SCHEMA, TIMELINE

METADATA_PARTITIONS = "hoodie.table.metadata.partitions"


class TransactionFixture:
    """A table in memory, its clock, and its writers."""

    def __init__(self, properties: Mapping[str, str] | None = None, kind: str = "") -> None:
        self.clock = ManualClock()
        self.storage = MemoryStorage.fresh(now_ms=self.clock.now_ms)
        TableBuilder(
            self.storage,
            SCHEMA,
            table_type=kind or "MERGE_ON_READ",
            properties=properties or {},
        ).create()

    def writer(
        self, options: Mapping[str, str] | None = None, storage: Storage | None = None
    ) -> TransactionManager:
        return TransactionManager.from_options(storage or self.storage, self.clock, options or {})

    def names(self) -> list[str]:
        return [file.name for file in self.storage.list_files(TIMELINE)]

    def leftovers(self) -> list[str]:
        """Everything but the table's properties and the timeline."""
        permanent = (".hoodie/hoodie.properties", TIMELINE)
        return sorted(
            f.path for f in self.storage.list_tree("") if not f.path.startswith(permanent)
        )

    def leftovers_after_expiry(self) -> list[str]:
        """The same, after heartbeats expired and a writer deleted orphan files."""
        later_ms = self.clock.now_ms() + HeartbeatSettings().expires_after_ms + 1
        delete_orphan_files(load_snapshot(self.storage), HeartbeatSettings(), later_ms)
        return self.leftovers()

    def put(self, instant: Instant, data: bytes = b"") -> None:
        self.storage.create(f"{TIMELINE}/{instant.file_name}", data)


def write_data_file(
    transaction: Transaction, partition: str, file: BaseFile | LogFile
) -> WriteStat:
    """Write a data file after its marker, and return its statistics."""
    storage, path = transaction.writer.storage, f"{partition}/{file.name}"
    create_marker(storage, transaction.instant, path, MarkerKind.CREATE)
    storage.create(path, b"rows")
    return WriteStat(file_id=file.file_id, path=path, partition_path=partition)


def write_files(transaction: Transaction, *file_ids: str, base: bool = False) -> CommitMetadata:
    """Write a file for each group, and return the metadata of their commit."""
    at = transaction.instant
    stats = tuple(
        write_data_file(transaction, "p1", BaseFile(i, "0-0-0", at) if base else LogFile(i, at))
        for i in file_ids
    )
    return CommitMetadata(stats={"p1": stats} if stats else {}, operation="UPSERT")


def archive_instant(fixture: TransactionFixture, instant: Instant) -> None:
    """Move one instant to the archived timeline."""
    folder, at = f"{TIMELINE}/history", instant.requested_at
    entry = ArchivedInstant(
        requested_at=at,
        completed_at=instant.completed_at or "",
        action=instant.action,
        metadata=fixture.storage.read(f"{TIMELINE}/{instant.file_name}"),
    )
    data = format_archived_file([entry])
    file = ArchivedTimelineFile(at, at, 0, len(data))
    fixture.storage.create(f"{folder}/{file.name}", data)
    fixture.storage.create(f"{folder}/{manifest_name(1)}", format_manifest(Manifest((file,))))
    for name in fixture.names():
        if name.startswith(at):
            fixture.storage.delete(f"{TIMELINE}/{name}")


def orphan_files(storage: Storage) -> list[str]:
    """Data files of instants that are neither pending nor completed."""
    timeline = load_snapshot(storage).timeline
    files = [(f.path, parse_data_file(f.name)) for f in storage.list_files("p1")]
    return [path for path, file in files if file and file.instant not in timeline.by_time]
