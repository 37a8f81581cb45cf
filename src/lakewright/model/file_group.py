"""Data files, file groups and file slices: which files make up the rows that a query returns.

A file group is identified by (partition, file id); its slices are ordered by base instant. As in
Hudi's readers, file names and the timeline alone decide which slice a file belongs to. There is one
difference, which loses no rows: files of instants that a query does not see are left out before
slicing, not after it, so that log files are never assigned to the slice of an uncommitted or later
base file.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from sys import intern

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.model.instant import Instant, InstantTime
from lakewright.model.timeline import Timeline

# One in 43 random file ids begins with eight digits, but only one in four million with a number
# below this.
_FEW_BUCKETS = 1_000


def bucket_of_group(file_id: str) -> int | None:
    """Return the bucket number that a file id begins with (eight digits), or None."""
    head = file_id[:8]
    digits = len(head) == 8 and head.isascii() and head.isdigit()
    return int(head) if digits and file_id[8:9] in {"", "-"} else None


def are_bucket_file_ids(file_ids: Sequence[str]) -> bool:
    """Whether these file ids can only be those of a bucket index, judged by their names."""
    buckets = [bucket for file_id in file_ids if (bucket := bucket_of_group(file_id)) is not None]
    return bool(buckets) and len(buckets) == len(file_ids) and min(buckets) < _FEW_BUCKETS


# Data files: parsing and formatting of their names.

PARTITION_METADATA = ".hoodie_partition_metadata"

_BASE = re.compile(
    r"(?P<id>[a-zA-Z0-9-]+)_(?P<token>[a-zA-Z0-9-]+)_(?P<at>[0-9]+)(?P<ext>\.[a-zA-Z0-9]+)"
)
_LOG = re.compile(
    r"\.(?P<id>[^._]+)_(?P<at>[0-9]+)\.log\.(?P<version>[0-9]+)"
    r"(?:_(?P<token>[0-9]+-[0-9]+-[0-9]+)(?P<cdc>\.cdc)?)?"
)
_EXTERNAL_END = "_hudiext"
_EXTERNAL = re.compile(rf".*_[0-9]+{_EXTERNAL_END}")


class BaseFormat(StrEnum):
    """The file formats of base files, by extension; only parquet is supported."""

    PARQUET = ".parquet"
    ORC = ".orc"
    HFILE = ".hfile"
    LANCE = ".lance"


_BASE_EXTENSIONS = tuple(BaseFormat)


@dataclass(frozen=True, slots=True)
class BaseFile:
    """A base file: all rows of a file group at one instant."""

    file_id: str
    token: str
    instant: InstantTime
    extension: str = BaseFormat.PARQUET.value
    size: int = 0

    @property
    def name(self) -> str:
        """The file name without the partition path."""
        return f"{self.file_id}_{self.token}_{self.instant}{self.extension}"


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file: the changes that one instant made to a file group."""

    file_id: str
    instant: InstantTime
    version: int = 1
    token: str | None = "1-0-1"
    cdc: bool = False
    size: int = 0

    @property
    def name(self) -> str:
        """The file name without the partition path."""
        token = "" if self.token is None else f"_{self.token}"
        return f".{self.file_id}_{self.instant}.log.{self.version}{token}{'.cdc' * self.cdc}"

    @property
    def order(self) -> tuple[str, int, tuple[int, ...]]:
        """The sort key that puts the log files of a slice into merge order."""
        token = tuple(map(int, self.token.split("-"))) if self.token else ()
        return self.instant, self.version, token


