"""The transaction of a write: begin, commit, abort.

begin     take the lock; load the snapshot; check that the table is writable; roll back failed
          writes; create the requested file; release the lock; create the inflight file
(write)   for every data file: create its marker, then the file
commit    delete files of failed task attempts; take the lock; reload the timeline; validate;
          create the completed file; release the lock; delete the markers

Creating the completed file is the atomic step that makes the write visible. A process that
crashes before it leaves a pending instant and markers, from which the next writer rolls the write
back; one that crashes after it leaves only markers, which a clean deletes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import TracebackType
from typing import Self, TypeVar

from lakewright.clock import Clock, zone_of
from lakewright.errors import ConflictError, InvalidError, LakewrightError, UnavailableError
from lakewright.format.timeline_metadata import encode_commit
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import group_of
from lakewright.model.instant import (
    REWRITES,
    WRITE_ACTIONS,
    Action,
    Instant,
    InstantTime,
    State,
)
from lakewright.model.table_config import TableConfig
from lakewright.model.timeline import Timeline
from lakewright.options import settings_from
from lakewright.storage.base import Storage
from lakewright.table.archived_timeline import archived_times_in
from lakewright.table.commit_request import (
    CommitContributor,
    CommitRequest,
    CommitValidator,
    check_files,
)
from lakewright.table.conflicts import ConflictChecker, max_timeline_time
from lakewright.table.failed_writes import rollback_failed_writes
from lakewright.table.feature_checks import check_writable, check_write_can_begin
from lakewright.table.heartbeat import Heartbeat, live_heartbeats
from lakewright.table.instant_files import try_create
from lakewright.table.locks.base import Lock, acquired, lock_for, run_locked
from lakewright.table.markers import finish_markers, marked_files
from lakewright.table.options import (
    PLAN_KEYS,
    Concurrency,
    FailedWritesPolicy,
    HeartbeatSettings,
    LockSettings,
    PlanSettings,
    TransactionSettings,
    plan_settings,
)
from lakewright.table.properties import drop_metadata_table, read_optional, update_properties
from lakewright.table.snapshot import (
    Snapshot,
    list_timeline,
    load_snapshot,
    load_snapshot_and_files,
)
from lakewright.table.time_generator import TimeGenerator, format_epoch_ms

Result = TypeVar("Result")


_SINGLE_WRITER_WAIT_MS = 1


@dataclass(frozen=True, slots=True)
class WriterContext:
    """The table's storage, a clock, and the concurrency settings of one writer."""

    storage: Storage
    clock: Clock
    transaction: TransactionSettings = field(default_factory=TransactionSettings)
    lock: LockSettings = field(default_factory=LockSettings)
    heartbeat: HeartbeatSettings = field(default_factory=HeartbeatSettings)
    plan_options: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def from_options(cls, storage: Storage, clock: Clock, options: Mapping[str, str]) -> Self:
        """Return a writer with the settings that these Hudi options name."""
        settings_from(PlanSettings, options)
        return cls(
            storage,
            clock,
            settings_from(TransactionSettings, options),
            settings_from(LockSettings, options),
            settings_from(HeartbeatSettings, options),
            {key: options[key] for key in PLAN_KEYS if key in options},
        )

    def new_lock(self) -> Lock:
        """The table's lock, not yet acquired."""
        several = self.transaction.several_writers
        return lock_for(self.storage, self.lock, self.clock, several_writers=several)

    def run_locked(self, work: Callable[[Lock], Result]) -> Result:
        """Run `work` under the table's lock; run it again under a new lock if the lock is lost.

        `work` verifies its lock before the step that needs it; until then it is repeatable.
        """
        return run_locked(self.new_lock, work)

    @contextmanager
    def locked(self) -> Iterator[Lock]:
        """Hold the table's lock for a block, which is not repeated if the lock is lost."""
        lock = self.new_lock()
        with acquired(lock):
            yield lock

    def times(
        self, config: TableConfig, timeline: Timeline, lock: Lock | None = None
    ) -> TimeGenerator:
        """Return a generator of instant times above all times of the timeline.

        The caller holds the table's lock. If `lock` is passed, every new time verifies it first.
        """
        several = self.transaction.several_writers
        wait_ms = self.transaction.clock_skew_ms if several else _SINGLE_WRITER_WAIT_MS
        zone = zone_of(config.timeline_zone)
        return TimeGenerator(
            self.clock, zone, wait_ms, after=max_timeline_time(timeline), lock=lock
        )

    def still_holds(self, lock: Lock) -> bool:
        """Whether this process has held a lock that all other writers take until now.

        False with a single writer, whose lock other processes do not take, and where storage does
        not answer.
        """
        if not self.transaction.several_writers:
            return False
        try:
            lock.verify()
        except (ConflictError, UnavailableError):
            return False
        return True

    def live_instants(self, instants: Iterable[str]) -> frozenset[str]:
        """Return those of `instants` that have a live heartbeat; lists nothing for no instants."""
        candidates = frozenset(instants)
        if not candidates:
            return candidates
        return live_heartbeats(
            self.storage, candidates, self.heartbeat, self.clock.now_ms(), check_clock=True
        )

    def new_heartbeat(self, instant: InstantTime, inheritable: bool) -> Heartbeat:
        """Return the heartbeat of a write, not yet started; for `inheritable` see `Heartbeat`."""
        return Heartbeat(self.storage, instant, self.heartbeat, self.clock, inheritable=inheritable)

    @property
    def uses_heartbeat(self) -> bool:
        """Whether other processes check by a heartbeat whether this writer is running."""
        lazy = self.transaction.failed_writes is FailedWritesPolicy.LAZY
        return lazy or self.transaction.several_writers

    def plan_settings(self, config: TableConfig) -> PlanSettings:
        """Return the settings for plans: from the options, else from the table's properties."""
        return plan_settings(config, self.plan_options)

    def uses_execution_guard(self, config: TableConfig, action: Action) -> bool:
        """Whether executions have a heartbeat, and a plan with a live one is not executed."""
        guard = self.plan_settings(config).guard
        if guard is not None:
            return guard
        return self.uses_heartbeat or self.may_expire(config, action)

    def may_expire(self, config: TableConfig, action: Action) -> bool:
        """Whether a lazy clean rolls back old plans of this action without a live heartbeat."""
        return action == Action.CLUSTERING and self.plan_settings(config).expire_clusterings


