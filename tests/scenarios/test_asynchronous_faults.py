"""Asynchronous services: the process dies, or one of its threads pauses, at any storage call.

The thread of the writer and its services are stepped call by call; they share the turns that keep
their commits apart. Whatever the call was, readers see the rows of all commits that were reported,
no write loses to a service of its own writer, and another process goes on with the table.

    writer     write 1            write 2 ........
    services     executes a plan [ pause, or the end of the process ]  continues
    another                        rolls back, cleans, executes, writes
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import cycle, product
from typing import Any

import pyarrow as pa
import pytest

from lakewright.client.write_client import WriteClient
from lakewright.clock import Clock
from lakewright.engine.local import ArrowRows
from lakewright.errors import LakewrightError
from lakewright.model.instant import Action
from lakewright.services.asynchronous import AsyncServices, CommitTurns
from lakewright.services.maintenance_loop import ServiceOutcome
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import Crash
from lakewright.write.task import Operation
from support.concurrency import ProcessScheduler, ScheduledProcess, scheduled_processes
from support.plan_schedules import HEARTBEAT_EXPIRES_MS, read_rows, table_at
from support.soak import SOAK, sized
from support.tables import Row, row

pytestmark = pytest.mark.sampled(3)

PAUSE_MS = 10 * HEARTBEAT_EXPIRES_MS
# How many calls of the services a check looks at.
POINTS = sized(2, soak=10_000)
DAY, OTHER_DAY = "2026-01-01", "2026-01-02"
WRITES = (10, 11)


@dataclass(frozen=True)
class Beside:
    """Services beside a writer, and the table type and options that make them due."""

    names: frozenset[str]
    table_type: str
    options: Mapping[str, str] = field(default_factory=dict)


BESIDE = {
    "compaction": Beside(
        frozenset({"compaction"}),
        "MERGE_ON_READ",
        {"hoodie.compact.inline.max.delta.commits": "1"},
    ),
    "clustering": Beside(
        frozenset({"clustering"}),
        "COPY_ON_WRITE",
        {
            "hoodie.clustering.async.max.commits": "1",
            "hoodie.clustering.plan.strategy.single.group.clustering.enabled": "true",
        },
    ),
    "clean and archive": Beside(
        frozenset({"clean", "archive"}),
        "COPY_ON_WRITE",
        {
            "hoodie.clean.automatic": "true",
            "hoodie.archive.automatic": "true",
            "hoodie.clean.commits.retained": "1",
            "hoodie.keep.min.commits": "2",
            "hoodie.keep.max.commits": "3",
        },
    ),
}
each_beside = pytest.mark.parametrize("beside", BESIDE.values(), ids=list(BESIDE))


@pytest.fixture(autouse=True)
def no_lock_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until Python 3.12 all threads take one lock to compute a cached property of any object.

    Here threads stand for processes: one that pauses must not keep the others from going on.
    """
    for value in vars(Snapshot).values():
        if isinstance(value, cached_property) and hasattr(value, "lock"):
            monkeypatch.setattr(value, "lock", nullcontext())


class SteppedServices(AsyncServices):
    """Asynchronous services whose thread is one that the scheduler steps."""

    def start_round(self) -> None:
        """The scheduler runs the rounds."""

    def run(self) -> list[ServiceOutcome]:
        return list(self._run_services())


def stepped_turns(scheduler: ProcessScheduler) -> CommitTurns:
    """Turns for which a thread waits by yielding to other steps."""

    class Steps:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

        def notify_all(self) -> None: ...

        def wait_for(self, predicate: Callable[[], bool]) -> None:
            name = threading.current_thread().name
            (process,) = [p for p in scheduler.processes if p.name == name]
            while not predicate():
                process.clock.sleep(1)

    turns = CommitTurns()
    turns._changed = Steps()  # type: ignore[assignment]
    return turns


@dataclass
class Started:
    """A table with work for the services, before the process starts that has them."""

    files: Mapping[str, bytes]
    now_ms: int
    rows: tuple[Any, ...]


def client_at(
    storage: Storage, clock: Clock, beside: Beside, turns: CommitTurns | None = None
) -> WriteClient:
    client = replace(table_at(storage, clock, **beside.options).writer(), beside=beside.names)
    services = SteppedServices(client.services, beside.names, turns or CommitTurns())
    return replace(client, stream_services=services)


