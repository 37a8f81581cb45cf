"""What rollback, savepoint and restore do: they give documents, which `printing.py` shows."""

from __future__ import annotations

from lakewright.cli.printing import Document
from lakewright.client.command_options import storage_at
from lakewright.client.service_client import Options, service_runner, with_optimistic_concurrency
from lakewright.model.instant import Instant
from lakewright.table import savepoint
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import TransactionManager


def require_table(path: str, options: Options) -> None:
    """InvalidError where there is no table: before anybody is asked whether it may change."""
    load_snapshot(storage_at(path, options))


def rollback(path: str, options: Options, instant: str, *, force: bool = False) -> Document:
    """Take back a write; with `force` also one whose completed file is damaged."""
    done = savepoint.rollback_instant(_writer(path, options), instant, force=force)
    return _document(path, "taken_back", instant, done)


def create_savepoint(
    path: str, options: Options, instant: str, *, user: str, comment: str
) -> Document:
    """Keep a state of the table."""
    made = savepoint.create_savepoint(_writer(path, options), instant, user=user, comment=comment)
    return _document(path, "saved", instant, made)


def delete_savepoint(path: str, options: Options, instant: str) -> Document:
    """Give a savepoint up."""
    savepoint.delete_savepoint(_writer(path, options), instant)
    return {"table": path, "given_up": instant}


def restore(path: str, options: Options, instant: str) -> Document:
    """Take the table back to a savepoint."""
    return _document(
        path, "restored_to", instant, savepoint.restore(_writer(path, options), instant)
    )


def _writer(path: str, options: Options) -> TransactionManager:
    return service_runner(path, with_optimistic_concurrency(options)).writer


def _document(path: str, what: str, target: str, done: Instant) -> Document:
    return {
        "table": path,
        what: target,
        "action": done.action,
        "instant": done.requested_at,
        "completed_at": done.completed_at,
    }
