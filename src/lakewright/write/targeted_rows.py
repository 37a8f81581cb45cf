"""Writes rows that have targets: file groups, buckets, or shards of new keys.

One task owns a target. So its memory is bounded by what changes in one file group, and nothing that
it writes depends on rows of other tasks. The rows of a target are contiguous, and so are the
targets of a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import ConflictError, InvalidError
from lakewright.model.file_group import FileSlice
from lakewright.model.partition_paths import partition_paths
from lakewright.model.record_keys import bucket_ids, record_keys
from lakewright.model.schema import PARTITION_PATH, RECORD_KEY
from lakewright.utils.arrow_rows import as_array
from lakewright.write.base_file_writer import abort_on_failure
from lakewright.write.file_group_writer import FileGroupWriter, RollingWriter
from lakewright.write.gathered_rows import GatheredRows
from lakewright.write.incoming_rows import (
    TARGET_COLUMN,
    row_schema,
    rows_in,
)
from lakewright.write.index import NOWHERE, PartitionState, live_keys, lookup_keys
from lakewright.write.operations import (
    append_changes,
    deciding_columns,
    insert_rows,
    merge_group,
    merge_rows,
    rows_to_insert,
    winning_changes,
)
from lakewright.write.task import WriteTask

# The first letter of a target is its kind. Targets are sorted: new keys come last.
BUCKET, FILE_GROUP, NEW_KEYS = "b", "g", "n"
# Buckets with few rows are written together: the work on their files may have to be distributed.
_BUCKETS_BYTES = 64 << 20

Run: TypeAlias = tuple[str, str, GatheredRows]


def bucket_targets(keys: pa.Array, task: WriteTask) -> pa.Array:
    """Return the targets of rows with a bucket index, from their record keys."""
    settings = task.settings
    buckets = bucket_ids(keys, task.key_rule, settings.bucket_hash_fields, settings.buckets)
    numbers = pc.utf8_lpad(pa.array(buckets, pa.int64()).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise(pa.scalar(BUCKET), numbers, "")


def sorted_by_target(task: WriteTask, rows: pa.Table) -> pa.Table:
    """Return incoming rows with their partitions and targets, sorted by them."""
    rule = task.key_rule
    converted = rows_in(rows, row_schema(rows, task))
    paths = partition_paths(converted, task.partition_rule, strict=task.adds_rows).cast(pa.string())
    keys = record_keys(converted, rule, strict=task.adds_rows)
    targets = bucket_targets(keys, task) if task.buckets else _looked_up_targets(task, paths, keys)
    named = {PARTITION_PATH: paths, TARGET_COLUMN: targets}
    for name, column in named.items():
        rows = rows.append_column(name, column)
    return rows.take(pc.sort_indices(rows, [(name, "ascending") for name in named]))


def _looked_up_targets(task: WriteTask, paths: pa.Array, keys: pa.Array) -> pa.Array:
    targets = np.full(len(keys), NEW_KEYS, object)
    if task.operation.replaces:
        return pa.array(targets, pa.string())
    for path in pc.unique(paths).to_pylist():
        at = np.flatnonzero(np.asarray(pc.equal(paths, path)))
        encoded = keys.take(pa.array(at)).dictionary_encode()
        slices = PartitionState.load(task, path).slices
        file_ids = _file_ids(task, slices, encoded.dictionary)
        targets[at] = file_ids[np.asarray(encoded.indices)]
    return pa.array(targets, pa.string())


def _file_ids(task: WriteTask, slices: Sequence[FileSlice], keys: pa.Array) -> npt.NDArray[Any]:
    """Return the target of each of these keys, all different, in one partition."""
    targets = np.full(len(keys), NEW_KEYS, object)
    locations = lookup_keys(task, slices, keys)
    for position in np.unique(locations[locations != NOWHERE]).tolist():
        item, found = slices[position], np.flatnonzero(locations == position)
        if item.logs and not task.operation.merges:
            # A key that log files deleted is not in the table any more.
            found = found[live_keys(task, item, keys.take(pa.array(found)))]
        targets[found] = FILE_GROUP + item.file_id
    return targets


def write_targeted(
    groups: FileGroupWriter, tables: Iterable[pa.Table]
) -> Mapping[str, tuple[str, ...]]:
    """Write the rows of one task; return the file groups that it replaces, by partition."""
    task = groups.task
    replaced: dict[str, tuple[str, ...]] = {}
    for path, runs in groupby(_runs(groups, tables), key=itemgetter(0)):
        partition = PartitionState.load(task, path)
        groups.partitions.append(path)
        if task.operation.replaces:
            replaced[path] = partition.file_ids_to_replace()
        if task.buckets:
            _write_buckets(groups, partition, runs)
        else:
            _write_file_groups(groups, partition, runs)
    return replaced


def _write_file_groups(
    groups: FileGroupWriter, partition: PartitionState, runs: Iterable[Run]
) -> None:
    slices = {item.file_id: item for item in partition.slices}
    with abort_on_failure(RollingWriter(groups, partition.path)) as new_groups:
        for _, target, rows in runs:
            with closing(rows):
                if target.startswith(NEW_KEYS):
                    _write_new_keys(groups, partition, rows, new_groups)
                    continue
                item = slices.get(target[1:])
                if item is None:
                    raise ConflictError(
                        "a file group was replaced while its rows were being looked up: write "
                        "again",
                        partition=partition.path,
                        file_id=target[1:],
                    )
                _write_existing_keys(groups, partition, item, rows)
        new_groups.close()


def _write_existing_keys(
    groups: FileGroupWriter, partition: PartitionState, item: FileSlice, rows: GatheredRows
) -> None:
    """Merge rows into the file group that has their keys; an insert refuses or drops them."""
    task = groups.task
    if not task.operation.merges:
        if task.settings.duplicate_policy == "fail" and len(rows):
            raise InvalidError(
                "rows to insert have keys that are in the table already",
                partition=partition.path,
                keys=rows.columns().column(RECORD_KEY).slice(0, 5).to_pylist(),
                count=len(rows),
            )
        return
    partition.check_not_clustering(item)
    changes = winning_changes(rows, task)
    if task.merge_on_read:
        append_changes(groups, partition, item.file_id, changes, item)
    else:
        merge_group(groups, partition.path, item, changes, inserts=0)


def _write_new_keys(
    groups: FileGroupWriter,
    partition: PartitionState,
    rows: GatheredRows,
    new_groups: RollingWriter,
) -> None:
    task = groups.task
    if task.operation.merges:
        pieces: Iterable[pa.Table] = [winning_changes(rows, task).winning_rows()]
    else:
        chosen = rows_to_insert(rows, task)
        pieces = chain.from_iterable(rows.groups([chosen]))
    for piece in pieces:
        if len(piece):
            partition.ensure_metadata()
            new_groups.write(piece.select(task.stored_schema.names))


def _write_buckets(groups: FileGroupWriter, partition: PartitionState, runs: Iterable[Run]) -> None:
    """Write whole buckets, several at a time as long as their rows are few."""
    write = merge_rows if groups.task.operation.merges else insert_rows
    waiting = _gathered(groups)
    for _, _, rows in runs:
        with closing(rows):
            for table in rows.tables():
                waiting.add(table)
        if waiting.nbytes > _BUCKETS_BYTES:
            with closing(waiting):
                write(groups, partition, waiting)
            waiting = _gathered(groups)
    with closing(waiting):
        if len(waiting):
            write(groups, partition, waiting)


def _gathered(groups: FileGroupWriter) -> GatheredRows:
    return GatheredRows(deciding_columns(groups.task), groups.token.folder)


def _runs(groups: FileGroupWriter, tables: Iterable[pa.Table]) -> Iterator[Run]:
    """Return the rows of each target; those of a target must be contiguous."""
    finished: set[tuple[str, str]] = set()
    current: tuple[str, str] | None = None
    rows = _gathered(groups)
    try:
        for table in tables:
            for start, end in _bounds(table):
                part = table.slice(start, end - start)
                target = (
                    part.column(PARTITION_PATH)[0].as_py(),
                    part.column(TARGET_COLUMN)[0].as_py(),
                )
                if target != current:
                    if current is not None:
                        yield (*current, rows)
                    if target in finished:
                        raise InvalidError(
                            "rows of one target came apart", partition=target[0], target=target[1]
                        )
                    finished.add(target)
                    current, rows = target, _gathered(groups)
                rows.add(part.drop_columns([TARGET_COLUMN]))
        if current is not None:
            yield (*current, rows)
    except BaseException:
        rows.close()
        raise


def _bounds(table: pa.Table) -> Iterator[tuple[int, int]]:
    """Return where runs of rows with the same partition and target begin and end."""
    codes = [
        np.asarray(as_array(table.column(name)).dictionary_encode().indices)
        for name in (PARTITION_PATH, TARGET_COLUMN)
    ]
    changes = np.flatnonzero((np.diff(codes[0]) != 0) | (np.diff(codes[1]) != 0)) + 1
    return pairwise([0, *changes.tolist(), len(table)])
