"""A write that has begun: completing it, and taking it back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import TracebackType
from typing import Self

from lakewright.clock import zone_of
from lakewright.core.commits import CommitMetadata
from lakewright.core.files import group_of
from lakewright.core.instant import COMPLETED_NAME, Instant, State
from lakewright.core.timeline import Timeline
from lakewright.errors import (
    ConflictError,
    InvalidError,
    LakewrightError,
    UnavailableError,
)
from lakewright.table.commit_files import check_files, commit_bytes
from lakewright.table.equipment import Equipment
from lakewright.table.locks import Lock, holding, under_lock
from lakewright.table.markers import end_markers, marked_files
from lakewright.table.meanwhile import Meanwhile, latest_time
from lakewright.table.metadata_table import drop_metadata_table
from lakewright.table.properties import read_if_there
from lakewright.table.settings import Concurrency, Updates
from lakewright.table.snapshot import Snapshot, list_timeline, load_snapshot, look
from lakewright.table.times import time_of
from lakewright.table.writable import require_writable

_LOOKS = 6
_PAUSE_S = 0.2

_Require = Callable[[Snapshot, Sequence[Instant]], None]
_Form = Callable[[Snapshot], CommitMetadata]


class _Progress(Enum):
    OPEN = auto()
    UNCERTAIN = auto()  # asked to complete, and storage has not said whether it did
    COMMITTED = auto()
    WITHDRAWN = auto()


@dataclass(frozen=True, slots=True)
class _Published:
    """A completed file that is there, what was seen before it, and whether the lock was kept."""

    instant: Instant
    seen: frozenset[Instant]
    fenced: bool


class Transaction:
    """A write that has begun; `with` takes it back unless the block completes it.

    `snapshot` is the table as the write found it, after repairs, without the write itself;
    `after`, once it has completed, the table with it.
    """

    def __init__(
        self,
        writer: Equipment,
        snapshot: Snapshot,
        instant: str,
        action: str,
        known: Timeline | None = None,
        *,
        beats: bool = False,
        inheritable: bool = False,
    ) -> None:
        """`known` is what its decisions rest on, where that is not all of the snapshot.

        `beats` asks for a heartbeat also where others would not go by it; `inheritable` is for it.
        """
        self.writer = writer
        self._known = known or snapshot.timeline
        self.snapshot = snapshot
        self.instant = instant
        self.action = action
        self._storage = writer.storage
        self._progress = _Progress.OPEN
        self._asked: Instant | None = None
        self._formed: CommitMetadata | None = None
        self._listed: frozenset[str] = frozenset()
        self._reported: frozenset[str] = frozenset()
        self.after = snapshot
        has_heart = beats or writer.beats
        self._heartbeat = writer.new_heartbeat(instant, inheritable) if has_heart else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress in (_Progress.COMMITTED, _Progress.WITHDRAWN):
            return
        try:
            self.withdraw()
        except (ConflictError, InvalidError, UnavailableError) as failure:
            if error is None:
                raise
            error.add_note(f"The write could not be taken back, it stays as it is: {failure}")

    def complete(
        self,
        metadata: CommitMetadata,
        *,
        verify: Callable[[Snapshot], None] | None = None,
        extra: Callable[[Snapshot], Mapping[str, str]] | None = None,
    ) -> Instant:
        """Make the write part of the table, which is decided by one file; gives its instant.

        `verify` sees the table as it is then, under the lock, and raises if it knows a conflict;
        what `extra` makes of it is added to the metadata.

        Raises:
            ConflictError: others were faster; nothing is visible, and the write is to be withdrawn.
            UnavailableError: storage did not answer; the same call may be made again.
        """
        self._require_unfinished()
        check_files(metadata, self.instant)
        # After a call that was not answered these files may be part of the table already.
        if self._progress is _Progress.OPEN:
            self._remove_other_attempts(metadata)
        self._storage.sync(sorted(metadata.files()))

        def require(now: Snapshot, files: Sequence[Instant]) -> None:
            self._require_completable(now, files, metadata)
            if verify is not None:
                verify(now)

        def form(now: Snapshot) -> CommitMetadata:
            added = extra(now) if extra is not None else {}
            return replace(metadata, extra={**metadata.extra, **added}) if added else metadata

        commit = under_lock(self.writer.new_lock, lambda lock: self._published(lock, form, require))
        if not commit.fenced:
            with holding(self.writer.new_lock()):
                self._confirm(commit, require)
        self._progress = _Progress.COMMITTED
        self._clean_up()
        return commit.instant

    def _published(self, lock: Lock, form: _Form, require: _Require) -> _Published:
        now, files = look(self._storage)
        completed = self._landed(now)
        if completed is None:
            require(now, files)
            asked = self._asked
            completed = self._named(now)
            # A request that storage may still carry out is made again as it was.
            if completed is not asked or self._formed is None:
                self._formed = form(now)
            metadata = self._formed
            lock.verify()
            self._verify_heartbeat()
            self._commit(completed, commit_bytes(completed.action, metadata))
            timeline = Timeline.of([*files, completed])
            self.after = now.with_write(timeline, self.instant, metadata)
            return _Published(completed, frozenset(files), self.writer.kept(lock))
        # An earlier call put it there, under another lock than this.
        self.after = now
        return _Published(completed, frozenset(), fenced=False)

    def _confirm(self, commit: _Published, require: _Require) -> None:
        """Make sure that nobody has acted as if this write had not completed.

        Somebody may have had the lock while this writer held still before its last step, or have
        another lock, as writers have that each take themselves for the only one. If they rolled
        this write back, or wrote to the same groups, the completed file came too late, and goes
        again. They look for it in their turn: see `rollback._end`.
        """
        files = self._files_after_others_decided()
        completed = commit.instant
        try:
            if set(files) != commit.seen | {completed}:
                self._require_unchallenged(completed, files, require)
        except ConflictError:
            self._storage.delete(self.snapshot.timeline_path(completed))
            self._progress = _Progress.OPEN
            raise

    def _files_after_others_decided(self) -> tuple[Instant, ...]:
        """The timeline's files when no rollback of this write is still to be decided.

        One that is only requested is about to be withdrawn, if who began it sees that this write
        has completed, or about to be carried out.
        """
        for _ in range(_LOOKS):
            files = list_timeline(self._storage, self.snapshot.config)
            rollbacks = self._meanwhile(files).rollbacks_of(self.instant)
            if all(i.state is not State.REQUESTED for i in rollbacks):
                break
            self.writer.clock.sleep(_PAUSE_S)
        return files

    def _require_unchallenged(
        self, completed: Instant, files: tuple[Instant, ...], require: _Require
    ) -> None:
        now = self._meanwhile(files).now
        self._require_not_rolled_back(now, files)
        if completed not in files:
            raise ConflictError("this write was hidden by another writer", instant=self.instant)
        # Who began later has seen this write, or will see it when it completes.
        landed = self._landed_at(completed)
        earlier = [i for i in now.timeline if i.requested_at < landed]
        rest = Timeline(tuple(i for i in earlier if i.requested_at != self.instant))
        require(replace(now, timeline=rest), files)

    def _landed_at(self, completed: Instant) -> str:
        """When the completed file appeared: storage may have been slow after its name was chosen.

        Some stores count whole seconds; too late a time finds a conflict where there may be none,
        too early a time overlooks one.
        """
        status = self._storage.status(self.snapshot.timeline_path(completed))
        ms = status.modified_ms if status is not None else 0
        latest_ms = ms + (999 if ms % 1000 == 0 else 0)
        zone = zone_of(self.snapshot.config.timeline_zone)
        return max(completed.completed_at or "", time_of(latest_ms, zone))

    def _meanwhile(self, files: Iterable[Instant]) -> Meanwhile:
        now = Snapshot(self._storage, self.snapshot.config, Timeline.of(files))
        return Meanwhile(self.snapshot.timeline, now)

    def report(self, files: Iterable[str]) -> None:
        """Note files whose task attempts have ended: nothing can make them appear once more."""
        self._reported = self._reported.union(files)

    @property
    def _of_ended_attempts(self) -> frozenset[str]:
        """The files whose task attempts have ended: those of the commit, and all reported ones."""
        return self._listed | self._reported

    def withdraw(self) -> None:
        """Take back a write that failed while its writer lives: nothing of it stays.

        Markers of task attempts that have not reported stay: one may still make its file. May be
        repeated, and may be left to the next writer where storage does not answer. A write that
        storage has not answered whether it completed is not touched: if it did not, the next
        writer rolls it back.
        """
        try:
            if self._progress is _Progress.UNCERTAIN:
                self._settle()
            if self._progress is _Progress.COMMITTED:
                raise InvalidError(
                    "the write has completed: roll it back instead", instant=self.instant
                )
            if self._progress is not _Progress.UNCERTAIN:
                self._take_back()
        finally:
            # Also where storage failed: others could not repair what seems to be alive.
            self.stop_heartbeat()

    def abandon(self) -> None:
        """Withdraw as far as storage answers; what stays is rolled back by the next writer."""
        try:
            self.withdraw()
        except LakewrightError as error:
            warnings.warn(f"a write stays pending: {error}", RuntimeWarning, stacklevel=3)

    def pending_path(self, state: State) -> str:
        """The timeline file of this write while it is pending."""
        return self.snapshot.timeline_path(self._pending(state))

    def _pending(self, state: State) -> Instant:
        return Instant(self.instant, self.action, state)

    def start_heartbeat(self) -> None:
        """Show that the writer is alive, where others go by that."""
        if self._heartbeat is not None:
            self._heartbeat.start()

    def stop_heartbeat(self, *, leave_file: bool = False) -> None:
        """Show that the writer is done; harmless if it never began."""
        if self._heartbeat is not None:
            self._heartbeat.stop(leave_file=leave_file)

    def _verify_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.verify()

    def _named(self, now: Snapshot) -> Instant:
        """The completed instant that is to be: an unanswered one again, while nothing came after.

        A request that storage carries out late then finds its own file, and adds no second one.
        """
        asked = self._asked if self._progress is _Progress.UNCERTAIN else None
        if asked is not None and (asked.completed_at or "") > latest_time(now.timeline):
            return asked
        time = self.writer.times(now.config, now.timeline).next()
        self._asked = Instant(self.instant, self._completed_action, completed_at=time)
        return self._asked

    @property
    def _completed_action(self) -> str:
        return COMPLETED_NAME.get(self.action, self.action)

    def _require_unfinished(self) -> None:
        if self._progress in (_Progress.COMMITTED, _Progress.WITHDRAWN):
            raise InvalidError("the transaction is over: begin another", instant=self.instant)

    def _remove_other_attempts(self, metadata: CommitMetadata) -> None:
        """Delete what retried tasks left: readers take files by name, listed or not."""
        self._listed = metadata.files()
        self._remove_unlisted()

    def _remove_unlisted(self) -> None:
        others = sorted(set(marked_files(self._storage, self.instant)) - self._listed)
        if others:
            self._storage.delete_many(others)

    def _landed(self, now: Snapshot) -> Instant | None:
        """The completed instant of this write, if an earlier call has put it there after all."""
        found = now.timeline.by_time.get(self.instant)
        if found is None or not found.is_completed or found.action != self._completed_action:
            return None
        return found

    def _require_completable(
        self, now: Snapshot, files: Sequence[Instant], metadata: CommitMetadata
    ) -> None:
        require_writable(now.config)
        self._require_not_rolled_back(now, files)
        Meanwhile(self._known, now).require_no_conflict(
            self._landed(self._meanwhile(files).now) or self._pending(State.INFLIGHT),
            metadata,
            non_blocking=self.writer.transaction.concurrency is Concurrency.NON_BLOCKING,
            yields_to_clustering=self.writer.transaction.clustering_updates is Updates.REJECT,
            gives_way_to=self._gives_way_to(now),
        )
        self._require_no_strays_used(now, metadata)
        # Another process may have switched it on since: readers would not see this write.
        drop_metadata_table(self._storage, now.config)

    def _require_no_strays_used(self, now: Snapshot, metadata: CommitMetadata) -> None:
        """ConflictError where a file of a failed task attempt has appeared since this write began.

        Its rows may have been looked up as rows of the table, and be in the files of this write.
        """
        written = metadata.file_groups()
        new = sorted(now.unlisted_files() - self.snapshot.unlisted_files())
        used = [path for path in new if group_of(path) in written and self._storage.exists(path)]
        if used:
            raise ConflictError(
                "a file of a failed task attempt appeared while this write ran: write again",
                instant=self.instant,
                files=used[:3],
            )

    def _gives_way_to(self, now: Snapshot) -> frozenset[str] | None:
        """The writes under way that go before this one; None if it gives way to none."""
        return None

    def _require_not_rolled_back(self, now: Snapshot, files: Sequence[Instant]) -> None:
        there = {instant.file_name for instant in files}
        pending = [self._pending(state) for state in (State.REQUESTED, State.INFLIGHT)]
        missing = [i.file_name for i in pending if i.file_name not in there]
        if missing:
            raise ConflictError(
                "this write was rolled back by another writer",
                instant=self.instant,
                missing=missing,
            )
        Meanwhile(self.snapshot.timeline, now).require_not_taken_back(self.instant)

    def _commit(self, completed: Instant, data: bytes) -> None:
        path = self.snapshot.timeline_path(completed)
        self._progress = _Progress.UNCERTAIN
        try:
            self._storage.create(path, data)
        except (ConflictError, UnavailableError) as error:
            # It may be the answer that was lost, and not the file.
            found = read_if_there(self._storage, path)
            if found == data:
                return
            if isinstance(error, ConflictError):
                self._progress = _Progress.OPEN
            raise

    def _settle(self) -> None:
        if self._landed(load_snapshot(self._storage)) is not None:
            self._progress = _Progress.COMMITTED
            self._clean_up()

    def _take_back(self) -> None:
        # The requested file goes last: whoever dies in here leaves something that is rolled back,
        # and no data file without an instant that tells of it. The inflight file goes before the
        # markers, as one without markers makes others search the whole table.
        # Who rolled this write back has deleted the markers, maybe while it was still writing.
        files = self._of_ended_attempts.union(marked_files(self._storage, self.instant))
        if files:
            self._storage.delete_many(sorted(files))
        self._storage.delete(self.pending_path(State.INFLIGHT))
        end_markers(self._storage, self.instant, self._of_ended_attempts)
        self._storage.delete(self.pending_path(State.REQUESTED))
        self._withdrawn()

    def _withdrawn(self) -> None:
        self._progress = _Progress.WITHDRAWN

    def _clean_up(self) -> None:
        """Remove what only a pending write needs; the write is complete whatever happens here."""
        try:
            # An attempt that has not reported may have made a file since the last look: before the
            # commit it found the write pending, and kept it.
            end_markers(self._storage, self.instant, self._of_ended_attempts)
        except LakewrightError as error:
            warnings.warn(
                f"the markers of a completed write were not deleted: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
        finally:
            self.stop_heartbeat()
