"""A query given by options: check them, and plan it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from lakewright.clock import zone_of
from lakewright.core.instant import query_time
from lakewright.errors import InvalidError, UnsupportedError
from lakewright.read.plan import ReadPlan
from lakewright.read.query import plan_changes, plan_read_optimized, plan_snapshot
from lakewright.read.settings import READ_KEYS, REFUSED_READ_OPTIONS, ReadSettings
from lakewright.settings import ignored_options, settings_from
from lakewright.table.snapshot import Snapshot

# Ways to say "from the beginning".
_EARLIEST = frozenset({"earliest", "000", "0"})


def read_settings(options: Mapping[str, str]) -> ReadSettings:
    """Check the options of a query; one of Hudi's that does not matter here is a warning."""
    for key in ignored_options(options, READ_KEYS, REFUSED_READ_OPTIONS):
        warnings.warn(f"option {key} has no effect on reading", stacklevel=4)
    settings = settings_from(ReadSettings, options)
    if settings.incremental_format == "cdc":
        raise UnsupportedError("change data is not read yet", option="cdc")
    return settings


def plan_query(
    snapshot: Snapshot, settings: ReadSettings, columns: Sequence[str] | None = None
) -> ReadPlan:
    """Plan the query that the settings describe."""
    if settings.query_type == "incremental":
        if settings.begin is None:
            raise InvalidError(
                "an incremental query needs to know where it begins",
                option="hoodie.datasource.read.begin.instanttime",
            )
        since, until = completion_time(settings.begin), completion_time(settings.end)
        fallback = settings.full_scan_fallback
        plan = plan_changes(snapshot, since=since, until=until, columns=columns, fallback=fallback)
        return plan.read
    if settings.query_type == "read_optimized":
        return plan_read_optimized(snapshot, columns=columns)
    as_of = settings.as_of
    if as_of is not None:
        as_of = query_time(as_of, zone_of(snapshot.config.timeline_zone))
    return plan_snapshot(snapshot, as_of=as_of, columns=columns)


def completion_time(text: str | None) -> str | None:
    """An end of a range as people write it; None is the open end, and the beginning."""
    if text is None or text in _EARLIEST or not text.strip("0"):
        return None
    if not text.isdigit():
        raise InvalidError(
            "not a completion time: 17 digits, or `earliest` at the beginning", value=text
        )
    return text
