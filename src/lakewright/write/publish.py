"""How a data file comes to be: announced by a marker first, and checked once it is there.

Neither is synced to disk one by one: the transaction syncs all files of a write before it
completes, and a rollback does not rely on markers where a power cut can take them away.
"""

from __future__ import annotations

from dataclasses import replace

from lakewright.core.instant import COMPLETED_NAME, Instant, State
from lakewright.errors import ConflictError
from lakewright.table.heartbeat import alive
from lakewright.table.markers import MarkerKind, create_marker, rival_of
from lakewright.table.snapshot import Snapshot, load_timeline
from lakewright.write.task import WriteTask


def announce(task: WriteTask, path: str, kind: MarkerKind) -> None:
    """Leave word of a file before it is written, so that a rollback finds it.

    With early conflict detection, give way to a living writer that has announced the same group.
    """
    if task.early is not None:
        now = replace(task.snapshot, timeline=load_timeline(task.storage, task.config))
        pending = [i.requested_at for i in now.timeline.pending()]
        living = alive(task.storage, pending, task.early, task.clock.now_ms())
        rival = rival_of(task.storage, task.instant, path, living - _passed_over(now, living))
        if rival is not None:
            raise ConflictError(
                "another writer is writing the same file group",
                file=path,
                instant=task.instant,
                other=rival,
            )
    create_marker(task.storage, task.instant, path, kind)


def _passed_over(now: Snapshot, living: frozenset[str]) -> frozenset[str]:
    """Those of some instants that execute cancellable plans: they give way, not we."""
    found = [i for i in now.timeline.pending(*COMPLETED_NAME) if i.requested_at in living]
    plans = {i.requested_at: now.plan_of(i.requested_at, i.action) for i in found}
    return frozenset(at for at, plan in plans.items() if plan is not None and plan.cancellable)


def check_pending(task: WriteTask, path: str) -> None:
    """Take a file back that appeared after its write was completed or taken back.

    A task that was given up for lost may still be running: a file that it makes then would belong
    to a completed write without being in its statistics, or to none at all. Looking before would
    not do: a large file takes long to appear.
    """
    if not _is_pending(task):
        task.storage.delete(path)
        raise ConflictError(
            "the write that this file belongs to has ended already",
            instant=task.instant,
            file=path,
        )


def _is_pending(task: WriteTask) -> bool:
    if task.attempt is not None:
        return task.attempt.counts(task.storage)
    found: Instant | None = load_timeline(task.storage, task.config).by_time.get(task.instant)
    return found is not None and found.state is not State.COMPLETED
