"""A table service of one's own: it rewrites base files that are not compressed with zstd."""

from dataclasses import replace

import pyarrow.parquet as pq

from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import FileSlice
from lakewright.model.instant import Action
from lakewright.model.plans import ClusteringGroup, ClusteringPlan, ClusteringSlice, Skip
from lakewright.services.base import ExecutionContext, PlanningContext, TableService
from lakewright.services.clustering.executor import cluster
from lakewright.services.planning import file_groups_in_pending_plans, latest_slices
from lakewright.services.registry import register
from lakewright.storage.base import Storage

CODEC = "hoodie.parquet.compression.codec"


class Recompress(TableService[ClusteringPlan, CommitMetadata]):
    """Rewrites base files that are not compressed with zstd."""

    name = "recompress"
    action = Action.CLUSTERING  # the kind of its plans: real Hudi can execute them, too

    def plan(self, context: PlanningContext) -> ClusteringPlan | Skip:
        snapshot = context.snapshot
        planned = file_groups_in_pending_plans(snapshot)  # by other services
        slices = latest_slices(context, snapshot.files())
        free = [item for item in slices if (item.partition, item.file_id) not in planned]
        stale = [item for item in free if is_stale(snapshot.storage, item)]
        if not stale:
            return Skip("all base files are in zstd")
        # It names no missing partitions: those would be taken for the ones of a clustering.
        return ClusteringPlan(groups=tuple(group_of(snapshot.storage, item) for item in stale))

    def execute(self, context: ExecutionContext, plan: ClusteringPlan) -> CommitMetadata:
        return cluster(replace(context, options={**context.options, CODEC: "zstd"}), plan)


def is_stale(storage: Storage, item: FileSlice) -> bool:
    if item.base is None:
        return False
    with storage.open_input(item.path(item.base)) as source:
        footer = pq.ParquetFile(source).metadata
    parts = (footer.row_group(number) for number in range(footer.num_row_groups))
    return any(part.column(0).compression != "ZSTD" for part in parts)


def group_of(storage: Storage, item: FileSlice) -> ClusteringGroup:
    base = storage.url(item.path(item.base)) if item.base else ""
    logs = tuple(storage.url(item.path(log)) for log in item.logs)
    planned = ClusteringSlice(
        partition=item.partition, file_id=item.file_id, base_path=base, log_paths=logs
    )
    return ClusteringGroup(slices=(planned,))


register(Recompress())
