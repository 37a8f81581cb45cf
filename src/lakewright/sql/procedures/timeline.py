"""The procedures of the timeline: what is on it, cleans, savepoints and taking things back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakewright.client.write_client import WriteClient
from lakewright.clock import zone_of
from lakewright.errors import InvalidError
from lakewright.model.instant import REWRITES, Instant, State, parse_instant
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
    most,
)
from lakewright.table.snapshot import Snapshot

if TYPE_CHECKING:
    from lakewright.api.table import Table

_AT = Parameter("instant_time", about="an instant; the newest, if none is named")


def _show_timeline(table: Table, arguments: Arguments) -> Rows:
    snapshot = table.snapshot()
    first, last = arguments["startTime"] or "", arguments["endTime"] or "9"
    active = [("ACTIVE", instant) for instant in snapshot.timeline]
    archived = [("ARCHIVED", i) for i in snapshot.archived] if arguments["showArchived"] else []
    shown = [each for each in (*archived, *active) if first <= each[1].requested_at <= last]
    shown.sort(key=lambda each: each[1].action)
    shown.sort(key=lambda each: each[1].requested_at, reverse=True)
    times = _times(snapshot)
    told = {each.instant.requested_at: each.target for each in table.rollbacks()}
    rows: Rows = []
    for kind, instant in shown[: most(arguments)]:
        word = instant.completed_action
        target = told.get(instant.requested_at) if instant.action == "rollback" else None
        rows.append(
            (
                instant.requested_at,
                instant.action,
                instant.state.value,
                *(times.get((instant.requested_at, word, state)) for state in State),
                kind,
                None if target is None else f"Rolled back: {target.requested_at}",
            )
        )
    return rows


def _times(snapshot: Snapshot) -> dict[tuple[str, str, State], str]:
    """When the files of the timeline were written, by storage."""
    zone = zone_of(snapshot.config.timeline_zone)
    found: dict[tuple[str, str, State], str] = {}
    for file in snapshot.storage.list_files(snapshot.config.timeline_folder):
        instant = parse_instant(file.name)
        if instant is not None:
            moment = datetime.fromtimestamp(file.modified_ms / 1000, UTC).astimezone(zone)
            key = (instant.requested_at, instant.completed_action, instant.state)
            found[key] = moment.strftime("%m-%d %H:%M:%S")
    return found


def _show_savepoints(table: Table, arguments: Arguments) -> Rows:
    saved = sorted(table.snapshot().timeline.savepointed, reverse=True)
    return [(at,) for at in saved[: most(arguments)]]


def _create_savepoint(table: Table, arguments: Arguments) -> Rows:
    at = arguments["commit_time"]
    if at is None:
        writes = table.snapshot().timeline.completed_writes
        if not writes:
            raise InvalidError("there is no completed write to save", path=table.path)
        at = writes[-1].requested_at
    table.savepoint(at, user=arguments["user"], comment=arguments["comments"])
    return [(True,)]


def _saved(table: Table, arguments: Arguments) -> str:
    """The savepoint that is named, or the newest."""
    if arguments["instant_time"] is not None:
        return str(arguments["instant_time"])
    saved = table.snapshot().timeline.savepointed
    if not saved:
        raise InvalidError("the table has no savepoint", path=table.path)
    return max(saved)


def _delete_savepoint(table: Table, arguments: Arguments) -> Rows:
    WriteClient.create(table.storage, None).delete_savepoint(_saved(table, arguments))
    return [(True,)]


def _rollback_to_savepoint(table: Table, arguments: Arguments) -> Rows:
    table.restore(_saved(table, arguments))
    return [(True,)]


def _rollback(table: Table, arguments: Arguments) -> Rows:
    done = table.rollback(arguments["instant_time"], force=bool(arguments["force"]))
    return [(isinstance(done, Instant) and done.is_completed,)]


def _rollback_service(table: Table, arguments: Arguments) -> Rows:
    at = arguments["pending_instant"]
    writer = WriteClient.create(table.storage, None)
    pending = table.snapshot().timeline.pending(*REWRITES)
    if at not in [each.requested_at for each in pending]:
        raise InvalidError(
            "there is no compaction, log compaction or clustering under way at this instant",
            instant=at,
            pending=[str(each) for each in pending],
        )
    before = writer.clock.monotonic_ms()
    writer.rollback(at, keep_plan=not arguments["delete_request_instant_file"])
    return [(at, writer.clock.monotonic_ms() - before)]


TIMELINE_PROCEDURES = (
    Procedure(
        "show_timeline",
        "the instants of the timeline, the newest first, and when their files were written",
        (
            *TABLE,
            LIMIT,
            ARCHIVED,
            FILTER,
            Parameter("startTime", about="the first instant that counts"),
            Parameter("endTime", about="the last instant that counts"),
        ),
        "instant_time STRING, action STRING, state STRING, requested_time STRING, "
        "inflight_time STRING, completed_time STRING, timeline_type STRING, rollback_info STRING",
        _show_timeline,
    ),
    Procedure(
        "show_savepoints",
        "the writes that savepoints hold, the newest first",
        TABLE,
        "savepoint_time STRING",
        _show_savepoints,
    ),
    Procedure(
        "create_savepoint",
        "keep the table as it was after a write; after the newest, if none is named",
        (
            NAME,
            Parameter("commit_time", about="the write, by its instant"),
            Parameter("user", "", about="who asks for it"),
            Parameter("comments", "", about="what for"),
            PATH,
        ),
        "create_savepoint_result BOOLEAN",
        _create_savepoint,
    ),
    Procedure(
        "delete_savepoint",
        "give a savepoint up",
        (NAME, _AT, PATH),
        "delete_savepoint_result BOOLEAN",
        _delete_savepoint,
    ),
    Procedure(
        "rollback_to_savepoint",
        "take the table back to a savepoint",
        (NAME, _AT, PATH),
        "rollback_savepoint_result BOOLEAN",
        _rollback_to_savepoint,
    ),
    Procedure(
        "rollback_to_instant",
        "take a write back, the newest ones first",
        (
            NAME,
            INSTANT,
            PATH,
            Parameter("force", False, about="whether one goes whose completed file is damaged"),
        ),
        "rollback_result BOOLEAN",
        _rollback,
    ),
    Procedure(
        "run_rollback_inflight_tableservice",
        "take back what a compaction or clustering has done so far, and its plan if told so",
        (
            *TABLE,
            Parameter("pending_instant", required=True, about="the plan, by its instant"),
            Parameter("delete_request_instant_file", False, about="whether the plan goes, too"),
        ),
        "instant STRING, time_cost BIGINT",
        _rollback_service,
    ),
)
