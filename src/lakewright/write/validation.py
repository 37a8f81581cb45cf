"""What others did while a write was under way that file groups alone do not tell.

Two writers may each take a key for new and put it into a file group of its own: no file group is
touched twice, and yet the key would be there twice. And two writers may each add a column: the
schema of the one that completes last would hide the other's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
from lakewright.write.index import keys_not_in_base
from lakewright.write.task import Operation, WriteTask

_SHOWN = 5


@dataclass(frozen=True)
class ConcurrentInsertValidator:
    """Refuses a commit if a concurrent write inserted one of its keys, or changed the schema."""

    task: WriteTask
    metadata: CommitMetadata

    def validate(self, current: Snapshot) -> None:
        """Raise ConflictError if a write that completed since this one began conflicts with it."""
        task, metadata = self.task, self.metadata
        others = _completed_since(task.snapshot.timeline, current.timeline)
        if not others:
            return
        completed = list(zip(others, current.commits(others), strict=True))
        _validate_schema(task, completed, current)
        for other, commit in completed:
            if _must_not_share_keys(task, commit):
                _validate_no_shared_keys(task, metadata, other, commit)
            updates_by_lookup = task.operation is Operation.UPSERT and not task.buckets
            if updates_by_lookup and commit.operation == Operation.COMPACT:
                _validate_updated_keys_exist(task, metadata, other, commit)


def _completed_since(before: Timeline, now: Timeline) -> list[Instant]:
    known = {instant.requested_at for instant in before.completed_writes}
    return [i for i in now.completed_writes if i.requested_at not in known]


def _validate_schema(
    task: WriteTask, done: Iterable[tuple[Instant, CommitMetadata]], now: Snapshot
) -> None:
    before, newest = task.snapshot.avro_schema(), now.avro_schema()
    if newest not in (None, task.schema, before):
        raise ConflictError(
            "another writer has changed the table's schema meanwhile", instant=task.instant
        )
    # Of two schemas that of the later request counts: it would hide what this write has added.
    hiding = [
        other.file_name
        for other, commit in done
        if other.requested_at > task.instant
        and commit.operation not in SERVICE_OPERATIONS
        and commit.schema not in (None, task.schema)
    ]
    if hiding and before not in (None, task.schema):
        raise ConflictError(
            "another writer began later with the table's old columns, and they would count: write "
            "again",
            instant=task.instant,
            other=hiding[0],
        )


def _must_not_share_keys(task: WriteTask, commit: CommitMetadata) -> bool:
    """Whether a key that both inserted would be there twice and must not be."""
    if task.buckets:
        return False
    if task.operation.replaces:
        # Rows that come to stay beside an overwrite: an upsert after it would have updated them.
        return commit.operation == Operation.UPSERT
    keeps_one = task.settings.duplicate_policy != "none"
    return task.operation is Operation.UPSERT or (task.operation is Operation.INSERT and keeps_one)


def _validate_no_shared_keys(
    task: WriteTask, metadata: CommitMetadata, other: Instant, commit: CommitMetadata
) -> None:
    mine, theirs = _inserting(metadata), _inserting(commit)
    shared = set(mine) & set(theirs)
    if task.is_global and mine and theirs:
        pairs = [(list(chain(*mine.values())), list(chain(*theirs.values())))]
    else:
        pairs = [(mine[partition], theirs[partition]) for partition in sorted(shared)]
    for my_stats, their_stats in pairs:
        new = _keys(task.storage, my_stats, task.instant)
        known = _keys(task.storage, their_stats, other.requested_at)
        both = new.filter(pc.is_in(new, value_set=known))
        if len(both):
            raise ConflictError(
                "another writer has inserted the same keys meanwhile",
                instant=task.instant,
                other=other.file_name,
                keys=both.slice(0, _SHOWN).to_pylist(),
                count=len(both),
            )


def _validate_updated_keys_exist(
    task: WriteTask, metadata: CommitMetadata, other: Instant, commit: CommitMetadata
) -> None:
    """Refuse to update rows in a file group whose base file has lost them since.

    They had been deleted, and the compaction left them out. Writers that began after it would not
    find them in the group, and insert them elsewhere.
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
            forgotten = keys_not_in_base(task, item, base.path or "")
            if len(forgotten):
                raise ConflictError(
                    "rows that were deleted, and that this write brings back, were compacted away "
                    "meanwhile: write again",
                    instant=task.instant,
                    other=other.file_name,
                    keys=forgotten.slice(0, _SHOWN).to_pylist(),
                    count=len(forgotten),
                )


def _inserting(commit: CommitMetadata) -> dict[str, list[WriteStat]]:
    """The base files by partition that rows of new keys went into."""
    found: dict[str, list[WriteStat]] = {}
    for partition, stats in commit.stats.items():
        chosen = [stat for stat in stats if stat.num_inserts and not stat.log_files]
        if chosen:
            found[partition] = chosen
    return found


def _keys(storage: Storage, stats: Iterable[WriteStat], instant: InstantTime) -> pa.Array:
    """The keys of the rows that an instant wrote into these files."""
    return pa.concat_arrays([pa.array([], pa.string()), *_written(storage, stats, instant)])


def _written(
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
                "a file that another writer has just written is gone", file=path
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise CorruptError("a base file cannot be read", file=path, cause=str(error)) from error
        fresh = rows.filter(pc.equal(rows.column(COMMIT_TIME), instant))
        yield from fresh.column(RECORD_KEY).chunks
