"""What services that rewrite rows share: how work is dealt out, and what the commit records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from lakewright.core.commits import SCHEMA_KEY, CommitMetadata, WriteStat
from lakewright.errors import InvalidError, LakewrightError
from lakewright.services.service import Job
from lakewright.write.commit import refuse_failed
from lakewright.write.groups import GroupWriter
from lakewright.write.options import effective_config, write_settings
from lakewright.write.task import Operation, Outcome, Token, WriteTask

Item = TypeVar("Item")


def service_task(job: Job, operation: Operation) -> WriteTask:
    """An execution, as every worker needs to know it."""
    snapshot = job.snapshot
    settings = write_settings(snapshot.config, job.options)
    # What was written after the plan may be rolled back, and its columns with it.
    schema = snapshot.avro_schema(snapshot.view(requested_until=job.instant))
    if schema is None:
        raise InvalidError("the table has no schema yet: nothing was written")
    return WriteTask(
        snapshot=replace(snapshot, config=effective_config(snapshot.config, job.options)),
        instant=job.instant,
        operation=operation,
        settings=settings,
        schema=schema,
        event_time=settings.event_time,
        attempt=job.attempt,
        clock=job.clock,
    )


def rewritten(
    job: Job,
    task: WriteTask,
    do: Callable[[Item, GroupWriter], None],
    items: Sequence[Item],
    *,
    size: Callable[[Item], int],
    replaced: Mapping[str, tuple[str, ...]] | None = None,
) -> CommitMetadata:
    """Let workers do each item, and gather what they wrote; a failure leaves no file."""
    outcomes = job.hands.work(partial(_outcome, task, do), items, size)
    refuse_failed(task, outcomes)
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
    task: WriteTask, do: Callable[[Item, GroupWriter], None], item: Item, token: Token
) -> Outcome:
    """An error of ours comes back as a value, so that no task is tried again."""
    if task.attempt is not None:
        token = replace(token, stage=task.attempt.number)
    groups = GroupWriter(task, token)
    try:
        do(item, groups)
    except LakewrightError as error:
        return groups.outcome(error=error)
    return groups.outcome()
