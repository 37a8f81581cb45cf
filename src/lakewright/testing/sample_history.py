"""A table with a varied timeline, for screenshots of the page and for tests.

Rides are ingested, some of them late; compactions and cleans run, a clustering is cancelled, a TTL
policy is saved, and at the end one plan is requested and another one is being executed. The library
itself writes all of it, on the local engine and with a manual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from lakewright.client.ttl import TableTtl
from lakewright.client.write_client import WriteClient
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.model.instant import Instant, State
from lakewright.model.table_config import TableType
from lakewright.services.runner import ServiceRunner
from lakewright.storage.base import Storage
from lakewright.table.create import TableSpec, create_table
from lakewright.table.heartbeat import FOLDER as HEARTBEATS
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.write.task import Operation, WriteStatus, WriteTask
from lakewright.write.writer import Commit, RowSource

SCHEMA = pa.schema(
    [
        ("ride", pa.string()),
        ("city", pa.string()),
        ("day", pa.string()),
        ("at", pa.int64()),
        ("fare", pa.float64()),
    ]
)
CITIES = ("amsterdam", "berlin", "lisbon", "oslo", "prague", "vienna")
OPTIONS = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "in_process",
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.clean.commits.retained": "3",
    "hoodie.index.bloom.num_entries": "1000",
    # The clock advances by minutes at once, with no heartbeat in between.
    "hoodie.client.heartbeat.interval_in_ms": "36000000",
}
CANCELLABLE = {"hoodie.table.service.plan.cancellable": "true"}
_MINUTE = 60_000
_DAY = 24 * 60 * _MINUTE


class _DelayedEngine(LocalEngine):
    """An engine that calls a function after each job, to advance the clock or run a write."""

    def __init__(self, pass_time: Callable[[], object]) -> None:
        self._pass_time = pass_time

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        statuses = super().write(task, rows)
        self._pass_time()
        return statuses

    def map(self, function: Any, items: Any, size: Any) -> Any:
        results = super().map(function, items, size)
        self._pass_time()
        return results


@dataclass
class SampleHistory:
    """A table under construction; `clock` is the time of the next operation."""

    storage: Storage
    clock: ManualClock
    name: str = "rides"
    _rides: int = field(default=0, init=False)

    def create(self) -> SampleHistory:
        """Create the empty table."""
        spec = TableSpec(
            name=self.name,
            table_type=TableType.MERGE_ON_READ,
            record_key=("ride",),
            partition_by=("city", "day"),
            ordering=("at",),
            event_time="at",
            schema=None,
            options={},
        )
        create_table(self.storage, self.clock, spec)
        return self

    def load(self, days_ago: int, rides: int = 100) -> Commit:
        """Insert all rides of one day, in every city."""
        begin = self.clock.now_ms() // _DAY * _DAY - days_ago * _DAY
        rows = [
            self._ride(city, begin + number * (_DAY // rides // size))
            for size, city in enumerate(CITIES, 1)
            for number in range(rides * size)
        ]
        return self._write(Operation.INSERT, rows, 4 * _MINUTE)

    def ingest(
        self,
        *cities: str,
        rides: int = 12,
        late_ms: int = 0,
        took_ms: int = 40_000,
        during: Callable[[], object] | None = None,
    ) -> Commit:
        """Upsert rides of some cities, which updates earlier rides with the same keys.

        `during` is called before the write commits.
        """
        begin = self.clock.now_ms() - late_ms
        rows = [
            self._ride(city, begin - number * 5000, number)
            for city in cities or CITIES[:3]
            for number in range(rides)
        ]
        return self._write(Operation.UPSERT, rows, took_ms, during)

    def services(
        self,
        took_ms: int = 2 * _MINUTE,
        during: Callable[[], object] | None = None,
        **options: str,
    ) -> ServiceRunner:
        """A runner of services whose jobs take `took_ms` each and call `during`."""

        def pass_time() -> None:
            if during is not None:
                during()
            self.clock.advance(took_ms)

        all_options = {**OPTIONS, **{k.replace("_", "."): v for k, v in options.items()}}
        client = WriteClient.create(self.storage, all_options, self.clock)
        return replace(client, engine=lambda: _DelayedEngine(pass_time)).services

    def plan(self, service: str, *, cancellable: bool) -> str:
        """Schedule a plan, and return its instant."""
        options = {**OPTIONS, **(CANCELLABLE if cancellable else {})}
        runner = WriteClient.create(self.storage, options, self.clock).services
        scheduled = runner.schedule(service)
        if not isinstance(scheduled, Instant):
            raise AssertionError(str(scheduled))
        return scheduled.requested_at

    def begin(self, at: str) -> None:
        """Make a plan inflight with a live heartbeat, as if another process executed it."""
        snapshot = load_snapshot(self.storage)
        (requested,) = [i for i in snapshot.timeline if i.requested_at == at]
        inflight = replace(requested, state=State.INFLIGHT)
        self.storage.create(snapshot.timeline_path(inflight), b"")
        self.storage.replace(f"{HEARTBEATS}/{at}", b"")

    def pause(self, minutes: float) -> None:
        """Advance the clock."""
        self.clock.advance(round(minutes * _MINUTE))

    def _write(
        self,
        operation: Operation,
        rows: list[dict[str, Any]],
        took_ms: int,
        during_write: Callable[[], object] | None = None,
    ) -> Commit:
        def pass_time() -> None:
            self.clock.advance(took_ms)
            if during_write is not None:
                during_write()

        client = WriteClient.create(self.storage, OPTIONS, self.clock)
        client = replace(client, local_engine=_DelayedEngine(pass_time))
        return client.write(operation, ArrowRows(pa.Table.from_pylist(rows, SCHEMA)))

    def _ride(self, city: str, at: int, number: int | None = None) -> dict[str, Any]:
        self._rides += 1
        day = f"{_date(at)}"
        key = f"{city}-{day}-{self._rides if number is None else number}"
        return {"ride": key, "city": city, "day": day, "at": at, "fare": 7.5 + self._rides % 40}


def _date(at_ms: int) -> str:
    return str(pa.scalar(at_ms, pa.timestamp("ms")).cast(pa.date32()).as_py())


def sample_history(storage: Storage, now_ms: int) -> SampleHistory:
    """Create a table whose timeline ends about now: a load every second day, then many ingests."""
    table = SampleHistory(storage, ManualClock(now_ms - 6 * _DAY - 150 * _MINUTE)).create()
    for _ in range(3):
        table.load(days_ago=1)
        table.pause(2 * 24 * 60 - 4)
    TableTtl.for_table(storage, OPTIONS, table.clock).save(
        {"spec": "*", "units": "DAYS", "value": 6}
    )
    TableTtl.for_table(storage, OPTIONS, table.clock).enable(run_inline=False)
    table.clock.advance(max(0, now_ms - 155 * _MINUTE - table.clock.now_ms()))
    for turn in range(18):
        first = turn % len(CITIES)
        cities = (CITIES * 2)[first : first + 3]
        table.ingest(*cities, took_ms=25_000 + 9_000 * (turn % 5), late_ms=turn % 4 * 30_000)
        table.pause(4.5 + turn % 3)
        if turn == 4:
            table.services(5 * _MINUTE, table.ingest).run("compaction")
        if turn in (6, 14):
            table.services(2 * _MINUTE).run("clean")
        if turn == 9:
            at = table.plan("clustering", cancellable=True)
            table.pause(3)
            table.services().cancel(at, user="ann", reason="the morning load begins")
        if turn == 12:
            table.services(4 * _MINUTE, table.ingest).run("compaction")
    table.clock.advance(max(0, now_ms - 14 * _MINUTE - table.clock.now_ms()))
    table.ingest("oslo", "berlin", took_ms=90_000)
    table.pause(2)
    table.plan("compaction", cancellable=False)
    table.pause(1)
    table.ingest("lisbon", took_ms=30_000)
    table.begin(table.plan("clustering", cancellable=True))
    return table
