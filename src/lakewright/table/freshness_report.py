"""Completion and freshness for users: load, wait for, format, and publish in a catalog."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from lakewright.clock import Clock, zone_of
from lakewright.errors import InvalidError, UnavailableError
from lakewright.model.event_time import time_text
from lakewright.model.freshness import Freshness, ViewFreshness
from lakewright.model.instant import latest_epoch_ms, moment_ms, query_time
from lakewright.model.watermark import CompletionDefinition
from lakewright.options import settings_from
from lakewright.storage.base import Storage
from lakewright.table.freshness import blocking_log_files, compute_freshness
from lakewright.table.freshness_options import FreshnessSettings
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.uncompacted_logs import BlockingLogFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Document = dict[str, Any]

_VIEWS = ("read_optimized", "snapshot")
_MAX_SHOWN = 3


def load_freshness(
    storage: Storage, clock: Clock, options: Mapping[str, str] | None = None
) -> Freshness:
    """Return the current completion and freshness of a table."""
    return freshness_of(load_snapshot(storage), clock, options or {})


def load_blocking_log_files(storage: Storage, limit: int) -> tuple[BlockingLogFile, ...]:
    """Return the log files that hold back read-optimized completion, the most urgent first."""
    return blocking_log_files(load_snapshot(storage), limit)


def wait_until_complete(
    storage: Storage,
    clock: Clock,
    time: int | str | datetime,
    *,
    view: str = "read_optimized",
    timeout: float,
    poll: float,
    options: Mapping[str, str] | None = None,
) -> Freshness:
    """Wait until a view is complete up to an event time; return the freshness at that point.

    Complete by the table's definition: by the watermark if it has a lateness, or `options` do.

    Raises:
        UnavailableError: it is not within `timeout` seconds; the error names the log files that
            hold it back.
    """
    if view not in _VIEWS:
        raise InvalidError("there is no such view", view=view, known=list(_VIEWS))
    end_ms = clock.monotonic_ms() + round(timeout * 1000)
    while True:
        snapshot = load_snapshot(storage)
        target = parse_event_time(time, snapshot)
        freshness = freshness_of(snapshot, clock, options or {})
        current: ViewFreshness = getattr(freshness, view)
        completion = current.complete_until(freshness.definition)
        if completion is not None and completion >= target:
            return freshness
        remaining_ms = end_ms - clock.monotonic_ms()
        if remaining_ms <= 0:
            raise _not_complete(snapshot, view, target, completion, freshness.definition)
        clock.sleep(min(poll, remaining_ms / 1000))


def _not_complete(
    snapshot: Snapshot,
    view: str,
    target: int,
    completion: int | None,
    definition: CompletionDefinition,
) -> UnavailableError:
    """Return the error of a wait that has timed out."""
    logs = [
        log
        for log in (blocking_log_files(snapshot, _MAX_SHOWN) if view == "read_optimized" else ())
        if log.event_time is None or log.event_time <= target
    ]
    if logs:
        advice = "wait longer, or run a compaction"
    elif definition is CompletionDefinition.WATERMARK:
        advice = "no row has come that is newer by the allowed lateness"
    else:
        advice = "the last commit brought older rows, so wait for newer ones"
    return UnavailableError(
        f"the view is not complete up to this time yet: {advice}",
        view=view,
        wanted=_time_or_unknown(target),
        completion=_time_or_unknown(completion),
        definition=definition.value,
        held_back_by=[_describe(log) for log in logs],
    )


def parse_event_time(time: int | str | datetime, snapshot: Snapshot) -> int:
    """Return an event time in milliseconds.

    `time` is a number, thirteen digits, a date and time, or an instant time. Of a local time that
    daylight saving repeats it is the second one: a wait for it does not end too early.
    """
    if isinstance(time, int):
        return time
    if isinstance(time, str) and time.strip().isdigit() and len(time.strip()) == 13:
        return int(time)
    moment = time if isinstance(time, datetime) else _moment_with_zone(time)
    if moment is not None and moment.tzinfo is not None:
        return moment_ms(moment)
    zone = zone_of(snapshot.config.timeline_zone)
    return latest_epoch_ms(query_time(time, zone), zone)


def _moment_with_zone(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.strip()) if not text.strip().isdigit() else None
    except ValueError:
        return None


def freshness_of(snapshot: Snapshot, clock: Clock, options: Mapping[str, str]) -> Freshness:
    """Return the completion and freshness of a table as of a snapshot."""
    tolerance = settings_from(FreshnessSettings, options).future_tolerance_ms
    return compute_freshness(snapshot, future_from_ms=clock.now_ms() + tolerance, options=options)


def _describe(log: BlockingLogFile) -> str:
    return f"{log.as_uncompacted_log.path} of {log.instant}: {_time_or_unknown(log.event_time)}"


def _time_or_unknown(time: int | None) -> str:
    """Return an event time for messages, with its date and time."""
    return "unknown" if time is None else f"{time} ({time_text(time)})"


def known_time_text(time: int | None) -> str | None:
    """Return an event time as date and time in UTC; None if it is unknown."""
    return None if time is None else time_text(time)


def freshness_document(freshness: Freshness, *, partitions: bool) -> Document:
    """Return completion and freshness as a JSON document, with `partitions` if requested."""
    log = freshness.uncompacted_logs
    document: Document = {
        "as_of": freshness.as_of,
        "definition": freshness.definition.value,
        "lateness_ms": freshness.lateness_ms,
        "late_rows": freshness.late_rows,
        "views": [
            {"view": view, **_view_document(getattr(freshness, view), freshness)}
            for view in ("snapshot", "read_optimized")
        ],
        "waiting": []
        if log is None
        else [{"path": log.path, "instant": log.instant, "event_time": log.event_time}],
        "fell_from": freshness.regression.before if freshness.regression is not None else None,
        "future": [
            {"partition": path, "event_time": time, "at": time_text(time)}
            for path, time in freshness.future
        ],
    }
    if partitions:
        document["partitions"] = [
            {"partition": path, "view": view, **_view_document(getattr(values, view), freshness)}
            for path, values in freshness.partitions.items()
            for view in ("snapshot", "read_optimized")
        ]
    return document


def _view_document(view: ViewFreshness, freshness: Freshness) -> Document:
    """Return the times of a view; `complete_until` is by the definition that counts."""
    return {
        "completion": view.completion,
        "watermark": view.watermark,
        "complete_until": known_time_text(view.complete_until(freshness.definition)),
        "freshness": view.freshness,
        "fresh_until": known_time_text(view.freshness),
    }


class Catalog(Protocol):
    """A catalog in which tables have names and properties."""

    def set_properties(self, table: str, properties: Mapping[str, str | None]) -> None:
        """Set properties of a table; those that are None are removed."""
        ...


class SparkCatalog:
    """The catalog of a Spark session, with or without a Hive metastore."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path

    def set_properties(self, table: str, properties: Mapping[str, str | None]) -> None:
        """See `Catalog`; for a missing table InvalidError shows the statement that creates it."""
        if not self._spark.catalog.tableExists(table):
            raise InvalidError(
                "the catalog has no such table: make it first",
                table=table,
                statement=f"CREATE TABLE {table} USING hudi LOCATION '{self._path}'",
            )
        to_set = {key: value for key, value in properties.items() if value is not None}
        to_unset = [key for key in properties if key not in to_set]
        if to_set:
            pairs = ", ".join(
                f"{_sql_literal(key)} = {_sql_literal(value)}" for key, value in to_set.items()
            )
            self._spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({pairs})")
        if to_unset:
            keys = ", ".join(_sql_literal(key) for key in to_unset)
            self._spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES IF EXISTS ({keys})")


def _sql_literal(value: str) -> str:
    """Return a string as a SQL literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def catalog_properties(freshness: Freshness) -> dict[str, str | None]:
    """Return completion and freshness as properties of a table in a catalog."""
    times = {
        "lakewright.snapshot.completion": freshness.snapshot.completion,
        "lakewright.snapshot.freshness": freshness.snapshot.freshness,
        "lakewright.read_optimized.completion": freshness.read_optimized.completion,
        "lakewright.read_optimized.freshness": freshness.read_optimized.freshness,
        "lakewright.snapshot.watermark": freshness.snapshot.watermark,
        "lakewright.read_optimized.watermark": freshness.read_optimized.watermark,
        "lakewright.completion.late_rows": None,
    }
    if freshness.lateness_ms is not None:
        times["lakewright.completion.late_rows"] = freshness.late_rows
    properties = {key: None if time is None else str(time) for key, time in times.items()}
    return {
        **properties,
        "lakewright.completion.definition": freshness.definition.value,
        "lakewright.freshness.as_of": freshness.as_of,
    }
