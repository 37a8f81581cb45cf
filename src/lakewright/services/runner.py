"""Plans, schedules, executes and cancels table services; the same procedure for every service.

Terms:

- Plan: what a service will do, computed from a snapshot. Planning writes nothing.
- Schedule: make a plan and create its requested file on the timeline. From then on any process can
  execute the plan by its instant, real Hudi as well.
- Execute: do what the plan of a pending instant says and complete the instant.
- Execution attempt: one try to execute a plan that rewrites file groups. An attempt that crashed is
  rolled back before the next one starts; the plan and its instant stay the same.
- Run: schedule and execute.
- Trigger: when a service is due after writes and in loops (`triggered`). A compaction, log
  compaction or clustering that a user runs needs none.
- Cancel: roll back a pending plan that is cancellable.

Running a compaction, a log compaction or a clustering:

    pre_plan        no lock     whatever the service does before planning
    schedule        lock        check_trigger; plan; create the requested file
    begin attempt   lock        roll back a crashed attempt; start the heartbeat, unless there is
                                a single writer; create the inflight file and the attempt's marker
    execute         no lock     the engine writes data files
    commit          lock        check conflicts, the schema and `TableService.verify`; create the
                                completed file

An attempt that fails deletes its files and its inflight file. The plan stays requested, and any
process can execute it again. A cancellable plan has only one attempt: when it fails, the plan is
rolled back with it. Executing a plan that has completed returns its result again.

Other services differ in the last three steps:

- A plan that writes no data files (a clean) needs no attempt: two processes may execute it at the
  same time, and the first one completes it (`_execute_metadata_plan`).
- A service without an action leaves no plan on the timeline. It plans and executes under one lock
  (`_run_under_lock`, archiving), or as an ordinary write (`_run_as_write`, TTL).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from lakewright.clock import Clock, zone_of
from lakewright.engine.base import Engine, LazyEngine
from lakewright.errors import (
    ConflictError,
    InvalidError,
    LakewrightError,
    errors_in_file,
    kind_of,
)
from lakewright.metrics.meter import MetricsRecorder
from lakewright.model.commit_metadata import (
    DELETE_PARTITION,
    SERVICE_OPERATIONS,
    CleanMetadata,
    CommitMetadata,
)
from lakewright.model.instant import REWRITES, Action, Instant, InstantTime, State
from lakewright.model.plans import ESCALATED, EVENT_TIME_THRESHOLD, RollbackCause, Skip
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
from lakewright.services.clustering.planner import is_left_to_next_plan
from lakewright.services.compaction_debt import load_debt
from lakewright.services.planning import plans_to_supersede
from lakewright.services.registry import service_by_name, service_of_plan, services
from lakewright.services.rewrite import RewriteMetadata
from lakewright.storage.base import Storage
from lakewright.table.conflicts import PreemptedError, max_timeline_time, touches_groups
from lakewright.table.feature_checks import check_writable, check_write_can_begin
from lakewright.table.heartbeat import PlanHeartbeats
from lakewright.table.locks.base import Lock
from lakewright.table.options import plan_settings, with_optimistic_concurrency
from lakewright.table.plan_cancellation import cancel_plan
from lakewright.table.plan_execution import PlanTransaction
from lakewright.table.plan_scheduling import (
    PlanRequest,
    begin_execution,
    complete_metadata_action,
    schedule_plan,
    start_metadata_action,
)
from lakewright.table.preemption import format_preempted, preempted_partitions
from lakewright.table.properties import read_optional
from lakewright.table.rollback import completed_rollback_of, load_rollback
from lakewright.table.snapshot import Snapshot, delete_planless_clean, load_snapshot
from lakewright.table.time_generator import format_epoch_ms, next_instant_time
from lakewright.table.transaction import TransactionManager
from lakewright.write.writer import Commit, commit_result, commit_with_hooks

NOT_DUE = "not_due"
_NOTHING_TO_DO = "nothing_to_do"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How much one run does."""

    partial_progress: bool = option(
        "lakewright.services.partial.progress",
        False,
        parse=parse_bool,
        doc="Whether one run makes and executes further plans as long as plans skip partitions: "
        "each is a commit of its own, and completed ones stay if a later one fails.",
    )


