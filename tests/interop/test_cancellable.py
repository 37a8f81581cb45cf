"""Cancellable plans and the guard with real Hudi: to it they are plans like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from histories import at
from kinds import Kind
from real_hudi import RealHudi, RealHudiError
from served import ServedTable, check, same_rows

from lakewright.clock import SystemClock
from lakewright.errors import ConflictError, InvalidError
from lakewright.table.heartbeat import Heartbeat
from lakewright.table.options import HeartbeatSettings
from support.soak import sized, some

CANCELLABLE = {"hoodie.table.service.plan.cancellable": "true"}
SEVERAL = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
    # An hour: a live executor renews its heartbeat in time, however busy the machine is.
    "hoodie.client.heartbeat.tolerable.misses": "60",
}
THEIR_SEVERAL = {
    **SEVERAL,
    "hoodie.write.lock.provider": (
        "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"
    ),
}
# How many ranges of changes the readers read.
RANGES = sized(1, soak=99)
Make = Callable[[Kind], ServedTable]


@dataclass(frozen=True)
class Served:
    """A service on a kind of table."""

    service: str
    kind: Kind
    options: Mapping[str, str]


SERVED = {
    "a compaction": Served(
        "compaction", Kind(files="mor-avro"), {"hoodie.compact.inline.max.delta.commits": "1"}
    ),
    "a clustering": Served("clustering", Kind(), {"hoodie.clustering.inline.max.commits": "1"}),
}


def each_served(place: int) -> pytest.MarkDecorator:
    """One of them, and both in a soak run."""
    names = some(list(SERVED), place)
    return pytest.mark.parametrize("served", [SERVED[name] for name in names], ids=names)


@pytest.fixture(scope="module")
def begun(real_hudi: RealHudi, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A table that both have written to."""

    @cache
    def begin(kind: Kind) -> ServedTable:
        table = ServedTable(real_hudi, tmp_path_factory.mktemp("begun") / "t", kind).create()
        table.ours("bulk_insert", at(10, *range(9)))
        table.ours("insert", at(10, *range(9, 15)))
        table.theirs("upsert", at(20, 0, 1, 2))
        return table

    return begin


@pytest.fixture
def make(begun: Make, tmp_path: Path) -> Make:
    return lambda kind: begun(kind).copied(tmp_path / "served")


def planned(table: ServedTable, served: Served) -> str:
    return table.plan_by_us(served.service, {**served.options, **CANCELLABLE})


@pytest.mark.thorough
@each_served(1)
def test_real_hudi_executes_a_cancellable_plan(make: Make, served: Served) -> None:
    table = make(served.kind)
    instant = planned(table, served)
    assert table.plan_at(instant, served.service).cancellable
    assert table.shown_by_them(served.service)[instant] == "REQUESTED"
    check(table, ranges=RANGES)
    with same_rows(table, ranges=RANGES):
        table.execute_by_them(served.service, instant)
    assert table.shown_by_them(served.service)[instant] == "COMPLETED"
    table.theirs("upsert", at(30, 0, 5))
    check(table, ranges=RANGES)


@each_served(0)
def test_real_hudi_does_not_list_a_cancelled_plan(make: Make, served: Served) -> None:
    table = make(served.kind)
    instant = planned(table, served)
    rollback = table.written.services().cancel(instant, reason="the morning load begins")
    assert rollback.is_completed
    assert instant not in table.shown_by_them(served.service)
    check(table, ranges=RANGES)
    table.theirs("upsert", at(30, 0, 5))
    table.ours("upsert", at(31, 1, 6))
    check(table, ranges=RANGES)
    again = table.plan_by_them(served.service, served.options)
    table.execute_by_us(again)
    check(table, ranges=RANGES)


