"""Plans CDC queries: for each file group, the changes of the writes of a range, in order.

`CdcScanPlan` and its parts are values that Spark sends to its executors.

If the row before a change were read from another state than the one right before the write, the
result would be wrong, and no error would show it. So planning is exact about missing files: the
files that a write created, and those that it found, must still exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from typing import Any

import pyarrow as pa

from lakewright.errors import InvalidError
from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CommitMetadata, WriteStat, is_log
from lakewright.model.file_group import (
    BaseFile,
    FileSlice,
    GroupKey,
    LogFile,
    TimelineView,
    build_groups,
)
from lakewright.model.instant import Instant, InstantTime
from lakewright.model.schema import COMMIT_TIME, META_COLUMNS, RECORD_KEY, select_fields
from lakewright.model.table_config import CHANGE_LOGGING, CdcLoggingMode, TableConfig
from lakewright.scan.planner import (
    EARLIEST,
    IncrementalQueryAnalyzer,
    QueryContext,
    is_compaction,
    schema_or_empty,
)
from lakewright.scan.scan_plan import (
    ScanPlan,
    decoding,
    merge_rule,
    pack,
    plan_of,
    plan_value,
    slice_of,
    slice_value,
    unpack,
)
from lakewright.storage.base import split_path
from lakewright.table.cleaned_files import files_being_cleaned, slices_before_cleaning
from lakewright.table.snapshot import Snapshot
from lakewright.utils.bin_packing import pack_by_size

OP, TIME, BEFORE, AFTER = "op", "ts_ms", "before", "after"
SCHEMA = pa.schema([(name, pa.string()) for name in (OP, TIME, BEFORE, AFTER)])

_OPEN_COST = 4 << 20
_TASK_BYTES = 64 << 20


class CdcInferenceCase(Enum):
    """How the changes of one write to one file group are found."""

    LOGGED = auto()  # they are in CDC log files
    INSERTED = auto()  # the rows that the write added to a base file; it changed no others
    REPLACED = auto()  # all rows of `before` were deleted
    REWRITTEN = auto()  # the difference between the base files of `before` and `after`
    APPENDED = auto()  # the rows whose keys are in log files that only `after` has
    STATE = auto()  # all rows of `after`, as if each had just been inserted


@dataclass(frozen=True, slots=True)
class CdcFileSplit:
    """The changes of one write to one file group.

    `before` and `after` are its file slices right before and right after the write; `files` are
    paths of CDC log files, relative to the table.
    """

    instant: InstantTime
    kind: CdcInferenceCase
    before: FileSlice | None = None
    after: FileSlice | None = None
    files: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class CdcFileGroup:
    """The changes of one file group, in the order in which the writes completed."""

    partition: str
    file_id: str
    splits: tuple[CdcFileSplit, ...]

    @property
    def cost(self) -> int:
        """The cost of reading it, in bytes; opening a file counts as some bytes."""
        slices = [item for split in self.splits for item in (split.before, split.after) if item]
        files = sum(1 + len(item.logs) for item in slices) + len(self.splits)
        bytes_read = sum(item.size for item in slices) + sum(split.size for split in self.splits)
        return bytes_read + files * _OPEN_COST


@dataclass(frozen=True)
class CdcScanPlan:
    """The file groups of a CDC query, and how their rows are read.

    `read` has the columns of rows before and after a change, and the merge rule; it has no slices
    of its own. `columns` are those of the result, `instants` the writes that changed rows, in the
    order of completion.
    """

    read: ScanPlan
    groups: tuple[CdcFileGroup, ...]
    columns: tuple[str, ...] = tuple(SCHEMA.names)
    instants: tuple[str, ...] = ()

    @property
    def result_schema(self) -> pa.Schema:
        """The schema of the changes that the query returns."""
        return select_fields(SCHEMA, self.columns)

    def with_groups(self, groups: Iterator[CdcFileGroup] | list[CdcFileGroup]) -> CdcScanPlan:
        """Return the same query on other file groups."""
        return replace(self, groups=tuple(groups))

    def in_order(self) -> list[CdcScanPlan]:
        """Split the plan into one part for each write, in the order of completion."""
        instants = dict.fromkeys(instant for instant in self.instants)
        pieces = []
        for instant in instants:
            groups = [
                replace(
                    group, splits=tuple(split for split in group.splits if split.instant == instant)
                )
                for group in self.groups
            ]
            pieces.append(self.with_groups([group for group in groups if group.splits]))
        return pieces

    def tasks(self) -> list[CdcScanPlan]:
        """Split the plan into parts of similar size, one for each worker."""
        total = sum(group.cost for group in self.groups)
        parts = pack_by_size(self.groups, lambda group: group.cost, -(-total // _TASK_BYTES))
        return [self.with_groups(part) for part in parts]


def encode_cdc_plan(plan: CdcScanPlan) -> str:
    """Return a plan as text, small enough for an option of a data source."""
    return pack(
        {
            "read": plan_value(plan.read),
            "groups": [
                [group.partition, group.file_id, [_split_value(split) for split in group.splits]]
                for group in plan.groups
            ],
            "columns": plan.columns,
            "instants": plan.instants,
        }
    )


def decode_cdc_plan(text: str) -> CdcScanPlan:
    """Return the plan that `encode_cdc_plan` encoded; InvalidError for any other text."""
    with decoding():
        value = unpack(text)
        return CdcScanPlan(
            read=plan_of(value["read"]),
            groups=tuple(
                CdcFileGroup(partition, file_id, tuple(_split_of(split) for split in splits))
                for partition, file_id, splits in value["groups"]
            ),
            columns=tuple(value["columns"]),
            instants=tuple(value["instants"]),
        )


def _split_value(split: CdcFileSplit) -> list[object]:
    before, after = (item and slice_value(item) for item in (split.before, split.after))
    return [split.instant, split.kind.name, before, after, split.files, split.size]


def _split_of(value: list[Any]) -> CdcFileSplit:
    instant, kind, before, after, files, size = value
    return CdcFileSplit(
        instant,
        CdcInferenceCase[kind],
        slice_of(before) if before else None,
        slice_of(after) if after else None,
        tuple(files),
        size,
    )


_INSERTS = frozenset({"INSERT", "BULK_INSERT", "INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE"})
# What writers record as the previous commit of the first base file of a file group.
_NO_PREVIOUS_COMMIT = (None, "", "null")
_WITHOUT_ALL_IMAGES = frozenset({CdcLoggingMode.KEYS, CdcLoggingMode.BEFORE})

DataFile = BaseFile | LogFile


@dataclass(frozen=True)
class CdcScan:
    """A CDC query: the instants of its range, and how to read their changes."""

    context: QueryContext
    plan: CdcScanPlan


def plan_cdc(
    snapshot: Snapshot,
    *,
    since: str | None = None,
    until: str | None = None,
    limit: int | None = None,
    columns: Sequence[str] | None = None,
    fallback: bool = True,
) -> CdcScan:
    """Plan a CDC query: the changes of instants that completed in (since, until].

    Without `since` these are all changes up to `until`. `columns` are those of the rows before and
    after a change.
    """
    analyzer = IncrementalQueryAnalyzer(
        snapshot=snapshot, begin=since or EARLIEST, end=until, limit=limit
    )
    context = analyzer.analyze()
    try:
        return CdcScan(context, plan_cdc_range(context, images=columns, fallback=fallback))
    except _FileMissingError:
        if limit is None or since is not None or until is not None or not fallback:
            raise
    # Files from the beginning were cleaned, so the limit has no first instant to count from.
    return plan_cdc(snapshot, columns=columns)


def plan_cdc_range(
    context: QueryContext,
    *,
    images: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    fallback: bool = True,
    schema_of_end: bool = False,
) -> CdcScanPlan:
    """Plan the changes of the instants of a range, by file group.

    `images` are the columns of the rows before and after a change, `columns` those of the result.
    Raise if files that a change is derived from are missing; with `fallback`, a query from the
    beginning returns all rows as of its end instead, as if they had just been inserted.
    """
    snapshot = context.snapshot
    snapshot.config.require_changes()
    result = tuple(select_fields(SCHEMA, columns).names)
    if context.is_empty:
        return CdcScanPlan(_row_plan(context, images, schema_of_end), (), result)
    try:
        groups = _CdcWrites(context).groups()
    except _FileMissingError:
        if not (context.from_beginning and context.is_complete and fallback):
            raise
        groups = _plan_full_state(context)
    changing = {split.instant for group in groups for split in group.splits}
    completed_order = [i.requested_at for i in context.instants if i.requested_at in changing]
    instants = tuple(dict.fromkeys((*completed_order, *sorted(changing))))
    plan = CdcScanPlan(_row_plan(context, images, schema_of_end), tuple(groups), result, instants)
    _require_mergeable(snapshot.config, plan)
    return plan


def _row_plan(context: QueryContext, images: Sequence[str] | None, schema_of_end: bool) -> ScanPlan:
    snapshot = context.snapshot
    view = snapshot.view(completed_until=context.until if schema_of_end else None)
    schema = schema_or_empty(snapshot, view)
    data_columns = [name for name in schema.names if name not in META_COLUMNS]
    selected = data_columns if images is None else select_fields(schema, images).names
    names = dict.fromkeys(
        (COMMIT_TIME, RECORD_KEY, *(n for n in selected if n not in META_COLUMNS))
    )
    return ScanPlan(schema, tuple(names), (), merge_rule(snapshot.config))


def _require_mergeable(config: TableConfig, plan: CdcScanPlan) -> None:
    splits = (split for group in plan.groups for split in group.splits)
    if any(item.logs for split in splits for item in (split.before, split.after) if item):
        config.require_mergeable()


class _FileMissingError(InvalidError):
    """A file that a change is derived from does not exist any more."""

    def __init__(self, file: str, instant: InstantTime) -> None:
        super().__init__(
            "the changes of this range cannot be read any more, files of it were cleaned: begin "
            "later, read the latest state instead, or keep more commits from now on "
            "(hoodie.clean.commits.retained)",
            file=file,
            instant=instant,
        )


def _plan_full_state(context: QueryContext) -> list[CdcFileGroup]:
    """Return all rows as of the end of a range, as if they had just been inserted."""
    snapshot, until = context.snapshot, context.until
    view = snapshot.view(completed_until=until)
    if until is None:
        slices = [group.latest_merged_slice() for group in snapshot.groups(view)]
    else:
        # Only cleans on the active timeline show which files they deleted.
        archived_later = [
            i.requested_at for i in snapshot.archived_after(until) if (i.completed_at or "") > until
        ]
        slices, cleaned = slices_before_cleaning(snapshot, view, since=until)
        for name in [*archived_later, *(name for names in cleaned.values() for name in names)]:
            raise _FileMissingError(name, until)
    return [
        CdcFileGroup(
            item.partition,
            item.file_id,
            (CdcFileSplit(item.base_instant, CdcInferenceCase.STATE, after=item),),
        )
        for item in slices
    ]


def is_change(config: TableConfig, instant: Instant, commit: CommitMetadata) -> bool:
    """Whether a write changed rows: not so a table service."""
    return commit.operation not in SERVICE_OPERATIONS and not is_compaction(config, instant)


@dataclass(frozen=True)
class _CdcWrites:
    """The writes of a range that changed rows, and the files of the file groups they wrote to."""

    context: QueryContext

    @property
    def _snapshot(self) -> Snapshot:
        return self.context.snapshot

    @cached_property
    def _writes(self) -> list[tuple[Instant, CommitMetadata]]:
        commits = self._snapshot.commits(self.context.instants)
        pairs = zip(self.context.instants, commits, strict=True)
        return [(i, commit) for i, commit in pairs if is_change(self._snapshot.config, i, commit)]

    @cached_property
    def _files(self) -> dict[GroupKey, list[DataFile]]:
        """The files of the file groups that the writes changed."""
        touched = {key for _, commit in self._writes for key in commit.file_groups()}
        being_cleaned = files_being_cleaned(self._snapshot)
        by_group: dict[GroupKey, list[DataFile]] = {}
        for partition, files in self._snapshot.files(sorted({key[0] for key in touched})).items():
            for file in files:
                key = partition, file.file_id
                if key in touched and file.name not in being_cleaned.get(partition, ()):
                    by_group.setdefault(key, []).append(file)
        return by_group

    @cached_property
    def _view(self) -> TimelineView:
        """A view of all committed instants, with the completion times that slicing needs."""
        by_partition: dict[str, list[DataFile]] = {}
        for (partition, _), files in self._files.items():
            by_partition.setdefault(partition, []).extend(files)
        return self._snapshot.with_completion_times(self._snapshot.view(), by_partition)

    @cached_property
    def _archived(self) -> dict[str, Instant]:
        """The archived instants of the files, if the range includes any archived instant.

        They are not needed otherwise.
        """
        if not self.context.archived:
            return {}
        times = {file.instant for files in self._files.values() for file in files}
        return self._snapshot.archived_writes(times)

    def groups(self) -> list[CdcFileGroup]:
        """Return the changes of each file group; raise if files of one are missing."""
        splits: dict[GroupKey, list[CdcFileSplit]] = {}
        for instant, commit in self._writes:
            for key, split in self._splits(instant, commit):
                splits.setdefault(key, []).append(split)
        return [CdcFileGroup(*key, tuple(of_group)) for key, of_group in splits.items()]

    def _splits(
        self, instant: Instant, commit: CommitMetadata
    ) -> Iterator[tuple[GroupKey, CdcFileSplit]]:
        for partition, file_ids in commit.replaced.items():
            for file_id in file_ids:
                key = partition, file_id
                yield key, self._replaced_split(key, instant)
        for partition, stats in commit.stats.items():
            by_group: dict[str, list[WriteStat]] = {}
            for stat in stats:
                if stat.file_id and stat.path:
                    by_group.setdefault(stat.file_id, []).append(stat)
            for file_id, group_stats in by_group.items():
                key = partition, file_id
                yield key, self._written_split(key, instant, commit, group_stats)

    def _replaced_split(self, key: GroupKey, instant: Instant) -> CdcFileSplit:
        before = self._slice_at(key, instant, included=False)
        if before is None:
            raise _FileMissingError(f"{key[0]}: all files of {key[1]}", instant.requested_at)
        return CdcFileSplit(instant.requested_at, CdcInferenceCase.REPLACED, before=before)

    def _written_split(
        self, key: GroupKey, instant: Instant, commit: CommitMetadata, stats: Sequence[WriteStat]
    ) -> CdcFileSplit:
        at = instant.requested_at
        bases = [stat for stat in stats if not is_log(stat)]
        if not bases:
            for stat in stats:
                self._file_at(key, stat.path or "", at)
            before = self._slice_at(key, instant, included=False)
            after = self._slice_at(key, instant, included=True)
            return CdcFileSplit(at, CdcInferenceCase.APPENDED, before, after)
        (stat, *_) = bases
        if stat.cdc_stats:
            return self._logged_split(key, at, stat)
        if _only_inserts(commit, stat):
            return CdcFileSplit(
                at, CdcInferenceCase.INSERTED, after=self._base_slice(key, stat.path or "", at)
            )
        before = self._previous_base(key, stat, at)
        if stat.num_writes == 0:
            return CdcFileSplit(at, CdcInferenceCase.REPLACED, before)
        return CdcFileSplit(
            at, CdcInferenceCase.REWRITTEN, before, self._base_slice(key, stat.path or "", at)
        )

    def _logged_split(self, key: GroupKey, at: str, stat: WriteStat) -> CdcFileSplit:
        """Return logged changes, with the base files of the rows that are not logged."""
        paths = tuple(sorted(stat.cdc_stats or ()))
        size = sum(self._file_at(key, path, at).size for path in paths)
        mode = self._snapshot.config.properties.get(CHANGE_LOGGING, "").strip().upper()
        if mode not in _WITHOUT_ALL_IMAGES:
            return CdcFileSplit(at, CdcInferenceCase.LOGGED, files=paths, size=size)
        has_before = mode != CdcLoggingMode.KEYS or stat.prev_commit in _NO_PREVIOUS_COMMIT
        before = None if has_before else self._previous_base(key, stat, at)
        after = self._base_slice(key, stat.path or "", at)
        return CdcFileSplit(at, CdcInferenceCase.LOGGED, before, after, paths, size)

    def _file_at(self, key: GroupKey, path: str, at: str) -> DataFile:
        name = split_path(path)[1]
        for file in self._files.get(key, ()):
            if file.name == name:
                return file
        raise _FileMissingError(path, at)

    def _base_slice(self, key: GroupKey, path: str, at: str) -> FileSlice:
        file = self._file_at(key, path, at)
        if not isinstance(file, BaseFile):
            raise _FileMissingError(path, at)
        return FileSlice(*key, file.instant, file)

    def _previous_base(self, key: GroupKey, stat: WriteStat, at: str) -> FileSlice:
        """Return the base file that a write found, by its name or by the previous commit."""
        for file in self._files.get(key, ()):
            by_name = file.name == stat.prev_base_file
            by_instant = not stat.prev_base_file and file.instant == stat.prev_commit
            if isinstance(file, BaseFile) and (by_name or by_instant):
                return FileSlice(*key, file.instant, file)
        raise _FileMissingError(stat.prev_base_file or f"{key[1]} of {stat.prev_commit}", at)

    def _slice_at(self, key: GroupKey, instant: Instant, *, included: bool) -> FileSlice | None:
        """Return the state of a file group right before an instant completed, or right after it.

        The base file of a compaction counts from its requested time on, as in every file slice: a
        log file that completed later belongs to the new base file, and the old one may have been
        deleted.
        """
        completed_at = instant.completed_at or ""

        def is_included(file: DataFile) -> bool:
            if file.instant == instant.requested_at:
                return included
            if self._is_compaction(file.instant):
                return file.instant <= completed_at
            archived = self._archived.get(file.instant)
            file_completed_at = (
                archived.completed_at if archived else self._view.completion(file.instant)
            )
            # Two writes may complete in the same millisecond: then the requested time decides.
            return file_completed_at is None or (file_completed_at, file.instant) < (
                completed_at,
                instant.requested_at,
            )

        files = [file for file in self._files.get(key, ()) if is_included(file)]
        groups = build_groups(key[0], files, self._view)
        return groups[0].latest_merged_slice() if groups else None

    def _is_compaction(self, requested_at: InstantTime) -> bool:
        instant = self._snapshot.timeline.by_time.get(requested_at) or self._archived.get(
            requested_at
        )
        return instant is not None and is_compaction(self._snapshot.config, instant)


def _only_inserts(commit: CommitMetadata, stat: WriteStat) -> bool:
    """Whether a write only inserted rows into a base file, so that no other file is read."""
    if stat.prev_commit in _NO_PREVIOUS_COMMIT or (stat.num_update_writes == 0 == stat.num_deletes):
        return True
    changed = stat.num_update_writes or stat.num_deletes
    return commit.operation in _INSERTS and not changed
