"""The content of timeline files: commits, plans and results of table services, as Avro bytes.

Every `parse_` function raises CorruptError for bytes that break the format and UnsupportedError for
the JSON of tables before version 8. Every `format_` function raises InvalidError for a value that
does not fit its field.

A `FieldCodec` maps decoded Avro to a value and back, so that one declaration for each record serves
both directions. The format allows null nearly everywhere. The codecs read a null collection as an
empty one, and write an empty one: Hudi's readers do not check collections for null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, Generic, TypeVar

from lakewright.errors import CorruptError, InvalidError
from lakewright.format.avro.container import (
    container_of,
    decode_record,
    encode_fields,
    encode_record,
    record_name,
)
from lakewright.format.avro.schema import (
    RecordSchema,
    field_names,
    load_schema,
    with_nullable_text,
    with_only,
)
from lakewright.model.commit_metadata import (
    CleanedPartition,
    CleanMetadata,
    CommitMetadata,
    CommitNotes,
    IndexCommitMetadata,
    RestoreMetadata,
    RollbackMetadata,
    RolledBackPartition,
    RuntimeStats,
    SavedPartition,
    SavepointMetadata,
    WriteStat,
)
from lakewright.model.plans import (
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
from lakewright.utils.concurrent import gc_paused


@dataclass(frozen=True, slots=True)
class FieldCodec:
    """A pair of inverse functions: from decoded Avro to a value, and back."""

    parse: Callable[[Any], Any]
    format: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class RecordField:
    """How a field of a value is stored: its name on disk and its codec."""

    name: str
    codec: FieldCodec


def _identity(value: Any) -> Any:
    return value


PLAIN = FieldCodec(_identity, _identity)
TEXTS = FieldCodec(lambda stored: tuple(stored or ()), list)
MAP = FieldCodec(lambda stored: dict(stored or {}), dict)


def stored(name: str, shape: FieldCodec = PLAIN) -> RecordField:
    """A field stored under `name`."""
    return RecordField(name, shape)


def or_else(default: Any) -> FieldCodec:
    """A plain value that is `default` where the file has null."""
    return FieldCodec(lambda stored: default if stored is None else stored, _identity)


def required(name: str, shape: FieldCodec = PLAIN) -> FieldCodec:
    """A value that may be null in the format, but without which the record is useless."""

    def parse(stored: Any) -> Any:
        if stored is None:
            raise CorruptError(f"the metadata lacks {name}")
        return shape.parse(stored)

    return FieldCodec(parse, shape.format)


def optional(shape: FieldCodec) -> FieldCodec:
    """A value that may be None, which is null on disk."""
    return FieldCodec(
        lambda stored: None if stored is None else shape.parse(stored),
        lambda value: None if value is None else shape.format(value),
    )


def list_of(shape: FieldCodec) -> FieldCodec:
    """A tuple of values; null items are ignored."""
    return FieldCodec(
        lambda stored: tuple(shape.parse(item) for item in stored or () if item is not None),
        lambda values: [shape.format(item) for item in values],
    )


def keyed(shape: FieldCodec) -> FieldCodec:
    """A mapping from text to values."""
    return FieldCodec(
        lambda stored: {key: shape.parse(item) for key, item in (stored or {}).items()},
        lambda values: {key: shape.format(item) for key, item in values.items()},
    )


def record(kind: Callable[..., Any], **fields: RecordField) -> FieldCodec:
    """A value of `kind`, whose fields are stored as `fields` declares."""
    table = tuple((name, field.name, field.codec) for name, field in fields.items())
    # Large commits have many thousand records, most of whose fields need no conversion.
    plain = tuple((name, key) for name, key, codec in table if codec is PLAIN)
    coded = tuple((name, key, codec) for name, key, codec in table if codec is not PLAIN)

    def parse(stored: Any) -> Any:
        get = stored.get
        values = {name: get(key) for name, key in plain}
        for name, key, codec in coded:
            values[name] = codec.parse(get(key))
        return kind(**values)

    def format_(value: Any) -> Any:
        return {key: codec.format(getattr(value, name)) for name, key, codec in table}

    return FieldCodec(parse, format_)


# How each record of the timeline is stored: field names and codecs.

_FALSE_IF_NULL = or_else(False)
_EXTRA = stored("extraMetadata", MAP)
_VERSION = stored("version")


def _same_names(kind: type, **codecs: FieldCodec) -> dict[str, RecordField]:
    """Return the fields of `kind`, stored under the camel-case form of their own names."""
    return {
        field.name: stored(_camel_case(field.name), codecs.get(field.name, PLAIN))
        for field in fields(kind)
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
    "stats": stored("partitionToWriteStats", keyed(list_of(_WRITE_STAT))),
    "compacted": stored("compacted", _FALSE_IF_NULL),
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
        list_of(
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
    preserve_metadata=stored("preserveHoodieMetadata", _FALSE_IF_NULL),
    missing_partitions=stored("missingSchedulePartitions", optional(TEXTS)),
)

_CLUSTERING_GROUP = record(
    ClusteringGroup,
    slices=stored(
        "slices",
        list_of(
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
    groups=stored("inputGroups", list_of(_CLUSTERING_GROUP)),
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
    preserve_metadata=stored("preserveHoodieMetadata", _FALSE_IF_NULL),
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
    is_bootstrap=stored("isBootstrapBaseFile", _FALSE_IF_NULL),
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
    files=stored("filePathsToBeDeletedPerPartition", keyed(list_of(_CLEAN_FILE))),
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
    is_partition_deleted=stored("isPartitionDeleted", _FALSE_IF_NULL),
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
# Fields that Hudi does not have; only rollbacks of cancellable plans are written with them.
CAUSED_BY, REASON = "lakewrightCausedBy", "lakewrightReason"
_CAUSE = {"caused_by": stored(CAUSED_BY), "reason": stored(REASON)}
ROLLBACK_PLAN = record(
    RollbackPlan,
    instant=stored("instantToRollback", required("the instant to roll back", _INSTANT)),
    requests=stored(
        "RollbackRequests",
        list_of(
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
    instants=stored("instantsRollback", list_of(_INSTANT)),
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
    instants=stored("instantsToRollback", list_of(_INSTANT)),
    version=_VERSION,
    savepoint=stored("savepointToRestoreTimestamp"),
)
RESTORE = record(
    RestoreMetadata,
    started_at=stored("startRestoreTime"),
    took_ms=stored("timeTakenInMillis"),
    commits=stored("instantsToRollback", TEXTS),
    rollbacks=stored("hoodieRestoreMetadata", keyed(list_of(ROLLBACK))),
    version=_VERSION,
    instants=stored("restoreInstantInfo", list_of(_INSTANT)),
)

_INDEX_PARTITIONS = stored(
    "indexPartitionInfos",
    list_of(
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


# Records with their Avro schemas, and the functions that parse and format timeline files.

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _RecordCodec(Generic[Value]):
    """A record of the format: its Avro schema, and the codec of its value."""

    schema: RecordSchema
    codec: FieldCodec

    def parse(self, data: bytes) -> Value:
        value: Value = self.codec.parse(decode_record(data, self.schema))
        return value

    def format(self, value: Value) -> bytes:
        return encode_record(self.codec.format(value), self.schema)


def _with_cause(schema: RecordSchema, record: str) -> RecordSchema:
    """Return `schema` with the fields for the cause and the reason of a rollback."""
    for name in (CAUSED_BY, REASON):
        schema = with_nullable_text(schema, record, name)
    return schema


def _has_cause(rollback: RollbackPlan | RollbackMetadata) -> bool:
    return rollback.caused_by is not None or rollback.reason is not None


_COMMIT: _RecordCodec[CommitMetadata] = _RecordCodec(load_schema("HoodieCommitMetadata"), COMMIT)
_REPLACE_COMMIT: _RecordCodec[CommitMetadata] = _RecordCodec(
    load_schema("HoodieReplaceCommitMetadata"), REPLACE_COMMIT
)
_COMPACTION_PLAN: _RecordCodec[CompactionPlan] = _RecordCodec(
    load_schema("HoodieCompactionPlan"), COMPACTION_PLAN
)
_REQUESTED_REPLACE: _RecordCodec[RequestedReplace] = _RecordCodec(
    load_schema("HoodieRequestedReplaceMetadata"), REQUESTED_REPLACE
)
_CLEAN_PLAN: _RecordCodec[CleanPlan] = _RecordCodec(load_schema("HoodieCleanerPlan"), CLEAN_PLAN)
_CLEAN: _RecordCodec[CleanMetadata] = _RecordCodec(load_schema("HoodieCleanMetadata"), CLEAN)
_ROLLBACK_PLAN: _RecordCodec[RollbackPlan] = _RecordCodec(
    load_schema("HoodieRollbackPlan"), ROLLBACK_PLAN
)
_ROLLBACK: _RecordCodec[RollbackMetadata] = _RecordCodec(
    load_schema("HoodieRollbackMetadata"), ROLLBACK
)
_SAVEPOINT: _RecordCodec[SavepointMetadata] = _RecordCodec(
    load_schema("HoodieSavepointMetadata"), SAVEPOINT
)
_RESTORE_PLAN: _RecordCodec[RestorePlan] = _RecordCodec(
    load_schema("HoodieRestorePlan"), RESTORE_PLAN
)
_RESTORE: _RecordCodec[RestoreMetadata] = _RecordCodec(
    load_schema("HoodieRestoreMetadata"), RESTORE
)
_INDEX_PLAN: _RecordCodec[IndexPlan] = _RecordCodec(load_schema("HoodieIndexPlan"), INDEX_PLAN)
_INDEX_COMMIT: _RecordCodec[IndexCommitMetadata] = _RecordCodec(
    load_schema("HoodieIndexCommitMetadata"), INDEX_COMMIT
)
_ONLY_EXTRA = with_only(_COMMIT.schema, {_COMMIT.schema.name: (_EXTRA.name,)})
_BY_NAME = {codec.schema.name: codec.schema for codec in (_COMMIT, _REPLACE_COMMIT)}
_NOTES = {
    name: with_only(schema, {name: (_EXTRA.name, "operationType")})
    for name, schema in _BY_NAME.items()
}
_FILE_IDS = {
    name: with_only(
        schema,
        {
            name: ("partitionToWriteStats", "partitionToReplaceFileIds"),
            "HoodieWriteStat": ("fileId",),
        },
    )
    for name, schema in _BY_NAME.items()
}
# Only files that need the added fields are written with them: all others are as Hudi writes them.
_COMPACTION_PLAN_WITH_NEXT_BASE: _RecordCodec[CompactionPlan] = _RecordCodec(
    with_nullable_text(_COMPACTION_PLAN.schema, "HoodieCompactionOperation", "nextBaseInstantTime"),
    COMPACTION_PLAN,
)
_CAUSED_ROLLBACK_PLAN: _RecordCodec[RollbackPlan] = _RecordCodec(
    _with_cause(_ROLLBACK_PLAN.schema, "HoodieRollbackPlan"), ROLLBACK_PLAN
)
_CAUSED_ROLLBACK: _RecordCodec[RollbackMetadata] = _RecordCodec(
    _with_cause(_ROLLBACK.schema, "HoodieRollbackMetadata"), ROLLBACK
)
_CAUSED_RESTORE: _RecordCodec[RestoreMetadata] = _RecordCodec(
    _with_cause(_RESTORE.schema, "HoodieRollbackMetadata"), RESTORE
)


def parse_commit(data: bytes) -> CommitMetadata:
    """Parse the inflight or completed file of a commit, deltacommit or replacecommit.

    An inflight replacecommit holds the record of a plain commit: the file's own schema decides.
    """
    replaces = record_name(data) == _REPLACE_COMMIT.schema.name
    return (_REPLACE_COMMIT if replaces else _COMMIT).parse(data)


def format_commit(value: CommitMetadata) -> bytes:
    """Format the completed file of a commit or deltacommit, or the inflight file of any write."""
    if value.replaced:
        raise InvalidError("only a replacecommit can replace file groups", replaced=value.replaced)
    return _COMMIT.format(value)


def format_replace_commit(value: CommitMetadata) -> bytes:
    """Format the completed file of a replacecommit."""
    return _REPLACE_COMMIT.format(value)


# Large commits: what only few fields are needed of, and what is known before the lock is taken.


def parse_commit_notes(data: bytes) -> CommitNotes:
    """Parse what a commit records besides its files, without making values of their statistics."""
    notes = decode_record(data, _NOTES[record_name(data)])
    return CommitNotes(operation=notes["operationType"], extra=dict(notes["extraMetadata"] or {}))


def parse_file_ids(data: bytes) -> frozenset[str]:
    """Return the ids of the file groups that a commit wrote or replaced."""
    decoded = decode_record(data, _FILE_IDS[record_name(data)])
    stats = decoded["partitionToWriteStats"] or {}
    replaced = decoded.get("partitionToReplaceFileIds") or {}
    written = (stat["fileId"] for items in stats.values() for stat in items or () if stat)
    return frozenset(file_id for file_id in (*written, *chain(*replaced.values())) if file_id)


@dataclass(frozen=True, slots=True)
class EncodedCommit:
    """The completed file of a write, encoded except for its extra metadata."""

    schema: RecordSchema
    in_front: bytes
    behind: bytes

    def with_extra(self, extra: Mapping[str, str]) -> bytes:
        """Return the file; this takes no longer for more files."""
        encoded = encode_fields({_EXTRA.name: dict(extra)}, _ONLY_EXTRA)
        return container_of([self.in_front, encoded, self.behind], self.schema)


def encode_commit(value: CommitMetadata, *, replaces: bool) -> EncodedCommit:
    """Encode the completed file of a replacecommit, or of another write."""
    if value.replaced and not replaces:
        raise InvalidError("only a replacecommit can replace file groups", replaced=value.replaced)
    codec = _REPLACE_COMMIT if replaces else _COMMIT
    names = field_names(codec.schema)
    place = names.index(_EXTRA.name)
    with gc_paused():
        fields = codec.codec.format(replace(value, extra={}))
        in_front, behind = (
            encode_fields(fields, with_only(codec.schema, {codec.schema.name: part}))
            for part in (names[:place], names[place + 1 :])
        )
    return EncodedCommit(codec.schema, in_front, behind)


def parse_compaction_plan(data: bytes) -> CompactionPlan:
    """Parse the requested file of a compaction or log compaction."""
    return _COMPACTION_PLAN_WITH_NEXT_BASE.parse(data)


def format_compaction_plan(value: CompactionPlan) -> bytes:
    """Format the requested file of a compaction or log compaction."""
    has_next_base = any(operation.next_base_instant is not None for operation in value.operations)
    return (_COMPACTION_PLAN_WITH_NEXT_BASE if has_next_base else _COMPACTION_PLAN).format(value)


def parse_requested_replace(data: bytes) -> RequestedReplace:
    """Parse the requested file of a replacecommit or a clustering."""
    return _REQUESTED_REPLACE.parse(data)


def format_requested_replace(value: RequestedReplace) -> bytes:
    """Format the requested file of a replacecommit or a clustering."""
    return _REQUESTED_REPLACE.format(value)


def parse_clean_plan(data: bytes) -> CleanPlan:
    """Parse the requested file of a clean."""
    return _CLEAN_PLAN.parse(data)


def format_clean_plan(value: CleanPlan) -> bytes:
    """Format the requested file of a clean."""
    return _CLEAN_PLAN.format(value)


def parse_clean(data: bytes) -> CleanMetadata:
    """Parse the completed file of a clean."""
    return _CLEAN.parse(data)


def format_clean(value: CleanMetadata) -> bytes:
    """Format the completed file of a clean."""
    return _CLEAN.format(value)


def parse_rollback_plan(data: bytes) -> RollbackPlan:
    """Parse the requested file of a rollback."""
    return _CAUSED_ROLLBACK_PLAN.parse(data)


def format_rollback_plan(value: RollbackPlan) -> bytes:
    """Format the requested file of a rollback."""
    return (_CAUSED_ROLLBACK_PLAN if _has_cause(value) else _ROLLBACK_PLAN).format(value)


def parse_rollback(data: bytes) -> RollbackMetadata:
    """Parse the completed file of a rollback."""
    return _CAUSED_ROLLBACK.parse(data)


def format_rollback(value: RollbackMetadata) -> bytes:
    """Format the completed file of a rollback."""
    return (_CAUSED_ROLLBACK if _has_cause(value) else _ROLLBACK).format(value)


def parse_savepoint(data: bytes) -> SavepointMetadata:
    """Parse the completed file of a savepoint."""
    return _SAVEPOINT.parse(data)


def format_savepoint(value: SavepointMetadata) -> bytes:
    """Format the completed file of a savepoint."""
    return _SAVEPOINT.format(value)


def parse_restore_plan(data: bytes) -> RestorePlan:
    """Parse the requested file of a restore."""
    return _RESTORE_PLAN.parse(data)


def format_restore_plan(value: RestorePlan) -> bytes:
    """Format the requested file of a restore."""
    return _RESTORE_PLAN.format(value)


def parse_restore(data: bytes) -> RestoreMetadata:
    """Parse the completed file of a restore."""
    return _CAUSED_RESTORE.parse(data)


def format_restore(value: RestoreMetadata) -> bytes:
    """Format the completed file of a restore."""
    has_cause = any(_has_cause(part) for parts in value.rollbacks.values() for part in parts)
    return (_CAUSED_RESTORE if has_cause else _RESTORE).format(value)


def parse_index_plan(data: bytes) -> IndexPlan:
    """Parse the requested file of an indexing."""
    return _INDEX_PLAN.parse(data)


def format_index_plan(value: IndexPlan) -> bytes:
    """Format the requested file of an indexing."""
    return _INDEX_PLAN.format(value)


def parse_index_commit(data: bytes) -> IndexCommitMetadata:
    """Parse the completed file of an indexing."""
    return _INDEX_COMMIT.parse(data)


def format_index_commit(value: IndexCommitMetadata) -> bytes:
    """Format the completed file of an indexing."""
    return _INDEX_COMMIT.format(value)
