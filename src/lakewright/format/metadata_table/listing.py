"""Records of the listing: the partitions of a table, and the files of each partition."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.format.metadata_table.record_schema import FILES
from lakewright.model.metadata_keys import ALL_PARTITIONS, partition_id, partition_path
from lakewright.utils.grouped_rows import GroupedRows

_FILE = FILES.field("files").type.value_type


def listing_records(
    partitions: pa.Array, names: pa.Array, sizes: pa.Array, is_deleted: pa.Array
) -> pa.Table:
    """Return one record for each partition, with its files.

    Args:
        partitions: the path of the partition of each file, which may be a dictionary array.
        names: the names of the files, without their folder.
        sizes: the size of each file; 0 of a deleted one.
        is_deleted: whether the file is deleted.
    """
    coded = (
        partitions if pa.types.is_dictionary(partitions.type) else partitions.dictionary_encode()
    )
    groups = GroupedRows.of(np.asarray(coded.indices).astype(np.int64))
    order = pa.array(groups.order)
    files = pa.StructArray.from_arrays(
        [column.take(order) for column in (names, sizes.cast(pa.int64()), is_deleted)],
        fields=list(_FILE),
    )
    offsets = np.append(groups.starts, len(groups.order)).astype(np.int32)
    paths = coded.dictionary.take(coded.indices.take(pa.array(groups.order[groups.starts])))
    keys = pa.array(map(partition_id, paths.to_pylist()), pa.string())
    return pa.table([keys, pa.ListArray.from_arrays(pa.array(offsets), files)], schema=FILES)


def partition_list(partitions: Iterable[str], deleted: Iterable[str] = ()) -> pa.Table:
    """Return the record that lists partitions of the table, by their paths."""
    listed = [(path, False) for path in partitions] + [(path, True) for path in deleted]
    files = [
        {"name": partition_id(path), "size": 0, "is_deleted": is_deleted}
        for path, is_deleted in listed
    ]
    return pa.Table.from_pylist([{"key": ALL_PARTITIONS, "files": files}], schema=FILES)


def without_deleted_files(records: pa.Table) -> pa.Table:
    """Return merged records without entries of deleted files, as a base file has them.

    The base file is the oldest file of a shard: there is nothing that such an entry could delete.
    """
    files = records["files"].combine_chunks()
    owners = pc.list_parent_indices(files)
    entries = files.flatten()
    live = pc.invert(entries.field("is_deleted"))
    counts = np.bincount(np.asarray(owners.filter(live)), minlength=len(records))
    offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
    kept = pa.ListArray.from_arrays(pa.array(offsets), entries.filter(live))
    return pa.table([records["key"], kept], schema=FILES)


def listed_files(records: pa.Table) -> dict[str, dict[str, int]]:
    """Return the files of each partition of a table with their sizes, from merged records."""
    files = records["files"].combine_chunks()
    names, sizes, is_deleted = files.flatten().flatten()
    live = pc.invert(is_deleted)
    owners = np.asarray(pc.list_parent_indices(files).filter(live))
    ends = np.cumsum(np.bincount(owners, minlength=len(records))).tolist()
    entries = list(zip(names.filter(live).to_pylist(), sizes.filter(live).to_pylist(), strict=True))
    listed = {
        partition_path(key): dict(entries[start:end])
        for key, start, end in zip(records["key"].to_pylist(), [0, *ends], ends, strict=False)
    }
    partitions = map(partition_path, listed.pop(ALL_PARTITIONS, {}))
    return {path: listed.get(path, {}) for path in partitions}
