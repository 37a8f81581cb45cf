"""The guard of plans: whether one may be executed now, asked under the table's lock.

Who executes a plan shows by a heartbeat that it lives, and starts it in the transaction in which it
asks. So of several that ask at once one finds nobody there, and the others find that one.
"""

from __future__ import annotations

from lakewright.core.instant import Instant, State
from lakewright.errors import ConflictError
from lakewright.table.equipment import Equipment
from lakewright.table.rollback import PendingRollback, rollback_of
from lakewright.table.snapshot import Snapshot


class GuardError(ConflictError):
    """A plan is not to be executed: somebody else has it, or it is about to go."""


def require_free(
    equipment: Equipment, snapshot: Snapshot, current: Instant, *, cancellable: bool
) -> None:
    """GuardError unless a pending plan may be executed; the snapshot was loaded under the lock."""
    asks = equipment.guards(snapshot.config) or (
        # Who takes itself for the only writer still leaves alone what shows that it lives.
        current.state is State.INFLIGHT and equipment.plans(snapshot.config).guard is None
    )
    living = asks and bool(equipment.living([current.requested_at]))
    began = rollback_of(snapshot, current.requested_at) if cancellable else None
    reason = refusal(current, cancellable=cancellable, living=living, rollback=began)
    if reason is not None:
        raise GuardError(reason, instant=current.requested_at, action=current.action)


def refusal(
    current: Instant, *, cancellable: bool, living: bool, rollback: PendingRollback | None
) -> str | None:
    """Why a pending plan must not be executed now; None if it may be. Pure."""
    if living:
        return (
            f"this {current.action} is being executed: wait until it is done, or until its "
            "heartbeat has expired"
        )
    if not cancellable:
        return None
    if rollback is not None:
        by = rollback.plan.caused_by or "somebody"
        return f"this {current.action} is being rolled back, by {by}"
    if current.state is State.INFLIGHT:
        return (
            f"this {current.action} was begun and has not ended, and a cancellable plan is "
            "executed once: a clean rolls it back, or cancel it"
        )
    return None
