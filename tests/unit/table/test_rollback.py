from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from lakewright.errors import CorruptError, InvalidError
from lakewright.format.timeline_metadata import (
    format_clean_plan,
    format_rollback_plan,
    parse_rollback,
    parse_rollback_plan,
)
from lakewright.model.commit_metadata import RollbackMetadata
from lakewright.model.file_group import LogFile
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import CleanFile, CleanPlan, InstantRef, RollbackPlan, RollbackRequest
from lakewright.storage.base import Storage
from lakewright.storage.local import LocalStorage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.options import FailedWritesPolicy
from lakewright.table.properties import load_properties, update_properties
from lakewright.table.rollback import (
    failed_writes,
    pending_rollbacks,
    plan_rollback,
    resume_rollbacks,
    rollback_locked,
)
from lakewright.table.savepoint import create_savepoint_locked
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.time_generator import TimeGenerator
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage
from lakewright.testing.timeline_drawing import at, draw
from support.faults import act_with_lock, crashed_copies
from support.golden import GoldenTables, queries, upload
from support.tables import (
    PENDING_STATES,
    TIMELINE,
    BuiltTable,
    clustering_plan,
    compaction_operation,
    compaction_plan,
    files_without_markers,
    list_data_files,
    list_files,
    orphan_data_files,
    read_json_rows,
    read_versions,
    time_generator,
    versions,
)

pytestmark = pytest.mark.sampled(2)

F, G, H = ("d1", "f"), ("d2", "g"), ("d1", "h")


@dataclass(frozen=True)
class Case:
    """A table, the instant to roll back, and the rows before and after that."""

    built: BuiltTable
    target: Instant
    before: Mapping[str, int]
    after: Mapping[str, int]
    keep_plan: bool = False
    by_markers: bool = True
    remaining: tuple[str, ...] = field(default=())  # timeline files of the target that stay


def cow_commit() -> Case:
    built = BuiltTable()
    built.write({F: versions(a=1, b=1), G: versions(c=1)})
    target = built.write({F: versions(a=2, b=1), G: versions(c=2), H: versions(x=2)})
    return Case(built, target, versions(a=2, b=1, c=2, x=2), versions(a=1, b=1, c=1))


def commit_without_pending_files() -> Case:
    case = cow_commit()
    for state in PENDING_STATES:
        pending = Instant(case.target.requested_at, Action.COMMIT, state)
        case.built.storage.delete(f"{TIMELINE}/{pending.file_name}")
    return case


def delta_commit() -> Case:
    built = BuiltTable("MERGE_ON_READ")
    built.write({F: versions(a=1, b=1)})
    built.write(logs={F: versions(a=2)})
    target = built.write({G: versions(c=3)}, {F: versions(a=3, b=3)})
    return Case(built, target, versions(a=3, b=3, c=3), versions(a=2, b=1))


def dead_write() -> Case:
    built = BuiltTable()
    built.write({F: versions(a=1)})
    target = built.fail({F: versions(a=2), G: versions(c=2)})
    return Case(built, target, versions(a=1), versions(a=1))


def dead_write_without_markers() -> Case:
    built = BuiltTable()
    built.write({F: versions(a=1)})
    target = built.fail({F: versions(a=2), G: versions(c=2)}, marked=False)
    return Case(built, target, versions(a=1), versions(a=1))


def dead_write_by_listing() -> Case:
    return replace(dead_write(), by_markers=False)


def dead_write_behind_another() -> Case:
    built = BuiltTable()
    built.write({F: versions(a=1)})
    target = built.fail({F: versions(a=2)})
    built.write({F: versions(a=3)})
    return Case(built, target, versions(a=3), versions(a=3))


def _before_compaction() -> tuple[BuiltTable, bytes]:
    built = BuiltTable("MERGE_ON_READ")
    base = built.write({F: versions(a=1, b=1)})
    log = built.write(logs={F: versions(a=2)})
    return built, compaction_plan(compaction_operation(F, base, log))


