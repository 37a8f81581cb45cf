"""Savepoints: a state of the table that cleans, archiving and rollbacks leave alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from lakewright.clock import Clock
from lakewright.errors import ConflictError, CorruptError, InvalidError, found_in
from lakewright.format.timeline_metadata import (
    format_restore,
    format_restore_plan,
    format_savepoint,
    parse_restore_plan,
    parse_savepoint,
)
from lakewright.model.commit_metadata import (
    RestoreMetadata,
    RollbackMetadata,
    SavedPartition,
    SavepointMetadata,
)
from lakewright.model.file_group import parse_data_file
from lakewright.model.instant import Action, Instant, InstantTime, State
from lakewright.model.plans import InstantRef, RestorePlan
from lakewright.model.timeline import Timeline
from lakewright.storage.base import join_path
from lakewright.table.archived_timeline import archived_times_in
from lakewright.table.damaged_commits import (
    find_damage,
    require_readable,
    with_commits_from_file_names,
)
from lakewright.table.feature_checks import check_writable
from lakewright.table.instant_files import (
    action_key,
    create_if_missing,
    delete_instant,
    find_files,
    revert_to_pending,
    rollback_metadata,
    timeline_files,
)
from lakewright.table.locks.base import held
from lakewright.table.properties import drop_metadata_table, read_optional
from lakewright.table.rollback import (
    check_can_rollback,
    completed_rollback_of,
    pending_rollback_of,
    rollback_locked,
)
from lakewright.table.snapshot import (
    Snapshot,
    files_of_slice,
    load_snapshot,
    slices_before_cleaning,
)
from lakewright.table.time_generator import TimeGenerator
from lakewright.table.transaction import WriterContext

_SAVEPOINT = Action.SAVEPOINT


def create_savepoint_locked(
    snapshot: Snapshot,
    instant: InstantTime,
    times: TimeGenerator,
    clock: Clock,
    *,
    user: str = "",
    comment: str = "",
) -> Instant:
    """Save the table as it was after the write requested at `instant`; gives the savepoint.

    The caller holds the table's lock and has loaded the snapshot under it. Saving what is saved
    gives the savepoint that is there. InvalidError unless the write is completed, on the active
    timeline alone, and all its state is still there; and if only saved writes would be left there
    while later ones than the oldest of them are archived.
    """
    saved = find_savepoint(snapshot, instant)
    if saved is not None:
        return saved
    metadata = _plan_savepoint(snapshot, instant, clock, user=user, comment=comment)
    inflight = Instant(instant, _SAVEPOINT, State.INFLIGHT)
    create_if_missing(snapshot.storage, snapshot.timeline_path(inflight), b"")
    done = Instant(instant, _SAVEPOINT, completed_at=times.next())
    snapshot.storage.create(snapshot.timeline_path(done), format_savepoint(metadata))
    return done


def delete_savepoint_locked(snapshot: Snapshot, instant: InstantTime) -> None:
    """Give up a savepoint, or one that was begun; InvalidError if there is none.

    The caller holds the table's lock and has loaded the snapshot under it. One behind which
    archiving went on must stay: without it the active timeline would begin with its commit, and
    what was archived since would count as never committed.
    """
    found = [i for i in snapshot.timeline if i.action == _SAVEPOINT and i.requested_at == instant]
    if not found:
        raise InvalidError("there is no savepoint of this instant", instant=instant)
    if max(snapshot.archived_times, default="") > instant:
        raise InvalidError(
            "later commits than the saved one are archived, so the savepoint must stay",
            instant=instant,
        )
    for state in (*found, Instant(instant, _SAVEPOINT, State.INFLIGHT)):
        snapshot.storage.delete(snapshot.timeline_path(state))


def find_savepoint(snapshot: Snapshot, instant: InstantTime) -> Instant | None:
    """The completed savepoint of an instant, if there is one."""
    done = snapshot.timeline.completed(_SAVEPOINT)
    return next((i for i in done if i.requested_at == instant), None)


def _plan_savepoint(
    snapshot: Snapshot, instant: InstantTime, clock: Clock, *, user: str, comment: str
) -> SavepointMetadata:
    _check_completed(snapshot, instant)
    view = snapshot.view(requested_until=instant)
    slices, lost = slices_before_cleaning(snapshot, view, since=instant)
    if lost:
        raise InvalidError(
            "files of this instant's state were cleaned, or are about to be",
            instant=instant,
            files=sorted(join_path(group[0], name) for group in lost for name in lost[group]),
        )
    files: dict[str, list[str]] = {}
    for found in slices:
        files.setdefault(found.partition, []).extend(file.name for file in files_of_slice(found))
    return SavepointMetadata(
        saved_by=user,
        saved_at=clock.now_ms(),
        comments=comment,
        partitions={
            partition: SavedPartition(partition=partition, files=tuple(names))
            for partition, names in files.items()
        },
    )


def _check_completed(snapshot: Snapshot, instant: InstantTime) -> None:
    found = snapshot.timeline.by_time.get(instant)
    if found is None:
        raise InvalidError("there is no such write on the active timeline", instant=instant)
    if not found.is_completed:
        raise InvalidError("a pending write cannot be saved", instant=str(found))
    _check_archived(snapshot, instant)
    earliest = snapshot.earliest_retained()
    if earliest is not None and instant < earliest:
        raise InvalidError(
            "the table was cleaned past this instant", instant=instant, earliest_retained=earliest
        )


def _check_archived(snapshot: Snapshot, instant: InstantTime) -> None:
    held = archived_times_in(snapshot.storage, snapshot.config.history_folder, instant)
    if held:
        raise InvalidError(
            "archiving that was interrupted has this write, or later ones, in history already: "
            "save a later write",
            instant=instant,
            archived=held,
        )
    saved = Instant(instant, _SAVEPOINT)
    forgotten = snapshot.archived_hidden_by(Timeline((*snapshot.timeline, saved)))
    if forgotten:
        raise InvalidError(
            "only saved writes would be left on the active timeline, and readers would take "
            "archived ones for uncommitted: write to the table first",
            instant=instant,
            archived=forgotten,
        )


# ------------------------------------------------------------------------------------------------
# Restoring: taking all that came after a savepoint off the table.
#
# Who calls holds the table's lock and has loaded the snapshot under it. Readers that come while a
# restore is under way see the table as it was after one of the writes that are being taken back.


_RESTORE = Action.RESTORE


@dataclass(frozen=True, slots=True)
class PendingRestore:
    """A restore that was begun and has not ended."""

    instant: Instant
    plan: RestorePlan


def plan_restore(snapshot: Snapshot, savepoint: str) -> RestorePlan:
    """Which instants to take back, newest first, to come to the state that a savepoint holds.

    These are all writes and services that were requested later, and those requested earlier that
    took effect only after the savepoint was made, which holds none of their files. Cleans and
    rollbacks stay. InvalidError if there is no such savepoint, if another savepoint or history
    holds a write that would have to go, or if only saved writes would be left on the active
    timeline while later ones than the oldest of them are archived; CorruptError if a saved file is
    missing.
    """
    saved = find_savepoint(snapshot, savepoint)
    if saved is None:
        raise InvalidError("there is no savepoint of this instant", instant=savepoint)
    later = [i for i in snapshot.timeline if i.is_write and _is_after(i, saved)]
    held = sorted(snapshot.timeline.savepointed & {i.requested_at for i in later})
    if held:
        raise InvalidError(
            "later savepoints hold writes that would be taken back: delete these savepoints first",
            savepoint=savepoint,
            later=held,
        )
    _check_restorable_archive(snapshot, savepoint)
    _check_remembered(snapshot, savepoint, later)
    _check_saved_files(snapshot, saved)
    return RestorePlan(
        instants=tuple(InstantRef(i.requested_at, i.action) for i in reversed(later)),
        savepoint=savepoint,
    )


def restore_locked(
    snapshot: Snapshot, savepoint: str, times: TimeGenerator, clock: Clock
) -> Instant:
    """Take the table back to a savepoint; gives the completed restore. May be repeated.

    A restore to the same savepoint that somebody began is ended; if others have written since, it
    begins anew and takes their writes back as well.
    """
    began = pending_restore(snapshot)
    if began is not None and began.plan.savepoint != savepoint:
        raise InvalidError(
            "a restore to another savepoint was interrupted: run that one first",
            savepoint=began.plan.savepoint,
        )
    if began is not None and not _written_since(snapshot, began):
        return _end(snapshot, began, times, clock)
    plan = plan_restore(snapshot, savepoint)
    if began is not None:
        plan = _with_instants_of(plan, began.plan)
    elif not plan.instants and (last := _last_restore(snapshot, savepoint)) is not None:
        return last
    return _end(snapshot, _begin(snapshot, plan, times), times, clock)


def resume_restore(snapshot: Snapshot, times: TimeGenerator, clock: Clock) -> Instant | None:
    """End a restore whose process died, before anything else is done; None if there is none.

    InvalidError if others have written since: the table is between two states, and only who asked
    for the restore can say whether it is still wanted.
    """
    began = pending_restore(snapshot)
    if began is None:
        _delete_other_restores(snapshot, None)
        return None
    since = _written_since(snapshot, began)
    if since:
        raise InvalidError(
            "a restore was interrupted and the table was written since: run the restore again",
            savepoint=began.plan.savepoint,
            writes=since,
        )
    return _end(snapshot, began, times, clock)


def pending_restore(snapshot: Snapshot) -> PendingRestore | None:
    """The restore that was begun and has not ended, the newest if there are several."""
    for instant in reversed(snapshot.timeline.pending(_RESTORE)):
        plan = _plan_of(snapshot, instant)
        if plan is not None:
            return PendingRestore(instant, plan)
    return None


def _plan_of(snapshot: Snapshot, instant: Instant) -> RestorePlan | None:
    path = snapshot.timeline_path(Instant(instant.requested_at, _RESTORE, State.REQUESTED))
    data = read_optional(snapshot.storage, path)
    if not data:
        return None
    with found_in(path):
        return parse_restore_plan(data)


def _begin(snapshot: Snapshot, plan: RestorePlan, times: TimeGenerator) -> PendingRestore:
    requested = Instant(times.next(), _RESTORE, State.REQUESTED)
    snapshot.storage.create(snapshot.timeline_path(requested), format_restore_plan(plan))
    return PendingRestore(requested, plan)


def _end(snapshot: Snapshot, began: PendingRestore, times: TimeGenerator, clock: Clock) -> Instant:
    start = clock.monotonic_ms()
    storage, plan = snapshot.storage, began.plan
    inflight = replace(began.instant, state=State.INFLIGHT)
    create_if_missing(storage, snapshot.timeline_path(inflight), b"")
    states = timeline_files(snapshot)
    # By name in the whole table: also an instant that is gone from the timeline may have left files
    # if somebody else has taken it off since this restore began.
    files = find_files(storage, {ref.requested_at for ref in plan.instants})
    for ref in plan.instants:
        revert_to_pending(snapshot, states.get(action_key(ref), ()))
    for ref in plan.instants:
        # What was scheduled when the savepoint was made is scheduled again.
        keep_plan = ref.requested_at < (plan.savepoint or "")
        delete_instant(
            snapshot,
            ref.requested_at,
            states.get(action_key(ref), ()),
            files[ref.requested_at],
            keep_plan=keep_plan,
        )
    _delete_other_restores(snapshot, began)
    took_ms = clock.monotonic_ms() - start
    done = Instant(began.instant.requested_at, _RESTORE, completed_at=times.next())
    metadata = RestoreMetadata(
        started_at=done.requested_at,
        took_ms=took_ms,
        commits=tuple(ref.requested_at for ref in plan.instants),
        rollbacks={
            ref.requested_at: (_rolled_back(snapshot, done, ref, files[ref.requested_at]),)
            for ref in plan.instants
        },
        instants=plan.instants,
    )
    storage.create(snapshot.timeline_path(done), format_restore(metadata))
    return done


def _rolled_back(
    snapshot: Snapshot, done: Instant, ref: InstantRef, files: tuple[str, ...]
) -> RollbackMetadata:
    # Real Hudi gives each of these an instant for a while. Here they have none that could be left
    # behind, and so all began with the restore.
    return rollback_metadata(snapshot.storage, done.requested_at, ref, files, 0)


def _delete_other_restores(snapshot: Snapshot, began: PendingRestore | None) -> None:
    """Forget attempts before this one: all their instants are in its plan, or they have no plan."""
    for other in snapshot.timeline.pending(_RESTORE):
        plan = _plan_of(snapshot, other)
        done = began is not None and other.requested_at == began.instant.requested_at
        same = began is not None and plan is not None and plan.savepoint == began.plan.savepoint
        if plan is None or (same and not done):
            for state in (State.INFLIGHT, State.REQUESTED):
                snapshot.storage.delete(snapshot.timeline_path(replace(other, state=state)))


def _with_instants_of(plan: RestorePlan, other: RestorePlan) -> RestorePlan:
    """A plan that also finds the files of instants which another one was about to delete."""
    refs = {ref.requested_at: ref for ref in (*other.instants, *plan.instants)}
    newest_first = sorted(refs.values(), key=lambda ref: ref.requested_at, reverse=True)
    return replace(plan, instants=tuple(newest_first))


def _is_after(instant: Instant, saved: Instant) -> bool:
    if instant.requested_at > saved.requested_at:
        return True
    return (instant.completed_at or "") > (saved.completed_at or "")


def _written_since(snapshot: Snapshot, began: PendingRestore) -> list[str]:
    at = began.instant.requested_at
    return [str(i) for i in snapshot.timeline if i.is_write and i.requested_at > at]


def _last_restore(snapshot: Snapshot, savepoint: str) -> Instant | None:
    """The newest restore, if it was to this savepoint."""
    done = snapshot.timeline.completed(_RESTORE)
    plan = _plan_of(snapshot, done[-1]) if done else None
    return done[-1] if plan is not None and plan.savepoint == savepoint else None


def _check_restorable_archive(snapshot: Snapshot, savepoint: str) -> None:
    held = archived_times_in(snapshot.storage, snapshot.config.history_folder, savepoint)
    gone = [at for at in held if at > savepoint]
    if gone:
        raise InvalidError(
            "writes after the savepoint were archived and cannot be taken back any more",
            savepoint=savepoint,
            archived=gone,
        )


def _check_remembered(snapshot: Snapshot, savepoint: str, later: Collection[Instant]) -> None:
    rest = Timeline(tuple(i for i in snapshot.timeline if i not in later))
    forgotten = snapshot.archived_hidden_by(rest)
    if forgotten:
        raise InvalidError(
            "only saved writes would be left on the active timeline, and readers would take "
            "archived ones for uncommitted",
            savepoint=savepoint,
            archived=forgotten,
        )


def _check_saved_files(snapshot: Snapshot, saved: Instant) -> None:
    path = snapshot.timeline_path(saved)
    with found_in(path):
        partitions = parse_savepoint(snapshot.storage.read(path)).partitions
    listed = snapshot.storage.list_many(partitions)
    there = {status.path for files in listed.values() for status in files}
    missing = [
        join_path(partition, name)
        for partition, part in partitions.items()
        for name in part.files
        if join_path(partition, name) not in there and _is_saved(name, saved)
    ]
    if missing:
        raise CorruptError("files that a savepoint holds are missing", file=path, missing=missing)


def _is_saved(name: str, saved: Instant) -> bool:
    # Real Hudi names log files of later writes too, which an earlier restore has taken away.
    file = parse_data_file(name)
    return file is not None and file.instant <= saved.requested_at


# ------------------------------------------------------------------------------------------------
# Rollback, savepoint and restore as one call each: under the table's lock, on the table as it is.
#
# What a table has must be maintained by who changes it, so a metadata table goes first.


@contextmanager
def locked_table(
    writer: WriterContext, check: Callable[[Snapshot], object] | None = None
) -> Iterator[tuple[Snapshot, TimeGenerator]]:
    """The table under its lock, ready to be changed, and new times for its timeline.

    `check` may refuse before anything has changed.
    """
    lock = writer.new_lock()
    with held(lock):
        snapshot = load_snapshot(writer.storage)
        check_writable(snapshot.config)
        if check is not None:
            check(snapshot)
        config = drop_metadata_table(writer.storage, snapshot.config)
        times = writer.times(config, snapshot.timeline, lock)
        yield replace(snapshot, config=config), times


def rollback_instant(
    writer: WriterContext, instant: InstantTime, *, keep_plan: bool = False, force: bool = False
) -> Instant:
    """Take back a write or a service, completed or not; gives the rollback.

    With `keep_plan` the plan of a service that is being executed stays. With `force` a completed
    write whose file on the timeline is empty or cut off goes as well: its data files are found by
    name. All other conditions are the same.

    Raises:
        CorruptError: the completed file of the write is damaged, and `force` was not given.
        ConflictError: it is damaged, and its writer has a heartbeat that beats.
    """

    def target(snapshot: Snapshot) -> Instant:
        found = snapshot.timeline.by_time.get(instant)
        if found is not None:
            return found
        if pending_rollback_of(snapshot, instant) or completed_rollback_of(snapshot, instant):
            return Instant(instant, Action.COMMIT, State.INFLIGHT)
        others = [str(i) for i in snapshot.timeline if i.requested_at == instant]
        if others:
            raise InvalidError("only writes and table services are rolled back", instant=others[0])
        raise InvalidError("there is no such instant on the timeline", instant=instant)

    def known(snapshot: Snapshot, found: Instant) -> Snapshot:
        return (
            with_commits_from_file_names(snapshot, found)
            if force and found.is_completed
            else snapshot
        )

    def check(snapshot: Snapshot) -> None:
        found = target(snapshot)
        if found.is_completed and pending_rollback_of(snapshot, instant) is None:
            if force:
                _require_dead(writer, snapshot, found)
            else:
                require_readable(snapshot, found)
            check_can_rollback(known(snapshot, found), found)

    with locked_table(writer, check) as (snapshot, times):
        by_markers = writer.transaction.rollback_by_markers
        found = target(snapshot)
        return rollback_locked(
            known(snapshot, found),
            found,
            times,
            writer.clock,
            by_markers=by_markers,
            keep_plan=keep_plan,
        )


def _require_dead(writer: WriterContext, snapshot: Snapshot, write: Instant) -> None:
    """Not every writer creates a file in one step: who is completing has an empty one for a while.

    A whole file needs no heartbeat any more, whatever is left of one.
    """
    if find_damage(snapshot, write) is not None and writer.live_instants([write.requested_at]):
        raise ConflictError(
            "the completed file of this write is damaged, and its writer has a heartbeat: it may "
            "be writing the file. Wait until the heartbeat has expired",
            instant=str(write),
        )


def create_savepoint(
    writer: WriterContext, instant: InstantTime, *, user: str, comment: str
) -> Instant:
    """Keep the table as it was after a write."""

    def check(snapshot: Snapshot) -> None:
        if instant not in snapshot.timeline.by_time:
            raise InvalidError("there is no such write on the active timeline", instant=instant)

    with locked_table(writer, check) as (snapshot, times):
        return create_savepoint_locked(
            snapshot, instant, times, writer.clock, user=user, comment=comment
        )


def delete_savepoint(writer: WriterContext, instant: InstantTime) -> None:
    """Let the files of a savepoint be cleaned."""
    with writer.locked():
        snapshot = load_snapshot(writer.storage)
        check_writable(snapshot.config)
        delete_savepoint_locked(snapshot, instant)


def restore(writer: WriterContext, instant: InstantTime) -> Instant:
    """Take the table back to a savepoint."""

    def check(snapshot: Snapshot) -> None:
        if find_savepoint(snapshot, instant) is None:
            saved = sorted(snapshot.timeline.savepointed)
            raise InvalidError(
                "there is no savepoint of this instant", instant=instant, savepoints=saved
            )

    with locked_table(writer, check) as (snapshot, times):
        return restore_locked(snapshot, instant, times, writer.clock)
