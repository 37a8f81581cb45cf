"""Which file groups have so many log files that they are better made one; pure decisions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lakewright.core.plans import CompactionOperation, CompactionPlan, CompactionStrategy, Skip
from lakewright.core.slices import FileSlice, GroupKey
from lakewright.core.timeline import Timeline
from lakewright.services.compaction.candidates import candidate
from lakewright.services.compaction.plan import finish_plan, free_slices, why_nothing
from lakewright.services.compaction.triggers import delta_commits, last_compaction
from lakewright.services.logcompaction.settings import LogCompactionSettings
from lakewright.services.reasons import Left
from lakewright.services.window import Window

# By this name Hudi knows how to execute the plan.
_EXECUTOR = "org.apache.hudi.table.action.compact.LogCompactionExecutionHelper"
_FEWEST_LOGS = 2

# Tells which of these file groups have log files with parts of rows.
InParts = Callable[[Sequence[FileSlice]], Collection[GroupKey]]


def not_due(timeline: Timeline, settings: LogCompactionSettings) -> Skip | None:
    """Why it is too early for a log compaction; None if it may be tried."""
    own = timeline.completed_services("logcompaction")
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
        pending = (i.requested_at for i in timeline.pending("deltacommit"))
        return cls(
            frozenset(i.requested_at for i in timeline.completed_services("logcompaction")),
            {i.requested_at: i.completed_at or "" for i in timeline.completed("deltacommit")},
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
    window: Window,
    held: Mapping[GroupKey, str],
    in_parts: InParts,
) -> CompactionPlan | Skip:
    """The plan for these slices, the newest of their file groups; or why there is none.

    An operation names all settled log files of its slice, those that an earlier log compaction was
    made of as well, as in real plans: who executes it finds out which of them count. `in_parts` is
    asked about the slices that are worth it otherwise.
    """
    left = Left()
    worth: list[tuple[FileSlice, FileSlice]] = []
    least = settings.blocks_threshold
    for slice_ in free_slices(slices, held, left):
        settled = history.settled(slice_)
        if history.fresh(slice_) < least or len(slice_.logs) < _FEWEST_LOGS:
            left.because(slice_.partition, f"fewer than {max(least, _FEWEST_LOGS)} new log files")
        elif history.fresh(settled) < least or len(settled.logs) < _FEWEST_LOGS:
            left.because(slice_.partition, f"write {history.first_pending} is not done")
        else:
            worth.append((slice_, settled))
    refused = in_parts([settled for _, settled in worth])
    operations: list[CompactionOperation] = []
    for slice_, settled in worth:
        if (slice_.partition, slice_.file_id) in refused:
            left.because(slice_.partition, "log files hold parts of rows")
            continue
        operations.append(candidate(settled, settings.max_file_size).operation)
        if len(settled.logs) < len(slice_.logs):
            left.because(slice_.partition, f"write {history.first_pending} is not done")
    plan = finish_plan(operations, left, window)
    if plan is None:
        return Skip(why_nothing("compact in log files", left))
    return replace(plan, strategy=CompactionStrategy(class_name=_EXECUTOR), preserve_metadata=True)
