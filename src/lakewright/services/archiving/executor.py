"""Executes an archive plan in an order in which a crash at any point does no harm.

An instant is added to the archived timeline before its files are deleted from the active timeline.
A crash in between leaves it on both, where readers count it once; the next archiving run deletes it
from the active timeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakewright.errors import errors_in_file
from lakewright.format.archived_file import ArchivedInstant, Selection
from lakewright.model.instant import Action, Instant, State, is_time
from lakewright.services.archiving.history import HistoryWriter
from lakewright.services.archiving.planner import (
    ArchivedAction,
    ArchivePlan,
    ArchivingSettings,
    batches,
)
from lakewright.table.archived_timeline import entries_of_manifest
from lakewright.table.conflicts import max_timeline_time
from lakewright.table.damaged_commits import parse_completed
from lakewright.table.markers import FOLDER as MARKERS
from lakewright.table.snapshot import Snapshot

_ACTIONS_WITH_PLAN = frozenset(
    {
        Action.CLEAN,
        Action.REPLACE_COMMIT,
        Action.CLUSTERING,
        Action.COMPACTION,
        Action.LOG_COMPACTION,
    }
)


def archive(
    snapshot: Snapshot, plan: ArchivePlan, settings: ArchivingSettings
) -> tuple[Instant, ...]:
    """Execute a plan; the caller has held the table's lock since before loading the snapshot.

    Returns the instants that were archived. The caller deletes orphan files first
    (`delete_orphan_files`). Can be repeated after a crash at any point.
    """
    plan = _before_orphan_files(snapshot, plan)
    history = HistoryWriter.load(snapshot.storage, snapshot.config.history_folder)
    for batch in batches(plan, settings.batch):
        history.add(_entries(snapshot, _unarchived(history, batch)))
        _delete_timeline_files(snapshot, batch)
    if plan.actions:
        # Readers may have started with any manifest that this run published.
        history.delete_unreferenced(settings.manifests_retained + history.published)
    return plan.instants


def _before_orphan_files(snapshot: Snapshot, plan: ArchivePlan) -> ArchivePlan:
    """The part of the plan before the first write whose orphan files exist or may still appear.

    The active timeline must start before such a write: readers treat older files as committed, and
    do not check against the archived timeline which files a commit lists.
    """
    timeline = snapshot.timeline
    pending = {i.requested_at for i in timeline.pending()}
    latest = max_timeline_time(timeline)
    folders = [path.rpartition("/")[2] for path in snapshot.storage.list_folders(MARKERS)]
    archived = snapshot.archived_completions({at for at in folders if timeline.is_archived(at)})
    with_orphans = [
        at
        for at in folders
        if is_time(at)
        and at not in pending
        and at <= latest
        and not (timeline.is_archived(at) and at in archived)
    ]
    if not with_orphans:
        return plan
    earlier = [
        i.requested_at
        for i in timeline.writes_without_savepoint
        if i.requested_at < min(with_orphans)
    ]
    start = earlier[-1] if earlier else ""
    return ArchivePlan(tuple(a for a in plan.actions if a.completed.requested_at < start))


def _unarchived(history: HistoryWriter, actions: Sequence[ArchivedAction]) -> list[ArchivedAction]:
    """The actions that are not archived yet; a crashed run may have archived some of them."""
    times = {action.completed.requested_at for action in actions}
    entries = entries_of_manifest(
        history.storage, history.folder, history.manifest, Selection.of_times(times)
    )
    archived = {(entry.requested_at, entry.action) for entry in entries}
    return [a for a in actions if (a.completed.requested_at, a.completed.action) not in archived]


def _entries(snapshot: Snapshot, actions: Iterable[ArchivedAction]) -> list[ArchivedInstant]:
    to_archive = list(actions)
    plans = {action.completed: _plan_file(action) for action in to_archive}
    files = [*plans, *(plan for plan in plans.values() if plan is not None)]
    paths = [snapshot.timeline_path(file) for file in files]
    content = dict(zip(files, snapshot.storage.read_many(paths) if paths else [], strict=True))
    for completed in plans:
        # A damaged file can be repaired on the active timeline, but not once it is archived.
        with errors_in_file(snapshot.timeline_path(completed)):
            parse_completed(completed.action, content[completed])
    return [
        ArchivedInstant(
            completed.requested_at,
            completed.completed_at or "",
            completed.action,
            content[completed],
            (content[plan] or None) if plan is not None else None,
        )
        for completed, plan in plans.items()
    ]


def _plan_file(action: ArchivedAction) -> Instant | None:
    requested = [
        i for i in action.pending if i.state is State.REQUESTED and i.action in _ACTIONS_WITH_PLAN
    ]
    return requested[0] if requested else None


def _delete_timeline_files(snapshot: Snapshot, actions: Sequence[ArchivedAction]) -> None:
    """Delete the files of actions from the active timeline.

    The pending files are deleted first, so that a crash never makes an action look pending.
    """
    pending = [snapshot.timeline_path(file) for action in actions for file in action.pending]
    snapshot.storage.delete_many(pending)
    # One by one, oldest first, so that no reader sees a gap in the timeline.
    for action in sorted(actions, key=lambda item: item.completed.requested_at):
        snapshot.storage.delete(snapshot.timeline_path(action.completed))
