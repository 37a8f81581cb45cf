"""Rolling back cancellable plans: on request, before a plan that supersedes them, or if abandoned.

Each of these ends in a rollback on the timeline, which records its cause. Once that rollback is
requested no process starts to execute the plan, so deciding on it and carrying it out may be
separate steps. A process that is executing the plan finds the request, stops, and carries the
rollback out. No other process does so while the heartbeat of the execution is live.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from lakewright.clock import zone_of
from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.model.instant import REWRITES, Action, Instant, State, epoch_ms
from lakewright.model.plans import ClusteringPlan, CompactionPlan, RollbackCause
from lakewright.table.feature_checks import check_writable
from lakewright.table.locks.base import Lock
from lakewright.table.options import FailedWritesPolicy
from lakewright.table.plan_execution import CANCEL_FOLDER, cancel_requests
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
_BY_CLEAN = "clean"
_POLL_S = 1.0

Plan = CompactionPlan | ClusteringPlan


def cancel_plan(
    writer: TransactionManager, at: str, cause: RollbackCause, *, wait_s: float = 0.0
) -> Instant:
    """Roll back a cancellable plan, whichever process made it; return the rollback. Repeatable.

    While the plan is being executed its rollback is only requested: the executing process stops and
    carries it out, or the next writer does if that process crashes. `wait_s` is how long to wait
    for that.

    Raises:
        InvalidError: there is no such plan, it has completed, or it is not cancellable.
    """
    deadline = writer.clock.monotonic_ms() + round(wait_s * 1000)
    while True:
        rollback = writer.run_locked(partial(_cancel_locked, writer, at, cause))
        if rollback.is_completed or writer.clock.monotonic_ms() >= deadline:
            return rollback
        writer.clock.sleep(_POLL_S)


def _cancel_locked(
    writer: TransactionManager, at: str, cause: RollbackCause, lock: Lock
) -> Instant:
    snapshot = load_snapshot(writer.storage)
    check_writable(snapshot.config)
    instants = [i for i in snapshot.timeline if i.requested_at == at]
    if not instants and pending_rollback_of(snapshot, at) is not None:
        # The process that was rolling it back has crashed.
        _finish_rollback(writer, at, lock)
        snapshot = load_snapshot(writer.storage)
    completed = completed_rollback_of(snapshot, at) if not instants else None
    if completed is not None:
        return completed
    planned = _require_cancellable(snapshot, at, instants)
    times = writer.times(snapshot.config, snapshot.timeline, lock)
    lock.verify()
    if writer.live_instants([at]):
        by_markers = writer.transaction.rollback_by_markers
        return request_rollback(snapshot, planned, times, by_markers=by_markers, cause=cause)
    return rollback_plans(writer, snapshot, [planned], times, cause)[0]


def _require_cancellable(snapshot: Snapshot, at: str, instants: list[Instant]) -> Instant:
    """Return the pending plan of an instant; raise InvalidError if it cannot be cancelled."""
    pending = next((i for i in instants if i.action.is_rewrite), None)
    if pending is None:
        reason = _why_no_plan(snapshot, at, instants)
        raise InvalidError(reason, instant=at, waiting=_cancellable_times(snapshot))
    plan = snapshot.plan_of(at, pending.action)
    if pending.state is not State.ABORTED and (plan is None or not plan.cancellable):
        raise InvalidError(
            "this plan is not cancellable: it stays until it was executed, or is rolled back",
            instant=at,
            action=pending.action,
        )
    return pending


def _why_no_plan(snapshot: Snapshot, at: str, instants: list[Instant]) -> str:
    if any(i.is_completed for i in instants) or (not instants and snapshot.has_write(at)):
        return "this instant has completed, and cannot be cancelled any more"
    if instants:
        return f"this is a {instants[0].action}, and no plan of a table service"
    return "there is no plan at this instant"


def _cancellable_times(snapshot: Snapshot) -> list[str]:
    return [instant.requested_at for instant in _cancellable_plans(snapshot)]


def _cancellable_plans(snapshot: Snapshot) -> list[Instant]:
    """Return the pending plans that are cancellable; a plan that cannot be read is not."""
    cancellable = []
    for instant in snapshot.timeline.pending(*REWRITES):
        with suppress(CorruptError, UnsupportedError):
            plan = snapshot.plan_of(instant.requested_at, instant.action)
            cancellable += [instant] if plan is not None and plan.cancellable else []
    return cancellable


def rollback_plans(
    writer: TransactionManager,
    snapshot: Snapshot,
    plans: Iterable[Instant],
    times: TimeGenerator,
    cause: RollbackCause,
) -> list[Instant]:
    """Roll back pending plans that no process executes; return the rollbacks.

    The caller holds the table's lock, and has loaded the snapshot and made `times` under it.
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
    """A cancellable plan that was rolled back, and why."""

    plan: Instant
    reason: str

    def __str__(self) -> str:
        return f"{self.plan.action} {self.plan.requested_at}, {self.reason}"


