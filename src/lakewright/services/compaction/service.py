"""Compaction as a table service."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from lakewright.clock import zone_of
from lakewright.core.commits import CommitMetadata
from lakewright.core.plans import CompactionPlan, Skip
from lakewright.core.slices import FileSlice
from lakewright.services.compaction.candidates import Scene
from lakewright.services.compaction.event_time import (
    Placed,
    check_event_time_table,
    placed_candidates,
    threshold_of,
)
from lakewright.services.compaction.plan import Placing, plan_compaction
from lakewright.services.compaction.registry import Chain, strategy_for
from lakewright.services.compaction.settings import TRIGGER, CompactionSettings
from lakewright.services.compaction.triggers import not_due
from lakewright.services.compaction.worker import compact, refuse_dropped_deletes
from lakewright.services.reasons import Left
from lakewright.services.service import Job, Service, Sight
from lakewright.services.sighted import look_into, need_log_files
from lakewright.services.window import find_window
from lakewright.settings import option_keys, settings_from
from lakewright.table.snapshot import Snapshot
from lakewright.write.options import write_settings

_TRIGGERS = frozenset(
    {
        TRIGGER,
        "hoodie.compact.inline.max.delta.commits",
        "hoodie.compact.inline.max.delta.seconds",
    }
)


class Compaction(Service[CompactionPlan, CommitMetadata]):
    """Folds the log files of file groups into new base files."""

    name: ClassVar[str] = "compaction"
    action: ClassVar[str] = "compaction"
    keys: ClassVar[frozenset[str]] = option_keys(CompactionSettings)

    def due(self, sight: Sight) -> Skip | None:
        """Why the trigger has not gone off; options that make no plan are refused here."""
        settings = settings_from(CompactionSettings, sight.options)
        need_log_files(sight.snapshot, self.name)
        strategy = _strategy(sight, settings)
        _placing(sight, settings, strategy)
        if strategy.by_event_time is not None and _TRIGGERS.isdisjoint(sight.options):
            # What lies before the threshold is due, unless somebody says when to look.
            return None
        zone = zone_of(sight.snapshot.config.timeline_zone)
        return not_due(sight.snapshot.timeline, settings, sight.instant, zone)

    def plan(self, sight: Sight) -> CompactionPlan | Skip:
        """The file groups to compact, as the strategy chooses them."""
        settings = settings_from(CompactionSettings, sight.options)
        strategy = _strategy(sight, settings)
        window = find_window(
            sight, self.action, enabled=settings.incremental, aware=strategy.is_aware
        )
        if window.is_empty:
            return Skip("nothing was written or left since the last compaction")
        left, placing = Left(), _placing(sight, settings, strategy)
        seen = look_into(
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

    def place(self, plan: CompactionPlan, instant: str) -> str:
        """A plan by event time stands in the past."""
        return next((o.next_base_instant for o in plan.operations if o.next_base_instant), instant)

    def verify(self, job: Job, result: CommitMetadata, now: Snapshot) -> None:
        """Deletes that were dropped must have nothing to compete with."""
        refuse_dropped_deletes(job.snapshot, result, now)

    def run(self, job: Job, plan: CompactionPlan) -> CommitMetadata:
        """Write the new base files."""
        return compact(job, plan)


def _strategy(sight: Sight, settings: CompactionSettings) -> Chain:
    zone = zone_of(sight.snapshot.config.timeline_zone)
    today = datetime.fromtimestamp(sight.now_ms / 1000, zone).date()
    return strategy_for(settings, Scene(sight.snapshot.timeline, sight.instant, today, zone))


def _placing(sight: Sight, settings: CompactionSettings, strategy: Chain) -> Placing | None:
    """How a plan by event time is placed; options that make none are refused here."""
    if strategy.by_event_time is None:
        return None
    event_time = write_settings(sight.snapshot.config, sight.options).event_time
    check_event_time_table(sight.snapshot, settings, event_time)
    threshold = threshold_of(strategy.by_event_time, sight, settings)

    def placing(slices: Sequence[FileSlice], left: Left) -> Placed | Skip:
        return placed_candidates(slices, sight, threshold, settings, left)

    return placing
