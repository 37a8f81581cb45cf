from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pytest

from lakewright.errors import CorruptError, InvalidError
from lakewright.format.timeline_metadata import (
    format_restore_plan,
    parse_restore,
    parse_restore_plan,
)
from lakewright.model.commit_metadata import RestoreMetadata
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import InstantRef, RestorePlan
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.rollback import rollback_locked
from lakewright.table.savepoint import (
    create_savepoint_locked,
    pending_restore,
    plan_restore,
    restore_locked,
)
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.time_generator import TimeGenerator
from lakewright.testing.clock import ManualClock
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

F, G, H = ("d1", "f"), ("d2", "g"), ("d1", "h")


@dataclass(frozen=True)
class Case:
    """A table with a savepoint and what came after it."""

    built: BuiltTable
    saved: str
    states: tuple[Mapping[str, int], ...]  # of the table, from the newest to the saved one
    remaining: tuple[
        str, ...
    ] = ()  # timeline files that stay in addition to those of the saved state


def save(instant: str, snapshot: Snapshot, times: TimeGenerator, clock: ManualClock) -> Instant:
    return create_savepoint_locked(snapshot, instant, times, clock)


def restore(instant: str, snapshot: Snapshot, times: TimeGenerator, clock: ManualClock) -> Instant:
    return restore_locked(snapshot, instant, times, clock)


def saved_at(built: BuiltTable, instant: Instant) -> str:
    savepoint = act_with_lock(built.storage, partial(save, instant.requested_at))
    assert isinstance(savepoint, Instant)
    while built.tick() < (savepoint.completed_at or ""):  # the savepoint has taken this time
        pass
    return instant.requested_at


def commits() -> Case:
    built = BuiltTable()
    first = built.write({F: versions(a=1), G: versions(b=1)})
    saved = saved_at(built, first)
    built.write({F: versions(a=2)})
    built.write({F: versions(a=3), H: versions(c=3)})
    states = (versions(a=3, b=1, c=3), versions(a=2, b=1), versions(a=1, b=1))
    return Case(built, saved, states)


def dead_writes() -> Case:
    built = BuiltTable()
    saved = saved_at(built, built.write({F: versions(a=1)}))
    built.write({F: versions(a=2)})
    built.fail({F: versions(a=3)}, marked=False)
    built.fail({G: versions(b=3)})
    return Case(built, saved, (versions(a=2), versions(a=1)))


def overwrite() -> Case:
    built = BuiltTable()
    saved = saved_at(built, built.write({F: versions(a=1, b=1)}))
    pending = built.fail({H: versions(a=2)}, action="replacecommit")
    stats = built.stats(pending.requested_at, H, replaced={"d1": ("f",)})
    built.complete(pending, stats)
    built.write({H: versions(a=3)})
    return Case(built, saved, (versions(a=3), versions(a=2), versions(a=1, b=1)))


def compaction() -> Case:
    """A later delta commit lies on a compaction that folded in one from before."""
    built = BuiltTable("MERGE_ON_READ")
    base = built.write({F: versions(a=1, b=1)})
    log = built.write(logs={F: versions(a=2)})
    saved = saved_at(built, log)
    folded = built.write(logs={F: versions(a=3)})
    plan = compaction_plan(compaction_operation(F, base, log, folded))
    pending = built.fail({F: versions(a=3, b=1)}, action="compaction", requested=plan)
    later = built.write(logs={F: versions(b=4)})
    assert later.completed_at
    built.complete(pending, built.stats(pending.requested_at, F))
    return Case(built, saved, (versions(a=3, b=4), versions(a=3, b=1), versions(a=2, b=1)))


