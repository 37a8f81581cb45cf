"""A service that crashes at any storage call: no reader notices, and the next run completes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import pytest

from lakewright.model.file_group import parse_data_file
from lakewright.model.plans import Skip
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from support import event_times
from support.faults import crash_points
from support.tables import NO_SERVICES, WrittenTable, row

pytestmark = pytest.mark.sampled(2)

DAYS = ("2026-01-01", "2026-01-02")
QUIET = NO_SERVICES


def with_logs() -> WrittenTable:
    table = WrittenTable(options=QUIET).create("MERGE_ON_READ")
    table.upsert([row(f"k{n}", 1, "first", DAYS[n % 2]) for n in range(6)])
    table.upsert([row("k0", 2, "second", DAYS[0]), row("k1", 2, "second", DAYS[1])])
    table.write("DELETE", [row("k2", day=DAYS[0])])
    table.upsert([row("k0", 3, "third", DAYS[0])])
    return table


def with_event_times() -> WrittenTable:
    table = WrittenTable(options=QUIET).create("MERGE_ON_READ", event_time="ts")
    table.upsert([event_times.event_row(key, 1) for key in "abc"])
    table.upsert([event_times.event_row("a", 2), event_times.event_row("b", 6)])
    table.write("DELETE", [event_times.event_row("c", 3)], ordered=True)
    table.upsert([event_times.event_row("a", 7), event_times.event_row("c", 2, "late")])
    return table


def with_small_files() -> WrittenTable:
    table = WrittenTable(options=QUIET).create("COPY_ON_WRITE")
    for n in range(3):
        table.write("BULK_INSERT", [row(f"k{n}", 1, "first", day) for day in DAYS])
    return table


def with_old_versions() -> WrittenTable:
    table = WrittenTable(options=QUIET).create("COPY_ON_WRITE")
    for ts in range(1, 6):
        table.upsert([row("k0", ts, f"at {ts}", day) for day in DAYS])
    table.delete_partitions(DAYS[1])
    table.upsert([row("k0", 9, "newest", DAYS[0])])
    table.upsert([row("k0", 10, "newest", DAYS[0])])
    return table


@dataclass(frozen=True)
class Served:
    """A service, its options, and the table it is run on."""

    name: str
    make: Callable[[], WrittenTable]
    options: Mapping[str, str] = field(default_factory=dict)


SERVED = {
    "compaction": Served("compaction", with_logs, {"hoodie.compact.inline.max.delta.commits": "1"}),
    "compaction by event time, split": Served(
        "compaction", with_event_times, event_times.compact_before(4) | event_times.EXACT_SPLIT
    ),
    "log compaction": Served(
        "logcompaction", with_logs, {"hoodie.log.compaction.blocks.threshold": "2"}
    ),
    "clustering": Served("clustering", with_small_files),
    "clustering, sorted": Served(
        "clustering", with_small_files, {"hoodie.clustering.plan.strategy.sort.columns": "note"}
    ),
    "clean": Served("clean", with_old_versions, {"hoodie.clean.commits.retained": "1"}),
    "archive": Served(
        "archive",
        with_old_versions,
        {
            "hoodie.clean.commits.retained": "1",
            "hoodie.keep.min.commits": "2",
            "hoodie.keep.max.commits": "3",
        },
    ),
}


@pytest.fixture(scope="module", params=SERVED.values(), ids=list(SERVED))
def served(request: pytest.FixtureRequest) -> tuple[Served, dict[str, bytes]]:
    case: Served = request.param
    table = case.make()
    if case.name == "archive":
        assert table.services(case.options).run("clean")
    return case, {f.path: table.storage.read(f.path) for f in table.storage.list_tree("")}


def fresh(start: dict[str, bytes]) -> WrittenTable:
    # Another process never comes to the ids that those before it have given.
    clock = ManualClock(first_id=1000)
    clock.sleep(1)
    return WrittenTable(storage=MemoryStorage.fresh(start), options=QUIET, clock=clock)


def to_the_end(table: WrittenTable, case: Served) -> None:
    """What the next process does: execute what is scheduled, else run the service."""
    runner = table.services(case.options)
    for instant in load_snapshot(table.storage).timeline.pending():
        if instant.action != "rollback":
            runner.execute(instant.requested_at)
    runner.run(case.name)


def served_once(case: Served, table: WrittenTable) -> None:
    assert table.services(case.options).run(case.name)


def test_readers_see_no_change_and_the_next_run_completes_it(
    served: tuple[Served, dict[str, bytes]],
) -> None:
    case, start = served
    before = fresh(start).rows()
    complete = fresh(start)
    assert not isinstance(complete.services(case.options).run(case.name), Skip)
    expected = complete.rows(optimized=True)
    for survive, table in crash_points(
        partial(fresh, start), lambda t: t.services(case.options).run(case.name)
    ):
        assert table.rows() == before, survive
        table.clock.sleep(1)
        to_the_end(table, case)
        assert table.rows() == before, survive
        assert table.rows(optimized=True) == expected, survive
        assert_whole(table)
        table.upsert([row("last", 1, "after", "2026-01-03")])
        assert [record for record in table.rows() if record["id"] != "last"] == before, survive


def assert_whole(table: WrittenTable) -> None:
    """Every data file belongs to a completed write; nothing but rolled-back attempts is pending."""
    snapshot = load_snapshot(table.storage)
    assert not snapshot.timeline.pending()
    for file in table.storage.list_tree(""):
        name = file.path.rpartition("/")[2]
        data = None if file.path.startswith(".hoodie/") else parse_data_file(name)
        assert data is None or snapshot.timeline.is_committed(data.instant), file.path
