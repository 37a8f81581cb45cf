"""The registry of `CALL` procedures, and the procedures that show and run table services.

Procedures, parameters and columns have the names that Hudi uses.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.model.freshness import PartitionFreshness
from lakewright.model.instant import Action
from lakewright.model.plans import ClusteringPlan, Skip
from lakewright.services.runner import ServiceRunner
from lakewright.sql.procedures.base import (
    DESCRIBE_COLUMNS,
    FILTER,
    LIMIT,
    OPTIONS,
    TABLE,
    Arguments,
    Call,
    Parameter,
    Procedure,
    Rows,
    bound_arguments,
    describe,
    parse_options,
    row_limit,
)
from lakewright.sql.procedures.cleaning import CLEAN_PROCEDURES
from lakewright.sql.procedures.commits import COMMIT_PROCEDURES
from lakewright.sql.procedures.files import FILE_PROCEDURES
from lakewright.sql.procedures.plans import PLAN_PROCEDURES
from lakewright.sql.procedures.timeline import TIMELINE_PROCEDURES
from lakewright.sql.procedures.ttl import TTL_PROCEDURES
from lakewright.sql.table_names import Address, require_address
from lakewright.storage.factory import storage_options
from lakewright.table.snapshot import Snapshot, load_snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewright.api.table import Table

Open = Callable[..., "Table"]


def run_call(spark: SparkSession, call: Call, open_table: Open) -> DataFrame:
    """Run a procedure and return its result."""
    if call.name == _HELP.name:
        name = bound_arguments(call, _HELP.parameters)["cmd"]
        if name is None:
            return spark.createDataFrame(help_rows(), _HELP.columns)
        return spark.createDataFrame(describe(_find_procedure(str(name).lower())), DESCRIBE_COLUMNS)
    procedure = _find_procedure(call.name)
    arguments = bound_arguments(call, procedure.parameters)
    address = _address(spark, arguments)
    storage_values = storage_options(parse_options(arguments.get("options")))
    table = open_table(address.path, options={**address.options, **storage_values})
    frame = spark.createDataFrame(procedure.run(table, arguments), procedure.columns)
    return _filtered(frame, arguments) if arguments.get("filter") else frame


def _filtered(frame: DataFrame, arguments: Arguments) -> DataFrame:
    """Return the rows that match the filter; Spark parses it as an expression, not a statement."""
    try:
        rows = frame.where(str(arguments["filter"]))
        _ = rows.schema
    except PySparkException as error:
        reason = str(error).partition("SQLSTATE")[0].strip()
        raise InvalidError(
            "the filter is no condition on the result", columns=frame.columns, reason=reason
        ) from error
    limit = arguments.get("limit")
    return rows if limit is None else rows.limit(max(int(limit), 0))


def _find_procedure(name: str) -> Procedure:
    if name in PROCEDURES:
        return PROCEDURES[name]
    names = sorted([*PROCEDURES, _HELP.name])
    similar = difflib.get_close_matches(name, names, n=1)
    hint = {"did_you_mean": similar[0]} if similar else {}
    raise InvalidError("there is no such procedure", procedure=name, **hint, known=names)


def _address(spark: SparkSession, arguments: Arguments) -> Address:
    if arguments.get("path"):
        return Address(str(arguments["path"]))
    name = arguments.get("table")
    if not name:
        raise InvalidError("which table? give table => 'name' or path => '...'")
    return require_address(spark, str(name))


def _plans(snapshot: Snapshot, action: Action, limit: int | None) -> Rows:
    """Return rows for the plans of an action on the active timeline, the newest first."""
    rows: Rows = []
    newest = sorted((at for at, planned in snapshot.timeline.plans.items() if planned == action))[
        ::-1
    ]
    for at in newest[:limit]:
        plan = snapshot.plan_of(at, action)
        instant = snapshot.timeline.by_time.get(at)
        if plan is not None and instant is not None:
            parts = plan.groups if isinstance(plan, ClusteringPlan) else plan.operations
            rows.append((at, len(parts), instant.state.value, ",".join(plan.partitions)))
    return rows


def _select_columns(rows: Rows, service: str, arguments: Arguments) -> Rows:
    """Return the columns of a service; only clustering shows partitions, and only on request."""
    if service != "clustering":
        return [row[:3] for row in rows]
    return rows if arguments["show_involved_partition"] else [(*row[:3], "*") for row in rows]


def _show_plans(action: Action) -> Callable[[Table, Arguments], Rows]:
    def run(table: Table, arguments: Arguments) -> Rows:
        return _select_columns(
            _plans(table.snapshot(), action, row_limit(arguments)), action, arguments
        )

    return run


def _run_plans(service: str) -> Callable[[Table, Arguments], Rows]:
    """Return a function that schedules or executes plans, and returns rows for them."""

    def run(table: Table, arguments: Arguments) -> Rows:
        _refuse_predicate(arguments)
        changed = {
            key: arguments[name] for name, key in _CLUSTERING_OPTIONS.items() if arguments.get(name)
        }
        runner = table.services({**parse_options(arguments["options"]), **changed})
        action = Action(service)
        instants = _schedule_or_execute(runner, service, action, arguments)
        rows = [row for row in _plans(table.snapshot(), action, None) if row[0] in instants]
        return _select_columns(rows, service, arguments)

    return run


def _refuse_predicate(arguments: Arguments) -> None:
    if arguments.get("predicate"):
        raise UnsupportedError(
            "partitions to cluster cannot be selected by a predicate: name them",
            instead=["selected_partitions", "partition_regex_pattern"],
        )


def _schedule_or_execute(
    runner: ServiceRunner, service: str, action: Action, arguments: Arguments
) -> Sequence[str]:
    """Schedule a plan, execute pending plans, or both; return the instants of the plans."""
    operation = str(arguments["op"] or "scheduleAndExecute").lower()
    if operation == "schedule":
        scheduled = runner.schedule(service)
        # As for real Hudi, the client of a call ends with it.
        runner.heartbeats.stop_all()
        return [] if isinstance(scheduled, Skip) else [scheduled.requested_at]
    if operation in ("run", "execute"):
        text = str(arguments.get("timestamp") or arguments.get("instants") or "")
        instants = [part.strip() for part in text.split(",") if part.strip()]
        if not instants:
            pending = load_snapshot(runner.storage).timeline.pending(action)
            instants = [i.requested_at for i in pending][: row_limit(arguments)]
        return [runner.execute(at).instant for at in instants]
    if operation == "scheduleandexecute":
        outcome = runner.run(service)
        return [] if isinstance(outcome, Skip) else [outcome.instant]
    raise InvalidError(
        "no such operation", op=arguments["op"], known=["schedule", "run", "scheduleAndExecute"]
    )


def _run_service(table: Table, arguments: Arguments) -> Rows:
    outcome = table.run(str(arguments["service"]), parse_options(arguments["options"]))
    if isinstance(outcome, Skip):
        return [("", "", 0, outcome.reason)]
    return [(outcome.instant, outcome.action, outcome.files, "")]


def _show_debt(table: Table, arguments: Arguments) -> Rows:
    partitions = table.compaction_debt().partitions[: row_limit(arguments)]
    return [(d.partition, d.log_files, d.log_bytes, d.oldest, d.reason) for d in partitions]


def _show_freshness(table: Table, arguments: Arguments) -> Rows:
    freshness = table.freshness()
    whole_table = PartitionFreshness(
        freshness.snapshot, freshness.read_optimized, freshness.late_rows
    )
    partitions = islice(freshness.partitions.items(), row_limit(arguments))
    return [
        (
            path,
            name,
            view.completion,
            view.freshness,
            view.watermark,
            values.late_rows,
            freshness.definition.value,
        )
        for path, values in (("", whole_table), *partitions)
        for name, view in (
            ("snapshot", values.snapshot),
            ("read_optimized", values.read_optimized),
        )
    ]


def _show_holding_back(table: Table, arguments: Arguments) -> Rows:
    limit = row_limit(arguments)
    blocking = table.blocking_log_files(sys.maxsize if limit is None else limit)
    return [(b.partition, b.file_id, b.log, b.instant, b.event_time, b.size) for b in blocking]


_OPERATION = (
    Parameter("op", "scheduleAndExecute", about="schedule, run, execute or scheduleAndExecute"),
    *TABLE,
)
_INSTANTS = Parameter("instants", about="the instants of plans to execute, comma-separated")
_PLAN_LIMIT = Parameter("limit", kind=int, about="the maximum number of plans to execute")
_INVOLVED = Parameter("show_involved_partition", False, about="whether to list the partitions")
# Arguments of run_clustering, and the options that they stand for.
_CLUSTERING_OPTIONS = {
    "order": "hoodie.clustering.plan.strategy.sort.columns",
    "order_strategy": "hoodie.layout.optimize.strategy",
    "selected_partitions": "hoodie.clustering.plan.strategy.partition.selected",
    "partition_regex_pattern": "hoodie.clustering.plan.strategy.partition.regex.pattern",
}
_PLAN_COLUMNS = "timestamp STRING, operation_size INT, state STRING"
_GROUP_COLUMNS = "timestamp STRING, input_group_size INT, state STRING, involved_partitions STRING"
PROCEDURES: dict[str, Procedure] = {
    procedure.name: procedure
    for procedure in (
        *TTL_PROCEDURES,
        *PLAN_PROCEDURES,
        *COMMIT_PROCEDURES,
        *TIMELINE_PROCEDURES,
        *CLEAN_PROCEDURES,
        *FILE_PROCEDURES,
        Procedure(
            "run_compaction",
            "schedule a compaction, execute pending ones (op => 'run'), or both",
            (
                *_OPERATION,
                Parameter("timestamp", about="the instant of one plan to execute"),
                OPTIONS,
                _INSTANTS,
                _PLAN_LIMIT,
            ),
            _PLAN_COLUMNS,
            _run_plans("compaction"),
        ),
        Procedure(
            "show_compaction",
            "the compactions on the timeline, the newest first",
            (*TABLE, LIMIT, FILTER),
            _PLAN_COLUMNS,
            _show_plans(Action.COMPACTION),
        ),
        Procedure(
            "run_clustering",
            "schedule a clustering, execute pending ones (op => 'execute'), or both",
            (
                *TABLE,
                Parameter("predicate", about="not supported: name the partitions"),
                Parameter("order", about="columns to sort by, comma-separated"),
                _INVOLVED,
                _OPERATION[0],
                Parameter("order_strategy", about="linear, z-order or hilbert"),
                OPTIONS,
                _INSTANTS,
                Parameter("selected_partitions", about="paths of partitions, comma-separated"),
                Parameter("partition_regex_pattern", about="a regular expression for partitions"),
                _PLAN_LIMIT,
            ),
            _GROUP_COLUMNS,
            _run_plans("clustering"),
        ),
        Procedure(
            "show_clustering",
            "the clusterings on the timeline, the newest first",
            (*TABLE, LIMIT, _INVOLVED, FILTER),
            _GROUP_COLUMNS,
            _show_plans(Action.CLUSTERING),
        ),
        Procedure(
            "run_service",
            "schedule and execute any service: clean, archive, logcompaction, or a custom one",
            (Parameter("service", required=True), *TABLE, OPTIONS),
            "instant STRING, action STRING, files INT, skipped STRING",
            _run_service,
        ),
        Procedure(
            "show_debt",
            "the uncompacted log files by partition, with the reasons",
            (*TABLE, LIMIT, FILTER),
            "partition STRING, log_files INT, log_bytes BIGINT, oldest STRING, reason STRING",
            _show_debt,
        ),
        Procedure(
            "show_freshness",
            "completion and freshness of both views: of the table, then of partitions",
            (*TABLE, LIMIT, FILTER),
            "partition STRING, view STRING, completion BIGINT, freshness BIGINT, "
            "watermark BIGINT, late_rows BIGINT, definition STRING",
            _show_freshness,
        ),
        Procedure(
            "show_holding_back",
            "the log files that block read-optimized completion, the most blocking ones first",
            (*TABLE, LIMIT, FILTER),
            "partition STRING, file_id STRING, log STRING, instant STRING, event_time BIGINT, "
            "size BIGINT",
            _show_holding_back,
        ),
    )
}


def help_rows() -> Rows:
    """Return rows with the procedures, their parameters and descriptions."""
    return [
        (procedure.name, ", ".join(p.name for p in procedure.parameters), procedure.about)
        for procedure in (*PROCEDURES.values(), _HELP)
    ]


_HELP = Procedure(
    "help",
    "the procedures, or one with its parameters and columns",
    (Parameter("cmd", about="the name of a procedure"),),
    "procedure STRING, parameters STRING, about STRING",
    lambda table, arguments: help_rows(),
)
