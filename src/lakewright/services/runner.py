"""The one cycle of every service: plan, put it on the timeline, execute it by instant, complete.

Planning and scheduling happen under the table's lock, on the table as it is then. An execution
holds no lock while it works; it completes like any write. What fails is taken back and the plan
stays, so that it can be executed again, by anybody; unless it is cancellable.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lakewright.clock import Clock, zone_of
from lakewright.engine.base import Engine, LazyEngine
from lakewright.errors import ConflictError, InvalidError, LakewrightError, found_in
from lakewright.metrics.meter import MetricsRecorder
from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CleanMetadata, CommitMetadata
from lakewright.model.instant import REWRITES, Action, Instant, InstantTime, State
from lakewright.model.plans import RollbackCause, Skip
from lakewright.options import option, option_keys, parse_bool, settings_from
from lakewright.services.base import (
    METADATA_ONLY_RESULTS,
    AnyTableService,
    ConcurrentWriteError,
    ExecutionContext,
    PlanningContext,
    plan_codec,
    with_service_metadata,
)
from lakewright.services.metrics import (
    not_due,
    record_clean,
    record_debt,
    record_failures,
    record_outcome,
)
from lakewright.services.planning import plans_to_supersede
from lakewright.services.registry import service_by_name, service_of_plan, services
from lakewright.storage.base import Storage
from lakewright.table.conflicts import max_timeline_time
from lakewright.table.feature_checks import check_writable, check_write_can_begin
from lakewright.table.locks.base import Lock
from lakewright.table.options import Concurrency, plan_settings
from lakewright.table.plan_cancellation import cancel_plan
from lakewright.table.plan_scheduling import (
    PlanRequest,
    begin_execution,
    complete_metadata_action,
    schedule_plan,
    start_metadata_action,
)
from lakewright.table.properties import read_optional
from lakewright.table.rollback import completed_rollback_of, load_rollback
from lakewright.table.snapshot import Snapshot, delete_planless_clean, load_snapshot
from lakewright.table.time_generator import format_epoch_ms, next_instant_time
from lakewright.table.transaction import TransactionManager
from lakewright.write.writer import Commit, commit_result, commit_with_hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How much one run takes on."""

    partial_progress: bool = option(
        "lakewright.services.partial.progress",
        False,
        parse=parse_bool,
        doc="Whether a run goes on, plan after plan, while plans leave something: each is a commit "
        "of its own, and what is done stays done if a later one fails.",
    )


@dataclass(frozen=True)
class _Scheduled:
    """A plan on the timeline, and who executes it."""

    service: AnyTableService
    instant: Instant
    plan: Any


def read_plan_bytes(snapshot: Snapshot, instant: Instant) -> bytes | None:
    """The plan that was scheduled as an instant, as it is stored; None if it is gone."""
    requested = replace(instant, state=State.REQUESTED)
    return read_optional(snapshot.storage, snapshot.timeline_path(requested))


def parse_plan(instant: Instant, data: bytes) -> tuple[AnyTableService, Instant, Any]:
    """The service that a stored plan is for, its instant, and the plan."""
    with found_in(instant.file_name):
        plan = plan_codec(instant.action).parse(data)
    return service_of_plan(instant.action, plan.extra), instant, plan


RUN_KEYS = option_keys(RunSettings)
_BESIDE_OTHERS = {"hoodie.write.concurrency.mode": Concurrency.OPTIMISTIC.value}


ProgressCallback = Callable[[str, int, int], AbstractContextManager[None]]


