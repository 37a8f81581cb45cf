"""Rollbacks: removing the newest write, or a failed one, from the table.

The sections: which instants may be rolled back; planning, requesting and executing rollbacks; what
rollbacks have recorded.

The caller holds the table's lock and has loaded the snapshot under it. The order of a rollback
makes every point at which the process may crash safe: its plan is on the timeline before anything
is changed; readers stop seeing the instant in one step; its data files are deleted before the
timeline files and markers that refer to them; and the rollback completes last, so that until then
the next process finds it and completes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from lakewright.clock import Clock
from lakewright.errors import ConflictError, CorruptError, InvalidError, errors_in_file
from lakewright.format.timeline_metadata import (
    format_rollback,
    format_rollback_plan,
    parse_rollback,
    parse_rollback_plan,
)
from lakewright.model.commit_metadata import CommitMetadata, RollbackMetadata
from lakewright.model.file_group import TimelineView
from lakewright.model.instant import REWRITES, WRITE_ACTIONS, Action, Instant, State
from lakewright.model.plans import InstantRef, RollbackCause, RollbackPlan, RollbackRequest
from lakewright.model.timeline import Timeline
from lakewright.storage.base import join_path, split_path
from lakewright.table.archived_timeline import archived_times_in, load_archived_metadata
from lakewright.table.cleaned_files import slices_before_cleaning
from lakewright.table.conflicts import OperationKind, operation_of_commit
from lakewright.table.damaged_commits import find_damage, with_commits_from_file_names
from lakewright.table.instant_files import (
    absolute_path,
    action_key,
    all_files_present,
    by_partition,
    create_if_missing,
    delete_instant,
    delete_late_completed,
    find_files,
    revert_to_pending,
    rollback_metadata,
    timeline_files,
)
from lakewright.table.markers import list_markers, marked_files
from lakewright.table.options import FailedWritesPolicy
from lakewright.table.properties import read_optional
from lakewright.table.snapshot import Snapshot
from lakewright.table.time_generator import TimeGenerator

# Which instants may be rolled back: those without which the table is what it was before them.


def require_write(instant: Instant) -> None:
    """Raise InvalidError for an instant that is neither a write nor a table service."""
    if not instant.is_write:
        raise InvalidError("only writes and table services are rolled back", instant=str(instant))


def check_can_rollback(snapshot: Snapshot, instant: Instant) -> None:
    """Raise InvalidError if the instant must not be rolled back in the table's current state."""
    timeline = snapshot.timeline
    require_write(instant)
    if timeline.by_time.get(instant.requested_at) != instant:
        raise InvalidError("the instant is not in this state on the timeline", instant=str(instant))
    if instant.requested_at in timeline.savepointed:
        raise InvalidError(
            "a savepoint holds this instant: delete the savepoint first", instant=str(instant)
        )
    if instant.is_completed:
        (commit,) = snapshot.commits([instant])
        _check_newest(snapshot, instant, commit)
        _check_no_data_loss(snapshot, instant, commit)


def _check_newest(snapshot: Snapshot, instant: Instant, commit: CommitMetadata) -> None:
    groups, at = commit.file_groups(), instant.requested_at
    later = [i for i in snapshot.timeline if i.is_write and i.requested_at > at]
    if snapshot.timeline.plans.get(at) == Action.COMPACTION:
        later = [
            i for i in later if not i.is_completed or _depends_on_compaction(snapshot, i, commit)
        ]
    blocking = [str(i) for i in later if i.is_completed or i.action in WRITE_ACTIONS]
    blocking += [
        str(i)
        for i, plan in snapshot.pending_plans()
        if i.requested_at > at and groups & plan.file_groups
    ]
    if blocking:
        raise InvalidError(
            "only the newest write can be rolled back: roll back the later ones first, or restore",
            instant=str(instant),
            later=blocking,
        )


