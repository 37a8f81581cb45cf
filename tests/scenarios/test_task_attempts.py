"""Task attempts that run on after their write has ended, and crash at any call.

    driver     begin ── attempt 2 ── complete, or abort ────────────── next writer, clean, doctor
    attempt 1        ── n calls, stops ............... m calls, crash

Spark starts a second attempt of a task that is slow (speculation) or whose executor it has lost,
and kills the tasks of an aborted job some time after the driver goes on. Whatever calls attempt 1
makes before and after the end of the write: no row is there twice, none of an aborted write
appears, and the table is readable, at once and after the next writers.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa
import pytest

from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.errors import LakewrightError, UnavailableError
from lakewright.model.file_group import parse_data_file
from lakewright.model.instant import Instant
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.doctor.doctor import examine, repair
from lakewright.table.doctor.findings import FindingKind
from lakewright.table.markers import marker_folder
from lakewright.table.options import HeartbeatSettings
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import WriterContext
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import Crash, CrashingStorage, _Wrapped
from lakewright.write.task import Operation, WriteStatus, WriteTask, WriteToken
from lakewright.write.task_runner import run_task
from lakewright.write.writer import RowSource
from support.faults import RemoteInMemory
from support.soak import SOAK, sized
from support.tables import NO_SERVICES, SCHEMA, Row, WrittenTable, row

pytestmark = pytest.mark.sampled(2)

Result = TypeVar("Result")

DAYS = ("2026-01-01", "2026-01-02")
GRACE_MS = HeartbeatSettings().expires_after_ms + 1
FIRST = [row(f"k{n}", 1, "first", DAYS[n % 2]) for n in range(4)]
CHANGED = [row("k0", 2, "second", DAYS[0]), row("k2", 2, "second", DAYS[0])]
NEW = [row("new0", 2, "new", DAYS[0]), row("new1", 2, "new", DAYS[0])]


class AbortedError(Exception):
    """Spark has aborted the job."""


class SlowAttempt(CrashingStorage):
    """The storage of a task attempt that stops after some calls, and dies some calls later."""

    def __init__(self, inner: Storage, first: int, later: int) -> None:
        super().__init__(inner, first + later, after_effect=True, reads=True)
        self._first = first
        self.stopped = threading.Event()
        self.go_on = threading.Event()
        self.calls = 0

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        if self.calls == self._first:
            self.stopped.set()
            self.go_on.wait()
        self.calls += 1
        return super()._call(method, *arguments)


@dataclass
class TwoAttempts(LocalEngine):
    """Two attempts of one task write the rows: one stops on its way, the other reports."""

    rows: pa.Table
    slow: SlowAttempt
    aborted: bool
    thread: threading.Thread | None = None

    def write_to(self, table: WrittenTable, operation: Operation) -> None:
        replace(table.writer(), local_engine=self).write(operation, ArrowRows(self.rows))

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        slow_task = replace(task, snapshot=replace(task.snapshot, storage=self.slow))
        self.thread = threading.Thread(target=self._run_slow, args=(slow_task,))
        self.thread.start()
        self.slow.stopped.wait()
        if self.aborted:
            raise AbortedError
        return [run_task(task, WriteToken(0, 0, 2), self.rows.to_batches())]

    def _run_slow(self, task: WriteTask) -> None:
        try:
            with suppress(Crash):
                run_task(task, WriteToken(0, 0, 1), self.rows.to_batches())
        finally:
            self.slow.stopped.set()

    def end(self) -> None:
        """Let the slow attempt make its last calls."""
        self.slow.go_on.set()
        assert self.thread is not None
        self.thread.join()


@dataclass(frozen=True)
class Case:
    """A table, an operation on it, and whether the driver aborts."""

    table_type: str
    operation: Operation
    rows: Sequence[Row]
    aborted: bool = False
    remote: bool = False

    def __str__(self) -> str:
        ended = "aborted" if self.aborted else "completed"
        return f"{self.table_type} {self.operation} {ended}{', remote' if self.remote else ''}"

    def start(self) -> dict[str, bytes]:
        table = WrittenTable(options=NO_SERVICES).create(self.table_type)
        table.upsert(FIRST)
        return {file.path: table.storage.read(file.path) for file in table.storage.list_tree("")}

    @property
    def expected(self) -> list[Row]:
        rows = {record["id"]: record for record in FIRST}
        if not self.aborted:
            rows |= {record["id"]: record for record in self.rows}
        return sorted(rows.values(), key=str)


OPERATIONS = {Operation.UPSERT: CHANGED, Operation.INSERT: NEW, Operation.BULK_INSERT: NEW}
CASES = [
    Case(kind, operation, rows, aborted)
    for kind in ("COPY_ON_WRITE", "MERGE_ON_READ")
    for operation, rows in OPERATIONS.items()
    for aborted in (False, True)
]
# Rows of both partitions, which a task writes at once.
BOTH = [row(f"k{n}", 2, "second", DAYS[n % 2]) for n in range(4)]
CASES += [
    Case(kind, Operation.UPSERT, BOTH, aborted, remote=True)
    for kind in ("COPY_ON_WRITE", "MERGE_ON_READ")
    for aborted in (False, True)
]
# The other operations leave the same kinds of files.
ARCHIVED = {
    ("COPY_ON_WRITE", Operation.BULK_INSERT),
    ("MERGE_ON_READ", Operation.UPSERT),
}
each_case = pytest.mark.parametrize("case", CASES, ids=str)


def run_attempts(
    case: Case, start: dict[str, bytes], first: int, later: int
) -> tuple[WrittenTable, int]:
    """The table after a write with a slow attempt, and how many calls that attempt has made."""
    clock = ManualClock(first_id=1000)
    clock.sleep(60)
    storage = MemoryStorage.fresh(start, now_ms=clock.now_ms)
    table = WrittenTable(storage, clock, NO_SERVICES)
    ordered = sorted(case.rows, key=lambda record: str(record["day"]))
    slow = SlowAttempt(RemoteInMemory(storage) if case.remote else storage, first, later)
    rows = TwoAttempts(pa.Table.from_pylist(ordered, SCHEMA), slow, case.aborted)
    with suppress(AbortedError):
        rows.write_to(table, case.operation)
    clock.sleep(1)
    rows.end()
    return table, slow.calls


def all_interruptions(case: Case) -> Iterator[tuple[str, WrittenTable]]:
    start = case.start()
    _, whole = run_attempts(case, start, 10_000, 0)
    for first in range(0, whole, sized(2, soak=1)):
        # All calls after the stop in the long run; else as many as it takes to make one file.
        for later in range(whole - first + 3) if SOAK else (0, 3):
            yield f"{first} + {later}", run_attempts(case, start, first, later)[0]


@each_case
def test_rows_are_exact_whatever_call_an_attempt_dies_at(case: Case) -> None:
    appeared = 0
    for name, table in all_interruptions(case):
        appeared += bool(unlisted(table.storage))
        assert table.rows() == case.expected, name
        if not list(table.storage.list_tree(".hoodie/.temp")):
            assert not unlisted(table.storage), name
            continue
        # Two writers within the grace time, which find a stray file where there is one.
        newer = row("k0", 3, "newer", DAYS[0])
        newest = row("new0", 3, "newest", DAYS[0])
        table.upsert([newer])
        table.upsert([newest])
        later = {record["id"]: record for record in [*case.expected, newer, newest]}
        assert table.rows() == sorted(later.values(), key=str), name
        assert unlisted(table.storage) == [], name
        table.clock.sleep(GRACE_MS / 1000)
        table.upsert([newest])
        assert table.rows() == sorted(later.values(), key=str), name
        assert list(table.storage.list_tree(".hoodie/.temp")) == [], name
        assert examine(table.storage, table.clock).is_healthy, name
    # The interruptions prove something only if some attempt has left a file.
    assert appeared


# Attempts that storage does not answer once: Spark runs the task again, and only the last attempt
# reports.


class Effect(StrEnum):
    """What becomes visible of a request that storage does not answer."""

    NONE = "nothing"
    AT_ONCE = "all of it"
    LATE = "all of it, after the write has ended"


class UnansweredStorage(_Wrapped):
    """Does not answer one call of a task attempt."""

    __slots__ = ("_effect", "calls", "late", "unanswered")

    def __init__(self, inner: Storage, unanswered: int, effect: Effect) -> None:
        super().__init__(inner)
        self.unanswered = unanswered
        self._effect = effect
        self.calls = 0
        self.late: Callable[[], object] = lambda: None

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        buffer = io.BytesIO()
        yield buffer
        self.create(path, buffer.getvalue())

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        self.calls += 1
        if self.calls - 1 != self.unanswered:
            return method(*arguments)
        if self._effect is Effect.AT_ONCE:
            method(*arguments)
        elif self._effect is Effect.LATE:
            self.late = lambda: method(*arguments)
        raise UnavailableError("storage did not answer", call=method.__name__)


@dataclass
class RetriedTask(LocalEngine):
    """Runs the task again if storage did not answer, as Spark does: only one attempt reports."""

    unanswered: UnansweredStorage

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        assert isinstance(rows, ArrowRows)
        batches = rows.table.to_batches()
        first = replace(task, snapshot=replace(task.snapshot, storage=self.unanswered))
        status = run_task(first, WriteToken(0, 0, 1), batches)
        if isinstance(status.error, UnavailableError):
            status = run_task(task, WriteToken(0, 0, 2), batches)
        return [status]


@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize("case", [case for case in CASES if not case.aborted], ids=str)
def test_rows_are_exact_whatever_call_of_a_retried_attempt_is_not_answered(
    case: Case, effect: Effect
) -> None:
    start = case.start()
    ordered = pa.Table.from_pylist(sorted(case.rows, key=lambda r: str(r["day"])), SCHEMA)
    second_attempts = 0
    for unanswered in count(step=sized(2, soak=1)):
        clock = ManualClock(first_id=1000)
        clock.sleep(60)
        storage = MemoryStorage.fresh(start, now_ms=clock.now_ms)
        table = WrittenTable(storage, clock, NO_SERVICES)
        inner = RemoteInMemory(storage) if case.remote else storage
        failing = UnansweredStorage(inner, unanswered, effect)
        engine = RetriedTask(failing)
        replace(table.writer(), local_engine=engine).write(case.operation, ArrowRows(ordered))
        if failing.calls <= unanswered:
            break
        clock.sleep(1)
        with suppress(LakewrightError):
            failing.late()
        assert table.rows() == case.expected, unanswered
        write = load_snapshot(storage).timeline.completed_writes[-1]
        (commit,) = load_snapshot(storage).commits([write])
        second_attempts += all("_0-0-2" in path for path in commit.files())
        newest = row("k0", 3, "newest", DAYS[0])
        table.upsert([newest])
        clock.sleep(GRACE_MS / 1000)
        table.upsert([newest])
        later = {record["id"]: record for record in [*case.expected, newest]}
        assert table.rows() == sorted(later.values(), key=str), unanswered
        assert unlisted(storage) == [], unanswered
        assert examine(storage, clock).is_healthy, unanswered
    assert second_attempts


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if SOAK or (case.table_type, case.operation) in ARCHIVED],
    ids=str,
)
def test_archiving_does_not_pass_what_may_still_appear(case: Case) -> None:
    few = {
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.clean.commits.retained": "1",
    }
    start = case.start()
    _, whole = run_attempts(case, start, 10_000, 0)
    for first in range(whole):
        clock = ManualClock(first_id=1000)
        clock.sleep(60)
        storage = MemoryStorage.fresh(start, now_ms=clock.now_ms)
        table = WrittenTable(storage, clock, NO_SERVICES)
        ordered = sorted(case.rows, key=lambda record: str(record["day"]))
        # It makes its file after everything else, and is killed before it looks at the timeline.
        slow = SlowAttempt(storage, first, 2)
        rows = TwoAttempts(pa.Table.from_pylist(ordered, SCHEMA), slow, case.aborted)
        with suppress(AbortedError):
            rows.write_to(table, case.operation)
        newest = [row("k0", ts, "newest", DAYS[0]) for ts in range(3, 9)]
        for record in newest:
            clock.sleep(1)
            table.upsert([record])
        runner = table.services(few)
        runner.run("clean")
        runner.run("archive")
        rows.end()
        later = {record["id"]: record for record in [*case.expected, newest[-1]]}
        assert table.rows() == sorted(later.values(), key=str), first
        clock.sleep(GRACE_MS / 1000)
        table.upsert([newest[-1]])
        assert unlisted(storage) == [], first
        assert runner.run("archive") is not None
        assert table.rows() == sorted(later.values(), key=str), first


def test_twins_without_markers_are_distinguished_by_the_commit() -> None:
    """A table on which real Hudi, or a writer of long ago, has left the file of an attempt."""
    case = Case("COPY_ON_WRITE", Operation.UPSERT, CHANGED)
    table, path = table_with_unlisted_file(case)
    assert table.rows() == case.expected
    # Updates of the file group go on from the right file.
    table.upsert([row("k0", 3, "third", DAYS[0])])
    assert [record["note"] for record in table.rows() if record["id"] == "k0"] == ["third"]
    report = examine(table.storage, later(table))
    assert [finding.kind for finding in report.findings] == [FindingKind.UNLISTED_FILE]
    assert path in str(report.findings[0].facts["files"])


def test_doctor_deletes_files_that_their_commit_does_not_list() -> None:
    case = Case("COPY_ON_WRITE", Operation.BULK_INSERT, NEW)
    table, path = table_with_unlisted_file(case)
    # Its rows are there twice: only the commit shows which files count.
    assert len(table.rows()) > len(case.expected)
    report = examine(table.storage, later(table))
    assert not report.is_healthy
    assert [(finding.kind, finding.safe) for finding in report.findings] == [
        (FindingKind.UNLISTED_FILE, True)
    ]
    writer = WriterContext(table.storage, later(table))
    assert repair(writer, report).is_healthy
    assert not table.storage.exists(path)
    assert table.rows() == case.expected


def test_doctor_leaves_young_files_alone() -> None:
    table, path = table_with_unlisted_file(Case("COPY_ON_WRITE", Operation.INSERT, NEW))
    report = examine(table.storage, table.clock)
    assert report.is_healthy
    repair(WriterContext(table.storage, table.clock), report)
    assert table.storage.exists(path)


def table_with_unlisted_file(case: Case) -> tuple[WrittenTable, str]:
    """A table with the file of a lost attempt, of which no marker is left."""
    start = case.start()
    for first in range(100):
        for calls in range(5):
            table, _ = run_attempts(case, start, first, calls)
            paths = unlisted(table.storage)
            if paths:
                write = load_snapshot(table.storage).timeline.completed_writes[-1]
                table.storage.delete_folder(marker_folder(write.requested_at))
                return table, paths[0]
    raise AssertionError("no attempt has left a file")


def later(table: WrittenTable) -> ManualClock:
    return ManualClock(table.clock.now_ms() + GRACE_MS)


def unlisted(storage: Storage) -> list[str]:
    """Data files that no commit lists, of completed writes and of writes not on the timeline."""
    snapshot = load_snapshot(storage)
    writes: dict[str, Instant] = {i.requested_at: i for i in snapshot.archived}
    writes |= {i.requested_at: i for i in snapshot.timeline.completed_writes}
    paths = []
    for status in storage.list_tree(""):
        file = None if status.path.startswith(".hoodie/") else parse_data_file(status.name)
        if file is None:
            continue
        write = writes.get(file.instant)
        names = (
            snapshot.commits([write])[0].referenced_file_names()
            if write is not None
            else frozenset()
        )
        if status.name not in names:
            paths.append(status.path)
    return paths
