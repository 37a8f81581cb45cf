"""The subjects of a run; a new one is a small class and a line in `SUBJECTS`."""

from __future__ import annotations

import json
from typing import ClassVar

from bench.scale.subject import Subject
from bench.scale.table import (
    HISTORY,
    Shape,
    SyntheticTable,
    archived_instant,
    completed_at,
    synthetic_table,
)
from lakewright.clock import SystemClock
from lakewright.engine.local import LocalEngine
from lakewright.model.commit_metadata import SCHEMA_KEY, CommitMetadata, WriteStat
from lakewright.model.instant import Action
from lakewright.model.ttl import ENABLED, MAX_PARTITIONS, POLICIES
from lakewright.scan.planner import EARLIEST, plan_changes, plan_range, plan_snapshot
from lakewright.scan.stream_offsets import (
    LATEST,
    StreamStart,
    batch_context,
    newest_completion,
    next_offset,
)
from lakewright.services.archiving.history import merge_history
from lakewright.services.archiving.planner import ArchivingSettings
from lakewright.services.compaction_debt import load_debt
from lakewright.services.runner import ServiceRunner
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.storage.metered import ForwardingStorage
from lakewright.table.create import TableSpec, create_table
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.transaction import TransactionManager, TransactionSpec
from lakewright.testing.clock import ManualClock
from lakewright.write.writer import Commit

_PARTITIONS = (1_000, 10_000, 100_000, 1_000_000)


class OverPartitions:
    """A job on a table of n partitions of one file group each."""

    unit: ClassVar[str] = "partitions"
    sizes: ClassVar[tuple[int, ...]] = _PARTITIONS
    default_size: ClassVar[int] = 100_000
    flat: ClassVar[bool] = False
    changes: ClassVar[bool] = False

    def build(self, size: int) -> SyntheticTable:
        return synthetic_table(Shape(partitions=size))


class ActiveTimeline:
    """Look at a table with many instants that nobody archives."""

    name: ClassVar[str] = "active timeline"
    unit: ClassVar[str] = "instants"
    sizes: ClassVar[tuple[int, ...]] = (100, 1_000, 10_000, 100_000)
    default_size: ClassVar[int] = 10_000
    flat: ClassVar[bool] = False
    changes: ClassVar[bool] = False

    def build(self, size: int) -> SyntheticTable:
        return synthetic_table(Shape(instants=size))

    def run(self, storage: Storage) -> object:
        return load_snapshot(storage)


class History:
    """A job on a table with n archived instants, a year of them at most: one in each minute."""

    unit: ClassVar[str] = "archived instants"
    sizes: ClassVar[tuple[int, ...]] = (1_000, 10_000, 100_000, 525_600)
    default_size: ClassVar[int] = 100_000
    flat: ClassVar[bool] = False
    changes: ClassVar[bool] = False

    def build(self, size: int) -> SyntheticTable:
        return synthetic_table(Shape(archived=size))


class AllTimes(History):
    """Load the times of all archived instants."""

    name: ClassVar[str] = "history, all times"

    def run(self, storage: Storage) -> object:
        return load_snapshot(storage).archived_times


class Loaded(History):
    """Look at the table."""

    name: ClassVar[str] = "history, snapshot"
    flat: ClassVar[bool] = True

    def run(self, storage: Storage) -> object:
        return load_snapshot(storage)


