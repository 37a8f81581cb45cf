"""The procedures of plans that can be cancelled, and of what was rolled back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewright.errors import InvalidError
from lakewright.model.instant import REWRITES, Action
from lakewright.sql.procedures.base import (
    ARCHIVED,
    FILTER,
    LIMIT,
    NAME,
    OPTIONS,
    PATH,
    TABLE,
    Arguments,
    Parameter,
    Procedure,
    Rows,
    limit,
    most,
    parse_options,
)
from lakewright.table.plan_scheduling import load_pending_plans

if TYPE_CHECKING:
    from lakewright.api.table import Table


def _cancel(table: Table, arguments: Arguments) -> Rows:
    instant = str(arguments["instant"])
    rollback = table.cancel(
        instant,
        parse_options(arguments["options"]),
        user=str(arguments["user"] or ""),
        reason=str(arguments["reason"] or ""),
        wait=arguments["wait"],
    )
    return [(instant, rollback.requested_at, rollback.state.value)]


def _show_rollbacks(table: Table, arguments: Arguments) -> Rows:
    found = table.rollbacks(archived=bool(arguments[ARCHIVED.name]))
    newest = found[::-1][: most(arguments)]
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


def _show_plans(table: Table, arguments: Arguments) -> Rows:
    runner = table.services(parse_options(arguments["options"]))
    states = load_pending_plans(runner.writer, table.snapshot())[::-1][: most(arguments)]
    return [
        (
            each.instant.requested_at,
            each.instant.action,
            each.instant.state.value,
            each.age_ms,
            each.heartbeat_age_ms,
            each.cancellable,
            each.rolled_back_at,
            each.operations,
            ",".join(each.partitions),
        )
        for each in states
    ]


def _show_missing(table: Table, arguments: Arguments) -> Rows:
    service = arguments["service"]
    if service is not None and service not in _PLANNED:
        raise InvalidError("this service makes no such plans", service=service, known=_PLANNED)
    snapshot = table.snapshot()
    rows: Rows = []
    for action in _PLANNED if service is None else (Action(service),):
        planned = [at for at, word in snapshot.timeline.plans.items() if word == action]
        plan = snapshot.plan_of(max(planned), action) if planned else None
        if plan is not None:
            reasons = plan.missing_reasons
            rows += [
                (action, max(planned), partition, reasons.get(partition))
                for partition in plan.missing_partitions or ()
            ]
    return rows[: most(arguments)]


_PLANNED = REWRITES

PLAN_PROCEDURES = (
    Procedure(
        "show_table_service_plans",
        "the plans that wait, and whether somebody executes them",
        (*TABLE, LIMIT, OPTIONS, FILTER),
        "instant STRING, action STRING, state STRING, age_ms BIGINT, heartbeat_age_ms BIGINT, "
        "cancellable BOOLEAN, rolled_back_at STRING, operations INT, partitions STRING",
        _show_plans,
    ),
    Procedure(
        "show_missing_partitions",
        "the partitions that the last plan of each service left for the next, and why",
        (
            *TABLE,
            Parameter("service", about="compaction, logcompaction or clustering"),
            LIMIT,
            FILTER,
        ),
        "service STRING, instant STRING, partition STRING, reason STRING",
        _show_missing,
    ),
    Procedure(
        "cancel_table_service",
        "take a cancellable plan back, or ask who executes it to stop",
        (
            *TABLE,
            Parameter("instant", required=True, about="the plan, by its instant"),
            Parameter("reason", about="why; kept with the rollback"),
            Parameter("user", about="who asks for it"),
            Parameter("wait", 0.0, about="how many seconds to wait for who executes it to stop"),
            OPTIONS,
        ),
        "instant STRING, rollback STRING, state STRING",
        _cancel,
    ),
    Procedure(
        "show_rollbacks",
        "the rollbacks on the timeline, the newest first, and what they were caused by",
        (NAME, limit(10), PATH, FILTER, ARCHIVED),
        "instant STRING, rollback_instant STRING, total_files_deleted INT, "
        "time_taken_in_millis BIGINT, total_partitions INT, state STRING, action STRING, "
        "caused_by STRING, reason STRING",
        _show_rollbacks,
    ),
)
