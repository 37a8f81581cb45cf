"""Plans that wait to be executed: how old, whether somebody is at it, and when they go."""

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
from lakewright.table.failed_writes import rollback_failed_writes
from lakewright.table.feature_checks import check_writable, check_write_can_begin
from lakewright.table.heartbeat import last_heartbeats
from lakewright.table.locks.base import Lock
from lakewright.table.options import FailedWritesPolicy
from lakewright.table.plan_cancellation import age_ms, rollback_plans
from lakewright.table.plan_execution import ExecutionAttempt, PlanTransaction, check_executable
from lakewright.table.properties import drop_metadata_table, read_optional
from lakewright.table.rollback import rollback_locked
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.transaction import TransactionManager

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class PendingPlanInfo:
    """A pending plan; `rolled_back_at` is from when on a clean takes it back, None if never.

    `heartbeat_age_ms` is how long ago who executes it has last shown to be alive, None if nobody
    has.
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
    """The plans that wait, oldest first, as a writer with these settings sees them."""
    now_ms = writer.clock.now_ms()
    plans = snapshot.pending_plans()
    beats = last_heartbeats(writer.storage) if plans else {}
    found = []
    for instant, plan in plans:
        planned_at = plan.planned_at(instant.requested_at)
        age = age_ms(snapshot, planned_at, now_ms)
        beat = beats.get(instant.requested_at)
        going_ms = None
        if plan.cancellable:
            going_ms = _rollback_time(writer, snapshot, instant, now_ms - age, beat)
        zone = zone_of(snapshot.config.timeline_zone)
        found.append(
            PendingPlanInfo(
                instant,
                age,
                None if beat is None else now_ms - beat,
                plan.cancellable,
                None if going_ms is None else format_time(_moment(going_ms), zone),
                len(plan.operations),
                plan.partitions,
            )
        )
    return tuple(found)


def _rollback_time(
    writer: TransactionManager,
    snapshot: Snapshot,
    instant: Instant,
    planned_ms: int,
    beat: int | None,
) -> int | None:
    """From when on a cancellable plan is taken back, if it stays as it is."""
    policy = writer.transaction.failed_writes
    if policy is FailedWritesPolicy.NEVER:
        return None
    silent_ms = 0 if beat is None else beat + writer.heartbeat.expires_after_ms
    if instant.state is State.INFLIGHT:
        return max(silent_ms, planned_ms)
    if policy is not FailedWritesPolicy.LAZY:
        return None
    delay_ms = writer.plan_settings(snapshot.config).rollback_delay_minutes * _MINUTE_MS
    return max(silent_ms, planned_ms + delay_ms)


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


# ------------------------------------------------------------------------------------------------
# Plans on the timeline: putting one there, and taking it up to be executed.
#
# A plan is a requested file. Executing it adds the inflight file and goes on as any write does. An
# attempt that failed is rolled back before the next one begins, and the plan stays; a cancellable
# plan has one attempt, and goes with it.


_TRIES = 10


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A plan that is to appear on the timeline, and at which time.

    `data` is the plan's file. `supersedes` are cancellable plans for some of its file groups, which
    are rolled back before it appears: real Hudi fails on two plans for one file group.
    """

    instant: InstantTime
    plan: Any
    data: bytes
    supersedes: tuple[Instant, ...] = ()


# Plans on a snapshot, under the table's lock; the second argument returns a new instant time.
Planner = Callable[[Snapshot, Callable[[], str]], PlanRequest | Skip]


def schedule_plan(
    writer: TransactionManager, action: Action, planner: Planner
) -> tuple[Instant, PlanRequest] | Skip:
    """Create the requested file of the plan that `planner` makes, under the table's lock.

    The planner is called again if its instant time is taken; if it raises or skips, nothing on
    storage changes.

    Returns:
        The requested instant with its plan, or why nothing was scheduled.
    """
    return writer.run_locked(lambda lock: _schedule_locked(writer, action, planner, lock))