def completed_compaction() -> Case:
    """With a log file at its own instant, which real Hudi would leave behind."""
    built, plan = _before_compaction()
    pending = built.fail({F: versions(a=2, b=1)}, action="compaction", requested=plan)
    at = pending.requested_at
    log = LogFile("f", at, 1, "0-0-0").name
    built.storage.create(f"d1/{log}", built.log(F, versions(b=2), at))
    target = built.complete(pending, built.stats(at, F))
    return Case(built, target, versions(a=2, b=2), versions(a=2, b=1))


def dead_compaction() -> Case:
    built, plan = _before_compaction()
    target = built.fail({F: versions(a=2, b=1)}, action="compaction", requested=plan)
    remaining = (f"{target.requested_at}.compaction.requested",)
    return Case(
        built, target, versions(a=2, b=1), versions(a=2, b=1), keep_plan=True, remaining=remaining
    )


def cancelled_compaction() -> Case:
    return replace(dead_compaction(), keep_plan=False, remaining=())


def dead_clustering() -> Case:
    built = BuiltTable()
    built.write({F: versions(a=1), H: versions(b=1)})
    target = built.fail(
        {("d1", "n"): versions(a=1, b=1)}, action="clustering", requested=clustering_plan(F, H)
    )
    remaining = (f"{target.requested_at}.clustering.requested",)
    return Case(
        built, target, versions(a=1, b=1), versions(a=1, b=1), keep_plan=True, remaining=remaining
    )


def completed_clustering() -> Case:
    built = BuiltTable()
    built.write({F: versions(a=1), H: versions(b=1)})
    new = ("d1", "n")
    pending = built.fail(
        {new: versions(a=1, b=1)}, action="clustering", requested=clustering_plan(F, H)
    )
    stats = built.stats(pending.requested_at, new, replaced={"d1": ("f", "h")})
    return Case(built, built.complete(pending, stats), versions(a=1, b=1), versions(a=1, b=1))


def overwrite() -> Case:
    built = BuiltTable()
    built.write({F: versions(a=1, b=1), G: versions(c=1)})
    new = ("d1", "n")
    pending = built.fail({new: versions(a=2)}, action="replacecommit")
    stats = built.stats(pending.requested_at, new, replaced={"d1": ("f",)})
    completed = built.complete(pending, stats)
    return Case(built, completed, versions(a=2, c=1), versions(a=1, b=1, c=1))


CASES: dict[str, Callable[[], Case]] = {
    "a commit": cow_commit,
    "a commit whose pending files are missing": commit_without_pending_files,
    "a delta commit": delta_commit,
    "a dead write": dead_write,
    "a failed write without markers": dead_write_without_markers,
    "a dead write, by listing": dead_write_by_listing,
    "a dead write behind a completed one": dead_write_behind_another,
    "a compaction": completed_compaction,
    "a dead compaction, which stays scheduled": dead_compaction,
    "a dead compaction, with its plan": cancelled_compaction,
    "a dead clustering, which stays scheduled": dead_clustering,
    "a clustering": completed_clustering,
    "an overwrite": overwrite,
}
each_case = pytest.mark.parametrize("make", CASES.values(), ids=list(CASES))


def rollback(case: Case, snapshot: Snapshot, times: TimeGenerator, clock: ManualClock) -> Instant:
    return rollback_locked(
        snapshot, case.target, times, clock, by_markers=case.by_markers, keep_plan=case.keep_plan
    )


def metadata_of(storage: Storage, completed: Instant) -> RollbackMetadata:
    return parse_rollback(storage.read(f"{TIMELINE}/{completed.file_name}"))