def _depends_on_compaction(snapshot: Snapshot, later: Instant, compaction: CommitMetadata) -> bool:
    """Whether a later write needs the base files of a compaction.

    A later log file does not: without the compacted base file it belongs to the previous base file,
    as do the log files that were compacted.
    """
    (commit,) = snapshot.commits([later])
    other = operation_of_commit(later, commit)
    touched = (
        other.base_groups | other.replaced_groups
        if other.kind is OperationKind.WRITE
        else other.groups
    )
    return not touched.isdisjoint(operation_of_commit(later, compaction).groups)


def _check_no_data_loss(snapshot: Snapshot, instant: Instant, commit: CommitMetadata) -> None:
    """Raise InvalidError if the table without this instant would lack rows that it had before."""
    remaining = Timeline(tuple(i for i in snapshot.timeline if i != instant))
    if snapshot.archived_hidden_by(remaining):
        raise InvalidError(
            "the last write on the active timeline that no savepoint holds cannot be rolled back: "
            "readers would take archived ones for uncommitted",
            instant=str(instant),
        )
    at = instant.requested_at
    if remaining.is_archived(at):
        raise InvalidError(
            "the first write on the active timeline cannot be rolled back under later ones: "
            "readers would take files that it leaves for archived",
            instant=str(instant),
        )
    if at in archived_times_in(snapshot.storage, snapshot.config.history_folder, at):
        raise InvalidError(
            "interrupted archiving has this write in the archived timeline already: it must stay",
            instant=str(instant),
        )
    _, cleaned_files = slices_before_cleaning(
        snapshot, TimelineView(remaining), commit.partitions, since=instant.requested_at
    )
    missing = [
        name
        for group in sorted(commit.file_groups() & cleaned_files.keys())
        for name in cleaned_files[group]
    ]
    if missing:
        raise InvalidError(
            "what this write replaced was cleaned, or is about to be: rolling it back would lose "
            "rows",
            instant=str(instant),
            files=missing,
        )


# Planning, requesting and executing rollbacks.


@dataclass(frozen=True, slots=True)
class PendingRollback:
    """A rollback that was requested and has not completed."""

    instant: Instant
    plan: RollbackPlan

    @property
    def keeps_plan(self) -> bool:
        """Whether its target, a compaction or clustering, stays scheduled."""
        return self.plan.instant.action in REWRITES

    def is_request_only(self, alive: frozenset[str]) -> bool:
        """Whether it has changed nothing yet and asks its target, which is live, to abort."""
        return self.instant.state is State.REQUESTED and self.plan.instant.requested_at in alive


class CompletedConcurrentlyError(ConflictError):
    """A pending write completed while it was about to be rolled back; it stays completed."""


def failed_writes(
    timeline: Timeline, policy: FailedWritesPolicy, alive: frozenset[str]
) -> tuple[Instant, ...]:
    """Return the pending writes to roll back, newest first; those in `alive` have a live heartbeat.

    Compactions and clusterings are never among them: the process that executes a plan rolls its
    failed executions back. EAGER and LAZY differ in when this function is called, not in its
    result: a writer with a live heartbeat is spared even where real Hudi, with EAGER, would not
    check its heartbeat.
    """
    if policy is FailedWritesPolicy.NEVER:
        return ()
    pending = timeline.pending(*WRITE_ACTIONS)
    return tuple(i for i in reversed(pending) if i.requested_at not in alive)


def plan_rollback(snapshot: Snapshot, instant: Instant, *, by_markers: bool) -> RollbackPlan:
    """Plan the deletion of the files of an instant on the snapshot's timeline.

    The files of a pending instant are found by its markers, or by listing the table if there are no
    markers or a power cut may have lost some; those of a completed instant by listing the
    partitions that it wrote. Raises InvalidError

    - for an instant that a savepoint holds;
    - for a completed write under a later one, completed or pending, as real Hudi does; a pending
      compaction or clustering counts only if it is to rewrite a file group of this instant, and
      later log files do not keep a compaction in place;
    - for a completed write whose predecessor's files were cleaned: rows would be lost.
    """
    check_can_rollback(snapshot, instant)
    files = _files_of_instant(snapshot, instant, by_markers=by_markers)
    return RollbackPlan(
        instant=InstantRef(instant.requested_at, instant.action),
        requests=tuple(
            RollbackRequest(
                partition=partition,
                file_id="",
                latest_base_instant="",
                files=tuple(absolute_path(snapshot.storage, path) for path in paths),
            )
            for partition, paths in by_partition(files).items()
        ),
    )