def rollback_abandoned_plans(
    writer: TransactionManager, snapshot: Snapshot
) -> tuple[CancelledPlan, ...]:
    """Roll back the cancellable plans of a snapshot that no process executes.

    Also plans that other writers have aborted or requested to cancel, and expired clusterings.

    First the rollback of each is requested, under a lock of its own, unless the plan has a live
    heartbeat or is too young on the timeline as it is then. Then the rollbacks are carried out.
    """
    if writer.transaction.failed_writes is FailedWritesPolicy.NEVER:
        return ()
    cancelled = []
    for instant in _cancellable_plans(snapshot):
        reason = writer.run_locked(partial(_request_rollback_if_abandoned, writer, instant))
        cancelled += [CancelledPlan(instant, reason)] if reason else []
    expired = (
        *_rollback_aborted_plans(writer, snapshot),
        *_rollback_expired_clusterings(writer, snapshot),
    )
    times = [plan.plan.requested_at for plan in cancelled]
    completed = [writer.run_locked(partial(_finish_rollback, writer, at)) for at in times]
    return expired + tuple(
        plan for plan, is_completed in zip(cancelled, completed, strict=True) if is_completed
    )


def _rollback_aborted_plans(
    writer: TransactionManager, snapshot: Snapshot
) -> tuple[CancelledPlan, ...]:
    """Roll back plans of either kind that another writer has aborted or requested to cancel.

    These are not executed any more, and Hudi 1.2, which knows neither sign, would execute them.
    """
    pending = snapshot.timeline.pending(*REWRITES)
    requests = cancel_requests(writer.storage) if pending else {}
    candidates = [
        *snapshot.timeline.aborted,
        *(instant for instant in pending if instant.requested_at in requests),
    ]
    outcomes = [writer.run_locked(partial(_rollback_if_aborted, writer, i)) for i in candidates]
    return tuple(plan for plan in outcomes if plan is not None)


def _rollback_if_aborted(
    writer: TransactionManager, candidate: Instant, lock: Lock
) -> CancelledPlan | None:
    at = candidate.requested_at
    if writer.live_instants([at]):
        return None
    snapshot = load_snapshot(writer.storage)
    check_writable(snapshot.config)
    current = snapshot.timeline.by_time.get(at)
    requests = cancel_requests(writer.storage).get(at, [])
    if current is None or not current.action.is_rewrite:
        return None
    if current.state is State.ABORTED:
        reason = "another writer has aborted it"
    elif requests:
        reason = f"another writer has put it into {CANCEL_FOLDER}"
    else:
        return None
    times = writer.times(snapshot.config, snapshot.timeline, lock)
    lock.verify()
    rollback_plans(writer, snapshot, [current], times, RollbackCause(_BY_CLEAN, reason))
    writer.storage.delete_many(requests)
    return CancelledPlan(current, reason)


def _rollback_expired_clusterings(
    writer: TransactionManager, snapshot: Snapshot
) -> tuple[CancelledPlan, ...]:
    """Roll back clusterings without a live heartbeat, if the options say that these expire.

    An ordinary plan may be executed at any time, so it is judged and rolled back under one lock,
    which its execution would need to begin.
    """
    settings = writer.plan_settings(snapshot.config)
    lazy = writer.transaction.failed_writes is FailedWritesPolicy.LAZY
    if not settings.expire_clusterings or not lazy:
        return ()
    pending = snapshot.timeline.pending(Action.CLUSTERING)
    outcomes = [writer.run_locked(partial(_rollback_if_expired, writer, plan)) for plan in pending]
    return tuple(plan for plan in outcomes if plan is not None)


def _rollback_if_expired(
    writer: TransactionManager, candidate: Instant, lock: Lock
) -> CancelledPlan | None:
    at = candidate.requested_at
    if writer.live_instants([at]):
        return None
    snapshot = load_snapshot(writer.storage)
    check_writable(snapshot.config)
    current = snapshot.timeline.by_time.get(at)
    plan = snapshot.plan_of(at, Action.CLUSTERING)
    if current is None or current.action != Action.CLUSTERING or plan is None or plan.cancellable:
        return None
    minutes = writer.plan_settings(snapshot.config).clusterings_expire_minutes
    age = age_ms(snapshot, plan.planned_at(at), writer.clock.now_ms())
    if age < minutes * _MINUTE_MS:
        return None
    reason = f"it has no live heartbeat, and expires after {minutes} minutes"
    times = writer.times(snapshot.config, snapshot.timeline, lock)
    lock.verify()
    rollback_plans(writer, snapshot, [current], times, RollbackCause(_BY_CLEAN, reason))
    return CancelledPlan(current, reason)


def _request_rollback_if_abandoned(
    writer: TransactionManager, candidate: Instant, lock: Lock
) -> str:
    """Request the rollback of an abandoned plan, and return the reason; empty if it stays."""
    at = candidate.requested_at
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
        cause = RollbackCause(_BY_CLEAN, reason)
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
    """Return the age of an instant time; one that is not a date counts from 1970."""
    try:
        return now_ms - epoch_ms(time, zone_of(snapshot.config.timeline_zone))
    except InvalidError:
        return now_ms


def _finish_rollback(writer: TransactionManager, at: str, lock: Lock) -> bool:
    """Carry out the rollback of a plan, unless its execution has started after all.

    Returns whether the rollback has completed.
    """
    snapshot = load_snapshot(writer.storage)
    config = drop_metadata_table(writer.storage, snapshot.config)
    live = writer.live_instants(i.requested_at for i in snapshot.timeline.pending())
    return bool(
        resume_rollbacks(
            replace(snapshot, config=config),
            writer.times(config, snapshot.timeline, lock),
            writer.clock,
            by_markers=writer.transaction.rollback_by_markers,
            alive=live,
            only=at,
        )
    )
