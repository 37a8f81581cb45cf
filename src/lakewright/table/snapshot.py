"""A table as of one look at its timeline; the rest is loaded when a query asks for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain

import pyarrow as pa

from lakewright.clock import zone_of
from lakewright.errors import CorruptError, InvalidError, UnsupportedError, found_in
from lakewright.format.avro.schema import arrow_schema
from lakewright.format.timeline_metadata import (
    parse_clean,
    parse_clean_plan,
    parse_commit,
    parse_compaction_plan,
    parse_requested_replace,
)
from lakewright.model.commit_metadata import READABLE_FROM, SERVICE_OPERATIONS, CommitMetadata
from lakewright.model.file_group import (
    PARTITION_METADATA,
    BaseFile,
    DuplicateBaseFileError,
    FileGroup,
    FileSlice,
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
from lakewright.model.schema import query_schema
from lakewright.model.table_config import TableConfig
from lakewright.model.timeline import Timeline
from lakewright.storage.base import (
    FileStatus,
    MissingFileError,
    Storage,
    join_path,
    map_in_threads,
    split_path,
)
from lakewright.table.archived_timeline import (
    archived_times_in,
    load_entries,
    load_entries_archived_since,
    write_instants,
)
from lakewright.table.markers import FOLDER as MARKERS
from lakewright.table.markers import marked_files
from lakewright.table.properties import PROPERTIES, load_properties, read_optional
from lakewright.utils.concurrent import many_values

DataFile = BaseFile | LogFile

_META_FOLDER = ".hoodie"
# Enough to keep all threads busy to the end, and few enough that handing them out costs nothing.
_MOST_PIECES = 1000


def list_partitions(storage: Storage, exclude: Collection[str] = ()) -> dict[str, list[DataFile]]:
    """The data files of all partitions, by path, or of all but some that need not be listed."""
    known = frozenset(exclude)
    found = data_files(storage.list_files("")) if "" not in known else {}
    folders = _other_folders(storage, known)
    step = len(folders) // _MOST_PIECES + 1
    pieces = [folders[start : start + step] for start in range(0, len(folders), step)]
    # Each listing shrinks to its data files at once: a large table has many millions of names.
    for part in map_in_threads(partial(_trees, storage), pieces, storage.parallel_listings):
        found |= part
    return {path: found[path] for path in sorted(found) if path not in known}


def _other_folders(storage: Storage, known: frozenset[str]) -> list[str]:
    """Folders that hold whatever is in none of the known partitions; some may hold known ones."""
    above = {path[:end] for path in known for end, sign in enumerate(path) if sign == "/"}
    found: list[str] = []
    waiting = [""]
    while waiting:
        levels = map_in_threads(storage.list_folders, waiting, storage.parallel_listings)
        deeper: list[str] = []
        for parent, level in zip(waiting, levels, strict=True):
            folders = [f for f in level if f != _META_FOLDER]
            others = [f for f in folders if f not in known and f not in above]
            # One listing of all is cheaper than one of each of many.
            if parent and 2 * len(others) > len(folders):
                found.append(parent)
            else:
                found += others
                deeper += [f for f in folders if f in above]
        waiting = deeper
    return found


def _trees(storage: Storage, folders: list[str]) -> dict[str, list[DataFile]]:
    return data_files(chain.from_iterable(map(storage.list_tree, folders)))


def data_files(statuses: Iterable[FileStatus]) -> dict[str, list[DataFile]]:
    """The data files of listed folders, of those that are partitions; sorted by folder and name."""
    by_folder: dict[str, list[tuple[str, int]]] = {}
    for status in statuses:
        folder, _, name = status.path.rpartition("/")
        by_folder.setdefault(folder, []).append((name, status.size))
    return {
        folder: [file for name, size in sorted(names) if (file := parse_data_file(name, size))]
        for folder, names in sorted(by_folder.items())
        if any(name.startswith(PARTITION_METADATA) for name, _ in names)
    }


# ------------------------------------------------------------------------------------------------
# The partitions of a table and their data files, as storage lists them.
#
# A folder is a partition if it holds the partition metadata file, as for every other reader.


FilesByPartition = Mapping[str, list[DataFile]]

# How much earlier than the timeline says a file may seem to have been written.
_UNSURE_MS = 2 * 3_600_000
# The zone of a table in local time is that of its writers, wherever they are.
_UNSURE_LOCAL_MS = 28 * 3_600_000
_PLANNED = (Action.COMPACTION, Action.LOG_COMPACTION, Action.CLUSTERING)


@dataclass(frozen=True)
class Snapshot:
    """The table's properties and timeline as they were when it was loaded.

    It never changes: a commit that completes later is not seen. Metadata files are read once.
    """

    storage: Storage
    config: TableConfig
    timeline: Timeline
    _commits: dict[str, CommitMetadata] = field(default_factory=dict, repr=False, compare=False)
    # Set where it travels to workers, which do not ask for each partition.
    _unlisted: frozenset[str] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def archived(self) -> tuple[Instant, ...]:
        """The writes in the archived timeline, oldest first."""
        entries = load_entries(self.storage, self.config.history_folder)
        # An archiver that is at work, or has died, leaves instants in both places.
        active = self.timeline.by_time
        return tuple(i for i in write_instants(entries) if i.requested_at not in active)

    @cached_property
    def archived_times(self) -> dict[str, str]:
        """The completion times of the archived writes, by requested time."""
        return {i.requested_at: i.completed_at or "" for i in self.archived}

    def archived_after(self, completed_at: InstantTime) -> list[Instant]:
        """The archived writes that completed at a time or later, in no particular order.

        Only files of history are read that were written since. The clock of storage may differ
        from the timeline's, and local times jump.
        """
        try:
            moment = parse_time(completed_at, zone_of(self.config.timeline_zone))
            local = self.config.timeline_zone.strip().upper() != "UTC"
            unsure_ms = _UNSURE_LOCAL_MS if local else _UNSURE_MS
            since_ms = int(moment.timestamp() * 1000) - unsure_ms
        except InvalidError:
            since_ms = 0  # no date, which tells nothing
        entries = load_entries_archived_since(self.storage, self.config.history_folder, since_ms)
        active = self.timeline.by_time
        return [
            i
            for i in write_instants(entries)
            if (i.completed_at or "") >= completed_at and i.requested_at not in active
        ]

    def has_write(self, requested_at: InstantTime) -> bool:
        """Whether a write has completed and is still there, on the timeline or in history.

        What was rolled back may lie before the active timeline by now, as if it was archived.
        """
        active = self.timeline.by_time.get(requested_at)
        if active is not None:
            return active.is_completed
        if not self.timeline.is_archived(requested_at):
            return False
        folder = self.config.history_folder
        return requested_at in archived_times_in(self.storage, folder, requested_at, requested_at)

    def archived_hidden_by(self, rest: Timeline) -> list[str]:
        """The archived writes that readers would take for uncommitted, were `rest` the timeline.

        Pending writes do not mark its beginning here: they may be rolled back.
        """
        if rest.writes_without_savepoint:
            return []
        firm = Timeline(tuple(i for i in rest if i.is_completed))
        return sorted(at for at in self.archived_times if not firm.is_archived(at))

    def view(
        self,
        *,
        requested_until: InstantTime | None = None,
        completed_until: InstantTime | None = None,
    ) -> TimelineView:
        """What a query sees that is bounded like this; unbounded it sees all that is committed."""
        return TimelineView(
            self.timeline, requested_until=requested_until, completed_until=completed_until
        )

    def with_write(self, timeline: Timeline, at: str, commit: CommitMetadata) -> Snapshot:
        """The table with a write that this process knows: its metadata is not read again."""
        return replace(self, timeline=timeline, _commits={**self._commits, at: commit})

    def with_cached_commits(self, earlier: Snapshot) -> Snapshot:
        """The same, with what an earlier look has read of writes that have not changed since."""
        same = {
            at: commit
            for at, commit in earlier._commits.items()
            if self.timeline.by_time.get(at) == earlier.timeline.by_time.get(at)
        }
        return replace(self, _commits={**same, **self._commits})

    def commits(self, instants: Iterable[Instant]) -> list[CommitMetadata]:
        """What each of these completed writes did, active or archived."""
        wanted = list(instants)
        missing = [i for i in wanted if i.requested_at not in self._commits]
        active = [i for i in missing if i.requested_at in self.timeline.by_time]
        read = self._read_active(active)
        with many_values():
            for instant, data in zip(active, read, strict=True):
                if data is not None:
                    with found_in(self.timeline_path(instant)):
                        self._commits[instant.requested_at] = parse_commit(data)
        archived = {i.requested_at for i in missing} - self._commits.keys()
        if archived:
            self._load_archived(archived)
        return [self._commits[i.requested_at] for i in wanted]

    def _read_active(self, instants: list[Instant]) -> list[bytes | None]:
        """The timeline files of instants; None for one that was archived meanwhile."""
        paths = [self.timeline_path(instant) for instant in instants]
        try:
            return list(self.storage.read_many(paths)) if paths else []
        except MissingFileError:
            return [read_optional(self.storage, path) for path in paths]

    def _load_archived(self, times: set[str]) -> None:
        entries = load_entries(
            self.storage,
            self.config.history_folder,
            first=min(times),
            last=max(times),
            with_content=True,
        )
        for entry in entries:
            is_write = entry.action in WRITE_ACTIONS
            if entry.requested_at in times and entry.metadata and is_write:
                with found_in(f"{self.config.history_folder}: {entry.requested_at}"):
                    self._commits[entry.requested_at] = parse_commit(entry.metadata)
        lost = sorted(times - self._commits.keys())
        if lost:
            raise CorruptError("instants are neither on the timeline nor in history", instants=lost)

    def schema(self, view: TimelineView) -> pa.Schema:
        """The query schema of the table as the newest write that `view` sees has left it."""
        stored = self.avro_schema(view)
        if stored is None:
            raise InvalidError(
                "the table has no schema yet: nothing was written", table=self.config.name
            )
        with found_in(self.config.timeline_folder):
            return query_schema(arrow_schema(stored))

    def avro_schema(self, view: TimelineView | None = None) -> str | None:
        """The table's schema as the newest write that `view` sees has recorded it, if any has."""
        for commit in self._by_schema(view or self.view()):
            if commit.extra.get("latest_schema"):
                raise UnsupportedError(
                    "the table's schema was evolved by Hudi's schema-on-read",
                    table=self.config.name,
                )
            if commit.schema:
                return commit.schema
        return self.config.properties.get("hoodie.table.create.schema") or None

    def _by_schema(self, view: TimelineView) -> Iterator[CommitMetadata]:
        """What writes that a view sees did, in the order in which their schema counts.

        A service does not change the schema: the one it has recorded may lack a column of a write
        that began before it and completed after it. History is loaded only if asked for.
        """
        passed = []
        for instant in sorted(view.writes(), key=lambda i: i.requested_at, reverse=True):
            (commit,) = self.commits([instant])
            if commit.operation in SERVICE_OPERATIONS:
                passed.append(commit)
            else:
                yield commit
        yield from passed
        known = replace(view, archived=self.archived_times)
        for instant in reversed(self.archived):
            if known.includes(instant.requested_at):
                yield from self.commits([instant])

    def replaced(self, view: TimelineView) -> set[GroupKey]:
        """The file groups that a replace commit has taken out of the table."""
        whole = replace(view, requested_from=None)
        instants = [i for i in whole.writes() if i.action == "replacecommit"]
        return {
            (partition, file_id)
            for commit in self.commits(instants)
            for partition, file_ids in commit.replaced.items()
            for file_id in file_ids
        }

    def files(
        self, partitions: Iterable[str] | None = None, *, exclude: Collection[str] = ()
    ) -> dict[str, list[DataFile]]:
        """The data files in each partition: of all `besides` some, or of those named.

        Those of task attempts that their write has completed without are not among them.
        """
        if partitions is not None:
            listed = self.storage.list_many(dict.fromkeys(partitions))
            found = data_files(status for files in listed.values() for status in files)
        else:
            found = list_partitions(self.storage, exclude)
        # Asked after the files were listed: the marker of each of them was there before it.
        return self.without_unlisted(found)

    def without_unlisted(self, files: dict[str, list[DataFile]]) -> dict[str, list[DataFile]]:
        """The files of partitions without those that their commits do not list."""
        unlisted = self.unlisted_files()
        if not unlisted:
            return files
        return {
            partition: [f for f in names if join_path(partition, f.name) not in unlisted]
            for partition, names in files.items()
        }

    def unlisted_files(self) -> frozenset[str]:
        """Data files that count by their names and that no commit lists, by what markers tell.

        A task attempt that goes on after its write has ended makes such a file, and is killed
        before it finds that out. One listing where there is none.
        """
        if self._unlisted is not None:
            return self._unlisted
        found: set[str] = set()
        for folder in self.storage.list_folders(MARKERS):
            at = folder.rpartition("/")[2]
            if is_time(at) and self.timeline.is_committed(at):
                # Damaged markers name no file, and a damaged commit fails those who read it.
                with suppress(CorruptError):
                    found.update(self.unlisted_files_of(at))
        return frozenset(found)

    def unlisted_files_of(self, requested_at: InstantTime) -> tuple[str, ...]:
        """The files that an instant has marked and no commit of it lists.

        It is not pending: where it is neither completed nor in history, its write was aborted.
        """
        write = self.timeline.by_time.get(requested_at)
        if write is None and self.timeline.is_archived(requested_at):
            write = next((i for i in self.archived if i.requested_at == requested_at), None)
        names = self.commits([write])[0].named_files() if write is not None else frozenset()
        marked = marked_files(self.storage, requested_at)
        return tuple(path for path in marked if path.rpartition("/")[2] not in names)

    def with_unlisted_files(self, unlisted: Iterable[str]) -> Snapshot:
        """The same, which takes these for all unlisted files: workers do not ask again."""
        return replace(self, _unlisted=frozenset(unlisted))

    def groups(self, view: TimelineView, files: FilesByPartition | None = None) -> list[FileGroup]:
        """The file groups that `view` sees, by partition and file id; of all files, or of these."""
        listed = self.files() if files is None else files
        view = self.with_completion_times(view, listed)
        try:
            return self._sliced(view, listed)
        except DuplicateBaseFileError:
            return self._sliced(view, self._without_duplicate_bases(view, listed))

    def _sliced(self, view: TimelineView, files: FilesByPartition) -> list[FileGroup]:
        replaced = self.replaced(view)
        return [
            group
            for partition, names in files.items()
            for group in build_groups(partition, names, view, replaced=replaced)
        ]

    def _without_duplicate_bases(
        self, view: TimelineView, files: FilesByPartition
    ) -> FilesByPartition:
        """Of two base files of one file group and one instant the one that the commit lists.

        The other is of a task attempt that the write has completed without, and whose marker is
        gone, as is the case where real Hudi was the writer.
        """
        instants = {i.requested_at: i for i in self.timeline.completed_writes}
        twins = {
            at
            for names in files.values()
            for at in duplicate_base_instants(names)
            if view.includes(at)
        }
        if any(self.timeline.is_archived(at) for at in twins):
            instants |= {i.requested_at: i for i in self.archived}
        known = twins & instants.keys()
        listed = {at: self.commits([instants[at]])[0].named_files() for at in known}
        return {
            partition: [f for f in names if f.instant not in listed or f.name in listed[f.instant]]
            for partition, names in files.items()
        }

    def with_completion_times(self, view: TimelineView, files: FilesByPartition) -> TimelineView:
        """The view with the completion times of archived instants that slicing asks for."""
        wanted = {
            file.instant
            for names in files.values()
            for file in names
            if (isinstance(file, LogFile) or view.completed_until is not None)
            and self.timeline.is_archived(file.instant)
        }
        wanted -= view.archived.keys()
        if not wanted:
            return view
        entries = load_entries(
            self.storage, self.config.history_folder, first=min(wanted), last=max(wanted)
        )
        known = {e.requested_at: e.completed_at for e in entries if e.requested_at in wanted}
        return replace(view, archived={**view.archived, **known})

    def earliest_retained(self) -> str | None:
        """The oldest requested time whose files the cleaner leaves in place, if it ever ran.

        A clean that is under way, or has died, may have deleted all that it planned to.
        """
        known = [_readable_from(plan) for _, plan in self.pending_cleans()]
        cleans = self.timeline.completed(Action.CLEAN)
        if cleans:
            path = self.timeline_path(cleans[-1])
            with found_in(path):
                known.append(parse_clean(self.storage.read(path)).readable_from)
        return max((at for at in known if at is not None), default=None)

    def pending_cleans(self) -> list[tuple[Instant, CleanPlan]]:
        """The cleans that were planned and have not ended; one without a plan did nothing yet."""
        found = []
        for instant in self.timeline.pending(Action.CLEAN):
            path = self.timeline_path(replace(instant, state=State.REQUESTED))
            data = read_optional(self.storage, path)
            # Not every writer creates a file in one step: it may have died before the plan was in.
            if data:
                with found_in(path):
                    found.append((instant, parse_clean_plan(data)))
        return found

    def pending_plans(self) -> list[tuple[Instant, CompactionPlan | ClusteringPlan]]:
        """The compactions, log compactions and clusterings that wait to be executed."""
        found = []
        for instant in self.timeline.pending(*_PLANNED):
            plan = self.plan_of(instant.requested_at, instant.action)
            if plan is not None:
                found.append((instant, plan))
        return found

    def plan_of(
        self, requested_at: InstantTime, action: Action
    ) -> CompactionPlan | ClusteringPlan | None:
        """The plan that was scheduled at a time as one of these actions.

        None if it is not there: rolled back, or completed and archived, since the timeline was
        listed.
        """
        path = self.timeline_path(Instant(requested_at, action, State.REQUESTED))
        data = read_optional(self.storage, path)
        if data is None:
            return None
        with found_in(path):
            if action == "clustering":
                return parse_requested_replace(data).plan
            return parse_compaction_plan(data)

    def timeline_path(self, instant: Instant) -> str:
        """The path of an instant's timeline file, relative to the table."""
        return f"{self.config.timeline_folder}/{instant.file_name}"


