"""How a data file comes to be: announced by a marker first, and checked once it is there.

Neither is synced to disk one by one: the transaction syncs all files of a write before it
completes, and a rollback does not rely on markers where a power cut can take them away.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from lakewright.core.instant import COMPLETED_NAME, Instant, State
from lakewright.errors import ConflictError, LakewrightError
from lakewright.table.heartbeat import alive
from lakewright.table.markers import (
    MarkerKind,
    create_marker,
    delete_markers_of,
    renew_marker,
    rival_of,
)
from lakewright.table.snapshot import Snapshot, load_timeline
from lakewright.write.task import WriteTask

# Markers of a write that has ended are deleted once they are older than an expired heartbeat.
_RENEW_AFTER_MS = 30_000


@dataclass
class Publication:
    """One data file of a task attempt: `announce`, then write it, `appearing`, then `verify`."""

    task: WriteTask
    path: str
    kind: MarkerKind
    _announced_ms: int | None = None
    _may_appear: bool = False

    def announce(self) -> None:
        """Create the marker, before anything is written, so that a rollback finds the file.

        With early conflict detection, give way to a living writer that has announced the same file
        group.
        """
        task = self.task
        if task.early is not None:
            now = replace(task.snapshot, timeline=load_timeline(task.storage, task.config))
            pending = [i.requested_at for i in now.timeline.pending()]
            living = alive(task.storage, pending, task.early, task.clock.now_ms())
            others = living - _cancellable(now, living)
            rival = rival_of(task.storage, task.instant, self.path, others)
            if rival is not None:
                raise ConflictError(
                    "another writer is writing the same file group",
                    file=self.path,
                    instant=task.instant,
                    other=rival,
                )
        create_marker(task.storage, task.instant, self.path, self.kind)
        self._announced_ms = task.clock.monotonic_ms()

    def appearing(self) -> None:
        """To be called right before the file appears: its marker is to be there, and young.

        The write may have ended while a large file was written, and the markers of attempts that
        did not report be deleted since.
        """
        assert self._announced_ms is not None
        if self.task.clock.monotonic_ms() - self._announced_ms > _RENEW_AFTER_MS:
            renew_marker(self.task.storage, self.task.instant, self.path, self.kind)
        self._may_appear = True

    def verify(self) -> None:
        """Delete the file, which has appeared, if its write has ended by now.

        The driver may have lost sight of this attempt: the file would belong to a completed write
        without being in its commit, or to none at all. Looking before the file appears would not
        do: a large one takes long to appear.
        """
        if not self._is_pending():
            self.task.storage.delete(self.path)
            self._delete_marker()
            raise ConflictError(
                "the write that this file belongs to has ended already",
                instant=self.task.instant,
                file=self.path,
            )

    def abandon(self) -> None:
        """Delete the marker of a file that was never about to appear."""
        if self._announced_ms is not None and not self._may_appear:
            # The error that led here is the one to report; the marker stays, and is swept later.
            with suppress(LakewrightError):
                self._delete_marker()

    def _delete_marker(self) -> None:
        delete_markers_of(self.task.storage, self.task.instant, [self.path])

    def _is_pending(self) -> bool:
        task = self.task
        if task.attempt is not None:
            return task.attempt.counts(task.storage)
        found: Instant | None = load_timeline(task.storage, task.config).by_time.get(task.instant)
        return found is not None and found.state is not State.COMPLETED


def create_file(task: WriteTask, path: str, data: bytes) -> None:
    """Create a data file that is in memory."""
    publication = Publication(task, path, MarkerKind.CREATE)
    publication.announce()
    publication.appearing()
    task.storage.unsynced().create(path, data)
    publication.verify()


def _cancellable(now: Snapshot, living: frozenset[str]) -> frozenset[str]:
    """Those of some instants that execute cancellable plans: they give way to writers."""
    found = [i for i in now.timeline.pending(*COMPLETED_NAME) if i.requested_at in living]
    plans = {i.requested_at: now.plan_of(i.requested_at, i.action) for i in found}
    return frozenset(at for at, plan in plans.items() if plan is not None and plan.cancellable)
