"""Clustering as a table service."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

import pyarrow as pa

from lakewright.clock import zone_of
from lakewright.format.avro.schema import arrow_schema
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import FileSlice
from lakewright.model.instant import Action
from lakewright.model.plans import SERVICE_KEY, ClusteringPlan, Skip
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
    SMALLER_GROUPS,
    Preemptions,
    check_clustering_trigger,
    choose_partitions,
    plan_clustering,
    rank_partitions,
    ranking_filters,
)
from lakewright.services.planning import (
    IncrementalWindow,
    WindowListing,
    find_window,
    latest_slices,
    locked_file_groups,
    missing_partitions_are_due,
)
from lakewright.storage.base import Storage
from lakewright.table.options import plan_settings
from lakewright.table.preemption import preempted_partitions
from lakewright.table.snapshot import Snapshot
from lakewright.write.options import write_settings

_LOCAL_PREFIX = "file://"
_BUCKET_INDEX = "file groups of a bucket index are not clustered: the index finds keys by file id"


class Clustering(TableService[ClusteringPlan, CommitMetadata]):
    """Rewrites small files into larger ones, sorted if the options name sort columns."""

    name: ClassVar[str] = "clustering"
    action: ClassVar[Action | None] = Action.CLUSTERING
    keys: ClassVar[frozenset[str]] = CLUSTERING_KEYS

    def check_trigger(self, context: PlanningContext) -> Skip | None:
        """Why no clustering is due: too few writes, or a bucket index."""
        config = context.snapshot.config
        if has_buckets(write_settings(config, context.options), ()):
            return Skip(_BUCKET_INDEX)
        settings = clustering_settings(context.options)
        min_commits = commits_to_wait_for(settings, context.options)
        skip = check_clustering_trigger(context.snapshot.timeline, min_commits)
        if skip is not None and missing_partitions_are_due(
            context, Action.CLUSTERING, settings.missing_seconds, enough_commits=False
        ):
            return None
        return skip

    def plan(self, context: PlanningContext) -> ClusteringPlan | Skip:
        """The file groups to cluster in the partitions of the incremental window, or why none."""
        settings = clustering_settings(context.options)
        if has_buckets(write_settings(context.snapshot.config, context.options), ()):
            return Skip(_BUCKET_INDEX)
        schema = context.snapshot.avro_schema()
        if schema is None:
            return Skip("nothing was written yet")
        if settings.ordering is not None:
            settings.ordering.check(pa.schema([*META_FIELDS, *arrow_schema(schema)]))
        window = find_window(
            context,
            Action.CLUSTERING,
            enabled=settings.incremental,
            ranked_by=ranking_filters(settings),
            widened=lambda last: (
                "the options take more files than those of the last clustering"
                if settings.takes_more(last.extra)
                else None
            ),
        )
        if window.is_empty and not settings.selected_partitions:
            return Skip("nothing was written or left since the last clustering")
        return _plan(context, settings, window)

    def execute(self, context: ExecutionContext, plan: ClusteringPlan) -> CommitMetadata:
        """Replace the plan's file groups by new ones with the same rows."""
        return cluster(context, plan)


def _plan(
    context: PlanningContext, settings: ClusteringSettings, window: IncrementalWindow
) -> ClusteringPlan | Skip:
    snapshot = context.snapshot
    listing = _list_window(snapshot, settings, window)
    chosen, filtered = choose_partitions(
        settings, listing.partitions, _hour(context), ranked_with=window.latest
    )
    slices = latest_slices(context, listing.files_of(snapshot, chosen))
    write = write_settings(snapshot.config, context.options)
    if has_buckets(write, [item.file_id for item in slices]):
        return Skip(_BUCKET_INDEX)
    ranking = rank_partitions(settings, [*listing.partitions, *window.latest])
    return plan_clustering(
        slices,
        settings,
        window=window,
        locked=locked_file_groups(context),
        filtered=filtered,
        path_of=lambda path: _absolute(snapshot.storage, path),
        default_size=write.max_file_size,
        clustered=_clustered_alike(snapshot, settings, slices),
        recorded={
            **settings.candidate_limits,
            **(ranking.to_extra_metadata() if ranking is not None else {}),
        },
        preemptions=_preemptions(context),
    )


def _preemptions(context: PlanningContext) -> Preemptions:
    plans = plan_settings(context.snapshot.config, context.options)
    if not plans.cancellable:
        return Preemptions()
    counts = preempted_partitions(context.snapshot, Action.CLUSTERING)
    return Preemptions(counts, plans.escalate_after)


def _clustered_alike(
    snapshot: Snapshot, settings: ClusteringSettings, slices: Sequence[FileSlice]
) -> frozenset[str]:
    """The instants of the clusterings that wrote some of these files as a new one would.

    Partitions that the options name are clustered whatever was done to them before.
    """
    if settings.selected_partitions:
        return frozenset()
    instants = {item.base.instant for item in slices if item.base and not item.logs}
    return frozenset(
        at
        for at, plan in snapshot.clustering_plans(instants).items()
        if SERVICE_KEY not in plan.extra
        and SMALLER_GROUPS not in plan.missing_reasons.values()
        and settings.writes_like(plan.strategy.params if plan.strategy is not None else {})
    )


def _list_window(
    snapshot: Snapshot, settings: ClusteringSettings, window: IncrementalWindow
) -> WindowListing:
    """The partitions of the window, which are listed if it is the whole table.

    If the options select partitions, the others are listed only if the plan records those that it
    skips.
    """
    if settings.selected_partitions and not window.records_missing:
        return WindowListing(())
    return WindowListing.of(snapshot, window)


def _hour(context: PlanningContext) -> int:
    zone = zone_of(context.snapshot.config.timeline_zone)
    return datetime.fromtimestamp(context.now_ms / 1000, zone).hour


def _absolute(storage: Storage, path: str) -> str:
    """The absolute path as Hudi writes it in plans: `file:/...` on a local disk."""
    url = storage.url(path)
    return "file:" + url.removeprefix(_LOCAL_PREFIX) if url.startswith(_LOCAL_PREFIX) else url
