"""Index look-ups in one partition: which file group holds which key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewright.errors import ConflictError, CorruptError, InvalidError, found_in
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
from lakewright.scan.scan_plan import plan_scan
from lakewright.scan.slice_reader import read_slices
from lakewright.storage.base import Storage, join_path
from lakewright.write.options import check_index
from lakewright.write.task import WriteTask

Positions = npt.NDArray[np.int64]

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class FileShape:
    """How many rows a base file has, and how many bytes they take without footer."""

    rows: int
    data_bytes: int


def lookup_keys(task: WriteTask, slices: Sequence[FileSlice], keys: pa.Array) -> Positions:
    """For each key the position of the slice that holds it, or NOWHERE.

    Base files are looked into; log files only where a group has no base file, since keys that are
    new to a group go into its base file unless their group follows from the key; and where they
    were written for the base file before, which may have had keys that this one has not.

    A key that log files have deleted from one group may live in another by now. So what is found
    in a slice with log files is looked for in the others too, and only where two such slices have
    it are their log files asked.
    """
    where = np.full(len(keys), NOWHERE, np.int64)
    missing = np.arange(len(keys))
    # Slices without log files first: what they have is certain.
    for position in sorted(range(len(slices)), key=lambda at: bool(slices[at].logs)):
        if not len(missing):
            break
        item = slices[position]
        wanted = keys if len(missing) == len(keys) else keys.take(pa.array(missing))
        found = _keys_in_slice(task, item, wanted)
        if not len(found):
            continue
        chosen = missing[found]
        if item.base is None or not item.logs:
            where[chosen] = position
            missing = np.delete(missing, found)
            continue
        twice = chosen[where[chosen] != NOWHERE]
        where[chosen[where[chosen] == NOWHERE]] = position
        if len(twice):
            alive = twice[_matches(_merged_keys(task, item), keys.take(pa.array(twice)))]
            where[alive] = position
    return where


def live_keys(task: WriteTask, item: FileSlice, keys: pa.Array) -> Positions:
    """Positions of the keys that a slice has rows for, once its log files are merged."""
    return _matches(_merged_keys(task, item), keys)


def keys_not_in_base(task: WriteTask, item: FileSlice, base: str) -> pa.Array:
    """The keys that a slice has rows for and a base file has not."""
    keys = _merged_keys(task, item).combine_chunks()
    return keys.take(pa.array(np.setdiff1d(np.arange(len(keys)), _keys_in_file(task, base, keys))))


def file_shape(storage: Storage, path: str) -> FileShape:
    """Look into the footer of a base file."""
    with storage.open_input(path) as source, found_in(path):
        metadata = _open(source, path).metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        size = sum(
            group.column(i).total_compressed_size
            for group in groups
            for i in range(group.num_columns)
        )
        return FileShape(metadata.num_rows, size)


def _keys_in_slice(task: WriteTask, item: FileSlice, wanted: pa.Array) -> Positions:
    """Positions in `wanted` of the keys that a slice holds."""
    if item.base is None:
        return live_keys(task, item, wanted)
    found = _keys_in_file(task, item.path(item.base), wanted)
    earlier = _logs_for_another_base(task, item)
    if not earlier:
        return found
    alone = replace(item, base=None, logs=earlier)
    return np.union1d(found, live_keys(task, alone, wanted))


def _logs_for_another_base(task: WriteTask, item: FileSlice) -> tuple[LogFile, ...]:
    """The log files of writers that began before the slice's base file was there.

    They updated what they found in the base file before it. A compaction leaves out what was
    deleted; of a key that was deleted and written again, only such a log file knows.
    """
    if item.base is None or not item.logs:
        return ()
    there = task.snapshot.timeline.by_time.get(item.base.instant)
    known = there.completed_at if there is not None else None
    completed_at = known or task.snapshot.archived_times.get(item.base.instant, "")
    return tuple(log for log in item.logs if log.instant < completed_at)


def _merged_keys(task: WriteTask, item: FileSlice) -> pa.ChunkedArray:
    schema = task.snapshot.schema(task.snapshot.view())
    plan = plan_scan(task.config, schema, [item], columns=(RECORD_KEY,))
    columns = [batch.column(0) for batch in read_slices(task.storage, plan)]
    return pa.chunked_array(columns, pa.string())


def _keys_in_file(task: WriteTask, path: str, wanted: pa.Array) -> Positions:
    with task.storage.open_input(path) as source, found_in(path):
        file = _open(source, path)
        footer = parse_footer(file.schema_arrow.metadata or file.metadata.metadata)
        asks = footer.may_contain if task.uses_blooms else footer.in_range
        possible = np.flatnonzero(asks(wanted))
        if not len(possible):
            return possible
        try:
            stored = file.read(columns=[RECORD_KEY], use_threads=False).column(0)
        except (pa.ArrowException, OSError) as error:
            raise CorruptError("a base file cannot be read", cause=str(error)) from error
        asked = wanted if len(possible) == len(wanted) else wanted.take(pa.array(possible))
        return possible[_matches(stored, asked)]


def _matches(stored: pa.ChunkedArray, wanted: pa.Array) -> Positions:
    found = pc.index_in(stored, value_set=wanted).drop_null()
    return np.unique(np.asarray(found.combine_chunks(), dtype=np.int64))


def _open(source: pa.NativeFile, path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(source, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError("a base file cannot be read", file=path, cause=str(error)) from error


# ------------------------------------------------------------------------------------------------
# Where rows of new keys go: small files first, then new ones.


def assign_to_small_files(rooms: Iterable[tuple[int, int]], rows: int) -> list[tuple[int, int]]:
    """How many of `rows` each small file takes, given what each has room for; no more are asked.

    >>> fill_small_files([(7, 3), (8, 5), (9, 5)], 4)
    [(7, 3), (8, 1)]
    >>> fill_small_files([(7, 3)], 10), fill_small_files([(7, 0), (8, 2)], 2)
    ([(7, 3)], [(8, 2)])
    """
    taken: list[tuple[int, int]] = []
    for position, room in rooms:
        share = max(0, min(room, rows))
        if share:
            taken.append((position, share))
            rows -= share
        if not rows:
            break
    return taken


def estimate_capacity(
    size: int, data_bytes: int, rows: int, *, max_size: int, estimate: int
) -> int:
    """How many more rows fit into a base file, judged by the rows it has.

    The footer counts for the file's size and not for that of its rows: a filter for sixty thousand
    keys would make a handful of rows look huge.
    """
    width = data_bytes / rows if rows else estimate
    return max(0, int((max_size - size) / max(width, 1.0)))


# ------------------------------------------------------------------------------------------------
# One partition as a write finds it: its file groups, and what may be done to them.


_META_FOLDER = ".hoodie"
_KEYS_SHARE = 10


@dataclass(frozen=True)
class PartitionState:
    """The slices that a snapshot of the table shows in one partition, by file id."""

    task: WriteTask
    path: str
    slices: tuple[FileSlice, ...]
    is_new: bool

    @classmethod
    def load(cls, task: WriteTask, path: str) -> PartitionState:
        """List the partition."""
        if path.split("/")[0] == _META_FOLDER:
            raise InvalidError("the table's own folder cannot be a partition", partition=path)
        listed = task.storage.list_files(path)
        is_new = not any(status.name.startswith(PARTITION_METADATA) for status in listed)
        parsed = [parse_data_file(status.name, status.size) for status in listed]
        files = [file for file in parsed if file is not None]
        found = task.snapshot.without_unlisted({path: [] if is_new else files})
        groups = task.snapshot.groups(task.snapshot.view(), found)
        check_index(task.settings, (group.file_id for group in groups))
        return cls(task, path, tuple(group.latest_merged_slice() for group in groups), is_new)

    def ensure_metadata(self) -> None:
        """Make the folder a partition of the table, before the first file is in it."""
        if not self.is_new:
            return
        depth = self.path.count("/") + 1 if self.path else 0
        value = PartitionMetadata(commit_time=self.task.instant, depth=depth)
        try:
            self.task.storage.create(
                join_path(self.path, PARTITION_METADATA), format_partition_metadata(value)
            )
        except ConflictError:
            # Another writer has just entered it too: both mean the same.
            return

    @cached_property
    def read_bytes(self) -> int:
        """How many bytes of base files a task reads for its rows, however few they are.

        Keys are a small part of them; where changes are written beside them no more is read. Rows
        that meet no older ones fill one small file at least.
        """
        task = self.task
        if task.operation.replaces or (task.buckets and task.merge_on_read):
            return 0
        sizes = [item.base.size for item in self.slices if item.base is not None]
        if task.operation.merges or task.buckets:
            return sum(sizes) // (_KEYS_SHARE if task.merge_on_read else 1)
        return min((size for size in sizes if size < task.settings.small_file_limit), default=0)

    @cached_property
    def by_bucket(self) -> Mapping[int, int]:
        """The position of the slice of each bucket."""
        found: dict[int, int] = {}
        for position, item in enumerate(self.slices):
            bucket = bucket_of_group(item.file_id)
            if bucket is None or bucket in found:
                raise InvalidError(
                    "the file groups of this partition do not follow the bucket index: was it "
                    "written with another index type?",
                    partition=self.path,
                    file_id=item.file_id,
                )
            found[bucket] = position
        return found

    def replaced_buckets(self, bucket: int) -> int:
        """How many file groups of a bucket were taken out of the table here."""
        replaced = self.task.snapshot.replaced(self.task.snapshot.view())
        return sum(p == self.path and bucket_of_group(id_) == bucket for p, id_ in replaced)

    def small_files(self) -> Iterator[tuple[int, int]]:
        """Slices that new rows may join, smallest first: (position, room for so many rows).

        Where log files are merged with a base file a new version of that base would lose them, and
        a plan that waits for a group must find it as it was.
        """
        settings = self.task.settings
        found = []
        for position, item in enumerate(self.slices):
            key = (self.path, item.file_id)
            if item.base is None or item.logs or item.base.size >= settings.small_file_limit:
                continue
            if key in self.task.clustering or key in self.task.compacting:
                continue
            found.append((item.base.size, position))
        for size, position in sorted(found):
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

    def check_not_clustering(self, item: FileSlice) -> None:
        """Refuse to change rows that a pending clustering is about to move."""
        plan = self.task.clustering.get((self.path, item.file_id))
        if plan is not None:
            raise ConflictError(
                "these rows are being clustered: write again when the clustering is done",
                partition=self.path,
                file_id=item.file_id,
                clustering=plan,
            )
