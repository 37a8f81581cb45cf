"""When services run: at once if a user asks for them; by triggers after writes and in loops."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lakewright.errors import InvalidError
from lakewright.model.instant import Action, Instant
from lakewright.model.plans import ClusteringPlan, CompactionPlan, Skip
from lakewright.services.maintenance_loop import run_round
from lakewright.services.registry import service_by_name
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
from lakewright.write.writer import Commit
from support.services import clustering_options
from support.tables import NO_SERVICES, WrittenTable, row

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
INLINE = {**NO_SERVICES, "hoodie.compact.inline": "true"}
ONE_GROUP = {"lakewright.compaction.plan.operations": "1"}
ONE_CLUSTERING_GROUP = {
    **clustering_options(max_num_groups=1),
    "hoodie.clustering.inline.max.commits": "4",
}
LATER_S = 3_600


def table_with_logs(table_type: str = "MERGE_ON_READ") -> WrittenTable:
    storage = CountingStorage(MemoryStorage.fresh())
    table = WrittenTable(storage=storage, options=NO_SERVICES).create(table_type)
    for ts in (1, 2):
        table.upsert([row("k", ts, day=day) for day in DAYS])
    return table


def round_of(
    table: WrittenTable, options: Mapping[str, str], service: str = "compaction"
) -> Commit | Skip:
    (step,) = run_round(table.services(options), [service])
    assert isinstance(step.outcome, Commit | Skip), step.outcome
    return step.outcome


@pytest.mark.parametrize("trigger", ["NUM_COMMITS", "TIME_ELAPSED", "NUM_AND_TIME"])
def test_a_compaction_that_a_user_runs_waits_for_no_trigger(trigger: str) -> None:
    table = table_with_logs()
    options = {"hoodie.compact.inline.trigger.strategy": trigger}
    assert isinstance(table.services(options).preview("compaction"), CompactionPlan)
    scheduled = table.services(options).schedule("compaction")
    assert isinstance(scheduled, Instant)
    table.services(options).execute(scheduled.requested_at)
    table.upsert([row("k", 3, day=DAYS[0])])
    assert isinstance(round_of(table, options), Skip)
    assert isinstance(table.services(options).run("compaction"), Commit)


def test_what_a_plan_has_skipped_is_work_for_a_user_who_asks() -> None:
    table = table_with_logs()
    outcomes = [table.services(ONE_GROUP).run("compaction") for _ in range(4)]
    assert [bool(outcome) for outcome in outcomes] == [True, True, True, False]
    assert table.rows(optimized=True) == table.rows()


def test_a_clustering_that_a_user_runs_waits_for_no_number_of_commits() -> None:
    table = table_with_logs("COPY_ON_WRITE")
    options = {"hoodie.clustering.inline.max.commits": "9"}
    assert isinstance(table.services(options).preview("clustering"), ClusteringPlan)
    assert isinstance(round_of(table, options, "clustering"), Skip)
    assert isinstance(table.services(options).run("clustering"), Commit)


def test_a_log_compaction_that_a_user_runs_waits_for_no_number_of_commits() -> None:
    table = table_with_logs()
    options = {"hoodie.log.compaction.blocks.threshold": "2"}
    table.upsert([row("k", 3, day=DAYS[0])])
    assert table.services({**options, **only(DAYS[1])}).run("compaction")
    assert isinstance(round_of(table, options, "logcompaction"), Skip)
    commit = table.services(options).run("logcompaction")
    assert isinstance(commit, Commit)
    assert commit.partitions == (DAYS[0],)


@pytest.mark.parametrize("service", ["compaction", "logcompaction"])
def test_a_copy_on_write_table_is_refused_whoever_asks(service: str) -> None:
    table = table_with_logs("COPY_ON_WRITE")
    with pytest.raises(InvalidError, match="no log files"):
        table.services().run(service)


def only(day: str) -> dict[str, str]:
    return {
        "hoodie.compaction.strategy": "partition_regex",
        "hoodie.compaction.partition.path.regex": day,
    }


def test_after_writes_and_in_loops_a_compaction_waits_for_its_trigger() -> None:
    table = table_with_logs()
    reason = "2 of 5 delta commits and no compaction yet"
    assert round_of(table, {}) == Skip(reason)
    table.clock.sleep(LATER_S)
    assert round_of(table, {}) == Skip(reason)


def test_without_writes_a_loop_compacts_what_plans_have_skipped_after_some_time() -> None:
    table = table_with_logs()
    assert table.services(ONE_GROUP).run("compaction")
    rounds = 0
    while not isinstance(round_of(table, ONE_GROUP), Commit):
        table.clock.sleep(LATER_S / 4)
        rounds += 1
        assert rounds <= 5
    assert rounds >= 3
    table.clock.sleep(LATER_S)
    assert isinstance(round_of(table, ONE_GROUP), Commit)
    assert table.rows(optimized=True) == table.rows()
    table.clock.sleep(LATER_S)
    assert isinstance(round_of(table, ONE_GROUP), Skip)


def test_the_time_is_an_option() -> None:
    table = table_with_logs()
    table.services(ONE_GROUP).run("compaction")
    at_once = {**ONE_GROUP, "lakewright.services.missing.max.seconds": "0"}
    assert isinstance(round_of(table, at_once), Commit)


@pytest.mark.parametrize("trigger", ["TIME_ELAPSED", "NUM_AND_TIME"])
def test_what_plans_have_skipped_is_due_after_the_number_of_commits_of_any_trigger(
    trigger: str,
) -> None:
    table = table_with_logs()
    assert table.services(ONE_GROUP).run("compaction")
    options = {
        **ONE_GROUP,
        "hoodie.compact.inline.trigger.strategy": trigger,
        "hoodie.compact.inline.max.delta.seconds": str(9 * LATER_S),
        "hoodie.compact.inline.max.delta.commits": "2",
    }
    assert isinstance(round_of(table, options), Skip)
    for ts in (3, 4):
        table.upsert([row("k", ts, day=DAYS[0])])
    assert isinstance(round_of(table, options), Commit)


def test_a_write_is_followed_by_a_compaction_of_what_was_skipped_long_ago() -> None:
    table = table_with_logs()
    table.services(ONE_GROUP).run("compaction")
    (early,) = table.upsert([row("k", 3, day=DAYS[0])], INLINE).services
    table.clock.sleep(LATER_S)
    (late,) = table.upsert([row("k", 4, day=DAYS[0])], INLINE).services
    assert (bool(early), bool(late)) == (False, True)
    assert table.rows(optimized=True) == table.rows()


def test_a_pending_plan_has_to_be_executed_first() -> None:
    table = table_with_logs()
    table.services(ONE_GROUP).run("compaction")
    pending = table.services(ONE_GROUP).schedule("compaction")
    assert isinstance(pending, Instant)
    table.clock.sleep(LATER_S)
    schedule = {**NO_SERVICES, "hoodie.compact.schedule.inline": "true"}
    del schedule["hoodie.compact.inline"]
    table.upsert([row("k", 3, day=DAYS[0])], schedule)
    assert load_snapshot(table.storage).timeline.pending(Action.COMPACTION) == (pending,)


def test_a_loop_clusters_what_plans_have_skipped_after_some_time() -> None:
    table = table_with_logs("COPY_ON_WRITE")
    assert table.services(ONE_CLUSTERING_GROUP).run("clustering")
    assert isinstance(round_of(table, ONE_CLUSTERING_GROUP, "clustering"), Skip)
    table.clock.sleep(LATER_S)
    assert isinstance(round_of(table, ONE_CLUSTERING_GROUP, "clustering"), Commit)


def test_a_trigger_reads_nothing_before_that_time() -> None:
    table = table_with_logs()
    table.services(ONE_GROUP).run("compaction")
    assert isinstance(table.storage, CountingStorage)
    snapshot = load_snapshot(table.storage)
    table.storage.reset()
    context = table.services().planning_context(snapshot)
    assert isinstance(service_by_name("compaction").check_trigger(context), Skip)
    assert not table.storage.touched
