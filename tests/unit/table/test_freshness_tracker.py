"""Completion and freshness that commits store: correct with concurrent writers, and cheap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest

from lakewright.errors import CorruptError, UnavailableError
from lakewright.format.timeline_metadata import format_commit, format_compaction_plan
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.file_group import LogFile
from lakewright.model.freshness import FRESHNESS_KEY, FreshnessRecord, parse_freshness_record
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import CompactionPlan
from lakewright.storage.base import Storage
from lakewright.table.freshness import blocking_log_files
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
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
from support.tables import NO_SERVICES, WrittenTable

THIRD = "2026-01-03"
SEVERAL = {
    **NO_SERVICES,
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
}


def shared(table_type: str = "MERGE_ON_READ") -> WrittenTable:
    """A table of several writers, with base files for two days and one log file."""
    table = tracked_table(table_type, write_options=SEVERAL)
    table.upsert([tracked_row("a", 10), tracked_row("z", 20, NEXT_DAY)])
    table.upsert([tracked_row("a", 100)])
    return table


def freshness_records(table: WrittenTable) -> list[FreshnessRecord | None]:
    """The freshness record of each commit, in the order of completion."""
    snapshot = load_snapshot(table.storage)
    commits = snapshot.commits(snapshot.timeline.by_completion)
    return [parse_freshness_record(commit.extra) for commit in commits]


def without_memory(table: WrittenTable) -> tuple[ViewTimes, ViewTimes | None, ViewTimes | None]:
    with ignoring_freshness_records():
        return everything(table)


def everything(table: WrittenTable) -> tuple[ViewTimes, ViewTimes | None, ViewTimes | None]:
    return (
        view_times(table),
        partition_view_times(table, DAY),
        partition_view_times(table, NEXT_DAY),
    )


def log_elsewhere(table: WrittenTable) -> None:
    table.upsert([tracked_row("z", 60, NEXT_DAY)])


def untracked_log_elsewhere(table: WrittenTable) -> None:
    table.upsert([tracked_row("z", 60, NEXT_DAY)], untracked_options(table))


def compaction(table: WrittenTable) -> None:
    assert table.services(COMPACT_EVERY_COMMIT).run("compaction")


def untracked_compaction(table: WrittenTable) -> None:
    assert table.services({**COMPACT_EVERY_COMMIT, **untracked_options(table)}).run("compaction")


def deletion(table: WrittenTable) -> None:
    table.delete_partitions(DAY)


def other_deletion(table: WrittenTable) -> None:
    table.delete_partitions(NEXT_DAY)


CONCURRENT: dict[str, tuple[Callable[[WrittenTable], None], ViewTimes]] = {
    "a log file of another writer": (log_elsewhere, (500, 500, 59, 500)),
    "a log file without event times": (untracked_log_elsewhere, (500, 500, None, 500)),
    "a compaction": (compaction, (500, 500, 500, 500)),
    "a compaction that keeps nothing": (untracked_compaction, (500, 500, 500, 500)),
    "a deleted partition": (deletion, (500, 500, 500, 500)),
}


@pytest.mark.parametrize(("act", "expected"), CONCURRENT.values(), ids=list(CONCURRENT))
def test_a_commit_counts_what_completed_while_it_was_written(
    act: Callable[[WrittenTable], None], expected: ViewTimes
) -> None:
    table = shared()
    table.upsert([tracked_row("y", 500, THIRD)], before_commit=lambda: act(table))
    assert view_times(table) == expected
    newest = freshness_records(table)[-1]
    assert newest is not None
    assert newest.watermarks.ro_completion == table_freshness(table).read_optimized.completion
    assert everything(table) == without_memory(table)


def test_archiving_while_a_write_is_under_way_changes_nothing() -> None:
    table = shared()
    for time in range(110, 180, 10):
        table.upsert([tracked_row("a", time)])
    before = len(load_snapshot(table.storage).timeline.completed_writes)

    def archive() -> None:
        keep = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
        assert table.services({**keep, "hoodie.clean.commits.retained": "1"}).run("archive")

    table.upsert([tracked_row("y", 500, THIRD)], before_commit=archive)
    assert len(load_snapshot(table.storage).timeline.completed_writes) < before
    assert view_times(table) == (500, 500, 99, 500)
    assert everything(table) == without_memory(table)


COMPACTED: dict[str, tuple[Callable[[WrittenTable], None], ViewTimes]] = {
    "a log file of another writer waits": (log_elsewhere, (60, 100, 59, 100)),
    "one without event times makes it unknown": (untracked_log_elsewhere, (None, 100, None, 100)),
    "a deleted partition does not count": (other_deletion, (100, 100, 100, 100)),
}


@pytest.mark.parametrize(("act", "expected"), COMPACTED.values(), ids=list(COMPACTED))
def test_a_compaction_counts_what_completed_while_it_ran(
    act: Callable[[WrittenTable], None], expected: ViewTimes
) -> None:
    table = shared()
    runner = table.services(COMPACT_EVERY_COMMIT)
    planned = runner.schedule("compaction")
    assert isinstance(planned, Instant)
    act(table)
    runner.execute(planned.requested_at)
    assert view_times(table) == expected
    assert everything(table) == without_memory(table)


def test_values_are_not_believed_once_a_write_under_them_was_rolled_back() -> None:
    """Two slow writers complete after a quick compaction, which is rolled back then."""
    table = shared()
    instants: list[str] = []

    def quick() -> None:
        commit = table.services(COMPACT_EVERY_COMMIT).run("compaction")
        instants.append(commit.instant)  # type: ignore[union-attr]

    def slow() -> None:
        table.upsert([tracked_row("x", 400, "2026-01-04")], before_commit=quick)

    table.upsert([tracked_row("y", 500, THIRD)], before_commit=slow)
    assert view_times(table) == (500, 500, 500, 500)
    table.writer().rollback(instants[0])
    assert view_times(table) == (500, 500, 99, 500)
    table.upsert([tracked_row("y", 600, THIRD)])
    assert view_times(table) == (600, 600, 99, 500)


class Silent(CountingStorage):
    """Does not carry out the first request for a completed file and sends no answer."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.requests: list[tuple[str, bytes]] = []

    def create(self, path: str, data: bytes) -> None:
        if path.endswith(".deltacommit"):
            self.requests.append((path, data))
            if len(self.requests) == 1:
                raise UnavailableError("no answer")
        super().create(path, data)


