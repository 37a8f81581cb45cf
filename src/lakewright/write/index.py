"""Index look-ups within a partition, and where rows of new keys are written.

`lookup_keys` finds the file slice of each key. Rows of new keys are added to small files first,
then to new file groups. `PartitionState` is one partition as a write finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewright.errors import ConflictError, CorruptError, InvalidError, errors_in_file
from lakewright.format.parquet_footer import parse_footer
from lakewright.format.partition_metadata import PartitionMetadata, format_partition_metadata
from lakewright.model.file_group import (
    PARTITION_METADATA,
    FileSlice,
    LogFile,
    bucket_of_group,
    parse_data_file,
)
from lakewright.model.schema import RECORD_KEY
from lakewright.model.table_config import META_FOLDER
from lakewright.scan.scan_plan import plan_scan
from lakewright.scan.slice_reader import read_slices
from lakewright.storage.base import Storage, join_path
from lakewright.utils.arrow_rows import as_array, index_in
from lakewright.utils.concurrent import map_ahead
from lakewright.write.options import check_index
from lakewright.write.task import WriteTask

Positions = npt.NDArray[np.int64]

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class FileShape:
    """The number of rows of a base file, and their compressed bytes without the footer."""

    rows: int
    data_bytes: int


def lookup_keys(task: WriteTask, slices: Sequence[FileSlice], keys: pa.Array) -> Positions:
    """Return for each key the position of the slice that contains it, or NOWHERE.

    The keys are distinct. Base files are read. Log files are read in two cases only: if a group has
    no base file, because keys that are new to a group are written to its base file unless the index
    derives the group from the key; and if they were written for the previous base file, which may
    have had keys that the current one does not have.

    A key that log files deleted from one group may have been inserted into another since. So a key
    found in a slice with log files is also looked up in the others, and only if two such slices
    contain it are their log files read.

    Files are read ahead in threads. The stored keys of several files are compared with the wanted
    ones at once: each comparison builds an index of the wanted keys.
    """
    if not slices or not len(keys):
        return np.full(len(keys), NOWHERE, np.int64)
    order = np.asarray(pc.array_sort_indices(keys), dtype=np.int64)
    search = _Search(task, slices, keys.take(pa.array(order)))
    search.run()
    locations = np.empty(len(keys), np.int64)
    locations[order] = search.locations
    return locations


# How many files are read ahead, and how large they may be together.
_FILES_AHEAD = 8
_BYTES_AHEAD = 1 << 30
# Stored keys that are kept in memory until they are compared.
_MAX_COMPARED_BYTES = 512 << 20


@dataclass
class _Search:
    """Looks up keys, given in ascending order, in the slices of a partition."""

    task: WriteTask
    slices: Sequence[FileSlice]
    keys: pa.Array
    locations: Positions = field(init=False)
    _unresolved: npt.NDArray[np.bool_] = field(init=False)
    _unresolved_count: int = field(init=False)

    def __post_init__(self) -> None:
        self.locations = np.full(len(self.keys), NOWHERE, np.int64)
        self._unresolved = np.ones(len(self.keys), bool)
        self._unresolved_count = len(self.keys)

    def run(self) -> None:
        # Slices without log files first: a key in their base file is certainly live.
        ordered = sorted(range(len(self.slices)), key=lambda at: bool(self.slices[at].logs))
        stored: list[tuple[int, pa.ChunkedArray]] = []
        count = size = 0
        with closing(
            map_ahead(
                lambda position: _base_keys(self.task, self.slices[position], self.keys),
                ordered,
                lambda position: _base_size(self.slices[position]),
                most=_FILES_AHEAD,
                max_size=_BYTES_AHEAD,
            )
        ) as base_keys:
            for position, in_base in zip(ordered, base_keys, strict=False):
                in_slice = _slice_keys(self.task, self.slices[position], in_base)
                if not len(in_slice):
                    continue
                stored.append((position, in_slice))
                count, size = count + len(in_slice), size + in_slice.nbytes
                if count >= self._unresolved_count or size >= _MAX_COMPARED_BYTES:
                    self._compare(stored)
                    stored, count, size = [], 0, 0
                if not self._unresolved_count:
                    return
        self._compare(stored)

    def _compare(self, stored: Sequence[tuple[int, pa.ChunkedArray]]) -> None:
        """Find the unresolved keys among the stored keys of some slices."""
        if not stored:
            return
        searched = np.flatnonzero(self._unresolved)
        everything = len(searched) == len(self.keys)
        wanted = self.keys if everything else self.keys.take(pa.array(searched))
        chunks = [chunk for _, found in stored for chunk in found.chunks]
        index = index_in(pa.chunked_array(chunks, pa.string()), wanted)
        is_wanted = np.asarray(index.is_valid())
        hits = searched[np.asarray(index.drop_null(), dtype=np.int64)]
        ends = np.cumsum([len(found) for _, found in stored])
        bounds = np.cumsum([0, *(part.sum() for part in np.split(is_wanted, ends[:-1]))])
        for (position, _), (start, end) in zip(stored, pairwise(bounds.tolist()), strict=True):
            self._locate(position, np.unique(hits[start:end]))

    def _locate(self, position: int, found: Positions) -> None:
        """Record that a slice contains some keys."""
        item = self.slices[position]
        hits = found[self._unresolved[found]]
        if not len(hits):
            return
        if item.base is None or not item.logs:
            self.locations[hits] = position
            self._unresolved[hits] = False
            self._unresolved_count -= len(hits)
            return
        is_ambiguous = self.locations[hits] != NOWHERE
        self.locations[hits[~is_ambiguous]] = position
        ambiguous = hits[is_ambiguous]
        if len(ambiguous):
            wanted = self.keys.take(pa.array(ambiguous))
            self.locations[ambiguous[live_keys(self.task, item, wanted)]] = position


def _base_size(item: FileSlice) -> int:
    return item.base.size if item.base is not None else 0


def _base_keys(task: WriteTask, item: FileSlice, wanted: pa.Array) -> pa.ChunkedArray:
    """Return the keys in the base file of a slice; none if it cannot contain a wanted one.

    The wanted keys are in ascending order.
    """
    if item.base is None:
        return _NO_KEYS
    path = item.path(item.base)
    with task.storage.open_input(path) as source, errors_in_file(path):
        file = _open_parquet(source, path)
        footer = parse_footer(file.schema_arrow.metadata or file.metadata.metadata)
        start, end = footer.range_in(wanted)
        # It takes less time to read the keys than to ask the filter for more keys than it has.
        if task.uses_blooms and 0 < end - start <= file.metadata.num_rows:
            may_contain = footer.may_contain(wanted.slice(start, end - start))
            end = end if may_contain.any() else start
        return _read_keys(file) if start < end else _NO_KEYS


_NO_KEYS = pa.chunked_array([], pa.string())


def _slice_keys(task: WriteTask, item: FileSlice, in_base: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the keys that a slice contains, given those of its base file."""
    if item.base is None:
        return _merged_keys(task, item)
    older_logs = _logs_for_previous_base(task, item)
    if not older_logs:
        return in_base
    in_logs = _merged_keys(task, replace(item, base=None, logs=older_logs))
    return pa.chunked_array([*in_base.chunks, *in_logs.chunks], pa.string())


