"""Moving instants into history, in an order that a death at any moment does no harm.

An instant is in history before it leaves the timeline. Who dies in between leaves it in both
places, where readers find it once; the next archiving takes it off the timeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lakewright.errors import ConflictError, CorruptError, found_in
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
from lakewright.model.instant import Instant, State, is_time
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

_WITH_PLAN = frozenset({"clean", "replacecommit", "clustering", "compaction", "logcompaction"})


@dataclass(frozen=True, slots=True)
class Archived:
    """What archiving did: the instants it took off the timeline, and how often levels merged."""

    instants: tuple[Instant, ...] = ()
    merges: int = 0


def archive(snapshot: Snapshot, plan: ArchivePlan, settings: ArchivingSettings) -> Archived:
    """Carry out a plan; the caller has held the table's lock since before the snapshot was loaded.

    Files that no commit lists are to be swept before (`strays.sweep_strays`). May be repeated after
    a death at any point.
    """
    plan = _before_orphan_files(snapshot, plan)
    history = _ArchivedTimelineWriter.of(snapshot)
    for part in batches(plan, settings.batch):
        history.add(_entries(snapshot, _unarchived(snapshot, part)))
        _delete_timeline_files(snapshot, part)
    merges = 0
    while history.merge(settings):
        merges += 1
    if plan.actions:
        # Readers may have begun with any state that was published on the way.
        history.sweep(settings.manifests_retained + history.published)
    return Archived(plan.instants, merges)


@dataclass
class _ArchivedTimelineWriter:
    """History as this process knows it, and goes on writing it."""

    storage: Storage
    folder: str
    manifest: Manifest
    version: int
    published: int = 0

    @classmethod
    def of(cls, snapshot: Snapshot) -> _ArchivedTimelineWriter:
        storage, folder = snapshot.storage, snapshot.config.history_folder
        numbers = [parse_manifest_name(file.name) for file in storage.list_files(folder)]
        # A manifest that no version names is of an archiver that died: its number is spent.
        version = max((number for number in numbers if number is not None), default=0)
        return cls(storage, folder, load_manifest(storage, folder), version)

    def add(self, entries: Sequence[ArchivedInstant]) -> None:
        """Make entries part of history."""
        if entries:
            file = self._write(entries, level=0)
            self._publish(Manifest((*self.manifest.files, file)))

    def merge(self, settings: ArchivingSettings) -> bool:
        """Merge files of a level that is full; False if none is."""
        merge = plan_level_merge(self.manifest, settings.merge_files, settings.merge_bytes)
        if merge is None:
            return False
        entries: dict[tuple[str, str], ArchivedInstant] = {}
        for source in merge.sources:
            path = f"{self.folder}/{source.name}"
            with found_in(path):
                for entry in parse_archived_file(self.storage.read(path)):
                    entries[entry.requested_at, entry.action] = entry
        file = self._write([*entries.values()], level=merge.target.level)
        self._publish(with_merge(self.manifest, merge, file.size))
        return True

    def sweep(self, keep: int) -> None:
        """Delete what only states of history refer to that are too old to keep."""
        names = [file.name for file in self.storage.list_files(self.folder)]
        numbered = {number: name for name in names if (number := parse_manifest_name(name))}
        manifests: dict[int, Manifest] = {}
        for number, name in numbered.items():
            # One that cannot be read may list any file: then all stay.
            with suppress(CorruptError):
                manifests[number] = parse_manifest(self.storage.read(f"{self.folder}/{name}"))
        if len(manifests) < len(numbered):
            return
        dead = find_unreferenced(manifests, names, keep)
        self.storage.delete_many(f"{self.folder}/{manifest_name(n)}" for n in dead.versions)
        self.storage.delete_many(f"{self.folder}/{name}" for name in dead.files)

    def _write(self, entries: Sequence[ArchivedInstant], level: int) -> ArchivedTimelineFile:
        data = format_archived_file(entries)
        name = archived_file_of(entries, level).name
        path = f"{self.folder}/{name}"
        try:
            self.storage.create(path, data)
        except ConflictError:
            if any(file.name == name for file in self.manifest.files):
                raise
            # No manifest lists it: an archiver died before it could.
            found = self.storage.read(path)
            if _keys(found) == {(entry.requested_at, entry.action) for entry in entries}:
                data = found
            else:
                self.storage.replace(path, data)
        return ArchivedTimelineFile.parse(name, len(data))

    def _publish(self, manifest: Manifest) -> None:
        self.version += 1
        path = f"{self.folder}/{manifest_name(self.version)}"
        # Two archivers without a lock in common meet here, and one of them fails.
        self.storage.create(path, format_manifest(manifest))
        self.storage.replace(f"{self.folder}/{VERSION_FILE}", format_version(self.version))
        self.manifest = manifest
        self.published += 1


def _keys(data: bytes) -> set[tuple[str, str]] | None:
    try:
        entries = parse_archived_file(data)
    except CorruptError:
        return None
    return {(entry.requested_at, entry.action) for entry in entries}


def _before_orphan_files(snapshot: Snapshot, plan: ArchivePlan) -> ArchivePlan:
    """The plan up to where files that no commit lists lie, or may still appear.

    The active timeline has to go on beginning before them: older ones count as committed, and
    readers do not look into history for what a commit lists.
    """
    timeline = snapshot.timeline
    known = {i.requested_at for i in timeline.pending()}
    latest = max_timeline_time(timeline)
    folders = [path.rpartition("/")[2] for path in snapshot.storage.list_folders(MARKERS)]
    strays = [
        at
        for at in folders
        if is_time(at)
        and at not in known
        and at <= latest
        and not (timeline.is_archived(at) and at in snapshot.archived_times)
    ]
    if not strays:
        return plan
    before = [
        i.requested_at for i in timeline.writes_without_savepoint if i.requested_at < min(strays)
    ]
    begin = before[-1] if before else ""
    return ArchivePlan(tuple(a for a in plan.actions if a.completed.requested_at < begin))


def _unarchived(snapshot: Snapshot, actions: Sequence[ArchivedAction]) -> list[ArchivedAction]:
    """Those that history does not have yet: an archiver may have died before it took them off."""
    times = [action.completed.requested_at for action in actions]
    folder = snapshot.config.history_folder
    entries = load_entries(snapshot.storage, folder, first=min(times), last=max(times))
    known = {(entry.requested_at, entry.action) for entry in entries}
    return [a for a in actions if (a.completed.requested_at, a.completed.action) not in known]


def _entries(snapshot: Snapshot, actions: Iterable[ArchivedAction]) -> list[ArchivedInstant]:
    wanted = list(actions)
    plans = {action.completed: _plan_file(action) for action in wanted}
    files = [*plans, *(plan for plan in plans.values() if plan is not None)]
    paths = [snapshot.timeline_path(file) for file in files]
    content = dict(zip(files, snapshot.storage.read_many(paths) if paths else [], strict=True))
    for completed in plans:
        # A damaged file can be put right on the timeline, and no more in history.
        with found_in(snapshot.timeline_path(completed)):
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
    requested = [i for i in action.pending if i.state is State.REQUESTED and i.action in _WITH_PLAN]
    return requested[0] if requested else None


def _delete_timeline_files(snapshot: Snapshot, actions: Sequence[ArchivedAction]) -> None:
    """Delete timeline files: what is left of an action must never look like a pending one."""
    pending = [snapshot.timeline_path(file) for action in actions for file in action.pending]
    snapshot.storage.delete_many(pending)
    # One by one and from the oldest on, so that no reader sees a hole in the timeline.
    for action in sorted(actions, key=lambda each: each.completed.requested_at):
        snapshot.storage.delete(snapshot.timeline_path(action.completed))
