"""The names of the file groups of a bucket index: eight digits, then the rest of a random id."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from sys import intern

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.model.instant import Instant, InstantTime
from lakewright.model.timeline import Timeline

# An id at random may begin with digits, one in 43; below this, one in four million.
_FEW_BUCKETS = 1_000


def bucket_of_group(file_id: str) -> int | None:
    """The bucket that a file id names, if it names one."""
    head = file_id[:8]
    digits = len(head) == 8 and head.isascii() and head.isdigit()
    return int(head) if digits and file_id[8:9] in {"", "-"} else None


def are_bucket_file_ids(file_ids: Sequence[str]) -> bool:
    """Whether all these file groups must be those of a bucket index, by their names alone."""
    named = [bucket for each in file_ids if (bucket := bucket_of_group(each)) is not None]
    return bool(named) and len(named) == len(file_ids) and min(named) < _FEW_BUCKETS


# ------------------------------------------------------------------------------------------------
# Data files: their names are values, and the values are their names.


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
    """File formats that a base file may have, by extension; only parquet is read."""

    PARQUET = ".parquet"
    ORC = ".orc"
    HFILE = ".hfile"
    LANCE = ".lance"


_BASE_EXTENSIONS = tuple(BaseFormat)


@dataclass(frozen=True, slots=True)
class BaseFile:
    """A base file: all rows of a file group as of one instant."""

    file_id: str
    token: str
    instant: InstantTime
    extension: str = BaseFormat.PARQUET.value
    size: int = 0

    @property
    def name(self) -> str:
        """The file name in its partition folder."""
        return f"{self.file_id}_{self.token}_{self.instant}{self.extension}"


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file: changes of a file group by one instant."""

    file_id: str
    instant: InstantTime
    version: int = 1
    token: str | None = "1-0-1"
    cdc: bool = False
    size: int = 0

    @property
    def name(self) -> str:
        """The file name in its partition folder."""
        token = "" if self.token is None else f"_{self.token}"
        return f".{self.file_id}_{self.instant}.log.{self.version}{token}{'.cdc' * self.cdc}"

    @property
    def order(self) -> tuple[str, int, tuple[int, ...]]:
        """Sorts the log files of a slice in the order in which they are merged."""
        token = tuple(map(int, self.token.split("-"))) if self.token else ()
        return self.instant, self.version, token


