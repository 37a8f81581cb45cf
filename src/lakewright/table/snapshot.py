"""Snapshots: the table's properties and timeline, loaded once, and what they say about its files.

A snapshot is immutable. Commit metadata, plans, the archived timeline and file listings are loaded
when a query needs them.

The sections: listing partitions and their data files; `Snapshot`; loading a snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import chain

import pyarrow as pa

from lakewright.clock import zone_of
from lakewright.errors import CorruptError, InvalidError, UnsupportedError, errors_in_file
from lakewright.format.archived_file import Selection
from lakewright.format.avro.schema import arrow_schema
from lakewright.format.timeline_metadata import (
    parse_clean,
    parse_clean_plan,
    parse_commit,
    parse_commit_notes,
    parse_compaction_plan,
    parse_file_ids,
    parse_requested_replace,
)
from lakewright.model.commit_metadata import (
    READABLE_FROM,
    SERVICE_OPERATIONS,
    CommitMetadata,
    CommitNotes,
)
from lakewright.model.file_group import (
    PARTITION_METADATA,
    BaseFile,
    DuplicateBaseFileError,
    FileGroup,
    GroupKey,
    LogFile,
    TimelineView,
    build_groups,
    duplicate_base_instants,
    parse_data_file,
)
from lakewright.model.instant import (
    WRITE_ACTIONS,
    Action,
    Instant,
    InstantTime,
    State,
    is_time,
    parse_instant,
    parse_time,
)
from lakewright.model.plans import CleanPlan, ClusteringPlan, CompactionPlan
from lakewright.model.replaced_groups import ReplacedGroups
from lakewright.model.schema import query_schema
from lakewright.model.table_config import META_FOLDER, TableConfig
from lakewright.model.timeline import Timeline
from lakewright.storage.base import (
    FileStatus,
    MissingFileError,
    Storage,
    join_path,
    map_in_threads,
)
from lakewright.table.archived_timeline import (
    archived_clustering_plans,
    archived_completions,
    archived_instants,
    load_archived_metadata,
    load_entries,
    load_entries_archived_since,
    load_manifest,
)
from lakewright.table.markers import FOLDER as MARKERS
from lakewright.table.markers import marked_files
from lakewright.table.properties import PROPERTIES, load_properties, read_optional
from lakewright.utils.concurrent import gc_paused

DataFile = BaseFile | LogFile

# Listing partitions. A folder is a partition if it contains the partition metadata file, as for
# every other reader.

# Enough tasks to keep all threads busy until the end, and few enough that scheduling them costs
# nothing.
_MAX_LISTING_TASKS = 1000


def list_partitions(storage: Storage, exclude: Collection[str] = ()) -> dict[str, list[DataFile]]:
    """Return the data files of each partition, by partition path, except those in `exclude`."""
    excluded = frozenset(exclude)
    files_by_partition = data_files(storage.list_files("")) if "" not in excluded else {}
    folders = _folders_to_list(storage, excluded)
    batch_size = len(folders) // _MAX_LISTING_TASKS + 1
    batches = [folders[start : start + batch_size] for start in range(0, len(folders), batch_size)]
    # Each task reduces its listing to data files at once: a large table has many millions of names.
    for batch_files in map_in_threads(
        partial(_list_trees, storage), batches, storage.parallel_listings
    ):
        files_by_partition |= batch_files
    return {
        path: files_by_partition[path]
        for path in sorted(files_by_partition)
        if path not in excluded
    }


def _folders_to_list(storage: Storage, excluded: frozenset[str]) -> list[str]:
    """Return folders that contain every file outside the excluded partitions.

    Some of these folders may contain excluded partitions as well.
    """
    ancestors = {path[:end] for path in excluded for end, char in enumerate(path) if char == "/"}
    folders_to_list: list[str] = []
    parents = [""]
    while parents:
        levels = map_in_threads(storage.list_folders, parents, storage.parallel_listings)
        next_parents: list[str] = []
        for parent, children in zip(parents, levels, strict=True):
            folders = [f for f in children if f != META_FOLDER]
            others = [f for f in folders if f not in excluded and f not in ancestors]
            # One listing of the parent is cheaper than a listing of each of many subfolders.
            if parent and 2 * len(others) > len(folders):
                folders_to_list.append(parent)
            else:
                folders_to_list += others
                next_parents += [f for f in folders if f in ancestors]
        parents = next_parents
    return folders_to_list


def data_folders(storage: Storage) -> list[str]:
    """Return the topmost folders of a table that may contain partitions."""
    return [folder for folder in storage.list_folders("") if folder != META_FOLDER]


def _list_trees(storage: Storage, folders: list[str]) -> dict[str, list[DataFile]]:
    return data_files(chain.from_iterable(map(storage.list_tree, folders)))


def data_files(statuses: Iterable[FileStatus]) -> dict[str, list[DataFile]]:
    """Return the data files of those listed folders that are partitions, sorted by path."""
    by_folder: dict[str, list[tuple[str, int]]] = {}
    for status in statuses:
        folder, _, name = status.path.rpartition("/")
        by_folder.setdefault(folder, []).append((name, status.size))
    return {
        folder: [file for name, size in sorted(names) if (file := parse_data_file(name, size))]
        for folder, names in sorted(by_folder.items())
        if any(name.startswith(PARTITION_METADATA) for name, _ in names)
    }


# The snapshot.


FilesByPartition = Mapping[str, list[DataFile]]

# How much earlier than its completion time on the timeline storage may date a file.
_CLOCK_TOLERANCE_MS = 2 * 3_600_000
# A timeline in local time uses the zone of its writers, which may be any zone.
_LOCAL_ZONE_TOLERANCE_MS = 28 * 3_600_000
_PLANNED_ACTIONS = (Action.COMPACTION, Action.LOG_COMPACTION, Action.CLUSTERING)


@dataclass(frozen=True, slots=True)
class _Known:
    """What a snapshot of a worker knows without reading commits; None if it has to read them."""

    schema: str | None
    replaced: ReplacedGroups | None


@dataclass(frozen=True)
class Snapshot:
    """The table's properties and timeline as they were when the snapshot was loaded.

    It never changes: a commit that completes later is not visible. Each metadata file is read at
    most once. A pickled copy has none of what was read, except what `for_workers` has prepared.
    """

    storage: Storage
    config: TableConfig
    timeline: Timeline
    _commits: dict[str, CommitMetadata] = field(default_factory=dict, repr=False, compare=False)
    # Archived completion times that were looked up.
    _completions: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    # Set on the copies that are sent to workers, so that they do not list the markers for each
    # partition.
    _unlisted: frozenset[str] | None = field(default=None, repr=False, compare=False)
    # The content of files of which only a part was needed so far.
    _data: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    _prepared: _Known | None = field(default=None, repr=False, compare=False)
    _known: _Known | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        """Leave out what was read: commits of large writes would take longer than a task."""
        state = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            **state,
            "_commits": {},
            "_data": {},
            "_prepared": None,
            "_known": self._known or self._prepared,
        }

    @cached_property
    def archived(self) -> tuple[Instant, ...]:
        """All writes of the archived timeline, oldest first."""
        return self.archived_between("", "9")

    def archived_between(self, first: InstantTime, last: InstantTime) -> tuple[Instant, ...]:
        """Return the archived writes requested between two times, oldest first."""
        selection = Selection(first=first, last=last, actions=WRITE_ACTIONS)
        entries = load_entries(self.storage, self.config.history_folder, selection)
        # Archiving that is running, or has crashed, leaves instants on both timelines.
        active = self.timeline.by_time
        writes = archived_instants(entries, WRITE_ACTIONS)
        return tuple(i for i in writes if i.requested_at not in active)

    def archived_writes(self, requested: Collection[InstantTime]) -> dict[str, Instant]:
        """Return those archived writes that were requested at these times, by requested time."""
        times = {at for at in requested if at not in self.timeline.by_time}
        if not times:
            return {}
        entries = load_entries(self.storage, self.config.history_folder, Selection.of_times(times))
        return {i.requested_at: i for i in archived_instants(entries, WRITE_ACTIONS)}

    def has_history(self) -> bool:
        """Whether anything was ever archived."""
        return bool(load_manifest(self.storage, self.config.history_folder).files)

    @cached_property
    def archived_times(self) -> dict[str, str]:
        """The completion times of all archived writes, by requested time.

        Where only some are of interest, `archived_completions` reads less.
        """
        return {i.requested_at: i.completed_at or "" for i in self.archived}

    def archived_completions(self, requested: Collection[InstantTime]) -> dict[str, str]:
        """Return the completion times of those of these writes that the archived timeline has.

        This includes writes that interrupted archiving has left on the active timeline as well.
        Each that is found is looked up once.
        """
        missing = set(requested) - self._completions.keys()
        if missing:
            folder = self.config.history_folder
            self._completions.update(archived_completions(self.storage, folder, missing))
        return {at: self._completions[at] for at in requested if at in self._completions}

    def archived_after(
        self,
        completed_at: InstantTime,
        actions: Collection[str] = WRITE_ACTIONS,
        *,
        until: InstantTime | None = None,
    ) -> list[Instant]:
        """Return the archived writes that completed at a time or later, in no particular order.

        `actions` names other actions than writes. With `until` later ones are left out.

        Only files of the archived timeline that were written since then are read, with a tolerance:
        the clock of storage may differ from the clock of the timeline, and local times jump. Of
        these files only the row groups are read in which a write completed since then.
        """
        try:
            moment = parse_time(completed_at, zone_of(self.config.timeline_zone))
            local = self.config.timeline_zone.strip().upper() != "UTC"
            tolerance_ms = _LOCAL_ZONE_TOLERANCE_MS if local else _CLOCK_TOLERANCE_MS
            since_ms = int(moment.timestamp() * 1000) - tolerance_ms
        except InvalidError:
            since_ms = 0  # the time is no date, so every file has to be read
        selection = Selection(
            completed_from=completed_at,
            completed_until="9" if until is None else until,
            actions=frozenset(actions),
        )
        entries = load_entries_archived_since(
            self.storage, self.config.history_folder, since_ms, selection
        )
        active = self.timeline.by_time
        return [i for i in archived_instants(entries, actions) if i.requested_at not in active]

    def has_write(self, requested_at: InstantTime) -> bool:
        """Whether a write has completed and still exists, on the active or the archived timeline.

        A requested time before the start of the active timeline is no proof: the write may have
        been rolled back, and looks archived since then.
        """
        active = self.timeline.by_time.get(requested_at)
        if active is not None:
            return active.is_completed
        if not self.timeline.is_archived(requested_at):
            return False
        return bool(self.archived_completions({requested_at}))

    def archived_hidden_by(self, remaining: Timeline) -> list[str]:
        """Return the archived writes that would look uncommitted if the timeline was `remaining`.

        Pending writes do not define the start of the timeline here: they may be rolled back.
        """
        if remaining.writes_without_savepoint:
            return []
        completed_only = Timeline(tuple(i for i in remaining if i.is_completed))
        return sorted(at for at in self.archived_times if not completed_only.is_archived(at))

    def view(
        self,
        *,
        requested_until: InstantTime | None = None,
        completed_until: InstantTime | None = None,
    ) -> TimelineView:
        """Return the view of a query with these bounds; without any it sees all commits."""
        return TimelineView(
            self.timeline, requested_until=requested_until, completed_until=completed_until
        )

    def with_write(self, timeline: Timeline, at: str, commit: CommitMetadata) -> Snapshot:
        """Return the snapshot with a write of this process, whose metadata need not be read."""
        return replace(self, timeline=timeline, _commits={**self._commits, at: commit})

    def with_cached_commits(self, earlier: Snapshot) -> Snapshot:
        """Return the snapshot with the metadata an earlier one has read of unchanged writes."""
        unchanged = {
            at: commit
            for at, commit in earlier._commits.items()
            if self.timeline.by_time.get(at) == earlier.timeline.by_time.get(at)
        }
        return replace(self, _commits={**unchanged, **self._commits})

    def with_own_cache(self) -> Snapshot:
        """Return the snapshot with a cache of its own: what it reads is forgotten with it."""
        return replace(self, _commits=dict(self._commits), _data={})

    def for_workers(self) -> Snapshot:
        """Return the snapshot whose pickled copies know the schema, and what has been replaced.

        They know the replaced file groups if all replace commits were read already.
        """
        replacing = [i for i in self.view().writes() if i.action == Action.REPLACE_COMMIT]
        are_read = all(i.requested_at in self._commits for i in replacing)
        known = _Known(
            schema=self.avro_schema() if self.timeline.completed_writes else None,
            replaced=ReplacedGroups.of(self.replaced(self.view())) if are_read else None,
        )
        return replace(self, _commits=dict(self._commits), _data={}, _prepared=known)

    def _knows(self, view: TimelineView) -> bool:
        """Whether `view` is one of the whole timeline, on a worker."""
        is_bounded = view.requested_until is not None or view.completed_until is not None
        return self._known is not None and view.timeline is self.timeline and not is_bounded

    def commits(self, instants: Iterable[Instant]) -> list[CommitMetadata]:
        """Return the commit metadata of each of these completed writes, active or archived."""
        requested = list(instants)
        missing = [i for i in requested if i.requested_at not in self._commits]
        active = [i for i in missing if i.requested_at in self.timeline.by_time]
        contents = self._read_active(active)
        with gc_paused():
            for instant, data in zip(active, contents, strict=True):
                if data is not None:
                    with errors_in_file(self.timeline_path(instant)):
                        self._commits[instant.requested_at] = parse_commit(data)
                    self._data.pop(instant.requested_at, None)
        archived = {i.requested_at for i in missing} - self._commits.keys()
        if archived:
            self._load_archived(archived)
        return [self._commits[i.requested_at] for i in requested]

    def notes(self, instant: Instant) -> CommitNotes:
        """Return what one of these completed writes records besides its files."""
        data = self._data_of(instant)
        if data is None:
            (commit,) = self.commits([instant])
            return CommitNotes(operation=commit.operation, extra=commit.extra)
        with errors_in_file(self.timeline_path(instant)):
            return parse_commit_notes(data)

    def file_ids(self, instant: Instant) -> frozenset[str]:
        """Return the ids of the file groups that one of these completed writes changed."""
        data = self._data_of(instant)
        if data is None:
            return self.commits([instant])[0].file_ids()
        with errors_in_file(self.timeline_path(instant)):
            return parse_file_ids(data)

    def _data_of(self, instant: Instant) -> bytes | None:
        """Return the content of a write's completed file; None if it is archived, or parsed."""
        at = instant.requested_at
        if at in self._commits or at not in self.timeline.by_time:
            return None
        if at not in self._data:
            (data,) = self._read_active([instant])
            if data is None:
                return None
            self._data[at] = data
        return self._data[at]

    def _read_active(self, instants: list[Instant]) -> list[bytes | None]:
        """Return the content of timeline files; None for instants archived concurrently."""
        unread = [i for i in instants if i.requested_at not in self._data]
        paths = [self.timeline_path(instant) for instant in unread]
        try:
            read: list[bytes | None] = [*self.storage.read_many(paths)] if paths else []
        except MissingFileError:
            read = [read_optional(self.storage, path) for path in paths]
        found = dict(zip((i.requested_at for i in unread), read, strict=True))
        return [found.get(i.requested_at, self._data.get(i.requested_at)) for i in instants]

    def _load_archived(self, times: set[str]) -> None:
        folder = self.config.history_folder
        archived = load_archived_metadata(
            self.storage, folder, WRITE_ACTIONS, parse_commit, times=times
        )
        self._commits.update((i.requested_at, c) for i, c in archived)
        missing = sorted(times - self._commits.keys())
        if missing:
            raise CorruptError(
                "instants are neither on the active nor on the archived timeline", instants=missing
            )

    def archived_commits(
        self, *, first: InstantTime, last: InstantTime
    ) -> Iterator[tuple[Instant, CommitMetadata]]:
        """Yield the archived writes requested between two times, with their metadata."""
        folder = self.config.history_folder
        return load_archived_metadata(
            self.storage, folder, WRITE_ACTIONS, parse_commit, first=first, last=last
        )

    def schema(self, view: TimelineView) -> pa.Schema:
        """Return the query schema of the table as of the newest write that `view` sees."""
        stored = self.avro_schema(view)
        if stored is None:
            raise InvalidError(
                "the table has no schema yet: nothing was written", table=self.config.name
            )
        with errors_in_file(self.config.timeline_folder):
            return query_schema(arrow_schema(stored))

    def avro_schema(self, view: TimelineView | None = None) -> str | None:
        """Return the schema that the newest write visible to `view` has recorded, if any has."""
        if self._known is not None and self._known.schema and (not view or self._knows(view)):
            return self._known.schema
        for commit in self._commits_in_schema_order(view or self.view()):
            if commit.extra.get("latest_schema"):
                raise UnsupportedError(
                    "the table's schema was evolved by Hudi's schema-on-read",
                    table=self.config.name,
                )
            if commit.schema:
                return commit.schema
        return self.config.properties.get("hoodie.table.create.schema") or None

    def _commits_in_schema_order(self, view: TimelineView) -> Iterator[CommitNotes]:
        """Yield the commits that a view sees, in the order in which their schema counts.

        A table service does not change the schema: the schema it has recorded may lack a column of
        a write that started before it and completed after it. The archived timeline is loaded only
        if the caller gets that far.
        """
        service_commits = []
        for instant in sorted(view.writes(), key=lambda i: i.requested_at, reverse=True):
            commit = self.notes(instant)
            if commit.operation in SERVICE_OPERATIONS:
                service_commits.append(commit)
            else:
                yield commit
        yield from service_commits
        archived_view = replace(view, archived=self.archived_times)
        for instant in reversed(self.archived):
            if archived_view.includes(instant.requested_at):
                yield self.notes(instant)

    def replaced(self, view: TimelineView) -> set[GroupKey]:
        """Return the file groups that replace commits have removed from the table."""
        unwindowed = replace(view, requested_from=None)
        return {key for key, _ in self.replacements(unwindowed.writes())}

    def replacements(self, writes: Iterable[Instant]) -> Iterator[tuple[GroupKey, Instant]]:
        """Yield the file groups that the replace commits among these writes removed, with each."""
        instants = [i for i in writes if i.action == Action.REPLACE_COMMIT]
        for instant, commit in zip(instants, self.commits(instants), strict=True):
            for partition, file_ids in commit.replaced.items():
                yield from (((partition, file_id), instant) for file_id in file_ids)

    def files(
        self, partitions: Iterable[str] | None = None, *, exclude: Collection[str] = ()
    ) -> dict[str, list[DataFile]]:
        """Return the data files of the named partitions, or of all partitions except `exclude`.

        Files of task attempts that are not part of their completed write are left out.
        """
        if partitions is not None:
            listed = self.storage.list_many(dict.fromkeys(partitions))
            files_by_partition = data_files(status for files in listed.values() for status in files)
        else:
            files_by_partition = list_partitions(self.storage, exclude)
        # The markers are read after the files were listed: each marker was created before its file.
        return self.without_unlisted(files_by_partition)

    def without_unlisted(self, files: dict[str, list[DataFile]]) -> dict[str, list[DataFile]]:
        """Return the files of partitions without those that their commits do not list."""
        unlisted = self.unlisted_files()
        if not unlisted:
            return files
        return {
            partition: [f for f in names if join_path(partition, f.name) not in unlisted]
            for partition, names in files.items()
        }

    def unlisted_files(self) -> frozenset[str]:
        """Return the data files with a committed instant that no commit lists, by markers.

        A task attempt creates such a file if it continues after its write has finished and is
        killed before it notices. Costs one listing where there are no markers.
        """
        if self._unlisted is not None:
            return self._unlisted
        paths: set[str] = set()
        for folder in self.storage.list_folders(MARKERS):
            at = folder.rpartition("/")[2]
            if is_time(at) and self.timeline.is_committed(at):
                # Damaged markers name no file, and a damaged commit fails in the readers that read
                # it.
                with suppress(CorruptError):
                    paths.update(self.unlisted_files_of(at))
        return frozenset(paths)

    def unlisted_files_of(self, requested_at: InstantTime) -> tuple[str, ...]:
        """Return the files that an instant has marked and that its commit does not list.

        The instant must not be pending: if it is on neither timeline, its write was aborted.
        """
        write = self.timeline.by_time.get(requested_at)
        if write is None and self.timeline.is_archived(requested_at):
            write = self.archived_writes({requested_at}).get(requested_at)
        names = (
            self.commits([write])[0].referenced_file_names() if write is not None else frozenset()
        )
        marked = marked_files(self.storage, requested_at)
        return tuple(path for path in marked if path.rpartition("/")[2] not in names)

    def with_unlisted_files(self, unlisted: Iterable[str]) -> Snapshot:
        """Return the snapshot with these unlisted files, so that workers list no markers."""
        return replace(self, _unlisted=frozenset(unlisted))

    def groups(self, view: TimelineView, files: FilesByPartition | None = None) -> list[FileGroup]:
        """Return the file groups that `view` sees, of all files or of `files`."""
        listed = self.files() if files is None else files
        view = self.with_completion_times(view, listed)
        try:
            return self._build_file_groups(view, listed)
        except DuplicateBaseFileError:
            return self._build_file_groups(view, self._without_duplicate_bases(view, listed))

    def _build_file_groups(self, view: TimelineView, files: FilesByPartition) -> list[FileGroup]:
        replaced: Container[GroupKey] | None = None
        if self._known is not None and self._knows(view):
            replaced = self._known.replaced
        if replaced is None:
            replaced = self.replaced(view)
        return [
            group
            for partition, names in files.items()
            for group in build_groups(partition, names, view, replaced=replaced)
        ]

    def _without_duplicate_bases(
        self, view: TimelineView, files: FilesByPartition
    ) -> FilesByPartition:
        """Of two base files of one file group and one instant, keep the one that the commit lists.

        The other was written by a task attempt that is not part of the completed write, and its
        marker is deleted, as is the case where the writer was real Hudi.
        """
        instants = {i.requested_at: i for i in self.timeline.completed_writes}
        duplicated = {
            at
            for names in files.values()
            for at in duplicate_base_instants(names)
            if view.includes(at)
        }
        instants |= self.archived_writes({at for at in duplicated if self.timeline.is_archived(at)})
        resolvable = duplicated & instants.keys()
        listed = {at: self.commits([instants[at]])[0].referenced_file_names() for at in resolvable}
        return {
            partition: [f for f in names if f.instant not in listed or f.name in listed[f.instant]]
            for partition, names in files.items()
        }

    def with_completion_times(self, view: TimelineView, files: FilesByPartition) -> TimelineView:
        """Return the view with the archived completion times that building slices needs."""
        needed = {
            file.instant
            for names in files.values()
            for file in names
            if (isinstance(file, LogFile) or view.completed_until is not None)
            and self.timeline.is_archived(file.instant)
        }
        needed -= view.archived.keys()
        if not needed:
            return view
        entries = load_entries(self.storage, self.config.history_folder, Selection.of_times(needed))
        completion_times = {e.requested_at: e.completed_at for e in entries}
        return replace(view, archived={**view.archived, **completion_times})

    def earliest_retained(self) -> str | None:
        """The oldest requested time whose files the cleaner retains; None if no clean ever ran.

        A pending clean, running or crashed, may have deleted everything in its plan.
        """
        candidates = [_readable_from(plan) for _, plan in self.pending_cleans()]
        cleans = self.timeline.completed(Action.CLEAN)
        if cleans:
            path = self.timeline_path(cleans[-1])
            with errors_in_file(path):
                candidates.append(parse_clean(self.storage.read(path)).readable_from)
        return max((at for at in candidates if at is not None), default=None)

    def pending_cleans(self) -> list[tuple[Instant, CleanPlan]]:
        """Return the pending cleans with a plan; one without a plan has deleted nothing yet."""
        cleans = []
        for instant in self.timeline.pending(Action.CLEAN):
            path = self.timeline_path(replace(instant, state=State.REQUESTED))
            data = read_optional(self.storage, path)
            # Not every writer creates a file atomically: it may have crashed before the plan was
            # written.
            if data:
                with errors_in_file(path):
                    cleans.append((instant, parse_clean_plan(data)))
        return cleans

    def pending_plans(self) -> list[tuple[Instant, CompactionPlan | ClusteringPlan]]:
        """Return the pending compactions, log compactions and clusterings with their plans."""
        plans = []
        for instant in self.timeline.pending(*_PLANNED_ACTIONS):
            plan = self.plan_of(instant.requested_at, instant.action)
            if plan is not None:
                plans.append((instant, plan))
        return plans

    def plan_of(
        self, requested_at: InstantTime, action: Action
    ) -> CompactionPlan | ClusteringPlan | None:
        """Return the plan that was scheduled at this time as this action.

        None if it does not exist: it was rolled back, or completed and archived, since the timeline
        was listed.
        """
        path = self.timeline_path(Instant(requested_at, action, State.REQUESTED))
        data = read_optional(self.storage, path)
        if data is None:
            return None
        with errors_in_file(path):
            if action == Action.CLUSTERING:
                return parse_requested_replace(data).plan
            return parse_compaction_plan(data)

    def clustering_plans(self, times: Iterable[str]) -> dict[str, ClusteringPlan]:
        """Return the plans of those clusterings that have completed at some of these instants.

        Of the archived plans only those of replace commits at these instants are read.
        """
        requested = set(times)
        completed = {i.requested_at for i in self.timeline.completed_services(Action.CLUSTERING)}
        plans = {at: self.plan_of(at, Action.CLUSTERING) for at in sorted(requested & completed)}
        before = {at for at in requested if self.timeline.is_archived(at)}
        if before:
            plans |= archived_clustering_plans(self.storage, self.config.history_folder, before)
        return {at: plan for at, plan in plans.items() if isinstance(plan, ClusteringPlan)}

    def timeline_path(self, instant: Instant) -> str:
        """Return the path of an instant's timeline file, relative to the table."""
        return f"{self.config.timeline_folder}/{instant.file_name}"