def test_an_unanswered_commit_is_retried_once_with_the_same_bytes() -> None:
    table = shared()
    inner = table.storage
    table.storage = silent = Silent(inner)
    table.upsert([tracked_row("z", 60, NEXT_DAY)])
    table.storage = inner
    assert len(silent.requests) == 2
    assert silent.requests[0] == silent.requests[1]
    assert view_times(table) == (60, 100, 59, 20)


def test_a_commit_succeeds_if_freshness_cannot_be_computed() -> None:
    table = shared()
    broken = CorruptError("an old commit cannot be read")
    with (
        patch("lakewright.table.freshness_tracker.load_state", side_effect=broken),
        pytest.warns(RuntimeWarning, match="does not record completion"),
    ):
        table.upsert([tracked_row("z", 60, NEXT_DAY)])
    assert freshness_records(table)[-1] is None
    assert view_times(table) == (60, 100, 59, 20)
    table.upsert([tracked_row("z", 70, NEXT_DAY)])
    assert freshness_records(table)[-1] is not None
    assert view_times(table) == (70, 100, 59, 20)


def commit_reads(storage: CountingStorage) -> list[str]:
    """The reads of completed timeline files."""
    return [
        path
        for method, path in storage.touched
        if method.startswith("read") and "/timeline/" in path and "commit" in path and "_" in path
    ]


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_an_ordinary_commit_reads_one_commit_more_at_most(table_type: str) -> None:
    calls = {}
    for name in ("tracked", "not tracked"):
        table = tracked_table(table_type)
        for time in range(10, 60, 10):
            table.upsert([tracked_row("a", time), tracked_row("z", time, NEXT_DAY)])
        counting = CountingStorage(table.storage)
        table.storage = counting
        table.upsert([tracked_row("a", 90)], {} if name == "tracked" else untracked_options(table))
        calls[name] = sum(counting.calls.values())
        assert len(commit_reads(counting)) <= 1
    assert calls["tracked"] <= calls["not tracked"] + 1


