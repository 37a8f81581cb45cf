"""Executes compaction plans: merges the log files of file groups into new base files.

- Before it starts, the driver checks that the file groups still have the files that the plan names
  (`check_plan_is_current`). A write can choose its completion time before a plan is made and
  complete after that, if storage is slow or the writers share no lock. No reader would read its log
  file, which would lie below the new base file.
- Each file group is one task. It keeps the merged versions of the group's log files in memory and
  streams the rows of the old base file past them, so a file group bounds its memory, not a
  partition.
- A plan by event time leaves newer log files uncompacted. With an exact split it also leaves rows
  from the threshold on out of the base file: these stay in a log file beside it (`SplitMerge`). A
  delete that competes with versions in newer log files is kept in a log file as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.clock import zone_of
from lakewright.errors import ConflictError, CorruptError, InvalidError, errors_in_file
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
    EVENT_TIME_THRESHOLD_MS,
    EXACT_SPLIT,
    WITHDRAWN,
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

_CDC_SUFFIX = ".cdc"
_PARTITION_CHUNK = 1000


def check_plan_is_current(snapshot: Snapshot, planned: Instant, plan: CompactionPlan) -> None:
    """Raise ConflictError unless file groups have, below the plan's instant, the files it names.

    A log compaction may leave other log files, but none that are merged before those it names.
    """
    if len(plan.file_groups) < len(plan.operations):
        raise CorruptError("a plan names a file group twice", instant=planned.requested_at)
    reason = superseded_reason(snapshot, planned, plan)
    if reason is not None:
        raise ConflictError(reason, instant=planned.requested_at)
    partitions = plan.partitions
    for start in range(0, len(partitions), _PARTITION_CHUNK):
        chunk = set(partitions[start : start + _PARTITION_CHUNK])
        operations = {(o.partition, o.file_id): o for o in plan.operations if o.partition in chunk}
        _check_operations(snapshot, planned, operations)


def logs_after_plan(
    snapshot: Snapshot, at: str, plan: CompactionPlan
) -> dict[GroupKey, tuple[LogFile, ...]]:
    """Return the log files after a plan's instant in its groups, of pending writes as well."""
    logs: dict[GroupKey, tuple[LogFile, ...]] = {}
    groups = plan.file_groups
    partitions = plan.partitions
    for start in range(0, len(partitions), _PARTITION_CHUNK):
        listed = snapshot.files(partitions[start : start + _PARTITION_CHUNK])
        for partition, files in listed.items():
            for file in files:
                key = (partition, file.file_id)
                if isinstance(file, LogFile) and file.instant > at and key in groups:
                    logs[key] = (*logs.get(key, ()), file)
    return logs


def _check_operations(
    snapshot: Snapshot, planned: Instant, operations: Mapping[GroupKey, CompactionOperation]
) -> None:
    listed = snapshot.files(sorted({partition for partition, _ in operations}))
    files = {
        partition: [file for file in all_files if (partition, file.file_id) in operations]
        for partition, all_files in listed.items()
    }
    at = planned.requested_at
    # Base files are ordered by requested time, whenever they completed, so the new base file would
    # hide one that was requested before it.
    view = snapshot.with_completion_times(snapshot.view(requested_until=at), files)
    groups = [group for p, all_files in files.items() for group in build_groups(p, all_files, view)]
    slices = {group.key: group.latest_merged_slice() for group in groups}
    for key, operation in operations.items():
        changed = _changed_files(planned, operation, slices.get(key), view)
        if changed:
            raise ConflictError(
                f"a file group has changed since its {planned.action} was planned: roll the "
                f"{planned.action} back and plan it again",
                instant=at,
                partition=operation.partition,
                file_id=operation.file_id,
                files=changed[:3],
            )


def _changed_files(
    planned: Instant, operation: CompactionOperation, current: FileSlice | None, view: TimelineView
) -> list[str]:
    """Return the files that exist but are not in the plan, and those that no longer exist."""
    logs = _logs_below(planned.requested_at, current, view) if current is not None else {}
    base = current.base.name if current is not None and current.base is not None else None
    expected = {name for name in operation.logs if not name.endswith(_CDC_SUFFIX)}
    bases = {base, operation.base_file} - {None} if base != operation.base_file else set()
    missing, added = expected - logs.keys(), logs.keys() - expected
    if planned.action == Action.LOG_COMPACTION:
        last = max((logs[name].order for name in expected & logs.keys()), default=None)
        added = {name for name in added if last is not None and logs[name].order < last}
    return sorted(str(name) for name in bases | missing | added)


def _logs_below(at: str, slice_: FileSlice, view: TimelineView) -> dict[str, LogFile]:
    return {
        log.name: log for log in slice_.logs if (view.completion(log.instant) or log.instant) < at
    }


# The split of a slice into the rows of the new base file and those that stay in a log file


