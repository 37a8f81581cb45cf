"""Compaction as a table service, and its trigger."""

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
    FindCandidates,
    StrategyChain,
    plan_compaction,
    strategy_for,
)
from lakewright.services.compaction.strategies import StrategyContext
from lakewright.services.planning import (
    SkippedPartitions,
    WindowListing,
    find_window,
    load_planning_input,
    missing_partitions_are_due,
    require_merge_on_read,
)
from lakewright.table.snapshot import Snapshot
from lakewright.write.options import write_settings


def check_compaction_trigger(
    timeline: Timeline, settings: CompactionSettings, instant: InstantTime, zone: tzinfo = UTC
) -> Skip | None:
    """Return why a compaction at `instant` is not due; None if it is.

    Only completed delta commits count: replace commits write no log files, and a pending write may
    yet be rolled back. They count from their completion: the log files of a write that overlaps the
    last compaction are on top of its base files.
    """
    skip = _too_few_commits(timeline, settings)
    early = _too_early(timeline, settings, instant, zone)
    match settings.trigger:
        case CompactionTrigger.NUM_COMMITS | CompactionTrigger.NUM_COMMITS_AFTER_LAST_REQUEST:
            return skip
        case CompactionTrigger.TIME_ELAPSED:
            return early
        case CompactionTrigger.NUM_AND_TIME:
            return skip if skip is not None else early
        case CompactionTrigger.NUM_OR_TIME:
            return Skip(f"{skip}, and {early}") if skip is not None and early is not None else None


def last_compaction(timeline: Timeline, *, requested: bool = False) -> str | None:
    """Return the requested time of the last completed compaction, or of any if `requested`."""
    # On a merge-on-read table every commit is a compaction.
    times = [i.requested_at for i in timeline.completed(Action.COMMIT)]
    if requested:
        times += [i.requested_at for i in timeline.pending(Action.COMPACTION)]
    return max(times, default=None)


def delta_commits(timeline: Timeline, since: str | None) -> int:
    """Return how many delta commits have completed, after a time if one is given."""
    completed = timeline.completed(Action.DELTA_COMMIT)
    return sum(1 for i in completed if since is None or (i.completed_at or "") > since)


def _too_few_commits(timeline: Timeline, settings: CompactionSettings) -> Skip | None:
    requested = settings.trigger is CompactionTrigger.NUM_COMMITS_AFTER_LAST_REQUEST
    since = last_compaction(timeline, requested=requested)
    count = delta_commits(timeline, since)
    if count >= settings.max_delta_commits:
        return None
    beginning = f"since compaction {since}" if since else "and no compaction yet"
    return Skip(f"{count} of {settings.max_delta_commits} delta commits {beginning}")


def _too_early(
    timeline: Timeline, settings: CompactionSettings, instant: InstantTime, zone: tzinfo
) -> Skip | None:
    since = last_compaction(timeline)
    first = min((i.requested_at for i in timeline if i.action == Action.DELTA_COMMIT), default=None)
    start = since or first
    if start is None:
        return Skip("nothing was written yet")
    seconds = _seconds(instant, zone) - _seconds(start, zone)
    if seconds >= settings.max_delta_seconds:
        return None
    origin = "compaction" if since else "the first delta commit"
    return Skip(f"{seconds} of {settings.max_delta_seconds} seconds since {origin} {start}")


def _seconds(time: str, zone: tzinfo) -> int:
    try:
        return int(parse_time(time, zone).timestamp())
    except InvalidError:
        # The first instants of bootstrapped tables are no times, and before all others.
        return 0


_TRIGGER_KEYS = frozenset(
    {
        TRIGGER,
        "hoodie.compact.inline.max.delta.commits",
        "hoodie.compact.inline.max.delta.seconds",
    }
)


