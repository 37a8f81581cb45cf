"""Executes a clustering plan: writes the rows of each clustering group to new file groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from lakewright.errors import ConflictError, CorruptError, UnsupportedError
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import FileGroup, FileSlice, GroupKey, are_bucket_file_ids
from lakewright.model.plans import ClusteringPlan, ClusteringSlice
from lakewright.scan.scan_plan import plan_scan
from lakewright.scan.slice_reader import read_slices
from lakewright.services.base import ExecutionContext
from lakewright.services.clustering.layout import Ordering, Rows, sorted_rows
from lakewright.services.clustering.options import (
    SORT_COLUMNS,
    ClusteringSettings,
    clustering_settings,
    execution_class,
)
from lakewright.services.rewrite import rewrite_task, run_rewrite
from lakewright.table.snapshot import Snapshot
from lakewright.utils.arrow_rows import split_by_size
from lakewright.utils.concurrent import ahead
from lakewright.write.base_file_writer import abort_on_failure
from lakewright.write.file_group_writer import FileGroupWriter, RollingWriter
from lakewright.write.options import write_settings
from lakewright.write.task import Operation
from lakewright.write.write_config import IndexType, WriteSettings

_CDC_SUFFIX = ".cdc"


@dataclass(frozen=True, slots=True)
class ClusteringTask:
    """File slices of one partition whose rows one task rewrites together."""

    partition: str
    slices: tuple[FileSlice, ...]

    @property
    def size(self) -> int:
        """The number of bytes to read."""
        return sum(item.size for item in self.slices)


def cluster(context: ExecutionContext, plan: ClusteringPlan) -> CommitMetadata:
    """Rewrite the file groups of a plan; the caller completes the instant.

    Raises:
        ConflictError: a file group has changed since the plan was made.
    """
    settings = _validated_settings(context, plan)
    clustering_tasks = _clustering_tasks(context.snapshot, plan)
    task = rewrite_task(context, Operation.CLUSTER)
    task = replace(task, settings=replace(task.settings, max_file_size=settings.target_bytes))
    ordering = settings.ordering
    if ordering is not None:
        ordering.check(task.stored_schema)
    write = partial(write_clustering_task, ordering, settings.sort_bytes)
    return run_rewrite(context, task, write, clustering_tasks, size=_size, replaced=_replaced)


def write_clustering_task(
    ordering: Ordering | None, sort_bytes: int, bundle: ClusteringTask, groups: FileGroupWriter
) -> None:
    """Write the rows of a task's slices to new file groups of their partition."""
    task = groups.task

    def read(columns: Sequence[str] | None) -> Rows:
        plan = plan_scan(task.config, task.stored_schema, bundle.slices, columns=columns)
        for batch in read_slices(task.storage, plan):
            yield pa.Table.from_batches([batch])

    folder = groups.token.folder
    rows = read(None) if ordering is None else sorted_rows(read, ordering, sort_bytes, folder)
    with abort_on_failure(RollingWriter(groups, bundle.partition)) as rolling:
        for table in ahead(rows):
            for piece in split_by_size(table, task.settings.max_file_size):
                rolling.write(piece)
        rolling.close()


def has_buckets(settings: WriteSettings, file_ids: Sequence[str]) -> bool:
    """Whether a table has a bucket index, judging by its settings or by its file ids."""
    return settings.index_type is IndexType.BUCKET or are_bucket_file_ids(file_ids)


def _validated_settings(context: ExecutionContext, plan: ClusteringPlan) -> ClusteringSettings:
    """The settings to execute a plan with; raises an error if it cannot be executed."""
    strategy = plan.strategy
    if strategy is not None and strategy.class_name:
        execution_class(strategy.class_name)
    keys = _keys(plan)
    if len(set(keys)) < len(keys):
        raise CorruptError("a clustering plan names a file group twice", instant=context.instant)
    params = strategy.params if strategy is not None else {}
    write = write_settings(context.snapshot.config, context.options)
    if has_buckets(write, [file_id for _, file_id in keys]):
        raise UnsupportedError(
            "file groups of a bucket index cannot be clustered: keys would not be found again",
            instant=context.instant,
        )
    # As in Hudi, only the plan decides the sort columns; other settings may come from options.
    options = {key: value for key, value in context.options.items() if key != SORT_COLUMNS}
    return clustering_settings({**options, **params})


def _clustering_tasks(snapshot: Snapshot, plan: ClusteringPlan) -> list[ClusteringTask]:
    """One task for each clustering group and partition, with the slices as they are on storage."""
    files = snapshot.files(plan.partitions)
    file_groups = {group.key: group for group in snapshot.groups(snapshot.view(), files)}
    tasks = []
    for group in plan.groups:
        by_partition: dict[str, list[FileSlice]] = {}
        for planned in group.slices:
            item = _unchanged_slice(planned, file_groups)
            by_partition.setdefault(item.partition, []).append(item)
        tasks += [
            ClusteringTask(partition, tuple(items)) for partition, items in by_partition.items()
        ]
    return tasks


def _unchanged_slice(
    planned: ClusteringSlice, file_groups: Mapping[GroupKey, FileGroup]
) -> FileSlice:
    """The newest slice of a file group, which must have no other files than the plan lists.

    Rows that were written after the plan was made would be visible to time travel to a time before
    they were written; and concurrent writers check for conflicts against the files of the plan.

    Raises:
        ConflictError: the slice has another base file, or log files that the plan does not list.
    """
    group = file_groups.get((planned.partition, planned.file_id))
    newest = group.latest_merged_slice() if group is not None else None
    base = newest.base.name if newest is not None and newest.base is not None else None
    expected = {name for name in planned.logs if not name.endswith(_CDC_SUFFIX)}
    late = {log.name for log in newest.logs} - expected if newest is not None else set()
    if newest is None or base != planned.base_file or late:
        raise ConflictError(
            "a file group has changed since its clustering was planned: roll the clustering back "
            "and plan it again",
            partition=planned.partition,
            file_id=planned.file_id,
            planned=planned.base_file,
            found=base,
            not_planned=sorted(late)[:3],
        )
    return newest


def _keys(plan: ClusteringPlan) -> list[GroupKey]:
    return [(planned.partition, planned.file_id) for planned in plan.operations]


def _replaced(task: ClusteringTask) -> dict[str, tuple[str, ...]]:
    """The file ids of a task by partition."""
    return {task.partition: tuple(sorted(item.file_id for item in task.slices))}


def _size(task: ClusteringTask) -> int:
    return task.size
