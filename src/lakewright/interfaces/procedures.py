"""Procedures: what `CALL` statements do, with Hudi's names of parameters and columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from lakewright.core.freshness import PartitionFreshness
from lakewright.core.plans import Skip
from lakewright.errors import InvalidError
from lakewright.interfaces.calls import Call, Parameter, Value, bound_arguments
from lakewright.interfaces.datasource import OPTIONS_METADATA
from lakewright.interfaces.plan_procedures import PLAN_PROCEDURES
from lakewright.interfaces.procedure import (
    LIMIT,
    OPTIONS,
    TABLE,
    Arguments,
    Procedure,
    Rows,
    told_options,
)
from lakewright.interfaces.ttl_procedures import TTL_PROCEDURES
from lakewright.services.registry import service_by_name
from lakewright.services.runner import ServiceRunner
from lakewright.table.snapshot import Snapshot, load_snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewright.interfaces.api import Table

Open = Callable[[str], "Table"]

_HELP_COLUMNS = "procedure STRING, parameters STRING, about STRING"


def run_call(spark: SparkSession, call: Call, open_table: Open) -> DataFrame:
    """Carry a call out; its result is a DataFrame."""
    if call.name == "help":
        return spark.createDataFrame(_help(call), _HELP_COLUMNS)
    procedure = _PROCEDURES.get(call.name)
    if procedure is None:
        known = sorted([*_PROCEDURES, "help"])
        raise InvalidError("there is no such procedure", procedure=call.name, known=known)
    arguments = bound_arguments(call, procedure.parameters)
    table = open_table(_path(spark, arguments))
    return spark.createDataFrame(procedure.run(table, arguments), procedure.columns)


def _path(spark: SparkSession, arguments: Arguments) -> str:
    if arguments.get("path"):
        return str(arguments["path"])
    name = arguments.get("table")
    if not name:
        raise InvalidError("which table? give table => 'name' or path => '...'")
    metadata = spark.table(str(name)).schema.fields[0].metadata
    path = metadata.get(OPTIONS_METADATA, {}).get("path")
    if not path:
        raise InvalidError("this is no table of the hudi format", table=name)
    return str(path)


def _help(call: Call) -> Rows:
    wanted = next(iter((*call.positional, *(value for _, value in call.named))), None)
    if wanted is not None and wanted not in _PROCEDURES:
        raise InvalidError(
            "there is no such procedure", procedure=wanted, known=sorted(_PROCEDURES)
        )
    return [
        (each.name, ", ".join(p.name for p in each.parameters), each.about)
        for each in _PROCEDURES.values()
        if wanted in (None, each.name)
    ]


def _plans(snapshot: Snapshot, action: str, limit: Value) -> Rows:
    """The plans of an action that are on the timeline, the newest first."""
    rows: Rows = []
    newest = sorted((at for at, word in snapshot.timeline.plans.items() if word == action))[::-1]
    for at in newest[: int(limit or 0)]:
        plan = snapshot.plan_of(at, action)
        current = snapshot.timeline.by_time.get(at)
        if plan is not None and current is not None:
            rows.append((at, len(plan.operations), current.state.value, ",".join(plan.partitions)))
    return rows


def _show(action: str) -> Callable[[Table, Arguments], Rows]:
    def run(table: Table, arguments: Arguments) -> Rows:
        rows = _plans(table.snapshot(), action, arguments["limit"])
        return rows if action == "clustering" else [row[:3] for row in rows]

    return run


def _runs(service: str) -> Callable[[Table, Arguments], Rows]:
    """Schedule, execute, or both; the plans that were executed or scheduled are the result."""

    def run(table: Table, arguments: Arguments) -> Rows:
        runner = table.services(told_options(arguments["options"]))
        action = service_by_name(service).action
        instants = _operate(runner, service, action, arguments)
        rows = [row for row in _plans(table.snapshot(), action, 10**9) if row[0] in instants]
        return rows if service == "clustering" else [row[:3] for row in rows]

    return run


def _operate(
    runner: ServiceRunner, service: str, action: str, arguments: Arguments
) -> Sequence[str]:
    operation = str(arguments["op"] or "scheduleAndExecute").lower()
    if operation == "schedule":
        found = runner.schedule(service)
        return [] if isinstance(found, Skip) else [found.requested_at]
    if operation in ("run", "execute"):
        named = str(arguments.get("timestamp") or arguments.get("instants") or "")
        waiting = [part.strip() for part in named.split(",") if part.strip()]
        if not waiting:
            pending = load_snapshot(runner.storage).timeline.pending(action)
            waiting = [i.requested_at for i in pending]
        return [runner.execute(at).instant for at in waiting]
    if operation == "scheduleandexecute":
        done = runner.run(service)
        return [] if isinstance(done, Skip) else [done.instant]
    raise InvalidError(
        "no such operation", op=arguments["op"], known=["schedule", "run", "scheduleAndExecute"]
    )


def _run_service(table: Table, arguments: Arguments) -> Rows:
    done = table.run(str(arguments["service"]), told_options(arguments["options"]))
    if isinstance(done, Skip):
        return [("", "", 0, done.reason)]
    return [(done.instant, done.action, done.files, "")]


def _show_debt(table: Table, arguments: Arguments) -> Rows:
    owed = table.debt().partitions[: int(arguments["limit"] or 0)]
    return [(d.partition, d.log_files, d.log_bytes, d.oldest, d.reason) for d in owed]


def _show_freshness(table: Table, arguments: Arguments) -> Rows:
    found = table.freshness()
    whole = PartitionFreshness(found.snapshot, found.read_optimized)
    shown = islice(found.partitions.items(), int(arguments["limit"] or 0))
    return [
        (path, name, view.completion, view.freshness)
        for path, values in (("", whole), *shown)
        for name, view in (
            ("snapshot", values.snapshot),
            ("read_optimized", values.read_optimized),
        )
    ]


def _show_holding_back(table: Table, arguments: Arguments) -> Rows:
    held = table.holding_back(int(arguments["limit"] or 0))
    return [(h.partition, h.file_id, h.log, h.instant, h.event_time, h.size) for h in held]


_OPERATE = (Parameter("op", "scheduleAndExecute"), *TABLE)
_PLAN_COLUMNS = "timestamp STRING, operation_size INT, state STRING"
_GROUP_COLUMNS = "timestamp STRING, input_group_size INT, state STRING, involved_partitions STRING"
_PROCEDURES = {
    each.name: each
    for each in (
        *TTL_PROCEDURES,
        *PLAN_PROCEDURES,
        Procedure(
            "run_compaction",
            "schedule a compaction, execute those that wait (op => 'run'), or both",
            (*_OPERATE, Parameter("timestamp"), OPTIONS, Parameter("instants")),
            _PLAN_COLUMNS,
            _runs("compaction"),
        ),
        Procedure(
            "show_compaction",
            "the compactions on the timeline, the newest first",
            (*TABLE, LIMIT),
            _PLAN_COLUMNS,
            _show("compaction"),
        ),
        Procedure(
            "run_clustering",
            "schedule a clustering, execute those that wait (op => 'execute'), or both",
            (*TABLE, Parameter("op", "scheduleAndExecute"), OPTIONS, Parameter("instants")),
            _GROUP_COLUMNS,
            _runs("clustering"),
        ),
        Procedure(
            "show_clustering",
            "the clusterings on the timeline, the newest first",
            (*TABLE, LIMIT),
            _GROUP_COLUMNS,
            _show("clustering"),
        ),
        Procedure(
            "run_service",
            "schedule and execute any service: clean, archive, logcompaction, or one of your own",
            (Parameter("service", required=True), *TABLE, OPTIONS),
            "instant STRING, action STRING, files INT, skipped STRING",
            _run_service,
        ),
        Procedure(
            "show_debt",
            "log files that no compaction has folded in yet, by partition, and why",
            (*TABLE, LIMIT),
            "partition STRING, log_files INT, log_bytes BIGINT, oldest STRING, reason STRING",
            _show_debt,
        ),
        Procedure(
            "show_freshness",
            "how complete and how fresh both views are: of the table, then of partitions",
            (*TABLE, LIMIT),
            "partition STRING, view STRING, completion BIGINT, freshness BIGINT",
            _show_freshness,
        ),
        Procedure(
            "show_holding_back",
            "the log files that hold read-optimized completion back, the worst first",
            (*TABLE, LIMIT),
            "partition STRING, file_id STRING, log STRING, instant STRING, event_time BIGINT, "
            "size BIGINT",
            _show_holding_back,
        ),
    )
}