def write(client: WriteClient, ts: int, day: str = DAY) -> None:
    """Write the same keys: rows of new ones would be written to base files, without log files."""
    schema = table_at(client.storage, client.clock).schema
    client.write(Operation.UPSERT, ArrowRows(pa.Table.from_pylist(rows_by(ts, day), schema)))


def rows_by(ts: int, day: str) -> list[Row]:
    return [row(key, ts, f"by {ts}", day) for key in ("k0", "k1")]


def written(rows: tuple[Any, ...], ts: int, day: str = DAY) -> tuple[Any, ...]:
    """The rows of a table after a write."""
    kept = [values for values in rows if dict(values)["day"] != day]
    return tuple(sorted([*kept, *(tuple(sorted(new.items())) for new in rows_by(ts, day))]))


@cache
def started(name: str) -> Started:
    clock = ManualClock()
    storage = MemoryStorage.fresh(now_ms=clock.now_ms)
    beside = BESIDE[name]
    table_at(storage, clock).create(beside.table_type)
    client = client_at(storage, clock, beside)
    for ts in range(1, 5):
        write(client, ts)
    write(client, 1, OTHER_DAY)
    rows = tuple(sorted(tuple(sorted(r.items())) for r in table_at(storage, clock).rows()))
    return Started(storage.files(), clock.now_ms(), rows)


@dataclass
class TwoThreads:
    """A process on a table: a thread that writes twice, and one with the services."""

    scheduler: ProcessScheduler
    beside: Beside
    reported: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turns = stepped_turns(self.scheduler)
        self.services = self.scheduler.start("services", self._serve)
        self.writer = self.scheduler.start("writer", self._write)

    def _serve(self, storage: Storage, clock: Clock) -> list[ServiceOutcome]:
        services = client_at(storage, clock, self.beside, self.turns).stream_services
        assert isinstance(services, SteppedServices)
        return services.run()

    def _write(self, storage: Storage, clock: Clock) -> None:
        client = client_at(storage, clock, self.beside, self.turns)
        for ts in WRITES:
            clock.sleep(
                1
            )  # A pause of the other thread comes here: this one waits for no lock then.
            write(client, ts)
            self.reported.append(ts)

    @property
    def threads(self) -> tuple[ScheduledProcess, ScheduledProcess]:
        return self.services, self.writer

    def die(self) -> None:
        for thread in self.threads:
            if not thread.is_over:
                thread.kill()

    def writes_until(self, reported: int) -> None:
        """Let the thread of the writer go on to a commit, or until it waits for its turn."""
        while len(self.reported) < reported and not self.writer.is_over:
            if len(self.turns._waiting) > 1 and self.writer.wakes_at > self.scheduler.now.now_ms():
                return
            _pass_sleep(self.scheduler, self.writer)
            self.writer.step()

    def go_on(self) -> None:
        for thread in self.threads:
            thread.is_frozen = False
        while alive := [t for t in self.threads if not t.is_over]:
            for thread in alive:
                _pass_sleep(self.scheduler, thread)
                thread.step()


def _pass_sleep(scheduler: ProcessScheduler, process: ScheduledProcess) -> None:
    if process.wakes_at > scheduler.now.now_ms():
        scheduler.pass_time(process.wakes_at - scheduler.now.now_ms())


def run_to_end(scheduler: ProcessScheduler, process: ScheduledProcess) -> ScheduledProcess:
    while not process.is_over:
        _pass_sleep(scheduler, process)
        process.step()
    return process


Work = Callable[[Storage, Clock], Any]


def executing(beside: Beside) -> Work:
    """Execute every pending plan, as a maintenance process does."""

    def work(storage: Storage, clock: Clock) -> None:
        services = client_at(storage, clock, beside).stream_services
        assert isinstance(services, SteppedServices)
        services.run()

    return work


def cleaning(beside: Beside) -> Work:
    return lambda storage, clock: table_at(storage, clock).services(beside.options).run("clean")


def upserting(beside: Beside, ts: int = 50) -> Work:
    """Write to another partition; before that, failed writes may be rolled back."""
    return lambda storage, clock: write(client_at(storage, clock, beside), ts, OTHER_DAY)


ACTIONS: dict[str, Callable[[Beside], Work]] = {
    "a second executor": executing,
    "a clean": cleaning,
    "a write elsewhere": upserting,
}
# How many commits the writer makes before the services begin, and while they pause.
PROGRESS = {"before its first write": (0, 0), "after one": (1, 1), "beside both": (0, 2)}
CASES = (
    [*product(ACTIONS, PROGRESS)]
    if SOAK
    else [*zip(cycle(ACTIONS), ["beside both", "after one", "before its first write"])]
)


