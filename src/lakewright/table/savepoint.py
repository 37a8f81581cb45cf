"""Savepoints: a state of the table that cleans, archiving and rollbacks leave alone."""

from __future__ import annotations

from lakewright.clock import Clock
from lakewright.core.instant import Instant, State
from lakewright.core.service_metadata import SavedPartition, SavepointMetadata
from lakewright.core.timeline import Timeline
from lakewright.errors import InvalidError
from lakewright.format.metadata import format_savepoint
from lakewright.storage.base import join_path
from lakewright.table.cleaned import files_of, slices_seen
from lakewright.table.history import held_from
from lakewright.table.snapshot import Snapshot
from lakewright.table.times import TimeSource
from lakewright.table.undo import create_if_missing

_ACTION = "savepoint"


def run_savepoint(
    snapshot: Snapshot,
    instant: str,
    times: TimeSource,
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
    inflight = Instant(instant, _ACTION, State.INFLIGHT)
    create_if_missing(snapshot.storage, snapshot.timeline_path(inflight), b"")
    done = Instant(instant, _ACTION, completed_at=times.next())
    snapshot.storage.create(snapshot.timeline_path(done), format_savepoint(metadata))
    return done


def delete_savepoint(snapshot: Snapshot, instant: str) -> None:
    """Give up a savepoint, or one that was begun; InvalidError if there is none.

    The caller holds the table's lock and has loaded the snapshot under it. One behind which
    archiving went on must stay: without it the active timeline would begin with its commit, and
    what was archived since would count as never committed.
    """
    found = [i for i in snapshot.timeline if i.action == _ACTION and i.requested_at == instant]
    if not found:
        raise InvalidError("there is no savepoint of this instant", instant=instant)
    if max(snapshot.archived_times, default="") > instant:
        raise InvalidError(
            "later commits than the saved one are archived, so the savepoint must stay",
            instant=instant,
        )
    for state in (*found, Instant(instant, _ACTION, State.INFLIGHT)):
        snapshot.storage.delete(snapshot.timeline_path(state))


def find_savepoint(snapshot: Snapshot, instant: str) -> Instant | None:
    """The completed savepoint of an instant, if there is one."""
    done = snapshot.timeline.completed(_ACTION)
    return next((i for i in done if i.requested_at == instant), None)


def _plan_savepoint(
    snapshot: Snapshot, instant: str, clock: Clock, *, user: str, comment: str
) -> SavepointMetadata:
    _check_completed(snapshot, instant)
    view = snapshot.view(requested_until=instant)
    slices, lost = slices_seen(snapshot, view, since=instant)
    if lost:
        raise InvalidError(
            "files of this instant's state were cleaned, or are about to be",
            instant=instant,
            files=sorted(join_path(group[0], name) for group in lost for name in lost[group]),
        )
    files: dict[str, list[str]] = {}
    for found in slices:
        files.setdefault(found.partition, []).extend(file.name for file in files_of(found))
    return SavepointMetadata(
        saved_by=user,
        saved_at=clock.now_ms(),
        comments=comment,
        partitions={
            partition: SavedPartition(partition=partition, files=tuple(names))
            for partition, names in files.items()
        },
    )


def _check_completed(snapshot: Snapshot, instant: str) -> None:
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


def _check_archived(snapshot: Snapshot, instant: str) -> None:
    held = held_from(snapshot.storage, snapshot.config.history_folder, instant)
    if held:
        raise InvalidError(
            "archiving that was interrupted has this write, or later ones, in history already: "
            "save a later write",
            instant=instant,
            archived=held,
        )
    saved = Instant(instant, _ACTION)
    forgotten = snapshot.forgotten_with(Timeline((*snapshot.timeline, saved)))
    if forgotten:
        raise InvalidError(
            "only saved writes would be left on the active timeline, and readers would take "
            "archived ones for uncommitted: write to the table first",
            instant=instant,
            archived=forgotten,
        )
