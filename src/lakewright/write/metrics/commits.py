"""The figures of a commit, by Hudi's names. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from lakewright.core.commits import CommitMetadata, RuntimeStats, WriteStat
from lakewright.core.timeline import Timeline

_SERVICES = {"COMPACT": "compaction", "LOG_COMPACT": "logcompaction", "CLUSTER": "clustering"}
_NEW_GROUP = (None, "null")
_PENDING = {
    "compaction": "compaction.pendingCompactionInstantCount",
    "clustering": "clustering.pendingClusteringInstantCount",
    "clean": "clean.pendingCleanInstantCount",
    "rollback": "rollback.pendingRollbackInstantCount",
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
