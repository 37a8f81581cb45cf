"""Executes an archive plan in an order in which a crash at any point does no harm.

An instant is added to the archived timeline before its files are deleted from the active timeline.
A crash in between leaves it on both, where readers count it once; the next archiving run deletes it
from the active timeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lakewright.errors import ConflictError, CorruptError, errors_in_file
from lakewright.format.archived_timeline import (
    VERSION_FILE,
    ArchivedInstant,
    ArchivedTimelineFile,
    Manifest,
    archived_file_of,
    find_unreferenced,
    format_archived_file,
    format_manifest,
    format_version,
    manifest_name,
    parse_archived_file,
    parse_manifest,
    parse_manifest_name,
    plan_level_merge,
    with_merge,
)
from lakewright.model.instant import Action, Instant, State, is_time
from lakewright.services.archiving.planner import (
    ArchivedAction,
    ArchivePlan,
    ArchivingSettings,
    batches,
)
from lakewright.storage.base import Storage
from lakewright.table.archived_timeline import load_entries, load_manifest
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


@dataclass(frozen=True, slots=True)
class Archived:
    """The instants that were archived, and how often levels of archive files were merged."""

    instants: tuple[Instant, ...] = ()
    merges: int = 0


def archive(snapshot: Snapshot, plan: ArchivePlan, settings: ArchivingSettings) -> Archived:
    """Execute a plan; the caller has held the table's lock since before loading the snapshot.

    The caller deletes orphan files first (`delete_orphan_files`). Can be repeated after a crash at
    any point.
    """
    plan = _before_orphan_files(snapshot, plan)
    archived_timeline = _ArchivedTimelineWriter.load(snapshot)
    for batch in batches(plan, settings.batch):
        archived_timeline.add(_entries(snapshot, _unarchived(snapshot, batch)))
        _delete_timeline_files(snapshot, batch)
    merges = 0
    while archived_timeline.merge(settings):
        merges += 1
    if plan.actions:
        # Readers may have started with any manifest that this run published.
        archived_timeline.delete_unreferenced(
            settings.manifests_retained + archived_timeline.published
        )
    return Archived(plan.instants, merges)


@dataclass
class _ArchivedTimelineWriter:
    """Writes the archived timeline; `published` counts the manifests written by this run."""

    storage: Storage
    folder: str
    manifest: Manifest
    version: int
    published: int = 0

    @classmethod
    def load(cls, snapshot: Snapshot) -> _ArchivedTimelineWriter:
        storage, folder = snapshot.storage, snapshot.config.history_folder
        numbers = [parse_manifest_name(file.name) for file in storage.list_files(folder)]
        # A manifest newer than the version file is from a crashed run: its number is not reused.
        version = max((number for number in numbers if number is not None), default=0)
        return cls(storage, folder, load_manifest(storage, folder), version)

    def add(self, entries: Sequence[ArchivedInstant]) -> None:
        """Add entries to the archived timeline."""
        if entries:
            file = self._write(entries, level=0)
            self._publish(Manifest((*self.manifest.files, file)))

    def merge(self, settings: ArchivingSettings) -> bool:
        """Merge files of a level that is full; return whether there was one."""
        merge = plan_level_merge(self.manifest, settings.merge_files, settings.merge_bytes)
        if merge is None:
            return False
        entries: dict[tuple[str, str], ArchivedInstant] = {}
        for source in merge.sources:
            path = f"{self.folder}/{source.name}"
            with errors_in_file(path):
                for entry in parse_archived_file(self.storage.read(path)):
                    entries[entry.requested_at, entry.action] = entry
        file = self._write([*entries.values()], level=merge.target.level)
        self._publish(with_merge(self.manifest, merge, file.size))
        return True

    def delete_unreferenced(self, keep: int) -> None:
        """Delete all but the newest `keep` manifests, and the files that only those refer to."""
        names = [file.name for file in self.storage.list_files(self.folder)]
        numbered = {number: name for name in names if (number := parse_manifest_name(name))}
        manifests: dict[int, Manifest] = {}
        for number, name in numbered.items():
            # An unreadable manifest may list any file: then nothing is deleted.
            with suppress(CorruptError):
                manifests[number] = parse_manifest(self.storage.read(f"{self.folder}/{name}"))
        if len(manifests) < len(numbered):
            return
        unreferenced = find_unreferenced(manifests, names, keep)
        self.storage.delete_many(f"{self.folder}/{manifest_name(n)}" for n in unreferenced.versions)
        self.storage.delete_many(f"{self.folder}/{name}" for name in unreferenced.files)

    def _write(self, entries: Sequence[ArchivedInstant], level: int) -> ArchivedTimelineFile:
        data = format_archived_file(entries)
        name = archived_file_of(entries, level).name
        path = f"{self.folder}/{name}"
        try:
            self.storage.create(path, data)
        except ConflictError:
            if any(file.name == name for file in self.manifest.files):
                raise
            # No manifest lists the file: a run crashed before it published one.
            existing = self.storage.read(path)
            if _keys(existing) == {(entry.requested_at, entry.action) for entry in entries}:
                data = existing
            else:
                self.storage.replace(path, data)
        return ArchivedTimelineFile.parse(name, len(data))

    def _publish(self, manifest: Manifest) -> None:
        self.version += 1
        path = f"{self.folder}/{manifest_name(self.version)}"
        # If two processes archive without a common lock, one of them fails here.
        self.storage.create(path, format_manifest(manifest))
        self.storage.replace(f"{self.folder}/{VERSION_FILE}", format_version(self.version))
        self.manifest = manifest
        self.published += 1


def _keys(data: bytes) -> set[tuple[str, str]] | None:
    """Requested time and action of each entry of an archive file; None if it is corrupt."""
    try:
        entries = parse_archived_file(data)
    except CorruptError:
        return None
    return {(entry.requested_at, entry.action) for entry in entries}


def _before_orphan_files(snapshot: Snapshot, plan: ArchivePlan) -> ArchivePlan:
    """The part of the plan before the first write whose orphan files exist or may still appear.

    The active timeline must start before such a write: readers treat older files as committed, and
    do not check against the archived timeline which files a commit lists.
    """
    timeline = snapshot.timeline
    pending = {i.requested_at for i in timeline.pending()}
    latest = max_timeline_time(timeline)
    folders = [path.rpartition("/")[2] for path in snapshot.storage.list_folders(MARKERS)]
    with_orphans = [
        at
        for at in folders
        if is_time(at)
        and at not in pending
        and at <= latest
        and not (timeline.is_archived(at) and at in snapshot.archived_times)
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


def _unarchived(snapshot: Snapshot, actions: Sequence[ArchivedAction]) -> list[ArchivedAction]:
    """The actions that are not archived yet; a crashed run may have archived some of them."""
    times = [action.completed.requested_at for action in actions]
    folder = snapshot.config.history_folder
    entries = load_entries(snapshot.storage, folder, first=min(times), last=max(times))
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