class Compaction(TableService[CompactionPlan, CommitMetadata]):
    """The table service that merges the log files of file groups into new base files."""

    name: ClassVar[str] = "compaction"
    action: ClassVar[Action | None] = Action.COMPACTION
    keys: ClassVar[frozenset[str]] = option_keys(CompactionSettings)

    def check_trigger(self, context: PlanningContext) -> Skip | None:
        """Return why no compaction is due; None if one is.

        Raises:
            InvalidError: the table has no log files, or no plan can be made with these options.
        """
        settings = settings_from(CompactionSettings, context.options)
        require_merge_on_read(context.snapshot, self.name)
        strategy = _strategy(context, settings)
        _candidate_finder(context, settings, strategy)
        if strategy.by_event_time is not None and _TRIGGER_KEYS.isdisjoint(context.options):
            # By event time a compaction is always due, unless the options set a trigger.
            return None
        timeline = context.snapshot.timeline
        zone = zone_of(context.snapshot.config.timeline_zone)
        skip = check_compaction_trigger(timeline, settings, context.instant, zone)
        if skip is not None and missing_partitions_are_due(
            context,
            Action.COMPACTION,
            settings.missing_seconds,
            enough_commits=_too_few_commits(timeline, settings) is None,
        ):
            return None
        return skip

    def plan(self, context: PlanningContext) -> CompactionPlan | Skip:
        """Plan the file groups that the strategy selects."""
        settings = settings_from(CompactionSettings, context.options)
        require_merge_on_read(context.snapshot, self.name)
        strategy = _strategy(context, settings)
        find_candidates = _candidate_finder(context, settings, strategy)
        window = find_window(
            context,
            Action.COMPACTION,
            enabled=settings.incremental,
            partition_aware=strategy.is_aware,
            ranked_by=strategy.ranking_filters(settings),
        )
        if window.is_empty:
            return Skip("nothing was written or left since the last compaction")
        skipped = SkippedPartitions()
        listing = WindowListing.of(context.snapshot, window)
        selected = strategy.filter_partitions(
            settings, listing.partitions, skipped, ranked_with=window.latest
        )
        planning_input = load_planning_input(context, listing, selected)
        return plan_compaction(
            planning_input.slices,
            strategy=strategy,
            settings=settings,
            window=window,
            locked=planning_input.locked,
            filtered=skipped.reasons,
            find_candidates=find_candidates,
            ranking=strategy.rank(settings, [*listing.partitions, *window.latest]),
        )

    def plan_instant(self, plan: CompactionPlan, instant: InstantTime) -> str:
        """Return the instant of the new base files: in the past for a plan by event time."""
        return next((o.next_base_instant for o in plan.operations if o.next_base_instant), instant)

    def verify(self, context: ExecutionContext, result: CommitMetadata, current: Snapshot) -> None:
        """Raise ConcurrentWriteError if dropped deletes compete with a concurrent write."""
        check_dropped_deletes(context.snapshot, result, current)

    def execute(self, context: ExecutionContext, plan: CompactionPlan) -> CommitMetadata:
        """Write the new base files and return the commit metadata."""
        return execute_compaction(context, plan)


def _strategy(context: PlanningContext, settings: CompactionSettings) -> StrategyChain:
    zone = zone_of(context.snapshot.config.timeline_zone)
    today = datetime.fromtimestamp(context.now_ms / 1000, zone).date()
    return strategy_for(
        settings, StrategyContext(context.snapshot.timeline, context.instant, today, zone)
    )


def _candidate_finder(
    context: PlanningContext, settings: CompactionSettings, strategy: StrategyChain
) -> FindCandidates | None:
    """Return how a plan by event time finds its candidates; None for other plans.

    Raises:
        InvalidError: no plan by event time can be made with these options, or for this table.
    """
    if strategy.by_event_time is None:
        return None
    event_time = write_settings(context.snapshot.config, context.options).event_time
    check_event_time_table(context.snapshot, settings, event_time)
    threshold = threshold_of(strategy.by_event_time, context, settings)

    def find_candidates(
        slices: Sequence[FileSlice], skipped: SkippedPartitions
    ) -> PlacedCandidates | Skip:
        return placed_candidates(slices, context, threshold, settings, skipped)

    return find_candidates
