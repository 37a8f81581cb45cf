"""A write from its first file on the timeline to its last: the steps, their order, the way back.

begin      lock; look; refuse; drop the metadata table; repair; requested; unlock; inflight
(work)     for every data file a marker, then the file
complete   files of failed attempts go; lock; look again; judge; completed; unlock; markers go

Creating the completed file is the one moment at which the write takes effect. A process that dies
before it leaves a pending instant and markers, from which the next writer finds what to delete; one
that dies after it leaves markers that mean nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as changed

from lakewright.core.instant import COMPLETED_NAME, WRITE_ACTIONS, State
from lakewright.core.table_config import TableConfig
from lakewright.errors import ConflictError, InvalidError
from lakewright.table.begun import Transaction
from lakewright.table.equipment import Equipment
from lakewright.table.locks import Lock, under_lock
from lakewright.table.metadata_table import drop_metadata_table
from lakewright.table.properties import update_properties
from lakewright.table.repair import repaired
from lakewright.table.snapshot import Snapshot, list_timeline, load_snapshot
from lakewright.table.times import TimeSource
from lakewright.table.writable import require_beginnable

__all__ = ["Start", "Transaction", "Writer"]

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

        It is asked under the lock, before anything is repaired or written; again, if the lock was
        lost before the write was on the timeline.
        """
        begun, start = under_lock(self.new_lock, lambda lock: self._entered(decide, lock))
        started = False
        try:
            self.storage.create(begun.pending_path(State.INFLIGHT), start.inflight)
            started = True
        finally:
            if not started:
                begun.abandon()
        return begun

    def _entered(
        self, decide: Callable[[Snapshot], Start], lock: Lock
    ) -> tuple[Transaction, Start]:
        snapshot = load_snapshot(self.storage)
        require_beginnable(snapshot.config, snapshot.timeline, self.transaction.concurrency)
        start = decide(snapshot)
        snapshot, times = self._prepared(snapshot, start.remember, lock)
        return self._requested(snapshot, start.action, times, lock, start.requested), start

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
                begun.start_heartbeat()
                lock.verify()
                created = self._created(begun.pending_path(State.REQUESTED), data)
                created = created and self._is_alone(begun)
            finally:
                if not created:
                    begun.stop_heartbeat()
            if created:
                return begun
        raise ConflictError("no free time was found on the timeline", tries=_TRIES)

    def _is_alone(self, begun: Transaction) -> bool:
        """Give way to a write of another kind that has asked for the same time, without our lock.

        Both would find the other's files by the markers of that time, and delete them.
        """
        if self.transaction.several_writers:
            return True
        files = list_timeline(self.storage, begun.snapshot.config)
        same = {i.action for i in files if i.requested_at == begun.instant}
        if same <= {begun.action}:
            return True
        self.storage.delete(begun.pending_path(State.REQUESTED))
        return False

    def _created(self, path: str, data: bytes) -> bool:
        try:
            self.storage.create(path, data)
        except ConflictError:
            return False
        return True