def live_keys(task: WriteTask, item: FileSlice, keys: pa.Array) -> Positions:
    """Return the positions of the keys that a slice has rows for, after merging its log files."""
    return _matches(_merged_keys(task, item), keys)


def keys_not_in_base(task: WriteTask, item: FileSlice, base: str) -> pa.Array:
    """Return the keys that a slice has rows for and a base file does not contain."""
    keys = as_array(_merged_keys(task, item))
    return keys.take(pa.array(np.setdiff1d(np.arange(len(keys)), _keys_in_file(task, base, keys))))


# Of several slices with one key, that with the least rank has its row: those without log files,
# then the last one whose log files did not delete the row, then the others.
_LIVE_DESPITE_LOGS, DELETED_BY_LOGS, _RANKS = 1 << 40, 1 << 41, 1 << 32

NumberedSlice: TypeAlias = tuple[int, FileSlice]


def ranked_keys(
    task: WriteTask, item: FileSlice, number: int
) -> Iterator[tuple[pa.Array, Positions | int]]:
    """Return batches of the keys that a slice contains, each with the rank of its row.

    `number` counts the slices of a partition. Among all slices of the partition the least rank of a
    key names the slice that `lookup_keys` finds for it.
    """
    live: pa.Array | None = None
    if item.logs:
        live = as_array(_merged_keys(task, item))
    if item.base is not None:
        for keys in _all_keys(task, item.path(item.base)):
            if live is None:
                yield keys, number
                continue
            is_live = np.asarray(pc.is_in(keys, value_set=live))
            yield keys, np.where(is_live, _live_rank(number), DELETED_BY_LOGS + number)
            live = live.filter(pc.invert(pc.is_in(live, value_set=keys)))
    if live is not None and len(live):
        yield live, _live_rank(number)


