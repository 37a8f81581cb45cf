"""What the inflight file of a write says of the partitions that the write will change.

Real Hudi writes it once it has looked up the keys, before it creates a data file: for each
partition one stat without file id, with the number of rows to insert, and one stat for each file
group to update. It does not list the small file groups to which it adds rows. An insert overwrite
has the former only; a bulk insert and the writers of Flink leave the file empty.

This library writes it before the shuffle, which finds the file groups: the stats without file id,
for the partitions that it knows without another pass over the rows. Patterns by which a deletion
names partitions are in the extra metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lakewright.model.commit_metadata import CommitMetadata, WriteStat

# Writes of these operations change no file group that exists; other inserts go to small files.
_BULK_INSERTS = ("BULK_INSERT", "BULK_INSERT_PREPPED")
_NEW_GROUP = "null"
_PATTERNS = "lakewright.partition.patterns"


@dataclass(frozen=True, slots=True)
class WorkloadProfile:
    """The partitions that a pending write will change; none are known if it is empty.

    It may change any file group of `open_partitions`, in the others only those that it names.
    `patterns` are those of partitions that it will delete.
    """

    partitions: frozenset[str] = frozenset()
    open_partitions: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the write says where it will be."""
        return bool(self.partitions or self.patterns)


NO_PROFILE = WorkloadProfile()


def changes_no_group(metadata: CommitMetadata) -> bool:
    """Whether a write of this operation only creates file groups."""
    return (metadata.operation or "").upper() in _BULK_INSERTS


def workload_profile(metadata: CommitMetadata | None) -> WorkloadProfile:
    """Return the profile of a write, given the content of its inflight file."""
    if metadata is None or changes_no_group(metadata):
        return NO_PROFILE
    stats = metadata.stats.items()
    return WorkloadProfile(
        frozenset(metadata.stats),
        frozenset(partition for partition, items in stats if _is_open(items)),
        _patterns(metadata.extra.get(_PATTERNS, "[]")),
    )


def _patterns(text: str) -> tuple[str, ...]:
    try:
        return tuple(str(pattern) for pattern in json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return ()  # another writer's file: the write is then expected where the last ones were


def _is_open(stats: Sequence[WriteStat]) -> bool:
    names_groups = any(stat.file_id for stat in stats)
    return not names_groups or any(stat.num_inserts for stat in stats if not stat.file_id)


def planned_metadata(
    operation: str, partitions: Iterable[str] | None, patterns: Iterable[str] = ()
) -> CommitMetadata:
    """Return what the inflight file of a write records; the partitions are None if unknown."""
    listed = sorted(patterns)
    stats = {
        path: (WriteStat(file_id="", prev_commit=_NEW_GROUP, partition_path=path),)
        for path in sorted(partitions or ())
    }
    return CommitMetadata(
        stats=stats,
        operation=operation,
        extra={_PATTERNS: json.dumps(listed)} if listed else {},
    )
