"""Plans on the timeline: listing pending ones, scheduling them, and beginning their execution.

A plan is a requested file. Its execution creates the inflight file and continues as any write does.
A failed attempt is rolled back before the next one begins, and the plan stays. A cancellable plan
has one attempt, and is rolled back together with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from lakewright.clock import zone_of
from lakewright.errors import ConflictError
from lakewright.model.instant import Action, Instant, InstantTime, State, format_time
from lakewright.model.plans import RollbackCause, Skip
from lakewright.model.timeline import Timeline
from lakewright.table.conflicts import max_timeline_time
from lakewright.table.failed_writes import rollback_failed_writes
from lakewright.table.feature_checks import check_writable, check_write_can_begin
from lakewright.table.heartbeat import Heartbeat, PlanHeartbeats, last_heartbeats
from lakewright.table.instant_files import try_create
from lakewright.table.locks.base import Lock
from lakewright.table.options import FailedWritesPolicy
from lakewright.table.plan_cancellation import age_ms, rollback_plans
from lakewright.table.plan_execution import ExecutionAttempt, PlanTransaction, check_executable
from lakewright.table.properties import drop_metadata_table
from lakewright.table.rollback import rollback_locked
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.time_generator import format_epoch_ms
from lakewright.table.transaction import TransactionManager

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class PendingPlanInfo:
    """A pending plan, with its age and what a clean will do with it.

    `heartbeat_age_ms` is the time since the last heartbeat of its execution, or of the process that
    keeps it since it scheduled it; None if there is no heartbeat. `rolled_back_at` is the time from
    which on a clean rolls the plan back, None if no clean does.
    """

    instant: Instant
    age_ms: int
    heartbeat_age_ms: int | None
    cancellable: bool
    rolled_back_at: str | None
    operations: int
    partitions: tuple[str, ...]


def load_pending_plans(
    writer: TransactionManager, snapshot: Snapshot
) -> tuple[PendingPlanInfo, ...]:
    """Return the pending plans, oldest first, as a writer with these settings treats them."""
    now_ms = writer.clock.now_ms()
    plans = snapshot.pending_plans()
    heartbeats = last_heartbeats(writer.storage) if plans else {}
    infos = []
    for instant, plan in plans:
        planned_at = plan.planned_at(instant.requested_at)
        age = age_ms(snapshot, planned_at, now_ms)
        heartbeat_ms = heartbeats.get(instant.requested_at)
        rollback_ms = _rollback_time(
            writer, snapshot, instant, now_ms - age, heartbeat_ms, cancellable=plan.cancellable
        )
        zone = zone_of(snapshot.config.timeline_zone)
        infos.append(
            PendingPlanInfo(
                instant,
                age,
                None if heartbeat_ms is None else now_ms - heartbeat_ms,
                plan.cancellable,
                None if rollback_ms is None else format_time(_to_datetime(rollback_ms), zone),
                len(plan.operations),
                plan.partitions,
            )
        )
    return tuple(infos)


def _rollback_time(
    writer: TransactionManager,
    snapshot: Snapshot,
    instant: Instant,
    planned_ms: int,
    heartbeat_ms: int | None,
    *,
    cancellable: bool,
) -> int | None:
    """Return from when on a clean rolls back a plan that stays in its state; None if it does not.

    An ordinary plan is only rolled back if it may expire.
    """
    policy = writer.transaction.failed_writes
    if policy is FailedWritesPolicy.NEVER:
        return None
    heartbeat_expires_ms = (
        0 if heartbeat_ms is None else heartbeat_ms + writer.heartbeat.expires_after_ms
    )
    if cancellable and instant.state is State.INFLIGHT:
        return max(heartbeat_expires_ms, planned_ms)
    if policy is not FailedWritesPolicy.LAZY:
        return None
    settings = writer.plan_settings(snapshot.config)
    if cancellable:
        minutes = settings.rollback_delay_minutes
    elif writer.may_expire(snapshot.config, instant.action):
        minutes = settings.clusterings_expire_minutes
    else:
        return None
    return max(heartbeat_expires_ms, planned_ms + minutes * _MINUTE_MS)


def _to_datetime(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


# Scheduling a plan.

_TRIES = 10


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A plan to schedule at `instant`; `data` is the content of its requested file.

    `supersedes` are cancellable plans for some of its file groups. They are rolled back before the
    requested file is created: real Hudi fails on two plans for one file group.
    """

    instant: InstantTime
    plan: Any
    data: bytes
    supersedes: tuple[Instant, ...] = ()