def compaction_scheduled_before() -> Case:
    """Scheduled when the savepoint was made, completed after it: it becomes a schedule again."""
    built = BuiltTable("MERGE_ON_READ")
    base, log = built.write({F: versions(a=1, b=1)}), built.write(logs={F: versions(a=2)})
    plan = compaction_plan(compaction_operation(F, base, log))
    pending = built.fail({F: versions(a=2, b=1)}, action="compaction", requested=plan)
    saved = saved_at(built, built.write(logs={F: versions(b=3)}))
    built.complete(pending, built.stats(pending.requested_at, F))
    built.write(logs={F: versions(b=4)})
    remaining = (f"{pending.requested_at}.compaction.requested",)
    return Case(built, saved, (versions(a=2, b=4), versions(a=2, b=3)), remaining)


def slow_write() -> Case:
    """Requested before the saved commit, completed after the savepoint, which holds none of it."""
    built = BuiltTable()
    built.write({F: versions(a=1), G: versions(b=1)})
    slow = built.fail({G: versions(b=2)})
    saved = saved_at(built, built.write({F: versions(a=2)}))
    built.complete(slow, built.stats(slow.requested_at, G))
    built.write({F: versions(a=3)})
    return Case(built, saved, (versions(a=3, b=2), versions(a=2, b=2), versions(a=2, b=1)))


def pending_services() -> Case:
    built = BuiltTable("MERGE_ON_READ")
    base = built.write({F: versions(a=1), H: versions(c=1)})
    saved = saved_at(built, base)
    log = built.write(logs={F: versions(a=2)})
    plan = compaction_plan(compaction_operation(F, base, log))
    built.fail({F: versions(a=2)}, action="compaction", requested=plan)
    built.fail({("d1", "n"): versions(c=1)}, action="clustering", requested=clustering_plan(H))
    return Case(built, saved, (versions(a=2, c=1), versions(a=1, c=1)))


CASES: dict[str, Callable[[], Case]] = {
    "commits": commits,
    "dead writes": dead_writes,
    "an overwrite": overwrite,
    "a compaction with delta commits before and after it": compaction,
    "a compaction scheduled before the savepoint": compaction_scheduled_before,
    "a write that began before the saved one and ended after it": slow_write,
    "pending services": pending_services,
}
each_case = pytest.mark.parametrize("make", CASES.values(), ids=list(CASES))


def _later(case: Case) -> set[str]:
    snapshot = load_snapshot(case.built.storage)
    return {ref.requested_at for ref in plan_restore(snapshot, case.saved).instants}


@each_case
def test_the_saved_state_and_nothing_else_remains(make: Callable[[], Case]) -> None:
    case = make()
    storage, later = case.built.storage, _later(case)
    assert read_versions(storage) == case.states[0]
    others = [path for path in list_files(storage) if not any(at in path for at in later)]
    completed = act_with_lock(storage, partial(restore, case.saved))
    assert isinstance(completed, Instant)
    assert read_versions(storage) == case.states[-1]
    names = [f"{completed.requested_at}.restore.{state.lower()}" for state in PENDING_STATES]
    expected = [
        *others,
        *(f"{TIMELINE}/{name}" for name in (*names, completed.file_name, *case.remaining)),
    ]
    assert files_without_markers(storage) == sorted(expected)


@each_case
def test_killed_anywhere_a_reader_sees_one_of_the_states_and_a_second_run_ends_it(
    make: Callable[[], Case],
) -> None:
    expected = make()
    act = partial(restore, expected.saved)
    act_with_lock(expected.built.storage, act)
    points = 0
    for storage in crashed_copies(make().built.storage, act):
        points += 1
        assert read_versions(storage) in expected.states
        assert orphan_data_files(storage) == []
        act_with_lock(storage, act)
        assert read_versions(storage) == expected.states[-1]
        assert list_files(storage) == list_files(expected.built.storage)
    assert points > 10


def test_repeated_it_is_one_restore() -> None:
    case = commits()
    first = act_with_lock(case.built.storage, partial(restore, case.saved))
    assert act_with_lock(case.built.storage, partial(restore, case.saved)) == first


def test_with_nothing_to_roll_back_it_is_an_empty_restore() -> None:
    built = BuiltTable()
    saved = saved_at(built, built.write({F: versions(a=1)}))
    completed = act_with_lock(built.storage, partial(restore, saved))
    assert isinstance(completed, Instant)
    assert metadata_of(built.storage, completed).commits == ()
    assert read_versions(built.storage) == versions(a=1)