@dataclass(frozen=True)
class _ScheduledPlan:
    """A pending plan, and the service that executes it."""

    service: AnyTableService
    instant: Instant
    plan: Any


def read_plan_bytes(snapshot: Snapshot, instant: Instant) -> bytes | None:
    """Return the content of a plan's requested file; None if the file no longer exists."""
    requested = replace(instant, state=State.REQUESTED)
    return read_optional(snapshot.storage, snapshot.timeline_path(requested))


def parse_plan(instant: Instant, data: bytes) -> tuple[AnyTableService, Instant, Any]:
    """Parse a stored plan; returns the service that executes it, its instant and the plan."""
    with errors_in_file(instant.file_name):
        plan = plan_codec(instant.action).parse(data)
    return service_of_plan(instant.action, plan.extra), instant, plan


RUN_KEYS = option_keys(RunSettings)

Begun = TypeVar("Begun")

ProgressCallback = Callable[[str, int, int], AbstractContextManager[None]]


def _no_progress(instant: InstantTime, items: int, size: int) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class ServiceRunner:
    """Plans, schedules, executes and cancels table services of one table, with one set of options.

    `engine` is called when an execution first needs an engine. `progress` is called with the
    instant, the number of items and their bytes when the engine starts to process them.
    `heartbeats` are those of clusterings that may expire and were scheduled here: until they end,
    other processes do not execute these plans.
    """

    storage: Storage
    clock: Clock
    engine: Callable[[], Engine]
    options: Mapping[str, str] = field(default_factory=dict)
    progress: ProgressCallback = _no_progress
    heartbeats: PlanHeartbeats = field(default_factory=PlanHeartbeats, compare=False, repr=False)

    def preview(self, name: str, *, triggered: bool = False) -> Any:
        """Return the plan that `schedule` would make now, or `Skip`; writes nothing."""
        service = service_by_name(name)
        snapshot = load_snapshot(self.storage)
        check_writable(snapshot.config)
        context = self.planning_context(snapshot)
        skip = _why_not_due(service, context, triggered=triggered)
        return self._make_plan(service, context)[0] if skip is None else skip

    def schedule(self, name: str, *, triggered: bool = False) -> Instant | Skip:
        """Make a plan and create its requested file; returns its instant, or why there is none."""
        service = service_by_name(name)
        if not service.action:
            return Skip(f"{name} keeps no plan on the timeline: run it")
        pre_planned = self.pre_plan(service)
        scheduled = self._schedule(service, triggered=triggered)
        return (
            _merge_skips(scheduled, pre_planned)
            if isinstance(scheduled, Skip)
            else scheduled.instant
        )

    def pre_plan(self, service: AnyTableService, snapshot: Snapshot | None = None) -> Skip | None:
        """Let a service do what precedes planning; returns what it did, or None."""
        if not service.has_pre_plan:
            return None
        return service.pre_plan(self.writer, snapshot or load_snapshot(self.storage))

    def _make_plan(
        self, service: AnyTableService, context: PlanningContext
    ) -> tuple[Any, tuple[Instant, ...]]:
        """Return the plan to schedule, or Skip; and the cancellable plans that it supersedes."""
        plan = service.plan(context)
        if isinstance(plan, Skip) or not service.action:
            return plan, ()
        action = Action(service.action)
        cancellable = (
            plan_settings(context.snapshot.config, self.options).cancellable
            and ESCALATED not in plan.extra
        )
        plan = with_service_metadata(plan, service.name, action, cancellable=cancellable)
        superseded = plans_to_supersede(context, plan) if action.is_rewrite else ()
        return (superseded, ()) if isinstance(superseded, Skip) else (plan, superseded)

    def _schedule(self, service: AnyTableService, *, triggered: bool) -> _ScheduledPlan | Skip:
        action = Action(service.action or "")

        def plan_locked(snapshot: Snapshot, next_time: Callable[[], str]) -> PlanRequest | Skip:
            # The trigger comes first: a new instant time may have to wait for clock skew.
            skip = _why_not_due(service, self.planning_context(snapshot), triggered=triggered)
            if skip is not None:
                return not_due(skip)
            instant = next_time()
            plan, superseded = self._make_plan(service, self.planning_context(snapshot, instant))
            if isinstance(plan, Skip):
                return plan
            at = service.plan_instant(plan, instant)
            return PlanRequest(at, plan, plan_codec(action).format(plan), superseded)

        scheduled = schedule_plan(self.writer, action, plan_locked, self.heartbeats)
        if isinstance(scheduled, Skip):
            return scheduled
        instant, request = scheduled
        return _ScheduledPlan(service, instant, request.plan)

    def execute(self, instant: InstantTime) -> Commit:
        """Execute a plan that any process has scheduled; returns the result of a completed one.

        Raises:
            InvalidError: there is no plan at this instant, or it was rolled back.
            ConflictError: another process executes the plan, or has scheduled it for itself; or the
                table no longer matches it.
        """
        try:
            return self._execute_at(instant)
        finally:
            self.heartbeats.stop(instant)

    def _execute_at(self, instant: InstantTime) -> Commit:
        snapshot = load_snapshot(self.storage)
        result = self._completed_result(snapshot, instant)
        if result is not None:
            return result
        planned = _pending_plan_at(snapshot, instant)
        data = read_plan_bytes(snapshot, planned)
        if data is None:
            raise InvalidError("the plan no longer exists", instant=instant)
        if not data and not planned.action.is_rewrite:
            self._delete_empty_plan(planned)
            raise ConflictError("the plan's file was empty: it was deleted", instant=instant)
        return self._execute(_ScheduledPlan(*parse_plan(planned, data)))

    def _delete_empty_plan(self, planned: Instant) -> None:
        """Delete the requested file of a process that crashed before the plan was in it."""

        def delete_locked(lock: Lock) -> bool:
            lock.verify()
            return delete_planless_clean(load_snapshot(self.storage), planned)

        self.writer.run_locked(delete_locked)

    def _execute(self, scheduled: _ScheduledPlan) -> Commit:
        is_rewrite = scheduled.instant.action.is_rewrite
        cancellable = is_rewrite and scheduled.plan.cancellable
        with _record_failures(self.meter, scheduled.service.name, cancellable=cancellable):
            if not is_rewrite:
                return self._execute_metadata_plan(scheduled)
            try:
                return self._execute_write_plan(scheduled)
            except ConcurrentWriteError:
                if cancellable:
                    raise
                return self._execute_write_plan(scheduled)

    def _run_dependents(self, name: str, context: PlanningContext) -> Iterator[Commit | Skip]:
        """Run the services that run after the named one."""
        for service in services():
            if not service.runs_after(name, context):
                continue
            try:
                yield self.run(service.name, triggered=True)
            except LakewrightError as error:
                # The named service has completed: a failure of this one must not fail it.
                warnings.warn(f"{service.name} after {name} failed: {error}", stacklevel=2)
                yield Skip(f"{service.name}: {error}")

    def run(
        self, name: str, *, triggered: bool = False, skip_pre_plan: bool = False
    ) -> Commit | Skip:
        """Schedule and execute; `skip_pre_plan` if the caller has just called `pre_plan`."""
        service, started_ms = service_by_name(name), self.clock.monotonic_ms()
        outcome = self._run(service, triggered=triggered, skip_pre_plan=skip_pre_plan)
        if service.name == "compaction":
            _record_debt(self.meter, lambda: self.planning_context(load_snapshot(self.storage)))
        return record_outcome(
            self.meter, service.name, outcome, self.clock.monotonic_ms() - started_ms
        )

    @property
    def meter(self) -> MetricsRecorder:
        """The recorder of the table's metrics."""
        return MetricsRecorder.create(self.storage, self.clock, self.options)

    def _run(
        self, service: AnyTableService, *, triggered: bool, skip_pre_plan: bool
    ) -> Commit | Skip:
        if service.writes or not service.action:
            with _record_failures(self.meter, service.name):
                run = self._run_as_write if service.writes else self._run_under_lock
                return run(service)
        pre_planned = None if skip_pre_plan else self.pre_plan(service)
        scheduled = self._schedule(service, triggered=triggered)
        if isinstance(scheduled, Skip):
            return _merge_skips(scheduled, pre_planned)
        commit = self._execute(scheduled)
        if service.action not in REWRITES:
            return commit
        if settings_from(RunSettings, self.options).partial_progress:
            return replace(commit, services=tuple(self._run_further_plans(scheduled)))
        return replace(commit, services=tuple(self._run_preempted(scheduled)))

    def cancel(
        self, instant: InstantTime, *, user: str = "", reason: str = "", wait_s: float = 0.0
    ) -> Instant:
        """Roll back a cancellable plan, or request that the process that executes it stops.

        Waits up to `wait_s` seconds for the execution to stop.

        Returns:
            The rollback. It is completed if the plan has been rolled back, else requested.
        """
        cause = RollbackCause(
            f"request of {user}" if user else "request", reason or "no reason was given"
        )
        # Another process may have scheduled the plan or be executing it, so the lock is needed.
        writer = TransactionManager.from_options(
            self.storage, self.clock, with_optimistic_concurrency(self.options)
        )
        rollback = cancel_plan(writer, instant, cause, wait_s=wait_s)
        self.meter.count("plan.cancelled")
        return rollback

    def _run_further_plans(self, scheduled: _ScheduledPlan) -> Iterator[Commit]:
        """Schedule and execute plans until one skips no partition or there is nothing to do."""
        while scheduled.plan.missing_partitions:
            following = self._schedule(scheduled.service, triggered=False)
            if isinstance(following, Skip):
                return
            scheduled = following
            yield self._execute(scheduled)

    def _run_preempted(self, scheduled: _ScheduledPlan) -> Iterator[Commit | Skip]:
        """Run what a plan has left out to be planned after the others, in plans of its own.

        If writers are faster again, the plans that have completed stay.
        """
        while any(map(is_left_to_next_plan, scheduled.plan.missing_reasons.values())):
            try:
                following = self._schedule(scheduled.service, triggered=False)
                if isinstance(following, Skip):
                    return
                scheduled = following
                yield self._execute(scheduled)
            except ConflictError as error:
                yield Skip(str(error))
                return

    @property
    def writer(self) -> TransactionManager:
        """The transaction manager, which acquires locks and begins transactions."""
        return TransactionManager.from_options(self.storage, self.clock, self.options)

    def _execute_write_plan(self, scheduled: _ScheduledPlan) -> Commit:
        at = scheduled.instant.requested_at
        partition = next(iter(scheduled.plan.partitions), "")
        started_ms = self.clock.monotonic_ms()
        planned_at, cancellable = scheduled.plan.planned_at(at), scheduled.plan.cancellable
        execution = self._unless_completed(
            at,
            lambda: begin_execution(
                self.writer,
                scheduled.instant,
                partition,
                planned_at,
                cancellable=cancellable,
                heartbeats=self.heartbeats,
            ),
        )
        if isinstance(execution, Commit):
            return execution
        with execution as transaction:
            plan = transaction.without_preempted(scheduled.plan)
            context = replace(
                self._execution_context(transaction.snapshot, at), attempt=transaction.attempt
            )
            metadata = scheduled.service.execute(context, plan)
            if not cancellable:
                validator = _ExecutionValidator(scheduled.service, context, metadata)
                return commit_with_hooks(
                    transaction, metadata, self.options, [validator], began_ms=started_ms
                )
            parts = _PartialExecution(scheduled, context, transaction, metadata)
            commit = parts.commit(self.options, started_ms)
            if parts.preempted:
                self.meter.count("service.preempted", service=scheduled.service.name)
            return commit

    def _execute_metadata_plan(self, scheduled: _ScheduledPlan) -> Commit:
        planned, service = scheduled.instant, scheduled.service
        started = self._unless_completed(
            planned.requested_at, lambda: start_metadata_action(self.writer, planned)
        )
        if isinstance(started, Commit):
            return started
        context = self._execution_context(started, planned.requested_at)
        result = service.execute(context, scheduled.plan)
        data = METADATA_ONLY_RESULTS[planned.action].format(result)
        commit = _metadata_commit(complete_metadata_action(self.writer, planned, data), result)
        _record_clean(self.meter, result)
        dependents = self._run_dependents(service.name, self.planning_context(context.snapshot))
        return replace(commit, services=tuple(dependents))

    def _unless_completed(self, at: str, begin: Callable[[], Begun]) -> Begun | Commit:
        """Begin an execution; the stored result if another process has just completed the plan."""
        try:
            return begin()
        except ConflictError:
            result = self._completed_result(load_snapshot(self.storage), at)
            if result is None:
                raise
            return result

    def _run_under_lock(self, service: AnyTableService) -> Commit | Skip:
        """Plan and execute under one lock, as other processes see no plan on the timeline."""

        def run_locked(lock: Lock) -> Commit | Skip:
            snapshot = load_snapshot(self.storage)
            check_write_can_begin(
                snapshot.config, snapshot.timeline, self.writer.transaction.concurrency
            )
            context = self.planning_context(snapshot)
            plan = _plan_if_due(service, context)
            if isinstance(plan, Skip):
                return plan
            lock.verify()
            commit: Commit = service.execute(
                self._execution_context(snapshot, context.instant), plan
            )
            return commit

        return self.writer.run_locked(run_locked)

    def _run_as_write(self, service: AnyTableService) -> Commit | Skip:
        """Plan and let the service write; after a conflict plan and write again, twice at most."""
        for is_last in (False, False, True):
            context = self.planning_context(load_snapshot(self.storage))
            check_writable(context.snapshot.config)
            plan = _plan_if_due(service, context)
            if isinstance(plan, Skip):
                return plan
            try:
                outcome: Commit | Skip = service.execute(
                    self._execution_context(context.snapshot, context.instant), plan
                )
            except ConflictError:
                if is_last:
                    raise
            else:
                return outcome
        raise AssertionError("the last attempt returns or raises")

    def _execution_context(self, snapshot: Snapshot, instant: InstantTime) -> ExecutionContext:
        engine = LazyEngine(self.engine, partial(self.progress, instant))
        return ExecutionContext(snapshot, instant, self.options, engine, self.writer)

    def planning_context(self, snapshot: Snapshot, instant: InstantTime = "") -> PlanningContext:
        """Return the context of a plan that is made now, at `instant` if that is given."""
        now_ms = self.clock.now_ms()
        if not instant:
            zone = zone_of(snapshot.config.timeline_zone)
            instant, latest = format_epoch_ms(now_ms, zone), max_timeline_time(snapshot.timeline)
            instant = instant if instant > latest else next_instant_time(latest)
        return PlanningContext(snapshot, instant, now_ms, self.options)

    def _completed_result(self, snapshot: Snapshot, at: str) -> Commit | None:
        """Return the result of a completed plan, from the active or the archived timeline."""
        for instant in snapshot.timeline.completed():
            if instant.requested_at == at and instant.action in METADATA_ONLY_RESULTS:
                path = snapshot.timeline_path(instant)
                with errors_in_file(path):
                    result = METADATA_ONLY_RESULTS[instant.action].parse(self.storage.read(path))
                return _metadata_commit(instant, result)
            if instant.requested_at == at and at in snapshot.timeline.plans:
                return commit_result(instant, snapshot.commits([instant])[0])
        if snapshot.timeline.is_archived(at) and at in snapshot.archived_times:
            archived = next(i for i in snapshot.archived if i.requested_at == at)
            (commit,) = snapshot.commits([archived])
            return (
                commit_result(archived, commit) if commit.operation in SERVICE_OPERATIONS else None
            )
        return None