@dataclass
class SplitMerge:
    """The log versions that go into the new base file, and those that stay in a log file.

    `late_base_rows` are rows of the old base file that move to the log file as well. `rows_beyond`
    counts, once all rows were consumed, the rows from the threshold on that had to go into the base
    file. `unapplied_deletes` are deletes that stay in the log file and are not applied to the base
    file.
    """

    logs: SplitLogRecords
    threshold: EventTimeThreshold | None = None
    late_base_rows: list[pa.Table] = field(default_factory=list)
    rows_beyond: int = 0
    unapplied_deletes: MergedLogRecords | None = None

    @classmethod
    def unsplit(cls, outcome: MergedLogRecords) -> SplitMerge:
        """Return a split in which everything goes into the base file."""
        return cls(SplitLogRecords(outcome, outcome.select(np.arange(0))))

    @property
    def versions(self) -> int:
        """The number of keys that log files have a version of."""
        return len(self.logs.to_merge.keys) + len(self.logs.remaining.keys)

    def without_deletes_of(self, keys: pa.Array, *, unconditional: bool) -> None:
        """Keep the base rows of keys that newer log files write again: do not apply their deletes.

        These deletes stay in the log file. With `unconditional` that is only for deletes without an
        ordering value.
        """
        to_merge = self.logs.to_merge
        unapplied = (
            np.asarray(pc.is_in(to_merge.keys, value_set=keys), dtype=bool) & to_merge.deleted
        )
        unapplied &= to_merge.beats_any_base if unconditional else True
        self.unapplied_deletes = to_merge.select(np.flatnonzero(unapplied))
        applied = to_merge.select(np.flatnonzero(~unapplied))
        self.logs = SplitLogRecords(applied, self.logs.remaining)

    def deleted_from(self, event_time: str | None) -> int | None:
        """Return the least event time of the deletes in the log file; None without any."""
        remaining = self.logs.remaining
        if self.unapplied_deletes is not None and len(self.unapplied_deletes.keys):
            return UNKNOWN_OPERATION
        if event_time is None or not remaining.deleted.any():
            return None
        deletes = pa.array(np.flatnonzero(remaining.deleted))
        return event_range(remaining.ordering[0].take(deletes), event_time)[0]

    def base(self, tables: Iterable[pa.Table], rule: MergeRule) -> Iterator[pa.Table]:
        """Yield the rows of the old base file that may stay in the new one; moves out late ones."""
        for table in tables:
            late = self.threshold.is_late(table) if self.threshold is not None else None
            if late is None or not late.any():
                yield table
                continue
            rows = table.filter(pa.array(late))
            overwritten = list(
                overwritten_rows(rows.combine_chunks().to_batches(), self.logs.to_merge, rule)
            )
            is_live = np.ones(len(rows), bool)
            is_live[np.concatenate([np.zeros(0, np.int64), *overwritten])] = False
            self.late_base_rows.append(rows.filter(pa.array(is_live)))
            yield table.filter(pa.array(~late))

    def counted(
        self, tables: Iterable[pa.Table], threshold: EventTimeThreshold | None
    ) -> Iterator[pa.Table]:
        """Yield the rows of the new base file; counts those from the threshold on."""
        for table in tables:
            if threshold is not None:
                self.rows_beyond += int(threshold.is_late(table).sum())
            yield table

    def remaining_rows(self) -> pa.Table:
        """Return the rows for the log file; of two rows of a key the one that wins comes last."""
        schema = self.logs.remaining.rows.schema
        log_rows = pa.Table.from_batches(self.logs.remain_logs_iterator(), schema)
        return pa.concat_tables([*self.late_base_rows, log_rows])


def split_slice(
    task: WriteTask, item: FileSlice, changes: Changes, threshold: EventTimeThreshold
) -> SplitMerge:
    """Split a slice at an event time, as far as the table's index allows.

    With a bucket index all late rows stay out of the base file, also those of the old base file.
    Other indexes find a key only in base files, so some version of it must stay there.
    """
    in_base = None if task.buckets else _KeysInBase(task, item)
    logs = split_logs(changes, task.stored_schema, task.merge_rule, threshold, in_base)
    return SplitMerge(logs, threshold if task.buckets else None)


@dataclass(frozen=True, slots=True)
class _KeysInBase:
    """Returns which of some keys a base file has; reads only its key column."""

    task: WriteTask
    item: FileSlice

    def __call__(self, keys: pa.Array) -> Flags:
        schema = pa.schema([self.task.stored_schema.field(RECORD_KEY)])
        in_base = np.zeros(len(keys), bool)
        for table in base_rows(self.task.storage, self.item, schema):
            in_base |= np.asarray(pc.is_in(keys, value_set=table.column(RECORD_KEY)), dtype=bool)
        return in_base


