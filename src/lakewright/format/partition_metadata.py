"""The file `.hoodie_partition_metadata`, which marks a folder as a partition of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lakewright.errors import CorruptError
from lakewright.format.table_properties import format_properties, parse_properties

_COMMIT_TIME = "commitTime"
_DEPTH = "partitionDepth"
_LAST_UPDATE_TIME = "lastUpdateTime"
_OWN_KEYS = frozenset({_COMMIT_TIME, _DEPTH, _LAST_UPDATE_TIME})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """The instant that created a partition, its depth in folders, and when it last changed.

    Only tables with partition retention record `last_update_time`; Hudi ignores it. `extra` holds
    lines that other writers added.
    """

    commit_time: str
    depth: int
    last_update_time: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)


def parse_partition_metadata(data: bytes) -> PartitionMetadata:
    """Parse a partition metadata file.

    Raises:
        CorruptError: the creating instant or the depth is missing or is not a number.
    """
    values = parse_properties(data)
    missing = [key for key in (_COMMIT_TIME, _DEPTH) if not values.get(key)]
    if missing:
        raise CorruptError("the partition metadata is incomplete", missing=missing)
    depth = values[_DEPTH]
    if not (depth.isascii() and depth.isdecimal()):
        raise CorruptError("the partition metadata has a wrong depth", depth=depth)
    return PartitionMetadata(
        commit_time=values[_COMMIT_TIME],
        depth=int(depth),
        last_update_time=values.get(_LAST_UPDATE_TIME),
        extra={key: value for key, value in values.items() if key not in _OWN_KEYS},
    )


def format_partition_metadata(
    value: PartitionMetadata, comments: Sequence[str] = ("partition metadata",)
) -> bytes:
    """Return the bytes of a partition metadata file."""
    lines = {_COMMIT_TIME: value.commit_time, _DEPTH: str(value.depth)}
    if value.last_update_time is not None:
        lines[_LAST_UPDATE_TIME] = value.last_update_time
    return format_properties({**lines, **value.extra}, comments)
