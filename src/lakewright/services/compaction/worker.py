"""Compaction, done: the log files of a group folded into its next base file.

A worker holds the winners of one group's log files, and streams its base file past them: its memory
is bounded by a file group, never by a partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from lakewright.clock import zone_of
from lakewright.core.base_merge import Tally, merge_with_base
from lakewright.core.commits import CommitMetadata, is_log
from lakewright.core.event_split import Cut
from lakewright.core.files import BaseFile, LogFile, parse_data_file
from lakewright.core.instant import Instant, State, epoch_ms
from lakewright.core.merge import LogOutcome, Upserts, merge_logs
from lakewright.core.meta_columns import RECORD_KEY
from lakewright.core.plans import (
    EVENT_TIME_THRESHOLD,
    EXACT_SPLIT,
    CompactionOperation,
    CompactionPlan,
)
from lakewright.core.slices import FileSlice
from lakewright.errors import CorruptError, InvalidError, found_in
from lakewright.read.ahead import ahead
from lakewright.read.log_order import effective_blocks
from lakewright.read.worker import base_rows, batches_of, block_changes, read_blocks
from lakewright.services.compaction.planned import newer_logs, require_as_planned
from lakewright.services.compaction.splitting import Fold, split_slice
from lakewright.services.rewriting import rewritten, service_task
from lakewright.services.service import Job, WrittenMeanwhileError
from lakewright.table.snapshot import Snapshot
from lakewright.write.groups import GroupWriter
from lakewright.write.task import Operation, WriteTask
from lakewright.write.upserts import delete_records

# Where a commit tells how many rows from the threshold on it had to leave in base files.
BEYOND = "lakewright.event.time.beyond"
# Where a commit tells how many deletes with an ordering value ended with it, as nothing newer was
# there for them to compete with.
DROPPED = "lakewright.event.time.deletes.dropped"
_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Work:
    """One operation; `carries` tells that newer log files may hold what it deletes.

    `newer` are those that count already. `by_time` tells that the plan goes by event time.
    """

    operation: CompactionOperation
    carries: bool = False
    newer: tuple[LogFile, ...] = ()
    by_time: bool = False


def compact(job: Job, plan: CompactionPlan) -> CommitMetadata:
    """Execute a plan, whoever made it; gives what the commit records.

    Raises:
        ConflictError: the groups are not what they were when they were planned.
    """
    require_as_planned(job.snapshot, Instant(job.instant, "compaction", State.INFLIGHT), plan)
    task = service_task(job, Operation.COMPACT)
    cut = _cut(task, plan)
    works = list(_works(job, plan))
    done = rewritten(job, task, partial(_fold, task, cut), works, size=_size)
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


def _size(work: _Work) -> int:
    return io_bytes(work.operation)


def _cut(task: WriteTask, plan: CompactionPlan) -> Cut | None:
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
    return Cut(task.event_time, ms, in_order=task.rule.ordering == (task.event_time,))


def _works(job: Job, plan: CompactionPlan) -> Iterator[_Work]:
    """The operations, with the log files that a plan in the past leaves out."""
    by_time = EVENT_TIME_THRESHOLD in plan.extra
    timeline = job.snapshot.timeline
    newer = newer_logs(job.snapshot, job.instant, plan) if by_time else {}
    # What is being written now may come to any group.
    awaited = by_time and bool(timeline.pending("deltacommit"))
    for operation in plan.operations:
        logs = newer.get((operation.partition, operation.file_id), ())
        counting = tuple(log for log in logs if timeline.is_committed(log.instant))
        yield _Work(operation, awaited or bool(logs), counting, by_time)


def refuse_dropped_deletes(before: Snapshot, metadata: CommitMetadata, now: Snapshot) -> None:
    """WrittenMeanwhileError if a write has completed that a delete was to be carried for.

    It may hold an older version of a deleted row, which would come back.
    """
    if metadata.extra.get(DROPPED, "0") == "0":
        return
    stats = metadata.write_stats()
    carried = {(s.partition_path or "", s.file_id) for s in stats if is_log(s)}
    dropped = metadata.file_groups() - carried
    known = {i.requested_at for i in before.timeline.completed_writes}
    new = [i for i in now.timeline.completed("deltacommit") if i.requested_at not in known]
    for instant, commit in zip(new, now.commits(new), strict=True):
        if not dropped.isdisjoint(commit.file_groups()):
            raise WrittenMeanwhileError(
                "log files came to file groups while deletes in them were compacted: execute the "
                "plan again",
                other=instant.requested_at,
            )


def _fold(task: WriteTask, cut: Cut | None, work: _Work, groups: GroupWriter) -> None:
    item = slice_of(work.operation)
    started = task.clock.now_ms()
    blocks = read_blocks(task.storage, item)
    size = sum(len(block.content) for block in blocks)
    counting = effective_blocks(blocks)
    with found_in(f"log files of {item.partition}/{item.file_id}"):
        changes = [block_changes(block, task.stored_schema, item.file_id) for block in counting]
        if cut is None or any(block.is_partial for block in counting):
            fold = Fold.whole(merge_logs(changes, task.stored_schema, task.rule))
        else:
            fold = split_slice(task, item, changes, cut)
    if work.newer and fold.logs.taken.deleted.any():
        came_back = _keys_in(task, replace(item, base=None, logs=work.newer))
        fold.without_deletes_of(came_back, unconditional=task.buckets)
    took = task.clock.now_ms() - started
    versions = fold.versions
    tally = Tally()
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

    groups.fold(item, rows, facts)
    _leave(task, item, fold, work, groups)
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


def _leave(task: WriteTask, item: FileSlice, fold: Fold, work: _Work, groups: GroupWriter) -> None:
    """Write beside the base file what it does not hold, and what newer log files must meet."""
    rows, deletes = fold.left(), delete_records(item.partition, fold.logs.remaining)
    if fold.undone is not None:
        deletes = deletes.plus(delete_records(item.partition, fold.undone))
    carried = carried_deletes(fold.logs.taken)
    if work.carries:
        deletes = deletes.plus(delete_records(item.partition, carried))
    elif work.by_time and len(carried.keys):
        groups.notes[DROPPED] += len(carried.keys)
    if len(rows) or len(deletes):
        groups.relog(item, rows, deletes, deleted_from=fold.deleted_from(task.event_time))


def carried_deletes(outcome: LogOutcome) -> LogOutcome:
    """The deletes that compete with older versions in log files to come.

    One without ordering value ends what was before it and nothing else.
    """
    return outcome.only(np.flatnonzero(outcome.deleted & ~outcome.beats_any_base))
