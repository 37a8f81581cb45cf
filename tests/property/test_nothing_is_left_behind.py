"""No strategy, filter, budget or pending plan makes a log file wait for ever.

Whatever was scheduled, executed or left before: once nothing filters any more, a few rounds compact
every log file, without another write to its partition.
"""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.model.instant import Action, Instant
from lakewright.services.compaction_debt import load_debt
from lakewright.table.snapshot import load_snapshot
from support.soak import sized
from support.tables import NO_SERVICES, WrittenTable, row

DAYS = [f"2026/01/{n:02d}" for n in range(1, 7)]
ELSEWHERE = "2027/01/01"
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": "1"}
BY_HAND = NO_SERVICES
STRATEGIES: list[Mapping[str, str]] = [
    {},
    {"hoodie.compaction.strategy": "unbounded"},
    {"hoodie.compaction.strategy": "bounded_io", "hoodie.compaction.target.io": "1"},
    {"hoodie.compaction.strategy": "log_file_num", "hoodie.compaction.logfile.num.threshold": "2"},
    {"hoodie.compaction.logfile.size.threshold": "4000"},
    {
        "hoodie.compaction.strategy": "day_based",
        "hoodie.compaction.daybased.target.partitions": "1",
    },
    {
        "hoodie.compaction.strategy": "bounded_partition",
        "hoodie.compaction.daybased.target.partitions": "2",
    },
    {
        "hoodie.compaction.strategy": "unbounded_partition",
        "hoodie.compaction.daybased.target.partitions": "2",
    },
    {
        "hoodie.compaction.strategy": "partition_regex",
        "hoodie.compaction.partition.path.regex": "2026/01/0[135]",
    },
    {
        "hoodie.compaction.strategy": "partition_regex,log_file_num",
        "hoodie.compaction.partition.path.regex": "2026/01/0[246]",
        "hoodie.compaction.logfile.num.threshold": "2",
    },
]
LOG_COMPACTION = {"hoodie.log.compaction.blocks.threshold": "2"}

writes = st.tuples(st.just("write"), st.sets(st.sampled_from(range(len(DAYS))), min_size=1))
plans = st.tuples(st.sampled_from(["schedule", "run"]), st.sampled_from(range(len(STRATEGIES))))
pending = st.tuples(st.sampled_from(["execute", "logcompact", "drop"]), st.just(0))
steps = st.lists(st.one_of(writes, writes, plans, plans, pending), min_size=2, max_size=12)


def apply(table: WrittenTable, kind: str, value: object, now: int) -> None:
    match kind, value:
        case "write", set(chosen):
            table.upsert([row("k", now, f"at {now}", DAYS[n]) for n in sorted(chosen)])
        case "schedule" | "run", int(number):
            getattr(table.services({**AT_ONCE, **STRATEGIES[number]}), kind)("compaction")
        case "logcompact", _:
            table.services(LOG_COMPACTION).run("logcompaction")
        case "drop", _:
            table.delete_partitions(DAYS[-1])
        case _:
            execute_pending(table, most=1)


def execute_pending(table: WrittenTable, most: int = 99) -> None:
    # The newest first, so that a plan completes after one that was made later.
    pending: list[Instant] = list(load_snapshot(table.storage).timeline.pending(Action.COMPACTION))
    for instant in pending[::-1][:most]:
        table.services().execute(instant.requested_at)


@settings(max_examples=sized(12, 400), deadline=None)
@given(history=steps)
def test_every_log_file_is_compacted_once_nothing_filters(
    history: list[tuple[str, object]],
) -> None:
    table = WrittenTable(options=BY_HAND).create("MERGE_ON_READ")
    table.upsert([row("k", 1, "first", day) for day in [*DAYS, ELSEWHERE]])
    for now, (kind, value) in enumerate(history, start=2):
        apply(table, kind, value, now)
    before = [record for record in table.rows() if record["day"] != ELSEWHERE]
    execute_pending(table)
    for number in range(3):
        # A write to another partition triggers the compaction.
        table.upsert([row("k", 100 + number, "tick", ELSEWHERE)])
        table.services(AT_ONCE).run("compaction")
    snapshot = load_snapshot(table.storage)
    assert not load_debt(table.services().planning_context(snapshot))
    slices = [group.latest_merged_slice() for group in snapshot.groups(snapshot.view())]
    assert [item for item in slices if item.logs] == []
    assert [record for record in table.rows() if record["day"] != ELSEWHERE] == before
    assert table.rows(optimized=True) == table.rows()
