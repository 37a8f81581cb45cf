"""Index look-ups in one partition: which file group holds which key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewright.core.files import LogFile
from lakewright.core.meta_columns import RECORD_KEY
from lakewright.core.slices import FileSlice
from lakewright.errors import CorruptError, found_in
from lakewright.format.footers import parse_footer
from lakewright.read.plan import plan_read
from lakewright.read.worker import read_slices
from lakewright.storage.base import Storage
from lakewright.write.task import WriteTask

Positions = npt.NDArray[np.int64]

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class FileShape:
    """How many rows a base file has, and how many bytes they take without footer."""

    rows: int
    data_bytes: int


def locate(task: WriteTask, slices: Sequence[FileSlice], keys: pa.Array) -> Positions:
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


def living(task: WriteTask, item: FileSlice, keys: pa.Array) -> Positions:
    """Positions of the keys that a slice has rows for, once its log files are merged."""
    return _matches(_merged_keys(task, item), keys)


def missing_keys(task: WriteTask, item: FileSlice, base: str) -> pa.Array:
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
        return living(task, item, wanted)
    found = _keys_in_file(task, item.path(item.base), wanted)
    earlier = _logs_for_another_base(task, item)
    if not earlier:
        return found
    alone = replace(item, base=None, logs=earlier)
    return np.union1d(found, living(task, alone, wanted))


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
    plan = plan_read(task.config, schema, [item], columns=(RECORD_KEY,))
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
