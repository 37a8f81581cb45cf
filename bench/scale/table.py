"""A table of any size that holds no data: its partitions are computed when they are listed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count

import pyarrow as pa

from lakewright.format.archived_file import ArchivedInstant, format_archived_file
from lakewright.format.archived_timeline import (
    VERSION_FILE,
    ArchivedTimelineFile,
    Manifest,
    archived_file_of,
    format_manifest,
    format_version,
    manifest_name,
)
from lakewright.format.partition_metadata import PartitionMetadata, format_partition_metadata
from lakewright.format.timeline_metadata import format_commit, format_compaction_plan
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.file_group import PARTITION_METADATA, LogFile
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import CompactionPlan
from lakewright.storage.base import FileStatus, join_path, split_path
from lakewright.storage.memory import MemoryStorage
from lakewright.testing.table_builder import TableBuilder

_TIMELINE = ".hoodie/timeline"
HISTORY = ".hoodie/timeline/history"
_FIRST_ACTIVE = 20260101000000000
_FIRST_ARCHIVED = 20250101000000000
_LONG_AGO, _NOT_LONG_AGO = "20250601000000000", "20251201000000000"
_COLUMNS = [
    ("id", pa.string()),
    ("month", pa.string()),
    ("day", pa.string()),
    ("ts", pa.int64()),
    *((f"value{number}", pa.float64()) for number in range(10)),
]
_SCHEMA = pa.schema(_COLUMNS)
_SIZE = 100 << 20
# More than a compressor sees at once, so that archived commits shrink as real ones do.
_KINDS_OF_COMMIT = 100
_LABELS = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a synthetic table looks like.

    Every file group has `bases` base files and `logs` log files, of the first instants. The last
    instant wrote one more log file into the first group of each of `touched` partitions. With
    `per_month` partitions lie in two levels of folders, so many in each of the upper ones. With
    `compacted` the instant before the last is a compaction that has left nothing. With `aged` base
    files are of two archived instants, half a year apart, which partitions tell by the line that
    TTL goes by; those with an even number are the old ones.
    """

    partitions: int = 100
    groups: int = 1
    bases: int = 1
    logs: int = 1
    touched: int = 10
    per_month: int | None = None
    instants: int = 20
    archived: int = 0
    archived_files: int | None = None
    compacted: bool = False
    aged: bool = False


