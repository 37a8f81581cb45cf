"""The simulated disk: what a power cut can leave of files, synced or not."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakewright.storage.base import is_temporary
from lakewright.storage.local import LocalStorage
from lakewright.testing.power_cut import RecordedDisk, SurvivingContent, read_files, write_files

OLD = {"old": b"old", "p/old": b"older"}


@pytest.fixture
def disk(tmp_path: Path) -> RecordedDisk:
    write_files(tmp_path, OLD)
    return RecordedDisk(tmp_path)


@pytest.fixture
def synced(tmp_path: Path, disk: RecordedDisk) -> LocalStorage:
    return LocalStorage(str(tmp_path), disk=disk)


@pytest.fixture
def unsynced(synced: LocalStorage) -> LocalStorage:
    return synced.unsynced()


def outcomes(disk: RecordedDisk, calls: int | None = None) -> Iterator[dict[str, bytes]]:
    """The files that may remain after some calls, or all: those that a listing shows."""
    cut = disk.after(len(disk) if calls is None else calls)
    for files in cut.outcomes(random.Random(7), more=20):
        yield {p: data for p, data in files.items() if not is_temporary(p.rpartition("/")[2])}


def test_what_was_there_stays(disk: RecordedDisk) -> None:
    assert [*outcomes(disk)] == [OLD]


def test_what_was_synced_is_there_and_before_that_all_of_it_or_nothing(
    disk: RecordedDisk, synced: LocalStorage
) -> None:
    synced.create("new/deep/f", b"content")
    assert all(files == {**OLD, "new/deep/f": b"content"} for files in outcomes(disk))
    before = [files.get("new/deep/f") for n in range(len(disk)) for files in outcomes(disk, n)]
    assert {*before} == {None, b"content"}


def test_what_was_not_synced_may_be_missing_or_truncated(
    disk: RecordedDisk, unsynced: LocalStorage
) -> None:
    unsynced.create("f", b"content")
    assert {files.get("f") for files in outcomes(disk)} == {None, b"", b"con", b"content"}


def test_what_was_not_synced_may_happen_in_any_order(
    disk: RecordedDisk, unsynced: LocalStorage
) -> None:
    unsynced.create("first", b"1")
    unsynced.create("p/second", b"2")
    pairs = {("first" in files, "p/second" in files) for files in outcomes(disk)}
    assert pairs == {(False, False), (False, True), (True, False), (True, True)}


def test_a_file_in_a_folder_that_is_lost_is_lost(
    tmp_path: Path, disk: RecordedDisk, unsynced: LocalStorage
) -> None:
    unsynced.create("q/f", b"1")
    disk.sync_folder(disk.open_path(f"{tmp_path}/q"))
    cut = disk.after(len(disk))
    assert "q/f" not in cut.files((), SurvivingContent.ALL)
    assert "q/f" in cut.files(range(cut.unsynced_count), SurvivingContent.ALL)


def test_what_was_deleted_or_replaced_may_come_back(
    disk: RecordedDisk, unsynced: LocalStorage, synced: LocalStorage
) -> None:
    unsynced.delete("old")
    unsynced.replace("p/old", b"newer!")
    assert {files.get("old") for files in outcomes(disk)} == {None, b"old"}
    contents = {files["p/old"] for files in outcomes(disk)}
    assert contents == {b"older", b"", b"new", b"newer!"}
    synced.delete("old")
    synced.sync(["p/old"])
    assert [*outcomes(disk)] == [{"p/old": b"newer!"}]


def test_a_folder_that_was_deleted_for_good_is_gone_with_all_in_it(
    disk: RecordedDisk, synced: LocalStorage
) -> None:
    synced.delete_folder("p")
    assert [*outcomes(disk)] == [{"old": b"old"}]


def test_it_travels_and_files_are_read_as_they_were_written(
    tmp_path: Path, disk: RecordedDisk, synced: LocalStorage
) -> None:
    assert pickle.loads(pickle.dumps(synced)).disk is disk
    assert read_files(tmp_path) == OLD
