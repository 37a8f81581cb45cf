"""Rows that meet no older ones: into small files while there is room, then into new ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.core.base_merge import Seen
from lakewright.core.keys import bucket_ids
from lakewright.core.merge import merge_logs
from lakewright.core.meta_columns import RECORD_KEY
from lakewright.core.slices import FileSlice
from lakewright.errors import InvalidError
from lakewright.write.groups import GroupWriter
from lakewright.write.incoming import changes_of, without_deleted
from lakewright.write.locate import NOWHERE, living, locate
from lakewright.write.partition import Partition
from lakewright.write.route import fill_small_files


def insert_rows(groups: GroupWriter, partition: Partition, rows: pa.Table) -> None:
    """Write the rows of one partition without looking for older ones of their keys."""
    task = groups.task
    rows = without_deleted(rows, task)
    if task.settings.combine_before_insert:
        outcome = merge_logs(changes_of(rows, task), task.stored_schema, task.rule)
        rows = outcome.rows.take(pa.array(outcome.row[~outcome.deleted]))
    if not task.operation.replaces and task.settings.duplicate_policy != "none":
        rows = _without_known(groups, partition, rows)
    if not len(rows):
        return
    if task.buckets:
        _insert_buckets(groups, partition, rows)
        return
    start = 0
    small = () if task.operation.replaces else partition.small()
    for position, share in fill_small_files(small, len(rows)):
        _extend(groups, partition, partition.slices[position], rows.slice(start, share))
        start += share
    if start < len(rows):
        groups.create(partition, rows.slice(start))


def _insert_buckets(groups: GroupWriter, partition: Partition, rows: pa.Table) -> None:
    task = groups.task
    keys = rows.column(RECORD_KEY).combine_chunks()
    ids = bucket_ids(keys, task.keys, task.settings.bucket_hash_fields, task.settings.buckets)
    for bucket in np.unique(ids).tolist():
        part = rows.filter(pa.array(ids == bucket))
        position = None if task.operation.replaces else partition.by_bucket.get(bucket)
        if position is None:
            file_id = groups.bucket_file_id(partition, bucket)
            if task.non_blocking and not task.operation.replaces:
                groups.append(partition, file_id, part, None, inserts=len(part))
            else:
                groups.create(partition, part, file_id)
            continue
        item = partition.slices[position]
        partition.check_free(item)
        if task.merge_on_read:
            groups.append(partition, item.file_id, part, None, inserts=len(part), item=item)
        else:
            _extend(groups, partition, item, part)


def _extend(groups: GroupWriter, partition: Partition, item: FileSlice, rows: pa.Table) -> None:
    """The next base file of a group: its rows, and these."""
    partition.check_free(item)

    def extended(old: Iterator[pa.Table], seen: Seen | None) -> Iterator[pa.Table]:
        if seen is not None:
            seen(None, rows)
        return chain(old, [rows])

    groups.rewrite(partition.path, item, extended, inserts=len(rows))


def _without_known(groups: GroupWriter, partition: Partition, rows: pa.Table) -> pa.Table:
    task = groups.task
    keys = rows.column(RECORD_KEY).combine_chunks()
    distinct = keys.unique()
    where = locate(task, partition.slices, distinct)
    for position in np.unique(where[where != NOWHERE]).tolist():
        item = partition.slices[position]
        if item.logs:
            # A key that log files have deleted is not there any more.
            asked = np.flatnonzero(where == position)
            alive = living(task, item, distinct.take(pa.array(asked)))
            where[np.delete(asked, alive)] = NOWHERE
    known = distinct.filter(pa.array(where != NOWHERE))
    if not len(known):
        return rows
    if task.settings.duplicate_policy == "fail":
        raise InvalidError(
            "rows to insert have keys that are in the table already",
            partition=partition.path,
            keys=known.slice(0, 5).to_pylist(),
            count=len(known),
        )
    return rows.filter(pc.invert(pc.is_in(keys, value_set=known)))
