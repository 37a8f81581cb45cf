"""Rollback, savepoint and restore as one call each: under the table's lock, on the table as it is.

What a table has must be maintained by who changes it, so a metadata table goes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from lakewright.core.instant import Instant, State
from lakewright.table.equipment import Equipment
from lakewright.table.locks import holding
from lakewright.table.metadata_table import drop_metadata_table
from lakewright.table.restore import run_restore
from lakewright.table.rollback import run_rollback
from lakewright.table.savepoint import run_savepoint
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.times import TimeSource
from lakewright.table.writable import require_writable


@contextmanager
def locked_table(writer: Equipment) -> Iterator[tuple[Snapshot, TimeSource]]:
    """The table under its lock, ready to be changed, and new times for its timeline."""
    lock = writer.new_lock()
    with holding(lock):
        snapshot = load_snapshot(writer.storage)
        require_writable(snapshot.config)
        config = drop_metadata_table(writer.storage, snapshot.config)
        times = writer.times(config, snapshot.timeline, lock)
        yield replace(snapshot, config=config), times


def take_back(writer: Equipment, instant: str) -> Instant:
    """Take back a write or a service, completed or not; gives the rollback."""
    with locked_table(writer) as (snapshot, times):
        found = [i for i in snapshot.timeline if i.requested_at == instant and i.is_write]
        target = found[0] if found else Instant(instant, "commit", State.INFLIGHT)
        by_markers = writer.transaction.rollback_by_markers
        return run_rollback(snapshot, target, times, writer.clock, by_markers=by_markers)


def save_point(writer: Equipment, instant: str, *, user: str, comment: str) -> Instant:
    """Keep the table as it was after a write."""
    with locked_table(writer) as (snapshot, times):
        return run_savepoint(snapshot, instant, times, writer.clock, user=user, comment=comment)


def restore_to(writer: Equipment, instant: str) -> Instant:
    """Take the table back to a savepoint."""
    with locked_table(writer) as (snapshot, times):
        return run_restore(snapshot, instant, times, writer.clock)
