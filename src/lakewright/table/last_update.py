"""The line `lastUpdateTime` in the metadata file of a partition: when rows were last written there.

Other readers pass over it, and real Hudi's writers neither renew nor drop it. So it tells no more
than that rows were written at that time; what the timeline knows of later writes counts as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from lakewright.core.files import PARTITION_METADATA
from lakewright.core.instant import full_time, is_time
from lakewright.errors import CorruptError
from lakewright.format.partition_metadata import (
    PartitionMetadata,
    format_partition_metadata,
    parse_partition_metadata,
)
from lakewright.storage.base import MissingFileError, Storage, at_once, join_path
from lakewright.table.properties import read_if_there

# So many files are read at once: a table may have millions, and their bytes need not be held.
_AT_ONCE = 10_000


def load_partition_metadata(
    storage: Storage, partitions: Iterable[str]
) -> dict[str, PartitionMetadata]:
    """The metadata of partitions, each read once; what is gone or broken is left out."""
    waiting, found = iter(partitions), {}
    while part := list(islice(waiting, _AT_ONCE)):
        for partition, data in zip(part, _read_all(storage, part), strict=True):
            parsed = _parsed(data) if data is not None else None
            if parsed is not None:
                found[partition] = parsed
    return found


def _read_all(storage: Storage, partitions: Iterable[str]) -> Sequence[bytes | None]:
    paths = [join_path(partition, PARTITION_METADATA) for partition in partitions]
    try:
        return storage.read_many(paths)
    except (MissingFileError, CorruptError):
        # A partition was removed since it was listed, or its file is of another format.
        return at_once(lambda path: _read(storage, path), paths)


def last_update(metadata: PartitionMetadata | None) -> str:
    """When rows were last written, by the line alone, in 17 digits; empty if it does not tell."""
    told = metadata.last_update_time if metadata is not None else None
    return full_time(told) if told and is_time(told) else ""


def renew_last_update(storage: Storage, partition: str, time: str) -> bool:
    """Note that rows were written at a time; gives whether the line was older, and is there now.

    The file is never missing for a moment, as readers find partitions by it. Of two who renew it
    at once the earlier time may stay: the line is not the only thing that is believed.
    """
    path = join_path(partition, PARTITION_METADATA)
    data = _read(storage, path)
    known = _parsed(data) if data is not None else None
    if known is None or last_update(known) >= full_time(time):
        return False
    storage.replace(path, format_partition_metadata(replace(known, last_update_time=time)))
    return True


def _read(storage: Storage, path: str) -> bytes | None:
    try:
        return read_if_there(storage, path)
    except CorruptError:
        return None


@lru_cache(maxsize=1024)
def _parsed(data: bytes) -> PartitionMetadata | None:
    """The content of a file; those of all partitions that one write has made are the same."""
    try:
        return parse_partition_metadata(data)
    except CorruptError:
        return None
