"""The execution of a plan: the transaction of one attempt, and the guard that permits it.

Several processes may execute the plan of one instant. If the heartbeat of an attempt expires,
another process rolls the attempt back and executes the plan again, at the same instant; but the
first process may only have been paused. So each attempt has a number, which is in the names of its
data files, and registers itself by a marker for a file that is never created. Every process that
rolls the attempt back, real Hudi included, deletes this marker with all others. The registration
has to be a marker, as real Hudi finds no markers in a folder that holds anything else.

An attempt is registered before its inflight file exists: so whichever process rolls back what it
finds inflight deletes the registration with it, and a process that starts a plan which is only
requested deletes the registrations that it finds. An attempt whose registration is gone commits
nothing. Since a process can be paused between its last check and the next call, no attempt deletes
what may belong to another one: it deletes data files and markers by its own number, and of other
completed files only those of attempts that were rolled back before it began.

A failed attempt leaves nothing but its plan. A cancellable plan has one attempt: if that fails, the
plan is rolled back with it, and the rollback records the cause.

The guard decides under the table's lock whether a plan may be executed now. The process that asks
starts its heartbeat under the same lock. So of several processes that ask at once, one finds no
heartbeat, and the others find that of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import NoReturn

from lakewright.clock import Clock
from lakewright.errors import ConflictError, LakewrightError, UnavailableError
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import parse_data_file
from lakewright.model.instant import WRITE_ACTIONS, Action, Instant, InstantTime, State
from lakewright.model.plans import RollbackCause
from lakewright.model.table_config import META_FOLDER
from lakewright.model.timeline import Timeline
from lakewright.storage.base import Storage, split_path
from lakewright.table.conflicts import (
    ConflictChecker,
    Plan,
    PreemptedError,
    operation_of_plan,
    without_groups,
)
from lakewright.table.heartbeat import Heartbeat, check_execution_alive
from lakewright.table.instant_files import all_files_present
from lakewright.table.locks.base import Lock
from lakewright.table.markers import (
    MarkerKind,
    attempt_registration,
    create_marker,
    delete_markers_for,
    finish_markers,
    list_markers,
    marked_files,
    marker_exists,
    marker_folder,
    registrations,
)
from lakewright.table.options import Concurrency, HeartbeatSettings
from lakewright.table.rollback import PendingRollback, pending_rollback_of, rollback_locked
from lakewright.table.snapshot import Snapshot, list_timeline, load_snapshot
from lakewright.table.transaction import Transaction, WriterContext

# Requests of other writers to cancel plans: files that are named after the instant.
CANCEL_FOLDER = f"{META_FOLDER}/.cancel"
_BY_EXECUTION = "its execution"
_ROLLED_BACK = "this execution was rolled back by another process"
# An error may list many file groups.
_MAX_REASON_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class ExecutionAttempt:
    """One execution of the plan of an instant; `number` distinguishes it from all others.

    `file` is the path of its registration: a file that it could have created, in a partition of the
    plan. A `stoppable` attempt checks for a requested rollback while it runs. `began_at` is when it
    began, as an instant time. `heartbeat` are the settings of its heartbeat, if it has one.
    """

    instant: InstantTime
    number: int
    file: str
    stoppable: bool = False
    began_at: InstantTime = ""
    heartbeat: HeartbeatSettings | None = None

    @classmethod
    def create(
        cls,
        instant: InstantTime,
        partition: str,
        new_id: str,
        *,
        stoppable: bool = False,
        began_at: InstantTime = "",
    ) -> ExecutionAttempt:
        """Return an attempt whose number is derived from `new_id`."""
        number, file = attempt_registration(instant, partition, new_id)
        return cls(instant, number, file, stoppable, began_at)

    def register(self, storage: Storage) -> None:
        """Create the marker that makes this the current attempt."""
        create_marker(storage, self.instant, self.file, MarkerKind.CREATE)

    def unregister(self, storage: Storage) -> None:
        """Delete the marker: this attempt has ended."""
        delete_markers_for(storage, self.instant, [self.file])

    def is_current(self, storage: Storage) -> bool:
        """Whether no process has rolled this attempt back."""
        return marker_exists(storage, self.instant, self.file, MarkerKind.CREATE)

    def check_alive(self, storage: Storage, clock: Clock) -> None:
        """Raise ConflictError if others may have rolled this attempt back, as it will not commit.

        If storage does not answer the attempt goes on: its commit checks the same.
        """
        if self.heartbeat is None:
            return
        with suppress(UnavailableError):
            if not self.is_current(storage):
                raise ConflictError(_ROLLED_BACK, instant=self.instant)
            check_execution_alive(storage, self.instant, self.heartbeat, clock)

    def wrote(self, path: str) -> bool:
        """Whether this attempt wrote a data file, by the write token in its name."""
        file = parse_data_file(split_path(path)[1])
        token = file.token or "" if file is not None else ""
        return token.split("-")[1:2] == [str(self.number)]


class PlanTransaction(Transaction):
    """The execution of a plan; leaving the `with` block aborts it unless it was committed.

    The plan stays, unless it is cancellable.
    """

    def __init__(
        self,
        writer: WriterContext,
        snapshot: Snapshot,
        planned: Instant,
        attempt: ExecutionAttempt,
        base_timeline: Timeline,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """Set up an attempt.

        `base_timeline` is the timeline that the plan was made on, `heartbeat` the one that this
        process has kept for the plan since it scheduled it.
        """
        at, action = planned.requested_at, planned.action
        # Whatever their settings, other processes check the heartbeat of a cancellable plan, and of
        # one that may expire, before they roll it back.
        force_heartbeat = (
            attempt.stoppable
            or writer.may_expire(snapshot.config, action)
            or writer.uses_execution_guard(snapshot.config, action)
        )
        super().__init__(
            writer,
            snapshot,
            at,
            action,
            base_timeline,
            force_heartbeat=force_heartbeat,
            inheritable=True,
            heartbeat=heartbeat,
        )
        has_heartbeat = self._heartbeat is not None
        self.attempt = replace(attempt, heartbeat=writer.heartbeat if has_heartbeat else None)
        self.cancellable = attempt.stoppable
        self._cause = RollbackCause(_BY_EXECUTION, "it was not completed")
        self._plan_rolled_back = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._cause = _cause_of(error)
        super().__exit__(kind, error, trace)
        if error is not None and self._plan_rolled_back:
            error.add_note("The plan was cancellable, and was rolled back with its execution.")

    def begin(self, lock: Lock) -> None:
        """Start the heartbeat, register the attempt and make the plan inflight.

        The caller holds the table's lock, and has rolled back an earlier attempt that was inflight.
        One that crashed before its plan was inflight has left only its registration.

        A process that is paused before it creates the inflight file, until lock and heartbeat have
        expired, starts a plan that others may have executed, or decided to roll back. It then finds
        their inflight file, its own registration deleted, or their requested rollback, and stops.
        """
        storage, started = self._storage, False
        try:
            self.start_heartbeat()
            stale = set(registrations(storage, self.instant)) - {self.attempt.file}
            lock.verify()
            self.attempt.register(storage)
            # Of several processes without a lock in common one creates this file.
            storage.create(self.pending_path(State.INFLIGHT), b"")
            delete_markers_for(storage, self.instant, stale)
            if not self.attempt.is_current(storage):
                # The plan was executed or rolled back while this process was paused. Before this
                # inflight file was created, and it belongs to no attempt; or after that, and by now
                # it may be that of the other attempt, which is registered or has completed.
                if not registrations(storage, self.instant) and not self._other_completed_files():
                    storage.delete(self.pending_path(State.INFLIGHT))
                self._raise_rolled_back()
            started = True
        finally:
            if not started:
                with suppress(LakewrightError):
                    self.attempt.unregister(storage)
                # A process that does not take this lock may have started the plan just now, and
                # the heartbeat file may be its own.
                self.stop_heartbeat(leave_file=True)

    def without_preempted(self, plan: Plan) -> Plan:
        """Return what writes have left of a cancellable plan before it starts.

        Raises PreemptedError if that is nothing.
        """
        if not self.cancellable:
            return plan
        pending = self._pending(State.INFLIGHT)
        transaction = self.writer.transaction
        try:
            ConflictChecker(self._base_timeline, self.snapshot).check_operation(
                pending,
                operation_of_plan(pending, plan),
                non_blocking=transaction.concurrency is Concurrency.NON_BLOCKING,
                yields_to_clustering=transaction.yields_to_clustering,
                live=self._higher_priority_writes(self.snapshot) or frozenset(),
            )
        except PreemptedError as error:
            rest = without_groups(plan, error.groups)
            if rest is None:
                raise
            return rest
        return plan

    @property
    def _fails_on_pending(self) -> bool:
        settings = self.writer.transaction
        is_clustering = self.action == Action.CLUSTERING
        return is_clustering and settings.prefers_writers and settings.fail_on_pending_ingestion

    def _higher_priority_writes(self, current: Snapshot) -> frozenset[str] | None:
        if not self.cancellable and not self.writer.transaction.prefers_writers:
            return None
        return self.writer.live_instants(
            i.requested_at for i in current.timeline.pending(*WRITE_ACTIONS)
        )

    def _find_completed(self, current: Snapshot) -> Instant | None:
        """Return the completed instant, if this attempt and no other requested it."""
        completed = super()._find_completed(current)
        return completed if completed is not None and completed == self._attempted_instant else None

    def _check_can_commit(
        self, current: Snapshot, files: Sequence[Instant], metadata: CommitMetadata
    ) -> None:
        if any(i.requested_at == self.instant for i in current.timeline.aborted):
            raise ConflictError(
                "this plan was aborted by another writer during its execution",
                instant=self.instant,
            )
        super()._check_can_commit(current, files, metadata)

    def _remove_other_attempts(self, metadata: CommitMetadata) -> None:
        self._listed_files = metadata.files()

    def _check_attempt(self) -> None:
        """Raise ConflictError if another process has executed the plan or rolled this attempt back.

        Deletes files of attempts that were rolled back, if these appeared after their rollback:
        readers find files by name. They are listed before the registration is checked. As long as
        this attempt is registered there is no later one, so they are not files of a later one.
        """
        marked = marked_files(self._storage, self.instant)
        if not self.attempt.is_current(self._storage):
            self._raise_rolled_back()
        if is_cancel_requested(self._storage, self.instant):
            raise ConflictError(
                "this plan is to be cancelled, as another writer requested during its execution",
                instant=self.instant,
            )
        if self._other_completed_files():
            if self.cancellable or not self._delete_late_completed_files():
                raise ConflictError(
                    "this plan was completed by another process", instant=self.instant
                )
            raise UnavailableError(
                "a completed file came late, of an execution that was rolled back: it was deleted, "
                "commit again",
                instant=self.instant,
            )
        self._storage.delete_many(sorted(set(marked) - self._listed_files))

    def _check_no_orphans_read(self, current: Snapshot, metadata: CommitMetadata) -> None:
        """Do nothing: the plan names the files that were read, and no orphan file is among them."""

    def _raise_rolled_back(self) -> NoReturn:
        raise ConflictError(_ROLLED_BACK, instant=self.instant)

    def _delete_late_completed_files(self) -> bool:
        """Delete late completed files of attempts that were rolled back before this one began.

        Such a file was named before its process was paused, and its data files were deleted by the
        rollback. A file of a later attempt, which has rolled this one back, stays.

        Returns whether there were any, and no others.
        """
        others = self._other_completed_files()
        late = [
            instant
            for instant in others
            if (instant.completed_at or "") < self.attempt.began_at
            and not all_files_present(load_snapshot(self._storage), instant)
        ]
        self._storage.delete_many(self.snapshot.timeline_path(instant) for instant in late)
        return bool(late) and len(late) == len(others)

    def _other_completed_files(self) -> list[Instant]:
        """Return the completed instants of this plan that this attempt has not requested."""
        return [
            instant
            for instant in list_timeline(self._storage, self.snapshot.config)
            if instant.requested_at == self.instant
            and instant.is_completed
            and instant.completed_action == self._completed_action
            and instant != self._attempted_instant
        ]

    def _delete_write(self) -> None:
        if self.cancellable:
            self.writer.run_locked(self._rollback_with_plan)
            self._plan_rolled_back = True
        else:
            self._delete_own_attempt()
        self._mark_aborted()

    def _rollback_with_plan(self, lock: Lock) -> None:
        if not self.attempt.is_current(self._storage) or self._other_completed_files():
            # The process that rolled it back may have missed files that appeared afterwards.
            files = {*self._listed_files, *marked_files(self._storage, self.instant)}
            self._storage.delete_many(sorted(filter(self.attempt.wrote, files)))
            return
        current = load_snapshot(self._storage)
        rollback_locked(
            current,
            current.timeline.by_time.get(self.instant) or self._pending(State.INFLIGHT),
            self.writer.times(current.config, current.timeline, lock),
            self.writer.clock,
            by_markers=self.writer.transaction.rollback_by_markers,
            cause=self._cause,
        )
        # The rollback assumes that all task attempts are running; these have reported.
        delete_markers_for(self._storage, self.instant, self._files_of_finished_attempts)
        self._storage.prune_folders(marker_folder(self.instant))

    def _delete_own_attempt(self) -> None:
        with self.writer.locked() as lock:
            is_current = self.attempt.is_current(self._storage)
            listed = list_markers(self._storage, self.instant)
            marked = marked_files(self._storage, self.instant, listed)
            own_markers = [
                file for file in listed if self.attempt.wrote(file.path.rpartition(".marker.")[0])
            ]
            files = filter(self.attempt.wrote, {*self._listed_files, *marked})
            self._storage.delete_many(sorted(files))
            if not is_current:
                self.stop_heartbeat(leave_file=True)
                return
            self._delete_late_completed_files()
            lock.verify()
            self._storage.delete(self.pending_path(State.INFLIGHT))
            finish_markers(
                self._storage, self.instant, self._files_of_finished_attempts, own_markers
            )


def _cause_of(error: BaseException) -> RollbackCause:
    """Return what made an attempt fail: the other write of a conflict, or the execution itself."""
    if isinstance(error, LakewrightError) and "other" in error.facts:
        # The other facts list all shared file groups, which may be too many for a timeline file.
        return RollbackCause(str(error.facts["other"]), error.message)
    reason = str(error) or type(error).__name__
    return RollbackCause(_BY_EXECUTION, reason[:_MAX_REASON_LENGTH])


# The execution guard.


class PlanInProgressError(ConflictError):
    """A plan must not be executed: another process executes it, or it is being rolled back."""


def check_executable(
    context: WriterContext,
    snapshot: Snapshot,
    current: Instant,
    *,
    cancellable: bool,
    has_heartbeat: bool = False,
) -> None:
    """Raise PlanInProgressError unless a pending plan may be executed.

    The caller has loaded the snapshot under the table's lock. `has_heartbeat`: the live heartbeat
    of the plan is the caller's own.
    """
    config = snapshot.config
    checks_heartbeat = not has_heartbeat and (
        context.uses_execution_guard(config, current.action)
        # A writer in single-writer mode, too, leaves an execution with a live heartbeat alone.
        or (current.state is State.INFLIGHT and context.plan_settings(config).guard is None)
    )
    live = checks_heartbeat and bool(context.live_instants([current.requested_at]))
    pending_rollback = pending_rollback_of(snapshot, current.requested_at) if cancellable else None
    reason = execution_refusal(
        current, cancellable=cancellable, is_live=live, rollback=pending_rollback
    )
    if reason is None and is_cancel_requested(context.storage, current.requested_at):
        reason = f"this {current.action} is to be cancelled: its instant is in {CANCEL_FOLDER}"
    if reason is not None:
        raise PlanInProgressError(reason, instant=current.requested_at, action=current.action)


def is_cancel_requested(storage: Storage, at: InstantTime) -> bool:
    """Whether another writer has requested, as Hudi's RFC 90 has it, that a plan is cancelled."""
    return at in cancel_requests(storage)