@cache
def calls(name: str, first: int) -> tuple[int, ...]:
    """The steps of the services that are calls to the storage: before each they may stop."""
    start = started(name)
    found = []
    with scheduled_processes(start.files, start.now_ms) as scheduler:
        process = TwoThreads(scheduler, BESIDE[name])
        process.writes_until(first)
        while not process.services.is_over:
            _pass_sleep(scheduler, process.services)
            before = sum(process.services.calls.values())
            step = process.services.steps
            process.services.step()
            if sum(process.services.calls.values()) > before:
                found.append(step)
        assert process.services.error is None
    assert len(found) > 40, "the services have nothing to do"
    return tuple(found[:: -(-len(found) // POINTS)])


def assert_goes_on(scheduler: ProcessScheduler, beside: Beside, rows: Any, where: str) -> None:
    """Another process executes what is pending, cleans and writes: rows exact, nothing is left."""
    for work in (executing(beside), cleaning(beside), executing(beside)):
        scheduler.pass_time(PAUSE_MS)
        process = run_to_end(scheduler, scheduler.start("later", work))
        assert isinstance(process.error, LakewrightError | None), where
        scheduler.processes.remove(process)
        assert read_rows(scheduler.storage) == rows, where
    last = run_to_end(scheduler, scheduler.start("last", upserting(beside, 99)))
    assert last.error is None, where
    assert read_rows(scheduler.storage) == written(rows, 99, OTHER_DAY), where
    snapshot = load_snapshot(scheduler.storage)
    writes = snapshot.timeline.pending(Action.COMMIT, Action.DELTA_COMMIT, Action.ROLLBACK)
    assert not writes, where


@pytest.mark.parametrize(("action", "progress"), CASES)
@pytest.mark.parametrize("name", BESIDE)
def test_a_pause_of_the_services_harms_nothing(name: str, action: str, progress: str) -> None:
    beside, start = BESIDE[name], started(name)
    first, beside_pause = PROGRESS[progress]
    for call in calls(name, first):
        with scheduled_processes(start.files, start.now_ms) as scheduler:
            process = TwoThreads(scheduler, beside)
            process.writes_until(first)
            for _ in range(call):
                if not process.services.is_over:
                    _pass_sleep(scheduler, process.services)
                    process.services.step()
            process.services.is_frozen = True
            scheduler.pass_time(PAUSE_MS)
            other = run_to_end(scheduler, scheduler.start("other", ACTIONS[action](beside)))
            process.writes_until(first + beside_pause)
            where = f"paused before call {call}, {process.services.last_call}"
            process.go_on()
            where += f": {process.services.error!r}, {other.error!r}"
            assert process.writer.error is None, where
            assert isinstance(process.services.error, None | LakewrightError), where
            rows = start.rows
            for ts in WRITES:
                rows = written(rows, ts)
            if action == "a write elsewhere" and other.error is None:
                rows = written(rows, 50, OTHER_DAY)
            assert read_rows(scheduler.storage) == rows, where
            assert_goes_on(scheduler, beside, rows, where)


@pytest.mark.parametrize("progress", PROGRESS)
@pytest.mark.parametrize("name", BESIDE)
def test_a_process_that_dies_beside_its_services_harms_nothing(name: str, progress: str) -> None:
    beside, start = BESIDE[name], started(name)
    first, beside_crash = PROGRESS[progress]
    for call in calls(name, first):
        with scheduled_processes(start.files, start.now_ms) as scheduler:
            process = TwoThreads(scheduler, beside)
            process.writes_until(first)
            for _ in range(call):
                if not process.services.is_over:
                    _pass_sleep(scheduler, process.services)
                    process.services.step()
            process.writes_until(first + beside_crash)
            where = f"dead before call {call}, {process.services.last_call}"
            process.die()
            rows = start.rows
            for ts in process.reported:
                rows = written(rows, ts)
            assert isinstance(process.writer.error, None | Crash), where
            found = read_rows(scheduler.storage)
            # The last write may be complete and not reported.
            following = [ts for ts in WRITES if ts not in process.reported][:1]
            assert found in (rows, *(written(rows, ts) for ts in following)), where
            assert_goes_on(scheduler, beside, found, where)
