from __future__ import annotations

import pytest

from lakewright.errors import CorruptError, InvalidError
from lakewright.storage.memory import MemoryStorage
from lakewright.table.markers import (
    MarkerKind,
    conflicting_instant,
    create_marker,
    delete_markers,
    marked_files,
)
from lakewright.testing.storage import CountingStorage, Crash, CrashingStorage
from lakewright.testing.timeline_drawing import at

T1, T2, T3 = at(1), at(2), at(3)
TEMP = ".hoodie/.temp"
BASE = f"day=1/aaaa-0_0-1-2_{T1}.parquet"
LOG = f"day=1/deep/.bbbb-0_{T1}.log.1_0-1-0"
TOP = f"cccc-0_0-1-2_{T1}.parquet"


def gathered(**lists: str) -> MemoryStorage:
    """What a timeline server leaves for the instant T1."""
    files = {f"{TEMP}/{T1}/MARKERS.type": b"TIMELINE_SERVER_BASED"}
    files |= {f"{TEMP}/{T1}/{name}": text.encode() for name, text in lists.items()}
    return MemoryStorage.fresh(files)


def test_a_marker_is_an_empty_file_that_real_hudi_knows() -> None:
    storage = MemoryStorage.fresh()
    create_marker(storage, T1, BASE, MarkerKind.MERGE)
    create_marker(storage, T1, TOP, MarkerKind.CREATE)
    assert storage.files() == {
        f"{TEMP}/{T1}/{TOP}.marker.CREATE": b"",
        f"{TEMP}/{T1}/{BASE}.marker.MERGE": b"",
    }


def test_marking_twice_is_marking_once() -> None:
    storage = MemoryStorage.fresh()
    for _ in range(2):
        create_marker(storage, T1, BASE, MarkerKind.CREATE)
    assert marked_files(storage, T1) == (BASE,)


def test_marked_files_of_an_instant_are_its_own() -> None:
    storage = MemoryStorage.fresh()
    assert marked_files(storage, T1) == ()
    for path in (LOG, BASE, TOP):
        create_marker(storage, T1, path, MarkerKind.CREATE)
    create_marker(storage, T1, BASE, MarkerKind.MERGE)
    create_marker(storage, T2, BASE.replace(T1, T2), MarkerKind.CREATE)
    assert marked_files(storage, T1) == (TOP, BASE, LOG)


LISTS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "no list yet": ({}, ()),
    "an empty list": ({"MARKERS0": ""}, ()),
    "one for each line": (
        {"MARKERS0": f"{BASE}.marker.MERGE\n{LOG}.marker.CREATE\n"}, (BASE, LOG)),
    "several lists": (
        {"MARKERS0": f"{BASE}.marker.MERGE\n", "MARKERS19": f"{TOP}.marker.CREATE\n"},
        (TOP, BASE)),
    "no break at the end": ({"MARKERS3": f"{BASE}.marker.CREATE"}, (BASE,)),
    "a server that was started anew joins by commas": (
        {"MARKERS1": f"{BASE}.marker.MERGE,{TOP}.marker.CREATE{LOG}.marker.CREATE\n"},
        (TOP, BASE, LOG)),
    "a partition may have commas": (
        {"MARKERS1": f"a,b/{TOP}.marker.MERGE\n,c/{TOP}.marker.CREATE\n"},
        (f",c/{TOP}", f"a,b/{TOP}")),
    "a table without partitions": ({"MARKERS1": f"/{TOP}.marker.CREATE\n"}, (TOP,)),
    "more lists than usual": ({"MARKERS120": f"{TOP}.marker.CREATE\n"}, (TOP,)),
    "other files say nothing": ({"MARKERS.old": "?", "notes": "?"}, ()),
}  # fmt: skip