def _no_progress(instant: InstantTime, items: int, size: int) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class ServiceRunner:
    """Plans, schedules and executes table services on one table, with one set of options.

    `engine` is started when an execution first needs it. `progress` is called with the instant, the
    number of items and their bytes when an execution begins to work.
    """

    storage: Storage
    clock: Clock
    engine: Callable[[], Engine]
    options: Mapping[str, str] = field(default_factory=dict)
    progress: ProgressCallback = _no_progress

    def preview(self, name: str) -> Any:
        """The plan that scheduling would make now, or `Skip`; nothing is written."""
        service = service_by_name(name)
        snapshot = load_snapshot(self.storage)
        check_writable(snapshot.config)
        sight = self.planning_context(snapshot)
        early = service.check_trigger(sight)
        return self._planned(service, sight)[0] if early is None else early

    def schedule(self, name: str) -> Instant | Skip:
        """Put a plan on the timeline."""
        service = service_by_name(name)
        if not service.action:
            return Skip(f"{name} keeps no plan on the timeline: run it")
        done = self.pre_plan(service)
        found = self._schedule(service)
        return _merge_skips(found, done) if isinstance(found, Skip) else found.instant

    def pre_plan(self, service: AnyTableService, seen: Snapshot | None = None) -> Skip | None:
        """Let a service put right what comes before its plan; tells what it did, if anything."""
        if not service.has_pre_plan:
            return None
        return service.pre_plan(self.writer, seen or load_snapshot(self.storage))

    def _planned(
        self, service: AnyTableService, sight: PlanningContext
    ) -> tuple[Any, tuple[Instant, ...]]:
        """A plan as it would stand on the timeline, or Skip; and the plans that go before it."""
        plan = service.plan(sight)
        if isinstance(plan, Skip) or not service.action:
            return plan, ()
        action = Action(service.action)
        cancellable = plan_settings(sight.snapshot.config, self.options).cancellable
        plan = with_service_metadata(plan, service.name, action, cancellable=cancellable)
        below = plans_to_supersede(sight, plan) if action.is_rewrite else ()
        return (below, ()) if isinstance(below, Skip) else (plan, below)

    def _schedule(self, service: AnyTableService, *, triggered: bool = True) -> _Scheduled | Skip:
        action = Action(service.action or "")

        def plan_locked(snapshot: Snapshot, next_time: Callable[[], str]) -> PlanRequest | Skip:
            # Taking a time means waiting, where writers may have different clocks.
            due = service.check_trigger(self.planning_context(snapshot)) if triggered else None
            if due is not None:
                return not_due(due)
            instant = next_time()
            plan, below = self._planned(service, self.planning_context(snapshot, instant))
            if isinstance(plan, Skip):
                return plan
            at = service.plan_instant(plan, instant)
            return PlanRequest(at, plan, plan_codec(action).format(plan), below)

        scheduled = schedule_plan(self.writer, action, plan_locked)
        if isinstance(scheduled, Skip):
            return scheduled
        instant, request = scheduled
        return _Scheduled(service, instant, request.plan)

    def execute(self, instant: InstantTime) -> Commit:
        """Execute a plan, whoever made it; one that was executed gives its result once more."""
        snapshot = load_snapshot(self.storage)
        done = self._completed_result(snapshot, instant)
        if done is not None:
            return done
        planned = _waiting_at(snapshot, instant)
        data = read_plan_bytes(snapshot, planned)
        if data is None:
            raise InvalidError("the plan is not there any more", instant=instant)
        if not data and not planned.action.is_rewrite:
            self._delete_planless(planned)
            raise ConflictError("there was no plan in its file: it was taken back", instant=instant)
        return self._execute(_Scheduled(*parse_plan(planned, data)))

    def _delete_planless(self, planned: Instant) -> None:
        """Take a plan off the timeline whose writer died before it was in its file."""

        def gone(lock: Lock) -> bool:
            lock.verify()
            return delete_planless_clean(load_snapshot(self.storage), planned)

        self.writer.run_locked(gone)

    def _execute(self, scheduled: _Scheduled) -> Commit:
        writes = scheduled.instant.action.is_rewrite
        cancellable = writes and scheduled.plan.cancellable
        with record_failures(self.meter, scheduled.service.name, cancellable=cancellable):
            if not writes:
                return self._execute_metadata_plan(scheduled)
            try:
                return self._execute_write_plan(scheduled)
            except ConcurrentWriteError:
                if cancellable:
                    raise
                return self._execute_write_plan(scheduled)

    def _run_dependents(self, name: str, sight: PlanningContext) -> Iterator[Commit | Skip]:
        """Run the services that follow another one."""
        for service in services():
            if not service.runs_after(name, sight):
                continue
            try:
                yield self.run(service.name)
            except LakewrightError as error:
                # The other one has completed, whatever becomes of this one.
                warnings.warn(f"{service.name} after {name} failed: {error}", stacklevel=2)
                yield Skip(f"{service.name}: {error}")

    def run(self, name: str, *, prepared: bool = False) -> Commit | Skip:
        """Schedule and execute; `prepared` tells that `prepare` was called just now."""
        service, began_ms = service_by_name(name), self.clock.monotonic_ms()
        done = self._run(service, prepared=prepared)
        if service.name == "compaction":
            record_debt(self.meter, lambda: self.planning_context(load_snapshot(self.storage)))
        return record_outcome(self.meter, service.name, done, self.clock.monotonic_ms() - began_ms)

    @property
    def meter(self) -> MetricsRecorder:
        """What tells figures of the table."""
        return MetricsRecorder.create(self.storage, self.clock, self.options)

    def _run(self, service: AnyTableService, *, prepared: bool) -> Commit | Skip:
        if service.writes or not service.action:
            with record_failures(self.meter, service.name):
                done_at_once = self._run_as_write if service.writes else self._run_under_lock
                return done_at_once(service)
        done_before = None if prepared else self.pre_plan(service)
        scheduled = self._schedule(service)
        if isinstance(scheduled, Skip):
            return _merge_skips(scheduled, done_before)
        done = self._execute(scheduled)
        goes_on = settings_from(RunSettings, self.options).partial_progress
        if not goes_on or service.action not in REWRITES:
            return done
        return replace(done, services=tuple(self._continue(scheduled)))

    def cancel(
        self, instant: InstantTime, *, user: str = "", reason: str = "", wait_s: float = 0.0
    ) -> Instant:
        """Take a cancellable plan back, whoever made it, or ask who executes it to stop.

        Gives its rollback, which is completed once the plan is gone; waits so long for that.
        """
        cause = RollbackCause(
            f"request of {user}" if user else "request", reason or "no reason was given"
        )
        # Whoever made or executes the plan may be another process, so its lock is taken.
        writer = TransactionManager.from_options(
            self.storage, self.clock, {**_BESIDE_OTHERS, **self.options}
        )
        done = cancel_plan(writer, instant, cause, wait_s=wait_s)
        self.meter.count("plan.cancelled")
        return done

    def _continue(self, scheduled: _Scheduled) -> Iterator[Commit]:
        """Go on while plans leave something and the next one finds something to do."""
        while scheduled.plan.missing_partitions:
            found = self._schedule(scheduled.service, triggered=False)
            if isinstance(found, Skip):
                return
            scheduled = found
            yield self._execute(scheduled)

    @property
    def writer(self) -> TransactionManager:
        """What takes locks and begins transactions."""
        return TransactionManager.from_options(self.storage, self.clock, self.options)

    def _execute_write_plan(self, scheduled: _Scheduled) -> Commit:
        at = scheduled.instant.requested_at
        partition = next(iter(scheduled.plan.partitions), "")
        began_ms = self.clock.monotonic_ms()
        known, cancellable = scheduled.plan.planned_at(at), scheduled.plan.cancellable
        begun = begin_execution(
            self.writer, scheduled.instant, partition, known, cancellable=cancellable
        )
        with begun as transaction:
            transaction.check_preemption(scheduled.plan)
            job = replace(
                self._execution_context(transaction.snapshot, at), attempt=transaction.attempt
            )
            metadata = scheduled.service.execute(job, scheduled.plan)
            validator = _ExecutionValidator(scheduled.service, job, metadata)
            return commit_with_hooks(
                transaction, metadata, self.options, [validator], began_ms=began_ms
            )

    def _execute_metadata_plan(self, scheduled: _Scheduled) -> Commit:
        planned, service = scheduled.instant, scheduled.service
        job = self._execution_context(
            start_metadata_action(self.writer, planned), planned.requested_at
        )
        result = service.execute(job, scheduled.plan)
        data = METADATA_ONLY_RESULTS[planned.action].format(result)
        done = _plain_commit(complete_metadata_action(self.writer, planned, data), result)
        record_clean(self.meter, result)
        followed = self._run_dependents(service.name, self.planning_context(job.snapshot))
        return replace(done, services=tuple(followed))

    def _run_under_lock(self, service: AnyTableService) -> Commit | Skip:
        """Plan and do under one lock: nothing on the timeline tells others of it."""

        def done(lock: Lock) -> Commit | Skip:
            snapshot = load_snapshot(self.storage)
            check_write_can_begin(
                snapshot.config, snapshot.timeline, self.writer.transaction.concurrency
            )
            sight = self.planning_context(snapshot)
            plan = _plan(service, sight)
            if isinstance(plan, Skip):
                return plan
            lock.verify()
            result: Commit = service.execute(self._execution_context(snapshot, sight.instant), plan)
            return result

        return self.writer.run_locked(done)

    def _run_as_write(self, service: AnyTableService) -> Commit | Skip:
        """Plan, and let the service write; anew if somebody else was faster."""
        for last in (False, False, True):
            sight = self.planning_context(load_snapshot(self.storage))
            check_writable(sight.snapshot.config)
            plan = _plan(service, sight)
            if isinstance(plan, Skip):
                return plan
            try:
                done: Commit | Skip = service.execute(
                    self._execution_context(sight.snapshot, sight.instant), plan
                )
            except ConflictError:
                if last:
                    raise
            else:
                return done
        raise AssertionError("the last attempt returns or raises")

    def _execution_context(self, snapshot: Snapshot, instant: InstantTime) -> ExecutionContext:
        engine = LazyEngine(self.engine, partial(self.progress, instant))
        return ExecutionContext(snapshot, instant, self.options, engine, self.writer)

    def planning_context(self, snapshot: Snapshot, instant: InstantTime = "") -> PlanningContext:
        """What a plan made now, or of this instant, would see."""
        now_ms = self.clock.now_ms()
        if not instant:
            zone = zone_of(snapshot.config.timeline_zone)
            instant, latest = format_epoch_ms(now_ms, zone), max_timeline_time(snapshot.timeline)
            instant = instant if instant > latest else next_instant_time(latest)
        return PlanningContext(snapshot, instant, now_ms, self.options)

    def _completed_result(self, snapshot: Snapshot, at: str) -> Commit | None:
        """The result of a service that has completed, from the timeline or from history."""
        for instant in snapshot.timeline.completed():
            if instant.requested_at == at and instant.action in METADATA_ONLY_RESULTS:
                path = snapshot.timeline_path(instant)
                with found_in(path):
                    result = METADATA_ONLY_RESULTS[instant.action].parse(self.storage.read(path))
                return _plain_commit(instant, result)
            if instant.requested_at == at and at in snapshot.timeline.plans:
                return commit_result(instant, snapshot.commits([instant])[0])
        if snapshot.timeline.is_archived(at) and at in snapshot.archived_times:
            found = next(i for i in snapshot.archived if i.requested_at == at)
            (commit,) = snapshot.commits([found])
            return commit_result(found, commit) if commit.operation in SERVICE_OPERATIONS else None
        return None


