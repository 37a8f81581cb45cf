"""Compaction by event time: no query changes, and the read-optimized view is complete to a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from lakewright.errors import InvalidError
from lakewright.model.instant import Instant
from lakewright.model.plans import CANCELLABLE, EVENT_TIME_THRESHOLD, WIDENED, CompactionPlan, Skip
from lakewright.options import settings_from
from lakewright.services.compaction.event_time import EventTimeBasedCompactionStrategy
from lakewright.services.compaction.executor import BEYOND
from lakewright.services.compaction.options import CompactionSettings
from lakewright.services.compaction.planner import register_strategy
from lakewright.table.snapshot import load_snapshot
from lakewright.write.writer import Commit
from support.concurrency import InterruptedEngine, once
from support.event_times import EXACT_SPLIT, compact_before, event_row, event_time
from support.queries import BUCKET_INDEX, NON_BLOCKING, SERVICE_OPTIONS, run_queries
from support.tables import NO_SERVICES, OPTIMISTIC, WrittenTable

ARCHIVE = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}


@dataclass
class Trips(WrittenTable):
    """A merge-on-read table whose rows have event times."""

    options: Mapping[str, str] = field(default_factory=lambda: {**NO_SERVICES, **OPTIMISTIC})

    def made(self, **options: str) -> Trips:
        self.create("MERGE_ON_READ", event_time="ts", options=options)
        return self

    def plan(self, hour: float, options: Mapping[str, str] | None = None) -> CompactionPlan | Skip:
        result = self.services({**compact_before(hour), **(options or {})}).preview("compaction")
        assert isinstance(result, CompactionPlan | Skip)
        return result

    def compact(self, hour: float, options: Mapping[str, str] | None = None) -> Commit | Skip:
        """Compact, and check that queries are unchanged before, during and after."""
        before = run_queries(self.storage)
        services = self.services({**compact_before(hour), **(options or {})})
        instant = services.schedule("compaction")
        if isinstance(instant, Skip):
            return instant
        assert before.differences(run_queries(self.storage, before)) == {}, "while it was pending"
        commit = services.execute(instant.requested_at)
        assert before.differences(run_queries(self.storage, before)) == {}, "when it was done"
        return commit

    def optimized(self) -> dict[str, str]:
        return {record["id"]: record["note"] for record in self.rows(optimized=True)}

    def notes(self) -> dict[str, str]:
        return {record["id"]: record["note"] for record in self.rows()}

    def files_of(self, instant: str) -> list[str]:
        names = (path.rpartition("/")[2] for path in self.storage.files())  # type: ignore[attr-defined]
        return sorted(name for name in names if f"_{instant}." in name)

    def extra(self, outcome: Commit | Skip) -> Mapping[str, str]:
        assert isinstance(outcome, Commit)
        snapshot = load_snapshot(self.storage)
        (commit,) = snapshot.commits([snapshot.timeline.by_time[outcome.instant]])
        return commit.extra


def test_a_plan_stands_in_the_past_and_says_up_to_when_it_goes() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 1), event_row("b", 1)])
    first = table.upsert([event_row("a", 2)])
    last = table.upsert([event_row("b", 5)])
    plan = table.plan(4)
    assert isinstance(plan, CompactionPlan)
    (operation,) = plan.operations
    assert first.completed_at < (operation.next_base_instant or "") < last.instant
    assert [first.instant in log for log in operation.logs] == [True]
    assert plan.extra[EVENT_TIME_THRESHOLD] == "20251231040000000"
    commit = table.compact(4)
    assert isinstance(commit, Commit)
    assert commit.instant == operation.next_base_instant
    assert commit.instant < last.instant < commit.completed_at
    assert table.extra(commit)[EVENT_TIME_THRESHOLD] == "20251231040000000"
    assert table.optimized() == {"a": "a2", "b": "b1"}


def overlapping(table: Trips) -> None:
    """a: [--------------]     one write around two others
    b:        [--]
    c:             [--]
    """

    def others() -> None:
        table.upsert([event_row("b", 2, day="2026-01-02")])
        table.upsert([event_row("c", 3, day="2026-01-03")])

    table.upsert([event_row("a", 3)], before_commit=others)


def three_days(table: Trips) -> None:
    days = ["2026-01-01", "2026-01-02", "2026-01-03"]
    table.upsert([event_row(key, 0, day=day) for key, day in zip("abc", days, strict=True)])


OVERLAPS: dict[str, tuple[float, dict[str, str]]] = {
    "a write that overlaps is in another group, and does not matter": (
        2.5,
        {"a": "a0", "b": "b2", "c": "c0"},
    ),
    "overlapping writes in the groups of the plan are all taken": (
        3.5,
        {"a": "a3", "b": "b2", "c": "c3"},
    ),
}


@pytest.mark.parametrize(("hour", "expected"), OVERLAPS.values(), ids=list(OVERLAPS))
def test_overlapping_writes(hour: float, expected: dict[str, str]) -> None:
    table = Trips().made()
    three_days(table)
    overlapping(table)
    table.upsert([event_row("a", 9)])
    assert table.compact(hour)
    assert table.optimized() == expected


def test_a_write_under_way_makes_it_an_ordinary_compaction() -> None:
    """a: [----------------]   still under way when the plan is made
    b:       [--]
    """
    table = Trips().made()
    three_days(table)
    plans: list[CompactionPlan | Skip] = []

    def others() -> None:
        table.upsert([event_row("b", 2, day="2026-01-02")])
        plans.append(table.plan(2.5))

    under_way = table.upsert([event_row("a", 3)], before_commit=others)
    (plan,) = plans
    assert isinstance(plan, CompactionPlan)
    assert under_way.instant in plan.extra[WIDENED]
    assert all((o.next_base_instant or "") > under_way.instant for o in plan.operations)


def test_a_write_that_begins_later_does_not_matter() -> None:
    table = Trips().made()
    three_days(table)
    table.upsert([event_row("b", 2, day="2026-01-02")])
    plans: list[Commit | Skip] = []
    late = table.upsert(
        [event_row("b", 1, "late", "2026-01-02")],
        before_commit=lambda: plans.append(table.compact(2.5)),
    )
    (commit,) = plans
    assert isinstance(commit, Commit)
    assert commit.instant < late.instant
    assert table.optimized()["b"] == table.notes()["b"] == "b2"


def late_after_a_delete(table: Trips) -> None:
    table.upsert([event_row("a", 1), event_row("b", 1)])
    table.write("DELETE", [event_row("b", 4)], ordered=True)
    table.upsert([event_row("a", 5), event_row("b", 3, "late")])


@pytest.mark.parametrize("options", [{}, EXACT_SPLIT], ids=["whole", "split"])
def test_a_delete_stays_where_an_older_version_comes_late(options: Mapping[str, str]) -> None:
    table = Trips().made()
    late_after_a_delete(table)
    commit = table.compact(2, options)
    assert isinstance(commit, Commit)
    assert [".log.1_" in name for name in table.files_of(commit.instant)] == [True, False]
    assert table.notes() == {"a": "a5"}
    assert table.compact(8)
    assert table.notes() == {"a": "a5"}
    table.services(SERVICE_OPTIONS["compaction"]).run("compaction")
    assert table.notes() == {"a": "a5"}


def test_deletes_are_not_carried_where_nothing_newer_is() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 1), event_row("b", 1)])
    table.write("DELETE", [event_row("b", 4)], ordered=True)
    commit = table.compact(8)
    assert isinstance(commit, Commit)
    assert len(table.files_of(commit.instant)) == 1
    assert table.optimized() == {"a": "a1"}


def test_an_unconditional_delete_is_not_carried() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 1), event_row("b", 1)])
    table.write("DELETE", [event_row("b", 1)])
    table.upsert([event_row("a", 3)])
    commit = table.compact(2)
    assert isinstance(commit, Commit)
    assert len(table.files_of(commit.instant)) == 1
    assert table.optimized() == {"a": "a1"}
    assert table.notes() == {"a": "a3"}


def test_several_log_files_of_one_commit_go_together() -> None:
    small = {"hoodie.logfile.max.size": "1", "hoodie.logfile.data.block.max.size": "1"}
    table = Trips().made()
    keys = "abcd"
    table.upsert([event_row(key, 0) for key in keys])
    first = table.upsert([event_row(key, 1 + number) for number, key in enumerate(keys)], small)
    table.upsert([event_row(key, 8 + number) for number, key in enumerate(keys)], small)
    assert len(table.files_of(first.instant)) > 1
    plan = table.plan(2)
    assert isinstance(plan, CompactionPlan)
    (operation,) = plan.operations
    assert len(operation.logs) == len(table.files_of(first.instant))
    assert table.compact(2)
    assert table.optimized() == {"a": "a1", "b": "b2", "c": "c3", "d": "d4"}


@pytest.mark.parametrize("options", [{}, EXACT_SPLIT], ids=["whole", "split"])
def test_of_two_with_the_same_order_the_later_one_stays_the_winner(
    options: Mapping[str, str],
) -> None:
    table = Trips().made()
    table.upsert([event_row("a", 1), event_row("b", 1)])
    table.upsert([event_row("a", 3, "earlier"), event_row("b", 2)])
    table.upsert([event_row("a", 3, "later"), event_row("b", 9)])
    table.upsert([event_row("b", 9.5)])
    for hour in (2.5, 3.5):
        assert table.compact(hour, options)
        assert table.notes() == {"a": "later", "b": "b9.5"}


@pytest.mark.parametrize("index", [{}, BUCKET_INDEX], ids=["simple", "bucket"])
def test_a_delete_after_the_threshold_waits_for_its_time(index: Mapping[str, str]) -> None:
    table = Trips(options={**NO_SERVICES, **OPTIMISTIC, **index}).made()
    table.upsert([event_row("a", 2), event_row("b", 1)])
    table.upsert([event_row("b", 3)])
    table.write("DELETE", [event_row("a", 9)], ordered=True)
    assert table.compact(5, EXACT_SPLIT)
    assert table.optimized() == {"a": "a2", "b": "b3"}
    assert isinstance(table.compact(5, EXACT_SPLIT), Skip)
    assert table.compact(10, EXACT_SPLIT)
    assert table.optimized() == {"b": "b3"}


@pytest.mark.parametrize("index", [{}, BUCKET_INDEX], ids=["simple", "bucket"])
def test_a_row_that_comes_back_later_than_it_was_deleted(index: Mapping[str, str]) -> None:
    """Its base row is stronger, and was what readers saw."""
    table = Trips(options={**NO_SERVICES, **OPTIMISTIC, **index}).made()
    table.upsert([event_row("a", 0), event_row("b", 5)])
    table.upsert([event_row("a", 1)])
    table.write("DELETE", [event_row("b", 1)])
    table.upsert([event_row("b", 3), event_row("a", 6)])
    assert table.notes() == {"a": "a6", "b": "b5"}
    assert table.compact(2)
    assert table.notes() == {"a": "a6", "b": "b5"}
    assert table.compact(8)
    assert table.notes() == {"a": "a6", "b": "b5"}


def test_a_key_that_comes_back_keeps_its_row_in_the_base_file() -> None:
    """Other writers look for keys in base files alone."""
    table = Trips().made()
    table.upsert([event_row("a", 0), event_row("b", 0)])
    table.write("DELETE", [event_row("b", 2)], ordered=True)
    table.upsert([event_row("b", 5)])
    assert table.compact(3)
    assert "b" in table.optimized()
    assert table.compact(8)
    assert table.optimized() == table.notes() == {"a": "a0", "b": "b5"}


def test_what_is_written_while_deletes_are_compacted_is_looked_at() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 1), event_row("b", 1)])
    table.upsert([event_row("a", 2)])
    table.write("DELETE", [event_row("b", 4)], ordered=True)
    services = table.services(compact_before(5))
    instant = services.schedule("compaction")
    assert not isinstance(instant, Skip)
    late: list[Commit] = []
    upsert = once(lambda: late.append(table.upsert([event_row("b", 3, "late")])))
    engine = InterruptedEngine(upsert)
    commit = replace(services, engine=lambda: engine).execute(instant.requested_at)
    assert late
    assert table.notes() == {"a": "a2"}
    assert len(table.files_of(commit.instant)) == 2


def test_the_first_write_on_the_timeline_is_not_rolled_back_under_others() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 1), event_row("z", 1)])
    table.upsert([event_row("a", 2), event_row("z", 2)])
    commit = table.compact(4)
    assert isinstance(commit, Commit)
    for hour in (5, 6, 7):
        table.upsert([event_row("a", hour)])
    soon = {**ARCHIVE, **SERVICE_OPTIONS["compaction"], **SERVICE_OPTIONS["logcompaction"]}
    assert table.services(soon).run("clean")
    assert table.services(soon).run("archive")
    assert load_snapshot(table.storage).timeline.start == commit.instant
    with pytest.raises(InvalidError, match="first write"):
        table.writer().rollback(commit.instant)
    assert table.notes() == {"a": "a7", "z": "z2"}


@pytest.mark.parametrize("executed", [False, True])
def test_the_instant_of_a_plan_that_was_rolled_back_is_not_used_again(executed: bool) -> None:
    table = Trips().made()
    table.upsert([event_row("a", 1)])
    table.upsert([event_row("a", 2)])
    table.clock.sleep(1)
    table.upsert([event_row("a", 5)])
    services = table.services({**compact_before(4), CANCELLABLE: "true"})
    first = services.schedule("compaction")
    assert isinstance(first, Instant)
    if executed:
        services.execute(first.requested_at)
        table.writer().rollback(first.requested_at)
    else:
        services.cancel(first.requested_at)
    plan = table.plan(4)
    assert isinstance(plan, CompactionPlan)
    (operation,) = plan.operations
    assert (operation.next_base_instant or "") > first.requested_at
    assert isinstance(table.compact(4), Commit)


def test_two_compactions_by_event_time_in_a_row() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 0), event_row("b", 0)])
    for hour in (1, 3, 5, 7):
        table.upsert([event_row("a", hour), event_row("b", hour + 0.5)])
    first, second = table.compact(2), table.compact(4)
    assert isinstance(first, Commit)
    assert isinstance(second, Commit)
    assert first.instant < second.instant < first.completed_at
    assert table.optimized() == {"a": "a3", "b": "b3.5"}


def test_what_wrote_a_log_file_is_followed_above_its_completion() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 0), event_row("b", 0)])
    for hour in (1, 3, 5, 7):
        table.upsert([event_row("a", hour), event_row("b", hour + 4)])
    first, second = table.compact(2, EXACT_SPLIT), table.compact(4, EXACT_SPLIT)
    assert isinstance(first, Commit)
    assert isinstance(second, Commit)
    assert len(table.files_of(first.instant)) == 2
    assert second.instant > first.completed_at
    assert table.optimized() == {"a": "a3", "b": "b0"}


def test_a_pending_ordinary_compaction_keeps_its_groups() -> None:
    table = Trips().made()
    three_days(table)
    table.upsert([event_row("a", 1)])
    ordinary = table.services(SERVICE_OPTIONS["compaction"])
    pending = ordinary.schedule("compaction")
    assert not isinstance(pending, Skip)
    table.upsert([event_row("a", 2), event_row("b", 2, day="2026-01-02")])
    table.upsert([event_row("b", 5, day="2026-01-02")])
    commit = table.compact(4)
    assert isinstance(commit, Commit)
    assert commit.instant > pending.requested_at
    assert commit.partitions == ("2026-01-02",)
    assert table.optimized() == {"a": "a0", "b": "b2", "c": "c0"}
    ordinary.execute(pending.requested_at)
    assert table.optimized() == {"a": "a1", "b": "b2", "c": "c0"}
    assert table.compact(4)
    assert table.optimized() == {"a": "a2", "b": "b2", "c": "c0"}


def test_archived_delta_commits_have_their_event_times() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 0)])
    for hour in (1, 2, 6, 7, 8, 9):
        table.upsert([event_row("a", hour)])
    table.services(ARCHIVE).run("archive")
    archived = load_snapshot(table.storage).archived
    assert len(archived) == 2
    commit = table.compact(3)
    assert isinstance(commit, Commit)
    assert commit.instant > max(i.requested_at for i in archived)
    assert table.notes() == {"a": "a9"}


def test_groups_of_log_files_alone_get_their_first_base_file() -> None:
    table = Trips(options={**NO_SERVICES, **NON_BLOCKING, **BUCKET_INDEX}).made()
    table.upsert([event_row("a", 1)])
    table.upsert([event_row("b", 2)])
    assert table.optimized() == {}
    table.upsert([event_row("a", 5), event_row("b", 5), event_row("c", 5)])
    assert table.compact(4)
    assert table.optimized() == {"a": "a1", "b": "b2"}


def test_a_log_compaction_is_taken_as_a_whole() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 0)])
    for hour in (1, 2, 6):
        table.upsert([event_row("a", hour)])
    assert table.services(SERVICE_OPTIONS["logcompaction"]).run("logcompaction")
    table.upsert([event_row("a", 7)])
    assert table.compact(3)
    assert table.optimized() == {"a": "a6"}


def test_a_split_leaves_nothing_newer_in_buckets() -> None:
    table = Trips(options={**NO_SERVICES, **OPTIMISTIC, **BUCKET_INDEX}).made()
    table.write("BULK_INSERT", [event_row("a", 1), event_row("b", 6)])
    table.upsert([event_row("a", 7), event_row("c", 7), event_row("d", 2)])
    table.upsert([event_row("e", 3), event_row("e", 8)])
    commit = table.compact(4, EXACT_SPLIT)
    assert table.optimized() == {"a": "a1", "d": "d2"}
    assert table.extra(commit)[BEYOND] == "0"
    assert table.notes() == {"a": "a7", "b": "b6", "c": "c7", "d": "d2", "e": "e8"}


def test_a_split_keeps_a_version_of_each_key_where_the_index_needs_one() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 1), event_row("b", 6)])
    table.upsert([event_row("a", 7), event_row("b", 2, "late")])
    commit = table.compact(4, EXACT_SPLIT)
    assert table.optimized() == {"a": "a1", "b": "b6"}
    assert table.extra(commit)[BEYOND] == "1"


def test_a_row_that_came_back_after_a_delete() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 6), event_row("b", 1)])
    table.write("DELETE", [event_row("a", 1)])
    table.upsert([event_row("a", 5), event_row("b", 2)])
    assert table.compact(3, EXACT_SPLIT)
    assert table.compact(8)


def test_a_rollback_deletes_the_log_file_of_the_compaction_too() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 1), event_row("b", 1)])
    table.upsert([event_row("a", 2), event_row("b", 6)])
    table.upsert([event_row("a", 7)])
    before = run_queries(table.storage)
    commit = table.compact(4, EXACT_SPLIT)
    assert isinstance(commit, Commit)
    assert len(table.files_of(commit.instant)) == 2
    table.writer().rollback(commit.instant)
    assert table.files_of(commit.instant) == []
    assert before == run_queries(table.storage, before)
    assert table.compact(4, EXACT_SPLIT)


@pytest.mark.parametrize("options", [{}, EXACT_SPLIT], ids=["whole", "split"])
@pytest.mark.parametrize("which", range(3))
def test_a_table_is_restored_to_before_the_compaction(
    which: int, options: Mapping[str, str]
) -> None:
    table = Trips().made()
    writes = [
        table.upsert([event_row("a", 1), event_row("b", 1)]),
        table.upsert([event_row("a", 2), event_row("b", 6)]),
        table.write("DELETE", [event_row("b", 7)], ordered=True),
        table.upsert([event_row("a", 7), event_row("b", 6.5)]),
    ]
    at_savepoint = writes[which].instant
    expected = run_queries(table.storage).by_question[f"as of {at_savepoint}"]
    table.writer().savepoint(at_savepoint, user="somebody", comment="")
    commit = table.compact(4, options)
    assert isinstance(commit, Commit)
    assert len(table.files_of(commit.instant)) == 2
    table.writer().restore(at_savepoint)
    assert run_queries(table.storage).by_question["snapshot"] == expected
    assert table.files_of(commit.instant) == []


def test_the_next_plan_takes_what_a_compaction_leaves() -> None:
    table = Trips().made()
    three_days(table)
    table.upsert([event_row("a", 1), event_row("b", 5, day="2026-01-02")])
    table.upsert([event_row("a", 9)])
    first = table.plan(2)
    assert isinstance(first, CompactionPlan)
    assert first.missing_partitions == ("2026-01-02",)
    assert table.compact(2)
    later = table.plan(12)
    assert isinstance(later, CompactionPlan)
    assert later.partitions == ("2026-01-01", "2026-01-02")


COMPOSED: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "a pattern chooses among what is due": (
        {
            "hoodie.compaction.strategy": "event_time,partition_regex",
            "hoodie.compaction.partition.path.regex": "-02$",
        },
        ("2026-01-02",),
    ),
    "days may come first": (
        {
            "hoodie.compaction.strategy": "day_based,event_time",
            "hoodie.compaction.daybased.target.partitions": "1",
        },
        ("2026-01-03",),
    ),
    "a limit cuts what is due": (
        {
            "hoodie.compaction.strategy": "event_time",
            "lakewright.compaction.plan.operations": "2",
        },
        ("2026-01-01", "2026-01-02"),
    ),
}


@pytest.mark.parametrize(("options", "partitions"), COMPOSED.values(), ids=list(COMPOSED))
def test_strategies_compose(options: dict[str, str], partitions: tuple[str, ...]) -> None:
    table = Trips().made()
    three_days(table)
    overlapping(table)
    table.upsert([event_row("a", 9)])
    plan = table.plan(4, options)
    assert isinstance(plan, CompactionPlan)
    assert plan.partitions == partitions
    assert len({o.next_base_instant for o in plan.operations}) == 1
    commit = table.compact(4, options)
    assert isinstance(commit, Commit)
    assert commit.partitions == partitions


def test_nothing_before_the_threshold_says_what_there_is() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 1)])
    last = table.upsert([event_row("a", 5)])
    skip = table.compact(3)
    assert isinstance(skip, Skip)
    for word in (last.instant, str(event_time(5)), "2025-12-31T05:00", "2026-01-01"):
        assert word in skip.reason


def test_what_a_pending_plan_holds_is_named() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 1)])
    table.upsert([event_row("a", 2)])
    pending = table.services(SERVICE_OPTIONS["compaction"]).schedule("compaction")
    assert not isinstance(pending, Skip)
    skip = table.compact(3)
    assert isinstance(skip, Skip)
    assert f"held by compaction {pending.requested_at}" in skip.reason


def test_an_inline_compaction_waits_for_its_trigger() -> None:
    inline = {**OPTIMISTIC, **compact_before(4), "hoodie.compact.inline": "true"}
    table = Trips(options=inline).made()
    commits = [table.upsert([event_row("a", hour / 10)]) for hour in range(1, 8)]
    compacted = [
        any(isinstance(outcome, Commit) for outcome in commit.services) for commit in commits
    ]
    assert compacted == [False] * 4 + [True] + [False] * 2


def test_a_log_file_without_event_times_is_compacted() -> None:
    table = Trips().made()
    table.upsert([event_row("a", 1), event_row("b", 1)])
    table.write("DELETE", [event_row("a", 1)])
    table.upsert([event_row("b", 9)])
    assert table.compact(1)
    assert "a" not in table.optimized()


BAD: dict[str, tuple[Callable[[], Trips], dict[str, str], str]] = {
    "a table without event times": (
        lambda: Trips().create("MERGE_ON_READ"),  # type: ignore[return-value, dict-item]
        compact_before(3),
        "keeps no event times",
    ),
    "a copy-on-write table": (
        lambda: Trips().create("COPY_ON_WRITE", event_time="ts"),  # type: ignore[return-value, dict-item]
        compact_before(3),
        "has no log files",
    ),
    "a threshold in the future": (
        lambda: Trips().made(),
        {**compact_before(3), "hoodie.compaction.event.time.threshold": "2030-01-01T00:00:00Z"},
        "lies in the future",
    ),
    "no threshold": (
        lambda: Trips().made(),
        {"hoodie.compaction.strategy": "event_time"},
        "needs a threshold",
    ),
    "two of them": (
        lambda: Trips().made(),
        {**compact_before(3), "hoodie.compaction.event.time.lateness": "1h"},
        "leave one of them out",
    ),
    "a time without zone": (
        lambda: Trips().made(),
        {**compact_before(3), "hoodie.compaction.event.time.threshold": "2025-12-31T00:00:00"},
        "zone",
    ),
    "no time": (
        lambda: Trips().made(),
        {**compact_before(3), "hoodie.compaction.event.time.threshold": "yesterday"},
        "does not parse",
    ),
    "a split without order": (
        lambda: Trips().create("MERGE_ON_READ", event_time="ts", ordering=()),  # type: ignore[return-value, dict-item]
        {**compact_before(3), **EXACT_SPLIT},
        "EVENT_TIME_ORDERING",
    ),
}


@pytest.mark.parametrize(("make", "options", "words"), BAD.values(), ids=list(BAD))
def test_bad_input_changes_nothing(
    make: Callable[[], Trips], options: dict[str, str], words: str
) -> None:
    table = make()
    table.upsert([event_row("a", 1)])
    table.upsert([event_row("a", 2)])
    files = table.storage.files()  # type: ignore[attr-defined]
    with pytest.raises(InvalidError, match=words):
        table.services(options).run("compaction")
    assert table.storage.files() == files  # type: ignore[attr-defined]


DERIVED: dict[str, tuple[dict[str, str], str]] = {
    "now less the lateness": ({"lateness": "90m"}, "20260110123000123"),
    "the last full hour": ({"floor": "hour"}, "20260110140000000"),
    "the last full hour that nothing is late for": (
        {"floor": "hour", "lateness": "10m"},
        "20260110130000000",
    ),
    "the last full day": ({"floor": "day"}, "20260110000000000"),
    "the last full day in another zone": (
        {"floor": "day America/New_York"},
        "20260110050000000",
    ),
    "a time with a zone": ({"threshold": "2026-01-10T02:00:00+02:00"}, "20260110000000000"),
    "an instant": ({"threshold": "20260109000000"}, "20260109000000999"),
}


@pytest.mark.parametrize(("options", "expected"), DERIVED.values(), ids=list(DERIVED))
def test_thresholds(options: dict[str, str], expected: str) -> None:
    full_options = {
        f"hoodie.compaction.event.time.{name}": value for name, value in options.items()
    }
    threshold = EventTimeBasedCompactionStrategy().calc_event_time_threshold(
        "20260110140000123", settings_from(CompactionSettings, full_options)
    )
    assert threshold == expected


class Noon(EventTimeBasedCompactionStrategy):
    """Goes up to noon of the day before."""

    def calc_event_time_threshold(
        self, compaction_instant: str, settings: CompactionSettings
    ) -> str:
        return "20251231120000000"


def test_a_strategy_of_a_user_sets_the_threshold() -> None:
    register_strategy("noon", lambda context: Noon(context.zone))
    table = Trips().made()
    table.upsert([event_row("a", 1)])
    table.upsert([event_row("a", 11)])
    table.upsert([event_row("a", 13)])
    assert table.services({"hoodie.compaction.strategy": "noon"}).run("compaction")
    assert table.optimized() == {"a": "a11"}
