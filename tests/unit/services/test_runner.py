"""The cycle that all services share: preview, schedule, execute by instant, run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lakewright.engine.local import LocalEngine
from lakewright.errors import (
    ConflictError,
    InvalidError,
    LakewrightError,
    UnavailableError,
    UnsupportedError,
)
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import CompactionPlan, Skip
from lakewright.services.runner import ServiceRunner
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
from lakewright.write.writer import Commit
from support.concurrency import InterruptedAfter, another_process
from support.tables import WrittenTable, row

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
BY_HAND = {"hoodie.compact.inline": "false"}
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": "1"}
SEVERAL = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "in_process",
}


def table_with_logs(options: Mapping[str, str] | None = None) -> WrittenTable:
    table = WrittenTable(options={**BY_HAND, **(options or {})}).create("MERGE_ON_READ")
    table.upsert([row(f"k{n}", 1, "first", DAYS[n % 3]) for n in range(9)])
    table.upsert([row("k0", 2, "second", DAYS[0]), row("k1", 2, "second", DAYS[1])])
    table.write("DELETE", [row("k3", 3, day=DAYS[0])])
    return table


def files_of(table: WrittenTable) -> dict[str, bytes]:
    return {file.path: table.storage.read(file.path) for file in table.storage.list_tree("")}


def scheduled(table: WrittenTable, runner: ServiceRunner | None = None) -> str:
    instant = (runner or table.services(AT_ONCE)).schedule("compaction")
    assert isinstance(instant, Instant)
    assert instant.state is State.REQUESTED
    return instant.requested_at


def test_a_preview_is_a_plan_and_changes_nothing() -> None:
    table = table_with_logs()
    before = files_of(table)
    plan = table.services(AT_ONCE).preview("compaction")
    assert isinstance(plan, CompactionPlan)
    assert plan.partitions == DAYS[:2]
    assert plan.missing_partitions == ()
    assert files_of(table) == before


def test_a_compaction_makes_the_read_optimized_view_complete() -> None:
    table = table_with_logs()
    before, old = table.rows(meta=True), table.rows(optimized=True)
    commit = table.services(AT_ONCE).run("compaction")
    assert isinstance(commit, Commit)
    assert (commit.action, commit.operation, commit.partitions) == ("commit", "COMPACT", DAYS[:2])
    assert (commit.updated, commit.deleted, commit.files) == (2, 1, 2)
    assert old != table.rows(optimized=True) == table.rows()
    unnamed = [{**record, "_hoodie_file_name": None} for record in table.rows(meta=True)]
    assert unnamed == [{**record, "_hoodie_file_name": None} for record in before]


def test_what_is_scheduled_by_one_is_executed_by_another_once() -> None:
    table = table_with_logs()
    at = scheduled(table)
    before = table.rows()
    other = table.services()
    first = other.execute(at)
    files = files_of(table)
    assert other.execute(at) == first
    assert files_of(table) == files
    assert table.rows() == before == table.rows(optimized=True)


@pytest.mark.parametrize("service", ["compaction", "clustering", "clean"])
def test_an_executor_that_loses_narrowly_returns_the_stored_result(service: str) -> None:
    """The other one completes the plan after this one has read it."""
    table = table_with_logs({"hoodie.clean.automatic": "false"})
    if service == "clean":
        table.services().run("compaction")
        for ts in (4, 5):
            table.upsert([row("k0", ts, day=DAYS[0])])
    instant = table.services({"hoodie.clean.commits.retained": "1"}).schedule(service)
    assert isinstance(instant, Instant)
    stored: list[Commit] = []

    def other_process() -> None:
        with another_process():
            stored.append(table.services().execute(instant.requested_at))

    pattern = rf"{service}\.requested$"
    storage = InterruptedAfter(table.storage, "read", pattern, other_process)
    result = replace(table.services(), storage=storage).execute(instant.requested_at)
    assert [result] == stored


def test_writes_go_on_while_a_plan_waits() -> None:
    table = table_with_logs()
    at = scheduled(table)
    table.upsert([row("k0", 5, "meanwhile", DAYS[0])])
    before = table.rows()
    table.services().execute(at)
    assert table.rows() == before
    assert {"id": "k0", "day": DAYS[0], "ts": 5, "note": "meanwhile"} in before


def test_groups_that_wait_are_not_planned_again_and_are_recorded_as_missing() -> None:
    table = table_with_logs()
    at = scheduled(table)
    table.upsert([row("k0", 5, "more", DAYS[0]), row("k2", 5, "more", DAYS[2])])
    plan = table.services(AT_ONCE).preview("compaction")
    assert isinstance(plan, CompactionPlan)
    assert plan.partitions == (DAYS[2],)
    assert plan.missing_partitions == DAYS[:2]
    assert plan.missing_reasons[DAYS[0]] == f"held by compaction {at}"


class FailingEngine(LocalEngine):
    """Do the work, and then fail."""

    def map(self, do: Any, items: Any, size: Any) -> Any:
        super().map(do, items, size)
        raise UnavailableError("a worker was lost")


def test_a_failed_execution_leaves_the_plan_and_no_file() -> None:
    table = table_with_logs()
    at = scheduled(table)
    before = files_of(table)
    runner = replace(table.services(), engine=FailingEngine)
    with pytest.raises(UnavailableError, match="lost"):
        runner.execute(at)
    # Its tasks have not reported, so their markers stay for a while.
    remaining = {path: data for path, data in files_of(table).items() if "/.temp/" not in path}
    assert remaining == before
    assert table.services().execute(at).operation == "COMPACT"


def test_a_live_attempt_is_left_alone_and_a_dead_one_rolled_back() -> None:
    table = table_with_logs(SEVERAL)
    at = scheduled(table, table.services({**AT_ONCE}))

    class EngineThatDies(LocalEngine):
        def map(self, do: Any, items: Any, size: Any) -> Any:
            with pytest.raises(ConflictError, match="being executed"):
                table.services().execute(at)
            raise _Death

    with pytest.raises(_Death):
        replace(table.services(), engine=EngineThatDies).execute(at)
    assert [str(i) for i in load_snapshot(table.storage).timeline.pending()] == [
        f"{at}.compaction.requested"
    ]


class _Death(BaseException):
    """The end of a process."""


@dataclass(frozen=True)
class Bad:
    """A call that must fail without a trace."""

    error: type[LakewrightError]
    says: str
    call: Callable[[WrittenTable], object]
    table_type: str = "MERGE_ON_READ"


def preview(options: Mapping[str, str], name: str = "compaction") -> Callable[[WrittenTable], Any]:
    return lambda table: table.services({**AT_ONCE, **options}).schedule(name)


BAD = {
    "an unknown service": Bad(InvalidError, "compaction", preview({}, "compactoin")),
    "an unknown strategy": Bad(
        InvalidError, "log_file_size", preview({"hoodie.compaction.strategy": "fastest"})
    ),
    "a target of zero": Bad(
        InvalidError, "target.io", preview({"hoodie.compaction.target.io": "0"})
    ),
    "a pattern that does not compile": Bad(
        InvalidError,
        "regex",
        preview(
            {
                "hoodie.compaction.strategy": "partition_regex",
                "hoodie.compaction.partition.path.regex": "2026-(",
            }
        ),
    ),
    "a compaction of a table without log files": Bad(
        InvalidError, "copy-on-write", preview({}), table_type="COPY_ON_WRITE"
    ),
    "an option that there is not": Bad(
        InvalidError, "hoodie.compaction.strategy", preview({"hoodie.compaction.strateg": "x"})
    ),
    "executing an instant that is not there": Bad(
        InvalidError, "no plan", lambda table: table.services().execute("20260101000000000")
    ),
    "executing a write": Bad(
        InvalidError,
        "no plan",
        lambda table: table.services().execute(
            load_snapshot(table.storage).timeline.completed_writes[0].requested_at
        ),
    ),
    "a table that merges rows column by column": Bad(
        UnsupportedError, "column by column", lambda table: _partly_updated(table)
    ),
}


def _partly_updated(table: WrittenTable) -> object:
    path = ".hoodie/hoodie.properties"
    data = table.storage.read(path)
    table.storage.replace(path, data + b"hoodie.table.partial.update.mode=IGNORE_DEFAULTS\n")
    try:
        return table.services(AT_ONCE).schedule("compaction")
    finally:
        table.storage.replace(path, data)


@pytest.mark.parametrize("case", BAD.values(), ids=list(BAD))
def test_bad_input_is_refused_and_changes_nothing(case: Bad) -> None:
    table = WrittenTable(options=BY_HAND).create(case.table_type)
    table.upsert([row("k0")])
    table.upsert([row("k0", 2)])
    before = files_of(table)
    with pytest.raises(case.error, match=case.says):
        case.call(table)
    assert files_of(table) == before


def test_nothing_due_costs_no_look_beyond_the_timeline() -> None:
    table = table_with_logs()
    storage = CountingStorage(table.storage)
    runner = replace(table.services(), storage=storage)
    assert isinstance(runner.schedule("compaction", triggered=True), Skip)
    assert {method for method, _ in storage.touched} <= {"read", "list_files"}
    assert len(storage.touched) <= 3


@pytest.mark.parametrize("partitions", [20, 100])
def test_planning_lists_the_partitions_that_changed_and_no_others(partitions: int) -> None:
    table = WrittenTable(options=BY_HAND).create("MERGE_ON_READ")
    days = [f"day-{n:04d}" for n in range(partitions)]
    table.upsert([row("k", 1, "first", day) for day in days])
    table.upsert([row("k", 2, "second", day) for day in days])
    assert table.services(AT_ONCE).run("compaction")
    table.upsert([row("k", 3, "third", day) for day in days[:10]])
    storage = CountingStorage(table.storage)
    plan = replace(table.services(AT_ONCE), storage=storage).preview("compaction")
    assert plan.partitions == tuple(days[:10])
    listed = [path for method, path in storage.touched if "list" in method]
    assert sorted(p for p in listed if not p.startswith(".hoodie")) == days[:10]
    assert len(storage.touched) <= 10 + 8


def test_inline_compaction_follows_the_fifth_delta_commit() -> None:
    table = WrittenTable().create("MERGE_ON_READ")
    table.upsert([row("k0")])
    commits = [table.upsert([row("k0", ts)]) for ts in range(2, 6)]
    assert [bool(commit.services[0]) for commit in commits] == [False, False, False, True]
    compacted = commits[-1].services[0]
    assert isinstance(compacted, Commit)
    assert compacted.operation == "COMPACT"
    assert table.rows() == table.rows(optimized=True) == [row("k0", 5)]


def test_a_write_may_only_schedule() -> None:
    options = {"hoodie.compact.schedule.inline": "true", **AT_ONCE}
    table = WrittenTable(options=options).create("MERGE_ON_READ")
    table.upsert([row("k0")])
    table.upsert([row("k0", 2)])
    pending = load_snapshot(table.storage).timeline.pending(Action.COMPACTION)
    assert len(pending) == 1
    assert table.services().execute(pending[0].requested_at)


CLUSTERING_UPDATES = {
    "an update of rows under a pending clustering is refused": ("reject", True),
    "an update that is allowed goes before, and the clustering fails": ("allow", False),
}


@pytest.mark.parametrize(
    ("strategy", "refused"), CLUSTERING_UPDATES.values(), ids=list(CLUSTERING_UPDATES)
)
def test_updates_under_a_pending_clustering(strategy: str, refused: bool) -> None:
    class_name = f"org.apache.hudi.client.clustering.update.strategy.Spark{strategy.title()}"
    options = {"hoodie.clustering.updates.strategy": f"{class_name}UpdateStrategy"}
    table = WrittenTable(options=options).create("COPY_ON_WRITE")
    for n in range(3):
        table.write("BULK_INSERT", [row(f"k{n}")])
    planned = table.services().schedule("clustering")
    assert isinstance(planned, Instant)
    if refused:
        with pytest.raises(ConflictError, match="being clustered"):
            table.upsert([row("k0", 2, "second")])
        assert table.services().execute(planned.requested_at).operation == "CLUSTER"
        assert len(table.rows()) == 3
        return
    table.upsert([row("k0", 2, "second")])
    with pytest.raises(ConflictError, match="changed since its clustering was planned"):
        table.services().execute(planned.requested_at)
    assert row("k0", 2, "second") in table.rows()
    assert table.writer().rollback(planned.requested_at)
    assert table.services().run("clustering")
    assert row("k0", 2, "second") in table.rows()
    assert len(table.rows()) == 3


def test_partial_progress_is_a_commit_for_each_part_of_the_work() -> None:
    table = table_with_logs()
    table.upsert([row("k2", 4, "fourth", DAYS[2])])
    before = table.rows()
    options = {
        **AT_ONCE,
        "lakewright.compaction.plan.operations": "1",
        "lakewright.services.partial.progress": "true",
    }
    first = table.services(options).run("compaction")
    assert isinstance(first, Commit)
    rest = [outcome for outcome in first.services if isinstance(outcome, Commit)]
    assert [commit.files for commit in (first, *rest)] == [1, 1, 1]
    assert table.rows() == table.rows(optimized=True) == before


def test_what_is_over_the_limit_is_missing_and_taken_up_next() -> None:
    table = table_with_logs()
    options = {**AT_ONCE, "lakewright.compaction.plan.operations": "1"}
    plan = table.services(options).preview("compaction")
    assert isinstance(plan, CompactionPlan)
    assert len(plan.operations) == 1
    (reason,) = plan.missing_reasons.values()
    assert reason == "over the limit of 1 file groups"


def test_a_clean_without_a_plan_is_rolled_back() -> None:
    """Its writer died while it made the file."""
    table = table_with_logs()
    path = ".hoodie/timeline/20260101000000999.clean.requested"
    table.storage.create(path, b"")
    with pytest.raises(ConflictError, match="it was deleted"):
        table.services().execute("20260101000000999")
    assert not table.storage.exists(path)