@dataclass(frozen=True)
class SyntheticTable(MemoryStorage):
    """Read-only partitions that are computed, beside a `.hoodie` folder that is in memory."""

    shape: Shape = Shape()

    def list_files(self, folder: str) -> list[FileStatus]:
        number = self._number(folder)
        return super().list_files(folder) if number is None else self._files(folder, number)

    def list_folders(self, folder: str) -> list[str]:
        if folder:
            return super().list_folders(folder)
        return [".hoodie", *self._top_folders()]

    def list_tree(self, folder: str) -> Iterator[FileStatus]:
        if folder.startswith(".hoodie"):
            return super().list_tree(folder)
        if not folder:
            return chain.from_iterable(self.list_tree(name) for name in self.list_folders(""))
        return self._tree(folder)

    def read(self, path: str) -> bytes:
        folder, name = split_path(path)
        number = self._number(folder) if name == PARTITION_METADATA else None
        return super().read(path) if number is None else self._metadata(number)

    def read_many(self, paths: Iterable[str]) -> list[bytes]:
        return [self.read(path) for path in paths]

    def partition(self, number: int) -> str:
        """The folder of a partition."""
        per_month = self.shape.per_month
        day = f"d{number:07d}"
        return f"m{number // per_month:05d}/{day}" if per_month else day

    def touched(self) -> range:
        """The partitions that the last instant wrote to."""
        step = max(1, self.shape.partitions // self.shape.touched)
        return range(0, self.shape.partitions, step)[: self.shape.touched]

    def _number(self, folder: str) -> int | None:
        digits = folder.rpartition("/")[2].removeprefix("d")
        number = int(digits) if digits.isdigit() else None
        return number if number is not None and self.partition(number) == folder else None

    def _metadata(self, number: int) -> bytes:
        at = aged_at(number) if self.shape.aged else None
        depth = 1 if self.shape.per_month is None else 2
        metadata = PartitionMetadata(commit_time=_active(0), depth=depth, last_update_time=at)
        return format_partition_metadata(metadata)

    def _top_folders(self) -> list[str]:
        per_month, count = self.shape.per_month, self.shape.partitions
        if per_month is None:
            return [f"d{number:07d}" for number in range(count)]
        return [f"m{number:05d}" for number in range(-(-count // per_month))]

    def _tree(self, folder: str) -> Iterator[FileStatus]:
        per_month, number = self.shape.per_month, int(folder[1:].partition("/")[0])
        if per_month is None or "/" in folder:
            yield from self.list_files(folder)
            return
        last = min((number + 1) * per_month, self.shape.partitions)
        for partition_number in range(number * per_month, last):
            yield from self._files(self.partition(partition_number), partition_number)

    def _files(self, folder: str, number: int) -> list[FileStatus]:
        bases, logs = self.shape.bases, self.shape.logs
        names = [PARTITION_METADATA]
        for group in range(self.shape.groups):
            file_id = _file_id(number, group)
            instants = [aged_at(number)] if self.shape.aged else map(_active, range(bases))
            names += [f"{file_id}_0-0-0_{at}.parquet" for at in instants]
            names += [f".{file_id}_{_active(bases + at)}.log.1_0-0-0" for at in range(logs)]
        if number in self.touched():
            names.append(last_log(self.shape, number).name)
        return [FileStatus(f"{folder}/{name}", _SIZE, 0) for name in sorted(names)]


def last_log(shape: Shape, number: int) -> LogFile:
    """What the last instant wrote into a partition that it touched."""
    return LogFile(_file_id(number, 0), _active(shape.instants - 1), 1, "9-9-9")


def aged_at(number: int) -> str:
    """When rows were last written to a partition of an aged table."""
    return _LONG_AGO if number % 2 == 0 else _NOT_LONG_AGO


def completed_at(instant: int) -> str:
    """The completion time of an active instant by its number."""
    return _active(instant, completed=True)


def synthetic_table(shape: Shape) -> SyntheticTable:
    """Make the table: its properties, its timeline and its history; partitions take no memory."""
    table = SyntheticTable(f"scale-{next(_LABELS)}", shape)
    fields = "day" if shape.per_month is None else "month,day"
    builder = TableBuilder(table, _SCHEMA, partition_by=fields).create()
    small = format_commit(_commit(builder, []))
    stats = [_stat(table.partition(number), last_log(shape, number)) for number in table.touched()]
    for number in range(shape.instants):
        at, completion_time = _active(number), completed_at(number)
        last = number == shape.instants - 1
        if shape.compacted and number == shape.instants - 2:
            _add_compaction(table, at, completion_time, small)
            continue
        content = format_commit(_commit(builder, stats)) if last else small
        for state in (State.REQUESTED, State.INFLIGHT):
            table.create(f"{_TIMELINE}/{Instant(at, Action('deltacommit'), state).file_name}", b"")
        instant = Instant(at, Action.DELTA_COMMIT, completed_at=completion_time)
        table.create(f"{_TIMELINE}/{instant.file_name}", content)
    if shape.archived:
        _add_history(table, builder)
    return table


def _add_compaction(table: SyntheticTable, at: str, completion_time: str, content: bytes) -> None:
    requested = Instant(at, Action.COMPACTION, State.REQUESTED)
    plan = format_compaction_plan(CompactionPlan(missing_partitions=()))
    table.create(f"{_TIMELINE}/{requested.file_name}", plan)
    table.create(
        f"{_TIMELINE}/{Instant(at, Action('commit'), completed_at=completion_time).file_name}",
        content,
    )


def _add_history(table: SyntheticTable, builder: TableBuilder) -> None:
    contents = [format_commit(_archived_commit(builder, kind)) for kind in range(_KINDS_OF_COMMIT)]
    files: list[ArchivedTimelineFile] = []
    for level, start, end in _history_files(table.shape):
        entries = [_entry(number, contents) for number in range(start, end)]
        data = format_archived_file(entries)
        files.append(replace(archived_file_of(entries, level), size=len(data)))
        table.create(f"{HISTORY}/{files[-1].name}", data)
    table.create(f"{HISTORY}/{manifest_name(1)}", format_manifest(Manifest(tuple(files))))
    table.create(f"{HISTORY}/{VERSION_FILE}", format_version(1))


def _history_files(shape: Shape) -> Iterator[tuple[int, int, int]]:
    """The level of each file of history, and the numbers of its instants.

    As many files as archiving leaves that writes ten instants and merges ten files, or
    `archived_files` files that are merged next.
    """
    if shape.archived_files is not None:
        size = shape.archived // shape.archived_files
        yield from ((0, start, start + size) for start in range(0, shape.archived, size))
        return
    start = 0
    for level in range(8, -1, -1):
        size = 10 ** (level + 1)
        while shape.archived - start >= size or (level == 0 and start < shape.archived):
            end = min(start + size, shape.archived)
            yield level, start, end
            start = end


def archived_instant(number: int) -> Instant:
    """An archived instant by its number."""
    at, completion_time = (str(_FIRST_ARCHIVED + 2 * number + end) for end in (0, 1))
    return Instant(at, Action.DELTA_COMMIT, completed_at=completion_time)


def _entry(number: int, contents: list[bytes]) -> ArchivedInstant:
    instant = archived_instant(number)
    content = contents[number % len(contents)]
    return ArchivedInstant(
        instant.requested_at, instant.completed_at or "", instant.action, content
    )


def _archived_commit(builder: TableBuilder, kind: int) -> CommitMetadata:
    numbers = range(kind * 10, kind * 10 + 10)
    return _commit(
        builder,
        [
            _stat(f"d{number:07d}", LogFile(_file_id(number, 0), _active(kind)))
            for number in numbers
        ],
    )


def _commit(builder: TableBuilder, stats: list[WriteStat]) -> CommitMetadata:
    return CommitMetadata(
        stats={stat.partition_path or "": (stat,) for stat in stats},
        operation="UPSERT",
        extra={"schema": builder.avro_schema},
    )


def _stat(partition: str, file: LogFile) -> WriteStat:
    return WriteStat(
        file_id=file.file_id,
        path=join_path(partition, file.name),
        partition_path=partition,
        num_writes=1000,
        file_size_in_bytes=_SIZE,
    )


def _file_id(partition: int, group: int) -> str:
    return f"{partition:08x}-{group:04x}-4000-8000-{partition * 31 + group:012x}-0"


def _active(number: int, *, completed: bool = False) -> str:
    return str(_FIRST_ACTIVE + 2 * number + completed)
