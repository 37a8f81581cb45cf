"""What a table owes and how fresh it is: documents, which `printing.py` shows."""

from __future__ import annotations

from dataclasses import asdict

from lakewright.cli.printing import Document
from lakewright.client.documents import debt_document
from lakewright.client.service_client import Options, service_runner
from lakewright.services.compaction_debt import load_debt
from lakewright.table.freshness_report import (
    freshness_document,
    load_blocking_log_files,
    load_freshness,
    wait_until_complete,
)
from lakewright.table.snapshot import load_snapshot

_MOST_HELD = 20
_POLL_S = 5.0


def show_debt(path: str, options: Options) -> Document:
    """What a table owes."""
    runner = service_runner(path, options)
    owed = load_debt(runner.planning_context(load_snapshot(runner.storage)))
    return {"table": runner.storage.root, **debt_document(owed)}


def show_freshness(
    path: str,
    options: Options,
    *,
    holding: bool,
    partitions: bool,
    wait: tuple[str, str, float] | None,
) -> Document:
    """How complete and how fresh a table is; `wait` for an event time, of a view, so long."""
    runner = service_runner(path, options)
    storage, clock = runner.storage, runner.clock
    if wait is not None:
        time, view, timeout = wait
        found = wait_until_complete(storage, clock, time, view=view, timeout=timeout, poll=_POLL_S)
    else:
        found = load_freshness(storage, clock, runner.options)
    document = {
        "table": storage.root,
        **freshness_document(found, partitions=partitions),
    }
    if holding:
        document["holding_back"] = [
            asdict(each) for each in load_blocking_log_files(storage, _MOST_HELD)
        ]
    return document
