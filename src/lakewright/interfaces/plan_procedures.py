"""The procedures of plans that can be cancelled, and of what was rolled back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewright.errors import InvalidError
from lakewright.interfaces.calls import Parameter
from lakewright.interfaces.procedure import (
    LIMIT,
    OPTIONS,
    TABLE,
    Arguments,
    Procedure,
    Rows,
    told_options,
)
from lakewright.settings import parse_bool

if TYPE_CHECKING:
    from lakewright.interfaces.api import Table


def _cancel(table: Table, arguments: Arguments) -> Rows:
    instant = str(arguments["instant"])
    rollback = table.cancel(
        instant,
        told_options(arguments["options"]),
        user=str(arguments["user"] or ""),
        reason=str(arguments["reason"] or ""),
        wait=_seconds(arguments["wait"]),
    )
    return [(instant, rollback.requested_at, rollback.state.value)]


def _seconds(given: object) -> float:
    try:
        return float(str(given or 0))
    except ValueError as error:
        raise InvalidError("not a number of seconds", wait=given) from error


def _switch(given: object) -> bool:
    try:
        return parse_bool(str(given))
    except ValueError as error:
        raise InvalidError("a switch is true or false", show_archived=given) from error


def _show_rollbacks(table: Table, arguments: Arguments) -> Rows:
    archived = _switch(arguments["show_archived"])
    newest = table.rollbacks(archived=archived)[::-1][: int(arguments["limit"] or 0)]
    return [
        (
            each.instant.requested_at,
            each.target.requested_at,
            each.files,
            each.took_ms,
            each.partitions,
            each.instant.state.value,
            each.target.action,
            each.caused_by,
            each.reason,
        )
        for each in newest
    ]


PLAN_PROCEDURES = (
    Procedure(
        "cancel_table_service",
        "take a cancellable plan back, or ask who executes it to stop",
        (
            *TABLE,
            Parameter("instant", required=True, about="the plan, by its instant"),
            Parameter("reason", about="why; kept with the rollback"),
            Parameter("user", about="who asks for it"),
            Parameter("wait", 0, about="how many seconds to wait for who executes it to stop"),
            OPTIONS,
        ),
        "instant STRING, rollback STRING, state STRING",
        _cancel,
    ),
    Procedure(
        "show_rollbacks",
        "the rollbacks on the timeline, the newest first, and what they were caused by",
        (
            *TABLE,
            LIMIT,
            Parameter("show_archived", False, about="whether those in history are shown, too"),
        ),
        "instant STRING, rollback_instant STRING, total_files_deleted INT, "
        "time_taken_in_millis BIGINT, total_partitions INT, state STRING, action STRING, "
        "caused_by STRING, reason STRING",
        _show_rollbacks,
    ),
)
