"""Plans and results of services travel between us and real Hudi, and no reader notices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from histories import at, deletes
from kinds import Kind
from real_hudi import RealHudi
from served import ServedTable, check, same_rows

from lakewright.model.instant import Action
from support.soak import sized, some
from support.tables import orphan_data_files

pytestmark = pytest.mark.sampled(2)

LOGS = Kind(files="mor-avro")
INDEXED_LOGS = replace(LOGS, metadata="indexed")
BUCKETS = Kind(index="bucket", files="mor-parquet", version="8", metadata="indexed")
FILES = Kind()

COMPACT_SOON = {"hoodie.compact.inline.max.delta.commits": "1"}
COMPACT_SOON_TOLD = "hoodie.compact.inline.max.delta.commits=1"
CLUSTER_SOON = {"hoodie.clustering.inline.max.commits": "1"}
JOIN_LOGS_SOON = {"hoodie.log.compaction.blocks.threshold": "2"}
JOIN_LOGS_INLINE = {
    **JOIN_LOGS_SOON,
    "hoodie.log.compaction.enable": "true",
    "hoodie.log.compaction.inline": "true",
}
SORTED = {"hoodie.clustering.plan.strategy.sort.columns": "x"}
ON_A_CURVE = {**SORTED, "hoodie.layout.optimize.strategy": "z-order"}
Z_ORDERED = {
    "hoodie.clustering.plan.strategy.sort.columns": "x,ts",
    "hoodie.layout.optimize.strategy": "z-order",
}

# How many ranges of changes the readers read.
RANGES = sized(1, soak=99)
Make = Callable[[Kind], ServedTable]


@pytest.fixture(scope="module")
def begun(real_hudi: RealHudi, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A table with a history of both writers: updates, late rows, deletes and new keys."""

    @cache
    def begin(kind: Kind) -> ServedTable:
        table = ServedTable(real_hudi, tmp_path_factory.mktemp("begun") / "t", kind).create()
        table.ours("bulk_insert", at(10, *range(9)))
        table.ours("insert", at(10, *range(9, 15)))
        table.ours("upsert", [*at(20, 0, 1, 2), *at(5, 3), *at(20, 15, 16, 36)])
        table.theirs("upsert", [*at(30, 0, 4, 36), *at(5, 5), *at(30, 17)])
        table.theirs("delete", at(99, 6))
        table.ours("upsert", [*deletes(40, 7), *at(40, 0, 1, 10), *at(1, 2)])
        check(table, ranges=sized(1, soak=99))
        return table

    return begin


@pytest.fixture
def make(begun: Make, tmp_path: Path) -> Make:
    """A copy of such a table."""
    return lambda kind: begun(kind).copied(tmp_path / "served")


def go_on(table: ServedTable, ts: int) -> None:
    """Both write on: updates, late rows, new keys and deletes."""
    table.ours("upsert", [*at(ts, 0, 3, 9), *at(2, 1), *at(ts, ts)])
    table.theirs(
        "upsert", [*at(ts + 1, 0, 4, 12), *at(2, 10), *at(ts + 1, ts + 1), *deletes(99, 36)]
    )
    check(table, ranges=sized(1, soak=2))
    assert table.is_indexed == (table.kind.metadata != "listed")


@dataclass(frozen=True)
class Served:
    """A service on a kind of table; with `dies`, a first attempt to execute its plan is killed."""

    service: str
    kind: Kind
    options: Mapping[str, str]
    dies: bool = False


SERVED = {
    "a compaction, whose execution crashed": Served("compaction", LOGS, COMPACT_SOON, dies=True),
    "a compaction of buckets, of version 8": Served("compaction", BUCKETS, COMPACT_SOON),
    "a clustering, whose execution crashed": Served("clustering", FILES, CLUSTER_SOON, dies=True),
    "a sorted clustering": Served("clustering", FILES, CLUSTER_SOON | SORTED),
    "a clustering of log files along a curve": Served(
        "clustering", INDEXED_LOGS, CLUSTER_SOON | ON_A_CURVE
    ),
}


def few_served(*places: int) -> pytest.MarkDecorator:
    """Some of them, and all in a soak run."""
    names = some(list(SERVED), *places)
    return pytest.mark.parametrize("served", [SERVED[name] for name in names], ids=names)


def write_while_pending(table: ServedTable, service: str) -> None:
    """File groups under a pending compaction take log files, those under a clustering nothing."""
    if service == "compaction":
        table.ours("upsert", [*at(50, 1, 5, 50), *at(3, 4)])
        table.theirs("upsert", [*at(51, 2, 51), *at(3, 5)])