@dataclass(frozen=True)
class _ExecutionValidator:
    """Refuses the commit of an execution whose result does not fit the table any more."""

    service: AnyTableService
    context: ExecutionContext
    metadata: CommitMetadata

    def validate(self, current: Snapshot) -> None:
        """Raise ConflictError if the schema has changed, or the service says so."""
        self._check_schema(current)
        self.service.verify(self.context, self.metadata, current)

    def _check_schema(self, current: Snapshot) -> None:
        """Refuse to hide a column that a write which began before the plan has added since."""
        at, base = self.context.instant, self.context.snapshot
        if current.avro_schema(current.view(requested_until=at)) != base.avro_schema(
            base.view(requested_until=at)
        ):
            raise ConflictError(
                "the table's schema was changed meanwhile: execute the plan again", instant=at
            )


def _merge_skips(skip: Skip, prepared: Skip | None) -> Skip:
    """Why nothing was planned, after what was done before that."""
    return skip if prepared is None else replace(skip, reason=f"{prepared}; {skip}")


def _plan(service: AnyTableService, sight: PlanningContext) -> Any:
    early = service.check_trigger(sight)
    return service.plan(sight) if early is None else not_due(early)


def _waiting_at(snapshot: Snapshot, at: str) -> Instant:
    actions = (*REWRITES, *METADATA_ONLY_RESULTS)
    found = [i for i in snapshot.timeline.pending() if i.requested_at == at]
    for instant in found:
        if instant.action in actions:
            return instant
    if found:
        raise InvalidError(
            "this is a write of its own, and no plan to execute", instant=at, action=found[0].action
        )
    rollback = completed_rollback_of(snapshot, at)
    if rollback is not None:
        told = load_rollback(snapshot, rollback)
        raise InvalidError(
            "the plan of this instant was rolled back",
            instant=at,
            rollback=rollback.requested_at,
            by=told.caused_by,
            reason=told.reason,
        )
    waiting = [i.requested_at for i in snapshot.timeline.pending(*actions)]
    raise InvalidError("there is no plan at this instant", instant=at, waiting=waiting)


def _plain_commit(instant: Instant, result: CleanMetadata) -> Commit:
    return Commit(
        instant=instant.requested_at,
        completed_at=instant.completed_at or "",
        action=instant.action,
        operation=instant.action.upper(),
        partitions=tuple(sorted(result.partitions)),
        files=result.files_deleted,
    )
