"""Queries described by options: checks the options, and plans the query."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from lakewright.clock import zone_of
from lakewright.errors import InvalidError, UnsupportedError
from lakewright.model.instant import Instant, bound_of_range, is_time, query_time
from lakewright.options import ignored_options, settings_from
from lakewright.scan.cdc.planner import CdcScanPlan, plan_cdc_range
from lakewright.scan.options import READ_KEYS, REFUSED_READ_OPTIONS, ReadSettings
from lakewright.scan.planner import (
    EARLIEST,
    IncrementalQueryAnalyzer,
    QueryContext,
    plan_range,
    plan_read_optimized,
    plan_snapshot,
)
from lakewright.scan.scan_plan import ScanPlan
from lakewright.storage.factory import other_options, storage_option_names
from lakewright.table.snapshot import Snapshot

# Values that mean "from the beginning".
_EARLIEST = frozenset({"earliest", "000", "0"})


def read_settings(options: Mapping[str, str]) -> ReadSettings:
    """Check the options of a query; warn about Hudi options that have no effect here."""
    # Spark ignores the case of option names, and passes the table's path as an option.
    lower_options = {key.lower(): value for key, value in other_options(options).items()}
    lower_options.pop("path", None)
    storage_names = storage_option_names()
    for key in ignored_options(
        lower_options, READ_KEYS, REFUSED_READ_OPTIONS, consumed=storage_names
    ):
        warnings.warn(f"option {key} has no effect on reading", stacklevel=4)
    settings = settings_from(ReadSettings, lower_options)
    if settings.as_of is not None and settings.query_type == "incremental":
        raise InvalidError(
            "an incremental query has a range, not a point in time: give the end of the range",
            option="as.of.instant",
            instead="hoodie.datasource.read.end.instanttime",
        )
    if settings.begin is None and settings.query_type == "incremental":
        raise InvalidError(
            "an incremental query needs the completion time after which it begins: `000` or "
            "`earliest` is the beginning of the table",
            option="hoodie.datasource.read.begin.instanttime",
        )
    if settings.range_version is not None and settings.range_version < 8:
        raise UnsupportedError(
            "ranges over requested times lose writes that complete late: leave the option out for "
            "ranges over completion times",
            option="hoodie.datasource.read.incr.table.version",
            value=settings.range_version,
        )
    if settings.incremental_format == "cdc" and settings.query_type != "incremental":
        raise InvalidError(
            "change data is that of a range: ask for an incremental query",
            option="hoodie.datasource.query.type",
            value=settings.query_type,
        )
    return settings


def plan_query(
    snapshot: Snapshot, settings: ReadSettings, columns: Sequence[str] | None = None
) -> ScanPlan | CdcScanPlan:
    """Plan the query that the settings describe."""
    if settings.query_type == "incremental":
        plan = plan_cdc_range if settings.incremental_format == "cdc" else plan_range
        return plan(
            query_context(snapshot, settings),
            columns=columns,
            fallback=settings.full_scan_fallback,
            schema_of_end=settings.schema_of_end,
        )
    as_of = settings.as_of
    if as_of is not None:
        as_of = query_time(as_of, zone_of(snapshot.config.timeline_zone))
    query = plan_read_optimized if settings.query_type == "read_optimized" else plan_snapshot
    return query(snapshot, as_of=as_of, columns=columns)


def query_context(snapshot: Snapshot, settings: ReadSettings) -> QueryContext:
    """Return the instants of the range that the settings describe."""
    return IncrementalQueryAnalyzer(
        snapshot=snapshot,
        begin=begin_of_range(settings.begin) or EARLIEST,
        end=end_of_range(settings.end),
        skip_compaction=settings.skip_compaction,
    ).analyze()


def begin_of_range(value: str | Instant | None) -> str | None:
    """Parse the begin of a range, given by a user; None is the beginning of the table."""
    if isinstance(value, str) and (value in _EARLIEST or not value.strip("0")):
        return None
    return end_of_range(value)


def end_of_range(value: str | Instant | None) -> str | None:
    """Parse a completion time given by a user; None is an open end."""
    if isinstance(value, Instant):
        value = value.completed_at
    if value is None:
        return None
    if not isinstance(value, str) or not is_time(value):
        raise InvalidError(
            "not a completion time: 17 or 14 digits (or `earliest`, where a range begins)",
            value=value,
        )
    return bound_of_range(value)
