"""Procedures for pending plans of table services, their cancellation, and rollbacks."""

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
    parse_options,
    row_limit,
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
    rollbacks = table.rollbacks(archived=bool(arguments[ARCHIVED.name]))
    newest = rollbacks[::-1][: row_limit(arguments)]
    return [
        (
            rollback.instant.requested_at,
            rollback.target.requested_at,
            rollback.files,
            rollback.took_ms,
            rollback.partitions,
            rollback.instant.state.value,
            rollback.target.action,
            rollback.caused_by,
            rollback.reason,
        )
        for rollback in newest
    ]


def _show_plans(table: Table, arguments: Arguments) -> Rows:
    runner = table.services(parse_options(arguments["options"]))
    plans = load_pending_plans(runner.writer, table.snapshot())[::-1][: row_limit(arguments)]
    return [
        (
            plan.instant.requested_at,
            plan.instant.action,
            plan.instant.state.value,
            plan.age_ms,
            plan.heartbeat_age_ms,
            plan.cancellable,
            plan.rolled_back_at,
            plan.operations,
            ",".join(plan.partitions),
        )
        for plan in plans
    ]


def _show_missing(table: Table, arguments: Arguments) -> Rows:
    service = arguments["service"]
    if service is not None and service not in _INCREMENTAL_SERVICES:
        raise InvalidError(
            "this service makes no such plans", service=service, known=_INCREMENTAL_SERVICES
        )
    snapshot = table.snapshot()
    rows: Rows = []
    for action in _INCREMENTAL_SERVICES if service is None else (Action(service),):
        instants = [at for at, planned in snapshot.timeline.plans.items() if planned == action]
        plan = snapshot.plan_of(max(instants), action) if instants else None
        if plan is not None:
            reasons = plan.missing_reasons
            rows += [
                (action, max(instants), partition, reasons.get(partition))
                for partition in plan.missing_partitions or ()
            ]
    return rows[: row_limit(arguments)]


_INCREMENTAL_SERVICES = REWRITES

PLAN_PROCEDURES = (
    Procedure(
        "show_table_service_plans",
        "the pending plans, with the heartbeats of their executions",
        (*TABLE, LIMIT, OPTIONS, FILTER),
        "instant STRING, action STRING, state STRING, age_ms BIGINT, heartbeat_age_ms BIGINT, "
        "cancellable BOOLEAN, rolled_back_at STRING, operations INT, partitions STRING",
        _show_plans,
    ),
    Procedure(
        "show_missing_partitions",
        "the partitions that the last plan of each service left to the next one, and why",
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
        "cancel a cancellable plan, or ask the process that executes it to stop",
        (
            *TABLE,
            Parameter("instant", required=True, about="the instant of the plan"),
            Parameter("reason", about="why; recorded in the rollback"),
            Parameter("user", about="the user who cancels it"),
            Parameter("wait", 0.0, about="how many seconds to wait for the execution to stop"),
            OPTIONS,
        ),
        "instant STRING, rollback STRING, state STRING",
        _cancel,
    ),
    Procedure(
        "show_rollbacks",
        "the rollbacks on the timeline and their causes, the newest first",
        (NAME, limit(10), PATH, FILTER, ARCHIVED),
        "instant STRING, rollback_instant STRING, total_files_deleted INT, "
        "time_taken_in_millis BIGINT, total_partitions INT, state STRING, action STRING, "
        "caused_by STRING, reason STRING",
        _show_rollbacks,
    ),
)
