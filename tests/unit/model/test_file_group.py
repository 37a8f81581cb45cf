"""Slicing by completion time; `f1@3` is a base file of tick 3, `f1+5` a log file of tick 5."""

from __future__ import annotations

import re

import pytest

from lakewright.errors import CorruptError
from lakewright.model.file_group import (
    BaseFile,
    FileGroup,
    FileSlice,
    LogFile,
    TimelineView,
    build_groups,
)
from lakewright.model.timeline import Timeline
from lakewright.testing.timeline_drawing import at, draw


def files(text: str) -> list[BaseFile | LogFile]:
    parsed: list[BaseFile | LogFile] = []
    for file_id, mark, tick in re.findall(r"(\w+)([@+])(\d+)", text):
        instant = at(int(tick))
        parsed.append(
            BaseFile(file_id, "0-0-0", instant) if mark == "@" else LogFile(file_id, instant)
        )
    return parsed


def show(item: FileSlice) -> str:
    base = f"@{int(item.base.instant[4:])}" if item.base else "@-"
    return item.file_id + base + "".join(f"+{int(log.instant[4:])}" for log in item.logs)


def show_groups(groups: list[FileGroup]) -> str:
    return " ".join(show(group.latest_merged_slice()) for group in groups)


SNAPSHOTS = {
    "the newest base and the logs after it": (
        """
        commit      |-|
        deltacommit    |-|
        deltacommit       |-|
        """,
        "f1@0 f1+3 f1+6",
        "f1@0+3+6",
    ),
    "a log that completed before the compaction was requested is in its base": (
        """
        deltacommit |-|
        deltacommit    |-|
        compaction        |-|
        deltacommit          |-|
        """,
        "f1@0 f1+3 f1@6 f1+9",
        "f1@6+9",
    ),
    "a log that began before and completed after the compaction is on top of it": (
        """
        deltacommit |-|
        deltacommit    |-----|
        compaction        |---|
        """,
        "f1@0 f1+3 f1@6",
        "f1@6+3",
    ),
    "a pending compaction changes nothing": (
        """
        deltacommit |-|
        deltacommit    |-|
        compaction        |-
        deltacommit          |-|
        """,
        "f1@0 f1+3 f1@6 f1+9",
        "f1@0+3+9",
    ),
    "files of pending writes are not visible": (
        """
        deltacommit |-|
        deltacommit    |-
        """,
        "f1@0 f1+3 f2@3",
        "f1@0",
    ),
    "an uncommitted base draws no logs away": (
        """
        deltacommit |-|
        deltacommit    |-
        deltacommit       |-|
        """,
        "f1@0 f1@3 f1+6",
        "f1@0+6",
    ),
    "a group may have logs alone": (
        """
        deltacommit |-|
        deltacommit    |-|
        """,
        "f1+0 f1+3",
        "f1@-+0+3",
    ),
    "files older than the timeline are committed": (
        """
        deltacommit       |-|
        """,
        "f1@0 f1+6",
        "f1@0+6",
    ),
    "a file of an unknown instant within the timeline is not visible": (
        """
        deltacommit |-|
        deltacommit       |-|
        """,
        "f1@0 f1+3 f1+6",
        "f1@0+6",
    ),
    "a saved commit is not the beginning of the timeline": (
        """
        commit      |-|
        savepoint   |---|
        commit           |-|
        """,
        "f1@0 f2@3 f3@5",
        "f1@0 f2@3 f3@5",
    ),
}


@pytest.mark.parametrize(("picture", "names", "expected"), SNAPSHOTS.values(), ids=list(SNAPSHOTS))
def test_what_a_snapshot_reads(picture: str, names: str, expected: str) -> None:
    assert show_groups(build_groups("p", files(names), TimelineView(draw(picture)))) == expected


HISTORY = """
    deltacommit |-|
    deltacommit    |-----|
    compaction        |-|
    deltacommit             |-|
    """

AS_OF = {
    "before the first write": (None, ""),
    "the first write": (0, "f1@0"),
    "a writer counts from its request on": (3, "f1@0+3"),
    "the compaction": (6, "f1@6+3"),
    "everything": (99, "f1@6+3+12"),
}


@pytest.mark.parametrize(("tick", "expected"), AS_OF.values(), ids=list(AS_OF))
def test_time_travel_compares_requested_times(tick: int | None, expected: str) -> None:
    until = at(tick) if tick is not None else "2025"
    view = TimelineView(draw(HISTORY), requested_until=until)
    assert show_groups(build_groups("p", files("f1@0 f1+3 f1@6 f1+12"), view)) == expected


UNTIL = {
    "the first write": (2, "f1@0"),
    "a writer that completes later is not there yet": (8, "f1@6"),
    "and is there when it completes": (9, "f1@6+3"),
}


@pytest.mark.parametrize(("tick", "expected"), UNTIL.values(), ids=list(UNTIL))
def test_the_end_of_a_range_compares_completion_times(tick: int, expected: str) -> None:
    view = TimelineView(draw(HISTORY), completed_until=at(tick))
    assert show_groups(build_groups("p", files("f1@0 f1+3 f1@6 f1+12"), view)) == expected


def test_completion_times_of_archived_logs_come_from_history() -> None:
    timeline = draw("deltacommit                     |-|")
    names = files("f1@0 f1+2 f1@5 f1+20")
    before = TimelineView(timeline, {at(2): at(4)})
    after = TimelineView(timeline, {at(2): at(7)})
    assert show_groups(build_groups("p", names, before)) == "f1@5+20"
    assert show_groups(build_groups("p", names, after)) == "f1@5+2+20"


def test_a_replaced_file_group_is_not_visible() -> None:
    timeline = draw("""
        commit        |-|
        replacecommit    |-|
        """)
    names = files("f1@0 f2@3")
    assert (
        show_groups(build_groups("p", names, TimelineView(timeline), replaced={("p", "f1")}))
        == "f2@3"
    )


def test_a_window_leaves_out_what_was_requested_before_it() -> None:
    view = TimelineView(draw(HISTORY), requested_from=at(3), requested_until=at(6))
    assert show_groups(build_groups("p", files("f1@0 f1+3 f1@6 f1+12"), view)) == "f1@6+3"


def test_a_group_of_logs_has_no_newest_base() -> None:
    (group,) = build_groups("p", files("f1+0"), TimelineView(draw("deltacommit |-|")))
    assert group.latest_base_slice() is None


def test_two_base_files_of_one_instant_are_an_error() -> None:
    twice = [BaseFile("f1", "0-0-0", at(0)), BaseFile("f1", "0-0-1", at(0))]
    with pytest.raises(CorruptError, match="failed task attempt"):
        build_groups("p", twice, TimelineView(draw("commit |-|")))


def test_change_data_files_are_no_part_of_a_slice() -> None:
    names: list[BaseFile | LogFile] = [*files("f1@0"), LogFile("f1", at(0), cdc=True)]
    assert show_groups(build_groups("p", names, TimelineView(draw("commit |-|")))) == "f1@0"


def test_an_empty_timeline_sees_nothing() -> None:
    assert build_groups("p", files("f1@0"), TimelineView(Timeline())) == []
