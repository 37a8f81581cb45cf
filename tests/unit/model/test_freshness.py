"""Completion and freshness of commits, and how they are stored: pure values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.freshness import (
    FRESHNESS_KEY,
    NO_WATERMARKS,
    CompletionRegression,
    FreshnessRecord,
    PartitionFreshnessRecord,
    UncompactedLog,
    Watermarks,
    combine,
    detect_regression,
    dropped_partitions,
    format_freshness_record,
    future_times,
    is_ingest,
    most_urgent,
    parse_freshness_record,
    removes_logs,
    watermarks_by_partition,
)
from lakewright.model.timeline import Timeline
from lakewright.testing.timeline_drawing import at, draw

LOG = "p/.f1_20260101.log.1_0-0-0"
BASE = "p/f1_0-0-0_20260101.parquet"


def stat(
    path: str = LOG,
    times: tuple[int, int] | None = (5, 9),
    *,
    rows: int = 1,
    deletes: int = 0,
    fresh: int | None = None,
) -> WriteStat:
    least, most = times or (None, None)
    return WriteStat(
        file_id="f1",
        path=path,
        num_writes=rows,
        num_deletes=deletes,
        num_inserts=rows if fresh is None else fresh,
        num_update_writes=0,
        min_event_time=least,
        max_event_time=most,
    )


def commit(*stats: WriteStat, operation: str = "UPSERT") -> CommitMetadata:
    return CommitMetadata(stats={"p": stats}, operation=operation)


def log(time: int | None, path: str = LOG) -> UncompactedLog:
    return UncompactedLog(path, "1", time)


COMMITS: dict[str, tuple[CommitMetadata, Watermarks]] = {
    "a log file waits": (
        commit(stat()),
        Watermarks(ingested=True, rt_completion=5, rt_freshness=9, uncompacted=log(5))),
    "a base file does not": (
        commit(stat(BASE)),
        Watermarks(ingested=True, rt_completion=5, rt_freshness=9, ro_freshness=9)),
    "the least and the greatest count": (
        commit(stat(times=(5, 6)), stat(BASE, (2, 3)), stat(times=(7, 8))),
        Watermarks(ingested=True, rt_completion=2, rt_freshness=8, ro_freshness=3,
                   uncompacted=log(5))),
    "one file without times makes completion unknown, and freshness is what is known": (
        commit(stat(times=(5, 6)), stat(times=None)),
        Watermarks(ingested=True, rt_completion=None, rt_freshness=6, uncompacted=log(None))),
    "a file without rows does not change completion": (
        commit(stat(times=(5, 6)), stat(BASE, None, rows=100, deletes=1, fresh=0)),
        Watermarks(ingested=True, rt_completion=5, rt_freshness=6, uncompacted=log(5))),
    "deletes bring no rows, and their log file waits": (
        commit(stat(times=None, rows=0, deletes=3), operation="DELETE"),
        Watermarks(uncompacted=log(None))),
    "a write that only deletes is no ingest": (
        commit(stat(BASE, None, rows=9, deletes=3, fresh=0)), NO_WATERMARKS),
    "what real writers count as writes alone is counted": (
        commit(WriteStat(path=BASE, num_writes=3)), Watermarks(ingested=True)),
    "a compaction puts rows into base files and brings none": (
        commit(stat(BASE), operation="COMPACT"), Watermarks(ro_freshness=9)),
    "rows that a compaction held back wait": (
        commit(stat(BASE), stat(times=(7, 9), deletes=2), operation="COMPACT"),
        Watermarks(ro_freshness=9, uncompacted=log(7))),
    "deletes that a compaction carried over do not": (
        commit(stat(BASE), stat(times=None, rows=0, deletes=2), operation="COMPACT"),
        Watermarks(ro_freshness=9)),
    "what a log compaction wrote once more waits": (
        commit(stat(), operation="LOG_COMPACT"), Watermarks(uncompacted=log(5))),
    "the times of deletes in it are unknown": (
        commit(stat(deletes=1), operation="LOG_COMPACT"), Watermarks(uncompacted=log(None))),
    "clustering brings nothing": (
        commit(stat(BASE), operation="CLUSTER"), Watermarks(ro_freshness=9)),
}  # fmt: skip


@pytest.mark.parametrize(("metadata", "expected"), COMMITS.values(), ids=list(COMMITS))
def test_watermarks_of_a_commit(metadata: CommitMetadata, expected: Watermarks) -> None:
    parts = watermarks_by_partition("1", metadata)
    assert parts == {"p": expected}
    assert combine(parts.values()) == expected
    assert is_ingest(metadata) == expected.ingested


REMOVES = {
    "an upsert removes no log files": (commit(stat()), False),
    "a compaction does": (commit(stat(BASE), operation="COMPACT"), True),
    "a log compaction does": (commit(stat(), operation="LOG_COMPACT"), True),
    "a write that replaces file groups does": (
        replace(commit(stat(BASE)), replaced={"p": ("f2",)}), True),
}  # fmt: skip


@pytest.mark.parametrize(("metadata", "expected"), REMOVES.values(), ids=list(REMOVES))
def test_operations_that_remove_log_files(metadata: CommitMetadata, expected: bool) -> None:
    assert removes_logs(metadata) is expected


def test_partitions_without_new_files_are_dropped_unless_rows_are_only_moved() -> None:
    metadata = CommitMetadata(replaced={"p": ("f1",), "q": ("f2",)}, stats={"q": (stat(BASE),)})
    assert dropped_partitions(replace(metadata, operation="DELETE_PARTITION")) == {"p"}
    assert dropped_partitions(replace(metadata, operation="CLUSTER")) == set()


def test_an_unknown_log_file_comes_before_all_others() -> None:
    assert most_urgent(log(3), log(None), log(1)) == log(None)
    assert most_urgent(None, log(3), log(1)) == log(1)
    assert most_urgent(None) is None


COMPLETE = {
    "without log files it is the snapshot's": (Watermarks(rt_completion=7), 7),
    "one before the least event time that waits": (
        Watermarks(rt_completion=7, uncompacted=log(4)),
        3,
    ),
    "never more than the snapshot's": (Watermarks(rt_completion=7, uncompacted=log(20)), 7),
    "unknown where the snapshot's is": (Watermarks(uncompacted=log(20)), None),
    "unknown is unknown": (Watermarks(rt_completion=7, uncompacted=log(None)), None),
    "nothing is nothing": (NO_WATERMARKS, None),
}


@pytest.mark.parametrize(("marks", "expected"), COMPLETE.values(), ids=list(COMPLETE))
def test_read_optimized_completion(marks: Watermarks, expected: int | None) -> None:
    assert marks.ro_completion == expected
    assert marks.views().read_optimized.completion == expected


FALLS: dict[str, tuple[Watermarks, Watermarks, CompletionRegression | None]] = {
    "rising is no fall": (Watermarks(rt_completion=5), Watermarks(rt_completion=6), None),
    "standing still is no fall": (Watermarks(rt_completion=5), Watermarks(rt_completion=5), None),
    "a late log file is to blame": (
        Watermarks(rt_completion=5), Watermarks(rt_completion=5, uncompacted=log(3)),
        CompletionRegression(5, log(3))),
    "so is an unknown one": (
        Watermarks(rt_completion=5), Watermarks(rt_completion=5, uncompacted=log(None)),
        CompletionRegression(5, log(None))),
    "without log files there is no cause": (
        Watermarks(ingested=True, rt_completion=5), Watermarks(ingested=True, rt_completion=2),
        CompletionRegression(5)),
    "a log file of newer rows is not to blame": (
        Watermarks(rt_completion=5), Watermarks(ingested=True, rt_completion=2, uncompacted=log(9)),
        CompletionRegression(5)),
    "what was unknown cannot fall": (Watermarks(), Watermarks(rt_completion=5), None),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "expected"), FALLS.values(), ids=list(FALLS))
def test_falls(
    before: Watermarks, after: Watermarks, expected: CompletionRegression | None
) -> None:
    assert detect_regression(before, after) == expected


times = st.none() | st.integers(0, 9)
logs = st.none() | st.builds(
    lambda path, instant, time, reached: UncompactedLog(path, instant, time).held_at_least(reached),
    st.sampled_from(["a", "b"]),
    st.sampled_from("12"),
    times,
    times,
)
marks = st.builds(
    Watermarks, st.booleans(), times, times, times, logs, st.booleans(), times, st.integers(0, 3)
)


@given(marks, marks, marks)
def test_it_does_not_matter_where_folding_begins(
    one: Watermarks, two: Watermarks, three: Watermarks
) -> None:
    assert one.followed_by(two).followed_by(three) == one.followed_by(two.followed_by(three))


def test_future_event_times_are_stored_by_partition_until_they_have_passed() -> None:
    parts = {"p": Watermarks(rt_freshness=50), "q": Watermarks(rt_freshness=5), "r": NO_WATERMARKS}
    stored_times = (("p", 60), ("s", 20))
    assert future_times(parts, stored_times, 10) == (("p", 60), ("s", 20))
    assert future_times(parts, (), 10) == (("p", 50),)
    assert future_times({}, stored_times, 20) == (("p", 60),)


entries = st.dictionaries(
    st.sampled_from(["p", "q/1"]), st.builds(PartitionFreshnessRecord, marks, st.just("7"))
)
falls = st.none() | st.builds(CompletionRegression, st.integers(0, 9), logs)
future = st.lists(st.tuples(st.sampled_from("pq"), st.integers(0, 9)), max_size=2).map(tuple)
stored = st.builds(
    FreshnessRecord, st.just("5"), st.just("4"), st.just("45"), st.sampled_from([(), ("6",)]),
    marks, falls, future, st.sampled_from([None, frozenset(), frozenset({"p", "q"})]),
    st.sampled_from([(), ("p",)]), entries, st.sampled_from([None, 0, 5]),
)  # fmt: skip


@given(stored)
def test_a_stored_record_is_read_again(record: FreshnessRecord) -> None:
    assert parse_freshness_record({FRESHNESS_KEY: format_freshness_record(record)}) == record


UNREADABLE = ["", "{", "[]", "null", "7", '{"at": "1"}', '{"at":"1","table":7}']


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_cannot_be_read_is_nothing(text: str) -> None:
    assert parse_freshness_record({FRESHNESS_KEY: text}) is None
    assert parse_freshness_record({}) is None


THREE = """
    deltacommit |-|
    deltacommit   |-|
    deltacommit     |-|
    """
OVERTAKEN = """
    deltacommit |-------|
    deltacommit   |-|
    """
HOLDS: dict[str, tuple[str, FreshnessRecord, int, bool]] = {
    "on the write before it": (THREE, FreshnessRecord(at(4), at(2), at(4)), 4, True),
    "the first one builds on nothing": (THREE, FreshnessRecord(at(0)), 0, True),
    "values of another commit do not": (THREE, FreshnessRecord(at(2), at(0), at(2)), 4, False),
    "values that build on an older write do not": (
        THREE, FreshnessRecord(at(4), at(0), at(2)), 4, False),
    "values that build on a write that is not on the timeline do not": (
        THREE, FreshnessRecord(at(4), at(3), at(3)), 4, False),
    "nor those of a first write that is none": (THREE, FreshnessRecord(at(4)), 4, False),
    "on an archived write they do": ("""
        deltacommit     |-|
        """, FreshnessRecord(at(4), at(2), at(4)), 4, True),
    "on an archived write that another has followed they do not": ("""
        deltacommit  |-|
        deltacommit     |-|
        """, FreshnessRecord(at(4), at(0), at(2)), 4, False),
    "on an archived write that completed after another they do": ("""
        deltacommit  |-|
        deltacommit     |-----|
        """, FreshnessRecord(at(4), at(0), at(5)), 4, True),
    "writes that overtook it must be there": (
        OVERTAKEN, FreshnessRecord(at(0), at(2), at(4), over=(at(2),)), 0, True),
    "once one of them was rolled back they do not": (
        OVERTAKEN, FreshnessRecord(at(0), at(2), at(4), over=(at(2), at(3))), 0, False),
}  # fmt: skip


@pytest.mark.parametrize(("picture", "record", "tick", "expected"), HOLDS.values(), ids=list(HOLDS))
def test_values_hold(picture: str, record: FreshnessRecord, tick: int, expected: bool) -> None:
    timeline: Timeline = draw(picture)
    assert record.is_valid(timeline.by_time[at(tick)], timeline, timeline.is_committed) is expected
