"""Whether file groups still are what the plan of a compaction says they are.

A write may choose its completion time, and its file appear only after a plan was made at a later
time, where storage is slow or writers have no lock in common. Its log file would lie below the new
base file, where nobody reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.clock import zone_of
from lakewright.errors import ConflictError, CorruptError, InvalidError, found_in
from lakewright.model.commit_metadata import CommitMetadata, is_log
from lakewright.model.event_time import (
    Changes,
    EventTimeThreshold,
    SplitLogRecords,
    event_range,
    split_logs,
)
from lakewright.model.file_group import (
    BaseFile,
    FileSlice,
    GroupKey,
    LogFile,
    TimelineView,
    build_groups,
    parse_data_file,
)
from lakewright.model.freshness import UNKNOWN_OPERATION
from lakewright.model.instant import Action, Instant, State, epoch_ms
from lakewright.model.merge import (
    Flags,
    MergeCounts,
    MergedLogRecords,
    MergeRule,
    Upserts,
    merge_logs,
    merge_with_base,
    overwritten_rows,
)
from lakewright.model.plans import (
    EVENT_TIME_THRESHOLD,
    EXACT_SPLIT,
    CompactionOperation,
    CompactionPlan,
)
from lakewright.model.schema import RECORD_KEY
from lakewright.scan.slice_reader import (
    base_rows,
    batches_of,
    block_changes,
    effective_blocks,
    read_blocks,
)
from lakewright.services.base import ConcurrentWriteError, ExecutionContext
from lakewright.services.planning import superseded_reason
from lakewright.services.rewrite import rewrite_task, run_rewrite
from lakewright.table.snapshot import Snapshot
from lakewright.utils.concurrent import ahead
from lakewright.write.file_group_writer import FileGroupWriter
from lakewright.write.operations import delete_records
from lakewright.write.task import Operation, WriteTask

_CHANGE_FILES = ".cdc"
_PARTITIONS_AT_ONCE = 1000


def check_plan_is_current(snapshot: Snapshot, planned: Instant, plan: CompactionPlan) -> None:
    """ConflictError unless the groups of a plan hold, below its instant, the files that it names.

    Beside a log compaction log files may stay, but none that are merged before those it names.
    """
    if len(plan.file_groups) < len(plan.operations):
        raise CorruptError("a plan names a file group twice", instant=planned.requested_at)
    reason = superseded_reason(snapshot, planned, plan)
    if reason is not None:
        raise ConflictError(reason, instant=planned.requested_at)
    partitions = plan.partitions
    for start in range(0, len(partitions), _PARTITIONS_AT_ONCE):
        some = set(partitions[start : start + _PARTITIONS_AT_ONCE])
        named = {(o.partition, o.file_id): o for o in plan.operations if o.partition in some}
        _compare(snapshot, planned, named)


def logs_after_plan(
    snapshot: Snapshot, at: str, plan: CompactionPlan
) -> dict[GroupKey, tuple[LogFile, ...]]:
    """The log files from a plan's instant on in its groups, whether they count yet or not."""
    found: dict[GroupKey, tuple[LogFile, ...]] = {}
    groups = plan.file_groups
    partitions = plan.partitions
    for start in range(0, len(partitions), _PARTITIONS_AT_ONCE):
        listed = snapshot.files(partitions[start : start + _PARTITIONS_AT_ONCE])
        for partition, files in listed.items():
            for file in files:
                key = (partition, file.file_id)
                if isinstance(file, LogFile) and file.instant > at and key in groups:
                    found[key] = (*found.get(key, ()), file)
    return found


def _compare(
    snapshot: Snapshot, planned: Instant, named: Mapping[GroupKey, CompactionOperation]
) -> None:
    listed = snapshot.files(sorted({partition for partition, _ in named}))
    files = {
        partition: [file for file in found if (partition, file.file_id) in named]
        for partition, found in listed.items()
    }
    at = planned.requested_at
    # A base file counts by its requested time, whenever it completed: so it would be hidden.
    view = snapshot.with_completion_times(snapshot.view(requested_until=at), files)
    groups = [group for p, found in files.items() for group in build_groups(p, found, view)]
    slices = {group.key: group.latest_merged_slice() for group in groups}
    for key, operation in named.items():
        changed = _changed(planned, operation, slices.get(key), view)
        if changed:
            raise ConflictError(
                f"a file group has changed since its {planned.action} was planned: roll the "
                f"{planned.action} back and plan it again",
                instant=at,
                partition=operation.partition,
                file_id=operation.file_id,
                files=changed[:3],
            )