# Execution

# Keys of the commit metadata: how many rows from the threshold on had to stay in base files, and
# how many deletes with an ordering value were dropped, as no newer log file competed with them.
BEYOND = "lakewright.event.time.beyond"
DROPPED = "lakewright.event.time.deletes.dropped"
_MB = 1 << 20
# Of the extra metadata of a plan by event time.
_COPIED_TO_COMMIT = (EVENT_TIME_THRESHOLD, EVENT_TIME_THRESHOLD_MS, EXACT_SPLIT)


@dataclass(frozen=True, slots=True)
class _CompactionTask:
    """One operation, and what a plan by event time leaves beside its new base file.

    `keeps_deletes` is whether newer log files may hold versions of the keys that it deletes;
    `newer_logs` are those of completed writes. `by_event_time` is whether the plan is by event
    time.
    """

    operation: CompactionOperation
    keeps_deletes: bool = False
    newer_logs: tuple[LogFile, ...] = ()
    by_event_time: bool = False


def execute_compaction(context: ExecutionContext, plan: CompactionPlan) -> CommitMetadata:
    """Execute a plan and return the commit metadata.

    Raises:
        ConflictError: the file groups have changed since they were planned.
    """
    check_plan_is_current(
        context.snapshot, Instant(context.instant, Action.COMPACTION, State.INFLIGHT), plan
    )
    task = rewrite_task(context, Operation.COMPACT)
    threshold = _split_threshold(task, plan)
    works = list(_compaction_tasks(context, plan))
    metadata = run_rewrite(
        context, task, partial(_compact_group, task, threshold), works, size=_read_bytes
    )
    extra = {k: v for k, v in plan.extra.items() if k in _COPIED_TO_COMMIT}
    return replace(metadata, extra={**metadata.extra, **extra})


def io_bytes(operation: CompactionOperation) -> int:
    """Return how many bytes an operation reads, by its plan; 1 if the plan has no metrics."""
    metrics = operation.metrics
    logs = int(metrics.get("TOTAL_LOG_FILES_SIZE", 0))
    return max(1, logs + int(metrics.get("TOTAL_IO_READ_MB", 0) * _MB))


def slice_of(operation: CompactionOperation) -> FileSlice:
    """Return the files that an operation names as a slice; their sizes are unknown."""
    base = parse_data_file(operation.base_file) if operation.base_file else None
    logs = [parse_data_file(name) for name in operation.logs]
    if not (base is None or isinstance(base, BaseFile)) or any(
        not isinstance(log, LogFile) for log in logs
    ):
        raise CorruptError(
            "a plan names files that belong to no file group",
            partition=operation.partition,
            files=[operation.base_file, *operation.logs],
        )
    log_files = sorted((log for log in logs if isinstance(log, LogFile)), key=lambda log: log.order)
    return FileSlice(
        operation.partition, operation.file_id, operation.base_instant, base, tuple(log_files)
    )


def _read_bytes(work: _CompactionTask) -> int:
    return io_bytes(work.operation)


def _split_threshold(task: WriteTask, plan: CompactionPlan) -> EventTimeThreshold | None:
    """Return the threshold at which rows are split; None without an exact split."""
    if plan.extra.get(EXACT_SPLIT) != "true":
        return None
    threshold = plan.extra.get(EVENT_TIME_THRESHOLD)
    if threshold is None or task.event_time is None or not task.merge_rule.ordering:
        raise InvalidError(
            "the plan splits rows by event time, but the table has no event times or ordering now",
            instant=task.instant,
            threshold=threshold,
            event_time=task.event_time,
        )
    exact = plan.extra.get(EVENT_TIME_THRESHOLD_MS)
    ms = int(exact) if exact else epoch_ms(threshold, zone_of(task.config.timeline_zone))
    return EventTimeThreshold(
        task.event_time, ms, in_order=task.merge_rule.ordering == (task.event_time,)
    )


def _compaction_tasks(context: ExecutionContext, plan: CompactionPlan) -> Iterator[_CompactionTask]:
    """Yield the operations, with the newer log files that a plan by event time leaves out."""
    by_event_time = EVENT_TIME_THRESHOLD in plan.extra
    timeline = context.snapshot.timeline
    newer = logs_after_plan(context.snapshot, context.instant, plan) if by_event_time else {}
    # A pending write may yet add a log file to any group.
    has_pending_writes = by_event_time and bool(timeline.pending(Action.DELTA_COMMIT))
    for operation in plan.operations:
        logs = newer.get((operation.partition, operation.file_id), ())
        committed = tuple(log for log in logs if timeline.is_committed(log.instant))
        yield _CompactionTask(operation, has_pending_writes or bool(logs), committed, by_event_time)


