"""Rows that meet older rows of their key: updates, inserts of new keys, deletes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from lakewright.core.base_merge import Seen, merge_with_base
from lakewright.core.keys import bucket_ids
from lakewright.core.merge import LogOutcome, merge_logs
from lakewright.core.slices import FileSlice
from lakewright.format.deletes import DeleteRecords
from lakewright.read.worker import batches_of
from lakewright.write.groups import GroupWriter
from lakewright.write.incoming import changes_of
from lakewright.write.locate import NOWHERE, Positions, locate
from lakewright.write.partition import Partition
from lakewright.write.route import fill_small_files


@dataclass(frozen=True)
class _NextBase:
    """The changes that make the next base file of a group; `inserts` are of new keys."""

    item: FileSlice
    changes: LogOutcome
    inserts: int

    @property
    def size(self) -> int:
        return self.item.base.size if self.item.base is not None else 0


def merge_rows(groups: GroupWriter, partition: Partition, rows: pa.Table) -> None:
    """Write the rows of one partition: of each key the version that wins, where the key lives."""
    task = groups.task
    outcome = merge_logs(changes_of(rows, task), task.stored_schema, task.rule)
    if task.buckets:
        _merge_buckets(groups, partition, outcome)
        return
    where = locate(task, partition.slices, outcome.keys)
    new = np.flatnonzero((where == NOWHERE) & ~outcome.deleted)
    inserts = _fill(partition, where, new) if len(new) else {}
    next_bases = []
    for position, chosen in _grouped(where):
        item = partition.slices[position]
        partition.check_free(item)
        part = outcome.only(chosen)
        if task.merge_on_read and position not in inserts:
            _append(groups, partition, item.file_id, part, item)
        else:
            next_bases.append(_NextBase(item, part, inserts.get(position, 0)))
    _write_bases(groups, partition, next_bases)
    rest = new[where[new] == NOWHERE]
    if len(rest):
        groups.create(partition, outcome.rows.take(pa.array(outcome.row[rest])))


def _merge_buckets(groups: GroupWriter, partition: Partition, outcome: LogOutcome) -> None:
    task = groups.task
    ids = bucket_ids(
        outcome.keys, task.keys, task.settings.bucket_hash_fields, task.settings.buckets
    )
    next_bases = []
    for bucket, chosen in _grouped(ids.astype(np.int64)):
        position = partition.by_bucket.get(bucket)
        part = outcome.only(chosen)
        if position is None:
            _begin_bucket(groups, partition, bucket, part)
            continue
        item = partition.slices[position]
        partition.check_free(item)
        if task.merge_on_read:
            _append(groups, partition, item.file_id, part, item)
        else:
            next_bases.append(_NextBase(item, part, _unknown(groups, item, part)))
    _write_bases(groups, partition, next_bases)


def _unknown(groups: GroupWriter, item: FileSlice, outcome: LogOutcome) -> int:
    """How many rows of a bucket have keys that it does not hold yet."""
    nowhere = locate(groups.task, [item], outcome.keys) == NOWHERE
    return int((nowhere & ~outcome.deleted).sum())


def _begin_bucket(
    groups: GroupWriter, partition: Partition, bucket: int, outcome: LogOutcome
) -> None:
    """The first rows of a bucket; there is nothing to delete in it.

    Writers that do not wait for each other may both begin it: two base files of one group would
    hide each other, two log files do not.
    """
    file_id = groups.bucket_file_id(partition, bucket)
    if groups.task.non_blocking:
        _append(groups, partition, file_id, outcome)
        return
    rows = outcome.rows.take(pa.array(outcome.row[~outcome.deleted]))
    if len(rows):
        groups.create(partition, rows, file_id)


def _fill(partition: Partition, where: Positions, new: Positions) -> dict[int, int]:
    """Give new keys to small files, as far as there is room; tells which slices got some."""
    filled = dict(fill_small_files(partition.small(), len(new)))
    start = 0
    for position, share in filled.items():
        where[new[start : start + share]] = position
        start += share
    return filled


def _append(
    groups: GroupWriter,
    partition: Partition,
    file_id: str,
    outcome: LogOutcome,
    item: FileSlice | None = None,
) -> None:
    rows = outcome.rows.take(pa.array(outcome.row[~outcome.deleted]))
    deletes = delete_records(partition.path, outcome) if outcome.deleted.any() else None
    said = outcome.row[outcome.deleted & (outcome.row >= 0)]
    gone = outcome.rows.take(pa.array(said)) if len(said) else None
    groups.append(partition, file_id, rows, deletes, gone=gone, item=item)


def _write_bases(groups: GroupWriter, partition: Partition, bases: Sequence[_NextBase]) -> None:
    """Write the next base files of some groups, or leave them to others if they are much work."""
    size = sum(base.size for base in bases)
    if len(bases) > 1 and size > groups.task.settings.hand_on_bytes:
        for base in bases:
            groups.hand_on_group(partition, base.item, base.changes, inserts=base.inserts)
        return
    for base in bases:
        merge_group(groups, partition.path, base.item, base.changes, inserts=base.inserts)


def merge_group(
    groups: GroupWriter, partition: str, item: FileSlice, outcome: LogOutcome, *, inserts: int
) -> None:
    """Write the next base file of a group: its rows with these changes."""

    def merged(old: Iterator[pa.Table], seen: Seen | None) -> Iterator[pa.Table]:
        return merge_with_base(batches_of(old), outcome, groups.task.rule, seen=seen)

    groups.rewrite(partition, item, merged, inserts=inserts)


def delete_records(path: str, outcome: LogOutcome) -> DeleteRecords:
    """The keys that are deleted, as a log file tells of them."""
    gone = pa.array(np.flatnonzero(outcome.deleted))
    keys = outcome.keys.take(gone)
    unconditional = pa.array(outcome.beats_any_base[outcome.deleted])
    return DeleteRecords(
        keys,
        pa.repeat(pa.scalar(path), len(keys)),
        unconditional,
        tuple(column.take(gone) for column in outcome.ordering),
    )


def _grouped(values: Positions) -> list[tuple[int, Positions]]:
    """The positions of each value that is not NOWHERE, by value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    return [
        (int(ordered[a]), order[a:b])
        for a, b in pairwise(starts)
        if a < b and ordered[a] != NOWHERE
    ]
