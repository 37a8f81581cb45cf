"""Log compaction: rewrites the many log files of a file group as one log file.

The rows keep their commit times, so incremental queries return nothing new. The new log file holds
one version of each key, a row or a delete: the result of merging all blocks of the old log files,
as readers do before they read the base file. Log files with partial updates cannot be rewritten
that way, and are left to a compaction.
"""

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
from lakewright.services.compaction.planner import empty_plan_reason, finish_plan, free_slices
from lakewright.services.compaction.service import delta_commits, last_compaction
from lakewright.services.compaction.strategies import candidate
from lakewright.services.planning import (
    IncrementalWindow,
    LogPlanningSettings,
    SkippedPartitions,
    WindowListing,
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
    """Return the groups of those slices that have a block with partial updates; reads headers."""
    logs = [(slice_, log) for slice_ in slices for log in slice_.logs]
    partials = map_in_threads(partial(_has_partial_block, storage), logs)
    return frozenset(
        (slice_.partition, slice_.file_id)
        for (slice_, _), is_partial in zip(logs, partials, strict=True)
        if is_partial
    )


def _has_partial_block(storage: Storage, item: tuple[FileSlice, LogFile]) -> bool:
    slice_, log = item
    path = slice_.path(log)
    heads = parse_heads(partial(storage.read_range, path), log.size, file_name=path)
    return any(block.is_partial for block in heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionSettings(LogPlanningSettings):
    """The options of log compaction, with Hudi's keys and defaults."""

    blocks_threshold: int = option(
        "hoodie.log.compaction.blocks.threshold",
        5,
        parse=at_least(1),
        doc="How many log files, since its base file or the last log compaction, a file group "
        "needs to be log-compacted; and how many delta commits make a log compaction due.",
    )


# Planning: pure decisions

# Hudi finds the executor of the plan by this class name.
_EXECUTOR = "org.apache.hudi.table.action.compact.LogCompactionExecutionHelper"
_MIN_LOGS = 2

# Returns which of these file groups have log files with partial updates.
FindPartialUpdates = Callable[[Sequence[FileSlice]], Collection[GroupKey]]


def check_log_compaction_trigger(
    timeline: Timeline, settings: LogCompactionSettings
) -> Skip | None:
    """Return why a log compaction is not due; None if it is."""
    log_compactions = timeline.completed_services(Action.LOG_COMPACTION)
    compaction = last_compaction(timeline) or ""
    since = max([compaction, *(i.requested_at for i in log_compactions)])
    # A log compaction completes as a delta commit, which does not count here.
    count = delta_commits(timeline, since or None)
    count -= sum(1 for i in log_compactions if (i.completed_at or "") > since)
    if count >= settings.blocks_threshold:
        return None
    kind = "compaction" if since == compaction else "log compaction"
    beginning = f"since {kind} {since}" if since else "altogether"
    return Skip(f"{count} of {settings.blocks_threshold} delta commits {beginning}")


@dataclass(frozen=True, slots=True)
class LogHistory:
    """What the timeline says about log files.

    `compacted` are the instants of completed log compactions, `completions` the completion times of
    delta commits, `first_pending` the first pending delta commit.
    """

    compacted: frozenset[str]
    completions: Mapping[str, str]
    first_pending: str | None

    @classmethod
    def from_timeline(cls, timeline: Timeline) -> LogHistory:
        """Return what a timeline says about log files."""
        pending = (i.requested_at for i in timeline.pending(Action.DELTA_COMMIT))
        return cls(
            frozenset(i.requested_at for i in timeline.completed_services(Action.LOG_COMPACTION)),
            {i.requested_at: i.completed_at or "" for i in timeline.completed(Action.DELTA_COMMIT)},
            min(pending, default=None),
        )

    def settled(self, slice_: FileSlice) -> FileSlice:
        """Return the slice without the log files that follow the first pending write.

        A log compaction replaces several log files by one. If a pending write between them
        completed later, readers would merge its rows after rows that are newer.
        """
        if self.first_pending is None:
            return slice_
        limit = self.first_pending
        return replace(slice_, logs=tuple(log for log in slice_.logs if log.instant < limit))

    def fresh(self, slice_: FileSlice) -> int:
        """Return how many log files follow the last log compaction; all if there is none."""
        last = max((i.instant for i in slice_.logs if i.instant in self.compacted), default="")
        # A write without a known completion time is archived: its requested time is near enough.
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
    locked: Mapping[GroupKey, str],
    find_partial: FindPartialUpdates,
) -> CompactionPlan | Skip:
    """Return the plan for these slices, the newest of their file groups; or why there is none.

    An operation names all settled log files of its slice, also those that an earlier log compaction
    has replaced, as Hudi's plans do: the executor finds out which of them are effective.
    `find_partial` is called with the slices that are selected otherwise.
    """
    skipped = SkippedPartitions()
    selected: list[tuple[FileSlice, FileSlice]] = []
    threshold = settings.blocks_threshold
    for slice_ in free_slices(slices, locked, skipped):
        settled = history.settled(slice_)
        if history.fresh(slice_) < threshold or len(slice_.logs) < _MIN_LOGS:
            skipped.add(slice_.partition, f"fewer than {max(threshold, _MIN_LOGS)} new log files")
        elif history.fresh(settled) < threshold or len(settled.logs) < _MIN_LOGS:
            skipped.add(slice_.partition, f"write {history.first_pending} is pending")
        else:
            selected.append((slice_, settled))
    with_partial_updates = find_partial([settled for _, settled in selected])
    operations: list[CompactionOperation] = []
    for slice_, settled in selected:
        if (slice_.partition, slice_.file_id) in with_partial_updates:
            skipped.add(slice_.partition, "log files hold partial updates")
            continue
        operations.append(candidate(settled, settings.max_file_size).operation)
        if len(settled.logs) < len(slice_.logs):
            skipped.add(slice_.partition, f"write {history.first_pending} is pending")
    plan = finish_plan(operations, skipped, window)
    if plan is None:
        return Skip(empty_plan_reason("compact in log files", skipped))
    return replace(plan, strategy=CompactionStrategy(class_name=_EXECUTOR), preserve_metadata=True)


# Execution


def execute_log_compaction(context: ExecutionContext, plan: CompactionPlan) -> CommitMetadata:
    """Execute a plan and return the commit metadata.

    A file group whose log files hold partial updates is left as it is: the plan completes, and a
    compaction can rewrite the group.

    Raises:
        ConflictError: the file groups have changed since they were planned.
    """
    check_plan_is_current(
        context.snapshot, Instant(context.instant, Action.LOG_COMPACTION, State.INFLIGHT), plan
    )
    task = rewrite_task(context, Operation.LOG_COMPACT)
    return run_rewrite(context, task, partial(_rewrite_logs, task), plan.operations, size=io_bytes)


def _rewrite_logs(task: WriteTask, operation: CompactionOperation, groups: FileGroupWriter) -> None:
    item = slice_of(operation)
    blocks = read_blocks(task.storage, item)
    if any(block.is_partial for block in blocks):
        return
    effective = effective_blocks(blocks)
    merged = merge_blocks(effective, item, task.stored_schema, task.merge_rule)
    has_row = ~merged.deleted
    instants = {block.instant for block in blocks}
    for block in blocks:
        instants.update(block.compacted_instants)
    groups.rewrite_logs(
        item,
        merged.rows.take(pa.array(merged.row[has_row])),
        delete_records(item.partition, merged),
        compacted=sorted(instants),
    )


class LogCompaction(TableService[CompactionPlan, CommitMetadata]):
    """The table service that rewrites the log files of file groups as one log file each."""

    name: ClassVar[str] = "logcompaction"
    action: ClassVar[Action | None] = Action.LOG_COMPACTION
    keys: ClassVar[frozenset[str]] = option_keys(LogCompactionSettings)

    def check_trigger(self, context: PlanningContext) -> Skip | None:
        """Return why too few delta commits have completed; None if a log compaction is due."""
        settings = settings_from(LogCompactionSettings, context.options)
        require_merge_on_read(context.snapshot, self.name)
        return check_log_compaction_trigger(context.snapshot.timeline, settings)

    def plan(self, context: PlanningContext) -> CompactionPlan | Skip:
        """Plan the file groups with many log files."""
        settings = settings_from(LogCompactionSettings, context.options)
        require_merge_on_read(context.snapshot, self.name)
        window = find_window(context, Action.LOG_COMPACTION, enabled=settings.incremental)
        if window.is_empty:
            return Skip("nothing was written or left since the last log compaction")
        listing = WindowListing.of(context.snapshot, window)
        planning_input = load_planning_input(context, listing, listing.partitions)
        return plan_log_compaction(
            planning_input.slices,
            settings=settings,
            history=LogHistory.from_timeline(context.snapshot.timeline),
            window=window,
            locked=planning_input.locked,
            find_partial=partial(groups_in_parts, context.snapshot.storage),
        )

    def execute(self, context: ExecutionContext, plan: CompactionPlan) -> CommitMetadata:
        """Write the new log files and return the commit metadata."""
        return execute_log_compaction(context, plan)