def metadata_of(storage: Storage, completed: Instant) -> RestoreMetadata:
    return parse_restore(storage.read(f"{TIMELINE}/{completed.file_name}"))


def test_plan_and_outcome_name_the_instants_newest_first() -> None:
    case = compaction()
    snapshot = load_snapshot(case.built.storage)
    writes = [i for i in snapshot.timeline.completed_writes if i.requested_at > case.saved]
    refs = tuple(InstantRef(i.requested_at, i.action) for i in reversed(writes))
    completed = act_with_lock(case.built.storage, partial(restore, case.saved))
    assert isinstance(completed, Instant)
    requested = f"{TIMELINE}/{completed.requested_at}.restore.requested"
    plan = parse_restore_plan(case.built.storage.read(requested))
    assert plan == RestorePlan(instants=refs, savepoint=case.saved, version=2)
    metadata = metadata_of(case.built.storage, completed)
    assert metadata.started_at == completed.requested_at
    assert metadata.instants == refs
    assert metadata.commits == tuple(ref.requested_at for ref in refs)
    assert metadata.rollbacks.keys() == set(metadata.commits)
    for ref in refs:
        (rollback,) = metadata.rollbacks[ref.requested_at]
        assert rollback.commits == (ref.requested_at,)
        assert rollback.instants == (ref,)
        files = [file for part in rollback.partitions.values() for file in part.deleted]
        assert len(files) == rollback.files_deleted == 1
        assert ref.requested_at in files[0]


def test_cleans_and_rollbacks_after_the_savepoint_stay() -> None:
    case = commits()
    built = case.built
    dead = built.fail({F: versions(a=9)})
    snapshot = load_snapshot(built.storage)
    rollback = rollback_locked(
        snapshot, dead, time_generator(snapshot), ManualClock(), by_markers=True
    )
    while built.tick() < (rollback.completed_at or ""):
        pass
    clean = built.clean()
    act_with_lock(built.storage, partial(restore, case.saved))
    remaining = set(load_snapshot(built.storage).timeline)
    assert {rollback, clean} <= remaining
    assert read_versions(built.storage) == case.states[-1]


def test_a_savepoint_of_real_hudi_is_restored(golden: GoldenTables) -> None:
    storage = upload(golden["cow_savepoint"], MemoryStorage.fresh())
    (saved,) = load_snapshot(storage).timeline.completed(Action.SAVEPOINT)
    last = load_snapshot(storage).timeline.completed_writes[-1]
    assert last.requested_at > saved.requested_at
    act_with_lock(storage, partial(restore, saved.requested_at))
    timeline = load_snapshot(storage).timeline
    assert timeline.completed_writes[-1].requested_at == saved.requested_at
    (expected,) = [q.rows for q in queries("cow_savepoint") if q.as_of == saved.requested_at]
    assert read_json_rows(storage) == sorted(expected or ())
    assert not [path for path in list_data_files(storage) if last.requested_at in path]


def test_without_a_savepoint_it_is_refused() -> None:
    built = BuiltTable()
    first = built.write({F: versions(a=1)})
    built.write({F: versions(a=2)})
    with pytest.raises(InvalidError, match="no savepoint"):
        act_with_lock(built.storage, partial(restore, first.requested_at))
    built.put(Instant(first.requested_at, Action.SAVEPOINT, State.INFLIGHT), b"")
    with pytest.raises(InvalidError, match="no savepoint"):
        act_with_lock(built.storage, partial(restore, first.requested_at))
    assert read_versions(built.storage) == versions(a=2)


def test_a_later_savepoint_must_be_deleted_first() -> None:
    case = commits()
    newest = load_snapshot(case.built.storage).timeline.completed_writes[-1]
    act_with_lock(case.built.storage, partial(save, newest.requested_at))
    with pytest.raises(InvalidError, match="later savepoints") as caught:
        act_with_lock(case.built.storage, partial(restore, case.saved))
    assert caught.value.facts["later"] == [newest.requested_at]
    assert read_versions(case.built.storage) == case.states[0]


