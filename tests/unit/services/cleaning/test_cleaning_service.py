"""Cleans of small tables: what they look at, what they delete, and what they leave to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count

import pytest

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.format.timeline_metadata import format_clean_plan, format_replace_commit
from lakewright.model.commit_metadata import CleanMetadata, CommitMetadata
from lakewright.model.file_group import PARTITION_METADATA, BaseFile
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import CleanFile, CleanPlan, Skip
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.rollback import rollback_locked
from lakewright.table.savepoint import create_savepoint_locked, delete_savepoint_locked
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage, Crash, CrashingStorage
from lakewright.write.writer import Commit
from support.faults import act_with_lock, each_crash
from support.golden import GoldenTables, upload
from support.services import CleanAndArchive, clean_and_archive
from support.tables import (
    NO_SERVICES,
    TIMELINE,
    BuiltTable,
    WrittenTable,
    begin_action,
    clustering_plan,
    compaction_operation,
    compaction_plan,
    list_data_files,
    list_files,
    read_json_rows,
    read_versions,
    row,
    set_clock,
    versions,
)

F, G, H = ("d1", "f"), ("d2", "g"), ("d3", "h")
ONE = {"hoodie.clean.commits.retained": "1"}
VERSIONS = {
    "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
    "hoodie.clean.fileversions.retained": "1",
}
FILTERED = {"hoodie.clean.partition.filter.regex": "d[23]"}
LISTINGS = {"list_files", "list_folders", "list_tree", "list_many"}


def written(times: int = 3) -> BuiltTable:
    """A table whose first group was written several times, and another once."""
    built = BuiltTable()
    built.write({F: versions(a=1), G: versions(b=1)})
    for version in range(2, times + 1):
        built.write({F: versions(a=version)})
    return built


def deleted(metadata: CleanMetadata | Skip) -> list[str]:
    assert isinstance(metadata, CleanMetadata)
    names = [(p, name) for p, part in metadata.partitions.items() for name in part.deleted]
    assert metadata.files_deleted == len(names)
    return [f"{partition}/{name}" for partition, name in names]


def base(group: tuple[str, str], write: Instant) -> str:
    return f"{group[0]}/{BaseFile(group[1], '0-0-0', write.requested_at).name}"


def replace_groups(built: BuiltTable, *replaced: tuple[str, str]) -> Instant:
    """A delete_partition of these groups."""
    at = built.tick()
    completed = Instant(at, Action.REPLACE_COMMIT, completed_at=built.tick())
    taken: dict[str, tuple[str, ...]] = {}
    for partition, file_id in replaced:
        taken[partition] = (*taken.get(partition, ()), file_id)
    metadata = CommitMetadata(
        replaced=taken, operation="DELETE_PARTITION", extra={"schema": built.builder.avro_schema}
    )
    built.put(completed, format_replace_commit(metadata))
    return completed


def test_old_files_are_deleted_and_reported() -> None:
    built = written(4)
    writes = load_snapshot(built.storage).timeline.completed_writes
    before = read_versions(built.storage)
    metadata = clean_and_archive(built, ONE).clean()
    assert isinstance(metadata, CleanMetadata)
    assert deleted(metadata) == [base(F, write) for write in writes[:2]]
    assert metadata.earliest_to_retain == writes[3].requested_at
    assert metadata.last_completed == writes[3].requested_at
    assert read_versions(built.storage) == before
    assert sorted(list_data_files(built.storage)) == sorted(
        [base(F, writes[2]), base(F, writes[3]), base(G, writes[0])]
        + [f"{day}/{PARTITION_METADATA}" for day in ("d1", "d2")]
    )


def test_plans_name_whole_paths_as_real_ones_do() -> None:
    built = written()
    plan = clean_and_archive(built, ONE).plan_clean()
    assert isinstance(plan, CleanPlan)
    first = load_snapshot(built.storage).timeline.completed_writes[0]
    assert plan.files == {"d1": (CleanFile(path=built.storage.url(base(F, first))),)}
    assert plan.earliest_to_retain is not None
    assert plan.earliest_to_retain.state == "COMPLETED"
    assert plan.version == 2


def test_the_next_clean_lists_only_what_was_written_since() -> None:
    built = written()
    storage = CountingStorage(built.storage)
    upkeep = clean_and_archive(built, ONE, storage)
    upkeep.clean()
    built.write({G: versions(b=2)})
    built.write({H: versions(c=1)})
    storage.reset()
    metadata = upkeep.clean()
    writes = load_snapshot(storage).timeline.completed_writes
    assert deleted(metadata) == [base(F, writes[1]), base(G, writes[0])]
    listed = {path for method, path in storage.touched if method in LISTINGS}
    assert listed & {"", "d1", "d2", "d3"} == {"d2", "d1"}


def test_nothing_in_the_window_lists_nothing() -> None:
    built = written()
    clean_and_archive(built, ONE).clean()
    built.fail({G: versions(b=5)})
    built.write({H: versions(c=1)})
    storage = CountingStorage(built.storage)
    upkeep = clean_and_archive(built, ONE, storage)
    context = upkeep.planning_context()
    storage.reset()
    skip = upkeep.plan_clean()
    assert isinstance(skip, Skip)
    assert "nothing can have become due" in skip.reason
    assert context.snapshot.timeline.pending(Action.COMMIT)
    listed = {path for method, path in storage.touched if method in LISTINGS}
    assert listed <= {TIMELINE}


def test_a_table_that_only_grows_is_not_listed_for_ever() -> None:
    built = BuiltTable()
    storage = CountingStorage(built.storage)
    upkeep = clean_and_archive(built, ONE, storage)
    results = []
    for number in range(20):
        built.write({(f"day{number}", f"f{number}"): versions(**{f"k{number}": 1})})
        storage.reset()
        results.append(upkeep.clean())
        listed = {path for method, path in storage.touched if method in LISTINGS}
        assert "" not in listed
        assert len({path for path in listed if path.startswith("day")}) <= 7
    assert sum(isinstance(result, CleanMetadata) for result in results) == 3


def test_a_clean_that_deletes_nothing_is_recorded_when_the_last_is_old() -> None:
    built = written()
    built.write({G: versions(b=2)})
    upkeep = clean_and_archive(built, {**ONE, "hoodie.write.empty.clean.interval.hours": "2"})
    assert deleted(upkeep.clean())
    built.write({H: versions(c=1)})
    assert deleted(upkeep.clean())
    built.write({("d4", "i"): versions(d=1)})
    assert isinstance(upkeep.clean(), Skip)
    upkeep.clock.advance(3 * 3_600_000)
    metadata = upkeep.clean()
    assert isinstance(metadata, CleanMetadata)
    assert metadata.files_deleted == 0


def test_filtered_partitions_are_made_up_for_by_the_next_clean() -> None:
    built = written()
    built.write({G: versions(b=2)})
    built.write({G: versions(b=3)})
    writes = load_snapshot(built.storage).timeline.completed_writes
    upkeep = clean_and_archive(built, ONE)
    assert deleted(upkeep.with_options(FILTERED).clean()) == [base(G, writes[0])]
    built.write({H: versions(c=1)})
    assert set(deleted(upkeep.clean())) == {
        base(F, writes[0]),
        base(F, writes[1]),
        base(G, writes[3]),
    }


def test_selected_partitions_are_all_that_is_listed() -> None:
    built = written()
    storage = CountingStorage(built.storage)
    options = {
        **ONE,
        "hoodie.clean.partition.filter.selected": "d2, d1/",
        "hoodie.clean.incremental.enabled": "false",
    }
    first = load_snapshot(built.storage).timeline.completed_writes[0]
    assert deleted(CleanAndArchive(storage, options).clean()) == [base(F, first)]
    listed = {path for method, path in storage.touched if method in LISTINGS}
    assert "" not in listed


def test_saved_files_stay_until_the_savepoint_is_deleted() -> None:
    built = written(4)
    first = load_snapshot(built.storage).timeline.completed_writes[0]
    act_with_lock(
        built.storage,
        lambda now, times, clock: create_savepoint_locked(now, first.requested_at, times, clock),
    )
    upkeep = clean_and_archive(built, ONE)
    assert base(F, first) not in deleted(upkeep.clean())
    built.write({H: versions(c=1)})
    assert isinstance(upkeep.clean(), CleanMetadata | Skip)
    assert built.storage.exists(base(F, first))
    act_with_lock(
        built.storage, lambda now, times, clock: delete_savepoint_locked(now, first.requested_at)
    )
    built.write({H: versions(c=2)})
    assert base(F, first) in deleted(upkeep.clean())


def test_files_of_a_pending_compaction_stay_until_it_completes() -> None:
    built = BuiltTable("MERGE_ON_READ")
    first = built.write({F: versions(a=1)})
    log = built.write(logs={F: versions(a=2)})
    plan = compaction_plan(compaction_operation(F, first, log))
    pending = built.fail({}, action="compaction", requested=plan)
    for version in range(3, 6):
        built.write(logs={F: versions(a=version)})
    upkeep = clean_and_archive(built, VERSIONS)
    before = set(list_files(built.storage))
    upkeep.clean()
    assert set(before) <= {*list_files(built.storage)}
    built.base(F, versions(a=2), pending.requested_at)
    built.complete(pending, built.stats(pending.requested_at, F))
    built.write({H: versions(c=1)})
    assert sorted(deleted(upkeep.clean())) == sorted(
        [base(F, first), f"d1/.f_{log.requested_at}.log.1_0-0-0"]
    )
    assert read_versions(built.storage) == {"a": 5, "c": 1}


def test_a_replaced_group_of_a_pending_clustering_is_looked_at_again() -> None:
    built = written(1)
    built.write({G: versions(b=2)})
    replace_groups(built, F)
    pending = built.fail({}, action="clustering", requested=clustering_plan(F))
    upkeep = clean_and_archive(built, VERSIONS)
    metadata = upkeep.clean()
    assert isinstance(metadata, CleanMetadata)
    assert list(metadata.partitions) == ["d2"]
    assert "held by clustering" in metadata.extra["lakewright.missing.reasons"]
    for state in (State.INFLIGHT, State.REQUESTED):
        built.storage.delete(
            f"{TIMELINE}/{Instant(pending.requested_at, Action('clustering'), state)}"
        )
    built.write({H: versions(c=1)})
    assert [path.split("/")[0] for path in deleted(upkeep.clean())] == ["d1"]


def test_a_deleted_partition_disappears_from_the_table() -> None:
    built = written(1)
    first = load_snapshot(built.storage).timeline.completed_writes[0]
    replace_groups(built, G)
    built.write({F: versions(a=5)})
    metadata = clean_and_archive(built, ONE).clean()
    assert isinstance(metadata, CleanMetadata)
    assert metadata.partitions["d2"].is_partition_deleted
    assert base(G, first) in deleted(metadata)
    assert not built.storage.exists(f"d2/{PARTITION_METADATA}")
    assert read_versions(built.storage) == {"a": 5}


def test_a_deleted_partition_stays_if_a_write_began() -> None:
    built = written(1)
    replace_groups(built, G)
    built.write({F: versions(a=5)})
    upkeep = clean_and_archive(built, ONE)
    scheduled = upkeep.schedule_clean()
    assert isinstance(scheduled, Instant)
    pending = built.fail({})
    metadata = upkeep.execute_clean(scheduled.requested_at)
    assert not metadata.partitions["d2"].is_partition_deleted
    assert "d2" in metadata.extra["lakewright.missing.reasons"]
    # The partition existed when the writer began, so it did not create it again.
    built.base(("d2", "new"), versions(z=1), pending.requested_at)
    built.complete(pending, built.stats(pending.requested_at, ("d2", "new")))
    assert read_versions(built.storage) == {"a": 5, "z": 1}


def savepoint(built: BuiltTable, first: Instant) -> None:
    # Lakewright refuses a savepoint while a clean may delete the files; other writers do not check.
    storage = MemoryStorage.fresh(
        {
            path: built.storage.read(path)
            for path in list_files(built.storage)
            if ".clean" not in path
        }
    )
    act_with_lock(
        storage,
        lambda now, times, clock: create_savepoint_locked(now, first.requested_at, times, clock),
    )
    for path in set(list_files(storage)) - set(list_files(built.storage)):
        built.storage.create(path, storage.read(path))


def plan_of_others(built: BuiltTable, first: Instant) -> None:
    built.fail({}, action="clustering", requested=clustering_plan(F))


def rolled_back(built: BuiltTable, first: Instant) -> None:
    """Real Hudi rolls back any write: all writes but the first are removed."""
    for write in reversed(load_snapshot(built.storage).timeline.completed_writes[1:]):
        built.storage.delete(f"{TIMELINE}/{write.file_name}")
        for path in list_data_files(built.storage):
            if write.requested_at in path:
                built.storage.delete(path)


CHANGES_AFTER_PLANNING: dict[str, Callable[[BuiltTable, Instant], None]] = {
    "a savepoint": savepoint,
    "a plan of another writer": plan_of_others,
    "a rollback of all that came after": rolled_back,
}


@pytest.mark.parametrize(
    "happens", CHANGES_AFTER_PLANNING.values(), ids=list(CHANGES_AFTER_PLANNING)
)
def test_what_came_to_be_needed_after_the_plan_was_made_stays(
    happens: Callable[[BuiltTable, Instant], None],
) -> None:
    built = written(3)
    first = load_snapshot(built.storage).timeline.completed_writes[0]
    upkeep = clean_and_archive(built, ONE)
    scheduled = upkeep.schedule_clean()
    assert isinstance(scheduled, Instant)
    happens(built, first)
    metadata = upkeep.execute_clean(scheduled.requested_at)
    assert metadata.files_deleted == 0
    assert built.storage.exists(base(F, first))
    assert "d1" in metadata.extra["lakewright.missing.reasons"]


def test_a_write_whose_predecessor_was_cleaned_can_still_be_rolled_back_once() -> None:
    built = written(4)
    clean_and_archive(built, ONE).clean()
    newest = load_snapshot(built.storage).timeline.completed_writes[-1]
    act_with_lock(
        built.storage,
        lambda now, times, clock: rollback_locked(now, newest, times, clock, by_markers=False),
    )
    assert read_versions(built.storage) == {"a": 3, "b": 1}


def test_plans_of_real_hudi_are_executed_wherever_the_table_lies_now(
    golden: GoldenTables,
) -> None:
    storage = upload(golden["cow_archived"], MemoryStorage.fresh())
    rows = read_json_rows(storage)
    writes = load_snapshot(storage).timeline.completed_writes
    folder = next(path for path in storage.list_folders("") if path != ".hoodie")
    old = min(
        file.name for file in storage.list_files(folder) if writes[-2].requested_at in file.name
    )
    plan = CleanPlan(
        policy="KEEP_LATEST_COMMITS",
        files={folder: (CleanFile(path=f"file:/elsewhere/{folder}/{old}"),)},
    )
    upkeep = CleanAndArchive(storage)
    requested = Instant(upkeep.planning_context().instant, Action.CLEAN, State.REQUESTED)
    storage.create(f"{TIMELINE}/{requested.file_name}", format_clean_plan(plan))
    assert upkeep.execute_clean(requested.requested_at).files_deleted == 1
    assert not storage.exists(f"{folder}/{old}")
    assert read_json_rows(storage) == rows


def test_files_outside_of_the_table_are_not_deleted() -> None:
    built = written()
    plan = CleanPlan(
        policy="KEEP_LATEST_COMMITS",
        files={"d1": (CleanFile(path="s3://elsewhere/x.parquet", is_bootstrap=True),)},
    )
    upkeep = clean_and_archive(built)
    requested = Instant(upkeep.planning_context().instant, Action.CLEAN, State.REQUESTED)
    built.put(requested, format_clean_plan(plan))
    with pytest.raises(UnsupportedError, match="bootstrapped"):
        upkeep.execute_clean(requested.requested_at)


def planned(built: BuiltTable, partition: str, name: str) -> str:
    """A clean is requested whose plan names this file."""
    plan = CleanPlan(
        policy="KEEP_LATEST_COMMITS",
        files={partition: (CleanFile(path=f"/elsewhere/{partition}/{name}"),)},
        deleted_partitions=(partition,),
    )
    requested = Instant(
        clean_and_archive(built).planning_context().instant, Action.CLEAN, State.REQUESTED
    )
    built.put(requested, format_clean_plan(plan))
    return requested.requested_at


@pytest.mark.parametrize("name", ["notes.txt", PARTITION_METADATA, ".hidden", "f.csv"])
def test_what_a_plan_names_and_is_no_data_file_stays(name: str) -> None:
    built = written()
    if not built.storage.exists(f"d1/{name}"):
        built.storage.create(f"d1/{name}", b"")
    before = set(list_files(built.storage))
    metadata = clean_and_archive(built).execute_clean(planned(built, "d1", name))
    assert deleted(metadata) == []
    assert "no data file" in str(metadata.extra)
    assert before <= set(list_files(built.storage))


@pytest.mark.parametrize(
    "path", [".hoodie/hoodie.properties", ".hoodie/timeline/history/manifest_1"]
)
def test_a_plan_that_names_the_metadata_of_the_table_deletes_nothing(path: str) -> None:
    built = written()
    if not built.storage.exists(path):
        built.storage.create(path, b"")
    partition, _, name = path.rpartition("/")
    requested_at = planned(built, partition, name)
    before = set(list_files(built.storage))
    with pytest.raises(CorruptError, match="the table's own metadata"):
        clean_and_archive(built).execute_clean(requested_at)
    assert before <= set(list_files(built.storage))


def test_golden_tables_are_cleaned_and_read_as_before(golden: GoldenTables) -> None:
    for name in ("cow_archived", "mor_compacted", "cow_overwrite", "cow_delete_partition"):
        storage = upload(golden[name], MemoryStorage.fresh())
        rows = read_json_rows(storage)
        CleanAndArchive(storage, {**ONE, "hoodie.clean.trigger.max.commits": "0"}).clean()
        assert read_json_rows(storage) == rows, name


def partitions_deleted() -> Storage:
    built = written(3)
    replace_groups(built, G)
    built.write({F: versions(a=9)})
    return built.storage


def versions_of_logs() -> Storage:
    built = BuiltTable("MERGE_ON_READ")
    first = built.write({F: versions(a=1), G: versions(b=1)})
    log = built.write(logs={F: versions(a=2)})
    at = built.tick()
    built.put(
        Instant(at, Action.COMPACTION, State.REQUESTED),
        compaction_plan(compaction_operation(F, first, log)),
    )
    built.base(F, versions(a=2), at)
    built.complete(Instant(at, Action.COMPACTION, State.INFLIGHT), built.stats(at, F))
    built.write({H: versions(c=1)}, {G: versions(b=2)})
    return built.storage


CRASHES = {
    "with a partition that goes": (partitions_deleted, ONE),
    "by commits, with log files": (versions_of_logs, ONE),
    "by versions": (versions_of_logs, VERSIONS),
}


@each_crash
@pytest.mark.parametrize(("make", "options"), CRASHES.values(), ids=list(CRASHES))
def test_a_clean_that_dies_is_ended_by_the_next(
    make: Callable[[], Storage], options: dict[str, str], after_effect: bool
) -> None:
    table = make()
    content = {path: table.read(path) for path in list_files(table)}
    rows = read_versions(table)
    whole = MemoryStorage.fresh(content)
    assert isinstance(CleanAndArchive(whole, options).clean(), CleanMetadata)
    for survived in count():
        storage = MemoryStorage.fresh(content)
        dying = CrashingStorage(storage, survived, after_effect=after_effect)
        try:
            CleanAndArchive(dying, options).clean()
        except Crash:
            assert read_versions(storage) == rows
            CleanAndArchive(storage, options).clean()
            assert read_versions(storage) == rows
            assert list_data_files(storage) == list_data_files(whole)
            cleans = load_snapshot(storage).timeline
            assert not cleans.pending(Action.CLEAN)
            assert len(cleans.completed(Action.CLEAN)) == 1
        else:
            assert survived >= 4
            break


def test_a_clean_deletes_old_heartbeats() -> None:
    built = written(3)
    dead = "20251231235959999"
    built.storage.create(f".hoodie/.heartbeat/{dead}", b"")
    upkeep = clean_and_archive(built, ONE)
    status = built.storage.status(f".hoodie/.heartbeat/{dead}")
    assert status is not None
    upkeep.clock.advance(status.modified_ms + 3_600_000 - upkeep.clock.now_ms())
    set_clock(built.storage, upkeep.clock)
    upkeep.clean()
    assert not built.storage.exists(f".hoodie/.heartbeat/{dead}")


def test_a_clean_without_anything_to_do_deletes_old_heartbeats_as_well() -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("a")])
    begun = begin_action(table.services().writer, "commit").instant
    dead, pending = (f".hoodie/.heartbeat/{at}" for at in ("20251231235959999", begun))
    for path in (dead, pending):
        table.storage.create(path, b"")
    status = table.storage.status(pending)
    assert status is not None
    assert isinstance(table.clock, ManualClock)
    assert isinstance(table.services().run("clean"), Skip)
    assert table.storage.exists(dead)
    table.clock.advance(status.modified_ms + 3_600_000 - table.clock.now_ms())
    assert isinstance(table.services().run("clean"), Skip)
    assert [table.storage.exists(path) for path in (dead, pending)] == [False, True]


class Begun(CountingStorage):
    """A storage on which a writer begins and its tasks store rows while a clean deletes files."""

    instant = "20260101000100000"
    rows = f".hoodie/.lakewright/rows/{instant}/0.arrow"

    def delete_many(self, paths: Iterable[str]) -> None:
        super().delete_many(paths)
        states = (State.REQUESTED, State.INFLIGHT)
        begun = [
            f"{TIMELINE}/{Instant(self.instant, Action('commit'), s).file_name}" for s in states
        ]
        if not self.inner.exists(begun[0]):
            for path in (*begun, self.rows):
                self.inner.create(path, b"")


def test_rows_of_a_writer_that_began_during_a_long_clean_stay() -> None:
    built = written(3)
    storage = Begun(built.storage)
    upkeep = clean_and_archive(built, ONE, storage)
    status = built.storage.status(".hoodie/hoodie.properties")
    assert status is not None
    # All files of the writer are older than a heartbeat lasts by the time the clean sweeps.
    upkeep.clock.advance(status.modified_ms + 3_600_000 - upkeep.clock.now_ms())
    assert deleted(upkeep.clean())
    assert built.storage.exists(Begun.rows)


def test_a_metadata_table_is_dropped_before_its_files_are() -> None:
    built = BuiltTable()
    storage = built.storage
    data = storage.read(".hoodie/hoodie.properties")
    storage.replace(
        ".hoodie/hoodie.properties", data + b"\nhoodie.table.metadata.partitions=files\n"
    )
    storage.create(".hoodie/metadata/x", b"")
    built.write({F: versions(a=1)})
    built.write({F: versions(a=2)})
    built.write({F: versions(a=3)})
    assert len(deleted(CleanAndArchive(storage, ONE).clean())) == 1
    assert not storage.exists(".hoodie/metadata/x")


def test_a_longer_retention_does_not_claim_what_was_deleted() -> None:
    built = written(1)
    built.write({G: versions(b=2)})
    for version in range(2, 5):
        built.write({F: versions(a=version)})
    upkeep = clean_and_archive(built, ONE)
    metadata = upkeep.with_options({"hoodie.clean.partition.filter.selected": "d1"}).clean()
    assert isinstance(metadata, CleanMetadata)
    built.write({F: versions(a=6)})
    plan = upkeep.with_options({"hoodie.clean.commits.retained": "3"}).plan_clean()
    assert isinstance(plan, CleanPlan)
    assert list(plan.files) == ["d2"]
    assert plan.earliest_to_retain is not None
    assert plan.earliest_to_retain.requested_at == metadata.earliest_to_retain


def test_partitions_that_went_are_removed_many_at_once() -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.write("BULK_INSERT", [row(f"k{n}", day=f"p{n:03d}") for n in range(300)])
    table.delete_partitions("p0*", "p1*")
    storage = CountingStorage(table.storage)
    commit = replace(table, storage=storage).services(VERSIONS).run("clean")
    assert isinstance(commit, Commit)
    assert (commit.files, len(commit.partitions)) == (200, 200)
    assert {path[:2] for path in list_files(table.storage) if path.startswith("p")} == {"p2"}
    assert storage.calls["list_files"] < 12
    assert storage.calls["list_many"] + storage.calls["delete_many"] < 10