class OneArchived(History):
    """Read the metadata of one archived commit."""

    name: ClassVar[str] = "history, one commit"

    def run(self, storage: Storage) -> object:
        snapshot = load_snapshot(storage)
        instant = archived_instant(_archived_count(snapshot) // 2)
        return snapshot.commits([instant])


class LastHour(History):
    """Plan the changes of the last 60 instants, of which 41 are archived."""

    name: ClassVar[str] = "history, last hour"

    def run(self, storage: Storage) -> object:
        snapshot = load_snapshot(storage)
        before = archived_instant(_archived_count(snapshot) - 42)
        return plan_changes(snapshot, since=before.completed_at)


class MiddleHour(History):
    """Plan the changes of 60 archived instants in the middle."""

    name: ClassVar[str] = "history, an hour in the middle"

    def run(self, storage: Storage) -> object:
        snapshot = load_snapshot(storage)
        middle = _archived_count(snapshot) // 2
        since, until = (archived_instant(middle + n).completed_at for n in (0, 60))
        return plan_changes(snapshot, since=since, until=until)


class NewStream(History):
    """Begin a stream at the latest instant, and plan its first batch."""

    name: ClassVar[str] = "history, new stream"

    def run(self, storage: Storage) -> object:
        return _first_batch(storage, StreamStart(LATEST))


class NewStreamFromBeginning(History):
    """Begin a stream at the beginning of the table, and plan its first batch."""

    name: ClassVar[str] = "history, new stream of all"

    def run(self, storage: Storage) -> object:
        return _first_batch(storage, StreamStart(EARLIEST))


class ArchivingRound(History):
    """Archive 20 instants, and merge what is due then."""

    name: ClassVar[str] = "history, archiving"
    changes: ClassVar[bool] = True

    def build(self, size: int) -> SyntheticTable:
        # The next file fills a level, and so on: all levels are merged, up to the largest files.
        return synthetic_table(Shape(archived=size, instants=40))

    def run(self, storage: Storage) -> object:
        outcome = _services(storage).run("archive")
        assert isinstance(outcome, Commit)
        return outcome


class HistoryMerge(History):
    """Merge ten files that hold n instants together."""

    name: ClassVar[str] = "history, merge"
    sizes: ClassVar[tuple[int, ...]] = (1_000, 10_000, 100_000)
    changes: ClassVar[bool] = True

    def build(self, size: int) -> SyntheticTable:
        return synthetic_table(Shape(archived=size, archived_files=10))

    def run(self, storage: Storage) -> object:
        writer = TransactionManager.from_options(storage, SystemClock(), {})
        merges = merge_history(writer, HISTORY, ArchivingSettings())
        assert merges == 1
        return merges


class Slicing:
    """Put a listing into file groups and slices: a thousand files in each partition."""

    name: ClassVar[str] = "slicing"
    unit: ClassVar[str] = "files"
    sizes: ClassVar[tuple[int, ...]] = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
    default_size: ClassVar[int] = 1_000_000
    flat: ClassVar[bool] = False
    changes: ClassVar[bool] = False

    def build(self, size: int) -> SyntheticTable:
        shape = Shape(partitions=size // 1000, groups=200, bases=2, logs=3, touched=1)
        return synthetic_table(shape)

    def run(self, storage: Storage) -> object:
        snapshot = load_snapshot(storage)
        return snapshot.groups(snapshot.view())


class SnapshotPlan(OverPartitions):
    """Plan to read all of a table whose partitions lie side by side."""

    name: ClassVar[str] = "snapshot"

    def run(self, storage: Storage) -> object:
        return plan_snapshot(load_snapshot(storage))


class NestedSnapshotPlan(SnapshotPlan):
    """Plan to read all of a table whose partitions lie in folders of a thousand."""

    name: ClassVar[str] = "snapshot, nested"

    def build(self, size: int) -> SyntheticTable:
        return synthetic_table(Shape(partitions=size, per_month=1_000))


class WideChanges(OverPartitions):
    """Plan the changes of an instant that wrote to every partition."""

    name: ClassVar[str] = "changes everywhere"

    def build(self, size: int) -> SyntheticTable:
        return synthetic_table(Shape(partitions=size, touched=size))

    def run(self, storage: Storage) -> object:
        return plan_changes(load_snapshot(storage), since=_BEFORE_LAST)


class TimelineOfManyPartitions(OverPartitions):
    """Look at a table of many partitions."""

    name: ClassVar[str] = "timeline"
    flat: ClassVar[bool] = True

    def run(self, storage: Storage) -> object:
        return load_snapshot(storage)


class OnePartition(OverPartitions):
    """Plan to read one partition by its name."""

    name: ClassVar[str] = "one partition"
    flat: ClassVar[bool] = True

    def run(self, storage: Storage) -> object:
        return plan_snapshot(load_snapshot(storage), partitions=["d0000007"])


class FewChanges(OverPartitions):
    """Plan the changes of an instant that wrote to ten partitions."""

    name: ClassVar[str] = "changes in 10"
    flat: ClassVar[bool] = True

    def run(self, storage: Storage) -> object:
        return plan_changes(load_snapshot(storage), since=_BEFORE_LAST)


class Compacted(OverPartitions):
    """A job on a table that was compacted before its last instant wrote to ten partitions."""

    flat: ClassVar[bool] = True

    def build(self, size: int) -> SyntheticTable:
        return synthetic_table(Shape(partitions=size, compacted=True))


class CompactionPlanning(Compacted):
    """Plan a compaction."""

    name: ClassVar[str] = "compaction, 10 changed"

    def run(self, storage: Storage) -> object:
        return _services(storage).preview("compaction")


class DebtOfTen(Compacted):
    """Tell what is owed."""

    name: ClassVar[str] = "debt in 10"

    def run(self, storage: Storage) -> object:
        return load_debt(_services(storage).planning_context(load_snapshot(storage)))


class CompactionOfAll(Compacted):
    """Plan a compaction with incremental planning switched off: every partition is looked at."""

    name: ClassVar[str] = "compaction, all looked at"
    flat: ClassVar[bool] = False

    def run(self, storage: Storage) -> object:
        options = {"hoodie.table.services.incremental.enabled": "false"}
        return _services(storage, options).preview("compaction")


class Expired(OverPartitions):
    """Find the expired partitions, which are half of all."""

    name: ClassVar[str] = "expired partitions"

    def build(self, size: int) -> SyntheticTable:
        # Without log files: those of the active timeline would renew what is archived.
        return synthetic_table(Shape(partitions=size, logs=0, touched=1, aged=True))

    def run(self, storage: Storage) -> object:
        policy = {"spec": "*", "units": "MONTHS", "value": 3}
        options = {ENABLED: "true", POLICIES: json.dumps([policy]), MAX_PARTITIONS: "1000000000"}
        clock = ManualClock(_EARLY_2026_MS)
        plan = ServiceRunner(storage, clock, LocalEngine, options).preview("ttl")
        return plan.partitions


class WideCommit:
    """Commit a write of many files, a hundred of them in each partition."""

    name: ClassVar[str] = "wide commit"
    unit: ClassVar[str] = "files"
    sizes: ClassVar[tuple[int, ...]] = (1_000, 10_000, 100_000)
    default_size: ClassVar[int] = 100_000
    flat: ClassVar[bool] = False
    changes: ClassVar[bool] = True
    _files: int = 0

    def build(self, size: int) -> Storage:
        self._files = size
        storage = MemoryStorage.fresh()
        create_table(storage, SystemClock(), TableSpec(name="wide", record_key=("id",)))
        return storage

    def run(self, storage: Storage) -> object:
        manager = TransactionManager(storage, SystemClock())
        transaction, _ = manager.begin(lambda snapshot: TransactionSpec(Action.COMMIT))
        with transaction:
            return transaction.commit(_wide_metadata(self._files, transaction.instant))


class SchemaOfWideCommit(WideCommit):
    """Tell the schema of a table whose newest commit wrote many files."""

    name: ClassVar[str] = "schema of a wide commit"
    changes: ClassVar[bool] = False

    def build(self, size: int) -> Storage:
        storage = super().build(size)
        super().run(storage)
        return storage

    def run(self, storage: Storage) -> object:
        return load_snapshot(storage).avro_schema()


def _wide_metadata(files: int, instant: str) -> CommitMetadata:
    stats: dict[str, list[WriteStat]] = {}
    for number in range(files):
        partition, file_id = f"d{number // 100:07}", f"{number:08}-0000-0000-0000-000000000000-0"
        stat = WriteStat(
            file_id=file_id,
            path=f"{partition}/{file_id}_0-0-0_{instant}.parquet",
            partition_path=partition,
            prev_commit="null",
            num_writes=1000,
            num_inserts=1000,
            total_write_bytes=1 << 20,
            file_size_in_bytes=1 << 20,
            num_deletes=0,
            num_update_writes=0,
            total_write_errors=0,
        )
        stats.setdefault(partition, []).append(stat)
    return CommitMetadata(
        stats={partition: tuple(items) for partition, items in stats.items()},
        operation="INSERT",
        extra={SCHEMA_KEY: _SCHEMA},
    )


_SCHEMA = '{"type":"record","name":"wide","fields":[{"name":"id","type":"string"}]}'


def _archived_count(snapshot: Snapshot) -> int:
    storage = snapshot.storage
    while isinstance(storage, ForwardingStorage):
        storage = storage.inner
    assert isinstance(storage, SyntheticTable)
    return storage.shape.archived


def _first_batch(storage: Storage, start: StreamStart) -> object:
    snapshot = load_snapshot(storage)
    end = next_offset(start, snapshot, until=newest_completion(snapshot.timeline))
    assert end is not None
    context = batch_context(load_snapshot(storage), start, end)
    return context and plan_range(context)


def _services(storage: Storage, options: dict[str, str] | None = None) -> ServiceRunner:
    service_options = {"hoodie.compact.inline.max.delta.commits": "1", **(options or {})}
    return ServiceRunner(storage, SystemClock(), LocalEngine, service_options)


_EARLY_2026_MS = 1_768_000_000_000
_BEFORE_LAST = completed_at(Shape().instants - 2)

SUBJECTS: tuple[Subject, ...] = (
    TimelineOfManyPartitions(),
    OnePartition(),
    FewChanges(),
    CompactionPlanning(),
    DebtOfTen(),
    CompactionOfAll(),
    Expired(),
    SnapshotPlan(),
    NestedSnapshotPlan(),
    WideChanges(),
    Slicing(),
    ActiveTimeline(),
    WideCommit(),
    SchemaOfWideCommit(),
    Loaded(),
    OneArchived(),
    LastHour(),
    MiddleHour(),
    NewStream(),
    NewStreamFromBeginning(),
    ArchivingRound(),
    HistoryMerge(),
    AllTimes(),
)
