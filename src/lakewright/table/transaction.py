"""A write from its first file on the timeline to its last: the steps, their order, the way back.

begin      lock; look; refuse; drop the metadata table; repair; requested; unlock; inflight
(work)     for every data file a marker, then the file
complete   files of failed attempts go; lock; look again; judge; completed; unlock; markers go

Creating the completed file is the one moment at which the write takes effect. A process that dies
before it leaves a pending instant and markers, from which the next writer finds what to delete; one
that dies after it leaves markers that mean nothing any more.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as changed
from enum import Enum, auto
from types import TracebackType
from typing import Self

from lakewright.core.commits import CommitMetadata
from lakewright.core.files import parse_data_file
from lakewright.core.instant import COMPLETED_NAME, WRITE_ACTIONS, Instant, State
from lakewright.core.table_config import TableConfig
from lakewright.errors import (
    ConflictError,
    InvalidError,
    LakewrightError,
    UnavailableError,
)
from lakewright.format.metadata import format_commit, format_replace_commit
from lakewright.storage.base import split_path
from lakewright.table.equipment import Equipment
from lakewright.table.heartbeat import Heartbeat
from lakewright.table.locks import Lock, holding
from lakewright.table.markers import delete_markers, marked_files
from lakewright.table.meanwhile import Meanwhile, latest_time, look
from lakewright.table.metadata_table import drop_metadata_table
from lakewright.table.properties import read_if_there, update_properties
from lakewright.table.repair import repaired
from lakewright.table.settings import Concurrency
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.times import TimeSource
from lakewright.table.writable import require_beginnable, require_writable

_TRIES = 10


@dataclass(frozen=True, slots=True)
class Start:
    """How a write begins: its action, its pending files, and properties the table must have."""

    action: str
    requested: bytes = b""
    inflight: bytes = b""
    remember: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.action not in WRITE_ACTIONS | COMPLETED_NAME.keys():
            raise InvalidError("a transaction is for actions that write", action=self.action)


@dataclass(frozen=True, slots=True)
class Writer(Equipment):
    """Begins transactions on one table, with one set of settings."""

    def begin(self, action: str, *, requested: bytes = b"", inflight: bytes = b"") -> Transaction:
        """Start a write: what dead writers left is rolled back, and ours is on the timeline."""
        return self.begin_as(lambda snapshot: Start(action, requested, inflight))

    def begin_as(self, decide: Callable[[Snapshot], Start]) -> Transaction:
        """Start the write that `decide` makes of the table as it is; if it raises, nothing changes.

        It is asked under the lock, before anything is repaired or written.
        """
        lock = self.new_lock()
        with holding(lock):
            snapshot = load_snapshot(self.storage)
            require_beginnable(snapshot.config, snapshot.timeline, self.transaction.concurrency)
            start = decide(snapshot)
            snapshot, times = self._prepared(snapshot, start.remember, lock)
            begun = self._requested(snapshot, start.action, times, lock, start.requested)
        started = False
        try:
            self.storage.create(begun.pending_path(State.INFLIGHT), start.inflight)
            started = True
        finally:
            if not started:
                begun._abandon()
        return begun

    def _prepared(
        self, snapshot: Snapshot, remember: Mapping[str, str], lock: Lock
    ) -> tuple[Snapshot, TimeSource]:
        config = drop_metadata_table(self.storage, snapshot.config)
        if remember:
            new = update_properties(self.storage, lambda old: {**old, **remember})
            config = TableConfig.from_properties(new)
        snapshot = changed(snapshot, config=config)
        times = self.times(config, snapshot.timeline, lock)
        snapshot = repaired(snapshot, self.transaction, self.heartbeat, times, self.clock)
        return snapshot, times

    def _requested(
        self, snapshot: Snapshot, action: str, times: TimeSource, lock: Lock, data: bytes
    ) -> Transaction:
        for _ in range(_TRIES):
            begun = Transaction(self, snapshot, times.next(), action)
            created = False
            try:
                # Others must never see the instant without its heartbeat.
                begun._start_heartbeat()
                lock.verify()
                created = self._created(begun.pending_path(State.REQUESTED), data)
            finally:
                if not created:
                    begun._stop_heartbeat()
            if created:
                return begun
        raise ConflictError("no free time was found on the timeline", tries=_TRIES)

    def _created(self, path: str, data: bytes) -> bool:
        try:
            self.storage.create(path, data)
        except ConflictError:
            return False
        return True


class _Progress(Enum):
    OPEN = auto()
    UNCERTAIN = auto()  # asked to complete, and storage has not said whether it did
    COMMITTED = auto()
    WITHDRAWN = auto()


class Transaction:
    """A write that has begun; `with` takes it back unless the block completes it.

    `snapshot` is the table as the write found it, after repairs, without the write itself.
    """

    def __init__(self, writer: Writer, snapshot: Snapshot, instant: str, action: str) -> None:
        self.writer = writer
        self.snapshot = snapshot
        self.instant = instant
        self.action = action
        self._storage = writer.storage
        self._progress = _Progress.OPEN
        self._asked: Instant | None = None
        self._listed: frozenset[str] = frozenset()
        self._heartbeat = (
            Heartbeat(writer.storage, instant, writer.heartbeat, writer.clock)
            if writer.beats
            else None
        )

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
        except (InvalidError, UnavailableError) as failure:
            if error is None:
                raise
            error.add_note(f"The write could not be taken back, it stays as it is: {failure}")

    def complete(
        self, metadata: CommitMetadata, *, verify: Callable[[Snapshot], None] | None = None
    ) -> Instant:
        """Make the write part of the table, which is decided by one file; gives its instant.

        `verify` sees the table as it is then, under the lock, and raises if it knows a conflict.

        Raises:
            ConflictError: others were faster; nothing is visible, and the write is to be withdrawn.
            UnavailableError: storage did not answer; the same call may be made again.
        """
        self._require_unfinished()
        data = self._checked_bytes(metadata)
        # After a call that was not answered these files may be part of the table already.
        if self._progress is _Progress.OPEN:
            self._remove_other_attempts(metadata)
        lock = self.writer.new_lock()
        with holding(lock):
            now, names = look(self._storage)
            completed = self._landed(now)
            if completed is None:
                self._require_completable(now, names, metadata)
                if verify is not None:
                    verify(now)
                completed = self._named(now)
                lock.verify()
                self._verify_heartbeat()
                self._commit(completed, data)
            self._progress = _Progress.COMMITTED
            kept = self._kept(lock)
        if not kept:
            self._check_again(completed)
        self._clean_up()
        return completed

    def _kept(self, lock: Lock) -> bool:
        """Whether the lock was ours up to the commit; what cannot be told counts as no."""
        if not self.writer.transaction.several_writers:
            return True
        try:
            lock.verify()
        except (ConflictError, UnavailableError):
            return False
        return True

    def _check_again(self, completed: Instant) -> None:
        """Make sure that nobody took this writer for dead while it held still before its last step.

        A lock that expires may have passed to another, who rolled this write back as its heartbeat
        had expired, too: then the completed file came too late, and goes again.
        """
        with holding(self.writer.new_lock()):
            now, names = look(self._storage)
            try:
                self._require_not_rolled_back(now, names)
            except ConflictError:
                self._storage.delete(self._path(completed))
                self._progress = _Progress.OPEN
                raise

    def withdraw(self) -> None:
        """Take back a write that failed while its writer lives: nothing of it stays.

        No task of the write may be at work any more. May be repeated, and may be left to the next
        writer where storage does not answer. A write that storage has not answered whether it
        completed is not touched: if it did not, the next writer rolls it back.
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
            self._stop_heartbeat()

    def _abandon(self) -> None:
        """Withdraw as far as storage answers; what stays is rolled back by the next writer."""
        try:
            self.withdraw()
        except LakewrightError as error:
            warnings.warn(f"a write stays pending: {error}", RuntimeWarning, stacklevel=3)

    def pending_path(self, state: State) -> str:
        """The timeline file of this write while it is pending."""
        return self._path(Instant(self.instant, self.action, state))

    def _start_heartbeat(self) -> None:
        """Show that the writer is alive, where others go by that."""
        if self._heartbeat is not None:
            self._heartbeat.start()

    def _stop_heartbeat(self) -> None:
        """Show that the writer is done; harmless if it never began."""
        if self._heartbeat is not None:
            self._heartbeat.stop()

    def _verify_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.verify()

    def _path(self, instant: Instant) -> str:
        return f"{self.snapshot.config.timeline_folder}/{instant.file_name}"

    def _named(self, now: Snapshot) -> Instant:
        """The completed instant that is to be: an unanswered one again, while nothing came after.

        A request that storage carries out late then finds its own file, and adds no second one.
        """
        asked = self._asked
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

    def _checked_bytes(self, metadata: CommitMetadata) -> bytes:
        for stat in metadata.write_stats():
            file = parse_data_file(split_path(stat.path or "")[1])
            if file is None or file.instant != self.instant:
                raise InvalidError(
                    "a write lists a file that is not one of its own",
                    path=stat.path,
                    instant=self.instant,
                )
        replaces = self._completed_action == "replacecommit"
        return (format_replace_commit if replaces else format_commit)(metadata)

    def _remove_other_attempts(self, metadata: CommitMetadata) -> None:
        """Delete what retried tasks left: readers take files by name, listed or not."""
        self._listed = frozenset(stat.path or "" for stat in metadata.write_stats())
        others = sorted(set(marked_files(self._storage, self.instant)) - self._listed)
        if others:
            self._storage.delete_many(others)

    def _landed(self, now: Snapshot) -> Instant | None:
        """The completed instant of this write, if an earlier call has put it there after all."""
        found = now.timeline.by_time.get(self.instant)
        return found if found is not None and found.is_completed else None

    def _require_completable(
        self, now: Snapshot, names: frozenset[str], metadata: CommitMetadata
    ) -> None:
        require_writable(now.config)
        meanwhile = self._require_not_rolled_back(now, names)
        meanwhile.require_no_conflict(
            Instant(self.instant, self.action, State.INFLIGHT),
            metadata,
            non_blocking=self.writer.transaction.concurrency is Concurrency.NON_BLOCKING,
        )
        # Somebody may have switched it on since: readers would not see this write.
        drop_metadata_table(self._storage, now.config)

    def _require_not_rolled_back(self, now: Snapshot, names: frozenset[str]) -> Meanwhile:
        missing = {self.pending_path(State.REQUESTED), self.pending_path(State.INFLIGHT)} - names
        if missing:
            raise ConflictError(
                "this write was rolled back by another writer",
                instant=self.instant,
                missing=sorted(missing),
            )
        meanwhile = Meanwhile(self.snapshot.timeline, now)
        meanwhile.require_not_taken_back(self.instant)
        return meanwhile

    def _commit(self, completed: Instant, data: bytes) -> None:
        path = self._path(completed)
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
        files = self._listed.union(marked_files(self._storage, self.instant))
        if files:
            self._storage.delete_many(sorted(files))
        self._storage.delete(self.pending_path(State.INFLIGHT))
        delete_markers(self._storage, self.instant)
        self._storage.delete(self.pending_path(State.REQUESTED))
        self._progress = _Progress.WITHDRAWN

    def _clean_up(self) -> None:
        """Remove what only a pending write needs; the write is complete whatever happens here."""
        try:
            delete_markers(self._storage, self.instant)
        except LakewrightError as error:
            warnings.warn(
                f"the markers of a completed write were not deleted: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
        finally:
            self._stop_heartbeat()
