"""The watermark: the greatest event time less an allowed lateness, and the rows that came late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from lakewright.errors import InvalidError, UnavailableError
from lakewright.format.timeline_metadata import format_commit
from lakewright.model.event_time import time_text
from lakewright.model.freshness import Freshness
from lakewright.model.watermark import (
    WATERMARK_KEY,
    CompletionDefinition,
    WatermarkRecord,
    format_watermark_record,
    parse_watermark_record,
)
from lakewright.table.freshness import compute_freshness
from lakewright.table.freshness_report import (
    catalog_properties,
    freshness_document,
    wait_until_complete,
)
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage
from support.event_times import (
    COMPACT_EVERY_COMMIT,
    DAY,
    EXACT_SPLIT,
    NEVER,
    NEXT_DAY,
    TIME_ZERO,
    ignoring_freshness_records,
    tracked_row,
    tracked_table,
    untracked_options,
)
from support.tables import NO_SERVICES, WrittenTable

LATENESS = "lakewright.completion.lateness"
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
TEN = {LATENESS: "10ms"}


def watermark_table(
    lateness: str = "10ms", options: Mapping[str, str] | None = None, **more: Any
) -> WrittenTable:
    """A table that allows a lateness of ten milliseconds; the table remembers it."""
    return tracked_table(options={LATENESS: lateness, **(options or {})}, **more)


def freshness_with(table: WrittenTable, options: Mapping[str, str] | None = None) -> Freshness:
    snapshot = load_snapshot(table.storage)
    return compute_freshness(snapshot, future_from_ms=NEVER, options=options)


Marks = tuple[int | None, int | None]


def after_zero(*times: int | None) -> Marks:
    first, second = (None if time is None else time - TIME_ZERO for time in times)
    return first, second


def watermarks(table: WrittenTable, options: Mapping[str, str] | None = None) -> Marks:
    """The watermarks of the snapshot and of the read-optimized view."""
    freshness = freshness_with(table, options)
    return after_zero(freshness.snapshot.watermark, freshness.read_optimized.watermark)


def partition_watermarks(table: WrittenTable, day: str) -> Marks:
    partition = freshness_with(table).partitions[day]
    return after_zero(partition.snapshot.watermark, partition.read_optimized.watermark)


def late_rows(table: WrittenTable) -> tuple[int, dict[str, int]]:
    freshness = freshness_with(table)
    by_partition = {path: part.late_rows for path, part in freshness.partitions.items()}
    return freshness.late_rows, {path: count for path, count in by_partition.items() if count}


def compact(table: WrittenTable) -> None:
    assert table.services(COMPACT_EVERY_COMMIT).run("compaction")


def base_files(table: WrittenTable) -> None:
    table.upsert([tracked_row("a", 50), tracked_row("z", 40, NEXT_DAY)])


def on_time_log(table: WrittenTable) -> None:
    base_files(table)
    table.upsert([tracked_row("a", 45), tracked_row("z", 100, NEXT_DAY)])


def late_log(table: WrittenTable) -> None:
    on_time_log(table)
    compact(table)
    table.upsert([tracked_row("a", 60), tracked_row("z", 95, NEXT_DAY)])


def late_log_and_newer_rows(table: WrittenTable) -> None:
    late_log(table)
    table.upsert([tracked_row("z", 300, NEXT_DAY)])


def late_log_compacted(table: WrittenTable) -> None:
    late_log_and_newer_rows(table)
    compact(table)


def late_log_of_deletes(table: WrittenTable) -> None:
    on_time_log(table)
    compact(table)
    table.write("DELETE", [tracked_row("a", 0)])


def logs_compacted_in_logs(table: WrittenTable) -> None:
    late_log_and_newer_rows(table)
    assert table.services({"hoodie.log.compaction.blocks.threshold": "1"}).run("logcompaction")


def split_exactly(table: WrittenTable, threshold: int = 250) -> None:
    table.clock.sleep(1)
    at = {"hoodie.compaction.event.time.threshold": time_text(TIME_ZERO + threshold)}
    by_event_time = {"hoodie.compaction.strategy": "event_time", **at, **EXACT_SPLIT}
    assert table.services({**COMPACT_EVERY_COMMIT, **by_event_time}).run("compaction")


def split_above_late_rows(table: WrittenTable) -> None:
    base_files(table)
    table.upsert([tracked_row("a", 300), tracked_row("b", 200)])
    table.upsert([tracked_row("b", 260), tracked_row("a", 100)])
    split_exactly(table)


def split_with_deletes(table: WrittenTable) -> None:
    base_files(table)
    table.upsert([tracked_row("a", 200)])
    compact(table)
    deleted_and_split(table)


def deleted_and_split(table: WrittenTable) -> None:
    table.write("DELETE", [tracked_row("a", 0)])
    table.clock.sleep(1)
    table.upsert([tracked_row("a", 400)])
    split_exactly(table)


def withdrawn_by_a_split(table: WrittenTable) -> None:
    base_files(table)
    table.upsert([tracked_row("y", 300, NEXT_DAY), tracked_row("x", 260, NEXT_DAY)])
    split_exactly(table)


def withdrawn_beside_a_log_of_deletes(table: WrittenTable) -> None:
    base_files(table)
    table.upsert([tracked_row("a", 200)])
    compact(table)
    table.upsert([tracked_row("y", 300, NEXT_DAY), tracked_row("x", 260, NEXT_DAY)])
    deleted_and_split(table)


def greatest_rolled_back(table: WrittenTable) -> None:
    on_time_log(table)
    table.writer().rollback(table.upsert([tracked_row("z", 900, NEXT_DAY)]).instant)


HISTORIES: dict[str, tuple[Callable[[WrittenTable], None], Marks, int]] = {
    "without log files both views have the same": (base_files, (40, 40), 0),
    "an uncompacted log file holds the read-optimized view back": (on_time_log, (90, 44), 0),
    "late rows in a log file do not lower it": (late_log, (90, 90), 1),
    "they hold it until they are compacted": (late_log_and_newer_rows, (290, 90), 1),
    "once they are compacted it rises": (late_log_compacted, (290, 290), 1),
    "deletes of unknown event time hold it as well": (late_log_of_deletes, (90, 90), 0),
    "a log compaction does not lower it": (logs_compacted_in_logs, (290, 90), 1),
    "an exact split that takes no rows out of base files does not lower it": (
        split_above_late_rows, (290, 290), 2),
    "nor do deletes that a split leaves uncompacted": (split_with_deletes, (390, 190), 0),
    "what was rolled back was not seen": (greatest_rolled_back, (90, 44), 0),
}  # fmt: skip


# With a bucket index an exact split takes rows out of base files.
IN_BUCKETS: dict[str, tuple[Callable[[WrittenTable], None], Marks, int]] = {
    "rows that an exact split takes out of base files lower it": (
        withdrawn_by_a_split, (290, 259), 0),
    "but not below the threshold of the split, whatever deletes are uncompacted": (
        withdrawn_beside_a_log_of_deletes, (390, 249), 0),
}  # fmt: skip


@pytest.mark.parametrize(("history", "expected", "late"), IN_BUCKETS.values(), ids=list(IN_BUCKETS))
def test_watermarks_where_rows_leave_base_files(
    history: Callable[[WrittenTable], None], expected: Marks, late: int
) -> None:
    table = watermark_table(options=BUCKETS)
    history(table)
    assert (watermarks(table), freshness_with(table).late_rows) == (expected, late)
    with ignoring_freshness_records():
        assert (watermarks(table), freshness_with(table).late_rows) == (expected, late)


@pytest.mark.parametrize(("history", "expected", "late"), HISTORIES.values(), ids=list(HISTORIES))
def test_watermarks_of_both_views(
    history: Callable[[WrittenTable], None], expected: Marks, late: int
) -> None:
    table = watermark_table()
    history(table)
    assert (watermarks(table), freshness_with(table).late_rows) == (expected, late)
    with ignoring_freshness_records():
        assert (watermarks(table), freshness_with(table).late_rows) == (expected, late)


def test_the_definition_of_the_rfc_is_the_default_and_stored_as_before() -> None:
    table = tracked_table()
    on_time_log(table)
    freshness = freshness_with(table)
    assert freshness.definition is CompletionDefinition.LAST_COMMIT
    assert (freshness.lateness_ms, freshness.snapshot.watermark) == (None, None)
    snapshot = load_snapshot(table.storage)
    for commit in snapshot.commits(snapshot.timeline.by_completion):
        assert WATERMARK_KEY not in commit.extra
        assert "lateness" not in commit.extra["lakewright.freshness"]
        assert "watermark" not in commit.extra["lakewright.freshness"]


def test_completion_of_the_rfc_stays_beside_the_watermark() -> None:
    with_lateness, without = watermark_table(), tracked_table()
    for table in (with_lateness, without):
        late_log(table)
    one, other = freshness_with(with_lateness), freshness_with(without)
    assert one.definition is CompletionDefinition.WATERMARK
    assert one.snapshot.completion == other.snapshot.completion == TIME_ZERO + 60
    assert one.read_optimized.completion == other.read_optimized.completion


def test_the_watermark_never_falls_while_completion_does() -> None:
    table = watermark_table()
    seen = []
    for time in (50, 100, 30, 95, 20, 120, 10):
        table.upsert([tracked_row("a", time)])
        seen.append(watermarks(table)[0])
    assert seen == [40, 90, 90, 90, 90, 110, 110]
    assert freshness_with(table).snapshot.completion == TIME_ZERO + 10
    assert late_rows(table) == (3, {DAY: 3})


def test_each_partition_has_its_own_watermark_and_late_rows() -> None:
    table = watermark_table()
    late_log_and_newer_rows(table)
    assert partition_watermarks(table, DAY) == (50, 50)
    assert partition_watermarks(table, NEXT_DAY) == (290, 94)
    assert late_rows(table) == (1, {DAY: 1})


def test_a_wait_that_would_hang_ends_by_the_watermark() -> None:
    """Every commit has a row that is late, within the lateness that is allowed."""
    table = tracked_table()
    table.upsert([tracked_row("a", 50), tracked_row("b", 100)])
    table.upsert([tracked_row("a", 95), tracked_row("b", 200)])
    compact(table)
    wanted = TIME_ZERO + 150
    with pytest.raises(UnavailableError, match="the last commit") as failure:
        wait_until_complete(table.storage, ManualClock(), wanted, timeout=0, poll=1.0)
    assert failure.value.facts["definition"] == "last_commit"
    freshness = wait_until_complete(
        table.storage, ManualClock(), wanted, timeout=0, poll=1.0, options={LATENESS: "50ms"}
    )
    assert freshness.read_optimized.watermark == wanted
    with pytest.raises(UnavailableError, match="newer by the allowed lateness") as failure:
        wait_until_complete(
            table.storage, ManualClock(), wanted + 1, timeout=0, poll=1.0,
            options={LATENESS: "50ms"},
        )  # fmt: skip
    assert failure.value.facts["definition"] == "watermark"


def test_a_lateness_of_one_write_is_remembered_by_the_commits_after_it() -> None:
    table = tracked_table()
    table.upsert([tracked_row("a", 50)], TEN)
    assert watermarks(table) == (40, 40)
    table.upsert([tracked_row("a", 100)])
    assert watermarks(table) == (90, 90)
    compact(table)
    table.upsert([tracked_row("a", 20)], untracked_options(table))
    table.upsert([tracked_row("b", 20)])
    assert watermarks(table)[0] == 90
    assert late_rows(table) == (1, {DAY: 1})
    table.upsert([tracked_row("a", 110)], {LATENESS: "off"})
    assert freshness_with(table).definition is CompletionDefinition.LAST_COMMIT
    table.upsert([tracked_row("a", 120)])
    assert watermarks(table) == (None, None)


def test_a_greater_lateness_does_not_lower_the_watermark_of_the_table() -> None:
    table = tracked_table()
    table.upsert([tracked_row("a", 100)])
    table.upsert([tracked_row("a", 90)], TEN)
    assert watermarks(table)[0] == 90
    table.upsert([tracked_row("a", 110)], {LATENESS: "50ms"})
    assert watermarks(table)[0] == 90
    table.upsert([tracked_row("a", 200)])
    assert watermarks(table)[0] == 150


def test_a_query_may_ask_for_another_lateness() -> None:
    table = watermark_table()
    late_log(table)
    assert watermarks(table, {LATENESS: "0"}) == (100, 59)
    assert watermarks(table, {LATENESS: "30ms"}) == (70, 59)
    assert freshness_with(table, {LATENESS: "off"}).definition is CompletionDefinition.LAST_COMMIT
    assert watermarks(table) == (90, 90)


@pytest.mark.parametrize("value", ["soon", "-1h", ""])
def test_what_is_no_lateness_is_refused_before_anything_is_written(value: str) -> None:
    table = tracked_table()
    with pytest.raises(InvalidError, match=LATENESS):
        table.upsert([tracked_row("a", 10)], {LATENESS: value})
    assert len(load_snapshot(table.storage).timeline) == 0


def test_a_commit_of_another_writer_advances_the_watermark() -> None:
    """It records event times, as Hudi does, and neither a lateness nor late rows."""
    table = watermark_table()
    base_files(table)
    commit = table.upsert([tracked_row("z", 200, NEXT_DAY)])
    without_records(table, commit.instant)
    assert watermarks(table) == (190, 190)
    late = table.upsert([tracked_row("z", 100, NEXT_DAY)])
    without_records(table, late.instant)
    assert watermarks(table) == (190, 190)


def without_records(table: WrittenTable, instant: str) -> None:
    """Rewrite a commit as a writer that records nothing of ours would have written it."""
    snapshot = load_snapshot(table.storage)
    completed = snapshot.timeline.by_time[instant]
    (commit,) = snapshot.commits([completed])
    extra = {key: text for key, text in commit.extra.items() if not key.startswith("lakewright.")}
    path = snapshot.timeline_path(completed)
    table.storage.replace(path, format_commit(replace(commit, extra=extra)))


def test_a_record_that_was_copied_from_another_commit_is_not_believed() -> None:
    record = WatermarkRecord("20260101000000000", 10, 5, {DAY: 3})
    extra = {WATERMARK_KEY: format_watermark_record(record)}
    assert parse_watermark_record(extra, record.at) == record
    assert parse_watermark_record(extra, "20260102000000000") is None
    for text in ("", "{", "[]", "7", '{"at":"1"}'):
        assert parse_watermark_record({WATERMARK_KEY: text}, "1") is None


def test_rows_are_late_by_the_watermark_when_their_write_began() -> None:
    """Another writer passes them while they are written: they hold what is not compacted."""
    several = {**NO_SERVICES, "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
    table = watermark_table(write_options=several)
    base_files(table)

    def overtake() -> None:
        table.upsert([tracked_row("y", 500, "2026-01-03")])

    table.upsert([tracked_row("a", 60)], before_commit=overtake)
    assert watermarks(table) == (490, 490)
    assert freshness_with(table).late_rows == 0
    table.upsert([tracked_row("x", 600, "2026-01-03")])
    assert watermarks(table) == (590, 490)
    compact(table)
    assert watermarks(table) == (590, 590)


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_the_watermark_costs_a_commit_no_storage_call(table_type: str) -> None:
    calls = []
    for lateness in ("off", "10ms"):
        table = watermark_table(lateness, table_type=table_type)
        for time in range(10, 60, 10):
            table.upsert([tracked_row("a", time), tracked_row("z", time, NEXT_DAY)])
        table.storage = counting = CountingStorage(table.storage)
        table.upsert([tracked_row("a", 5)])
        calls.append(dict(counting.calls))
    assert calls[0] == calls[1]


MIDNIGHT = round(datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1000) - TIME_ZERO
SUCCESS = {"lakewright.partition.done.mark": "success_file"}


def marks(table: WrittenTable) -> list[str]:
    return [file.path for file in table.storage.list_tree("") if file.name == "_SUCCESS"]


def test_partitions_are_marked_by_the_watermark() -> None:
    """Every commit has a row of the evening before, so that completion alone never passes."""
    table = watermark_table(write_options=SUCCESS)
    table.upsert([tracked_row("a", MIDNIGHT - 5), tracked_row("z", MIDNIGHT + 5, NEXT_DAY)])
    assert marks(table) == []
    third = "2026-01-03"
    table.upsert([tracked_row("x", MIDNIGHT - 1, third), tracked_row("y", MIDNIGHT + 9, third)])
    assert marks(table) == []
    table.upsert([tracked_row("v", MIDNIGHT - 2, NEXT_DAY), tracked_row("w", MIDNIGHT + 11, third)])
    assert marks(table) == [f"{DAY}/_SUCCESS"]


def test_the_commit_of_late_rows_does_not_mark_their_partition() -> None:
    table = watermark_table(write_options=SUCCESS)
    table.upsert([tracked_row("z", MIDNIGHT + 50, NEXT_DAY)])
    late = table.upsert([tracked_row("a", MIDNIGHT - 5)])
    assert marks(table) == []
    assert late.metrics["watermark.lateRows"] == 1
    table.upsert([tracked_row("z", MIDNIGHT + 60, NEXT_DAY)])
    assert marks(table) == [f"{DAY}/_SUCCESS"]


def test_every_interface_says_which_definition_it_shows() -> None:
    table = watermark_table()
    commit = table.upsert([tracked_row("a", 50)])
    late = table.upsert([tracked_row("a", 20)])
    assert commit.metrics["snapshot.watermark"] == TIME_ZERO + 40
    assert late.metrics["watermark.lateRows"] == 1
    assert late.metrics["watermark.lateness"] == 10
    freshness = freshness_with(table)
    properties = catalog_properties(freshness)
    assert properties["lakewright.completion.definition"] == "watermark"
    assert properties["lakewright.snapshot.watermark"] == str(TIME_ZERO + 40)
    assert properties["lakewright.completion.late_rows"] == "1"
    document = freshness_document(freshness, partitions=True)
    assert (document["definition"], document["lateness_ms"], document["late_rows"]) == (
        "watermark",
        10,
        1,
    )
    assert document["views"][0]["watermark"] == TIME_ZERO + 40
    assert document["partitions"][0]["watermark"] == TIME_ZERO + 40
    other = catalog_properties(freshness_with(tracked_table()))
    assert other["lakewright.completion.definition"] == "last_commit"
    assert other["lakewright.completion.late_rows"] is None
