"""Execution of plans that rewrite file groups: runs the tasks and builds the commit metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
            snapshot.for_workers(),
            config=with_write_time_options(snapshot.config, context.options),
        ),
        instant=context.instant,
        operation=operation,
        settings=settings,
        schema=schema,
        event_time=settings.event_time,
        attempt=context.attempt,
        clock=context.clock,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteMetadata(CommitMetadata):
    """The commit metadata of an execution; `parts` hold what each task wrote and replaced."""

    parts: tuple[CommitMetadata, ...] = field(default=(), hash=False)

    def without(self, is_preempted: Callable[[CommitMetadata], bool]) -> RewriteMetadata | None:
        """Return the metadata without the parts that others have preempted; None if none is left.

        A part that wrote and replaced nothing leaves nothing to commit.
        """
        kept = tuple(part for part in self.parts if not is_preempted(part))
        if not any(part.stats or part.replaced for part in kept):
            return None
        notes = {key for part in self.parts for key in part.extra}
        extra = {key: value for key, value in self.extra.items() if key not in notes}
        return replace(
            self,
            stats=_merged([part.stats for part in kept]),
            replaced=_replaced_by(kept),
            extra={**extra, **_counts(kept)},
            parts=kept,
        )


def _replaces_nothing(item: object) -> dict[str, tuple[str, ...]]:
    return {}


def run_rewrite(
    context: ExecutionContext,
    task: WriteTask,
    do: Callable[[Item, FileGroupWriter], None],
    items: Sequence[Item],
    *,
    size: Callable[[Item], int],
    replaced: Callable[[Item], Mapping[str, tuple[str, ...]]] = _replaces_nothing,
) -> RewriteMetadata:
    """Process each item on the engine and return the commit metadata of what was written.

    If an item fails, no file is left. `size` returns the bytes that an item reads, `replaced` the
    file groups that it replaces, by partition.
    """
    statuses = context.engine.map(partial(_process_item, task, do, replaced), items, size)
    raise_worker_errors(task, statuses)
    parts = tuple(
        CommitMetadata(
            stats=_by_partition(status.stats),
            replaced=status.replaced,
            extra={key: str(count) for key, count in status.notes.items()},
        )
        for status in statuses
    )
    return RewriteMetadata(
        stats=_merged([part.stats for part in parts]),
        operation=task.operation.value,
        compacted=task.operation is Operation.COMPACT,
        extra={SCHEMA_KEY: task.schema, **_counts(parts)},
        replaced=_replaced_by(parts),
        parts=parts,
    )


def _by_partition(stats: Iterable[WriteStat]) -> dict[str, tuple[WriteStat, ...]]:
    by_partition: dict[str, list[WriteStat]] = {}
    for stat in stats:
        by_partition.setdefault(stat.partition_path or "", []).append(stat)
    return {path: tuple(written) for path, written in by_partition.items()}


def _merged(
    mappings: Sequence[Mapping[str, tuple[Item, ...]]],
) -> dict[str, tuple[Item, ...]]:
    """Return the values of all mappings by partition, sorted by partition."""
    merged: dict[str, tuple[Item, ...]] = {}
    for mapping in mappings:
        for partition, values in mapping.items():
            merged[partition] = (*merged.get(partition, ()), *values)
    return dict(sorted(merged.items()))


def _replaced_by(parts: Iterable[CommitMetadata]) -> dict[str, tuple[str, ...]]:
    merged = _merged([part.replaced for part in parts])
    return {partition: tuple(sorted(ids)) for partition, ids in merged.items()}


def _counts(parts: Iterable[CommitMetadata]) -> dict[str, str]:
    notes: Counter[str] = Counter()
    for part in parts:
        notes.update({key: int(count) for key, count in part.extra.items()})
    return {key: str(count) for key, count in notes.items()}


def _process_item(
    task: WriteTask,
    do: Callable[[Item, FileGroupWriter], None],
    replaced: Callable[[Item], Mapping[str, tuple[str, ...]]],
    item: Item,
    token: WriteToken,
) -> WriteStatus:
    """Process one item on an executor.

    A LakewrightError is returned with the status; the engine may raise it, to retry the task.
    """
    if task.attempt is not None:
        token = replace(token, stage=task.attempt.number)
    groups = FileGroupWriter(task, token)
    try:
        _check_may_go_on(task)
        do(item, groups)
    except LakewrightError as error:
        return groups.status(error=error)
    return groups.status(replaced=replaced(item))


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
