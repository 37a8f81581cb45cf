"""Services and plans of the table at a path, for the command line and for the page."""

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
from lakewright.write.options import check_write_options

Options = Mapping[str, str]

# Who runs services from a process of their own has writers beside them.
_SEVERAL_WRITERS = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}


def with_optimistic_concurrency(options: Options) -> Options:
    """Options with which a process respects the writers beside it, unless they say otherwise."""
    return {**_SEVERAL_WRITERS, **options}


def default_services(config: TableConfig) -> tuple[str, ...]:
    """What every table of a kind needs now and then, in the order in which it is of most use."""
    merged = ("compaction",) if config.table_type is TableType.MERGE_ON_READ else ()
    return (*merged, "clean", "archive")


def service_runner(
    path: str, options: Options, engine: Callable[[], Engine] | None = None
) -> ServiceRunner:
    """What runs services on the table at a path; option names are checked."""
    known = SYNC_KEYS | service_keys() | OWN_OPTIONS | added_options()
    checked = check_write_options(table_options(options), also=known)
    for key in checked.ignored:
        warnings.warn(f"option {key} has no effect on services", stacklevel=2)
    storage = with_metrics(storage_at(path, options), checked.values)
    return ServiceRunner(storage, SystemClock(), engine or _no_engine, checked.values)


def cancel_plan(
    path: str, options: Options, instant: InstantTime, *, user: str, reason: str, wait_s: float
) -> Document:
    """Take a plan back, or ask for it."""
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
    raise AssertionError("a plan is only looked at")