def rollback_locked(
    snapshot: Snapshot,
    target: Instant,
    times: TimeGenerator,
    clock: Clock,
    *,
    by_markers: bool,
    keep_plan: bool = False,
    cause: RollbackCause | None = None,
) -> Instant:
    """Roll back an instant and return the completed rollback. May be repeated after a crash.

    With `keep_plan` a compaction, log compaction or clustering stays scheduled. A rollback of the
    same instant that another process has started is completed; one that has already completed is
    returned. `cause` is recorded with a rollback that is started here.

    Raises:
        CompletedConcurrentlyError: the instant was pending in the snapshot and has completed since.
    """
    require_write(target)
    current = _current_state(snapshot, target)
    pending = pending_rollback_of(snapshot, target.requested_at)
    if pending is not None:
        if current is not None and current.is_completed:
            snapshot = _with_damaged_target(snapshot, current)
            _recheck_can_rollback(snapshot, pending, current)
        files = _files_to_delete(snapshot, pending.plan, current, by_markers=by_markers)
        return _execute(snapshot, pending, files, times, clock, keep_plan=keep_plan)
    if _rollback_may_have_completed(current, keep_plan=keep_plan):
        completed = completed_rollback_of(snapshot, target.requested_at)
        if completed is not None:
            return completed
    if current is None:
        raise InvalidError("there is no such instant on the timeline", instant=str(target))
    plan = plan_rollback(snapshot, current, by_markers=by_markers)
    pending = _request(snapshot, plan, times, keep_plan=keep_plan, cause=cause)
    return _execute(snapshot, pending, _planned_files(plan), times, clock, keep_plan=keep_plan)


def request_rollback(
    snapshot: Snapshot,
    target: Instant,
    times: TimeGenerator,
    *,
    by_markers: bool,
    cause: RollbackCause,
) -> Instant:
    """Request the rollback of a pending plan without executing it; return the requested rollback.

    From here on no process starts to execute the plan, and a process that is executing it completes
    nothing. The process that completes the rollback deletes the plan. A rollback that another
    process has already requested is returned as it is.
    """
    pending = pending_rollback_of(snapshot, target.requested_at)
    if pending is None:
        plan = plan_rollback(snapshot, target, by_markers=by_markers)
        pending = _request(snapshot, plan, times, keep_plan=False, cause=cause)
    return pending.instant


def pending_rollbacks(snapshot: Snapshot) -> tuple[PendingRollback, ...]:
    """Return the rollbacks that were requested and have not completed, oldest first."""
    pending = []
    for instant in snapshot.timeline.pending(Action.ROLLBACK):
        requested = replace(instant, state=State.REQUESTED)
        path = snapshot.timeline_path(requested)
        data = read_optional(snapshot.storage, path)
        # A writer that does not create files atomically may have crashed before the plan was
        # written, and so before it changed anything.
        if data:
            with errors_in_file(path):
                pending.append(PendingRollback(instant, parse_rollback_plan(data)))
    return tuple(pending)


def pending_rollback_of(snapshot: Snapshot, at: str) -> PendingRollback | None:
    """Return the pending rollback of an instant, if there is one."""
    return next((p for p in pending_rollbacks(snapshot) if p.plan.instant.requested_at == at), None)