@each_case
def test_nothing_of_the_instant_remains_but_the_rollback(make: Callable[[], Case]) -> None:
    case = make()
    storage, target = case.built.storage, case.target.requested_at
    assert read_versions(storage) == case.before
    others = [path for path in list_files(storage) if target not in path]
    completed = act_with_lock(storage, partial(rollback, case))
    assert isinstance(completed, Instant)
    assert read_versions(storage) == case.after
    names = [f"{completed.requested_at}.rollback.{state.lower()}" for state in PENDING_STATES]
    expected = [
        *others,
        *(f"{TIMELINE}/{name}" for name in (*case.remaining, *names, completed.file_name)),
    ]
    assert files_without_markers(storage) == sorted(expected)


@each_case
def test_killed_anywhere_a_reader_sees_all_or_nothing_and_a_second_run_ends_it(
    make: Callable[[], Case],
) -> None:
    expected = make()
    act_with_lock(expected.built.storage, partial(rollback, expected))
    points = 0
    for storage in crashed_copies(make().built.storage, partial(rollback, expected)):
        points += 1
        assert read_versions(storage) in (expected.before, expected.after)
        assert orphan_data_files(storage) == []
        act_with_lock(storage, partial(rollback, expected))
        assert read_versions(storage) == expected.after
        assert list_files(storage) == list_files(expected.built.storage)
    assert points > 10


@each_case
def test_killed_anywhere_the_next_writer_ends_it_or_withdraws_it(
    make: Callable[[], Case],
) -> None:
    expected = make()
    before = list_files(expected.built.storage)
    act_with_lock(expected.built.storage, partial(rollback, expected))
    after = list_files(expected.built.storage)

    def resume(snapshot: Snapshot, times: TimeGenerator, clock: ManualClock) -> None:
        resume_rollbacks(snapshot, times, clock, by_markers=True)

    for storage in crashed_copies(make().built.storage, partial(rollback, expected)):
        act_with_lock(storage, resume)
        files = list_files(storage)
        assert set(files) - set(_pending_files(expected)) in (
            set(before) - set(_pending_files(expected)),
            set(after),
        )
        assert read_versions(storage) == (expected.after if files == after else expected.before)


def _pending_files(case: Case) -> list[str]:
    """What a rollback may add to a completed instant before it has any effect."""
    if not case.target.is_completed:
        return []
    at = case.target.requested_at
    return [f"{TIMELINE}/{at}.{case.target.action}.requested", f"{TIMELINE}/{at}.inflight"]


def test_a_rollback_records_what_real_hudi_records(golden: GoldenTables) -> None:
    table = golden["cow_rolled_back"]
    (path,) = (table / TIMELINE).glob("*_*.rollback")
    (requested,) = (table / TIMELINE).glob("*.rollback.requested")
    real_plan = parse_rollback_plan(requested.read_bytes())
    real = parse_rollback(path.read_bytes())
    case = cow_commit()
    snapshot = load_snapshot(case.built.storage)
    ours_plan = plan_rollback(snapshot, case.target, by_markers=True)
    completed = act_with_lock(case.built.storage, partial(rollback, case))
    assert isinstance(completed, Instant)
    ours = metadata_of(case.built.storage, completed)

    assert real_plan.instant.action == ours_plan.instant.action == "commit"
    assert real_plan.version == ours_plan.version
    for request in (*real_plan.requests, *ours_plan.requests):
        assert (request.file_id, request.latest_base_instant, request.log_blocks) == ("", "", {})
        assert request.files
        assert all(f"/{request.partition}/" in file for file in request.files)
    assert real.started_at == path.name.split("_")[0]
    assert ours.started_at == completed.requested_at
    for metadata in (real, ours):
        (instant,) = metadata.instants
        assert metadata.commits == (instant.requested_at,)
        assert instant.action == "commit"
        assert (
            metadata.files_deleted == sum(len(p.deleted) for p in metadata.partitions.values()) == 3
        )
        assert all(name == part.partition for name, part in metadata.partitions.items())
    assert ours.version == real.version
    empty = {part: replace(p, partition="", deleted=()) for part, p in real.partitions.items()}
    assert {str(p) for p in empty.values()} == {
        str(replace(p, partition="", deleted=())) for p in ours.partitions.values()
    }


