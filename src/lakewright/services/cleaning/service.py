"""Cleaning as a table service: checks the trigger, makes the plan, and executes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lakewright.clock import zone_of
from lakewright.errors import InvalidError
from lakewright.model.commit_metadata import READABLE_FROM, CleanMetadata
from lakewright.model.instant import Action, Instant, State, parse_time
from lakewright.model.plans import CleanFile, CleanPlan, RetainedInstant, Skip, parse_reasons
from lakewright.options import option_keys, settings_from
from lakewright.services.base import ExecutionContext, PlanningContext, TableService
from lakewright.services.cleaning.executor import clean
from lakewright.services.cleaning.options import CleaningSettings, CleanPolicy
from lakewright.services.cleaning.planner import (
    FILTERED,
    SAVEPOINTS,
    VERSIONS,
    CleanCandidates,
    CleanScope,
    LastClean,
    check_clean_trigger,
    clean_scope,
    earliest_to_retain,
    find_deletable_files,
    last_clean,
    load_partition_files,
)
from lakewright.services.planning import SkippedPartitions
from lakewright.storage.base import join_path
from lakewright.table.failed_writes import delete_dead_heartbeats
from lakewright.table.plan_cancellation import rollback_abandoned_plans
from lakewright.table.snapshot import FilesByPartition, Snapshot
from lakewright.table.transaction import TransactionManager

_HOUR_MS = 3_600_000
# A clean that deletes nothing is recorded only if it checked more writes than this: the next clean
# checks unrecorded ones again.
_MAX_UNRECORDED_WRITES = 5


class Cleaning(TableService[CleanPlan, CleanMetadata]):
    """Deletes the files that no query within the retention period needs.

    A clean that finds nothing to delete is recorded only if that saves the next one much work: if
    it listed all partitions, or checked many writes. Cancellable plans that no process executes
    protect files from being cleaned, so they are rolled back first.
    """

    name: ClassVar[str] = "clean"
    action: ClassVar[Action | None] = Action.CLEAN
    has_pre_plan: ClassVar[bool] = True
    keys: ClassVar[frozenset[str]] = option_keys(CleaningSettings)

    def pre_plan(self, writer: TransactionManager, snapshot: Snapshot) -> Skip | None:
        """Roll back cancellable plans that no process executes and expired clusterings.

        Dead heartbeats are deleted as well.
        """
        rolled_back = rollback_abandoned_plans(writer, snapshot)
        # Also if there is nothing to clean: other leftover files are deleted with a clean.
        delete_dead_heartbeats(writer.storage, writer.heartbeat, writer.clock)
        return Skip(f"rolled back {'; '.join(map(str, rolled_back))}") if rolled_back else None

    def check_trigger(self, context: PlanningContext) -> Skip | None:
        """Why no clean is due, judging by the number of commits and the pending instants."""
        settings = settings_from(CleaningSettings, context.options)
        skip = check_clean_trigger(context.snapshot.timeline, settings)
        if skip is None and settings.policy is not CleanPolicy.VERSIONS:
            retains_all = _earliest_retained(context, settings, None) is None
            skip = Skip(_why_all_retained(context.snapshot, settings)) if retains_all else None
        return skip

    def plan(self, context: PlanningContext) -> CleanPlan | Skip:
        """The files to delete, or why there are none."""
        settings = settings_from(CleaningSettings, context.options)
        skip = self.check_trigger(context)
        if skip is not None:
            return skip
        snapshot = context.snapshot
        last = last_clean(snapshot)
        retained = _earliest_retained(context, settings, last)
        has_archived_writes = last is None and snapshot.has_history()
        scope = clean_scope(
            snapshot.timeline, settings, retained, last, has_history=has_archived_writes
        )
        if scope.is_empty:
            return Skip("nothing can have become due since the last clean")
        partition_files = load_partition_files(snapshot, _files(snapshot, scope, settings))
        candidates = find_deletable_files(partition_files, settings, retained)
        decision = _Decision(context, settings, retained, last, scope, candidates)
        if not candidates and not decision.is_worth_recording():
            return Skip("nothing is due")
        return decision.plan()

    def execute(self, context: ExecutionContext, plan: CleanPlan) -> CleanMetadata:
        """Delete the planned files, except those that have become needed since."""
        return clean(context, plan)


@dataclass(frozen=True, slots=True)
class _Decision:
    """Everything that a clean plan is built from."""

    context: PlanningContext
    settings: CleaningSettings
    retained: Instant | None
    last: LastClean | None
    scope: CleanScope
    candidates: CleanCandidates

    def is_worth_recording(self) -> bool:
        """Whether a clean that deletes nothing saves the next one enough work."""
        if self.settings.is_filtered or not self.settings.incremental:
            return False
        if self.scope.full_listing_reason or len(self.scope.writes) > _MAX_UNRECORDED_WRITES:
            return True
        hours = self.settings.empty_interval_hours
        return hours > 0 and self._age_ms() >= hours * _HOUR_MS

    def _age_ms(self) -> int:
        """The time since the last clean."""
        if self.last is None:
            return self.context.now_ms
        zone = zone_of(self.context.snapshot.config.timeline_zone)
        try:
            since = parse_time(self.last.requested_at, zone)
        except InvalidError:
            return 0
        return self.context.now_ms - round(since.timestamp() * 1000)

    def plan(self) -> CleanPlan:
        """The plan as it is stored on the timeline."""
        snapshot = self.context.snapshot
        url = snapshot.storage.url
        commits = snapshot.timeline.completed_writes
        return CleanPlan(
            policy=self.settings.policy.value,
            earliest_to_retain=self._earliest_to_record(),
            last_completed=commits[-1].requested_at if commits else "",
            files={
                partition: tuple(CleanFile(path=url(join_path(partition, f.name))) for f in files)
                for partition, files in sorted(self.candidates.files.items())
            },
            deleted_partitions=tuple(sorted(self.candidates.partitions)),
            extra=self._extra(),
        )

    def _earliest_to_record(self) -> RetainedInstant | None:
        """The earliest retained commit, but never one before that of the last clean.

        If the retention is longer now, the files that the last clean deleted are still missing.
        """
        if self.retained is None:
            return None
        at, action = self.retained.requested_at, self.retained.action
        if self.last is not None and self.last.earliest > at:
            at = self.last.earliest
            instant = self.context.snapshot.timeline.by_time.get(at)
            action = instant.action if instant is not None else action
        return RetainedInstant(requested_at=at, action=action, state=State.COMPLETED.value)

    def _extra(self) -> dict[str, str]:
        extra = self._skipped_partitions().to_extra_metadata()
        savepointed = self.context.snapshot.timeline.savepointed
        if savepointed:
            extra[SAVEPOINTS] = ",".join(sorted(savepointed))
        if self.settings.is_filtered:
            extra[FILTERED] = "true"
        recorded = self._earliest_to_record()
        # Files that a clean by another policy, or a pending clean, has deleted are still missing.
        readable_from = self.context.snapshot.earliest_retained() or ""
        if self.settings.policy is CleanPolicy.VERSIONS:
            extra[VERSIONS] = str(self.settings.versions_retained)
            readable_from = max(readable_from, self.candidates.readable_from)
        is_later = readable_from > (recorded.requested_at if recorded is not None else "")
        return {**extra, READABLE_FROM: readable_from} if is_later else extra

    def _skipped_partitions(self) -> SkippedPartitions:
        """The skipped partitions, with those of the last clean if the retention is longer now.

        The policy then does not select the files that the last clean skipped, so this plan cannot
        know whether they still exist.
        """
        skipped = SkippedPartitions(dict(self.candidates.skipped.reasons))
        last, retained = self.last, self.retained
        if last is not None and retained is not None and retained.requested_at < last.earliest:
            for partition, reason in parse_reasons(last.extra).items():
                skipped.add(partition, reason)
        return skipped


def _earliest_retained(
    context: PlanningContext, settings: CleaningSettings, last: LastClean | None
) -> Instant | None:
    timeline, zone = context.snapshot.timeline, zone_of(context.snapshot.config.timeline_zone)
    return earliest_to_retain(timeline, settings, context.now_ms, zone, last)


def _files(snapshot: Snapshot, scope: CleanScope, settings: CleaningSettings) -> FilesByPartition:
    """The data files in the scope of the clean."""
    if scope.full_listing_reason and not settings.partitions_selected:
        listed = snapshot.files()
        return {partition: listed[partition] for partition in filter(settings.selects, listed)}
    if scope.full_listing_reason:
        return snapshot.files(settings.partitions_selected)
    touched = {p for commit in snapshot.commits(scope.writes) for p in commit.partitions}
    return snapshot.files(sorted(filter(settings.selects, touched | scope.partitions)))


def _why_all_retained(snapshot: Snapshot, settings: CleaningSettings) -> str:
    count = len(snapshot.timeline.completed_writes)
    if settings.policy is CleanPolicy.COMMITS and count <= settings.commits_retained:
        return f"{count} commits, and {settings.commits_retained} are retained"
    for pending in snapshot.timeline.pending():
        if pending.is_write:
            return f"{pending.action} {pending.requested_at} is pending, and nothing is older"
    return f"no commit is from the last {settings.hours_retained} hours"
