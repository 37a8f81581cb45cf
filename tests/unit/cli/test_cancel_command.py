"""`table.cancel`, `lakewright cancel` and the procedure: what they do, and what can be seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lakewright.api.table import Table
from lakewright.cli.main import app
from lakewright.errors import InvalidError
from lakewright.model.instant import State
from lakewright.model.plans import Skip
from lakewright.sql.procedures.base import bound_arguments, parse_call
from lakewright.sql.procedures.plans import PLAN_PROCEDURES
from lakewright.table.heartbeat import FOLDER as HEARTBEATS
from support.cancellable_plans import ALWAYS_DUE, CANCELLABLE_PLAN, PlanFixture
from support.tables import row

LOCK = ["--option", "hoodie.write.lock.provider=in_process"]


@pytest.fixture
def fixture() -> PlanFixture:
    return PlanFixture("clustering")


def command(fixture: PlanFixture, at: str, *more: str) -> Result:
    return CliRunner().invoke(app, ["cancel", fixture.storage.root, at, *LOCK, *more])


def timeline(fixture: PlanFixture, *more: str) -> Result:
    return CliRunner().invoke(app, ["timeline", fixture.storage.root, *more])


def test_the_table_takes_an_instant_or_its_text(fixture: PlanFixture) -> None:
    table = Table(fixture.storage)
    fixture.schedule()
    (planned,) = [i for i in table.timeline() if not i.is_completed]
    instant = table.cancel(planned, user="ann", reason="not tonight")
    assert (instant.action, instant.state) == ("rollback", State.COMPLETED)
    assert table.cancel(planned.requested_at) == instant
    (rollback,) = table.rollbacks()
    assert (rollback.instant, rollback.target.action) == (instant, "clustering")
    assert (rollback.caused_by, rollback.reason) == ("request of ann", "not tonight")


def test_options_are_checked(fixture: PlanFixture) -> None:
    at = fixture.schedule()
    with pytest.raises(InvalidError, match="did_you_mean"):
        Table(fixture.storage).cancel(at, {"hoodie.write.lock.providr": "file"})
    fixture.assert_still_pending(at)


def test_scheduling_with_the_option_makes_a_plan_that_can_be_cancelled(
    fixture: PlanFixture,
) -> None:
    table = Table(fixture.storage)
    planned = table.schedule("clustering", {**ALWAYS_DUE, **CANCELLABLE_PLAN})
    assert not isinstance(planned, Skip)
    assert table.cancel(planned).is_completed


def test_the_command_reports_what_happened_to_the_plan(fixture: PlanFixture) -> None:
    at = fixture.schedule()
    result = command(fixture, at, "--reason", "not tonight", "--user", "ann", "--json")
    assert result.exit_code == 0, result.output
    (rollback,) = fixture.rollbacks()
    assert json.loads(result.stdout) == {
        "table": fixture.storage.root,
        "instant": at,
        "result": "removed",
        "rollback": rollback.instant.requested_at,
        "state": "COMPLETED",
    }
    fixture.assert_rolled_back(at)


def test_the_command_asks_a_live_executor_to_stop(fixture: PlanFixture) -> None:
    at = fixture.schedule()
    # The command goes by the clock of this machine.
    alive = fixture.storage.files() | {f"{HEARTBEATS}/{at}": b""}
    fixture.storage = type(fixture.storage).fresh(alive)
    result = command(fixture, at)
    assert result.exit_code == 0, result.output
    assert "asked to stop" in result.stdout
    (rollback,) = fixture.rollbacks()
    assert rollback.instant.state is State.REQUESTED


def test_history_shows_what_was_cancelled_by_what_and_why(fixture: PlanFixture) -> None:
    waiting = fixture.schedule()
    assert "cancellable" in timeline(fixture).stdout
    command(fixture, waiting, "--reason", "not tonight")
    expected = f"clustering {waiting}, by request: not tonight"
    assert expected in timeline(fixture).stdout
    shown = json.loads(timeline(fixture, "--json").stdout)["instants"]
    assert [entry.get("detail") for entry in shown if entry["action"] == "rollback"] == [expected]


def test_a_timeline_with_a_broken_plan_can_be_shown(fixture: PlanFixture) -> None:
    at = fixture.schedule()
    fixture.storage.replace(f".hoodie/timeline/{at}.clustering.requested", b"no plan")
    result = timeline(fixture)
    assert result.exit_code == 0
    assert at in result.stdout


@dataclass(frozen=True)
class Bad:
    """A command that is refused."""

    message: str
    instant: Callable[[PlanFixture], str]


def ordinary(fixture: PlanFixture) -> str:
    return fixture.schedule({})


def write(fixture: PlanFixture) -> str:
    return Table(fixture.storage).timeline()[0].requested_at


BAD = {
    "an instant that is not there": Bad("no plan at this instant", lambda _: "20250101000000000"),
    "a write": Bad("has completed", write),
    "an ordinary plan": Bad("not cancellable", ordinary),
}


@pytest.mark.parametrize("case", BAD.values(), ids=list(BAD))
def test_bad_calls_end_with_code_2_and_change_nothing(fixture: PlanFixture, case: Bad) -> None:
    at = case.instant(fixture)
    before = fixture.storage.files()
    result = command(fixture, at)
    assert result.exit_code == 2
    assert case.message in result.stderr
    assert at in result.stderr
    assert fixture.storage.files() == before


def called(fixture: PlanFixture, text: str) -> list[Any]:
    call = parse_call(text)
    assert call is not None
    procedure = next(candidate for candidate in PLAN_PROCEDURES if candidate.name == call.name)
    rows = procedure.run(Table(fixture.storage), bound_arguments(call, procedure.parameters))
    assert {len(result) for result in rows} <= {procedure.columns.count(",") + 1}
    return rows


def test_the_procedures(fixture: PlanFixture) -> None:
    at = fixture.schedule()
    table = f"path => '{fixture.storage.root}'"
    (row,) = called(
        fixture,
        f"CALL cancel_table_service({table}, instant => '{at}', reason => 'not tonight', "
        "user => 'ann', wait => 1)",
    )
    (rollback,) = fixture.rollbacks()
    assert row == (at, rollback.instant.requested_at, "COMPLETED")
    (shown,) = called(fixture, f"CALL show_rollbacks({table})")
    # By Hudi's names the instant is that of the rollback.
    assert shown[:3] == (rollback.instant.requested_at, at, 0)
    assert shown[5:] == ("COMPLETED", "clustering", "request of ann", "not tonight")
    assert called(fixture, f"CALL show_rollbacks({table}, limit => 0)") == []


SHORT = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
}


def test_the_reason_of_a_cancelled_plan_stays_in_history(fixture: PlanFixture) -> None:
    at = fixture.schedule()
    rollback = Table(fixture.storage).cancel(at, user="ann", reason="not tonight")
    for number in range(8):
        fixture.table.write("BULK_INSERT", [row(f"n{number}")])
        fixture.runner(SHORT).run("archive")
    table = Table(fixture.storage)
    assert table.rollbacks() == ()
    (info,) = table.rollbacks(archived=True)
    assert (info.instant, str(info)) == (
        rollback,
        f"clustering {at}, by request of ann: not tonight",
    )
    path = f"path => '{fixture.storage.root}'"
    assert called(fixture, f"CALL show_rollbacks({path})") == []
    (shown,) = called(fixture, f"CALL show_rollbacks({path}, showArchived => true)")
    assert shown[5:] == ("COMPLETED", "clustering", "request of ann", "not tonight")
    result = timeline(fixture, "--archived", "--json")
    listed = json.loads(result.stdout)["instants"]
    assert [entry["detail"] for entry in listed if entry["action"] == "rollback"] == [str(info)]
    times = [entry["requested_at"] for entry in listed]
    assert times == sorted(times)


def test_an_instant_may_be_given_as_a_number(fixture: PlanFixture) -> None:
    at = fixture.schedule()
    assert called(fixture, f"CALL cancel_table_service(path => 'x', instant => {at})")
    with pytest.raises(InvalidError, match="takes a number as wait"):
        called(fixture, f"CALL cancel_table_service(path => 'x', instant => {at}, wait => 'long')")
