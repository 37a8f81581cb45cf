"""Filters by the latest partitions rank the table, whatever the incremental window holds of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lakewright.model.plans import ClusteringPlan, CompactionPlan
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
from lakewright.write.writer import Commit
from support.services import clustering_options
from support.tables import NO_SERVICES, WrittenTable, row

MODE = "hoodie.clustering.plan.partition.filter.mode"
RECENT = {MODE: "RECENT_DAYS"}
ONE_BEHIND = {**RECENT, **clustering_options(daybased_skipfromlatest_partitions=1)}
DAY_BASED = {
    "hoodie.compaction.strategy": "day_based",
    "hoodie.compaction.daybased.target.partitions": "2",
    "hoodie.compact.inline.max.delta.commits": "1",
}
ODD_DAYS = {
    **DAY_BASED,
    "hoodie.compaction.strategy": "partition_regex,day_based",
    "hoodie.compaction.partition.path.regex": "[13579]$",
}


def day(number: int) -> str:
    return f"2026-01-{number:02d}"


class Days:
    """A table with a file and, if its type is merge-on-read, a log file for each day."""

    def __init__(self, service: str, options: Mapping[str, str], days: range) -> None:
        self.service = service
        self.options = options
        self.storage = CountingStorage(MemoryStorage.fresh())
        self.table = WrittenTable(storage=self.storage, options=NO_SERVICES).create("MERGE_ON_READ")
        self.write(*days)

    def write(self, *days: int) -> None:
        for ts in (1, 2):
            self.table.upsert([row("k", ts, day=day(number)) for number in days])

    def plan(self, options: Mapping[str, str] | None = None) -> ClusteringPlan | CompactionPlan:
        plan = self.table.services(options or self.options).preview(self.service)
        assert isinstance(plan, ClusteringPlan | CompactionPlan), plan
        return plan

    def run(self, options: Mapping[str, str] | None = None) -> list[int]:
        """Run the service; returns the days that it rewrote."""
        outcome = self.table.services(options or self.options).run(self.service)
        partitions = outcome.partitions if isinstance(outcome, Commit) else ()
        return [int(path[-2:]) for path in partitions]


SERVICES = {
    "clustering": ("clustering", RECENT),
    "compaction": ("compaction", DAY_BASED),
}


@pytest.mark.parametrize(("service", "options"), SERVICES.values(), ids=list(SERVICES))
def test_rounds_follow_the_days_and_never_go_back(service: str, options: Mapping[str, str]) -> None:
    """As real Hudi does; the others stay missing for a plan with another filter."""
    days = Days(service, options, range(1, 7))
    rounds = [days.run()]
    for number in (7, 8, 9):
        days.write(number)
        rounds.append(days.run())
    assert rounds == [[5, 6], [7], [8], [9]]
    last = max(load_snapshot(days.storage).timeline.plans)
    plan = load_snapshot(days.storage).plan_of(
        last, load_snapshot(days.storage).timeline.plans[last]
    )
    assert plan is not None
    assert plan.missing_partitions == tuple(map(day, (1, 2, 3, 4)))


@pytest.mark.parametrize(("service", "options"), SERVICES.values(), ids=list(SERVICES))
def test_a_late_write_to_an_old_day_is_not_among_the_latest(
    service: str, options: Mapping[str, str]
) -> None:
    days = Days(service, options, range(1, 7))
    days.run()
    days.write(2)
    assert days.run() == []
    days.write(6)
    days.storage.reset()
    assert days.run() == [6]
    listed = {path for method, path in days.storage.touched if method.startswith("list_")}
    assert not listed & {"", *map(day, range(1, 6))}


def test_the_newest_partition_is_clustered_once_a_newer_one_exists() -> None:
    days = Days("clustering", ONE_BEHIND, range(1, 5))
    assert days.run() == [2, 3]
    days.write(5)
    assert days.run() == [4]


def test_a_filter_before_the_ranking_counts() -> None:
    days = Days("compaction", ODD_DAYS, range(1, 7))
    assert days.run() == [3, 5]
    days.write(6, 7)
    assert days.run() == [7]


@pytest.mark.parametrize(("service", "options"), SERVICES.values(), ids=list(SERVICES))
def test_other_options_rank_the_whole_table(service: str, options: Mapping[str, str]) -> None:
    days = Days(service, options, range(1, 7))
    days.run()
    longer = {
        **options,
        "hoodie.compaction.daybased.target.partitions": "3",
        **clustering_options(daybased_lookback_partitions=3),
    }
    days.write(7)
    assert set(days.run(longer)) == {7}
    unfiltered = {"hoodie.compact.inline.max.delta.commits": "1"}
    days.write(8)
    assert set(days.run(unfiltered)) == {1, 2, 3, 4, 8}


@pytest.mark.parametrize(("service", "options"), SERVICES.values(), ids=list(SERVICES))
def test_a_deleted_day_makes_room_for_an_older_one(
    service: str, options: Mapping[str, str]
) -> None:
    days = Days(service, options, range(1, 7))
    days.run()
    days.table.delete_partitions(day(6))
    days.write(1)
    assert days.run() == [4]
