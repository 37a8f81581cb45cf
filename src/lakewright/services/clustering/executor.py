"""Executing a clustering: the rows of each group into new file groups, nothing else changed."""

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
from lakewright.utils.concurrent import ahead
from lakewright.write.base_file_writer import abort_on_failure
from lakewright.write.file_group_writer import FileGroupWriter, RollingWriter
from lakewright.write.options import write_settings
from lakewright.write.spill import pieces
from lakewright.write.task import Operation
from lakewright.write.write_config import IndexType, WriteSettings

_CHANGE_FILES = ".cdc"


@dataclass(frozen=True, slots=True)
class ClusteringTask:
    """Slices of one partition whose rows are written together."""

    partition: str
    slices: tuple[FileSlice, ...]

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(item.size for item in self.slices)


def cluster(job: ExecutionContext, plan: ClusteringPlan) -> CommitMetadata:
    """Write the rows of all groups of a plan anew; the caller completes the instant.

    Raises:
        ConflictError: the groups are not what they were when they were planned.
    """
    settings = _check(job, plan)
    bundles = _bundles(job.snapshot, plan)
    task = rewrite_task(job, Operation.CLUSTER)
    task = replace(task, settings=replace(task.settings, max_file_size=settings.target_bytes))
    ordering = settings.ordering
    if ordering is not None:
        ordering.check(task.stored_schema)
    do = partial(write_clustering_task, ordering, settings.sort_bytes)
    return run_rewrite(job, task, do, bundles, size=_size, replaced=_replaced(plan))


def write_clustering_task(
    ordering: Ordering | None, sort_bytes: int, bundle: ClusteringTask, groups: FileGroupWriter
) -> None:
    """Write the rows of some slices into new file groups of their partition."""
    task = groups.task

    def read(columns: Sequence[str] | None) -> Rows:
        plan = plan_scan(task.config, task.stored_schema, bundle.slices, columns=columns)
        for batch in read_slices(task.storage, plan):
            yield pa.Table.from_batches([batch])

    rows = read(None) if ordering is None else sorted_rows(read, ordering, sort_bytes)
    with abort_on_failure(RollingWriter(groups, bundle.partition)) as rolling:
        for table in ahead(rows):
            for piece in pieces(table, task.settings.max_file_size):
                rolling.write(piece)
        rolling.close()


def has_buckets(settings: WriteSettings, file_ids: Sequence[str]) -> bool:
    """Whether file groups belong to a bucket index, by the table's word or by their names."""
    return settings.index_type is IndexType.BUCKET or are_bucket_file_ids(file_ids)


def _check(job: ExecutionContext, plan: ClusteringPlan) -> ClusteringSettings:
    """Refuse a plan that cannot be executed; the settings of one that can."""
    strategy = plan.strategy
    if strategy is not None and strategy.class_name:
        execution_class(strategy.class_name)
    keys = _keys(plan)
    if len(set(keys)) < len(keys):
        raise CorruptError("a clustering plan names a file group twice", instant=job.instant)
    told = strategy.params if strategy is not None else {}
    written = write_settings(job.snapshot.config, job.options)
    if has_buckets(written, [file_id for _, file_id in keys]):
        raise UnsupportedError(
            "file groups of a bucket index cannot be clustered: keys would not be found again",
            instant=job.instant,
        )
    # By what rows are sorted the plan alone says; as in Hudi the rest may be said when it is run.
    rest = {key: value for key, value in job.options.items() if key != SORT_COLUMNS}
    return clustering_settings({**rest, **told})


def _bundles(snapshot: Snapshot, plan: ClusteringPlan) -> list[ClusteringTask]:
    """The slices of each group of a plan as they are on storage."""
    files = snapshot.files(plan.partitions)
    known = {group.key: group for group in snapshot.groups(snapshot.view(), files)}
    bundles = []
    for group in plan.groups:
        by_partition: dict[str, list[FileSlice]] = {}
        for planned in group.slices:
            item = _as_planned(planned, known)
            by_partition.setdefault(item.partition, []).append(item)
        bundles += [
            ClusteringTask(partition, tuple(items)) for partition, items in by_partition.items()
        ]
    return bundles


def _as_planned(planned: ClusteringSlice, known: Mapping[GroupKey, FileGroup]) -> FileSlice:
    """The newest slice of a group, if it holds what the plan says and no more.

    Rows that came after the plan would be seen by time travel to before they were written; and
    what the plan does not know, its rivals may not have heard of either.
    """
    group = known.get((planned.partition, planned.file_id))
    newest = group.latest_merged_slice() if group is not None else None
    base = newest.base.name if newest is not None and newest.base is not None else None
    expected = {name for name in planned.logs if not name.endswith(_CHANGE_FILES)}
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


def _replaced(plan: ClusteringPlan) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for partition, file_id in sorted(_keys(plan)):
        found.setdefault(partition, []).append(file_id)
    return {partition: tuple(ids) for partition, ids in found.items()}


def _size(bundle: ClusteringTask) -> int:
    return bundle.size