def test_a_long_search_backwards_reads_several_commits_at_once() -> None:
    table = tracked_table()
    table.upsert([tracked_row("a", 10)])
    for time in range(20, 420, 10):
        table.upsert([tracked_row("a", time)], untracked_options(table))
    counting = CountingStorage(table.storage)
    blocking_log_files(load_snapshot(counting), 1)
    assert len(commit_reads(counting)) >= 40
    assert counting.calls["read_many"] <= 8


def test_a_compaction_lists_no_partition_that_cannot_have_log_files() -> None:
    table = tracked_table()
    table.upsert([tracked_row(f"k{n}", n, f"2026-02-{n:02d}") for n in range(1, 21)])
    compacted_first = table.services(COMPACT_EVERY_COMMIT)
    table.upsert([tracked_row("k1", 30, "2026-02-01")])
    assert compacted_first.run("compaction")
    table.upsert([tracked_row("k2", 40, "2026-02-02")])
    counting = CountingStorage(table.storage)
    table.storage = counting
    assert table.services(COMPACT_EVERY_COMMIT).run("compaction")
    listed = {path for method, path in counting.touched if method == "list_many"}
    assert {path for path in listed if path.startswith("2026-02")} == {"2026-02-02"}
    assert view_times(table) == (40, 40, 40, 40)


def many_logs(*, commits: int, logs: int, with_files: bool) -> CountingStorage:
    """A table whose timeline is built with log files; the files exist on request."""
    table = tracked_table()
    table.upsert([tracked_row("a", 1)])
    first = load_snapshot(table.storage).timeline.by_completion[-1]
    for number in range(commits):
        instant = str(int(first.completed_at or "") + 1 + 2 * number)
        files = [LogFile(f"f{n}-{number}", instant, size=7) for n in range(logs)]
        stats = tuple(
            WriteStat(
                file_id=file.file_id,
                path=f"{DAY}/{file.name}",
                partition_path=DAY,
                num_writes=1,
                num_inserts=1,
                min_event_time=TIME_ZERO + 1000 + number,
                max_event_time=TIME_ZERO + 2000 + number,
            )
            for file in files
        )
        completed = Instant(instant, Action.DELTA_COMMIT, completed_at=str(int(instant) + 1))
        commit = CommitMetadata(stats={DAY: stats}, operation="UPSERT")
        table.storage.create(f".hoodie/timeline/{completed.file_name}", format_commit(commit))
        for file in files if with_files else ():
            table.storage.create(f"{DAY}/{file.name}", b"7 bytes")
    return CountingStorage(table.storage)


def test_ten_thousand_log_files_cost_their_commits_and_nothing_else() -> None:
    storage = many_logs(commits=100, logs=100, with_files=False)
    assert view_times(storage) == (1099, 2099, 999, 1)
    assert len(commit_reads(storage)) == len(set(commit_reads(storage))) == 101
    assert {path for method, path in storage.touched if not path.startswith(".hoodie")} == set()


