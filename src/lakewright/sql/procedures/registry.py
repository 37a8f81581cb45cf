"""Procedures: what `CALL` statements do, with Hudi's names of parameters and columns."""

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
    most,
    parse_options,
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
    """Carry a call out; its result is a DataFrame."""
    if call.name == _HELP.name:
        wanted = bound_arguments(call, _HELP.parameters)["cmd"]
        if wanted is None:
            return spark.createDataFrame(help_rows(), _HELP.columns)
        return spark.createDataFrame(describe(_named(str(wanted).lower())), DESCRIBE_COLUMNS)
    procedure = _named(call.name)
    arguments = bound_arguments(call, procedure.parameters)
    address = _address(spark, arguments)
    told = storage_options(parse_options(arguments.get("options")))
    table = open_table(address.path, options={**address.options, **told})
    frame = spark.createDataFrame(procedure.run(table, arguments), procedure.columns)
    return _filtered(frame, arguments) if arguments.get("filter") else frame


def _filtered(frame: DataFrame, arguments: Arguments) -> DataFrame:
    """The rows that a condition holds for; Spark reads it as an expression, and as nothing else."""
    try:
        found = frame.where(str(arguments["filter"]))
        _ = found.schema
    except PySparkException as error:
        reason = str(error).partition("SQLSTATE")[0].strip()
        raise InvalidError(
            "the filter is no condition on the result", columns=frame.columns, reason=reason
        ) from error
    wanted = arguments.get("limit")
    return found if wanted is None else found.limit(max(int(wanted), 0))


def _named(name: str) -> Procedure:
    if name in PROCEDURES:
        return PROCEDURES[name]
    known = sorted([*PROCEDURES, _HELP.name])
    near = difflib.get_close_matches(name, known, n=1)
    hint = {"did_you_mean": near[0]} if near else {}
    raise InvalidError("there is no such procedure", procedure=name, **hint, known=known)


def _address(spark: SparkSession, arguments: Arguments) -> Address:
    if arguments.get("path"):
        return Address(str(arguments["path"]))
    name = arguments.get("table")
    if not name:
        raise InvalidError("which table? give table => 'name' or path => '...'")
    return require_address(spark, str(name))


def _plans(snapshot: Snapshot, action: Action, limit: int | None) -> Rows:
    """The plans of an action that are on the timeline, the newest first."""
    rows: Rows = []
    newest = sorted((at for at, word in snapshot.timeline.plans.items() if word == action))[::-1]
    for at in newest[:limit]:
        plan = snapshot.plan_of(at, action)
        current = snapshot.timeline.by_time.get(at)
        if plan is not None and current is not None:
            parts = plan.groups if isinstance(plan, ClusteringPlan) else plan.operations
            rows.append((at, len(parts), current.state.value, ",".join(plan.partitions)))
    return rows


def _shown(rows: Rows, service: str, arguments: Arguments) -> Rows:
    """The columns of a service; partitions are named only where that was asked for."""
    if service != "clustering":
        return [row[:3] for row in rows]
    return rows if arguments["show_involved_partition"] else [(*row[:3], "*") for row in rows]


def _show(action: Action) -> Callable[[Table, Arguments], Rows]:
    def run(table: Table, arguments: Arguments) -> Rows:
        return _shown(_plans(table.snapshot(), action, most(arguments)), action, arguments)

    return run


def _runs(service: str) -> Callable[[Table, Arguments], Rows]:
    """Schedule, execute, or both; the plans that were executed or scheduled are the result."""

    def run(table: Table, arguments: Arguments) -> Rows:
        _refuse_predicate(arguments)
        told = {key: arguments[name] for name, key in _TOLD.items() if arguments.get(name)}
        runner = table.services({**parse_options(arguments["options"]), **told})
        action = Action(service)
        instants = _operate(runner, service, action, arguments)
        rows = [row for row in _plans(table.snapshot(), action, None) if row[0] in instants]
        return _shown(rows, service, arguments)

    return run


def _refuse_predicate(arguments: Arguments) -> None:
    if arguments.get("predicate"):
        raise UnsupportedError(
            "partitions to cluster are not told by a predicate: name them",
            instead=["selected_partitions", "partition_regex_pattern"],
        )