def parse_data_file(name: str, size: int = 0) -> BaseFile | LogFile | None:
    """The file that a name in a partition folder stands for; None for what readers pass over.

    Raises CorruptError for a name that looks like a data file and is none: real readers fail on
    it, and leaving it out could leave out rows.
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
    # Few instants and extensions are in the names of millions of files: each is held once.
    return BaseFile(file_id, token, intern(at), intern(extension), size)


def group_of(path: str) -> tuple[str, str]:
    """The partition and file id of a data file, by its path."""
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


# ------------------------------------------------------------------------------------------------
# File groups and slices: which files make up the rows that a query sees.
#
# A file group is (partition, file id). Its slices are keyed by base instant. Readers decide by
# names
# and the timeline alone; this module does the same, with one difference that loses no rows: files
# of
# instants that a query does not see are put aside before slicing, not after it, so that an
# uncommitted or later base file cannot draw log files away from the slice they belong to.


GroupKey = tuple[str, str]


class DuplicateBaseFileError(CorruptError):
    """Two base files of one file group carry the same instant."""


@dataclass(frozen=True, slots=True)
class TimelineView:
    """Which instants a query sees: the committed ones within bounds, if there are any.

    `requested_until` is time travel, compared with requested times; with `requested_from` it is the
    window of an incremental query. `completed_until` is the end of an incremental range, compared
    with completion times; there an archived instant whose completion time is not known counts as
    long past.
    """

    timeline: Timeline
    archived: Mapping[str, str] = field(default_factory=dict)
    requested_from: InstantTime | None = None
    requested_until: InstantTime | None = None
    completed_until: InstantTime | None = None

    def completion(self, requested_at: InstantTime) -> str | None:
        """The completion time of a completed instant, from the timeline or from history."""
        instant = self.timeline.by_time.get(requested_at)
        return instant.completed_at if instant is not None else self.archived.get(requested_at)

    def includes(self, requested_at: InstantTime) -> bool:
        """Whether files that carry this instant are part of the answer."""
        if not self.timeline.is_committed(requested_at):
            return False
        if self.requested_until is not None and requested_at > self.requested_until:
            return False
        if self.requested_from is not None and requested_at < self.requested_from:
            return False
        completed_at = self.completion(requested_at) if self.completed_until is not None else None
        return completed_at is None or completed_at <= (self.completed_until or "")

    def writes(self) -> tuple[Instant, ...]:
        """The completed writes on the active timeline that the query sees, in completion order."""
        return tuple(i for i in self.timeline.by_completion if self.includes(i.requested_at))


@dataclass(frozen=True, slots=True)
class FileSlice:
    """The state of a file group from one base instant on: a base file and the logs after it.

    Where a slice holds only the files of a window, `whole` is the same with all older files.
    """

    partition: str
    file_id: str
    base_instant: InstantTime
    base: BaseFile | None = None
    logs: tuple[LogFile, ...] = ()
    whole: FileSlice | None = None

    @property
    def size(self) -> int:
        """Bytes on storage."""
        return (self.base.size if self.base else 0) + self.log_size

    @property
    def log_size(self) -> int:
        """Bytes of its log files."""
        return sum(log.size for log in self.logs)

    def path(self, file: BaseFile | LogFile) -> str:
        """The path of one of its files, relative to the table."""
        return f"{self.partition}/{file.name}" if self.partition else file.name


@dataclass(frozen=True, slots=True)
class FileGroup:
    """A file group with its slices, oldest first; there is at least one."""

    partition: str
    file_id: str
    slices: tuple[FileSlice, ...]

    @property
    def key(self) -> GroupKey:
        """What identifies the group in the table."""
        return self.partition, self.file_id

    def latest_merged_slice(self) -> FileSlice:
        """What a snapshot query reads.

        The newest slice may be the empty one that a pending compaction has opened; then the slice
        before it counts too.
        """
        newest = self.slices[-1]
        if newest.base is not None or len(self.slices) == 1:
            return newest
        before = self.slices[-2]
        logs = sorted(chain(before.logs, newest.logs), key=lambda log: log.order)
        return replace(before, logs=tuple(logs))

    def latest_base_slice(self) -> FileSlice | None:
        """What a read-optimized query reads: the newest base file, without log files."""
        for candidate in reversed(self.slices):
            if candidate.base is not None:
                return replace(candidate, logs=())
        return None


def build_groups(
    partition: str,
    files: Iterable[BaseFile | LogFile],
    view: TimelineView,
    *,
    replaced: Collection[GroupKey] = (),
    pending_compactions: Mapping[GroupKey, str] | None = None,
) -> list[FileGroup]:
    """The file groups of one partition that `view` sees, by file id.

    `replaced` are the groups that are no part of the table any more; `pending_compactions` names
    the instant of a scheduled compaction of a group, where a new slice begins. Change-data files
    are no part of slices.
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
        barrier = (pending_compactions or {}).get((partition, file_id))
        slices = _slice(
            partition, file_id, bases.get(file_id, []), logs.get(file_id, []), view, barrier
        )
        groups.append(FileGroup(partition, file_id, slices))
    return groups


def duplicate_base_instants(files: Iterable[BaseFile | LogFile]) -> set[str]:
    """The instants of which a file group of one partition has two base files."""
    bases = Counter((f.file_id, f.instant) for f in files if isinstance(f, BaseFile))
    return {instant for (_, instant), count in bases.items() if count > 1}


def _slice(
    partition: str,
    file_id: str,
    bases: list[BaseFile],
    logs: list[LogFile],
    view: TimelineView,
    barrier: str | None,
) -> tuple[FileSlice, ...]:
    base_at: dict[str, BaseFile] = {}
    for base in bases:
        if base.instant in base_at:
            raise DuplicateBaseFileError(
                "two base files of one file group and one instant: one of them is of a failed task "
                "attempt, and the commit does not tell which; run doctor",
                partition=partition,
                files=[base_at[base.instant].name, base.name],
            )
        base_at[base.instant] = base
    keys = sorted({*base_at, barrier} if barrier else base_at)
    logs_at: dict[str, list[LogFile]] = {key: [] for key in keys}
    # Most groups have at most one log file, and the order of a name is not free to tell.
    for log in sorted(logs, key=lambda log: log.order) if len(logs) > 1 else logs:
        # A log belongs to the slice whose base was requested last before the log completed. An
        # archived instant that history does not know is taken to have completed when it began.
        completed_at = view.completion(log.instant) or log.instant
        position = bisect_right(keys, completed_at)
        key = keys[position - 1] if position else log.instant
        if not position:
            keys.insert(0, key)
            logs_at[key] = []
        logs_at[key].append(log)
    return tuple(
        FileSlice(partition, file_id, key, base_at.get(key), tuple(logs_at[key])) for key in keys
    )
