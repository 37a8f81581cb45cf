"""The metadata that actions record on the timeline when they complete.

Commits record statistics for each file that they wrote; cleans, rollbacks, savepoints, restores and
index builds record what they deleted, protected or built.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lakewright.model.plans import IndexPartition, InstantRef

SCHEMA_KEY = "schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStats:
    """The time in milliseconds that scanning, creating and updating one file took."""

    total_scan_time: int | None = None
    total_create_time: int | None = None
    total_upsert_time: int | None = None


# Operations of table services: they rewrite existing rows and add none.
SERVICE_OPERATIONS = frozenset({"COMPACT", "LOG_COMPACT", "CLUSTER"})
DELETE_PARTITION = "DELETE_PARTITION"
# Operations of writers that only remove rows.
DELETING_OPERATIONS = frozenset({"DELETE", DELETE_PARTITION})


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStat:
    """The statistics of one file that a write produced; fields and their order are the format's.

    - `path` is relative to the table; `base_file`, `log_files` and `prev_base_file` are file names;
    - `prev_commit` of a new file group is the string "null", which is not the same as None;
    - `cdc_stats` maps the path of each CDC log file to its size; None if CDC is off.
    """

    file_id: str | None = None
    path: str | None = None
    prev_commit: str | None = None
    num_writes: int | None = None
    num_deletes: int | None = None
    num_update_writes: int | None = None
    total_write_bytes: int | None = None
    total_write_errors: int | None = None
    partition_path: str | None = None
    total_log_records: int | None = None
    total_log_files: int | None = None
    total_updated_records_compacted: int | None = None
    num_inserts: int | None = None
    total_log_blocks: int | None = None
    total_corrupt_log_block: int | None = None
    total_rollback_blocks: int | None = None
    file_size_in_bytes: int | None = None
    log_version: int | None = None
    log_offset: int | None = None
    base_file: str | None = None
    log_files: tuple[str, ...] | None = None
    cdc_stats: Mapping[str, int] | None = field(default=None, hash=False)
    prev_base_file: str | None = None
    min_event_time: int | None = None
    max_event_time: int | None = None
    runtime_stats: RuntimeStats | None = None
    total_log_files_compacted: int | None = None
    total_log_read_time_ms: int | None = None
    total_log_size_compacted: int | None = None
    temp_path: str | None = None
    num_updates: int | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that the write created here: the data file and its CDC log files."""
        return (*((self.path,) if self.path else ()), *(self.cdc_stats or ()))


