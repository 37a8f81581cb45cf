"""Completion and freshness of the two views, computed from commits."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from lakewright.model.event_time import time_text
from lakewright.model.freshness import (
    FRESHNESS_KEY,
    CompletionRegression,
    ViewFreshness,
    parse_freshness_record,
)
from lakewright.storage.local import LocalStorage
from lakewright.table.freshness import blocking_log_files
from lakewright.table.snapshot import load_snapshot
from support.event_times import (
    COMPACT_EVERY_COMMIT,
    DAY,
    NEXT_DAY,
    TIME_ZERO,
    ViewTimes,
    ignoring_freshness_records,
    partition_view_times,
    table_freshness,
    tracked_row,
    tracked_table,
    untracked_options,
    view_times,
)
from support.golden import GoldenTables
from support.tables import WrittenTable

CLUSTER_ALL = {
    "hoodie.clustering.inline.max.commits": "1",
    "hoodie.clustering.plan.strategy.small.file.limit": "1000000000",
}


def compact(table: WrittenTable) -> None:
    assert table.services(COMPACT_EVERY_COMMIT).run("compaction")


def nothing(table: WrittenTable) -> None:
    del table


def base_files(table: WrittenTable) -> None:
    table.upsert([tracked_row("a", 10), tracked_row("b", 20)])


def base_and_log(table: WrittenTable) -> None:
    base_files(table)
    table.upsert([tracked_row("a", 40), tracked_row("b", 50)])


def two_logs(table: WrittenTable) -> None:
    base_and_log(table)
    table.upsert([tracked_row("a", 70)])


def compacted(table: WrittenTable) -> None:
    two_logs(table)
    compact(table)


def written_after_compaction(table: WrittenTable) -> None:
    compacted(table)
    table.upsert([tracked_row("a", 90)])


def late_log(table: WrittenTable) -> None:
    compacted(table)
    table.upsert([tracked_row("b", 30)])
    table.upsert([tracked_row("a", 100)])


def deleted_rows(table: WrittenTable) -> None:
    base_and_log(table)
    table.write("DELETE", [tracked_row("a", 0)])


def deleted_and_compacted(table: WrittenTable) -> None:
    deleted_rows(table)
    compact(table)


def log_without_times(table: WrittenTable) -> None:
    base_and_log(table)
    table.upsert([tracked_row("a", 80)], untracked_options(table))


def log_without_times_compacted(table: WrittenTable) -> None:
    log_without_times(table)
    compact(table)


def compacted_by_one_without_times(table: WrittenTable) -> None:
    two_logs(table)
    assert table.services({**COMPACT_EVERY_COMMIT, **untracked_options(table)}).run("compaction")


def pending_compaction(table: WrittenTable) -> None:
    two_logs(table)
    assert table.services(COMPACT_EVERY_COMMIT).schedule("compaction")


def overwritten(table: WrittenTable) -> None:
    two_logs(table)
    table.write("INSERT_OVERWRITE", [tracked_row("c", 65)])


def partition_deleted(table: WrittenTable) -> None:
    base_and_log(table)
    table.upsert([tracked_row("z", 25, NEXT_DAY)])
    table.upsert([tracked_row("z", 28, NEXT_DAY)])
    table.delete_partitions(NEXT_DAY)


def clustered(table: WrittenTable) -> None:
    base_files(table)
    table.upsert([tracked_row("a", 40)])
    assert table.services(CLUSTER_ALL).run("clustering")


def log_compacted(table: WrittenTable) -> None:
    two_logs(table)
    assert table.services({"hoodie.log.compaction.blocks.threshold": "1"}).run("logcompaction")


def rolled_back(table: WrittenTable) -> None:
    two_logs(table)
    table.writer().rollback(table.upsert([tracked_row("a", 5), tracked_row("b", 500)]).instant)


def compaction_rolled_back(table: WrittenTable) -> None:
    two_logs(table)
    commit = table.services(COMPACT_EVERY_COMMIT).run("compaction")
    table.writer().rollback(commit.instant)  # type: ignore[union-attr]


def archived(table: WrittenTable) -> None:
    two_logs(table)
    for time in range(110, 160, 10):
        table.upsert([tracked_row("a", time)])
    keep = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
    assert table.services({**keep, "hoodie.clean.commits.retained": "1"}).run("archive")


BY_EVENT_TIME = {
    **COMPACT_EVERY_COMMIT,
    "hoodie.compaction.strategy": "event_time",
    "hoodie.compaction.event.time.threshold": time_text(TIME_ZERO + 250),
}
EXACT = {**BY_EVENT_TIME, "hoodie.compaction.event.time.exact.split": "true"}


def compacted_by_event_time(table: WrittenTable) -> None:
    two_logs(table)
    table.clock.sleep(1)
    table.upsert([tracked_row("b", 300)])
    assert table.services(BY_EVENT_TIME).run("compaction")


def compacted_by_event_time_twice(table: WrittenTable) -> None:
    compacted_by_event_time(table)
    table.clock.sleep(1)
    table.upsert([tracked_row("a", 200)])
    table.clock.sleep(1)
    table.upsert([tracked_row("a", 400)])
    compact(table)
    table.upsert([tracked_row("a", 500)])


def split_exactly(table: WrittenTable) -> None:
    base_files(table)
    table.upsert([tracked_row("a", 40), tracked_row("b", 300)])
    assert table.services(EXACT).run("compaction")


def split_and_deleted(table: WrittenTable) -> None:
    base_files(table)
    table.write("DELETE", [tracked_row("a", 0)])
    table.upsert([tracked_row("b", 300)])
    assert table.services(EXACT).run("compaction")


def split_and_written_on(table: WrittenTable) -> None:
    split_exactly(table)
    table.upsert([tracked_row("z", 600, NEXT_DAY)])
    table.upsert([tracked_row("z", 700, NEXT_DAY)])
    only = {
        **COMPACT_EVERY_COMMIT,
        "hoodie.compaction.strategy": "partition_regex",
        "hoodie.compaction.partition.path.regex": NEXT_DAY,
    }
    assert table.services(only).run("compaction")


def seconds(table: WrittenTable) -> None:
    table.upsert(
        [{**tracked_row("a", 0), "ts": TIME_ZERO // 1000 + 7}, {**tracked_row("b", 0), "ts": 12345}]
    )


ALL: dict[str, tuple[Callable[[WrittenTable], None], ViewTimes]] = {
    "of an empty table nothing is known": (nothing, (None, None, None, None)),
    "without log files both views are complete alike": (base_files, (10, 20, 10, 20)),
    "a log file holds the read-optimized view back": (base_and_log, (40, 50, 39, 20)),
    "snapshot completion is that of the last commit": (two_logs, (70, 70, 39, 20)),
    "after a compaction both views are alike": (compacted, (70, 70, 70, 70)),
    "only what came since waits": (written_after_compaction, (90, 90, 89, 70)),
    "a late log file lets completion fall": (late_log, (100, 100, 29, 70)),
    "a log file of deletes alone makes it unknown": (deleted_rows, (40, 50, None, 20)),
    "once deletes are compacted it is known": (deleted_and_compacted, (40, 50, 40, 50)),
    "a log file without event times makes all unknown": (log_without_times, (None, 50, None, 20)),
    "what a compaction puts into base files is known": (
        log_without_times_compacted, (None, 50, None, 80)),
    "a compaction without times contains what its log files held": (
        compacted_by_one_without_times, (70, 70, 70, 70)),
    "log files under a pending compaction still wait": (pending_compaction, (70, 70, 39, 20)),
    "log files of replaced groups do not wait": (overwritten, (65, 70, 65, 65)),
    "log files of deleted partitions do not wait": (partition_deleted, (28, 50, 28, 25)),
    "clustering keeps what was known": (clustered, (40, 40, 40, 40)),
    "a log compaction replaces log files": (log_compacted, (70, 70, 49, 20)),
    "what was rolled back does not count": (rolled_back, (70, 70, 39, 20)),
    "a compaction that was rolled back leaves log files": (
        compaction_rolled_back, (70, 70, 39, 20)),
    "archived log files still wait": (archived, (150, 150, 39, 20)),
    "a compaction by event time leaves what is newer": (
        compacted_by_event_time, (300, 300, 299, 70)),
    "the next compaction takes it": (
        compacted_by_event_time_twice, (500, 500, 499, 400)),
    "rows that an exact split held back wait": (split_exactly, (40, 300, 40, 40)),
    "deletes that it carried over do not": (split_and_deleted, (300, 300, 299, 20)),
    "what was held back waits until its partition is compacted": (
        split_and_written_on, (700, 700, 299, 700)),
    "ten digits are seconds, other lengths are no times": (seconds, (7000, 7000, 7000, 7000)),
}  # fmt: skip


@pytest.mark.parametrize(("history", "expected"), ALL.values(), ids=list(ALL))
def test_freshness_of_both_views(
    history: Callable[[WrittenTable], None], expected: ViewTimes
) -> None:
    table = tracked_table()
    history(table)
    assert view_times(table) == expected


def base_files_beyond_the_threshold(table: WrittenTable) -> None:
    base_files(table)
    table.clock.sleep(1)
    table.upsert([tracked_row("z", 320, NEXT_DAY), tracked_row("y", 330, NEXT_DAY)])


def taken_out_again(table: WrittenTable) -> None:
    base_files_beyond_the_threshold(table)
    table.clock.sleep(1)
    assert table.services(EXACT).run("compaction")


def taken_out_beside_older_logs(table: WrittenTable) -> None:
    base_files(table)
    table.upsert([tracked_row("a", 70)])
    table.clock.sleep(1)
    table.upsert([tracked_row("z", 320, NEXT_DAY), tracked_row("y", 330, NEXT_DAY)])
    assert table.services(EXACT).run("compaction")


# The case of each: rows, and from where completion of the read-optimized view fell.
IN_BUCKETS: dict[str, tuple[Callable[[WrittenTable], None], ViewTimes, int | None]] = {
    "rows of base files are complete in both views": (
        base_files_beyond_the_threshold, (320, 330, 320, 330), None),
    "an exact split below completion takes rows out of the view, and completion says so": (
        taken_out_again, (320, 330, 319, 330), 320),
    "an exact split above completion does not lower it": (
        taken_out_beside_older_logs, (320, 330, 319, 330), None),
}  # fmt: skip


@pytest.mark.parametrize(("history", "expected", "fell"), IN_BUCKETS.values(), ids=list(IN_BUCKETS))
def test_freshness_where_rows_leave_base_files(
    history: Callable[[WrittenTable], None], expected: ViewTimes, fell: int | None
) -> None:
    table = tracked_table(
        options={"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
    )
    history(table)
    regression = table_freshness(table).regression
    assert (view_times(table), None if regression is None else regression.before - TIME_ZERO) == (
        expected,
        fell,
    )
    assert regression is None or (regression.cause is not None and regression.cause.event_time)
    with ignoring_freshness_records():
        assert view_times(table) == expected


@pytest.mark.parametrize("history", [history for history, _ in ALL.values()], ids=list(ALL))
def test_freshness_is_the_same_without_what_commits_record(
    history: Callable[[WrittenTable], None],
) -> None:
    table = tracked_table()
    history(table)
    recorded = view_times(table), partition_view_times(table, DAY)
    with ignoring_freshness_records():
        assert (view_times(table), partition_view_times(table, DAY)) == recorded


PARTITIONS: dict[str, tuple[Callable[[WrittenTable], None], ViewTimes | None, ViewTimes | None]] = {
    "each has its own": (
        partition_deleted, (40, 50, 39, 20), None),
    "a compaction of all leaves none waiting": (
        compacted, (70, 70, 70, 70), None),
    "archiving changes nothing": (
        archived, (150, 150, 39, 20), None),
}  # fmt: skip


def both_days(table: WrittenTable) -> None:
    table.upsert([tracked_row("a", 10), tracked_row("z", 200, NEXT_DAY)])
    table.upsert([tracked_row("a", 30)])
    table.upsert([tracked_row("z", 220, NEXT_DAY)])


def one_day_compacted(table: WrittenTable) -> None:
    both_days(table)
    only = {
        **COMPACT_EVERY_COMMIT,
        "hoodie.compaction.strategy": "partition_regex",
        "hoodie.compaction.partition.path.regex": NEXT_DAY,
    }
    assert table.services(only).run("compaction")


def one_day_overwritten(table: WrittenTable) -> None:
    both_days(table)
    table.write("INSERT_OVERWRITE", [tracked_row("y", 300, NEXT_DAY)])


def one_day_back_again(table: WrittenTable) -> None:
    both_days(table)
    table.delete_partitions(NEXT_DAY)
    table.upsert([tracked_row("y", 300, NEXT_DAY)])


def all_overwritten(table: WrittenTable) -> None:
    both_days(table)
    table.write("INSERT_OVERWRITE_TABLE", [tracked_row("y", 300, NEXT_DAY)])


def untouched_for_long(table: WrittenTable) -> None:
    both_days(table)
    for time in range(310, 350, 10):
        table.upsert([tracked_row("y", time, NEXT_DAY)])
    keep = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
    assert table.services({**keep, "hoodie.clean.commits.retained": "1"}).run("archive")


PARTITIONS |= {
    "the last commit that wrote it counts": (
        both_days, (30, 30, 29, 10), (220, 220, 219, 200)),
    "a compaction of one leaves the other waiting": (
        one_day_compacted, (30, 30, 29, 10), (220, 220, 220, 220)),
    "an overwritten one has the times of the overwrite": (
        one_day_overwritten, (30, 30, 29, 10), (300, 300, 300, 300)),
    "one that was deleted and written again has only the new": (
        one_day_back_again, (30, 30, 29, 10), (300, 300, 300, 300)),
    "a partition that an overwrite removed has none": (
        all_overwritten, None, (300, 300, 300, 300)),
    "one whose commits are all archived is found in history": (
        untouched_for_long, (30, 30, 29, 10), (340, 340, 219, 310)),
}  # fmt: skip


@pytest.mark.parametrize(("history", "first", "second"), PARTITIONS.values(), ids=list(PARTITIONS))
def test_what_is_reported_of_partitions(
    history: Callable[[WrittenTable], None], first: ViewTimes | None, second: ViewTimes | None
) -> None:
    table = tracked_table()
    history(table)
    assert (partition_view_times(table, DAY), partition_view_times(table, NEXT_DAY)) == (
        first,
        second,
    )
    there = [day for day, freshness in ((DAY, first), (NEXT_DAY, second)) if freshness is not None]
    partitions = table_freshness(table).partitions
    assert (list(partitions), len(partitions)) == (there, len(there))
    assert partition_view_times(table, "2099-01-01") is None


def test_a_table_of_real_hudi_is_measured(golden: GoldenTables) -> None:
    """Three base files, then a log file for each of them."""
    freshness = table_freshness(LocalStorage(str(golden["mor_event_time_stats"])))
    assert freshness.snapshot == ViewFreshness(1767312000000, 1767312420000)
    assert freshness.read_optimized == ViewFreshness(1767311999999, 1767226980000)
    days = [partition.read_optimized.completion for partition in freshness.partitions.values()]
    assert days == [1767311999999, 1767312059999, 1767312119999]


def test_a_table_of_real_hudi_without_event_times_has_no_freshness(golden: GoldenTables) -> None:
    freshness = table_freshness(LocalStorage(str(golden["mor_compacted"])))
    assert (freshness.snapshot, freshness.read_optimized) == (ViewFreshness(), ViewFreshness())
    assert len(freshness.partitions) == 3


def test_a_copy_on_write_table_has_nothing_that_waits() -> None:
    table = tracked_table("COPY_ON_WRITE")
    table.upsert([tracked_row("a", 10), tracked_row("b", 20)])
    table.upsert([tracked_row("a", 40)])
    assert view_times(table) == (40, 40, 40, 40)
    assert blocking_log_files(load_snapshot(table.storage), 10) == ()


def test_a_table_that_does_not_track_event_times_keeps_nothing() -> None:
    table = WrittenTable().create("MERGE_ON_READ")
    table.upsert([tracked_row("a", 10)])
    commits = load_snapshot(table.storage)
    assert [FRESHNESS_KEY in c.extra for c in commits.commits(commits.timeline.by_completion)] == [
        False
    ]
    assert view_times(table) == (None, None, None, None)


def test_every_fall_is_explained() -> None:
    table = tracked_table()
    compacted(table)
    assert table_freshness(table).regression is None
    late = table.upsert([tracked_row("b", 30)])
    fell = table_freshness(table).regression
    assert fell is not None
    assert fell.cause is not None
    assert (fell.before, fell.cause.event_time, fell.cause.instant) == (
        TIME_ZERO + 70,
        TIME_ZERO + 30,
        late.instant,
    )
    assert table_freshness(table).uncompacted_logs == fell.cause
    table.upsert([tracked_row("a", 100)])
    assert table_freshness(table).regression is None
    delete = table.write("DELETE", [tracked_row("a", 0)])
    fell = table_freshness(table).regression
    assert fell is not None
    assert fell.cause is not None
    assert (fell.cause.instant, fell.cause.event_time) == (delete.instant, None)


def test_a_compaction_does_not_lower_completion() -> None:
    """The log file is newer than the late row, which is in a base file already."""
    table = tracked_table()
    table.upsert([tracked_row("a", 10)])
    table.upsert([tracked_row("a", 100)])
    table.upsert([tracked_row("z", 50, NEXT_DAY)])
    assert view_times(table) == (50, 100, 50, 50)
    compact(table)
    assert view_times(table) == (50, 100, 50, 100)
    assert table_freshness(table).regression is None


def test_a_fall_without_log_files_has_no_log_file_to_blame() -> None:
    table = tracked_table("COPY_ON_WRITE")
    table.upsert([tracked_row("a", 50)])
    table.upsert([tracked_row("b", 20)])
    assert table_freshness(table).regression == CompletionRegression(TIME_ZERO + 50, None)


def test_event_times_in_the_future_are_flagged() -> None:
    table = tracked_table()
    soon = table.clock.now_ms() + 60_000
    table.upsert(
        [
            tracked_row("a", 10),
            tracked_row("z", soon - TIME_ZERO, NEXT_DAY),
            tracked_row("y", soon + 999 - TIME_ZERO, NEXT_DAY),
        ]
    )
    table.upsert([tracked_row("a", 20)])
    assert table_freshness(table, future_from_ms=soon).future == ((NEXT_DAY, soon + 999),)
    assert table_freshness(table, future_from_ms=soon + 999).future == ()
    assert table_freshness(table).snapshot.freshness == soon + 999


def test_blocking_log_files_are_reported_the_worst_first() -> None:
    table = tracked_table()
    base_and_log(table)
    late = table.upsert([tracked_row("b", 25)])
    delete = table.write("DELETE", [tracked_row("a", 0)])
    log_files = blocking_log_files(load_snapshot(table.storage), 2)
    assert [(log_file.instant, log_file.event_time) for log_file in log_files] == [
        (delete.instant, None),
        (late.instant, TIME_ZERO + 25),
    ]
    assert all(log_file.partition == DAY and log_file.size > 0 for log_file in log_files)
    assert {log_file.log.split("_")[0] for log_file in log_files} == {f".{log_files[0].file_id}"}
    assert len(blocking_log_files(load_snapshot(table.storage), 99)) == 3


def newest(table: WrittenTable) -> dict[str, str]:
    snapshot = load_snapshot(table.storage)
    (commit,) = snapshot.commits(snapshot.timeline.by_completion[-1:])
    return dict(commit.extra)


def test_what_a_commit_keeps_can_be_read_by_others() -> None:
    table = tracked_table()
    two_logs(table)
    tree = json.loads(newest(table)[FRESHNESS_KEY])
    commits = load_snapshot(table.storage).timeline.by_completion
    assert (tree["at"], tree["after"]) == (commits[-1].requested_at, commits[-2].requested_at)
    values = tree["table"]
    assert values["snapshot_completion"] == TIME_ZERO + 70
    assert values["read_optimized_completion"] == TIME_ZERO + 39
    assert values["waiting"]["event_time"] == TIME_ZERO + 40
    assert list(tree["partitions"]) == [DAY]
    stored = parse_freshness_record(newest(table))
    assert stored is not None
    assert stored.partitions[DAY].since == ""


COPIED = {
    "values that were copied from another commit are passed over": lambda text: text,
    "what does not parse is passed over": lambda text: text[:-5],
    "what lacks something is passed over": lambda text: '{"at": "1"}',
    "what has the wrong shape is passed over": lambda text: "[1, 2]",
}


@pytest.mark.parametrize("change", COPIED.values(), ids=list(COPIED))
def test_foreign_values_are_not_believed(change: Callable[[str], str]) -> None:
    table = tracked_table()
    base_files(table)
    text = newest(table)[FRESHNESS_KEY]
    prefix_option = {"hoodie.datasource.write.commitmeta.key.prefix": "lakewright.freshness"}
    table.upsert(
        [tracked_row("a", 40)],
        {**untracked_options(table), **prefix_option, FRESHNESS_KEY: change(text)},
    )
    assert newest(table)[FRESHNESS_KEY] == change(text)
    assert view_times(table) == (None, 20, None, 20)