def test_a_write_goes_past_a_clustering_and_real_hudi_goes_on(make: Make) -> None:
    served = SERVED["a clustering"]
    table = make(served.kind)
    instant = planned(table, served)
    table.ours("upsert", at(30, 0, 1, 2, 9))
    check(table, ranges=RANGES)
    with pytest.raises(ConflictError):
        table.execute_by_us(instant)
    assert instant not in table.shown_by_them(served.service)
    assert not table.files_of(instant)
    check(table, ranges=RANGES)
    table.theirs("upsert", at(40, 0, 3))
    check(table, ranges=RANGES)


def test_real_hudi_reads_a_clustering_that_completed_in_part(make: Make) -> None:
    served = SERVED["a clustering"]
    table = make(served.kind)
    instant = planned(table, served)
    plan = table.plan_at(instant, served.service)
    table.ours("upsert", at(30, 0))
    with same_rows(table, ranges=RANGES):
        commit = table.execute_by_us(instant)
    assert commit.partitions
    assert len(commit.partitions) < len(plan.partitions)
    assert table.shown_by_them(served.service)[instant] == "COMPLETED"
    table.theirs("upsert", at(40, 0, 3, 4))
    check(table, ranges=RANGES)
    table.execute_by_us(table.plan_by_them(served.service, served.options))
    check(table, ranges=RANGES)


def test_a_dead_execution_stays_readable_until_a_clean(make: Make, tmp_path: Path) -> None:
    served = SERVED["a clustering"]
    table = make(served.kind)
    instant = planned(table, served)
    table.die_at(instant, tmp_path / "trials")
    assert table.shown_by_them(served.service)[instant] == "INFLIGHT"
    check(table, ranges=RANGES)
    with pytest.raises(ConflictError):
        table.execute_by_us(instant)
    for heartbeat in (table.path / ".hoodie/.heartbeat").glob("*"):
        heartbeat.unlink()
    table.written.services(SEVERAL).run("clean")
    assert instant not in table.shown_by_them(served.service)
    assert not table.files_of(instant)
    table.theirs("upsert", at(40, 0, 3))
    check(table, ranges=RANGES)


def test_no_writer_executes_a_compaction_with_a_live_heartbeat(make: Make) -> None:
    served = SERVED["a compaction"]
    table = make(served.kind)
    instant = table.plan_by_us(served.service, served.options)
    beating = Heartbeat(table.storage, instant, HeartbeatSettings(), SystemClock())
    beating.start()
    try:
        with pytest.raises(RealHudiError, match="eartbeat"):
            table.call(
                "run_compaction",
                f"op => 'execute', timestamp => {instant}, {table._options_text(THEIR_SEVERAL)}",
            )
        assert table.shown_by_them(served.service)[instant] == "REQUESTED"
        with pytest.raises(ConflictError, match="being executed"):
            table.written.services(SEVERAL).execute(instant)
        check(table, ranges=RANGES)
    finally:
        beating.stop()
    with same_rows(table, ranges=RANGES):
        table.written.services(SEVERAL).execute(instant)
    assert table.shown_by_them(served.service)[instant] == "COMPLETED"


def test_a_lazy_clean_of_theirs_leaves_our_plan_alone(make: Make) -> None:
    served = SERVED["a clustering"]
    table = make(served.kind)
    instant = planned(table, served)
    # In another partition: to it, updates of rows under a clustering are not allowed.
    lazily = {"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"}
    for ts in (30, 31, 32):
        table.theirs("insert", at(ts, 100 + ts), {**THEIR_SEVERAL, **lazily})
    assert table.shown_by_them(served.service)[instant] == "REQUESTED"
    with same_rows(table, ranges=RANGES):
        table.execute_by_us(instant)
    check(table, ranges=RANGES)


def test_an_ordinary_plan_is_not_cancelled(make: Make) -> None:
    served = SERVED["a compaction"]
    table = make(served.kind)
    theirs = table.plan_by_them(served.service, served.options)
    with pytest.raises(InvalidError, match="not cancellable"):
        table.written.services().cancel(theirs)
    assert table.shown_by_them(served.service)[theirs] == "REQUESTED"