def is_log(stat: WriteStat) -> bool:
    """Whether a statistic is of a log file; only names of log files begin with a dot.

    The statistics of a pending write may name no file; those of a file group with log files list
    these.
    """
    name = (stat.path or "").rpartition("/")[2]
    return name.startswith(".") and ".log." in name if name else bool(stat.log_files)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """The metadata of a commit, deltacommit or replacecommit, by partition.

    `replaced` holds the ids of the file groups that a replacecommit replaced; it is empty for all
    other actions.
    """

    stats: Mapping[str, tuple[WriteStat, ...]] = field(default_factory=dict, hash=False)
    operation: str | None = None
    compacted: bool = False
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = None
    replaced: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    @property
    def schema(self) -> str | None:
        """The table's Avro schema at this commit, without meta columns; None if not recorded."""
        return self.extra.get(SCHEMA_KEY) or None

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions in which file groups were written or replaced, sorted."""
        return tuple(sorted({*self.stats, *self.replaced}))

    def write_stats(self) -> tuple[WriteStat, ...]:
        """Return the statistics of all partitions in one tuple."""
        return tuple(stat for stats in self.stats.values() for stat in stats)

    def event_times_by_partition(self) -> dict[str, tuple[int | None, int | None]]:
        """Return the least and the greatest event time of each partition, None if not recorded.

        This is Hudi's `getMinAndMaxEventTimePerPartition`.
        """
        times: dict[str, tuple[int | None, int | None]] = {}
        for partition, stats in self.stats.items():
            least = [s.min_event_time for s in stats if s.min_event_time is not None]
            greatest = [s.max_event_time for s in stats if s.max_event_time is not None]
            times[partition] = min(least, default=None), max(greatest, default=None)
        return times

    def files(self) -> frozenset[str]:
        """Return the paths of all files that the write created."""
        return frozenset(path for stat in self.write_stats() for path in stat.paths)

    def referenced_file_names(self) -> frozenset[str]:
        """Return the names of all files in the statistics, whether created or only referenced."""
        return frozenset(
            path.rpartition("/")[2]
            for stat in self.write_stats()
            for path in (*stat.paths, stat.base_file, *(stat.log_files or ()))
            if path
        )

    def file_groups(self) -> frozenset[tuple[str, str]]:
        """Return the (partition, file id) pairs that were written or replaced, to detect conflicts.

        In the metadata of an inflight write, inserts into new file groups have an empty file id:
        they cannot conflict and are left out.
        """
        written = {
            (partition, stat.file_id)
            for partition, stats in self.stats.items()
            for stat in stats
            if stat.file_id
        }
        replaced = {
            (partition, file_id) for partition, ids in self.replaced.items() for file_id in ids
        }
        return frozenset(written | replaced)

    def file_ids(self) -> frozenset[str]:
        """Return the ids of the file groups that were written or replaced."""
        return frozenset(file_id for _, file_id in self.file_groups())


# The earliest requested time as of which the table can be read, in the extra metadata of a clean
# whose policy does not record an earliest instant to retain.
READABLE_FROM = "lakewright.clean.readable.from"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedPartition:
    """The files that a clean deleted in one partition, by file name."""

    partition: str
    policy: str
    patterns: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    is_partition_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanMetadata:
    """The metadata of a clean: the files it deleted, and the earliest instant it retained."""

    started_at: str
    earliest_to_retain: str
    took_ms: int = 0
    files_deleted: int = 0
    last_completed: str = ""
    partitions: Mapping[str, CleanedPartition] = field(default_factory=dict, hash=False)
    version: int | None = 2
    bootstrap_partitions: Mapping[str, CleanedPartition] = field(default_factory=dict, hash=False)
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def readable_from(self) -> str | None:
        """The earliest requested time as of which the table can be read; None if unlimited."""
        return max(self.earliest_to_retain, self.extra.get(READABLE_FROM, "")) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBackPartition:
    """The files that a rollback deleted in one partition, by absolute path.

    `rollback_logs` and `failed_logs` map log files to sizes; only tables before version 8 use them.
    """

    partition: str
    deleted: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    rollback_logs: Mapping[str, int] = field(default_factory=dict, hash=False)
    failed_logs: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackMetadata:
    """The metadata of a rollback; `commits` and `instants` both name the rolled-back instants.

    `caused_by` and `reason` are copied from the plan.
    """

    started_at: str
    took_ms: int = 0
    files_deleted: int = 0
    commits: tuple[str, ...] = ()
    partitions: Mapping[str, RolledBackPartition] = field(default_factory=dict, hash=False)
    version: int | None = 1
    instants: tuple[InstantRef, ...] = ()
    caused_by: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPartition:
    """The base and log files, by file name, that a savepoint protects in one partition."""

    partition: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointMetadata:
    """The metadata of a savepoint: its user, time (epoch milliseconds) and protected files."""

    saved_by: str
    saved_at: int
    comments: str = ""
    partitions: Mapping[str, SavedPartition] = field(default_factory=dict, hash=False)
    version: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreMetadata:
    """The metadata of a restore: one or more rollbacks for each rolled-back instant."""

    started_at: str
    took_ms: int = 0
    commits: tuple[str, ...] = ()
    rollbacks: Mapping[str, tuple[RollbackMetadata, ...]] = field(default_factory=dict, hash=False)
    version: int | None = 1
    instants: tuple[InstantRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCommitMetadata:
    """The partitions of the metadata table that an indexing action has built."""

    partitions: tuple[IndexPartition, ...] = ()
    operation: str | None = None
    version: int | None = 1


# Writes of these operations change no file group that exists; other inserts go to small files.
_BULK_INSERTS = ("BULK_INSERT", "BULK_INSERT_PREPPED")
_NEW_GROUP = "null"
_PATTERNS = "lakewright.partition.patterns"


@dataclass(frozen=True, slots=True)
class WorkloadProfile:
    """What the inflight file of a write says of the partitions that the write will change.

    Real Hudi writes it once it has looked up the keys, before it creates a data file: for each
    partition one stat without file id, with the number of rows to insert, and one stat for each
    file group to update. It does not list the small file groups to which it adds rows. An insert
    overwrite has the former only; a bulk insert and the writers of Flink leave the file empty.

    This library writes it before the shuffle, which finds the file groups: the stats without file
    id, for the partitions that it knows without another pass over the rows. Patterns by which a
    deletion names partitions are in the extra metadata. No partition is known if it is empty.

    The write may change any file group of `open_partitions`, in the others only those that it
    names. `patterns` are those of partitions that it will delete.
    """

    partitions: frozenset[str] = frozenset()
    open_partitions: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the write says where it will be."""
        return bool(self.partitions or self.patterns)


NO_PROFILE = WorkloadProfile()


def changes_no_group(metadata: CommitMetadata) -> bool:
    """Whether a write of this operation only creates file groups."""
    return (metadata.operation or "").upper() in _BULK_INSERTS


def workload_profile(metadata: CommitMetadata | None) -> WorkloadProfile:
    """Return the profile of a write, given the content of its inflight file."""
    if metadata is None or changes_no_group(metadata):
        return NO_PROFILE
    stats = metadata.stats.items()
    return WorkloadProfile(
        frozenset(metadata.stats),
        frozenset(partition for partition, items in stats if _is_open(items)),
        _patterns(metadata.extra.get(_PATTERNS, "[]")),
    )


def _patterns(text: str) -> tuple[str, ...]:
    try:
        return tuple(str(pattern) for pattern in json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return ()  # another writer's file: the write is then expected where the last ones were


def _is_open(stats: Sequence[WriteStat]) -> bool:
    names_groups = any(stat.file_id for stat in stats)
    return not names_groups or any(stat.num_inserts for stat in stats if not stat.file_id)


def planned_metadata(
    operation: str, partitions: Iterable[str] | None, patterns: Iterable[str] = ()
) -> CommitMetadata:
    """Return what the inflight file of a write records; the partitions are None if unknown."""
    listed = sorted(patterns)
    stats = {
        path: (WriteStat(file_id="", prev_commit=_NEW_GROUP, partition_path=path),)
        for path in sorted(partitions or ())
    }
    return CommitMetadata(
        stats=stats,
        operation=operation,
        extra={_PATTERNS: json.dumps(listed)} if listed else {},
    )