def test_paths_on_a_local_disk_have_no_scheme(tmp_path: Path, golden: GoldenTables) -> None:
    storage = LocalStorage(str(tmp_path / "t"))
    upload(golden["cow_basic"], storage)
    snapshot = load_snapshot(storage)
    plan = plan_rollback(snapshot, snapshot.timeline.completed_writes[-1], by_markers=True)
    files = [file for request in plan.requests for file in request.files]
    assert files
    assert all(Path(file).is_file() for file in files)


def test_a_commit_of_real_hudi_is_rolled_back_to_what_it_read_before(golden: GoldenTables) -> None:
    storage = upload(golden["mor_avro"], MemoryStorage.fresh())
    snapshot = load_snapshot(storage)
    *_, before, last = snapshot.timeline.completed_writes
    case = Case(BuiltTable(storage=MemoryStorage.fresh()), last, {}, {})
    act_with_lock(storage, partial(rollback, case))
    snapshot_after = load_snapshot(storage)
    assert snapshot_after.timeline.completed_writes[-1] == before
    (expected,) = [q.rows for q in queries("mor_avro") if q.as_of == before.requested_at]
    assert read_json_rows(storage) == sorted(expected or ())
    assert all(last.requested_at not in path for path in list_data_files(storage))


REFUSED_PICTURES = {
    "a completed write under a later commit": (
        """
        commit |--|
        commit     |--|
        """,
        "later",
    ),
    "a completed write under a pending one": (
        """
        commit |--|
        commit     |--
        """,
        "later",
    ),
    "a completed write under a requested one": (
        """
        commit |--|
        commit     |
        """,
        "later",
    ),
    "a clean": ("clean |--|", "only writes"),
    "a rollback": ("rollback |--|", "only writes"),
}


@pytest.mark.parametrize(
    ("picture", "reason"), REFUSED_PICTURES.values(), ids=list(REFUSED_PICTURES)
)
def test_refused(picture: str, reason: str) -> None:
    built = BuiltTable()
    for instant in draw(picture):
        empty = built.stats(instant.requested_at)
        if instant.is_completed and instant.is_write:
            built.complete(instant, empty, completed_at=instant.completed_at)
        else:
            built.put(instant, b"")
    snapshot = load_snapshot(built.storage)
    files = list_files(built.storage)
    with pytest.raises(InvalidError, match=reason):
        rollback_locked(
            snapshot,
            snapshot.timeline.instants[0],
            time_generator(snapshot),
            ManualClock(),
            by_markers=True,
        )
    assert list_files(built.storage) == files


def test_the_later_writes_are_named() -> None:
    built = BuiltTable()
    first = built.write({F: versions(a=1)})
    later = built.write({G: versions(b=1)})
    with pytest.raises(InvalidError, match="roll back the later ones first, or restore") as caught:
        plan_rollback(load_snapshot(built.storage), first, by_markers=True)
    assert caught.value.facts["later"] == [later.file_name]


PLANNED = {
    "a pending compaction of its file group blocks": (F, "compaction", True),
    "a pending compaction of another file group does not": (H, "compaction", False),
    "a pending log compaction of its file group blocks": (F, "logcompaction", True),
    "a pending clustering of its file group blocks": (F, "clustering", True),
    "a pending clustering of another file group does not": (H, "clustering", False),
}


@pytest.mark.parametrize(("group", "action", "blocks"), PLANNED.values(), ids=list(PLANNED))
def test_pending_services_after_a_write(group: tuple[str, str], action: str, blocks: bool) -> None:
    built = BuiltTable("MERGE_ON_READ")
    base = built.write({F: versions(a=1), H: versions(b=1)})
    target = built.write(logs={F: versions(a=2)})
    compacts = action != "clustering"
    plan = (
        compaction_plan(compaction_operation(group, base)) if compacts else clustering_plan(group)
    )
    built.put(Instant(built.tick(), Action(action), State.REQUESTED), plan)
    snapshot = load_snapshot(built.storage)
    if blocks:
        with pytest.raises(InvalidError, match="later"):
            plan_rollback(snapshot, target, by_markers=True)
    else:
        assert plan_rollback(snapshot, target, by_markers=True).requests


