"""Rollback, savepoint and restore as one call each: under the table's lock, on the table as it is.

What a table has must be maintained by who changes it, so a metadata table goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from lakewright.core.instant import Instant, State
from lakewright.errors import ConflictError, InvalidError
from lakewright.table.damaged import damage_of, known_by_names, require_readable
from lakewright.table.equipment import Equipment
from lakewright.table.locks import holding
from lakewright.table.metadata_table import drop_metadata_table
from lakewright.table.restore import run_restore
from lakewright.table.rollback import ended_rollback_of, rollback_of, run_rollback
from lakewright.table.savepoint import delete_savepoint, find_savepoint, run_savepoint
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.times import TimeSource
from lakewright.table.undoable import require_undoable
from lakewright.table.writable import require_writable


@contextmanager
def locked_table(
    writer: Equipment, check: Callable[[Snapshot], object] | None = None
) -> Iterator[tuple[Snapshot, TimeSource]]:
    """The table under its lock, ready to be changed, and new times for its timeline.

    `check` may refuse before anything has changed.
    """
    lock = writer.new_lock()
    with holding(lock):
        snapshot = load_snapshot(writer.storage)
        require_writable(snapshot.config)
        if check is not None:
            check(snapshot)
        config = drop_metadata_table(writer.storage, snapshot.config)
        times = writer.times(config, snapshot.timeline, lock)
        yield replace(snapshot, config=config), times


def take_back(
    writer: Equipment, instant: str, *, keep_plan: bool = False, force: bool = False
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
        if rollback_of(snapshot, instant) or ended_rollback_of(snapshot, instant):
            return Instant(instant, "commit", State.INFLIGHT)
        others = [str(i) for i in snapshot.timeline if i.requested_at == instant]
        if others:
            raise InvalidError("only writes and table services are rolled back", instant=others[0])
        raise InvalidError("there is no such instant on the timeline", instant=instant)

    def known(snapshot: Snapshot, found: Instant) -> Snapshot:
        return known_by_names(snapshot, found) if force and found.is_completed else snapshot

    def check(snapshot: Snapshot) -> None:
        found = target(snapshot)
        if found.is_completed and rollback_of(snapshot, instant) is None:
            if force:
                _require_dead(writer, snapshot, found)
            else:
                require_readable(snapshot, found)
            require_undoable(known(snapshot, found), found)

    with locked_table(writer, check) as (snapshot, times):
        by_markers = writer.transaction.rollback_by_markers
        found = target(snapshot)
        return run_rollback(
            known(snapshot, found),
            found,
            times,
            writer.clock,
            by_markers=by_markers,
            keep_plan=keep_plan,
        )


def _require_dead(writer: Equipment, snapshot: Snapshot, write: Instant) -> None:
    """Not every writer creates a file in one step: who is completing has an empty one for a while.

    A whole file needs no heartbeat any more, whatever is left of one.
    """
    if damage_of(snapshot, write) is not None and writer.living([write.requested_at]):
        raise ConflictError(
            "the completed file of this write is damaged, and its writer has a heartbeat: it may "
            "be writing the file. Wait until the heartbeat has expired",
            instant=str(write),
        )


def save_point(writer: Equipment, instant: str, *, user: str, comment: str) -> Instant:
    """Keep the table as it was after a write."""

    def check(snapshot: Snapshot) -> None:
        if instant not in snapshot.timeline.by_time:
            raise InvalidError("there is no such write on the active timeline", instant=instant)

    with locked_table(writer, check) as (snapshot, times):
        return run_savepoint(snapshot, instant, times, writer.clock, user=user, comment=comment)


def give_up_savepoint(writer: Equipment, instant: str) -> None:
    """Let the files of a savepoint be cleaned."""
    with holding(writer.new_lock()):
        snapshot = load_snapshot(writer.storage)
        require_writable(snapshot.config)
        delete_savepoint(snapshot, instant)


def restore_to(writer: Equipment, instant: str) -> Instant:
    """Take the table back to a savepoint."""

    def check(snapshot: Snapshot) -> None:
        if find_savepoint(snapshot, instant) is None:
            saved = sorted(snapshot.timeline.saved)
            raise InvalidError(
                "there is no savepoint of this instant", instant=instant, savepoints=saved
            )

    with locked_table(writer, check) as (snapshot, times):
        return run_restore(snapshot, instant, times, writer.clock)