@pytest.mark.parametrize(("lists", "expected"), LISTS.values(), ids=list(LISTS))
def test_markers_that_a_timeline_server_gathered(
    lists: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert marked_files(gathered(**lists), T1) == expected


def test_lists_are_read_even_if_the_file_that_announces_them_is_lost() -> None:
    storage = gathered(MARKERS0=f"{BASE}.marker.CREATE\n")
    storage.delete(f"{TEMP}/{T1}/MARKERS.type")
    assert marked_files(storage, T1) == (BASE,)


BAD = {
    "a list that breaks off": f"{BASE}.marker.CREATE\n{LOG}.mar",
    "a list that is no text": "\udcff\udcfe",
    "an append, which these table versions do not have": f"{LOG}.marker.APPEND\n",
    "a file of another instant": f"{BASE.replace(T1, T2)}.marker.CREATE\n",
    "a log file of another instant": f"{LOG.replace(T1, T2)}.marker.CREATE\n",
    "what is no data file": "day=1/.hoodie_partition_metadata.marker.CREATE\n",
    "a foreign name": "day=1/rows.parquet.marker.CREATE\n",
}


@pytest.mark.parametrize("text", BAD.values(), ids=list(BAD))
def test_markers_that_could_mislead_a_rollback_are_reported(text: str) -> None:
    storage = gathered()
    data = text.encode("utf-8", "surrogateescape")
    storage.create(f"{TEMP}/{T1}/MARKERS0", data)
    with pytest.raises(CorruptError):
        marked_files(storage, T1)


def test_a_marker_of_its_own_for_another_instant_is_reported() -> None:
    storage = MemoryStorage.fresh()
    create_marker(storage, T2, BASE, MarkerKind.CREATE)
    with pytest.raises(CorruptError, match="does not own"):
        marked_files(storage, T2)


def test_deleting_ends_well_wherever_it_was_interrupted() -> None:
    for survive in range(5):
        storage = MemoryStorage.fresh()
        for path in (LOG, BASE, TOP):
            create_marker(storage, T1, path, MarkerKind.CREATE)
        create_marker(storage, T2, TOP.replace(T1, T2), MarkerKind.CREATE)
        dying = CrashingStorage(storage, survive)
        try:
            delete_markers(dying, T1)
        except Crash:
            assert set(marked_files(storage, T1)) <= {LOG, BASE, TOP}
            delete_markers(storage, T1)
        assert marked_files(storage, T1) == ()
        assert marked_files(storage, T2) == (TOP.replace(T1, T2),)


def test_no_instant_is_not_all_instants() -> None:
    storage = MemoryStorage.fresh()
    create_marker(storage, T1, BASE, MarkerKind.CREATE)
    with pytest.raises(InvalidError):
        delete_markers(storage, "")
    assert marked_files(storage, T1) == (BASE,)


MINE_BASE = f"day=1/aaaa-0_7-7-7_{T2}.parquet"
CONFLICTS: dict[str, tuple[str, str, set[str], str | None]] = {
    "a new version of the same base file": (BASE, MINE_BASE, {T1, T2}, T1),
    "a base file of a group that I log to": (BASE, f"day=1/.aaaa-0_{T2}.log.1_0-0-0", {T1}, T1),
    "a log file of a group that I compact": (
        LOG, f"day=1/deep/bbbb-0_0-0-0_{T2}.parquet", {T1}, T1),
    "a group of a table without partitions": (TOP, f"cccc-0_9-9-9_{T2}.parquet", {T1}, T1),
    "another group": (BASE, f"day=1/zzzz-0_0-1-2_{T2}.parquet", {T1}, None),
    "the same id in another partition": (BASE, f"day=2/aaaa-0_0-1-2_{T2}.parquet", {T1}, None),
    "the same id in a partition below": (BASE, f"day=1/x/aaaa-0_0-1-2_{T2}.parquet", {T1}, None),
    "the same id at the top": (BASE, f"aaaa-0_0-1-2_{T2}.parquet", {T1}, None),
    "a writer that is dead": (BASE, MINE_BASE, {T2, T3}, None),
    "no writer": (BASE, MINE_BASE, set(), None),
}  # fmt: skip


@pytest.mark.parametrize("server", [False, True], ids=["direct", "gathered"])
@pytest.mark.parametrize(
    ("theirs", "mine", "live", "expected"), CONFLICTS.values(), ids=list(CONFLICTS)
)
def test_the_conflicting_instant_of_a_write(
    theirs: str, mine: str, live: set[str], expected: str | None, *, server: bool
) -> None:
    if server:
        storage = gathered(MARKERS4=f"{theirs}.marker.MERGE\n")
    else:
        storage = MemoryStorage.fresh()
        create_marker(storage, T1, theirs, MarkerKind.CREATE)
    create_marker(storage, T2, mine, MarkerKind.CREATE)
    assert conflicting_instant(storage, T2, mine, frozenset(live)) == expected


def test_a_conflicting_write_may_have_begun_later() -> None:
    storage = MemoryStorage.fresh()
    create_marker(storage, T2, MINE_BASE, MarkerKind.CREATE)
    assert conflicting_instant(storage, T1, BASE, frozenset({T2})) == T2


@pytest.mark.parametrize("text", BAD.values(), ids=list(BAD))
def test_the_conflict_check_does_not_fail_on_markers_of_other_writers(text: str) -> None:
    storage = gathered()
    storage.create(f"{TEMP}/{T1}/MARKERS0", text.replace("aaaa", "zzzz").encode("utf-8", "replace"))
    assert conflicting_instant(storage, T2, MINE_BASE, frozenset({T1})) is None


def test_a_write_that_completes_during_the_check_is_no_conflict() -> None:
    storage = VanishingLists(gathered(MARKERS0=f"{BASE}.marker.CREATE\n"))
    assert conflicting_instant(storage, T2, MINE_BASE, frozenset({T1})) is None


class VanishingLists(CountingStorage):
    """Loses every list of markers before it is read."""

    def read_many(self, paths: object) -> list[bytes]:
        delete_markers(self, T1)
        return super().read_many(paths)  # type: ignore[arg-type]


def test_the_conflict_check_lists_one_partition_only() -> None:
    storage = CountingStorage(MemoryStorage.fresh())
    create_marker(storage, T1, LOG, MarkerKind.CREATE)
    storage.reset()
    assert conflicting_instant(storage, T2, MINE_BASE, frozenset({T1})) is None
    listed = {path for method, path in storage.touched if method == "list_many"}
    assert listed == {f"{TEMP}/{T1}", f"{TEMP}/{T1}/day=1"}
    assert storage.calls["list_tree"] == 0


def test_only_data_files_have_conflicts() -> None:
    with pytest.raises(InvalidError):
        conflicting_instant(
            MemoryStorage.fresh(), T1, "day=1/.hoodie_partition_metadata", frozenset({T2})
        )
