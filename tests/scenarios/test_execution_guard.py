"""The scenarios of the design: which process may execute a plan of either kind, and how it ends."""

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

pytestmark = pytest.mark.sampled(3)

IMMUTABLE: dict[str, str] = {}
DELAY = {"hoodie.table.service.rollback.delay.minutes": "10"}
TEN_MINUTES_MS = 600_000


def refused(fixture: PlanFixture, at: str) -> Callable[[], None]:
    """Another writer that finds the plan taken."""

    def attempt() -> None:
        with pytest.raises(PlanInProgressError, match="is being executed"):
            fixture.execute(at)

    return attempt


def then(*acts: Callable[[], object]) -> None:
    """One act after the other."""
    for act in acts:
        act()


def lose_worker() -> None:
    raise UnavailableError("a worker was lost")


def results_of(fixture: PlanFixture, at: str) -> list[str]:
    """The completed files of an instant on the timeline."""
    names = [f.name for f in fixture.storage.list_files(".hoodie/timeline")]
    return [name for name in names if name.startswith(f"{at}_")]


class TestImmutable:
    """Plans that stay until they were executed."""

    @each_service
    def test_a_of_many_writers_one_executes_a_new_plan(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule(IMMUTABLE)
        commit = fixture.execute(at, InterruptedEngine(refused(fixture, at)))
        assert fixture.execute(at) == commit
        assert len(results_of(fixture, at)) == 1
        assert fixture.rollbacks() == []
        assert fixture.table.rows() == fixture.rows_before

    @each_service
    def test_b_the_second_process_waits_for_the_first(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule(IMMUTABLE)
        with pytest.raises(UnavailableError):
            fixture.execute(at, InterruptedEngine(partial(then, refused(fixture, at), lose_worker)))
        fixture.assert_still_pending(at)
        assert fixture.execute(at)

    @each_service
    def test_b_or_rolls_a_dead_attempt_back_and_executes_again(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule(IMMUTABLE)
        fixture.crash_executing(at)
        refused(fixture, at)()
        fixture.expire_heartbeats()
        assert fixture.execute(at)
        (rollback,) = fixture.rollbacks()
        assert (rollback.target.requested_at, rollback.caused_by) == (at, None)
        assert len(results_of(fixture, at)) == 1
        assert fixture.table.rows() == fixture.rows_before

    @each_service
    def test_b_and_a_first_process_that_only_stalled_completes_nothing(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule(IMMUTABLE)
        commits = []

        def overtake() -> None:
            fixture.expire_heartbeats()
            commits.append(fixture.execute(at))

        with pytest.raises(ConflictError):
            fixture.execute(at, InterruptedEngine(overtake))
        assert fixture.execute(at) == commits[0]
        assert len(results_of(fixture, at)) == 1
        assert fixture.table.rows() == fixture.rows_before

    @each_service
    def test_c_a_plan_that_was_begun_is_rolled_back_once(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule(IMMUTABLE)
        fixture.crash_executing(at)
        fixture.expire_heartbeats()
        with pytest.raises(UnavailableError):
            fixture.execute(at, InterruptedEngine(lose_worker))
        assert len(fixture.rollbacks()) == 1
        commit = fixture.execute(at, InterruptedEngine(refused(fixture, at)))
        assert len(fixture.rollbacks()) == 1
        assert fixture.execute(at) == commit
        assert fixture.table.rows() == fixture.rows_before


class TestMutable:
    """Plans that go with a failed attempt."""

    @each_service
    def test_a_of_many_writers_one_executes_a_new_plan(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()
        commit = fixture.execute(at, InterruptedEngine(refused(fixture, at)))
        assert fixture.execute(at) == commit
        assert len(results_of(fixture, at)) == 1
        assert fixture.rollbacks() == []
        assert fixture.table.rows() == fixture.rows_before

    @each_service
    def test_b_if_the_first_fails_the_others_fail(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()
        with pytest.raises(UnavailableError, match="a worker was lost") as failure:
            fixture.execute(at, InterruptedEngine(partial(then, refused(fixture, at), lose_worker)))
        assert failure.value.__notes__ == [
            "The plan was cancellable, and was rolled back with its execution."
        ]
        fixture.assert_rolled_back(at)
        (rollback,) = fixture.rollbacks()
        assert (rollback.caused_by, rollback.reason) == ("its execution", "a worker was lost")
        with pytest.raises(InvalidError, match="was rolled back") as refusal:
            fixture.execute(at)
        assert refusal.value.facts["reason"] == "a worker was lost"
        assert fixture.table.rows() == fixture.rows_before

    @each_service
    def test_c_a_plan_whose_execution_began_is_not_executed_again(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()
        fixture.crash_executing(at)
        fixture.expire_heartbeats()
        for _ in "XY":
            with pytest.raises(PlanInProgressError, match="executed once"):
                fixture.execute(at)
        fixture.assert_still_pending(at, "INFLIGHT")
        fixture.clean()
        fixture.assert_rolled_back(at)
        assert fixture.table.rows() == fixture.rows_before

    @each_service
    def test_d_a_clean_leaves_alone_what_is_being_executed(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()

        def clean() -> None:
            fixture.clock.advance(100_000)
            fixture.clean()
            assert fixture.state(at) == "INFLIGHT"

        assert fixture.execute(at, InterruptedEngine(clean))
        assert fixture.rollbacks() == []
        assert fixture.table.rows() == fixture.rows_before

    @each_service
    def test_d_but_not_an_execution_that_stalled(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()

        def clean() -> None:
            fixture.expire_heartbeats()
            fixture.clean()

        with pytest.raises(ConflictError):
            fixture.execute(at, InterruptedEngine(clean))
        fixture.assert_rolled_back(at)
        assert fixture.table.rows() == fixture.rows_before

    @each_service
    @pytest.mark.parametrize("age_ms", [0, TEN_MINUTES_MS - 1000])
    def test_e_a_clean_leaves_a_young_plan(self, service: str, age_ms: int) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()
        fixture.clock.advance(age_ms)
        fixture.clean(DELAY)
        fixture.assert_still_pending(at)
        assert fixture.execute(at)
        assert fixture.table.rows() == fixture.rows_before

    @each_service
    def test_e_a_clean_rolls_back_an_old_plan(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()
        fixture.clock.advance(TEN_MINUTES_MS)
        skip = fixture.clean(DELAY)
        assert isinstance(skip, Skip)
        assert f"{service} {at}, nobody has begun it in 10 minutes" in skip.reason
        fixture.assert_rolled_back(at)
        with pytest.raises(InvalidError, match="was rolled back"):
            fixture.execute(at)

    @each_service
    @each_crash
    def test_e_a_clean_that_dies_has_decided_once_its_rollback_is_there(
        self, service: str, after_effect: bool
    ) -> None:
        for survive in range(100):
            fixture = PlanFixture(service)
            at = fixture.schedule()
            dying = CrashingStorage(fixture.storage, survive, after_effect=after_effect)
            runner = replace(fixture.runner(), storage=dying)
            try:
                runner.run("clean")
            except Crash:
                pass
            else:
                break
            self._execute_after_a_dead_clean(fixture, at)
        assert survive > 5

    def _execute_after_a_dead_clean(self, fixture: PlanFixture, at: str) -> None:
        if fixture.rollbacks() or fixture.state(at) == "GONE":
            with pytest.raises((PlanInProgressError, InvalidError)):
                fixture.execute(at)
            fixture.table.upsert(fixture.rows_before[:1])
            fixture.assert_rolled_back(at)
        else:
            assert fixture.execute(at)
        assert fixture.table.rows() == fixture.rows_before


@each_service
@pytest.mark.parametrize("plan", [IMMUTABLE, CANCELLABLE_PLAN], ids=["immutable", "cancellable"])
class TestGuard:
    """What holds for plans of both kinds."""

    def test_a_heartbeat_is_deleted_when_the_execution_ends(
        self, service: str, plan: dict[str, str]
    ) -> None:
        for end in (lambda: None, lose_worker):
            fixture = PlanFixture(service)
            at = fixture.schedule(plan)
            beating: list[str] = []
            engine = InterruptedEngine(partial(then, lambda: beating.extend(beats(fixture)), end))  # noqa: B023
            with suppress(UnavailableError):
                fixture.execute(at, engine)
            assert beating == [at]
            assert beats(fixture) == []

    def test_the_heartbeat_of_a_process_killed_before_it_began_expires(
        self, service: str, plan: dict[str, str]
    ) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule(plan)
        mortal = DiesAtInflight(fixture.storage)
        with pytest.raises(Crash):
            replace(fixture.runner(), storage=mortal).execute(at)
        assert fixture.state(at) == "REQUESTED"
        refused(fixture, at)()
        fixture.expire_heartbeats()
        assert fixture.execute(at)

    def test_real_hudi_beats_before_it_begins(self, service: str, plan: dict[str, str]) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule(plan)
        fixture.storage.replace(f"{HEARTBEATS}/{at}", b"")
        refused(fixture, at)()

    def test_a_commit_whose_heartbeat_has_expired_is_not_made(
        self, service: str, plan: dict[str, str]
    ) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule(plan)
        with pytest.raises(ConflictError, match="heartbeat has expired"):
            fixture.execute(at, InterruptedEngine(fixture.expire_heartbeats))
        assert results_of(fixture, at) == []
        assert fixture.state(at) == ("REQUESTED" if plan is IMMUTABLE else "GONE")
        assert fixture.table.rows() == fixture.rows_before

    def test_a_commit_stands_though_its_heartbeat_cannot_be_deleted(
        self, service: str, plan: dict[str, str]
    ) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule(plan)
        runner = replace(fixture.runner(), storage=KeepsHeartbeats(fixture.storage))
        assert runner.execute(at).instant == at
        assert beats(fixture) == [at]
        assert len(results_of(fixture, at)) == 1
        fixture.expire_heartbeats()
        assert fixture.execute(at).instant == at

    def test_the_guard_can_be_switched_off(self, service: str, plan: dict[str, str]) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule(plan)
        fixture.storage.replace(f"{HEARTBEATS}/{at}", b"")
        off = {"hoodie.table.service.execution.guard": "false"}
        assert fixture.runner(off).execute(at)

    def test_and_on_for_a_lone_writer(self, service: str, plan: dict[str, str]) -> None:
        fixture = PlanFixture(service, options={})
        at = fixture.schedule(plan)
        fixture.storage.replace(f"{HEARTBEATS}/{at}", b"")
        on = {"hoodie.table.service.execution.guard": "true"}
        with pytest.raises(PlanInProgressError, match="is being executed"):
            fixture.runner(on).execute(at)
        assert fixture.execute(at)

    def test_the_table_may_switch_the_guard_on_as_well(
        self, service: str, plan: dict[str, str]
    ) -> None:
        fixture = PlanFixture(service, options={})
        store(fixture, "hoodie.table.service.execution.guard", "true")
        at = fixture.schedule(plan)
        heartbeats: list[str] = []
        fixture.execute(at, InterruptedEngine(lambda: heartbeats.extend(beats(fixture))))
        assert heartbeats == [at]


def beats(fixture: PlanFixture) -> list[str]:
    return [file.name for file in fixture.storage.list_files(HEARTBEATS)]


def store(fixture: PlanFixture, key: str, value: str) -> None:
    path = ".hoodie/hoodie.properties"
    fixture.storage.replace(path, fixture.storage.read(path) + f"{key}={value}\n".encode())


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
    """Processes with other options must not take a lone writer for dead."""
    fixture = PlanFixture(service, options={})
    at = fixture.schedule()
    heartbeats: list[str] = []
    fixture.execute(at, InterruptedEngine(lambda: heartbeats.extend(beats(fixture))))
    assert heartbeats == [at]


@each_service
def test_what_another_process_completed_stays(service: str) -> None:
    """A process without the guard may execute the same plan, and complete it first."""
    fixture = PlanFixture(service)
    at = fixture.schedule()
    words = {"compaction": "commit", "logcompaction": "deltacommit", "clustering": "replacecommit"}

    def complete() -> None:
        instant = Instant(at, Action(words[service]), completed_at=f"{int(at) + 1}")
        write = format_replace_commit if service == "clustering" else format_commit
        data = write(CommitMetadata(operation="COMPACT", extra={"schema": "{}"}))
        fixture.storage.create(f".hoodie/timeline/{instant.file_name}", data)

    with pytest.raises(ConflictError, match="completed by another process"):
        fixture.execute(at, InterruptedEngine(complete))
    assert fixture.state(at) == "COMPLETED"
    assert (fixture.files_of(at), fixture.rollbacks()) == ([], [])
    assert fixture.table.rows() == fixture.rows_before


def test_three_writers_of_one_plan() -> None:
    """A and B begin at the same time, one of them goes on and dies, and C executes the plan."""
    fixture = PlanFixture("compaction")
    at = fixture.schedule(IMMUTABLE)
    with pytest.raises(UnavailableError):
        fixture.execute(at, InterruptedEngine(partial(then, refused(fixture, at), lose_worker)))
    fixture.crash_executing(at)
    refused(fixture, at)()
    fixture.expire_heartbeats()
    commit = fixture.execute(at)
    assert (commit.instant, commit.action) == (at, "commit")
    assert fixture.table.rows() == fixture.rows_before == fixture.table.rows(optimized=True)


def test_real_hudi_reads_the_plan_as_any_other() -> None:
    for service in ("compaction", "clustering"):
        fixture = PlanFixture(service)
        plain, marked = (
            fixture.runner(options).preview(service) for options in (IMMUTABLE, CANCELLABLE_PLAN)
        )
        assert (plain.cancellable, marked.cancellable) == (False, True)
        assert marked.extra == {**plain.extra, **CANCELLABLE_PLAN}
        assert replace(marked, extra=plain.extra) == plain
        at = fixture.schedule()
        plan = load_snapshot(fixture.storage).plan_of(at, Action(service))
        assert plan is not None
        assert plan.cancellable


def test_a_plan_may_be_made_cancellable_by_the_table() -> None:
    fixture = PlanFixture("compaction")
    store(fixture, *next(iter(CANCELLABLE_PLAN.items())))
    assert fixture.runner().preview("compaction").cancellable
    off = dict.fromkeys(CANCELLABLE_PLAN, "false")
    assert not fixture.runner(off).preview("compaction").cancellable
    assert "cancellable" not in str(fixture.runner().preview("clean"))


def test_plans_of_other_services_are_not_cancellable() -> None:
    fixture = PlanFixture("compaction", options={**MULTI_WRITER, **CANCELLABLE_PLAN})
    assert fixture.runner().run("compaction")
    for _ in range(2):
        fixture.table.upsert(fixture.rows_before)
    instant = fixture.runner({"hoodie.clean.commits.retained": "1"}).schedule("clean")
    assert isinstance(instant, Instant)
    ((_, plan),) = load_snapshot(fixture.storage).pending_cleans()
    assert not plan.extra.keys() & CANCELLABLE_PLAN.keys()
