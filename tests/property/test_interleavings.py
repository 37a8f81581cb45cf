"""Writers of one table in every order: what completes stays whole, and the rest leaves no trace.

First with a lock in common, a step of a writer at a time; then without, a storage call at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakewright.errors import ConflictError, InvalidError, UnavailableError
from lakewright.format.timeline_metadata import parse_commit, parse_rollback_plan
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.file_group import BaseFile, LogFile, parse_data_file
from lakewright.model.instant import Action, Instant, parse_instant
from lakewright.storage.base import Storage
from lakewright.table.options import Concurrency
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import Transaction
from lakewright.testing.storage import Crash
from support.concurrency import run_interleaved
from support.faults import MortalStorage
from support.tables import TIMELINE, begin_action
from support.transactions import TransactionFixture, orphan_files, write_data_file, write_files

pytestmark = pytest.mark.sampled(2)

Result = TypeVar("Result")

GROUPS = [f"0000000{n}-0000-0000-0000-000000000000-0" for n in range(3)]
PARTITION = "p1"
EXPIRES_MS = 120_000
CHANGES = {"create", "replace", "replace_if", "delete", "delete_many", "delete_folder"}


@dataclass
class Process:
    """One writer: at most one transaction at a time, and what it has written in it."""

    storage: MortalStorage
    transaction: Transaction | None = None
    stats: list[WriteStat] = field(default_factory=list)
    beat_at: int = 0


@dataclass(frozen=True)
class AttemptedWrite:
    """A write: the commits visible to it when it began, and the file groups it touched."""

    instant: Instant
    visible: frozenset[str]
    bases: frozenset[str]
    logs: frozenset[str]

    def clashes(self, other: AttemptedWrite, mode: Concurrency) -> bool:
        unseen = (
            self.instant.requested_at not in other.visible
            and other.instant.requested_at not in self.visible
        )
        if mode is Concurrency.NON_BLOCKING:
            return unseen and bool(self.bases & other.bases)
        return unseen and bool((self.bases | self.logs) & (other.bases | other.logs))


class Interleaving:
    """Some processes on one table, a step at a time; every step ends in a table that is right."""

    def __init__(self, mode: Concurrency, processes: int) -> None:
        self.mode = mode
        self.world = TransactionFixture()
        self.processes = [self.new_process() for _ in range(processes)]
        self.times: list[str] = []
        self.attempted: dict[str, AttemptedWrite] = {}
        self.committed: dict[str, AttemptedWrite] = {}

    def new_process(self) -> Process:
        return Process(MortalStorage(self.world.storage))

    def options(self) -> Mapping[str, str]:
        return {
            "hoodie.write.concurrency.mode": self.mode.value,
            # The lock of a process that died expires, and others take it over.
            "hoodie.write.lock.filesystem.expire": "1",
            "hoodie.write.lock.wait_time_ms": "100000",
        }

    def step(self, number: int, what: str, group: int, amount: int) -> None:
        process = self.processes[number % len(self.processes)]
        try:
            getattr(self, what)(process, GROUPS[group], amount)
        except Crash:
            self.bury(process)
        self.check()

    def begin(self, process: Process, group: str, amount: int) -> None:
        self.begun(process)

    def begun(self, process: Process) -> Transaction:
        """The transaction of a process, which it begins if it has none."""
        if process.transaction is None:
            writer = self.world.writer(self.options(), process.storage)
            process.transaction = begin_action(writer, "deltacommit")
            process.stats = []
            process.beat_at = self.world.clock.now_ms()
            self.times.append(process.transaction.instant)
        return process.transaction

    def write_log(self, process: Process, group: str, amount: int) -> None:
        self.write(process, lambda at: LogFile(group, at, token=f"{amount}-0-0"))

    def write_base(self, process: Process, group: str, amount: int) -> None:
        self.write(process, lambda at: BaseFile(group, f"{amount}-0-0", at))

    def write(self, process: Process, file: Callable[[str], BaseFile | LogFile]) -> None:
        made = file(self.begun(process).instant)
        # Of a group there is one file in the stats; one of another task is what a retry left.
        listed = {stat.file_id for stat in process.stats}
        with suppress(ConflictError):
            stat = write_data_file(self.begun(process), PARTITION, made)
            process.stats += [stat] if made.file_id not in listed else []

    def complete(self, process: Process, group: str, amount: int) -> None:
        transaction = self.begun(process)
        stats = {PARTITION: tuple(process.stats)} if process.stats else {}
        began = self.attempted[transaction.instant] = self.attempted_write(
            transaction, process.stats
        )
        try:
            instant = transaction.commit(CommitMetadata(stats=stats, operation="UPSERT"))
        except ConflictError:
            assert self.may_fail(process, began)
            transaction.abort()
        else:
            self.times.append(instant.completed_at or "")
            self.committed[instant.requested_at] = began
        process.transaction = None

    def withdraw(self, process: Process, group: str, amount: int) -> None:
        if process.transaction is not None:
            process.transaction.abort()
            process.transaction = None

    def die(self, process: Process, group: str, amount: int) -> None:
        raise Crash

    def doom(self, process: Process, group: str, amount: int) -> None:
        process.storage.changes_left = amount

    def beat(self, process: Process, group: str, amount: int) -> None:
        heartbeat = process.transaction and process.transaction._heartbeat
        if heartbeat:
            heartbeat.beat()
            process.beat_at = self.world.clock.now_ms()

    def wait(self, process: Process, group: str, amount: int) -> None:
        # Also backwards, as when a clock is set.
        self.world.clock.advance((amount - 2) * 20_000)

    def bury(self, process: Process) -> None:
        """End a process, with its threads, and start another in its place."""
        process.storage.dead = process.storage.unreachable = True
        if process.transaction is not None:
            # This ends the threads; the storage of the dead does not answer.
            with suppress(UnavailableError, InvalidError):
                process.transaction.abort()
        self.processes[self.processes.index(process)] = self.new_process()

    def attempted_write(
        self, transaction: Transaction, stats: Iterable[WriteStat]
    ) -> AttemptedWrite:
        files = [parse_data_file((stat.path or "").rpartition("/")[2]) for stat in stats]
        return AttemptedWrite(
            Instant(transaction.instant, Action.DELTA_COMMIT, completed_at=""),
            frozenset(i.requested_at for i in transaction.snapshot.timeline.completed_writes),
            frozenset(f.file_id for f in files if isinstance(f, BaseFile)),
            frozenset(f.file_id for f in files if isinstance(f, LogFile)),
        )

    def may_fail(self, process: Process, mine: AttemptedWrite) -> bool:
        """Whether a write had a reason not to complete."""
        at = mine.instant.requested_at
        clash = any(mine.clashes(other, self.mode) for other in self.committed.values())
        expired = self.world.clock.now_ms() - process.beat_at > EXPIRES_MS
        return clash or expired or at in self.rolled_back()

    def rolled_back(self) -> set[str]:
        """The instants that a rollback names, completed or not."""
        plans = [name for name in self.world.names() if name.endswith(".rollback.requested")]
        read = self.world.storage.read
        return {parse_rollback_plan(read(f"{TIMELINE}/{n}")).instant.requested_at for n in plans}

    def completed(self) -> dict[str, set[str]]:
        """The files of each completed write, as its commit lists them."""
        files = {}
        for name in self.world.names():
            instant = parse_instant(name)
            if instant and instant.is_completed and instant.is_write:
                commit = parse_commit(self.world.storage.read(f"{TIMELINE}/{name}"))
                assert instant.requested_at not in files
                paths = {stat.path or "" for stat in commit.write_stats()}
                files[instant.requested_at] = paths
                # A process that died right after its commit did not report it.
                at = instant.requested_at
                self.committed.setdefault(at, self.attempted[at])
        return files

    def check(self) -> None:
        """What holds at every moment."""
        completed = self.completed()
        assert completed.keys() == self.committed.keys()
        there: dict[str, set[str]] = {}
        for status in self.world.storage.list_files(PARTITION):
            file = parse_data_file(status.name)
            assert file is not None
            there.setdefault(file.instant, set()).add(status.path)
        assert {at: there.get(at, set()) for at in completed} == completed
        self.check_times()

    def check_times(self) -> None:
        instants = [i for name in self.world.names() if (i := parse_instant(name))]
        ended = [i.completed_at for i in instants if i.completed_at]
        begun = {(i.requested_at, i.completed_action) for i in instants}
        on_timeline = {*ended, *(at for at, _ in begun)}
        assert len(on_timeline) == len(ended) + len(begun)
        assert all(i.completed_at > i.requested_at for i in instants if i.completed_at)
        # In the order in which they were given; a write that was withdrawn leaves its time free.
        given = [time for time in self.times if time in on_timeline]
        assert given == sorted(given)

    def check_conflicts(self) -> None:
        writes = list(self.committed.values())
        for number, one in enumerate(writes):
            assert not any(one.clashes(other, self.mode) for other in writes[number + 1 :])

    def end(self) -> None:
        """All die; the next writer leaves nothing of them but what completed."""
        for process in list(self.processes):
            self.bury(process)
        self.world.clock.advance(10 * EXPIRES_MS)
        last = self.processes[0]
        self.step(0, "begin", 0, 0)
        assert last.transaction is not None
        assert not last.transaction.snapshot.timeline.pending()
        # Markers of a failed write wait for one that is newer.
        self.step(0, "complete", 0, 0)
        expected = sorted(path for paths in self.completed().values() for path in paths)
        assert sorted(f.path for f in self.world.storage.list_tree(PARTITION)) == expected
        # One that died at once after completing may have left its markers, which mean nothing.
        self.world.leftovers_after_expiry()
        marked = {f.path.split("/")[2] for f in self.world.storage.list_tree(".hoodie/.temp")}
        assert marked <= self.committed.keys()
        self.check_conflicts()


WORDS = [
    "begin",
    "begin",
    "write_log",
    "write_log",
    "write_log",
    "write_base",
    "write_base",
    "complete",
    "complete",
    "complete",
    "withdraw",
    "die",
    "doom",
    "beat",
    "wait",
]
Step = tuple[int, str, int, int]
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(WORDS),
        st.integers(0, 2),
        st.integers(0, 7),
    ),
    min_size=4,
    max_size=40,
)


def run_steps(mode: Concurrency, steps: Iterable[Step]) -> Interleaving:
    interleaving = Interleaving(mode, processes=3)
    for number, what, group, amount in steps:
        interleaving.step(number, what, group, amount)
    interleaving.end()
    return interleaving


@given(st.sampled_from(Concurrency), STEPS)
@example(Concurrency.SINGLE, [(0, "write_log", 0, 0), (0, "withdraw", 0, 0)])
def test_writers_in_any_order(mode: Concurrency, steps: list[Step]) -> None:
    run_steps(mode, steps)


def test_conflicting_writes_fail_or_both_commit_by_mode() -> None:
    steps: list[Step] = [
        (0, "begin", 0, 0),
        (1, "begin", 0, 0),
        (0, "write_log", 0, 0),
        (1, "write_log", 0, 0),
        (1, "complete", 0, 0),
        (0, "complete", 0, 0),
    ]
    last = 1  # the write of `Interleaving.end`
    assert len(run_steps(Concurrency.OPTIMISTIC, steps).committed) == 1 + last
    assert len(run_steps(Concurrency.NON_BLOCKING, steps).committed) == 2 + last


# Two processes that each take themselves for the only writer: they have no lock in common, and each
# rolls the pending write of the other back as that of a dead one.


class Pair:
    """Two lone writers of the same file group, and whether each write reported its commit."""

    def __init__(self, order: Iterable[int]) -> None:
        self.world = TransactionFixture()
        self.committed: dict[str, bool] = {}
        self.visible: dict[str, set[str]] = {}
        run_interleaved(self.world.storage, [self.work, self.work], order)

    def work(self, storage: Storage) -> None:
        with (
            suppress(ConflictError),
            begin_action(self.world.writer({}, storage), "deltacommit") as begun,
        ):
            at = begun.instant
            self.visible[at] = {i.requested_at for i in begun.snapshot.timeline.completed_writes}
            self.committed[at] = False
            begun.commit(write_files(begun, "f1", base=True))
            self.committed[at] = True

    def check(self) -> None:
        """A write that reported its commit is in the table, whole, and saw all earlier commits."""
        storage = self.world.storage
        snapshot = load_snapshot(storage)
        completed = snapshot.timeline.completed_writes
        assert {i.requested_at for i in completed} == {
            at for at, committed in self.committed.items() if committed
        }
        for instant, commit in zip(completed, snapshot.commits(completed), strict=True):
            assert all(storage.exists(stat.path or "") for stat in commit.write_stats())
            before = {i.requested_at for i in completed if i < instant}
            assert self.visible[instant.requested_at] >= before
        # The next writer rolls back or deletes what is pending.
        begin_action(self.world.writer(), "deltacommit").abort()
        assert orphan_files(storage) == []
        assert not load_snapshot(storage).timeline.pending()


def test_a_lone_writer_is_rolled_back_by_another_at_any_moment() -> None:
    ends = set()
    for before in range(30):
        pair = Pair([0] * before + [1] * 100)
        pair.check()
        ends.add(tuple(pair.committed.values()))
    assert ends == {(False, True), (True, False), (True, True)}


@pytest.mark.parametrize("first", range(2, 16))
def test_a_lone_writer_goes_on_at_any_moment_of_its_rollback(first: int) -> None:
    for second in range(30):
        Pair([0] * first + [1] * second + [0] * 100).check()


RUNS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 12)), max_size=8)


@given(RUNS)
@example([(0, 11), (1, 21), (0, 4), (1, 10)])
def test_two_lone_writers_in_any_order(runs: list[tuple[int, int]]) -> None:
    Pair([number for number, calls in runs for _ in range(calls)]).check()
