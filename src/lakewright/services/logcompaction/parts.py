"""Which file groups have log files that hold parts of rows: these cannot be made one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from lakewright.core.files import LogFile
from lakewright.core.slices import FileSlice, GroupKey
from lakewright.format.log_blocks import parse_heads
from lakewright.storage.base import Storage, at_once


def groups_in_parts(storage: Storage, slices: Sequence[FileSlice]) -> frozenset[GroupKey]:
    """The groups of those slices that have a block of partial rows; reads headers of blocks."""
    logs = [(slice_, log) for slice_ in slices for log in slice_.logs]
    found = at_once(partial(_holds_parts, storage), logs)
    return frozenset(
        (slice_.partition, slice_.file_id)
        for (slice_, _), in_parts in zip(logs, found, strict=True)
        if in_parts
    )


def _holds_parts(storage: Storage, item: tuple[FileSlice, LogFile]) -> bool:
    slice_, log = item
    path = slice_.path(log)
    heads = parse_heads(partial(storage.read_range, path), log.size, file_name=path)
    return any(block.is_partial for block in heads)
