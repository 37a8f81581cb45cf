"""What others did to the table while a write was under way, loaded as far as the verdict needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from lakewright.core.commits import CommitMetadata
from lakewright.core.instant import Instant, State
from lakewright.core.plans import CompactionPlan
from lakewright.core.timeline import Timeline
from lakewright.errors import ConflictError, CorruptError, UnsupportedError, found_in
from lakewright.format.metadata import (
    parse_commit,
    parse_compaction_plan,
    parse_requested_replace,
    parse_rollback,
    parse_rollback_plan,
)
from lakewright.table.conflicts import (
    Conflict,
    Footprint,
    Kind,
    conflict_of,
    footprint_of_clustering,
    footprint_of_commit,
    footprint_of_compaction,
    with_announced,
)
from lakewright.table.markers import marked_files
from lakewright.table.properties import read_if_there
from lakewright.table.snapshot import Snapshot, load_snapshot


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """The table as a write found it, and as it is when the write wants to complete."""

    before: Timeline
    now: Snapshot

    def require_not_taken_back(self, instant: str) -> None:
        """ConflictError if this write, or one that it builds upon, was rolled back."""
        restores = self._begun("restore")
        if restores:
            raise ConflictError(
                "the table was restored to an earlier state meanwhile",
                instant=instant,
                restore=restores[0].requested_at,
            )
        seen = {i.requested_at for i in self.before.completed_writes}
        for rollback in self._begun("rollback"):
            targets = self._targets(rollback)
            if instant in targets:
                message = "this write was rolled back by another writer"
            elif targets & seen:
                message = "a write that this one builds upon was rolled back meanwhile"
            else:
                continue
            raise ConflictError(message, instant=instant, rollback=rollback.requested_at)
        # A writer may take its completed write back itself, where it had no lock in common with us.
        gone = sorted(at for at in seen if not self.now.timeline.is_committed(at))
        if gone:
            raise ConflictError(
                "a write that this one builds upon is not there any more",
                instant=instant,
                gone=gone,
            )

    def rollbacks_of(self, instant: str) -> tuple[Instant, ...]:
        """The rollbacks of a write that somebody began meanwhile."""
        return tuple(i for i in self._begun("rollback") if instant in self._targets(i))

    def require_no_conflict(
        self,
        instant: Instant,
        metadata: CommitMetadata,
        *,
        non_blocking: bool,
        yields_to_clustering: bool = True,
        gives_way_to: frozenset[str] | None = None,
    ) -> None:
        """ConflictError if another write touched the same file groups.

        `instant` is the completed one where the completed file is there already. A cancellable
        plan also gives way to writes under way, as far as they are known to touch them.
        """
        mine = footprint_of_commit(instant, metadata)
        self.require_no_clash(
            instant,
            replace(mine, cancellable=gives_way_to is not None),
            non_blocking=non_blocking,
            yields_to_clustering=yields_to_clustering,
            living=gives_way_to or frozenset(),
        )

    def require_no_clash(
        self,
        instant: Instant,
        mine: Footprint,
        *,
        non_blocking: bool,
        yields_to_clustering: bool = True,
        living: frozenset[str] = frozenset(),
    ) -> None:
        """The same for a write, or a plan, that touches what a footprint tells."""
        now = self._with_archived()
        found = conflict_of(
            mine,
            self.before,
            now,
            self._footprints_with_plans
            if mine.completed_at is not None
            else partial(self._footprints, living=living),
            non_blocking=non_blocking,
            yields_to_clustering=yields_to_clustering,
            living=living,
        )
        if found is not None:
            raise _error(instant, found)

    def _with_archived(self) -> Timeline:
        """The timeline now, with those that were pending before and are archived already.

        A pending write keeps everything after it on the active timeline, but not what began before
        it: that may have completed and been archived since.
        """
        pending = {i.requested_at for i in self.before.pending() if i.is_write}
        gone = pending - self.now.timeline.by_time.keys()
        if not gone:
            return self.now.timeline
        archived = [i for i in self.now.archived if i.requested_at in gone]
        return Timeline.of([*self.now.timeline, *archived])

    def _begun(self, action: str) -> list[Instant]:
        """The instants of an action that are new, or were pending before."""
        done = {i.requested_at for i in self.before.completed(action)}
        found = [i for i in self.now.timeline if i.action == action]
        return [i for i in found if i.requested_at not in done]

    def _targets(self, rollback: Instant) -> frozenset[str]:
        """The requested times of what a rollback takes back."""
        plan = self._read(replace(rollback, state=State.REQUESTED, completed_at=None))
        if plan:
            with found_in(rollback.file_name):
                return frozenset({parse_rollback_plan(plan).instant.requested_at})
        done = self._read(rollback) if rollback.is_completed else None
        if not done:
            return frozenset()
        with found_in(rollback.file_name):
            metadata = parse_rollback(done)
        return frozenset(i.requested_at for i in metadata.instants) or frozenset(metadata.commits)

    def _footprints(
        self, instants: Sequence[Instant], *, living: frozenset[str] = frozenset()
    ) -> list[Footprint]:
        completed = [i for i in instants if i.is_completed]
        commits = zip(completed, self._commits(completed), strict=True)
        known = {instant: footprint_of_commit(instant, commit) for instant, commit in commits}
        return [
            known.get(i) or (self._announced(i) if i.requested_at in living else self._planned(i))
            for i in instants
        ]

    def _commits(self, completed: Sequence[Instant]) -> Sequence[CommitMetadata]:
        try:
            return self.now.commits(completed)
        except CorruptError as error:
            latest = load_snapshot(self.now.storage)
            there = {i.requested_at for i in (*latest.timeline, *latest.archived)}
            gone = [i.requested_at for i in completed if i.requested_at not in there]
            if not gone:
                raise
            raise ConflictError(
                "a completed write was rolled back while this one looked at it: write again",
                gone=gone,
            ) from error

    def _footprints_with_plans(self, instants: Sequence[Instant]) -> list[Footprint]:
        """The same, and completed compactions with the log files that their plans name."""
        found = self._footprints(instants)
        for position, instant in enumerate(instants):
            if instant.is_completed and found[position].kind is Kind.COMPACTION:
                plan = self.now.plan_of(instant.requested_at, "compaction")
                if isinstance(plan, CompactionPlan):
                    found[position] = footprint_of_compaction(instant, plan)
        return found

    def _planned(self, instant: Instant) -> Footprint:
        """What a pending action will touch; nothing if it was rolled back just now."""
        requested = replace(instant, state=State.REQUESTED)
        data = self._read(requested)
        if not data:
            return self._under_way(instant)
        with found_in(requested.file_name):
            if instant.action == "compaction":
                return footprint_of_compaction(instant, parse_compaction_plan(data))
            plan = parse_requested_replace(data).plan
        return footprint_of_clustering(instant, plan) if plan else self._under_way(instant)

    def _announced(self, instant: Instant) -> Footprint:
        """What a pending write is known to touch, which may be less than it will."""
        files: tuple[str, ...] = ()
        operation = None
        # A glance at the work of others: what is wrong there, or half written, is not for us.
        with suppress(CorruptError, UnsupportedError):
            files = marked_files(self.now.storage, instant.requested_at)
            data = self._read(replace(instant, state=State.REQUESTED))
            operation = parse_requested_replace(data).operation if data else None
        return with_announced(self._under_way(instant), files, operation)

    def _under_way(self, instant: Instant) -> Footprint:
        data = self._read(instant) if instant.state is State.INFLIGHT else None
        if not data:
            return Footprint(instant.requested_at, instant.comparable_action)
        with found_in(instant.file_name):
            return footprint_of_commit(instant, parse_commit(data))

    def _read(self, instant: Instant) -> bytes | None:
        path = self.now.timeline_path(instant)
        return read_if_there(self.now.storage, path)


def latest_time(timeline: Iterable[Instant]) -> str:
    """The greatest time that anybody has put on the timeline; empty if there is none."""
    return max(
        (time for i in timeline for time in (i.requested_at, i.completed_at or "")), default=""
    )


def _error(instant: Instant, conflict: Conflict) -> ConflictError:
    return ConflictError(
        conflict.reason,
        instant=instant.requested_at,
        other=conflict.instant.file_name,
        groups=conflict.groups,
    )
