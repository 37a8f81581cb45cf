"""Plans that another writer has aborted, or requested to cancel, as Hudi's RFC 90 describes it.

Hudi 1.2 writes and reads neither: the plan stays pending for it, until it is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lakewright.errors import ConflictError, InvalidError
from lakewright.model.instant import Action, Instant, State
from lakewright.services.maintenance_loop import run_round
from lakewright.table.doctor.doctor import examine
from lakewright.table.heartbeat import FOLDER as HEARTBEATS
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import Crash, CrashingStorage
from lakewright.write.writer import Commit
from support.cancellable_plans import MULTI_WRITER, PlanFixture, each_service
from support.concurrency import InterruptedEngine, once
from support.tables import row

pytestmark = pytest.mark.sampled(3)

TIMELINE = ".hoodie/timeline"
CANCEL = ".hoodie/.cancel"


def abort(fixture: PlanFixture, at: str) -> None:
    fixture.storage.create(f"{TIMELINE}/{at}.{fixture.service}.aborted", b"")


def request_cancel(fixture: PlanFixture, at: str) -> None:
    fixture.storage.create(f"{CANCEL}/{at}", b"")


def requested(fixture: PlanFixture) -> str:
    return fixture.schedule({})


def begun(fixture: PlanFixture) -> str:
    at = fixture.schedule({})
    fixture.crash_executing(at)
    fixture.expire_heartbeats()
    return at


def without_plan(fixture: PlanFixture) -> str:
    """The aborted file took the place of the requested one."""
    at = fixture.schedule({})
    fixture.storage.delete(f"{TIMELINE}/{at}.{fixture.service}.requested")
    return at


LEFT = {"was requested": requested, "was begun": begun, "is renamed": without_plan}
each_left = pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
Left = Callable[[PlanFixture], str]


def aborted(service: str, left: Left = requested) -> tuple[PlanFixture, str]:
    """A table with an aborted plan, and its instant."""
    fixture = PlanFixture(service)
    at = left(fixture)
    abort(fixture, at)
    return fixture, at


@each_service
@each_left
def test_it_is_neither_pending_nor_completed(service: str, left: Left) -> None:
    fixture, at = aborted(service, left)
    timeline = load_snapshot(fixture.storage).timeline
    assert [i.requested_at for i in timeline.aborted] == [at]
    assert not timeline.pending()
    assert not timeline.is_committed(at)
    assert fixture.state(at) == "ABORTED"
    assert fixture.table.rows() == fixture.rows_before


@each_service
@each_left
def test_it_is_not_executed(service: str, left: Left) -> None:
    fixture, at = aborted(service, left)
    with pytest.raises(InvalidError, match="was aborted by another writer"):
        fixture.execute(at)
    run_round(fixture.runner({"hoodie.clean.failed.writes.policy": "NEVER"}), [service])
    assert fixture.state(at) == "ABORTED"


@each_service
@each_left
def test_it_holds_no_file_groups(service: str, left: Left) -> None:
    fixture, at = aborted(service, left)
    fixture.table.upsert([row("a", 9, "ninth")])
    assert row("a", 9, "ninth") in fixture.table.rows()
    commit = fixture.runner().run(service)
    assert isinstance(commit, Commit)
    assert commit.instant != at
    assert row("a", 9, "ninth") in fixture.table.rows()


@each_service
@each_left
def test_a_clean_rolls_it_back(service: str, left: Left) -> None:
    fixture, at = aborted(service, left)
    fixture.clean()
    fixture.assert_rolled_back(at)
    assert fixture.table.rows() == fixture.rows_before


@pytest.mark.parametrize("left", [requested, begun], ids=["was requested", "was begun"])
def test_wherever_the_clean_dies_the_plan_is_not_executed_and_the_next_one_goes_on(
    left: Left,
) -> None:
    start, at = aborted("clustering", left)
    for survive in range(100):
        fixture = start.copy()
        fixture.expire_heartbeats()
        runner = replace(fixture.runner(), storage=CrashingStorage(fixture.storage, survive))
        try:
            runner.run("clean")
        except Crash:
            assert not load_snapshot(fixture.storage).timeline.pending(Action.CLUSTERING)
            assert fixture.table.rows() == fixture.rows_before
            fixture.clock.advance(3_600_000)
            fixture.clean()
            fixture.table.upsert([row("a", 9, "ninth")])
            assert fixture.state(at) == "GONE"
            assert not fixture.files_of(at)
        else:
            assert survive > 3
            return
    raise AssertionError("the clean never ended")


def test_a_write_of_a_single_writer_rolls_it_back_with_its_clean() -> None:
    fixture = PlanFixture("clustering", {})
    at = requested(fixture)
    abort(fixture, at)
    fixture.table.upsert([row("a", 9, "ninth")], {"hoodie.clean.automatic": "true"})
    assert fixture.state(at) == "GONE"


def test_not_while_its_execution_has_a_live_heartbeat() -> None:
    fixture, at = aborted("clustering")
    fixture.storage.replace(f"{HEARTBEATS}/{at}", b"")
    fixture.clean()
    assert fixture.state(at) == "ABORTED"
    fixture.expire_heartbeats()
    fixture.clean()
    fixture.assert_rolled_back(at)


@pytest.mark.parametrize("mark", [abort, request_cancel], ids=["aborted", "cancelled"])
def test_not_by_a_writer_that_never_cleans_up(
    mark: Callable[[PlanFixture, str], None],
) -> None:
    fixture = PlanFixture("clustering")
    at = requested(fixture)
    mark(fixture, at)
    fixture.clean({"hoodie.clean.failed.writes.policy": "NEVER"})
    assert fixture.state(at) != "GONE"


@each_service
def test_an_execution_that_is_aborted_meanwhile_does_not_commit(service: str) -> None:
    fixture = PlanFixture(service)
    at = requested(fixture)
    engine = InterruptedEngine(once(lambda: abort(fixture, at)))
    with pytest.raises(ConflictError, match="aborted by another writer during its execution"):
        fixture.execute(at, engine)
    assert fixture.state(at) == "ABORTED"
    assert not fixture.files_of(at)
    fixture.clean()
    fixture.assert_rolled_back(at)


@each_service
@pytest.mark.parametrize("left", [requested, begun], ids=["was requested", "was begun"])
def test_a_clean_rolls_back_a_plan_that_is_to_be_cancelled(service: str, left: Left) -> None:
    fixture = PlanFixture(service)
    at = left(fixture)
    request_cancel(fixture, at)
    fixture.clean()
    fixture.assert_rolled_back(at)
    assert not list(fixture.storage.list_files(CANCEL))
    assert fixture.table.rows() == fixture.rows_before


def test_but_not_one_that_is_being_executed() -> None:
    fixture = PlanFixture("clustering")
    at = requested(fixture)

    def marked() -> None:
        request_cancel(fixture, at)
        fixture.clean()
        assert fixture.state(at) == "INFLIGHT"

    engine = InterruptedEngine(once(marked))
    with pytest.raises(ConflictError, match="is to be cancelled"):
        fixture.execute(at, engine)
    fixture.clean()
    fixture.assert_rolled_back(at)


def test_archiving_does_not_go_past_it_until_a_clean_has_rolled_it_back() -> None:
    """Real Hudi 1.2 sees a pending plan, and takes what is missing after it for not committed."""
    fixture, at = aborted("clustering")
    archive = {
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.clean.commits.retained": "1",
    }
    for number in range(6):
        fixture.table.upsert([row("new", number, day="2026-05-05")])
    before = fixture.table.rows()
    fixture.runner(archive).run("archive")
    timeline = load_snapshot(fixture.storage).timeline
    assert timeline.start is not None
    assert timeline.start <= at
    fixture.clean(archive)
    assert isinstance(fixture.runner(archive).run("archive"), Commit)
    start = load_snapshot(fixture.storage).timeline.start
    assert start is not None
    assert start > at
    assert fixture.table.rows() == before


def test_a_plan_that_has_completed_stays_completed() -> None:
    fixture = PlanFixture("clustering")
    at = requested(fixture)
    fixture.execute(at)
    abort(fixture, at)
    fixture.clean()
    assert fixture.state(at) == "COMPLETED"
    assert fixture.table.rows() == fixture.rows_before


@each_left
def test_cancelling_it_rolls_it_back(left: Left) -> None:
    fixture, at = aborted("clustering", left)
    assert fixture.runner().cancel(at, reason="it is over").is_completed
    fixture.assert_rolled_back(at)


@each_service
@each_left
def test_the_doctor_finds_no_fault_with_it(service: str, left: Left) -> None:
    fixture, _ = aborted(service, left)
    findings = examine(fixture.storage, fixture.clock).findings
    assert [f for f in findings if "plan" in f.message or "inflight" in f.message] == []


UNKNOWN = (
    "{at}.aborted",
    "{at}.clustering.paused",
    "{at}.deltacommit.aborted",
    "{at}_{at}.aborted",
    "{at}.clustering.requested.cancel",
)


@pytest.mark.parametrize("name", UNKNOWN)
def test_files_of_unknown_states_change_nothing(name: str) -> None:
    fixture = PlanFixture("clustering", MULTI_WRITER)
    at = requested(fixture)
    before = load_snapshot(fixture.storage).timeline
    fixture.storage.create(f"{TIMELINE}/{name.format(at=at)}", b"")
    assert load_snapshot(fixture.storage).timeline == before
    fixture.clean()
    assert (
        Instant(at, Action.CLUSTERING, State.REQUESTED) in load_snapshot(fixture.storage).timeline
    )
    assert fixture.execute(at)
    assert fixture.table.rows() == fixture.rows_before
