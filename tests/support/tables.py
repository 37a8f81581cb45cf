"""Tables that the library writes, tables built file by file, and what a reader sees of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC
from typing import Any

import pyarrow as pa

from lakewright.client.write_client import WriteClient
from lakewright.clock import Clock
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.format.avro.schema import avro_schema
from lakewright.format.data_block import format_parquet_block
from lakewright.format.timeline_metadata import (
    format_clean,
    format_commit,
    format_compaction_plan,
    format_replace_commit,
    format_requested_replace,
)
from lakewright.model.commit_metadata import (
    CleanedPartition,
    CleanMetadata,
    CommitMetadata,
    WriteStat,
)
from lakewright.model.file_group import BaseFile, LogFile, parse_data_file
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import (
    ClusteringGroup,
    ClusteringPlan,
    ClusteringSlice,
    CompactionOperation,
    CompactionPlan,
    RequestedReplace,
)
from lakewright.model.table_config import parse_table_type
from lakewright.scan.planner import plan_read_optimized, plan_snapshot
from lakewright.services.runner import ServiceRunner
from lakewright.storage.base import Storage, join_path
from lakewright.storage.memory import _AREAS, MemoryStorage
from lakewright.table.create import TableSpec, create_table
from lakewright.table.markers import FOLDER as MARKERS
from lakewright.table.markers import MarkerKind, create_marker
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.time_generator import TimeGenerator
from lakewright.table.transaction import Transaction, TransactionManager, TransactionSpec
from lakewright.testing.clock import ManualClock
from lakewright.testing.local_reads import read_plan
from lakewright.testing.table_builder import TableBuilder
from lakewright.write.task import Operation
from lakewright.write.writer import Commit
from support.concurrency import InterruptedEngine, once
from support.golden import as_json

Row = dict[str, Any]

# For tests that run services explicitly.
NO_SERVICES = {
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
}

# By default the filter of a file of a few rows takes half a megabyte, as in Hudi.
SMALL_BLOOM = {"hoodie.index.bloom.num_entries": "100"}

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("day", pa.string()),
        pa.field("ts", pa.int64()),
        pa.field("note", pa.string()),
    ]
)

# The same with columns of types that readers of change data convert.
CDC_SCHEMA = pa.schema(
    [
        *SCHEMA,
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("on", pa.date32()),
        pa.field("blob", pa.binary()),
        pa.field("tags", pa.list_(pa.int64())),
        pa.field("info", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
        pa.field("words", pa.map_(pa.string(), pa.float64())),
    ]
)


def begin_action(
    writer: TransactionManager, action: str, *, requested: bytes = b"", inflight: bytes = b""
) -> Transaction:
    """Begin a write of an action, whatever the table is like."""

    def spec(snapshot: Snapshot) -> TransactionSpec:
        return TransactionSpec(Action(action), requested, lambda: inflight)

    transaction, _ = writer.begin(spec)
    return transaction


@dataclass
class WrittenTable:
    """A table on some storage; every call is a write of its own."""

    storage: Storage = field(default_factory=MemoryStorage.fresh)
    clock: Clock = field(default_factory=ManualClock)
    options: Mapping[str, str] = field(default_factory=dict)
    schema: pa.Schema = SCHEMA
    defaults: Mapping[str, str] = field(default_factory=lambda: SMALL_BLOOM)

    def create(
        self,
        table_type: str = "COPY_ON_WRITE",
        *,
        key: tuple[str, ...] = ("id",),
        partition_by: tuple[str, ...] = ("day",),
        ordering: tuple[str, ...] = ("ts",),
        event_time: str | None = None,
        options: Mapping[str, str] | None = None,
        name: str = "written",
    ) -> WrittenTable:
        spec = TableSpec(
            name=name,
            table_type=parse_table_type(table_type),
            record_key=key,
            partition_by=partition_by,
            ordering=ordering,
            event_time=event_time,
            schema=None,
            options=options or {},
        )
        create_table(self.storage, self.clock, spec)
        return self

    def write(
        self,
        operation: Operation | str,
        rows: Iterable[Row],
        options: Mapping[str, str] | None = None,
        *,
        ordered: bool = False,
        schema: pa.Schema | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> Commit:
        """Write rows; `before_commit` runs once the data files are written."""
        table = pa.Table.from_pylist(list(rows), schema or self.schema)
        engine = InterruptedEngine(after_write=once(before_commit or (lambda: None)))
        client = replace(self.writer(options), local_engine=engine)
        return client.write(Operation(operation), ArrowRows(table), ordered=ordered)

    def writer(self, options: Mapping[str, str] | None = None) -> WriteClient:
        settings = {**self.defaults, **self.options, **(options or {})}
        return replace(WriteClient.create(self.storage, settings, self.clock), engine=LocalEngine)

    def services(self, options: Mapping[str, str] | None = None) -> ServiceRunner:
        return self.writer(options).services

    def upsert(
        self,
        rows: Iterable[Row],
        options: Mapping[str, str] | None = None,
        *,
        before_commit: Callable[[], None] | None = None,
    ) -> Commit:
        return self.write(Operation.UPSERT, rows, options, before_commit=before_commit)

    def delete_partitions(self, *patterns: str) -> Any:
        return self.writer().delete_partitions(patterns)

    def rows(self, *, optimized: bool = False, meta: bool = False) -> list[Row]:
        plan = (plan_read_optimized if optimized else plan_snapshot)(load_snapshot(self.storage))
        records = read_plan(self.storage, plan).to_pylist(maps_as_pydicts="strict")
        if not meta:
            records = [
                {name: value for name, value in row.items() if not name.startswith("_hoodie_")}
                for row in records
            ]
        return sorted(records, key=str)


def row(key: str, ts: int = 1, note: str | None = "first", day: str = "2026-01-01") -> Row:
    return {"id": key, "day": day, "ts": ts, "note": note}


BUILT_SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64())])
TIMELINE = ".hoodie/timeline"
PENDING_STATES = (State.REQUESTED, State.INFLIGHT)

FileGroupKey = tuple[str, str]
Versions = Mapping[str, int]


def versions(**versions: int) -> Versions:
    """Keys and their versions."""
    return versions


def set_clock(storage: MemoryStorage, clock: ManualClock) -> None:
    """Let a storage take modification times from a clock from now on."""
    _AREAS[storage.label].now_ms = clock.now_ms


@dataclass
class BuiltTable:
    """A table built file by file: (partition, file id) to the keys and versions of a file."""

    kind: str = "COPY_ON_WRITE"
    storage: MemoryStorage = field(default_factory=MemoryStorage.fresh)

    def __post_init__(self) -> None:
        self.builder = TableBuilder(self.storage, BUILT_SCHEMA, table_type=self.kind).create()

    @property
    def action(self) -> str:
        return "commit" if self.kind == "COPY_ON_WRITE" else "deltacommit"

    def write(
        self,
        bases: Mapping[FileGroupKey, Versions] | None = None,
        logs: Mapping[FileGroupKey, Versions] | None = None,
    ) -> Instant:
        """A completed write with its pending files, as other writers leave them."""
        at = self.tick()
        for state in PENDING_STATES:
            self.put(Instant(at, Action(self.action), state), b"")
        return self.builder.commit(
            {group: rows_table(group[0], rows) for group, rows in (bases or {}).items()},
            {group: self.log(group, rows, at) for group, rows in (logs or {}).items()},
            instant=at,
            action=Action(self.action),
        )

    def fail(
        self,
        bases: Mapping[FileGroupKey, Versions],
        *,
        action: str | None = None,
        at: str | None = None,
        marked: bool = True,
        requested: bytes = b"",
    ) -> Instant:
        """A write or service that crashed before it completed."""
        instant = Instant(at or self.tick(), Action(action or self.action), State.INFLIGHT)
        self.put(Instant(instant.requested_at, instant.action, State.REQUESTED), requested)
        self.put(instant, b"")
        for group, rows in bases.items():
            self.base(group, rows, instant.requested_at, marked=marked)
        self.storage.create(f".hoodie/.heartbeat/{instant.requested_at}", b"")
        return instant

    def complete(
        self, pending: Instant, metadata: CommitMetadata, *, completed_at: str | None = None
    ) -> Instant:
        """The completed file of a service or replace commit."""
        action = pending.action.completed_as
        instant = Instant(pending.requested_at, action, completed_at=completed_at or self.tick())
        replaces = action == "replacecommit"
        self.put(instant, (format_replace_commit if replaces else format_commit)(metadata))
        self.storage.delete_folder(f".hoodie/.temp/{pending.requested_at}")
        self.storage.delete(f".hoodie/.heartbeat/{pending.requested_at}")
        return instant

    def stats(
        self, at: str, *groups: FileGroupKey, replaced: Mapping[str, tuple[str, ...]] | None = None
    ) -> CommitMetadata:
        """What a service or replace commit records that wrote base files of these groups."""
        stats: dict[str, tuple[WriteStat, ...]] = {}
        for partition, file_id in groups:
            path = join_path(partition, BaseFile(file_id, "0-0-0", at).name)
            stat = WriteStat(file_id=file_id, path=path, partition_path=partition)
            stats[partition] = (*stats.get(partition, ()), stat)
        return CommitMetadata(
            stats=stats, replaced=replaced or {}, extra={"schema": self.builder.avro_schema}
        )

    def clean(self, *paths: str) -> Instant:
        """A completed clean of these files."""
        instant = Instant(self.tick(), Action.CLEAN, completed_at=self.tick())
        partitions: dict[str, CleanedPartition] = {}
        for path in paths:
            folder, _, name = path.rpartition("/")
            deleted = partitions[folder].deleted if folder in partitions else ()
            partitions[folder] = CleanedPartition(
                partition=folder, policy="KEEP_LATEST_FILE_VERSIONS", deleted=(*deleted, name)
            )
            self.storage.delete(path)
        metadata = CleanMetadata(
            started_at=instant.requested_at, earliest_to_retain="", partitions=partitions
        )
        self.put(instant, format_clean(metadata))
        return instant

    def base(self, group: FileGroupKey, rows: Versions, at: str, *, marked: bool = False) -> str:
        """A base file that no commit lists."""
        partition, file_id = group
        file = BaseFile(file_id, "0-0-0", at)
        path = join_path(partition, file.name)
        if marked:
            create_marker(self.storage, at, path, MarkerKind.MERGE)
        self.storage.create(
            path, self.builder._base_bytes(rows_table(partition, rows), partition, file)
        )
        return path

    def log(self, group: FileGroupKey, rows: Versions, at: str) -> bytes:
        """A log file's bytes."""
        stored = self.builder.with_meta(rows_table(group[0], rows), *group, at)
        return format_parquet_block(stored, at, avro_schema(stored.schema, "r", "n"))

    def put(self, instant: Instant, data: bytes) -> None:
        """A timeline file."""
        self.storage.create(f"{TIMELINE}/{instant.file_name}", data)

    def tick(self) -> str:
        return self.builder.tick()


