"""The one cycle of every service: plan, put it on the timeline, execute it by instant, complete.

Planning and scheduling happen under the table's lock, on the table as it is then. An execution
holds no lock while it works; it completes like any write. What fails is taken back and the plan
stays, so that it can be executed again, by anybody; unless it is cancellable.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lakewright.clock import Clock, zone_of
from lakewright.engine.base import Hands, LateHands, Watch, nobody_watches
from lakewright.errors import ConflictError, InvalidError, LakewrightError, found_in
from lakewright.metrics.meter import Meter
from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CleanMetadata
from lakewright.model.instant import COMPLETED_NAME, Instant, State
from lakewright.model.plans import Cause, Skip
from lakewright.options import option, option_keys, parse_bool, settings_from
from lakewright.services.base import (
    PLAIN_RESULTS,
    AnyService,
    Job,
    Sight,
    WrittenMeanwhileError,
    plan_codec,
    signed,
)
from lakewright.services.metrics import executing, not_due, observe, observe_clean, observe_debt
from lakewright.services.planning import plans_below
from lakewright.services.registry import service_by_name, service_of_plan, services
from lakewright.storage.base import Storage
from lakewright.table.conflicts import latest_time
from lakewright.table.feature_checks import require_beginnable, require_writable
from lakewright.table.locks.base import Lock, under_lock
from lakewright.table.options import Concurrency, plan_settings
from lakewright.table.plan_cancellation import cancel
from lakewright.table.plan_scheduling import Draft, end_plain, schedule, start_plain, take_up
from lakewright.table.properties import read_if_there
from lakewright.table.rollback import ended_rollback_of, load_rollback
from lakewright.table.snapshot import Snapshot, load_snapshot, withdraw_unplanned
from lakewright.table.time_generator import following, time_of
from lakewright.table.transaction import Writer
from lakewright.write.writer import Commit, commit_of, finish


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

    service: AnyService
    instant: Instant
    plan: Any


def plan_data(snapshot: Snapshot, instant: Instant) -> bytes | None:
    """The plan that was scheduled as an instant, as it is stored; None if it is gone."""
    requested = replace(instant, state=State.REQUESTED)
    return read_if_there(snapshot.storage, snapshot.timeline_path(requested))


def parsed_plan(instant: Instant, data: bytes) -> tuple[AnyService, Instant, Any]:
    """The service that a stored plan is for, its instant, and the plan."""
    with found_in(instant.file_name):
        plan = plan_codec(instant.action).parse(data)
    return service_of_plan(instant.action, plan.extra), instant, plan


RUN_KEYS = option_keys(RunSettings)
_BESIDE_OTHERS = {"hoodie.write.concurrency.mode": Concurrency.OPTIMISTIC.value}


@dataclass(frozen=True)
class ServiceRunner:
    """Runs services on one table, with one set of options; `hands` are asked for when needed."""

    storage: Storage
    clock: Clock
    hands: Callable[[], Hands]
    options: Mapping[str, str] = field(default_factory=dict)
    watch: Watch = nobody_watches

    def preview(self, name: str) -> Any:
        """The plan that scheduling would make now, or `Skip`; nothing is written."""
        service = service_by_name(name)
        snapshot = load_snapshot(self.storage)
        require_writable(snapshot.config)
        sight = self.sight(snapshot)
        early = service.due(sight)
        return self._planned(service, sight)[0] if early is None else early

    def schedule(self, name: str) -> Instant | Skip:
        """Put a plan on the timeline."""
        service = service_by_name(name)
        if not service.action:
            return Skip(f"{name} keeps no plan on the timeline: run it")
        done = self.prepare(service)
        found = self._schedule(service)
        return _told(found, done) if isinstance(found, Skip) else found.instant

    def prepare(self, service: AnyService, seen: Snapshot | None = None) -> Skip | None:
        """Let a service put right what comes before its plan; tells what it did, if anything."""
        if not service.prepares:
            return None
        return service.prepare(self.writer, seen or load_snapshot(self.storage))

    def _planned(self, service: AnyService, sight: Sight) -> tuple[Any, tuple[Instant, ...]]:
        """A plan as it would stand on the timeline, or Skip; and the plans that go before it."""
        plan = service.plan(sight)
        if isinstance(plan, Skip) or not service.action:
            return plan, ()
        cancellable = plan_settings(sight.snapshot.config, self.options).cancellable
        plan = signed(plan, service.name, service.action, cancellable=cancellable)
        below = plans_below(sight, plan) if service.action in COMPLETED_NAME else ()
        return (below, ()) if isinstance(below, Skip) else (plan, below)

    def _schedule(self, service: AnyService, *, triggered: bool = True) -> _Scheduled | Skip:
        made: list[Any] = []

        def decide(snapshot: Snapshot, next_time: Callable[[], str]) -> Draft | Skip:
            # Taking a time means waiting, where writers may have different clocks.
            due = service.due(self.sight(snapshot)) if triggered else None
            if due is not None:
                return not_due(due)
            instant = next_time()
            plan, below = self._planned(service, self.sight(snapshot, instant))
            if isinstance(plan, Skip):
                return plan
            made.append(plan)
            at = service.place(plan, instant)
            return Draft(at, plan_codec(service.action).format(plan), below)

        found = schedule(self.writer, service.action, decide)
        return found if isinstance(found, Skip) else _Scheduled(service, found, made[-1])

    def execute(self, instant: str) -> Commit:
        """Execute a plan, whoever made it; one that was executed gives its result once more."""
        snapshot = load_snapshot(self.storage)
        done = self._done(snapshot, instant)
        if done is not None:
            return done
        planned = _waiting_at(snapshot, instant)
        data = plan_data(snapshot, planned)
        if data is None:
            raise InvalidError("the plan is not there any more", instant=instant)
        if not data and planned.action not in COMPLETED_NAME:
            self._withdraw_unplanned(planned)
            raise ConflictError("there was no plan in its file: it was taken back", instant=instant)
        return self._execute(_Scheduled(*parsed_plan(planned, data)))

    def _withdraw_unplanned(self, planned: Instant) -> None:
        """Take a plan off the timeline whose writer died before it was in its file."""

        def gone(lock: Lock) -> bool:
            lock.verify()
            return withdraw_unplanned(load_snapshot(self.storage), planned)

        under_lock(self.writer.new_lock, gone)

    def _execute(self, scheduled: _Scheduled) -> Commit:
        writes = scheduled.instant.action in COMPLETED_NAME
        cancellable = writes and scheduled.plan.cancellable
        with executing(self.meter, scheduled.service.name, cancellable=cancellable):
            if not writes:
                return self._execute_plain(scheduled)
            try:
                return self._execute_writing(scheduled)
            except WrittenMeanwhileError:
                if cancellable:
                    raise
                return self._execute_writing(scheduled)

    def _follow(self, name: str, sight: Sight) -> Iterator[Commit | Skip]:
        """Run the services that follow another one."""
        for service in services():
            if not service.follows(name, sight):
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
            observe_debt(self.meter, lambda: self.sight(load_snapshot(self.storage)))
        return observe(self.meter, service.name, done, self.clock.monotonic_ms() - began_ms)

    @property
    def meter(self) -> Meter:
        """What tells figures of the table."""
        return Meter.of(self.storage, self.clock, self.options)

    def _run(self, service: AnyService, *, prepared: bool) -> Commit | Skip:
        if service.writes or not service.action:
            with executing(self.meter, service.name):
                done_at_once = self._run_write if service.writes else self._run_untraced
                return done_at_once(service)
        done_before = None if prepared else self.prepare(service)
        scheduled = self._schedule(service)
        if isinstance(scheduled, Skip):
            return _told(scheduled, done_before)
        done = self._execute(scheduled)
        goes_on = settings_from(RunSettings, self.options).partial_progress
        if not goes_on or service.action not in COMPLETED_NAME:
            return done
        return replace(done, services=tuple(self._rest(scheduled)))

    def cancel(
        self, instant: str, *, user: str = "", reason: str = "", wait_s: float = 0.0
    ) -> Instant:
        """Take a cancellable plan back, whoever made it, or ask who executes it to stop.

        Gives its rollback, which is completed once the plan is gone; waits so long for that.
        """
        cause = Cause(f"request of {user}" if user else "request", reason or "no reason was given")
        # Whoever made or executes the plan may be another process, so its lock is taken.
        writer = Writer.from_options(self.storage, self.clock, {**_BESIDE_OTHERS, **self.options})
        done = cancel(writer, instant, cause, wait_s=wait_s)
        self.meter.count("plan.cancelled")
        return done

    def _rest(self, scheduled: _Scheduled) -> Iterator[Commit]:
        """Go on while plans leave something and the next one finds something to do."""
        while scheduled.plan.missing_partitions:
            found = self._schedule(scheduled.service, triggered=False)
            if isinstance(found, Skip):
                return
            scheduled = found
            yield self._execute(scheduled)

    @property
    def writer(self) -> Writer:
        """What takes locks and begins transactions."""
        return Writer.from_options(self.storage, self.clock, self.options)

    def _execute_writing(self, scheduled: _Scheduled) -> Commit:
        at = scheduled.instant.requested_at
        partition = next(iter(scheduled.plan.partitions), "")
        began_ms = self.clock.monotonic_ms()
        known, cancellable = scheduled.plan.planned_at(at), scheduled.plan.cancellable
        begun = take_up(self.writer, scheduled.instant, partition, known, cancellable=cancellable)
        with begun as transaction:
            transaction.require_way(scheduled.plan)
            job = replace(self._job(transaction.snapshot, at), attempt=transaction.attempt)
            metadata = scheduled.service.run(job, scheduled.plan)

            def verify(now: Snapshot) -> None:
                _require_same_schema(at, transaction.snapshot, now)
                scheduled.service.verify(job, metadata, now)

            return finish(transaction, metadata, self.options, verify, began_ms=began_ms)

    def _execute_plain(self, scheduled: _Scheduled) -> Commit:
        planned, service = scheduled.instant, scheduled.service
        job = self._job(start_plain(self.writer, planned), planned.requested_at)
        result = service.run(job, scheduled.plan)
        data = PLAIN_RESULTS[planned.action].format(result)
        done = _plain_commit(end_plain(self.writer, planned, data), result)
        observe_clean(self.meter, result)
        followed = self._follow(service.name, self.sight(job.snapshot))
        return replace(done, services=tuple(followed))

    def _run_untraced(self, service: AnyService) -> Commit | Skip:
        """Plan and do under one lock: nothing on the timeline tells others of it."""

        def done(lock: Lock) -> Commit | Skip:
            snapshot = load_snapshot(self.storage)
            require_beginnable(
                snapshot.config, snapshot.timeline, self.writer.transaction.concurrency
            )
            sight = self.sight(snapshot)
            plan = _plan(service, sight)
            if isinstance(plan, Skip):
                return plan
            lock.verify()
            result: Commit = service.run(self._job(snapshot, sight.instant), plan)
            return result

        return under_lock(self.writer.new_lock, done)

    def _run_write(self, service: AnyService) -> Commit | Skip:
        """Plan, and let the service write; anew if somebody else was faster."""
        for last in (False, False, True):
            sight = self.sight(load_snapshot(self.storage))
            require_writable(sight.snapshot.config)
            plan = _plan(service, sight)
            if isinstance(plan, Skip):
                return plan
            try:
                done: Commit | Skip = service.run(self._job(sight.snapshot, sight.instant), plan)
            except ConflictError:
                if last:
                    raise
            else:
                return done
        raise AssertionError("the last attempt returns or raises")

    def _job(self, snapshot: Snapshot, instant: str) -> Job:
        hands = LateHands(self.hands, partial(self.watch, instant))
        return Job(snapshot, instant, self.options, hands, self.writer)

    def sight(self, snapshot: Snapshot, instant: str = "") -> Sight:
        """What a plan made now, or of this instant, would see."""
        now_ms = self.clock.now_ms()
        if not instant:
            zone = zone_of(snapshot.config.timeline_zone)
            instant, latest = time_of(now_ms, zone), latest_time(snapshot.timeline)
            instant = instant if instant > latest else following(latest)
        return Sight(snapshot, instant, now_ms, self.options)

    def _done(self, snapshot: Snapshot, at: str) -> Commit | None:
        """The result of a service that has completed, from the timeline or from history."""
        for instant in snapshot.timeline.completed():
            if instant.requested_at == at and instant.action in PLAIN_RESULTS:
                path = snapshot.timeline_path(instant)
                with found_in(path):
                    result = PLAIN_RESULTS[instant.action].parse(self.storage.read(path))
                return _plain_commit(instant, result)
            if instant.requested_at == at and at in snapshot.timeline.plans:
                return commit_of(instant, snapshot.commits([instant])[0])
        if snapshot.timeline.is_archived(at) and at in snapshot.archived_times:
            found = next(i for i in snapshot.archived if i.requested_at == at)
            (commit,) = snapshot.commits([found])
            return commit_of(found, commit) if commit.operation in SERVICE_OPERATIONS else None
        return None


def _require_same_schema(at: str, before: Snapshot, now: Snapshot) -> None:
    """Refuse to hide a column that a writer which began before the plan has added meanwhile."""
    if now.avro_schema(now.view(requested_until=at)) != before.avro_schema(
        before.view(requested_until=at)
    ):
        raise ConflictError(
            "the table's schema was changed meanwhile: execute the plan again", instant=at
        )


def _told(skip: Skip, prepared: Skip | None) -> Skip:
    """Why nothing was planned, after what was done before that."""
    return skip if prepared is None else replace(skip, reason=f"{prepared}; {skip}")


def _plan(service: AnyService, sight: Sight) -> Any:
    early = service.due(sight)
    return service.plan(sight) if early is None else not_due(early)


def _waiting_at(snapshot: Snapshot, at: str) -> Instant:
    actions = (*COMPLETED_NAME, *PLAIN_RESULTS)
    found = [i for i in snapshot.timeline.pending() if i.requested_at == at]
    for instant in found:
        if instant.action in actions:
            return instant
    if found:
        raise InvalidError(
            "this is a write of its own, and no plan to execute", instant=at, action=found[0].action
        )
    rollback = ended_rollback_of(snapshot, at)
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
