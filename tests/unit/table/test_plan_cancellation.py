"""Plans that are cancelled on request: rolled back at once, or when their executor has stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest

from lakewright.errors import ConflictError, InvalidError
from lakewright.format.timeline_metadata import parse_rollback_plan
from lakewright.model.instant import Instant, State
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import Crash
from support.cancellable_plans import CANCELLABLE_PLAN, MULTI_WRITER, PlanFixture, each_service
from support.concurrency import InterruptedEngine
from support.faults import MortalStorage
from support.tables import row

IMMUTABLE: Mapping[str, str] = {}


@each_service
class TestCancel:
    """Every kind of plan, however far it has come."""

    def test_a_waiting_plan_is_rolled_back_at_once(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()
        rollback = fixture.runner().cancel(at, user="ann", reason="not tonight")
        assert rollback.state is State.COMPLETED
        fixture.assert_rolled_back(at)
        (metadata,) = fixture.rollbacks()
        assert (metadata.caused_by, metadata.reason) == ("request of ann", "not tonight")
        assert str(metadata) == f"{service} {at}, by request of ann: not tonight"
        assert fixture.table.rows() == fixture.rows_before

    def test_one_whose_execution_has_died_is_rolled_back_with_its_files(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()
        fixture.crash_executing(at)
        fixture.expire_heartbeats()
        assert fixture.runner().cancel(at).is_completed
        fixture.assert_rolled_back(at)
        (rollback,) = fixture.rollbacks()
        assert rollback.files > 0
        assert fixture.table.rows() == fixture.rows_before

    def test_it_may_be_repeated(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()
        first = fixture.runner().cancel(at, reason="first")
        assert fixture.runner().cancel(at, reason="second") == first
        assert [rollback.reason for rollback in fixture.rollbacks()] == ["first"]

    def test_an_execution_sees_the_request_before_it_completes(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()
        requests: list[Instant] = []

        def cancel() -> None:
            requests.append(fixture.runner().cancel(at, reason="enough"))
            assert fixture.runner().cancel(at) == requests[0]
            # Writers and cleans leave a live execution alone.
            fixture.table.upsert(fixture.rows_before)
            fixture.clean()
            assert fixture.state(at) == "INFLIGHT"

        with pytest.raises(ConflictError, match="was rolled back"):
            fixture.execute(at, InterruptedEngine(cancel))
        assert requests[0].state is State.REQUESTED
        fixture.assert_rolled_back(at)
        (rollback,) = fixture.rollbacks()
        assert (rollback.caused_by, rollback.reason) == ("request", "enough")
        assert fixture.runner().cancel(at).is_completed
        assert fixture.table.rows() == fixture.rows_before

    def test_and_between_file_groups(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()
        files: list[int] = []

        def cancel(item: int) -> None:
            files.append(len(fixture.files_of(at)))
            if item == 1:
                fixture.runner().cancel(at, reason="enough")

        with pytest.raises(ConflictError, match="asked to stop") as stopped:
            fixture.execute(at, InterruptedEngine(before_item=cancel))
        assert files == [0, 1], "one file group was done, and no other"
        assert stopped.value.facts["reason"] == "enough"
        fixture.assert_rolled_back(at)

    def test_if_it_dies_then_the_next_writer_rolls_back_the_plan(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()
        fixture.crash_executing(at)
        request = fixture.runner().cancel(at, reason="enough")
        assert request.state is State.REQUESTED
        fixture.table.upsert(fixture.rows_before)
        assert fixture.state(at) == "INFLIGHT", "it may be alive"
        fixture.expire_heartbeats()
        fixture.table.upsert(fixture.rows_before)
        fixture.assert_rolled_back(at)
        assert fixture.rollbacks()[0].reason == "enough"

    def test_waiting_ends_when_it_is_rolled_back_or_has_died(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()
        fixture.crash_executing(at)
        began = fixture.clock.now_ms()
        assert fixture.runner().cancel(at, wait_s=10).state is State.REQUESTED
        assert fixture.clock.now_ms() - began >= 10_000
        assert fixture.runner().cancel(at, wait_s=600).state is State.COMPLETED
        assert fixture.clock.now_ms() - began < 200_000
        fixture.assert_rolled_back(at)

    def test_no_process_begins_a_plan_that_is_being_rolled_back(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule()
        mortal = DiesAfterRequest(fixture.storage)
        with pytest.raises(Crash):
            replace(fixture.runner(), storage=mortal).cancel(at, reason="enough")
        with pytest.raises(ConflictError, match="is being rolled back, by request"):
            fixture.execute(at)
        assert fixture.runner().cancel(at, reason="again").is_completed
        fixture.assert_rolled_back(at)
        assert fixture.rollbacks()[0].reason == "enough"

    def test_an_ordinary_plan_is_refused(self, service: str) -> None:
        fixture = PlanFixture(service)
        at = fixture.schedule(IMMUTABLE)
        with pytest.raises(InvalidError, match="not cancellable"):
            fixture.runner().cancel(at)
        fixture.assert_still_pending(at)
        assert fixture.execute(at)

    def test_the_plan_on_the_timeline_names_what_it_is_about(self, service: str) -> None:
        """A reader that knows no causes reads an ordinary rollback of an ordinary instant."""
        fixture = PlanFixture(service)
        at = fixture.schedule()
        rollback = fixture.runner().cancel(at)
        path = f".hoodie/timeline/{rollback.requested_at}.rollback.requested"
        plan = parse_rollback_plan(fixture.storage.read(path))
        words = {"compaction": "commit", "logcompaction": "deltacommit"}
        assert plan.instant.requested_at == at
        assert plan.instant.action == words.get(service, "replacecommit")


class DiesAfterRequest(MortalStorage):
    """Dies once a rollback is requested."""

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        if path.endswith(".rollback.requested"):
            self.dead = True
            raise Crash


@dataclass(frozen=True)
class Bad:
    """A call that is refused."""

    message: str
    call: Callable[[PlanFixture], object]


def completed(fixture: PlanFixture) -> str:
    return load_snapshot(fixture.storage).timeline.completed_writes[0].requested_at


def pending_write(fixture: PlanFixture) -> object:
    """Cancel a write while it is under way."""
    instants: list[str] = []

    def other_process() -> None:
        (write,) = load_snapshot(fixture.storage).timeline.pending()
        instants.append(write.requested_at)
        with pytest.raises(InvalidError, match="no plan of a table service"):
            fixture.runner().cancel(write.requested_at)
        with pytest.raises(InvalidError, match="a pending write"):
            fixture.runner().execute(write.requested_at)

    fixture.table.upsert(fixture.rows_before, before_commit=other_process)
    return fixture.runner().cancel(instants[0])


def completed_service(fixture: PlanFixture) -> object:
    at = fixture.schedule()
    fixture.execute(at)
    return fixture.runner().cancel(at)


def run_with(options: Mapping[str, str]) -> Callable[[PlanFixture], object]:
    return lambda fixture: fixture.runner(options).run("compaction")


DELAY = "hoodie.table.service.rollback.delay.minutes"
INTERVAL = "hoodie.client.heartbeat.interval_in_ms"
MISSES = "hoodie.client.heartbeat.tolerable.misses"
NOWHERE = "20250101000000000"
BAD = {
    "cancelling what is not there": Bad(
        "no plan at this instant", lambda w: w.runner().cancel("1")
    ),
    "cancelling an unknown instant": Bad(
        "no plan at this instant", lambda w: w.runner().cancel(NOWHERE)
    ),
    "cancelling what is no time": Bad(
        "no plan at this instant", lambda w: w.runner().cancel("yesterday")
    ),
    "cancelling a write": Bad("has completed", lambda w: w.runner().cancel(completed(w))),
    "executing what is not there": Bad(
        "no plan at this instant", lambda w: w.runner().execute(NOWHERE)
    ),
    "executing a write": Bad("no plan at this instant", lambda w: w.runner().execute(completed(w))),
    "a negative delay": Bad("0 or more", run_with({DELAY: "-1"})),
    "a delay that is no number": Bad(DELAY, run_with({DELAY: "soon"})),
    "a negative delay in the options of a write": Bad(
        "0 or more", lambda w: w.table.upsert(w.rows_before, {DELAY: "-1"})
    ),
    "a heartbeat that is too fast": Bad("1000 or more", run_with({INTERVAL: "999"})),
    "a heartbeat that never misses": Bad("1 or more", run_with({MISSES: "0"})),
    "a mark that is neither true nor false": Bad(
        "true or false", run_with(dict.fromkeys(CANCELLABLE_PLAN, "x"))
    ),
    "a guard that is neither on nor off": Bad(
        "true or false", run_with({"hoodie.table.service.execution.guard": "on"})
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=list(BAD))
def test_bad_input_is_refused_and_changes_nothing(case: Bad) -> None:
    fixture = PlanFixture("compaction")
    before = fixture.storage.files()
    with pytest.raises(InvalidError, match=case.message) as error:
        case.call(fixture)
    assert error.value.facts
    assert fixture.storage.files() == before


LATE = {
    "a write that has completed since": pending_write,
    "a service that has completed": completed_service,
}


@pytest.mark.parametrize("call", LATE.values(), ids=list(LATE))
def test_what_has_completed_cannot_be_cancelled(call: Callable[[PlanFixture], object]) -> None:
    fixture = PlanFixture("compaction")
    with pytest.raises(InvalidError, match="has completed"):
        call(fixture)
    assert fixture.rollbacks() == []


def test_the_plans_that_could_be_cancelled_are_named() -> None:
    fixture = PlanFixture("compaction")
    at = fixture.schedule()
    with pytest.raises(InvalidError) as error:
        fixture.runner().cancel(NOWHERE)
    assert error.value.facts == {"instant": NOWHERE, "waiting": [at]}


def test_an_archived_write_is_no_plan_either() -> None:
    fixture = PlanFixture("clustering")
    first = completed(fixture)
    for ts in range(2, 14):
        fixture.table.upsert([row("a", ts)])
    small = {
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.clean.commits.retained": "1",
    }
    assert fixture.runner(small).run("clean")
    assert fixture.runner(small).run("archive")
    assert first in load_snapshot(fixture.storage).archived_times
    with pytest.raises(InvalidError, match="no plan"):
        fixture.runner().execute(first)
    with pytest.raises(InvalidError, match="has completed"):
        fixture.runner().cancel(first)


def test_a_lone_writer_may_cancel_too() -> None:
    for options in ({}, MULTI_WRITER):
        fixture = PlanFixture("clustering", options=options)
        at = fixture.schedule()
        assert fixture.runner().cancel(at).is_completed
        fixture.assert_rolled_back(at)