def rows_table(partition: str, rows: Versions) -> pa.Table:
    records = [{"id": key, "day": partition, "ts": ts} for key, ts in rows.items()]
    return pa.Table.from_pylist(records, BUILT_SCHEMA)


def compaction_plan(*operations: CompactionOperation) -> bytes:
    return format_compaction_plan(CompactionPlan(operations=operations))


def compaction_operation(group: FileGroupKey, base: Instant, *logs: Instant) -> CompactionOperation:
    """The operation that folds the logs of some instants into a base file."""
    partition, file_id = group
    return CompactionOperation(
        partition=partition,
        file_id=file_id,
        base_instant=base.requested_at,
        base_file=BaseFile(file_id, "0-0-0", base.requested_at).name,
        logs=tuple(LogFile(file_id, log.requested_at, 1, "0-0-0").name for log in logs),
    )


def clustering_plan(*groups: FileGroupKey) -> bytes:
    slices = tuple(ClusteringSlice(partition=p, file_id=file_id) for p, file_id in groups)
    plan = ClusteringPlan(groups=(ClusteringGroup(slices=slices),))
    return format_requested_replace(RequestedReplace(operation="CLUSTER", plan=plan))


def read_versions(storage: Storage) -> dict[str, int]:
    """What a reader sees now: the version of each key; a duplicate key is an error."""
    records = read_plan(storage, plan_snapshot(load_snapshot(storage))).to_pylist()
    rows = {row["id"]: row["ts"] for row in records}
    assert len(rows) == len(records)
    return rows


