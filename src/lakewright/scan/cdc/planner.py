"""What a query of change data reads: values that travel to the workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from typing import Any

import pyarrow as pa

from lakewright.errors import InvalidError
from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CommitMetadata, WriteStat
from lakewright.model.file_group import (
    BaseFile,
    FileSlice,
    GroupKey,
    LogFile,
    TimelineView,
    build_groups,
    parse_data_file,
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
from lakewright.table.snapshot import Snapshot, files_being_cleaned, slices_before_cleaning
from lakewright.utils.bin_packing import pack_by_size

OP, TIME, BEFORE, AFTER = "op", "ts_ms", "before", "after"
SCHEMA = pa.schema([(name, pa.string()) for name in (OP, TIME, BEFORE, AFTER)])

_OPEN_COST = 4 << 20
_TASK_BYTES = 64 << 20


class CdcInferenceCase(Enum):
    """How the changes of one write to one file group are found."""

    LOGGED = auto()  # they are in change files
    INSERTED = auto()  # rows of a base file that the write added; it changed no others
    REPLACED = auto()  # all rows of `before` are gone
    REWRITTEN = auto()  # rows of the base file in `after` against those in `before`
    APPENDED = auto()  # rows whose keys are in the log files that only `after` has
    STATE = auto()  # all rows of `after`, as if each had just been inserted


@dataclass(frozen=True, slots=True)
class CdcFileSplit:
    """What one write did to one file group.

    `before` and `after` are its states right before and right after; `files` are paths of change
    files, relative to the table.
    """

    instant: InstantTime
    kind: CdcInferenceCase
    before: FileSlice | None = None
    after: FileSlice | None = None
    files: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class CdcFileGroup:
    """The changes of one file group, in the order in which they became part of the table."""

    partition: str
    file_id: str
    splits: tuple[CdcFileSplit, ...]

    @property
    def cost(self) -> int:
        """What reading it takes, in bytes; opening a file counts as some."""
        slices = [item for step in self.splits for item in (step.before, step.after) if item]
        files = sum(1 + len(item.logs) for item in slices) + len(self.splits)
        read = sum(item.size for item in slices) + sum(step.size for step in self.splits)
        return read + files * _OPEN_COST


@dataclass(frozen=True)
class CdcScanPlan:
    """The file groups of a query of change data, and what becomes of their rows.

    `plan` says which columns rows have before and after a change, and how versions are merged; it
    has no slices of its own. `columns` are those of the result, `instants` the writes that changed
    something, in the order in which they completed.
    """

    read: ScanPlan
    groups: tuple[CdcFileGroup, ...]
    columns: tuple[str, ...] = tuple(SCHEMA.names)
    instants: tuple[str, ...] = ()

    @property
    def result_schema(self) -> pa.Schema:
        """The schema of the changes that the query gives."""
        return select_fields(SCHEMA, self.columns)

    def with_groups(self, groups: Iterator[CdcFileGroup] | list[CdcFileGroup]) -> CdcScanPlan:
        """The same query on other file groups."""
        return replace(self, groups=tuple(groups))

    def in_order(self) -> list[CdcScanPlan]:
        """The plan cut into pieces that tell one write after the other."""
        instants = dict.fromkeys(instant for instant in self.instants)
        pieces = []
        for instant in instants:
            groups = [
                replace(group, splits=tuple(s for s in group.splits if s.instant == instant))
                for group in self.groups
            ]
            pieces.append(self.with_groups([group for group in groups if group.splits]))
        return pieces

    def tasks(self) -> list[CdcScanPlan]:
        """The plan cut into pieces of a fair size for one worker each."""
        total = sum(group.cost for group in self.groups)
        pieces = pack_by_size(self.groups, lambda group: group.cost, -(-total // _TASK_BYTES))
        return [self.with_groups(piece) for piece in pieces]


def encode_cdc_plan(plan: CdcScanPlan) -> str:
    """A plan as text, small enough to travel as an option of a data source."""
    return pack(
        {
            "read": plan_value(plan.read),
            "groups": [
                [group.partition, group.file_id, [_step_value(step) for step in group.splits]]
                for group in plan.groups
            ],
            "columns": plan.columns,
            "instants": plan.instants,
        }
    )


def decode_cdc_plan(text: str) -> CdcScanPlan:
    """The inverse of `encode_cdc_plan`; InvalidError for another text."""
    with decoding():
        value = unpack(text)
        return CdcScanPlan(
            read=plan_of(value["read"]),
            groups=tuple(
                CdcFileGroup(partition, file_id, tuple(_step_of(step) for step in steps))
                for partition, file_id, steps in value["groups"]
            ),
            columns=tuple(value["columns"]),
            instants=tuple(value["instants"]),
        )


def _step_value(step: CdcFileSplit) -> list[object]:
    before, after = (item and slice_value(item) for item in (step.before, step.after))
    return [step.instant, step.kind.name, before, after, step.files, step.size]


def _step_of(value: list[Any]) -> CdcFileSplit:
    instant, kind, before, after, files, size = value
    return CdcFileSplit(
        instant,
        CdcInferenceCase[kind],
        slice_of(before) if before else None,
        slice_of(after) if after else None,
        tuple(files),
        size,
    )


# ------------------------------------------------------------------------------------------------
# Which changes a range holds: for each file group the steps that its writes took, in order.
#
# Rows before a change that were taken from another state than the one right before it would be
# wrong
# without anybody noticing. So planning is exact about files that are gone: what a write has left,
# and
# what it found, must still be there.


_INSERTS = frozenset({"INSERT", "BULK_INSERT", "INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE"})
# What writers say of a base file that has none before it.
_NO_COMMIT = (None, "", "null")
_WITHOUT_IMAGES = frozenset({CdcLoggingMode.KEYS, CdcLoggingMode.BEFORE})

DataFile = BaseFile | LogFile


@dataclass(frozen=True)
class CdcScan:
    """A query of change data: the instants of its range, and how to read what they changed."""

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
    """What instants which completed in (since, until] did to each row.

    Without `since` these are all changes up to `until`. `columns` are those that rows have before
    and after a change.
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
    # The beginning is gone, so there is nothing to count instants from.
    return plan_cdc(snapshot, columns=columns)


