"""Compaction as a table service."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from lakewright.clock import zone_of
from lakewright.core.commits import CommitMetadata
from lakewright.core.plans import CompactionPlan, Skip
from lakewright.services.compaction.candidates import Scene
from lakewright.services.compaction.plan import plan_compaction
from lakewright.services.compaction.registry import Chain, strategy_for
from lakewright.services.compaction.settings import CompactionSettings
from lakewright.services.compaction.triggers import not_due
from lakewright.services.compaction.worker import compact
from lakewright.services.reasons import Left
from lakewright.services.service import Job, Service, Sight
from lakewright.services.sighted import look_into, need_log_files
from lakewright.services.window import find_window
from lakewright.settings import option_keys, settings_from


class Compaction(Service[CompactionPlan, CommitMetadata]):
    """Folds the log files of file groups into new base files."""

    name: ClassVar[str] = "compaction"
    action: ClassVar[str] = "compaction"
    keys: ClassVar[frozenset[str]] = option_keys(CompactionSettings)

    def due(self, sight: Sight) -> Skip | None:
        """Why the trigger has not gone off; options that make no plan are refused here."""
        settings = settings_from(CompactionSettings, sight.options)
        need_log_files(sight.snapshot, self.name)
        _strategy(sight, settings)
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
        left = Left()
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
        )

    def run(self, job: Job, plan: CompactionPlan) -> CommitMetadata:
        """Write the new base files."""
        return compact(job, plan)


def _strategy(sight: Sight, settings: CompactionSettings) -> Chain:
    zone = zone_of(sight.snapshot.config.timeline_zone)
    today = datetime.fromtimestamp(sight.now_ms / 1000, zone).date()
    return strategy_for(settings, Scene(sight.snapshot.timeline, sight.instant, today))