def _changed(
    planned: Instant, operation: CompactionOperation, found: FileSlice | None, view: TimelineView
) -> list[str]:
    """The files that are there and not in the plan, or the other way round."""
    logs = _logs_below(planned.requested_at, found, view) if found is not None else {}
    base = found.base.name if found is not None and found.base is not None else None
    expected = {name for name in operation.logs if not name.endswith(_CHANGE_FILES)}
    bases = {base, operation.base_file} - {None} if base != operation.base_file else set()
    missing, added = expected - logs.keys(), logs.keys() - expected
    if planned.action == "logcompaction":
        last = max((logs[name].order for name in expected & logs.keys()), default=None)
        added = {name for name in added if last is not None and logs[name].order < last}
    return sorted(str(name) for name in bases | missing | added)


def _logs_below(at: str, slice_: FileSlice, view: TimelineView) -> dict[str, LogFile]:
    return {
        log.name: log for log in slice_.logs if (view.completion(log.instant) or log.instant) < at
    }


# ------------------------------------------------------------------------------------------------
# What a compaction makes of a slice: what goes into the base file, and what stays beside it.


@dataclass
class SplitMerge:
    """The log versions that a base file takes, and those that stay back.

    `held` are rows of the old base file that stay back as well. `beyond` counts, when all rows were
    taken, those from the threshold on that had to go into the base file. `undone` are deletes that
    are not applied to it.
    """

    logs: SplitLogRecords
    cut: EventTimeThreshold | None = None
    held: list[pa.Table] = field(default_factory=list)
    beyond: int = 0
    undone: MergedLogRecords | None = None

    @classmethod
    def whole(cls, outcome: MergedLogRecords) -> SplitMerge:
        """Everything goes into the base file."""
        return cls(SplitLogRecords(outcome, outcome.select(np.arange(0))))

    @property
    def versions(self) -> int:
        """How many versions won among those of their keys."""
        return len(self.logs.taken.keys) + len(self.logs.remaining.keys)

    def without_deletes_of(self, keys: pa.Array, *, unconditional: bool) -> None:
        """Leave the rows of keys that come back later in the base file; their deletes stay back.

        All of their deletes, or those alone that have no ordering value.
        """
        taken = self.logs.taken
        back = np.asarray(pc.is_in(taken.keys, value_set=keys), dtype=bool) & taken.deleted
        back &= taken.beats_any_base if unconditional else True
        self.undone = taken.select(np.flatnonzero(back))
        rest = taken.select(np.flatnonzero(~back))
        self.logs = SplitLogRecords(rest, self.logs.remaining)

    def deleted_from(self, event_time: str | None) -> int | None:
        """The least event time of the deletes that stay back, if there are any."""
        late = self.logs.remaining
        if self.undone is not None and len(self.undone.keys):
            return UNKNOWN_OPERATION
        if event_time is None or not late.deleted.any():
            return None
        gone = pa.array(np.flatnonzero(late.deleted))
        return event_range(late.ordering[0].take(gone), event_time)[0]

    def base(self, tables: Iterable[pa.Table], rule: MergeRule) -> Iterator[pa.Table]:
        """The rows of the old base file that may stay in one."""
        for table in tables:
            late = self.cut.is_late(table) if self.cut is not None else None
            if late is None or not late.any():
                yield table
                continue
            rows = table.filter(pa.array(late))
            beaten = list(
                overwritten_rows(rows.combine_chunks().to_batches(), self.logs.taken, rule)
            )
            stays = np.ones(len(rows), bool)
            stays[np.concatenate([np.zeros(0, np.int64), *beaten])] = False
            self.held.append(rows.filter(pa.array(stays)))
            yield table.filter(pa.array(~late))

    def counted(
        self, tables: Iterable[pa.Table], cut: EventTimeThreshold | None
    ) -> Iterator[pa.Table]:
        """The rows of the new base file, counted where they are late."""
        for table in tables:
            if cut is not None:
                self.beyond += int(cut.is_late(table).sum())
            yield table

    def left(self) -> pa.Table:
        """The rows that stay beside the base file, stronger ones of a key last."""
        schema = self.logs.remaining.rows.schema
        stays = pa.Table.from_batches(self.logs.remain_logs_iterator(), schema)
        return pa.concat_tables([*self.held, stays])


def split_slice(
    task: WriteTask, item: FileSlice, changes: Changes, cut: EventTimeThreshold
) -> SplitMerge:
    """Split a slice at an event time, as far as the table's index allows.

    With a bucket index everything late stays out of the base file, rows of the old one too. Other
    indexes find a row by its key in a base file, so that some version must stay there.
    """
    in_base = None if task.buckets else _KeysInBase(task, item)
    logs = split_logs(changes, task.stored_schema, task.rule, cut, in_base)
    return SplitMerge(logs, cut if task.buckets else None)


