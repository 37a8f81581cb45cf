"""The figures of a commit, by Hudi's names. Pure."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Protocol, runtime_checkable

from lakewright.clock import zone_of
from lakewright.errors import UnavailableError
from lakewright.metrics.meter import MetricsRecorder, add_reporter
from lakewright.metrics.metric import MetricReporter
from lakewright.model.commit_metadata import (
    SERVICE_OPERATIONS,
    CommitMetadata,
    RuntimeStats,
    WriteStat,
)
from lakewright.model.freshness import Watermarks, is_ingest, max_known
from lakewright.model.instant import Action, Instant, parse_time
from lakewright.model.timeline import Timeline
from lakewright.storage.base import Storage
from lakewright.table.freshness_options import call_user_function
from lakewright.table.rollback import load_rollback
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import Transaction

_SERVICES = {"COMPACT": "compaction", "LOG_COMPACT": "logcompaction", "CLUSTER": "clustering"}
_NEW_GROUP = (None, "null")
_PENDING = {
    Action.COMPACTION: "compaction.pendingCompactionInstantCount",
    Action.CLUSTERING: "clustering.pendingClusteringInstantCount",
    Action.CLEAN: "clean.pendingCleanInstantCount",
    Action.ROLLBACK: "rollback.pendingRollbackInstantCount",
}


def name_of(action: str, operation: str | None) -> str:
    """What the metrics of a completed write begin with: a service keeps the name of its plans."""
    return _SERVICES.get(operation or "", action)


def commit_gauges(metadata: CommitMetadata) -> dict[str, float]:
    """What a write did, without its name in front."""
    stats = metadata.write_stats()
    new = [stat for stat in stats if stat.prev_commit in _NEW_GROUP]

    def total(count: Callable[[WriteStat], int | None]) -> int:
        return sum(count(stat) or 0 for stat in stats)

    def spent(count: Callable[[RuntimeStats], int | None]) -> int:
        return sum(count(stat.runtime_stats) or 0 for stat in stats if stat.runtime_stats)

    return {
        "totalPartitionsWritten": len(metadata.stats),
        "totalFilesInsert": len(new),
        "totalFilesUpdate": len(stats) - len(new),
        "totalRecordsWritten": total(lambda stat: stat.num_writes),
        "totalUpdateRecordsWritten": total(lambda stat: stat.num_update_writes),
        "totalInsertRecordsWritten": total(lambda stat: stat.num_inserts),
        "totalRecordsDeleted": total(lambda stat: stat.num_deletes),
        "totalBytesWritten": total(lambda stat: stat.total_write_bytes),
        "totalScanTime": spent(lambda stats: stats.total_scan_time),
        "totalCreateTime": spent(lambda stats: stats.total_create_time),
        "totalUpsertTime": spent(lambda stats: stats.total_upsert_time),
        "totalCompactedRecordsUpdated": total(lambda stat: stat.total_updated_records_compacted),
        "totalLogFilesCompacted": total(lambda stat: stat.total_log_files_compacted),
        "totalLogFilesSize": total(lambda stat: stat.total_log_size_compacted),
    }


def pending_gauges(timeline: Timeline, without: str = "") -> dict[str, float]:
    """How many plans wait or are executed, by action; `without` has just completed."""
    return {
        name: sum(i.requested_at != without for i in timeline.pending(action))
        for action, name in _PENDING.items()
    }


def figure_gauges(name: str, figures: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    """Figures of completion and freshness: those of the commit itself begin with its name."""
    for key, value in figures.items():
        yield (key if "." in key else f"{name}.{key}"), value


# ------------------------------------------------------------------------------------------------
# A completed write, told as metrics.


def record_commit(
    transaction: Transaction,
    instant: Instant,
    metadata: CommitMetadata,
    options: Mapping[str, str],
    told: tuple[int, Mapping[str, float], int | None],
) -> None:
    """Tell of a write that has completed; `told` is when, its figures, and when it began."""
    writer, config = transaction.writer, transaction.snapshot.config
    meter = MetricsRecorder.create(writer.storage, writer.clock, options, config.name)
    if not meter.is_on:
        return
    at_ms, figures, began_ms = told
    name = name_of(instant.action, metadata.operation)
    took = {} if began_ms is None else {"duration": writer.clock.monotonic_ms() - began_ms}
    of_commit = {**commit_gauges(metadata), "commitTime": at_ms, **took}
    meter.gauge(
        [
            *((f"{name}.{key}", value) for key, value in of_commit.items()),
            *figure_gauges(name, figures),
            *pending_gauges(transaction.snapshot.timeline, instant.requested_at).items(),
        ]
    )
    meter.count(f"{name}.completed.counter")
    if writer.transaction.several_writers and metadata.operation not in SERVICE_OPERATIONS:
        meter.count("conflict_resolution.success.counter")


def record_rollback(meter: MetricsRecorder, storage: Storage, completed: Instant) -> None:
    """Tell of a rollback that has completed; not if storage does not answer any more."""
    if not meter.is_on:
        return
    with suppress(UnavailableError):
        found = load_rollback(load_snapshot(storage), completed)
        meter.gauge(
            [
                ("rollback.duration", found.took_ms),
                ("rollback.numFilesDeleted", found.files_deleted),
            ]
        )
        meter.count("rollback.completed.counter")


# ------------------------------------------------------------------------------------------------
# Figures of commits, told to whoever wants to hear them.


@runtime_checkable
class Reporter(Protocol):
    """Takes figures to some system of metrics."""

    def report(self, table: str, at_ms: int, values: Mapping[str, float]) -> None:
        """Take the figures of one commit of a table, which completed at `at_ms`."""
        ...


_reporters: list[Reporter] = []


def report_to(reporter: Reporter | MetricReporter) -> Callable[[], None]:
    """Tell a reporter of what this process does to tables; gives a function that ends it.

    One with a method `take` gets all metrics as values, one with `report` the figures of commits
    on tables that track event times.
    """
    if not isinstance(reporter, Reporter):
        return add_reporter(reporter)
    _reporters.append(reporter)

    def end() -> None:
        if reporter in _reporters:
            _reporters.remove(reporter)

    return end


def report(
    table: str,
    at_ms: int,
    values: Mapping[str, float],
    also: Callable[[str, int, Mapping[str, float]], object] | None,
) -> None:
    """Tell all reporters, and one that an option names; who fails is warned of, and no more."""
    for tell in (*(each.report for each in _reporters), *((also,) if also else ())):
        failure = call_user_function(tell, table, at_ms, values)
        if failure is not None:
            warnings.warn(f"a reporter failed: {failure}", RuntimeWarning, stacklevel=3)


def commit_figures(
    instant: Instant, commit: CommitMetadata, marks: Watermarks | None, zone: str
) -> tuple[int, dict[str, float]]:
    """When a commit completed, and its figures; of completion and freshness where it keeps them.

    `commitLatencyInMs` and `commitFreshnessInMs` are how long after its oldest and its newest
    event a commit that brought rows completed.
    """
    at_ms = round(parse_time(instant.completed_at or "", zone_of(zone)).timestamp() * 1000)
    figures: dict[str, float] = {}
    stats = commit.write_stats() if is_ingest(commit) else ()
    oldest = min((s.min_event_time for s in stats if s.min_event_time is not None), default=None)
    newest = max_known(*(s.max_event_time for s in stats))
    if oldest is not None and newest is not None:
        figures["commitLatencyInMs"] = at_ms - oldest
        figures["commitFreshnessInMs"] = at_ms - newest
    if marks is not None:
        figures |= {name: time for name, time in view_times(marks).items() if time is not None}
    return at_ms, figures


def view_times(marks: Watermarks) -> dict[str, int | None]:
    """Completion and freshness of both views, by the names under which they are published."""
    return {
        "snapshot.completion": marks.rt_completion,
        "snapshot.freshness": marks.rt_freshness,
        "read_optimized.completion": marks.ro_completion,
        "read_optimized.freshness": marks.ro_freshness,
    }
