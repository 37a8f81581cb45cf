"""Archiving as a service: it has no instant of its own, and works under the table's lock."""

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
from lakewright.table.orphan_files import delete_orphan_files
from lakewright.table.properties import metadata_partitions
from lakewright.table.snapshot import Snapshot, list_timeline
from lakewright.write.writer import Commit


class Archiving(TableService[ArchivePlan, Commit]):
    """Moves the oldest instants of the timeline into history.

    The caller holds the table's lock from before the table is looked at until `execute` is done.
    """

    name: ClassVar[str] = "archive"
    action: ClassVar[Action | None] = None
    keys: ClassVar[frozenset[str]] = option_keys(ArchivingSettings)

    def check_trigger(self, sight: PlanningContext) -> Skip | None:
        """Why nothing can be due yet, by the number of commits."""
        settings = settings_from(ArchivingSettings, sight.options)
        if metadata_partitions(sight.snapshot.config):
            return Skip("the table has a metadata table, which only real Hudi keeps in step")
        return check_archive_trigger(sight.snapshot.timeline, settings)

    def plan(self, sight: PlanningContext) -> ArchivePlan | Skip:
        """The instants that nobody needs on the active timeline."""
        early = self.check_trigger(sight)
        if early is not None:
            return early
        settings = settings_from(ArchivingSettings, sight.options)
        snapshot = sight.snapshot
        found = candidates(snapshot.timeline, settings, _needs(sight))
        files = list_timeline(snapshot.storage, snapshot.config)
        return plan_archive(files, found, uncleaned(snapshot, found.writes))

    def execute(self, job: ExecutionContext, plan: ArchivePlan) -> Commit:
        """Archive; `files` of the result counts the instants."""
        settings = settings_from(ArchivingSettings, job.options)
        delete_orphan_files(job.snapshot, job.writer.heartbeat, job.clock.now_ms())
        done = archive(job.snapshot, plan, settings).instants
        return Commit(
            instant=done[-1].requested_at if done else "",
            completed_at=(done[-1].completed_at or "") if done else "",
            action=self.name,
            operation=self.name.upper(),
            files=len(done),
        )


def _needs(sight: PlanningContext) -> ArchivalConstraints:
    snapshot, options = sight.snapshot, sight.options
    timeline = snapshot.timeline
    zone = zone_of(snapshot.config.timeline_zone)
    cleaning = settings_from(CleaningSettings, options)
    last = last_clean(snapshot)
    cleaned = timeline.by_time.get(last.earliest) if last is not None else None
    retained = earliest_to_retain(timeline, cleaning, sight.now_ms, zone, last)
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
    """The requested times of replace commits whose replaced files are not all gone."""
    replacing = [i for i in writes if i.action == "replacecommit"]
    replaced = {
        (partition, file_id): instant.requested_at
        for instant, commit in zip(replacing, snapshot.commits(replacing), strict=True)
        for partition, file_ids in commit.replaced.items()
        for file_id in file_ids
    }
    if not replaced:
        return frozenset()
    listed = snapshot.storage.list_many({partition for partition, _ in replaced})
    left: set[str] = set()
    for status in (each for files in listed.values() for each in files):
        folder, name = split_path(status.path)
        # What no reader can read is no part of the table in any case.
        with suppress(CorruptError, UnsupportedError):
            file = parse_data_file(name)
            if file is not None and (folder, file.file_id) in replaced:
                left.add(replaced[folder, file.file_id])
    return frozenset(left)
