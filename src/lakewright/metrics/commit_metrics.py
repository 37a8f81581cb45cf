"""The metrics of commits and rollbacks, by Hudi's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from lakewright.clock import zone_of
from lakewright.errors import UnavailableError
from lakewright.metrics.meter import MetricsRecorder
from lakewright.model.commit_metadata import (
    SERVICE_OPERATIONS,
    CommitMetadata,
    RuntimeStats,
    WriteStat,
)
from lakewright.model.freshness import FreshnessRecord, is_ingest, max_known
from lakewright.model.instant import Action, Instant, parse_time
from lakewright.model.timeline import Timeline
from lakewright.storage.base import Storage
from lakewright.table.rollback import load_rollback
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import Transaction

_SERVICE_NAMES = {"COMPACT": "compaction", "LOG_COMPACT": "logcompaction", "CLUSTER": "clustering"}
_NO_PREVIOUS_COMMIT = (None, "null")
_PENDING = {
    Action.COMPACTION: "compaction.pendingCompactionInstantCount",
    Action.CLUSTERING: "clustering.pendingClusteringInstantCount",
    Action.CLEAN: "clean.pendingCleanInstantCount",
    Action.ROLLBACK: "rollback.pendingRollbackInstantCount",
}


def name_of(action: str, operation: str | None) -> str:
    """Return the prefix of a completed write's metrics: the action, or the service."""
    return _SERVICE_NAMES.get(operation or "", action)


def commit_gauges(metadata: CommitMetadata) -> dict[str, float]:
    """Return the gauges of a write, without their prefix."""
    stats = metadata.write_stats()
    new = [stat for stat in stats if stat.prev_commit in _NO_PREVIOUS_COMMIT]

    def total(count: Callable[[WriteStat], int | None]) -> int:
        return sum(count(stat) or 0 for stat in stats)

    def total_time(count: Callable[[RuntimeStats], int | None]) -> int:
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
        "totalScanTime": total_time(lambda stats: stats.total_scan_time),
        "totalCreateTime": total_time(lambda stats: stats.total_create_time),
        "totalUpsertTime": total_time(lambda stats: stats.total_upsert_time),
        "totalCompactedRecordsUpdated": total(lambda stat: stat.total_updated_records_compacted),
        "totalLogFilesCompacted": total(lambda stat: stat.total_log_files_compacted),
        "totalLogFilesSize": total(lambda stat: stat.total_log_size_compacted),
    }


def pending_gauges(timeline: Timeline, without: str = "") -> dict[str, float]:
    """Return the number of pending plans by action; `without` has just completed."""
    return {
        name: sum(i.requested_at != without for i in timeline.pending(action))
        for action, name in _PENDING.items()
    }


def figure_gauges(name: str, figures: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    """Return completion and freshness as gauges; figures of the commit itself get its prefix."""
    for key, value in figures.items():
        yield (key if "." in key else f"{name}.{key}"), value


def record_commit(
    transaction: Transaction,
    instant: Instant,
    metadata: CommitMetadata,
    options: Mapping[str, str],
    measurements: tuple[int, Mapping[str, float], int | None],
) -> None:
    """Record the metrics of a completed write.

    `measurements` is its completion time, its figures, and when it began.
    """
    writer, config = transaction.writer, transaction.snapshot.config
    recorder = MetricsRecorder.create(writer.storage, writer.clock, options, config.name)
    if not recorder.is_on:
        return
    completed_ms, figures, began_ms = measurements
    name = name_of(instant.action, metadata.operation)
    duration = {} if began_ms is None else {"duration": writer.clock.monotonic_ms() - began_ms}
    gauges = {**commit_gauges(metadata), "commitTime": completed_ms, **duration}
    recorder.gauge(
        [
            *((f"{name}.{key}", value) for key, value in gauges.items()),
            *figure_gauges(name, figures),
            *pending_gauges(transaction.snapshot.timeline, instant.requested_at).items(),
        ]
    )
    recorder.count(f"{name}.completed.counter")
    if writer.transaction.several_writers and metadata.operation not in SERVICE_OPERATIONS:
        recorder.count("conflict_resolution.success.counter")


def record_rollback(meter: MetricsRecorder, storage: Storage, completed: Instant) -> None:
    """Record the metrics of a completed rollback, unless storage is unavailable."""
    if not meter.is_on:
        return
    with suppress(UnavailableError):
        rollback = load_rollback(load_snapshot(storage), completed)
        meter.gauge(
            [
                ("rollback.duration", rollback.took_ms),
                ("rollback.numFilesDeleted", rollback.files_deleted),
            ]
        )
        meter.count("rollback.completed.counter")


def commit_figures(
    instant: Instant, commit: CommitMetadata, freshness: FreshnessRecord | None, zone: str
) -> tuple[int, dict[str, float]]:
    """Return when a commit completed, and its figures; with a record, also those of both views.

    `commitLatencyInMs` and `commitFreshnessInMs` are how long after its oldest and its newest event
    a commit that added rows completed.
    """
    at_ms = round(parse_time(instant.completed_at or "", zone_of(zone)).timestamp() * 1000)
    figures: dict[str, float] = {}
    stats = commit.write_stats() if is_ingest(commit) else ()
    oldest = min((s.min_event_time for s in stats if s.min_event_time is not None), default=None)
    newest = max_known(*(s.max_event_time for s in stats))
    if oldest is not None and newest is not None:
        figures["commitLatencyInMs"] = at_ms - oldest
        figures["commitFreshnessInMs"] = at_ms - newest
    if freshness is not None:
        figures |= {name: time for name, time in view_times(freshness).items() if time is not None}
    return at_ms, figures


def view_times(freshness: FreshnessRecord) -> dict[str, int | None]:
    """Return completion and freshness of both views, by their published names.

    The names with `watermark` are there if the table has a lateness.
    """
    watermarks, lateness = freshness.watermarks, freshness.lateness_ms
    times = {
        "snapshot.completion": watermarks.rt_completion,
        "snapshot.freshness": watermarks.rt_freshness,
        "read_optimized.completion": watermarks.ro_completion,
        "read_optimized.freshness": watermarks.ro_freshness,
    }
    if lateness is None:
        return times
    return {
        **times,
        "snapshot.watermark": watermarks.rt_watermark(lateness),
        "read_optimized.watermark": watermarks.ro_watermark(lateness),
        "watermark.lateness": lateness,
        "watermark.lateRows": watermarks.late_rows,
    }
