"""Procedures that show statistics and metadata of writes, with the columns that Hudi returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from lakewright.errors import InvalidError
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.instant import Action, Instant
from lakewright.sql.procedures.base import (
    FILTER,
    INSTANT,
    NAME,
    PATH,
    Arguments,
    Parameter,
    Procedure,
    Rows,
    limit,
    row_limit,
)
from lakewright.table.snapshot import Snapshot

if TYPE_CHECKING:
    from lakewright.api.table import Table

# The average record size that Hudi returns for a write without records.
_NO_RECORD_SIZE = 2**63 - 1

_COUNT_COLUMNS = (
    "total_bytes_written BIGINT, total_files_added BIGINT, total_files_updated BIGINT, "
    "total_partitions_written BIGINT, total_records_written BIGINT, "
    "total_update_records_written BIGINT, total_errors BIGINT"
)
_COMMIT_TIMES = "commit_time STRING, state_transition_time STRING"
_FILE_COLUMNS = (
    f"{_COMMIT_TIMES}, action STRING, partition STRING, file_id STRING, previous_commit STRING, "
    "num_writes BIGINT, num_inserts BIGINT, num_deletes BIGINT, num_update_writes BIGINT, "
    "total_errors BIGINT, total_log_blocks BIGINT, total_corrupt_log_blocks BIGINT, "
    "total_rollback_blocks BIGINT, total_log_records BIGINT, "
    "total_updated_records_compacted BIGINT, total_bytes_written BIGINT"
)

# Returns the rows for one write.
Line = Callable[[Instant, CommitMetadata], Iterable[tuple[Any, ...]]]


def _sum(stats: Iterable[WriteStat], name: str) -> int:
    return sum(getattr(stat, name) or 0 for stat in stats)


def _is_new_file_group(stat: WriteStat) -> bool:
    return stat.prev_commit == "null"


def _counts(commit: CommitMetadata) -> tuple[int, ...]:
    stats = commit.write_stats()
    added = sum(map(_is_new_file_group, stats))
    return (
        _sum(stats, "total_write_bytes"),
        added,
        len(stats) - added,
        len(commit.stats),
        _sum(stats, "num_writes"),
        _sum(stats, "num_update_writes"),
        _sum(stats, "total_write_errors"),
    )


def _commit_row(instant: Instant, commit: CommitMetadata) -> Rows:
    return [(instant.requested_at, instant.completed_at, instant.action, *_counts(commit))]


def _archived_commit_row(instant: Instant, commit: CommitMetadata) -> Rows:
    return [(instant.requested_at, instant.completed_at, *_counts(commit))]


def _file_rows(instant: Instant, commit: CommitMetadata) -> Rows:
    return [
        (
            instant.requested_at,
            instant.completed_at,
            instant.action,
            partition,
            stat.file_id,
            stat.prev_commit,
            stat.num_writes,
            stat.num_inserts,
            stat.num_deletes,
            stat.num_update_writes,
            stat.total_write_errors,
            stat.total_log_blocks,
            stat.total_corrupt_log_block,
            stat.total_rollback_blocks,
            stat.total_log_records,
            stat.total_updated_records_compacted,
            stat.total_write_bytes,
        )
        for partition, stats in commit.stats.items()
        for stat in stats
    ]


def _commit_rows(
    snapshot: Snapshot, instants: Iterable[Instant], to_rows: Line
) -> Iterable[tuple[Any, ...]]:
    for instant in instants:
        (commit,) = snapshot.commits([instant])
        yield from to_rows(instant, commit)


def _show_completed(to_rows: Line) -> Callable[[Table, Arguments], Rows]:
    def run(table: Table, arguments: Arguments) -> Rows:
        snapshot = table.snapshot()
        newest = reversed(snapshot.timeline.completed_writes)
        return list(islice(_commit_rows(snapshot, newest, to_rows), row_limit(arguments)))

    return run


def _show_archived(to_rows: Line) -> Callable[[Table, Arguments], Rows]:
    def run(table: Table, arguments: Arguments) -> Rows:
        snapshot = table.snapshot()
        first, last = arguments["start_ts"] or "", arguments["end_ts"] or "9"
        newest = reversed(snapshot.archived_between(first, last))
        return list(islice(_commit_rows(snapshot, newest, to_rows), row_limit(arguments)))

    return run


def written(snapshot: Snapshot, instant: str) -> tuple[Instant, CommitMetadata]:
    """Return the completed write of an instant; InvalidError if there is none."""
    completed = snapshot.timeline.by_time.get(instant)
    if completed is None or not completed.is_completed:
        newest = [i.requested_at for i in reversed(snapshot.timeline.completed_writes)]
        raise InvalidError(
            "there is no completed write of this instant on the timeline",
            instant=instant,
            newest=newest[:5],
        )
    (commit,) = snapshot.commits([completed])
    return completed, commit


def _show_one(to_rows: Line) -> Callable[[Table, Arguments], Rows]:
    def run(table: Table, arguments: Arguments) -> Rows:
        write = written(table.snapshot(), arguments["instant_time"])
        return list(islice(to_rows(*write), row_limit(arguments)))

    return run


def _file_rows_of_write(instant: Instant, commit: CommitMetadata) -> Rows:
    return [
        (
            instant.action,
            partition,
            stat.file_id,
            stat.prev_commit,
            stat.num_update_writes,
            stat.num_writes,
            stat.total_write_bytes,
            stat.total_write_errors,
            stat.file_size_in_bytes,
        )
        for partition, stats in commit.stats.items()
        for stat in stats
    ]


def _partition_rows_of_write(instant: Instant, commit: CommitMetadata) -> Rows:
    return [
        (
            instant.action,
            partition,
            sum(map(_is_new_file_group, stats)),
            len(stats) - sum(map(_is_new_file_group, stats)),
            _sum(stats, "num_inserts"),
            _sum(stats, "num_update_writes"),
            _sum(stats, "total_write_bytes"),
            _sum(stats, "total_write_errors"),
        )
        for partition, stats in commit.stats.items()
    ]


def _size_row_of_write(instant: Instant, commit: CommitMetadata) -> Rows:
    stats = commit.write_stats()
    size, records = _sum(stats, "total_write_bytes"), _sum(stats, "num_writes")
    # Hudi rounds up.
    return [(instant.action, size, records, -(-size // records) if records else _NO_RECORD_SIZE)]


def _show_extra_metadata(table: Table, arguments: Arguments) -> Rows:
    snapshot = table.snapshot()
    at = arguments["instant_time"]
    newest = snapshot.timeline.completed_writes[-1:]
    if at is None and not newest:
        return []
    instant, commit = written(snapshot, at or newest[0].requested_at)
    metadata_key = arguments["metadata_key"]
    rows: Rows = [
        (instant.requested_at, instant.action, key, value)
        for key, value in commit.extra.items()
        if metadata_key in (None, key)
    ]
    return rows[: row_limit(arguments)]


def _write_amplification(table: Table, arguments: Arguments) -> Rows:
    snapshot = table.snapshot()
    rows, total_updated, total_written = [], 0, 0
    instants = [i for i in snapshot.timeline.completed_writes if i.action == Action.COMMIT]
    for instant, commit in zip(instants, snapshot.commits(instants), strict=True):
        stats = commit.write_stats()
        updated, records = _sum(stats, "num_update_writes"), _sum(stats, "num_writes")
        if updated:
            rows.append((instant.requested_at, updated, records, f"{records / updated:.2f}"))
            total_updated, total_written = total_updated + updated, total_written + records
    total = (
        "Total",
        total_updated,
        total_written,
        f"{total_written / total_updated:.2f}" if total_updated else "0",
    )
    max_rows = row_limit(arguments)
    return [*(rows if max_rows is None else rows[max(len(rows) - max_rows, 0) :]), total]


def _procedure(
    name: str,
    about: str,
    parameters: Sequence[Parameter],
    columns: str,
    run: Callable[[Table, Arguments], Rows],
) -> Procedure:
    """Return a procedure that has no `path` in Hudi: here `path` follows Hudi's parameters."""
    return Procedure(name, about, (*parameters, PATH, FILTER), columns, run)