@dataclass
class _PartialExecution:
    """The execution of a cancellable plan, which completes without what writers have preempted."""

    scheduled: _ScheduledPlan
    context: ExecutionContext
    transaction: PlanTransaction
    metadata: CommitMetadata

    def commit(self, options: Mapping[str, str], began_ms: int) -> Commit:
        """Commit what no write conflicts with; PreemptedError if that is nothing."""
        before = preempted_partitions(self.context.snapshot, self.scheduled.instant.action)
        while True:
            record = format_preempted(before, self.scheduled.plan.partitions, self.preempted)
            metadata = replace(self.metadata, extra={**self.metadata.extra, **record})
            validator = _ExecutionValidator(self.scheduled.service, self.context, metadata)
            try:
                return commit_with_hooks(
                    self.transaction, metadata, options, [validator], began_ms=began_ms
                )
            except PreemptedError as error:
                self._leave_out(error)

    def _leave_out(self, error: PreemptedError) -> None:
        """Remove the parts in conflict; the commit deletes their files before it completes."""
        metadata = self.metadata
        rest = None
        # A compaction by event time states up to when the table is compacted: all of it, or none.
        if isinstance(metadata, RewriteMetadata) and EVENT_TIME_THRESHOLD not in metadata.extra:
            rest = metadata.without(lambda part: touches_groups(part, error.groups))
        if rest is None or rest.files() == metadata.files():
            raise error
        self.transaction.report(metadata.files() - rest.files())
        self.metadata = rest

    @property
    def preempted(self) -> frozenset[str]:
        """The partitions in which file groups of the plan were left to writers."""
        rewritten = (
            self.metadata.file_groups()
            if self.scheduled.instant.action != Action.CLUSTERING
            else {(p, file_id) for p, ids in self.metadata.replaced.items() for file_id in ids}
        )
        return frozenset(p for p, _ in self.scheduled.plan.file_groups - rewritten)


