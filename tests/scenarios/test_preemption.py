"""Writers do not wait for cancellable plans: these find the conflict themselves, fail, and go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pytest

from lakewright.engine.local import read_plan
from lakewright.errors import ConflictError
from lakewright.model.instant import Action, Instant
from lakewright.model.plans import Skip
from lakewright.model.ttl import HUDI_DAYS, HUDI_TYPE
from lakewright.scan.planner import plan_changes
from lakewright.services.maintenance_loop import run_round
from lakewright.table.snapshot import load_consistent_snapshot, load_snapshot
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
from support.concurrency import InterruptedEngine
from support.faults import MortalStorage
from support.tables import NO_SERVICES, WrittenTable, row

IMMUTABLE: Mapping[str, str] = {}
EARLY = {"hoodie.write.concurrency.early.conflict.detection.enable": "true"}
TTL = {HUDI_TYPE: "KEEP_BY_TIME", HUDI_DAYS: "1"}
A_WEEK_MS = 7 * 86_400_000


def update(world: PlanFixture) -> object:
    return world.table.upsert([row("a", 9, "ninth")])


def delete(world: PlanFixture) -> object:
    return world.table.write("DELETE", [row("a", 9)])


def overwrite(world: PlanFixture) -> object:
    return world.table.write("INSERT_OVERWRITE", [row("new", 1, "overwritten")])


def overwrite_all(world: PlanFixture) -> object:
    return world.table.write("INSERT_OVERWRITE_TABLE", [row("new", 1, "overwritten")])


def drop(world: PlanFixture) -> object:
    return world.table.delete_partitions(DAYS[0])


def expire(world: PlanFixture) -> object:
    return world.runner(TTL).run("ttl")


def aged(service: str) -> PlanFixture:
    """A table of which all but one partition is a week old."""
    world = PlanFixture(service)
    world.clock.advance(A_WEEK_MS)
    world.table.upsert([row("late", 1, "kept", "2026-02-01")])
    world.before = world.table.rows()
    return world


Write = Callable[[PlanFixture], object]
REPLACING: dict[str, Write] = {
    "insert_overwrite": overwrite,
    "insert_overwrite_table": overwrite_all,
    "delete_partitions": drop,
    "ttl": expire,
}
CHANGING: dict[str, Write] = {"an update": update, "a delete": delete, **REPLACING}


@pytest.mark.parametrize("write", CHANGING.values(), ids=list(CHANGING))
class TestClusteringGivesWay:
    """A clustering conflicts with every change of its file groups."""

    def test_to_a_write_before_it_is_executed(self, write: Write) -> None:
        world = aged("clustering")
        at = world.schedule()
        assert write(world)
        rows = world.table.rows()
        with pytest.raises(ConflictError):
            world.execute(at)
        world.assert_gone(at)
        assert world.table.rows() == rows

    def test_to_a_write_while_it_is_executed(self, write: Write) -> None:
        world = aged("clustering")
        at = world.schedule()
        rows = []

        def other_process() -> None:
            assert write(world)
            rows.extend(world.table.rows())

        with pytest.raises(ConflictError):
            world.execute(at, InterruptedEngine(other_process))
        world.assert_gone(at)
        assert world.table.rows() == rows


@each_service
@pytest.mark.parametrize("write", REPLACING.values(), ids=list(REPLACING))
def test_what_takes_groups_out_pre_empts_every_service(service: str, write: Write) -> None:
    for executing in (False, True):
        world = aged(service)
        at = world.schedule()
        if executing:
            with pytest.raises(ConflictError):
                world.execute(at, InterruptedEngine(lambda: write(world)))  # noqa: B023
        else:
            assert write(world)
            with pytest.raises(ConflictError):
                world.execute(at)
        rows = world.table.rows()
        world.assert_gone(at)
        assert world.table.rows() == rows != world.before


@each_service
def test_the_reason_tells_who_was_faster(service: str) -> None:
    world = aged(service)
    at = world.schedule()
    done = drop(world)
    assert isinstance(done, Commit)
    with pytest.raises(ConflictError):
        world.execute(at)
    (told,) = world.rollbacks()
    assert told.caused_by == f"{done.instant}_{done.completed_at}.replacecommit"
    # The timeline shows it: without the file groups, which may be thousands.
    assert (told.reason or "").endswith("touches the same file groups as this write")


ORDINARY = {
    "an update under a clustering is refused": ("clustering", update),
    "so is a delete": ("clustering", delete),
    "and an overwrite": ("clustering", overwrite),
    "and that of a partition": ("clustering", drop),
}


@pytest.mark.parametrize(("service", "write"), ORDINARY.values(), ids=list(ORDINARY))
def test_with_an_ordinary_plan_ordinary_rules_hold(service: str, write: Write) -> None:
    world = PlanFixture(service)
    at = world.schedule(IMMUTABLE)
    with pytest.raises(ConflictError):
        write(world)
    world.assert_kept(at)
    assert world.execute(at)
    assert world.table.rows() == world.before


@pytest.mark.parametrize("service", ["compaction", "logcompaction"])
@pytest.mark.parametrize("executing", [False, True], ids=["waiting", "executing"])
def test_log_files_beside_a_compaction_are_no_conflict(service: str, executing: bool) -> None:
    world = PlanFixture(service)
    at = world.schedule()
    if executing:
        assert world.execute(at, InterruptedEngine(lambda: update(world)))
    else:
        update(world)
        assert world.execute(at)
    assert {each["note"] for each in world.table.rows()} == {"ninth", "at 3"}


@each_service
def test_ttl_takes_no_notice_of_files_that_are_being_written(service: str) -> None:
    world = aged(service)
    at = world.schedule()
    world.die_executing(at)
    assert isinstance(expire(world), Commit), "the files of a living execution"
    assert {each["id"] for each in world.table.rows()} == {"late"}
    world.assert_kept(at, "INFLIGHT")


def test_ttl_waits_for_an_ordinary_plan() -> None:
    world = aged("clustering")
    world.schedule(IMMUTABLE)
    told = expire(world)
    assert isinstance(told, Skip)
    assert "held by clustering" in told.reason


@each_service
def test_early_detection_passes_over_files_of_a_cancellable_execution(service: str) -> None:
    world = PlanFixture(service)
    at = world.schedule()

    def other_process() -> None:
        world.table.upsert([row("a", 9, "ninth")], EARLY)

    if service == "clustering":
        with pytest.raises(ConflictError):
            world.execute(at, InterruptedEngine(other_process))
    else:
        assert world.execute(at, InterruptedEngine(other_process))
    assert row("a", 9, "ninth") in world.table.rows()


def kill(process: MortalStorage) -> None:
    process.dead = True
    raise Crash


class TestAnnouncedWrites:
    """A cancellable plan also fails for a write that is about to complete."""

    def test_an_update_is_not_aborted_by_a_clustering(self) -> None:
        world = PlanFixture("clustering")
        at = world.schedule()

        def cluster() -> None:
            with pytest.raises(ConflictError, match="is pending that touches the same file groups"):
                world.execute(at)

        world.table.upsert([row("a", 9, "ninth")], before_commit=cluster)
        world.assert_gone(at)
        assert row("a", 9, "ninth") in world.table.rows()

    @pytest.mark.parametrize("operation", ["INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE"])
    def test_nor_is_an_overwrite(self, operation: str) -> None:
        world = PlanFixture("clustering")
        at = world.schedule()

        def cluster() -> None:
            with pytest.raises(ConflictError, match="is pending"):
                world.execute(at)

        rows = [row("new", 1, "overwritten")]
        world.table.write(operation, rows, before_commit=cluster)
        world.assert_gone(at)
        assert row("new", 1, "overwritten") in world.table.rows()

    def test_a_writer_that_is_dead_is_not_waited_for(self) -> None:
        """Failed writes may be left where they are, and must not end all clusterings."""
        world = PlanFixture(
            "clustering", {**MULTI_WRITER, "hoodie.clean.failed.writes.policy": "NEVER"}
        )
        for operation in ("UPSERT", "INSERT_OVERWRITE"):
            mortal = MortalStorage(world.storage)
            dying = WrittenTable(mortal, world.clock, world.table.options)
            with pytest.raises(Crash):
                dying.write(operation, [row("a", 9)], before_commit=partial(kill, mortal))
        world.expire()
        assert world.execute(world.schedule())
        assert world.table.rows() == world.before

    @pytest.mark.parametrize("operation", ["UPSERT", "INSERT_OVERWRITE"])
    def test_a_write_elsewhere_is_none_of_its_business(self, operation: str) -> None:
        world = PlanFixture("clustering")
        at = world.schedule()
        done: list[Commit] = []
        elsewhere = [row("new", day="2026-03-01")]
        world.table.write(
            operation, elsewhere, before_commit=lambda: done.append(world.execute(at))
        )
        assert done
        assert len(world.table.rows()) == len(world.before) + 1

    def test_nor_are_log_files_for_a_compaction(self) -> None:
        world = PlanFixture("compaction")
        at = world.schedule()
        done: list[Commit] = []
        world.table.upsert([row("a", 9)], before_commit=lambda: done.append(world.execute(at)))
        assert done
        assert row("a", 9) in world.table.rows()

    def test_a_log_compaction_would_abort_them_and_fails(self) -> None:
        world = PlanFixture("logcompaction")
        at = world.schedule()

        def compact() -> None:
            with pytest.raises(ConflictError, match="a deltacommit is pending"):
                world.execute(at)

        world.table.upsert([row("a", 9)], before_commit=compact)
        world.assert_gone(at)
        assert row("a", 9) in world.table.rows()

    def test_an_ordinary_clustering_goes_before_and_the_update_fails(self) -> None:
        world = PlanFixture("clustering")
        allowed = {"hoodie.clustering.updates.strategy": "ALLOW"}
        done: list[Commit] = []
        with pytest.raises(ConflictError):
            world.table.upsert(
                [row("a", 9)],
                allowed,
                before_commit=lambda: done.append(world.execute(world.schedule(IMMUTABLE))),
            )
        assert done


def test_inserts_go_elsewhere_so_that_nobody_has_to_fail() -> None:
    world = PlanFixture("clustering")
    at = world.schedule()
    world.table.write("INSERT", [row("new")])
    assert world.execute(at)
    assert len(world.table.rows()) == len(world.before) + 1


class TestPlansOverPlans:
    """A plan that is not cancellable takes the file groups of one that is."""

    @each_service
    def test_the_cancellable_one_goes_before_the_other_appears(self, service: str) -> None:
        world = PlanFixture(service)
        below = world.schedule()
        seen: list[list[str]] = []
        storage = Watched(world.storage, service, seen)
        found = replace(world.runner(), storage=storage).schedule(service)
        assert isinstance(found, Instant)
        assert seen == [[]], "two plans for one group"
        assert world.state(below) == "GONE"
        (told,) = world.rollbacks()
        assert told.caused_by == f"{service} {found.requested_at}"
        before = load_snapshot(world.storage).plan_of(found.requested_at, Action(service))
        assert before is not None
        assert not before.cancellable
        assert world.execute(found.requested_at)
        assert world.table.rows() == world.before

    @each_service
    def test_also_if_its_execution_has_died(self, service: str) -> None:
        world = PlanFixture(service)
        below = world.schedule()
        world.die_executing(below)
        world.expire()
        above = world.schedule(IMMUTABLE)
        assert (world.state(below), world.state(above)) == ("GONE", "REQUESTED")
        assert world.left_of(below) == []
        assert world.execute(above)
        assert world.table.rows() == world.before

    @each_service
    def test_but_not_while_it_is_being_executed(self, service: str) -> None:
        world = PlanFixture(service)
        below = world.schedule()
        told: list[Instant | Skip] = []
        previews: list[object] = []

        def other_process() -> None:
            told.append(world.runner().schedule(service))
            previews.append(world.runner().preview(service))

        assert world.execute(below, InterruptedEngine(other_process))
        assert isinstance(told[0], Skip)
        assert f"{service} {below}, which is being executed" in told[0].reason
        assert previews == told

    @each_service
    def test_a_cancellable_plan_goes_over_no_other(self, service: str) -> None:
        for below in (IMMUTABLE, CANCELLABLE_PLAN):
            world = PlanFixture(service)
            at = world.schedule(below)
            told = world.runner(CANCELLABLE_PLAN).schedule(service)
            assert isinstance(told, Skip)
            assert f"held by {service} {at}" in told.reason
            world.assert_kept(at)

    def test_groups_that_others_execute_are_left_and_the_rest_is_planned(self) -> None:
        world = PlanFixture("clustering")
        some = {"hoodie.clustering.plan.strategy.partition.selected": DAYS[0]}
        at = world.schedule({**CANCELLABLE_PLAN, **some})
        plans = []

        def other_process() -> None:
            plans.append(world.runner().preview("clustering"))

        assert world.execute(at, InterruptedEngine(other_process))
        assert plans[0].partitions == (DAYS[1],)
        assert plans[0].missing_partitions == (DAYS[0],)
        assert plans[0].missing_reasons[DAYS[0]].endswith("which is being executed")

    def test_a_compaction_goes_over_a_clustering(self) -> None:
        world = PlanFixture("compaction")
        found = world.runner(CANCELLABLE_PLAN).schedule("clustering")
        assert isinstance(found, Instant | Skip)
        single = {"hoodie.clustering.plan.strategy.single.group.clustering.enabled": "true"}
        if isinstance(found, Skip):
            found = world.runner({**CANCELLABLE_PLAN, **single}).schedule("clustering")
        assert isinstance(found, Instant)
        at = world.schedule(IMMUTABLE)
        assert world.state(found.requested_at) == "GONE"
        assert world.execute(at)
        assert world.table.rows() == world.before


class Watched(CountingStorage):
    """Notes which plans of a service are pending when another one appears."""

    __slots__ = ("_seen", "_service")

    def __init__(self, inner: object, service: str, seen: list[list[str]]) -> None:
        super().__init__(inner)  # type: ignore[arg-type]
        self._service = service
        self._seen = seen

    def create(self, path: str, data: bytes) -> None:
        if path.endswith(f".{self._service}.requested"):
            pending = load_snapshot(self.inner).timeline.pending(Action(self._service))
            self._seen.append([i.requested_at for i in pending])
        super().create(path, data)


class TestLogFilesOfACancelledCompaction:
    """What was written while a compaction was pending belongs to the base file before it."""

    @pytest.mark.parametrize("service", ["compaction", "logcompaction"])
    @pytest.mark.parametrize("begun", [False, True], ids=["requested", "inflight"])
    def test_nothing_of_it_is_lost_in_any_view(self, service: str, begun: bool) -> None:
        world = PlanFixture(service)
        world.table.clock.sleep(1)
        before = world.table.upsert([row("a", 4, "before")])
        at = world.schedule()
        if begun:
            world.die_executing(at)
        during = world.table.upsert([row("a", 5, "during"), row("b", 5, "during", DAYS[1])])
        optimized = world.table.rows(optimized=True)
        world.expire()
        world.runner().cancel(at)
        world.assert_gone(at)
        assert {each["note"] for each in world.table.rows()} == {"during"}
        assert world.table.rows(optimized=True) == optimized
        assert changed_since(world, before.completed_at) == {"a": "during", "b": "during"}
        after = world.table.upsert([row("a", 6, "after")])
        assert changed_since(world, during.completed_at) == {"a": "after"}
        assert world.runner().run("compaction")
        assert world.table.rows(optimized=True) == world.table.rows()
        assert {each["id"]: each["note"] for each in world.table.rows()} == {
            "a": "after",
            "b": "during",
        }
        assert after.instant > at


def changed_since(world: PlanFixture, since: str) -> dict[str, str]:
    plan = plan_changes(load_consistent_snapshot(world.storage), since=since)
    found = read_plan(world.storage, plan.plan).to_pylist()
    return {each["id"]: each["note"] for each in found}


def test_a_loop_tells_what_it_does_not_execute_and_does_not_rest() -> None:
    world = PlanFixture("clustering")
    at = world.schedule()
    world.die_executing(at)
    world.expire()
    steps = list(run_round(world.runner(), ["clustering", "clean"]))
    assert all(step.error is None for step in steps)
    assert any("executed once" in str(step.outcome) for step in steps)
    # The clustering that is not cancellable went over it.
    assert world.state(at) == "GONE"


def test_inline_services_leave_a_dead_plan_to_the_clean() -> None:
    told = {
        **MULTI_WRITER,
        **ALWAYS_DUE,
        **CANCELLABLE_PLAN,
        **NO_SERVICES,
        "hoodie.clean.automatic": "true",
        "hoodie.clustering.inline": "true",
        "hoodie.clustering.inline.max.commits": "100",
    }
    world = PlanFixture("clustering")
    at = world.schedule()
    world.die_executing(at)
    world.expire()
    table = WrittenTable(world.storage, world.clock, told)
    done = table.upsert([row("new", day="2026-03-01")])
    reasons = [each.reason for each in done.services if isinstance(each, Skip)]
    assert any("executed once" in reason for reason in reasons)
    assert any(f"rolled back clustering {at}" in reason for reason in reasons)
    world.assert_gone(at)
