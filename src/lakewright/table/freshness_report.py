"""Completion and freshness for people: asked for, waited for, shown, and put into a catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from lakewright.clock import Clock, zone_of
from lakewright.errors import InvalidError, UnavailableError
from lakewright.model.freshness import Freshness, ViewFreshness
from lakewright.model.instant import parse_time, query_time
from lakewright.options import settings_from
from lakewright.storage.base import Storage
from lakewright.table.freshness import BlockingLogFile, blocking_log_files, compute_freshness
from lakewright.table.freshness_options import FreshnessSettings
from lakewright.table.snapshot import Snapshot, load_snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Document = dict[str, Any]

_VIEWS = ("read_optimized", "snapshot")
_MOST_SHOWN = 3


def load_freshness(
    storage: Storage, clock: Clock, options: Mapping[str, str] | None = None
) -> Freshness:
    """Completion and freshness of a table as it is now."""
    return freshness_of(load_snapshot(storage), clock, options or {})


def load_blocking_log_files(storage: Storage, limit: int) -> tuple[BlockingLogFile, ...]:
    """The log files that hold read-optimized completion back, the worst first."""
    return blocking_log_files(load_snapshot(storage), limit)


def wait_until_complete(
    storage: Storage,
    clock: Clock,
    time: int | str | datetime,
    *,
    view: str = "read_optimized",
    timeout: float,
    poll: float,
) -> Freshness:
    """Look at a table until a view is complete up to an event time; gives what was seen then.

    Raises:
        UnavailableError: it is not within `timeout` seconds; the error tells what holds it back.
    """
    if view not in _VIEWS:
        raise InvalidError("there is no such view", view=view, known=list(_VIEWS))
    end_ms = clock.monotonic_ms() + round(timeout * 1000)
    while True:
        snapshot = load_snapshot(storage)
        wanted = parse_event_time(time, snapshot)
        found = freshness_of(snapshot, clock, {})
        reached: ViewFreshness = getattr(found, view)
        if reached.completion is not None and reached.completion >= wanted:
            return found
        left_ms = end_ms - clock.monotonic_ms()
        if left_ms <= 0:
            raise UnavailableError(
                "the view is not complete up to this time yet: wait longer, or run a compaction",
                view=view,
                wanted=_time_or_unknown(wanted),
                completion=_time_or_unknown(reached.completion),
                held_back_by=[
                    _sentence(each) for each in blocking_log_files(snapshot, _MOST_SHOWN)
                ],
            )
        clock.sleep(min(poll, left_ms / 1000))


def parse_event_time(time: int | str | datetime, snapshot: Snapshot) -> int:
    """An event time in milliseconds: a number, thirteen digits, a date and time, or an instant."""
    if isinstance(time, int):
        return time
    if isinstance(time, str) and time.strip().isdigit() and len(time.strip()) == 13:
        return int(time)
    zone = zone_of(snapshot.config.timeline_zone)
    return round(parse_time(query_time(time, zone), zone).timestamp() * 1000)


def freshness_of(snapshot: Snapshot, clock: Clock, options: Mapping[str, str]) -> Freshness:
    """Completion and freshness of a table as of one look at it."""
    tolerance = settings_from(FreshnessSettings, options).future_tolerance_ms
    return compute_freshness(snapshot, future_from_ms=clock.now_ms() + tolerance)


def _sentence(held: BlockingLogFile) -> str:
    return f"{held.as_uncompacted_log.path} of {held.instant}: {_time_or_unknown(held.event_time)}"


def _time_or_unknown(time: int | None) -> str:
    """An event time for people."""
    return "unknown" if time is None else f"{time} ({time_text(time)})"


def time_text(time: int | None) -> str | None:
    """A time in milliseconds as date and time in UTC; None stays None, and so do wild ones."""
    if time is None:
        return None
    try:
        return datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return None


def freshness_document(found: Freshness, *, partitions: bool) -> Document:
    """Completion and freshness as a document; partitions only if they are wanted."""
    document: Document = {
        "as_of": found.as_of,
        "views": [
            {"view": "snapshot", **_view_document(found.snapshot)},
            {"view": "read_optimized", **_view_document(found.read_optimized)},
        ],
        "waiting": [asdict(found.uncompacted_logs)] if found.uncompacted_logs is not None else [],
        "fell_from": found.regression.before if found.regression is not None else None,
        "future": [
            {"partition": path, "event_time": time, "at": time_text(time)}
            for path, time in found.future
        ],
    }
    if partitions:
        document["partitions"] = [
            {"partition": path, "view": view, **_view_document(getattr(values, view))}
            for path, values in found.partitions.items()
            for view in ("snapshot", "read_optimized")
        ]
    return document


def _view_document(view: ViewFreshness) -> Document:
    return {
        "completion": view.completion,
        "complete_until": time_text(view.completion),
        "freshness": view.freshness,
        "fresh_until": time_text(view.freshness),
    }


class Catalog(Protocol):
    """Where tables have names and properties."""

    def set_properties(self, table: str, properties: Mapping[str, str | None]) -> None:
        """Set properties of a table; those that are None are taken away."""
        ...


class SparkCatalog:
    """The catalog of a Spark session, with a Hive metastore behind it or without."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path

    def set_properties(self, table: str, properties: Mapping[str, str | None]) -> None:
        """See `Catalog`; InvalidError, with what would make it, if there is no such table."""
        if not self._spark.catalog.tableExists(table):
            raise InvalidError(
                "the catalog has no such table: make it first",
                table=table,
                statement=f"CREATE TABLE {table} USING hudi LOCATION '{self._path}'",
            )
        kept = {key: value for key, value in properties.items() if value is not None}
        gone = [key for key in properties if key not in kept]
        if kept:
            pairs = ", ".join(f"{_text(key)} = {_text(value)}" for key, value in kept.items())
            self._spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({pairs})")
        if gone:
            keys = ", ".join(_text(key) for key in gone)
            self._spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES IF EXISTS ({keys})")


def _text(value: str) -> str:
    """A text as SQL has it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def catalog_properties(found: Freshness) -> dict[str, str | None]:
    """Completion and freshness as properties of a table in a catalog."""
    times = {
        "lakewright.snapshot.completion": found.snapshot.completion,
        "lakewright.snapshot.freshness": found.snapshot.freshness,
        "lakewright.read_optimized.completion": found.read_optimized.completion,
        "lakewright.read_optimized.freshness": found.read_optimized.freshness,
    }
    told = {key: None if time is None else str(time) for key, time in times.items()}
    return {**told, "lakewright.freshness.as_of": found.as_of}
