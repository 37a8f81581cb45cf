from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from lakewright.errors import InvalidError
from lakewright.format.timeline_metadata import format_clean_plan, parse_savepoint
from lakewright.model.commit_metadata import SavepointMetadata
from lakewright.model.file_group import LogFile
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import CleanFile, CleanPlan
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.savepoint import (
    create_savepoint_locked,
    delete_savepoint_locked,
    find_savepoint,
)
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.time_generator import TimeGenerator
from lakewright.testing.clock import ManualClock
from support.faults import act_with_lock, crashed_copies
from support.golden import GoldenTables, upload
from support.tables import (
    TIMELINE,
    BuiltTable,
    compaction_operation,
    compaction_plan,
    list_data_files,
    list_files,
    read_versions,
    versions,
)

F, G, H = ("d1", "f"), ("d2", "g"), ("d1", "h")


def save(instant: str, snapshot: Snapshot, times: TimeGenerator, clock: ManualClock) -> Instant:
    return create_savepoint_locked(
        snapshot, instant, times, clock, user="ann", comment="before the move"
    )


def unsave(instant: str, snapshot: Snapshot, times: TimeGenerator, clock: ManualClock) -> None:
    delete_savepoint_locked(snapshot, instant)


def saved(storage: Storage, instant: Instant) -> SavepointMetadata:
    savepoint = find_savepoint(load_snapshot(storage), instant.requested_at)
    assert savepoint is not None
    return parse_savepoint(storage.read(f"{TIMELINE}/{savepoint.file_name}"))


def files_saved(storage: Storage, instant: Instant) -> list[str]:
    act_with_lock(storage, partial(save, instant.requested_at))
    metadata = saved(storage, instant)
    return [f"{p}/{name}" for p, part in metadata.partitions.items() for name in part.files]


def test_the_newest_base_files_as_of_the_instant_are_saved() -> None:
    built = BuiltTable()
    built.write({F: versions(a=1), G: versions(b=1)})
    middle = built.write({F: versions(a=2)})
    built.write({F: versions(a=3), H: versions(c=3)})
    paths = files_saved(built.storage, middle)
    assert [path.split("_")[0] for path in paths] == ["d1/f", "d2/g"]
    assert middle.requested_at in paths[0]


def test_base_and_logs_are_saved_the_newest_log_first() -> None:
    built = BuiltTable("MERGE_ON_READ")
    base = built.write({F: versions(a=1)})
    first, second = built.write(logs={F: versions(a=2)}), built.write(logs={F: versions(a=3)})
    built.write(logs={F: versions(a=4)})
    names = [f"d1/{LogFile('f', i.requested_at, 1, '0-0-0').name}" for i in (second, first)]
    assert files_saved(built.storage, second) == [f"d1/f_0-0-0_{base.requested_at}.parquet", *names]


def test_what_a_pending_compaction_will_fold_in_is_saved() -> None:
    built = BuiltTable("MERGE_ON_READ")
    base, log = built.write({F: versions(a=1)}), built.write(logs={F: versions(a=2)})
    plan = compaction_plan(compaction_operation(F, base, log))
    built.put(Instant(built.tick(), Action.COMPACTION, State.REQUESTED), plan)
    last = built.write(logs={F: versions(a=3)})
    assert len(files_saved(built.storage, last)) == 3


def test_a_group_that_was_replaced_later_is_saved() -> None:
    built = BuiltTable()
    first = built.write({F: versions(a=1)})
    pending = built.fail({H: versions(a=2)}, action="replacecommit")
    stats = built.stats(pending.requested_at, H, replaced={"d1": ("f",)})
    completed = built.complete(pending, stats)
    assert [path.split("_")[0] for path in files_saved(built.storage, first)] == ["d1/f"]
    assert [path.split("_")[0] for path in files_saved(built.storage, completed)] == ["d1/h"]


def test_a_savepoint_records_what_real_hudi_records(golden: GoldenTables) -> None:
    storage = upload(golden["cow_savepoint"], MemoryStorage.fresh())
    (real,) = load_snapshot(storage).timeline.completed(Action.SAVEPOINT)
    theirs = saved(storage, real)
    act_with_lock(storage, partial(unsave, real.requested_at))
    assert not [path for path in list_files(storage) if "savepoint" in path]
    act_with_lock(storage, partial(save, real.requested_at))
    ours = saved(storage, real)
    assert ours.partitions == theirs.partitions
    assert ours.version == theirs.version
    assert (ours.saved_by, ours.comments) == ("ann", "before the move")
    assert ours.saved_at == ManualClock().now_ms()
    assert storage.read(f"{TIMELINE}/{real.requested_at}.savepoint.inflight") == b""


