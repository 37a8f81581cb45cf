"""Execution of plans that rewrite file groups: runs the tasks and builds the commit metadata."""

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


def rewrite_task(context: ExecutionContext, operation: Operation) -> WriteTask:
    """Return the write task of an execution, which every executor gets."""
    snapshot = context.snapshot
    settings = write_settings(snapshot.config, context.options)
    # A write requested after the plan may be rolled back, and its new columns with it.
    schema = snapshot.avro_schema(snapshot.view(requested_until=context.instant))
    if schema is None:
        raise InvalidError("the table has no schema yet: nothing was written")
    return WriteTask(
        snapshot=replace(
            snapshot, config=with_write_time_options(snapshot.config, context.options)
        ),
        instant=context.instant,
        operation=operation,
        settings=settings,
        schema=schema,
        event_time=settings.event_time,
        attempt=context.attempt,
        clock=context.clock,
    )


def run_rewrite(
    context: ExecutionContext,
    task: WriteTask,
    do: Callable[[Item, FileGroupWriter], None],
    items: Sequence[Item],
    *,
    size: Callable[[Item], int],
    replaced: Mapping[str, tuple[str, ...]] | None = None,
) -> CommitMetadata:
    """Process each item on the engine and return the commit metadata of what was written.

    If an item fails, no file is left. `size` returns the bytes that an item reads.
    """
    statuses = context.engine.map(partial(_process_item, task, do), items, size)
    raise_worker_errors(task, statuses)
    stats: dict[str, list[WriteStat]] = {}
    notes: Counter[str] = Counter()
    for status in statuses:
        notes.update(status.notes)
        for stat in status.stats:
            stats.setdefault(stat.partition_path or "", []).append(stat)
    return CommitMetadata(
        stats={path: tuple(written) for path, written in sorted(stats.items())},
        operation=task.operation.value,
        compacted=task.operation is Operation.COMPACT,
        extra={SCHEMA_KEY: task.schema, **{key: str(count) for key, count in notes.items()}},
        replaced=dict(sorted((replaced or {}).items())),
    )


def _process_item(
    task: WriteTask, do: Callable[[Item, FileGroupWriter], None], item: Item, token: WriteToken
) -> WriteStatus:
    """Process one item on an executor.

    A LakewrightError is returned with the status, so that the engine does not retry the task.
    """
    if task.attempt is not None:
        token = replace(token, stage=task.attempt.number)
    groups = FileGroupWriter(task, token)
    try:
        _check_may_go_on(task)
        do(item, groups)
    except LakewrightError as error:
        return groups.status(error=error)
    return groups.status()


def _check_may_go_on(task: WriteTask) -> None:
    """Raise ConflictError if the execution can no longer commit, or is asked to stop.

    This is called before each file group.
    """
    if task.attempt is None:
        return
    task.attempt.check_alive(task.storage, task.clock)
    if not task.attempt.stoppable:
        return
    current = replace(task.snapshot, timeline=load_timeline(task.storage, task.config))
    rollback = pending_rollback_of(current, task.instant)
    if rollback is not None:
        raise ConflictError(
            "the execution was asked to stop",
            instant=task.instant,
            rollback=rollback.instant.requested_at,
            other=rollback.plan.caused_by,
            reason=rollback.plan.reason,
        )