def _readable_from(plan: CleanPlan) -> str | None:
    retained = plan.earliest_to_retain
    told = plan.extra.get(READABLE_FROM, "")
    return max(retained.requested_at if retained is not None else "", told) or None


def load_snapshot(storage: Storage) -> Snapshot:
    """Look at the table now: its properties, and one listing of its timeline."""
    return load_snapshot_and_files(storage)[0]


def load_consistent_snapshot(storage: Storage) -> Snapshot:
    """The table as it was at one moment: all that had completed by then, and nothing later.

    A listing is no moment. Who completes while it runs may be missing from it, though another one
    that completed after it is not; whoever remembers how far it has read would never look for it
    again. What a second listing finds that had completed when the first was at its end is whole.
    """
    first = load_snapshot(storage)
    last = max((i.completed_at or "" for i in first.timeline), default="")
    files = list_timeline(storage, first.config)
    # What is no write stays: a savepoint tells where the timeline begins.
    kept = (i for i in files if not i.is_write or (i.completed_at or "") <= last)
    return replace(first, timeline=Timeline.of(kept), _commits={})


def load_snapshot_and_files(storage: Storage) -> tuple[Snapshot, tuple[Instant, ...]]:
    """The table now, and every file of its timeline: the lower states of an instant as well."""
    with found_in(PROPERTIES):
        config = TableConfig.from_properties(load_properties(storage))
    files = list_timeline(storage, config)
    return Snapshot(storage, config, Timeline.of(files)), files


