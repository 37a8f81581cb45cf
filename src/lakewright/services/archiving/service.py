"""Archiving as a table service, without an instant of its own; it runs under the table's lock."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar

from lakewright.clock import zone_of
from lakewright.errors import CorruptError, UnsupportedError
from lakewright.model.file_group import parse_data_file
from lakewright.model.instant import Action, Instant
from lakewright.model.plans import Skip
from lakewright.model.table_config import TableType
from lakewright.options import option_keys, settings_from
from lakewright.services.archiving.executor import archive
from lakewright.services.archiving.history import merge_history
from lakewright.services.archiving.planner import (
    ArchivalConstraints,
    ArchivePlan,
    ArchivingSettings,
    candidates,
    check_archive_trigger,
    plan_archive,
)
from lakewright.services.base import ExecutionContext, PlanningContext, TableService
from lakewright.services.cleaning.options import CleaningSettings, CleanPolicy
from lakewright.services.cleaning.planner import earliest_to_retain, last_clean
from lakewright.services.compaction.options import CompactionSettings
from lakewright.services.log_compaction import LogCompactionSettings
from lakewright.storage.base import split_path
from lakewright.table.failed_writes import delete_orphan_files
from lakewright.table.properties import metadata_partitions
from lakewright.table.snapshot import Snapshot, list_timeline
from lakewright.write.writer import Commit


class Archiving(TableService[ArchivePlan, Commit]):
    """Moves the oldest instants of the active timeline to the archived timeline.

    The caller holds the table's lock from before the snapshot is loaded until `execute` returns.
    Files of the archived timeline are merged afterwards, without the lock.
    """

    name: ClassVar[str] = "archive"
    action: ClassVar[Action | None] = None
    keys: ClassVar[frozenset[str]] = option_keys(ArchivingSettings)

    def check_trigger(self, context: PlanningContext) -> Skip | None:
        """Why archiving is not due, judging by the configuration and the number of commits."""
        settings = settings_from(ArchivingSettings, context.options)
        if metadata_partitions(context.snapshot.config):
            return Skip("the table has a metadata table, which only Hudi itself updates")
        return check_archive_trigger(context.snapshot.timeline, settings)

    def plan(self, context: PlanningContext) -> ArchivePlan | Skip:
        """The instants that are no longer needed on the active timeline, or why there are none."""
        skip = self.check_trigger(context)
        if skip is not None:
            return skip
        settings = settings_from(ArchivingSettings, context.options)
        snapshot = context.snapshot
        archivable = candidates(snapshot.timeline, settings, _constraints(context))
        files = list_timeline(snapshot.storage, snapshot.config)
        return plan_archive(files, archivable, uncleaned(snapshot, archivable.writes))

    def execute(self, context: ExecutionContext, plan: ArchivePlan) -> Commit:
        """Archive the planned instants; `files` of the result is their number."""
        settings = settings_from(ArchivingSettings, context.options)
        delete_orphan_files(context.snapshot, context.writer.heartbeat, context.clock.now_ms())
        archived = archive(context.snapshot, plan, settings)
        return Commit(
            instant=archived[-1].requested_at if archived else "",
            completed_at=(archived[-1].completed_at or "") if archived else "",
            action=self.name,
            operation=self.name.upper(),
            files=len(archived),
        )

    def finish(self, context: ExecutionContext) -> None:
        """Merge files of the archived timeline; the lock is taken only to publish the result."""
        settings = settings_from(ArchivingSettings, context.options)
        merge_history(context.writer, context.snapshot.config.history_folder, settings)


def _constraints(context: PlanningContext) -> ArchivalConstraints:
    snapshot, options = context.snapshot, context.options
    timeline = snapshot.timeline
    zone = zone_of(snapshot.config.timeline_zone)
    cleaning = settings_from(CleaningSettings, options)
    last = last_clean(snapshot)
    cleaned = timeline.by_time.get(last.earliest) if last is not None else None
    retained = earliest_to_retain(timeline, cleaning, context.now_ms, zone, last)
    return ArchivalConstraints(
        retained=retained,
        all_retained=retained is None and cleaning.policy is CleanPolicy.COMMITS,
        cleaned=cleaned if cleaned is not None and cleaned.is_completed else None,
        delta_commits=max(
            settings_from(CompactionSettings, options).max_delta_commits,
            settings_from(LogCompactionSettings, options).blocks_threshold,
        )
        if snapshot.config.table_type is TableType.MERGE_ON_READ
        else 0,
    )


def uncleaned(snapshot: Snapshot, writes: Iterable[Instant]) -> frozenset[str]:
    """The requested times of the replace commits in `writes` whose replaced files still exist."""
    replacing = [i for i in writes if i.action == Action.REPLACE_COMMIT]
    replaced = {
        (partition, file_id): instant.requested_at
        for instant, commit in zip(replacing, snapshot.commits(replacing), strict=True)
        for partition, file_ids in commit.replaced.items()
        for file_id in file_ids
    }
    if not replaced:
        return frozenset()
    listed = snapshot.storage.list_many({partition for partition, _ in replaced})
    remaining: set[str] = set()
    for status in (file_status for files in listed.values() for file_status in files):
        folder, name = split_path(status.path)
        # A file whose name cannot be parsed is not part of the table in any case.
        with suppress(CorruptError, UnsupportedError):
            file = parse_data_file(name)
            if file is not None and (folder, file.file_id) in replaced:
                remaining.add(replaced[folder, file.file_id])
    return frozenset(remaining)
