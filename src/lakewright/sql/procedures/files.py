"""Procedures for file slices, file sizes, partitions and table properties."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING

from lakewright.errors import CorruptError, InvalidError, LakewrightError
from lakewright.format.table_properties import check_table_properties, parse_properties
from lakewright.model.file_group import FileGroup, FileSlice, GroupKey, LogFile, TimelineView
from lakewright.model.instant import Action
from lakewright.model.table_config import TableConfig
from lakewright.sql.procedures.base import (
    FILTER,
    LIMIT,
    NAME,
    PATH,
    TABLE,
    Arguments,
    Parameter,
    Procedure,
    Rows,
    limit,
    row_limit,
)
from lakewright.storage.base import Storage, join_path
from lakewright.table.properties import BACKUP, PROPERTIES, read_optional
from lakewright.table.snapshot import Snapshot

if TYPE_CHECKING:
    from lakewright.api.table import Table


def _view(snapshot: Snapshot, arguments: Arguments) -> TimelineView:
    last = arguments["max_instant"]
    if last is None or arguments["include_max"]:
        return snapshot.view(requested_until=last)
    earlier = [i.requested_at for i in snapshot.timeline.completed_writes if i.requested_at < last]
    return snapshot.view(requested_until=max(earlier, default="0"))


def _base_file(storage: Storage, file_slice: FileSlice) -> tuple[str | None, int]:
    """Return path and size of the base file, None and 0 if there is none."""
    base = file_slice.base
    return (join_path(storage.root, file_slice.path(base)), base.size) if base else (None, 0)


def _log_paths(storage: Storage, file_slice: FileSlice, logs: Iterable[LogFile]) -> str:
    return f"[{', '.join(join_path(storage.root, file_slice.path(log)) for log in logs)}]"


def _show_all(table: Table, arguments: Arguments) -> Rows:
    snapshot = table.snapshot()
    pattern = arguments["path_regex"] or "*"
    rows: Rows = [
        (
            file_slice.partition,
            file_slice.file_id,
            file_slice.base_instant,
            *_base_file(table.storage, file_slice),
            len(file_slice.logs),
            file_slice.log_size,
            _log_paths(table.storage, file_slice, file_slice.logs),
        )
        for group in snapshot.groups(_view(snapshot, arguments))
        if fnmatchcase(f"{group.partition}/", f"{pattern.strip('/')}*")
        for file_slice in reversed(group.slices)
    ]
    return rows[: row_limit(arguments)]


def _show_latest(table: Table, arguments: Arguments) -> Rows:
    snapshot = table.snapshot()
    partition = arguments["partition_path"]
    files = None if not partition else snapshot.files([partition.strip("/")])
    planned = _logs_in_pending_compactions(snapshot)
    groups = snapshot.groups(_view(snapshot, arguments), files)
    merge = arguments["merge"]
    return [_latest_row(table.storage, group, planned, merge=merge) for group in groups][
        : row_limit(arguments)
    ]


def _logs_in_pending_compactions(snapshot: Snapshot) -> dict[GroupKey, frozenset[str]]:
    return {
        (operation.partition, operation.file_id): frozenset(operation.logs)
        for instant, plan in snapshot.pending_plans()
        if instant.action == Action.COMPACTION
        for operation in plan.operations
    }


def _latest_row(
    storage: Storage, group: FileGroup, planned: dict[GroupKey, frozenset[str]], *, merge: bool
) -> tuple[object, ...]:
    file_slice = group.latest_merged_slice() if merge else group.slices[-1]
    path, size = _base_file(storage, file_slice)
    planned_logs = planned.get(group.key, frozenset())
    scheduled = [log for log in file_slice.logs if log.name in planned_logs]
    unplanned = [log for log in file_slice.logs if log.name not in planned_logs]
    log_sizes = [sum(log.size for log in logs) for logs in (scheduled, unplanned)]
    return (
        file_slice.partition,
        file_slice.file_id,
        file_slice.base_instant,
        path,
        size,
        len(file_slice.logs),
        file_slice.log_size,
        *log_sizes,
        *(log_size / size if size else 0.0 for log_size in log_sizes),
        _log_paths(storage, file_slice, scheduled),
        _log_paths(storage, file_slice, unplanned),
    )


def _file_sizes(table: Table, arguments: Arguments) -> Rows:
    snapshot = table.snapshot()
    partition = arguments["partition_path"]
    files = snapshot.files([partition.strip("/")] if partition else None)
    sizes: dict[str, list[int]] = {}
    for file in chain.from_iterable(files.values()):
        if snapshot.timeline.is_committed(file.instant):
            sizes.setdefault(file.instant, []).append(file.size)
    newest = sorted(sizes, reverse=True)[: row_limit(arguments)]
    rows: Rows = [(at, *_statistics(sizes[at])) for at in newest]
    return [*rows, ("ALL", *_statistics(list(chain.from_iterable(sizes.values()))))] if rows else []


def _statistics(sizes: Sequence[int]) -> tuple[int | float, ...]:
    ordered = sorted(sizes)
    return (
        ordered[0],
        _quantile(ordered, 0.1),
        _quantile(ordered, 0.5),
        statistics.fmean(ordered),
        _quantile(ordered, 0.95),
        ordered[-1],
        len(ordered),
        statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
    )


def _quantile(ordered: Sequence[int], fraction: float) -> float:
    """Return a quantile of sorted values, by linear interpolation."""
    rank = fraction * (len(ordered) + 1)
    if rank < 1:
        return float(ordered[0])
    if rank >= len(ordered):
        return float(ordered[-1])
    low, high = ordered[int(rank) - 1], ordered[int(rank)]
    return low + (rank - int(rank)) * (high - low)


def _file_group_history(table: Table, arguments: Arguments) -> Rows:
    snapshot = table.snapshot()
    file_id, partition = arguments["file_group_id"], arguments["partition"]
    instants = [*snapshot.archived] if arguments["showArchived"] else []
    instants += snapshot.timeline.completed_writes
    rows: Rows = []
    for instant, commit in zip(instants, snapshot.commits(instants), strict=True):
        for path, stats in commit.stats.items():
            rows += [
                (
                    instant.requested_at,
                    instant.completed_at,
                    instant.action,
                    commit.operation,
                    path,
                    (stat.path or "").rpartition("/")[2],
                    stat.prev_commit,
                    stat.num_writes,
                    stat.num_inserts,
                    stat.num_update_writes,
                    stat.num_deletes,
                    stat.file_size_in_bytes,
                )
                for stat in stats
                if stat.file_id == file_id and partition in (None, path)
            ]
        rows += [
            (instant.requested_at, instant.completed_at, instant.action, commit.operation, path)
            + (None,) * 7
            for path, ids in commit.replaced.items()
            if file_id in ids and partition in (None, path)
        ]
    if not rows:
        raise InvalidError("no write on the timeline is about this file group", file_id=file_id)
    return rows[::-1][: row_limit(arguments)]


def _properties(table: Table, arguments: Arguments) -> Rows:
    return [*sorted(table.config.properties.items())][: row_limit(arguments)]


def _validate(table: Table, arguments: Arguments) -> Rows:
    """Return a row for each check, with its result and details."""
    data = read_optional(table.storage, PROPERTIES)
    rows: Rows = [("file", data is not None, PROPERTIES)]
    try:
        values = parse_properties(data or b"")
        check_table_properties(values)
        rows.append(("required keys and checksum", True, ""))
        config = TableConfig.from_properties(values)
        rows.append(("values", True, f"version {config.version}, {config.table_type}"))
        rows += _check_columns(table.snapshot(), config)
    except LakewrightError as error:
        name = "required keys and checksum" if isinstance(error, CorruptError) else "values"
        rows.append((name, False, str(error)))
    backup = read_optional(table.storage, BACKUP)
    detail = "an update did not finish: the next one repairs it" if backup is not None else ""
    return [*rows, ("no backup left", backup is None, detail)]


def _check_columns(snapshot: Snapshot, config: TableConfig) -> Rows:
    """Check that the columns that the properties name are in the schema of the table."""
    if snapshot.avro_schema() is None:
        return []
    names = set(snapshot.schema(snapshot.view()).names)
    checks = {
        "record key": config.record_key_fields,
        "partition columns": config.partition_fields,
        "ordering columns": config.ordering_fields,
    }
    rows: Rows = []
    for name, fields in checks.items():
        missing = [field for field in fields if field.split(".")[0] not in names]
        rows.append(
            (name, not missing, f"not in the schema: {', '.join(missing)}" if missing else "")
        )
    return rows


def _drop_partition(table: Table, arguments: Arguments) -> Rows:
    path = str(arguments["partition"]).strip("/")
    if not path or set("*?") & set(path) or ".." in path.split("/"):
        raise InvalidError("the path of one partition expected", partition=arguments["partition"])
    if path not in table.snapshot().files([path]):
        raise InvalidError("the table has no such partition", partition=path)
    return [(bool(table.delete_partitions([path])),)]


_VIEW_PARAMETERS = (
    *TABLE,
    Parameter("max_instant", about="show the table as of this instant"),
    Parameter("include_max", False, about="whether to include that instant"),
    Parameter("include_in_flight", False, about="without effect: only committed files are shown"),
    Parameter("exclude_compaction", False, about="without effect"),
    limit(10),
)
_BASE_COLUMNS = (
    "partition STRING, file_id STRING, base_instant STRING, data_file STRING, "
    "data_file_size BIGINT, num_delta_files BIGINT, total_delta_file_size BIGINT"
)

FILE_PROCEDURES = (
    Procedure(
        "show_fsview_all",
        "the file slices of all file groups",
        (
            *_VIEW_PARAMETERS,
            Parameter("path_regex", about="a pattern for partitions, with * and ?"),
            FILTER,
        ),
        f"{_BASE_COLUMNS}, delta_files STRING",
        _show_all,
    ),
    Procedure(
        "show_fsview_latest",
        "the latest file slice of each file group",
        (
            *_VIEW_PARAMETERS,
            Parameter("partition_path", about="the path of one partition"),
            Parameter(
                "merge", True, about="whether to include the slice under a pending compaction"
            ),
            FILTER,
        ),
        f"{_BASE_COLUMNS}, delta_size_compaction_scheduled BIGINT, "
        "delta_size_compaction_unscheduled BIGINT, "
        "delta_to_base_radio_compaction_scheduled DOUBLE, "
        "delta_to_base_radio_compaction_unscheduled DOUBLE, "
        "delta_files_compaction_scheduled STRING, delta_files_compaction_unscheduled STRING",
        _show_latest,
    ),
    Procedure(
        "stats_file_sizes",
        "statistics of the file sizes of each write",
        (
            NAME,
            Parameter("partition_path", about="the path of one partition"),
            limit(10),
            PATH,
            FILTER,
        ),
        "commit_time STRING, min BIGINT, 10th DOUBLE, 50th DOUBLE, avg DOUBLE, 95th DOUBLE, "
        "max BIGINT, num_files INT, std_dev DOUBLE",
        _file_sizes,
    ),
    Procedure(
        "show_file_group_history",
        "the writes to one file group, the newest first",
        (
            *TABLE,
            Parameter("file_group_id", required=True, about="its file id"),
            Parameter("partition", about="its partition"),
            Parameter("showArchived", False, about="whether to include the archived timeline"),
            LIMIT,
            FILTER,
        ),
        "instant_time STRING, completion_time STRING, action STRING, operation_type STRING, "
        "partition_path STRING, file_name STRING, previous_commit STRING, num_writes BIGINT, "
        "num_inserts BIGINT, num_updates BIGINT, num_deletes BIGINT, file_size_bytes BIGINT",
        _file_group_history,
    ),
    Procedure(
        "show_table_properties",
        "the table's properties",
        (*TABLE, limit(100), FILTER),
        "key STRING, value STRING",
        _properties,
    ),
    Procedure(
        "validate_hoodie_properties",
        "whether the table's properties are complete and consistent with the table",
        (*TABLE, FILTER),
        "check STRING, result BOOLEAN, detail STRING",
        _validate,
    ),
    Procedure(
        "drop_partition",
        "delete one partition",
        (NAME, Parameter("partition", required=True, about="its path"), PATH),
        "result BOOLEAN",
        _drop_partition,
    ),
)
