"""Log compaction as a table service."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from lakewright.core.commits import CommitMetadata
from lakewright.core.plans import CompactionPlan, Skip
from lakewright.services.logcompaction.parts import groups_in_parts
from lakewright.services.logcompaction.plan import LogHistory, not_due, plan_log_compaction
from lakewright.services.logcompaction.settings import LogCompactionSettings
from lakewright.services.logcompaction.worker import log_compact
from lakewright.services.service import Job, Service, Sight
from lakewright.services.sighted import look_into, need_log_files
from lakewright.services.window import find_window
from lakewright.settings import option_keys, settings_from


class LogCompaction(Service[CompactionPlan, CommitMetadata]):
    """Makes one log file of the many of a file group."""

    name: ClassVar[str] = "logcompaction"
    action: ClassVar[str] = "logcompaction"
    keys: ClassVar[frozenset[str]] = option_keys(LogCompactionSettings)

    def due(self, sight: Sight) -> Skip | None:
        """Why there were too few writes to look for many log files."""
        settings = settings_from(LogCompactionSettings, sight.options)
        need_log_files(sight.snapshot, self.name)
        return not_due(sight.snapshot.timeline, settings)

    def plan(self, sight: Sight) -> CompactionPlan | Skip:
        """The file groups with many log files."""
        settings = settings_from(LogCompactionSettings, sight.options)
        window = find_window(sight, self.action, enabled=settings.incremental)
        if window.is_empty:
            return Skip("nothing was written or left since the last log compaction")
        seen = look_into(sight, window, list)
        return plan_log_compaction(
            seen.slices,
            settings=settings,
            history=LogHistory.of(sight.snapshot.timeline),
            window=window,
            held=seen.held,
            in_parts=partial(groups_in_parts, sight.snapshot.storage),
        )

    def run(self, job: Job, plan: CompactionPlan) -> CommitMetadata:
        """Write the new log files."""
        return log_compact(job, plan)
