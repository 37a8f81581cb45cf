"""Taking cancellable plans back: on request, before another plan, or since nobody executes them.

All of it ends in a rollback on the timeline that keeps by what, and why. While that is requested
nobody begins to execute the plan, so that deciding and doing may be apart; who is executing it is
asked by it to stop, and then carries it out. Nobody else does, as long as the heartbeat beats.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from lakewright.clock import zone_of
from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.model.instant import REWRITES, Instant, State, epoch_ms
from lakewright.model.plans import ClusteringPlan, CompactionPlan, RollbackCause
from lakewright.table.feature_checks import check_writable
from lakewright.table.locks.base import Lock
from lakewright.table.options import FailedWritesPolicy
from lakewright.table.properties import drop_metadata_table
from lakewright.table.rollback import (
    completed_rollback_of,
    pending_rollback_of,
    request_rollback,
    resume_rollbacks,
    rollback_locked,
)
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.time_generator import TimeGenerator
from lakewright.table.transaction import TransactionManager

_MINUTE_MS = 60_000
_CLEAN = "clean"
_POLL_S = 1.0

Plan = CompactionPlan | ClusteringPlan


def cancel_plan(
    writer: TransactionManager, at: str, cause: RollbackCause, *, wait_s: float = 0.0
) -> Instant:
    """Take a cancellable plan back, whoever made it; gives its rollback. May be repeated.

    A plan that is being executed is asked to stop: its rollback is only requested then, and whoever
    executes the plan carries it out; or the next writer, if that one dies. `wait_s` is how long to
    wait for that.

    Raises:
        InvalidError: there is no such plan, it has completed, or it is not cancellable.
    """
    deadline = writer.clock.monotonic_ms() + round(wait_s * 1000)
    while True:
        done = writer.run_locked(partial(_cancel_locked, writer, at, cause))
        if done.is_completed or writer.clock.monotonic_ms() >= deadline:
            return done
        writer.clock.sleep(_POLL_S)


def _cancel_locked(
    writer: TransactionManager, at: str, cause: RollbackCause, lock: Lock
) -> Instant:
    snapshot = load_snapshot(writer.storage)
    check_writable(snapshot.config)
    found = [i for i in snapshot.timeline if i.requested_at == at]
    if not found and pending_rollback_of(snapshot, at) is not None:
        # Who was taking it back has died on the way.
        _finish_rollback(writer, at, lock)
        snapshot = load_snapshot(writer.storage)
    ended = completed_rollback_of(snapshot, at) if not found else None
    if ended is not None:
        return ended
    planned = _cancellable(snapshot, at, found)
    times = writer.times(snapshot.config, snapshot.timeline, lock)
    lock.verify()
    if writer.live_instants([at]):
        by_markers = writer.transaction.rollback_by_markers
        return request_rollback(snapshot, planned, times, by_markers=by_markers, cause=cause)
    return rollback_plans(writer, snapshot, [planned], times, cause)[0]


def _cancellable(snapshot: Snapshot, at: str, found: list[Instant]) -> Instant:
    """The pending plan of an instant, if it may be cancelled."""
    pending = next((i for i in found if i.action.is_rewrite), None)
    if pending is None:
        told = _why_no_plan(snapshot, at, found)
        raise InvalidError(told, instant=at, waiting=_waiting(snapshot))
    plan = snapshot.plan_of(at, pending.action)
    if plan is None or not plan.cancellable:
        raise InvalidError(
            "this plan is not cancellable: it stays until it was executed, or is rolled back",
            instant=at,
            action=pending.action,
        )
    return pending


def _why_no_plan(snapshot: Snapshot, at: str, found: list[Instant]) -> str:
    if any(i.is_completed for i in found) or (not found and snapshot.has_write(at)):
        return "this instant has completed, and cannot be cancelled any more"
    if found:
        return f"this is a {found[0].action}, and no plan of a table service"
    return "there is no plan at this instant"


def _waiting(snapshot: Snapshot) -> list[str]:
    return [instant.requested_at for instant in _cancellable_plans(snapshot)]


def _cancellable_plans(snapshot: Snapshot) -> list[Instant]:
    """The pending plans that are known to be cancellable; one that cannot be read is not."""
    found = []
    for instant in snapshot.timeline.pending(*REWRITES):
        with suppress(CorruptError, UnsupportedError):
            plan = snapshot.plan_of(instant.requested_at, instant.action)
            found += [instant] if plan is not None and plan.cancellable else []
    return found


def rollback_plans(
    writer: TransactionManager,
    snapshot: Snapshot,
    plans: Iterable[Instant],
    times: TimeGenerator,
    cause: RollbackCause,
) -> list[Instant]:
    """Roll pending plans back that nobody executes; gives the rollbacks.

    The caller holds the table's lock, has loaded the snapshot under it, and gives times under it.
    """
    config = drop_metadata_table(writer.storage, snapshot.config)
    return [
        rollback_locked(
            replace(snapshot, config=config),
            plan,
            times,
            writer.clock,
            by_markers=writer.transaction.rollback_by_markers,
            cause=cause,
        )
        for plan in plans
    ]


@dataclass(frozen=True, slots=True)
class CancelledPlan:
    """A cancellable plan that is gone, and why."""

    plan: Instant
    reason: str

    def __str__(self) -> str:
        return f"{self.plan.action} {self.plan.requested_at}, {self.reason}"


def rollback_abandoned_plans(
    writer: TransactionManager, seen: Snapshot
) -> tuple[CancelledPlan, ...]:
    """Take the cancellable plans back that nobody executes; `seen` is where to look for them.

    For each there is a transaction of its own: unless its heartbeat beats, or it is too young on
    the timeline as it is then, a rollback is requested. These are carried out after that.
    """
    if writer.transaction.failed_writes is FailedWritesPolicy.NEVER:
        return ()
    going = []
    for instant in _cancellable_plans(seen):
        reason = writer.run_locked(partial(_request_rollback_if_abandoned, writer, instant))
        going += [CancelledPlan(instant, reason)] if reason else []
    times = [each.plan.requested_at for each in going]
    ended = [writer.run_locked(partial(_finish_rollback, writer, at)) for at in times]
    return tuple(each for each, is_gone in zip(going, ended, strict=True) if is_gone)


def _request_rollback_if_abandoned(writer: TransactionManager, seen: Instant, lock: Lock) -> str:
    """Request the rollback of a plan that nobody executes, and say why; empty if it stays."""
    at = seen.requested_at
    if writer.live_instants([at]):
        return ""
    snapshot = load_snapshot(writer.storage)
    check_writable(snapshot.config)
    current = snapshot.timeline.by_time.get(at)
    if current is None or not current.action.is_rewrite:
        return ""
    plan = snapshot.plan_of(at, current.action)
    reason = _why_abandoned(writer, snapshot, current, plan) if plan is not None else ""
    if reason:
        times = writer.times(snapshot.config, snapshot.timeline, lock)
        by_markers = writer.transaction.rollback_by_markers
        lock.verify()
        cause = RollbackCause(_CLEAN, reason)
        request_rollback(snapshot, current, times, by_markers=by_markers, cause=cause)
    return reason


def _why_abandoned(
    writer: TransactionManager, snapshot: Snapshot, current: Instant, plan: Plan
) -> str:
    if not plan.cancellable:
        return ""
    if current.state is State.INFLIGHT:
        return "its execution has died"
    if writer.transaction.failed_writes is not FailedWritesPolicy.LAZY:
        return ""
    minutes = writer.plan_settings(snapshot.config).rollback_delay_minutes
    age = age_ms(snapshot, plan.planned_at(current.requested_at), writer.clock.now_ms())
    is_old = minutes == 0 or age >= minutes * _MINUTE_MS
    return f"nobody has begun it in {minutes} minutes" if is_old else ""


def age_ms(snapshot: Snapshot, time: str, now_ms: int) -> int:
    """How long ago an instant was, by the clock; what is no date is as old as can be."""
    try:
        return now_ms - epoch_ms(time, zone_of(snapshot.config.timeline_zone))
    except InvalidError:
        return now_ms


def _finish_rollback(writer: TransactionManager, at: str, lock: Lock) -> bool:
    """Carry the rollback of a plan out, unless somebody has begun to execute the plan after all."""
    snapshot = load_snapshot(writer.storage)
    config = drop_metadata_table(writer.storage, snapshot.config)
    living = writer.live_instants(i.requested_at for i in snapshot.timeline.pending())
    return bool(
        resume_rollbacks(
            replace(snapshot, config=config),
            writer.times(config, snapshot.timeline, lock),
            writer.clock,
            by_markers=writer.transaction.rollback_by_markers,
            alive=living,
            only=at,
        )
    )