def _operate(
    runner: ServiceRunner, service: str, action: Action, arguments: Arguments
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
            waiting = [i.requested_at for i in pending][: most(arguments)]
        return [runner.execute(at).instant for at in waiting]
    if operation == "scheduleandexecute":
        done = runner.run(service)
        return [] if isinstance(done, Skip) else [done.instant]
    raise InvalidError(
        "no such operation", op=arguments["op"], known=["schedule", "run", "scheduleAndExecute"]
    )


def _run_service(table: Table, arguments: Arguments) -> Rows:
    done = table.run(str(arguments["service"]), parse_options(arguments["options"]))
    if isinstance(done, Skip):
        return [("", "", 0, done.reason)]
    return [(done.instant, done.action, done.files, "")]


def _show_debt(table: Table, arguments: Arguments) -> Rows:
    owed = table.debt().partitions[: most(arguments)]
    return [(d.partition, d.log_files, d.log_bytes, d.oldest, d.reason) for d in owed]


def _show_freshness(table: Table, arguments: Arguments) -> Rows:
    found = table.freshness()
    whole = PartitionFreshness(found.snapshot, found.read_optimized)
    shown = islice(found.partitions.items(), most(arguments))
    return [
        (path, name, view.completion, view.freshness)
        for path, values in (("", whole), *shown)
        for name, view in (
            ("snapshot", values.snapshot),
            ("read_optimized", values.read_optimized),
        )
    ]


def _show_holding_back(table: Table, arguments: Arguments) -> Rows:
    held = table.holding_back(most(arguments) or sys.maxsize)
    return [(h.partition, h.file_id, h.log, h.instant, h.event_time, h.size) for h in held]


_OPERATE = (
    Parameter("op", "scheduleAndExecute", about="schedule, run, execute or scheduleAndExecute"),
    *TABLE,
)
_INSTANTS = Parameter("instants", about="the plans to execute, with commas between them")
_MOST = Parameter("limit", kind=int, about="how many plans to execute at most")
_INVOLVED = Parameter("show_involved_partition", False, about="whether partitions are named")
# Arguments of run_clustering that are options by other names.
_TOLD = {
    "order": "hoodie.clustering.plan.strategy.sort.columns",
    "order_strategy": "hoodie.layout.optimize.strategy",
    "selected_partitions": "hoodie.clustering.plan.strategy.partition.selected",
    "partition_regex_pattern": "hoodie.clustering.plan.strategy.partition.regex.pattern",
}
_PLAN_COLUMNS = "timestamp STRING, operation_size INT, state STRING"
_GROUP_COLUMNS = "timestamp STRING, input_group_size INT, state STRING, involved_partitions STRING"
PROCEDURES: dict[str, Procedure] = {
    each.name: each
    for each in (
        *TTL_PROCEDURES,
        *PLAN_PROCEDURES,
        *COMMIT_PROCEDURES,
        *TIMELINE_PROCEDURES,
        *CLEAN_PROCEDURES,
        *FILE_PROCEDURES,
        Procedure(
            "run_compaction",
            "schedule a compaction, execute those that wait (op => 'run'), or both",
            (
                *_OPERATE,
                Parameter("timestamp", about="one plan, by its instant"),
                OPTIONS,
                _INSTANTS,
                _MOST,
            ),
            _PLAN_COLUMNS,
            _runs("compaction"),
        ),
        Procedure(
            "show_compaction",
            "the compactions on the timeline, the newest first",
            (*TABLE, LIMIT, FILTER),
            _PLAN_COLUMNS,
            _show(Action.COMPACTION),
        ),
        Procedure(
            "run_clustering",
            "schedule a clustering, execute those that wait (op => 'execute'), or both",
            (
                *TABLE,
                Parameter("predicate", about="not carried out: name partitions"),
                Parameter("order", about="columns to sort by, with commas between them"),
                _INVOLVED,
                _OPERATE[0],
                Parameter("order_strategy", about="linear, z-order or hilbert"),
                OPTIONS,
                _INSTANTS,
                Parameter("selected_partitions", about="paths, with commas between them"),
                Parameter("partition_regex_pattern", about="which partitions"),
                _MOST,
            ),
            _GROUP_COLUMNS,
            _runs("clustering"),
        ),
        Procedure(
            "show_clustering",
            "the clusterings on the timeline, the newest first",
            (*TABLE, LIMIT, _INVOLVED, FILTER),
            _GROUP_COLUMNS,
            _show(Action.CLUSTERING),
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
            (*TABLE, LIMIT, FILTER),
            "partition STRING, log_files INT, log_bytes BIGINT, oldest STRING, reason STRING",
            _show_debt,
        ),
        Procedure(
            "show_freshness",
            "how complete and how fresh both views are: of the table, then of partitions",
            (*TABLE, LIMIT, FILTER),
            "partition STRING, view STRING, completion BIGINT, freshness BIGINT",
            _show_freshness,
        ),
        Procedure(
            "show_holding_back",
            "the log files that hold read-optimized completion back, the worst first",
            (*TABLE, LIMIT, FILTER),
            "partition STRING, file_id STRING, log STRING, instant STRING, event_time BIGINT, "
            "size BIGINT",
            _show_holding_back,
        ),
    )
}


def help_rows() -> Rows:
    """The procedures with their parameters."""
    return [
        (each.name, ", ".join(p.name for p in each.parameters), each.about)
        for each in (*PROCEDURES.values(), _HELP)
    ]


_HELP = Procedure(
    "help",
    "the procedures, or one with its parameters and columns",
    (Parameter("cmd", about="one procedure"),),
    "procedure STRING, parameters STRING, about STRING",
    lambda table, arguments: help_rows(),
)
