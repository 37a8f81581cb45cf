"""Which objects a batch reads, and where it ends.

Commits are named by the completion times that stand in our checkpoints, where real Hudi has the
requested ones; single digits do here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from lakewright.ingestion.cloud.options import SelectionSettings
from lakewright.ingestion.cloud.selection import (
    CloudObject,
    ObjectFilter,
    ObjectPosition,
    Selection,
    complete_positions,
    select,
)

ALL = ObjectFilter(SelectionSettings())
P = "path/to/"


def event(
    at: str,
    key: str,
    size: int = 100,
    *,
    bucket: str = "lake",
    time: str = "",
    object_filter: ObjectFilter = ALL,
) -> CloudObject | None:
    path = object_filter.path_of(key, size)
    return CloudObject(at, bucket, key, path, size, time) if path is not None else None


def position(text: str) -> ObjectPosition | None:
    if not text:
        return None
    time, sign, key = text.partition("#")
    return ObjectPosition(time, key if sign else None)


@dataclass(frozen=True)
class Case:
    """Batches one after the other: a limit in bytes, and where the batch must end."""

    events: tuple[tuple[str, str, int], ...]
    batches: tuple[tuple[int | None, str], ...]
    after: str = ""
    files: int = 10_000
    object_filter: ObjectFilter = ALL
    until: str = ""
    read: tuple[str, ...] | None = None
    ends: dict[int, str] = field(default_factory=dict)


def run(case: Case) -> list[Selection]:
    selections = []
    place = position(case.after)
    for number, (limit, _) in enumerate(case.batches):
        until = case.ends.get(number, case.until) or max(at for at, _, _ in case.events)
        rows = [
            event(at, key, size, object_filter=case.object_filter) for at, key, size in case.events
        ]
        chosen = select(
            [e for e in rows if e is not None and e.completed_at <= until],
            after=place,
            until=until,
            max_files=case.files,
            max_bytes=limit,
        )
        selections.append(chosen)
        place = chosen.position
    return selections


THREE = (("1", P + "file1.json", 100), ("1", P + "file2.json", 150), ("1", P + "file3.json", 200))


def two_commits(end: str) -> tuple[tuple[str, str, int], ...]:
    return (
        ("1", f"{P}file1{end}", 100),
        ("1", f"{P}file2{end}", 150),
        ("1", f"{P}file3{end}", 200),
        ("2", f"{P}file4{end}", 150),
        ("2", f"{P}file5{end}", 150),
    )


SKIPPED = (
    ("1", P + "skip1.json", 100), ("1", P + "skip2.json", 100), ("1", P + "file3.json", 0),
    ("2", P + "skip4.json", 100), ("2", P + "skip5.json", 0),
)  # fmt: skip
NO_SKIPS = ObjectFilter(SelectionSettings(ignored_prefix=P + "skip"))
ONLY_FILES = ObjectFilter(SelectionSettings(pattern=P + "file[0-9]+"))
EIGHT = (
    ("1", P + "file1.json", 100), ("1", P + "file3.json", 200), ("1", P + "file2.json", 150),
    ("2", P + "file4.json", 50), ("2", P + "file5.json", 150),
    ("3", P + "file8.json", 100), ("3", P + "file6.json", 250), ("3", P + "file7.json", 50),
)  # fmt: skip
FOURTH = (("4", P + "file0.json", 100), ("4", P + "file1.txt", 50), ("4", P + "file2.json", 50))
SPLIT = (
    ("1", P + "file1.json", 50), ("1", P + "file2.json", 50),
    ("2", P + "skip1.json", 50), ("2", P + "skip2.json", 50),
    ("3", P + "file5.json", 50), ("3", P + "file4.json", 50),
)  # fmt: skip
PAGED = (
    *((("1"), f"{P}file-0{n}.json", 100) for n in range(1, 5)),
    ("2", P + "file-05.json", 100),
)  # fmt: skip

CASES = {
    "a batch takes what fits, and the next goes on in the same commit": Case(
        THREE,
        ((100, f"1#{P}file1.json"), (200, f"1#{P}file2.json"), (200, f"1#{P}file3.json")),
    ),
    "a bare commit was read whole": Case(THREE, ((100, "1"),), after="1"),
    "several objects fit into a batch": Case(
        THREE, ((250, f"1#{P}file2.json"), (250, f"1#{P}file3.json"))
    ),
    **{
        f"batches go on across commits, for {end}": Case(
            two_commits(end),
            ((100, f"1#{P}file1{end}"), (100, f"1#{P}file2{end}"), (1000, f"2#{P}file5{end}")),
            object_filter=ObjectFilter(SelectionSettings(), (end,)),
        )
        for end in (".json", ".gz")
    },
    "nothing left after filtering moves a bare commit on to the end of the range": Case(
        SKIPPED, ((1000, "2"),), after="1", object_filter=NO_SKIPS
    ),
    "nothing left after filtering moves a place in a commit on to the end of the range": Case(
        SKIPPED, ((1000, "2"),), after=f"1#{P}file3.json", object_filter=NO_SKIPS
    ),
    "nothing left after filtering leaves a place in the last commit where it is": Case(
        SKIPPED, ((1000, f"2#{P}skip4.json"),), after=f"2#{P}skip4.json", object_filter=NO_SKIPS
    ),
    "nothing left after filtering leaves the last commit where it is": Case(
        SKIPPED, ((1000, "2"),), after="2", object_filter=NO_SKIPS
    ),
    "a first commit of unwanted objects is passed over": Case(
        (("1", P + "skip1.json", 100), ("1", P + "skip2.json", 100), ("2", P + "file4.json", 50)),
        ((1000, f"2#{P}file4.json"),),
        object_filter=NO_SKIPS,
    ),
    "a commit of unwanted objects in the middle is passed over": Case(
        (
            ("1", P + "file1.json", 50), ("1", P + "file2.json", 50),
            ("2", P + "skip3.json", 50), ("3", P + "file4.json", 50),
        ),
        ((50, f"1#{P}file1.json"), (50, f"1#{P}file2.json"), (50, f"3#{P}file4.json")),
        object_filter=ONLY_FILES,
    ),
    **{
        f"a load that is split at commit {at} goes on after it": Case(
            SPLIT,
            ((1000, f"1#{P}file2.json"), (50, f"3#{P}file4.json")),
            object_filter=ONLY_FILES,
            ends={0: at},
        )
        for at in ("1", "2")
    },
    "a load that is split at its last commit is one batch": Case(
        SPLIT,
        ((1000, f"3#{P}file5.json"), (50, f"3#{P}file5.json")),
        object_filter=ONLY_FILES,
        ends={0: "3"},
    ),
    "the rest of a commit is read though a later one rewrote one of its objects": Case(
        PAGED,
        ((250, f"1#{P}file-04.json"),),
        after=f"1#{P}file-02.json",
        read=(P + "file-03.json", P + "file-04.json"),
    ),
    "a number of files ends a batch too": Case(
        two_commits(".json"), ((None, f"1#{P}file3.json"), (None, f"2#{P}file5.json")), files=3
    ),
    "the first object is read alone if it is too large": Case(
        EIGHT, ((50, f"1#{P}file1.json"),), read=(P + "file1.json",)
    ),
    "keys are read in their order, whatever order they came in": Case(
        EIGHT, ((350, f"1#{P}file2.json"),), read=(P + "file1.json", P + "file2.json")
    ),
    "a batch may end in the middle of the second commit": Case(
        EIGHT, ((550, f"2#{P}file4.json"),), read=tuple(f"{P}file{n}.json" for n in (1, 2, 3, 4))
    ),
    "a batch may take all there is": Case(
        EIGHT, ((1500, f"3#{P}file8.json"),), read=tuple(f"{P}file{n}.json" for n in range(1, 9))
    ),
    "after the last object of a commit comes the first of the next": Case(
        (*EIGHT, *FOURTH), ((50, f"4#{P}file0.json"),), after=f"3#{P}file8.json",
        read=(P + "file0.json",),
    ),
    "after the last object of a commit come those of the next": Case(
        (*EIGHT, *FOURTH), ((350, f"4#{P}file2.json"),), after=f"3#{P}file8.json",
        read=(P + "file0.json", P + "file1.txt", P + "file2.json"),
    ),
    "the last object of the last commit stays the place": Case(
        EIGHT, ((350, f"3#{P}file8.json"),), after=f"3#{P}file8.json", read=()
    ),
    "an end after the last object of a commit replaces its position": Case(
        EIGHT, ((350, "4"),), after=f"3#{P}file8.json", until="4", read=()
    ),
    "an end before the position never moves it back": Case(
        EIGHT, ((350, "4"),), after="4", until="3", read=()
    ),
    "objects of other kinds do not count": Case(
        (
            *(("1", f"{P}file{n:05d}.parquet", 100) for n in range(10_001)),
            ("1", P + "file10005.json", 100), ("1", P + "file10006.json", 150),
            ("1", P + "file10007.json", 200),
        ),
        ((250, f"1#{P}file10006.json"), (250, f"1#{P}file10007.json")),
        object_filter=ObjectFilter(SelectionSettings(), (".json",)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_batches_end_where_they_should(case: Case) -> None:
    selections = run(case)
    assert [str(selection.position) for selection in selections] == [end for _, end in case.batches]
    if case.read is not None:
        assert tuple(item.path for item in selections[-1].objects) == case.read


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_no_batch_goes_back_and_no_object_is_read_twice(case: Case) -> None:
    selections = run(case)
    read = [item for selection in selections for item in selection.objects]
    assert len({(item.bucket, item.path) for item in read}) == len(read)
    ends = [selection.position for selection in selections]
    for before, after in pairwise(ends):
        assert before is not None
        assert after is not None
        assert after == before or before.is_before(after.completed_at, after.key or "\U0010ffff")


def test_of_several_events_of_an_object_the_newest_is_read() -> None:
    events = [
        CloudObject("1", "lake", "a", "a", 10, "2026-01-01T00:00:01Z"),
        CloudObject("2", "lake", "a", "a", 20, "2026-01-01T00:00:03Z"),
        CloudObject("3", "lake", "a", "a", 30, "2026-01-01T00:00:02Z"),
        CloudObject("1", "lake", "b", "b", 5, "2026-01-01T00:00:01Z"),
    ]
    chosen = select(events, after=None, until="3", max_files=10)
    assert [(o.path, o.size) for o in chosen.objects] == [("b", 5), ("a", 20)]
    assert str(chosen.position) == "2#a"


def test_objects_at_the_same_place_are_read_together() -> None:
    events = [CloudObject("1", bucket, "a", "a", 60) for bucket in ("left", "right")]
    more = CloudObject("1", "left", "b", "b", 1)
    chosen = select([*events, more], after=None, until="1", max_files=1, max_bytes=100)
    assert [(o.bucket, o.path) for o in chosen.objects] == [("left", "a"), ("right", "a")]
    assert (str(chosen.position), chosen.waiting) == ("1#a", 1)


def test_a_batch_ends_before_objects_of_one_place_that_do_not_fit_together() -> None:
    first = CloudObject("1", "left", "a", "a", 50)
    pair = [CloudObject("1", bucket, "b", "b", 30) for bucket in ("left", "right")]
    chosen = select([first, *pair], after=None, until="1", max_files=10, max_bytes=100)
    assert str(chosen.position) == "1#a"


def test_without_any_commit_there_is_no_place() -> None:
    assert select([], after=None, until=None, max_files=1) == Selection()


def test_a_page_that_may_have_been_cut_has_complete_positions_only() -> None:
    a = [CloudObject("1", bucket, "a", "a", 1) for bucket in "xy"]
    b = CloudObject("1", "x", "b", "b", 1)
    assert complete_positions([*a, b], 4) == [*a, b]
    assert complete_positions([*a, b], 3) == a
    assert complete_positions(a, 2) == []


FILTERS = {
    "a size of nothing is no object": (SelectionSettings(), (), "a.json", 0, None),
    "an unknown size is no object": (SelectionSettings(), (), "a.json", None, None),
    "a prefix": (SelectionSettings(prefix="in/"), (), "in/a", 1, "in/a"),
    "another prefix": (SelectionSettings(prefix="in/"), (), "out/a", 1, None),
    "an ignored prefix": (SelectionSettings(ignored_prefix="tmp/"), (), "tmp/a", 1, None),
    "an ignored part": (SelectionSettings(ignored_part="_tmp"), (), "x/_tmp/a", 1, None),
    "an extension": (SelectionSettings(), (".json", ".gz"), "a.json.gz", 1, "a.json.gz"),
    "another extension": (SelectionSettings(), (".json",), "a.csv", 1, None),
    "a pattern is found anywhere": (SelectionSettings(pattern="[0-9]+"), (), "a7b", 1, "a7b"),
    "a plus is a blank": (SelectionSettings(), (), "a+b", 1, "a b"),
    "an encoded plus is a plus": (SelectionSettings(), (), "a%2Bb", 1, "a+b"),
    "an encoded per cent is decoded once": (SelectionSettings(), (), "a%252Bb", 1, "a%2Bb"),
    "a real per cent stays": (SelectionSettings(), (), "100%25.json", 1, "100%.json"),
    "other letters": (SelectionSettings(), (), "caf%C3%A9/%23", 1, "café/#"),
    "filters see the decoded key": (SelectionSettings(prefix="a b/"), (), "a+b/c", 1, "a b/c"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "extensions", "key", "size", "path"), FILTERS.values(), ids=list(FILTERS)
)
def test_which_keys_are_selected(
    settings: SelectionSettings,
    extensions: tuple[str, ...],
    key: str,
    size: int | None,
    path: str | None,
) -> None:
    assert ObjectFilter(settings, extensions).path_of(key, size) == path


def test_keys_that_are_not_encoded_stay_as_they_are() -> None:
    assert ObjectFilter(SelectionSettings(), encoded=False).path_of("a+b%2B", 1) == "a+b%2B"


def test_missing_objects_leave_the_place_where_it_is() -> None:
    events = [CloudObject("1", "lake", key, key, 1) for key in "ab"]
    chosen = select(events, after=None, until="1", max_files=10)
    remaining = chosen.without([events[1]])
    assert remaining.objects == (events[0],)
    assert (remaining.position, remaining.missing) == (chosen.position, 1)
