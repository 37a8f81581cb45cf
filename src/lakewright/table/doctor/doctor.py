"""Examining a table: load what tells of it, and let every check look at that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from lakewright.clock import Clock
from lakewright.errors import ConflictError, CorruptError
from lakewright.format.partition_metadata import PartitionMetadata, format_partition_metadata
from lakewright.format.table_properties import REQUIRED_KEYS
from lakewright.model.file_group import PARTITION_METADATA
from lakewright.model.instant import Instant, parse_instant
from lakewright.model.table_config import TableConfig
from lakewright.storage.base import Storage, join_path
from lakewright.table.doctor import checks
from lakewright.table.doctor.checks import unlisted_files
from lakewright.table.doctor.damaged_timeline import repair_damaged_file
from lakewright.table.doctor.evidence import Evidence, load_evidence
from lakewright.table.doctor.findings import Diagnosis, Finding, FindingKind, Severity
from lakewright.table.failed_writes import delete_leftovers, find_leftovers
from lakewright.table.feature_checks import check_writable
from lakewright.table.options import HeartbeatSettings
from lakewright.table.orphan_files import delete_orphan_files
from lakewright.table.properties import (
    PROPERTIES,
    drop_metadata_table,
    load_properties,
    recover_properties,
)
from lakewright.table.rollback import CompletedConcurrentlyError, resume_rollbacks, rollback_locked
from lakewright.table.savepoint import locked_table
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.transaction import WriterContext

CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    checks.properties_backup,
    checks.archived_timeline,
    checks.unreadable_timeline_files,
    checks.clock_order,
    checks.pending_instants,
    checks.metadata_table,
    checks.partition_metadata,
    checks.unlisted_files,
    checks.invalid_file_slices,
    checks.missing_files,
    checks.orphans,
    checks.leftover_files,
    checks.lock,
    checks.ignored_entries,
)


def examine(
    storage: Storage, clock: Clock, heartbeat: HeartbeatSettings | None = None
) -> Diagnosis:
    """Look at a table and tell what is wrong with it; nothing is changed.

    Raises:
        InvalidError: there is no table.
        UnsupportedError: the table is of a version or kind that cannot be examined.
    """
    try:
        TableConfig.from_properties(load_properties(storage))
    except CorruptError as error:
        return Diagnosis((_damaged(error),))
    evidence = load_evidence(storage, clock, heartbeat or HeartbeatSettings())
    found = (finding for check in CHECKS for finding in check(evidence))
    order = list(FindingKind)
    return Diagnosis(tuple(sorted(found, key=lambda f: (order.index(f.kind), f.target))))


def _damaged(error: CorruptError) -> Finding:
    return Finding(
        FindingKind.PROPERTIES,
        Severity.ERROR,
        f"the table's properties cannot be used: {error.message}",
        "bring the file back from a copy. If there is none, make a table elsewhere with the name, "
        "type, key, partition and ordering fields and options of this one (`lakewright create`), "
        "and copy its file; nothing else was examined",
        PROPERTIES,
        facts={**error.facts, "needed": list(REQUIRED_KEYS)},
    )


# ------------------------------------------------------------------------------------------------
# Putting right what can safely be put right: under the table's lock, on the table as it is then.
#
# Data files are deleted only where a commit tells that they are no part of its write, or markers
# that
# their write has come to nothing, and those of a service whose completed file is damaged: they
# hold
# no row that others do not. Those of a damaged write are deleted by force alone, and those of no
# known instant never.


def repair(writer: WriterContext, found: Diagnosis, *, force: bool = False) -> Diagnosis:
    """Put right what is safe of what was found, and examine the table again.

    With `force` also that by which rows are lost: a write goes whose completed file is damaged.
    Everything is looked at anew before it is touched: what is not so any more is left alone.
    """
    now = examine(writer.storage, writer.clock, writer.heartbeat)
    known = {(each.kind, each.target) for each in to_repair(found, force=force)}
    for finding in to_repair(now, force=force):
        # What was not there when somebody agreed to the repair waits for the next one. What another
        # damaged file keeps from being repaired is found again below, and that file with it.
        if (finding.kind, finding.target) in known:
            with suppress(CorruptError):
                _REPAIRS[finding.kind](writer, finding)
    return examine(writer.storage, writer.clock, writer.heartbeat)


def to_repair(found: Diagnosis, *, force: bool) -> tuple[Finding, ...]:
    """What a repair puts right of a diagnosis, in this order."""
    return (*found.repairable, *(found.repairable_by_force if force else ()))


def _finish_properties_change(writer: WriterContext, finding: Finding) -> None:
    with writer.locked():
        recover_properties(writer.storage, load_properties(writer.storage))


def _roll_back(writer: WriterContext, finding: Finding) -> None:
    with locked_table(writer) as (snapshot, times):
        target = _still_pending(snapshot, finding)
        if target is None or writer.live_instants([target.requested_at]):
            return
        by_markers = writer.transaction.rollback_by_markers
        with suppress(CompletedConcurrentlyError):
            rollback_locked(snapshot, target, times, writer.clock, by_markers=by_markers)


def _finish_rollback(writer: WriterContext, finding: Finding) -> None:
    with locked_table(writer) as (snapshot, times):
        living = writer.live_instants(i.requested_at for i in snapshot.timeline.pending())
        by_markers = writer.transaction.rollback_by_markers
        resume_rollbacks(snapshot, times, writer.clock, by_markers=by_markers, alive=living)


def _still_pending(snapshot: Snapshot, finding: Finding) -> Instant | None:
    wanted = parse_instant(finding.target)
    return next((i for i in snapshot.timeline.pending() if i == wanted), None)


def _drop_metadata_table(writer: WriterContext, finding: Finding) -> None:
    with writer.locked():
        config = load_snapshot(writer.storage).config
        check_writable(config)
        drop_metadata_table(writer.storage, config)


def _create_partition_metadata(writer: WriterContext, finding: Finding) -> None:
    path = finding.target
    value = PartitionMetadata(
        commit_time=str(finding.facts["first_instant"]),
        depth=path.count("/") + 1 if path else 0,
    )
    # Somebody else may have just done the same.
    with suppress(ConflictError):
        writer.storage.create(join_path(path, PARTITION_METADATA), format_partition_metadata(value))


def _delete_leftovers(writer: WriterContext, finding: Finding) -> None:
    delete_leftovers(writer.storage, find_leftovers(writer.storage, writer.heartbeat, writer.clock))


def _delete_orphans(writer: WriterContext, finding: Finding) -> None:
    with locked_table(writer) as (snapshot, _):
        delete_orphan_files(snapshot, writer.heartbeat, writer.clock.now_ms(), [finding.target])


def _delete_unlisted(writer: WriterContext, finding: Finding) -> None:
    with locked_table(writer) as (snapshot, _):
        now = load_evidence(writer.storage, writer.clock, writer.heartbeat)
        if any(each.safe and each.target == finding.target for each in unlisted_files(now)):
            snapshot.storage.delete_many(file.path for file in now.unlisted[finding.target])


_REPAIRS: Mapping[FindingKind, Callable[[WriterContext, Finding], None]] = {
    FindingKind.PROPERTIES_BACKUP: _finish_properties_change,
    FindingKind.TIMELINE_FILE: repair_damaged_file,
    FindingKind.DEAD_WRITE: _roll_back,
    FindingKind.DEAD_ROLLBACK: _finish_rollback,
    FindingKind.METADATA_TABLE: _drop_metadata_table,
    FindingKind.PARTITION_METADATA: _create_partition_metadata,
    FindingKind.UNLISTED_FILE: _delete_unlisted,
    FindingKind.STRAYS: _delete_orphans,
    FindingKind.LEFTOVERS: _delete_leftovers,
}
