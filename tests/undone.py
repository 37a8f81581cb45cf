"""Small tables whose writes are taken back, and what a reader sees of them at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from itertools import count

import pyarrow as pa
from golden_tables import as_json

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
from lakewright.scan.planner import plan_snapshot
from lakewright.storage.base import Storage, join_path
from lakewright.storage.memory import MemoryStorage
from lakewright.table.markers import FOLDER as MARKERS
from lakewright.table.markers import MarkerKind, create_marker
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.time_generator import TimeGenerator
from lakewright.testing.clock import ManualClock
from lakewright.testing.local_reads import read_plan
from lakewright.testing.storage import Crash, CrashingStorage
from lakewright.testing.table_builder import TableBuilder

SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64())])
TIMELINE = ".hoodie/timeline"
PENDING = (State.REQUESTED, State.INFLIGHT)

Group = tuple[str, str]
Versions = Mapping[str, int]


def of(**versions: int) -> Versions:
    """Keys and their versions."""
    return versions


@dataclass
class Bench:
    """A table by hand. Files are given by (partition, file id), each with its keys and versions."""

    kind: str = "COPY_ON_WRITE"
    storage: MemoryStorage = field(default_factory=MemoryStorage.fresh)

    def __post_init__(self) -> None:
        self.builder = TableBuilder(self.storage, SCHEMA, table_type=self.kind).create()

    @property
    def action(self) -> str:
        return "commit" if self.kind == "COPY_ON_WRITE" else "deltacommit"

    def write(
        self,
        bases: Mapping[Group, Versions] | None = None,
        logs: Mapping[Group, Versions] | None = None,
    ) -> Instant:
        """A completed write that has kept its pending files, as all do that were not made here."""
        at = self.tick()
        for state in PENDING:
            self.put(Instant(at, Action(self.action), state), b"")
        return self.builder.commit(
            {group: table(group[0], rows) for group, rows in (bases or {}).items()},
            {group: self.log(group, rows, at) for group, rows in (logs or {}).items()},
            instant=at,
            action=Action(self.action),
        )

    def fail(
        self,
        bases: Mapping[Group, Versions],
        *,
        action: str | None = None,
        at: str | None = None,
        marked: bool = True,
        requested: bytes = b"",
    ) -> Instant:
        """A write, or a service, that died before it completed."""
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
        done = Instant(pending.requested_at, action, completed_at=completed_at or self.tick())
        replaces = action == "replacecommit"
        self.put(done, (format_replace_commit if replaces else format_commit)(metadata))
        self.storage.delete_folder(f".hoodie/.temp/{pending.requested_at}")
        self.storage.delete(f".hoodie/.heartbeat/{pending.requested_at}")
        return done

    def stats(
        self, at: str, *groups: Group, replaced: Mapping[str, tuple[str, ...]] | None = None
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
        done = Instant(self.tick(), Action.CLEAN, completed_at=self.tick())
        partitions: dict[str, CleanedPartition] = {}
        for path in paths:
            folder, _, name = path.rpartition("/")
            known = partitions[folder].deleted if folder in partitions else ()
            partitions[folder] = CleanedPartition(
                partition=folder, policy="KEEP_LATEST_FILE_VERSIONS", deleted=(*known, name)
            )
            self.storage.delete(path)
        metadata = CleanMetadata(
            started_at=done.requested_at, earliest_to_retain="", partitions=partitions
        )
        self.put(done, format_clean(metadata))
        return done

    def base(self, group: Group, rows: Versions, at: str, *, marked: bool = False) -> str:
        """A base file, not mentioned anywhere."""
        partition, file_id = group
        file = BaseFile(file_id, "0-0-0", at)
        path = join_path(partition, file.name)
        if marked:
            create_marker(self.storage, at, path, MarkerKind.MERGE)
        self.storage.create(path, self.builder._base_bytes(table(partition, rows), partition, file))
        return path

    def log(self, group: Group, rows: Versions, at: str) -> bytes:
        """A log file's bytes."""
        stored = self.builder.with_meta(table(group[0], rows), *group, at)
        return format_parquet_block(stored, at, avro_schema(stored.schema, "r", "n"))

    def put(self, instant: Instant, data: bytes) -> None:
        """A timeline file."""
        self.storage.create(f"{TIMELINE}/{instant.file_name}", data)

    def tick(self) -> str:
        return self.builder.tick()


