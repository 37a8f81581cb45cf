"""How each record of the timeline is kept on disk: field names and shapes, one table per record."""

from __future__ import annotations

from dataclasses import fields

from lakewright.core.commits import CommitMetadata, RuntimeStats, WriteStat
from lakewright.core.plans import (
    CleanFile,
    CleanPlan,
    ClusteringGroup,
    ClusteringPlan,
    ClusteringSlice,
    ClusteringStrategy,
    CompactionOperation,
    CompactionPlan,
    CompactionStrategy,
    IndexPartition,
    IndexPlan,
    InstantRef,
    RequestedReplace,
    RestorePlan,
    RetainedInstant,
    RollbackPlan,
    RollbackRequest,
)
from lakewright.core.service_metadata import (
    CleanedPartition,
    CleanMetadata,
    IndexCommitMetadata,
    RestoreMetadata,
    RollbackMetadata,
    RolledBackPartition,
    SavedPartition,
    SavepointMetadata,
)
from lakewright.format.shapes import (
    MAP,
    PLAIN,
    TEXTS,
    Shape,
    Stored,
    keyed,
    many,
    optional,
    or_else,
    record,
    required,
    stored,
)

_NO = or_else(False)
_EXTRA = stored("extraMetadata", MAP)
_VERSION = stored("version")


def _same_names(kind: type, **shapes: Shape) -> dict[str, Stored]:
    """The fields of `kind`, kept under the camel-case form of their own names."""
    return {
        each.name: stored(_camel_case(each.name), shapes.get(each.name, PLAIN))
        for each in fields(kind)
    }


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_RUNTIME_STATS = record(RuntimeStats, **_same_names(RuntimeStats))
_WRITE_STAT = record(
    WriteStat,
    **_same_names(
        WriteStat,
        log_files=optional(TEXTS),
        cdc_stats=optional(MAP),
        runtime_stats=optional(_RUNTIME_STATS),
    ),
)
_COMMIT_FIELDS = {
    "stats": stored("partitionToWriteStats", keyed(many(_WRITE_STAT))),
    "compacted": stored("compacted", _NO),
    "extra": _EXTRA,
    "version": _VERSION,
    "operation": stored("operationType"),
}
COMMIT = record(CommitMetadata, **_COMMIT_FIELDS)
REPLACE_COMMIT = record(
    CommitMetadata,
    **_COMMIT_FIELDS,
    replaced=stored("partitionToReplaceFileIds", keyed(TEXTS)),
)

COMPACTION_PLAN = record(
    CompactionPlan,
    operations=stored(
        "operations",
        many(
            record(
                CompactionOperation,
                base_instant=stored("baseInstantTime", required("a base instant")),
                logs=stored("deltaFilePaths", TEXTS),
                base_file=stored("dataFilePath"),
                file_id=stored("fileId", required("a file id")),
                partition=stored("partitionPath", or_else("")),
                metrics=stored("metrics", MAP),
                bootstrap_file=stored("bootstrapFilePath"),
                next_base_instant=stored("nextBaseInstantTime"),
            )
        ),
    ),
    extra=_EXTRA,
    version=_VERSION,
    strategy=stored(
        "strategy",
        optional(
            record(
                CompactionStrategy,
                class_name=stored("compactorClassName"),
                params=stored("strategyParams", MAP),
                version=_VERSION,
            )
        ),
    ),
    preserve_metadata=stored("preserveHoodieMetadata", _NO),
    missing_partitions=stored("missingSchedulePartitions", optional(TEXTS)),
)

_CLUSTERING_GROUP = record(
    ClusteringGroup,
    slices=stored(
        "slices",
        many(
            record(
                ClusteringSlice,
                base_path=stored("dataFilePath"),
                log_paths=stored("deltaFilePaths", TEXTS),
                file_id=stored("fileId", required("a file id")),
                partition=stored("partitionPath", or_else("")),
                bootstrap_path=stored("bootstrapFilePath"),
                version=_VERSION,
            )
        ),
    ),
    metrics=stored("metrics", MAP),
    output_groups=stored("numOutputFileGroups"),
    extra=_EXTRA,
    version=_VERSION,
)
_CLUSTERING_PLAN = record(
    ClusteringPlan,
    groups=stored("inputGroups", many(_CLUSTERING_GROUP)),
    strategy=stored(
        "strategy",
        optional(
            record(
                ClusteringStrategy,
                class_name=stored("strategyClassName"),
                params=stored("strategyParams", MAP),
                version=_VERSION,
            )
        ),
    ),
    extra=_EXTRA,
    version=_VERSION,
    preserve_metadata=stored("preserveHoodieMetadata", _NO),
    missing_partitions=stored("missingSchedulePartitions", optional(TEXTS)),
)
REQUESTED_REPLACE = record(
    RequestedReplace,
    operation=stored("operationType"),
    plan=stored("clusteringPlan", optional(_CLUSTERING_PLAN)),
    extra=_EXTRA,
    version=_VERSION,
)

