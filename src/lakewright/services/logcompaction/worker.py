"""Log compaction, done: many log files of a group written once more as one.

The rows keep their commit times, so incremental queries see nothing new. Of each key there is one
version, a row or a delete: what readers make of all the blocks before they look at the base file.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from lakewright.core.commits import CommitMetadata
from lakewright.core.instant import Instant, State
from lakewright.core.plans import CompactionOperation, CompactionPlan
from lakewright.read.log_order import effective_blocks
from lakewright.read.worker import merge_blocks, read_blocks
from lakewright.services.compaction.planned import require_as_planned
from lakewright.services.compaction.worker import io_bytes, slice_of
from lakewright.services.rewriting import rewritten, service_task
from lakewright.services.service import Job
from lakewright.write.groups import GroupWriter
from lakewright.write.task import Operation, WriteTask
from lakewright.write.upserts import delete_records


def log_compact(job: Job, plan: CompactionPlan) -> CommitMetadata:
    """Execute a plan, whoever made it; gives what the commit records.

    A group whose log files hold parts of rows stays as it is: the plan ends, and a compaction can
    have the group.

    Raises:
        ConflictError: the groups are not what they were when they were planned.
    """
    require_as_planned(job.snapshot, Instant(job.instant, "logcompaction", State.INFLIGHT), plan)
    task = service_task(job, Operation.LOG_COMPACT)
    return rewritten(job, task, partial(_join, task), plan.operations, size=io_bytes)


def _join(task: WriteTask, operation: CompactionOperation, groups: GroupWriter) -> None:
    item = slice_of(operation)
    blocks = read_blocks(task.storage, item)
    if any(block.is_partial for block in blocks):
        return
    counting = effective_blocks(blocks)
    outcome = merge_blocks(counting, item, task.stored_schema, task.rule)
    stays = ~outcome.deleted
    parts = {block.instant for block in blocks}
    for block in blocks:
        parts.update(block.compacted_instants)
    groups.relog(
        item,
        outcome.rows.take(pa.array(outcome.row[stays])),
        delete_records(item.partition, outcome),
        compacted=sorted(parts),
    )
