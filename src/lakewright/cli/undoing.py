"""What rollback, savepoint and restore do: they give documents, which `printing.py` shows."""

from __future__ import annotations

from lakewright.cli.printing import Document
from lakewright.client.command_options import storage_at
from lakewright.client.service_client import Options, runner_at, several_writers
from lakewright.model.instant import Instant
from lakewright.table.savepoint import give_up_savepoint, restore_to, save_point, take_back
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import Writer


def require_table(path: str, options: Options) -> None:
    """InvalidError where there is no table: before anybody is asked whether it may change."""
    load_snapshot(storage_at(path, options))


def roll_back(path: str, options: Options, instant: str, *, force: bool = False) -> Document:
    """Take back a write; with `force` also one whose completed file is damaged."""
    done = take_back(_writer(path, options), instant, force=force)
    return _told(path, "taken_back", instant, done)


def save(path: str, options: Options, instant: str, *, user: str, comment: str) -> Document:
    """Keep a state of the table."""
    made = save_point(_writer(path, options), instant, user=user, comment=comment)
    return _told(path, "saved", instant, made)


def give_up(path: str, options: Options, instant: str) -> Document:
    """Give a savepoint up."""
    give_up_savepoint(_writer(path, options), instant)
    return {"table": path, "given_up": instant}


def restore(path: str, options: Options, instant: str) -> Document:
    """Take the table back to a savepoint."""
    return _told(path, "restored_to", instant, restore_to(_writer(path, options), instant))


def _writer(path: str, options: Options) -> Writer:
    return runner_at(path, several_writers(options)).writer


def _told(path: str, what: str, target: str, done: Instant) -> Document:
    return {
        "table": path,
        what: target,
        "action": done.action,
        "instant": done.requested_at,
        "completed_at": done.completed_at,
    }
