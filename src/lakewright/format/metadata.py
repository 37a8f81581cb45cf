"""The content of timeline files: commits, plans and outcomes as Avro bytes, both ways.

Every `parse_` raises CorruptError for bytes that break the format and UnsupportedError for the JSON
of tables before version 8; every `format_` raises InvalidError for a value that does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from lakewright.core.commits import CommitMetadata
from lakewright.core.plans import (
    CleanPlan,
    CompactionPlan,
    IndexPlan,
    RequestedReplace,
    RestorePlan,
    RollbackPlan,
)
from lakewright.core.service_metadata import (
    CleanMetadata,
    IndexCommitMetadata,
    RestoreMetadata,
    RollbackMetadata,
    SavepointMetadata,
)
from lakewright.errors import InvalidError
from lakewright.format import metadata_shapes as shapes
from lakewright.format.avro import decode_record, encode_record, record_name
from lakewright.format.avro_schema import RecordSchema, load_schema, with_nullable_text
from lakewright.format.shapes import Shape

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Kind(Generic[Value]):
    """A record of the format: its schema on disk and its shape in memory."""

    schema: RecordSchema
    shape: Shape

    def parse(self, data: bytes) -> Value:
        value: Value = self.shape.parse(decode_record(data, self.schema))
        return value

    def format(self, value: Value) -> bytes:
        return encode_record(self.shape.format(value), self.schema)


def _with_cause(schema: RecordSchema, record: str) -> RecordSchema:
    """A schema in which rollbacks tell by what they were caused, and why."""
    for name in (shapes.CAUSED_BY, shapes.REASON):
        schema = with_nullable_text(schema, record, name)
    return schema


def _has_cause(rollback: RollbackPlan | RollbackMetadata) -> bool:
    return rollback.caused_by is not None or rollback.reason is not None


_COMMIT: _Kind[CommitMetadata] = _Kind(load_schema("HoodieCommitMetadata"), shapes.COMMIT)
_REPLACE_COMMIT: _Kind[CommitMetadata] = _Kind(
    load_schema("HoodieReplaceCommitMetadata"), shapes.REPLACE_COMMIT
)
_COMPACTION_PLAN: _Kind[CompactionPlan] = _Kind(
    load_schema("HoodieCompactionPlan"), shapes.COMPACTION_PLAN
)
_REQUESTED_REPLACE: _Kind[RequestedReplace] = _Kind(
    load_schema("HoodieRequestedReplaceMetadata"), shapes.REQUESTED_REPLACE
)
_CLEAN_PLAN: _Kind[CleanPlan] = _Kind(load_schema("HoodieCleanerPlan"), shapes.CLEAN_PLAN)
_CLEAN: _Kind[CleanMetadata] = _Kind(load_schema("HoodieCleanMetadata"), shapes.CLEAN)
_ROLLBACK_PLAN: _Kind[RollbackPlan] = _Kind(load_schema("HoodieRollbackPlan"), shapes.ROLLBACK_PLAN)
_ROLLBACK: _Kind[RollbackMetadata] = _Kind(load_schema("HoodieRollbackMetadata"), shapes.ROLLBACK)
_SAVEPOINT: _Kind[SavepointMetadata] = _Kind(
    load_schema("HoodieSavepointMetadata"), shapes.SAVEPOINT
)
_RESTORE_PLAN: _Kind[RestorePlan] = _Kind(load_schema("HoodieRestorePlan"), shapes.RESTORE_PLAN)
_RESTORE: _Kind[RestoreMetadata] = _Kind(load_schema("HoodieRestoreMetadata"), shapes.RESTORE)
_INDEX_PLAN: _Kind[IndexPlan] = _Kind(load_schema("HoodieIndexPlan"), shapes.INDEX_PLAN)
_INDEX_COMMIT: _Kind[IndexCommitMetadata] = _Kind(
    load_schema("HoodieIndexCommitMetadata"), shapes.INDEX_COMMIT
)
# Only what needs them is written with added fields: all others are exactly what real Hudi writes.
_COMPACTION_PLAN_WITH_NEXT_BASE: _Kind[CompactionPlan] = _Kind(
    with_nullable_text(_COMPACTION_PLAN.schema, "HoodieCompactionOperation", "nextBaseInstantTime"),
    shapes.COMPACTION_PLAN,
)
_CAUSED_ROLLBACK_PLAN: _Kind[RollbackPlan] = _Kind(
    _with_cause(_ROLLBACK_PLAN.schema, "HoodieRollbackPlan"), shapes.ROLLBACK_PLAN
)
_CAUSED_ROLLBACK: _Kind[RollbackMetadata] = _Kind(
    _with_cause(_ROLLBACK.schema, "HoodieRollbackMetadata"), shapes.ROLLBACK
)
_CAUSED_RESTORE: _Kind[RestoreMetadata] = _Kind(
    _with_cause(_RESTORE.schema, "HoodieRollbackMetadata"), shapes.RESTORE
)


def parse_commit(data: bytes) -> CommitMetadata:
    """Read a commit, deltacommit or replacecommit, completed or in flight.

    A replacecommit in flight holds the record of a plain commit: the file says which one it has.
    """
    replaces = record_name(data) == _REPLACE_COMMIT.schema.name
    return (_REPLACE_COMMIT if replaces else _COMMIT).parse(data)


def format_commit(value: CommitMetadata) -> bytes:
    """Write a commit or deltacommit, or any write in flight."""
    if value.replaced:
        raise InvalidError("only a replacecommit can replace file groups", replaced=value.replaced)
    return _COMMIT.format(value)


def format_replace_commit(value: CommitMetadata) -> bytes:
    """Write a completed replacecommit."""
    return _REPLACE_COMMIT.format(value)


def parse_compaction_plan(data: bytes) -> CompactionPlan:
    """Read the requested file of a compaction or log compaction."""
    return _COMPACTION_PLAN_WITH_NEXT_BASE.parse(data)


def format_compaction_plan(value: CompactionPlan) -> bytes:
    """Write the requested file of a compaction or log compaction."""
    named = any(operation.next_base_instant is not None for operation in value.operations)
    return (_COMPACTION_PLAN_WITH_NEXT_BASE if named else _COMPACTION_PLAN).format(value)


def parse_requested_replace(data: bytes) -> RequestedReplace:
    """Read the requested file of a replacecommit or a clustering."""
    return _REQUESTED_REPLACE.parse(data)


def format_requested_replace(value: RequestedReplace) -> bytes:
    """Write the requested file of a replacecommit or a clustering."""
    return _REQUESTED_REPLACE.format(value)


def parse_clean_plan(data: bytes) -> CleanPlan:
    """Read the requested file of a clean."""
    return _CLEAN_PLAN.parse(data)


def format_clean_plan(value: CleanPlan) -> bytes:
    """Write the requested file of a clean."""
    return _CLEAN_PLAN.format(value)


def parse_clean(data: bytes) -> CleanMetadata:
    """Read the completed file of a clean."""
    return _CLEAN.parse(data)


def format_clean(value: CleanMetadata) -> bytes:
    """Write the completed file of a clean."""
    return _CLEAN.format(value)


def parse_rollback_plan(data: bytes) -> RollbackPlan:
    """Read the requested file of a rollback."""
    return _CAUSED_ROLLBACK_PLAN.parse(data)


def format_rollback_plan(value: RollbackPlan) -> bytes:
    """Write the requested file of a rollback."""
    return (_CAUSED_ROLLBACK_PLAN if _has_cause(value) else _ROLLBACK_PLAN).format(value)


def parse_rollback(data: bytes) -> RollbackMetadata:
    """Read the completed file of a rollback."""
    return _CAUSED_ROLLBACK.parse(data)


def format_rollback(value: RollbackMetadata) -> bytes:
    """Write the completed file of a rollback."""
    return (_CAUSED_ROLLBACK if _has_cause(value) else _ROLLBACK).format(value)


def parse_savepoint(data: bytes) -> SavepointMetadata:
    """Read the completed file of a savepoint."""
    return _SAVEPOINT.parse(data)


def format_savepoint(value: SavepointMetadata) -> bytes:
    """Write the completed file of a savepoint."""
    return _SAVEPOINT.format(value)


def parse_restore_plan(data: bytes) -> RestorePlan:
    """Read the requested file of a restore."""
    return _RESTORE_PLAN.parse(data)


def format_restore_plan(value: RestorePlan) -> bytes:
    """Write the requested file of a restore."""
    return _RESTORE_PLAN.format(value)


def parse_restore(data: bytes) -> RestoreMetadata:
    """Read the completed file of a restore."""
    return _CAUSED_RESTORE.parse(data)


def format_restore(value: RestoreMetadata) -> bytes:
    """Write the completed file of a restore."""
    caused = any(_has_cause(each) for parts in value.rollbacks.values() for each in parts)
    return (_CAUSED_RESTORE if caused else _RESTORE).format(value)


def parse_index_plan(data: bytes) -> IndexPlan:
    """Read the requested file of an indexing."""
    return _INDEX_PLAN.parse(data)


def format_index_plan(value: IndexPlan) -> bytes:
    """Write the requested file of an indexing."""
    return _INDEX_PLAN.format(value)


def parse_index_commit(data: bytes) -> IndexCommitMetadata:
    """Read the completed file of an indexing."""
    return _INDEX_COMMIT.parse(data)


def format_index_commit(value: IndexCommitMetadata) -> bytes:
    """Write the completed file of an indexing."""
    return _INDEX_COMMIT.format(value)
