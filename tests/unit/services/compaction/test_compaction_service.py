"""Compaction planned on tables: what is listed, what is due, and what real Hudi planned there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from lakewright.errors import InvalidError
from lakewright.format.timeline_metadata import format_compaction_plan
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import CompactionPlan, Skip
from lakewright.services.base import PlanningContext
from lakewright.services.compaction.planner import register_strategy
from lakewright.services.compaction.service import Compaction
from lakewright.services.compaction.strategies import Candidate, Selection
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage
from lakewright.testing.table_builder import TableBuilder
from support.golden import GoldenTables
from support.services import hudi_compaction_plan

SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64())])
SOON = {"hoodie.compact.inline.max.delta.commits": "1"}
SERVICE = Compaction()


@dataclass
class Trips:
    """A table; a file group is written as `partition file_id`."""

    table_type: str = "MERGE_ON_READ"
    storage: CountingStorage = field(default_factory=lambda: CountingStorage(MemoryStorage.fresh()))

    def __post_init__(self) -> None:
        self.builder = TableBuilder(self.storage, SCHEMA, table_type=self.table_type).create()

    def insert(self, *groups: str) -> Trips:
        self.builder.commit({_key(group): _rows(group) for group in groups})
        return self

    def update(self, *groups: str) -> Trips:
        self.builder.commit(logs={_key(group): b"changes" for group in groups})
        return self

    def schedule(self, action: str = "compaction", **options: str) -> str:
        """Put the plan of a compaction on the timeline."""
        return self._put(action, options)[0]

    def compact(self, **options: str) -> None:
        """Schedule, and write the base files."""
        instant, plan = self._put("compaction", options)
        groups = groups_of(plan).split(", ")
        self.builder.commit(
            {_key(group): _rows(group) for group in groups}, instant=instant, action=Action.COMMIT
        )

    def _put(self, action: str, options: dict[str, str]) -> tuple[str, CompactionPlan]:
        instant = self.builder.tick()
        plan = self.plan(instant, **options)
        assert isinstance(plan, CompactionPlan)
        requested = Instant(instant, Action(action), State.REQUESTED)
        self.storage.create(f".hoodie/timeline/{requested.file_name}", format_compaction_plan(plan))
        return instant, plan

    def plan(self, instant: str | None = None, **options: str) -> CompactionPlan | Skip:
        context = PlanningContext(
            load_snapshot(self.storage),
            instant or self.builder.tick(),
            ManualClock().now_ms(),
            {**SOON, **_keys(options)},
        )
        not_due = SERVICE.check_trigger(context)
        return not_due if not_due is not None else SERVICE.plan(context)

    def listed(self) -> set[str]:
        """The folders that were listed since the last look."""
        paths = {path for method, path in self.storage.touched if method.startswith("list")}
        self.storage.reset()
        return {path for path in paths if not path.startswith(".hoodie")}


def _key(group: str) -> tuple[str, str]:
    partition, file_id = group.rsplit(" ", 1)
    return partition, file_id


def _rows(group: str) -> pa.Table:
    return pa.Table.from_pylist([{"id": group, "day": _key(group)[0], "ts": 1}], SCHEMA)


def _keys(options: dict[str, str]) -> dict[str, str]:
    ends = {
        "commits": "hoodie.compact.inline.max.delta.commits",
        "strategy": "hoodie.compaction.strategy",
        "regex": "hoodie.compaction.partition.path.regex",
        "target_io": "hoodie.compaction.target.io",
        "incremental": "hoodie.table.services.incremental.enabled",
    }
    return {ends[name]: value for name, value in options.items()}


def groups_of(plan: CompactionPlan | Skip) -> str:
    """The operations of a plan, sorted; or why there are none."""
    if isinstance(plan, Skip):
        return plan.reason
    return ", ".join(sorted(f"{o.partition} {o.file_id}" for o in plan.operations))


def missing(plan: CompactionPlan | Skip) -> dict[str, str]:
    assert isinstance(plan, CompactionPlan)
    assert plan.missing_partitions == tuple(sorted(plan.missing_reasons))
    return plan.missing_reasons


def test_a_budget_ends_the_first_round_and_the_second_takes_the_rest() -> None:
    # Without base files each group costs as much as a full one.
    trips = Trips().update("20250115 a", "20250115 b")
    first = trips.plan(target_io="1")
    assert groups_of(first) == "20250115 a"
    assert missing(first) == {"20250115": "over the budget of 1 MB"}
    trips.compact(target_io="1")
    trips.update("20250116 c")
    second = trips.plan()
    assert groups_of(second) == "20250115 b, 20250116 c"
    assert missing(second) == {}


def test_what_a_round_leaves_the_next_one_takes() -> None:
    trips = Trips().insert("d1 a", "d2 b").update("d1 a", "d2 b")
    trips.compact(strategy="partition_regex", regex="d2")
    trips.update("d3 c")
    second = trips.plan()
    assert groups_of(second) == "d1 a, d3 c"
    assert missing(second) == {}


REGEXES = {
    ".*": "2015/03/16 a, 2015/03/17 b, 2016/03/15 c",
    "2017/.*/.*": "nothing to compact: filtered by partition_regex (3 partitions)",
    "2015/03/.*": "2015/03/16 a, 2015/03/17 b",
    "2016/.*/.*": "2016/03/15 c",
}


@pytest.mark.parametrize(("regex", "expected"), REGEXES.items(), ids=list(REGEXES))
def test_a_pattern_selects_partitions(regex: str, expected: str) -> None:
    groups = ("2015/03/16 a", "2015/03/17 b", "2016/03/15 c")
    trips = Trips().insert(*groups).update(*groups)
    assert groups_of(trips.plan(strategy="partition_regex", regex=regex)) == expected


def test_only_the_partitions_of_the_window_are_listed() -> None:
    trips = Trips().insert("d1 a", "d2 b", "d3 c").update("d1 a", "d2 b", "d3 c")
    trips.compact()
    trips.update("d2 b")
    trips.listed()
    assert groups_of(trips.plan()) == "d2 b"
    assert trips.listed() == {"d2"}


def test_what_the_strategy_filters_is_not_listed() -> None:
    trips = Trips().insert("d1 a", "d2 b").update("d1 a", "d2 b")
    trips.compact()
    trips.update("d1 a", "d2 b")
    trips.listed()
    plan = trips.plan(strategy="partition_regex", regex="d1")
    assert groups_of(plan) == "d1 a"
    assert missing(plan) == {"d2": "filtered by partition_regex"}
    assert trips.listed() == {"d1"}


def test_an_empty_window_lists_nothing_and_plans_nothing() -> None:
    trips = Trips().insert("d1 a").update("d1 a")
    trips.compact()
    trips.builder.commit()
    trips.listed()
    assert trips.plan() == Skip("nothing was written or left since the last compaction")
    assert trips.listed() == set()


def test_switched_off_all_of_the_table_is_planned_and_nothing_is_recorded() -> None:
    trips = Trips().insert("d1 a", "d2 b").update("d1 a", "d2 b")
    trips.compact(strategy="partition_regex", regex="d2", incremental="false")
    trips.update("d2 b")
    plan = trips.plan(incremental="false")
    assert groups_of(plan) == "d1 a, d2 b"
    assert isinstance(plan, CompactionPlan)
    assert plan.missing_partitions is None


class Greedy:
    """A strategy without the interface: it is shown everything."""

    def choose(self, settings: Any, candidates: Sequence[Candidate]) -> Selection:
        return Selection(candidates)


def test_a_strategy_without_the_interface_gets_all_partitions() -> None:
    register_strategy("test.greedy", lambda _: Greedy())
    trips = Trips().insert("d1 a", "d2 b").update("d1 a")
    trips.compact()
    trips.update("d2 b")
    trips.listed()
    plan = trips.plan(strategy="test.greedy")
    assert (groups_of(plan), missing(plan)) == ("d2 b", {})
    assert {"d1", "d2"} <= trips.listed()


@pytest.mark.parametrize("action", ["compaction", "logcompaction"])
def test_groups_of_a_pending_plan_are_skipped_and_missing(action: str) -> None:
    trips = Trips().insert("d1 a", "d2 b").update("d1 a")
    instant = trips.schedule(action)
    trips.update("d1 a", "d2 b")
    plan = trips.plan()
    assert groups_of(plan) == "d2 b"
    assert missing(plan) == {"d1": f"held by {action} {instant}"}


def test_where_a_pending_plan_holds_all_there_is_no_plan() -> None:
    trips = Trips().insert("d1 a").update("d1 a")
    instant = trips.schedule()
    trips.update("d1 a")
    reason = f"nothing to compact: held by compaction {instant} (1 partition)"
    assert trips.plan() == Skip(reason)


def test_what_completes_after_the_instant_of_the_plan_is_not_in_it() -> None:
    trips = Trips().insert("d1 a", "d2 b").update("d1 a")
    instant = trips.builder.tick()
    trips.update("d1 a", "d2 b")
    plan = trips.plan(instant)
    assert groups_of(plan) == "d1 a"
    assert isinstance(plan, CompactionPlan)
    assert len(plan.operations[0].logs) == 1


def test_a_table_without_partitions() -> None:
    trips = Trips().insert(" a").update(" a")
    trips.compact()
    trips.update(" a")
    plan = trips.plan()
    assert (groups_of(plan), missing(plan)) == (" a", {})


def test_too_few_delta_commits() -> None:
    trips = Trips().insert("d1 a").update("d1 a")
    assert trips.plan(commits="3") == Skip("2 of 3 delta commits and no compaction yet")


def test_a_copy_on_write_table_is_refused() -> None:
    with pytest.raises(InvalidError, match="copy-on-write table has no log files"):
        Trips(table_type="COPY_ON_WRITE").plan()


def test_an_unknown_strategy_is_refused_even_if_nothing_is_due() -> None:
    with pytest.raises(InvalidError, match="no such compaction strategy"):
        Trips().plan(strategy="best", commits="5")


REAL = [
    ("mor_pending_compaction", "20261115212330547"),
    ("mor_compacted", "20261115212320260"),
    ("mor_compacted", "20261115212322097"),
]


@pytest.mark.parametrize(("table", "instant"), REAL, ids=["pending", "first", "second"])
def test_the_plan_is_the_one_that_real_hudi_made(
    golden: GoldenTables, table: str, instant: str
) -> None:
    real, snapshot = hudi_compaction_plan(golden[table], instant, "compaction")
    plan = SERVICE.plan(PlanningContext(snapshot, instant, ManualClock().now_ms(), SOON))
    assert isinstance(plan, CompactionPlan)
    assert set(plan.operations) == set(real.operations)
    assert (plan.version, plan.strategy) == (real.version, real.strategy)
    assert plan.missing_partitions == real.missing_partitions == ()
    by_file = {operation.file_id: operation.metrics for operation in real.operations}
    assert {o.file_id: o.metrics for o in plan.operations} == by_file
