"""Savepoints and restores, and the public operations for savepoint, restore and rollback.

A savepoint is a state of the table that cleans, archiving and rollbacks leave alone; a restore
removes everything that came after a savepoint from the table.

The sections: creating and deleting savepoints; restoring, where readers that come while a restore
is running see the table as it was after one of the writes that are being rolled back; and the
public operations, which take the table's lock and load the table. The functions of the first two
sections require that the caller holds the table's lock and has loaded the snapshot under it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from lakewright.clock import Clock
from lakewright.errors import ConflictError, CorruptError, InvalidError, errors_in_file
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
from lakewright.table.cleaned_files import files_of_slice, slices_before_cleaning
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
from lakewright.table.locks.base import acquired
from lakewright.table.properties import drop_metadata_table, read_optional
from lakewright.table.rollback import (
    check_can_rollback,
    completed_rollback_of,
    pending_rollback_of,
    rollback_locked,
)
from lakewright.table.snapshot import Snapshot, load_snapshot
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
    """Save the table as it was after the write requested at `instant`; return the savepoint.

    The caller holds the table's lock and has loaded the snapshot under it. If the write has a
    savepoint already, that one is returned. InvalidError unless the write is completed, is only on
    the active timeline, and all files of its state still exist; and if only savepointed writes
    would be left on the active timeline while later ones than the oldest of them are archived.
    """
    existing = find_savepoint(snapshot, instant)
    if existing is not None:
        return existing
    metadata = _plan_savepoint(snapshot, instant, clock, user=user, comment=comment)
    inflight = Instant(instant, _SAVEPOINT, State.INFLIGHT)
    create_if_missing(snapshot.storage, snapshot.timeline_path(inflight), b"")
    completed = Instant(instant, _SAVEPOINT, completed_at=times.next())
    snapshot.storage.create(snapshot.timeline_path(completed), format_savepoint(metadata))
    return completed


def delete_savepoint_locked(snapshot: Snapshot, instant: InstantTime) -> None:
    """Delete a savepoint, completed or pending; InvalidError if there is none.

    The caller holds the table's lock and has loaded the snapshot under it. A savepoint behind which
    archiving went on must stay: without it the active timeline would start with its commit, and
    everything archived since would count as never committed.
    """
    savepoints = [
        i for i in snapshot.timeline if i.action == _SAVEPOINT and i.requested_at == instant
    ]
    if not savepoints:
        raise InvalidError("there is no savepoint of this instant", instant=instant)
    active, folder = snapshot.timeline.by_time, snapshot.config.history_folder
    later = archived_times_in(snapshot.storage, folder, instant)
    if any(at > instant and at not in active for at in later):
        raise InvalidError(
            "later commits than the saved one are archived, so the savepoint must stay",
            instant=instant,
        )
    for state in (*savepoints, Instant(instant, _SAVEPOINT, State.INFLIGHT)):
        snapshot.storage.delete(snapshot.timeline_path(state))


def find_savepoint(snapshot: Snapshot, instant: InstantTime) -> Instant | None:
    """Return the completed savepoint of an instant, if there is one."""
    savepoints = snapshot.timeline.completed(_SAVEPOINT)
    return next((i for i in savepoints if i.requested_at == instant), None)


def _plan_savepoint(
    snapshot: Snapshot, instant: InstantTime, clock: Clock, *, user: str, comment: str
) -> SavepointMetadata:
    _check_completed(snapshot, instant)
    view = snapshot.view(requested_until=instant)
    slices, cleaned_files = slices_before_cleaning(snapshot, view, since=instant)
    if cleaned_files:
        raise InvalidError(
            "files of this instant's state were cleaned, or are about to be",
            instant=instant,
            files=sorted(
                join_path(group[0], name)
                for group in cleaned_files
                for name in cleaned_files[group]
            ),
        )
    files: dict[str, list[str]] = {}
    for file_slice in slices:
        files.setdefault(file_slice.partition, []).extend(
            file.name for file in files_of_slice(file_slice)
        )
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
    write = snapshot.timeline.by_time.get(instant)
    if write is None:
        raise InvalidError("there is no such write on the active timeline", instant=instant)
    if not write.is_completed:
        raise InvalidError("a pending write cannot be saved", instant=str(write))
    _check_archiving(snapshot, instant)
    earliest = snapshot.earliest_retained()
    if earliest is not None and instant < earliest:
        raise InvalidError(
            "the table was cleaned past this instant", instant=instant, earliest_retained=earliest
        )


def _check_archiving(snapshot: Snapshot, instant: InstantTime) -> None:
    archived = archived_times_in(snapshot.storage, snapshot.config.history_folder, instant)
    if archived:
        raise InvalidError(
            "interrupted archiving has this write, or later ones, in the archived timeline "
            "already: save a later write",
            instant=instant,
            archived=archived,
        )
    savepoint = Instant(instant, _SAVEPOINT)
    hidden = snapshot.archived_hidden_by(Timeline((*snapshot.timeline, savepoint)))
    if hidden:
        raise InvalidError(
            "only saved writes would be left on the active timeline, and readers would take "
            "archived ones for uncommitted: write to the table first",
            instant=instant,
            archived=hidden,
        )


# Restoring: removing everything that came after a savepoint from the table.


_RESTORE = Action.RESTORE


@dataclass(frozen=True, slots=True)
class PendingRestore:
    """A restore that was requested and has not completed."""

    instant: Instant
    plan: RestorePlan


def plan_restore(snapshot: Snapshot, savepoint: str) -> RestorePlan:
    """Plan which instants to roll back, newest first, to reach the state that a savepoint holds.

    These are all writes and services that were requested later, and those requested earlier that
    completed only after the savepoint was created, which holds none of their files. Cleans and
    rollbacks stay. InvalidError if there is no such savepoint, if another savepoint or the archived
    timeline holds a write that would have to be rolled back, or if only savepointed writes would be
    left on the active timeline while later ones than the oldest of them are archived; CorruptError
    if a saved file is missing.
    """
    saved = find_savepoint(snapshot, savepoint)
    if saved is None:
        raise InvalidError("there is no savepoint of this instant", instant=savepoint)
    later = [i for i in snapshot.timeline if i.is_write and _is_after(i, saved)]
    later_saved = sorted(snapshot.timeline.savepointed & {i.requested_at for i in later})
    if later_saved:
        raise InvalidError(
            "later savepoints hold writes that would be rolled back: delete these savepoints first",
            savepoint=savepoint,
            later=later_saved,
        )
    _check_not_archived(snapshot, savepoint)
    _check_none_hidden(snapshot, savepoint, later)
    _check_saved_files(snapshot, saved)
    return RestorePlan(
        instants=tuple(InstantRef(i.requested_at, i.action) for i in reversed(later)),
        savepoint=savepoint,
    )


def restore_locked(
    snapshot: Snapshot, savepoint: str, times: TimeGenerator, clock: Clock
) -> Instant:
    """Restore the table to a savepoint and return the completed restore. May be repeated.

    A pending restore to the same savepoint that another process has started is completed; if other
    writers have written since, a new restore is planned that rolls back their writes as well.
    """
    pending = pending_restore(snapshot)
    if pending is not None and pending.plan.savepoint != savepoint:
        raise InvalidError(
            "a restore to another savepoint was interrupted: run that one first",
            savepoint=pending.plan.savepoint,
        )
    if pending is not None and not _written_since(snapshot, pending):
        return _execute(snapshot, pending, times, clock)
    plan = plan_restore(snapshot, savepoint)
    if pending is not None:
        plan = _with_instants_of(plan, pending.plan)
    elif not plan.instants and (last := _last_restore(snapshot, savepoint)) is not None:
        return last
    return _execute(snapshot, _request(snapshot, plan, times), times, clock)


def pending_restore(snapshot: Snapshot) -> PendingRestore | None:
    """Return the pending restore with a plan, the newest if there are several."""
    for instant in reversed(snapshot.timeline.pending(_RESTORE)):
        plan = _load_plan(snapshot, instant)
        if plan is not None:
            return PendingRestore(instant, plan)
    return None


def _load_plan(snapshot: Snapshot, instant: Instant) -> RestorePlan | None:
    path = snapshot.timeline_path(Instant(instant.requested_at, _RESTORE, State.REQUESTED))
    data = read_optional(snapshot.storage, path)
    if not data:
        return None
    with errors_in_file(path):
        return parse_restore_plan(data)


def _request(snapshot: Snapshot, plan: RestorePlan, times: TimeGenerator) -> PendingRestore:
    requested = Instant(times.next(), _RESTORE, State.REQUESTED)
    snapshot.storage.create(snapshot.timeline_path(requested), format_restore_plan(plan))
    return PendingRestore(requested, plan)


def _execute(
    snapshot: Snapshot, pending: PendingRestore, times: TimeGenerator, clock: Clock
) -> Instant:
    start_ms = clock.monotonic_ms()
    storage, plan = snapshot.storage, pending.plan
    inflight = replace(pending.instant, state=State.INFLIGHT)
    create_if_missing(storage, snapshot.timeline_path(inflight), b"")
    states = timeline_files(snapshot)
    # Files are searched by name in the whole table: also an instant that is no longer on the
    # timeline may have left files, if another process has removed it since this restore started.
    files = find_files(storage, {ref.requested_at for ref in plan.instants})
    for ref in plan.instants:
        revert_to_pending(snapshot, states.get(action_key(ref), ()))
    for ref in plan.instants:
        # Plans that were scheduled when the savepoint was created are scheduled again.
        keep_plan = ref.requested_at < (plan.savepoint or "")
        delete_instant(
            snapshot,
            ref.requested_at,
            states.get(action_key(ref), ()),
            files[ref.requested_at],
            keep_plan=keep_plan,
        )
    _delete_other_restores(snapshot, pending)
    took_ms = clock.monotonic_ms() - start_ms
    completed = Instant(pending.instant.requested_at, _RESTORE, completed_at=times.next())
    metadata = RestoreMetadata(
        started_at=completed.requested_at,
        took_ms=took_ms,
        commits=tuple(ref.requested_at for ref in plan.instants),
        rollbacks={
            ref.requested_at: (_rollback_record(snapshot, completed, ref, files[ref.requested_at]),)
            for ref in plan.instants
        },
        instants=plan.instants,
    )
    storage.create(snapshot.timeline_path(completed), format_restore(metadata))
    return completed


def _rollback_record(
    snapshot: Snapshot, completed: Instant, ref: InstantRef, files: tuple[str, ...]
) -> RollbackMetadata:
    # Real Hudi creates an instant for each of these rollbacks for a while. Here they have no
    # instants that a crash could leave behind, and so each has the requested time of the restore.
    return rollback_metadata(snapshot.storage, completed.requested_at, ref, files, 0)


def _delete_other_restores(snapshot: Snapshot, pending: PendingRestore | None) -> None:
    """Delete attempts before `pending`, whose plan has their instants, and those without a plan."""
    for other in snapshot.timeline.pending(_RESTORE):
        plan = _load_plan(snapshot, other)
        is_same_restore = pending is not None and other.requested_at == pending.instant.requested_at
        is_same_savepoint = (
            pending is not None and plan is not None and plan.savepoint == pending.plan.savepoint
        )
        if plan is None or (is_same_savepoint and not is_same_restore):
            for state in (State.INFLIGHT, State.REQUESTED):
                snapshot.storage.delete(snapshot.timeline_path(replace(other, state=state)))


def _with_instants_of(plan: RestorePlan, other: RestorePlan) -> RestorePlan:
    """Return a plan that also finds the files of instants that another plan was about to delete."""
    refs = {ref.requested_at: ref for ref in (*other.instants, *plan.instants)}
    newest_first = sorted(refs.values(), key=lambda ref: ref.requested_at, reverse=True)
    return replace(plan, instants=tuple(newest_first))


def _is_after(instant: Instant, saved: Instant) -> bool:
    if instant.requested_at > saved.requested_at:
        return True
    return (instant.completed_at or "") > (saved.completed_at or "")


def _written_since(snapshot: Snapshot, pending: PendingRestore) -> list[str]:
    at = pending.instant.requested_at
    return [str(i) for i in snapshot.timeline if i.is_write and i.requested_at > at]


def _last_restore(snapshot: Snapshot, savepoint: str) -> Instant | None:
    """Return the newest completed restore, if it was to this savepoint."""
    restores = snapshot.timeline.completed(_RESTORE)
    plan = _load_plan(snapshot, restores[-1]) if restores else None
    return restores[-1] if plan is not None and plan.savepoint == savepoint else None


def _check_not_archived(snapshot: Snapshot, savepoint: str) -> None:
    archived = archived_times_in(snapshot.storage, snapshot.config.history_folder, savepoint)
    later = [at for at in archived if at > savepoint]
    if later:
        raise InvalidError(
            "writes after the savepoint were archived and can no longer be rolled back",
            savepoint=savepoint,
            archived=later,
        )


def _check_none_hidden(snapshot: Snapshot, savepoint: str, later: Collection[Instant]) -> None:
    remaining = Timeline(tuple(i for i in snapshot.timeline if i not in later))
    hidden = snapshot.archived_hidden_by(remaining)
    if hidden:
        raise InvalidError(
            "only saved writes would be left on the active timeline, and readers would take "
            "archived ones for uncommitted",
            savepoint=savepoint,
            archived=hidden,
        )


def _check_saved_files(snapshot: Snapshot, saved: Instant) -> None:
    path = snapshot.timeline_path(saved)
    with errors_in_file(path):
        partitions = parse_savepoint(snapshot.storage.read(path)).partitions
    listed = snapshot.storage.list_many(partitions)
    existing = {status.path for files in listed.values() for status in files}
    missing = [
        join_path(partition, name)
        for partition, part in partitions.items()
        for name in part.files
        if join_path(partition, name) not in existing and _is_saved(name, saved)
    ]
    if missing:
        raise CorruptError("files that a savepoint holds are missing", file=path, missing=missing)


def _is_saved(name: str, saved: Instant) -> bool:
    # Real Hudi also lists log files of later writes, which an earlier restore may have deleted.
    file = parse_data_file(name)
    return file is not None and file.instant <= saved.requested_at


# Rollback, savepoint and restore as public operations: under the table's lock, on its current
# state. A table's metadata table must be maintained by every writer that changes the table. This
# library does not maintain it, so it is dropped first.


@contextmanager
def locked_table(
    writer: WriterContext, check: Callable[[Snapshot], object] | None = None
) -> Iterator[tuple[Snapshot, TimeGenerator]]:
    """Lock the table and prepare it for changes; yield its snapshot and a time generator.

    `check` may raise before anything has changed.
    """
    lock = writer.new_lock()
    with acquired(lock):
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
    """Roll back a write or a service, completed or pending; return the rollback.

    With `keep_plan` the plan of a service that is being executed stays. With `force` a completed
    write whose timeline file is empty or truncated is rolled back as well: its data files are found
    by name. All other conditions are the same.

    Raises:
        CorruptError: the completed file of the write is damaged, and `force` is not set.
        ConflictError: it is damaged, and its writer has a live heartbeat.
    """

    def find_target(snapshot: Snapshot) -> Instant:
        target = snapshot.timeline.by_time.get(instant)
        if target is not None:
            return target
        if pending_rollback_of(snapshot, instant) or completed_rollback_of(snapshot, instant):
            return Instant(instant, Action.COMMIT, State.INFLIGHT)
        others = [str(i) for i in snapshot.timeline if i.requested_at == instant]
        if others:
            raise InvalidError("only writes and table services are rolled back", instant=others[0])
        raise InvalidError("there is no such instant on the timeline", instant=instant)

    def with_damaged(snapshot: Snapshot, target: Instant) -> Snapshot:
        return (
            with_commits_from_file_names(snapshot, target)
            if force and target.is_completed
            else snapshot
        )

    def check(snapshot: Snapshot) -> None:
        target = find_target(snapshot)
        if target.is_completed and pending_rollback_of(snapshot, instant) is None:
            if force:
                _require_no_heartbeat(writer, snapshot, target)
            else:
                require_readable(snapshot, target)
            check_can_rollback(with_damaged(snapshot, target), target)

    with locked_table(writer, check) as (snapshot, times):
        by_markers = writer.transaction.rollback_by_markers
        target = find_target(snapshot)
        return rollback_locked(
            with_damaged(snapshot, target),
            target,
            times,
            writer.clock,
            by_markers=by_markers,
            keep_plan=keep_plan,
        )


def _require_no_heartbeat(writer: WriterContext, snapshot: Snapshot, write: Instant) -> None:
    """Raise ConflictError if the completed file is damaged and the writer has a live heartbeat.

    Not every writer creates a file atomically: while a writer is completing, its file is empty for
    a while. A file that is whole does not need this check, whatever is left of a heartbeat.
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
    """Create a savepoint of the table as it was after a write."""

    def check(snapshot: Snapshot) -> None:
        if instant not in snapshot.timeline.by_time:
            raise InvalidError("there is no such write on the active timeline", instant=instant)

    with locked_table(writer, check) as (snapshot, times):
        return create_savepoint_locked(
            snapshot, instant, times, writer.clock, user=user, comment=comment
        )


def delete_savepoint(writer: WriterContext, instant: InstantTime) -> None:
    """Delete a savepoint, so that its files can be cleaned."""
    with writer.locked():
        snapshot = load_snapshot(writer.storage)
        check_writable(snapshot.config)
        delete_savepoint_locked(snapshot, instant)


def restore(writer: WriterContext, instant: InstantTime) -> Instant:
    """Restore the table to a savepoint."""

    def check(snapshot: Snapshot) -> None:
        if find_savepoint(snapshot, instant) is None:
            saved = sorted(snapshot.timeline.savepointed)
            raise InvalidError(
                "there is no savepoint of this instant", instant=instant, savepoints=saved
            )

    with locked_table(writer, check) as (snapshot, times):
        return restore_locked(snapshot, instant, times, writer.clock)
