"""Real Hudi and we write to one table at the same time, under one lock file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from real_hudi import RealHudi, Row

from lakewright.client.write_client import WriteClient
from lakewright.clock import SystemClock
from lakewright.engine.local import ArrowRows
from lakewright.model.instant import Instant
from lakewright.storage.local import LocalStorage
from lakewright.table.locks.base import acquired
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import TransactionManager
from lakewright.write.task import Operation
from support.soak import sized, some
from support.tables import WrittenTable

LOCK = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.provider": (
        "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"
    ),
    "hoodie.time.generator.max_expected_clock_skew_ms": "20",
    # Ten minutes: on a busy machine a write that holds the lock takes its time.
    "hoodie.write.lock.wait_time_ms": "600000",
    "hoodie.write.lock.wait_time_ms_between_retry": "100",
}
THEIRS = {
    **LOCK,
    "hoodie.table.name": "shared",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.table.timeline.timezone": "UTC",
    "hoodie.compact.inline": "false",
    # We do not maintain its metadata table.
    "hoodie.metadata.enable": "false",
    # How often it asks for the lock, which is a time to wait as well.
    "hoodie.write.lock.num_retries": "6000",
    "hoodie.write.lock.client.num_retries": "2400",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "250",
}
PAUSE_S = 0.25
# At the end of each write real Hudi deletes the lock file, also one that it does not hold.
RETRIES = {"hoodie.write.num.retries.on.conflict.failures": "100"}
SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("p", pa.string())])
KINDS = {"copy on write": "COPY_ON_WRITE", "merge on read": "MERGE_ON_READ"}

QUIET = {
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
}


def rows_of(partition: str, ts: int, count: int = 3) -> list[Row]:
    return [{"id": f"{partition}{n}", "ts": ts, "p": partition} for n in range(count)]


@dataclass
class Shared:
    """A table of both; real Hudi works in a thread of its own."""

    hudi: RealHudi
    path: Path
    kind: str
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    @property
    def ours(self) -> WrittenTable:
        return WrittenTable(LocalStorage(str(self.path)), SystemClock(), {**LOCK, **QUIET}, SCHEMA)

    def they_write(self, rows: Sequence[Row]) -> Future[None]:
        options = {**THEIRS, "hoodie.datasource.write.table.type": self.kind}
        ddl = "id STRING, ts BIGINT, p STRING"
        return self.thread.submit(self.hudi.write, self.path, rows, ddl, options)

    def rows(self) -> list[Row]:
        """What both read, which is the same."""
        read = self.hudi.read(self.path, {"hoodie.metadata.enable": "false"})
        theirs = [{name: row[name] for name in SCHEMA.names} for row in read]
        rows = self.ours.rows()
        assert sorted(theirs, key=str) == rows
        return rows

    def completed(self) -> list[Instant]:
        """All writes, also those that real Hudi has archived."""
        snapshot = load_snapshot(self.ours.storage)
        return [*snapshot.archived, *snapshot.timeline.completed_writes]


@pytest.fixture
def shared(request: pytest.FixtureRequest, real_hudi: RealHudi, tmp_path: Path) -> Iterator[Shared]:
    table = Shared(real_hudi, tmp_path / "table", request.param)
    with table.thread:
        table.they_write([*rows_of("theirs", 0), *rows_of("ours", 0)]).result()
        yield table


def of(*places: int) -> pytest.MarkDecorator:
    """On a table of some kinds, and of all in a soak run."""
    kinds, names = some(list(KINDS.values()), *places), some(list(KINDS), *places)
    return pytest.mark.parametrize("shared", kinds, ids=names, indirect=True)


def expected(**versions: int) -> list[Row]:
    rows = [row for partition, ts in versions.items() for row in rows_of(partition, ts)]
    return sorted(rows, key=str)


@of(1)
def test_real_hudi_waits_for_our_lock(shared: Shared) -> None:
    storage = shared.ours.storage
    lock = TransactionManager.from_options(storage, SystemClock(), LOCK).new_lock()
    with acquired(lock):
        writing = shared.they_write(rows_of("theirs", 1))
        # It would have ended by now; where it would not yet, this shows less, and does not fail.
        with pytest.raises(TimeoutError):
            writing.result(timeout=5)
        lock.verify()
        assert len(shared.completed()) == 1
    writing.result()
    assert shared.rows() == expected(theirs=1, ours=0)
    assert not storage.exists(".hoodie/lock")


@of(0, 1)
def test_both_write_at_the_same_time(shared: Shared) -> None:
    rounds = sized(2, soak=4)
    writing = [shared.they_write(rows_of("theirs", ts)) for ts in range(1, rounds + 1)]
    shared.ours.upsert(rows_of("ours", 1), RETRIES)
    ours = 1
    # A pause, as real Hudi asks for the lock only now and then and would rarely get it.
    while wait(writing, timeout=PAUSE_S).not_done:
        ours += 1
        shared.ours.upsert(rows_of("ours", ours), RETRIES)
    for write in writing:
        write.result()
    completed = shared.completed()
    assert len(completed) == 1 + rounds + ours
    times = [time for i in completed for time in (i.requested_at, i.completed_at)]
    assert len(set(times)) == len(times)
    assert shared.rows() == expected(theirs=rounds, ours=ours)
    storage = shared.ours.storage
    assert not load_snapshot(storage).timeline.pending()
    assert not storage.exists(".hoodie/lock")


class Overtaken(ArrowRows):
    """Rows that are written, and before that is completed real Hudi writes to the same groups."""

    def __init__(self, shared: Shared, rows: list[Row], theirs: list[Row]) -> None:
        super().__init__(pa.Table.from_pylist(rows, SCHEMA))
        self.shared = shared
        self.theirs = theirs
        self.attempts = 0

    @contextmanager
    def open(self) -> Iterator[pa.Table]:
        with super().open() as table:
            yield table
        self.attempts += 1
        if self.attempts == 1:
            self.shared.they_write(self.theirs).result()


@of(0)
def test_a_concurrent_write_of_real_hudi_is_not_lost(shared: Shared) -> None:
    theirs = [{"id": "ours0", "ts": 5, "p": "ours"}, {"id": "ours1", "ts": 1, "p": "ours"}]
    rows = Overtaken(shared, rows_of("ours", 2), theirs)
    retries = {"hoodie.write.num.retries.on.conflict.failures": "1"}
    writer = WriteClient.create(shared.ours.storage, {**LOCK, **QUIET, **retries}, SystemClock())
    writer.write(Operation.UPSERT, rows)
    assert rows.attempts == 2
    both = [row for row in expected(theirs=0, ours=2) if row["id"] != "ours0"]
    assert shared.rows() == sorted([theirs[0], *both], key=str)