def table(partition: str, rows: Versions) -> pa.Table:
    found = [{"id": key, "day": partition, "ts": ts} for key, ts in rows.items()]
    return pa.Table.from_pylist(found, SCHEMA)


def compaction_plan(*operations: CompactionOperation) -> bytes:
    return format_compaction_plan(CompactionPlan(operations=operations))


def compaction_of(group: Group, base: Instant, *logs: Instant) -> CompactionOperation:
    """The operation that folds the logs of some instants into a base file."""
    partition, file_id = group
    return CompactionOperation(
        partition=partition,
        file_id=file_id,
        base_instant=base.requested_at,
        base_file=BaseFile(file_id, "0-0-0", base.requested_at).name,
        logs=tuple(LogFile(file_id, log.requested_at, 1, "0-0-0").name for log in logs),
    )


def clustering_plan(*groups: Group) -> bytes:
    slices = tuple(ClusteringSlice(partition=p, file_id=file_id) for p, file_id in groups)
    plan = ClusteringPlan(groups=(ClusteringGroup(slices=slices),))
    return format_requested_replace(RequestedReplace(operation="CLUSTER", plan=plan))


def rows_of(storage: Storage) -> dict[str, int]:
    """What a reader sees now: the version of each key; a key that is there twice is an error."""
    found = read_plan(storage, plan_snapshot(load_snapshot(storage))).to_pylist()
    rows = {row["id"]: row["ts"] for row in found}
    assert len(rows) == len(found)
    return rows


def json_rows_of(storage: Storage) -> list[str]:
    """What a reader sees now, as the expectations of golden tables have it."""
    found = read_plan(storage, plan_snapshot(load_snapshot(storage))).to_pylist()
    return sorted(map(as_json, found))


def files_of(storage: Storage) -> list[str]:
    return sorted(file.path for file in storage.list_tree(""))


def files_but_markers(storage: Storage) -> list[str]:
    """All files but markers, which stay while tasks of a dead writer may be running."""
    return [path for path in files_of(storage) if not path.startswith(f"{MARKERS}/")]


def data_files_of(storage: Storage) -> list[str]:
    return [path for path in files_of(storage) if not path.startswith(".hoodie/")]


def strays_of(storage: Storage) -> list[str]:
    """Data files whose instant the timeline does not know to have written any."""
    writes = load_snapshot(storage).timeline.by_time
    writing = {at for at, instant in writes.items() if instant.state is not State.REQUESTED}
    named = [(path, parse_data_file(path.rpartition("/")[2])) for path in data_files_of(storage)]
    return [path for path, file in named if file is not None and file.instant not in writing]


def times_of(snapshot: Snapshot) -> TimeGenerator:
    times = [at for i in snapshot.timeline for at in (i.requested_at, i.completed_at) if at]
    return TimeGenerator(ManualClock(), UTC, 0, after=max(times, default=""))


Act = Callable[[Snapshot, TimeGenerator, ManualClock], object]


def act_on(storage: Storage, act: Act) -> object:
    """Do something to a table as a fresh process would that holds its lock."""
    snapshot = load_snapshot(storage)
    return act(snapshot, times_of(snapshot), ManualClock())


def crashes(table: Storage, act: Act) -> Iterator[Storage]:
    """Copies of a table after every point at which a process may die that acts on it."""
    content = {path: table.read(path) for path in files_of(table)}
    for after_effect in (False, True):
        for survived in count():
            storage = MemoryStorage.fresh(content)
            crashing = CrashingStorage(storage, survived, after_effect=after_effect)
            try:
                act_on(crashing, act)
            except Crash:
                yield storage
            else:
                break
