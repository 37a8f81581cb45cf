"""What `lakewright sync` does: it gives a document, which `printing.py` shows."""

from __future__ import annotations

from dataclasses import asdict

from lakewright.catalog.sync import SyncResult, sync
from lakewright.cli.printing import Document
from lakewright.client.service_client import Options, service_runner
from lakewright.clock import SystemClock
from lakewright.errors import InvalidError
from lakewright.model.plans import Skip


def sync_at(path: str, options: Options) -> Document:
    """Tell a catalog of the table at a path."""
    runner = service_runner(path, options)
    done = sync(runner.storage, SystemClock(), runner.options, _no_session)
    if isinstance(done, Skip):
        return {"table": runner.storage.root, "skipped": done.reason, "synced": []}
    return {"table": runner.storage.root, "synced": [asdict(each) for each in done]}


def _no_session(*_: object) -> tuple[SyncResult, ...]:
    raise InvalidError(
        "name the catalog: --metastore-uris thrift://host:9083, or --mode glue; that of a Spark "
        "session is told by Table.sync, or by writes with hoodie.datasource.meta.sync.enable"
    )