def completed_rollback_of(snapshot: Snapshot, at: str) -> Instant | None:
    """Return the completed rollback of an instant that is deleted, or only scheduled again."""
    for instant in reversed(snapshot.timeline.completed(Action.ROLLBACK)):
        if instant.requested_at < at:
            return None
        if at in load_rollback(snapshot, instant).commits:
            return instant
    return None


def load_rollback(snapshot: Snapshot, completed: Instant) -> RollbackMetadata:
    """Load what a completed rollback has recorded."""
    path = snapshot.timeline_path(completed)
    with errors_in_file(path):
        return parse_rollback(snapshot.storage.read(path))


def resume_rollbacks(
    snapshot: Snapshot,
    times: TimeGenerator,
    clock: Clock,
    *,
    by_markers: bool,
    alive: frozenset[str] = frozenset(),
    only: str | None = None,
) -> tuple[Instant, ...]:
    """Complete the rollbacks of crashed processes, or `only` that of one target; return these.

    A rollback that has had no effect, because its plan was not written or its target is still
    completed, is deleted instead: other writers may have built upon the target since. The rollback
    of a completed write whose timeline file is damaged is completed, provided that nothing was
    written on top of that write. Rollbacks in `alive` are left alone, and so is one that is only
    requested while its target is in `alive`: it asks the execution of that target to stop.
    """
    completed = []
    pending_by_instant = {pending.instant: pending for pending in pending_rollbacks(snapshot)}
    for instant in snapshot.timeline.pending(Action.ROLLBACK):
        if instant.requested_at in alive:
            continue
        pending = pending_by_instant.get(instant)
        if only is not None and (pending is None or pending.plan.instant.requested_at != only):
            continue
        if pending is None:
            _delete_rollback(snapshot, instant)
            continue
        current = _current_state(snapshot, pending.plan.instant)
        if current is not None and pending.is_request_only(alive):
            continue
        target_snapshot = _with_damaged_target(snapshot, current)
        if current is not None and _target_must_stay(target_snapshot, current):
            _delete_rollback(snapshot, pending.instant)
        else:
            files = _files_to_delete(target_snapshot, pending.plan, current, by_markers=by_markers)
            keep_plan = pending.keeps_plan
            with suppress(CompletedConcurrentlyError):
                completed.append(
                    _execute(snapshot, pending, files, times, clock, keep_plan=keep_plan)
                )
    return tuple(completed)


def _request(
    snapshot: Snapshot,
    plan: RollbackPlan,
    times: TimeGenerator,
    *,
    keep_plan: bool,
    cause: RollbackCause | None,
) -> PendingRollback:
    if cause is not None:
        plan = replace(plan, caused_by=cause.by, reason=cause.reason)
    if not keep_plan:
        # Another process that completes this rollback decides by this action whether the plan stays
        # scheduled.
        plan = replace(plan, instant=InstantRef(*action_key(plan.instant)))
    requested = Instant(times.next(), Action.ROLLBACK, State.REQUESTED)
    snapshot.storage.create(snapshot.timeline_path(requested), format_rollback_plan(plan))
    return PendingRollback(requested, plan)


def _execute(
    snapshot: Snapshot,
    pending: PendingRollback,
    files: Collection[str],
    times: TimeGenerator,
    clock: Clock,
    *,
    keep_plan: bool,
) -> Instant:
    start_ms = clock.monotonic_ms()
    storage, target = snapshot.storage, pending.plan.instant
    states = timeline_files(snapshot).get(action_key(target), [])
    _check_still_failed(snapshot, pending, states)
    inflight = replace(pending.instant, state=State.INFLIGHT)
    create_if_missing(storage, snapshot.timeline_path(inflight), b"")
    markers = list_markers(storage, target.requested_at)
    # If this process has lost the lock, other writers may have built upon the target or completed
    # this rollback. If it is paused from here on, another process may complete the rollback and
    # execute the plan again: so nothing is listed below, and the deleted files have the names that
    # the failed attempts gave them.
    times.verify_lock()
    revert_to_pending(snapshot, states)
    delete_instant(
        snapshot, target.requested_at, states, files, keep_plan=keep_plan, markers=markers
    )
    if not keep_plan:
        delete_late_completed(snapshot, target)
    took_ms = clock.monotonic_ms() - start_ms
    completed = Instant(pending.instant.requested_at, Action.ROLLBACK, completed_at=times.next())
    metadata = replace(
        rollback_metadata(storage, completed.requested_at, target, files, took_ms),
        caused_by=pending.plan.caused_by,
        reason=pending.plan.reason,
    )
    storage.create(snapshot.timeline_path(completed), format_rollback(metadata))
    return completed


