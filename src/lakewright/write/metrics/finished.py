"""A completed write, told as metrics."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from lakewright.core.commits import SERVICE_OPERATIONS, CommitMetadata
from lakewright.core.instant import Instant
from lakewright.errors import UnavailableError
from lakewright.storage.base import Storage
from lakewright.table.rollback import load_rollback
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import Transaction
from lakewright.write.metrics.commits import (
    commit_gauges,
    figure_gauges,
    name_of,
    pending_gauges,
)
from lakewright.write.metrics.meter import Meter


def tell_commit(
    transaction: Transaction,
    instant: Instant,
    metadata: CommitMetadata,
    options: Mapping[str, str],
    told: tuple[int, Mapping[str, float], int | None],
) -> None:
    """Tell of a write that has completed; `told` is when, its figures, and when it began."""
    writer, config = transaction.writer, transaction.snapshot.config
    meter = Meter.of(writer.storage, writer.clock, options, config.name)
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


def tell_rollback(meter: Meter, storage: Storage, completed: Instant) -> None:
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