def parse_data_file(name: str, size: int = 0) -> BaseFile | LogFile | None:
    """Parse the name of a file in a partition; return None for files that readers ignore.

    Raises CorruptError for a name that looks like that of a data file but is malformed: Hudi's
    readers fail on it, and ignoring it could lose rows.
    """
    if name.startswith("."):
        return _parse_log(name, size)
    if name.endswith(_EXTERNAL_END) and _EXTERNAL.fullmatch(name):
        raise UnsupportedError("external base files are not read", file_name=name)
    if not name.endswith(_BASE_EXTENSIONS):
        return None
    match = _BASE.fullmatch(name)
    if match is None:
        raise CorruptError(
            "a foreign file lies in a partition of the table: move it away", file_name=name
        )
    file_id, token, at, extension = match.groups()
    # Millions of files share few instants and extensions: keep one string object for each.
    return BaseFile(file_id, token, intern(at), intern(extension), size)


def group_of(path: str) -> tuple[str, str]:
    """Return the partition and file id of a data file, given its path."""
    partition, _, name = path.rpartition("/")
    file = parse_data_file(name)
    if file is None:
        raise CorruptError("not the name of a data file", path=path)
    return partition, file.file_id


def _parse_log(name: str, size: int) -> LogFile | None:
    if ".log." not in name or name.endswith((".crc", ".tmp")):
        return None
    match = _LOG.fullmatch(name)
    if match is None:
        raise CorruptError(
            "a file named like a log file, but not as the format has it, lies in a partition of "
            "the table: move it away",
            file_name=name,
        )
    file_id, at, version, token, cdc = match.groups()
    return LogFile(file_id, intern(at), int(version), token, bool(cdc), size)


# File groups and their slices.

GroupKey = tuple[str, str]


class DuplicateBaseFileError(CorruptError):
    """Two base files of one file group carry the same instant."""


