"""The doctor: what it finds in damaged tables, what it repairs, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from lakewright.api.table import Table
from lakewright.format.table_properties import format_properties
from lakewright.format.timeline_metadata import format_compaction_plan
from lakewright.model.instant import Instant, State
from lakewright.model.plans import CompactionPlan
from lakewright.storage.base import Storage
from lakewright.storage.factory import storage_for
from lakewright.storage.memory import MemoryStorage
from lakewright.table.doctor.checks import SILENT_MS
from lakewright.table.doctor.doctor import examine, repair
from lakewright.table.doctor.findings import Diagnosis, Finding, FindingKind, Severity
from lakewright.table.properties import BACKUP, PROPERTIES, load_properties, update_properties
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import Crash, CrashingStorage
from support.faults import each_crash
from support.golden import NAMES, GoldenTables, upload
from support.tables import NO_SERVICES, WrittenTable, row, set_clock

DAYS = ("2026-01-01", "2026-01-02")
LATER_MS = 10 * SILENT_MS
TIMELINE = ".hoodie/timeline"


@pytest.fixture
def table() -> WrittenTable:
    made = WrittenTable(options=NO_SERVICES).create("MERGE_ON_READ")
    made.upsert([row(f"k{n}", 1, "first", DAYS[n % 2]) for n in range(4)])
    made.upsert([row("k0", 2, "second", DAYS[0])])
    return made


def examined(table: WrittenTable, *, later_ms: int = 0) -> Diagnosis:
    # Storage in memory keeps the time of this machine; the table's clock stands still long before.
    clock = ManualClock(_now_ms(table.storage) + later_ms)
    return examine(table.storage, clock)


def repaired(table: WrittenTable, *, later_ms: int = 0) -> Diagnosis:
    clock = advanced(table.storage, later_ms)
    writer = replace(table.writer().writer(), clock=clock)
    return repair(writer, examine(table.storage, clock))


def advanced(storage: Storage, later_ms: int) -> ManualClock:
    """A clock so much later than the newest file, by which the storage goes from now on."""
    assert isinstance(storage, MemoryStorage)
    clock = ManualClock(_now_ms(storage) + later_ms)
    set_clock(storage, clock)
    return clock


def _now_ms(storage: Storage) -> int:
    return max(file.modified_ms for file in storage.list_tree(""))


def kinds(diagnosis: Diagnosis) -> list[FindingKind]:
    return [finding.kind for finding in diagnosis.findings]


def files(storage: Storage) -> dict[str, bytes]:
    return {file.path: storage.read(file.path) for file in storage.list_tree("")}


def base_file(table: WrittenTable) -> str:
    names = [f.path for f in table.storage.list_files(DAYS[0]) if f.name.endswith(".parquet")]
    return names[0]


def completed(table: WrittenTable) -> list[Instant]:
    return list(load_snapshot(table.storage).timeline.completed_writes)


def test_a_table_of_ours_is_healthy(table: WrittenTable) -> None:
    assert examined(table, later_ms=LATER_MS).findings == ()


@pytest.mark.parametrize("name", NAMES)
def test_a_table_of_real_hudi_is_healthy(name: str, golden: GoldenTables) -> None:
    assert examine(storage_for(golden[name]), ManualClock(1_800_000_000_000)).findings == ()


def _lose_partition_metadata(table: WrittenTable) -> None:
    table.storage.delete(f"{DAYS[0]}/.hoodie_partition_metadata")


def _lose_file(table: WrittenTable) -> None:
    table.storage.delete(base_file(table))


def _empty_file(table: WrittenTable) -> None:
    table.storage.replace(base_file(table), b"")


def _empty_commit(table: WrittenTable) -> None:
    table.storage.replace(f"{TIMELINE}/{completed(table)[0].file_name}", b"")


def _damage_commit(table: WrittenTable) -> None:
    table.storage.replace(f"{TIMELINE}/{completed(table)[1].file_name}", b"nonsense")


def _lose_commit(table: WrittenTable) -> None:
    """As if a write was deleted from the timeline: only its files remain."""
    for file in table.storage.list_files(TIMELINE):
        if file.name.startswith(completed(table)[1].requested_at):
            table.storage.delete(file.path)


def _die(table: WrittenTable) -> None:
    """A write that was begun, and a file of it."""
    at = "20260101000100000"
    for state in ("requested", "inflight"):
        table.storage.create(f"{TIMELINE}/{at}.deltacommit.{state}", b"")
    name = f"{DAYS[0]}/ffffffff-0000-0000-0000-000000000000-0_0-0-0_{at}.parquet"
    table.storage.create(f".hoodie/.temp/{at}/{name}.marker.CREATE", b"")
    table.storage.create(name, b"half")


def _die_beating(table: WrittenTable) -> None:
    _die(table)
    table.storage.create(".hoodie/.heartbeat/20260101000100000", b"")


def _trust_metadata(table: WrittenTable) -> None:
    update_properties(
        table.storage, lambda old: {**old, "hoodie.table.metadata.partitions": "files"}
    )


def _stale_metadata(table: WrittenTable) -> None:
    _trust_metadata(table)
    first = completed(table)[0]
    folder = ".hoodie/metadata/.hoodie/timeline"
    table.storage.create(f"{folder}/{first.file_name}", b"x")


def _complete_early(table: WrittenTable) -> None:
    last = completed(table)[-1]
    path = f"{TIMELINE}/{last.file_name}"
    early = replace(last, completed_at="20250101000000000")
    table.storage.create(f"{TIMELINE}/{early.file_name}", table.storage.read(path))
    table.storage.delete(path)


def _come_from_the_future(table: WrittenTable) -> None:
    plan = format_compaction_plan(CompactionPlan())
    table.storage.create(f"{TIMELINE}/29991231000000000.compaction.requested", plan)


def _complete_together(table: WrittenTable) -> None:
    first, last = completed(table)
    path = f"{TIMELINE}/{last.file_name}"
    same = replace(last, completed_at=first.completed_at)
    if (same.completed_at or "") < same.requested_at:
        same = replace(same, completed_at=last.completed_at)
        moved = replace(first, completed_at=last.completed_at)
        old = f"{TIMELINE}/{first.file_name}"
        table.storage.create(f"{TIMELINE}/{moved.file_name}", table.storage.read(old))
        table.storage.delete(old)
        return
    table.storage.create(f"{TIMELINE}/{same.file_name}", table.storage.read(path))
    table.storage.delete(path)


def _leave_traces(table: WrittenTable) -> None:
    at = completed(table)[0].requested_at
    table.storage.create(f".hoodie/.heartbeat/{at}", b"")


def test_the_lock_file_is_looked_for_where_writers_create_it(table: WrittenTable) -> None:
    table.storage.create("locks/lock", b"{}")
    assert examined(table).findings == ()
    options = {"hoodie.write.lock.filesystem.path": f"{table.storage.root}/locks"}
    (finding,) = Table(table.storage).doctor(options).findings
    assert (finding.kind, finding.target) == (FindingKind.LOCK, "locks/lock")


def _lock(table: WrittenTable) -> None:
    table.storage.create(".hoodie/lock", b"{}")


def _leave_backup(table: WrittenTable) -> None:
    table.storage.create(BACKUP, format_properties(load_properties(table.storage)))


def _wrong_checksum(table: WrittenTable) -> None:
    values = load_properties(table.storage)
    damaged = {**values, "hoodie.table.checksum": "1"}
    table.storage.replace(PROPERTIES, format_properties(damaged))


def _wrong_checksum_with_backup(table: WrittenTable) -> None:
    _leave_backup(table)
    values = load_properties(table.storage)
    damaged = {**values, "hoodie.table.checksum": "1"}
    table.storage.replace(PROPERTIES, format_properties(damaged))


def _unreadable_history(table: WrittenTable) -> None:
    table.storage.create(f"{TIMELINE}/history/_version_", b"1")
    table.storage.create(f"{TIMELINE}/history/manifest_1", b"nonsense")


@dataclass(frozen=True)
class Case:
    """A damage, the finding that it causes, and whether a repair removes it."""

    damage: Callable[[WrittenTable], None]
    kind: FindingKind
    severity: Severity = Severity.ERROR
    mended: bool = False
    later_ms: int = LATER_MS


CASES = {
    "a partition without its metadata": Case(
        _lose_partition_metadata, FindingKind.PARTITION_METADATA, mended=True
    ),
    "a base file that is missing": Case(_lose_file, FindingKind.MISSING_FILE),
    "a base file without a byte": Case(_empty_file, FindingKind.EMPTY_FILE),
    "a commit without a byte": Case(_empty_commit, FindingKind.TIMELINE_FILE),
    "a commit that cannot be read": Case(_damage_commit, FindingKind.TIMELINE_FILE),
    "a commit that is missing": Case(_lose_commit, FindingKind.ORPHAN, Severity.WARNING),
    "a writer that died long ago": Case(
        _die, FindingKind.DEAD_WRITE, Severity.WARNING, mended=True
    ),
    "a writer that has just fallen silent": Case(
        _die, FindingKind.SILENT_WRITE, Severity.NOTE, later_ms=60_000
    ),
    "a heartbeat that stopped": Case(
        _die_beating, FindingKind.DEAD_WRITE, Severity.WARNING, mended=True, later_ms=600_000
    ),
    "a metadata table that is not there": Case(
        _trust_metadata, FindingKind.METADATA_TABLE, mended=True
    ),
    "a metadata table that is behind": Case(
        _stale_metadata, FindingKind.METADATA_TABLE, mended=True
    ),
    "a completion before its request": Case(_complete_early, FindingKind.CLOCK_ORDER),
    "an instant in the future": Case(
        _come_from_the_future, FindingKind.CLOCK_ORDER, Severity.WARNING
    ),
    "two completions at one time": Case(
        _complete_together, FindingKind.CLOCK_ORDER, Severity.WARNING
    ),
    "a heartbeat of a write that ended": Case(
        _leave_traces, FindingKind.LEFTOVERS, Severity.WARNING, mended=True
    ),
    "a lock that is held": Case(_lock, FindingKind.LOCK, Severity.NOTE),
    "a backup of the properties": Case(
        _leave_backup, FindingKind.PROPERTIES_BACKUP, Severity.WARNING, mended=True
    ),
    "a wrong checksum": Case(_wrong_checksum, FindingKind.PROPERTIES),
    "a wrong checksum, and a backup that is right": Case(
        _wrong_checksum_with_backup, FindingKind.PROPERTIES_BACKUP, Severity.WARNING, mended=True
    ),
    "history that cannot be read": Case(_unreadable_history, FindingKind.HISTORY),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_damage_is_found_and_mended_where_that_is_safe(case: Case, table: WrittenTable) -> None:
    rows = table.rows()
    case.damage(table)
    diagnosis = examined(table, later_ms=case.later_ms)
    assert set(kinds(diagnosis)) == {case.kind}
    first = diagnosis.findings[0]
    assert (first.severity, first.safe) == (case.severity, case.mended)
    assert first.advice
    assert diagnosis.is_healthy == (case.severity is Severity.NOTE)

    before = files(table.storage)
    after = repaired(table, later_ms=case.later_ms)
    if case.mended:
        assert after.findings == ()
        assert table.rows() == rows
    else:
        assert after == diagnosis
        assert files(table.storage) == before


def test_an_examination_changes_nothing(table: WrittenTable) -> None:
    _die(table)
    _leave_traces(table)
    before = files(table.storage)
    examined(table, later_ms=LATER_MS)
    assert files(table.storage) == before


def test_a_live_writer_is_no_finding(table: WrittenTable) -> None:
    _die_beating(table)
    assert examined(table, later_ms=1000).findings == ()


def test_a_repair_looks_again_before_it_touches_anything(table: WrittenTable) -> None:
    _die(table)
    clock = ManualClock(_now_ms(table.storage) + LATER_MS)
    diagnosis = examine(table.storage, clock)
    # The writer that was taken for dead comes back.
    table.storage.create(".hoodie/.heartbeat/20260101000100000", b"")
    now = ManualClock(_now_ms(table.storage) + 1000)
    writer = replace(table.writer().writer(), clock=now)
    assert repair(writer, diagnosis).findings == ()
    assert load_snapshot(table.storage).timeline.pending() != ()


def test_a_deleted_partition_that_is_being_cleaned_does_not_come_back(table: WrittenTable) -> None:
    table.delete_partitions(DAYS[0])
    _lose_partition_metadata(table)
    assert examined(table).findings == ()


def test_files_of_archived_writes_do_not_become_visible(golden: GoldenTables) -> None:
    storage = upload(golden["cow_archived"], MemoryStorage.fresh())
    snapshot = load_snapshot(storage)
    folders = {path for path, names in snapshot.files().items() if names}
    for folder in folders:
        for file in storage.list_files(folder):
            if file.name.startswith(".hoodie_partition_metadata"):
                storage.delete(file.path)
        # No commit on the timeline lists this one.
        first = next(f for f in storage.list_files(folder) if f.name.endswith(".parquet"))
        old = snapshot.archived[0].requested_at
        storage.create(
            f"{folder}/00000000-0000-0000-0000-000000000000-0_0-0-0_{old}.parquet",
            storage.read(first.path),
        )
    diagnosis = examine(storage, ManualClock(1_800_000_000_000))
    assert {finding.kind for finding in diagnosis.findings} == {FindingKind.PARTITION_METADATA}
    assert diagnosis.repairable == ()


def test_an_orphan_file_before_the_timeline_is_reported_as_visible_to_readers(
    table: WrittenTable,
) -> None:
    name = "ffffffff-0000-0000-0000-000000000000-0_0-0-0_20200101000000000.parquet"
    table.storage.create(f"{DAYS[0]}/{name}", b"x")
    (finding,) = examined(table, later_ms=LATER_MS).findings
    assert (finding.kind, finding.facts["seen_by_readers"], finding.safe) == (
        FindingKind.ORPHAN,
        True,
        False,
    )


def test_a_dead_rollback_is_ended(table: WrittenTable) -> None:
    _die(table)
    at = "20260101000200000"
    table.storage.create(f"{TIMELINE}/{at}.rollback.requested", b"")
    diagnosis = examined(table, later_ms=LATER_MS)
    assert set(kinds(diagnosis)) == {FindingKind.DEAD_WRITE, FindingKind.DEAD_ROLLBACK}
    assert repaired(table, later_ms=LATER_MS).findings == ()


def test_a_crashed_execution_is_left_to_the_next_one(table: WrittenTable) -> None:
    planned = table.services({"hoodie.compact.inline.max.delta.commits": "1"}).schedule(
        "compaction"
    )
    assert isinstance(planned, Instant)
    inflight = replace(planned, state=State.INFLIGHT)
    table.storage.create(f"{TIMELINE}/{inflight.file_name}", b"")
    (finding,) = examined(table, later_ms=LATER_MS).findings
    assert (finding.kind, finding.safe) == (FindingKind.DEAD_EXECUTION, False)


def test_a_finding_prints_as_a_line() -> None:
    finding = Finding(FindingKind.LOCK, Severity.NOTE, "it is locked", "wait", ".hoodie/lock")
    assert str(finding) == "note: it is locked (.hoodie/lock)"


def test_a_table_of_the_library_has_a_doctor(table: WrittenTable) -> None:
    _lose_partition_metadata(table)
    diagnosis = Table(table.storage).doctor()
    assert kinds(diagnosis) == [FindingKind.PARTITION_METADATA]
    assert kinds(Table(table.storage).doctor(repair=True)) == []


MENDED = {name: case for name, case in CASES.items() if case.mended}


@each_crash
@pytest.mark.parametrize("case", MENDED.values(), ids=list(MENDED))
def test_a_repair_that_is_killed_is_ended_by_the_next(case: Case, *, after_effect: bool) -> None:
    survive = 0
    while True:
        table = WrittenTable(options=NO_SERVICES).create("MERGE_ON_READ")
        table.upsert([row(f"k{n}", 1, "first", DAYS[n % 2]) for n in range(4)])
        table.upsert([row("k0", 2, "second", DAYS[0])])
        rows = table.rows()
        case.damage(table)
        clock = advanced(table.storage, case.later_ms)
        writer = replace(table.writer().writer(), clock=clock)
        diagnosis = examine(table.storage, clock)
        dying = CrashingStorage(table.storage, survive, after_effect=after_effect)
        with suppress(Crash):
            repair(replace(writer, storage=dying), diagnosis)
        # The killed process left heartbeats and markers that are young by then.
        later = advanced(table.storage, case.later_ms + LATER_MS)
        diagnosis_after = repair(replace(writer, clock=later), examine(table.storage, later))
        assert (diagnosis_after.findings, table.rows()) == ((), rows), survive
        if not dying.crashed:
            return
        survive += 1
