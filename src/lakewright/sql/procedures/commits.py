"""The procedures that show what writes did, with Hudi's names and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from lakewright.errors import InvalidError
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.instant import Instant
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
    most,
)
from lakewright.table.snapshot import Snapshot

if TYPE_CHECKING:
    from lakewright.api.table import Table

# What Hudi says of the size of rows where none were written.
_NO_SIZE = 2**63 - 1

_COUNTS = (
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

Line = Callable[[Instant, CommitMetadata], Iterable[tuple[Any, ...]]]


def _sum(stats: Iterable[WriteStat], name: str) -> int:
    return sum(getattr(stat, name) or 0 for stat in stats)


def _is_new(stat: WriteStat) -> bool:
    return stat.prev_commit == "null"


def _counts(commit: CommitMetadata) -> tuple[int, ...]:
    stats = commit.write_stats()
    added = sum(map(_is_new, stats))
    return (
        _sum(stats, "total_write_bytes"),
        added,
        len(stats) - added,
        len(commit.stats),
        _sum(stats, "num_writes"),
        _sum(stats, "num_update_writes"),
        _sum(stats, "total_write_errors"),
    )


def _whole(instant: Instant, commit: CommitMetadata) -> Rows:
    return [(instant.requested_at, instant.completed_at, instant.action, *_counts(commit))]


def _whole_archived(instant: Instant, commit: CommitMetadata) -> Rows:
    return [(instant.requested_at, instant.completed_at, *_counts(commit))]


def _files(instant: Instant, commit: CommitMetadata) -> Rows:
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
    snapshot: Snapshot, instants: Iterable[Instant], line: Line
) -> Iterable[tuple[Any, ...]]:
    for instant in instants:
        (commit,) = snapshot.commits([instant])
        yield from line(instant, commit)


def _newest(line: Line) -> Callable[[Table, Arguments], Rows]:
    def run(table: Table, arguments: Arguments) -> Rows:
        snapshot = table.snapshot()
        newest = reversed(snapshot.timeline.completed_writes)
        return list(islice(_commit_rows(snapshot, newest, line), most(arguments)))

    return run


def _archived(line: Line) -> Callable[[Table, Arguments], Rows]:
    def run(table: Table, arguments: Arguments) -> Rows:
        snapshot = table.snapshot()
        first, last = arguments["start_ts"] or "", arguments["end_ts"] or "9"
        newest = [i for i in reversed(snapshot.archived) if first <= i.requested_at <= last]
        return list(islice(_commit_rows(snapshot, newest, line), most(arguments)))

    return run


def written(snapshot: Snapshot, instant: str) -> tuple[Instant, CommitMetadata]:
    """A completed write, by its instant; InvalidError if there is none."""
    found = snapshot.timeline.by_time.get(instant)
    if found is None or not found.is_completed:
        newest = [i.requested_at for i in reversed(snapshot.timeline.completed_writes)]
        raise InvalidError(
            "there is no completed write of this instant on the timeline",
            instant=instant,
            newest=newest[:5],
        )
    (commit,) = snapshot.commits([found])
    return found, commit


def _of_one(line: Line) -> Callable[[Table, Arguments], Rows]:
    def run(table: Table, arguments: Arguments) -> Rows:
        found = written(table.snapshot(), arguments["instant_time"])
        return list(islice(line(*found), most(arguments)))

    return run


def _files_of_one(instant: Instant, commit: CommitMetadata) -> Rows:
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


def _partitions_of_one(instant: Instant, commit: CommitMetadata) -> Rows:
    return [
        (
            instant.action,
            partition,
            sum(map(_is_new, stats)),
            len(stats) - sum(map(_is_new, stats)),
            _sum(stats, "num_inserts"),
            _sum(stats, "num_update_writes"),
            _sum(stats, "total_write_bytes"),
            _sum(stats, "total_write_errors"),
        )
        for partition, stats in commit.stats.items()
    ]


def _sizes_of_one(instant: Instant, commit: CommitMetadata) -> Rows:
    stats = commit.write_stats()
    size, rows = _sum(stats, "total_write_bytes"), _sum(stats, "num_writes")
    # Hudi rounds up.
    return [(instant.action, size, rows, -(-size // rows) if rows else _NO_SIZE)]


def _extra(table: Table, arguments: Arguments) -> Rows:
    snapshot = table.snapshot()
    at = arguments["instant_time"]
    newest = snapshot.timeline.completed_writes[-1:]
    if at is None and not newest:
        return []
    instant, commit = written(snapshot, at or newest[0].requested_at)
    wanted = arguments["metadata_key"]
    rows: Rows = [
        (instant.requested_at, instant.action, key, value)
        for key, value in commit.extra.items()
        if wanted in (None, key)
    ]
    return rows[: most(arguments)]


def _amplification(table: Table, arguments: Arguments) -> Rows:
    snapshot = table.snapshot()
    rows, upserts, writes = [], 0, 0
    commits = [i for i in snapshot.timeline.completed_writes if i.action == "commit"]
    for instant, commit in zip(commits, snapshot.commits(commits), strict=True):
        stats = commit.write_stats()
        upserted, count = _sum(stats, "num_update_writes"), _sum(stats, "num_writes")
        if upserted:
            rows.append((instant.requested_at, upserted, count, f"{count / upserted:.2f}"))
            upserts, writes = upserts + upserted, writes + count
    total = ("Total", upserts, writes, f"{writes / upserts:.2f}" if upserts else "0")
    kept = most(arguments)
    return [*(rows if kept is None else rows[max(len(rows) - kept, 0) :]), total]


def _procedure(
    name: str,
    about: str,
    parameters: Sequence[Parameter],
    columns: str,
    run: Callable[[Table, Arguments], Rows],
) -> Procedure:
    """One that Hudi knows only by the name of a table."""
    return Procedure(name, about, (*parameters, PATH, FILTER), columns, run)


_SPAN = (
    Parameter("start_ts", about="the first instant that counts"),
    Parameter("end_ts", about="the last instant that counts"),
)

COMMIT_PROCEDURES = (
    _procedure(
        "show_commits",
        "what completed writes did, the newest first",
        (NAME, limit(10)),
        f"{_COMMIT_TIMES}, action STRING, {_COUNTS}",
        _newest(_whole),
    ),
    _procedure(
        "show_commits_metadata",
        "what completed writes did to each file, the newest first",
        (NAME, limit(10)),
        _FILE_COLUMNS,
        _newest(_files),
    ),
    _procedure(
        "show_archived_commits",
        "what writes did that are in history, the newest first",
        (NAME, limit(10), *_SPAN),
        f"{_COMMIT_TIMES}, {_COUNTS}",
        _archived(_whole_archived),
    ),
    _procedure(
        "show_archived_commits_metadata",
        "what writes that are in history did to each file, the newest first",
        (NAME, limit(10), *_SPAN),
        _FILE_COLUMNS,
        _archived(_files),
    ),
    _procedure(
        "show_commit_files",
        "what a write did to each file",
        (NAME, limit(10), INSTANT),
        "action STRING, partition_path STRING, file_id STRING, previous_commit STRING, "
        "total_records_updated BIGINT, total_records_written BIGINT, total_bytes_written BIGINT, "
        "total_errors BIGINT, file_size BIGINT",
        _of_one(_files_of_one),
    ),
    _procedure(
        "show_commit_partitions",
        "what a write did in each partition",
        (NAME, limit(10), INSTANT),
        "action STRING, partition_path STRING, total_files_added BIGINT, "
        "total_files_updated BIGINT, total_records_inserted BIGINT, total_records_updated BIGINT, "
        "total_bytes_written BIGINT, total_errors BIGINT",
        _of_one(_partitions_of_one),
    ),
    _procedure(
        "show_commit_write_stats",
        "how much a write wrote",
        (NAME, limit(10), INSTANT),
        "action STRING, total_bytes_written BIGINT, total_records_written BIGINT, "
        "avg_record_size BIGINT",
        _of_one(_sizes_of_one),
    ),
    _procedure(
        "show_commit_extra_metadata",
        "what a write keeps besides statistics; of the newest, if none is named",
        (
            NAME,
            limit(100),
            Parameter("instant_time", about="a write, by its instant"),
            Parameter("metadata_key", about="one key of it"),
        ),
        "instant_time STRING, action STRING, metadata_key STRING, metadata_value STRING",
        _extra,
    ),
    _procedure(
        "stats_wa",
        "how many rows base files took for the rows that were updated",
        (NAME, limit(10)),
        "commit_time STRING, total_upserted BIGINT, total_written BIGINT, "
        "write_amplification_factor STRING",
        _amplification,
    ),
)
