"""Examine a table, and repair what can be repaired safely.

An examination loads the evidence once, and runs all checks on it. Every repair runs under the
table's lock, on the table as it is then. A repair deletes data files in these cases only:

- their commit shows that they are not part of the write;
- their markers show that their write has failed;
- they belong to a table service whose completed file is damaged: they hold no row that other files
  do not hold.

The data files of a write whose completed file is damaged are deleted only by force; those of an
unknown instant never.
"""

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
from lakewright.table.failed_writes import delete_leftovers, delete_orphan_files, find_leftovers
from lakewright.table.feature_checks import check_writable
from lakewright.table.options import HeartbeatSettings, LockSettings
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
    storage: Storage,
    clock: Clock,
    heartbeat: HeartbeatSettings | None = None,
    lock: LockSettings | None = None,
) -> Diagnosis:
    """Examine a table and return what is wrong with it; nothing is changed.

    `heartbeat` and `lock` are the settings of the table's writers.

    Raises:
        InvalidError: there is no table.
        UnsupportedError: the table is of a version or kind that cannot be examined.
    """
    try:
        TableConfig.from_properties(load_properties(storage))
    except CorruptError as error:
        return Diagnosis((_damaged_properties(error),))
    evidence = load_evidence(
        storage, clock, heartbeat or HeartbeatSettings(), lock or LockSettings()
    )
    findings = (finding for check in CHECKS for finding in check(evidence))
    order = list(FindingKind)
    return Diagnosis(tuple(sorted(findings, key=lambda f: (order.index(f.kind), f.target))))


def _damaged_properties(error: CorruptError) -> Finding:
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


# Repairs.


def repair(writer: WriterContext, diagnosis: Diagnosis, *, force: bool = False) -> Diagnosis:
    """Repair the safe findings of a diagnosis, and examine the table again.

    With `force`, also repair by losing rows: roll back a write whose completed file is damaged. The
    table is examined again before it is changed, and findings that no longer apply are skipped.
    """
    current = examine(writer.storage, writer.clock, writer.heartbeat, writer.lock)
    agreed = {(f.kind, f.target) for f in to_repair(diagnosis, force=force)}
    for finding in to_repair(current, force=force):
        # A finding that is new since the user agreed to the repair waits for the next repair. One
        # whose repair fails on another damaged file is found again below, together with that file.
        if (finding.kind, finding.target) in agreed:
            with suppress(CorruptError):
                _REPAIRS[finding.kind](writer, finding)
    return examine(writer.storage, writer.clock, writer.heartbeat, writer.lock)


def to_repair(diagnosis: Diagnosis, *, force: bool) -> tuple[Finding, ...]:
    """Return the findings that a repair handles, in this order."""
    return (*diagnosis.repairable, *(diagnosis.repairable_by_force if force else ()))


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
        live = writer.live_instants(i.requested_at for i in snapshot.timeline.pending())
        by_markers = writer.transaction.rollback_by_markers
        resume_rollbacks(snapshot, times, writer.clock, by_markers=by_markers, alive=live)


def _still_pending(snapshot: Snapshot, finding: Finding) -> Instant | None:
    target = parse_instant(finding.target)
    return next((i for i in snapshot.timeline.pending() if i == target), None)


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
    # Another process may have just created it.
    with suppress(ConflictError):
        writer.storage.create(join_path(path, PARTITION_METADATA), format_partition_metadata(value))


def _delete_leftovers(writer: WriterContext, finding: Finding) -> None:
    leftovers = find_leftovers(writer.storage, writer.heartbeat, writer.clock, check_clock=True)
    delete_leftovers(writer.storage, leftovers)


def _delete_orphans(writer: WriterContext, finding: Finding) -> None:
    with locked_table(writer) as (snapshot, _):
        delete_orphan_files(snapshot, writer.heartbeat, writer.clock.now_ms(), [finding.target])


def _delete_unlisted(writer: WriterContext, finding: Finding) -> None:
    with locked_table(writer) as (snapshot, _):
        evidence = load_evidence(writer.storage, writer.clock, writer.heartbeat, writer.lock)
        if any(f.safe and f.target == finding.target for f in unlisted_files(evidence)):
            snapshot.storage.delete_many(file.path for file in evidence.unlisted[finding.target])


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
