"""Whether a plan may be executed, as the guard sees it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import InstantRef, RollbackPlan
from lakewright.table.plan_execution import execution_refusal
from lakewright.table.rollback import PendingRollback
from lakewright.testing.timeline_drawing import at

ROLLBACK = PendingRollback(
    Instant(at(5), Action.ROLLBACK, State.REQUESTED),
    RollbackPlan(instant=InstantRef(at(1), "replacecommit"), caused_by="clean", reason="old"),
)


@dataclass(frozen=True)
class Case:
    """A plan as it stands, and the reason why it is refused; None if it may be executed."""

    message: str | None
    cancellable: bool = False
    state: State = State.REQUESTED
    live: bool = False
    targeted: bool = False


CASES = {
    "a plan that waits may be executed": Case(None),
    "so may a cancellable one": Case(None, cancellable=True),
    "one with a live execution may not": Case("is being executed", live=True),
    "nor a cancellable one": Case("is being executed", cancellable=True, live=True),
    "one whose execution began may not": Case("is being executed", state=State.INFLIGHT, live=True),
    "a dead attempt is rolled back, and the plan executed": Case(None, state=State.INFLIGHT),
    "a cancellable plan has one attempt": Case(
        "executed once", cancellable=True, state=State.INFLIGHT
    ),
    "the rollback of an attempt does not take an ordinary plan": Case(None, targeted=True),
    "a cancellable one goes with it": Case(
        "rolled back, by clean", cancellable=True, targeted=True
    ),
    "also if it was begun": Case(
        "rolled back, by clean", cancellable=True, state=State.INFLIGHT, targeted=True
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_refused_executions(case: Case) -> None:
    refusal = execution_refusal(
        Instant(at(1), Action.CLUSTERING, case.state),
        cancellable=case.cancellable,
        is_live=case.live,
        rollback=ROLLBACK if case.targeted else None,
    )
    assert (refusal is None) is (case.message is None)
    assert (case.message or "") in (refusal or "")