def cancel_requests(storage: Storage) -> dict[InstantTime, list[str]]:
    """Return the instants that other writers have requested to cancel, each with its files."""
    requests: dict[InstantTime, list[str]] = {}
    for file in storage.list_files(CANCEL_FOLDER):
        requests.setdefault(file.name.partition(".")[0], []).append(file.path)
    return requests


def execution_refusal(
    current: Instant, *, cancellable: bool, is_live: bool, rollback: PendingRollback | None
) -> str | None:
    """Return why a pending plan must not be executed now; None if it may be. Pure."""
    if is_live and current.action == Action.CLUSTERING and current.state is State.REQUESTED:
        return (
            "this clustering is being executed, or the process that scheduled it keeps it for "
            "itself, as clusterings expire: wait until that process has executed it, or until its "
            "heartbeat has expired"
        )
    if is_live:
        return (
            f"this {current.action} is being executed: wait until it is done, or until its "
            "heartbeat has expired"
        )
    if not cancellable:
        return None
    if rollback is not None:
        by = rollback.plan.caused_by or "another process"
        return f"this {current.action} is being rolled back, by {by}"
    if current.state is State.INFLIGHT:
        return (
            f"this {current.action} was started and has not completed, and a cancellable plan is "
            "executed once: a clean rolls it back, or cancel it"
        )
    return None
