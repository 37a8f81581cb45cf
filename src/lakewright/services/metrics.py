"""Metrics of table services: skipped runs and their reasons, failures, compaction debt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from lakewright.errors import ConflictError, LakewrightError, kind_of
from lakewright.metrics.meter import MetricsRecorder
from lakewright.model.commit_metadata import DELETE_PARTITION, CleanMetadata
from lakewright.model.plans import Skip
from lakewright.services.base import PlanningContext
from lakewright.services.compaction_debt import load_debt
from lakewright.write.writer import Commit

NOT_DUE = "not_due"
_NOTHING_TO_DO = "nothing_to_do"


def not_due(skip: Skip) -> Skip:
    """Return the Skip with the kind that says that a trigger, not a planner, decided it."""
    return replace(skip, kind=NOT_DUE)


@contextmanager
def record_failures(
    meter: MetricsRecorder, service: str, *, cancellable: bool = False
) -> Iterator[None]:
    """Count an execution that fails, and whether it was preempted."""
    try:
        yield
    except LakewrightError as error:
        if cancellable and isinstance(error, ConflictError):
            meter.count("service.preempted", service=service)
        meter.count("service.failed", service=service, error=kind_of(error))
        raise


def record_outcome(
    meter: MetricsRecorder, service: str, outcome: Commit | Skip, took_ms: int = 0
) -> Commit | Skip:
    """Record what a service did, or why it did nothing; returns `outcome` unchanged."""
    if isinstance(outcome, Skip):
        meter.count("service.skipped", service=service, reason=outcome.kind or _NOTHING_TO_DO)
    elif service == "archive":
        meter.gauge([("archive.duration", took_ms), ("archive.numInstantsArchived", outcome.files)])
        meter.count("archive.completed.counter")
    elif service == "ttl" and outcome.operation == DELETE_PARTITION:
        meter.count("ttl.numPartitionsExpired", len(outcome.partitions))
    return outcome


def record_debt(meter: MetricsRecorder, load_context: Callable[[], PlanningContext]) -> None:
    """Record how many log files are uncompacted, if enabled; nothing if that cannot be loaded."""
    if not meter.is_on or not meter.settings.debt:
        return
    with suppress(LakewrightError):
        debt = load_debt(load_context())
        meter.gauge([("debt.logFiles", debt.log_files), ("debt.logBytes", debt.log_bytes)])


def record_clean(meter: MetricsRecorder, result: CleanMetadata) -> None:
    """Record what a clean did."""
    meter.gauge(
        [("clean.duration", result.took_ms), ("clean.numFilesDeleted", result.files_deleted)]
    )
    meter.count("clean.completed.counter")
