"""The execution of a plan: a write whose instant other processes may be executing, too.

An attempt that is taken for dead is rolled back and the plan executed anew, at the same instant.
Who was taken for dead may only have held still. So each attempt has a number, which is in the names
of its data files, and a marker of its own, for a file that is never made: whoever rolls the attempt
back, real Hudi too, deletes it with the others. Nothing but markers may lie there, or real Hudi
finds none of them. Whose marker is gone acts no more: it completes nothing, and deletes nothing but
files of its own.

An attempt that fails leaves its plan, and no trace. A cancellable plan has one attempt: when that
fails, a rollback takes the plan along, and keeps by what and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from lakewright.errors import ConflictError, LakewrightError, UnavailableError
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import parse_data_file
from lakewright.model.instant import WRITE_ACTIONS, Instant, InstantTime, State
from lakewright.model.plans import ClusteringPlan, CompactionPlan, RollbackCause
from lakewright.model.timeline import Timeline
from lakewright.storage.base import Storage, split_path
from lakewright.table.conflicts import ConflictChecker, operation_of_plan
from lakewright.table.locks.base import Lock
from lakewright.table.markers import (
    MarkerKind,
    attempt_registration,
    create_marker,
    delete_markers_for,
    finish_markers,
    marked_files,
    marker_exists,
    marker_folder,
)
from lakewright.table.options import ClusteringUpdateStrategy, Concurrency
from lakewright.table.rollback import PendingRollback, pending_rollback_of, rollback_locked
from lakewright.table.snapshot import Snapshot, list_timeline, load_snapshot
from lakewright.table.transaction import Transaction, WriterContext

_ITSELF = "its execution"
# An error may name many file groups.
_LONGEST_REASON = 1000


@dataclass(frozen=True, slots=True)
class ExecutionAttempt:
    """One execution of the plan of an instant; `number` tells it from all others.

    `file` is one that it could have made, in a partition of the plan. A `stoppable` one looks for
    requests to stop on its way.
    """

    instant: InstantTime
    number: int
    file: str
    stoppable: bool = False

    @classmethod
    def create(
        cls, instant: InstantTime, partition: str, new_id: str, *, stoppable: bool = False
    ) -> ExecutionAttempt:
        """An attempt whose number comes from a new id."""
        return cls(instant, *attempt_registration(instant, partition, new_id), stoppable)

    def register(self, storage: Storage) -> None:
        """Make it count."""
        create_marker(storage, self.instant, self.file, MarkerKind.CREATE)

    def is_current(self, storage: Storage) -> bool:
        """Whether nobody has rolled it back."""
        return marker_exists(storage, self.instant, self.file, MarkerKind.CREATE)

    def wrote(self, path: str) -> bool:
        """Whether a data file is one of this attempt, by its name."""
        file = parse_data_file(split_path(path)[1])
        token = file.token or "" if file is not None else ""
        return token.split("-")[1:2] == [str(self.number)]


class PlanTransaction(Transaction):
    """A plan that is being executed; leaving the block before it completes takes it back.

    The plan stays, unless it is cancellable.
    """

    def __init__(
        self,
        writer: WriterContext,
        snapshot: Snapshot,
        planned: Instant,
        attempt: ExecutionAttempt,
        known: Timeline,
    ) -> None:
        """`known` is what the plan rests on."""
        # Others decide by its heartbeat what becomes of a cancellable plan, whoever they are.
        beats = attempt.stoppable or writer.uses_execution_guard(snapshot.config)
        at, action = planned.requested_at, planned.action
        super().__init__(writer, snapshot, at, action, known, beats=beats, inheritable=True)
        self.attempt = attempt
        self.cancellable = attempt.stoppable
        self._cause = RollbackCause(_ITSELF, "it was not completed")
        self._plan_is_gone = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._cause = _cause_of(error)
        super().__exit__(kind, error, trace)
        if error is not None and self._plan_is_gone:
            error.add_note("The plan was cancellable, and has gone with its execution.")

    def begin(self, lock: Lock) -> None:
        """Show others that the plan is being executed; the caller holds the table's lock.

        Who holds still before the next call, until lock and heartbeat have expired, begins what
        others may have decided to take back. It then finds their request, and stops.
        """
        started = False
        try:
            self.start_heartbeat()
            lock.verify()
            self._storage.create(self.pending_path(State.INFLIGHT), b"")
            self.attempt.register(self._storage)
            started = True
        finally:
            if not started:
                # Somebody without our lock may have begun it right now.
                self.stop_heartbeat(leave_file=True)

    def check_preemption(self, plan: CompactionPlan | ClusteringPlan) -> None:
        """ConflictError where a cancellable plan has met a faster write before it does anything."""
        if self.cancellable:
            pending = self._pending(State.INFLIGHT)
            transaction = self.writer.transaction
            ConflictChecker(self._known, self.snapshot).check_operation(
                pending,
                operation_of_plan(pending, plan),
                non_blocking=transaction.concurrency is Concurrency.NON_BLOCKING,
                yields_to_clustering=transaction.clustering_updates
                is ClusteringUpdateStrategy.REJECT,
                living=self._higher_priority_writes(self.snapshot) or frozenset(),
            )

    def _higher_priority_writes(self, now: Snapshot) -> frozenset[str] | None:
        if not self.cancellable:
            return None
        return self.writer.live_instants(
            i.requested_at for i in now.timeline.pending(*WRITE_ACTIONS)
        )

    def _find_completed(self, now: Snapshot) -> Instant | None:
        """Only what this attempt has asked for is its own."""
        found = super()._find_completed(now)
        return found if found is not None and found == self._attempted else None

    def _remove_other_attempts(self, metadata: CommitMetadata) -> None:
        self._listed = metadata.files()

    def _check_can_commit(
        self, now: Snapshot, files: Sequence[Instant], metadata: CommitMetadata
    ) -> None:
        self._check_attempt_is_current()
        if self.cancellable and self._other_completed_files():
            raise ConflictError("this plan was completed by somebody else", instant=self.instant)
        if self._delete_other_completed_files():
            raise UnavailableError(
                "a completed file came late, of an execution that was rolled back: it is gone, "
                "complete again",
                instant=self.instant,
            )
        super()._check_can_commit(now, files, metadata)
        # Files of attempts that were rolled back may have appeared after that.
        self._remove_unlisted()

    def _check_no_orphans_read(self, now: Snapshot, metadata: CommitMetadata) -> None:
        """Nothing to do: the plan names the files that were read, and none of them is a stray."""

    def _check_attempt_is_current(self) -> None:
        if not self.attempt.is_current(self._storage):
            raise ConflictError(
                "this execution was rolled back by another process", instant=self.instant
            )

    def _delete_other_completed_files(self) -> bool:
        """Delete the completed file of an attempt that was rolled back, if one came late."""
        late = self._other_completed_files()
        self._storage.delete_many(self.snapshot.timeline_path(instant) for instant in late)
        return bool(late)

    def _other_completed_files(self) -> list[Instant]:
        """The completed files of this instant that this attempt has not asked for."""
        return [
            instant
            for instant in list_timeline(self._storage, self.snapshot.config)
            if instant.requested_at == self.instant
            and instant.is_completed
            and instant.completed_action == self._completed_action
            and instant != self._attempted
        ]

    def _delete_write(self) -> None:
        if self.cancellable:
            self.writer.run_locked(self._rollback_with_plan)
            self._plan_is_gone = True
        else:
            self._delete_own_attempt()
        self._aborted()

    def _rollback_with_plan(self, lock: Lock) -> None:
        if not self.attempt.is_current(self._storage) or self._other_completed_files():
            # Who has taken it back may have missed what came after that.
            files = {*self._listed, *marked_files(self._storage, self.instant)}
            self._storage.delete_many(sorted(filter(self.attempt.wrote, files)))
            return
        now = load_snapshot(self._storage)
        rollback_locked(
            now,
            now.timeline.by_time.get(self.instant) or self._pending(State.INFLIGHT),
            self.writer.times(now.config, now.timeline, lock),
            self.writer.clock,
            by_markers=self.writer.transaction.rollback_by_markers,
            cause=self._cause,
        )
        # The rollback takes all tasks for running; these have reported.
        delete_markers_for(self._storage, self.instant, self._of_ended_attempts)
        self._storage.prune_folders(marker_folder(self.instant))

    def _delete_own_attempt(self) -> None:
        with self.writer.locked():
            counts = self.attempt.is_current(self._storage)
            marked = marked_files(self._storage, self.instant)
            own = {path for path in {*self._listed, *marked} if self.attempt.wrote(path)}
            self._storage.delete_many(sorted({*marked, *own} if counts else own))
            if counts:
                self._delete_other_completed_files()
                self._storage.delete(self.pending_path(State.INFLIGHT))
                finish_markers(self._storage, self.instant, self._of_ended_attempts)
            else:
                self.stop_heartbeat(leave_file=True)


def _cause_of(error: BaseException) -> RollbackCause:
    """By what an attempt has failed: another write that it met, or itself."""
    if isinstance(error, LakewrightError) and "other" in error.facts:
        # All file groups that both had may be very many, and nobody reads them in a timeline.
        return RollbackCause(str(error.facts["other"]), error.message)
    reason = str(error) or type(error).__name__
    return RollbackCause(_ITSELF, reason[:_LONGEST_REASON])


# ------------------------------------------------------------------------------------------------
# The guard of plans: whether one may be executed now, asked under the table's lock.
#
# Who executes a plan shows by a heartbeat that it lives, and starts it in the transaction in which
# it
# asks. So of several that ask at once one finds nobody there, and the others find that one.


class PlanInProgressError(ConflictError):
    """A plan is not to be executed: somebody else has it, or it is about to go."""


def check_executable(
    equipment: WriterContext, snapshot: Snapshot, current: Instant, *, cancellable: bool
) -> None:
    """GuardError unless a pending plan may be executed; the snapshot was loaded under the lock."""
    asks = equipment.uses_execution_guard(snapshot.config) or (
        # Who takes itself for the only writer still leaves alone what shows that it lives.
        current.state is State.INFLIGHT and equipment.plan_settings(snapshot.config).guard is None
    )
    living = asks and bool(equipment.live_instants([current.requested_at]))
    began = pending_rollback_of(snapshot, current.requested_at) if cancellable else None
    reason = execution_refusal(current, cancellable=cancellable, living=living, rollback=began)
    if reason is not None:
        raise PlanInProgressError(reason, instant=current.requested_at, action=current.action)


def execution_refusal(
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