@dataclass(frozen=True, slots=True)
class _KeysInBase:
    """Which of some keys a base file has, by reading its keys alone."""

    task: WriteTask
    item: FileSlice

    def __call__(self, keys: pa.Array) -> Flags:
        schema = pa.schema([self.task.stored_schema.field(RECORD_KEY)])
        found = np.zeros(len(keys), bool)
        for table in base_rows(self.task.storage, self.item, schema):
            found |= np.asarray(pc.is_in(keys, value_set=table.column(RECORD_KEY)), dtype=bool)
        return found


# ------------------------------------------------------------------------------------------------
# Compaction, done: the log files of a group folded into its next base file.
#
# A worker holds the winners of one group's log files, and streams its base file past them: its
# memory
# is bounded by a file group, never by a partition.


# Where a commit tells how many rows from the threshold on it had to leave in base files.
BEYOND = "lakewright.event.time.beyond"
# Where a commit tells how many deletes with an ordering value ended with it, as nothing newer was
# there for them to compete with.
DROPPED = "lakewright.event.time.deletes.dropped"
_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class _CompactionTask:
    """One operation; `carries` tells that newer log files may hold what it deletes.

    `newer` are those that count already. `by_time` tells that the plan goes by event time.
    """

    operation: CompactionOperation
    carries: bool = False
    newer: tuple[LogFile, ...] = ()
    by_time: bool = False


def execute_compaction(job: ExecutionContext, plan: CompactionPlan) -> CommitMetadata:
    """Execute a plan, whoever made it; gives what the commit records.

    Raises:
        ConflictError: the groups are not what they were when they were planned.
    """
    check_plan_is_current(
        job.snapshot, Instant(job.instant, Action.COMPACTION, State.INFLIGHT), plan
    )
    task = rewrite_task(job, Operation.COMPACT)
    cut = _cut(task, plan)
    works = list(_works(job, plan))
    done = run_rewrite(job, task, partial(_compact_group, task, cut), works, size=_size)
    told = {k: v for k, v in plan.extra.items() if k in (EVENT_TIME_THRESHOLD, EXACT_SPLIT)}
    return replace(done, extra={**done.extra, **told})


def io_bytes(operation: CompactionOperation) -> int:
    """How many bytes an operation reads, as its plan tells; where it does not, the least."""
    metrics = operation.metrics
    logs = int(metrics.get("TOTAL_LOG_FILES_SIZE", 0))
    return max(1, logs + int(metrics.get("TOTAL_IO_READ_MB", 0) * _MB))


def slice_of(operation: CompactionOperation) -> FileSlice:
    """The files that an operation names, as a slice; their sizes are not known."""
    base = parse_data_file(operation.base_file) if operation.base_file else None
    logs = [parse_data_file(name) for name in operation.logs]
    if not (base is None or isinstance(base, BaseFile)) or any(
        not isinstance(log, LogFile) for log in logs
    ):
        raise CorruptError(
            "a plan names files that are none of a file group",
            partition=operation.partition,
            files=[operation.base_file, *operation.logs],
        )
    named = sorted((log for log in logs if isinstance(log, LogFile)), key=lambda log: log.order)
    return FileSlice(
        operation.partition, operation.file_id, operation.base_instant, base, tuple(named)
    )


def _size(work: _CompactionTask) -> int:
    return io_bytes(work.operation)


def _cut(task: WriteTask, plan: CompactionPlan) -> EventTimeThreshold | None:
    """Where rows are split, if the plan says so."""
    if plan.extra.get(EXACT_SPLIT) != "true":
        return None
    threshold = plan.extra.get(EVENT_TIME_THRESHOLD)
    if threshold is None or task.event_time is None or not task.rule.ordering:
        raise InvalidError(
            "a plan splits rows by event time, which the table does not tell any more",
            instant=task.instant,
            threshold=threshold,
            event_time=task.event_time,
        )
    ms = epoch_ms(threshold, zone_of(task.config.timeline_zone))
    return EventTimeThreshold(
        task.event_time, ms, in_order=task.rule.ordering == (task.event_time,)
    )


def _works(job: ExecutionContext, plan: CompactionPlan) -> Iterator[_CompactionTask]:
    """The operations, with the log files that a plan in the past leaves out."""
    by_time = EVENT_TIME_THRESHOLD in plan.extra
    timeline = job.snapshot.timeline
    newer = logs_after_plan(job.snapshot, job.instant, plan) if by_time else {}
    # What is being written now may come to any group.
    awaited = by_time and bool(timeline.pending(Action.DELTA_COMMIT))
    for operation in plan.operations:
        logs = newer.get((operation.partition, operation.file_id), ())
        counting = tuple(log for log in logs if timeline.is_committed(log.instant))
        yield _CompactionTask(operation, awaited or bool(logs), counting, by_time)


