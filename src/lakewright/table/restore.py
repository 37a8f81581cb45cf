"""Restoring: taking all that came after a savepoint off the table.

Who calls holds the table's lock and has loaded the snapshot under it. Readers that come while a
restore is under way see the table as it was after one of the writes that are being taken back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from lakewright.clock import Clock
from lakewright.core.files import parse_data_file
from lakewright.core.instant import Instant, State
from lakewright.core.plans import InstantRef, RestorePlan
from lakewright.core.service_metadata import RestoreMetadata, RollbackMetadata
from lakewright.core.timeline import Timeline
from lakewright.errors import CorruptError, InvalidError, found_in
from lakewright.format.metadata import (
    format_restore,
    format_restore_plan,
    parse_restore_plan,
    parse_savepoint,
)
from lakewright.storage.base import join_path
from lakewright.table.history import held_from
from lakewright.table.properties import read_if_there
from lakewright.table.savepoint import find_savepoint
from lakewright.table.snapshot import Snapshot
from lakewright.table.times import TimeSource
from lakewright.table.undo import (
    create_if_missing,
    find_files,
    hide,
    key_of,
    remove,
    rollback_metadata,
    timeline_files,
)

_ACTION = "restore"


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
    held = sorted(snapshot.timeline.saved & {i.requested_at for i in later})
    if held:
        raise InvalidError(
            "later savepoints hold writes that would be taken back: delete these savepoints first",
            savepoint=savepoint,
            later=held,
        )
    _check_archived(snapshot, savepoint)
    _check_remembered(snapshot, savepoint, later)
    _check_saved_files(snapshot, saved)
    return RestorePlan(
        instants=tuple(InstantRef(i.requested_at, i.action) for i in reversed(later)),
        savepoint=savepoint,
    )


def run_restore(snapshot: Snapshot, savepoint: str, times: TimeSource, clock: Clock) -> Instant:
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


def resume_restore(snapshot: Snapshot, times: TimeSource, clock: Clock) -> Instant | None:
    """End a restore whose process died, before anything else is done; None if there is none.

    InvalidError if others have written since: the table is between two states, and only who asked
    for the restore can say whether it is still wanted.
    """
    began = pending_restore(snapshot)
    if began is None:
        _withdraw_others(snapshot, None)
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
    for instant in reversed(snapshot.timeline.pending(_ACTION)):
        plan = _plan_of(snapshot, instant)
        if plan is not None:
            return PendingRestore(instant, plan)
    return None


def _plan_of(snapshot: Snapshot, instant: Instant) -> RestorePlan | None:
    path = snapshot.timeline_path(Instant(instant.requested_at, _ACTION, State.REQUESTED))
    data = read_if_there(snapshot.storage, path)
    if not data:
        return None
    with found_in(path):
        return parse_restore_plan(data)


def _begin(snapshot: Snapshot, plan: RestorePlan, times: TimeSource) -> PendingRestore:
    requested = Instant(times.next(), _ACTION, State.REQUESTED)
    snapshot.storage.create(snapshot.timeline_path(requested), format_restore_plan(plan))
    return PendingRestore(requested, plan)


def _end(snapshot: Snapshot, began: PendingRestore, times: TimeSource, clock: Clock) -> Instant:
    start = clock.monotonic_ms()
    storage, plan = snapshot.storage, began.plan
    inflight = replace(began.instant, state=State.INFLIGHT)
    create_if_missing(storage, snapshot.timeline_path(inflight), b"")
    states = timeline_files(snapshot)
    # By name in the whole table: also an instant that is gone from the timeline may have left files
    # if somebody else has taken it off since this restore began.
    files = find_files(storage, {ref.requested_at for ref in plan.instants})
    for ref in plan.instants:
        hide(snapshot, states.get(key_of(ref), ()))
    for ref in plan.instants:
        # What was scheduled when the savepoint was made is scheduled again.
        keep_plan = ref.requested_at < (plan.savepoint or "")
        remove(
            snapshot,
            ref.requested_at,
            states.get(key_of(ref), ()),
            files[ref.requested_at],
            keep_plan=keep_plan,
        )
    _withdraw_others(snapshot, began)
    took_ms = clock.monotonic_ms() - start
    done = Instant(began.instant.requested_at, _ACTION, completed_at=times.next())
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


def _withdraw_others(snapshot: Snapshot, began: PendingRestore | None) -> None:
    """Forget attempts before this one: all their instants are in its plan, or they have no plan."""
    for other in snapshot.timeline.pending(_ACTION):
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
    done = snapshot.timeline.completed(_ACTION)
    plan = _plan_of(snapshot, done[-1]) if done else None
    return done[-1] if plan is not None and plan.savepoint == savepoint else None


def _check_archived(snapshot: Snapshot, savepoint: str) -> None:
    held = held_from(snapshot.storage, snapshot.config.history_folder, savepoint)
    gone = [at for at in held if at > savepoint]
    if gone:
        raise InvalidError(
            "writes after the savepoint were archived and cannot be taken back any more",
            savepoint=savepoint,
            archived=gone,
        )


def _check_remembered(snapshot: Snapshot, savepoint: str, later: Collection[Instant]) -> None:
    rest = Timeline(tuple(i for i in snapshot.timeline if i not in later))
    forgotten = snapshot.forgotten_with(rest)
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