@dataclass(frozen=True)
class _ExecutionValidator:
    """Refuses the commit of an execution whose result no longer fits the table."""

    service: AnyTableService
    context: ExecutionContext
    metadata: CommitMetadata

    def validate(self, current: Snapshot) -> None:
        """Raise ConflictError if the schema has changed, or if the service refuses the result."""
        self._check_schema(current)
        self.service.verify(self.context, self.metadata, current)

    def _check_schema(self, current: Snapshot) -> None:
        """Refuse a result that would hide a new column.

        A write requested before the plan may have added the column after the execution started.
        """
        at, base = self.context.instant, self.context.snapshot
        if current.avro_schema(current.view(requested_until=at)) != base.avro_schema(
            base.view(requested_until=at)
        ):
            raise ConflictError(
                "a concurrent write changed the table's schema: execute the plan again", instant=at
            )


def _merge_skips(skip: Skip, pre_planned: Skip | None) -> Skip:
    """Return why nothing was planned, preceded by what `pre_plan` did."""
    return skip if pre_planned is None else replace(skip, reason=f"{pre_planned}; {skip}")


def _why_not_due(
    service: AnyTableService, context: PlanningContext, *, triggered: bool
) -> Skip | None:
    """Return why a service is not to be planned; None if it is."""
    by_trigger = triggered or service.action not in REWRITES
    return service.check_trigger(context) if by_trigger else None


