"""What rollbacks tell: what they take back, by what they were caused, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lakewright.core.instant import COMPLETED_NAME, Instant
from lakewright.core.plans import InstantRef
from lakewright.core.service_metadata import RollbackMetadata
from lakewright.errors import found_in
from lakewright.format.metadata import parse_rollback
from lakewright.table.history import load_entries
from lakewright.table.rollback import load_rollback, pending_rollbacks
from lakewright.table.snapshot import Snapshot

_PLANNED_NAME = {completed: planned for planned, completed in COMPLETED_NAME.items()}


@dataclass(frozen=True, slots=True)
class RolledBack:
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


def load_rollbacks(snapshot: Snapshot, *, archived: bool = False) -> tuple[RolledBack, ...]:
    """The rollbacks on the active timeline, oldest first; `archived` adds those in history."""
    found = [
        RolledBack(
            began.instant,
            _target(began.plan.instant, began.plan.caused_by),
            began.plan.caused_by,
            began.plan.reason,
            files=sum(len(request.files) for request in began.plan.requests),
            partitions=len({request.partition for request in began.plan.requests}),
        )
        for began in pending_rollbacks(snapshot)
    ]
    for instant in snapshot.timeline.completed("rollback"):
        found += _ended(instant, load_rollback(snapshot, instant))
    if archived:
        known = {each.instant.requested_at for each in found}
        found += [each for each in _archived(snapshot) if each.instant.requested_at not in known]
    return tuple(sorted(found, key=lambda each: each.instant.requested_at))


def _archived(snapshot: Snapshot) -> Iterator[RolledBack]:
    folder = snapshot.config.history_folder
    for entry in load_entries(snapshot.storage, folder, with_content=True):
        if entry.action == "rollback" and entry.metadata:
            instant = Instant(entry.requested_at, entry.action, completed_at=entry.completed_at)
            with found_in(f"{folder}: {entry.requested_at}"):
                yield from _ended(instant, parse_rollback(entry.metadata))


def _ended(instant: Instant, done: RollbackMetadata) -> list[RolledBack]:
    return [
        RolledBack(
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