def read_json_rows(storage: Storage) -> list[str]:
    """What a reader sees now, as the expectations of golden tables have it."""
    records = read_plan(storage, plan_snapshot(load_snapshot(storage))).to_pylist()
    return sorted(map(as_json, records))


def list_files(storage: Storage) -> list[str]:
    return sorted(file.path for file in storage.list_tree(""))


def files_without_markers(storage: Storage) -> list[str]:
    """All files but markers, which stay while tasks of a crashed writer may be running."""
    return [path for path in list_files(storage) if not path.startswith(f"{MARKERS}/")]


def list_data_files(storage: Storage) -> list[str]:
    return [path for path in list_files(storage) if not path.startswith(".hoodie/")]


def orphan_data_files(storage: Storage) -> list[str]:
    """Data files whose instant is not on the timeline, or only requested."""
    writes = load_snapshot(storage).timeline.by_time
    writing = {at for at, instant in writes.items() if instant.state is not State.REQUESTED}
    named = [(path, parse_data_file(path.rpartition("/")[2])) for path in list_data_files(storage)]
    return [path for path, file in named if file is not None and file.instant not in writing]


def time_generator(snapshot: Snapshot) -> TimeGenerator:
    times = [at for i in snapshot.timeline for at in (i.requested_at, i.completed_at) if at]
    return TimeGenerator(ManualClock(), UTC, 0, after=max(times, default=""))


OPTIMISTIC = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