def _plan_if_due(service: AnyTableService, context: PlanningContext) -> Any:
    skip = service.check_trigger(context)
    return service.plan(context) if skip is None else not_due(skip)


def _pending_plan_at(snapshot: Snapshot, at: str) -> Instant:
    """Return the pending plan of an instant; InvalidError with the reason if there is none."""
    actions = (*REWRITES, *METADATA_ONLY_RESULTS)
    pending = [i for i in snapshot.timeline.pending() if i.requested_at == at]
    for instant in pending:
        if instant.action in actions:
            return instant
    if any(i.requested_at == at for i in snapshot.timeline.aborted):
        raise InvalidError("the plan of this instant was aborted by another writer", instant=at)
    if pending:
        raise InvalidError(
            "this is a pending write, not a plan to execute", instant=at, action=pending[0].action
        )
    rollback = completed_rollback_of(snapshot, at)
    if rollback is not None:
        metadata = load_rollback(snapshot, rollback)
        raise InvalidError(
            "the plan of this instant was rolled back",
            instant=at,
            rollback=rollback.requested_at,
            by=metadata.caused_by,
            reason=metadata.reason,
        )
    plans = [i.requested_at for i in snapshot.timeline.pending(*actions)]
    raise InvalidError("there is no plan at this instant", instant=at, waiting=plans)


