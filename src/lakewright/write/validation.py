"""Checks a commit against concurrent writes for conflicts that file groups alone do not show.

Two writers may both insert a key, each into its own file group: no file group has two writers, but
the table would have the key twice. And two writers may both add a column: the schema of the one
that completes last would hide the column of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewright.errors import ConflictError, CorruptError
from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CommitMetadata, WriteStat, is_log
from lakewright.model.file_group import FileSlice, LogFile, parse_data_file
from lakewright.model.instant import Instant, InstantTime
from lakewright.model.schema import COMMIT_TIME, RECORD_KEY
from lakewright.model.timeline import Timeline
from lakewright.storage.base import MissingFileError, Storage, split_path
from lakewright.table.snapshot import Snapshot
from lakewright.utils.arrow_rows import as_array, is_in
from lakewright.write.index import keys_not_in_base
from lakewright.write.task import Operation, WriteTask

_MAX_KEYS_SHOWN = 5


@dataclass(frozen=True)
class ConcurrentInsertValidator:
    """Refuses a commit if a concurrent write inserted one of its keys, or changed the schema."""

    task: WriteTask
    metadata: CommitMetadata
    # Data files never change: a write that has been compared once does not conflict later.
    _compared: dict[Instant, CommitMetadata] = field(default_factory=dict, compare=False)

    def is_prepared(self, current: Snapshot) -> bool:
        """Whether all writes that completed since this one began have been compared."""
        return all(other in self._compared for other in self._concurrent(current))

    def prepare(self, current: Snapshot) -> None:
        """Compare with the writes that completed since; raise ConflictError for a shared key."""
        concurrent = self._concurrent(current)
        if not concurrent:
            return
        unread = [other for other in concurrent if other not in self._compared]
        commits = {**self._compared, **dict(zip(unread, current.commits(unread), strict=True))}
        completed = [(other, commits[other]) for other in concurrent]
        _validate_schema(self.task, completed, current)
        for other in unread:
            self._compare(other, commits[other])
            self._compared[other] = commits[other]

    def validate(self, current: Snapshot) -> None:
        """Raise ConflictError if a write that completed since this one began conflicts with it."""
        self.prepare(current)

    def _concurrent(self, current: Snapshot) -> list[Instant]:
        return _completed_since(self.task.snapshot.timeline, current.timeline)

    def _compare(self, other: Instant, commit: CommitMetadata) -> None:
        task, metadata = self.task, self.metadata
        if _must_not_share_keys(task, commit):
            _validate_no_shared_keys(task, metadata, other, commit)
        updates_by_lookup = task.operation is Operation.UPSERT and not task.buckets
        if updates_by_lookup and commit.operation == Operation.COMPACT:
            _validate_updated_keys_exist(task, metadata, other, commit)


def _completed_since(base: Timeline, current: Timeline) -> list[Instant]:
    completed = {instant.requested_at for instant in base.completed_writes}
    return [i for i in current.completed_writes if i.requested_at not in completed]


def _validate_schema(
    task: WriteTask, completed: Iterable[tuple[Instant, CommitMetadata]], current: Snapshot
) -> None:
    base_schema, current_schema = task.snapshot.avro_schema(), current.avro_schema()
    if current_schema not in (None, task.schema, base_schema):
        raise ConflictError(
            "another writer has changed the table's schema concurrently", instant=task.instant
        )
    # Readers use the schema of the later requested time: it would hide the columns this write adds.
    hiding = [
        other.file_name
        for other, commit in completed
        if other.requested_at > task.instant
        and commit.operation not in SERVICE_OPERATIONS
        and commit.schema not in (None, task.schema)
    ]
    if hiding and base_schema not in (None, task.schema):
        raise ConflictError(
            "another writer began later with the table's old columns, and they would count: write "
            "again",
            instant=task.instant,
            other=hiding[0],
        )


def _must_not_share_keys(task: WriteTask, commit: CommitMetadata) -> bool:
    """Whether the table would have a key twice, and must not, if both writes inserted it."""
    if task.buckets:
        return False
    if task.operation.replaces:
        # Both rows of a key would stay. After this overwrite, the upsert would have updated it.
        return commit.operation == Operation.UPSERT
    keys_are_unique = task.settings.duplicate_policy != "none"
    return task.operation is Operation.UPSERT or (
        task.operation is Operation.INSERT and keys_are_unique
    )


def _validate_no_shared_keys(
    task: WriteTask, metadata: CommitMetadata, other: Instant, commit: CommitMetadata
) -> None:
    own_files, other_files = _files_with_inserts(metadata), _files_with_inserts(commit)
    partitions = set(own_files) & set(other_files)
    if task.is_global and own_files and other_files:
        pairs = [(list(chain(*own_files.values())), list(chain(*other_files.values())))]
    else:
        pairs = [(own_files[partition], other_files[partition]) for partition in sorted(partitions)]
    for own_stats, other_stats in pairs:
        own_keys = _keys(task.storage, own_stats, task.instant)
        other_keys = _keys(task.storage, other_stats, other.requested_at)
        shared_keys = own_keys.filter(is_in(own_keys, other_keys))
        if len(shared_keys):
            raise ConflictError(
                "another writer has inserted the same keys concurrently",
                instant=task.instant,
                other=other.file_name,
                keys=shared_keys.slice(0, _MAX_KEYS_SHOWN).to_pylist(),
                count=len(shared_keys),
            )


def _validate_updated_keys_exist(
    task: WriteTask, metadata: CommitMetadata, other: Instant, commit: CommitMetadata
) -> None:
    """Raise if a write updates rows that a concurrent compaction left out of the base file.

    The rows had been deleted, so the compaction omitted them. Writers that begin after it would not
    find their keys in this file group, and insert them into another.
    """
    compacted = {
        (partition, stat.file_id): stat
        for partition, stats in commit.stats.items()
        for stat in stats
        if stat.num_deletes != 0 and not is_log(stat)
    }
    for partition, stats in metadata.stats.items():
        for stat in stats:
            base = compacted.get((partition, stat.file_id))
            log = parse_data_file(split_path(stat.path or "")[1])
            if base is None or not isinstance(log, LogFile):
                continue
            item = FileSlice(partition, log.file_id, log.instant, None, (log,))
            missing = keys_not_in_base(task, item, base.path or "")
            if len(missing):
                raise ConflictError(
                    "rows that were deleted, and that this write brings back, were compacted away "
                    "concurrently: write again",
                    instant=task.instant,
                    other=other.file_name,
                    keys=missing.slice(0, _MAX_KEYS_SHOWN).to_pylist(),
                    count=len(missing),
                )


def _files_with_inserts(commit: CommitMetadata) -> dict[str, list[WriteStat]]:
    """Return the base files with rows of new keys, by partition."""
    files: dict[str, list[WriteStat]] = {}
    for partition, stats in commit.stats.items():
        inserting = [stat for stat in stats if stat.num_inserts and not stat.log_files]
        if inserting:
            files[partition] = inserting
    return files


def _keys(storage: Storage, stats: Iterable[WriteStat], instant: InstantTime) -> pa.Array:
    """Return the keys of the rows that an instant wrote into these files."""
    return as_array(pa.chunked_array(list(_read_keys(storage, stats, instant)), pa.string()))


def _read_keys(
    storage: Storage, stats: Iterable[WriteStat], instant: InstantTime
) -> Iterator[pa.Array]:
    for stat in stats:
        path = stat.path or ""
        try:
            with storage.open_input(path) as source:
                rows = pq.read_table(
                    source, columns=[RECORD_KEY, COMMIT_TIME], use_threads=False, partitioning=None
                )
        except MissingFileError as error:
            raise ConflictError(
                "a file that another writer has just written is missing", file=path
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise CorruptError("a base file cannot be read", file=path, cause=str(error)) from error
        written = rows.filter(pc.equal(rows.column(COMMIT_TIME), instant))
        yield from written.column(RECORD_KEY).chunks
