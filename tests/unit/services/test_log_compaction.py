"""Which file groups have their log files made one; `d1 f1 12 15` has log files of two ticks."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakewright.errors import InvalidError
from lakewright.format.timeline_metadata import format_compaction_plan, parse_compaction_plan
from lakewright.model.file_group import BaseFile, FileSlice, LogFile
from lakewright.model.plans import CompactionPlan, Skip
from lakewright.services.base import PlanningContext
from lakewright.services.log_compaction import (
    LogCompaction,
    LogCompactionSettings,
    LogHistory,
    check_log_compaction_trigger,
    plan_log_compaction,
)
from lakewright.services.planning import IncrementalWindow
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.table_builder import TableBuilder
from lakewright.testing.timeline_drawing import at, draw
from support.golden import GoldenTables
from support.services import hudi_compaction_plan

THREE = LogCompactionSettings(blocks_threshold=3)
SERVICE = LogCompaction()

DUE = {
    "enough delta commits": (
        """
        deltacommit |-|
        deltacommit    |-|
        deltacommit       |-|
        """, None),
    "pending ones do not count": (
        """
        deltacommit |-|
        deltacommit    |-|
        deltacommit       |-
        """, "2 of 3 delta commits altogether"),
    "those before the last compaction do not count": (
        """
        deltacommit |-|
        deltacommit    |-|
        compaction        |-|
        deltacommit          |-|
        """, f"1 of 3 delta commits since compaction {at(6)}"),
    "those before the last log compaction do not count, nor does it": (
        """
        deltacommit   |-|
        deltacommit      |-|
        logcompaction       |-|
        deltacommit            |-|
        deltacommit               |-|
        """, f"2 of 3 delta commits since log compaction {at(6)}"),
    "enough since the last log compaction": (
        """
        logcompaction |-|
        deltacommit      |-|
        deltacommit         |-|
        deltacommit            |-|
        """, None),
    "a compaction after the last log compaction counts": (
        """
        deltacommit   |-|
        logcompaction    |-|
        deltacommit         |-|
        compaction             |-|
        deltacommit               |-|
        """, f"1 of 3 delta commits since compaction {at(9)}"),
}  # fmt: skip


@pytest.mark.parametrize(("picture", "expected"), DUE.values(), ids=list(DUE))
def test_when_it_is_due(picture: str, expected: str | None) -> None:
    skip = check_log_compaction_trigger(draw(picture), THREE)
    assert (None if skip is None else skip.reason) == expected


def slices(text: str) -> list[FileSlice]:
    """One slice for each line: partition, file id, and the ticks of log files."""
    file_slices = []
    for line in filter(str.strip, text.splitlines()):
        partition, file_id, *ticks = line.split()
        logs = tuple(LogFile(file_id, at(int(tick)), size=10) for tick in ticks)
        base = BaseFile(file_id, "0-0-0", at(0))
        file_slices.append(FileSlice(partition, file_id, at(0), base, logs))
    return file_slices


def show(plan: CompactionPlan) -> str:
    """The operations as `slices` are written."""
    return "; ".join(
        " ".join([o.partition, o.file_id, *(log.split(".")[1][-2:] for log in o.logs)])
        for o in plan.operations
    )


QUIET = "\n".join(f"deltacommit {' ' * n}||" for n in range(10, 30, 2))
COMPACTED = """
    deltacommit               |-|
    deltacommit                  |-|
    deltacommit                     |-|
    logcompaction                      |--|
    deltacommit                             |-|
    deltacommit                                |-|
"""
OVERLAPPED = """
    deltacommit               |-|
    deltacommit                  |-|
    deltacommit                     |--------------|
    logcompaction                      |--|
    deltacommit                             |-|
    deltacommit                                |-|
"""
SLOW = """
    deltacommit             |-|
    deltacommit                |-|
    deltacommit                   |-|
    deltacommit                      |--
    deltacommit                         |-|
    deltacommit                            |-|
    deltacommit                               |-|
