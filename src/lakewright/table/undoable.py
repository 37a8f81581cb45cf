"""Which instants may be rolled back: those without which the table is what it was before them."""

from __future__ import annotations

from lakewright.core.commits import CommitMetadata
from lakewright.core.instant import WRITE_ACTIONS, Instant
from lakewright.core.slices import View
from lakewright.core.timeline import Timeline
from lakewright.errors import InvalidError
from lakewright.table.cleaned import slices_seen
from lakewright.table.conflicts import Kind, footprint_of_commit
from lakewright.table.history import held_from
from lakewright.table.snapshot import Snapshot


def require_write(instant: Instant) -> None:
    """InvalidError for what is neither a write nor a service."""
    if not instant.is_write:
        raise InvalidError("only writes and table services are rolled back", instant=str(instant))


def require_undoable(snapshot: Snapshot, instant: Instant) -> None:
    """InvalidError for an instant that must not be rolled back as the table is now."""
    timeline = snapshot.timeline
    require_write(instant)
    if timeline.by_time.get(instant.requested_at) != instant:
        raise InvalidError(
            "this is not how the instant stands on the timeline", instant=str(instant)
        )
    if instant.requested_at in timeline.saved:
        raise InvalidError(
            "a savepoint holds this instant: delete the savepoint first", instant=str(instant)
        )
    if instant.is_completed:
        (commit,) = snapshot.commits([instant])
        _check_newest(snapshot, instant, commit)
        _check_whole_without(snapshot, instant, commit)


def _check_newest(snapshot: Snapshot, instant: Instant, commit: CommitMetadata) -> None:
    groups, at = commit.file_groups(), instant.requested_at
    later = [i for i in snapshot.timeline if i.is_write and i.requested_at > at]
    if snapshot.timeline.plans.get(at) == "compaction":
        later = [i for i in later if not i.is_completed or _stands_on(snapshot, i, commit)]
    blocking = [str(i) for i in later if i.is_completed or i.action in WRITE_ACTIONS]
    blocking += [
        str(i)
        for i, plan in snapshot.pending_plans()
        if i.requested_at > at and groups & plan.file_groups
    ]
    if blocking:
        raise InvalidError(
            "only the newest write can be rolled back: roll back the later ones first, or restore",
            instant=str(instant),
            later=blocking,
        )


def _stands_on(snapshot: Snapshot, later: Instant, compaction: CommitMetadata) -> bool:
    """Whether a later write needs the base files of a compaction.

    A log file does not: without them it belongs to the base file before, as do those that they
    were made of.
    """
    (commit,) = snapshot.commits([later])
    other = footprint_of_commit(later, commit)
    touched = other.bases | other.replaced if other.kind is Kind.WRITE else other.groups
    return not touched.isdisjoint(footprint_of_commit(later, compaction).groups)


def _check_whole_without(snapshot: Snapshot, instant: Instant, commit: CommitMetadata) -> None:
    """Refuse where the table without this instant would lack rows it had before."""
    rest = Timeline(tuple(i for i in snapshot.timeline if i != instant))
    if snapshot.forgotten_with(rest):
        raise InvalidError(
            "the last write on the active timeline that no savepoint holds cannot be rolled back: "
            "readers would take archived ones for uncommitted",
            instant=str(instant),
        )
    at = instant.requested_at
    if rest.is_archived(at):
        raise InvalidError(
            "the first write on the active timeline cannot be rolled back under later ones: "
            "readers would take files that it leaves for archived",
            instant=str(instant),
        )
    if at in held_from(snapshot.storage, snapshot.config.history_folder, at):
        raise InvalidError(
            "archiving that was interrupted has this write in history already, which keeps it",
            instant=str(instant),
        )
    _, lost = slices_seen(snapshot, View(rest), commit.partitions, since=instant.requested_at)
    missing = [name for group in sorted(commit.file_groups() & lost.keys()) for name in lost[group]]
    if missing:
        raise InvalidError(
            "what this write replaced was cleaned, or is about to be: rolling it back would lose "
            "rows",
            instant=str(instant),
            files=missing,
        )