@dataclass(frozen=True, slots=True)
class TimelineView:
    """The instants that a query sees: the committed ones, optionally within bounds.

    - `requested_until` bounds requested times, for time travel; together with `requested_from` it
      is the window of an incremental query;
    - `completed_until` bounds completion times: the end of an incremental range. An archived
      instant whose completion time is unknown is always within this bound;
    - `archived` maps requested times of archived instants to their completion times.
    """

    timeline: Timeline
    archived: Mapping[str, str] = field(default_factory=dict)
    requested_from: InstantTime | None = None
    requested_until: InstantTime | None = None
    completed_until: InstantTime | None = None

    def completion(self, requested_at: InstantTime) -> str | None:
        """Return the completion time of an instant, from the active or the archived timeline."""
        instant = self.timeline.by_time.get(requested_at)
        return instant.completed_at if instant is not None else self.archived.get(requested_at)

    def includes(self, requested_at: InstantTime) -> bool:
        """Whether the query reads files of this instant."""
        if not self.timeline.is_committed(requested_at):
            return False
        if self.requested_until is not None and requested_at > self.requested_until:
            return False
        if self.requested_from is not None and requested_at < self.requested_from:
            return False
        completed_at = self.completion(requested_at) if self.completed_until is not None else None
        return completed_at is None or completed_at <= (self.completed_until or "")

    def writes(self) -> tuple[Instant, ...]:
        """Return the completed writes of the active timeline that the query sees, by completion."""
        return tuple(i for i in self.timeline.by_completion if self.includes(i.requested_at))


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A file slice: a base file, if any, and the log files written on top of it.

    If the slice holds only the files of an incremental window, `full_slice` is the complete slice
    with all older files.
    """

    partition: str
    file_id: str
    base_instant: InstantTime
    base: BaseFile | None = None
    logs: tuple[LogFile, ...] = ()
    full_slice: FileSlice | None = None

    @property
    def size(self) -> int:
        """The size of all its files in bytes."""
        return (self.base.size if self.base else 0) + self.log_size

    @property
    def log_size(self) -> int:
        """The size of its log files in bytes."""
        return sum(log.size for log in self.logs)

    def path(self, file: BaseFile | LogFile) -> str:
        """Return the path of one of its files, relative to the table."""
        return f"{self.partition}/{file.name}" if self.partition else file.name


@dataclass(frozen=True, slots=True)
class FileGroup:
    """A file group with its slices, oldest first; it has at least one."""

    partition: str
    file_id: str
    slices: tuple[FileSlice, ...]

    @property
    def key(self) -> GroupKey:
        """The identity of the group in the table."""
        return self.partition, self.file_id

    def latest_merged_slice(self) -> FileSlice:
        """Return the slice that a snapshot query reads.

        The newest slice may have no base file yet, because a pending compaction has opened it: then
        the result also includes the files of the slice before it.
        """
        newest = self.slices[-1]
        if newest.base is not None or len(self.slices) == 1:
            return newest
        previous = self.slices[-2]
        logs = sorted(chain(previous.logs, newest.logs), key=lambda log: log.order)
        return replace(previous, logs=tuple(logs))

    def latest_base_slice(self) -> FileSlice | None:
        """Return what a read-optimized query reads: the newest base file, without log files."""
        for candidate in reversed(self.slices):
            if candidate.base is not None:
                return replace(candidate, logs=())
        return None


def build_groups(
    partition: str,
    files: Iterable[BaseFile | LogFile],
    view: TimelineView,
    *,
    replaced: Container[GroupKey] = (),
) -> list[FileGroup]:
    """Return the file groups of one partition that `view` sees, sorted by file id.

    `replaced` are the replaced file groups, which are left out. CDC log files are not part of
    slices.
    """
    bases: dict[str, list[BaseFile]] = {}
    logs: dict[str, list[LogFile]] = {}
    for file in files:
        if not view.includes(file.instant):
            continue
        if isinstance(file, BaseFile):
            bases.setdefault(file.file_id, []).append(file)
        elif not file.cdc:
            logs.setdefault(file.file_id, []).append(file)
    groups = []
    for file_id in sorted(bases.keys() | logs.keys()):
        if (partition, file_id) in replaced:
            continue
        slices = _slices(partition, file_id, bases.get(file_id, []), logs.get(file_id, []), view)
        groups.append(FileGroup(partition, file_id, slices))
    return groups


def duplicate_base_instants(files: Iterable[BaseFile | LogFile]) -> set[str]:
    """Return the instants at which some file group of one partition has two base files."""
    bases = Counter((f.file_id, f.instant) for f in files if isinstance(f, BaseFile))
    return {instant for (_, instant), count in bases.items() if count > 1}


def _slices(
    partition: str,
    file_id: str,
    bases: list[BaseFile],
    logs: list[LogFile],
    view: TimelineView,
) -> tuple[FileSlice, ...]:
    base_by_instant: dict[str, BaseFile] = {}
    for base in bases:
        if base.instant in base_by_instant:
            raise DuplicateBaseFileError(
                "two base files of one file group and one instant: one of them is of a failed task "
                "attempt, and the commit does not say which; run doctor",
                partition=partition,
                files=[base_by_instant[base.instant].name, base.name],
            )
        base_by_instant[base.instant] = base
    base_instants = sorted(base_by_instant)
    logs_by_instant: dict[str, list[LogFile]] = {base_instant: [] for base_instant in base_instants}
    # Most groups have at most one log file: avoid the cost of computing sort keys.
    for log in sorted(logs, key=lambda log: log.order) if len(logs) > 1 else logs:
        # A log file belongs to the latest slice whose base instant was requested before the log
        # file's instant completed. If the completion time of an archived instant is unknown, its
        # requested time is used instead.
        completed_at = view.completion(log.instant) or log.instant
        position = bisect_right(base_instants, completed_at)
        base_instant = base_instants[position - 1] if position else log.instant
        if not position:
            base_instants.insert(0, base_instant)
            logs_by_instant[base_instant] = []
        logs_by_instant[base_instant].append(log)
    return tuple(
        FileSlice(
            partition,
            file_id,
            base_instant,
            base_by_instant.get(base_instant),
            tuple(logs_by_instant[base_instant]),
        )
        for base_instant in base_instants
    )