_RANGE = (
    Parameter("start_ts", about="the first instant to show"),
    Parameter("end_ts", about="the last instant to show"),
)

COMMIT_PROCEDURES = (
    _procedure(
        "show_commits",
        "statistics of completed writes, the newest first",
        (NAME, limit(10)),
        f"{_COMMIT_TIMES}, action STRING, {_COUNT_COLUMNS}",
        _show_completed(_commit_row),
    ),
    _procedure(
        "show_commits_metadata",
        "statistics of completed writes by file, the newest first",
        (NAME, limit(10)),
        _FILE_COLUMNS,
        _show_completed(_file_rows),
    ),
    _procedure(
        "show_archived_commits",
        "statistics of archived writes, the newest first",
        (NAME, limit(10), *_RANGE),
        f"{_COMMIT_TIMES}, {_COUNT_COLUMNS}",
        _show_archived(_archived_commit_row),
    ),
    _procedure(
        "show_archived_commits_metadata",
        "statistics of archived writes by file, the newest first",
        (NAME, limit(10), *_RANGE),
        _FILE_COLUMNS,
        _show_archived(_file_rows),
    ),
    _procedure(
        "show_commit_files",
        "statistics of a write by file",
        (NAME, limit(10), INSTANT),
        "action STRING, partition_path STRING, file_id STRING, previous_commit STRING, "
        "total_records_updated BIGINT, total_records_written BIGINT, total_bytes_written BIGINT, "
        "total_errors BIGINT, file_size BIGINT",
        _show_one(_file_rows_of_write),
    ),
    _procedure(
        "show_commit_partitions",
        "statistics of a write by partition",
        (NAME, limit(10), INSTANT),
        "action STRING, partition_path STRING, total_files_added BIGINT, "
        "total_files_updated BIGINT, total_records_inserted BIGINT, total_records_updated BIGINT, "
        "total_bytes_written BIGINT, total_errors BIGINT",
        _show_one(_partition_rows_of_write),
    ),
    _procedure(
        "show_commit_write_stats",
        "the bytes and records that a write has written",
        (NAME, limit(10), INSTANT),
        "action STRING, total_bytes_written BIGINT, total_records_written BIGINT, "
        "avg_record_size BIGINT",
        _show_one(_size_row_of_write),
    ),
    _procedure(
        "show_commit_extra_metadata",
        "the extra metadata of a write, by default of the newest one",
        (
            NAME,
            limit(100),
            Parameter("instant_time", about="the instant of a write"),
            Parameter("metadata_key", about="one key of the metadata"),
        ),
        "instant_time STRING, action STRING, metadata_key STRING, metadata_value STRING",
        _show_extra_metadata,
    ),
    _procedure(
        "stats_wa",
        "write amplification: how many records were written to update records",
        (NAME, limit(10)),
        "commit_time STRING, total_upserted BIGINT, total_written BIGINT, "
        "write_amplification_factor STRING",
        _write_amplification,
    ),
)
