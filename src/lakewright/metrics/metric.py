"""Metrics as values, the reporter protocol, and the list of all metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class MetricKind(StrEnum):
    """What the value of a metric means."""

    GAUGE = "gauge"  # the current value
    COUNTER = "counter"  # an increment


@dataclass(frozen=True, slots=True)
class Metric:
    """The value of a metric; the name is Hudi's if Hudi has it, with dots and without a prefix.

    `labels` include the table. `at_ms` is when the value was taken.
    """

    name: str
    kind: MetricKind
    value: float
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    at_ms: int = 0


class MetricReporter(Protocol):
    """Publishes metrics to some system; a failure is one warning, and no commit fails for it."""

    def take(self, metrics: Sequence[Metric]) -> None:
        """Publish metrics, all of one table and one time."""
        ...


@dataclass(frozen=True, slots=True)
class MetricDescriptor:
    """A metric: its kind, its description, and its labels besides the table."""

    kind: MetricKind
    doc: str
    labels: tuple[str, ...] = ()


# The prefixes of the metrics of writes and services.
WRITE_NAMES = (
    "commit",
    "deltacommit",
    "replacecommit",
    "compaction",
    "logcompaction",
    "clustering",
)

_WRITE_GAUGES = {
    "commitTime": "when it completed, in milliseconds since 1970",
    "duration": "how long it took, in milliseconds",
    "totalPartitionsWritten": "partitions that it wrote to",
    "totalFilesInsert": "files of new file groups",
    "totalFilesUpdate": "files of existing file groups",
    "totalRecordsWritten": "rows in the files that it wrote",
    "totalUpdateRecordsWritten": "updated rows",
    "totalInsertRecordsWritten": "inserted rows",
    "totalRecordsDeleted": "rows that it deleted",
    "totalBytesWritten": "bytes that it wrote",
    "totalScanTime": "milliseconds spent on reading log files, over all tasks",
    "totalCreateTime": "milliseconds spent on new files, over all tasks",
    "totalUpsertTime": "milliseconds spent on updated files, over all tasks",
    "totalCompactedRecordsUpdated": "rows of log files that were compacted",
    "totalLogFilesCompacted": "log files that were compacted",
    "totalLogFilesSize": "bytes of log files that were compacted",
    "commitLatencyInMs": "how long after its oldest event it completed",
    "commitFreshnessInMs": "how long after its newest event it completed",
}


def _write_metrics() -> dict[str, MetricDescriptor]:
    metrics = {}
    for action in WRITE_NAMES:
        for name, doc in _WRITE_GAUGES.items():
            metrics[f"{action}.{name}"] = MetricDescriptor(
                MetricKind.GAUGE, f"last {action}: {doc}"
            )
        metrics[f"{action}.completed.counter"] = MetricDescriptor(
            MetricKind.COUNTER, f"times that a {action} completed"
        )
    return metrics


def _gauge(doc: str, *labels: str) -> MetricDescriptor:
    return MetricDescriptor(MetricKind.GAUGE, doc, labels)


def _counter(doc: str, *labels: str) -> MetricDescriptor:
    return MetricDescriptor(MetricKind.COUNTER, doc, labels)


METRICS: dict[str, MetricDescriptor] = {
    **_write_metrics(),
    "clean.duration": _gauge("how long the last clean took, in milliseconds"),
    "clean.numFilesDeleted": _gauge("files that the last clean deleted"),
    "clean.completed.counter": _counter("times that a clean completed"),
    "rollback.duration": _gauge("how long the last rollback took, in milliseconds"),
    "rollback.numFilesDeleted": _gauge("files that the last rollback deleted"),
    "rollback.completed.counter": _counter("times that a rollback completed"),
    "archive.duration": _gauge("how long the last archiving took, in milliseconds"),
    "archive.numInstantsArchived": _gauge("instants that the last archiving moved"),
    "archive.completed.counter": _counter("times that archiving completed"),
    "conflict_resolution.success.counter": _counter(
        "writes that completed with several writers enabled"
    ),
    "conflict_resolution.failure.counter": _counter("writes that failed with a conflict"),
    "compaction.pendingCompactionInstantCount": _gauge("pending compactions"),
    "clustering.pendingClusteringInstantCount": _gauge("pending clusterings"),
    "clean.pendingCleanInstantCount": _gauge("pending cleans"),
    "rollback.pendingRollbackInstantCount": _gauge("pending rollbacks"),
    "snapshot.completion": _gauge("event time up to which the snapshot is complete, in ms"),
    "snapshot.freshness": _gauge("event time up to which the snapshot reaches, in ms"),
    "read_optimized.completion": _gauge("event time up to which base files are complete, in ms"),
    "read_optimized.freshness": _gauge("event time up to which base files reach, in ms"),
    "snapshot.watermark": _gauge("watermark of the snapshot, in ms of event time"),
    "read_optimized.watermark": _gauge("watermark of the base files, in ms of event time"),
    "watermark.lateness": _gauge("lateness that the watermark allows, in ms"),
    "watermark.lateRows": _gauge("rows that came at or before the watermark"),
    "debt.logFiles": _gauge("uncompacted log files"),
    "debt.logBytes": _gauge("bytes of uncompacted log files"),
    "service.skipped": _counter("times that a service did nothing", "service", "reason"),
    "service.failed": _counter("times that a service failed", "service", "error"),
    "service.preempted": _counter("plans that gave way to a writer while executed", "service"),
    "plan.cancelled": _counter("plans that were cancelled by request"),
    "ttl.numPartitionsExpired": _counter("partitions that TTL deleted"),
    "storage.calls": _counter("calls to storage of the driver, one for each path", "kind"),
    "ingest.lagInMs": _gauge("how far the table is behind the source", "source"),
    "ingest.objectsWaiting": _gauge("objects of the source that are not ingested yet", "source"),
    "ingest.rows": _counter("rows that ingestion wrote", "source"),
    "ingest.rounds": _counter("rounds of ingestion", "source", "outcome"),
    "catalog.syncs": _counter("times that a catalog was synced", "catalog", "outcome"),
}