_PREPARATIONS = 3
_ROLLBACK_POLLS = 6
_ROLLBACK_POLL_S = 0.2


class _State(Enum):
    OPEN = auto()
    UNKNOWN = auto()  # storage did not answer whether it created the completed file
    COMMITTED = auto()
    ABORTED = auto()


@dataclass(frozen=True, slots=True)
class _PublishedCommit:
    """A visible commit, the timeline files listed before it, and whether the lock was held."""

    instant: Instant
    files_before: frozenset[Instant]
    lock_held: bool


class Transaction:
    """A write that has begun; leaving the `with` block aborts it unless it was committed.

    `snapshot` is the table when the write began, after failed writes were rolled back, without the
    write itself. `after` is the table with the write, once it has committed.
    """

    cancellable = False

    def __init__(
        self,
        writer: WriterContext,
        snapshot: Snapshot,
        instant: InstantTime,
        action: Action,
        base_timeline: Timeline | None = None,
        *,
        force_heartbeat: bool = False,
        inheritable: bool = False,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """Set up a transaction whose requested file the caller creates.

        `base_timeline` is the timeline that the write was planned on, if not that of the snapshot.
        `force_heartbeat` forces a heartbeat even if the settings need none; for `inheritable` see
        `Heartbeat`. `heartbeat` is one that was started for this instant already.
        """
        self.writer = writer
        self._base_timeline = base_timeline or snapshot.timeline
        self.snapshot = snapshot
        self.instant = instant
        self.action = action
        self._storage = writer.storage
        self._state = _State.OPEN
        self._attempted_instant: Instant | None = None
        self._attempted: tuple[CommitMetadata, bytes] | None = None
        self._listed_files: frozenset[str] = frozenset()
        self._reported_files: frozenset[str] = frozenset()
        self.after = snapshot
        has_heartbeat = force_heartbeat or writer.uses_heartbeat
        self._starts_heartbeat = has_heartbeat and heartbeat is None
        self._heartbeat = (
            writer.new_heartbeat(instant, inheritable) if self._starts_heartbeat else heartbeat
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state in (_State.COMMITTED, _State.ABORTED):
            return
        try:
            self.abort()
        except (ConflictError, InvalidError, UnavailableError) as failure:
            if error is None:
                raise
            error.add_note(f"The write could not be aborted, it stays as it is: {failure}")

    def commit(
        self,
        metadata: CommitMetadata,
        *,
        validators: Sequence[CommitValidator] = (),
        contributors: Sequence[CommitContributor] = (),
    ) -> Instant:
        """Make the write visible: create its completed file.

        Args:
            metadata: what the write did; its files exist already.
            validators: called under the lock, after the transaction's own conflict check.
            contributors: called under the lock, for extra metadata of the commit.

        Returns:
            The completed instant.

        Raises:
            ConflictError: another writer committed first; nothing is visible. Abort this write.
            UnavailableError: storage did not answer; the same call may be made again.
        """
        self._check_open()
        check_files(metadata, self.instant)
        # After an unanswered call these files may be visible already.
        if self._state is _State.OPEN:
            self._remove_other_attempts(metadata)
        self._storage.sync(sorted(metadata.files()))
        replaces = self._completed_action == Action.REPLACE_COMMIT
        encoded = encode_commit(metadata, replaces=replaces)
        request = CommitRequest(metadata, encoded, validators, contributors)
        published = self._publish_prepared(request)
        if not published.lock_held:
            with self.writer.locked():
                self._confirm(published, request)
        self._state = _State.COMMITTED
        self._clean_up()
        return published.instant

    def _publish_prepared(self, request: CommitRequest) -> _PublishedCommit:
        """Publish under the lock; where validators have files to read first, release it for that.

        Other writers may complete again and again: in the end the files are read under the lock.
        """
        for _ in range(_PREPARATIONS):
            published = self.writer.run_locked(
                lambda lock: self._publish(lock, request, may_prepare=True)
            )
            if isinstance(published, _PublishedCommit):
                return published
            for validator in request.unprepared(published):
                validator.prepare(published)
        last = self.writer.run_locked(lambda lock: self._publish(lock, request, may_prepare=False))
        assert isinstance(last, _PublishedCommit)
        return last

    def _publish(
        self, lock: Lock, request: CommitRequest, *, may_prepare: bool
    ) -> _PublishedCommit | Snapshot:
        """Create the completed file, or return the snapshot for which to prepare validators."""
        current, files = load_snapshot_and_files(self._storage)
        completed = self._find_completed(current)
        if completed is not None:
            # An earlier, unanswered call created it, under another lock than this one.
            self.after = current
            return _PublishedCommit(completed, frozenset(), lock_held=False)
        self._check_attempt()
        ConflictChecker(self.snapshot.timeline, current).check_base_exists(self.instant)
        self._check_can_commit(current, files, request.metadata)
        if may_prepare and request.unprepared(current):
            return current
        request.validate(current)
        unanswered = self._attempted_instant
        completed = self._choose_completed_instant(current)
        # Storage may still carry out the unanswered request: send the same bytes again.
        if completed is not unanswered or self._attempted is None:
            metadata = request.final_metadata(current)
            self._attempted = metadata, request.encoded.with_extra(metadata.extra)
        metadata, data = self._attempted
        lock.verify()
        self._verify_heartbeat()
        self._create_completed(completed, data)
        timeline = Timeline.from_instants([*files, completed])
        self.after = current.with_write(timeline, self.instant, metadata)
        return _PublishedCommit(completed, frozenset(files), self.writer.still_holds(lock))

    def _validate(
        self, current: Snapshot, files: Sequence[Instant], request: CommitRequest
    ) -> None:
        self._check_can_commit(current, files, request.metadata)
        request.validate(current)

    def _confirm(self, published: _PublishedCommit, request: CommitRequest) -> None:
        """Delete the completed file again if another writer acted as if it did not exist.

        Another process may have held the lock while this one was paused before its last step; and
        writers in single-writer mode each have a lock of their own. If one of them rolled this
        write back, or wrote to the same file groups, the completed file came too late. They check
        for it in turn: see `rollback.rollback_locked`.
        """
        files = self._wait_for_pending_rollbacks()
        completed = published.instant
        try:
            if set(files) != published.files_before | {completed}:
                self._recheck_after_commit(completed, files, request)
        except ConflictError:
            self._storage.delete(self.snapshot.timeline_path(completed))
            self._state = _State.OPEN
            raise

    def _wait_for_pending_rollbacks(self) -> tuple[Instant, ...]:
        """Return the timeline files once no rollback of this write is undecided.

        A rollback that is only requested is either deleted by its process, which sees that this
        write has completed, or carried out.
        """
        for _ in range(_ROLLBACK_POLLS):
            files = list_timeline(self._storage, self.snapshot.config)
            rollbacks = self._conflict_checker(files).rollbacks_of(self.instant)
            if all(i.state is not State.REQUESTED for i in rollbacks):
                break
            self.writer.clock.sleep(_ROLLBACK_POLL_S)
        return files

    def _recheck_after_commit(
        self, completed: Instant, files: tuple[Instant, ...], request: CommitRequest
    ) -> None:
        own = {completed, self._pending(State.REQUESTED), self._pending(State.INFLIGHT)}
        missing = own.difference(files)
        if missing and self._is_archived():
            return  # after a long pause: writers have seen the commit, and built upon it
        checker = self._conflict_checker(files)
        rollbacks = checker.rollbacks_of(self.instant)
        if rollbacks or missing:
            raise ConflictError(
                "this write was rolled back by another writer",
                instant=self.instant,
                rollbacks=[i.requested_at for i in rollbacks],
                missing=sorted(i.file_name for i in missing),
            )
        checker.check_base_exists(self.instant)
        # What began after the completed file appeared has seen it, or will at its commit.
        created_at = self._completed_file_mtime(completed)
        earlier = [i for i in checker.current.timeline if i.requested_at < created_at]
        others = Timeline(tuple(i for i in earlier if i.requested_at != self.instant))
        if self.snapshot.timeline.completed_writes and not others.completed_writes:
            return  # all of these are archived: nothing is left to compare with
        self._validate(replace(checker.current, timeline=others), files, request)

    def _is_archived(self) -> bool:
        folder = self.snapshot.config.history_folder
        return bool(archived_times_in(self._storage, folder, self.instant, self.instant))

    def _completed_file_mtime(self, completed: Instant) -> str:
        """Return when the completed file appeared, as an instant time.

        Storage may have been slow after the completion time was chosen. Some stores count whole
        seconds, so the time is rounded up: too late a time reports a conflict where there may be
        none, too early a time overlooks one.
        """
        status = self._storage.status(self.snapshot.timeline_path(completed))
        ms = status.modified_ms if status is not None else 0
        latest_ms = ms + (999 if ms % 1000 == 0 else 0)
        zone = zone_of(self.snapshot.config.timeline_zone)
        return max(completed.completed_at or "", format_epoch_ms(latest_ms, zone))

    def _conflict_checker(self, files: Iterable[Instant]) -> ConflictChecker:
        current = Snapshot(self._storage, self.snapshot.config, Timeline.from_instants(files))
        return ConflictChecker(self.snapshot.timeline, current)

    def report(self, files: Iterable[str]) -> None:
        """Record files of finished task attempts: no attempt can create these files again."""
        self._reported_files = self._reported_files.union(files)

    @property
    def _files_of_finished_attempts(self) -> frozenset[str]:
        """The files of finished task attempts: those of the commit, and all reported ones."""
        return self._listed_files | self._reported_files

    def abort(self) -> None:
        """Delete a failed write: its data files and its timeline files.

        Markers of task attempts that have not reported stay, as such an attempt may still create
        its file. May be repeated; if storage does not answer, the next writer rolls the write
        back. A write is left as it is while storage does not answer whether it created the
        completed file: if it did not, the next writer rolls the write back.
        """
        try:
            if self._state is _State.UNKNOWN:
                self._resolve_unknown_commit()
            if self._state is _State.COMMITTED:
                raise InvalidError(
                    "the write has completed: roll it back instead", instant=self.instant
                )
            if self._state is not _State.UNKNOWN:
                self._delete_write()
        finally:
            # Also where storage failed: other writers roll back no write with a live heartbeat.
            self.stop_heartbeat()

    def abort_best_effort(self) -> None:
        """Abort as far as storage answers; the next writer rolls back what is left."""
        try:
            self.abort()
        except LakewrightError as error:
            warnings.warn(f"a write stays pending: {error}", RuntimeWarning, stacklevel=3)

    def pending_path(self, state: State) -> str:
        """Return the path of this write's requested or inflight file."""
        return self.snapshot.timeline_path(self._pending(state))

    def _pending(self, state: State) -> Instant:
        return Instant(self.instant, self.action, state)

    def start_heartbeat(self) -> None:
        """Start the heartbeat, if this write has one that is not started yet."""
        if self._heartbeat is not None and self._starts_heartbeat:
            self._heartbeat.start()

    def stop_heartbeat(self, *, leave_file: bool = False) -> None:
        """Stop the heartbeat; does nothing if there is none or it was not started."""
        if self._heartbeat is not None:
            self._heartbeat.stop(leave_file=leave_file)

    def _verify_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.verify()

    def _choose_completed_instant(self, current: Snapshot) -> Instant:
        """Return the completed instant to create.

        If storage did not answer an earlier request, that is the same instant again, unless the
        timeline has a later time by now. If storage carries out the earlier request late, it then
        finds its own file and adds no second one.
        """
        unanswered = self._attempted_instant if self._state is _State.UNKNOWN else None
        if unanswered is not None and (unanswered.completed_at or "") > max_timeline_time(
            current.timeline
        ):
            return unanswered
        time = self.writer.times(current.config, current.timeline).next()
        self._attempted_instant = Instant(self.instant, self._completed_action, completed_at=time)
        return self._attempted_instant

    @property
    def _completed_action(self) -> Action:
        return self.action.completed_as

    def _check_open(self) -> None:
        if self._state in (_State.COMMITTED, _State.ABORTED):
            raise InvalidError("the transaction is over: begin another", instant=self.instant)

    def _remove_other_attempts(self, metadata: CommitMetadata) -> None:
        """Delete files of retried task attempts: readers find files by name, listed or not."""
        self._listed_files = metadata.files()
        self._remove_unlisted()

    def _remove_unlisted(self) -> None:
        others = sorted(set(marked_files(self._storage, self.instant)) - self._listed_files)
        if others:
            self._storage.delete_many(others)

    def _find_completed(self, current: Snapshot) -> Instant | None:
        """Return the completed instant of this write, if an earlier call created it after all."""
        instant = current.timeline.by_time.get(self.instant)
        if instant is None or not instant.is_completed or instant.action != self._completed_action:
            return None
        return instant

    def _check_attempt(self) -> None:
        """Raise ConflictError if another process has taken this write over; by default none can."""

    def _check_can_commit(
        self, current: Snapshot, files: Sequence[Instant], metadata: CommitMetadata
    ) -> None:
        check_writable(current.config)
        self._check_not_rolled_back(current, files)
        ConflictChecker(self._base_timeline, current).check_commit(
            self._find_completed(self._conflict_checker(files).current)
            or self._pending(State.INFLIGHT),
            metadata,
            non_blocking=self.writer.transaction.concurrency is Concurrency.NON_BLOCKING,
            yields_to_clustering=self.writer.transaction.yields_to_clustering,
            yields_to=self._higher_priority_writes(current),
            cancellable=self.cancellable,
            fails_on_pending=self._fails_on_pending,
        )
        self._check_no_orphans_read(current, metadata)
        # Another process may have enabled the metadata table since this write began; readers that
        # use it would not see this write.
        drop_metadata_table(self._storage, current.config)

    def _check_no_orphans_read(self, current: Snapshot, metadata: CommitMetadata) -> None:
        """Raise ConflictError if an orphan file appeared in a written file group.

        A failed task attempt created it since this write began. This write may have read its rows
        as rows of the table, and copied them into its own files.
        """
        written = metadata.file_groups()
        new_orphans = sorted(current.unlisted_files() - self.snapshot.unlisted_files())
        in_written_groups = [
            path for path in new_orphans if group_of(path) in written and self._storage.exists(path)
        ]
        if in_written_groups:
            raise ConflictError(
                "a file of a failed task attempt appeared while this write ran: write again",
                instant=self.instant,
                files=in_written_groups[:3],
            )

    @property
    def _fails_on_pending(self) -> bool:
        """Whether a pending write that has announced nothing conflicts with this one."""
        return False

    def _higher_priority_writes(self, current: Snapshot) -> frozenset[str] | None:
        """Return the pending writes that take precedence over this one; None if none can."""
        return None

    def _check_not_rolled_back(self, current: Snapshot, files: Sequence[Instant]) -> None:
        existing = {instant.file_name for instant in files}
        pending = [self._pending(state) for state in (State.REQUESTED, State.INFLIGHT)]
        missing = [i.file_name for i in pending if i.file_name not in existing]
        if missing:
            raise ConflictError(
                "this write was rolled back by another writer",
                instant=self.instant,
                missing=missing,
            )
        ConflictChecker(self.snapshot.timeline, current).check_not_rolled_back(self.instant)

    def _create_completed(self, completed: Instant, data: bytes) -> None:
        path = self.snapshot.timeline_path(completed)
        self._state = _State.UNKNOWN
        try:
            self._storage.create(path, data)
        except (ConflictError, UnavailableError) as error:
            # The file may exist, and only the answer of storage was lost.
            content = read_optional(self._storage, path)
            if content == data:
                return
            if isinstance(error, ConflictError):
                self._state = _State.OPEN
            raise

    def _resolve_unknown_commit(self) -> None:
        if self._find_completed(load_snapshot(self._storage)) is not None:
            self._state = _State.COMMITTED
            self._clean_up()

    def _delete_write(self) -> None:
        # The requested file is deleted last: a process that crashes in here leaves an instant that
        # is rolled back, and no data file without an instant. The inflight file is deleted before
        # the markers, as other writers list the whole table for an inflight write without markers.
        # Reported files are deleted even without markers: a process that rolled this write back has
        # deleted its markers, maybe while this process was still writing.
        files = self._files_of_finished_attempts.union(marked_files(self._storage, self.instant))
        if files:
            self._storage.delete_many(sorted(files))
        self._storage.delete(self.pending_path(State.INFLIGHT))
        finish_markers(self._storage, self.instant, self._files_of_finished_attempts)
        self._storage.delete(self.pending_path(State.REQUESTED))
        self._mark_aborted()

    def _mark_aborted(self) -> None:
        self._state = _State.ABORTED

    def _clean_up(self) -> None:
        """Delete what only a pending write needs; the write has committed whatever fails here."""
        try:
            # A task attempt that has not reported may have created a file since the markers were
            # last listed: before the commit it found the write pending, and kept the file.
            finish_markers(self._storage, self.instant, self._files_of_finished_attempts)
        except LakewrightError as error:
            warnings.warn(
                f"the markers of a completed write were not deleted: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
        finally:
            self.stop_heartbeat()


_TRIES = 10


@dataclass(frozen=True, slots=True)
class TransactionSpec:
    """How a write begins: its action, the content of its pending files, properties to set.

    The content of the inflight file is made when the lock is released.
    """

    action: Action
    requested: bytes = b""
    inflight: Callable[[], bytes] = bytes
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.action not in {*WRITE_ACTIONS, *REWRITES}:
            raise InvalidError("a transaction is for actions that write", action=self.action)


SpecT = TypeVar("SpecT", bound=TransactionSpec)


@dataclass(frozen=True, slots=True)
class TransactionManager(WriterContext):
    """Begins transactions on one table, with one set of settings."""

    def begin(self, plan: Callable[[Snapshot], SpecT]) -> tuple[Transaction, SpecT]:
        """Begin the write that `plan` derives from the current snapshot.

        `plan` runs under the lock, before failed writes are rolled back or anything is created, and
        again if the lock is lost before the requested file exists. If it raises, nothing on storage
        changes.

        Returns:
            The transaction and the value of `plan`.
        """
        transaction, spec = self.run_locked(lambda lock: self._begin_locked(plan, lock))
        try:
            self.storage.create(transaction.pending_path(State.INFLIGHT), spec.inflight())
        except ConflictError:
            # Another process has this instant: its files and its heartbeat must stay. If it was
            # this process, and only the answer of storage was lost, another writer rolls the write
            # back.
            transaction.stop_heartbeat(leave_file=True)
            raise
        except BaseException:
            transaction.abort_best_effort()
            raise
        return transaction, spec

    def _begin_locked(
        self, plan: Callable[[Snapshot], SpecT], lock: Lock
    ) -> tuple[Transaction, SpecT]:
        snapshot = load_snapshot(self.storage)
        check_write_can_begin(snapshot.config, snapshot.timeline, self.transaction.concurrency)
        spec = plan(snapshot)
        snapshot, times = self._prepare_table(snapshot, spec.properties, lock)
        return self._create_requested(snapshot, spec.action, times, lock, spec.requested), spec

    def _prepare_table(
        self, snapshot: Snapshot, properties: Mapping[str, str], lock: Lock
    ) -> tuple[Snapshot, TimeGenerator]:
        config = drop_metadata_table(self.storage, snapshot.config)
        if properties:
            updated = update_properties(self.storage, lambda old: {**old, **properties})
            config = TableConfig.from_properties(updated)
        snapshot = replace(snapshot, config=config)
        times = self.times(config, snapshot.timeline, lock)
        snapshot = rollback_failed_writes(
            snapshot, self.transaction, self.heartbeat, times, self.clock
        )
        return snapshot, times

    def _create_requested(
        self, snapshot: Snapshot, action: Action, times: TimeGenerator, lock: Lock, data: bytes
    ) -> Transaction:
        for _ in range(_TRIES):
            transaction = Transaction(self, snapshot, times.next(), action)
            created = False
            try:
                # Other writers must never see the instant without its heartbeat.
                transaction.start_heartbeat()
                lock.verify()
                # The requested files of all writers are alike. While this process holds the lock
                # that they take, no other of them has created one with this time.
                created = try_create(
                    self.storage,
                    transaction.pending_path(State.REQUESTED),
                    data,
                    is_exclusive=lambda: self.still_holds(lock),
                )
                created = created and self._is_time_unique(transaction)
            finally:
                if not created:
                    transaction.stop_heartbeat()
            if created:
                return transaction
        raise ConflictError("no free time was found on the timeline", tries=_TRIES)

    def _is_time_unique(self, transaction: Transaction) -> bool:
        """Whether no write with another action has this time; else delete the requested file.

        A writer in single-writer mode may have chosen the same time, as it does not take this
        lock. Each would find the files of the other by the markers of that time, and delete them.
        """
        if self.transaction.several_writers:
            return True
        files = list_timeline(self.storage, transaction.snapshot.config)
        actions = {i.action for i in files if i.requested_at == transaction.instant}
        if actions <= {transaction.action}:
            return True
        self.storage.delete(transaction.pending_path(State.REQUESTED))
        return False