def test_a_savepoint_with_a_missing_file_is_corrupt_and_nothing_is_touched() -> None:
    case = commits()
    (path,) = [
        p for p in list_data_files(case.built.storage) if p.startswith("d1/f_") and case.saved in p
    ]
    case.built.storage.delete(path)
    before = list_files(case.built.storage)
    with pytest.raises(CorruptError, match="missing") as caught:
        act_with_lock(case.built.storage, partial(restore, case.saved))
    assert caught.value.facts["missing"] == [path]
    assert list_files(case.built.storage) == before


def test_archived_writes_cannot_be_rolled_back(golden: GoldenTables) -> None:
    storage = upload(golden["cow_archived"], MemoryStorage.fresh())
    snapshot = load_snapshot(storage)
    oldest = snapshot.archived[0]
    for name in (
        oldest,
        Instant(oldest.requested_at, Action.SAVEPOINT, completed_at="20991231000000000"),
    ):
        if not storage.exists(f"{TIMELINE}/{name.file_name}"):
            storage.create(f"{TIMELINE}/{name.file_name}", b"")
    with pytest.raises(InvalidError, match="archived"):
        act_with_lock(storage, partial(restore, oldest.requested_at))


def half_restored() -> Case:
    """Killed when the newest commit was deleted from the timeline and its files were not."""
    case = commits()
    snapshot = load_snapshot(case.built.storage)
    plan = plan_restore(snapshot, case.saved)
    case.built.put(
        Instant(case.built.tick(), Action.RESTORE, State.REQUESTED), format_restore_plan(plan)
    )
    at = plan.instants[0].requested_at
    for path in list_files(case.built.storage):
        if path.startswith(f"{TIMELINE}/{at}"):
            case.built.storage.delete(path)
    return case


def test_an_interrupted_restore_is_ended_by_the_next_process() -> None:
    case = half_restored()
    act_with_lock(case.built.storage, partial(restore, case.saved))
    assert read_versions(case.built.storage) == case.states[-1]
    assert not load_snapshot(case.built.storage).timeline.pending()
    assert len([p for p in list_data_files(case.built.storage) if p.endswith(".parquet")]) == 2


def _restored_anew() -> Storage:
    case = half_restored()
    case.built.write({F: versions(a=7)})
    return case.built.storage


def test_run_again_it_rolls_back_new_writes_as_well_and_leaves_no_file_or_attempt() -> None:
    case = half_restored()
    act = partial(restore, case.saved)
    expected = _restored_anew()
    act_with_lock(expected, act)
    assert read_versions(expected) == case.states[-1]
    assert not load_snapshot(expected).timeline.pending()
    assert len([p for p in list_data_files(expected) if p.endswith(".parquet")]) == 2
    for storage in crashed_copies(_restored_anew(), act):
        act_with_lock(storage, act)
        assert list_files(storage) == list_files(expected)


def test_a_restore_to_another_savepoint_waits_for_the_one_that_was_begun() -> None:
    case = half_restored()
    newest = load_snapshot(case.built.storage).timeline.completed_writes[-1]
    act_with_lock(case.built.storage, partial(save, newest.requested_at))
    with pytest.raises(InvalidError, match="another savepoint") as caught:
        act_with_lock(case.built.storage, partial(restore, newest.requested_at))
    assert caught.value.facts["savepoint"] == case.saved


def test_a_plan_that_was_never_written_is_passed_over() -> None:
    case = commits()
    case.built.put(Instant(case.built.tick(), Action.RESTORE, State.REQUESTED), b"")
    snapshot = load_snapshot(case.built.storage)
    assert pending_restore(snapshot) is None
    act_with_lock(case.built.storage, partial(restore, case.saved))
    assert read_versions(case.built.storage) == case.states[-1]
    assert not load_snapshot(case.built.storage).timeline.pending()
