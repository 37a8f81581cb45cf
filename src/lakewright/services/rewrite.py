"""What services that rewrite rows share: how work is dealt out, and what the commit records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from lakewright.errors import ConflictError, InvalidError, LakewrightError
from lakewright.model.commit_metadata import SCHEMA_KEY, CommitMetadata, WriteStat
from lakewright.services.base import ExecutionContext
from lakewright.table.rollback import pending_rollback_of
from lakewright.table.snapshot import load_timeline
from lakewright.write.file_group_writer import FileGroupWriter
from lakewright.write.options import with_write_time_options, write_settings
from lakewright.write.task import Operation, WriteStatus, WriteTask, WriteToken
from lakewright.write.writer import raise_worker_errors

Item = TypeVar("Item")


def rewrite_task(job: ExecutionContext, operation: Operation) -> WriteTask:
    """An execution, as every worker needs to know it."""
    snapshot = job.snapshot
    settings = write_settings(snapshot.config, job.options)
    # What was written after the plan may be rolled back, and its columns with it.
    schema = snapshot.avro_schema(snapshot.view(requested_until=job.instant))
    if schema is None:
        raise InvalidError("the table has no schema yet: nothing was written")
    return WriteTask(
        snapshot=replace(snapshot, config=with_write_time_options(snapshot.config, job.options)),
        instant=job.instant,
        operation=operation,
        settings=settings,
        schema=schema,
        event_time=settings.event_time,
        attempt=job.attempt,
        clock=job.clock,
    )


def run_rewrite(
    job: ExecutionContext,
    task: WriteTask,
    do: Callable[[Item, FileGroupWriter], None],
    items: Sequence[Item],
    *,
    size: Callable[[Item], int],
    replaced: Mapping[str, tuple[str, ...]] | None = None,
) -> CommitMetadata:
    """Let workers do each item, and gather what they wrote; a failure leaves no file."""
    outcomes = job.engine.map(partial(_outcome, task, do), items, size)
    raise_worker_errors(task, outcomes)
    stats: dict[str, list[WriteStat]] = {}
    notes: Counter[str] = Counter()
    for outcome in outcomes:
        notes.update(outcome.notes)
        for stat in outcome.stats:
            stats.setdefault(stat.partition_path or "", []).append(stat)
    return CommitMetadata(
        stats={partition: tuple(found) for partition, found in sorted(stats.items())},
        operation=task.operation.value,
        compacted=task.operation is Operation.COMPACT,
        extra={SCHEMA_KEY: task.schema, **{key: str(count) for key, count in notes.items()}},
        replaced=dict(sorted((replaced or {}).items())),
    )


def _outcome(
    task: WriteTask, do: Callable[[Item, FileGroupWriter], None], item: Item, token: WriteToken
) -> WriteStatus:
    """An error of ours comes back as a value, so that no task is tried again."""
    if task.attempt is not None:
        token = replace(token, stage=task.attempt.number)
    groups = FileGroupWriter(task, token)
    try:
        _check_stop_requested(task)
        do(item, groups)
    except LakewrightError as error:
        return groups.status(error=error)
    return groups.status()


def _check_stop_requested(task: WriteTask) -> None:
    """ConflictError before a file group, if somebody has asked the execution to stop."""
    if task.attempt is None or not task.attempt.stoppable:
        return
    now = replace(task.snapshot, timeline=load_timeline(task.storage, task.config))
    asked = pending_rollback_of(now, task.instant)
    if asked is not None:
        raise ConflictError(
            "the execution was asked to stop",
            instant=task.instant,
            rollback=asked.instant.requested_at,
            other=asked.plan.caused_by,
            reason=asked.plan.reason,
        )
