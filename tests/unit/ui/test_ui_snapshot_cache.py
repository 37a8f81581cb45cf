"""Looking at a table again and again: what it costs while nothing happens, and what it notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.scale.table import Shape, synthetic_table

from lakewright.engine.local import LocalEngine
from lakewright.services.runner import ServiceRunner
from lakewright.storage.base import Storage
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage
from lakewright.ui.partitions import Page
from lakewright.ui.snapshot_cache import SnapshotCache
from lakewright.ui.table_view import TableView
from support.tables import NO_SERVICES, WrittenTable, row

ARCHIVE = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")


class Watched:
    """A table, and a cache that watches it through a storage that counts."""

    def __init__(self, table_type: str = "MERGE_ON_READ") -> None:
        self.clock = ManualClock()
        self.table = WrittenTable(clock=self.clock, options=NO_SERVICES).create(table_type)
        self.storage = CountingStorage(self.table.storage)
        self.watch = SnapshotCache(ServiceRunner(self.storage, self.clock, LocalEngine))

    def write(self, key: str, day: str, ts: int = 1) -> None:
        self.table.upsert([row(key, ts, day=day)])

    def calls(self) -> dict[str, int]:
        """What was asked of storage since the last time; half a second later is another look."""
        self.clock.advance(1000)
        before = dict(self.storage.calls)
        self.watch.listing()
        return {
            name: count - before.get(name, 0)
            for name, count in self.storage.calls.items()
            if count > before.get(name, 0)
        }

    def rows(self) -> dict[str, tuple[int, int, str]]:
        return {
            path: (partition.groups, partition.log_files, partition.written_at)
            for path, partition in self.watch.listing().rows.items()
        }

    def rows_of_another(self) -> dict[str, tuple[int, int, str]]:
        """What a new cache shows."""
        other = Watched.__new__(Watched)
        other.watch = SnapshotCache(self.watch.runner)
        return other.rows()


def test_nothing_new_costs_a_look_at_the_timeline_and_no_more() -> None:
    watched = Watched()
    watched.write("a", DAYS[0])
    watched.calls()
    again = watched.calls()
    assert sum(again.values()) == 2, again
    assert again["list_files"] == 1
    first = watched.watch.snapshot()
    watched.clock.advance(1000)
    assert watched.watch.snapshot() is first


def test_a_commit_has_only_its_own_partitions_listed() -> None:
    watched = Watched()
    for day in DAYS:
        watched.write(f"key {day}", day)
    watched.calls()
    before = watched.watch.listing().rows
    watched.write("key " + DAYS[1], DAYS[1], 2)
    calls = watched.calls()
    assert "list_tree" not in calls
    assert calls["list_many"] == 1
    after = watched.watch.listing().rows
    assert after[DAYS[0]] is before[DAYS[0]]
    assert (before[DAYS[1]].log_files, after[DAYS[1]].log_files) == (0, 1)
    assert watched.rows() == watched.rows_of_another()


def test_pending_work_lists_nothing() -> None:
    watched = Watched()
    watched.write("a", DAYS[0])
    watched.write("a", DAYS[0], 2)
    watched.calls()
    version = watched.watch.snapshot().version
    watched.table.services({"hoodie.compact.inline.max.delta.commits": "1"}).schedule("compaction")
    calls = watched.calls()
    assert watched.watch.snapshot().version != version
    assert not {"list_tree", "list_many"} & calls.keys()


def test_a_cached_snapshot_always_shows_what_a_new_one_shows() -> None:
    watched = Watched()
    services = watched.table.services({"hoodie.compact.inline.max.delta.commits": "1"})
    steps: list[Callable[[], object]] = [
        lambda: watched.write("a", DAYS[0]),
        lambda: watched.write("b", DAYS[1]),
        lambda: watched.write("a", DAYS[0], 2),
        lambda: services.run("compaction"),
        lambda: watched.write("a", DAYS[0], 3),
        lambda: watched.table.delete_partitions(DAYS[1]),
        lambda: watched.table.services({"hoodie.clean.commits.retained": "1"}).run("clean"),
        lambda: watched.table.services(ARCHIVE).run("archive"),
        lambda: watched.write("c", DAYS[2]),
    ]
    for step in steps:
        step()
        watched.clock.advance(1000)
        assert watched.rows() == watched.rows_of_another()


def test_properties_are_a_part_of_the_version() -> None:
    watched = Watched()
    watched.write("a", DAYS[0])
    first = watched.watch.snapshot().version
    path = ".hoodie/hoodie.properties"
    watched.table.storage.replace(
        path, watched.table.storage.read(path) + b"hoodie.ttl.enabled=true\n"
    )
    watched.clock.advance(1000)
    assert watched.watch.snapshot().version != first


def test_what_takes_long_is_not_made_again_at_once() -> None:
    watched = Watched()
    made: list[str] = []

    def make() -> str:
        made.append("one")
        watched.clock.advance(5000)
        return f"value {len(made)}"

    assert watched.watch.derived("slow", "v1", make) == "value 1"
    assert watched.watch.derived("slow", "v1", make) == "value 1"
    assert watched.watch.derived("slow", "v2", make) == "value 1"
    watched.clock.advance(50_001)
    assert watched.watch.derived("slow", "v2", make) == "value 2"


def served(storage: Storage) -> TableView:
    runner = ServiceRunner(storage, ManualClock(), LocalEngine)
    return TableView(storage.root, {}, SnapshotCache(runner))


def test_pages_of_many_partitions() -> None:
    table = served(synthetic_table(Shape(partitions=3000, groups=1, touched=100)))
    first = table.partitions(Page())
    assert first["totals"]["partitions"] == first["matching"] == 3000
    assert len(first["rows"]) == 50
    assert table.partitions(Page(offset=2990))["rows"][-1]["partition"] == "d0002999"
    assert table.partitions(Page(search="D00012"))["matching"] == 100
    longest = table.partitions(Page(sort="log_bytes", descending=True))["rows"][0]
    assert longest["log_files"] == 2
    assert longest["debt_reason"] == "no compaction was planned yet"
    assert table.groups("d0002999", 0)["total"] == 1


def test_rows_of_equal_worth_stay_in_the_order_of_their_paths() -> None:
    table = served(synthetic_table(Shape(partitions=20, touched=1)))
    page = Page(sort="bytes", descending=True, limit=20)
    paths = [partition["partition"] for partition in table.partitions(page)["rows"]]
    assert paths[1:] == sorted(paths[1:])
    second = table.partitions(replace(page, offset=10))["rows"]
    assert [partition["partition"] for partition in second] == paths[10:]