def check_dropped_deletes(base: Snapshot, metadata: CommitMetadata, current: Snapshot) -> None:
    """Raise ConcurrentWriteError if a write has completed that a dropped delete competes with.

    It may hold an older version of a deleted row, which readers would see again.
    """
    if metadata.extra.get(DROPPED, "0") == "0":
        return
    stats = metadata.write_stats()
    with_log = {(s.partition_path or "", s.file_id) for s in stats if is_log(s)}
    without_log = metadata.file_groups() - with_log
    completed = {i.requested_at for i in base.timeline.completed_writes}
    new = [
        i
        for i in current.timeline.completed(Action.DELTA_COMMIT)
        if i.requested_at not in completed
    ]
    for instant, commit in zip(new, current.commits(new), strict=True):
        if not without_log.isdisjoint(commit.file_groups()):
            raise ConcurrentWriteError(
                "a concurrent write added log files to file groups whose deletes were compacted: "
                "execute the plan again",
                other=instant.requested_at,
            )


def _compact_group(
    task: WriteTask,
    threshold: EventTimeThreshold | None,
    work: _CompactionTask,
    groups: FileGroupWriter,
) -> None:
    item = slice_of(work.operation)
    started_ms = task.clock.now_ms()
    blocks = read_blocks(task.storage, item)
    size = sum(len(block.content) for block in blocks)
    effective = effective_blocks(blocks)
    with errors_in_file(f"log files of {item.partition}/{item.file_id}"):
        changes = [block_changes(block, task.stored_schema, item.file_id) for block in effective]
        if threshold is None or any(block.is_partial for block in effective):
            split = SplitMerge.unsplit(merge_logs(changes, task.stored_schema, task.merge_rule))
        else:
            split = split_slice(task, item, changes, threshold)
    if work.newer_logs and split.logs.to_merge.deleted.any():
        rewritten_keys = _keys_in_logs(task, replace(item, base=None, logs=work.newer_logs))
        split.without_deletes_of(rewritten_keys, unconditional=task.buckets)
    took_ms = task.clock.now_ms() - started_ms
    versions = split.versions
    counts = MergeCounts()
    old_rows = ahead(base_rows(task.storage, item, task.stored_schema))
    base = batches_of(split.base(old_rows, task.merge_rule))
    rows = split.counted(
        merge_with_base(base, split.logs.to_merge, task.merge_rule, counts), threshold
    )

    def write_stats() -> Mapping[str, int]:
        return {
            "num_update_writes": counts.updated,
            "num_inserts": counts.inserted,
            "num_deletes": counts.deleted,
            "total_log_records": versions,
            "total_updated_records_compacted": versions,
            "total_log_blocks": len(blocks),
            "total_log_files_compacted": len(item.logs),
            "total_log_size_compacted": size,
            "total_log_read_time_ms": took_ms,
        }

    groups.write_compacted(item, rows, write_stats)
    _write_remaining(task, item, split, work, groups)
    if threshold is not None:
        groups.notes[BEYOND] += split.rows_beyond
        groups.notes[WITHDRAWN] += sum(map(len, split.late_base_rows))


def _keys_in_logs(task: WriteTask, item: FileSlice) -> pa.Array:
    """Return the keys of the rows in the log files of a slice."""
    changes = (
        block_changes(block, task.stored_schema, item.file_id)
        for block in effective_blocks(read_blocks(task.storage, item))
    )
    keys = [change.rows.column(RECORD_KEY) for change in changes if isinstance(change, Upserts)]
    chunks = [chunk for column in keys for chunk in column.chunks]
    return pa.concat_arrays([pa.array([], pa.string()), *chunks])


def _write_remaining(
    task: WriteTask,
    item: FileSlice,
    split: SplitMerge,
    work: _CompactionTask,
    groups: FileGroupWriter,
) -> None:
    """Write the log file beside the base file, if there are rows or deletes for it.

    It holds what the base file does not, and the deletes that compete with newer log files.
    """
    rows, deletes = split.remaining_rows(), delete_records(item.partition, split.logs.remaining)
    if split.unapplied_deletes is not None:
        deletes = deletes.plus(delete_records(item.partition, split.unapplied_deletes))
    competing = ordered_deletes(split.logs.to_merge)
    if work.keeps_deletes:
        deletes = deletes.plus(delete_records(item.partition, competing))
    elif work.by_event_time and len(competing.keys):
        groups.notes[DROPPED] += len(competing.keys)
    if len(rows) or len(deletes):
        groups.rewrite_logs(item, rows, deletes, deleted_from=split.deleted_from(task.event_time))


def ordered_deletes(outcome: MergedLogRecords) -> MergedLogRecords:
    """Return the deletes with an ordering value: these compete with versions in newer log files.

    A delete without one removes the versions before it, and does not affect newer log files.
    """
    return outcome.select(np.flatnonzero(outcome.deleted & ~outcome.beats_any_base))
