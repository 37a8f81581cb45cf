"""Which file groups have log files that hold parts of rows: these cannot be made one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pyarrow as pa

from lakewright.format.log_block import parse_heads
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import FileSlice, GroupKey, LogFile
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import CompactionOperation, CompactionPlan, CompactionStrategy, Skip
from lakewright.model.timeline import Timeline
from lakewright.options import at_least, option, option_keys, settings_from
from lakewright.scan.slice_reader import effective_blocks, merge_blocks, read_blocks
from lakewright.services.base import ExecutionContext, PlanningContext, TableService
from lakewright.services.compaction.executor import check_plan_is_current, io_bytes, slice_of
from lakewright.services.compaction.planner import finish_plan, free_slices, why_nothing
from lakewright.services.compaction.service import delta_commits, last_compaction
from lakewright.services.compaction.strategies import candidate
from lakewright.services.planning import (
    IncrementalWindow,
    LogPlanningSettings,
    SkippedPartitions,
    find_window,
    load_planning_input,
    require_merge_on_read,
)
from lakewright.services.rewrite import rewrite_task, run_rewrite
from lakewright.storage.base import Storage, map_in_threads
from lakewright.write.file_group_writer import FileGroupWriter
from lakewright.write.operations import delete_records
from lakewright.write.task import Operation, WriteTask


def groups_in_parts(storage: Storage, slices: Sequence[FileSlice]) -> frozenset[GroupKey]:
    """The groups of those slices that have a block of partial rows; reads headers of blocks."""
    logs = [(slice_, log) for slice_ in slices for log in slice_.logs]
    found = map_in_threads(partial(_holds_parts, storage), logs)
    return frozenset(
        (slice_.partition, slice_.file_id)
        for (slice_, _), in_parts in zip(logs, found, strict=True)
        if in_parts
    )


def _holds_parts(storage: Storage, item: tuple[FileSlice, LogFile]) -> bool:
    slice_, log = item
    path = slice_.path(log)
    heads = parse_heads(partial(storage.read_range, path), log.size, file_name=path)
    return any(block.is_partial for block in heads)


# ------------------------------------------------------------------------------------------------
# The options of log compaction, with Hudi's own keys and defaults.


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionSettings(LogPlanningSettings):
    """When log files are worth to be made one."""

    blocks_threshold: int = option(
        "hoodie.log.compaction.blocks.threshold",
        5,
        parse=at_least(1),
        doc="How many log files, since its base file or the last log compaction, make a file group "
        "worth it; and how many delta commits before it is tried.",
    )


# ------------------------------------------------------------------------------------------------
# Which file groups have so many log files that they are better made one; pure decisions.


# By this name Hudi knows how to execute the plan.
_EXECUTOR = "org.apache.hudi.table.action.compact.LogCompactionExecutionHelper"
_FEWEST_LOGS = 2

# Tells which of these file groups have log files with parts of rows.
InParts = Callable[[Sequence[FileSlice]], Collection[GroupKey]]


def check_log_compaction_trigger(
    timeline: Timeline, settings: LogCompactionSettings
) -> Skip | None:
    """Why it is too early for a log compaction; None if it may be tried."""
    own = timeline.completed_services(Action.LOG_COMPACTION)
    compaction = last_compaction(timeline) or ""
    since = max([compaction, *(i.requested_at for i in own)])
    # A log compaction is a delta commit itself, once it is completed.
    count = delta_commits(timeline, since or None)
    count -= sum(1 for i in own if (i.completed_at or "") > since)
    if count >= settings.blocks_threshold:
        return None
    kind = "compaction" if since == compaction else "log compaction"
    beginning = f"since {kind} {since}" if since else "altogether"
    return Skip(f"{count} of {settings.blocks_threshold} delta commits {beginning}")


@dataclass(frozen=True, slots=True)
class LogHistory:
    """What the timeline tells about log files: who made them, and who is not done yet."""

    compacted: frozenset[str]
    completions: Mapping[str, str]
    first_pending: str | None

    @classmethod
    def of(cls, timeline: Timeline) -> LogHistory:
        """The history as of a timeline."""
        pending = (i.requested_at for i in timeline.pending(Action.DELTA_COMMIT))
        return cls(
            frozenset(i.requested_at for i in timeline.completed_services(Action.LOG_COMPACTION)),
            {i.requested_at: i.completed_at or "" for i in timeline.completed(Action.DELTA_COMMIT)},
            min(pending, default=None),
        )

    def settled(self, slice_: FileSlice) -> FileSlice:
        """The slice without log files that a pending write may yet have to be merged before.

        One log file takes the place of all that it is made of. If a write between them completes
        later, its rows would be merged after rows that are newer.
        """
        if self.first_pending is None:
            return slice_
        first = self.first_pending
        return replace(slice_, logs=tuple(log for log in slice_.logs if log.instant < first))

    def fresh(self, slice_: FileSlice) -> int:
        """How many log files came after the last log compaction, or altogether without one."""
        last = max((i.instant for i in slice_.logs if i.instant in self.compacted), default="")
        # What was archived, or is not known, completed long ago.
        return sum(
            1
            for log in slice_.logs
            if log.instant not in self.compacted
            and self.completions.get(log.instant, log.instant) > last
        )


def plan_log_compaction(
    slices: Iterable[FileSlice],
    *,
    settings: LogCompactionSettings,
    history: LogHistory,
    window: IncrementalWindow,
    held: Mapping[GroupKey, str],
    in_parts: InParts,
) -> CompactionPlan | Skip:
    """The plan for these slices, the newest of their file groups; or why there is none.

    An operation names all settled log files of its slice, those that an earlier log compaction was
    made of as well, as in real plans: who executes it finds out which of them count. `in_parts` is
    asked about the slices that are worth it otherwise.
    """
    left = SkippedPartitions()
    worth: list[tuple[FileSlice, FileSlice]] = []
    least = settings.blocks_threshold
    for slice_ in free_slices(slices, held, left):
        settled = history.settled(slice_)
        if history.fresh(slice_) < least or len(slice_.logs) < _FEWEST_LOGS:
            left.add(slice_.partition, f"fewer than {max(least, _FEWEST_LOGS)} new log files")
        elif history.fresh(settled) < least or len(settled.logs) < _FEWEST_LOGS:
            left.add(slice_.partition, f"write {history.first_pending} is not done")
        else:
            worth.append((slice_, settled))
    refused = in_parts([settled for _, settled in worth])
    operations: list[CompactionOperation] = []
    for slice_, settled in worth:
        if (slice_.partition, slice_.file_id) in refused:
            left.add(slice_.partition, "log files hold parts of rows")
            continue
        operations.append(candidate(settled, settings.max_file_size).operation)
        if len(settled.logs) < len(slice_.logs):
            left.add(slice_.partition, f"write {history.first_pending} is not done")
    plan = finish_plan(operations, left, window)
    if plan is None:
        return Skip(why_nothing("compact in log files", left))
    return replace(plan, strategy=CompactionStrategy(class_name=_EXECUTOR), preserve_metadata=True)


# ------------------------------------------------------------------------------------------------
# Log compaction, done: many log files of a group written once more as one.
#
# The rows keep their commit times, so incremental queries see nothing new. Of each key there is
# one
# version, a row or a delete: what readers make of all the blocks before they look at the base
# file.


def execute_log_compaction(job: ExecutionContext, plan: CompactionPlan) -> CommitMetadata:
    """Execute a plan, whoever made it; gives what the commit records.

    A group whose log files hold parts of rows stays as it is: the plan ends, and a compaction can
    have the group.

    Raises:
        ConflictError: the groups are not what they were when they were planned.
    """
    check_plan_is_current(
        job.snapshot, Instant(job.instant, Action.LOG_COMPACTION, State.INFLIGHT), plan
    )
    task = rewrite_task(job, Operation.LOG_COMPACT)
    return run_rewrite(job, task, partial(_join, task), plan.operations, size=io_bytes)


def _join(task: WriteTask, operation: CompactionOperation, groups: FileGroupWriter) -> None:
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
    groups.rewrite_logs(
        item,
        outcome.rows.take(pa.array(outcome.row[stays])),
        delete_records(item.partition, outcome),
        compacted=sorted(parts),
    )


# ------------------------------------------------------------------------------------------------
# Log compaction as a table service.


class LogCompaction(TableService[CompactionPlan, CommitMetadata]):
    """Makes one log file of the many of a file group."""

    name: ClassVar[str] = "logcompaction"
    action: ClassVar[Action | None] = Action.LOG_COMPACTION
    keys: ClassVar[frozenset[str]] = option_keys(LogCompactionSettings)

    def check_trigger(self, sight: PlanningContext) -> Skip | None:
        """Why there were too few writes to look for many log files."""
        settings = settings_from(LogCompactionSettings, sight.options)
        require_merge_on_read(sight.snapshot, self.name)
        return check_log_compaction_trigger(sight.snapshot.timeline, settings)

    def plan(self, sight: PlanningContext) -> CompactionPlan | Skip:
        """The file groups with many log files."""
        settings = settings_from(LogCompactionSettings, sight.options)
        window = find_window(sight, Action.LOG_COMPACTION, enabled=settings.incremental)
        if window.is_empty:
            return Skip("nothing was written or left since the last log compaction")
        seen = load_planning_input(sight, window, list)
        return plan_log_compaction(
            seen.slices,
            settings=settings,
            history=LogHistory.of(sight.snapshot.timeline),
            window=window,
            held=seen.held,
            in_parts=partial(groups_in_parts, sight.snapshot.storage),
        )

    def execute(self, job: ExecutionContext, plan: CompactionPlan) -> CommitMetadata:
        """Write the new log files."""
        return execute_log_compaction(job, plan)