def load_timeline(storage: Storage, config: TableConfig) -> Timeline:
    """Look at the timeline now."""
    return Timeline.of(list_timeline(storage, config))


def list_timeline(storage: Storage, config: TableConfig) -> tuple[Instant, ...]:
    """Every file of the timeline as it is now, in the order of their names."""
    instants = [parse_instant(file.name) for file in storage.list_files(config.timeline_folder)]
    return tuple(i for i in instants if i is not None)


# ------------------------------------------------------------------------------------------------
# What commits carry besides their files, newest first: how far streams and sources have come.


_AT_ONCE = 16


def commits_newest_first(
    snapshot: Snapshot, before: Snapshot | None = None
) -> Iterator[tuple[Instant, CommitMetadata]]:
    """The completed writes of a table, newest first; only those that were not there `before`."""
    for instants in _newest_first(snapshot, before):
        yield from zip(instants, snapshot.commits(instants), strict=True)


def _newest_first(snapshot: Snapshot, before: Snapshot | None) -> Iterator[Sequence[Instant]]:
    """Completed writes to be read together; archived ones only if somebody asks for them."""
    known = {i.requested_at for i in before.timeline.completed_writes} if before else set()
    now = snapshot.timeline
    active = [i for i in reversed(now.by_completion) if i.requested_at not in known]
    yield from _pieces([i for i in active if i.requested_at >= (now.start or "")])
    # Archiving may have left saved commits behind that are older than some of the archived ones.
    rest = [i for i in active if i.requested_at < (now.start or "")]
    start = before.timeline.start if before else None
    if before is None or start != now.start:
        # What is archived before this was so already.
        archived = [i for i in reversed(snapshot.archived) if i.requested_at >= (start or "")]
        rest += [i for i in archived if i.requested_at not in known]
    yield from _pieces(sorted(rest, key=lambda i: i.completed_at or "", reverse=True))


