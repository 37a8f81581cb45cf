"""Procedures for the timeline, savepoints, and rollbacks of writes and table services."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakewright.client.write_client import WriteClient
from lakewright.clock import zone_of
from lakewright.errors import InvalidError
from lakewright.model.instant import REWRITES, Action, Instant, State, parse_instant
from lakewright.sql.procedures.base import (
    ARCHIVED,
    FILTER,
    INSTANT,
    LIMIT,
    NAME,
    PATH,
    TABLE,
    Arguments,
    Parameter,
    Procedure,
    Rows,
    row_limit,
)
from lakewright.table.snapshot import Snapshot

if TYPE_CHECKING:
    from lakewright.api.table import Table

# Real Hudi's columns; it knows no aborted plans.
_SHOWN_STATES = (State.REQUESTED, State.INFLIGHT, State.COMPLETED)
_SAVEPOINT = Parameter("instant_time", about="the instant of a savepoint, by default the newest")


def _show_timeline(table: Table, arguments: Arguments) -> Rows:
    snapshot = table.snapshot()
    first, last = arguments["startTime"] or "", arguments["endTime"] or "9"
    active = [("ACTIVE", instant) for instant in snapshot.timeline]
    archived = [("ARCHIVED", i) for i in snapshot.archived] if arguments["showArchived"] else []
    instants = [entry for entry in (*archived, *active) if first <= entry[1].requested_at <= last]
    instants.sort(key=lambda entry: entry[1].action)
    instants.sort(key=lambda entry: entry[1].requested_at, reverse=True)
    times = _modification_times(snapshot)
    targets = {entry.instant.requested_at: entry.target for entry in table.rollbacks()}
    rows: Rows = []
    for timeline, instant in instants[: row_limit(arguments)]:
        action = instant.completed_action
        target = targets.get(instant.requested_at) if instant.action == Action.ROLLBACK else None
        rows.append(
            (
                instant.requested_at,
                instant.action,
                instant.state.value,
                *(times.get((instant.requested_at, action, state)) for state in _SHOWN_STATES),
                timeline,
                None if target is None else f"Rolled back: {target.requested_at}",
            )
        )
    return rows


def _modification_times(snapshot: Snapshot) -> dict[tuple[str, str, State], str]:
    """Return the modification times of the timeline files, by instant, action and state."""
    zone = zone_of(snapshot.config.timeline_zone)
    times: dict[tuple[str, str, State], str] = {}
    for file in snapshot.storage.list_files(snapshot.config.timeline_folder):
        instant = parse_instant(file.name)
        if instant is not None:
            modified = datetime.fromtimestamp(file.modified_ms / 1000, UTC).astimezone(zone)
            key = (instant.requested_at, instant.completed_action, instant.state)
            times[key] = modified.strftime("%m-%d %H:%M:%S")
    return times


def _show_savepoints(table: Table, arguments: Arguments) -> Rows:
    savepoints = sorted(table.snapshot().timeline.savepointed, reverse=True)
    return [(at,) for at in savepoints[: row_limit(arguments)]]


def _create_savepoint(table: Table, arguments: Arguments) -> Rows:
    at = arguments["commit_time"]
    if at is None:
        writes = table.snapshot().timeline.completed_writes
        if not writes:
            raise InvalidError("there is no completed write to save", path=table.path)
        at = writes[-1].requested_at
    table.savepoint(at, user=arguments["user"], comment=arguments["comments"])
    return [(True,)]


def _savepoint(table: Table, arguments: Arguments) -> str:
    """Return the instant of the given savepoint, or of the newest one."""
    if arguments["instant_time"] is not None:
        return str(arguments["instant_time"])
    savepoints = table.snapshot().timeline.savepointed
    if not savepoints:
        raise InvalidError("the table has no savepoint", path=table.path)
    return max(savepoints)


def _delete_savepoint(table: Table, arguments: Arguments) -> Rows:
    WriteClient.create(table.storage, None).delete_savepoint(_savepoint(table, arguments))
    return [(True,)]


def _rollback_to_savepoint(table: Table, arguments: Arguments) -> Rows:
    table.restore(_savepoint(table, arguments))
    return [(True,)]


def _rollback(table: Table, arguments: Arguments) -> Rows:
    rollback = table.rollback(arguments["instant_time"], force=bool(arguments["force"]))
    return [(isinstance(rollback, Instant) and rollback.is_completed,)]


def _rollback_service(table: Table, arguments: Arguments) -> Rows:
    at = arguments["pending_instant"]
    writer = WriteClient.create(table.storage, None)
    pending = table.snapshot().timeline.pending(*REWRITES)
    if at not in [instant.requested_at for instant in pending]:
        raise InvalidError(
            "there is no compaction, log compaction or clustering under way at this instant",
            instant=at,
            pending=[str(instant) for instant in pending],
        )
    started_ms = writer.clock.monotonic_ms()
    writer.rollback(at, keep_plan=not arguments["delete_request_instant_file"])
    return [(at, writer.clock.monotonic_ms() - started_ms)]


TIMELINE_PROCEDURES = (
    Procedure(
        "show_timeline",
        "the instants of the timeline and when their files were written, the newest first",
        (
            *TABLE,
            LIMIT,
            ARCHIVED,
            FILTER,
            Parameter("startTime", about="the first instant to show"),
            Parameter("endTime", about="the last instant to show"),
        ),
        "instant_time STRING, action STRING, state STRING, requested_time STRING, "
        "inflight_time STRING, completed_time STRING, timeline_type STRING, rollback_info STRING",
        _show_timeline,
    ),
    Procedure(
        "show_savepoints",
        "the instants of the savepoints, the newest first",
        TABLE,
        "savepoint_time STRING",
        _show_savepoints,
    ),
    Procedure(
        "create_savepoint",
        "create a savepoint of a write, by default of the newest one",
        (
            NAME,
            Parameter("commit_time", about="the instant of the write"),
            Parameter("user", "", about="the user who creates it"),
            Parameter("comments", "", about="a comment, recorded in the savepoint"),
            PATH,
        ),
        "create_savepoint_result BOOLEAN",
        _create_savepoint,
    ),
    Procedure(
        "delete_savepoint",
        "delete a savepoint, by default the newest one",
        (NAME, _SAVEPOINT, PATH),
        "delete_savepoint_result BOOLEAN",
        _delete_savepoint,
    ),
    Procedure(
        "rollback_to_savepoint",
        "restore the table to a savepoint, by default the newest one",
        (NAME, _SAVEPOINT, PATH),
        "rollback_savepoint_result BOOLEAN",
        _rollback_to_savepoint,
    ),
    Procedure(
        "rollback_to_instant",
        "roll back a write; later writes must be rolled back first",
        (
            NAME,
            INSTANT,
            PATH,
            Parameter(
                "force", False, about="whether to roll back a write with a damaged completed file"
            ),
        ),
        "rollback_result BOOLEAN",
        _rollback,
    ),
    Procedure(
        "run_rollback_inflight_tableservice",
        "roll back the execution of a pending compaction or clustering, and optionally its plan",
        (
            *TABLE,
            Parameter("pending_instant", required=True, about="the instant of the plan"),
            Parameter(
                "delete_request_instant_file", False, about="whether to delete the plan as well"
            ),
        ),
        "instant STRING, time_cost BIGINT",
        _rollback_service,
    ),
)
