"""Clustering as a table service."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

import pyarrow as pa

from lakewright.clock import zone_of
from lakewright.format.avro.schema import arrow_schema
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.instant import Action
from lakewright.model.plans import ClusteringPlan, Skip
from lakewright.model.schema import META_FIELDS
from lakewright.services.base import ExecutionContext, PlanningContext, TableService
from lakewright.services.clustering.executor import cluster, has_buckets
from lakewright.services.clustering.options import (
    CLUSTERING_KEYS,
    ClusteringSettings,
    clustering_settings,
    commits_to_wait_for,
)
from lakewright.services.clustering.planner import (
    check_clustering_trigger,
    choose_partitions,
    plan_clustering,
)
from lakewright.services.planning import (
    IncrementalWindow,
    find_window,
    latest_slices,
    locked_file_groups,
)
from lakewright.storage.base import Storage
from lakewright.table.snapshot import FilesByPartition, Snapshot
from lakewright.write.options import write_settings

_LOCAL = "file://"
_BUCKETS = "file groups of a bucket index stay as they are: keys are found by them"


class Clustering(TableService[ClusteringPlan, CommitMetadata]):
    """Puts the rows of small files together, in an order if one is asked for."""

    name: ClassVar[str] = "clustering"
    action: ClassVar[Action | None] = Action.CLUSTERING
    keys: ClassVar[frozenset[str]] = CLUSTERING_KEYS

    def check_trigger(self, sight: PlanningContext) -> Skip | None:
        """Why nothing is clustered: too few writes, or a bucket index."""
        config = sight.snapshot.config
        if has_buckets(write_settings(config, sight.options), ()):
            return Skip(_BUCKETS)
        wanted = commits_to_wait_for(clustering_settings(sight.options), sight.options)
        return check_clustering_trigger(sight.snapshot.timeline, wanted)

    def plan(self, sight: PlanningContext) -> ClusteringPlan | Skip:
        """The groups to cluster, of the partitions that may have become due."""
        settings = clustering_settings(sight.options)
        schema = sight.snapshot.avro_schema()
        if schema is None:
            return Skip("nothing was written yet")
        if settings.ordering is not None:
            settings.ordering.check(pa.schema([*META_FIELDS, *arrow_schema(schema)]))
        window = find_window(sight, Action.CLUSTERING, enabled=settings.incremental)
        if window.is_empty and not settings.selected_partitions:
            return Skip("nothing was written or left since the last clustering")
        return _plan(sight, settings, window)

    def execute(self, job: ExecutionContext, plan: ClusteringPlan) -> CommitMetadata:
        """Write the rows of the plan's file groups into new ones, which take their place."""
        return cluster(job, plan)


def _plan(
    sight: PlanningContext, settings: ClusteringSettings, window: IncrementalWindow
) -> ClusteringPlan | Skip:
    snapshot = sight.snapshot
    files, looked_at = _look(snapshot, settings, window)
    chosen, filtered = choose_partitions(settings, looked_at, _hour(sight))
    if files is None:
        files = snapshot.files(chosen)
    wanted = {partition: files[partition] for partition in chosen if partition in files}
    slices = latest_slices(sight, wanted)
    written = write_settings(snapshot.config, sight.options)
    if has_buckets(written, [item.file_id for item in slices]):
        return Skip(_BUCKETS)
    return plan_clustering(
        slices,
        settings,
        window=window,
        held=locked_file_groups(sight),
        filtered=filtered,
        path_of=lambda path: _absolute(snapshot.storage, path),
        default_size=written.max_file_size,
    )


def _look(
    snapshot: Snapshot, settings: ClusteringSettings, window: IncrementalWindow
) -> tuple[FilesByPartition | None, list[str]]:
    """The partitions that planning looks at; with their files, where all have to be listed.

    Named partitions need no listing of the others, unless the plan has to tell what it left.
    """
    if window.partitions is not None:
        return None, list(window.partitions)
    if settings.selected_partitions and not window.is_recorded:
        return None, []
    files = snapshot.files()
    return files, list(files)


def _hour(sight: PlanningContext) -> int:
    zone = zone_of(sight.snapshot.config.timeline_zone)
    return datetime.fromtimestamp(sight.now_ms / 1000, zone).hour


def _absolute(storage: Storage, path: str) -> str:
    """A path as real Hudi writes it in plans: on a local disk `file:/...`."""
    url = storage.url(path)
    return "file:" + url.removeprefix(_LOCAL) if url.startswith(_LOCAL) else url