def check_dropped_deletes(before: Snapshot, metadata: CommitMetadata, now: Snapshot) -> None:
    """WrittenMeanwhileError if a write has completed that a delete was to be carried for.

    It may hold an older version of a deleted row, which would come back.
    """
    if metadata.extra.get(DROPPED, "0") == "0":
        return
    stats = metadata.write_stats()
    carried = {(s.partition_path or "", s.file_id) for s in stats if is_log(s)}
    dropped = metadata.file_groups() - carried
    known = {i.requested_at for i in before.timeline.completed_writes}
    new = [i for i in now.timeline.completed(Action.DELTA_COMMIT) if i.requested_at not in known]
    for instant, commit in zip(new, now.commits(new), strict=True):
        if not dropped.isdisjoint(commit.file_groups()):
            raise ConcurrentWriteError(
                "log files came to file groups while deletes in them were compacted: execute the "
                "plan again",
                other=instant.requested_at,
            )


def _compact_group(
    task: WriteTask, cut: EventTimeThreshold | None, work: _CompactionTask, groups: FileGroupWriter
) -> None:
    item = slice_of(work.operation)
    started = task.clock.now_ms()
    blocks = read_blocks(task.storage, item)
    size = sum(len(block.content) for block in blocks)
    counting = effective_blocks(blocks)
    with found_in(f"log files of {item.partition}/{item.file_id}"):
        changes = [block_changes(block, task.stored_schema, item.file_id) for block in counting]
        if cut is None or any(block.is_partial for block in counting):
            fold = SplitMerge.whole(merge_logs(changes, task.stored_schema, task.rule))
        else:
            fold = split_slice(task, item, changes, cut)
    if work.newer and fold.logs.taken.deleted.any():
        came_back = _keys_in(task, replace(item, base=None, logs=work.newer))
        fold.without_deletes_of(came_back, unconditional=task.buckets)
    took = task.clock.now_ms() - started
    versions = fold.versions
    tally = MergeCounts()
    stored = ahead(base_rows(task.storage, item, task.stored_schema))
    base = batches_of(fold.base(stored, task.rule))
    rows = fold.counted(merge_with_base(base, fold.logs.taken, task.rule, tally), cut)

    def facts() -> Mapping[str, int]:
        return {
            "num_update_writes": tally.updated,
            "num_inserts": tally.inserted,
            "num_deletes": tally.deleted,
            "total_log_records": versions,
            "total_updated_records_compacted": versions,
            "total_log_blocks": len(blocks),
            "total_log_files_compacted": len(item.logs),
            "total_log_size_compacted": size,
            "total_log_read_time_ms": took,
        }

    groups.write_compacted(item, rows, facts)
    _write_remaining(task, item, fold, work, groups)
    if cut is not None:
        groups.notes[BEYOND] += fold.beyond


def _keys_in(task: WriteTask, item: FileSlice) -> pa.Array:
    """The keys that log files have rows of."""
    changes = (
        block_changes(block, task.stored_schema, item.file_id)
        for block in effective_blocks(read_blocks(task.storage, item))
    )
    rows = [each.rows.column(RECORD_KEY) for each in changes if isinstance(each, Upserts)]
    chunks = [chunk for column in rows for chunk in column.chunks]
    return pa.concat_arrays([pa.array([], pa.string()), *chunks])


def _write_remaining(
    task: WriteTask,
    item: FileSlice,
    fold: SplitMerge,
    work: _CompactionTask,
    groups: FileGroupWriter,
) -> None:
    """Write beside the base file what it does not hold, and what newer log files must meet."""
    rows, deletes = fold.left(), delete_records(item.partition, fold.logs.remaining)
    if fold.undone is not None:
        deletes = deletes.plus(delete_records(item.partition, fold.undone))
    carried = ordered_deletes(fold.logs.taken)
    if work.carries:
        deletes = deletes.plus(delete_records(item.partition, carried))
    elif work.by_time and len(carried.keys):
        groups.notes[DROPPED] += len(carried.keys)
    if len(rows) or len(deletes):
        groups.rewrite_logs(item, rows, deletes, deleted_from=fold.deleted_from(task.event_time))


def ordered_deletes(outcome: MergedLogRecords) -> MergedLogRecords:
    """The deletes that compete with older versions in log files to come.

    One without ordering value ends what was before it and nothing else.
    """
    return outcome.select(np.flatnonzero(outcome.deleted & ~outcome.beats_any_base))