def test_a_saved_instant_stays() -> None:
    case = cow_commit()
    at = case.target.requested_at

    def save(snapshot: Snapshot, times: TimeGenerator, clock: ManualClock) -> None:
        create_savepoint_locked(snapshot, at, times, clock)

    act_with_lock(case.built.storage, save)
    with pytest.raises(InvalidError, match="savepoint"):
        act_with_lock(case.built.storage, partial(rollback, case))
    assert read_versions(case.built.storage) == case.before


def test_an_unknown_instant_is_reported() -> None:
    case = cow_commit()
    unknown = replace(case, target=Instant("20250101000000000", Action.COMMIT, State.INFLIGHT))
    with pytest.raises(InvalidError, match="no such instant"):
        act_with_lock(case.built.storage, partial(rollback, unknown))


def _file(built: BuiltTable, group: tuple[str, str], instant: Instant) -> str:
    (path,) = (
        path
        for path in list_data_files(built.storage)
        if instant.requested_at in path and path.startswith("/".join(group))
    )
    return path


def test_a_write_whose_predecessor_was_cleaned_stays() -> None:
    built = BuiltTable()
    first = built.write({F: versions(a=1, b=1)})
    target = built.write({F: versions(a=2, b=1)})
    built.clean(_file(built, F, first))
    case = Case(built, target, versions(a=2, b=1), {})
    with pytest.raises(InvalidError, match="cleaned"):
        act_with_lock(built.storage, partial(rollback, case))
    assert read_versions(built.storage) == case.before


def test_a_write_whose_predecessor_is_about_to_be_cleaned_stays() -> None:
    built = BuiltTable()
    first = built.write({F: versions(a=1, b=1)})
    target = built.write({F: versions(a=2, b=1)})
    path = _file(built, F, first)
    plan = CleanPlan(
        policy="KEEP_LATEST_FILE_VERSIONS", files={"d1": (CleanFile(path=f"/somewhere/{path}"),)}
    )
    built.put(Instant(built.tick(), Action.CLEAN, State.REQUESTED), format_clean_plan(plan))
    with pytest.raises(InvalidError, match="about to be"):
        plan_rollback(load_snapshot(built.storage), target, by_markers=True)


def test_a_compaction_whose_logs_were_cleaned_stays() -> None:
    case = completed_compaction()
    (log, *_) = [path for path in list_data_files(case.built.storage) if "/.f_" in path]
    case.built.clean(log)
    with pytest.raises(InvalidError, match="cleaned"):
        act_with_lock(case.built.storage, partial(rollback, case))


def test_an_overwrite_whose_old_rows_were_cleaned_stays() -> None:
    case = overwrite()
    (old,) = [path for path in list_data_files(case.built.storage) if path.startswith("d1/f_")]
    case.built.clean(old)
    with pytest.raises(InvalidError, match="cleaned"):
        act_with_lock(case.built.storage, partial(rollback, case))


def test_what_was_cleaned_before_the_last_write_does_not_matter() -> None:
    built = BuiltTable()
    first = built.write({F: versions(a=1)})
    built.write({F: versions(a=2)})
    built.clean(_file(built, F, first))
    target = built.write({F: versions(a=3)})
    act_with_lock(built.storage, partial(rollback, Case(built, target, {}, {})))
    assert read_versions(built.storage) == versions(a=2)