_CLEAN_FILE = record(
    CleanFile,
    path=stored("filePath", required("the path of a file to clean")),
    is_bootstrap=stored("isBootstrapBaseFile", _NO),
)
CLEAN_PLAN = record(
    CleanPlan,
    earliest_to_retain=stored(
        "earliestInstantToRetain",
        optional(
            record(
                RetainedInstant,
                requested_at=stored("timestamp"),
                action=stored("action"),
                state=stored("state"),
            )
        ),
    ),
    last_completed=stored("lastCompletedCommitTimestamp"),
    policy=stored("policy"),
    bare_files=stored("filesToBeDeletedPerPartition", keyed(TEXTS)),
    version=_VERSION,
    files=stored("filePathsToBeDeletedPerPartition", keyed(many(_CLEAN_FILE))),
    deleted_partitions=stored("partitionsToBeDeleted", TEXTS),
    extra=_EXTRA,
)
_CLEANED_PARTITION = record(
    CleanedPartition,
    partition=stored("partitionPath"),
    policy=stored("policy"),
    patterns=stored("deletePathPatterns", TEXTS),
    deleted=stored("successDeleteFiles", TEXTS),
    failed=stored("failedDeleteFiles", TEXTS),
    is_partition_deleted=stored("isPartitionDeleted", _NO),
)
CLEAN = record(
    CleanMetadata,
    started_at=stored("startCleanTime"),
    took_ms=stored("timeTakenInMillis"),
    files_deleted=stored("totalFilesDeleted"),
    earliest_to_retain=stored("earliestCommitToRetain"),
    last_completed=stored("lastCompletedCommitTimestamp"),
    partitions=stored("partitionMetadata", keyed(_CLEANED_PARTITION)),
    version=_VERSION,
    bootstrap_partitions=stored("bootstrapPartitionMetadata", keyed(_CLEANED_PARTITION)),
    extra=_EXTRA,
)

_INSTANT = record(InstantRef, requested_at=stored("commitTime"), action=stored("action"))
# Fields of ours, which only rollbacks of cancellable plans are written with.
CAUSED_BY, REASON = "lakewrightCausedBy", "lakewrightReason"
_CAUSE = {"caused_by": stored(CAUSED_BY), "reason": stored(REASON)}
ROLLBACK_PLAN = record(
    RollbackPlan,
    instant=stored("instantToRollback", required("the instant to roll back", _INSTANT)),
    requests=stored(
        "RollbackRequests",
        many(
            record(
                RollbackRequest,
                partition=stored("partitionPath"),
                file_id=stored("fileId"),
                latest_base_instant=stored("latestBaseInstant"),
                files=stored("filesToBeDeleted", TEXTS),
                log_blocks=stored("logBlocksToBeDeleted", MAP),
            )
        ),
    ),
    version=_VERSION,
    **_CAUSE,
)
ROLLBACK = record(
    RollbackMetadata,
    started_at=stored("startRollbackTime"),
    took_ms=stored("timeTakenInMillis"),
    files_deleted=stored("totalFilesDeleted"),
    commits=stored("commitsRollback", TEXTS),
    partitions=stored(
        "partitionMetadata",
        keyed(
            record(
                RolledBackPartition,
                partition=stored("partitionPath"),
                deleted=stored("successDeleteFiles", TEXTS),
                failed=stored("failedDeleteFiles", TEXTS),
                rollback_logs=stored("rollbackLogFiles", MAP),
                failed_logs=stored("logFilesFromFailedCommit", MAP),
            )
        ),
    ),
    version=_VERSION,
    instants=stored("instantsRollback", many(_INSTANT)),
    **_CAUSE,
)
SAVEPOINT = record(
    SavepointMetadata,
    saved_by=stored("savepointedBy"),
    saved_at=stored("savepointedAt"),
    comments=stored("comments"),
    partitions=stored(
        "partitionMetadata",
        keyed(
            record(
                SavedPartition,
                partition=stored("partitionPath"),
                files=stored("savepointDataFile", TEXTS),
            )
        ),
    ),
    version=_VERSION,
)
RESTORE_PLAN = record(
    RestorePlan,
    instants=stored("instantsToRollback", many(_INSTANT)),
    version=_VERSION,
    savepoint=stored("savepointToRestoreTimestamp"),
)
RESTORE = record(
    RestoreMetadata,
    started_at=stored("startRestoreTime"),
    took_ms=stored("timeTakenInMillis"),
    commits=stored("instantsToRollback", TEXTS),
    rollbacks=stored("hoodieRestoreMetadata", keyed(many(ROLLBACK))),
    version=_VERSION,
    instants=stored("restoreInstantInfo", many(_INSTANT)),
)

_INDEX_PARTITIONS = stored(
    "indexPartitionInfos",
    many(
        record(
            IndexPartition,
            version=_VERSION,
            path=stored("metadataPartitionPath"),
            up_to_instant=stored("indexUptoInstant"),
            extra=_EXTRA,
        )
    ),
)
INDEX_PLAN = record(IndexPlan, version=_VERSION, partitions=_INDEX_PARTITIONS)
INDEX_COMMIT = record(
    IndexCommitMetadata,
    version=_VERSION,
    operation=stored("operationType"),
    partitions=_INDEX_PARTITIONS,
)