def number_slices(slices: Iterable[FileSlice]) -> tuple[NumberedSlice, ...]:
    """Return slices with their numbers within their partitions."""
    counters: dict[str, int] = {}
    numbered = []
    for item in slices:
        number = counters.get(item.partition, 0)
        counters[item.partition] = number + 1
        numbered.append((number, item))
    return tuple(numbered)


def ranks_of(number: int) -> tuple[int, ...]:
    """Return all ranks that keys of a slice may have."""
    return (number, _live_rank(number), DELETED_BY_LOGS + number)


def _live_rank(number: int) -> int:
    return _LIVE_DESPITE_LOGS + _RANKS - number


def _all_keys(task: WriteTask, path: str) -> Iterator[pa.Array]:
    with task.storage.open_input(path) as source, errors_in_file(path):
        file = _open_parquet(source, path)
        try:
            for batch in file.iter_batches(columns=[RECORD_KEY], use_threads=False):
                yield batch.column(0)
        except (pa.ArrowException, OSError) as error:
            raise CorruptError("a base file cannot be read", cause=str(error)) from error


def file_shape(storage: Storage, path: str) -> FileShape:
    """Read the row count and data size from the footer of a base file."""
    with storage.open_input(path) as source, errors_in_file(path):
        metadata = _open_parquet(source, path).metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        size = sum(
            group.column(i).total_compressed_size
            for group in groups
            for i in range(group.num_columns)
        )
        return FileShape(metadata.num_rows, size)


def _logs_for_previous_base(task: WriteTask, item: FileSlice) -> tuple[LogFile, ...]:
    """Return the log files of writers that began before the slice's base file was completed.

    They update rows of the previous base file. A compaction omits deleted rows; if such a row was
    written again, only one of these log files contains its key.
    """
    if item.base is None or not item.logs:
        return ()
    instant = task.snapshot.timeline.by_time.get(item.base.instant)
    active_time = instant.completed_at if instant is not None else None
    at = item.base.instant
    completed_at = active_time or task.snapshot.archived_completions({at}).get(at, "")
    return tuple(log for log in item.logs if log.instant < completed_at)


def _merged_keys(task: WriteTask, item: FileSlice) -> pa.ChunkedArray:
    schema = task.snapshot.schema(task.snapshot.view())
    plan = plan_scan(task.config, schema, [item], columns=(RECORD_KEY,))
    columns = [batch.column(0) for batch in read_slices(task.storage, plan)]
    return pa.chunked_array(columns, pa.string())


def _keys_in_file(task: WriteTask, path: str, keys: pa.Array) -> Positions:
    with task.storage.open_input(path) as source, errors_in_file(path):
        file = _open_parquet(source, path)
        footer = parse_footer(file.schema_arrow.metadata or file.metadata.metadata)
        if not footer.in_range(keys).any():
            return np.zeros(0, np.int64)
        return _matches(_read_keys(file), keys)


def _read_keys(file: pq.ParquetFile) -> pa.ChunkedArray:
    try:
        keys = file.read(columns=[RECORD_KEY], use_threads=False).column(0)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError("a base file cannot be read", cause=str(error)) from error
    return keys if keys.type == pa.string() else keys.cast(pa.string())


def _matches(stored: pa.ChunkedArray, keys: pa.Array) -> Positions:
    return np.unique(np.asarray(index_in(stored, keys).drop_null(), dtype=np.int64))