def _schedule_locked(
    writer: TransactionManager, action: Action, planner: Planner, lock: Lock
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
        if request.supersedes:
            cause = RollbackCause(
                f"{action} {request.instant}", "a plan that is not cancellable goes before"
            )
            rollback_plans(writer, snapshot, request.supersedes, times, cause)
            lock.verify()
        created = _create_file(writer, snapshot.timeline_path(requested), request.data)
        if created and (
            writer.still_holds(lock) or _has_no_overlapping_plan(writer, snapshot, requested)
        ):
            return requested, request
    raise ConflictError("others were faster with every plan", action=action, tries=_TRIES)


def _create_file(writer: TransactionManager, path: str, data: bytes) -> bool:
    try:
        writer.storage.create(path, data)
    except ConflictError:
        # It may be the answer that was lost, and the file our own.
        return read_optional(writer.storage, path) == data
    return True


def _has_no_overlapping_plan(
    writer: TransactionManager, seen: Snapshot, requested: Instant
) -> bool:
    """Take a plan back if another that came since the table was seen has some of its file groups.

    Neither could be executed beside the other. Which of the two was there first nobody can tell,
    so who sees the other gives way; unless somebody executes the plan already, who will find out.
    """
    if not requested.action.is_rewrite:
        return True
    now = load_snapshot(writer.storage)
    plans = now.timeline.plans
    rivals = plans.keys() - seen.timeline.plans.keys() - {requested.requested_at}
    if not rivals or requested not in now.timeline:
        return True
    mine = now.plan_of(requested.requested_at, requested.action)
    others = [plan for at in rivals if (plan := now.plan_of(at, plans[at]))]
    if mine is None or all(mine.file_groups.isdisjoint(each.file_groups) for each in others):
        return True
    writer.storage.delete(now.timeline_path(requested))
    return False


def begin_execution(
    writer: TransactionManager,
    planned: Instant,
    partition: str = "",
    planned_at: InstantTime = "",
    *,
    cancellable: bool = False,
) -> PlanTransaction:
    """Begin to execute a plan; what an earlier attempt left is rolled back first.

    `partition` is one that the plan writes to; `planned_at` is when it was made, if not at its own
    instant.

    Raises:
        GuardError: somebody who is alive is executing it, or it is cancellable and was begun
            before, or is about to be taken back.
        ConflictError: somebody has ended it or taken it back.
    """

    def begun(lock: Lock) -> PlanTransaction:
        snapshot = load_snapshot(writer.storage)
        check_write_can_begin(snapshot.config, snapshot.timeline, writer.transaction.concurrency)
        current = _pending(snapshot, planned)
        check_executable(writer, snapshot, current, cancellable=cancellable)
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
        # A rollback of the plan that somebody had begun has ended with that.
        _pending(snapshot, planned)
        # What completed after the plan was made is not in it, however long ago that was.
        at = planned.requested_at
        known = [i for i in snapshot.timeline if (i.completed_at or "") < (planned_at or at)]
        attempt = ExecutionAttempt.create(
            at, partition, writer.clock.new_id(), stoppable=cancellable
        )
        execution = PlanTransaction(writer, snapshot, planned, attempt, Timeline.of(known))
        execution.begin(lock)
        return execution

    return writer.run_locked(begun)


def _pending(snapshot: Snapshot, planned: Instant) -> Instant:
    found = [
        i
        for i in snapshot.timeline.pending(planned.action)
        if i.requested_at == planned.requested_at
    ]
    if not found:
        raise ConflictError(
            f"there is no pending {planned.action} at this instant any more",
            instant=planned.requested_at,
        )
    return found[0]


def start_metadata_action(writer: TransactionManager, planned: Instant) -> Snapshot:
    """Mark a plan that writes no data, such as a clean, as begun; may be repeated."""
    snapshot = load_snapshot(writer.storage)
    check_writable(snapshot.config)
    current = _pending(snapshot, planned)
    if current.state is State.REQUESTED:
        inflight = replace(current, state=State.INFLIGHT)
        try:
            writer.storage.create(snapshot.timeline_path(inflight), b"")
        except ConflictError:
            return snapshot  # somebody else has just begun it; both may do it
    return snapshot


def complete_metadata_action(writer: TransactionManager, planned: Instant, data: bytes) -> Instant:
    """Complete a plan that writes no data; gives its instant, also if somebody else was faster."""

    def ended(lock: Lock) -> Instant:
        snapshot = load_snapshot(writer.storage)
        for instant in snapshot.timeline.completed(planned.action):
            if instant.requested_at == planned.requested_at:
                return instant
        _pending(snapshot, planned)
        time = writer.times(snapshot.config, snapshot.timeline, lock).next()
        completed = Instant(planned.requested_at, planned.action, completed_at=time)
        lock.verify()
        writer.storage.create(snapshot.timeline_path(completed), data)
        return completed

    return writer.run_locked(ended)
