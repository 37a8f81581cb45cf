"""How the rows of a write reach the tasks that write them.

Few rows take one pass: they are shuffled once by partition, and the task that gets a partition
looks up their keys and writes all its file groups. That bounds a task by what comes into one
partition. A task that gets more than `max_partition_bytes` of it stops before it merges them, and
the write starts again with a distribution that is bounded by a file group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto

from lakewright.errors import InvalidError
from lakewright.table.markers import delete_markers_for
from lakewright.write.task import Operation, WriteStatus, WriteTask

# A row of Arrow takes about so many times the bytes of compressed files, which Spark estimates by.
_EXPANSION = 4


class Distribution(Enum):
    """Which rows a task gets."""

    AS_THEY_COME = auto()
    """No shuffle: rows of one partition are in several tasks, which all write their own files."""
    BALANCED = auto()
    """Tasks of similar size: a large partition is split between several."""
    BY_PARTITION = auto()
    """A partition is in one task, its rows are contiguous."""
    BY_BUCKET = auto()
    """A bucket of a partition is in one task; partitions are contiguous, and buckets in them."""
    BY_FILE_GROUP = auto()
    """Rows are tagged with the file group that contains their key. A file group is in one task, and
    so is each shard of the keys that are new; their rows are contiguous."""

    @property
    def is_targeted(self) -> bool:
        """Whether rows have a target, which one task owns: see `write/target.py`."""
        return self in (Distribution.BY_BUCKET, Distribution.BY_FILE_GROUP)


def looks_up_keys(task: WriteTask) -> bool:
    """Whether rows are compared with others of the same key: of the batch, or of the table."""
    settings = task.settings
    if task.operation.merges or settings.combine_before_insert:
        return True
    return settings.duplicate_policy != "none" and not task.operation.replaces


def first_distribution(
    task: WriteTask, estimated_bytes: int | None = None, *, rebalances: bool = True
) -> Distribution:
    """Return the distribution to try first.

    `estimated_bytes` is what the engine expects the rows to take in files, None if it cannot tell.
    `rebalances` tells whether the engine can split large partitions between tasks.
    """
    if not (looks_up_keys(task) or task.buckets):
        if task.operation is Operation.BULK_INSERT:
            return Distribution.AS_THEY_COME
        return Distribution.BALANCED if rebalances else Distribution.BY_PARTITION
    limit = task.settings.max_partition_bytes
    is_one_partition = not task.partition_rule.fields
    if is_one_partition and (estimated_bytes or 0) * _EXPANSION > limit:
        return bounded_distribution(task)
    return Distribution.BY_PARTITION


def bounded_distribution(task: WriteTask) -> Distribution:
    """Return the distribution for rows of which one partition is too much for a task."""
    return Distribution.BY_BUCKET if task.buckets else Distribution.BY_FILE_GROUP


def too_large_partitions(statuses: Iterable[WriteStatus]) -> frozenset[str]:
    """Return the partitions that were too much for one task."""
    return frozenset().union(*(status.too_large for status in statuses))


def delete_written_files(task: WriteTask, statuses: Iterable[WriteStatus]) -> None:
    """Delete the data files that tasks have written, and their markers.

    These task attempts have finished, so their markers can be deleted at once. If another process
    rolled this write back (expired heartbeat), there are no markers: files are deleted by their
    stats.
    """
    paths = [path for status in statuses for stat in status.stats for path in stat.paths]
    if paths:
        task.storage.delete_many(paths)
        delete_markers_for(task.storage, task.instant, paths)


def write_distributed(
    task: WriteTask,
    first: Distribution,
    write: Callable[[Distribution], Sequence[WriteStatus]],
) -> list[WriteStatus]:
    """Write with the distribution that was chosen first, and again if it was too much for a task.

    What tasks wrote before is deleted: the engine evaluates all rows again, once.
    """
    statuses = list(write(first))
    if not too_large_partitions(statuses) or any(status.error for status in statuses):
        return statuses
    delete_written_files(task, statuses)
    return [WriteStatus(has_spilled=True), *write(bounded_distribution(task))]


def check_partitions(statuses: Sequence[WriteStatus], tagged: Iterable[str]) -> None:
    """Raise InvalidError if rows came into other partitions than those that were looked up.

    Their keys would have been taken for new ones.
    """
    unknown = frozenset().union(*(status.partitions for status in statuses)).difference(tagged)
    if unknown:
        raise InvalidError(
            "the rows of this write came into other partitions when they were evaluated again: "
            "their DataFrame is not deterministic; write it to files or a checkpoint first",
            partitions=sorted(unknown)[:5],
        )
