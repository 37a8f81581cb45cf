"""Which tables may be written: a write that other readers and writers would choke on is refused."""

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

# A metadata table of these alone only makes reading faster: it can be dropped, and a later writer
# that keeps one builds it anew from a listing.
_DROPPABLE = frozenset({"files", "column_stats", "partition_stats", "bloom_filters"})


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A feature that our writes would break: what it is, and the property that tells."""

    message: str
    found: Callable[[TableConfig], str | None]
    property: str


def _without_meta_fields(config: TableConfig) -> str | None:
    return None if config.has_meta_fields else "false"


def _custom(config: TableConfig) -> str | None:
    return config.merge_mode.value if config.merge_mode is MergeMode.CUSTOM else None


def _partial(config: TableConfig) -> str | None:
    return config.properties.get("hoodie.table.partial.update.mode") or None


def _indexes(config: TableConfig) -> str | None:
    return ",".join(p for p in metadata_partitions(config) if p not in _DROPPABLE) or None


_REFUSALS = (
    _Refusal(
        "the table has no meta fields, by which rows are found and merged: write with Hudi",
        _without_meta_fields,
        "hoodie.populate.meta.fields",
    ),
    _Refusal(
        "the table merges rows by a class of its own: write with Hudi, or give the table one of "
        "the two orderings",
        _custom,
        "hoodie.record.merge.mode",
    ),
    _Refusal(
        "the table merges rows column by column: write with Hudi",
        _partial,
        "hoodie.table.partial.update.mode",
    ),
    _Refusal(
        "other writers find rows by indexes in the metadata table, which this library does not "
        "maintain: drop these indexes with Hudi first, or write with Hudi",
        _indexes,
        "hoodie.table.metadata.partitions",
    ),
)


def check_writable(config: TableConfig) -> None:
    """Raise UnsupportedError if the table has a feature that our writes would break."""
    for refusal in _REFUSALS:
        value = refusal.found(config)
        if value is not None:
            raise UnsupportedError(refusal.message, table=config.name, **{refusal.property: value})


def check_write_can_begin(
    config: TableConfig, timeline: Timeline, concurrency: Concurrency
) -> None:
    """Raise unless a write may begin on the table as it is now."""
    check_writable(config)
    captured = cdc_logging_mode(config.properties) is not None
    non_blocking = concurrency is Concurrency.NON_BLOCKING
    if non_blocking and config.table_type is not TableType.MERGE_ON_READ:
        raise InvalidError(
            "writers can do without blocking each other only in a merge-on-read table",
            table=config.name,
        )
    if non_blocking and captured:
        raise UnsupportedError(
            "the table logs changes, and writers that do not wait for each other cannot tell what "
            "a row was before: choose OPTIMISTIC_CONCURRENCY_CONTROL",
            table=config.name,
            **{CHANGE_DATA: "true"},
        )
    restores = timeline.pending(Action.RESTORE)
    if restores:
        raise ConflictError(
            "a restore of the table has not ended: end it, or run it again, before writing",
            restore=restores[0].requested_at,
        )
