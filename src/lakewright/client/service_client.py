"""Services and plans of the table at a path, for the command line and the web UI."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from lakewright.catalog.options import SYNC_KEYS
from lakewright.client.command_options import storage_at, table_options
from lakewright.client.documents import Document
from lakewright.clock import SystemClock
from lakewright.engine.base import Engine
from lakewright.metrics.meter import with_metrics
from lakewright.model.instant import InstantTime
from lakewright.model.table_config import TableConfig, TableType
from lakewright.options import OWN_OPTIONS, added_options
from lakewright.services.registry import service_keys
from lakewright.services.runner import ServiceRunner
from lakewright.table.options import with_optimistic_concurrency
from lakewright.write.options import check_write_options

Options = Mapping[str, str]


def default_services(config: TableConfig) -> tuple[str, ...]:
    """Return the services that every table of a type needs, most useful first."""
    compaction = ("compaction",) if config.table_type is TableType.MERGE_ON_READ else ()
    return (*compaction, "clean", "archive")


def service_runner(
    path: str, options: Options, engine: Callable[[], Engine] | None = None
) -> ServiceRunner:
    """Return the service runner of the table at a path, after a check of all option names."""
    known_keys = SYNC_KEYS | service_keys() | OWN_OPTIONS | added_options()
    checked = check_write_options(table_options(options), also=known_keys)
    for key in checked.ignored:
        warnings.warn(f"option {key} has no effect on services", stacklevel=2)
    storage = with_metrics(storage_at(path, options), checked.values)
    return ServiceRunner(storage, SystemClock(), engine or _no_engine, checked.values)


def cancel_plan(
    path: str, options: Options, instant: InstantTime, *, user: str, reason: str, wait_s: float
) -> Document:
    """Cancel a plan, or request its cancellation if a process is executing it."""
    runner = service_runner(path, with_optimistic_concurrency(options))
    rollback = runner.cancel(instant, user=user, reason=reason, wait_s=wait_s)
    return {
        "table": runner.storage.root,
        "instant": instant,
        "result": "removed" if rollback.is_completed else "asked to stop",
        "rollback": rollback.requested_at,
        "state": rollback.state,
    }


def _no_engine() -> Engine:
    raise AssertionError("no engine is needed to preview or cancel a plan")
