"""The scenarios of the design: who may execute a plan, of both kinds, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from lakewright.errors import ConflictError, InvalidError, UnavailableError
from lakewright.format.timeline_metadata import format_commit, format_replace_commit
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.instant import Action, Instant
from lakewright.model.plans import Skip
from lakewright.table.heartbeat import FOLDER as HEARTBEATS
from lakewright.table.plan_execution import PlanInProgressError
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import Crash, CrashingStorage
from support.cancellable_plans import CANCELLABLE_PLAN, MULTI_WRITER, PlanFixture, each_service
from support.concurrency import InterruptedEngine
from support.faults import MortalStorage, each_crash

IMMUTABLE: dict[str, str] = {}
DELAY = {"hoodie.table.service.rollback.delay.minutes": "10"}
TEN_MINUTES_MS = 600_000


def refused(world: PlanFixture, at: str) -> Callable[[], None]:
    """Another writer that finds the plan taken."""

    def attempt() -> None:
        with pytest.raises(PlanInProgressError, match="is being executed"):
            world.execute(at)

    return attempt


def then(*acts: Callable[[], object]) -> None:
    """One act after the other."""
    for act in acts:
        act()


def lost() -> None:
    raise UnavailableError("a worker was lost")


def results_of(world: PlanFixture, at: str) -> list[str]:
    """The completed files of an instant on the timeline."""
    names = [f.name for f in world.storage.list_files(".hoodie/timeline")]
    return [name for name in names if name.startswith(f"{at}_")]


class TestImmutable:
    """Plans that stay until they were executed."""

    @each_service
    def test_a_of_many_writers_one_executes_a_new_plan(self, service: str) -> None:
        world = PlanFixture(service)
        at = world.schedule(IMMUTABLE)
        done = world.execute(at, InterruptedEngine(refused(world, at)))
        assert world.execute(at) == done
        assert len(results_of(world, at)) == 1
        assert world.rollbacks() == []
        assert world.table.rows() == world.before

    @each_service
    def test_b_who_comes_second_waits_for_the_first(self, service: str) -> None:
        world = PlanFixture(service)
        at = world.schedule(IMMUTABLE)
        with pytest.raises(UnavailableError):
            world.execute(at, InterruptedEngine(partial(then, refused(world, at), lost)))
        world.assert_kept(at)
        assert world.execute(at)

    @each_service
    def test_b_or_rolls_a_dead_attempt_back_and_executes_again(self, service: str) -> None:
        world = PlanFixture(service)
        at = world.schedule(IMMUTABLE)
        world.die_executing(at)
        refused(world, at)()
        world.expire()
        assert world.execute(at)
        (rollback,) = world.rollbacks()
        assert (rollback.target.requested_at, rollback.caused_by) == (at, None)
        assert len(results_of(world, at)) == 1
        assert world.table.rows() == world.before

    @each_service
    def test_b_and_the_first_that_only_held_still_completes_nothing(self, service: str) -> None:
        world = PlanFixture(service)
        at = world.schedule(IMMUTABLE)
        done = []

        def overtake() -> None:
            world.expire()
            done.append(world.execute(at))

        with pytest.raises(ConflictError):
            world.execute(at, InterruptedEngine(overtake))
        assert world.execute(at) == done[0]
        assert len(results_of(world, at)) == 1
        assert world.table.rows() == world.before

    @each_service
    def test_c_a_plan_that_was_begun_is_rolled_back_once(self, service: str) -> None:
        world = PlanFixture(service)
        at = world.schedule(IMMUTABLE)
        world.die_executing(at)
        world.expire()
        with pytest.raises(UnavailableError):
            world.execute(at, InterruptedEngine(lost))
        assert len(world.rollbacks()) == 1
        done = world.execute(at, InterruptedEngine(refused(world, at)))
        assert len(world.rollbacks()) == 1
        assert world.execute(at) == done
        assert world.table.rows() == world.before


class TestMutable:
    """Plans that go with a failed attempt."""

    @each_service
    def test_a_of_many_writers_one_executes_a_new_plan(self, service: str) -> None:
        world = PlanFixture(service)
        at = world.schedule()
        done = world.execute(at, InterruptedEngine(refused(world, at)))
        assert world.execute(at) == done
        assert len(results_of(world, at)) == 1
        assert world.rollbacks() == []
        assert world.table.rows() == world.before

    @each_service
    def test_b_if_the_first_fails_the_others_fail(self, service: str) -> None:
        world = PlanFixture(service)
        at = world.schedule()
        with pytest.raises(UnavailableError, match="a worker was lost") as failure:
            world.execute(at, InterruptedEngine(partial(then, refused(world, at), lost)))
        assert failure.value.__notes__ == [
            "The plan was cancellable, and was rolled back with its execution."
        ]
        world.assert_gone(at)
        (told,) = world.rollbacks()
        assert (told.caused_by, told.reason) == ("its execution", "a worker was lost")
        with pytest.raises(InvalidError, match="was rolled back") as gone:
            world.execute(at)
        assert gone.value.facts["reason"] == "a worker was lost"
        assert world.table.rows() == world.before

    @each_service
    def test_c_a_plan_that_was_begun_is_executed_by_nobody(self, service: str) -> None:
        world = PlanFixture(service)
        at = world.schedule()
        world.die_executing(at)
        world.expire()
        for _ in "XY":
            with pytest.raises(PlanInProgressError, match="executed once"):
                world.execute(at)
        world.assert_kept(at, "INFLIGHT")
        world.clean()
        world.assert_gone(at)
        assert world.table.rows() == world.before

    @each_service
    def test_d_a_clean_leaves_alone_what_is_being_executed(self, service: str) -> None:
        world = PlanFixture(service)
        at = world.schedule()

        def clean() -> None:
            world.clock.advance(100_000)
            world.clean()
            assert world.state(at) == "INFLIGHT"

        assert world.execute(at, InterruptedEngine(clean))
        assert world.rollbacks() == []
        assert world.table.rows() == world.before

    @each_service
    def test_d_but_not_what_only_held_still(self, service: str) -> None:
        world = PlanFixture(service)
        at = world.schedule()

        def clean() -> None:
            world.expire()
            world.clean()

        with pytest.raises(ConflictError):
            world.execute(at, InterruptedEngine(clean))
        world.assert_gone(at)
        assert world.table.rows() == world.before

    @each_service
    @pytest.mark.parametrize("age_ms", [0, TEN_MINUTES_MS - 1000])
    def test_e_a_young_plan_has_its_chance(self, service: str, age_ms: int) -> None:
        world = PlanFixture(service)
        at = world.schedule()
        world.clock.advance(age_ms)
        world.clean(DELAY)
        world.assert_kept(at)
        assert world.execute(at)
        assert world.table.rows() == world.before

    @each_service
    def test_e_an_old_one_has_not(self, service: str) -> None:
        world = PlanFixture(service)
        at = world.schedule()
        world.clock.advance(TEN_MINUTES_MS)
        told = world.clean(DELAY)
        assert isinstance(told, Skip)
        assert f"{service} {at}, nobody has begun it in 10 minutes" in told.reason
        world.assert_gone(at)
        with pytest.raises(InvalidError, match="was rolled back"):
            world.execute(at)

    @each_service
    @each_crash
    def test_e_a_clean_that_dies_has_decided_once_its_rollback_is_there(
        self, service: str, after_effect: bool
    ) -> None:
        for survive in range(100):
            world = PlanFixture(service)
            at = world.schedule()
            dying = CrashingStorage(world.storage, survive, after_effect=after_effect)
            runner = replace(world.runner(), storage=dying)
            try:
                runner.run("clean")
            except Crash:
                pass
            else:
                break
            self._execute_after_a_dead_clean(world, at)
        assert survive > 5

    def _execute_after_a_dead_clean(self, world: PlanFixture, at: str) -> None:
        if world.rollbacks() or world.state(at) == "GONE":
            with pytest.raises((PlanInProgressError, InvalidError)):
                world.execute(at)
            world.table.upsert(world.before[:1])
            world.assert_gone(at)
        else:
            assert world.execute(at)
        assert world.table.rows() == world.before


@each_service
@pytest.mark.parametrize("plan", [IMMUTABLE, CANCELLABLE_PLAN], ids=["immutable", "cancellable"])
class TestGuard:
    """What holds for plans of both kinds."""

    def test_a_heartbeat_is_gone_when_the_execution_ends(
        self, service: str, plan: dict[str, str]
    ) -> None:
        for end in (lambda: None, lost):
            world = PlanFixture(service)
            at = world.schedule(plan)
            beating: list[str] = []
            hands = InterruptedEngine(partial(then, lambda: beating.extend(beats(world)), end))  # noqa: B023
            with suppress(UnavailableError):
                world.execute(at, hands)
            assert beating == [at]
            assert beats(world) == []

    def test_the_heartbeat_of_a_process_killed_before_it_began_expires(
        self, service: str, plan: dict[str, str]
    ) -> None:
        world = PlanFixture(service)
        at = world.schedule(plan)
        mortal = DiesAtInflight(world.storage)
        with pytest.raises(Crash):
            replace(world.runner(), storage=mortal).execute(at)
        assert world.state(at) == "REQUESTED"
        refused(world, at)()
        world.expire()
        assert world.execute(at)

    def test_real_hudi_beats_before_it_begins(self, service: str, plan: dict[str, str]) -> None:
        world = PlanFixture(service)
        at = world.schedule(plan)
        world.storage.replace(f"{HEARTBEATS}/{at}", b"")
        refused(world, at)()

    def test_a_commit_whose_heartbeat_has_expired_is_not_made(
        self, service: str, plan: dict[str, str]
    ) -> None:
        world = PlanFixture(service)
        at = world.schedule(plan)
        with pytest.raises(ConflictError, match="heartbeat has expired"):
            world.execute(at, InterruptedEngine(world.expire))
        assert results_of(world, at) == []
        assert world.state(at) == ("REQUESTED" if plan is IMMUTABLE else "GONE")
        assert world.table.rows() == world.before

    def test_a_commit_stands_though_its_heartbeat_cannot_be_deleted(
        self, service: str, plan: dict[str, str]
    ) -> None:
        world = PlanFixture(service)
        at = world.schedule(plan)
        runner = replace(world.runner(), storage=KeepsHeartbeats(world.storage))
        assert runner.execute(at).instant == at
        assert beats(world) == [at]
        assert len(results_of(world, at)) == 1
        world.expire()
        assert world.execute(at).instant == at

    def test_the_guard_can_be_switched_off(self, service: str, plan: dict[str, str]) -> None:
        world = PlanFixture(service)
        at = world.schedule(plan)
        world.storage.replace(f"{HEARTBEATS}/{at}", b"")
        off = {"hoodie.table.service.execution.guard": "false"}
        assert world.runner(off).execute(at)

    def test_and_on_for_a_lone_writer(self, service: str, plan: dict[str, str]) -> None:
        world = PlanFixture(service, options={})
        at = world.schedule(plan)
        world.storage.replace(f"{HEARTBEATS}/{at}", b"")
        on = {"hoodie.table.service.execution.guard": "true"}
        with pytest.raises(PlanInProgressError, match="is being executed"):
            world.runner(on).execute(at)
        assert world.execute(at)

    def test_the_table_may_say_so_as_well(self, service: str, plan: dict[str, str]) -> None:
        world = PlanFixture(service, options={})
        store(world, "hoodie.table.service.execution.guard", "true")
        at = world.schedule(plan)
        seen: list[str] = []
        world.execute(at, InterruptedEngine(lambda: seen.extend(beats(world))))
        assert seen == [at]


def beats(world: PlanFixture) -> list[str]:
    return [file.name for file in world.storage.list_files(HEARTBEATS)]


def store(world: PlanFixture, key: str, value: str) -> None:
    path = ".hoodie/hoodie.properties"
    world.storage.replace(path, world.storage.read(path) + f"{key}={value}\n".encode())


class DiesAtInflight(MortalStorage):
    """Dies when it is about to show that it has begun."""

    def create(self, path: str, data: bytes) -> None:
        if path.endswith(".inflight"):
            self.dead = True
        super().create(path, data)


class KeepsHeartbeats(MortalStorage):
    """Does not answer when a heartbeat is to be deleted."""

    def delete(self, path: str) -> None:
        if path.startswith(HEARTBEATS):
            raise UnavailableError("no answer", path=path)
        super().delete(path)


@each_service
def test_every_cancellable_execution_has_a_heartbeat(service: str) -> None:
    """Whoever asks, be it with other options, must not take a lone writer for dead."""
    world = PlanFixture(service, options={})
    at = world.schedule()
    seen: list[str] = []
    world.execute(at, InterruptedEngine(lambda: seen.extend(beats(world))))
    assert seen == [at]


@each_service
def test_what_somebody_else_has_completed_stays(service: str) -> None:
    """Who does not know of guards may execute the same plan, and be faster."""
    world = PlanFixture(service)
    at = world.schedule()
    words = {"compaction": "commit", "logcompaction": "deltacommit", "clustering": "replacecommit"}

    def complete() -> None:
        done = Instant(at, Action(words[service]), completed_at=f"{int(at) + 1}")
        write = format_replace_commit if service == "clustering" else format_commit
        data = write(CommitMetadata(operation="COMPACT", extra={"schema": "{}"}))
        world.storage.create(f".hoodie/timeline/{done.file_name}", data)

    with pytest.raises(ConflictError, match="completed by another process"):
        world.execute(at, InterruptedEngine(complete))
    assert world.state(at) == "COMPLETED"
    assert (world.files_of(at), world.rollbacks()) == ([], [])
    assert world.table.rows() == world.before


def test_the_picture_of_three_writers() -> None:
    """A and B begin at the same time, one of them goes on and dies, and C executes the plan."""
    world = PlanFixture("compaction")
    at = world.schedule(IMMUTABLE)
    with pytest.raises(UnavailableError):
        world.execute(at, InterruptedEngine(partial(then, refused(world, at), lost)))
    world.die_executing(at)
    refused(world, at)()
    world.expire()
    done = world.execute(at)
    assert (done.instant, done.action) == (at, "commit")
    assert world.table.rows() == world.before == world.table.rows(optimized=True)


def test_the_plan_tells_and_real_hudi_reads_it_as_any_other() -> None:
    for service in ("compaction", "clustering"):
        world = PlanFixture(service)
        plain, marked = (
            world.runner(told).preview(service) for told in (IMMUTABLE, CANCELLABLE_PLAN)
        )
        assert (plain.cancellable, marked.cancellable) == (False, True)
        assert marked.extra == {**plain.extra, **CANCELLABLE_PLAN}
        assert replace(marked, extra=plain.extra) == plain
        at = world.schedule()
        found = load_snapshot(world.storage).plan_of(at, Action(service))
        assert found is not None
        assert found.cancellable


def test_a_plan_may_be_made_cancellable_by_the_table() -> None:
    world = PlanFixture("compaction")
    store(world, *next(iter(CANCELLABLE_PLAN.items())))
    assert world.runner().preview("compaction").cancellable
    off = dict.fromkeys(CANCELLABLE_PLAN, "false")
    assert not world.runner(off).preview("compaction").cancellable
    assert "cancellable" not in str(world.runner().preview("clean"))


def test_other_services_take_no_notice() -> None:
    world = PlanFixture("compaction", options={**MULTI_WRITER, **CANCELLABLE_PLAN})
    assert world.runner().run("compaction")
    for _ in range(2):
        world.table.upsert(world.before)
    found = world.runner({"hoodie.clean.commits.retained": "1"}).schedule("clean")
    assert isinstance(found, Instant)
    ((_, plan),) = load_snapshot(world.storage).pending_cleans()
    assert not plan.extra.keys() & CANCELLABLE_PLAN.keys()
