"""Archiving of small tables: no query of the table changes."""

from __future__ import annotations

from itertools import count

import pytest

from lakewright.format.archived_file import (
    CONTENT,
    ArchivedInstant,
    Selection,
    format_archived_file,
)
from lakewright.format.archived_timeline import (
    ArchivedTimelineFile,
    format_manifest,
    parse_manifest_name,
)
from lakewright.format.timeline_metadata import format_replace_commit, format_requested_replace
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import RequestedReplace, Skip
from lakewright.scan.planner import plan_changes, plan_snapshot
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.archived_timeline import load_entries, load_manifest
from lakewright.table.savepoint import create_savepoint_locked
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_plan
from lakewright.testing.storage import Crash, CrashingStorage
from lakewright.write.writer import Commit
from support.faults import act_with_lock, each_crash
from support.golden import GoldenTables, upload
from support.services import CleanAndArchive, clean_and_archive
from support.soak import sized
from support.tables import (
    TIMELINE,
    BuiltTable,
    files_without_markers,
    list_files,
    read_json_rows,
    read_versions,
    versions,
)

F, G = ("d1", "f"), ("d2", "g")
HISTORY = f"{TIMELINE}/history"
FEW = {
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "4",
    "hoodie.clean.commits.retained": "1",
}
SMALL = {**FEW, "hoodie.commits.archival.batch": "1", "hoodie.timeline.compaction.batch.size": "2"}


def table_of(writes: int, kind: str = "COPY_ON_WRITE") -> BuiltTable:
    built = BuiltTable(kind)
    built.write({F: versions(a=0), G: versions(b=0)})
    for version in range(1, writes):
        if kind == "COPY_ON_WRITE":
            built.write({F: versions(a=version)})
        else:
            built.write(logs={F: versions(a=version)})
    return built


def entries(storage: Storage) -> list[ArchivedInstant]:
    return load_entries(storage, HISTORY, Selection(content=CONTENT))


def answers(storage: Storage, every: int = 1) -> list[object]:
    """Results of queries: the table now, as of writes, and the changes since them."""
    snapshot = load_snapshot(storage)
    writes = sorted({*snapshot.archived, *snapshot.timeline.completed_writes})
    results: list[object] = [read_versions(storage), writes]
    for write in writes[::every]:
        for plan in (
            plan_snapshot(snapshot, as_of=write.requested_at),
            plan_changes(snapshot, since=write.completed_at).plan,
        ):
            rows = read_plan(storage, plan).to_pylist()
            results.append(sorted((row["id"], row["ts"]) for row in rows))
    return results


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_history_has_what_the_timeline_had(kind: str) -> None:
    built = table_of(10, kind)
    storage = built.storage
    files = {path: storage.read(path) for path in list_files(storage) if path.startswith(TIMELINE)}
    before = answers(storage)
    timeline = load_snapshot(storage).timeline
    commit = CleanAndArchive(storage, FEW).archive()
    assert isinstance(commit, Commit)
    active = load_snapshot(storage).timeline.completed_writes
    archived = timeline.completed_writes[: commit.files]
    assert [*archived, *active] == [*timeline.completed_writes]
    assert [(e.requested_at, e.completed_at, e.action, e.metadata) for e in entries(storage)] == [
        (i.requested_at, i.completed_at, i.action, files[f"{TIMELINE}/{i.file_name}"])
        for i in archived
    ]
    active_files = [path for path in list_files(storage) if path.startswith(f"{TIMELINE}/2")]
    assert len(active_files) == 3 * len(active)
    assert answers(storage) == before


def test_plans_are_kept_as_they_are() -> None:
    built = BuiltTable()
    requested = format_requested_replace(RequestedReplace(operation="INSERT_OVERWRITE"))
    replacing = Instant(built.tick(), Action.REPLACE_COMMIT, State.REQUESTED)
    built.put(replacing, requested)
    completed = Instant(replacing.requested_at, Action.REPLACE_COMMIT, completed_at=built.tick())
    built.put(completed, format_replace_commit(CommitMetadata(extra={"schema": "{}"})))
    for version in range(6):
        built.write({F: versions(a=version)})
    upkeep = clean_and_archive(built, FEW)
    upkeep.clean()
    built.write({F: versions(a=7)})
    clean = load_snapshot(built.storage).timeline.completed(Action.CLEAN)[0]
    plan = built.storage.read(f"{TIMELINE}/{clean.requested_at}.clean.requested")
    for version in range(8, 12):
        built.write({F: versions(a=version)})
    upkeep.clean()
    upkeep.archive()
    archived = {entry.requested_at: entry for entry in entries(built.storage)}
    assert archived[completed.requested_at].plan == requested
    assert archived[clean.requested_at].plan == plan
    assert {entry.action for entry in archived.values() if entry.plan is None} == {"commit"}