def _two_commits() -> tuple[BuiltTable, Instant]:
    built = BuiltTable()
    first = built.write({F: versions(a=1)})
    built.write({F: versions(a=2)})
    return built, first


def test_killed_anywhere_and_repeated_it_is_one_savepoint() -> None:
    built, first = _two_commits()
    act = partial(save, first.requested_at)
    assert act_with_lock(built.storage, act) == act_with_lock(built.storage, act)
    for storage in crashed_copies(_two_commits()[0].storage, act):
        assert read_versions(storage) == versions(a=2)
        act_with_lock(storage, act)
        assert list_files(storage) == list_files(built.storage)


def test_killed_anywhere_while_it_is_deleted_nothing_else_is_touched() -> None:
    built, first = _two_commits()
    before = list_files(built.storage)
    act_with_lock(built.storage, partial(save, first.requested_at))
    for storage in crashed_copies(built.storage, partial(unsave, first.requested_at)):
        if [path for path in list_files(storage) if "savepoint" in path]:
            act_with_lock(storage, partial(unsave, first.requested_at))
        assert list_files(storage) == before


def _pending(built: BuiltTable) -> str:
    return built.fail({F: versions(a=2)}).requested_at


def _cleaned(built: BuiltTable) -> str:
    first = built.write({F: versions(a=1)})
    built.write({F: versions(a=2)})
    (path,) = [p for p in list_data_files(built.storage) if first.requested_at in p]
    built.clean(path)
    return first.requested_at


def _about_to_be_cleaned(built: BuiltTable) -> str:
    first = built.write({F: versions(a=1)})
    built.write({F: versions(a=2)})
    name = f"f_0-0-0_{first.requested_at}.parquet"
    plan = CleanPlan(policy="KEEP_LATEST_COMMITS", files={"d1": (CleanFile(path=f"/t/d1/{name}"),)})
    built.put(Instant(built.tick(), Action.CLEAN, State.REQUESTED), format_clean_plan(plan))
    return first.requested_at


REFUSED: dict[str, tuple[Callable[[BuiltTable], str], str]] = {
    "an unknown instant": (lambda built: "20250101000000000", "no such write"),
    "a pending write": (_pending, "pending"),
    "an instant whose files were cleaned": (_cleaned, "cleaned"),
    "an instant whose files are about to be cleaned": (_about_to_be_cleaned, "about to be"),
}


@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=list(REFUSED))
def test_refused(make: Callable[[BuiltTable], str], reason: str) -> None:
    built = BuiltTable()
    instant = make(built)
    before = list_files(built.storage)
    with pytest.raises(InvalidError, match=reason):
        act_with_lock(built.storage, partial(save, instant))
    assert list_files(built.storage) == before


def test_an_instant_that_cleaning_has_passed_is_refused(golden: GoldenTables) -> None:
    storage = upload(golden["cow_archived"], MemoryStorage.fresh())
    snapshot = load_snapshot(storage)
    earliest = snapshot.earliest_retained()
    assert earliest is not None
    older = [
        i.requested_at for i in snapshot.timeline.completed_writes if i.requested_at < earliest
    ]
    assert older
    for instant in older:
        with pytest.raises(InvalidError, match="cleaned past"):
            act_with_lock(storage, partial(save, instant))
    newest = snapshot.timeline.completed_writes[-1]
    assert files_saved(storage, newest)


def test_what_was_cleaned_and_superseded_before_does_not_matter() -> None:
    built = BuiltTable()
    first = built.write({F: versions(a=1)})
    second = built.write({F: versions(a=2)})
    (path,) = [p for p in list_data_files(built.storage) if first.requested_at in p]
    built.clean(path)
    assert [name.rpartition("_")[2] for name in files_saved(built.storage, second)] == [
        f"{second.requested_at}.parquet"
    ]


def test_deleting_a_savepoint_that_is_not_there_is_reported() -> None:
    built, first = _two_commits()
    with pytest.raises(InvalidError, match="no savepoint"):
        act_with_lock(built.storage, partial(unsave, first.requested_at))
