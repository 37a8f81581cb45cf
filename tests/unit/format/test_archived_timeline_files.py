"""The archived timeline: its files, manifests, and which of them are merged or removed."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewright.errors import CorruptError, InvalidError
from lakewright.format.archived_file import (
    GROUP_BYTES,
    GROUP_ROWS,
    ArchivedFileFooter,
    ArchivedInstant,
    Selection,
    format_archived_file,
    merge_sorted,
    parse_archived_file,
    parse_row_groups,
    stream_archived_file,
    write_archived_file,
)
from lakewright.format.archived_timeline import (
    MAX_MERGED_BYTES,
    ArchivedTimelineFile,
    LevelMerge,
    Manifest,
    UnreferencedFiles,
    archived_file_of,
    files_overlapping,
    find_unreferenced,
    format_manifest,
    format_version,
    manifest_name,
    parse_manifest,
    parse_manifest_name,
    parse_version,
    plan_level_merge,
    with_merge,
)

GOLDEN = Path(__file__).parents[2] / "golden"


def real_history() -> dict[str, bytes]:
    with zipfile.ZipFile(GOLDEN / "cow_archived.zip") as archive:
        names = [n for n in archive.namelist() if re.search(r"/history/[^/.][^/]*$", n)]
        return {name.rpartition("/")[2]: archive.read(name) for name in names}


REAL = real_history()
FILES = {name: data for name, data in REAL.items() if name.endswith(".parquet")}


@pytest.mark.parametrize("name", FILES)
def test_real_files_are_read_and_written_back(name: str) -> None:
    entries = parse_archived_file(FILES[name])
    ours = format_archived_file(entries)
    assert archived_file_of(entries).name == name
    assert parse_archived_file(ours) == entries
    assert pq.read_table(io.BytesIO(ours)).equals(pq.read_table(io.BytesIO(FILES[name])))


def test_real_entries() -> None:
    entries = [entry for data in FILES.values() for entry in parse_archived_file(data)]
    assert len(entries) == 9
    assert {entry.action for entry in entries} == {"commit", "clean"}
    for entry in entries:
        assert entry.completed_at > entry.requested_at
        assert (entry.metadata or b"").startswith(b"Obj\x01")
        assert (entry.plan is not None) == (entry.action == "clean")


def test_a_file_of_ours_has_the_columns_of_a_real_one() -> None:
    real = pq.ParquetFile(io.BytesIO(next(iter(FILES.values()))))
    ours = pq.ParquetFile(io.BytesIO(format_archived_file([ArchivedInstant("1", "2", "commit")])))
    assert ours.schema_arrow.equals(real.schema_arrow, check_metadata=False)
    assert [column.max_definition_level for column in map(ours.schema.column, range(6))] == [
        *[1] * 5,
        0,
    ]
    assert ours.metadata.metadata == real.metadata.metadata


def test_entries_without_content_are_cheap_and_equal_otherwise() -> None:
    data = next(iter(FILES.values()))
    full, names = parse_archived_file(data), parse_archived_file(data, Selection())
    assert [ArchivedInstant(e.requested_at, e.completed_at, e.action) for e in full] == list(names)


def test_entries_are_written_in_order_of_their_requested_time() -> None:
    entries = [ArchivedInstant(t, "9", "commit") for t in ("3", "1", "2")]
    written = parse_archived_file(format_archived_file(entries))
    assert [entry.requested_at for entry in written] == ["1", "2", "3"]


def test_equal_entries_have_equal_bytes() -> None:
    entries = [ArchivedInstant("1", "2", "commit", b"Obj", None)]
    assert format_archived_file(entries) == format_archived_file(list(entries))


def parquet(**columns: pa.Array) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


TEXT = pa.array(["1"])
BROKEN_FILES = {
    "an empty file": b"",
    "another file": b"Obj\x01",
    "a file cut off": next(iter(FILES.values()))[:-20],
    "a column is missing": parquet(instantTime=TEXT, completionTime=TEXT),
    "a column of another type": parquet(
        instantTime=pa.array([[1]]), completionTime=TEXT, action=TEXT, metadata=TEXT, plan=TEXT
    ),
    "an instant without a time": parquet(
        instantTime=pa.array([None], pa.string()),
        completionTime=TEXT,
        action=TEXT,
        metadata=TEXT,
        plan=TEXT,
    ),
    "an instant that never completed": parquet(
        instantTime=TEXT,
        completionTime=pa.array([None], pa.string()),
        action=TEXT,
        metadata=TEXT,
        plan=TEXT,
    ),
}


@pytest.mark.parametrize("data", BROKEN_FILES.values(), ids=list(BROKEN_FILES))
def test_broken_files_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError):
        parse_archived_file(data)


def test_a_file_needs_an_instant_for_its_name() -> None:
    with pytest.raises(InvalidError):
        archived_file_of([])


def test_real_manifests_and_version() -> None:
    assert parse_version(REAL["_version_"]) == 3
    manifest = parse_manifest(REAL[manifest_name(3)])
    assert {file.name: file.size for file in manifest.files} == {
        name: len(data) for name, data in FILES.items()
    }
    assert parse_manifest(format_manifest(manifest)) == manifest
    assert json.loads(format_manifest(manifest)) == json.loads(REAL["manifest_3"])


BROKEN_MANIFESTS = {
    "an empty file": b"",
    "a file cut off": b'{"files": [',
    "another JSON value": b"[]",
    "no list of files": b'{"files": {}}',
    "an entry that is no object": b'{"files": ["x"]}',
    "an entry without a size": b'{"files": [{"fileName": "1_2_0.parquet"}]}',
    "a size that is no number": b'{"files": [{"fileName": "1_2_0.parquet", "fileLen": true}]}',
    "a negative size": b'{"files": [{"fileName": "1_2_0.parquet", "fileLen": -1}]}',
    "another file name": b'{"files": [{"fileName": "x.parquet", "fileLen": 1}]}',
    "nested without end": b"[" * 100_000,
}


@pytest.mark.parametrize("data", BROKEN_MANIFESTS.values(), ids=list(BROKEN_MANIFESTS))
def test_broken_manifests_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError):
        parse_manifest(data)


@pytest.mark.parametrize("data", [b"", b"x", b"-1", b"1.5", b"\xd9\xa1", b"9" * 30])
def test_a_broken_version_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError, match="number"):
        parse_version(data)


def test_names_and_versions() -> None:
    assert parse_version(format_version(12)) == 12
    assert parse_version(b"12\n") == 12
    assert parse_manifest_name(manifest_name(12)) == 12
    assert parse_manifest_name("_version_") is None
    assert parse_manifest_name(".manifest_1.crc") is None
    assert ArchivedTimelineFile.parse("10_20_3.parquet", 5) == ArchivedTimelineFile(
        "10", "20", 3, 5
    )


def manifest_of(*names: str, size: int = 10) -> Manifest:
    return Manifest(tuple(ArchivedTimelineFile.parse(f"{name}.parquet", size) for name in names))


def names_of(files: tuple[ArchivedTimelineFile, ...]) -> list[str]:
    return [file.name.removesuffix(".parquet") for file in files]


OVERLAPS: dict[str, tuple[str | None, str | None, list[str]]] = {
    "everything without bounds": (None, None, ["10_19_1", "20_29_0", "30_39_0"]),
    "a range inside one file": ("21", "22", ["20_29_0"]),
    "bounds belong to the range": ("19", "20", ["10_19_1", "20_29_0"]),
    "an open start": (None, "10", ["10_19_1"]),
    "an open end": ("30", None, ["30_39_0"]),
    "a range beyond all files": ("40", "50", []),
}


@pytest.mark.parametrize(("first", "last", "expected"), OVERLAPS.values(), ids=list(OVERLAPS))
def test_files_overlapping(first: str | None, last: str | None, expected: list[str]) -> None:
    manifest = manifest_of("10_19_1", "20_29_0", "30_39_0")
    assert names_of(files_overlapping(manifest, first, last)) == expected


MERGES: dict[str, tuple[Manifest, int, int, tuple[list[str], str] | None]] = {
    "nothing to merge": (manifest_of(), 3, 1000, None),
    "a level that is not full": (manifest_of("1_2_0", "3_4_0"), 3, 1000, None),
    "a full level": (
        manifest_of("3_4_0", "1_2_0", "5_6_0"),
        3,
        1000,
        (["1_2_0", "3_4_0", "5_6_0"], "1_6_1"),
    ),
    "the oldest batch of a level that is more than full": (
        manifest_of("5_6_0", "1_2_0", "3_4_0"),
        2,
        1000,
        (["1_2_0", "3_4_0"], "1_4_1"),
    ),
    "files of other levels do not count": (manifest_of("1_2_1", "3_4_0", "5_6_0"), 3, 1000, None),
    "a higher level": (
        manifest_of("1_2_1", "3_4_1", "5_6_0"),
        2,
        1000,
        (["1_2_1", "3_4_1"], "1_4_2"),
    ),
    "the lowest level first": (
        manifest_of("1_2_1", "3_4_1", "5_6_0", "7_8_0"),
        2,
        1000,
        (["5_6_0", "7_8_0"], "5_8_1"),
    ),
    "no more bytes than allowed": (
        manifest_of("1_2_0", "3_4_0", "5_6_0", size=500),
        3,
        1000,
        (["1_2_0", "3_4_0"], "1_4_1"),
    ),
    "a single file is not merged": (manifest_of("1_2_0", "3_4_0", size=600), 2, 1000, None),
    "large files stay, and those after them are merged": (
        Manifest((*manifest_of("1_2_0", size=900).files, *manifest_of("3_4_0", "5_6_0").files)),
        2,
        900,
        (["3_4_0", "5_6_0"], "3_6_1"),
    ),
    "no more than fits into memory, whatever is allowed": (
        manifest_of("1_2_0", "3_4_0", size=MAX_MERGED_BYTES),
        2,
        10**12,
        None,
    ),
    "an overlapping file widens the range": (
        manifest_of("1_9_0", "3_4_0"),
        2,
        1000,
        (["1_9_0", "3_4_0"], "1_9_1"),
    ),
    "the last level has no next": (manifest_of("1_2_9", "3_4_9"), 2, 1000, None),
}


@pytest.mark.parametrize(
    ("manifest", "batch", "limit", "expected"), MERGES.values(), ids=list(MERGES)
)
def test_plan_level_merge(
    manifest: Manifest, batch: int, limit: int, expected: tuple[list[str], str] | None
) -> None:
    merge = plan_level_merge(manifest, batch, limit)
    planned = merge and (names_of(merge.sources), merge.target.name.removesuffix(".parquet"))
    assert planned == expected


def test_merges_cascade_until_no_level_is_full() -> None:
    manifest = manifest_of("1_1_0", "2_2_0", "3_3_0", "4_4_0")
    merged = []
    while merge := plan_level_merge(manifest, batch_size=2):
        manifest = with_merge(manifest, merge, size=7)
        merged.append(merge.target.name)
    assert merged == ["1_2_1.parquet", "3_4_1.parquet", "1_4_2.parquet"]
    assert manifest == Manifest((ArchivedTimelineFile("1", "4", 2, 7),))


def test_a_merge_keeps_the_other_files() -> None:
    merge = LevelMerge(manifest_of("1_2_0", "3_4_0").files, ArchivedTimelineFile("1", "4", 1))
    after = with_merge(manifest_of("1_2_0", "3_4_0", "5_6_0"), merge, size=7)
    assert names_of(after.files) == ["5_6_0", "1_4_1"]


VERSIONS = {
    1: manifest_of("1_2_0"),
    2: manifest_of("1_2_0", "3_4_0"),
    3: manifest_of("1_4_1"),
    4: manifest_of("1_4_1", "5_6_0"),
}
NAMES = ["1_2_0.parquet", "3_4_0.parquet", "1_4_1.parquet", "5_6_0.parquet", "_version_"]

LEFTOVERS = {
    "nothing while few versions exist": (4, UnreferencedFiles()),
    "a manifest goes, its files are still listed": (3, UnreferencedFiles((1,), ())),
    "files that no kept manifest lists go too": (
        2,
        UnreferencedFiles((1, 2), ("1_2_0.parquet", "3_4_0.parquet")),
    ),
    "the newest manifest always stays": (
        0,
        UnreferencedFiles((1, 2, 3), ("1_2_0.parquet", "3_4_0.parquet")),
    ),
}


@pytest.mark.parametrize(("keep", "expected"), LEFTOVERS.values(), ids=list(LEFTOVERS))
def test_plan_leftovers(keep: int, expected: UnreferencedFiles) -> None:
    assert find_unreferenced(VERSIONS, NAMES, keep) == expected


def test_without_any_manifest_nothing_is_removed() -> None:
    assert find_unreferenced({}, NAMES) == UnreferencedFiles()


def numbered(*numbers: int, action: str = "commit", size: int = 0) -> list[ArchivedInstant]:
    return [
        ArchivedInstant(f"{number:06}", f"{number:06}9", action, bytes(size), None)
        for number in numbers
    ]


SELECTIONS: dict[str, tuple[Selection, range]] = {
    "an hour by requested time": (Selection(first="001500", last="001599"), range(1500, 1600)),
    "one requested time": (Selection.of_times({"002999"}), range(2999, 3000)),
    "completed since": (Selection(completed_from="0029509"), range(2950, 3000)),
    "completed in a range": (
        Selection(completed_from="0010009", completed_until="0010019"),
        range(1000, 1002),
    ),
    "no such action": (Selection(actions=frozenset({"rollback"})), range(0)),
    "all": (Selection(), range(3000)),
}


@pytest.mark.parametrize(("selection", "numbers"), SELECTIONS.values(), ids=list(SELECTIONS))
def test_only_row_groups_are_read_that_may_hold_a_selected_instant(
    selection: Selection, numbers: range
) -> None:
    data = format_archived_file(numbered(*range(3000)))
    footer = ArchivedFileFooter.parse(data, len(data))
    assert footer.metadata.num_row_groups == 3000 // GROUP_ROWS
    groups = sorted({number // GROUP_ROWS for number in numbers})
    assert footer.groups(selection) == groups
    parts = {
        part: data[part.offset : part.offset + part.length]
        for part in footer.ranges(groups, selection.columns)
    }
    read = [entry.requested_at for _, entry in parse_row_groups(footer, parts, groups, selection)]
    assert read == [f"{number:06}" for number in numbers]
    assert [entry.requested_at for entry in parse_archived_file(data, selection)] == read


def test_large_metadata_makes_small_row_groups() -> None:
    data = format_archived_file(numbered(*range(6), size=GROUP_BYTES // 2))
    metadata = pq.read_metadata(io.BytesIO(data))
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [2, 2, 2]


def test_a_part_of_a_file_that_is_cut_off_is_corrupt() -> None:
    data = format_archived_file(numbered(1, 2))
    footer = ArchivedFileFooter.parse(data, len(data))
    (part,) = footer.ranges([0], Selection().columns)
    with pytest.raises(CorruptError, match="shorter"):
        parse_row_groups(footer, {part: b"1"}, [0], Selection())


def test_a_row_group_outside_of_its_file_is_corrupt() -> None:
    data = format_archived_file(numbered(1, 2))
    with pytest.raises(CorruptError, match="outside"):
        ArchivedFileFooter.parse(data, 10).ranges([0], Selection().columns)


MERGED: dict[str, tuple[list[list[ArchivedInstant]], list[ArchivedInstant]]] = {
    "files after each other": ([numbered(1, 2), numbered(3)], numbered(1, 2, 3)),
    "files that overlap": ([numbered(1, 3), numbered(2, 4)], numbered(1, 2, 3, 4)),
    "an instant in two files is there once, as in the later file": (
        [numbered(1, 2), numbered(2, size=3)],
        [*numbered(1), *numbered(2, size=3)],
    ),
    "two actions of one requested time are both kept": (
        [numbered(1), numbered(1, action="rollback")],
        [*numbered(1), *numbered(1, action="rollback")],
    ),
    "nothing": ([], []),
}


@pytest.mark.parametrize(("sources", "expected"), MERGED.values(), ids=list(MERGED))
def test_merged_entries(
    sources: list[list[ArchivedInstant]], expected: list[ArchivedInstant]
) -> None:
    assert list(merge_sorted(map(iter, sources))) == expected


def test_a_merge_holds_one_row_group() -> None:
    pulled: list[int] = []

    def source(first: int) -> Iterator[ArchivedInstant]:
        for number in range(first, 5 * GROUP_ROWS, 2):
            pulled.append(number)
            yield from numbered(number)

    class Sink(io.BytesIO):
        pulled_at_write: ClassVar[list[int]] = []

        def write(self, data: Any) -> int:
            self.pulled_at_write.append(len(pulled))
            return super().write(data)

    sink = Sink()
    write_archived_file(sink, merge_sorted([source(0), source(1)]))
    steps = sorted(set(sink.pulled_at_write))
    assert len(steps) >= 5
    assert max(b - a for a, b in pairwise(steps)) <= GROUP_ROWS + 2


def test_a_file_is_streamed_as_it_is_read_whole() -> None:
    entries = numbered(*range(2500), size=1000)
    assert list(stream_archived_file(format_archived_file(entries))) == entries


def test_a_file_that_was_not_written_in_order_is_streamed_in_order() -> None:
    sink = io.BytesIO()
    write_archived_file(sink, numbered(3, 1, 2))
    assert list(stream_archived_file(sink.getvalue())) == numbered(1, 2, 3)


@pytest.mark.parametrize("name", FILES)
def test_real_files_are_streamed(name: str) -> None:
    assert tuple(stream_archived_file(FILES[name])) == parse_archived_file(FILES[name])