"""
FEW = "fewer than 3 new log files"
PLANS: dict[str, tuple[str, str, dict[str, str], str, dict[str, str]]] = {
    "groups with many log files, and no others": (
        QUIET, """
        d1 f1 10 12 14
        d1 f2 10 12
        d2 f3 10 12 14 16
        d3 f4
        """, {}, "d1 f1 10 12 14; d2 f3 10 12 14 16", {"d1": FEW}),
    "a group of another plan is missing": (
        QUIET, """
        d1 f1 10 12 14
        d2 f2 10 12 14
        """, {"f2": "compaction 7"}, "d1 f1 10 12 14", {"d2": "held by compaction 7"}),
    "log files count from the last log compaction on": (
        COMPACTED, """
        d1 f1 12 15 18 21 26 29
        d2 f2 12 15 18
        """, {}, "d2 f2 12 15 18", {"d1": FEW}),
    "one that completed after the log compaction was planned counts as new": (
        OVERLAPPED, """
        d1 f1 12 15 18 21 26 29
        """, {}, "d1 f1 12 15 18 21 26 29", {}),
    "log files behind a pending write stay": (
        SLOW, """
        d1 f1 12 15 18 24 27
        """, {}, "d1 f1 12 15 18", {"d1": f"write {at(21)} is pending"}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("picture", "text", "locked", "expected", "missing"), PLANS.values(), ids=list(PLANS)
)
def test_plans(
    picture: str, text: str, locked: dict[str, str], expected: str, missing: dict[str, str]
) -> None:
    drawn = slices(text)
    plan = plan_log_compaction(
        drawn,
        settings=THREE,
        history=LogHistory.from_timeline(draw(picture)),
        window=IncrementalWindow(None),
        locked={(s.partition, s.file_id): locked[s.file_id] for s in drawn if s.file_id in locked},
        find_partial=lambda _: (),
    )
    assert isinstance(plan, CompactionPlan)
    assert show(plan) == expected
    assert plan.missing_reasons == missing
    assert plan.missing_partitions == tuple(sorted(missing))
    assert plan.preserve_metadata
    assert parse_compaction_plan(format_compaction_plan(plan)) == plan


SKIPS = {
    "nothing has log files": ("d1 f1", "no log files"),
    "few log files everywhere": ("d1 f1 12 15\nd2 f2 12", f"{FEW} (2 partitions)"),
    "a slow write is in the way": (
        "d1 f1 15 18 24 27", f"write {at(21)} is pending (1 partition)"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), SKIPS.values(), ids=list(SKIPS))
def test_no_plan_without_operations(text: str, reason: str) -> None:
    plan = plan_log_compaction(
        slices(text),
        settings=THREE,
        history=LogHistory.from_timeline(draw(SLOW)),
        window=IncrementalWindow(None),
        locked={},
        find_partial=lambda _: (),
    )
    assert plan == Skip(f"nothing to compact in log files: {reason}")


def test_a_single_log_file_is_left_alone() -> None:
    plan = plan_log_compaction(
        slices("d1 f1 12"),
        settings=LogCompactionSettings(blocks_threshold=1),
        history=LogHistory.from_timeline(draw(QUIET)),
        window=IncrementalWindow(None),
        locked={},
        find_partial=lambda _: (),
    )
    assert str(plan).endswith("fewer than 2 new log files (1 partition)")


def test_where_planning_is_not_incremental_nothing_is_recorded() -> None:
    plan = plan_log_compaction(
        slices("d1 f1 10 12 14\nd2 f2 10"),
        settings=THREE,
        history=LogHistory.from_timeline(draw(QUIET)),
        window=IncrementalWindow(None, records_missing=False),
        locked={},
        find_partial=lambda _: (),
    )
    assert isinstance(plan, CompactionPlan)
    assert (plan.missing_partitions, plan.extra) == (None, {})


REAL = ["20261115212406509", "20261115212409340"]


@pytest.mark.parametrize("instant", REAL, ids=["first", "after another"])
def test_the_plan_is_the_one_that_real_hudi_made(golden: GoldenTables, instant: str) -> None:
    real, snapshot = hudi_compaction_plan(golden["mor_logcompacted"], instant, "logcompaction")
    options = {"hoodie.log.compaction.blocks.threshold": "2"}
    context = PlanningContext(snapshot, instant, ManualClock().now_ms(), options)
    assert SERVICE.check_trigger(context) is None
    plan = SERVICE.plan(context)
    assert isinstance(plan, CompactionPlan)
    assert set(plan.operations) == set(real.operations)
    assert (plan.strategy, plan.preserve_metadata) == (real.strategy, real.preserve_metadata)
    assert (plan.version, plan.missing_partitions) == (real.version, real.missing_partitions)


def test_a_copy_on_write_table_is_refused() -> None:
    storage = MemoryStorage.fresh()
    schema = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64())])
    TableBuilder(storage, schema, table_type="COPY_ON_WRITE").create()
    with pytest.raises(InvalidError, match="copy-on-write table has no log files"):
        SERVICE.check_trigger(PlanningContext(load_snapshot(storage), at(1), 0))
