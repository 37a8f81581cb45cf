"""Cleaning as a service: looks at the table, decides, and lets the worker delete."""

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
from lakewright.table.plan_cancellation import rollback_abandoned_plans
from lakewright.table.snapshot import FilesByPartition, Snapshot
from lakewright.table.transaction import TransactionManager

_HOUR_MS = 3_600_000
# So many writes may be looked at again by the next clean before one that deletes nothing is worth
# a line on the timeline.
_MOST_UNRECORDED = 5


class Cleaning(TableService[CleanPlan, CleanMetadata]):
    """Deletes the files that no reader within the retained time needs.

    A clean that finds nothing to delete is recorded only if the next one would else look at much
    again: after all partitions were listed, or many writes went by. Cancellable plans that nobody
    executes keep files from being cleaned: they go first.
    """

    name: ClassVar[str] = "clean"
    action: ClassVar[Action | None] = Action.CLEAN
    has_pre_plan: ClassVar[bool] = True
    keys: ClassVar[frozenset[str]] = option_keys(CleaningSettings)

    def pre_plan(self, writer: TransactionManager, seen: Snapshot) -> Skip | None:
        """Roll cancellable plans back that nobody executes."""
        removed = rollback_abandoned_plans(writer, seen)
        return Skip(f"rolled back {'; '.join(map(str, removed))}") if removed else None

    def check_trigger(self, sight: PlanningContext) -> Skip | None:
        """Why nothing can be due yet, by the number of commits and what is pending."""
        settings = settings_from(CleaningSettings, sight.options)
        early = check_clean_trigger(sight.snapshot.timeline, settings)
        if early is None and settings.policy is not CleanPolicy.VERSIONS:
            all_is_kept = _retained(sight, settings, None) is None
            early = Skip(_why_all_is_kept(sight.snapshot, settings)) if all_is_kept else None
        return early

    def plan(self, sight: PlanningContext) -> CleanPlan | Skip:
        """The files to delete, or why none are."""
        settings = settings_from(CleaningSettings, sight.options)
        early = self.check_trigger(sight)
        if early is not None:
            return early
        snapshot = sight.snapshot
        last = last_clean(snapshot)
        retained = _retained(sight, settings, last)
        has_history = last is None and bool(snapshot.archived)
        scope = clean_scope(snapshot.timeline, settings, retained, last, has_history=has_history)
        if scope.is_empty:
            return Skip("nothing can have become due since the last clean")
        stock = load_partition_files(snapshot, _files(snapshot, scope, settings))
        due = find_deletable_files(stock, settings, retained)
        decided = _Decision(sight, settings, retained, last, scope, due)
        if not due and not decided.is_worth_recording():
            return Skip("nothing is due")
        return decided.plan()

    def execute(self, job: ExecutionContext, plan: CleanPlan) -> CleanMetadata:
        """Delete what is planned, but what has become needed since."""
        return clean(job, plan)


@dataclass(frozen=True, slots=True)
class _Decision:
    """All that a plan is made of."""

    sight: PlanningContext
    settings: CleaningSettings
    retained: Instant | None
    last: LastClean | None
    scope: CleanScope
    due: CleanCandidates

    def is_worth_recording(self) -> bool:
        """Whether a clean that deletes nothing spares the next one enough work."""
        if self.settings.is_filtered or not self.settings.incremental:
            return False
        if self.scope.everything or len(self.scope.writes) > _MOST_UNRECORDED:
            return True
        hours = self.settings.empty_interval_hours
        return hours > 0 and self._age_ms() >= hours * _HOUR_MS

    def _age_ms(self) -> int:
        if self.last is None:
            return self.sight.now_ms
        zone = zone_of(self.sight.snapshot.config.timeline_zone)
        try:
            since = parse_time(self.last.requested_at, zone)
        except InvalidError:
            return 0
        return self.sight.now_ms - round(since.timestamp() * 1000)

    def plan(self) -> CleanPlan:
        snapshot = self.sight.snapshot
        url = snapshot.storage.url
        done = snapshot.timeline.completed_writes
        return CleanPlan(
            policy=self.settings.policy.value,
            earliest_to_retain=self._recorded(),
            last_completed=done[-1].requested_at if done else "",
            files={
                partition: tuple(CleanFile(path=url(join_path(partition, f.name))) for f in files)
                for partition, files in sorted(self.due.files.items())
            },
            deleted_partitions=tuple(sorted(self.due.partitions)),
            extra=self._extra(),
        )

    def _recorded(self) -> RetainedInstant | None:
        """Who keeps more than before does not get back what is gone already."""
        if self.retained is None:
            return None
        at, action = self.retained.requested_at, self.retained.action
        if self.last is not None and self.last.earliest > at:
            at = self.last.earliest
            known = self.sight.snapshot.timeline.by_time.get(at)
            action = known.action if known is not None else action
        return RetainedInstant(requested_at=at, action=action, state=State.COMPLETED.value)

    def _extra(self) -> dict[str, str]:
        extra = self._left().to_extra_metadata()
        saved = self.sight.snapshot.timeline.savepointed
        if saved:
            extra[SAVEPOINTS] = ",".join(sorted(saved))
        if self.settings.is_filtered:
            extra[FILTERED] = "true"
        recorded = self._recorded()
        # What another policy, or a clean that is yet to end, has taken is not readable again.
        before = self.sight.snapshot.earliest_retained() or ""
        if self.settings.policy is CleanPolicy.VERSIONS:
            extra[VERSIONS] = str(self.settings.versions_retained)
            before = max(before, self.due.readable_from)
        told = before > (recorded.requested_at if recorded is not None else "")
        return {**extra, READABLE_FROM: before} if told else extra

    def _left(self) -> SkippedPartitions:
        """Who keeps more than before cannot tell whether what was left then has gone since."""
        left = SkippedPartitions(dict(self.due.left.reasons))
        last, retained = self.last, self.retained
        if last is not None and retained is not None and retained.requested_at < last.earliest:
            for partition, reason in parse_reasons(last.extra).items():
                left.add(partition, reason)
        return left


def _retained(
    sight: PlanningContext, settings: CleaningSettings, last: LastClean | None
) -> Instant | None:
    timeline, zone = sight.snapshot.timeline, zone_of(sight.snapshot.config.timeline_zone)
    return earliest_to_retain(timeline, settings, sight.now_ms, zone, last)


def _files(snapshot: Snapshot, scope: CleanScope, settings: CleaningSettings) -> FilesByPartition:
    """The data files where the clean looks."""
    if scope.everything and not settings.partitions_selected:
        listed = snapshot.files()
        return {partition: listed[partition] for partition in filter(settings.takes, listed)}
    if scope.everything:
        return snapshot.files(settings.partitions_selected)
    touched = {p for commit in snapshot.commits(scope.writes) for p in commit.partitions}
    return snapshot.files(sorted(filter(settings.takes, touched | scope.partitions)))


def _why_all_is_kept(snapshot: Snapshot, settings: CleaningSettings) -> str:
    count = len(snapshot.timeline.completed_writes)
    if settings.policy is CleanPolicy.COMMITS and count <= settings.commits_retained:
        return f"{count} commits, and {settings.commits_retained} are retained"
    for pending in snapshot.timeline.pending():
        if pending.is_write:
            return f"{pending.action} {pending.requested_at} is pending, and nothing is older"
    return f"no commit is from the last {settings.hours_retained} hours"
