"""Which tables may be written: a write that would break other readers and writers is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lakewright.errors import ConflictError, InvalidError, UnsupportedError
from lakewright.model.instant import Action
from lakewright.model.table_config import (
    CHANGE_DATA,
    MergeMode,
    TableConfig,
    TableType,
    cdc_logging_mode,
)
from lakewright.model.timeline import Timeline
from lakewright.table.options import Concurrency
from lakewright.table.properties import metadata_partitions

# A metadata table with only these partitions does nothing but make reading faster: it can be
# dropped, and a later writer that maintains one rebuilds it from a listing.
_DROPPABLE_PARTITIONS = frozenset({"files", "column_stats", "partition_stats", "bloom_filters"})


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A table feature that writes of this library would break.

    `value_of` returns the value of `property` if the table has the feature.
    """

    message: str
    value_of: Callable[[TableConfig], str | None]
    property: str


def _meta_fields_setting(config: TableConfig) -> str | None:
    return None if config.has_meta_fields else "false"


def _custom_merge_mode(config: TableConfig) -> str | None:
    return config.merge_mode.value if config.merge_mode is MergeMode.CUSTOM else None


def _partial_update_mode(config: TableConfig) -> str | None:
    return config.properties.get("hoodie.table.partial.update.mode") or None


def _maintained_indexes(config: TableConfig) -> str | None:
    return (
        ",".join(p for p in metadata_partitions(config) if p not in _DROPPABLE_PARTITIONS) or None
    )


_REFUSALS = (
    _Refusal(
        "the table has no meta fields, by which rows are found and merged: write with Hudi",
        _meta_fields_setting,
        "hoodie.populate.meta.fields",
    ),
    _Refusal(
        "the table merges rows by a class of its own: write with Hudi, or give the table one of "
        "the two orderings",
        _custom_merge_mode,
        "hoodie.record.merge.mode",
    ),
    _Refusal(
        "the table merges rows column by column: write with Hudi",
        _partial_update_mode,
        "hoodie.table.partial.update.mode",
    ),
    _Refusal(
        "other writers find rows by indexes in the metadata table, which this library does not "
        "maintain: drop these indexes with Hudi first, or write with Hudi",
        _maintained_indexes,
        "hoodie.table.metadata.partitions",
    ),
)


def check_writable(config: TableConfig) -> None:
    """Raise UnsupportedError if the table has a feature that our writes would break."""
    for refusal in _REFUSALS:
        value = refusal.value_of(config)
        if value is not None:
            raise UnsupportedError(refusal.message, table=config.name, **{refusal.property: value})


def check_write_can_begin(
    config: TableConfig, timeline: Timeline, concurrency: Concurrency
) -> None:
    """Raise unless a write may begin on the table in its current state."""
    check_writable(config)
    logs_changes = cdc_logging_mode(config.properties) is not None
    non_blocking = concurrency is Concurrency.NON_BLOCKING
    if non_blocking and config.table_type is not TableType.MERGE_ON_READ:
        raise InvalidError(
            "writers can do without blocking each other only in a merge-on-read table",
            table=config.name,
        )
    if non_blocking and logs_changes:
        raise UnsupportedError(
            "the table logs changes, and writers that do not wait for each other cannot know what "
            "a row was before: choose OPTIMISTIC_CONCURRENCY_CONTROL",
            table=config.name,
            **{CHANGE_DATA: "true"},
        )
    restores = timeline.pending(Action.RESTORE)
    if restores:
        raise ConflictError(
            "a restore of the table is pending: complete it, or run it again, before writing",
            restore=restores[0].requested_at,
        )
