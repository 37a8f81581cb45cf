"""Partitions of the metadata table, and the file groups, called shards, that share their keys.

The metadata table is a table inside of the table, in `.hoodie/metadata`. Each of its partitions is
a folder that holds one index: the listing of files, column statistics, bloom filters, or the
location of record keys. A partition has a fixed number of shards from the moment it is built; the
hash of a key says which shard has it. The number is stored nowhere: readers count the file groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.model.hashing import java_string_hashes
from lakewright.model.metadata_keys import secondary_index_prefixes
from lakewright.model.partition_paths import escape, unescape

METADATA_FOLDER = ".hoodie/metadata"

# What real Hudi assumes of an entry of a record index or secondary index, and its default limit.
INDEX_ENTRY_BYTES = 48
MAX_SHARD_BYTES = 1 << 30

ShardNumbers = npt.NDArray[np.int64]


class MetadataPartitionType(StrEnum):
    """The kinds of partitions; the values are their folders, of the last two how these begin."""

    FILES = "files"
    COLUMN_STATS = "column_stats"
    BLOOM_FILTERS = "bloom_filters"
    RECORD_INDEX = "record_index"
    PARTITION_STATS = "partition_stats"
    EXPRESSION_INDEX = "expr_index_"
    SECONDARY_INDEX = "secondary_index_"


class RecordType(IntEnum):
    """The kinds of records; the values are those on storage."""

    PARTITION_LIST = 1
    FILE_LIST = 2
    COLUMN_STATS = 3
    BLOOM_FILTER = 4
    RECORD_INDEX = 5
    PARTITION_STATS = 6
    SECONDARY_INDEX = 7


class IndexVersion(StrEnum):
    """The version of an index, which decides how its keys and values are encoded."""

    V1 = "V1"
    V2 = "V2"


_NAMED = (MetadataPartitionType.EXPRESSION_INDEX, MetadataPartitionType.SECONDARY_INDEX)
_FILE_ID_PREFIXES = {
    MetadataPartitionType.FILES: "files-",
    MetadataPartitionType.COLUMN_STATS: "col-stats-",
    MetadataPartitionType.BLOOM_FILTERS: "bloom-filters-",
    MetadataPartitionType.RECORD_INDEX: "record-index-",
    MetadataPartitionType.PARTITION_STATS: "partition-stats-",
}
_FILE_INDEX = "-0"


def partition_type(folder: str) -> MetadataPartitionType:
    """Return what a partition of the metadata table holds.

    Raises:
        UnsupportedError: the folder is none that this library knows.
    """
    for kind in MetadataPartitionType:
        if folder == kind or (kind in _NAMED and folder.startswith(kind)):
            return kind
    raise UnsupportedError("an unknown partition of a metadata table", partition=folder)


def shard_file_id(folder: str, shard: int, data_partition: str | None = None) -> str:
    """Return the file id of a shard.

    Args:
        folder: the partition of the metadata table.
        shard: the number of the shard; in a partitioned record index, among those of
            `data_partition`.
        data_partition: the partition of the table whose keys a shard of a partitioned record index
            holds; None in all other indexes.
    """
    kind = partition_type(folder)
    prefix = folder.replace("_", "-") + "-" if kind in _NAMED else _FILE_ID_PREFIXES[kind]
    if data_partition is not None:
        if kind is not MetadataPartitionType.RECORD_INDEX:
            raise InvalidError("only a record index has shards for partitions", partition=folder)
        prefix += escape(data_partition).replace("_", "%5F").replace("-", "%2D") + "-"
    return f"{prefix}{shard:04d}{_FILE_INDEX}"


def data_partition_of(file_id: str) -> str | None:
    """Return the partition whose keys a shard of a record index holds; None if those of all."""
    parts = file_id.split("-")
    return unescape(parts[2]) if len(parts) == 5 else None


@dataclass(frozen=True, slots=True)
class Shards:
    """The file ids of one index in the order of their numbers; the place in it is the number."""

    file_ids: tuple[str, ...]

    def __len__(self) -> int:
        """The number of shards."""
        return len(self.file_ids)

    def of_keys(self, keys: pa.Array) -> ShardNumbers:
        """Return the number of the shard that has each key."""
        if not self.file_ids:
            raise InvalidError("an index without shards has no place for keys")
        return shard_numbers(keys, len(self.file_ids))

    def of_secondary_keys(self, keys: pa.Array, version: IndexVersion) -> ShardNumbers:
        """Return the number of the shard that has each key of a secondary index.

        Since version 2 all keys of one value are in one shard.
        """
        return self.of_keys(keys if version is IndexVersion.V1 else secondary_index_prefixes(keys))


def shards_of(file_ids: Iterable[str]) -> Shards:
    """Return the shards of an index from the file ids in its folder."""
    return Shards(tuple(sorted(set(file_ids))))


def shards_by_partition(file_ids: Iterable[str]) -> Mapping[str, Shards]:
    """Return the shards of a partitioned record index by partition of the table.

    Raises:
        CorruptError: a shard holds keys of all partitions.
    """
    grouped: dict[str, list[str]] = {}
    for file_id in file_ids:
        partition = data_partition_of(file_id)
        if partition is None:
            raise CorruptError("a shard of a partitioned index is of no partition", file_id=file_id)
        grouped.setdefault(partition, []).append(file_id)
    return {partition: shards_of(ids) for partition, ids in grouped.items()}


def shard_numbers(hashed: pa.Array, count: int) -> ShardNumbers:
    """Return the number of the shard for each text that is hashed."""
    if count < 1 or hashed.null_count:
        raise InvalidError("a key without value, or an index without shards", shards=count)
    # Java takes the absolute value of the remainder, which for -2^31 is the same as this.
    return np.abs(java_string_hashes(hashed).astype(np.int64)) % count


def shard_count(
    records: int,
    *,
    least: int,
    most: int,
    growth: float = 2.0,
    entry_bytes: int = INDEX_ENTRY_BYTES,
    max_bytes: int = MAX_SHARD_BYTES,
) -> int:
    """Return how many shards a new record index or secondary index gets.

    Args:
        records: the number of its entries now.
        least: the least number of shards; if it is `most` as well, this is the number.
        most: the greatest number of shards.
        growth: how many times more entries are expected later.
        entry_bytes: the expected size of an entry.
        max_bytes: the size that a shard may reach.
    """
    if not 0 < least <= most:
        raise InvalidError("impossible limits of shards", least=least, most=most)
    # Java multiplies numbers of 32 bits here.
    expected = int(np.ceil(np.float32(records) * np.float32(growth)))
    return min(max(expected // (max_bytes // max(entry_bytes, 1)), least), most)


def by_shard(numbers: ShardNumbers) -> Sequence[tuple[int, ShardNumbers]]:
    """Return the shards that have rows, each with the numbers of its rows, ascending."""
    order = np.argsort(numbers, kind="stable")
    used, starts = np.unique(numbers[order], return_index=True)
    return list(zip(used.tolist(), np.split(order, starts[1:]), strict=True)) if len(order) else []