def plan_cdc_range(
    context: QueryContext,
    *,
    images: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    fallback: bool = True,
    schema_of_end: bool = False,
) -> CdcScanPlan:
    """What the instants of a range did to each row, file group by file group.

    `images` are the columns of rows before and after, `columns` those of the result. Where files
    are gone that a change is told by, that is an error; a query from the beginning gives all rows
    as of its end instead, as if each had just been inserted, if `fallback` allows it.
    """
    snapshot = context.snapshot
    snapshot.config.require_changes()
    result = tuple(select_fields(SCHEMA, columns).names)
    if context.is_empty:
        return CdcScanPlan(_reading(context, images, schema_of_end), (), result)
    try:
        groups = _CdcWrites(context).groups()
    except _FileMissingError:
        if not (context.from_beginning and context.whole and fallback):
            raise
        groups = _state(context)
    told = {step.instant for group in groups for step in group.splits}
    known = [i.requested_at for i in context.instants if i.requested_at in told]
    instants = tuple(dict.fromkeys((*known, *sorted(told))))
    plan = CdcScanPlan(_reading(context, images, schema_of_end), tuple(groups), result, instants)
    _require_mergeable(snapshot.config, plan)
    return plan


def _reading(context: QueryContext, images: Sequence[str] | None, schema_of_end: bool) -> ScanPlan:
    snapshot = context.snapshot
    view = snapshot.view(completed_until=context.until if schema_of_end else None)
    schema = schema_or_empty(snapshot, view)
    own = [name for name in schema.names if name not in META_COLUMNS]
    asked = own if images is None else select_fields(schema, images).names
    names = dict.fromkeys((COMMIT_TIME, RECORD_KEY, *(n for n in asked if n not in META_COLUMNS)))
    return ScanPlan(schema, tuple(names), (), merge_rule(snapshot.config))


def _require_mergeable(config: TableConfig, plan: CdcScanPlan) -> None:
    steps = (step for group in plan.groups for step in group.splits)
    if any(item.logs for step in steps for item in (step.before, step.after) if item):
        config.require_mergeable()


