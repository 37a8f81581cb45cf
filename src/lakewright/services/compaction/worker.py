"""Compaction, done: the log files of a group folded into its next base file.

A worker holds the winners of one group's log files, and streams its base file past them: its memory
is bounded by a file group, never by a partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from lakewright.core.base_merge import Tally, merge_with_base
from lakewright.core.commits import CommitMetadata
from lakewright.core.files import BaseFile, LogFile, parse_data_file
from lakewright.core.instant import Instant, State
from lakewright.core.plans import CompactionOperation, CompactionPlan
from lakewright.core.slices import FileSlice
from lakewright.errors import CorruptError
from lakewright.read.ahead import ahead
from lakewright.read.log_order import effective_blocks
from lakewright.read.worker import base_rows, batches_of, merge_blocks, read_blocks
from lakewright.services.compaction.planned import require_as_planned
from lakewright.services.rewriting import rewritten, service_task
from lakewright.services.service import Job
from lakewright.write.groups import GroupWriter
from lakewright.write.task import Operation, WriteTask

_MB = 1 << 20


def compact(job: Job, plan: CompactionPlan) -> CommitMetadata:
    """Execute a plan, whoever made it; gives what the commit records.

    Raises:
        ConflictError: the groups are not what they were when they were planned.
    """
    require_as_planned(job.snapshot, Instant(job.instant, "compaction", State.INFLIGHT), plan)
    task = service_task(job, Operation.COMPACT)
    return rewritten(job, task, partial(_fold, task), plan.operations, size=io_bytes)


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


def _fold(task: WriteTask, operation: CompactionOperation, groups: GroupWriter) -> None:
    item = slice_of(operation)
    started = task.clock.now_ms()
    blocks = read_blocks(task.storage, item)
    size = sum(len(block.content) for block in blocks)
    outcome = merge_blocks(effective_blocks(blocks), item, task.stored_schema, task.rule)
    took = task.clock.now_ms() - started
    versions = len(outcome.keys)
    tally = Tally()
    base = batches_of(ahead(base_rows(task.storage, item, task.stored_schema)))
    rows = merge_with_base(base, outcome, task.rule, tally)

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