def test_a_replacement_waits_for_the_cleaner() -> None:
    built = table_of(1)
    completed = Instant(built.tick(), Action.REPLACE_COMMIT, completed_at=built.tick())
    metadata = CommitMetadata(replaced={"d2": ("g",)}, extra={"schema": built.builder.avro_schema})
    built.put(completed, format_replace_commit(metadata))
    for version in range(1, 8):
        built.write({F: versions(a=version)})
    upkeep = clean_and_archive(built, FEW)
    upkeep.archive()
    assert read_versions(built.storage) == {"a": 7}
    assert load_snapshot(built.storage).timeline.completed_writes[0] == completed
    upkeep.clean()
    built.write({F: versions(a=8)})
    assert isinstance(upkeep.archive(), Commit)
    assert load_snapshot(built.storage).timeline.completed_writes[0] > completed
    assert read_versions(built.storage) == {"a": 8}


def test_levels_merge_and_old_states_of_history_go() -> None:
    built = table_of(4)
    upkeep = clean_and_archive(built, SMALL)
    for version in range(4, 24):
        built.write({F: versions(a=version)})
        upkeep.archive()
        assert read_versions(built.storage)["a"] == version
    manifest = load_manifest(built.storage, HISTORY)
    assert max(file.level for file in manifest.files) >= 3
    names = [file.name for file in built.storage.list_files(HISTORY)]
    manifests = [name for name in names if parse_manifest_name(name)]
    assert len(manifests) <= 3 + 4
    assert {file.name for file in manifest.files} <= set(names)
    times = [entry.requested_at for entry in entries(built.storage)]
    active = [i.requested_at for i in load_snapshot(built.storage).timeline.completed_writes]
    assert len(times) == len(set(times))
    assert len(times) + len(active) == 24
    assert times == sorted(times)
    assert max(times) < min(active)


@each_crash
@pytest.mark.parametrize("options", [FEW, SMALL], ids=["at once", "in many steps"])
def test_archiving_that_dies_is_ended_by_the_next(
    options: dict[str, str], after_effect: bool
) -> None:
    built = table_of(7, "MERGE_ON_READ")
    clean_and_archive(built, SMALL).archive()
    for version in range(7, 11):
        built.write(logs={F: versions(a=version)})
    content = {path: built.storage.read(path) for path in list_files(built.storage)}
    before = answers(built.storage, every=100)
    whole = MemoryStorage.fresh(content)
    options = {**options, "hoodie.compact.inline.max.delta.commits": "1"}
    options["hoodie.log.compaction.blocks.threshold"] = "1"
    assert isinstance(CleanAndArchive(whole, options).archive(), Commit)
    for survived in count(step=sized(3, soak=1)):
        storage = MemoryStorage.fresh(content)
        dying = CrashingStorage(storage, survived, after_effect=after_effect)
        try:
            CleanAndArchive(dying, options).archive()
        except Crash:
            assert answers(storage, every=100) == before
            assert not load_snapshot(storage).timeline.pending()
            end(storage, options)
            assert answers(storage, every=100) == before
            assert timeline_of(storage) <= timeline_of(whole)
            times = [entry.requested_at for entry in entries(storage)]
            assert len(times) == len(set(times))
        else:
            assert survived > 10
            break