def _check_still_failed(
    snapshot: Snapshot, pending: PendingRollback, states: Collection[Instant]
) -> None:
    """Delete the rollback of a pending write that has completed since the snapshot, and raise.

    The writer may use another lock than this process. Once its write is completed, it looks for
    rollbacks of the write, and takes this one for executed if it is inflight. So this check has to
    run after the rollback was requested and before it becomes inflight.
    """
    target = _current_state(snapshot, pending.plan.instant)
    was_pending = target is None or not target.is_completed
    if was_pending and pending.instant.state is State.REQUESTED:
        completed = [i for i in states if i.is_completed]
        if completed:
            _delete_rollback(snapshot, pending.instant)
            raise CompletedConcurrentlyError(
                "the write completed while it was about to be rolled back as a failed one",
                instant=str(completed[0]),
            )


def _recheck_can_rollback(snapshot: Snapshot, pending: PendingRollback, current: Instant) -> None:
    """Delete a rollback that has had no effect yet if its target must not be rolled back now."""
    try:
        check_can_rollback(snapshot, current)
    except InvalidError:
        _delete_rollback(snapshot, pending.instant)
        raise


def _with_damaged_target(snapshot: Snapshot, target: Instant | None) -> Snapshot:
    """Return the snapshot with a damaged target of a pending rollback described by its files."""
    if target is None or not target.is_completed or find_damage(snapshot, target) is None:
        return snapshot
    return with_commits_from_file_names(snapshot, target)


def _target_must_stay(snapshot: Snapshot, target: Instant) -> bool:
    """Whether the target of a rollback that no process is executing is part of the table."""
    if not target.is_completed:
        return False
    if find_damage(snapshot, target) is None:
        return all_files_present(snapshot, target)
    try:
        check_can_rollback(snapshot, target)
    except InvalidError:
        return True
    return False


def _delete_rollback(snapshot: Snapshot, rollback: Instant) -> None:
    for state in (State.INFLIGHT, State.REQUESTED):
        snapshot.storage.delete(snapshot.timeline_path(replace(rollback, state=state)))


def _planned_files(plan: RollbackPlan) -> set[str]:
    """Return paths relative to the table, whatever form the table's own path has in the plan."""
    paths = set()
    for request in plan.requests:
        for path in request.files:
            name = split_path(path)[1]
            if f"_{plan.instant.requested_at}." not in name:
                raise CorruptError(
                    "a rollback plan names a file of another instant",
                    file=path,
                    instant=plan.instant.requested_at,
                )
            paths.add(join_path(request.partition, name))
    return paths


def _files_to_delete(
    snapshot: Snapshot, plan: RollbackPlan, current: Instant | None, *, by_markers: bool
) -> set[str]:
    """Return the files in the plan of a crashed process, and those that it or the writer missed."""
    files = _planned_files(plan)
    if current is not None:
        files.update(_files_of_instant(snapshot, current, by_markers=by_markers))
    elif by_markers:
        files.update(marked_files(snapshot.storage, plan.instant.requested_at))
    return files


