"""Rolling back: taking the newest write, or one that failed, off the table.

Who calls holds the table's lock and has loaded the snapshot under it. The order of a rollback makes
every point at which the process may die a good one: its plan is on the timeline before anything is
touched; readers stop seeing the instant in one step; its data files go before what tells of them;
and the rollback completes last, so that until then it is found and ended by the next process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from lakewright.clock import Clock
from lakewright.errors import ConflictError, CorruptError, InvalidError, found_in
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
from lakewright.table.archived_timeline import archived_times_in, load_entries
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
from lakewright.table.markers import marked_files
from lakewright.table.options import FailedWritesPolicy
from lakewright.table.properties import read_optional
from lakewright.table.snapshot import Snapshot, slices_before_cleaning
from lakewright.table.time_generator import TimeGenerator


def require_write(instant: Instant) -> None:
    """InvalidError for what is neither a write nor a service."""
    if not instant.is_write:
        raise InvalidError("only writes and table services are rolled back", instant=str(instant))


def check_can_rollback(snapshot: Snapshot, instant: Instant) -> None:
    """InvalidError for an instant that must not be rolled back as the table is now."""
    timeline = snapshot.timeline
    require_write(instant)
    if timeline.by_time.get(instant.requested_at) != instant:
        raise InvalidError(
            "this is not how the instant stands on the timeline", instant=str(instant)
        )
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
    if snapshot.timeline.plans.get(at) == "compaction":
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

    A log file does not: without them it belongs to the base file before, as do those that they
    were made of.
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
    """Refuse where the table without this instant would lack rows it had before."""
    rest = Timeline(tuple(i for i in snapshot.timeline if i != instant))
    if snapshot.archived_hidden_by(rest):
        raise InvalidError(
            "the last write on the active timeline that no savepoint holds cannot be rolled back: "
            "readers would take archived ones for uncommitted",
            instant=str(instant),
        )
    at = instant.requested_at
    if rest.is_archived(at):
        raise InvalidError(
            "the first write on the active timeline cannot be rolled back under later ones: "
            "readers would take files that it leaves for archived",
            instant=str(instant),
        )
    if at in archived_times_in(snapshot.storage, snapshot.config.history_folder, at):
        raise InvalidError(
            "archiving that was interrupted has this write in history already, which keeps it",
            instant=str(instant),
        )
    _, lost = slices_before_cleaning(
        snapshot, TimelineView(rest), commit.partitions, since=instant.requested_at
    )
    missing = [name for group in sorted(commit.file_groups() & lost.keys()) for name in lost[group]]
    if missing:
        raise InvalidError(
            "what this write replaced was cleaned, or is about to be: rolling it back would lose "
            "rows",
            instant=str(instant),
            files=missing,
        )


# ------------------------------------------------------------------------------------------------
# Which instants may be rolled back: those without which the table is what it was before them.


@dataclass(frozen=True, slots=True)
class PendingRollback:
    """A rollback that was begun and has not ended."""

    instant: Instant
    plan: RollbackPlan

    @property
    def keeps_plan(self) -> bool:
        """Whether its target, a compaction or clustering, stays scheduled."""
        return self.plan.instant.action in REWRITES

    def is_request_only(self, alive: frozenset[str]) -> bool:
        """Whether it has done nothing yet, and its target is to take itself back."""
        return self.instant.state is State.REQUESTED and self.plan.instant.requested_at in alive


class CompletedConcurrentlyError(ConflictError):
    """A write that was to be rolled back while it was pending has completed, and stays."""


def failed_writes(
    timeline: Timeline, policy: FailedWritesPolicy, alive: frozenset[str]
) -> tuple[Instant, ...]:
    """The pending writes to roll back, newest first; `alive` have a heartbeat that beats.

    Compactions and clusterings are never among them: who runs these rolls them back. EAGER and LAZY
    differ in when this is asked, not in the answer: a writer that shows that it lives is spared
    even where real Hudi, with EAGER, would not look for its heartbeat.
    """
    if policy is FailedWritesPolicy.NEVER:
        return ()
    pending = timeline.pending(*WRITE_ACTIONS)
    return tuple(i for i in reversed(pending) if i.requested_at not in alive)


def plan_rollback(snapshot: Snapshot, instant: Instant, *, by_markers: bool) -> RollbackPlan:
    """Which files to delete to take back an instant of the snapshot's timeline.

    A pending one is searched by its markers, or by listing the table if there are none or a power
    cut may have taken some; a completed one by listing the partitions it wrote. Raises InvalidError

    - for an instant that a savepoint holds;
    - for a completed write under a later one, completed or pending, as real Hudi does; a pending
      compaction or clustering counts only if it is to rewrite a file group of this instant, and
      later log files do not keep a compaction in place;
    - for a completed write whose predecessor's files were cleaned: rows would be lost.
    """
    check_can_rollback(snapshot, instant)
    files = _files_of(snapshot, instant, by_markers=by_markers)
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
    """Take back an instant; gives the completed rollback. May be repeated after a crash.

    With `keep_plan` a compaction, log compaction or clustering stays scheduled. A rollback of the
    same instant that somebody began is ended; one that was ended already is given once more.
    `cause` is kept with one that begins here.

    Raises:
        CompletedMeanwhileError: the instant was pending in the snapshot, and is so no more.
    """
    require_write(target)
    current = _current(snapshot, target)
    began = pending_rollback_of(snapshot, target.requested_at)
    if began is not None:
        if current is not None and current.is_completed:
            snapshot = _knowing(snapshot, current)
            _check_again(snapshot, began, current)
        files = _files_to_delete(snapshot, began.plan, current, by_markers=by_markers)
        return _end(snapshot, began, files, times, clock, keep_plan=keep_plan)
    if _may_have_completed(current, keep_plan=keep_plan):
        ended = completed_rollback_of(snapshot, target.requested_at)
        if ended is not None:
            return ended
    if current is None:
        raise InvalidError("there is no such instant on the timeline", instant=str(target))
    plan = plan_rollback(snapshot, current, by_markers=by_markers)
    began = _begin(snapshot, plan, times, keep_plan=keep_plan, cause=cause)
    return _end(snapshot, began, _planned_files(plan), times, clock, keep_plan=keep_plan)


def request_rollback(
    snapshot: Snapshot,
    target: Instant,
    times: TimeGenerator,
    *,
    by_markers: bool,
    cause: RollbackCause,
) -> Instant:
    """Say that a pending plan is to go, and leave it there; gives the rollback that is requested.

    From here on nobody begins to execute the plan, and who is executing it completes nothing. Who
    ends the rollback takes the plan back; one that somebody has requested already stands.
    """
    began = pending_rollback_of(snapshot, target.requested_at)
    if began is None:
        plan = plan_rollback(snapshot, target, by_markers=by_markers)
        began = _begin(snapshot, plan, times, keep_plan=False, cause=cause)
    return began.instant


def pending_rollbacks(snapshot: Snapshot) -> tuple[PendingRollback, ...]:
    """The rollbacks that were begun and have not ended, oldest first."""
    found = []
    for instant in snapshot.timeline.pending(Action.ROLLBACK):
        requested = replace(instant, state=State.REQUESTED)
        path = snapshot.timeline_path(requested)
        data = read_optional(snapshot.storage, path)
        # A writer that does not create files in one step may have died before the plan was in it,
        # and so before it did anything.
        if data:
            with found_in(path):
                found.append(PendingRollback(instant, parse_rollback_plan(data)))
    return tuple(found)


def pending_rollback_of(snapshot: Snapshot, at: str) -> PendingRollback | None:
    """The rollback of an instant that was begun and has not ended, if there is one."""
    return next((p for p in pending_rollbacks(snapshot) if p.plan.instant.requested_at == at), None)


def completed_rollback_of(snapshot: Snapshot, at: str) -> Instant | None:
    """The completed rollback of an instant that is gone, or is a mere schedule again."""
    for instant in reversed(snapshot.timeline.completed(Action.ROLLBACK)):
        if instant.requested_at < at:
            return None
        if at in load_rollback(snapshot, instant).commits:
            return instant
    return None


def load_rollback(snapshot: Snapshot, completed: Instant) -> RollbackMetadata:
    """What a completed rollback has recorded."""
    path = snapshot.timeline_path(completed)
    with found_in(path):
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
    """End the rollbacks of dead writers, or `only` that of one target; gives those that completed.

    One that has had no effect, as its plan was not written or its target is still completed, is
    withdrawn: others may have written on top of that since. That of a completed write whose file is
    damaged is ended, while nothing was written on top. Those in `alive` are left alone, and so is
    one that is only requested while its target is among them: it asks that one to stop.
    """
    ended = []
    planned = {began.instant: began for began in pending_rollbacks(snapshot)}
    for instant in snapshot.timeline.pending(Action.ROLLBACK):
        if instant.requested_at in alive:
            continue
        began = planned.get(instant)
        if only is not None and (began is None or began.plan.instant.requested_at != only):
            continue
        if began is None:
            _delete_rollback(snapshot, instant)
            continue
        current = _current(snapshot, began.plan.instant)
        if current is not None and began.is_request_only(alive):
            continue
        known = _knowing(snapshot, current)
        if current is not None and _target_must_stay(known, current):
            _delete_rollback(snapshot, began.instant)
        else:
            files = _files_to_delete(known, began.plan, current, by_markers=by_markers)
            keep_plan = began.keeps_plan
            with suppress(CompletedConcurrentlyError):
                ended.append(_end(snapshot, began, files, times, clock, keep_plan=keep_plan))
    return tuple(ended)


def _begin(
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
        # Who ends this rollback in our place tells by this word whether a schedule stays.
        plan = replace(plan, instant=InstantRef(*action_key(plan.instant)))
    requested = Instant(times.next(), Action.ROLLBACK, State.REQUESTED)
    snapshot.storage.create(snapshot.timeline_path(requested), format_rollback_plan(plan))
    return PendingRollback(requested, plan)


def _end(
    snapshot: Snapshot,
    began: PendingRollback,
    files: Collection[str],
    times: TimeGenerator,
    clock: Clock,
    *,
    keep_plan: bool,
) -> Instant:
    start = clock.monotonic_ms()
    storage, target = snapshot.storage, began.plan.instant
    states = timeline_files(snapshot).get(action_key(target), [])
    _check_still_failed(snapshot, began, states)
    inflight = replace(began.instant, state=State.INFLIGHT)
    create_if_missing(storage, snapshot.timeline_path(inflight), b"")
    # Who lost the lock on the way may find the target built upon, or this rollback ended.
    times.verify_lock()
    revert_to_pending(snapshot, states)
    delete_instant(snapshot, target.requested_at, states, files, keep_plan=keep_plan)
    if not keep_plan:
        delete_late_completed(snapshot, target)
    took_ms = clock.monotonic_ms() - start
    done = Instant(began.instant.requested_at, Action.ROLLBACK, completed_at=times.next())
    metadata = replace(
        rollback_metadata(storage, done.requested_at, target, files, took_ms),
        caused_by=began.plan.caused_by,
        reason=began.plan.reason,
    )
    storage.create(snapshot.timeline_path(done), format_rollback(metadata))
    return done


def _check_still_failed(
    snapshot: Snapshot, began: PendingRollback, states: Collection[Instant]
) -> None:
    """Withdraw the rollback of a pending write that has completed since the snapshot.

    Its writer may have another lock than we. It looks for rollbacks of its write once the write is
    completed, and takes this one for carried out if it is inflight: so this is to be asked after
    the rollback was requested, and before.
    """
    before = _current(snapshot, began.plan.instant)
    was_pending = before is None or not before.is_completed
    if was_pending and began.instant.state is State.REQUESTED:
        completed = [i for i in states if i.is_completed]
        if completed:
            _delete_rollback(snapshot, began.instant)
            raise CompletedConcurrentlyError(
                "the write completed while it was about to be rolled back as a failed one",
                instant=str(completed[0]),
            )


def _check_again(snapshot: Snapshot, began: PendingRollback, current: Instant) -> None:
    """Withdraw a rollback that has had no effect yet and must not have one any more."""
    try:
        check_can_rollback(snapshot, current)
    except InvalidError:
        _delete_rollback(snapshot, began.instant)
        raise


def _knowing(snapshot: Snapshot, target: Instant | None) -> Snapshot:
    """The snapshot that knows a damaged target, of a rollback which was begun, by its files."""
    if target is None or not target.is_completed or find_damage(snapshot, target) is None:
        return snapshot
    return with_commits_from_file_names(snapshot, target)


def _target_must_stay(snapshot: Snapshot, target: Instant) -> bool:
    """Whether the target of a rollback that nobody is ending is part of the table."""
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
    """The paths relative to the table, however the table's own path was written."""
    found = set()
    for request in plan.requests:
        for path in request.files:
            name = split_path(path)[1]
            if f"_{plan.instant.requested_at}." not in name:
                raise CorruptError(
                    "a rollback plan names a file of another instant",
                    file=path,
                    instant=plan.instant.requested_at,
                )
            found.add(join_path(request.partition, name))
    return found


