"""Strategies of the latest days, beside real Hudi's, round by round."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from kinds import Kind
from real_hudi import RealHudi
from served import ServedTable

from lakewright.clock import SystemClock
from lakewright.model.instant import Instant
from lakewright.storage.local import LocalStorage
from support.tables import NO_SERVICES, WrittenTable, row

pytestmark = pytest.mark.sampled(5)

LOGS = Kind(files="mor-avro")
DAYS = "hoodie.clustering.plan.strategy.daybased."
CLUSTERING = {
    "hoodie.clustering.plan.partition.filter.mode": "RECENT_DAYS",
    "hoodie.clustering.inline.max.commits": "1",
    f"{DAYS}lookback.partitions": "2",
}
COMPACTION = {
    "hoodie.compaction.strategy": (
        "org.apache.hudi.table.action.compact.strategy.DayBasedCompactionStrategy"
    ),
    "hoodie.compaction.daybased.target.partitions": "2",
    "hoodie.compact.inline.max.delta.commits": "1",
}


@dataclass(frozen=True)
class Rounds:
    """A service, the days written before each round, and the days that each round plans.

    `by_hudi` are those of real Hudi, if they differ.
    """

    service: str
    options: Mapping[str, str]
    written: tuple[tuple[int, ...], ...]
    planned: tuple[tuple[int, ...], ...]
    by_hudi: tuple[tuple[int, ...], ...] | None = None


SIX_DAYS = (1, 2, 3, 4, 5, 6)
NEW_DAYS = (SIX_DAYS, (7,), (8,), (9,))
# Real Hudi ranks the partitions of its incremental window, this library those of the table: an old
# day is not among the latest because rows came late for it, alone or beside a newer day.
LATE_ROWS = (SIX_DAYS, (2,), (6,), (2, 7))
OF_THE_WINDOW = ((5, 6), (2,), (6,), (2, 7))
ALL = {
    "a clustering of new days": Rounds(
        "clustering", CLUSTERING, NEW_DAYS, ((5, 6), (7,), (8,), (9,))
    ),
    "a compaction of new days": Rounds(
        "compaction", COMPACTION, NEW_DAYS, ((5, 6), (7,), (8,), (9,))
    ),
    "a clustering, with late rows in old days": Rounds(
        "clustering", CLUSTERING, LATE_ROWS, ((5, 6), (), (6,), (7,)), OF_THE_WINDOW
    ),
    "a compaction, with late rows in old days": Rounds(
        "compaction", COMPACTION, LATE_ROWS, ((5, 6), (), (6,), (7,)), OF_THE_WINDOW
    ),
    "a clustering that leaves the newest day": Rounds(
        "clustering", {**CLUSTERING, f"{DAYS}skipfromlatest.partitions": "1"},
        ((1, 2, 3, 4), (5,), (6,)), ((2, 3), (4,), (5,)),
    ),
}  # fmt: skip


def path_of(day: int) -> str:
    return f"2026/01/{day:02d}"


def days_table(real_hudi: RealHudi, path: Path) -> ServedTable:
    """A table that we write and whose services both can run."""
    path.mkdir()
    WrittenTable(LocalStorage(str(path)), SystemClock(), NO_SERVICES).create("MERGE_ON_READ")
    return ServedTable(real_hudi, path, LOGS)


def write(table: ServedTable, *days: int) -> None:
    """A base file, or a log file, and one more log file in each day."""
    writer = WrittenTable(table.storage, SystemClock(), {**NO_SERVICES, **LOGS.write_options})
    for ts in (1, 2):
        writer.upsert([row("k", ts, day=path_of(day)) for day in days])


def planned_by_us(table: ServedTable, rounds: Rounds) -> tuple[int, ...]:
    scheduled = table.written.services(rounds.options).schedule(rounds.service)
    if not isinstance(scheduled, Instant):
        return ()
    planned = planned_days(table, rounds, scheduled.requested_at)
    table.execute_by_us(scheduled.requested_at)
    return planned


def planned_by_them(table: ServedTable, rounds: Rounds) -> tuple[int, ...]:
    before = {i.requested_at for i in table.snapshot.timeline}
    options = ",".join(f"{key}={value}" for key, value in rounds.options.items())
    table.call(
        f"run_{rounds.service}",
        f"op => 'schedule', options => 'hoodie.metadata.enable=false,{options}'",
    )
    new = {i.requested_at for i in table.snapshot.timeline.pending(rounds.service)} - before
    if not new:
        return ()
    (instant,) = new
    planned = planned_days(table, rounds, instant)
    table.execute_by_them(rounds.service, instant)
    return planned


def planned_days(table: ServedTable, rounds: Rounds, instant: str) -> tuple[int, ...]:
    return tuple(sorted(int(p[-2:]) for p in table.plan_at(instant, rounds.service).partitions))


@pytest.mark.parametrize("rounds", ALL.values(), ids=list(ALL))
def test_rounds_plan_the_days_that_real_hudi_plans(
    real_hudi: RealHudi, tmp_path: Path, rounds: Rounds
) -> None:
    ours = days_table(real_hudi, tmp_path / "ours")
    shutil.copytree(ours.path, tmp_path / "theirs")
    theirs = ServedTable(real_hudi, tmp_path / "theirs", LOGS)
    by_us, by_them = [], []
    for days in rounds.written:
        for table in (ours, theirs):
            write(table, *days)
        by_us.append(planned_by_us(ours, rounds))
        by_them.append(planned_by_them(theirs, rounds))
    assert tuple(by_us) == rounds.planned
    assert tuple(by_them) == (rounds.by_hudi or rounds.planned)
