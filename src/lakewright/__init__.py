"""Create, read, write and keep in repair lakehouse tables in the Apache Hudi format.

The names below are loaded when they are first used: what needs no Spark does not wait for it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakewright.core.freshness import Freshness
    from lakewright.core.instant import Instant, State
    from lakewright.core.meta_columns import META_COLUMNS
    from lakewright.core.plans import Skip
    from lakewright.errors import (
        ConflictError,
        CorruptError,
        InvalidError,
        LakewrightError,
        UnavailableError,
        UnsupportedError,
    )
    from lakewright.interfaces.api import Changes, Table
    from lakewright.interfaces.ingest_rounds import IngestRound
    from lakewright.interfaces.ingesting import ingest
    from lakewright.interfaces.install import install, uninstall
    from lakewright.interfaces.opening import create
    from lakewright.interfaces.opening import open_table as open
    from lakewright.table.waiting_logs import HeldBack
    from lakewright.write.commit import Commit
    from lakewright.write.metrics.metric import Metric, MetricReporter
    from lakewright.write.reporting import Reporter, report_to

# Spark starts its Python workers with the first `python3` on PATH, where this library is not if it
# was installed into a virtual environment; it must be told before a session starts.
if sys.prefix != sys.base_prefix:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

__all__ = [
    "META_COLUMNS",
    "Changes",
    "Commit",
    "ConflictError",
    "CorruptError",
    "Freshness",
    "HeldBack",
    "IngestRound",
    "Instant",
    "InvalidError",
    "LakewrightError",
    "Metric",
    "MetricReporter",
    "Reporter",
    "Skip",
    "State",
    "Table",
    "UnavailableError",
    "UnsupportedError",
    "create",
    "ingest",
    "install",
    "open",
    "report_to",
    "uninstall",
]

_HOMES = {
    "Changes": "interfaces.api",
    "Commit": "write.commit",
    "META_COLUMNS": "core.meta_columns",
    "Freshness": "core.freshness",
    "HeldBack": "table.waiting_logs",
    "IngestRound": "interfaces.ingest_rounds",
    "Instant": "core.instant",
    "Metric": "write.metrics.metric",
    "MetricReporter": "write.metrics.metric",
    "Reporter": "write.reporting",
    "Skip": "core.plans",
    "State": "core.instant",
    "Table": "interfaces.api",
    "create": "interfaces.opening",
    "ingest": "interfaces.ingesting",
    "install": "interfaces.install",
    "open": "interfaces.opening:open_table",
    "report_to": "write.reporting",
    "uninstall": "interfaces.install",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, original = _HOMES.get(name, "errors").partition(":")
    return getattr(import_module(f"{__name__}.{module}"), original or name)