def _metadata_commit(instant: Instant, result: CleanMetadata) -> Commit:
    return Commit(
        instant=instant.requested_at,
        completed_at=instant.completed_at or "",
        action=instant.action,
        operation=instant.action.upper(),
        partitions=tuple(sorted(result.partitions)),
        files=result.files_deleted,
    )


# Metrics of services: skipped runs and their reasons, failures, compaction debt.


def not_due(skip: Skip) -> Skip:
    """Return the Skip with the kind that says that a trigger, not a planner, decided it."""
    return replace(skip, kind=NOT_DUE)


@contextmanager
def _record_failures(
    meter: MetricsRecorder, service: str, *, cancellable: bool = False
) -> Iterator[None]:
    """Count an execution that fails, and whether it was preempted."""
    try:
        yield
    except LakewrightError as error:
        if cancellable and isinstance(error, ConflictError):
            meter.count("service.preempted", service=service)
        meter.count("service.failed", service=service, error=kind_of(error))
        raise


def record_outcome(
    meter: MetricsRecorder, service: str, outcome: Commit | Skip, took_ms: int = 0
) -> Commit | Skip:
    """Record what a service did, or why it did nothing; returns `outcome` unchanged."""
    if isinstance(outcome, Skip):
        meter.count("service.skipped", service=service, reason=outcome.kind or _NOTHING_TO_DO)
    elif service == "archive":
        meter.gauge([("archive.duration", took_ms), ("archive.numInstantsArchived", outcome.files)])
        meter.count("archive.completed.counter")
    elif service == "ttl" and outcome.operation == DELETE_PARTITION:
        meter.count("ttl.numPartitionsExpired", len(outcome.partitions))
    return outcome


def _record_debt(meter: MetricsRecorder, load_context: Callable[[], PlanningContext]) -> None:
    """Record how many log files are uncompacted, if enabled; nothing if that cannot be loaded."""
    if not meter.is_on or not meter.settings.debt:
        return
    with suppress(LakewrightError):
        debt = load_debt(load_context())
        meter.gauge([("debt.logFiles", debt.log_files), ("debt.logBytes", debt.log_bytes)])


def _record_clean(meter: MetricsRecorder, result: CleanMetadata) -> None:
    """Record what a clean did."""
    meter.gauge(
        [("clean.duration", result.took_ms), ("clean.numFilesDeleted", result.files_deleted)]
    )
    meter.count("clean.completed.counter")