def _pieces(instants: Sequence[Instant]) -> Iterator[Sequence[Instant]]:
    for first in range(0, len(instants), _AT_ONCE):
        yield instants[first : first + _AT_ONCE]


# ------------------------------------------------------------------------------------------------
# Which files of an earlier state of the table cleans have taken, or are about to take.


def slices_before_cleaning(
    snapshot: Snapshot, view: TimelineView, partitions: Iterable[str] | None = None, *, since: str
) -> tuple[list[FileSlice], dict[GroupKey, list[str]]]:
    """What a query reads as `view` bounds it, as if nothing had been cleaned after `since`.

    The second part names the files among them, by file group, that are lost: deleted by a clean
    that completed after `since`, or planned to be by one that is under way.
    """
    wanted = None if partitions is None else list(partitions)
    taken, listed = _taken(snapshot, since), snapshot.files(wanted)
    together = {
        partition: _united(listed.get(partition, ()), taken.get(partition, ()))
        for partition in sorted({*listed, *taken} if wanted is None else wanted)
    }
    slices = [group.latest_merged_slice() for group in snapshot.groups(view, together)]
    lost: dict[GroupKey, list[str]] = {}
    for found in slices:
        names = [file.name for file in files_of_slice(found)]
        gone = [name for name in names if name in taken.get(found.partition, ())]
        if gone:
            lost[found.partition, found.file_id] = gone
    return slices, lost


