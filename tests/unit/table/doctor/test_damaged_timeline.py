"""The doctor and files that are empty or cut off: named, and mended where no row is lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from lakewright.errors import CorruptError
from lakewright.format.timeline_metadata import format_index_commit
from lakewright.model.commit_metadata import IndexCommitMetadata
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import Skip
from lakewright.services.maintenance_loop import run_round
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.doctor.checks import SILENT_MS
from lakewright.table.doctor.doctor import examine, repair
from lakewright.table.doctor.findings import Diagnosis, Finding, FindingKind, Severity
from lakewright.table.properties import BACKUP, PROPERTIES
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import Crash, CrashingStorage
from support.faults import each_crash
from support.tables import NO_SERVICES, WrittenTable, row

pytestmark = pytest.mark.sampled(3)

TIMELINE = ".hoodie/timeline"
DAYS = ("2026-01-01", "2026-01-02")
LATER_MS = 10 * SILENT_MS
COMPACT = {"hoodie.compact.inline.max.delta.commits": "1"}
LOG_COMPACT = {
    "hoodie.log.compaction.enable": "true",
    "hoodie.log.compaction.blocks.threshold": "1",
}
CLUSTER = {"hoodie.clustering.inline.max.commits": "1"}
CLEAN = {
    "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
    "hoodie.clean.fileversions.retained": "1",
}
ARCHIVE = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
}


def made(kind: str = "MERGE_ON_READ") -> WrittenTable:
    table = WrittenTable(options=NO_SERVICES).create(kind)
    table.upsert([row(f"k{n}", 1, "first", DAYS[n % 2]) for n in range(4)])
    table.upsert([row("k0", 2, "second", DAYS[0]), row("k1", 2, "second", DAYS[1])])
    return table


def now_ms(storage: Storage) -> int:
    return max(file.modified_ms for file in storage.list_tree(""))


def examined(table: WrittenTable, later_ms: int = LATER_MS) -> Diagnosis:
    return examine(table.storage, ManualClock(now_ms(table.storage) + later_ms))


def repaired(
    table: WrittenTable, storage: Storage | None = None, *, force: bool = False
) -> Diagnosis:
    clock = ManualClock(now_ms(table.storage) + LATER_MS)
    writer = replace(table.writer().writer(), clock=clock, storage=storage or table.storage)
    return repair(writer, examine(table.storage, clock), force=force)


def files(table: WrittenTable) -> dict[str, bytes]:
    return {f.path: table.storage.read(f.path) for f in table.storage.list_tree("")}


def cut(table: WrittenTable, path: str) -> None:
    data = table.storage.read(path)
    table.storage.replace(path, data[: len(data) * 2 // 3])


def empty(table: WrittenTable, path: str) -> None:
    table.storage.replace(path, b"")


def last(table: WrittenTable, action: str) -> Instant:
    return [i for i in load_snapshot(table.storage).timeline if i.action == action][-1]


def path_of(instant: Instant) -> str:
    return f"{TIMELINE}/{instant.file_name}"


def plan_of(instant: Instant) -> str:
    return path_of(replace(instant, state=State.REQUESTED, completed_at=None))


def ran(table: WrittenTable, service: str, options: dict[str, str]) -> Instant:
    commit = table.services(options).run(service)
    assert not isinstance(commit, Skip), commit
    return load_snapshot(table.storage).timeline.instants[-1]


def scheduled(table: WrittenTable, service: str, options: dict[str, str]) -> Instant:
    planned = table.services(options).schedule(service)
    assert isinstance(planned, Instant), planned
    return planned


def begun(table: WrittenTable, planned: Instant) -> Instant:
    inflight = replace(planned, state=State.INFLIGHT)
    table.storage.create(path_of(inflight), b"")
    return inflight


def rolled_back(table: WrittenTable) -> Instant:
    table.upsert([row("k0", 3, "third", DAYS[0])])
    at = load_snapshot(table.storage).timeline.completed_writes[-1].requested_at
    return table.writer().rollback(at)


def restored(table: WrittenTable) -> Instant:
    at = load_snapshot(table.storage).timeline.completed_writes[-1].requested_at
    table.writer().savepoint(at, user="", comment="")
    table.upsert([row("k0", 3, "third", DAYS[0])])
    return table.writer().restore(at)


def saved(table: WrittenTable) -> Instant:
    at = load_snapshot(table.storage).timeline.completed_writes[-1].requested_at
    return table.writer().savepoint(at, user="", comment="")


def indexed(table: WrittenTable) -> Instant:
    instant = Instant("20260101000100000", Action.INDEXING, completed_at="20260101000100001")
    table.storage.create(path_of(instant), format_index_commit(IndexCommitMetadata()))
    return instant


def written(table: WrittenTable) -> Instant:
    table.upsert([row("k0", 3, "third", DAYS[0])])
    return load_snapshot(table.storage).timeline.completed_writes[-1]


def log_compacted(table: WrittenTable) -> Instant:
    table.upsert([row("k0", 3, "again", DAYS[0])])
    return ran(table, "logcompaction", LOG_COMPACT)


def log_compaction_planned(table: WrittenTable) -> Instant:
    table.upsert([row("k0", 3, "again", DAYS[0])])
    return scheduled(table, "logcompaction", LOG_COMPACT)


@dataclass(frozen=True)
class Case:
    """What is on the timeline, which of its files is damaged, and whether it can be mended."""

    act: Callable[[WrittenTable], Instant]
    path: Callable[[Instant], str] = path_of
    kind: str = "MERGE_ON_READ"
    mended: bool = True
    # The instant is pending: then its plan is damaged, and the finding names the instant.
    empty_is_normal: bool = False


def pending(service: str, options: dict[str, str], *, at_work: bool) -> Callable[..., Instant]:
    def act(table: WrittenTable) -> Instant:
        planned = scheduled(table, service, options)
        return begun(table, planned) if at_work else planned

    return act


def dead_rollback(*, at_work: bool) -> Callable[[WrittenTable], Instant]:
    """A rollback of a write that is pending, by a process that died."""

    def act(table: WrittenTable) -> Instant:
        completed = rolled_back(table)
        table.storage.delete(path_of(completed))
        if not at_work:
            table.storage.delete(
                path_of(replace(completed, state=State.INFLIGHT, completed_at=None))
            )
        state = State.INFLIGHT if at_work else State.REQUESTED
        return replace(completed, state=state, completed_at=None)

    return act


def dead_restore(*, at_work: bool) -> Callable[[WrittenTable], Instant]:
    def act(table: WrittenTable) -> Instant:
        completed = restored(table)
        table.storage.delete(path_of(completed))
        if not at_work:
            table.storage.delete(
                path_of(replace(completed, state=State.INFLIGHT, completed_at=None))
            )
        state = State.INFLIGHT if at_work else State.REQUESTED
        return replace(completed, state=state, completed_at=None)

    return act


CASES = {
    "a delta commit": Case(written, mended=False),
    "a commit": Case(written, kind="COPY_ON_WRITE", mended=False),
    "a compaction": Case(lambda table: ran(table, "compaction", COMPACT)),
    "a log compaction": Case(log_compacted),
    "a clustering": Case(lambda table: ran(table, "clustering", CLUSTER), kind="COPY_ON_WRITE"),
    "a clean": Case(lambda table: ran(table, "clean", CLEAN), kind="COPY_ON_WRITE"),
    "a rollback": Case(rolled_back),
    "a restore": Case(restored),
    "a savepoint": Case(saved, mended=False),
    "an indexing": Case(indexed),
    "the plan of a compaction": Case(pending("compaction", COMPACT, at_work=False), plan_of),
    "the plan of a compaction that is executed": Case(
        pending("compaction", COMPACT, at_work=True), plan_of
    ),
    "the plan of a log compaction": Case(log_compaction_planned, plan_of),
    "the plan of a clustering": Case(
        pending("clustering", CLUSTER, at_work=False), plan_of, "COPY_ON_WRITE"
    ),
    "the plan of a clean": Case(
        pending("clean", CLEAN, at_work=False), plan_of, "COPY_ON_WRITE", empty_is_normal=True
    ),
    "the plan of a clean that is executed": Case(
        pending("clean", CLEAN, at_work=True),
        plan_of,
        "COPY_ON_WRITE",
        mended=False,
        empty_is_normal=True,
    ),
    "the plan of a rollback": Case(dead_rollback(at_work=False), plan_of, empty_is_normal=True),
    "the plan of a rollback that is executed": Case(
        dead_rollback(at_work=True), plan_of, empty_is_normal=True
    ),
    "the plan of a restore": Case(dead_restore(at_work=False), plan_of, empty_is_normal=True),
    "the plan of a restore that is executed": Case(
        dead_restore(at_work=True), plan_of, mended=False, empty_is_normal=True
    ),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
each_damage = pytest.mark.parametrize("damage", [empty, cut])
Damage = Callable[[WrittenTable, str], None]


def timeline_findings(diagnosis: Diagnosis) -> list[Finding]:
    return [finding for finding in diagnosis.findings if finding.kind is FindingKind.TIMELINE_FILE]


@each_damage
@each_case
def test_every_file_of_the_timeline_is_named_and_mended_where_no_row_is_lost(
    case: Case, damage: Damage
) -> None:
    table = made(case.kind)
    instant = case.act(table)
    rows = table.rows()
    damage(table, case.path(instant))
    before = files(table)
    diagnosis = examined(table)
    if damage is empty and case.empty_is_normal:
        assert timeline_findings(diagnosis) == []
        return
    (finding,) = timeline_findings(diagnosis)
    assert (finding.target, finding.safe) == (path_of(instant), case.mended)
    assert finding.advice
    assert files(table) == before
    if not case.mended:
        repaired(table)
        assert files(table) == before
        assert finding.loses_rows == instant.is_write
        return
    assert timeline_findings(repaired(table)) == []
    assert table.rows() == rows
    table.upsert([row("new", 1, "after", DAYS[0])])
    assert not [step for step in run_round(table.services(CLEAN), ["clean"]) if step.error]
    assert [record for record in table.rows() if record["id"] != "new"] == rows
    assert examined(table).findings == ()


@each_case
def test_a_young_file_may_be_on_its_way(case: Case) -> None:
    table = made(case.kind)
    cut(table, case.path(case.act(table)))
    (finding,) = timeline_findings(examined(table, later_ms=1000))
    assert not finding.safe


@each_crash
@pytest.mark.parametrize(
    "case", [c for c in CASES.values() if c.mended], ids=[n for n, c in CASES.items() if c.mended]
)
def test_a_repair_that_is_killed_is_ended_by_the_next(case: Case, after_effect: bool) -> None:
    made_once = made(case.kind)
    instant = case.act(made_once)
    rows = made_once.rows()
    cut(made_once, case.path(instant))
    start, survive = files(made_once), 0
    while True:
        table = WrittenTable(storage=MemoryStorage.fresh(start), options=NO_SERVICES)
        table.clock.sleep(1)
        dying = CrashingStorage(table.storage, survive, after_effect=after_effect)
        with suppress(Crash):
            repaired(table, dying)
        assert timeline_findings(repaired(table)) == []
        assert table.rows() == rows
        table.upsert([row("new", 1, "after", "2026-01-09")])
        assert [record for record in table.rows() if record["id"] != "new"] == rows
        if not dying.crashed:
            return
        survive += 1


def test_a_damaged_savepoint_is_made_again_by_the_advice_of_the_doctor() -> None:
    table = made()
    savepoint = saved(table)
    whole = table.storage.read(path_of(savepoint))
    empty(table, path_of(savepoint))
    (finding,) = timeline_findings(examined(table))
    assert f"lakewright savepoint TABLE {savepoint.requested_at} --delete" in finding.advice
    table.writer().delete_savepoint(savepoint.requested_at)
    again = saved(table)
    assert len(table.storage.read(path_of(again))) == len(whole)
    assert examined(table).findings == ()


def test_a_write_that_others_build_on_is_reported_with_what_blocks_its_rollback() -> None:
    table = made("COPY_ON_WRITE")
    first, second = load_snapshot(table.storage).timeline.completed_writes
    empty(table, path_of(first))
    (finding,) = timeline_findings(examined(table))
    assert "only the newest write" in finding.advice
    assert finding.facts["later"] == [str(second)]


def test_the_newest_write_is_reported_with_the_command_that_rolls_it_back() -> None:
    table = made("COPY_ON_WRITE")
    at = written(table)
    empty(table, path_of(at))
    (finding,) = timeline_findings(examined(table))
    assert f"lakewright rollback TABLE {at.requested_at} --force" in finding.advice


@each_damage
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_by_force_the_doctor_rolls_damaged_writes_back(kind: str, damage: Damage) -> None:
    table = made(kind)
    rows = table.rows()
    for at in (written(table), written(table)):
        damage(table, path_of(at))
    # The second one is not the newest yet when a person agrees to the first repair.
    (remaining,) = timeline_findings(repaired(table, force=True))
    assert remaining.loses_rows
    assert repaired(table, force=True).findings == ()
    assert table.rows() == rows


def test_what_another_damaged_file_stands_in_front_of_waits() -> None:
    """The plan goes first; then the write can be rolled back."""
    table = made()
    compaction = scheduled(table, "compaction", COMPACT)
    at = written(table)
    empty(table, path_of(compaction))
    empty(table, path_of(at))
    assert len(timeline_findings(examined(table))) == 2
    (remaining,) = timeline_findings(repaired(table))
    assert "--force" in remaining.advice
    table.writer().rollback(at.requested_at, force=True)
    assert examined(table).findings == ()


@each_damage
@pytest.mark.parametrize(
    ("service", "options", "kind"),
    [("compaction", COMPACT, "MERGE_ON_READ"), ("clustering", CLUSTER, "COPY_ON_WRITE")],
)
def test_the_plan_of_a_service_that_has_completed_is_needed_no_more(
    service: str, options: dict[str, str], kind: str, damage: Damage
) -> None:
    table = made(kind)
    completed = ran(table, service, options)
    plan = Instant(completed.requested_at, Action(service), State.REQUESTED)
    damage(table, path_of(plan))
    diagnosis = examined(table)
    (finding,) = timeline_findings(diagnosis)
    assert (finding.target, finding.severity) == (path_of(plan), Severity.NOTE)
    assert diagnosis.is_healthy
    for n in range(3):
        table.upsert([row("k2", 10 + n, "on", DAYS[0]), row("k3", 10 + n, "on", DAYS[1])])
    ran(table, service, options)
    assert {record["ts"] for record in table.rows() if record["id"] in ("k2", "k3")} == {12}


def archived() -> WrittenTable:
    table = made("COPY_ON_WRITE")
    for n in range(6):
        table.upsert([row("k2", 10 + n, "on", DAYS[0])])
    ran(table, "clean", CLEAN)
    assert not isinstance(table.services(ARCHIVE).run("archive"), Skip)
    return table


@pytest.mark.parametrize("damage", ["empty", "cut", "gone"])
@pytest.mark.parametrize("part", ["_version_", "manifest_", ".parquet"])
def test_a_damaged_file_of_history_is_named(part: str, damage: str) -> None:
    table = archived()
    folder = f"{TIMELINE}/history"
    (path,) = [f.path for f in table.storage.list_files(folder) if part in f.name][-1:]
    if damage == "gone":
        table.storage.delete(path)
    elif damage == "empty" or part == "_version_":
        empty(table, path)
    else:
        cut(table, path)
    diagnosis = examined(table)
    if (part, damage) == ("_version_", "gone"):
        assert diagnosis.findings == ()  # the newest manifest counts
        return
    (finding,) = diagnosis.findings
    assert (finding.kind, finding.target, finding.safe) == (FindingKind.HISTORY, path, False)
    if part == "_version_":
        table.storage.delete(path)  # as the advice says
        assert examined(table).findings == ()


@pytest.mark.parametrize("damage", ["empty", "cut", "gone"])
def test_properties_are_restored_from_their_backup(damage: str) -> None:
    table = made()
    rows, whole = table.rows(), table.storage.read(PROPERTIES)
    table.storage.create(BACKUP, whole)
    if damage == "gone":
        table.storage.delete(PROPERTIES)
    else:
        (empty if damage == "empty" else cut)(table, PROPERTIES)
    (finding,) = examined(table).findings
    assert (finding.kind, finding.safe) == (FindingKind.PROPERTIES_BACKUP, True)
    assert repaired(table).findings == ()
    assert not table.storage.exists(BACKUP)
    assert table.rows() == rows


@pytest.mark.parametrize("with_backup", [False, True])
@each_damage
def test_properties_without_a_complete_copy_are_reported_with_the_remedy(
    damage: Damage, with_backup: bool
) -> None:
    table = made()
    if with_backup:
        table.storage.create(BACKUP, b"")
    table.storage.replace(PROPERTIES, b"" if damage is empty else b"hoodie.table.name=written\n")
    before = files(table)
    (finding,) = examined(table).findings
    assert (finding.kind, finding.target, finding.safe) == (
        FindingKind.PROPERTIES,
        PROPERTIES,
        False,
    )
    assert "lakewright create" in finding.advice
    assert "hoodie.table.type" in str(finding.facts["needed"])
    assert repaired(table).findings == (finding,)
    assert files(table) == before


def test_two_base_files_that_no_commit_distinguishes_are_reported() -> None:
    table = made("COPY_ON_WRITE")
    first = next(f for f in table.storage.list_files(DAYS[0]) if f.name.endswith(".parquet"))
    file_id = first.name.partition("_")[0]
    for token in ("1-0-1", "2-0-2"):
        # Older than the timeline, so it counts, and unknown to history.
        name = f"{DAYS[0]}/{file_id}_{token}_20200101000000000.parquet"
        table.storage.create(name, table.storage.read(first.path))
    with pytest.raises(CorruptError):
        table.rows()
    assert FindingKind.FILE_SLICES in {finding.kind for finding in examined(table).findings}
