"""Procedures for cleans and for archiving."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lakewright.errors import errors_in_file
from lakewright.format.timeline_metadata import parse_clean, parse_clean_plan
from lakewright.model.commit_metadata import CleanMetadata
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import CleanPlan, Skip
from lakewright.sql.procedures.base import (
    FILTER,
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
from lakewright.table.properties import read_optional
from lakewright.table.snapshot import Snapshot

if TYPE_CHECKING:
    from lakewright.api.table import Table

# Arguments of run_clean and archive_commits, and the options that they stand for.
_CLEAN_OPTIONS = {
    "clean_policy": "hoodie.clean.policy",
    "retain_commits": "hoodie.clean.commits.retained",
    "hours_retained": "hoodie.clean.hours.retained",
    "file_versions_retained": "hoodie.clean.fileversions.retained",
    "trigger_strategy": "hoodie.clean.trigger.strategy",
    "trigger_max_commits": "hoodie.clean.trigger.max.commits",
}
_ARCHIVE_OPTIONS = {
    "min_commits": "hoodie.keep.min.commits",
    "max_commits": "hoodie.keep.max.commits",
    "retain_commits": "hoodie.clean.commits.retained",
}


def _options(arguments: Arguments, keys: dict[str, str]) -> dict[str, str]:
    options = {key: arguments[name] for name, key in keys.items() if arguments[name] is not None}
    return {**parse_options(arguments.get("options")), **{k: str(v) for k, v in options.items()}}


def _cleans(snapshot: Snapshot) -> Iterator[tuple[Instant, CleanMetadata]]:
    """Yield the completed cleans, the newest first."""
    for instant in reversed(snapshot.timeline.completed(Action.CLEAN)):
        path = snapshot.timeline_path(instant)
        data = read_optional(snapshot.storage, path)
        if data:
            with errors_in_file(path):
                yield instant, parse_clean(data)


def _plans(snapshot: Snapshot) -> Iterator[tuple[Instant, CleanPlan]]:
    """Yield the plans of pending and completed cleans, the newest first."""
    for instant in reversed([i for i in snapshot.timeline if i.action == Action.CLEAN]):
        requested = replace(instant, state=State.REQUESTED, completed_at=None)
        path = snapshot.timeline_path(requested)
        data = read_optional(snapshot.storage, path)
        if data:
            with errors_in_file(path):
                yield instant, parse_clean_plan(data)


def _run_clean(table: Table, arguments: Arguments) -> Rows:
    runner = table.services(_options(arguments, _CLEAN_OPTIONS))
    if arguments["schedule_in_line"]:
        outcome = runner.run("clean")
        executed = [] if isinstance(outcome, Skip) else [outcome.instant]
    else:
        pending = table.snapshot().timeline.pending(Action.CLEAN)
        executed = [runner.execute(plan.requested_at).instant for plan in pending]
    return [
        (
            instant.requested_at,
            clean.took_ms,
            clean.files_deleted,
            clean.earliest_to_retain,
            json.dumps(sorted(clean.bootstrap_partitions)) if clean.bootstrap_partitions else "{}",
            clean.version,
        )
        for instant, clean in _cleans(table.snapshot())
        if instant.requested_at in executed
    ]


def _show_cleans(table: Table, arguments: Arguments) -> Rows:
    rows: Rows = [
        (
            instant.requested_at,
            instant.completed_at,
            instant.action,
            clean.started_at,
            clean.took_ms,
            clean.files_deleted,
            clean.earliest_to_retain,
            clean.last_completed,
            clean.version,
        )
        for instant, clean in _cleans(table.snapshot())
    ]
    return rows[: row_limit(arguments)]


def _show_cleaned(table: Table, arguments: Arguments) -> Rows:
    rows: Rows = [
        (
            instant.requested_at,
            instant.completed_at,
            instant.action,
            clean.started_at,
            cleaned.partition,
            cleaned.policy,
            len(cleaned.patterns),
            len(cleaned.deleted),
            len(cleaned.failed),
            cleaned.is_partition_deleted,
            clean.took_ms,
            clean.files_deleted,
        )
        for instant, clean in _cleans(table.snapshot())
        for cleaned in clean.partitions.values()
    ]
    return rows[: row_limit(arguments)]


def _show_plans(table: Table, arguments: Arguments) -> Rows:
    rows: Rows = []
    for instant, plan in _plans(table.snapshot()):
        retained = plan.earliest_to_retain
        rows.append(
            (
                instant.requested_at,
                instant.state.value,
                instant.action,
                retained.requested_at if retained is not None else None,
                plan.last_completed,
                plan.policy,
                plan.version,
                len(plan.files),
                len(plan.deleted_partitions),
                json.dumps(dict(plan.extra), sort_keys=True) if plan.extra else None,
            )
        )
    return rows[: row_limit(arguments)]


def _archive(table: Table, arguments: Arguments) -> Rows:
    table.run("archive", _options(arguments, _ARCHIVE_OPTIONS))
    return [(0,)]


_SHOW_PARAMETERS = (NAME, limit(10), PATH, FILTER)

CLEAN_PROCEDURES = (
    Procedure(
        "run_clean",
        "delete files that queries no longer need; no row if there is nothing to clean",
        (
            NAME,
            Parameter("schedule_in_line", True, about="false only executes pending plans"),
            Parameter("clean_policy", about="such as KEEP_LATEST_COMMITS"),
            Parameter("retain_commits", kind=int, about="how many commits stay readable"),
            Parameter("hours_retained", kind=int, about="how many hours stay readable"),
            Parameter("file_versions_retained", kind=int, about="how many file versions to keep"),
            Parameter("trigger_strategy", about="such as NUM_COMMITS"),
            Parameter("trigger_max_commits", kind=int, about="after how many commits to clean"),
            OPTIONS,
            PATH,
        ),
        "start_clean_time STRING, time_taken_in_millis BIGINT, total_files_deleted INT, "
        "earliest_commit_to_retain STRING, bootstrap_part_metadata STRING, version INT",
        _run_clean,
    ),
    Procedure(
        "show_cleans",
        "the completed cleans, the newest first",
        _SHOW_PARAMETERS,
        "clean_time STRING, state_transition_time STRING, action STRING, start_clean_time STRING, "
        "time_taken_in_millis BIGINT, total_files_deleted INT, earliest_commit_to_retain STRING, "
        "last_completed_commit_timestamp STRING, version INT",
        _show_cleans,
    ),
    Procedure(
        "show_cleans_metadata",
        "the completed cleans by partition, the newest first",
        _SHOW_PARAMETERS,
        "clean_time STRING, state_transition_time STRING, action STRING, start_clean_time STRING, "
        "partition_path STRING, policy STRING, delete_path_patterns INT, "
        "success_delete_files INT, failed_delete_files INT, is_partition_deleted BOOLEAN, "
        "time_taken_in_millis BIGINT, total_files_deleted INT",
        _show_cleaned,
    ),
    Procedure(
        "show_clean_plans",
        "the plans of pending and completed cleans, the newest first",
        _SHOW_PARAMETERS,
        "plan_time STRING, state STRING, action STRING, earliest_instant_to_retain STRING, "
        "last_completed_commit_timestamp STRING, policy STRING, version INT, "
        "total_partitions_to_clean INT, total_partitions_to_delete INT, extra_metadata STRING",
        _show_plans,
    ),
    Procedure(
        "archive_commits",
        "move old instants to the archived timeline",
        (
            *TABLE,
            Parameter("min_commits", 20, about="how many commits to keep at least"),
            Parameter("max_commits", 30, about="archive if there are more commits than this"),
            Parameter("retain_commits", 10, about="how many commits cleans leave readable"),
            Parameter("enable_metadata", True, about="without effect"),
        ),
        "result INT",
        _archive,
    ),
)