# Makes a plan from a snapshot, under the table's lock; its second argument returns a new instant
# time.
Planner = Callable[[Snapshot, Callable[[], str]], PlanRequest | Skip]


def schedule_plan(
    writer: TransactionManager,
    action: Action,
    planner: Planner,
    heartbeats: PlanHeartbeats | None = None,
) -> tuple[Instant, PlanRequest] | Skip:
    """Create the requested file of the plan that `planner` makes, under the table's lock.

    The planner is called again if another writer has its instant time; if it raises or skips,
    nothing on storage changes. The heartbeat of a plan that may expire starts before its requested
    file exists, and is kept in `heartbeats`.

    Returns:
        The requested instant with its plan, or why nothing was scheduled.
    """
    kept = heartbeats if heartbeats is not None else PlanHeartbeats()
    return writer.run_locked(lambda lock: _schedule_locked(writer, action, planner, kept, lock))


def _schedule_locked(
    writer: TransactionManager,
    action: Action,
    planner: Planner,
    heartbeats: PlanHeartbeats,
    lock: Lock,
) -> tuple[Instant, PlanRequest] | Skip:
    for _ in range(_TRIES):
        snapshot = load_snapshot(writer.storage)
        if action.is_rewrite:
            check_write_can_begin(
                snapshot.config, snapshot.timeline, writer.transaction.concurrency
            )
        else:
            check_writable(snapshot.config)
        times = writer.times(snapshot.config, snapshot.timeline, lock)
        request = planner(snapshot, times.next)
        if isinstance(request, Skip):
            return request
        requested = Instant(request.instant, action, State.REQUESTED)
        lock.verify()
        # The planner, which writes nothing, has only the clock of this machine to judge by.
        live = writer.live_instants(i.requested_at for i in request.supersedes)
        for other in request.supersedes:
            if other.requested_at in live:
                return Skip(
                    f"{other.action} {other.requested_at} has some of its file groups, and is "
                    "being executed"
                )
        if request.supersedes:
            cause = RollbackCause(
                f"{action} {request.instant}", "a plan that is not cancellable goes before"
            )
            rollback_plans(writer, snapshot, request.supersedes, times, cause)
            lock.verify()
        heartbeat = _heartbeat_of(writer, snapshot, requested, request.plan)
        is_scheduled = exists = False
        try:
            created = try_create(writer.storage, snapshot.timeline_path(requested), request.data)
            exists = not created
            is_scheduled = created and (
                writer.still_holds(lock) or _has_no_overlapping_plan(writer, snapshot, requested)
            )
        finally:
            if heartbeat is not None and is_scheduled:
                heartbeats.keep(requested.requested_at, heartbeat)
            elif heartbeat is not None:
                # If another process has this instant, the file may be its own heartbeat.
                heartbeat.stop(leave_file=exists)
        if is_scheduled:
            return requested, request
    raise ConflictError("others were faster with every plan", action=action, tries=_TRIES)


def _heartbeat_of(
    writer: TransactionManager, snapshot: Snapshot, requested: Instant, plan: Any
) -> Heartbeat | None:
    """Start the heartbeat of a plan that may expire; None for others.

    A cancellable plan has none until it is executed: a delay says how long it may wait.
    """
    if not writer.may_expire(snapshot.config, requested.action) or plan.cancellable:
        return None
    heartbeat = writer.new_heartbeat(requested.requested_at, inheritable=True)
    heartbeat.start()
    return heartbeat


def _has_no_overlapping_plan(
    writer: TransactionManager, base: Snapshot, requested: Instant
) -> bool:
    """Whether no plan scheduled since `base` shares file groups with this one; else delete it.

    Two such plans cannot both be executed. No process can know which of them was first, so a
    process that finds the other plan deletes its own. A plan that another process executes already
    stays: the execution will find the conflict.
    """
    if not requested.action.is_rewrite:
        return True
    current = load_snapshot(writer.storage)
    plans = current.timeline.plans
    new_plans = plans.keys() - base.timeline.plans.keys() - {requested.requested_at}
    if not new_plans or requested not in current.timeline:
        return True
    own_plan = current.plan_of(requested.requested_at, requested.action)
    other_plans = [plan for at in new_plans if (plan := current.plan_of(at, plans[at]))]
    if own_plan is None or all(
        own_plan.file_groups.isdisjoint(other.file_groups) for other in other_plans
    ):
        return True
    writer.storage.delete(current.timeline_path(requested))
    return False