def test_the_last_active_write_stays_where_others_are_archived(golden: GoldenTables) -> None:
    storage = upload(golden["cow_archived"], MemoryStorage.fresh())
    timeline = load_snapshot(storage).timeline
    *others, last = timeline.completed_writes
    for file in storage.list_files(TIMELINE):
        if any(file.name.startswith(other.requested_at) for other in others):
            storage.delete(file.path)
    with pytest.raises(InvalidError, match="archived"):
        plan_rollback(load_snapshot(storage), last, by_markers=True)


def test_markers_spare_the_listing() -> None:
    case = dead_write()
    storage = CountingStorage(case.built.storage)
    act_with_lock(storage, partial(rollback, case))
    listed = [path for method, path in storage.touched if method in ("list_tree", "list_files")]
    assert not [path for path in listed if not path.startswith(".hoodie")]


def test_a_file_in_a_folder_that_is_no_partition_yet_is_found() -> None:
    case = dead_write_without_markers()
    (path,) = [path for path in list_data_files(case.built.storage) if path.startswith("d2/")]
    assert not case.built.storage.exists("d2/.hoodie_partition_metadata")
    act_with_lock(case.built.storage, partial(rollback, case))
    assert not case.built.storage.exists(path)


def test_the_files_of_others_are_not_ours_to_delete() -> None:
    case = dead_write_without_markers()
    foreign = f"d1/notes_{case.target.requested_at}.txt"
    case.built.storage.create(foreign, b"")
    act_with_lock(case.built.storage, partial(rollback, case))
    assert case.built.storage.exists(foreign)


def begun(case: Case, plan: RollbackPlan) -> Instant:
    """A rollback that real Hudi might have begun, with its own way to write paths."""
    requested = Instant(case.built.tick(), Action.ROLLBACK, State.REQUESTED)
    case.built.put(requested, format_rollback_plan(plan))
    return requested


def test_a_plan_of_another_process_is_ended_wherever_it_saw_the_table() -> None:
    case = dead_write_without_markers()
    files = [path for path in list_data_files(case.built.storage) if "/f_0-0-0_" in path]
    (dead,) = [path for path in files if case.target.requested_at in path]
    request = RollbackRequest(partition="d1", files=(f"file:/elsewhere/{dead}",))
    ref = InstantRef(case.target.requested_at, "commit")
    requested = begun(case, RollbackPlan(instant=ref, requests=(request,)))
    completed = act_with_lock(case.built.storage, partial(rollback, case))
    assert isinstance(completed, Instant)
    assert completed.requested_at == requested.requested_at
    assert all(case.target.requested_at not in path for path in list_data_files(case.built.storage))
    assert metadata_of(case.built.storage, completed).files_deleted == 2


def test_a_plan_with_a_file_of_another_instant_is_corrupt() -> None:
    case = dead_write()
    others = [p for p in list_data_files(case.built.storage) if case.target.requested_at not in p]
    request = RollbackRequest(partition="d1", files=tuple(others))
    ref = InstantRef(case.target.requested_at, "commit")
    begun(case, RollbackPlan(instant=ref, requests=(request,)))
    with pytest.raises(CorruptError, match="another instant"):
        act_with_lock(case.built.storage, partial(rollback, case))
    assert read_versions(case.built.storage) == case.before


def test_a_plan_that_was_never_written_is_passed_over() -> None:
    case = dead_write()
    case.built.put(Instant(case.built.tick(), Action.ROLLBACK, State.REQUESTED), b"")
    snapshot = load_snapshot(case.built.storage)
    assert pending_rollbacks(snapshot) == ()
    assert (
        resume_rollbacks(snapshot, time_generator(snapshot), ManualClock(), by_markers=True) == ()
    )
    assert load_snapshot(case.built.storage).timeline.pending() == (case.target,)
    act_with_lock(case.built.storage, partial(rollback, case))
    assert read_versions(case.built.storage) == case.after