def _open_parquet(source: pa.NativeFile, path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError("a base file cannot be read", file=path, cause=str(error)) from error


# Rows of new keys: small files first, then new file groups.


def assign_to_small_files(rooms: Iterable[tuple[int, int]], rows: int) -> list[tuple[int, int]]:
    """Return how many of `rows` each small file gets, given its capacity; stop at the last row.

    >>> assign_to_small_files([(7, 3), (8, 5), (9, 5)], 4)
    [(7, 3), (8, 1)]
    >>> assign_to_small_files([(7, 3)], 10), assign_to_small_files([(7, 0), (8, 2)], 2)
    ([(7, 3)], [(8, 2)])
    """
    assigned: list[tuple[int, int]] = []
    for position, room in rooms:
        count = max(0, min(room, rows))
        if count:
            assigned.append((position, count))
            rows -= count
        if not rows:
            break
    return assigned


def estimate_capacity(
    size: int, data_bytes: int, rows: int, *, max_size: int, estimate: int
) -> int:
    """Return how many more rows fit into a base file, estimated from the rows it has.

    The footer counts as part of the file but not of its rows: a bloom filter for sixty thousand
    keys would make a handful of rows look huge.
    """
    row_bytes = data_bytes / rows if rows else estimate
    return max(0, int((max_size - size) / max(row_bytes, 1.0)))


# The key column is estimated as a tenth of the bytes of a base file.
_KEY_BYTES_DIVISOR = 10


@dataclass(frozen=True)
class PartitionState:
    """One partition as a write finds it: its latest file slices."""

    task: WriteTask
    path: str
    slices: tuple[FileSlice, ...]
    is_new: bool

    @classmethod
    def load(cls, task: WriteTask, path: str) -> PartitionState:
        """List the partition, and check that its file groups fit the index."""
        if path.split("/")[0] == META_FOLDER:
            raise InvalidError("the table's own folder cannot be a partition", partition=path)
        statuses = task.storage.list_files(path)
        is_new = not any(status.name.startswith(PARTITION_METADATA) for status in statuses)
        parsed = [parse_data_file(status.name, status.size) for status in statuses]
        files = [file for file in parsed if file is not None]
        committed = task.snapshot.without_unlisted({path: [] if is_new else files})
        groups = task.snapshot.groups(task.snapshot.view(), committed)
        check_index(task.settings, (group.file_id for group in groups))
        return cls(task, path, tuple(group.latest_merged_slice() for group in groups), is_new)

    def ensure_metadata(self) -> None:
        """Create the partition metadata file of a new partition, before its first data file."""
        if not self.is_new:
            return
        depth = self.path.count("/") + 1 if self.path else 0
        metadata = PartitionMetadata(commit_time=self.task.instant, depth=depth)
        try:
            self.task.storage.create(
                join_path(self.path, PARTITION_METADATA), format_partition_metadata(metadata)
            )
        except ConflictError:
            # Another writer created it at the same time: the content is equivalent.
            return

    @cached_property
    def read_bytes(self) -> int:
        """How many bytes of base files a task reads to write rows here, however few they are.

        On a merge-on-read table a merge reads only the keys. An insert fills at least one small
        file.
        """
        task = self.task
        if task.operation.replaces or (task.buckets and task.merge_on_read):
            return 0
        sizes = [item.base.size for item in self.slices if item.base is not None]
        if task.operation.merges or task.buckets:
            return sum(sizes) // (_KEY_BYTES_DIVISOR if task.merge_on_read else 1)
        return min((size for size in sizes if size < task.settings.small_file_limit), default=0)

    @cached_property
    def by_bucket(self) -> Mapping[int, int]:
        """The position of the slice of each bucket."""
        positions: dict[int, int] = {}
        for position, item in enumerate(self.slices):
            bucket = bucket_of_group(item.file_id)
            if bucket is None or bucket in positions:
                raise InvalidError(
                    "the file groups of this partition do not follow the bucket index: was it "
                    "written with another index type?",
                    partition=self.path,
                    file_id=item.file_id,
                )
            positions[bucket] = position
        return positions

    def replaced_buckets(self, bucket: int) -> int:
        """Return how many file groups of a bucket were replaced in this partition."""
        replaced = self.task.snapshot.replaced(self.task.snapshot.view())
        return sum(
            partition == self.path and bucket_of_group(file_id) == bucket
            for partition, file_id in replaced
        )

    def small_files(self) -> Iterator[tuple[int, int]]:
        """Yield the slices that new rows may be added to, smallest first: (position, row capacity).

        A slice with log files is left out: a new base file written without merging them would lose
        their changes. A file group under a pending plan must stay as the plan describes it.
        """
        settings = self.task.settings
        candidates = []
        for position, item in enumerate(self.slices):
            key = (self.path, item.file_id)
            if item.base is None or item.logs or item.base.size >= settings.small_file_limit:
                continue
            if key in self.task.clustering or key in self.task.compacting:
                continue
            candidates.append((item.base.size, position))
        for size, position in sorted(candidates):
            base = self.slices[position].base
            assert base is not None
            shape = file_shape(self.task.storage, self.slices[position].path(base))
            room = estimate_capacity(
                size,
                shape.data_bytes,
                shape.rows,
                max_size=settings.max_file_size,
                estimate=settings.record_size_estimate,
            )
            yield position, room

    def file_ids_to_replace(self) -> tuple[str, ...]:
        """Return all file groups of the partition; raise if a pending clustering includes one."""
        for item in self.slices:
            self.check_not_clustering(item)
        return tuple(item.file_id for item in self.slices)

    def check_not_clustering(self, item: FileSlice) -> None:
        """Raise if a pending clustering plan includes the slice: its rows must not change."""
        plan = self.task.clustering.get((self.path, item.file_id))
        if plan is not None:
            raise ConflictError(
                "these rows are being clustered: write again when the clustering is done",
                partition=self.path,
                file_id=item.file_id,
                clustering=plan,
            )