def _readable_from(plan: CleanPlan) -> str | None:
    retained = plan.earliest_to_retain
    recorded = plan.extra.get(READABLE_FROM, "")
    return max(retained.requested_at if retained is not None else "", recorded) or None


# Loading.


def load_snapshot(storage: Storage) -> Snapshot:
    """Load the table's properties and list its timeline once."""
    return load_snapshot_and_files(storage)[0]


def load_consistent_snapshot(storage: Storage) -> Snapshot:
    """Load the table as of one moment: every write that had completed by then, and no later one.

    A listing takes time, so it is not the state at one moment: a write that completes while it runs
    may be missing from it although a write that completed later is in it. A reader that remembers
    how far it has read would then never see the first one. Therefore the timeline is listed twice:
    the second listing contains every write that had completed when the first listing was finished.
    """
    first = load_snapshot(storage)
    latest = max((i.completed_at or "" for i in first.timeline), default="")
    files = list_timeline(storage, first.config)
    # Other instants are kept: a savepoint decides where the timeline starts.
    instants = (i for i in files if not i.is_write or (i.completed_at or "") <= latest)
    return replace(first, timeline=Timeline.from_instants(instants), _commits={}, _data={})


def load_snapshot_and_files(storage: Storage) -> tuple[Snapshot, tuple[Instant, ...]]:
    """Load the table and every file of its timeline, including the earlier states of an instant."""
    with errors_in_file(PROPERTIES):
        config = TableConfig.from_properties(load_properties(storage))
    files = list_timeline(storage, config)
    return Snapshot(storage, config, Timeline.from_instants(files)), files


def load_timeline(storage: Storage, config: TableConfig) -> Timeline:
    """List the timeline now."""
    return Timeline.from_instants(list_timeline(storage, config))


def list_timeline(storage: Storage, config: TableConfig) -> tuple[Instant, ...]:
    """Return every file of the timeline as an instant, in the order of the file names."""
    instants = [parse_instant(file.name) for file in storage.list_files(config.timeline_folder)]
    return tuple(i for i in instants if i is not None)