def _files_to_delete(
    snapshot: Snapshot, plan: RollbackPlan, current: Instant | None, *, by_markers: bool
) -> set[str]:
    """What the plan of a dead process names, and what that process or the writer missed."""
    files = _planned_files(plan)
    if current is not None:
        files.update(_files_of(snapshot, current, by_markers=by_markers))
    elif by_markers:
        files.update(marked_files(snapshot.storage, plan.instant.requested_at))
    return files


def _files_of(snapshot: Snapshot, instant: Instant, *, by_markers: bool) -> tuple[str, ...]:
    storage, at = snapshot.storage, instant.requested_at
    if instant.is_completed:
        (commit,) = snapshot.commits([instant])
        return find_files(storage, [at], commit.partitions)[at]
    if by_markers and (instant.state is State.REQUESTED or not storage.loses_unsynced):
        marked = marked_files(storage, at)
        if marked or instant.state is State.REQUESTED:
            return marked
    # Not every writer makes markers, and a file that stays behind becomes a part of the table once
    # archiving has passed its instant.
    return find_files(storage, [at])[at]


def _current(snapshot: Snapshot, target: Instant | InstantRef) -> Instant | None:
    found = snapshot.timeline.by_time.get(target.requested_at)
    return found if found is not None and action_key(found) == action_key(target) else None