def test_the_values_of_the_last_commit_are_reused() -> None:
    storage = many_logs(commits=100, logs=100, with_files=False)
    table = WrittenTable(storage=storage, options=NO_SERVICES)
    table.clock.sleep(3600)
    table.upsert([tracked_row("z", 5000, NEXT_DAY)])
    assert (
        FRESHNESS_KEY
        in load_snapshot(storage)
        .commits(load_snapshot(storage).timeline.by_completion[-1:])[0]
        .extra
    )
    storage.reset()
    assert view_times(storage) == (5000, 5000, 999, 5000)
    assert len(commit_reads(storage)) == 1
    storage.reset()
    assert partition_view_times(storage, NEXT_DAY) is not None
    table.upsert([tracked_row("z", 6000, NEXT_DAY)])
    storage.reset()
    assert view_times(storage) == (6000, 6000, 999, 5000)
    assert len(commit_reads(storage)) == 1


def test_what_holds_back_reads_commits_and_nothing_else() -> None:
    storage = many_logs(commits=100, logs=100, with_files=True)
    log_files = blocking_log_files(load_snapshot(storage), 10**6)
    assert len(log_files) == 10_000
    assert (log_files[0].event_time, log_files[-1].event_time, log_files[0].size) == (
        TIME_ZERO + 1000,
        TIME_ZERO + 1099,
        7,
    )
    reads = [path for method, path in storage.touched if method.startswith("read")]
    assert [path for path in reads if not path.startswith(".hoodie")] == []
    assert len(commit_reads(storage)) == len(set(commit_reads(storage))) == 101


def only(day: str) -> dict[str, str]:
    return {
        **COMPACT_EVERY_COMMIT,
        "hoodie.compaction.strategy": "partition_regex",
        "hoodie.compaction.partition.path.regex": day,
    }


def remove_missing_partitions(table: WrittenTable) -> None:
    """Rewrite the last plan as real Hudi's strategies by partition would have made it."""
    snapshot = load_snapshot(table.storage)
    at_ = max(snapshot.timeline.plans)
    plan = snapshot.plan_of(at_, Action.COMPACTION)
    assert isinstance(plan, CompactionPlan)
    assert plan.missing_partitions
    path = snapshot.timeline_path(Instant(at_, Action.COMPACTION, State.REQUESTED))
    table.storage.replace(path, format_compaction_plan(replace(plan, missing_partitions=())))


@pytest.mark.parametrize("tracks", [True, False], ids=["ours", "of one that keeps nothing"])
def test_what_a_plan_forgot_still_waits(tracks: bool) -> None:
    table = shared()
    table.upsert([tracked_row("z", 160, NEXT_DAY)])
    runner = table.services({**only(NEXT_DAY), **({} if tracks else untracked_options(table))})
    planned = runner.schedule("compaction")
    assert isinstance(planned, Instant)
    remove_missing_partitions(table)
    runner.execute(planned.requested_at)
    assert view_times(table) == (160, 160, 99, 160)
    table.upsert([tracked_row("z", 170, NEXT_DAY)])
    assert table.services(COMPACT_EVERY_COMMIT).run("compaction")
    assert view_times(table) == (170, 170, 99, 170)
    assert [
        log_file.event_time for log_file in blocking_log_files(load_snapshot(table.storage), 9)
    ] == [TIME_ZERO + 100]


def test_where_partitions_are_too_many_to_list_plans_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakewright.table.freshness._MAX_LISTED_PARTITIONS", 1)
    table = tracked_table()
    days = [f"2026-02-{n:02d}" for n in range(1, 6)]
    table.upsert([tracked_row(day, 10, day) for day in days])
    table.upsert([tracked_row(day, 20, day) for day in days])
    newest = freshness_records(table)[-1]
    assert newest is not None
    assert newest.logs_in is None
    assert len(blocking_log_files(load_snapshot(table.storage), 9)) == 5
    assert table.services(only("01$")).run("compaction")
    assert view_times(table) == (20, 20, 19, 20)
    table.upsert([tracked_row(days[0], 25, days[0])])
    assert table.services(COMPACT_EVERY_COMMIT).run("compaction")
    assert view_times(table) == (25, 25, 25, 25)
    newest = freshness_records(table)[-1]
    assert newest is not None
    assert newest.logs_in == frozenset()
