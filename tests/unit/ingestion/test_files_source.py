"""Which files of a folder a batch takes, and that none is passed over or taken twice."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.errors import InvalidError
from lakewright.ingestion.checkpoints import Checkpoint
from lakewright.ingestion.cloud.objects import ObjectRows
from lakewright.ingestion.cloud.options import ObjectSettings, UnreadablePolicy
from lakewright.ingestion.files import FilePosition, FileSettings, FilesSource, select_files
from lakewright.options import settings_from
from lakewright.storage.base import FileStatus
from lakewright.storage.memory import MemoryStorage
from lakewright.testing.clock import ManualClock

NOW = 100_000
AT_ONCE = FileSettings(settle_ms=0)
SECOND = 5_000  # of many files: stores count whole seconds


def file(path: str, at: int = SECOND, size: int = 10) -> FileStatus:
    return FileStatus(path, size, at)


CASES: dict[str, tuple[list[FileStatus], str | None, FileSettings, list[str]]] = {
    "all files, oldest first": (
        [file("b", 2), file("a", 3), file("c", 1)], None, AT_ONCE, ["c", "b", "a"],
    ),
    "files of one time by name": (
        [file("b"), file("a"), file("x/a")], None, AT_ONCE, ["a", "b", "x/a"],
    ),
    "after a file those of the same time with later names": (
        [file("a"), file("b"), file("c")], f"{SECOND}#b", AT_ONCE, ["c"],
    ),
    "after a time none of that time": (
        [file("a"), file("b"), file("c", SECOND + 1)], str(SECOND), AT_ONCE, ["c"],
    ),
    "a name may hold what separates it from the time": (
        [file("a#1"), file("a#2")], f"{SECOND}#a#1", AT_ONCE, ["a#2"],
    ),
    "nothing after the last": ([file("a")], f"{SECOND}#a", AT_ONCE, []),
    "hidden files and those in hidden folders are none": (
        [file(".a"), file("_b"), file("_tmp/c"), file("x/.d/e"), file("x/f")],
        None, AT_ONCE, ["x/f"],
    ),
    "empty files are none": ([file("a", size=0), file("b")], None, AT_ONCE, ["b"]),
    "only names with the suffix of the option": (
        [file("a.json"), file("b.csv")], None, replace(AT_ONCE, suffix=".json"), ["a.json"],
    ),
    "up to a number of files": (
        [file("a"), file("b"), file("c")], None, replace(AT_ONCE, max_files=2), ["a", "b"],
    ),
    "up to a number of bytes": (
        [file("a"), file("b"), file("c")], None, replace(AT_ONCE, max_bytes=25), ["a", "b"],
    ),
    "up to exactly a number of bytes": (
        [file("a"), file("b"), file("c")], None, replace(AT_ONCE, max_bytes=20), ["a", "b"],
    ),
    "a file above the limit alone": (
        [file("a", size=50), file("b")], None, replace(AT_ONCE, max_bytes=25), ["a"],
    ),
    "files that may still change wait": (
        [file("a", NOW - 2000), file("b", NOW - 500)],
        None, replace(AT_ONCE, settle_ms=1000), ["a"],
    ),
    "files from the future wait": ([file("a", NOW + 1)], None, AT_ONCE, []),
}  # fmt: skip


@pytest.mark.parametrize(("listed", "after", "settings", "taken"), CASES.values(), ids=list(CASES))
def test_a_batch_takes(
    listed: list[FileStatus], after: str | None, settings: FileSettings, taken: list[str]
) -> None:
    place = FilePosition.parse(after) if after is not None else None
    chosen = select_files(listed, place, settings, NOW)
    assert [file_status.path for file_status in chosen.files] == taken


def test_the_files_left_for_later_batches_are_counted() -> None:
    listed = [file("a", 1), file("b", 2), file("c", 3), file("_d", 4)]
    chosen = select_files(listed, FilePosition(1, "a"), replace(AT_ONCE, max_files=1), NOW)
    assert (chosen.waiting, chosen.newest_ms, chosen.size) == (1, 3, 10)


@given(
    st.sets(st.tuples(st.integers(0, 3), st.text("ab#/", min_size=1, max_size=3)), max_size=12),
    st.integers(1, 4),
)
def test_batches_take_every_file_once(times_and_paths: set[tuple[int, str]], most: int) -> None:
    listed = [file(path, at) for at, path in times_and_paths]
    place: FilePosition | None = None
    taken: list[FileStatus] = []
    while True:
        settings = replace(AT_ONCE, max_files=most)
        chosen = select_files(listed, place, settings, NOW).files
        if not chosen:
            break
        taken += chosen
        # A round trip, as by way of the target's commit.
        place = FilePosition.parse(str(FilePosition.from_file(chosen[-1])))
    assert sorted(taken, key=FilePosition.from_file) == taken
    assert sorted(taken, key=str) == sorted(listed, key=str)


@pytest.mark.parametrize("text", ["", "x", "12#", "#a", "-1", "1.5", "20260101000000000a", "t,0:1"])
def test_a_checkpoint_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="no file's"):
        FilePosition.parse(text)


def test_an_override_is_a_position() -> None:
    source = FilesSource(MemoryStorage.fresh(), FileSettings(), ObjectSettings())
    assert source.resume_from(" 12 ") == Checkpoint("12", reset=" 12 ")
    with pytest.raises(InvalidError):
        source.resume_from("yesterday")


class Reading(FilesSource):
    """Reads names in the place of rows."""

    def _reader(self, spark: Any) -> Any:
        def read(objects: list[Any]) -> ObjectRows:
            names = [item.path for item in objects]
            bad = [SimpleNamespace(item=o, problem="torn") for o in objects if "bad" in o.path]
            return ObjectRows(
                cast(Any, names), cast(Any, tuple(bad)), lambda: self.closed.append(1)
            )

        return SimpleNamespace(read=read)

    closed: Any


def reading(storage: MemoryStorage, clock: ManualClock, **facts: Any) -> Reading:
    source = Reading(storage, FileSettings(max_files=2), ObjectSettings(), clock=clock, **facts)
    source.closed = []
    return source


def filled(clock: ManualClock, *names: str) -> MemoryStorage:
    storage = MemoryStorage.fresh(now_ms=clock.now_ms)
    for name in names:
        storage.create(name, b"rows")
    return storage


def test_batches_follow_each_other() -> None:
    clock = ManualClock()
    source = reading(filled(clock, "a", "b", "c"), clock)
    assert source.next_batch(cast(Any, None), None).rows is None
    clock.sleep(10)
    first = source.next_batch(cast(Any, None), None)
    at = clock.now_ms() - 10_000
    assert cast(Any, first.rows) == ["a", "b"]
    assert first.checkpoint == Checkpoint(f"{at}#b")
    assert dict(first.facts) == {
        "bytes": 8, "objects": 2, "objects_waiting": 1, "objects_bad": 0, "lag_ms": 0,
    }  # fmt: skip
    first.committed()
    assert source.closed == [1]
    second = source.next_batch(cast(Any, None), first.checkpoint)
    assert cast(Any, second.rows) == ["c"]
    third = source.next_batch(cast(Any, None), second.checkpoint)
    assert (third.rows, third.checkpoint) == (None, second.checkpoint)
    assert third.facts["objects_waiting"] == 0


def test_a_bad_file_is_passed_over_aloud() -> None:
    clock = ManualClock()
    source = reading(filled(clock, "a", "bad"), clock, unreadable_policy=UnreadablePolicy.SKIP)
    clock.sleep(10)
    with pytest.warns(RuntimeWarning, match="bad: torn"):
        batch = source.next_batch(cast(Any, None), None)
    assert batch.facts["objects_bad"] == 1


def test_options_describe_a_folder() -> None:
    options = {
        "hoodie.deltastreamer.source.dfs.root": "/some/folder",
        "lakewright.source.files.format": "JSON",
        "lakewright.source.schema": "id string",
        "fs.s3a.endpoint": "there",
    }
    source = FilesSource.from_options(options)
    assert (source.reading.format, source.reading.schema) == ("json", "id string")
    assert source.storage_options == {"fs.s3a.endpoint": "there"}
    assert options.keys() - source.keys == {"fs.s3a.endpoint"}
    with pytest.raises(InvalidError, match="folder"):
        FilesSource.from_options({})
    with pytest.raises(InvalidError, match="quarantine"):
        FilesSource.from_options({**options, "lakewright.source.bad.objects": "quarantine"})


@pytest.mark.parametrize(
    ("key", "value"),
    [("format", "xml"), ("max.files", "0"), ("max.bytes", "-1"), ("settle.ms", "soon")],
)
def test_a_bad_option_is_refused(key: str, value: str) -> None:
    with pytest.raises(InvalidError, match="does not parse"):
        settings_from(FileSettings, {f"lakewright.source.files.{key}": value})


def test_a_name_may_end_in_a_blank() -> None:
    file = FileStatus("a.json ", 5, 1000)
    assert FilePosition.parse(str(FilePosition.from_file(file))) == FilePosition.from_file(file)