def test_a_rollback_without_its_target_completes() -> None:
    case = dead_write()
    ref = InstantRef("20260101000000000", "commit")
    requested = begun(case, RollbackPlan(instant=ref))

    def resume(snapshot: Snapshot, times: TimeGenerator, clock: ManualClock) -> object:
        return resume_rollbacks(snapshot, times, clock, by_markers=True)

    ended = act_with_lock(case.built.storage, resume)
    assert isinstance(ended, tuple)
    assert [i.requested_at for i in ended] == [requested.requested_at]


def test_files_that_a_writer_marked_after_its_rollback_are_deleted_when_the_rollback_ends() -> None:
    case = dead_write()
    late = "20260101000000000"
    stray = case.built.base(G, versions(z=1), late, marked=True)
    begun(case, RollbackPlan(instant=InstantRef(late, "commit")))
    snapshot = load_snapshot(case.built.storage)
    resume_rollbacks(snapshot, time_generator(snapshot), ManualClock(), by_markers=True)
    assert not case.built.storage.exists(stray)
    assert not [path for path in files_without_markers(case.built.storage) if late in path]


def test_a_rollback_without_effect_is_withdrawn_once_others_have_written() -> None:
    case = cow_commit()
    ref = InstantRef(case.target.requested_at, "commit")
    begun(case, RollbackPlan(instant=ref))
    case.built.write({F: versions(a=5, b=1)})
    with pytest.raises(InvalidError, match="later"):
        act_with_lock(case.built.storage, partial(rollback, case))
    assert not load_snapshot(case.built.storage).timeline.pending()
    assert read_versions(case.built.storage) == versions(a=5, b=1, c=2, x=2)


def test_a_rollback_that_a_live_process_runs_is_left_alone() -> None:
    case = dead_write()
    ref = InstantRef(case.target.requested_at, "commit")
    requested = begun(case, RollbackPlan(instant=ref))
    files = list_files(case.built.storage)
    snapshot = load_snapshot(case.built.storage)
    alive = frozenset({requested.requested_at})
    ended = resume_rollbacks(
        snapshot, time_generator(snapshot), ManualClock(), by_markers=True, alive=alive
    )
    assert ended == ()
    assert list_files(case.built.storage) == files


FAILED = """
    commit        |--|
    commit           |--
    deltacommit       |
    compaction         |--
    clustering          |--
    logcompaction        |
    replacecommit         |--
    clean                  |--
    commit                  |--|
    """
WHICH = {
    "EAGER takes all that are pending, newest first": (FailedWritesPolicy.EAGER, (), (8, 4, 3)),
    "EAGER spares the living": (FailedWritesPolicy.EAGER, (4,), (8, 3)),
    "LAZY spares the living": (FailedWritesPolicy.LAZY, (8, 3), (4,)),
    "LAZY takes the dead": (FailedWritesPolicy.LAZY, (), (8, 4, 3)),
    "NEVER takes none": (FailedWritesPolicy.NEVER, (), ()),
}


@pytest.mark.parametrize(("policy", "live", "expected"), WHICH.values(), ids=list(WHICH))
def test_failed_writes(
    policy: FailedWritesPolicy, live: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    failed = failed_writes(draw(FAILED), policy, frozenset(map(at, live)))
    assert [i.requested_at for i in failed] == [at(tick) for tick in expected]


def test_a_table_in_another_place_of_the_timeline_is_rolled_back_there() -> None:
    built = BuiltTable()
    update_properties(built.storage, lambda p: {**p, "hoodie.timeline.path": "times"})
    assert load_properties(built.storage)["hoodie.timeline.path"] == "times"
    dead = Instant(built.tick(), Action.COMMIT, State.INFLIGHT)
    built.storage.create(f".hoodie/times/{dead.file_name}", b"")
    act_with_lock(built.storage, partial(rollback, Case(built, dead, {}, {})))
    names = [file.name for file in built.storage.list_files(".hoodie/times")]
    assert [name.rpartition(".")[2] for name in names] == ["inflight", "requested", "rollback"]