def files_of_slice(found: FileSlice) -> list[BaseFile | LogFile]:
    """The files of a slice: its base file, then its logs from the newest to the oldest."""
    return [*([found.base] if found.base else []), *reversed(found.logs)]


def _united(listed: Iterable[BaseFile | LogFile], names: Iterable[str]) -> list[BaseFile | LogFile]:
    there = {file.name: file for file in listed}
    gone = [file for name in sorted(names) if name not in there and (file := parse_data_file(name))]
    return [*there.values(), *gone]


def files_being_cleaned(snapshot: Snapshot) -> dict[str, set[str]]:
    """The names by partition of files that a clean which is under way deletes, or has deleted."""
    going: dict[str, set[str]] = {}
    for _, plan in snapshot.pending_cleans():
        _add(going, _named(plan))
    return going


def delete_planless_clean(snapshot: Snapshot, clean: Instant) -> bool:
    """Take a pending clean off the timeline whose plan was never written; False if it has one.

    The caller holds the table's lock and has loaded the snapshot under it.
    """
    if clean in dict(snapshot.pending_cleans()):
        return False
    for state in (State.INFLIGHT, State.REQUESTED):
        snapshot.storage.delete(snapshot.timeline_path(replace(clean, state=state)))
    return True


def _taken(snapshot: Snapshot, since: str) -> dict[str, set[str]]:
    """The names by partition of what cleans took after `since`, or are about to take."""
    taken = files_being_cleaned(snapshot)
    for clean in snapshot.timeline.completed(Action.CLEAN):
        if (clean.completed_at or "") > since:
            path = snapshot.timeline_path(clean)
            with found_in(path):
                done = parse_clean(snapshot.storage.read(path))
            for partition, part in done.partitions.items():
                names = {split_path(path)[1] for path in (*part.deleted, *part.failed)}
                _add(taken, {partition: names})
    return taken


def _add(known: dict[str, set[str]], more: Mapping[str, Iterable[str]]) -> None:
    for partition, names in more.items():
        known.setdefault(partition, set()).update(names)


def _named(plan: CleanPlan) -> dict[str, set[str]]:
    named = {name: {split_path(f.path)[1] for f in files} for name, files in plan.files.items()}
    _add(named, plan.bare_files)
    return named