def begin_execution(
    writer: TransactionManager,
    planned: Instant,
    partition: str = "",
    planned_at: InstantTime = "",
    *,
    cancellable: bool = False,
    heartbeats: PlanHeartbeats | None = None,
) -> PlanTransaction:
    """Begin to execute a plan, after rolling back an earlier attempt.

    `partition` is one that the plan writes to; `planned_at` is when the plan was made, if not at
    its own instant. If `heartbeats` has the one of this plan, the execution takes it over.

    Raises:
        PlanInProgressError: an execution with a live heartbeat is running; or the plan is
            cancellable, and was started before or is being rolled back.
        ConflictError: another process has completed the plan or rolled it back.
    """
    kept = heartbeats.take(planned.requested_at) if heartbeats is not None else None

    def begin_locked(lock: Lock) -> PlanTransaction:
        snapshot = load_snapshot(writer.storage)
        check_write_can_begin(snapshot.config, snapshot.timeline, writer.transaction.concurrency)
        current = _pending_instant(snapshot, planned)
        heartbeat = kept if kept is not None and kept.is_live() else None
        if heartbeat is None and kept is not None:
            # Another process may have the plan by now: this one asks as all others do.
            kept.stop()
        check_executable(
            writer,
            snapshot,
            current,
            cancellable=cancellable,
            has_heartbeat=heartbeat is not None,
        )
        config = drop_metadata_table(writer.storage, snapshot.config)
        snapshot = replace(snapshot, config=config)
        times = writer.times(config, snapshot.timeline, lock)
        if current.state is State.INFLIGHT:
            by_markers = writer.transaction.rollback_by_markers
            rollback_locked(
                snapshot, current, times, writer.clock, by_markers=by_markers, keep_plan=True
            )
            snapshot = load_snapshot(writer.storage)
        snapshot = rollback_failed_writes(
            snapshot, writer.transaction, writer.heartbeat, times, writer.clock
        )
        # This may have finished a pending rollback of the plan itself.
        _pending_instant(snapshot, planned)
        # What completed after the plan was made is not part of it, however long ago that was.
        at = planned.requested_at
        before_plan = [i for i in snapshot.timeline if (i.completed_at or "") < (planned_at or at)]
        now = format_epoch_ms(writer.clock.now_ms(), zone_of(config.timeline_zone))
        attempt = ExecutionAttempt.create(
            at,
            partition,
            writer.clock.new_id(),
            stoppable=cancellable,
            began_at=max(now, max_timeline_time(snapshot.timeline)),
        )
        execution = PlanTransaction(
            writer, snapshot, planned, attempt, Timeline.from_instants(before_plan), heartbeat
        )
        execution.begin(lock)
        return execution

    try:
        return writer.run_locked(begin_locked)
    except BaseException:
        if kept is not None:
            kept.stop()
        raise


def _pending_instant(snapshot: Snapshot, planned: Instant) -> Instant:
    matches = [
        i
        for i in snapshot.timeline.pending(planned.action)
        if i.requested_at == planned.requested_at
    ]
    if not matches:
        raise ConflictError(
            f"there is no pending {planned.action} at this instant any more",
            instant=planned.requested_at,
        )
    return matches[0]


def start_metadata_action(writer: TransactionManager, planned: Instant) -> Snapshot:
    """Make a plan that writes no data, such as a clean, inflight; may be repeated."""
    snapshot = load_snapshot(writer.storage)
    check_writable(snapshot.config)
    current = _pending_instant(snapshot, planned)
    if current.state is State.REQUESTED:
        inflight = replace(current, state=State.INFLIGHT)
        try:
            writer.storage.create(snapshot.timeline_path(inflight), b"")
        except ConflictError:
            return snapshot  # another process has just started it; both may execute it
    return snapshot


def complete_metadata_action(writer: TransactionManager, planned: Instant, data: bytes) -> Instant:
    """Complete a plan that writes no data, and return its completed instant.

    If another process has completed it, return that instant.
    """

    def complete_locked(lock: Lock) -> Instant:
        snapshot = load_snapshot(writer.storage)
        for instant in snapshot.timeline.completed(planned.action):
            if instant.requested_at == planned.requested_at:
                return instant
        _pending_instant(snapshot, planned)
        time = writer.times(snapshot.config, snapshot.timeline, lock).next()
        completed = Instant(planned.requested_at, planned.action, completed_at=time)
        lock.verify()
        writer.storage.create(snapshot.timeline_path(completed), data)
        return completed

    return writer.run_locked(complete_locked)
