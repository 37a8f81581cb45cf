"""One figure as a value, who takes such values, and the names of all that there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class MetricKind(StrEnum):
    """What the value of a metric means."""

    GAUGE = "gauge"  # how it is now
    COUNTER = "counter"  # how much is to be added


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure: the name is Hudi's where Hudi has it, with dots and without a prefix.

    `labels` say of what it is, the table first. `at_ms` is when it was so.
    """

    name: str
    kind: MetricKind
    value: float
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    at_ms: int = 0


class MetricReporter(Protocol):
    """Takes metrics to some system; who fails is warned of once, and no commit fails for it."""

    def take(self, metrics: Sequence[Metric]) -> None:
        """Take some metrics, all of one table and one moment."""
        ...


@dataclass(frozen=True, slots=True)
class MetricDescriptor:
    """A metric that there can be: its kind, what it tells, and its labels besides the table."""

    kind: MetricKind
    doc: str
    labels: tuple[str, ...] = ()


# Actions that write, under the names that their metrics begin with.
WRITE_NAMES = (
    "commit",
    "deltacommit",
    "replacecommit",
    "compaction",
    "logcompaction",
    "clustering",
)

_GAUGES_OF_WRITES = {
    "commitTime": "when it completed, in milliseconds since 1970",
    "duration": "how long it took, in milliseconds",
    "totalPartitionsWritten": "partitions that it wrote to",
    "totalFilesInsert": "files of new file groups",
    "totalFilesUpdate": "files of file groups that were there",
    "totalRecordsWritten": "rows in the files that it wrote",
    "totalUpdateRecordsWritten": "rows that the table had",
    "totalInsertRecordsWritten": "rows that are new",
    "totalRecordsDeleted": "rows that it deleted",
    "totalBytesWritten": "bytes that it wrote",
    "totalScanTime": "milliseconds spent on reading log files, over all tasks",
    "totalCreateTime": "milliseconds spent on new files, over all tasks",
    "totalUpsertTime": "milliseconds spent on updated files, over all tasks",
    "totalCompactedRecordsUpdated": "rows of log files that were folded in",
    "totalLogFilesCompacted": "log files that were folded in",
    "totalLogFilesSize": "bytes of log files that were folded in",
    "commitLatencyInMs": "how long after its oldest event it completed",
    "commitFreshnessInMs": "how long after its newest event it completed",
}


def _known_of_writes() -> dict[str, MetricDescriptor]:
    found = {}
    for action in WRITE_NAMES:
        for name, doc in _GAUGES_OF_WRITES.items():
            found[f"{action}.{name}"] = MetricDescriptor(MetricKind.GAUGE, f"last {action}: {doc}")
        found[f"{action}.completed.counter"] = MetricDescriptor(
            MetricKind.COUNTER, f"times that a {action} completed"
        )
    return found


def _gauge(doc: str, *labels: str) -> MetricDescriptor:
    return MetricDescriptor(MetricKind.GAUGE, doc, labels)


def _counter(doc: str, *labels: str) -> MetricDescriptor:
    return MetricDescriptor(MetricKind.COUNTER, doc, labels)


METRICS: dict[str, MetricDescriptor] = {
    **_known_of_writes(),
    "clean.duration": _gauge("how long the last clean took, in milliseconds"),
    "clean.numFilesDeleted": _gauge("files that the last clean deleted"),
    "clean.completed.counter": _counter("times that a clean completed"),
    "rollback.duration": _gauge("how long the last rollback took, in milliseconds"),
    "rollback.numFilesDeleted": _gauge("files that the last rollback deleted"),
    "rollback.completed.counter": _counter("times that a rollback completed"),
    "archive.duration": _gauge("how long the last archiving took, in milliseconds"),
    "archive.numInstantsArchived": _gauge("instants that the last archiving moved"),
    "archive.completed.counter": _counter("times that archiving completed"),
    "conflict_resolution.success.counter": _counter("writes that completed beside other writers"),
    "conflict_resolution.failure.counter": _counter("writes that lost against another writer"),
    "compaction.pendingCompactionInstantCount": _gauge("compactions that wait or are executed"),
    "clustering.pendingClusteringInstantCount": _gauge("clusterings that wait or are executed"),
    "clean.pendingCleanInstantCount": _gauge("cleans that wait or are executed"),
    "rollback.pendingRollbackInstantCount": _gauge("rollbacks that wait or are executed"),
    "snapshot.completion": _gauge("event time up to which the snapshot is complete, in ms"),
    "snapshot.freshness": _gauge("event time up to which the snapshot reaches, in ms"),
    "read_optimized.completion": _gauge("event time up to which base files are complete, in ms"),
    "read_optimized.freshness": _gauge("event time up to which base files reach, in ms"),
    "debt.logFiles": _gauge("log files that wait for a compaction"),
    "debt.logBytes": _gauge("bytes of log files that wait for a compaction"),
    "service.skipped": _counter("times that a service did nothing", "service", "reason"),
    "service.failed": _counter("times that a service failed", "service", "error"),
    "service.preempted": _counter("plans that gave way to a writer while executed", "service"),
    "plan.cancelled": _counter("plans that were cancelled by request"),
    "ttl.numPartitionsExpired": _counter("partitions that TTL took out"),
    "storage.calls": _counter("calls to storage of the driver, one for each path", "kind"),
    "ingest.lagInMs": _gauge("how far the table is behind the source", "source"),
    "ingest.objectsWaiting": _gauge("objects of the source that wait", "source"),
    "ingest.rows": _counter("rows that ingestion brought", "source"),
    "ingest.rounds": _counter("rounds of ingestion", "source", "outcome"),
    "catalog.syncs": _counter("times that a catalog was told", "catalog", "outcome"),
}