def check_completed(table: ServedTable, served: Served, instant: str) -> None:
    """The plan was executed, and no file of an earlier attempt remains."""
    assert table.shown_by_them(served.service)[instant] == "COMPLETED"
    assert not table.snapshot.timeline.pending()
    assert table.files_of(instant) == table.files_recorded(instant)
    assert orphan_data_files(table.storage) == []


@few_served(0)
def test_real_hudi_lists_and_executes_our_plan(make: Make, served: Served, tmp_path: Path) -> None:
    table = make(served.kind)
    planned = table.plan_by_us(served.service, served.options)
    assert table.shown_by_them(served.service)[planned] == "REQUESTED"
    write_while_pending(table, served.service)
    check(table, ranges=RANGES)
    if served.dies:
        table.die_at(planned, tmp_path / "trials")
        assert table.shown_by_them(served.service)[planned] == "INFLIGHT"
        assert table.files_of(planned)
        check(table, ranges=RANGES)
    with same_rows(table, ranges=RANGES):
        table.execute_by_them(served.service, planned)
    check_completed(table, served, planned)
    go_on(table, 60)


@few_served(2)
def test_we_execute_a_plan_of_real_hudi(make: Make, served: Served) -> None:
    table = make(served.kind)
    planned = table.plan_by_them(served.service, served.options)
    write_while_pending(table, served.service)
    check(table, ranges=RANGES)
    if served.dies:
        table.execute_by_them(served.service, planned)
        table.undo_completion(planned)
        assert table.files_of(planned)
        check(table, ranges=RANGES)
    with same_rows(table, ranges=RANGES):
        table.execute_by_us(planned)
    check_completed(table, served, planned)
    go_on(table, 60)
    table.clean()
    check(table, ranges=1)


def test_real_hudi_executes_our_log_compaction(make: Make) -> None:
    """It does so after a write that may compact log files."""
    table = make(LOGS)
    planned = table.plan_by_us("logcompaction", JOIN_LOGS_SOON)
    check(table, ranges=RANGES)
    table.theirs("upsert", at(50, 1, 50), JOIN_LOGS_INLINE)
    check(table, ranges=RANGES)
    assert planned in {i.requested_at for i in table.snapshot.timeline.completed("deltacommit")}
    go_on(table, 60)


def test_we_execute_a_log_compaction_of_real_hudi(make: Make) -> None:
    """Its write executes at once what it schedules: that is rolled back first."""
    table = make(LOGS)
    table.theirs("upsert", at(50, 1, 50), JOIN_LOGS_INLINE)
    (instant,) = table.snapshot.timeline.completed_services(Action.LOG_COMPACTION)
    table.forget_execution(instant.requested_at, "logcompaction")
    check(table, ranges=RANGES)
    with same_rows(table, ranges=RANGES):
        table.execute_by_us(instant.requested_at)
    assert not table.snapshot.timeline.pending()
    go_on(table, 60)
    with same_rows(table, ranges=RANGES):
        table.service("run_compaction", COMPACT_SOON_TOLD)


RETAIN_TWO = {"hoodie.clean.commits.retained": "2"}
KEEP_THREE = {
    **RETAIN_TWO,
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "4",
}
ON_LOG_FILES = [
    ("compaction", COMPACT_SOON),
    ("logcompaction", JOIN_LOGS_SOON),
    ("clustering", CLUSTER_SOON | SORTED),
    ("compaction", COMPACT_SOON),
    ("clustering", CLUSTER_SOON | Z_ORDERED),
]
ON_BASE_FILES = [
    ("clustering", CLUSTER_SOON | SORTED),
    ("clustering", CLUSTER_SOON | Z_ORDERED),
]
ALONE = some([(LOGS, some(ON_LOG_FILES, 0, 4)), (FILES, ON_BASE_FILES)], 0)


@pytest.mark.parametrize(("kind", "services"), ALONE, ids=[kind.files for kind, _ in ALONE])
def test_real_hudi_reads_writes_and_serves_what_we_served(
    make: Make, kind: Kind, services: list[tuple[str, Mapping[str, str]]]
) -> None:
    table = make(kind)
    for ts, (service, options) in enumerate(services, 50):
        with same_rows(table, ranges=sized(1, soak=4)):
            table.run_by_us(service, options)
        if service == "compaction":
            assert table.written.rows(optimized=True) == table.written.rows()
        table.theirs("upsert", [*at(ts, 0, 1, 2), *at(2, 8), *at(ts, ts)])
        table.ours("upsert", [*at(ts, 0, 1, 2, 9), *at(2, 11)])
        table.theirs("delete", at(99, ts))
        check(table, ranges=sized(1, soak=3))
    with same_rows(table, ranges=1):
        assert table.run_by_us("clean", RETAIN_TWO).files
    table.theirs("upsert", [*at(80, 0, 1, 2), *at(2, 8), *at(80, 80)])
    check(table, ranges=1)
    with same_rows(table, ranges=1):
        table.run_by_us("archive", KEEP_THREE)
    assert table.snapshot.archived
    go_on(table, 81)
    let_real_hudi_serve(table)