class _FileMissingError(InvalidError):
    """A file that a change is told by is not there any more."""

    def __init__(self, file: str, instant: InstantTime) -> None:
        super().__init__(
            "what this range changed can no longer be told, files of it were cleaned: begin later, "
            "read the latest state instead, or keep more commits from now on "
            "(hoodie.clean.commits.retained)",
            file=file,
            instant=instant,
        )


def _state(context: QueryContext) -> list[CdcFileGroup]:
    """All rows as of the end of a range, as if each had just been inserted."""
    snapshot, until = context.snapshot, context.until
    view = snapshot.view(completed_until=until)
    if until is None:
        slices = [group.latest_merged_slice() for group in snapshot.groups(view)]
    else:
        # What completed cleans have taken is told by those on the timeline alone.
        past = [i.requested_at for i in snapshot.archived if (i.completed_at or "") > until]
        slices, lost = slices_before_cleaning(snapshot, view, since=until)
        for name in [*past, *(name for names in lost.values() for name in names)]:
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
    """Whether a write changed rows, and did not merely move them."""
    return commit.operation not in SERVICE_OPERATIONS and not is_compaction(config, instant)


@dataclass(frozen=True)
class _CdcWrites:
    """The writes of a range that changed rows, and the files of the partitions they touched."""

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
        """The files of the file groups that the writes touched."""
        touched = {key for _, commit in self._writes for key in commit.file_groups()}
        going = files_being_cleaned(self._snapshot)
        found: dict[GroupKey, list[DataFile]] = {}
        for partition, files in self._snapshot.files(sorted({key[0] for key in touched})).items():
            for file in files:
                key = partition, file.file_id
                if key in touched and file.name not in going.get(partition, ()):
                    found.setdefault(key, []).append(file)
        return found

    @cached_property
    def _view(self) -> TimelineView:
        """All that is committed, with every completion time that slicing asks for."""
        by_partition: dict[str, list[DataFile]] = {}
        for (partition, _), files in self._files.items():
            by_partition.setdefault(partition, []).extend(files)
        return self._snapshot.with_completion_times(self._snapshot.view(), by_partition)

    @cached_property
    def _archived(self) -> dict[str, Instant]:
        """The archived instants, if the range has any: else what is archived is long past."""
        if not self.context.archived:
            return {}
        return {instant.requested_at: instant for instant in self._snapshot.archived}

    def groups(self) -> list[CdcFileGroup]:
        """The steps of each file group; raises if one of them cannot be told any more."""
        steps: dict[GroupKey, list[CdcFileSplit]] = {}
        for instant, commit in self._writes:
            for key, step in self._steps(instant, commit):
                steps.setdefault(key, []).append(step)
        return [CdcFileGroup(*key, tuple(taken)) for key, taken in steps.items()]

    def _steps(
        self, instant: Instant, commit: CommitMetadata
    ) -> Iterator[tuple[GroupKey, CdcFileSplit]]:
        for partition, file_ids in commit.replaced.items():
            for file_id in file_ids:
                key = partition, file_id
                yield key, self._replaced(key, instant)
        for partition, stats in commit.stats.items():
            by_group: dict[str, list[WriteStat]] = {}
            for stat in stats:
                if stat.file_id and stat.path:
                    by_group.setdefault(stat.file_id, []).append(stat)
            for file_id, own in by_group.items():
                key = partition, file_id
                yield key, self._written(key, instant, commit, own)

    def _replaced(self, key: GroupKey, instant: Instant) -> CdcFileSplit:
        before = self._at(key, instant, included=False)
        if before is None:
            raise _FileMissingError(f"{key[0]}: all files of {key[1]}", instant.requested_at)
        return CdcFileSplit(instant.requested_at, CdcInferenceCase.REPLACED, before=before)

    def _written(
        self, key: GroupKey, instant: Instant, commit: CommitMetadata, stats: Sequence[WriteStat]
    ) -> CdcFileSplit:
        at = instant.requested_at
        bases = [stat for stat in stats if not _is_log(stat.path or "")]
        if not bases:
            for stat in stats:
                self._find(key, stat.path or "", at)
            before = self._at(key, instant, included=False)
            after = self._at(key, instant, included=True)
            return CdcFileSplit(at, CdcInferenceCase.APPENDED, before, after)
        (stat, *_) = bases
        if stat.cdc_stats:
            return self._logged(key, at, stat)
        if _only_inserts(commit, stat):
            return CdcFileSplit(
                at, CdcInferenceCase.INSERTED, after=self._base(key, stat.path or "", at)
            )
        before = self._previous(key, stat, at)
        if stat.num_writes == 0:
            return CdcFileSplit(at, CdcInferenceCase.REPLACED, before)
        return CdcFileSplit(
            at, CdcInferenceCase.REWRITTEN, before, self._base(key, stat.path or "", at)
        )

    def _logged(self, key: GroupKey, at: str, stat: WriteStat) -> CdcFileSplit:
        """Changes that were written down: alone, or with the base files that hold the rows."""
        paths = tuple(sorted(stat.cdc_stats or ()))
        size = sum(self._find(key, path, at).size for path in paths)
        mode = self._snapshot.config.properties.get(CHANGE_LOGGING, "").strip().upper()
        if mode not in _WITHOUT_IMAGES:
            return CdcFileSplit(at, CdcInferenceCase.LOGGED, files=paths, size=size)
        has_before = mode != CdcLoggingMode.KEYS or stat.prev_commit in _NO_COMMIT
        before = None if has_before else self._previous(key, stat, at)
        after = self._base(key, stat.path or "", at)
        return CdcFileSplit(at, CdcInferenceCase.LOGGED, before, after, paths, size)

    def _find(self, key: GroupKey, path: str, at: str) -> DataFile:
        name = split_path(path)[1]
        for file in self._files.get(key, ()):
            if file.name == name:
                return file
        raise _FileMissingError(path, at)

    def _base(self, key: GroupKey, path: str, at: str) -> FileSlice:
        file = self._find(key, path, at)
        if not isinstance(file, BaseFile):
            raise _FileMissingError(path, at)
        return FileSlice(*key, file.instant, file)

    def _previous(self, key: GroupKey, stat: WriteStat, at: str) -> FileSlice:
        """The base file that a write found: the one it names, or the one of the commit it names."""
        for file in self._files.get(key, ()):
            named = file.name == stat.prev_base_file
            dated = not stat.prev_base_file and file.instant == stat.prev_commit
            if isinstance(file, BaseFile) and (named or dated):
                return FileSlice(*key, file.instant, file)
        raise _FileMissingError(stat.prev_base_file or f"{key[1]} of {stat.prev_commit}", at)

    def _at(self, key: GroupKey, instant: Instant, *, included: bool) -> FileSlice | None:
        """The state of a file group right before an instant completed, or right after it.

        What a compaction made of log files counts from its request on, as for every slice: a
        log file that completed later lies beside the new base file, and the old one may be gone.
        """
        completed_at = instant.completed_at or ""

        def counts(file: DataFile) -> bool:
            if file.instant == instant.requested_at:
                return included
            if self._is_compaction(file.instant):
                return file.instant <= completed_at
            known = self._archived.get(file.instant)
            done = known.completed_at if known else self._view.completion(file.instant)
            # Two writes may complete in the same millisecond: then the request decides.
            return done is None or (done, file.instant) < (completed_at, instant.requested_at)

        files = [file for file in self._files.get(key, ()) if counts(file)]
        groups = build_groups(key[0], files, self._view)
        return groups[0].latest_merged_slice() if groups else None

    def _is_compaction(self, requested_at: InstantTime) -> bool:
        found = self._snapshot.timeline.by_time.get(requested_at) or self._archived.get(
            requested_at
        )
        return found is not None and is_compaction(self._snapshot.config, found)


def _is_log(path: str) -> bool:
    return isinstance(parse_data_file(split_path(path)[1]), LogFile)


def _only_inserts(commit: CommitMetadata, stat: WriteStat) -> bool:
    """Whether a write has only added rows to a base file, whose rows are the only ones to read."""
    if stat.prev_commit in _NO_COMMIT or (stat.num_update_writes == 0 == stat.num_deletes):
        return True
    counted = stat.num_update_writes or stat.num_deletes
    return commit.operation in _INSERTS and not counted