def end(storage: Storage, options: dict[str, str]) -> None:
    """Archive what was meant to go, though the timeline may be short enough by now."""
    tight = {**options, "hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
    CleanAndArchive(storage, tight).archive()


def timeline_of(storage: Storage) -> set[str]:
    return {file.name for file in storage.list_files(TIMELINE)}


def test_a_manifest_that_no_version_names_is_left_behind() -> None:
    built = table_of(8)
    clean_and_archive(built, FEW).archive()
    built.storage.create(
        f"{HISTORY}/manifest_2", format_manifest(load_manifest(built.storage, HISTORY))
    )
    for version in range(8, 12):
        built.write({F: versions(a=version)})
    clean_and_archive(built, FEW).archive()
    assert built.storage.read(f"{HISTORY}/_version_") == b"3"
    assert len(entries(built.storage)) == 9


def test_a_file_that_no_manifest_lists_is_written_anew() -> None:
    built = table_of(8)
    archived = load_snapshot(built.storage).timeline.completed_writes[:5]
    name = ArchivedTimelineFile(archived[0].requested_at, archived[-1].requested_at, 0).name
    wrong = [ArchivedInstant(archived[0].requested_at, "1", "commit", b"", None)]
    built.storage.create(f"{HISTORY}/{name}", format_archived_file(wrong))
    clean_and_archive(built, FEW).archive()
    assert [e.requested_at for e in entries(built.storage)] == [i.requested_at for i in archived]


def test_files_of_withdrawn_writes_go_before_they_would_count() -> None:
    built = table_of(2)
    at = built.tick()
    built.base(F, versions(a=99), at, marked=True)
    for version in range(2, 10):
        built.write({F: versions(a=version)})
    clean_and_archive(built, FEW).archive()
    assert not [path for path in files_without_markers(built.storage) if at in path]
    assert read_versions(built.storage) == {"a": 9, "b": 0}


def test_where_such_files_cannot_be_found_the_timeline_begins_before_them() -> None:
    built = table_of(3)
    at = built.tick()
    built.base(("d1", "stray"), versions(x=99), at)
    built.storage.create(f".hoodie/.temp/{at}/MARKERS.type", b"TIMELINE_SERVER_BASED")
    built.storage.create(f".hoodie/.temp/{at}/MARKERS0", b"d1/what is this")
    for version in range(3, 10):
        built.write({F: versions(a=version)})
    with pytest.warns(RuntimeWarning, match="may be left"):
        clean_and_archive(built, FEW).archive()
    start = load_snapshot(built.storage).timeline.start
    assert start is not None
    assert start < at
    assert read_versions(built.storage) == {"a": 9, "b": 0}


def test_saved_commits_stay_when_archiving_goes_beyond() -> None:
    built = table_of(4)
    saved = load_snapshot(built.storage).timeline.completed_writes[1]
    act_with_lock(
        built.storage,
        lambda now, times, clock: create_savepoint_locked(now, saved.requested_at, times, clock),
    )
    built.builder._clock += 100
    for version in range(4, 10):
        built.write({F: versions(a=version)})
    before = answers(built.storage)
    assert isinstance(clean_and_archive(built, FEW).archive(), Commit)
    assert load_snapshot(built.storage).timeline.completed_writes[0] == saved
    beyond = {**FEW, "hoodie.archive.beyond.savepoint": "true"}
    assert isinstance(clean_and_archive(built, beyond).archive(), Commit)
    assert saved in load_snapshot(built.storage).timeline.completed_writes
    assert answers(built.storage) == before


def test_a_table_with_a_metadata_table_is_left_to_real_hudi() -> None:
    built = table_of(8)
    data = built.storage.read(".hoodie/hoodie.properties")
    more = b"\nhoodie.table.metadata.partitions=files\n"
    built.storage.replace(".hoodie/hoodie.properties", data + more)
    result = clean_and_archive(built, FEW).archive()
    assert isinstance(result, Skip)
    assert "metadata table" in result.reason


def test_history_of_real_hudi_goes_on(golden: GoldenTables) -> None:
    storage = upload(golden["cow_archived"], MemoryStorage.fresh())
    rows = read_json_rows(storage)
    before = {entry.requested_at for entry in entries(storage)}
    tight = {**FEW, "hoodie.keep.min.commits": "1", "hoodie.keep.max.commits": "2"}
    upkeep = CleanAndArchive(storage, tight)
    result = upkeep.archive()
    after = {entry.requested_at for entry in entries(storage)}
    assert before <= after
    if isinstance(result, Commit):
        assert len(after) == len(before) + result.files
    assert read_json_rows(storage) == rows