def let_real_hudi_serve(table: ServedTable) -> None:
    """All services of real Hudi, and a write of ours after them."""
    if table.kind.merge_on_read:
        table.service("run_compaction", COMPACT_SOON_TOLD)
        check(table, ranges=1)
    table.service("run_clustering")
    check(table, ranges=1)
    table.clean()
    check(table, ranges=0)
    table.archive()
    check(table, ranges=0)
    table.ours("upsert", [*at(90, 0, 1, 90), *at(2, 9)])
    check(table, ranges=1)


DAYS = ("2026-01-01", "2026-01-02", "2026-01-03", "2026-02-01")
ONE_GROUP = {"hoodie.clustering.plan.strategy.max.num.groups": "1"}
MANY_LOGS = {
    "hoodie.compaction.strategy": (
        "org.apache.hudi.table.action.compact.strategy.LogFileNumBasedCompactionStrategy"
    ),
    "hoodie.compaction.logfile.num.threshold": "2",
}


@dataclass(frozen=True)
class Limited:
    """A service that leaves partitions to its next plan."""

    served: Served
    limit: Mapping[str, str]


LIMITED = {
    "compaction": Limited(Served("compaction", LOGS, COMPACT_SOON), MANY_LOGS),
    "clustering": Limited(Served("clustering", FILES, CLUSTER_SOON), ONE_GROUP),
}


def few_limited(place: int) -> pytest.MarkDecorator:
    """One of them, and both in a soak run."""
    names = some(list(LIMITED), place)
    return pytest.mark.parametrize("limited", [LIMITED[name] for name in names], ids=names)


def make_uneven(real_hudi: RealHudi, path: Path, kind: Kind) -> ServedTable:
    """A table of three partitions, the first of which was written most often."""
    table = ServedTable(real_hudi, path, kind).create()
    table.ours("bulk_insert", at(10, *range(6)))
    table.ours("upsert", at(20, 0, 1, 2))
    table.ours("upsert", at(30, 0))
    return table


@few_limited(0)
def test_our_next_plan_includes_the_missing_partitions_of_a_plan_of_real_hudi(
    real_hudi: RealHudi, tmp_path: Path, limited: Limited
) -> None:
    served = limited.served
    table = make_uneven(real_hudi, tmp_path / "served", served.kind)
    planned = table.plan_by_them(served.service, {**served.options, **limited.limit})
    first = table.plan_at(planned, served.service)
    (partition,) = first.partitions
    remaining = sorted({*DAYS[:3]} - {partition})
    assert sorted(first.missing_partitions or ()) == remaining
    table.execute_by_them(served.service, planned)
    table.ours("upsert", at(40, 36))
    table.ours("upsert", at(41, 36))
    assert table.written.services(served.options).preview(served.service).partitions == (
        *remaining,
        DAYS[3],
    )
    table.rewrite_plan(planned, served.service, replace(first, missing_partitions=()))
    assert table.written.services(served.options).preview(served.service).partitions == (DAYS[3],)


@few_limited(1)
def test_the_next_plan_of_real_hudi_includes_the_missing_partitions_of_our_plan(
    real_hudi: RealHudi, tmp_path: Path, limited: Limited
) -> None:
    served = limited.served
    table = make_uneven(real_hudi, tmp_path / "served", served.kind)
    planned = table.plan_by_us(served.service, {**served.options, **limited.limit})
    first = table.plan_at(planned, served.service)
    (partition,) = first.partitions
    remaining = sorted({*DAYS[:3]} - {partition})
    assert sorted(first.missing_partitions or ()) == remaining
    table.execute_by_us(planned)
    table.ours("upsert", at(40, 36))
    table.ours("upsert", at(41, 36))
    other = table.copied(tmp_path / "other")
    other.rewrite_plan(planned, served.service, replace(first, missing_partitions=()))
    for target, partitions in ((table, [*remaining, DAYS[3]]), (other, [DAYS[3]])):
        plan = target.plan_at(target.plan_by_them(served.service, served.options), served.service)
        assert sorted(plan.partitions) == partitions
