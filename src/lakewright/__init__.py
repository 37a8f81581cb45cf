"""Create, read, write and maintain Apache Hudi tables from PySpark.

Public names are imported on first use, so that code that needs no Spark does not import it.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakewright.api.factory import create
    from lakewright.api.factory import open_table as open
    from lakewright.api.table import Changes, Table
    from lakewright.catalog.sync import SyncResult
    from lakewright.client.stream_sink import StreamSink
    from lakewright.client.ttl import TableTtl, TtlConfig
    from lakewright.errors import (
        ConflictError,
        CorruptError,
        InvalidError,
        LakewrightError,
        UnavailableError,
        UnsupportedError,
    )
    from lakewright.ingestion.ingester import IngestResult
    from lakewright.ingestion.loop import ingest
    from lakewright.ingestion.source import Source
    from lakewright.installation import install, uninstall
    from lakewright.metrics.meter import report_to
    from lakewright.metrics.metric import Metric, MetricReporter
    from lakewright.model.freshness import Freshness
    from lakewright.model.instant import Instant, State
    from lakewright.model.plans import CleanPlan, ClusteringPlan, CompactionPlan, Skip
    from lakewright.model.schema import META_COLUMNS
    from lakewright.model.table_config import TableConfig
    from lakewright.model.watermark import CompletionDefinition
    from lakewright.services.archiving.planner import ArchivePlan
    from lakewright.services.compaction_debt import CompactionDebt
    from lakewright.services.runner import ServiceRunner
    from lakewright.services.ttl.planner import TtlDecision, TtlPlan
    from lakewright.table.doctor.findings import Diagnosis
    from lakewright.table.freshness_report import Catalog
    from lakewright.table.rollback import RollbackInfo
    from lakewright.table.snapshot import Snapshot
    from lakewright.table.uncompacted_logs import BlockingLogFile
    from lakewright.write.writer import Commit

# Spark starts its Python workers with the first `python3` on PATH. In a virtual environment that
# interpreter does not have this library, and the variable must be set before a session starts.
if sys.prefix != sys.base_prefix:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

__all__ = [
    "META_COLUMNS",
    "ArchivePlan",
    "BlockingLogFile",
    "Catalog",
    "Changes",
    "CleanPlan",
    "ClusteringPlan",
    "Commit",
    "CompactionDebt",
    "CompactionPlan",
    "CompletionDefinition",
    "ConflictError",
    "CorruptError",
    "Diagnosis",
    "Freshness",
    "IngestResult",
    "Instant",
    "InvalidError",
    "LakewrightError",
    "Metric",
    "MetricReporter",
    "RollbackInfo",
    "ServiceRunner",
    "Skip",
    "Snapshot",
    "Source",
    "State",
    "StreamSink",
    "SyncResult",
    "Table",
    "TableConfig",
    "TableTtl",
    "TtlConfig",
    "TtlDecision",
    "TtlPlan",
    "UnavailableError",
    "UnsupportedError",
    "create",
    "ingest",
    "install",
    "open",
    "report_to",
    "uninstall",
]

_MODULES = {
    "ArchivePlan": "services.archiving.planner",
    "BlockingLogFile": "table.uncompacted_logs",
    "Catalog": "table.freshness_report",
    "Changes": "api.table",
    "CleanPlan": "model.plans",
    "ClusteringPlan": "model.plans",
    "Commit": "write.writer",
    "CompactionDebt": "services.compaction_debt",
    "CompactionPlan": "model.plans",
    "Diagnosis": "table.doctor.findings",
    "Freshness": "model.freshness",
    "CompletionDefinition": "model.watermark",
    "IngestResult": "ingestion.ingester",
    "Instant": "model.instant",
    "META_COLUMNS": "model.schema",
    "Metric": "metrics.metric",
    "MetricReporter": "metrics.metric",
    "RollbackInfo": "table.rollback",
    "ServiceRunner": "services.runner",
    "Skip": "model.plans",
    "Snapshot": "table.snapshot",
    "Source": "ingestion.source",
    "State": "model.instant",
    "StreamSink": "client.stream_sink",
    "SyncResult": "catalog.sync",
    "Table": "api.table",
    "TableConfig": "model.table_config",
    "TableTtl": "client.ttl",
    "TtlConfig": "client.ttl",
    "TtlDecision": "services.ttl.planner",
    "TtlPlan": "services.ttl.planner",
    "create": "api.factory",
    "ingest": "ingestion.loop",
    "install": "installation",
    "open": "api.factory:open_table",
    "report_to": "metrics.meter",
    "uninstall": "installation",
}

# Deprecated names of version 0.1, to be removed in version 0.3.
_RENAMED = {
    "HeldBack": "BlockingLogFile",
    "IngestRound": "IngestResult",
    "Reporter": "MetricReporter",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    if name in _RENAMED:
        current = _RENAMED[name]
        warnings.warn(f"lakewright.{name} is now lakewright.{current}", DeprecationWarning, 2)
        return __getattr__(current)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, original = _MODULES.get(name, "errors").partition(":")
    return getattr(import_module(f"{__name__}.{module}"), original or name)
