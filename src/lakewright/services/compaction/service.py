"""Compaction as a table service."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import ClassVar

from lakewright.clock import zone_of
from lakewright.errors import InvalidError
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import FileSlice
from lakewright.model.instant import Action, InstantTime, parse_time
from lakewright.model.plans import CompactionPlan, Skip
from lakewright.model.timeline import Timeline
from lakewright.options import option_keys, settings_from
from lakewright.services.base import ExecutionContext, PlanningContext, TableService
from lakewright.services.compaction.event_time import (
    PlacedCandidates,
    check_event_time_table,
    placed_candidates,
    threshold_of,
)
from lakewright.services.compaction.executor import check_dropped_deletes, execute_compaction
from lakewright.services.compaction.options import TRIGGER, CompactionSettings, CompactionTrigger
from lakewright.services.compaction.planner import (
    Placing,
    StrategyChain,
    plan_compaction,
    strategy_for,
)
from lakewright.services.compaction.strategies import StrategyContext
from lakewright.services.planning import (
    SkippedPartitions,
    find_window,
    load_planning_input,
    require_merge_on_read,
)
from lakewright.table.snapshot import Snapshot
from lakewright.write.options import write_settings


def check_compaction_trigger(
    timeline: Timeline, settings: CompactionSettings, instant: InstantTime, zone: tzinfo = UTC
) -> Skip | None:
    """Why a compaction at `instant` is too early; None if it is due.

    Only completed delta commits count: replace commits leave no log files behind, and a pending
    write may yet be rolled back. They count from the moment they completed: the log files of a
    write that the last compaction overlapped are on top of it.
    """
    few = _few_commits(timeline, settings)
    early = _early(timeline, settings, instant, zone)
    match settings.trigger:
        case CompactionTrigger.NUM_COMMITS | CompactionTrigger.NUM_COMMITS_AFTER_LAST_REQUEST:
            return few
        case CompactionTrigger.TIME_ELAPSED:
            return early
        case CompactionTrigger.NUM_AND_TIME:
            return few if few is not None else early
        case CompactionTrigger.NUM_OR_TIME:
            return Skip(f"{few}, and {early}") if few is not None and early is not None else None


def last_compaction(timeline: Timeline, *, requested: bool = False) -> str | None:
    """The requested time of the last completed compaction, or of the last requested one."""
    # A commit of a merge-on-read table is a compaction.
    times = [i.requested_at for i in timeline.completed(Action.COMMIT)]
    if requested:
        times += [i.requested_at for i in timeline.pending(Action.COMPACTION)]
    return max(times, default=None)


def delta_commits(timeline: Timeline, since: str | None) -> int:
    """How many delta commits have completed, all in all or after a time."""
    done = timeline.completed(Action.DELTA_COMMIT)
    return sum(1 for i in done if since is None or (i.completed_at or "") > since)


def _few_commits(timeline: Timeline, settings: CompactionSettings) -> Skip | None:
    requested = settings.trigger is CompactionTrigger.NUM_COMMITS_AFTER_LAST_REQUEST
    since = last_compaction(timeline, requested=requested)
    count = delta_commits(timeline, since)
    if count >= settings.max_delta_commits:
        return None
    beginning = f"since compaction {since}" if since else "and no compaction yet"
    return Skip(f"{count} of {settings.max_delta_commits} delta commits {beginning}")


def _early(
    timeline: Timeline, settings: CompactionSettings, instant: InstantTime, zone: tzinfo
) -> Skip | None:
    since = last_compaction(timeline)
    first = min((i.requested_at for i in timeline if i.action == "deltacommit"), default=None)
    start = since or first
    if start is None:
        return Skip("nothing was written yet")
    seconds = _seconds(instant, zone) - _seconds(start, zone)
    if seconds >= settings.max_delta_seconds:
        return None
    begun = "compaction" if since else "the first delta commit"
    return Skip(f"{seconds} of {settings.max_delta_seconds} seconds since {begun} {start}")


def _seconds(time: str, zone: tzinfo) -> int:
    try:
        return int(parse_time(time, zone).timestamp())
    except InvalidError:
        # The first instants of bootstrapped tables are no times; they are long past.
        return 0


# ------------------------------------------------------------------------------------------------
# Whether a compaction is due, by the timeline alone.


_TRIGGERS = frozenset(
    {
        TRIGGER,
        "hoodie.compact.inline.max.delta.commits",
        "hoodie.compact.inline.max.delta.seconds",
    }
)


class Compaction(TableService[CompactionPlan, CommitMetadata]):
    """Folds the log files of file groups into new base files."""

    name: ClassVar[str] = "compaction"
    action: ClassVar[Action | None] = Action.COMPACTION
    keys: ClassVar[frozenset[str]] = option_keys(CompactionSettings)

    def check_trigger(self, sight: PlanningContext) -> Skip | None:
        """Why the trigger has not gone off; options that make no plan are refused here."""
        settings = settings_from(CompactionSettings, sight.options)
        require_merge_on_read(sight.snapshot, self.name)
        strategy = _strategy(sight, settings)
        _placing(sight, settings, strategy)
        if strategy.by_event_time is not None and _TRIGGERS.isdisjoint(sight.options):
            # What lies before the threshold is due, unless somebody says when to look.
            return None
        zone = zone_of(sight.snapshot.config.timeline_zone)
        return check_compaction_trigger(sight.snapshot.timeline, settings, sight.instant, zone)

    def plan(self, sight: PlanningContext) -> CompactionPlan | Skip:
        """The file groups to compact, as the strategy chooses them."""
        settings = settings_from(CompactionSettings, sight.options)
        strategy = _strategy(sight, settings)
        window = find_window(
            sight, Action.COMPACTION, enabled=settings.incremental, aware=strategy.is_aware
        )
        if window.is_empty:
            return Skip("nothing was written or left since the last compaction")
        left, placing = SkippedPartitions(), _placing(sight, settings, strategy)
        seen = load_planning_input(
            sight, window, lambda paths: strategy.filter_partitions(settings, paths, left)
        )
        return plan_compaction(
            seen.slices,
            strategy=strategy,
            settings=settings,
            window=window,
            held=seen.held,
            filtered=left.reasons,
            placing=placing,
        )

    def plan_instant(self, plan: CompactionPlan, instant: InstantTime) -> str:
        """A plan by event time stands in the past."""
        return next((o.next_base_instant for o in plan.operations if o.next_base_instant), instant)

    def verify(self, job: ExecutionContext, result: CommitMetadata, now: Snapshot) -> None:
        """Deletes that were dropped must have nothing to compete with."""
        check_dropped_deletes(job.snapshot, result, now)

    def execute(self, job: ExecutionContext, plan: CompactionPlan) -> CommitMetadata:
        """Write the new base files."""
        return execute_compaction(job, plan)


def _strategy(sight: PlanningContext, settings: CompactionSettings) -> StrategyChain:
    zone = zone_of(sight.snapshot.config.timeline_zone)
    today = datetime.fromtimestamp(sight.now_ms / 1000, zone).date()
    return strategy_for(
        settings, StrategyContext(sight.snapshot.timeline, sight.instant, today, zone)
    )


def _placing(
    sight: PlanningContext, settings: CompactionSettings, strategy: StrategyChain
) -> Placing | None:
    """How a plan by event time is placed; options that make none are refused here."""
    if strategy.by_event_time is None:
        return None
    event_time = write_settings(sight.snapshot.config, sight.options).event_time
    check_event_time_table(sight.snapshot, settings, event_time)
    threshold = threshold_of(strategy.by_event_time, sight, settings)

    def placing(slices: Sequence[FileSlice], left: SkippedPartitions) -> PlacedCandidates | Skip:
        return placed_candidates(slices, sight, threshold, settings, left)

    return placing