def _files_of_instant(snapshot: Snapshot, instant: Instant, *, by_markers: bool) -> tuple[str, ...]:
    storage, at = snapshot.storage, instant.requested_at
    if instant.is_completed:
        (commit,) = snapshot.commits([instant])
        return find_files(storage, [at], commit.partitions)[at]
    if by_markers and (instant.state is State.REQUESTED or not storage.loses_unsynced):
        marked = marked_files(storage, at)
        if marked or instant.state is State.REQUESTED:
            return marked
    # Not every writer creates markers, and a file that is left behind becomes part of the table
    # once archiving has moved the start of the active timeline past its instant.
    return find_files(storage, [at])[at]


def _current_state(snapshot: Snapshot, target: Instant | InstantRef) -> Instant | None:
    instant = snapshot.timeline.by_time.get(target.requested_at)
    return instant if instant is not None and action_key(instant) == action_key(target) else None


def _rollback_may_have_completed(current: Instant | None, *, keep_plan: bool) -> bool:
    return current is None or (
        keep_plan and current.state is State.REQUESTED and current.action.is_rewrite
    )


# What rollbacks have recorded: their targets, what caused them, and why.


_PENDING_ACTION: dict[str, str] = {action.completed_as: action for action in REWRITES}


@dataclass(frozen=True, slots=True)
class RollbackInfo:
    """A rollback, completed or pending; for a cancellable plan with its cause and reason.

    `files` is the number of files that it deleted, or is going to delete.
    """

    instant: Instant
    target: InstantRef
    caused_by: str | None = None
    reason: str | None = None
    files: int = 0
    partitions: int = 0
    took_ms: int = 0

    def __str__(self) -> str:
        target = f"{self.target.action} {self.target.requested_at}"
        return f"{target}, by {self.caused_by}: {self.reason}" if self.caused_by else target


def load_rollbacks(snapshot: Snapshot, *, archived: bool = False) -> tuple[RollbackInfo, ...]:
    """Return the rollbacks on the active timeline, oldest first; `archived` adds archived ones."""
    rollbacks = [
        RollbackInfo(
            pending.instant,
            _recorded_target(pending.plan.instant, pending.plan.caused_by),
            pending.plan.caused_by,
            pending.plan.reason,
            files=sum(len(request.files) for request in pending.plan.requests),
            partitions=len({request.partition for request in pending.plan.requests}),
        )
        for pending in pending_rollbacks(snapshot)
    ]
    for instant in snapshot.timeline.completed(Action.ROLLBACK):
        rollbacks += _infos_of_completed(instant, load_rollback(snapshot, instant))
    if archived:
        active_times = {rollback.instant.requested_at for rollback in rollbacks}
        rollbacks += [
            rollback
            for rollback in _archived_rollbacks(snapshot)
            if rollback.instant.requested_at not in active_times
        ]
    return tuple(sorted(rollbacks, key=lambda rollback: rollback.instant.requested_at))


def _archived_rollbacks(snapshot: Snapshot) -> Iterator[RollbackInfo]:
    folder = snapshot.config.history_folder
    archived = load_archived_metadata(snapshot.storage, folder, {Action.ROLLBACK}, parse_rollback)
    for instant, metadata in archived:
        yield from _infos_of_completed(instant, metadata)


def _infos_of_completed(instant: Instant, metadata: RollbackMetadata) -> list[RollbackInfo]:
    return [
        RollbackInfo(
            instant,
            _recorded_target(target, metadata.caused_by),
            metadata.caused_by,
            metadata.reason,
            files=metadata.files_deleted,
            partitions=len(metadata.partitions),
            took_ms=metadata.took_ms,
        )
        for target in metadata.instants or [InstantRef(at, "write") for at in metadata.commits]
    ]


def _recorded_target(recorded: InstantRef, caused_by: str | None) -> InstantRef:
    """Return the target of a rollback under the action that it was pending under.

    A plan that was rolled back for good is recorded with the action under which it would have
    completed.
    """
    action = recorded.action
    return InstantRef(
        recorded.requested_at, _PENDING_ACTION.get(action, action) if caused_by else action
    )
