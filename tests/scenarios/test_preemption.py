"""Writers do not wait for cancellable plans: these find the conflict themselves, fail, and go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pytest

from lakewright.errors import ConflictError
from lakewright.model.instant import Action, Instant
from lakewright.model.plans import Skip
from lakewright.model.ttl import HUDI_DAYS, HUDI_TYPE
from lakewright.scan.planner import plan_changes
from lakewright.services.maintenance_loop import run_round
from lakewright.table.conflicts import PreemptedError
from lakewright.table.preemption import parse_preempted
from lakewright.table.snapshot import load_consistent_snapshot, load_snapshot
from lakewright.testing.local_reads import read_plan
from lakewright.testing.storage import CountingStorage, Crash
from lakewright.write.writer import Commit
from support.cancellable_plans import (
    ALWAYS_DUE,
    CANCELLABLE_PLAN,
    DAYS,
    MULTI_WRITER,
    PlanFixture,
    each_service,
)
from support.concurrency import InterruptedEngine, once
from support.faults import MortalStorage
from support.tables import NO_SERVICES, WrittenTable, row

pytestmark = pytest.mark.sampled(3)

IMMUTABLE: Mapping[str, str] = {}
EARLY = {"hoodie.write.concurrency.early.conflict.detection.enable": "true"}
TTL = {HUDI_TYPE: "KEEP_BY_TIME", HUDI_DAYS: "1"}
A_WEEK_MS = 7 * 86_400_000


def update(fixture: PlanFixture) -> object:
    return fixture.table.upsert([row("a", 9, "ninth")])


def delete(fixture: PlanFixture) -> object:
    return fixture.table.write("DELETE", [row("a", 9)])


def overwrite(fixture: PlanFixture) -> object:
    return fixture.table.write("INSERT_OVERWRITE", [row("new", 1, "overwritten")])


def overwrite_all(fixture: PlanFixture) -> object:
    return fixture.table.write("INSERT_OVERWRITE_TABLE", [row("new", 1, "overwritten")])


def drop(fixture: PlanFixture) -> object:
    return fixture.table.delete_partitions(DAYS[0])


def expire(fixture: PlanFixture) -> object:
    return fixture.runner(TTL).run("ttl")


def aged(service: str) -> PlanFixture:
    """A table of which all but one partition is a week old."""
    fixture = PlanFixture(service)
    fixture.clock.advance(A_WEEK_MS)
    fixture.table.upsert([row("late", 1, "kept", "2026-02-01")])
    fixture.rows_before = fixture.table.rows()
    return fixture


Write = Callable[[PlanFixture], object]
REPLACING: dict[str, Write] = {
    "insert_overwrite": overwrite,
    "insert_overwrite_table": overwrite_all,
    "delete_partitions": drop,
    "ttl": expire,
}
CHANGING: dict[str, Write] = {"an update": update, "a delete": delete, **REPLACING}


def assert_gives_way(fixture: PlanFixture, at: str, execute: Callable[[], Commit]) -> None:
    """What a write changes is left to it; what is left of the plan, if anything, completes."""
    planned = load_snapshot(fixture.storage).plan_of(at, Action(fixture.service))
    assert planned is not None
    try:
        commit = execute()
    except PreemptedError as error:
        assert {partition for partition, _ in error.groups} == set(planned.partitions)  # noqa: PT017
        assert (fixture.state(at), fixture.files_naming(at)) == ("GONE", [])
        (rollback,) = fixture.rollbacks()
        assert rollback.caused_by == error.facts["other"]  # noqa: PT017
        return
    (instant,) = [i for i in load_snapshot(fixture.storage).timeline if i.requested_at == at]
    (metadata,) = load_snapshot(fixture.storage).commits([instant])
    preempted = parse_preempted(metadata.extra)
    assert preempted in ({DAYS[0]: 1}, dict.fromkeys(DAYS, 1))
    assert commit.partitions == tuple(p for p in planned.partitions if p not in preempted)
    # No file of what was left out is there, and no marker.
    assert set(fixture.files_of(at)) == metadata.files()
    assert not [f.path for f in fixture.storage.list_tree(f".hoodie/.temp/{at}")]


@pytest.mark.parametrize("write", CHANGING.values(), ids=list(CHANGING))
class TestClusteringGivesWay:
    """A clustering conflicts with every change of its file groups."""

    def test_to_a_write_before_it_is_executed(self, write: Write) -> None:
        fixture = aged("clustering")
        at = fixture.schedule()
        assert write(fixture)
        rows = fixture.table.rows()
        assert_gives_way(fixture, at, lambda: fixture.execute(at))
        assert fixture.table.rows() == rows

    def test_to_a_write_while_it_is_executed(self, write: Write) -> None:
        fixture = aged("clustering")
        at = fixture.schedule()
        rows = []

        def other_process() -> None:
            assert write(fixture)
            rows.extend(fixture.table.rows())

        engine = InterruptedEngine(once(other_process))
        assert_gives_way(fixture, at, lambda: fixture.execute(at, engine))
        assert fixture.table.rows() == rows


@each_service
@pytest.mark.parametrize("write", REPLACING.values(), ids=list(REPLACING))
def test_what_takes_groups_out_pre_empts_every_service(service: str, write: Write) -> None:
    for executing in (False, True):
        fixture = aged(service)
        at = fixture.schedule()
        engine = InterruptedEngine(once(partial(write, fixture))) if executing else None
        if not executing:
            assert write(fixture)
        assert_gives_way(fixture, at, partial(fixture.execute, at, engine))
        rows = fixture.table.rows()
        assert fixture.table.rows() == rows != fixture.rows_before


@each_service
def test_the_reason_names_the_process_that_was_faster(service: str) -> None:
    fixture = aged(service)
    at = fixture.schedule()
    commit = overwrite_all(fixture)
    assert isinstance(commit, Commit)
    with pytest.raises(PreemptedError):
        fixture.execute(at)
    (rollback,) = fixture.rollbacks()
    assert rollback.caused_by == f"{commit.instant}_{commit.completed_at}.replacecommit"
    # The timeline shows it: without the file groups, which may be thousands.
    assert (rollback.reason or "").endswith("touches the same file groups as this write")


ORDINARY = {
    "an update under a clustering is refused": ("clustering", update),
    "so is a delete": ("clustering", delete),
    "and an overwrite": ("clustering", overwrite),
    "and that of a partition": ("clustering", drop),
}


@pytest.mark.parametrize(("service", "write"), ORDINARY.values(), ids=list(ORDINARY))
def test_with_an_ordinary_plan_ordinary_rules_hold(service: str, write: Write) -> None:
    fixture = PlanFixture(service)
    at = fixture.schedule(IMMUTABLE)
    with pytest.raises(ConflictError):
        write(fixture)
    fixture.assert_still_pending(at)
    assert fixture.execute(at)
    assert fixture.table.rows() == fixture.rows_before


@pytest.mark.parametrize("service", ["compaction", "logcompaction"])
@pytest.mark.parametrize("executing", [False, True], ids=["waiting", "executing"])
def test_log_files_written_during_a_compaction_are_no_conflict(
    service: str, executing: bool
) -> None:
    fixture = PlanFixture(service)
    at = fixture.schedule()
    if executing:
        assert fixture.execute(at, InterruptedEngine(lambda: update(fixture)))
    else:
        update(fixture)
        assert fixture.execute(at)
    assert {record["note"] for record in fixture.table.rows()} == {"ninth", "at 3"}


@each_service
def test_ttl_takes_no_notice_of_files_that_are_being_written(service: str) -> None:
    fixture = aged(service)
    at = fixture.schedule()
    fixture.crash_executing(at)
    assert isinstance(expire(fixture), Commit), "the files of a live execution"
    assert {record["id"] for record in fixture.table.rows()} == {"late"}
    fixture.assert_still_pending(at, "INFLIGHT")


def test_ttl_waits_for_an_ordinary_plan() -> None:
    fixture = aged("clustering")
    fixture.schedule(IMMUTABLE)
    skip = expire(fixture)
    assert isinstance(skip, Skip)
    assert "held by clustering" in skip.reason


@each_service
def test_early_detection_passes_over_files_of_a_cancellable_execution(service: str) -> None:
    fixture = PlanFixture(service)
    at = fixture.schedule()

    def other_process() -> None:
        fixture.table.upsert([row("a", 9, "ninth")], EARLY)

    commit = fixture.execute(at, InterruptedEngine(once(other_process)))
    assert commit.partitions == (DAYS[1:] if service == "clustering" else DAYS)
    assert row("a", 9, "ninth") in fixture.table.rows()


def kill(process: MortalStorage) -> None:
    process.dead = True
    raise Crash


class TestAnnouncedWrites:
    """A cancellable plan also fails for a write that is about to complete."""

    def test_an_update_is_not_aborted_by_a_clustering(self) -> None:
        fixture = PlanFixture("clustering")
        at = fixture.schedule()

        def cluster() -> None:
            assert_gives_way(fixture, at, lambda: fixture.execute(at))

        fixture.table.upsert([row("a", 9, "ninth")], before_commit=cluster)
        assert row("a", 9, "ninth") in fixture.table.rows()

    @pytest.mark.parametrize("operation", ["INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE"])
    def test_nor_is_an_overwrite(self, operation: str) -> None:
        fixture = PlanFixture("clustering")
        at = fixture.schedule()

        def cluster() -> None:
            assert_gives_way(fixture, at, lambda: fixture.execute(at))

        rows = [row("new", 1, "overwritten")]
        fixture.table.write(operation, rows, before_commit=cluster)
        assert row("new", 1, "overwritten") in fixture.table.rows()

    def test_a_writer_that_is_dead_is_not_waited_for(self) -> None:
        """Failed writes may be left where they are, and must not end all clusterings."""
        fixture = PlanFixture(
            "clustering", {**MULTI_WRITER, "hoodie.clean.failed.writes.policy": "NEVER"}
        )
        for operation in ("UPSERT", "INSERT_OVERWRITE"):
            mortal = MortalStorage(fixture.storage)
            dying = WrittenTable(mortal, fixture.clock, fixture.table.options)
            with pytest.raises(Crash):
                dying.write(operation, [row("a", 9)], before_commit=partial(kill, mortal))
        fixture.expire_heartbeats()
        assert fixture.execute(fixture.schedule())
        assert fixture.table.rows() == fixture.rows_before

    @pytest.mark.parametrize("operation", ["UPSERT", "INSERT_OVERWRITE"])
    def test_a_write_to_another_partition_is_no_conflict(self, operation: str) -> None:
        fixture = PlanFixture("clustering")
        at = fixture.schedule()
        commits: list[Commit] = []
        elsewhere = [row("new", day="2026-03-01")]
        fixture.table.write(
            operation, elsewhere, before_commit=lambda: commits.append(fixture.execute(at))
        )
        assert commits
        assert len(fixture.table.rows()) == len(fixture.rows_before) + 1

    def test_nor_are_log_files_for_a_compaction(self) -> None:
        fixture = PlanFixture("compaction")
        at = fixture.schedule()
        commits: list[Commit] = []
        fixture.table.upsert(
            [row("a", 9)], before_commit=lambda: commits.append(fixture.execute(at))
        )
        assert commits
        assert row("a", 9) in fixture.table.rows()

    def test_a_log_compaction_would_abort_them_and_leaves_them_their_groups(self) -> None:
        fixture = PlanFixture("logcompaction")
        at = fixture.schedule()

        def compact() -> None:
            assert_gives_way(fixture, at, lambda: fixture.execute(at))

        fixture.table.upsert([row("a", 9)], before_commit=compact)
        assert row("a", 9) in fixture.table.rows()

    def test_an_ordinary_clustering_goes_before_and_the_update_fails(self) -> None:
        fixture = PlanFixture("clustering")
        allowed = {"hoodie.clustering.updates.strategy": "ALLOW"}
        commits: list[Commit] = []
        with pytest.raises(ConflictError):
            fixture.table.upsert(
                [row("a", 9)],
                allowed,
                before_commit=lambda: commits.append(fixture.execute(fixture.schedule(IMMUTABLE))),
            )
        assert commits


def test_inserts_avoid_file_groups_of_pending_clusterings() -> None:
    fixture = PlanFixture("clustering")
    at = fixture.schedule()
    fixture.table.write("INSERT", [row("new")])
    assert fixture.execute(at)
    assert len(fixture.table.rows()) == len(fixture.rows_before) + 1


class TestPlansOverPlans:
    """A plan that is not cancellable takes the file groups of one that is."""

    @each_service
    def test_the_cancellable_one_goes_before_the_other_appears(self, service: str) -> None:
        fixture = PlanFixture(service)
        below = fixture.schedule()
        pending_plans: list[list[str]] = []
        storage = Watched(fixture.storage, service, pending_plans)
        instant = replace(fixture.runner(), storage=storage).schedule(service)
        assert isinstance(instant, Instant)
        assert pending_plans == [[]], "two plans for one group"
        assert fixture.state(below) == "GONE"
        (rollback,) = fixture.rollbacks()
        assert rollback.caused_by == f"{service} {instant.requested_at}"
        before = load_snapshot(fixture.storage).plan_of(instant.requested_at, Action(service))
        assert before is not None
        assert not before.cancellable
        assert fixture.execute(instant.requested_at)
        assert fixture.table.rows() == fixture.rows_before

    @each_service
    def test_also_if_its_execution_has_died(self, service: str) -> None:
        fixture = PlanFixture(service)
        below = fixture.schedule()
        fixture.crash_executing(below)
        fixture.expire_heartbeats()
        above = fixture.schedule(IMMUTABLE)
        assert (fixture.state(below), fixture.state(above)) == ("GONE", "REQUESTED")
        assert fixture.files_naming(below) == []
        assert fixture.execute(above)
        assert fixture.table.rows() == fixture.rows_before

    @each_service
    def test_but_not_while_it_is_being_executed(self, service: str) -> None:
        fixture = PlanFixture(service)
        below = fixture.schedule()
        outcomes: list[Instant | Skip] = []
        previews: list[object] = []

        def other_process() -> None:
            outcomes.append(fixture.runner().schedule(service))
            previews.append(fixture.runner().preview(service))

        assert fixture.execute(below, InterruptedEngine(other_process))
        assert isinstance(outcomes[0], Skip)
        assert f"{service} {below}, which is being executed" in outcomes[0].reason
        assert previews == outcomes

    @each_service
    def test_a_cancellable_plan_goes_over_no_other(self, service: str) -> None:
        for below in (IMMUTABLE, CANCELLABLE_PLAN):
            fixture = PlanFixture(service)
            at = fixture.schedule(below)
            skip = fixture.runner(CANCELLABLE_PLAN).schedule(service)
            assert isinstance(skip, Skip)
            assert f"held by {service} {at}" in skip.reason
            fixture.assert_still_pending(at)

    def test_file_groups_that_others_execute_are_skipped_and_the_rest_is_planned(self) -> None:
        fixture = PlanFixture("clustering")
        some = {"hoodie.clustering.plan.strategy.partition.selected": DAYS[0]}
        at = fixture.schedule({**CANCELLABLE_PLAN, **some})
        plans = []

        def other_process() -> None:
            plans.append(fixture.runner().preview("clustering"))

        assert fixture.execute(at, InterruptedEngine(other_process))
        assert plans[0].partitions == (DAYS[1],)
        assert plans[0].missing_partitions == (DAYS[0],)
        assert plans[0].missing_reasons[DAYS[0]].endswith("which is being executed")

    def test_a_compaction_goes_over_a_clustering(self) -> None:
        fixture = PlanFixture("compaction")
        outcome = fixture.runner(CANCELLABLE_PLAN).schedule("clustering")
        assert isinstance(outcome, Instant | Skip)
        single = {"hoodie.clustering.plan.strategy.single.group.clustering.enabled": "true"}
        if isinstance(outcome, Skip):
            outcome = fixture.runner({**CANCELLABLE_PLAN, **single}).schedule("clustering")
        assert isinstance(outcome, Instant)
        at = fixture.schedule(IMMUTABLE)
        assert fixture.state(outcome.requested_at) == "GONE"
        assert fixture.execute(at)
        assert fixture.table.rows() == fixture.rows_before


class Watched(CountingStorage):
    """Notes which plans of a service are pending when another one appears."""

    __slots__ = ("_pending_plans", "_service")

    def __init__(self, inner: object, service: str, pending_plans: list[list[str]]) -> None:
        super().__init__(inner)  # type: ignore[arg-type]
        self._service = service
        self._pending_plans = pending_plans

    def create(self, path: str, data: bytes) -> None:
        if path.endswith(f".{self._service}.requested"):
            pending = load_snapshot(self.inner).timeline.pending(Action(self._service))
            self._pending_plans.append([i.requested_at for i in pending])
        super().create(path, data)


class TestLogFilesOfACancelledCompaction:
    """What was written while a compaction was pending belongs to the base file before it."""

    @pytest.mark.parametrize("service", ["compaction", "logcompaction"])
    @pytest.mark.parametrize("begun", [False, True], ids=["requested", "inflight"])
    def test_nothing_of_it_is_lost_in_any_view(self, service: str, begun: bool) -> None:
        fixture = PlanFixture(service)
        fixture.table.clock.sleep(1)
        before = fixture.table.upsert([row("a", 4, "before")])
        at = fixture.schedule()
        if begun:
            fixture.crash_executing(at)
        during = fixture.table.upsert([row("a", 5, "during"), row("b", 5, "during", DAYS[1])])
        optimized = fixture.table.rows(optimized=True)
        fixture.expire_heartbeats()
        fixture.runner().cancel(at)
        fixture.assert_rolled_back(at)
        assert {record["note"] for record in fixture.table.rows()} == {"during"}
        assert fixture.table.rows(optimized=True) == optimized
        assert changed_since(fixture, before.completed_at) == {"a": "during", "b": "during"}
        after = fixture.table.upsert([row("a", 6, "after")])
        assert changed_since(fixture, during.completed_at) == {"a": "after"}
        assert fixture.runner().run("compaction")
        assert fixture.table.rows(optimized=True) == fixture.table.rows()
        assert {record["id"]: record["note"] for record in fixture.table.rows()} == {
            "a": "after",
            "b": "during",
        }
        assert after.instant > at


def changed_since(fixture: PlanFixture, since: str) -> dict[str, str]:
    plan = plan_changes(load_consistent_snapshot(fixture.storage), since=since)
    rows = read_plan(fixture.storage, plan.plan).to_pylist()
    return {record["id"]: record["note"] for record in rows}


def test_a_loop_reports_what_it_does_not_execute_and_does_not_sleep() -> None:
    fixture = PlanFixture("clustering")
    at = fixture.schedule()
    fixture.crash_executing(at)
    fixture.expire_heartbeats()
    steps = list(run_round(fixture.runner(), ["clustering", "clean"]))
    assert all(step.error is None for step in steps)
    assert any("executed once" in str(step.outcome) for step in steps)
    # The clustering that is not cancellable went over it.
    assert fixture.state(at) == "GONE"


def test_inline_services_leave_a_dead_plan_to_the_clean() -> None:
    options = {
        **MULTI_WRITER,
        **ALWAYS_DUE,
        **CANCELLABLE_PLAN,
        **NO_SERVICES,
        "hoodie.clean.automatic": "true",
        "hoodie.clustering.inline": "true",
        "hoodie.clustering.inline.max.commits": "100",
    }
    fixture = PlanFixture("clustering")
    at = fixture.schedule()
    fixture.crash_executing(at)
    fixture.expire_heartbeats()
    table = WrittenTable(fixture.storage, fixture.clock, options)
    commit = table.upsert([row("new", day="2026-03-01")])
    reasons = [outcome.reason for outcome in commit.services if isinstance(outcome, Skip)]
    assert any("executed once" in reason for reason in reasons)
    assert any(f"rolled back clustering {at}" in reason for reason in reasons)
    fixture.assert_rolled_back(at)
