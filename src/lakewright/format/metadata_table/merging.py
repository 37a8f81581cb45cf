"""Merge records of the metadata table: a base file, then log blocks from the oldest to the newest.

What two records of one key become depends on their kind. Listings are united, statistics are
widened, and of the other kinds the newer record replaces the older one. A deleted key loses all
that is older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.format.metadata_table.files import DeletedKeys
from lakewright.format.metadata_table.record_schema import FILES, RECORD_COLUMNS, RecordKind
from lakewright.format.metadata_table.widening import widen
from lakewright.utils.arrow_rows import take_rows
from lakewright.utils.grouped_rows import GroupedRows, Numbers, reduce_spans


def merge_records(kind: RecordKind, sources: Iterable[pa.Table | DeletedKeys]) -> pa.Table:
    """Return one record for each key that is left, in no particular order.

    Args:
        kind: what the records hold.
        sources: records and deleted keys from the oldest to the newest: the base file, then log
            files by instant, version and write token, their blocks in the order of the file. No
            source has a key twice.

    Raises:
        UnsupportedError: statistics of one column in one place have values of different types.
    """
    listed = list(sources)
    if len(listed) == 1 and isinstance(listed[0], pa.Table):
        return listed[0]
    records, keys = _left_over(kind, listed)
    return _MERGERS[kind](records, keys)


def _left_over(
    kind: RecordKind, sources: Sequence[pa.Table | DeletedKeys]
) -> tuple[pa.Table, Numbers]:
    """Return the records that no newer delete removes, and a number for the key of each."""
    columns = [
        source.keys if isinstance(source, DeletedKeys) else source["key"] for source in sources
    ]
    records = [source for source in sources if not isinstance(source, DeletedKeys)]
    rows = pa.concat_tables([RECORD_COLUMNS[kind].empty_table(), *records])
    keys = _numbers([chunk for column in columns for chunk in _chunks(column)])
    is_record = np.repeat(
        [not isinstance(source, DeletedKeys) for source in sources], list(map(len, columns))
    )
    if is_record.all():
        return rows, keys
    last_delete = np.full(int(keys.max(initial=-1)) + 1, -1)
    deletes = np.flatnonzero(~is_record)
    # Where a number occurs several times, the last one is kept.
    last_delete[keys[deletes]] = deletes
    places = np.flatnonzero(is_record)
    left = places > last_delete[keys[places]]
    return rows.filter(pa.array(left)), keys[places[left]]


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _numbers(chunks: list[pa.Array]) -> Numbers:
    """Return a number for each text, the same for equal ones."""
    encoded = pa.chunked_array(chunks, pa.string()).dictionary_encode()
    numbers = [np.asarray(chunk.indices).astype(np.int64) for chunk in encoded.chunks]
    return np.concatenate([np.zeros(0, np.int64), *numbers])


def _newest(records: pa.Table, keys: Numbers) -> pa.Table:
    last = np.full(int(keys.max(initial=-1)) + 1, -1)
    last[keys] = np.arange(len(keys))
    if len(last) == len(keys):
        return records
    return take_rows(records, np.sort(last[last >= 0]))


def _united(records: pa.Table, keys: Numbers) -> pa.Table:
    """Unite the listings of each key.

    A file that was added and then deleted is gone. A delete without an older entry stays, because
    the entry may be in a file that is not among the sources.
    """
    files = records["files"].combine_chunks()
    names, sizes, deleted = files.flatten().flatten()
    owners = keys[np.asarray(pc.list_parent_indices(files))]
    names_numbers = _numbers([names])
    groups = GroupedRows.of(owners * (int(names_numbers.max(initial=0)) + 1) + names_numbers)
    is_deleted = np.asarray(deleted)[groups.order]
    stored_sizes = np.asarray(sizes)[groups.order]
    last = groups.ends - 1
    # What follows the last delete of a file.
    since = groups.last_true(is_deleted) + 1
    before = np.maximum(last - 1, 0)
    is_gone = is_deleted[last] & (last > groups.starts) & ~is_deleted[before]
    greatest = np.zeros(len(last), np.int64)
    live = ~is_deleted[last]
    greatest[live] = reduce_spans(np.maximum, stored_sizes, since[live], groups.ends[live])
    kept = np.flatnonzero(~is_gone)
    rows = groups.order[last[kept]]
    by_owner = np.argsort(owners[rows], kind="stable")
    kept, rows = kept[by_owner], rows[by_owner]
    entries = pa.StructArray.from_arrays(
        [names.take(pa.array(rows)), pa.array(greatest[kept]), pa.array(~live[kept])],
        fields=list(FILES.field("files").type.value_type),
    )
    owner_numbers, first = np.unique(keys, return_index=True)
    offsets = np.append(np.searchsorted(owners[rows], owner_numbers), len(rows))
    listing = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), entries)
    return pa.table([records["key"].take(pa.array(first)), listing], schema=FILES)


_MERGERS: Mapping[RecordKind, Callable[[pa.Table, Numbers], pa.Table]] = {
    RecordKind.FILES: _united,
    RecordKind.COLUMN_STATS: widen,
    RecordKind.BLOOM_FILTERS: _newest,
    RecordKind.RECORD_INDEX: _newest,
    RecordKind.SECONDARY_INDEX: _newest,
}