def _may_have_completed(current: Instant | None, *, keep_plan: bool) -> bool:
    return current is None or (
        keep_plan and current.state is State.REQUESTED and current.action.is_rewrite
    )


# ------------------------------------------------------------------------------------------------
# What rollbacks tell: what they take back, by what they were caused, and why.


_PLANNED_NAME: dict[str, str] = {action.completed_as: action for action in REWRITES}


@dataclass(frozen=True, slots=True)
class RollbackInfo:
    """A rollback, ended or not; who took a cancellable plan back is told, and why.

    `files` is how many it deleted, or is going to.
    """

    instant: Instant
    target: InstantRef
    caused_by: str | None = None
    reason: str | None = None
    files: int = 0
    partitions: int = 0
    took_ms: int = 0

    def __str__(self) -> str:
        what = f"{self.target.action} {self.target.requested_at}"
        return f"{what}, by {self.caused_by}: {self.reason}" if self.caused_by else what


def load_rollbacks(snapshot: Snapshot, *, archived: bool = False) -> tuple[RollbackInfo, ...]:
    """The rollbacks on the active timeline, oldest first; `archived` adds those in history."""
    found = [
        RollbackInfo(
            began.instant,
            _target(began.plan.instant, began.plan.caused_by),
            began.plan.caused_by,
            began.plan.reason,
            files=sum(len(request.files) for request in began.plan.requests),
            partitions=len({request.partition for request in began.plan.requests}),
        )
        for began in pending_rollbacks(snapshot)
    ]
    for instant in snapshot.timeline.completed(Action.ROLLBACK):
        found += _completed_info(instant, load_rollback(snapshot, instant))
    if archived:
        known = {each.instant.requested_at for each in found}
        found += [each for each in _archived(snapshot) if each.instant.requested_at not in known]
    return tuple(sorted(found, key=lambda each: each.instant.requested_at))


def _archived(snapshot: Snapshot) -> Iterator[RollbackInfo]:
    folder = snapshot.config.history_folder
    for entry in load_entries(snapshot.storage, folder, with_content=True):
        if entry.action == "rollback" and entry.metadata:
            instant = Instant(
                entry.requested_at, Action(entry.action), completed_at=entry.completed_at
            )
            with found_in(f"{folder}: {entry.requested_at}"):
                yield from _completed_info(instant, parse_rollback(entry.metadata))


def _completed_info(instant: Instant, done: RollbackMetadata) -> list[RollbackInfo]:
    return [
        RollbackInfo(
            instant,
            _target(target, done.caused_by),
            done.caused_by,
            done.reason,
            files=done.files_deleted,
            partitions=len(done.partitions),
            took_ms=done.took_ms,
        )
        for target in done.instants or [InstantRef(at, "write") for at in done.commits]
    ]


def _target(recorded: InstantRef, caused_by: str | None) -> InstantRef:
    """A plan that goes for good is recorded by the word of what it would have become."""
    action = recorded.action
    return InstantRef(
        recorded.requested_at, _PLANNED_NAME.get(action, action) if caused_by else action
    )
