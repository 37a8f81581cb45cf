"""Rollback, savepoint and restore as one call each: under the table's lock, on the table as it is.

What a table has must be maintained by who changes it, so a metadata table goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from lakewright.core.instant import Instant, State
from lakewright.errors import InvalidError
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


def take_back(writer: Equipment, instant: str, *, keep_plan: bool = False) -> Instant:
    """Take back a write or a service, completed or not; gives the rollback.

    With `keep_plan` the plan of a service that is being executed stays.
    """

    def target(snapshot: Snapshot) -> Instant:
        found = snapshot.timeline.by_time.get(instant)
        if found is not None:
            return found
        if rollback_of(snapshot, instant) or ended_rollback_of(snapshot, instant):
            return Instant(instant, "commit", State.INFLIGHT)
        raise InvalidError("there is no such instant on the timeline", instant=instant)

    def check(snapshot: Snapshot) -> None:
        found = target(snapshot)
        if found.is_completed and rollback_of(snapshot, instant) is None:
            require_undoable(snapshot, found)

    with locked_table(writer, check) as (snapshot, times):
        by_markers = writer.transaction.rollback_by_markers
        found = target(snapshot)
        return run_rollback(
            snapshot, found, times, writer.clock, by_markers=by_markers, keep_plan=keep_plan
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
