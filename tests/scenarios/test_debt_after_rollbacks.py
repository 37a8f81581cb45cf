"""What a rollback or restore brings back is planned again, though no write has touched it since."""

from __future__ import annotations

from lakewright.model.instant import Action, Instant
from lakewright.services.compaction_debt import load_debt
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
from lakewright.write.writer import Commit
from support.tables import NO_SERVICES, WrittenTable, begin_action, row

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": "1"}
CANCELLABLE = {"hoodie.table.service.plan.cancellable": "true"}


def table_with_logs(*days: str) -> WrittenTable:
    table = WrittenTable(options={**NO_SERVICES, **AT_ONCE}).create("MERGE_ON_READ")
    table.upsert([row("k", day=day) for day in days or DAYS[:2]])
    table.upsert([row("k", 2, "second", day) for day in days or DAYS[:2]])
    return table


def schedule(table: WrittenTable, service: str = "compaction") -> str:
    instant = table.services().schedule(service)
    assert isinstance(instant, Instant)
    return instant.requested_at


def run(table: WrittenTable, service: str) -> str:
    commit = table.services().run(service)
    assert isinstance(commit, Commit)
    return commit.instant


def rollback(table: WrittenTable, instant: str) -> Instant:
    return table.writer().rollback(instant)


def owing(table: WrittenTable) -> list[str]:
    context = table.services().planning_context(load_snapshot(table.storage))
    return [debt.partition for debt in load_debt(context).partitions]


def assert_next_compaction_pays(table: WrittenTable, *days: str) -> None:
    """The debt names these partitions, and a compaction that another partition triggers pays it."""
    assert owing(table) == list(days)
    table.upsert([row("k", 9, "tick", DAYS[2])])
    run(table, "compaction")
    assert owing(table) == []
    assert table.rows(optimized=True) == table.rows()


def test_a_deleted_partition_that_comes_back_while_a_plan_is_pending() -> None:
    table = table_with_logs()
    deleted = table.delete_partitions(DAYS[1])
    plan = schedule(table)
    rollback(table, deleted.instant)
    table.services().execute(plan)
    assert_next_compaction_pays(table, DAYS[1])


def test_the_log_files_that_a_clustering_had_merged() -> None:
    table = table_with_logs()
    only = {"hoodie.clustering.plan.strategy.partition.selected": DAYS[1]}
    clustered = table.services(only).run("clustering")
    assert isinstance(clustered, Commit)
    plan = schedule(table)
    rollback(table, clustered.instant)
    table.services().execute(plan)
    assert_next_compaction_pays(table, DAYS[1])


def test_the_log_files_that_an_earlier_compaction_had_merged() -> None:
    table = table_with_logs(DAYS[1])
    compacted = run(table, "compaction")
    table.upsert([row("k", 3, "third", DAYS[0]), row("j", 3, "third", DAYS[0])])
    table.upsert([row("k", 4, "fourth", DAYS[0])])
    plan = schedule(table)
    rollback(table, compacted)
    table.services().execute(plan)
    assert_next_compaction_pays(table, DAYS[1])


def test_what_a_restore_brings_back() -> None:
    """The plan is older than the savepoint, so the restore leaves it pending."""
    table = table_with_logs()
    deleted = table.delete_partitions(DAYS[1])
    plan = schedule(table)
    rollback(table, deleted.instant)
    saved = table.upsert([row("k", 3, "third", DAYS[2])])
    table.writer().savepoint(saved.instant, user="u", comment="")
    table.services().execute(plan)
    table.upsert([row("k", 4, "fourth", DAYS[2])])
    table.writer().restore(saved.instant)
    table.services().execute(plan)
    assert_next_compaction_pays(table, DAYS[1])


def test_a_deleted_partition_that_comes_back_while_a_clustering_is_pending() -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("k", day=day) for day in DAYS[:2]])
    deleted = table.delete_partitions(DAYS[1])
    plan = schedule(table, "clustering")
    rollback(table, deleted.instant)
    table.services().execute(plan)
    following = table.services().preview("clustering")
    assert following.partitions == (DAYS[1],)


def test_a_rollback_whose_record_cannot_be_read_may_have_brought_back_anything() -> None:
    table = table_with_logs()
    deleted = table.delete_partitions(DAYS[1])
    plan = schedule(table)
    completed = rollback(table, deleted.instant)
    table.services().execute(plan)
    table.storage.replace(load_snapshot(table.storage).timeline_path(completed), b"")
    assert owing(table) == [DAYS[1]]


def test_rollbacks_of_failed_writes_and_cancelled_plans_list_no_other_partition() -> None:
    """These are the frequent ones."""
    table = table_with_logs()
    run(table, "compaction")
    begin_action(table.services().writer, "deltacommit")
    table.upsert([row("k", 3, "third", DAYS[0])])
    cancelled = table.services(CANCELLABLE).schedule("clustering")
    assert isinstance(cancelled, Instant)
    table.services().cancel(cancelled.requested_at)
    assert len(load_snapshot(table.storage).timeline.completed(Action.ROLLBACK)) == 2
    storage = CountingStorage(table.storage)
    context = table.services().planning_context(load_snapshot(storage))
    storage.reset()
    assert [debt.partition for debt in load_debt(context).partitions] == [DAYS[0]]
    assert not [path for _, path in storage.touched if path.startswith(DAYS[1])]
